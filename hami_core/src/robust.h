/* Locks in shared memory that outlive their holders and any nonsense written over them.
 *
 * A lock is 64 bytes, all zero when free. It names its holder (process.h), so a waiter finds out
 * that the holder is dead; and nobody waits for a holder that gets nowhere for a second, be it
 * stopped or made up. No addresses are kept in shared memory, which is why these are not the C
 * library's robust mutexes: those keep a linked list through it.
 *
 * So a holder may lose its lock: robust_unlock tells.
 */
#ifndef GPUSLICE_ROBUST_H
#define GPUSLICE_ROBUST_H

#include <stdbool.h>
#include <stdint.h>

enum robust_result {
	ROBUST_OK,
	ROBUST_RECOVERED, /* held now, but taken from a holder that died or stood still: the caller
			     repairs what the lock guards */
	ROBUST_BROKEN,    /* not held: somebody keeps writing nonsense over it */
};

enum robust_result robust_lock(uint64_t *words);

/* False: the lock was taken away meanwhile, so others may have changed what it guards. */
bool robust_unlock(uint64_t *words);

#endif
