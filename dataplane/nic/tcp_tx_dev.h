/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of GPUs that a NIC sends from (gx_nic_opts.tx devmem, auto): each allocation or registration
 * is bound to one interface as a dma-buf (nic_bind_tx()), and link tcp names offsets in it (tcp_zc.h).
 * Queues of the NIC need no set-up for that. Control path. UNTRIED on hardware.
 */
#ifndef GX_TCP_TX_DEV_H
#define GX_TCP_TX_DEV_H

#include "core/core.h"
#include "nic/nic.h"

struct tcp_tx_dev;

/* Of a struct gx_mem. owner: ctl; cores read it */
struct tcp_tx_bind {
	struct tcp_tx_dev *dev;
	struct nic_bind *bind;
	uint32_t id;	  /* of the binding */
	const char *base; /* address of its first byte */
	uint64_t len;
};

struct tcp_tx_dev_cfg {
	const struct nic_sys *nic;
	const char *name; /* of the interface */
	bool must;	  /* asked for by name: what cannot be bound is an error */
};

/** tcp_tx_dev_open() - Is there such an interface, and does the kernel bind for sending? Return: 0;
 * -EINVAL, -ENODEV, -EOPNOTSUPP, -ENOMEM with gx_error(). */
int tcp_tx_dev_open(const struct tcp_tx_dev_cfg *cfg, struct tcp_tx_dev **out);
void tcp_tx_dev_close(struct tcp_tx_dev *d); /* no memory is bound; NULL is fine */
/** tcp_tx_dev_mem() - Bind memory of a GPU that is new; other memory is passed over. Return: 0, also
 * with a warning where it cannot be bound and need not; else -errno with gx_error(). */
int tcp_tx_dev_mem(struct tcp_tx_dev *d, struct gx_mem *mem);
void tcp_tx_dev_put(struct gx_mem *mem); /* no core sends from it any more */
/** tcp_tx_dev_text() - In words, for gx_describe(). */
void tcp_tx_dev_text(const struct tcp_tx_dev *d, char *buf, size_t room);

#endif
