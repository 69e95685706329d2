#include "clock.h"

#include <errno.h>
#include <time.h>

#include "region.h"

uint64_t
clock_now(void)
{
	if (region()->clock == CLOCK_VIRTUAL) {
		return atomic_load_explicit(&region()->virtual_ns, memory_order_acquire);
	}
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

void
clock_wait_until(uint64_t moment_ns)
{
	if (region()->clock == CLOCK_VIRTUAL) {
		uint64_t now = atomic_load(&region()->virtual_ns);
		while (now < moment_ns && !atomic_compare_exchange_weak(&region()->virtual_ns, &now, moment_ns)) {
		}
		return;
	}
	struct timespec until = {.tv_sec = (time_t)(moment_ns / 1000000000ULL), .tv_nsec = (long)(moment_ns % 1000000000ULL)};
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {
	}
}

void
clock_poll(void)
{
	if (region()->clock == CLOCK_VIRTUAL) {
		clock_wait_until(clock_now() + 1000);
	}
}
