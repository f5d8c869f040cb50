/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Congestion control: acknowledgements that come in lumps need a larger window, by how much more came
 * than the rate says (draft-ietf-ccwg-bbr, 5.5.9). Runs on the polling core.
 */
#include "flow/cc_part.h"

#define LUMPS_ROUNDS 5 /* of each half of the filter (2.10) */

void cc_lumps_look(struct cc_lumps *l, const struct cc *c, uint64_t now_ns, uint32_t acked_b)
{
	const struct cc_rate *r = &c->rate;
	uint64_t expected = cc_bytes(r->bw, now_ns - l->since_ns);

	if (r->round_start && ++l->rounds >= (r->full_reached ? LUMPS_ROUNDS : 1)) {
		l->rounds = 0;
		l->max_b[0] = l->max_b[1];
		l->max_b[1] = 0;
	}
	if (l->b <= expected) {
		l->b = expected = 0;
		l->since_ns = now_ns;
	}
	l->b += acked_b;
	l->max_b[1] = GX_MAX(l->max_b[1], GX_MIN(l->b - expected, c->window_b));
}

uint64_t cc_lumps_b(const struct cc_lumps *l)
{
	return GX_MAX(l->max_b[0], l->max_b[1]);
}
