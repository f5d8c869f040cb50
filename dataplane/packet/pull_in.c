/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiver's part of a turn for messages that it reads where they lie (pull.c): a piece of one
 * of them, out of the sender's process; or all of them that queue pairs take. Runs on the polling
 * core.
 */
#include "packet/pkt.h"

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

/* Each endpoint reads one piece in a turn, of its messages in turn. */
static bool piece_turn(struct pkt_ep *e)
{
	uint32_t at = pull_next(e);
	struct in_msg *m = &e->in[at];
	uint64_t len = GX_MIN(m->len - m->visible_b, (uint64_t)PULL_PIECE_B);
	ssize_t n;

	if (!e->link->pull_left_b)
		return true; /* its turn comes: the first endpoint is another one in each turn */
	e->pull.rover = at + 1;
	e->link->pull_left_b -= GX_MIN(e->link->pull_left_b, (uint32_t)len);
	n = pull_who_reads(&e->pull.who, m->dst + m->visible_b, m->from + m->visible_b, len);
	if (pull_is_taken(e, m->mid)) {
		pull_forget(e, m); /* its CANCEL is on the way */
	} else if (n > 0) {
		m->visible_b += (uint64_t)n;
		gx_stat_add(pkt_stats(e->link), GX_STAT_PULL_BYTES, (uint64_t)n);
		if (m->visible_b == m->len)
			pull_landed(e, m);
	} else if (n != -EINTR && n != -ENOMEM) { /* these pass: a later turn tries again */
		pull_fail(e, m, n ? (int)n : -EFAULT);
	}
	return true;
}

/* ---- By queue pairs ---- */

static bool qps_turn(struct pkt_ep *e)
{
	bool worked = false;

	while (e->pull.nr_due) {
		uint32_t at = pull_next(e);
		struct in_msg *m = &e->in[at];

		if (!e->pull.qps->begin(e, m))
			break;
		e->pull.rover = at + 1;
		pull_forget(e, m);
		m->fetched = true;
		m->pending++;
		worked = true;
	}
	return worked;
}

void pull_ended(struct pkt_ep *e, uint32_t place, int err)
{
	struct in_msg *m = &e->in[place];

	ep_touch(e);
	m->fetched = false;
	m->pending--;
	if (in_is_drained(m)) {
		in_drained(e, m);
	} else if (m->state == IN_ACTIVE && !err) {
		m->visible_b = m->len;
		gx_stat_add(pkt_stats(e->link), GX_STAT_PULL_BYTES, m->len);
		pull_landed(e, m);
	} else if (m->state == IN_ACTIVE && err != -ENOTCONN) {
		gx_stat_add(pkt_stats(e->link), GX_STAT_PULLS_FAILED, 1);
		/* The sender has freed its memory, and says so. */
		in_refuse(e, m, err == -ENOENT ? -ECANCELED : err);
	}
}

/* ---- A turn ---- */

bool pull_turn(struct pkt_ep *e)
{
	if (e->pull.qps)
		return qps_turn(e);
	return piece_turn(e);
}
