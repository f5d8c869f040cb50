/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The packet link: messages over any port. This file has its life cycle, the operations' life, and
 * timers; rx.c and tx.c are the two halves of a turn. open, connect and free run on the control
 * path, everything else on the polling core.
 */
#include "packet/pkt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PKT_ASK_MAX_NS	64000000 /* between probes of who waits for done */
#define PKT_PROVE_NS	20000000 /* a padded probe is sent again after this */
#define PKT_PROVE_TRIES 4	 /* before a smaller quantum is tried */
#define PKT_LARGE_B	512 /* a packet above this may be too large for a path that carries others */
#define PKT_LARGE_LOST	8   /* large packets lost in a row: is it their size? */
#define PKT_SKIP_MAX	(1u << 30) /* psns that may be left out at the start */
#define PKT_WINDOW	4096 /* packets outstanding of an ep */

static struct pkt_ep *pkt_of(struct gx_ep *ep)
{
	return GX_CONTAINER_OF(ep, struct pkt_ep, ep);
}

static struct gx_stats *stats(const struct pkt_ep *e)
{
	return &e->ep.core->loop.stats;
}

/* ---- lists of operations ---- */

void list_push(struct pkt_ep *e, uint32_t *head, uint32_t *tail, uint32_t i)
{
	e->ops[i].next = PKT_NONE;
	if (*head == PKT_NONE)
		*head = i;
	else
		e->ops[*tail].next = i;
	*tail = i;
}

void list_remove(struct pkt_ep *e, uint32_t *head, uint32_t *tail, uint32_t i)
{
	uint32_t before = PKT_NONE;

	for (uint32_t k = *head; k != i; k = e->ops[k].next) {
		if (k == PKT_NONE)
			return;
		before = k;
	}
	if (before == PKT_NONE)
		*head = e->ops[i].next;
	else
		e->ops[before].next = e->ops[i].next;
	if (*tail == i)
		*tail = before;
}

/* ---- the life of an operation ---- */

uint32_t op_alloc(struct pkt_ep *e)
{
	uint32_t i = e->op_free;

	if (i != PKT_NONE)
		e->op_free = e->ops[i].next;
	else if (e->ops_top < PKT_OPS)
		i = e->ops_top++;
	else
		return PKT_NONE;
	e->nr_ops++;
	memset(&e->ops[i], 0, offsetof(struct pkt_op, stage));
	e->ops[i].slot = e->ops[i].words = e->ops[i].next = PKT_NONE;
	return i;
}

void op_free(struct pkt_ep *e, uint32_t i)
{
	e->ops[i].state = OP_FREE;
	e->ops[i].next = e->op_free;
	e->op_free = i;
	e->nr_ops--;
}

static unsigned op_comps(const struct pkt_op *op)
{
	return op->internal ? 0 : 1 + !!(op->flags & GX_OP_LOCAL);
}

void op_complete(struct pkt_ep *e, uint32_t i, int status, uint64_t len)
{
	struct pkt_op *op = &e->ops[i];
	struct gx_core *core = e->ep.core;
	struct gx_comp comp = {.kind = GX_COMP_DONE,
			       .op = op->kind,
			       .status = status,
			       .ep = &e->ep,
			       .user = op->user,
			       .len = len,
			       .tag = op->tag};

	if (op->reported)
		return;
	op->reported = true;
	core->comps_due -= op_comps(op);
	if (op->internal)
		return;
	if (op->flags & GX_OP_LOCAL && !op->acked_local) {
		op->acked_local = true;
		comp.kind = GX_COMP_LOCAL;
		core_comp(core, &comp, op->route);
		comp.kind = GX_COMP_DONE;
	}
	if (status)
		gx_stat_add(stats(e), GX_STAT_MSGS_FAILED, 1);
	if (status || !(op->flags & GX_OP_SILENT))
		core_comp(core, &comp, op->route);
}

/* Give back what it holds of the ep's; its mid, if any, is the caller's business. */
static void op_drop(struct pkt_ep *e, struct pkt_op *op)
{
	if (op->words != PKT_NONE) {
		if (!msg_win_full(&op->acked))
			msg_win_clear_rest(&op->acked);
		e->tx_words_free |= 1ull << op->words;
		op->words = PKT_NONE;
	}
	fetch_end(e, op);
	if (op->kind == GX_OP_GET && !op->internal)
		e->gets_out--;
}

void op_finish(struct pkt_ep *e, uint32_t i, int status, uint64_t len)
{
	struct pkt_op *op = &e->ops[i];

	if (op->refs) { /* tx_unref() comes back to it */
		op->status = status;
		op->len = status ? op->len : len;
		op->state = OP_ENDED;
		op->done = true;
		return;
	}
	op_complete(e, i, status, len);
	op_drop(e, op);
	op_free(e, i);
}

void op_local(struct pkt_ep *e, uint32_t i)
{
	struct pkt_op *op = &e->ops[i];
	struct gx_comp comp = {.kind = GX_COMP_LOCAL,
			       .op = op->kind,
			       .ep = &e->ep,
			       .user = op->user,
			       .len = op->len,
			       .tag = op->tag};

	if (op->acked_local || op->refs || op->reported || op->late || !(op->flags & GX_OP_LOCAL))
		return;
	op->acked_local = true;
	core_comp(e->ep.core, &comp, op->route);
}

/* An OPEN that is to be sent, or sent again, must not read the buffer any more: it goes back to the
 * user. */
static void op_neutralise(struct pkt_ep *e, const struct pkt_op *op)
{
	struct rec_slot *s = &e->recs[op->open_rsn % PKT_RECS];

	if (!op->inlined || s->state == REC_FREE || s->rec.rsn != op->open_rsn)
		return;
	s->rec.flags &= ~GX_REC_INLINE;
	s->rec.data = NULL;
}

void op_done(struct pkt_ep *e, uint32_t i)
{
	struct pkt_op *op = &e->ops[i];

	e->out[op->mid % GX_WIRE_MIDS].op = PKT_NONE;
	if (op->state == OP_SENDING)
		list_remove(e, &e->act_head, &e->act_tail, i);
	else if (op->again)
		list_remove(e, &e->wait_head, &e->wait_tail, i);
	op->again = false;
	op_neutralise(e, op);
	op_finish(e, i, op->status, op->status ? 0 : op->len);
}

void tx_unref(struct link_pkt *l, uint32_t cookie)
{
	struct pkt_ep *e = l->eps[cookie >> 10];
	uint32_t i = cookie & (PKT_OPS - 1);
	struct pkt_op *op = &e->ops[i];

	op->refs--;
	e->refs--;
	l->refs--;
	if (op->refs)
		return;
	if (op->done)
		op_finish(e, i, op->status, op->len);
	else if (op->doomed && op->status)
		op_complete(e, i, op->status, 0);
	else if (op->state == OP_SENT && msg_win_full(&op->acked))
		op_local(e, i);
}

static void op_cancel_rec(struct pkt_ep *e, struct pkt_op *op)
{
	struct gx_wire_rec rec = {.type = GX_REC_CANCEL, .mid = op->mid, .slot = op->sent_pkts};

	op->cancel_due = !tx_rec(e, &rec, PKT_NONE);
	e->cancels_due |= op->cancel_due;
}

void op_doom(struct pkt_ep *e, uint32_t i, int err)
{
	struct pkt_op *op = &e->ops[i];

	if (op->doomed || op->done)
		return;
	op->status = err;
	switch (op->state) {
	case OP_QUEUED:
		list_remove(e, &e->wait_head, &e->wait_tail, i);
		if (op->again) { /* its message is still the peer's business */
			op->again = false;
			break;
		}
		list_remove(e, &e->send_head, &e->send_tail, i);
		match_unbind(e, i);
		op_finish(e, i, err, 0);
		return;
	case OP_SENDING:
		list_remove(e, &e->act_head, &e->act_tail, i);
		break;
	case OP_POSTED:
		op->doomed = true;
		rx_give_up(e, i);
		return;
	}
	op->state = OP_SENT;
	op->doomed = true;
	op_neutralise(e, op);
	op_cancel_rec(e, op);
	if (!op->refs)
		op_complete(e, i, err, 0);
}

/* ---- slots: what the peer may put into ---- */

uint32_t slot_alloc(struct pkt_ep *e, uint32_t op)
{
	for (uint32_t k = 0; k < PKT_SLOTS; k++) {
		uint32_t i = (e->slot_rover + k) % PKT_SLOTS;

		if (e->slots[i].used)
			continue;
		e->slot_rover = i + 1;
		e->slots[i].used = true;
		e->slots[i].bound = false;
		e->slots[i].gen++;
		e->slots[i].op = op;
		e->ops[op].slot = i;
		return i;
	}
	return PKT_NONE;
}

uint64_t slot_token(const struct pkt_ep *e, uint32_t slot)
{
	return PKT_SLOT_BIT | (uint64_t)(e->slots[slot].gen & 0x7fffffff) << 32 | slot;
}

struct pkt_slot *slot_find(struct pkt_ep *e, uint64_t token)
{
	uint32_t i = token & 0xffffffff;

	if (!(token & PKT_SLOT_BIT) || i >= PKT_SLOTS || !e->slots[i].used ||
	    slot_token(e, i) != token)
		return NULL;
	return &e->slots[i];
}

void slot_free(struct pkt_ep *e, uint32_t slot)
{
	if (slot != PKT_NONE)
		e->slots[slot].used = false;
}

/* ---- posting ---- */

static int post_get(struct pkt_ep *e, uint32_t i)
{
	struct pkt_op *op = &e->ops[i];
	struct gx_wire_rec rec = {
		.type = GX_REC_GET, .token = op->token, .off = op->remote_off, .len = op->len};
	uint32_t slot;

	if (e->gets_out == PKT_GETS_MAX || !tx_rec_room(e))
		return -EAGAIN;
	slot = slot_alloc(e, i);
	if (slot == PKT_NONE)
		return -EAGAIN;
	op->state = OP_POSTED;
	rec.slot = slot_token(e, slot);
	if (op->gpu->device >= 0)
		rec.flags |= GX_REC_GPU;
	tx_rec(e, &rec, PKT_NONE);
	e->gets_out++;
	return 0;
}

static void op_fill(struct pkt_ep *e, struct pkt_op *op, const struct gx_op *user, void *route)
{
	op->kind = user->kind;
	op->flags = user->flags & (GX_OP_IMM | GX_OP_LOCAL | GX_OP_SILENT);
	op->user = user->user;
	op->route = route;
	op->src = user->mem ? user->mem->addr + user->off : user->addr;
	op->mem = user->mem;
	op->gpu = user->mem ? user->mem->gpu : e->ep.core->gx->host;
	op->mapped = user->mem && mem_is_mapped(user->mem);
	op->len = user->len;
	/* Slots are named by match.c alone. */
	op->token = user->kind == GX_OP_PUT || user->kind == GX_OP_GET ? user->token & ~PKT_SLOT_BIT
								       : 0;
	op->remote_off = user->remote_off;
	op->imm = user->imm;
	op->tag = user->tag;
	op->tag_mask = user->tag_mask ? user->tag_mask : UINT64_MAX;
	op->deadline_ns = user->deadline_ns;
	if (user->kind == GX_OP_GET || user->kind == GX_OP_RECV)
		op->flags &= ~GX_OP_LOCAL;
}

/* Payload in the memory of a GPU gets to host memory by that GPU alone. */
static bool op_can_land(const struct pkt_ep *e, const struct gx_op *user)
{
	if (!e->link->q->rx_gpu || !user->len ||
	    (user->kind != GX_OP_GET && user->kind != GX_OP_RECV))
		return true;
	return user->mem && (user->mem->kind != GX_MEM_HOST || mem_is_mapped(user->mem));
}

static int pkt_post(struct gx_ep *ep, const struct gx_op *user, void *route)
{
	struct pkt_ep *e = pkt_of(ep);
	struct pkt_op *op;
	uint32_t i;
	int ret = 0;

	if (e->err)
		return -ENOTCONN;
	if (!op_can_land(e, user))
		return gx_fail(-EINVAL,
			       "host memory to receive into must be registered with gx_mem_reg() "
			       "or come from "
			       "gx_mem_alloc(), because the bounce pool is memory of cuda:%d",
			       e->link->q->rx_gpu->device);
	/* Half of the records are kept for what the peer asks of us. */
	if (!core_post_room(ep->core) || tx_rec_room(e) < PKT_RECS / 2)
		return -EAGAIN;
	ep_touch(e);
	i = op_alloc(e);
	if (i == PKT_NONE || e->nr_ops > PKT_OPS - PKT_GETS_MAX) {
		if (i != PKT_NONE)
			op_free(e, i);
		return -EAGAIN;
	}
	op = &e->ops[i];
	op_fill(e, op, user, route);
	op->state = OP_QUEUED;
	ep->core->comps_due += op_comps(op);
	if (op->deadline_ns && op->deadline_ns < e->deadline_ns)
		e->deadline_ns = op->deadline_ns;
	if (op->kind == GX_OP_PUT)
		list_push(e, &e->wait_head, &e->wait_tail, i);
	else if (op->kind == GX_OP_SEND)
		match_send(e, i);
	else if (op->kind == GX_OP_RECV)
		ret = match_recv(e, i);
	else
		ret = post_get(e, i);
	if (ret) {
		ep->core->comps_due -= op_comps(op);
		op_free(e, i);
	}
	return ret;
}

/* A small put leaves before gx_post() returns: its latency does not wait for the rest of a turn. */
static void pkt_kick(struct gx_ep *ep)
{
	struct pkt_ep *e = pkt_of(ep);

	if (e->err || !e->proven || !atomic_load_explicit(&ep->attached, memory_order_relaxed))
		return;
	if (e->wait_head != PKT_NONE)
		tx_start(e);
	if (e->rec_queued)
		tx_recs(e);
}

static int pkt_cancel(struct gx_ep *ep, uint64_t user, const void *route)
{
	struct pkt_ep *e = pkt_of(ep);
	int n = 0;

	ep_touch(e);
	for (uint32_t i = 0; i < e->ops_top; i++) {
		struct pkt_op *op = &e->ops[i];

		if (op->state == OP_FREE || op->internal || op->doomed || op->done ||
		    op->user != user || op->route != route)
			continue;
		op_doom(e, i, -ECANCELED);
		n++;
	}
	return n;
}

/* ---- timers ---- */

static void tick_deadlines(struct pkt_ep *e)
{
	e->deadline_ns = UINT64_MAX;
	for (uint32_t i = 0; i < e->ops_top; i++) {
		struct pkt_op *op = &e->ops[i];

		if (op->state == OP_FREE || !op->deadline_ns || op->doomed || op->done)
			continue;
		if (op->deadline_ns <= e->now_ns)
			op_doom(e, i, -ETIMEDOUT);
		else
			e->deadline_ns = GX_MIN(e->deadline_ns, op->deadline_ns);
	}
}

static void tick_cancels(struct pkt_ep *e)
{
	e->cancels_due = false;
	for (uint32_t i = 0; i < e->ops_top; i++)
		if (e->ops[i].state != OP_FREE && e->ops[i].cancel_due)
			op_cancel_rec(e, &e->ops[i]);
}

/* When the peer's core last showed that it lives. While packets of ours wait for it, only an
 * acknowledgement shows that: others may send packets as the peer where nothing protects them, and
 * one of them has the peer take all that comes later for old. A keepalive is acknowledged as well.
 */
static uint64_t alive_heard_ns(const struct pkt_ep *e)
{
	bool unacked = flow_outstanding(e->flow) || e->resend_head != e->resend_tail ||
		       e->rec_floor != e->rec_next || e->ask_head != e->ask_tail;

	return unacked && !e->lossless ? e->acked_ns : e->heard_ns;
}

/* The peer's core must be heard while anything is outstanding with it; when it is silent, it is
 * asked. Only time in which this core was turned counts: in a pause of our own (a debugger, a SIGSTOP,
 * a program that does something else) the peer was not asked. One counts as an eighth, so that a
 * core which is seldom turned gives up in the end. */
static void tick_alive(struct pkt_ep *e)
{
	bool waiting = e->nr_ops || e->nr_in || e->want_peer;
	uint64_t eighth = e->peer_timeout_ns / 8, before = e->alive_ns;
	uint64_t heard_ns = alive_heard_ns(e);

	e->alive_ns = e->now_ns;
	if (!waiting || !e->waiting) {
		e->waiting = waiting;
		e->silence_ns = 0;
		return;
	}
	if (heard_ns > before)
		e->silence_ns = 0;
	before = GX_MAX(before, heard_ns);
	e->silence_ns += GX_MIN(e->now_ns - GX_MIN(e->now_ns, before), eighth);
	if (e->silence_ns >= e->peer_timeout_ns) {
		rx_fault(e, -ETIMEDOUT);
		return;
	}
	if (e->silence_ns >= eighth && e->now_ns - e->probe_ns >= eighth) {
		e->probe_ns = e->now_ns;
		tx_probe(e, 0);
	}
}

/* When tick_alive() has something to do for an ep that waits, if nothing is heard until then. */
uint64_t link_alive_ns(const struct pkt_ep *e)
{
	uint64_t eighth = e->peer_timeout_ns / 8, since = GX_MAX(e->alive_ns, e->heard_ns);
	uint64_t ask = since + eighth - GX_MIN(e->silence_ns, eighth);
	uint64_t end = since + e->peer_timeout_ns - GX_MIN(e->silence_ns, e->peer_timeout_ns);

	/* What is longer than an eighth would count as a pause of our own. */
	return GX_MIN(GX_MIN(GX_MAX(ask, e->probe_ns + eighth), end), since + eighth);
}

/* The port has lost what it had taken, or carries nothing any more: that ends what uses it, not the
 * process. */
static void tick_fault(struct pkt_ep *e)
{
	if (e->link->q->ops->fault(e->link->q))
		rx_fault(e, -EIO);
}

/* Operations whose payload will not come out of their GPU any more. */
static void tick_stages(struct pkt_ep *e)
{
	for (uint32_t i = e->act_head, next; i != PKT_NONE; i = next) {
		const struct gx_gpu *gpu = e->ops[i].gpu;

		next = e->ops[i].next;
		if (gpu->device >= 0 && e->link->stage[gpu->device] &&
		    stage_err(e->link->stage[gpu->device]))
			op_doom(e, i, -EIO);
	}
}

/* Everything was acknowledged, but the ACK that said done, or brought credit, may have been lost:
 * ask for another. */
static void tick_ask(struct pkt_ep *e)
{
	if (e->lossless || !e->nr_mids || flow_outstanding(e->flow)) {
		e->ask_ns = 0;
		return;
	}
	if (!e->ask_ns) {
		e->ask_wait_ns = PKT_TICK_NS;
	} else if (e->now_ns >= e->ask_ns) {
		tx_probe(e, 0);
		e->ask_wait_ns = GX_MIN(2 * e->ask_wait_ns, PKT_ASK_MAX_NS);
	} else {
		return;
	}
	e->ask_ns = e->now_ns + e->ask_wait_ns;
}

/* Credit beyond what we began with is for what was declared: an idle sender gives the rest back,
 * others may need it. */
static void tick_refund(struct pkt_ep *e)
{
	struct gx_wire_rec rec = {.type = GX_REC_REFUND};
	uint32_t credit = flow_credit(e->flow);

	if (e->act_head != PKT_NONE || e->wait_head != PKT_NONE || credit <= e->credit0_peer)
		return;
	rec.slot = credit - e->credit0_peer;
	if (tx_rec(e, &rec, PKT_NONE))
		flow_credit_use(e->flow, rec.slot);
}

/* ---- the path: which quantum does it carry? ---- */

/* Quanta to fall back to when padded probes do not come through: FACTS of common MTUs, see
 * docs/wire.md. */
static uint32_t smaller_quantum(uint32_t quantum)
{
	static const uint32_t preferred[] = {8192, 4096, 3328, 1392, GX_WIRE_QUANTUM_MIN};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(preferred); i++)
		if (preferred[i] < quantum)
			return preferred[i];
	return 0;
}

static void hole_forget(struct pkt_ep *e)
{
	e->hole_b = UINT32_MAX;
	e->hole_lost = 0;
}

/* Is this a message under way whose packets are larger than the quantum has become? One that was
 * acknowledged as a whole needs no other. */
static bool op_outgrown(const struct pkt_ep *e, const struct pkt_op *op)
{
	if (op->state == OP_QUEUED ? !op->again : op->state != OP_SENDING && op->state != OP_SENT)
		return false;
	return !op->inlined && !op->doomed && op->len > e->shape.quantum &&
	       !msg_win_full(&op->acked);
}

static void op_withdraw(struct pkt_ep *e, struct pkt_op *op, uint32_t i)
{
	if (op->state == OP_SENDING)
		list_remove(e, &e->act_head, &e->act_tail, i);
	if (op->state == OP_QUEUED)
		list_remove(e, &e->wait_head, &e->wait_tail, i);
	op->state = OP_QUEUED;
	op->again = true;
}

void op_again(struct pkt_ep *e, uint32_t i)
{
	op_withdraw(e, &e->ops[i], i);
	e->ops[i].next = e->wait_head;
	if (e->wait_head == PKT_NONE)
		e->wait_tail = i;
	e->wait_head = i;
}

/* They wait for another mid, before anything new, or they might do so for ever: each one that
 * begins again lets the peer be done with the mid that it had. */
static void ops_again(struct pkt_ep *e)
{
	uint32_t head = PKT_NONE, tail = PKT_NONE;

	for (uint32_t place = 0; place < GX_WIRE_MIDS; place++) {
		uint32_t i = e->out[place].op;
		struct pkt_op *op = i == PKT_NONE ? NULL : &e->ops[i];

		if (!op || !op_outgrown(e, op))
			continue;
		op_withdraw(e, op, i);
		list_push(e, &head, &tail, i);
	}
	if (head == PKT_NONE)
		return;
	e->ops[tail].next = e->wait_head;
	if (e->wait_head == PKT_NONE)
		e->wait_tail = tail;
	e->wait_head = head;
}

static void prove_fail(struct pkt_ep *e)
{
	rx_fault(e, -EHOSTUNREACH);
}

/* Padded probes do not come through: a smaller quantum, which is to be proven as well before
 * anything is sent with it. False: there is none. */
static bool prove_fall(struct pkt_ep *e)
{
	uint32_t next = smaller_quantum(e->shape.quantum);

	if (!next) {
		prove_fail(e);
		return false;
	}
	msg_shape_init(&e->shape, next, e->ep.conn->agreed.chunk_b, e->ep.conn->agreed.window);
	atomic_store_explicit(&e->ep.quantum_b, next, memory_order_relaxed);
	hole_forget(e);
	e->proven = false;
	e->prove_tries = 0;
	ops_again(e);
	return true;
}

/* How long the data half may let nothing through before the connection is given up. */
static uint64_t prove_limit_ns(const struct pkt_ep *e)
{
	/* The receiver may be waiting for its GPU. */
	return e->peer_timeout_ns + (e->begun ? e->ep.core->gx->opts.gpu_timeout_ns : 0);
}

/* A padded probe now and then until one is acknowledged. It counts as lost by its size only if a
 * small one, sent with it on the same half, came through: a path that carries nothing for a while
 * is not a narrow one, nor is a peer that is not turned, or that waits for its GPU. */
static void tick_prove(struct pkt_ep *e)
{
	if (!e->proving || e->now_ns < e->prove_ns)
		return;
	if (e->prove_tries >= PKT_PROVE_TRIES && e->small_passed && !prove_fall(e)) {
		e->proving = false;
		return;
	}
	if (!e->prove_tries || e->small_passed) {
		e->prove_tries++;
		e->small_passed = false;
		e->try_ns = e->now_ns;
		e->prove_waits = 0;
	} else if (++e->prove_waits * (uint64_t)PKT_PROVE_NS >= prove_limit_ns(e)) {
		prove_fail(e);
	}
	e->prove_ns = e->now_ns + PKT_PROVE_NS;
	e->prove_due = true;
}

void link_proven(struct pkt_ep *e, uint32_t quantum)
{
	if (quantum != e->shape.quantum)
		return;
	e->proven = true;
	e->proving = false;
	hole_forget(e);
}

void link_acked(struct pkt_ep *e, const struct flow_rec *rec)
{
	if (rec->len >= e->hole_b) {
		hole_forget(e);
		if (e->proven)
			e->proving = false;
	} else if (rec->kind == PKT_K_PROBE && rec->ref == PKT_SMALL_B &&
		   rec->sent_ns >= e->try_ns) {
		e->small_passed = true;
	}
}

void link_lost(struct pkt_ep *e, const struct flow_rec *rec)
{
	if (!e->probed || e->proving || rec->len <= PKT_LARGE_B)
		return;
	e->hole_b = GX_MIN(e->hole_b, (uint32_t)rec->len);
	if (++e->hole_lost < PKT_LARGE_LOST)
		return;
	e->proving = true;
	e->prove_tries = 0;
	e->prove_ns = e->now_ns;
}

/* ---- slow timers ---- */

/* The core's gauges are sums over its endpoints and links: each adds by how much its own part has
 * changed. */
static void tell_gauges(struct pkt_ep *e, uint32_t nr_msgs)
{
	gx_stat_add(stats(e), GX_STAT_MSGS_ACTIVE, (uint64_t)nr_msgs - e->told_msgs);
	gx_stat_add(stats(e), GX_STAT_BUFS_HELD, (uint64_t)e->held_bufs - e->told_bufs);
	e->told_msgs = nr_msgs;
	e->told_bufs = e->held_bufs;
}

void link_tick(struct pkt_ep *e)
{
	unsigned what = flow_tick(e->flow, e->now_ns);

	if (what & FLOW_RTO)
		gx_stat_add(stats(e), GX_STAT_RTO, 1);
	tx_acked(e); /* what the timers deem lost */
	if (what & FLOW_PROBE)
		tx_probe(e, 0);
	if (e->now_ns < e->tick_ns)
		return;
	e->tick_ns = e->now_ns + PKT_TICK_NS;
	e->ticked = e->link->ticked = true;
	tick_prove(e);
	tick_fault(e);
	tick_alive(e);
	tick_stages(e);
	fetch_tick(e);
	tick_ask(e);
	tick_refund(e);
	if (e->cancels_due)
		tick_cancels(e);
	if (e->fails_due)
		rx_tick(e);
	if (e->bads_due)
		bad_tick(e);
	if (e->now_ns >= e->deadline_ns)
		tick_deadlines(e);
	tell_gauges(e, e->nr_mids + e->nr_in + e->gets_out);
}

/* ---- attach, fail, detach ---- */

static void pkt_attach(struct gx_ep *ep)
{
	struct pkt_ep *e = pkt_of(ep);
	struct link_pkt *l = e->link;

	e->now_ns = e->heard_ns = e->acked_ns = ep->core->now_ns;
	e->tick_ns = 0;
	l->eps[e->index] = e;
	ep_live(e);
	if (l->port->caps.flags & GX_PORT_SHARED_POOL)
		l->pool_out += e->credit0;
	l->q->ops->peer_attach(l->q, e->port_peer);
	atomic_store_explicit(&ep->attached, true, memory_order_release);
}

/* Operations whose memory a copy under way may still touch end later, in link_fail_progress(). */
static bool op_in_use(const struct pkt_ep *e, uint32_t i)
{
	if (e->ops[i].refs)
		return true;
	for (uint32_t k = 0; k < GX_WIRE_MIDS; k++)
		if (e->in[k].op == i && e->in[k].state != IN_FREE && e->in[k].pending)
			return true;
	return false;
}

static void fail_ops(struct pkt_ep *e, bool all)
{
	for (uint32_t i = 0; i < e->ops_top; i++)
		if (e->ops[i].state != OP_FREE && !e->ops[i].reported && (all || !op_in_use(e, i)))
			op_complete(e, i, e->err, 0);
}

static void pkt_fail(struct gx_ep *ep, int err)
{
	struct pkt_ep *e = pkt_of(ep);

	if (e->err)
		return;
	e->err = err ? err : -ECONNRESET;
	if (!atomic_load_explicit(&ep->attached, memory_order_relaxed)) {
		atomic_store_explicit(&ep->detached, true, memory_order_release);
		return;
	}
	share_leave(e);
	ep_touch(e);
	fail_ops(e, false);
	link_fail_progress(e);
}

bool link_fail_progress(struct pkt_ep *e)
{
	struct link_pkt *l = e->link;

	if (e->held_bufs || e->refs)
		return false;
	fail_ops(e, true);
	resend_close(e);
	for (uint32_t i = 0; i < e->ops_top; i++)
		if (e->ops[i].state != OP_FREE) {
			op_drop(e, &e->ops[i]);
			op_free(e, i);
		}
	link_release_flush(l);
	l->q->ops->peer_detach(l->q, e->port_peer);
	ep_gone(e);
	l->eps[e->index] = NULL;
	tell_gauges(e, 0);
	e->ep.comp_mark = e->ep.core->comp_head;
	/* The last touch: the control thread may free it from here on. */
	atomic_store_explicit(&e->ep.detached, true, memory_order_release);
	return true;
}

/* ---- memory that was freed ---- */

static void op_let_go(struct pkt_ep *e, uint32_t i)
{
	const struct pkt_op *op = &e->ops[i];

	if (op->internal && op->state == OP_QUEUED && !op->again)
		match_unserve(e, i);
	else
		op_doom(e, i, -ECANCELED);
}

static void ops_drop(struct pkt_ep *e, struct drop *d)
{
	for (uint32_t i = 0; i < e->ops_top && e->nr_ops; i++) {
		const struct pkt_op *op = &e->ops[i];

		if (op->state == OP_FREE || !mem_is_dead(op->mem))
			continue;
		ep_touch(e);
		if (!e->err)
			op_let_go(e, i);
		if (op->state != OP_FREE && op->refs)
			drop_hold(d, op->mem);
	}
}

static bool stages_are_past(const struct link_pkt *l)
{
	for (unsigned i = 0; i < l->nr_gpus; i++)
		if (l->stage[i] && !stage_is_past(l->stage[i], l->drop_ticket[i]))
			return false;
	return true;
}

/* Copies into pinned memory that were begun for operations which have ended. */
static void stages_drop(struct link_pkt *l, struct drop *d)
{
	if (d->first != d->want + 1) {
		if (stages_are_past(l))
			l->drop_seq = d->first;
		for (unsigned i = 0; i < l->nr_gpus; i++)
			if (l->stage[i])
				l->drop_ticket[i] = stage_ticket(l->stage[i]);
	}
	if (!stages_are_past(l))
		drop_hold_seq(d, l->drop_seq);
}

static struct block_stat link_block_sum(const struct link_pkt *l)
{
	struct block_stat sum = {0};

	for (unsigned i = 0; i < link_nr_bqs(l); i++) {
		const struct block_q *q = link_bq_at(l, i);
		const struct block_stat *s = q ? block_stat(q) : &(struct block_stat){0};

		sum.descs += s->descs;
		sum.merges += s->merges;
		sum.blocks += s->blocks;
		sum.launches += s->launches;
	}
	return sum;
}

/* Bring the blocks' counters into the core's. */
static void link_stats(struct link_pkt *l)
{
	struct gx_stats *st = &l->core->loop.stats;
	struct block_stat sum = link_block_sum(l);

	gx_stat_add(st, GX_STAT_DESCS, sum.descs - l->seen.descs);
	gx_stat_add(st, GX_STAT_MERGES, sum.merges - l->seen.merges);
	gx_stat_add(st, GX_STAT_BLOCKS, sum.blocks - l->seen.blocks);
	gx_stat_add(st, GX_STAT_LAUNCHES, sum.launches - l->seen.launches);
	l->seen = sum;
}

/* Blocks that no connection wants any more go, and their counters with them. */
static void bqs_drop(struct link_pkt *l)
{
	/* Pairs with the release in link_pkt_leave(). */
	uint64_t bits = atomic_exchange_explicit(&l->bq_leave, 0, memory_order_acquire);

	if (!bits)
		return;
	link_stats(l);
	for (; bits; bits &= bits - 1)
		atomic_store_explicit(&l->bqs[__builtin_ctzll(bits)], NULL, memory_order_relaxed);
	l->seen = link_block_sum(l);
}

void link_pkt_drop(struct link_pkt *l, struct drop *d)
{
	bqs_drop(l);
	rx_settle(l, l->core->now_ns);
	tx_settle(l, l->core->now_ns);
	for (unsigned i = 0; i < l->nr_live; i++) {
		ops_drop(l->live[i], d);
		rx_drop(l->live[i], d);
	}
	stages_drop(l, d);
}

/* ---- control path ---- */

static int cid_alloc(struct link_pkt *l, struct pkt_ep *e)
{
	for (uint32_t i = 0; i < GX_PEERS_MAX; i++) {
		if (l->gens[i] >> 31)
			continue;
		l->gens[i] = ((l->gens[i] + 1) & 0xfff) | 1u << 31;
		e->index = i;
		e->gen = l->gens[i] & 0xfff;
		return 0;
	}
	return -ENOSPC;
}

static void ep_init_tables(struct pkt_ep *e)
{
	for (uint32_t i = 0; i < GX_WIRE_MIDS; i++) {
		e->out[i].op = PKT_NONE;
		e->out[i].mid = i - GX_WIRE_MIDS;
	}
	e->in[0].mid = 0u - GX_WIRE_MIDS; /* the others: in_at() */
	memset(e->mids_free, 0xff, sizeof(e->mids_free));
	e->mids_words = (1u << GX_WIRE_DONE_WORDS) - 1;
	e->op_free = e->hot_at = e->cold_at = PKT_NONE;
	e->act_head = e->wait_head = e->send_head = e->landed_head = PKT_NONE;
	e->deadline_ns = UINT64_MAX;
	e->tx_words_free = e->rx_words_free = UINT64_MAX;
}

/* What must not be guessed by whoever is not the peer. The first generation is random as well. */
static int ep_random(struct link_pkt *l, struct pkt_ep *e)
{
	struct {
		uint64_t psn;
		uint32_t salt, gen, skip;
	} r;
	int ret = gx_random(&r, sizeof(r));

	if (ret)
		return ret;
	e->psn0 = r.psn >> 16;
	e->psn_skip = r.skip % PKT_SKIP_MAX;
	e->salt = r.salt;
	for (unsigned i = 0; !l->seeded && i < GX_PEERS_MAX; i++)
		l->gens[i] = (r.gen + i) & 0xfff;
	l->seeded = true;
	return 0;
}

/* The core may turn: it sees the queue when it is whole. */
static int link_bq_open(struct link_pkt *l, struct gx_gpu *by, struct block_q **out)
{
	unsigned nr = link_nr_bqs(l), i = 0;
	int ret;

	while (i < nr && l->bq_by[i])
		i++;
	ret = i == PKT_BQS_MAX ? -ENOSPC
			       : block_open(by, l->q->rx_base, l->core->gx->opts.gpu_timeout_ns,
					    &l->bq_all[i]);
	if (ret)
		return ret;
	l->bq_by[i] = by;
	*out = l->bq_all[i];
	atomic_store_explicit(&l->bqs[i], l->bq_all[i], memory_order_release);
	if (i == nr)
		atomic_store_explicit(&l->nr_bqs, nr + 1, memory_order_release);
	return 0;
}

/* How the client wants @gpu's memory to be filled. */
static int ep_unpack_one(struct pkt_ep *e, const struct gx_gpu *gpu, enum gx_unpack unpack,
			 unsigned sms)
{
	struct link_pkt *l = e->link;
	struct gx_gpu *by;
	int ret;

	if (unpack == GX_UNPACK_HOST && l->q->rx_gpu)
		return gx_fail(
			-EINVAL,
			"unpack host reads packets by the CPU, and the bounce pool is memory of "
			"cuda:%d: take another --unpack, or --bounce host",
			l->q->rx_gpu->device);
	ret = unpacker_get(l->core->gx, link_copier(l, (struct gx_gpu *)gpu), unpack, sms,
			   &e->unpackers, &by);
	if (ret)
		return ret;
	for (unsigned i = 0; i < link_nr_bqs(l); i++)
		if (l->bq_by[i] == by) {
			e->bq[1 + gpu->device] = l->bq_all[i];
			return 0;
		}
	ret = link_bq_open(l, by, &e->bq[1 + gpu->device]);
	return ret ? gx_fail(ret, "unpack %s: %s", gx_unpack_name(unpack), strerror(-ret)) : 0;
}

/* The server's half unpacks as the client wants; the client's own half as its options say. */
static int ep_unpack(struct pkt_ep *e)
{
	const struct gx_conn *c = e->ep.conn;
	unsigned unpack = c->agreed.unpack ? c->agreed.unpack - 1u : c->gx->gpu_cfg.unpack;
	int ret = 0;

	if (c->gx->opts.check == GX_CHECK_UNPACK && c->agreed.integrity == GX_INTEGRITY_CRC &&
	    !unpack_checks(unpack))
		return gx_fail(
			-EOPNOTSUPP,
			"unpack mode %s checks no payload, as --check-by unpack wants it: take "
			"kernel, auto or host",
			gx_unpack_name(unpack));
	if (!c->server || (!c->agreed.unpack && !c->agreed.sms))
		return 0;
	if (unpack > GX_UNPACK_NONE)
		return gx_fail(-EINVAL, "unpack mode %u is not known here", unpack);
	/* The CPU copies, or it does not. */
	if (unpack == GX_UNPACK_NONE || c->gx->gpu_cfg.unpack == GX_UNPACK_NONE ||
	    e->link->q->rx_gpu)
		ret = ep_unpack_one(e, c->gx->host, unpack, e->link->q->rx_gpu ? c->agreed.sms : 0);
	for (unsigned i = 0; i < GX_GPUS_MAX && !ret; i++)
		if (c->gx->gpu[i])
			ret = ep_unpack_one(e, c->gx->gpu[i], unpack, c->agreed.sms);
	return ret;
}

/* The CPU cannot check payload in the memory of a GPU: whoever copies it must. */
static int ep_pool_checks(const struct pkt_ep *e)
{
	const struct gx *gx = e->ep.core->gx;
	const struct gx_conn *c = e->ep.conn;
	unsigned unpack =
		c->server && c->agreed.unpack ? c->agreed.unpack - 1u : gx->gpu_cfg.unpack;

	if (c->agreed.integrity != GX_INTEGRITY_CRC || !e->link->q->rx_gpu || c->late)
		return 0;
	return gx_fail(
		-EINVAL,
		"unpack %s does not check the CRC of payload, and the CPU cannot where the "
		"bounce pool is memory of cuda:%d: take --unpack kernel or auto, --bounce host, "
		"or --integrity none",
		gx_unpack_name(unpack), e->link->q->rx_gpu->device);
}

static int pkt_ep_open(struct gx_ep *ep, struct gx_hello_lane *local)
{
	struct pkt_ep *e = pkt_of(ep);
	struct link_pkt *l = ep->core->link[ep->conn->port];
	const struct gx_port_caps *caps = &l->port->caps;
	int ret;

	e->link = l;
	ep_init_tables(e);
	ret = ep_unpack(e);
	if (!ret)
		ret = ep_random(l, e);
	if (ret)
		return ret;
	ret = cid_alloc(l, e);
	if (ret)
		return gx_fail(ret, "core %u has %u connections already", ep->core->index,
			       GX_PEERS_MAX);
	ret = l->q->ops->peer_add(l->q, &e->port_peer, &local->port);
	if (ret) {
		l->gens[e->index] &= ~(1u << 31);
		return gx_fail(ret, "%s", gx_port_why());
	}
	e->have_peer = true;
	e->lossless = caps->flags & GX_PORT_LOSSLESS;
	e->share.on = caps->flags & GX_PORT_SHARED_POOL;
	/* Of a shared pool, what idle peers hold is a quarter at most; who finds it gone begins
	 * with an OPEN. */
	if (!(caps->flags & GX_PORT_SHARED_POOL))
		e->credit0 = caps->rx_slots - pkt_margin(caps);
	else if (l->credit0_out + PKT_CREDIT0 <= caps->rx_slots / 4)
		e->credit0 = PKT_CREDIT0;
	l->credit0_out += e->credit0;
	local->cid = e->gen << 20 | e->index;
	local->credit = e->credit0;
	local->psn = e->psn0;
	local->salt = e->salt;
	return 0;
}

/* Each end takes packets as large as its slots are, of what was agreed. */
static int ep_shapes(struct pkt_ep *e, struct msg_shape *least)
{
	const struct gx_hello_lanes *a = &e->ep.conn->agreed;
	uint32_t own = e->link->port->caps.payload_max, in = GX_MIN(a->quantum, own);
	uint32_t out = GX_MIN(a->quantum, e->path.payload_max ? e->path.payload_max : own);
	uint32_t quantum = GX_MIN(in, out);
	int ret;

	if (quantum < GX_WIRE_QUANTUM_MIN)
		return -EPROTO;
	/* A path that turns out narrower makes a smaller quantum, and more bits. */
	if (e->link->port->caps.flags & GX_PORT_NEEDS_PROBE)
		quantum = GX_WIRE_QUANTUM_MIN;
	ret = msg_shape_init(&e->shape, out, a->chunk_b, a->window);
	if (!ret)
		ret = msg_shape_init(&e->rx_shape[0], in, a->chunk_b, a->window);
	if (!ret)
		ret = msg_shape_init(least, quantum, a->chunk_b, a->window);
	e->nr_rx_shapes = 1;
	return ret;
}

static size_t windows_b(const struct pkt_ep *e)
{
	return GX_WIRE_ACTIVE * e->words_max * sizeof(uint64_t);
}

static size_t resend_b(const struct pkt_ep *e)
{
	return (e->resend_mask + 1) * sizeof(*e->resend);
}

static int ep_windows(struct pkt_ep *e)
{
	struct msg_shape least;
	int ret = ep_shapes(e, &least);

	if (ret)
		return ret;
	e->words_max = msg_words(&least);
	e->tx_words = gx_pages_get(windows_b(e));
	e->rx_words = gx_pages_get(windows_b(e));
	return e->tx_words && e->rx_words ? 0 : -ENOMEM;
}

/* One GPU for both ends, and the driver lets one process at a time use it, for a fraction of a
 * millisecond each. Said once. */
static void path_say_turns(const struct pkt_ep *e)
{
	const struct gx_conn *c = e->ep.conn;
	int device = e->path.pool_here;

	if (device < 0 || device >= GX_GPUS_MAX || c->gx->turns_said || !c->gx->gpu[device] ||
	    !c->gx->gpu[device]->turns || c->peer.pid == (uint32_t)getpid())
		return;
	c->gx->turns_said = true;
	gx_warn("peer %s: its bounce pool is memory of cuda:%d, which this process writes and the "
		"other one reads in turns, as there is no MPS; that costs most of the speed: run "
		"nvidia-cuda-mps-control -d before both, or let another GPU write",
		c->peer_name, device);
}

static int pkt_ep_connect(struct gx_ep *ep, const struct gx_hello_lane *remote)
{
	struct pkt_ep *e = pkt_of(ep);
	struct link_pkt *l = e->link;
	struct flow_cfg cfg = {.window = PKT_WINDOW,
			       .lossless = e->lossless,
			       .ordered = l->port->caps.flags & GX_PORT_ORDERED,
			       .tx_psn = e->psn0,
			       .rx_psn = remote->psn,
			       .tx_credit = remote->credit,
			       .rx_credit = e->credit0};
	int ret = l->q->ops->peer_connect(l->q, e->port_peer, &remote->port);

	/* The peer knows psn0 by the bootstrap connection. An acknowledgement of the first probe is
	 * to show that it came to the address that the peer has named. */
	if (l->port->caps.flags & GX_PORT_NEEDS_PROBE)
		cfg.tx_psn += e->psn_skip;
	if (ret)
		return gx_fail(ret, "%s", gx_port_why());
	ret = ep_pool_checks(e);
	if (ret)
		return ret;
	l->q->ops->peer_info(l->q, e->port_peer, &e->path);
	/* The CPU computes the CRC of what it sends. */
	if (ep->conn->agreed.integrity == GX_INTEGRITY_CRC)
		e->path.gpus = 0;
	if (ep->lane == 0) {
		ep->conn->peer_pool = e->path.pool;
		path_say_turns(e);
	}
	ret = ep_windows(e);
	if (!ret)
		ret = flow_open(&cfg, &e->flow);
	if (ret)
		return gx_fail(ret, "cannot set up the endpoint: %s", strerror(-ret));
	e->resend_mask = 2 * PKT_WINDOW - 1;
	e->resend = gx_pages_get(resend_b(e));
	if (!e->resend)
		return -ENOMEM;
	e->cid_peer = remote->cid;
	e->credit0_peer = remote->credit;
	e->salt_peer = remote->salt;
	e->integrity = ep->conn->agreed.integrity;
	e->late = ep->conn->late;
	e->peer_late = ep->conn->peer_late;
	e->peer_timeout_ns = ep->conn->agreed.peer_timeout_ns;
	e->probed = l->port->caps.flags & GX_PORT_NEEDS_PROBE;
	e->proven = !e->probed;
	e->proving = e->probed;
	e->mids_max = e->probed ? GX_WIRE_MIDS - PKT_MIDS_KEPT : GX_WIRE_MIDS;
	hole_forget(e);
	atomic_store_explicit(&ep->quantum_b, e->shape.quantum, memory_order_relaxed);
	ep->quantum_said = e->shape.quantum;
	return 0;
}

static void pkt_ep_free(struct gx_ep *ep)
{
	struct pkt_ep *e = pkt_of(ep);

	if (e->have_peer) {
		e->link->q->ops->peer_del(e->link->q, e->port_peer);
		e->link->credit0_out -= e->credit0;
		e->link->gens[e->index] &= ~(1u << 31);
	}
	unpackers_put(ep->conn->gx, e->unpackers);
	if (e->flow)
		flow_close(e->flow);
	gx_pages_put(e->resend, resend_b(e));
	gx_pages_put(e->tx_words, windows_b(e));
	gx_pages_put(e->rx_words, windows_b(e));
	gx_pages_put(e, e->alloc_b);
}

struct pkt_ep *pkt_ep_alloc(size_t len)
{
	struct pkt_ep *e = gx_pages_get(len);

	if (e)
		e->alloc_b = len;
	return e;
}

void link_pkt_leave(struct link_pkt *l, const struct gx_gpu *by)
{
	for (unsigned i = 0; i < link_nr_bqs(l); i++)
		if (l->bq_by[i] == by)
			atomic_fetch_or_explicit(&l->bq_leave, 1ull << i, memory_order_release);
}

void link_pkt_left(struct link_pkt *l, const struct gx_gpu *by)
{
	for (unsigned i = 0; i < link_nr_bqs(l); i++)
		if (l->bq_by[i] == by) {
			block_close(l->bq_all[i]);
			l->bq_by[i] = NULL;
		}
}

static struct gx_ep *pkt_ep_new(void)
{
	struct pkt_ep *e = pkt_ep_alloc(sizeof(*e));

	return e ? &e->ep : NULL;
}

const struct gx_link_ops gx_link_pkt_ops = {
	.name = "packet",
	.ep_new = pkt_ep_new,
	.ep_open = pkt_ep_open,
	.ep_connect = pkt_ep_connect,
	.ep_free = pkt_ep_free,
	.ep_attach = pkt_attach,
	.ep_fail = pkt_fail,
	.post = pkt_post,
	.kick = pkt_kick,
	.cancel = pkt_cancel,
};

/* ---- the link of one core over one port ---- */

int link_pkt_open(struct gx_core *core, struct gx_port *port, struct gx_port_queue *q,
		  struct link_pkt **out)
{
	struct link_pkt *l = calloc(1, sizeof(*l));
	int ret;

	if (!l)
		return -ENOMEM;
	l->core = core;
	l->q = q;
	l->port = port;
	share_open(l);
	l->pad = calloc(1, port->caps.payload_max);
	ret = l->pad ? link_bq_open(l, link_copier(l, core->gx->host), &l->bq_host) : -ENOMEM;
	if (ret) {
		link_pkt_close(l);
		return ret;
	}
	*out = l;
	return 0;
}

int link_pkt_gpu(struct link_pkt *l, struct gx_gpu *gpu)
{
	struct gx *gx = l->core->gx;
	int ret;

	if (gpu->device < 0 || l->bq_gpu[gpu->device])
		return 0;
	l->nr_gpus = GX_MAX(l->nr_gpus, gpu->device + 1u);
	/* What is agreed may be more than was asked for: a chunk is a quantum at least. */
	ret = stage_open(gpu, gx->arena, GX_MAX(gx->opts.chunk_b, (uint32_t)GX_WIRE_QUANTUM_MAX),
			 GX_MIN(gx->opts.window, (uint32_t)STAGE_MSG_CHUNKS) + 2,
			 gx->opts.gpu_timeout_ns, &l->stage[gpu->device]);
	if (ret)
		return ret;
	return link_bq_open(l, gpu, &l->bq_gpu[gpu->device]);
}

void link_pkt_close(struct link_pkt *l)
{
	if (!l)
		return;
	for (unsigned i = 0; i < link_nr_bqs(l); i++)
		if (l->bq_by[i])
			block_close(l->bq_all[i]);
	for (unsigned i = 0; i < GX_GPUS_MAX; i++)
		stage_close(l->stage[i]);
	free((void *)l->pad);
	free(l);
}

struct block_q *link_bq(struct link_pkt *l, struct gx_gpu *gpu)
{
	return gpu->device < 0 ? l->bq_host : l->bq_gpu[gpu->device];
}

void link_release(struct link_pkt *l, uint64_t buf)
{
	l->release[l->nr_release++] = buf;
	if (l->nr_release == GX_ARRAY_SIZE(l->release))
		link_release_flush(l);
}

void link_release_flush(struct link_pkt *l)
{
	if (!l->nr_release)
		return;
	l->q->ops->rx_release(l->q, l->release, l->nr_release);
	l->nr_release = 0;
}

bool link_pkt_asleep(const void *link)
{
	return !((const struct link_pkt *)link)->nr_live;
}

/* One turn: reap, rx, (reap what was copied on this very core), tx and timers. */
bool link_pkt_poll(void *link, uint64_t now_ns)
{
	struct link_pkt *l = link;
	bool worked;

	l->core->now_ns = now_ns;
	if (!l->nr_live)
		return false;
	l->q->now_ns = now_ns;
	worked = rx_reap(l, now_ns);
	if (rx_poll(l, now_ns)) {
		worked = true;
		rx_reap(l, now_ns);
	}
	worked |= tx_poll(l, now_ns);
	link_release_flush(l);
	if (worked && now_ns >= l->stats_ns) {
		l->stats_ns = now_ns + PKT_TICK_NS;
		link_stats(l);
	}
	return worked;
}
