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
#include "packet/link_pkt.h"
#include "packet/timer.h"
#include "packet/wake.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
	bool worked = e->rx && local_imms_take(e);

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

static void local_core_drop(void *link, struct drop *d)
{
	struct link_local *l = link;

	if (l->nr_dma) {
		local_dma_reap(l, l->core->now_ns);
		local_dma_kick(l, l->core->now_ns);
	}
	for (unsigned i = 0; i < l->nr_live && !d->parts; i++)
		local_ops_drop(l->live[i], d);
}

static bool local_core_asleep(const void *link)
{
	const struct link_local *l = link;

	return !l->nr_live && !l->nr_dma;
}

/* After the packet link's: port shm has told the peers that this core sleeps. */
static int local_core_look(void *link, struct gx_look *look)
{
	struct link_local *l = link;
	int ret = l->nr_dma ? 1 : 0;

	for (unsigned i = 0; i < l->nr_live && !ret; i++) {
		struct local_ep *e = l->live[i];

		if (e->head != e->tail) /* the peer makes room in its ring, and wakes nobody */
			look->until_ns = GX_MIN(look->until_ns, look->now_ns + LOCAL_HOT_NS);
		ret = e->fail_err || local_imm_there(e);
		if (ret)
			local_heat(e);
	}
	return ret;
}

static bool local_core_poll(void *link, uint64_t now_ns)
{
	struct link_local *l = link;
	bool worked = false;

	l->core->now_ns = now_ns;
	core_mine(l->core);
	if (gx_unlikely(core_drop_due(l->core)))
		core_drop(l->core);
	l->budget_b = LOCAL_TURN_B;
	l->list_b = LOCAL_LIST_B;
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
	if (!worked && l->nr_live <= LOCAL_FEW && now_ns - l->imm_ns < LOCAL_HOT_NS)
		worked = local_imms_wait(l);
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
	/* A peer may close right after a put that is done: what its ring holds is the user's. A peer
	 * that writes on, though it has ended, is not waited for. */
	for (unsigned i = 0; i < LOCAL_IMMS && e->rx && local_imms_take(e); i++)
		;
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

	e->link = local_core(ep->core);
	e->conn = local_conn_of(ep->conn);
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

static const struct gx_ep_ops ep_ops = {
	.room = {.ops = LOCAL_OPS,
		 .recvs = PKT_SLOTS,
		 .gets = PKT_GETS_MAX,
		 .list_gets = LOCAL_LIST_GETS,
		 .views = true},
	.ep_new = local_ep_new,
	.ep_open = local_ep_open,
	.ep_connect = local_ep_connect,
	.ep_free = local_ep_free,
	.ep_attach = local_attach,
	.ep_fail = local_fail,
	.post = local_post,
	.join = local_join,
	.copy = local_copy,
	.kick = local_kick,
	.cancel = local_cancel,
};

_Static_assert((int)GX_COPY_RESIDENT == (int)DMA_RESIDENT, "same order");

static int local_core_dma(struct link_local *l, struct gx_gpu *gpu)
{
	const struct gx_opts *o = &l->core->gx->opts;

	if (l->made[gpu->device])
		return 0;
	return dma_open(gpu, (enum dma_by)o->gpu->copy, o->gpu->timeout_ns, &l->made[gpu->device]);
}

/* ---- the link's parts ---- */

static int local_check(const struct gx_opts *o)
{
	return o->host->local > GX_OFF
		       ? gx_fail(-EINVAL, "a switch is GX_AUTO, GX_ON or GX_OFF, and not %d",
				 o->host->local)
		       : 0;
}

static int local_ctx_open(struct gx *gx)
{
	struct local_ctx *l = calloc(1, sizeof(*l));

	if (l)
		l->pairs = calloc(1, sizeof(*l->pairs));
	if (l)
		l->live_fd = -1;
	gx->link[GX_LINK_LOCAL] = l;
	return l && l->pairs ? 0 : gx_fail(-ENOMEM, "no memory for link local");
}

static int local_ctx_start(struct gx *gx)
{
	gx->maps = !local_offered(gx);
	return gx->maps ? local_keys_open(gx) : 0;
}

static void local_ctx_close(struct gx *gx)
{
	struct local_ctx *l = local_ctx(gx);

	if (!l)
		return;
	local_peers_close(gx);
	local_keys_close(gx);
	free(l->pairs);
	free(l);
	gx->link[GX_LINK_LOCAL] = NULL;
}

static void local_ctx_tick(struct gx *gx)
{
	local_tick(gx);
}

static int local_gpu(struct gx *gx, struct gx_gpu *gpu)
{
	int ret = 0;

	for (unsigned i = 0; !ret && i < gx->nr_cores; i++)
		ret = local_core_dma(local_core(gx->core[i]), gpu);
	for (struct gx_conn *c = gx->conns; !ret && c; c = c->next)
		if (c->link->id == GX_LINK_LOCAL && local_conn_of(c))
			local_keys_gpu(c);
	return ret ? gx_fail(ret, "cuda:%d: cannot be set up for copies: %s", gpu->device,
			     ret == -ETIMEDOUT ? "a first one of 4 KiB does not end" : gx_gpu_why())
		   : 0;
}

/* Say who does short copies over the local link, and why. */
static void local_describe(struct gx *gx, struct gx_text *text)
{
	static const char *const asked[] = {
		[GX_COPY_CE] = "copy engines", [GX_COPY_RESIDENT] = "resident kernel"};
	unsigned copy = gx->opts.gpu->copy, nr = 0;
	char line[256];
	int n;

	if (copy != GX_COPY_AUTO) {
		core_say(text, "pairs    short copies over link local: %s, as asked for\n",
			 copy == DMA_KERNEL ? "launched kernels" : asked[copy]);
		return;
	}
	for (unsigned i = 0; (n = local_pair_text(gx, i, line, sizeof(line))) >= 0; i++)
		if (n) {
			core_say(text, "pairs    %s\n", line);
			nr++;
		}
	if (!nr)
		core_say(
			text,
			"pairs    short copies over link local: timed for each pair of places when a "
			"connection first uses it\n");
}

static int local_core_open(struct gx_core *core)
{
	struct link_local *l = calloc(1, sizeof(*l));

	core->link[GX_LINK_LOCAL] = l;
	if (!l)
		return gx_fail(-ENOMEM, "core %u: %s", core->index, strerror(ENOMEM));
	l->core = core;
	l->budget_b = LOCAL_TURN_B;
	l->list_b = LOCAL_LIST_B;
	return 0;
}

static int local_core_start(struct gx_core *core)
{
	struct link_local *l = local_core(core);
	int ret =
		gx_loop_add(&core->loop, &(struct gx_poller){gx_link_local.name, local_core_poll, l,
							     local_core_asleep, local_core_look});

	if (!ret)
		ret = core_dropper_add(core, local_core_drop, l);
	return ret ? gx_fail(ret, "core %u: %s", core->index, strerror(-ret)) : 0;
}

static void local_core_gpu(struct gx_core *core, unsigned device)
{
	struct link_local *l = local_core(core);

	l->dma[device] = l->made[device];
	l->nr_gpus = GX_MAX(l->nr_gpus, device + 1);
}

static void local_core_close(struct gx_core *core)
{
	struct link_local *l = local_core(core);

	for (unsigned i = 0; l && i < GX_GPUS_MAX; i++)
		dma_close(l->made[i]);
	free(l);
}

static void local_mem_revoke(struct gx_mem *mem)
{
	if (mem->whole) {
		local_key_revoke(mem);
		return;
	}
	for (struct gx_conn *c = mem->gx->conns; c; c = c->next)
		if (c->link->id == GX_LINK_LOCAL)
			local_revoke(c, mem);
}

static const char *local_holder(const struct gx *gx)
{
	return gx->maps ? "a peer on this host that is stopped" : NULL;
}

static void local_export(const struct gx_mem *mem, struct gx_hello_export *e)
{
	if (mem->gx->maps)
		local_export_fill(mem, e);
}

/* Port shm, which it goes with, is there. */
static const char *local_fits(struct gx_link_path *path)
{
	path->quiet = !path->same_host || path->no_share || path->gx->opts.host->local == GX_OFF;
	static _Thread_local char text[64];

	if (!path->same_host) {
		snprintf(text, sizeof(text), "the peer is %s", path->far);
		return text;
	}
	return path->no_share;
}

static int local_conn_open(struct gx_conn *c, const struct gx_link_want *want)
{
	return local_open(c, want->nr_lanes);
}

static unsigned local_conn_due(const struct gx_conn *c)
{
	return local_fds_due(&c->peer);
}

static int local_conn_connect(struct gx_conn *c, const int fds[], unsigned n)
{
	int ret = local_connect(c, fds, n);
	unsigned left = ret ? 0 : c->peer.nr_regions - local_conn_of(c)->nr_maps;

	if (left)
		core_why(c->why, "%u of the peer's %u regions by packets: not mapped%s%s", left,
			 c->peer.nr_regions, local_conn_of(c)->miss[0] ? ": " : "",
			 local_conn_of(c)->miss);
	return ret;
}

static void local_conn_up(struct gx_conn *c)
{
	core_why(c->why, "%s", local_pull_text(c));
}

static int local_conn_tick(struct gx_conn *c, uint64_t now_ns,
			   void (*say)(struct gx_conn *c, const uint8_t *b, uint32_t len))
{
	local_count(c);
	if (local_conn_of(c))
		local_keys_tick(c);
	return 0;
}

static void local_conn_key(struct gx_conn *c, uint64_t token, bool maps)
{
	local_key_ask(c, maps ? token : 0);
}

static bool local_fault(const struct gx_conn *c, int err, char *buf, size_t room)
{
	if (err != -ECONNRESET)
		return false;
	snprintf(buf, room, "the process of peer %s has ended, or runs another program now",
		 c->peer_name);
	return true;
}

static void local_conn_stop(struct gx_conn *c)
{
	local_revoke(c, NULL);
}

static const struct gx_link_ctx_ops ctx_ops = {
	.check = local_check,
	.open = local_ctx_open,
	.start = local_ctx_start,
	.close = local_ctx_close,
	.tick = local_ctx_tick,
	.gpu = local_gpu,
	.describe = local_describe,
};

static const struct gx_link_core_ops core_ops = {
	.open = local_core_open,
	.start = local_core_start,
	.gpu = local_core_gpu,
	.close = local_core_close,
};

static const struct gx_link_mem_ops mem_ops = {
	.export = local_export,
	.revoke = local_mem_revoke,
	.busy = local_key_busy,
	.gone = local_mem_gone,
	.holder = local_holder,
};

/* What each end has copied, in both directions, apart from the packets. */
static void local_look(const struct gx_conn *c, struct gx_link_look *out)
{
	const struct local_conn *l = local_conn_of(c);

	pkt_conn_look(c, out);
	out->has |= GX_LOOK_TX_B;
	for (unsigned i = 0; l && l->rx && l->tx && i < l->nr_lanes; i++) {
		out->tx_b += atomic_load_explicit(&l->tx->ring[i].made.bytes, memory_order_relaxed);
		out->rx_b += atomic_load_explicit(&l->rx->ring[i].made.bytes, memory_order_relaxed);
	}
}

static const struct gx_link_conn_ops conn_ops = {
	.may = local_offered,
	.fits = local_fits,
	.open = local_conn_open,
	.fds = local_fds,
	.fds_due = local_conn_due,
	.meet = local_meet,
	.connect = local_conn_connect,
	.up = local_conn_up,
	.tick = local_conn_tick,
	.key = local_conn_key,
	.take = local_key_take,
	.fault = local_fault,
	.stop = local_conn_stop,
	.release = local_release,
	.lost = local_lost,
	.close = local_close,
	.pull_over = local_pull_over,
	.look = local_look,
};

const struct gx_link gx_link_local = {
	.name = "local",
	.id = GX_LINK_LOCAL,
	.port = GX_LINK_PORT_SHM,
	.score = 3,
	.keys = true,
	.how = "both on one host: memory mapped",
	.cure = "",
	.ctx = &ctx_ops,
	.core = &core_ops,
	.mem = &mem_ops,
	.conn = &conn_ops,
	.ep = &ep_ops,
};
