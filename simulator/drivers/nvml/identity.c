/* Who a card is. */
#include <stdio.h>
#include <string.h>

#include "nvml.h"

nvml_result
fake_nvmlDeviceGetName(void *device, char *buffer, unsigned room)
{
	const struct handle *handle = NULL;
	char text[160];
	nvml_result result = handle_check(device, "nvmlDeviceGetName", &handle);
	if (result != NVML_OK) {
		return result;
	}
	if (handle->gi == 0) {
		return copy_out(handle_card(handle)->name, buffer, room);
	}
	snprintf(text, sizeof text, "%s MIG %s", handle_card(handle)->name,
		 mig_profile_of(&handle_card(handle)->mig[handle->gi - 1])->name);
	return copy_out(text, buffer, room);
}

nvml_result
fake_nvmlDeviceGetUUID(void *device, char *buffer, unsigned room)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check(device, "nvmlDeviceGetUUID", &handle);
	if (result != NVML_OK) {
		return result;
	}
	const struct card *card = handle_card(handle);
	return copy_out(handle->gi == 0 ? card->uuid : card->mig[handle->gi - 1].uuid, buffer,
			room);
}

nvml_result
fake_nvmlDeviceGetIndex(void *device, unsigned *index)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check(device, "nvmlDeviceGetIndex", &handle);
	if (result == NVML_OK && index == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	if (result == NVML_OK) {
		*index = handle->gi == 0 ? (unsigned)visible_index(handle->card) : handle->gi - 1;
	}
	return result;
}

nvml_result
fake_nvmlDeviceGetMinorNumber(void *device, unsigned *minor)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check_card(device, "nvmlDeviceGetMinorNumber", &handle);
	if (result == NVML_OK && minor == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	if (result == NVML_OK) {
		*minor = handle_card(handle)->minor;
	}
	return result;
}

nvml_result
fake_nvmlDeviceGetSerial(void *device, char *buffer, unsigned room)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check_card(device, "nvmlDeviceGetSerial", &handle);
	return result == NVML_OK ? copy_out(handle_card(handle)->serial, buffer, room) : result;
}

nvml_result
fake_nvmlDeviceGetPciInfo_v3(void *device, struct nvml_pci_info *out)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check(device, "nvmlDeviceGetPciInfo_v3", &handle);
	if (result != NVML_OK || out == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	const struct card *card = handle_card(handle);
	memset(out, 0, sizeof *out);
	out->domain = card->pci_domain;
	out->bus = card->pci_bus;
	out->device = card->pci_device;
	out->pci_device_id = card_model(card)->pci_device << 16 | 0x10DE;
	out->pci_subsystem_id = 0x10DE0000U | card_model(card)->pci_device;
	snprintf(out->bus_id, sizeof out->bus_id, "%s", card->bus);
	snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%s", card->bus + 4);
	return NVML_OK;
}

nvml_result
fake_nvmlDeviceGetPciInfo_v2(void *device, struct nvml_pci_info_v2 *out)
{
	struct nvml_pci_info wide;
	nvml_result result =
	    out != NULL ? fake_nvmlDeviceGetPciInfo_v3(device, &wide) : NVML_INVALID_ARGUMENT;
	if (result == NVML_OK) {
		memset(out, 0, sizeof *out);
		memcpy(out->bus_id, wide.bus_id_legacy, sizeof out->bus_id);
		out->domain = wide.domain;
		out->bus = wide.bus;
		out->device = wide.device;
		out->pci_device_id = wide.pci_device_id;
		out->pci_subsystem_id = wide.pci_subsystem_id;
	}
	return result;
}

nvml_result
fake_nvmlDeviceGetPciInfo(void *device, struct nvml_pci_info_v2 *out)
{
	return fake_nvmlDeviceGetPciInfo_v2(device, out);
}

nvml_result
fake_nvmlDeviceGetPciInfoExt(void *device, struct nvml_pci_info_ext *out)
{
	struct nvml_pci_info wide;
	if (out == NULL || out->version != NVML_VERSION(struct nvml_pci_info_ext, 1)) {
		return out == NULL ? NVML_INVALID_ARGUMENT : NVML_ARGUMENT_VERSION_MISMATCH;
	}
	nvml_result result = fake_nvmlDeviceGetPciInfo_v3(device, &wide);
	if (result == NVML_OK) {
		out->domain = wide.domain;
		out->bus = wide.bus;
		out->device = wide.device;
		out->pci_device_id = wide.pci_device_id;
		out->pci_subsystem_id = wide.pci_subsystem_id;
		out->base_class = 3;
		out->sub_class = 2;
		memcpy(out->bus_id, wide.bus_id, sizeof out->bus_id);
	}
	return result;
}

nvml_result
fake_nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check(device, "nvmlDeviceGetCudaComputeCapability", &handle);
	if (result != NVML_OK || major == NULL || minor == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	*major = card_model(handle_card(handle))->cc_major;
	*minor = card_model(handle_card(handle))->cc_minor;
	return NVML_OK;
}

nvml_result
fake_nvmlDeviceGetNumaNodeId(void *device, unsigned *node)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check_card(device, "nvmlDeviceGetNumaNodeId", &handle);
	if (result != NVML_OK || node == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	if (handle_card(handle)->numa < 0) {
		return NVML_NOT_SUPPORTED;
	}
	*node = (unsigned)handle_card(handle)->numa;
	return NVML_OK;
}

/* The one-number facts of a card. */
static nvml_result
fact(void *device, const char *symbol, unsigned *out, unsigned (*read)(const struct card *))
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check(device, symbol, &handle);
	if (result != NVML_OK || out == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	*out = read(handle_card(handle));
	return NVML_OK;
}

static unsigned
brand_of(const struct card *card)
{
	return card_model(card)->brand;
}

static unsigned
architecture_of(const struct card *card)
{
	return card_model(card)->arch;
}

static unsigned
bus_width_of(const struct card *card)
{
	return card_model(card)->bus_width;
}

static unsigned
cores_of(const struct card *card)
{
	return card->sm_count *
	       (card_model(card)->arch == 7 && card_model(card)->cc_minor == 0 ? 64 : 128);
}

nvml_result
fake_nvmlDeviceGetBrand(void *device, unsigned *brand)
{
	return fact(device, "nvmlDeviceGetBrand", brand, brand_of);
}

nvml_result
fake_nvmlDeviceGetArchitecture(void *device, unsigned *architecture)
{
	return fact(device, "nvmlDeviceGetArchitecture", architecture, architecture_of);
}

nvml_result
fake_nvmlDeviceGetMemoryBusWidth(void *device, unsigned *bits)
{
	return fact(device, "nvmlDeviceGetMemoryBusWidth", bits, bus_width_of);
}

nvml_result
fake_nvmlDeviceGetNumGpuCores(void *device, unsigned *cores)
{
	return fact(device, "nvmlDeviceGetNumGpuCores", cores, cores_of);
}
