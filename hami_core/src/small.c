/* Threads: any. Page counts live in the block table; changes of one process's counts are serialised
 * by pages_lock. Fork: the child starts with no spare page (its slot holds nothing either). */
#include "small.h"

#include <string.h>

#include "charges.h"
#include "lock.h"
#include "postfork.h"

static struct lock pages_lock;
static int32_t spares[MAX_DEVICES];

static bool
take_spare(struct device *device)
{
	int32_t *spare = &spares[device_number(device)];
	int32_t count = __atomic_load_n(spare, __ATOMIC_RELAXED);
	while (count > 0) {
		if (__atomic_compare_exchange_n(spare, &count, count - 1, 0, __ATOMIC_RELAXED,
						__ATOMIC_RELAXED)) {
			return true;
		}
	}
	return false;
}

/* Keep one page for the next allocation, give the others back. */
static void
return_spare(struct device *device)
{
	int32_t none = 0;
	if (!__atomic_compare_exchange_n(&spares[device_number(device)], &none, 1, 0,
					 __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
		quota_refund(device, KIND_DATA, LARGE_UNIT);
	}
}

bool
small_give_back(struct device *device)
{
	bool any = false;
	while (take_spare(device)) {
		quota_refund(device, KIND_DATA, LARGE_UNIT);
		any = true;
	}
	return any;
}

bool
small_begin(struct device *device)
{
	return take_spare(device) || quota_charge(device, KIND_DATA, LARGE_UNIT);
}

static bool
page_add(struct device *device, uint64_t page)
{
	struct block block = {.key = page, .space = SPACE_CHUNK, .device = device_number(device)};
	bool known = block_take(SPACE_CHUNK, page, &block);
	block.count++;
	block_put(&block);
	return !known;
}

static bool
page_remove(uint64_t page)
{
	struct block block;
	if (!block_take(SPACE_CHUNK, page, &block)) {
		return false;
	}
	if (--block.count > 0) {
		block_put(&block);
		return false;
	}
	return true;
}

static uint64_t
first_page(uint64_t address)
{
	return address / LARGE_UNIT;
}

static uint64_t
last_page(uint64_t address, uint64_t bytes)
{
	return (address + bytes - 1) / LARGE_UNIT;
}

bool
small_placed(struct device *device, uint64_t address, uint64_t bytes)
{
	uint64_t fresh = 0;
	lock_acquire(&pages_lock);
	for (uint64_t page = first_page(address); page <= last_page(address, bytes); page++) {
		fresh += page_add(device, page);
	}
	lock_release(&pages_lock);
	if (fresh > 1 && !quota_charge(device, KIND_DATA, (fresh - 1) * LARGE_UNIT)) {
		lock_acquire(&pages_lock);
		for (uint64_t page = first_page(address); page <= last_page(address, bytes);
		     page++) {
			page_remove(page);
		}
		lock_release(&pages_lock);
		small_cancel(device);
		return false;
	}
	if (fresh == 0) {
		return_spare(device);
	}
	return true;
}

void
small_cancel(struct device *device)
{
	return_spare(device);
}

void
small_freed(struct device *device, uint64_t address, uint64_t bytes)
{
	for (uint64_t page = first_page(address); page <= last_page(address, bytes); page++) {
		lock_acquire(&pages_lock);
		bool gone = page_remove(page);
		lock_release(&pages_lock);
		if (gone) {
			return_spare(device);
		}
	}
}

void
small_postfork_child(void)
{
	pages_lock = (struct lock){0};
	memset(spares, 0, sizeof spares);
}
