/* Slow correction of measured GPU time where the device is shared with other containers.
 *
 * An event pair around a kernel that was time-sliced with a neighbour's also holds the neighbour's
 * time. What the node or NVML measured for this container over a longer time tells by how much, and
 * every charge is scaled by it.
 */
#ifndef GPUSLICE_BIAS_H
#define GPUSLICE_BIAS_H

#include <stdbool.h>
#include <stdint.h>

#include "devices.h"

/* Charge for a measured time. */
int64_t bias_apply(const struct device *device, int64_t measured_ns);

/* Look at the hints or NVML when it is time. Called while a launch waits anyway. */
void bias_sample(struct device *device, int64_t now_ns);

/* Did another container use the device lately, as far as is known? */
bool bias_neighbours(const struct device *device);

#endif
