/* Device memory that one call allocates and another frees. */
#ifndef GPUSLICE_FAKE_MEMORY_H
#define GPUSLICE_FAKE_MEMORY_H

#include "blocks.h"

/* Allocate and charge for the current context; *out stays untouched on failure. */
cu_result memory_allocate(enum memory_kind kind, uint64_t bytes, struct block **out);
cu_result memory_allocate_in(struct context *context, enum memory_kind kind, uint64_t bytes,
			     struct block **out);
/* An address range for memory that another process allocated: nothing is charged. NULL: no address
 * space. */
struct block *memory_adopt(struct context *context, uint64_t bytes);
/* Give a block of memory_allocate or memory_adopt back. */
void memory_release(struct block *block);
/* Physical size of an allocation of its own: rounded up to the device's unit. */
uint64_t memory_physical(uint64_t bytes);

cu_result fake_cuMemFree_v2(cu_deviceptr address);

/* pools.c: a block of stream-ordered memory goes back to its pool. */
void pool_release(struct block *block);

/* Physical memory by handle is in use somewhere, and lives until it no longer is. False: no such
 * handle. */
bool allocation_use(cu_mem_handle handle);
void allocation_unuse(cu_mem_handle handle);

#endif
