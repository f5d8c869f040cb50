/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending TCP payload from device memory (Linux 6.16): a dma-buf is bound to an interface
 * (nic_bind_tx() in nic/), and a send names offsets in it. The NIC reads the payload from the device,
 * so nobody can copy it instead; its end comes by the error queue (zc_tx.h). UNTRIED on hardware.
 *
 *   devmem_tx_post()  the kernel has taken bytes: their memory is held
 *   devmem_tx_reap()  posts that have ended: their memory may change
 *   devmem_tx_held()  posts that have not
 *
 * The connection must leave by the interface of the binding, which ends behind the last post that is
 * held. Threads as in zc_tx.h.
 */
#ifndef GX_DEVMEM_TX_H
#define GX_DEVMEM_TX_H

#include "nic/zc_tx.h"

#define DEVMEM_TX_PIECES 64 /* of one post */

/* Bytes of the dma-buf. */
struct devmem_piece {
	uint64_t off;
	uint32_t len;
};

struct devmem_tx {
	struct zc_tx *zc;
	uint32_t id; /* of the binding */
	uint64_t len;
};

struct devmem_tx_cfg {
	const struct zc_sys *sys;
	int fd;		/* a connected TCP socket; stays the caller's */
	uint32_t id;	/* nic_bind_id() */
	uint64_t len;	/* bytes of the dma-buf */
	unsigned depth; /* posts that may wait for their end; power of two */
};

/** devmem_tx_open() - Return: 0, -EINVAL, -ENOMEM, -errno of the socket. */
int devmem_tx_open(const struct devmem_tx_cfg *cfg, struct devmem_tx *out);
void devmem_tx_close(struct devmem_tx *tx); /* as zc_tx_close() */
/** devmem_tx_post() - Send @pieces in their order. Return: bytes that were taken, maybe not all; 0:
 * none now; -EINVAL: none, too many, empty, or beyond the dma-buf; else the socket is broken, see
 * tx->zc->why. */
ssize_t devmem_tx_post(struct devmem_tx *tx, const struct devmem_piece pieces[], unsigned n,
		       uint64_t user);
/** devmem_tx_ask() - Would the kernel send from binding @id by this socket? Nothing is sent. Return: 0;
 * -EAGAIN, -ENOBUFS: not known now; -ENODEV: the connection leaves by another interface; -EPROTO: a
 * byte of nobody has left, so the socket is lost; -errno. */
int devmem_tx_ask(const struct zc_sys *sys, int fd, uint32_t id, uint64_t len);
static inline unsigned devmem_tx_reap(struct devmem_tx *tx, uint64_t users[], unsigned n)
{
	return zc_tx_reap(tx->zc, users, n);
}
static inline uint32_t devmem_tx_held(const struct devmem_tx *tx)
{
	return zc_tx_held(tx->zc);
}

#endif
