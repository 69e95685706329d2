#include "events.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void
events_post(uint32_t card, uint64_t type, uint64_t data, uint32_t gpu_instance,
	    uint32_t compute_instance)
{
	struct region *r = region();
	uint32_t next = atomic_load(&r->event_next);
	r->events[next % MAX_EVENTS] = (struct nvml_event){
	    .sequence = next,
	    .card = card,
	    .type = type,
	    .data = data,
	    .gpu_instance = gpu_instance,
	    .compute_instance = compute_instance,
	};
	atomic_store(&r->event_next, next + 1);
	syscall(SYS_futex, &r->event_next, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void
events_sleep(uint32_t seen, uint32_t milliseconds)
{
	struct timespec limit = {.tv_sec = milliseconds / 1000,
				 .tv_nsec = (long)(milliseconds % 1000) * 1000000};
	syscall(SYS_futex, &region()->event_next, FUTEX_WAIT, seen, &limit, NULL, 0);
}
