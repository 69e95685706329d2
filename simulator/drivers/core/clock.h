/* The node's clock. Real: CLOCK_MONOTONIC. Virtual (GPUSLICE_FAKE_CLOCK=virtual when the region is
 * created): time stands still while anybody computes and jumps to the next moment somebody waits
 * for, so that a test's figures do not depend on the machine.
 *
 * Participants of a virtual clock are threads. One runs at a time: of all that wait, the one with
 * the earliest moment and, among equals, the lowest rank. A thread joins by its first wait; its
 * rank is 64 times the process's GPUSLICE_FAKE_RANK (default 0) plus the number of threads of the
 * process that joined before it. Until GPUSLICE_FAKE_PARTICIPANTS (of the region's creator) threads
 * have joined, all of them wait. A running participant must not block on another one except through
 * the clock. */
#ifndef GPUSLICE_FAKE_CLOCK_H
#define GPUSLICE_FAKE_CLOCK_H

#include <stdint.h>

/* Nanoseconds. */
uint64_t clock_now(void);
/* Return at the given moment or later; never call with the region lock held. */
void clock_wait_until(uint64_t moment_ns);
/* The calling thread takes no part any more (also done for it when it ends). */
void clock_leave(void);
/* A program asks again and again whether something is done: on a virtual clock each question takes
 * a microsecond. */
void clock_poll(void);

#endif
