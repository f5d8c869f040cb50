/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a core pays for a fragment of zero-copy receive by io_uring: completion, descriptor, refill.
 * The kernel hands out the pages of an area in a prepared order and takes refills back unread, the
 * GPU is one that copies nothing; so neither the kernel's part nor a copy is in the figures. 200
 * Gb/s in fragments of 4 KiB are 6 million a second: 167 ns each.
 *
 * usage: zcrx_frag [MILLIONS [BYTES]]    BYTES of a fragment: 4096 (default), or fewer
 *
 * Under callgrind: valgrind --tool=callgrind --toggle-collect=bench_turn build/tests/zcrx_frag 1;
 * take off what prepared_enter() is shown with.
 */
#include "bench/none_gpu.h"
#include "copy/block.h"
#include "nic/zcrx.h"
#include "nic/zcrx_abi.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_B	4096u
#define READ	64u /* fragments of a system call */
#define AREA_B	(64u << 20)
#define DST_B	(16u << 20)
#define PAGES	(AREA_B / PAGE_B)
#define FLIGHT	1024u /* fragments that wait for their copy */
#define RECORDS 4096u
#define RING_FD 77

/* Where the words of the rings are. */
enum { SQ_HEAD = 0, SQ_TAIL = 64, SQ_FLAGS = 128, CQ_HEAD = 192, CQ_TAIL = 256, CQES = 512 };

struct bench {
	struct uring_rx *rx;
	uint32_t sock;
	struct block_q *q;
	char *area, *dst;
	uint64_t now_ns, pos, nr;
};

/* -- a kernel of prepared completions -- */

static struct {
	char *rings, *refills;
	unsigned nr_cq, page;
	uint32_t len;
	uint64_t nr_refilled;
} kernel;

static _Atomic uint32_t *word(char *ring, uint32_t at)
{
	return (_Atomic uint32_t *)(ring + at);
}

static int prepared_setup(unsigned entries, struct io_uring_params *p)
{
	kernel.nr_cq = p->cq_entries;
	p->sq_entries = entries;
	p->features = IORING_FEAT_SINGLE_MMAP;
	p->sq_off.head = SQ_HEAD;
	p->sq_off.tail = SQ_TAIL;
	p->sq_off.flags = SQ_FLAGS;
	p->sq_off.array = CQES + kernel.nr_cq * 32;
	p->cq_off.head = CQ_HEAD;
	p->cq_off.tail = CQ_TAIL;
	p->cq_off.cqes = CQES;
	return RING_FD;
}

static int prepared_map(int fd, uint64_t off, size_t len, void **out)
{
	*out = aligned_alloc(64, GX_ALIGN_UP(len, 64));
	if (!*out)
		abort();
	memset(*out, 0, len);
	if (off == IORING_OFF_SQ_RING)
		kernel.rings = *out;
	return 0;
}

static int prepared_reg(int fd, unsigned op, void *arg, unsigned nr)
{
	struct zcrx_reg *reg = arg;
	const struct zcrx_region *region;

	if (op != ZCRX_REGISTER)
		return 0;
	region = (const struct zcrx_region *)(uintptr_t)reg->region;
	kernel.refills = (char *)(uintptr_t)region->addr;
	reg->offsets = (struct zcrx_offsets){.head = 0, .tail = 4, .entries = 64};
	return 0;
}

/* All refills are taken, and as many fragments come as a read brings. */
static int prepared_enter(int fd, unsigned nr, unsigned flags)
{
	uint32_t at = atomic_load_explicit(word(kernel.rings, CQ_TAIL), memory_order_relaxed);
	uint32_t tail = atomic_load_explicit(word(kernel.refills, 4), memory_order_acquire);

	atomic_store(word(kernel.rings, SQ_HEAD), atomic_load(word(kernel.rings, SQ_TAIL)));
	kernel.nr_refilled +=
		tail - atomic_load_explicit(word(kernel.refills, 0), memory_order_relaxed);
	atomic_store_explicit(word(kernel.refills, 0), tail, memory_order_release);
	for (unsigned i = 0; i < READ; i++, at++) {
		char *cqe = kernel.rings + CQES + (size_t)(at & (kernel.nr_cq - 1)) * 32;
		/* A step that is prime to the number of pages goes everywhere. */
		struct zcrx_cqe more = {.off = (uint64_t)(kernel.page++ * 2741 % PAGES) * PAGE_B};
		struct io_uring_cqe head = {.res = (int)kernel.len, .flags = IORING_CQE_F_MORE};

		memcpy(cqe, &head, sizeof(head));
		memcpy(cqe + sizeof(head), &more, sizeof(more));
	}
	atomic_store_explicit(word(kernel.rings, CQ_TAIL), at, memory_order_release);
	atomic_store_explicit(word(kernel.rings, SQ_FLAGS), IORING_SQ_TASKRUN,
			      memory_order_relaxed);
	return (int)nr;
}

static void prepared_unmap(void *at, size_t len)
{
	free(at);
}

static void prepared_close(int fd)
{
}

static const struct io_ring_sys prepared_sys = {.setup = prepared_setup,
						.enter = prepared_enter,
						.reg = prepared_reg,
						.map = prepared_map,
						.unmap = prepared_unmap,
						.close = prepared_close};

/* -- the core -- */

static void reap(struct bench *b)
{
	struct block_done done[GX_BURST_MAX];
	unsigned n;

	while ((n = block_reap(b->q, done, GX_BURST_MAX, b->now_ns)) > 0)
		for (unsigned i = 0; i < n; i++)
			uring_done(b->rx, (uint32_t)done[i].buf);
}

void bench_turn(struct bench *b);

/* As a link's turn: copies that have ended, the ring, descriptors. */
__attribute__((noipa)) void bench_turn(struct bench *b)
{
	struct uring_frag frag[READ];
	int n;

	b->now_ns += 1000;
	if (block_held(b->q) >= FLIGHT) {
		block_flush(b->q, true, b->now_ns);
		reap(b);
	}
	uring_rx_turn(b->rx);
	n = uring_rx_pull(b->rx, b->sock, UINT64_MAX, frag, READ);
	for (int i = 0; i < n; i++) {
		block_add(b->q,
			  &(struct block_frag){.src = frag[i].src,
					       .len = frag[i].len,
					       .dst_base = (uintptr_t)b->dst,
					       .dst_len = DST_B,
					       .dst_off = b->pos,
					       .buf = frag[i].ref},
			  b->now_ns);
		b->pos = b->pos + 2 * frag[i].len <= DST_B ? b->pos + frag[i].len : 0;
	}
	b->nr += n > 0 ? (unsigned)n : 0;
}

static void bench_open(struct bench *b, struct gx_gpu *gpu)
{
	struct zcrx_cfg cfg = {.sys = &prepared_sys,
			       .name = "prepared",
			       .area_b = AREA_B,
			       .dmabuf_fd = -1,
			       .nr_refill = RECORDS,
			       .nr_socks = 1,
			       .depth = RECORDS};
	char why[IO_RING_WHY_B];

	b->area = malloc(AREA_B); /* nobody reads or writes it */
	cfg.area = b->dst = b->area;
	if (!b->area || block_open(gpu, b->area, UINT64_MAX, &b->q) ||
	    zcrx_open(&cfg, &b->rx, why) || uring_rx_add(b->rx, 0))
		abort();
}

static void bench_close(struct bench *b)
{
	while (block_held(b->q)) {
		block_flush(b->q, true, b->now_ns);
		reap(b);
	}
	if (b->rx->nr_out || b->rx->stat.strays || b->rx->ring.err)
		fprintf(stderr, "zcrx_frag: %u fragments did not go back\n", b->rx->nr_out);
	printf("%" PRIu64 " fragments came, %" PRIu64 " refills were taken\n", b->rx->stat.frags,
	       kernel.nr_refilled);
	uring_rx_close(b->rx);
	block_close(b->q);
	free(b->area);
}

int main(int argc, char *argv[])
{
	uint64_t nr = (argc > 1 ? strtoull(argv[1], NULL, 0) : 100) * 1000000;
	struct gx_gpu *gpu = none_gpu();
	struct bench b = {.now_ns = 1};
	uint64_t begin;

	kernel.len = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 0) : PAGE_B;
	if (!kernel.len || kernel.len > PAGE_B) {
		fprintf(stderr, "zcrx_frag: '%s' is no size of a fragment: 1 to %u\n", argv[2],
			PAGE_B);
		return 2;
	}
	bench_open(&b, gpu);
	begin = gx_now_ns();
	while (b.nr < nr)
		bench_turn(&b);
	printf("%.1f ns a fragment of %u bytes, %" PRIu64 " fragments\n",
	       (double)(gx_now_ns() - begin) / (double)b.nr, kernel.len, b.nr);
	bench_close(&b);
	gpu->stream = host_stream;
	gx_gpu_host_ops.close(gpu);
	return 0;
}
