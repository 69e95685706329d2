/* Adding nodes to graphs and asking about them. */
#include <stdlib.h>
#include <string.h>

#include "graph_types.h"
#include "memory.h"
#include "modules.h"

struct node *exec_twin(void *exec_handle, const struct node *node);
void exec_changed(void *exec_handle);

static cu_result
kernel_time(const struct kernel_node *k, bool second_form, uint64_t *work_ns)
{
	const struct function *function = k == NULL ? NULL : function_checked(k->function);
	if (function == NULL && k != NULL && second_form) {
		function = function_checked(k->kernel);
	}
	if (function == NULL) {
		return CU_INVALID_VALUE;
	}
	*work_ns =
	    function_time(function, (uint64_t)k->grid[0] * k->grid[1] * k->grid[2], k->parameters);
	return CU_OK;
}

static cu_result
add(void **out, void *graph_handle, int type, uint64_t work_ns)
{
	struct graph *graph = graph_checked(graph_handle);
	if (out == NULL || graph == NULL) {
		return CU_INVALID_VALUE;
	}
	*out = node_new(graph, type, work_ns);
	return *out != NULL ? CU_OK : CU_OUT_OF_MEMORY;
}

static cu_result
add_kernel(void **out, void *graph, const struct kernel_node *kernel, bool second_form)
{
	uint64_t work_ns = 0;
	cu_result result = kernel_time(kernel, second_form, &work_ns);
	return result == CU_OK ? add(out, graph, NODE_KERNEL, work_ns) : result;
}

cu_result
fake_cuGraphAddKernelNode(void **out, void *graph, const void *after, size_t count,
			  const struct kernel_node *kernel)
{
	(void)after;
	(void)count;
	return add_kernel(out, graph, kernel, false);
}

cu_result
fake_cuGraphAddKernelNode_v2(void **out, void *graph, const void *after, size_t count,
			     const struct kernel_node *kernel)
{
	(void)after;
	(void)count;
	return add_kernel(out, graph, kernel, true);
}

static cu_result
add_allocation(void **out, void *graph, struct allocation_node *wanted)
{
	struct block *block = NULL;
	if (wanted == NULL || graph_checked(graph) == NULL || out == NULL) {
		return CU_INVALID_VALUE;
	}
	cu_result result = graph_memory_new(wanted->pool.location.id, wanted->bytes, &block);
	if (result == CU_OK) {
		result = add(out, graph, NODE_ALLOC, 0);
	}
	if (result == CU_OK) {
		struct node *node = *out;
		node->block = block;
		node->address = block->address;
		wanted->address = block->address;
	}
	return result;
}

cu_result
fake_cuGraphAddMemAllocNode(void **out, void *graph, const void *after, size_t count,
			    struct allocation_node *wanted)
{
	(void)after;
	(void)count;
	return add_allocation(out, graph, wanted);
}

static cu_result
add_free(void **out, void *graph, cu_deviceptr address)
{
	cu_result result = address == 0 ? CU_INVALID_VALUE : add(out, graph, NODE_FREE, 0);
	if (result == CU_OK) {
		((struct node *)*out)->address = address;
	}
	return result;
}

cu_result
fake_cuGraphAddMemFreeNode(void **out, void *graph, const void *after, size_t count,
			   cu_deviceptr address)
{
	(void)after;
	(void)count;
	return add_free(out, graph, address);
}

cu_result
fake_cuGraphAddMemcpyNode(void **out, void *graph, const void *after, size_t count,
			  const void *copy, void *context)
{
	(void)after;
	(void)count;
	(void)context;
	return copy == NULL ? CU_INVALID_VALUE : add(out, graph, NODE_MEMCPY, 0);
}

cu_result
fake_cuGraphAddMemsetNode(void **out, void *graph, const void *after, size_t count,
			  const void *fill, void *context)
{
	(void)after;
	(void)count;
	(void)context;
	return fill == NULL ? CU_INVALID_VALUE : add(out, graph, NODE_MEMSET, 0);
}

cu_result
fake_cuGraphAddHostNode(void **out, void *graph, const void *after, size_t count, const void *host)
{
	(void)after;
	(void)count;
	return host == NULL ? CU_INVALID_VALUE : add(out, graph, NODE_HOST, 0);
}

cu_result
fake_cuGraphAddEmptyNode(void **out, void *graph, const void *after, size_t count)
{
	(void)after;
	(void)count;
	return add(out, graph, NODE_EMPTY, 0);
}

static cu_result
add_child(void **out, void *graph, void *child_handle)
{
	struct graph *child = graph_checked(child_handle);
	cu_result result = child == NULL ? CU_INVALID_VALUE : add(out, graph, NODE_GRAPH, 0);
	if (result == CU_OK) {
		((struct node *)*out)->child = child;
	}
	return result;
}

cu_result
fake_cuGraphAddChildGraphNode(void **out, void *graph, const void *after, size_t count, void *child)
{
	(void)after;
	(void)count;
	return add_child(out, graph, child);
}

cu_result
fake_cuGraphAddEventRecordNode(void **out, void *graph, const void *after, size_t count,
			       void *event)
{
	(void)after;
	(void)count;
	return event == NULL ? CU_INVALID_VALUE : add(out, graph, NODE_EVENT_RECORD, 0);
}

cu_result
fake_cuGraphAddEventWaitNode(void **out, void *graph, const void *after, size_t count, void *event)
{
	(void)after;
	(void)count;
	return event == NULL ? CU_INVALID_VALUE : add(out, graph, NODE_EVENT_WAIT, 0);
}

static cu_result
add_any(void **out, void *graph, struct any_node *node)
{
	if (node == NULL) {
		return CU_INVALID_VALUE;
	}
	switch (node->type) {
	case NODE_KERNEL:
		return add_kernel(out, graph, &node->u.kernel, true);
	case NODE_ALLOC:
		return add_allocation(out, graph, &node->u.allocation);
	case NODE_FREE:
		return add_free(out, graph, node->u.freed);
	case NODE_GRAPH:
		return add_child(out, graph, node->u.child);
	case NODE_MEMCPY:
	case NODE_MEMSET:
	case NODE_HOST:
	case NODE_EMPTY:
	case NODE_EVENT_WAIT:
	case NODE_EVENT_RECORD:
		return add(out, graph, node->type, 0);
	default:
		return CU_NOT_SUPPORTED;
	}
}

cu_result
fake_cuGraphAddNode(void **out, void *graph, const void *after, size_t count, struct any_node *node)
{
	(void)after;
	(void)count;
	return add_any(out, graph, node);
}

cu_result
fake_cuGraphAddNode_v2(void **out, void *graph, const void *after, const void *edges, size_t count,
		       struct any_node *node)
{
	(void)after;
	(void)edges;
	(void)count;
	return add_any(out, graph, node);
}

cu_result
fake_cuGraphAddNode_v3(void **out, void *graph, const void *after, const void *edges, size_t count,
		       struct any_node *node)
{
	return fake_cuGraphAddNode_v2(out, graph, after, edges, count, node);
}

static cu_result
set_kernel(struct node *node, const struct kernel_node *kernel, bool second_form)
{
	if (node == NULL || node->type != NODE_KERNEL) {
		return CU_INVALID_VALUE;
	}
	return kernel_time(kernel, second_form, &node->work_ns);
}

cu_result
fake_cuGraphKernelNodeSetParams_v2(void *node, const struct kernel_node *kernel)
{
	return set_kernel(node_checked(node), kernel, true);
}

cu_result
fake_cuGraphKernelNodeSetParams(void *node, const struct kernel_node *kernel)
{
	return set_kernel(node_checked(node), kernel, false);
}

static cu_result
set_kernel_in(void *exec, void *handle, const struct kernel_node *kernel, bool second_form)
{
	const struct node *node = node_checked(handle);
	cu_result result =
	    set_kernel(node != NULL ? exec_twin(exec, node) : NULL, kernel, second_form);
	if (result == CU_OK) {
		exec_changed(exec);
	}
	return result;
}

cu_result
fake_cuGraphExecKernelNodeSetParams(void *exec, void *node, const struct kernel_node *kernel)
{
	return set_kernel_in(exec, node, kernel, false);
}

cu_result
fake_cuGraphExecKernelNodeSetParams_v2(void *exec, void *node, const struct kernel_node *kernel)
{
	return set_kernel_in(exec, node, kernel, true);
}

cu_result
fake_cuGraphNodeGetType(void *handle, int *type)
{
	const struct node *node = node_checked(handle);
	if (node == NULL || type == NULL) {
		return CU_INVALID_VALUE;
	}
	*type = node->type;
	return CU_OK;
}

cu_result
fake_cuGraphGetNodes(void *handle, void **out, size_t *count)
{
	const struct graph *graph = graph_checked(handle);
	if (graph == NULL || count == NULL) {
		return CU_INVALID_VALUE;
	}
	size_t room = out != NULL ? *count : 0;
	size_t written = 0;
	for (struct node *n = graph->first; n != NULL && written < room; n = n->next) {
		out[written++] = n;
	}
	*count = out != NULL ? written : graph->count;
	return CU_OK;
}

cu_result
fake_cuGraphMemAllocNodeGetParams(void *handle, struct allocation_node *out)
{
	const struct node *node = node_checked(handle);
	if (node == NULL || node->type != NODE_ALLOC || out == NULL) {
		return CU_INVALID_VALUE;
	}
	memset(out, 0, sizeof *out);
	out->pool.type = 1;
	out->pool.location = (struct location){1, node->block->device};
	out->bytes = node->block->bytes;
	out->address = node->address;
	return CU_OK;
}

cu_result
fake_cuGraphMemFreeNodeGetParams(void *handle, cu_deviceptr *out)
{
	const struct node *node = node_checked(handle);
	if (node == NULL || node->type != NODE_FREE || out == NULL) {
		return CU_INVALID_VALUE;
	}
	*out = node->address;
	return CU_OK;
}

cu_result
fake_cuGraphDestroyNode(void *handle)
{
	struct node *node = node_checked(handle);
	if (node == NULL) {
		return CU_INVALID_VALUE;
	}
	struct graph *graph = node->graph;
	struct node *before = NULL;
	for (struct node *n = graph->first; n != node; n = n->next) {
		before = n;
	}
	if (before != NULL) {
		before->next = node->next;
	} else {
		graph->first = node->next;
	}
	graph->last = graph->last == node ? before : graph->last;
	graph->count--;
	node->magic = 0;
	free(node);
	return CU_OK;
}

/* The order of nodes is that of their creation here; dependencies are accepted and kept by it. */
cu_result
fake_cuGraphAddDependencies(void *graph, const void *from, const void *to, size_t count)
{
	return graph_checked(graph) != NULL && ((from != NULL && to != NULL) || count == 0)
		   ? CU_OK
		   : CU_INVALID_VALUE;
}

cu_result
fake_cuGraphAddDependencies_v2(void *graph, const void *from, const void *to, const void *edges,
			       size_t count)
{
	(void)edges;
	return fake_cuGraphAddDependencies(graph, from, to, count);
}
