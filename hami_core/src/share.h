/* The share of a device that is in force at this moment: limits, policy, and what the node says
 * about neighbours. */
#ifndef GPUSLICE_SHARE_H
#define GPUSLICE_SHARE_H

#include <stdint.h>

#include "limits.h"

#define SHARE_UNLIMITED 0U
#define DEFAULT_BURST_NS 10000000LL

/* Share in 1/65536, or SHARE_UNLIMITED. hint: NULL or what limits_hint gave; hints older than two
 * seconds are ignored, so that a soft limit is a hard one while nobody watches the neighbours. */
uint32_t share_in_force(const struct limit *limit, const struct limits_hint *hint, int64_t now_ns);

#endif
