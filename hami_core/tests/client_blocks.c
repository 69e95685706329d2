#include "client_blocks.h"

#include <string.h>

cu_result cuMemAddressReserve(cu_deviceptr *address, size_t bytes, size_t align, cu_deviceptr hint,
			      unsigned long long f);
cu_result cuMemAddressFree(cu_deviceptr address, size_t bytes);
cu_result cuStreamSynchronize(cu_stream stream);

static int
alloc_vmm(struct held *block, cu_device device)
{
	size_t bytes = block->bytes;
	struct cu_allocation_prop prop = {.type = CU_ALLOCATION_PINNED,
					  .location = {CU_LOCATION_DEVICE, device}};
	cu_handle handle;
	int result = cuMemCreate(&handle, bytes, &prop, 0);
	block->handle = handle;
	if (result == CU_OK) {
		cuMemAddressReserve(&block->address, bytes, 0, 0, 0);
		result = cuMemMap(block->address, bytes, 0, handle, 0);
		cuMemRelease(handle);
	}
	return result;
}

static int
alloc_array(struct held *block)
{
	const char *kind = block->kind;
	size_t bytes = block->bytes;
	cu_array array = NULL;
	cu_mipmap mipmap = NULL;
	int result = CU_INVALID_VALUE;
	if (strcmp(kind, "array") == 0) {
		struct cu_array_descriptor d = {
		    .width = 4096, .height = bytes / 16384, .format = 0x20, .channels = 1};
		result = cuArrayCreate_v2(&array, &d);
	} else if (strcmp(kind, "array3d") == 0) {
		struct cu_array3d_descriptor d = {.width = 1024,
						  .height = 256,
						  .depth = bytes / 1048576,
						  .format = 0x20,
						  .channels = 1};
		result = cuArray3DCreate_v2(&array, &d);
	} else if (strcmp(kind, "mipmap") == 0) {
		struct cu_array3d_descriptor d = {.width = 16384,
						  .height = bytes / 65536,
						  .depth = 0,
						  .format = 0x20,
						  .channels = 1};
		result = cuMipmappedArrayCreate(&mipmap, &d, 3);
		array = (cu_array)mipmap;
	}
	block->handle = (uint64_t)(uintptr_t)array;
	return result;
}

static int
alloc_from_own_pool(struct held *block, cu_device device)
{
	static cu_pool own_pool;
	struct cu_pool_props props = {.allocation_type = 1,
				      .location = {CU_LOCATION_DEVICE, device}};
	int result = own_pool == NULL ? cuMemPoolCreate(&own_pool, &props) : CU_OK;
	return result != CU_OK
		   ? result
		   : cuMemAllocFromPoolAsync(&block->address, block->bytes, own_pool, NULL);
}

int
block_alloc(struct held *block, cu_device device)
{
	const char *kind = block->kind;
	size_t bytes = block->bytes;
	size_t pitch;
	if (strcmp(kind, "plain") == 0) {
		return cuMemAlloc_v2(&block->address, bytes);
	}
	if (strcmp(kind, "pitch") == 0) {
		return cuMemAllocPitch_v2(&block->address, &pitch, bytes / 1024, 1024, 4);
	}
	if (strcmp(kind, "managed") == 0) {
		return cuMemAllocManaged(&block->address, bytes, CU_ATTACH_GLOBAL);
	}
	if (strcmp(kind, "async") == 0) {
		return cuMemAllocAsync(&block->address, bytes, NULL);
	}
	if (strcmp(kind, "pool") == 0) {
		return alloc_from_own_pool(block, device);
	}
	if (strcmp(kind, "vmm") == 0) {
		return alloc_vmm(block, device);
	}
	return alloc_array(block);
}

int
block_free(const struct held *block)
{
	if (strcmp(block->kind, "vmm") == 0) {
		int result = cuMemUnmap(block->address, block->bytes);
		cuMemAddressFree(block->address, block->bytes);
		return result;
	}
	if (strncmp(block->kind, "array", 5) == 0) {
		return cuArrayDestroy((cu_array)(uintptr_t)block->handle);
	}
	if (strcmp(block->kind, "mipmap") == 0) {
		return cuMipmappedArrayDestroy((cu_mipmap)(uintptr_t)block->handle);
	}
	if (strcmp(block->kind, "async") == 0 || strcmp(block->kind, "pool") == 0) {
		int result = cuMemFreeAsync(block->address, NULL);
		cuStreamSynchronize(NULL);
		return result;
	}
	return cuMemFree_v2(block->address);
}
