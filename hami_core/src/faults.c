#include "faults.h"

#ifdef GPUSLICE_FAULTS
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void
fault_point(const char *name)
{
	static int passed;
	const char *wanted = getenv("GPUSLICE_FAULT");
	size_t length = strlen(name);
	if (wanted == NULL || strncmp(wanted, name, length) != 0 ||
	    (wanted[length] != '\0' && wanted[length] != ':')) {
		return;
	}
	int turn = wanted[length] == ':' ? atoi(wanted + length + 1) : 1;
	if (__atomic_add_fetch(&passed, 1, __ATOMIC_RELAXED) == turn) {
		kill(getpid(), SIGKILL);
	}
}
#else
typedef int faults_are_compiled_out;
#endif
