/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of the tcp link: their lists, completions and slots, and the queue of frames without
 * payload. Runs on the polling core.
 */
#include "tcp/tcp_op.h"
#include "tcp/tcp_fetch.h"
#include "tcp/tcp_live.h"
#include "tcp/tcp_view.h"

#include <errno.h>
#include <string.h>

void tcp_fault(struct tcp_ep *e, int err)
{
	int none = 0;

	if (err == e->end.err && !atomic_load_explicit(&e->ep.fault, memory_order_relaxed)) {
		e->ep.fault_why = e->end.why;
		e->ep.fault_tx = e->end.tx;
	}
	/* Pairs with the acquire in conn_tick(). The first fault stays. */
	atomic_compare_exchange_strong_explicit(&e->ep.fault, &none, err, memory_order_release,
						memory_order_relaxed);
}

/* The reason of a lost socket may still come by the bootstrap connection, so the fault waits for
 * it. */
static void fault_soon(struct tcp_ep *e, int err)
{
	if (e->end.err)
		return;
	e->end.err = err == -EFAULT ? err : -ECONNRESET;
	e->end.ns = e->now_ns;
}

void tcp_sock_tx_end(struct tcp_ep *e, struct tcp_sock *s, int err)
{
	s->tx_ended = true;
	fault_soon(e, err);
}

/* A peer that lies is heard no more, on no socket: until the control thread ends the connection,
 * its messages may be in any state. */
void tcp_sock_end(struct tcp_ep *e, struct tcp_sock *s, int err)
{
	s->rx_ended = s->tx_ended = true;
	if (err != -EPROTO) {
		fault_soon(e, err);
		return;
	}
	for (unsigned k = 0; k < e->nr_socks; k++)
		e->sock[k].rx_ended = e->sock[k].tx_ended = true;
	gx_stat_add(tcp_stats(e), GX_STAT_RX_BAD, 1);
	tcp_fault(e, err);
}

/* Not the peer's fault, so what it has sent by other sockets is good. */
void tcp_sock_fail(struct tcp_ep *e, struct tcp_sock *s, int err, const char *why)
{
	s->rx_ended = s->tx_ended = true;
	if (e->end.err)
		return;
	e->end.err = err;
	e->end.why = why;
	e->end.ns = e->now_ns;
}

/* Posts leave most of the queue free, and each message in or out needs few places, so a peer that
 * keeps the protocol never fills it. */
void tcp_ctl_put(struct tcp_ep *e, const struct tcp_frame *f)
{
	if (gx_unlikely(!tcp_ctl_room(e))) {
		tcp_sock_end(e, &e->sock[0], -EPROTO);
		return;
	}
	e->ctls.frame[e->ctls.head++ % TCP_CTLS] = *f;
	e->ctls.spoke_ns = e->now_ns;
	tcp_live_heat(e);
}

void tcp_list_push(struct tcp_ep *e, uint32_t *head, uint32_t *tail, uint32_t i)
{
	e->ops[i].next = TCP_NONE;
	if (*head == TCP_NONE)
		*head = i;
	else
		e->ops[*tail].next = i;
	*tail = i;
}

void tcp_list_remove(struct tcp_ep *e, uint32_t *head, uint32_t *tail, uint32_t i)
{
	uint32_t before = TCP_NONE, k = *head;

	for (; k != i && k != TCP_NONE; k = e->ops[k].next)
		before = k;
	if (k == TCP_NONE)
		return;
	if (before == TCP_NONE)
		*head = e->ops[i].next;
	else
		e->ops[before].next = e->ops[i].next;
	if (*tail == i)
		*tail = before;
}

void tcp_act_push(struct tcp_ep *e, uint32_t i)
{
	e->ops[i].fetching = tcp_fetch_waits(e, &e->ops[i]);
	if (e->ops[i].fetching) {
		tcp_list_push(e, &e->tx.fetch_head, &e->tx.fetch_tail, i);
		e->tx.nr_fetch++;
	} else {
		tcp_list_push(e, &e->tx.act_head, &e->tx.act_tail, i);
		e->tx.nr_act++;
	}
}

void tcp_act_again(struct tcp_ep *e, uint32_t i)
{
	tcp_list_remove(e, &e->tx.act_head, &e->tx.act_tail, i);
	e->tx.nr_act--;
	tcp_act_push(e, i);
}

void tcp_op_fetch_unlist(struct tcp_ep *e, uint32_t i)
{
	tcp_list_remove(e, &e->tx.fetch_head, &e->tx.fetch_tail, i);
	e->ops[i].fetching = false;
	e->tx.nr_fetch--;
}

static bool list_has(const struct tcp_ep *e, uint32_t head, uint32_t i)
{
	while (head != TCP_NONE && head != i)
		head = e->ops[head].next;
	return head == i;
}

void tcp_op_unlist(struct tcp_ep *e, uint32_t i)
{
	const struct tcp_op *op = &e->ops[i];

	if (op->state != TCP_OP_QUEUED && op->state != TCP_OP_SENDING)
		return;
	if (op->fetching) {
		tcp_op_fetch_unlist(e, i);
		return;
	}
	if (list_has(e, e->tx.act_head, i)) {
		tcp_list_remove(e, &e->tx.act_head, &e->tx.act_tail, i);
		e->tx.nr_act--;
		return;
	}
	tcp_list_remove(e, &e->match.wait_head, &e->match.wait_tail, i);
}

uint32_t tcp_op_alloc(struct tcp_ep *e)
{
	uint32_t i = e->op_free;

	if (i != TCP_NONE)
		e->op_free = e->ops[i].next;
	else if (e->ops_top < TCP_OPS)
		i = e->ops_top++;
	else
		return TCP_NONE;
	e->nr_ops++;
	memset(&e->ops[i], 0, offsetof(struct tcp_op, stage));
	stage_msg_init(&e->ops[i].stage);
	e->ops[i].slot = e->ops[i].next = TCP_NONE;
	tcp_op_goto(&e->ops[i], TCP_OP_QUEUED);
	return i;
}

void tcp_op_free(struct tcp_ep *e, uint32_t i)
{
	tcp_fetch_end(e, &e->ops[i]);
	if (gx_unlikely(e->ops[i].view))
		tcp_view_put(e, e->ops[i].view);
	tcp_op_goto(&e->ops[i], TCP_OP_FREE);
	core_unuse(e->ep.core, e->ops[i].use);
	e->ops[i].next = e->op_free;
	e->op_free = i;
	e->nr_ops--;
}

void tcp_op_complete(struct tcp_ep *e, uint32_t i, int status, uint64_t len)
{
	struct tcp_op *op = &e->ops[i];
	struct core_end end = {.ep = &e->ep,
			       .route = op->route,
			       .op = op->kind,
			       .status = status,
			       .flags = op->flags,
			       .user = op->user,
			       .len = len,
			       .tag = op->tag};

	if (op->reported)
		return;
	op->reported = true;
	if (!op->internal)
		core_ended(&end);
}

void tcp_op_finish(struct tcp_ep *e, uint32_t i, int status, uint64_t len)
{
	struct tcp_op *op = &e->ops[i];

	tcp_op_complete(e, i, status, len);
	if (op->kind == GX_OP_GET && !op->internal)
		e->match.gets_out--;
	e->match.nr_served -= op->internal;
	tcp_op_free(e, i);
}

/* The length of a frame under way is fixed, and its bytes may go away. All frames of the operation
 * may be in queues already, so the receiver may have them all before CANCEL: each says itself that
 * it is void. One whose payload the kernel has, is good, and a part of its trailer may have left. */
static void out_void(struct tcp_sock *s, uint32_t at)
{
	struct tcp_out *o = &s->out[at % TCP_OUTS];

	o->op = TCP_NONE;
	o->data = NULL;
	if (at == s->tail && s->pos >= TCP_HDR_B + o->len)
		return;
	o->gone = true;
	tcp_tail_put(o->tail, TCP_TAIL_VOID);
}

void tcp_op_pad(struct tcp_ep *e, uint32_t i)
{
	for (unsigned k = 0; e->ops[i].queued && k < e->nr_socks; k++) {
		struct tcp_sock *s = &e->sock[k];

		for (uint32_t at = s->tail; at != s->head; at++)
			if (s->out[at % TCP_OUTS].op == i) {
				out_void(s, at);
				e->ops[i].queued--;
			}
	}
}

uint32_t tcp_slot_alloc(struct tcp_ep *e, uint32_t op)
{
	for (uint32_t k = 0; k < TCP_SLOTS; k++) {
		uint32_t i = (e->match.slot_rover + k) % TCP_SLOTS;

		if (e->match.slots[i].used)
			continue;
		e->match.slot_rover = i + 1;
		e->match.slots[i].used = true;
		e->match.slots[i].bound = false;
		e->match.slots[i].gen = (e->match.slots[i].gen + 1) & 0x7fffffff;
		e->match.slots[i].op = op;
		e->ops[op].slot = i;
		return i;
	}
	return TCP_NONE;
}

uint64_t tcp_slot_token(const struct tcp_ep *e, uint32_t slot)
{
	return TCP_SLOT_BIT | (uint64_t)e->match.slots[slot].gen << 32 | slot;
}

struct tcp_slot *tcp_slot_find(struct tcp_ep *e, uint64_t token)
{
	uint32_t i = (uint32_t)token;

	if (!(token & TCP_SLOT_BIT) || i >= TCP_SLOTS || !e->match.slots[i].used ||
	    tcp_slot_token(e, i) != token)
		return NULL;
	return &e->match.slots[i];
}

void tcp_slot_free(struct tcp_ep *e, uint32_t slot)
{
	if (slot != TCP_NONE)
		e->match.slots[slot].used = false;
}

void tcp_tell_gauge(struct tcp_ep *e)
{
	uint32_t out = TCP_MIDS - (e->tx.mid_head - e->tx.mid_tail) + e->match.gets_out;
	uint32_t nr_msgs = e->err ? 0 : out + e->rx.nr_in;
	uint32_t was = atomic_load_explicit(&e->timer.gauge_msgs, memory_order_relaxed);

	gx_stat_add(tcp_stats(e), GX_STAT_MSGS_ACTIVE, (uint64_t)nr_msgs - was);
	atomic_store_explicit(&e->timer.gauge_msgs, nr_msgs, memory_order_relaxed);
}
