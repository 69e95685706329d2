/* The three ways to a driver symbol that do not go through the linker: dlsym, cuGetProcAddress and
 * dlopen.
 *
 * Invariant: a name that the driver does not have stays missing, and a name that is not hooked gets
 * exactly what the C library or the driver would have answered. dlsym must leave by a tail call
 * there: glibc takes the *return address* as the caller when the handle is RTLD_NEXT.
 */
#include <dlfcn.h>
#include <string.h>

#include "driver.h"
#include "deepbind.h"
#include "elf_walk.h"
#include "hooks.h"
#include "libc_entry.h"

static const struct hook *
hook_of_name(const char *name)
{
	bool cuda = name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
	bool nvml_name = name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l';
	return cuda || nvml_name ? hook_find(name) : NULL;
}

static __attribute__((noinline)) void *
lookup_hooked(const struct hook *hook, void *handle, const void *caller)
{
	void *real = libc_dlsym()(handle, hook->name);
	if (real == hook->address) {
		/* Found in this library: RTLD_DEFAULT or the main program. Tell the truth about the
		 * driver. */
		void *next = libc_dlsym()(RTLD_NEXT, hook->name);
		return next != NULL || elf_any_symbol(hook->name) != NULL ? hook->address : NULL;
	}
	if (real == NULL || !driver_owns(real) || driver_is_caller(caller)) {
		return real;
	}
	return hook->address;
}

EXPORTED void *
dlsym(void *restrict handle, const char *restrict name)
{
	const struct hook *hook = hook_of_name(name);
	if (hook == NULL) {
		return libc_dlsym()(handle, name);
	}
	return lookup_hooked(hook, handle, __builtin_return_address(0));
}

EXPORTED void *
dlopen(const char *path, int flags)
{
	if (UNLIKELY((flags & RTLD_DEEPBIND) != 0 && path != NULL && deepbind_would_bypass(path))) {
		flags &= ~RTLD_DEEPBIND;
	}
	return libc_dlopen()(path, flags);
}

static void
swap_address(const char *symbol, void **address, int version, uint64_t flags)
{
	if (symbol == NULL || address == NULL || *address == NULL) {
		return;
	}
	const struct hook *hook = hook_route(symbol, version, flags, *address);
	if (hook != NULL) {
		*address = hook->address;
	}
}

EXPORTED cu_result
cuGetProcAddress(const char *symbol, void **address, int version, uint64_t flags)
{
	if (driver()->cuGetProcAddress == NULL) {
		return CU_NOT_SUPPORTED;
	}
	cu_result result = driver()->cuGetProcAddress(symbol, address, version, flags);
	if (result == CU_OK) {
		swap_address(symbol, address, version, flags);
	}
	return result;
}

EXPORTED cu_result
cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags, int *status)
{
	if (driver()->cuGetProcAddress_v2 == NULL) {
		return CU_NOT_SUPPORTED;
	}
	cu_result result = driver()->cuGetProcAddress_v2(symbol, address, version, flags, status);
	if (result == CU_OK) {
		swap_address(symbol, address, version, flags);
	}
	return result;
}
