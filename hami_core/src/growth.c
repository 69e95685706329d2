/* Compares the device's free memory before and after. A neighbour's allocation in between would be
 * taken for ours, so the figure is bounded; one of our own container shows in the row, and then
 * nothing is charged here. */
#include "growth.h"

#include "driver.h"
#include "quota.h"

#define MAX_GROWTH (512ULL << 20)

static bool
physical_free(size_t *bytes)
{
	size_t total;
	return driver()->cuMemGetInfo_v2 != NULL &&
	       driver()->cuMemGetInfo_v2(bytes, &total) == CU_OK;
}

bool
growth_begin(struct growth *growth)
{
	size_t bytes = 0;
	*growth = (struct growth){.device = device_current()};
	if (growth->device == NULL || !growth->device->enforced) {
		return true;
	}
	if (growth->device->row == NULL) {
		return false;
	}
	struct quota_view view = quota_view(growth->device);
	growth->measurable = physical_free(&bytes);
	growth->free_before = bytes;
	growth->used_before = view.used_bytes;
	return view.used_bytes < view.limit_bytes;
}

bool
growth_end(struct growth *growth, uint64_t *bytes)
{
	size_t after = 0;
	*bytes = 0;
	if (!growth->measurable || !physical_free(&after) || after >= growth->free_before ||
	    growth->device->row->used_bytes != growth->used_before) {
		return true;
	}
	uint64_t grown = growth->free_before - after;
	grown = grown > MAX_GROWTH ? MAX_GROWTH : grown;
	if (!quota_charge(growth->device, KIND_MODULE, grown)) {
		return false;
	}
	*bytes = grown;
	return true;
}
