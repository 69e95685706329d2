/* Compile-only: the figures in simulator/drivers/nvml/nvml_abi.h are NVIDIA's. */
#include <nvml.h>

#include "../../../simulator/drivers/nvml/nvml_abi.h"

#define SAME(ours, theirs) _Static_assert((unsigned)(ours) == (unsigned)(theirs), #ours)
#define SHAPE(ours, theirs) _Static_assert(sizeof(struct ours) == sizeof(theirs), #ours)
SAME(NVML_OK, NVML_SUCCESS);
SAME(NVML_UNINITIALIZED, NVML_ERROR_UNINITIALIZED);
SAME(NVML_INVALID_ARGUMENT, NVML_ERROR_INVALID_ARGUMENT);
SAME(NVML_NOT_SUPPORTED, NVML_ERROR_NOT_SUPPORTED);
SAME(NVML_NO_PERMISSION, NVML_ERROR_NO_PERMISSION);
SAME(NVML_NOT_FOUND, NVML_ERROR_NOT_FOUND);
SAME(NVML_INSUFFICIENT_SIZE, NVML_ERROR_INSUFFICIENT_SIZE);
SAME(NVML_DRIVER_NOT_LOADED, NVML_ERROR_DRIVER_NOT_LOADED);
SAME(NVML_TIMEOUT, NVML_ERROR_TIMEOUT);
SAME(NVML_GPU_IS_LOST, NVML_ERROR_GPU_IS_LOST);
SAME(NVML_RESET_REQUIRED, NVML_ERROR_RESET_REQUIRED);
SAME(NVML_LIB_RM_VERSION_MISMATCH, NVML_ERROR_LIB_RM_VERSION_MISMATCH);
SAME(NVML_INSUFFICIENT_RESOURCES, NVML_ERROR_INSUFFICIENT_RESOURCES);
SAME(NVML_ARGUMENT_VERSION_MISMATCH, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
SAME(NVML_UNKNOWN, NVML_ERROR_UNKNOWN);
SHAPE(nvml_memory, nvmlMemory_t);
SHAPE(nvml_memory_v2, nvmlMemory_v2_t);
SHAPE(nvml_pci_info, nvmlPciInfo_t);
SHAPE(nvml_pci_info_ext, nvmlPciInfoExt_v1_t);
SHAPE(nvml_utilization, nvmlUtilization_t);
SHAPE(nvml_process_v1, nvmlProcessInfo_v1_t);
SHAPE(nvml_process_v2, nvmlProcessInfo_v2_t);
SHAPE(nvml_process_v2, nvmlProcessInfo_t);
SHAPE(nvml_process_detail, nvmlProcessDetail_v1_t);
SHAPE(nvml_process_detail_list, nvmlProcessDetailList_v1_t);
SHAPE(nvml_process_sample, nvmlProcessUtilizationSample_t);
SHAPE(nvml_process_usage, nvmlProcessUtilizationInfo_v1_t);
SHAPE(nvml_processes_usage, nvmlProcessesUtilizationInfo_v1_t);
SHAPE(nvml_bar1, nvmlBAR1Memory_t);
SHAPE(nvml_event_data, nvmlEventData_t);
SHAPE(nvml_attributes, nvmlDeviceAttributes_t);
SHAPE(nvml_field, nvmlFieldValue_t);
SHAPE(nvml_gpu_instance_info, nvmlGpuInstanceInfo_t);
SHAPE(nvml_compute_instance_info, nvmlComputeInstanceInfo_t);
SHAPE(nvml_gpu_instance_profile, nvmlGpuInstanceProfileInfo_t);
SHAPE(nvml_gpu_instance_profile_v2, nvmlGpuInstanceProfileInfo_v2_t);
SHAPE(nvml_fabric_info, nvmlGpuFabricInfo_t);
SHAPE(nvml_fabric_info_v, nvmlGpuFabricInfo_v2_t);
SAME(NVML_VERSION(struct nvml_memory_v2, 2), nvmlMemory_v2);
SAME(NVML_VERSION(struct nvml_pci_info_ext, 1), nvmlPciInfoExt_v1);
SAME(NVML_VERSION(struct nvml_fabric_info_v, 2), nvmlGpuFabricInfo_v2);
SAME(NVML_VERSION(struct nvml_process_detail_list, 1), nvmlProcessDetailList_v1);
SAME(NVML_VERSION(struct nvml_processes_usage, 1), nvmlProcessesUtilizationInfo_v1);
SAME(NVML_VERSION(struct nvml_gpu_instance_profile_v2, 2), nvmlGpuInstanceProfileInfo_v2);
SAME(0x8, nvmlEventTypeXidCriticalError);
SAME(0x2, nvmlEventTypeDoubleBitEccError);
SAME(0x100, nvmlEventMigConfigChange);
SAME(0x8000, nvmlEventTypeGpuRecoveryAction);
SAME(230, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION);
SAME(142, NVML_FI_DEV_REMAPPED_COR);
SAME(83, NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION);
SAME(2, NVML_NVLINK_DEVICE_TYPE_SWITCH);
SAME(40, NVML_TOPOLOGY_NODE);
SAME(3, NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED);

int
main(void)
{
	return 0;
}
