/* One token bucket of GPU nanoseconds per container and device, in shared memory, lock-free.
 *
 * It fills with quota * time up to a burst, and may go below zero: a launch is admitted while it is
 * not negative and then takes its whole cost, so a long kernel leaves a debt that is paid before
 * the next one. A process killed between two steps loses at most the refill of one step.
 */
#ifndef GPUSLICE_BUCKET_H
#define GPUSLICE_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "layout.h"

/* Bring the bucket up to now_ns and return what is in it. quota_q16: share in 1/65536, 1..65536. */
int64_t bucket_refill(struct state_device *row, int64_t now_ns, uint32_t quota_q16,
		      int64_t burst_ns);

/* Take cost_ns if the bucket is not negative. */
bool bucket_take(struct state_device *row, int64_t cost_ns);

/* Correct by a measured error: positive gives back. */
void bucket_correct(struct state_device *row, int64_t ns);

/* How long until the bucket is no longer negative. */
int64_t bucket_wait_ns(int64_t tokens_ns, uint32_t quota_q16);

#endif
