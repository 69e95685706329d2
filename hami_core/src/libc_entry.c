#include "libc_entry.h"

#include <stddef.h>

#include "elf_walk.h"

static void *
cached_symbol(void **cache, const char *name)
{
	void *address = __atomic_load_n(cache, __ATOMIC_ACQUIRE);
	if (address == NULL) {
		address = elf_libc_symbol(name);
		__atomic_store_n(cache, address, __ATOMIC_RELEASE);
	}
	return address;
}

dlsym_function
libc_dlsym(void)
{
	static void *cache;
	return (dlsym_function)cached_symbol(&cache, "dlsym");
}

dlopen_function
libc_dlopen(void)
{
	static void *cache;
	return (dlopen_function)cached_symbol(&cache, "dlopen");
}
