/* How long a kernel or graph is expected to run, learnt from measured launches. Per process. */
#ifndef GPUSLICE_PREDICTOR_H
#define GPUSLICE_PREDICTOR_H

#include <stdbool.h>
#include <stdint.h>

struct forecast {
	uint64_t key;     /* function, grid and block together */
	int64_t cost_ns;  /* expected GPU time of one launch */
	uint32_t samples; /* measured so far; saturates */
	uint32_t pending; /* launched and being measured */
};

#define FORECAST_YOUNG 4 /* until then every launch is measured */
#define FORECAST_GUESS_NS 10000

/* The entry of a launch; replaces an older one that fell on the same place. Never NULL. */
struct forecast *forecast_of(const void *function, uint64_t blocks, uint32_t threads);

/* Learn a duration. `contended`: something else may have run in between, so that longer
 * durations count little; what that hides from a forecast, the bias brings back. */
void forecast_learn(struct forecast *forecast, int64_t measured_ns, bool contended);

void forecasts_clear(void);

#endif
