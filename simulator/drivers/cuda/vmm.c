/* Virtual memory management: physical allocations by handle, address ranges, mappings. A physical
 * allocation lives while it has handles or mappings, in any process. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memory.h"

static const uint64_t ALLOCATION_MAGIC = 0x006d6d766d656d67ULL;
static const uint64_t GRANULARITY = 2ULL << 20;

enum { LOCATION_DEVICE = 1, HANDLE_FD = 1, HANDLE_FABRIC = 8 };

struct allocation {
	uint64_t magic;
	uint32_t domain;
	bool on_device;
	bool shared; /* charged in the node's shared table */
	uint32_t share;
	uint64_t generation;
	uint64_t bytes;
	unsigned handles, mappings;
	struct properties properties;
};

struct mapping {
	uint64_t address, bytes;
	struct allocation *allocation;
	struct mapping *next;
};

/* What travels through a file descriptor or a fabric handle. */
struct shareable {
	uint64_t magic;
	uint32_t share, domain;
	uint64_t generation, bytes;
	struct properties properties;
};

static struct mapping *mappings;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static struct allocation *
allocation_checked(cu_mem_handle handle)
{
	struct allocation *allocation = (struct allocation *)(uintptr_t)handle;
	return allocation != NULL && allocation->magic == ALLOCATION_MAGIC ? allocation : NULL;
}

static void
free_if_unused(struct allocation *allocation)
{
	if (allocation->handles > 0 || allocation->mappings > 0) {
		return;
	}
	if (allocation->shared) {
		shared_drop(allocation->share);
	} else if (allocation->on_device) {
		ledger_refund(allocation->domain, KIND_VMM, allocation->bytes);
	}
	if (allocation->on_device) {
		ledger_requested(allocation->domain, -(int64_t)allocation->bytes);
	}
	allocation->magic = 0;
	free(allocation);
}

bool
allocation_use(cu_mem_handle handle)
{
	pthread_mutex_lock(&mutex);
	struct allocation *allocation = allocation_checked(handle);
	if (allocation != NULL) {
		allocation->mappings++;
	}
	pthread_mutex_unlock(&mutex);
	return allocation != NULL;
}

void
allocation_unuse(cu_mem_handle handle)
{
	pthread_mutex_lock(&mutex);
	struct allocation *allocation = allocation_checked(handle);
	if (allocation != NULL) {
		allocation->mappings--;
		free_if_unused(allocation);
	}
	pthread_mutex_unlock(&mutex);
}

cu_result
fake_cuMemGetAllocationGranularity(size_t *granularity, const struct properties *properties,
				   int option)
{
	if (granularity == NULL || properties == NULL || option < 0 || option > 1) {
		return CU_INVALID_VALUE;
	}
	*granularity = GRANULARITY;
	return CU_OK;
}

cu_result
fake_cuMemCreate(cu_mem_handle *out, size_t bytes, const struct properties *properties,
		 unsigned long long flags)
{
	if (out == NULL || properties == NULL || flags != 0 || properties->type != 1 ||
	    bytes == 0 || bytes % GRANULARITY != 0) {
		return CU_INVALID_VALUE;
	}
	bool on_device = properties->location.type == LOCATION_DEVICE;
	const struct gpu *gpu = on_device ? gpu_at(properties->location.id) : NULL;
	if (on_device && gpu == NULL) {
		return CU_INVALID_DEVICE;
	}
	struct allocation *allocation = calloc(1, sizeof *allocation);
	if (allocation == NULL || (on_device && !ledger_charge(gpu->domain, KIND_VMM, bytes))) {
		free(allocation);
		return CU_OUT_OF_MEMORY;
	}
	*allocation = (struct allocation){
	    .magic = ALLOCATION_MAGIC,
	    .domain = on_device ? gpu->domain : 0,
	    .on_device = on_device,
	    .bytes = bytes,
	    .handles = 1,
	    .properties = *properties,
	};
	if (on_device) {
		ledger_requested(gpu->domain, (int64_t)bytes);
	}
	*out = (cu_mem_handle)(uintptr_t)allocation;
	return CU_OK;
}

cu_result
fake_cuMemRelease(cu_mem_handle handle)
{
	struct allocation *allocation = allocation_checked(handle);
	if (allocation == NULL || allocation->handles == 0) {
		return CU_INVALID_VALUE;
	}
	pthread_mutex_lock(&mutex);
	allocation->handles--;
	free_if_unused(allocation);
	pthread_mutex_unlock(&mutex);
	return CU_OK;
}

/* flags must be 0; a wish for an address is only a wish. */
cu_result
fake_cuMemAddressReserve(cu_deviceptr *out, size_t bytes, size_t alignment, cu_deviceptr wish,
			 unsigned long long flags)
{
	(void)wish;
	if (out == NULL || bytes == 0 || bytes % GRANULARITY != 0 || flags != 0 ||
	    (alignment & (alignment - 1)) != 0) {
		return CU_INVALID_VALUE;
	}
	blocks_lock();
	struct block *block = block_new(0, BLOCK_RESERVED, bytes > alignment ? bytes : alignment);
	if (block != NULL) {
		block->bytes = bytes;
		block->touched = true;
	}
	blocks_unlock();
	if (block == NULL) {
		return CU_OUT_OF_MEMORY;
	}
	*out = block->address;
	return CU_OK;
}

static bool
range_is_mapped(uint64_t address, uint64_t bytes)
{
	for (const struct mapping *m = mappings; m != NULL; m = m->next) {
		if (address < m->address + m->bytes && m->address < address + bytes) {
			return true;
		}
	}
	return false;
}

cu_result
fake_cuMemAddressFree(cu_deviceptr address, size_t bytes)
{
	cu_result result = CU_INVALID_VALUE;
	pthread_mutex_lock(&mutex);
	blocks_lock();
	struct block *block = block_at(address);
	if (block != NULL && block->use == BLOCK_RESERVED && block->bytes == bytes &&
	    !range_is_mapped(address, bytes)) {
		block_delete(block);
		result = CU_OK;
	}
	blocks_unlock();
	pthread_mutex_unlock(&mutex);
	return result;
}

static bool
in_reservation(uint64_t address, uint64_t bytes)
{
	blocks_lock();
	const struct block *block = block_find(address);
	bool inside = block != NULL && block->use == BLOCK_RESERVED &&
		      address + bytes <= block->address + block->bytes;
	blocks_unlock();
	return inside;
}

cu_result
fake_cuMemMap(cu_deviceptr address, size_t bytes, size_t offset, cu_mem_handle handle,
	      unsigned long long flags)
{
	struct allocation *allocation = allocation_checked(handle);
	bool fits = allocation != NULL && bytes != 0 && offset <= allocation->bytes &&
		    bytes <= allocation->bytes - offset;
	if (!fits || flags != 0 || bytes % GRANULARITY != 0 || !in_reservation(address, bytes)) {
		return CU_INVALID_VALUE;
	}
	struct mapping *mapping = malloc(sizeof *mapping);
	if (mapping == NULL) {
		return CU_OUT_OF_MEMORY;
	}
	pthread_mutex_lock(&mutex);
	bool taken = range_is_mapped(address, bytes);
	if (taken) {
		free(mapping);
	} else {
		*mapping = (struct mapping){address, bytes, allocation, mappings};
		mappings = mapping;
		allocation->mappings++;
	}
	pthread_mutex_unlock(&mutex);
	return taken ? CU_INVALID_VALUE : CU_OK;
}

/* The range must be whole mappings. */
cu_result
fake_cuMemUnmap(cu_deviceptr address, size_t bytes)
{
	uint64_t found = 0;
	pthread_mutex_lock(&mutex);
	for (struct mapping **link = &mappings; *link != NULL;) {
		struct mapping *m = *link;
		if (m->address >= address && m->address + m->bytes <= address + bytes) {
			*link = m->next;
			found += m->bytes;
			m->allocation->mappings--;
			free_if_unused(m->allocation);
			free(m);
		} else {
			link = &m->next;
		}
	}
	pthread_mutex_unlock(&mutex);
	return found == bytes && bytes != 0 ? CU_OK : CU_INVALID_VALUE;
}

cu_result
fake_cuMemSetAccess(cu_deviceptr address, size_t bytes, const struct access_description *list,
		    size_t count)
{
	pthread_mutex_lock(&mutex);
	bool mapped = range_is_mapped(address, bytes);
	pthread_mutex_unlock(&mutex);
	return mapped && list != NULL && count > 0 ? CU_OK : CU_INVALID_VALUE;
}

cu_result
fake_cuMemGetAccess(unsigned long long *flags, const struct location *location,
		    cu_deviceptr address)
{
	if (flags == NULL || location == NULL) {
		return CU_INVALID_VALUE;
	}
	pthread_mutex_lock(&mutex);
	*flags = range_is_mapped(address, 1) ? 3 : 0;
	pthread_mutex_unlock(&mutex);
	return CU_OK;
}

cu_result
fake_cuMemRetainAllocationHandle(cu_mem_handle *out, void *address)
{
	cu_result result = CU_INVALID_VALUE;
	uint64_t at = (uint64_t)(uintptr_t)address;
	pthread_mutex_lock(&mutex);
	for (const struct mapping *m = mappings; m != NULL && out != NULL; m = m->next) {
		if (at >= m->address && at < m->address + m->bytes) {
			m->allocation->handles++;
			*out = (cu_mem_handle)(uintptr_t)m->allocation;
			result = CU_OK;
			break;
		}
	}
	pthread_mutex_unlock(&mutex);
	return result;
}

cu_result
fake_cuMemGetAllocationPropertiesFromHandle(struct properties *out, cu_mem_handle handle)
{
	const struct allocation *allocation = allocation_checked(handle);
	if (out == NULL || allocation == NULL) {
		return CU_INVALID_VALUE;
	}
	*out = allocation->properties;
	return CU_OK;
}

/* From now on the memory belongs to every process that holds it. */
static bool
make_shared(struct allocation *allocation)
{
	if (!allocation->shared && allocation->on_device) {
		int index = shared_create(allocation->domain, KIND_VMM, allocation->bytes,
					  &allocation->generation);
		allocation->share = (uint32_t)index;
		allocation->shared = index >= 0;
	}
	return allocation->shared;
}

cu_result
fake_cuMemExportToShareableHandle(void *out, cu_mem_handle handle, int type,
				  unsigned long long flags)
{
	struct allocation *allocation = allocation_checked(handle);
	if (out == NULL || allocation == NULL || flags != 0 ||
	    (type != HANDLE_FD && type != HANDLE_FABRIC)) {
		return CU_INVALID_VALUE;
	}
	pthread_mutex_lock(&mutex);
	bool shared = make_shared(allocation);
	pthread_mutex_unlock(&mutex);
	if (!shared) {
		return CU_NOT_SUPPORTED;
	}
	struct shareable data = {ALLOCATION_MAGIC,       allocation->share, allocation->domain,
				 allocation->generation, allocation->bytes, allocation->properties};
	if (type == HANDLE_FABRIC) {
		memset(out, 0, 64);
		memcpy(out, &data, sizeof data < 64 ? sizeof data : 64);
		return CU_OK;
	}
	int fd = (int)syscall(SYS_memfd_create, "gpuslice-fake-memory", 1U);
	if (fd < 0 || write(fd, &data, sizeof data) != (ssize_t)sizeof data) {
		return CU_OUT_OF_MEMORY;
	}
	memcpy(out, &fd, sizeof fd);
	return CU_OK;
}

cu_result
fake_cuMemImportFromShareableHandle(cu_mem_handle *out, void *os_handle, int type)
{
	struct shareable data = {0};
	if (out == NULL || (type != HANDLE_FD && type != HANDLE_FABRIC)) {
		return CU_INVALID_VALUE;
	}
	if (type == HANDLE_FABRIC && os_handle != NULL) {
		memcpy(&data, os_handle, sizeof data < 64 ? sizeof data : 64);
	} else if (pread((int)(intptr_t)os_handle, &data, sizeof data, 0) != (ssize_t)sizeof data) {
		return CU_INVALID_VALUE;
	}
	if (data.magic != ALLOCATION_MAGIC || !shared_hold(data.share, data.generation)) {
		return CU_INVALID_VALUE;
	}
	struct allocation *allocation = calloc(1, sizeof *allocation);
	if (allocation == NULL) {
		shared_drop(data.share);
		return CU_OUT_OF_MEMORY;
	}
	*allocation = (struct allocation){
	    .magic = ALLOCATION_MAGIC,
	    .domain = data.domain,
	    .on_device = true,
	    .shared = true,
	    .share = data.share,
	    .generation = data.generation,
	    .bytes = data.bytes,
	    .handles = 1,
	    .properties = data.properties,
	};
	ledger_requested(data.domain, (int64_t)data.bytes);
	*out = (cu_mem_handle)(uintptr_t)allocation;
	return CU_OK;
}
