/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of descriptors, by mode: one kernel launch, jobs for the resident kernel, one copy a
 * fragment, or runs that the CPU has gathered. Runs on the thread that owns the stream.
 */
#include "crc_core.h"
#include "cuda_stream.h"

#include <assert.h>

/* ---- the ring kernels ---- */

const struct cuda_ring_shape cuda_ring_shape[CUDA_RING_SHAPES] = {
	{"gx_unpack_ring_small", GX_RING_SMALL_WARPS,
	 GX_RING_BYTES(GX_RING_SMALL_WARPS, GX_RING_SMALL_STAGES, GX_RING_SMALL_PIECE_B)},
	{"gx_unpack_ring_large", GX_RING_LARGE_WARPS,
	 GX_RING_BYTES(GX_RING_LARGE_WARPS, GX_RING_LARGE_STAGES, GX_RING_LARGE_PIECE_B)},
};
static unsigned ring_choose(struct gx_block *const blocks[], unsigned n)
{
	uint64_t bytes = 0, nr = 0;

	for (unsigned i = 0; i < n; i++) {
		bytes += blocks[i]->bytes;
		nr += blocks[i]->nr;
	}
	return bytes >= nr * GX_RING_SMALL;
}

/* The ring pays with all SMs and GPU memory; over PCIe bulk copies are slower than loads. */
static bool ring_pays(struct cuda_stream *s, struct gx_block *const blocks[], unsigned n)
{
	struct cuda_gpu *g = cuda_of(s->stream.gpu);

	if (!g->fn_ring[0] || g->sms < g->all_sms)
		return false;
	for (unsigned i = 0; i < n; i++)
		if (blocks[i]->nr && cuda_src_type(blocks[i]) != GX_CU_MEMORYTYPE_DEVICE)
			return false;
	return true;
}

/*
 * A launch of all SMs may begin while the launch before it ends: its thread blocks take the place
 * of those. All thread blocks of a launch but one may have ended before a slow one of an earlier
 * launch has. So now and then a launch waits for all before it, while there are counters that no
 * launch uses.
 */
bool cuda_ring_launch(struct cuda_stream *s, unsigned shape, uint32_t units)
{
	struct cuda_gpu *g = cuda_of(s->stream.gpu);
	struct cuda_launch_attr attr = {.id = GX_CU_LAUNCH_PROGRAMMATIC, .value.on = 1};
	struct cuda_launch launch = {.grid_x = GX_MIN(g->sms, units),
				     .grid_y = 1,
				     .grid_z = 1,
				     .block_x = cuda_ring_shape[shape].warps * 32,
				     .block_y = 1,
				     .block_z = 1,
				     .shared_b = cuda_ring_shape[shape].shared_b,
				     .stream = s->stm,
				     .attrs = &attr};
	void *params[] = {&s->args};

	launch.nr_attrs =
		s->chained && launch.grid_x == g->all_sms && s->overlaps < CUDA_LAUNCHES - 2;
	s->overlaps = launch.nr_attrs ? s->overlaps + 1 : 0;
	s->chained = true;
	return CUDA_CORE_TRY(s, cuLaunchKernelEx, (const struct CUlaunchConfig_st *)&launch,
			     g->fn_ring[shape], params, NULL);
}

/* Code for other generations than 9 and 10 is PTX of the oldest, without bulk copies. */
int cuda_ring_load(struct cuda_gpu *g)
{
	int ret = 0;

	if (g->major != 9 && g->major != 10)
		return 0;
	for (unsigned i = 0; i < CUDA_RING_SHAPES && !ret; i++) {
		ret = CUDA_TRY(cuModuleGetFunction, &g->fn_ring[i], g->module,
			       cuda_ring_shape[i].fn);
		if (!ret)
			ret = CUDA_TRY(cuFuncSetAttribute, g->fn_ring[i],
				       GX_CU_FUNC_MAX_DYNAMIC_SHARED_B,
				       (int)cuda_ring_shape[i].shared_b);
	}
	return ret;
}

/* ---- blocks ---- */

/* Is any fragment of this launch to be checked? */
static bool args_check(const struct gx_unpack_args *args)
{
	uint32_t any = 0;

	for (uint32_t i = 0; i < args->n; i++)
		any |= args->arg[i].crc;
	return any;
}

unsigned cuda_unpack_kernel(struct cuda_stream *s, struct gx_block *const blocks[], unsigned n)
{
	struct cuda_gpu *g = cuda_of(s->stream.gpu);
	struct gx_cut *cuts[GX_UNPACK_BLOCKS_MAX];
	void *params[] = {&s->args};
	bool ring = ring_pays(s, blocks, n);
	unsigned shape = ring_choose(blocks, n);
	uint32_t units;

	for (unsigned i = 0; i < n; i++) {
		gx_block_status_set(blocks[i], GX_BLOCK_PENDING);
		cuts[i] = cuda_block_mem(blocks[i])->cut;
	}
	s->args.crc = g->crc_tables;
	s->args.counter =
		s->counters + (s->launch_nr++ & (CUDA_LAUNCHES - 1)) * 2 * GX_UNPACK_BLOCKS_MAX;
	units = gx_unpack_plan(&s->args, blocks, cuts, n,
			       g->sms * (ring ? cuda_ring_shape[shape].warps : GX_UNPACK_WARPS));
	if (g->gpu.checks_crc && args_check(&s->args))
		return cuda_core_launch_shared(s, g->fn_crc, GX_MIN(g->sms, units),
					       GX_UNPACK_THREADS, GX_CRC_SHARED_B, params)
			       ? n
			       : 0;
	if (ring)
		return cuda_ring_launch(s, shape, units) ? n : 0;
	return cuda_core_launch(s, g->fn_unpack, GX_MIN(g->sms, units), GX_UNPACK_THREADS, params)
		       ? n
		       : 0;
}

static bool block_d2d(struct cuda_stream *s, struct gx_block *b)
{
	uint32_t status = GX_BLOCK_OK;

	for (uint32_t i = 0; i < b->nr; i++) {
		void *dst = gx_block_dst(b, i);

		if (!dst)
			status = GX_BLOCK_BOUNDS;
		else if (b->desc[i].len &&
			 !CUDA_CORE_TRY(s, cuMemcpyAsync, cuda_ptr(dst),
					cuda_ptr(gx_block_src(b, i)), b->desc[i].len, s->stm))
			return false;
	}
	return cuda_core_flag(s, b->status, status);
}

static bool block_try(struct cuda_stream *s, struct gx_block *b)
{
	switch (s->stream.gpu->unpack) {
	case GX_UNPACK_D2D:
		return block_d2d(s, b);
	case GX_UNPACK_HOST:
		return cuda_stage_block(s, b);
	default:
		return cuda_core_flag(s, b->status, GX_BLOCK_OK);
	}
}

/* A block that the stream does not take keeps its status. */
static bool block_queue(struct cuda_stream *s, struct gx_block *b)
{
	uint32_t was = *b->status;
	bool ok;

	gx_block_status_set(b, GX_BLOCK_PENDING);
	ok = block_try(s, b);
	if (!ok)
		gx_block_status_set(b, was);
	return ok;
}

bool cuda_has_kernel(const struct cuda_gpu *g)
{
	return g->gpu.unpack == GX_UNPACK_KERNEL || g->gpu.unpack == GX_UNPACK_RESIDENT ||
	       g->gpu.unpack == GX_UNPACK_AUTO;
}

/* Does the kernel that stays take these? It checks no CRC: in mode auto a launch does that. */
static bool resident_pays(struct cuda_stream *s, struct gx_block *const blocks[], unsigned n,
			  uint64_t now_ns)
{
	if (!s->res || !s->res->automatic)
		return s->res;
	for (unsigned i = 0; i < n; i++)
		if (gx_block_checked(blocks[i]))
			return false;
	return gx_res_pays(&s->res->ring, &s->res->near, now_ns);
}

unsigned cuda_unpack(struct gx_gpu_stream *stream, struct gx_block *const blocks[], unsigned n,
		     uint64_t now_ns)
{
	struct cuda_stream *s = cuda_stream_of(stream);
	struct cuda_gpu *g = cuda_of(stream->gpu);
	struct cuda_prev prev;
	unsigned taken = 0;

	n = GX_MIN(n, GX_UNPACK_BLOCKS_MAX);
	if (!n || s->faulted)
		return 0;
	for (unsigned i = 0; i < n; i++)
		assert(blocks[i]->nr <= GX_BLOCK_DESCS_MAX);
	if (resident_pays(s, blocks, n, now_ns)) {
		taken = cuda_resident_unpack(s, blocks, n, now_ns);
		cuda_core_queued(s, taken, now_ns);
		return taken;
	}
	prev = cuda_enter(g);
	if (cuda_has_kernel(g))
		taken = cuda_unpack_kernel(s, blocks, n);
	else
		while (taken < n && block_queue(s, blocks[taken]))
			taken++;
	cuda_leave_core(g, prev);
	cuda_core_queued(s, taken, now_ns);
	return taken;
}
