/* What a container gets of its cards: one line of JSON on stdout.
 *
 * For every card: the total that CUDA and NVML report, how much can be allocated in blocks until
 * the driver refuses, and the code of the refusal. With an argument it then keeps what it has and
 * sleeps.
 *
 * usage: share [hold]
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1024ULL * 1024ULL)
#define BLOCK (100ULL * MIB)
#define MAX_BLOCKS 4096

typedef unsigned long long pointer_type;

struct nvml_memory {
	unsigned long long total;
	unsigned long long free;
	unsigned long long used;
};

struct uuid {
	unsigned char bytes[16];
};

static int (*cu_init)(unsigned int);
static int (*cu_count)(int *);
static int (*cu_device)(int *, int);
static int (*cu_uuid)(struct uuid *, int);
static int (*cu_context)(void **, unsigned int, int);
static int (*cu_info)(size_t *, size_t *);
static int (*cu_alloc)(pointer_type *, size_t);
static int (*nvml_init)(void);
static int (*nvml_count)(unsigned int *);
static int (*nvml_handle)(unsigned int, void **);
static int (*nvml_memory)(void *, struct nvml_memory *);

static void
fail(const char *what, int code)
{
	printf("{\"failed\": \"%s\", \"code\": %d}\n", what, code);
	exit(EXIT_FAILURE);
}

static void
check(const char *what, int code)
{
	if (code != 0) {
		fail(what, code);
	}
}

static void
find(void *library, const char *name, void *target)
{
	void *symbol = dlsym(library, name);
	if (symbol == NULL) {
		fail(name, -1);
	}
	memcpy(target, &symbol, sizeof(symbol));
}

static void
load(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
	void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (cuda == NULL || nvml == NULL) {
		fail("dlopen", -1);
	}
	find(cuda, "cuInit", &cu_init);
	find(cuda, "cuDeviceGetCount", &cu_count);
	find(cuda, "cuDeviceGet", &cu_device);
	find(cuda, "cuDeviceGetUuid", &cu_uuid);
	find(cuda, "cuCtxCreate_v2", &cu_context);
	find(cuda, "cuMemGetInfo_v2", &cu_info);
	find(cuda, "cuMemAlloc_v2", &cu_alloc);
	find(nvml, "nvmlInit_v2", &nvml_init);
	find(nvml, "nvmlDeviceGetCount_v2", &nvml_count);
	find(nvml, "nvmlDeviceGetHandleByIndex_v2", &nvml_handle);
	find(nvml, "nvmlDeviceGetMemoryInfo", &nvml_memory);
}

static void
print_uuid(int device)
{
	struct uuid uuid;
	check("cuDeviceGetUuid", cu_uuid(&uuid, device));
	printf("\"uuid\": \"GPU-");
	for (size_t i = 0; i < sizeof(uuid.bytes); i++) {
		printf("%s%02x", (i == 4 || i == 6 || i == 8 || i == 10) ? "-" : "", uuid.bytes[i]);
	}
	printf("\"");
}

static void
print_memory(unsigned int index)
{
	size_t available = 0;
	size_t total = 0;
	void *handle = NULL;
	struct nvml_memory seen;

	check("cuMemGetInfo", cu_info(&available, &total));
	check("nvmlDeviceGetHandleByIndex", nvml_handle(index, &handle));
	check("nvmlDeviceGetMemoryInfo", nvml_memory(handle, &seen));
	printf(", \"cuda_total_mib\": %llu, \"nvml_total_mib\": %llu",
	       (unsigned long long)total / MIB, seen.total / MIB);
}

/* Allocate whole blocks, then halves of them down to 1 MiB, so that the sum meets the limit
 * closely. */
static void
print_greed(void)
{
	unsigned long long granted = 0;
	int code = 0;

	for (unsigned long long size = BLOCK; size >= MIB; size /= 2) {
		for (int block = 0; block < MAX_BLOCKS; block++) {
			pointer_type address = 0;
			code = cu_alloc(&address, size);
			if (code != 0) {
				break;
			}
			granted += size;
		}
	}
	printf(", \"granted_mib\": %llu, \"refusal\": %d", granted / MIB, code);
}

int
main(int argc, char **argv)
{
	int count = 0;
	unsigned int nvml_cards = 0;

	/* As a container's first process it has no default handler. */
	(void)signal(SIGTERM, _exit);
	load();
	check("cuInit", cu_init(0));
	check("cuDeviceGetCount", cu_count(&count));
	check("nvmlInit", nvml_init());
	check("nvmlDeviceGetCount", nvml_count(&nvml_cards));
	printf("{\"nvml_cards\": %u, \"cards\": [", nvml_cards);
	for (int index = 0; index < count; index++) {
		int device = 0;
		void *context = NULL;
		check("cuDeviceGet", cu_device(&device, index));
		check("cuCtxCreate", cu_context(&context, 0, device));
		printf("%s{", index == 0 ? "" : ", ");
		print_uuid(device);
		print_memory((unsigned int)index);
		print_greed();
		printf("}");
	}
	printf("]}\n");
	(void)fflush(stdout);
	if (argc > 1 && strcmp(argv[1], "hold") == 0) {
		for (;;) {
			(void)pause();
		}
	}
	return EXIT_SUCCESS;
}
