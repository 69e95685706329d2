/* Decide about RTLD_DEEPBIND from the dynamic section of the file. Reads the file; maps nothing
 * executable. */
#include "deepbind.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "elf_image.h"

static bool
is_runtime_library(const char *name)
{
	static const char *const known[] = {"libc.so",       "libm.so",      "libdl.so",
					    "libpthread.so", "librt.so",     "ld-linux",
					    "libgcc_s",      "libstdc++.so", "libutil.so"};
	for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
		if (strncmp(name, known[i], strlen(known[i])) == 0) {
			return true;
		}
	}
	return false;
}

static bool
is_driver_import(const char *name)
{
	return strcmp(name, "dlsym") == 0 || strcmp(name, "dlvsym") == 0 ||
	       strcmp(name, "dlopen") == 0 ||
	       (name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z') ||
	       strncmp(name, "nvml", 4) == 0;
}

bool
deepbind_would_bypass(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		return true;
	}
	off_t size = lseek(fd, 0, SEEK_END);
	void *image =
	    size > 0 ? mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
	close(fd);
	if (image == MAP_FAILED) {
		return true;
	}
	bool bypass = elf_image_bypasses(image, (size_t)size, is_runtime_library, is_driver_import);
	munmap(image, (size_t)size);
	return bypass;
}
