/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does a copy engine or the resident kernel do a lone short copy sooner, for each pair of places of
 * a connection's memory? The first connection that uses a pair times both, on scratch memory in the
 * same two places. The answer stays until the context closes. Runs on the control thread; cores
 * read the answer.
 */
#include "copy/dma.h"
#include "local/local.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define PAIR_TIMEOUT_NS 1000000000ull /* for one timed copy */
#define PAIRS_NS	500000000ull  /* then a connection leaves new pairs to the next */

uint8_t local_place(int device)
{
	return device >= 0 && device < GX_GPUS_MAX ? (uint8_t)(1 + device) : LOCAL_PLACE_UNKNOWN;
}

/* Pinned memory, or memory of a device, that @by reaches. */
static void *scratch_alloc(struct gx_gpu *by, uint8_t place)
{
	void *mem = NULL;

	if (!place)
		return by->ops->pinned_alloc(by, DMA_TRY_B);
	return by->mem->alloc_on(by, place - 1, DMA_TRY_B, &mem) ? NULL : mem;
}

static void scratch_free(struct gx_gpu *by, uint8_t place, void *mem)
{
	if (!mem)
		return;
	if (!place)
		by->ops->pinned_free(by, mem);
	else
		by->mem->free(by, mem, DMA_TRY_B);
}

static void pair_time(struct gx *gx, struct gx_gpu *by, uint8_t src, uint8_t dst, uint64_t until_ns)
{
	struct local_pair *p;
	void *from, *to;
	int ret = -EOPNOTSUPP;

	if (src == LOCAL_PLACE_UNKNOWN || dst == LOCAL_PLACE_UNKNOWN)
		return;
	p = &local_ctx(gx)->pairs->pair[src][dst];
	if (p->state != LOCAL_PAIR_NEW || gx_now_ns() > until_ns)
		return;
	from = scratch_alloc(by, src);
	to = scratch_alloc(by, dst);
	if (from && to)
		ret = dma_time(by, to, from, GX_MIN(gx->opts.gpu->timeout_ns, PAIR_TIMEOUT_NS),
			       &p->ce_ns, &p->resident_ns);
	if (ret)
		snprintf(p->why, sizeof(p->why), "%s", from && to ? strerror(-ret) : gx_gpu_why());
	/* Pairs with the acquire in local_pair_text(): the text, or the times. */
	atomic_store_explicit(&p->state, ret ? LOCAL_PAIR_FAILED : LOCAL_PAIR_TIMED,
			      memory_order_release);
	if (!ret)
		atomic_store_explicit(&p->kernel, p->resident_ns < p->ce_ns, memory_order_release);
	/* If a copy may still be under way, the backend keeps the memory. */
	scratch_free(by, src, from);
	scratch_free(by, dst, to);
}

/* Time copies between our memory in place @ours and @m. */
static void pair_both_ways(struct gx *gx, struct gx_gpu *by, uint8_t ours,
			   const struct local_map *m, uint64_t until_ns)
{
	if (m->access & GX_ACCESS_PUT)
		pair_time(gx, by, ours, m->place, until_ns);
	if (m->access & GX_ACCESS_GET)
		pair_time(gx, by, m->place, ours, until_ns);
}

static void map_time(struct gx *gx, const struct local_map *m, uint64_t until_ns)
{
	if (!local_ctx(gx)->pairs || gx->opts.gpu->copy != GX_COPY_AUTO || !m->len || !m->gpu)
		return;
	if (m->is_gpu)
		pair_both_ways(gx, m->gpu, 0, m, until_ns);
	for (unsigned d = 0; d < GX_GPUS_MAX; d++)
		if (gx->gpu[d] && (!m->is_gpu || m->seen[d]))
			pair_both_ways(gx, gx->gpu[d], (uint8_t)(1 + d), m, until_ns);
}

void local_pairs_time(struct gx_conn *c)
{
	uint64_t until_ns = gx_now_ns() + PAIRS_NS;

	for (unsigned i = 0; i < GX_REGIONS_MAX; i++)
		map_time(c->gx, &local_conn_of(c)->map[i], until_ns);
}

void local_pair_time(struct gx *gx, const struct local_map *m)
{
	map_time(gx, m, gx_now_ns() + PAIRS_NS);
}

/* "host", "cuda:1" */
static const char *place_name(unsigned place, char buf[16])
{
	if (place)
		snprintf(buf, 16, "cuda:%u", place - 1);
	else
		snprintf(buf, 16, "host");
	return buf;
}

int local_pair_text(const struct gx *gx, unsigned i, char *buf, size_t room)
{
	unsigned src = i / LOCAL_PLACES, dst = i % LOCAL_PLACES;
	const struct local_pair *p;
	char from[16], to[16];
	int state;

	if (i >= LOCAL_PLACES * LOCAL_PLACES)
		return -1;
	p = &local_ctx(gx)->pairs->pair[src][dst];
	state = atomic_load_explicit(&p->state, memory_order_acquire);
	if (state == LOCAL_PAIR_NEW)
		return 0;
	place_name(src, from);
	place_name(dst, to);
	if (state == LOCAL_PAIR_FAILED)
		return snprintf(buf, room,
				"%s to %s: not timed (%s): copy engines do lone puts over link "
				"local",
				from, to, p->why);
	return snprintf(buf, room,
			"%s to %s: 4 KiB alone: copy engine %.1f us, resident kernel %.1f us: the "
			"%s does lone puts to 64K over link local",
			from, to, p->ce_ns / 1e3, p->resident_ns / 1e3,
			p->resident_ns < p->ce_ns ? "latter" : "former");
}
