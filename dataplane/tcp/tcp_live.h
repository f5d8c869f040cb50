/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hot endpoints of the tcp link, which each turn serves, and cold ones.
 */
#ifndef GX_TCP_LIVE_H
#define GX_TCP_LIVE_H

#include "tcp/tcp.h"

void tcp_live_add(struct tcp_ep *e); /* it is hot */
void tcp_live_remove(struct tcp_ep *e);
void tcp_live_heat(struct tcp_ep *e);			 /* it has work, or may have */
void tcp_live_cool(struct link_tcp *l, uint64_t now_ns); /* one hot ep, if it is idle */
/** tcp_live_cold() - The next cold ep that this turn looks at; NULL: no more. */
struct tcp_ep *tcp_live_cold(struct link_tcp *l, uint64_t now_ns);

#endif
