/* Charge, remember, forget: the steps that the memory hooks share. */
#ifndef GPUSLICE_CHARGES_H
#define GPUSLICE_CHARGES_H

#include "blocks.h"
#include "devices.h"
#include "quota.h"

/* The driver hands device memory out in such units; smaller requests share one. */
#define SMALL_UNIT 512U
#define LARGE_UNIT (2ULL << 20)

static inline uint64_t
round_up(uint64_t bytes, uint64_t unit)
{
	return bytes > UINT64_MAX - unit ? UINT64_MAX : (bytes + unit - 1) / unit * unit;
}

/* What a plain allocation of that size is charged: whole 2 MiB pages from that size on, 512 bytes below it. */
static inline uint64_t
charge_size(uint64_t bytes)
{
	return round_up(bytes, bytes >= LARGE_UNIT ? LARGE_UNIT : SMALL_UNIT);
}

/* Number of a device in this process's table. */
uint16_t device_number(const struct device *device);

/* Handle of the current context as a block owner; 0 when there is none. */
uint64_t current_owner(void);

/* Remember a charged block. */
void charge_remember(const struct device *device, enum block_space space, uint64_t key, unsigned kind, uint64_t bytes,
                     uint64_t owner);

/* Give back what a block was charged. */
void charge_forget(const struct block *block);

#endif
