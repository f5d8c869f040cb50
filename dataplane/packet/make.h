/* SPDX-License-Identifier: Apache-2.0 */
/*
 * make.c: packets, made and handed to the port. On the core, unless a line says otherwise. Private to dataplane/.
 */
#ifndef GX_PACKET_MAKE_H
#define GX_PACKET_MAKE_H

#include "packet/pkt.h"

/* How to send a DATA packet. */
struct tx_how {
	uint8_t kind; /* PKT_K_DATA, PKT_K_ASKED */
	bool resend;
	bool copy; /* the port may not refer to the payload */
};
void make_data(struct pkt_ep *e, struct gx_tx *tx, uint32_t op, uint64_t pkt,
	       const struct tx_how *how); /* the caller has set tx->data */
void make_ctl(struct pkt_ep *e, uint8_t type, uint8_t flags, uint64_t psn, uint32_t mid,
	      const void *data, uint32_t len);
void make_probe(struct pkt_ep *e, uint32_t padded_b, uint8_t flags); /* 0: a keepalive; else data of
								      that size */
void make_send(struct link_pkt *l, unsigned n);			     /* link->tx[0 .. n) */
uint32_t make_ack_bound(const struct pkt_ep *e); /* bytes of the next ACK, at most */
uint32_t make_ack(struct pkt_ep *e, uint8_t *b); /* bytes of the ACK that is due; 0: none is */
unsigned make_ctl_room(struct pkt_ep *e); /* packets of the control half that the port takes now */

#endif
