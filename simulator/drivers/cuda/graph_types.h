/* Shapes that graph_memory.c, graphs.c, graph_nodes.c and capture.c share. */
#ifndef GPUSLICE_FAKE_GRAPH_TYPES_H
#define GPUSLICE_FAKE_GRAPH_TYPES_H

#include "blocks.h"
#include "graphs.h"

enum node_type {
	NODE_KERNEL = 0,
	NODE_MEMCPY = 1,
	NODE_MEMSET = 2,
	NODE_HOST = 3,
	NODE_GRAPH = 4,
	NODE_EMPTY = 5,
	NODE_EVENT_WAIT = 6,
	NODE_EVENT_RECORD = 7,
	NODE_ALLOC = 10,
	NODE_FREE = 11,
};

struct node {
	uint64_t magic;
	int type;
	struct graph *graph;
	struct graph *child; /* NODE_GRAPH */
	uint64_t work_ns;
	struct block *block;  /* NODE_ALLOC: its fixed address */
	cu_deviceptr address; /* NODE_ALLOC, NODE_FREE */
	struct node *next;
};

enum { MAX_JOINED = 32 };

struct graph {
	uint64_t magic;
	struct node *first, *last;
	size_t count;
	uint64_t id;
	struct stream *origin; /* captured: the stream that began */
	struct stream *joined[MAX_JOINED];
	unsigned joined_count;
	bool invalid; /* capture: something forbidden happened */
};

struct graph_exec {
	uint64_t magic;
	struct graph *graph; /* a clone */
	uint64_t work_ns;
	uint64_t flags;
};

struct graph *graph_new(void);
struct graph *graph_checked(void *handle);
void graph_free(struct graph *graph);
struct node *node_new(struct graph *graph, int type, uint64_t work_ns);
struct node *node_checked(void *handle);

/* graph_memory.c: physical memory of allocation nodes. */
cu_result graph_memory_new(int device, uint64_t bytes, struct block **out);
/* Have physical memory for all allocation nodes of a graph before it runs; mark them in use after.
 */
cu_result graph_memory_map(const struct graph *graph);
void graph_memory_ran(const struct graph *graph);

#endif
