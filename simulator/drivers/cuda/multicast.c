/* Physical memory that is in use without a mapping of its own: bound to a multicast object, or
 * placed in a sparse array. */
#include <stdlib.h>
#include <string.h>

#include "memory.h"

enum { OPERATION_MAP = 1, OPERATION_UNMAP = 2 };

struct multicast_properties {
	unsigned devices;
	size_t bytes;
	unsigned long long handle_types, flags;
};

/* CUarrayMapInfo */
struct array_map {
	int resource_type;
	void *resource;
	int subresource_type;
	uint64_t subresource[4];
	int operation, handle_type;
	cu_mem_handle handle;
	unsigned long long offset;
	unsigned device_mask, flags, reserved[2];
};

/* Where a piece of memory is in use: an object and a place in it. */
struct use {
	uint64_t object;
	uint64_t place[4];
	cu_mem_handle handle;
	struct use *next;
};

static struct use *uses;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static bool
begin_use(uint64_t object, const uint64_t place[4], cu_mem_handle handle)
{
	struct use *use = calloc(1, sizeof *use);
	if (use == NULL || !allocation_use(handle)) {
		free(use);
		return false;
	}
	*use = (struct use){.object = object, .handle = handle, .next = uses};
	memcpy(use->place, place, sizeof use->place);
	uses = use;
	return true;
}

static bool
end_use(uint64_t object, const uint64_t place[4])
{
	for (struct use **at = &uses; *at != NULL; at = &(*at)->next) {
		struct use *use = *at;
		if (use->object == object && memcmp(use->place, place, sizeof use->place) == 0) {
			*at = use->next;
			allocation_unuse(use->handle);
			free(use);
			return true;
		}
	}
	return false;
}

cu_result
fake_cuMulticastGetGranularity(size_t *out, const struct multicast_properties *properties,
			       int option)
{
	if (out == NULL || properties == NULL || option < 0 || option > 1) {
		return CU_INVALID_VALUE;
	}
	*out = 2U << 20;
	return CU_OK;
}

cu_result
fake_cuMulticastCreate(cu_mem_handle *out, const struct multicast_properties *properties)
{
	static uint64_t last = 0x4d43000000000000ULL;
	if (out == NULL || properties == NULL || properties->devices == 0 ||
	    properties->bytes == 0) {
		return CU_INVALID_VALUE;
	}
	*out = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
	return CU_OK;
}

cu_result
fake_cuMulticastAddDevice(cu_mem_handle multicast, int device)
{
	return multicast >> 48 == 0x4d43 && gpu_at(device) != NULL ? CU_OK : CU_INVALID_VALUE;
}

cu_result
fake_cuMulticastBindMem(cu_mem_handle multicast, size_t at, cu_mem_handle handle, size_t offset,
			size_t bytes, unsigned long long flags)
{
	(void)offset;
	const uint64_t place[4] = {at, 0, 0, 0};
	if (multicast >> 48 != 0x4d43 || bytes == 0 || flags != 0) {
		return CU_INVALID_VALUE;
	}
	pthread_mutex_lock(&mutex);
	bool good = begin_use(multicast, place, handle);
	pthread_mutex_unlock(&mutex);
	return good ? CU_OK : CU_INVALID_VALUE;
}

cu_result
fake_cuMulticastBindMem_v2(cu_mem_handle multicast, int device, size_t at, cu_mem_handle handle,
			   size_t offset, size_t bytes, unsigned long long flags)
{
	return gpu_at(device) == NULL
		   ? CU_INVALID_DEVICE
		   : fake_cuMulticastBindMem(multicast, at, handle, offset, bytes, flags);
}

cu_result
fake_cuMulticastUnbind(cu_mem_handle multicast, int device, size_t at, size_t bytes)
{
	(void)device, (void)bytes;
	const uint64_t place[4] = {at, 0, 0, 0};
	pthread_mutex_lock(&mutex);
	bool good = end_use(multicast, place);
	pthread_mutex_unlock(&mutex);
	return good ? CU_OK : CU_INVALID_VALUE;
}

/* Happens at once, whatever the stream. */
cu_result
fake_cuMemMapArrayAsync(struct array_map *list, unsigned count, void *stream)
{
	(void)stream;
	cu_result result = list == NULL ? CU_INVALID_VALUE : CU_OK;
	pthread_mutex_lock(&mutex);
	for (unsigned i = 0; i < count && result == CU_OK; i++) {
		uint64_t object = (uint64_t)(uintptr_t)list[i].resource;
		bool good = list[i].operation == OPERATION_MAP
				? begin_use(object, list[i].subresource, list[i].handle)
				: list[i].operation == OPERATION_UNMAP &&
				      end_use(object, list[i].subresource);
		result = good ? CU_OK : CU_INVALID_VALUE;
	}
	pthread_mutex_unlock(&mutex);
	return result;
}
