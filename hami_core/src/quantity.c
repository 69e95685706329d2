#include "quantity.h"

#include <string.h>
#include <strings.h>

static bool
is_space(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool
is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static const char *
skip_space(const char *text)
{
	while (is_space(*text)) {
		text++;
	}
	return text;
}

/* Binary exponent of a unit such as "Gi"; -1 when it is none. */
static int
unit_shift(const char *unit, size_t length)
{
	static const char letters[] = "kmgt";
	if (length == 0 || (length == 1 && (unit[0] == 'b' || unit[0] == 'B'))) {
		return 0;
	}
	const char *letter = strchr(letters, unit[0] | 0x20);
	if (letter == NULL || *letter == '\0') {
		return -1;
	}
	bool plain = length == 1;
	bool with_i = length == 2 && unit[1] == 'i';
	bool with_b = length == 2 && (unit[1] | 0x20) == 'b';
	bool with_ib = length == 3 && unit[1] == 'i' && (unit[2] | 0x20) == 'b';
	return plain || with_i || with_b || with_ib ? 10 * (int)(letter - letters + 1) : -1;
}

struct decimal {
	uint64_t digits; /* all digits, point removed */
	uint64_t scale;  /* power of ten below them */
};

/* Read digits[.digits]; returns the first character behind, or NULL. */
static const char *
read_decimal(const char *text, struct decimal *out)
{
	*out = (struct decimal){0, 1};
	bool any = false;
	bool fraction = false;
	for (;; text++) {
		if (*text == '.' && !fraction && any) {
			fraction = true;
			any = false;
			continue;
		}
		if (!is_digit(*text)) {
			return any ? text : NULL;
		}
		any = true;
		if (out->digits > (UINT64_MAX - 9) / 10 ||
		    (fraction && out->scale > UINT64_MAX / 10)) {
			return NULL;
		}
		out->digits = out->digits * 10 + (uint64_t)(*text - '0');
		out->scale *= fraction ? 10 : 1;
	}
}

bool
quantity_bytes(const char *text, uint64_t *bytes)
{
	struct decimal value;
	const char *unit = read_decimal(skip_space(text), &value);
	if (unit == NULL) {
		return false;
	}
	size_t length = strlen(unit);
	while (length > 0 && is_space(unit[length - 1])) {
		length--;
	}
	int shift = unit_shift(unit, length);
	if (shift < 0) {
		return false;
	}
	unsigned __int128 exact = (unsigned __int128)value.digits << shift;
	if (exact % value.scale != 0 || exact / value.scale == 0 ||
	    exact / value.scale > INT64_MAX) {
		return false;
	}
	*bytes = (uint64_t)(exact / value.scale);
	return true;
}

bool
quantity_percent(const char *text, uint32_t *percent)
{
	text = skip_space(text);
	uint32_t value = 0;
	size_t digits = 0;
	for (; is_digit(*text) && digits < 4; text++, digits++) {
		value = value * 10 + (uint32_t)(*text - '0');
	}
	if (digits == 0 || *skip_space(text) != '\0' || value > 100) {
		return false;
	}
	*percent = value;
	return true;
}

bool
quantity_switch(const char *text, bool *on)
{
	bool yes = strcasecmp(text, "true") == 0 || strcmp(text, "1") == 0;
	bool no = strcasecmp(text, "false") == 0 || strcmp(text, "0") == 0;
	*on = yes;
	return yes || no;
}
