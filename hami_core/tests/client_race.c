#include "client_race.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda_abi.h"

cu_result cuCtxSynchronize(void);
cu_result cuCtxSetCurrent(cu_context context);

void
client_race(unsigned long long bytes, unsigned long rounds)
{
	unsigned long granted = 0, refused = 0, other = 0;
	unsigned seed = (unsigned)getpid();
	cu_deviceptr live[64];
	unsigned count = 0;
	for (unsigned long i = 0; i < rounds; i++) {
		unsigned turn = (unsigned)rand_r(&seed);
		if (count > 0 && (turn % 4 == 0 || count == 64)) {
			unsigned at = turn % count;
			cuMemFree_v2(live[at]);
			live[at] = live[--count];
			continue;
		}
		int result = cuMemAlloc_v2(&live[count], bytes + turn % 4 * bytes);
		granted += result == CU_OK;
		refused += result == CU_OUT_OF_MEMORY;
		other += result != CU_OK && result != CU_OUT_OF_MEMORY;
		count += result == CU_OK;
	}
	while (count > 0) {
		cuMemFree_v2(live[--count]);
	}
	printf("0 %lu %lu %lu\n", granted, refused, other);
}

struct racer {
	unsigned long long bytes;
	unsigned long rounds;
	unsigned seed;
	cu_context context;
};

/* Allocate and free at random, small and large, plain and in stream order. */
static void *
race_thread(void *data)
{
	struct racer *racer = data;
	cu_deviceptr live[32];
	unsigned count = 0;
	cuCtxSetCurrent(racer->context);
	for (unsigned long i = 0; i < racer->rounds; i++) {
		unsigned turn = (unsigned)rand_r(&racer->seed);
		if (count > 0 && (turn % 2 == 0 || count == 32)) {
			unsigned at = turn % count;
			cuMemFree_v2(live[at]);
			live[at] = live[--count];
			continue;
		}
		unsigned long long bytes = turn % 3 == 0 ? 4096 : racer->bytes;
		int result = turn % 5 == 0 ? cuMemAllocAsync(&live[count], bytes, NULL)
					   : cuMemAlloc_v2(&live[count], bytes);
		count += result == CU_OK;
	}
	while (count > 0) {
		cuMemFree_v2(live[--count]);
	}
	return NULL;
}

void
client_race_threads(unsigned long threads, unsigned long long bytes, unsigned long rounds)
{
	pthread_t running[16];
	static struct racer racers[16];
	cu_context context = NULL;
	cuCtxGetCurrent(&context);
	for (unsigned long i = 0; i < threads && i < 16; i++) {
		racers[i] = (struct racer){bytes, rounds, (unsigned)i + 1, context};
		pthread_create(&running[i], NULL, race_thread, &racers[i]);
	}
	for (unsigned long i = 0; i < threads && i < 16; i++) {
		pthread_join(running[i], NULL);
	}
	printf("%d\n", cuCtxSynchronize());
}
