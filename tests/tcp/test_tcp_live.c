/* SPDX-License-Identifier: Apache-2.0 */
/* Many endpoints of the tcp link on one core, of which few are used. */
#include "tcp/tcp_feed.h"
#include "tcp/tcp_pair.h"

#include <sys/socket.h>
#include <unistd.h>

#define MANY	64
#define PACE_NS 4096 /* from one look at a cold socket to the next */

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
};

/* All of them cold. */
static struct many many_new(void)
{
	struct many n = {pair_new(1), calloc(MANY, sizeof(*n.m))};

	assert_non_null(n.m);
	for (unsigned i = 0; i < MANY; i++) {
		more_open(n.p, 1, &n.m[i]);
		n.m[i].e->sys = &counting;
	}
	turns(n.p, 4 * MANY, 100000); /* one a turn */
	assert_int_equal(tcp_core(n.p->side[1].core)->nr_live, MANY + 1);
	assert_int_equal(tcp_core(n.p->side[1].core)->nr_hot, 0);
	return n;
}

static void many_free(struct many *n, unsigned left)
{
	while (left)
		more_close(&n->m[--left]);
	pair_free(n->p);
	free(n->m);
}

/* Idle ones cost a call now and then. */
static void cold__cost_little(void **state)
{
	struct many n = many_new();

	nr_recvs = 0;
	turns(n.p, 1000, 1000);
	assert_true(nr_recvs > 200 && nr_recvs <= 1000 * 1000 / PACE_NS + 1);
	nr_recvs = 0;
	turns(n.p, 1000, 0);
	assert_true(nr_recvs <= 1);
	nr_recvs = 0;
	turns(n.p, 1, 10000 * MS); /* after a pause: each at most once */
	assert_true(nr_recvs >= MANY && nr_recvs <= MANY + 1);
	many_free(&n, MANY);
}

static void cold__hears_the_peer(void **state)
{
	struct many n = many_new();

	for (unsigned i = 0; i < MANY; i += 7) {
		assert_false(is_hot(&n.m[i]));
		ask(&n.m[i]);
		turns(n.p, 2, 0); /* in no time nobody looks at more than one */
		turns(n.p, 1, (MANY + 2) * PACE_NS);
		assert_true(is_answered(&n.m[i]));
		assert_true(is_hot(&n.m[i]));
		ask(&n.m[i]);
		turns(n.p, 1, 0);
		assert_true(is_answered(&n.m[i]));
	}
	turns(n.p, 4 * MANY, 100000);
	assert_int_equal(tcp_core(n.p->side[1].core)->nr_hot, 0);
	many_free(&n, MANY);
}

/* A receive waits at a cold endpoint, and its deadline passes there. */
static void cold__posts(void **state)
{
	struct many n = many_new();
	struct side *s = &n.p->side[1];
	struct gx_ep *ep = &n.m[9].e->ep;
	struct gx_op op = op_of(GX_OP_RECV, s->mem.addr, 64);
	uint8_t b[TCP_HDR_B];

	op.deadline_ns = n.p->now_ns + 50 * MS;
	assert_int_equal(ep->ops->post(ep, &op, NULL), 0);
	ep->ops->kick(ep);
	assert_true(is_hot(&n.m[9]));
	assert_int_equal(recv(n.m[9].fd, b, sizeof(b), MSG_DONTWAIT), sizeof(b));
	assert_int_equal(b[0], TCP_OFFER);
	turns(n.p, 490, 100000);
	assert_false(is_hot(&n.m[9]));
	assert_int_equal(s->nr_done, 0);
	turns(n.p, 30, 100000);
	assert_int_equal(s->nr_done, 1);
	assert_int_equal(s->last.status, -ETIMEDOUT);
	assert_int_equal(recv(n.m[9].fd, b, sizeof(b), MSG_DONTWAIT), sizeof(b));
	assert_int_equal(b[0], TCP_REVOKE);
	many_free(&n, MANY);
}

/* Few are served by each turn, however idle they are. */
static void few__are_hot(void **state)
{
	struct many n = many_new();
	unsigned left = MANY;

	while (left > 3)
		more_close(&n.m[--left]);
	turns(n.p, 100, 100000);
	nr_recvs = 0;
	turns(n.p, 100, 0);
	assert_int_equal(nr_recvs, 300);
	many_free(&n, left);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cold__cost_little),
		cmocka_unit_test(cold__hears_the_peer),
		cmocka_unit_test(cold__posts),
		cmocka_unit_test(few__are_hot),
	};

	return cmocka_run_group_tests_name("tcp_live", tests, NULL, NULL);
}
