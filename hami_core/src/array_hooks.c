/* Arrays and mipmapped arrays: charged by an estimate first, then by what the driver says that they
 * need. */
#include "array_size.h"
#include "charges.h"
#include "driver.h"
#include "hooks.h"

static uint64_t
required(cu_result (*query)(struct cu_array_requirements *, void *, cu_device), void *array,
	 const struct device *device, uint64_t estimate)
{
	struct cu_array_requirements needs = {0};
	if (query == NULL || query(&needs, array, device->handle) != CU_OK || needs.size == 0) {
		return estimate;
	}
	return round_up(needs.size, LARGE_UNIT);
}

typedef cu_result (*requirements_query)(struct cu_array_requirements *, void *, cu_device);

/* Settle a fresh array to its true size. False: the quota cannot hold it and the caller must
 * destroy it. */
static bool
accept_array(struct device *device, void *array, uint64_t charged, requirements_query query)
{
	if (device == NULL || device->row == NULL) {
		return true;
	}
	uint64_t actual = required(query, array, device, charged);
	if (!quota_settle(device, KIND_ARRAY, charged, actual)) {
		quota_refund(device, KIND_ARRAY, charged);
		return false;
	}
	charge_remember(device, SPACE_ARRAY, (uint64_t)(uintptr_t)array, KIND_ARRAY, actual,
			current_owner());
	return true;
}

static cu_result
finish_array(cu_result result, struct device *device, cu_array *array, uint64_t charged)
{
	if (result != CU_OK) {
		quota_refund(device, KIND_ARRAY, charged);
		return result;
	}
	if (!accept_array(device, *array, charged,
			  (requirements_query)driver()->cuArrayGetMemoryRequirements)) {
		driver()->cuArrayDestroy(*array);
		return CU_OUT_OF_MEMORY;
	}
	return CU_OK;
}

EXPORTED cu_result
cuArrayCreate_v2(cu_array *array, const struct cu_array_descriptor *descriptor)
{
	if (driver()->cuArrayCreate_v2 == NULL) {
		return CU_NOT_SUPPORTED;
	}
	if (array == NULL || descriptor == NULL) {
		return driver()->cuArrayCreate_v2(array, descriptor);
	}
	struct device *device = device_current();
	uint64_t size = array_size(descriptor->width, descriptor->height, 0, descriptor->format,
				   descriptor->channels);
	if (!quota_charge(device, KIND_ARRAY, size)) {
		return CU_OUT_OF_MEMORY;
	}
	return finish_array(driver()->cuArrayCreate_v2(array, descriptor), device, array, size);
}

EXPORTED cu_result
cuArrayCreate(cu_array *array, const struct cu_array_descriptor_v1 *descriptor)
{
	if (driver()->cuArrayCreate == NULL) {
		return CU_NOT_SUPPORTED;
	}
	if (array == NULL || descriptor == NULL) {
		return driver()->cuArrayCreate(array, descriptor);
	}
	struct device *device = device_current();
	uint64_t size = array_size(descriptor->width, descriptor->height, 0, descriptor->format,
				   descriptor->channels);
	if (!quota_charge(device, KIND_ARRAY, size)) {
		return CU_OUT_OF_MEMORY;
	}
	return finish_array(driver()->cuArrayCreate(array, descriptor), device, array, size);
}

EXPORTED cu_result
cuArray3DCreate_v2(cu_array *array, const struct cu_array3d_descriptor *descriptor)
{
	if (driver()->cuArray3DCreate_v2 == NULL) {
		return CU_NOT_SUPPORTED;
	}
	if (array == NULL || descriptor == NULL || (descriptor->flags & ARRAY_SPARSE) != 0) {
		return driver()->cuArray3DCreate_v2(array, descriptor);
	}
	struct device *device = device_current();
	uint64_t size = array_size(descriptor->width, descriptor->height, descriptor->depth,
				   descriptor->format, descriptor->channels);
	if (!quota_charge(device, KIND_ARRAY, size)) {
		return CU_OUT_OF_MEMORY;
	}
	return finish_array(driver()->cuArray3DCreate_v2(array, descriptor), device, array, size);
}

EXPORTED cu_result
cuArray3DCreate(cu_array *array, const struct cu_array3d_descriptor_v1 *descriptor)
{
	if (driver()->cuArray3DCreate == NULL) {
		return CU_NOT_SUPPORTED;
	}
	if (array == NULL || descriptor == NULL) {
		return driver()->cuArray3DCreate(array, descriptor);
	}
	struct device *device = device_current();
	uint64_t size = array_size(descriptor->width, descriptor->height, descriptor->depth,
				   descriptor->format, descriptor->channels);
	if (!quota_charge(device, KIND_ARRAY, size)) {
		return CU_OUT_OF_MEMORY;
	}
	return finish_array(driver()->cuArray3DCreate(array, descriptor), device, array, size);
}

EXPORTED cu_result
cuMipmappedArrayCreate(cu_mipmap *mipmap, const struct cu_array3d_descriptor *descriptor,
		       unsigned int levels)
{
	if (driver()->cuMipmappedArrayCreate == NULL) {
		return CU_NOT_SUPPORTED;
	}
	if (mipmap == NULL || descriptor == NULL || (descriptor->flags & ARRAY_SPARSE) != 0) {
		return driver()->cuMipmappedArrayCreate(mipmap, descriptor, levels);
	}
	struct device *device = device_current();
	uint64_t size =
	    mipmap_size(array_size(descriptor->width, descriptor->height, descriptor->depth,
				   descriptor->format, descriptor->channels));
	if (!quota_charge(device, KIND_ARRAY, size)) {
		return CU_OUT_OF_MEMORY;
	}
	cu_result result = driver()->cuMipmappedArrayCreate(mipmap, descriptor, levels);
	if (result != CU_OK) {
		quota_refund(device, KIND_ARRAY, size);
	} else if (!accept_array(
		       device, *mipmap, size,
		       (requirements_query)driver()->cuMipmappedArrayGetMemoryRequirements)) {
		driver()->cuMipmappedArrayDestroy(*mipmap);
		result = CU_OUT_OF_MEMORY;
	}
	return result;
}

EXPORTED cu_result
cuArrayDestroy(cu_array array)
{
	if (driver()->cuArrayDestroy == NULL) {
		return CU_NOT_SUPPORTED;
	}
	struct block block;
	bool known = block_take(SPACE_ARRAY, (uint64_t)(uintptr_t)array, &block);
	cu_result result = driver()->cuArrayDestroy(array);
	charge_freed(result, known, &block);
	return result;
}

EXPORTED cu_result
cuMipmappedArrayDestroy(cu_mipmap mipmap)
{
	if (driver()->cuMipmappedArrayDestroy == NULL) {
		return CU_NOT_SUPPORTED;
	}
	struct block block;
	bool known = block_take(SPACE_ARRAY, (uint64_t)(uintptr_t)mipmap, &block);
	cu_result result = driver()->cuMipmappedArrayDestroy(mipmap);
	charge_freed(result, known, &block);
	return result;
}
