/* Stream-ordered memory. */
#ifndef GPUSLICE_FAKE_POOLS_H
#define GPUSLICE_FAKE_POOLS_H

#include "memory.h"

struct pool {
	uint64_t magic;
	int device;
	uint32_t domain;
	bool is_default;
	bool destroyed; /* goes when its last block is freed */
	bool imported;
	uint64_t reserved, reserved_high, used, used_high, threshold, most;
	uint32_t reuse[3];
	uint32_t handle_types;
};

/* Guards every pool; taken before blocks_lock(). */
extern pthread_mutex_t pools_mutex HIDDEN;

struct pool *pool_checked(void *handle);
/* A pool of a device, or NULL when there are too many; pools_mutex held. */
struct pool *pool_new(int device);
/* What a block of so many bytes counts in its pool. */
uint64_t pooled_size(uint64_t bytes);
/* Give memory above the release thresholds back to the device: at every synchronisation. */
void pools_trim_after_sync(int device);

#endif
