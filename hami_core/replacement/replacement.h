/* The stand-in libcuda.so.1: resolution of the functions that are passed on. */
#ifndef GPUSLICE_REPLACEMENT_H
#define GPUSLICE_REPLACEMENT_H

#include <stdint.h>

extern const char *const replacement_names[];
extern void *replacement_slots[] __attribute__((visibility("hidden")));

/* Called by the trampolines on first use: the real function, or one that answers "not supported".
 */
void *replacement_resolve(uint32_t number);

#endif
