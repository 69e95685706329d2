/* Virtual memory management: physical memory belongs to a handle and lives until its last reference
 * and its last mapping are gone, so the charge does too. Host locations are never charged.
 *
 * Threads: any, under vmm_lock, which is held over the driver call so that counts follow the
 * driver's order. Fork: the child starts with empty tables.
 */
#include "charges.h"
#include "driver.h"
#include "hooks.h"
#include "lock.h"
#include "postfork.h"

static struct lock vmm_lock;

static uint32_t
map_count(uint64_t handle)
{
	struct block block;
	return block_peek(SPACE_MAPS, handle, &block) ? block.count : 0;
}

static void
change_maps(uint64_t handle, int step)
{
	struct block block = {.key = handle, .space = SPACE_MAPS};
	block_take(SPACE_MAPS, handle, &block);
	block.count = (uint32_t)((int)block.count + step);
	if (block.count > 0) {
		block_put(&block);
	}
}

/* Drop one reference; the charge goes with the last of references and mappings. */
static void
drop_references(uint64_t handle, uint32_t references)
{
	struct block block;
	if (!block_take(SPACE_HANDLE, handle, &block)) {
		return;
	}
	block.count -= references < block.count ? references : block.count;
	if (block.count > 0 || map_count(handle) > 0) {
		block_put(&block);
	} else {
		charge_forget(&block);
	}
}

static bool
add_reference(uint64_t handle)
{
	struct block block;
	if (!block_take(SPACE_HANDLE, handle, &block)) {
		return false;
	}
	block.count++;
	block_put(&block);
	return true;
}

EXPORTED cu_result
cuMemCreate(cu_handle *handle, size_t bytes, const struct cu_allocation_prop *prop,
	    unsigned long long flags)
{
	if (driver()->cuMemCreate == NULL) {
		return CU_NOT_SUPPORTED;
	}
	struct device *device = prop != NULL && prop->location.type == CU_LOCATION_DEVICE
				    ? device_of(prop->location.id)
				    : NULL;
	if (device == NULL) {
		return driver()->cuMemCreate(handle, bytes, prop, flags);
	}
	uint64_t size = round_up(bytes, LARGE_UNIT);
	if (!quota_charge(device, KIND_VMM, size)) {
		return CU_OUT_OF_MEMORY;
	}
	lock_acquire(&vmm_lock);
	cu_result result = driver()->cuMemCreate(handle, bytes, prop, flags);
	if (result == CU_OK) {
		charge_remember(device, SPACE_HANDLE, *handle, KIND_VMM, size, 0);
	}
	lock_release(&vmm_lock);
	if (result != CU_OK) {
		quota_refund(device, KIND_VMM, size);
	}
	return result;
}

EXPORTED cu_result
cuMemRelease(cu_handle handle)
{
	if (driver()->cuMemRelease == NULL) {
		return CU_NOT_SUPPORTED;
	}
	lock_acquire(&vmm_lock);
	cu_result result = driver()->cuMemRelease(handle);
	if (result == CU_OK) {
		drop_references(handle, 1);
	}
	lock_release(&vmm_lock);
	return result;
}

EXPORTED cu_result
cuMemRetainAllocationHandle(cu_handle *handle, void *address)
{
	if (driver()->cuMemRetainAllocationHandle == NULL) {
		return CU_NOT_SUPPORTED;
	}
	lock_acquire(&vmm_lock);
	cu_result result = driver()->cuMemRetainAllocationHandle(handle, address);
	if (result == CU_OK) {
		add_reference(*handle);
	}
	lock_release(&vmm_lock);
	return result;
}

/* Another process's memory: charged to that one, and counted here by what is mapped of it. */
static void
remember_import(cu_handle handle)
{
	struct cu_allocation_prop prop = {.location = {0, 0}};
	if (driver()->cuMemGetAllocationPropertiesFromHandle != NULL &&
	    driver()->cuMemGetAllocationPropertiesFromHandle(&prop, handle) == CU_OK &&
	    prop.location.type == CU_LOCATION_DEVICE) {
		charge_remember(device_of(prop.location.id), SPACE_HANDLE, handle, IMPORTED, 0, 0);
	}
}

/* A handle that this process made itself and gets back counts once more. */
EXPORTED cu_result
cuMemImportFromShareableHandle(cu_handle *handle, void *os_handle, int type)
{
	if (driver()->cuMemImportFromShareableHandle == NULL) {
		return CU_NOT_SUPPORTED;
	}
	lock_acquire(&vmm_lock);
	cu_result result = driver()->cuMemImportFromShareableHandle(handle, os_handle, type);
	if (result == CU_OK && !add_reference(*handle)) {
		remember_import(*handle);
	}
	lock_release(&vmm_lock);
	return result;
}

EXPORTED cu_result
cuMemExportToShareableHandle(void *out, cu_handle handle, int type, unsigned long long flags)
{
	if (driver()->cuMemExportToShareableHandle == NULL) {
		return CU_NOT_SUPPORTED;
	}
	lock_acquire(&vmm_lock);
	cu_result result = driver()->cuMemExportToShareableHandle(out, handle, type, flags);
	if (result == CU_OK) {
		charge_exported(SPACE_HANDLE, handle);
	}
	lock_release(&vmm_lock);
	return result;
}

/* The size of imported memory is not said before it is mapped. */
static void
note_imported_size(struct block *block, uint64_t bytes)
{
	if (block->kind == IMPORTED && bytes > block->bytes) {
		quota_imported(device_at(block->device), (int64_t)(bytes - block->bytes));
		block->bytes = bytes;
		block_put(block);
	}
}

EXPORTED cu_result
cuMemMap(cu_deviceptr address, size_t bytes, size_t offset, cu_handle handle,
	 unsigned long long flags)
{
	if (driver()->cuMemMap == NULL) {
		return CU_NOT_SUPPORTED;
	}
	lock_acquire(&vmm_lock);
	cu_result result = driver()->cuMemMap(address, bytes, offset, handle, flags);
	struct block known;
	if (result == CU_OK && block_peek(SPACE_HANDLE, handle, &known)) {
		struct block mapping = {
		    .key = address, .bytes = bytes, .owner = handle, .space = SPACE_MAPPING};
		block_put(&mapping);
		change_maps(handle, 1);
		note_imported_size(&known, offset + bytes);
	}
	lock_release(&vmm_lock);
	return result;
}

/* One call may unmap several mappings that lie side by side. */
EXPORTED cu_result
cuMemUnmap(cu_deviceptr address, size_t bytes)
{
	if (driver()->cuMemUnmap == NULL) {
		return CU_NOT_SUPPORTED;
	}
	lock_acquire(&vmm_lock);
	cu_result result = driver()->cuMemUnmap(address, bytes);
	uint64_t at = address;
	struct block mapping;
	while (result == CU_OK && at < address + bytes) {
		if (!block_take(SPACE_MAPPING, at, &mapping)) {
			at += LARGE_UNIT;
			continue;
		}
		change_maps(mapping.owner, -1);
		drop_references(mapping.owner, 0);
		at += mapping.bytes;
	}
	lock_release(&vmm_lock);
	return result;
}

/* Memory in a sparse array stays in use although its handle is released. Which memory an unmapping
 * step frees is not said, so such a handle stays charged until the process ends: too much rather
 * than too little. */
static void
pin_mapped(const struct cu_array_map *list, unsigned int count)
{
	struct block known;
	for (unsigned int i = 0; i < count; i++) {
		if (list[i].operation == CU_MAP_OPERATION &&
		    block_peek(SPACE_HANDLE, list[i].handle, &known)) {
			change_maps(list[i].handle, 1);
		}
	}
}

EXPORTED cu_result
cuMemMapArrayAsync(struct cu_array_map *list, unsigned int count, cu_stream stream)
{
	if (driver()->cuMemMapArrayAsync == NULL) {
		return CU_NOT_SUPPORTED;
	}
	lock_acquire(&vmm_lock);
	cu_result result = driver()->cuMemMapArrayAsync(list, count, stream);
	if (result == CU_OK) {
		pin_mapped(list, count);
	}
	lock_release(&vmm_lock);
	return result;
}

EXPORTED cu_result
cuMemMapArrayAsync_ptsz(struct cu_array_map *list, unsigned int count, cu_stream stream)
{
	if (driver()->cuMemMapArrayAsync_ptsz == NULL) {
		return CU_NOT_SUPPORTED;
	}
	lock_acquire(&vmm_lock);
	cu_result result = driver()->cuMemMapArrayAsync_ptsz(list, count, stream);
	if (result == CU_OK) {
		pin_mapped(list, count);
	}
	lock_release(&vmm_lock);
	return result;
}

/* Memory bound to a multicast object is in use until it is unbound on its device. */
static uint64_t
binding_key(cu_handle multicast, cu_device device, size_t at)
{
	return (multicast * 0x9E3779B97F4A7C15ULL + at * 31 + (uint64_t)(uint32_t)device) | 1;
}

static void
remember_binding(cu_handle multicast, size_t at, cu_handle handle)
{
	struct block known;
	if (!block_peek(SPACE_HANDLE, handle, &known)) {
		return;
	}
	struct block binding = {
	    .key = binding_key(multicast, device_at(known.device)->handle, at),
	    .owner = handle,
	    .space = SPACE_BINDING,
	};
	block_put(&binding);
	change_maps(handle, 1);
}

EXPORTED cu_result
cuMulticastBindMem(cu_handle multicast, size_t at, cu_handle handle, size_t offset, size_t bytes,
		   unsigned long long flags)
{
	if (driver()->cuMulticastBindMem == NULL) {
		return CU_NOT_SUPPORTED;
	}
	lock_acquire(&vmm_lock);
	cu_result result =
	    driver()->cuMulticastBindMem(multicast, at, handle, offset, bytes, flags);
	if (result == CU_OK) {
		remember_binding(multicast, at, handle);
	}
	lock_release(&vmm_lock);
	return result;
}

EXPORTED cu_result
cuMulticastBindMem_v2(cu_handle multicast, cu_device device, size_t at, cu_handle handle,
		      size_t offset, size_t bytes, unsigned long long flags)
{
	if (driver()->cuMulticastBindMem_v2 == NULL) {
		return CU_NOT_SUPPORTED;
	}
	lock_acquire(&vmm_lock);
	cu_result result =
	    driver()->cuMulticastBindMem_v2(multicast, device, at, handle, offset, bytes, flags);
	if (result == CU_OK) {
		remember_binding(multicast, at, handle);
	}
	lock_release(&vmm_lock);
	return result;
}

EXPORTED cu_result
cuMulticastUnbind(cu_handle multicast, cu_device device, size_t at, size_t bytes)
{
	if (driver()->cuMulticastUnbind == NULL) {
		return CU_NOT_SUPPORTED;
	}
	struct block binding;
	lock_acquire(&vmm_lock);
	cu_result result = driver()->cuMulticastUnbind(multicast, device, at, bytes);
	if (result == CU_OK &&
	    block_take(SPACE_BINDING, binding_key(multicast, device, at), &binding)) {
		change_maps(binding.owner, -1);
		drop_references(binding.owner, 0);
	}
	lock_release(&vmm_lock);
	return result;
}

void
vmm_postfork_child(void)
{
	vmm_lock = (struct lock){0};
}
