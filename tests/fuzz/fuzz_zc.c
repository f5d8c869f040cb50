/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as the control messages of a socket's error queue. The first byte is how many sends are
 * out, the second has bit 0 for MSG_CTRUNC; then u32 the number of the first send; the rest are the
 * messages. Whatever they say, a source goes back once, in its order, and only if a range of a
 * message names it. Run by libFuzzer, or by fuzz_main.c as an ordinary test.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nic/zc_tx.h"

#define DEPTH  64
#define HEAD_B 6

#define CHECK(cond)                                                                                \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			fprintf(stderr, "fuzz_zc:%d: %s does not hold\n", __LINE__, #cond);        \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The input under way. */
static const uint8_t *ctl;
static size_t ctl_b;
static int flags;

static ssize_t fuzz_send(int fd, const struct msghdr *msg)
{
	return 1;
}

static ssize_t fuzz_end(int fd, struct msghdr *msg)
{
	if (!ctl)
		return -EAGAIN;
	CHECK(ctl_b <= msg->msg_controllen);
	memcpy(msg->msg_control, ctl, ctl_b);
	msg->msg_controllen = ctl_b;
	msg->msg_flags = flags;
	ctl = NULL;
	return 0;
}

static int fuzz_allow(int fd)
{
	return 0;
}

static const struct zc_sys fuzz_sys = {.send = fuzz_send, .end = fuzz_end, .allow = fuzz_allow};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct zc_cfg cfg = {.sys = &fuzz_sys, .depth = DEPTH};
	struct zc_end end[ZC_ENDS];
	struct msghdr msg = {.msg_control = (void *)(data + HEAD_B)};
	struct iovec iov = {"x", 1};
	struct msghdr out = {.msg_iov = &iov, .msg_iovlen = 1};
	unsigned nr, named = 0, n = 0;
	uint64_t users[DEPTH];
	struct zc_tx *tx;
	uint32_t first;

	if (size < HEAD_B || size > HEAD_B + ZC_CTL_B)
		return 0;
	memcpy(&first, data + 2, sizeof(first));
	ctl = data + HEAD_B;
	msg.msg_controllen = ctl_b = size - HEAD_B;
	flags = data[1] & 1 ? MSG_CTRUNC : 0;
	if (zc_tx_open(&cfg, &tx))
		abort();
	tx->head = tx->tail = first;
	for (; n < data[0] % (DEPTH + 1u); n++)
		CHECK(zc_tx_post(tx, &out, n) == 1);
	zc_ends(&msg, end, ZC_ENDS, &nr);
	CHECK(nr <= ZC_ENDS);
	for (unsigned i = 0; i < n; i++)
		for (unsigned j = 0; j < nr; j++)
			if (first + i - end[j].first <= end[j].last - end[j].first) {
				named++;
				break;
			}
	nr = zc_tx_reap(tx, users, DEPTH);
	CHECK(nr <= named && zc_tx_held(tx) == n - nr);
	for (unsigned i = 0; i < nr; i++)
		CHECK(users[i] == i);
	CHECK(!tx->err || tx->why);
	zc_tx_close(tx);
	return 0;
}
