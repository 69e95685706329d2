/* Launch hooks: a few loads and one compare when no core limit is set, then a jump into the driver.
 * Otherwise wait for the container's share, launch, and let the limiter measure.
 */
#include "compute.h"
#include "driver.h"
#include "hooks.h"

/* The long lists of the launch calls, once. */
#define GRID_PARAMETERS                                                                            \
	cu_function function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,       \
	    unsigned int block_x, unsigned int block_y, unsigned int block_z,                      \
	    unsigned int shared_bytes, cu_stream stream, void **params
#define GRID_ARGUMENTS                                                                             \
	function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, params
#define EX_PARAMETERS                                                                              \
	const struct cu_launch_config *config, cu_function function, void **params, void **extra
#define EX_ARGUMENTS config, function, params, extra

#define GRID_LAUNCH                                                                                \
	{.function = function,                                                                     \
	 .blocks = grid_blocks(grid_x, grid_y, grid_z),                                            \
	 .threads = block_x * block_y * block_z,                                                   \
	 .stream = stream,                                                                         \
	 .per_thread = per_thread}

typedef cu_result kernel_launcher(GRID_PARAMETERS, void **extra);
typedef cu_result cooperative_launcher(GRID_PARAMETERS);
typedef cu_result ex_launcher(EX_PARAMETERS);

/* A way that a hook takes when there is a limit; named in it, so it must keep its name. */
#define LIMITED static __attribute__((noinline, used))

static cu_result
limited_kernel(kernel_launcher *real, bool per_thread, GRID_PARAMETERS, void **extra)
{
	if (real == NULL) {
		return CU_NOT_SUPPORTED;
	}
	struct launch launch = GRID_LAUNCH;
	compute_begin(&launch);
	cu_result result = real(GRID_ARGUMENTS, extra);
	compute_end(&launch, result);
	return result;
}

static cu_result
limited_cooperative(cooperative_launcher *real, bool per_thread, GRID_PARAMETERS)
{
	if (real == NULL) {
		return CU_NOT_SUPPORTED;
	}
	struct launch launch = GRID_LAUNCH;
	compute_begin(&launch);
	cu_result result = real(GRID_ARGUMENTS);
	compute_end(&launch, result);
	return result;
}

static cu_result
limited_ex(ex_launcher *real, bool per_thread, EX_PARAMETERS)
{
	if (real == NULL) {
		return CU_NOT_SUPPORTED;
	}
	if (config == NULL) {
		return real(EX_ARGUMENTS);
	}
	struct launch launch = {
	    .function = function,
	    .blocks = grid_blocks(config->grid_x, config->grid_y, config->grid_z),
	    .threads = config->block_x * config->block_y * config->block_z,
	    .stream = config->stream,
	    .per_thread = per_thread,
	};
	compute_begin(&launch);
	cu_result result = real(EX_ARGUMENTS);
	compute_end(&launch, result);
	return result;
}

LIMITED cu_result
limited_kernel_legacy(GRID_PARAMETERS, void **extra)
{
	return limited_kernel(driver()->cuLaunchKernel, false, GRID_ARGUMENTS, extra);
}

LIMITED cu_result
limited_kernel_per_thread(GRID_PARAMETERS, void **extra)
{
	return limited_kernel(driver()->cuLaunchKernel_ptsz, true, GRID_ARGUMENTS, extra);
}

LIMITED cu_result
limited_cooperative_legacy(GRID_PARAMETERS)
{
	return limited_cooperative(driver()->cuLaunchCooperativeKernel, false, GRID_ARGUMENTS);
}

LIMITED cu_result
limited_cooperative_per_thread(GRID_PARAMETERS)
{
	return limited_cooperative(driver()->cuLaunchCooperativeKernel_ptsz, true, GRID_ARGUMENTS);
}

LIMITED cu_result
limited_ex_legacy(EX_PARAMETERS)
{
	return limited_ex(driver()->cuLaunchKernelEx, false, EX_ARGUMENTS);
}

LIMITED cu_result
limited_ex_per_thread(EX_PARAMETERS)
{
	return limited_ex(driver()->cuLaunchKernelEx_ptsz, true, EX_ARGUMENTS);
}

/* The hooks themselves. Open: jump into the driver, every argument where the caller put it. */
#if defined(__x86_64__)
/* Compilers carry the arguments on the stack through registers before they jump, which costs more
 * than all the rest. */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define HOOK(name, parameters, arguments, limited)                                                 \
	EXPORTED __attribute__((naked)) cu_result name(parameters)                                 \
	{                                                                                          \
		__asm__(                                                                           \
		    "movq limits_sequence_word(%%rip), %%rax\n\t"                                  \
		    "movl (%%rax), %%eax\n\t"                                                      \
		    "cmpl compute_open_at(%%rip), %%eax\n\t"                                       \
		    "jne " #limited "\n\t"                                                         \
		    "jmp *driver_loaded+%c0(%%rip)" ::"i"(offsetof(struct driver_table, name)));   \
	}
#else
#define HOOK(name, parameters, arguments, limited)                                                 \
	EXPORTED cu_result name(parameters)                                                        \
	{                                                                                          \
		return (compute_is_open() ? driver_loaded.name : limited)(arguments);              \
	}
#endif

#define LIST(...) __VA_ARGS__

HOOK(cuLaunchKernel, LIST(GRID_PARAMETERS, void **extra), LIST(GRID_ARGUMENTS, extra),
     limited_kernel_legacy)
HOOK(cuLaunchKernel_ptsz, LIST(GRID_PARAMETERS, void **extra), LIST(GRID_ARGUMENTS, extra),
     limited_kernel_per_thread)
HOOK(cuLaunchCooperativeKernel, LIST(GRID_PARAMETERS), LIST(GRID_ARGUMENTS),
     limited_cooperative_legacy)
HOOK(cuLaunchCooperativeKernel_ptsz, LIST(GRID_PARAMETERS), LIST(GRID_ARGUMENTS),
     limited_cooperative_per_thread)
HOOK(cuLaunchKernelEx, LIST(EX_PARAMETERS), LIST(EX_ARGUMENTS), limited_ex_legacy)
HOOK(cuLaunchKernelEx_ptsz, LIST(EX_PARAMETERS), LIST(EX_ARGUMENTS), limited_ex_per_thread)

static cu_result
launch_graph(cu_graph_exec exec, cu_stream stream, bool per_thread)
{
	cu_result (*real)(cu_graph_exec, cu_stream) =
	    per_thread ? driver()->cuGraphLaunch_ptsz : driver()->cuGraphLaunch;
	if (real == NULL) {
		return CU_NOT_SUPPORTED;
	}
	struct launch launch = {exec, 0, 0, stream, per_thread, NULL, 0};
	bool limited = !compute_is_open();
	if (limited) {
		compute_begin(&launch);
	}
	cu_result result = real(exec, stream);
	if (limited) {
		compute_end(&launch, result);
	}
	if (result == CU_OK) {
		graph_started(exec);
	}
	return result;
}

EXPORTED cu_result
cuGraphLaunch(cu_graph_exec exec, cu_stream stream)
{
	return launch_graph(exec, stream, false);
}

EXPORTED cu_result
cuGraphLaunch_ptsz(cu_graph_exec exec, cu_stream stream)
{
	return launch_graph(exec, stream, true);
}

/* Launches on several devices at once (removed in CUDA 13): each device's share is waited for in
 * turn. */
EXPORTED cu_result
cuLaunchCooperativeKernelMultiDevice(struct cu_launch_params *list, unsigned int count,
				     unsigned int flags)
{
	if (driver()->cuLaunchCooperativeKernelMultiDevice == NULL) {
		return CU_NOT_SUPPORTED;
	}
	bool limited = !compute_is_open() && list != NULL && count > 0;
	struct launch launch = {NULL, 0, 0, NULL, false, NULL, 0};
	if (limited) {
		launch = (struct launch){list->function,
					 grid_blocks(list->grid_x, list->grid_y, list->grid_z),
					 list->block_x * list->block_y * list->block_z,
					 list->stream,
					 false,
					 NULL,
					 0};
		compute_begin(&launch);
	}
	cu_result result = driver()->cuLaunchCooperativeKernelMultiDevice(list, count, flags);
	if (limited) {
		compute_end(&launch, result);
	}
	return result;
}

EXPORTED cu_result
cuLaunch(cu_function function)
{
	if (driver()->cuLaunch == NULL) {
		return CU_NOT_SUPPORTED;
	}
	if (compute_is_open()) {
		return driver()->cuLaunch(function);
	}
	struct launch launch = {function, 1, 1, NULL, false, NULL, 0};
	compute_begin(&launch);
	cu_result result = driver()->cuLaunch(function);
	compute_end(&launch, result);
	return result;
}

EXPORTED cu_result
cuLaunchGrid(cu_function function, int width, int height)
{
	if (driver()->cuLaunchGrid == NULL) {
		return CU_NOT_SUPPORTED;
	}
	if (compute_is_open()) {
		return driver()->cuLaunchGrid(function, width, height);
	}
	struct launch launch = {function, grid_blocks((unsigned int)width, (unsigned int)height, 1),
				1,        NULL,
				false,    NULL,
				0};
	compute_begin(&launch);
	cu_result result = driver()->cuLaunchGrid(function, width, height);
	compute_end(&launch, result);
	return result;
}

EXPORTED cu_result
cuLaunchGridAsync(cu_function function, int width, int height, cu_stream stream)
{
	if (driver()->cuLaunchGridAsync == NULL) {
		return CU_NOT_SUPPORTED;
	}
	if (compute_is_open()) {
		return driver()->cuLaunchGridAsync(function, width, height, stream);
	}
	struct launch launch = {function, grid_blocks((unsigned int)width, (unsigned int)height, 1),
				1,        stream,
				false,    NULL,
				0};
	compute_begin(&launch);
	cu_result result = driver()->cuLaunchGridAsync(function, width, height, stream);
	compute_end(&launch, result);
	return result;
}
