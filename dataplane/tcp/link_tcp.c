/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp link: messages over TCP sockets of the kernel. It works everywhere, also over long
 * distances, and is the last resort. This file takes posts, and opens, connects and frees
 * endpoints. open, connect and free run on the control path, everything else on the polling core.
 */
#include "tcp/tcp.h"
#include "tcp/tcp_dev.h"
#include "tcp/tcp_zc.h"

#include "gx/log.h"
#include "gx_internal/fork.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- posting ---- */

static void op_fill(struct tcp_ep *e, struct tcp_op *op, const struct gx_op *user,
		    struct gx_route *route)
{
	bool names = user->kind == GX_OP_PUT || user->kind == GX_OP_GET;

	op->kind = (uint8_t)user->kind;
	op->flags = user->flags;
	if (user->kind == GX_OP_GET || user->kind == GX_OP_RECV)
		op->flags &= ~GX_OP_LOCAL;
	op->user = user->user;
	op->route = route;
	op->at = user->mem ? user->mem->addr + user->off : user->addr;
	op->mem = user->mem;
	op->gpu = user->len ? tcp_gpu_of(e->link, user->mem) : NULL;
	op->bare = user->kind == GX_OP_PUT && user->len && tcp_bare_region(e, user->token);
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
	e->gets_out++;
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
	uint32_t i;
	int ret;

	if (e->err)
		return -ENOTCONN;
	if (tcp_gpu_lacks(e->link, user->mem, user->len))
		return gx_fail(-ENOMEM,
			       "link tcp has no buffers for memory of cuda:%d: there was no room "
			       "for them when gx_gpu_open() or gx_mem_alloc() opened it",
			       user->mem->device);
	if (!core_post_room(ep->core) || tcp_ctl_room(e) <= TCP_CTLS_KEPT ||
	    e->nr_ops >= TCP_OPS - TCP_GETS || (user->kind == GX_OP_GET && e->gets_out == TCP_GETS))
		return -EAGAIN;
	i = tcp_op_alloc(e);
	if (i == TCP_NONE)
		return -EAGAIN;
	op_fill(e, &e->ops[i], user, route);
	ep->core->comps_due += tcp_op_comps(&e->ops[i]);
	if (user->deadline_ns)
		e->deadline_ns = GX_MIN(e->deadline_ns, user->deadline_ns);
	ret = op_start(e, i);
	if (ret) {
		ep->core->comps_due -= tcp_op_comps(&e->ops[i]);
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
	tcp_live_heat(e);
	e->answered |= e->asked;
	e->asked = false;
	tcp_tx(e);
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
			tcp_op_doom(e, i, -ECANCELED);
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
		e->mids[i] = i;
		e->mid_op[i] = TCP_NONE;
	}
	e->mid_head = TCP_MIDS;
	e->live_at = e->index = TCP_NONE;
	e->op_free = e->act_head = e->wait_head = e->fetch_head = e->landed_head = TCP_NONE;
	e->deadline_ns = UINT64_MAX;
}

/* Why payload cannot come bare, though the context has device memory. NULL: it can. */
static const char *bare_why_not(struct tcp_ep *e, struct tcp_dev *dev, unsigned nr)
{
	if (!nr)
		return "it has one data socket, and payload needs another one "
		       "(gx_connect_opts.sockets)";
	if (!tcp_dev_promise(dev, e->ep.conn->peer_name, nr))
		return "other connections have too many of the sockets that device memory is set "
		       "up for, or those of this host";
	e->nr_promised = nr;
	return NULL;
}

/* Ask the peer for bare payload where this context has device memory. */
static void ep_ask_bare(struct tcp_ep *e)
{
	struct gx_conn *c = e->ep.conn;
	struct tcp_dev *dev = tcp_dev_of(c->gx);
	const char *why;

	if (!dev)
		return;
	why = bare_why_not(e, dev, c->socks->nr_socks - 1);
	if (why)
		gx_warn("peer %s: what comes over link tcp is copied (gx_tcp_opts.rx copy): %s",
			c->peer_name, why);
	else
		gx_info("peer %s: payload over link tcp comes into memory of cuda:%d", c->peer_name,
			tcp_dev_device(dev));
	e->rx_bare = !why;
	e->rx_device = why ? 0 : (unsigned)tcp_dev_device(dev);
	tcp_conn_of(c)->bare = e->rx_bare;
	tcp_conn_of(c)->device = (uint8_t)e->rx_device;
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
	ep_ask_bare(e);
	local->port.fd = -1;
	return 0;
}

/* A chunk is a power of two, so that a shift finds the number of one. */
static unsigned chunk_shift(uint32_t chunk_b)
{
	return 31 - (unsigned)__builtin_clz(chunk_b);
}

/* Socket @i brings payload alone, into device memory. */
static int sock_bare(struct tcp_ep *e, unsigned i)
{
	struct tcp_feed *f;
	struct gx_conn *c = e->ep.conn;
	int ret =
		tcp_dev_feed(tcp_dev_of(c->gx), c->peer_name, e->ep.core->index, e->sock[i].fd, &f);

	if (ret)
		return ret;
	e->nr_promised--;
	e->sock[i].bare = true;
	tcp_feed_give(e, i, f);
	return 0;
}

/* The set-up has connected all sockets of the lane. */
static int tcp_ep_connect(struct gx_ep *ep, const struct gx_hello_lane *remote)
{
	struct tcp_ep *e = tcp_of(ep);
	const struct tcp_conn *t = tcp_conn_of(ep->conn);
	struct gx_socks *socks = ep->conn->socks;
	int ret;

	e->tx_bare = t->tx_bare;
	e->tx_device = t->tx_device;
	e->chunk_shift = chunk_shift(ep->conn->agreed.chunk_b);
	e->window = ep->conn->agreed.window;
	for (unsigned i = 0; i < socks->nr_socks; i++) {
		int *fd = &socks->fd[ep->lane][i];

		if (*fd < 0)
			return gx_fail(-EPROTO, "data socket %u is missing", i);
		e->sock[i].fd = *fd;
		tcp_sys_tune(e->sock[i].fd, ep->conn->agreed.peer_timeout_ns);
		*fd = -1;
		e->nr_socks++;
		if (e->nr_promised && i) {
			ret = sock_bare(e, i);
			if (ret)
				return ret;
		}
	}
	ret = tcp_zc_open(e);
	return ret ? ret : tcp_uring_give(e);
}

static void socks_close(struct tcp_ep *e)
{
	for (unsigned i = 0; i < e->nr_socks; i++)
		if (e->sock[i].feed)
			tcp_feed_close(e->link, &e->sock[i]);
		else
			gx_fd_close(e->sock[i].fd);
	e->nr_socks = 0;
}

void tcp_conn_release(struct gx_conn *c)
{
	for (unsigned i = 0; tcp_conn_of(c) && i < c->nr_lanes; i++)
		socks_close(tcp_of(c->ep[i]));
}

/* The core's own word, sock->leads, is not ours to read. A push of nothing does no harm. */
void tcp_conn_push(struct gx_conn *c)
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
	tcp_zc_close(e);
	if (e->nr_promised)
		tcp_dev_unpromise(tcp_dev_of(ep->conn->gx), ep->conn->peer_name, e->nr_promised);
	if (e->counted)
		e->link->nr_eps--;
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
	.kick = tcp_kick,
	.cancel = tcp_cancel,
};

int link_tcp_open(struct gx_core *core, struct link_tcp **out)
{
	struct link_tcp *l = calloc(1, sizeof(*l));
	int ret;

	if (!l)
		return gx_fail(-ENOMEM, "no memory for link tcp of core %u", core->index);
	l->core = core;
	l->zc_sys = &zc_sys_kernel;
	l->has_feeds = core->gx->opts.tcp->rx != GX_TCP_RX_COPY;
	ret = tcp_uring_want(l);
	if (ret)
		link_tcp_close(l);
	else
		*out = l;
	return ret;
}

void link_tcp_close(struct link_tcp *l)
{
	if (!l)
		return;
	tcp_gpus_close(l);
	tcp_feeds_end(l);
	tcp_uring_close(l);
	free(l);
}
