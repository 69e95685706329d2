/* Who holds how much of a device: the shared figures of a row, and this process's own part.
 *
 * The shared file can be damaged by anything in the container, so this process keeps what it holds
 * in memory of its own, and every change first compares: damage to its own slot, to the row's sum
 * or to the row's name is repaired from that. What others hold is summed up from their slots. A
 * slot that does not fit its check word while its process lives makes the row doubtful, and a
 * doubtful row grants nothing until that process has put its slot right or has ended.
 *
 * Invariant: used_bytes of a row that is not doubtful >= the sum of what living processes hold.
 */
#ifndef GPUSLICE_BOOKS_H
#define GPUSLICE_BOOKS_H

#include <stdbool.h>
#include <stdint.h>

#include "layout.h"

/* The device that a row stands for in this process; before anything is charged there. */
void books_name(unsigned row, const uint8_t uuid[16]);

/* Reserve bytes if with them no more than `limit` is used, and the row is not doubtful. */
enum reserved { RESERVED, REFUSED, REFUSED_IN_DOUBT };
enum reserved books_reserve(unsigned row, unsigned kind, uint64_t bytes, uint64_t limit);

/* Count more (or less, never below zero) without asking. */
void books_change(unsigned row, unsigned kind, int64_t bytes);

/* Turn bytes of one kind into another. */
void books_convert(unsigned row, unsigned from, unsigned to, uint64_t bytes);

/* Others may use so much memory of this process, or this process uses so much of others' (negative:
 * no longer). */
void books_exported(unsigned row, int64_t bytes);
void books_imported(unsigned row, int64_t bytes);

/* What this process holds. */
uint64_t books_held(unsigned row, unsigned kind);
uint64_t books_held_total(unsigned row);

/* Write this process's slot anew, under its new place or its old one. Registry lock held. */
void books_restore(struct slot *slot);

/* Empty a dead process's slot but for memory that the living still use: of what it exported, as
 * much as they import. The sums still count what it held. `dead`: which slots are. Registry lock
 * held. */
enum emptied { EMPTIED, EMPTIED_IN_PART, EMPTIED_NOTHING };
enum emptied books_empty(struct slot *slot, const bool dead[MAX_SLOTS]);

/* Count all rows again. Registry lock held. */
void books_recount_all(void);

/* Count a doubtful row again. True: it is not doubtful now. Registry lock held. */
bool books_recount(unsigned row);

/* Does the slot fit its check words? */
bool books_slot_is_intact(const struct slot *slot);

/* Write the check word of a row that nobody has used. */
void books_open_row(struct state_device *device);

/* A word for an identity or a figure beside which it stands. Never 0. */
uint64_t books_check(uint64_t value, uint64_t other);

#endif
