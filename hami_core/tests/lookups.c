/* Prints who answers when a program looks driver symbols up in the many ways that there are.
 *
 *   lookups queries FILE     lines "name ver=N flags=F" through cuGetProcAddress_v2:  name N F
 * result status owner symbol lookups names NAME…      dlsym on the driver's handle: name owner
 * symbol lookups ways             RTLD_NEXT, RTLD_DEFAULT, another library, repeated:      way
 * owner symbol lookups deepbind FILE    a plug-in loaded with RTLD_DEEPBIND that calls cuMemAlloc:
 * result lookups signals          what CUDA's start did to umask and handlers: unchanged|changed
 *   lookups time COUNT       nanoseconds of one dlsym of a hooked name
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

typedef int (*get_proc_v2)(const char *, void **, int, unsigned long long, int *);
typedef int (*init_function)(unsigned);

static void
print_owner(const void *address)
{
	Dl_info info;
	if (address == NULL || dladdr(address, &info) == 0) {
		printf("none none\n");
		return;
	}
	const char *slash = strrchr(info.dli_fname, '/');
	printf("%s %s\n", slash != NULL ? slash + 1 : info.dli_fname,
	       info.dli_sname != NULL ? info.dli_sname : "?");
}

static int
queries(void *cuda, const char *path)
{
	get_proc_v2 get = (get_proc_v2)dlsym(cuda, "cuGetProcAddress_v2");
	FILE *file = fopen(path, "r");
	char line[256], name[128];
	int version;
	unsigned long long flags;
	while (file != NULL && fgets(line, sizeof line, file) != NULL) {
		if (sscanf(line, "%127s ver=%d flags=%llu", name, &version, &flags) != 3) {
			continue;
		}
		void *address = NULL;
		int status = -1;
		int result = get(name, &address, version, flags, &status);
		printf("%s %d %llu %d %d ", name, version, flags, result, status);
		print_owner(address);
	}
	return 0;
}

static int
ways(void *cuda)
{
	void *other = dlopen(getenv("LOOKUPS_OTHER"), RTLD_NOW | RTLD_LOCAL);
	printf("handle ");
	print_owner(dlsym(cuda, "cuMemAlloc_v2"));
	printf("next ");
	print_owner(dlsym(RTLD_NEXT, "cuMemAlloc_v2"));
	printf("default ");
	print_owner(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
	printf("missing ");
	print_owner(dlsym(cuda, "cuNoSuchFunction"));
	printf("other ");
	print_owner(dlsym(other, "cuMemAlloc_v2"));
	for (int i = 0; i < 2; i++) {
		printf("malloc%d ", i);
		print_owner(dlsym(RTLD_NEXT, "malloc"));
	}
	void *(*inside)(const char *) = (void *(*)(const char *))dlsym(other, "look_up_next");
	printf("inside ");
	print_owner(inside != NULL ? inside("only_in_next") : NULL);
	return 0;
}

static int
deepbind(const char *path)
{
	void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
	int (*allocate)(unsigned long long) =
	    plugin == NULL ? NULL : (int (*)(unsigned long long))dlsym(plugin, "plugin_allocate");
	printf("%d\n", allocate == NULL ? -1 : allocate(8ULL << 30));
	return 0;
}

static void
on_signal(int number)
{
	(void)number;
}

static int
signals(void *cuda)
{
	mode_t mask = umask(027);
	umask(027);
	signal(SIGUSR1, on_signal);
	signal(SIGUSR2, on_signal);
	((init_function)dlsym(cuda, "cuInit"))(0);
	struct sigaction one, two;
	sigaction(SIGUSR1, NULL, &one);
	sigaction(SIGUSR2, NULL, &two);
	mode_t after = umask(mask);
	printf("%s\n", after == 027 && one.sa_handler == on_signal && two.sa_handler == on_signal
			   ? "unchanged"
			   : "changed");
	return 0;
}

static int
time_lookups(void *cuda, long count)
{
	struct timespec a, b;
	clock_gettime(CLOCK_MONOTONIC, &a);
	for (long i = 0; i < count; i++) {
		if (dlsym(cuda, "cuMemAlloc_v2") == NULL) {
			return 1;
		}
	}
	clock_gettime(CLOCK_MONOTONIC, &b);
	printf("%.1f\n", ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) /
			     (double)count);
	return 0;
}

int
main(int count, char **words)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	const char *what = count > 1 ? words[1] : "";
	if (cuda == NULL) {
		return 1;
	}
	if (strcmp(what, "queries") == 0) {
		return queries(cuda, words[2]);
	}
	for (int i = 2; strcmp(what, "names") == 0 && i < count; i++) {
		printf("%s ", words[i]);
		print_owner(dlsym(cuda, words[i]));
	}
	if (strcmp(what, "ways") == 0) {
		return ways(cuda);
	}
	if (strcmp(what, "deepbind") == 0) {
		return deepbind(words[2]);
	}
	if (strcmp(what, "signals") == 0) {
		return signals(cuda);
	}
	return strcmp(what, "time") == 0 ? time_lookups(cuda, atol(words[2])) : 0;
}
