/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_view.c: puts and gets with views. On the core. Private to dataplane/.
 */
#ifndef GX_TCP_VIEW_H
#define GX_TCP_VIEW_H

#include "tcp/tcp.h"

/* join() of a put or get whose memory is a view. Return: 1, -EAGAIN, -errno. */
int tcp_view_join(struct gx_ep *ep, const struct gx_op *op, const struct gx_link_seg segs[],
		  unsigned n, struct gx_route *route);
/* The first DATA frame of a message names a map. Return: 0, or why it is refused. */
int tcp_view_open(struct tcp_ep *e, const struct tcp_frame *f, struct tcp_in *m);
void tcp_view_put(struct tcp_ep *e, uint8_t number); /* none of its bytes moves any more */
/* @n bytes of the payload under way lie at @at. */
void tcp_view_took(struct tcp_ep *e, const struct tcp_sink *k, const char *at, uint32_t n);
/* Payload of @o from its byte @from on, behind the @n buffers of @iov. Return: its bytes; 0: no room. */
uint64_t tcp_view_fetch(struct tcp_ep *e, const struct tcp_out *o, uint64_t from, struct iovec *iov,
			unsigned *n);

#endif
