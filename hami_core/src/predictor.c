/* A direct-mapped table. Threads race on entries without locks: a lost update costs one sample. */
#include "predictor.h"

#include <string.h>

#define ENTRIES 4096
#define MAX_SAMPLES 16

static struct forecast table[ENTRIES];

static uint64_t
mix(uint64_t value)
{
	value *= 0x9E3779B97F4A7C15ULL;
	return value ^ (value >> 29);
}

struct forecast *
forecast_of(const void *function, uint64_t blocks, uint32_t threads)
{
	uint64_t key =
	    mix(mix((uint64_t)(uintptr_t)function + blocks * 0x2545F4914F6CDD1DULL) + threads) | 1;
	struct forecast *entry = &table[(key >> 20) % ENTRIES];
	if (__builtin_expect(entry->key != key, 0)) {
		*entry = (struct forecast){key, FORECAST_GUESS_NS, 0, 0};
	}
	return entry;
}

void
forecast_learn(struct forecast *forecast, int64_t measured_ns, bool contended)
{
	int64_t cost = forecast->cost_ns;
	measured_ns = measured_ns < 1 ? 1 : measured_ns;
	if (forecast->samples == 0) {
		forecast->cost_ns = measured_ns;
		forecast->samples = 1;
		return;
	}
	if (contended) {
		/* A slice of somebody else's only ever adds: follow downward fast, upward slowly.
		 */
		int64_t most = cost / 32 + 1;
		int64_t up = measured_ns - cost < most ? measured_ns - cost : most;
		cost += measured_ns < cost ? (measured_ns - cost) / 4 : up;
		forecast->cost_ns = cost < 1 ? 1 : cost;
		forecast->samples += forecast->samples < MAX_SAMPLES;
		return;
	}
	uint32_t weight = forecast->samples + 1;
	cost += (measured_ns - cost) / (int64_t)weight;
	forecast->cost_ns = cost < 1 ? 1 : cost;
	forecast->samples = weight > MAX_SAMPLES ? MAX_SAMPLES : weight;
}

void
forecasts_clear(void)
{
	memset(table, 0, sizeof table);
}
