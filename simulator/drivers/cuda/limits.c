/* Limits and settings of the current context, and access between devices. */
#include "driver.h"

enum { LIMIT_STACK = 0, LIMIT_PRINTF = 1, LIMIT_HEAP = 2, LIMITS_KNOWN = 11 };

/* Memory that a limit takes of the device. The stack is there for every thread the device can hold.
 */
static uint64_t
limit_bytes(const struct context *context, int limit, uint64_t value)
{
	const struct card_model *model = card_model(gpu_card(gpu_at(context->device)));
	uint64_t threads = (uint64_t)domain_sm_count(context->domain) * model->threads_per_sm;
	switch (limit) {
	case LIMIT_STACK:
		return value > 1024 ? (value - 1024) * threads : 0;
	case LIMIT_PRINTF:
		return value > (1 << 20) ? value - (1 << 20) : 0;
	case LIMIT_HEAP:
		return value > (8 << 20) ? value - (8 << 20) : 0;
	default:
		return 0;
	}
}

cu_result
fake_cuCtxSetLimit(int limit, size_t value)
{
	struct context *context = context_current();
	if (context == NULL || limit < 0 || limit >= LIMITS_KNOWN) {
		return context == NULL ? CU_INVALID_CONTEXT : CU_UNSUPPORTED_LIMIT;
	}
	uint64_t before = limit_bytes(context, limit, context->limits[limit]);
	uint64_t after = limit_bytes(context, limit, value);
	if (after > before && !ledger_charge(context->domain, KIND_CONTEXT, after - before)) {
		return CU_OUT_OF_MEMORY;
	}
	if (after < before) {
		ledger_refund(context->domain, KIND_CONTEXT, before - after);
	}
	context->limit_bytes += after - before;
	context->limits[limit] = value;
	return CU_OK;
}

cu_result
fake_cuCtxGetLimit(size_t *value, int limit)
{
	const struct context *context = context_current();
	if (value == NULL || context == NULL || limit < 0 || limit >= LIMITS_KNOWN) {
		return context == NULL ? CU_INVALID_CONTEXT
				       : (value == NULL ? CU_INVALID_VALUE : CU_UNSUPPORTED_LIMIT);
	}
	*value = context->limits[limit];
	return CU_OK;
}

cu_result
fake_cuCtxGetCacheConfig(int *config)
{
	const struct context *context = context_current();
	if (config == NULL || context == NULL) {
		return config == NULL ? CU_INVALID_VALUE : CU_INVALID_CONTEXT;
	}
	*config = context->cache_config;
	return CU_OK;
}

cu_result
fake_cuCtxSetCacheConfig(int config)
{
	struct context *context = context_current();
	if (context == NULL || config < 0 || config > 3) {
		return context == NULL ? CU_INVALID_CONTEXT : CU_INVALID_VALUE;
	}
	context->cache_config = config;
	return CU_OK;
}

cu_result
fake_cuCtxGetSharedMemConfig(int *config)
{
	const struct context *context = context_current();
	if (config == NULL || context == NULL) {
		return config == NULL ? CU_INVALID_VALUE : CU_INVALID_CONTEXT;
	}
	*config = context->bank_config;
	return CU_OK;
}

cu_result
fake_cuCtxSetSharedMemConfig(int config)
{
	struct context *context = context_current();
	if (context == NULL || config < 0 || config > 2) {
		return context == NULL ? CU_INVALID_CONTEXT : CU_INVALID_VALUE;
	}
	context->bank_config = config;
	return CU_OK;
}

cu_result
fake_cuCtxResetPersistingL2Cache(void)
{
	return context_current() != NULL ? CU_OK : CU_INVALID_CONTEXT;
}

cu_result fake_cuDeviceCanAccessPeer(int *can, cu_device device, cu_device peer);

/* Which contexts of this process reach which device: bits by device ordinal, kept in the context.
 */
cu_result
fake_cuCtxEnablePeerAccess(void *handle, unsigned flags)
{
	struct context *context = context_current();
	const struct context *peer = context_checked(handle);
	int can = 0;
	if (context == NULL || peer == NULL || flags != 0) {
		return flags != 0 ? CU_INVALID_VALUE : CU_INVALID_CONTEXT;
	}
	fake_cuDeviceCanAccessPeer(&can, context->device, peer->device);
	if (!can) {
		return CU_PEER_ACCESS_UNSUPPORTED;
	}
	uint64_t bit = 1ULL << (peer->device % 64);
	bool enabled = (context->peers[peer->device / 64] & bit) != 0;
	context->peers[peer->device / 64] |= bit;
	return enabled ? CU_PEER_ACCESS_ALREADY_ENABLED : CU_OK;
}

cu_result
fake_cuCtxDisablePeerAccess(void *handle)
{
	struct context *context = context_current();
	const struct context *peer = context_checked(handle);
	if (context == NULL || peer == NULL) {
		return CU_INVALID_CONTEXT;
	}
	uint64_t bit = 1ULL << (peer->device % 64);
	bool enabled = (context->peers[peer->device / 64] & bit) != 0;
	context->peers[peer->device / 64] &= ~bit;
	return enabled ? CU_OK : CU_PEER_ACCESS_NOT_ENABLED;
}

cu_result
fake_cuFlushGPUDirectRDMAWrites(int target, int scope)
{
	return target == 0 && (scope == 100 || scope == 200) ? CU_OK : CU_INVALID_VALUE;
}

cu_result
fake_cuDeviceGetTexture1DLinearMaxWidth(size_t *elements, int format, unsigned channels,
					cu_device device)
{
	(void)format;
	if (elements == NULL || channels == 0 || gpu_at(device) == NULL) {
		return gpu_at(device) == NULL ? CU_INVALID_DEVICE : CU_INVALID_VALUE;
	}
	*elements = 268435456;
	return CU_OK;
}

cu_result
fake_cuDeviceGetExecAffinitySupport(int *supported, int type, cu_device device)
{
	if (supported == NULL || type != 0 || gpu_at(device) == NULL) {
		return gpu_at(device) == NULL ? CU_INVALID_DEVICE : CU_INVALID_VALUE;
	}
	*supported = 0;
	return CU_OK;
}

cu_result
fake_cuProfilerStart(void)
{
	return context_current() != NULL ? CU_OK : CU_INVALID_CONTEXT;
}

cu_result
fake_cuProfilerStop(void)
{
	return fake_cuProfilerStart();
}
