/* Find symbols and owners among the loaded objects without dlsym.
 *
 * Why: the library exports its own dlsym, must not depend on the glibc version for the real one
 * (its symbol version moved in 2.34), and must still load under musl, which has neither dlvsym nor
 * __register_atfork.
 */
#ifndef GPUSLICE_ELF_WALK_H
#define GPUSLICE_ELF_WALK_H

#include <link.h>
#include <stdbool.h>
#include <stdint.h>

struct elf_range {
	uintptr_t low, high;
};

/* Address of `name` in libc (or libdl of an old glibc, or musl); NULL if no loaded object other
 * than this one has it. Objects whose file name says that they are the C library win over earlier
 * ones that interpose the symbol. */
void *elf_libc_symbol(const char *name);

/* Address of `name` in any loaded object other than this one, first in load order; NULL if there is
 * none. */
void *elf_any_symbol(const char *name);

/* Does the object that holds `address` have a file name that begins with `prefix`? Fills `range`
 * when it does. */
bool elf_owner_is(const void *address, const char *prefix, struct elf_range *range);

/* Is the address inside this loaded object? */
bool elf_object_holds(const struct dl_phdr_info *info, const void *address);

#endif
