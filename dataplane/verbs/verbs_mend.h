/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs made anew (verbs_mend.c). Control thread.
 */
#ifndef GX_VERBS_MEND_H
#define GX_VERBS_MEND_H

#include "verbs/verbs.h"

#include "gx_internal/base.h"

struct verbs_lane;
struct verbs_qp;

/* What the control thread keeps of a queue pair. owner: ctl */
struct verbs_side {
	struct verbs_qp_say own, peer; /* of the life that begins */
	bool own_reset, peer_reset;    /* that end is reset and not yet connected */
	uint32_t peer_taken;	       /* peer_reset: see struct verbs_mend */
	uint64_t down_ns;	       /* not UP since then; 0: it is UP */
	unsigned vain; /* since then: addresses not found, and lives that were never UP */
	/* READY and not connected: its path is given some time. Since when? */
	bool held;
	uint64_t held_ns;
	uint8_t path;		  /* of the connection */
	bool own_gone, peer_gone; /* that end is no more; verbs_mend.c */
	uint64_t stuck_ns;	  /* not 0: the life stuck_gen is in error since then */
	uint32_t stuck_gen;
	bool proven; /* client: its first life was answered */
};

/* What mending a connection may cost: a peer may ask for one reset of each queue pair after the other.
 * These take a fifth of the control thread's time at most, after a burst. owner: ctl */
struct verbs_budget {
	uint64_t due_ns; /* when all that was spent is paid for */
};
#define VERBS_BUDGET_OF	      5		    /* of that many parts of the time: one */
#define VERBS_BUDGET_BURST_NS 1000000000ull /* ahead of its time: 200 ms of work */
static inline bool verbs_budget_has(const struct verbs_budget *b, uint64_t now_ns)
{
	return b->due_ns <= now_ns + VERBS_BUDGET_BURST_NS;
}
static inline void verbs_budget_spend(struct verbs_budget *b, uint64_t start_ns, uint64_t end_ns)
{
	b->due_ns = GX_MAX(b->due_ns, start_ns) + VERBS_BUDGET_OF * (end_ns - start_ns);
}

/** verbs_mend_step() - Do what can be done for @q now, but no reset unless @may. True: send @m (its
 * qp is the number in the lane) to the peer. */
bool verbs_mend_step(struct verbs_lane *l, struct verbs_qp *q, struct verbs_side *s,
		     const struct verbs_port *peer, bool may, struct verbs_mend *m);
/** verbs_mend_take() - The peer has sent @m for @q. Return: 0, -EPROTO. */
int verbs_mend_take(struct verbs_lane *l, struct verbs_qp *q, struct verbs_side *s,
		    const struct verbs_port *peer, const struct verbs_mend *m);
/** verbs_mend_later() - Connecting failed with @err, for a reason that may pass: this life ends, and
 * another begins. Return: 0; -errno: @err was another error, or the device refuses. */
int verbs_mend_later(struct verbs_lane *l, struct verbs_qp *q, struct verbs_side *s, int err);
/** verbs_mend_end() - Destroy the queue pair. False: the device refuses; try again. */
bool verbs_mend_end(struct verbs_lane *l, struct verbs_qp *q);

/** verbs_mend_stop() - The connection ends: have the device flush all queue pairs. Return: 0; -errno:
 * some may go on: try again. */
int verbs_mend_stop(struct verbs_lane *l);
/** verbs_mend_stopped() - After that, at each tick: flush those that were being connected. */
void verbs_mend_stopped(struct verbs_lane *l);
/** verbs_mend_give_up() - The device did not flush them in time, or is gone: destroy them. Nothing
 * happens before the core has run verbs_lane_fail(). */
void verbs_mend_give_up(struct verbs_lane *l);

/* -- A queue pair that does not come back, while other paths of its lane work. Both ends know rails -- */

/** verbs_gone_step() - If it has quit, destroy it. True: send @m to the peer, as for
 * verbs_mend_step(). */
bool verbs_gone_step(struct verbs_lane *l, struct verbs_qp *q, struct verbs_side *s,
		     struct verbs_mend *m);
/** verbs_gone_take() - The peer's end is no more: @m says so. */
void verbs_gone_take(struct verbs_qp *q, struct verbs_side *s, const struct verbs_mend *m);
/** verbs_mend_has_other() - Does a queue pair on another path than @path work? */
bool verbs_mend_has_other(const struct verbs_lane *l, unsigned path);

#endif
