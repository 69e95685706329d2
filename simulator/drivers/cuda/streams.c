/* Streams: creation, queries, waits. The order of work is the timeline's; a stream is a position in
 * it. */
#include "streams.h"

#include <stdlib.h>

#include "graphs.h"
#include "pools.h"

static const uint64_t STREAM_MAGIC = 0x6d61657274737067ULL;

static _Atomic uint64_t next_id = 1;

struct stream *
stream_checked(void *handle)
{
	struct context *context = context_current();
	if ((uintptr_t)handle <= 2) {
		if (context == NULL) {
			return NULL;
		}
		if (context->default_stream == NULL) {
			struct stream *fresh = calloc(1, sizeof *fresh);
			if (fresh == NULL) {
				return NULL;
			}
			*fresh = (struct stream){
			    .magic = STREAM_MAGIC, .context = context, .live = true};
			struct stream *none = NULL;
			if (!__atomic_compare_exchange_n(&context->default_stream, &none, fresh,
							 false, __ATOMIC_ACQ_REL,
							 __ATOMIC_ACQUIRE)) {
				free(fresh);
			}
		}
		return context->default_stream;
	}
	struct stream *stream = handle;
	return stream->magic == STREAM_MAGIC && stream->live ? stream : NULL;
}

cu_result
stream_work(struct stream *stream, uint64_t work_ns)
{
	if (stream->capture != NULL) {
		return graph_capture_work(stream->capture, work_ns);
	}
	if (gpu_lost(stream->context->domain)) {
		return CU_NO_DEVICE;
	}
	stream->tail = timeline_submit(stream->context->domain, work_ns);
	return CU_OK;
}

cu_result
fake_cuStreamCreateWithPriority(struct stream **out, unsigned flags, int priority)
{
	struct context *context = context_current();
	if (out == NULL || context == NULL || flags > 1) {
		return context == NULL ? CU_INVALID_CONTEXT : CU_INVALID_VALUE;
	}
	struct stream *stream = calloc(1, sizeof *stream);
	if (stream == NULL) {
		return CU_OUT_OF_MEMORY;
	}
	*stream = (struct stream){
	    .magic = STREAM_MAGIC, .context = context, .flags = flags, .live = true};
	stream->priority = priority > 0 ? 0 : (priority < -5 ? -5 : priority);
	stream->id = atomic_fetch_add(&next_id, 1);
	*out = stream;
	return CU_OK;
}

cu_result
fake_cuStreamCreate(struct stream **out, unsigned flags)
{
	return fake_cuStreamCreateWithPriority(out, flags, 0);
}

/* Work on the stream still runs; only the handle goes. */
cu_result
fake_cuStreamDestroy_v2(void *handle)
{
	struct stream *stream = (uintptr_t)handle > 2 ? stream_checked(handle) : NULL;
	if (stream == NULL) {
		return CU_INVALID_HANDLE;
	}
	stream->live = false;
	stream->magic = 0;
	free(stream);
	return CU_OK;
}

cu_result
fake_cuStreamDestroy(void *handle)
{
	return fake_cuStreamDestroy_v2(handle);
}

cu_result
fake_cuStreamQuery(void *handle)
{
	const struct stream *stream = stream_checked(handle);
	if (stream == NULL) {
		return context_current() == NULL ? CU_INVALID_CONTEXT : CU_INVALID_HANDLE;
	}
	if (stream->capture != NULL) {
		return CU_STREAM_CAPTURE_UNSUPPORTED;
	}
	bool reached = timeline_reached(stream->context->domain, stream->tail, NULL);
	if (!reached) {
		clock_poll();
	}
	return reached ? CU_OK : CU_NOT_READY;
}

cu_result
fake_cuStreamSynchronize(void *handle)
{
	const struct stream *stream = stream_checked(handle);
	if (stream == NULL) {
		return context_current() == NULL ? CU_INVALID_CONTEXT : CU_INVALID_HANDLE;
	}
	if (stream->capture != NULL) {
		return CU_STREAM_CAPTURE_UNSUPPORTED;
	}
	if (gpu_lost(stream->context->domain)) {
		return CU_NO_DEVICE;
	}
	timeline_wait(stream->context->domain, stream->tail);
	pools_trim_after_sync(stream->context->device);
	return CU_OK;
}

cu_result
fake_cuCtxSynchronize_v2(void *handle)
{
	const struct context *context =
	    handle != NULL ? context_checked(handle) : context_current();
	if (context == NULL) {
		return CU_INVALID_CONTEXT;
	}
	if (gpu_lost(context->domain)) {
		return CU_NO_DEVICE;
	}
	timeline_wait(context->domain, timeline_tail(context->domain));
	pools_trim_after_sync(context->device);
	return CU_OK;
}

cu_result
fake_cuCtxSynchronize(void)
{
	return fake_cuCtxSynchronize_v2(NULL);
}

cu_result
fake_cuStreamGetPriority(void *handle, int *priority)
{
	const struct stream *stream = stream_checked(handle);
	if (stream == NULL || priority == NULL) {
		return stream == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
	}
	*priority = stream->priority;
	return CU_OK;
}

cu_result
fake_cuStreamGetFlags(void *handle, unsigned *flags)
{
	const struct stream *stream = stream_checked(handle);
	if (stream == NULL || flags == NULL) {
		return stream == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
	}
	*flags = stream->flags;
	return CU_OK;
}

cu_result
fake_cuStreamGetId(void *handle, unsigned long long *id)
{
	const struct stream *stream = stream_checked(handle);
	if (stream == NULL || id == NULL) {
		return stream == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
	}
	*id = (uintptr_t)handle <= 2 ? (unsigned long long)(uintptr_t)handle : stream->id + 2;
	return CU_OK;
}

cu_result
fake_cuStreamGetCtx(void *handle, struct context **out)
{
	const struct stream *stream = stream_checked(handle);
	if (stream == NULL || out == NULL) {
		return stream == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
	}
	*out = stream->context;
	return CU_OK;
}

cu_result
fake_cuStreamGetCtx_v2(void *handle, struct context **out, void **green)
{
	if (green != NULL) {
		*green = NULL;
	}
	return fake_cuStreamGetCtx(handle, out);
}

cu_result
fake_cuStreamGetDevice(void *handle, cu_device *device)
{
	const struct stream *stream = stream_checked(handle);
	if (stream == NULL || device == NULL) {
		return stream == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
	}
	*device = stream->context->device;
	return CU_OK;
}

cu_result
fake_cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	if (context_current() == NULL) {
		return CU_INVALID_CONTEXT;
	}
	if (least != NULL) {
		*least = 0;
	}
	if (greatest != NULL) {
		*greatest = -5;
	}
	return CU_OK;
}

/* A host function runs when the work before it is done; here: at once after waiting for it. */
cu_result
fake_cuLaunchHostFunc(void *handle, void (*function)(void *), void *argument)
{
	struct stream *stream = stream_checked(handle);
	if (stream == NULL || function == NULL) {
		return stream == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
	}
	if (stream->capture != NULL) {
		return graph_capture_work(stream->capture, 0);
	}
	timeline_wait(stream->context->domain, stream->tail);
	function(argument);
	return CU_OK;
}

cu_result
fake_cuStreamAddCallback(void *handle, void (*function)(void *, cu_result, void *), void *argument,
			 unsigned flags)
{
	const struct stream *stream = stream_checked(handle);
	if (stream == NULL || function == NULL || flags != 0) {
		return stream == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
	}
	if (stream->capture != NULL) {
		return CU_STREAM_CAPTURE_UNSUPPORTED;
	}
	timeline_wait(stream->context->domain, stream->tail);
	function(handle, CU_OK, argument);
	return CU_OK;
}
