/* Streams and the work they carry. */
#ifndef GPUSLICE_FAKE_STREAMS_H
#define GPUSLICE_FAKE_STREAMS_H

#include "driver.h"

struct graph;

struct stream {
	uint64_t magic;
	struct context *context;
	uint64_t tail; /* position of the last work on this stream */
	unsigned flags;
	int priority;
	uint64_t id;
	struct graph *capture; /* being captured into, or NULL */
	int capture_mode;
	bool live;
};

/* A handle from the program: NULL, 1 and 2 are the current context's default stream.
 * NULL when the handle is bad or there is no context. */
struct stream *stream_checked(void *handle);

/* Put work on a stream, or into the graph that the stream is captured into. */
cu_result stream_work(struct stream *stream, uint64_t work_ns);

#endif
