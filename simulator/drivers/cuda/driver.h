/* What the parts of the fake libcuda.so.1 share within one process. */
#ifndef GPUSLICE_FAKE_DRIVER_H
#define GPUSLICE_FAKE_DRIVER_H

#include <pthread.h>
#include <stdbool.h>

#include "clock.h"
#include "cuda_abi.h"
#include "gate.h"
#include "ledger.h"
#include "region.h"
#include "timeline.h"

/* A device as CUDA numbers it: a card, or one GPU instance of a card with MIG. */
struct gpu {
	uint32_t card;
	uint32_t gi; /* 0: the whole card */
	uint32_t domain;
};

struct block;
struct stream;

struct context {
	uint64_t magic;
	int device;
	uint32_t domain;
	uint32_t flags;
	uint32_t references; /* primary contexts only */
	bool primary;
	bool live;
	uint64_t limits[16];
	uint64_t limit_bytes; /* charged for limits above their defaults */
	uint64_t peers[2];    /* devices this context may reach, by ordinal */
	int cache_config, bank_config;
	struct context *next;
	struct stream *default_stream;
	struct block *blocks; /* memory that goes with the context; blocks_lock */
};

/* init.c */
cu_result fake_cuDriverGetVersion(int *version);

/* devices.c */
unsigned gpu_count(void);
cu_result fake_cuDeviceTotalMem_v2(size_t *bytes, cu_device device);
const struct gpu *gpu_at(cu_device device); /* NULL: no such ordinal */
void gpu_discover(void);
const struct card *gpu_card(const struct gpu *gpu);
void gpu_uuid(const struct gpu *gpu, struct cu_uuid *out);
bool gpu_lost(uint32_t domain);

/* contexts.c */
struct context *context_current(void); /* NULL: none, or destroyed */
struct context *context_primary(cu_device device);
struct context *context_checked(void *handle);

/* memory.c: free what a context still holds when it is destroyed. */
void context_release_memory(struct context *context);

/* modules.c: unload a context's modules when it is destroyed. */
void modules_leave_context(const struct context *context);

#endif
