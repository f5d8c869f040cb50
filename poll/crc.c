// SPDX-License-Identifier: Apache-2.0
/*
 * CRC-32C by ISA-L, which picks the variant for this CPU. Polling cores call it for headers and
 * payloads of packets. Any thread may.
 */
#include "gx_internal/base.h"

#include <isa-l.h>

#define CRC_STEP_MAX (1u << 30) /* ISA-L takes the length as an int */

/* ISA-L's variant for AVX-512 leaves the upper halves of the vector registers in use. The next
 * instruction of SSE then waits, for 126 ns on a Xeon of 2024, and a packet has two CRCs. */
static inline void crc_registers_clean(void)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx"))
		__asm__ volatile("vzeroupper");
#endif
}

uint32_t gx_crc32c(uint32_t crc, const void *buf, size_t len)
{
	const uint8_t *p = buf;

	/* ISA-L inverts the CRC neither at its start nor at its end; RFC 3720 does both. */
	crc = ~crc;
	while (len > 0) {
		size_t n = GX_MIN(len, (size_t)CRC_STEP_MAX);

		/* ISA-L's prototype lacks const; it only reads. */
		crc = crc32_iscsi((unsigned char *)(uintptr_t)p, (int)n, crc);
		p += n;
		len -= n;
	}
	crc_registers_clean();
	return ~crc;
}
