/* GPU instances and their compute instances: finding, creating, destroying. */
#include <string.h>

#include "events.h"
#include "nvml.h"

/* Handles of GPU and compute instances as programs hold them: addresses within this table. */
static char instance_marks[MAX_CARDS][DOMAINS_PER_CARD][2];

static bool
instance_from(const void *mark, unsigned which, uint32_t *card, uint32_t *gi)
{
	uintptr_t offset = (uintptr_t)mark - (uintptr_t)instance_marks;
	if (offset >= sizeof instance_marks || offset % 2 != which) {
		return false;
	}
	*card = (uint32_t)(offset / (DOMAINS_PER_CARD * 2));
	*gi = (uint32_t)(offset / 2 % DOMAINS_PER_CARD);
	return *gi >= 1 && region()->inventory.cards[*card].mig[*gi - 1].live;
}

nvml_result
fake_nvmlDeviceGetGpuInstances(void *device, unsigned id, void **out, unsigned *count)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check_card(device, "nvmlDeviceGetGpuInstances", &handle);
	if (result != NVML_OK || count == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	unsigned found = 0;
	for (uint32_t gi = 1; gi < DOMAINS_PER_CARD; gi++) {
		const struct mig_instance *instance = &handle_card(handle)->mig[gi - 1];
		if (instance->live && mig_profile_of(instance)->id == id) {
			if (out != NULL) {
				out[found] = &instance_marks[handle->card][gi][0];
			}
			found++;
		}
	}
	*count = found;
	return NVML_OK;
}

nvml_result
fake_nvmlDeviceGetGpuInstanceById(void *device, unsigned id, void **out)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check_card(device, "nvmlDeviceGetGpuInstanceById", &handle);
	if (result != NVML_OK || out == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	if (id < 1 || id > MAX_INSTANCES || !handle_card(handle)->mig[id - 1].live) {
		return NVML_NOT_FOUND;
	}
	*out = &instance_marks[handle->card][id][0];
	return NVML_OK;
}

nvml_result
fake_nvmlGpuInstanceGetInfo(void *instance, struct nvml_gpu_instance_info *out)
{
	uint32_t card = 0;
	uint32_t gi = 0;
	if (out == NULL || !instance_from(instance, 0, &card, &gi)) {
		return NVML_INVALID_ARGUMENT;
	}
	const struct mig_instance *mig = &region()->inventory.cards[card].mig[gi - 1];
	*out = (struct nvml_gpu_instance_info){handle_of(card, 0),
					       gi,
					       mig_profile_of(mig)->id,
					       {mig->start, mig_profile_of(mig)->memory_slices}};
	return NVML_OK;
}

nvml_result
fake_nvmlGpuInstanceGetComputeInstanceById(void *instance, unsigned id, void **out)
{
	uint32_t card = 0;
	uint32_t gi = 0;
	if (out == NULL || !instance_from(instance, 0, &card, &gi)) {
		return NVML_INVALID_ARGUMENT;
	}
	if (id != 0) {
		return NVML_NOT_FOUND;
	}
	*out = &instance_marks[card][gi][1];
	return NVML_OK;
}

nvml_result
fake_nvmlComputeInstanceGetInfo_v2(void *instance, struct nvml_compute_instance_info *out)
{
	uint32_t card = 0;
	uint32_t gi = 0;
	if (out == NULL || !instance_from(instance, 1, &card, &gi)) {
		return NVML_INVALID_ARGUMENT;
	}
	const struct mig_profile *profile =
	    mig_profile_of(&region()->inventory.cards[card].mig[gi - 1]);
	*out = (struct nvml_compute_instance_info){
	    handle_of(card, 0), &instance_marks[card][gi][0], 0, profile->id, {0, profile->slices}};
	return NVML_OK;
}

static void
layout_changed(uint32_t card)
{
	region()->mig_generation++;
	events_post(card, EVENT_MIG, 0, UINT32_MAX, UINT32_MAX);
}

/* Make an instance of a profile, at a place when one is named, else at the first that is free. */
static nvml_result
create_instance(const struct handle *handle, unsigned id, const struct nvml_placement *place,
		void **out)
{
	struct card *card = &region()->inventory.cards[handle->card];
	const struct mig_profile *profile = profile_by_id(card, id);
	if (profile == NULL || !card->mig_enabled) {
		return NVML_NOT_SUPPORTED;
	}
	region_lock();
	int gi = place == NULL ? card_add_instance(card, profile->name, NULL)
			       : card_add_instance_at(card, profile->name, place->start);
	if (gi >= 0) {
		layout_changed(handle->card);
		*out = &instance_marks[handle->card][gi + 1][0];
	}
	region_unlock();
	return gi >= 0 ? NVML_OK : NVML_INSUFFICIENT_RESOURCES;
}

nvml_result
fake_nvmlDeviceCreateGpuInstance(void *device, unsigned id, void **out)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check_card(device, "nvmlDeviceCreateGpuInstance", &handle);
	if (result != NVML_OK || out == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	return create_instance(handle, id, NULL, out);
}

static bool
card_busy(uint32_t card)
{
	for (uint32_t gi = 0; gi < DOMAINS_PER_CARD; gi++) {
		if (domain_used(card * DOMAINS_PER_CARD + gi) != 0) {
			return true;
		}
	}
	return false;
}

/* Takes effect at once when nobody uses the card; switching off takes the instances with it. */
nvml_result
fake_nvmlDeviceSetMigMode(void *device, unsigned mode, nvml_result *activation)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check_card(device, "nvmlDeviceSetMigMode", &handle);
	if (result != NVML_OK || activation == NULL || mode > 1) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	struct card *card = &region()->inventory.cards[handle->card];
	if (strcmp(card_model(card)->mig, "-") == 0) {
		return NVML_NOT_SUPPORTED;
	}
	if (card_busy(handle->card)) {
		*activation = NVML_IN_USE;
		return NVML_OK;
	}
	region_lock();
	card->mig_enabled = mode == 1;
	memset(card->mig, 0, mode == 0 ? sizeof card->mig : 0);
	layout_changed(handle->card);
	region_unlock();
	*activation = NVML_OK;
	return NVML_OK;
}

/* The instance must begin at exactly the wanted memory slice. */
nvml_result
fake_nvmlDeviceCreateGpuInstanceWithPlacement(void *device, unsigned id,
					      const struct nvml_placement *place, void **out)
{
	const struct handle *handle = NULL;
	nvml_result result =
	    handle_check_card(device, "nvmlDeviceCreateGpuInstanceWithPlacement", &handle);
	if (result != NVML_OK || out == NULL || place == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	return create_instance(handle, id, place, out);
}

nvml_result
fake_nvmlGpuInstanceDestroy(void *instance)
{
	uint32_t card = 0;
	uint32_t gi = 0;
	if (!instance_from(instance, 0, &card, &gi)) {
		return NVML_INVALID_ARGUMENT;
	}
	if (domain_used(card * DOMAINS_PER_CARD + gi) != 0) {
		return NVML_IN_USE;
	}
	region_lock();
	region()->inventory.cards[card].mig[gi - 1].live = false;
	layout_changed(card);
	region_unlock();
	return NVML_OK;
}

/* GPU instances come with a compute instance that fills them: creating it again finds it,
 * destroying it is idle. */
nvml_result
fake_nvmlGpuInstanceCreateComputeInstance(void *instance, unsigned id, void **out)
{
	(void)id;
	return fake_nvmlGpuInstanceGetComputeInstanceById(instance, 0, out);
}

nvml_result
fake_nvmlComputeInstanceDestroy(void *instance)
{
	uint32_t card = 0;
	uint32_t gi = 0;
	return instance_from(instance, 1, &card, &gi) ? NVML_OK : NVML_INVALID_ARGUMENT;
}
