#include "faults.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fault_rules.h"
#include "region.h"

static struct fault own[MAX_FAULTS];
static bool own_read;
static bool own_any;

bool
faults_in_environment(void)
{
	if (own_read) {
		return own_any;
	}
	own_read = true;
	const char *text = getenv("GPUSLICE_FAKE_FAULTS");
	char *copy = text != NULL ? strdup(text) : NULL;
	char *rest = NULL;
	for (char *line = copy != NULL ? strtok_r(copy, ";", &rest) : NULL; line != NULL;
	     line = strtok_r(NULL, ";", &rest)) {
		struct fault fault;
		char reason[160] = "not a fail, slow or kill directive";
		if (fault_parse(line, &fault, reason, sizeof reason) && fault_add(own, &fault)) {
			own_any = true;
		} else if (strspn(line, " ") != strlen(line)) {
			fprintf(stderr, "gpuslice fake driver: GPUSLICE_FAKE_FAULTS: '%s': %s\n",
				line, reason);
		}
	}
	free(copy);
	return own_any;
}

static void
wait_us(uint64_t us)
{
	struct timespec pause = {.tv_sec = (time_t)(us / 1000000),
				 .tv_nsec = (long)(us % 1000000) * 1000};
	while (nanosleep(&pause, &pause) != 0) {
	}
}

/* Count a matching call against one rule; true when the rule strikes. */
static bool
strikes(struct fault *fault)
{
	if (__atomic_load_n(&fault->skip, __ATOMIC_RELAXED) > 0) {
		__atomic_fetch_sub(&fault->skip, 1, __ATOMIC_RELAXED);
		return false;
	}
	int64_t left = __atomic_load_n(&fault->times, __ATOMIC_RELAXED);
	/* A spent rule stays at 0: below 0 it would strike for ever. */
	while (left > 0 && !__atomic_compare_exchange_n(&fault->times, &left, left - 1, false,
							__ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
	}
	return left != 0;
}

static int
strike_all(struct fault *faults, const char *symbol, int32_t card)
{
	for (unsigned i = 0; i < MAX_FAULTS; i++) {
		struct fault *fault = &faults[i];
		bool kind = fault->kind == FAULT_FAIL || fault->kind == FAULT_SLOW ||
			    fault->kind == FAULT_KILL;
		if (!kind || fault->card != card || !fault_matches(fault, symbol) ||
		    !strikes(fault)) {
			continue;
		}
		if (fault->kind == FAULT_KILL) {
			kill(getpid(), SIGKILL);
		} else if (fault->kind == FAULT_SLOW) {
			wait_us(fault->slow_us);
		} else {
			return fault->code;
		}
	}
	return 0;
}

int
faults_enter(const char *symbol)
{
	int code = own_any ? strike_all(own, symbol, -1) : 0;
	return code != 0 ? code : strike_all(region()->faults, symbol, -1);
}

int
faults_on_card(const char *symbol, uint32_t card)
{
	if (region()->armed == 0 && !own_any) {
		return 0;
	}
	int code = strike_all(own, symbol, (int32_t)card);
	return code != 0 ? code : strike_all(region()->faults, symbol, (int32_t)card);
}

static struct fault *
after_rule(struct fault *faults, const char *symbol)
{
	for (unsigned i = 0; i < MAX_FAULTS; i++) {
		if (faults[i].kind == FAULT_KILL_AFTER && fault_matches(&faults[i], symbol)) {
			return &faults[i];
		}
	}
	return NULL;
}

bool
faults_want_leave(const char *symbol)
{
	return after_rule(own, symbol) != NULL || after_rule(region()->faults, symbol) != NULL;
}

void
faults_leave(const char *symbol)
{
	struct fault *mine = after_rule(own, symbol);
	struct fault *theirs = after_rule(region()->faults, symbol);
	if ((mine != NULL && strikes(mine)) || (theirs != NULL && strikes(theirs))) {
		kill(getpid(), SIGKILL);
	}
}
