#include "lock.h"

#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

void
lock_acquire_slow(struct lock *lock)
{
	while (__atomic_exchange_n(&lock->state, 2, __ATOMIC_ACQUIRE) != 0) {
		syscall(SYS_futex, &lock->state, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
	}
}

void
lock_wake(struct lock *lock)
{
	syscall(SYS_futex, &lock->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
