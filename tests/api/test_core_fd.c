/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cores that sleep on their descriptor, over the way that the argument names (packet, over shm; udp;
 * local; tcp): two ends that answer one another and sleep in between, in threads and in two processes.
 * gx's timers would end a sleep whose wake was lost, 0.1 s later. So the test asks the descriptor
 * what has ended each sleep.
 */
#include "core/core.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kit/common_gx.h"

#define KV_B	4096
#define ROUNDS	2000
#define WAIT_NS 30000000000ull
#define LATE_NS 50000000 /* a waker that was about to write has written by then */
#define EVENTS	64

/* One end: a context whose core the test turns. */
struct end {
	struct gx *gx;
	struct gx_core *core;
	struct gx_mem *kv;
	char addr[32]; /* of a server */
	char out[64];
	_Atomic bool stop;
	unsigned slept;
	struct end *late; /* it puts within the next turn, behind gx's own part of it */
	struct gx_ep *late_ep;
};

static _Atomic unsigned lost; /* sleeps that only the timer has ended, though work was there */
/* A turn leaves nothing readable in a socket. So bytes that come between the end of a sleep by the timer
 * and the turn look like a lost wake, now and then. A socket that nobody watches is lost each time. */
static unsigned may_lose;

static bool is_losing(void)
{
	return atomic_load(&lost) > may_lose;
}

static const char *link_name = "packet", *port_name = "shm";

static void nap(uint64_t ns)
{
	nanosleep(&(struct timespec){.tv_sec = (time_t)(ns / 1000000000),
				     .tv_nsec = (long)(ns % 1000000000)},
		  NULL);
}

static struct gx_op put_op(struct end *e, struct gx_ep *ep, uint64_t imm)
{
	struct gx_region kv = GX_INIT(kv);

	/* A server may hear of a put before it is up itself. */
	while (gx_conn_region(gx_ep_conn(ep), "kv", 0, &kv) == -ENOTCONN)
		gx_core_turn(e->core, gx_now());
	return (struct gx_op){.kind = GX_OP_PUT,
			      .flags = GX_OP_IMM | GX_OP_SILENT,
			      .addr = e->out,
			      .len = sizeof(e->out),
			      .token = kv.token,
			      .imm = imm};
}

static bool end_put(struct end *e, struct gx_ep *ep, uint64_t imm)
{
	struct gx_op op = put_op(e, ep, imm);
	int ret;

	while (!(ret = gx_post(gx_core_queue(e->core), ep, &op, 1)))
		gx_core_turn(e->core, gx_now());
	return ret == 1;
}

static bool late_put(void *arg, uint64_t now_ns)
{
	struct end *e = arg, *late = e->late;

	e->late = NULL;
	if (late) {
		end_put(late, e->late_ep, 0);
		gx_core_turn(late->core, gx_now());
	}
	return false;
}

static void end_open(struct end *e, bool server)
{
	struct gx_opts o = {.nr_cores = 1, .server = server, .peer_timeout_ns = 60000000000ull};

	*e = (struct end){0};
	if (server)
		o.on_conn = common_gx_on_conn;
	assert_int_equal(common_gx_open(o, port_name, &e->gx), 0);
	e->core = gx_core(e->gx, 0);
	assert_int_equal(gx_core_poller(e->core, late_put, e), 0);
	e->kv = common_gx_kv(e->gx, GX_MEM_HOST, KV_B);
	assert_true(gx_core_fd(e->core) >= 0);
	if (server)
		common_gx_listen(e->gx, e->addr);
}

static unsigned end_poll(struct end *e, struct gx_comp *comp)
{
	return gx_poll(gx_core_queue(e->core), comp, 1);
}

/* Is anything readable but the timer? */
static bool is_woken(const struct end *e, int timeout_ms, bool *timer)
{
	struct epoll_event ev[EVENTS];
	int n = epoll_wait(gx_core_fd(e->core), ev, EVENTS, timeout_ms);
	bool woken = false;

	*timer = false;
	for (int i = 0; i < n; i++) {
		*timer |= ev[i].data.fd == e->core->timer;
		woken |= ev[i].data.fd != e->core->timer;
	}
	return woken;
}

/* Take a completion; sleep meanwhile. False: it did not come in time, or arm failed. */
static bool end_wait(struct end *e, struct gx_comp *comp)
{
	uint64_t until_ns = gx_now() + WAIT_NS;
	bool woken, timer;

	while (gx_now() < until_ns && !atomic_load(&e->stop) && !is_losing()) {
		int ret;

		if (end_poll(e, comp))
			return true;
		ret = gx_core_arm(e->core);
		if (ret < 0)
			return false;
		if (ret)
			continue;
		e->slept++;
		woken = is_woken(e, 1000, &timer);
		gx_core_turn(e->core, gx_now());
		if (woken || !timer || !end_poll(e, comp))
			continue;
		nap(LATE_NS);
		atomic_fetch_add(&lost, !is_woken(e, 0, &timer));
		return true;
	}
	return false;
}

/* A server: answers each notification with one of the same number. */
static void *end_answer(void *arg)
{
	struct end *e = arg;
	struct gx_comp comp;

	while (!atomic_load(&e->stop))
		if (end_wait(e, &comp) && comp.kind == GX_COMP_NOTIFY)
			end_put(e, comp.ep, comp.imm);
	return NULL;
}

/* The client's core must turn while the connection is made. */
static struct gx_conn *end_connect(struct end *e, const char *addr)
{
	struct gx_connect_opts o = GX_INIT(o);
	uint64_t until_ns = gx_now() + WAIT_NS;
	struct gx_conn *c;
	struct pollfd p = {.fd = gx_core_fd(e->core), .events = POLLIN};
	int ret = -EINPROGRESS;

	o.link = link_name;
	assert_int_equal(gx_connect(e->gx, addr, &o, &c), 0);
	while (ret == -EINPROGRESS && gx_now() < until_ns) {
		if (!gx_core_arm(e->core))
			poll(&p, 1, 1);
		gx_core_turn(e->core, gx_now());
		ret = gx_conn_wait(c, 1);
	}
	if (ret)
		fail_msg("not up: %s", gx_error());
	return c;
}

/* ---- Two threads ---- */

static uint64_t rounds(struct end *e, struct gx_conn *c, unsigned n, bool sleeps)
{
	uint64_t from = gx_now();
	struct gx_comp comp;

	for (unsigned i = 1; i <= n; i++) {
		assert_true(end_put(e, gx_conn_ep(c, 0), i));
		if (!sleeps)
			while (!end_poll(e, &comp) && !is_losing())
				gx_core_turn(e->core, gx_now());
		else if (!end_wait(e, &comp))
			fail_msg("round %u: %u wakes lost; %s", i, atomic_load(&lost), gx_error());
		assert_false(is_losing());
		if (comp.kind != GX_COMP_NOTIFY)
			fail_msg("round %u: completion of kind %d: %s", i, comp.kind,
				 gx_strerror(comp.status));
		assert_int_equal(comp.imm, i);
		if (i % 7 == 0) /* the ends meet at other moments */
			for (unsigned k = 0; k < i % 4000; k++)
				__asm__ volatile("");
	}
	return (gx_now() - from) / n;
}

static uint64_t cpu_ns(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000000 +
	       (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1000;
}

static void core_arm__no_wake_is_lost(void **state)
{
	struct end server, client;
	struct gx_comp comp;
	struct gx_conn *c;
	pthread_t thread;
	uint64_t ns, cpu;

	atomic_store(&lost, 0);
	end_open(&server, true);
	end_open(&client, false);
	assert_int_equal(pthread_create(&thread, NULL, end_answer, &server), 0);
	c = end_connect(&client, server.addr);
	ns = rounds(&client, c, ROUNDS, true);
	printf("# %s: there and back, both sleep: %.1f us;", link_name, (double)ns / 1e3);
	ns = rounds(&client, c, ROUNDS, false);
	printf(" the client polls: %.1f us\n", (double)ns / 1e3);

	/* Nothing to do: a second costs next to no CPU time, at both ends together. */
	nap(100000000);
	cpu = cpu_ns();
	for (uint64_t until = gx_now() + 1000000000; gx_now() < until;) {
		bool timer;

		if (gx_core_arm(client.core) == 0)
			is_woken(&client, 1000, &timer);
		assert_int_equal(end_poll(&client, &comp), 0);
	}
	cpu = cpu_ns() - cpu;
	printf("# %s: an idle second of both ends: %.2f ms of CPU time\n", link_name,
	       (double)cpu / 1e6);
	assert_true(cpu < 100000000);

	gx_conn_close(c);
	atomic_store(&server.stop, true);
	while (pthread_tryjoin_np(thread, NULL))
		gx_core_turn(client.core, gx_now());
	assert_in_range(atomic_load(&lost), 0, may_lose);
	assert_true(client.slept > 0 && server.slept > 0);
	gx_close(client.gx);
	gx_close(server.gx);
}

/* ---- One thread ---- */

static void sleeps(struct end *e)
{
	struct gx_comp comp;
	bool timer;

	for (uint64_t until = gx_now() + WAIT_NS; gx_core_arm(e->core);) {
		end_poll(e, &comp);
		assert_true(gx_now() < until);
	}
	assert_false(is_woken(e, 0, &timer));
}

static void core_arm__alone(void **state)
{
	struct pollfd p = {.events = POLLIN};
	struct gx_queue *q;
	struct end e;
	int fd, status;

	end_open(&e, false);
	fd = p.fd = gx_core_fd(e.core);
	assert_int_equal(gx_queue_fd(gx_core_queue(e.core)), fd);
	sleeps(&e);
	sleeps(&e);			       /* armed twice */
	assert_int_equal(poll(&p, 1, 300), 0); /* without a connection no timer is due */
	if (!fork())
		_exit(fcntl(fd, F_GETFD) >= 0); /* a child has none of it */
	assert_true(wait(&status) > 0 && status == 0);
	/* The control thread brings a call. */
	assert_int_equal(gx_queue_open(e.gx, NULL, &q), 0);
	assert_int_equal(poll(&p, 1, 20000), 1);
	assert_int_equal(gx_queue_arm(gx_core_queue(e.core)), 1);
	sleeps(&e);
	gx_close(e.gx); /* while it sleeps */
	assert_int_equal(fcntl(fd, F_GETFD), -1);
}

/* Both ends on this thread: arm one, let the other act, ask what has ended the sleep. */
static void settle(struct end *a, struct end *b)
{
	struct gx_comp comp;

	for (uint64_t until = gx_now() + 20000000; gx_now() < until;) {
		gx_core_turn(a->core, gx_now());
		gx_core_turn(b->core, gx_now());
		end_poll(a, &comp);
		end_poll(b, &comp);
	}
}

static struct gx_conn *two_connect(struct end *client, struct end *server)
{
	struct gx_connect_opts o = GX_INIT(o);
	struct gx_conn *c;
	int ret;

	o.link = link_name;
	assert_int_equal(gx_connect(client->gx, server->addr, &o, &c), 0);
	while ((ret = gx_conn_wait(c, 1)) == -EINPROGRESS) {
		gx_core_turn(client->core, gx_now());
		gx_core_turn(server->core, gx_now());
	}
	assert_int_equal(ret, 0);
	return c;
}

/* The program reads a note that it took by the core's queue: the peer may wait for its place, so the
 * core does not sleep before the next gx_poll(). */
static void core_arm__while_a_note_is_held(void **state)
{
	struct end server, client;
	struct gx_comp comp = {0};
	struct gx_conn *c;

	end_open(&server, true);
	end_open(&client, false);
	assert_true(gx_core_fd(server.core) >= 0);
	assert_true(gx_core_fd(client.core) >= 0);
	c = two_connect(&client, &server);
	settle(&client, &server);
	assert_int_equal(gx_post(gx_core_queue(client.core), gx_conn_ep(c, 0),
				 &(struct gx_op){.kind = GX_OP_PUT,
						 .flags = GX_OP_NOTE,
						 .note = "abcd",
						 .note_len = 4},
				 1),
			 1);
	for (uint64_t until = gx_now() + WAIT_NS; !comp.note;) {
		assert_true(gx_now() < until);
		gx_core_turn(client.core, gx_now());
		gx_core_turn(server.core, gx_now());
		gx_poll(gx_core_queue(server.core), &comp, 1);
	}
	for (unsigned i = 0; i < 200; i++) { /* also when nothing else is left to do */
		gx_core_turn(client.core, gx_now());
		assert_int_equal(gx_core_arm(server.core), 1);
		nap(100000);
	}
	assert_int_equal(gx_poll(gx_core_queue(server.core), &comp, 1), 0);
	sleeps(&server);
	gx_conn_close(c);
	gx_close(client.gx);
	gx_close(server.gx);
}

static void core_arm__what_wakes(void **state)
{
	struct end server, client;
	struct gx_conn *c;
	struct gx_comp comp;
	struct gx_queue *q;
	struct gx_op op;
	bool timer;
	int ret;

	atomic_store(&lost, 0);
	end_open(&server, true);
	end_open(&client, false);
	c = two_connect(&client, &server);
	settle(&client, &server);
	/* A put of the peer, before the arming and after. */
	sleeps(&server);
	assert_true(end_put(&client, gx_conn_ep(c, 0), 1));
	gx_core_turn(client.core, gx_now());
	assert_true(is_woken(&server, 10000, &timer));
	assert_int_equal(gx_core_arm(server.core), 1);
	while (!end_poll(&server, &comp))
		gx_core_turn(server.core, gx_now());
	assert_int_equal(comp.imm, 1);
	settle(&client, &server);
	assert_true(end_put(&client, gx_conn_ep(c, 0), 2));
	gx_core_turn(client.core, gx_now());
	nap(1000000);
	assert_int_equal(gx_core_arm(server.core), 1);
	assert_int_equal(gx_core_arm(server.core), 1); /* until the completion is taken */
	settle(&client, &server);
	/* A put that comes while the core arms: too late for the turn, too early for a wake. */
	for (unsigned i = 0; i < 10; i++) {
		while (gx_core_arm(server.core))
			end_poll(&server, &comp);
		server.late = &client;
		server.late_ep = gx_conn_ep(c, 0);
		ret = gx_core_arm(server.core);
		assert_true(ret == 1 || (!ret && is_woken(&server, 50, &timer)));
		while (!end_poll(&server, &comp))
			gx_core_turn(server.core, gx_now());
		settle(&client, &server);
	}
	/* A queue of another thread. */
	assert_int_equal(gx_queue_open(client.gx, NULL, &q), 0);
	settle(&client, &server);
	sleeps(&client);
	op = put_op(&client, gx_conn_ep(c, 0), 3);
	assert_int_equal(gx_post(q, gx_conn_ep(c, 0), &op, 1), 1);
	assert_true(is_woken(&client, 10000, &timer));
	settle(&client, &server);
	/* The end of the connection. */
	sleeps(&server);
	sleeps(&client);
	gx_conn_close(c);
	assert_true(is_woken(&client, 10000, &timer));
	settle(&client, &server);
	assert_true(is_woken(&server, 10000, &timer));
	settle(&client, &server);
	while (gx_queue_close(q))
		settle(&client, &server);
	gx_close(client.gx);
	gx_close(server.gx);
}

/* ---- Two processes ---- */

struct child {
	pid_t pid;
	char addr[32];
};

static struct child child_start(void)
{
	struct child c = {0};
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	c.pid = fork();
	if (!c.pid) {
		static struct end e;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		end_open(&e, true);
		if (write(ends[1], e.addr, sizeof(e.addr)) == sizeof(e.addr))
			end_answer(&e);
		_exit(0);
	}
	close(ends[1]);
	assert_int_equal(read(ends[0], c.addr, sizeof(c.addr)), sizeof(c.addr));
	close(ends[0]);
	return c;
}

static void peer__stopped_then_killed(void **state)
{
	struct child child = child_start();
	struct gx_comp comp;
	struct gx_conn *c;
	struct gx_op op;
	struct end e;
	int status;

	atomic_store(&lost, 0);
	end_open(&e, false);
	c = end_connect(&e, child.addr);
	rounds(&e, c, 10, true);
	/* It is stopped while it sleeps, and goes on. */
	nap(50000000);
	kill(child.pid, SIGSTOP);
	assert_int_equal(waitpid(child.pid, &status, WUNTRACED),
			 child.pid); /* each thread stands */
	assert_true(WIFSTOPPED(status));
	assert_true(end_put(&e, gx_conn_ep(c, 0), 11));
	for (uint64_t until = gx_now() + 500000000; gx_now() < until;) {
		bool timer;

		if (!gx_core_arm(e.core))
			is_woken(&e, 10, &timer);
		assert_int_equal(end_poll(&e, &comp), 0);
	}
	kill(child.pid, SIGCONT);
	assert_true(end_wait(&e, &comp));
	assert_int_equal(comp.imm, 11);
	rounds(&e, c, 10, true);
	/* It is killed while both sleep. */
	op = (struct gx_op){.kind = GX_OP_RECV, .addr = e.out, .len = sizeof(e.out)};
	assert_int_equal(gx_post(gx_core_queue(e.core), gx_conn_ep(c, 0), &op, 1), 1);
	nap(50000000);
	kill(child.pid, SIGKILL);
	assert_true(end_wait(&e, &comp));
	assert_int_equal(comp.op, GX_OP_RECV);
	assert_int_equal(comp.status, -ECONNRESET);
	assert_int_equal(waitpid(child.pid, &status, 0), child.pid);
	assert_in_range(atomic_load(&lost), 0, may_lose);
	gx_conn_close(c);
	gx_close(e.gx);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(core_arm__alone),
		cmocka_unit_test(core_arm__what_wakes),
		cmocka_unit_test(core_arm__while_a_note_is_held),
		cmocka_unit_test(peer__stopped_then_killed),
		cmocka_unit_test(core_arm__no_wake_is_lost),
	};

	if (argc > 1)
		link_name = argv[1];
	if (!strcmp(link_name, "udp")) {
		link_name = "packet";
		port_name = "udp";
	}
	if (!strcmp(link_name, "tcp") || !strcmp(port_name, "udp"))
		may_lose = 3;
	return cmocka_run_group_tests_name(argc > 1 ? argv[1] : link_name, tests, NULL, NULL);
}
