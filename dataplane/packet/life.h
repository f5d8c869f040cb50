/* SPDX-License-Identifier: Apache-2.0 */
/*
 * life.c: an endpoint on its core. On the core, unless a line says otherwise. Private to dataplane/.
 */
#ifndef GX_PACKET_LIFE_H
#define GX_PACKET_LIFE_H

#include "packet/pkt.h"

void pkt_attach(struct gx_ep *ep);
void pkt_fail(struct gx_ep *ep, int err);
bool link_fail_progress(struct pkt_ep *e); /* of a failed ep: detaches when nothing is out */

#endif
