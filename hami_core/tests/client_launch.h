/* The test client's commands that launch kernels. */
#ifndef GPUSLICE_CLIENT_LAUNCH_H
#define GPUSLICE_CLIENT_LAUNCH_H

#include <stdbool.h>

/* One line, read: the command, its operands as words and as numbers, and the line itself. */
struct command {
	char word[24], a[64], b[64];
	unsigned long long x, y, z;
	char *line;
};

/* Answer the command if it is one of these; false: it is not. */
bool client_launch(const struct command *command);

/* What this thread computed, nanoseconds: other programs on the machine do not count. */
long long client_cpu_ns(void);

#endif
