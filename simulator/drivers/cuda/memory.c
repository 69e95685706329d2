/* cuMemAlloc and its family. Physical memory comes in units (2 MiB by default); small blocks share
 * one. */
#include "memory.h"

#include <string.h>

static const uint64_t SMALL_CHUNK = 2ULL << 20;

uint64_t
memory_physical(uint64_t bytes)
{
	uint64_t unit = region()->inventory.granularity_bytes;
	return (bytes + unit - 1) / unit * unit;
}

static bool
shares_chunk(const struct block *block)
{
	return region()->inventory.granularity_bytes >= SMALL_CHUNK && block_is_small(block);
}

static void
link_block(struct context *context, struct block *block)
{
	block->context = context;
	block->next = context->blocks;
	if (context->blocks != NULL) {
		context->blocks->previous = block;
	}
	context->blocks = block;
}

static void
unlink_block(struct block *block)
{
	if (block->previous != NULL) {
		block->previous->next = block->next;
	} else if (block->context->blocks == block) {
		block->context->blocks = block->next;
	}
	if (block->next != NULL) {
		block->next->previous = block->previous;
	}
}

cu_result
memory_allocate_in(struct context *context, enum memory_kind kind, uint64_t bytes,
		   struct block **out)
{
	if (bytes == 0) {
		return CU_INVALID_VALUE;
	}
	if (gpu_lost(context->domain) || bytes > 1ULL << 44) {
		return gpu_lost(context->domain) ? CU_NO_DEVICE : CU_OUT_OF_MEMORY;
	}
	blocks_lock();
	struct block *block = block_new(context->device, BLOCK_DATA, bytes);
	if (block == NULL) {
		blocks_unlock();
		return CU_OUT_OF_MEMORY;
	}
	bool shares = shares_chunk(block);
	uint64_t charge =
	    shares ? (block_alone_in_chunk(block) ? SMALL_CHUNK : 0) : memory_physical(bytes);
	if (!ledger_take(context->domain, shares ? KIND_DATA : kind, charge, bytes)) {
		block_delete(block);
		blocks_unlock();
		return CU_OUT_OF_MEMORY;
	}
	block->kind = (uint8_t)(shares ? KIND_DATA : kind);
	block->charged = shares ? 0 : charge;
	link_block(context, block);
	blocks_unlock();
	*out = block;
	return CU_OK;
}

cu_result
memory_allocate(enum memory_kind kind, uint64_t bytes, struct block **out)
{
	struct context *context = context_current();
	return context == NULL ? CU_INVALID_CONTEXT : memory_allocate_in(context, kind, bytes, out);
}

struct block *
memory_adopt(struct context *context, uint64_t bytes)
{
	blocks_lock();
	struct block *block = block_new(context->device, BLOCK_RESERVED, bytes);
	if (block != NULL) {
		link_block(context, block);
	}
	blocks_unlock();
	return block;
}

static void
release_locked(struct block *block)
{
	uint32_t domain = block->context->domain;
	bool adopted = block->use == BLOCK_RESERVED;
	bool shares = !adopted && shares_chunk(block);
	uint64_t refund = shares && !block->shared ? (block_alone_in_chunk(block) ? SMALL_CHUNK : 0)
						   : block->charged;
	uint64_t requested = adopted ? 0 : block->bytes;
	if (block->shared) {
		shared_drop(block->share);
		refund = 0;
	}
	ledger_give(domain, block->kind, refund, requested);
	unlink_block(block);
	block_delete(block);
}

void
memory_release(struct block *block)
{
	blocks_lock();
	release_locked(block);
	blocks_unlock();
}

void
context_release_memory(struct context *context)
{
	blocks_lock();
	while (context->blocks != NULL) {
		release_locked(context->blocks);
	}
	blocks_unlock();
}

cu_result
fake_cuMemAlloc_v2(cu_deviceptr *address, size_t bytes)
{
	struct block *block = NULL;
	cu_result result =
	    address != NULL ? memory_allocate(KIND_DATA, bytes, &block) : CU_INVALID_VALUE;
	if (result == CU_OK) {
		*address = block->address;
	}
	return result;
}

/* The first form had 32-bit addresses, which this driver cannot give. */
cu_result
fake_cuMemAlloc(unsigned *address, unsigned bytes)
{
	(void)bytes;
	return address == NULL ? CU_INVALID_VALUE : CU_NOT_SUPPORTED;
}

cu_result
fake_cuMemFree_v2(cu_deviceptr address)
{
	if (address == 0) {
		return CU_OK;
	}
	blocks_lock();
	struct block *block = block_at(address);
	bool pooled = block != NULL && block->use == BLOCK_POOLED;
	bool plain = block != NULL && block->use == BLOCK_DATA;
	if (plain) {
		release_locked(block);
	}
	blocks_unlock();
	if (pooled) {
		pool_release(block);
	}
	return plain || pooled ? CU_OK : CU_INVALID_VALUE;
}

cu_result
fake_cuMemFree(unsigned address)
{
	return fake_cuMemFree_v2(address);
}

/* Rows are padded to 512 bytes. */
cu_result
fake_cuMemAllocPitch_v2(cu_deviceptr *address, size_t *pitch, size_t width, size_t height,
			unsigned element)
{
	if (address == NULL || pitch == NULL || (element != 4 && element != 8 && element != 16) ||
	    width == 0 || height == 0) {
		return CU_INVALID_VALUE;
	}
	size_t padded = (width + 511) / 512 * 512;
	size_t bytes = 0;
	if (padded < width || __builtin_mul_overflow(padded, height, &bytes)) {
		return CU_INVALID_VALUE;
	}
	cu_result result = fake_cuMemAlloc_v2(address, bytes);
	if (result == CU_OK) {
		*pitch = padded;
	}
	return result;
}

/* Managed memory is backed by the device here; flags: 1 global, 2 host. */
cu_result
fake_cuMemAllocManaged(cu_deviceptr *address, size_t bytes, unsigned flags)
{
	struct block *block = NULL;
	if (address == NULL || (flags != 1 && flags != 2)) {
		return CU_INVALID_VALUE;
	}
	cu_result result = memory_allocate(KIND_MANAGED, bytes, &block);
	if (result == CU_OK) {
		block->flags = flags;
		block->touched = true;
		*address = block->address;
	}
	return result;
}

cu_result
fake_cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	const struct context *context = context_current();
	if (context == NULL || free_bytes == NULL || total_bytes == NULL) {
		return context == NULL ? CU_INVALID_CONTEXT : CU_INVALID_VALUE;
	}
	size_t total = 0;
	fake_cuDeviceTotalMem_v2(&total, context->device);
	uint64_t used = domain_used(context->domain);
	*total_bytes = total;
	*free_bytes = used < total ? total - used : 0;
	return CU_OK;
}

cu_result
fake_cuMemGetInfo(unsigned *free_bytes, unsigned *total_bytes)
{
	size_t wide_free = 0;
	size_t wide_total = 0;
	cu_result result = fake_cuMemGetInfo_v2(&wide_free, &wide_total);
	if (result != CU_OK || free_bytes == NULL || total_bytes == NULL) {
		return result != CU_OK ? result : CU_INVALID_VALUE;
	}
	*free_bytes = wide_free > UINT32_MAX ? UINT32_MAX : (unsigned)wide_free;
	*total_bytes = wide_total > UINT32_MAX ? UINT32_MAX : (unsigned)wide_total;
	return CU_OK;
}

cu_result
fake_cuMemGetAddressRange_v2(cu_deviceptr *base, size_t *bytes, cu_deviceptr address)
{
	blocks_lock();
	const struct block *block = block_find(address);
	if (block != NULL && base != NULL) {
		*base = block->address;
	}
	if (block != NULL && bytes != NULL) {
		*bytes = block->bytes;
	}
	blocks_unlock();
	return block != NULL ? CU_OK : CU_NOT_FOUND;
}
