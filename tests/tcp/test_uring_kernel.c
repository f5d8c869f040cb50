/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving by the real kernel's io_uring, over TCP of loopback and over socket pairs. Exit 77 where
 * it gives no ring to this process.
 */
#include "tcp/uring_rx.h"

#include "kit/common_tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define SOCKS  4
#define BUFS   16
#define BUF_B  4096u
#define FRAGS  32
#define HELD   64
#define STREAM (3u << 20) /* bytes of a socket */
#define TURNS  20000000u

struct rig {
	struct uring_rx *rx;
	char *pool;
	int fd[SOCKS][2]; /* [0] receives */
	uint32_t sock[SOCKS];
	unsigned nr;
	struct uring_frag frag[FRAGS];
};

static char byte(unsigned sock, uint64_t pos)
{
	return (char)((pos * 2654435761u >> 13) + sock * 89);
}

static void rig_open(struct rig *r, unsigned nr, bool packed)
{
	struct uring_cfg cfg = {.sys = &io_ring_sys_kernel,
				.buf_b = BUF_B,
				.nr_bufs = BUFS,
				.nr_socks = SOCKS,
				.depth = 64,
				.is_packed = packed};
	char why[IO_RING_WHY_B];

	memset(r, 0, sizeof(*r));
	cfg.pool = r->pool = aligned_alloc(4096, BUFS * BUF_B);
	assert_non_null(r->pool);
	assert_int_equal(uring_rx_open(&cfg, &r->rx, why), 0);
	for (; r->nr < nr; r->nr++) {
		common_tcp_pair(r->fd[r->nr]);
		r->sock[r->nr] = (uint32_t)uring_rx_add(r->rx, r->fd[r->nr][0]);
	}
	uring_rx_turn(r->rx);
}

static void leave(struct rig *r, unsigned i)
{
	unsigned n = 0;

	uring_rx_leave(r->rx, r->sock[i]);
	for (; !uring_rx_left(r->rx, r->sock[i]); n++) {
		assert_true(n < 10);
		uring_rx_turn(r->rx);
	}
}

static void rig_close(struct rig *r)
{
	for (unsigned i = 0; i < r->nr; i++) {
		if (r->rx->sock[r->sock[i]].state != URING_FREE)
			leave(r, i);
		close(r->fd[i][0]);
		if (r->fd[i][1] >= 0)
			close(r->fd[i][1]);
	}
	uring_rx_turn(r->rx);
	assert_int_equal(r->rx->nr_free, r->rx->nr_recs);
	assert_int_equal(r->rx->kind->room(r->rx), BUFS);
	uring_rx_close(r->rx);
	free(r->pool);
}

/* Turn until something is there for @i. Return: fragments. */
static int pull_some(struct rig *r, unsigned i)
{
	for (unsigned n = 0; n < TURNS; n++) {
		int nr = uring_rx_pull(r->rx, r->sock[i], UINT64_MAX, r->frag, FRAGS);

		if (nr)
			return nr;
		uring_rx_turn(r->rx);
	}
	fail_msg("nothing came");
	return 0;
}

static void done(struct rig *r, int nr)
{
	for (int i = 0; i < nr; i++)
		uring_done(r->rx, r->frag[i].ref);
}

static void pull__words(void **state)
{
	struct rig r;
	int nr;

	rig_open(&r, 1, *(bool *)*state);
	for (int i = 0; i < 100; i++) { /* more than there are buffers */
		assert_int_equal(send(r.fd[0][1], "seven b", 7, 0), 7);
		nr = pull_some(&r, 0);
		assert_int_equal(nr, 1);
		assert_int_equal(r.frag[0].len, 7);
		assert_memory_equal(r.frag[0].src, "seven b", 7);
		done(&r, nr);
	}
	rig_close(&r);
}

/* A core whose sockets are silent makes no system call. */
static void turn__idle(void **state)
{
	uint64_t enters;
	struct rig r;

	rig_open(&r, 3, *(bool *)*state);
	uring_rx_turn(r.rx);
	enters = r.rx->ring.enters;
	for (int i = 0; i < 1000; i++)
		assert_false(uring_rx_turn(r.rx));
	assert_int_equal(r.rx->ring.enters, enters);
	rig_close(&r);
}

static void end__closed(void **state)
{
	struct rig r;
	int nr;

	rig_open(&r, 2, *(bool *)*state);
	assert_int_equal(send(r.fd[0][1], "last", 4, 0), 4);
	close(r.fd[0][1]);
	r.fd[0][1] = -1;
	nr = pull_some(&r, 0);
	assert_int_equal(nr, 1);
	assert_memory_equal(r.frag[0].src, "last", 4);
	done(&r, nr);
	assert_int_equal(pull_some(&r, 0), -ESHUTDOWN);
	/* The other one goes on, with every buffer. */
	for (int i = 0; i < 3 * BUFS; i++) {
		assert_int_equal(send(r.fd[1][1], "on", 2, 0), 2);
		nr = pull_some(&r, 1);
		assert_int_equal(nr, 1);
		done(&r, nr);
	}
	rig_close(&r);
}

static void end__reset(void **state)
{
	struct linger off = {.l_onoff = 1};
	struct rig r;

	rig_open(&r, 1, *(bool *)*state);
	assert_int_equal(setsockopt(r.fd[0][1], SOL_SOCKET, SO_LINGER, &off, sizeof(off)), 0);
	close(r.fd[0][1]);
	r.fd[0][1] = -1;
	assert_int_equal(pull_some(&r, 0), -ECONNRESET);
	assert_non_null(uring_why(r.rx, r.sock[0]));
	rig_close(&r);
}

/* Behind the end of a receive the kernel writes nothing more; bytes stay in the socket. */
static void leave__touches_nothing(void **state)
{
	char *before = malloc(BUFS * BUF_B), got[8] = "";
	struct rig r;

	rig_open(&r, 2, *(bool *)*state);
	leave(&r, 0);
	uring_rx_turn(r.rx);
	assert_non_null(before);
	memcpy(before, r.pool, BUFS * BUF_B);
	assert_int_equal(send(r.fd[0][1], "after", 5, 0), 5);
	for (int i = 0; i < 100; i++)
		uring_rx_turn(r.rx);
	assert_memory_equal(before, r.pool, BUFS * BUF_B);
	assert_int_equal(recv(r.fd[0][0], got, sizeof(got), MSG_DONTWAIT), 5);
	assert_string_equal(got, "after");
	free(before);
	rig_close(&r);
}

/* The same for a ring that is closed while the kernel has its receives. */
static void close__touches_nothing(void **state)
{
	char *before = malloc(BUFS * BUF_B), got[8] = "";
	struct rig r;

	rig_open(&r, 1, *(bool *)*state);
	uring_rx_turn(r.rx);
	assert_int_equal(send(r.fd[0][1], "after", 5, 0), 5); /* the kernel knows of it */
	assert_non_null(before);
	memcpy(before, r.pool, BUFS * BUF_B);
	uring_rx_close(r.rx);
	usleep(20000);
	assert_memory_equal(before, r.pool, BUFS * BUF_B);
	assert_int_equal(recv(r.fd[0][0], got, sizeof(got), MSG_DONTWAIT), 5);
	close(r.fd[0][0]);
	close(r.fd[0][1]);
	free(before);
	free(r.pool);
}

/* ---- streams ---- */

static struct {
	uint64_t sent[SOCKS], pos[SOCKS], rnd;
	struct {
		struct uring_frag f;
		unsigned i;
		uint64_t at;
	} held[HELD];
	unsigned nr_held;
} st;

static unsigned rnd(unsigned n)
{
	st.rnd = st.rnd * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(st.rnd >> 33) % n;
}

static void stream_send(struct rig *r, unsigned i)
{
	char b[20000];
	size_t n = 1 + rnd(sizeof(b));
	ssize_t ret;

	n = GX_MIN(n, STREAM - st.sent[i]);
	for (size_t j = 0; j < n; j++)
		b[j] = byte(i, st.sent[i] + j);
	ret = n ? send(r->fd[i][1], b, n, MSG_DONTWAIT) : 0;
	st.sent[i] += ret > 0 ? (uint64_t)ret : 0;
}

static void held_done(struct rig *r, unsigned k)
{
	const struct uring_frag *f = &st.held[k].f;

	for (uint32_t j = 0; j < f->len; j++)
		if (f->src[j] != byte(st.held[k].i, st.held[k].at + j))
			fail_msg("socket %u, byte %llu", st.held[k].i,
				 (unsigned long long)(st.held[k].at + j));
	uring_done(r->rx, f->ref);
	st.held[k] = st.held[--st.nr_held];
}

static void stream_pull(struct rig *r, unsigned i)
{
	int nr = uring_rx_pull(r->rx, r->sock[i], rnd(2) ? UINT64_MAX : 1 + rnd(3000), r->frag,
			       GX_MIN(4u, HELD - st.nr_held));

	assert_true(nr >= 0);
	for (int j = 0; j < nr; j++) {
		st.held[st.nr_held].f = r->frag[j];
		st.held[st.nr_held].i = i;
		st.held[st.nr_held++].at = st.pos[i];
		st.pos[i] += r->frag[j].len;
	}
}

/* Four streams share sixteen buffers, and copies of their fragments end in any order. */
static void stream__four(void **state)
{
	unsigned turns = 0, left = SOCKS;
	struct rig r;

	memset(&st, 0, sizeof(st));
	st.rnd = 5;
	rig_open(&r, SOCKS, *(bool *)*state);
	for (; left; turns++) {
		assert_true(turns < TURNS);
		stream_send(&r, rnd(SOCKS));
		uring_rx_turn(r.rx);
		left = SOCKS;
		for (unsigned i = 0; i < SOCKS; i++) {
			if (st.nr_held < HELD)
				stream_pull(&r, i);
			left -= st.pos[i] == STREAM;
		}
		for (unsigned n = rnd(6); n && st.nr_held; n--)
			held_done(&r, rnd(st.nr_held));
	}
	while (st.nr_held)
		held_done(&r, 0);
	assert_true(r.rx->stat.dry > 0); /* the pool was empty at times */
	assert_int_equal(r.rx->stat.strays, 0);
	rig_close(&r);
}

int main(void)
{
	static bool whole = false, packed = true;
#define BOTH(f)                                                                                    \
	{#f "-whole", f, NULL, NULL, &whole},                                                      \
	{                                                                                          \
#f "-packed", f, NULL, NULL, &packed                                               \
	}
	const struct CMUnitTest tests[] = {
		BOTH(pull__words),
		BOTH(turn__idle),
		BOTH(end__closed),
		BOTH(end__reset),
		BOTH(leave__touches_nothing),
		BOTH(close__touches_nothing),
		BOTH(stream__four),
	};
	struct io_ring_cfg cfg = {.sys = &io_ring_sys_kernel, .entries = 2, .cq_entries = 4};
	char why[IO_RING_WHY_B];
	struct io_ring ring;

	if (io_ring_open(&ring, &cfg, why)) {
		fprintf(stderr, "test_uring_kernel: skipped: %s\n", why);
		return 77;
	}
	io_ring_close(&ring);
	return cmocka_run_group_tests_name("uring_kernel", tests, NULL, NULL);
}
