/* MIG: mode, devices and profiles. */
#include <stdio.h>
#include <string.h>

#include "nvml.h"
#include "visible.h"

nvml_result
fake_nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check_card(device, "nvmlDeviceGetMigMode", &handle);
	if (result != NVML_OK || current == NULL || pending == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	if (strcmp(card_model(handle_card(handle))->mig, "-") == 0) {
		return NVML_NOT_SUPPORTED;
	}
	*current = handle_card(handle)->mig_enabled;
	*pending = *current;
	return NVML_OK;
}

nvml_result
fake_nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check_card(device, "nvmlDeviceGetMaxMigDeviceCount", &handle);
	if (result == NVML_OK && count == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	if (result == NVML_OK) {
		*count = strcmp(card_model(handle_card(handle))->mig, "-") == 0 ? 0 : MAX_INSTANCES;
	}
	return result;
}

/* Slots without an instance, and instances that this process may not see, are not found. */
nvml_result
fake_nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **out)
{
	const struct handle *handle = NULL;
	nvml_result result =
	    handle_check_card(device, "nvmlDeviceGetMigDeviceHandleByIndex", &handle);
	if (result != NVML_OK || out == NULL || index >= MAX_INSTANCES) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	unsigned left = index;
	for (uint32_t gi = 1; gi < DOMAINS_PER_CARD; gi++) {
		if (handle_card(handle)->mig[gi - 1].live && visible_instance(handle->card, gi) &&
		    left-- == 0) {
			*out = handle_of(handle->card, gi);
			return NVML_OK;
		}
	}
	return NVML_NOT_FOUND;
}

nvml_result
fake_nvmlDeviceIsMigDeviceHandle(void *device, unsigned *is_mig)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check(device, "nvmlDeviceIsMigDeviceHandle", &handle);
	if (result == NVML_OK && is_mig == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	if (result == NVML_OK) {
		*is_mig = handle->gi != 0;
	}
	return result;
}

static nvml_result
mig_handle(void *device, const char *symbol, const struct handle **handle)
{
	nvml_result result = handle_check(device, symbol, handle);
	return result == NVML_OK && (*handle)->gi == 0 ? NVML_INVALID_ARGUMENT : result;
}

nvml_result
fake_nvmlDeviceGetGpuInstanceId(void *device, unsigned *id)
{
	const struct handle *handle = NULL;
	nvml_result result = mig_handle(device, "nvmlDeviceGetGpuInstanceId", &handle);
	if (result == NVML_OK && id == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	if (result == NVML_OK) {
		*id = handle->gi;
	}
	return result;
}

nvml_result
fake_nvmlDeviceGetComputeInstanceId(void *device, unsigned *id)
{
	const struct handle *handle = NULL;
	nvml_result result = mig_handle(device, "nvmlDeviceGetComputeInstanceId", &handle);
	if (result == NVML_OK && id == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	if (result == NVML_OK) {
		*id = 0;
	}
	return result;
}

nvml_result
fake_nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *device, void **out)
{
	const struct handle *handle = NULL;
	nvml_result result =
	    mig_handle(device, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", &handle);
	if (result == NVML_OK && out == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	if (result == NVML_OK) {
		*out = handle_of(handle->card, 0);
	}
	return result;
}

nvml_result
fake_nvmlDeviceGetAttributes_v2(void *device, struct nvml_attributes *out)
{
	const struct handle *handle = NULL;
	nvml_result result = mig_handle(device, "nvmlDeviceGetAttributes_v2", &handle);
	if (result != NVML_OK || out == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	const struct mig_profile *profile =
	    mig_profile_of(&handle_card(handle)->mig[handle->gi - 1]);
	*out = (struct nvml_attributes){
	    .sm_count = profile->sm_count,
	    .copy_engines = profile->slices,
	    .decoders = profile->slices / 2,
	    .gpu_slices = profile->slices,
	    .compute_slices = profile->slices,
	    .memory_mib = profile->memory_mib,
	};
	return NVML_OK;
}

nvml_result
fake_nvmlDeviceGetAttributes(void *device, struct nvml_attributes *out)
{
	return fake_nvmlDeviceGetAttributes_v2(device, out);
}

/* Profiles by NVML's constants: 0 one slice, 1 two, 2 three, 3 four, 4 seven, 5 eight, 6 six, 7 one
 * slice with media, 8 two with media, 9 one slice with double memory. */
static const struct mig_profile *
profile_by_constant(const struct card *card, unsigned constant)
{
	static const unsigned slices[] = {1, 2, 3, 4, 7, 8, 6, 0, 0, 1};
	for (unsigned i = 0; constant < sizeof slices / sizeof slices[0] && i < mig_profile_count;
	     i++) {
		const struct mig_profile *profile = &mig_profiles[i];
		bool doubled = profile->memory_slices > profile->slices && profile->slices == 1;
		if (strcmp(profile->family, card_model(card)->mig) == 0 &&
		    profile->slices == slices[constant] && doubled == (constant == 9)) {
			return profile;
		}
	}
	return NULL;
}

const struct mig_profile *
profile_by_id(const struct card *card, unsigned id)
{
	for (unsigned i = 0; i < mig_profile_count; i++) {
		if (strcmp(mig_profiles[i].family, card_model(card)->mig) == 0 &&
		    mig_profiles[i].id == id) {
			return &mig_profiles[i];
		}
	}
	return NULL;
}

nvml_result
fake_nvmlDeviceGetGpuInstanceProfileInfo(void *device, unsigned constant,
					 struct nvml_gpu_instance_profile *out)
{
	const struct handle *handle = NULL;
	nvml_result result =
	    handle_check_card(device, "nvmlDeviceGetGpuInstanceProfileInfo", &handle);
	if (result != NVML_OK || out == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	const struct mig_profile *profile = profile_by_constant(handle_card(handle), constant);
	if (profile == NULL) {
		return NVML_NOT_SUPPORTED;
	}
	*out = (struct nvml_gpu_instance_profile){
	    .id = profile->id,
	    .slices = profile->slices,
	    .instances = profile->instances,
	    .sm_count = profile->sm_count,
	    .copy_engines = profile->slices,
	    .decoders = profile->slices / 2,
	    .memory_mib = profile->memory_mib,
	};
	return NVML_OK;
}

nvml_result
fake_nvmlDeviceGetGpuInstanceProfileInfoV(void *device, unsigned constant,
					  struct nvml_gpu_instance_profile_v2 *out)
{
	struct nvml_gpu_instance_profile plain;
	if (out == NULL || out->version != NVML_VERSION(struct nvml_gpu_instance_profile_v2, 2)) {
		return out == NULL ? NVML_INVALID_ARGUMENT : NVML_ARGUMENT_VERSION_MISMATCH;
	}
	nvml_result result = fake_nvmlDeviceGetGpuInstanceProfileInfo(device, constant, &plain);
	if (result == NVML_OK) {
		uint32_t version = out->version;
		const struct mig_profile *profile =
		    profile_by_constant(handle_card(device), constant);
		*out = (struct nvml_gpu_instance_profile_v2){
		    .version = version,
		    .id = plain.id,
		    .slices = plain.slices,
		    .instances = plain.instances,
		    .sm_count = plain.sm_count,
		    .copy_engines = plain.copy_engines,
		    .decoders = plain.decoders,
		    .memory_mib = plain.memory_mib,
		};
		snprintf(out->name, sizeof out->name, "MIG %s", profile->name);
	}
	return result;
}

nvml_result
fake_nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *device, unsigned id,
						   struct nvml_placement *out, unsigned *count)
{
	const struct handle *handle = NULL;
	nvml_result result =
	    handle_check_card(device, "nvmlDeviceGetGpuInstancePossiblePlacements_v2", &handle);
	if (result != NVML_OK || count == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	const struct mig_profile *profile = profile_by_id(handle_card(handle), id);
	if (profile == NULL) {
		return NVML_NOT_SUPPORTED;
	}
	for (unsigned i = 0; out != NULL && i < profile->start_count; i++) {
		out[i] = (struct nvml_placement){profile->starts[i], profile->memory_slices};
	}
	*count = profile->start_count;
	return NVML_OK;
}

nvml_result
fake_nvmlDeviceGetGpuInstancePossiblePlacements(void *device, unsigned id,
						struct nvml_placement *out, unsigned *count)
{
	return fake_nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, out, count);
}

nvml_result
fake_nvmlDeviceGetGpuInstanceRemainingCapacity(void *device, unsigned id, unsigned *count)
{
	const struct handle *handle = NULL;
	nvml_result result =
	    handle_check_card(device, "nvmlDeviceGetGpuInstanceRemainingCapacity", &handle);
	if (result != NVML_OK || count == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	const struct mig_profile *profile = profile_by_id(handle_card(handle), id);
	struct card trial = *handle_card(handle);
	if (profile == NULL || !trial.mig_enabled) {
		return NVML_NOT_SUPPORTED;
	}
	*count = 0;
	while (*count < MAX_INSTANCES && card_add_instance(&trial, profile->name, NULL) >= 0) {
		(*count)++;
	}
	return NVML_OK;
}
