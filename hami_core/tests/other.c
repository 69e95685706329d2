/* A library with a function of the driver's name that is not the driver's, and one that asks for
 * the next definition of a name from where it stands. */
#define _GNU_SOURCE
#include <dlfcn.h>

int cuMemAlloc_v2(unsigned long long *address, unsigned long bytes);
void *look_up_next(const char *name);
int only_in_next(void);

int
cuMemAlloc_v2(unsigned long long *address, unsigned long bytes)
{
	*address = bytes;
	return 4242;
}

int
only_in_next(void)
{
	return 1;
}

/* RTLD_NEXT from here must not find this library's own definition again. */
void *
look_up_next(const char *name)
{
	return dlsym(RTLD_NEXT, name);
}
