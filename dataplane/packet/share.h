/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share.c: the pool that peers share. On the core, unless a line says otherwise. Private to dataplane/.
 */
#ifndef GX_PACKET_SHARE_H
#define GX_PACKET_SHARE_H

#include "packet/pkt.h"

void share_open(struct link_pkt *l); /* ctl */
bool share_take(struct pkt_ep *e);   /* a packet came for the first time; false: no buffer for it */
void share_used(struct pkt_ep *e, uint64_t n);	   /* the peer has used up credit */
void share_refunded(struct pkt_ep *e, uint64_t n); /* the peer gives credit back */
void share_grant(struct pkt_ep *e);
void share_look(struct link_pkt *l, uint64_t now_ns); /* while the pool is short */
void share_leave(struct pkt_ep *e);		      /* a failed ep is granted nothing any more */

#endif
