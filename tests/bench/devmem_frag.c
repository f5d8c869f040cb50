/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a core pays for a fragment of device memory: control message, descriptor, token. The kernel
 * is a table of prepared reads, the GPU one that copies nothing; so neither the kernel's part nor a
 * copy is in the figures. 200 Gb/s in fragments of 4 KiB are 6 million a second: 167 ns each.
 *
 * usage: devmem_frag [MILLIONS [KIND]]    KIND: scattered (default): neither a fragment nor its
 * token is a neighbour of the one before; neighbours: eight are; linear: the kernel copied every
 * eighth to host memory
 *
 * Under callgrind: valgrind --tool=callgrind --toggle-collect=bench_turn build/tests/devmem_frag 1;
 * take off what prepared_recv() and prepared_release() are shown with.
 */
#include "bench/none_gpu.h"
#include "copy/block.h"
#include "nic/devmem.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FRAG_B	 4096u
#define READ	 64u /* fragments a read */
#define POOL_B	 (64u << 20)
#define LIN_B	 (1u << 20)
#define DST_B	 (16u << 20)
#define PAGES	 (POOL_B / FRAG_B)
#define FLIGHT	 1024u /* fragments that wait for their copy */
#define TOKENS	 4096u
#define PREPARED (TOKENS / READ)

enum kind { SCATTERED, NEIGHBOURS, LINEAR };

struct bench {
	struct devmem_rx *rx;
	struct devmem_pool *pool;
	struct block_q *q;
	char *arena, *dst;
	uint64_t now_ns, pos, nr;
};

/* -- a kernel of prepared reads -- */

static struct {
	alignas(struct cmsghdr) char ctl[READ * DEVMEM_CMSG_B];
	size_t len;
} prepared[PREPARED];
static unsigned next;
static uint64_t released;

static ssize_t prepared_recv(int fd, struct msghdr *msg)
{
	unsigned i = next++ % PREPARED;

	if (msg->msg_controllen < prepared[i].len)
		return -EAGAIN;
	memcpy(msg->msg_control, prepared[i].ctl, prepared[i].len);
	msg->msg_controllen = prepared[i].len;
	msg->msg_flags = 0;
	return READ * FRAG_B;
}

static int prepared_release(int fd, const struct devmem_range range[], unsigned n)
{
	uint32_t sum = 0;

	for (unsigned i = 0; i < n; i++)
		sum += range[i].count;
	released += sum;
	return (int)sum;
}

static const struct devmem_sys prepared_sys = {
	.recv = prepared_recv, .claims = devmem_claims, .release = prepared_release};

static void prepare(enum kind kind)
{
	for (unsigned i = 0; i < PREPARED; i++) {
		char *at = prepared[i].ctl;

		for (unsigned j = 0; j < READ; j++) {
			unsigned t = i * READ + j;
			/* A step that is prime to the number of pages goes everywhere. */
			unsigned page = kind == NEIGHBOURS ? t / 8 * 8 * 37 + t % 8 : t * 2741;
			bool is_linear = kind == LINEAR && t % 8 == 7;
			struct cmsghdr h = {.cmsg_len = CMSG_LEN(sizeof(struct devmem_cmsg)),
					    .cmsg_level = SOL_SOCKET,
					    .cmsg_type = is_linear ? DEVMEM_LINEAR : DEVMEM_DMABUF};
			struct devmem_cmsg m = {.off = (uint64_t)(page % PAGES) * FRAG_B,
						.len = FRAG_B,
						.token =
							1 + (kind == SCATTERED ? page % TOKENS : t),
						.id = 7};

			memcpy(at, &h, sizeof(h));
			memcpy(at + sizeof(h), &m, sizeof(m));
			at += DEVMEM_CMSG_B;
		}
		prepared[i].len = (size_t)(at - prepared[i].ctl);
	}
}

/* -- the core -- */

static void reap(struct bench *b)
{
	struct block_done done[GX_BURST_MAX];
	unsigned n;

	while ((n = block_reap(b->q, done, GX_BURST_MAX, b->now_ns)) > 0)
		for (unsigned i = 0; i < n; i++)
			devmem_done(b->rx, (uint32_t)done[i].buf);
}

void bench_turn(struct bench *b);

/* As a link's turn: copies that have ended, a read, descriptors, tokens. */
__attribute__((noipa)) void bench_turn(struct bench *b)
{
	struct devmem_frag frag[READ + 1]; /* host memory may take one more */
	int n;

	b->now_ns += 1000;
	if (block_held(b->q) >= FLIGHT) {
		block_flush(b->q, true, b->now_ns);
		reap(b);
	}
	n = devmem_rx_pull(b->rx, READ * FRAG_B, frag, READ + 1);
	for (int i = 0; i < n; i++) {
		block_add(b->q,
			  &(struct block_frag){.src = frag[i].src,
					       .len = frag[i].len,
					       .dst_base = (uintptr_t)b->dst,
					       .dst_len = DST_B,
					       .dst_off = b->pos,
					       .buf = frag[i].ref},
			  b->now_ns);
		b->pos = (b->pos + frag[i].len) & (DST_B - 1);
	}
	b->nr += n > 0 ? READ : 0;
	devmem_release(b->rx, false);
}

static void bench_open(struct bench *b, struct gx_gpu *gpu)
{
	struct devmem_cfg cfg = {.sys = &prepared_sys, .fd = -1, .lin_b = LIN_B, .depth = 4096};

	b->arena = malloc(POOL_B + LIN_B); /* nobody reads or writes it */
	cfg.lin = b->arena + POOL_B;
	b->dst = b->arena;
	if (!b->arena || block_open(gpu, b->arena, UINT64_MAX, &b->q) ||
	    devmem_pool_open(7, b->arena, POOL_B, 0, &b->pool) || devmem_rx_open(&cfg, &b->rx) ||
	    devmem_rx_pool(b->rx, b->pool))
		abort();
}

static void bench_close(struct bench *b)
{
	while (block_held(b->q)) {
		block_flush(b->q, true, b->now_ns);
		reap(b);
	}
	while (b->rx->tail != b->rx->head)
		devmem_release(b->rx, true);
	if (released != b->rx->stat.tokens || b->rx->err)
		fprintf(stderr, "devmem_frag: %" PRIu64 " tokens of %" PRIu64 " went back\n",
			released, b->rx->stat.tokens);
	printf("%.1f merged and %.1f linear of 100, %.1f tokens a release\n",
	       100.0 * (double)b->rx->stat.merged / (double)b->nr,
	       100.0 * (double)b->rx->stat.linear_b / FRAG_B / (double)b->nr,
	       (double)b->rx->stat.released / (double)b->rx->stat.releases);
	devmem_rx_close(b->rx);
	devmem_pool_close(b->pool);
	block_close(b->q);
	free(b->arena);
}

int main(int argc, char *argv[])
{
	uint64_t nr = (argc > 1 ? strtoull(argv[1], NULL, 0) : 100) * 1000000;
	const char *kind = argc > 2 ? argv[2] : "scattered";
	struct gx_gpu *gpu = none_gpu();
	struct bench b = {.now_ns = 1};
	uint64_t begin;

	prepare(!strcmp(kind, "neighbours") ? NEIGHBOURS
		: !strcmp(kind, "linear")   ? LINEAR
					    : SCATTERED);
	bench_open(&b, gpu);
	begin = gx_now_ns();
	while (b.nr < nr)
		bench_turn(&b);
	printf("%s: %.1f ns a fragment of %u bytes, %" PRIu64 " fragments\n", kind,
	       (double)(gx_now_ns() - begin) / (double)b.nr, FRAG_B, b.nr);
	bench_close(&b);
	gpu->stream = host_stream;
	gx_gpu_host_ops.close(gpu);
	return 0;
}
