/* A plug-in linked to the driver; loaded with RTLD_DEEPBIND it would bind past the preloaded
 * library. */
#include <stddef.h>

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int plugin_allocate(unsigned long long bytes);

int
plugin_allocate(unsigned long long bytes)
{
	void *context = NULL;
	unsigned long long address = 0;
	cuInit(0);
	cuDevicePrimaryCtxRetain(&context, 0);
	cuCtxSetCurrent(context);
	return cuMemAlloc_v2(&address, bytes);
}
