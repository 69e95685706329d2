#include "spans.h"

#include <string.h>

/* Number of spans, 0 when what stands there cannot be: they come from shared memory, and must be in
 * order, apart, and over. */
static unsigned
span_count(const struct state_device *row, uint64_t now)
{
	uint64_t count = row->span_count;
	uint64_t last = 0;
	for (unsigned i = 0; i < count; i++) {
		if (count > MAX_INTERVALS || row->spans[i].start_ns < last ||
		    row->spans[i].end_ns <= row->spans[i].start_ns || row->spans[i].end_ns > now) {
			return 0;
		}
		last = row->spans[i].end_ns;
	}
	return (unsigned)count;
}

static unsigned
remove_spans(struct state_device *row, unsigned count, unsigned from, unsigned to)
{
	memmove(&row->spans[from], &row->spans[to], (count - to) * sizeof row->spans[0]);
	return count - (to - from);
}

int64_t
spans_insert(struct state_device *row, int64_t start_ns, int64_t end_ns, int64_t now_ns)
{
	if (end_ns <= start_ns || start_ns < 0) {
		return 0;
	}
	unsigned count = span_count(row, (uint64_t)(now_ns > end_ns ? now_ns : end_ns));
	uint64_t start = (uint64_t)start_ns;
	uint64_t end = (uint64_t)end_ns;
	uint64_t covered = 0;
	unsigned first = 0;
	while (first < count && row->spans[first].end_ns < start) {
		first++;
	}
	unsigned last = first;
	while (last < count && row->spans[last].start_ns <= end) {
		const struct span *span = &row->spans[last];
		uint64_t low =
		    span->start_ns > (uint64_t)start_ns ? span->start_ns : (uint64_t)start_ns;
		uint64_t high = span->end_ns < (uint64_t)end_ns ? span->end_ns : (uint64_t)end_ns;
		covered += high > low ? high - low : 0;
		start = span->start_ns < start ? span->start_ns : start;
		end = span->end_ns > end ? span->end_ns : end;
		last++;
	}
	count = remove_spans(row, count, first, last);
	if (count == MAX_INTERVALS) {
		count = remove_spans(row, count, 0, 1);
		first = first == 0 ? 0 : first - 1;
	}
	memmove(&row->spans[first + 1], &row->spans[first], (count - first) * sizeof row->spans[0]);
	row->spans[first] = (struct span){start, end};
	row->span_count = count + 1;
	return end_ns - start_ns - (int64_t)covered;
}
