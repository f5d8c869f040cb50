/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The packet link of a core over a port: it takes posts, and it opens, connects and frees links and
 * endpoints. turn.c has the core's work. open, connect and free run on the control path, everything
 * else on the polling core.
 */
#include "packet/pkt.h"
#include "list/view_gpu.h"
#include "packet/seal.h"
#include "packet/abort.h"
#include "packet/freed.h"
#include "packet/life.h"
#include "packet/link_pkt.h"
#include "packet/match.h"
#include "packet/op.h"
#include "packet/rec.h"
#include "packet/rxtx.h"
#include "packet/share.h"
#include "packet/timer.h"
#include "packet/trial.h"
#include "packet/wake.h"
#include "auth/auth_mix.h"
#include "list/list.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PKT_SKIP_MAX (1u << 30)	 /* psns that an endpoint may leave out at the start */
#define PKT_WINDOW   4096	 /* packets that an ep may have outstanding, at least */
#define JOIN_SEG_B   (16u << 10) /* a longer segment is a message of its own */

/* ---- posting ---- */

static int post_get(struct pkt_ep *e, uint32_t i)
{
	struct pkt_op *op = &e->ops[i];
	struct gx_wire_rec rec = {
		.type = GX_REC_GET,
		.get = {.token = op->token, .off = op->remote_off, .len = op->len}};
	uint32_t slot;

	if (e->match.gets_out == PKT_GETS_MAX || !rec_room(e))
		return -EAGAIN;
	slot = slot_alloc(e, i);
	if (slot == PKT_NONE)
		return -EAGAIN;
	op_goto(op, OP_POSTED);
	rec.get.slot = slot_token(e, slot);
	if (op->gpu->device >= 0 || (op->pieces && !op->segs)) /* nothing in the answer's OPEN */
		rec.flags |= GX_REC_GPU;
	if (gx_unlikely(op->segs)) {
		rec.type = GX_REC_GETS;
		rec.get.off = 0;
		rec.get.nr = op->pieces->nr;
		rec.get.segs = op->segs;
		op->open_rsn = e->rec.next;
	}
	rec_add(e, &rec, PKT_NONE);
	e->match.gets_out++;
	return 0;
}

static void op_fill(struct pkt_ep *e, struct pkt_op *op, const struct gx_op *user,
		    struct gx_route *route)
{
	op->kind = user->kind;
	op->flags = user->flags & (GX_OP_IMM | GX_OP_LOCAL | GX_OP_SILENT | OP_HIDDEN);
	op->user = user->user;
	op->route = route;
	op->src = user->mem ? user->mem->addr + user->off : user->addr;
	op->mem = user->mem;
	core_use(e->ep.core, user->mem, &op->use);
	op->gpu = user->mem ? user->mem->gpu : e->ep.core->gx->host;
	op->mapped = user->mem && mem_is_mapped(user->mem);
	op->len = user->len;
	/* match.c alone names slots. */
	op->token = user->kind == GX_OP_PUT || user->kind == GX_OP_GET ? user->token & ~PKT_SLOT_BIT
								       : 0;
	op->remote_off = user->remote_off;
	op->imm = user->imm;
	op->tag = user->tag;
	op->tag_mask = user->tag_mask ? user->tag_mask : UINT64_MAX;
	op->deadline_ns = user->deadline_ns;
	if (user->kind == GX_OP_GET || user->kind == GX_OP_RECV)
		op->flags &= ~GX_OP_LOCAL;
}

/* Only the GPU of the bounce pool brings payload from there to host memory. */
static bool op_can_land(const struct pkt_ep *e, const struct gx_op *user)
{
	if (!e->link->q->rx_gpu || !user->len ||
	    (user->kind != GX_OP_GET && user->kind != GX_OP_RECV))
		return true;
	return user->mem && (user->mem->kind != GX_MEM_HOST || mem_is_mapped(user->mem));
}

/* @pieces, @segs: of an operation in pieces; else NULL. */
static int post_op(struct pkt_ep *e, const struct gx_op *user, struct pieces *pieces,
		   const struct gx_link_seg *segs, struct gx_route *route)
{
	struct gx_ep *ep = &e->ep;
	struct pkt_op *op;
	uint32_t i;
	int ret = 0;

	if (e->err)
		return -ENOTCONN;
	if (!op_can_land(e, user))
		return gx_fail(-EINVAL,
			       "host memory to receive into must be registered with gx_mem_reg() "
			       "or come from "
			       "gx_mem_alloc(), because the bounce pool is memory of cuda:%d",
			       e->link->q->rx_gpu->device);
	/* Half of the records stay free for requests of the peer. */
	if (!core_post_room(ep->core, e->tx.nr_ops) || rec_room(e) < PKT_RECS / 2)
		return -EAGAIN;
	ep_touch(e);
	e->link->look_ns = 0; /* an answer, or what it waits for, may be there */
	/* The last operations stay free for gets of the peer. */
	i = e->tx.nr_ops < PKT_OPS - PKT_GETS_MAX ? op_alloc(e) : PKT_NONE;
	if (i == PKT_NONE)
		return -EAGAIN;
	op = &e->ops[i];
	op_fill(e, op, user, route);
	op->pieces = pieces;
	op->segs = segs;
	core_began(ep->core, op->flags);
	if (op->deadline_ns && op->deadline_ns < e->timer.deadline_ns)
		e->timer.deadline_ns = op->deadline_ns;
	if (op->kind == GX_OP_PUT)
		op_push(e, &e->tx.wait_head, &e->tx.wait_tail, i);
	else if (op->kind == GX_OP_SEND)
		match_send(e, i);
	else if (op->kind == GX_OP_RECV)
		ret = match_recv(e, i);
	else
		ret = post_get(e, i);
	if (ret) {
		ep->core->comps_due -= core_comps(op->flags);
		op_free(e, i);
	}
	return ret;
}

static int pkt_post(struct gx_ep *ep, const struct gx_op *user, struct gx_route *route)
{
	return post_op(pkt_of(ep), user, NULL, NULL, route);
}

/* Can the peer take apart what comes in one message, and we what comes in answer? The CPU gathers and
 * checks it; from a GPU's memory it does neither. */
static bool joins(const struct pkt_ep *e, const struct gx_op *op)
{
	bool crc = e->integrity == GX_INTEGRITY_CRC;

	if (op->kind == GX_OP_GET)
		return !(op->token & CORE_TOKEN_GPU) && !(crc && e->link->q->rx_gpu);
	return !(op->mem && op->mem->gpu->device >= 0) && !(crc && e->port_path.pool >= 0);
}

static unsigned join_count(const struct gx_link_seg segs[], unsigned n, uint64_t *len)
{
	unsigned i = 0;

	for (*len = 0; i < n && i < GX_WIRE_SEGS; i++) {
		if (segs[i].mem != segs[0].mem || segs[i].token != segs[0].token || !segs[i].len ||
		    segs[i].len > JOIN_SEG_B || *len + segs[i].len > GX_WIRE_LIST_B)
			break;
		*len += segs[i].len;
	}
	return i;
}

/* Its bytes are gathered into packets, or scattered out of these. */
static int post_view(struct pkt_ep *e, const struct gx_op *op, struct gx_route *route)
{
	int ret = pieces_view(&e->pieces, op);
	struct pieces *pieces;

	if (ret < 0)
		return ret;
	pieces = pieces_of(&e->pieces, (unsigned)ret);
	ret = post_op(e, op, pieces, NULL, route);
	if (ret)
		pieces_put(&e->ep, &e->pieces, pieces);
	return ret ? ret : 1;
}

/* Small segments share packets. A few bytes go in records, several to a packet, anyway. */
static int pkt_join(struct gx_ep *ep, const struct gx_op *op, const struct gx_link_seg segs[],
		    unsigned n, struct gx_route *route)
{
	struct pkt_ep *e = pkt_of(ep);
	struct gx_op whole = *op;
	struct pieces *pieces;
	int ret;

	if (op->flags & OP_VIEW)
		return post_view(e, op, route);
	n = joins(e, op) ? join_count(segs, n, &whole.len) : 0;
	if (n < 2 || whole.len <= GX_WIRE_INLINE_MAX)
		return 0;
	pieces = pieces_get(&e->pieces, op->kind == GX_OP_PUT ? PIECES_PUT : PIECES_GET);
	if (!pieces)
		return -EAGAIN;
	for (unsigned i = 0; i < n; i++)
		pieces_add(pieces,
			   segs[i].mem ? segs[i].mem->addr + segs[i].off
				       : (char *)(uintptr_t)segs[i].off,
			   (uint32_t)segs[i].len);
	ret = post_op(e, &whole, pieces, segs, route);
	if (ret)
		pieces_put(&e->ep, &e->pieces, pieces);
	return ret ? ret : (int)n;
}

/* A small put leaves before gx_post() returns, so its latency does not include the rest of a turn.
 */
static void pkt_kick(struct gx_ep *ep)
{
	struct pkt_ep *e = pkt_of(ep);

	if (e->err || !e->path.proven || !atomic_load_explicit(&ep->attached, memory_order_relaxed))
		return;
	if (e->tx.wait_head != PKT_NONE)
		tx_start(e);
	if (e->rec.queued)
		rec_send(e);
}

static int pkt_cancel(struct gx_ep *ep, uint64_t user, const struct gx_route *route)
{
	struct pkt_ep *e = pkt_of(ep);
	int n = 0;

	ep_touch(e);
	for (uint32_t i = 0; i < e->tx.ops_top; i++) {
		struct pkt_op *op = &e->ops[i];

		if (!op_is_live(op) || op->internal || op->user != user || op->route != route)
			continue;
		abort_op(e, i, -ECANCELED);
		n++;
	}
	return n;
}

/* ---- control path ---- */

static int cid_alloc(struct link_pkt *l, struct pkt_ep *e)
{
	for (uint32_t i = 0; i < GX_PEERS_MAX; i++) {
		if (l->gens[i] >> 31)
			continue;
		l->gens[i] = ((l->gens[i] + 1) & 0xfff) | 1u << 31;
		e->index = i;
		e->gen = l->gens[i] & 0xfff;
		return 0;
	}
	return -ENOSPC;
}

static void ep_init_tables(struct pkt_ep *e)
{
	for (uint32_t i = 0; i < GX_WIRE_MIDS; i++) {
		e->out[i].op = PKT_NONE;
		e->out[i].mid = i - GX_WIRE_MIDS;
	}
	e->in[0].mid = 0u - GX_WIRE_MIDS; /* in_at() writes the others */
	memset(e->tx.mids_free, 0xff, sizeof(e->tx.mids_free));
	e->tx.mids_words = (1u << GX_WIRE_DONE_WORDS) - 1;
	e->tx.op_free = e->wake.hot_at = e->wake.cold_at = PKT_NONE;
	e->tx.act_head = e->tx.new_head = e->tx.wait_head = e->tx.send_head = PKT_NONE;
	e->rx.landed_head = PKT_NONE;
	e->timer.deadline_ns = UINT64_MAX;
	e->tx.words_free = e->rx.words_free = UINT64_MAX;
}

/* Numbers that nobody but the peer may know or guess. The first generation is random as well. */
static int ep_random(struct link_pkt *l, struct pkt_ep *e)
{
	struct {
		uint64_t psn;
		uint32_t salt, gen, skip;
	} r;
	int ret = gx_random(&r, sizeof(r));

	if (ret)
		return ret;
	e->psn0 = r.psn >> 16;
	e->psn_skip = r.skip % PKT_SKIP_MAX;
	e->salt = r.salt;
	for (unsigned i = 0; !l->seeded && i < GX_PEERS_MAX; i++)
		l->gens[i] = (r.gen + i) & 0xfff;
	l->seeded = true;
	return 0;
}

/* The CPU cannot check payload in the memory of a GPU, so the copy must. */
static int ep_pool_checks(const struct pkt_ep *e)
{
	const struct gx *gx = e->ep.core->gx;
	const struct gx_conn *c = e->ep.conn;

	if (c->agreed.integrity == GX_INTEGRITY_NONE || !e->link->q->rx_gpu || c->crc_by_copy)
		return 0;
	if (c->agreed.integrity != GX_INTEGRITY_CRC)
		return gx_fail(
			-EINVAL,
			"the CPU decrypts payload, and cannot where the bounce pool is memory "
			"of cuda:%d: take gx_gpu_opts.bounce host",
			e->link->q->rx_gpu->device);
	return gx_fail(-EINVAL,
		       "unpack %s does not check the CRC of payload, and the CPU cannot where the "
		       "bounce pool is memory of cuda:%d: take gx_gpu_opts.unpack kernel or auto, "
		       "gx_gpu_opts.bounce host, or gx_packet_opts.integrity none",
		       gx_unpack_name(gx->gpu_cfg.unpack), e->link->q->rx_gpu->device);
}

static int pkt_ep_open(struct gx_ep *ep, struct gx_hello_lane *local)
{
	struct pkt_ep *e = pkt_of(ep);
	struct link_pkt *l = pkt_link(ep->core, ep->port);
	const struct gx_port_caps *caps = &l->port->caps;
	int ret;

	e->link = l;
	ep_init_tables(e);
	ret = ep_random(l, e);
	if (ret)
		return ret;
	ret = cid_alloc(l, e);
	if (ret)
		return gx_fail(ret, "core %u has %u connections already", ep->core->index,
			       GX_PEERS_MAX);
	ret = l->q->ops->peer_add(l->q, &e->port_peer, &local->port);
	if (ret) {
		l->gens[e->index] &= ~(1u << 31);
		return gx_fail(ret, "%s", gx_port_why_of(ret));
	}
	e->have_peer = true;
	e->lossless = caps->flags & GX_PORT_LOSSLESS;
	e->share.on = caps->flags & GX_PORT_SHARED_POOL;
	/* Idle peers hold a quarter of a shared pool at most. A peer that finds this quarter in use
	 * begins with an OPEN. */
	if (!(caps->flags & GX_PORT_SHARED_POOL))
		e->credit0 = caps->rx_slots - pkt_margin(caps);
	else if (l->credit0_out + PKT_CREDIT0 <= caps->rx_slots / 4)
		e->credit0 = PKT_CREDIT0;
	e->credit0 = GX_MIN(e->credit0, core_credit_max(&e->ep));
	l->credit0_out += e->credit0;
	local->cid = e->gen << 20 | e->index;
	local->credit = e->credit0;
	local->psn = e->psn0;
	local->salt = e->salt;
	return 0;
}

/* Each end takes packets of the agreed quantum, or of the size of its slots if that is smaller. */
static int ep_shapes(struct pkt_ep *e, struct msg_shape *least)
{
	const struct gx_hello_lanes *a = &e->ep.conn->agreed;
	uint32_t own = e->link->port->caps.payload_max, in = GX_MIN(a->quantum, own);
	uint32_t out =
		GX_MIN(a->quantum, e->port_path.payload_max ? e->port_path.payload_max : own);
	uint32_t quantum = GX_MIN(in, out);
	int ret;

	if (quantum < GX_WIRE_QUANTUM_MIN)
		return -EPROTO;
	/* A path that turns out narrower gets a smaller quantum, and a message then needs more
	 * bits. */
	if (e->link->port->caps.flags & GX_PORT_NEEDS_PROBE)
		quantum = GX_WIRE_QUANTUM_MIN;
	ret = msg_shape_init(&e->shape, out, a->chunk_b, a->window);
	if (!ret)
		ret = msg_shape_init(&e->rx_shape[0], in, a->chunk_b, a->window);
	if (!ret)
		ret = msg_shape_init(least, quantum, a->chunk_b, a->window);
	e->nr_rx_shapes = 1;
	return ret;
}

static size_t windows_b(const struct pkt_ep *e)
{
	return GX_WIRE_ACTIVE * e->words_max * sizeof(uint64_t);
}

static size_t resend_b(const struct pkt_ep *e)
{
	return (e->tx.resend_mask + 1) * sizeof(*e->tx.resend);
}

static int ep_windows(struct pkt_ep *e)
{
	struct msg_shape least;
	int ret = ep_shapes(e, &least);

	if (ret)
		return ret;
	e->words_max = msg_words(&least);
	e->tx.words = gx_pages_get(windows_b(e));
	e->rx.words = gx_pages_get(windows_b(e));
	return e->tx.words && e->rx.words ? 0 : -ENOMEM;
}

/* Both ends use one GPU, and the driver gives it to one process at a time, for a fraction of a
 * millisecond each. The log says so once. */
static void path_say_turns(const struct pkt_ep *e)
{
	const struct gx_conn *c = e->ep.conn;
	int device = e->port_path.pool_here;

	if (device < 0 || device >= GX_GPUS_MAX || c->gx->turns_said || !c->gx->gpu[device] ||
	    !c->gx->gpu[device]->turns || c->peer.pid == (uint32_t)getpid())
		return;
	c->gx->turns_said = true;
	gx_warn("peer %s: its bounce pool is memory of cuda:%d, which this process writes and the "
		"other one reads in turns, as there is no MPS; that costs most of the speed: run "
		"nvidia-cuda-mps-control -d before both, or let another GPU write",
		c->peer_name, device);
}

/* Congestion control: `rate` where packets cross a network, none where they cross memory, unless
 * the port's option says otherwise. */
static int ep_pace(struct pkt_ep *e, const struct flow_cfg *flow)
{
	enum gx_port_cc cc = gx_port_cc(e->link->port);
	struct cc_cfg cfg = {.kind = cc == GX_PORT_CC_SWIFT ? CC_SWIFT : CC_RATE,
			     .places = 2 * flow->window,
			     .packet_b = e->shape.quantum + PKT_WIRE_B,
			     .hdr_b = PKT_WIRE_B,
			     .seed = flow->tx_psn};

	if (cc == GX_PORT_CC_NONE)
		return 0;
	return cc_open(&cfg, &e->pace.cc);
}

static int ep_paths(struct pkt_ep *e, const struct flow_cfg *flow)
{
	const struct gx_port *port = e->link->port;
	struct paths_cfg cfg = {.places = 2 * flow->window,
				.nr = port->caps.paths,
				.spread = GX_MAX(port->spread, 1u)};

	return cfg.nr > 1 ? paths_open(&cfg, &e->paths) : 0;
}

/* A long path holds many packets: as many as the port has buffers, which is what the peer grants
 * where it has as many. */
static uint32_t ep_window(const struct pkt_ep *e)
{
	uint32_t window = PKT_WINDOW;

	while (!e->lossless && window < FLOW_WINDOW_MAX && window < e->link->port->caps.rx_slots)
		window *= 2;
	return window;
}

static int pkt_ep_connect(struct gx_ep *ep, const struct gx_hello_lane *remote)
{
	struct pkt_ep *e = pkt_of(ep);
	struct link_pkt *l = e->link;
	struct flow_cfg cfg = {.window = ep_window(e),
			       .lossless = e->lossless,
			       .ordered = l->port->caps.flags & GX_PORT_ORDERED,
			       .tx_psn = e->psn0,
			       .rx_psn = remote->psn,
			       .tx_credit = remote->credit,
			       .rx_credit = e->credit0};
	int ret = l->q->ops->peer_connect(l->q, e->port_peer, &remote->port);

	/* The peer knows psn0 by the bootstrap connection. The first probe has another psn, so its
	 * acknowledgement shows that it reached the address that the peer has named. */
	if (l->port->caps.flags & GX_PORT_NEEDS_PROBE)
		cfg.tx_psn += e->psn_skip;
	if (ret)
		return gx_fail(ret, "%s", gx_port_why_of(ret));
	ret = ep_pool_checks(e);
	if (ret)
		return ret;
	l->q->ops->peer_info(l->q, e->port_peer, &e->port_path);
	e->guards = l->port->caps.flags & GX_PORT_TX_GUARDS && e->port_path.pool < 0;
	/* The CPU reads the payload that it sends, for a CRC or to encrypt it; an encrypted one lies
	 * in a buffer of the core. */
	if (ep->conn->agreed.integrity != GX_INTEGRITY_NONE)
		e->port_path.gpus = 0;
	if (ep->conn->agreed.integrity == GX_INTEGRITY_GCM)
		e->port_path.flags &= ~(uint32_t)GX_PORT_TX_ATTACH;
	if (ep->lane == 0) {
		ep->conn->peer_pool = e->port_path.pool;
		path_say_turns(e);
	}
	ret = ep_windows(e);
	if (!ret)
		ret = flow_open(&cfg, &e->flow);
	if (!ret)
		ret = ep_pace(e, &cfg);
	if (!ret)
		ret = ep_paths(e, &cfg);
	if (!ret && ep->conn->agreed.integrity != GX_INTEGRITY_NONE)
		ret = seal_link_open(l);
	if (!ret && ep->conn->agreed.integrity > GX_INTEGRITY_CRC)
		ret = seal_open(e, remote->psn);
	if (ret)
		return gx_fail(ret, "cannot set up the endpoint: %s", strerror(-ret));
	e->tx.resend_mask = 2 * cfg.window - 1;
	e->tx.resend = gx_pages_get(resend_b(e));
	if (!e->tx.resend)
		return gx_fail(-ENOMEM, "no memory for a list of lost packets");
	e->cid_peer = remote->cid;
	e->credit0_peer = remote->credit;
	e->salt_peer = remote->salt;
	e->integrity = ep->conn->agreed.integrity;
	e->crc_by_copy = ep->conn->crc_by_copy;
	e->peer_crc_by_copy = ep->conn->peer_crc_by_copy;
	e->timer.peer_timeout_ns = ep->conn->agreed.peer_timeout_ns;
	e->path.probed = l->port->caps.flags & GX_PORT_NEEDS_PROBE;
	e->path.proven = !e->path.probed;
	e->path.full_b = e->shape.quantum;
	e->path.proving = e->path.probed;
	e->tx.mids_max = e->path.probed ? GX_WIRE_MIDS - PKT_MIDS_KEPT : GX_WIRE_MIDS;
	hole_forget(e);
	atomic_store_explicit(&ep->quantum_b, e->shape.quantum, memory_order_relaxed);
	ep->quantum_said = e->shape.quantum;
	return 0;
}

static void pkt_ep_free(struct gx_ep *ep)
{
	struct pkt_ep *e = pkt_of(ep);

	if (e->have_peer) {
		e->link->q->ops->peer_del(e->link->q, e->port_peer);
		e->link->credit0_out -= e->credit0;
		e->link->gens[e->index] &= ~(1u << 31);
	}
	if (e->flow)
		flow_close(e->flow);
	cc_close(e->pace.cc);
	paths_close(e->paths);
	seal_close(e->seal);
	gx_pages_put(e->tx.resend, resend_b(e));
	gx_pages_put(e->tx.words, windows_b(e));
	gx_pages_put(e->rx.words, windows_b(e));
	gx_pages_put(e, e->alloc_b);
}

struct pkt_ep *pkt_ep_alloc(size_t len)
{
	struct pkt_ep *e = gx_pages_get(len);

	if (e)
		e->alloc_b = len;
	return e;
}

static struct gx_ep *pkt_ep_new(void)
{
	struct pkt_ep *e = pkt_ep_alloc(sizeof(*e));

	return e ? &e->ep : NULL;
}

const struct gx_ep_ops gx_link_pkt_ops = {
	/* A small put holds a record, and a get of the peer that this end serves may, too. */
	.room = {.ops = PKT_RECS / 2 - PKT_GETS_MAX, .recvs = PKT_SLOTS, .gets = PKT_GETS_MAX},
	.ep_new = pkt_ep_new,
	.ep_open = pkt_ep_open,
	.ep_connect = pkt_ep_connect,
	.ep_free = pkt_ep_free,
	.ep_attach = pkt_attach,
	.ep_fail = pkt_fail,
	.post = pkt_post,
	.join = pkt_join,
	.kick = pkt_kick,
	.cancel = pkt_cancel,
};

/* ---- the link of one core over one port ---- */

static int link_bq_open(struct link_pkt *l, struct gx_gpu *by, struct block_q **out)
{
	return block_open(by, l->q->rx_base, l->core->gx->opts.gpu->timeout_ns, out);
}

int link_pkt_open(struct gx_core *core, struct gx_port *port, struct gx_port_queue *q,
		  struct link_pkt **out)
{
	struct link_pkt *l = calloc(1, sizeof(*l));
	/* The CPU cannot copy from bounce buffers in the memory of a GPU. */
	struct gx_gpu *by = q->rx_gpu ? q->rx_gpu : core->gx->host;
	int ret;

	if (!l)
		return -ENOMEM;
	l->core = core;
	l->q = q;
	l->port = port;
	share_open(l);
	l->pad = calloc(1, port->caps.payload_max);
	l->gather = gx_pages_get(PKT_GATHER_B);
	ret = l->pad && l->gather ? link_bq_open(l, by, &l->bq_host) : -ENOMEM;
	if (ret) {
		link_pkt_close(l);
		return ret;
	}
	l->bqs[l->nr_bqs++] = l->bq_host;
	*out = l;
	return 0;
}

int link_pkt_gpu(struct link_pkt *l, struct gx_gpu *gpu)
{
	struct gx *gx = l->core->gx;
	int ret;

	if (gpu->device < 0 || l->made[gpu->device].bq)
		return 0;
	/* The agreed chunk may be larger than gx_packet_opts.chunk_b, because a chunk is a quantum at
	 * least. */
	ret = stage_open(gpu, gx->arena,
			 GX_MAX(gx->opts.packet->chunk_b, (uint32_t)GX_WIRE_QUANTUM_MAX),
			 GX_MIN(gx->opts.packet->window, (uint32_t)STAGE_MSG_CHUNKS) + 2,
			 gx->opts.gpu->timeout_ns, &l->made[gpu->device].stage);
	if (ret)
		return ret;
	return link_bq_open(l, gpu, &l->made[gpu->device].bq);
}

void link_pkt_take(struct link_pkt *l, unsigned device)
{
	if (l->bq_gpu[device])
		return;
	l->stage[device] = l->made[device].stage;
	l->bq_gpu[device] = l->bqs[l->nr_bqs++] = l->made[device].bq;
	l->nr_gpus = GX_MAX(l->nr_gpus, device + 1);
}

void link_pkt_close(struct link_pkt *l)
{
	if (!l)
		return;
	block_close(l->bq_host);
	for (unsigned i = 0; i < GX_GPUS_MAX; i++) {
		block_close(l->made[i].bq);
		stage_close(l->made[i].stage);
	}
	free((void *)l->pad);
	gx_pages_put(l->gather, PKT_GATHER_B);
	seal_link_close(l->seal);
	free(l);
}

/* ---- the link's parts ---- */

static int packet_core_open(struct gx_core *core)
{
	core->link[GX_LINK_PACKET] = calloc(1, sizeof(struct pkt_core));
	return core->link[GX_LINK_PACKET] ? 0
					  : gx_fail(-ENOMEM, "no memory for core %u", core->index);
}

static int packet_core_start(struct gx_core *core)
{
	struct pkt_core *own = core->link[GX_LINK_PACKET];
	struct gx *gx = core->gx;
	int ret = 0;

	for (unsigned p = 0; !ret && p < gx->nr_ports; p++) {
		struct gx_port_slot *s = &gx->port[p];

		ret = link_pkt_open(core, s->port, s->queue[core->index], &own->port[p]);
		if (!ret && gx->pool_gpu)
			ret = link_pkt_gpu(own->port[p], gx->pool_gpu);
		if (!ret && gx->pool_gpu)
			link_pkt_take(own->port[p], (unsigned)gx->pool_gpu->device);
		if (!ret)
			ret = gx_loop_add(&core->loop,
					  &(struct gx_poller){s->name, link_pkt_poll, own->port[p],
							      link_pkt_asleep, link_pkt_look});
		if (!ret)
			ret = core_dropper_add(core, link_pkt_drop, own->port[p]);
	}
	return ret ? gx_fail(ret, "core %u: %s", core->index, strerror(-ret)) : 0;
}

static void packet_core_gpu(struct gx_core *core, unsigned device)
{
	for (unsigned p = 0; p < core->gx->nr_ports && pkt_link(core, p); p++)
		link_pkt_take(pkt_link(core, p), device);
}

static void packet_core_close(struct gx_core *core)
{
	struct pkt_core *own = core->link[GX_LINK_PACKET];

	for (unsigned p = 0; own && p < GX_HELLO_PORTS; p++)
		link_pkt_close(own->port[p]);
	free(own);
}

static int packet_gpu(struct gx *gx, struct gx_gpu *gpu)
{
	int ret = 0;

	for (unsigned i = 0; !ret && i < gx->nr_cores; i++)
		for (unsigned p = 0; !ret && p < gx->nr_ports && pkt_link(gx->core[i], p); p++)
			ret = link_pkt_gpu(pkt_link(gx->core[i], p), gpu);
	return ret ? gx_fail(ret, "cuda:%d cannot read the bounce buffers: %s", gpu->device,
			     gx_gpu_why())
		   : 0;
}

/* Keys of the phases to come, for lanes that encrypt. */
static int packet_tick(struct gx_conn *c, uint64_t now_ns,
		       void (*say)(struct gx_conn *c, const uint8_t *b, uint32_t len))
{
	struct auth_tick t = {.c = c, .say = say, .now_ns = now_ns};
	int ret = 0;

	for (; !ret && c->agreed.integrity > GX_INTEGRITY_CRC && t.lane < c->nr_lanes; t.lane++) {
		struct seal *s = pkt_of(c->ep[t.lane])->seal; /* NULL: the set-up ended before it */

		if (s)
			ret = auth_rings_tick(&s->tx, &s->rx, &t);
	}
	return ret;
}

static int packet_take(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	struct auth_word w;
	struct seal *s;

	if (len == 1 && c->trying)
		return trial_take(c, b[0]);
	if (conn_state(c) != GX_CONN_STATE_UP)
		return -EPROTO;
	if (auth_word_get(b, len, &w) || w.lane >= c->nr_lanes)
		return -EPROTO;
	s = pkt_of(c->ep[w.lane])->seal;
	return s ? auth_rings_take(&s->tx, &s->rx, &w) : -EPROTO;
}

static const struct gx_link_conn_ops conn_ops = {
	.offer = trial_offer,
	.open = trial_open,
	.say = trial_say,
	.hear = trial_hear,
	.tries = trial_tries,
	.trial = trial_look,
	.fault = trial_fault,
	.close = trial_close,
	.tick = packet_tick,
	.take = packet_take,
	.look = pkt_conn_look,
	.path = pkt_conn_path,
};

static const struct gx_link_ctx_ops ctx_ops = {
	.gpu = packet_gpu,
};

static const struct gx_link_core_ops core_ops = {
	.open = packet_core_open,
	.start = packet_core_start,
	.gpu = packet_core_gpu,
	.close = packet_core_close,
};

const struct gx_link gx_link_packet = {
	.name = "packet",
	.id = GX_LINK_PACKET,
	.port = GX_LINK_PORT_ANY,
	.score = 2,
	.many_ports = true,
	.seals = true,
	.cure = "",
	.ctx = &ctx_ops,
	.core = &core_ops,
	.conn = &conn_ops,
	.ep = &gx_link_pkt_ops,
};
