/* The mapping of the state file, its disk space, and the kernel's locks on its bytes, which tell
 * who lives whatever is written in the file. */
#ifndef GPUSLICE_STATE_FILE_H
#define GPUSLICE_STATE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "state.h"

/* Write the header of a new file, or one that was overwritten. */
void state_file_initialise(struct state_file *file);

/* Take disk space for a part of the file. False: the disk is full. */
bool state_file_reserve(off_t at, size_t bytes);

/* Hold one byte until this process ends. False: another process holds it. True where the file
 * system has no such locks. */
bool state_file_hold(off_t at);

enum held { HELD_BY_NOBODY, HELD_BY_OTHERS, HELD_UNKNOWN };
enum held state_file_is_held(off_t at, size_t bytes);

void state_file_postfork_child(void);

#endif
