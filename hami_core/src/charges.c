#include "charges.h"

#include "driver.h"
#include "log.h"
#include "small.h"

uint8_t
device_number(const struct device *device)
{
	return (uint8_t)(device - device_at(0));
}

uint64_t
current_owner(void)
{
	cu_context context = NULL;
	if (driver()->cuCtxGetCurrent != NULL) {
		driver()->cuCtxGetCurrent(&context);
	}
	return (uint64_t)(uintptr_t)context;
}

void
charge_remember(const struct device *device, enum block_space space, uint64_t key, unsigned kind,
		uint64_t bytes, uint64_t owner)
{
	if (device == NULL || device->row == NULL || key == 0) {
		return;
	}
	struct block block = {
	    .key = key,
	    .bytes = bytes,
	    .owner = owner,
	    .space = (uint8_t)space,
	    .kind = (uint8_t)kind,
	    .device = device_number(device),
	    .count = 1,
	};
	if (!block_put(&block)) {
		log_line(LOG_WARNING,
			 "out of host memory: a block of %llu bytes stays charged until this "
			 "process ends",
			 (unsigned long long)bytes);
	}
}

void
charge_exported(enum block_space space, uint64_t key)
{
	struct block block;
	if (block_peek(space, key, &block) && !block.exported && block.kind != IMPORTED) {
		block.exported = true;
		block_put(&block);
		quota_exported(device_at(block.device), (int64_t)charge_size(block.bytes));
	}
}

void
charge_forget(const struct block *block)
{
	struct device *device = device_at(block->device);
	if (block->exported) {
		quota_exported(device, -(int64_t)charge_size(block->bytes));
	}
	if (block->kind == IMPORTED) {
		quota_imported(device, -(int64_t)block->bytes);
	} else if (block->space == SPACE_ADDRESS && block->kind != KIND_POOL &&
		   block->bytes <= SMALL_LIMIT) {
		small_freed(device, block->key, block->bytes);
	} else if (block->space != SPACE_CHUNK) {
		quota_refund(device, block->kind, block->bytes);
	}
}
