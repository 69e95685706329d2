/* Unit tests of the parts that need no driver, built with the address and undefined-behaviour
 * sanitizers. Each compares with a slow and obvious model where there is one. Prints what failed;
 * exit status 1 then. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "array_size.h"
#include "blocks.h"
#include "bucket.h"
#include "checksum.h"
#include "elf_image.h"
#include "predictor.h"
#include "process.h"
#include "quantity.h"
#include "robust.h"
#include "share.h"
#include "spans.h"

static int failures;

static void
expect(bool good, const char *what, long long got)
{
	if (!good) {
		printf("FAILED: %s (got %lld)\n", what, got);
		failures++;
	}
}

static void
test_quantities(void)
{
	static const struct {
		const char *text;
		uint64_t bytes; /* 0: refused */
	} rows[] = {
	    {"1", 1},
	    {"1k", 1024},
	    {"1Ki", 1024},
	    {"1KiB", 1024},
	    {"1KB", 1024},
	    {"1b", 1},
	    {"0.5k", 512},
	    {"8191T", 8191ULL << 40},
	    {"9223372036854775807", INT64_MAX},
	    {"9223372036854775808", 0},
	    {"1.k", 0},
	    {".5k", 0},
	    {"0.3k", 0},
	    {"1ki", 1024},
	    {"1iB", 0},
	    {"1Kib", 1024},
	    {"1P", 0},
	    {"1kk", 0},
	    {"1 k", 0},
	    {"\t1k\r\n", 1024},
	    {"1k1", 0},
	    {"--1", 0},
	    {"1e9", 0},
	    {"18446744073709551617", 0},
	};
	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		uint64_t bytes = 0;
		bool good = quantity_bytes(rows[i].text, &bytes);
		expect(good == (rows[i].bytes != 0) && (!good || bytes == rows[i].bytes),
		       rows[i].text, (long long)bytes);
	}
	uint32_t percent = 0;
	expect(quantity_percent(" 42\n", &percent) && percent == 42, "42 percent", percent);
	expect(!quantity_percent("00101", &percent) && !quantity_percent("1.5", &percent),
	       "not a percentage", percent);
}

/* Random puts and takes against a plain array. */
static void
test_blocks(void)
{
	enum { KEYS = 3000 };
	static uint64_t model[KEYS + 1];
	srand(7);
	for (int i = 0; i < 300000; i++) {
		uint64_t key = (uint64_t)(rand() % KEYS) + 1;
		struct block block = {.key = key << 9,
				      .bytes = (uint64_t)i + 1,
				      .owner = key % 3,
				      .space = SPACE_ADDRESS};
		struct block found = {.bytes = 0};
		if (rand() % 2 == 0) {
			expect(block_put(&block), "put", (long long)key);
			model[key] = block.bytes;
		} else {
			bool known = block_take(SPACE_ADDRESS, key << 9, &found);
			expect(known == (model[key] != 0) && (!known || found.bytes == model[key]),
			       "take", (long long)key);
			model[key] = 0;
		}
	}
	struct block none;
	expect(!block_take(SPACE_HANDLE, 512, &none), "another space is another key", 0);
}

static unsigned dropped_count;

static void
count_dropped(const struct block *block)
{
	struct block other;
	dropped_count++;
	block_peek(SPACE_ADDRESS, block->key, &other); /* the tables may be used from here */
}

static void
test_owners(void)
{
	for (uint64_t i = 1; i <= 1000; i++) {
		struct block block = {.key = i << 21, .owner = 100 + i % 4, .space = SPACE_ARRAY};
		block_put(&block);
	}
	blocks_drop_owner(101, count_dropped);
	expect(dropped_count == 250, "blocks of one owner", dropped_count);
}

/* Intervals against a bitmap of 4,000 nanoseconds. */
static void
test_spans(void)
{
	static struct state_device row;
	static bool covered[4001];
	srand(3);
	for (int i = 0; i < 40; i++) {
		int64_t start = rand() % 3900;
		int64_t end = start + 1 + rand() % 100;
		int64_t fresh = 0;
		for (int64_t at = start; at < end; at++) {
			fresh += !covered[at];
			covered[at] = true;
		}
		int64_t got = spans_insert(&row, start, end, INT64_MAX);
		expect(got == fresh, "newly covered time", got);
	}
	row.span_count = UINT64_MAX;
	expect(spans_insert(&row, 5, 5, INT64_MAX) == 0, "an empty interval", 0);
	for (int i = 0; i < 200; i++) {
		spans_insert(&row, 10000 + i * 10, 10005 + i * 10, INT64_MAX);
	}
	expect(row.span_count == MAX_INTERVALS, "the oldest intervals go",
	       (long long)row.span_count);
}

/* What stands in shared memory may be anything. */
static void
test_spans_overwritten(void)
{
	static struct state_device row;
	const struct span bad[] = {{0, UINT64_MAX}, {90, 80}, {50, 50}, {1000, 3000}};
	for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		row.span_count = 1;
		row.spans[0] = bad[i];
		int64_t got = spans_insert(&row, 1000, 1500, 2000);
		expect(got == 500, "a span that cannot be hides nothing", got);
	}
	row.span_count = 2;
	row.spans[0] = (struct span){100, 300};
	row.spans[1] = (struct span){200, 400};
	expect(spans_insert(&row, 150, 250, 2000) == 100, "spans out of order hide nothing", 0);
}

static void
test_bucket_overwritten(void)
{
	static struct state_device row;
	const int64_t now = 5000000000, tenth = 6554;
	row.refilled_at_ns = UINT64_MAX / 3;
	bucket_refill(&row, now, tenth, 10000000);
	row.tokens_ns = -1000;
	bucket_refill(&row, now + 20000, tenth, 10000000);
	expect(row.tokens_ns >= 0, "a refill in the future is forgotten", row.tokens_ns);
	row.tokens_ns = INT64_MIN;
	int64_t tokens = bucket_refill(&row, now + 30000, tenth, 10000000);
	int64_t wait = bucket_wait_ns(tokens, tenth);
	expect(wait > 0 && wait < 121000000000, "no debt lasts for ever", wait);
	row.tokens_ns = INT64_MAX;
	tokens = bucket_refill(&row, now + 40000, tenth, 10000000);
	expect(tokens == 10000000 && row.tokens_ns == tokens, "no hoard beyond the burst", tokens);
}

static void
test_lock_overwritten(void)
{
	static uint64_t words[8];
	expect(robust_lock(words) == ROBUST_OK && robust_unlock(words), "take and give", 0);
	const uint64_t junk[] = {1, 0x123456789ABCDEF0, UINT64_MAX, 1ULL << 63 | 77,
				 0xFFFFFFFF00000000};
	for (unsigned i = 0; i < sizeof junk / sizeof junk[0]; i++) {
		words[0] = junk[i];
		enum robust_result got = robust_lock(words);
		expect(got == ROBUST_RECOVERED, "a holder that never was", got);
		expect(robust_unlock(words) && words[0] == 0, "it is a lock again", 0);
	}
	words[0] = process_self(); /* nobody in this process will unlock it */
	words[2] = 0;
	expect(robust_lock(words) == ROBUST_RECOVERED, "a holder that gets nowhere", 0);
	words[0] = 99;
	expect(!robust_unlock(words), "a lock that was lost is noticed", 0);
}

static void
test_bucket(void)
{
	static struct state_device row;
	bucket_refill(&row, 1000000000, 6554, 10000000);
	row.tokens_ns = 0;
	expect(bucket_take(&row, 50000000) && !bucket_take(&row, 1), "a debt blocks",
	       row.tokens_ns);
	int64_t wait = bucket_wait_ns(row.tokens_ns, 6554);
	expect(wait > 499000000 && wait < 501000000, "50 ms at a tenth are paid in 500 ms", wait);
	bucket_refill(&row, 1000000000 + wait, 6554, 10000000);
	expect(row.tokens_ns >= 0 && row.tokens_ns < 1000, "the debt is paid", row.tokens_ns);
	bucket_refill(&row, 9000000000, 65536, 10000000);
	expect(row.tokens_ns == 10000000, "idle time stores one burst", row.tokens_ns);
}

static void
test_forecasts(void)
{
	struct forecast *forecast = forecast_of(&failures, 8, 32);
	for (int i = 0; i < 20; i++) {
		forecast_learn(forecast, 1000, false);
	}
	expect(forecast->cost_ns == 1000, "a steady kernel", forecast->cost_ns);
	for (int i = 0; i < 100; i++) {
		forecast_learn(forecast, i % 4 == 0 ? 1000000 : 1000, true);
	}
	expect(forecast->cost_ns < 1100, "somebody else's slices", forecast->cost_ns);
	expect(forecast_of(&failures, 9, 32) != forecast, "another grid is another kernel", 0);
}

static void
test_shares(void)
{
	struct limit limit = {.core_q16 = 19661, .core_policy = POLICY_SOFT};
	struct limits_hint hint = {.stamp_ns = 1000000000};
	expect(share_in_force(&limit, NULL, 0) == 19661, "soft without hints is hard", 0);
	expect(share_in_force(&limit, &hint, 2000000000) == SHARE_UNLIMITED,
	       "soft with nobody else", 0);
	expect(share_in_force(&limit, &hint, 3100000000) == 19661, "an old hint is none", 0);
	hint.others_active_q16 = 6554;
	uint32_t share = share_in_force(&limit, &hint, 1000000000);
	expect(share > 49000 && share < 49300, "30 beside 10 gets three quarters", share);
	hint.higher_priority_active = 1;
	expect(share_in_force(&limit, &hint, 1000000000) == FULL_CORES_Q16 / 20, "the floor", 0);
}

static void
test_process_lines(void)
{
	static const char line[] =
	    "7 (a) R (b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 3 0 98765 1";
	uint64_t value = 0;
	expect(process_parse_field(line, sizeof line - 1, 22, &value) && value == 98765,
	       "start time", (long long)value);
	expect(process_parse_field(line, sizeof line - 1, 20, &value) && value == 3, "threads",
	       (long long)value);
	for (size_t cut = 0; cut < sizeof line - 8; cut++) {
		expect(!process_parse_field(line, cut, 22, &value) || cut > 60, "a cut line",
		       (long long)cut);
	}
}

static bool
nothing(const char *name)
{
	return name[0] == '\0';
}

static void
test_elf_images(const char *self)
{
	static unsigned char image[1 << 22];
	FILE *file = fopen(self, "rb");
	size_t size = file == NULL ? 0 : fread(image, 1, sizeof image, file);
	if (file != NULL) {
		fclose(file);
	}
	expect(elf_image_bypasses(image, size, nothing, nothing), "a program has dependencies",
	       (long long)size);
	srand(11);
	for (int i = 0; i < 2000; i++) {
		unsigned char *copy = malloc(size);
		memcpy(copy, image, size);
		for (int n = 0; n < 16; n++) {
			copy[(size_t)rand() % (n < 8 ? 64 : size)] = (unsigned char)rand();
		}
		elf_image_bypasses(copy, size - (size_t)rand() % size, nothing, nothing);
		free(copy);
	}
}

int
main(int count, char **words)
{
	(void)count;
	test_quantities();
	test_blocks();
	test_owners();
	test_spans();
	test_bucket();
	test_spans_overwritten();
	test_bucket_overwritten();
	test_lock_overwritten();
	test_forecasts();
	test_shares();
	test_process_lines();
	test_elf_images(words[0]);
	expect(checksum_update(0, "123456789", 9) == 0xCBF43926U, "CRC-32", 0);
	expect(array_size(1024, 1024, 0, 0x20, 1) == 4 << 20, "a megatexel of floats", 0);
	expect(array_size(UINT64_MAX, UINT64_MAX, UINT64_MAX, 0, 4) == INT64_MAX, "saturates", 0);
	printf(failures == 0 ? "unit tests passed\n" : "%d failures\n", failures);
	return failures != 0;
}
