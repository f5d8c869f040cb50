/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bad.c: packets that we ask for again. On the core, unless a line says otherwise. Private to dataplane/.
 */
#ifndef GX_PACKET_BAD_H
#define GX_PACKET_BAD_H

#include "packet/pkt.h"

bool bad_found(struct pkt_ep *e, struct in_msg *m, uint64_t off,
	       uint32_t len); /* asks for it again; false: the message cannot be had */
bool bad_again(struct pkt_ep *e, const struct in_msg *m,
	       uint64_t pkt); /* a packet whose bit is set: place it once more? */
void bad_forget(struct pkt_ep *e, struct in_msg *m); /* @m ends */
void bad_close(struct pkt_ep *e);		     /* of a failed ep */
void bad_tick(struct pkt_ep *e);		     /* queues RESEND records that found no room */

#endif
