/* The test client's commands that share memory between processes. */
#ifndef GPUSLICE_CLIENT_SHARE_H
#define GPUSLICE_CLIENT_SHARE_H

#include <stdbool.h>

#include "client_blocks.h"
#include "client_launch.h"

/* Answer the command if it is one of these; `newest` is the block allocated last, or NULL. */
bool client_share(const struct command *command, const struct held *newest);

#endif
