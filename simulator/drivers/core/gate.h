/* Entry of every exported function (assembly built by gen_tables.py) and what hangs on it:
 * call counters, "not initialised", injected faults. */
#ifndef GPUSLICE_FAKE_GATE_H
#define GPUSLICE_FAKE_GATE_H

#include <stdint.h>

#define HIDDEN __attribute__((visibility("hidden")))
#define EXPORTED __attribute__((visibility("default")))

/* Points at 0 when calls go straight through. */
extern _Atomic uint32_t *fake_gate HIDDEN;
extern uint64_t fake_calls[] HIDDEN;
extern const unsigned fake_symbol_count HIDDEN;
extern const char *const fake_symbol_names[] HIDDEN;

/* Body of a symbol that this driver does not implement: counts and answers "not supported". */
int fake_unsupported(unsigned symbol) HIDDEN;

/* Called by the assembly when the gate is shut. Nonzero is returned to the caller at once.
 * return_address may be replaced to regain control when the body is done. */
int fake_gate_enter(unsigned symbol, void **return_address) HIDDEN;
void *fake_gate_leave(void) HIDDEN;

/* Each library's own part. */
extern const int gate_unsupported_code HIDDEN;
/* Nonzero: the call is refused with this code (not initialised, driver gone). */
int gate_refuses(const char *symbol) HIDDEN;

/* Open the gate for an attached, initialised library; shut it again (fork, shutdown). */
void gate_open(void) HIDDEN;
void gate_shut(void) HIDDEN;

#endif
