/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a controller of congestion thinks, for tests.
 */
#ifndef CC_STATE_H
#define CC_STATE_H

#include "packet/cc_part.h"

struct cc_state {
	enum cc_kind kind;	/* swift turns into rate beside a stream that fills the queue */
	const char *phase;	/* of the controller */
	uint64_t in_flight_b;	/* bytes under way */
	uint32_t in_flight;	/* packets under way */
	uint64_t window_b;	/* bytes that may be */
	uint64_t pace_b_s;	/* of the pacer; 0: it does not pace */
	uint64_t rate_b_s;	/* of the path, as far as known; 0: not yet */
	uint64_t rtt_ns;	/* last sample */
	uint64_t rtt_min_ns;	/* without queues, as far as known */
	enum cc_limit limit;	/* what kept the last packet */
	uint64_t ns[CC_LIMITS]; /* time under each limit */
};

static inline void cc_state(const struct cc *c, uint64_t now_ns, struct cc_state *out)
{
	*out = (struct cc_state){.kind = c->ops->kind,
				 .phase = c->ops->phase(c),
				 .in_flight_b = c->in_flight_b,
				 .in_flight = c->in_flight,
				 .window_b = c->window_b,
				 .pace_b_s = c->pace_b_s,
				 .rate_b_s = c->rate.bw == CC_NEVER ? 0 : c->rate.bw,
				 .rtt_ns = c->rtt_ns,
				 .rtt_min_ns = c->rtt_min_ns == CC_NEVER ? 0 : c->rtt_min_ns,
				 .limit = c->limit};
	for (unsigned i = 0; i < CC_LIMITS; i++)
		out->ns[i] = c->limit_sum_ns[i];
	if (c->limit_ns && now_ns > c->limit_ns)
		out->ns[c->limit] += now_ns - c->limit_ns;
}

static inline const char *cc_limit_name(enum cc_limit l)
{
	static const char *const name[CC_LIMITS] = {"application", "link", "window", "credit",
						    "core"};

	return name[l];
}

static inline const char *cc_kind_name(enum cc_kind k)
{
	static const char *const name[] = {"none", "rate", "swift"};

	return name[k];
}

#endif
