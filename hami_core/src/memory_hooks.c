/* Memory hooks: charge the container's quota before the driver allocates.
 *
 * Invariant: charged >= bytes that the driver holds for us. Charge, call, refund on failure. On
 * free the block is taken out of the table first, so that another thread which gets the same
 * address from the driver cannot lose its own.
 */
#include "charges.h"
#include "context_cost.h"
#include "driver.h"
#include "hooks.h"
#include "pools.h"
#include "small.h"

/* Device quota is full or the card is: let the memory live on the host, where the container may do
 * so. */
static cu_result
spill(struct device *device, cu_deviceptr *address, uint64_t bytes, bool charged)
{
	uint64_t most = limits_spill(device->limits_row);
	uint64_t size = charge_size(bytes);
	uint64_t spilled = quota_held(device, KIND_MANAGED);
	if (most == 0 || spilled > most || size > most - spilled ||
	    driver()->cuMemAllocManaged == NULL ||
	    (!charged && !quota_charge(device, KIND_MANAGED, size))) {
		return CU_OUT_OF_MEMORY;
	}
	cu_result result = driver()->cuMemAllocManaged(address, bytes, CU_ATTACH_GLOBAL);
	if (result != CU_OK) {
		quota_refund(device, charged ? KIND_DATA : KIND_MANAGED, size);
		return result;
	}
	if (charged) {
		quota_convert(device, KIND_DATA, KIND_MANAGED, size);
	}
	charge_remember(device, SPACE_ADDRESS, *address, KIND_MANAGED, size, current_owner());
	return CU_OK;
}

/* Is the part of the quota that must lie on the device itself used up? Only then when spilling is
 * allowed. */
static bool
device_share_is_full(struct device *device, uint64_t size)
{
	uint64_t spill_bytes = limits_spill(device->limits_row);
	uint64_t memory_bytes = limits_memory(device->limits_row);
	if (spill_bytes == 0 || spill_bytes > memory_bytes || device->row == NULL ||
	    limits_source() != LIMITS_FILE) {
		return false;
	}
	uint64_t managed = quota_held(device, KIND_MANAGED);
	uint64_t used = quota_view(device).used_bytes;
	uint64_t share = memory_bytes - spill_bytes;
	uint64_t resident = used > managed ? used - managed : 0;
	return resident > share || size > share - resident;
}

/* Charge pages of its own for a large block; on a full quota give back what this process only keeps
 * in reserve. */
static bool
charge_pages(struct device *device, unsigned kind, uint64_t size)
{
	return quota_charge(device, kind, size) ||
	       (pools_give_back(device) && quota_charge(device, kind, size)) ||
	       (small_give_back(device) && quota_charge(device, kind, size));
}

/* A block that may share a page with others. */
static cu_result
allocate_small(struct device *device, cu_deviceptr *address, size_t bytes)
{
	if (!small_begin(device) && !(pools_give_back(device) && small_begin(device))) {
		return CU_OUT_OF_MEMORY;
	}
	cu_result result = driver()->cuMemAlloc_v2(address, bytes);
	if (result != CU_OK) {
		small_cancel(device);
		return result;
	}
	if (!small_placed(device, *address, bytes)) {
		driver()->cuMemFree_v2(*address);
		return CU_OUT_OF_MEMORY;
	}
	charge_remember(device, SPACE_ADDRESS, *address, KIND_DATA, bytes, current_owner());
	return CU_OK;
}

EXPORTED cu_result
cuMemAlloc_v2(cu_deviceptr *address, size_t bytes)
{
	cu_result (*real)(cu_deviceptr *, size_t) = driver()->cuMemAlloc_v2;
	struct device *device = device_current();
	if (real == NULL) {
		return CU_NOT_SUPPORTED;
	}
	if (device == NULL || !device->enforced || address == NULL || bytes == 0) {
		return real(address, bytes);
	}

	if (UNLIKELY(!device->context_seen)) {
		device->context_seen = true;
		context_account_hidden(device);
	}
	if (bytes <= SMALL_LIMIT) {
		return allocate_small(device, address, bytes);
	}
	uint64_t size = charge_size(bytes);
	if (device_share_is_full(device, size)) {
		return spill(device, address, bytes, false);
	}
	if (!charge_pages(device, KIND_DATA, size)) {
		return CU_OUT_OF_MEMORY;
	}
	cu_result result = real(address, bytes);
	if (result == CU_OK) {
		charge_remember(device, SPACE_ADDRESS, *address, KIND_DATA, size, current_owner());
		return CU_OK;
	}
	if (result == CU_OUT_OF_MEMORY && spill(device, address, bytes, true) == CU_OK) {
		return CU_OK;
	}
	quota_refund(device, KIND_DATA, size);
	return result;
}

/* The driver has answered an allocation that was charged: remember the block, or refund it. */
static cu_result
charged(struct device *device, unsigned kind, uint64_t size, cu_result result, uint64_t address)
{
	if (result != CU_OK) {
		quota_refund(device, kind, size);
	} else {
		charge_remember(device, SPACE_ADDRESS, address, kind, size, current_owner());
	}
	return result;
}

EXPORTED cu_result
cuMemAlloc(cu_deviceptr_v1 *address, unsigned int bytes)
{
	cu_result (*real)(cu_deviceptr_v1 *, unsigned int) = driver()->cuMemAlloc;
	struct device *device = device_current();
	if (real == NULL) {
		return CU_NOT_SUPPORTED;
	}
	if (!quota_charge(device, KIND_DATA, charge_size(bytes))) {
		return CU_OUT_OF_MEMORY;
	}
	cu_result result = real(address, bytes);
	if (result != CU_OK || address == NULL) {
		quota_refund(device, KIND_DATA, charge_size(bytes));
	} else {
		charge_remember(device, SPACE_ADDRESS, *address, KIND_DATA, charge_size(bytes),
				current_owner());
	}
	return result;
}

/* Rows are padded to this many bytes before the driver has told the true pitch. */
#define PITCH_UNIT 512U

static uint64_t
rows_size(uint64_t pitch, uint64_t height)
{
	unsigned __int128 bytes = (unsigned __int128)pitch * height;
	return bytes > INT64_MAX ? INT64_MAX : charge_size((uint64_t)bytes);
}

EXPORTED cu_result
cuMemAllocPitch_v2(cu_deviceptr *address, size_t *pitch, size_t width, size_t height,
		   unsigned int element)
{
	cu_result (*real)(cu_deviceptr *, size_t *, size_t, size_t, unsigned int) =
	    driver()->cuMemAllocPitch_v2;
	struct device *device = device_current();
	if (real == NULL) {
		return CU_NOT_SUPPORTED;
	}
	uint64_t size = rows_size(round_up(width, PITCH_UNIT), height);
	if (!quota_charge(device, KIND_DATA, size)) {
		return CU_OUT_OF_MEMORY;
	}
	cu_result result = real(address, pitch, width, height, element);
	if (result != CU_OK) {
		quota_refund(device, KIND_DATA, size);
		return result;
	}
	uint64_t actual = rows_size(*pitch, height);
	if (!quota_settle(device, KIND_DATA, size, actual)) {
		driver()->cuMemFree_v2(*address);
		quota_refund(device, KIND_DATA, size);
		return CU_OUT_OF_MEMORY;
	}
	charge_remember(device, SPACE_ADDRESS, *address, KIND_DATA, actual, current_owner());
	return CU_OK;
}

EXPORTED cu_result
cuMemAllocPitch(cu_deviceptr_v1 *address, unsigned int *pitch, unsigned int width,
		unsigned int height, unsigned int element)
{
	cu_result (*real)(cu_deviceptr_v1 *, unsigned int *, unsigned int, unsigned int,
			  unsigned int) = driver()->cuMemAllocPitch;
	struct device *device = device_current();
	if (real == NULL) {
		return CU_NOT_SUPPORTED;
	}
	uint64_t size = rows_size(round_up(width, PITCH_UNIT), height);
	if (!quota_charge(device, KIND_DATA, size)) {
		return CU_OUT_OF_MEMORY;
	}
	cu_result result = real(address, pitch, width, height, element);
	return charged(device, KIND_DATA, size, result, result == CU_OK ? *address : 0);
}

EXPORTED cu_result
cuMemAllocManaged(cu_deviceptr *address, size_t bytes, unsigned int flags)
{
	cu_result (*real)(cu_deviceptr *, size_t, unsigned int) = driver()->cuMemAllocManaged;
	struct device *device = device_current();
	if (real == NULL) {
		return CU_NOT_SUPPORTED;
	}
	uint64_t size = charge_size(bytes);
	if (!quota_charge(device, KIND_MANAGED, size)) {
		return CU_OUT_OF_MEMORY;
	}
	cu_result result = real(address, bytes, flags);
	return charged(device, KIND_MANAGED, size, result, result == CU_OK ? *address : 0);
}

EXPORTED cu_result
cuMemFree_v2(cu_deviceptr address)
{
	cu_result (*real)(cu_deviceptr) = driver()->cuMemFree_v2;
	struct block block;
	if (real == NULL) {
		return CU_NOT_SUPPORTED;
	}
	if (!block_take(SPACE_ADDRESS, address, &block)) {
		return real(address);
	}
	cu_result result = real(address);
	charge_freed(result, true, &block);
	return result;
}

EXPORTED cu_result
cuMemFree(cu_deviceptr_v1 address)
{
	cu_result (*real)(cu_deviceptr_v1) = driver()->cuMemFree;
	struct block block;
	if (real == NULL) {
		return CU_NOT_SUPPORTED;
	}
	bool known = block_take(SPACE_ADDRESS, address, &block);
	cu_result result = real(address);
	charge_freed(result, known, &block);
	return result;
}
