/* Stream capture and graphs. */
#ifndef GPUSLICE_FAKE_GRAPHS_H
#define GPUSLICE_FAKE_GRAPHS_H

#include "driver.h"

struct graph;
struct stream;
struct block;

/* Add work to the graph that a stream is captured into. */
cu_result graph_capture_work(struct graph *graph, uint64_t work_ns);

cu_result graph_capture_allocation(struct graph *graph, int device, uint64_t bytes,
				   cu_deviceptr *address);
cu_result graph_capture_free(struct graph *graph, cu_deviceptr address);
/* A block of graph memory was freed outside of its graph. */
void graph_memory_freed(struct block *block);
/* A second stream joins the capture by waiting for an event of it. */
void graph_join(struct graph *graph, struct stream *stream);

#endif
