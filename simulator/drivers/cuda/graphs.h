/* Stream capture and graphs. */
#ifndef GPUSLICE_FAKE_GRAPHS_H
#define GPUSLICE_FAKE_GRAPHS_H

#include "driver.h"

struct graph;
struct stream;

/* Add work to the graph that a stream is captured into. */
cu_result graph_capture_work(struct graph *graph, uint64_t work_ns);

#endif
