/* Events: positions in the work of a process, and the moments at which they were reached. */
#include <stdlib.h>

#include "graphs.h"
#include "pools.h"
#include "streams.h"

static const uint64_t EVENT_MAGIC = 0x746e657665757067ULL;

enum { DISABLE_TIMING = 2 };

struct event {
	uint64_t magic;
	struct context *context;
	unsigned flags;
	uint32_t domain;
	bool recorded;
	bool reached;
	bool queued; /* in the list of its domain */
	uint64_t position;
	uint64_t moment_ns;
	struct graph *capture; /* recorded into this capture */
	struct event *next;
};

/* Recorded events not yet seen as reached, oldest first, one list a domain. Their moments are
 * looked up while the timeline still remembers them. */
static struct event *first[MAX_DOMAINS];
static struct event *last[MAX_DOMAINS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static struct event *
event_checked(void *handle)
{
	struct event *event = handle;
	return event != NULL && event->magic == EVENT_MAGIC ? event : NULL;
}

static void
settle(uint32_t domain)
{
	while (first[domain] != NULL) {
		struct event *event = first[domain];
		if (!timeline_reached(domain, event->position, &event->moment_ns)) {
			return;
		}
		event->reached = true;
		event->queued = false;
		first[domain] = event->next;
	}
}

static void
unqueue(struct event *event)
{
	struct event **link = &first[event->domain];
	struct event *before = NULL;
	while (*link != NULL && *link != event) {
		before = *link;
		link = &(*link)->next;
	}
	if (*link == event) {
		*link = event->next;
		last[event->domain] = event->next == NULL ? before : last[event->domain];
	}
	event->queued = false;
}

cu_result
fake_cuEventCreate(struct event **out, unsigned flags)
{
	struct context *context = context_current();
	if (out == NULL || context == NULL || flags > 7) {
		return context == NULL ? CU_INVALID_CONTEXT : CU_INVALID_VALUE;
	}
	struct event *event = calloc(1, sizeof *event);
	if (event == NULL) {
		return CU_OUT_OF_MEMORY;
	}
	*event = (struct event){
	    .magic = EVENT_MAGIC, .context = context, .domain = context->domain, .flags = flags};
	*out = event;
	return CU_OK;
}

cu_result
fake_cuEventDestroy_v2(void *handle)
{
	struct event *event = event_checked(handle);
	if (event == NULL) {
		return CU_INVALID_HANDLE;
	}
	pthread_mutex_lock(&mutex);
	if (event->queued) {
		unqueue(event);
	}
	pthread_mutex_unlock(&mutex);
	event->magic = 0;
	free(event);
	return CU_OK;
}

cu_result
fake_cuEventDestroy(void *handle)
{
	return fake_cuEventDestroy_v2(handle);
}

static void
record(struct event *event, struct stream *stream)
{
	pthread_mutex_lock(&mutex);
	if (event->queued) {
		unqueue(event);
	}
	settle(event->domain);
	event->recorded = true;
	/* A nanosecond of its own work: the event happens when its process next has the device. */
	stream->tail = timeline_submit(event->domain, 1);
	event->position = stream->tail;
	event->reached = timeline_reached(event->domain, event->position, &event->moment_ns);
	if (!event->reached) {
		struct event *tail = first[event->domain] != NULL ? last[event->domain] : NULL;
		event->next = NULL;
		event->queued = true;
		if (tail == NULL) {
			first[event->domain] = event;
		} else {
			tail->next = event;
		}
		last[event->domain] = event;
	}
	pthread_mutex_unlock(&mutex);
}

cu_result
fake_cuEventRecord(void *handle, void *stream_handle)
{
	struct event *event = event_checked(handle);
	struct stream *stream = stream_checked(stream_handle);
	if (event == NULL || stream == NULL || event->domain != stream->context->domain) {
		return CU_INVALID_HANDLE;
	}
	event->capture = stream->capture;
	if (stream->capture != NULL) {
		return graph_capture_work(stream->capture, 0);
	}
	record(event, stream);
	return CU_OK;
}

cu_result
fake_cuEventRecordWithFlags(void *handle, void *stream_handle, unsigned flags)
{
	return flags > 1 ? CU_INVALID_VALUE : fake_cuEventRecord(handle, stream_handle);
}

static bool
is_reached(struct event *event)
{
	pthread_mutex_lock(&mutex);
	if (event->queued) {
		settle(event->domain);
	}
	if (event->queued && timeline_reached(event->domain, event->position, &event->moment_ns)) {
		unqueue(event); /* recorded out of order on another stream */
		event->reached = true;
	}
	bool reached = !event->recorded || event->reached;
	pthread_mutex_unlock(&mutex);
	return reached;
}

cu_result
fake_cuEventQuery(void *handle)
{
	struct event *event = event_checked(handle);
	if (event == NULL) {
		return CU_INVALID_HANDLE;
	}
	bool reached = is_reached(event);
	if (!reached) {
		clock_poll();
	}
	return reached ? CU_OK : CU_NOT_READY;
}

cu_result
fake_cuEventSynchronize(void *handle)
{
	struct event *event = event_checked(handle);
	if (event == NULL) {
		return CU_INVALID_HANDLE;
	}
	if (!is_reached(event)) {
		timeline_wait(event->domain, event->position);
		is_reached(event);
	}
	pools_trim_after_sync(event->context->device);
	return CU_OK;
}

/* Milliseconds between two reached events, at the half-microsecond resolution of real ones. */
cu_result
fake_cuEventElapsedTime(float *milliseconds, void *start_handle, void *end_handle)
{
	struct event *start = event_checked(start_handle);
	struct event *end = event_checked(end_handle);
	if (start == NULL || end == NULL || milliseconds == NULL) {
		return milliseconds == NULL ? CU_INVALID_VALUE : CU_INVALID_HANDLE;
	}
	if (!start->recorded || !end->recorded ||
	    ((start->flags | end->flags) & DISABLE_TIMING) != 0) {
		return CU_INVALID_HANDLE;
	}
	if (!is_reached(start) || !is_reached(end)) {
		return CU_NOT_READY;
	}
	int64_t ns = (int64_t)(end->moment_ns - start->moment_ns);
	*milliseconds = (float)(ns / 500) * 0.0005F;
	return CU_OK;
}

cu_result
fake_cuEventElapsedTime_v2(float *milliseconds, void *start_handle, void *end_handle)
{
	return fake_cuEventElapsedTime(milliseconds, start_handle, end_handle);
}

/* Work of one process runs in launch order, so waiting within it holds by itself; for another
 * device's event the host waits. */
cu_result
fake_cuStreamWaitEvent(void *stream_handle, void *handle, unsigned flags)
{
	struct stream *stream = stream_checked(stream_handle);
	struct event *event = event_checked(handle);
	if (stream == NULL || event == NULL || flags > 1) {
		return flags > 1 ? CU_INVALID_VALUE : CU_INVALID_HANDLE;
	}
	if (event->capture != NULL && stream->capture == NULL) {
		graph_join(event->capture, stream);
	}
	if (stream->capture != NULL) {
		return graph_capture_work(stream->capture, 0);
	}
	if (event->domain != stream->context->domain) {
		return fake_cuEventSynchronize(handle);
	}
	if (event->recorded && event->position > stream->tail) {
		stream->tail = event->position;
	}
	return CU_OK;
}
