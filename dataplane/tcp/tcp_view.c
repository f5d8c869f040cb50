/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts and gets with views: bytes leave and come by buffers of the link, into which this core gathers what
 * the kernel takes, and out of which it scatters what that gives; into memory of a GPU they come by its
 * ring, and its kernel gathers what leaves (tcp_fetch.c). So a stream has the
 * bytes of the view in order, and nothing else. The view of the peer is a map of the endpoint (list/map.h).
 * Runs on the polling core.
 */
#include "tcp/tcp_view.h"
#include "list/list.h"

#include <errno.h>

void tcp_view_put(struct tcp_ep *e, uint8_t number)
{
	if (e->link->gather.of == tcp_view_at(e, number))
		e->link->gather.of = NULL;
	pieces_put(&e->ep, &e->pieces, pieces_of(&e->pieces, number));
}

/* Would a NIC place the bytes, or a descriptor each of too few? As over packets. */
static bool view_is_foreign(const struct tcp_ep *e, const struct view *v, const struct gx_mem *mem)
{
	for (unsigned k = 0; k < e->nr_socks; k++)
		if (e->sock[k].feed || e->sock[k].bare)
			return true;
	return e->bare.rx || (mem && mem->kind != GX_MEM_HOST && !view_is_run(v) &&
			      v->run_b * (GX_WIRE_SEGS - 2) < e->ep.conn->agreed.quantum);
}

int tcp_view_join(struct gx_ep *ep, const struct gx_op *op, const struct gx_link_seg segs[],
		  unsigned n, struct gx_route *route)
{
	struct tcp_ep *e = GX_CONTAINER_OF(ep, struct tcp_ep, ep);
	int number, ret;

	if (!(op->flags & OP_VIEW))
		return 0;
	if (op->kind == GX_OP_GET && view_is_foreign(e, &op->list->views->local, op->mem))
		return -EOPNOTSUPP;
	number = pieces_view(&e->pieces, op);
	if (number < 0)
		return number;
	e->view_next = (uint8_t)number; /* the operation takes it */
	ret = ep->ops->post(ep, op, route);
	e->view_next = 0;
	if (ret)
		tcp_view_put(e, (uint8_t)number);
	return ret ? ret : 1;
}

int tcp_view_open(struct tcp_ep *e, const struct tcp_frame *f, struct tcp_in *m)
{
	struct gx_mem *mem;
	int ret = pieces_map(&e->ep, &e->pieces, GX_ACCESS_PUT, f->token, f->off, f->len, &mem);

	if (ret < 0)
		return ret;
	m->view = (uint8_t)ret; /* in_settle() gives it back */
	m->mem = mem;
	m->dst = mem->addr; /* counts bytes of the view from here */
	m->gpu = tcp_gpu_of(e->link, mem);
	if (tcp_gpu_lacks(e->link, mem, f->len))
		return -EIO;
	return view_is_foreign(e, &tcp_view_at(e, m->view)->v, mem) ? -EOPNOTSUPP : 0;
}

void tcp_view_took(struct tcp_ep *e, const struct tcp_sink *k, const char *at, uint32_t n)
{
	view_scatter(tcp_view_at(e, k->view), (uint64_t)(k->dst - e->in[k->place].dst), n, at);
}

uint64_t tcp_view_fetch(struct tcp_ep *e, const struct tcp_out *o, uint64_t from, struct iovec *iov,
			unsigned *n)
{
	struct view_at *v = tcp_view_at(e, e->ops[o->op].view);
	uint64_t off = (o->chunk << e->chunk_shift) + from;
	struct tcp_gather *g = &e->link->gather;

	for (unsigned i = 0; i < *n; i++) /* that of a frame before it */
		if ((uintptr_t)iov[i].iov_base - (uintptr_t)g->b < TCP_VIEW_B)
			return 0;
	if (g->of != v || off < g->off || off >= g->end) {
		g->of = v;
		g->off = off;
		g->end = off + GX_MIN(o->len - from, (uint64_t)TCP_VIEW_B);
		view_gather(v, off, g->end - off, g->b);
	}
	iov[(*n)++] = (struct iovec){g->b + (off - g->off), g->end - off};
	return g->end - off;
}
