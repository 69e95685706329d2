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

bool
limits_valid(const struct limits_header *header, const struct limits_record *records)
{
	if (header->magic != LIMITS_MAGIC || header->version != LIMITS_VERSION ||
	    header->size_bytes != sizeof(struct limits_file) ||
	    header->device_count > MAX_DEVICES) {
		return false;
	}
	size_t skipped = offsetof(struct limits_header, device_count);
	uint32_t sum =
	    checksum_update(0, (const uint8_t *)header + skipped, sizeof *header - skipped);
	sum = checksum_update(sum, records, sizeof(struct limits_record) * MAX_DEVICES);
	return sum == header->checksum;
}
