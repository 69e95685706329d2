/* Memory pools. A pool reserves physical memory in steps of 32 MiB, hands out parts of it, and
 * keeps what is freed until a synchronisation finds more than its release threshold, or TrimTo asks
 * for it. */
#include "pools.h"

#include <stdlib.h>
#include <string.h>

#include "graphs.h"
#include "streams.h"

static const uint64_t POOL_MAGIC = 0x006c6f6f70757067ULL;
static const uint64_t STEP = 32ULL << 20;

enum { MAX_POOLS = 256, LOCATION_DEVICE = 1 };

static struct pool *pools[MAX_POOLS];
static struct pool *defaults[MAX_CARDS];
static struct pool *current[MAX_CARDS];
pthread_mutex_t pools_mutex HIDDEN = PTHREAD_MUTEX_INITIALIZER;

struct pool *
pool_checked(void *handle)
{
	struct pool *pool = handle;
	return pool != NULL && pool->magic == POOL_MAGIC ? pool : NULL;
}

struct pool *
pool_new(int device)
{
	struct pool *pool = calloc(1, sizeof *pool);
	for (unsigned i = 0; pool != NULL && i < MAX_POOLS; i++) {
		if (pools[i] == NULL) {
			pools[i] = pool;
			*pool = (struct pool){.magic = POOL_MAGIC,
					      .device = device,
					      .domain = gpu_at(device)->domain,
					      .reuse = {1, 1, 1}};
			return pool;
		}
	}
	free(pool);
	return NULL;
}

static struct pool *
default_pool(int device)
{
	if (defaults[device] == NULL) {
		defaults[device] = pool_new(device);
		if (defaults[device] != NULL) {
			defaults[device]->is_default = true;
		}
		current[device] = current[device] == NULL ? defaults[device] : current[device];
	}
	return defaults[device];
}

static void
pool_shrink(struct pool *pool, uint64_t keep)
{
	uint64_t floor = keep > pool->used ? keep : pool->used;
	floor = memory_physical(floor);
	if (pool->reserved > floor && !pool->imported) {
		ledger_refund(pool->domain, KIND_POOL, pool->reserved - floor);
		pool->reserved = floor;
	}
}

static void
pool_free(struct pool *pool)
{
	pool_shrink(pool, 0);
	for (unsigned i = 0; i < MAX_POOLS; i++) {
		pools[i] = pools[i] == pool ? NULL : pools[i];
	}
	for (unsigned d = 0; d < MAX_CARDS; d++) {
		current[d] = current[d] == pool ? defaults[d] : current[d];
	}
	pool->magic = 0;
	free(pool);
}

/* Room for `bytes` more in use: by whole steps, or by less when the device is nearly full. */
static bool
pool_grow(struct pool *pool, uint64_t bytes)
{
	uint64_t need = pool->used + bytes;
	if (pool->most != 0 && need > pool->most) {
		return false;
	}
	if (need > pool->reserved) {
		uint64_t step = (need - pool->reserved + STEP - 1) / STEP * STEP;
		if (!ledger_charge(pool->domain, KIND_POOL, step)) {
			step = memory_physical(need - pool->reserved);
			if (!ledger_charge(pool->domain, KIND_POOL, step)) {
				return false;
			}
		}
		pool->reserved += step;
	}
	pool->used = need;
	pool->reserved_high =
	    pool->reserved > pool->reserved_high ? pool->reserved : pool->reserved_high;
	pool->used_high = pool->used > pool->used_high ? pool->used : pool->used_high;
	return true;
}

uint64_t
pooled_size(uint64_t bytes)
{
	return (bytes + 511) / 512 * 512;
}

static cu_result
pool_allocate(struct pool *pool, uint64_t bytes, cu_deviceptr *address)
{
	cu_result result = CU_OUT_OF_MEMORY;
	if (bytes > 1ULL << 44) {
		return result;
	}
	pthread_mutex_lock(&pools_mutex);
	if (pool_grow(pool, pooled_size(bytes))) {
		blocks_lock();
		struct block *block = block_new(pool->device, BLOCK_POOLED, bytes);
		blocks_unlock();
		if (block != NULL) {
			block->pool = pool;
			*address = block->address;
			result = CU_OK;
		} else {
			pool->used -= pooled_size(bytes);
		}
	}
	pthread_mutex_unlock(&pools_mutex);
	if (result == CU_OK) {
		ledger_requested(pool->domain, (int64_t)bytes);
	}
	return result;
}

void
pool_release(struct block *block)
{
	struct pool *pool = block->pool;
	uint64_t bytes = block->bytes;
	if (pool == NULL) {
		graph_memory_freed(block);
		return;
	}
	ledger_requested(pool->domain, -(int64_t)bytes);
	pthread_mutex_lock(&pools_mutex);
	blocks_lock();
	block_delete(block);
	blocks_unlock();
	pool->used -= pooled_size(bytes);
	if (pool->destroyed && pool->used == 0) {
		pool_free(pool);
	}
	pthread_mutex_unlock(&pools_mutex);
}

void
pools_trim_after_sync(int device)
{
	pthread_mutex_lock(&pools_mutex);
	for (unsigned i = 0; i < MAX_POOLS; i++) {
		if (pools[i] != NULL && pools[i]->device == device) {
			pool_shrink(pools[i], pools[i]->threshold);
		}
	}
	pthread_mutex_unlock(&pools_mutex);
}

static cu_result
allocate_on(struct pool *pool, cu_deviceptr *address, size_t bytes, void *stream_handle)
{
	struct stream *stream = stream_checked(stream_handle);
	if (address == NULL || stream == NULL || bytes == 0) {
		return stream == NULL
			   ? (context_current() == NULL ? CU_INVALID_CONTEXT : CU_INVALID_HANDLE)
			   : CU_INVALID_VALUE;
	}
	if (stream->capture != NULL) {
		return graph_capture_allocation(stream->capture, stream->context->device, bytes,
						address);
	}
	if (pool == NULL) {
		pthread_mutex_lock(&pools_mutex);
		default_pool(stream->context->device);
		pool = current[stream->context->device];
		pthread_mutex_unlock(&pools_mutex);
	}
	if (pool == NULL || gpu_lost(pool->domain)) {
		return pool == NULL ? CU_OUT_OF_MEMORY : CU_NO_DEVICE;
	}
	return pool_allocate(pool, bytes, address);
}

cu_result
fake_cuMemAllocAsync(cu_deviceptr *address, size_t bytes, void *stream)
{
	return allocate_on(NULL, address, bytes, stream);
}

cu_result
fake_cuMemAllocFromPoolAsync(cu_deviceptr *address, size_t bytes, void *handle, void *stream)
{
	struct pool *pool = pool_checked(handle);
	return pool == NULL || pool->destroyed ? CU_INVALID_VALUE
					       : allocate_on(pool, address, bytes, stream);
}

/* Also frees memory of cuMemAlloc, as the real driver does. */
cu_result
fake_cuMemFreeAsync(cu_deviceptr address, void *stream_handle)
{
	struct stream *stream = stream_checked(stream_handle);
	if (stream == NULL) {
		return context_current() == NULL ? CU_INVALID_CONTEXT : CU_INVALID_HANDLE;
	}
	if (stream->capture != NULL) {
		return graph_capture_free(stream->capture, address);
	}
	return address == 0 ? CU_INVALID_VALUE : fake_cuMemFree_v2(address);
}

cu_result
fake_cuMemPoolCreate(struct pool **out, const struct pool_properties *properties)
{
	if (out == NULL || properties == NULL || properties->type != 1 ||
	    properties->location.type != LOCATION_DEVICE) {
		bool host = properties != NULL && out != NULL &&
			    properties->location.type > LOCATION_DEVICE;
		return host ? CU_NOT_SUPPORTED : CU_INVALID_VALUE;
	}
	if (gpu_at(properties->location.id) == NULL) {
		return CU_INVALID_DEVICE;
	}
	pthread_mutex_lock(&pools_mutex);
	struct pool *pool = pool_new(properties->location.id);
	pthread_mutex_unlock(&pools_mutex);
	if (pool == NULL) {
		return CU_OUT_OF_MEMORY;
	}
	pool->most = properties->most;
	pool->handle_types = (uint32_t)properties->handle_types;
	*out = pool;
	return CU_OK;
}

/* Blocks in use keep the pool's memory until they are freed. */
cu_result
fake_cuMemPoolDestroy(void *handle)
{
	struct pool *pool = pool_checked(handle);
	if (pool == NULL || pool->is_default || pool->destroyed) {
		return CU_INVALID_VALUE;
	}
	pthread_mutex_lock(&pools_mutex);
	pool->destroyed = true;
	if (pool->used == 0) {
		pool_free(pool);
	} else {
		pool_shrink(pool, 0);
	}
	pthread_mutex_unlock(&pools_mutex);
	return CU_OK;
}

cu_result
fake_cuMemPoolTrimTo(void *handle, size_t keep)
{
	struct pool *pool = pool_checked(handle);
	if (pool == NULL) {
		return CU_INVALID_VALUE;
	}
	pthread_mutex_lock(&pools_mutex);
	pool_shrink(pool, keep);
	pthread_mutex_unlock(&pools_mutex);
	return CU_OK;
}

/* Attributes: 1-3 reuse policies, 4 release threshold, 5 reserved, 6 its peak, 7 used, 8 its peak.
 */
cu_result
fake_cuMemPoolGetAttribute(void *handle, int attribute, void *value)
{
	const struct pool *pool = pool_checked(handle);
	if (pool == NULL || value == NULL || attribute < 1 || attribute > 13) {
		return CU_INVALID_VALUE;
	}
	if (attribute <= 3 || attribute > 8) {
		const uint32_t words[] = {
		    0, pool->reuse[0],     pool->reuse[1],         pool->reuse[2],  0, 0, 0, 0, 0,
		    1, pool->handle_types, (uint32_t)pool->device, LOCATION_DEVICE, 0};
		if (attribute == 13) {
			memcpy(value, &pool->most, sizeof pool->most);
		} else {
			memcpy(value, &words[attribute], sizeof words[attribute]);
		}
		return CU_OK;
	}
	const uint64_t sizes[] = {pool->threshold, pool->reserved, pool->reserved_high, pool->used,
				  pool->used_high};
	memcpy(value, &sizes[attribute - 4], sizeof sizes[0]);
	return CU_OK;
}

cu_result
fake_cuMemPoolSetAttribute(void *handle, int attribute, const void *value)
{
	struct pool *pool = pool_checked(handle);
	uint64_t wide = 0;
	if (pool == NULL || value == NULL || attribute < 1 || attribute > 8 || attribute == 5 ||
	    attribute == 7) {
		return CU_INVALID_VALUE;
	}
	if (attribute <= 3) {
		memcpy(&pool->reuse[attribute - 1], value, sizeof(uint32_t));
		return CU_OK;
	}
	memcpy(&wide, value, sizeof wide);
	if (attribute == 4) {
		pool->threshold = wide;
	} else if (wide != 0) {
		return CU_INVALID_VALUE; /* peaks can only be reset */
	} else if (attribute == 6) {
		pool->reserved_high = pool->reserved;
	} else {
		pool->used_high = pool->used;
	}
	return CU_OK;
}

cu_result
fake_cuMemPoolSetAccess(void *handle, const struct access_description *list, size_t count)
{
	return pool_checked(handle) != NULL && (list != NULL || count == 0) ? CU_OK
									    : CU_INVALID_VALUE;
}

cu_result
fake_cuMemPoolGetAccess(int *flags, void *handle, const struct location *location)
{
	const struct pool *pool = pool_checked(handle);
	if (flags == NULL || pool == NULL || location == NULL) {
		return CU_INVALID_VALUE;
	}
	*flags = location->id == pool->device ? 3 : 0;
	return CU_OK;
}

cu_result
fake_cuDeviceGetDefaultMemPool(struct pool **out, cu_device device)
{
	if (out == NULL || gpu_at(device) == NULL) {
		return out == NULL ? CU_INVALID_VALUE : CU_INVALID_DEVICE;
	}
	pthread_mutex_lock(&pools_mutex);
	*out = default_pool(device);
	pthread_mutex_unlock(&pools_mutex);
	return *out != NULL ? CU_OK : CU_OUT_OF_MEMORY;
}

cu_result
fake_cuDeviceGetMemPool(struct pool **out, cu_device device)
{
	cu_result result = fake_cuDeviceGetDefaultMemPool(out, device);
	if (result == CU_OK) {
		*out = current[device];
	}
	return result;
}

cu_result
fake_cuDeviceSetMemPool(cu_device device, void *handle)
{
	struct pool *pool = pool_checked(handle);
	if (gpu_at(device) == NULL || pool == NULL || pool->device != device) {
		return gpu_at(device) == NULL ? CU_INVALID_DEVICE : CU_INVALID_VALUE;
	}
	current[device] = pool;
	return CU_OK;
}

/* CUDA 13: pools by location and kind of memory; only pinned device memory here. */
static cu_result
by_location(const struct location *location, int type)
{
	if (location == NULL || location->type < LOCATION_DEVICE) {
		return CU_INVALID_VALUE;
	}
	return location->type != LOCATION_DEVICE || type != 1 ? CU_NOT_SUPPORTED : CU_OK;
}

cu_result
fake_cuMemGetDefaultMemPool(struct pool **out, const struct location *location, int type)
{
	cu_result result = by_location(location, type);
	return result == CU_OK ? fake_cuDeviceGetDefaultMemPool(out, location->id) : result;
}

cu_result
fake_cuMemGetMemPool(struct pool **out, const struct location *location, int type)
{
	cu_result result = by_location(location, type);
	return result == CU_OK ? fake_cuDeviceGetMemPool(out, location->id) : result;
}

cu_result
fake_cuMemSetMemPool(const struct location *location, int type, void *handle)
{
	cu_result result = by_location(location, type);
	return result == CU_OK ? fake_cuDeviceSetMemPool(location->id, handle) : result;
}
