/* Injected failures, delays and kills: from the environment of one process (GPUSLICE_FAKE_FAULTS,
 * directives separated by ';') and for the whole node from lines appended to <state>/control.
 * docs/reference/inventory.md describes the directives. */
#ifndef GPUSLICE_FAKE_FAULTS_H
#define GPUSLICE_FAKE_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

/* Whether this process has directives of its own; reads the environment once. */
bool faults_in_environment(void);
/* Apply what is due on entry of a call; a nonzero result is the call's answer. */
int faults_enter(const char *symbol);
bool faults_want_leave(const char *symbol);
void faults_leave(const char *symbol);

/* Faults of one card (NVML calls that name it). */
int faults_on_card(const char *symbol, uint32_t card);

/* Read new lines of the control file, at most every few milliseconds. Never with the lock held. */
void control_poll(void);
/* Carry out one directive; false and a reason when it makes no sense. Lock held. */
bool control_apply(const char *line, char *reason, unsigned reason_size);

#endif
