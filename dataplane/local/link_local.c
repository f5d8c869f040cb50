/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The local link: puts and gets between two ends on one host. This core copies straight into and
 * out of the peer's mapped memory. Where memory of a GPU is at either end, a GPU's copy engines
 * copy. The packet link inside the endpoint does the rest: sends, memory that is not mapped,
 * liveness. Where the kernel lets it, it reads long messages out of the peer's process. gx_post()
 * does small copies at once; later turns do long ones in slices. The peer learns of a put with an
 * immediate by an entry in a ring of its own, written after the data.
 * ep_open, connect and free run on the control path, everything else on the polling core.
 */
#include "local/link_local.h"

#include <errno.h>
#include <stdlib.h>

#define LOCAL_HOT_NS 1000000 /* so long after a notification a turn waits a little for the next */

/* ---- A turn ---- */

/* A copy does not need the peer's core. While the ep is used, the packet link still asks whether
 * that core lives; else this end could put for ever into a process that has stopped for good. */
static void ep_ask(struct local_ep *e, uint64_t now_ns)
{
	if (e->used)
		e->used_ns = e->busy_ns = now_ns;
	e->pkt.want_peer =
		e->used || e->waits || (e->pkt.want_peer && e->pkt.timer.heard_ns < e->used_ns);
	if (e->used)
		ep_touch(&e->pkt);
	e->used = false;
}

static bool ep_turn(struct local_ep *e, uint64_t now_ns)
{
	bool worked = e->rx && local_notes_take(e);

	if (e->head != e->tail || e->nr_dma)
		worked |= local_ops_turn(e, now_ns);
	if (e->used || e->pkt.want_peer)
		ep_ask(e, now_ns);
	if (e->made_due)
		local_made_tell(e);
	return worked;
}

/* The local link has nothing under way any more; the packet link ends the ep. */
static void ep_leave(struct local_ep *e)
{
	int err = e->fail_err;

	if (e->at != EP_NOT_LIVE)
		local_unlist(e);
	gx_link_pkt_ops.ep_fail(&e->pkt.ep, err); /* after this ctl may free the ep */
}

void link_local_drop(void *link, struct drop *d)
{
	struct link_local *l = link;

	if (l->nr_dma) {
		local_dma_reap(l, l->core->now_ns);
		local_dma_kick(l, l->core->now_ns);
	}
	for (unsigned i = 0; i < l->nr_live; i++)
		local_ops_drop(l->live[i], d);
}

bool link_local_asleep(const void *link)
{
	const struct link_local *l = link;

	return !l->nr_live && !l->nr_dma;
}

bool link_local_poll(void *link, uint64_t now_ns)
{
	struct link_local *l = link;
	bool worked = false;

	l->core->now_ns = now_ns;
	core_mine(l->core);
	if (gx_unlikely(core_drop_due(l->core)))
		core_drop(l->core);
	l->budget_b = LOCAL_TURN_B;
	if (l->nr_dma)
		worked |= local_dma_reap(l, now_ns);
	if (gx_unlikely(l->nr_live > LOCAL_FEW))
		local_cold(l, now_ns);
	if (++l->rover >= l->nr_hot)
		l->rover = 0;
	for (unsigned k = 0, i = l->rover; k < l->nr_hot; k++) {
		worked |= ep_turn(l->live[i], now_ns);
		if (++i == l->nr_hot)
			i = 0;
	}
	if (!worked && l->nr_live <= LOCAL_FEW && now_ns - l->noted_ns < LOCAL_HOT_NS)
		worked = local_notes_wait(l);
	if (l->nr_dma)
		local_dma_kick(l, now_ns);
	for (unsigned i = l->nr_hot; i-- > 0;)
		if (l->live[i]->fail_err && local_dma_drain(l->live[i]))
			ep_leave(l->live[i]);
	return worked;
}

/* ---- Attach, fail ---- */

static void local_attach(struct gx_ep *ep)
{
	struct local_ep *e = local_of(ep);

	e->at = e->link->nr_live;
	e->link->live[e->link->nr_live++] = e;
	local_heat(e);
	gx_link_pkt_ops.ep_attach(ep);
}

static void local_fail(struct gx_ep *ep, int err)
{
	struct local_ep *e = local_of(ep);

	e->fail_err = err ? err : -ECONNRESET;
	if (e->made_due)
		local_made_tell(e);
	local_heat(e); /* hot until it leaves */
	local_ops_fail(e);
	if (local_dma_drain(e))
		ep_leave(e);
}

/* ---- Control path ---- */

static struct gx_ep *local_ep_new(void)
{
	struct pkt_ep *e = pkt_ep_alloc(sizeof(struct local_ep));

	_Static_assert(offsetof(struct local_ep, pkt) == 0, "the packet link frees it");
	return e ? &e->ep : NULL;
}

static int local_ep_open(struct gx_ep *ep, struct gx_hello_lane *local)
{
	struct local_ep *e = local_of(ep);

	e->link = ep->core->local;
	e->conn = ep->conn->local;
	e->rx = &e->conn->rx->ring[ep->lane];
	e->at = EP_NOT_LIVE;
	e->deadline_ns = UINT64_MAX;
	return gx_link_pkt_ops.ep_open(ep, local);
}

static int local_ep_connect(struct gx_ep *ep, const struct gx_hello_lane *remote)
{
	struct local_ep *e = local_of(ep);

	e->tx = &e->conn->tx->ring[ep->lane];
	e->revoked = &e->conn->tx->hdr.revoked;
	local_pull_ep(ep->conn, ep->lane, &e->pkt.pull);
	return gx_link_pkt_ops.ep_connect(ep, remote);
}

static void local_ep_free(struct gx_ep *ep)
{
	gx_link_pkt_ops.ep_free(ep);
}

const struct gx_link_ops gx_link_local_ops = {
	.name = "local",
	.room = {.ops = LOCAL_OPS, .recvs = PKT_SLOTS, .gets = PKT_GETS_MAX},
	.ep_new = local_ep_new,
	.ep_open = local_ep_open,
	.ep_connect = local_ep_connect,
	.ep_free = local_ep_free,
	.ep_attach = local_attach,
	.ep_fail = local_fail,
	.post = local_post,
	.kick = local_kick,
	.cancel = local_cancel,
};

int link_local_open(struct gx_core *core, struct link_local **out)
{
	struct link_local *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	l->core = core;
	l->budget_b = LOCAL_TURN_B;
	*out = l;
	return 0;
}

_Static_assert((int)GX_COPY_RESIDENT == (int)DMA_RESIDENT, "same order");

int link_local_gpu(struct link_local *l, struct gx_gpu *gpu)
{
	const struct gx_opts *o = &l->core->gx->opts;

	l->nr_gpus = GX_MAX(l->nr_gpus, gpu->device + 1u);
	if (l->dma[gpu->device])
		return 0;
	return dma_open(gpu, (enum dma_by)o->copy, o->gpu_timeout_ns, &l->dma[gpu->device]);
}

void link_local_close(struct link_local *l)
{
	for (unsigned i = 0; l && i < GX_GPUS_MAX; i++)
		dma_close(l->dma[i]);
	free(l);
}
