/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool of buffers that the kernel copies received bytes into (a provided-buffer ring of
 * io_uring). The kernel takes a buffer for each completion, or, packed, goes on in a buffer until
 * it is full. A buffer goes back when the kernel has finished with it and nobody reads a record of
 * it. The ring's tail is shared memory, so that needs no system call. Runs on the polling core;
 * open and close on the control path.
 */
#include "tcp/uring_rx.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* include/uapi/linux/io_uring.h, 6.12: IOU_PBUF_RING_INC, IORING_CQE_F_BUF_MORE */
#define BUF_RING_INC 2u
#define BUF_MORE     (1u << 4)

struct buf {
	uint32_t recs; /* that somebody may read */
	uint32_t fill; /* bytes that came, */
	uint32_t sock; /* ... the last ones for this socket */
	bool is_open;  /* the kernel has it */
};

struct buf_pool {
	struct io_uring_buf_ring *br;
	size_t br_b;
	uint32_t nr, buf_b, avail; /* avail: buffers that the kernel has */
	uint16_t tail;
	bool is_packed;
	struct buf buf[];
};

static void buf_add(struct uring_rx *rx, uint32_t bid)
{
	struct buf_pool *p = rx->own;
	struct io_uring_buf *b = &p->br->bufs[p->tail++ & (p->nr - 1)];

	/* Not the whole entry: the first one's spare field is the ring's tail. */
	b->addr = (uintptr_t)rx->pool + (uint64_t)bid * p->buf_b;
	b->len = p->buf_b;
	b->bid = (uint16_t)bid;
	p->buf[bid] = (struct buf){.is_open = true, .sock = URING_NONE};
	p->avail++;
}

static void buf_prep(struct uring_rx *rx, struct io_uring_sqe *sqe)
{
	sqe->opcode = IORING_OP_RECV;
	sqe->ioprio = IORING_RECV_MULTISHOT;
	sqe->flags = IOSQE_BUFFER_SELECT;
	sqe->buf_group = 0;
}

static int buf_place(struct uring_rx *rx, const struct io_uring_cqe *cqe, struct uring_rec *rec)
{
	struct buf_pool *p = rx->own;
	uint32_t bid = cqe->flags >> IORING_CQE_BUFFER_SHIFT;
	uint32_t len = cqe->res > 0 ? (uint32_t)cqe->res : 0;
	struct buf *b = &p->buf[bid % p->nr];

	if (!(cqe->flags & IORING_CQE_F_BUFFER))
		return len ? -EPROTO : 0;
	if (bid >= p->nr || !b->is_open || len > p->buf_b - b->fill)
		return -EPROTO;
	/* At the end of a stream some kernels name a packed buffer as finished, and keep it. */
	if (!len && p->is_packed)
		return 0;
	rec->off = bid * p->buf_b + b->fill;
	rec->left = len;
	rec->buf = bid;
	/* Where sockets take turns in a buffer, a short record of each may keep all of it. */
	rec->charge = b->sock == rec->sock ? 0 : p->buf_b;
	b->sock = rec->sock;
	b->recs++;
	b->fill += len;
	if (!p->is_packed || !(cqe->flags & BUF_MORE)) {
		b->is_open = false;
		p->avail--;
	}
	return 1;
}

static void buf_give(struct uring_rx *rx, uint32_t i)
{
	struct buf_pool *p = rx->own;
	uint32_t bid = rx->rec[i].buf;

	uring_rec_free(rx, i);
	if (!--p->buf[bid].recs && !p->buf[bid].is_open)
		buf_add(rx, bid);
}

static void buf_flush(struct uring_rx *rx)
{
	struct buf_pool *p = rx->own;

	/* Pairs with the kernel's acquire: entries are filled before the tail moves. */
	__atomic_store_n(&p->br->tail, p->tail, __ATOMIC_RELEASE);
}

static uint32_t buf_room(struct uring_rx *rx)
{
	const struct buf_pool *p = rx->own;

	return p->avail;
}

static void buf_close(struct uring_rx *rx)
{
	struct buf_pool *p = rx->own;

	if (!p)
		return;
	gx_pages_put(p->br, p->br_b);
	free(p);
}

static const struct uring_kind buf_kind = {.prep = buf_prep,
					   .place = buf_place,
					   .give = buf_give,
					   .flush = buf_flush,
					   .room = buf_room,
					   .close = buf_close};

static int buf_register(struct uring_rx *rx, struct buf_pool *p, bool is_packed)
{
	struct io_ring_buf_reg reg = {.ring_addr = (uintptr_t)p->br,
				      .ring_entries = p->nr,
				      .flags = is_packed ? BUF_RING_INC : 0};

	p->is_packed = is_packed;
	return rx->ring.sys->reg(rx->ring.fd, IORING_REGISTER_PBUF_RING, &reg, 1);
}

static int pool_open(struct uring_rx *rx, const struct uring_cfg *cfg, char why[IO_RING_WHY_B])
{
	struct buf_pool *p = calloc(1, sizeof(*p) + cfg->nr_bufs * sizeof(p->buf[0]));
	int ret = -EINVAL;

	snprintf(why, IO_RING_WHY_B, "no memory for %u buffers", cfg->nr_bufs);
	if (!p)
		return -ENOMEM;
	rx->own = p;
	rx->pool = cfg->pool;
	rx->pool_b = (uint64_t)cfg->nr_bufs * cfg->buf_b;
	rx->price = (uint32_t)(rx->pool_b / cfg->depth);
	rx->is_fair = cfg->is_fair;
	p->nr = cfg->nr_bufs;
	p->buf_b = cfg->buf_b;
	p->br_b = GX_ALIGN_UP(p->nr * sizeof(struct io_uring_buf), 4096);
	p->br = gx_pages_get(p->br_b);
	if (!p->br)
		return -ENOMEM;
	if (cfg->is_packed)
		ret = buf_register(rx, p, true);
	if (ret == -EINVAL)
		ret = buf_register(rx, p, false);
	if (ret) {
		snprintf(why, IO_RING_WHY_B,
			 "io_uring takes no ring of %u buffers: %s. Cure: use Linux 6.1 or newer, "
			 "and raise the limit of locked memory (ulimit -l)",
			 cfg->nr_bufs, strerror(-ret));
		return ret;
	}
	for (uint32_t i = 0; i < p->nr; i++)
		buf_add(rx, i);
	return 0;
}

static bool is_power(uint32_t x)
{
	return x && !(x & (x - 1));
}

static bool cfg_is_good(const struct uring_cfg *c)
{
	return c->pool && c->buf_b >= URING_BUF_MIN && c->buf_b <= URING_BUF_B &&
	       is_power(c->nr_bufs) && c->nr_bufs > 1 && c->nr_bufs <= URING_BUFS &&
	       (uint64_t)c->nr_bufs * c->buf_b <= 1ull << 32 && c->nr_socks &&
	       c->nr_socks <= URING_SOCKS && is_power(c->depth) && c->depth >= c->nr_bufs &&
	       c->depth <= URING_DEPTH;
}

int uring_rx_open(const struct uring_cfg *cfg, struct uring_rx **out, char why[IO_RING_WHY_B])
{
	struct io_ring_cfg ring = {.sys = cfg->sys,
				   .entries = URING_SQ,
				   .cq_entries = GX_MAX(cfg->depth, 2u * URING_SQ)};
	struct uring_rx *rx;
	int ret;

	snprintf(why, IO_RING_WHY_B, "buffers of %u bytes, %u of them, do not fit", cfg->buf_b,
		 cfg->nr_bufs);
	if (!cfg_is_good(cfg))
		return -EINVAL;
	ret = uring_rx_make(&ring, cfg->nr_socks, cfg->depth, &buf_kind, &rx, why);
	if (ret)
		return ret;
	ret = pool_open(rx, cfg, why);
	if (ret)
		uring_rx_close(rx);
	else
		*out = rx;
	return ret;
}

bool uring_rx_is_packed(const struct uring_rx *rx)
{
	const struct buf_pool *p = rx->own;

	return p->is_packed;
}
