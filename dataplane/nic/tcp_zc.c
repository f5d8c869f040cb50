/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends of link tcp by a NIC that reads memory of a GPU: what goes so, and how; see tcp_zc.h. Runs on
 * the polling core; open, close and say on the control path.
 */
#include "nic/tcp_zc.h"
#include "nic/tcp_tx_dev.h"
#include "tcp/tcp_op.h"

#include "gx/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ZC_STARVED_NS 1000000000ull /* no room for one send, and none is out */

_Static_assert(TCP_ZC_DEPTH *TCP_SOCKS_MAX <= UINT16_MAX && TCP_OUTS * TCP_SOCKS_MAX <= UINT16_MAX,
	       "op->held and op->queued count them");

/* ---- control path ---- */

static int sock_open(struct tcp_ep *e, unsigned i)
{
	struct zc_cfg cfg = {
		.sys = nic_core_of(e->link)->zc_sys, .fd = e->sock[i].fd, .depth = TCP_ZC_DEPTH};
	struct tcp_zc_sock *z = &e->nic.zc->sock[i];
	int ret = zc_tx_open(&cfg, &z->tx);

	if (ret == -ENOMEM)
		return gx_fail(ret, "no memory for a data socket that sends without a copy");
	if (ret && e->ep.core->gx->opts.nic->tx == GX_NIC_TX_DEVMEM)
		return gx_fail(ret,
			       "gx_nic_opts.tx devmem: the kernel sends from no such socket "
			       "without a copy (%s): take auto, or copy",
			       strerror(-ret));
	return 0;
}

int tcp_zc_open(struct tcp_ep *e)
{
	int ret = 0;

	if (e->ep.core->gx->opts.nic->tx == GX_NIC_TX_COPY)
		return 0;
	e->nic.zc = calloc(1, sizeof(*e->nic.zc));
	if (!e->nic.zc)
		return gx_fail(-ENOMEM, "no memory for sockets that send without a copy");
	for (unsigned i = 0; !ret && i < e->nr_socks; i++)
		ret = sock_open(e, i);
	return ret;
}

void tcp_zc_close(struct tcp_ep *e)
{
	if (!e->nic.zc)
		return;
	for (unsigned i = 0; i < TCP_SOCKS_MAX; i++)
		zc_tx_close(e->nic.zc->sock[i].tx);
	free(e->nic.zc);
	e->nic.zc = NULL;
}

/* ---- sends ---- */

void tcp_zc_stats(struct tcp_ep *e, struct tcp_zc_sock *z)
{
	const struct zc_stat *now = &z->tx->stat;
	struct gx_stats *st = tcp_stats(e);

	gx_stat_add(st, GX_STAT_TCP_ZC_SENDS, now->sends - z->seen.sends);
	gx_stat_add(st, GX_STAT_TCP_ZC_BYTES, now->bytes - z->seen.bytes);
	z->seen = *now;
}

static void zc_list(struct tcp_ep *e)
{
	if (e->nic.zc->listed)
		return;
	e->nic.zc->listed = true;
	e->nic.zc->next = nic_core_of(e->link)->zc_eps;
	nic_core_of(e->link)->zc_eps = e;
}

void tcp_zc_unlist(struct tcp_ep *e)
{
	struct tcp_ep **at = &nic_core_of(e->link)->zc_eps;

	if (!e->nic.zc || !e->nic.zc->listed)
		return;
	while (*at != e)
		at = &(*at)->nic.zc->next;
	*at = e->nic.zc->next;
	e->nic.zc->listed = false;
}

/* ---- memory of GPUs that a NIC reads ---- */

static const struct tcp_tx_bind *bind_of(const struct tcp_op *op)
{
	return op->mem ? atomic_load_explicit(&op->mem->link[GX_LINK_TCP], memory_order_acquire)
		       : NULL;
}

/* All sockets take part, or none, because each may carry a chunk. */
static int device_ask(struct tcp_ep *e, const struct tcp_tx_bind *b)
{
	int ret = 0;

	for (unsigned i = 0; !ret && i < e->nr_socks; i++) {
		struct tcp_sock *s = &e->sock[i];

		if (!tcp_zc_of(e, s)->tx || s->tx_ended)
			return -EOPNOTSUPP;
		ret = zc_tx_ask(nic_core_of(e->link)->zc_sys, s->fd, b->id, b->len);
		if (ret == -EPROTO)
			tcp_sock_tx_fail(e, s, ret, "the kernel has sent a byte that is not there");
	}
	return ret;
}

bool tcp_zc_device(struct tcp_ep *e, struct tcp_op *op)
{
	const struct tcp_tx_bind *b = bind_of(op);
	int ret;

	if (!b || !e->nic.zc || op->len < TCP_ZC_MIN_B || op->state != TCP_OP_QUEUED ||
	    op->stage.next)
		return false;
	if (!e->nic.zc->dev_asked) {
		ret = device_ask(e, b);
		e->nic.zc->dev_asked = ret != -EAGAIN && ret != -ENOBUFS && ret != -ENOMEM;
		e->nic.zc->dev_ok = !ret;
		if (e->nic.zc->dev_asked)
			atomic_store_explicit(&e->nic.zc->dev_err, ret, memory_order_relaxed);
	}
	op->dev = e->nic.zc->dev_ok;
	return op->dev;
}

void tcp_zc_say(struct gx_ep *ep)
{
	struct tcp_zc *zc = tcp_of(ep)->nic.zc;
	int err = zc ? atomic_load_explicit(&zc->dev_err, memory_order_relaxed) : 0;

	if (!err || zc->dev_said)
		return;
	zc->dev_said = true;
	gx_warn("peer %s: payload of GPU memory goes over link tcp by host memory: %s",
		ep->conn->peer_name,
		err == -ENODEV	     ? "the connection leaves by another interface than "
				       "gx_nic_opts.tx_if"
		: err == -EOPNOTSUPP ? "its sockets do not send without a copy"
				     : strerror(-err));
}

static ssize_t device_post(const struct tcp_ep *e, const struct tcp_zc_sock *z,
			   const struct tcp_out *o, uint32_t off)
{
	const struct tcp_op *op = &e->ops[o->op];
	const struct tcp_tx_bind *b = bind_of(op);
	const char *at = op->at + (o->chunk << e->chunk_shift) + off;
	struct zc_piece piece = {.id = b->id,
				 .dmabuf_b = b->len,
				 .off = (uint64_t)(at - b->base),
				 .len = o->len - off};

	return zc_tx_device(z->tx, &piece, o->op);
}

/* ---- a post ---- */

/* The kernel takes no byte. It may have no room for the number of one send, and no send is out that
 * could make some. */
static ssize_t post_none(struct tcp_ep *e, struct tcp_sock *s, struct tcp_zc_sock *z)
{
	bool full = z->tx->last == -ENOBUFS || z->tx->last == -ENOMEM;

	if (!full || zc_tx_held(z->tx)) {
		z->starved_ns = 0;
		return -EAGAIN;
	}
	if (!z->starved_ns)
		z->starved_ns = e->now_ns;
	if (e->now_ns - z->starved_ns < ZC_STARVED_NS)
		return -EAGAIN;
	tcp_sock_tx_fail(e, s, -ENOBUFS,
			 "the kernel has no room for one send without a copy: raise "
			 "net.core.optmem_max, or take gx_nic_opts.tx copy");
	return -ENOBUFS;
}

ssize_t tcp_zc_post(struct tcp_ep *e, struct tcp_sock *s, uint64_t *want)
{
	struct tcp_zc_sock *z = tcp_zc_of(e, s);
	const struct tcp_out *o = &s->out[s->tail % TCP_OUTS];
	uint32_t off = s->pos - (o->bare ? 0 : TCP_HDR_B);
	ssize_t ret;

	*want = o->len - off;
	ret = device_post(e, z, o, off);
	if (ret < 0)
		tcp_sock_tx_fail(e, s, (int)ret, z->tx->why);
	if (ret < 0)
		return ret;
	if (!ret)
		return post_none(e, s, z);
	z->starved_ns = 0;
	e->ops[o->op].held++;
	e->nic.nr_out++;
	zc_list(e);
	tcp_zc_stats(e, z);
	return ret;
}

/* ---- early ends ---- */

void tcp_zc_keep(struct tcp_ep *e, uint32_t i)
{
	e->ops[i].late = true;
	if (!e->nic.zc->nr_late++)
		e->nic.zc->late_ns = e->link->core->now_ns;
}

void tcp_zc_end(struct tcp_ep *e)
{
	if (e->nic.zc)
		e->nic.zc->end_ns = e->link->core->now_ns;
}
