/* Threads: any; the ring of a device is guarded by its lock, which is held over driver calls on
 * events only. Fork: the child forgets everything; its parent's events are not its own. */
#include "meter.h"

#include <string.h>

#include "clock.h"
#include "driver.h"
#include "lock.h"

#define RING 64
#define REBASE_NS (5 * NS_PER_S)

/* Ties a context's event times to the host's clock. */
struct time_base {
	cu_context context;
	cu_stream stream;
	cu_event event;
	int64_t host_ns;
	int64_t overhead_ns; /* of an empty event pair */
};

struct ring {
	struct lock lock;
	struct sample samples[RING];
	struct time_base base;
};

static struct ring rings[MAX_DEVICES];

static int64_t
elapsed_ns(cu_event start, cu_event end)
{
	float milliseconds = 0;
	if (driver()->cuEventElapsedTime(&milliseconds, start, end) != CU_OK) {
		return -1;
	}
	return (int64_t)((double)milliseconds * 1e6);
}

static bool
events_are_there(void)
{
	const struct driver_table *real = driver();
	return real->cuEventCreate != NULL && real->cuEventRecord != NULL &&
	       real->cuEventQuery != NULL && real->cuEventElapsedTime != NULL &&
	       real->cuStreamCreate != NULL && real->cuEventSynchronize != NULL;
}

/* An event on an idle stream of our own completes at once: its host time lies between two readings
 * of the clock. */
static bool
take_base(struct time_base *base)
{
	cu_event second;
	if (driver()->cuEventCreate(&second, CU_EVENT_DEFAULT) != CU_OK) {
		return false;
	}
	int64_t before = clock_now();
	bool good = driver()->cuEventRecord(base->event, base->stream) == CU_OK &&
		    driver()->cuEventSynchronize(base->event) == CU_OK;
	int64_t after = clock_now();
	good = good && driver()->cuEventRecord(base->event, base->stream) == CU_OK &&
	       driver()->cuEventRecord(second, base->stream) == CU_OK &&
	       driver()->cuEventSynchronize(second) == CU_OK;
	int64_t now = clock_now();
	if (good) {
		base->overhead_ns = elapsed_ns(base->event, second);
		base->overhead_ns =
		    base->overhead_ns < 0 || base->overhead_ns > 20000 ? 0 : base->overhead_ns;
		base->host_ns = after + (now - after) / 2;
		(void)before;
	}
	driver()->cuEventDestroy_v2(second);
	return good;
}

static bool
ensure_base(struct ring *ring, cu_context context, int64_t now_ns)
{
	struct time_base *base = &ring->base;
	if (base->context == context) {
		return now_ns - base->host_ns < REBASE_NS || take_base(base);
	}
	struct time_base fresh = {.context = context};
	if (driver()->cuStreamCreate(&fresh.stream, CU_STREAM_NON_BLOCKING) != CU_OK) {
		return false;
	}
	if (driver()->cuEventCreate(&fresh.event, CU_EVENT_DEFAULT) != CU_OK ||
	    !take_base(&fresh)) {
		return false;
	}
	*base = fresh;
	return true;
}

static struct sample *
free_sample(struct ring *ring, cu_context context)
{
	struct sample *unused = NULL;
	for (int i = 0; i < RING; i++) {
		struct sample *sample = &ring->samples[i];
		if (!sample->busy && sample->context == context) {
			return sample;
		}
		if (!sample->busy && sample->context == NULL && unused == NULL) {
			unused = sample;
		}
	}
	if (unused != NULL && driver()->cuEventCreate(&unused->start, CU_EVENT_DEFAULT) == CU_OK &&
	    driver()->cuEventCreate(&unused->end, CU_EVENT_DEFAULT) == CU_OK) {
		unused->context = context;
		return unused;
	}
	return NULL;
}

static cu_result
record(cu_event event, const struct launch *launch)
{
	return launch->per_thread && driver()->cuEventRecord_ptsz != NULL
		   ? driver()->cuEventRecord_ptsz(event, launch->stream)
		   : driver()->cuEventRecord(event, launch->stream);
}

/* On an idle stream the start event is done at once and the pair also measures how long the launch
 * call takes. */
static bool
stream_is_idle(const struct launch *launch)
{
	cu_result (*query)(cu_stream) =
	    launch->per_thread ? driver()->cuStreamQuery_ptsz : driver()->cuStreamQuery;
	return query != NULL && query(launch->stream) == CU_OK;
}

struct sample *
meter_start(int device, const struct launch *launch, int64_t now_ns)
{
	struct ring *ring = &rings[device];
	cu_context context = NULL;
	if (!events_are_there() || driver()->cuCtxGetCurrent(&context) != CU_OK ||
	    context == NULL) {
		return NULL;
	}
	lock_acquire(&ring->lock);
	struct sample *sample =
	    ensure_base(ring, context, now_ns) ? free_sample(ring, context) : NULL;
	bool idle = sample != NULL && stream_is_idle(launch);
	if (sample != NULL && record(sample->start, launch) == CU_OK) {
		sample->busy = true;
		sample->launched_ns = 0;
		sample->idle_since_ns = idle ? clock_now() : 0;
	} else {
		sample = NULL;
	}
	lock_release(&ring->lock);
	return sample;
}

void
meter_stop(int device, struct sample *sample, const struct launch *launch, bool launched)
{
	struct ring *ring = &rings[device];
	int64_t returned_ns = clock_now();
	lock_acquire(&ring->lock);
	sample->gap_ns = sample->idle_since_ns != 0 ? returned_ns - sample->idle_since_ns : 0;
	if (launched && record(sample->end, launch) == CU_OK) {
		sample->launched_ns = clock_now();
		__atomic_fetch_add(&sample->forecast->pending, 1, __ATOMIC_RELAXED);
	} else {
		sample->busy = false;
	}
	lock_release(&ring->lock);
}

static void
finish(struct ring *ring, struct sample *sample, struct meter_result *result)
{
	struct forecast *forecast = sample->forecast;
	bool same = forecast->key == sample->forecast_key;
	if (same && forecast->pending > 0) {
		__atomic_fetch_sub(&forecast->pending, 1, __ATOMIC_RELAXED);
	}
	int64_t duration = elapsed_ns(sample->start, sample->end);
	duration =
	    duration > sample->gap_ns ? duration - sample->gap_ns : (duration < 0 ? duration : 1);
	int64_t since_base = elapsed_ns(ring->base.event, sample->end);
	*result = (struct meter_result){
	    .forecast = same ? forecast : NULL,
	    .duration_ns =
		duration > ring->base.overhead_ns ? duration - ring->base.overhead_ns : duration,
	    .charged_ns = sample->charged_ns,
	    .launched_ns = sample->launched_ns,
	    .short_before = sample->short_before,
	    .settles = sample->settles && duration >= 0,
	};
	result->end_ns = since_base < 0 ? clock_now() : ring->base.host_ns + since_base;
	result->start_ns = result->end_ns - result->duration_ns;
	sample->busy = false;
}

bool
meter_collect(int device, struct meter_result *result)
{
	struct ring *ring = &rings[device];
	bool found = false;
	lock_acquire(&ring->lock);
	for (int i = 0; i < RING && !found; i++) {
		struct sample *sample = &ring->samples[i];
		if (sample->busy && sample->launched_ns != 0 &&
		    driver()->cuEventQuery(sample->end) == CU_OK) {
			finish(ring, sample, result);
			found = true;
		}
	}
	lock_release(&ring->lock);
	return found;
}

struct meter_load
meter_load(int device)
{
	struct ring *ring = &rings[device];
	struct meter_load load = {0, 0, 0};
	lock_acquire(&ring->lock);
	for (int i = 0; i < RING; i++) {
		const struct sample *sample = &ring->samples[i];
		if (sample->busy && sample->launched_ns != 0) {
			load.count++;
			load.work_ns += sample->work_ns;
			if (load.oldest_ns == 0 || sample->launched_ns < load.oldest_ns) {
				load.oldest_ns = sample->launched_ns;
			}
		}
	}
	lock_release(&ring->lock);
	return load;
}

void
meter_context_ended(cu_context context)
{
	for (int device = 0; device < MAX_DEVICES; device++) {
		struct ring *ring = &rings[device];
		lock_acquire(&ring->lock);
		for (int i = 0; i < RING; i++) {
			if (ring->samples[i].context == context) {
				ring->samples[i] = (struct sample){.context = NULL};
			}
		}
		if (ring->base.context == context) {
			ring->base = (struct time_base){.context = NULL};
		}
		lock_release(&ring->lock);
	}
}

void
meter_postfork_child(void)
{
	memset(rings, 0, sizeof rings);
}
