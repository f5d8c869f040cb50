/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool of zero-copy receive; see zcrx.h. Runs on the polling core; open and close on the control
 * path.
 */
#include "nic/zcrx.h"

#include "nic/zcrx_abi.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_B 4096u

struct zcrx {
	uint32_t id;
	uint64_t token; /* of the area */
	char *region;	/* the refill ring */
	size_t region_b;
	_Atomic uint32_t *head, *tail; /* of the kernel, and of gx */
	struct zcrx_refill *refill;
	uint32_t at, mask;	       /* at: the tail, with those that are not published */
	uint32_t late_head, late_tail; /* list: records that found the refill ring full */
};

/* ---- polling core ---- */

void zcrx_prep(struct uring_rx *rx, struct io_uring_sqe *sqe)
{
	const struct zcrx *z = rx->own;

	sqe->opcode = ZCRX_OP_RECV;
	sqe->ioprio = IORING_RECV_MULTISHOT;
	sqe->file_index = z->id;
}

int zcrx_place(struct uring_rx *rx, const struct io_uring_cqe *cqe, struct uring_rec *rec)
{
	const struct zcrx *z = rx->own;
	struct zcrx_cqe more;
	uint64_t off;

	if (cqe->res <= 0)
		return 0;
	memcpy(&more, cqe->big_cqe, sizeof(more));
	off = more.off - z->token;
	if (off >= rx->pool_b || (uint64_t)cqe->res > rx->pool_b - off)
		return -EPROTO;
	rec->off = rec->first = (uint32_t)off;
	rec->left = (uint32_t)cqe->res;
	return 1;
}

/* False: the ring is full. */
static bool refill_put(struct zcrx *z, const struct uring_rec *rec)
{
	/* Pairs with the kernel's release of the head behind its reads. */
	if (z->at - atomic_load_explicit(z->head, memory_order_acquire) > z->mask)
		return false;
	z->refill[z->at++ & z->mask] =
		(struct zcrx_refill){.off = rec->first + z->token, .len = rec->off - rec->first};
	return true;
}

void zcrx_give(struct uring_rx *rx, uint32_t i)
{
	struct zcrx *z = rx->own;

	if (gx_likely(z->late_head == URING_NONE && refill_put(z, &rx->rec[i]))) {
		uring_rec_free(rx, i);
		return;
	}
	rx->rec[i].next = URING_NONE;
	if (z->late_head == URING_NONE)
		z->late_head = i;
	else
		rx->rec[z->late_tail].next = i;
	z->late_tail = i;
}

void zcrx_flush(struct uring_rx *rx)
{
	struct zcrx *z = rx->own;

	while (z->late_head != URING_NONE && refill_put(z, &rx->rec[z->late_head])) {
		uint32_t i = z->late_head;

		z->late_head = rx->rec[i].next;
		uring_rec_free(rx, i);
	}
	/* Pairs with the kernel's acquire: entries are filled before the tail moves. */
	atomic_store_explicit(z->tail, z->at, memory_order_release);
}

void zcrx_close(struct uring_rx *rx)
{
	struct zcrx *z = rx->own;

	if (!z)
		return;
	gx_pages_put(z->region, z->region_b);
	free(z);
}

/* ---- control path ---- */

static int zcrx_fail(const struct zcrx_cfg *cfg, int err, char why[IO_RING_WHY_B])
{
	const char *cure = "look for what this names";

	switch (err) {
	case -EPERM:
		cure = "run as root: it wants CAP_NET_ADMIN of the host";
		break;
	case -EOPNOTSUPP:
		cure = "use a NIC whose driver fills memory of a program; loopback, veth and virtio "
		       "never do";
		break;
	case -EINVAL:
		if (cfg->dmabuf_fd >= 0)
			cure = "use Linux 6.16 or newer with CONFIG_IO_URING_ZCRX and "
			       "CONFIG_DMA_SHARED_BUFFER, switch header split on, and set its "
			       "threshold to 0";
		else
			cure = "use Linux 6.15 or newer with CONFIG_IO_URING_ZCRX, switch header split on, "
			       "and set its threshold to 0";
		break;
	case -ENODEV:
		cure = "name an interface of this network namespace";
		break;
	case -EEXIST:
	case -EBUSY:
		cure = "end the program that holds this queue, or take another one";
		break;
	case -ENOMEM:
		cure = "raise the limit of locked memory (ulimit -l)";
		break;
	}
	snprintf(why, IO_RING_WHY_B, "%s: io_uring cannot have receive queue %u: %s. Cure: %s",
		 cfg->name, cfg->queue, strerror(-err), cure);
	return err;
}

/* The refill ring as the kernel laid it out. */
static int zcrx_point(struct zcrx *z, const struct zcrx_reg *reg)
{
	const struct zcrx_offsets *o = &reg->offsets;
	uint64_t end = o->entries + (uint64_t)reg->entries * sizeof(struct zcrx_refill);

	if (!reg->entries || reg->entries & (reg->entries - 1) || end > z->region_b ||
	    o->entries % 16 || o->head % 4 || o->tail % 4 || o->head + 4ull > z->region_b ||
	    o->tail + 4ull > z->region_b)
		return -EPROTO;
	z->head = (_Atomic uint32_t *)(z->region + o->head);
	z->tail = (_Atomic uint32_t *)(z->region + o->tail);
	z->refill = (struct zcrx_refill *)(z->region + o->entries);
	z->mask = reg->entries - 1;
	z->at = atomic_load(z->tail);
	z->id = reg->id;
	return 0;
}

static int zcrx_register(struct uring_rx *rx, const struct zcrx_cfg *cfg, char why[IO_RING_WHY_B])
{
	struct zcrx *z = rx->own;
	struct zcrx_area area = {.addr = cfg->dmabuf_fd < 0 ? (uintptr_t)cfg->area : 0,
				 .len = cfg->area_b,
				 .flags = cfg->dmabuf_fd < 0 ? 0 : ZCRX_AREA_DMABUF,
				 .dmabuf_fd = cfg->dmabuf_fd < 0 ? 0 : (uint32_t)cfg->dmabuf_fd};
	struct zcrx_region region = {
		.addr = (uintptr_t)z->region, .size = z->region_b, .flags = ZCRX_REGION_USER};
	struct zcrx_reg reg = {.ifindex = cfg->ifindex,
			       .queue = cfg->queue,
			       .entries = cfg->nr_refill,
			       .area = (uintptr_t)&area,
			       .region = (uintptr_t)&region};
	int ret = rx->ring.sys->reg(rx->ring.fd, ZCRX_REGISTER, &reg, 1);

	if (!ret)
		ret = zcrx_point(z, &reg);
	if (ret)
		return zcrx_fail(cfg, ret, why);
	z->token = area.token;
	return 0;
}

static bool is_power(uint32_t x)
{
	return x && !(x & (x - 1));
}

static bool cfg_is_good(const struct zcrx_cfg *c)
{
	return c->area && c->area_b && c->area_b <= 1ull << 32 && !(c->area_b % PAGE_B) &&
	       is_power(c->nr_refill) && c->nr_refill <= ZCRX_REFILLS_MAX && c->nr_socks &&
	       c->nr_socks <= URING_SOCKS && is_power(c->depth) && c->depth <= URING_DEPTH;
}

static int zcrx_make(struct uring_rx *rx, const struct zcrx_cfg *cfg, char why[IO_RING_WHY_B])
{
	struct zcrx *z = calloc(1, sizeof(*z));

	snprintf(why, IO_RING_WHY_B, "no memory for a refill ring of %u", cfg->nr_refill);
	if (!z)
		return -ENOMEM;
	rx->own = z;
	rx->pool = cfg->area;
	rx->pool_b = cfg->area_b;
	z->late_head = z->late_tail = URING_NONE;
	/* A page for the kernel's words before the entries. */
	z->region_b = GX_ALIGN_UP(cfg->nr_refill * sizeof(struct zcrx_refill), PAGE_B) + PAGE_B;
	z->region = gx_pages_get(z->region_b);
	return z->region ? zcrx_register(rx, cfg, why) : -ENOMEM;
}

int zcrx_open(const struct zcrx_cfg *cfg, struct uring_rx **out, char why[IO_RING_WHY_B])
{
	struct io_ring_cfg ring = {.sys = cfg->sys,
				   .entries = URING_SQ,
				   .cq_entries = GX_MAX(cfg->depth, 2u * URING_SQ),
				   .is_cqe32 = true};
	struct uring_rx *rx;
	int ret;

	snprintf(why, IO_RING_WHY_B, "%s: an area of %llu bytes with %u refills does not fit",
		 cfg->name, (unsigned long long)cfg->area_b, cfg->nr_refill);
	if (!cfg_is_good(cfg))
		return -EINVAL;
	ret = uring_rx_make(&ring, cfg->nr_socks, cfg->depth, &rx, why);
	if (ret)
		return ret;
	ret = zcrx_make(rx, cfg, why);
	if (ret)
		uring_rx_close(rx);
	else
		*out = rx;
	return ret;
}
