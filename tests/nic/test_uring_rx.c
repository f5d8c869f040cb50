/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_ring.c and uring_rx.c over a scripted kernel and NIC (zcrx_script.h): each error by hand. Storms
 * are in test_zcrx.c.
 */
#include "nic/ring_script.h"
#include "nic/uring_rx.h"
#include "nic/zcrx.h"
#include "nic/zcrx_script.h"

#include <errno.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SOCKS	4
#define DEPTH	32
#define FRAGS	64
#define PAGES	8
#define AREA_B	(PAGES * ZS_PAGE_B)
#define REFILLS 8

static struct ring_script k;
static struct zcrx_script nic;
static _Alignas(4096) char area[AREA_B];

struct rig {
	struct uring_rx *rx;
	struct uring_frag frag[FRAGS];
	char why[IO_RING_WHY_B];
};

static struct zcrx_cfg rig_cfg(void)
{
	rs_open(&k, 7);
	zs_open(&nic, &k, area);
	return (struct zcrx_cfg){.sys = &ring_script_sys,
				 .name = "eth9",
				 .ifindex = 5,
				 .queue = 2,
				 .area = area,
				 .area_b = AREA_B,
				 .dmabuf_fd = -1,
				 .nr_refill = REFILLS,
				 .nr_socks = SOCKS,
				 .depth = DEPTH};
}

static void rig_open(struct rig *r)
{
	struct zcrx_cfg cfg = rig_cfg();

	assert_int_equal(zcrx_open(&cfg, &r->rx, r->why), 0);
}

/* @n bytes of the stream of @fd come; !@more: and its receive ends with them. */
static void bytes(unsigned fd, unsigned n, bool more)
{
	uint32_t room;
	char *at = zs_room(&nic, &room);

	assert_true(at && n <= room);
	for (unsigned i = 0; i < n; i++)
		at[i] = rs_byte(fd, k.sock[fd].pos++);
	if (more)
		zs_post(&nic, fd, n);
	else
		zs_post_last(&nic, fd, n);
}

/* The same, and no other bytes come to their page. */
static void page_bytes(unsigned fd, unsigned n)
{
	bytes(fd, n, true);
	zs_leave_page(&nic);
}

/* Pages that the NIC can fill. */
static unsigned pages(struct rig *r)
{
	for (unsigned i = 0; i <= DEPTH / REFILLS; i++) {
		zcrx_flush(r->rx);
		zs_refill(&nic, UINT32_MAX);
	}
	zs_leave_page(&nic);
	return nic.nr_free;
}

static void leave(struct rig *r, int sock)
{
	uring_rx_leave(r->rx, (uint32_t)sock);
	for (int i = 0; i < 8 && !uring_rx_left(r->rx, (uint32_t)sock); i++)
		uring_rx_turn(r->rx);
	assert_int_equal(r->rx->sock[sock].state, URING_FREE);
	assert_false(k.sock[r->rx->sock[sock].fd].is_armed);
}

/* All is back: records, pages, receives. */
static void rig_close(struct rig *r)
{
	for (uint32_t i = 0; i < SOCKS; i++)
		if (r->rx->sock[i].state != URING_FREE)
			leave(r, (int)i);
	assert_int_equal(pages(r), PAGES);
	assert_int_equal(r->rx->nr_free, r->rx->nr_recs);
	uring_rx_close(r->rx);
	assert_int_equal(nic.nr_wrong + k.nr_bad, 0);
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
	struct zcrx_cfg cfg;
	struct rig r;

	for (size_t i = 0; i < GX_ARRAY_SIZE(t); i++) {
		cfg = rig_cfg();
		k.setup_err = t[i].err;
		assert_int_equal(zcrx_open(&cfg, &r.rx, r.why), t[i].err);
		assert_non_null(strstr(r.why, t[i].word));
		rs_close(&k);
	}
}

/* ---- one socket ---- */

static void pull__bytes(void **state)
{
	struct rig r;
	uint32_t s;
	int nr;

	rig_open(&r);
	s = sock_add(&r, 3);
	assert_int_equal(uring_rx_pull(r.rx, s, 100, r.frag, FRAGS), 0);
	page_bytes(3, 100);
	page_bytes(3, ZS_PAGE_B);
	turn(&r);
	assert_int_equal(pull(&r, s, 0, &nr), 100 + ZS_PAGE_B);
	assert_int_equal(nr, 2);
	assert_int_equal(uring_rx_held(r.rx, s), 2);
	assert_int_equal(pages(&r), PAGES - 2);
	done(&r, nr);
	assert_int_equal(pages(&r), PAGES);
	rig_close(&r);
}

/* A record is pulled in pieces; its page goes back when the last piece is done. */
static void pull__pieces(void **state)
{
	struct rig r;
	uint32_t s;

	rig_open(&r);
	s = sock_add(&r, 0);
	bytes(0, 100, true);
	turn(&r);
	assert_int_equal(uring_rx_pull(r.rx, s, 10, r.frag, FRAGS), 1);
	done(&r, 1); /* the others of its bytes are there all the same */
	assert_int_equal(pages(&r), PAGES - 1);
	assert_int_equal(nic.nr_refills, 0);
	assert_int_equal(uring_rx_pull(r.rx, s, 54, r.frag, FRAGS), 1);
	assert_int_equal(r.frag[0].len, 54);
	assert_int_equal(uring_rx_pull(r.rx, s, 64, r.frag + 1, FRAGS - 1), 1);
	assert_int_equal(r.frag[1].len, 36);
	assert_ptr_equal(r.frag[1].src, r.frag[0].src + 54);
	uring_hold(r.rx, r.frag[0].ref);
	done(&r, 2);
	assert_int_equal(pages(&r), PAGES - 1);
	uring_done(r.rx, r.frag[0].ref);
	assert_int_equal(pages(&r), PAGES);
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

		rig_open(&r);
		s = sock_add(&r, 1);
		bytes(1, 10, true);
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

/* The kernel ends a receive for other reasons: it gets it again, and nothing is lost. */
static void again__passing(void **state)
{
	static const int res[] = {-EINTR, -EAGAIN, -ENOSPC, -ENOMEM, -ENOBUFS};
	struct rig r;
	uint64_t pos = 0;
	uint32_t s;
	int nr;

	rig_open(&r);
	s = sock_add(&r, 1);
	for (size_t i = 0; i < GX_ARRAY_SIZE(res); i++) {
		rs_end(&k, 1, res[i], 0);
		turn(&r);
		uring_rx_turn(r.rx);
		assert_int_equal(k.sock[1].armed, i + 2);
	}
	bytes(1, 30, false); /* bytes, and the end of the receive */
	turn(&r);
	uring_rx_turn(r.rx);
	assert_true(k.sock[1].is_armed);
	bytes(1, 30, true);
	turn(&r);
	pos += pull(&r, s, 0, &nr);
	assert_int_equal(pos, 60);
	done(&r, nr);
	rig_close(&r);
}

static void cqe__strays(void **state)
{
	struct rig r;

	rig_open(&r);
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

	rig_open(&r);
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

	rig_open(&r);
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

		rig_open(&r);
		s = sock_add(&r, 1);
		bytes(1, 10, true);
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

	rig_open(&r);
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

	rig_open(&r);
	s = sock_add(&r, 1);
	for (; n < 40; n++)
		bytes(1, 1, true);
	turn(&r);
	assert_int_equal(r.rx->nr_free, 0);
	assert_int_equal(r.rx->stat.full, 1);
	assert_int_equal(pull(&r, s, 0, &nr), 32);
	done(&r, nr);
	pages(&r);
	uring_rx_turn(r.rx);
	assert_int_equal(pull(&r, s, 32, &nr), 8);
	done(&r, nr);
	pages(&r);
	rig_close(&r);
}

/* ---- leaving ---- */

static void leave__while_held(void **state)
{
	struct rig r;
	uint32_t s;
	int nr;

	rig_open(&r);
	s = sock_add(&r, 1);
	bytes(1, 10, true);
	bytes(1, 10, true);
	turn(&r);
	assert_int_equal(uring_rx_pull(r.rx, s, 10, r.frag, FRAGS), nr = 1);
	bytes(1, 10, true); /* nobody has seen it yet */
	uring_rx_leave(r.rx, s);
	assert_false(uring_rx_left(r.rx, s));
	uring_rx_turn(r.rx);
	uring_rx_turn(r.rx);
	assert_int_equal(k.cancels, 1);
	assert_false(uring_rx_left(r.rx, s));
	assert_int_equal(pages(&r), PAGES - 1);
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

	rig_open(&r);
	s = sock_add(&r, 1);
	k.is_slow = true;
	uring_rx_leave(r.rx, s);
	for (int i = 0; i < 3; i++) {
		uring_rx_turn(r.rx);
		assert_false(uring_rx_left(r.rx, s));
	}
	bytes(1, 10, false);
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

	rig_open(&r);
	s = sock_add(&r, 1);
	bytes(1, 10, true);
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

	rig_open(&r);
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

	rig_open(&r);
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

	rig_open(&r);
	s = uring_rx_add(r.rx, 1); /* the kernel never had it */
	leave(&r, s);
	assert_int_equal(k.cancels, 0);
	s = (int)sock_add(&r, 1);
	rs_end(&k, 1, 0, 0);
	turn(&r);
	leave(&r, s);
	assert_int_equal(k.cancels, 0);
	s = (int)sock_add(&r, 1);
	for (unsigned i = 0; i < PAGES; i++)
		bytes(1, ZS_PAGE_B, true);
	rs_end(&k, 1, -ENOMEM, 0);
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

	rig_open(&r);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(open__refused),	cmocka_unit_test(pull__bytes),
		cmocka_unit_test(pull__pieces),		cmocka_unit_test(end__after_bytes),
		cmocka_unit_test(again__passing),	cmocka_unit_test(cqe__strays),
		cmocka_unit_test(turn__no_system_call), cmocka_unit_test(turn__busy),
		cmocka_unit_test(turn__broken),		cmocka_unit_test(turn__not_mine),
		cmocka_unit_test(turn__full),		cmocka_unit_test(leave__while_held),
		cmocka_unit_test(leave__at_work),	cmocka_unit_test(forget__while_held),
		cmocka_unit_test(leave__any_state),	cmocka_unit_test(add__many),
		cmocka_unit_test(leave__not_submitted), cmocka_unit_test(forget__broken),
	};

	return cmocka_run_group_tests_name("uring_rx", tests, NULL, NULL);
}
