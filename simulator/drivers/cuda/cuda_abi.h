/* The parts of the CUDA driver's binary interface that this driver speaks, in our own words. A test
 * compiles tests/native/drivers/cuda_abi_check.c, which compares every figure here with NVIDIA's own header. */
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

#endif
