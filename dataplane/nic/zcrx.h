/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Zero-copy receive by io_uring (Linux 6.15): a receive queue of a NIC fills pages of an area that
 * the program gave, and the kernel does TCP. The area may be host memory that a GPU reads, or a
 * dma-buf (link tcp has host memory: tcp_zcrx.h). Its sockets are those of uring_rx.h, with all of
 * its calls; here is how it opens.
 *
 * A completion refers to a part of a page. It goes back through the refill ring, in the order in
 * which fragments are done, and without a system call. Where that ring is full, the rest follows in
 * a later turn. Bytes that the NIC did not put there (linear) the kernel copies into the area; for
 * a dma-buf it cannot, and ends the socket with -EFAULT.
 *
 * The NIC needs header split, flow rules to the queue, and RSS away from it (nic/). UNTRIED on
 * hardware: a scripted kernel tests it, and the real one refuses lo and veth.
 */
#ifndef GX_ZCRX_H
#define GX_ZCRX_H

#include "nic/uring_rx.h"

struct zcrx_cfg {
	const struct io_ring_sys *sys;
	const char *name; /* of the interface, for texts */
	uint32_t ifindex, queue;
	void *area;	    /* where the CPU or a GPU has it; whole pages */
	uint64_t area_b;    /* at most 4 GiB */
	int dmabuf_fd;	    /* of the area; -1: host memory */
	uint32_t nr_refill; /* entries of the refill ring; power of two */
	uint32_t nr_socks;
	uint32_t depth; /* completions that may wait; power of two */
};

/** zcrx_open() - Take the queue for this ring. It is the program's until the kernel has ended the
 * ring, some time behind uring_rx_close(): the NIC may write into the area until then, so it is not
 * used again for other things. Return: 0, -errno with @why: what is missing, and the cure. */
int zcrx_open(const struct zcrx_cfg *cfg, struct uring_rx **out, char why[IO_RING_WHY_B]);

/* -- the pool, for uring_rx.c -- */

/** zcrx_prep() - The entry of a receive: what the socket alone does not say. */
void zcrx_prep(struct uring_rx *rx, struct io_uring_sqe *sqe);
/** zcrx_place() - Where are the bytes of this completion? Return: 1: @rec says it; 0: it has none;
 * -EPROTO. */
int zcrx_place(struct uring_rx *rx, const struct io_uring_cqe *cqe, struct uring_rec *rec);
/** zcrx_give() - Nobody reads record @i any more, and its off is its end: uring_rec_free(), now or
 * when the refill ring has room. */
void zcrx_give(struct uring_rx *rx, uint32_t i);
void zcrx_flush(struct uring_rx *rx); /* once a turn: the kernel may have what was given */
void zcrx_close(struct uring_rx *rx); /* the ring is closed */

#endif
