/* Modules, libraries, kernels and functions. */
#ifndef GPUSLICE_FAKE_MODULES_H
#define GPUSLICE_FAKE_MODULES_H

#include "driver.h"

/* A kernel's time on the device: from its name, or the inventory's default.
 *   …_50us, …_3ms, …_700ns   that long
 *   …_argns                  as the first parameter says, a uint64_t in nanoseconds */
struct function {
	uint64_t magic;
	struct module *module;
	char *name;
	uint64_t fixed_ns; /* UINT64_MAX: by the inventory */
	bool from_argument;
	struct function *next;
};

struct function *function_checked(void *handle);
uint64_t function_time(const struct function *function, uint64_t blocks, void **parameters);

#endif
