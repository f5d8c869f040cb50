/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zc_tx.c over a scripted kernel: sends by hand, an error queue that lies, and storms.
 */
#include "nic/devmem_abi.h"
#include "nic/zc_tx.h"

#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DEPTH 16
#define QUEUE 64
#define POOL  (1u << 20)
#define STORM 200000u

struct end {
	uint32_t first, last;
	uint8_t origin;
	uint32_t err;
	int level, type; /* 0: IP_RECVERR */
};

/* The kernel. */
static struct {
	ssize_t answer; /* to the next sends: INT64_MAX: all bytes */
	int allow, end_err, flags;
	size_t cut; /* bytes of control that the next message lacks */
	struct end queue[QUEUE];
	unsigned nr;
	unsigned sends, reads;
	/* of the last send */
	struct iovec iov;
	size_t nr_iov;
	struct cmsghdr h;
	uint32_t id;
} k;

static ssize_t hand_send(int fd, const struct msghdr *msg)
{
	size_t sum = 0;

	for (size_t i = 0; i < msg->msg_iovlen; i++)
		sum += msg->msg_iov[i].iov_len;
	k.sends++;
	k.nr_iov = msg->msg_iovlen;
	k.iov = msg->msg_iov[0];
	if (msg->msg_control) {
		memcpy(&k.h, msg->msg_control, sizeof(k.h));
		memcpy(&k.id, (const char *)msg->msg_control + CMSG_LEN(0), sizeof(k.id));
	}
	return k.answer == INT64_MAX ? (ssize_t)sum : k.answer;
}

static ssize_t hand_end(int fd, struct msghdr *msg)
{
	struct sock_extended_err e = {0};
	struct cmsghdr h;

	k.reads++;
	if (k.end_err)
		return k.end_err;
	if (!k.nr)
		return -EAGAIN;
	e.ee_errno = k.queue[0].err;
	e.ee_origin = k.queue[0].origin;
	e.ee_info = k.queue[0].first;
	e.ee_data = k.queue[0].last;
	h.cmsg_len = CMSG_LEN(sizeof(e));
	h.cmsg_level = k.queue[0].level;
	h.cmsg_type = k.queue[0].type ? k.queue[0].type : IP_RECVERR;
	assert_true(msg->msg_controllen >= CMSG_SPACE(sizeof(e)));
	memcpy(msg->msg_control, &h, sizeof(h));
	memcpy((char *)msg->msg_control + CMSG_LEN(0), &e, sizeof(e));
	msg->msg_controllen = CMSG_SPACE(sizeof(e)) - k.cut;
	msg->msg_flags = MSG_ERRQUEUE | k.flags;
	memmove(k.queue, k.queue + 1, --k.nr * sizeof(k.queue[0]));
	return 0;
}

static int hand_allow(int fd)
{
	return k.allow;
}

static const struct zc_sys hand_sys = {.send = hand_send, .end = hand_end, .allow = hand_allow};

static struct end *say(uint32_t first, uint32_t last)
{
	struct end *n = &k.queue[k.nr++];

	assert_true(k.nr <= QUEUE);
	*n = (struct end){
		.first = first, .last = last, .origin = SO_EE_ORIGIN_ZEROCOPY, .level = SOL_IP};
	return n;
}

static struct zc_tx *tx_open(void)
{
	struct zc_cfg cfg = {.sys = &hand_sys, .depth = DEPTH};
	struct zc_tx *tx;

	memset(&k, 0, sizeof(k));
	k.answer = INT64_MAX;
	assert_int_equal(zc_tx_open(&cfg, &tx), 0);
	return tx;
}

static ssize_t post(struct zc_tx *tx, uint64_t user)
{
	struct iovec iov = {"payload", 7};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	return zc_tx_post(tx, &msg, user);
}

static void post_n(struct zc_tx *tx, uint64_t user, unsigned n)
{
	while (n--)
		assert_int_equal(post(tx, user++), 7);
}

/* Users first, first + 1, ... and no others come. */
static void reap(struct zc_tx *tx, uint64_t first, unsigned n)
{
	uint64_t users[DEPTH + 1];

	assert_int_equal(zc_tx_reap(tx, users, DEPTH + 1), n);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(users[i], first + i);
}

/* ---- opening ---- */

static void open__refused(void **state)
{
	struct zc_cfg cfg = {.sys = &hand_sys, .depth = 12};
	struct zc_tx *tx;

	memset(&k, 0, sizeof(k));
	assert_int_equal(zc_tx_open(&cfg, &tx), -EINVAL);
	cfg.depth = 2 * ZC_DEPTH_MAX;
	assert_int_equal(zc_tx_open(&cfg, &tx), -EINVAL);
	cfg.depth = 16;
	k.allow = -EOPNOTSUPP;
	assert_int_equal(zc_tx_open(&cfg, &tx), -EOPNOTSUPP);
}

/* ---- sends and their ends ---- */

static void post__held(void **state)
{
	struct zc_tx *tx = tx_open();

	reap(tx, 0, 0);
	assert_int_equal(k.reads, 0); /* nothing is out: no system call */
	post_n(tx, 100, 3);
	assert_int_equal(zc_tx_held(tx), 3);
	reap(tx, 0, 0);
	say(0, 1);
	reap(tx, 100, 2);
	assert_int_equal(zc_tx_held(tx), 1);
	say(2, 2);
	reap(tx, 102, 1);
	assert_int_equal(tx->stat.sends, 3);
	assert_int_equal(tx->stat.bytes, 21);
	zc_tx_close(tx);
}

/* Ends come in any order; sources go back in the order of the posts. */
static void reap__disorder(void **state)
{
	struct zc_tx *tx = tx_open();

	post_n(tx, 0, 6);
	say(3, 5);
	reap(tx, 0, 0);
	say(0, 0);
	reap(tx, 0, 1);
	say(1, 2);
	reap(tx, 1, 5);
	zc_tx_close(tx);
}

static void reap__room(void **state)
{
	struct zc_tx *tx = tx_open();
	uint64_t users[2];

	post_n(tx, 0, 3);
	say(0, 2);
	assert_int_equal(zc_tx_reap(tx, users, 2), 2);
	assert_int_equal(zc_tx_reap(tx, users, 2), 1);
	assert_int_equal(users[0], 2);
	zc_tx_close(tx);
}

static void post__full(void **state)
{
	struct zc_tx *tx = tx_open();

	post_n(tx, 0, DEPTH);
	assert_int_equal(post(tx, 99), 0);
	assert_int_equal(tx->stat.full, 1);
	assert_int_equal(k.sends, DEPTH);
	say(0, 0);
	reap(tx, 0, 1);
	post_n(tx, 99, 1);
	zc_tx_close(tx);
}

/* The kernel's numbers wrap. */
static void reap__wrap(void **state)
{
	struct zc_tx *tx = tx_open();

	tx->head = tx->tail = UINT32_MAX - 2;
	post_n(tx, 0, 6);
	say(UINT32_MAX - 2, 1);
	reap(tx, 0, 5);
	say(2, 2);
	reap(tx, 5, 1);
	assert_int_equal(tx->err, 0);
	zc_tx_close(tx);
}

static void post__refused(void **state)
{
	static const ssize_t later[] = {-EAGAIN, -EINTR, -ENOMEM, -ENOBUFS};
	struct zc_tx *tx = tx_open();

	for (size_t i = 0; i < GX_ARRAY_SIZE(later); i++) {
		k.answer = later[i];
		assert_int_equal(post(tx, 0), 0);
	}
	assert_int_equal(zc_tx_held(tx), 0);
	k.answer = 3;
	assert_int_equal(post(tx, 0), 3);
	k.answer = -ENODEV;
	assert_int_equal(post(tx, 1), -ENODEV);
	assert_non_null(strstr(tx->why, "interface"));
	k.answer = INT64_MAX;
	assert_int_equal(post(tx, 1), -ENODEV);
	say(0, 0);
	assert_int_equal(zc_tx_held(tx), 1); /* it ends with the socket */
	zc_tx_close(tx);
}

/* ---- an error queue that lies ---- */

static void end__nonsense(void **state)
{
	static const struct {
		uint32_t first, last;
	} t[] = {{0, 5},		     /* more than were sent */
		 {5, 5},		     /* none of them */
		 {UINT32_MAX, 0},	     /* begins before */
		 {3, 2},		     /* backwards */
		 {0, UINT32_MAX},	     /* all numbers */
		 {1u << 31, (1u << 31) + 1}, /* far away */
		 {UINT32_MAX - 3, UINT32_MAX}};

	for (size_t i = 0; i < GX_ARRAY_SIZE(t); i++) {
		struct zc_tx *tx = tx_open();

		post_n(tx, 0, 5);
		say(t[i].first, t[i].last);
		reap(tx, 0, 0);
		assert_int_equal(tx->err, -EPROTO);
		assert_non_null(tx->why);
		assert_int_equal(zc_tx_held(tx), 5);
		assert_int_equal(post(tx, 9), -EPROTO);
		zc_tx_close(tx);
	}
}

static void end__twice(void **state)
{
	struct zc_tx *tx = tx_open();

	post_n(tx, 0, 4);
	say(1, 2);
	say(2, 3);
	reap(tx, 0, 0);
	assert_int_equal(tx->err, -EPROTO);
	assert_int_equal(zc_tx_held(tx), 4);
	zc_tx_close(tx);
	tx = tx_open();
	post_n(tx, 0, 2);
	say(0, 0);
	reap(tx, 0, 1);
	say(0, 0); /* long gone */
	reap(tx, 0, 0);
	assert_int_equal(tx->err, -EPROTO);
	zc_tx_close(tx);
}

/* Messages about other things are none of ours. */
static void end__others(void **state)
{
	struct zc_tx *tx = tx_open();

	post_n(tx, 0, 1);
	say(0, 0)->origin = SO_EE_ORIGIN_ICMP;
	say(0, 0)->err = ECONNREFUSED;
	say(0, 0)->level = SOL_SOCKET;
	say(0, 0)->type = IP_TTL;
	reap(tx, 0, 0);
	assert_int_equal(tx->stat.others, 4);
	say(0, 0)->level = SOL_IPV6;
	k.queue[0].type = IPV6_RECVERR;
	reap(tx, 0, 1);
	assert_int_equal(tx->err, 0);
	zc_tx_close(tx);
}

static void end__cut(void **state)
{
	struct zc_tx *tx = tx_open();

	post_n(tx, 0, 1);
	say(0, 0);
	k.cut = 8;
	reap(tx, 0, 0);
	assert_int_equal(tx->err, -EPROTO);
	zc_tx_close(tx);
	tx = tx_open();
	post_n(tx, 0, 1);
	say(0, 0);
	k.flags = MSG_CTRUNC;
	reap(tx, 0, 0);
	assert_int_equal(tx->err, -EOVERFLOW);
	zc_tx_close(tx);
	tx = tx_open();
	post_n(tx, 0, 1);
	k.end_err = -EBADF;
	reap(tx, 0, 0);
	assert_int_equal(tx->err, -EBADF);
	zc_tx_close(tx);
}

/* A turn reads the queue so often and no more. */
static void reap__bounded(void **state)
{
	struct zc_tx *tx = tx_open();

	post_n(tx, 0, DEPTH);
	for (uint32_t i = 0; i < DEPTH; i++)
		say(i, i);
	reap(tx, 0, ZC_CALLS);
	assert_int_equal(k.reads, ZC_CALLS);
	reap(tx, ZC_CALLS, DEPTH - ZC_CALLS);
	zc_tx_close(tx);
}

/* ---- device memory ---- */

static void device__message(void **state)
{
	const struct zc_piece p[] = {{7, POOL, 100, 1024}, {7, POOL, POOL - 8, 8}};
	struct zc_cfg cfg = {.sys = &hand_sys, .depth = DEPTH};
	struct zc_tx *tx;
	uint64_t user;

	memset(&k, 0, sizeof(k));
	k.answer = INT64_MAX;
	assert_int_equal(zc_tx_open(&cfg, &tx), 0);
	for (uint32_t i = 0; i < GX_ARRAY_SIZE(p); i++) {
		assert_int_equal(zc_tx_device(tx, &p[i], 5 + i), p[i].len);
		assert_int_equal(k.nr_iov, 1);
		assert_int_equal((uintptr_t)k.iov.iov_base, p[i].off);
		assert_int_equal(k.iov.iov_len, p[i].len);
		assert_int_equal(k.h.cmsg_level, SOL_SOCKET);
		assert_int_equal(k.h.cmsg_type, DEVMEM_DMABUF);
		assert_int_equal(k.h.cmsg_len, CMSG_LEN(4));
		assert_int_equal(k.id, 7);
		assert_int_equal(zc_tx_held(tx), 1);
		say(i, i);
		assert_int_equal(zc_tx_reap(tx, &user, 1), 1);
		assert_int_equal(user, 5 + i);
	}
	zc_tx_close(tx);
}

static void device__wrong(void **state)
{
	const struct zc_piece bad[] = {
		{7, POOL, 0, 0},	  {7, POOL, POOL, 1},		{7, POOL, POOL - 7, 8},
		{7, POOL, UINT64_MAX, 1}, {7, POOL, UINT64_MAX - 3, 8}, {7, 0, 0, 1}};
	struct zc_cfg cfg = {.sys = &hand_sys, .depth = DEPTH};
	struct zc_tx *tx;

	memset(&k, 0, sizeof(k));
	assert_int_equal(zc_tx_open(&cfg, &tx), 0);
	for (size_t i = 0; i < GX_ARRAY_SIZE(bad); i++)
		assert_int_equal(zc_tx_device(tx, &bad[i], 0), -EINVAL);
	assert_int_equal(k.sends, 0);
	assert_int_equal(zc_tx_held(tx), 0);
	zc_tx_close(tx);
}

/* ---- storms ---- */

static struct {
	uint64_t rnd;
	uint32_t next, low;    /* numbers: the next one; none below is out */
	bool is_out[1u << 16]; /* by number % 65536 */
	uint64_t source[1u << 16];
	uint64_t nr_ended;
	bool ended[STORM]; /* by user */
} st;

static uint32_t rnd(uint32_t n)
{
	st.rnd = st.rnd * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(st.rnd >> 33) % n;
}

static ssize_t storm_send(int fd, const struct msghdr *msg)
{
	uint64_t user = *(const uint64_t *)msg->msg_iov[0].iov_base;

	switch (rnd(10)) {
	case 0:
		return -EAGAIN;
	case 1:
		return -ENOBUFS;
	}
	st.is_out[st.next & 0xffff] = true;
	st.source[st.next++ & 0xffff] = user;
	return 1 + (ssize_t)rnd(8);
}

/* Ends of any range whose numbers are all out. */
static void storm_ends(void)
{
	uint32_t out = st.next - st.low, first, last;

	if (!out)
		return;
	first = st.low + rnd(2) * rnd(out);
	if (!st.is_out[first & 0xffff])
		return;
	for (last = first; last + 1 != st.next && st.is_out[(last + 1) & 0xffff] && rnd(4);)
		last++;
	for (uint32_t i = first; i != last + 1; i++) {
		st.is_out[i & 0xffff] = false;
		st.ended[st.source[i & 0xffff]] = true;
	}
	while (st.low != st.next && !st.is_out[st.low & 0xffff])
		st.low++;
	say(first, last);
}

static const struct zc_sys storm_sys = {.send = storm_send, .end = hand_end, .allow = hand_allow};

/* Each source goes back once, in its order, and not before the kernel has finished with it. */
static void storm(uint32_t seed, uint32_t first_id)
{
	struct zc_cfg cfg = {.sys = &storm_sys, .depth = 256};
	uint64_t posted = 0, reaped = 0, users[16];
	struct zc_tx *tx;

	memset(&k, 0, sizeof(k));
	memset(&st, 0, sizeof(st));
	st.rnd = seed;
	st.next = st.low = first_id;
	assert_int_equal(zc_tx_open(&cfg, &tx), 0);
	tx->head = tx->tail = first_id;
	while (reaped < STORM) {
		struct iovec iov = {&posted, 8};
		struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
		unsigned n;

		if (posted < STORM && rnd(3))
			posted += zc_tx_post(tx, &msg, posted) > 0;
		if (k.nr < QUEUE / 2 && rnd(2))
			storm_ends();
		n = zc_tx_reap(tx, users, 1 + rnd(16));
		assert_int_equal(tx->err, 0);
		for (unsigned i = 0; i < n; i++) {
			assert_int_equal(users[i], reaped);
			assert_true(st.ended[reaped++]);
		}
		assert_int_equal(zc_tx_held(tx), posted - reaped);
	}
	zc_tx_close(tx);
}

static void storm__ends(void **state)
{
	storm(1, 0);
	storm(2, UINT32_MAX - STORM / 2); /* the numbers wrap on the way */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(open__refused),   cmocka_unit_test(post__held),
		cmocka_unit_test(reap__disorder),  cmocka_unit_test(reap__room),
		cmocka_unit_test(post__full),	   cmocka_unit_test(reap__wrap),
		cmocka_unit_test(post__refused),   cmocka_unit_test(end__nonsense),
		cmocka_unit_test(end__twice),	   cmocka_unit_test(end__others),
		cmocka_unit_test(end__cut),	   cmocka_unit_test(reap__bounded),
		cmocka_unit_test(device__message), cmocka_unit_test(device__wrong),
		cmocka_unit_test(storm__ends),
	};

	return cmocka_run_group_tests_name("zc_tx", tests, NULL, NULL);
}
