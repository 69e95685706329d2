/* Compile-only: the figures in simulator/drivers/cuda/cuda_abi.h are NVIDIA's, of CUDA 11.8 to 13.
 */
#include <cuda.h>
#undef cuMemAlloc
#include "../../../simulator/drivers/cuda/cuda_abi.h"

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours)
_Static_assert(sizeof(cu_result) == sizeof(CUresult), "result");
_Static_assert(sizeof(cu_device) == sizeof(CUdevice), "device");
_Static_assert(sizeof(cu_deviceptr) == sizeof(CUdeviceptr), "deviceptr");
_Static_assert(sizeof(cu_mem_handle) == sizeof(CUmemGenericAllocationHandle), "handle");
_Static_assert(sizeof(struct cu_uuid) == sizeof(CUuuid), "uuid");
SAME(CU_OK, CUDA_SUCCESS);
SAME(CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(CU_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME(CU_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED);
SAME(CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(CU_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
SAME(CU_INVALID_IMAGE, CUDA_ERROR_INVALID_IMAGE);
SAME(CU_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME(CU_MAP_FAILED, CUDA_ERROR_MAP_FAILED);
SAME(CU_ALREADY_MAPPED, CUDA_ERROR_ALREADY_MAPPED);
SAME(CU_NOT_MAPPED, CUDA_ERROR_NOT_MAPPED);
SAME(CU_UNSUPPORTED_LIMIT, CUDA_ERROR_UNSUPPORTED_LIMIT);
SAME(CU_PEER_ACCESS_UNSUPPORTED, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
SAME(CU_FILE_NOT_FOUND, CUDA_ERROR_FILE_NOT_FOUND);
SAME(CU_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE);
SAME(CU_ILLEGAL_STATE, CUDA_ERROR_ILLEGAL_STATE);
SAME(CU_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
SAME(CU_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(CU_PEER_ACCESS_ALREADY_ENABLED, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
SAME(CU_PEER_ACCESS_NOT_ENABLED, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
SAME(CU_PRIMARY_CONTEXT_ACTIVE, CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE);
SAME(CU_CONTEXT_IS_DESTROYED, CUDA_ERROR_CONTEXT_IS_DESTROYED);
SAME(CU_HOST_MEMORY_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME(CU_HOST_MEMORY_NOT_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME(CU_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED);
SAME(CU_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
SAME(CU_SYSTEM_DRIVER_MISMATCH, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
SAME(CU_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(CU_STREAM_CAPTURE_INVALIDATED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
SAME(CU_STREAM_CAPTURE_UNMATCHED, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);

_Static_assert(sizeof(struct copy_2d) == sizeof(CUDA_MEMCPY2D), "copy_2d");
_Static_assert(offsetof(struct copy_2d, to_device) == offsetof(CUDA_MEMCPY2D, dstDevice),
	       "copy_2d.to_device");
_Static_assert(offsetof(struct copy_2d, height) == offsetof(CUDA_MEMCPY2D, Height),
	       "copy_2d.height");
_Static_assert(sizeof(struct descriptor) == sizeof(CUDA_ARRAY_DESCRIPTOR), "descriptor");
_Static_assert(sizeof(struct descriptor_3d) == sizeof(CUDA_ARRAY3D_DESCRIPTOR), "descriptor_3d");
_Static_assert(sizeof(struct requirements) == sizeof(CUDA_ARRAY_MEMORY_REQUIREMENTS),
	       "requirements");
_Static_assert(sizeof(struct pool_properties) == sizeof(CUmemPoolProps), "pool_properties");
_Static_assert(offsetof(struct pool_properties, location) == offsetof(CUmemPoolProps, location),
	       "pool location");
_Static_assert(sizeof(struct properties) == sizeof(CUmemAllocationProp), "properties");
_Static_assert(offsetof(struct properties, location) == offsetof(CUmemAllocationProp, location),
	       "location");
_Static_assert(sizeof(struct access_description) == sizeof(CUmemAccessDesc), "access_description");
_Static_assert(sizeof(struct pointer_export) == sizeof(CUmemPoolPtrExportData), "pointer_export");
_Static_assert(sizeof(struct ipc_handle) == sizeof(CUipcMemHandle), "ipc_handle");
_Static_assert(sizeof(struct device_properties) == sizeof(CUdevprop), "device_properties");
_Static_assert(sizeof(struct launch_config) == sizeof(CUlaunchConfig), "launch_config");
_Static_assert(offsetof(struct launch_config, stream) == offsetof(CUlaunchConfig, hStream),
	       "launch_config.stream");
_Static_assert(sizeof(struct cooperative_launch) == sizeof(CUDA_LAUNCH_PARAMS),
	       "cooperative_launch");
_Static_assert(sizeof(struct allocation_node) == sizeof(CUDA_MEM_ALLOC_NODE_PARAMS),
	       "allocation_node");
_Static_assert(offsetof(struct allocation_node, address) ==
		   offsetof(CUDA_MEM_ALLOC_NODE_PARAMS, dptr),
	       "allocation_node.address");
_Static_assert(sizeof(struct copy_3d) == sizeof(CUDA_MEMCPY3D), "copy_3d");
_Static_assert(offsetof(struct copy_3d, depth) == offsetof(CUDA_MEMCPY3D, Depth), "copy_3d.depth");
#if CUDA_VERSION >= 12040
_Static_assert(sizeof(struct device_resource) == sizeof(CUdevResource), "device_resource");
_Static_assert(offsetof(struct device_resource, sm_count) == offsetof(CUdevResource, sm),
	       "device_resource.sm");
#endif
#if CUDA_VERSION >= 12020
_Static_assert(sizeof(struct any_node) == sizeof(CUgraphNodeParams), "any_node");
_Static_assert(offsetof(struct any_node, u) == offsetof(CUgraphNodeParams, kernel), "any_node.u");
_Static_assert(sizeof(struct instantiate_parameters) == sizeof(CUDA_GRAPH_INSTANTIATE_PARAMS),
	       "instantiate_parameters");
#endif
#if CUDA_VERSION >= 12000
_Static_assert(sizeof(struct kernel_node) == sizeof(CUDA_KERNEL_NODE_PARAMS_v2), "kernel_node");
_Static_assert(offsetof(struct kernel_node, kernel) == offsetof(CUDA_KERNEL_NODE_PARAMS_v2, kern),
	       "kernel_node.kernel");
_Static_assert(sizeof(struct update_result) == sizeof(CUgraphExecUpdateResultInfo),
	       "update_result");
#endif
SAME(16, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(75, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(4, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
SAME(5, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
SAME(8, CU_MEMPOOL_ATTR_USED_MEM_HIGH);
SAME(10, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
SAME(11, CU_GRAPH_NODE_TYPE_MEM_FREE);
SAME(0, CU_LIMIT_STACK_SIZE);
SAME(2, CU_LIMIT_MALLOC_HEAP_SIZE);
SAME(9, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(0x20, CU_AD_FORMAT_FLOAT);

int
main(void)
{
	return 0;
}
