/* A CUDA program that does what it is told: one command a line on stdin, or all of them as
 * arguments ("-c", then one argument a command). Answers "CODE VALUE…" a line. Blocks, events and
 * streams are named by the order of their creation, from 0.
 *
 *   init | context D | info | alloc B | pitch W H | managed B | async B | pool B | vmm B | array W
 * H | free I | freeasync I stream | launch NAME COUNT [STREAM] | record [STREAM] | elapsed I J |
 * query I | sync | now | sleep NS | threshold B | trim B export I FILE | import FILE | graph B NAME
 * | graphfree | limit L V | calls SYMBOL | reset | fork */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../simulator/drivers/cuda/cuda_abi.h"

#define API(name, ...) static cu_result (*name)(__VA_ARGS__)
API(cuInit, unsigned);
API(cuDevicePrimaryCtxRetain, void **, int);
API(cuCtxSetCurrent, void *);
API(cuMemGetInfo_v2, size_t *, size_t *);
API(cuMemAlloc_v2, cu_deviceptr *, size_t);
API(cuMemAllocPitch_v2, cu_deviceptr *, size_t *, size_t, size_t, unsigned);
API(cuMemAllocManaged, cu_deviceptr *, size_t, unsigned);
API(cuMemAllocAsync, cu_deviceptr *, size_t, void *);
API(cuMemFree_v2, cu_deviceptr);
API(cuMemFreeAsync, cu_deviceptr, void *);
API(cuMemCreate, cu_mem_handle *, size_t, const void *, unsigned long long);
API(cuMemRelease, cu_mem_handle);
API(cuMemExportToShareableHandle, void *, cu_mem_handle, int, unsigned long long);
API(cuMemImportFromShareableHandle, cu_mem_handle *, void *, int);
API(cuArrayCreate_v2, void **, const void *);
API(cuArrayDestroy, void *);
API(cuDeviceGetDefaultMemPool, void **, int);
API(cuMemPoolSetAttribute, void *, int, void *);
API(cuMemPoolGetAttribute, void *, int, void *);
API(cuMemPoolTrimTo, void *, size_t);
API(cuModuleLoadData, void **, const void *);
API(cuModuleGetFunction, void **, void *, const char *);
API(cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
    void *, void **, void **);
API(cuStreamCreate, void **, unsigned);
API(cuStreamBeginCapture_v2, void *, int);
API(cuStreamEndCapture, void *, void **);
API(cuGraphInstantiateWithFlags, void **, void *, unsigned long long);
API(cuGraphLaunch, void *, void *);
API(cuDeviceGraphMemTrim, int);
API(cuEventCreate, void **, unsigned);
API(cuEventRecord, void *, void *);
API(cuEventQuery, void *);
API(cuEventElapsedTime, float *, void *, void *);
API(cuCtxSynchronize, void);
API(cuCtxSetLimit, int, size_t);
API(cuDevicePrimaryCtxReset_v2, int);
static uint64_t (*gpuslice_fake_clock_now)(void);
static void (*gpuslice_fake_clock_sleep)(uint64_t);
static uint64_t (*gpuslice_fake_calls)(const char *);

enum { MAX = 4096 };
static struct {
	char kind; /* d: pointer, v: VMM handle, a: array, 0: freed */
	cu_deviceptr pointer;
	void *array;
} blocks[MAX];
static void *events[MAX], *streams[MAX], *default_pool;
static int block_count, event_count, stream_count, device;

static void
load(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (library == NULL) {
		fprintf(stderr, "%s\n", dlerror());
		exit(2);
	}
#define GET(name) *(void **)&name = dlsym(library, #name)
	GET(cuInit), GET(cuDevicePrimaryCtxRetain), GET(cuCtxSetCurrent), GET(cuMemGetInfo_v2),
	    GET(cuMemAlloc_v2);
	GET(cuMemAllocPitch_v2), GET(cuMemAllocManaged), GET(cuMemAllocAsync), GET(cuMemFree_v2),
	    GET(cuMemFreeAsync);
	GET(cuMemCreate), GET(cuMemRelease), GET(cuMemExportToShareableHandle),
	    GET(cuMemImportFromShareableHandle);
	GET(cuArrayCreate_v2), GET(cuArrayDestroy), GET(cuDeviceGetDefaultMemPool),
	    GET(cuMemPoolSetAttribute);
	GET(cuMemPoolGetAttribute), GET(cuMemPoolTrimTo), GET(cuModuleLoadData),
	    GET(cuModuleGetFunction), GET(cuLaunchKernel);
	GET(cuStreamCreate), GET(cuStreamBeginCapture_v2), GET(cuStreamEndCapture),
	    GET(cuGraphInstantiateWithFlags);
	GET(cuGraphLaunch), GET(cuDeviceGraphMemTrim), GET(cuEventCreate), GET(cuEventRecord),
	    GET(cuEventQuery);
	GET(cuEventElapsedTime), GET(cuCtxSynchronize), GET(cuCtxSetLimit);
	GET(cuDevicePrimaryCtxReset_v2);
	GET(gpuslice_fake_clock_now), GET(gpuslice_fake_clock_sleep), GET(gpuslice_fake_calls);
}

static void *
function_named(const char *name)
{
	char image[256];
	void *module = NULL;
	void *function = NULL;
	snprintf(image, sizeof image, ".version 7.0\n.target sm_52\n.visible .entry %s(){ret;}\n",
		 name);
	if (cuModuleLoadData(&module, image) == CU_OK) {
		cuModuleGetFunction(&function, module, name);
	}
	return function;
}

static int
keep(cu_result code, char kind, cu_deviceptr pointer, void *array)
{
	if (code == CU_OK) {
		blocks[block_count].kind = kind;
		blocks[block_count].pointer = pointer;
		blocks[block_count].array = array;
		return block_count++;
	}
	return -1;
}

static void
allocate(const char *what, size_t a, size_t b)
{
	cu_deviceptr p = 0;
	void *array = NULL;
	char kind = 'd';
	cu_result code = CU_INVALID_VALUE;
	size_t pitch = 0;
	if (strcmp(what, "alloc") == 0) {
		code = cuMemAlloc_v2(&p, a);
	} else if (strcmp(what, "pitch") == 0) {
		code = cuMemAllocPitch_v2(&p, &pitch, a, b, 4);
	} else if (strcmp(what, "managed") == 0) {
		code = cuMemAllocManaged(&p, a, 1);
	} else if (strcmp(what, "async") == 0) {
		code = cuMemAllocAsync(&p, a, NULL);
	} else if (strcmp(what, "vmm") == 0) {
		int properties[8] = {1, 1, 1, device, 0, 0, 0, 0};
		kind = 'v';
		code = cuMemCreate(&p, a, properties, 0);
	} else {
		struct {
			size_t width, height;
			int format;
			unsigned channels;
		} shape = {a, b, 0x20, 4};
		kind = 'a';
		code = cuArrayCreate_v2(&array, &shape);
	}
	int name = keep(code, kind, p, array);
	printf("%d %d\n", code, name);
}

static cu_result
release(int i, int async)
{
	if (i < 0 || i >= block_count || blocks[i].kind == 0) {
		return CU_INVALID_VALUE;
	}
	char kind = blocks[i].kind;
	blocks[i].kind = 0;
	if (kind == 'v') {
		return cuMemRelease(blocks[i].pointer);
	}
	if (kind == 'a') {
		return cuArrayDestroy(blocks[i].array);
	}
	return async ? cuMemFreeAsync(blocks[i].pointer, NULL) : cuMemFree_v2(blocks[i].pointer);
}

static void
run_graph(size_t bytes, const char *name)
{
	void *stream = NULL, *graph = NULL, *exec = NULL, *function = function_named(name);
	cu_deviceptr p = 0;
	cu_result code = cuStreamCreate(&stream, 1);
	code = code == CU_OK ? cuStreamBeginCapture_v2(stream, 2) : code;
	code = code == CU_OK ? cuMemAllocAsync(&p, bytes, stream) : code;
	code = code == CU_OK ? cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL)
			     : code;
	code = code == CU_OK ? cuMemFreeAsync(p, stream) : code;
	code = code == CU_OK ? cuStreamEndCapture(stream, &graph) : code;
	code = code == CU_OK ? cuGraphInstantiateWithFlags(&exec, graph, 0) : code;
	code = code == CU_OK ? cuGraphLaunch(exec, stream) : code;
	printf("%d\n", code);
}

static void
share(const char *verb, int i, const char *path)
{
	char link[64];
	int fd = -1;
	if (strcmp(verb, "export") == 0) {
		cu_result code = cuMemExportToShareableHandle(&fd, blocks[i].pointer, 1, 0);
		snprintf(link, sizeof link, "/proc/%d/fd/%d", (int)getpid(), fd);
		unlink(path);
		printf("%d %d\n", code, code == CU_OK ? symlink(link, path) : -1);
		return;
	}
	FILE *file = fopen(path, "r");
	cu_mem_handle handle = 0;
	cu_result code =
	    file == NULL
		? CU_FILE_NOT_FOUND
		: cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fileno(file), 1);
	printf("%d %d\n", code, keep(code, 'v', handle, NULL));
}

static void
launch(const char *name, long count, int stream)
{
	void *function = function_named(name);
	cu_result code = function != NULL ? CU_OK : CU_NOT_FOUND;
	for (long i = 0; i < count && code == CU_OK; i++) {
		code = cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0,
				      stream < 0 ? NULL : streams[stream], NULL, NULL);
	}
	printf("%d\n", code);
}

/* CUDA after a fork from an initialised process must refuse, not crash. */
static void
fork_and_init(void)
{
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		_exit(cuInit(0) == CU_OK ? 0 : (cuMemGetInfo_v2(NULL, NULL) & 0xff));
	}
	int status = 0;
	waitpid(child, &status, 0);
	printf("%d\n", WEXITSTATUS(status));
}

/* Each handler answers for its verbs and returns whether the verb was one of them. */
static bool
start_up(const char *verb, long number, long second)
{
	void *context = NULL;
	size_t free_bytes = 0, total = 0;
	if (strcmp(verb, "init") == 0) {
		printf("%d\n", cuInit(0));
	} else if (strcmp(verb, "context") == 0) {
		device = (int)number;
		cu_result code = cuDevicePrimaryCtxRetain(&context, device);
		code = code == CU_OK ? cuCtxSetCurrent(context) : code;
		cuDeviceGetDefaultMemPool(&default_pool, device);
		printf("%d\n", code);
	} else if (strcmp(verb, "info") == 0) {
		cu_result code = cuMemGetInfo_v2(&free_bytes, &total);
		printf("%d %zu %zu\n", code, free_bytes, total);
	} else if (strcmp(verb, "limit") == 0) {
		printf("%d\n", cuCtxSetLimit((int)number, (size_t)second));
	} else if (strcmp(verb, "reset") == 0) {
		printf("%d\n", cuDevicePrimaryCtxReset_v2(device));
	} else if (strcmp(verb, "fork") == 0) {
		fork_and_init();
	} else {
		return false;
	}
	return true;
}

static bool
work(const char *verb, const char *line, const char *word, long number, long second)
{
	if (strcmp(verb, "stream") == 0) {
		printf("%d %d\n", cuStreamCreate(&streams[stream_count], 1), stream_count);
		stream_count++;
	} else if (strcmp(verb, "launch") == 0) {
		long count = 1, stream = -1;
		sscanf(line, "%*s %*s %ld %ld", &count, &stream);
		launch(word, count, (int)stream);
	} else if (strcmp(verb, "record") == 0) {
		cuEventCreate(&events[event_count], 0);
		printf("%d %d\n",
		       cuEventRecord(events[event_count], word[0] != '\0' ? streams[number] : NULL),
		       event_count);
		event_count++;
	} else if (strcmp(verb, "elapsed") == 0) {
		float ms = -1;
		cu_result code = cuEventElapsedTime(&ms, events[number], events[second]);
		printf("%d %.4f\n", code, (double)ms);
	} else if (strcmp(verb, "query") == 0) {
		printf("%d\n", cuEventQuery(events[number]));
	} else if (strcmp(verb, "sync") == 0) {
		printf("%d\n", cuCtxSynchronize());
	} else {
		return false;
	}
	return true;
}

static bool
observe(const char *verb, const char *word, long number)
{
	if (strcmp(verb, "now") == 0) {
		printf("0 %llu\n", (unsigned long long)gpuslice_fake_clock_now());
	} else if (strcmp(verb, "sleep") == 0) {
		gpuslice_fake_clock_sleep((uint64_t)number);
		printf("0 %llu\n", (unsigned long long)gpuslice_fake_clock_now());
	} else if (strcmp(verb, "calls") == 0) {
		printf("0 %llu\n", (unsigned long long)gpuslice_fake_calls(word));
	} else {
		return false;
	}
	return true;
}

static bool
pools_and_sharing(const char *verb, const char *word, const char *more, long number)
{
	uint64_t bytes = (uint64_t)number;
	if (strcmp(verb, "threshold") == 0) {
		printf("%d\n", cuMemPoolSetAttribute(default_pool, 4, &bytes));
	} else if (strcmp(verb, "reserved") == 0) {
		cu_result code = cuMemPoolGetAttribute(default_pool, 5, &bytes);
		printf("%d %llu\n", code, (unsigned long long)bytes);
	} else if (strcmp(verb, "trim") == 0) {
		printf("%d\n", cuMemPoolTrimTo(default_pool, (size_t)number));
	} else if (strcmp(verb, "export") == 0) {
		share(verb, (int)number, more);
	} else if (strcmp(verb, "import") == 0) {
		share(verb, 0, word);
	} else if (strcmp(verb, "graph") == 0) {
		run_graph((size_t)number, more);
	} else if (strcmp(verb, "graphfree") == 0) {
		printf("%d\n", cuDeviceGraphMemTrim(device));
	} else {
		return false;
	}
	return true;
}

static void
obey(const char *line)
{
	char verb[32] = "", word[256] = "", more[256] = "";
	long number = 0, second = -1;
	sscanf(line, "%31s %255s %255s", verb, word, more);
	sscanf(line, "%*s %ld %ld", &number, &second);
	if (start_up(verb, number, second) || work(verb, line, word, number, second) ||
	    observe(verb, word, number) || pools_and_sharing(verb, word, more, number)) {
		return;
	}
	if (strcmp(verb, "free") == 0 || strcmp(verb, "freeasync") == 0) {
		printf("%d\n", release((int)number, verb[4] != '\0'));
	} else {
		allocate(verb, (size_t)number, (size_t)second);
	}
}

int
main(int argc, char **argv)
{
	char line[1024];
	load();
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 1 && strcmp(argv[1], "-c") == 0) {
		for (int i = 2; i < argc; i++) {
			obey(argv[i]);
		}
		return 0;
	}
	while (fgets(line, sizeof line, stdin) != NULL) {
		obey(line);
	}
	return 0;
}
