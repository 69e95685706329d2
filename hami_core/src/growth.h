/* Memory that a driver call takes without being asked for an amount: code, globals, stacks. */
#ifndef GPUSLICE_GROWTH_H
#define GPUSLICE_GROWTH_H

#include "devices.h"

struct growth {
	struct device *device;
	uint64_t free_before;
	uint64_t used_before; /* of the row: tells whether somebody of this container allocated
				 meanwhile */
	bool measurable;
};

/* False: the quota is already full, or closed, so the call must be denied. */
bool growth_begin(struct growth *growth);

/* Bytes the device lost since; 0 when it cannot be told. They are charged; false when they do not
 * fit. */
bool growth_end(struct growth *growth, uint64_t *bytes);

#endif
