/* cuGetProcAddress: answered from the table, never by the dynamic linker, so that a library
 * preloaded before this one cannot appear in the answers. */
#include "lookup.h"

#include <string.h>

#include "driver.h"

enum { FLAG_PER_THREAD = 2, STATUS_FOUND = 0, STATUS_NOT_FOUND = 1, STATUS_VERSION = 2 };

/* Forms newer than the driver do not exist, as with an old driver. */
static int
driver_version(void)
{
	int version = 0;
	fake_cuDriverGetVersion(&version);
	return version;
}

static unsigned
first_of(const char *base)
{
	unsigned low = 0;
	unsigned high = cuda_lookup_count;
	while (low < high) {
		unsigned middle = (low + high) / 2;
		if (strcmp(cuda_lookup_table[middle].base, base) < 0) {
			low = middle + 1;
		} else {
			high = middle;
		}
	}
	return low;
}

static int
find_entry(const char *base, int version, uint64_t flags, void **address)
{
	int status = STATUS_NOT_FOUND;
	bool per_thread = (flags & FLAG_PER_THREAD) != 0;
	const struct cuda_lookup *best = NULL;
	int installed = driver_version();
	for (unsigned i = first_of(base);
	     i < cuda_lookup_count && strcmp(cuda_lookup_table[i].base, base) == 0; i++) {
		const struct cuda_lookup *row = &cuda_lookup_table[i];
		if (row->version > installed) {
			continue;
		}
		status = status == STATUS_NOT_FOUND ? STATUS_VERSION : status;
		if (row->version > version || (row->per_thread == 1 && !per_thread)) {
			continue;
		}
		bool better = best == NULL || row->per_thread > best->per_thread ||
			      (row->per_thread == best->per_thread && row->version > best->version);
		best = better ? row : best;
	}
	*address = best != NULL ? (void *)best->address : NULL;
	return best != NULL ? STATUS_FOUND : status;
}

/* CUDA 12 and later: reports why a symbol is missing, and then answers CU_OK with a NULL address
 * only when the caller gave room for the reason. */
cu_result
fake_cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags,
			 int *status)
{
	if (symbol == NULL || address == NULL || flags > FLAG_PER_THREAD || version < 0) {
		return CU_INVALID_VALUE;
	}
	if (version > driver_version()) {
		return CU_INVALID_VALUE;
	}
	int found = find_entry(symbol, version, flags, address);
	if (status != NULL) {
		*status = found;
		return CU_OK;
	}
	return found == STATUS_FOUND ? CU_OK : CU_NOT_FOUND;
}

/* CUDA 11.3 to 11.8: four arguments. */
cu_result
fake_cuGetProcAddress(const char *symbol, void **address, int version, uint64_t flags)
{
	return fake_cuGetProcAddress_v2(symbol, address, version, flags, NULL);
}
