/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of an endpoint of the tcp link.
 */
#ifndef GX_TCP_LIFE_H
#define GX_TCP_LIFE_H

#include "tcp/tcp.h"

void tcp_fail(struct gx_ep *ep, int err);
/** tcp_ep_leave() - It has failed: leave, unless a copy or a send of it is under way. */
void tcp_ep_leave(struct tcp_ep *e);

#endif
