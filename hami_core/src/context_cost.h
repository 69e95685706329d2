/* What a CUDA context itself takes of the device: measured once per container and device, then
 * charged in advance. */
#ifndef GPUSLICE_CONTEXT_COST_H
#define GPUSLICE_CONTEXT_COST_H

#include "devices.h"

/* Used bytes before a context is made, to be handed to context_cost_after. */
uint64_t context_cost_before(struct device *device);

/* Measure, remember in the shared row, and return the cost of the context made since. */
uint64_t context_cost_after(struct device *device, uint64_t before);

/* The known cost; 0 while unknown. */
uint64_t context_cost_known(const struct device *device);

/* Charge a primary context that was made past the hooks; looks once per device. */
void context_account_hidden(struct device *device);

#endif
