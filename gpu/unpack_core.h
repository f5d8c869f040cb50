/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index arithmetic of an unpack: how a launch is divided among warps, which piece of which
 * descriptor a warp copies, and how a piece is divided into aligned accesses. Plain functions
 * without side effects, compiled for the GPU by unpack.cu and for the CPU by the cuda_*.c and the
 * tests.
 *
 * The descriptors of a block, each GX_DESC_WEIGHT heavier than its bytes, are laid end to end and
 * cut at every multiple of a step. The part between two cuts is a unit, the work of one warp: a
 * part of a large descriptor or several small ones. If all lengths are equal the GPU computes the
 * cuts. Else the CPU lists them at launch, in one pass.
 */
#ifndef GX_GPU_UNPACK_CORE_H
#define GX_GPU_UNPACK_CORE_H

#include "gpu_hd.h"
#include "gx_internal/desc.h"

#define GX_UNPACK_BLOCKS_MAX		      16
#define GX_UNPACK_THREADS		      640
#define GX_UNPACK_WARPS			      (GX_UNPACK_THREADS / 32)
#define GX_RING_PAD_B			      128u  /* bytes that alignment adds to a stage */
#define GX_RING_SMALL			      3072u /* small: shorter on average */
#define GX_RING_BYTES(warps, stages, piece_b) ((warps) * (stages) * ((piece_b) + GX_RING_PAD_B))
/*
 * Stages of a warp's ring in shared memory, how many loads are under way in it (the others wait for
 * their stores), and the bytes of a stage. Small fragments: more warps, because each fragment costs
 * a warp some time, and room for three thread blocks on an SM. Large ones: larger pieces.
 */
#define GX_RING_SMALL_WARPS		      8
#define GX_RING_SMALL_STAGES		      4
#define GX_RING_SMALL_LOADS		      3
#define GX_RING_SMALL_PIECE_B		      2048u
#define GX_RING_LARGE_WARPS		      4
#define GX_RING_LARGE_STAGES		      6
#define GX_RING_LARGE_LOADS		      3
#define GX_RING_LARGE_PIECE_B		      4096u
#define GX_UNIT_MIN			      2048u /* least weight of a unit */
#define GX_UNITS_MAX			      1024  /* of one block; it has one cut more */
#define GX_DESC_WEIGHT			      256u  /* cost of starting a descriptor, in bytes */
#define GX_WHOLE_MAX			      2048u /* descriptors up to this stay whole */
#define GX_CUT_ALIGN			      128u  /* others are cut at multiples of it */
#define GX_STEP_MAX			      0xffffff80u /* most weight of a unit but the last */

/* A place between two units: byte @off of descriptor @desc; {nr, 0} is the end of the block. */
struct gx_cut {
	uint32_t desc;
	uint32_t off;
};

/* One block; the kernel gets it by value. */
struct gx_unpack_arg {
	struct gx_block block;
	const struct gx_cut *cut; /* [nr_unit + 1], in memory the GPU reads; used when len is 0 */
	uint32_t len;	  /* not 0: every descriptor has this length, the last may have less */
	uint32_t nr_unit; /* at least 1, also for a block without descriptors */
	struct gx_dest
		seg0; /* the only destination, when only is not 0: aux[] and seg[] are not read */
	uint32_t only;
	uint32_t crc; /* some descriptors are to be checked; none is divided */
};

struct gx_unpack_args {
	uint32_t *counter;   /* device memory, zero between launches: [16] units done, [16] worst
				status */
	const uint32_t *crc; /* device memory: gx_crc_tables() */
	uint32_t n;
	uint32_t step;				 /* weight of a unit, all but the last of a block */
	uint32_t unit_end[GX_UNPACK_BLOCKS_MAX]; /* units of the blocks up to and with this one */
	struct gx_unpack_arg arg[GX_UNPACK_BLOCKS_MAX];
};

/* One contiguous copy, the part of one descriptor that lies in one unit. */
struct gx_piece {
	uint64_t dst;
	uint64_t src;
	uint32_t len;	 /* 0: nothing to do */
	uint32_t status; /* GX_BLOCK_OK or GX_BLOCK_BOUNDS */
};

/* A piece as bytes up to an aligned destination, 16-byte words, and the bytes left. */
struct gx_split {
	uint32_t head;	/* 0..15 */
	uint32_t words; /* of 16 bytes */
	uint32_t tail;	/* 0..15 */
	uint32_t skew;	/* (src + head) mod 16; 0: both sides are aligned */
};

/* Does the descriptor stay inside its destination? No sum here can overflow. */
GX_HD int gx_desc_fits(const struct gx_desc *d, const struct gx_dest *seg)
{
	return d->dst_off <= seg->dst_len && d->len <= seg->dst_len - d->dst_off;
}

GX_HD struct gx_cut gx_cut_in(uint32_t desc, uint32_t len, uint64_t into, uint32_t whole)
{
	struct gx_cut cut = {desc, 0};

	if (!whole && len > GX_WHOLE_MAX && into > GX_DESC_WEIGHT)
		cut.off = (uint32_t)(into - GX_DESC_WEIGHT) & ~(GX_CUT_ALIGN - 1);
	return cut;
}

/** gx_cut_get() - Where unit @unit of @arg begins; @unit may be nr_unit, the end. */
GX_HD struct gx_cut gx_cut_get(const struct gx_unpack_arg *arg, uint32_t unit, uint32_t step)
{
	struct gx_cut end = {arg->block.nr, 0};
	uint64_t at = (uint64_t)unit * step;
	uint64_t span = (uint64_t)arg->len + GX_DESC_WEIGHT;

	if (unit >= arg->nr_unit)
		return end;
	if (!arg->len)
		return arg->cut[unit];
	if (at / span >= arg->block.nr)
		return end;
	return gx_cut_in((uint32_t)(at / span), arg->len, at % span, arg->crc);
}

/**
 * gx_unit_first() - The first unit of thread block @block, when each gets its share of @units in
 * one piece. So one or two SMs read a line of descriptors: if many read one line of host memory,
 * their reads come one after another.
 */
GX_HD uint32_t gx_unit_first(uint32_t units, uint32_t blocks, uint32_t block)
{
	return (uint32_t)((uint64_t)units * block / blocks);
}

/** gx_cut_end() - One past the last descriptor that a unit which ends at @to touches. */
GX_HD uint32_t gx_cut_end(const struct gx_cut *to)
{
	return to->desc + (to->off != 0);
}

/**
 * gx_piece_get() - The part of descriptor @i between two cuts.
 * @seg: its destination, NULL when the descriptor names none that exists
 */
GX_HD struct gx_piece gx_piece_get(const struct gx_block *b, const struct gx_desc *d,
				   const struct gx_dest *seg, uint32_t i, const struct gx_cut *from,
				   const struct gx_cut *to)
{
	struct gx_piece p = {0, 0, 0, GX_BLOCK_OK};
	uint32_t lo = i == from->desc ? from->off : 0;
	uint32_t hi = i == to->desc && to->off < d->len ? to->off : d->len;

	if (!seg || !gx_desc_fits(d, seg)) {
		p.status = GX_BLOCK_BOUNDS;
	} else if (lo < hi) {
		p.src = b->src_base + d->src_off + lo;
		p.dst = seg->dst_base + d->dst_off + lo;
		p.len = hi - lo;
	}
	return p;
}

GX_HD struct gx_split gx_split_get(uint64_t dst, uint64_t src, uint32_t len)
{
	struct gx_split s;

	s.head = (uint32_t)(0 - dst) & 15;
	if (s.head > len)
		s.head = len;
	s.words = (len - s.head) / 16;
	s.tail = (len - s.head) % 16;
	s.skew = (uint32_t)(src + s.head) & 15;
	return s;
}

/** gx_ring_piece() - The part of @len bytes for @dst that a stage takes: up to a line of the
 * destination. */
GX_HD uint32_t gx_ring_piece(uint64_t dst, uint32_t len, uint32_t piece_b)
{
	return len <= piece_b ? len : piece_b - (uint32_t)(dst & (GX_CUT_ALIGN - 1));
}

/* The 32 bits that begin @bits (0, 8, 16, 24) into @hi:@lo. */
GX_HD uint32_t gx_funnel(uint32_t lo, uint32_t hi, uint32_t bits)
{
#ifdef __CUDA_ARCH__
	return __funnelshift_r(lo, hi, bits);
#else
	return (uint32_t)(((uint64_t)hi << 32 | lo) >> bits);
#endif
}

/** gx_word_at() - The 16 bytes that begin @skew (0..15) bytes into the 32 bytes @w. Clobbers @w. */
GX_HD void gx_word_at(uint32_t w[8], uint32_t skew, uint32_t out[4])
{
	int i;

	if (skew & 8)
		for (i = 0; i < 6; i++)
			w[i] = w[i + 2];
	if (skew & 4)
		for (i = 0; i < 5; i++)
			w[i] = w[i + 1];
	for (i = 0; i < 4; i++)
		out[i] = gx_funnel(w[i], w[i + 1], (skew & 3) * 8);
}

#ifndef __CUDACC__
#include <stddef.h>

_Static_assert(sizeof(struct gx_unpack_args) <= 4096, "what a kernel takes by value");
_Static_assert(sizeof(struct gx_unpack_arg) == 112, "same in C and in CUDA");

/* Weigh the descriptors of @arg; find out whether their lengths and destinations are equal. */
static inline uint64_t gx_unpack_weigh(struct gx_unpack_arg *arg)
{
	const struct gx_block *b = &arg->block;
	uint32_t first = b->nr ? b->desc[0].len : 1;
	uint32_t odd = 0, segs = 0, flags = 0, last;
	uint64_t bytes = 0;

	if (b->hints & GX_HINT_WEIGHT) {
		arg->len = b->hints & GX_HINT_LEN ? b->hint_len : 0;
		arg->only = b->nr_seg == 1 && b->hints & GX_HINT_SEG0;
		arg->crc = (b->hints & GX_HINT_CRC) != 0;
		if (arg->only)
			arg->seg0 = b->seg[0];
		return b->bytes + (uint64_t)b->nr * GX_DESC_WEIGHT;
	}
	for (uint32_t i = 0; i + 1 < b->nr; i++) {
		bytes += b->desc[i].len;
		odd |= b->desc[i].len ^ first;
	}
	for (uint32_t i = 0; i < b->nr; i++) {
		segs |= b->aux[i].seg;
		flags |= b->aux[i].flags;
	}
	last = b->nr ? b->desc[b->nr - 1].len : 0;
	arg->len = (odd || last > first) ? 0 : first;
	arg->only = b->nr_seg == 1 && !segs;
	arg->crc = (flags & GX_AUX_CRC) != 0;
	if (arg->only)
		arg->seg0 = b->seg[0];
	return bytes + last + (uint64_t)b->nr * GX_DESC_WEIGHT;
}

/* Lengths may be garbage, which only the copy refuses. There are never more units than a block has
 * cuts for, and the last unit has the rest. */
static inline uint32_t gx_unpack_units(uint64_t weight, uint32_t step)
{
	uint64_t units = (weight + step - 1) / step;

	units = units < GX_UNITS_MAX ? units : GX_UNITS_MAX;
	return units ? (uint32_t)units : 1;
}

static inline void gx_unpack_cut(const struct gx_unpack_arg *arg, struct gx_cut *cut, uint32_t step)
{
	const struct gx_block *b = &arg->block;
	uint64_t at = 0, start = 0;
	uint32_t k = 0;

	for (uint32_t i = 0; i < b->nr; i++) {
		uint32_t len = b->desc[i].len;

		for (; at < start + len + GX_DESC_WEIGHT && k < arg->nr_unit; at += step)
			cut[k++] = gx_cut_in(i, len, at - start, arg->crc);
		start += (uint64_t)len + GX_DESC_WEIGHT;
	}
	cut[k] = (struct gx_cut){b->nr, 0};
}

/* The least weight of a unit that gives no more than @most units, as far as bounds allow: 32 bits
 * bound a length. */
static inline uint32_t gx_unpack_step(const uint64_t weight[], uint32_t n, uint32_t most)
{
	uint64_t total = 0, heaviest = 0, step;

	for (uint32_t i = 0; i < n; i++) {
		total += weight[i];
		heaviest = weight[i] > heaviest ? weight[i] : heaviest;
	}
	/* Each block rounds up, so one unit is kept for each. */
	most = most > 2 * n ? most - n : n;
	step = total / most + 1;
	if (step < heaviest / GX_UNITS_MAX + 1)
		step = heaviest / GX_UNITS_MAX + 1;
	if (step < GX_UNIT_MIN)
		step = GX_UNIT_MIN;
	if (step > GX_STEP_MAX)
		step = GX_STEP_MAX;
	return (uint32_t)((step + GX_CUT_ALIGN - 1) & ~(uint64_t)(GX_CUT_ALIGN - 1));
}

/**
 * gx_unpack_plan() - Divide @n blocks into at most about @most units, unless that makes them too
 * large.
 * @cuts: for each block room for GX_UNITS_MAX + 1 cuts that the GPU can read
 * @args: all but the counter is filled
 *
 * Return: units in all.
 */
static inline uint32_t gx_unpack_plan(struct gx_unpack_args *args, struct gx_block *const blocks[],
				      struct gx_cut *const cuts[], uint32_t n, uint32_t most)
{
	uint64_t weight[GX_UNPACK_BLOCKS_MAX];
	uint32_t units = 0;

	for (uint32_t i = 0; i < n; i++) {
		args->arg[i].block = *blocks[i];
		args->arg[i].cut = cuts[i];
		weight[i] = gx_unpack_weigh(&args->arg[i]);
	}
	args->step = gx_unpack_step(weight, n, most);
	for (uint32_t i = 0; i < n; i++) {
		args->arg[i].nr_unit = gx_unpack_units(weight[i], args->step);
		if (!args->arg[i].len)
			gx_unpack_cut(&args->arg[i], cuts[i], args->step);
		units += args->arg[i].nr_unit;
		args->unit_end[i] = units;
	}
	args->n = n;
	return units;
}
#endif

#endif
