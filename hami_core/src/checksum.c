#include "checksum.h"

uint32_t
checksum_update(uint32_t sum, const void *data, size_t size)
{
	const uint8_t *bytes = data;
	sum = ~sum;
	for (size_t i = 0; i < size; i++) {
		sum ^= bytes[i];
		for (int bit = 0; bit < 8; bit++) {
			sum = (sum >> 1) ^ (0xEDB88320U & (0U - (sum & 1)));
		}
	}
	return ~sum;
}
