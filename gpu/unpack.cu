/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The unpack kernel: copies the fragments of up to 16 blocks to their destinations and writes each
 * block's status word when its last byte is visible. Launched by gpu_cuda.c, on a core's stream;
 * the index arithmetic and how the work is divided are in unpack_core.h.
 */
#include "unpack_core.h"

#define ALL	     0xffffffffu
#define ROUND	     6 /* 16-byte loads in flight in each thread */
#define ROUND_SKEWED 2 /* pairs of them, where source and destination are not aligned alike */

static_assert(sizeof(struct gx_unpack_arg) == 112, "same in C and in CUDA");

__device__ static uint4 word_shift(uint4 lo, uint4 hi, uint32_t skew)
{
	uint32_t w[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
	uint32_t out[4];

	gx_word_at(w, skew, out);
	return make_uint4(out[0], out[1], out[2], out[3]);
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
 * @src is @skew bytes past a 16-byte boundary: every word comes from two aligned ones. The second
 * is the first of the next lane, so it is loaded from L1. No word is read that holds no byte of the
 * piece.
 */
__device__ static void words_skewed(uint4 *dst, const char *src, uint32_t n, uint32_t skew,
				    uint32_t lane)
{
	const uint4 *from = (const uint4 *)(src - skew);

	for (uint32_t at = lane; at < n; at += 32 * ROUND_SKEWED) {
		uint4 v[ROUND_SKEWED], w[ROUND_SKEWED];

#pragma unroll
		for (int k = 0; k < ROUND_SKEWED; k++)
			if (at + 32 * k < n) {
				v[k] = __ldg(from + at + 32 * k);
				w[k] = __ldg(from + at + 32 * k + 1);
			}
#pragma unroll
		for (int k = 0; k < ROUND_SKEWED; k++)
			if (at + 32 * k < n)
				dst[at + 32 * k] = word_shift(v[k], w[k], skew);
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

/* A descriptor as a lane fetched it, from pinned memory: nothing is computed before it is needed.
 */
struct raw_desc {
	uint4 d;
	uint32_t seg;
};

/*
 * A word of a block's arrays, in pinned memory that the CPU rewrites between launches. A launch
 * that does not overlap the one before it begins with an empty L1, so that units of one descriptor
 * share what the first has fetched; read past the caches, the same line over PCIe once a unit, a
 * launch of 1 MiB in merged descriptors took 237 us instead of 35. Launches that overlap must read
 * past them.
 */
template <bool cached, typename word> __device__ static word array_load(const word *at)
{
	return cached ? *at : __ldcv(at);
}

template <bool cached>
__device__ static struct raw_desc desc_load(const struct gx_unpack_arg *arg, uint32_t i,
					    uint32_t end)
{
	struct raw_desc raw = {make_uint4(0, 0, 0, 0), 0};

	if (i >= end)
		return raw;
	raw.d = array_load<cached>((const uint4 *)arg->block.desc + i);
	if (!arg->only)
		raw.seg = array_load<cached>((const uint32_t *)(arg->block.aux + i)) & 0xffff;
	return raw;
}

/* What lane's descriptor @i contributes to the unit between two cuts. */
template <bool cached>
__device__ static struct gx_piece piece_make(const struct gx_unpack_arg *arg,
					     const struct raw_desc &raw, uint32_t i, uint32_t end,
					     const struct gx_cut *from, const struct gx_cut *to)
{
	const struct gx_block *b = &arg->block;
	struct gx_piece none = {0, 0, 0, GX_BLOCK_OK};
	struct gx_seg seg = arg->seg0;
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

/* How a warp copies pieces: here through its registers. */
struct lanes {
	static constexpr uint32_t fetch = 32;
	static constexpr bool cached = true;

	__device__ void copy(uint64_t dst, uint64_t src, uint32_t len, uint32_t lane)
	{
		piece_copy(dst, src, len, lane);
	}

	__device__ void drain(uint32_t lane)
	{
	}
};

/*
 * One unit, by one warp: copier::fetch descriptors are fetched at a time, the next ones while these
 * are copied one after another.
 */
template <typename copier>
__device__ static uint32_t unit_run(const struct gx_unpack_arg *arg, uint32_t unit, uint32_t step,
				    copier &how, uint32_t lane)
{
	struct gx_cut from = gx_cut_get(arg, unit, step);
	struct gx_cut to = gx_cut_get(arg, unit + 1, step);
	uint32_t end = gx_cut_end(&to);
	uint32_t fetch = lane < copier::fetch ? end : 0;
	struct raw_desc raw = desc_load<copier::cached>(arg, from.desc + lane, fetch), next;
	uint32_t worst = GX_BLOCK_OK;

	for (uint32_t base = from.desc; base < end; base += copier::fetch, raw = next) {
		struct gx_piece p =
			piece_make<copier::cached>(arg, raw, base + lane, fetch, &from, &to);
		uint32_t todo = __ballot_sync(ALL, p.len != 0);

		next = desc_load<copier::cached>(arg, base + copier::fetch + lane, fetch);
		worst = max(worst, p.status);
		for (; todo; todo &= todo - 1) {
			int who = __ffs(todo) - 1;

			how.copy(__shfl_sync(ALL, p.dst, who), __shfl_sync(ALL, p.src, who),
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

/* All units of this warp, one every @step units. */
template <typename copier>
__device__ static void units_run(const struct gx_unpack_args &args, copier &how, uint32_t unit,
				 uint32_t step, uint32_t lane)
{
	uint32_t b = 0, first = 0, done = 0, worst = GX_BLOCK_OK;

	for (; unit < args.unit_end[args.n - 1]; unit += step) {
		if (done && unit >= args.unit_end[b]) {
			how.drain(lane);
			block_account(&args, b, done, worst, lane);
			done = 0;
			worst = GX_BLOCK_OK;
		}
		while (unit >= args.unit_end[b])
			first = args.unit_end[b++];
		worst = max(worst, unit_run(&args.arg[b], unit - first, args.step, how, lane));
		done++;
	}
	if (done) {
		how.drain(lane);
		block_account(&args, b, done, worst, lane);
	}
}

extern "C" __global__ void __launch_bounds__(GX_UNPACK_THREADS, 1)
	gx_unpack(const __grid_constant__ struct gx_unpack_args args)
{
	uint32_t unit = threadIdx.x / 32 * gridDim.x + blockIdx.x;
	struct lanes how;

	units_run(args, how, unit, gridDim.x * GX_UNPACK_WARPS, threadIdx.x % 32);
}

/* --- the ring: bulk copies through shared memory
 * ----------------------------------------------------- */

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

__device__ static uint32_t shared_addr(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ static void bar_init(uint64_t *bar)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" : : "r"(shared_addr(bar)) : "memory");
}

__device__ static void bar_expect(uint64_t *bar, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
		     :
		     : "r"(shared_addr(bar)), "r"(bytes)
		     : "memory");
}

__device__ static void bar_wait(uint64_t *bar, uint32_t phase)
{
	uint32_t done;

	do {
		asm volatile("{\n\t.reg .pred p;\n\t"
			     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
			     "selp.u32 %0, 1, 0, p;\n\t}"
			     : "=r"(done)
			     : "r"(shared_addr(bar)), "r"(phase)
			     : "memory");
	} while (!done);
}

__device__ static void bulk_load(void *to, uint64_t from, uint32_t bytes, uint64_t *bar)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1], %2, [%3];"
		     :
		     : "r"(shared_addr(to)), "l"(from), "r"(bytes), "r"(shared_addr(bar))
		     : "memory");
}

__device__ static void bulk_store(uint64_t to, const void *from, uint32_t bytes)
{
	asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
		     :
		     : "l"(to), "r"(shared_addr(from)), "r"(bytes)
		     : "memory");
}

/* Ends a group of bulk stores, which may be empty: one group for each piece. */
__device__ static void bulk_commit(void)
{
	asm volatile("cp.async.bulk.commit_group;" : : : "memory");
}

/* A piece in a stage. */
struct stage {
	uint64_t dst;
	uint32_t len;
	uint32_t skew; /* where in the stage it begins */
};

/*
 * owner: one warp. All lanes hold the same numbers. Few descriptors are fetched at a time: those of
 * all warps come over PCIe, and no warp shall wait for another one's last.
 */
template <uint32_t STAGES, uint32_t LOADS, uint32_t PIECE_B> struct ring {
	static constexpr uint32_t fetch = 8;
	static constexpr bool cached = false;
	static constexpr uint32_t stage_b = PIECE_B + GX_RING_PAD_B;
	char *mem; /* [STAGES] of stage_b */
	uint64_t *bar;
	struct stage *of;
	uint32_t loaded, stored; /* free running */

	__device__ void open(char *shared, uint64_t *bars, struct stage *stages, uint32_t lane)
	{
		mem = shared;
		bar = bars;
		of = stages;
		loaded = stored = 0;
		if (lane < STAGES)
			bar_init(&bar[lane]);
		asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
		__syncwarp();
	}

	/* By lane 0. The stage's last piece has been stored STAGES - LOADS groups
	 * ago. */
	__device__ void load(uint64_t dst, uint64_t src, uint32_t len, uint32_t lane)
	{
		uint32_t slot = loaded % STAGES;
		uint32_t skew = src & 15;
		uint32_t bytes = (len + skew + 15) & ~15u;

		if (lane == 0) {
			asm volatile("cp.async.bulk.wait_group.read %0;"
				     :
				     : "n"(STAGES - LOADS)
				     : "memory");
			of[slot] = {dst, len, skew};
			bar_expect(&bar[slot], bytes);
			bulk_load(mem + slot * stage_b, src - skew, bytes, &bar[slot]);
		}
		loaded++;
	}

	/* Words from anywhere in a stage to where the destination is aligned, and the bytes at both
	 * ends. */
	__device__ static void spread(const struct stage &p, const char *from, uint32_t lane)
	{
		struct gx_split s = gx_split_get(p.dst, p.skew, p.len);
		const char *src = from + p.skew;
		char *dst = (char *)p.dst;
		const uint4 *in = (const uint4 *)(src + s.head - s.skew);
		uint4 *out = (uint4 *)(dst + s.head);
		uint32_t i = lane & 15;
		uint32_t at = lane < 16 ? i : s.head + s.words * 16 + i;

		if (i < (lane < 16 ? s.head : s.tail))
			dst[at] = src[at];
		if (s.skew == 0) {
#pragma unroll 4
			for (uint32_t w = lane; w < s.words; w += 32)
				out[w] = in[w];
		} else {
#pragma unroll 4
			for (uint32_t w = lane; w < s.words; w += 32)
				out[w] = word_shift(in[w], in[w + 1], s.skew);
		}
	}

	/* The oldest piece. */
	__device__ void store(uint32_t lane)
	{
		uint32_t slot = stored % STAGES, phase = stored / STAGES & 1;
		const char *from = mem + slot * stage_b;
		struct stage p;

		__syncwarp();
		p = of[slot];
		if ((((uint32_t)p.dst | p.len | p.skew) & 15) == 0) {
			if (lane == 0) {
				bar_wait(&bar[slot], phase);
				bulk_store(p.dst, from, p.len);
			}
		} else {
			bar_wait(&bar[slot], phase);
			spread(p, from, lane);
			__syncwarp();
		}
		if (lane == 0)
			bulk_commit();
		stored++;
	}

	__device__ void copy(uint64_t dst, uint64_t src, uint32_t len, uint32_t lane)
	{
		while (len) {
			uint32_t n = gx_ring_piece(dst, len, PIECE_B);

			if (loaded - stored == LOADS)
				store(lane);
			load(dst, src, n, lane);
			dst += n;
			src += n;
			len -= n;
		}
	}

	/* Until all bytes are in memory. */
	__device__ void drain(uint32_t lane)
	{
		while (stored != loaded)
			store(lane);
		if (lane == 0) {
			asm volatile("cp.async.bulk.wait_group 0;" : : : "memory");
			asm volatile("fence.proxy.async;" : : : "memory");
		}
		__syncwarp();
	}
};

/*
 * The same work from GPU memory, for all SMs at once: pieces go through a ring in shared memory, by
 * bulk copies where both sides are aligned. The next launch on the stream may begin as soon as all
 * thread blocks of this one have: its descriptors arrive while these fragments are copied. It ends
 * after this one.
 */
template <uint32_t WARPS, uint32_t STAGES, uint32_t LOADS, uint32_t PIECE_B>
__device__ static void ring_run(const struct gx_unpack_args &args)
{
	extern __shared__ __align__(128) char shared[];
	__shared__ uint64_t bars[WARPS][STAGES];
	__shared__ struct stage stages[WARPS][STAGES];
	uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	struct ring<STAGES, LOADS, PIECE_B> how;

	asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
	how.open(shared + warp * STAGES * how.stage_b, bars[warp], stages[warp], lane);
	units_run(args, how, warp * gridDim.x + blockIdx.x, gridDim.x * WARPS, lane);
	asm volatile("griddepcontrol.wait;" : : : "memory");
}

#define RING_RUN(shape, args)                                                                      \
	ring_run<GX_RING_##shape##_WARPS, GX_RING_##shape##_STAGES, GX_RING_##shape##_LOADS,       \
		 GX_RING_##shape##_PIECE_B>(args)
#else
#define RING_RUN(shape, args) /* never launched here */
#endif

extern "C" __global__ void __launch_bounds__(GX_RING_SMALL_WARPS * 32)
	gx_unpack_ring_small(const __grid_constant__ struct gx_unpack_args args)
{
	RING_RUN(SMALL, args);
}

extern "C" __global__ void __launch_bounds__(GX_RING_LARGE_WARPS * 32)
	gx_unpack_ring_large(const __grid_constant__ struct gx_unpack_args args)
{
	RING_RUN(LARGE, args);
}

/* A word for the CPU after all work before it on the stream, where stream memory operations are
 * absent. */
extern "C" __global__ void gx_flag(uint32_t *flag, uint32_t value)
{
	__threadfence_system();
	*(volatile uint32_t *)flag = value;
}
