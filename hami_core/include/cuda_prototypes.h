/* Prototypes of the driver entry points that are hooked or called. See cuda_abi.h. */
#ifndef GPUSLICE_CUDA_PROTOTYPES_H
#define GPUSLICE_CUDA_PROTOTYPES_H

/* Start and lookup. */
cu_result cuInit(unsigned int flags);
cu_result cuGetProcAddress(const char *symbol, void **address, int version, uint64_t flags);
cu_result cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags,
			      int *status);

/* Devices and contexts. */
cu_result cuDeviceGetCount(int *count);
cu_result cuDeviceGet(cu_device *device, int ordinal);
cu_result cuDeviceGetUuid(struct cu_uuid *uuid, cu_device device);
cu_result cuDeviceGetUuid_v2(struct cu_uuid *uuid, cu_device device);
cu_result cuDeviceTotalMem(unsigned int *bytes, cu_device device);
cu_result cuDeviceTotalMem_v2(size_t *bytes, cu_device device);
cu_result cuDevicePrimaryCtxRetain(cu_context *context, cu_device device);
cu_result cuDevicePrimaryCtxRelease(cu_device device);
cu_result cuDevicePrimaryCtxRelease_v2(cu_device device);
cu_result cuDevicePrimaryCtxReset(cu_device device);
cu_result cuDevicePrimaryCtxReset_v2(cu_device device);
cu_result cuDevicePrimaryCtxGetState(cu_device device, unsigned int *flags, int *active);
cu_result cuCtxCreate(cu_context *context, unsigned int flags, cu_device device);
cu_result cuCtxCreate_v2(cu_context *context, unsigned int flags, cu_device device);
cu_result cuCtxCreate_v3(cu_context *context, void *affinity, int count, unsigned int flags,
			 cu_device device);
cu_result cuCtxCreate_v4(cu_context *context, void *params, unsigned int flags, cu_device device);
cu_result cuCtxDestroy(cu_context context);
cu_result cuCtxDestroy_v2(cu_context context);
cu_result cuCtxGetCurrent(cu_context *context);
cu_result cuCtxGetDevice(cu_device *device);
cu_result cuCtxPushCurrent_v2(cu_context context);
cu_result cuCtxPopCurrent_v2(cu_context *context);
cu_result cuCtxGetLimit(size_t *value, int limit);
cu_result cuCtxSetLimit(int limit, size_t value);

/* Code. */
cu_result cuModuleLoad(cu_module *module, const char *path);
cu_result cuModuleLoadData(cu_module *module, const void *image);
cu_result cuModuleLoadDataEx(cu_module *module, const void *image, unsigned int count,
			     void *options, void **values);
cu_result cuModuleLoadFatBinary(cu_module *module, const void *image);
cu_result cuModuleUnload(cu_module module);
cu_result cuLibraryLoadData(cu_library *library, const void *code, void *jit, void **jit_values,
			    unsigned int jit_count, void *options, void **values,
			    unsigned int count);
cu_result cuLibraryLoadFromFile(cu_library *library, const char *path, void *jit, void **jit_values,
				unsigned int jit_count, void *options, void **values,
				unsigned int count);
cu_result cuLibraryUnload(cu_library library);

/* Memory. */
cu_result cuMemGetInfo(unsigned int *free_bytes, unsigned int *total_bytes);
cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
cu_result cuMemAlloc(cu_deviceptr_v1 *address, unsigned int bytes);
cu_result cuMemAlloc_v2(cu_deviceptr *address, size_t bytes);
cu_result cuMemAllocPitch(cu_deviceptr_v1 *address, unsigned int *pitch, unsigned int width,
			  unsigned int height, unsigned int element);
cu_result cuMemAllocPitch_v2(cu_deviceptr *address, size_t *pitch, size_t width, size_t height,
			     unsigned int element);
cu_result cuMemAllocManaged(cu_deviceptr *address, size_t bytes, unsigned int flags);
cu_result cuMemFree(cu_deviceptr_v1 address);
cu_result cuMemFree_v2(cu_deviceptr address);
cu_result cuMemAllocAsync(cu_deviceptr *address, size_t bytes, cu_stream stream);
cu_result cuMemAllocAsync_ptsz(cu_deviceptr *address, size_t bytes, cu_stream stream);
cu_result cuMemAllocFromPoolAsync(cu_deviceptr *address, size_t bytes, cu_pool pool,
				  cu_stream stream);
cu_result cuMemAllocFromPoolAsync_ptsz(cu_deviceptr *address, size_t bytes, cu_pool pool,
				       cu_stream stream);
cu_result cuMemFreeAsync(cu_deviceptr address, cu_stream stream);
cu_result cuMemFreeAsync_ptsz(cu_deviceptr address, cu_stream stream);
cu_result cuDeviceGetMemPool(cu_pool *pool, cu_device device);
cu_result cuMemPoolCreate(cu_pool *pool, const struct cu_pool_props *props);
cu_result cuMemPoolDestroy(cu_pool pool);
cu_result cuMemPoolTrimTo(cu_pool pool, size_t keep);
cu_result cuMemPoolGetAttribute(cu_pool pool, int attribute, void *value);
cu_result cuMemPoolSetAttribute(cu_pool pool, int attribute, void *value);
cu_result cuMemPoolImportFromShareableHandle(cu_pool *pool, void *handle, int type,
					     unsigned long long flags);
cu_result cuMemCreate(cu_handle *handle, size_t bytes, const struct cu_allocation_prop *prop,
		      unsigned long long flags);
cu_result cuMemRelease(cu_handle handle);
cu_result cuMemRetainAllocationHandle(cu_handle *handle, void *address);
cu_result cuMemImportFromShareableHandle(cu_handle *handle, void *os_handle, int type);
cu_result cuMemExportToShareableHandle(void *out, cu_handle handle, int type,
				       unsigned long long flags);
cu_result cuMemGetAllocationPropertiesFromHandle(struct cu_allocation_prop *prop, cu_handle handle);
cu_result cuIpcGetMemHandle(struct cu_ipc_handle *out, cu_deviceptr address);
cu_result cuIpcOpenMemHandle(cu_deviceptr *address, struct cu_ipc_handle handle,
			     unsigned int flags);
cu_result cuIpcOpenMemHandle_v2(cu_deviceptr *address, struct cu_ipc_handle handle,
				unsigned int flags);
cu_result cuIpcCloseMemHandle(cu_deviceptr address);
cu_result cuMemGetAddressRange_v2(cu_deviceptr *base, size_t *bytes, cu_deviceptr address);
cu_result cuPointerGetAttribute(void *out, int attribute, cu_deviceptr address);
cu_result cuMemMap(cu_deviceptr address, size_t bytes, size_t offset, cu_handle handle,
		   unsigned long long flags);
cu_result cuMemUnmap(cu_deviceptr address, size_t bytes);
cu_result cuMemMapArrayAsync(struct cu_array_map *list, unsigned int count, cu_stream stream);
cu_result cuMemMapArrayAsync_ptsz(struct cu_array_map *list, unsigned int count, cu_stream stream);
cu_result cuMulticastBindMem(cu_handle multicast, size_t at, cu_handle handle, size_t offset,
			     size_t bytes, unsigned long long flags);
cu_result cuMulticastBindMem_v2(cu_handle multicast, cu_device device, size_t at, cu_handle handle,
				size_t offset, size_t bytes, unsigned long long flags);
cu_result cuMulticastUnbind(cu_handle multicast, cu_device device, size_t at, size_t bytes);
cu_result cuArrayCreate(cu_array *array, const struct cu_array_descriptor_v1 *descriptor);
cu_result cuArrayCreate_v2(cu_array *array, const struct cu_array_descriptor *descriptor);
cu_result cuArray3DCreate(cu_array *array, const struct cu_array3d_descriptor_v1 *descriptor);
cu_result cuArray3DCreate_v2(cu_array *array, const struct cu_array3d_descriptor *descriptor);
cu_result cuArrayDestroy(cu_array array);
cu_result cuArrayGetMemoryRequirements(struct cu_array_requirements *out, cu_array array,
				       cu_device device);
cu_result cuMipmappedArrayCreate(cu_mipmap *mipmap, const struct cu_array3d_descriptor *descriptor,
				 unsigned int levels);
cu_result cuMipmappedArrayDestroy(cu_mipmap mipmap);
cu_result cuMipmappedArrayGetMemoryRequirements(struct cu_array_requirements *out, cu_mipmap mipmap,
						cu_device device);

/* Streams and events. */
cu_result cuStreamCreate(cu_stream *stream, unsigned int flags);
cu_result cuStreamDestroy_v2(cu_stream stream);
cu_result cuStreamQuery(cu_stream stream);
cu_result cuStreamQuery_ptsz(cu_stream stream);
cu_result cuStreamIsCapturing(cu_stream stream, int *status);
cu_result cuStreamIsCapturing_ptsz(cu_stream stream, int *status);
cu_result cuStreamBeginCapture(cu_stream stream);
cu_result cuStreamBeginCapture_ptsz(cu_stream stream);
cu_result cuStreamBeginCapture_v2(cu_stream stream, int mode);
cu_result cuStreamBeginCapture_v2_ptsz(cu_stream stream, int mode);
cu_result cuStreamBeginCaptureToGraph(cu_stream stream, cu_graph graph, const cu_graph_node *nodes,
				      const void *edges, size_t count, int mode);
cu_result cuStreamBeginCaptureToGraph_ptsz(cu_stream stream, cu_graph graph,
					   const cu_graph_node *nodes, const void *edges,
					   size_t count, int mode);
cu_result cuStreamEndCapture(cu_stream stream, cu_graph *graph);
cu_result cuStreamEndCapture_ptsz(cu_stream stream, cu_graph *graph);
cu_result cuEventCreate(cu_event *event, unsigned int flags);
cu_result cuEventDestroy_v2(cu_event event);
cu_result cuEventRecord(cu_event event, cu_stream stream);
cu_result cuEventRecord_ptsz(cu_event event, cu_stream stream);
cu_result cuEventQuery(cu_event event);
cu_result cuEventSynchronize(cu_event event);
cu_result cuEventElapsedTime(float *milliseconds, cu_event start, cu_event end);

/* Launches. */
cu_result cuLaunch(cu_function function);
cu_result cuLaunchGrid(cu_function function, int width, int height);
cu_result cuLaunchGridAsync(cu_function function, int width, int height, cu_stream stream);
cu_result cuLaunchKernel(cu_function function, unsigned int grid_x, unsigned int grid_y,
			 unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			 unsigned int block_z, unsigned int shared_bytes, cu_stream stream,
			 void **params, void **extra);
cu_result cuLaunchKernel_ptsz(cu_function function, unsigned int grid_x, unsigned int grid_y,
			      unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			      unsigned int block_z, unsigned int shared_bytes, cu_stream stream,
			      void **params, void **extra);
cu_result cuLaunchKernelEx(const struct cu_launch_config *config, cu_function function,
			   void **params, void **extra);
cu_result cuLaunchKernelEx_ptsz(const struct cu_launch_config *config, cu_function function,
				void **params, void **extra);
cu_result cuLaunchCooperativeKernel(cu_function function, unsigned int grid_x, unsigned int grid_y,
				    unsigned int grid_z, unsigned int block_x, unsigned int block_y,
				    unsigned int block_z, unsigned int shared_bytes,
				    cu_stream stream, void **params);
cu_result cuLaunchCooperativeKernel_ptsz(cu_function function, unsigned int grid_x,
					 unsigned int grid_y, unsigned int grid_z,
					 unsigned int block_x, unsigned int block_y,
					 unsigned int block_z, unsigned int shared_bytes,
					 cu_stream stream, void **params);
cu_result cuLaunchCooperativeKernelMultiDevice(struct cu_launch_params *list, unsigned int count,
					       unsigned int flags);

/* Graphs. */
cu_result cuGraphInstantiate(cu_graph_exec *exec, cu_graph graph, cu_graph_node *error_node,
			     char *log, size_t size);
cu_result cuGraphInstantiate_v2(cu_graph_exec *exec, cu_graph graph, cu_graph_node *error_node,
				char *log, size_t size);
cu_result cuGraphInstantiateWithFlags(cu_graph_exec *exec, cu_graph graph,
				      unsigned long long flags);
cu_result cuGraphInstantiateWithParams(cu_graph_exec *exec, cu_graph graph, void *params);
cu_result cuGraphInstantiateWithParams_ptsz(cu_graph_exec *exec, cu_graph graph, void *params);
cu_result cuGraphExecDestroy(cu_graph_exec exec);
cu_result cuGraphUpload(cu_graph_exec exec, cu_stream stream);
cu_result cuGraphUpload_ptsz(cu_graph_exec exec, cu_stream stream);
cu_result cuGraphLaunch(cu_graph_exec exec, cu_stream stream);
cu_result cuGraphLaunch_ptsz(cu_graph_exec exec, cu_stream stream);
cu_result cuGraphGetNodes(cu_graph graph, cu_graph_node *nodes, size_t *count);
cu_result cuGraphNodeGetType(cu_graph_node node, int *type);
cu_result cuGraphMemAllocNodeGetParams(cu_graph_node node, struct cu_mem_alloc_node *params);
cu_result cuDeviceGraphMemTrim(cu_device device);
cu_result cuDeviceGetGraphMemAttribute(cu_device device, int attribute, void *value);

#endif
