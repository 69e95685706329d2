/* The time already charged to a container on a device, as disjoint intervals: work that overlapped
 * (other streams, other processes of the container) is charged once. */
#ifndef GPUSLICE_SPANS_H
#define GPUSLICE_SPANS_H

#include <stdint.h>

#include "layout.h"

/* Insert [start, end) and return how much of it was not covered before. Keeps the newest
 * MAX_INTERVALS intervals, and forgets all of them when they end after now_ns or are not in order,
 * which means that they were overwritten. Caller holds the row's limiter_lock. */
int64_t spans_insert(struct state_device *row, int64_t start_ns, int64_t end_ns, int64_t now_ns);

#endif
