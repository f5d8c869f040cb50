/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts with views: bytes leave and come by a buffer of the link, of which this core gathers or scatters
 * what the kernel takes or gives. So a stream has the bytes of the view in order, and nothing else. The
 * peer's view is a map of the endpoint (list/map.h). Runs on the polling core.
 */
#include "tcp/tcp_view.h"
#include "list/list.h"

#include <errno.h>

/* Return: number of a place, from 1 on; 0: all are in use. */
static uint8_t view_get(struct tcp_ep *e, enum tcp_view_use use)
{
	uint32_t free = ~e->views.used[use];
	unsigned i;

	_Static_assert(TCP_VIEWS == 32, "a bit each");
	if (!free)
		return 0;
	i = (unsigned)__builtin_ctz(free);
	e->views.used[use] |= 1u << i;
	return (uint8_t)(i + 1);
}

static void view_put(struct tcp_ep *e, enum tcp_view_use use, uint8_t number)
{
	e->views.used[use] &= ~(1u << (number - 1));
}

int tcp_view_join(struct gx_ep *ep, const struct gx_op *op, const struct gx_link_seg segs[],
		  unsigned n, struct gx_route *route)
{
	struct tcp_ep *e = GX_CONTAINER_OF(ep, struct tcp_ep, ep);
	uint8_t number;
	int ret;

	if (!(op->flags & OP_VIEW))
		return 0;
	number = view_get(e, TCP_VIEW_TX);
	if (!number)
		return -EAGAIN;
	view_at_init(&e->views.at[TCP_VIEW_TX][number - 1], &op->list->views->local,
		     op->mem ? op->mem->addr + op->off : op->addr);
	e->views.next = number; /* the operation takes it */
	ret = ep->ops->post(ep, op, route);
	e->views.next = 0;
	if (ret)
		view_put(e, TCP_VIEW_TX, number);
	return ret ? ret : 1;
}

void tcp_view_free(struct tcp_ep *e, struct tcp_op *op)
{
	view_put(e, TCP_VIEW_TX, op->view);
	op->view = 0;
}

/* Would a NIC, or a GPU, place the bytes? */
static bool view_is_foreign(const struct tcp_ep *e, const struct gx_mem *mem)
{
	for (unsigned k = 0; k < e->nr_socks; k++)
		if (e->sock[k].feed || e->sock[k].bare)
			return true;
	return e->bare.rx || mem->kind != GX_MEM_HOST;
}

int tcp_view_open(struct tcp_ep *e, const struct tcp_frame *f, struct tcp_in *m)
{
	uint8_t number = view_get(e, TCP_VIEW_RX);
	struct gx_mem *mem;
	int ret;

	if (!number)
		return -EBUSY;
	ret = map_open(&e->ep, f->token, f->off, f->len, &e->views.at[TCP_VIEW_RX][number - 1],
		       &mem);
	if (ret >= 0 && view_is_foreign(e, mem)) {
		map_done(&e->ep, ret);
		ret = -EOPNOTSUPP;
	}
	if (ret < 0) {
		view_put(e, TCP_VIEW_RX, number);
		return ret;
	}
	e->views.map[number - 1] = ret;
	m->view = number;
	m->mem = mem;
	m->dst = mem->addr; /* counts bytes of the view from here */
	return 0;
}

void tcp_view_done(struct tcp_ep *e, struct tcp_in *m)
{
	map_done(&e->ep, e->views.map[m->view - 1]);
	view_put(e, TCP_VIEW_RX, m->view);
	m->view = 0;
}

void tcp_view_took(struct tcp_ep *e, const struct tcp_sink *k, const char *at, uint32_t n)
{
	view_scatter(&e->views.at[TCP_VIEW_RX][k->view - 1],
		     (uint64_t)(k->dst - e->in[k->place].dst), n, at);
}

uint32_t tcp_view_fetch(struct tcp_ep *e, const struct tcp_out *o, uint64_t from,
			const struct iovec *iov, unsigned n, char **at)
{
	char *room = e->link->view, *end = room + TCP_VIEW_B;
	uint32_t len;

	while (n--) { /* that of frames before it */
		char *base = iov[n].iov_base;

		if (base < e->link->view || base >= end)
			continue;
		room = base + iov[n].iov_len;
		break;
	}
	len = (uint32_t)GX_MIN(o->len - from, (uint64_t)(end - room));
	view_gather(&e->views.at[TCP_VIEW_TX][e->ops[o->op].view - 1],
		    (o->chunk << e->chunk_shift) + from, len, room);
	*at = room;
	return len;
}
