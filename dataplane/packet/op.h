/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op.c: an operation from the post to the completion. On the core, unless a line says otherwise. Private to dataplane/.
 */
#ifndef GX_PACKET_OP_H
#define GX_PACKET_OP_H

#include "packet/pkt.h"

uint32_t op_alloc(struct pkt_ep *e); /* QUEUED, in no list; PKT_NONE: all are in use */
void op_free(struct pkt_ep *e, uint32_t i);
void op_complete(struct pkt_ep *e, uint32_t i, int status, uint64_t len); /* reports it once */
/* Completes and frees it; ENDED while packets reference it. */
void op_finish(struct pkt_ep *e, uint32_t i, int status, uint64_t len);
void op_drop(struct pkt_ep *e, struct pkt_op *op); /* gives back its resources */
void op_local(struct pkt_ep *e, uint32_t i);	   /* every packet is acknowledged */
void op_neutralise(struct pkt_ep *e, const struct pkt_op *op);
void op_unlist(struct pkt_ep *e, uint32_t i); /* out of its list, which its state names */
bool op_outgrown(const struct pkt_ep *e, const struct pkt_op *op);
void op_withdraw(struct pkt_ep *e, struct pkt_op *op, uint32_t i);
void op_again(struct pkt_ep *e, uint32_t i);	    /* it begins again with the quantum of now */
void op_done(struct pkt_ep *e, uint32_t i);	    /* the peer is done with its mid */
void op_unref(struct link_pkt *l, uint32_t cookie); /* a packet lets go of its operation */
uint32_t slot_alloc(struct pkt_ep *e, uint32_t op);
uint64_t slot_token(const struct pkt_ep *e, uint32_t slot);
struct pkt_slot *slot_find(struct pkt_ep *e, uint64_t token); /* NULL: stale */
void slot_free(struct pkt_ep *e, uint32_t slot);
bool tx_has_first(const struct pkt_ep *e); /* has a message packets to send for the first time? */
void op_push(struct pkt_ep *e, uint32_t *head, uint32_t *tail, uint32_t i);
void op_remove(struct pkt_ep *e, uint32_t *head, uint32_t *tail, uint32_t i);
void link_release(struct link_pkt *l, uint64_t buf);
void link_release_flush(struct link_pkt *l);

#endif
