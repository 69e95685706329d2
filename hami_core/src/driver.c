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

/* Objects that were asked about: there may be more than one driver library (WSL2 forwards to a
 * second). */
#define KNOWN_OBJECTS 8

struct known_object {
	uintptr_t low, high; /* low is written last and 0 while unused */
	bool is_driver;
};

static struct known_object known_objects[KNOWN_OBJECTS];
static uint32_t next_known;

static const struct known_object *
known_object(const void *address)
{
	for (unsigned i = 0; i < KNOWN_OBJECTS; i++) {
		const struct known_object *known = &known_objects[i];
		uintptr_t low = __atomic_load_n(&known->low, __ATOMIC_ACQUIRE);
		if (low != 0 && (uintptr_t)address >= low && (uintptr_t)address < known->high) {
			return known;
		}
	}
	return NULL;
}

static bool
look_at(const void *address)
{
	struct elf_range range;
	bool is_driver = elf_owner_is(address, "libcuda.so", &range) ||
			 elf_owner_is(address, "libnvidia-ml.so", &range);
	uint32_t place = __atomic_fetch_add(&next_known, 1, __ATOMIC_RELAXED);
	if (range.low != 0 && place < KNOWN_OBJECTS) {
		known_objects[place].high = range.high;
		known_objects[place].is_driver = is_driver;
		__atomic_store_n(&known_objects[place].low, range.low, __ATOMIC_RELEASE);
	}
	return is_driver;
}

/* A remembered "no" may be out of date (its object unloaded, the driver in its place), so it counts
 * for callers only. */
bool
driver_owns(const void *address)
{
	const struct known_object *known = known_object(address);
	return (known != NULL && known->is_driver) || look_at(address);
}

bool
driver_is_caller(const void *address)
{
	const struct known_object *known = known_object(address);
	return known != NULL ? known->is_driver : look_at(address);
}

void
driver_postfork_child(void)
{
	load_lock = (struct lock){0};
}
