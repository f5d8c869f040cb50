/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload that leaves the memory of a GPU. Its copy engine brings chunk after chunk into pinned
 * buffers (copy/stage.h), and a socket takes a chunk when it is there. Until then its operation lies
 * in the list of those that fetch (tcp_tx.c), in the order of posting. A buffer is free again when
 * the kernel has all of its chunk. The buffers belong to all endpoints of a core, and each may hold
 * a share. While others want buffers, an endpoint whose sockets take nothing keeps those alone whose
 * chunks lie in queues. Runs on the polling core.
 */
#include "tcp/tcp.h"

#define FETCH_STUCK_NS 20000000 /* no socket took a byte, while others want buffers */

static bool op_is_staged(const struct tcp_op *op)
{
	/* A receive and a get have no chunks to send. */
	return op->gpu && op->stage.next != op->stage.first;
}

bool tcp_fetch_waits(struct tcp_op *op)
{
	return op->gpu && !stage_ready(op->gpu->stage, &op->stage, op->next_chunk);
}

const char *tcp_fetch_at(struct tcp_op *op, uint64_t chunk)
{
	return stage_ready(op->gpu->stage, &op->stage, chunk);
}

bool tcp_fetch_is_stuck(const struct tcp_ep *e)
{
	return e->now_ns - e->sent_ns >= FETCH_STUCK_NS;
}

uint32_t tcp_fetch_cut(struct tcp_ep *e, struct tcp_op *op)
{
	uint64_t before = op->stage.next;

	stage_cut(op->gpu->stage, &op->stage, op->next_chunk);
	e->nr_staged -= (uint32_t)(before - op->stage.next);
	return (uint32_t)(before - op->stage.next);
}

void tcp_fetch_ahead(struct tcp_ep *e, struct tcp_op *op)
{
	uint64_t limit = GX_MIN(op->nr_chunks, op->next_chunk + TCP_FETCH_MAX);
	uint64_t chunk_b = 1ull << e->chunk_shift;
	unsigned share = op->gpu->stage_share;

	limit = GX_MIN(limit, op->acked + e->window);
	if (tcp_fetch_is_stuck(e) && stage_is_short(op->gpu->stage, e->now_ns))
		share = 1;
	while (op->stage.next < limit && e->nr_staged < share) {
		uint64_t off = op->stage.next << e->chunk_shift;

		if (!stage_fetch(op->gpu->stage, &op->stage, op->at + off,
				 (uint32_t)GX_MIN(op->len - off, chunk_b), 0, e->now_ns))
			break;
		e->nr_staged++;
	}
}

void tcp_fetch_sent(struct tcp_ep *e, struct tcp_op *op, uint64_t chunk)
{
	unsigned n;

	op->sent |= 1ull << (chunk - op->stage.first);
	n = (unsigned)__builtin_ctzll(~op->sent); /* an endpoint's share is less than 64 */
	op->sent >>= n;
	stage_drop(op->gpu->stage, &op->stage, op->stage.first + n);
	e->nr_staged -= n;
}

void tcp_fetch_end(struct tcp_ep *e, struct tcp_op *op)
{
	if (!op_is_staged(op))
		return;
	e->nr_staged -= (uint32_t)(op->stage.next - op->stage.first);
	stage_drop(op->gpu->stage, &op->stage, op->stage.next);
}
