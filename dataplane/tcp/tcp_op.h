/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of the tcp link, their lists and slots, and the queue of frames without payload.
 */
#ifndef GX_TCP_OP_H
#define GX_TCP_OP_H

#include "tcp/tcp.h"

void tcp_fault(struct tcp_ep *e, int err); /* the control thread will end the connection */
/* @s is lost: nothing more is read or sent there. -EPROTO: the peer lies; so for all sockets. */
void tcp_sock_end(struct tcp_ep *e, struct tcp_sock *s, int err);
/* @s is lost because this end cannot receive any more; @why: static text. */
void tcp_sock_fail(struct tcp_ep *e, struct tcp_sock *s, int err, const char *why);
/* The same for sending. */
static inline void tcp_sock_tx_fail(struct tcp_ep *e, struct tcp_sock *s, int err, const char *why)
{
	s->tx_ended = true;
	if (e->end.err)
		return;
	e->end.err = err;
	e->end.why = why;
	e->end.tx = true;
	e->end.ns = e->now_ns;
}
/* A send failed. What the peer has sent before is still read, until the fault that follows. */
void tcp_sock_tx_end(struct tcp_ep *e, struct tcp_sock *s, int err);
void tcp_ctl_put(struct tcp_ep *e, const struct tcp_frame *f); /* full: a fault */
void tcp_list_push(struct tcp_ep *e, uint32_t *head, uint32_t *tail, uint32_t i);
void tcp_list_remove(struct tcp_ep *e, uint32_t *head, uint32_t *tail, uint32_t i);
/* It has chunks to send. If the next one is not staged, it waits for that. */
void tcp_act_push(struct tcp_ep *e, uint32_t i);
void tcp_op_fetch_unlist(struct tcp_ep *e, uint32_t i); /* it waits for none any more */
/** tcp_act_again() - The chunks that were staged for it are not there any more. */
void tcp_act_again(struct tcp_ep *e, uint32_t i);
/* The core's gauge of messages is a sum over its endpoints. Each adds the change of its own part. */
void tcp_tell_gauge(struct tcp_ep *e);
void tcp_op_unlist(struct tcp_ep *e, uint32_t i);
uint32_t tcp_op_alloc(struct tcp_ep *e); /* TCP_NONE: none is free */
void tcp_op_free(struct tcp_ep *e, uint32_t i);
void tcp_op_complete(struct tcp_ep *e, uint32_t i, int status, uint64_t len);
void tcp_op_finish(struct tcp_ep *e, uint32_t i, int status, uint64_t len); /* and free it */
void tcp_op_pad(struct tcp_ep *e, uint32_t i); /* its queued frames are void from now on */
uint32_t tcp_slot_alloc(struct tcp_ep *e, uint32_t op);
uint64_t tcp_slot_token(const struct tcp_ep *e, uint32_t slot);
struct tcp_slot *tcp_slot_find(struct tcp_ep *e, uint64_t token); /* NULL: stale */
void tcp_slot_free(struct tcp_ep *e, uint32_t slot);

#endif
