/* Charge, remember, forget: the steps that the memory hooks share. */
#ifndef GPUSLICE_CHARGES_H
#define GPUSLICE_CHARGES_H

#include "blocks.h"
#include "devices.h"
#include "pools.h"
#include "quota.h"

/* Device memory comes in pages of this size. */
#define LARGE_UNIT (2ULL << 20)

static inline uint64_t
round_up(uint64_t bytes, uint64_t unit)
{
	return bytes > UINT64_MAX - unit ? UINT64_MAX : (bytes + unit - 1) / unit * unit;
}

/* What an allocation with pages of its own is charged. */
static inline uint64_t
charge_size(uint64_t bytes)
{
	return round_up(bytes, LARGE_UNIT);
}

/* Number of a device in this process's table. */
uint8_t device_number(const struct device *device);

/* Handle of the current context as a block owner; 0 when there is none. */
uint64_t current_owner(void);

/* Remember a charged block. */
void charge_remember(const struct device *device, enum block_space space, uint64_t key,
		     unsigned kind, uint64_t bytes, uint64_t owner);

/* Other processes may use a block from now on. */
void charge_exported(enum block_space space, uint64_t key);

/* Give back what a block was charged. */
void charge_forget(const struct block *block);

/* The driver has answered the free of a block, which was taken out of the table if it was known:
 * give its charge back, or put it back when it still lives. */
static inline void
charge_freed(cu_result result, bool known, const struct block *block)
{
	if (!known) {
		return;
	}
	if (result != CU_OK) {
		block_put(block);
	} else if (block->kind == KIND_POOL) {
		pools_settle((cu_pool)(uintptr_t)block->owner);
	} else {
		charge_forget(block);
	}
}

#endif
