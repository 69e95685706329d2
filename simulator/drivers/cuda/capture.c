/* Stream capture: work goes into a graph instead of onto the device. */
#include <stddef.h>

#include "graph_types.h"
#include "memory.h"
#include "streams.h"

cu_result
graph_capture_work(struct graph *graph, uint64_t work_ns)
{
	if (graph->invalid) {
		return CU_STREAM_CAPTURE_INVALIDATED;
	}
	return node_new(graph, work_ns > 0 ? NODE_KERNEL : NODE_EMPTY, work_ns) != NULL
		   ? CU_OK
		   : CU_OUT_OF_MEMORY;
}

cu_result
graph_capture_allocation(struct graph *graph, int device, uint64_t bytes, cu_deviceptr *address)
{
	struct block *block = NULL;
	cu_result result = graph_memory_new(device, bytes, &block);
	struct node *node = result == CU_OK ? node_new(graph, NODE_ALLOC, 0) : NULL;
	if (node == NULL) {
		return result != CU_OK ? result : CU_OUT_OF_MEMORY;
	}
	node->block = block;
	node->address = block->address;
	*address = block->address;
	return CU_OK;
}

cu_result
graph_capture_free(struct graph *graph, cu_deviceptr address)
{
	struct node *node = address != 0 ? node_new(graph, NODE_FREE, 0) : NULL;
	if (node == NULL) {
		return address != 0 ? CU_OUT_OF_MEMORY : CU_INVALID_VALUE;
	}
	node->address = address;
	return CU_OK;
}

void
graph_join(struct graph *graph, struct stream *stream)
{
	if (graph->joined_count < MAX_JOINED && stream->capture == NULL) {
		graph->joined[graph->joined_count++] = stream;
		stream->capture = graph;
	}
}

/* Modes: 0 global, 1 thread-local, 2 relaxed. The legacy default stream cannot be captured. */
cu_result
fake_cuStreamBeginCapture_v2(void *handle, int mode)
{
	struct stream *stream = stream_checked(handle);
	if (stream == NULL || mode < 0 || mode > 2) {
		return stream == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
	}
	if (handle == NULL || stream->capture != NULL) {
		return handle == NULL ? CU_STREAM_CAPTURE_UNSUPPORTED : CU_ILLEGAL_STATE;
	}
	struct graph *graph = graph_new();
	if (graph == NULL) {
		return CU_OUT_OF_MEMORY;
	}
	graph->origin = stream;
	stream->capture = graph;
	stream->capture_mode = mode;
	return CU_OK;
}

cu_result
fake_cuStreamBeginCapture(void *handle)
{
	return fake_cuStreamBeginCapture_v2(handle, 0);
}

cu_result
fake_cuStreamBeginCaptureToGraph(void *handle, void *graph_handle, const void *after,
				 const void *edges, size_t count, int mode)
{
	struct stream *stream = stream_checked(handle);
	struct graph *graph = graph_checked(graph_handle);
	(void)after;
	(void)edges;
	(void)count;
	if (stream == NULL || graph == NULL || mode < 0 || mode > 2 || stream->capture != NULL) {
		return stream == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
	}
	graph->origin = stream;
	stream->capture = graph;
	return CU_OK;
}

cu_result
fake_cuStreamEndCapture(void *handle, struct graph **out)
{
	struct stream *stream = stream_checked(handle);
	if (stream == NULL || out == NULL || stream->capture == NULL) {
		return stream == NULL ? CU_INVALID_HANDLE
				      : (out == NULL ? CU_INVALID_VALUE : CU_ILLEGAL_STATE);
	}
	struct graph *graph = stream->capture;
	if (graph->origin != stream) {
		return CU_STREAM_CAPTURE_UNMATCHED;
	}
	stream->capture = NULL;
	for (unsigned i = 0; i < graph->joined_count; i++) {
		graph->joined[i]->capture = NULL;
	}
	graph->joined_count = 0;
	graph->origin = NULL;
	*out = graph;
	return CU_OK;
}

/* Status: 0 none, 1 active, 2 invalidated. */
cu_result
fake_cuStreamIsCapturing(void *handle, int *status)
{
	const struct stream *stream = stream_checked(handle);
	if (stream == NULL || status == NULL) {
		return stream == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
	}
	*status = stream->capture != NULL ? 1 : 0;
	return CU_OK;
}

cu_result
fake_cuStreamGetCaptureInfo_v2(void *handle, int *status, uint64_t *id, struct graph **graph,
			       const void **after, size_t *count)
{
	cu_result result = fake_cuStreamIsCapturing(handle, status);
	if (result != CU_OK || *status == 0) {
		return result;
	}
	struct graph *capture = stream_checked(handle)->capture;
	if (id != NULL) {
		*id = capture->id;
	}
	if (graph != NULL) {
		*graph = capture;
	}
	if (after != NULL) {
		*after = capture->last != NULL ? (const void *)&capture->last : NULL;
	}
	if (count != NULL) {
		*count = capture->last != NULL;
	}
	return CU_OK;
}

cu_result
fake_cuStreamGetCaptureInfo_v3(void *handle, int *status, uint64_t *id, struct graph **graph,
			       const void **after, const void **edges, size_t *count)
{
	if (edges != NULL) {
		*edges = NULL;
	}
	return fake_cuStreamGetCaptureInfo_v2(handle, status, id, graph, after, count);
}

cu_result
fake_cuStreamGetCaptureInfo(void *handle, int *status, uint64_t *id)
{
	return fake_cuStreamGetCaptureInfo_v2(handle, status, id, NULL, NULL, NULL);
}

cu_result
fake_cuThreadExchangeStreamCaptureMode(int *mode)
{
	static __thread int own;
	if (mode == NULL || *mode < 0 || *mode > 2) {
		return CU_INVALID_VALUE;
	}
	int before = own;
	own = *mode;
	*mode = before;
	return CU_OK;
}
