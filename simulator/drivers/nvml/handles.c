/* Device handles and how programs find them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "faults.h"
#include "nvml.h"
#include "visible.h"

static const uint64_t HANDLE_MAGIC = 0x656c646e6168676eULL;

static struct handle handles[MAX_CARDS][DOMAINS_PER_CARD];

struct handle *
handle_of(uint32_t card, uint32_t gi)
{
	struct handle *handle = &handles[card][gi];
	*handle = (struct handle){.magic = HANDLE_MAGIC, .card = card, .gi = gi};
	return handle;
}

nvml_result
handle_check(void *device, const char *symbol, const struct handle **out)
{
	const struct handle *handle = device;
	uintptr_t offset = (uintptr_t)device - (uintptr_t)handles;
	if (offset >= sizeof handles || offset % sizeof *handle != 0 ||
	    handle->magic != HANDLE_MAGIC) {
		return NVML_INVALID_ARGUMENT;
	}
	int fault = faults_on_card(symbol, handle->card);
	if (fault != NVML_OK) {
		return fault;
	}
	if (atomic_load(&region()->health[handle->card].lost) != 0) {
		return NVML_GPU_IS_LOST;
	}
	if (handle->gi != 0 && !handle_card(handle)->mig[handle->gi - 1].live) {
		return NVML_NOT_FOUND;
	}
	*out = handle;
	return NVML_OK;
}

nvml_result
handle_check_card(void *device, const char *symbol, const struct handle **out)
{
	nvml_result result = handle_check(device, symbol, out);
	return result == NVML_OK && (*out)->gi != 0 ? NVML_NOT_SUPPORTED : result;
}

const struct card *
handle_card(const struct handle *handle)
{
	return &region()->inventory.cards[handle->card];
}

uint32_t
handle_domain(const struct handle *handle)
{
	return handle->card * DOMAINS_PER_CARD + handle->gi;
}

unsigned
visible_cards(void)
{
	unsigned count = 0;
	for (uint32_t c = 0; c < region()->inventory.card_count; c++) {
		count += visible_card(c);
	}
	return count;
}

int
nth_visible(unsigned n)
{
	for (uint32_t c = 0; c < region()->inventory.card_count; c++) {
		if (visible_card(c) && n-- == 0) {
			return (int)c;
		}
	}
	return -1;
}

int
visible_index(uint32_t card)
{
	int index = 0;
	for (uint32_t c = 0; c < card; c++) {
		index += visible_card(c);
	}
	return visible_card(card) ? index : -1;
}

nvml_result
fake_nvmlDeviceGetCount_v2(unsigned *count)
{
	if (count == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	*count = visible_cards();
	return NVML_OK;
}

nvml_result
fake_nvmlDeviceGetCount(unsigned *count)
{
	return fake_nvmlDeviceGetCount_v2(count);
}

/* A handle is given out even for a lost card that was there before: calls on it then say so. */
nvml_result
fake_nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
	int card = nth_visible(index);
	if (device == NULL || card < 0) {
		return NVML_INVALID_ARGUMENT;
	}
	int fault = faults_on_card("nvmlDeviceGetHandleByIndex_v2", (uint32_t)card);
	if (fault != NVML_OK || atomic_load(&region()->health[card].lost) != 0) {
		return fault != NVML_OK ? fault : NVML_GPU_IS_LOST;
	}
	*device = handle_of((uint32_t)card, 0);
	return NVML_OK;
}

nvml_result
fake_nvmlDeviceGetHandleByIndex(unsigned index, void **device)
{
	return fake_nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvml_result
fake_nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
	if (uuid == NULL || device == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	for (uint32_t c = 0; c < region()->inventory.card_count; c++) {
		const struct card *card = &region()->inventory.cards[c];
		uint32_t gi = DOMAINS_PER_CARD;
		if (visible_card(c) && strcasecmp(card->uuid, uuid) == 0) {
			gi = 0;
		}
		for (uint32_t i = 1; i < DOMAINS_PER_CARD; i++) {
			gi = card->mig[i - 1].live && visible_instance(c, i) &&
				     strcasecmp(card->mig[i - 1].uuid, uuid) == 0
				 ? i
				 : gi;
		}
		if (gi < DOMAINS_PER_CARD) {
			if (atomic_load(&region()->health[c].lost) != 0) {
				return NVML_GPU_IS_LOST;
			}
			*device = handle_of(c, gi);
			return NVML_OK;
		}
	}
	return NVML_NOT_FOUND;
}

nvml_result
fake_nvmlDeviceGetHandleBySerial(const char *serial, void **device)
{
	for (uint32_t c = 0; serial != NULL && device != NULL && c < region()->inventory.card_count;
	     c++) {
		if (visible_card(c) && strcmp(region()->inventory.cards[c].serial, serial) == 0) {
			*device = handle_of(c, 0);
			return NVML_OK;
		}
	}
	return serial == NULL || device == NULL ? NVML_INVALID_ARGUMENT : NVML_NOT_FOUND;
}

nvml_result
fake_nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **device)
{
	unsigned domain = 0;
	unsigned bus = 0;
	unsigned slot = 0;
	if (text == NULL || device == NULL) {
		return NVML_INVALID_ARGUMENT;
	}
	if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
		domain = 0;
		if (sscanf(text, "%x:%x", &bus, &slot) != 2) {
			return NVML_INVALID_ARGUMENT;
		}
	}
	for (uint32_t c = 0; c < region()->inventory.card_count; c++) {
		const struct card *card = &region()->inventory.cards[c];
		if (visible_card(c) && card->pci_domain == domain && card->pci_bus == bus &&
		    card->pci_device == slot) {
			if (atomic_load(&region()->health[c].lost) != 0) {
				return NVML_GPU_IS_LOST;
			}
			*device = handle_of(c, 0);
			return NVML_OK;
		}
	}
	return NVML_NOT_FOUND;
}

nvml_result
fake_nvmlDeviceGetHandleByPciBusId(const char *text, void **device)
{
	return fake_nvmlDeviceGetHandleByPciBusId_v2(text, device);
}
