/* The C library's own functions that this library overrides or must find without a version. */
#ifndef GPUSLICE_LIBC_ENTRY_H
#define GPUSLICE_LIBC_ENTRY_H

typedef void *(*dlsym_function)(void *, const char *);
typedef void *(*dlopen_function)(const char *, int);

/* Never NULL in a process that has a dynamic C library. */
dlsym_function libc_dlsym(void);
dlopen_function libc_dlopen(void);

#endif
