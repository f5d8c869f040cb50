/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The unpack kernel: copies the fragments of up to 16 blocks to their destinations and writes each
 * block's status word when its last byte is visible. Launched by gpu_cuda.c, on a core's stream;
 * the index arithmetic and how the work is divided are in unpack_core.h.
 */
#include "unpack_core.h"

#define ALL   0xffffffffu
#define ROUND 4 /* 16-byte loads in flight in each thread */

static_assert(sizeof(struct gx_unpack_arg) == 80, "same in C and in CUDA");

__device__ static uint4 word_shift(uint4 lo, uint4 hi, uint32_t skew)
{
	uint32_t w[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
	uint32_t out[4];

	gx_word_at(w, skew, out);
	return make_uint4(out[0], out[1], out[2], out[3]);
}

__device__ static uint4 word_shfl(uint4 v, int lane)
{
	return make_uint4(__shfl_sync(ALL, v.x, lane), __shfl_sync(ALL, v.y, lane),
			  __shfl_sync(ALL, v.z, lane), __shfl_sync(ALL, v.w, lane));
}

__device__ static void words_aligned(uint4 *dst, const uint4 *src, uint32_t n, uint32_t lane)
{
	for (uint32_t at = lane; at < n; at += 32 * ROUND) {
		uint4 v[ROUND];

#pragma unroll
		for (int k = 0; k < ROUND; k++)
			if (at + 32 * k < n)
				v[k] = __ldcs(src + at + 32 * k);
#pragma unroll
		for (int k = 0; k < ROUND; k++)
			if (at + 32 * k < n)
				dst[at + 32 * k] = v[k];
	}
}

/*
 * @src is @skew bytes past a 16-byte boundary: every word comes from two aligned ones, of which a
 * lane loads one and gets the other from its neighbour. No word is read that holds no byte of the
 * piece.
 */
__device__ static void words_skewed(uint4 *dst, const char *src, uint32_t n, uint32_t skew,
				    uint32_t lane)
{
	const uint4 *from = (const uint4 *)(src - skew);

	for (uint32_t base = 0; base < n; base += 32 * ROUND) {
		uint4 v[ROUND + 1];

#pragma unroll
		for (int k = 0; k < ROUND; k++) {
			v[k] = make_uint4(0, 0, 0, 0);
			if (base + 32 * k + lane <= n)
				v[k] = __ldcs(from + base + 32 * k + lane);
		}
		v[ROUND] = make_uint4(0, 0, 0, 0);
		if (lane == 0 && base + 32 * ROUND <= n)
			v[ROUND] = __ldcs(from + base + 32 * ROUND);
#pragma unroll
		for (int k = 0; k < ROUND; k++) {
			/* Lane 31's neighbour is lane 0 of the next row. */
			uint4 give = lane == 0 ? v[k + 1] : v[k];
			uint4 next = word_shfl(give, (lane + 1) & 31);

			if (base + 32 * k + lane < n)
				dst[base + 32 * k + lane] = word_shift(v[k], next, skew);
		}
	}
}

/* All lanes call with the same piece. The odd bytes of both ends are loaded before the words. */
__device__ static void piece_copy(uint64_t dst_addr, uint64_t src_addr, uint32_t len, uint32_t lane)
{
	struct gx_split s = gx_split_get(dst_addr, src_addr, len);
	char *dst = (char *)dst_addr;
	const char *src = (const char *)src_addr;
	uint32_t i = lane & 15;
	bool edge = i < (lane < 16 ? s.head : s.tail);
	uint32_t at = lane < 16 ? i : s.head + s.words * 16 + i;
	char byte = 0;

	if (edge)
		byte = src[at];
	if (s.skew == 0)
		words_aligned((uint4 *)(dst + s.head), (const uint4 *)(src + s.head), s.words,
			      lane);
	else if (s.words)
		words_skewed((uint4 *)(dst + s.head), src + s.head, s.words, s.skew, lane);
	if (edge)
		dst[at] = byte;
}

/* What lane's descriptor @i contributes to the unit between two cuts. */
__device__ static struct gx_piece piece_load(const struct gx_block *b, uint32_t i, uint32_t end,
					     const struct gx_cut *from, const struct gx_cut *to)
{
	struct gx_piece none = {0, 0, 0, GX_BLOCK_OK};
	struct gx_desc d;
	struct gx_seg seg;
	uint32_t which;
	uint4 raw;

	if (i >= end)
		return none;
	raw = *((const uint4 *)b->desc + i);
	which = b->aux[i].seg;
	d.src_off = raw.x;
	d.len = raw.y;
	d.dst_off = (uint64_t)raw.w << 32 | raw.z;
	if (which >= b->nr_seg)
		return gx_piece_get(b, &d, nullptr, i, from, to);
	seg = b->seg[which];
	return gx_piece_get(b, &d, &seg, i, from, to);
}

/* One unit, by one warp: 32 descriptors are fetched at a time, then copied one after another. */
__device__ static uint32_t unit_run(const struct gx_unpack_arg *arg, uint32_t unit, uint32_t shift,
				    uint32_t lane)
{
	struct gx_cut from = gx_cut_get(arg, unit, shift);
	struct gx_cut to = gx_cut_get(arg, unit + 1, shift);
	uint32_t end = gx_cut_end(&to);
	uint32_t worst = GX_BLOCK_OK;

	for (uint32_t base = from.desc; base < end; base += 32) {
		struct gx_piece p = piece_load(&arg->block, base + lane, end, &from, &to);
		uint32_t todo = __ballot_sync(ALL, p.len != 0);

		worst = max(worst, p.status);
		for (; todo; todo &= todo - 1) {
			int who = __ffs(todo) - 1;

			piece_copy(__shfl_sync(ALL, p.dst, who), __shfl_sync(ALL, p.src, who),
				   __shfl_sync(ALL, p.len, who), lane);
		}
	}
	return __reduce_max_sync(ALL, worst);
}

/*
 * Account for @done units of block @b. The warp's stores come before the fence (the warp is
 * synchronised first), the fence before the count; who brings the count to its end sees all of
 * them, resets the counters for the next launch, and tells the CPU.
 */
__device__ static void block_account(const struct gx_unpack_args *args, uint32_t b, uint32_t done,
				     uint32_t worst, uint32_t lane)
{
	uint32_t *nr_done = &args->counter[b];
	uint32_t *nr_worst = &args->counter[GX_UNPACK_BLOCKS_MAX + b];

	__syncwarp();
	if (lane != 0)
		return;
	if (worst > GX_BLOCK_OK)
		atomicMax(nr_worst, worst);
	__threadfence();
	if (atomicAdd(nr_done, done) + done != args->arg[b].nr_unit)
		return;
	__threadfence();
	worst = max(atomicExch(nr_worst, 0u), (uint32_t)GX_BLOCK_OK);
	atomicExch(nr_done, 0u);
	__threadfence_system();
	*(volatile uint32_t *)args->arg[b].block.status = worst;
}

extern "C" __global__ void __launch_bounds__(GX_UNPACK_THREADS)
	gx_unpack(const __grid_constant__ struct gx_unpack_args args)
{
	uint32_t lane = threadIdx.x % 32;
	uint32_t step = gridDim.x * GX_UNPACK_WARPS;
	uint32_t unit = threadIdx.x / 32 * gridDim.x + blockIdx.x;
	uint32_t b = 0, first = 0, done = 0, worst = GX_BLOCK_OK;

	for (; unit < args.unit_end[args.n - 1]; unit += step) {
		if (done && unit >= args.unit_end[b]) {
			block_account(&args, b, done, worst, lane);
			done = 0;
			worst = GX_BLOCK_OK;
		}
		while (unit >= args.unit_end[b])
			first = args.unit_end[b++];
		worst = max(worst, unit_run(&args.arg[b], unit - first, args.shift, lane));
		done++;
	}
	if (done)
		block_account(&args, b, done, worst, lane);
}

/* A word for the CPU after all work before it on the stream, where stream memory operations are
 * absent. */
extern "C" __global__ void gx_flag(uint32_t *flag, uint32_t value)
{
	__threadfence_system();
	*(volatile uint32_t *)flag = value;
}
