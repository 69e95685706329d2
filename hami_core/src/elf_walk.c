/* Symbol lookup over dl_iterate_phdr. Threads: any; the loader holds its own lock during the walk.
 */
#include "elf_walk.h"

#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <string.h>

struct object {
	ElfW(Addr) base;
	const ElfW(Sym) * symbols;
	const char *strings;
	const uint32_t *gnu_hash;
	const uint32_t *sysv_hash;
};

/* glibc relocates these pointers in place, musl and the vDSO do not. */
static const void *
relocated(ElfW(Addr) base, ElfW(Addr) pointer)
{
	return (const void *)(pointer < base ? base + pointer : pointer);
}

static bool
object_open(const struct dl_phdr_info *info, struct object *object)
{
	const ElfW(Dyn) *dynamic = NULL;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC) {
			dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
		}
	}
	*object = (struct object){.base = info->dlpi_addr};
	for (; dynamic != NULL && dynamic->d_tag != DT_NULL; dynamic++) {
		const void *value = relocated(object->base, dynamic->d_un.d_ptr);
		if (dynamic->d_tag == DT_SYMTAB) {
			object->symbols = value;
		} else if (dynamic->d_tag == DT_STRTAB) {
			object->strings = value;
		} else if (dynamic->d_tag == DT_GNU_HASH) {
			object->gnu_hash = value;
		} else if (dynamic->d_tag == DT_HASH) {
			object->sysv_hash = value;
		}
	}
	return object->symbols != NULL && object->strings != NULL;
}

static void *
symbol_address(const struct object *object, uint32_t index, const char *name)
{
	const ElfW(Sym) *symbol = &object->symbols[index];
	if (symbol->st_shndx == SHN_UNDEF || (symbol->st_info & 0xf) > STT_FUNC ||
	    strcmp(object->strings + symbol->st_name, name) != 0) {
		return NULL;
	}
	return (void *)(object->base + symbol->st_value);
}

static void *
find_by_gnu_hash(const struct object *object, const char *name)
{
	uint32_t hash = 5381;
	for (const char *c = name; *c != '\0'; c++) {
		hash = hash * 33 + (unsigned char)*c;
	}
	const uint32_t *table = object->gnu_hash;
	uint32_t buckets = table[0];
	uint32_t first = table[1];
	const uint32_t *bucket = (const uint32_t *)((const ElfW(Addr) *)(table + 4) + table[2]);
	const uint32_t *chain = bucket + buckets;
	uint32_t index = buckets == 0 ? 0 : bucket[hash % buckets];
	if (index < first) {
		return NULL;
	}
	for (;; index++) {
		uint32_t value = chain[index - first];
		if ((value | 1) == (hash | 1)) {
			void *address = symbol_address(object, index, name);
			if (address != NULL) {
				return address;
			}
		}
		if ((value & 1) != 0) {
			return NULL;
		}
	}
}

static void *
find_in(const struct object *object, const char *name)
{
	if (object->gnu_hash != NULL) {
		return find_by_gnu_hash(object, name);
	}
	if (object->sysv_hash == NULL) {
		return NULL;
	}
	for (uint32_t i = 1; i < object->sysv_hash[1]; i++) {
		void *address = symbol_address(object, i, name);
		if (address != NULL) {
			return address;
		}
	}
	return NULL;
}

static struct elf_range
object_range(const struct dl_phdr_info *info)
{
	struct elf_range range = {UINTPTR_MAX, 0};
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
		if (segment->p_type == PT_LOAD) {
			uintptr_t low = info->dlpi_addr + segment->p_vaddr;
			range.low = low < range.low ? low : range.low;
			range.high = low + segment->p_memsz > range.high ? low + segment->p_memsz
									 : range.high;
		}
	}
	return range;
}

static bool
range_holds(struct elf_range range, const void *address)
{
	return (uintptr_t)address >= range.low && (uintptr_t)address < range.high;
}

bool
elf_object_holds(const struct dl_phdr_info *info, const void *address)
{
	return range_holds(object_range(info), address);
}

static const char *
base_name(const char *path)
{
	const char *slash = path == NULL ? NULL : strrchr(path, '/');
	return slash != NULL ? slash + 1 : (path == NULL ? "" : path);
}

static bool
is_libc(const char *path)
{
	const char *name = base_name(path);
	return strncmp(name, "libc.so", 7) == 0 || strncmp(name, "libc-2", 6) == 0 ||
	       strncmp(name, "libdl", 5) == 0 || strncmp(name, "libpthread", 10) == 0 ||
	       strncmp(name, "ld-musl", 7) == 0 || strncmp(name, "libc.musl", 9) == 0;
}

struct search {
	const char *name;
	bool libc_only;
	void *found;
};

static int
search_object(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	struct search *search = data;
	struct object object;
	if ((search->libc_only && !is_libc(info->dlpi_name)) ||
	    range_holds(object_range(info), (const void *)(uintptr_t)search_object) ||
	    !object_open(info, &object)) {
		return 0;
	}
	search->found = find_in(&object, search->name);
	return search->found != NULL;
}

void *
elf_any_symbol(const char *name)
{
	struct search search = {name, false, NULL};
	dl_iterate_phdr(search_object, &search);
	return search.found;
}

void *
elf_libc_symbol(const char *name)
{
	struct search search = {name, true, NULL};
	dl_iterate_phdr(search_object, &search);
	return search.found != NULL ? search.found : elf_any_symbol(name);
}

struct owner {
	const void *address;
	const char *prefix;
	struct elf_range range;
	bool matches;
};

static int
owner_object(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	struct owner *owner = data;
	struct elf_range range = object_range(info);
	if (!range_holds(range, owner->address)) {
		return 0;
	}
	owner->range = range;
	owner->matches =
	    strncmp(base_name(info->dlpi_name), owner->prefix, strlen(owner->prefix)) == 0;
	return 1;
}

bool
elf_owner_is(const void *address, const char *prefix, struct elf_range *range)
{
	struct owner owner = {address, prefix, {0, 0}, false};
	dl_iterate_phdr(owner_object, &owner);
	*range = owner.range;
	return owner.matches;
}
