/* Threads: any, after state_open. Fork: the child drops the parent's slot and file description,
 * keeps the mapping, and takes a slot of its own at its first call. */
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "faults.h"
#include "lock.h"
#include "log.h"
#include "postfork.h"
#include "process.h"
#include "robust.h"

#define LOW_FD 700 /* keep clear of the small numbers that applications expect to get */

static struct state_file *mapped;
static char file_path[256];
static int file_fd = -1;
static ino_t file_inode;
static struct slot *own_slot;
static uint32_t own_namespace;
static struct lock slot_lock;

struct state_file *
state_file(void)
{
	return mapped;
}

static bool
byte_lock(int fd, int command, short type, off_t at, short *found)
{
	struct flock request = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
	int result;
	do {
		result = fcntl(fd, command, &request);
	} while (result != 0 && errno == EINTR);
	if (found != NULL) {
		*found = request.l_type;
	}
	return result == 0;
}

static ino_t
inode_of(int fd)
{
	struct stat status;
	return syscall(SYS_fstat, fd, &status) == 0 ? status.st_ino : 0;
}

static int
open_file(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT) {
		fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
		if (fd >= 0) {
			/* Other users of the container share it; the process's umask is not ours to
			 * change. */
			(void)fchmod(fd, 0666);
		}
	}
	int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, LOW_FD);
	if (high >= 0) {
		close(fd);
		fd = high;
	}
	return fd;
}

static void
initialise(struct state_file *file)
{
	robust_init(file->header.registry_mutex);
	for (unsigned i = 0; i < MAX_DEVICES; i++) {
		robust_init(file->devices[i].alloc_mutex);
		robust_init(file->devices[i].limiter_mutex);
	}
	file->header.version = STATE_VERSION;
	file->header.size_bytes = sizeof *file;
	FAULT_POINT("init");
	__atomic_store_n(&file->header.magic, STATE_MAGIC, __ATOMIC_RELEASE);
}

static bool
map_file(int fd)
{
	off_t size = lseek(fd, 0, SEEK_END);
	if (size < (off_t)sizeof(struct state_file) &&
	    ftruncate(fd, sizeof(struct state_file)) != 0) {
		return false;
	}
	void *map =
	    mmap(NULL, sizeof(struct state_file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED) {
		return false;
	}
	struct state_file *file = map;
	if (__atomic_load_n(&file->header.magic, __ATOMIC_ACQUIRE) == 0) {
		initialise(file);
	}
	if (file->header.magic != STATE_MAGIC || file->header.version != STATE_VERSION ||
	    file->header.size_bytes != sizeof *file) {
		munmap(map, sizeof *file);
		errno = EPROTO;
		return false;
	}
	mapped = file;
	return true;
}

bool
state_open(const char *path)
{
	int fd = open_file(path);
	bool good = fd >= 0 && byte_lock(fd, F_OFD_SETLKW, F_WRLCK, 0, NULL) && map_file(fd);
	if (!good) {
		log_line(LOG_ERROR,
			 "%s: %s: every allocation is denied; the directory must be writable for "
			 "this user",
			 path,
			 errno == EPROTO ? "written by another version of gpuslice"
					 : strerror(errno));
	}
	if (fd >= 0) {
		byte_lock(fd, F_OFD_SETLK, F_UNLCK, 0, NULL);
	}
	if (!good) {
		if (fd >= 0) {
			close(fd);
		}
		return false;
	}
	snprintf(file_path, sizeof file_path, "%s", path);
	file_fd = fd;
	file_inode = inode_of(fd);
	own_namespace = process_namespace();
	return true;
}

static bool
registry_lock(void)
{
	enum robust_result result = robust_lock(mapped->header.registry_mutex);
	if (result == ROBUST_RECOVERED) {
		mapped->header.recovered_locks++;
	}
	FAULT_POINT("registry");
	return result != ROBUST_BROKEN;
}

static off_t
slot_offset(const struct slot *slot)
{
	return (off_t)((const char *)slot - (const char *)mapped);
}

/* Dead: its pid is gone or reused; where the pid tells nothing: nobody holds its byte lock. That is
 * so in another pid namespace, and for a slot that bears our own pid and start: it is that of
 * another copy of this library in our process, or of a process that ended within the clock tick in
 * which we got its pid. */
static bool
slot_is_dead(const struct slot *slot)
{
	uint64_t owner = __atomic_load_n(&slot->owner, __ATOMIC_ACQUIRE);
	if (owner == 0 || slot == own_slot) {
		return false;
	}
	if (slot->pid_namespace == own_namespace || slot->pid_namespace == 0) {
		if (!process_alive(owner)) {
			return true;
		}
		if (process_owner_pid(owner) != (uint32_t)getpid()) {
			return false;
		}
	}
	short found = F_WRLCK;
	return file_fd >= 0 &&
	       byte_lock(file_fd, F_OFD_GETLK, F_WRLCK, slot_offset(slot), &found) &&
	       found == F_UNLCK;
}

uint64_t
state_slot_bytes(const struct slot *slot, unsigned device)
{
	int64_t sum = 0;
	for (unsigned kind = 0; kind < KINDS; kind++) {
		sum += __atomic_load_n(&slot->devices[device].held_bytes[kind], __ATOMIC_RELAXED);
	}
	return sum > 0 ? (uint64_t)sum : 0;
}

static void
recompute(struct state_device *device)
{
	uint64_t sum = 0;
	unsigned index = state_device_index(device);
	for (uint32_t i = 0; i < mapped->header.slots_high && i < MAX_SLOTS; i++) {
		if (mapped->slots[i].owner != 0) {
			sum += state_slot_bytes(&mapped->slots[i], index);
		}
	}
	device->used_bytes = sum;
}

bool
state_lock(struct state_device *device)
{
	enum robust_result result = robust_lock(device->alloc_mutex);
	if (result == ROBUST_RECOVERED) {
		recompute(device);
		__atomic_fetch_add(&mapped->header.recovered_locks, 1, __ATOMIC_RELAXED);
	}
	FAULT_POINT("locked");
	return result != ROBUST_BROKEN;
}

void
state_unlock(struct state_device *device)
{
	FAULT_POINT("unlock");
	robust_unlock(device->alloc_mutex);
	FAULT_POINT("unlocked");
}

static void
release_slot(struct slot *slot)
{
	for (unsigned i = 0; i < MAX_DEVICES; i++) {
		struct state_device *device = &mapped->devices[i];
		if (device->in_use == 0 || !state_lock(device)) {
			continue;
		}
		memset(&slot->devices[i], 0, sizeof slot->devices[i]);
		FAULT_POINT("reap");
		recompute(device);
		state_unlock(device);
	}
	slot->host_pid = 0;
	slot->unknown_frees = 0;
	__atomic_store_n(&slot->owner, 0, __ATOMIC_RELEASE);
}

static unsigned
reap_locked(void)
{
	unsigned reaped = 0;
	for (uint32_t i = 0; i < mapped->header.slots_high && i < MAX_SLOTS; i++) {
		if (slot_is_dead(&mapped->slots[i])) {
			release_slot(&mapped->slots[i]);
			reaped++;
		}
	}
	mapped->header.reaped_slots += reaped;
	return reaped;
}

unsigned
state_reap(void)
{
	if (mapped == NULL || !registry_lock()) {
		return 0;
	}
	unsigned reaped = reap_locked();
	robust_unlock(mapped->header.registry_mutex);
	return reaped;
}

static struct slot *
free_slot(void)
{
	for (uint32_t i = 0; i < MAX_SLOTS; i++) {
		if (mapped->slots[i].owner == 0) {
			return &mapped->slots[i];
		}
	}
	return NULL;
}

static struct slot *
claim_slot(void)
{
	struct slot *slot = free_slot();
	if (slot == NULL && reap_locked() > 0) {
		slot = free_slot();
	}
	if (slot == NULL) {
		mapped->header.refused_slots++;
		return NULL;
	}
	memset(slot->devices, 0, sizeof slot->devices);
	byte_lock(file_fd, F_OFD_SETLK, F_WRLCK, slot_offset(slot), NULL);
	slot->pid_namespace = own_namespace;
	uint32_t number = (uint32_t)(slot - mapped->slots) + 1;
	if (mapped->header.slots_high < number) {
		mapped->header.slots_high = number;
	}
	FAULT_POINT("claim");
	__atomic_store_n(&slot->owner, process_self(), __ATOMIC_RELEASE);
	return slot;
}

struct slot *
state_slot(void)
{
	struct slot *slot = __atomic_load_n(&own_slot, __ATOMIC_ACQUIRE);
	if (slot != NULL || mapped == NULL) {
		return slot;
	}
	lock_acquire(&slot_lock);
	if (own_slot == NULL && registry_lock()) {
		__atomic_store_n(&own_slot, claim_slot(), __ATOMIC_RELEASE);
		robust_unlock(mapped->header.registry_mutex);
		if (own_slot == NULL) {
			log_line(LOG_ERROR,
				 "%d processes of this container already use the GPU: every "
				 "allocation is denied",
				 MAX_SLOTS);
		}
	}
	slot = own_slot;
	lock_release(&slot_lock);
	return slot;
}

bool
state_owns_pid(uint32_t pid)
{
	for (uint32_t i = 0; i < mapped->header.slots_high && i < MAX_SLOTS; i++) {
		uint64_t owner = __atomic_load_n(&mapped->slots[i].owner, __ATOMIC_ACQUIRE);
		if (owner != 0 &&
		    (process_owner_pid(owner) == pid || mapped->slots[i].host_pid == pid)) {
			return true;
		}
	}
	return false;
}

unsigned
state_device_index(const struct state_device *device)
{
	return (unsigned)(device - mapped->devices);
}

struct state_device *
state_device(const uint8_t uuid[16])
{
	struct state_device *found = NULL;
	if (mapped == NULL || !registry_lock()) {
		return NULL;
	}
	for (unsigned i = 0; i < MAX_DEVICES && found == NULL; i++) {
		struct state_device *device = &mapped->devices[i];
		if (device->in_use == 0) {
			memcpy(device->uuid, uuid, 16);
			FAULT_POINT("row");
			device->in_use = 1;
			mapped->header.device_count = i + 1;
		}
		if (memcmp(device->uuid, uuid, 16) == 0) {
			found = device;
		}
	}
	robust_unlock(mapped->header.registry_mutex);
	return found;
}

void
state_postfork_child(void)
{
	slot_lock = (struct lock){0};
	own_slot = NULL;
	if (mapped == NULL) {
		return;
	}
	if (file_fd >= 0 && inode_of(file_fd) == file_inode) {
		close(file_fd);
	}
	file_fd = open_file(file_path);
	own_namespace = process_namespace();
}
