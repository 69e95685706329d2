/* gpuprobe: what does a process see of the GPUs, and how much does it get?
 *
 * Linked to libcuda.so.1 and libnvidia-ml.so.1 like any CUDA program, so a library preloaded before
 * them works on it. Prints one JSON object a line on stdout, unbuffered. Options are carried out in
 * this order:
 *
 *   (always)            {"event": "devices", "cuda": […], "nvml": […]}
 *   --device N          use CUDA device N (default 0; 0 even when only --list is wanted)
 *   --list              stop after the devices
 *   --allocate MIB      take memory in steps of --step MIB (default 64) until MIB are held or it is
 * refused:
 *                       {"event": "allocated", "granted_mib": …, "refused": bool, "result": code,
 * "result_name": …} MIB 0: until refused
 *   --fork              the rest happens in a forked child too; the parent waits for it
 *   --launch SECONDS    launch kernels of --kernel-us (default 1000) and wait for each:
 *                       {"event": "launched", "kernels": …, "seconds": …}
 *   --hold SECONDS      keep the memory so long, or until SIGTERM; "forever" for no end:
 *                       {"event": "holding"} then {"event": "released", "by": "time"|"signal"}
 *
 * Exit status: 0, or 1 when CUDA cannot be used ({"event": "error", "call": …, "result": …}), 2 for
 * a bad option. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda_abi.h"
#include "nvml_abi.h"

cu_result cuInit(unsigned flags);
cu_result cuGetErrorName(cu_result code, const char **name);
cu_result cuDeviceGetCount(int *count);
cu_result cuDeviceGet(cu_device *device, int ordinal);
cu_result cuDeviceGetName(char *name, int room, cu_device device);
cu_result cuDeviceGetUuid_v2(struct cu_uuid *uuid, cu_device device);
cu_result cuDeviceTotalMem_v2(size_t *bytes, cu_device device);
cu_result cuDevicePrimaryCtxRetain(void **context, cu_device device);
cu_result cuDevicePrimaryCtxRelease_v2(cu_device device);
cu_result cuCtxSetCurrent(void *context);
cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
cu_result cuMemAlloc_v2(cu_deviceptr *address, size_t bytes);
cu_result cuModuleLoadData(void **module, const void *image);
cu_result cuModuleGetFunction(void **function, void *module, const char *name);
cu_result cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
			 unsigned by, unsigned bz, unsigned shared, void *stream, void **parameters,
			 void **extra);
cu_result cuCtxSynchronize(void);
nvml_result nvmlInit_v2(void);
nvml_result nvmlDeviceGetCount_v2(unsigned *count);
nvml_result nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
nvml_result nvmlDeviceGetUUID(void *device, char *text, unsigned room);
nvml_result nvmlDeviceGetName(void *device, char *text, unsigned room);
nvml_result nvmlDeviceGetMemoryInfo(void *device, struct nvml_memory *memory);

static const size_t MIB = 1024 * 1024;

struct options {
	int device;
	bool list;
	bool fork;
	long allocate_mib; /* -1: none, 0: until refused */
	long step_mib;
	double launch_seconds;
	long kernel_us;
	double hold_seconds; /* -1: for ever */
	bool hold;
};

static volatile sig_atomic_t stopped;

static void
on_signal(int number)
{
	(void)number;
	stopped = 1;
}

static const char *
result_name(cu_result result)
{
	const char *name = NULL;
	return cuGetErrorName(result, &name) == CU_OK && name != NULL ? name : "UNKNOWN";
}

static int
fail(const char *call, cu_result result)
{
	printf(
	    "{\"event\": \"error\", \"call\": \"%s\", \"result\": %d, \"result_name\": \"%s\"}\n",
	    call, result, result_name(result));
	return 1;
}

static void
print_uuid(const struct cu_uuid *uuid)
{
	fputs("\"uuid\": \"", stdout);
	for (unsigned i = 0; i < 16; i++) {
		printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
		       (unsigned char)uuid->bytes[i]);
	}
	fputs("\"", stdout);
}

static void
print_cuda_device(int ordinal)
{
	cu_device device = 0;
	char name[128] = "";
	struct cu_uuid uuid = {{0}};
	size_t total = 0;
	cuDeviceGet(&device, ordinal);
	cuDeviceGetName(name, sizeof name, device);
	cuDeviceGetUuid_v2(&uuid, device);
	cuDeviceTotalMem_v2(&total, device);
	printf("%s{\"index\": %d, \"name\": \"%s\", ", ordinal > 0 ? ", " : "", ordinal, name);
	print_uuid(&uuid);
	printf(", \"total_mib\": %zu}", total / MIB);
}

static void
print_nvml_devices(void)
{
	unsigned count = 0;
	nvml_result result = nvmlInit_v2();
	if (result == NVML_OK) {
		result = nvmlDeviceGetCount_v2(&count);
	}
	printf(", \"nvml_result\": %d, \"nvml\": [", result);
	for (unsigned i = 0; i < count; i++) {
		void *device = NULL;
		char uuid[96] = "";
		char name[128] = "";
		struct nvml_memory memory = {0, 0, 0};
		result = nvmlDeviceGetHandleByIndex_v2(i, &device);
		if (result == NVML_OK) {
			nvmlDeviceGetUUID(device, uuid, sizeof uuid);
			nvmlDeviceGetName(device, name, sizeof name);
			result = nvmlDeviceGetMemoryInfo(device, &memory);
		}
		printf("%s{\"index\": %u, \"name\": \"%s\", \"uuid\": \"%s\", \"total_mib\": %llu, "
		       "\"free_mib\": %llu, \"used_mib\": %llu, \"result\": %d}",
		       i > 0 ? ", " : "", i, name, uuid, (unsigned long long)(memory.total / MIB),
		       (unsigned long long)(memory.free / MIB),
		       (unsigned long long)(memory.used / MIB), result);
	}
	fputs("]", stdout);
}

static int
print_devices(void)
{
	int count = 0;
	cu_result result = cuInit(0);
	if (result == CU_OK) {
		result = cuDeviceGetCount(&count);
	}
	printf("{\"event\": \"devices\", \"cuda_result\": %d, \"cuda\": [", result);
	for (int i = 0; i < count; i++) {
		print_cuda_device(i);
	}
	fputs("]", stdout);
	print_nvml_devices();
	fputs("}\n", stdout);
	return result == CU_OK ? 0 : 1;
}

static int
use_device(const struct options *options)
{
	cu_device device = 0;
	void *context = NULL;
	size_t free_bytes = 0;
	size_t total = 0;
	cu_result result = cuDeviceGet(&device, options->device);
	if (result != CU_OK) {
		return fail("cuDeviceGet", result);
	}
	result = cuDevicePrimaryCtxRetain(&context, device);
	if (result != CU_OK) {
		return fail("cuDevicePrimaryCtxRetain", result);
	}
	result = cuCtxSetCurrent(context);
	if (result == CU_OK) {
		result = cuMemGetInfo_v2(&free_bytes, &total);
	}
	if (result != CU_OK) {
		return fail("cuMemGetInfo", result);
	}
	printf("{\"event\": \"context\", \"device\": %d, \"total_mib\": %zu, \"free_mib\": %zu}\n",
	       options->device, total / MIB, free_bytes / MIB);
	return 0;
}

static void
allocate(const struct options *options)
{
	long granted = 0;
	cu_result result = CU_OK;
	while (options->allocate_mib == 0 || granted < options->allocate_mib) {
		cu_deviceptr address = 0;
		long step = options->step_mib;
		if (options->allocate_mib != 0 && step > options->allocate_mib - granted) {
			step = options->allocate_mib - granted;
		}
		result = cuMemAlloc_v2(&address, (size_t)step * MIB);
		if (result != CU_OK) {
			break;
		}
		granted += step;
	}
	size_t free_bytes = 0;
	size_t total = 0;
	cuMemGetInfo_v2(&free_bytes, &total);
	printf("{\"event\": \"allocated\", \"granted_mib\": %ld, \"refused\": %s, \"result\": %d, "
	       "\"result_name\": \"%s\", \"free_mib\": %zu, \"total_mib\": %zu}\n",
	       granted, result != CU_OK ? "true" : "false", result, result_name(result),
	       free_bytes / MIB, total / MIB);
}

static double
now_seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int
launch(const struct options *options)
{
	char name[64];
	char image[256];
	void *module = NULL;
	void *function = NULL;
	snprintf(name, sizeof name, "spin_%ldus", options->kernel_us);
	snprintf(
	    image, sizeof image,
	    ".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry %s()\n{\n\tret;\n}\n",
	    name);
	cu_result result = cuModuleLoadData(&module, image);
	if (result == CU_OK) {
		result = cuModuleGetFunction(&function, module, name);
	}
	if (result != CU_OK) {
		return fail("cuModuleLoadData", result);
	}
	double start = now_seconds();
	long kernels = 0;
	while (now_seconds() - start < options->launch_seconds && !stopped) {
		result = cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
		if (result == CU_OK) {
			result = cuCtxSynchronize();
		}
		if (result != CU_OK) {
			return fail("cuLaunchKernel", result);
		}
		kernels++;
	}
	printf(
	    "{\"event\": \"launched\", \"kernels\": %ld, \"kernel_us\": %ld, \"seconds\": %.3f}\n",
	    kernels, options->kernel_us, now_seconds() - start);
	return 0;
}

static void
hold(const struct options *options)
{
	double end = now_seconds() + options->hold_seconds;
	puts("{\"event\": \"holding\"}");
	while (!stopped && (options->hold_seconds < 0 || now_seconds() < end)) {
		double left = options->hold_seconds < 0 ? 3600 : end - now_seconds();
		struct timespec pause = {.tv_sec = (time_t)left,
					 .tv_nsec = (long)((left - (double)(time_t)left) * 1e9)};
		nanosleep(&pause, NULL);
	}
	printf("{\"event\": \"released\", \"by\": \"%s\"}\n", stopped ? "signal" : "time");
}

static int
run(const struct options *options)
{
	int status = print_devices();
	if (status != 0 || options->list) {
		return status;
	}
	status = use_device(options);
	if (status == 0 && options->allocate_mib >= 0) {
		allocate(options);
	}
	if (status == 0 && options->launch_seconds > 0) {
		status = launch(options);
	}
	if (status == 0 && options->hold) {
		hold(options);
	}
	return status;
}

/* Parent and child both run everything: a fork before CUDA is initialised is legal. */
static int
run_forked(const struct options *options)
{
	pid_t child = fork();
	if (child < 0) {
		return fail("fork", errno);
	}
	int status = run(options);
	if (child == 0) {
		return status;
	}
	int child_status = 0;
	waitpid(child, &child_status, 0);
	return status != 0 ? status : (WIFEXITED(child_status) ? WEXITSTATUS(child_status) : 1);
}

static bool
number(const char *text, double *out)
{
	char *end = NULL;
	*out = strtod(text, &end);
	return end != text && *end == '\0' && *out >= 0;
}

static bool
read_option(int option, struct options *options)
{
	double value = 0;
	bool forever = option == 'h' && strcmp(optarg, "forever") == 0;
	if (optarg != NULL && !forever && !number(optarg, &value)) {
		return false;
	}
	switch (option) {
	case 'd':
		options->device = (int)value;
		return true;
	case 'a':
		options->allocate_mib = (long)value;
		return true;
	case 's':
		options->step_mib = (long)value;
		return value >= 1;
	case 'l':
		options->launch_seconds = value;
		return true;
	case 'k':
		options->kernel_us = (long)value;
		return true;
	case 'h':
		options->hold = true;
		options->hold_seconds = forever ? -1 : value;
		return true;
	case 'f':
		options->fork = true;
		return true;
	case 'L':
		options->list = true;
		return true;
	default:
		return false;
	}
}

int
main(int argc, char **argv)
{
	static const struct option names[] = {
	    {"device", required_argument, NULL, 'd'},
	    {"allocate", required_argument, NULL, 'a'},
	    {"step", required_argument, NULL, 's'},
	    {"launch", required_argument, NULL, 'l'},
	    {"kernel-us", required_argument, NULL, 'k'},
	    {"hold", required_argument, NULL, 'h'},
	    {"fork", no_argument, NULL, 'f'},
	    {"list", no_argument, NULL, 'L'},
	    {NULL, 0, NULL, 0},
	};
	struct options options = {.allocate_mib = -1, .step_mib = 64, .kernel_us = 1000};
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int option = getopt_long(argc, argv, "", names, NULL); option != -1;
	     option = getopt_long(argc, argv, "", names, NULL)) {
		if (!read_option(option, &options)) {
			fprintf(stderr, "gpuprobe: bad option; see the head of "
					"simulator/drivers/probe/gpuprobe.c\n");
			return 2;
		}
	}
	struct sigaction action = {.sa_handler = on_signal};
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	return options.fork ? run_forked(&options) : run(&options);
}
