/* Graphs and their executables. A graph runs as one piece of work that takes the sum of its nodes'
 * times. */
#include <stdlib.h>
#include <string.h>

#include "graph_types.h"
#include "streams.h"

static const uint64_t GRAPH_MAGIC = 0x0068706172677067ULL;
static const uint64_t NODE_MAGIC = 0x00000065646f6e67ULL;
static const uint64_t EXEC_MAGIC = 0x0000006365786567ULL;

static _Atomic uint64_t next_id = 1;

struct graph *
graph_new(void)
{
	struct graph *graph = calloc(1, sizeof *graph);
	if (graph != NULL) {
		graph->magic = GRAPH_MAGIC;
		graph->id = atomic_fetch_add(&next_id, 1);
	}
	return graph;
}

struct graph *
graph_checked(void *handle)
{
	struct graph *graph = handle;
	return graph != NULL && graph->magic == GRAPH_MAGIC ? graph : NULL;
}

struct node *
node_checked(void *handle)
{
	struct node *node = handle;
	return node != NULL && node->magic == NODE_MAGIC ? node : NULL;
}

static struct graph_exec *
exec_checked(void *handle)
{
	struct graph_exec *exec = handle;
	return exec != NULL && exec->magic == EXEC_MAGIC ? exec : NULL;
}

struct node *
node_new(struct graph *graph, int type, uint64_t work_ns)
{
	struct node *node = calloc(1, sizeof *node);
	if (node == NULL) {
		return NULL;
	}
	*node =
	    (struct node){.magic = NODE_MAGIC, .type = type, .graph = graph, .work_ns = work_ns};
	if (graph->last != NULL) {
		graph->last->next = node;
	} else {
		graph->first = node;
	}
	graph->last = node;
	graph->count++;
	return node;
}

void
graph_free(struct graph *graph)
{
	while (graph->first != NULL) {
		struct node *node = graph->first;
		graph->first = node->next;
		node->magic = 0;
		free(node);
	}
	graph->magic = 0;
	free(graph);
}

/* Nodes keep their addresses: a clone's allocation node stands for the same memory. */
static struct graph *
clone(const struct graph *from)
{
	struct graph *copy = graph_new();
	for (const struct node *n = from->first; copy != NULL && n != NULL; n = n->next) {
		struct node *twin = node_new(copy, n->type, n->work_ns);
		if (twin == NULL) {
			graph_free(copy);
			return NULL;
		}
		twin->block = n->block;
		twin->address = n->address;
		twin->child = n->child;
	}
	return copy;
}

static uint64_t
total_work(const struct graph *graph)
{
	uint64_t total = 0;
	for (const struct node *n = graph->first; n != NULL; n = n->next) {
		total += n->work_ns + (n->child != NULL ? total_work(n->child) : 0);
	}
	return total;
}

cu_result
fake_cuGraphCreate(struct graph **out, unsigned flags)
{
	if (out == NULL || flags != 0) {
		return CU_INVALID_VALUE;
	}
	*out = graph_new();
	return *out != NULL ? CU_OK : CU_OUT_OF_MEMORY;
}

cu_result
fake_cuGraphDestroy(void *handle)
{
	struct graph *graph = graph_checked(handle);
	if (graph == NULL) {
		return CU_INVALID_VALUE;
	}
	graph_free(graph);
	return CU_OK;
}

cu_result
fake_cuGraphClone(struct graph **out, void *handle)
{
	const struct graph *graph = graph_checked(handle);
	if (out == NULL || graph == NULL) {
		return CU_INVALID_VALUE;
	}
	*out = clone(graph);
	return *out != NULL ? CU_OK : CU_OUT_OF_MEMORY;
}

cu_result
fake_cuGraphInstantiateWithFlags(struct graph_exec **out, void *handle, unsigned long long flags)
{
	const struct graph *graph = graph_checked(handle);
	if (out == NULL || graph == NULL) {
		return CU_INVALID_VALUE;
	}
	struct graph_exec *exec = calloc(1, sizeof *exec);
	struct graph *copy = exec != NULL ? clone(graph) : NULL;
	if (copy == NULL) {
		free(exec);
		return CU_OUT_OF_MEMORY;
	}
	*exec = (struct graph_exec){
	    .magic = EXEC_MAGIC, .graph = copy, .work_ns = total_work(copy), .flags = flags};
	*out = exec;
	return CU_OK;
}

cu_result
fake_cuGraphInstantiate(struct graph_exec **out, void *handle, void **bad_node, char *log,
			size_t room)
{
	if (bad_node != NULL) {
		*bad_node = NULL;
	}
	if (log != NULL && room > 0) {
		log[0] = '\0';
	}
	return fake_cuGraphInstantiateWithFlags(out, handle, 0);
}

cu_result
fake_cuGraphInstantiate_v2(struct graph_exec **out, void *handle, void **bad_node, char *log,
			   size_t room)
{
	return fake_cuGraphInstantiate(out, handle, bad_node, log, room);
}

cu_result
fake_cuGraphUpload(void *handle, void *stream_handle)
{
	const struct graph_exec *exec = exec_checked(handle);
	if (exec == NULL || stream_checked(stream_handle) == NULL) {
		return exec == NULL ? CU_INVALID_VALUE : CU_INVALID_HANDLE;
	}
	return graph_memory_map(exec->graph);
}

cu_result
fake_cuGraphInstantiateWithParams(struct graph_exec **out, void *handle,
				  struct instantiate_parameters *parameters)
{
	if (parameters == NULL) {
		return CU_INVALID_VALUE;
	}
	parameters->bad_node = NULL;
	parameters->result = 0;
	cu_result result = fake_cuGraphInstantiateWithFlags(out, handle, parameters->flags);
	bool upload = result == CU_OK && (parameters->flags & 2) != 0;
	return upload ? fake_cuGraphUpload(*out, parameters->upload_stream) : result;
}

cu_result
fake_cuGraphLaunch(void *handle, void *stream_handle)
{
	const struct graph_exec *exec = exec_checked(handle);
	struct stream *stream = stream_checked(stream_handle);
	if (exec == NULL || stream == NULL) {
		return exec == NULL
			   ? CU_INVALID_VALUE
			   : (context_current() == NULL ? CU_INVALID_CONTEXT : CU_INVALID_HANDLE);
	}
	cu_result result = graph_memory_map(exec->graph);
	if (result == CU_OK) {
		result = stream_work(stream, exec->work_ns);
	}
	if (result == CU_OK && stream->capture == NULL) {
		graph_memory_ran(exec->graph);
	}
	return result;
}

cu_result
fake_cuGraphExecDestroy(void *handle)
{
	struct graph_exec *exec = exec_checked(handle);
	if (exec == NULL) {
		return CU_INVALID_VALUE;
	}
	graph_free(exec->graph);
	exec->magic = 0;
	free(exec);
	return CU_OK;
}

cu_result
fake_cuGraphExecGetFlags(void *handle, uint64_t *flags)
{
	const struct graph_exec *exec = exec_checked(handle);
	if (exec == NULL || flags == NULL) {
		return CU_INVALID_VALUE;
	}
	*flags = exec->flags;
	return CU_OK;
}

/* Topology must not change: the same number of nodes, of the same types. */
cu_result
fake_cuGraphExecUpdate_v2(void *handle, void *graph_handle, struct update_result *out)
{
	struct graph_exec *exec = exec_checked(handle);
	const struct graph *graph = graph_checked(graph_handle);
	if (exec == NULL || graph == NULL || out == NULL) {
		return CU_INVALID_VALUE;
	}
	*out = (struct update_result){0, NULL, NULL};
	struct node *mine = exec->graph->first;
	const struct node *theirs = graph->first;
	for (; mine != NULL && theirs != NULL && mine->type == theirs->type;
	     mine = mine->next, theirs = theirs->next) {
		mine->work_ns = theirs->work_ns;
	}
	if (mine != NULL || theirs != NULL) {
		out->result = 2; /* topology changed */
		return 910;      /* CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE */
	}
	exec->work_ns = total_work(exec->graph);
	return CU_OK;
}

cu_result
fake_cuGraphExecUpdate(void *handle, void *graph_handle, void **bad_node, int *result)
{
	struct update_result full;
	cu_result code = fake_cuGraphExecUpdate_v2(handle, graph_handle, &full);
	if (bad_node != NULL) {
		*bad_node = NULL;
	}
	if (result != NULL) {
		*result = code == CU_OK ? 0 : 2;
	}
	return code;
}

/* The n-th node of the executable stands for the n-th of the graph it came from. */
struct node *
exec_twin(void *exec_handle, const struct node *node)
{
	struct graph_exec *exec = exec_checked(exec_handle);
	struct node *twin = exec != NULL ? exec->graph->first : NULL;
	for (const struct node *n = node->graph->first; n != NULL && n != node && twin != NULL;
	     n = n->next) {
		twin = twin->next;
	}
	return twin;
}

void
exec_changed(void *exec_handle)
{
	struct graph_exec *exec = exec_checked(exec_handle);
	exec->work_ns = total_work(exec->graph);
}
