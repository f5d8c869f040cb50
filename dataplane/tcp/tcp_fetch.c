/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload that leaves the memory of a GPU. Its copy engine brings chunk after chunk into pinned
 * buffers (copy/stage.h), and a socket takes a chunk when it is there. Until then its operation lies
 * in the list of those that fetch (tcp_tx.c), in the order of posting. A buffer is free again when
 * the kernel has all of its chunk. The buffers belong to all endpoints of a core. Each may hold a
 * share, and no more than are free: so peers that read slowly leave some to the others, however many
 * they are. While others want buffers, an endpoint whose sockets take nothing keeps those alone whose
 * chunks lie in queues. Runs on the polling core.
 */
#include "tcp/tcp_fetch.h"
#include "tcp/tcp_offload.h"
#include "list/view_gpu.h"

/* So long no socket took a byte, and within as long others wanted buffers. */
#define FETCH_STUCK_NS 20000000

static bool op_is_staged(const struct tcp_op *op)
{
	/* A receive and a get have no chunks to send. */
	return op->gpu && op->stage.next != op->stage.first;
}

/* @n more buffers of @t have chunks of @e; less: they are back. */
static void staged_add(struct tcp_ep *e, struct tcp_gpu *t, int n)
{
	e->tx.nr_staged += (uint32_t)n;
	e->tx.staged[t->device] += (uint16_t)n;
	t->nr_staged += (unsigned)n;
}

/* Leave as many free as @e holds. The first one is for whoever comes. So one that moves may want more
 * while some are free, and those that stand still give theirs back for it. */
static bool share_allows(const struct tcp_ep *e, struct tcp_gpu *t, unsigned share)
{
	unsigned own = e->tx.staged[t->device];

	if (own >= share)
		return false;
	if (!own || own < t->nr_stage - t->nr_staged)
		return true;
	if (!tcp_fetch_is_stuck(e))
		t->wanted_ns = e->now_ns;
	return false;
}

bool tcp_fetch_waits_gpu(struct tcp_ep *e, struct tcp_op *op)
{
	if (op->dev || (!op->view && e->link->offload->takes(e, op)))
		return false;
	return !stage_ready(op->gpu->stage, &op->stage, op->next_chunk);
}

const char *tcp_fetch_at(struct tcp_op *op, uint64_t chunk)
{
	return op->dev ? NULL : stage_ready(op->gpu->stage, &op->stage, chunk);
}

bool tcp_fetch_is_stuck(const struct tcp_ep *e)
{
	return e->now_ns - e->tx.sent_ns >= FETCH_STUCK_NS;
}

bool tcp_fetch_is_short(const struct tcp_ep *e, const struct tcp_gpu *t)
{
	return e->now_ns - t->wanted_ns < FETCH_STUCK_NS || stage_is_short(t->stage, e->now_ns);
}

uint32_t tcp_fetch_cut(struct tcp_ep *e, struct tcp_op *op)
{
	uint64_t before = op->stage.next;

	stage_cut(op->gpu->stage, &op->stage, op->next_chunk);
	staged_add(e, op->gpu, -(int)(before - op->stage.next));
	return (uint32_t)(before - op->stage.next);
}

static bool op_stage(struct tcp_ep *e, struct tcp_op *op)
{
	uint64_t off = op->stage.next << e->chunk_shift;
	uint32_t len = (uint32_t)GX_MIN(op->len - off, 1ull << e->chunk_shift);

	if (gx_unlikely(op->view))
		return view_stage(op->gpu->stage, &op->stage, tcp_view_at(e, op->view), off, len, 0,
				  e->now_ns);
	return stage_fetch(op->gpu->stage, &op->stage, op->at + off, len, 0, e->now_ns);
}

void tcp_fetch_ahead(struct tcp_ep *e, struct tcp_op *op)
{
	uint64_t limit = GX_MIN(op->nr_chunks, op->next_chunk + TCP_FETCH_MAX);
	unsigned share = op->gpu->stage_share;

	if (op->dev)
		return;
	limit = GX_MIN(limit, op->acked + e->window);
	if (tcp_fetch_is_stuck(e) && tcp_fetch_is_short(e, op->gpu))
		share = 1;
	while (op->stage.next < limit && share_allows(e, op->gpu, share)) {
		if (!op_stage(e, op))
			break;
		staged_add(e, op->gpu, 1);
	}
}

void tcp_fetch_sent(struct tcp_ep *e, struct tcp_op *op, uint64_t chunk)
{
	unsigned n;

	if (op->dev)
		return;
	assert(chunk >= op->stage.first && chunk < op->stage.next); /* once */
	op->sent |= 1ull << (chunk - op->stage.first);
	n = (unsigned)__builtin_ctzll(~op->sent); /* an endpoint's share is less than 64 */
	op->sent >>= n;
	stage_drop(op->gpu->stage, &op->stage, op->stage.first + n);
	staged_add(e, op->gpu, -(int)n);
}

void tcp_fetch_end(struct tcp_ep *e, struct tcp_op *op)
{
	if (!op_is_staged(op))
		return;
	staged_add(e, op->gpu, -(int)(op->stage.next - op->stage.first));
	stage_drop(op->gpu->stage, &op->stage, op->stage.next);
}
