/* The limits file: map, check, read under its seqlock.
 *
 * Threads: any. The cache of good values is guarded by cache_lock; limits_sequence() is lock-free.
 * Fork: the mapping stays valid in the child; a copy that another thread was making is made anew.
 */
#include "limits.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checksum.h"
#include "limits_environment.h"
#include "log.h"
#include "postfork.h"

#define READ_ATTEMPTS 200

static const uint32_t no_sequence;
const uint32_t *limits_sequence_word = &no_sequence;
static const struct limits_file *mapped;
static enum limits_source source;
static bool opened;

/* The last good copy, and the sequence it was read at. A seqlock of its own: odd while one thread
 * copies. */
static struct limits_record good[MAX_DEVICES];
static uint32_t good_count;
static uint32_t good_sequence;
static uint32_t copy_turn;

enum limits_source
limits_source(void)
{
	return __atomic_load_n(&opened, __ATOMIC_ACQUIRE) ? source : LIMITS_NONE;
}

uint32_t
limits_sequence(void)
{
	return __atomic_load_n(__atomic_load_n(&limits_sequence_word, __ATOMIC_RELAXED),
			       __ATOMIC_RELAXED);
}

/* Copy header and records consistently; false while they are being rewritten or when they are
 * garbled. */
static bool
copy_consistent(const struct limits_file *file, struct limits_header *header,
		struct limits_record *records)
{
	uint32_t before = __atomic_load_n(&file->header.sequence, __ATOMIC_ACQUIRE);
	memcpy(header, &file->header, sizeof *header);
	memcpy(records, file->records, sizeof file->records);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	uint32_t after = __atomic_load_n(&file->header.sequence, __ATOMIC_RELAXED);
	header->sequence = before;
	return before == after && (before & 1) == 0 && limits_valid(header, records);
}

static bool
refresh(void)
{
	struct limits_header header;
	struct limits_record records[MAX_DEVICES];
	if (!copy_consistent(mapped, &header, records)) {
		return false;
	}
	memcpy(good, records, sizeof good);
	good_count = header.device_count;
	__atomic_store_n(&good_sequence, header.sequence, __ATOMIC_RELEASE);
	return true;
}

static enum limits_source
open_file(const char *path)
{
	/* O_NONBLOCK: should it be a pipe, nobody waits for its writer. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0) {
		log_line(LOG_ERROR,
			 "%s: cannot be read (%s): every allocation is denied; ask the node's "
			 "device plugin",
			 path, strerror(errno));
		return LIMITS_CLOSED;
	}
	bool whole = lseek(fd, 0, SEEK_END) >= (off_t)sizeof(struct limits_file);
	void *map = whole ? mmap(NULL, sizeof(struct limits_file), PROT_READ, MAP_SHARED, fd, 0)
			  : MAP_FAILED;
	close(fd);
	if (map != MAP_FAILED) {
		mapped = map;
		for (int i = 0; i < READ_ATTEMPTS; i++) {
			if (refresh()) {
				__atomic_store_n(&limits_sequence_word, &mapped->header.sequence,
						 __ATOMIC_RELEASE);
				return LIMITS_FILE;
			}
			usleep(100);
		}
		munmap(map, sizeof(struct limits_file));
		mapped = NULL;
	}
	log_line(LOG_ERROR,
		 "%s: not a limits file of version %d or garbled: every allocation is denied; "
		 "restart the pod so that the device plugin writes it again",
		 path, LIMITS_VERSION);
	return LIMITS_CLOSED;
}

enum limits_source
limits_open(const char *directory, char *(*environment)(const char *))
{
	if (__atomic_load_n(&opened, __ATOMIC_ACQUIRE)) {
		return source;
	}
	char path[256];
	int length = snprintf(path, sizeof path, "%s/limits", directory);
	if (length > 0 && (size_t)length < sizeof path && access(directory, F_OK) == 0) {
		source = open_file(path);
	} else {
		source = limits_environment_open(environment);
	}
	__atomic_store_n(&opened, true, __ATOMIC_RELEASE);
	return source;
}

int
limits_row(const uint8_t uuid[16])
{
	for (uint32_t row = 0; source == LIMITS_FILE && row < good_count; row++) {
		if (memcmp(good[row].uuid, uuid, 16) == 0) {
			return (int)row;
		}
	}
	return -1;
}

static void
refresh_when_changed(void)
{
	if (limits_sequence() == __atomic_load_n(&good_sequence, __ATOMIC_ACQUIRE)) {
		return;
	}
	uint32_t turn = __atomic_load_n(&copy_turn, __ATOMIC_RELAXED);
	if ((turn & 1) == 0 && __atomic_compare_exchange_n(&copy_turn, &turn, turn + 1, 0,
							   __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
		refresh();
		__atomic_store_n(&copy_turn, turn + 2, __ATOMIC_RELEASE);
	}
}

static void
read_good(int row, struct limits_record *record)
{
	uint32_t before, after;
	do {
		before = __atomic_load_n(&copy_turn, __ATOMIC_ACQUIRE);
		memcpy(record, &good[row], sizeof *record);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		after = __atomic_load_n(&copy_turn, __ATOMIC_RELAXED);
	} while (before != after || (before & 1) != 0);
}

void
limits_read(int row, struct limit *out)
{
	*out = (struct limit){.memory_bytes = 0};
	if (source == LIMITS_NONE) {
		out->memory_bytes = NO_MEMORY_LIMIT;
	} else if (source == LIMITS_ENVIRONMENT) {
		limits_environment_read(row, out);
	} else if (source == LIMITS_FILE && row >= 0) {
		struct limits_record record;
		refresh_when_changed();
		read_good(row, &record);
		out->memory_bytes = record.memory_bytes;
		out->spill_bytes = record.spill_bytes;
		out->core_q16 = record.core_q16;
		out->core_policy = record.core_policy;
		out->priority = record.priority;
		out->burst_ns = record.burst_ns;
	}
}

uint64_t
limits_memory(int row)
{
	if (source == LIMITS_FILE && row >= 0) {
		refresh_when_changed();
		return __atomic_load_n(&good[row].memory_bytes, __ATOMIC_RELAXED);
	}
	struct limit limit;
	limits_read(row, &limit);
	return limit.memory_bytes;
}

uint64_t
limits_spill(int row)
{
	if (source == LIMITS_FILE && row >= 0) {
		refresh_when_changed();
		return __atomic_load_n(&good[row].spill_bytes, __ATOMIC_RELAXED);
	}
	struct limit limit;
	limits_read(row, &limit);
	return limit.spill_bytes;
}

bool
limits_hints_are_published(int row)
{
	return source == LIMITS_FILE && row >= 0 &&
	       __atomic_load_n(&mapped->hints[row].sequence, __ATOMIC_RELAXED) != 0;
}

bool
limits_hint(int row, struct limits_hint *out)
{
	if (source != LIMITS_FILE || row < 0) {
		return false;
	}
	const struct limits_hint *hint = &mapped->hints[row];
	uint32_t before = __atomic_load_n(&hint->sequence, __ATOMIC_ACQUIRE);
	memcpy(out, hint, sizeof *out);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return (before & 1) == 0 && before != 0 &&
	       before == __atomic_load_n(&hint->sequence, __ATOMIC_RELAXED);
}

void
limits_postfork_child(void)
{
	if ((copy_turn & 1) != 0) {
		copy_turn++;
		good_sequence = limits_sequence() - 1;
	}
}
