/* Attributes of functions, occupancy, linking, context limits and peers: what programs ask before
 * they launch. */
#include <stdlib.h>
#include <string.h>

#include "modules.h"

static const uint64_t LINK_MAGIC = 0x0000006b6e696c67ULL;

/* Attributes: 0 most threads, 4 registers, 5 PTX version, 6 binary version, 8 most dynamic shared
 * memory. */
cu_result
fake_cuFuncGetAttribute(int *value, int attribute, void *handle)
{
	static const int values[18] = {[0] = 1024, [4] = 32,    [5] = 80,
				       [6] = 80,   [8] = 49152, [9] = -1};
	const struct context *context = context_current();
	if (value == NULL || function_checked(handle) == NULL || attribute < 0 || attribute > 17) {
		return function_checked(handle) == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
	}
	*value = values[attribute];
	if (attribute == 6 && context != NULL) {
		const struct card_model *model = card_model(gpu_card(gpu_at(context->device)));
		*value = model->cc_major * 10 + model->cc_minor;
	}
	return CU_OK;
}

cu_result
fake_cuFuncSetAttribute(void *handle, int attribute, int value)
{
	(void)value;
	return function_checked(handle) == NULL
		   ? CU_INVALID_HANDLE
		   : (attribute < 8 || attribute > 17 ? CU_INVALID_VALUE : CU_OK);
}

cu_result
fake_cuKernelGetAttribute(int *value, int attribute, void *kernel, cu_device device)
{
	return gpu_at(device) == NULL ? CU_INVALID_DEVICE
				      : fake_cuFuncGetAttribute(value, attribute, kernel);
}

cu_result
fake_cuKernelSetAttribute(int attribute, int value, void *kernel, cu_device device)
{
	return gpu_at(device) == NULL ? CU_INVALID_DEVICE
				      : fake_cuFuncSetAttribute(kernel, attribute, value);
}

cu_result
fake_cuFuncSetCacheConfig(void *handle, int config)
{
	return function_checked(handle) == NULL
		   ? CU_INVALID_HANDLE
		   : (config < 0 || config > 3 ? CU_INVALID_VALUE : CU_OK);
}

cu_result
fake_cuFuncSetSharedMemConfig(void *handle, int config)
{
	return fake_cuFuncSetCacheConfig(handle, config);
}

cu_result
fake_cuKernelSetCacheConfig(void *kernel, int config, cu_device device)
{
	return gpu_at(device) == NULL ? CU_INVALID_DEVICE
				      : fake_cuFuncSetCacheConfig(kernel, config);
}

cu_result
fake_cuFuncLoad(void *handle)
{
	return function_checked(handle) == NULL ? CU_INVALID_HANDLE : CU_OK;
}

cu_result
fake_cuFuncIsLoaded(int *state, void *handle)
{
	if (state == NULL || function_checked(handle) == NULL) {
		return state == NULL ? CU_INVALID_VALUE : CU_INVALID_HANDLE;
	}
	*state = 1;
	return CU_OK;
}

cu_result
fake_cuFuncSetBlockShape(void *handle, int x, int y, int z)
{
	bool sane = x > 0 && y > 0 && z > 0 && (long)x * y * z <= 1024;
	return function_checked(handle) == NULL ? CU_INVALID_HANDLE
						: (sane ? CU_OK : CU_INVALID_VALUE);
}

cu_result
fake_cuFuncSetSharedSize(void *handle, unsigned bytes)
{
	return function_checked(handle) == NULL ? CU_INVALID_HANDLE
						: (bytes <= 49152 ? CU_OK : CU_INVALID_VALUE);
}

/* Parameters of old launches: accepted, never read. */
cu_result
fake_cuParamSetSize(void *handle, unsigned bytes)
{
	return function_checked(handle) == NULL ? CU_INVALID_HANDLE
						: (bytes <= 4096 ? CU_OK : CU_INVALID_VALUE);
}

cu_result
fake_cuParamSeti(void *handle, int offset, unsigned value)
{
	(void)value;
	return function_checked(handle) == NULL ? CU_INVALID_HANDLE
						: (offset >= 0 ? CU_OK : CU_INVALID_VALUE);
}

cu_result
fake_cuParamSetv(void *handle, int offset, const void *data, unsigned bytes)
{
	(void)bytes;
	return data == NULL ? CU_INVALID_VALUE : fake_cuParamSeti(handle, offset, 0);
}

/* Blocks of a multiprocessor: by its threads, at most 32. */
cu_result
fake_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, void *handle, int threads,
							  size_t shared, unsigned flags)
{
	const struct context *context = context_current();
	if (blocks == NULL || threads <= 0 || flags > 1) {
		return CU_INVALID_VALUE;
	}
	if (context == NULL || function_checked(handle) == NULL) {
		return context == NULL ? CU_INVALID_CONTEXT : CU_INVALID_HANDLE;
	}
	int most = (int)card_model(gpu_card(gpu_at(context->device)))->threads_per_sm /
		   ((threads + 31) / 32 * 32);
	int by_shared = shared > 0 ? (int)(167936 / shared) : 32;
	most = most < by_shared ? most : by_shared;
	*blocks = most < 32 ? most : 32;
	return CU_OK;
}

cu_result
fake_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *handle, int threads,
						 size_t shared)
{
	return fake_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, handle, threads,
									 shared, 0);
}

cu_result
fake_cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *threads, void *handle,
					       size_t (*shared_of)(int), size_t shared, int limit,
					       unsigned flags)
{
	const struct context *context = context_current();
	int blocks = 0;
	if (grid == NULL || threads == NULL || limit < 0) {
		return CU_INVALID_VALUE;
	}
	*threads = limit == 0 || limit > 1024 ? 1024 : limit;
	size_t dynamic = shared_of != NULL ? shared_of(*threads) : shared;
	cu_result result = fake_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
	    &blocks, handle, *threads, dynamic, flags);
	if (result == CU_OK) {
		*grid = blocks * (int)domain_sm_count(context->domain);
	}
	return result;
}

cu_result
fake_cuOccupancyMaxPotentialBlockSize(int *grid, int *threads, void *handle,
				      size_t (*shared_of)(int), size_t shared, int limit)
{
	return fake_cuOccupancyMaxPotentialBlockSizeWithFlags(grid, threads, handle, shared_of,
							      shared, limit, 0);
}

/* The linker: concatenates nothing, remembers the last input, and gives it back as the result. */
struct link_state {
	uint64_t magic;
	void *data;
	size_t bytes;
};

static struct link_state *
link_checked(void *handle)
{
	struct link_state *state = handle;
	return state != NULL && state->magic == LINK_MAGIC ? state : NULL;
}

cu_result
fake_cuLinkCreate_v2(unsigned count, const int *options, void **values, struct link_state **out)
{
	(void)options;
	(void)values;
	if (out == NULL || count > 64) {
		return CU_INVALID_VALUE;
	}
	*out = calloc(1, sizeof **out);
	if (*out == NULL) {
		return CU_OUT_OF_MEMORY;
	}
	(*out)->magic = LINK_MAGIC;
	return CU_OK;
}

cu_result
fake_cuLinkCreate(unsigned count, const int *options, void **values, struct link_state **out)
{
	return fake_cuLinkCreate_v2(count, options, values, out);
}

cu_result
fake_cuLinkAddData_v2(void *handle, int type, const void *data, size_t bytes, const char *name,
		      unsigned count, const int *options, void **values)
{
	struct link_state *state = link_checked(handle);
	(void)type;
	(void)name;
	(void)options;
	(void)values;
	if (state == NULL || data == NULL || bytes == 0 || count > 64) {
		return state == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
	}
	char *copy = malloc(bytes + 1);
	if (copy == NULL) {
		return CU_OUT_OF_MEMORY;
	}
	memcpy(copy, data, bytes);
	copy[bytes] = '\0';
	free(state->data);
	state->data = copy;
	state->bytes = bytes;
	return CU_OK;
}

cu_result
fake_cuLinkAddFile_v2(void *handle, int type, const char *path, unsigned count, const int *options,
		      void **values)
{
	char *text = path != NULL ? inventory_read_file(path) : NULL;
	if (text == NULL) {
		return CU_FILE_NOT_FOUND;
	}
	size_t bytes = strlen(text);
	cu_result result = fake_cuLinkAddData_v2(handle, type, text, bytes > 0 ? bytes : 1, path,
						 count, options, values);
	free(text);
	return result;
}

cu_result
fake_cuLinkComplete(void *handle, void **out, size_t *bytes)
{
	const struct link_state *state = link_checked(handle);
	if (state == NULL || out == NULL || state->data == NULL) {
		return state == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
	}
	*out = state->data;
	if (bytes != NULL) {
		*bytes = state->bytes;
	}
	return CU_OK;
}

cu_result
fake_cuLinkDestroy(void *handle)
{
	struct link_state *state = link_checked(handle);
	if (state == NULL) {
		return CU_INVALID_HANDLE;
	}
	state->magic = 0;
	free(state->data);
	free(state);
	return CU_OK;
}
