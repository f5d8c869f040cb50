/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rx.c, tx.c: packets in, packets out. On the core, unless a line says otherwise. Private to dataplane/.
 */
#ifndef GX_PACKET_RXTX_H
#define GX_PACKET_RXTX_H

#include "packet/pkt.h"

bool rx_poll(struct link_pkt *l, bool few, uint64_t now_ns);	      /* did any come? */
bool rx_reap(struct link_pkt *l, uint64_t now_ns);		      /* takes ended copies */
void rx_flush(struct link_pkt *l, bool burst_short, uint64_t now_ns); /* begins waiting copies */
bool tx_start(struct pkt_ep *e);		/* gives mids to waiting operations */
uint32_t tx_mid(struct pkt_ep *e, uint32_t op); /* a mid for it; nr_mids < GX_WIRE_MIDS */
bool tx_data(struct pkt_ep *e);
void tx_grant(struct pkt_ep *e); /* grants credit where each peer has its own buffers */

#endif
