/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages that come in over the tcp link.
 */
#ifndef GX_TCP_IN_H
#define GX_TCP_IN_H

#include "tcp/tcp.h"

/** tcp_in_data() - A DATA header came on @s: set @k, its sink. */
void tcp_in_data(struct tcp_ep *e, struct tcp_sock *s, struct tcp_sink *k,
		 const struct tcp_frame *f);
/** tcp_in_chunk() - All of the frame of @k came, and its trailer said @tail. */
void tcp_in_chunk(struct tcp_ep *e, const struct tcp_sink *k, enum tcp_tail tail);
void tcp_in_refuse(struct tcp_ep *e, struct tcp_in *m, int err);
void tcp_in_cancel(struct tcp_ep *e, const struct tcp_frame *f);
bool tcp_in_deliver(struct tcp_ep *e); /* completions that waited for room */
void tcp_in_acks(struct tcp_ep *e);    /* once a turn */
/** tcp_in_give_up() - Our RECV or GET has ended early: nothing more goes to its memory. */
void tcp_in_give_up(struct tcp_ep *e, uint32_t op);
/** tcp_in_copied() - A GPU has copied a fragment, or (@err) could not. */
void tcp_in_copied(struct tcp_ep *e, struct tcp_in *m, int err);

#endif
