/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiver's part of a turn for messages that it reads where they lie (pull.c): a slice of one
 * of them, out of the sender's process, and slices that helpers have read. Runs on the polling core.
 */
#include "packet/pkt.h"
#include "packet/in.h"
#include "packet/wake.h"

#include <errno.h>

/* The first place from the rover on; there is one. */
static uint32_t pull_next(const struct pkt_ep *e)
{
	uint32_t at = e->pull.rover % GX_WIRE_MIDS, w = at / 64;
	uint64_t bits = e->pull.due[w] & ~0ull << (at & 63);

	while (!bits) {
		w = (w + 1) % GX_WIRE_DONE_WORDS;
		bits = e->pull.due[w];
	}
	return 64 * w + (uint32_t)__builtin_ctzll(bits);
}

static void pull_fail(struct pkt_ep *e, struct in_msg *m, int err)
{
	/* Unless this message alone is to blame, or the process is gone, messages that are not
	 * announced yet come as packets. */
	if (err != -EFAULT && err != -ECONNRESET)
		atomic_store_explicit(e->pull.we_read, 0, memory_order_relaxed);
	gx_stat_add(pkt_stats(e->link), GX_STAT_PULLS_FAILED, 1);
	/* ENOSYS: a filter of system calls came after the probe. */
	in_refuse(e, m, err == -ENOSYS ? -EPERM : err);
	if (err == -ECONNRESET) /* each later message would fail, too */
		rx_fault(e, err);
}

static void pull_landed(struct pkt_ep *e, struct in_msg *m)
{
	pull_forget(e, m);
	gx_stat_add(pkt_stats(e->link), GX_STAT_PULLS, 1);
	in_check_landed(e, m);
}

/* A read of a slice of @m has ended with @n. Return: bytes that count. */
static uint64_t slice_came(struct pkt_ep *e, struct in_msg *m, ssize_t n)
{
	if (pull_is_taken(e, m->mid)) {
		pull_forget(e, m); /* its CANCEL is on the way */
	} else if (n > 0) {
		m->visible_b += (uint64_t)n;
		gx_stat_add(pkt_stats(e->link), GX_STAT_PULL_BYTES, (uint64_t)n);
		if (m->visible_b == m->len)
			pull_landed(e, m);
		return (uint64_t)n;
	} else if (n != -EINTR && n != -ENOMEM) { /* these pass: a later turn tries again */
		pull_fail(e, m, n ? (int)n : -EFAULT);
	}
	return 0;
}

/* By this core, out of what it may read in a turn. */
static ssize_t core_read(struct pkt_ep *e, char *to, uint64_t from, uint64_t len)
{
	e->link->pull_left_b -= GX_MIN(e->link->pull_left_b, (uint32_t)len);
	return pull_who_reads(&e->pull.who, to, from, len);
}

/* The next bytes of @m that nobody has read. */
static void slice_read(struct pkt_ep *e, struct in_msg *m, uint64_t most_b)
{
	uint64_t len = GX_MIN(m->len - m->begun_b, most_b);
	ssize_t n = core_read(e, m->dst + m->begun_b, m->from + m->begun_b, len);

	m->begun_b += n > 0 ? (uint64_t)n : 0;
	slice_came(e, m, n);
}

/* ---- Pieces that are lent ---- */

/* Piece @i is this core's again, and its read has ended with @n. If bytes of it are missing, it is
 * lent once more. Return: bytes that count. */
static uint64_t lent_came(struct pkt_ep *e, unsigned i, ssize_t n)
{
	struct help_board *b = &e->ep.core->help;
	struct help_slice *p = &b->slice[i];
	struct in_msg *m = &e->in[p->place];
	uint64_t got = 0;

	m->pending--;
	if (m->pulled)
		got = slice_came(e, m, n);
	if (m->pulled && got < p->len) {
		p->to += got;
		p->from += got;
		p->len -= got;
		m->pending++;
		e->pull.lent |= 1u << i;
		help_offer_again(b, i);
		pull_due(e, m);
		return got;
	}
	help_free(b, i);
	if (in_is_drained(m))
		in_drained(e, m);
	return got;
}

void pull_reap(struct pkt_ep *e)
{
	struct help_board *b = &e->ep.core->help;

	for (uint32_t left = help_ended(b, e->pull.lent); left; left &= left - 1) {
		unsigned i = (unsigned)__builtin_ctz(left);

		e->pull.lent &= ~(1u << i);
		gx_stat_add(pkt_stats(e->link), GX_STAT_PULL_HELPED_BYTES,
			    lent_came(e, i, b->slice[i].got));
	}
}

void pull_fail_ep(struct pkt_ep *e)
{
	for (uint32_t left = e->pull.lent; left; left &= left - 1)
		pull_forget(e, &e->in[e->ep.core->help.slice[__builtin_ctz(left)].place]);
}

/* All bytes of @m were read or lent: read what no helper has taken. */
static void lent_read(struct pkt_ep *e, struct in_msg *m)
{
	const struct help_slice *p;
	int i = pull_lent_take(e, m);

	if (i < 0) {
		pull_not_due(e, m);
		return;
	}
	p = &e->ep.core->help.slice[i];
	lent_came(e, (unsigned)i, core_read(e, p->to, p->from, p->len));
}

/* Each endpoint reads one slice in a turn, of its messages in turn. */
static void slice_turn(struct pkt_ep *e)
{
	bool helped = help_comes(&e->ep.core->help);
	uint32_t at = pull_next(e);
	struct in_msg *m = &e->in[at];

	if (!e->link->pull_left_b)
		return; /* its turn comes: the first endpoint is another one in each turn */
	e->pull.rover = at + 1;
	if (helped)
		pull_lend(e, m);
	if (m->begun_b < m->len)
		slice_read(e, m, helped ? PULL_LENT_B : PULL_SLICE_B);
	else
		lent_read(e, m);
}

/* ---- A turn ---- */

/* A core that waits for a helper alone does not sleep. */
bool pull_turn(struct pkt_ep *e)
{
	if (e->pull.lent)
		pull_reap(e);
	if (e->pull.nr_due)
		slice_turn(e);
	return true;
}
