/* A CUDA program that does what it is told on stdin, one command a line, and answers each with one
 * line on stdout:
 * "<result> [values…]", result being the driver's code. Linked to libcuda.so.1 like any program.
 *
 *   device N                      primary context of a device becomes current
 *   context N | uncontext         a context of its own (pushed), destroyed again
 *   alloc KIND BYTES              KIND: plain pitch managed async pool vmm array array3d mipmap
 * module small free                          the newest one, by its own function freeall freeas
 * FUNCTION               newest address with cuMemFree_v2 or cuMemFreeAsync badfree ADDRESS fill
 * BYTES                    plain allocations of that size until refused: number granted race BYTES
 * ROUNDS             allocate and free at random: granted, refused info | total N free and total
 * bytes nvml N                        total used free of NVML processes N                   NVML
 * compute processes: count and pid:bytes… kernel NAME                   load it mix NAME…  load
 * them; run launches them in turn launch COUNT [sync]
 * blocks 1: nanoseconds taken, and computed
 * compare ROUNDS COUNT          batches of COUNT launches past the library and through it in turn
 * biglaunch COUNT               the same with 65536 x
 * 65536 blocks run MILLISECONDS [sync]       launch until the time is over: launches, nanoseconds,
 * begin graph COUNT capture COUNT launches, then launch the graph once wait cuCtxSynchronize cycle
 * COUNT BYTES LIVE        alloc + free pairs with LIVE blocks held: nanoseconds computed a pair
 *   export                        handle of the newest block (plain or vmm) for other processes
 *   import KIND BYTES HANDLE | unimport
 *   use WAY BYTES | unuse WAY BYTES   WAY: multicast sparse; memory whose handle is released
 *   fork COMMAND…                 run one command in a child and answer its line
 *   sleep MILLISECONDS | pid | quit
 */
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda_abi.h"
#include "nvml_abi.h"
#include "client_blocks.h"
#include "client_launch.h"
#include "client_race.h"
#include "client_share.h"

cu_result cuCtxSynchronize(void);
cu_result cuCtxSetCurrent(cu_context context);
cu_result cuStreamSynchronize(cu_stream stream);
nvml_result nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvml_device *device);

/* A participant of the fake driver's virtual clock must not keep the others waiting while it reads.
 */
void gpuslice_fake_clock_leave(void) __attribute__((weak));

#define MAX_HELD 300000

static struct held held[MAX_HELD];
static size_t held_count;
static cu_device current;

static void
do_alloc(const char *rest)
{
	struct held block = {.handle = 0};
	unsigned long long bytes = 0;
	sscanf(rest, "%11s %llu", block.kind, &bytes);
	block.bytes = bytes;
	int result = block_alloc(&block, current);
	if (result == CU_OK && held_count < MAX_HELD) {
		held[held_count++] = block;
	}
	printf("%d %llu\n", result, block.address);
}

static void
do_fill(unsigned long long bytes)
{
	unsigned long count = 0;
	int result = CU_OK;
	struct held block = {.kind = "plain", .bytes = bytes};
	while (held_count < MAX_HELD && (result = cuMemAlloc_v2(&block.address, bytes)) == CU_OK) {
		held[held_count++] = block;
		count++;
	}
	printf("%d %lu\n", result, count);
}

static void
do_cycle(unsigned long count, unsigned long long bytes, unsigned long live)
{
	cu_deviceptr *blocks = calloc(live + 1, sizeof *blocks);
	for (unsigned long i = 0; i < live; i++) {
		cuMemAlloc_v2(&blocks[i], bytes);
	}
	long long began = client_cpu_ns();
	cu_deviceptr one;
	int result = CU_OK;
	for (unsigned long i = 0; i < count; i++) {
		result = cuMemAlloc_v2(&one, bytes);
		cuMemFree_v2(one);
	}
	long long took = client_cpu_ns() - began;
	for (unsigned long i = 0; i < live; i++) {
		cuMemFree_v2(blocks[i]);
	}
	free(blocks);
	printf("%d %.2f\n", result, (double)took / (double)count);
}

static void
do_nvml(unsigned index, bool processes)
{
	nvml_device device;
	struct nvml_memory memory = {0, 0, 0};
	nvmlInit_v2();
	int result = nvmlDeviceGetHandleByIndex_v2(index, &device);
	if (!processes) {
		result = result != NVML_OK ? result : nvmlDeviceGetMemoryInfo(device, &memory);
		printf("%d %llu %llu %llu\n", result, memory.total, memory.used, memory.free);
		return;
	}
	struct nvml_process list[64];
	unsigned int count = 64;
	result = nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list);
	printf("%d %u", result, count);
	for (unsigned int i = 0; i < count && i < 64; i++) {
		printf(" %u:%llu", list[i].pid, list[i].used_bytes);
	}
	printf("\n");
}

static void execute(char *line);

static void
do_fork(char *rest)
{
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		execute(rest);
		fflush(stdout);
		_exit(0);
	}
	waitpid(child, NULL, 0);
}

static void
do_context(unsigned long device)
{
	cu_context context = NULL;
	int result = cuCtxCreate_v2(&context, 0, (cu_device)device);
	struct held block = {.kind = "context", .handle = (uint64_t)(uintptr_t)context};
	if (result == CU_OK) {
		held[held_count++] = block;
	}
	printf("%d\n", result);
}

static void
do_info(void)
{
	size_t free_bytes = 0, total_bytes = 0;
	int result = cuMemGetInfo_v2(&free_bytes, &total_bytes);
	printf("%d %zu %zu\n", result, free_bytes, total_bytes);
}

static void
do_free(const char *how)
{
	if (held_count == 0) {
		printf("-1\n");
		return;
	}
	struct held *block = &held[--held_count];
	if (strcmp(how, "cuMemFree_v2") == 0) {
		printf("%d\n", cuMemFree_v2(block->address));
	} else if (strcmp(how, "cuMemFreeAsync") == 0) {
		int result = cuMemFreeAsync(block->address, NULL);
		cuStreamSynchronize(NULL);
		printf("%d\n", result);
	} else if (strcmp(block->kind, "context") == 0) {
		printf("%d\n", cuCtxDestroy_v2((cu_context)(uintptr_t)block->handle));
	} else {
		printf("%d\n", block_free(block));
	}
}

static void
do_device(cu_device device)
{
	cu_context context = NULL;
	current = device;
	int result = cuDevicePrimaryCtxRetain(&context, device);
	printf("%d\n", result != CU_OK ? result : cuCtxSetCurrent(context));
}

static void
do_total(cu_device device)
{
	size_t bytes = 0;
	int result = cuDeviceTotalMem_v2(&bytes, device);
	printf("%d %zu\n", result, bytes);
}

static void
free_all(void)
{
	while (held_count > 0) {
		block_free(&held[--held_count]);
	}
	printf("0\n");
}

/* Each of these answers the commands of its kind; false: not one of them. */
static bool
execute_memory(const struct command *c)
{
	if (strcmp(c->word, "alloc") == 0) {
		do_alloc(c->line + 6);
	} else if (strcmp(c->word, "free") == 0) {
		do_free("");
	} else if (strcmp(c->word, "freeas") == 0) {
		do_free(c->a);
	} else if (strcmp(c->word, "freeall") == 0) {
		free_all();
	} else if (strcmp(c->word, "badfree") == 0) {
		printf("%d\n", cuMemFree_v2(c->x));
	} else if (strcmp(c->word, "fill") == 0) {
		do_fill(c->x);
	} else if (strcmp(c->word, "race") == 0) {
		client_race(c->x, c->y);
	} else if (strcmp(c->word, "threads") == 0) {
		client_race_threads(c->x, c->y, c->z);
	} else if (strcmp(c->word, "cycle") == 0) {
		do_cycle(c->x, c->y, c->z);
	} else {
		return false;
	}
	return true;
}

static bool
execute_device(const struct command *c)
{
	if (strcmp(c->word, "device") == 0) {
		do_device((cu_device)c->x);
	} else if (strcmp(c->word, "context") == 0) {
		do_context(c->x);
	} else if (strcmp(c->word, "info") == 0) {
		do_info();
	} else if (strcmp(c->word, "total") == 0) {
		do_total((cu_device)c->x);
	} else if (strcmp(c->word, "nvml") == 0 || strcmp(c->word, "processes") == 0) {
		do_nvml((unsigned)c->x, c->word[0] == 'p');
	} else {
		return false;
	}
	return true;
}

static void
execute_process(const struct command *c)
{
	if (strcmp(c->word, "fork") == 0) {
		do_fork(c->line + 5);
	} else if (strcmp(c->word, "pid") == 0) {
		printf("0 %d\n", (int)getpid());
	} else if (strcmp(c->word, "quit") == 0) {
		exit(0);
	} else {
		printf("-2 %s?\n", c->word);
	}
}

static void
execute(char *line)
{
	struct command c = {.line = line};
	char third[64] = "";
	sscanf(line, "%23s %63s %63s %63s", c.word, c.a, c.b, third);
	c.x = strtoull(c.a, NULL, 0);
	c.y = strtoull(c.b, NULL, 0);
	c.z = strtoull(third, NULL, 0);
	if (!execute_memory(&c) && !client_launch(&c) &&
	    !client_share(&c, held_count > 0 ? &held[held_count - 1] : NULL) &&
	    !execute_device(&c)) {
		execute_process(&c);
	}
}

int
main(void)
{
	char line[4096];
	setvbuf(stdout, NULL, _IOLBF, 0);
	setvbuf(stdin, NULL, _IONBF, 0); /* so that poll knows of the next command */
	printf("%d ready\n", cuInit(0));
	for (;;) {
		struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
		if (gpuslice_fake_clock_leave != NULL && poll(&input, 1, 0) == 0) {
			gpuslice_fake_clock_leave();
		}
		if (fgets(line, sizeof line, stdin) == NULL) {
			return 0;
		}
		execute(line);
	}
}
