/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ack.c: acknowledgements, ours and the peer's. On the core, unless a line says otherwise. Private to dataplane/.
 */
#ifndef GX_PACKET_ACK_H
#define GX_PACKET_ACK_H

#include "packet/pkt.h"

bool ack_send(struct pkt_ep *e);     /* sends a lone ACK, if one is due */
void ack_take_out(struct pkt_ep *e); /* takes out acknowledged packets and lost ones */
void ack_done(struct pkt_ep *e, const struct gx_wire_ack *ack);

#endif
