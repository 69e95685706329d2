/* Memory shared by IPC handles: charged to the process that made it, as long as anybody uses it.
 * Who exports and who imports is noted, so that the charge stays when the maker ends first. */
#include "charges.h"
#include "driver.h"
#include "hooks.h"

EXPORTED cu_result
cuIpcGetMemHandle(struct cu_ipc_handle *out, cu_deviceptr address)
{
	if (driver()->cuIpcGetMemHandle == NULL) {
		return CU_NOT_SUPPORTED;
	}
	cu_result result = driver()->cuIpcGetMemHandle(out, address);
	if (result == CU_OK) {
		charge_exported(SPACE_ADDRESS, address);
	}
	return result;
}

/* A handle of another device's memory may be opened in a context of this one. */
static struct device *
device_of_address(cu_deviceptr address)
{
	int ordinal = -1;
	return driver()->cuPointerGetAttribute != NULL &&
		       driver()->cuPointerGetAttribute(&ordinal, CU_POINTER_DEVICE, address) ==
			   CU_OK
		   ? device_of(ordinal)
		   : device_current();
}

static void
remember_import(cu_deviceptr address)
{
	cu_deviceptr base = 0;
	size_t bytes = 0;
	struct device *device = device_of_address(address);
	if (device != NULL && device->row != NULL && driver()->cuMemGetAddressRange_v2 != NULL &&
	    driver()->cuMemGetAddressRange_v2(&base, &bytes, address) == CU_OK) {
		quota_imported(device, (int64_t)charge_size(bytes));
		charge_remember(device, SPACE_IMPORT, address, IMPORTED, charge_size(bytes),
				current_owner());
	}
}

EXPORTED cu_result
cuIpcOpenMemHandle(cu_deviceptr *address, struct cu_ipc_handle handle, unsigned int flags)
{
	if (driver()->cuIpcOpenMemHandle == NULL) {
		return CU_NOT_SUPPORTED;
	}
	cu_result result = driver()->cuIpcOpenMemHandle(address, handle, flags);
	if (result == CU_OK) {
		remember_import(*address);
	}
	return result;
}

EXPORTED cu_result
cuIpcOpenMemHandle_v2(cu_deviceptr *address, struct cu_ipc_handle handle, unsigned int flags)
{
	if (driver()->cuIpcOpenMemHandle_v2 == NULL) {
		return CU_NOT_SUPPORTED;
	}
	cu_result result = driver()->cuIpcOpenMemHandle_v2(address, handle, flags);
	if (result == CU_OK) {
		remember_import(*address);
	}
	return result;
}

EXPORTED cu_result
cuIpcCloseMemHandle(cu_deviceptr address)
{
	if (driver()->cuIpcCloseMemHandle == NULL) {
		return CU_NOT_SUPPORTED;
	}
	struct block block;
	bool known = block_take(SPACE_IMPORT, address, &block);
	cu_result result = driver()->cuIpcCloseMemHandle(address);
	charge_freed(result, known, &block);
	return result;
}
