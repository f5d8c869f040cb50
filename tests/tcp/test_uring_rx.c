/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_ring.c, uring_rx.c and uring_buf.c over a scripted kernel: each error by hand, then storms.
 */
#include "tcp/ring_script.h"
#include "tcp/uring_rx.h"

#include <errno.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BUFS	8
#define BUF_B	256u
#define SOCKS	4
#define FRAGS	64
#define STORM_B 400000u /* bytes of a socket */

static struct ring_script k;
static char pool[RS_BUFS * BUF_B];

struct rig {
	struct uring_rx *rx;
	struct uring_frag frag[FRAGS];
	char why[IO_RING_WHY_B];
};

static struct uring_cfg rig_cfg(bool packed)
{
	k.pool = pool;
	k.buf_b = BUF_B;
	return (struct uring_cfg){.sys = &ring_script_sys,
				  .pool = pool,
				  .buf_b = BUF_B,
				  .nr_bufs = BUFS,
				  .nr_socks = SOCKS,
				  .depth = 32,
				  .is_packed = packed};
}

static void rig_open(struct rig *r, bool packed)
{
	struct uring_cfg cfg;

	rs_open(&k, 7);
	cfg = rig_cfg(packed);
	assert_int_equal(uring_rx_open(&cfg, &r->rx, r->why), 0);
	assert_int_equal(uring_rx_is_packed(r->rx), packed);
}

static void leave(struct rig *r, int sock)
{
	uring_rx_leave(r->rx, (uint32_t)sock);
	for (int i = 0; i < 8 && !uring_rx_left(r->rx, (uint32_t)sock); i++)
		uring_rx_turn(r->rx);
	assert_int_equal(r->rx->sock[sock].state, URING_FREE);
	assert_false(k.sock[r->rx->sock[sock].fd].is_armed);
}

/* All is back: records, buffers, receives. */
static void rig_close(struct rig *r)
{
	for (uint32_t i = 0; i < SOCKS; i++)
		if (r->rx->sock[i].state != URING_FREE)
			leave(r, (int)i);
	if (!r->rx->ring.err) {
		r->rx->kind->flush(r->rx);
		assert_int_equal(rs_bufs(&k), BUFS);
	}
	assert_int_equal(r->rx->nr_free, r->rx->nr_recs);
	uring_rx_close(r->rx);
	assert_int_equal(k.nr_twice + k.nr_bad, 0);
	rs_close(&k);
}

/* A socket whose receive the kernel has. */
static uint32_t sock_add(struct rig *r, int fd)
{
	int i = uring_rx_add(r->rx, fd);

	assert_true(i >= 0);
	uring_rx_turn(r->rx);
	assert_true(k.sock[fd].is_armed);
	return (uint32_t)i;
}

/* Completions are there, and the kernel says so. */
static void turn(struct rig *r)
{
	rs_flag(&k, IORING_SQ_TASKRUN);
	uring_rx_turn(r->rx);
}

/* Pull all; compare with the stream; nothing of it is done. Return: bytes. */
static uint64_t pull(struct rig *r, uint32_t sock, uint64_t pos, int *nr)
{
	uint64_t sum = 0;

	*nr = uring_rx_pull(r->rx, sock, UINT64_MAX, r->frag, FRAGS);
	for (int i = 0; i < *nr; i++)
		for (uint32_t j = 0; j < r->frag[i].len; j++)
			assert_int_equal(r->frag[i].src[j],
					 rs_byte((unsigned)r->rx->sock[sock].fd, pos + sum++));
	return sum;
}

static void done(struct rig *r, int nr)
{
	for (int i = 0; i < nr; i++)
		uring_done(r->rx, r->frag[i].ref);
}

/* ---- opening ---- */

static void open__refused(void **state)
{
	static const struct {
		int err;
		const char *word;
	} t[] = {{-ENOSYS, "CONFIG_IO_URING"},
		 {-EPERM, "io_uring_disabled"},
		 {-EINVAL, "6.1"},
		 {-ENOMEM, "ulimit"}};
	struct uring_cfg cfg;
	struct rig r;

	for (size_t i = 0; i < GX_ARRAY_SIZE(t); i++) {
		rs_open(&k, 1);
		cfg = rig_cfg(false);
		k.setup_err = t[i].err;
		assert_int_equal(uring_rx_open(&cfg, &r.rx, r.why), t[i].err);
		assert_non_null(strstr(r.why, t[i].word));
		rs_close(&k);
	}
	rs_open(&k, 1);
	cfg = rig_cfg(false);
	k.reg_err = -EINVAL;
	assert_int_equal(uring_rx_open(&cfg, &r.rx, r.why), -EINVAL);
	assert_non_null(strstr(r.why, "ring of 8 buffers"));
	rs_close(&k);
}

static void open__wrong(void **state)
{
	struct uring_cfg good, cfg[6];
	struct rig r;

	rs_open(&k, 1);
	good = rig_cfg(false);
	for (size_t i = 0; i < GX_ARRAY_SIZE(cfg); i++)
		cfg[i] = good;
	cfg[0].nr_bufs = 12;
	cfg[1].buf_b = 32;
	cfg[2].depth = 4;
	cfg[3].pool = NULL;
	cfg[4].nr_socks = 0;
	cfg[5].depth = 2 * URING_DEPTH;
	for (size_t i = 0; i < GX_ARRAY_SIZE(cfg); i++)
		assert_int_equal(uring_rx_open(&cfg[i], &r.rx, r.why), -EINVAL);
	rs_close(&k);
}

/* A kernel before 6.12 has whole buffers alone. */
static void open__packed_unknown(void **state)
{
	struct uring_cfg cfg;
	struct rig r;

	rs_open(&k, 1);
	cfg = rig_cfg(true);
	k.is_old = true;
	assert_int_equal(uring_rx_open(&cfg, &r.rx, r.why), 0);
	assert_false(uring_rx_is_packed(r.rx));
	rig_close(&r);
}

/* ---- one socket ---- */

static void pull__bytes(void **state)
{
	struct rig r;
	uint32_t s;
	int nr;

	rig_open(&r, false);
	s = sock_add(&r, 3);
	assert_int_equal(uring_rx_pull(r.rx, s, 100, r.frag, FRAGS), 0);
	rs_bytes(&k, 3, 100, true);
	rs_bytes(&k, 3, BUF_B, true);
	turn(&r);
	assert_int_equal(pull(&r, s, 0, &nr), 100 + BUF_B);
	assert_int_equal(nr, 2);
	assert_int_equal(uring_rx_held(r.rx, s), 2);
	assert_int_equal(rs_bufs(&k), BUFS - 2);
	done(&r, nr);
	uring_rx_turn(r.rx);
	assert_int_equal(rs_bufs(&k), BUFS);
	rig_close(&r);
}

/* A record is pulled in pieces; its buffer goes back when the last piece is done. */
static void pull__pieces(void **state)
{
	struct rig r;
	uint32_t s;

	rig_open(&r, false);
	s = sock_add(&r, 0);
	rs_bytes(&k, 0, 100, true);
	turn(&r);
	assert_int_equal(uring_rx_pull(r.rx, s, 64, r.frag, FRAGS), 1);
	assert_int_equal(r.frag[0].len, 64);
	assert_int_equal(uring_rx_pull(r.rx, s, 64, r.frag + 1, FRAGS - 1), 1);
	assert_int_equal(r.frag[1].len, 36);
	assert_ptr_equal(r.frag[1].src, r.frag[0].src + 64);
	uring_hold(r.rx, r.frag[0].ref);
	done(&r, 2);
	uring_rx_turn(r.rx);
	assert_int_equal(rs_bufs(&k), BUFS - 1);
	uring_done(r.rx, r.frag[0].ref);
	uring_rx_turn(r.rx);
	assert_int_equal(rs_bufs(&k), BUFS);
	rig_close(&r);
}

/* A buffer of several completions goes back when the kernel has left it and all are done. */
static void pull__packed(void **state)
{
	struct rig r;
	uint32_t s;
	int nr;

	rig_open(&r, true);
	s = sock_add(&r, 2);
	rs_bytes(&k, 2, 100, true);
	rs_bytes(&k, 2, 100, true);
	turn(&r);
	assert_int_equal(pull(&r, s, 0, &nr), 200);
	assert_ptr_equal(r.frag[1].src, r.frag[0].src + 100);
	done(&r, nr);
	uring_rx_turn(r.rx);
	assert_int_equal(rs_bufs(&k), BUFS);
	rs_bytes(&k, 2, 100, true); /* 56 are left */
	turn(&r);
	assert_int_equal(rs_bufs(&k), BUFS - 1);
	assert_int_equal(pull(&r, s, 200, &nr), 56);
	done(&r, nr);
	uring_rx_turn(r.rx);
	assert_int_equal(rs_bufs(&k), BUFS);
	rig_close(&r);
}

/* Some kernels name a packed buffer at the end of a stream as if they had left it. */
static void end__packed(void **state)
{
	struct rig r;
	uint32_t s;
	int nr;

	rig_open(&r, true);
	s = sock_add(&r, 2);
	rs_bytes(&k, 2, 100, true);
	rs_end(&k, 2, 0, IORING_CQE_F_BUFFER);
	turn(&r);
	assert_int_equal(pull(&r, s, 0, &nr), 100);
	done(&r, nr);
	assert_int_equal(uring_rx_pull(r.rx, s, 1, r.frag, FRAGS), -ESHUTDOWN);
	rig_close(&r);
}

/* What came before the end is pulled before it; so is the cause. */
static void end__after_bytes(void **state)
{
	static const int res[] = {0, -ECONNRESET, -EFAULT, -ETIMEDOUT};

	for (size_t i = 0; i < GX_ARRAY_SIZE(res); i++) {
		struct rig r;
		uint32_t s;
		int nr;

		rig_open(&r, false);
		s = sock_add(&r, 1);
		rs_bytes(&k, 1, 10, true);
		rs_end(&k, 1, res[i], 0);
		turn(&r);
		assert_int_equal(pull(&r, s, 0, &nr), 10);
		done(&r, nr);
		assert_int_equal(pull(&r, s, 10, &nr), 0);
		assert_int_equal(nr, res[i] ? res[i] : -ESHUTDOWN);
		assert_non_null(uring_why(r.rx, s));
		uring_rx_turn(r.rx);
		assert_int_equal(k.sock[1].armed, 1);
		rig_close(&r);
	}
}

/* A buffer without bytes goes back. */
static void end__with_buffer(void **state)
{
	struct rig r;
	uint32_t s;

	rig_open(&r, false);
	s = sock_add(&r, 1);
	rs_end(&k, 1, 0, IORING_CQE_F_BUFFER | 0u << IORING_CQE_BUFFER_SHIFT);
	k.is_in[0] = false;
	k.br_head++;
	turn(&r);
	assert_int_equal(uring_rx_pull(r.rx, s, 1, r.frag, FRAGS), -ESHUTDOWN);
	uring_rx_turn(r.rx);
	rig_close(&r);
}

/* The kernel ends a receive for other reasons: it gets it again, and nothing is lost. */
static void again__passing(void **state)
{
	static const int res[] = {-EINTR, -EAGAIN, -ENOSPC, -ENOMEM};
	struct rig r;
	uint64_t pos = 0;
	uint32_t s;
	int nr;

	rig_open(&r, false);
	s = sock_add(&r, 1);
	for (size_t i = 0; i < GX_ARRAY_SIZE(res); i++) {
		rs_end(&k, 1, res[i], 0);
		turn(&r);
		uring_rx_turn(r.rx);
		assert_int_equal(k.sock[1].armed, i + 2);
	}
	rs_bytes(&k, 1, 30, false); /* bytes, and the end of the receive */
	turn(&r);
	uring_rx_turn(r.rx);
	assert_true(k.sock[1].is_armed);
	rs_bytes(&k, 1, 30, true);
	turn(&r);
	pos += pull(&r, s, 0, &nr);
	assert_int_equal(pos, 60);
	done(&r, nr);
	rig_close(&r);
}

/* The pool is empty: no receive until a buffer is back, and then one a buffer, in their order. */
static void again__dry(void **state)
{
	struct rig r;
	uint32_t s[3];
	int nr;

	rig_open(&r, false);
	for (int i = 0; i < 3; i++)
		s[i] = sock_add(&r, i);
	for (unsigned i = 0; i < BUFS; i++)
		rs_bytes(&k, 0, BUF_B, true);
	for (unsigned i = 0; i < 3; i++)
		rs_end(&k, i, -ENOBUFS, 0);
	turn(&r);
	for (int i = 0; i < 5; i++)
		uring_rx_turn(r.rx);
	assert_int_equal(k.sock[0].armed + k.sock[1].armed + k.sock[2].armed, 3);
	assert_int_equal(r.rx->stat.dry, 3);
	assert_true(uring_rx_is_short(r.rx, s[1]));
	assert_int_equal(pull(&r, s[0], 0, &nr), BUFS * BUF_B);
	uring_done(r.rx, r.frag[5].ref);
	uring_rx_turn(r.rx);
	assert_true(k.sock[0].is_armed);
	assert_false(uring_rx_is_short(r.rx, s[0]));
	assert_false(k.sock[1].is_armed || k.sock[2].is_armed);
	rs_bytes(&k, 0, BUF_B, true);
	for (int i = 0; i < nr; i++)
		if (i != 5)
			uring_done(r.rx, r.frag[i].ref);
	uring_rx_turn(r.rx);
	assert_true(k.sock[1].is_armed && k.sock[2].is_armed);
	assert_int_equal(pull(&r, s[0], BUFS * BUF_B, &nr), BUF_B);
	done(&r, nr);
	rig_close(&r);
}

/* ---- nonsense ---- */

static void place__nonsense(void **state)
{
	static const struct {
		int res;
		uint32_t flags;
	} t[] = {{10, 0},				       /* no buffer */
		 {10, IORING_CQE_F_BUFFER | BUFS << 16},       /* none of the pool */
		 {10, IORING_CQE_F_BUFFER | 0xffffu << 16},    /* likewise */
		 {BUF_B + 1, IORING_CQE_F_BUFFER},	       /* beyond its end */
		 {INT32_MAX, IORING_CQE_F_BUFFER | 1u << 16}}; /* likewise */

	for (size_t i = 0; i < 2 * GX_ARRAY_SIZE(t); i++) {
		bool more = i & 1;
		struct rig r;
		uint32_t s;

		rig_open(&r, false);
		s = sock_add(&r, 1);
		if (more)
			rs_post(&k, k.sock[1].data, t[i / 2].res,
				t[i / 2].flags | IORING_CQE_F_MORE);
		else
			rs_end(&k, 1, t[i / 2].res, t[i / 2].flags);
		turn(&r);
		assert_int_equal(uring_rx_pull(r.rx, s, 1, r.frag, FRAGS), -EPROTO);
		uring_rx_turn(r.rx);
		assert_false(k.sock[1].is_armed);
		rig_close(&r);
	}
}

/* A buffer that the kernel has left already. */
static void place__twice(void **state)
{
	struct rig r;
	uint32_t s;
	int nr;

	rig_open(&r, false);
	s = sock_add(&r, 1);
	rs_bytes(&k, 1, 10, true);
	rs_post(&k, k.sock[1].data, 10, IORING_CQE_F_BUFFER | IORING_CQE_F_MORE);
	turn(&r);
	assert_int_equal(pull(&r, s, 0, &nr), 10);
	done(&r, nr);
	assert_int_equal(uring_rx_pull(r.rx, s, 1, r.frag, FRAGS), -EPROTO);
	rig_close(&r);
}

static void cqe__strays(void **state)
{
	struct rig r;

	rig_open(&r, false);
	sock_add(&r, 1);
	rs_post(&k, 1, 0, 0);	       /* a place without a socket */
	rs_post(&k, 4000, 0, 0);       /* no place */
	rs_post(&k, 1ull << 32, 0, 0); /* nothing was cancelled */
	rs_post(&k, 0xffffffffffffull, 0, 0);
	turn(&r);
	assert_int_equal(r.rx->stat.strays, 4);
	rig_close(&r);
}

/* ---- the ring ---- */

static void turn__no_system_call(void **state)
{
	unsigned enters;
	struct rig r;

	rig_open(&r, false);
	sock_add(&r, 1);
	enters = k.enters;
	for (int i = 0; i < 10; i++)
		assert_false(uring_rx_turn(r.rx));
	assert_int_equal(k.enters, enters);
	rs_flag(&k, IORING_SQ_CQ_OVERFLOW);
	uring_rx_turn(r.rx);
	assert_int_equal(k.enters, enters + 1);
	assert_true(k.flags & IORING_SETUP_DEFER_TASKRUN && k.flags & IORING_SETUP_SINGLE_ISSUER &&
		    k.flags & IORING_SETUP_TASKRUN_FLAG && k.flags & IORING_SETUP_R_DISABLED);
	rig_close(&r);
}

static void turn__busy(void **state)
{
	struct rig r;
	int s;

	rig_open(&r, false);
	s = uring_rx_add(r.rx, 1);
	k.enter_err = -EBUSY;
	uring_rx_turn(r.rx);
	assert_false(k.sock[1].is_armed);
	assert_int_equal(uring_rx_pull(r.rx, (uint32_t)s, 1, r.frag, FRAGS), 0);
	k.enter_err = 0;
	uring_rx_turn(r.rx);
	assert_true(k.sock[1].is_armed);
	rig_close(&r);
}

/* The ring breaks: every socket ends, with what came before. */
static void turn__broken(void **state)
{
	static const int err[] = {-EEXIST, -EBADR, -EFAULT};

	for (size_t i = 0; i < GX_ARRAY_SIZE(err); i++) {
		struct rig r;
		uint32_t s;
		int nr;

		rig_open(&r, false);
		s = sock_add(&r, 1);
		rs_bytes(&k, 1, 10, true);
		turn(&r);
		k.enter_err = err[i];
		turn(&r);
		assert_int_equal(pull(&r, s, 0, &nr), 10);
		done(&r, nr);
		assert_int_equal(uring_rx_pull(r.rx, s, 1, r.frag, FRAGS), err[i]);
		assert_non_null(uring_why(r.rx, s));
		k.sock[1].is_armed = false;
		rig_close(&r);
	}
}

static void turn__not_mine(void **state)
{
	struct rig r;
	int s;

	rig_open(&r, false);
	s = uring_rx_add(r.rx, 1);
	k.enable_err = -EEXIST;
	uring_rx_turn(r.rx);
	assert_int_equal(uring_rx_pull(r.rx, (uint32_t)s, 1, r.frag, FRAGS), -EEXIST);
	assert_non_null(strstr(uring_why(r.rx, (uint32_t)s), "thread"));
	rig_close(&r);
}

/* No record is free: completions wait in the kernel's queue. */
static void turn__full(void **state)
{
	unsigned n = 0;
	struct rig r;
	uint32_t s;
	int nr;

	rig_open(&r, true);
	s = sock_add(&r, 1);
	for (; n < 40; n++)
		rs_bytes(&k, 1, 1, true);
	turn(&r);
	assert_int_equal(r.rx->nr_free, 0);
	assert_int_equal(r.rx->stat.full, 1);
	assert_int_equal(pull(&r, s, 0, &nr), 32);
	done(&r, nr);
	uring_rx_turn(r.rx);
	assert_int_equal(pull(&r, s, 32, &nr), 8);
	done(&r, nr);
	rig_close(&r);
}

/* ---- leaving ---- */

static void leave__while_held(void **state)
{
	struct rig r;
	uint32_t s;
	int nr;

	rig_open(&r, false);
	s = sock_add(&r, 1);
	rs_bytes(&k, 1, 10, true);
	rs_bytes(&k, 1, 10, true);
	turn(&r);
	assert_int_equal(uring_rx_pull(r.rx, s, 10, r.frag, FRAGS), nr = 1);
	rs_bytes(&k, 1, 10, true); /* nobody has seen it yet */
	uring_rx_leave(r.rx, s);
	assert_false(uring_rx_left(r.rx, s));
	uring_rx_turn(r.rx);
	uring_rx_turn(r.rx);
	assert_int_equal(k.cancels, 1);
	assert_false(uring_rx_left(r.rx, s));
	assert_int_equal(rs_bufs(&k), BUFS - 1);
	done(&r, nr);
	assert_true(uring_rx_left(r.rx, s));
	uring_rx_turn(r.rx);
	assert_int_equal(sock_add(&r, 2), s); /* its place is free */
	rig_close(&r);
}

/* The receive is at work when the cancel comes: it ends later, with bytes that nobody wants. */
static void leave__at_work(void **state)
{
	struct rig r;
	uint32_t s;

	rig_open(&r, false);
	s = sock_add(&r, 1);
	k.is_slow = true;
	uring_rx_leave(r.rx, s);
	for (int i = 0; i < 3; i++) {
		uring_rx_turn(r.rx);
		assert_false(uring_rx_left(r.rx, s));
	}
	rs_bytes(&k, 1, 10, false);
	turn(&r);
	assert_true(uring_rx_left(r.rx, s));
	uring_rx_turn(r.rx);
	rig_close(&r);
}

/* Nobody asks any more: its place becomes free when the last copy has ended. */
static void forget__while_held(void **state)
{
	struct rig r;
	uint32_t s;

	rig_open(&r, false);
	s = sock_add(&r, 1);
	rs_bytes(&k, 1, 10, true);
	turn(&r);
	assert_int_equal(uring_rx_pull(r.rx, s, 10, r.frag, FRAGS), 1);
	uring_rx_forget(r.rx, s);
	for (int i = 0; i < 5; i++)
		uring_rx_turn(r.rx);
	assert_false(k.sock[1].is_armed);
	assert_true(uring_rx_is_busy(r.rx));
	assert_true(r.rx->sock[s].state != URING_FREE);
	done(&r, 1);
	uring_rx_turn(r.rx);
	uring_rx_turn(r.rx);
	assert_int_equal(r.rx->sock[s].state, URING_FREE);
	assert_false(uring_rx_is_busy(r.rx));
	s = sock_add(&r, 1);
	k.is_slow = true; /* the receive is at work when the cancel comes */
	uring_rx_forget(r.rx, s);
	for (int i = 0; i < 5; i++)
		uring_rx_turn(r.rx);
	assert_true(uring_rx_is_busy(r.rx));
	rs_end(&k, 1, -ECONNRESET, 0);
	turn(&r);
	uring_rx_turn(r.rx);
	assert_false(uring_rx_is_busy(r.rx));
	rig_close(&r);
}

/* The kernel has not taken the entry of its receive. The descriptor may be another file's when it
 * does. */
static void leave__not_submitted(void **state)
{
	struct rig r;
	int s;

	rig_open(&r, false);
	s = uring_rx_add(r.rx, 1);
	k.enter_err = -EAGAIN;
	uring_rx_turn(r.rx);
	assert_int_equal(r.rx->sock[s].state, URING_ARMED);
	uring_rx_forget(r.rx, (uint32_t)s);
	k.enter_err = 0;
	for (int i = 0; i < 4; i++)
		uring_rx_turn(r.rx);
	assert_int_equal(k.sock[1].armed, 0);
	assert_false(uring_rx_is_busy(r.rx));
	rig_close(&r);
}

/* Nobody takes their cancels any more, and there is no room for all of them. */
static void forget__broken(void **state)
{
	struct rig r;

	rig_open(&r, false);
	for (int i = 0; i < SOCKS; i++)
		sock_add(&r, i);
	r.rx->ring.sq_mask = 1; /* two entries */
	k.nr_sq = 2;
	k.enter_err = -EBADR;
	uring_rx_forget(r.rx, 0);
	turn(&r);
	for (uint32_t i = 1; i < SOCKS; i++)
		uring_rx_forget(r.rx, i);
	uring_rx_turn(r.rx);
	uring_rx_turn(r.rx);
	assert_false(uring_rx_is_busy(r.rx));
	for (int i = 0; i < SOCKS; i++)
		k.sock[i].is_armed = false;
	rig_close(&r);
}

/* In each state, and twice. */
static void leave__any_state(void **state)
{
	struct rig r;
	int s;

	rig_open(&r, false);
	s = uring_rx_add(r.rx, 1); /* the kernel never had it */
	leave(&r, s);
	assert_int_equal(k.cancels, 0);
	s = (int)sock_add(&r, 1);
	rs_end(&k, 1, 0, 0);
	turn(&r);
	leave(&r, s);
	assert_int_equal(k.cancels, 0);
	s = (int)sock_add(&r, 1);
	for (unsigned i = 0; i < BUFS; i++)
		rs_bytes(&k, 1, BUF_B, true);
	rs_end(&k, 1, -ENOBUFS, 0);
	turn(&r);
	leave(&r, s);
	s = (int)sock_add(&r, 1);
	uring_rx_leave(r.rx, (uint32_t)s);
	rs_end(&k, 1, -ECONNRESET, 0); /* it ends by itself before the cancel comes */
	leave(&r, s);
	assert_int_equal(k.cancels, 1);
	rig_close(&r);
}

/* More sockets than the queue has entries: the others go with the next turn. */
static void add__many(void **state)
{
	struct rig r;

	rig_open(&r, false);
	for (int i = 0; i < SOCKS; i++)
		assert_int_equal(uring_rx_add(r.rx, i), i);
	assert_int_equal(uring_rx_add(r.rx, SOCKS), -ENOSPC);
	r.rx->ring.sq_mask = 1; /* two entries */
	k.nr_sq = 2;
	uring_rx_turn(r.rx);
	assert_true(k.sock[0].is_armed && k.sock[1].is_armed && !k.sock[2].is_armed);
	uring_rx_turn(r.rx);
	assert_true(k.sock[2].is_armed && k.sock[3].is_armed);
	rig_close(&r);
}

/* ---- storms ---- */

static struct {
	uint64_t pos[RS_SOCKS]; /* of each stream that was compared */
	struct uring_frag out[RS_SOCKS * FRAGS];
	uint64_t at[RS_SOCKS * FRAGS];
	uint32_t sock[RS_SOCKS * FRAGS];
	unsigned nr_out;
} st;

/* The kernel's part of a turn: bytes for some, ends for some, and queues that run over. */
static void storm_work(struct ring_script *s)
{
	for (unsigned i = 0; i < SOCKS; i++) {
		unsigned n = (unsigned)(rs_rnd(s) % 4);

		while (s->sock[i].is_armed && n--) {
			unsigned len = rs_rnd(s) % 3 ? BUF_B : 1 + (unsigned)(rs_rnd(s) % BUF_B);

			if (s->sock[i].pos >= STORM_B)
				break;
			if (rs_full(s) || rs_rnd(s) % 50 == 0)
				rs_end(s, i, rs_rnd(s) % 2 ? -EINTR : -ENOMEM, 0);
			else if (!rs_bytes(s, i, len, rs_rnd(s) % 30 != 0))
				rs_end(s, i, -ENOBUFS, 0);
		}
	}
	if (rs_rnd(s) % 3 == 0)
		rs_flag(s, IORING_SQ_TASKRUN);
}

/* One copy ends: compare, then done. */
static void storm_done(struct rig *r, unsigned i)
{
	const struct uring_frag *f = &st.out[i];

	for (uint32_t j = 0; j < f->len; j++)
		if (f->src[j] != rs_byte(st.sock[i], st.at[i] + j))
			fail_msg("socket %u, byte %llu", st.sock[i],
				 (unsigned long long)(st.at[i] + j));
	uring_done(r->rx, f->ref);
	st.nr_out--;
	st.out[i] = st.out[st.nr_out];
	st.at[i] = st.at[st.nr_out];
	st.sock[i] = st.sock[st.nr_out];
}

static void storm_pull(struct rig *r, uint32_t s)
{
	uint64_t want = rs_rnd(&k) % 3 ? UINT64_MAX : 1 + rs_rnd(&k) % 300;
	int nr = uring_rx_pull(r->rx, s, want, r->frag, 1 + (unsigned)(rs_rnd(&k) % 8));

	assert_true(nr >= 0);
	for (int i = 0; i < nr; i++) {
		assert_true(st.nr_out < GX_ARRAY_SIZE(st.out));
		st.out[st.nr_out] = r->frag[i];
		st.at[st.nr_out] = st.pos[s];
		st.sock[st.nr_out++] = (uint32_t)r->rx->sock[s].fd;
		st.pos[s] += r->frag[i].len;
	}
}

static void storm(bool packed, uint64_t seed)
{
	bool is_over = false;
	unsigned turns = 0;
	struct rig r;

	memset(&st, 0, sizeof(st));
	rig_open(&r, packed);
	k.rnd = seed;
	for (int i = 0; i < SOCKS; i++)
		sock_add(&r, i);
	k.work = storm_work;
	for (; !is_over; turns++) {
		assert_true(turns < 4000000);
		rs_flag(&k, IORING_SQ_TASKRUN);
		uring_rx_turn(r.rx);
		is_over = true;
		for (uint32_t i = 0; i < SOCKS; i++) {
			storm_pull(&r, i);
			is_over &= st.pos[i] >= STORM_B;
		}
		for (unsigned n = (unsigned)(rs_rnd(&k) % 6); n && st.nr_out; n--)
			storm_done(&r, (unsigned)(rs_rnd(&k) % st.nr_out));
	}
	while (st.nr_out)
		storm_done(&r, 0);
	assert_true(r.rx->stat.dry > 100);
	assert_int_equal(r.rx->stat.strays, 0);
	k.work = NULL;
	rig_close(&r);
}

static void storm__whole_buffers(void **state)
{
	storm(false, 1);
	storm(false, 2);
}

static void storm__packed(void **state)
{
	storm(true, 3);
	storm(true, 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(open__refused),	cmocka_unit_test(open__wrong),
		cmocka_unit_test(open__packed_unknown), cmocka_unit_test(pull__bytes),
		cmocka_unit_test(pull__pieces),		cmocka_unit_test(pull__packed),
		cmocka_unit_test(end__packed),		cmocka_unit_test(end__after_bytes),
		cmocka_unit_test(end__with_buffer),	cmocka_unit_test(again__passing),
		cmocka_unit_test(again__dry),		cmocka_unit_test(place__nonsense),
		cmocka_unit_test(place__twice),		cmocka_unit_test(cqe__strays),
		cmocka_unit_test(turn__no_system_call), cmocka_unit_test(turn__busy),
		cmocka_unit_test(turn__broken),		cmocka_unit_test(turn__not_mine),
		cmocka_unit_test(turn__full),		cmocka_unit_test(leave__while_held),
		cmocka_unit_test(leave__at_work),	cmocka_unit_test(forget__while_held),
		cmocka_unit_test(leave__any_state),	cmocka_unit_test(add__many),
		cmocka_unit_test(leave__not_submitted), cmocka_unit_test(forget__broken),
		cmocka_unit_test(storm__whole_buffers), cmocka_unit_test(storm__packed),
	};

	return cmocka_run_group_tests_name("uring_rx", tests, NULL, NULL);
}
