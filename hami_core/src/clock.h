#ifndef GPUSLICE_CLOCK_H
#define GPUSLICE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define NS_PER_MS 1000000LL
#define NS_PER_S 1000000000LL

/* CLOCK_MONOTONIC, nanoseconds: the same in every process of a node. */
static inline int64_t
clock_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

/* Sleep that long; a signal may end it early. */
static inline void
clock_sleep(int64_t ns)
{
	struct timespec pause = {ns / NS_PER_S, ns % NS_PER_S};
	clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
}

#endif
