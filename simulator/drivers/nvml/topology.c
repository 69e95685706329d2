/* How cards reach each other: PCIe levels, peer access, NVLink, NVSwitch, CPU affinity. */
#include <stdio.h>
#include <string.h>

#include "nvml.h"

enum { REMOTE_GPU = 0, REMOTE_SWITCH = 2, LEVEL_INTERNAL = 0, P2P_OK = 0, P2P_TOPOLOGY = 3 };

static nvml_result
pair(void *first, void *second, const char *symbol, uint32_t *a, uint32_t *b)
{
	const struct handle *one = NULL;
	const struct handle *two = NULL;
	nvml_result result = handle_check_card(first, symbol, &one);
	if (result == NVML_OK) {
		result = handle_check_card(second, symbol, &two);
	}
	if (result == NVML_OK) {
		*a = one->card;
		*b = two->card;
	}
	return result;
}

static unsigned
level_of(uint32_t a, uint32_t b)
{
	const struct inventory *inventory = &region()->inventory;
	if (a == b) {
		return LEVEL_INTERNAL;
	}
	/* A matrix cell with NVLink says nothing of PCIe: then the NUMA nodes decide. */
	if (inventory->nvlinks[a][b] > 0) {
		return inventory->cards[a].numa == inventory->cards[b].numa ? PCIE_NODE
									    : PCIE_SYSTEM;
	}
	return inventory->pcie[a][b];
}

nvml_result
fake_nvmlDeviceGetTopologyCommonAncestor(void *first, void *second, unsigned *level)
{
	uint32_t a = 0;
	uint32_t b = 0;
	nvml_result result = pair(first, second, "nvmlDeviceGetTopologyCommonAncestor", &a, &b);
	if (result == NVML_OK && level == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	if (result == NVML_OK) {
		*level = level_of(a, b);
	}
	return result;
}

nvml_result
fake_nvmlDeviceGetTopologyNearestGpus(void *device, unsigned level, unsigned *count, void **list)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check_card(device, "nvmlDeviceGetTopologyNearestGpus", &handle);
	if (result != NVML_OK || count == NULL) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	unsigned found = 0;
	for (uint32_t c = 0; c < region()->inventory.card_count; c++) {
		if (c == handle->card || visible_index(c) < 0 ||
		    level_of(handle->card, c) != level) {
			continue;
		}
		if (list != NULL && found < *count) {
			list[found] = handle_of(c, 0);
		}
		found++;
	}
	*count = found;
	return NVML_OK;
}

/* Capabilities: 0 read, 1 write, 2 NVLink, 3 atomics, 4 PCIe. */
nvml_result
fake_nvmlDeviceGetP2PStatus(void *first, void *second, unsigned capability, unsigned *status)
{
	uint32_t a = 0;
	uint32_t b = 0;
	nvml_result result = pair(first, second, "nvmlDeviceGetP2PStatus", &a, &b);
	if (result != NVML_OK || status == NULL || capability > 5) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	bool linked = region()->inventory.nvlinks[a][b] > 0;
	bool near = level_of(a, b) < PCIE_SYSTEM;
	bool answers[] = {linked || near, linked || near, linked, linked, near, linked || near};
	*status = answers[capability] ? P2P_OK : P2P_TOPOLOGY;
	return NVML_OK;
}

/* The card at the far end of a link; -1: a switch; -2: the link is not there or down. */
static int
link_peer(uint32_t card, unsigned link)
{
	const struct inventory *inventory = &region()->inventory;
	if (inventory->nvswitch) {
		return link < card_model(&inventory->cards[card])->nvlinks ? -1 : -2;
	}
	for (uint32_t other = 0; other < inventory->card_count; other++) {
		if (link < inventory->nvlinks[card][other]) {
			return (int)other;
		}
		link -= inventory->nvlinks[card][other];
	}
	return -2;
}

static nvml_result
link_check(void *device, const char *symbol, unsigned link, int *peer)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check_card(device, symbol, &handle);
	if (result != NVML_OK) {
		return result;
	}
	unsigned links = card_model(handle_card(handle))->nvlinks;
	if (links == 0) {
		return NVML_NOT_SUPPORTED;
	}
	if (link >= links) {
		return NVML_INVALID_ARGUMENT;
	}
	*peer = link_peer(handle->card, link);
	return NVML_OK;
}

nvml_result
fake_nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active)
{
	int peer = 0;
	nvml_result result = link_check(device, "nvmlDeviceGetNvLinkState", link, &peer);
	if (result == NVML_OK && active == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	if (result == NVML_OK) {
		*active = peer != -2;
	}
	return result;
}

nvml_result
fake_nvmlDeviceGetNvLinkVersion(void *device, unsigned link, unsigned *version)
{
	int peer = 0;
	nvml_result result = link_check(device, "nvmlDeviceGetNvLinkVersion", link, &peer);
	if (result == NVML_OK && version == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	if (result == NVML_OK) {
		*version = card_model(handle_card(device))->nvlink_version;
	}
	return result;
}

/* Capabilities: 0 peer access, 1 system memory, 2 peer atomics, 3 system atomics, 4 SLI, 5 valid.
 */
nvml_result
fake_nvmlDeviceGetNvLinkCapability(void *device, unsigned link, unsigned capability,
				   unsigned *answer)
{
	int peer = 0;
	nvml_result result = link_check(device, "nvmlDeviceGetNvLinkCapability", link, &peer);
	if (result == NVML_OK && (answer == NULL || capability > 5)) {
		return NVML_INVALID_ARGUMENT;
	}
	if (result == NVML_OK) {
		*answer = peer != -2 && capability != 1 && capability != 3 && capability != 4;
	}
	return result;
}

nvml_result
fake_nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, unsigned *type)
{
	int peer = 0;
	nvml_result result = link_check(device, "nvmlDeviceGetNvLinkRemoteDeviceType", link, &peer);
	if (result != NVML_OK || type == NULL || peer == -2) {
		return result != NVML_OK
			   ? result
			   : (type == NULL ? NVML_INVALID_ARGUMENT : NVML_NOT_SUPPORTED);
	}
	*type = peer == -1 ? REMOTE_SWITCH : REMOTE_GPU;
	return NVML_OK;
}

nvml_result fake_nvmlDeviceGetPciInfo_v3(void *device, struct nvml_pci_info *out);

/* Six switches stand behind an NVSwitch node; the links go round them in turn. */
nvml_result
fake_nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, struct nvml_pci_info *out)
{
	int peer = 0;
	nvml_result result = link_check(device, "nvmlDeviceGetNvLinkRemotePciInfo_v2", link, &peer);
	if (result != NVML_OK || out == NULL || peer == -2) {
		return result != NVML_OK
			   ? result
			   : (out == NULL ? NVML_INVALID_ARGUMENT : NVML_NOT_SUPPORTED);
	}
	if (peer >= 0) {
		return fake_nvmlDeviceGetPciInfo_v3(handle_of((uint32_t)peer, 0), out);
	}
	memset(out, 0, sizeof *out);
	out->domain = 0;
	out->bus = 0xe0 + link % 6;
	out->pci_device_id = 0x22A310DE;
	snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
	snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "0000:%02X:00.0", out->bus);
	return NVML_OK;
}

nvml_result
fake_nvmlDeviceGetNvLinkRemotePciInfo(void *device, unsigned link, struct nvml_pci_info *out)
{
	return fake_nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, out);
}

/* Sixty-four CPUs to each NUMA node. */
nvml_result
fake_nvmlDeviceGetCpuAffinity(void *device, unsigned words, unsigned long *set)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check_card(device, "nvmlDeviceGetCpuAffinity", &handle);
	if (result != NVML_OK || set == NULL || words == 0) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	unsigned numa = handle_card(handle)->numa < 0 ? 0 : (unsigned)handle_card(handle)->numa;
	for (unsigned w = 0; w < words; w++) {
		set[w] = w == numa ? ~0UL : 0;
	}
	return NVML_OK;
}

nvml_result
fake_nvmlDeviceGetCpuAffinityWithinScope(void *device, unsigned words, unsigned long *set,
					 unsigned scope)
{
	return scope > 1 ? NVML_INVALID_ARGUMENT
			 : fake_nvmlDeviceGetCpuAffinity(device, words, set);
}

nvml_result
fake_nvmlDeviceGetMemoryAffinity(void *device, unsigned words, unsigned long *set, unsigned scope)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check_card(device, "nvmlDeviceGetMemoryAffinity", &handle);
	if (result != NVML_OK || set == NULL || words == 0 || scope > 1) {
		return result != NVML_OK ? result : NVML_INVALID_ARGUMENT;
	}
	memset(set, 0, words * sizeof *set);
	unsigned numa = handle_card(handle)->numa < 0 ? 0 : (unsigned)handle_card(handle)->numa;
	if (numa / 64 < words) {
		set[numa / 64] = 1UL << (numa % 64);
	}
	return NVML_OK;
}

nvml_result
fake_nvmlDeviceOnSameBoard(void *first, void *second, int *same)
{
	uint32_t a = 0;
	uint32_t b = 0;
	nvml_result result = pair(first, second, "nvmlDeviceOnSameBoard", &a, &b);
	if (result == NVML_OK && same == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	if (result == NVML_OK) {
		*same = a == b;
	}
	return result;
}

/* Fabric states: 0 not supported, 3 completed. Cards of one node are one clique of the cluster. */
static nvml_result
fabric(void *device, const char *symbol, struct nvml_fabric_info *out)
{
	const struct handle *handle = NULL;
	nvml_result result = handle_check_card(device, symbol, &handle);
	if (result == NVML_OK) {
		memset(out, 0, sizeof *out);
		bool member =
		    region()->inventory.nvswitch && card_model(handle_card(handle))->fabric != 0;
		out->state = member ? 3 : 0;
		out->clique = member ? 1 : 0;
		memset(out->cluster, member ? 0x5a : 0, sizeof out->cluster);
	}
	return result;
}

nvml_result
fake_nvmlDeviceGetGpuFabricInfo(void *device, struct nvml_fabric_info *out)
{
	return out == NULL ? NVML_INVALID_ARGUMENT
			   : fabric(device, "nvmlDeviceGetGpuFabricInfo", out);
}

nvml_result
fake_nvmlDeviceGetGpuFabricInfoV(void *device, struct nvml_fabric_info_v *out)
{
	struct nvml_fabric_info plain;
	if (out == NULL || out->version != NVML_VERSION(struct nvml_fabric_info_v, 2)) {
		return out == NULL ? NVML_INVALID_ARGUMENT : NVML_ARGUMENT_VERSION_MISMATCH;
	}
	nvml_result result = fabric(device, "nvmlDeviceGetGpuFabricInfoV", &plain);
	if (result == NVML_OK) {
		memcpy(out->cluster, plain.cluster, sizeof out->cluster);
		out->status = plain.status;
		out->clique = plain.clique;
		out->state = plain.state;
		out->health_mask = 0;
	}
	return result;
}
