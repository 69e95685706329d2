/* Fork: the child never inherits ownership; nothing to reset. */
#include "robust.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "elf_walk.h"
#include "faults.h"

_Static_assert(sizeof(pthread_mutex_t) <= 64, "a mutex fits its 64 bytes of the layout");

struct mutex_calls {
	int (*lock)(pthread_mutex_t *);
	int (*unlock)(pthread_mutex_t *);
	int (*consistent)(pthread_mutex_t *);
};

static const struct mutex_calls *
mutex_calls(void)
{
	static struct mutex_calls calls;
	if (__atomic_load_n(&calls.consistent, __ATOMIC_ACQUIRE) == NULL) {
		__atomic_store_n(&calls.lock, elf_libc_symbol("pthread_mutex_lock"),
				 __ATOMIC_RELAXED);
		__atomic_store_n(&calls.unlock, elf_libc_symbol("pthread_mutex_unlock"),
				 __ATOMIC_RELAXED);
		__atomic_store_n(&calls.consistent, elf_libc_symbol("pthread_mutex_consistent"),
				 __ATOMIC_RELEASE);
	}
	return &calls;
}

void
robust_init(uint64_t *words)
{
	int (*attr_init)(pthread_mutexattr_t *) = elf_libc_symbol("pthread_mutexattr_init");
	int (*attr_shared)(pthread_mutexattr_t *, int) =
	    elf_libc_symbol("pthread_mutexattr_setpshared");
	int (*attr_robust)(pthread_mutexattr_t *, int) =
	    elf_libc_symbol("pthread_mutexattr_setrobust");
	int (*init)(pthread_mutex_t *, const pthread_mutexattr_t *) =
	    elf_libc_symbol("pthread_mutex_init");
	pthread_mutexattr_t attributes;
	if (attr_init == NULL || attr_shared == NULL || attr_robust == NULL || init == NULL) {
		return;
	}
	memset(words, 0, 64);
	attr_init(&attributes);
	attr_shared(&attributes, PTHREAD_PROCESS_SHARED);
	attr_robust(&attributes, PTHREAD_MUTEX_ROBUST);
	init((pthread_mutex_t *)words, &attributes);
}

enum robust_result
robust_lock(uint64_t *words)
{
	const struct mutex_calls *calls = mutex_calls();
	if (calls->consistent == NULL) {
		return ROBUST_BROKEN;
	}
	int result = calls->lock((pthread_mutex_t *)words);
	if (result == EOWNERDEAD) {
		FAULT_POINT("recover");
		calls->consistent((pthread_mutex_t *)words);
		return ROBUST_RECOVERED;
	}
	return result == 0 ? ROBUST_OK : ROBUST_BROKEN;
}

void
robust_unlock(uint64_t *words)
{
	mutex_calls()->unlock((pthread_mutex_t *)words);
}
