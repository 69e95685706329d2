/* Modules and libraries: code, constants and global variables lie in device memory. */
#include "charges.h"
#include "driver.h"
#include "growth.h"
#include "hooks.h"

static cu_result
finish_module(cu_result result, struct growth *growth, cu_module *module)
{
	uint64_t bytes;
	if (result != CU_OK) {
		return result;
	}
	if (!growth_end(growth, &bytes)) {
		driver()->cuModuleUnload(*module);
		return CU_OUT_OF_MEMORY;
	}
	charge_remember(growth->device, SPACE_MODULE, (uint64_t)(uintptr_t)*module, KIND_MODULE,
			bytes, current_owner());
	return CU_OK;
}

EXPORTED cu_result
cuModuleLoad(cu_module *module, const char *path)
{
	struct growth growth;
	if (driver()->cuModuleLoad == NULL) {
		return CU_NOT_SUPPORTED;
	}
	return growth_begin(&growth)
		   ? finish_module(driver()->cuModuleLoad(module, path), &growth, module)
		   : CU_OUT_OF_MEMORY;
}

EXPORTED cu_result
cuModuleLoadData(cu_module *module, const void *image)
{
	struct growth growth;
	if (driver()->cuModuleLoadData == NULL) {
		return CU_NOT_SUPPORTED;
	}
	return growth_begin(&growth)
		   ? finish_module(driver()->cuModuleLoadData(module, image), &growth, module)
		   : CU_OUT_OF_MEMORY;
}

EXPORTED cu_result
cuModuleLoadDataEx(cu_module *module, const void *image, unsigned int count, void *options,
		   void **values)
{
	struct growth growth;
	if (driver()->cuModuleLoadDataEx == NULL) {
		return CU_NOT_SUPPORTED;
	}
	return growth_begin(&growth) ? finish_module(driver()->cuModuleLoadDataEx(
							 module, image, count, options, values),
						     &growth, module)
				     : CU_OUT_OF_MEMORY;
}

EXPORTED cu_result
cuModuleLoadFatBinary(cu_module *module, const void *image)
{
	struct growth growth;
	if (driver()->cuModuleLoadFatBinary == NULL) {
		return CU_NOT_SUPPORTED;
	}
	return growth_begin(&growth)
		   ? finish_module(driver()->cuModuleLoadFatBinary(module, image), &growth, module)
		   : CU_OUT_OF_MEMORY;
}

static cu_result
finish_library(cu_result result, struct growth *growth, cu_library *library)
{
	uint64_t bytes;
	if (result != CU_OK) {
		return result;
	}
	if (!growth_end(growth, &bytes)) {
		driver()->cuLibraryUnload(*library);
		return CU_OUT_OF_MEMORY;
	}
	charge_remember(growth->device, SPACE_MODULE, (uint64_t)(uintptr_t)*library, KIND_MODULE,
			bytes, 0);
	return CU_OK;
}

EXPORTED cu_result
cuLibraryLoadData(cu_library *library, const void *code, void *jit, void **jit_values,
		  unsigned int jit_count, void *options, void **values, unsigned int count)
{
	struct growth growth;
	if (driver()->cuLibraryLoadData == NULL) {
		return CU_NOT_SUPPORTED;
	}
	if (!growth_begin(&growth)) {
		return CU_OUT_OF_MEMORY;
	}
	cu_result result = driver()->cuLibraryLoadData(library, code, jit, jit_values, jit_count,
						       options, values, count);
	return finish_library(result, &growth, library);
}

EXPORTED cu_result
cuLibraryLoadFromFile(cu_library *library, const char *path, void *jit, void **jit_values,
		      unsigned int jit_count, void *options, void **values, unsigned int count)
{
	struct growth growth;
	if (driver()->cuLibraryLoadFromFile == NULL) {
		return CU_NOT_SUPPORTED;
	}
	if (!growth_begin(&growth)) {
		return CU_OUT_OF_MEMORY;
	}
	cu_result result = driver()->cuLibraryLoadFromFile(library, path, jit, jit_values,
							   jit_count, options, values, count);
	return finish_library(result, &growth, library);
}

EXPORTED cu_result
cuModuleUnload(cu_module module)
{
	if (driver()->cuModuleUnload == NULL) {
		return CU_NOT_SUPPORTED;
	}
	struct block block;
	bool known = block_take(SPACE_MODULE, (uint64_t)(uintptr_t)module, &block);
	cu_result result = driver()->cuModuleUnload(module);
	charge_freed(result, known, &block);
	return result;
}

EXPORTED cu_result
cuLibraryUnload(cu_library library)
{
	if (driver()->cuLibraryUnload == NULL) {
		return CU_NOT_SUPPORTED;
	}
	struct block block;
	bool known = block_take(SPACE_MODULE, (uint64_t)(uintptr_t)library, &block);
	cu_result result = driver()->cuLibraryUnload(library);
	charge_freed(result, known, &block);
	return result;
}

/* Stacks, device heap and printf buffer grow with the context's limits. */
EXPORTED cu_result
cuCtxSetLimit(int limit, size_t value)
{
	struct growth growth;
	uint64_t bytes;
	if (driver()->cuCtxSetLimit == NULL) {
		return CU_NOT_SUPPORTED;
	}
	if (!growth_begin(&growth)) {
		return CU_OUT_OF_MEMORY;
	}
	size_t before = 0;
	bool known =
	    driver()->cuCtxGetLimit != NULL && driver()->cuCtxGetLimit(&before, limit) == CU_OK;
	cu_result result = driver()->cuCtxSetLimit(limit, value);
	if (result == CU_OK && !growth_end(&growth, &bytes)) {
		if (known) {
			driver()->cuCtxSetLimit(limit, before);
		}
		return CU_OUT_OF_MEMORY;
	}
	return result;
}
