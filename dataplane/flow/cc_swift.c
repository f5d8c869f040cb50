/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The controller `swift` (Kumar et al., SIGCOMM 2020): a window that holds the round trip at a
 * target, for the fabric of one owner, whose paths are known. It grows by a packet a round trip
 * below the target, and shrinks above it by how far it is above. It may be less than a packet; then
 * the pacer spaces packets out. Runs on the polling core.
 *
 * Beside a stream that fills the queue it would starve. So it turns into `rate` when it has cut for
 * many round trips and the queue has not drained.
 */
#include "flow/cc_part.h"

#define SWIFT_Q	       16 /* fraction bits of a window in packets */
#define SWIFT_ONE      (1ull << SWIFT_Q)
#define SWIFT_QUEUE_NS 25000		/* of the target, above the least round trip */
#define SWIFT_FLOWS    5		/* flow scaling: so many least round trips more, at most */
#define SWIFT_LOW      (SWIFT_ONE / 10) /* window: fs_min_cwnd 0.1, ... */
#define SWIFT_MAX      (1024 * SWIFT_ONE)
#define SWIFT_BETA_PCT 80
#define SWIFT_CUT_PCT  50 /* in a round trip, at most */
#define SWIFT_TIMEOUTS 5  /* in a row, until the window is the least one */
#define SWIFT_STARVES  64 /* round trips above the target, with cuts */

static uint64_t root(uint64_t n)
{
	uint64_t r = 1ull << ((64 - (unsigned)__builtin_clzll(n | 1)) / 2 + 1);

	for (unsigned i = 0; i < 40; i++) {
		uint64_t next = (r + n / r) / 2;

		if (next >= r)
			break;
		r = next;
	}
	return r;
}

/* Section 3.5: flows that share a link have small windows, and need more queue together. fs =
 * range * (1/sqrt(w) - 1/sqrt(high)) / (1/sqrt(low) - 1/sqrt(high)), between 0 and range. */
static uint64_t target_ns(const struct cc_swift *w)
{
	static const uint64_t low_q = 207243, high_q = 6554; /* 1/sqrt of 0.1 and 100 << 16 */
	uint64_t range = SWIFT_FLOWS * w->base_ns, flows = 0, inv_q;

	inv_q = (1ull << 2 * SWIFT_Q) / GX_MAX(root(w->window_q << SWIFT_Q), 1ull);
	if (inv_q > high_q)
		flows = GX_MIN(range * (inv_q - high_q) / (low_q - high_q), range);
	return w->base_ns + SWIFT_QUEUE_NS + flows;
}

static void window_put(struct cc *c)
{
	struct cc_swift *w = &c->swift;

	w->window_q = GX_MAX(GX_MIN(w->window_q, SWIFT_MAX), SWIFT_LOW);
	c->window_b = GX_MAX(w->window_q * c->packet_b >> SWIFT_Q, 1ull);
	/* A window below a packet: one packet each so many round trips. */
	cc_pace(c, w->window_q >= SWIFT_ONE ? 0 : c->window_b * CC_S / GX_MAX(c->rtt_ns, 1ull));
}

static void swift_begin(struct cc *c, uint64_t now_ns)
{
	(void)now_ns;
	c->swift = (struct cc_swift){.base_ns = CC_NEVER,
				     .window_q = (c->window_b << SWIFT_Q) / c->packet_b};
	c->rate.bw = CC_NEVER;
}

static bool may_cut(struct cc_swift *w, uint64_t now_ns, uint64_t rtt_ns)
{
	if (now_ns < w->cut_ns + rtt_ns)
		return false;
	w->cut_ns = now_ns;
	return true;
}

static void shrink(struct cc *c, uint64_t now_ns, uint64_t delay_ns, uint64_t goal_ns)
{
	struct cc_swift *w = &c->swift;
	uint64_t cut = SWIFT_BETA_PCT * (delay_ns - goal_ns) / delay_ns;

	if (!w->full_ns)
		w->full_ns = now_ns;
	if (!may_cut(w, now_ns, delay_ns))
		return;
	w->window_q -= w->window_q * GX_MIN(cut, (uint64_t)SWIFT_CUT_PCT) / 100;
}

static void become_rate(struct cc *c, uint64_t now_ns)
{
	c->ops = &cc_rate_ops;
	c->window_b = GX_MAX(c->window_b, 4ull * c->packet_b);
	c->ops->begin(c, now_ns);
}

static void swift_ack_end(struct cc *c, uint64_t now_ns, const struct cc_sample *s)
{
	struct cc_swift *w = &c->swift;
	uint64_t goal_ns, pkts_q = ((uint64_t)s->acked_b << SWIFT_Q) / c->packet_b;

	if (!s->rtt_ns)
		return;
	w->timeouts = 0;
	w->base_ns = GX_MIN(w->base_ns, s->rtt_ns);
	goal_ns = target_ns(w);
	if (s->rtt_ns > goal_ns) {
		shrink(c, now_ns, s->rtt_ns, goal_ns);
		if (now_ns - w->full_ns > SWIFT_STARVES * s->rtt_ns) {
			become_rate(c, now_ns);
			return;
		}
	} else {
		w->full_ns = 0;
		if (w->window_q >= SWIFT_ONE)
			w->window_q += (pkts_q << SWIFT_Q) / w->window_q;
		else
			w->window_q += pkts_q;
	}
	window_put(c);
}

static void swift_lost(struct cc *c, uint64_t now_ns, const struct cc_pkt *p)
{
	struct cc_swift *w = &c->swift;

	(void)p;
	if (!may_cut(w, now_ns, GX_MAX(c->rtt_ns, 1ull)))
		return;
	w->window_q = w->window_q / 100 * (100 - SWIFT_CUT_PCT);
	window_put(c);
}

static void swift_timeout(struct cc *c, uint64_t now_ns)
{
	struct cc_swift *w = &c->swift;

	if (++w->timeouts >= SWIFT_TIMEOUTS)
		w->window_q = SWIFT_LOW;
	else if (may_cut(w, now_ns, GX_MAX(c->rtt_ns, 1ull)))
		w->window_q = w->window_q / 100 * (100 - SWIFT_CUT_PCT);
	window_put(c);
}

static void swift_nothing(struct cc *c, uint64_t now_ns)
{
	(void)c;
	(void)now_ns;
}

static const char *swift_phase(const struct cc *c)
{
	return c->swift.full_ns ? "above target" : "below target";
}

const struct cc_ops cc_swift_ops = {
	.kind = CC_SWIFT,
	.begin = swift_begin,
	.sent = swift_nothing,
	.lost = swift_lost,
	.ack_end = swift_ack_end,
	.timeout = swift_timeout,
	.spurious = swift_nothing,
	.phase = swift_phase,
};
