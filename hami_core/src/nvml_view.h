/* NVML behind the hooks: the real library, opened for one question at a time. */
#ifndef GPUSLICE_NVML_VIEW_H
#define GPUSLICE_NVML_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "devices.h"
#include "nvml_abi.h"

/* Initialise NVML and find a device by UUID; false when there is no NVML or no such device (then
 * nothing is open). */
bool nvml_open(const uint8_t uuid[16], nvml_device *handle);
void nvml_close(void);

/* Does the container have limits on this device of NVML? Then *device is filled in. */
bool nvml_limited_device(nvml_device handle, struct device *device);

#endif
