/* cuInit, versions, and the gate's own part for this library. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "faults.h"
#include "visible.h"

const int gate_unsupported_code = CU_NOT_SUPPORTED;

static bool initialised;
static bool forked; /* this process is a child of one that had initialised CUDA */
static pthread_mutex_t init_mutex = PTHREAD_MUTEX_INITIALIZER;

/* Calls that work before cuInit. */
static bool
works_uninitialised(const char *symbol)
{
	static const char *const names[] = {
	    "cuInit",           "cuDriverGetVersion",  "cuGetErrorName",  "cuGetErrorString",
	    "cuGetProcAddress", "cuGetProcAddress_v2", "cuGetExportTable"};
	for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
		if (strcmp(symbol, names[i]) == 0) {
			return true;
		}
	}
	return false;
}

int
gate_refuses(const char *symbol)
{
	if (works_uninitialised(symbol)) {
		return CU_OK;
	}
	return initialised && !forked ? CU_OK : CU_NOT_INITIALIZED;
}

static void
forked_child(void)
{
	forked = true;
	gate_shut();
	pthread_mutex_init(&init_mutex, NULL);
}

static cu_result
driver_state_code(void)
{
	switch (atomic_load(&region()->driver_state)) {
	case 0:
		return CU_OK;
	case 18:
		return CU_SYSTEM_DRIVER_MISMATCH;
	default:
		return CU_NO_DEVICE;
	}
}

static cu_result
initialise(void)
{
	if (!region_attach(CLIENT_CUDA)) {
		fprintf(stderr, "gpuslice fake driver: %s\n", region_problem());
		return CU_NO_DEVICE;
	}
	control_poll();
	cu_result state = driver_state_code();
	if (state != CU_OK) {
		return state;
	}
	visible_refresh();
	gpu_discover();
	if (gpu_count() == 0) {
		return CU_NO_DEVICE;
	}
	pthread_atfork(NULL, NULL, forked_child);
	initialised = true;
	gate_open();
	return CU_OK;
}

/* flags must be 0. A child forked from an initialised process cannot use CUDA. */
cu_result
fake_cuInit(unsigned flags)
{
	if (flags != 0) {
		return CU_INVALID_VALUE;
	}
	if (forked) {
		return CU_NOT_INITIALIZED;
	}
	pthread_mutex_lock(&init_mutex);
	cu_result result = initialised ? CU_OK : initialise();
	pthread_mutex_unlock(&init_mutex);
	return result;
}

/* The inventory's version; works before cuInit, and also when there is no usable inventory. */
cu_result
fake_cuDriverGetVersion(int *version)
{
	if (version == NULL) {
		return CU_INVALID_VALUE;
	}
	*version = region() != NULL || region_attach(CLIENT_CUDA) ? region()->inventory.cuda_version
								  : 13000;
	return CU_OK;
}

/* NVIDIA's private tables: this driver has none. */
cu_result
fake_cuGetExportTable(const void **table, const struct cu_uuid *id)
{
	if (table == NULL || id == NULL) {
		return CU_INVALID_VALUE;
	}
	*table = NULL;
	return CU_NOT_FOUND;
}
