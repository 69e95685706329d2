/* Contexts: each takes device memory of its own, and takes with it what was allocated in it when it
 * ends.
 *
 * Invariant: as for memory, charged before the driver acts once the cost is known; the very first
 * context of a container is measured and then charged, or undone when it does not fit.
 */
#include "charges.h"
#include "compute.h"
#include "context_cost.h"
#include "driver.h"
#include "hooks.h"

#define PRIMARY_KEY(device) ((uint64_t)(uint32_t)(device)->handle + 1)

struct pending {
	struct device *device;
	uint64_t charged;
	uint64_t before;
	bool measured;
};

static bool
begin_context(struct device *device, struct pending *pending)
{
	*pending = (struct pending){.device = device, .measured = false};
	if (device == NULL || device->row == NULL) {
		return device == NULL || !device->enforced;
	}
	pending->charged = context_cost_known(device);
	if (pending->charged == 0) {
		pending->measured = true;
		pending->before = context_cost_before(device);
		return true;
	}
	return quota_charge(device, KIND_CONTEXT, pending->charged);
}

/* False: it does not fit; nothing is charged and the caller must undo. */
static bool
finish_context(struct pending *pending, uint64_t key, uint64_t context)
{
	if (pending->device == NULL || pending->device->row == NULL) {
		return true;
	}
	if (pending->measured) {
		pending->charged = context_cost_after(pending->device, pending->before);
		if (!quota_charge(pending->device, KIND_CONTEXT, pending->charged)) {
			return false;
		}
	}
	charge_remember(pending->device, SPACE_CONTEXT, key, KIND_CONTEXT, pending->charged, 0);
	(void)context;
	return true;
}

static void
cancel_context(const struct pending *pending)
{
	if (!pending->measured) {
		quota_refund(pending->device, KIND_CONTEXT, pending->charged);
	}
}

static void
context_ended(uint64_t key, uint64_t context)
{
	struct block block;
	if (block_take(SPACE_CONTEXT, key, &block)) {
		charge_forget(&block);
	}
	if (context != 0) {
		blocks_drop_owner(context, charge_forget);
		compute_context_ended((cu_context)(uintptr_t)context);
	}
}

static cu_result
destroy_real(cu_context context)
{
	return driver()->cuCtxDestroy_v2 != NULL ? driver()->cuCtxDestroy_v2(context)
						 : driver()->cuCtxDestroy(context);
}

static cu_result
finish_create(cu_result result, struct pending *pending, const cu_context *context)
{
	if (result != CU_OK) {
		cancel_context(pending);
		return result;
	}
	uint64_t key = (uint64_t)(uintptr_t)*context;
	if (!finish_context(pending, key, key)) {
		destroy_real(*context);
		return CU_OUT_OF_MEMORY;
	}
	return CU_OK;
}

EXPORTED cu_result
cuCtxCreate(cu_context *context, unsigned int flags, cu_device device)
{
	struct pending pending;
	if (driver()->cuCtxCreate == NULL) {
		return CU_NOT_SUPPORTED;
	}
	if (!begin_context(device_of(device), &pending)) {
		return CU_OUT_OF_MEMORY;
	}
	return finish_create(driver()->cuCtxCreate(context, flags, device), &pending, context);
}

EXPORTED cu_result
cuCtxCreate_v2(cu_context *context, unsigned int flags, cu_device device)
{
	struct pending pending;
	if (driver()->cuCtxCreate_v2 == NULL) {
		return CU_NOT_SUPPORTED;
	}
	if (!begin_context(device_of(device), &pending)) {
		return CU_OUT_OF_MEMORY;
	}
	return finish_create(driver()->cuCtxCreate_v2(context, flags, device), &pending, context);
}

EXPORTED cu_result
cuCtxCreate_v3(cu_context *context, void *affinity, int count, unsigned int flags, cu_device device)
{
	struct pending pending;
	if (driver()->cuCtxCreate_v3 == NULL) {
		return CU_NOT_SUPPORTED;
	}
	if (!begin_context(device_of(device), &pending)) {
		return CU_OUT_OF_MEMORY;
	}
	return finish_create(driver()->cuCtxCreate_v3(context, affinity, count, flags, device),
			     &pending, context);
}

EXPORTED cu_result
cuCtxCreate_v4(cu_context *context, void *params, unsigned int flags, cu_device device)
{
	struct pending pending;
	if (driver()->cuCtxCreate_v4 == NULL) {
		return CU_NOT_SUPPORTED;
	}
	if (!begin_context(device_of(device), &pending)) {
		return CU_OUT_OF_MEMORY;
	}
	return finish_create(driver()->cuCtxCreate_v4(context, params, flags, device), &pending,
			     context);
}

EXPORTED cu_result
cuCtxDestroy_v2(cu_context context)
{
	cu_result result = driver()->cuCtxDestroy_v2 == NULL ? CU_NOT_SUPPORTED
							     : driver()->cuCtxDestroy_v2(context);
	if (result == CU_OK) {
		context_ended((uint64_t)(uintptr_t)context, (uint64_t)(uintptr_t)context);
	}
	return result;
}

EXPORTED cu_result
cuCtxDestroy(cu_context context)
{
	cu_result result =
	    driver()->cuCtxDestroy == NULL ? CU_NOT_SUPPORTED : driver()->cuCtxDestroy(context);
	if (result == CU_OK) {
		context_ended((uint64_t)(uintptr_t)context, (uint64_t)(uintptr_t)context);
	}
	return result;
}

/* Handle of each device's primary context, to know what ends with it. */
static uint64_t primary_context[MAX_DEVICES];

static bool
primary_is_active(cu_device device)
{
	unsigned int flags;
	int active = 0;
	return driver()->cuDevicePrimaryCtxGetState != NULL &&
	       driver()->cuDevicePrimaryCtxGetState(device, &flags, &active) == CU_OK &&
	       active != 0;
}

static cu_result
release_real(cu_device device)
{
	return driver()->cuDevicePrimaryCtxRelease_v2 != NULL
		   ? driver()->cuDevicePrimaryCtxRelease_v2(device)
		   : driver()->cuDevicePrimaryCtxRelease(device);
}

/* The CUDA runtime may make a primary context through the driver's private tables, past every hook:
 * found when memory is asked for. Its cost is what earlier contexts of this container cost, or what
 * NVML says this process holds. */
void
context_account_hidden(struct device *device)
{
	static uint8_t looked[MAX_DEVICES];
	struct block block;
	if (device == NULL || device->row == NULL ||
	    __atomic_exchange_n(&looked[device_number(device)], 1, __ATOMIC_RELAXED) != 0 ||
	    block_peek(SPACE_CONTEXT, PRIMARY_KEY(device), &block) ||
	    !primary_is_active(device->handle)) {
		return;
	}
	uint64_t cost = context_cost_known(device);
	cost = cost > 0 ? cost : context_cost_after(device, UINT64_MAX);
	quota_add(device, KIND_CONTEXT, cost);
	charge_remember(device, SPACE_CONTEXT, PRIMARY_KEY(device), KIND_CONTEXT, cost, 0);
	__atomic_store_n(&primary_context[device_number(device)], current_owner(),
			 __ATOMIC_RELAXED);
}

EXPORTED cu_result
cuDevicePrimaryCtxRetain(cu_context *context, cu_device handle)
{
	struct pending pending;
	struct block block;
	if (driver()->cuDevicePrimaryCtxRetain == NULL) {
		return CU_NOT_SUPPORTED;
	}
	struct device *device = device_of(handle);
	if (device == NULL || block_peek(SPACE_CONTEXT, PRIMARY_KEY(device), &block)) {
		return driver()->cuDevicePrimaryCtxRetain(context, handle);
	}
	if (!begin_context(device, &pending)) {
		return CU_OUT_OF_MEMORY;
	}
	cu_result result = driver()->cuDevicePrimaryCtxRetain(context, handle);
	if (result != CU_OK) {
		cancel_context(&pending);
		return result;
	}
	if (!finish_context(&pending, PRIMARY_KEY(device), (uint64_t)(uintptr_t)*context)) {
		release_real(handle);
		return CU_OUT_OF_MEMORY;
	}
	__atomic_store_n(&primary_context[device_number(device)], (uint64_t)(uintptr_t)*context,
			 __ATOMIC_RELAXED);
	return CU_OK;
}

static cu_result
primary_released(cu_result result, cu_device handle, bool reset)
{
	struct device *device = result == CU_OK ? device_of(handle) : NULL;
	if (device != NULL && (reset || !primary_is_active(handle))) {
		uint64_t *context = &primary_context[device_number(device)];
		context_ended(PRIMARY_KEY(device),
			      __atomic_exchange_n(context, 0, __ATOMIC_RELAXED));
	}
	return result;
}

EXPORTED cu_result
cuDevicePrimaryCtxRelease(cu_device device)
{
	return driver()->cuDevicePrimaryCtxRelease == NULL
		   ? CU_NOT_SUPPORTED
		   : primary_released(driver()->cuDevicePrimaryCtxRelease(device), device, false);
}

EXPORTED cu_result
cuDevicePrimaryCtxRelease_v2(cu_device device)
{
	return driver()->cuDevicePrimaryCtxRelease_v2 == NULL
		   ? CU_NOT_SUPPORTED
		   : primary_released(driver()->cuDevicePrimaryCtxRelease_v2(device), device,
				      false);
}

EXPORTED cu_result
cuDevicePrimaryCtxReset(cu_device device)
{
	return driver()->cuDevicePrimaryCtxReset == NULL
		   ? CU_NOT_SUPPORTED
		   : primary_released(driver()->cuDevicePrimaryCtxReset(device), device, true);
}

EXPORTED cu_result
cuDevicePrimaryCtxReset_v2(cu_device device)
{
	return driver()->cuDevicePrimaryCtxReset_v2 == NULL
		   ? CU_NOT_SUPPORTED
		   : primary_released(driver()->cuDevicePrimaryCtxReset_v2(device), device, true);
}
