#ifndef GPUSLICE_REAL_LIBRARY_H
#define GPUSLICE_REAL_LIBRARY_H

/* What to load as the real driver: GPUSLICE_REAL_LIBCUDA if it is an absolute path; else
 * "libcuda.so.1", or, when this object itself is called so (the replacement), <its
 * directory>/real/libcuda.so.1. */
const char *real_library_path(void);

#endif
