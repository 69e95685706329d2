/* Limits from the environment variables of HAMi-core: the fallback when no limits file is mounted.
 */
#ifndef GPUSLICE_LIMITS_ENVIRONMENT_H
#define GPUSLICE_LIMITS_ENVIRONMENT_H

#include "limits.h"

/* Reads CUDA_DEVICE_MEMORY_LIMIT[_i], CUDA_DEVICE_SM_LIMIT[_i], GPU_CORE_UTILIZATION_POLICY,
 * CUDA_TASK_PRIORITY, CUDA_OVERSUBSCRIBE. LIMITS_NONE when none of the limits is set, LIMITS_CLOSED
 * when one is unreadable. */
enum limits_source limits_environment_open(char *(*environment)(const char *));

/* Limit of a device by the container's own count; -1: the general one. */
void limits_environment_read(int index, struct limit *out);

#endif
