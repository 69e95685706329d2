#include "compute.h"
#include "devices.h"
#include "driver.h"
#include "hooks.h"

/* Nothing of the driver's own start is delayed: files are opened only after it has succeeded. */
EXPORTED cu_result
cuInit(unsigned int flags)
{
	if (driver()->cuInit == NULL) {
		return CU_NO_DEVICE;
	}
	cu_result result = driver()->cuInit(flags);
	if (result == CU_OK) {
		devices_count();
	}
	return result;
}
