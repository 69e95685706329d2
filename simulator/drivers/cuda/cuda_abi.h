/* The parts of the CUDA driver's binary interface that this driver speaks, in our own words. A test
 * compiles tests/native/drivers/cuda_abi_check.c, which compares every figure here with NVIDIA's
 * own header. */
#ifndef GPUSLICE_FAKE_CUDA_ABI_H
#define GPUSLICE_FAKE_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int cu_result;
typedef int cu_device;
typedef uint64_t cu_deviceptr;
typedef uint64_t cu_mem_handle;

enum {
	CU_OK = 0,
	CU_INVALID_VALUE = 1,
	CU_OUT_OF_MEMORY = 2,
	CU_NOT_INITIALIZED = 3,
	CU_DEINITIALIZED = 4,
	CU_NO_DEVICE = 100,
	CU_INVALID_DEVICE = 101,
	CU_INVALID_IMAGE = 200,
	CU_INVALID_CONTEXT = 201,
	CU_MAP_FAILED = 205,
	CU_ALREADY_MAPPED = 208,
	CU_NOT_MAPPED = 211,
	CU_UNSUPPORTED_LIMIT = 215,
	CU_PEER_ACCESS_UNSUPPORTED = 217,
	CU_FILE_NOT_FOUND = 301,
	CU_INVALID_HANDLE = 400,
	CU_ILLEGAL_STATE = 401,
	CU_NOT_FOUND = 500,
	CU_NOT_READY = 600,
	CU_PEER_ACCESS_ALREADY_ENABLED = 704,
	CU_PEER_ACCESS_NOT_ENABLED = 705,
	CU_PRIMARY_CONTEXT_ACTIVE = 708,
	CU_CONTEXT_IS_DESTROYED = 709,
	CU_HOST_MEMORY_ALREADY_REGISTERED = 712,
	CU_HOST_MEMORY_NOT_REGISTERED = 713,
	CU_NOT_PERMITTED = 800,
	CU_NOT_SUPPORTED = 801,
	CU_SYSTEM_DRIVER_MISMATCH = 803,
	CU_STREAM_CAPTURE_UNSUPPORTED = 900,
	CU_STREAM_CAPTURE_INVALIDATED = 901,
	CU_STREAM_CAPTURE_UNMATCHED = 903,
};

struct cu_uuid {
	char bytes[16];
};

struct location {
	int type;
	int id;
};

struct descriptor {
	size_t width, height;
	int format;
	unsigned channels;
};

struct descriptor_3d {
	size_t width, height, depth;
	int format;
	unsigned channels;
	unsigned flags;
};

struct requirements {
	size_t bytes, alignment;
	unsigned reserved[4];
};

struct device_properties {
	int max_threads_per_block;
	int max_threads_dim[3];
	int max_grid_size[3];
	int shared_memory_per_block;
	int constant_memory;
	int warp_width;
	int pitch;
	int registers_per_block;
	int clock_khz;
	int texture_align;
};

struct copy_2d {
	size_t from_x, from_y;
	int from_type; /* 1 host, 2 device, 3 array, 4 unified */
	const void *from_host;
	cu_deviceptr from_device;
	void *from_array;
	size_t from_pitch;
	size_t to_x, to_y;
	int to_type;
	void *to_host;
	cu_deviceptr to_device;
	void *to_array;
	size_t to_pitch;
	size_t width, height;
};

struct kernel_node {
	void *function;
	unsigned grid[3];
	unsigned block[3];
	unsigned shared_bytes;
	void **parameters;
	void **extra;
	void *kernel; /* the second form of the struct has these two */
	void *context;
};

struct allocation_node {
	struct {
		int type, handle_types;
		struct location location;
		void *security;
		size_t most;
		unsigned short usage;
		unsigned char rest[54];
	} pool;
	const void *access;
	size_t access_count;
	size_t bytes;
	cu_deviceptr address;
};

struct any_node {
	int type;
	int reserved[3];
	union {
		long long words[29];
		struct kernel_node kernel;
		struct allocation_node allocation;
		cu_deviceptr freed;
		void *child;
	} u;
	long long last;
};

struct instantiate_parameters {
	uint64_t flags;
	void *upload_stream;
	void *bad_node;
	int result;
};

struct update_result {
	int result;
	void *bad_node;
	void *bad_from;
};

struct launch_config {
	unsigned grid[3];
	unsigned block[3];
	unsigned shared_bytes;
	void *stream;
	void *attributes;
	unsigned attribute_count;
};

struct cooperative_launch {
	void *function;
	unsigned grid[3];
	unsigned block[3];
	unsigned shared_bytes;
	void *stream;
	void **parameters;
};

/* 64 opaque bytes, passed by value. */
struct ipc_handle {
	uint64_t magic;
	uint64_t generation;
	uint64_t bytes;
	uint32_t share, domain, kind, creator;
	char rest[24];
};

struct pool_properties {
	int type, handle_types;
	struct location location;
	void *security;
	size_t most;
	unsigned short usage;
	unsigned char rest[54];
};

struct access_description {
	struct location location;
	int flags;
};

struct pointer_export {
	uint64_t bytes;
	uint64_t rest[7];
};

struct properties {
	int type, handle_types;
	struct location location;
	void *handle_data;
	unsigned char flags[8];
};

struct device_resource {
	int type;
	unsigned char padding[92];
	uint32_t sm_count, least_partition, alignment;
	unsigned char rest[36];
};

struct copy_3d {
	size_t from_x, from_y, from_z, from_level;
	int from_type; /* as in copy_2d */
	const void *from_host;
	cu_deviceptr from_device;
	void *from_array;
	void *reserved_from;
	size_t from_pitch, from_height;
	size_t to_x, to_y, to_z, to_level;
	int to_type;
	void *to_host;
	cu_deviceptr to_device;
	void *to_array;
	void *reserved_to;
	size_t to_pitch, to_height;
	size_t width, height, depth;
};

#endif
