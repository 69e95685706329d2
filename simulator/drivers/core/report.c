#include "report.h"

#include <string.h>
#include <strings.h>

#include "ledger.h"
#include "timeline.h"

bool
report_domain(const char *uuid, uint32_t *domain)
{
	for (uint32_t c = 0; c < region()->inventory.card_count; c++) {
		const struct card *card = &region()->inventory.cards[c];
		if (strcasecmp(card->uuid, uuid) == 0) {
			*domain = c * DOMAINS_PER_CARD;
			return true;
		}
		for (uint32_t gi = 1; gi < DOMAINS_PER_CARD; gi++) {
			if (card->mig[gi - 1].live &&
			    strcasecmp(card->mig[gi - 1].uuid, uuid) == 0) {
				*domain = c * DOMAINS_PER_CARD + gi;
				return true;
			}
		}
	}
	return false;
}

void
report_card(uint32_t domain, struct gpuslice_fake_card *out)
{
	struct region *r = region();
	memset(out, 0, sizeof *out);
	region_lock();
	region_reap();
	timeline_advance(domain);
	const struct domain *d = &r->domains[domain];
	out->total_bytes = domain_total(domain);
	out->usable_bytes = domain_usable(domain);
	out->used_bytes = d->used_bytes;
	out->peak_bytes = d->peak_bytes;
	out->refused = d->refused;
	out->busy_ns = d->busy_ns;
	for (unsigned s = 0; s < MAX_SHARED; s++) {
		out->shared_bytes +=
		    r->shared[s].used && r->shared[s].domain == domain ? r->shared[s].bytes : 0;
	}
	region_unlock();
}

static void
add_usage(const struct holding *holding, struct gpuslice_fake_usage *out)
{
	for (unsigned k = 0; k < KIND_COUNT; k++) {
		out->bytes[k] += holding->bytes[k];
	}
	out->requested_bytes += holding->requested;
	out->submitted_ns += holding->work.submitted_ns;
	out->served_ns += holding->work.served_ns;
	out->launches += holding->work.launches;
}

void
report_usage(uint32_t domain, int pid, struct gpuslice_fake_usage *out)
{
	memset(out, 0, sizeof *out);
	region_lock();
	region_reap();
	timeline_advance(domain);
	for (uint32_t c = 0; c < MAX_CLIENTS; c++) {
		const struct client *client = &region()->clients[c];
		if (region()->kinds[c] != CLIENT_CUDA ||
		    (pid != 0 && client_visible_pid(c) != pid)) {
			continue;
		}
		for (uint32_t h = 0; h < client->holding_count; h++) {
			if (client->holdings[h].domain == domain) {
				add_usage(&client->holdings[h], out);
			}
		}
	}
	region_unlock();
}
