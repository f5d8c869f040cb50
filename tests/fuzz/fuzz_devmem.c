/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as the control messages of a read of device memory. The first byte is how many messages
 * the decoder may give, the second has bit 0 for MSG_CTRUNC, then u32 the bytes that recvmsg()
 * returns; the rest are the messages. Whatever they say, fragments lie in the pool or in the host
 * memory of the socket, they are all that was read, and every token that was decoded goes back once.
 * Run by libFuzzer, or by fuzz_main.c as an ordinary test.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nic/devmem.h"

#define ID     7
#define POOL_B (16u * DEVMEM_PAGE_B)
#define LIN_B  16384u
#define HEAD_B 6
#define FRAGS  64

#define CHECK(cond)                                                                                \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			fprintf(stderr, "fuzz_devmem:%d: %s does not hold\n", __LINE__, #cond);    \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char pool[POOL_B], lin[LIN_B];

/* The input under way. */
static const uint8_t *ctl;
static size_t ctl_b;
static int flags;
static uint32_t read_b;
static uint64_t given, back;

static ssize_t fuzz_recv(int fd, struct msghdr *msg)
{
	size_t n = GX_MIN(ctl_b, msg->msg_controllen);

	memcpy(msg->msg_control, ctl, n);
	msg->msg_controllen = n;
	msg->msg_flags = flags;
	return read_b;
}

static int fuzz_claims(const void *b, size_t len, struct devmem_claim out[], unsigned max,
		       unsigned *n)
{
	int ret = devmem_claims(b, len, out, max, n);

	CHECK(*n <= max);
	CHECK(*n * DEVMEM_CMSG_B <= len + DEVMEM_CMSG_B - 1);
	for (unsigned i = 0; i < *n; i++)
		given += !out[i].is_linear;
	return ret;
}

static int fuzz_release(int fd, const struct devmem_range range[], unsigned n)
{
	uint32_t sum = 0;

	CHECK(n && n <= DEVMEM_RANGES_MAX);
	for (unsigned i = 0; i < n; i++) {
		CHECK(range[i].count && range[i].count <= DEVMEM_TOKENS_MAX);
		sum += range[i].count;
	}
	CHECK(sum <= DEVMEM_TOKENS_MAX);
	back += sum;
	return (int)sum;
}

static const struct devmem_sys fuzz_sys = {
	.recv = fuzz_recv, .claims = fuzz_claims, .release = fuzz_release};

static bool is_in(const struct devmem_frag *f, const char *base, size_t len)
{
	return f->src >= base && f->src < base + len && f->len <= (size_t)(base + len - f->src);
}

static void fuzz_read(struct devmem_rx *rx, const struct devmem_pool *p, unsigned room)
{
	struct devmem_frag frag[FRAGS];
	uint64_t sum = 0;
	int n = devmem_rx_pull(rx, LIN_B, frag, room);

	CHECK(n <= (int)room);
	CHECK(n >= 0 || (rx->why && rx->err == n));
	for (int i = 0; i < n; i++) {
		CHECK(is_in(&frag[i], pool, POOL_B) || is_in(&frag[i], lin, LIN_B));
		CHECK(frag[i].len);
		sum += frag[i].len;
		devmem_done(rx, frag[i].ref);
	}
	CHECK(n <= 0 || sum == read_b);
	CHECK(!devmem_rx_held(rx));
	CHECK(!devmem_release(rx, true));
	CHECK(rx->tail == rx->head && !p->held && back == given);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct devmem_cfg cfg = {
		.sys = &fuzz_sys, .fd = -1, .lin = lin, .lin_b = LIN_B, .depth = FRAGS};
	struct devmem_pool *p;
	struct devmem_rx *rx;

	if (size < HEAD_B || size > HEAD_B + FRAGS * DEVMEM_CMSG_B)
		return 0;
	memcpy(&read_b, data + 2, sizeof(read_b));
	ctl = data + HEAD_B;
	ctl_b = size - HEAD_B;
	flags = data[1] & 1 ? MSG_CTRUNC : 0;
	given = back = 0;
	if (devmem_pool_open(ID, pool, POOL_B, 0, &p) || devmem_rx_open(&cfg, &rx) ||
	    devmem_rx_pool(rx, p))
		abort();
	fuzz_read(rx, p, data[0] % (FRAGS + 1));
	devmem_rx_close(rx);
	devmem_pool_close(p);
	return 0;
}
