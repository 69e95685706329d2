/* When work runs on a device. Nothing is executed: the schedule is computed, up to the present,
 * whenever somebody asks.
 *
 * Model: a process's kernels run in the order of their launch, one after another, over all its
 * streams. Processes share a domain by time slices (round robin, inventory's quantum) or, with
 * `sharing: mps`, each at 1/n of the speed. Positions are nanoseconds of a process's own work. */
#ifndef GPUSLICE_FAKE_TIMELINE_H
#define GPUSLICE_FAKE_TIMELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "region.h"

/* Queue work for this process; returns the position at which it will be complete. */
uint64_t timeline_submit(uint32_t domain, uint64_t work_ns);
/* The position behind all work queued so far. */
uint64_t timeline_tail(uint32_t domain);
/* Whether the device has reached a position; if so *moment_ns is when (NULL: not wanted). */
bool timeline_reached(uint32_t domain, uint64_t position, uint64_t *moment_ns);
/* Return once the position is reached. */
void timeline_wait(uint32_t domain, uint64_t position);

/* Bring a domain's schedule up to the present. Lock held. */
void timeline_advance(uint32_t domain);

#endif
