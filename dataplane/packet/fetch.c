/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload of a GPU that the port cannot read: which chunks of it an endpoint has in pinned buffers
 * (stage.c), and when it gives them back. tx.c and ask.c call this on the polling core.
 *
 * All endpoints of a core share one pool of buffers, and a chunk stays in a buffer until the peer
 * has acknowledged it. A peer that stands still acknowledges nothing, so its endpoint loses its
 * buffers, but only while another endpoint was refused one a moment ago. An endpoint loses all of
 * them when it has held some for FETCH_STUCK_NS and seen no chunk acknowledged. Then it holds
 * back until the peer acknowledges a chunk: it stages one chunk at a time, and gives its buffer back
 * when the chunk is sent. A chunk that was lost to others before it was sent is staged again later.
 * A packet that was sent, and that the network lost or the peer asks for, is staged for itself. One
 * buffer stays free for such packets: each needs it for a moment only, and its whole endpoint waits
 * for it.
 *
 * A chunk that the port refers to (op->refs) stays where it is.
 */
#include "packet/pkt.h"
#include "list/view_gpu.h"
#include "packet/fetch.h"

#include <assert.h>

#define FETCH_STUCK_NS 20000000 /* without an acknowledged chunk, while others want buffers */
#define FETCH_KEPT     1	/* buffers for packets that go again */

static struct stage *stage_of(const struct pkt_ep *e, const struct pkt_op *op)
{
	return e->link->stage[op->gpu->device];
}

bool fetch_is_broken(const struct pkt_ep *e, const struct pkt_op *op)
{
	return !pkt_in_place(e, op) && stage_err(stage_of(e, op));
}

static uint64_t nr_held(const struct pkt_op *op)
{
	return op->stage.next - op->stage.first;
}

/* Give back its buffers of chunks below @chunk. */
static void fetch_give(struct pkt_ep *e, struct pkt_op *op, uint64_t chunk)
{
	uint64_t held = nr_held(op);

	if (!held)
		return;
	stage_drop(stage_of(e, op), &op->stage, chunk);
	e->fetch.nr_staged -= held - nr_held(op);
}

void fetch_end(struct pkt_ep *e, struct pkt_op *op)
{
	fetch_give(e, op, op->stage.next);
}

void fetch_acked(struct pkt_ep *e, struct pkt_op *op)
{
	uint64_t chunk = op->acked.chunk;
	bool full = msg_win_full(&op->acked);

	msg_limit(&op->acked, &e->shape); /* moves acked.chunk */
	if (chunk == op->acked.chunk && !full)
		return;
	e->fetch.moved_ns = e->fetch.staged_ns = e->now_ns;
	e->fetch.holds_back = false;
	fetch_give(e, op, full ? op->stage.next : op->acked.chunk / e->shape.chunk_pkts);
}

/* ---- packets for the first time ---- */

static bool op_stage(struct pkt_ep *e, const struct pkt_op *op, struct stage_msg *m, uint64_t off,
		     uint64_t most, unsigned keep)
{
	uint32_t len = (uint32_t)GX_MIN(most, op->len - off);

	if (gx_unlikely(op->pieces))
		return view_stage(stage_of(e, op), m, &op->pieces->view, off, len, keep, e->now_ns);
	return stage_fetch(stage_of(e, op), m, op->src + off, len, keep, e->now_ns);
}

void fetch_ahead(struct pkt_ep *e, struct pkt_op *op)
{
	uint64_t chunk_b = (uint64_t)e->shape.chunk_pkts * e->shape.quantum;
	uint64_t limit = msg_limit(&op->acked, &e->shape);

	if (pkt_in_place(e, op))
		return;
	while (op->stage.next * e->shape.chunk_pkts < limit &&
	       !(e->fetch.holds_back && e->fetch.nr_staged)) {
		if (!op_stage(e, op, &op->stage, op->stage.next * chunk_b, chunk_b, FETCH_KEPT))
			break;
		if (!e->fetch.nr_staged++)
			e->fetch.staged_ns = e->now_ns;
	}
}

static bool port_gathers(const struct pkt_ep *e)
{
	return e->guards && e->integrity == GX_INTEGRITY_NONE;
}

static void copy_pieces(const struct gx_tx_guard *g, void *dst, const void *src, uint32_t len)
{
	const struct pkt_gather *gather = GX_CONTAINER_OF(g, struct pkt_gather, guard);

	pieces_read(gather->pieces, gather->off, len, dst);
}

__attribute__((noinline)) const char *fetch_gather(struct pkt_ep *e, struct pkt_op *op,
						   uint64_t pkt, struct gx_tx *tx)
{
	struct link_pkt *l = e->link;
	uint64_t off = pkt * e->shape.quantum;
	uint32_t len = (uint32_t)GX_MIN(op->len - off, e->shape.quantum);
	char *to = l->gather + l->gather_b;

	assert(pkt_in_place(e, op));
	if (port_gathers(e)) {
		struct pkt_gather *gather = &l->gathers[tx - l->tx];

		*gather = (struct pkt_gather){{copy_pieces}, op->pieces, off};
		tx->guard = &gather->guard;
		l->guarded = true;
		return to;
	}
	if (len > PKT_GATHER_B - l->gather_b)
		return NULL;
	l->gather_b += (uint32_t)GX_ALIGN_UP(len, GX_CACHE_LINE);
	pieces_read(op->pieces, off, len, to);
	return to;
}

const char *fetch_payload(struct pkt_ep *e, struct pkt_op *op, uint64_t pkt, struct gx_tx *tx)
{
	uint64_t chunk;
	const char *p;

	if (pkt_in_place(e, op))
		return gx_unlikely(op->pieces) ? fetch_gather(e, op, pkt, tx)
					       : op->src + pkt * e->shape.quantum;
	chunk = pkt / e->shape.chunk_pkts; /* only for GPU payload */
	p = stage_ready(stage_of(e, op), &op->stage, chunk);
	return p ? p + (pkt - chunk * e->shape.chunk_pkts) * e->shape.quantum : NULL;
}

/* ---- packets that go again ---- */

static bool again_held(const struct pkt_again *g)
{
	return g->stage.first != g->stage.next;
}

static bool again_has(const struct pkt_again *g, uint32_t mid, uint64_t pkt)
{
	return again_held(g) && g->mid == mid && pkt >= g->from && pkt < g->to;
}

static void again_drop(struct pkt_ep *e, struct pkt_again *g)
{
	if (again_held(g))
		stage_drop(e->link->stage[g->gpu], &g->stage, g->stage.next);
}

const char *fetch_again(struct pkt_ep *e, struct pkt_again *g, const struct pkt_op *op,
			uint32_t pkt, uint32_t end)
{
	uint64_t off = (uint64_t)pkt * e->shape.quantum;
	uint32_t n = GX_MIN(end - pkt, e->shape.chunk_pkts);
	const char *p;

	if (!again_has(g, op->mid, pkt)) {
		if (g->in_tx)
			return NULL;
		again_drop(e, g);
		if (!op_stage(e, op, &g->stage, off, (uint64_t)n * e->shape.quantum, 0))
			return NULL;
		g->gpu = op->gpu->device;
		g->mid = op->mid;
		g->from = pkt;
		g->to = pkt + n;
		g->since_ns = e->now_ns;
	}
	p = stage_ready(stage_of(e, op), &g->stage, g->stage.first);
	if (!p)
		return NULL;
	g->in_tx = true;
	return p + (uint64_t)(pkt - g->from) * e->shape.quantum;
}

/* End of the run of successive packets that begins at the first lost packet of the ring. */
static uint32_t lost_end(const struct pkt_ep *e)
{
	uint32_t at = e->tx.resend_tail;
	uint32_t mid = e->tx.resend[at & e->tx.resend_mask].mid;
	uint32_t end = e->tx.resend[at & e->tx.resend_mask].pkt;

	for (uint32_t n = 0; n < e->shape.chunk_pkts && at != e->tx.resend_head; n++, at++, end++)
		if (e->tx.resend[at & e->tx.resend_mask].mid != mid ||
		    e->tx.resend[at & e->tx.resend_mask].pkt != end)
			break;
	return end;
}

const char *fetch_lost(struct pkt_ep *e, struct pkt_op *op, uint64_t pkt, struct gx_tx *tx,
		       bool *copy)
{
	uint64_t chunk;

	*copy = false;
	if (pkt_in_place(e, op))
		return gx_unlikely(op->pieces) ? fetch_gather(e, op, pkt, tx)
					       : op->src + pkt * e->shape.quantum;
	chunk = pkt / e->shape.chunk_pkts;
	*copy = chunk < op->stage.first || chunk >= op->stage.next;
	if (!*copy)
		return fetch_payload(e, op, pkt, tx);
	return fetch_again(e, &e->fetch.lost, op, pkt,
			   again_has(&e->fetch.lost, op->mid, pkt) ? e->fetch.lost.to
								   : lost_end(e));
}

/* The port has copied the packets of @g that it got. Keep the buffer if the next packet lies in it.
 */
static void again_settle(struct pkt_ep *e, struct pkt_again *g, bool more, uint32_t mid,
			 uint32_t pkt)
{
	g->in_tx = false;
	if (!more || !again_has(g, mid, pkt))
		again_drop(e, g);
}

void fetch_sent(struct pkt_ep *e)
{
	const struct pkt_ask *a = &e->ask[e->asks.tail % PKT_ASK_MAX];
	uint32_t at = e->tx.resend_tail & e->tx.resend_mask;

	if (again_held(&e->fetch.asked))
		again_settle(e, &e->fetch.asked, e->asks.head != e->asks.tail, a->mid, a->pkt);
	if (again_held(&e->fetch.lost))
		again_settle(e, &e->fetch.lost, e->tx.resend_head != e->tx.resend_tail,
			     e->tx.resend[at].mid, e->tx.resend[at].pkt);
}

void fetch_close(struct pkt_ep *e)
{
	again_drop(e, &e->fetch.asked);
	again_drop(e, &e->fetch.lost);
}

/* ---- taking back ---- */

/* Bits of the GPUs whose buffers were all in use when an endpoint wanted one, a moment ago. */
static uint32_t gpus_short(const struct link_pkt *l, uint64_t now_ns)
{
	uint32_t gpus = 0;

	for (unsigned i = 0; i < l->nr_gpus; i++)
		if (l->stage[i] && stage_is_short(l->stage[i], now_ns))
			gpus |= 1u << i;
	return gpus;
}

static void again_take(struct pkt_ep *e, struct pkt_again *g, uint32_t gpus)
{
	if (again_held(g) && gpus >> g->gpu & 1 && e->now_ns - g->since_ns >= FETCH_STUCK_NS)
		again_drop(e, g);
}

/* Chunks of which every packet was sent. */
static uint64_t nr_sent(const struct pkt_ep *e, const struct pkt_op *op)
{
	bool all = op->sent_pkts == op->acked.nr_pkts;

	return (op->sent_pkts + (all ? e->shape.chunk_pkts - 1 : 0)) / e->shape.chunk_pkts;
}

/* Take buffers back. @all: also those of chunks that were not sent yet; otherwise those of sent
 * chunks alone. An endpoint that holds back does not keep these, nor does one where nothing is
 * lost. */
static void op_take(struct pkt_ep *e, struct pkt_op *op, bool all)
{
	struct stage *st = stage_of(e, op);
	/* Of a message that ends, or begins again, the quantum may have been another one. */
	uint64_t held = nr_held(op), sent = op_may_send(op) ? nr_sent(e, op) : op->stage.next;

	if (all) /* the port may refer to sent packets of the next chunk, too */
		stage_cut(st, &op->stage, op->refs ? sent + 1 : sent);
	if (!op->refs)
		stage_drop(st, &op->stage, sent);
	e->fetch.nr_staged -= held - nr_held(op);
	gx_stat_add(&e->link->core->loop.stats, GX_STAT_STAGE_TAKEN, held - nr_held(op));
}

void fetch_tick(struct pkt_ep *e)
{
	uint32_t gpus = gpus_short(e->link, e->now_ns);
	bool stuck = e->now_ns - e->fetch.staged_ns >= FETCH_STUCK_NS;

	if (gx_likely(!gpus))
		return;
	again_take(e, &e->fetch.asked, gpus);
	again_take(e, &e->fetch.lost, gpus);
	e->fetch.holds_back |= e->now_ns - e->fetch.moved_ns >= FETCH_STUCK_NS;
	if (!e->fetch.nr_staged || !(stuck || e->fetch.holds_back || e->lossless))
		return;
	for (uint32_t i = 0; i < e->tx.ops_top; i++)
		if (e->ops[i].state != OP_FREE && nr_held(&e->ops[i]) &&
		    gpus >> e->ops[i].gpu->device & 1)
			op_take(e, &e->ops[i], stuck);
}
