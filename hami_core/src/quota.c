/* Threads: any; books.c guards the figures. */
#include "quota.h"

#include <time.h>

#include "books.h"
#include "log.h"

#define MAX_ATTEMPTS 3
#define REAP_INTERVAL_NS 100000000ULL

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

static bool
is_booked(const struct device *device)
{
	return device != NULL && device->enforced && device->row != NULL;
}

bool
quota_charge(struct device *device, unsigned kind, uint64_t bytes)
{
	if (device == NULL || !device->enforced) {
		return true;
	}
	if (device->row == NULL) {
		return false;
	}
	uint64_t limit = limits_memory(device->limits_row);
	for (int attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
		enum reserved reserved = books_reserve(device->row_index, kind, bytes, limit);
		if (reserved == RESERVED) {
			return true;
		}
		bool again = state_reap() > 0;
		if (reserved == REFUSED_IN_DOUBT) {
			again = state_recount(device->row) || again;
		}
		if (!again) {
			break;
		}
	}
	deny(device, bytes, limit);
	return false;
}

void
quota_refund(struct device *device, unsigned kind, uint64_t bytes)
{
	if (is_booked(device) && bytes != 0) {
		books_change(device->row_index, kind, -(int64_t)bytes);
	}
}

void
quota_add(struct device *device, unsigned kind, uint64_t bytes)
{
	if (is_booked(device) && bytes != 0) {
		books_change(device->row_index, kind, (int64_t)bytes);
	}
}

void
quota_convert(struct device *device, unsigned from, unsigned to, uint64_t bytes)
{
	if (is_booked(device)) {
		books_convert(device->row_index, from, to, bytes);
	}
}

void
quota_exported(struct device *device, int64_t bytes)
{
	if (is_booked(device)) {
		books_exported(device->row_index, bytes);
	}
}

void
quota_imported(struct device *device, int64_t bytes)
{
	if (is_booked(device)) {
		books_imported(device->row_index, bytes);
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
	bool alone = books_held_total(device->row_index) == device->row->used_bytes;
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
	return is_booked(device) ? books_held(device->row_index, kind) : 0;
}
