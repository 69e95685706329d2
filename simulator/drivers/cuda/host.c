/* Pinned host memory: ordinary memory that the device can reach at the same address. Takes nothing
 * of the card. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "driver.h"

struct pinned {
	uint64_t address, bytes;
	unsigned flags;
	bool ours; /* allocated here, not registered */
	struct pinned *next;
};

static struct pinned *list;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static struct pinned **
find(uint64_t address)
{
	struct pinned **link = &list;
	while (*link != NULL &&
	       !(address >= (*link)->address && address < (*link)->address + (*link)->bytes)) {
		link = &(*link)->next;
	}
	return link;
}

bool
host_is_pinned(uint64_t address)
{
	pthread_mutex_lock(&mutex);
	bool pinned = *find(address) != NULL;
	pthread_mutex_unlock(&mutex);
	return pinned;
}

static cu_result
add(uint64_t address, size_t bytes, unsigned flags, bool ours)
{
	struct pinned *entry = malloc(sizeof *entry);
	if (entry == NULL) {
		return CU_OUT_OF_MEMORY;
	}
	pthread_mutex_lock(&mutex);
	bool known = *find(address) != NULL;
	if (known) {
		free(entry);
	} else {
		*entry = (struct pinned){address, bytes, flags, ours, list};
		list = entry;
	}
	pthread_mutex_unlock(&mutex);
	return known ? CU_HOST_MEMORY_ALREADY_REGISTERED : CU_OK;
}

cu_result
fake_cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
	if (context_current() == NULL) {
		return CU_INVALID_CONTEXT;
	}
	if (out == NULL || bytes == 0 || flags > 7) {
		return CU_INVALID_VALUE;
	}
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED) {
		return CU_OUT_OF_MEMORY;
	}
	cu_result result = add((uint64_t)(uintptr_t)at, bytes, flags, true);
	if (result == CU_OK) {
		*out = at;
	}
	return result;
}

cu_result
fake_cuMemAllocHost_v2(void **out, size_t bytes)
{
	return fake_cuMemHostAlloc(out, bytes, 0);
}

cu_result
fake_cuMemAllocHost(void **out, unsigned bytes)
{
	return fake_cuMemHostAlloc(out, bytes, 0);
}

static cu_result
drop(void *pointer, bool ours, cu_result missing)
{
	pthread_mutex_lock(&mutex);
	struct pinned **link = find((uint64_t)(uintptr_t)pointer);
	struct pinned *entry = *link;
	bool found =
	    entry != NULL && entry->ours == ours && entry->address == (uint64_t)(uintptr_t)pointer;
	if (found) {
		*link = entry->next;
		if (ours) {
			munmap(pointer, entry->bytes);
		}
		free(entry);
	}
	pthread_mutex_unlock(&mutex);
	return found ? CU_OK : missing;
}

cu_result
fake_cuMemFreeHost(void *pointer)
{
	return drop(pointer, true, CU_INVALID_VALUE);
}

cu_result
fake_cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags)
{
	if (context_current() == NULL) {
		return CU_INVALID_CONTEXT;
	}
	return pointer == NULL || bytes == 0
		   ? CU_INVALID_VALUE
		   : add((uint64_t)(uintptr_t)pointer, bytes, flags, false);
}

cu_result
fake_cuMemHostRegister(void *pointer, size_t bytes, unsigned flags)
{
	return fake_cuMemHostRegister_v2(pointer, bytes, flags);
}

cu_result
fake_cuMemHostUnregister(void *pointer)
{
	return drop(pointer, false, CU_HOST_MEMORY_NOT_REGISTERED);
}

cu_result
fake_cuMemHostGetDevicePointer_v2(cu_deviceptr *out, void *pointer, unsigned flags)
{
	if (out == NULL || flags != 0 || !host_is_pinned((uint64_t)(uintptr_t)pointer)) {
		return CU_INVALID_VALUE;
	}
	*out = (cu_deviceptr)(uintptr_t)pointer;
	return CU_OK;
}

cu_result
fake_cuMemHostGetFlags(unsigned *flags, void *pointer)
{
	pthread_mutex_lock(&mutex);
	const struct pinned *entry = *find((uint64_t)(uintptr_t)pointer);
	if (entry != NULL && flags != NULL) {
		*flags = entry->flags;
	}
	pthread_mutex_unlock(&mutex);
	return entry != NULL && flags != NULL ? CU_OK : CU_INVALID_VALUE;
}
