/* Small allocations share the driver's 2 MiB pages, so they are charged by the page that they lie
 * in.
 *
 * A page is charged while at least one small block of this process lies in it. Where the next block
 * will lie is known only afterwards: a spare page is charged before the call and kept for the next
 * one when it was not needed.
 */
#ifndef GPUSLICE_SMALL_H
#define GPUSLICE_SMALL_H

#include "devices.h"

#define SMALL_LIMIT (1ULL << 20) /* up to this size blocks share pages */

/* Before the call. False: no quota for another page. */
bool small_begin(struct device *device);

/* After a successful call. False: it spread over pages that cannot be charged; the caller must free
 * it again. */
bool small_placed(struct device *device, uint64_t address, uint64_t bytes);

/* After a failed call. */
void small_cancel(struct device *device);

/* A small block is gone. */
void small_freed(struct device *device, uint64_t address, uint64_t bytes);

/* Give spare pages back to the quota; true when there were any. */
bool small_give_back(struct device *device);

#endif
