/* Copies and fills. Device addresses are host addresses, so the bytes really move; a copy waits for
 * the work before it. */
#include <string.h>

#include "graphs.h"
#include "memory.h"
#include "streams.h"

/* A fill with anything but zero stops here, so that a test which "fills" a card does not fill the
 * machine. */
static const uint64_t MOST_FILLED = 64ULL << 20;

/* Host pages stay untouched for device memory that was never written. */
static bool
usable(cu_deviceptr address, size_t bytes, bool writes)
{
	blocks_lock();
	struct block *block = block_find(address);
	bool inside = block != NULL && bytes <= block->bytes - (address - block->address);
	bool foreign = block == NULL && !block_is_device(address);
	if (inside && writes) {
		block->touched = true;
	}
	blocks_unlock();
	return inside || foreign;
}

static cu_result
move(struct stream *stream, uint64_t to, uint64_t from, size_t bytes, bool waits)
{
	if (stream == NULL) {
		return context_current() == NULL ? CU_INVALID_CONTEXT : CU_INVALID_HANDLE;
	}
	if (bytes == 0) {
		return CU_OK;
	}
	if (to == 0 || from == 0 || !usable(to, bytes, true) || !usable(from, bytes, false)) {
		return CU_INVALID_VALUE;
	}
	if (stream->capture != NULL) {
		return graph_capture_work(stream->capture, 0);
	}
	if (gpu_lost(stream->context->domain)) {
		return CU_NO_DEVICE;
	}
	if (waits) {
		timeline_wait(stream->context->domain, stream->tail);
	}
	memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
	return CU_OK;
}

cu_result
fake_cuMemcpy(cu_deviceptr to, cu_deviceptr from, size_t bytes)
{
	return move(stream_checked(NULL), to, from, bytes, true);
}

cu_result
fake_cuMemcpyAsync(cu_deviceptr to, cu_deviceptr from, size_t bytes, void *stream)
{
	return move(stream_checked(stream), to, from, bytes, false);
}

cu_result
fake_cuMemcpyHtoD_v2(cu_deviceptr to, const void *from, size_t bytes)
{
	return move(stream_checked(NULL), to, (uint64_t)(uintptr_t)from, bytes, true);
}

cu_result
fake_cuMemcpyHtoDAsync_v2(cu_deviceptr to, const void *from, size_t bytes, void *stream)
{
	return move(stream_checked(stream), to, (uint64_t)(uintptr_t)from, bytes, false);
}

cu_result
fake_cuMemcpyDtoH_v2(void *to, cu_deviceptr from, size_t bytes)
{
	return move(stream_checked(NULL), (uint64_t)(uintptr_t)to, from, bytes, true);
}

cu_result
fake_cuMemcpyDtoHAsync_v2(void *to, cu_deviceptr from, size_t bytes, void *stream)
{
	return move(stream_checked(stream), (uint64_t)(uintptr_t)to, from, bytes, false);
}

cu_result
fake_cuMemcpyDtoD_v2(cu_deviceptr to, cu_deviceptr from, size_t bytes)
{
	return move(stream_checked(NULL), to, from, bytes, true);
}

cu_result
fake_cuMemcpyDtoDAsync_v2(cu_deviceptr to, cu_deviceptr from, size_t bytes, void *stream)
{
	return move(stream_checked(stream), to, from, bytes, false);
}

cu_result
fake_cuMemcpyPeer(cu_deviceptr to, void *to_context, cu_deviceptr from, void *from_context,
		  size_t bytes)
{
	bool contexts =
	    context_checked(to_context) != NULL && context_checked(from_context) != NULL;
	return contexts ? move(stream_checked(NULL), to, from, bytes, true) : CU_INVALID_CONTEXT;
}

cu_result
fake_cuMemcpyPeerAsync(cu_deviceptr to, void *to_context, cu_deviceptr from, void *from_context,
		       size_t bytes, void *stream)
{
	bool contexts =
	    context_checked(to_context) != NULL && context_checked(from_context) != NULL;
	return contexts ? move(stream_checked(stream), to, from, bytes, false) : CU_INVALID_CONTEXT;
}

/* Rows of a rectangle; arrays are opaque, so copies to and from them only pass the checks. */
static cu_result
move_2d(const struct copy_2d *copy, struct stream *stream, bool waits)
{
	if (copy == NULL || copy->from_type < 1 || copy->from_type > 4 || copy->to_type < 1 ||
	    copy->to_type > 4) {
		return CU_INVALID_VALUE;
	}
	uint64_t from =
	    copy->from_type == 1 ? (uint64_t)(uintptr_t)copy->from_host : copy->from_device;
	uint64_t to = copy->to_type == 1 ? (uint64_t)(uintptr_t)copy->to_host : copy->to_device;
	bool opaque = copy->from_type == 3 || copy->to_type == 3;
	for (size_t row = 0; !opaque && row < copy->height; row++) {
		cu_result result =
		    move(stream, to + (copy->to_y + row) * copy->to_pitch + copy->to_x,
			 from + (copy->from_y + row) * copy->from_pitch + copy->from_x, copy->width,
			 waits);
		if (result != CU_OK) {
			return result;
		}
	}
	return stream != NULL ? CU_OK : CU_INVALID_HANDLE;
}

cu_result
fake_cuMemcpy2D_v2(const struct copy_2d *copy)
{
	return move_2d(copy, stream_checked(NULL), true);
}

cu_result
fake_cuMemcpy2DUnaligned_v2(const struct copy_2d *copy)
{
	return move_2d(copy, stream_checked(NULL), true);
}

cu_result
fake_cuMemcpy2DAsync_v2(const struct copy_2d *copy, void *stream)
{
	return move_2d(copy, stream_checked(stream), false);
}

static cu_result
move_3d(const struct copy_3d *copy, struct stream *stream, bool waits)
{
	cu_result result = copy == NULL ? CU_INVALID_VALUE : CU_OK;
	for (size_t z = 0; result == CU_OK && z < copy->depth; z++) {
		struct copy_2d slice = {
		    .from_x = copy->from_x,
		    .from_y = copy->from_y + (copy->from_z + z) * copy->from_height,
		    .from_type = copy->from_type,
		    .from_host = copy->from_host,
		    .from_device = copy->from_device,
		    .from_pitch = copy->from_pitch,
		    .to_x = copy->to_x,
		    .to_y = copy->to_y + (copy->to_z + z) * copy->to_height,
		    .to_type = copy->to_type,
		    .to_host = copy->to_host,
		    .to_device = copy->to_device,
		    .to_pitch = copy->to_pitch,
		    .width = copy->width,
		    .height = copy->height,
		};
		result = move_2d(&slice, stream, waits);
	}
	return result;
}

cu_result
fake_cuMemcpy3D_v2(const struct copy_3d *copy)
{
	return move_3d(copy, stream_checked(NULL), true);
}

cu_result
fake_cuMemcpy3DAsync_v2(const struct copy_3d *copy, void *stream)
{
	return move_3d(copy, stream_checked(stream), false);
}

/* Many copies in one call; hints about their sources are not needed here. */
cu_result
fake_cuMemcpyBatchAsync_v2(const cu_deviceptr *to, const cu_deviceptr *from, const size_t *bytes,
			   size_t count, const void *hints, const size_t *hint_of,
			   size_t hint_count, void *stream)
{
	cu_result result = to != NULL && from != NULL && bytes != NULL ? CU_OK : CU_INVALID_VALUE;
	(void)hints;
	(void)hint_of;
	(void)hint_count;
	for (size_t i = 0; result == CU_OK && i < count; i++) {
		result = move(stream_checked(stream), to[i], from[i], bytes[i], false);
	}
	return result;
}

cu_result
fake_cuMemcpyBatchAsync(const cu_deviceptr *to, const cu_deviceptr *from, const size_t *bytes,
			size_t count, const void *hints, const size_t *hint_of, size_t hint_count,
			size_t *failed, void *stream)
{
	if (failed != NULL) {
		*failed = SIZE_MAX;
	}
	return fake_cuMemcpyBatchAsync_v2(to, from, bytes, count, hints, hint_of, hint_count,
					  stream);
}

static cu_result
fill(struct stream *stream, cu_deviceptr address, uint32_t value, size_t width, size_t count,
     bool waits)
{
	if (stream == NULL) {
		return context_current() == NULL ? CU_INVALID_CONTEXT : CU_INVALID_HANDLE;
	}
	size_t bytes = 0;
	if (__builtin_mul_overflow(count, width, &bytes) || address % width != 0 ||
	    (bytes > 0 && !usable(address, bytes, value != 0))) {
		return CU_INVALID_VALUE;
	}
	if (stream->capture != NULL) {
		return graph_capture_work(stream->capture, 0);
	}
	if (waits) {
		timeline_wait(stream->context->domain, stream->tail);
	}
	unsigned char *at = (unsigned char *)(uintptr_t)address;
	if (value == 0) {
		blocks_lock();
		const struct block *block = block_find(address);
		bool written = block == NULL || block->touched;
		blocks_unlock();
		if (written) {
			memset(at, 0, bytes);
		}
		return CU_OK;
	}
	for (size_t done = 0; done < bytes && done < MOST_FILLED; done += width) {
		memcpy(at + done, &value, width);
	}
	return CU_OK;
}

cu_result
fake_cuMemsetD8_v2(cu_deviceptr address, unsigned char value, size_t count)
{
	return fill(stream_checked(NULL), address, value, 1, count, true);
}

cu_result
fake_cuMemsetD16_v2(cu_deviceptr address, unsigned short value, size_t count)
{
	return fill(stream_checked(NULL), address, value, 2, count, true);
}

cu_result
fake_cuMemsetD32_v2(cu_deviceptr address, unsigned value, size_t count)
{
	return fill(stream_checked(NULL), address, value, 4, count, true);
}

cu_result
fake_cuMemsetD8Async(cu_deviceptr address, unsigned char value, size_t count, void *stream)
{
	return fill(stream_checked(stream), address, value, 1, count, false);
}

cu_result
fake_cuMemsetD16Async(cu_deviceptr address, unsigned short value, size_t count, void *stream)
{
	return fill(stream_checked(stream), address, value, 2, count, false);
}

cu_result
fake_cuMemsetD32Async(cu_deviceptr address, unsigned value, size_t count, void *stream)
{
	return fill(stream_checked(stream), address, value, 4, count, false);
}

static cu_result
fill_rows(struct stream *stream, cu_deviceptr address, size_t pitch, uint32_t value, size_t element,
	  size_t width, size_t height)
{
	cu_result result = stream != NULL ? CU_OK : CU_INVALID_HANDLE;
	for (size_t row = 0; result == CU_OK && row < height; row++) {
		result = fill(stream, address + row * pitch, value, element, width, row == 0);
	}
	return result;
}

cu_result
fake_cuMemsetD2D8_v2(cu_deviceptr address, size_t pitch, unsigned char value, size_t width,
		     size_t height)
{
	return fill_rows(stream_checked(NULL), address, pitch, value, 1, width, height);
}

cu_result
fake_cuMemsetD2D16_v2(cu_deviceptr address, size_t pitch, unsigned short value, size_t width,
		      size_t height)
{
	return fill_rows(stream_checked(NULL), address, pitch, value, 2, width, height);
}

cu_result
fake_cuMemsetD2D32_v2(cu_deviceptr address, size_t pitch, unsigned value, size_t width,
		      size_t height)
{
	return fill_rows(stream_checked(NULL), address, pitch, value, 4, width, height);
}

cu_result
fake_cuMemsetD2D8Async(cu_deviceptr address, size_t pitch, unsigned char value, size_t width,
		       size_t height, void *stream)
{
	return fill_rows(stream_checked(stream), address, pitch, value, 1, width, height);
}

cu_result
fake_cuMemsetD2D16Async(cu_deviceptr address, size_t pitch, unsigned short value, size_t width,
			size_t height, void *stream)
{
	return fill_rows(stream_checked(stream), address, pitch, value, 2, width, height);
}

cu_result
fake_cuMemsetD2D32Async(cu_deviceptr address, size_t pitch, unsigned value, size_t width,
			size_t height, void *stream)
{
	return fill_rows(stream_checked(stream), address, pitch, value, 4, width, height);
}
