/* Who a process is: (pid, start time) packed into one word, and its pid namespace. */
#ifndef GPUSLICE_PROCESS_H
#define GPUSLICE_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OWNER_PID_BITS 22

extern uint64_t process_found_self;
uint64_t process_find_self(void);

/* Start time in clock ticks since boot << 22 | pid. Never 0, below 2^63. */
static inline uint64_t
process_self(void)
{
	uint64_t self = __atomic_load_n(&process_found_self, __ATOMIC_RELAXED);
	return __builtin_expect(self != 0, 1) ? self : process_find_self();
}

uint32_t process_owner_pid(uint64_t owner);

/* Inode of this process's pid namespace; 0 when /proc is not there. */
uint32_t process_own_namespace(void);

/* Can it be a process at all? Not one that starts in the future. */
bool process_is_possible(uint64_t owner);

/* Is that very process (not a later one with its pid) alive in our own pid namespace? Unknown
 * counts as alive. */
bool process_alive(uint64_t owner);

/* Number `field` (4 or later, counted as in proc(5)) of the text of /proc/<pid>/stat; false when
 * the text is not of that form. The command in it may hold spaces, brackets and newlines. */
bool process_parse_field(const char *stat, size_t length, int field, uint64_t *value);

#endif
