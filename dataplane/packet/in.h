/* SPDX-License-Identifier: Apache-2.0 */
/*
 * in.c: incoming messages. On the core, unless a line says otherwise. Private to dataplane/.
 */
#ifndef GX_PACKET_IN_H
#define GX_PACKET_IN_H

#include "packet/pkt.h"

struct in_msg *in_at(struct pkt_ep *e, uint32_t mid); /* the place of @mid */
void in_open(struct pkt_ep *e, const struct gx_wire_rec *rec);
void in_refuse(struct pkt_ep *e, struct in_msg *m, int err); /* sends FAIL */
void in_cancel(struct pkt_ep *e, const struct gx_wire_rec *rec);
void in_check_landed(struct pkt_ep *e, struct in_msg *m); /* is all of it visible? */
void in_fence(struct link_pkt *l); /* before anybody hears of payload that bypassed the cache */
void in_close(struct pkt_ep *e);   /* of a failed ep */
bool in_is_drained(const struct in_msg *m);
/* Do blocks copy its pieces? Into host memory the core does. */
static inline bool in_scatters(const struct pkt_ep *e, const struct in_msg *m)
{
	return m->bq != e->link->bq_host || e->link->q->rx_gpu;
}
void in_drained(struct pkt_ep *e, struct in_msg *m);
bool in_deliver_due(struct pkt_ep *e); /* delivers completions that waited for room */
void in_give_up(struct pkt_ep *e,
		uint32_t op);	/* our RECV or GET ends early: place nothing more into its memory */
void in_tick(struct pkt_ep *e); /* queues FAIL records that found no room */

#endif
