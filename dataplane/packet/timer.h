/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timer.c: timers. On the core, unless a line says otherwise. Private to dataplane/.
 */
#ifndef GX_PACKET_TIMER_H
#define GX_PACKET_TIMER_H

#include "packet/pkt.h"

void timer_tick(struct pkt_ep *e);
uint64_t timer_alive_ns(const struct pkt_ep *e);
void timer_gauges(struct pkt_ep *e, uint32_t nr_msgs);
/* struct gx_link_conn_ops.look; ctl */
void pkt_conn_look(const struct gx_conn *c, struct gx_link_look *out);
/* .path; ctl. In path.c */
bool pkt_conn_path(const struct gx_conn *c, unsigned *at, struct gx_path *out);
void timer_stats(struct link_pkt *l); /* the blocks' counters into the core's */

#endif
