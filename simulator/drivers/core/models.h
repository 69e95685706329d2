/* Card models and MIG profiles. The rows come from tables/ and are shared with the Python side. */
#ifndef GPUSLICE_FAKE_MODELS_H
#define GPUSLICE_FAKE_MODELS_H

#include <stdint.h>

struct card_model {
	const char *model;
	const char *name;
	uint32_t memory_mib;
	int cc_major, cc_minor;
	uint32_t sm_count;
	uint32_t threads_per_sm;
	uint32_t clock_mhz, memory_clock_mhz;
	uint32_t bus_width;   /* bits */
	uint32_t pci_device;  /* PCI device id, vendor 0x10DE implied */
	uint32_t arch, brand; /* NVML codes */
	uint32_t power_w;
	uint32_t nvlinks, nvlink_version;
	uint32_t pcie_gen;
	int ecc, fabric;
	const char *mig; /* family of MIG profiles, "-" for none */
};

enum { MIG_MAX_STARTS = 8 };

struct mig_profile {
	const char *family;
	const char *name;
	uint32_t id;
	uint32_t slices, memory_slices;
	uint32_t memory_mib;
	uint32_t sm_count;
	uint32_t instances; /* most of this profile at once */
	uint32_t start_count;
	uint32_t starts[MIG_MAX_STARTS]; /* allowed first memory slices */
};

extern const struct card_model card_models[];
extern const unsigned card_model_count;
extern const struct mig_profile mig_profiles[];
extern const unsigned mig_profile_count;

#endif
