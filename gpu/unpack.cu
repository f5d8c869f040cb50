/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The unpack kernel copies the fragments of up to 16 blocks to their destinations, and writes each
 * block's status word when the block's last byte is visible. cuda_unpack.c launches it on a core's
 * stream; unpack_core.h has the index arithmetic and divides the work.
 */
#include "crc_core.h"
#include "unpack_core.h"
#include "unpack_dev.cuh"

#define ROUND_CRC 4 /* loads in flight where a CRC is computed */

static_assert(sizeof(struct gx_unpack_arg) == 112, "same in C and in CUDA");

/*
 * Account for @done units of block @b. The warp's stores come before the fence (the warp is
 * synchronised first), the fence before the count. The warp that completes the count sees all
 * stores, resets the counters for the next launch, and signals the CPU.
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
	fence_gpu();
	if (atomicAdd(nr_done, done) + done != args->arg[b].nr_unit)
		return;
	fence_gpu();
	worst = max(atomicExch(nr_worst, 0u), (uint32_t)GX_BLOCK_OK);
	atomicExch(nr_done, 0u);
	fence_system();
	*(volatile uint32_t *)args->arg[b].block.status = worst;
}

/* All units of this warp: from @unit on, one every @step units, up to @end. */
template <typename copier>
__device__ static void units_run(const struct gx_unpack_args &args, copier &how, uint32_t unit,
				 uint32_t step, uint32_t end, uint32_t lane)
{
	uint32_t b = 0, first = 0, done = 0, worst = GX_BLOCK_OK;

	for (; unit < end; unit += step) {
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
	uint32_t units = args.unit_end[args.n - 1];
	uint32_t first = gx_unit_first(units, gridDim.x, blockIdx.x);
	uint32_t end = gx_unit_first(units, gridDim.x, blockIdx.x + 1);
	struct lanes<false> how;

	units_run(args, how, first + threadIdx.x / 32, GX_UNPACK_WARPS, end, threadIdx.x % 32);
}

/* --- with a CRC of each fragment --- */

/* owner: one warp. Tables in shared memory. */
struct lanes_crc {
	static constexpr uint32_t fetch = 32;
	static constexpr bool cached = true, checks = true;
	const uint32_t *hot;  /* this lane's copies: entries are 32 words apart */
	const uint32_t *cold; /* of table GX_CRC_HOT */

	__device__ uint32_t advance(uint32_t table, uint32_t c) const
	{
		return gx_crc_nibbles(cold + (table - GX_CRC_HOT) * 16, 1, c);
	}

	/* Of a fragment without a whole word, so of at most 30 bytes: those of the head, and those
	 * of the tail. */
	__device__ static uint32_t short_crc(uint32_t byte, const struct gx_split &s, uint32_t len)
	{
		uint32_t c = 0xffffffffu;

		for (uint32_t i = 0; i < len; i++)
			c = gx_crc_step(c,
					__shfl_sync(ALL, byte, i < s.head ? i : 16 + i - s.head));
		return ~c;
	}

	/* The register at the end of the odd bytes of the head or the tail, from zero. */
	__device__ uint32_t head_crc(uint32_t byte, const struct gx_split &s, uint32_t lane) const
	{
		uint32_t c = 0;

		if (lane < s.head)
			c = gx_crc_byte(hot, 32, 16 - s.head + lane, byte ^ (lane < 4 ? 255 : 0));
		return s.head ? __reduce_xor_sync(ALL, c) : 0;
	}

	__device__ uint32_t tail_crc(uint32_t byte, const struct gx_split &s, uint32_t lane) const
	{
		uint32_t c = 0;

		if (lane >= 16 && lane - 16 < s.tail)
			c = gx_crc_byte(hot, 32, 16 - s.tail + lane - 16, byte);
		return s.tail ? __reduce_xor_sync(ALL, c) : 0;
	}

	/* The registers of all lanes, added at the end of the last word: the lanes' last words end
	 * one after another. */
	__device__ uint32_t lanes_add(uint32_t acc, uint32_t words, uint32_t lane) const
	{
		acc = __shfl_sync(ALL, acc, lane + words & 31);
#pragma unroll
		for (uint32_t i = 0; i < 5; i++)
			acc = advance(GX_CRC_LANES + 8 * i, acc) ^
			      __shfl_down_sync(ALL, acc, 1 << i);
		return __shfl_sync(ALL, acc, 0);
	}

	__device__ void word_add(uint32_t &acc, uint4 word, uint32_t mask) const
	{
		uint32_t w[4] = {word.x ^ mask, word.y, word.z, word.w};

		acc = gx_crc_nibbles(hot + GX_CRC_ADVANCE * 16 * 32, 32, acc) ^
		      gx_crc_word(hot, 32, w);
	}

	/* As words_aligned() and words_skewed(). The register of the head precedes lane 0's. */
	__device__ uint32_t words_copy(uint4 *dst, const char *src, const struct gx_split &s,
				       uint32_t byte, uint32_t lane) const
	{
		const uint4 *from = (const uint4 *)(src - s.skew);
		uint32_t acc = 0;

		for (uint32_t base = 0; base < s.words; base += 32 * ROUND_CRC) {
			uint4 v[ROUND_CRC + 1];

#pragma unroll
			for (int k = 0; k <= ROUND_CRC; k++) {
				uint32_t at = base + 32 * k + lane;

				v[k] = make_uint4(0, 0, 0, 0);
				if (at < s.words + (s.skew != 0) && (k < ROUND_CRC || lane == 0))
					v[k] = word_load<false>(from + at);
			}
			if (base == 0) {
				uint32_t head = head_crc(byte, s, lane);

				acc = lane == 31 ? head : 0;
			}
#pragma unroll
			for (int k = 0; k < ROUND_CRC; k++) {
				uint32_t at = base + 32 * k + lane;
				uint4 next = word_shfl(lane == 0 ? v[k + 1] : v[k], lane + 1 & 31);
				uint4 word = s.skew ? word_shift(v[k], next, s.skew) : v[k];

				if (at < s.words) {
					dst[at] = word;
					word_add(acc, word, at == 0 ? gx_crc_first(s.head) : 0);
				}
			}
		}
		return acc;
	}

	/* Return: the CRC of the copied bytes. */
	__device__ uint32_t copy(uint64_t dst_addr, uint64_t src_addr, uint32_t len, uint32_t lane)
	{
		struct gx_split s = gx_split_get(dst_addr, src_addr, len);
		uint32_t i = lane & 15, at = lane < 16 ? i : s.head + s.words * 16 + i;
		bool edge = i < (lane < 16 ? s.head : s.tail);
		const unsigned char *src = (const unsigned char *)src_addr;
		char *dst = (char *)dst_addr;
		uint32_t byte = edge ? src[at] : 0, c = 0;

		if (s.words)
			c = words_copy((uint4 *)(dst + s.head), (const char *)src + s.head, s, byte,
				       lane);
		if (edge)
			dst[at] = (char)byte;
		if (!s.words)
			return short_crc(byte, s, len);
		c = lanes_add(c, s.words, lane);
		for (uint32_t bit = 0; bit < 4; bit++)
			if (s.tail >> bit & 1)
				c = advance(GX_CRC_BYTES + 8 * bit, c);
		return ~(c ^ tail_crc(byte, s, lane));
	}

	__device__ void drain(uint32_t lane)
	{
	}
};

extern "C" __global__ void __launch_bounds__(GX_UNPACK_THREADS, 1)
	gx_unpack_crc(const __grid_constant__ struct gx_unpack_args args)
{
	extern __shared__ uint32_t tables[];
	uint32_t units = args.unit_end[args.n - 1];
	uint32_t first = gx_unit_first(units, gridDim.x, blockIdx.x);
	uint32_t end = gx_unit_first(units, gridDim.x, blockIdx.x + 1);
	uint32_t *cold = tables + GX_CRC_HOT * 16 * 32;
	struct lanes_crc how = {tables + threadIdx.x % 32, cold};

	for (uint32_t i = threadIdx.x; i < GX_CRC_HOT * 16 * 32; i += GX_UNPACK_THREADS)
		tables[i] = args.crc[i / 32];
	for (uint32_t i = threadIdx.x; i < GX_CRC_WORDS - GX_CRC_HOT * 16; i += GX_UNPACK_THREADS)
		cold[i] = args.crc[GX_CRC_HOT * 16 + i];
	__syncthreads();
	units_run(args, how, first + threadIdx.x / 32, GX_UNPACK_WARPS, end, threadIdx.x % 32);
}

/* --- the ring: bulk copies through shared memory --- */

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
 * owner: one warp. All lanes hold the same numbers. The warp fetches few descriptors at a time:
 * those of all warps come over PCIe, and no warp shall wait for another's last one.
 */
template <uint32_t STAGES, uint32_t LOADS, uint32_t PIECE_B> struct ring {
	static constexpr uint32_t fetch = 8;
	static constexpr bool cached = false, checks = false;
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

	/* Words from any place in a stage to an aligned destination, and the bytes at both ends. */
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
 * thread blocks of this one have begun: its descriptors arrive while these fragments are copied. It
 * ends after this launch, for which one of its thread blocks waits; the others make room for later
 * launches.
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
	units_run(args, how, warp * gridDim.x + blockIdx.x, gridDim.x * WARPS,
		  args.unit_end[args.n - 1], lane);
	if (blockIdx.x == 0)
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
