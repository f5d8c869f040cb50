/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index arithmetic of a move from view to view: where a piece lies at an end. Plain functions,
 * compiled for the GPU by gather.cu, and for the CPU by cuda_gather.c, gpu_host.c and the tests.
 *
 * A piece is contiguous at both ends: the greatest common divisor of both runs. It is @piece_w words.
 * A thread block takes a tile of words. Its threads first find the places of the tile's pieces, one
 * each; then each moves words, wherever a piece begins. So short runs fill a warp too, and a place is
 * worked out once for a piece, not for a word.
 */
#ifndef GX_GPU_VIEW_CORE_H
#define GX_GPU_VIEW_CORE_H

#include "gpu_hd.h"
#include "gx_internal/desc.h"

#define GX_VIEW_THREADS 1024
#define GX_VIEW_PLACES	2048u  /* pieces of a tile, at most */
#define GX_VIEW_TILE	16384u /* words of it, at most */

/* To divide numbers below 2^31. */
struct gx_view_by {
	uint32_t by, magic, shift;
};

/* One end. A piece's number counts steps of the innermost dimension first. */
struct gx_view_side {
	uint64_t base, row_b;
	const uint32_t *rows; /* NULL: none */
	uint64_t row0;	      /* number of rows[0] */
	uint32_t nr;
	struct gx_view_by
		count[GX_MOVE_DIMS + 1]; /* the innermost first; a run of several pieces */
	int64_t stride_b[GX_MOVE_DIMS + 1];
};

/* One launch; the kernels get it by value. */
struct gx_view_args {
	struct gx_view_side src, dst;
	uint32_t *counter; /* device memory, zero between launches: thread blocks done */
	uint32_t *flag;	   /* pinned: becomes value */
	uint32_t value;
	uint32_t word_b; /* 16, 4 or 1 */
	uint32_t first;	 /* piece */
	uint32_t words;	 /* of all pieces */
	uint32_t tile;	 /* words of one */
	struct gx_view_by piece_w;
};

GX_HD uint32_t gx_view_div(uint32_t n, const struct gx_view_by *d)
{
	return d->by == 1 ? n : (uint32_t)((uint64_t)n * d->magic >> 32) >> d->shift;
}

/** gx_view_place() - Where piece @n begins. */
GX_HD uint64_t gx_view_place(const struct gx_view_side *s, uint32_t n)
{
	uint64_t at = s->base;

#ifdef __CUDA_ARCH__
#pragma unroll
#endif
	for (uint32_t k = 0; k <= GX_MOVE_DIMS; k++) {
		uint32_t above = n;

		if (k >= s->nr)
			break;
		above = gx_view_div(n, &s->count[k]);
		at += (uint64_t)((int64_t)(n - above * s->count[k].by) * s->stride_b[k]);
		n = above;
	}
	if (s->rows)
		at += s->rows[n - s->row0] * s->row_b;
	return at;
}

/** gx_view_tile() - Words of tile @t. */
GX_HD uint32_t gx_view_tile(const struct gx_view_args *a, uint32_t t)
{
	uint32_t left = a->words - t * a->tile;

	return left < a->tile ? left : a->tile;
}

#ifndef __CUDACC__
/* @d: 1 to 2^31. The quotient is exact for n < 2^31: magic is at most 2^31 / d too large in 2^(32 + shift). */
static inline struct gx_view_by gx_view_by_get(uint32_t d)
{
	struct gx_view_by by = {d, 0, 0};

	if (d == 1)
		return by;
	while (d > 1u << (by.shift + 1))
		by.shift++;
	by.magic = (uint32_t)(((1ull << (32 + by.shift)) + d - 1) / d);
	return by;
}

static inline uint64_t gx_view_side_get(struct gx_view_side *s, const struct gx_move_end *e,
					uint64_t piece_b)
{
	uint64_t low = e->base | piece_b;

	s->base = e->base;
	s->rows = e->rows;
	s->row_b = e->rows ? e->row_b : 0;
	s->row0 = e->row0;
	s->nr = 0;
	if (e->run_b != piece_b) {
		s->count[0] = gx_view_by_get((uint32_t)(e->run_b / piece_b));
		s->stride_b[s->nr++] = (int64_t)piece_b;
	}
	for (unsigned k = GX_MOVE_DIMS; k-- > 0;) {
		if (e->dim[k].count == 1)
			continue;
		s->count[s->nr] = gx_view_by_get((uint32_t)e->dim[k].count);
		s->stride_b[s->nr++] = e->dim[k].stride_b;
		low |= (uint64_t)e->dim[k].stride_b;
	}
	return low | s->row_b;
}

/** gx_view_plan() - @args for the move of @m: all but the counter and the flag. */
static inline void gx_view_plan(struct gx_view_args *a, const struct gx_move *m)
{
	uint64_t low = gx_view_side_get(&a->src, &m->src, m->piece_b);
	uint32_t piece_w;

	low |= gx_view_side_get(&a->dst, &m->dst, m->piece_b);
	a->word_b = low % 16 == 0 ? 16 : low % 4 == 0 ? 4 : 1;
	piece_w = (uint32_t)(m->piece_b / a->word_b);
	a->piece_w = gx_view_by_get(piece_w);
	a->first = m->first;
	a->words = m->nr * piece_w;
	/* A tile touches one piece more than it has room for, and part of another. */
	a->tile = GX_VIEW_TILE / (GX_VIEW_PLACES - 2) < piece_w ? GX_VIEW_TILE
								: (GX_VIEW_PLACES - 2) * piece_w;
}
#endif

#endif
