/* In place of lookup_hooks.c where the library is linked into a program that sanitizers watch: they
 * need the C library's own dlsym. */
#include "cuda_abi.h"

cu_result
cuGetProcAddress(const char *symbol, void **address, int version, uint64_t flags)
{
	(void)symbol, (void)address, (void)version, (void)flags;
	return CU_NOT_SUPPORTED;
}

cu_result
cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags, int *status)
{
	(void)status;
	return cuGetProcAddress(symbol, address, version, flags);
}
