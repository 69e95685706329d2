/* nvmlInit and shutdown, versions, error texts, and the gate's part for this library. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "faults.h"
#include "nvml.h"
#include "visible.h"

const int gate_unsupported_code = NVML_NOT_SUPPORTED;

static unsigned references;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static bool
works_uninitialised(const char *symbol)
{
	return strncmp(symbol, "nvmlInit", 8) == 0 || strcmp(symbol, "nvmlErrorString") == 0 ||
	       strcmp(symbol, "nvmlInternalGetExportTable") == 0;
}

/* The gate of this library is always shut, so that every call looks at the control file. */
int
gate_refuses(const char *symbol)
{
	if (works_uninitialised(symbol)) {
		return NVML_OK;
	}
	if (references == 0 || region() == NULL) {
		return NVML_UNINITIALIZED;
	}
	control_poll();
	return strcmp(symbol, "nvmlShutdown") == 0 ? NVML_OK
						   : (int)atomic_load(&region()->driver_state);
}

static void
forked_child(void)
{
	references = 0;
	pthread_mutex_init(&mutex, NULL);
}

static nvml_result
initialise(void)
{
	static bool registered;
	if (!region_attach(CLIENT_NVML)) {
		fprintf(stderr, "gpuslice fake driver: %s\n", region_problem());
		return NVML_DRIVER_NOT_LOADED;
	}
	control_poll();
	nvml_result state = (nvml_result)atomic_load(&region()->driver_state);
	if (state != NVML_OK) {
		return state;
	}
	faults_in_environment();
	visible_refresh();
	if (!registered) {
		registered = true;
		pthread_atfork(NULL, NULL, forked_child);
	}
	return NVML_OK;
}

/* Counted: as many shutdowns as initialisations. */
nvml_result
fake_nvmlInitWithFlags(unsigned flags)
{
	if (flags > 3) {
		return NVML_INVALID_ARGUMENT;
	}
	pthread_mutex_lock(&mutex);
	nvml_result result = references > 0 && region() != NULL ? NVML_OK : initialise();
	references += result == NVML_OK;
	pthread_mutex_unlock(&mutex);
	return result;
}

nvml_result
fake_nvmlInit_v2(void)
{
	return fake_nvmlInitWithFlags(0);
}

nvml_result
fake_nvmlInit(void)
{
	return fake_nvmlInitWithFlags(0);
}

nvml_result
fake_nvmlShutdown(void)
{
	pthread_mutex_lock(&mutex);
	nvml_result result = references > 0 ? NVML_OK : NVML_UNINITIALIZED;
	references -= references > 0;
	pthread_mutex_unlock(&mutex);
	return result;
}

/* Private tables of NVIDIA's own tools: none here. */
nvml_result
fake_nvmlInternalGetExportTable(const void **table, const void *id)
{
	if (table == NULL || id == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	*table = NULL;
	return NVML_NOT_SUPPORTED;
}

const char *
fake_nvmlErrorString(nvml_result code)
{
	static const char *const texts[] = {
	    "Success",
	    "Uninitialized",
	    "Invalid Argument",
	    "Not Supported",
	    "Insufficient Permissions",
	    "Already Initialized",
	    "Not Found",
	    "Insufficient Size",
	    "Insufficient External Power",
	    "Driver Not Loaded",
	    "Timeout",
	    "Interrupt Request Issue",
	    "NVML Shared Library Not Found",
	    "Function Not Found",
	    "Corrupted infoROM",
	    "GPU is lost",
	    "GPU requires reset",
	    "GPU access blocked by the operating system",
	    "Driver/library version mismatch",
	    "In use by another client",
	    "Insufficient Memory",
	    "No data",
	    "The requested vgpu operation is not available on target device because ECC is enabled",
	    "Insufficient Resources",
	    "Frequency not supported",
	    "Argument version mismatch",
	    "Deprecated",
	    "Not Ready",
	    "No GPUs found",
	    "Invalid State",
	};
	return code >= 0 && (unsigned)code < sizeof texts / sizeof texts[0] ? texts[code]
									    : "Unknown Error";
}

nvml_result
copy_out(const char *text, char *buffer, unsigned room)
{
	if (buffer == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	if (strlen(text) >= room) {
		return NVML_INSUFFICIENT_SIZE;
	}
	memcpy(buffer, text, strlen(text) + 1);
	return NVML_OK;
}

nvml_result
fake_nvmlSystemGetDriverVersion(char *buffer, unsigned room)
{
	return copy_out(region()->inventory.driver, buffer, room);
}

nvml_result
fake_nvmlSystemGetNVMLVersion(char *buffer, unsigned room)
{
	char text[64];
	snprintf(text, sizeof text, "%d.%s", region()->inventory.cuda_version / 1000,
		 region()->inventory.driver);
	return copy_out(text, buffer, room);
}

nvml_result
fake_nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	if (version == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	*version = region()->inventory.cuda_version;
	return NVML_OK;
}

nvml_result
fake_nvmlSystemGetCudaDriverVersion(int *version)
{
	return fake_nvmlSystemGetCudaDriverVersion_v2(version);
}

/* The command of a process, as the host's /proc tells it. */
nvml_result
fake_nvmlSystemGetProcessName(unsigned pid, char *buffer, unsigned room)
{
	char path[64];
	char name[256] = "";
	snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
	FILE *file = fopen(path, "re");
	if (file == NULL) {
		return NVML_NOT_FOUND;
	}
	size_t got = fread(name, 1, sizeof name - 1, file);
	name[got] = '\0';
	fclose(file);
	return copy_out(name, buffer, room);
}
