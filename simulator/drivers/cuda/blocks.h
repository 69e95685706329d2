/* Device addresses of this process. Each is also a host address of lazily filled memory, so that
 * copies work. Finding the block of an address, allocating and freeing cost the same at any number
 * of blocks.
 *
 * The space is cut into units of 1 GiB, each for one size class of one key (device, kind of use).
 * blocks_lock() guards all of it; nothing else is locked while it is held. */
#ifndef GPUSLICE_FAKE_BLOCKS_H
#define GPUSLICE_FAKE_BLOCKS_H

#include "driver.h"

enum block_use { BLOCK_DATA, BLOCK_POOLED, BLOCK_RESERVED, BLOCK_USES };

struct block {
	uint64_t address; /* 0: free */
	uint64_t bytes;   /* as asked for */
	uint64_t charged; /* physical memory charged for this block alone */
	struct context *context;
	void *pool; /* stream-ordered memory: its pool */
	struct block *next;
	struct block *previous; /* list of a context's blocks */
	int32_t device;
	uint8_t use;
	uint8_t kind; /* enum memory_kind */
	bool touched; /* host pages may exist */
	bool shared;  /* charged through the shared table: index in `share` */
	uint32_t share;
	uint32_t flags;
};

/* A block for at least `bytes`; NULL when the address space is used up. */
struct block *block_new(int device, enum block_use use, uint64_t bytes);
void block_delete(struct block *block);
/* The block that holds an address, or NULL. */
struct block *block_find(cu_deviceptr address);
/* Whether an address lies in the space that this driver hands out. */
bool block_is_device(cu_deviceptr address);
/* The block that starts at an address, or NULL. */
struct block *block_at(cu_deviceptr address);

/* Blocks of the small classes share chunks of physical memory: whether this block is the first in
 * (after block_new) or the last out of (before block_delete) its chunk. */
bool block_alone_in_chunk(const struct block *block);
bool block_is_small(const struct block *block);

void blocks_lock(void);
void blocks_unlock(void);

#endif
