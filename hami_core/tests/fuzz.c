/* libFuzzer target for everything that parses what others wrote; the first byte chooses the parser.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "checksum.h"
#include "elf_image.h"
#include "process.h"
#include "quantity.h"
#include "spans.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool
is_short(const char *name)
{
	return strlen(name) < 8;
}

static void
fuzz_text(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);
	uint64_t value;
	uint32_t percent;
	bool on;
	memcpy(text, data, size);
	text[size] = '\0';
	if (quantity_bytes(text, &value) && (value == 0 || value > INT64_MAX)) {
		abort();
	}
	if (quantity_percent(text, &percent) && percent > 100) {
		abort();
	}
	quantity_switch(text, &on);
	process_parse_field(text, size, 22, &value);
	free(text);
}

static void
fuzz_limits(const uint8_t *data, size_t size)
{
	static struct limits_file file;
	memset(&file, 0, sizeof file);
	memcpy(&file, data, size < sizeof file ? size : sizeof file);
	limits_valid(&file.header, file.records);
}

/* A tenant may write anything into its own state file. */
static void
fuzz_spans(const uint8_t *data, size_t size)
{
	static struct state_device row;
	memcpy(&row, data, size < sizeof row ? size : sizeof row);
	spans_insert(&row, (int64_t)row.tokens_ns, (int64_t)row.refilled_at_ns,
		     (int64_t)row.busy_ns);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0) {
		return 0;
	}
	switch (data[0] % 4) {
	case 0:
		fuzz_text(data + 1, size - 1);
		break;
	case 1:
		fuzz_limits(data + 1, size - 1);
		break;
	case 2:
		fuzz_spans(data + 1, size - 1);
		break;
	default:
		elf_image_bypasses(data + 1, size - 1, is_short, is_short);
	}
	return 0;
}
