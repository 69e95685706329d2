/* What CUDA tells the container about its memory: its own share. Null pointers are the driver's to
 * judge. */
#include "context_cost.h"
#include "devices.h"
#include "driver.h"
#include "hooks.h"
#include "pools.h"
#include "quota.h"

static size_t
smaller(uint64_t a, uint64_t b)
{
	return (size_t)(a < b ? a : b);
}

EXPORTED cu_result
cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	cu_result (*real)(size_t *, size_t *) = driver()->cuMemGetInfo_v2;
	if (real == NULL) {
		return CU_NOT_SUPPORTED;
	}
	size_t physical_free = 0, physical_total = 0;
	if (free_bytes == NULL || total_bytes == NULL) {
		return real(free_bytes, total_bytes);
	}
	cu_result result = real(&physical_free, &physical_total);
	if (result != CU_OK) {
		return result;
	}
	struct device *device = device_current();
	context_account_hidden(device);
	pools_settle_all(device);
	struct quota_view view = quota_view(device);
	struct limit limit = {.spill_bytes = 0};
	if (device != NULL && device->enforced) {
		limits_read(device->limits_row, &limit);
	}
	uint64_t left = view.limit_bytes > view.used_bytes ? view.limit_bytes - view.used_bytes : 0;
	*total_bytes = limit.spill_bytes > 0 ? (size_t)view.limit_bytes
					     : smaller(view.limit_bytes, physical_total);
	*free_bytes = limit.spill_bytes > 0 ? (size_t)left : smaller(left, physical_free);
	return CU_OK;
}

EXPORTED cu_result
cuMemGetInfo(unsigned int *free_bytes, unsigned int *total_bytes)
{
	if (driver()->cuMemGetInfo == NULL) {
		return CU_NOT_SUPPORTED;
	}
	unsigned int physical_free = 0, physical_total = 0;
	if (free_bytes == NULL || total_bytes == NULL) {
		return driver()->cuMemGetInfo(free_bytes, total_bytes);
	}
	cu_result result = driver()->cuMemGetInfo(&physical_free, &physical_total);
	struct quota_view view = quota_view(device_current());
	uint64_t left = view.limit_bytes > view.used_bytes ? view.limit_bytes - view.used_bytes : 0;
	*total_bytes = (unsigned int)smaller(view.limit_bytes, physical_total);
	*free_bytes = (unsigned int)smaller(left, physical_free);
	return result;
}

EXPORTED cu_result
cuDeviceTotalMem_v2(size_t *bytes, cu_device handle)
{
	if (driver()->cuDeviceTotalMem_v2 == NULL) {
		return CU_NOT_SUPPORTED;
	}
	cu_result result = driver()->cuDeviceTotalMem_v2(bytes, handle);
	struct device *device = result == CU_OK ? device_of(handle) : NULL;
	if (device != NULL) {
		struct limit limit = {.spill_bytes = 0};
		limits_read(device->limits_row, &limit);
		uint64_t share = quota_view(device).limit_bytes;
		*bytes = device->enforced && limit.spill_bytes > 0 ? (size_t)share
								   : smaller(share, *bytes);
	}
	return result;
}

EXPORTED cu_result
cuDeviceTotalMem(unsigned int *bytes, cu_device handle)
{
	if (driver()->cuDeviceTotalMem == NULL) {
		return CU_NOT_SUPPORTED;
	}
	cu_result result = driver()->cuDeviceTotalMem(bytes, handle);
	if (result == CU_OK) {
		*bytes = (unsigned int)smaller(quota_view(device_of(handle)).limit_bytes, *bytes);
	}
	return result;
}
