/* The one launch of a kernel that was never measured which a container may have under way on a
 * device. It ends when it was measured, when it was not launched, or after PROBE_NS. */
#ifndef GPUSLICE_PROBE_H
#define GPUSLICE_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "clock.h"
#include "layout.h"

#define PROBE_NS (500 * NS_PER_MS)

bool probe_is_under_way(const struct state_device *row, int64_t now_ns);

/* Reserve it; `mine` remembers that this process did. */
bool probe_take(struct state_device *row, uint64_t *mine, int64_t now_ns);

/* Let the next one go, if it was this process's. */
void probe_drop(struct state_device *row, uint64_t *mine);

#endif
