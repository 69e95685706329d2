/* Green contexts: a context on a part of the multiprocessors. Here they take a context's memory and
 * the whole device's time. */
#include <stdlib.h>
#include <string.h>

#include "streams.h"

enum { RESOURCE_SM = 1 };

cu_result fake_cuCtxCreate_v2(struct context **out, unsigned flags, cu_device device);
cu_result fake_cuCtxDestroy_v2(void *handle);
cu_result fake_cuCtxPopCurrent_v2(struct context **out);
cu_result fake_cuStreamCreateWithPriority(struct stream **out, unsigned flags, int priority);
cu_result fake_cuCtxPushCurrent_v2(void *handle);

static void
fill_resource(struct device_resource *out, uint32_t sm_count)
{
	memset(out, 0, sizeof *out);
	out->type = RESOURCE_SM;
	out->sm_count = sm_count;
}

cu_result
fake_cuDeviceGetDevResource(cu_device device, struct device_resource *out, int type)
{
	const struct gpu *gpu = gpu_at(device);
	if (gpu == NULL || out == NULL || type != RESOURCE_SM) {
		return gpu == NULL ? CU_INVALID_DEVICE : CU_INVALID_VALUE;
	}
	fill_resource(out, domain_sm_count(gpu->domain));
	return CU_OK;
}

/* Groups of at least `least` multiprocessors, in steps of two; what is left over is the remainder.
 */
cu_result
fake_cuDevSmResourceSplitByCount(struct device_resource *out, unsigned *groups,
				 const struct device_resource *from, struct device_resource *rest,
				 unsigned flags, unsigned least)
{
	if (groups == NULL || from == NULL || from->type != RESOURCE_SM || flags > 3 ||
	    least == 0) {
		return CU_INVALID_VALUE;
	}
	uint32_t each = (least + 1) / 2 * 2;
	unsigned most = from->sm_count / each;
	unsigned made = out == NULL || *groups > most ? most : *groups;
	for (unsigned i = 0; out != NULL && i < made; i++) {
		fill_resource(&out[i], each);
	}
	if (rest != NULL) {
		fill_resource(rest, from->sm_count - made * each);
	}
	*groups = made;
	return made > 0 ? CU_OK : CU_INVALID_VALUE;
}

cu_result
fake_cuDevResourceGenerateDesc(void **out, const struct device_resource *resources, unsigned count)
{
	static char description;
	if (out == NULL || resources == NULL || count == 0) {
		return CU_INVALID_VALUE;
	}
	*out = &description;
	return CU_OK;
}

/* Unlike other contexts, a green one does not become current by being created. */
cu_result
fake_cuGreenCtxCreate(struct context **out, const void *description, cu_device device,
		      unsigned flags)
{
	if (description == NULL || flags != 1) {
		return CU_INVALID_VALUE;
	}
	cu_result result = fake_cuCtxCreate_v2(out, 0, device);
	if (result == CU_OK) {
		fake_cuCtxPopCurrent_v2(NULL);
	}
	return result;
}

cu_result
fake_cuGreenCtxDestroy(void *handle)
{
	return fake_cuCtxDestroy_v2(handle);
}

cu_result
fake_cuCtxFromGreenCtx(struct context **out, void *handle)
{
	struct context *context = context_checked(handle);
	if (out == NULL || context == NULL) {
		return out == NULL ? CU_INVALID_VALUE : CU_INVALID_CONTEXT;
	}
	*out = context;
	return CU_OK;
}

cu_result
fake_cuGreenCtxGetDevResource(void *handle, struct device_resource *out, int type)
{
	const struct context *context = context_checked(handle);
	return context == NULL ? CU_INVALID_CONTEXT
			       : fake_cuDeviceGetDevResource(context->device, out, type);
}

cu_result
fake_cuGreenCtxStreamCreate(struct stream **out, void *handle, unsigned flags, int priority)
{
	if (flags != 1 || fake_cuCtxPushCurrent_v2(handle) != CU_OK) {
		return flags != 1 ? CU_INVALID_VALUE : CU_INVALID_CONTEXT;
	}
	cu_result result = fake_cuStreamCreateWithPriority(out, flags, priority);
	fake_cuCtxPopCurrent_v2(NULL);
	return result;
}
