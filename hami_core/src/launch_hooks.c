/* Launch hooks: one load and one compare when no core limit is set, then a tail call into the
 * driver. Otherwise wait for the container's share, launch, and let the limiter measure.
 */
#include "compute.h"
#include "driver.h"
#include "hooks.h"

static __attribute__((noinline)) cu_result
limited_cuLaunchKernel(cu_function function, unsigned int grid_x, unsigned int grid_y,
		       unsigned int grid_z, unsigned int block_x, unsigned int block_y,
		       unsigned int block_z, unsigned int shared_bytes, cu_stream stream,
		       void **params, void **extra)
{
	if (driver()->cuLaunchKernel == NULL) {
		return CU_NOT_SUPPORTED;
	}
	struct launch launch = {function,
				grid_blocks(grid_x, grid_y, grid_z),
				block_x * block_y * block_z,
				stream,
				false,
				NULL,
				0};
	compute_begin(&launch);
	cu_result result =
	    driver()->cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
				     shared_bytes, stream, params, extra);
	compute_end(&launch, result);
	return result;
}

EXPORTED cu_result
cuLaunchKernel(cu_function function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
	       unsigned int block_x, unsigned int block_y, unsigned int block_z,
	       unsigned int shared_bytes, cu_stream stream, void **params, void **extra)
{
	if (compute_is_open()) {
		return driver_loaded.cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x,
						    block_y, block_z, shared_bytes, stream, params,
						    extra);
	}
	return limited_cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
				      shared_bytes, stream, params, extra);
}

static __attribute__((noinline)) cu_result
limited_cuLaunchCooperativeKernel(cu_function function, unsigned int grid_x, unsigned int grid_y,
				  unsigned int grid_z, unsigned int block_x, unsigned int block_y,
				  unsigned int block_z, unsigned int shared_bytes, cu_stream stream,
				  void **params)
{
	if (driver()->cuLaunchCooperativeKernel == NULL) {
		return CU_NOT_SUPPORTED;
	}
	struct launch launch = {function,
				grid_blocks(grid_x, grid_y, grid_z),
				block_x * block_y * block_z,
				stream,
				false,
				NULL,
				0};
	compute_begin(&launch);
	cu_result result =
	    driver()->cuLaunchCooperativeKernel(function, grid_x, grid_y, grid_z, block_x, block_y,
						block_z, shared_bytes, stream, params);
	compute_end(&launch, result);
	return result;
}

EXPORTED cu_result
cuLaunchCooperativeKernel(cu_function function, unsigned int grid_x, unsigned int grid_y,
			  unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			  unsigned int block_z, unsigned int shared_bytes, cu_stream stream,
			  void **params)
{
	if (compute_is_open()) {
		return driver_loaded.cuLaunchCooperativeKernel(function, grid_x, grid_y, grid_z,
							       block_x, block_y, block_z,
							       shared_bytes, stream, params);
	}
	return limited_cuLaunchCooperativeKernel(function, grid_x, grid_y, grid_z, block_x, block_y,
						 block_z, shared_bytes, stream, params);
}

static __attribute__((noinline)) cu_result
limited_cuLaunchKernel_ptsz(cu_function function, unsigned int grid_x, unsigned int grid_y,
			    unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			    unsigned int block_z, unsigned int shared_bytes, cu_stream stream,
			    void **params, void **extra)
{
	if (driver()->cuLaunchKernel_ptsz == NULL) {
		return CU_NOT_SUPPORTED;
	}
	struct launch launch = {function,
				grid_blocks(grid_x, grid_y, grid_z),
				block_x * block_y * block_z,
				stream,
				true,
				NULL,
				0};
	compute_begin(&launch);
	cu_result result =
	    driver()->cuLaunchKernel_ptsz(function, grid_x, grid_y, grid_z, block_x, block_y,
					  block_z, shared_bytes, stream, params, extra);
	compute_end(&launch, result);
	return result;
}

EXPORTED cu_result
cuLaunchKernel_ptsz(cu_function function, unsigned int grid_x, unsigned int grid_y,
		    unsigned int grid_z, unsigned int block_x, unsigned int block_y,
		    unsigned int block_z, unsigned int shared_bytes, cu_stream stream,
		    void **params, void **extra)
{
	if (compute_is_open()) {
		return driver_loaded.cuLaunchKernel_ptsz(function, grid_x, grid_y, grid_z, block_x,
							 block_y, block_z, shared_bytes, stream,
							 params, extra);
	}
	return limited_cuLaunchKernel_ptsz(function, grid_x, grid_y, grid_z, block_x, block_y,
					   block_z, shared_bytes, stream, params, extra);
}

static __attribute__((noinline)) cu_result
limited_cuLaunchCooperativeKernel_ptsz(cu_function function, unsigned int grid_x,
				       unsigned int grid_y, unsigned int grid_z,
				       unsigned int block_x, unsigned int block_y,
				       unsigned int block_z, unsigned int shared_bytes,
				       cu_stream stream, void **params)
{
	if (driver()->cuLaunchCooperativeKernel_ptsz == NULL) {
		return CU_NOT_SUPPORTED;
	}
	struct launch launch = {function,
				grid_blocks(grid_x, grid_y, grid_z),
				block_x * block_y * block_z,
				stream,
				true,
				NULL,
				0};
	compute_begin(&launch);
	cu_result result = driver()->cuLaunchCooperativeKernel_ptsz(
	    function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
	    params);
	compute_end(&launch, result);
	return result;
}

EXPORTED cu_result
cuLaunchCooperativeKernel_ptsz(cu_function function, unsigned int grid_x, unsigned int grid_y,
			       unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			       unsigned int block_z, unsigned int shared_bytes, cu_stream stream,
			       void **params)
{
	if (compute_is_open()) {
		return driver_loaded.cuLaunchCooperativeKernel_ptsz(
		    function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
		    stream, params);
	}
	return limited_cuLaunchCooperativeKernel_ptsz(function, grid_x, grid_y, grid_z, block_x,
						      block_y, block_z, shared_bytes, stream,
						      params);
}

static __attribute__((noinline)) cu_result
limited_launch_ex(const struct cu_launch_config *config, cu_function function, void **params,
		  void **extra, bool per_thread)
{
	cu_result (*real)(const struct cu_launch_config *, cu_function, void **, void **) =
	    per_thread ? driver()->cuLaunchKernelEx_ptsz : driver()->cuLaunchKernelEx;
	if (real == NULL) {
		return CU_NOT_SUPPORTED;
	}
	if (config == NULL) {
		return real(config, function, params, extra);
	}
	struct launch launch = {function,
				grid_blocks(config->grid_x, config->grid_y, config->grid_z),
				config->block_x * config->block_y * config->block_z,
				config->stream,
				per_thread,
				NULL,
				0};
	compute_begin(&launch);
	cu_result result = real(config, function, params, extra);
	compute_end(&launch, result);
	return result;
}

EXPORTED cu_result
cuLaunchKernelEx(const struct cu_launch_config *config, cu_function function, void **params,
		 void **extra)
{
	if (compute_is_open()) {
		return driver_loaded.cuLaunchKernelEx(config, function, params, extra);
	}
	return limited_launch_ex(config, function, params, extra, false);
}

EXPORTED cu_result
cuLaunchKernelEx_ptsz(const struct cu_launch_config *config, cu_function function, void **params,
		      void **extra)
{
	if (compute_is_open()) {
		return driver_loaded.cuLaunchKernelEx_ptsz(config, function, params, extra);
	}
	return limited_launch_ex(config, function, params, extra, true);
}

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
