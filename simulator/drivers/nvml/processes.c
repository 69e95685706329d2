/* Who uses a card: process lists of all versions, and what each process used of the
 * multiprocessors. */
#include <stdlib.h>
#include <string.h>

#include "nvml.h"
#include "timeline.h"
#include "clock.h"

enum { MAX_LIST = 256 };

struct user {
	uint32_t pid;
	uint32_t gi;
	uint64_t bytes;
	const struct work_queue *work; /* NULL: a foreign process */
	uint32_t foreign_percent;
};

/* A process that this namespace cannot name is left out, as the driver does for other containers.
 */
static uint32_t
shown_pid(uint32_t client)
{
	return region()->inventory.pids_in_container ? (uint32_t)region()->clients[client].pid
						     : (uint32_t)client_visible_pid(client);
}

static void
add_client(uint32_t client, const struct handle *handle, struct user *users, unsigned *count)
{
	const struct client *c = &region()->clients[client];
	for (uint32_t h = 0; h < c->holding_count && *count < MAX_LIST; h++) {
		const struct holding *holding = &c->holdings[h];
		uint64_t bytes = 0;
		uint32_t gi = holding->domain % DOMAINS_PER_CARD;
		for (unsigned k = 0; k < KIND_COUNT; k++) {
			bytes += holding->bytes[k];
		}
		bool here = holding->domain / DOMAINS_PER_CARD == handle->card &&
			    (handle->gi == 0 || handle->gi == gi);
		uint32_t pid = here && bytes != 0 ? shown_pid(client) : 0;
		if (pid != 0) {
			users[(*count)++] = (struct user){
			    .pid = pid, .gi = gi, .bytes = bytes, .work = &holding->work};
		}
	}
}

/* Lock held by the caller. */
static unsigned
collect(const struct handle *handle, struct user *users)
{
	unsigned count = 0;
	region_reap();
	for (uint32_t c = 0; c < MAX_CLIENTS; c++) {
		if (region()->kinds[c] == CLIENT_CUDA) {
			add_client(c, handle, users, &count);
		}
	}
	for (unsigned f = 0; f < MAX_FOREIGN && handle->gi == 0 && count < MAX_LIST; f++) {
		const struct foreign_process *foreign = &handle_card(handle)->foreign[f];
		if (foreign->pid != 0) {
			users[count++] = (struct user){.pid = foreign->pid,
						       .bytes = foreign->bytes,
						       .foreign_percent = foreign->sm_percent};
		}
	}
	return count;
}

static nvml_result
list_users(void *device, const char *symbol, struct user *users, unsigned *found)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check(device, symbol, &handle);
	if (result == NVML_OK) {
		region_lock();
		*found = collect(handle, users);
		region_unlock();
	}
	return result;
}

static uint32_t
shown_instance(const struct user *user)
{
	return user->gi == 0 ? UINT32_MAX : user->gi;
}

static nvml_result
fill_v2(void *device, const char *symbol, unsigned *count, struct nvml_process_v2 *out)
{
	struct user users[MAX_LIST];
	unsigned found = 0;
	nvml_result result = list_users(device, symbol, users, &found);
	if (result != NVML_OK || count == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	unsigned room = *count;
	*count = found;
	if (found > room || (found > 0 && out == NULL)) {
		return NVML_INSUFFICIENT_SIZE;
	}
	for (unsigned i = 0; i < found; i++) {
		out[i] = (struct nvml_process_v2){users[i].pid, users[i].bytes,
						  shown_instance(&users[i]),
						  users[i].gi == 0 ? UINT32_MAX : 0};
	}
	return NVML_OK;
}

nvml_result
fake_nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count,
					     struct nvml_process_v2 *out)
{
	return fill_v2(device, "nvmlDeviceGetComputeRunningProcesses_v3", count, out);
}

nvml_result
fake_nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *count,
					     struct nvml_process_v2 *out)
{
	return fill_v2(device, "nvmlDeviceGetComputeRunningProcesses_v2", count, out);
}

nvml_result
fake_nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count,
					  struct nvml_process_v1 *out)
{
	struct user users[MAX_LIST];
	unsigned found = 0;
	nvml_result result =
	    list_users(device, "nvmlDeviceGetComputeRunningProcesses", users, &found);
	if (result != NVML_OK || count == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	unsigned room = *count;
	*count = found;
	if (found > room || (found > 0 && out == NULL)) {
		return NVML_INSUFFICIENT_SIZE;
	}
	for (unsigned i = 0; i < found; i++) {
		out[i] = (struct nvml_process_v1){users[i].pid, users[i].bytes};
	}
	return NVML_OK;
}

/* No graphics and no MPS clients here: empty lists. */
static nvml_result
nobody(void *device, const char *symbol, unsigned *count)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check(device, symbol, &handle);
	if (result == NVML_OK && count == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	if (result == NVML_OK) {
		*count = 0;
	}
	return result;
}

nvml_result
fake_nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, void *out)
{
	(void)out;
	return nobody(device, "nvmlDeviceGetGraphicsRunningProcesses_v3", count);
}

nvml_result
fake_nvmlDeviceGetGraphicsRunningProcesses_v2(void *device, unsigned *count, void *out)
{
	(void)out;
	return nobody(device, "nvmlDeviceGetGraphicsRunningProcesses_v2", count);
}

nvml_result
fake_nvmlDeviceGetGraphicsRunningProcesses(void *device, unsigned *count, void *out)
{
	(void)out;
	return nobody(device, "nvmlDeviceGetGraphicsRunningProcesses", count);
}

nvml_result
fake_nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, unsigned *count, void *out)
{
	(void)out;
	return nobody(device, "nvmlDeviceGetMPSComputeRunningProcesses_v3", count);
}

nvml_result
fake_nvmlDeviceGetMPSComputeRunningProcesses_v2(void *device, unsigned *count, void *out)
{
	(void)out;
	return nobody(device, "nvmlDeviceGetMPSComputeRunningProcesses_v2", count);
}

nvml_result
fake_nvmlDeviceGetMPSComputeRunningProcesses(void *device, unsigned *count, void *out)
{
	(void)out;
	return nobody(device, "nvmlDeviceGetMPSComputeRunningProcesses", count);
}

nvml_result
fake_nvmlDeviceGetRunningProcessDetailList(void *device, struct nvml_process_detail_list *out)
{
	struct user users[MAX_LIST];
	unsigned found = 0;
	if (out == NULL || out->version != NVML_VERSION(struct nvml_process_detail_list, 1) ||
	    out->mode > 2) {
		return out != NULL && out->mode <= 2 ? NVML_ARGUMENT_VERSION_MISMATCH
						     : NVML_INVALID_ARGUMENT;
	}
	nvml_result result =
	    list_users(device, "nvmlDeviceGetRunningProcessDetailList", users, &found);
	found = out->mode == 0 ? found : 0;
	unsigned room = out->count;
	if (result != NVML_OK) {
		return result;
	}
	out->count = found;
	if (found > room || (found > 0 && out->list == NULL)) {
		return NVML_INSUFFICIENT_SIZE;
	}
	for (unsigned i = 0; i < found; i++) {
		out->list[i] = (struct nvml_process_detail){users[i].pid, users[i].bytes,
							    shown_instance(&users[i]),
							    users[i].gi == 0 ? UINT32_MAX : 0, 0};
	}
	return NVML_OK;
}

/* Samples of one process newer than a moment and old enough to show: the newest one's figures. */
static bool
newest_sample(const struct user *user, uint64_t since_us, uint64_t now_us,
	      struct nvml_process_usage *out)
{
	uint64_t shown_until = now_us - region()->inventory.lag_ns / 1000;
	if (user->work == NULL) {
		*out = (struct nvml_process_usage){.timestamp_us = shown_until,
						   .pid = user->pid,
						   .sm = user->foreign_percent,
						   .memory = user->foreign_percent / 2};
		return user->foreign_percent != 0;
	}
	uint32_t kept = user->work->sample_next < SAMPLES ? user->work->sample_next : SAMPLES;
	for (uint32_t back = 1; back <= kept; back++) {
		uint32_t at = (user->work->sample_next - back) % SAMPLES;
		uint64_t end_us = user->work->samples[at].end_us;
		if (end_us <= shown_until && end_us > since_us) {
			*out = (struct nvml_process_usage){.timestamp_us = end_us,
							   .pid = user->pid,
							   .sm = user->work->samples[at].percent,
							   .memory =
							       user->work->samples[at].percent / 2};
			return true;
		}
	}
	return false;
}

static nvml_result
usage(void *device, const char *symbol, uint64_t since_us, struct nvml_process_usage *out,
      unsigned *found)
{
	const struct handle *handle = NULL;
	struct user users[MAX_LIST];
	nvml_result result = handle_check(device, symbol, &handle);
	if (result != NVML_OK) {
		return result;
	}
	if (handle_card(handle)->mig_enabled || !region()->inventory.process_utilization) {
		return NVML_NOT_SUPPORTED;
	}
	region_lock();
	timeline_advance(handle_domain(handle));
	unsigned count = collect(handle, users);
	*found = 0;
	for (unsigned i = 0; i < count; i++) {
		*found += newest_sample(&users[i], since_us, clock_now() / 1000, &out[*found]);
	}
	region_unlock();
	return NVML_OK;
}

/* Nobody was busy since: NOT_FOUND, as the real library. */
nvml_result
fake_nvmlDeviceGetProcessUtilization(void *device, struct nvml_process_sample *out, unsigned *count,
				     unsigned long long since_us)
{
	struct nvml_process_usage list[MAX_LIST];
	unsigned found = 0;
	nvml_result result =
	    usage(device, "nvmlDeviceGetProcessUtilization", since_us, list, &found);
	if (result != NVML_OK || count == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	unsigned room = *count;
	if (out == NULL || room < found) {
		*count = found > 0 ? found : 1;
		return NVML_INSUFFICIENT_SIZE;
	}
	for (unsigned i = 0; i < found; i++) {
		out[i] = (struct nvml_process_sample){
		    list[i].pid, list[i].timestamp_us, list[i].sm, list[i].memory, 0, 0};
	}
	*count = found;
	return found > 0 ? NVML_OK : NVML_NOT_FOUND;
}

nvml_result
fake_nvmlDeviceGetProcessesUtilizationInfo(void *device, struct nvml_processes_usage *out)
{
	struct nvml_process_usage list[MAX_LIST];
	unsigned found = 0;
	if (out == NULL || out->version != NVML_VERSION(struct nvml_processes_usage, 1)) {
		return out == NULL ? NVML_INVALID_ARGUMENT : NVML_ARGUMENT_VERSION_MISMATCH;
	}
	nvml_result result =
	    usage(device, "nvmlDeviceGetProcessesUtilizationInfo", out->last_seen_us, list, &found);
	if (result != NVML_OK) {
		return result;
	}
	unsigned room = out->count;
	out->count = found;
	if (out->list == NULL || room < found) {
		return NVML_INSUFFICIENT_SIZE;
	}
	memcpy(out->list, list, found * sizeof *list);
	return found > 0 ? NVML_OK : NVML_NOT_FOUND;
}
