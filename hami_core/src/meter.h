/* Measures launches with event pairs, without ever waiting for the device.
 *
 * A measured launch stands for all predicted work launched since the one before it on this device
 * (its `work_ns`), so the sum over unfinished ones bounds the work in flight.
 */
#ifndef GPUSLICE_METER_H
#define GPUSLICE_METER_H

#include <stdbool.h>
#include <stdint.h>

#include "compute.h"
#include "devices.h"
#include "predictor.h"

struct sample {
	struct forecast *forecast;
	uint64_t forecast_key;
	cu_context context;
	cu_event start, end;
	int64_t charged_ns; /* taken for this launch */
	int64_t work_ns;    /* predicted work that it stands for */
	int64_t launched_ns;
	int64_t idle_since_ns; /* host time of the start if the stream had nothing to do, else 0 */
	int64_t gap_ns;        /* what the launch itself then took of the measured time */
	uint64_t short_before;
	bool busy;    /* in flight */
	bool settles; /* correct the bucket by the measurement, not only the forecast */
};

struct meter_result {
	struct forecast *forecast; /* NULL when its place was taken by another kernel */
	int64_t start_ns, end_ns;  /* on the host's clock */
	int64_t duration_ns;
	int64_t charged_ns;
	int64_t launched_ns;
	uint64_t short_before;
	bool settles;
};

/* Record the start before a launch; NULL when it cannot be measured (then only the forecast
 * counts). */
struct sample *meter_start(int device, const struct launch *launch, int64_t now_ns);

/* Record the end after a successful launch, or drop the sample after a failed one. */
void meter_stop(int device, struct sample *sample, const struct launch *launch, bool launched);

/* Collect one finished sample; false when there is none. */
bool meter_collect(int device, struct meter_result *result);

/* Samples in flight and the predicted work that they stand for. */
struct meter_load {
	int count;
	int64_t work_ns;
	int64_t oldest_ns; /* launch time of the oldest; 0 when none */
};
struct meter_load meter_load(int device);

void meter_context_ended(cu_context context);
void meter_postfork_child(void);

#endif
