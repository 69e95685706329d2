/* One process of the container at a time corrects: row->bias_turn holds the time of the next turn.
 * Threads: the NVML session and the marks are used by the winner of a turn only. */
#include "bias.h"

#include <unistd.h>

#include "clock.h"
#include "driver.h"
#include "limits.h"
#include "nvml_view.h"
#include "state.h"

#define TURN_NS (250 * NS_PER_MS)
#define ONE_Q16 65536
#define LEAST_BIAS (ONE_Q16 / 10)
#define MOST_BIAS (2 * ONE_Q16)
#define MAX_SAMPLES 128
/* After so many corrections of one second's figures each, three seconds' are taken, which are less
 * noisy. */
#define QUICK_CORRECTIONS 4
#define HINT_LIFE_NS (2 * NS_PER_S)

struct view {
	bool valid;                    /* own processes were seen */
	bool neighbours;               /* others' too */
	unsigned percent_sum, periods; /* of the own processes over the periods seen */
};

static struct mark {
	nvml_device handle;
	bool open, failed;
	unsigned long long last_us;
	uint64_t busy_ns, hint_at_ns;
	int64_t at_ns;
	unsigned percent_sum, percent_count;
	unsigned corrections;
	uint64_t measured_ns, charged_ns; /* of late, the older the less */
	bool neighbours;
} marks[MAX_DEVICES];

static uint64_t
current_bias(const struct device *device)
{
	uint64_t bias = __atomic_load_n(&device->row->bias_q16, __ATOMIC_RELAXED);
	return bias < LEAST_BIAS || bias > MOST_BIAS ? ONE_Q16 : bias;
}

int64_t
bias_apply(const struct device *device, int64_t measured_ns)
{
	return (int64_t)(((unsigned __int128)(measured_ns < 0 ? 0 : measured_ns) *
			  current_bias(device)) >>
			 16);
}

bool
bias_neighbours(const struct device *device)
{
	struct limits_hint hint;
	if (limits_hint(device->limits_row, &hint) &&
	    clock_now() - (int64_t)hint.stamp_ns < HINT_LIFE_NS) {
		return hint.others_active_q16 != 0;
	}
	return marks[device->row_index].neighbours;
}

/* Move the bias towards what makes charged time equal measured time: at most a quarter a turn. A
 * long kernel is charged at its end and measured all along, so single windows are off by a kernel;
 * older ones count with them, as they would have been charged by today's bias. */
static void
correct(struct device *device, uint64_t measured_ns, uint64_t charged_ns)
{
	struct mark *mark = &marks[device->row_index];
	if (charged_ns < TURN_NS / 50 || measured_ns == 0) {
		return;
	}
	/* The first windows lie far off: the less is charged, the more runs, the longer all takes.
	 */
	unsigned fading = mark->corrections < QUICK_CORRECTIONS ? 2 : 4;
	mark->measured_ns = measured_ns + mark->measured_ns - mark->measured_ns / fading;
	mark->charged_ns = charged_ns + mark->charged_ns - mark->charged_ns / fading;
	uint64_t ratio = (mark->measured_ns << 16) / mark->charged_ns;
	ratio = ratio < ONE_Q16 * 3 / 4 ? ONE_Q16 * 3 / 4
					: (ratio > ONE_Q16 * 5 / 4 ? ONE_Q16 * 5 / 4 : ratio);
	mark->corrections++;
	uint64_t bias = (current_bias(device) * ratio) >> 16;
	bias = bias < LEAST_BIAS ? LEAST_BIAS : (bias > MOST_BIAS ? MOST_BIAS : bias);
	mark->charged_ns = (mark->charged_ns * ratio) >> 16;
	__atomic_store_n(&device->row->bias_q16, bias, __ATOMIC_RELAXED);
}

static bool
is_new_period(const struct nvml_process_sample *samples, unsigned int at)
{
	for (unsigned int i = 0; i < at; i++) {
		if (samples[i].stamp_us == samples[at].stamp_us) {
			return false;
		}
	}
	return true;
}

static struct view
read_nvml(struct device *device)
{
	struct view view = {false, false, 0, 0};
	unsigned row = device->row_index;
	static struct nvml_process_sample samples[MAX_SAMPLES];
	unsigned int count = MAX_SAMPLES;
	if (!marks[row].open && !marks[row].failed) {
		marks[row].open = nvml_open(device->uuid, &marks[row].handle);
		marks[row].failed = !marks[row].open;
	}
	if (!marks[row].open || nvml()->nvmlDeviceGetProcessUtilization == NULL ||
	    nvml()->nvmlDeviceGetProcessUtilization(marks[row].handle, samples, &count,
						    marks[row].last_us) != NVML_OK) {
		return view;
	}
	for (unsigned int i = 0; i < count && i < MAX_SAMPLES; i++) {
		bool own = state_owns_pid(samples[i].pid);
		view.periods += is_new_period(samples, i);
		view.valid = view.valid || own;
		view.percent_sum += own ? samples[i].sm : 0;
		view.neighbours = view.neighbours || (!own && samples[i].sm > 0);
		if (samples[i].stamp_us > marks[row].last_us) {
			marks[row].last_us = samples[i].stamp_us;
		}
	}
	return view;
}

/* The node daemon's own measurement, when it publishes one. */
static bool
correct_by_hint(struct device *device)
{
	struct limits_hint hint;
	unsigned row = device->row_index;
	if (!limits_hint(device->limits_row, &hint) || hint.measured_valid == 0) {
		return false;
	}
	if (hint.measured_at_ns != marks[row].hint_at_ns) {
		uint64_t busy = __atomic_load_n(&device->row->busy_ns, __ATOMIC_RELAXED);
		if (marks[row].hint_at_ns != 0) {
			correct(device, hint.measured_busy_ns, busy - marks[row].busy_ns);
		}
		marks[row].hint_at_ns = hint.measured_at_ns;
		marks[row].busy_ns = busy;
	}
	return true;
}

static void
correct_by_nvml(struct device *device, int64_t now_ns)
{
	unsigned row = device->row_index;
	struct view view = read_nvml(device);
	if (view.valid) {
		marks[row].neighbours = view.neighbours;
		marks[row].percent_sum += view.percent_sum;
		marks[row].percent_count += view.periods;
	}
	int64_t passed = now_ns - marks[row].at_ns;
	int64_t window = marks[row].corrections < QUICK_CORRECTIONS ? NS_PER_S : 3 * NS_PER_S;
	if (passed < window) {
		return;
	}
	uint64_t busy = __atomic_load_n(&device->row->busy_ns, __ATOMIC_RELAXED);
	if (marks[row].at_ns != 0 && passed < 3 * window && marks[row].percent_count > 0) {
		if (marks[row].neighbours) {
			uint64_t measured_ns = (uint64_t)passed / 100 * marks[row].percent_sum /
					       marks[row].percent_count;
			correct(device, measured_ns, busy - marks[row].busy_ns);
		} else {
			__atomic_store_n(&device->row->bias_q16,
					 (current_bias(device) + ONE_Q16) / 2, __ATOMIC_RELAXED);
		}
	}
	marks[row].at_ns = now_ns;
	marks[row].busy_ns = busy;
	marks[row].percent_sum = 0;
	marks[row].percent_count = 0;
}

void
bias_sample(struct device *device, int64_t now_ns)
{
	uint64_t turn = __atomic_load_n(&device->row->bias_turn, __ATOMIC_RELAXED);
	if (now_ns < (int64_t)turn && now_ns > (int64_t)turn - 2 * TURN_NS) {
		return;
	}
	if (!__atomic_compare_exchange_n(&device->row->bias_turn, &turn,
					 (uint64_t)(now_ns + TURN_NS), 0, __ATOMIC_RELAXED,
					 __ATOMIC_RELAXED)) {
		return;
	}
	if (!correct_by_hint(device)) {
		correct_by_nvml(device, now_ns);
	}
}
