/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The turn of the tcp link, and the link of a core.
 */
#ifndef GX_TCP_TURN_H
#define GX_TCP_TURN_H

#include "tcp/tcp.h"

bool link_tcp_poll(void *link, uint64_t now_ns);
bool link_tcp_asleep(const void *link);
int link_tcp_look(void *link, struct gx_look *look); /* of struct gx_poller */
void link_tcp_drop(void *link, struct drop *d);
void tcp_attach(struct gx_ep *ep);

/* -- link_tcp.c: control path -- */

/** link_tcp_open() - The link's part of @core, which is then core->link[GX_LINK_TCP]: the beginning of
 * @size bytes, 0 after it. Return: 0, -ENOMEM with gx_error(). */
int link_tcp_open(struct gx_core *core, const struct tcp_offload *offload, size_t size);
/** link_tcp_end() - No core runs: feeds that were kept end. Nothing but link_tcp_free() may follow. */
void link_tcp_end(struct link_tcp *l);
void link_tcp_free(struct gx_core *core);

#endif
