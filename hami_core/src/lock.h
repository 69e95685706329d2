/* A process-local futex lock: three states, no owner, no pthread dependency.
 * Fork: each module that owns one resets it in its postfork_child function. */
#ifndef GPUSLICE_LOCK_H
#define GPUSLICE_LOCK_H

#include <stdint.h>

struct lock {
	uint32_t state; /* 0 free, 1 held, 2 held with waiters */
};

void lock_acquire_slow(struct lock *lock);
void lock_wake(struct lock *lock);

static inline void
lock_acquire(struct lock *lock)
{
	uint32_t expected = 0;
	if (!__atomic_compare_exchange_n(&lock->state, &expected, 1, 0, __ATOMIC_ACQUIRE,
					 __ATOMIC_RELAXED)) {
		lock_acquire_slow(lock);
	}
}

static inline void
lock_release(struct lock *lock)
{
	if (__atomic_exchange_n(&lock->state, 0, __ATOMIC_RELEASE) == 2) {
		lock_wake(lock);
	}
}

#endif
