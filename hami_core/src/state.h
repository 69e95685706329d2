/* The read-write file that all processes of one allocation share: device rows and process slots.
 *
 * Anything in the container can write to it, so nothing read from it is trusted: indices and counts
 * are bounded, locks (robust.h) hold nobody up, and the figures carry check words (books.h). That a
 * process lives is known from its pid and, where its slot is damaged, from the kernel's lock on the
 * slot's first byte.
 *
 * Lock order: header.registry_lock, then a device's alloc_lock.
 */
#ifndef GPUSLICE_STATE_H
#define GPUSLICE_STATE_H

#include <stdbool.h>

#include "layout.h"

/* Map the file, making it if it is not there. `ours`: the path is gpuslice's own, so a header that
 * makes no sense is damage and is written anew. False (with a line on stderr) when that is
 * impossible. */
bool state_open(const char *path, bool ours);

/* Row of a device, taken on first sight; NULL when all 16 are taken by others. */
struct state_device *state_device(const uint8_t uuid[16]);
unsigned state_device_index(const struct state_device *device);

/* What header.row_identity holds for a device. Never 0. */
uint64_t state_identity(const uint8_t uuid[16]);

/* This process's slot, taken on first call and put right when it was overwritten; NULL when 1,024
 * live processes hold theirs. */
struct slot *state_slot(void);

/* The same without taking one. */
struct slot *state_own_slot(void);

/* Free the slots of dead processes and give back what they held. Returns how many. */
unsigned state_reap(void);

/* A row was doubtful and something was refused: count again while nobody claims a slot. True: it is
 * not doubtful now. */
bool state_recount(struct state_device *device);

/* The whole file, or NULL before state_open. */
struct state_file *state_file(void);

/* How many slots have ever been taken, at most MAX_SLOTS. */
uint32_t state_slot_count(void);

/* Do the number of slots and their owners fit the header's check word? */
bool state_seal_is_good(void);

/* Asked of the kernel: which slots belong to other living processes (or to another copy of this
 * library), whatever is written in them. */
void state_held_slots(bool held[MAX_SLOTS]);

/* Is it a process of this allocation, by the pid we know it under or by the host's? */
bool state_owns_pid(uint32_t pid);

/* Sum over the kinds of what a slot holds of a device. */
uint64_t state_slot_bytes(const struct slot *slot, unsigned device);

#endif
