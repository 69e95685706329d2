/* NVML events: a ring that every event set of every process reads at its own pace. */
#ifndef GPUSLICE_FAKE_EVENTS_H
#define GPUSLICE_FAKE_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "region.h"

enum event_type {
	EVENT_SINGLE_BIT = 0x1,
	EVENT_DOUBLE_BIT = 0x2,
	EVENT_XID = 0x8,
	EVENT_MIG = 0x100,
	EVENT_RECOVERY = 0x8000,
};

/* Lock held. */
void events_post(uint32_t card, uint64_t type, uint64_t data, uint32_t gpu_instance,
		 uint32_t compute_instance);
/* Sleep until another event than `seen` is there, or the time is over. */
void events_sleep(uint32_t seen, uint32_t milliseconds);

#endif
