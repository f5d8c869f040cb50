/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ask.c: packets that the peer asks for again. On the core, unless a line says otherwise. Private to dataplane/.
 */
#ifndef GX_PACKET_ASK_H
#define GX_PACKET_ASK_H

#include "packet/pkt.h"

void ask_take(struct pkt_ep *e, const struct gx_wire_rec *rec);
unsigned ask_send(struct pkt_ep *e, unsigned n, unsigned max); /* as tx_resends() */
void ask_acked(struct pkt_ep *e);
void ask_lost(struct pkt_ep *e, const struct flow_pkt *p);
void ask_close(struct pkt_ep *e); /* of a failed ep */

#endif
