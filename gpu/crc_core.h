/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC-32C of a fragment by one warp, while the warp copies it: tables and their use, for unpack.cu
 * and for the tests on the CPU.
 *
 * The register is a linear function of the bytes. So each lane works on the 16-byte words that it
 * copies, every 32nd: for each word it advances its register by 512 bytes and adds the word. At the
 * end the lanes' registers are advanced to the end of the fragment and added. A table is for 4
 * bits: of a word, or of a register that is advanced by a number of bytes.
 */
#ifndef GX_GPU_CRC_CORE_H
#define GX_GPU_CRC_CORE_H

#include "gpu_hd.h"

#include <stdint.h>

#define GX_CRC_POLY	0x82f63b78u /* Castagnoli, reflected */
#define GX_CRC_ADVANCE	32	    /* tables from here: the register, by 512 bytes */
#define GX_CRC_HOT	40 /* tables up to here are used for every word: one copy for each lane */
#define GX_CRC_LANES	40 /* by 16, 32, 64, 128, 256 bytes, 8 tables each */
#define GX_CRC_BYTES	80 /* by 1, 2, 4, 8 bytes */
#define GX_CRC_TABLES	112
#define GX_CRC_WORDS	(GX_CRC_TABLES * 16)
#define GX_CRC_SHARED_B ((GX_CRC_HOT * 16 * 32 + (GX_CRC_TABLES - GX_CRC_HOT) * 16) * 4)

/** gx_crc_step() - The register @c after the byte @b. */
GX_HD uint32_t gx_crc_step(uint32_t c, uint32_t b)
{
	c ^= b;
	for (int i = 0; i < 8; i++)
		c = c >> 1 ^ (c & 1 ? GX_CRC_POLY : 0);
	return c;
}

/** gx_crc_nibbles() - @v through eight tables, whose entries are @stride words apart. */
GX_HD uint32_t gx_crc_nibbles(const uint32_t *tab, uint32_t stride, uint32_t v)
{
	uint32_t c = 0;

#ifdef __CUDACC__
#pragma unroll
#endif
	for (uint32_t i = 0; i < 8; i++)
		c ^= tab[(i * 16 + (v >> 4 * i & 15)) * stride];
	return c;
}

/** gx_crc_word() - The register after 16 bytes, from zero. */
GX_HD uint32_t gx_crc_word(const uint32_t *hot, uint32_t stride, const uint32_t w[4])
{
	return gx_crc_nibbles(hot, stride, w[0]) ^
	       gx_crc_nibbles(hot + 128 * stride, stride, w[1]) ^
	       gx_crc_nibbles(hot + 256 * stride, stride, w[2]) ^
	       gx_crc_nibbles(hot + 384 * stride, stride, w[3]);
}

/** gx_crc_byte() - The register after the byte @b and 15 - @at zeros, from zero. */
GX_HD uint32_t gx_crc_byte(const uint32_t *hot, uint32_t stride, uint32_t at, uint32_t b)
{
	return hot[(at * 32 + (b & 15)) * stride] ^ hot[(at * 32 + 16 + (b >> 4)) * stride];
}

/** gx_crc_first() - A value to add to the first bytes of a fragment so that the register may begin
 * with zero: the mask for its first word, which @head bytes precede. */
GX_HD uint32_t gx_crc_first(uint32_t head)
{
	return head >= 4 ? 0 : 0xffffffffu >> 8 * head;
}

#ifndef __CUDACC__
static inline uint32_t gx_crc_zeros(uint32_t c, uint32_t n)
{
	while (n--)
		c = gx_crc_step(c, 0);
	return c;
}

/** gx_crc_tables() - Fill @t, [GX_CRC_WORDS]. */
static inline void gx_crc_tables(uint32_t *t)
{
	for (uint32_t k = 0; k < GX_CRC_TABLES; k++)
		for (uint32_t n = 0; n < 16; n++) {
			uint32_t reg = n << 4 * (k & 7), c;

			if (k < GX_CRC_ADVANCE)
				c = gx_crc_zeros(gx_crc_step(0, n << 4 * (k & 1)), 15 - k / 2);
			else if (k < GX_CRC_HOT)
				c = gx_crc_zeros(reg, 512);
			else if (k < GX_CRC_BYTES)
				c = gx_crc_zeros(reg, 16u << (k - GX_CRC_LANES) / 8);
			else
				c = gx_crc_zeros(reg, 1u << (k - GX_CRC_BYTES) / 8);
			t[k * 16 + n] = c;
		}
}
#endif

#endif
