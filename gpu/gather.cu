/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gather and scatter: few SMs move rows that (source, destination) pairs name, from pinned host
 * memory to GPU memory or back; and bytes from view to view, wherever the GPU reaches both.
 * cuda_gather.c launches these kernels; gather_core.h says how a row is divided, view_core.h how a
 * view is. The last thread block to finish signals the CPU.
 */
#include "gather_dev.cuh"
#include "view_core.h"

/* The segment of one warp: a lane's words, all loaded before any is stored. */
template <typename word> struct seg_regs {
	static constexpr int loads = GX_GATHER_SEG_B / 32 / sizeof(word);
	word v[loads];
	struct gx_gather_seg s;

	__device__ void load(uint32_t lane)
	{
#pragma unroll
		for (int k = 0; k < loads; k++) {
			int at = (int)lane + 32 * k;

			if (at >= s.lo && at < s.hi)
				v[k] = word_load((const word *)s.src + at);
		}
	}

	__device__ void store(uint64_t dst, uint32_t lane) const
	{
#pragma unroll
		for (int k = 0; k < loads; k++) {
			int at = (int)lane + 32 * k;

			if (at >= s.lo && at < s.hi)
				__stcs((word *)dst + at, v[k]);
		}
	}
};

/* RUN consecutive segments of a warp: which pairs they are of. All lanes read the same words. */
template <int RUN> struct run_pairs {
	struct gx_pair p[RUN];

	__device__ void load(const struct gx_gather_args &a, uint64_t u, uint64_t end)
	{
#pragma unroll
		for (int k = 0; k < RUN; k++) {
			p[k] = {UINT32_MAX, UINT32_MAX};
			if (u + k < end)
				p[k] = pair_load(a, a.segs == 1 ? u + k : (u + k) / a.segs);
		}
	}
};

/*
 * RUN segments are loaded before the first of them is stored, and the pairs of the next RUN are
 * fetched meanwhile: the bytes on their way over PCIe bound a gather by few SMs.
 */
template <typename word, int RUN> __device__ static void rows_run(const struct gx_gather_args &a)
{
	uint32_t lane = threadIdx.x % 32;
	uint64_t step = (uint64_t)gridDim.x * GX_GATHER_WARPS * RUN;
	uint64_t u = ((uint64_t)threadIdx.x / 32 * gridDim.x + blockIdx.x) * RUN;
	uint64_t end = (uint64_t)a.nr * a.segs;
	struct run_pairs<RUN> next;
	uint32_t bad = 0;

	next.load(a, u, end);
	for (; u < end; u += step) {
		struct run_pairs<RUN> now = next;
		struct seg_regs<word> r[RUN];

#pragma unroll
		for (int k = 0; k < RUN; k++) {
			struct gx_pair p = now.p[k];
			uint32_t seg = a.segs == 1 ? 0 : (u + k) % a.segs;

			r[k].s.lo = r[k].s.hi = 0;
			if (gx_gather_fits(&a, p))
				r[k].s = gx_gather_seg_get(
					(uint64_t)a.src + (uint64_t)p.src * a.row_b,
					(uint64_t)a.dst + (uint64_t)p.dst * a.row_b, a.row_b,
					sizeof(word), seg);
			else
				bad += u + k < end && seg == 0 && lane == 0;
			r[k].load(lane);
		}
		next.load(a, u + step, end);
#pragma unroll
		for (int k = 0; k < RUN; k++)
			r[k].store(r[k].s.dst, lane);
	}
	grid_end(a, bad);
}

extern "C" __global__ void __launch_bounds__(GX_GATHER_THREADS, 1)
	gx_gather_rows16(const __grid_constant__ struct gx_gather_args a)
{
	rows_run<uint4, 4>(a);
}

extern "C" __global__ void __launch_bounds__(GX_GATHER_THREADS, 1)
	gx_gather_rows4(const __grid_constant__ struct gx_gather_args a)
{
	rows_run<uint32_t, 2>(a);
}

/* Ordered, first pass: a list of the pairs of each source row. Refused pairs are in none. */
extern "C" __global__ void __launch_bounds__(GX_GATHER_THREADS, 1)
	gx_gather_link(const __grid_constant__ struct gx_gather_args a)
{
	constexpr int RUN = 4; /* atomics under way in each thread */
	uint64_t step = (uint64_t)gridDim.x * GX_GATHER_THREADS;
	uint64_t i = blockIdx.x * GX_GATHER_THREADS + threadIdx.x;
	uint32_t bad = 0;

	for (; i < a.nr; i += RUN * step) {
		struct gx_pair p[RUN];

#pragma unroll
		for (int k = 0; k < RUN; k++)
			if (i + k * step < a.nr)
				p[k] = pair_load(a, i + k * step);
#pragma unroll
		for (int k = 0; k < RUN; k++) {
			uint64_t at = i + k * step;

			if (at >= a.nr)
				continue;
			if (gx_gather_fits(&a, p[k]))
				a.next[at] = atomicExch(&a.head[p[k].src], (uint32_t)at + 1);
			else
				bad++;
		}
	}
	bad = __reduce_add_sync(ALL, bad);
	if (bad && threadIdx.x % 32 == 0)
		atomicAdd(&a.counter[1], bad);
}

/* The destinations of one source row. The lane of that row holds the first few, and the rest. */
struct list {
	static constexpr int few = 4;
	uint32_t dst[few];
	uint32_t nr; /* of dst[] */
	uint32_t rest;

	__device__ void load(const struct gx_gather_args &a, uint32_t i)
	{
		nr = 0;
#pragma unroll
		for (int k = 0; k < few; k++) {
			dst[k] = 0;
			if (!i)
				continue;
			dst[k] = pair_load(a, i - 1).dst;
			i = a.next[i - 1];
			nr++;
		}
		rest = i;
	}
};

/* RUN segments of a window: contiguous source bytes, a word of which may be of any row in it. */
template <typename word, int RUN> struct window_regs {
	static constexpr int loads = GX_GATHER_SEG_B / 32 / sizeof(word);
	word v[RUN * loads];
	uint8_t row[RUN * loads]; /* 32: a word of no row that is wanted */

	/* @at: offset of the lane's first word from the window's first row; may be negative. */
	__device__ void load(const struct gx_gather_args &a, const char *src, int at, int end,
			     uint32_t todo)
	{
#pragma unroll
		for (int k = 0; k < RUN * loads; k++) {
			int x = at + 32 * k * (int)sizeof(word);

			row[k] = 32;
			if (x < 0 || x >= end)
				continue;
			row[k] = gx_gather_row_of(x, a.magic);
			if (!(todo >> row[k] & 1))
				row[k] = 32;
			else
				v[k] = word_load((const word *)(src + x));
		}
	}

	__device__ void store(const struct gx_gather_args &a, int k, int at, uint32_t dst) const
	{
		uint32_t col = at + 32 * k * (int)sizeof(word) - row[k] * a.row_b;

		__stcs((word *)(a.dst + (uint64_t)dst * a.row_b + col), v[k]);
	}

	/* To the first few destinations of every row, then along the lists that are longer. */
	__device__ void spread(const struct gx_gather_args &a, const struct list &l, int at,
			       uint32_t most) const
	{
		for (uint32_t n = 0; n < most; n++) {
			/* dst[] is indexed by constants only: it stays in registers. */
			uint32_t mine = n == 0	 ? l.dst[0]
					: n == 1 ? l.dst[1]
					: n == 2 ? l.dst[2]
						 : l.dst[3];
			uint32_t has = __ballot_sync(ALL, n < l.nr);

#pragma unroll
			for (int k = 0; k < RUN * loads; k++) {
				uint32_t dst = __shfl_sync(ALL, mine, row[k] & 31);

				if (row[k] < 32 && (has >> row[k] & 1))
					store(a, k, at, dst);
			}
		}
		if (!__any_sync(ALL, l.rest))
			return;
#pragma unroll
		for (int k = 0; k < RUN * loads; k++) {
			uint32_t i = __shfl_sync(ALL, l.rest, row[k] & 31);

			for (i = row[k] < 32 ? i : 0; i; i = a.next[i - 1])
				store(a, k, at, pair_load(a, i - 1).dst);
		}
	}
};

/*
 * Ordered, second pass. A warp takes a window of source rows and reads the wanted words of it in
 * ascending order, whole lines where neighbours are wanted too. It stores each word for every pair
 * of the word's row.
 */
template <typename word, int RUN> __device__ static void windows_run(const struct gx_gather_args &a)
{
	uint32_t lane = threadIdx.x % 32;
	uint64_t step = (uint64_t)gridDim.x * GX_GATHER_WARPS * a.window;
	uint64_t base = ((uint64_t)threadIdx.x / 32 * gridDim.x + blockIdx.x) * a.window;

	for (; base < a.nr_src; base += step) {
		bool mine = lane < a.window && base + lane < a.nr_src;
		const char *src = a.src + base * a.row_b;
		uint32_t h = mine ? a.head[base + lane] : 0;
		uint32_t todo = __ballot_sync(ALL, h != 0);
		int end = a.row_b * (32 - __clz(todo));
		struct list l;
		uint32_t most;

		if (!todo)
			continue;
		if (h)
			a.head[base + lane] = 0;
		l.load(a, h);
		most = __reduce_max_sync(ALL, l.nr);
		for (int seg = -(int)((uint64_t)src % GX_GATHER_LINE_B); seg < end;
		     seg += RUN * GX_GATHER_SEG_B) {
			struct window_regs<word, RUN> r;
			int at = seg + (int)(lane * sizeof(word));

			r.load(a, src, at, end, todo);
			r.spread(a, l, at, most);
		}
	}
	grid_end(a, 0);
}

extern "C" __global__ void __launch_bounds__(GX_GATHER_THREADS, 1)
	gx_gather_ordered16(const __grid_constant__ struct gx_gather_args a)
{
	windows_run<uint4, 4>(a);
}

extern "C" __global__ void __launch_bounds__(GX_GATHER_THREADS, 1)
	gx_gather_ordered4(const __grid_constant__ struct gx_gather_args a)
{
	windows_run<uint32_t, 2>(a);
}

/* --- from view to view --- */

__device__ static inline unsigned char word_load(const unsigned char *p)
{
	return __ldcs(p);
}

/* LOADS words of a thread are loaded before the first of them is stored. */
template <typename word, int LOADS> __device__ static void views_run(const struct gx_view_args &a)
{
	__shared__ ulonglong2 place[GX_VIEW_PLACES]; /* of source and destination */

	for (uint32_t t = blockIdx.x; (uint64_t)t * a.tile < a.words; t += gridDim.x) {
		uint32_t begin = t * a.tile, n = gx_view_tile(&a, t);
		uint32_t first = gx_view_div(begin, &a.piece_w);
		uint32_t pieces = gx_view_div(begin + n - 1, &a.piece_w) - first + 1;

		__syncthreads();
		for (uint32_t i = threadIdx.x; i < pieces; i += GX_VIEW_THREADS)
			place[i] = {gx_view_place(&a.src, a.first + first + i),
				    gx_view_place(&a.dst, a.first + first + i)};
		__syncthreads();
		for (uint32_t i = threadIdx.x; i < n; i += LOADS * GX_VIEW_THREADS) {
			word v[LOADS];
			word *to[LOADS];

#pragma unroll
			for (int k = 0; k < LOADS; k++) {
				uint32_t at = i + k * GX_VIEW_THREADS, piece, in;

				to[k] = nullptr;
				if (at >= n)
					continue;
				piece = gx_view_div(begin + at, &a.piece_w);
				in = begin + at - piece * a.piece_w.by;
				to[k] = (word *)place[piece - first].y + in;
				v[k] = word_load((const word *)place[piece - first].x + in);
			}
#pragma unroll
			for (int k = 0; k < LOADS; k++)
				if (to[k])
					__stcs(to[k], v[k]);
		}
	}
	if (!grid_is_last(a.counter))
		return;
	__threadfence_system();
	*(volatile uint32_t *)a.flag = a.value;
}

extern "C" __global__ void __launch_bounds__(GX_VIEW_THREADS, 1)
	gx_gather_view16(const __grid_constant__ struct gx_view_args a)
{
	views_run<uint4, 4>(a);
}

extern "C" __global__ void __launch_bounds__(GX_VIEW_THREADS, 1)
	gx_gather_view4(const __grid_constant__ struct gx_view_args a)
{
	views_run<uint32_t, 4>(a);
}

extern "C" __global__ void __launch_bounds__(GX_VIEW_THREADS, 1)
	gx_gather_view1(const __grid_constant__ struct gx_view_args a)
{
	views_run<unsigned char, 4>(a);
}
