/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index arithmetic of a gather: how rows are divided into segments that a warp loads at once,
 * and which words of a segment a lane moves. Plain functions without side effects, compiled for the
 * GPU by gather.cu, and for the CPU by cuda_gather.c, engine.c and the tests.
 *
 * A word is 16 bytes where rows and both bases allow it, else 4. A segment is the part of a row
 * within 1 KiB of the source that begins on a 128-byte line. So no load instruction of a warp
 * shares a line with another one: over PCIe each would fetch the line for itself.
 */
#ifndef GX_GPU_GATHER_CORE_H
#define GX_GPU_GATHER_CORE_H

#include "gpu_hd.h"
#include "gx_internal/desc.h"

#define GX_ROW_MAX	   65536u
#define GX_GATHER_WINDOW_B 32768u /* ordered: about as many bytes a warp takes at once */
#define GX_GATHER_SEG_B	   1024u
#define GX_GATHER_LINE_B   128u
#define GX_GATHER_THREADS  512
#define GX_GATHER_WARPS	   (GX_GATHER_THREADS / 32)

/* One launch; the kernels get it by value. */
struct gx_gather_args {
	const char *src;
	char *dst;
	const struct gx_pair *pairs;
	uint32_t *head; /* ordered: [nr_src], 1 + a pair that reads the row, 0: none; zero between
			   launches */
	uint32_t *next; /* ordered: [nr], 1 + another pair that reads the same row */
	uint32_t *counter; /* device memory, zero between launches: thread blocks done, pairs
			      refused */
	uint32_t *flag;	   /* pinned: becomes value */
	uint32_t *bad;	   /* pinned: pairs refused, written before flag */
	uint32_t value;
	uint32_t nr, nr_src, nr_dst;
	uint32_t row_b;
	uint32_t segs;	 /* of a row */
	uint32_t window; /* ordered: source rows that a warp takes at once, 1 to 32 */
	uint32_t magic;	 /* ordered: see gx_gather_row_of() */
};

/* The words that a warp moves at once. */
struct gx_gather_seg {
	uint64_t src, dst; /* of the segment's first word slot, which may lie before the row's first
			      word */
	int32_t lo, hi;	   /* word slots that are of the row */
};

/** gx_gather_word() - Bytes of a word: 16, 4, or 0 when an address or the row is not a multiple
 * of 4. */
GX_HD uint32_t gx_gather_word(uint64_t src, uint64_t dst, uint32_t row_b)
{
	uint32_t low = (uint32_t)(src | dst | row_b);

	return low % 16 == 0 ? 16 : low % 4 == 0 ? 4 : 0;
}

/** gx_gather_segs() - Segments that any row can have. */
GX_HD uint32_t gx_gather_segs(uint64_t src, uint32_t row_b, uint32_t word_b)
{
	uint32_t off = 0;

	/* If one row begins on a line, all do. */
	if ((src | row_b) % GX_GATHER_LINE_B)
		off = GX_GATHER_LINE_B - word_b;
	return (row_b + off + GX_GATHER_SEG_B - 1) / GX_GATHER_SEG_B;
}

/** gx_gather_seg_get() - Segment @seg of the row at @src, which goes to @dst. Empty when lo >= hi.
 */
GX_HD struct gx_gather_seg gx_gather_seg_get(uint64_t src, uint64_t dst, uint32_t row_b,
					     uint32_t word_b, uint32_t seg)
{
	uint32_t off = (uint32_t)src % GX_GATHER_LINE_B;
	int64_t begin = (int64_t)seg * GX_GATHER_SEG_B - off; /* in the row */
	int64_t end = begin + GX_GATHER_SEG_B;
	struct gx_gather_seg s;

	if (end > row_b)
		end = row_b;
	s.src = src + (uint64_t)begin;
	s.dst = dst + (uint64_t)begin;
	s.lo = begin < 0 ? (int32_t)(-begin / word_b) : 0;
	s.hi = (int32_t)((end - begin) / word_b);
	return s;
}

GX_HD uint32_t gx_gather_window(uint32_t row_b)
{
	uint32_t rows = GX_GATHER_WINDOW_B / row_b;

	return rows < 1 ? 1 : rows > 32 ? 32 : rows;
}

GX_HD uint32_t gx_gather_magic(uint32_t row_b)
{
	return (uint32_t)((((uint64_t)1 << 32) + row_b - 1) / row_b);
}

/** gx_gather_row_of() - at / row_b, for @at in a window; row_b >= 4. */
GX_HD uint32_t gx_gather_row_of(uint32_t at, uint32_t magic)
{
	return (uint32_t)((uint64_t)at * magic >> 32);
}

GX_HD int gx_gather_fits(const struct gx_gather_args *a, struct gx_pair p)
{
	return p.src < a->nr_src && p.dst < a->nr_dst;
}

#endif
