/* SPDX-License-Identifier: Apache-2.0 */
/* Many endpoints of the tcp link on one core, of which few are used. What a turn costs is counted in
 * calls into the kernel and in endpoints that it looks at. */
#include "tcp/tcp_live.h"
#include "tcp/tcp_pair.h"
#include "tcp/tcp_turn.h"

#include <stdio.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define MANY 64

static unsigned nr_recvs;

static ssize_t count_send(int fd, const struct iovec *iov, unsigned n)
{
	return tcp_sys_kernel.send(fd, iov, n);
}

static ssize_t count_recv(int fd, const struct iovec *iov, unsigned n)
{
	nr_recvs++;
	return tcp_sys_kernel.recv(fd, iov, n);
}

static const struct tcp_sys counting = {
	.send = count_send, .recv = count_recv, .lead = count_send, .push = push_none};

static void turns(struct pair *p, unsigned n, uint64_t step_ns)
{
	for (; n; n--) {
		p->now_ns += step_ns;
		side_turn(p, 1);
	}
}

static void ask(const struct more *m)
{
	uint8_t b[TCP_HDR_B];

	tcp_frame_put(b, &(struct tcp_frame){.type = TCP_PING});
	assert_int_equal(write(m->fd, b, sizeof(b)), sizeof(b));
}

static bool is_answered(const struct more *m)
{
	uint8_t b[TCP_HDR_B];

	return recv(m->fd, b, sizeof(b), MSG_DONTWAIT) == sizeof(b) && b[0] == TCP_PONG;
}

static bool is_hot(const struct more *m)
{
	return m->e->live_at < m->e->link->nr_hot;
}

struct many {
	struct pair *p;
	struct more *m;
	unsigned nr;
};

/* All of them cold, but among a few. */
static struct many many_new(unsigned nr)
{
	struct many n = {pair_new(1), calloc(nr, sizeof(*n.m)), nr};
	struct link_tcp *l = tcp_core(n.p->side[1].core);

	assert_non_null(n.m);
	n.p->side[1].e->sys = &counting;
	for (unsigned i = 0; i < nr; i++) {
		more_open(n.p, 1, &n.m[i]);
		n.m[i].e->sys = &counting;
	}
	turns(n.p, 2 + nr / TCP_LIVE_TURN, 1000);
	assert_int_equal(l->nr_live, nr + 1);
	assert_int_equal(l->nr_hot, nr > 3 ? 0 : nr + 1);
	turns(n.p, GX_PEERS_MAX / TCP_LIVE_TURN, MS);
	return n;
}

static void many_free(struct many *n)
{
	while (n->nr)
		more_close(&n->m[--n->nr]);
	pair_free(n->p);
	free(n->m);
}

/* Endpoints that one turn looks at. */
static unsigned looked(const struct many *n)
{
	unsigned looks = 0;

	turns(n->p, 1, 1000);
	for (unsigned i = 0; i < n->nr; i++)
		looks += n->m[i].e->now_ns == n->p->now_ns;
	return looks;
}

/* A put of 8 bytes, whose DONE the peer sends. */
static void put(const struct many *n, const struct more *m)
{
	struct gx_op op = op_of(GX_OP_PUT, n->p->buf, 8);
	uint8_t b[TCP_HDR_B + 8 + TCP_TAIL_B];
	struct tcp_frame f;

	assert_int_equal(m->e->ep.ops->post(&m->e->ep, &op, NULL), 0);
	m->e->ep.ops->kick(&m->e->ep);
	assert_int_equal(recv(m->fd, b, sizeof(b), MSG_DONTWAIT), sizeof(b));
	assert_int_equal(tcp_frame_get(b, &f), 0);
	tcp_frame_put(b, &(struct tcp_frame){.type = TCP_DONE, .mid = f.mid});
	assert_int_equal(write(m->fd, b, TCP_HDR_B), TCP_HDR_B);
}

static const unsigned sizes[] = {10, 100, 1000};

static void cost__idle_ones_are_not_looked_at(void **state)
{
	for (unsigned k = 0; k < GX_ARRAY_SIZE(sizes); k++) {
		struct many n = many_new(sizes[k]);

		nr_recvs = 0;
		for (unsigned i = 0; i < 200; i++)
			assert_int_equal(looked(&n), 0);
		turns(n.p, 200, MS);
		assert_int_equal(nr_recvs, 0);
		many_free(&n);
	}
}

static void cost__one_that_is_busy(void **state)
{
	for (unsigned k = 0; k < GX_ARRAY_SIZE(sizes); k++) {
		struct many n = many_new(sizes[k]);

		nr_recvs = 0;
		for (unsigned i = 0; i < 200; i++) {
			put(&n, &n.m[7]);
			assert_int_equal(looked(&n), 1);
		}
		assert_int_equal(n.p->side[1].nr_done, 200);
		assert_in_range(nr_recvs, 200, 400);
		many_free(&n);
	}
}

/* A put to each in turn. Its answer is one look, and one more finds nothing. */
static void cost__each_in_turn(void **state)
{
	for (unsigned k = 0; k < GX_ARRAY_SIZE(sizes); k++) {
		struct many n = many_new(sizes[k]);

		nr_recvs = 0;
		for (unsigned i = 0; i < n.nr; i++) {
			put(&n, &n.m[i]);
			assert_in_range(looked(&n), 1, 4); /* the times of some have come, too */
		}
		assert_int_equal(n.p->side[1].nr_done, n.nr);
		assert_in_range(nr_recvs, n.nr, 2 * n.nr);
		many_free(&n);
	}
}

/* All have a byte at once: a turn serves so many, and each is served in so many turns. */
static void cost__all_at_once(void **state)
{
	for (unsigned k = 1; k < GX_ARRAY_SIZE(sizes); k++) {
		struct many n = many_new(sizes[k]);
		unsigned turns_max = 3 * (1 + n.nr / TCP_LIVE_TURN);

		for (unsigned i = 0; i < n.nr; i++)
			ask(&n.m[i]);
		for (unsigned i = 0; i < turns_max; i++)
			assert_in_range(looked(&n), 0, TCP_LIVE_TURN);
		for (unsigned i = 0; i < n.nr; i++)
			assert_true(is_answered(&n.m[i]));
		assert_int_equal(looked(&n), 0);
		many_free(&n);
	}
}

/* One ends, and others come to its place. */
static void cost__one_that_ends(void **state)
{
	struct many n = many_new(MANY);
	struct tcp_ep *e = n.m[5].e;

	shutdown(n.m[5].fd, SHUT_RDWR);
	assert_int_equal(looked(&n), 1);
	for (unsigned i = 0; i < 210; i++) {
		turns(n.p, 1, MS);
		assert_int_equal(looked(&n), 1); /* hot until the control thread ends it */
	}
	assert_int_equal(atomic_load(&e->ep.fault), -ECONNRESET);
	more_close(&n.m[5]);
	n.m[5] = (struct more){0};
	more_open(n.p, 1, &n.m[5]);
	n.m[5].e->sys = &counting;
	turns(n.p, 3, 1000);
	ask(&n.m[5]);
	assert_int_equal(looked(&n), 1);
	assert_true(is_answered(&n.m[5]));
	many_free(&n);
}

/* More with something under way than a turn serves have turns of it all the same. */
static void hot__take_turns(void **state)
{
	struct many n = many_new(MANY);
	uint8_t b[TCP_HDR_B];

	tcp_frame_put(b, &(struct tcp_frame){
				 .type = TCP_DATA, .token = TOKEN, .len = 4096, .plen = 4096});
	for (unsigned i = 0; i < MANY; i++)
		assert_int_equal(write(n.m[i].fd, b, sizeof(b)), sizeof(b));
	turns(n.p, 4, 1000);
	assert_int_equal(tcp_core(n.p->side[1].core)->nr_hot, MANY);
	for (unsigned i = 0; i < 10; i++) {
		uint64_t since_ns = n.p->now_ns;

		assert_int_equal(looked(&n), TCP_LIVE_TURN);
		turns(n.p, 1, 1000);
		for (unsigned k = 0; k < MANY; k++)
			assert_true(n.m[k].e->now_ns > since_ns);
	}
	many_free(&n);
}

static void cold__hears_the_peer(void **state)
{
	struct many n = many_new(MANY);

	for (unsigned i = 0; i < MANY; i += 7) {
		assert_false(is_hot(&n.m[i]));
		ask(&n.m[i]);
		turns(n.p, 1, 0);
		assert_true(is_answered(&n.m[i]));
		assert_true(is_hot(&n.m[i]));
		turns(n.p, 1, 0);
		assert_false(is_hot(&n.m[i]));
	}
	many_free(&n);
}

/* A receive waits at a cold endpoint, and its deadline passes there. */
static void cold__posts(void **state)
{
	struct many n = many_new(MANY);
	struct side *s = &n.p->side[1];
	struct gx_ep *ep = &n.m[9].e->ep;
	struct gx_op op = op_of(GX_OP_RECV, s->mem.addr, 64);
	uint8_t b[TCP_HDR_B];

	op.deadline_ns = n.p->now_ns + 50 * MS;
	assert_int_equal(ep->ops->post(ep, &op, NULL), 0);
	ep->ops->kick(ep);
	assert_int_equal(recv(n.m[9].fd, b, sizeof(b), MSG_DONTWAIT), sizeof(b));
	assert_int_equal(b[0], TCP_OFFER);
	turns(n.p, 490, 100000);
	assert_false(is_hot(&n.m[9]));
	assert_int_equal(s->nr_done, 0);
	turns(n.p, 10, 100000);
	turns(n.p, GX_PEERS_MAX / TCP_LIVE_TURN, 0);
	assert_int_equal(s->nr_done, 1);
	assert_int_equal(s->last.status, -ETIMEDOUT);
	turns(n.p, 1, 0);
	assert_int_equal(recv(n.m[9].fd, b, sizeof(b), MSG_DONTWAIT), sizeof(b));
	assert_int_equal(b[0], TCP_REVOKE);
	many_free(&n);
}

/* It is asked while something waits for it, and given up after the time-out. */
static void cold__peer_is_silent(void **state)
{
	struct many n = many_new(MANY);
	struct gx_ep *ep = &n.m[9].e->ep;
	struct gx_op op = op_of(GX_OP_RECV, n.p->side[1].mem.addr, 64);
	uint64_t begun_ns = n.p->now_ns;
	uint8_t b[16 * TCP_HDR_B];
	ssize_t got;

	assert_int_equal(ep->ops->post(ep, &op, NULL), 0);
	ep->ops->kick(ep);
	while (!atomic_load(&ep->fault) && n.p->now_ns - begun_ns < 20000 * MS)
		turns(n.p, 1, MS);
	assert_int_equal(atomic_load(&ep->fault), -ETIMEDOUT);
	assert_in_range(n.p->now_ns - begun_ns, 5000 * MS, 6000 * MS);
	got = recv(n.m[9].fd, b, sizeof(b), MSG_DONTWAIT);
	assert_true(got >= 4 * TCP_HDR_B);
	assert_int_equal(b[TCP_HDR_B], TCP_PING);
	many_free(&n);
}

/* What the kernel does not take keeps it hot, and the core's sleep ends when there is room. */
static void cold__waits_for_room(void **state)
{
	struct many n = many_new(MANY);
	struct tcp_ep *e = n.m[9].e;
	struct gx_op op = op_of(GX_OP_PUT, n.p->buf, WINDOW * CHUNK_B);
	struct gx_look look = {.fd = epoll_create1(EPOLL_CLOEXEC), .until_ns = UINT64_MAX};
	struct link_tcp *l = tcp_core(n.p->side[1].core);
	struct epoll_event ev;
	static char trash[MEM_B];

	look.now_ns = n.p->now_ns;
	assert_int_equal(link_tcp_look(l, &look), 0);
	assert_int_equal(look.until_ns, UINT64_MAX); /* nothing is under way */
	assert_int_equal(epoll_wait(look.fd, &ev, 1, 0), 0);
	assert_int_equal(e->ep.ops->post(&e->ep, &op, NULL), 0);
	e->ep.ops->kick(&e->ep);
	turns(n.p, 10, 1000);
	assert_true(is_hot(&n.m[9]));
	assert_int_equal(link_tcp_look(l, &look), 0);
	assert_in_range(look.until_ns, n.p->now_ns, n.p->now_ns + 100 * MS);
	assert_int_equal(epoll_wait(look.fd, &ev, 1, 0), 0);
	while (recv(n.m[9].fd, trash, sizeof(trash), MSG_DONTWAIT) > 0)
		;
	assert_int_equal(epoll_wait(look.fd, &ev, 1, 0), 1);
	for (unsigned i = 0; i < 1000 && is_hot(&n.m[9]); i++) {
		turns(n.p, 1, 1000);
		while (recv(n.m[9].fd, trash, sizeof(trash), MSG_DONTWAIT) > 0)
			;
	}
	assert_false(is_hot(&n.m[9]));
	assert_int_equal(e->sock[0].watched, EPOLLIN);
	assert_int_equal(epoll_wait(look.fd, &ev, 1, 0), 0);
	look.until_ns = UINT64_MAX;
	assert_int_equal(link_tcp_look(l, &look), 0);
	assert_in_range(look.until_ns, n.p->now_ns, n.p->now_ns + 100 * MS);
	ask(&n.m[20]);
	assert_int_equal(epoll_wait(look.fd, &ev, 1, 0), 1);
	close(look.fd);
	many_free(&n);
}

/* Few are served by each turn, however idle they are. */
static void few__are_hot(void **state)
{
	struct many n = many_new(MANY);

	while (n.nr > 3)
		more_close(&n.m[--n.nr]);
	nr_recvs = 0;
	turns(n.p, 100, 0);
	assert_int_equal(nr_recvs, 400);
	many_free(&n);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cost__idle_ones_are_not_looked_at),
		cmocka_unit_test(cost__one_that_is_busy),
		cmocka_unit_test(cost__each_in_turn),
		cmocka_unit_test(cost__all_at_once),
		cmocka_unit_test(cost__one_that_ends),
		cmocka_unit_test(hot__take_turns),
		cmocka_unit_test(cold__hears_the_peer),
		cmocka_unit_test(cold__posts),
		cmocka_unit_test(cold__peer_is_silent),
		cmocka_unit_test(cold__waits_for_room),
		cmocka_unit_test(few__are_hot),
	};
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) || (files.rlim_cur = files.rlim_max) < 4096 ||
	    setrlimit(RLIMIT_NOFILE, &files)) {
		printf("skipped: 1,000 connections need 4,096 descriptors (ulimit -n)\n");
		return 77;
	}
	return cmocka_run_group_tests_name("tcp_live", tests, NULL, NULL);
}
