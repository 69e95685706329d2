#include "client_launch.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_abi.h"

cu_result cuModuleGetFunction(cu_function *function, cu_module module, const char *name);
cu_result cuCtxSynchronize(void);
cu_result cuGraphDestroy(cu_graph graph);
cu_result cuStreamSynchronize(cu_stream stream);

/* The fake driver's own function, past any library before it. */
void *gpuslice_fake_function(const char *symbol) __attribute__((weak));

static cu_function function;
static cu_function mixed[8]; /* launched in turn by run */
static unsigned mixed_count;
static cu_stream capture_stream;

static long long
now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

long long
client_cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void
do_run(double milliseconds, bool sync)
{
	unsigned long launches = 0;
	long long began = now_ns();
	long long until = began + (long long)(milliseconds * 1e6);
	int result = CU_OK;
	while (now_ns() < until && result == CU_OK) {
		cu_function next = mixed_count > 0 ? mixed[launches % mixed_count] : function;
		result = cuLaunchKernel(next, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
		launches++;
		if (sync || launches % 16 == 0) {
			cuStreamSynchronize(NULL);
		}
	}
	cuCtxSynchronize();
	printf("%d %lu %lld %lld\n", result, launches, now_ns() - began, began);
}

static void
do_launch(unsigned long count, bool sync, unsigned int side)
{
	long long began = now_ns();
	long long computed = client_cpu_ns();
	int result = CU_OK;
	for (unsigned long i = 0; i < count && result == CU_OK; i++) {
		result = cuLaunchKernel(function, side, side, 1, 32, 1, 1, 0, NULL, NULL, NULL);
		if (sync) {
			cuStreamSynchronize(NULL);
		}
	}
	printf("%d %lld %lld\n", result, now_ns() - began, client_cpu_ns() - computed);
}

/* Nanoseconds of one launch in a batch. */
static double
batch_ns(cu_result (*launch)(cu_function, unsigned, unsigned, unsigned, unsigned, unsigned,
			     unsigned, unsigned, cu_stream, void **, void **),
	 unsigned long count)
{
	long long began = now_ns();
	for (unsigned long i = 0; i < count; i++) {
		launch(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
	}
	return (double)(now_ns() - began) / (double)count;
}

static int
by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Short batches by the driver's own function and by the linked one in turn, pinned to one
 * processor: lower quartile of each, of the differences of neighbours the lower quartile, the
 * median and the upper one. */
static void
do_compare(unsigned long rounds, unsigned long count)
{
	static double driver_ns[4096], linked_ns[4096], extra_ns[4096];
	cpu_set_t here;
	CPU_ZERO(&here);
	CPU_SET((unsigned)sched_getcpu(), &here);
	sched_setaffinity(0, sizeof here, &here);
	cu_result (*own)(cu_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
			 unsigned, cu_stream, void **, void **);
	void *address = gpuslice_fake_function("cuLaunchKernel");
	memcpy(&own, &address, sizeof own);
	rounds = rounds < 4096 ? rounds : 4096;
	for (unsigned long i = 0; i < rounds; i++) {
		driver_ns[i] = batch_ns(own, count);
		linked_ns[i] = batch_ns(cuLaunchKernel, count);
		extra_ns[i] = linked_ns[i] - driver_ns[i];
	}
	qsort(driver_ns, rounds, sizeof *driver_ns, by_size);
	qsort(linked_ns, rounds, sizeof *linked_ns, by_size);
	qsort(extra_ns, rounds, sizeof *extra_ns, by_size);
	printf("0 %.3f %.3f %.3f %.3f %.3f\n", driver_ns[rounds / 4], linked_ns[rounds / 4],
	       extra_ns[rounds / 4], extra_ns[rounds / 2], extra_ns[rounds * 3 / 4]);
}

static void
do_graph(unsigned long count)
{
	cu_graph graph = NULL;
	cu_graph_exec exec = NULL;
	if (capture_stream == NULL) {
		cuStreamCreate(&capture_stream, CU_STREAM_NON_BLOCKING);
	}
	int result = cuStreamBeginCapture_v2(capture_stream, 0);
	for (unsigned long i = 0; i < count && result == CU_OK; i++) {
		result = cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, capture_stream, NULL, NULL);
	}
	result = result != CU_OK ? result : cuStreamEndCapture(capture_stream, &graph);
	result = result != CU_OK ? result : cuGraphInstantiateWithFlags(&exec, graph, 0);
	result = result != CU_OK ? result : cuGraphLaunch(exec, capture_stream);
	cuStreamSynchronize(capture_stream);
	cuGraphExecDestroy(exec);
	cuGraphDestroy(graph);
	printf("%d\n", result);
}

/* On a real device a kernel "k_500us" spins that long; the fake one goes by the name alone. */
static int
load_kernel(const char *name, cu_function *loaded)
{
	static char ptx[4096];
	unsigned long value = 0;
	char unit[3] = "ns";
	sscanf(name, "k_%lu%2s", &value, unit);
	unsigned long ns = value * (strcmp(unit, "us") == 0   ? 1000
				    : strcmp(unit, "ms") == 0 ? 1000000
							      : 1);
	snprintf(
	    ptx, sizeof ptx,
	    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry %s()\n{\n"
	    ".reg .u64 %%t<3>;\n.reg .pred %%p;\nmov.u64 %%t0, %%globaltimer;\nSPIN:\nmov.u64 "
	    "%%t1, %%globaltimer;\n"
	    "sub.u64 %%t2, %%t1, %%t0;\nsetp.lt.u64 %%p, %%t2, %lu;\n@%%p bra SPIN;\nret;\n}\n",
	    name, ns);
	cu_module module;
	int result = cuModuleLoadData(&module, ptx);
	return result != CU_OK ? result : cuModuleGetFunction(loaded, module, name);
}

static void
do_kernel(const char *name)
{
	mixed_count = 0;
	printf("%d\n", load_kernel(name, &function));
}

static void
do_mix(char *names)
{
	int result = CU_OK;
	mixed_count = 0;
	for (char *name = strtok(names, " \n"); name != NULL && mixed_count < 8 && result == CU_OK;
	     name = strtok(NULL, " \n")) {
		result = load_kernel(name, &mixed[mixed_count++]);
	}
	printf("%d\n", result);
}

bool
client_launch(const struct command *c)
{
	if (strcmp(c->word, "kernel") == 0) {
		do_kernel(c->a);
	} else if (strcmp(c->word, "mix") == 0) {
		do_mix(c->line + 4);
	} else if (strcmp(c->word, "launch") == 0) {
		do_launch(c->x, strcmp(c->b, "sync") == 0, 1);
	} else if (strcmp(c->word, "compare") == 0) {
		do_compare(c->x, c->y);
	} else if (strcmp(c->word, "biglaunch") == 0) {
		do_launch(c->x, false, 65536);
	} else if (strcmp(c->word, "run") == 0) {
		do_run((double)c->x, strcmp(c->b, "sync") == 0);
	} else if (strcmp(c->word, "graph") == 0) {
		do_graph(c->x);
	} else if (strcmp(c->word, "wait") == 0) {
		printf("%d\n", cuCtxSynchronize());
	} else {
		return false;
	}
	return true;
}
