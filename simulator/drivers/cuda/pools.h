/* Stream-ordered memory. */
#ifndef GPUSLICE_FAKE_POOLS_H
#define GPUSLICE_FAKE_POOLS_H

#include "memory.h"

/* Give memory above the release thresholds back to the device: at every synchronisation. */
void pools_trim_after_sync(int device);

#endif
