/* The grammar of fault directives; no state, no side effects.
 *
 *   fail SYMBOL CODE [card N] [after N] [times N]    answer CODE instead of running the call
 *   slow SYMBOL MICROSECONDS [card N] [after N] [times N]
 *   kill SYMBOL [after N]                            SIGKILL the caller before the call
 *   kill-after SYMBOL [after N]                      SIGKILL the caller once the call is done
 *
 * SYMBOL is an exported name; a trailing '*' matches every name that begins so. */
#ifndef GPUSLICE_FAKE_FAULT_RULES_H
#define GPUSLICE_FAKE_FAULT_RULES_H

#include <stdbool.h>

#include "region.h"

bool fault_parse(const char *line, struct fault *out, char *reason, unsigned reason_size);
/* Put a rule into the first free place of MAX_FAULTS; false when there is none. */
bool fault_add(struct fault *faults, const struct fault *fault);
bool fault_matches(const struct fault *fault, const char *symbol);

#endif
