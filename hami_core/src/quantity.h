/* Strict readers of the limits that people put into environment variables. Nothing unreadable is
 * ever "no limit". */
#ifndef GPUSLICE_QUANTITY_H
#define GPUSLICE_QUANTITY_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes from "4G", "4Gi", "4GiB", "4GB", "4096m", "1.5G", "4194304": every letter is binary (HAMi's
 * meaning of these variables), letters in either case, surrounding white space allowed, fractions
 * only where the bytes come out whole. False for everything else: sign, zero, empty text, other
 * letters, more than 2^63 - 1 bytes. */
bool quantity_bytes(const char *text, uint64_t *bytes);

/* A percentage 0..100 as decimal digits. */
bool quantity_percent(const char *text, uint32_t *percent);

/* "true"/"1" and "false"/"0" in any case. */
bool quantity_switch(const char *text, bool *on);

#endif
