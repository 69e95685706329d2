/* Preload for tests on the fake driver's virtual clock: the program's and the library's time become
 * the node's. */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t gpuslice_fake_clock_now(void) __attribute__((weak));
void gpuslice_fake_clock_sleep(uint64_t ns) __attribute__((weak));

/* The fake driver reads the real clock itself. */
static __thread int inside __attribute__((tls_model("initial-exec")));

int
clock_gettime(clockid_t clock, struct timespec *out)
{
	if (clock != CLOCK_MONOTONIC || inside != 0 || gpuslice_fake_clock_now == NULL) {
		return (int)syscall(SYS_clock_gettime, clock, out);
	}
	inside++;
	uint64_t now = gpuslice_fake_clock_now();
	inside--;
	out->tv_sec = (time_t)(now / 1000000000U);
	out->tv_nsec = (long)(now % 1000000000U);
	return 0;
}

int
clock_nanosleep(clockid_t clock, int flags, const struct timespec *want, struct timespec *left)
{
	if (clock != CLOCK_MONOTONIC || flags != 0 || inside != 0 ||
	    gpuslice_fake_clock_sleep == NULL) {
		return syscall(SYS_clock_nanosleep, clock, flags, want, left) == 0 ? 0 : errno;
	}
	inside++;
	gpuslice_fake_clock_sleep((uint64_t)want->tv_sec * 1000000000U + (uint64_t)want->tv_nsec);
	inside--;
	return 0;
}
