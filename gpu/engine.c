/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public GPU engine (include/gx/engine.h) on top of a backend's tables: tickets for work that
 * ends with a flag, and the two ways to gather that need no kernel. A function that takes a queue
 * is for the thread that owns the queue.
 */
#include "gather_core.h"
#include "gpu_priv.h"

#include <gx/engine.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ENGINE_TICKETS	64	       /* results kept; power of two */
#define ENGINE_COPIES	256	       /* of one call of ->copy */
#define ENGINE_DENSE	8	       /* order AUTO: source rows for each pair, at most */
#define ENGINE_FLAG_NIL ENGINE_TICKETS /* a flag that no thread looks at */
#define ENGINE_FLAGS	(2 * ENGINE_TICKETS + 1)

_Static_assert(sizeof(struct gx_frag) == sizeof(struct gx_desc), "same layout");
_Static_assert(offsetof(struct gx_frag, dst_off) == offsetof(struct gx_desc, dst_off), "same");
_Static_assert(sizeof(struct gx_row_pair) == sizeof(struct gx_pair), "same layout");
_Static_assert(GX_ENGINE_FRAGS_MAX == GX_BLOCK_DESCS_MAX, "same");
_Static_assert(GX_ENGINE_BLOCKS_MAX == GX_UNPACK_BLOCKS_MAX, "same");
_Static_assert((int)GX_UNPACK_MODE_HOST == (int)GX_UNPACK_HOST, "same order");

/* Frozen after open. */
struct gx_engine {
	struct gx_gpu *gpu;
	struct gx_engine_part *part; /* under the lock of lab/code.c, which fills it */
};

struct gx_engine_block {
	struct gx_block block; /* first: an array of blocks is one of these */
	struct gx_engine *engine;
	bool refused; /* the program set more fragments than it holds, so it holds none */
};

/* owner: the queue's thread */
struct gx_engine_queue {
	struct gx_engine *engine;
	struct gx_gpu_stream *stream;
	/* [ENGINE_FLAGS]: of each ticket its number once it is done, then ENGINE_FLAG_NIL, then of
	 * each ticket the pairs that were refused */
	uint32_t *flags;
	uint32_t ticket; /* the last one given */
	struct gx_engine_queue_opts opts;
	uint32_t *link;	       /* GPU memory for ordered gathers, or NULL */
	uint8_t *stage;	       /* pinned, or NULL */
	uint32_t stage_ticket; /* of the last gather that used it */
	struct gx_gpu_copy list[ENGINE_COPIES];
};

GX_EXPORT const char *gx_engine_why(void)
{
	return gx_gpu_why();
}

static int engine_fail(int err, const char *why)
{
	gx_gpu_why_set("%s", why);
	return err;
}

/* ---- engines and memory ---- */

GX_EXPORT int gx_engine_open(const struct gx_engine_opts *user, struct gx_engine **out)
{
	struct gx_engine_opts opts;
	struct gx_gpu_cfg cfg;
	struct gx_engine *e;
	int ret = gx_gpu_take("gx_engine_opts", &opts, sizeof(opts), user);

	if (ret)
		return ret;
	if (!gx_unpack_is_known(opts.unpack) || opts.device < -1 || opts.ipc > GX_OFF)
		return engine_fail(-EINVAL, "engine: an option is out of range");
	cfg = (struct gx_gpu_cfg){.device = opts.device,
				  .unpack = (enum gx_unpack)opts.unpack,
				  .sms = opts.sms,
				  .ipc_memory = opts.ipc == GX_ON};
	e = calloc(1, sizeof(*e));
	if (!e)
		return -ENOMEM;
	ret = (opts.device < 0 ? &gx_gpu_host_ops : &gx_gpu_cuda_ops)->open(&cfg, &e->gpu);
	if (ret) {
		free(e);
		return ret;
	}
	*out = e;
	return 0;
}

GX_EXPORT void gx_engine_close(struct gx_engine *e)
{
	if (!e)
		return;
	if (e->part)
		e->part->close(e->part);
	e->gpu->ops->close(e->gpu);
	free(e);
}

struct gx_gpu *gx_engine_gpu(struct gx_engine *e)
{
	return e->gpu;
}

struct gx_engine_part **gx_engine_part(struct gx_engine *e)
{
	return &e->part;
}

GX_EXPORT int gx_engine_info(struct gx_engine *e, struct gx_engine_info *user)
{
	struct gx_engine_info info = {0};

	snprintf(info.name, sizeof(info.name), "%s", e->gpu->name);
	info.sms = e->gpu->unpack_sms;
	info.unpack = (enum gx_unpack_mode)e->gpu->unpack;
	return gx_gpu_give("gx_engine_info", &info, sizeof(info), user);
}

GX_EXPORT int gx_engine_alloc(struct gx_engine *e, size_t len, void **out)
{
	return e->gpu->mem->alloc(e->gpu, len, out);
}

GX_EXPORT void gx_engine_free(struct gx_engine *e, void *ptr, size_t len)
{
	e->gpu->mem->free(e->gpu, ptr, len);
}

GX_EXPORT int gx_engine_map(struct gx_engine *e, void *ptr, size_t len)
{
	return e->gpu->ops->host_map(e->gpu, ptr, len);
}

GX_EXPORT int gx_engine_unmap(struct gx_engine *e, void *ptr, size_t len)
{
	return e->gpu->ops->host_unmap(e->gpu, ptr, len)
		       ? 0
		       : engine_fail(-EBUSY, "the GPU has not finished: the memory must stay");
}

_Static_assert(sizeof(struct gx_gpu_handle) <= sizeof(((struct gx_engine_handle *)0)->data),
	       "fits");

GX_EXPORT int gx_engine_export(struct gx_engine *e, const void *ptr, size_t len,
			       struct gx_engine_handle *h)
{
	struct gx_gpu_handle full = {0};
	int ret = e->gpu->share->export(e->gpu, ptr, len, &full);

	if (!ret && full.kind == GX_GPU_SHARE_CHUNKS)
		ret = e->gpu->share->chunks(e->gpu, ptr, len, &full.fd);
	if (ret)
		return ret;
	*h = (struct gx_engine_handle){.fd = full.fd};
	full.fd = -1;
	memcpy(h->data, &full, sizeof(full));
	return 0;
}

GX_EXPORT int gx_engine_import(struct gx_engine *e, const struct gx_engine_handle *h, size_t len,
			       void **out)
{
	struct gx_gpu_handle full;

	memcpy(&full, h->data, sizeof(full));
	full.fd = h->fd;
	return e->gpu->share->import(e->gpu, &full, len, out);
}

GX_EXPORT void gx_engine_unimport(struct gx_engine *e, void *ptr)
{
	e->gpu->share->unimport(e->gpu, ptr);
}

/* ---- queues ---- */

static uint32_t *ticket_flag(struct gx_engine_queue *q, uint32_t ticket)
{
	return &q->flags[ticket & (ENGINE_TICKETS - 1)];
}

static int queue_stage(struct gx_engine_queue *q)
{
	size_t len = q->opts.stage_b;
	uint8_t *mem = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int ret;

	if (mem == MAP_FAILED)
		return -ENOMEM;
	ret = gx_engine_map(q->engine, mem, len);
	if (ret)
		munmap(mem, len);
	else
		q->stage = mem;
	return ret;
}

static size_t queue_link_b(const struct gx_engine_queue *q)
{
	return ((size_t)q->opts.order_rows + q->opts.order_pairs) * sizeof(uint32_t);
}

/* @last was the last ticket, and all before it are done. */
static void queue_tickets(struct gx_engine_queue *q, uint32_t last)
{
	for (uint32_t i = 0; i < ENGINE_TICKETS; i++)
		*ticket_flag(q, last - i) = last - i;
	q->ticket = q->stage_ticket = last;
}

static int queue_fill(struct gx_engine_queue *q)
{
	struct gx_engine *e = q->engine;
	void *link = NULL;
	int ret;

	q->flags = gx_gpu_flag_alloc(e->gpu, ENGINE_FLAGS);
	if (!q->flags)
		return -ENOMEM;
	queue_tickets(q, gx_gpu_count_from());
	ret = e->gpu->stream->open(e->gpu, GX_STREAM_UNPACK, &q->stream);
	if (!ret && queue_link_b(q))
		ret = e->gpu->mem->alloc(e->gpu, queue_link_b(q), &link);
	q->link = link;
	if (!ret && q->opts.stage_b)
		ret = queue_stage(q);
	return ret;
}

GX_EXPORT int gx_engine_queue_open(struct gx_engine *e, const struct gx_engine_queue_opts *opts,
				   struct gx_engine_queue **out)
{
	struct gx_engine_queue_opts own;
	struct gx_engine_queue *q;
	int ret = gx_gpu_take("gx_engine_queue_opts", &own, sizeof(own), opts);

	if (ret)
		return ret;
	q = calloc(1, sizeof(*q));
	if (!q)
		return -ENOMEM;
	q->engine = e;
	q->opts = own;
	ret = queue_fill(q);
	if (ret)
		gx_engine_queue_close(q);
	else
		*out = q;
	return ret;
}

/* The GPU may still write to memory of a queue that has not finished. Then the stage stays mapped,
 * and the backend frees none of the rest. */
GX_EXPORT int gx_engine_queue_close(struct gx_engine_queue *q)
{
	struct gx_gpu *gpu;
	bool ended;

	if (!q)
		return 0;
	gpu = q->engine->gpu;
	ended = gx_gpu_stream_close(q->stream);
	if (q->stage && gpu->ops->host_unmap(gpu, q->stage, q->opts.stage_b) && ended)
		munmap(q->stage, q->opts.stage_b);
	gpu->mem->free(gpu, q->link, queue_link_b(q));
	gx_gpu_flag_free(gpu, q->flags);
	free(q);
	return ended ? 0 : -ETIMEDOUT;
}

GX_EXPORT int gx_engine_poll(struct gx_engine_queue *q)
{
	q->stream->ops->reap(q->stream, gx_now_ns());
	return q->stream->ops->fault(q->stream);
}

static uint32_t *ticket_bad(struct gx_engine_queue *q, uint32_t ticket)
{
	return ticket_flag(q, ticket) + ENGINE_TICKETS + 1;
}

GX_EXPORT int gx_engine_result(struct gx_engine_queue *q, uint32_t ticket)
{
	/* Pairs with the fence of the GPU that moved the bytes, or with the host backend's release
	 * store. */
	uint32_t flag = __atomic_load_n(ticket_flag(q, ticket), __ATOMIC_ACQUIRE);

	if (q->ticket - ticket >= ENGINE_TICKETS)
		return 0;
	if (flag != ticket)
		return -EINPROGRESS;
	return *(volatile uint32_t *)ticket_bad(q, ticket) ? -ERANGE : 0;
}

GX_EXPORT int gx_engine_wait(struct gx_engine_queue *q, uint32_t ticket, uint64_t timeout_ns)
{
	uint64_t start_ns = gx_now_ns();
	int ret, fault;

	while ((ret = gx_engine_result(q, ticket)) == -EINPROGRESS) {
		fault = gx_engine_poll(q);
		if (fault)
			return fault;
		if (gx_now_ns() - start_ns > timeout_ns)
			return -ETIMEDOUT;
		gx_cpu_relax();
	}
	return ret;
}

/* The next ticket, not yet given. Return: 0, -EAGAIN. */
static int ticket_next(struct gx_engine_queue *q, uint32_t *ticket)
{
	uint32_t next = q->ticket + 1;

	if (gx_engine_result(q, next - ENGINE_TICKETS) == -EINPROGRESS)
		return -EAGAIN;
	*ticket_bad(q, next) = 0;
	*ticket = next;
	return 0;
}

/* ---- unpack ---- */

GX_EXPORT int gx_engine_block_open(struct gx_engine *e, struct gx_engine_block **out)
{
	struct gx_engine_block *b = calloc(1, sizeof(*b));
	int ret;

	if (!b)
		return -ENOMEM;
	b->engine = e;
	ret = gx_gpu_block_alloc(e->gpu, &b->block);
	if (ret)
		free(b);
	else
		*out = b;
	return ret;
}

GX_EXPORT void gx_engine_block_close(struct gx_engine_block *b)
{
	if (!b)
		return;
	gx_gpu_block_free(b->engine->gpu, &b->block);
	free(b);
}

GX_EXPORT struct gx_frag *gx_engine_block_frags(struct gx_engine_block *b)
{
	return (struct gx_frag *)b->block.desc;
}

/* Computed once, here, and not at every launch. The engine's aux[] stays zero. */
static void block_hints(struct gx_block *blk)
{
	uint32_t first = blk->nr ? blk->desc[0].len : 0, odd = 0, last = 0;

	blk->bytes = 0;
	for (uint32_t i = 0; i < blk->nr; i++) {
		odd |= last ^ (i ? first : 0);
		last = blk->desc[i].len;
		blk->bytes += last;
	}
	blk->hints = GX_HINT_WEIGHT | GX_HINT_SEG0;
	blk->hint_len = first;
	if (first && !odd && last <= first)
		blk->hints |= GX_HINT_LEN;
}

GX_EXPORT int gx_engine_block_set(struct gx_engine_block *b, const void *pool, void *dst,
				  uint64_t dst_len, uint32_t n)
{
	struct gx_block *blk = &b->block;

	if (blk->hints & GX_HINT_CRC)
		memset(blk->aux, 0, GX_BLOCK_DESCS_MAX * sizeof(*blk->aux));
	blk->src_base = (uintptr_t)pool;
	b->refused = n > GX_ENGINE_FRAGS_MAX;
	blk->nr = b->refused ? 0 : n;
	blk->nr_seg = 1;
	blk->seg[0] = (struct gx_dest){(uintptr_t)dst, dst_len};
	blk->cnt[0] = blk->nr;
	block_hints(blk);
	return b->refused ? engine_fail(-EINVAL, "a block has at most 2,048 fragments") : 0;
}

GX_EXPORT int gx_engine_block_check(struct gx_engine_block *b, const uint32_t crc[])
{
	struct gx_block *blk = &b->block;

	if (!b->engine->gpu->checks_crc)
		return engine_fail(-EOPNOTSUPP, "this unpack mode checks no CRC");
	for (uint32_t i = 0; i < blk->nr; i++)
		blk->aux[i] = (struct gx_desc_aux){.flags = GX_AUX_CRC, .crc = crc[i]};
	blk->hints |= GX_HINT_CRC;
	return 0;
}

GX_EXPORT unsigned gx_engine_unpack(struct gx_engine_queue *q,
				    struct gx_engine_block *const blocks[], unsigned n)
{
	return q->stream->ops->unpack(q->stream, (struct gx_block *const *)blocks, n, gx_now_ns());
}

GX_EXPORT int gx_engine_block_status(const struct gx_engine_block *b)
{
	switch (__atomic_load_n(b->block.status, __ATOMIC_ACQUIRE)) {
	case GX_BLOCK_PENDING:
		return -EINPROGRESS;
	case GX_BLOCK_OK:
		return b->refused ? -ERANGE : 0;
	case GX_BLOCK_CRC:
		return -EBADMSG;
	default:
		return -ERANGE;
	}
}

/* ---- copies ---- */

GX_EXPORT int gx_engine_copy(struct gx_engine_queue *q, void *dst, const void *src, size_t len,
			     uint32_t *ticket)
{
	struct gx_gpu_copy one = {dst, src, len};
	uint32_t t;
	int ret = ticket_next(q, &t);

	if (!ret)
		ret = q->stream->ops->copy(q->stream, &one, 1, ticket_flag(q, t), t, gx_now_ns());
	if (!ret)
		*ticket = q->ticket = t;
	return ret;
}

_Static_assert(sizeof(struct gx_engine_piece) == sizeof(struct gx_gpu_copy), "same layout");
_Static_assert(offsetof(struct gx_engine_piece, len) == offsetof(struct gx_gpu_copy, len), "same");
_Static_assert(GX_ENGINE_PIECES_MAX == ENGINE_COPIES, "same");

GX_EXPORT int gx_engine_copies(struct gx_engine_queue *q, const struct gx_engine_piece list[],
			       unsigned n, uint32_t *ticket)
{
	uint32_t t = 0;
	int ret;

	if (n > GX_ENGINE_PIECES_MAX)
		return engine_fail(-EINVAL, "copies: more than 256 in one call");
	ret = ticket ? ticket_next(q, &t) : 0;
	if (!ret)
		ret = q->stream->ops->copy(q->stream, (const struct gx_gpu_copy *)list, n,
					   ticket ? ticket_flag(q, t) : NULL, t, gx_now_ns());
	if (!ret && ticket)
		*ticket = q->ticket = t;
	return ret;
}

GX_EXPORT int gx_engine_call(struct gx_engine_queue *q, int (*fn)(void *arg, void *stream),
			     void *arg, uint32_t *ticket)
{
	uint32_t t = 0;
	int ret = ticket ? ticket_next(q, &t) : 0;

	if (!ret)
		ret = q->stream->ops->call(q->stream, fn, arg, ticket ? ticket_flag(q, t) : NULL, t,
					   gx_now_ns());
	if (!ret && ticket)
		*ticket = q->ticket = t;
	return ret;
}

/* A list of any length: its parts go to ->copy, the last part with the ticket's flag. */
struct copy_run {
	struct gx_engine_queue *q;
	unsigned n; /* of q->list */
};

static int run_flush(struct copy_run *run, uint32_t *flag, uint32_t value)
{
	struct gx_engine_queue *q = run->q;
	int ret;

	ret = q->stream->ops->copy(q->stream, q->list, run->n, flag, value, gx_now_ns());
	run->n = 0;
	return ret;
}

/* Add a copy. With @merge it becomes a part of the last copy, if it continues that on both
 * sides. */
static int run_add(struct copy_run *run, void *dst, const void *src, size_t len, bool merge)
{
	struct gx_gpu_copy *last = run->n ? &run->q->list[run->n - 1] : NULL;
	int ret = 0;

	if (merge && last && (uint8_t *)last->dst + last->len == (uint8_t *)dst &&
	    (const uint8_t *)last->src + last->len == (const uint8_t *)src) {
		last->len += len;
		return 0;
	}
	if (run->n == ENGINE_COPIES)
		ret = run_flush(run, &run->q->flags[ENGINE_FLAG_NIL], 0);
	run->q->list[run->n++] = (struct gx_gpu_copy){dst, src, len};
	return ret;
}

/* ---- gather ---- */

static bool pair_fits(const struct gx_gather *g, struct gx_row_pair p)
{
	return p.src < g->src_rows && p.dst < g->dst_rows;
}

/* One copy a row: from the row itself or, with @stage, from there, after the CPU has put the row
 * there. */
static int gather_copies(struct gx_engine_queue *q, const struct gx_gather *g, uint8_t *stage,
			 uint32_t t)
{
	struct copy_run run = {q, 0};
	uint32_t bad = 0;
	int ret = 0;

	for (uint32_t i = 0; i < g->nr && !ret; i++) {
		struct gx_row_pair p = g->pairs[i];
		const uint8_t *src = (const uint8_t *)g->src + (uint64_t)p.src * g->row_b;
		uint8_t *dst = (uint8_t *)g->dst + (uint64_t)p.dst * g->row_b;

		if (!pair_fits(g, p)) {
			bad++;
			continue;
		}
		if (stage) {
			gx_copy(stage, src, g->row_b);
			src = stage;
			stage += g->row_b;
		}
		ret = run_add(&run, dst, src, g->row_b, stage);
	}
	*ticket_bad(q, t) = bad;
	return ret ? ret : run_flush(&run, ticket_flag(q, t), t);
}

static int gather_cpu(struct gx_engine_queue *q, const struct gx_gather *g, uint32_t t)
{
	int ret;

	if ((uint64_t)g->nr * g->row_b > q->opts.stage_b)
		return engine_fail(-ENOSPC,
				   "gather by the CPU: open the queue with a larger stage_b");
	if (gx_engine_result(q, q->stage_ticket) == -EINPROGRESS)
		return -EAGAIN;
	ret = gather_copies(q, g, q->stage, t);
	if (!ret)
		q->stage_ticket = t;
	return ret;
}

static bool gather_order_fits(const struct gx_engine_queue *q, const struct gx_gather *g)
{
	return (uint64_t)g->src_rows + g->nr <= queue_link_b(q) / sizeof(uint32_t);
}

static bool gather_is_ordered(const struct gx_engine_queue *q, const struct gx_gather *g)
{
	if (g->order == GX_GATHER_ORDER_SOURCE)
		return true;
	return g->order == GX_GATHER_ORDER_AUTO && gather_order_fits(q, g) &&
	       g->src_rows / ENGINE_DENSE <= g->nr;
}

static int gather_kernel(struct gx_engine_queue *q, const struct gx_gather *g, uint32_t t)
{
	struct gx_gpu_gather k = {
		.src = g->src,
		.dst = g->dst,
		.pairs = (const struct gx_pair *)g->pairs,
		.nr = g->nr,
		.nr_src = g->src_rows,
		.nr_dst = g->dst_rows,
		.row_b = g->row_b,
		.ordered = gather_is_ordered(q, g),
		.sms = g->sms,
		.link = q->link,
		.bad = ticket_bad(q, t),
	};

	if (k.ordered && !gather_order_fits(q, g))
		return engine_fail(-ENOSPC,
				   "ordered gather: open the queue for more rows and pairs");
	if (!gx_gather_word((uintptr_t)g->src, (uintptr_t)g->dst, g->row_b))
		return engine_fail(-EINVAL, "gather: addresses must be multiples of 4");
	return q->stream->ops->gather(q->stream, &k, ticket_flag(q, t), t, gx_now_ns());
}

static int gather_check(const struct gx_gather *g)
{
	for (unsigned i = 0; i < sizeof(g->reserved); i++)
		if (g->reserved[i])
			return engine_fail(-EINVAL, "gather: .reserved is not 0");
	if (!g->row_b || g->row_b % 4 || g->row_b > GX_ROW_MAX)
		return engine_fail(-EINVAL, "gather: rows are 4 to 65536 bytes, a multiple of 4");
	if (g->by > GX_GATHER_BY_CPU || g->order > GX_GATHER_ORDER_SOURCE)
		return engine_fail(-EINVAL, "gather: an option is out of range");
	for (uint32_t i = 0; g->check && i < g->nr; i++)
		if (!pair_fits(g, g->pairs[i])) {
			gx_gpu_why_set("gather: pair %u (%u, %u) is outside of %u and %u rows", i,
				       g->pairs[i].src, g->pairs[i].dst, g->src_rows, g->dst_rows);
			return -ERANGE;
		}
	return 0;
}

GX_EXPORT int gx_engine_gather(struct gx_engine_queue *q, const struct gx_gather *user,
			       uint32_t *ticket)
{
	struct gx_gather own, *g = &own;
	uint32_t t;
	int ret = gx_gpu_take("gx_gather", &own, sizeof(own), user);

	if (!ret)
		ret = gather_check(g);
	if (!ret)
		ret = ticket_next(q, &t);
	if (ret)
		return ret;
	if (g->by == GX_GATHER_BY_CE)
		ret = gather_copies(q, g, NULL, t);
	else if (g->by == GX_GATHER_BY_CPU)
		ret = gather_cpu(q, g, t);
	else
		ret = gather_kernel(q, g, t);
	if (!ret)
		*ticket = q->ticket = t;
	return ret;
}
