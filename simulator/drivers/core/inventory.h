/* One node's cards as the inventory file describes them. Plain data without pointers: the first
 * process of a node parses the file and shares the result through the region (region.h). */
#ifndef GPUSLICE_FAKE_INVENTORY_H
#define GPUSLICE_FAKE_INVENTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "models.h"

enum { MAX_CARDS = 72, MAX_INSTANCES = 7, UUID_SIZE = 48, MAX_FOREIGN = 16 };

/* A GPU instance with one compute instance that fills it. */
struct mig_instance {
	bool live;
	uint32_t profile; /* index into mig_profiles */
	uint32_t start;   /* first memory slice */
	uint32_t ci;
	char uuid[UUID_SIZE]; /* MIG-… */
};

/* A process that is not ours: shown by NVML, its memory is taken. */
struct foreign_process {
	uint32_t pid;
	uint32_t sm_percent;
	uint64_t bytes;
};

struct card {
	uint32_t model; /* index into card_models */
	char uuid[UUID_SIZE];
	char name[96];
	char serial[24];
	char bus[20]; /* 00000000:07:00.0 */
	uint32_t pci_domain, pci_bus, pci_device;
	uint32_t minor;
	uint32_t sm_count;
	int numa; /* -1: unknown */
	bool ecc;
	bool mig_enabled;
	unsigned compute_mode; /* as NVML numbers it: 0 default, 2 prohibited, 3 one process */
	uint64_t memory_bytes;
	uint64_t reserved_bytes;
	struct mig_instance mig[MAX_INSTANCES]; /* GPU instance id = index + 1 */
	struct foreign_process foreign[MAX_FOREIGN];
};

/* How two cards reach each other over PCIe, as NVML numbers it. */
enum pcie_level {
	PCIE_SINGLE = 10,
	PCIE_MULTIPLE = 20,
	PCIE_HOST = 30,
	PCIE_NODE = 40,
	PCIE_SYSTEM = 50
};

enum sharing { SHARING_TIMESLICE, SHARING_MPS };

struct inventory {
	char name[64];
	char driver[40];
	int cuda_version; /* 13000 for 13.0 */
	uint32_t card_count;
	struct card cards[MAX_CARDS];
	uint8_t pcie[MAX_CARDS][MAX_CARDS];
	uint8_t nvlinks[MAX_CARDS][MAX_CARDS]; /* links between two cards, 0: none */
	bool nvswitch;
	uint64_t context_bytes;     /* what one context takes of a card */
	uint64_t granularity_bytes; /* unit of physical memory */
	enum sharing sharing;
	uint64_t quantum_ns;
	uint64_t sample_ns; /* NVML utilisation sample */
	uint64_t lag_ns;    /* age a sample must have before NVML shows it */
	bool process_utilization;
	bool pids_in_container; /* NVML answers with the pid of the process's own namespace */
	uint64_t kernel_ns;     /* kernels whose name says nothing */
	uint64_t block_ns;      /* added per block of the grid */
};

/* Read a file's text into a fresh inventory. On failure returns false and writes one line naming
 * object, field and remedy. */
bool inventory_parse(const char *text, struct inventory *out, char *error, size_t error_size);

/* The whole file, NUL-terminated, or NULL with errno. The caller frees it. */
char *inventory_read_file(const char *path);

const struct card_model *card_model(const struct card *card);
const struct mig_profile *mig_profile_of(const struct mig_instance *instance);

/* Place a profile on a card: the lowest free allowed start. Returns the GPU instance index or -1.
 */
int card_add_instance(struct card *card, const char *profile, const char *uuid);
/* The same at one given memory slice. */
int card_add_instance_at(struct card *card, const char *profile, uint32_t start);

/* "GPU-xxxxxxxx-…" from a text, the same in Python (simulator/inventory.py). */
void uuid_from_text(const char *prefix, const char *text, char out[UUID_SIZE]);

#endif
