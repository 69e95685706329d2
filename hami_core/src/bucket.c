#include "bucket.h"

/* A debt older than this is forgotten, and an idle time longer than this adds no more. */
#define MAX_ELAPSED_NS 10000000000LL

int64_t
bucket_refill(struct state_device *row, int64_t now_ns, uint32_t quota_q16, int64_t burst_ns)
{
	uint64_t last = __atomic_load_n(&row->refilled_at_ns, __ATOMIC_RELAXED);
	if (now_ns > (int64_t)last &&
	    __atomic_compare_exchange_n(&row->refilled_at_ns, &last, (uint64_t)now_ns, 0,
					__ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
		int64_t elapsed = now_ns - (int64_t)last;
		elapsed = elapsed > MAX_ELAPSED_NS ? MAX_ELAPSED_NS : elapsed;
		__atomic_fetch_add(&row->tokens_ns, elapsed * (int64_t)quota_q16 >> 16,
				   __ATOMIC_RELAXED);
	}
	int64_t tokens = __atomic_load_n(&row->tokens_ns, __ATOMIC_RELAXED);
	while (tokens > burst_ns &&
	       !__atomic_compare_exchange_n(&row->tokens_ns, &tokens, burst_ns, 0, __ATOMIC_RELAXED,
					    __ATOMIC_RELAXED)) {
	}
	return tokens > burst_ns ? burst_ns : tokens;
}

bool
bucket_take(struct state_device *row, int64_t cost_ns)
{
	int64_t tokens = __atomic_load_n(&row->tokens_ns, __ATOMIC_RELAXED);
	while (tokens >= 0) {
		if (__atomic_compare_exchange_n(&row->tokens_ns, &tokens, tokens - cost_ns, 0,
						__ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
			return true;
		}
	}
	return false;
}

void
bucket_correct(struct state_device *row, int64_t ns)
{
	__atomic_fetch_add(&row->tokens_ns, ns, __ATOMIC_RELAXED);
}

int64_t
bucket_wait_ns(int64_t tokens_ns, uint32_t quota_q16)
{
	return tokens_ns >= 0 ? 0 : (-tokens_ns << 16) / (int64_t)quota_q16 + 1;
}
