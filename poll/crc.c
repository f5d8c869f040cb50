// SPDX-License-Identifier: Apache-2.0
/*
 * CRC-32C by ISA-L, which picks its variant for the CPU. Called for headers and payloads on the
 * polling cores, and for control messages; any thread.
 */
#include "gx_internal/base.h"

#include <isa-l.h>

#define CRC_STEP_MAX (1u << 30) /* ISA-L takes the length as an int */

uint32_t gx_crc32c(uint32_t crc, const void *buf, size_t len)
{
	const uint8_t *p = buf;

	/* ISA-L starts from the register itself and leaves it as it is: RFC 3720 inverts at both
	 * ends. */
	crc = ~crc;
	while (len > 0) {
		size_t n = GX_MIN(len, (size_t)CRC_STEP_MAX);

		/* ISA-L's prototype lacks const; it only reads. */
		crc = crc32_iscsi((unsigned char *)(uintptr_t)p, (int)n, crc);
		p += n;
		len -= n;
	}
	return ~crc;
}
