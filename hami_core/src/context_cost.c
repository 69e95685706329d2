/* Asks NVML, which needs no context: for this process's own memory if NVML knows the process by the
 * pid that it has in the container, else for the growth of the whole device's use while the context
 * was made. */
#include "context_cost.h"

#include <unistd.h>

#include "books.h"
#include "driver.h"
#include "nvml_view.h"
#include "quota.h"

#define MAX_COST (1ULL << 30)
#define MAX_PROCESSES 256

static uint64_t
device_used(nvml_device handle)
{
	struct nvml_memory memory = {0, 0, 0};
	if (nvml()->nvmlDeviceGetMemoryInfo == NULL ||
	    nvml()->nvmlDeviceGetMemoryInfo(handle, &memory) != NVML_OK) {
		return 0;
	}
	return memory.used;
}

static uint64_t
own_used(nvml_device handle)
{
	static struct nvml_process list[MAX_PROCESSES];
	unsigned int count = MAX_PROCESSES;
	if (nvml()->nvmlDeviceGetComputeRunningProcesses_v3 == NULL ||
	    nvml()->nvmlDeviceGetComputeRunningProcesses_v3(handle, &count, list) != NVML_OK) {
		return 0;
	}
	for (unsigned int i = 0; i < count && i < MAX_PROCESSES; i++) {
		if (list[i].pid == (unsigned int)getpid()) {
			return list[i].used_bytes;
		}
	}
	return 0;
}

uint64_t
context_cost_known(const struct device *device)
{
	if (device->row == NULL) {
		return 0;
	}
	uint64_t cost = __atomic_load_n(&device->row->context_bytes, __ATOMIC_RELAXED);
	return device->row->context_check == books_check(cost, 0) ? cost : 0;
}

uint64_t
context_cost_before(struct device *device)
{
	nvml_device handle;
	if (!nvml_open(device->uuid, &handle)) {
		return 0;
	}
	uint64_t used = device_used(handle);
	nvml_close();
	return used;
}

uint64_t
context_cost_after(struct device *device, uint64_t before)
{
	nvml_device handle;
	if (!nvml_open(device->uuid, &handle)) {
		return 0;
	}
	uint64_t own = own_used(handle);
	uint64_t after = device_used(handle);
	nvml_close();
	uint64_t held = 0;
	for (unsigned kind = 0; kind < KINDS; kind++) {
		held += quota_held(device, kind);
	}
	uint64_t growth = after > before ? after - before : 0;
	uint64_t cost = own > held ? own - held : growth;
	cost = cost > MAX_COST ? MAX_COST : cost;
	if (cost > 0 && device->row != NULL) {
		__atomic_store_n(&device->row->context_bytes, cost, __ATOMIC_RELAXED);
		__atomic_store_n(&device->row->context_check, books_check(cost, 0),
				 __ATOMIC_RELAXED);
	}
	return cost;
}
