/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiver of a flow: which packets came, the ACK that tells of them, and the credit that the peer
 * has. flow.h has the contract, flow_part.h the numbers inside. Runs on the polling core.
 */
#include "flow/flow_part.h"

#include <assert.h>
#include <string.h>

#define FLOW_ACK_WORDS	   8 /* in an ACK, unless more are needed: survives 32 lost ACKs in a row */
#define FLOW_CREDIT_MARGIN 8 /* more than the need */

/* ---- Receiver ---- */

/* How far @psn lies from the next psn that we expect. The header has its low half only. */
static inline int32_t flow_rx_ahead(const struct flow *f, uint32_t psn)
{
	return (int32_t)(psn - (uint32_t)(f->rx_first + f->rx_next));
}

enum flow_rx flow_rx_look(const struct flow *f, uint32_t psn)
{
	int64_t ahead = flow_rx_ahead(f, psn);

	if (gx_likely(ahead >= 0))
		return FLOW_RX_NEW;
	if ((uint64_t)-ahead > f->rx_next || -ahead > f->rx_mask + 1ll)
		return FLOW_RX_OLD;
	return bits_test(f->rx, f->rx_mask, f->rx_next - (uint64_t)-ahead) ? FLOW_RX_DUP
									   : FLOW_RX_NEW;
}

/* Let an ACK out at once, but not one after each of many packets out of order. */
static void flow_ack_soon(struct flow *f, uint64_t now_ns)
{
	uint64_t due = GX_MAX(now_ns, f->ack_ns + f->ack_delay_ns / 4);

	f->ack_due_ns = GX_MIN(f->ack_due_ns, due);
}

/* The @n packets between the expected one and the one that came are missing. Clear their bits,
 * which older packets have set. */
static void flow_rx_skip(struct flow *f, uint32_t n)
{
	if (n > f->rx_mask) { /* a connection's first packet after probes */
		f->rx_skipped += n;
		memset(f->rx, 0, (f->rx_mask + 1) / 8);
		return;
	}
	for (uint64_t seq = f->rx_next; n > 0; n--, seq++)
		bits_clear(f->rx, f->rx_mask, seq, 1);
}

void flow_rx_take(struct flow *f, uint64_t now_ns, uint32_t psn, bool ack_now)
{
	int32_t ahead = flow_rx_ahead(f, psn);
	uint64_t seq = f->rx_next + (uint64_t)(int64_t)ahead;

	assert(flow_rx_look(f, psn) == FLOW_RX_NEW);
	if (ahead >= 0) {
		flow_rx_skip(f, (uint32_t)ahead);
		f->rx_next = seq + 1;
		f->rx_max_ns = now_ns;
	}
	bits_set(f->rx, f->rx_mask, seq);
	if (!f->nr_unacked || seq < f->ack_low)
		f->ack_low = seq;
	if (!f->nr_unacked++)
		f->ack_due_ns = GX_MIN(f->ack_due_ns, now_ns + f->ack_delay_ns);
	if (ahead && !f->ordered)
		flow_ack_soon(f, now_ns);
	f->ack_want |= ack_now;
}

void flow_rx_marked(struct flow *f)
{
	f->rx_marks++;
}

void flow_rx_again(struct flow *f, uint64_t now_ns)
{
	flow_ack_soon(f, now_ns);
}

bool flow_ack_due(const struct flow *f, uint64_t now_ns)
{
	if (!f->rx_next)
		return false;
	return f->ack_want || f->nr_unacked >= f->ack_every || now_ns >= f->ack_due_ns;
}

void flow_ack_want(struct flow *f)
{
	f->ack_want = true;
}

uint64_t flow_ack_due_ns(const struct flow *f)
{
	return f->rx_next ? f->ack_due_ns : FLOW_NEVER;
}

/* Largest seq of the next ACK. More packets may have come than one ACK can report, when ACKs could
 * not leave for long, or when packets come late by more than that. Then the older part comes first,
 * and @more says that another ACK is due. */
static uint64_t flow_ack_top(struct flow *f, bool *more)
{
	uint64_t top = f->rx_next - 1;
	uint64_t known = top > f->rx_mask ? top - f->rx_mask : 0;

	*more = false;
	if (!f->nr_unacked || top - f->ack_low < FLOW_ACK_SPAN)
		return top;
	if (gx_unlikely(f->ack_low < known)) {
		f->ack_low = bits_next(f->rx, f->rx_mask, known, top);
		if (top - f->ack_low < FLOW_ACK_SPAN)
			return top;
	}
	*more = true;
	for (top = f->ack_low + FLOW_ACK_SPAN - 1; !bits_test(f->rx, f->rx_mask, top);)
		top--;
	return top;
}

bool flow_ack_build(struct flow *f, uint64_t now_ns, struct gx_wire_ack *ack)
{
	uint64_t top, need, held = now_ns > f->rx_max_ns ? now_ns - f->rx_max_ns : 0;
	bool more;

	if (!f->rx_next)
		return false;
	top = flow_ack_top(f, &more);
	need = f->nr_unacked ? (top - f->ack_low) / 64 + 1 : 1;
	if (!f->lossless)
		need = GX_MAX(need, GX_MIN(FLOW_ACK_WORDS, top / 64 + 1));
	ack->largest = f->rx_first + top;
	ack->delay_ns = (uint32_t)GX_MIN(held, UINT32_MAX);
	ack->credit = f->rx_limit;
	ack->marks = f->rx_marks;
	ack->nr_words = (uint16_t)need;
	for (uint32_t w = 0; w < need; w++)
		ack->words[w] = bits_get(f->rx, f->rx_mask, top - 64ull * w);

	f->ack_ns = now_ns;
	f->ack_due_ns = FLOW_NEVER;
	f->ack_want = more;
	f->nr_unacked = more;
	f->ack_low = more ? bits_next(f->rx, f->rx_mask, top + 1, f->rx_next) : 0;
	return true;
}

/* ---- Receiver: credit ---- */

uint32_t flow_granted(const struct flow *f)
{
	return f->rx_limit - f->rx_used;
}

uint32_t flow_used(const struct flow *f)
{
	return f->rx_used;
}

uint32_t flow_grant(struct flow *f, uint32_t need, uint32_t nr_free)
{
	uint64_t aim = GX_MIN((uint64_t)need + FLOW_CREDIT_MARGIN, nr_free);
	uint32_t had = flow_granted(f);
	uint32_t more = aim > had ? (uint32_t)aim - had : 0;

	f->rx_limit += more;
	return more;
}

void flow_grant_used(struct flow *f, uint32_t n)
{
	/* A peer gains nothing by sending above its credit, or by declaring more than it had. */
	f->rx_used += GX_MIN(n, flow_granted(f));
}
