/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Link tcp with a NIC that brings payload to memory of the program, and takes it from memory of GPUs
 * (gx_nic_opts.rx, .tx). It is the same link as tcp/ has, with more: its context has NICs and its cores
 * error queues, and its endpoints go through nic_offload (tcp/tcp_offload.h).
 * nic_link.c has the object; the ways in and out are:
 *
 *   tcp_dev.h     payload into memory of a GPU
 *   tcp_zc.h      out of memory of a GPU
 */
#ifndef GX_NIC_LINK_H
#define GX_NIC_LINK_H

#include "tcp/tcp.h"

/* The link's part of a context. owner: ctl */
struct nic_ctx {
	struct tcp_tx_dev *tx; /* sends memory of GPUs; NULL: none */
	struct tcp_dev *dev;   /* device memory for data sockets; NULL: none */
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
};
static inline struct nic_core *nic_core_of(const struct link_tcp *l)
{
	return GX_CONTAINER_OF(l, struct nic_core, tcp);
}

extern const struct gx_link gx_link_tcp_nic;
extern const struct tcp_offload nic_offload;

/** nic_core_open() - Control path: link tcp of @core. Return: 0, -errno with gx_error(). */
int nic_core_open(struct gx_core *core);

#endif
