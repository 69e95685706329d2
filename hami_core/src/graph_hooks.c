/* Graphs with memory nodes: each device has one graph pool per process. Instantiation is admitted
 * for the sum of the graph's allocation nodes; the charge follows what the pool has reserved, which
 * grows at upload or first launch.
 */
#include <stdlib.h>

#include "charges.h"
#include "compute.h"
#include "driver.h"
#include "hooks.h"
#include "lock.h"

#define MAX_NODES 65536

static struct lock graph_lock;
static uint64_t graph_charged[MAX_DEVICES];

static void
settle_graph_pool(struct device *device)
{
	uint64_t reserved = 0;
	if (device == NULL || device->row == NULL ||
	    driver()->cuDeviceGetGraphMemAttribute == NULL ||
	    driver()->cuDeviceGetGraphMemAttribute(device->handle, CU_GRAPH_MEM_RESERVED_CURRENT,
						   &reserved) != CU_OK) {
		return;
	}
	lock_acquire(&graph_lock);
	uint64_t *charged = &graph_charged[device_number(device)];
	if (reserved > *charged) {
		quota_add(device, KIND_GRAPH, reserved - *charged);
	} else if (reserved < *charged) {
		quota_refund(device, KIND_GRAPH, *charged - reserved);
	}
	*charged = reserved;
	lock_release(&graph_lock);
}

static uint64_t
node_bytes(cu_graph_node node)
{
	int type = -1;
	struct cu_mem_alloc_node params;
	if (driver()->cuGraphNodeGetType(node, &type) != CU_OK || type != CU_NODE_MEM_ALLOC ||
	    driver()->cuGraphMemAllocNodeGetParams(node, &params) != CU_OK) {
		return 0;
	}
	return round_up(params.bytes, LARGE_UNIT);
}

/* Sum of what the graph's allocation nodes ask for. */
static uint64_t
graph_bytes(cu_graph graph)
{
	size_t count = 0;
	const struct driver_table *real = driver();
	if (real->cuGraphGetNodes == NULL || real->cuGraphNodeGetType == NULL ||
	    real->cuGraphMemAllocNodeGetParams == NULL ||
	    real->cuGraphGetNodes(graph, NULL, &count) != CU_OK || count == 0 ||
	    count > MAX_NODES) {
		return 0;
	}
	cu_graph_node *nodes = calloc(count, sizeof *nodes);
	uint64_t sum = 0;
	if (nodes != NULL && real->cuGraphGetNodes(graph, nodes, &count) == CU_OK) {
		for (size_t i = 0; i < count; i++) {
			sum += node_bytes(nodes[i]);
		}
	}
	free(nodes);
	return sum;
}

struct admission {
	struct device *device;
	uint64_t bytes;
};

/* Hold the quota that the graph will need while the driver builds it. */
static bool
admit(cu_graph graph, struct admission *admission)
{
	*admission = (struct admission){device_current(), 0};
	if (admission->device == NULL || admission->device->row == NULL) {
		return true;
	}
	admission->bytes = graph_bytes(graph);
	return admission->bytes == 0 ||
	       quota_charge(admission->device, KIND_GRAPH, admission->bytes);
}

/* The executable graph keeps its admission until the pool itself shows the memory, or it is
 * destroyed. */
static cu_result
admitted(cu_result result, struct admission *admission, const cu_graph_exec *exec)
{
	if (admission->bytes > 0 && result != CU_OK) {
		quota_refund(admission->device, KIND_GRAPH, admission->bytes);
	} else if (admission->bytes > 0) {
		charge_remember(admission->device, SPACE_GRAPH, (uint64_t)(uintptr_t)*exec,
				KIND_GRAPH, admission->bytes, 0);
	}
	return result;
}

EXPORTED cu_result
cuGraphInstantiate(cu_graph_exec *exec, cu_graph graph, cu_graph_node *error_node, char *log,
		   size_t size)
{
	struct admission admission;
	if (driver()->cuGraphInstantiate == NULL) {
		return CU_NOT_SUPPORTED;
	}
	return !admit(graph, &admission)
		   ? CU_OUT_OF_MEMORY
		   : admitted(driver()->cuGraphInstantiate(exec, graph, error_node, log, size),
			      &admission, exec);
}

EXPORTED cu_result
cuGraphInstantiate_v2(cu_graph_exec *exec, cu_graph graph, cu_graph_node *error_node, char *log,
		      size_t size)
{
	struct admission admission;
	if (driver()->cuGraphInstantiate_v2 == NULL) {
		return CU_NOT_SUPPORTED;
	}
	return !admit(graph, &admission)
		   ? CU_OUT_OF_MEMORY
		   : admitted(driver()->cuGraphInstantiate_v2(exec, graph, error_node, log, size),
			      &admission, exec);
}

EXPORTED cu_result
cuGraphInstantiateWithFlags(cu_graph_exec *exec, cu_graph graph, unsigned long long flags)
{
	struct admission admission;
	if (driver()->cuGraphInstantiateWithFlags == NULL) {
		return CU_NOT_SUPPORTED;
	}
	return !admit(graph, &admission)
		   ? CU_OUT_OF_MEMORY
		   : admitted(driver()->cuGraphInstantiateWithFlags(exec, graph, flags), &admission,
			      exec);
}

EXPORTED cu_result
cuGraphInstantiateWithParams(cu_graph_exec *exec, cu_graph graph, void *params)
{
	struct admission admission;
	if (driver()->cuGraphInstantiateWithParams == NULL) {
		return CU_NOT_SUPPORTED;
	}
	return !admit(graph, &admission)
		   ? CU_OUT_OF_MEMORY
		   : admitted(driver()->cuGraphInstantiateWithParams(exec, graph, params),
			      &admission, exec);
}

EXPORTED cu_result
cuGraphInstantiateWithParams_ptsz(cu_graph_exec *exec, cu_graph graph, void *params)
{
	struct admission admission;
	if (driver()->cuGraphInstantiateWithParams_ptsz == NULL) {
		return CU_NOT_SUPPORTED;
	}
	return !admit(graph, &admission)
		   ? CU_OUT_OF_MEMORY
		   : admitted(driver()->cuGraphInstantiateWithParams_ptsz(exec, graph, params),
			      &admission, exec);
}

/* Memory that the graph needed is in the pool now: replace the admission by the pool's own figure.
 */
void
graph_started(cu_graph_exec exec)
{
	struct block block;
	if (block_take(SPACE_GRAPH, (uint64_t)(uintptr_t)exec, &block)) {
		settle_graph_pool(device_at(block.device));
		charge_forget(&block);
	}
}

EXPORTED cu_result
cuGraphUpload(cu_graph_exec exec, cu_stream stream)
{
	cu_result result = driver()->cuGraphUpload == NULL ? CU_NOT_SUPPORTED
							   : driver()->cuGraphUpload(exec, stream);
	if (result == CU_OK) {
		graph_started(exec);
	}
	return result;
}

EXPORTED cu_result
cuGraphUpload_ptsz(cu_graph_exec exec, cu_stream stream)
{
	cu_result result = driver()->cuGraphUpload_ptsz == NULL
			       ? CU_NOT_SUPPORTED
			       : driver()->cuGraphUpload_ptsz(exec, stream);
	if (result == CU_OK) {
		graph_started(exec);
	}
	return result;
}

EXPORTED cu_result
cuGraphExecDestroy(cu_graph_exec exec)
{
	if (driver()->cuGraphExecDestroy == NULL) {
		return CU_NOT_SUPPORTED;
	}
	struct block block;
	bool known = block_take(SPACE_GRAPH, (uint64_t)(uintptr_t)exec, &block);
	cu_result result = driver()->cuGraphExecDestroy(exec);
	charge_freed(result, known, &block);
	return result;
}

EXPORTED cu_result
cuDeviceGraphMemTrim(cu_device device)
{
	cu_result result = driver()->cuDeviceGraphMemTrim == NULL
			       ? CU_NOT_SUPPORTED
			       : driver()->cuDeviceGraphMemTrim(device);
	if (result == CU_OK) {
		settle_graph_pool(device_of(device));
	}
	return result;
}
