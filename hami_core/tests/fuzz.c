/* libFuzzer target for everything that parses what others wrote. GPUSLICE_FUZZ names the part
 * (text, limits, row, elf); without it the first byte chooses one. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "bucket.h"
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
fuzz_row(const uint8_t *data, size_t size)
{
	static struct state_device row;
	const int64_t now = 1000000000000, burst = 10000000;
	memcpy(&row, data, size < sizeof row ? size : sizeof row);
	uint32_t quota = (uint32_t)row.launches % FULL_CORES_Q16 + 1;
	int64_t start = (int64_t)(row.busy_ns % (uint64_t)now);
	int64_t end = start + (int64_t)(row.throttled_ns % (uint64_t)(now - start));
	int64_t fresh = spans_insert(&row, start, end, now);
	if (fresh < 0 || fresh > end - start || (end > start && row.span_count > MAX_INTERVALS)) {
		abort();
	}
	spans_insert(&row, (int64_t)row.tokens_ns, (int64_t)row.refilled_at_ns,
		     (int64_t)row.busy_ns);
	int64_t tokens = bucket_refill(&row, now, quota, burst);
	int64_t wait = bucket_wait_ns(tokens, quota);
	if (tokens > burst || row.tokens_ns > burst || wait < 0 || wait > 121000000000) {
		abort();
	}
	bucket_take(&row, burst);
}

static void
fuzz_elf(const uint8_t *data, size_t size)
{
	elf_image_bypasses(data, size, is_short, is_short);
}

static const struct part {
	const char *name;
	void (*run)(const uint8_t *data, size_t size);
} parts[] = {{"text", fuzz_text}, {"limits", fuzz_limits}, {"row", fuzz_row}, {"elf", fuzz_elf}};
#define PARTS (sizeof parts / sizeof parts[0])

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *wanted = getenv("GPUSLICE_FUZZ");
	if (size == 0) {
		return 0;
	}
	for (unsigned i = 0; wanted != NULL && i < PARTS; i++) {
		if (strcmp(parts[i].name, wanted) == 0) {
			parts[i].run(data, size);
			return 0;
		}
	}
	parts[data[0] % PARTS].run(data + 1, size - 1);
	return 0;
}
