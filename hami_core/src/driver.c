/* Load the real libraries and resolve our table of their functions.
 *
 * Threads: any; the first caller loads under a lock, later ones read one flag.
 * Fork: the tables stay valid in the child; the lock is reset by driver_postfork_child.
 */
#include "driver.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "elf_walk.h"
#include "libc_entry.h"
#include "lock.h"
#include "log.h"
#include "postfork.h"
#include "real_library.h"

struct driver_table driver_loaded;
static struct nvml_table nvml_loaded;
static struct lock load_lock;
static bool cuda_ready;
static bool nvml_ready;

static const char *
nvml_path(void)
{
	const char *path = getenv("GPUSLICE_REAL_LIBNVML");
	return path != NULL && path[0] == '/' ? path : "libnvidia-ml.so.1";
}

static void
resolve_all(void *handle, const char *const *names, unsigned count, void **table)
{
	if (handle == NULL) {
		return;
	}
	for (unsigned i = 0; i < count; i++) {
		table[i] = libc_dlsym()(handle, names[i]);
	}
}

static void
load_once(bool *ready, const char *path, const char *const *names, unsigned count, void **table)
{
	lock_acquire(&load_lock);
	if (!__atomic_load_n(ready, __ATOMIC_RELAXED)) {
		resolve_all(libc_dlopen()(path, RTLD_NOW | RTLD_LOCAL), names, count, table);
		__atomic_store_n(ready, true, __ATOMIC_RELEASE);
	}
	lock_release(&load_lock);
}

const struct driver_table *
driver(void)
{
	if (UNLIKELY(!__atomic_load_n(&cuda_ready, __ATOMIC_ACQUIRE))) {
		load_once(&cuda_ready, real_library_path(), driver_names, driver_name_count,
			  (void **)&driver_loaded);
	}
	return &driver_loaded;
}

const struct nvml_table *
nvml(void)
{
	if (UNLIKELY(!__atomic_load_n(&nvml_ready, __ATOMIC_ACQUIRE))) {
		load_once(&nvml_ready, nvml_path(), nvml_names, nvml_name_count,
			  (void **)&nvml_loaded);
	}
	return &nvml_loaded;
}

void *
driver_real(const struct hook *hook)
{
	const char *table = hook->is_nvml ? (const char *)nvml() : (const char *)driver();
	void *address;
	memcpy(&address, table + hook->real_offset, sizeof address);
	return address;
}

static bool
in_range(const struct elf_range *range, const void *address)
{
	uintptr_t low = __atomic_load_n(&range->low, __ATOMIC_RELAXED);
	return low != 0 && (uintptr_t)address >= low &&
	       (uintptr_t)address < __atomic_load_n(&range->high, __ATOMIC_RELAXED);
}

static struct elf_range cuda_range, nvml_range;

bool
driver_is_caller(const void *address)
{
	return in_range(&cuda_range, address) || in_range(&nvml_range, address);
}

bool
driver_owns(const void *address)
{
	if (driver_is_caller(address)) {
		return true;
	}
	struct elf_range found;
	struct elf_range *into = &cuda_range;
	if (!elf_owner_is(address, "libcuda.so", &found)) {
		into = &nvml_range;
		if (!elf_owner_is(address, "libnvidia-ml.so", &found)) {
			return false;
		}
	}
	__atomic_store_n(&into->high, found.high, __ATOMIC_RELAXED);
	__atomic_store_n(&into->low, found.low, __ATOMIC_RELAXED);
	return true;
}

void
driver_postfork_child(void)
{
	load_lock = (struct lock){0};
}
