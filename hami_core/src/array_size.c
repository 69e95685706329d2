#include "array_size.h"

#include "charges.h"

/* CUarray_format: bytes of one channel. */
static unsigned
channel_bytes(unsigned format)
{
	switch (format) {
	case 0x01: /* UNSIGNED_INT8 */
	case 0x08: /* SIGNED_INT8 */
		return 1;
	case 0x02: /* UNSIGNED_INT16 */
	case 0x09: /* SIGNED_INT16 */
	case 0x10: /* HALF */
		return 2;
	default:
		return 4;
	}
}

uint64_t
array_size(uint64_t width, uint64_t height, uint64_t depth, unsigned format, unsigned channels)
{
	unsigned __int128 bytes =
	    (unsigned __int128)width * channel_bytes(format) * (channels == 0 ? 1 : channels);
	bytes = bytes > INT64_MAX ? INT64_MAX : bytes;
	bytes *= height == 0 ? 1 : height;
	bytes = bytes > INT64_MAX ? INT64_MAX : bytes;
	bytes *= depth == 0 ? 1 : depth;
	return bytes > INT64_MAX - LARGE_UNIT ? INT64_MAX : round_up((uint64_t)bytes, LARGE_UNIT);
}

uint64_t
mipmap_size(uint64_t level0)
{
	return level0 > INT64_MAX / 2 ? INT64_MAX : level0 * 2;
}
