/* Threads: any. The table is written once under load_lock and then only read.
 * Fork: the child keeps the table; its first call claims a slot of its own. */
#include "devices.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"
#include "elf_walk.h"
#include "lock.h"
#include "log.h"
#include "postfork.h"

#define DEFAULT_DIRECTORY "/var/run/gpuslice"
#define ENVIRONMENT_STATE "/tmp/gpuslice.state"

static struct device table[MAX_DEVICES];
static int table_count;
static struct lock load_lock;
static bool files_open;
static bool table_ready;

static int
hex_digit(char c)
{
	if (c >= '0' && c <= '9') {
		return c - '0';
	}
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool
uuid_parse(const char *text, uint8_t uuid[16])
{
	if (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0) {
		return false;
	}
	text += 4;
	unsigned digits = 0;
	for (; *text != '\0' && digits < 33; text++) {
		int value = hex_digit(*text);
		if (*text == '-') {
			continue;
		}
		if (value < 0 || digits >= 32) {
			return false;
		}
		uuid[digits / 2] =
		    (uint8_t)(digits % 2 == 0 ? value << 4 : uuid[digits / 2] | value);
		digits++;
	}
	return digits == 32;
}

static void
postfork_child(void)
{
	process_postfork_child();
	driver_postfork_child();
	limits_postfork_child();
	books_postfork_child();
	state_postfork_child();
	devices_postfork_child();
	blocks_postfork_child();
	small_postfork_child();
	pools_postfork_child();
	vmm_postfork_child();
	compute_postfork_child();
}

/* pthread_atfork is not an exported function of every glibc; what it calls is. */
static void
register_fork_handler(void)
{
	extern void *__dso_handle __attribute__((visibility("hidden"), weak));
	int (*glibc)(void (*)(void), void (*)(void), void (*)(void), void *) =
	    elf_libc_symbol("__register_atfork");
	int (*musl)(void (*)(void), void (*)(void), void (*)(void)) =
	    elf_libc_symbol("pthread_atfork");
	if (glibc != NULL) {
		glibc(NULL, NULL, postfork_child, __dso_handle);
	} else if (musl != NULL) {
		musl(NULL, NULL, postfork_child);
	}
}

/* A mounted directory wins over the variable that tests use, so that a pod cannot point elsewhere,
 * also when the limits in it are missing: that closes the quota. */
static const char *
files_directory(void)
{
	const char *directory = getenv("GPUSLICE_DIR");
	return directory == NULL || access(DEFAULT_DIRECTORY, F_OK) == 0 ? DEFAULT_DIRECTORY
									 : directory;
}

static void
open_state(enum limits_source source, const char *directory)
{
	char path[256];
	const char *cache = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
	if (source == LIMITS_FILE) {
		snprintf(path, sizeof path, "%s/state", directory);
	} else {
		snprintf(path, sizeof path, "%s", cache != NULL ? cache : ENVIRONMENT_STATE);
	}
	state_open(path, source == LIMITS_FILE);
}

void
devices_open_files(void)
{
	if (__atomic_load_n(&files_open, __ATOMIC_ACQUIRE)) {
		return;
	}
	lock_acquire(&load_lock);
	if (!files_open) {
		const char *directory = files_directory();
		enum limits_source source = limits_open(directory, getenv);
		if (source == LIMITS_FILE || source == LIMITS_ENVIRONMENT) {
			open_state(source, directory);
		}
		register_fork_handler();
		__atomic_store_n(&files_open, true, __ATOMIC_RELEASE);
	}
	lock_release(&load_lock);
}

/* Index of a device as the container counts them: NVML's, which CUDA_VISIBLE_DEVICES does not
 * change. */
static int
container_index(const uint8_t uuid[16], int fallback)
{
	char text[48];
	nvml_device device;
	unsigned int index;
	const uint8_t *u = uuid;
	snprintf(text, sizeof text,
		 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0],
		 u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13],
		 u[14], u[15]);
	const struct nvml_table *real = nvml();
	if (real->nvmlInit_v2 == NULL || real->nvmlDeviceGetHandleByUUID == NULL ||
	    real->nvmlDeviceGetIndex == NULL || real->nvmlInit_v2() != NVML_OK) {
		return fallback;
	}
	bool found = real->nvmlDeviceGetHandleByUUID(text, &device) == NVML_OK &&
		     real->nvmlDeviceGetIndex(device, &index) == NVML_OK;
	real->nvmlShutdown();
	return found ? (int)index : fallback;
}

static void
match_device(struct device *device, int index)
{
	enum limits_source source = limits_source();
	device->enforced = source != LIMITS_NONE;
	device->limits_row = source == LIMITS_FILE ? limits_row(device->uuid) : index;
	if (source == LIMITS_ENVIRONMENT && limits_environment_by_index()) {
		device->limits_row = container_index(device->uuid, index);
	}
	device->row = source == LIMITS_FILE || source == LIMITS_ENVIRONMENT
			  ? state_device(device->uuid)
			  : NULL;
	device->row_index = device->row == NULL ? 0 : state_device_index(device->row);
}

static bool
load_device(struct device *device, int index)
{
	const struct driver_table *real = driver();
	struct cu_uuid uuid;
	if (real->cuDeviceGet(&device->handle, index) != CU_OK) {
		return false;
	}
	bool found = (real->cuDeviceGetUuid_v2 != NULL &&
		      real->cuDeviceGetUuid_v2(&uuid, device->handle) == CU_OK) ||
		     (real->cuDeviceGetUuid != NULL &&
		      real->cuDeviceGetUuid(&uuid, device->handle) == CU_OK);
	if (!found) {
		return false;
	}
	memcpy(device->uuid, uuid.bytes, sizeof device->uuid);
	match_device(device, index);
	return true;
}

static void
load_table(void)
{
	int count = 0;
	const struct driver_table *real = driver();
	if (real->cuDeviceGetCount == NULL || real->cuDeviceGet == NULL ||
	    real->cuDeviceGetCount(&count) != CU_OK) {
		return;
	}
	devices_open_files();
	lock_acquire(&load_lock);
	if (!table_ready) {
		int loaded = 0;
		while (loaded < count && loaded < MAX_DEVICES &&
		       load_device(&table[loaded], loaded)) {
			loaded++;
		}
		table_count = loaded;
		__atomic_store_n(&table_ready, true, __ATOMIC_RELEASE);
	}
	lock_release(&load_lock);
}

int
devices_count(void)
{
	if (UNLIKELY(!__atomic_load_n(&table_ready, __ATOMIC_ACQUIRE))) {
		load_table();
	}
	return __atomic_load_n(&table_ready, __ATOMIC_ACQUIRE) ? table_count : 0;
}

struct device *
device_at(int index)
{
	return index >= 0 && index < devices_count() ? &table[index] : NULL;
}

struct device *
device_of(cu_device handle)
{
	int count = devices_count();
	for (int i = 0; i < count; i++) {
		if (table[i].handle == handle) {
			return &table[i];
		}
	}
	return NULL;
}

struct device *
device_of_uuid(const uint8_t uuid[16])
{
	int count = __atomic_load_n(&table_ready, __ATOMIC_ACQUIRE) ? table_count : 0;
	for (int i = 0; i < count; i++) {
		if (memcmp(table[i].uuid, uuid, 16) == 0) {
			return &table[i];
		}
	}
	return NULL;
}

struct device *
device_current(void)
{
	int count = devices_count();
	if (LIKELY(count == 1)) {
		return &table[0];
	}
	cu_device handle;
	if (count == 0 || driver()->cuCtxGetDevice == NULL ||
	    driver()->cuCtxGetDevice(&handle) != CU_OK) {
		return NULL;
	}
	return device_of(handle);
}

bool
device_for_view(const uint8_t uuid[16], struct device *out)
{
	devices_open_files();
	struct device *known = device_of_uuid(uuid);
	if (known != NULL) {
		*out = *known;
		return out->row != NULL;
	}
	*out = (struct device){.limits_row = -1};
	memcpy(out->uuid, uuid, 16);
	if (limits_source() == LIMITS_FILE && limits_row(uuid) < 0) {
		return false;
	}
	if (limits_source() == LIMITS_FILE || limits_source() == LIMITS_ENVIRONMENT) {
		match_device(out, -1);
	}
	return out->row != NULL;
}

void
devices_postfork_child(void)
{
	load_lock = (struct lock){0};
}
