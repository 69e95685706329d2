/* Ask cuGetProcAddress_v2 for every "NAME VERSION FLAGS" of a file; print NAME and the symbol of
 * this driver it found. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

int
main(int argc, char **argv)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	int (*ask)(const char *, void **, int, uint64_t, int *) = NULL;
	char name[128];
	int version = 0, flags = 0;
	FILE *file = argc > 1 ? fopen(argv[1], "r") : NULL;
	if (library == NULL || file == NULL) {
		return 2;
	}
	*(void **)&ask = dlsym(library, "cuGetProcAddress_v2");
	while (fscanf(file, "%127s %d %d", name, &version, &flags) == 3) {
		void *address = NULL;
		int status = -1;
		Dl_info info = {0};
		int result = ask(name, &address, version, (uint64_t)flags, &status);
		if (result != 0) {
			printf("%s invalid\n", name);
		} else if (address == NULL) {
			printf("%s %s\n", name, status == 2 ? "version" : "missing");
		} else {
			dladdr(address, &info);
			printf("%s %s\n", name, info.dli_sname);
		}
	}
	fclose(file);
	return 0;
}
