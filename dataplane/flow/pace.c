/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A flow with its congestion control; pace.h has the contract. Runs on the polling core.
 */
#include "flow/pace.h"

void pace_sent(struct pace *p, const struct flow *f)
{
	for (uint64_t end = flow_nr_sent(f); p->known < end; p->known++) {
		const struct flow_pkt *pkt = flow_at(f, p->known);

		cc_sent(p->cc, pkt->sent_ns, (uint32_t)p->known, pkt->len);
	}
}

void pace_ack_end(struct pace *p, const struct flow *f, uint64_t now_ns)
{
	uint64_t spurious = flow_spurious(f);
	uint32_t place, marks = flow_marks(f);

	pace_sent(p, f);
	for (uint32_t i = 0; (place = flow_lost_place(f, i)) != FLOW_NO_PLACE; i++)
		cc_lost(p->cc, now_ns, place);
	for (uint32_t i = 0; (place = flow_acked_place(f, i)) != FLOW_NO_PLACE; i++)
		cc_acked(p->cc, now_ns, place);
	if (spurious != p->spurious)
		cc_spurious(p->cc, now_ns);
	p->spurious = spurious;
	if (marks != p->marks)
		cc_marked(p->cc, marks - p->marks);
	p->marks = marks;
	cc_ack_end(p->cc, now_ns);
}
