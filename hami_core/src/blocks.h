/* What this process holds: address or handle -> what it was charged. O(1), flat in the number of
 * live blocks. */
#ifndef GPUSLICE_BLOCKS_H
#define GPUSLICE_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

#include "layout.h"

enum block_space {
	SPACE_ADDRESS,
	SPACE_HANDLE,  /* of physical memory; count = references */
	SPACE_MAPS,    /* same key; count = mappings */
	SPACE_MAPPING, /* address of a mapping; owner = its handle */
	SPACE_BINDING, /* place in a multicast object; owner = handle of the memory bound there */
	SPACE_CHUNK,   /* address / 2 MiB; count = small blocks in it */
	SPACE_ARRAY,
	SPACE_MODULE,
	SPACE_CONTEXT,
	SPACE_GRAPH,
	SPACE_IMPORT, /* address of another process's memory */
};

/* Kind of memory that another process holds. */
#define IMPORTED KINDS

struct block {
	uint64_t key;   /* address or handle; never 0 */
	uint64_t bytes; /* charged */
	uint64_t owner; /* context that it dies with, or pool of a stream-ordered block */
	uint8_t space;
	uint8_t kind; /* KIND_*, or IMPORTED */
	uint8_t device;
	bool exported;  /* other processes may use it */
	uint32_t count; /* references, for handles */
};

/* Remember a block; replaces an older one under the same key. False when memory for the table ran
 * out. */
bool block_put(const struct block *block);

/* Remove and return; false when unknown. */
bool block_take(enum block_space space, uint64_t key, struct block *out);

/* Look without removing. */
bool block_peek(enum block_space space, uint64_t key, struct block *out);

/* Drop every block of an owner (a context that has ended), calling `dropped` for each. */
void blocks_drop_owner(uint64_t owner, void (*dropped)(const struct block *));

#endif
