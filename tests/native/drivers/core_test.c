/* Unit tests of the drivers' core, linked without the libraries; built with AddressSanitizer and
 * UndefinedBehaviorSanitizer. Prints the first expectation that fails and returns 1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "fault_rules.h"
#include "faults.h"
#include "ledger.h"
#include "region.h"
#include "timeline.h"
#include "yaml.h"

static int failures;

static void
expect(bool holds, const char *story)
{
	if (!holds) {
		printf("not so: %s\n", story);
		failures++;
	}
}

static bool
parses(const char *text, const char *problem)
{
	static struct inventory inventory;
	char error[256] = "";
	bool ok = inventory_parse(text, &inventory, error, sizeof error);
	bool as_told = problem == NULL ? ok : (!ok && strstr(error, problem) != NULL);
	if (!as_told) {
		printf("%s -> %s\n", text, ok ? "accepted" : error);
	}
	return as_told;
}

static void
test_yaml(void)
{
	expect(parses("cards: []", NULL), "an empty list of cards is a node without cards");
	expect(parses("# hello\n---\ncards:\n- model: T4\n  numa: -1 # unknown\n", NULL),
	       "comments and a document mark");
	expect(parses("cards:\n  - {model: \"T4\", count: 2}\nlinks:\n  - [X, SYS]\n  - [SYS, X]\n",
		      NULL),
	       "flow and block mixed");
	expect(parses("cards:\n- model: T4\n mig: []\n", "indented deeper"),
	       "crooked indentation is refused");
	expect(parses("cards: [{model: T4}", "expected ','"), "an open bracket is refused");
	expect(parses("cards:\n\t- model: T4", "tab"), "tabs are refused");
	expect(parses("cards: &a []", "feature"), "anchors are refused");
	expect(parses("cards: []\ncards: []", "twice"), "a key may appear once");
	expect(parses("cards: 'a", "does not end"), "an open quote is refused");
	expect(parses("cards: [{model: T4, memoryMiB: 4Gi}]", "whole number"), "numbers are plain");
	expect(parses("cards: [{model: T4, count: 99999999999999999999}]", "whole number"),
	       "numbers do not overflow");
	expect(parses("cards: [{model: T4, count: 73}]", "whole number"), "72 cards are the most");
	expect(parses("cards: [{model: T4, mig: [1g.5gb]}]", "mig"),
	       "a card without MIG has no instances");
	expect(parses("cards: [{model: A100-SXM4-40GB, mig: [7g.40gb, 1g.5gb]}]", "does not fit"),
	       "instances must fit");
	expect(parses("cards: [{model: T4, bus: '0000:04:00.0'}, {model: T4, bus: '0000:04:00.0'}]",
		      "same bus"),
	       "addresses differ");
	expect(parses("", "empty"), "an empty file is refused");
}

/* Every prefix, and every text with one byte changed, is either read or refused; the sanitizers
 * watch. */
static void
test_yaml_survives_anything(void)
{
	static const char seed[] = "name: n\ncards:\n- {model: A100-SXM4-80GB, mig: [1g.10gb]}\n- "
				   "model: T4\n  uuid: 'GPU-1'\nlinks:\n- [X, NV1]\n- [NV1, X]\n";
	static const char bytes[] = {'\n', ' ', ':', '-', '[',  ']', '{',       '}',
				     '\'', '"', '#', ',', '\t', '0', (char)0xff};
	static struct inventory inventory;
	char error[256];
	char text[sizeof seed];
	for (size_t i = 0; i < sizeof seed; i++) {
		memcpy(text, seed, sizeof seed);
		text[i] = '\0';
		inventory_parse(text, &inventory, error, sizeof error);
		for (size_t b = 0; b < sizeof bytes && i + 1 < sizeof seed; b++) {
			memcpy(text, seed, sizeof seed);
			text[i] = bytes[b];
			inventory_parse(text, &inventory, error, sizeof error);
		}
	}
}

static void
test_fault_rules(void)
{
	struct fault fault;
	char reason[160];
	expect(fault_parse("fail cuInit 100 after 2 times 3", &fault, reason, sizeof reason) &&
		   fault.skip == 2 && fault.times == 3,
	       "options are read");
	expect(fault_parse("slow nvml* 50 card 1", &fault, reason, sizeof reason) &&
		   fault.card == 1 && fault.slow_us == 50,
	       "a card may be named");
	expect(fault_matches(&fault, "nvmlInit_v2") && !fault_matches(&fault, "cuInit"),
	       "a star ends a prefix");
	expect(!fault_parse("fail cuInit", &fault, reason, sizeof reason),
	       "a failure needs its code");
	expect(!fault_parse("fail cuInit 100 after", &fault, reason, sizeof reason),
	       "an option needs its value");
	expect(!fault_parse("explode cuInit", &fault, reason, sizeof reason),
	       "other verbs are refused");
}

static void
test_ledger(void)
{
	uint64_t usable = domain_usable(0);
	expect(ledger_charge(0, KIND_DATA, usable), "all usable memory can be taken");
	expect(!ledger_charge(0, KIND_DATA, 1), "and not a byte more");
	expect(!ledger_charge(0, KIND_DATA, UINT64_MAX), "huge sizes do not wrap round");
	ledger_refund(0, KIND_DATA, usable);
	expect(domain_used(0) == 0, "what is given back is free");
}

static void
test_dead_process(void)
{
	int ready[2];
	if (pipe(ready) != 0) {
		abort();
	}
	pid_t child = fork();
	if (child == 0) {
		char done = 'n';
		if (region_attach(CLIENT_CUDA) && ledger_charge(0, KIND_DATA, 1000)) {
			region_lock(); /* dies with the lock held and a half-finished change */
			ledger_holding(0)->bytes[KIND_DATA] += 500;
			done = 'y';
		}
		_exit(write(ready[1], &done, 1) == 1 ? 0 : 1);
	}
	char answer = 0;
	expect(read(ready[0], &answer, 1) == 1 && answer == 'y',
	       "the child took memory and the lock");
	waitpid(child, NULL, 0);
	expect(domain_used(0) == 0, "the lock and the memory of a dead process come back");
	expect(region()->repairs == 1, "by one repair");
	close(ready[0]);
	close(ready[1]);
}

static void
test_timeline(void)
{
	uint64_t start = clock_now();
	uint64_t moment = 0;
	uint64_t position = timeline_submit(0, 5000000);
	expect(!timeline_reached(0, position, NULL), "work takes its time");
	timeline_wait(0, position);
	expect(clock_now() == start + 5000000, "and no more");
	expect(timeline_reached(0, position - 2000000, &moment) && moment == start + 3000000,
	       "moments within it are known");
	clock_wait_until(clock_now() + 100000000000ULL);
	timeline_wait(0, timeline_submit(0, 1));
	expect(
	    region()->domains[0].sample_percent[(region()->domains[0].sample_next - 1) % SAMPLES] ==
		0,
	    "a long idle time shows as idle");
}

static void
test_control(void)
{
	char reason[200];
	region_lock();
	expect(control_apply("xid 0 79", reason, sizeof reason) &&
		   region()->health[0].last_xid == 79,
	       "xid");
	expect(control_apply("lose *", reason, sizeof reason) && region()->health[1].lost == 1,
	       "all cards");
	expect(!control_apply("lose 2", reason, sizeof reason) &&
		   strstr(reason, "no such card") != NULL,
	       "an unknown card is named");
	expect(control_apply("", reason, sizeof reason) &&
		   control_apply("# note", reason, sizeof reason),
	       "empty lines and comments");
	expect(control_apply("fail cuInit 3", reason, sizeof reason) && region()->armed == 1,
	       "faults arm the gate");
	expect(control_apply("clear", reason, sizeof reason) && region()->armed == 0 &&
		   region()->health[1].lost == 0,
	       "clear");
	region_unlock();
}

int
main(int argc, char **argv)
{
	if (argc != 2 || !region_attach(CLIENT_CUDA)) {
		printf("%s\n", region_problem());
		return 2;
	}
	(void)argv;
	test_yaml();
	test_yaml_survives_anything();
	test_fault_rules();
	test_ledger();
	test_dead_process();
	test_timeline();
	test_control();
	return failures == 0 ? 0 : 1;
}
