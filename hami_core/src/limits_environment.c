#include "limits_environment.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "log.h"
#include "quantity.h"

static struct limit general;
static struct limit by_index[MAX_DEVICES];
static bool differs;

static bool
read_memory(char *(*environment)(const char *), const char *name, uint64_t *bytes, bool *any)
{
	const char *text = environment(name);
	if (text == NULL) {
		return true;
	}
	*any = true;
	if (quantity_bytes(text, bytes)) {
		return true;
	}
	log_line(LOG_ERROR,
		 "%s=\"%.64s\" is not an amount of memory such as 3000m, 4G or 4Gi: every "
		 "allocation is denied",
		 name, text);
	return false;
}

static bool
read_cores(char *(*environment)(const char *), const char *name, uint32_t *core_q16, bool *any)
{
	const char *text = environment(name);
	uint32_t percent;
	if (text == NULL) {
		return true;
	}
	*any = true;
	if (quantity_percent(text, &percent)) {
		*core_q16 = percent * FULL_CORES_Q16 / 100;
		return true;
	}
	log_line(LOG_ERROR, "%s=\"%.64s\" is not a percentage 0..100: every allocation is denied",
		 name, text);
	return false;
}

static bool
read_indexed(char *(*environment)(const char *), bool *any)
{
	char name[64];
	for (int i = 0; i < MAX_DEVICES; i++) {
		by_index[i] = general;
		snprintf(name, sizeof name, "CUDA_DEVICE_MEMORY_LIMIT_%d", i);
		if (!read_memory(environment, name, &by_index[i].memory_bytes, any)) {
			return false;
		}
		snprintf(name, sizeof name, "CUDA_DEVICE_SM_LIMIT_%d", i);
		if (!read_cores(environment, name, &by_index[i].core_q16, any)) {
			return false;
		}
		differs = differs || memcmp(&by_index[i], &by_index[0], sizeof general) != 0;
	}
	return true;
}

static bool
read_policy(char *(*environment)(const char *), struct limit *limit)
{
	const char *policy = environment("GPU_CORE_UTILIZATION_POLICY");
	if (policy != NULL && strcasecmp(policy, "disable") == 0) {
		limit->core_policy = POLICY_OFF;
	} else if (policy != NULL && strcasecmp(policy, "force") != 0 &&
		   strcasecmp(policy, "default") != 0) {
		log_line(
		    LOG_ERROR,
		    "GPU_CORE_UTILIZATION_POLICY=\"%.64s\" is none of default, force, disable: "
		    "every allocation is denied",
		    policy);
		return false;
	}
	const char *priority = environment("CUDA_TASK_PRIORITY");
	limit->priority = priority != NULL && strcmp(priority, "0") == 0 ? 0 : 1;
	return true;
}

enum limits_source
limits_environment_open(char *(*environment)(const char *))
{
	bool any = false;
	general = (struct limit){.memory_bytes = NO_MEMORY_LIMIT};
	differs = false;
	bool good =
	    read_memory(environment, "CUDA_DEVICE_MEMORY_LIMIT", &general.memory_bytes, &any) &&
	    read_cores(environment, "CUDA_DEVICE_SM_LIMIT", &general.core_q16, &any) &&
	    read_policy(environment, &general) && read_indexed(environment, &any);
	if (!good) {
		return LIMITS_CLOSED;
	}
	const char *oversubscribe = environment("CUDA_OVERSUBSCRIBE");
	bool on = false;
	if (oversubscribe != NULL && !quantity_switch(oversubscribe, &on)) {
		log_line(LOG_ERROR,
			 "CUDA_OVERSUBSCRIBE=\"%.64s\" is neither true nor false: taken as false",
			 oversubscribe);
	}
	for (int i = 0; on && i < MAX_DEVICES; i++) {
		by_index[i].spill_bytes = by_index[i].memory_bytes;
	}
	return any ? LIMITS_ENVIRONMENT : LIMITS_NONE;
}

void
limits_environment_read(int index, struct limit *out)
{
	*out = index >= 0 && index < MAX_DEVICES ? by_index[index] : general;
}

bool
limits_environment_by_index(void)
{
	return differs;
}
