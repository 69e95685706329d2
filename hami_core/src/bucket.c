#include "bucket.h"

/* An idle time longer than this adds no more. */
#define MAX_ELAPSED_NS 10000000000LL
/* Longest wait that a debt can mean: what no kernel ran up was written there by mistake. */
#define MAX_DEBT_WAIT_NS 120000000000LL
/* The clock is the same for all processes: a refill that lies farther ahead was overwritten, or is
 * from before the node was started anew. */
#define MAX_AHEAD_NS 1000000000LL

/* Keep the bucket between its deepest debt and its burst. */
static int64_t
bound(struct state_device *row, int64_t least, int64_t most)
{
	int64_t tokens = __atomic_load_n(&row->tokens_ns, __ATOMIC_RELAXED);
	while (tokens < least || tokens > most) {
		int64_t bounded = tokens < least ? least : most;
		if (__atomic_compare_exchange_n(&row->tokens_ns, &tokens, bounded, 0,
						__ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
			return bounded;
		}
	}
	return tokens;
}

int64_t
bucket_refill(struct state_device *row, int64_t now_ns, uint32_t quota_q16, int64_t burst_ns)
{
	int64_t least = -(MAX_DEBT_WAIT_NS * (int64_t)quota_q16 >> 16);
	uint64_t last = __atomic_load_n(&row->refilled_at_ns, __ATOMIC_RELAXED);
	int64_t elapsed = (int64_t)((uint64_t)now_ns - last);
	if ((elapsed > 0 || elapsed < -MAX_AHEAD_NS) &&
	    __atomic_compare_exchange_n(&row->refilled_at_ns, &last, (uint64_t)now_ns, 0,
					__ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
		elapsed = elapsed < 0 ? 0 : (elapsed > MAX_ELAPSED_NS ? MAX_ELAPSED_NS : elapsed);
		bound(row, least, burst_ns);
		__atomic_fetch_add(&row->tokens_ns, elapsed * (int64_t)quota_q16 >> 16,
				   __ATOMIC_RELAXED);
	}
	return bound(row, least, burst_ns);
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
