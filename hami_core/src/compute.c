#include "compute.h"

#include "devices.h"
#include "driver.h"
#include "limits.h"
#include "postfork.h"

uint32_t compute_open_at = UINT32_MAX;

/* No device has a core limit: open the gate for this sequence of the limits. */
static bool
nothing_limited(void)
{
	int count = devices_count();
	for (int i = 0; i < count; i++) {
		struct limit limit;
		limits_read(device_at(i)->limits_row, &limit);
		if (limit.core_q16 > 0 && limit.core_q16 < FULL_CORES_Q16 && limit.core_policy != POLICY_OFF) {
			return false;
		}
	}
	return count > 0;
}

void
compute_begin(struct launch *launch)
{
	(void)launch;
	uint32_t sequence = limits_sequence();
	if ((sequence & 1) == 0 && nothing_limited()) {
		__atomic_store_n(&compute_open_at, sequence, __ATOMIC_RELAXED);
	}
}

void
compute_end(struct launch *launch, cu_result result)
{
	(void)launch;
	(void)result;
}

void
compute_capture_began(void)
{
}

void
compute_capture_ended(void)
{
}

void
compute_context_ended(cu_context context)
{
	(void)context;
}

void
compute_postfork_child(void)
{
}
