/* The control file: <state>/control, one directive a line, appended while the node runs. Each line
 * is carried out once, by whichever process looks next; the outcome is appended to
 * <state>/control.log as "ok N" or "bad N: reason", N being the line's number, so that a test can
 * wait for it. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "events.h"
#include "fault_rules.h"
#include "faults.h"
#include "region.h"

static const uint64_t POLL_NS = 5000000;
static const uint64_t MIB = 1024ULL * 1024ULL;

enum { WORDS = 8 };

struct command {
	char *words[WORDS];
	unsigned count;
	char *reason;
	unsigned reason_size;
};

static bool
refuse(struct command *c, const char *why)
{
	snprintf(c->reason, c->reason_size, "%s", why);
	return false;
}

/* First and last card that a word names: an index, a uuid, or * for all. */
static bool
card_range(struct command *c, unsigned word, uint32_t *first, uint32_t *last)
{
	const struct inventory *inventory = &region()->inventory;
	const char *text = word < c->count ? c->words[word] : "";
	*first = 0;
	*last = inventory->card_count;
	if (strcmp(text, "*") == 0) {
		return true;
	}
	char *end = NULL;
	unsigned long index = strtoul(text, &end, 10);
	for (uint32_t i = 0; i < inventory->card_count; i++) {
		bool by_index = end != text && *end == '\0' && index == i;
		if (by_index || strcmp(inventory->cards[i].uuid, text) == 0) {
			*first = i;
			*last = i + 1;
			return true;
		}
	}
	return refuse(c, "no such card: give its index, its uuid or *");
}

static uint64_t
word_number(const struct command *c, unsigned word, uint64_t fallback)
{
	return word < c->count ? strtoull(c->words[word], NULL, 10) : fallback;
}

static bool
do_xid(struct command *c)
{
	uint32_t first;
	uint32_t last;
	if (!card_range(c, 1, &first, &last) || c->count < 3) {
		return c->reason[0] != '\0' ? false : refuse(c, "want: xid CARD CODE [GI CI]");
	}
	for (uint32_t i = first; i < last; i++) {
		region()->health[i].last_xid = word_number(c, 2, 0);
		events_post(i, EVENT_XID, word_number(c, 2, 0),
			    (uint32_t)word_number(c, 3, UINT32_MAX),
			    (uint32_t)word_number(c, 4, UINT32_MAX));
	}
	return true;
}

static bool
do_ecc(struct command *c)
{
	uint32_t first;
	uint32_t last;
	if (!card_range(c, 1, &first, &last)) {
		return false;
	}
	bool is_double = c->count > 2 && strcmp(c->words[2], "double") == 0;
	if (!is_double && (c->count < 3 || strcmp(c->words[2], "single") != 0)) {
		return refuse(c, "want: ecc CARD single|double [COUNT]");
	}
	for (uint32_t i = first; i < last; i++) {
		uint64_t count = word_number(c, 3, 1);
		if (is_double) {
			region()->health[i].ecc_double += count;
		} else {
			region()->health[i].ecc_single += count;
		}
		events_post(i, is_double ? EVENT_DOUBLE_BIT : EVENT_SINGLE_BIT, count, UINT32_MAX,
			    UINT32_MAX);
	}
	return true;
}

static bool
do_lost(struct command *c, bool lost)
{
	uint32_t first;
	uint32_t last;
	if (!card_range(c, 1, &first, &last)) {
		return false;
	}
	for (uint32_t i = first; i < last; i++) {
		atomic_store(&region()->health[i].lost, lost ? 1U : 0U);
		if (lost) {
			events_post(i, EVENT_XID, 79, UINT32_MAX, UINT32_MAX);
		} else {
			region()->health[i].recovery = 0;
		}
	}
	return true;
}

static bool
do_recovery(struct command *c)
{
	static const char *const names[] = {"none", "gpu-reset", "node-reboot", "drain-p2p",
					    "drain-and-reset"};
	uint32_t first;
	uint32_t last;
	if (!card_range(c, 1, &first, &last)) {
		return false;
	}
	for (uint32_t action = 0; action < 5 && c->count > 2; action++) {
		char digit[2] = {(char)('0' + (int)action), '\0'};
		if (strcmp(c->words[2], names[action]) == 0 || strcmp(c->words[2], digit) == 0) {
			for (uint32_t i = first; i < last; i++) {
				region()->health[i].recovery = action;
				events_post(i, EVENT_RECOVERY, action, UINT32_MAX, UINT32_MAX);
			}
			return true;
		}
	}
	return refuse(c,
		      "want: recovery CARD none|gpu-reset|node-reboot|drain-p2p|drain-and-reset");
}

static bool
do_remap(struct command *c)
{
	uint32_t first;
	uint32_t last;
	if (!card_range(c, 1, &first, &last)) {
		return false;
	}
	for (uint32_t i = first; i < last; i++) {
		struct card_health *health = &region()->health[i];
		health->remapped_correctable = (uint32_t)word_number(c, 2, 0);
		health->remapped_uncorrectable = (uint32_t)word_number(c, 3, 0);
		health->remap_pending = (uint32_t)word_number(c, 4, 0);
		health->remap_failed = (uint32_t)word_number(c, 5, 0);
	}
	return true;
}

static bool
do_mig(struct command *c)
{
	uint32_t first;
	uint32_t last;
	const char *verb = c->count > 2 ? c->words[2] : "";
	if (!card_range(c, 1, &first, &last)) {
		return false;
	}
	for (uint32_t i = first; i < last; i++) {
		struct card *card = &region()->inventory.cards[i];
		uint64_t gi = word_number(c, 3, 0);
		bool supported = strcmp(card_model(card)->mig, "-") != 0;
		if (strcmp(verb, "on") == 0 && supported) {
			card->mig_enabled = true;
		} else if (strcmp(verb, "off") == 0) {
			memset(card->mig, 0, sizeof card->mig);
			card->mig_enabled = false;
		} else if (strcmp(verb, "create") == 0 && c->count > 3 && card->mig_enabled) {
			if (card_add_instance(card, c->words[3],
					      c->count > 4 ? c->words[4] : NULL) < 0) {
				return refuse(
				    c, "the profile is unknown for this card or does not fit");
			}
		} else if (strcmp(verb, "destroy") == 0 && gi >= 1 && gi <= MAX_INSTANCES) {
			card->mig[gi - 1].live = false;
		} else {
			return refuse(c, "want: mig CARD on|off|create PROFILE [UUID]|destroy GI, "
					 "on a card that has MIG (and has it on)");
		}
		region()->mig_generation++;
		events_post(i, EVENT_MIG, 0, UINT32_MAX, UINT32_MAX);
	}
	return true;
}

static bool
do_process(struct command *c)
{
	uint32_t first;
	uint32_t last;
	if (!card_range(c, 1, &first, &last) || c->count < 3) {
		return c->reason[0] != '\0'
			   ? false
			   : refuse(c,
				    "want: process CARD PID [MIB] [SM%], 0 MiB and 0 % to remove");
	}
	uint32_t pid = (uint32_t)word_number(c, 2, 0);
	for (uint32_t i = first; i < last; i++) {
		struct foreign_process *place = NULL;
		for (int f = MAX_FOREIGN - 1; f >= 0; f--) {
			struct foreign_process *candidate =
			    &region()->inventory.cards[i].foreign[f];
			if (candidate->pid == pid) {
				place = candidate;
				break;
			}
			place = candidate->pid == 0 ? candidate : place;
		}
		if (place == NULL) {
			return refuse(c, "too many foreign processes on this card");
		}
		place->bytes = word_number(c, 3, 0) * MIB;
		place->sm_percent = (uint32_t)word_number(c, 4, 0);
		place->pid = place->bytes == 0 && place->sm_percent == 0 ? 0 : pid;
	}
	return true;
}

static bool
do_driver(struct command *c)
{
	static const struct {
		const char *word;
		uint32_t code;
	} states[] = {{"load", 0}, {"unload", 9}, {"mismatch", 18}};
	for (unsigned i = 0; c->count > 1 && i < 3; i++) {
		if (strcmp(c->words[1], states[i].word) == 0) {
			atomic_store(&region()->driver_state, states[i].code);
			return true;
		}
	}
	return refuse(c, "want: driver load|unload|mismatch");
}

static bool
do_clear(void)
{
	memset(region()->faults, 0, sizeof region()->faults);
	memset((void *)region()->health, 0, sizeof region()->health);
	atomic_store(&region()->driver_state, 0);
	return true;
}

static bool
do_fault(const char *line, struct command *c)
{
	struct fault fault;
	if (!fault_parse(line, &fault, c->reason, c->reason_size)) {
		return false;
	}
	return fault_add(region()->faults, &fault) || refuse(c, "too many faults; clear first");
}

static bool
dispatch(const char *line, struct command *c)
{
	const char *verb = c->words[0];
	if (strcmp(verb, "xid") == 0) {
		return do_xid(c);
	}
	if (strcmp(verb, "ecc") == 0) {
		return do_ecc(c);
	}
	if (strcmp(verb, "lose") == 0 || strcmp(verb, "restore") == 0) {
		return do_lost(c, verb[0] == 'l');
	}
	if (strcmp(verb, "recovery") == 0) {
		return do_recovery(c);
	}
	if (strcmp(verb, "remap") == 0) {
		return do_remap(c);
	}
	if (strcmp(verb, "mig") == 0) {
		return do_mig(c);
	}
	if (strcmp(verb, "process") == 0) {
		return do_process(c);
	}
	if (strcmp(verb, "driver") == 0) {
		return do_driver(c);
	}
	if (strcmp(verb, "clear") == 0) {
		return do_clear();
	}
	return do_fault(line, c);
}

static void
update_armed(void)
{
	bool armed = region()->driver_state != 0;
	for (unsigned i = 0; i < MAX_FAULTS; i++) {
		armed = armed || region()->faults[i].kind != FAULT_NONE;
	}
	atomic_store(&region()->armed, armed ? 1U : 0U);
}

bool
control_apply(const char *line, char *reason, unsigned reason_size)
{
	struct command c = {.reason = reason, .reason_size = reason_size};
	char *copy = strdup(line);
	char *rest = NULL;
	reason[0] = '\0';
	for (char *w = copy != NULL ? strtok_r(copy, " \t\r", &rest) : NULL;
	     w != NULL && c.count < WORDS; w = strtok_r(NULL, " \t\r", &rest)) {
		c.words[c.count++] = w;
	}
	bool ok = c.count == 0 || c.words[0][0] == '#' || dispatch(line, &c);
	update_armed();
	free(copy);
	return ok;
}

/* Carry out the complete lines from the stored offset on; a line without its newline waits. Lock
 * held. */
static void
run_new_lines(const char *path, const char *log_path)
{
	char *text = inventory_read_file(path);
	FILE *log = text != NULL ? fopen(log_path, "ae") : NULL;
	char *at = text != NULL && strlen(text) >= region()->control_offset
		       ? text + region()->control_offset
		       : NULL;
	for (char *end = at != NULL ? strchr(at, '\n') : NULL; end != NULL;
	     at = end + 1, end = strchr(at, '\n')) {
		char reason[200];
		*end = '\0';
		region()->control_lines++;
		region()->control_offset = (uint64_t)(end + 1 - text);
		bool ok = control_apply(at, reason, sizeof reason);
		if (log != NULL) {
			fprintf(log, ok ? "ok %llu\n" : "bad %llu: %s\n",
				(unsigned long long)region()->control_lines, reason);
		}
	}
	if (log != NULL) {
		fclose(log);
	}
	free(text);
}

void
control_poll(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	uint64_t stamp = (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
	uint64_t last = atomic_load_explicit(&region()->control_stamp, memory_order_relaxed);
	if (region_directory()[0] == '\0' || stamp - last < POLL_NS ||
	    !atomic_compare_exchange_strong(&region()->control_stamp, &last, stamp)) {
		return;
	}
	char path[PATH_MAX];
	char log_path[PATH_MAX];
	struct stat info;
	int fits = snprintf(path, sizeof path, "%.*s/control", PATH_MAX - 16, region_directory());
	fits += snprintf(log_path, sizeof log_path, "%.*s/control.log", PATH_MAX - 16,
			 region_directory());
	if (fits <= 0 || stat(path, &info) != 0) {
		return;
	}
	bool fresh = info.st_ino != region()->control_inode ||
		     (uint64_t)info.st_size < region()->control_offset;
	if (!fresh && (uint64_t)info.st_size == region()->control_offset) {
		return;
	}
	region_lock();
	if (info.st_ino != region()->control_inode ||
	    (uint64_t)info.st_size < region()->control_offset) {
		region()->control_inode = info.st_ino;
		region()->control_offset = 0;
	}
	run_new_lines(path, log_path);
	region_unlock();
}
