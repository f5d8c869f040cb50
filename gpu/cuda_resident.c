/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpack mode resident, and short copies: jobs for a kernel that runs already, through a ring in
 * pinned memory (resident_core.h). Runs on the thread that owns the stream.
 */
#include "cuda_stream.h"

#include <errno.h>
#include <stdlib.h>

void cuda_resident_close(struct cuda_gpu *g, struct cuda_resident *res)
{
	if (!res)
		return;
	cuda_device_free(g, res->dev);
	cuda_pinned_free(&g->gpu, res->ring.shared);
	free(res);
}

static int resident_count_from(struct cuda_gpu *g, struct cuda_resident *res, uint32_t from)
{
	struct gx_res_dev *image;
	int ret;

	if (!from)
		return 0;
	image = calloc(1, sizeof(*image));
	if (!image)
		return -ENOMEM;
	gx_res_begin(&res->ring, image, from);
	ret = CUDA_TRY(cuMemcpyHtoDAsync_v2, cuda_ptr(res->dev), image, sizeof(*image), g->ctl);
	if (!ret)
		ret = cuda_wait(g, g->ctl);
	free(image);
	return ret;
}

int cuda_resident_open(struct cuda_gpu *g, bool loose, struct cuda_resident **out)
{
	struct cuda_resident *res = calloc(1, sizeof(*res));
	unsigned long long dev = 0;
	int ret;

	if (!res)
		return -ENOMEM;
	*out = res;
	res->loose = loose;
	res->ring.blocks = g->gpu.resident_sms;
	res->ring.shared = cuda_pinned_alloc(&g->gpu, sizeof(*res->ring.shared));
	ret = res->ring.shared ? CUDA_TRY(cuMemAlloc_v2, &dev, sizeof(*res->dev)) : -ENOMEM;
	if (ret)
		return ret;
	res->dev = (struct gx_res_dev *)(uintptr_t)dev;
	ret = cuda_mem_clear(g, dev, sizeof(*res->dev));
	return ret ? ret : resident_count_from(g, res, gx_gpu_count_from());
}

static unsigned resident_warps(const struct cuda_gpu *g)
{
	return g->gpu.resident_sms * GX_RES_WORKERS;
}

/* @ends: the launch ends by itself, after a while; else by a STOP, which has been posted. */
static bool resident_launch(struct cuda_stream *s, bool ends, uint64_t now_ns)
{
	struct cuda_gpu *g = cuda_of(s->stream.gpu);
	struct gx_res_args args = {.shared = s->res->ring.shared,
				   .dev = s->res->dev,
				   .idle_ns = ends ? GX_RES_IDLE_NS : GX_RES_UNBOUND,
				   .life_ns = ends ? GX_RES_LIFE_NS : GX_RES_UNBOUND};
	struct cuda_prev prev = cuda_enter(g);
	void *params[] = {&args};
	bool ok;

	s->busy = true;
	s->query_ns = now_ns;
	args.launch = gx_res_launch(&s->res->ring, now_ns);
	ok = cuda_core_launch(s, g->fn_resident, g->gpu.resident_sms, GX_RES_THREADS, params);
	cuda_leave_core(g, prev);
	return ok;
}

/* See to it that a kernel runs, or is on its way, for the next jobs. */
static bool resident_ready(struct cuda_stream *s, uint64_t now_ns)
{
	return gx_res_alive(&s->res->ring, now_ns) > 0 || resident_launch(s, true, now_ns);
}

/* In reap: no posted job waits for a kernel that has ended. */
bool cuda_resident_reap(struct cuda_stream *s, uint64_t now_ns)
{
	struct gx_res_ring *ring = &s->res->ring;
	uint32_t was = ring->tail;

	gx_res_room(ring);
	if (!s->faulted && gx_res_wants_launch(ring, now_ns))
		resident_launch(s, true, now_ns);
	return ring->tail != was;
}

/*
 * Driver work comes next on this stream: every launch under way must end once it has taken the
 * posted jobs. Such launches may end by themselves before that. So one launch more comes last,
 * which meets the STOP at the latest and ends by it alone. The STOP is posted before that launch is
 * made: with CUDA_LAUNCH_BLOCKING, and under some profilers, making a launch waits for its end.
 */
bool cuda_resident_stop(struct cuda_stream *s, uint64_t now_ns)
{
	struct gx_res_ring *ring = &s->res->ring;
	uint32_t room = gx_res_room(ring);
	bool out = ring->head != ring->tail;

	if (!out && !gx_res_alive(ring, now_ns))
		return true;
	if (!room)
		return false;
	gx_res_stop(ring, out);
	return !out || resident_launch(s, false, now_ns);
}

/*
 * Units of a block. A lone block has all warps to itself, so it is spread over all of them. With
 * others under way units are larger: a warp waits for its descriptors less often, and warps that
 * have no unit of this block work on the next.
 */
static unsigned resident_units(const struct cuda_stream *s)
{
	uint32_t out = s->res->ring.head - s->res->ring.tail;

	return resident_warps(cuda_of(s->stream.gpu)) / (out > 3 ? 4 : out > 1 ? 2 : 1);
}

/* @last: of the blocks that are posted at once */
static bool resident_block(struct cuda_stream *s, struct gx_block *b, bool last)
{
	struct gx_res_ring *ring = &s->res->ring;
	struct gx_cut *cut = cuda_block_mem(b)->cut;
	struct gx_res_job job = {.kind = GX_RES_UNPACK};

	if (!gx_res_room(ring))
		return false;
	gx_unpack_plan(&s->args, &b, &cut, 1, resident_units(s));
	gx_block_status_set(b, GX_BLOCK_PENDING);
	job.arg = s->args.arg[0];
	job.step = s->args.step;
	job.wait_to = ring->copies;
	if (!s->res->loose && (int32_t)(ring->copies - ring->tail) > 0)
		job.kind |= GX_RES_WAIT;
	if (last && gx_res_lone(ring))
		job.kind |= GX_RES_LONE;
	gx_res_single(&job);
	gx_res_even(&job);
	gx_res_lay(ring, &job);
	gx_res_post(ring, &job);
	return true;
}

unsigned cuda_resident_unpack(struct cuda_stream *s, struct gx_block *const blocks[], unsigned n,
			      uint64_t now_ns)
{
	unsigned taken = 0;

	if (!resident_ready(s, now_ns))
		return 0;
	while (taken < n && resident_block(s, blocks[taken], taken + 1 == n))
		taken++;
	return taken;
}

bool cuda_resident_takes(const struct cuda_stream *s, const struct gx_gpu_copy list[], unsigned n)
{
	size_t len = 0;

	if (!s->res || s->res->automatic || !n || n > GX_RESIDENT_COPIES)
		return false;
	for (unsigned i = 0; i < n; i++)
		len += GX_MIN(list[i].len, GX_RESIDENT_COPY_B + 1);
	return len <= GX_RESIDENT_COPY_B;
}

/* The last copy of a list brings the flag, so it comes after the others. */
bool cuda_resident_copy(struct cuda_stream *s, const struct gx_gpu_copy list[], unsigned n,
			uint32_t *done, uint32_t value, uint64_t now_ns)
{
	struct gx_res_ring *ring = &s->res->ring;
	struct gx_res_job job;

	if (gx_res_room(ring) < n || !resident_ready(s, now_ns))
		return false;
	for (unsigned i = 0; i < n; i++) {
		bool last = i + 1 == n;

		gx_res_copy(&job, list[i].dst, list[i].src, (uint32_t)list[i].len,
			    last ? done : NULL, value, resident_warps(cuda_of(s->stream.gpu)));
		job.wait_to = ring->head;
		if (ring->head != ring->tail && (!s->res->loose || (last && n > 1)))
			job.kind |= GX_RES_WAIT;
		if (last && gx_res_lone(ring))
			job.kind |= GX_RES_LONE;
		gx_res_post(ring, &job);
	}
	ring->copies = ring->head;
	return true;
}
