/* The container's memory quota on one device.
 *
 * Invariant: used_bytes of the row >= bytes that the driver holds for the container's live
 * processes. Callers charge before the driver allocates and refund when it failed; a crash in
 * between over-counts until the slot is reaped.
 */
#ifndef GPUSLICE_QUOTA_H
#define GPUSLICE_QUOTA_H

#include <stdbool.h>
#include <stdint.h>

#include "devices.h"

/* Reserve bytes of a kind (KIND_*). False: over the quota, or closed. True without effect when
 * nothing is limited. */
bool quota_charge(struct device *device, unsigned kind, uint64_t bytes);

/* Give back. Never below zero. */
void quota_refund(struct device *device, unsigned kind, uint64_t bytes);

/* Count memory that the driver already holds; used when it took more than was asked. */
void quota_add(struct device *device, unsigned kind, uint64_t bytes);

/* Turn bytes of one kind into another (spilling to managed memory). */
void quota_convert(struct device *device, unsigned from, unsigned to, uint64_t bytes);

/* Replace a reservation of `charged` bytes by `actual`. False: the quota cannot hold the
 * difference; nothing changed. */
bool quota_settle(struct device *device, unsigned kind, uint64_t charged, uint64_t actual);

/* Memory of this process that others may use; memory of others that this process uses (negative: no
 * longer). It stays charged when its owner ends before them. */
void quota_exported(struct device *device, int64_t bytes);
void quota_imported(struct device *device, int64_t bytes);

struct quota_view {
	uint64_t limit_bytes; /* NO_MEMORY_LIMIT: none */
	uint64_t used_bytes;
};

/* What the container may and does use; reaps dead processes now and then. */
struct quota_view quota_view(struct device *device);

/* Bytes of a kind that this process holds. */
uint64_t quota_held(const struct device *device, unsigned kind);

#endif
