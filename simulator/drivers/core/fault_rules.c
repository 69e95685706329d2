#include "fault_rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORDS = 12 };

static bool
to_number(const char *text, long long *out)
{
	char *end = NULL;
	*out = text != NULL ? strtoll(text, &end, 10) : 0;
	return text != NULL && end != text && *end == '\0';
}

/* The optional "name value" pairs behind the fixed words. */
static bool
read_options(struct fault *out, char **words, unsigned count, unsigned first)
{
	for (unsigned i = first; i < count; i += 2) {
		long long value = 0;
		if (i + 1 == count || !to_number(words[i + 1], &value) || value < 0) {
			return false;
		}
		if (strcmp(words[i], "after") == 0) {
			out->skip = value;
		} else if (strcmp(words[i], "times") == 0) {
			out->times = value;
		} else if (strcmp(words[i], "card") == 0 && value < MAX_CARDS) {
			out->card = (int32_t)value;
		} else {
			return false;
		}
	}
	return true;
}

static unsigned
split(char *copy, char **words)
{
	unsigned count = 0;
	char *rest = NULL;
	for (char *w = strtok_r(copy, " \t", &rest); w != NULL && count < MAX_WORDS;
	     w = strtok_r(NULL, " \t", &rest)) {
		words[count++] = w;
	}
	return count;
}

static bool
read_words(char **words, unsigned count, struct fault *out)
{
	long long value = 0;
	if (count < 2 || strlen(words[1]) >= sizeof out->symbol) {
		return false;
	}
	snprintf(out->symbol, sizeof out->symbol, "%s", words[1]);
	if (strcmp(words[0], "kill") == 0 || strcmp(words[0], "kill-after") == 0) {
		out->kind = words[0][4] == '\0' ? FAULT_KILL : FAULT_KILL_AFTER;
		return read_options(out, words, count, 2);
	}
	if (count < 3 || !to_number(words[2], &value) || value < 0) {
		return false;
	}
	if (strcmp(words[0], "fail") == 0 && value > 0 && value < 100000) {
		out->kind = FAULT_FAIL;
		out->code = (int32_t)value;
	} else if (strcmp(words[0], "slow") == 0 && value < 600000000) {
		out->kind = FAULT_SLOW;
		out->slow_us = (uint64_t)value;
	} else {
		return false;
	}
	return read_options(out, words, count, 3);
}

bool
fault_parse(const char *line, struct fault *out, char *reason, unsigned reason_size)
{
	char *words[MAX_WORDS];
	char *copy = strdup(line);
	*out = (struct fault){.card = -1, .times = -1};
	bool ok = copy != NULL && read_words(words, split(copy, words), out);
	free(copy);
	if (!ok) {
		snprintf(reason, reason_size,
			 "want: fail SYMBOL CODE | slow SYMBOL MICROSECONDS | kill SYMBOL | "
			 "kill-after SYMBOL, then [card N] [after N] [times N]");
	}
	return ok;
}

bool
fault_add(struct fault *faults, const struct fault *fault)
{
	for (unsigned i = 0; i < MAX_FAULTS; i++) {
		if (faults[i].kind == FAULT_NONE) {
			faults[i] = *fault;
			return true;
		}
	}
	return false;
}

bool
fault_matches(const struct fault *fault, const char *symbol)
{
	size_t length = strlen(fault->symbol);
	if (length > 0 && fault->symbol[length - 1] == '*') {
		return strncmp(fault->symbol, symbol, length - 1) == 0;
	}
	return strcmp(fault->symbol, symbol) == 0;
}
