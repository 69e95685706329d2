/* The part of the NVML ABI that this library touches; compared with NVIDIA's header by
 * gen/classify.py. */
#ifndef GPUSLICE_NVML_ABI_H
#define GPUSLICE_NVML_ABI_H

typedef int nvml_result;
typedef struct nvml_device_s *nvml_device;

enum {
	NVML_OK = 0,
	NVML_UNINITIALIZED = 1,
	NVML_INVALID_ARGUMENT = 2,
	NVML_NOT_SUPPORTED = 3,
	NVML_NOT_FOUND = 6,
	NVML_INSUFFICIENT_SIZE = 7,
	NVML_FUNCTION_NOT_FOUND = 13,
};

struct nvml_memory {
	unsigned long long total, free, used;
};

struct nvml_memory_v2 {
	unsigned int version;
	unsigned long long total, reserved, free, used;
};

struct nvml_process_v1 {
	unsigned int pid;
	unsigned long long used_bytes;
};

struct nvml_process {
	unsigned int pid;
	unsigned long long used_bytes;
	unsigned int gpu_instance, compute_instance;
};

struct nvml_process_detail {
	unsigned int pid;
	unsigned long long used_bytes;
	unsigned int gpu_instance, compute_instance;
	unsigned long long protected_bytes;
};

struct nvml_process_detail_list {
	unsigned int version, mode, count;
	struct nvml_process_detail *entries;
};

struct nvml_utilization {
	unsigned int gpu, memory;
};

struct nvml_process_sample {
	unsigned int pid;
	unsigned long long stamp_us;
	unsigned int sm, memory, encoder, decoder;
};

struct nvml_process_utilization {
	unsigned long long stamp_us;
	unsigned int pid, sm, memory, encoder, decoder, jpeg, ofa;
};

struct nvml_processes_utilization {
	unsigned int version, count;
	unsigned long long last_seen_us;
	struct nvml_process_utilization *entries;
};

nvml_result nvmlInit_v2(void);
nvml_result nvmlShutdown(void);
nvml_result nvmlDeviceGetHandleByUUID(const char *uuid, nvml_device *device);
nvml_result nvmlDeviceGetIndex(nvml_device device, unsigned int *index);
nvml_result nvmlDeviceGetUUID(nvml_device device, char *uuid, unsigned int length);
nvml_result nvmlDeviceGetMemoryInfo(nvml_device device, struct nvml_memory *memory);
nvml_result nvmlDeviceGetMemoryInfo_v2(nvml_device device, struct nvml_memory_v2 *memory);
nvml_result nvmlDeviceGetComputeRunningProcesses(nvml_device device, unsigned int *count,
						 struct nvml_process_v1 *list);
nvml_result nvmlDeviceGetComputeRunningProcesses_v2(nvml_device device, unsigned int *count,
						    struct nvml_process *list);
nvml_result nvmlDeviceGetComputeRunningProcesses_v3(nvml_device device, unsigned int *count,
						    struct nvml_process *list);
nvml_result nvmlDeviceGetGraphicsRunningProcesses(nvml_device device, unsigned int *count,
						  struct nvml_process_v1 *list);
nvml_result nvmlDeviceGetGraphicsRunningProcesses_v2(nvml_device device, unsigned int *count,
						     struct nvml_process *list);
nvml_result nvmlDeviceGetGraphicsRunningProcesses_v3(nvml_device device, unsigned int *count,
						     struct nvml_process *list);
nvml_result nvmlDeviceGetMPSComputeRunningProcesses(nvml_device device, unsigned int *count,
						    struct nvml_process_v1 *list);
nvml_result nvmlDeviceGetMPSComputeRunningProcesses_v2(nvml_device device, unsigned int *count,
						       struct nvml_process *list);
nvml_result nvmlDeviceGetMPSComputeRunningProcesses_v3(nvml_device device, unsigned int *count,
						       struct nvml_process *list);
nvml_result nvmlDeviceGetRunningProcessDetailList(nvml_device device,
						  struct nvml_process_detail_list *list);
nvml_result nvmlDeviceGetUtilizationRates(nvml_device device, struct nvml_utilization *rates);
nvml_result nvmlDeviceGetProcessUtilization(nvml_device device, struct nvml_process_sample *samples,
					    unsigned int *count, unsigned long long last_seen_us);
nvml_result nvmlDeviceGetProcessesUtilizationInfo(nvml_device device,
						  struct nvml_processes_utilization *info);

#endif
