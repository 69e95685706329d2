#include "nvml_view.h"

#include <stdio.h>

#include "driver.h"

static bool
find_handle(const uint8_t u[16], const char *prefix, nvml_device *handle)
{
	char text[48];
	snprintf(text, sizeof text,
		 "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", prefix,
		 u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12],
		 u[13], u[14], u[15]);
	return nvml()->nvmlDeviceGetHandleByUUID(text, handle) == NVML_OK;
}

bool
nvml_open(const uint8_t uuid[16], nvml_device *handle)
{
	const struct nvml_table *real = nvml();
	if (real->nvmlInit_v2 == NULL || real->nvmlDeviceGetHandleByUUID == NULL ||
	    real->nvmlInit_v2() != NVML_OK) {
		return false;
	}
	if (find_handle(uuid, "GPU", handle) || find_handle(uuid, "MIG", handle)) {
		return true;
	}
	nvml_close();
	return false;
}

void
nvml_close(void)
{
	nvml()->nvmlShutdown();
}

bool
nvml_limited_device(nvml_device handle, struct device *device)
{
	char text[96] = "";
	uint8_t uuid[16];
	return nvml()->nvmlDeviceGetUUID != NULL &&
	       nvml()->nvmlDeviceGetUUID(handle, text, sizeof text) == NVML_OK &&
	       uuid_parse(text, uuid) && device_for_view(uuid, device);
}
