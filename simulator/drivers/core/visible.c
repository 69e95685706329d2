#include "visible.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "region.h"

static bool cards[MAX_CARDS];
static bool instances[MAX_CARDS][DOMAINS_PER_CARD];

static void
show_card(uint32_t card)
{
	cards[card] = true;
	for (uint32_t gi = 1; gi < DOMAINS_PER_CARD; gi++) {
		instances[card][gi] = true;
	}
}

/* The gi of the n-th live instance of a card, or 0. */
static uint32_t
nth_instance(uint32_t card, unsigned long n)
{
	for (uint32_t gi = 1; gi < DOMAINS_PER_CARD; gi++) {
		if (region()->inventory.cards[card].mig[gi - 1].live && n-- == 0) {
			return gi;
		}
	}
	return 0;
}

static void
show_instance(uint32_t card, uint32_t gi)
{
	if (gi != 0) {
		cards[card] = true;
		instances[card][gi] = true;
	}
}

/* "3" or "3:1" (the second instance of card 3). */
static bool
show_by_index(const char *token)
{
	char *end = NULL;
	unsigned long card = strtoul(token, &end, 10);
	if (end == token || card >= region()->inventory.card_count) {
		return false;
	}
	if (*end == '\0') {
		show_card((uint32_t)card);
		return true;
	}
	char *last = NULL;
	unsigned long n = *end == ':' ? strtoul(end + 1, &last, 10) : 0;
	if (last == NULL || last == end + 1 || *last != '\0') {
		return false;
	}
	show_instance((uint32_t)card, nth_instance((uint32_t)card, n));
	return true;
}

static bool
show_by_uuid(const char *token)
{
	const struct inventory *inventory = &region()->inventory;
	for (uint32_t c = 0; c < inventory->card_count; c++) {
		if (strcasecmp(inventory->cards[c].uuid, token) == 0) {
			show_card(c);
			return true;
		}
		for (uint32_t gi = 1; gi < DOMAINS_PER_CARD; gi++) {
			const struct mig_instance *mig = &inventory->cards[c].mig[gi - 1];
			if (mig->live && strcasecmp(mig->uuid, token) == 0) {
				show_instance(c, gi);
				return true;
			}
		}
	}
	return false;
}

void
visible_refresh(void)
{
	const char *list = getenv("NVIDIA_VISIBLE_DEVICES");
	memset(cards, 0, sizeof cards);
	memset(instances, 0, sizeof instances);
	if (list == NULL || strcmp(list, "all") == 0) {
		for (uint32_t c = 0; c < region()->inventory.card_count; c++) {
			show_card(c);
		}
		return;
	}
	if (*list == '\0' || strcmp(list, "none") == 0 || strcmp(list, "void") == 0) {
		return;
	}
	char *copy = strdup(list);
	char *rest = NULL;
	for (char *token = copy != NULL ? strtok_r(copy, ",", &rest) : NULL; token != NULL;
	     token = strtok_r(NULL, ",", &rest)) {
		if (!show_by_index(token) && !show_by_uuid(token)) {
			fprintf(stderr,
				"gpuslice fake driver: NVIDIA_VISIBLE_DEVICES: no card '%s' on "
				"this node\n",
				token);
		}
	}
	free(copy);
}

bool
visible_card(uint32_t card)
{
	return card < MAX_CARDS && cards[card];
}

bool
visible_instance(uint32_t card, uint32_t gi)
{
	return card < MAX_CARDS && gi < DOMAINS_PER_CARD && instances[card][gi];
}
