/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory for the data sockets of a context (gx_nic_opts.rx devmem): a pool in memory of
 * one GPU, bound to queues of one NIC, and a feed (devmem_feed.h) for each socket that asks. The operator prepares the NIC (gxd nic plan); the
 * binding and the flow rules are made here. Control path. UNTRIED on hardware.
 */
#ifndef GX_TCP_DEV_H
#define GX_TCP_DEV_H

#include "nic/devmem_feed.h"
#include "nic/tcp_nic.h"

#include "gx_internal/gpu.h"
#include "gx_internal/mem.h"

#define TCP_DEV_SOCKS 128	   /* that can have a feed at a time */
#define TCP_DEV_LIN_B (256u << 10) /* host memory of each, for payload that comes linear */

struct tcp_dev;

struct tcp_dev_cfg {
	const struct nic_sys *nic;
	const struct devmem_sys *sys;
	struct gx_arena *arena;
	struct gx_gpu *gpu;
	const struct gx_nic_opts *where; /* .rx_if, its queues */
	uint64_t pool_b;
	unsigned nr_cores;
};

/** tcp_dev_open() - Return: 0; -EINVAL, -ENODEV, -EOPNOTSUPP, -ENOMEM, the kernel's, with gx_error(),
 * which names what the NIC or the GPU lacks, and the cure. */
int tcp_dev_open(const struct tcp_dev_cfg *cfg, struct tcp_dev **out);
void tcp_dev_close(struct tcp_dev *d);	     /* no feed is left; NULL is fine */
int tcp_dev_device(const struct tcp_dev *d); /* ordinal of the pool's GPU */
/** tcp_dev_promise() - Set feeds for @n sockets aside. @peer: "HOST:PORT ...", the name of the
 * connection. The sockets of a host may be as many as are free: so the first host has half of them,
 * and each one that comes later still finds some. False: there are not as many left. */
bool tcp_dev_promise(struct tcp_dev *d, const char *peer, unsigned n);
/** tcp_dev_unpromise() - @n of those that tcp_dev_promise() set aside, and no tcp_dev_feed() took. */
void tcp_dev_unpromise(struct tcp_dev *d, const char *peer, unsigned n);
/** tcp_dev_feed() - A feed of @fd for core @core, one of those set aside for @peer. It
 * warns if no flow rule can be set: then payload comes linear. Return: 0, -ENOMEM with gx_error(). */
int tcp_dev_feed(struct tcp_dev *d, const char *peer, unsigned core, int fd, struct tcp_feed **out);
void tcp_dev_report(struct tcp_dev *d); /* now and then: warn of copies that fall behind */
/** tcp_dev_text() - In words, for gx_describe(). */
void tcp_dev_text(const struct tcp_dev *d, char *buf, size_t room);

#endif
