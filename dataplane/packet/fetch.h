/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch.c: payload of GPUs that the port cannot read in place. On the core, unless a line says otherwise. Private to dataplane/.
 */
#ifndef GX_PACKET_FETCH_H
#define GX_PACKET_FETCH_H

#include "packet/pkt.h"

void fetch_ahead(struct pkt_ep *e, struct pkt_op *op); /* stages chunks that the window allows */
/* Bytes of packet @pkt for the port, which goes out in @tx, of link->tx; NULL: they are not there yet. */
const char *fetch_payload(struct pkt_ep *e, struct pkt_op *op, uint64_t pkt, struct gx_tx *tx);
/* The same of an operation in pieces of host memory: the port gathers them, if it can. NULL: the burst has
 * enough of them. */
const char *fetch_gather(struct pkt_ep *e, struct pkt_op *op, uint64_t pkt, struct gx_tx *tx);
/* The same for the next packet in the ring of lost ones. *@copy: the port may not refer to it. */
const char *fetch_lost(struct pkt_ep *e, struct pkt_op *op, uint64_t pkt, struct gx_tx *tx,
		       bool *copy);
bool fetch_is_broken(const struct pkt_ep *e,
		     const struct pkt_op *op); /* does its GPU copy nothing any more? */
/* The same for a packet that goes again, with others up to @end; the port may not refer to it. */
const char *fetch_again(struct pkt_ep *e, struct pkt_again *g, const struct pkt_op *op,
			uint32_t pkt, uint32_t end);
void fetch_sent(struct pkt_ep *e);		       /* the port has taken link->tx */
void fetch_acked(struct pkt_ep *e, struct pkt_op *op); /* the peer acknowledged packets of it */
void fetch_end(struct pkt_ep *e, struct pkt_op *op);   /* it needs no buffers any more */
void fetch_tick(struct pkt_ep *e);		       /* gives buffers back that others wait for */
void fetch_close(struct pkt_ep *e);		       /* of a failed ep */

#endif
