/* Reading the ledger for people and tests. */
#ifndef GPUSLICE_FAKE_REPORT_H
#define GPUSLICE_FAKE_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "../include/gpuslice_fake.h"

bool report_domain(const char *uuid, uint32_t *domain);
void report_card(uint32_t domain, struct gpuslice_fake_card *out);
void report_usage(uint32_t domain, int pid, struct gpuslice_fake_usage *out);

#endif
