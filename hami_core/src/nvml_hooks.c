/* What NVML tells the container: its own memory share, its own processes under the pids that it
 * knows them by.
 *
 * A device that is not limited is answered by the real NVML. Errors of the real NVML are passed on
 * unchanged.
 */
#include "devices.h"
#include "driver.h"
#include "hooks.h"
#include "nvml_view.h"
#include "process.h"
#include "quota.h"

struct share {
	unsigned long long total, used, free;
};

static struct share
share_of(struct device *device, unsigned long long physical_total, unsigned long long physical_free)
{
	struct quota_view view = quota_view(device);
	struct share share = {view.limit_bytes < physical_total ? view.limit_bytes : physical_total,
			      view.used_bytes, 0};
	share.used = share.used < share.total ? share.used : share.total;
	share.free = share.total - share.used;
	share.free = share.free < physical_free ? share.free : physical_free;
	return share;
}

EXPORTED nvml_result
nvmlDeviceGetMemoryInfo(nvml_device handle, struct nvml_memory *memory)
{
	if (nvml()->nvmlDeviceGetMemoryInfo == NULL) {
		return NVML_FUNCTION_NOT_FOUND;
	}
	nvml_result result = nvml()->nvmlDeviceGetMemoryInfo(handle, memory);
	struct device device;
	if (result == NVML_OK && nvml_limited_device(handle, &device)) {
		struct share share = share_of(&device, memory->total, memory->free);
		*memory = (struct nvml_memory){share.total, share.total - share.used, share.used};
	}
	return result;
}

EXPORTED nvml_result
nvmlDeviceGetMemoryInfo_v2(nvml_device handle, struct nvml_memory_v2 *memory)
{
	if (nvml()->nvmlDeviceGetMemoryInfo_v2 == NULL) {
		return NVML_FUNCTION_NOT_FOUND;
	}
	nvml_result result = nvml()->nvmlDeviceGetMemoryInfo_v2(handle, memory);
	struct device device;
	if (result == NVML_OK && nvml_limited_device(handle, &device)) {
		struct share share = share_of(&device, memory->total, memory->free);
		memory->total = share.total;
		memory->reserved = 0;
		memory->used = share.used;
		memory->free = share.total - share.used;
	}
	return result;
}

/* Visit the live processes of the container that hold memory on a device. Returns how many. */
static unsigned int
each_process(const struct device *device,
	     void (*visit)(void *list, unsigned int at, uint32_t pid, uint64_t bytes), void *list,
	     unsigned int capacity)
{
	unsigned int count = 0;
	const struct state_file *file = state_file();
	state_reap();
	for (uint32_t i = 0; i < state_slot_count(); i++) {
		uint64_t owner = __atomic_load_n(&file->slots[i].owner, __ATOMIC_ACQUIRE);
		uint64_t bytes =
		    owner == 0 ? 0 : state_slot_bytes(&file->slots[i], device->row_index);
		if (bytes == 0) {
			continue;
		}
		if (count < capacity) {
			visit(list, count, process_owner_pid(owner), bytes);
		}
		count++;
	}
	return count;
}

static void
visit_v1(void *list, unsigned int at, uint32_t pid, uint64_t bytes)
{
	((struct nvml_process_v1 *)list)[at] = (struct nvml_process_v1){pid, bytes};
}

static void
visit_v2(void *list, unsigned int at, uint32_t pid, uint64_t bytes)
{
	((struct nvml_process *)list)[at] =
	    (struct nvml_process){pid, bytes, 0xffffffffU, 0xffffffffU};
}

static void
visit_detail(void *list, unsigned int at, uint32_t pid, uint64_t bytes)
{
	((struct nvml_process_detail *)list)[at] =
	    (struct nvml_process_detail){pid, bytes, 0xffffffffU, 0xffffffffU, 0};
}

/* NVML's convention: count is capacity in, number out; too small a list is an error that tells the
 * number. */
static nvml_result
list_processes(const struct device *device, unsigned int *count, void *list,
	       void (*visit)(void *, unsigned int, uint32_t, uint64_t))
{
	unsigned int capacity = list == NULL ? 0 : *count;
	*count = each_process(device, visit, list, capacity);
	return *count > capacity ? NVML_INSUFFICIENT_SIZE : NVML_OK;
}

static nvml_result
list_none(unsigned int *count)
{
	*count = 0;
	return NVML_OK;
}

EXPORTED nvml_result
nvmlDeviceGetComputeRunningProcesses(nvml_device handle, unsigned int *count,
				     struct nvml_process_v1 *list)
{
	struct device device;
	if (count != NULL && nvml_limited_device(handle, &device)) {
		return list_processes(&device, count, list, visit_v1);
	}
	return nvml()->nvmlDeviceGetComputeRunningProcesses == NULL
		   ? NVML_FUNCTION_NOT_FOUND
		   : nvml()->nvmlDeviceGetComputeRunningProcesses(handle, count, list);
}

EXPORTED nvml_result
nvmlDeviceGetComputeRunningProcesses_v2(nvml_device handle, unsigned int *count,
					struct nvml_process *list)
{
	struct device device;
	if (count != NULL && nvml_limited_device(handle, &device)) {
		return list_processes(&device, count, list, visit_v2);
	}
	return nvml()->nvmlDeviceGetComputeRunningProcesses_v2 == NULL
		   ? NVML_FUNCTION_NOT_FOUND
		   : nvml()->nvmlDeviceGetComputeRunningProcesses_v2(handle, count, list);
}

EXPORTED nvml_result
nvmlDeviceGetComputeRunningProcesses_v3(nvml_device handle, unsigned int *count,
					struct nvml_process *list)
{
	struct device device;
	if (count != NULL && nvml_limited_device(handle, &device)) {
		return list_processes(&device, count, list, visit_v2);
	}
	return nvml()->nvmlDeviceGetComputeRunningProcesses_v3 == NULL
		   ? NVML_FUNCTION_NOT_FOUND
		   : nvml()->nvmlDeviceGetComputeRunningProcesses_v3(handle, count, list);
}

EXPORTED nvml_result
nvmlDeviceGetRunningProcessDetailList(nvml_device handle, struct nvml_process_detail_list *list)
{
	struct device device;
	if (list != NULL && nvml_limited_device(handle, &device)) {
		return list_processes(&device, &list->count, list->entries, visit_detail);
	}
	return nvml()->nvmlDeviceGetRunningProcessDetailList == NULL
		   ? NVML_FUNCTION_NOT_FOUND
		   : nvml()->nvmlDeviceGetRunningProcessDetailList(handle, list);
}

EXPORTED nvml_result
nvmlDeviceGetGraphicsRunningProcesses(nvml_device handle, unsigned int *count,
				      struct nvml_process_v1 *list)
{
	struct device device;
	if (count != NULL && nvml_limited_device(handle, &device)) {
		return list_none(count);
	}
	return nvml()->nvmlDeviceGetGraphicsRunningProcesses == NULL
		   ? NVML_FUNCTION_NOT_FOUND
		   : nvml()->nvmlDeviceGetGraphicsRunningProcesses(handle, count, list);
}

EXPORTED nvml_result
nvmlDeviceGetGraphicsRunningProcesses_v2(nvml_device handle, unsigned int *count,
					 struct nvml_process *list)
{
	struct device device;
	if (count != NULL && nvml_limited_device(handle, &device)) {
		return list_none(count);
	}
	return nvml()->nvmlDeviceGetGraphicsRunningProcesses_v2 == NULL
		   ? NVML_FUNCTION_NOT_FOUND
		   : nvml()->nvmlDeviceGetGraphicsRunningProcesses_v2(handle, count, list);
}

EXPORTED nvml_result
nvmlDeviceGetGraphicsRunningProcesses_v3(nvml_device handle, unsigned int *count,
					 struct nvml_process *list)
{
	struct device device;
	if (count != NULL && nvml_limited_device(handle, &device)) {
		return list_none(count);
	}
	return nvml()->nvmlDeviceGetGraphicsRunningProcesses_v3 == NULL
		   ? NVML_FUNCTION_NOT_FOUND
		   : nvml()->nvmlDeviceGetGraphicsRunningProcesses_v3(handle, count, list);
}

EXPORTED nvml_result
nvmlDeviceGetMPSComputeRunningProcesses(nvml_device handle, unsigned int *count,
					struct nvml_process_v1 *list)
{
	struct device device;
	if (count != NULL && nvml_limited_device(handle, &device)) {
		return list_none(count);
	}
	return nvml()->nvmlDeviceGetMPSComputeRunningProcesses == NULL
		   ? NVML_FUNCTION_NOT_FOUND
		   : nvml()->nvmlDeviceGetMPSComputeRunningProcesses(handle, count, list);
}

EXPORTED nvml_result
nvmlDeviceGetMPSComputeRunningProcesses_v2(nvml_device handle, unsigned int *count,
					   struct nvml_process *list)
{
	struct device device;
	if (count != NULL && nvml_limited_device(handle, &device)) {
		return list_none(count);
	}
	return nvml()->nvmlDeviceGetMPSComputeRunningProcesses_v2 == NULL
		   ? NVML_FUNCTION_NOT_FOUND
		   : nvml()->nvmlDeviceGetMPSComputeRunningProcesses_v2(handle, count, list);
}

EXPORTED nvml_result
nvmlDeviceGetMPSComputeRunningProcesses_v3(nvml_device handle, unsigned int *count,
					   struct nvml_process *list)
{
	struct device device;
	if (count != NULL && nvml_limited_device(handle, &device)) {
		return list_none(count);
	}
	return nvml()->nvmlDeviceGetMPSComputeRunningProcesses_v3 == NULL
		   ? NVML_FUNCTION_NOT_FOUND
		   : nvml()->nvmlDeviceGetMPSComputeRunningProcesses_v3(handle, count, list);
}
