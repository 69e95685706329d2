#ifndef GPUSLICE_CHECKSUM_H
#define GPUSLICE_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "layout.h"

/* CRC-32 as in zlib.crc32(data, sum): chainable, 0 to begin. */
uint32_t checksum_update(uint32_t sum, const void *data, size_t size);

/* Is this header one of ours, of this version, and does its checksum fit the records? */
bool limits_valid(const struct limits_header *header, const struct limits_record *records);

#endif
