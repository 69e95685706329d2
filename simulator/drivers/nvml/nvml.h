/* What the parts of the fake libnvidia-ml.so.1 share. */
#ifndef GPUSLICE_FAKE_NVML_H
#define GPUSLICE_FAKE_NVML_H

#include <stdbool.h>

#include "gate.h"
#include "ledger.h"
#include "nvml_abi.h"
#include "region.h"

/* A handle: a card, or one of its GPU instances (with its one compute instance). */
struct handle {
	uint64_t magic;
	uint32_t card;
	uint32_t gi; /* 0: the card itself */
};

/* The handle that programs get for a card or an instance; always the same pointer. */
struct handle *handle_of(uint32_t card, uint32_t gi);

/* Check a handle from the program: known, card not lost, no fault armed for this card.
 * `symbol` is the API function on whose behalf this happens. */
nvml_result handle_check(void *device, const char *symbol, const struct handle **out);
/* The same, and refuse GPU instances with NVML_NOT_SUPPORTED. */
nvml_result handle_check_card(void *device, const char *symbol, const struct handle **out);

const struct card *handle_card(const struct handle *handle);
uint32_t handle_domain(const struct handle *handle);

/* Position of a card among those this process may see, or -1. */
int visible_index(uint32_t card);
unsigned visible_cards(void);
/* The n-th visible card, or -1. */
int nth_visible(unsigned n);

/* mig.c: a card's profile by its number, or NULL. */
const struct mig_profile *profile_by_id(const struct card *card, unsigned id);

/* Copy a text into a caller's buffer. */
nvml_result copy_out(const char *text, char *buffer, unsigned room);

#endif
