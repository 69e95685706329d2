/* Threads: any, after state_open. Fork: the child takes a slot of its own at its first call. */
#include "state.h"

#include <string.h>
#include <unistd.h>

#include "books.h"
#include "faults.h"
#include "lock.h"
#include "log.h"
#include "postfork.h"
#include "process.h"
#include "robust.h"
#include "state_file.h"

static struct slot *own_slot;
static struct lock slot_lock;

uint32_t
state_slot_count(void)
{
	uint32_t high = __atomic_load_n(&state_file()->header.slots_high, __ATOMIC_RELAXED);
	return high < MAX_SLOTS ? high : MAX_SLOTS;
}

static uint32_t
slot_number(const struct slot *slot)
{
	return (uint32_t)(slot - state_file()->slots) + 1;
}

/* Check word over the number of slots and their owners. */
static uint64_t
seal_of(void)
{
	uint64_t sum = 0;
	uint32_t count = state_slot_count();
	for (uint32_t i = 0; i < count; i++) {
		uint64_t owner = __atomic_load_n(&state_file()->slots[i].owner, __ATOMIC_RELAXED);
		sum += owner == 0 ? 0 : books_check(owner, i);
	}
	return books_check(sum, state_file()->header.slots_high);
}

bool
state_seal_is_good(void)
{
	return state_file()->header.slots_check == seal_of();
}

static off_t
slot_offset(const struct slot *slot)
{
	return (off_t)((const char *)slot - (const char *)state_file());
}

static bool
any_is_held(uint32_t from, uint32_t count)
{
	return state_file_is_held(slot_offset(&state_file()->slots[from]),
				  sizeof(struct slot) * count) == HELD_BY_OTHERS;
}

static void
find_held(uint32_t from, uint32_t count, bool *held)
{
	if (!any_is_held(from, count)) {
		return;
	}
	if (count == 1) {
		held[from] = true;
		return;
	}
	find_held(from, count / 2, held);
	find_held(from + count / 2, count - count / 2, held);
}

void
state_held_slots(bool held[MAX_SLOTS])
{
	memset(held, 0, MAX_SLOTS * sizeof *held);
	find_held(0, MAX_SLOTS, held);
}

/* Is there a slot whose process lives but which says something else? */
static bool
any_slot_is_damaged(void)
{
	bool held[MAX_SLOTS];
	state_held_slots(held);
	for (uint32_t i = 0; i < MAX_SLOTS; i++) {
		const struct slot *slot = &state_file()->slots[i];
		if (held[i] && slot != own_slot &&
		    (slot->owner == 0 || i >= state_slot_count() || !books_slot_is_intact(slot))) {
			return true;
		}
	}
	return false;
}

/* After damage: the number of slots that covers all that are taken. */
static void
find_slot_count(void)
{
	for (uint32_t i = MAX_SLOTS; i > 0; i--) {
		if (state_file()->slots[i - 1].owner != 0) {
			state_file()->header.slots_high = i;
			return;
		}
	}
	state_file()->header.slots_high = 0;
}

static bool registry_was_sealed; /* as found when the registry was locked, which guards it */

static bool
registry_lock(void)
{
	enum robust_result result = robust_lock(state_file()->header.registry_lock);
	if (result == ROBUST_BROKEN) {
		return false;
	}
	if (result == ROBUST_RECOVERED) {
		state_file()->header.recovered_locks++;
	}
	if (state_file()->header.magic != STATE_MAGIC ||
	    state_file()->header.version != STATE_VERSION) {
		state_file_initialise(state_file());
	}
	registry_was_sealed = state_seal_is_good();
	if (!registry_was_sealed) {
		find_slot_count();
	}
	FAULT_POINT("registry");
	return true;
}

/* A seal that was broken stays so until every living process has put its slot right: meanwhile all
 * counting asks the kernel who lives. */
static void
registry_unlock(void)
{
	bool good = registry_was_sealed || !any_slot_is_damaged();
	if (own_slot != NULL && slot_number(own_slot) > state_slot_count()) {
		state_file()->header.slots_high = slot_number(own_slot);
	}
	state_file()->header.slots_check = good ? seal_of() : 0;
	robust_unlock(state_file()->header.registry_lock);
}

/* Dead: its pid is gone or reused; where the pid tells nothing: nobody holds its byte lock. That is
 * so for a damaged slot, in another pid namespace, and for a slot that bears our own pid and start:
 * it is that of another copy of this library in our process, or of a process that ended within the
 * clock tick in which we got its pid. */
static bool
slot_is_dead(const struct slot *slot)
{
	uint64_t owner = __atomic_load_n(&slot->owner, __ATOMIC_ACQUIRE);
	if (owner == 0 || slot == own_slot) {
		return false;
	}
	bool here = slot->pid_namespace == process_own_namespace() || slot->pid_namespace == 0;
	if (here && books_slot_is_intact(slot)) {
		if (!process_alive(owner)) {
			return true;
		}
		if (process_owner_pid(owner) != (uint32_t)getpid()) {
			return false;
		}
	}
	return state_file_is_held(slot_offset(slot), 1) == HELD_BY_NOBODY;
}

uint64_t
state_slot_bytes(const struct slot *slot, unsigned device)
{
	int64_t sum = 0;
	for (unsigned kind = 0; kind < KINDS; kind++) {
		sum += __atomic_load_n(&slot->devices[device].held_bytes[kind], __ATOMIC_RELAXED);
	}
	return sum > 0 ? (uint64_t)sum : 0;
}

/* The slots keep their owners until all is counted: whoever is killed here leaves the work to the
 * next. */
static unsigned
reap_locked(void)
{
	bool dead[MAX_SLOTS] = {false}, empty[MAX_SLOTS] = {false};
	unsigned reaped = 0;
	uint32_t count = state_slot_count();
	for (uint32_t i = 0; i < count; i++) {
		dead[i] = slot_is_dead(&state_file()->slots[i]);
	}
	for (uint32_t i = 0; i < count; i++) {
		enum emptied emptied =
		    dead[i] ? books_empty(&state_file()->slots[i], dead) : EMPTIED_NOTHING;
		empty[i] = emptied == EMPTIED;
		reaped += emptied != EMPTIED_NOTHING;
	}
	if (reaped == 0) {
		return 0;
	}
	books_recount_all();
	for (uint32_t i = 0; i < count; i++) {
		if (empty[i]) {
			struct slot *slot = &state_file()->slots[i];
			slot->host_pid = 0;
			slot->unknown_frees = 0;
			__atomic_store_n(&slot->owner, 0, __ATOMIC_RELEASE);
		}
	}
	state_file()->header.reaped_slots += reaped;
	return reaped;
}

unsigned
state_reap(void)
{
	if (state_file() == NULL || !registry_lock()) {
		return 0;
	}
	unsigned reaped = reap_locked();
	registry_unlock();
	return reaped;
}

bool
state_recount(struct state_device *device)
{
	if (!registry_lock()) {
		return false;
	}
	bool good = books_recount(state_device_index(device));
	registry_unlock();
	return good;
}

/* A slot whose byte is held belongs to a living process, whatever stands in it. */
static struct slot *
free_slot(void)
{
	for (uint32_t i = 0; i < MAX_SLOTS; i++) {
		struct slot *slot = &state_file()->slots[i];
		if (slot->owner == 0 && state_file_hold(slot_offset(slot))) {
			return slot;
		}
	}
	return NULL;
}

static struct slot *
claim_slot(void)
{
	struct slot *slot = free_slot();
	if (slot == NULL && reap_locked() > 0) {
		slot = free_slot();
	}
	if (slot == NULL || !state_file_reserve(slot_offset(slot), sizeof *slot)) {
		state_file()->header.refused_slots++;
		return NULL;
	}
	uint32_t number = slot_number(slot);
	if (state_file()->header.slots_high < number) {
		state_file()->header.slots_high = number;
	}
	FAULT_POINT("claim");
	return slot;
}

/* Is our slot still ours? Another process took it if it is in order with another owner: it could
 * only do so where the kernel gives no locks. */
static bool
was_taken(const struct slot *slot)
{
	return slot->owner != 0 && slot->owner != process_self() && books_slot_is_intact(slot);
}

static struct slot *
find_slot(void)
{
	lock_acquire(&slot_lock);
	struct slot *slot = own_slot;
	if ((slot == NULL || slot->owner != process_self()) && registry_lock()) {
		slot = slot == NULL || was_taken(slot) ? claim_slot() : slot;
		if (slot != NULL) {
			slot->pid_namespace = process_own_namespace();
			__atomic_store_n(&own_slot, slot, __ATOMIC_RELEASE);
			books_restore(slot);
		}
		registry_unlock();
		if (slot == NULL) {
			log_line(LOG_ERROR,
				 "%d processes of this container already use the GPU, or its disk "
				 "is full: every allocation is denied",
				 MAX_SLOTS);
		}
	}
	lock_release(&slot_lock);
	return slot;
}

struct slot *
state_own_slot(void)
{
	return __atomic_load_n(&own_slot, __ATOMIC_ACQUIRE);
}

struct slot *
state_slot(void)
{
	struct slot *slot = state_own_slot();
	if (state_file() == NULL || (slot != NULL && slot->owner == process_self())) {
		return slot;
	}
	return find_slot();
}

bool
state_owns_pid(uint32_t pid)
{
	for (uint32_t i = 0; i < state_slot_count(); i++) {
		uint64_t owner = __atomic_load_n(&state_file()->slots[i].owner, __ATOMIC_ACQUIRE);
		if (owner != 0 &&
		    (process_owner_pid(owner) == pid || state_file()->slots[i].host_pid == pid)) {
			return true;
		}
	}
	return false;
}

unsigned
state_device_index(const struct state_device *device)
{
	return (unsigned)(device - state_file()->devices);
}

uint64_t
state_identity(const uint8_t uuid[16])
{
	uint64_t halves[2];
	memcpy(halves, uuid, sizeof halves);
	return books_check(halves[0], halves[1]);
}

static bool
is_free(unsigned row)
{
	return state_file()->devices[row].in_use == 0 &&
	       state_file()->header.row_identity[row] == 0;
}

/* The row bears the device's name in one of the two places. */
static bool
is_row_of(unsigned row, const uint8_t uuid[16])
{
	return state_file()->header.row_identity[row] == state_identity(uuid) ||
	       (state_file()->devices[row].in_use == 1 &&
		memcmp(state_file()->devices[row].uuid, uuid, 16) == 0);
}

/* Bears no name that its second place confirms. */
static bool
is_nameless(unsigned row)
{
	return state_file()->header.row_identity[row] !=
	       state_identity(state_file()->devices[row].uuid);
}

static struct state_device *
find_row(const uint8_t uuid[16])
{
	for (unsigned row = 0; row < MAX_DEVICES; row++) {
		if (is_row_of(row, uuid)) {
			return &state_file()->devices[row];
		}
	}
	for (unsigned row = 0; row < MAX_DEVICES; row++) {
		if (is_free(row) || is_nameless(row)) {
			return &state_file()->devices[row];
		}
	}
	return NULL;
}

struct state_device *
state_device(const uint8_t uuid[16])
{
	if (state_file() == NULL || !registry_lock()) {
		return NULL;
	}
	struct state_device *device = find_row(uuid);
	if (device != NULL) {
		unsigned row = state_device_index(device);
		if (is_free(row) && device->used_bytes == 0 &&
		    (registry_was_sealed || !any_is_held(0, MAX_SLOTS))) {
			books_open_row(device);
		}
		books_name(row, uuid);
		memcpy(device->uuid, uuid, 16);
		FAULT_POINT("row");
		device->in_use = 1;
		state_file()->header.row_identity[row] = state_identity(uuid);
		state_file()->header.device_count = row + 1 > state_file()->header.device_count
							? row + 1
							: state_file()->header.device_count;
	}
	registry_unlock();
	return device;
}

void
state_postfork_child(void)
{
	slot_lock = (struct lock){0};
	own_slot = NULL;
	state_file_postfork_child();
}
