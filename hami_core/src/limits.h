/* What this container may use of each device.
 *
 * Source, first that exists: the read-only file <directory>/limits written by the node daemon; the
 * environment variables of HAMi-core; nothing (then nothing is limited). Once a source exists,
 * anything unreadable in it closes the quota: every allocation is denied, and one line on stderr
 * says why.
 */
#ifndef GPUSLICE_LIMITS_H
#define GPUSLICE_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "layout.h"

enum limits_source { LIMITS_NONE, LIMITS_FILE, LIMITS_ENVIRONMENT, LIMITS_CLOSED };

struct limit {
	uint64_t memory_bytes; /* NO_MEMORY_LIMIT: none; 0: closed */
	uint64_t spill_bytes;  /* managed memory beyond memory_bytes that may live on the host */
	uint32_t core_q16;     /* share of GPU time in 1/65536; 0 or FULL_CORES_Q16: not limited */
	uint32_t core_policy;
	uint32_t priority;
	uint64_t burst_ns;
};

/* Decide on the source. Idempotent; `directory` holds the files, `environment` reads a variable
 * (getenv). */
enum limits_source limits_open(const char *directory, char *(*environment)(const char *));
enum limits_source limits_source(void);

/* Row of a device in the limits file by UUID; -1 when it is not listed. */
int limits_row(const uint8_t uuid[16]);

/* Current limit of a row (file) or of a device index as the container counts them (environment).
 * While the daemon is rewriting, or when what it left is garbled, the last good value holds. */
void limits_read(int row, struct limit *out);

/* The two figures that every allocation needs, without the rest. */
uint64_t limits_memory(int row);
uint64_t limits_spill(int row);

/* Do the environment variables give different devices different limits? Then the caller must find
 * their indices. */
bool limits_environment_by_index(void);

/* Changes with every rewrite of the limits; one load. */
uint32_t limits_sequence(void);
extern const uint32_t *limits_sequence_word;

/* Has the daemon ever published hints for a row? The first time changes limits_sequence too. */
bool limits_hints_are_published(int row);

/* What the daemon last observed for a row; false when nothing usable was published. */
bool limits_hint(int row, struct limits_hint *out);

#endif
