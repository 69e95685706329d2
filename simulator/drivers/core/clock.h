/* The node's clock. Real: CLOCK_MONOTONIC. Virtual (GPUSLICE_FAKE_CLOCK=virtual when the region is
 * created): time stands still while anybody computes and jumps to the next moment somebody waits
 * for, so that a test's figures do not depend on the machine.
 *
 * Participants of a virtual clock are threads. One runs at a time: of all that are due, the one
 * with the earliest moment and, among equals, the lowest number. A thread joins by its first wait or
 * by gpusliceFakeClockJoin(); until GPUSLICE_FAKE_PARTICIPANTS threads have joined nobody runs. */
#ifndef GPUSLICE_FAKE_CLOCK_H
#define GPUSLICE_FAKE_CLOCK_H

#include <stdint.h>

/* Nanoseconds. */
uint64_t clock_now(void);
/* Return at the given moment or later; never call with the region lock held. */
void clock_wait_until(uint64_t moment_ns);

/* A program asks again and again whether something is done: on a virtual clock each question takes a microsecond. */
void clock_poll(void);

#endif
