/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Link tcp with a NIC that brings payload to memory of the program, and takes it from memory of GPUs
 * (gx_nic_opts.rx, .tx). It is the same link as tcp/ has, with more: its context has NICs, its cores
 * have rings and error queues, and its endpoints go through nic_offload (tcp/tcp_offload.h).
 * nic_link.c has the object; the ways in and out are:
 *
 *   tcp_dev.h     payload into memory of a GPU: devmem, or io_uring with such memory
 *   tcp_zcrx.h    into host memory, by io_uring
 *   tcp_zc.h      out of memory of a GPU
 */
#ifndef GX_NIC_LINK_H
#define GX_NIC_LINK_H

#include "tcp/tcp.h"

/* The link's part of a context. owner: ctl */
struct nic_ctx {
	struct tcp_tx_dev *tx; /* sends memory of GPUs; NULL: none */
	struct tcp_dev *dev;   /* device memory for data sockets; NULL: none */
	struct tcp_zcrx *zcrx; /* queues that io_uring receives by; NULL: none */
};
static inline struct nic_ctx *nic_ctx_of(const struct gx *gx)
{
	return gx->link[GX_LINK_TCP];
}

/* Of a core. */
struct nic_core {
	struct link_tcp tcp;
	const struct zc_sys *zc_sys; /* ctl: of sends that a NIC reads */
	struct tcp_ep *zc_eps;	     /* list: the kernel has sends of theirs */
	struct uring_rx *uring;	     /* ctl, before the first socket; NULL: by recv() */
	void *uring_pool;	     /* ctl: its area, of the arena; NULL: another's */
	uint64_t uring_pool_b;	     /* ctl */
};
static inline struct nic_core *nic_core_of(const struct link_tcp *l)
{
	return GX_CONTAINER_OF(l, struct nic_core, tcp);
}

extern const struct gx_link gx_link_tcp_nic;
extern const struct tcp_offload nic_offload;

/** nic_core_open() - Control path: link tcp of @core, with its ring if gx_nic_opts.rx asks for one.
 * Return: 0, -errno with gx_error(). */
int nic_core_open(struct gx_core *core);
void nic_core_close(struct gx_core *core);

/* -- tcp_uring.c: sockets that io_uring receives from -- */

/** tcp_uring_want() - Control path: a ring with a queue of the NIC for @n, if gx_nic_opts.rx asks for
 * it. Return: 0, -errno with gx_error(). */
int tcp_uring_want(struct nic_core *n);
/** tcp_uring_close() - Control path: no GPU copies any more. */
void tcp_uring_close(struct nic_core *n);
/** tcp_uring_give() - Control path: the sockets of @e without a feed are the ring's, if there is one
 * and it can have them. Return: 0, -ENOMEM. */
int tcp_uring_give(struct tcp_ep *e);
/** tcp_uring_bare() - Control path: a feed of the ring, which brings payload alone; NULL: no memory. */
struct tcp_feed *tcp_uring_bare(const struct link_tcp *l);
/* Of the polling core, beside those of tcp_turn.c; the ring before them. */
bool nic_ring_poll(void *link, uint64_t now_ns);
bool nic_ring_asleep(const void *link);

#endif
