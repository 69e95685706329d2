/* Blocks of device memory that the test client holds, by the way they were allocated. */
#ifndef GPUSLICE_CLIENT_BLOCKS_H
#define GPUSLICE_CLIENT_BLOCKS_H

#include "cuda_abi.h"

struct held {
	char kind[12]; /* plain pitch managed async pool vmm array array3d mipmap */
	cu_deviceptr address;
	uint64_t handle; /* of kinds without an address */
	size_t bytes;
};

/* Allocate `bytes` of `kind` on a device and fill in the rest. Both return the driver's result. */
int block_alloc(struct held *block, cu_device device);
int block_free(const struct held *block);

#endif
