/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A flow with its congestion control: tells the controller of all that the flow sends, and of all
 * that its acknowledgements and timers find. Owner: poll core. All of it only where there is a
 * controller.
 */
#ifndef GX_PACE_H
#define GX_PACE_H

#include "flow/cc.h"
#include "flow/flow.h"

struct pace {
	struct cc *cc;	   /* NULL: none */
	uint64_t known;	   /* packets that the controller knows, of flow_nr_sent() */
	uint64_t spurious; /* of flow_spurious() */
	uint32_t marks;	   /* of flow_marks() */
};

/* After packets were sent. */
void pace_sent(struct pace *p, const struct flow *f);
/* After flow_ack() or flow_tick(), before packets are taken out of the flow. */
void pace_ack_end(struct pace *p, const struct flow *f, uint64_t now_ns);

#endif
