/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rec.c: control records on their way out. On the core, unless a line says otherwise. Private to dataplane/.
 */
#ifndef GX_PACKET_REC_H
#define GX_PACKET_REC_H

#include "packet/pkt.h"

bool rec_add(struct pkt_ep *e, const struct gx_wire_rec *rec, uint32_t op); /* false: no room */
static inline uint32_t rec_room(const struct pkt_ep *e)
{
	return PKT_RECS - (e->rec.next - e->rec.floor);
}
bool rec_send(struct pkt_ep *e); /* send queued records */
void rec_acked(struct pkt_ep *e, uint32_t first, uint32_t n);
void rec_requeue(struct pkt_ep *e, uint32_t first, uint32_t n); /* the network lost them */

#endif
