/* Memory of graph nodes. Addresses are fixed when the node is made; physical memory comes with the
 * first launch or upload, stays reserved for the device, is shared by graphs that do not run at
 * once, and leaves by cuDeviceGraphMemTrim. */
#include <string.h>

#include "graph_types.h"
#include "memory.h"

static const uint64_t STEP = 32ULL << 20;

static struct {
	uint64_t used, used_high, reserved, reserved_high;
} pools[MAX_CARDS];

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static uint64_t
node_size(uint64_t bytes)
{
	return (bytes + 511) / 512 * 512;
}

cu_result
graph_memory_new(int device, uint64_t bytes, struct block **out)
{
	if (bytes == 0 || gpu_at(device) == NULL) {
		return CU_INVALID_VALUE;
	}
	blocks_lock();
	*out = block_new(device, BLOCK_POOLED, bytes);
	if (*out != NULL) {
		(*out)->kind = KIND_GRAPH;
		(*out)->pool = NULL;
	}
	blocks_unlock();
	return *out != NULL ? CU_OK : CU_OUT_OF_MEMORY;
}

/* Bytes that must be there while the graph runs, on one device: its own nodes and what earlier
 * launches still hold. */
static uint64_t
needed(const struct graph *graph, int device)
{
	uint64_t bytes = pools[device].used;
	for (const struct node *n = graph->first; n != NULL; n = n->next) {
		if (n->type == NODE_ALLOC && n->block->device == device && n->block->flags == 0) {
			bytes += node_size(n->block->bytes);
		}
	}
	return bytes;
}

cu_result
graph_memory_map(const struct graph *graph)
{
	cu_result result = CU_OK;
	pthread_mutex_lock(&mutex);
	for (unsigned d = 0; d < gpu_count() && result == CU_OK; d++) {
		uint64_t need = needed(graph, (int)d);
		if (need <= pools[d].reserved) {
			continue;
		}
		uint64_t step = (need - pools[d].reserved + STEP - 1) / STEP * STEP;
		if (!ledger_charge(gpu_at((int)d)->domain, KIND_GRAPH, step)) {
			step = memory_physical(need - pools[d].reserved);
			result = ledger_charge(gpu_at((int)d)->domain, KIND_GRAPH, step)
				     ? CU_OK
				     : CU_OUT_OF_MEMORY;
		}
		if (result == CU_OK) {
			pools[d].reserved += step;
			pools[d].reserved_high = pools[d].reserved > pools[d].reserved_high
						     ? pools[d].reserved
						     : pools[d].reserved_high;
		}
	}
	pthread_mutex_unlock(&mutex);
	return result;
}

static bool
freed_within(const struct graph *graph, cu_deviceptr address)
{
	for (const struct node *n = graph->first; n != NULL; n = n->next) {
		if (n->type == NODE_FREE && n->address == address) {
			return true;
		}
	}
	return false;
}

/* flags 1 on a block: in use since a launch that did not free it. */
void
graph_memory_ran(const struct graph *graph)
{
	pthread_mutex_lock(&mutex);
	for (const struct node *n = graph->first; n != NULL; n = n->next) {
		if (n->type != NODE_ALLOC || n->block->flags != 0) {
			continue;
		}
		int device = n->block->device;
		uint64_t peak = pools[device].used + node_size(n->block->bytes);
		pools[device].used_high =
		    peak > pools[device].used_high ? peak : pools[device].used_high;
		if (!freed_within(graph, n->address)) {
			n->block->flags = 1;
			pools[device].used = peak;
		}
	}
	pthread_mutex_unlock(&mutex);
}

/* The address stays with its node; only its memory is free again. */
void
graph_memory_freed(struct block *block)
{
	pthread_mutex_lock(&mutex);
	if (block->flags == 1) {
		block->flags = 0;
		pools[block->device].used -= node_size(block->bytes);
	}
	pthread_mutex_unlock(&mutex);
}

cu_result
fake_cuDeviceGraphMemTrim(cu_device device)
{
	if (gpu_at(device) == NULL) {
		return CU_INVALID_DEVICE;
	}
	pthread_mutex_lock(&mutex);
	uint64_t keep = memory_physical(pools[device].used);
	if (pools[device].reserved > keep) {
		ledger_refund(gpu_at(device)->domain, KIND_GRAPH, pools[device].reserved - keep);
		pools[device].reserved = keep;
	}
	pthread_mutex_unlock(&mutex);
	return CU_OK;
}

/* Attributes: 0 used, 1 its peak, 2 reserved, 3 its peak. */
cu_result
fake_cuDeviceGetGraphMemAttribute(cu_device device, int attribute, void *value)
{
	if (gpu_at(device) == NULL || value == NULL || attribute < 0 || attribute > 3) {
		return gpu_at(device) == NULL ? CU_INVALID_DEVICE : CU_INVALID_VALUE;
	}
	const uint64_t figures[] = {pools[device].used, pools[device].used_high,
				    pools[device].reserved, pools[device].reserved_high};
	memcpy(value, &figures[attribute], sizeof figures[0]);
	return CU_OK;
}

cu_result
fake_cuDeviceSetGraphMemAttribute(cu_device device, int attribute, const void *value)
{
	uint64_t wanted = 1;
	if (gpu_at(device) == NULL || value == NULL) {
		return gpu_at(device) == NULL ? CU_INVALID_DEVICE : CU_INVALID_VALUE;
	}
	memcpy(&wanted, value, sizeof wanted);
	if (wanted != 0 || (attribute != 1 && attribute != 3)) {
		return CU_INVALID_VALUE; /* only the peaks can be reset */
	}
	if (attribute == 1) {
		pools[device].used_high = pools[device].used;
	} else {
		pools[device].reserved_high = pools[device].reserved;
	}
	return CU_OK;
}
