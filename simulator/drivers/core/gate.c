#include "gate.h"

#include <stddef.h>

#include "faults.h"
#include "region.h"

void fake_gate_after(void) HIDDEN;

static _Atomic uint32_t shut = 1;
_Atomic uint32_t *fake_gate = &shut;

enum { DEPTH = 16 };
static __thread void *returns[DEPTH];
static __thread unsigned depth;
static __thread unsigned symbols[DEPTH];

int
fake_unsupported(unsigned symbol)
{
	(void)symbol;
	return gate_unsupported_code;
}

void
gate_open(void)
{
	fake_gate = faults_in_environment() ? &shut : &region()->armed;
}

void
gate_shut(void)
{
	fake_gate = &shut;
}

int
fake_gate_enter(unsigned symbol, void **return_address)
{
	const char *name = fake_symbol_names[symbol];
	int refused = gate_refuses(name);
	if (refused != 0 || region() == NULL) {
		return refused;
	}
	int code = faults_enter(name);
	if (code == 0 && faults_want_leave(name) && depth < DEPTH) {
		returns[depth] = *return_address;
		symbols[depth] = symbol;
		depth++;
		*return_address = (void *)fake_gate_after;
	}
	return code;
}

void *
fake_gate_leave(void)
{
	depth--;
	faults_leave(fake_symbol_names[symbols[depth]]);
	return returns[depth];
}
