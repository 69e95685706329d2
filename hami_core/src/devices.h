/* The devices this process sees, matched by UUID with the limits and with the shared rows. */
#ifndef GPUSLICE_DEVICES_H
#define GPUSLICE_DEVICES_H

#include <stdbool.h>

#include "cuda_abi.h"
#include "limits.h"
#include "state.h"

struct device {
	cu_device handle;
	uint8_t uuid[16];
	int limits_row;           /* for limits_read */
	struct state_device *row; /* NULL: not limited, or closed */
	unsigned row_index;
	bool context_seen; /* looked for a context that was made past the hooks */
	bool told;         /* one line was written about its missing limits */
	bool enforced;     /* false: no limits are configured at all */
};

/* Number of devices once the driver has been initialised, else 0. Opens limits and state on first
 * success. */
int devices_count(void);

/* By CUDA handle, by UUID, of the current context; NULL when unknown (the driver itself will then
 * complain). */
struct device *device_of(cu_device handle);
struct device *device_of_uuid(const uint8_t uuid[16]);
struct device *device_current(void);
struct device *device_at(int index);

/* Find the limits of a device that only NVML knows (no CUDA call has been made). False: not
 * limited. */
bool device_for_view(const uint8_t uuid[16], struct device *out);

/* Open limits and state without the driver: for the NVML view. */
void devices_open_files(void);

/* 16 bytes of "GPU-xxxxxxxx-..." or "MIG-xxxxxxxx-..."; false for other texts. */
bool uuid_parse(const char *text, uint8_t uuid[16]);

#endif
