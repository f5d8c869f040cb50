/* SPDX-License-Identifier: Apache-2.0 */
/*
 * match.c: sends and receives. On the core, unless a line says otherwise. Private to dataplane/.
 */
#ifndef GX_PACKET_MATCH_H
#define GX_PACKET_MATCH_H

#include "packet/pkt.h"

int match_recv(struct pkt_ep *e, uint32_t op); /* posts a receive: OFFER */
void match_send(struct pkt_ep *e, uint32_t op);
void match_offer(struct pkt_ep *e, const struct gx_wire_rec *rec);
void match_revoke(struct pkt_ep *e, uint64_t token);
void match_early(struct pkt_ep *e); /* records before an early offer have come */
void match_unbind(struct pkt_ep *e,
		  uint32_t op); /* a send ends before it began: its offer is free again */
void match_serve_gets(struct pkt_ep *e);
void match_lease(struct pkt_ep *e, const struct pkt_op *op); /* it is done: the peer gets a word */
void match_unserve(struct pkt_ep *e, uint32_t op); /* nothing of it was sent: a request again */

#endif
