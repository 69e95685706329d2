/* Stream-ordered memory pools: charged by what each pool reserves from the device. */
#ifndef GPUSLICE_POOLS_H
#define GPUSLICE_POOLS_H

#include "devices.h"

/* Bring the charge of a pool in line with what it has reserved. */
void pools_settle(cu_pool pool);
void pools_settle_all(struct device *device);

/* Trim this process's pools of a device to what is in use. True when that freed quota. */
bool pools_give_back(struct device *device);

#endif
