#include "timeline.h"

#include "clock.h"
#include "faults.h"
#include "ledger.h"

static struct work_queue *
queue_of(struct member member)
{
	struct client *client = &region()->clients[member.client];
	if (region()->kinds[member.client] != CLIENT_CUDA ||
	    member.holding >= client->holding_count) {
		return NULL;
	}
	return &client->holdings[member.holding].work;
}

static uint64_t
backlog(struct member member)
{
	const struct work_queue *work = queue_of(member);
	return work != NULL ? work->submitted_ns - work->served_ns : 0;
}

/* Work done in a stretch of wall time at 1/share of the speed; rounded up, so that waiting always
 * gets further. */
static uint64_t
part_of(uint64_t wall_ns, uint32_t share)
{
	return (wall_ns + share - 1) / share;
}

static void
remember(struct domain *d, uint32_t client, uint64_t from, uint64_t to, uint64_t served_from,
	 uint32_t share)
{
	if (d->segment_next > 0) {
		struct segment *last = &d->segments[(d->segment_next - 1) % SEGMENTS];
		if (last->client == client && last->end_ns == from && last->share == share) {
			last->end_ns = to;
			return;
		}
	}
	d->segments[d->segment_next % SEGMENTS] =
	    (struct segment){from, to, served_from, client, share};
	d->segment_next++;
}

static void
close_sample(struct domain *d, uint64_t boundary)
{
	uint64_t period = region()->inventory.sample_ns;
	uint32_t kept = 0;
	d->sample_percent[d->sample_next % SAMPLES] =
	    (uint32_t)((d->sample_busy_ns * 100 + period / 2) / period);
	d->sample_end_us[d->sample_next % SAMPLES] = boundary / 1000;
	d->sample_next++;
	d->sample_busy_ns = 0;
	d->sample_start_ns = boundary;
	for (uint32_t m = 0; m < d->member_count; m++) {
		struct work_queue *work = queue_of(d->members[m]);
		if (work == NULL ||
		    (work->sample_busy_ns == 0 && work->submitted_ns == work->served_ns)) {
			d->turn_left_ns = m == d->turn ? 0 : d->turn_left_ns;
			continue;
		}
		uint32_t at = work->sample_next++ % SAMPLES;
		work->samples[at].end_us = boundary / 1000;
		work->samples[at].percent =
		    (uint32_t)((work->sample_busy_ns * 100 + period / 2) / period);
		work->sample_busy_ns = 0;
		d->turn = m == d->turn ? kept : d->turn;
		d->members[kept++] = d->members[m];
	}
	d->member_count = kept;
}

static uint32_t
count_active(const struct domain *d)
{
	uint32_t active = 0;
	for (uint32_t m = 0; m < d->member_count; m++) {
		active += backlog(d->members[m]) != 0;
	}
	return active;
}

static void
serve(struct domain *d, uint32_t member, uint64_t from, uint64_t wall, uint32_t share)
{
	struct work_queue *work = queue_of(d->members[member]);
	remember(d, d->members[member].client, from, from + wall, work->served_ns, share);
	uint64_t done = part_of(wall, share);
	done = done > work->submitted_ns - work->served_ns ? work->submitted_ns - work->served_ns
							   : done;
	work->served_ns += done;
	work->sample_busy_ns += done;
}

/* One time slice of one process, or a part of it. Returns the time it took. */
static uint64_t
run_slice(struct domain *d, uint64_t from, uint64_t most)
{
	if (d->turn >= d->member_count || d->turn_left_ns == 0 ||
	    backlog(d->members[d->turn]) == 0) {
		uint32_t next = d->turn;
		do {
			next = next + 1 >= d->member_count ? 0 : next + 1;
		} while (backlog(d->members[next]) == 0);
		d->turn = next;
		d->turn_left_ns = region()->inventory.quantum_ns;
	}
	uint64_t run = backlog(d->members[d->turn]);
	run = run < d->turn_left_ns ? run : d->turn_left_ns;
	run = run < most ? run : most;
	serve(d, d->turn, from, run, 1);
	d->turn_left_ns -= run;
	return run;
}

/* All processes at once, until the first of them runs dry. */
static uint64_t
run_shared(struct domain *d, uint64_t from, uint64_t most, uint32_t active)
{
	uint64_t run = most;
	for (uint32_t m = 0; m < d->member_count; m++) {
		uint64_t left = backlog(d->members[m]);
		run = left != 0 && left * active < run ? left * active : run;
	}
	for (uint32_t m = 0; m < d->member_count; m++) {
		if (backlog(d->members[m]) != 0) {
			serve(d, m, from, run, active);
		}
	}
	return run;
}

/* Keep when the device was busy, from its first work on, for whoever judges shares of time. */
static void
note_busy(struct domain *d, uint64_t from, uint64_t to)
{
	d->busy_ns += to - from;
	d->sample_busy_ns += to - from;
	if (d->busy_from_ns == 0) {
		d->busy_from_ns = from;
	}
	while (from < to) {
		uint64_t step = (from - d->busy_from_ns) / BUSY_STEP_NS;
		uint64_t end = d->busy_from_ns + (step + 1) * BUSY_STEP_NS;
		end = end < to ? end : to;
		if (step < BUSY_STEPS) {
			d->busy_steps[step] += (uint32_t)(end - from);
		}
		from = end;
	}
}

/* Nobody has work: samples of an idle device, and no more of them than the ring can show. */
static uint64_t
skip_idle(struct domain *d, uint64_t now)
{
	uint64_t period = region()->inventory.sample_ns;
	uint64_t boundary = d->sample_start_ns + period;
	if (now < boundary) {
		return now;
	}
	if (now - boundary > (SAMPLES + 1) * period) {
		close_sample(d, boundary);
		uint64_t skipped = (now - boundary) / period - SAMPLES;
		d->sample_start_ns += skipped * period;
		return d->sample_start_ns;
	}
	close_sample(d, boundary);
	return boundary;
}

void
timeline_advance(uint32_t domain)
{
	struct region *r = region();
	struct domain *d = &r->domains[domain];
	uint64_t now = clock_now();
	uint64_t at = d->advanced_ns;
	if (at == 0 || at > now) {
		at = now;
		d->sample_start_ns = now;
	}
	while (at < now) {
		uint32_t active = count_active(d);
		uint64_t boundary = d->sample_start_ns + r->inventory.sample_ns;
		if (active == 0) {
			at = skip_idle(d, now);
			continue;
		}
		uint64_t most = (now < boundary ? now : boundary) - at;
		bool shared = r->inventory.sharing == SHARING_MPS && active > 1;
		uint64_t ran = shared ? run_shared(d, at, most, active) : run_slice(d, at, most);
		note_busy(d, at, at + ran);
		at += ran;
		if (at == boundary) {
			close_sample(d, boundary);
		}
	}
	d->advanced_ns = at;
}

static void
join(struct domain *d, uint16_t client, uint16_t holding)
{
	for (uint32_t m = 0; m < d->member_count; m++) {
		if (d->members[m].client == client) {
			d->members[m].holding = holding;
			return;
		}
	}
	if (d->member_count == 0) {
		d->turn = 0;
		d->turn_left_ns = region()->inventory.quantum_ns;
	}
	if (d->member_count < MAX_CLIENTS) {
		d->members[d->member_count++] = (struct member){client, holding};
	}
}

uint64_t
timeline_submit(uint32_t domain, uint64_t work_ns)
{
	region_lock();
	timeline_advance(domain);
	struct holding *holding = ledger_holding(domain);
	holding->work.submitted_ns += work_ns;
	holding->work.launches += work_ns > 1; /* an event is one nanosecond */
	uint64_t position = holding->work.submitted_ns;
	join(&region()->domains[domain], (uint16_t)region_slot(),
	     (uint16_t)(holding - region_self()->holdings));
	region_unlock();
	return position;
}

uint64_t
timeline_tail(uint32_t domain)
{
	region_lock();
	uint64_t position = ledger_holding(domain)->work.submitted_ns;
	region_unlock();
	return position;
}

/* When this process's work reached a position that it has reached; the oldest known moment if the
 * ring no longer holds it. */
static uint64_t
moment_of(const struct domain *d, uint64_t position)
{
	uint64_t oldest = d->advanced_ns;
	uint32_t kept = d->segment_next < SEGMENTS ? d->segment_next : SEGMENTS;
	for (uint32_t back = 1; back <= kept; back++) {
		const struct segment *s = &d->segments[(d->segment_next - back) % SEGMENTS];
		if (s->client != region_slot()) {
			continue;
		}
		uint64_t served_to = s->served_from + part_of(s->end_ns - s->start_ns, s->share);
		if (position > served_to) {
			return oldest;
		}
		if (position > s->served_from) {
			return s->start_ns + (position - s->served_from) * s->share;
		}
		oldest = s->start_ns;
	}
	return oldest;
}

bool
timeline_reached(uint32_t domain, uint64_t position, uint64_t *moment_ns)
{
	region_lock();
	timeline_advance(domain);
	bool reached = ledger_holding(domain)->work.served_ns >= position;
	if (reached && moment_ns != NULL) {
		*moment_ns = moment_of(&region()->domains[domain], position);
	}
	region_unlock();
	return reached;
}

/* Wall time until one member has `want` more nanoseconds of work done, if nobody queues anything
 * new. */
static uint64_t
predict_slices(const struct domain *d, uint64_t *left, uint32_t mine, uint64_t want)
{
	uint32_t turn = d->turn;
	uint64_t slice = d->turn_left_ns;
	uint64_t wall = 0;
	for (;;) {
		if (turn >= d->member_count || slice == 0 || left[turn] == 0) {
			do {
				turn = turn + 1 >= d->member_count ? 0 : turn + 1;
			} while (left[turn] == 0);
			slice = region()->inventory.quantum_ns;
		}
		uint64_t run = left[turn] < slice ? left[turn] : slice;
		if (turn == mine && want <= run) {
			return wall + want;
		}
		want -= turn == mine ? run : 0;
		left[turn] -= run;
		slice -= run;
		wall += run;
	}
}

static uint64_t
predict_shared(const struct domain *d, uint64_t *left, uint32_t mine, uint64_t want)
{
	uint64_t wall = 0;
	for (;;) {
		uint64_t active = 0;
		uint64_t least = left[mine];
		for (uint32_t m = 0; m < d->member_count; m++) {
			active += left[m] != 0;
			least = left[m] != 0 && left[m] < least ? left[m] : least;
		}
		if (want <= least) {
			return wall + want * active;
		}
		for (uint32_t m = 0; m < d->member_count; m++) {
			left[m] -= left[m] != 0 ? least : 0;
		}
		want -= least;
		wall += least * active;
	}
}

/* The moment at which this process's work will reach a position that it has queued but not reached.
 * Lock held. */
static uint64_t
predict(uint32_t domain, uint64_t want)
{
	const struct domain *d = &region()->domains[domain];
	uint64_t left[MAX_CLIENTS];
	uint32_t mine = 0;
	for (uint32_t m = 0; m < d->member_count; m++) {
		left[m] = backlog(d->members[m]);
		mine = d->members[m].client == region_slot() ? m : mine;
	}
	if (d->member_count == 0 || left[mine] < want) {
		return d->advanced_ns + want;
	}
	bool shared = region()->inventory.sharing == SHARING_MPS;
	return d->advanced_ns +
	       (shared ? predict_shared(d, left, mine, want) : predict_slices(d, left, mine, want));
}

void
timeline_wait(uint32_t domain, uint64_t position)
{
	for (;;) {
		region_lock();
		timeline_advance(domain);
		uint64_t served = ledger_holding(domain)->work.served_ns;
		if (served < position && count_active(&region()->domains[domain]) > 1) {
			region_reap();
		}
		uint64_t soonest = served < position ? predict(domain, position - served) : 0;
		region_unlock();
		if (served >= position) {
			return;
		}
		control_poll();
		clock_wait_until(soonest);
	}
}
