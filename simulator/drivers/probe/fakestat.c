/* fakestat: the ledger of a fake node as JSON on stdout. Environment as for the drivers.
 * --busy: also when each card was busy, in steps of 10 ms since its first work. */
#include <stdio.h>
#include <string.h>

#include "ledger.h"
#include "region.h"
#include "report.h"

static const char *const kinds[GPUSLICE_FAKE_KINDS] = {"context", "data",  "pool",    "graph",
						       "vmm",     "array", "managed", "module"};

static void
print_processes(uint32_t domain)
{
	bool first = true;
	fputs(", \"processes\": [", stdout);
	for (uint32_t c = 0; c < MAX_CLIENTS; c++) {
		const struct client *client = &region()->clients[c];
		for (uint32_t h = 0; region()->kinds[c] == CLIENT_CUDA && h < client->holding_count;
		     h++) {
			const struct holding *holding = &client->holdings[h];
			if (holding->domain != domain) {
				continue;
			}
			printf("%s{\"pid\": %d, \"host_pid\": %d, \"requested_bytes\": %llu, "
			       "\"served_ns\": %llu, \"launches\": %llu, \"bytes\": {",
			       first ? "" : ", ", client->pid, (int)client_visible_pid(c),
			       (unsigned long long)holding->requested,
			       (unsigned long long)holding->work.served_ns,
			       (unsigned long long)holding->work.launches);
			for (unsigned k = 0; k < KIND_COUNT; k++) {
				printf("%s\"%s\": %llu", k > 0 ? ", " : "", kinds[k],
				       (unsigned long long)holding->bytes[k]);
			}
			fputs("}}", stdout);
			first = false;
		}
	}
	fputs("]", stdout);
}

static void
print_busy(const struct domain *domain)
{
	uint32_t count = BUSY_STEPS;
	while (count > 0 && domain->busy_steps[count - 1] == 0) {
		count--;
	}
	printf(", \"busy_from_ns\": %llu, \"busy_steps_ns\": [",
	       (unsigned long long)domain->busy_from_ns);
	for (uint32_t i = 0; i < count; i++) {
		printf("%s%u", i > 0 ? ", " : "", domain->busy_steps[i]);
	}
	fputs("]", stdout);
}

static void
print_card(const char *uuid, bool first, bool busy)
{
	uint32_t domain = 0;
	struct gpuslice_fake_card card;
	if (!report_domain(uuid, &domain)) {
		return;
	}
	report_card(domain, &card);
	printf("%s{\"uuid\": \"%s\", \"total_bytes\": %llu, \"usable_bytes\": %llu, "
	       "\"used_bytes\": %llu, \"peak_bytes\": %llu, \"shared_bytes\": %llu, \"refused\": "
	       "%llu, \"busy_ns\": %llu",
	       first ? "" : ", ", uuid, (unsigned long long)card.total_bytes,
	       (unsigned long long)card.usable_bytes, (unsigned long long)card.used_bytes,
	       (unsigned long long)card.peak_bytes, (unsigned long long)card.shared_bytes,
	       (unsigned long long)card.refused, (unsigned long long)card.busy_ns);
	print_processes(domain);
	if (busy) {
		print_busy(&region()->domains[domain]);
	}
	fputs("}", stdout);
}

int
main(int count, char **arguments)
{
	bool busy = count == 2 && strcmp(arguments[1], "--busy") == 0;
	if (count > 1 && !busy) {
		fprintf(stderr, "usage: fakestat [--busy]\n");
		return 2;
	}
	if (!region_attach(CLIENT_NVML)) {
		fprintf(stderr, "fakestat: %s\n", region_problem());
		return 1;
	}
	const struct inventory *inventory = &region()->inventory;
	printf("{\"node\": \"%s\", \"repairs\": %u, \"cards\": [", inventory->name,
	       region()->repairs);
	for (uint32_t c = 0; c < inventory->card_count; c++) {
		print_card(inventory->cards[c].uuid, c == 0, busy);
		for (unsigned gi = 0; gi < MAX_INSTANCES; gi++) {
			if (inventory->cards[c].mig[gi].live) {
				print_card(inventory->cards[c].mig[gi].uuid, false, busy);
			}
		}
	}
	puts("]}");
	return 0;
}
