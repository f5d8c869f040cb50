/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs made anew (verbs_mend.c). Control thread.
 */
#ifndef GX_VERBS_MEND_H
#define GX_VERBS_MEND_H

#include "verbs/verbs.h"

struct verbs_lane;
struct verbs_qp;

/* What the control thread keeps of a queue pair. owner: ctl */
struct verbs_side {
	struct verbs_qp_say own, peer; /* of the life that begins */
	bool own_reset, peer_reset;    /* that end is reset and not yet connected */
	uint32_t peer_taken;	       /* peer_reset: see struct verbs_mend */
	uint64_t down_ns;	       /* not UP since then; 0: it is UP */
	unsigned vain;		       /* lives since then that were never UP */
};

/** verbs_mend_step() - Do what can be done for @q now. True: send @m (its qp is the number in the
 * lane) to the peer. */
bool verbs_mend_step(struct verbs_lane *l, struct verbs_qp *q, struct verbs_side *s,
		     const struct verbs_hello *peer, struct verbs_mend *m);
/** verbs_mend_take() - The peer has sent @m for @q. Return: 0, -EPROTO. */
int verbs_mend_take(struct verbs_lane *l, struct verbs_qp *q, struct verbs_side *s,
		    const struct verbs_hello *peer, const struct verbs_mend *m);
/** verbs_mend_stop() - The connection ends: have the device flush all queue pairs. */
void verbs_mend_stop(struct verbs_lane *l);
/** verbs_mend_give_up() - The device did not flush them in time, or is gone: destroy them. Nothing
 * happens before the core has run verbs_lane_fail(). */
void verbs_mend_give_up(struct verbs_lane *l);

#endif
