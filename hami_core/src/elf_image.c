#include "elf_image.h"

#include <elf.h>
#include <stdint.h>
#include <string.h>

struct view {
	const unsigned char *bytes;
	size_t size;
};

static bool
view_read(const struct view *view, uint64_t offset, void *out, size_t length)
{
	if (offset > view->size || length > view->size - offset) {
		return false;
	}
	memcpy(out, view->bytes + offset, length);
	return true;
}

/* A string inside a table, or NULL when it is not terminated inside the file. */
static const char *
view_string(const struct view *view, const Elf64_Shdr *table, uint64_t at)
{
	if (table->sh_offset > view->size || at > view->size - table->sh_offset) {
		return NULL;
	}
	uint64_t start = table->sh_offset + at;
	return memchr(view->bytes + start, '\0', view->size - (size_t)start) == NULL
		   ? NULL
		   : (const char *)view->bytes + start;
}

static bool
section_at(const struct view *view, const Elf64_Ehdr *header, uint64_t index, Elf64_Shdr *section)
{
	return index < header->e_shnum && header->e_shoff <= view->size &&
	       view_read(view, header->e_shoff + index * sizeof *section, section, sizeof *section);
}

static bool
needs_other(const struct view *view, const Elf64_Shdr *dynamic, const Elf64_Shdr *strings,
	    bool (*harmless)(const char *))
{
	Elf64_Dyn entry;
	for (uint64_t at = 0; at + sizeof entry <= dynamic->sh_size; at += sizeof entry) {
		if (dynamic->sh_offset > view->size ||
		    !view_read(view, dynamic->sh_offset + at, &entry, sizeof entry)) {
			return true;
		}
		if (entry.d_tag == DT_NULL) {
			return false;
		}
		const char *name = entry.d_tag == DT_NEEDED
				       ? view_string(view, strings, entry.d_un.d_val)
				       : "libc.so";
		if (name == NULL || !harmless(name)) {
			return true;
		}
	}
	return false;
}

static bool
imports_any(const struct view *view, const Elf64_Shdr *symbols, const Elf64_Shdr *strings,
	    bool (*imported)(const char *))
{
	Elf64_Sym symbol;
	for (uint64_t at = 0; at + sizeof symbol <= symbols->sh_size; at += sizeof symbol) {
		if (symbols->sh_offset > view->size ||
		    !view_read(view, symbols->sh_offset + at, &symbol, sizeof symbol)) {
			return true;
		}
		const char *name = view_string(view, strings, symbol.st_name);
		if (name == NULL || (symbol.st_shndx == SHN_UNDEF && imported(name))) {
			return true;
		}
	}
	return false;
}

bool
elf_image_bypasses(const unsigned char *image, size_t size, bool (*harmless)(const char *),
		   bool (*imported)(const char *))
{
	struct view view = {image, size};
	Elf64_Ehdr header;
	if (!view_read(&view, 0, &header, sizeof header) ||
	    memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
	    header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr) ||
	    header.e_shnum == 0) {
		return true;
	}
	bool seen_dynamic = false;
	for (uint64_t i = 0; i < header.e_shnum; i++) {
		Elf64_Shdr section, strings;
		if (!section_at(&view, &header, i, &section)) {
			return true;
		}
		if (section.sh_type != SHT_DYNAMIC && section.sh_type != SHT_DYNSYM) {
			continue;
		}
		seen_dynamic = true;
		if (!section_at(&view, &header, section.sh_link, &strings) ||
		    (section.sh_type == SHT_DYNAMIC &&
		     needs_other(&view, &section, &strings, harmless)) ||
		    (section.sh_type == SHT_DYNSYM &&
		     imports_any(&view, &section, &strings, imported))) {
			return true;
		}
	}
	return !seen_dynamic;
}
