#include "real_library.h"

#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "elf_walk.h"

static char beside_self[512];

static int
find_self(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	(void)data;
	if (!elf_object_holds(info, (const void *)(uintptr_t)find_self)) {
		return 0;
	}
	const char *slash = strrchr(info->dlpi_name, '/');
	if (slash != NULL && strncmp(slash + 1, "libcuda.so", 10) == 0) {
		snprintf(beside_self, sizeof beside_self, "%.*s/real/libcuda.so.1",
			 (int)(slash - info->dlpi_name), info->dlpi_name);
	}
	return 1;
}

const char *
real_library_path(void)
{
	const char *path = getenv("GPUSLICE_REAL_LIBCUDA");
	if (path != NULL && path[0] == '/') {
		return path;
	}
	if (beside_self[0] == '\0') {
		dl_iterate_phdr(find_self, NULL);
	}
	return beside_self[0] != '\0' ? beside_self : "libcuda.so.1";
}
