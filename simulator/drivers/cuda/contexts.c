/* Contexts, primary and not. A context takes memory of its device while it lives. */
#include <stdlib.h>
#include <string.h>

#include "driver.h"

static const uint64_t CONTEXT_MAGIC = 0x7478657463757067ULL;

enum { STACK_DEPTH = 64, LIMITS = 16 };

static struct context primaries[MAX_CARDS];
static struct context *others;
static pthread_mutex_t contexts_mutex = PTHREAD_MUTEX_INITIALIZER;
static __thread struct context *stack[STACK_DEPTH];
static __thread unsigned stack_depth;

struct context *
context_current(void)
{
	struct context *top = stack_depth > 0 ? stack[stack_depth - 1] : NULL;
	return top != NULL && top->live ? top : NULL;
}

struct context *
context_primary(cu_device device)
{
	return gpu_at(device) != NULL ? &primaries[device] : NULL;
}

struct context *
context_checked(void *handle)
{
	struct context *context = handle;
	return context != NULL && context->magic == CONTEXT_MAGIC ? context : NULL;
}

static cu_result
context_open(struct context *context, cu_device device, uint32_t flags)
{
	const struct gpu *gpu = gpu_at(device);
	if (gpu_lost(gpu->domain)) {
		return CU_NO_DEVICE;
	}
	if (!ledger_charge(gpu->domain, KIND_CONTEXT, region()->inventory.context_bytes)) {
		return CU_OUT_OF_MEMORY;
	}
	context->magic = CONTEXT_MAGIC;
	context->device = device;
	context->domain = gpu->domain;
	context->flags = flags;
	context->live = true;
	context->limits[0] = 1024;
	context->limits[1] = 1 << 20;
	context->limits[2] = 8 << 20;
	return CU_OK;
}

static void
context_close(struct context *context)
{
	modules_leave_context(context);
	context_release_memory(context);
	context->live = false;
	ledger_refund(context->domain, KIND_CONTEXT,
		      region()->inventory.context_bytes + context->limit_bytes);
	context->limit_bytes = 0;
	context->peers[0] = 0;
	context->peers[1] = 0;
}

cu_result
fake_cuDevicePrimaryCtxRetain(struct context **out, cu_device device)
{
	struct context *primary = context_primary(device);
	if (out == NULL || primary == NULL) {
		return out == NULL ? CU_INVALID_VALUE : CU_INVALID_DEVICE;
	}
	cu_result result = CU_OK;
	pthread_mutex_lock(&contexts_mutex);
	if (!primary->live) {
		primary->primary = true;
		primary->references = 0;
		result = context_open(primary, device, primary->flags);
	}
	if (result == CU_OK) {
		primary->references++;
		*out = primary;
	}
	pthread_mutex_unlock(&contexts_mutex);
	return result;
}

cu_result
fake_cuDevicePrimaryCtxRelease_v2(cu_device device)
{
	struct context *primary = context_primary(device);
	if (primary == NULL) {
		return CU_INVALID_DEVICE;
	}
	pthread_mutex_lock(&contexts_mutex);
	bool held = primary->live && primary->references > 0;
	if (held && --primary->references == 0) {
		context_close(primary);
	}
	pthread_mutex_unlock(&contexts_mutex);
	return held ? CU_OK : CU_INVALID_CONTEXT;
}

cu_result
fake_cuDevicePrimaryCtxRelease(cu_device device)
{
	return fake_cuDevicePrimaryCtxRelease_v2(device);
}

cu_result
fake_cuDevicePrimaryCtxReset_v2(cu_device device)
{
	struct context *primary = context_primary(device);
	if (primary == NULL) {
		return CU_INVALID_DEVICE;
	}
	pthread_mutex_lock(&contexts_mutex);
	if (primary->live) {
		context_close(primary);
		primary->references = 0;
	}
	pthread_mutex_unlock(&contexts_mutex);
	return CU_OK;
}

cu_result
fake_cuDevicePrimaryCtxReset(cu_device device)
{
	return fake_cuDevicePrimaryCtxReset_v2(device);
}

cu_result
fake_cuDevicePrimaryCtxGetState(cu_device device, unsigned *flags, int *active)
{
	const struct context *primary = context_primary(device);
	if (primary == NULL || flags == NULL || active == NULL) {
		return primary == NULL ? CU_INVALID_DEVICE : CU_INVALID_VALUE;
	}
	*flags = primary->flags;
	*active = primary->live;
	return CU_OK;
}

cu_result
fake_cuDevicePrimaryCtxSetFlags_v2(cu_device device, unsigned flags)
{
	struct context *primary = context_primary(device);
	if (primary == NULL) {
		return CU_INVALID_DEVICE;
	}
	primary->flags = flags;
	return CU_OK;
}

cu_result
fake_cuDevicePrimaryCtxSetFlags(cu_device device, unsigned flags)
{
	const struct context *primary = context_primary(device);
	if (primary != NULL && primary->live) {
		return CU_PRIMARY_CONTEXT_ACTIVE;
	}
	return fake_cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

static cu_result
create(struct context **out, unsigned flags, cu_device device)
{
	if (out == NULL || gpu_at(device) == NULL) {
		return out == NULL ? CU_INVALID_VALUE : CU_INVALID_DEVICE;
	}
	struct context *context = calloc(1, sizeof *context);
	if (context == NULL || stack_depth == STACK_DEPTH) {
		free(context);
		return CU_OUT_OF_MEMORY;
	}
	cu_result result = context_open(context, device, flags);
	if (result != CU_OK) {
		free(context);
		return result;
	}
	pthread_mutex_lock(&contexts_mutex);
	context->next = others;
	others = context;
	pthread_mutex_unlock(&contexts_mutex);
	stack[stack_depth++] = context;
	*out = context;
	return CU_OK;
}

cu_result
fake_cuCtxCreate(struct context **out, unsigned flags, cu_device device)
{
	return create(out, flags, device);
}

cu_result
fake_cuCtxCreate_v2(struct context **out, unsigned flags, cu_device device)
{
	return create(out, flags, device);
}

cu_result
fake_cuCtxCreate_v3(struct context **out, const void *affinity, int affinities, unsigned flags,
		    cu_device device)
{
	(void)affinity;
	return affinities < 0 ? CU_INVALID_VALUE : create(out, flags, device);
}

cu_result
fake_cuCtxCreate_v4(struct context **out, const void *parameters, unsigned flags, cu_device device)
{
	(void)parameters;
	return create(out, flags, device);
}

cu_result
fake_cuCtxDestroy_v2(void *handle)
{
	struct context *context = context_checked(handle);
	if (context == NULL || context->primary || !context->live) {
		return CU_INVALID_CONTEXT;
	}
	pthread_mutex_lock(&contexts_mutex);
	context_close(context);
	pthread_mutex_unlock(&contexts_mutex);
	if (stack_depth > 0 && stack[stack_depth - 1] == context) {
		stack_depth--;
	}
	return CU_OK;
}

cu_result
fake_cuCtxDestroy(void *handle)
{
	return fake_cuCtxDestroy_v2(handle);
}

/* Old reference counting: attach succeeds on the current context, detach destroys it. */
cu_result
fake_cuCtxAttach(struct context **out, unsigned flags)
{
	if (out == NULL || flags != 0) {
		return CU_INVALID_VALUE;
	}
	*out = context_current();
	return *out != NULL ? CU_OK : CU_INVALID_CONTEXT;
}

cu_result
fake_cuCtxDetach(void *handle)
{
	return fake_cuCtxDestroy_v2(handle);
}

cu_result
fake_cuCtxPushCurrent_v2(void *handle)
{
	struct context *context = context_checked(handle);
	if (context == NULL || stack_depth == STACK_DEPTH) {
		return CU_INVALID_CONTEXT;
	}
	stack[stack_depth++] = context;
	return CU_OK;
}

cu_result
fake_cuCtxPushCurrent(void *handle)
{
	return fake_cuCtxPushCurrent_v2(handle);
}

cu_result
fake_cuCtxPopCurrent_v2(struct context **out)
{
	if (stack_depth == 0) {
		return CU_INVALID_CONTEXT;
	}
	struct context *top = stack[--stack_depth];
	if (out != NULL) {
		*out = top;
	}
	return CU_OK;
}

cu_result
fake_cuCtxPopCurrent(struct context **out)
{
	return fake_cuCtxPopCurrent_v2(out);
}

/* NULL takes the top of the stack away. */
cu_result
fake_cuCtxSetCurrent(void *handle)
{
	struct context *context = context_checked(handle);
	if (handle == NULL) {
		stack_depth -= stack_depth > 0;
		return CU_OK;
	}
	if (context == NULL) {
		return CU_INVALID_CONTEXT;
	}
	if (stack_depth == 0) {
		stack_depth = 1;
	}
	stack[stack_depth - 1] = context;
	return CU_OK;
}

cu_result
fake_cuCtxGetCurrent(struct context **out)
{
	if (out == NULL) {
		return CU_INVALID_VALUE;
	}
	*out = stack_depth > 0 ? stack[stack_depth - 1] : NULL;
	return CU_OK;
}

cu_result
fake_cuCtxGetDevice_v2(cu_device *device, void *handle)
{
	const struct context *context =
	    handle != NULL ? context_checked(handle) : context_current();
	if (device == NULL || context == NULL) {
		return device == NULL ? CU_INVALID_VALUE : CU_INVALID_CONTEXT;
	}
	*device = context->device;
	return CU_OK;
}

cu_result
fake_cuCtxGetDevice(cu_device *device)
{
	return fake_cuCtxGetDevice_v2(device, NULL);
}

cu_result
fake_cuCtxGetFlags(unsigned *flags)
{
	const struct context *context = context_current();
	if (flags == NULL || context == NULL) {
		return flags == NULL ? CU_INVALID_VALUE : CU_INVALID_CONTEXT;
	}
	*flags = context->flags;
	return CU_OK;
}

cu_result
fake_cuCtxSetFlags(unsigned flags)
{
	struct context *context = context_current();
	if (context == NULL) {
		return CU_INVALID_CONTEXT;
	}
	context->flags = flags;
	return CU_OK;
}

cu_result
fake_cuCtxGetId(void *handle, unsigned long long *id)
{
	const struct context *context =
	    handle != NULL ? context_checked(handle) : context_current();
	if (id == NULL || context == NULL) {
		return id == NULL ? CU_INVALID_VALUE : CU_CONTEXT_IS_DESTROYED;
	}
	*id = (unsigned long long)(uintptr_t)context;
	return CU_OK;
}

cu_result
fake_cuCtxGetApiVersion(void *handle, unsigned *version)
{
	const struct context *context =
	    handle != NULL ? context_checked(handle) : context_current();
	if (version == NULL || context == NULL) {
		return version == NULL ? CU_INVALID_VALUE : CU_INVALID_CONTEXT;
	}
	*version = 3020;
	return CU_OK;
}
