/* Kernel launches in all their forms. */
#include "modules.h"
#include "streams.h"

static cu_result
launch(struct function *function, uint64_t blocks, uint64_t threads, void *stream_handle,
       void **parameters)
{
	struct stream *stream = stream_checked(stream_handle);
	if (stream == NULL) {
		return context_current() == NULL ? CU_INVALID_CONTEXT : CU_INVALID_HANDLE;
	}
	if (blocks == 0 || threads == 0 || threads > 1024) {
		return CU_INVALID_VALUE;
	}
	uint64_t time = function_time(function, blocks, parameters);
	return time == 0 && stream->capture == NULL ? CU_OK : stream_work(stream, time);
}

/* A kernel that takes no time (…_0ns) does not touch the timeline at all: the bare cost of a
 * launch. */
cu_result
fake_cuLaunchKernel(void *handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
		    unsigned bz, unsigned shared, void *stream, void **parameters, void **extra)
{
	struct function *function = function_checked(handle);
	(void)shared;
	(void)extra;
	if (function == NULL) {
		return CU_INVALID_HANDLE;
	}
	return launch(function, (uint64_t)gx * gy * gz, (uint64_t)bx * by * bz, stream, parameters);
}

cu_result
fake_cuLaunchCooperativeKernel(void *handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
			       unsigned by, unsigned bz, unsigned shared, void *stream,
			       void **parameters)
{
	return fake_cuLaunchKernel(handle, gx, gy, gz, bx, by, bz, shared, stream, parameters,
				   NULL);
}

cu_result
fake_cuLaunchKernelEx(const struct launch_config *config, void *handle, void **parameters,
		      void **extra)
{
	if (config == NULL) {
		return CU_INVALID_VALUE;
	}
	return fake_cuLaunchKernel(handle, config->grid[0], config->grid[1], config->grid[2],
				   config->block[0], config->block[1], config->block[2],
				   config->shared_bytes, config->stream, parameters, extra);
}

cu_result
fake_cuLaunchCooperativeKernelMultiDevice(const struct cooperative_launch *list, unsigned count,
					  unsigned flags)
{
	if (list == NULL || count == 0 || flags > 3) {
		return CU_INVALID_VALUE;
	}
	for (unsigned i = 0; i < count; i++) {
		const struct cooperative_launch *l = &list[i];
		cu_result result = fake_cuLaunchKernel(
		    l->function, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1],
		    l->block[2], l->shared_bytes, l->stream, l->parameters, NULL);
		if (result != CU_OK) {
			return result;
		}
	}
	return CU_OK;
}

/* The launches of CUDA 3: one block of the shape set before, or a grid of them. */
cu_result
fake_cuLaunchGridAsync(void *handle, int width, int height, void *stream)
{
	if (width <= 0 || height <= 0) {
		return CU_INVALID_VALUE;
	}
	return fake_cuLaunchKernel(handle, (unsigned)width, (unsigned)height, 1, 1, 1, 1, 0, stream,
				   NULL, NULL);
}

cu_result
fake_cuLaunchGrid(void *handle, int width, int height)
{
	return fake_cuLaunchGridAsync(handle, width, height, NULL);
}

cu_result
fake_cuLaunch(void *handle)
{
	return fake_cuLaunchGridAsync(handle, 1, 1, NULL);
}
