#include "ledger.h"

#include <string.h>

static const uint64_t MIB = 1024ULL * 1024ULL;

/* Holds of this process on each shared object: one bit in the object stands for all of them. */
static uint32_t local_holds[MAX_SHARED];

static const struct card *
card_of(uint32_t domain)
{
	return &region()->inventory.cards[domain / DOMAINS_PER_CARD];
}

static const struct mig_instance *
instance_of(uint32_t domain)
{
	uint32_t gi = domain % DOMAINS_PER_CARD;
	return gi == 0 ? NULL : &card_of(domain)->mig[gi - 1];
}

uint64_t
domain_total(uint32_t domain)
{
	const struct mig_instance *instance = instance_of(domain);
	return instance == NULL ? card_of(domain)->memory_bytes
				: mig_profile_of(instance)->memory_mib * MIB;
}

static uint64_t
foreign_bytes(uint32_t domain)
{
	uint64_t bytes = 0;
	if (domain % DOMAINS_PER_CARD == 0) {
		for (unsigned i = 0; i < MAX_FOREIGN; i++) {
			bytes += card_of(domain)->foreign[i].bytes;
		}
	}
	return bytes;
}

uint64_t
domain_usable(uint32_t domain)
{
	uint64_t total = domain_total(domain);
	uint64_t lost = instance_of(domain) == NULL ? card_of(domain)->reserved_bytes : total / 128;
	lost += foreign_bytes(domain);
	return lost < total ? total - lost : 0;
}

uint32_t
domain_sm_count(uint32_t domain)
{
	const struct mig_instance *instance = instance_of(domain);
	return instance == NULL ? card_of(domain)->sm_count : mig_profile_of(instance)->sm_count;
}

uint64_t
domain_used(uint32_t domain)
{
	region_lock();
	region_reap();
	uint64_t used = region()->domains[domain].used_bytes;
	region_unlock();
	return used + foreign_bytes(domain);
}

struct holding *
ledger_holding(uint32_t domain)
{
	struct client *self = region_self();
	for (uint32_t h = 0; h < self->holding_count; h++) {
		if (self->holdings[h].domain == domain) {
			return &self->holdings[h];
		}
	}
	struct holding *fresh = &self->holdings[self->holding_count % MAX_HOLDINGS];
	memset(fresh, 0, sizeof *fresh);
	fresh->domain = domain;
	fresh->used = true;
	self->holding_count++;
	return fresh;
}

bool
ledger_take(uint32_t domain, enum memory_kind kind, uint64_t bytes, uint64_t requested)
{
	struct domain *d = &region()->domains[domain];
	uint64_t usable = domain_usable(domain);
	region_lock();
	struct holding *mine = ledger_holding(domain);
	if (d->used_bytes + bytes > usable) {
		region_reap();
	}
	bool fits = bytes <= usable && d->used_bytes <= usable - bytes;
	if (fits) {
		mine->bytes[kind] += bytes;
		mine->requested += requested;
		d->used_bytes += bytes;
		d->peak_bytes = d->used_bytes > d->peak_bytes ? d->used_bytes : d->peak_bytes;
	} else {
		d->refused++;
	}
	region_unlock();
	return fits;
}

bool
ledger_charge(uint32_t domain, enum memory_kind kind, uint64_t bytes)
{
	return ledger_take(domain, kind, bytes, 0);
}

void
ledger_refund(uint32_t domain, enum memory_kind kind, uint64_t bytes)
{
	ledger_give(domain, kind, bytes, 0);
}

void
ledger_give(uint32_t domain, enum memory_kind kind, uint64_t bytes, uint64_t requested)
{
	region_lock();
	struct holding *mine = ledger_holding(domain);
	mine->bytes[kind] -= bytes;
	mine->requested -= requested;
	region()->domains[domain].used_bytes -= bytes;
	region_unlock();
}

void
ledger_requested(uint32_t domain, int64_t bytes)
{
	region_lock();
	ledger_holding(domain)->requested += (uint64_t)bytes;
	region_unlock();
}

int
shared_create(uint32_t domain, enum memory_kind kind, uint64_t bytes, uint64_t *generation)
{
	struct region *r = region();
	int found = -1;
	region_lock();
	for (int i = 0; i < MAX_SHARED && found < 0; i++) {
		if (r->shared[i].used) {
			continue;
		}
		struct shared_memory *memory = &r->shared[i];
		memset(memory->holders, 0, sizeof memory->holders);
		memory->domain = domain;
		memory->creator = region_slot();
		memory->bytes = bytes;
		memory->generation = ++r->shared_generation;
		memory->holders[region_slot() / 64] |= 1ULL << (region_slot() % 64);
		memory->used = true;
		ledger_holding(domain)->bytes[kind] -= bytes;
		local_holds[i] = 1;
		*generation = memory->generation;
		found = i;
	}
	region_unlock();
	return found;
}

bool
shared_hold(uint32_t index, uint64_t generation)
{
	region_lock();
	struct shared_memory *memory = &region()->shared[index % MAX_SHARED];
	bool valid = memory->used && memory->generation == generation;
	if (valid) {
		local_holds[index % MAX_SHARED]++;
		memory->holders[region_slot() / 64] |= 1ULL << (region_slot() % 64);
	}
	region_unlock();
	return valid;
}

void
shared_drop(uint32_t index)
{
	struct region *r = region();
	region_lock();
	struct shared_memory *memory = &r->shared[index];
	if (--local_holds[index] > 0) {
		region_unlock();
		return;
	}
	memory->holders[region_slot() / 64] &= ~(1ULL << (region_slot() % 64));
	bool held = false;
	for (unsigned i = 0; i < MAX_CLIENTS / 64; i++) {
		held = held || memory->holders[i] != 0;
	}
	if (!held && memory->used) {
		memory->used = false;
		r->domains[memory->domain].used_bytes -= memory->bytes;
	}
	region_unlock();
}
