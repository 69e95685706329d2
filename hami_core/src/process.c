/* Fork: the child looks for itself anew. */
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "postfork.h"

#define STAT_STATE 3
#define STAT_THREADS 20
#define STAT_START 22
#define TICKS_PER_SECOND 100 /* USER_HZ, the same on every 64-bit Linux */

bool
process_parse_field(const char *stat, size_t length, int field, uint64_t *value)
{
	const char *end = stat + length;
	const char *at = memrchr(stat, ')', length);
	if (at == NULL) {
		return false;
	}
	for (int passed = STAT_STATE - 1; passed < field; passed++) {
		at = memchr(at, ' ', (size_t)(end - at));
		if (at == NULL) {
			return false;
		}
		at++;
	}
	uint64_t number = 0;
	const char *first = at;
	for (; at < end && *at >= '0' && *at <= '9' && number < UINT64_MAX / 16; at++) {
		number = number * 10 + (uint64_t)(*at - '0');
	}
	*value = number;
	return at > first;
}

/* A zombie holds no device memory any more, unless only its first thread has ended. */
static bool
is_zombie(const char *stat, size_t length)
{
	uint64_t threads = 0;
	const char *bracket = memrchr(stat, ')', length);
	return bracket != NULL && bracket + 2 < stat + length &&
	       (bracket[2] == 'Z' || bracket[2] == 'X') &&
	       process_parse_field(stat, length, STAT_THREADS, &threads) && threads <= 1;
}

enum stat_result { STAT_FOUND, STAT_ZOMBIE, STAT_ABSENT, STAT_UNKNOWN };

static enum stat_result
read_start(const char *path, uint64_t *ticks)
{
	char text[1024];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		return errno == ENOENT ? STAT_ABSENT : STAT_UNKNOWN;
	}
	ssize_t length = read(fd, text, sizeof text);
	int error = errno;
	close(fd);
	if (length <= 0) {
		return length < 0 && error == ESRCH ? STAT_ABSENT : STAT_UNKNOWN;
	}
	if (is_zombie(text, (size_t)length)) {
		return STAT_ZOMBIE;
	}
	return process_parse_field(text, (size_t)length, STAT_START, ticks) ? STAT_FOUND
									    : STAT_UNKNOWN;
}

uint64_t process_found_self;
static uint32_t found_namespace; /* + 1; 0: not looked for */

uint64_t
process_find_self(void)
{
	uint64_t ticks = 1;
	if (read_start("/proc/self/stat", &ticks) != STAT_FOUND || ticks == 0) {
		ticks = 1;
	}
	uint64_t self = (ticks << OWNER_PID_BITS | (uint64_t)(uint32_t)getpid()) & INT64_MAX;
	__atomic_store_n(&process_found_self, self, __ATOMIC_RELAXED);
	return self;
}

uint32_t
process_owner_pid(uint64_t owner)
{
	return (uint32_t)(owner & ((1U << OWNER_PID_BITS) - 1));
}

static uint32_t
read_namespace(void)
{
	char link[64];
	ssize_t length = readlink("/proc/self/ns/pid", link, sizeof link - 1);
	if (length <= 0) {
		return 0;
	}
	link[length] = '\0';
	const char *bracket = strchr(link, '[');
	return bracket == NULL ? 0 : (uint32_t)strtoul(bracket + 1, NULL, 10);
}

uint32_t
process_own_namespace(void)
{
	uint32_t found = __atomic_load_n(&found_namespace, __ATOMIC_RELAXED);
	if (found == 0) {
		found = read_namespace() + 1;
		__atomic_store_n(&found_namespace, found, __ATOMIC_RELAXED);
	}
	return found - 1;
}

void
process_postfork_child(void)
{
	process_found_self = 0;
	found_namespace = 0;
}

static bool
pid_exists(uint32_t pid)
{
	return kill((pid_t)pid, 0) == 0 || errno != ESRCH;
}

bool
process_is_possible(uint64_t owner)
{
	struct timespec up;
	uint64_t ticks = owner >> OWNER_PID_BITS;
	return process_owner_pid(owner) != 0 &&
	       (clock_gettime(CLOCK_BOOTTIME, &up) != 0 ||
		ticks / TICKS_PER_SECOND <= (uint64_t)up.tv_sec + 1);
}

bool
process_alive(uint64_t owner)
{
	uint32_t pid = process_owner_pid(owner);
	if (!process_is_possible(owner) || !pid_exists(pid)) {
		return false;
	}
	char path[32];
	snprintf(path, sizeof path, "/proc/%u/stat", pid);
	uint64_t ticks = 0;
	switch (read_start(path, &ticks)) {
	case STAT_FOUND:
		return ticks == owner >> OWNER_PID_BITS || owner >> OWNER_PID_BITS == 1;
	case STAT_ZOMBIE:
		return false;
	case STAT_ABSENT:
		/* Ended just now; or /proc is not there, or hides the processes of other users. */
		return pid_exists(pid);
	default:
		return true;
	}
}
