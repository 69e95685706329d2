/* ECC, retired pages, remapped rows, and field values. */
#include <string.h>
#include <time.h>

#include "nvml.h"

static nvml_result
health(void *device, const char *symbol, const struct card_health **out)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check_card(device, symbol, &handle);
	if (result == NVML_OK) {
		*out = &region()->health[handle->card];
	}
	return result;
}

nvml_result
fake_nvmlDeviceGetEccMode(void *device, unsigned *current, unsigned *pending)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check_card(device, "nvmlDeviceGetEccMode", &handle);
	if (result != NVML_OK || current == NULL || pending == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	if (card_model(handle_card(handle))->ecc == 0) {
		return NVML_NOT_SUPPORTED;
	}
	*current = handle_card(handle)->ecc;
	*pending = *current;
	return NVML_OK;
}

/* Error types: 0 corrected, 1 uncorrected. Counters: 0 since the last load, 1 for life; equal here.
 */
nvml_result
fake_nvmlDeviceGetTotalEccErrors(void *device, unsigned type, unsigned counter,
				 unsigned long long *count)
{
	const struct card_health *state = NULL;
	nvml_result result = health(device, "nvmlDeviceGetTotalEccErrors", &state);
	if (result != NVML_OK || count == NULL || type > 1 || counter > 1) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	if (!handle_card(device)->ecc) {
		return NVML_NOT_SUPPORTED;
	}
	*count = type == 0 ? state->ecc_single : state->ecc_double;
	return NVML_OK;
}

/* Locations: 2 is device memory, where all of our errors are. */
nvml_result
fake_nvmlDeviceGetMemoryErrorCounter(void *device, unsigned type, unsigned counter,
				     unsigned location, unsigned long long *count)
{
	nvml_result result = fake_nvmlDeviceGetTotalEccErrors(device, type, counter, count);
	if (result == NVML_OK && location > 8) {
		return NVML_INVALID_ARGUMENT;
	}
	if (result == NVML_OK && location != 2) {
		*count = 0;
	}
	return result;
}

nvml_result
fake_nvmlDeviceGetRemappedRows(void *device, unsigned *correctable, unsigned *uncorrectable,
			       unsigned *pending, unsigned *failed)
{
	const struct card_health *state = NULL;
	nvml_result result = health(device, "nvmlDeviceGetRemappedRows", &state);
	if (result != NVML_OK || correctable == NULL || uncorrectable == NULL || pending == NULL ||
	    failed == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	if (card_model(handle_card(device))->arch < 7) {
		return NVML_NOT_SUPPORTED; /* rows are remapped from Ampere on; older cards retire
					      pages */
	}
	*correctable = state->remapped_correctable;
	*uncorrectable = state->remapped_uncorrectable;
	*pending = state->remap_pending;
	*failed = state->remap_failed;
	return NVML_OK;
}

nvml_result
fake_nvmlDeviceGetRetiredPages_v2(void *device, unsigned cause, unsigned *count,
				  unsigned long long *addresses, unsigned long long *times)
{
	const struct card_health *state = NULL;
	nvml_result result = health(device, "nvmlDeviceGetRetiredPages_v2", &state);
	(void)addresses;
	(void)times;
	if (result != NVML_OK || count == NULL || cause > 1) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	if (card_model(handle_card(device))->arch >= 7) {
		return NVML_NOT_SUPPORTED;
	}
	*count = 0;
	return NVML_OK;
}

nvml_result
fake_nvmlDeviceGetRetiredPages(void *device, unsigned cause, unsigned *count,
			       unsigned long long *addresses)
{
	return fake_nvmlDeviceGetRetiredPages_v2(device, cause, count, addresses, NULL);
}

nvml_result
fake_nvmlDeviceGetRetiredPagesPendingStatus(void *device, unsigned *pending)
{
	const struct card_health *state = NULL;
	nvml_result result = health(device, "nvmlDeviceGetRetiredPagesPendingStatus", &state);
	if (result == NVML_OK && pending == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	if (result == NVML_OK) {
		*pending = 0;
	}
	return result;
}

enum {
	FIELD_ECC_CURRENT = 1,
	FIELD_ECC_PENDING = 2,
	FIELD_ECC_SBE_VOLATILE = 3,
	FIELD_ECC_DBE_VOLATILE = 4,
	FIELD_ECC_SBE_LIFE = 5,
	FIELD_ECC_DBE_LIFE = 6,
	FIELD_MEMORY_TEMPERATURE = 82,
	FIELD_ENERGY = 83,
	FIELD_NVLINK_COUNT = 91,
	FIELD_REMAPPED_CORRECTABLE = 142,
	FIELD_REMAPPED_UNCORRECTABLE = 143,
	FIELD_REMAPPED_PENDING = 144,
	FIELD_REMAPPED_FAILED = 145,
	FIELD_RECOVERY_ACTION = 230,
};

static void
set_u32(struct nvml_field *field, uint32_t value)
{
	field->type = NVML_VALUE_U32;
	field->value.u32 = value;
	field->result = NVML_OK;
}

static void
set_u64(struct nvml_field *field, uint64_t value)
{
	field->type = NVML_VALUE_U64;
	field->value.u64 = value;
	field->result = NVML_OK;
}

static void
read_field(const struct handle *handle, struct nvml_field *field)
{
	const struct card *card = handle_card(handle);
	const struct card_health *state = &region()->health[handle->card];
	switch (field->field) {
	case FIELD_ECC_CURRENT:
	case FIELD_ECC_PENDING:
		set_u32(field, card->ecc);
		break;
	case FIELD_ECC_SBE_VOLATILE:
	case FIELD_ECC_SBE_LIFE:
		set_u64(field, state->ecc_single);
		break;
	case FIELD_ECC_DBE_VOLATILE:
	case FIELD_ECC_DBE_LIFE:
		set_u64(field, state->ecc_double);
		break;
	case FIELD_MEMORY_TEMPERATURE:
		set_u32(field, 40);
		break;
	case FIELD_ENERGY:
		set_u64(field, region()->domains[handle_domain(handle)].busy_ns / 1000000 *
				   card_model(card)->power_w);
		break;
	case FIELD_NVLINK_COUNT:
		set_u32(field, card_model(card)->nvlinks);
		break;
	case FIELD_REMAPPED_CORRECTABLE:
		set_u32(field, state->remapped_correctable);
		break;
	case FIELD_REMAPPED_UNCORRECTABLE:
		set_u32(field, state->remapped_uncorrectable);
		break;
	case FIELD_REMAPPED_PENDING:
		set_u32(field, state->remap_pending);
		break;
	case FIELD_REMAPPED_FAILED:
		set_u32(field, state->remap_failed);
		break;
	case FIELD_RECOVERY_ACTION:
		set_u32(field, state->recovery);
		break;
	default:
		field->result = NVML_NOT_SUPPORTED;
		break;
	}
}

/* Every field has its own result; the call fails only as a whole. */
nvml_result
fake_nvmlDeviceGetFieldValues(void *device, int count, struct nvml_field *fields)
{
	const struct handle *handle = NULL;
	struct timespec now;
	nvml_result result = handle_check_card(device, "nvmlDeviceGetFieldValues", &handle);
	if (result != NVML_OK || fields == NULL || count <= 0) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	clock_gettime(CLOCK_REALTIME, &now);
	for (int i = 0; i < count; i++) {
		fields[i].timestamp_us = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
		fields[i].latency_us = 0;
		read_field(handle, &fields[i]);
	}
	return NVML_OK;
}
