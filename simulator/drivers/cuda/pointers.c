/* What a pointer is; hints for managed memory; memory shared between processes by IPC handles. */
#include <string.h>

#include "memory.h"

enum { TYPE_HOST = 1, TYPE_DEVICE = 2 };

bool host_is_pinned(uint64_t address);

/* A copy of the block's facts, taken under the lock. */
static bool
look_up(cu_deviceptr address, struct block *out)
{
	blocks_lock();
	const struct block *block = block_find(address);
	if (block != NULL) {
		*out = *block;
	}
	blocks_unlock();
	return block != NULL;
}

static void
put_u32(void *data, uint32_t value)
{
	memcpy(data, &value, sizeof value);
}

static void
put_u64(void *data, uint64_t value)
{
	memcpy(data, &value, sizeof value);
}

static cu_result
device_attribute(void *data, int attribute, const struct block *block, cu_deviceptr address)
{
	bool managed = block->kind == KIND_MANAGED;
	switch (attribute) {
	case 1:
		put_u64(data, (uint64_t)(uintptr_t)block->context);
		return CU_OK;
	case 2:
		put_u32(data, TYPE_DEVICE);
		return CU_OK;
	case 3:
		put_u64(data, address);
		return CU_OK;
	case 4:
		put_u64(data, managed ? address : 0);
		return managed ? CU_OK : CU_INVALID_VALUE;
	case 6:
	case 14:
		put_u32(data, 0);
		return CU_OK;
	case 7:
		put_u64(data, block->address);
		return CU_OK;
	case 8:
	case 10:
	case 13:
		memset(data, attribute == 8 ? managed : 1, 1);
		return CU_OK;
	case 9:
		put_u32(data, (uint32_t)block->device);
		return CU_OK;
	case 11:
	case 19:
		put_u64(data, block->address);
		return CU_OK;
	case 12:
	case 18:
		put_u64(data, block->bytes);
		return CU_OK;
	case 16:
		put_u32(data, 3);
		return CU_OK;
	case 17:
		put_u64(data, (uint64_t)(uintptr_t)block->pool);
		return CU_OK;
	default:
		return CU_INVALID_VALUE;
	}
}

static cu_result
host_attribute(void *data, int attribute, cu_deviceptr address)
{
	switch (attribute) {
	case 2:
		put_u32(data, TYPE_HOST);
		return CU_OK;
	case 3:
	case 4:
		put_u64(data, address);
		return CU_OK;
	case 8:
		memset(data, 0, 1);
		return CU_OK;
	case 9:
		put_u32(data, 0);
		return CU_OK;
	default:
		return CU_INVALID_VALUE;
	}
}

cu_result
fake_cuPointerGetAttribute(void *data, int attribute, cu_deviceptr address)
{
	struct block block;
	if (data == NULL) {
		return CU_INVALID_VALUE;
	}
	if (look_up(address, &block)) {
		return device_attribute(data, attribute, &block, address);
	}
	return host_is_pinned(address) ? host_attribute(data, attribute, address)
				       : CU_INVALID_VALUE;
}

/* Unlike the single form, an unknown pointer is no error: its attributes are zero. */
cu_result
fake_cuPointerGetAttributes(unsigned count, const int *attributes, void **data,
			    cu_deviceptr address)
{
	if (attributes == NULL || data == NULL) {
		return CU_INVALID_VALUE;
	}
	for (unsigned i = 0; i < count; i++) {
		if (data[i] != NULL &&
		    fake_cuPointerGetAttribute(data[i], attributes[i], address) != CU_OK) {
			bool narrow = attributes[i] == 2 || attributes[i] == 6 ||
				      attributes[i] == 9 || attributes[i] == 14 ||
				      attributes[i] == 16;
			bool byte =
			    attributes[i] == 8 || attributes[i] == 10 || attributes[i] == 13;
			memset(data[i], 0, byte ? 1 : (narrow ? 4 : 8));
		}
	}
	return CU_OK;
}

cu_result
fake_cuPointerSetAttribute(const void *value, int attribute, cu_deviceptr address)
{
	struct block block;
	return value != NULL && attribute == 6 && look_up(address, &block) ? CU_OK
									   : CU_INVALID_VALUE;
}

static cu_result
managed_range(cu_deviceptr address, size_t bytes)
{
	struct block block;
	bool known = look_up(address, &block) && block.kind == KIND_MANAGED &&
		     bytes <= block.bytes - (address - block.address);
	return known && bytes != 0 ? CU_OK : CU_INVALID_VALUE;
}

cu_result
fake_cuMemAdvise(cu_deviceptr address, size_t bytes, int advice, cu_device device)
{
	(void)device;
	return advice < 1 || advice > 6 ? CU_INVALID_VALUE : managed_range(address, bytes);
}

cu_result
fake_cuMemAdvise_v2(cu_deviceptr address, size_t bytes, int advice, struct location location)
{
	return location.type < 1 ? CU_INVALID_VALUE : fake_cuMemAdvise(address, bytes, advice, 0);
}

cu_result
fake_cuMemPrefetchAsync(cu_deviceptr address, size_t bytes, cu_device device, void *stream)
{
	(void)stream;
	return device != -1 && gpu_at(device) == NULL ? CU_INVALID_DEVICE
						      : managed_range(address, bytes);
}

cu_result
fake_cuMemPrefetchAsync_v2(cu_deviceptr address, size_t bytes, struct location location,
			   unsigned flags, void *stream)
{
	(void)stream;
	bool device = location.type == 1;
	return flags != 0 || (device && gpu_at(location.id) == NULL)
		   ? CU_INVALID_VALUE
		   : managed_range(address, bytes);
}

static const uint64_t IPC_MAGIC = 0x0000006370697067ULL;

/* Large blocks go into the node's shared table, so that the memory outlives whichever side ends
 * first; a small block stays on its creator's account. */
cu_result
fake_cuIpcGetMemHandle(struct ipc_handle *out, cu_deviceptr address)
{
	cu_result result = CU_INVALID_VALUE;
	blocks_lock();
	struct block *block = out != NULL ? block_find(address) : NULL;
	if (block != NULL && block->use == BLOCK_DATA) {
		uint64_t generation = block->flags;
		if (!block->shared && block->charged != 0) {
			int index = shared_create(block->context->domain, block->kind,
						  block->charged, &generation);
			block->shared = index >= 0;
			block->share = (uint32_t)index;
			block->flags = (uint32_t)generation;
		}
		*out = (struct ipc_handle){
		    .magic = IPC_MAGIC,
		    .generation = generation,
		    .bytes = block->bytes,
		    .share = block->shared ? block->share : UINT32_MAX,
		    .domain = block->context->domain,
		    .kind = block->kind,
		    .creator = region_slot(),
		};
		result = CU_OK;
	}
	blocks_unlock();
	return result;
}

cu_result
fake_cuIpcOpenMemHandle_v2(cu_deviceptr *out, struct ipc_handle handle, unsigned flags)
{
	struct context *context = context_current();
	if (context == NULL || out == NULL || handle.magic != IPC_MAGIC || flags > 1) {
		return context == NULL ? CU_INVALID_CONTEXT : CU_INVALID_VALUE;
	}
	if (handle.creator == region_slot() || handle.domain != context->domain) {
		return CU_INVALID_CONTEXT;
	}
	if (handle.share != UINT32_MAX && !shared_hold(handle.share, handle.generation)) {
		return CU_INVALID_VALUE;
	}
	struct block *block = memory_adopt(context, handle.bytes);
	if (block == NULL) {
		if (handle.share != UINT32_MAX) {
			shared_drop(handle.share);
		}
		return CU_MAP_FAILED;
	}
	block->shared = handle.share != UINT32_MAX;
	block->share = handle.share;
	*out = block->address;
	return CU_OK;
}

cu_result
fake_cuIpcOpenMemHandle(cu_deviceptr *out, struct ipc_handle handle, unsigned flags)
{
	return fake_cuIpcOpenMemHandle_v2(out, handle, flags);
}

cu_result
fake_cuIpcCloseMemHandle(cu_deviceptr address)
{
	blocks_lock();
	struct block *block = block_at(address);
	bool adopted = block != NULL && block->use == BLOCK_RESERVED && block->context != NULL;
	blocks_unlock();
	if (adopted) {
		memory_release(block);
	}
	return adopted ? CU_OK : CU_INVALID_VALUE;
}
