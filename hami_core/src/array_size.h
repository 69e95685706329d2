/* How much device memory an array takes, before the driver has said so. */
#ifndef GPUSLICE_ARRAY_SIZE_H
#define GPUSLICE_ARRAY_SIZE_H

#include <stdint.h>

#define ARRAY_SPARSE 0x40U /* CUDA_ARRAY3D_SPARSE: no memory of its own */

/* Bytes, whole 2 MiB pages; height and depth 0 count as 1. Unknown formats are taken as 4 bytes a
 * channel, which is the widest. Saturates at INT64_MAX. */
uint64_t array_size(uint64_t width, uint64_t height, uint64_t depth, unsigned format,
		    unsigned channels);

/* All levels of a mipmapped array whose first level takes `level0`: never more than twice that. */
uint64_t mipmap_size(uint64_t level0);

#endif
