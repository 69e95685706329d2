/* Any image is accepted: PTX text (its .entry names are known), cubin, fatbin. Nothing is compiled.
 */
#include "modules.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"

static const uint64_t MODULE_MAGIC = 0x656c75646f6d7067ULL;
static const uint64_t FUNCTION_MAGIC = 0x6e6f6974636e7566ULL;
static const uint64_t BY_INVENTORY = UINT64_MAX;

struct global {
	char *name;
	struct block *block;
	struct global *next;
};

struct module {
	uint64_t magic;
	struct context *context; /* NULL: a library not yet used in a context */
	char *ptx;               /* a copy when the image was PTX text */
	uint64_t code_bytes;     /* charged */
	struct function *functions;
	struct global *globals;
	struct module *next, *previous;
};

static struct module *modules; /* all that are loaded */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static struct module *
module_checked(void *handle)
{
	struct module *module = handle;
	return module != NULL && module->magic == MODULE_MAGIC ? module : NULL;
}

struct function *
function_checked(void *handle)
{
	struct function *function = handle;
	return function != NULL && function->magic == FUNCTION_MAGIC ? function : NULL;
}

/* Environment GPUSLICE_FAKE_KERNEL_NS replaces the inventory's default time for this process. */
static uint64_t
default_time(uint64_t blocks)
{
	static _Atomic uint64_t own = UINT64_MAX - 1;
	uint64_t value = atomic_load_explicit(&own, memory_order_relaxed);
	if (value == UINT64_MAX - 1) {
		const char *text = getenv("GPUSLICE_FAKE_KERNEL_NS");
		value = text != NULL && isdigit((unsigned char)*text) ? strtoull(text, NULL, 10)
								      : UINT64_MAX;
		atomic_store(&own, value);
	}
	if (value != UINT64_MAX) {
		return value;
	}
	return region()->inventory.kernel_ns + blocks * region()->inventory.block_ns;
}

uint64_t
function_time(const struct function *function, uint64_t blocks, void **parameters)
{
	if (function->from_argument && parameters != NULL && parameters[0] != NULL) {
		uint64_t ns = 0;
		memcpy(&ns, parameters[0], sizeof ns);
		return ns;
	}
	return function->fixed_ns != BY_INVENTORY ? function->fixed_ns : default_time(blocks);
}

static void
read_time(struct function *function)
{
	static const struct {
		const char *unit;
		uint64_t ns;
	} units[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}};
	function->fixed_ns = BY_INVENTORY;
	function->from_argument = strstr(function->name, "_argns") != NULL;
	for (const char *at = strchr(function->name, '_'); at != NULL; at = strchr(at + 1, '_')) {
		char *end = NULL;
		unsigned long long value =
		    isdigit((unsigned char)at[1]) ? strtoull(at + 1, &end, 10) : 0;
		for (unsigned i = 0; end != NULL && i < 3; i++) {
			bool ends = strncmp(end, units[i].unit, 2) == 0 &&
				    (end[2] == '\0' || end[2] == '_');
			function->fixed_ns = ends ? value * units[i].ns : function->fixed_ns;
		}
	}
}

/* Whether the PTX text defines an entry or variable of this name. */
static bool
ptx_defines(const char *ptx, const char *directive, const char *name)
{
	size_t length = strlen(name);
	for (const char *at = strstr(ptx, directive); at != NULL; at = strstr(at + 1, directive)) {
		const char *line_end = at + strcspn(at, "\n;{");
		for (const char *found = strstr(at, name); found != NULL && found < line_end;
		     found = strstr(found + 1, name)) {
			char after = found[length];
			bool starts = !isalnum((unsigned char)found[-1]) && found[-1] != '_' &&
				      found[-1] != '$';
			if (starts && !isalnum((unsigned char)after) && after != '_' &&
			    after != '$') {
				return true;
			}
		}
	}
	return false;
}

static cu_result
module_load(struct module **out, const void *image, struct context *context)
{
	if (out == NULL || image == NULL) {
		return CU_INVALID_VALUE;
	}
	struct module *module = calloc(1, sizeof *module);
	if (module == NULL) {
		return CU_OUT_OF_MEMORY;
	}
	const char *text = image;
	bool is_ptx = text[0] == '/' || text[0] == '.' || text[0] == '\n' || text[0] == ' ' ||
		      text[0] == '\t';
	module->magic = MODULE_MAGIC;
	module->context = context;
	module->ptx = is_ptx ? strdup(text) : NULL;
	module->code_bytes = memory_physical(is_ptx ? strlen(text) : 1);
	if (context != NULL && !ledger_charge(context->domain, KIND_MODULE, module->code_bytes)) {
		free(module->ptx);
		free(module);
		return CU_OUT_OF_MEMORY;
	}
	pthread_mutex_lock(&mutex);
	module->next = modules;
	if (modules != NULL) {
		modules->previous = module;
	}
	modules = module;
	pthread_mutex_unlock(&mutex);
	*out = module;
	return CU_OK;
}

/* Destroying a context unloads its modules; their handles are dead but may still be handed in.
 * Globals went with the context's memory. */
void
modules_leave_context(const struct context *context)
{
	pthread_mutex_lock(&mutex);
	for (struct module *module = modules; module != NULL; module = module->next) {
		if (module->context != context) {
			continue;
		}
		ledger_refund(context->domain, KIND_MODULE, module->code_bytes);
		module->context = NULL;
		while (module->globals != NULL) {
			struct global *global = module->globals;
			module->globals = global->next;
			free(global->name);
			free(global);
		}
	}
	pthread_mutex_unlock(&mutex);
}

static void
module_unlink(struct module *module)
{
	if (module->previous != NULL) {
		module->previous->next = module->next;
	} else {
		modules = module->next;
	}
	if (module->next != NULL) {
		module->next->previous = module->previous;
	}
}

static void
module_free(struct module *module)
{
	while (module->globals != NULL) {
		struct global *global = module->globals;
		module->globals = global->next;
		if (block_at(global->block->address) == global->block) {
			memory_release(global->block);
		}
		free(global->name);
		free(global);
	}
	while (module->functions != NULL) {
		struct function *function = module->functions;
		module->functions = function->next;
		function->magic = 0;
		free(function->name);
		free(function);
	}
	if (module->context != NULL) {
		ledger_refund(module->context->domain, KIND_MODULE, module->code_bytes);
	}
	module_unlink(module);
	module->magic = 0;
	free(module->ptx);
	free(module);
}

cu_result
fake_cuModuleLoadData(struct module **out, const void *image)
{
	struct context *context = context_current();
	return context == NULL ? CU_INVALID_CONTEXT : module_load(out, image, context);
}

cu_result
fake_cuModuleLoadDataEx(struct module **out, const void *image, unsigned count, const int *options,
			void **values)
{
	(void)options;
	(void)values;
	return count > 64 ? CU_INVALID_VALUE : fake_cuModuleLoadData(out, image);
}

cu_result
fake_cuModuleLoadFatBinary(struct module **out, const void *image)
{
	return fake_cuModuleLoadData(out, image);
}

static cu_result
load_file(struct module **out, const char *path, struct context *context)
{
	char *text = path != NULL ? inventory_read_file(path) : NULL;
	if (text == NULL) {
		return path == NULL ? CU_INVALID_VALUE : CU_FILE_NOT_FOUND;
	}
	cu_result result = module_load(out, text, context);
	free(text);
	return result;
}

cu_result
fake_cuModuleLoad(struct module **out, const char *path)
{
	struct context *context = context_current();
	return context == NULL ? CU_INVALID_CONTEXT : load_file(out, path, context);
}

cu_result
fake_cuModuleUnload(void *handle)
{
	struct module *module = module_checked(handle);
	if (module == NULL) {
		return CU_INVALID_HANDLE;
	}
	pthread_mutex_lock(&mutex);
	module_free(module);
	pthread_mutex_unlock(&mutex);
	return CU_OK;
}

static struct function *
find_function(struct module *module, const char *name)
{
	for (struct function *f = module->functions; f != NULL; f = f->next) {
		if (strcmp(f->name, name) == 0) {
			return f;
		}
	}
	if (module->ptx != NULL && !ptx_defines(module->ptx, ".entry", name)) {
		return NULL;
	}
	struct function *function = calloc(1, sizeof *function);
	char *copy = strdup(name);
	if (function == NULL || copy == NULL) {
		free(function);
		free(copy);
		function = NULL;
	} else {
		function->magic = FUNCTION_MAGIC;
		function->module = module;
		function->name = copy;
		read_time(function);
		function->next = module->functions;
		module->functions = function;
	}
	return function;
}

cu_result
fake_cuModuleGetFunction(struct function **out, void *handle, const char *name)
{
	struct module *module = module_checked(handle);
	if (module == NULL || out == NULL || name == NULL || *name == '\0') {
		return module == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
	}
	pthread_mutex_lock(&mutex);
	struct function *function = find_function(module, name);
	pthread_mutex_unlock(&mutex);
	if (function != NULL) {
		*out = function;
	}
	return function != NULL ? CU_OK : CU_NOT_FOUND;
}

/* A module variable: 4 KiB whose place is found at the first request. */
static cu_result
find_global(struct module *module, const char *name, struct global **out)
{
	for (struct global *g = module->globals; g != NULL; g = g->next) {
		if (strcmp(g->name, name) == 0) {
			*out = g;
			return CU_OK;
		}
	}
	bool known = module->ptx != NULL && (ptx_defines(module->ptx, ".global", name) ||
					     ptx_defines(module->ptx, ".const", name));
	struct context *context = module->context != NULL ? module->context : context_current();
	if (!known || context == NULL) {
		return CU_NOT_FOUND;
	}
	struct global *global = calloc(1, sizeof *global);
	char *copy = strdup(name);
	bool room = global != NULL && copy != NULL;
	cu_result result = room ? memory_allocate_in(context, KIND_MODULE, 4096, &global->block)
				: CU_OUT_OF_MEMORY;
	if (result != CU_OK) {
		free(global);
		free(copy);
		return result;
	}
	global->name = copy;
	global->next = module->globals;
	module->globals = global;
	*out = global;
	return CU_OK;
}

cu_result
fake_cuModuleGetGlobal_v2(cu_deviceptr *address, size_t *bytes, void *handle, const char *name)
{
	struct module *module = module_checked(handle);
	struct global *global = NULL;
	if (module == NULL || name == NULL) {
		return module == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
	}
	pthread_mutex_lock(&mutex);
	cu_result result = find_global(module, name, &global);
	pthread_mutex_unlock(&mutex);
	if (result == CU_OK && address != NULL) {
		*address = global->block->address;
	}
	if (result == CU_OK && bytes != NULL) {
		*bytes = global->block->bytes;
	}
	return result;
}

/* Libraries: modules that load into a context when a kernel of theirs is first used. Here their
 * code is charged to the context that is current when they are loaded, if any. */
cu_result
fake_cuLibraryLoadData(struct module **out, const void *code, int *jit, void **jit_values,
		       unsigned jits, int *options, void **values, unsigned count)
{
	(void)jit;
	(void)jit_values;
	(void)options;
	(void)values;
	return jits > 64 || count > 64 ? CU_INVALID_VALUE
				       : module_load(out, code, context_current());
}

cu_result
fake_cuLibraryLoadFromFile(struct module **out, const char *path, int *jit, void **jit_values,
			   unsigned jits, int *options, void **values, unsigned count)
{
	(void)jit;
	(void)jit_values;
	(void)options;
	(void)values;
	return jits > 64 || count > 64 ? CU_INVALID_VALUE : load_file(out, path, context_current());
}

cu_result
fake_cuLibraryUnload(void *handle)
{
	return fake_cuModuleUnload(handle);
}

cu_result
fake_cuLibraryGetModule(struct module **out, void *handle)
{
	struct module *module = module_checked(handle);
	if (module == NULL || out == NULL) {
		return module == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
	}
	*out = module;
	return CU_OK;
}

cu_result
fake_cuLibraryGetKernel(struct function **out, void *handle, const char *name)
{
	return fake_cuModuleGetFunction(out, handle, name);
}

cu_result
fake_cuLibraryGetGlobal(cu_deviceptr *address, size_t *bytes, void *handle, const char *name)
{
	return fake_cuModuleGetGlobal_v2(address, bytes, handle, name);
}

cu_result
fake_cuLibraryGetManaged(cu_deviceptr *address, size_t *bytes, void *handle, const char *name)
{
	return fake_cuModuleGetGlobal_v2(address, bytes, handle, name);
}

cu_result
fake_cuKernelGetFunction(struct function **out, void *kernel)
{
	struct function *function = function_checked(kernel);
	if (function == NULL || out == NULL) {
		return function == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
	}
	*out = function;
	return CU_OK;
}

cu_result
fake_cuFuncGetModule(struct module **out, void *handle)
{
	struct function *function = function_checked(handle);
	if (function == NULL || out == NULL) {
		return function == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
	}
	*out = function->module;
	return CU_OK;
}

cu_result
fake_cuFuncGetName(const char **name, void *handle)
{
	const struct function *function = function_checked(handle);
	if (function == NULL || name == NULL) {
		return function == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
	}
	*name = function->name;
	return CU_OK;
}

cu_result
fake_cuKernelGetName(const char **name, void *handle)
{
	return fake_cuFuncGetName(name, handle);
}

cu_result
fake_cuModuleGetLoadingMode(int *mode)
{
	if (mode == NULL) {
		return CU_INVALID_VALUE;
	}
	*mode = 2; /* lazy */
	return CU_OK;
}
