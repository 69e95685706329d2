/* Utilisation as the container sees it: samples of its own processes only.
 *
 * The real NVML may name processes by host pids that mean nothing in here; such samples are left
 * out. The device's utilisation rates are replaced by the container's own when the limiter measures
 * it.
 */
#include <stdbool.h>
#include <time.h>

#include "devices.h"
#include "driver.h"
#include "hooks.h"
#include "nvml_view.h"

EXPORTED nvml_result
nvmlDeviceGetProcessUtilization(nvml_device handle, struct nvml_process_sample *samples,
				unsigned int *count, unsigned long long last_seen_us)
{
	if (nvml()->nvmlDeviceGetProcessUtilization == NULL) {
		return NVML_FUNCTION_NOT_FOUND;
	}
	nvml_result result =
	    nvml()->nvmlDeviceGetProcessUtilization(handle, samples, count, last_seen_us);
	struct device device;
	if (result != NVML_OK || samples == NULL || !nvml_limited_device(handle, &device)) {
		return result;
	}
	unsigned int kept = 0;
	for (unsigned int i = 0; i < *count; i++) {
		if (state_owns_pid(samples[i].pid)) {
			samples[kept++] = samples[i];
		}
	}
	*count = kept;
	return kept > 0 ? NVML_OK : NVML_NOT_FOUND;
}

EXPORTED nvml_result
nvmlDeviceGetProcessesUtilizationInfo(nvml_device handle, struct nvml_processes_utilization *info)
{
	if (nvml()->nvmlDeviceGetProcessesUtilizationInfo == NULL) {
		return NVML_FUNCTION_NOT_FOUND;
	}
	nvml_result result = nvml()->nvmlDeviceGetProcessesUtilizationInfo(handle, info);
	struct device device;
	if (result != NVML_OK || info == NULL || info->entries == NULL ||
	    !nvml_limited_device(handle, &device)) {
		return result;
	}
	unsigned int kept = 0;
	for (unsigned int i = 0; i < info->count; i++) {
		if (state_owns_pid(info->entries[i].pid)) {
			info->entries[kept++] = info->entries[i];
		}
	}
	info->count = kept;
	return NVML_OK;
}

struct window {
	uint64_t at_ns, busy_ns;
	unsigned int percent;
};

/* Busy share of the container since the last question, over at least 100 ms. */
static unsigned int
own_percent(const struct device *device)
{
	static struct window windows[MAX_DEVICES];
	struct window *window = &windows[device->row_index];
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	uint64_t now_ns = (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
	uint64_t busy_ns = __atomic_load_n(&device->row->busy_ns, __ATOMIC_RELAXED);
	uint64_t passed = now_ns - window->at_ns;
	if (passed >= 100000000ULL) {
		uint64_t share = (busy_ns - window->busy_ns) * 100 / passed;
		window->percent =
		    window->at_ns == 0 ? 0 : (unsigned int)(share > 100 ? 100 : share);
		window->at_ns = now_ns;
		window->busy_ns = busy_ns;
	}
	return window->percent;
}

EXPORTED nvml_result
nvmlDeviceGetUtilizationRates(nvml_device handle, struct nvml_utilization *rates)
{
	if (nvml()->nvmlDeviceGetUtilizationRates == NULL) {
		return NVML_FUNCTION_NOT_FOUND;
	}
	nvml_result result = nvml()->nvmlDeviceGetUtilizationRates(handle, rates);
	struct device device;
	struct limit limit;
	if (result == NVML_OK && nvml_limited_device(handle, &device)) {
		limits_read(device.limits_row, &limit);
		if (limit.core_q16 > 0 && limit.core_q16 < FULL_CORES_Q16 &&
		    limit.core_policy != POLICY_OFF) {
			rates->gpu = own_percent(&device);
		}
	}
	return result;
}
