/* Event sets: what a program registered for, read from the node's event ring. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "events.h"
#include "faults.h"
#include "nvml.h"

static const uint64_t SET_MAGIC = 0x7465737674657665ULL;
static const uint64_t SUPPORTED = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x80 | 0x100 | 0x200 | 0x400 |
				  0x800 | 0x1000 | 0x2000 | 0x4000 | 0x8000;

/* While it waits, a process looks at the control file this often. */
enum { LOOK_MS = 25 };

struct event_set {
	uint64_t magic;
	uint64_t wanted[MAX_CARDS];
	_Atomic uint32_t seen;
};

static struct event_set *
set_checked(void *handle)
{
	struct event_set *set = handle;
	return set != NULL && set->magic == SET_MAGIC ? set : NULL;
}

nvml_result
fake_nvmlEventSetCreate(void **out)
{
	struct event_set *set = out != NULL ? calloc(1, sizeof *set) : NULL;
	if (set == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	set->magic = SET_MAGIC;
	atomic_store(&set->seen, atomic_load(&region()->event_next));
	*out = set;
	return NVML_OK;
}

nvml_result
fake_nvmlEventSetFree(void *handle)
{
	struct event_set *set = set_checked(handle);
	if (set == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	set->magic = 0;
	free(set);
	return NVML_OK;
}

nvml_result
fake_nvmlDeviceGetSupportedEventTypes(void *device, unsigned long long *types)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check_card(device, "nvmlDeviceGetSupportedEventTypes", &handle);
	if (result == NVML_OK && types == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	if (result == NVML_OK) {
		*types = handle_card(handle)->ecc
			     ? SUPPORTED
			     : SUPPORTED & ~(uint64_t)(EVENT_SINGLE_BIT | EVENT_DOUBLE_BIT);
	}
	return result;
}

nvml_result
fake_nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set_handle)
{
	const struct handle *handle = NULL;
	struct event_set *set = set_checked(set_handle);
	nvml_result result = handle_check_card(device, "nvmlDeviceRegisterEvents", &handle);
	if (result != NVML_OK || set == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	unsigned long long known = 0;
	fake_nvmlDeviceGetSupportedEventTypes(device, &known);
	if ((types & ~known) != 0) {
		return NVML_NOT_SUPPORTED;
	}
	set->wanted[handle->card] |= types;
	return NVML_OK;
}

/* The next event that the set wants; events that fell out of the ring are gone. */
static bool
next_event(struct event_set *set, struct nvml_event *out)
{
	bool found = false;
	region_lock();
	uint32_t newest = atomic_load(&region()->event_next);
	uint32_t seen = atomic_load(&set->seen);
	if (newest - seen > MAX_EVENTS) {
		seen = newest - MAX_EVENTS;
	}
	while (seen != newest && !found) {
		*out = region()->events[seen % MAX_EVENTS];
		found = (set->wanted[out->card] & out->type) != 0;
		seen++;
	}
	atomic_store(&set->seen, seen);
	region_unlock();
	return found;
}

static uint64_t
now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

nvml_result
fake_nvmlEventSetWait_v2(void *handle, struct nvml_event_data *out, unsigned timeout_ms)
{
	struct event_set *set = set_checked(handle);
	struct nvml_event event;
	if (set == NULL || out == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	uint64_t end = now_ms() + timeout_ms;
	for (;;) {
		control_poll();
		if (next_event(set, &event)) {
			*out = (struct nvml_event_data){handle_of(event.card, 0), event.type,
							event.data, event.gpu_instance,
							event.compute_instance};
			return NVML_OK;
		}
		uint64_t now = now_ms();
		if (now >= end) {
			return NVML_TIMEOUT;
		}
		if (atomic_load(&region()->driver_state) != 0) {
			return (nvml_result)atomic_load(&region()->driver_state);
		}
		events_sleep(atomic_load(&set->seen),
			     end - now < LOOK_MS ? (uint32_t)(end - now) : LOOK_MS);
	}
}

nvml_result
fake_nvmlEventSetWait(void *handle, struct nvml_event_data *out, unsigned timeout_ms)
{
	struct nvml_event_data full;
	nvml_result result = out != NULL ? fake_nvmlEventSetWait_v2(handle, &full, timeout_ms)
					 : NVML_INVALID_ARGUMENT;
	if (result == NVML_OK) {
		out->device = full.device;
		out->type = full.type;
		out->data = full.data;
	}
	return result;
}
