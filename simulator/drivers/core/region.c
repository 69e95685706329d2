#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef F_OFD_SETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

static const uint64_t MAGIC = 0x677570736c696365ULL + 5; /* + layout version */
static const off_t LIFE_BYTES = (off_t)1 << 40;          /* OFD locks: one byte a slot */
static const off_t PID_BYTES = (off_t)1
			       << 41; /* POSIX locks: tell an observer the pid in its namespace */
static const uint32_t WAITERS = 0x80000000U;

static struct region *mapped;
static int region_fd = -1;
static uint32_t slot = UINT32_MAX;
static char problem[512];
static char directory[PATH_MAX];
static pthread_mutex_t attach_mutex = PTHREAD_MUTEX_INITIALIZER;

struct region *
region(void)
{
	return mapped;
}

struct client *
region_self(void)
{
	return &mapped->clients[slot];
}

uint32_t
region_slot(void)
{
	return slot;
}

const char *
region_problem(void)
{
	return problem;
}

const char *
region_directory(void)
{
	return directory;
}

static long
futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
	return syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

static int
byte_lock(int command, off_t byte, struct flock *lock)
{
	*lock =
	    (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
	return fcntl(region_fd, command, lock);
}

bool
client_alive(uint32_t which)
{
	struct flock lock;
	if (which == slot) {
		return true;
	}
	return byte_lock(F_OFD_GETLK, LIFE_BYTES + (off_t)which, &lock) == 0 &&
	       lock.l_type != F_UNLCK;
}

pid_t
client_visible_pid(uint32_t which)
{
	struct flock lock;
	if (which == slot) {
		return getpid();
	}
	if (byte_lock(F_GETLK, PID_BYTES + (off_t)which, &lock) == 0 && lock.l_type != F_UNLCK) {
		return lock.l_pid > 0 ? lock.l_pid : 0;
	}
	return mapped->clients[which].pid_namespace == region_self()->pid_namespace
		   ? mapped->clients[which].pid
		   : 0;
}

void
region_repair(void)
{
	struct region *r = mapped;
	for (unsigned d = 0; d < r->inventory.card_count * DOMAINS_PER_CARD; d++) {
		r->domains[d].used_bytes = 0;
	}
	for (uint32_t c = 0; c < MAX_CLIENTS; c++) {
		const struct client *client = &r->clients[c];
		if (r->kinds[c] == CLIENT_NONE) {
			continue;
		}
		for (uint32_t h = 0; h < client->holding_count; h++) {
			for (unsigned k = 0; k < KIND_COUNT; k++) {
				r->domains[client->holdings[h].domain].used_bytes +=
				    client->holdings[h].bytes[k];
			}
		}
	}
	for (unsigned s = 0; s < MAX_SHARED; s++) {
		if (r->shared[s].used) {
			r->domains[r->shared[s].domain].used_bytes += r->shared[s].bytes;
		}
	}
}

static bool
has_holders(const struct shared_memory *memory)
{
	for (unsigned i = 0; i < MAX_CLIENTS / 64; i++) {
		if (memory->holders[i] != 0) {
			return true;
		}
	}
	return false;
}

static void
forget_client(uint32_t which)
{
	struct region *r = mapped;
	for (unsigned s = 0; s < MAX_SHARED; s++) {
		struct shared_memory *memory = &r->shared[s];
		if (memory->used && (memory->holders[which / 64] >> (which % 64) & 1U) != 0) {
			memory->holders[which / 64] &= ~(1ULL << (which % 64));
			memory->used = has_holders(memory);
		}
	}
	for (unsigned p = 0; p < MAX_PARTICIPANTS; p++) {
		if (r->participants[p].state != PARTICIPANT_NONE &&
		    r->participants[p].client == which) {
			r->participants[p].state = PARTICIPANT_NONE;
		}
	}
	r->clients[which].holding_count = 0;
	atomic_store(&r->kinds[which], CLIENT_NONE);
}

void
region_reap(void)
{
	bool found = false;
	for (uint32_t c = 0; c < MAX_CLIENTS; c++) {
		if (mapped->kinds[c] != CLIENT_NONE && !client_alive(c)) {
			forget_client(c);
			found = true;
		}
	}
	if (found) {
		region_repair();
	}
}

void
region_lock(void)
{
	_Atomic uint32_t *word = &mapped->lock.owner;
	const struct timespec patience = {.tv_nsec = 20 * 1000 * 1000};
	uint32_t expected = 0;
	uint32_t mine = slot + 1;
	while (!atomic_compare_exchange_weak(word, &expected, mine)) {
		if (expected == 0) {
			continue;
		}
		uint32_t holder = expected & ~WAITERS;
		if ((expected & WAITERS) == 0 &&
		    !atomic_compare_exchange_weak(word, &expected, expected | WAITERS)) {
			expected = 0;
			continue;
		}
		long woke = futex(word, FUTEX_WAIT, holder | WAITERS, &patience);
		mine =
		    (slot + 1) |
		    WAITERS; /* others may still sleep: keep the mark, a spare wake is harmless */
		expected = 0;
		if (woke != 0 && errno == ETIMEDOUT && holder != slot + 1 &&
		    !client_alive(holder - 1)) {
			uint32_t dead = holder | WAITERS;
			if (atomic_compare_exchange_strong(word, &dead, mine)) {
				mapped->repairs++;
				region_repair();
				return;
			}
		}
	}
}

void
region_unlock(void)
{
	if ((atomic_exchange(&mapped->lock.owner, 0) & WAITERS) != 0) {
		futex(&mapped->lock.owner, FUTEX_WAKE, 1, NULL);
	}
}

static uint64_t
hash_text(const char *text)
{
	uint64_t hash = 0xcbf29ce484222325ULL;
	for (; *text != '\0'; text++) {
		hash = (hash ^ (unsigned char)*text) * 0x100000001b3ULL;
	}
	return hash;
}

static uint64_t
boot_hash(void)
{
	char *text = inventory_read_file("/proc/sys/kernel/random/boot_id");
	uint64_t hash = text != NULL ? hash_text(text) : 0;
	free(text);
	return hash;
}

static uint64_t
own_start_ticks(void)
{
	char *text = inventory_read_file("/proc/self/stat");
	uint64_t ticks = 0;
	char *at = text != NULL ? strrchr(text, ')')
				: NULL; /* the command may hold spaces and parentheses */
	for (int field = 2; at != NULL && field < 22; field++) {
		at = strchr(at + 1, ' ');
	}
	if (at != NULL) {
		ticks = strtoull(at + 1, NULL, 10);
	}
	free(text);
	return ticks;
}

static bool
open_region(void)
{
	const char *where = getenv("GPUSLICE_FAKE_STATE");
	if (where == NULL || *where == '\0') {
		region_fd = (int)syscall(SYS_memfd_create, "gpuslice-fake", 1U /* MFD_CLOEXEC */);
		directory[0] = '\0';
		return region_fd >= 0;
	}
	char path[PATH_MAX];
	if (snprintf(directory, sizeof directory, "%s", where) >= (int)sizeof directory - 16) {
		snprintf(problem, sizeof problem, "GPUSLICE_FAKE_STATE is too long");
		return false;
	}
	mkdir(directory, 0777);
	snprintf(path, sizeof path, "%.*s/region", (int)sizeof path - 16, directory);
	region_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (region_fd < 0) {
		snprintf(problem, sizeof problem, "GPUSLICE_FAKE_STATE: %.200s: %s", path,
			 strerror(errno));
		return false;
	}
	fchmod(region_fd, 0666);
	return true;
}

static bool
somebody_lives(void)
{
	for (uint32_t c = 0; c < MAX_CLIENTS; c++) {
		if (mapped->kinds[c] != CLIENT_NONE && client_alive(c)) {
			return true;
		}
	}
	return false;
}

static void
forget_everything(void)
{
	struct region *r = mapped;
	for (unsigned d = 0; d < MAX_DOMAINS; d++) {
		if (r->domains[d].used_bytes != 0 || r->domains[d].advanced_ns != 0) {
			memset(&r->domains[d], 0, sizeof r->domains[d]);
		}
	}
	for (unsigned s = 0; s < MAX_SHARED; s++) {
		r->shared[s].used = false;
	}
	for (unsigned c = 0; c < MAX_CLIENTS; c++) {
		if (r->kinds[c] != CLIENT_NONE) {
			atomic_store(&r->kinds[c], CLIENT_NONE);
		}
	}
}

static bool
fill_region(const char *text, uint64_t hash)
{
	struct region *r = mapped;
	static struct inventory parsed;
	char error[256];
	if (!inventory_parse(text, &parsed, error, sizeof error)) {
		snprintf(problem, sizeof problem, "GPUSLICE_FAKE_INVENTORY: %.200s: %s",
			 getenv("GPUSLICE_FAKE_INVENTORY"), error);
		return false;
	}
	bool used_before = r->magic != 0; /* a new file is all zero, and stays sparse */
	memset(r, 0, offsetof(struct region, domains));
	if (used_before) {
		forget_everything();
	}
	const char *clock = getenv("GPUSLICE_FAKE_CLOCK");
	r->clock = clock != NULL && strcmp(clock, "virtual") == 0 ? CLOCK_VIRTUAL : CLOCK_REAL;
	const char *expected = getenv("GPUSLICE_FAKE_PARTICIPANTS");
	r->participants_expected = expected != NULL ? (uint32_t)strtoul(expected, NULL, 10) : 0;
	atomic_store(&r->virtual_ns, 1000000000); /* moment 0 means "never" elsewhere */
	r->inventory = parsed;
	r->inventory_hash = hash;
	r->boot_hash = boot_hash();
	r->size = sizeof *r;
	r->magic = MAGIC;
	atomic_store(&r->ready, 1);
	return true;
}

/* Under flock: one process at a time decides whether the file is fit for use. */
static bool
prepare_region(void)
{
	const char *path = getenv("GPUSLICE_FAKE_INVENTORY");
	if (path == NULL || *path == '\0') {
		snprintf(problem, sizeof problem, "GPUSLICE_FAKE_INVENTORY is not set: no cards");
		return false;
	}
	char *text = inventory_read_file(path);
	if (text == NULL) {
		snprintf(problem, sizeof problem, "GPUSLICE_FAKE_INVENTORY: %.200s: %s", path,
			 strerror(errno));
		return false;
	}
	uint64_t hash = hash_text(text);
	bool usable =
	    mapped->magic == MAGIC && mapped->size == sizeof *mapped && mapped->ready != 0;
	bool same = usable && mapped->inventory_hash == hash && mapped->boot_hash == boot_hash();
	bool ok = same;
	if (!same && usable && somebody_lives()) {
		snprintf(problem, sizeof problem,
			 "GPUSLICE_FAKE_INVENTORY: %.200s differs from the inventory that running "
			 "processes use in %.200s",
			 path, directory);
	} else if (!same) {
		ok = fill_region(text, hash);
	}
	free(text);
	return ok;
}

static bool
map_region(void)
{
	struct stat info;
	if (flock(region_fd, LOCK_EX) != 0 || fstat(region_fd, &info) != 0) {
		return false;
	}
	bool ok = true;
	if (info.st_size != (off_t)sizeof(struct region)) {
		ok = ftruncate(region_fd, 0) == 0 &&
		     ftruncate(region_fd, (off_t)sizeof(struct region)) == 0;
	}
	if (ok) {
		void *at = mmap(NULL, sizeof(struct region), PROT_READ | PROT_WRITE, MAP_SHARED,
				region_fd, 0);
		ok = at != MAP_FAILED;
		mapped = ok ? at : NULL;
	}
	if (ok) {
		ok = prepare_region();
	}
	flock(region_fd, LOCK_UN);
	if (!ok && mapped != NULL) {
		munmap(mapped, sizeof *mapped);
		mapped = NULL;
	}
	return ok;
}

static bool
take_slot(enum client_kind kind)
{
	struct flock lock;
	for (uint32_t i = 0; i < MAX_CLIENTS * 2; i++) {
		uint32_t c =
		    i % MAX_CLIENTS; /* first round: free slots; second: those of the dead */
		if ((i < MAX_CLIENTS && mapped->kinds[c] != CLIENT_NONE) ||
		    byte_lock(F_OFD_SETLK, LIFE_BYTES + (off_t)c, &lock) != 0) {
			continue;
		}
		byte_lock(F_SETLK, PID_BYTES + (off_t)c, &lock);
		slot = c;
		region_lock();
		if (mapped->kinds[c] != CLIENT_NONE) {
			forget_client(c);
			region_repair();
		}
		struct client *self = region_self();
		struct stat info;
		self->pid = getpid();
		self->start_ticks = own_start_ticks();
		self->pid_namespace = stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
		self->holding_count = 0;
		atomic_store(&mapped->kinds[c], kind);
		region_unlock();
		return true;
	}
	snprintf(problem, sizeof problem, "all %d process slots of %.200s are taken", MAX_CLIENTS,
		 directory);
	return false;
}

/* The child of a fork shares the parent's open file description, and with it the parent's life
 * byte: let go of it, or the parent would seem to live on in the child. */
static void
after_fork_in_child(void)
{
	if (mapped == NULL) {
		return;
	}
	close(region_fd);
	region_fd = -1;
	slot = UINT32_MAX;
	munmap(mapped, sizeof *mapped);
	mapped = NULL;
	pthread_mutex_init(&attach_mutex, NULL);
}

static void
register_fork_handler(void)
{
	pthread_atfork(NULL, NULL, after_fork_in_child);
}

bool
region_attach(enum client_kind kind)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_mutex_lock(&attach_mutex);
	bool ok = mapped != NULL && slot != UINT32_MAX;
	if (!ok) {
		pthread_once(&once, register_fork_handler);
		problem[0] = '\0';
		ok = open_region() && map_region() && take_slot(kind);
		if (!ok) {
			if (problem[0] == '\0') {
				snprintf(problem, sizeof problem, "state of the fake node: %s",
					 strerror(errno));
			}
			if (region_fd >= 0) {
				close(region_fd);
				region_fd = -1;
			}
		}
	}
	pthread_mutex_unlock(&attach_mutex);
	return ok;
}
