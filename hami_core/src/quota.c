/* Threads: any; every change happens under the row's robust lock. */
#include "quota.h"

#include <time.h>

#include "faults.h"
#include "log.h"

#define REAP_INTERVAL_NS 100000000ULL

static void
adjust(struct device *device, struct slot *slot, unsigned kind, int64_t bytes)
{
	int64_t *held = &slot->devices[device->row_index].held_bytes[kind];
	if (*held + bytes < 0) {
		bytes = -*held;
	}
	FAULT_POINT("before-held");
	*held += bytes;
	FAULT_POINT("between");
	device->row->used_bytes += (uint64_t)bytes;
	if (device->row->used_bytes > device->row->peak_bytes) {
		device->row->peak_bytes = device->row->used_bytes;
	}
}

static bool
try_charge(struct device *device, struct slot *slot, unsigned kind, uint64_t bytes, uint64_t limit)
{
	if (!state_lock(device->row)) {
		return false;
	}
	uint64_t used = device->row->used_bytes;
	bool fits = used <= limit && bytes <= limit - used;
	if (fits) {
		adjust(device, slot, kind, (int64_t)bytes);
	}
	state_unlock(device->row);
	return fits;
}

static void
tell_once(struct device *device)
{
	if (limits_source() == LIMITS_FILE && device->limits_row < 0 &&
	    !__atomic_exchange_n(&device->told, true, __ATOMIC_RELAXED)) {
		log_line(LOG_ERROR,
			 "device %d is not among the devices of this container's limits: every "
			 "allocation on it is "
			 "denied; use the devices that the pod was given",
			 device->handle);
	}
}

static void
deny(struct device *device, uint64_t bytes, uint64_t limit)
{
	tell_once(device);
	if (device->row != NULL) {
		__atomic_fetch_add(&device->row->denied_count, 1, __ATOMIC_RELAXED);
		log_line(LOG_DENIAL, "denied %llu bytes: %llu of %llu in use",
			 (unsigned long long)bytes, (unsigned long long)device->row->used_bytes,
			 (unsigned long long)limit);
	}
}

bool
quota_charge(struct device *device, unsigned kind, uint64_t bytes)
{
	if (device == NULL || !device->enforced) {
		return true;
	}
	uint64_t limit = limits_memory(device->limits_row);
	struct slot *slot = device->row == NULL ? NULL : state_slot();
	if (slot == NULL) {
		return false;
	}
	if (try_charge(device, slot, kind, bytes, limit) ||
	    (state_reap() > 0 && try_charge(device, slot, kind, bytes, limit))) {
		return true;
	}
	deny(device, bytes, limit);
	return false;
}

static struct slot *
slot_for(const struct device *device)
{
	return device == NULL || !device->enforced || device->row == NULL ? NULL : state_slot();
}

static void
change(struct device *device, unsigned kind, int64_t bytes)
{
	struct slot *slot = slot_for(device);
	if (slot != NULL && bytes != 0 && state_lock(device->row)) {
		adjust(device, slot, kind, bytes);
		state_unlock(device->row);
	}
}

void
quota_refund(struct device *device, unsigned kind, uint64_t bytes)
{
	change(device, kind, -(int64_t)bytes);
}

void
quota_add(struct device *device, unsigned kind, uint64_t bytes)
{
	change(device, kind, (int64_t)bytes);
}

void
quota_convert(struct device *device, unsigned from, unsigned to, uint64_t bytes)
{
	struct slot *slot = slot_for(device);
	if (slot != NULL && state_lock(device->row)) {
		adjust(device, slot, from, -(int64_t)bytes);
		adjust(device, slot, to, (int64_t)bytes);
		state_unlock(device->row);
	}
}

bool
quota_settle(struct device *device, unsigned kind, uint64_t charged, uint64_t actual)
{
	if (actual > charged) {
		return quota_charge(device, kind, actual - charged);
	}
	quota_refund(device, kind, charged - actual);
	return true;
}

static void
reap_now_and_then(struct device *device)
{
	static uint64_t last_ns;
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	uint64_t now_ns = (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
	uint64_t before = __atomic_load_n(&last_ns, __ATOMIC_RELAXED);
	struct slot *slot = slot_for(device);
	bool alone =
	    slot != NULL && state_slot_bytes(slot, device->row_index) == device->row->used_bytes;
	if (!alone && now_ns - before >= REAP_INTERVAL_NS) {
		__atomic_store_n(&last_ns, now_ns, __ATOMIC_RELAXED);
		state_reap();
	}
}

struct quota_view
quota_view(struct device *device)
{
	struct quota_view view = {NO_MEMORY_LIMIT, 0};
	if (device == NULL || !device->enforced) {
		return view;
	}
	view.limit_bytes = limits_memory(device->limits_row);
	if (device->row != NULL) {
		reap_now_and_then(device);
		view.used_bytes = __atomic_load_n(&device->row->used_bytes, __ATOMIC_RELAXED);
	}
	return view;
}

uint64_t
quota_held(const struct device *device, unsigned kind)
{
	struct slot *slot = slot_for(device);
	if (slot == NULL) {
		return 0;
	}
	int64_t held =
	    __atomic_load_n(&slot->devices[device->row_index].held_bytes[kind], __ATOMIC_RELAXED);
	return held > 0 ? (uint64_t)held : 0;
}
