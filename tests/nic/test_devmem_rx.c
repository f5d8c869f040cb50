/* SPDX-License-Identifier: Apache-2.0 */
/*
 * devmem_rx.c, devmem_sys.c and devmem_pool.c by hand: each read of the kernel and each answer to a
 * release is written down by the test.
 */
#include "nic/devmem.h"

#include <errno.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ID     7
#define PAGES  64
#define POOL_B (PAGES * DEVMEM_PAGE_B)
#define LIN_B  16384u
#define LOG_N  512

/* What the kernel says to the next read, and what was released. */
static struct {
	struct devmem_claim claim[DEVMEM_READ_MAX];
	unsigned nr;
	ssize_t ret;
	int flags;
	size_t cut; /* bytes that the control messages lack at their end */
	const char *lin;
	unsigned reads, room; /* messages that the last read had room for */
	size_t asked;	      /* bytes of the last read */

	int answer[LOG_N]; /* to releases: 0: all of it */
	unsigned nr_answers;
	struct devmem_range range[LOG_N];
	unsigned nr_ranges, calls, call_ranges[LOG_N], call_tokens[LOG_N];
} k;

static size_t iov_fill(const struct msghdr *msg, const char *b, size_t len)
{
	for (size_t i = 0; i < msg->msg_iovlen && len; i++) {
		size_t n = GX_MIN(len, msg->msg_iov[i].iov_len);

		memcpy(msg->msg_iov[i].iov_base, b, n);
		b += n;
		len -= n;
	}
	return len;
}

static char *tell(char *at, const struct devmem_claim *c)
{
	struct cmsghdr h = {.cmsg_len = CMSG_LEN(sizeof(struct devmem_cmsg)),
			    .cmsg_level = SOL_SOCKET,
			    .cmsg_type = c->is_linear ? DEVMEM_LINEAR : DEVMEM_DMABUF};
	struct devmem_cmsg m = {c->off, c->len, c->token, c->id, 0};

	memcpy(at, &h, sizeof(h));
	memcpy(at + sizeof(h), &m, sizeof(m));
	return at + DEVMEM_CMSG_B;
}

static ssize_t hand_recv(int fd, struct msghdr *msg)
{
	char *at = msg->msg_control;
	size_t lin = k.lin ? strlen(k.lin) : 0;

	k.reads++;
	k.room = (unsigned)(msg->msg_controllen / DEVMEM_CMSG_B);
	k.asked = 0;
	for (size_t i = 0; i < msg->msg_iovlen; i++)
		k.asked += msg->msg_iov[i].iov_len;
	if (k.ret <= 0)
		return k.ret;
	assert_true(k.nr <= k.room);
	for (unsigned i = 0; i < k.nr; i++)
		at = tell(at, &k.claim[i]);
	assert_int_equal(iov_fill(msg, k.lin, lin), 0);
	msg->msg_controllen = (size_t)(at - (char *)msg->msg_control) - k.cut;
	msg->msg_flags = k.flags;
	return k.ret;
}

static int hand_release(int fd, const struct devmem_range range[], unsigned n)
{
	int answer = k.calls < k.nr_answers ? k.answer[k.calls] : 0;
	unsigned sum = 0;

	for (unsigned i = 0; i < n; i++) {
		assert_true(k.nr_ranges < LOG_N);
		k.range[k.nr_ranges++] = range[i];
		sum += range[i].count;
	}
	assert_true(k.calls < LOG_N);
	k.call_ranges[k.calls] = n;
	k.call_tokens[k.calls++] = sum;
	return answer == 0 ? (int)sum : answer == INT32_MAX ? 0 : answer;
}

static const struct devmem_sys hand_sys = {
	.recv = hand_recv, .claims = devmem_claims, .release = hand_release};

struct rig {
	struct devmem_rx *rx;
	struct devmem_pool *pool;
	char *base, *lin;
	struct devmem_frag frag[DEVMEM_READ_MAX];
};

static struct rig rig_new(unsigned depth)
{
	struct rig r = {.base = malloc(POOL_B), .lin = malloc(LIN_B)};
	struct devmem_cfg cfg = {
		.sys = &hand_sys, .fd = 0, .lin = r.lin, .lin_b = LIN_B, .depth = depth};

	memset(&k, 0, sizeof(k));
	assert_true(r.base && r.lin);
	assert_int_equal(devmem_pool_open(ID, r.base, POOL_B, 0, &r.pool), 0);
	assert_int_equal(devmem_rx_open(&cfg, &r.rx), 0);
	assert_int_equal(devmem_rx_pool(r.rx, r.pool), 0);
	return r;
}

static void rig_free(struct rig *r)
{
	devmem_rx_close(r->rx);
	devmem_pool_close(r->pool);
	free(r->base);
	free(r->lin);
}

static void says(unsigned nr, const struct devmem_claim c[])
{
	k.nr = nr;
	k.ret = 0;
	k.lin = NULL;
	for (unsigned i = 0; i < nr; i++) {
		k.claim[i] = c[i];
		k.ret += c[i].len;
	}
}

static struct devmem_claim at(uint64_t off, uint32_t len, uint32_t token)
{
	return (struct devmem_claim){off, len, token, ID, false};
}

static int pull(struct rig *r)
{
	return devmem_rx_pull(r->rx, LIN_B, r->frag, DEVMEM_READ_MAX);
}

/* One fragment of a page, with this token. */
static void pull_one(struct rig *r, uint32_t page, uint32_t token)
{
	struct devmem_claim c = at((uint64_t)page * DEVMEM_PAGE_B, 100, token);

	says(1, &c);
	assert_int_equal(pull(r), 1);
}

static void range_is(unsigned i, uint32_t start, uint32_t count)
{
	assert_true(i < k.nr_ranges);
	assert_int_equal(k.range[i].start, start);
	assert_int_equal(k.range[i].count, count);
}

/* ---- open ---- */

static void open__refuses(void **state)
{
	char lin[64];
	struct devmem_cfg good = {.sys = &hand_sys, .lin = lin, .lin_b = 64, .depth = 4}, bad;
	struct devmem_pool *p;
	struct devmem_rx *rx;

	bad = good;
	bad.lin_b = 63;
	assert_int_equal(devmem_rx_open(&bad, &rx), -EINVAL);
	bad.lin_b = 0;
	assert_int_equal(devmem_rx_open(&bad, &rx), -EINVAL);
	bad = good;
	bad.depth = 2;
	assert_int_equal(devmem_rx_open(&bad, &rx), -EINVAL);
	bad.depth = 6;
	assert_int_equal(devmem_rx_open(&bad, &rx), -EINVAL);
	assert_int_equal(devmem_pool_open(1, lin, 4097, 0, &p), -EINVAL);
	assert_int_equal(devmem_pool_open(1, lin, 0, 0, &p), -EINVAL);
	assert_int_equal(devmem_pool_open(1, lin, (1ull << 32) + 4096, 0, &p), -EINVAL);
	assert_int_equal(devmem_pool_open(1, lin, 8192, 8192, &p), -EINVAL);
	devmem_rx_close(NULL);
	devmem_pool_close(NULL);
}

static void pool__twice(void **state)
{
	struct rig r = rig_new(16);
	struct devmem_pool *more[DEVMEM_POOLS];

	assert_int_equal(devmem_rx_pool(r.rx, r.pool), -EEXIST);
	for (unsigned i = 0; i < DEVMEM_POOLS; i++) {
		assert_int_equal(devmem_pool_open(100 + i, r.base, POOL_B, 0, &more[i]), 0);
		assert_int_equal(devmem_rx_pool(r.rx, more[i]), i + 1 < DEVMEM_POOLS ? 0 : -ENOSPC);
	}
	rig_free(&r);
	for (unsigned i = 0; i < DEVMEM_POOLS; i++)
		devmem_pool_close(more[i]);
}

/* ---- control messages ---- */

static void claims__edges(void **state)
{
	struct devmem_claim c = at(1, 2, 3), out[2];
	char b[4 * DEVMEM_CMSG_B] = {0};
	struct cmsghdr h = {
		.cmsg_len = CMSG_LEN(4), .cmsg_level = SOL_SOCKET, .cmsg_type = SO_TIMESTAMP};
	unsigned n;

	assert_int_equal(devmem_claims(b, 0, out, 2, &n), 0);
	assert_int_equal(n, 0);
	assert_int_equal(devmem_claims(b, sizeof(h) - 1, out, 2, &n), 0);
	/* a length that is less than its own header, or more than there is */
	assert_int_equal(devmem_claims(b, DEVMEM_CMSG_B, out, 2, &n), -EPROTO);
	tell(tell(tell(b, &c), &c), &c);
	assert_int_equal(devmem_claims(b, DEVMEM_CMSG_B - 1, out, 2, &n), -EPROTO);
	assert_int_equal(devmem_claims(b, 2 * DEVMEM_CMSG_B, out, 2, &n), 0);
	assert_int_equal(n, 2);
	assert_true(out[1].off == 1 && out[1].len == 2 && out[1].token == 3 && out[1].id == ID);
	/* more than were asked for: those that have room are given */
	assert_int_equal(devmem_claims(b, 3 * DEVMEM_CMSG_B, out, 2, &n), -EPROTO);
	assert_int_equal(n, 2);
	/* others' messages are passed over */
	memcpy(b, &h, sizeof(h));
	tell(b + CMSG_SPACE(4), &c);
	assert_int_equal(devmem_claims(b, CMSG_SPACE(4) + DEVMEM_CMSG_B, out, 2, &n), 0);
	assert_int_equal(n, 1);
	assert_int_equal(out[0].token, 3);
}

/* An older kernel leaves a message that was cut. It is none, at the end and behind others. */
static void claims__cut(void **state)
{
	struct devmem_claim c = at(1, 2, 3), out[4];
	char b[3 * DEVMEM_CMSG_B];
	size_t len = CMSG_LEN(8);
	unsigned n;

	tell(tell(b, &c), &c);
	memcpy(b + DEVMEM_CMSG_B, &len, sizeof(len));
	assert_int_equal(devmem_claims(b, DEVMEM_CMSG_B + len, out, 4, &n), 0);
	assert_int_equal(n, 1);
	tell(b + DEVMEM_CMSG_B + len, &c);
	assert_int_equal(devmem_claims(b, 2 * DEVMEM_CMSG_B + len, out, 4, &n), -EPROTO);
	assert_int_equal(n, 1);
	assert_int_equal(devmem_claims(b + DEVMEM_CMSG_B, len, out, 4, &n), -EPROTO);
	assert_int_equal(n, 0);
}

/* ---- pull ---- */

static void pull__fragments(void **state)
{
	struct rig r = rig_new(16);
	struct devmem_claim c[] = {at(8192, 100, 1), at(0, 4096, 2), at(4096, 10, 5)};

	says(3, c);
	assert_int_equal(pull(&r), 3);
	assert_ptr_equal(r.frag[0].src, r.base + 8192);
	assert_int_equal(r.frag[0].len, 100);
	assert_ptr_equal(r.frag[1].src, r.base);
	assert_int_equal(r.frag[2].len, 10); /* a neighbour, but not in its token */
	assert_int_equal(r.pool->held, 3);
	assert_int_equal(devmem_rx_held(r.rx), 3);
	for (unsigned i = 0; i < 3; i++)
		devmem_done(r.rx, r.frag[i].ref);
	assert_int_equal(devmem_release(r.rx, true), 0);
	assert_int_equal(k.calls, 1);
	range_is(0, 1, 2);
	range_is(1, 5, 1);
	assert_int_equal(r.pool->held, 0);
	rig_free(&r);
}

static void pull__merges(void **state)
{
	struct rig r = rig_new(16);
	struct devmem_claim c[] = {at(100, 1000, 4), at(1100, 2996, 5), at(4096, 4096, 6),
				   at(8192, 1, 8),   at(8193, 1, 9),	at(8195, 1, 10)};

	says(6, c);
	assert_int_equal(pull(&r), 3);
	assert_int_equal(r.frag[0].len, 8092);
	assert_int_equal(r.frag[1].len, 2);
	assert_int_equal(r.frag[2].len, 1);
	assert_int_equal(r.pool->held, 3);
	devmem_done(r.rx, r.frag[0].ref);
	assert_int_equal(devmem_release(r.rx, true), 0);
	range_is(0, 4, 3);
	assert_int_equal(r.pool->held, 1);
	devmem_done(r.rx, r.frag[1].ref);
	devmem_done(r.rx, r.frag[2].ref);
	assert_int_equal(devmem_release(r.rx, true), 0);
	range_is(1, 8, 3);
	assert_int_equal(r.pool->held, 0);
	assert_int_equal(r.rx->stat.merged, 3);
	rig_free(&r);
}

static void pull__two_pools(void **state)
{
	struct rig r = rig_new(16);
	struct devmem_pool *other;
	char *base = malloc(POOL_B);
	struct devmem_claim c[] = {at(0, 100, 1), {100, 7, 2, ID + 1, false}, at(107, 9, 3)};

	assert_int_equal(devmem_pool_open(ID + 1, base, POOL_B, 0, &other), 0);
	assert_int_equal(devmem_rx_pool(r.rx, other), 0);
	says(3, c);
	assert_int_equal(pull(&r), 3);
	assert_ptr_equal(r.frag[1].src, base + 100);
	assert_ptr_equal(r.frag[2].src, r.base + 107);
	assert_int_equal(other->held, 1);
	for (unsigned i = 0; i < 3; i++)
		devmem_done(r.rx, r.frag[i].ref);
	assert_int_equal(devmem_release(r.rx, true), 0);
	range_is(0, 1, 3);
	assert_int_equal(other->held + r.pool->held, 0);
	rig_free(&r);
	devmem_pool_close(other);
	free(base);
}

/* Bytes in host memory, among others and alone, over its end. */
static void pull__linear(void **state)
{
	struct rig r = rig_new(16);
	struct devmem_claim c[] = {{0, 3, 0, 0, true}, at(0, 100, 1), {0, 2, 0, 0, true}};
	static char much[LIN_B];

	says(3, c);
	k.lin = "abcde";
	assert_int_equal(pull(&r), 3);
	assert_memory_equal(r.frag[0].src, "abc", 3);
	assert_ptr_equal(r.frag[1].src, r.base);
	assert_memory_equal(r.frag[2].src, "de", 2);
	for (unsigned i = 0; i < 3; i++)
		devmem_done(r.rx, r.frag[i].ref);
	assert_int_equal(devmem_release(r.rx, true), 0);
	assert_int_equal(k.call_tokens[0], 1);
	assert_int_equal(r.rx->stat.linear_b, 5);
	memset(much, 'x', LIN_B - 2);
	says(0, NULL); /* plain data */
	k.ret = LIN_B - 2;
	k.lin = much;
	assert_int_equal(pull(&r), 2);
	assert_int_equal(k.asked, LIN_B);
	assert_ptr_equal(r.frag[0].src, r.lin + 5);
	assert_int_equal(r.frag[0].len + r.frag[1].len, LIN_B - 2);
	assert_ptr_equal(r.frag[1].src, r.lin);
	k.ret = -EAGAIN;
	assert_int_equal(pull(&r), 0);
	assert_int_equal(k.asked, 2);
	devmem_done(r.rx, r.frag[1].ref); /* its memory waits for the one before */
	assert_int_equal(devmem_release(r.rx, true), 0);
	assert_int_equal(pull(&r), 0);
	assert_int_equal(k.asked, 2);
	devmem_done(r.rx, r.frag[0].ref);
	assert_int_equal(devmem_release(r.rx, false), 0);
	assert_int_equal(pull(&r), 0);
	assert_int_equal(k.asked, LIN_B);
	assert_int_equal(k.calls, 1); /* no system call for memory of ours */
	rig_free(&r);
}

/* Nothing is read that has no place. */
static void pull__full(void **state)
{
	struct rig r = rig_new(4);
	uint32_t ref[3];

	for (unsigned i = 0; i < 3; i++) {
		pull_one(&r, i, 1 + 2 * i);
		assert_int_equal(k.room, 3 - i);
		ref[i] = r.frag[0].ref;
	}
	assert_int_equal(pull(&r), 0);
	assert_int_equal(k.reads, 3);
	assert_int_equal(r.rx->stat.full, 1);
	for (unsigned i = 0; i < 3; i++)
		devmem_done(r.rx, ref[i]);
	assert_int_equal(devmem_release(r.rx, false), 0); /* it is due, as there is no room */
	assert_int_equal(k.call_tokens[0], 3);
	pull_one(&r, 0, 1);
	devmem_done(r.rx, r.frag[0].ref);
	rig_free(&r); /* the token goes back with the socket */
}

/* Reads that brought nothing, and the stream goes on. */
static void pull__again(void **state)
{
	static const int passing[] = {-EAGAIN, -EINTR, -ENOMEM};
	struct rig r = rig_new(16);

	for (unsigned i = 0; i < GX_ARRAY_SIZE(passing); i++) {
		k.ret = passing[i];
		assert_int_equal(pull(&r), 0);
	}
	pull_one(&r, 0, 1);
	devmem_done(r.rx, r.frag[0].ref);
	assert_int_equal(devmem_release(r.rx, true), 0);
	rig_free(&r);
}

/* The stream ends, with a name. What came before stays good, and its token goes back. */
static void pull__ends(void **state)
{
	static const struct {
		int ret, err;
	} end[] = {{0, -ESHUTDOWN},
		   {-ENODEV, -ENODEV},
		   {-EFAULT, -EFAULT},
		   {-DEVMEM_ETOOSMALL, -EMSGSIZE},
		   {-ECONNRESET, -ECONNRESET},
		   {LIN_B + 1, -EPROTO}};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(end); i++) {
		struct rig r = rig_new(16);

		pull_one(&r, 0, 1);
		says(0, NULL);
		k.ret = end[i].ret;
		assert_int_equal(pull(&r), end[i].err);
		assert_non_null(r.rx->why);
		assert_int_equal(pull(&r), end[i].err);
		assert_int_equal(k.reads, 2);
		assert_int_equal(devmem_release(r.rx, true), 0);
		assert_int_equal(k.calls, 0);
		devmem_done(r.rx, r.frag[0].ref);
		assert_int_equal(devmem_release(r.rx, true), 0);
		range_is(0, 1, 1);
		rig_free(&r);
	}
}

/* Claims that cannot be true. Each token of the read goes back, behind those before it. */
static void pull__lies(void **state)
{
	static const struct {
		struct devmem_claim bad;
		int more, err; /* bytes that recvmsg() returns beside those that are claimed */
	} lie[] = {
		{{0, 0, 3, ID, false}, 0, -EPROTO},
		{{POOL_B - 99, 100, 3, ID, false}, 0, -EPROTO},
		{{UINT64_MAX, 100, 3, ID, false}, 0, -EPROTO},
		{{1ull << 32, 100, 3, ID, false}, 0, -EPROTO},
		{{0, 100, 3, ID, false}, -1, -EPROTO},
		{{0, 100, 3, ID, false}, 1, -EPROTO},
		{{0, 100, 3, ID + 9, false}, 0, -EXDEV},
	};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(lie); i++) {
		struct rig r = rig_new(16);
		struct devmem_claim c[] = {at(4096, 10, 2), lie[i].bad, at(8192, 10, 4)};

		uint32_t first;

		pull_one(&r, 0, 1);
		first = r.frag[0].ref;
		says(3, c);
		k.ret += lie[i].more;
		assert_int_equal(pull(&r), lie[i].err);
		assert_int_equal(devmem_rx_held(r.rx), 4);
		devmem_done(r.rx, first);
		assert_int_equal(devmem_rx_held(r.rx), 0);
		assert_int_equal(devmem_release(r.rx, true), 0);
		range_is(0, 1, 4);
		assert_int_equal(r.pool->held, 0);
		rig_free(&r);
	}
}

/* The last byte of the pool is its. */
static void pull__end_of_pool(void **state)
{
	struct rig r = rig_new(16);
	struct devmem_claim c = at(POOL_B - 100, 100, 3);

	says(1, &c);
	assert_int_equal(pull(&r), 1);
	devmem_done(r.rx, r.frag[0].ref);
	assert_int_equal(devmem_release(r.rx, true), 0);
	rig_free(&r);
}

static void pull__cut(void **state)
{
	struct devmem_claim c[] = {at(4096, 10, 2), at(8192, 10, 4)};

	for (unsigned i = 0; i < 2; i++) {
		struct rig r = rig_new(16);

		says(2, c);
		k.flags = i ? MSG_CTRUNC : 0;
		k.cut = i ? 0 : 8;
		assert_int_equal(pull(&r), i ? -EOVERFLOW : -EPROTO);
		assert_int_equal(devmem_release(r.rx, true), 0);
		range_is(0, 2, 1);
		assert_int_equal(k.nr_ranges, 1 + i);
		rig_free(&r);
	}
}

/* ---- release ---- */

static void release__waits_for_copy(void **state)
{
	struct rig r = rig_new(16);
	uint32_t first;

	pull_one(&r, 0, 1);
	first = r.frag[0].ref;
	devmem_hold(r.rx, first);
	pull_one(&r, 1, 2);
	devmem_done(r.rx, r.frag[0].ref); /* it goes behind the first */
	assert_int_equal(devmem_release(r.rx, true), 0);
	devmem_done(r.rx, first);
	assert_int_equal(devmem_release(r.rx, true), 0);
	assert_int_equal(k.calls, 0);
	assert_int_equal(r.pool->held, 2);
	devmem_done(r.rx, first);
	assert_int_equal(devmem_release(r.rx, true), 0);
	assert_int_equal(k.calls, 1);
	range_is(0, 1, 2);
	assert_int_equal(devmem_release(r.rx, true), 0);
	assert_int_equal(k.calls, 1);
	rig_free(&r);
}

static void release__in_batches(void **state)
{
	struct rig r = rig_new(1024);

	for (uint32_t i = 0; i < DEVMEM_BATCH; i++) {
		assert_int_equal(devmem_release(r.rx, false), 0);
		assert_int_equal(k.calls, 0);
		pull_one(&r, i % PAGES, 1 + i);
		devmem_done(r.rx, r.frag[0].ref);
		r.pool->is_slow = false; /* then each is urgent */
	}
	assert_int_equal(devmem_release(r.rx, false), 0);
	assert_int_equal(k.calls, 1);
	assert_int_equal(k.call_ranges[0], 1);
	assert_int_equal(k.call_tokens[0], DEVMEM_BATCH);
	rig_free(&r);
}

/* Bytes in host memory wait for the token before them. So that is urgent when they are many. */
static void release__host_memory(void **state)
{
	struct rig r = rig_new(16);
	static char much[LIN_B];

	memset(much, 'x', LIN_B / 2);
	pull_one(&r, 0, 1);
	devmem_done(r.rx, r.frag[0].ref);
	for (unsigned i = 0; i < 2; i++) {
		says(0, NULL);
		k.ret = i ? 1 : LIN_B / 2;
		k.lin = i ? "x" : much;
		assert_int_equal(pull(&r), 1);
		devmem_done(r.rx, r.frag[0].ref);
		assert_int_equal(devmem_release(r.rx, false), 0);
		assert_int_equal(k.calls, i);
	}
	assert_int_equal(r.rx->tail, r.rx->head);
	rig_free(&r);
}

/* 300 tokens, none beside another: three calls. */
static void release__many_ranges(void **state)
{
	struct rig r = rig_new(1024);

	for (uint32_t i = 0; i < 300; i++) {
		pull_one(&r, i % PAGES, 2 + 2 * i);
		devmem_done(r.rx, r.frag[0].ref);
	}
	assert_int_equal(devmem_release(r.rx, true), 0);
	assert_int_equal(k.calls, 3);
	assert_int_equal(k.call_ranges[0], 128);
	assert_int_equal(k.call_ranges[1], 128);
	assert_int_equal(k.call_ranges[2], 300 - 2 * 128);
	for (uint32_t i = 0; i < 300; i++)
		range_is(i, 2 + 2 * i, 1);
	rig_free(&r);
}

/* 2,500 tokens in ranges of 100: a range is cut at 1,024. */
static void release__many_tokens(void **state)
{
	struct rig r = rig_new(1024);
	struct devmem_claim c[100];

	for (uint32_t i = 0; i < 25; i++) {
		for (uint32_t j = 0; j < 100; j++)
			c[j] = at(j * 32, 32, 1 + i * 101 + j);
		says(100, c);
		assert_int_equal(pull(&r), 1);
		devmem_done(r.rx, r.frag[0].ref);
	}
	assert_int_equal(devmem_release(r.rx, true), 0);
	assert_int_equal(k.calls, 3);
	assert_int_equal(k.call_tokens[0], 1024);
	assert_int_equal(k.call_tokens[1], 1024);
	assert_int_equal(k.call_tokens[2], 2500 - 2 * 1024);
	range_is(10, 1 + 10 * 101, 24);
	range_is(11, 1 + 10 * 101 + 24, 76);
	assert_int_equal(r.rx->stat.released, 2500);
	rig_free(&r);
}

/* The kernel takes some: the next call has the rest, and before another read. */
static void release__short(void **state)
{
	struct rig r = rig_new(16);
	struct devmem_claim c[] = {at(0, 8, 1), at(100, 8, 2), at(200, 8, 5), at(300, 8, 6)};

	says(4, c);
	assert_int_equal(pull(&r), 4);
	for (unsigned i = 0; i < 4; i++)
		devmem_done(r.rx, r.frag[i].ref);
	k.nr_answers = 3;
	k.answer[0] = 1;
	k.answer[1] = 2;
	k.answer[2] = -EINTR;
	assert_int_equal(devmem_release(r.rx, true), 0);
	assert_int_equal(k.calls, 3);
	range_is(2, 2, 1);
	range_is(3, 5, 2);
	range_is(4, 6, 1);
	assert_int_equal(r.rx->stat.short_ones, 2);
	k.nr_answers = 4;
	k.answer[3] = -ENOMEM;
	assert_int_equal(pull(&r),
			 0); /* the kernel has no memory for the rest, so nothing is read */
	assert_int_equal(k.reads, 1);
	assert_int_equal(k.calls, 4);
	pull_one(&r, 0, 1);
	assert_int_equal(k.calls, 5);
	range_is(6, 6, 1);
	assert_int_equal(r.rx->stat.released, 4);
	devmem_done(r.rx, r.frag[0].ref);
	assert_int_equal(devmem_release(r.rx, true), 0);
	rig_free(&r);
}

static void release__no_progress(void **state)
{
	static const struct {
		int answer, err;
	} end[] = {{INT32_MAX, -EPROTO}, {3, -EPROTO}, {-EBADF, -EBADF}, {-EINVAL, -EINVAL}};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(end); i++) {
		struct rig r = rig_new(16);

		pull_one(&r, 0, 1);
		devmem_done(r.rx, r.frag[0].ref);
		k.nr_answers = 1;
		k.answer[0] = end[i].answer;
		assert_int_equal(devmem_release(r.rx, true), end[i].err);
		assert_int_equal(devmem_release(r.rx, true), end[i].err);
		assert_int_equal(k.calls, 1);
		assert_int_equal(pull(&r), end[i].err);
		assert_int_equal(k.reads, 1);
		rig_free(&r);
	}
}

/* A kernel that takes fewer ranges. */
static void release__too_big(void **state)
{
	struct rig r = rig_new(1024);

	for (uint32_t i = 0; i < 100; i++) {
		pull_one(&r, i % PAGES, 2 + 2 * i);
		devmem_done(r.rx, r.frag[0].ref);
	}
	k.nr_answers = 2;
	k.answer[0] = -E2BIG;
	k.answer[1] = -EINVAL;
	assert_int_equal(devmem_release(r.rx, true), 0);
	assert_int_equal(k.call_ranges[1], 50);
	for (unsigned i = 2; i < 6; i++)
		assert_int_equal(k.call_ranges[i], 25);
	assert_int_equal(k.calls, 6);
	assert_int_equal(r.rx->stat.released, 100);
	rig_free(&r);
}

static void release__passing(void **state)
{
	static const int passing[] = {-EAGAIN, -EINTR, -ENOMEM};
	struct rig r = rig_new(16);

	pull_one(&r, 0, 9);
	devmem_done(r.rx, r.frag[0].ref);
	k.nr_answers = GX_ARRAY_SIZE(passing);
	memcpy(k.answer, passing, sizeof(passing));
	for (unsigned i = 0; i <= GX_ARRAY_SIZE(passing); i++) {
		assert_int_equal(devmem_release(r.rx, true), 0);
		assert_int_equal(k.calls, i + 1);
	}
	for (unsigned i = 0; i <= GX_ARRAY_SIZE(passing); i++)
		range_is(i, 9, 1);
	assert_int_equal(r.rx->tail, r.rx->head);
	rig_free(&r);
}

/* ---- the pool ---- */

static unsigned nr_lines;
static char line[512];

static void sink(void *arg, int level, const char *text)
{
	nr_lines++;
	strncpy(line, text, sizeof(line) - 1);
}

static void pool__slow(void **state)
{
	struct rig r = rig_new(256);
	uint32_t ref[PAGES];
	uint32_t high = PAGES / 4 * 3;

	gx_log_sink(sink, NULL);
	for (uint32_t i = 0; i < high; i++) {
		assert_int_equal(devmem_pool_report(r.pool), 0);
		pull_one(&r, i, 1 + i);
		ref[i] = r.frag[0].ref;
	}
	assert_int_equal(nr_lines, 0);
	assert_int_equal(devmem_pool_report(r.pool), 1);
	assert_int_equal(devmem_pool_report(r.pool), 1);
	assert_int_equal(nr_lines, 1);
	assert_non_null(strstr(line, "dma-buf 7"));
	assert_non_null(strstr(line, "48 of 64 pages"));
	/* Now each token is urgent, until the pool has got over it. */
	for (uint32_t i = 0; i < high; i++) {
		devmem_done(r.rx, ref[i]);
		assert_int_equal(devmem_release(r.rx, false), 0);
		assert_int_equal(r.pool->held, high - 1 - GX_MIN(i, high - PAGES / 2 - 1));
	}
	assert_false(r.pool->is_slow);
	assert_int_equal(devmem_release(r.rx, true), 0);
	assert_int_equal(devmem_pool_report(r.pool), 1);
	gx_log_sink(NULL, NULL);
	rig_free(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(open__refuses),
		cmocka_unit_test(pool__twice),
		cmocka_unit_test(claims__edges),
		cmocka_unit_test(claims__cut),
		cmocka_unit_test(pull__fragments),
		cmocka_unit_test(pull__merges),
		cmocka_unit_test(pull__two_pools),
		cmocka_unit_test(pull__linear),
		cmocka_unit_test(pull__full),
		cmocka_unit_test(pull__again),
		cmocka_unit_test(pull__ends),
		cmocka_unit_test(pull__lies),
		cmocka_unit_test(pull__end_of_pool),
		cmocka_unit_test(pull__cut),
		cmocka_unit_test(release__waits_for_copy),
		cmocka_unit_test(release__in_batches),
		cmocka_unit_test(release__host_memory),
		cmocka_unit_test(release__many_ranges),
		cmocka_unit_test(release__many_tokens),
		cmocka_unit_test(release__short),
		cmocka_unit_test(release__no_progress),
		cmocka_unit_test(release__too_big),
		cmocka_unit_test(release__passing),
		cmocka_unit_test(pool__slow),
	};

	return cmocka_run_group_tests_name("devmem_rx", tests, NULL, NULL);
}
