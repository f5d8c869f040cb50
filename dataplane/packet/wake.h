/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wake.c: which endpoints a turn looks at. On the core, unless a line says otherwise. Private to dataplane/.
 */
#ifndef GX_PACKET_WAKE_H
#define GX_PACKET_WAKE_H

#include "packet/pkt.h"

void ep_live(struct pkt_ep *e);			     /* attached: in live, and hot */
void ep_gone(struct pkt_ep *e);			     /* out of all lists */
void ep_wake(struct pkt_ep *e);			     /* wakes a cold one */
void link_wake(struct link_pkt *l, uint64_t now_ns); /* wakes cold ones whose timer is due */
void link_rest(struct link_pkt *l);		     /* lets endpoints sleep */
/** link_look_later() - No packet has come in this turn: when to look at the port again. */
void link_look_later(struct link_pkt *l, uint64_t now_ns);
/* Is it too early to look? Never if the caller's time has gone back since. */
static inline bool link_look_waits(const struct link_pkt *l, uint64_t now_ns)
{
	uint64_t left_ns = l->look_ns - now_ns;

	return left_ns && left_ns <= PKT_RARE_NS;
}
/* Something comes for @e from outside of its own turn: a packet, an operation, a fault. */
static inline void ep_touch(struct pkt_ep *e)
{
	if (gx_unlikely(e->wake.cold_at != PKT_NONE))
		ep_wake(e);
}

#endif
