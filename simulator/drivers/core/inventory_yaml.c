/* From the YAML text to struct inventory. The same rules stand in simulator/inventory.py; a test
 * compares the two on every example. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "inventory.h"
#include "yaml.h"

static const uint64_t MIB = 1024ULL * 1024ULL;

struct reader {
	struct inventory *out;
	char *error;
	size_t error_size;
	bool failed;
};

static void
fail(struct reader *r, const struct yaml_node *at, const char *format, ...)
{
	if (r->failed) {
		return;
	}
	r->failed = true;
	int used = snprintf(r->error, r->error_size, "line %d: ", at != NULL ? at->line : 1);
	va_list args;
	va_start(args, format);
	if (used > 0 && (size_t)used < r->error_size) {
		vsnprintf(r->error + used, r->error_size - (size_t)used, format, args);
	}
	va_end(args);
}

/* Refuse keys outside a NULL-terminated list: a misspelt key must not be ignored. */
static void
only_keys(struct reader *r, const struct yaml_node *map, const char *const *known)
{
	if (map->kind != YAML_MAP) {
		fail(r, map, "%s must be a mapping", map->key != NULL ? map->key : "entry");
		return;
	}
	for (const struct yaml_node *n = map->child; n != NULL; n = n->next) {
		const char *const *k = known;
		while (*k != NULL && strcmp(*k, n->key) != 0) {
			k++;
		}
		if (*k == NULL) {
			fail(r, n, "unknown key '%s'", n->key);
		}
	}
}

static uint64_t
number(struct reader *r, const struct yaml_node *map, const char *key, uint64_t fallback,
       uint64_t most)
{
	const struct yaml_node *n = yaml_get(map, key);
	if (n == NULL) {
		return fallback;
	}
	char *end = NULL;
	errno = 0;
	unsigned long long value = n->kind == YAML_SCALAR ? strtoull(n->text, &end, 10) : 0;
	bool digits =
	    n->kind == YAML_SCALAR && n->text[0] >= '0' && n->text[0] <= '9' && *end == '\0';
	if (!digits || errno != 0 || value > most) {
		fail(r, n, "%s: '%s' is not a whole number from 0 to %llu", key,
		     n->kind == YAML_SCALAR ? n->text : "…", (unsigned long long)most);
		return fallback;
	}
	return value;
}

static const char *
text_of(struct reader *r, const struct yaml_node *map, const char *key, const char *fallback,
	size_t room)
{
	const struct yaml_node *n = yaml_get(map, key);
	if (n == NULL) {
		return fallback;
	}
	if (n->kind != YAML_SCALAR || n->text[0] == '\0' || strlen(n->text) >= room) {
		fail(r, n, "%s must be a text of 1 to %zu characters", key, room - 1);
		return fallback;
	}
	return n->text;
}

static bool
boolean(struct reader *r, const struct yaml_node *map, const char *key, bool fallback)
{
	const char *text = text_of(r, map, key, fallback ? "true" : "false", 8);
	if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0) {
		return text[0] == 't';
	}
	fail(r, yaml_get(map, key), "%s: '%s' is neither true nor false", key, text);
	return fallback;
}

static void
read_mig(struct reader *r, const struct yaml_node *mig, struct card *card)
{
	card->mig_enabled = true;
	if (mig->kind != YAML_LIST) {
		fail(r, mig, "mig must be a list of profiles such as 1g.10gb");
		return;
	}
	for (const struct yaml_node *n = mig->child; n != NULL && !r->failed; n = n->next) {
		const char *profile =
		    n->kind == YAML_SCALAR ? n->text : text_of(r, n, "profile", "", 24);
		const char *uuid = n->kind == YAML_MAP ? text_of(r, n, "uuid", "", UUID_SIZE) : "";
		if (card_add_instance(card, profile, uuid) < 0) {
			fail(r, n,
			     "mig: profile '%s' is unknown for %s or does not fit beside the ones "
			     "before",
			     profile, card_model(card)->model);
		}
	}
}

static void
read_foreign(struct reader *r, const struct yaml_node *list, struct card *card)
{
	static const char *const keys[] = {"pid", "memoryMiB", "smPercent", NULL};
	unsigned i = 0;
	if (list->kind != YAML_LIST) {
		fail(r, list, "processes must be a list");
		return;
	}
	for (const struct yaml_node *n = list->child; n != NULL && !r->failed; n = n->next, i++) {
		if (i == MAX_FOREIGN) {
			fail(r, n, "processes: at most %d a card", MAX_FOREIGN);
			return;
		}
		only_keys(r, n, keys);
		card->foreign[i].pid = (uint32_t)number(r, n, "pid", 1, UINT32_MAX);
		card->foreign[i].bytes = number(r, n, "memoryMiB", 0, 1U << 24) * MIB;
		card->foreign[i].sm_percent = (uint32_t)number(r, n, "smPercent", 0, 100);
	}
}

static int
find_model(const char *name)
{
	for (unsigned i = 0; i < card_model_count; i++) {
		if (strcasecmp(card_models[i].model, name) == 0) {
			return (int)i;
		}
	}
	return -1;
}

static void
read_bus(struct reader *r, const struct yaml_node *node, struct card *card, unsigned index)
{
	char fallback[20];
	snprintf(fallback, sizeof fallback, "0000:%02x:00.0", 4 + 3 * index);
	const char *text = text_of(r, node, "bus", fallback, sizeof card->bus);
	unsigned domain = 0;
	unsigned bus = 0;
	unsigned device = 0;
	int used = 0;
	if (sscanf(text, "%x:%x:%x.0%n", &domain, &bus, &device, &used) != 3 ||
	    text[used] != '\0' || bus > 255 || device > 31) {
		fail(r, yaml_get(node, "bus"),
		     "bus: '%s' is not DOMAIN:BUS:DEVICE.0 in hexadecimal", text);
	}
	card->pci_domain = domain;
	card->pci_bus = bus;
	card->pci_device = device;
	snprintf(card->bus, sizeof card->bus, "%08X:%02X:%02X.0", domain & 0xffffffffU, bus & 0xffU,
		 device & 0x1fU);
}

static void
read_identity(struct reader *r, const struct yaml_node *node, struct card *card, unsigned index)
{
	char text[160];
	snprintf(text, sizeof text, "%s/%u/%s", r->out->name, index, card_model(card)->model);
	uuid_from_text("GPU-", text, card->uuid);
	const char *uuid = text_of(r, node, "uuid", card->uuid, UUID_SIZE);
	if (strncmp(uuid, "GPU-", 4) != 0) {
		fail(r, yaml_get(node, "uuid"), "uuid: '%s' must start with GPU-", uuid);
	}
	memmove(card->uuid, uuid, strlen(uuid) + 1);
	snprintf(card->serial, sizeof card->serial, "%s",
		 text_of(r, node, "serial", "", sizeof card->serial));
	if (card->serial[0] == '\0') {
		snprintf(card->serial, sizeof card->serial, "13%011u", index + 1);
	}
	snprintf(card->name, sizeof card->name, "%s",
		 text_of(r, node, "name", card_model(card)->name, sizeof card->name));
	card->minor = (uint32_t)number(r, node, "minor", index, 255);
	read_bus(r, node, card, index);
}

static void
read_card(struct reader *r, const struct yaml_node *node, struct card *card, unsigned index)
{
	const struct card_model *model = card_model(card);
	read_identity(r, node, card, index);
	uint64_t mib = number(r, node, "memoryMiB", model->memory_mib, 4U << 20);
	card->memory_bytes = mib * MIB;
	card->reserved_bytes = number(r, node, "reservedMiB", mib / 128, mib) * MIB;
	card->sm_count = (uint32_t)number(r, node, "smCount", model->sm_count, 1024);
	card->ecc = boolean(r, node, "ecc", model->ecc != 0);
	const struct yaml_node *numa = yaml_get(node, "numa");
	bool unknown = numa != NULL && numa->kind == YAML_SCALAR && strcmp(numa->text, "-1") == 0;
	card->numa = unknown ? -1 : (int)number(r, node, "numa", UINT16_MAX, UINT16_MAX);
	const struct yaml_node *mig = yaml_get(node, "mig");
	if (mig != NULL) {
		read_mig(r, mig, card);
	}
	const struct yaml_node *processes = yaml_get(node, "processes");
	if (processes != NULL) {
		read_foreign(r, processes, card);
	}
}

static void
read_card_entry(struct reader *r, const struct yaml_node *n)
{
	static const char *const keys[] = {
	    "model", "count", "uuid", "index",  "name",  "memoryMiB", "reservedMiB", "numa",
	    "bus",   "mig",   "ecc",  "serial", "minor", "smCount",   "processes",   NULL};
	only_keys(r, n, keys);
	const char *model = text_of(r, n, "model", "", 64);
	int which = find_model(model);
	if (which < 0) {
		fail(r, n, "model '%s' is unknown; docs/reference/inventory.md lists the models",
		     model);
		return;
	}
	uint64_t count = number(r, n, "count", 1, MAX_CARDS);
	if (count != 1 && (yaml_get(n, "uuid") != NULL || yaml_get(n, "bus") != NULL ||
			   yaml_get(n, "index") != NULL)) {
		fail(r, n,
		     "uuid, bus and index name one card: leave out count, or give every card its "
		     "own entry");
		return;
	}
	for (uint64_t i = 0; i < count && !r->failed; i++) {
		if (r->out->card_count == MAX_CARDS) {
			fail(r, n, "more than %d cards on one node", MAX_CARDS);
			return;
		}
		unsigned index = r->out->card_count++;
		if (number(r, n, "index", index, MAX_CARDS) != index) {
			fail(r, n,
			     "index must count up from 0 in the order of the file (expected %u)",
			     index);
		}
		r->out->cards[index].model = (uint32_t)which;
		read_card(r, n, &r->out->cards[index], index);
	}
}

static void
check_distinct(struct reader *r, const struct yaml_node *list)
{
	for (unsigned a = 0; a < r->out->card_count; a++) {
		for (unsigned b = 0; b < a; b++) {
			if (strcmp(r->out->cards[a].uuid, r->out->cards[b].uuid) == 0) {
				fail(r, list, "cards %u and %u have the same uuid %s", b, a,
				     r->out->cards[a].uuid);
			}
			if (strcmp(r->out->cards[a].bus, r->out->cards[b].bus) == 0) {
				fail(r, list, "cards %u and %u have the same bus %s", b, a,
				     r->out->cards[a].bus);
			}
		}
	}
}

static void
read_cards(struct reader *r, const struct yaml_node *root)
{
	const struct yaml_node *list = yaml_get(root, "cards");
	if (list == NULL || list->kind != YAML_LIST) {
		if (list == NULL || list->kind != YAML_SCALAR || list->text[0] != '\0') {
			fail(r, list != NULL ? list : root,
			     "cards must be a list (may be empty: [])");
		}
		return;
	}
	for (const struct yaml_node *n = list->child; n != NULL && !r->failed; n = n->next) {
		read_card_entry(r, n);
	}
	for (unsigned i = 0; i < r->out->card_count; i++) {
		struct card *card = &r->out->cards[i];
		if (card->numa == UINT16_MAX) {
			card->numa =
			    r->out->card_count >= 4 ? (int)(i * 2 / r->out->card_count) : 0;
		}
	}
	check_distinct(r, list);
}

/* One cell of nvidia-smi topo -m: X, NV<n>, PIX, PXB, PHB, NODE, SYS. */
static void
read_cell(struct reader *r, const struct yaml_node *cell, unsigned a, unsigned b)
{
	static const struct {
		const char *name;
		uint8_t level;
	} levels[] = {{"PIX", PCIE_SINGLE},
		      {"PXB", PCIE_MULTIPLE},
		      {"PHB", PCIE_HOST},
		      {"NODE", PCIE_NODE},
		      {"SYS", PCIE_SYSTEM}};
	if (a == b || cell->kind != YAML_SCALAR) {
		return;
	}
	if (strncmp(cell->text, "NV", 2) == 0) {
		char *end = NULL;
		unsigned long links = strtoul(cell->text + 2, &end, 10);
		if (*end == '\0' && links >= 1 && links <= 18) {
			r->out->nvlinks[a][b] = (uint8_t)links;
			return;
		}
	}
	for (unsigned i = 0; i < sizeof levels / sizeof levels[0]; i++) {
		if (strcmp(cell->text, levels[i].name) == 0) {
			r->out->pcie[a][b] = levels[i].level;
			return;
		}
	}
	fail(r, cell, "links: '%s' is none of X, NV1…NV18, PIX, PXB, PHB, NODE, SYS", cell->text);
}

static void
read_matrix(struct reader *r, const struct yaml_node *matrix)
{
	unsigned a = 0;
	for (const struct yaml_node *row = matrix->child; row != NULL && !r->failed;
	     row = row->next, a++) {
		unsigned b = 0;
		for (const struct yaml_node *cell = row->child;
		     cell != NULL && b < r->out->card_count; cell = cell->next, b++) {
			if (a < r->out->card_count) {
				read_cell(r, cell, a, b);
			}
		}
		if (b != r->out->card_count) {
			fail(r, row, "links: row %u has not one cell for each of the %u cards", a,
			     r->out->card_count);
		}
	}
	if (a != r->out->card_count) {
		fail(r, matrix, "links: %u rows for %u cards", a, r->out->card_count);
	}
}

static void
read_links(struct reader *r, const struct yaml_node *root)
{
	struct inventory *out = r->out;
	const struct yaml_node *links = yaml_get(root, "links");
	for (unsigned a = 0; a < out->card_count; a++) {
		for (unsigned b = 0; b < out->card_count; b++) {
			out->pcie[a][b] =
			    out->cards[a].numa == out->cards[b].numa ? PCIE_NODE : PCIE_SYSTEM;
		}
	}
	if (links == NULL) {
		return;
	}
	if (links->kind == YAML_LIST) {
		read_matrix(r, links);
		return;
	}
	const char *word = links->kind == YAML_SCALAR ? links->text : "";
	bool all = strcmp(word, "nvswitch") == 0;
	bool pairs = strcmp(word, "nvlink-pairs") == 0;
	if (!all && !pairs && strcmp(word, "pcie") != 0) {
		fail(r, links, "links must be nvswitch, nvlink-pairs, pcie or a matrix of rows");
	}
	out->nvswitch = all;
	for (unsigned a = 0; a < out->card_count; a++) {
		for (unsigned b = 0; b < out->card_count; b++) {
			bool linked = a != b && (all || (pairs && a / 2 == b / 2));
			out->nvlinks[a][b] =
			    linked ? (uint8_t)card_model(&out->cards[a])->nvlinks : 0;
		}
	}
}

static void
read_behaviour(struct reader *r, const struct yaml_node *root)
{
	static const char *const nvml_keys[] = {"samplePeriodMs", "lagMs", "pids",
						"processUtilization", NULL};
	static const char *const kernel_keys[] = {"defaultMicroseconds", "blockNanoseconds", NULL};
	struct inventory *out = r->out;
	out->context_bytes = number(r, root, "contextMiB", 300, 1U << 20) * MIB;
	out->granularity_bytes = number(r, root, "granularityKiB", 2048, 1U << 20) * 1024;
	if (out->granularity_bytes < 512) {
		out->granularity_bytes = 512;
	}
	const char *sharing = text_of(r, root, "sharing", "timeslice", 16);
	out->sharing = strcmp(sharing, "mps") == 0 ? SHARING_MPS : SHARING_TIMESLICE;
	if (out->sharing == SHARING_TIMESLICE && strcmp(sharing, "timeslice") != 0) {
		fail(r, root, "sharing: '%s' is neither timeslice nor mps", sharing);
	}
	out->quantum_ns = number(r, root, "quantumMicroseconds", 2000, 10000000) * 1000;
	const struct yaml_node *nvml = yaml_get(root, "nvml");
	if (nvml != NULL) {
		only_keys(r, nvml, nvml_keys);
	}
	out->sample_ns = number(r, nvml, "samplePeriodMs", 167, 10000) * 1000000;
	out->lag_ns = number(r, nvml, "lagMs", 0, 10000) * 1000000;
	out->process_utilization = boolean(r, nvml, "processUtilization", true);
	out->pids_in_container = strcmp(text_of(r, nvml, "pids", "host", 16), "container") == 0;
	const struct yaml_node *kernel = yaml_get(root, "kernel");
	if (kernel != NULL) {
		only_keys(r, kernel, kernel_keys);
	}
	out->kernel_ns = number(r, kernel, "defaultMicroseconds", 10, 100000000) * 1000;
	out->block_ns = number(r, kernel, "blockNanoseconds", 0, 1000000000);
	if (out->quantum_ns == 0 || out->sample_ns == 0) {
		fail(r, root, "quantumMicroseconds and samplePeriodMs must be at least 1");
	}
}

static void
read_node(struct reader *r, const struct yaml_node *root)
{
	static const char *const keys[] = {"name",
					   "driver",
					   "cuda",
					   "cards",
					   "links",
					   "contextMiB",
					   "granularityKiB",
					   "sharing",
					   "quantumMicroseconds",
					   "nvml",
					   "kernel",
					   "labels",
					   NULL};
	only_keys(r, root, keys);
	struct inventory *out = r->out;
	snprintf(out->name, sizeof out->name, "%s",
		 text_of(r, root, "name", "node", sizeof out->name));
	snprintf(out->driver, sizeof out->driver, "%s",
		 text_of(r, root, "driver", "580.65.06", sizeof out->driver));
	const char *cuda = text_of(r, root, "cuda", "13.0", 16);
	int major = 0;
	int minor = 0;
	if (sscanf(cuda, "%d.%d", &major, &minor) != 2 || major < 10 || major > 20 || minor < 0 ||
	    minor > 9) {
		fail(r, yaml_get(root, "cuda"), "cuda: '%s' is not MAJOR.MINOR such as 13.0", cuda);
	}
	out->cuda_version = major * 1000 + minor * 10;
	read_cards(r, root);
	if (!r->failed) {
		read_links(r, root);
		read_behaviour(r, root);
	}
}

bool
inventory_parse(const char *text, struct inventory *out, char *error, size_t error_size)
{
	memset(out, 0, sizeof *out);
	struct yaml_node *root = yaml_parse(text, error, error_size);
	if (root == NULL) {
		return false;
	}
	struct reader r = {.out = out, .error = error, .error_size = error_size};
	read_node(&r, root);
	yaml_free(root);
	return !r.failed;
}
