/* The functions of include/gpuslice_fake.h. */
#include <string.h>

#include "clock.h"
#include "driver.h"
#include "gate.h"
#include "region.h"
#include "report.h"

cu_result fake_cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags,
				   int *status);

static bool
ready(void)
{
	return (region() != NULL && region_slot() != UINT32_MAX) || region_attach(CLIENT_CUDA);
}

EXPORTED uint64_t
gpuslice_fake_clock_now(void)
{
	return ready() ? clock_now() : 0;
}

EXPORTED void
gpuslice_fake_clock_sleep_until(uint64_t moment_ns)
{
	if (ready()) {
		clock_wait_until(moment_ns);
	}
}

EXPORTED void
gpuslice_fake_clock_sleep(uint64_t ns)
{
	gpuslice_fake_clock_sleep_until(gpuslice_fake_clock_now() + ns);
}

EXPORTED void
gpuslice_fake_clock_leave(void)
{
	clock_leave();
}

EXPORTED int
gpuslice_fake_card(const char *uuid, struct gpuslice_fake_card *out)
{
	uint32_t domain = 0;
	if (!ready() || !report_domain(uuid, &domain)) {
		return -1;
	}
	report_card(domain, out);
	return 0;
}

EXPORTED int
gpuslice_fake_usage(const char *uuid, int pid, struct gpuslice_fake_usage *out)
{
	uint32_t domain = 0;
	if (!ready() || !report_domain(uuid, &domain)) {
		return -1;
	}
	report_usage(domain, pid, out);
	return 0;
}

EXPORTED uint64_t
gpuslice_fake_calls(const char *symbol)
{
	for (unsigned i = 0; i < fake_symbol_count; i++) {
		if (strcmp(fake_symbol_names[i], symbol) == 0) {
			return fake_calls[i];
		}
	}
	return 0;
}

EXPORTED void *
gpuslice_fake_function(const char *symbol)
{
	int version = 0;
	void *address = NULL;
	fake_cuDriverGetVersion(&version);
	return fake_cuGetProcAddress_v2(symbol, &address, version, 0, NULL) == CU_OK ? address
										     : NULL;
}
