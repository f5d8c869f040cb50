/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory (devmem.h) as a source for data sockets of the tcp link.
 */
#ifndef GX_DEVMEM_FEED_H
#define GX_DEVMEM_FEED_H

#include "nic/devmem.h"
#include "tcp/tcp_feed.h"

/** devmem_feed_open() - A feed of @cfg's socket, whose payload may lie in @p. It is not readable;
 * single fragments may be. (A test whose pool is host memory may set ->readable.) Control path. Return: 0, -EINVAL, -ENOMEM. */
int devmem_feed_open(const struct devmem_cfg *cfg, struct devmem_pool *p, struct tcp_feed **out);
/** devmem_feed_rx() - The receiver behind a feed of devmem_feed_open(). */
struct devmem_rx *devmem_feed_rx(struct tcp_feed *f);

#endif
