/* Finds the real driver: GPUSLICE_REAL_LIBCUDA, else the file beside this one under
 * real/libcuda.so.1. */
#include "replacement.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_abi.h"
#include "elf_walk.h"
#include "libc_entry.h"
#include "log.h"
#include "real_library.h"

static int
not_supported(void)
{
	return CU_NOT_SUPPORTED;
}

static void *
real_handle(void)
{
	static void *handle;
	void *known = __atomic_load_n(&handle, __ATOMIC_ACQUIRE);
	if (known == NULL) {
		known = libc_dlopen()(real_library_path(), RTLD_NOW | RTLD_LOCAL);
		__atomic_store_n(&handle, known, __ATOMIC_RELEASE);
		if (known == NULL) {
			log_line(LOG_ERROR,
				 "%s cannot be loaded: set GPUSLICE_REAL_LIBCUDA to the driver's "
				 "library",
				 real_library_path());
		}
	}
	return known;
}

void *
replacement_resolve(uint32_t number)
{
	void *handle = real_handle();
	void *address = handle == NULL ? NULL : libc_dlsym()(handle, replacement_names[number]);
	if (address == NULL) {
		address = (void *)not_supported;
	}
	__atomic_store_n(&replacement_slots[number], address, __ATOMIC_RELEASE);
	return address;
}
