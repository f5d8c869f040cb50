/* SPDX-License-Identifier: Apache-2.0 */
/*
 * abort.c: operations that end early. On the core, unless a line says otherwise. Private to dataplane/.
 */
#ifndef GX_PACKET_ABORT_H
#define GX_PACKET_ABORT_H

#include "packet/pkt.h"

void abort_op(struct pkt_ep *e, uint32_t i, int err); /* completes with err, tells the peer */
void abort_rec(struct pkt_ep *e, struct pkt_op *op);  /* CANCEL, or cancel_due without room */

#endif
