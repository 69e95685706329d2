/* The compute limit as the launch hooks see it. */
#ifndef GPUSLICE_COMPUTE_H
#define GPUSLICE_COMPUTE_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "hooks.h"

/* Launches go straight to the driver while the limits are those of `compute_open_at` (a sequence
 * number; odd: never). */
extern const uint32_t *limits_sequence_word;
extern uint32_t compute_open_at;

static inline bool
compute_is_open(void)
{
	return LIKELY(__atomic_load_n(__atomic_load_n(&limits_sequence_word, __ATOMIC_RELAXED),
				      __ATOMIC_RELAXED) ==
		      __atomic_load_n(&compute_open_at, __ATOMIC_RELAXED));
}

/* One launch on its way through the limiter. */
struct launch {
	const void *function; /* kernel or executable graph */
	uint64_t blocks;      /* of the grid; 0 for graphs */
	uint32_t threads;     /* of a block */
	cu_stream stream;
	bool per_thread; /* stream 0 is the thread's own */
	void *ticket;    /* the limiter's own */
	int64_t cost_ns;
};

static inline uint64_t
grid_blocks(unsigned int x, unsigned int y, unsigned int z)
{
	unsigned __int128 blocks = (unsigned __int128)x * y * z;
	return blocks > UINT64_MAX ? UINT64_MAX : (uint64_t)blocks;
}

/* Wait until the container may use the device, and prepare to measure. */
void compute_begin(struct launch *launch);

/* After the driver's answer. */
void compute_end(struct launch *launch, cu_result result);

/* Streams of this process that are being captured. */
void compute_capture_began(void);
void compute_capture_ended(void);

/* A context has ended: its events are gone. */
void compute_context_ended(cu_context context);

/* A graph was launched or uploaded: see graph_hooks.c. */
void graph_started(cu_graph_exec exec);

#endif
