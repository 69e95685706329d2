/* words[0]: the holder's process_self(), with the top bit set while somebody waits; words[1]:
 * counts acquisitions, so that a busy lock is told from a stuck one; words[2]: pid namespace of the
 * holder, since its pid says nothing in another one.
 *
 * Fork: the child is another process and never holds what its parent held. */
#include "robust.h"

#include <errno.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "faults.h"
#include "process.h"

#define WAITERS (1ULL << 63)
#define SPINS 64
#define SLICE_NS 5000000L /* of waiting, before the holder is looked at */
#define STUCK_SLICES 200  /* a second without progress */
#define MAX_SLICES 2000
#define MAX_TRIES 1000000

static void
relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#else
	__asm__ volatile("yield" ::: "memory");
#endif
}

static bool
take(uint64_t *words, uint64_t seen, uint64_t wanted)
{
	if (!__atomic_compare_exchange_n(&words[0], &seen, wanted, 0, __ATOMIC_ACQUIRE,
					 __ATOMIC_RELAXED)) {
		return false;
	}
	__atomic_store_n(&words[1], words[1] + 1, __ATOMIC_RELAXED);
	__atomic_store_n(&words[2], process_own_namespace(), __ATOMIC_RELAXED);
	return true;
}

/* The half of the holder's word that holds the waiters' bit. */
static uint32_t *
futex_of(uint64_t *words)
{
	return (uint32_t *)words + 1;
}

/* False: nothing happened for a whole slice. */
static bool
wait_slice(uint64_t *words, uint64_t seen)
{
	const struct timespec slice = {.tv_nsec = SLICE_NS};
	return syscall(SYS_futex, futex_of(words), FUTEX_WAIT, (uint32_t)(seen >> 32), &slice, NULL,
		       0) == 0 ||
	       errno != ETIMEDOUT;
}

static bool
is_dead(const uint64_t *words, uint64_t holder)
{
	uint64_t namespace = __atomic_load_n(&words[2], __ATOMIC_RELAXED);
	return (namespace == 0 || namespace == process_own_namespace()) && !process_alive(holder);
}

struct sight {
	uint64_t holder, turn;
	unsigned slices; /* for which it did not change */
};

/* Nothing happened for a slice: is this lock to be taken from its holder? */
static bool
may_steal(struct sight *last, const uint64_t *words, uint64_t holder)
{
	uint64_t turn = __atomic_load_n(&words[1], __ATOMIC_RELAXED);
	bool same = last->holder == holder && last->turn == turn;
	*last = (struct sight){holder, turn, same ? last->slices + 1 : 0};
	return last->slices >= STUCK_SLICES || is_dead(words, holder);
}

static enum robust_result
lock_slowly(uint64_t *words, uint64_t mine)
{
	struct sight last = {0, 0, 0};
	unsigned slices = 0;
	for (unsigned tries = 0; slices < MAX_SLICES && tries < MAX_TRIES; tries++) {
		uint64_t seen = __atomic_load_n(&words[0], __ATOMIC_RELAXED);
		if ((seen & ~WAITERS) == 0) {
			if (take(words, seen, mine | WAITERS)) {
				return ROBUST_OK;
			}
			continue;
		}
		if ((seen & WAITERS) == 0 &&
		    !__atomic_compare_exchange_n(&words[0], &seen, seen | WAITERS, 0,
						 __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
			continue;
		}
		seen |= WAITERS;
		bool possible = process_is_possible(seen & ~WAITERS);
		if (possible && wait_slice(words, seen)) {
			continue;
		}
		slices++;
		if ((!possible || may_steal(&last, words, seen & ~WAITERS)) &&
		    take(words, seen, mine | WAITERS)) {
			FAULT_POINT("recover");
			return ROBUST_RECOVERED;
		}
	}
	return ROBUST_BROKEN;
}

enum robust_result
robust_lock(uint64_t *words)
{
	uint64_t mine = process_self();
	for (unsigned spins = 0; spins < SPINS; spins++) {
		if (__atomic_load_n(&words[0], __ATOMIC_RELAXED) == 0 && take(words, 0, mine)) {
			return ROBUST_OK;
		}
		relax();
	}
	return lock_slowly(words, mine);
}

bool
robust_unlock(uint64_t *words)
{
	uint64_t mine = process_self();
	uint64_t seen = mine;
	while (!__atomic_compare_exchange_n(&words[0], &seen, 0, 0, __ATOMIC_RELEASE,
					    __ATOMIC_RELAXED)) {
		if ((seen & ~WAITERS) != mine) {
			return false;
		}
	}
	if ((seen & WAITERS) != 0) {
		syscall(SYS_futex, futex_of(words), FUTEX_WAKE, 1, NULL, NULL, 0);
	}
	return true;
}
