#ifndef GPUSLICE_DEEPBIND_H
#define GPUSLICE_DEEPBIND_H

#include <stdbool.h>

/* Would an object loaded from `path` with RTLD_DEEPBIND bind to the driver or to libc's dlsym
 * directly? True when it imports dlsym, dlopen or a driver symbol, has dependencies beyond the C
 * and C++ runtime (which would be bound in the same way), or cannot be read: enforcement wins over
 * an exotic flag. */
bool deepbind_would_bypass(const char *path);

#endif
