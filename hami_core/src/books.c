/* Threads: any. `own` and the shared figures of a row change under the row's alloc_lock only.
 * Fork: the child holds nothing. */
#include "books.h"

#include <string.h>

#include "faults.h"
#include "log.h"
#include "postfork.h"
#include "process.h"
#include "robust.h"
#include "state.h"

/* What a row says is in use, and whether that can be believed. */
struct sum {
	uint64_t used, doubtful;
};

/* This process's part of a row. */
struct part {
	int64_t held[KINDS];
	uint64_t check; /* of held, for the slot */
	uint64_t total;
	uint64_t exported, imported;
	uint8_t uuid[16];
};

static struct part own[MAX_DEVICES];

/* Odd numbers without a pattern: a change of any one figure changes the sum of products. */
static const uint64_t factors[KINDS] = {
    0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93,
    0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3, 0x589965CC75374CC3,
};
#define MAX_ATTEMPTS 3
#define OWNER_FACTOR 0x1D8E4E27C47D124FULL

uint64_t
books_check(uint64_t value, uint64_t other)
{
	uint64_t mixed = (value ^ 0xA5A5F00DC0FFEE11ULL) * factors[0] + other * factors[1];
	return mixed ^ (mixed >> 31) ? mixed ^ (mixed >> 31) : 1;
}

static uint64_t
check_of(uint64_t owner, const int64_t *held)
{
	uint64_t sum = owner * OWNER_FACTOR;
	for (unsigned kind = 0; kind < KINDS; kind++) {
		sum += (uint64_t)held[kind] * factors[kind];
	}
	return sum;
}

static uint64_t
row_check(const struct state_device *row)
{
	return books_check(row->used_bytes, row->doubtful);
}

bool
books_slot_is_intact(const struct slot *slot)
{
	for (unsigned i = 0; i < MAX_DEVICES; i++) {
		if (slot->devices[i].check != check_of(slot->owner, slot->devices[i].held_bytes)) {
			return false;
		}
	}
	return true;
}

void
books_open_row(struct state_device *device)
{
	device->used_check = row_check(device);
}

static void
write_sum(struct state_device *device, struct sum sum)
{
	device->used_bytes = sum.used;
	device->doubtful = sum.doubtful;
	device->used_check = books_check(sum.used, sum.doubtful);
}

/* Sum up the slots. `suspicious`: something was overwritten, so ask the kernel as well which slots
 * belong to living processes. Row locked. */
static struct sum
recount(unsigned row, bool suspicious)
{
	struct state_file *file = state_file();
	struct slot *mine = state_own_slot();
	struct sum sum = {own[row].total, 0};
	suspicious = suspicious || !state_seal_is_good();
	bool held[MAX_SLOTS];
	if (suspicious) {
		state_held_slots(held);
	}
	uint32_t count = suspicious ? MAX_SLOTS : state_slot_count();
	for (uint32_t i = 0; i < count; i++) {
		const struct slot *slot = &file->slots[i];
		const struct slot_device *part = &slot->devices[row];
		if (slot == mine) {
			continue;
		}
		if (slot->owner != 0 && part->check == check_of(slot->owner, part->held_bytes)) {
			sum.used += state_slot_bytes(slot, row);
		} else if (slot->owner != 0 || (suspicious && held[i])) {
			sum.doubtful = 1;
		}
	}
	write_sum(&file->devices[row], sum);
	return sum;
}

static void
tell_of_damage(void)
{
	static bool told;
	if (!__atomic_exchange_n(&told, true, __ATOMIC_RELAXED)) {
		log_line(LOG_ERROR,
			 "the state file of this container was overwritten: its figures are put "
			 "right from what each process knows; find out what writes to it");
	}
}

static void
write_own_part(struct slot *slot, unsigned row)
{
	memcpy(slot->devices[row].held_bytes, own[row].held, sizeof own[row].held);
	slot->devices[row].check = own[row].check;
	slot->devices[row].exported_bytes = own[row].exported;
	slot->devices[row].imported_bytes = own[row].imported;
}

static void
write_name(unsigned row)
{
	struct state_device *device = &state_file()->devices[row];
	memcpy(device->uuid, own[row].uuid, sizeof device->uuid);
	device->in_use = 1;
	state_file()->header.row_identity[row] = state_identity(own[row].uuid);
}

/* `sum` is what was read, once: the shared word may be another one the next moment. */
static bool
is_intact(const struct state_device *device, const struct slot *slot, unsigned row,
	  const struct sum *sum)
{
	const struct slot_device *part = &slot->devices[row];
	return device->used_check == books_check(sum->used, sum->doubtful) &&
	       sum->used >= own[row].total && device->in_use == 1 &&
	       memcmp(device->uuid, own[row].uuid, 16) == 0 && part->check == own[row].check &&
	       memcmp(part->held_bytes, own[row].held, sizeof own[row].held) == 0;
}

/* Lock a row and make it true. `slot` is this process's; `sum` becomes what the row says then. */
static bool
lock_row(unsigned row, struct slot *slot, struct sum *sum)
{
	struct state_device *device = &state_file()->devices[row];
	enum robust_result result = robust_lock(device->alloc_lock);
	if (result == ROBUST_BROKEN) {
		return false;
	}
	*sum = (struct sum){device->used_bytes, device->doubtful};
	if (!is_intact(device, slot, row, sum)) {
		if (device->used_check != 0 || device->used_bytes != 0) {
			tell_of_damage();
			__atomic_fetch_add(&state_file()->header.repairs, 1, __ATOMIC_RELAXED);
		}
		write_own_part(slot, row);
		write_name(row);
		*sum = recount(row, true);
	} else if (result == ROBUST_RECOVERED) {
		*sum = recount(row, false);
	}
	if (result == ROBUST_RECOVERED) {
		__atomic_fetch_add(&state_file()->header.recovered_locks, 1, __ATOMIC_RELAXED);
	}
	FAULT_POINT("locked");
	return true;
}

/* False: the lock was taken away in between. */
static bool
unlock_row(unsigned row)
{
	FAULT_POINT("unlock");
	bool kept = robust_unlock(state_file()->devices[row].alloc_lock);
	FAULT_POINT("unlocked");
	return kept;
}

static int64_t
no_less_than_held(const struct part *part, unsigned kind, int64_t bytes)
{
	return part->held[kind] + bytes < 0 ? -part->held[kind] : bytes;
}

/* Own memory first, then the slot, then the sum: a process that dies in between has counted too
 * much rather than too little. */
static void
add(unsigned row, struct slot *slot, struct sum *sum, unsigned kind, int64_t bytes)
{
	struct part *part = &own[row];
	struct state_device *device = &state_file()->devices[row];
	bytes = no_less_than_held(part, kind, bytes);
	part->held[kind] += bytes;
	part->total += (uint64_t)bytes;
	part->check += (uint64_t)bytes * factors[kind];
	FAULT_POINT("before-held");
	slot->devices[row].held_bytes[kind] = part->held[kind];
	slot->devices[row].check = part->check;
	FAULT_POINT("between");
	sum->used += (uint64_t)bytes;
	write_sum(device, *sum);
	if (sum->used > device->peak_bytes) {
		device->peak_bytes = sum->used;
	}
}

/* The row cannot be locked: keep the truth here, the next change writes it out. */
static void
change_unlocked(unsigned row, unsigned kind, int64_t bytes)
{
	struct part *part = &own[row];
	bytes = no_less_than_held(part, kind, bytes);
	__atomic_fetch_add(&part->held[kind], bytes, __ATOMIC_RELAXED);
	__atomic_fetch_add(&part->total, (uint64_t)bytes, __ATOMIC_RELAXED);
	__atomic_fetch_add(&part->check, (uint64_t)bytes * factors[kind], __ATOMIC_RELAXED);
}

/* A process that lost its lock may have overwritten what the next holder wrote. */
static void
recount_after_loss(unsigned row, struct slot *slot)
{
	struct sum sum;
	for (int attempt = 0; attempt < MAX_ATTEMPTS && lock_row(row, slot, &sum); attempt++) {
		recount(row, true);
		if (unlock_row(row)) {
			return;
		}
	}
}

void
books_change(unsigned row, unsigned kind, int64_t bytes)
{
	struct slot *slot = state_slot();
	struct sum sum;
	if (slot == NULL || !lock_row(row, slot, &sum)) {
		change_unlocked(row, kind, bytes);
		return;
	}
	add(row, slot, &sum, kind, bytes);
	if (!unlock_row(row)) {
		recount_after_loss(row, slot);
	}
}

/* While the lock was gone others may have been granted the same bytes: is what was reserved within
 * the limit all the same? */
static bool
still_fits(unsigned row, struct slot *slot, uint64_t limit)
{
	struct sum sum;
	for (int attempt = 0; attempt < MAX_ATTEMPTS && lock_row(row, slot, &sum); attempt++) {
		sum = recount(row, true);
		if (unlock_row(row)) {
			return sum.doubtful == 0 && sum.used <= limit;
		}
	}
	return false;
}

enum reserved
books_reserve(unsigned row, unsigned kind, uint64_t bytes, uint64_t limit)
{
	struct slot *slot = state_slot();
	struct sum sum;
	if (slot == NULL || !lock_row(row, slot, &sum)) {
		return REFUSED;
	}
	bool fits = sum.doubtful == 0 && sum.used <= limit && bytes <= limit - sum.used;
	if (fits) {
		add(row, slot, &sum, kind, (int64_t)bytes);
	}
	bool kept = unlock_row(row);
	if (!fits) {
		return sum.doubtful != 0 ? REFUSED_IN_DOUBT : REFUSED;
	}
	if (kept || still_fits(row, slot, limit)) {
		return RESERVED;
	}
	books_change(row, kind, -(int64_t)bytes);
	return REFUSED_IN_DOUBT;
}

void
books_convert(unsigned row, unsigned from, unsigned to, uint64_t bytes)
{
	books_change(row, to, (int64_t)bytes);
	books_change(row, from, -(int64_t)bytes);
}

uint64_t
books_held(unsigned row, unsigned kind)
{
	int64_t held = __atomic_load_n(&own[row].held[kind], __ATOMIC_RELAXED);
	return held > 0 ? (uint64_t)held : 0;
}

uint64_t
books_held_total(unsigned row)
{
	return __atomic_load_n(&own[row].total, __ATOMIC_RELAXED);
}

void
books_name(unsigned row, const uint8_t uuid[16])
{
	memcpy(own[row].uuid, uuid, sizeof own[row].uuid);
}

void
books_restore(struct slot *slot)
{
	uint64_t owner = process_self();
	for (unsigned row = 0; row < MAX_DEVICES; row++) {
		own[row].check = check_of(owner, own[row].held);
		write_own_part(slot, row);
	}
	__atomic_store_n(&slot->owner, owner, __ATOMIC_RELEASE);
	for (unsigned row = 0; row < MAX_DEVICES; row++) {
		struct sum sum;
		if (own[row].total != 0 && lock_row(row, slot, &sum)) {
			recount(row, true);
			unlock_row(row);
		}
	}
}

static void
write_shares(unsigned row)
{
	struct slot *slot = state_slot();
	if (slot != NULL) {
		slot->devices[row].exported_bytes = own[row].exported;
		slot->devices[row].imported_bytes = own[row].imported;
	}
}

void
books_exported(unsigned row, int64_t bytes)
{
	__atomic_fetch_add(&own[row].exported, (uint64_t)bytes, __ATOMIC_RELAXED);
	write_shares(row);
}

void
books_imported(unsigned row, int64_t bytes)
{
	__atomic_fetch_add(&own[row].imported, (uint64_t)bytes, __ATOMIC_RELAXED);
	write_shares(row);
}

/* What of a dead process's memory the living still use. */
static uint64_t
still_used(const struct slot *slot, unsigned row, const bool dead[MAX_SLOTS])
{
	uint64_t held = state_slot_bytes(slot, row);
	uint64_t most = slot->devices[row].exported_bytes;
	uint64_t imported = 0;
	most = most < held ? most : held;
	for (uint32_t i = 0; i < state_slot_count() && imported < most; i++) {
		const struct slot *other = &state_file()->slots[i];
		if (other->owner != 0 && !dead[i]) {
			uint64_t more = other->devices[row].imported_bytes;
			imported += more < most ? more : most;
		}
	}
	return imported < most ? imported : most;
}

enum emptied
books_empty(struct slot *slot, const bool dead[MAX_SLOTS])
{
	bool intact = books_slot_is_intact(slot);
	bool changed = false, rest = false;
	for (unsigned row = 0; row < MAX_DEVICES; row++) {
		struct slot_device *part = &slot->devices[row];
		uint64_t keep = intact ? still_used(slot, row, dead) : 0;
		rest = rest || keep > 0;
		uint64_t *lock = state_file()->devices[row].alloc_lock;
		if ((intact && state_slot_bytes(slot, row) == keep) ||
		    robust_lock(lock) == ROBUST_BROKEN) {
			continue;
		}
		uint64_t exported = part->exported_bytes;
		memset(part, 0, sizeof *part);
		part->held_bytes[KIND_DATA] = (int64_t)keep;
		part->exported_bytes = exported;
		part->check = check_of(slot->owner, part->held_bytes);
		robust_unlock(lock);
		changed = true;
	}
	return !rest ? EMPTIED : (changed ? EMPTIED_IN_PART : EMPTIED_NOTHING);
}

void
books_recount_all(void)
{
	for (unsigned row = 0; row < MAX_DEVICES; row++) {
		struct state_device *device = &state_file()->devices[row];
		if (device->in_use == 0 && device->used_bytes == 0) {
			continue;
		}
		if (robust_lock(device->alloc_lock) != ROBUST_BROKEN) {
			FAULT_POINT("reap");
			recount(row, device->used_check != row_check(device));
			unlock_row(row);
		}
	}
}

bool
books_recount(unsigned row)
{
	struct state_device *device = &state_file()->devices[row];
	if (robust_lock(device->alloc_lock) == ROBUST_BROKEN) {
		return false;
	}
	bool good = device->doubtful == 0 || recount(row, true).doubtful == 0;
	unlock_row(row);
	return good;
}

void
books_postfork_child(void)
{
	for (unsigned row = 0; row < MAX_DEVICES; row++) {
		struct part empty = {.total = 0};
		memcpy(empty.uuid, own[row].uuid, sizeof empty.uuid);
		own[row] = empty;
	}
}
