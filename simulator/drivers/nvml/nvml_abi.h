/* The parts of NVML's binary interface that this library speaks, in our own words. A test compiles
 * tests/native/drivers/nvml_abi_check.c, which compares every figure here with NVIDIA's own header.
 */
#ifndef GPUSLICE_FAKE_NVML_ABI_H
#define GPUSLICE_FAKE_NVML_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int nvml_result;

enum {
	NVML_OK = 0,
	NVML_UNINITIALIZED = 1,
	NVML_INVALID_ARGUMENT = 2,
	NVML_NOT_SUPPORTED = 3,
	NVML_NO_PERMISSION = 4,
	NVML_NOT_FOUND = 6,
	NVML_INSUFFICIENT_SIZE = 7,
	NVML_DRIVER_NOT_LOADED = 9,
	NVML_TIMEOUT = 10,
	NVML_GPU_IS_LOST = 15,
	NVML_RESET_REQUIRED = 16,
	NVML_LIB_RM_VERSION_MISMATCH = 18,
	NVML_IN_USE = 19,
	NVML_INSUFFICIENT_RESOURCES = 23,
	NVML_ARGUMENT_VERSION_MISMATCH = 25,
	NVML_UNKNOWN = 999,
};

/* The version word of a struct: its size, and its number in the top byte. */
#define NVML_VERSION(type, number) ((uint32_t)(sizeof(type) | (uint32_t)(number) << 24))

struct nvml_memory {
	uint64_t total, free, used;
};

struct nvml_memory_v2 {
	uint32_t version;
	uint64_t total, reserved, free, used;
};

struct nvml_pci_info {
	char bus_id_legacy[16];
	uint32_t domain, bus, device;
	uint32_t pci_device_id; /* device << 16 | vendor */
	uint32_t pci_subsystem_id;
	char bus_id[32];
};

struct nvml_pci_info_v2 {
	char bus_id[16];
	uint32_t domain, bus, device;
	uint32_t pci_device_id;
	uint32_t pci_subsystem_id;
	uint32_t reserved[4];
};

struct nvml_pci_info_ext {
	uint32_t version;
	uint32_t domain, bus, device;
	uint32_t pci_device_id;
	uint32_t pci_subsystem_id;
	uint32_t base_class, sub_class;
	char bus_id[32];
};

struct nvml_utilization {
	uint32_t gpu, memory;
};

struct nvml_process_v1 {
	uint32_t pid;
	uint64_t used_memory;
};

/* Also version 3. */
struct nvml_process_v2 {
	uint32_t pid;
	uint64_t used_memory;
	uint32_t gpu_instance, compute_instance;
};

struct nvml_process_detail {
	uint32_t pid;
	uint64_t used_memory;
	uint32_t gpu_instance, compute_instance;
	uint64_t protected_memory;
};

struct nvml_process_detail_list {
	uint32_t version;
	uint32_t mode; /* 0 compute, 1 graphics, 2 MPS */
	uint32_t count;
	struct nvml_process_detail *list;
};

struct nvml_process_sample {
	uint32_t pid;
	uint64_t timestamp_us;
	uint32_t sm, memory, encoder, decoder;
};

struct nvml_process_usage {
	uint64_t timestamp_us;
	uint32_t pid;
	uint32_t sm, memory, encoder, decoder, jpeg, optical_flow;
};

struct nvml_processes_usage {
	uint32_t version;
	uint32_t count;
	uint64_t last_seen_us;
	struct nvml_process_usage *list;
};

struct nvml_bar1 {
	uint64_t total, free, used;
};

struct nvml_event_data {
	void *device;
	uint64_t type, data;
	uint32_t gpu_instance, compute_instance;
};

struct nvml_attributes {
	uint32_t sm_count;
	uint32_t copy_engines, decoders, encoders, jpegs, optical_flows;
	uint32_t gpu_slices, compute_slices;
	uint64_t memory_mib;
};

union nvml_value {
	double d;
	uint32_t u32;
	uint64_t u64;
	int64_t s64;
	int32_t s32;
	uint16_t u16;
};

enum {
	NVML_VALUE_DOUBLE = 0,
	NVML_VALUE_U32 = 1,
	NVML_VALUE_ULONG = 2,
	NVML_VALUE_U64 = 3,
	NVML_VALUE_S64 = 4
};

struct nvml_field {
	uint32_t field;
	uint32_t scope;
	int64_t timestamp_us;
	int64_t latency_us;
	uint32_t type;
	int32_t result;
	union nvml_value value;
};

struct nvml_placement {
	uint32_t start, size;
};

struct nvml_gpu_instance_info {
	void *device;
	uint32_t id, profile;
	struct nvml_placement placement;
};

struct nvml_compute_instance_info {
	void *device;
	void *gpu_instance;
	uint32_t id, profile;
	struct nvml_placement placement;
};

struct nvml_gpu_instance_profile {
	uint32_t id, p2p, slices, instances, sm_count;
	uint32_t copy_engines, decoders, encoders, jpegs, optical_flows;
	uint64_t memory_mib;
};

struct nvml_gpu_instance_profile_v2 {
	uint32_t version;
	uint32_t id, p2p, slices, instances, sm_count;
	uint32_t copy_engines, decoders, encoders, jpegs, optical_flows;
	uint64_t memory_mib;
	char name[96];
};

struct nvml_fabric_info {
	uint8_t cluster[16];
	int32_t status;
	uint32_t clique;
	uint8_t state;
};

struct nvml_fabric_info_v {
	uint32_t version;
	uint8_t cluster[16];
	int32_t status;
	uint32_t clique;
	uint8_t state;
	uint32_t health_mask;
};

#endif
