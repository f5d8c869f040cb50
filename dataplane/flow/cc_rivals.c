/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Congestion control next to streams whose windows grow bit by bit, as cubic's and Reno's do: is there
 * one, and how long does it need after a loss? Runs on the polling core.
 *
 * A window that grows makes rounds longer, span by span, and most of all from the first to the last.
 * Another connection of gx holds still or probes. A probe makes a short peak of the queue, which is one
 * span; then its window is another one, a step, or the same. So all pairs of spans are compared, as in
 * Kendall's rank correlation: where a window grows nearly all go up, after a step three of four, and
 * else half of them. A stream that nears what it had grows slowly, and the times of rounds jitter: once
 * seen, it is believed down to fewer pairs.
 */
#include "flow/cc_part.h"

#include <string.h>

#define TREND_ROUNDS	8  /* of a span */
#define TREND_SHIFT	9  /* longer: by this part of the least round trip */
#define TREND_FEW	4  /* of at least so many spans ... */
#define TREND_PCT	80 /* ... this part of the pairs goes up, ... */
#define TREND_STILL_PCT 60 /* ... or this part when it was so at the span before */
#define RENO_PCT	57 /* rounds a packet of the window, until Reno has it again (RFC 9438, 4.3) */

static bool trend_grows(const struct cc_trend *t, uint64_t more_ns)
{
	uint32_t pairs = 0, up = 0;

	for (uint32_t k = 1; k < t->spans; k++)
		for (uint32_t i = 0; i < k; i++, pairs++)
			up += t->span_ns[k] > t->span_ns[i] + more_ns;
	return t->spans >= TREND_FEW &&
	       up * 100 >= pairs * (t->grows ? TREND_STILL_PCT : TREND_PCT);
}

void cc_trend_look(struct cc_trend *t, uint64_t now_ns, uint64_t rtt_min_ns)
{
	if (!t->since_ns) {
		t->since_ns = now_ns;
		return;
	}
	if (++t->rounds < TREND_ROUNDS)
		return;
	if (t->spans == CC_TREND_SPANS)
		memmove(t->span_ns, t->span_ns + 1, --t->spans * sizeof(*t->span_ns));
	t->span_ns[t->spans++] = (now_ns - t->since_ns) / TREND_ROUNDS;
	t->since_ns = now_ns;
	t->rounds = 0;
	t->grows = trend_grows(t, rtt_min_ns >> TREND_SHIFT);
}

/* K = cbrt(W (1 - 0.7) / 0.4) seconds (RFC 9438, 4.2), here in halves of a second. */
uint64_t cc_regrow_ns(uint64_t pkts, uint64_t rtt_ns)
{
	uint64_t k = 1;

	while (k * k * k < 6 * pkts)
		k++;
	return GX_MIN(k * CC_S / 2, pkts * RENO_PCT * rtt_ns / 100);
}
