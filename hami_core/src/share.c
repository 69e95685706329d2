#include "share.h"

#include "clock.h"

#define HINT_LIFE_NS (2 * NS_PER_S)
/* What a container of lower priority still gets while a higher one is active. */
#define STARVATION_FLOOR_Q16 (FULL_CORES_Q16 / 20)

uint32_t
share_in_force(const struct limit *limit, const struct limits_hint *hint, int64_t now_ns)
{
	uint32_t own = limit->core_q16;
	bool fresh = hint != NULL && now_ns - (int64_t)hint->stamp_ns < HINT_LIFE_NS;
	bool limited = own > 0 && own < FULL_CORES_Q16 && limit->core_policy != POLICY_OFF;
	if (fresh && hint->higher_priority_active != 0) {
		return limited && own < STARVATION_FLOOR_Q16 ? own : STARVATION_FLOOR_Q16;
	}
	if (!limited) {
		return SHARE_UNLIMITED;
	}
	if (limit->core_policy == POLICY_SOFT && fresh) {
		if (hint->others_active_q16 == 0) {
			return SHARE_UNLIMITED;
		}
		uint64_t fair = ((uint64_t)own << 16) / ((uint64_t)own + hint->others_active_q16);
		return fair > own ? (uint32_t)fair : own;
	}
	return own;
}
