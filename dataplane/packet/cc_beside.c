/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Congestion control beside streams whose windows grow bit by bit, as cubic's and Reno's do: is there
 * one, and how long does it need after a loss? Runs on the polling core.
 *
 * Another connection of gx holds still or probes. A probe makes a short peak of the queue, which the
 * least round trip of a few rounds does not see; then its window is another one, or the same. A window
 * that grows makes the round trip longer, span by span.
 */
#include "packet/cc_part.h"

#define TREND_ROUNDS 8	/* of a span */
#define TREND_SHIFT  9	/* longer: by this part of the least round trip of all */
#define TREND_SPANS  4	/* of at least so many spans ... */
#define TREND_PCT    80 /* ... this part was longer than the one before */
#define RENO_PCT     57 /* rounds a packet of the window, until Reno has it again (RFC 9438, 4.3) */

void cc_trend_look(struct cc_trend *t, uint64_t rtt_ns, uint64_t rtt_min_ns, bool round_start)
{
	if (rtt_ns && (!t->least_ns || rtt_ns < t->least_ns))
		t->least_ns = rtt_ns;
	if (!round_start || ++t->rounds < TREND_ROUNDS)
		return;
	if (t->before_ns) {
		t->spans++;
		t->grew += t->least_ns > t->before_ns + (rtt_min_ns >> TREND_SHIFT);
	}
	t->rounds = 0;
	t->before_ns = t->least_ns;
	t->least_ns = 0;
}

bool cc_trend_grows(const struct cc_trend *t)
{
	return t->spans >= TREND_SPANS && t->grew * 100 >= t->spans * TREND_PCT;
}

/* K = cbrt(W (1 - 0.7) / 0.4) seconds (RFC 9438, 4.2), here in halves of a second. */
uint64_t cc_regrow_ns(uint64_t pkts, uint64_t rtt_ns)
{
	uint64_t k = 1;

	while (k * k * k < 6 * pkts)
		k++;
	return GX_MIN(k * CC_S / 2, pkts * RENO_PCT * rtt_ns / 100);
}
