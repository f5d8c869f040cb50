/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Zero-copy receive of io_uring for the data sockets of a context (gx_nic_opts.rx zcrx): each core
 * has one receive queue of a NIC, and an area of host memory whose pages the NIC fills. The CPU and
 * GPUs read the area, so headers may lie in it: the sockets are those of tcp_uring.c, with its feed.
 *
 * A socket needs a flow rule to the queue of its core. The kernel copies other packets into the
 * area, and takes such pages back only when the NIC wants pages, which may be never. So gx reads a
 * socket without a rule by recv(), and says so.
 *
 * The operator prepares the NIC (gxd nic plan). Control path. UNTRIED on hardware.
 */
#ifndef GX_TCP_ZCRX_H
#define GX_TCP_ZCRX_H

#include "nic/tcp_nic.h"
#include "nic/uring_rx.h"

struct tcp_zcrx;

struct tcp_zcrx_cfg {
	const struct nic_sys *nic;
	const struct io_ring_sys *ring;
	const struct gx_nic_opts *where; /* .rx_if, its queues */
	uint64_t area_b;		 /* of all cores together */
	unsigned nr_cores;
};

/** tcp_zcrx_open() - Look at the NIC; nothing is bound yet. Return: 0; -EINVAL, -ENODEV, -ERANGE,
 * -EOPNOTSUPP, -ENOMEM with gx_error(), which names what the NIC lacks, and the cure. */
int tcp_zcrx_open(const struct tcp_zcrx_cfg *cfg, struct tcp_zcrx **out);
void tcp_zcrx_close(struct tcp_zcrx *z); /* no ring and no rule of it is left; NULL is fine */
/** tcp_zcrx_area_b() - Bytes of one core's area. */
uint64_t tcp_zcrx_area_b(const struct tcp_zcrx *z);
/** struct tcp_zcrx_area - Memory for a queue: of the host, or (@dmabuf_fd >= 0) of a device. */
struct tcp_zcrx_area {
	void *at;
	uint64_t len;
	int dmabuf_fd;
};

/** tcp_zcrx_ring() - A ring with queue @queue of @n, which fills @a. Return: 0; the kernel's -errno
 * with gx_error(). */
int tcp_zcrx_ring(const struct tcp_nic *n, const struct io_ring_sys *sys, uint32_t queue,
		  const struct tcp_zcrx_area *a, struct uring_rx **out);
/** tcp_zcrx_take() - A ring with the queue of core @core, which fills the area at @area. Return: 0;
 * the kernel's -errno with gx_error(). */
int tcp_zcrx_take(struct tcp_zcrx *z, unsigned core, void *area, struct uring_rx **out);
/** tcp_zcrx_rule() - Have the packets of @fd come to the queue of @core. Return: place of the rule;
 * -errno: the socket is to be read by recv(), and the log says why. */
int tcp_zcrx_rule(struct tcp_zcrx *z, unsigned core, int fd);
void tcp_zcrx_unrule(struct tcp_zcrx *z, int place); /* < 0: there is none */
/** tcp_zcrx_text() - In words, for gx_describe(). */
void tcp_zcrx_text(const struct tcp_zcrx *z, char *buf, size_t room);

#endif
