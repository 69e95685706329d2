/* Threads and processes: any; a word in the row says until when, so nobody waits for a dead one. */
#include "probe.h"

bool
probe_is_under_way(const struct state_device *row, int64_t now_ns)
{
	uint64_t until = __atomic_load_n(&row->probe_until_ns, __ATOMIC_RELAXED);
	int64_t left = (int64_t)(until - (uint64_t)now_ns);
	return left > 0 && left <= PROBE_NS;
}

bool
probe_take(struct state_device *row, uint64_t *mine, int64_t now_ns)
{
	uint64_t until = __atomic_load_n(&row->probe_until_ns, __ATOMIC_RELAXED);
	uint64_t wanted = (uint64_t)(now_ns + PROBE_NS);
	if (probe_is_under_way(row, now_ns) ||
	    !__atomic_compare_exchange_n(&row->probe_until_ns, &until, wanted, 0, __ATOMIC_RELAXED,
					 __ATOMIC_RELAXED)) {
		return false;
	}
	__atomic_store_n(mine, wanted, __ATOMIC_RELAXED);
	return true;
}

void
probe_drop(struct state_device *row, uint64_t *mine)
{
	uint64_t until = __atomic_exchange_n(mine, 0, __ATOMIC_RELAXED);
	if (until != 0) {
		__atomic_compare_exchange_n(&row->probe_until_ns, &until, 0, 0, __ATOMIC_RELAXED,
					    __ATOMIC_RELAXED);
	}
}
