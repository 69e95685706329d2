/* The real driver and NVML: typed pointers, NULL where the installed version lacks a function. */
#ifndef GPUSLICE_DRIVER_H
#define GPUSLICE_DRIVER_H

#include <stdbool.h>

#include "driver_table.h"
#include "hooks.h"

/* Loaded on first use; never NULL. Every pointer is NULL when libcuda.so.1 is not installed. */
const struct driver_table *driver(void);
const struct nvml_table *nvml(void);

/* The table once it has been loaded: for paths that cannot run before driver(). */
extern struct driver_table driver_loaded;

/* The real function behind a hook, or NULL. */
void *driver_real(const struct hook *hook);

/* Is the address inside libcuda or libnvidia-ml? */
bool driver_owns(const void *address);

/* The same, quicker, for an address that is calling right now. */
bool driver_is_caller(const void *address);

#endif
