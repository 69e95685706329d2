/* The generated table of hooked entry points, and lookups in it. */
#ifndef GPUSLICE_HOOKS_H
#define GPUSLICE_HOOKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

struct hook {
	const char *name;
	void *address;        /* our function */
	uint16_t real_offset; /* of the real one in struct driver_table or nvml_table */
	bool is_nvml;
};

enum hook_mode { HOOK_ANY, HOOK_LEGACY, HOOK_PTSZ };

/* How cuGetProcAddress hands a hooked symbol out. */
struct hook_route {
	const char *name;
	int version;
	enum hook_mode mode;
	unsigned hook;
};

extern const struct hook hook_table[];
extern const unsigned hook_count;
extern const uint8_t hook_index[512];
extern const struct hook_route hook_routes[];
extern const unsigned hook_route_count;
extern const char *const driver_names[];
extern const unsigned driver_name_count;
extern const char *const nvml_names[];
extern const unsigned nvml_name_count;

/* The hook of an ELF symbol name, or NULL. */
const struct hook *hook_find(const char *symbol);

/* The hook for what cuGetProcAddress(name, version, flags) answers when the driver answered `real`,
 * or NULL when the caller must get `real` itself. The newest route that is not newer than `version`
 * wins, as in the driver. */
const struct hook *hook_route(const char *name, int version, uint64_t flags, void *real);

#endif
