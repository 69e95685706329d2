/* Memory of a card, as NVML shows it. */
#include "nvml.h"

/* Version 1 counts the driver's own reserve as used. */
nvml_result
fake_nvmlDeviceGetMemoryInfo(void *device, struct nvml_memory *out)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check(device, "nvmlDeviceGetMemoryInfo", &handle);
	if (result != NVML_OK || out == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	uint32_t domain = handle_domain(handle);
	uint64_t reserved =
	    handle->gi == 0 ? handle_card(handle)->reserved_bytes : domain_total(domain) / 128;
	out->total = domain_total(domain);
	out->used = domain_used(domain) + reserved;
	out->free = out->used < out->total ? out->total - out->used : 0;
	return NVML_OK;
}

nvml_result
fake_nvmlDeviceGetMemoryInfo_v2(void *device, struct nvml_memory_v2 *out)
{
	struct nvml_memory plain;
	if (out == NULL || out->version != NVML_VERSION(struct nvml_memory_v2, 2)) {
		return out == NULL ? NVML_INVALID_ARGUMENT : NVML_ARGUMENT_VERSION_MISMATCH;
	}
	nvml_result result = fake_nvmlDeviceGetMemoryInfo(device, &plain);
	if (result == NVML_OK) {
		const struct handle *handle = device;
		uint64_t reserved =
		    handle->gi == 0 ? handle_card(handle)->reserved_bytes : plain.total / 128;
		out->total = plain.total;
		out->reserved = reserved;
		out->used = plain.used - reserved;
		out->free = plain.free;
	}
	return result;
}

nvml_result
fake_nvmlDeviceGetBAR1MemoryInfo(void *device, struct nvml_bar1 *out)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check(device, "nvmlDeviceGetBAR1MemoryInfo", &handle);
	if (result != NVML_OK || out == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	out->total = 1ULL << (64 - __builtin_clzll(domain_total(handle_domain(handle)) - 1));
	out->used = handle->gi == 0 ? 1ULL << 20 : 0;
	out->free = out->total - out->used;
	return NVML_OK;
}
