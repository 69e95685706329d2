#include "spans.h"

#include <string.h>

/* Sorted by start; disjoint. The count comes from shared memory, so it is bounded before use. */
static unsigned
span_count(const struct state_device *row)
{
	return row->span_count > MAX_INTERVALS ? MAX_INTERVALS : (unsigned)row->span_count;
}

static void
remove_spans(struct state_device *row, unsigned from, unsigned to)
{
	unsigned count = span_count(row);
	memmove(&row->spans[from], &row->spans[to], (count - to) * sizeof row->spans[0]);
	row->span_count = count - (to - from);
}

int64_t
spans_insert(struct state_device *row, int64_t start_ns, int64_t end_ns)
{
	if (end_ns <= start_ns || start_ns < 0) {
		return 0;
	}
	uint64_t start = (uint64_t)start_ns;
	uint64_t end = (uint64_t)end_ns;
	uint64_t covered = 0;
	unsigned first = 0;
	while (first < span_count(row) && row->spans[first].end_ns < start) {
		first++;
	}
	unsigned last = first;
	while (last < span_count(row) && row->spans[last].start_ns <= end) {
		const struct span *span = &row->spans[last];
		uint64_t low =
		    span->start_ns > (uint64_t)start_ns ? span->start_ns : (uint64_t)start_ns;
		uint64_t high = span->end_ns < (uint64_t)end_ns ? span->end_ns : (uint64_t)end_ns;
		covered += high > low ? high - low : 0;
		start = span->start_ns < start ? span->start_ns : start;
		end = span->end_ns > end ? span->end_ns : end;
		last++;
	}
	remove_spans(row, first, last);
	if (span_count(row) == MAX_INTERVALS) {
		remove_spans(row, 0, 1);
		first = first == 0 ? 0 : first - 1;
	}
	unsigned count = span_count(row);
	memmove(&row->spans[first + 1], &row->spans[first], (count - first) * sizeof row->spans[0]);
	row->spans[first] = (struct span){start, end};
	row->span_count = count + 1;
	return end_ns - start_ns - (int64_t)covered;
}
