/* Pools and their blocks in other processes. */
#include <sys/syscall.h>
#include <unistd.h>

#include "pools.h"

/* A shared pool: the importer sees addresses of its own; the memory stays on the exporter's
 * account. */
cu_result
fake_cuMemPoolExportToShareableHandle(int *out, void *handle, int type, unsigned long long flags)
{
	const struct pool *pool = pool_checked(handle);
	if (out == NULL || pool == NULL || type != 1 || flags != 0) {
		return CU_INVALID_VALUE;
	}
	*out = (int)syscall(SYS_memfd_create, "gpuslice-fake-pool", 1U);
	return *out >= 0 && write(*out, &pool->domain, sizeof pool->domain) ==
				(ssize_t)sizeof pool->domain
		   ? CU_OK
		   : CU_OUT_OF_MEMORY;
}

cu_result
fake_cuMemPoolImportFromShareableHandle(struct pool **out, void *handle, int type,
					unsigned long long flags)
{
	uint32_t domain = 0;
	if (out == NULL || type != 1 || flags != 0 ||
	    pread((int)(intptr_t)handle, &domain, sizeof domain, 0) != (ssize_t)sizeof domain) {
		return CU_INVALID_VALUE;
	}
	for (unsigned d = 0; d < gpu_count(); d++) {
		if (gpu_at((int)d)->domain == domain) {
			pthread_mutex_lock(&pools_mutex);
			*out = pool_new((int)d);
			if (*out != NULL) {
				(*out)->imported = true;
			}
			pthread_mutex_unlock(&pools_mutex);
			return *out != NULL ? CU_OK : CU_OUT_OF_MEMORY;
		}
	}
	return CU_INVALID_DEVICE;
}

cu_result
fake_cuMemPoolExportPointer(struct pointer_export *out, cu_deviceptr address)
{
	blocks_lock();
	const struct block *block = block_at(address);
	bool valid = out != NULL && block != NULL && block->use == BLOCK_POOLED;
	if (valid) {
		*out = (struct pointer_export){.bytes = block->bytes};
	}
	blocks_unlock();
	return valid ? CU_OK : CU_INVALID_VALUE;
}

cu_result
fake_cuMemPoolImportPointer(cu_deviceptr *address, void *handle, const struct pointer_export *data)
{
	struct pool *pool = pool_checked(handle);
	if (address == NULL || pool == NULL || !pool->imported || data == NULL ||
	    data->bytes == 0) {
		return CU_INVALID_VALUE;
	}
	blocks_lock();
	struct block *block = block_new(pool->device, BLOCK_POOLED, data->bytes);
	blocks_unlock();
	if (block == NULL) {
		return CU_OUT_OF_MEMORY;
	}
	pthread_mutex_lock(&pools_mutex);
	pool->used += pooled_size(data->bytes);
	pthread_mutex_unlock(&pools_mutex);
	ledger_requested(pool->domain, (int64_t)data->bytes);
	block->pool = pool;
	*address = block->address;
	return CU_OK;
}
