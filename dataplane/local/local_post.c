// SPDX-License-Identifier: Apache-2.0
/*
 * Posting on the local link. Does this core copy an operation, now or later, does a GPU, or do
 * packets carry it? Runs on the polling core.
 */
#include "local/link_local.h"

#include <errno.h>

static const struct list_views *op_views(const struct gx_op *op)
{
	return op->flags & OP_VIEWS ? op->list->views : NULL;
}

/* The mapping that @op goes to. NULL: packets carry @op, and report an error in it, if any. */
static struct local_map *map_find(const struct local_ep *e, const struct gx_op *op)
{
	struct local_map *m = local_map_for(e, op->kind, op->token);
	const struct list_views *v = op_views(op);
	uint64_t first = op->remote_off;

	if (!m || (v && !view_span(&v->remote, op->remote_off, m->len, &first)) ||
	    !local_map_holds(e, m, first, v ? 0 : op->len))
		return NULL;
	return m->live && !local_key_holds(m) ? NULL : m;
}

/* Find the copier of @op: a GPU if memory of one is at either end. @theirs: the region as the
 * copier sees it. False: nobody here can copy it. */
static bool op_dma(const struct local_ep *e, const struct gx_op *op, const struct local_map *m,
		   struct dma **out, char **theirs)
{
	bool gpu = op->mem && op->mem->kind != GX_MEM_HOST;
	const struct gx_gpu *by;

	*out = NULL;
	*theirs = m->addr;
	if ((!gpu && !m->is_gpu) || !op->len)
		return true;
	/* Pairs with the release in gpu_host_register(): copy engines know the memory. */
	if (!gpu && (!op->mem || !atomic_load_explicit(&op->mem->dma, memory_order_acquire)))
		return false;
	if (!m->gpu)
		return false;
	by = gpu ? op->mem->gpu : m->gpu;
	if (m->is_gpu)
		*theirs = m->seen[by->device];
	*out = e->link->dma[by->device];
	return *out && *theirs &&
	       (!op_views(op) || (dma_moves(*out) && local_moves(&op->list->pieces)));
}

static void op_fill(struct local_op *op, const struct gx_op *user, struct gx_route *route,
		    struct local_map *m, char *theirs)
{
	char *mine = user->mem ? user->mem->addr + user->off : user->addr;
	bool put = user->kind == GX_OP_PUT;

	theirs += user->remote_off;
	*op = (struct local_op){
		.kind = (uint8_t)user->kind,
		.flags = user->flags &
			 (OP_MANY | GX_OP_SILENT | (put ? GX_OP_IMM | GX_OP_LOCAL | OP_HIDDEN : 0)),
		.route = route,
		.user = user->user,
		.tag = user->tag,
		.deadline_ns = user->deadline_ns,
		.src = put ? mine : theirs,
		.dst = put ? theirs : mine,
		.list = user->flags & OP_VIEWS ? user->list : NULL,
		.mem = user->mem,
		.len = user->len,
		.bit = m->bit,
		.key = m->live ? m : NULL,
		.token = user->token,
		.off = user->remote_off,
		.imm = user->imm};
	if (m->live) /* the control thread ends the mapping when it is 0 again */
		atomic_fetch_add_explicit(&m->users, 1, memory_order_relaxed);
}

/* Do a small operation at once. It uses no struct local_op, because to write one takes as long as a
 * put of 64 bytes. False: its key is no longer good, so the owner says so. */
static bool op_now(struct local_ep *e, const struct gx_op *op, struct gx_route *route,
		   const struct local_map *m, bool lone)
{
	char *mine = op->mem ? op->mem->addr + op->off : op->addr;
	char *theirs = m->addr + op->remote_off;
	bool put = op->kind == GX_OP_PUT;

	if (gx_unlikely(m->live != NULL) && !local_key_enter(e, m))
		return false;
	if (gx_unlikely(op_views(op) != NULL))
		local_move(op_views(op), put, put ? theirs : mine, put ? mine : theirs,
			   op->list->from, op->len);
	else
		gx_copy(put ? theirs : mine, put ? mine : theirs, op->len);
	if (gx_unlikely(m->live != NULL) && !local_key_leave(e, m, op->kind))
		return false;
	e->link->budget_b -= (uint32_t)local_cost(op);
	if (put && op->flags & GX_OP_IMM) {
		local_imm_put(e, core_token_hide(op->token, op->flags), op->remote_off, op->len,
			      op->imm);
		if (lone) {
			gx_demote(theirs);
			gx_demote(&e->tx->imm[(e->tx_head - 1) % LOCAL_IMMS]);
		}
	}
	local_ops_count(e, op->kind, 1, op->len);
	core_report(&(struct core_end){.ep = &e->pkt.ep,
				       .route = route,
				       .op = op->kind,
				       .flags = put ? op->flags : op->flags & ~GX_OP_LOCAL,
				       .user = op->user,
				       .len = op->len,
				       .tag = op->tag});
	return true;
}

/* A put of one line or less, the first in this turn: its latency counts more than the rate. */
static bool op_is_lone(const struct local_ep *e, const struct gx_op *op)
{
	return !e->used && op->kind == GX_OP_PUT && op->len <= GX_CACHE_LINE && !op_views(op);
}

/* The peer's core has the lines that this core is about to write: ask for both now, at once. */
static void op_ahead(const struct local_ep *e, const struct gx_op *op, const struct local_map *m)
{
	gx_prefetch_write(m->addr + op->remote_off);
	if (op->flags & GX_OP_IMM)
		gx_prefetch_write(&e->tx->imm[e->tx_head % LOCAL_IMMS]);
}

/* Can gx_post() do it? It is small, and its notification overtakes none of a queued operation. */
static bool op_is_now(struct local_ep *e, const struct gx_op *op)
{
	uint64_t cost = local_cost(op);

	if (cost > LOCAL_INLINE_B || cost > e->link->budget_b)
		return false;
	return !(op->flags & GX_OP_IMM) || (e->head == e->tail && local_imm_room(e));
}

static const struct local_pair *op_pair(const struct local_ep *e, const struct gx_op *op,
					const struct local_map *m)
{
	const struct local_pairs *all = local_ctx(e->pkt.ep.core->gx)->pairs;
	unsigned ours = op->mem->kind == GX_MEM_HOST ? 0 : 1u + (unsigned)op->mem->device;

	if (m->place == LOCAL_PLACE_UNKNOWN)
		return NULL;
	return op->kind == GX_OP_PUT ? &all->pair[ours][m->place] : &all->pair[m->place][ours];
}

static int post_dma(struct local_ep *e, const struct gx_op *user, struct local_map *m,
		    struct dma *dma, char *theirs, struct gx_route *route)
{
	struct local_op *op = &e->dma[e->nr_dma];

	if (e->nr_dma == LOCAL_DMA)
		return -EAGAIN;
	op_fill(op, user, route, m, theirs);
	op->dma = dma;
	op->pair = op_pair(e, user, m);
	e->nr_dma++;
	e->link->nr_dma++;
	core_began(e->pkt.ep.core, op->flags);
	if (op->deadline_ns)
		e->deadline_ns = GX_MIN(e->deadline_ns, op->deadline_ns);
	local_dma_begin(e, op, e->pkt.ep.core->now_ns);
	return 0;
}

/* Packets carry half of their gets for a list, however many the link may have. */
static bool list_get_waits(const struct local_ep *e, const struct gx_op *op)
{
	return op->kind == GX_OP_GET && op->flags & OP_MANY &&
	       e->pkt.match.gets_out >= PKT_GETS_MAX / 2;
}

/* The packet link takes views by a map, which the core sends first. */
static int post_packets(struct gx_ep *ep, const struct gx_op *op, struct gx_route *route)
{
	return op->flags & OP_VIEWS ? -EXDEV : gx_link_pkt_ops.post(ep, op, route);
}

int local_post(struct gx_ep *ep, const struct gx_op *user, struct gx_route *route)
{
	struct local_ep *e = local_of(ep);
	struct local_map *m;
	struct local_op *op;
	struct dma *dma;
	char *theirs;
	bool lone;

	if (user->kind > GX_OP_GET)
		return gx_link_pkt_ops.post(ep, user, route);
	m = map_find(e, user);
	if (!m || !op_dma(e, user, m, &dma, &theirs)) {
		if (list_get_waits(e, user))
			return -EAGAIN;
		gx_stat_add(local_stats(e), GX_STAT_LOCAL_MISSES, 1);
		return post_packets(ep, user, route);
	}
	if (e->pkt.err || e->fail_err)
		return -ENOTCONN;
	if (!core_post_room(ep->core, e->tail != e->head || e->nr_dma))
		return -EAGAIN;
	if (gx_unlikely(e->at >= e->link->nr_hot))
		local_heat(e);
	lone = op_is_lone(e, user);
	if (lone)
		op_ahead(e, user, m);
	e->used = true;
	if (dma)
		return post_dma(e, user, m, dma, theirs, route);
	if (op_is_now(e, user))
		return op_now(e, user, route, m, lone) ? 0 : post_packets(ep, user, route);
	if (e->tail - e->head == LOCAL_OPS)
		return -EAGAIN;
	op = &e->ops[e->tail++ % LOCAL_OPS];
	op_fill(op, user, route, m, theirs);
	core_began(ep->core, op->flags);
	if (op->deadline_ns)
		e->deadline_ns = GX_MIN(e->deadline_ns, op->deadline_ns);
	return 0;
}

/* Segments of a region that this end has not mapped share packets. */
int local_join(struct gx_ep *ep, const struct gx_op *op, const struct gx_link_seg segs[],
	       unsigned n, struct gx_route *route)
{
	struct local_ep *e = local_of(ep);
	int joined;

	if (!(op->flags & OP_VIEW) && local_map_for(e, op->kind, op->token))
		return 0;
	if (list_get_waits(e, op))
		return -EAGAIN;
	joined = gx_link_pkt_ops.join(ep, op, segs, n, route);
	if (joined > 0)
		gx_stat_add(local_stats(e), GX_STAT_LOCAL_MISSES, (unsigned)joined);
	return joined;
}

void local_kick(struct gx_ep *ep)
{
	struct local_ep *e = local_of(ep);

	if (e->link->nr_dma)
		local_dma_kick(e->link, ep->core->now_ns);
	if (e->pkt.tx.wait_head != PKT_NONE || e->pkt.rec.queued)
		gx_link_pkt_ops.kick(ep);
}

static int op_cancel(struct local_op *op, uint64_t user, const struct gx_route *route)
{
	if (op->user != user || op->route != route || op->status)
		return 0;
	op->status = -ECANCELED;
	return 1;
}

int local_cancel(struct gx_ep *ep, uint64_t user, const struct gx_route *route)
{
	struct local_ep *e = local_of(ep);
	int n = 0;

	for (uint32_t i = e->head; i != e->tail; i++)
		n += op_cancel(&e->ops[i % LOCAL_OPS], user, route);
	for (unsigned i = 0; i < e->nr_dma; i++)
		n += op_cancel(&e->dma[i], user, route);
	return n + gx_link_pkt_ops.cancel(ep, user, route);
}
