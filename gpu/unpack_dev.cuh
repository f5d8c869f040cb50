/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the kernels of unpack.cu and resident.cu: how a warp copies one piece, and how it walks
 * the descriptors of one unit. For nvcc alone.
 */
#ifndef GX_GPU_UNPACK_DEV_H
#define GX_GPU_UNPACK_DEV_H

#include "unpack_core.h"

#define ALL	     0xffffffffu
#define ROUND	     6 /* 16-byte loads in flight in each thread */
#define ROUND_SKEWED 5 /* where source and destination are not aligned alike */

/* Lighter than __threadfence() and its kin, which also order all fences among themselves. */
__device__ static void fence_block(void)
{
	asm volatile("fence.acq_rel.cta;" : : : "memory");
}

__device__ static void fence_gpu(void)
{
	asm volatile("fence.acq_rel.gpu;" : : : "memory");
}

__device__ static void fence_system(void)
{
	asm volatile("fence.acq_rel.sys;" : : : "memory");
}

__device__ static uint4 word_shift(uint4 lo, uint4 hi, uint32_t skew)
{
	uint32_t w[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
	uint32_t out[4];

	gx_word_at(w, skew, out);
	return make_uint4(out[0], out[1], out[2], out[3]);
}

/*
 * A load of payload. In a kernel that outlives its payload (@fresh) it passes L1 by: a sector that
 * was read for an earlier job may have been written since.
 */
template <bool fresh> __device__ static uint4 word_load(const uint4 *at)
{
	return fresh ? __ldcg(at) : __ldcs(at);
}

template <bool fresh>
__device__ static void words_aligned(uint4 *dst, const uint4 *src, uint32_t n, uint32_t lane)
{
	for (uint32_t at = lane; at < n; at += 32 * ROUND) {
		uint4 v[ROUND];

#pragma unroll
		for (int k = 0; k < ROUND; k++)
			if (at + 32 * k < n)
				v[k] = word_load<fresh>(src + at + 32 * k);
#pragma unroll
		for (int k = 0; k < ROUND; k++)
			if (at + 32 * k < n)
				dst[at + 32 * k] = v[k];
	}
}

__device__ static uint4 word_shfl(uint4 v, uint32_t from)
{
	return make_uint4(__shfl_sync(ALL, v.x, from), __shfl_sync(ALL, v.y, from),
			  __shfl_sync(ALL, v.z, from), __shfl_sync(ALL, v.w, from));
}

/*
 * @src is @skew bytes past a 16-byte boundary: every word comes from two aligned ones, of which the
 * second is the next lane's, and the last lane's is the first lane's of the next load. No word is
 * read that holds no byte of the piece.
 */
template <bool fresh>
__device__ static void words_skewed(uint4 *dst, const char *src, uint32_t n, uint32_t skew,
				    uint32_t lane)
{
	const uint4 *from = (const uint4 *)(src - skew);

	for (uint32_t base = 0; base < n; base += 32 * ROUND_SKEWED) {
		uint4 v[ROUND_SKEWED + 1];

#pragma unroll
		for (int k = 0; k <= ROUND_SKEWED; k++) {
			v[k] = make_uint4(0, 0, 0, 0);
			if (base + 32 * k + lane <= n && (k < ROUND_SKEWED || lane == 0))
				v[k] = word_load<fresh>(from + base + 32 * k + lane);
		}
#pragma unroll
		for (int k = 0; k < ROUND_SKEWED; k++) {
			/* The first lane gives its next load, which the last lane takes. */
			uint4 give = lane == 0 ? v[k + 1] : v[k];
			uint4 next = word_shfl(give, lane + 1 & 31);

			if (base + 32 * k + lane < n)
				dst[base + 32 * k + lane] = word_shift(v[k], next, skew);
		}
	}
}

/* All lanes call with the same piece. The odd bytes of both ends are loaded before the words. */
template <bool fresh>
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
		byte = fresh ? __ldcg(src + at) : src[at];
	if (s.skew == 0)
		words_aligned<fresh>((uint4 *)(dst + s.head), (const uint4 *)(src + s.head),
				     s.words, lane);
	else if (s.words)
		words_skewed<fresh>((uint4 *)(dst + s.head), src + s.head, s.words, s.skew, lane);
	if (edge)
		dst[at] = byte;
}

/* A descriptor as a lane fetched it, from pinned memory; nothing is computed before a warp needs
 * it. */
struct raw_desc {
	uint4 d;
	uint32_t seg;
	uint32_t flags, crc; /* of aux, where the copier checks */
};

/*
 * A word of a block's arrays, in pinned memory that the CPU rewrites between launches. A launch
 * that does not overlap the one before it begins with an empty L1, so units of one descriptor share
 * the lines that the first has fetched. With loads past the caches, which bring the same line over
 * PCIe once a unit, a launch of 1 MiB in merged descriptors took 237 us instead of 35. Launches
 * that overlap must load past the caches.
 */
template <bool cached, typename word> __device__ static word array_load(const word *at)
{
	return cached ? *at : __ldcv(at);
}

/* The place of descriptors, and the arithmetic of cuts: resident.cu has its own. */
template <typename copier>
__device__ static uint4 desc_get(const copier &, const struct gx_unpack_arg *arg, uint32_t i)
{
	return array_load<copier::cached>((const uint4 *)arg->block.desc + i);
}

template <typename copier>
__device__ static struct gx_cut cut_get(const copier &, const struct gx_unpack_arg *arg,
					uint32_t unit, uint32_t step)
{
	return gx_cut_get(arg, unit, step);
}

template <typename copier>
__device__ static struct raw_desc desc_load(const copier &how, const struct gx_unpack_arg *arg,
					    uint32_t i, uint32_t end)
{
	constexpr bool cached = copier::cached;
	struct raw_desc raw = {make_uint4(0, 0, 0, 0), 0, 0, 0};

	if (i >= end)
		return raw;
	if (!arg->block.desc) { /* a copy: arg says all there is to know */
		raw.d.y = arg->len;
		return raw;
	}
	raw.d = desc_get(how, arg, i);
	if (copier::checks) {
		uint2 aux = array_load<cached>((const uint2 *)(arg->block.aux + i));

		raw.seg = aux.x & 0xffff;
		raw.flags = aux.x >> 16;
		raw.crc = aux.y;
	} else if (!arg->only)
		raw.seg = array_load<cached>((const uint32_t *)(arg->block.aux + i)) & 0xffff;
	return raw;
}

/* The copied bytes have another CRC: the descriptor shows that to the core that reaps the block. By one
 * lane; the fences before the block's status order it too. */
__device__ static void desc_bad(const struct gx_unpack_arg *arg, uint32_t i, uint32_t flags)
{
	*(volatile uint16_t *)&arg->block.aux[i].flags = (uint16_t)(flags | GX_AUX_BAD);
}

/* The part of the lane's descriptor @i in the unit between two cuts. */
template <bool cached>
__device__ static struct gx_piece piece_make(const struct gx_unpack_arg *arg,
					     const struct raw_desc &raw, uint32_t i, uint32_t end,
					     const struct gx_cut *from, const struct gx_cut *to)
{
	const struct gx_block *b = &arg->block;
	struct gx_piece none = {0, 0, 0, GX_BLOCK_OK};
	struct gx_dest seg = arg->seg0;
	struct gx_desc d;

	if (i >= end)
		return none;
	d.src_off = raw.d.x;
	d.len = raw.d.y;
	d.dst_off = (uint64_t)raw.d.w << 32 | raw.d.z;
	if (arg->only)
		return gx_piece_get(b, &d, &seg, i, from, to);
	if (raw.seg >= b->nr_seg)
		return gx_piece_get(b, &d, nullptr, i, from, to);
	seg.dst_base = array_load<cached>((const unsigned long long *)&b->seg[raw.seg].dst_base);
	seg.dst_len = array_load<cached>((const unsigned long long *)&b->seg[raw.seg].dst_len);
	return gx_piece_get(b, &d, &seg, i, from, to);
}

/*
 * How a warp copies pieces: here through its registers. @fresh: the kernel outlives its payload;
 * taking a job empties L1, so descriptors may come from there.
 */
template <bool fresh> struct lanes {
	static constexpr uint32_t fetch = 32;
	static constexpr bool cached = true, checks = false;

	__device__ void copy(uint64_t dst, uint64_t src, uint32_t len, uint32_t lane)
	{
		piece_copy<fresh>(dst, src, len, lane);
	}

	__device__ void drain(uint32_t lane)
	{
	}
};

/*
 * One unit, by one warp. The warp fetches copier::fetch descriptors at a time, the next ones while
 * it copies these one after another.
 */
template <typename copier>
__device__ static uint32_t unit_run(const struct gx_unpack_arg *arg, uint32_t unit, uint32_t step,
				    copier &how, uint32_t lane)
{
	struct gx_cut from = cut_get(how, arg, unit, step);
	struct gx_cut to = cut_get(how, arg, unit + 1, step);
	uint32_t end = gx_cut_end(&to);
	uint32_t fetch = lane < copier::fetch ? end : 0;
	struct raw_desc next, raw = desc_load(how, arg, from.desc + lane, fetch);
	uint32_t worst = GX_BLOCK_OK;

	for (uint32_t base = from.desc; base < end; base += copier::fetch, raw = next) {
		struct gx_piece p =
			piece_make<copier::cached>(arg, raw, base + lane, fetch, &from, &to);
		uint32_t todo = __ballot_sync(ALL, p.len != 0);

		next = desc_load(how, arg, base + copier::fetch + lane, fetch);
		worst = max(worst, p.status);
		if (copier::checks && p.len == 0 && p.status == GX_BLOCK_OK &&
		    raw.flags & GX_AUX_CRC && raw.crc != 0) { /* of nothing it is 0 */
			worst = max(worst, (uint32_t)GX_BLOCK_CRC);
			desc_bad(arg, base + lane, raw.flags);
		}
		for (; todo; todo &= todo - 1) {
			int who = __ffs(todo) - 1;
			uint64_t dst = __shfl_sync(ALL, p.dst, who);
			uint64_t src = __shfl_sync(ALL, p.src, who);
			uint32_t len = __shfl_sync(ALL, p.len, who);

			if constexpr (copier::checks) {
				uint32_t flags = __shfl_sync(ALL, raw.flags, who);
				uint32_t crc = __shfl_sync(ALL, raw.crc, who);

				if (how.copy(dst, src, len, lane) != crc && flags & GX_AUX_CRC) {
					worst = max(worst, (uint32_t)GX_BLOCK_CRC);
					if (lane == 0)
						desc_bad(arg, base + who, flags);
				}
			} else {
				how.copy(dst, src, len, lane);
			}
		}
	}
	return __reduce_max_sync(ALL, worst);
}

#endif
