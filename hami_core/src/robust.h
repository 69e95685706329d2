/* Robust process-shared mutexes over the C library's, found at run time (their symbol versions
 * moved in glibc 2.34). */
#ifndef GPUSLICE_ROBUST_H
#define GPUSLICE_ROBUST_H

#include <stdbool.h>
#include <stdint.h>

enum robust_result {
	ROBUST_OK,
	ROBUST_RECOVERED, /* held now, but the last holder died inside: the caller repairs what the
			     lock guards */
	ROBUST_BROKEN,    /* not held: the memory does not hold a mutex */
};

/* `words` is 64 bytes in shared memory. */
void robust_init(uint64_t *words);
enum robust_result robust_lock(uint64_t *words);
void robust_unlock(uint64_t *words);

#endif
