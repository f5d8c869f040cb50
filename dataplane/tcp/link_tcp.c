/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp link: messages over TCP sockets of the kernel. It works everywhere, also over long
 * distances, and is the last resort. This file takes posts, and opens, connects and frees
 * endpoints. open, connect and free run on the control path, everything else on the polling core.
 */
#include "tcp/tcp_seal.h"
#include "tcp/tcp_conn.h"
#include "tcp/tcp_feed.h"
#include "tcp/tcp_gpu.h"
#include "tcp/tcp_life.h"
#include "tcp/tcp_live.h"
#include "tcp/tcp_match.h"
#include "tcp/tcp_offload.h"
#include "tcp/tcp_op.h"
#include "tcp/tcp_sock.h"
#include "tcp/tcp_turn.h"
#include "tcp/tcp_view.h"

#include "gx_internal/fork.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- posting ---- */

static void op_fill(struct tcp_ep *e, struct tcp_op *restrict op, const struct gx_op *restrict user,
		    struct gx_route *route)
{
	bool names = user->kind == GX_OP_PUT || user->kind == GX_OP_GET;

	op->kind = (uint8_t)user->kind;
	op->flags = user->flags;
	if (user->kind == GX_OP_GET || user->kind == GX_OP_RECV)
		op->flags &= ~GX_OP_LOCAL;
	op->user = user->user;
	op->route = route;
	op->at = user->addr;
	op->mem = user->mem;
	if (user->mem) {
		op->at = user->mem->addr + user->off;
		core_use(e->ep.core, user->mem, &op->use);
	}
	op->gpu = user->len ? tcp_gpu_of(e->link, user->mem) : NULL;
	op->view = e->view_next;
	op->bare = user->kind == GX_OP_PUT && user->len && !op->view &&
		   tcp_bare_region(e, user->token);
	op->len = user->len;
	op->nr_chunks = tcp_nr_chunks(e, user->len);
	op->token = names ? user->token & ~TCP_SLOT_BIT : 0; /* tcp_match.c alone names slots */
	op->remote_off = names ? user->remote_off : 0;
	op->imm = user->kind == GX_OP_PUT && user->flags & GX_OP_IMM ? user->imm : 0;
	op->tag = user->tag;
	op->tag_mask = user->tag_mask ? user->tag_mask : UINT64_MAX;
	op->deadline_ns = user->deadline_ns;
}

static void post_get(struct tcp_ep *e, uint32_t i, uint32_t slot)
{
	struct tcp_op *op = &e->ops[i];
	struct tcp_frame f = {.type = TCP_GET,
			      .flags = op->gpu && tcp_bare_takes(e, op->mem) ? TCP_F_BARE : 0,
			      .token = op->token,
			      .off = op->remote_off,
			      .len = op->len,
			      .imm = tcp_slot_token(e, slot)};

	tcp_op_goto(op, TCP_OP_POSTED);
	tcp_ctl_put(e, &f);
	e->match.gets_out++;
}

/* Begin the operation. Return: 0, -EAGAIN: there is no slot for it. */
static int op_start(struct tcp_ep *e, uint32_t i)
{
	struct tcp_op *op = &e->ops[i];
	uint32_t slot;

	if (op->kind == GX_OP_PUT) {
		tcp_act_push(e, i);
		return 0;
	}
	if (op->kind == GX_OP_SEND) {
		tcp_match_send(e, i);
		return 0;
	}
	slot = tcp_slot_alloc(e, i);
	if (slot == TCP_NONE)
		return -EAGAIN;
	if (op->kind == GX_OP_RECV)
		tcp_match_recv(e, i, slot);
	else
		post_get(e, i, slot);
	return 0;
}

static int tcp_post(struct gx_ep *ep, const struct gx_op *user, struct gx_route *route)
{
	struct tcp_ep *e = tcp_of(ep);
	struct tcp_op *op;
	uint32_t i;
	int ret;

	if (e->err)
		return -ENOTCONN;
	if (tcp_gpu_lacks(e->link, user->mem, user->len))
		return gx_fail(-ENOMEM,
			       "link tcp has no buffers for memory of cuda:%d: there was no room "
			       "for them when gx_gpu_open() or gx_mem_alloc() opened it",
			       user->mem->device);
	if (!core_post_room(ep->core, e->nr_ops) || tcp_ctl_room(e) <= TCP_CTLS_KEPT ||
	    e->nr_ops >= TCP_OPS - TCP_GETS ||
	    (user->kind == GX_OP_GET && e->match.gets_out == TCP_GETS))
		return -EAGAIN;
	i = tcp_op_alloc(e);
	if (i == TCP_NONE)
		return -EAGAIN;
	op = &e->ops[i];
	op_fill(e, op, user, route);
	core_began(ep->core, op->flags);
	if (user->deadline_ns)
		e->timer.deadline_ns = GX_MIN(e->timer.deadline_ns, user->deadline_ns);
	ret = op_start(e, i);
	if (ret) {
		ep->core->comps_due -= core_comps(op->flags);
		tcp_op_free(e, i);
	}
	return ret;
}

/* A small put leaves before gx_post() returns. */
static void tcp_kick(struct gx_ep *ep)
{
	struct tcp_ep *e = tcp_of(ep);

	if (e->err || e->live_at == TCP_NONE)
		return;
	e->ctls.answered |= e->ctls.asked;
	e->ctls.asked = false;
	tcp_tx(e);
	if (tcp_live_is_cold(e))
		tcp_live_see(e, false);
}

static int tcp_cancel(struct gx_ep *ep, uint64_t user, const struct gx_route *route)
{
	struct tcp_ep *e = tcp_of(ep);
	int n = 0;

	for (uint32_t i = 0; i < e->ops_top; i++) {
		const struct tcp_op *op = &e->ops[i];

		if (!tcp_op_is_live(op) || op->internal || op->user != user || op->route != route)
			continue;
		if (!e->err) /* else it ends soon */
			tcp_abort_op(e, i, -ECANCELED);
		n++;
	}
	return n;
}

/* ---- control path ---- */

static struct gx_ep *tcp_ep_new(void)
{
	struct tcp_ep *e = gx_pages_get(sizeof(*e));

	return e ? &e->ep : NULL;
}

/* Pages that are not written stay unused: an idle endpoint weighs some 30 KiB. */
static void ep_init_tables(struct tcp_ep *e)
{
	for (uint32_t i = 0; i < TCP_MIDS; i++) {
		e->tx.mids[i] = i;
		e->tx.mid_op[i] = TCP_NONE;
	}
	e->tx.mid_head = TCP_MIDS;
	e->live_at = e->index = TCP_NONE;
	e->op_free = e->tx.act_head = e->match.wait_head = e->tx.fetch_head = e->rx.landed_head =
		TCP_NONE;
	e->timer.deadline_ns = UINT64_MAX;
}

static int tcp_ep_open(struct gx_ep *ep, struct gx_hello_lane *local)
{
	struct tcp_ep *e = tcp_of(ep);

	e->link = tcp_core(ep->core);
	e->sys = &tcp_sys_kernel;
	ep_init_tables(e);
	if (e->link->nr_eps == GX_PEERS_MAX)
		return gx_fail(-ENOSPC, "core %u has %u connections already", ep->core->index,
			       GX_PEERS_MAX);
	e->link->nr_eps++;
	e->counted = true;
	e->link->offload->open(e);
	local->port.fd = -1;
	return tcp_live_open(e->link);
}

/* A chunk is a power of two, so that a shift finds the number of one. */
static unsigned chunk_shift(uint32_t chunk_b)
{
	return 31 - (unsigned)__builtin_clz(chunk_b);
}

/* Keys of each socket. What a NIC would move it cannot encrypt. */
static int ep_seal(struct tcp_ep *e)
{
	const struct gx_conn *c = e->ep.conn;
	const struct gx_nic_opts *nic = c->gx->opts.nic;
	int ret = 0;

	if (tcp_conn_of(c)->bare || tcp_conn_of(c)->tx_bare || nic->rx || nic->tx)
		return gx_fail(
			-EOPNOTSUPP,
			"the connection has a key, and gx cannot encrypt what a NIC reads or "
			"writes itself: leave gx_nic_opts.rx and .tx of both ends at copy");
	for (unsigned i = 0; !ret && i < e->nr_socks; i++) {
		struct auth_dir dir = {AUTH_TCP, c->server, TCP_SOCKS_MAX * e->ep.lane + i};
		struct auth_secret tx, rx;

		ret = c->secret(c, &dir, &tx);
		dir.dir = !c->server;
		if (!ret)
			ret = c->secret(c, &dir, &rx);
		if (!ret)
			e->sock[i].seal = tcp_seal_new(&tx, &rx);
		if (!ret && !e->sock[i].seal)
			ret = gx_fail(-ENOMEM, "no memory for the keys of data sockets");
		explicit_bzero(&tx, sizeof(tx));
		explicit_bzero(&rx, sizeof(rx));
	}
	return ret;
}

/* The set-up has connected all sockets of the lane. */
static int tcp_ep_connect(struct gx_ep *ep, const struct gx_hello_lane *remote)
{
	struct tcp_ep *e = tcp_of(ep);
	const struct tcp_conn *t = tcp_conn_of(ep->conn);
	struct gx_socks *socks = ep->conn->socks;
	int ret;

	e->bare.tx = t->tx_bare;
	e->bare.tx_device = t->tx_device;
	e->chunk_shift = chunk_shift(ep->conn->agreed.chunk_b);
	e->window = ep->conn->agreed.window;
	for (unsigned i = 0; i < socks->nr_socks; i++) {
		int *fd = &socks->fd[ep->lane][i];

		if (*fd < 0)
			return gx_fail(-EPROTO, "data socket %u is missing", i);
		e->sock[i].fd = *fd;
		tcp_sys_tune(e->sock[i].fd, ep->conn->agreed.peer_timeout_ns);
		tcp_sys_limit(e->sock[i].fd, ep->conn->rights.lane_b / socks->nr_socks);
		*fd = -1;
		e->nr_socks++;
	}
	ret = ep->conn->secret ? ep_seal(e) : 0;
	return ret ? ret : e->link->offload->connect(e);
}

static void socks_close(struct tcp_ep *e)
{
	for (unsigned i = 0; i < e->nr_socks; i++)
		if (e->sock[i].feed)
			tcp_feed_close(e->link, &e->sock[i]);
		else
			gx_fd_close(e->sock[i].fd);
	for (unsigned i = 0; i < e->nr_socks; i++)
		tcp_seal_free(e->sock[i].seal);
	e->nr_socks = 0;
}

void link_tcp_release(struct gx_conn *c)
{
	for (unsigned i = 0; tcp_conn_of(c) && i < c->nr_lanes; i++)
		socks_close(tcp_of(c->ep[i]));
}

/* The core's own word, sock->leads, is not ours to read. A push of nothing does no harm. */
void link_tcp_push(struct gx_conn *c)
{
	for (unsigned i = 0; tcp_conn_of(c) && i < c->nr_lanes; i++) {
		const struct tcp_ep *e = tcp_of(c->ep[i]);

		if (e->nr_socks)
			e->sys->push(e->sock[0].fd);
	}
}

static void tcp_ep_free(struct gx_ep *ep)
{
	struct tcp_ep *e = tcp_of(ep);

	socks_close(e);
	if (e->link)
		e->link->offload->close(e);
	if (e->counted && !--e->link->nr_eps)
		tcp_live_close(e->link);
	gx_pages_put(e, sizeof(*e));
}

const struct gx_ep_ops gx_link_tcp_ops = {
	.room = {.ops = TCP_OPS - TCP_GETS, .recvs = TCP_SLOTS, .gets = TCP_GETS},
	.ep_new = tcp_ep_new,
	.ep_open = tcp_ep_open,
	.ep_connect = tcp_ep_connect,
	.ep_free = tcp_ep_free,
	.ep_attach = tcp_attach,
	.ep_fail = tcp_fail,
	.post = tcp_post,
	.join = tcp_view_join,
	.kick = tcp_kick,
	.cancel = tcp_cancel,
};

int link_tcp_open(struct gx_core *core, const struct tcp_offload *offload, size_t size)
{
	struct link_tcp *l = calloc(1, size);

	if (!l)
		return gx_fail(-ENOMEM, "no memory for link tcp of core %u", core->index);
	l->core = core;
	l->fd = -1;
	l->offload = offload;
	core->link[GX_LINK_TCP] = l;
	return 0;
}

void link_tcp_end(struct link_tcp *l)
{
	tcp_gpus_close(l);
	tcp_feeds_end(l);
}

void link_tcp_free(struct gx_core *core)
{
	free(tcp_core(core));
	core->link[GX_LINK_TCP] = NULL;
}
