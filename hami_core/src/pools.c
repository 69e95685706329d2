/* The pools that this process allocates from, and what each was charged.
 *
 * A pool reserves device memory in steps of its own and gives it back when it likes, so a pool is
 * charged by its reservation: an allocation that could make it grow is charged first for the most
 * it can need, and settled to the truth afterwards. Threads: any, one allocation at a time per
 * table lock. Fork: the child starts empty.
 */
#include "pools.h"

#include "charges.h"
#include "driver.h"
#include "hooks.h"
#include "lock.h"
#include "postfork.h"

#define MAX_POOLS 256

struct pool_entry {
	cu_pool pool;
	struct device *device;
	uint64_t charged;
	uint64_t before; /* reserved by the pool when an allocation began */
	uint64_t step;   /* by which the driver was seen to let it grow; 0: not seen yet */
	bool imported;   /* the exporter is charged for it */
};

static struct pool_entry entries[MAX_POOLS];
static struct lock pools_lock;

static struct pool_entry *
find_entry(cu_pool pool)
{
	for (unsigned i = 0; i < MAX_POOLS; i++) {
		if (entries[i].pool == pool) {
			return &entries[i];
		}
	}
	return NULL;
}

static struct pool_entry *
entry_for(cu_pool pool, struct device *device)
{
	struct pool_entry *entry = find_entry(pool);
	if (entry == NULL && (entry = find_entry(NULL)) != NULL) {
		*entry = (struct pool_entry){.pool = pool, .device = device};
	}
	return entry;
}

static uint64_t
pool_attribute(cu_pool pool, int attribute)
{
	uint64_t value = 0;
	if (driver()->cuMemPoolGetAttribute == NULL ||
	    driver()->cuMemPoolGetAttribute(pool, attribute, &value) != CU_OK) {
		return 0;
	}
	return value;
}

static void
settle_entry(struct pool_entry *entry)
{
	uint64_t reserved =
	    entry->imported ? 0 : pool_attribute(entry->pool, CU_POOL_RESERVED_CURRENT);
	if (reserved > entry->charged) {
		quota_add(entry->device, KIND_POOL, reserved - entry->charged);
	} else {
		quota_refund(entry->device, KIND_POOL, entry->charged - reserved);
	}
	entry->charged = reserved;
}

void
pools_settle(cu_pool pool)
{
	lock_acquire(&pools_lock);
	struct pool_entry *entry = pool == NULL ? NULL : find_entry(pool);
	if (entry != NULL) {
		settle_entry(entry);
	}
	lock_release(&pools_lock);
}

void
pools_settle_all(struct device *device)
{
	lock_acquire(&pools_lock);
	for (unsigned i = 0; i < MAX_POOLS && entries[i].pool != NULL; i++) {
		if (entries[i].device == device) {
			settle_entry(&entries[i]);
		}
	}
	lock_release(&pools_lock);
}

static void
trim_locked(struct device *device)
{
	for (unsigned i = 0; i < MAX_POOLS && entries[i].pool != NULL; i++) {
		if (entries[i].device == device && !entries[i].imported &&
		    driver()->cuMemPoolTrimTo != NULL) {
			driver()->cuMemPoolTrimTo(entries[i].pool, 0);
			settle_entry(&entries[i]);
		}
	}
}

bool
pools_give_back(struct device *device)
{
	uint64_t before = quota_held(device, KIND_POOL);
	if (before == 0) {
		return false;
	}
	lock_acquire(&pools_lock);
	trim_locked(device);
	lock_release(&pools_lock);
	return quota_held(device, KIND_POOL) < before;
}

/* Charge the growth that `bytes` more can cause; false when the quota cannot hold it. */
static bool
reserve(struct pool_entry *entry, uint64_t bytes)
{
	uint64_t used = pool_attribute(entry->pool, CU_POOL_USED_CURRENT);
	settle_entry(entry);
	uint64_t spare = entry->charged > used ? entry->charged - used : 0;
	uint64_t step = entry->step > 0 ? entry->step : LARGE_UNIT;
	uint64_t growth = bytes > spare ? round_up(bytes - spare, step) : 0;
	entry->before = entry->charged;
	if (growth > 0 && !quota_charge(entry->device, KIND_POOL, growth)) {
		return false;
	}
	entry->charged += growth;
	return true;
}

enum pool_kind { POOL_LEGACY, POOL_PER_THREAD };

struct pool_request {
	cu_pool pool;
	uint64_t bytes;
	cu_stream stream;
	enum pool_kind kind;
	bool from_pool; /* the FromPool form */
};

static cu_result
call_driver(const struct pool_request *request, cu_deviceptr *address)
{
	const struct driver_table *real = driver();
	if (request->from_pool) {
		return request->kind == POOL_PER_THREAD
			   ? real->cuMemAllocFromPoolAsync_ptsz(address, request->bytes,
								request->pool, request->stream)
			   : real->cuMemAllocFromPoolAsync(address, request->bytes, request->pool,
							   request->stream);
	}
	return request->kind == POOL_PER_THREAD
		   ? real->cuMemAllocAsync_ptsz(address, request->bytes, request->stream)
		   : real->cuMemAllocAsync(address, request->bytes, request->stream);
}

static cu_result
free_async(cu_deviceptr address, cu_stream stream, enum pool_kind kind)
{
	return kind == POOL_PER_THREAD ? driver()->cuMemFreeAsync_ptsz(address, stream)
				       : driver()->cuMemFreeAsync(address, stream);
}

/* The largest power of two that divides every growth seen: charged ahead the next time, so that the
 * driver does not hold more than the quota even for the moment until its growth is known. */
static void
learn_step(struct pool_entry *entry, uint64_t reserved)
{
	uint64_t grown = reserved > entry->before ? reserved - entry->before : 0;
	uint64_t step = grown & (~grown + 1);
	if (step >= LARGE_UNIT && (entry->step == 0 || step < entry->step)) {
		entry->step = step;
	}
}

/* The driver reserved more than was charged: charge it, or undo the allocation. */
static bool
accept_growth(struct pool_entry *entry)
{
	uint64_t reserved = pool_attribute(entry->pool, CU_POOL_RESERVED_CURRENT);
	learn_step(entry, reserved);
	if (reserved <= entry->charged) {
		settle_entry(entry);
		return true;
	}
	if (quota_charge(entry->device, KIND_POOL, reserved - entry->charged)) {
		entry->charged = reserved;
		return true;
	}
	return false;
}

static cu_result
allocate_charged(struct pool_entry *entry, const struct pool_request *request,
		 cu_deviceptr *address)
{
	if (!reserve(entry, request->bytes)) {
		trim_locked(entry->device);
		if (!reserve(entry, request->bytes)) {
			return CU_OUT_OF_MEMORY;
		}
	}
	cu_result result = call_driver(request, address);
	if (result != CU_OK) {
		settle_entry(entry);
		return result;
	}
	if (!accept_growth(entry)) {
		free_async(*address, request->stream, request->kind);
		driver()->cuMemPoolTrimTo(entry->pool, 0);
		settle_entry(entry);
		return CU_OUT_OF_MEMORY;
	}
	return CU_OK;
}

static bool
is_capturing(const struct pool_request *request)
{
	int status = CU_CAPTURE_NONE;
	cu_result (*query)(cu_stream, int *) = request->kind == POOL_PER_THREAD
						   ? driver()->cuStreamIsCapturing_ptsz
						   : driver()->cuStreamIsCapturing;
	return query != NULL && query(request->stream, &status) == CU_OK &&
	       status != CU_CAPTURE_NONE;
}

static cu_result
allocate(const struct pool_request *request, struct device *device, cu_deviceptr *address)
{
	if (device == NULL || device->row == NULL || address == NULL || request->pool == NULL ||
	    is_capturing(request)) {
		return device != NULL && device->enforced && device->row == NULL
			   ? CU_OUT_OF_MEMORY
			   : call_driver(request, address);
	}
	lock_acquire(&pools_lock);
	struct pool_entry *entry = entry_for(request->pool, device);
	bool imported = entry != NULL && entry->imported;
	cu_result result = entry == NULL ? CU_OUT_OF_MEMORY
			   : imported    ? call_driver(request, address)
					 : allocate_charged(entry, request, address);
	lock_release(&pools_lock);
	if (result == CU_OK) {
		charge_remember(device, SPACE_ADDRESS, *address, KIND_POOL, 0,
				(uint64_t)(uintptr_t)request->pool);
	}
	return result;
}

static cu_pool
current_pool(const struct device *device)
{
	cu_pool pool = NULL;
	if (device != NULL && driver()->cuDeviceGetMemPool != NULL) {
		driver()->cuDeviceGetMemPool(&pool, device->handle);
	}
	return pool;
}

static struct device *
pool_device(cu_pool pool)
{
	lock_acquire(&pools_lock);
	struct pool_entry *entry = pool == NULL ? NULL : find_entry(pool);
	struct device *device = entry == NULL ? NULL : entry->device;
	lock_release(&pools_lock);
	return device != NULL ? device : device_current();
}

EXPORTED cu_result
cuMemAllocAsync(cu_deviceptr *address, size_t bytes, cu_stream stream)
{
	if (driver()->cuMemAllocAsync == NULL) {
		return CU_NOT_SUPPORTED;
	}
	struct device *device = device_current();
	struct pool_request request = {current_pool(device), bytes, stream, POOL_LEGACY, false};
	return allocate(&request, device, address);
}

EXPORTED cu_result
cuMemAllocAsync_ptsz(cu_deviceptr *address, size_t bytes, cu_stream stream)
{
	if (driver()->cuMemAllocAsync_ptsz == NULL) {
		return CU_NOT_SUPPORTED;
	}
	struct device *device = device_current();
	struct pool_request request = {current_pool(device), bytes, stream, POOL_PER_THREAD, false};
	return allocate(&request, device, address);
}

EXPORTED cu_result
cuMemAllocFromPoolAsync(cu_deviceptr *address, size_t bytes, cu_pool pool, cu_stream stream)
{
	if (driver()->cuMemAllocFromPoolAsync == NULL) {
		return CU_NOT_SUPPORTED;
	}
	struct pool_request request = {pool, bytes, stream, POOL_LEGACY, true};
	return allocate(&request, pool_device(pool), address);
}

EXPORTED cu_result
cuMemAllocFromPoolAsync_ptsz(cu_deviceptr *address, size_t bytes, cu_pool pool, cu_stream stream)
{
	if (driver()->cuMemAllocFromPoolAsync_ptsz == NULL) {
		return CU_NOT_SUPPORTED;
	}
	struct pool_request request = {pool, bytes, stream, POOL_PER_THREAD, true};
	return allocate(&request, pool_device(pool), address);
}

static cu_result
release(cu_deviceptr address, cu_stream stream, enum pool_kind kind)
{
	struct block block;
	bool known = block_take(SPACE_ADDRESS, address, &block);
	cu_result result = free_async(address, stream, kind);
	charge_freed(result, known, &block);
	return result;
}

EXPORTED cu_result
cuMemFreeAsync(cu_deviceptr address, cu_stream stream)
{
	return driver()->cuMemFreeAsync == NULL ? CU_NOT_SUPPORTED
						: release(address, stream, POOL_LEGACY);
}

EXPORTED cu_result
cuMemFreeAsync_ptsz(cu_deviceptr address, cu_stream stream)
{
	return driver()->cuMemFreeAsync_ptsz == NULL ? CU_NOT_SUPPORTED
						     : release(address, stream, POOL_PER_THREAD);
}

static void
register_pool(cu_pool pool, struct device *device, bool imported)
{
	if (device == NULL || device->row == NULL) {
		return;
	}
	lock_acquire(&pools_lock);
	struct pool_entry *entry = entry_for(pool, device);
	if (entry != NULL) {
		entry->imported = imported;
	}
	lock_release(&pools_lock);
}

EXPORTED cu_result
cuMemPoolCreate(cu_pool *pool, const struct cu_pool_props *props)
{
	if (driver()->cuMemPoolCreate == NULL) {
		return CU_NOT_SUPPORTED;
	}
	cu_result result = driver()->cuMemPoolCreate(pool, props);
	if (result == CU_OK && props->location.type == CU_LOCATION_DEVICE) {
		register_pool(*pool, device_of(props->location.id), false);
	}
	return result;
}

EXPORTED cu_result
cuMemPoolImportFromShareableHandle(cu_pool *pool, void *handle, int type, unsigned long long flags)
{
	if (driver()->cuMemPoolImportFromShareableHandle == NULL) {
		return CU_NOT_SUPPORTED;
	}
	cu_result result = driver()->cuMemPoolImportFromShareableHandle(pool, handle, type, flags);
	if (result == CU_OK) {
		register_pool(*pool, device_current(), true);
	}
	return result;
}

EXPORTED cu_result
cuMemPoolDestroy(cu_pool pool)
{
	if (driver()->cuMemPoolDestroy == NULL) {
		return CU_NOT_SUPPORTED;
	}
	lock_acquire(&pools_lock);
	struct pool_entry *entry = pool == NULL ? NULL : find_entry(pool);
	cu_result result = driver()->cuMemPoolDestroy(pool);
	if (result == CU_OK && entry != NULL) {
		quota_refund(entry->device, KIND_POOL, entry->charged);
		unsigned last = 0;
		while (last + 1 < MAX_POOLS && entries[last + 1].pool != NULL) {
			last++;
		}
		*entry = entries[last];
		entries[last] = (struct pool_entry){.pool = NULL};
	}
	lock_release(&pools_lock);
	return result;
}

EXPORTED cu_result
cuMemPoolTrimTo(cu_pool pool, size_t keep)
{
	cu_result result = driver()->cuMemPoolTrimTo == NULL
			       ? CU_NOT_SUPPORTED
			       : driver()->cuMemPoolTrimTo(pool, keep);
	pools_settle(pool);
	return result;
}

EXPORTED cu_result
cuMemPoolSetAttribute(cu_pool pool, int attribute, void *value)
{
	if (driver()->cuMemPoolSetAttribute == NULL) {
		return CU_NOT_SUPPORTED;
	}
	cu_result result = driver()->cuMemPoolSetAttribute(pool, attribute, value);
	pools_settle(pool);
	return result;
}

void
pools_postfork_child(void)
{
	pools_lock = (struct lock){0};
	for (unsigned i = 0; i < MAX_POOLS; i++) {
		entries[i] = (struct pool_entry){.pool = NULL};
	}
}
