/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends and receives that meet, gets of the peer, and operations that end early (tcp_abort.c).
 */
#ifndef GX_TCP_MATCH_H
#define GX_TCP_MATCH_H

#include "tcp/tcp.h"

void tcp_match_recv(struct tcp_ep *e, uint32_t i, uint32_t slot);
void tcp_match_send(struct tcp_ep *e, uint32_t i);
/** tcp_match_unbind() - A send ends before a byte of it left: its offer is there again. */
void tcp_match_unbind(struct tcp_ep *e, uint32_t i);
void tcp_match_offer(struct tcp_ep *e, const struct tcp_frame *f);
void tcp_match_revoke(struct tcp_ep *e, uint64_t token);
void tcp_match_get(struct tcp_ep *e, const struct tcp_frame *f); /* the peer asks */
void tcp_match_lease(struct tcp_ep *e,
		     const struct tcp_op *op); /* it is done: the peer gets a word */
bool tcp_match_serve(struct tcp_ep *e);

/* -- tcp_abort.c -- */

void tcp_abort_op(struct tcp_ep *e, uint32_t i, int err);
/** tcp_abort_let_go() - The same, where our side is the cause. If it was to serve a get, the peer hears
 * @peer_err. */
void tcp_abort_let_go(struct tcp_ep *e, uint32_t i, int err, int peer_err);

#endif
