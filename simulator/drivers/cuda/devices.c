/* Devices as CUDA numbers them: CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER, identity and memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "driver.h"
#include "visible.h"

static struct gpu gpus[MAX_CARDS];
static unsigned gpus_found;

unsigned
gpu_count(void)
{
	return gpus_found;
}

const struct gpu *
gpu_at(cu_device device)
{
	return device >= 0 && (unsigned)device < gpus_found ? &gpus[device] : NULL;
}

const struct card *
gpu_card(const struct gpu *gpu)
{
	return &region()->inventory.cards[gpu->card];
}

bool
gpu_lost(uint32_t domain)
{
	return atomic_load(&region()->health[domain / DOMAINS_PER_CARD].lost) != 0;
}

static void
add_gpu(struct gpu *list, unsigned *count, uint32_t card, uint32_t gi)
{
	list[(*count)++] =
	    (struct gpu){.card = card, .gi = gi, .domain = card * DOMAINS_PER_CARD + gi};
}

/* Speed as CUDA's default order ranks it: more multiprocessors at a higher clock come first. */
static uint64_t
speed(uint32_t card)
{
	const struct card *c = &region()->inventory.cards[card];
	return (uint64_t)c->sm_count * card_model(c)->clock_mhz;
}

/* Visible whole cards in CUDA's order: PCI order, or fastest first (the default). */
static unsigned
ordered_cards(uint32_t *out)
{
	const char *order = getenv("CUDA_DEVICE_ORDER");
	bool by_bus = order != NULL && strcmp(order, "PCI_BUS_ID") == 0;
	unsigned count = 0;
	for (uint32_t c = 0; c < region()->inventory.card_count; c++) {
		if (!visible_card(c)) {
			continue;
		}
		unsigned at = count++;
		while (!by_bus && at > 0 && speed(out[at - 1]) < speed(c)) {
			out[at] = out[at - 1];
			at--;
		}
		out[at] = c;
	}
	return count;
}

/* Without CUDA_VISIBLE_DEVICES: every whole card, or the first GPU instance when there are no
 * others. */
static unsigned
default_devices(struct gpu *list)
{
	uint32_t cards[MAX_CARDS];
	unsigned count = 0;
	unsigned visible = ordered_cards(cards);
	for (unsigned i = 0; i < visible; i++) {
		if (!region()->inventory.cards[cards[i]].mig_enabled) {
			add_gpu(list, &count, cards[i], 0);
		}
	}
	for (unsigned i = 0; i < visible && count == 0; i++) {
		for (uint32_t gi = 1; gi < DOMAINS_PER_CARD && count == 0; gi++) {
			if (region()->inventory.cards[cards[i]].mig[gi - 1].live &&
			    visible_instance(cards[i], gi)) {
				add_gpu(list, &count, cards[i], gi);
			}
		}
	}
	return count;
}

/* GPU-… may be shortened as long as it stays unique. */
static bool
by_uuid(const char *token, struct gpu *list, unsigned *count)
{
	int found_card = -1;
	uint32_t found_gi = 0;
	for (uint32_t c = 0; c < region()->inventory.card_count; c++) {
		const struct card *card = &region()->inventory.cards[c];
		if (!visible_card(c)) {
			continue;
		}
		if (!card->mig_enabled && strlen(token) > 4 &&
		    strncasecmp(card->uuid, token, strlen(token)) == 0) {
			if (found_card >= 0) {
				return false;
			}
			found_card = (int)c;
		}
		for (uint32_t gi = 1; gi < DOMAINS_PER_CARD; gi++) {
			if (card->mig[gi - 1].live && visible_instance(c, gi) &&
			    strcasecmp(card->mig[gi - 1].uuid, token) == 0) {
				found_card = (int)c;
				found_gi = gi;
			}
		}
	}
	if (found_card < 0) {
		return false;
	}
	add_gpu(list, count, (uint32_t)found_card, found_gi);
	return true;
}

/* The list ends at the first entry that is no device; a device named twice hides them all. */
static unsigned
chosen_devices(const char *list_text, struct gpu *list)
{
	uint32_t cards[MAX_CARDS];
	unsigned visible = ordered_cards(cards);
	unsigned count = 0;
	char *copy = strdup(list_text);
	char *rest = NULL;
	for (char *t = copy != NULL ? strtok_r(copy, ",", &rest) : NULL;
	     t != NULL && count < MAX_CARDS; t = strtok_r(NULL, ",", &rest)) {
		char *end = NULL;
		long index = strtol(t, &end, 10);
		unsigned before = count;
		if (end != t && *end == '\0' && index >= 0 && (unsigned long)index < visible) {
			bool whole = !region()->inventory.cards[cards[index]].mig_enabled;
			if (whole) {
				add_gpu(list, &count, cards[index], 0);
			}
		} else if (end == t || *end != '\0') {
			by_uuid(t, list, &count);
		}
		if (count == before) {
			break;
		}
		for (unsigned i = 0; i < before; i++) {
			if (list[i].domain == list[before].domain) {
				free(copy);
				return 0;
			}
		}
	}
	free(copy);
	return count;
}

void
gpu_discover(void)
{
	const char *chosen = getenv("CUDA_VISIBLE_DEVICES");
	gpus_found = chosen == NULL ? default_devices(gpus) : chosen_devices(chosen, gpus);
}

void
gpu_uuid(const struct gpu *gpu, struct cu_uuid *out)
{
	const struct card *card = gpu_card(gpu);
	const char *text = gpu->gi == 0 ? card->uuid : card->mig[gpu->gi - 1].uuid;
	unsigned digits = 0;
	memset(out, 0, sizeof *out);
	for (text += 4; *text != '\0' && digits < 32; text++) {
		const char *hex = "0123456789abcdef";
		const char *at = strchr(hex, *text >= 'A' && *text <= 'F' ? *text + 32 : *text);
		if (at == NULL) {
			continue;
		}
		unsigned value = (unsigned)(at - hex);
		out->bytes[digits / 2] = (char)((unsigned char)out->bytes[digits / 2] |
						(digits % 2 == 0 ? value << 4 : value));
		digits++;
	}
}

cu_result
fake_cuDeviceGetCount(int *count)
{
	if (count == NULL) {
		return CU_INVALID_VALUE;
	}
	*count = (int)gpus_found;
	return CU_OK;
}

cu_result
fake_cuDeviceGet(cu_device *device, int ordinal)
{
	if (device == NULL) {
		return CU_INVALID_VALUE;
	}
	*device = ordinal;
	return gpu_at(ordinal) != NULL ? CU_OK : CU_INVALID_DEVICE;
}

cu_result
fake_cuDeviceGetName(char *name, int room, cu_device device)
{
	const struct gpu *gpu = gpu_at(device);
	if (gpu == NULL || name == NULL || room <= 0) {
		return gpu == NULL ? CU_INVALID_DEVICE : CU_INVALID_VALUE;
	}
	if (gpu->gi == 0) {
		snprintf(name, (size_t)room, "%s", gpu_card(gpu)->name);
	} else {
		const struct mig_instance *mig = &gpu_card(gpu)->mig[gpu->gi - 1];
		snprintf(name, (size_t)room, "%s MIG %s", gpu_card(gpu)->name,
			 mig_profile_of(mig)->name);
	}
	return CU_OK;
}

cu_result
fake_cuDeviceGetUuid_v2(struct cu_uuid *uuid, cu_device device)
{
	const struct gpu *gpu = gpu_at(device);
	if (gpu == NULL || uuid == NULL) {
		return gpu == NULL ? CU_INVALID_DEVICE : CU_INVALID_VALUE;
	}
	gpu_uuid(gpu, uuid);
	return CU_OK;
}

/* The first form knows no GPU instances: it answers with the card's own uuid. */
cu_result
fake_cuDeviceGetUuid(struct cu_uuid *uuid, cu_device device)
{
	const struct gpu *gpu = gpu_at(device);
	if (gpu == NULL || uuid == NULL) {
		return gpu == NULL ? CU_INVALID_DEVICE : CU_INVALID_VALUE;
	}
	struct gpu whole = {.card = gpu->card, .gi = 0, .domain = gpu->card * DOMAINS_PER_CARD};
	gpu_uuid(&whole, uuid);
	return CU_OK;
}

cu_result
fake_cuDeviceGetLuid(char *luid, unsigned *node_mask, cu_device device)
{
	(void)luid;
	(void)node_mask;
	return gpu_at(device) != NULL ? CU_NOT_SUPPORTED : CU_INVALID_DEVICE;
}

cu_result
fake_cuDeviceTotalMem_v2(size_t *bytes, cu_device device)
{
	const struct gpu *gpu = gpu_at(device);
	if (gpu == NULL || bytes == NULL) {
		return gpu == NULL ? CU_INVALID_DEVICE : CU_INVALID_VALUE;
	}
	*bytes =
	    (size_t)(domain_total(gpu->domain) - (gpu->gi == 0 ? gpu_card(gpu)->reserved_bytes
							       : domain_total(gpu->domain) / 128));
	return CU_OK;
}

cu_result
fake_cuDeviceTotalMem(unsigned *bytes, cu_device device)
{
	size_t wide = 0;
	cu_result result =
	    bytes != NULL ? fake_cuDeviceTotalMem_v2(&wide, device) : CU_INVALID_VALUE;
	if (result == CU_OK) {
		*bytes = wide > UINT32_MAX ? UINT32_MAX : (unsigned)wide;
	}
	return result;
}

cu_result
fake_cuDeviceGetPCIBusId(char *text, int room, cu_device device)
{
	const struct gpu *gpu = gpu_at(device);
	if (gpu == NULL || text == NULL || room < 13) {
		return gpu == NULL ? CU_INVALID_DEVICE : CU_INVALID_VALUE;
	}
	const struct card *card = gpu_card(gpu);
	snprintf(text, (size_t)room, "%04X:%02X:%02X.0", card->pci_domain & 0xffffU,
		 card->pci_bus & 0xffU, card->pci_device & 0x1fU);
	return CU_OK;
}

cu_result
fake_cuDeviceGetByPCIBusId(cu_device *device, const char *text)
{
	unsigned domain = 0;
	unsigned bus = 0;
	unsigned slot = 0;
	if (device == NULL || text == NULL ||
	    (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) < 2)) {
		return CU_INVALID_VALUE;
	}
	for (unsigned i = 0; i < gpus_found; i++) {
		const struct card *card = gpu_card(&gpus[i]);
		if (card->pci_domain == domain && card->pci_bus == bus &&
		    card->pci_device == slot) {
			*device = (cu_device)i;
			return CU_OK;
		}
	}
	return CU_INVALID_DEVICE;
}

cu_result
fake_cuDeviceComputeCapability(int *major, int *minor, cu_device device)
{
	const struct gpu *gpu = gpu_at(device);
	if (gpu == NULL || major == NULL || minor == NULL) {
		return gpu == NULL ? CU_INVALID_DEVICE : CU_INVALID_VALUE;
	}
	*major = card_model(gpu_card(gpu))->cc_major;
	*minor = card_model(gpu_card(gpu))->cc_minor;
	return CU_OK;
}

/* Cards reach each other over NVLink, or PCIe within one NUMA node; GPU instances never. */
static bool
peers(const struct gpu *a, const struct gpu *b)
{
	const struct inventory *inventory = &region()->inventory;
	return a->card != b->card && a->gi == 0 && b->gi == 0 &&
	       (inventory->nvlinks[a->card][b->card] > 0 ||
		inventory->pcie[a->card][b->card] < PCIE_SYSTEM);
}

cu_result
fake_cuDeviceCanAccessPeer(int *can, cu_device device, cu_device peer)
{
	const struct gpu *a = gpu_at(device);
	const struct gpu *b = gpu_at(peer);
	if (can == NULL || a == NULL || b == NULL) {
		return can == NULL ? CU_INVALID_VALUE : CU_INVALID_DEVICE;
	}
	*can = peers(a, b);
	return CU_OK;
}

cu_result
fake_cuDeviceGetP2PAttribute(int *value, int attribute, cu_device device, cu_device peer)
{
	const struct gpu *a = gpu_at(device);
	const struct gpu *b = gpu_at(peer);
	if (value == NULL || a == NULL || b == NULL || a == b) {
		return value == NULL ? CU_INVALID_VALUE : CU_INVALID_DEVICE;
	}
	bool linked = region()->inventory.nvlinks[a->card][b->card] > 0;
	switch (attribute) {
	case 1: /* performance rank, 0 is best */
		*value = linked ? 0 : 1;
		return CU_OK;
	case 2: /* access */
	case 4: /* arrays */
		*value = peers(a, b);
		return CU_OK;
	case 3: /* native atomics */
		*value = linked;
		return CU_OK;
	default:
		return CU_INVALID_VALUE;
	}
}
