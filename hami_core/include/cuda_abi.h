/* The part of the CUDA driver ABI that this library touches, written from the public documentation.
 * gen/classify.py compares every structure and every prototype with NVIDIA's headers of several
 * toolkits.
 */
#ifndef GPUSLICE_CUDA_ABI_H
#define GPUSLICE_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int cu_result;
typedef int cu_device;
typedef unsigned long long cu_deviceptr;
typedef unsigned int cu_deviceptr_v1;
typedef unsigned long long cu_handle; /* CUmemGenericAllocationHandle */

typedef struct cu_context_s *cu_context;
typedef struct cu_stream_s *cu_stream;
typedef struct cu_event_s *cu_event;
typedef struct cu_function_s *cu_function;
typedef struct cu_module_s *cu_module;
typedef struct cu_library_s *cu_library;
typedef struct cu_pool_s *cu_pool;
typedef struct cu_array_s *cu_array;
typedef struct cu_mipmap_s *cu_mipmap;
typedef struct cu_graph_s *cu_graph;
typedef struct cu_graph_node_s *cu_graph_node;
typedef struct cu_graph_exec_s *cu_graph_exec;

enum {
	CU_OK = 0,
	CU_INVALID_VALUE = 1,
	CU_OUT_OF_MEMORY = 2,
	CU_NOT_INITIALIZED = 3,
	CU_NO_DEVICE = 100,
	CU_INVALID_CONTEXT = 201,
	CU_NOT_FOUND = 500,
	CU_NOT_READY = 600,
	CU_NOT_SUPPORTED = 801,
};

enum {
	CU_STREAM_NON_BLOCKING = 1,
	CU_EVENT_DEFAULT = 0,
	CU_CAPTURE_NONE = 0,
	CU_LOCATION_DEVICE = 1,
	CU_ALLOCATION_PINNED = 1,
	CU_POOL_RELEASE_THRESHOLD = 4,
	CU_POOL_RESERVED_CURRENT = 5,
	CU_POOL_USED_CURRENT = 7,
	CU_GRAPH_MEM_RESERVED_CURRENT = 2,
	CU_ATTACH_GLOBAL = 1,
	CU_NODE_MEM_ALLOC = 10,
	CU_MAP_OPERATION = 1,
	CU_PTSZ_FLAG = 2, /* cuGetProcAddress: per-thread default stream */
};

struct cu_uuid {
	unsigned char bytes[16];
};

struct cu_location {
	int type;
	int id;
};

/* CUmemAllocationProp */
struct cu_allocation_prop {
	int type;
	int handle_types;
	struct cu_location location;
	void *win32;
	unsigned char flags[8];
};

/* CUDA_ARRAY_DESCRIPTOR (v1 has 32-bit sizes) */
struct cu_array_descriptor {
	size_t width, height;
	unsigned int format, channels;
};

struct cu_array_descriptor_v1 {
	unsigned int width, height, format, channels;
};

/* CUDA_ARRAY3D_DESCRIPTOR */
struct cu_array3d_descriptor {
	size_t width, height, depth;
	unsigned int format, channels, flags;
};

struct cu_array3d_descriptor_v1 {
	unsigned int width, height, depth, format, channels, flags;
};

/* CUDA_ARRAY_MEMORY_REQUIREMENTS */
struct cu_array_requirements {
	size_t size, alignment;
	unsigned int reserved[4];
};

/* CUlaunchConfig */
struct cu_launch_config {
	unsigned int grid_x, grid_y, grid_z;
	unsigned int block_x, block_y, block_z;
	unsigned int shared_bytes;
	cu_stream stream;
	void *attributes;
	unsigned int attribute_count;
};

/* CUDA_LAUNCH_PARAMS */
struct cu_launch_params {
	cu_function function;
	unsigned int grid_x, grid_y, grid_z;
	unsigned int block_x, block_y, block_z;
	unsigned int shared_bytes;
	cu_stream stream;
	void **kernel_params;
};

/* CUDA_MEM_ALLOC_NODE_PARAMS; pool_props is CUmemPoolProps (88 bytes) */
struct cu_pool_props {
	int allocation_type;
	int handle_types;
	struct cu_location location;
	void *win32;
	size_t max_size;
	unsigned char reserved[56];
};

struct cu_mem_alloc_node {
	struct cu_pool_props pool_props;
	const void *access;
	size_t access_count;
	size_t bytes;
	cu_deviceptr address;
};

/* CUarrayMapInfo: one step of cuMemMapArrayAsync */
struct cu_array_map {
	int resource_type;
	void *resource;
	int subresource_type;
	uint64_t subresource[4];
	int operation; /* CU_MAP_OPERATION */
	int handle_type;
	cu_handle handle;
	unsigned long long offset;
	unsigned int device_mask, flags, reserved[2];
};

/* CUipcMemHandle */
struct cu_ipc_handle {
	char reserved[64];
};

#define CU_POINTER_DEVICE 9 /* CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL */

#include "cuda_prototypes.h"

#endif
