/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload out of memory of GPUs.
 */
#ifndef GX_TCP_FETCH_H
#define GX_TCP_FETCH_H

#include "tcp/tcp.h"

/** tcp_fetch_waits() - Is the next chunk of @op not in host memory? */
bool tcp_fetch_waits_gpu(struct tcp_ep *e, struct tcp_op *op);
static inline bool tcp_fetch_waits(struct tcp_ep *e, struct tcp_op *op)
{
	return op->gpu && tcp_fetch_waits_gpu(e, op);
}
const char *tcp_fetch_at(struct tcp_op *op, uint64_t chunk); /* a chunk that is there */
void tcp_fetch_ahead(struct tcp_ep *e, struct tcp_op *op);   /* begin to stage its next chunks */
/** tcp_fetch_sent() - The kernel has all of @chunk. */
void tcp_fetch_sent(struct tcp_ep *e, struct tcp_op *op, uint64_t chunk);
void tcp_fetch_end(struct tcp_ep *e, struct tcp_op *op); /* it sends no more */
/** tcp_fetch_is_stuck() - Has no socket taken a byte for a while? */
bool tcp_fetch_is_stuck(const struct tcp_ep *e);
/** tcp_fetch_is_short() - Do others want buffers of this GPU, or did they just now? */
bool tcp_fetch_is_short(const struct tcp_ep *e, const struct tcp_gpu *t);
/** tcp_fetch_cut() - Give back the buffers of chunks that lie in no queue. Return: how many. */
uint32_t tcp_fetch_cut(struct tcp_ep *e, struct tcp_op *op);

#endif
