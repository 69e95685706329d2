/* Lookups in the generated hook table. No allocation, no locks: usable from any thread at any time.
 */
#include "hooks.h"

#include <string.h>

#include "cuda_abi.h"
#include "driver.h"

static uint32_t
hook_hash(const char *text)
{
	uint32_t value = 0x811c9dc5U;
	for (; *text != '\0'; text++) {
		value = (value ^ (unsigned char)*text) * 0x01000193U;
	}
	return value;
}

const struct hook *
hook_find(const char *symbol)
{
	unsigned size = sizeof(hook_index);
	for (unsigned at = hook_hash(symbol) % size; hook_index[at] != 0; at = (at + 1) % size) {
		const struct hook *candidate = &hook_table[hook_index[at] - 1];
		if (strcmp(candidate->name, symbol) == 0) {
			return candidate;
		}
	}
	return NULL;
}

static bool
mode_matches(enum hook_mode mode, uint64_t flags)
{
	bool per_thread = (flags & CU_PTSZ_FLAG) != 0;
	return mode == HOOK_ANY || (mode == HOOK_PTSZ) == per_thread;
}

static const struct hook *
newest_route(const char *name, int version, uint64_t flags)
{
	const struct hook_route *best = NULL;
	for (unsigned i = 0; i < hook_route_count; i++) {
		const struct hook_route *route = &hook_routes[i];
		if (route->version <= version && mode_matches(route->mode, flags) &&
		    (best == NULL || route->version > best->version) &&
		    strcmp(route->name, name) == 0) {
			best = route;
		}
	}
	return best == NULL ? NULL : &hook_table[best->hook];
}

const struct hook *
hook_route(const char *name, int version, uint64_t flags, void *real)
{
	const struct hook *routed = newest_route(name, version, flags);
	if (routed != NULL && driver_real(routed) == real) {
		return routed;
	}
	for (unsigned i = 0; i < hook_count; i++) {
		const struct hook *hook = &hook_table[i];
		if (!hook->is_nvml && real != NULL && driver_real(hook) == real) {
			return hook;
		}
	}
	return routed;
}
