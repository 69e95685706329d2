/* A bounds-checked reader of an ELF file's dependencies and imports. */
#ifndef GPUSLICE_ELF_IMAGE_H
#define GPUSLICE_ELF_IMAGE_H

#include <stdbool.h>
#include <stddef.h>

/* True when a DT_NEEDED entry is not accepted by `harmless`, an undefined symbol is accepted by
 * `imported`, or the image is not a well-formed 64-bit little-endian ELF file. Never reads outside
 * image[0..size). */
bool elf_image_bypasses(const unsigned char *image, size_t size, bool (*harmless)(const char *),
			bool (*imported)(const char *));

#endif
