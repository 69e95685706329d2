/* CUDA arrays and mipmapped arrays: opaque memory with rows padded to 512 bytes. */
#include <stdlib.h>
#include <string.h>

#include "memory.h"

static const uint64_t ARRAY_MAGIC = 0x0079617272617067ULL;

enum { MAX_LEVELS = 20, FLAG_SPARSE = 0x40, FLAG_DEFERRED = 0x80 };

struct array {
	uint64_t magic;
	struct descriptor_3d shape;
	struct block *block; /* NULL: a level of a mipmapped array, or memory is bound later */
	uint64_t address;    /* of the block, to see whether it still lives */
	unsigned level_count;
	struct array *levels[MAX_LEVELS];
};

static struct array *
array_checked(void *handle)
{
	struct array *array = handle;
	return array != NULL && array->magic == ARRAY_MAGIC ? array : NULL;
}

/* Bytes of one channel by the format's number in cuda.h; 0: unknown. */
static uint64_t
format_bytes(int format)
{
	switch (format) {
	case 0x01:
	case 0x08:
		return 1;
	case 0x02:
	case 0x09:
	case 0x10:
		return 2;
	case 0x03:
	case 0x0a:
	case 0x20:
		return 4;
	default:
		return 0;
	}
}

static bool
shape_bytes(const struct descriptor_3d *shape, uint64_t *bytes)
{
	bool channels = shape->channels == 1 || shape->channels == 2 || shape->channels == 4;
	uint64_t row = shape->width * format_bytes(shape->format) * shape->channels;
	if (row == 0 || !channels || shape->width > 131072 || shape->height > 131072 ||
	    shape->depth > 16384) {
		return false;
	}
	uint64_t rows =
	    (shape->height == 0 ? 1 : shape->height) * (shape->depth == 0 ? 1 : shape->depth);
	*bytes = (row + 511) / 512 * 512 * rows;
	return true;
}

static struct array *
array_new(const struct descriptor_3d *shape)
{
	struct array *array = calloc(1, sizeof *array);
	if (array != NULL) {
		array->magic = ARRAY_MAGIC;
		array->shape = *shape;
	}
	return array;
}

static cu_result
array_create(struct array **out, const struct descriptor_3d *shape, uint64_t bytes)
{
	struct array *array = array_new(shape);
	if (array == NULL) {
		return CU_OUT_OF_MEMORY;
	}
	bool later = (shape->flags & (FLAG_SPARSE | FLAG_DEFERRED)) != 0;
	cu_result result = later ? CU_OK : memory_allocate(KIND_ARRAY, bytes, &array->block);
	if (result != CU_OK) {
		free(array);
		return result;
	}
	array->address = array->block != NULL ? array->block->address : 0;
	if (array->block != NULL) {
		array->block->pool = array; /* marks the block as ours: its place may be reused
					       after the context is gone */
	}
	*out = array;
	return CU_OK;
}

cu_result
fake_cuArray3DCreate_v2(struct array **out, const struct descriptor_3d *shape)
{
	uint64_t bytes = 0;
	if (context_current() == NULL) {
		return CU_INVALID_CONTEXT;
	}
	return out == NULL || shape == NULL || !shape_bytes(shape, &bytes)
		   ? CU_INVALID_VALUE
		   : array_create(out, shape, bytes);
}

cu_result
fake_cuArrayCreate_v2(struct array **out, const struct descriptor *shape)
{
	if (shape == NULL) {
		return CU_INVALID_VALUE;
	}
	struct descriptor_3d full = {shape->width,  shape->height,   0,
				     shape->format, shape->channels, 0};
	return fake_cuArray3DCreate_v2(out, &full);
}

static void
array_free(struct array *array)
{
	if (array->block != NULL && block_at(array->address) == array->block &&
	    array->block->pool == array) {
		memory_release(array->block);
	}
	for (unsigned i = 0; i < array->level_count; i++) {
		array->levels[i]->magic = 0;
		free(array->levels[i]);
	}
	array->magic = 0;
	free(array);
}

cu_result
fake_cuArrayDestroy(void *handle)
{
	struct array *array = array_checked(handle);
	if (array == NULL || array->level_count > 0) {
		return CU_INVALID_HANDLE;
	}
	array_free(array);
	return CU_OK;
}

cu_result
fake_cuArray3DGetDescriptor_v2(struct descriptor_3d *out, void *handle)
{
	const struct array *array = array_checked(handle);
	if (out == NULL || array == NULL) {
		return out == NULL ? CU_INVALID_VALUE : CU_INVALID_HANDLE;
	}
	*out = array->shape;
	return CU_OK;
}

cu_result
fake_cuArrayGetDescriptor_v2(struct descriptor *out, void *handle)
{
	const struct array *array = array_checked(handle);
	if (out == NULL || array == NULL) {
		return out == NULL ? CU_INVALID_VALUE : CU_INVALID_HANDLE;
	}
	*out = (struct descriptor){array->shape.width, array->shape.height, array->shape.format,
				   array->shape.channels};
	return CU_OK;
}

static uint64_t
pyramid_bytes(const struct descriptor_3d *shape, unsigned levels)
{
	uint64_t total = 0;
	struct descriptor_3d level = *shape;
	for (unsigned i = 0; i < levels; i++) {
		uint64_t bytes = 0;
		shape_bytes(&level, &bytes);
		total += bytes;
		level.width = level.width > 1 ? level.width / 2 : 1;
		level.height = level.height > 1 ? level.height / 2 : level.height;
		level.depth = level.depth > 1 ? level.depth / 2 : level.depth;
	}
	return total;
}

cu_result
fake_cuMipmappedArrayCreate(struct array **out, const struct descriptor_3d *shape, unsigned levels)
{
	uint64_t bytes = 0;
	if (context_current() == NULL) {
		return CU_INVALID_CONTEXT;
	}
	if (out == NULL || shape == NULL || levels == 0 || levels > MAX_LEVELS ||
	    !shape_bytes(shape, &bytes)) {
		return CU_INVALID_VALUE;
	}
	cu_result result = array_create(out, shape, pyramid_bytes(shape, levels));
	struct descriptor_3d level = *shape;
	for (unsigned i = 0; result == CU_OK && i < levels; i++) {
		struct array *child = array_new(&level);
		if (child == NULL) {
			array_free(*out);
			return CU_OUT_OF_MEMORY;
		}
		(*out)->levels[(*out)->level_count++] = child;
		level.width = level.width > 1 ? level.width / 2 : 1;
		level.height = level.height > 1 ? level.height / 2 : level.height;
	}
	return result;
}

cu_result
fake_cuMipmappedArrayDestroy(void *handle)
{
	struct array *array = array_checked(handle);
	if (array == NULL || array->level_count == 0) {
		return CU_INVALID_HANDLE;
	}
	array_free(array);
	return CU_OK;
}

cu_result
fake_cuMipmappedArrayGetLevel(struct array **out, void *handle, unsigned level)
{
	const struct array *array = array_checked(handle);
	if (out == NULL || array == NULL || level >= array->level_count) {
		return array == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
	}
	*out = array->levels[level];
	return CU_OK;
}

static cu_result
requirements_of(struct requirements *out, void *handle, cu_device device)
{
	const struct array *array = array_checked(handle);
	if (out == NULL || array == NULL || gpu_at(device) == NULL) {
		return array == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
	}
	uint64_t bytes =
	    pyramid_bytes(&array->shape, array->level_count == 0 ? 1 : array->level_count);
	*out = (struct requirements){.bytes = (bytes + 65535) / 65536 * 65536, .alignment = 65536};
	return CU_OK;
}

cu_result
fake_cuArrayGetMemoryRequirements(struct requirements *out, void *handle, cu_device device)
{
	return requirements_of(out, handle, device);
}

cu_result
fake_cuMipmappedArrayGetMemoryRequirements(struct requirements *out, void *handle, cu_device device)
{
	return requirements_of(out, handle, device);
}
