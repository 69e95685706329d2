#include "inventory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t ANY_START = UINT32_MAX;

static uint64_t
fnv1a(const char *text, uint64_t hash)
{
	for (; *text != '\0'; text++) {
		hash = (hash ^ (unsigned char)*text) * 0x100000001b3ULL;
	}
	return hash;
}

void
uuid_from_text(const char *prefix, const char *text, char out[UUID_SIZE])
{
	uint64_t high = fnv1a(text, 0xcbf29ce484222325ULL);
	uint64_t low = fnv1a(text, high ^ 0x9e3779b97f4a7c15ULL);
	snprintf(out, UUID_SIZE, "%s%08x-%04x-%04x-%04x-%012llx", prefix, (unsigned)(high >> 32),
		 (unsigned)(high >> 16) & 0xffffU, (unsigned)high & 0xffffU, (unsigned)(low >> 48),
		 (unsigned long long)(low & 0xffffffffffffULL));
}

const struct card_model *
card_model(const struct card *card)
{
	return &card_models[card->model];
}

const struct mig_profile *
mig_profile_of(const struct mig_instance *instance)
{
	return &mig_profiles[instance->profile];
}

char *
inventory_read_file(const char *path)
{
	FILE *file = fopen(path, "re");
	if (file == NULL) {
		return NULL;
	}
	size_t size = 0;
	size_t room = 16384;
	char *text = malloc(room + 1);
	while (text != NULL) {
		size_t got = fread(text + size, 1, room - size, file);
		size += got;
		if (got == 0) {
			text[size] = '\0';
			break;
		}
		if (size == room) {
			room *= 2;
			char *bigger = realloc(text, room + 1);
			if (bigger == NULL) {
				free(text);
			}
			text = bigger;
		}
	}
	fclose(file);
	return text;
}

static bool
starts_free(const struct card *card, uint32_t start, uint32_t slices)
{
	for (unsigned i = 0; i < MAX_INSTANCES; i++) {
		if (!card->mig[i].live) {
			continue;
		}
		const struct mig_profile *other = mig_profile_of(&card->mig[i]);
		if (start < card->mig[i].start + other->memory_slices &&
		    card->mig[i].start < start + slices) {
			return false;
		}
	}
	return true;
}

/* Compute slices in use; the card has seven (four on the small families). */
static uint32_t
slices_used(const struct card *card)
{
	uint32_t used = 0;
	for (unsigned i = 0; i < MAX_INSTANCES; i++) {
		used += card->mig[i].live ? mig_profile_of(&card->mig[i])->slices : 0;
	}
	return used;
}

static uint32_t
slices_total(const char *family)
{
	uint32_t most = 0;
	for (unsigned i = 0; i < mig_profile_count; i++) {
		if (strcmp(mig_profiles[i].family, family) == 0 && mig_profiles[i].slices > most) {
			most = mig_profiles[i].slices;
		}
	}
	return most;
}

static int
place_instance(struct card *card, uint32_t profile_index, const char *uuid, uint32_t only_start)
{
	const struct mig_profile *profile = &mig_profiles[profile_index];
	if (slices_used(card) + profile->slices > slices_total(profile->family)) {
		return -1;
	}
	for (unsigned s = 0; s < profile->start_count; s++) {
		bool wanted = only_start == ANY_START || only_start == profile->starts[s];
		if (!wanted || !starts_free(card, profile->starts[s], profile->memory_slices)) {
			continue;
		}
		for (int gi = 0; gi < MAX_INSTANCES; gi++) {
			struct mig_instance *slot = &card->mig[gi];
			if (slot->live) {
				continue;
			}
			*slot = (struct mig_instance){
			    .live = true, .profile = profile_index, .start = profile->starts[s]};
			char text[128];
			snprintf(text, sizeof text, "%s/%s/%u", card->uuid, profile->name,
				 profile->starts[s]);
			uuid_from_text("MIG-", text, slot->uuid);
			if (uuid != NULL && *uuid != '\0') {
				snprintf(slot->uuid, sizeof slot->uuid, "%s", uuid);
			}
			return gi;
		}
	}
	return -1;
}

static int
add_instance(struct card *card, const char *profile, const char *uuid, uint32_t start)
{
	for (uint32_t i = 0; i < mig_profile_count; i++) {
		const struct mig_profile *known = &mig_profiles[i];
		if (strcmp(known->family, card_model(card)->mig) == 0 &&
		    strcmp(known->name, profile) == 0) {
			return place_instance(card, i, uuid, start);
		}
	}
	return -1;
}

int
card_add_instance(struct card *card, const char *profile, const char *uuid)
{
	return add_instance(card, profile, uuid, ANY_START);
}

int
card_add_instance_at(struct card *card, const char *profile, uint32_t start)
{
	return add_instance(card, profile, NULL, start);
}
