/* What the fake libcuda.so.1 offers to tests beside the CUDA API. Look the functions up with dlsym
 * on the library's handle: a real driver does not have them. */
#ifndef GPUSLICE_FAKE_API_H
#define GPUSLICE_FAKE_API_H

#include <stdint.h>

enum { GPUSLICE_FAKE_KINDS = 8 }; /* context, data, pool, graph, vmm, array, managed, module */

struct gpuslice_fake_card {
	uint64_t total_bytes;  /* as NVML says */
	uint64_t usable_bytes; /* what can be handed out at all */
	uint64_t used_bytes;   /* handed out now, physical, all processes, shared memory included */
	uint64_t peak_bytes;
	uint64_t refused;      /* allocations that did not fit the card */
	uint64_t busy_ns;      /* time the device has worked */
	uint64_t shared_bytes; /* of used_bytes: held by several processes */
};

struct gpuslice_fake_usage {
	uint64_t bytes[GPUSLICE_FAKE_KINDS]; /* physical, without shared memory */
	uint64_t
	    requested_bytes; /* as asked for: data, pools, graphs excluded, vmm, arrays, managed */
	uint64_t submitted_ns, served_ns; /* device time queued and done */
	uint64_t launches;
};

/* The node's clock, nanoseconds: CLOCK_MONOTONIC, or virtual. Zero and no wait without an
 * inventory. */
uint64_t gpuslice_fake_clock_now(void);
void gpuslice_fake_clock_sleep(uint64_t ns);
void gpuslice_fake_clock_sleep_until(uint64_t moment_ns);
/* The calling thread no longer takes part in the virtual clock. */
void gpuslice_fake_clock_leave(void);

/* The judge's ledger. uuid: "GPU-…" or "MIG-…". 0, or -1 when there is no such card.
 * pid: a process as this process's namespace names it, or 0 for all of them together. */
int gpuslice_fake_card(const char *uuid, struct gpuslice_fake_card *out);
int gpuslice_fake_usage(const char *uuid, int pid, struct gpuslice_fake_usage *out);

/* How often this process has called an exported symbol ("cuMemAlloc_v2"), shim or not. */
uint64_t gpuslice_fake_calls(const char *symbol);

/* The driver's own function for a symbol as cuGetProcAddress finds it ("cuLaunchKernel"), past any
 * shim; NULL when there is none. */
void *gpuslice_fake_function(const char *symbol);

#endif
