/* Utilisation and the figures of sensors. Power and temperature follow the utilisation. */
#include "clock.h"
#include "nvml.h"
#include "timeline.h"

struct reading {
	const struct card *card;
	const struct card_model *model;
	uint32_t busy_percent; /* newest sample old enough to show */
};

/* Whole-card samples; on a card with MIG the instances' are not to be had. */
static uint32_t
shown_percent(uint32_t domain)
{
	struct domain *d = &region()->domains[domain];
	uint64_t shown_until = (clock_now() - region()->inventory.lag_ns) / 1000;
	uint32_t percent = 0;
	region_lock();
	timeline_advance(domain);
	uint32_t kept = d->sample_next < SAMPLES ? d->sample_next : SAMPLES;
	for (uint32_t back = 1; back <= kept; back++) {
		uint32_t at = (d->sample_next - back) % SAMPLES;
		if (d->sample_end_us[at] <= shown_until) {
			percent = d->sample_percent[at];
			break;
		}
	}
	region_unlock();
	return percent;
}

static uint32_t
foreign_percent(const struct card *card)
{
	uint32_t percent = 0;
	for (unsigned i = 0; i < MAX_FOREIGN; i++) {
		percent += card->foreign[i].sm_percent;
	}
	return percent;
}

static nvml_result
read_card(void *device, const char *symbol, struct reading *out)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check_card(device, symbol, &handle);
	if (result == NVML_OK) {
		out->card = handle_card(handle);
		out->model = card_model(out->card);
		uint32_t percent = out->card->mig_enabled ? 0
							  : shown_percent(handle_domain(handle)) +
								foreign_percent(out->card);
		out->busy_percent = percent > 100 ? 100 : percent;
	}
	return result;
}

/* Answer one number of a card. */
static nvml_result
answer(void *device, const char *symbol, unsigned *out, unsigned (*read)(const struct reading *))
{
	struct reading reading;
	nvml_result result = read_card(device, symbol, &reading);
	if (result == NVML_OK && out == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	if (result == NVML_OK) {
		*out = read(&reading);
	}
	return result;
}

nvml_result
fake_nvmlDeviceGetUtilizationRates(void *device, struct nvml_utilization *out)
{
	struct reading reading;
	nvml_result result = read_card(device, "nvmlDeviceGetUtilizationRates", &reading);
	if (result != NVML_OK || out == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	if (reading.card->mig_enabled) {
		return NVML_NOT_SUPPORTED;
	}
	out->gpu = reading.busy_percent;
	out->memory = reading.busy_percent / 2;
	return NVML_OK;
}

static unsigned
temperature(const struct reading *r)
{
	return 31 + r->busy_percent * 40 / 100;
}

static unsigned
power_mw(const struct reading *r)
{
	return r->model->power_w * 1000 / 8 +
	       r->model->power_w * 1000 / 100 * r->busy_percent * 7 / 8;
}

static unsigned
power_limit_mw(const struct reading *r)
{
	return r->model->power_w * 1000;
}

static unsigned
zero(const struct reading *r)
{
	(void)r;
	return 0;
}

static unsigned
one(const struct reading *r)
{
	(void)r;
	return 1;
}

static unsigned
pcie_generation(const struct reading *r)
{
	return r->model->pcie_gen;
}

static unsigned
pcie_width(const struct reading *r)
{
	(void)r;
	return 16;
}

static unsigned
performance_state(const struct reading *r)
{
	return r->busy_percent > 0 ? 0 : 8;
}

nvml_result
fake_nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *celsius)
{
	return sensor != 0 ? NVML_INVALID_ARGUMENT
			   : answer(device, "nvmlDeviceGetTemperature", celsius, temperature);
}

struct temperature_v1 {
	uint32_t version;
	uint32_t sensor;
	int32_t celsius;
};

nvml_result
fake_nvmlDeviceGetTemperatureV(void *device, struct temperature_v1 *out)
{
	unsigned celsius = 0;
	if (out == NULL || out->version != NVML_VERSION(struct temperature_v1, 1)) {
		return out == NULL ? NVML_INVALID_ARGUMENT : NVML_ARGUMENT_VERSION_MISMATCH;
	}
	nvml_result result = answer(device, "nvmlDeviceGetTemperatureV", &celsius, temperature);
	out->celsius = (int32_t)celsius;
	return result;
}

nvml_result
fake_nvmlDeviceGetTemperatureThreshold(void *device, unsigned kind, unsigned *celsius)
{
	const struct handle *handle = NULL;
	nvml_result result =
	    handle_check_card(device, "nvmlDeviceGetTemperatureThreshold", &handle);
	if (result == NVML_OK && (celsius == NULL || kind > 7)) {
		return NVML_INVALID_ARGUMENT;
	}
	if (result == NVML_OK) {
		*celsius = kind == 0 ? 92 : 89;
	}
	return result;
}

nvml_result
fake_nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts)
{
	return answer(device, "nvmlDeviceGetPowerUsage", milliwatts, power_mw);
}

nvml_result
fake_nvmlDeviceGetPowerManagementLimit(void *device, unsigned *milliwatts)
{
	return answer(device, "nvmlDeviceGetPowerManagementLimit", milliwatts, power_limit_mw);
}

nvml_result
fake_nvmlDeviceGetPowerManagementDefaultLimit(void *device, unsigned *milliwatts)
{
	return answer(device, "nvmlDeviceGetPowerManagementDefaultLimit", milliwatts,
		      power_limit_mw);
}

nvml_result
fake_nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatts)
{
	return answer(device, "nvmlDeviceGetEnforcedPowerLimit", milliwatts, power_limit_mw);
}

nvml_result
fake_nvmlDeviceGetPowerManagementMode(void *device, unsigned *mode)
{
	return answer(device, "nvmlDeviceGetPowerManagementMode", mode, one);
}

nvml_result
fake_nvmlDeviceGetPerformanceState(void *device, unsigned *state)
{
	return answer(device, "nvmlDeviceGetPerformanceState", state, performance_state);
}

nvml_result
fake_nvmlDeviceGetPowerState(void *device, unsigned *state)
{
	return answer(device, "nvmlDeviceGetPowerState", state, performance_state);
}

nvml_result
fake_nvmlDeviceGetPersistenceMode(void *device, unsigned *mode)
{
	return answer(device, "nvmlDeviceGetPersistenceMode", mode, one);
}

static unsigned
compute_mode(const struct reading *reading)
{
	return reading->card->compute_mode;
}

nvml_result
fake_nvmlDeviceGetComputeMode(void *device, unsigned *mode)
{
	return answer(device, "nvmlDeviceGetComputeMode", mode, compute_mode);
}

/* Only kept, for those who look: contexts are not refused. */
nvml_result
fake_nvmlDeviceSetComputeMode(void *device, unsigned mode)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check_card(device, "nvmlDeviceSetComputeMode", &handle);
	if (result != NVML_OK) {
		return result;
	}
	if (mode == 1 || mode > 3) {
		return mode == 1 ? NVML_NOT_SUPPORTED : NVML_INVALID_ARGUMENT;
	}
	region()->inventory.cards[handle->card].compute_mode = mode;
	return NVML_OK;
}

nvml_result
fake_nvmlDeviceGetDisplayMode(void *device, unsigned *mode)
{
	return answer(device, "nvmlDeviceGetDisplayMode", mode, zero);
}

nvml_result
fake_nvmlDeviceGetDisplayActive(void *device, unsigned *active)
{
	return answer(device, "nvmlDeviceGetDisplayActive", active, zero);
}

nvml_result
fake_nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned *generation)
{
	return answer(device, "nvmlDeviceGetCurrPcieLinkGeneration", generation, pcie_generation);
}

nvml_result
fake_nvmlDeviceGetMaxPcieLinkGeneration(void *device, unsigned *generation)
{
	return answer(device, "nvmlDeviceGetMaxPcieLinkGeneration", generation, pcie_generation);
}

nvml_result
fake_nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *width)
{
	return answer(device, "nvmlDeviceGetCurrPcieLinkWidth", width, pcie_width);
}

nvml_result
fake_nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *width)
{
	return answer(device, "nvmlDeviceGetMaxPcieLinkWidth", width, pcie_width);
}

nvml_result
fake_nvmlDeviceGetPcieThroughput(void *device, unsigned counter, unsigned *kilobytes)
{
	return counter > 1 ? NVML_INVALID_ARGUMENT
			   : answer(device, "nvmlDeviceGetPcieThroughput", kilobytes, zero);
}

nvml_result
fake_nvmlDeviceGetPcieReplayCounter(void *device, unsigned *count)
{
	return answer(device, "nvmlDeviceGetPcieReplayCounter", count, zero);
}

static nvml_result
engine(void *device, const char *symbol, unsigned *percent, unsigned *period_us)
{
	nvml_result result = answer(device, symbol, percent, zero);
	if (result == NVML_OK && period_us == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	if (result == NVML_OK) {
		*period_us = (unsigned)(region()->inventory.sample_ns / 1000);
	}
	return result;
}

nvml_result
fake_nvmlDeviceGetEncoderUtilization(void *device, unsigned *percent, unsigned *period_us)
{
	return engine(device, "nvmlDeviceGetEncoderUtilization", percent, period_us);
}

nvml_result
fake_nvmlDeviceGetDecoderUtilization(void *device, unsigned *percent, unsigned *period_us)
{
	return engine(device, "nvmlDeviceGetDecoderUtilization", percent, period_us);
}

/* Clocks: 0 graphics, 1 SM, 2 memory, 3 video. */
static nvml_result
clock_rate(void *device, const char *symbol, unsigned which, unsigned *mhz, bool most)
{
	struct reading reading;
	nvml_result result = read_card(device, symbol, &reading);
	if (result != NVML_OK || mhz == NULL || which > 3) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	unsigned top = which == 2 ? reading.model->memory_clock_mhz : reading.model->clock_mhz;
	*mhz = most || which == 2 || reading.busy_percent > 0 ? top : top / 6;
	return NVML_OK;
}

nvml_result
fake_nvmlDeviceGetClockInfo(void *device, unsigned which, unsigned *mhz)
{
	return clock_rate(device, "nvmlDeviceGetClockInfo", which, mhz, false);
}

nvml_result
fake_nvmlDeviceGetClock(void *device, unsigned which, unsigned id, unsigned *mhz)
{
	return id > 3 ? NVML_INVALID_ARGUMENT
		      : clock_rate(device, "nvmlDeviceGetClock", which, mhz, id != 0);
}

nvml_result
fake_nvmlDeviceGetMaxClockInfo(void *device, unsigned which, unsigned *mhz)
{
	return clock_rate(device, "nvmlDeviceGetMaxClockInfo", which, mhz, true);
}

nvml_result
fake_nvmlDeviceGetApplicationsClock(void *device, unsigned which, unsigned *mhz)
{
	return clock_rate(device, "nvmlDeviceGetApplicationsClock", which, mhz, true);
}

nvml_result
fake_nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons)
{
	struct reading reading;
	nvml_result result = read_card(device, "nvmlDeviceGetCurrentClocksEventReasons", &reading);
	if (result == NVML_OK && reasons == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	if (result == NVML_OK) {
		*reasons = reading.busy_percent > 0 ? 0 : 1; /* 1: idle */
	}
	return result;
}

nvml_result
fake_nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons)
{
	return fake_nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

nvml_result
fake_nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules)
{
	const struct handle *handle = NULL;
	nvml_result result =
	    handle_check_card(device, "nvmlDeviceGetTotalEnergyConsumption", &handle);
	if (result == NVML_OK && millijoules == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	if (result == NVML_OK) {
		uint64_t busy_us = region()->domains[handle_domain(handle)].busy_ns / 1000;
		*millijoules = busy_us * card_model(handle_card(handle))->power_w / 1000;
	}
	return result;
}

nvml_result
fake_nvmlDeviceGetPowerManagementLimitConstraints(void *device, unsigned *least, unsigned *most)
{
	unsigned limit = 0;
	nvml_result result =
	    answer(device, "nvmlDeviceGetPowerManagementLimitConstraints", &limit, power_limit_mw);
	if (result != NVML_OK || least == NULL || most == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	*least = limit / 4;
	*most = limit;
	return NVML_OK;
}
