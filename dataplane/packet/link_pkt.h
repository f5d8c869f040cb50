/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link_pkt.c: the link of a core over a port, and its endpoints' control path. On the core, unless a line says otherwise. Private to dataplane/.
 */
#ifndef GX_PACKET_LINK_PKT_H
#define GX_PACKET_LINK_PKT_H

#include "packet/pkt.h"

int link_pkt_open(struct gx_core *core, struct gx_port *port, struct gx_port_queue *q,
		  struct link_pkt **out);		  /* ctl */
void link_pkt_close(struct link_pkt *l);		  /* ctl */
int link_pkt_gpu(struct link_pkt *l, struct gx_gpu *gpu); /* ctl: make block queue and staging */
void link_pkt_take(struct link_pkt *l, unsigned device);  /* core: use them from now on */
/* ctl: an endpoint as the first part of @len bytes, all zero; ->ep_free gives it back. */
struct pkt_ep *pkt_ep_alloc(size_t len);

#endif
