/* The compute limit: GPU time in a bucket shared by the container's processes, debited by forecast,
 * settled by measurement.
 *
 * A launch takes its forecast cost from a small process-local allowance (one relaxed atomic); when
 * that is empty the process draws a new one from the shared bucket, waits if the bucket is in debt,
 * and has the next launch measured. Long kernels are measured one by one and charged what they
 * really added to the container's use of the device.
 *
 * A kernel that was never measured could run for any time, so while one is under way
 * (row->probe_until_ns) nothing else is drawn: eight processes that start together would else run
 * up a debt of eight long kernels before the first is measured.
 *
 * Never: a thread of our own, a wait for the device, a wait without end. A launch is held back no
 * longer than patience() while work of this process is unfinished, because a running kernel may
 * wait for the one that is held.
 *
 * Fork: the child starts with no allowance, no samples and no forecasts.
 */
#include "compute.h"

#include <string.h>

#include "bias.h"
#include "bucket.h"
#include "clock.h"
#include "devices.h"
#include "driver.h"
#include "faults.h"
#include "meter.h"
#include "postfork.h"
#include "predictor.h"
#include "probe.h"
#include "robust.h"
#include "share.h"
#include "spans.h"

#define LONG_NS 250000LL  /* kernels from this length on are settled one by one */
#define DRAW_NS NS_PER_MS /* allowance drawn at once for short kernels */
#define MAX_HOLD_NS (2 * NS_PER_S)
#define TRUSTED_FIRSTS                                                                             \
	8 /* after so many short ones in a row a new kernel is taken for short too                 \
	   */
#define MAX_KEPT_NS (50 * NS_PER_MS)
#define MIN_PAUSE_NS 50000LL
#define MAX_PAUSE_NS (5 * NS_PER_MS)
#define SAMPLE_MASK 63U /* one short launch in 64 is measured besides the first of each draw */
/* By which an event's time may seem to lie ahead. */
#define CLOCK_TOLERANCE_NS (50 * NS_PER_MS)
#define ACTIVE_NS (50 * NS_PER_MS)

struct device_state {
	int64_t allowance_ns; /* atomic */
	int64_t drawn_ns;     /* of the last draw: work that the next measured launch stands for */
	uint64_t launches;    /* not yet added to the row */
	int64_t others_seen_ns;
	uint64_t probe_until_ns; /* as in the row, while an unknown kernel of ours is under way */
	uint32_t short_firsts;   /* new kernels in a row that turned out to be short */
	bool limited;
	bool contended;
	bool neighbours;  /* other containers use the device */
	bool sample_next; /* measure the next short launch: it follows one that keeps the stream
			     busy */
} __attribute__((aligned(64)));

uint32_t compute_open_at = UINT32_MAX;
static struct device_state states[MAX_DEVICES];
static uint32_t known_sequence = UINT32_MAX;
static uint32_t captures;
static __thread uint32_t random_state __attribute__((tls_model("initial-exec")));

static uint32_t
next_random(void)
{
	uint32_t x = random_state != 0 ? random_state : (uint32_t)(uintptr_t)&random_state | 1;
	x ^= x << 13;
	x ^= x >> 17;
	x ^= x << 5;
	return random_state = x;
}

static bool
has_core_limit(const struct limit *limit)
{
	return limit->core_q16 > 0 && limit->core_q16 < FULL_CORES_Q16;
}

/* The limits have changed: find the devices that are limited; open the gate when none is. */
static void
reconfigure(uint32_t sequence)
{
	int count = devices_count();
	bool any = count == 0;
	for (int i = 0; i < count; i++) {
		struct limit limit;
		struct device *device = device_at(i);
		limits_read(device->limits_row, &limit);
		/* Where the node publishes hints, a container without a core limit may be held back
		 * by them, and others need to know when it launches. */
		states[i].limited =
		    device->row != NULL && limit.core_policy != POLICY_OFF &&
		    (has_core_limit(&limit) || limits_hints_are_published(device->limits_row));
		any = any || states[i].limited;
	}
	__atomic_store_n(&known_sequence, sequence, __ATOMIC_RELAXED);
	if (!any && (sequence & 1) == 0) {
		__atomic_store_n(&compute_open_at, sequence, __ATOMIC_RELAXED);
	}
}

static uint32_t
current_share(const struct device *device, int64_t now_ns, struct limit *limit)
{
	struct limits_hint hint;
	limits_read(device->limits_row, limit);
	bool known = limits_hint(device->limits_row, &hint);
	return share_in_force(limit, known ? &hint : NULL, now_ns);
}

/* Has another process of the container launched lately? Looked at now and then. */
static void
look_for_others(const struct device *device, struct device_state *state, int64_t now_ns)
{
	const struct state_file *file = state_file();
	struct slot *own = state_slot();
	if (own == NULL || now_ns - state->others_seen_ns < ACTIVE_NS / 4) {
		return;
	}
	state->others_seen_ns = now_ns;
	__atomic_store_n(&own->last_seen_ns, (uint64_t)now_ns, __ATOMIC_RELAXED);
	bool others = bias_neighbours(device);
	state->neighbours = others;
	for (uint32_t i = 0; i < state_slot_count() && !others; i++) {
		const struct slot *slot = &file->slots[i];
		uint64_t seen_ns = __atomic_load_n(&slot->last_seen_ns, __ATOMIC_RELAXED);
		others = slot != own && slot->owner != 0 &&
			 (uint64_t)now_ns - seen_ns + ACTIVE_NS < 2 * ACTIVE_NS;
	}
	state->contended = others;
}

/* GPU time that a long kernel added: its span without what was charged already, less the short
 * kernels of others. */
static int64_t
long_charge(const struct device *device, const struct meter_result *result)
{
	struct state_device *row = device->row;
	if (robust_lock(row->limiter_lock) == ROBUST_BROKEN) {
		return result->duration_ns;
	}
	FAULT_POINT("limiter");
	int64_t added =
	    spans_insert(row, result->start_ns, result->end_ns, clock_now() + CLOCK_TOLERANCE_NS);
	robust_unlock(row->limiter_lock);
	int64_t shorts = (int64_t)(__atomic_load_n(&row->short_busy_ns, __ATOMIC_RELAXED) -
				   result->short_before);
	return added > shorts && shorts > 0 ? added - shorts : added;
}

static void
note_first(struct device_state *state, const struct meter_result *result)
{
	if (result->forecast->samples == 0) {
		state->short_firsts = result->duration_ns < LONG_NS ? state->short_firsts + 1 : 0;
	}
}

static void
settle(const struct device *device, struct device_state *state, const struct meter_result *result)
{
	if (result->forecast != NULL && result->duration_ns > 0) {
		note_first(state, result);
		forecast_learn(result->forecast, result->duration_ns, state->contended);
	}
	if (!result->settles) {
		return;
	}
	bool is_long = result->duration_ns >= LONG_NS;
	int64_t raw = is_long ? long_charge(device, result) : result->duration_ns;
	int64_t charge = bias_apply(device, raw);
	bucket_correct(device->row, result->charged_ns - charge);
	__atomic_fetch_add(&device->row->busy_ns, (uint64_t)(charge - result->charged_ns),
			   __ATOMIC_RELAXED);
	if (!is_long) {
		__atomic_fetch_add(&device->row->short_busy_ns, (uint64_t)charge, __ATOMIC_RELAXED);
	}
}

static void
collect(int number, const struct device *device)
{
	struct meter_result result;
	if (__atomic_load_n(&captures, __ATOMIC_RELAXED) != 0) {
		return;
	}
	while (meter_collect(number, &result)) {
		settle(device, &states[number], &result);
		probe_drop(device->row, &states[number].probe_until_ns);
	}
}

/* Too much unfinished work of ours: the limit could not react. Two launches may always be under
 * way. */
static bool
too_much_in_flight(int number, int64_t burst_ns)
{
	struct meter_load load = meter_load(number);
	return load.count >= 2 && load.work_ns > 2 * burst_ns;
}

static void
note_wait(struct state_device *row, int64_t waited_ns)
{
	static const int64_t limits_ns[] = {100000,    1000000,   5000000,   20000000,
					    100000000, 500000000, 2000000000};
	unsigned bin = 0;
	while (bin < 7 && waited_ns > limits_ns[bin]) {
		bin++;
	}
	__atomic_fetch_add(&row->wait_histogram[bin], 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&row->throttled_ns, (uint64_t)waited_ns, __ATOMIC_RELAXED);
}

/* A little longer at random: of processes that wait for the same moment not always the same one
 * comes first. */
static int64_t
pause_for(int64_t wait_ns)
{
	int64_t pause = wait_ns < MIN_PAUSE_NS ? MIN_PAUSE_NS
					       : (wait_ns > MAX_PAUSE_NS ? MAX_PAUSE_NS : wait_ns);
	return pause + (int64_t)(next_random() % (uint32_t)(pause / 8 + 1));
}

/* Time slices of neighbours stretch a kernel many times over, so unfinished work is no sign of a
 * kernel that waits for the held one until it has taken far longer than that. */
static int64_t
patience(const struct meter_load *load)
{
	int64_t long_enough = 16 * load->work_ns;
	return long_enough > MAX_HOLD_NS ? long_enough : MAX_HOLD_NS;
}

/* What a launch is to be charged. Asked again after each wait: a kernel that was unknown before may
 * have been measured meanwhile. */
static int64_t
price(const struct device *device, const struct forecast *forecast, bool single)
{
	return single ? __atomic_load_n(&forecast->cost_ns, __ATOMIC_RELAXED)
		      : bias_apply(device, DRAW_NS);
}

/* One look at the bucket. Returns how long to wait before the next, 0 when the launch may go. */
static int64_t
try_draw(int number, struct device *device, int64_t now_ns, const struct forecast *forecast,
	 int64_t amount_ns)
{
	struct limit limit;
	uint32_t share = current_share(device, now_ns, &limit);
	int64_t burst_ns = limit.burst_ns != 0 ? (int64_t)limit.burst_ns : DEFAULT_BURST_NS;
	struct device_state *state = &states[number];
	bool probe = probe_is_under_way(device->row, now_ns);
	int64_t most_ns = burst_ns;
	if (probe) {
		/* What comes in while an unknown kernel runs is kept: it has yet to be paid. */
		most_ns += PROBE_NS;
	} else if (state->neighbours) {
		/* Nor is lost what came in while a neighbour's slices held a kernel up. */
		most_ns += amount_ns < MAX_KEPT_NS ? amount_ns : MAX_KEPT_NS;
	}
	int64_t tokens = bucket_refill(device->row, now_ns,
				       share == SHARE_UNLIMITED ? FULL_CORES_Q16 : share, most_ns);
	if (share != SHARE_UNLIMITED && tokens < 0) {
		return bucket_wait_ns(tokens, share);
	}
	if (share == SHARE_UNLIMITED && !has_core_limit(&limit)) {
		return 0;
	}
	bool unknown = forecast->samples == 0;
	bool probing = unknown && state->short_firsts < TRUSTED_FIRSTS;
	if ((unknown && forecast->pending > 0) || too_much_in_flight(number, burst_ns) || probe ||
	    (probing && !probe_take(device->row, &state->probe_until_ns, now_ns))) {
		return MIN_PAUSE_NS * 2;
	}
	if (share == SHARE_UNLIMITED || bucket_take(device->row, amount_ns)) {
		return 0;
	}
	probe_drop(device->row, &state->probe_until_ns);
	return MIN_PAUSE_NS;
}

/* Draw a launch's cost (`single`) or an allowance for short ones from the shared bucket, waiting
 * for it. Returns what was drawn. */
static int64_t
draw(int number, struct device *device, const struct forecast *forecast, bool single)
{
	struct device_state *state = &states[number];
	int64_t began_ns = clock_now();
	int64_t now_ns = began_ns;
	int64_t amount_ns;
	for (;;) {
		collect(number, device);
		look_for_others(device, state, now_ns);
		amount_ns = price(device, forecast, single);
		int64_t wait_ns = try_draw(number, device, now_ns, forecast, amount_ns);
		if (wait_ns == 0) {
			break;
		}
		struct meter_load load = meter_load(number);
		if (load.count > 0 && now_ns - began_ns > patience(&load)) {
			bucket_correct(device->row, -amount_ns);
			break;
		}
		bias_sample(device, now_ns);
		clock_sleep(pause_for(wait_ns));
		now_ns = clock_now();
	}
	__atomic_store_n(&device->row->last_launch_ns, (uint64_t)now_ns, __ATOMIC_RELAXED);
	if (now_ns != began_ns) {
		note_wait(device->row, now_ns - began_ns);
	}
	return amount_ns;
}

static void
account(struct device *device, struct device_state *state, int64_t amount_ns, bool is_long)
{
	__atomic_fetch_add(&device->row->busy_ns, (uint64_t)amount_ns, __ATOMIC_RELAXED);
	if (!is_long) {
		__atomic_fetch_add(&device->row->short_busy_ns, (uint64_t)amount_ns,
				   __ATOMIC_RELAXED);
	}
	uint64_t launches = __atomic_exchange_n(&state->launches, 0, __ATOMIC_RELAXED);
	__atomic_fetch_add(&device->row->launches, launches, __ATOMIC_RELAXED);
}

static bool
is_captured(const struct launch *launch)
{
	int status = CU_CAPTURE_NONE;
	cu_result (*query)(cu_stream, int *) =
	    launch->per_thread ? driver()->cuStreamIsCapturing_ptsz : driver()->cuStreamIsCapturing;
	return query != NULL && query(launch->stream, &status) == CU_OK &&
	       status != CU_CAPTURE_NONE;
}

static void
measure(int number, struct device *device, struct launch *launch, struct forecast *forecast,
	bool settles)
{
	/* Asked here as well: there are more ways to begin a capture than are counted. */
	if (__atomic_load_n(&captures, __ATOMIC_RELAXED) != 0 || is_captured(launch)) {
		return;
	}
	struct sample *sample = meter_start(number, launch, clock_now());
	if (sample != NULL) {
		sample->forecast = forecast;
		sample->forecast_key = forecast->key;
		sample->charged_ns = launch->cost_ns;
		sample->settles = settles;
		sample->short_before =
		    __atomic_load_n(&device->row->short_busy_ns, __ATOMIC_RELAXED);
		sample->work_ns =
		    settles ? launch->cost_ns
			    : __atomic_exchange_n(&states[number].drawn_ns, 0, __ATOMIC_RELAXED);
		launch->ticket = sample;
	}
}

/* Kernels that are settled one by one: unknown ones and long ones. */
static void
begin_single(int number, struct device *device, struct launch *launch, struct forecast *forecast)
{
	launch->cost_ns = draw(number, device, forecast, true);
	account(device, &states[number], launch->cost_ns, true);
	measure(number, device, launch, forecast, true);
	if (launch->ticket == NULL) {
		probe_drop(device->row, &states[number].probe_until_ns);
	}
}

static void
begin_short(int number, struct device *device, struct launch *launch, struct forecast *forecast)
{
	struct device_state *state = &states[number];
	int64_t left = __atomic_sub_fetch(&state->allowance_ns, launch->cost_ns, __ATOMIC_RELAXED);
	if (LIKELY(left >= 0)) {
		if (UNLIKELY(__atomic_load_n(&state->sample_next, __ATOMIC_RELAXED) ||
			     (next_random() & SAMPLE_MASK) == 0)) {
			__atomic_store_n(&state->sample_next, false, __ATOMIC_RELAXED);
			measure(number, device, launch, forecast, false);
		}
		return;
	}
	account(device, state, draw(number, device, forecast, false), false);
	__atomic_add_fetch(&state->allowance_ns, DRAW_NS, __ATOMIC_RELAXED);
	__atomic_add_fetch(&state->drawn_ns, DRAW_NS, __ATOMIC_RELAXED);
	__atomic_store_n(&state->sample_next, true, __ATOMIC_RELAXED);
}

void
compute_begin(struct launch *launch)
{
	uint32_t sequence = limits_sequence();
	if (UNLIKELY(sequence != __atomic_load_n(&known_sequence, __ATOMIC_RELAXED))) {
		reconfigure(sequence);
	}
	struct device *device = device_current();
	if (device == NULL) {
		return;
	}
	int number = (int)(device - device_at(0));
	struct device_state *state = &states[number];
	if (!state->limited ||
	    (UNLIKELY(__atomic_load_n(&captures, __ATOMIC_RELAXED) != 0) && is_captured(launch))) {
		return;
	}
	struct forecast *forecast = forecast_of(launch->function, launch->blocks, launch->threads);
	launch->cost_ns = forecast->cost_ns;
	__atomic_store_n(&state->launches, state->launches + 1, __ATOMIC_RELAXED);
	if (LIKELY(forecast->samples >= FORECAST_YOUNG && launch->cost_ns < LONG_NS)) {
		begin_short(number, device, launch, forecast);
	} else {
		begin_single(number, device, launch, forecast);
	}
}

void
compute_end(struct launch *launch, cu_result result)
{
	if (UNLIKELY(launch->ticket != NULL)) {
		struct device *device = device_current();
		int number = device == NULL ? 0 : (int)(device - device_at(0));
		meter_stop(number, launch->ticket, launch, result == CU_OK);
	}
}

void
compute_capture_began(void)
{
	__atomic_add_fetch(&captures, 1, __ATOMIC_RELAXED);
}

void
compute_capture_ended(void)
{
	uint32_t count = __atomic_load_n(&captures, __ATOMIC_RELAXED);
	while (count > 0 && !__atomic_compare_exchange_n(&captures, &count, count - 1, 0,
							 __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
	}
}

void
compute_context_ended(cu_context context)
{
	meter_context_ended(context);
}

void
compute_postfork_child(void)
{
	memset(states, 0, sizeof states);
	captures = 0;
	known_sequence = UINT32_MAX;
	compute_open_at = UINT32_MAX;
	forecasts_clear();
	meter_postfork_child();
}
