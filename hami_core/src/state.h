/* The read-write file that all processes of one allocation share: device rows and process slots.
 *
 * Lock order: header.registry_mutex, then a device's alloc_mutex. Both are robust.
 */
#ifndef GPUSLICE_STATE_H
#define GPUSLICE_STATE_H

#include <stdbool.h>

#include "layout.h"

/* Map the file, making it if it is not there. False (with a line on stderr) when that is
 * impossible. */
bool state_open(const char *path);

/* Row of a device, taken on first sight; NULL when all 16 are taken by others. */
struct state_device *state_device(const uint8_t uuid[16]);
unsigned state_device_index(const struct state_device *device);

/* This process's slot, taken on first call; NULL when 1,024 live processes hold theirs. */
struct slot *state_slot(void);

/* Lock a device row; repairs used_bytes when the last holder died inside. False: the row is beyond
 * repair. */
bool state_lock(struct state_device *device);
void state_unlock(struct state_device *device);

/* Free the slots of dead processes and give back what they held. Returns how many. */
unsigned state_reap(void);

/* The whole file, or NULL before state_open. */
struct state_file *state_file(void);

/* Is it a process of this allocation, by the pid we know it under or by the host's? */
bool state_owns_pid(uint32_t pid);

/* Sum over the kinds of what a slot holds of a device. */
uint64_t state_slot_bytes(const struct slot *slot, unsigned device);

#endif
