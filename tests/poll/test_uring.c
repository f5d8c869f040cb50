// SPDX-License-Identifier: Apache-2.0
/*
 * The control thread: every case runs on both methods. Operations are submitted on the control
 * thread by gx_uring_run_wait(); their ends are waited for here, as CMocka's assertions belong to
 * its own thread.
 */
#include "gx_internal/uring.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define WAIT_MAX_S  30	/* for anything that is to happen */
#define MANY	    700 /* more operations than the submission queue has entries */
#define THREADS	    3
#define THREAD_RUNS 500
#define MS	    1000000u
#define NOT_ENDED   12345 /* a result that no operation has */

static struct gx_uring *u;

/* One operation of a test, and its end. */
struct op {
	struct gx_io io;
	sem_t ended;
	int res;	 /* read after ended */
	unsigned again;	 /* times that done() is to submit it once more */
	bool inside;	 /* done() was called from inside submit or cancel */
	struct op *kill; /* done() cancels this one */
};

static _Thread_local bool op_inside;

static void op_done(struct gx_io *io, int res)
{
	struct op *op = GX_CONTAINER_OF(io, struct op, io);

	op->inside |= op_inside;
	if (op->kill)
		gx_uring_cancel(u, &op->kill->io);
	if (op->again > 0) {
		op->again--;
		gx_uring_submit(u, io);
		return;
	}
	op->res = res;
	sem_post(&op->ended);
}

static int op_submit_fn(void *arg)
{
	struct op *op = arg;

	op_inside = true;
	gx_uring_submit(u, &op->io);
	op_inside = false;
	return 0;
}

static void op_submit(struct op *op)
{
	op->io.done = op_done;
	op->res = NOT_ENDED;
	sem_init(&op->ended, 0, 0);
	assert_int_equal(gx_uring_run_wait(u, op_submit_fn, op), 0);
}

static int op_cancel_fn(void *arg)
{
	struct op *op = arg;

	op_inside = true;
	gx_uring_cancel(u, &op->io);
	op_inside = false;
	return 0;
}

static void op_cancel(struct op *op)
{
	assert_int_equal(gx_uring_run_wait(u, op_cancel_fn, op), 0);
}

static bool sem_wait_s(sem_t *sem)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	ts.tv_sec += WAIT_MAX_S;
	while (sem_timedwait(sem, &ts)) {
		if (errno != EINTR)
			return false;
	}
	return true;
}

static int op_wait(struct op *op)
{
	assert_true(sem_wait_s(&op->ended));
	assert_false(op->inside);
	return op->res;
}

static int op_run(struct op *op)
{
	op_submit(op);
	return op_wait(op);
}

static bool op_has_ended(struct op *op)
{
	return sem_trywait(&op->ended) == 0;
}

/* ---- Fixtures ---- */

static const enum gx_uring_method on_io_uring = GX_URING_IO_URING, on_epoll = GX_URING_EPOLL;
static unsigned nr_run; /* cases that a method could be made for */

static bool method_missing; /* of this case: it skips */

static void log_keep(void *arg, int level, const char *line)
{
	print_message("%s\n", line);
}

static int uring_setup(void **state)
{
	const enum gx_uring_method *method = *state;

	gx_log_sink(log_keep, NULL);
	method_missing = gx_uring_open(*method, &u) != 0;
	if (method_missing)
		return *method == GX_URING_IO_URING ? 0 : -1;
	nr_run++;
	return 0;
}

static int uring_teardown(void **state)
{
	if (!method_missing)
		gx_uring_close(u);
	u = NULL;
	gx_log_sink(NULL, NULL);
	return 0;
}

/* The reason was logged by the setup. */
#define NEED_ENGINE()                                                                              \
	do {                                                                                       \
		if (method_missing)                                                                \
			skip();                                                                    \
	} while (0)

struct pair {
	int fd[2];
};

static struct pair pair_open(int flags)
{
	struct pair p;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0, p.fd), 0);
	return p;
}

static void pair_close(struct pair *p)
{
	close(p->fd[0]);
	close(p->fd[1]);
}

static int bound_open(struct sockaddr_in *addr, int flags)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
	socklen_t len = sizeof(*addr);

	*addr = (struct sockaddr_in){.sin_family = AF_INET,
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)addr, sizeof(*addr)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)addr, &len), 0);
	return fd;
}

static int listener_open(struct sockaddr_in *addr, int flags)
{
	int fd = bound_open(addr, flags);

	assert_int_equal(listen(fd, 4), 0);
	return fd;
}

/* ---- open and close ---- */

static void gx_uring_open__names_its_method(void **state)
{
	const enum gx_uring_method *method = *state;

	NEED_ENGINE();
	assert_string_equal(gx_uring_method_name(u),
			    *method == GX_URING_EPOLL ? "epoll" : "io_uring");
}

static void gx_uring_close__cancels_what_is_out(void **state)
{
	struct pair p = pair_open(0);
	struct op timeout = {.io = {.op = GX_IO_TIMEOUT, .timeout_ns = UINT64_MAX}};
	struct op recv_op = {.io = {.op = GX_IO_RECV, .fd = p.fd[0], .buf = &p, .len = 1}};
	struct op poll_op = {.io = {.op = GX_IO_POLL, .fd = p.fd[1], .events = POLLIN}};

	NEED_ENGINE();
	op_submit(&timeout);
	op_submit(&recv_op);
	op_submit(&poll_op);
	gx_uring_close(u);
	method_missing = true; /* the teardown has nothing to close */
	assert_int_equal(op_wait(&timeout), -ECANCELED);
	assert_int_equal(op_wait(&recv_op), -ECANCELED);
	assert_int_equal(op_wait(&poll_op), -ECANCELED);
	pair_close(&p);
}

static void gx_uring_close__ends_what_done_submits_again(void **state)
{
	struct op timeout = {.io = {.op = GX_IO_TIMEOUT, .timeout_ns = UINT64_MAX}, .again = 3};

	NEED_ENGINE();
	op_submit(&timeout);
	gx_uring_close(u);
	method_missing = true;
	assert_int_equal(op_wait(&timeout), -ECANCELED);
	assert_int_equal(timeout.again, 0);
}

/* ---- sockets ---- */

static void gx_uring_submit__no_operation(void **state)
{
	struct op op = {.io = {.op = GX_IO_NONE}};

	NEED_ENGINE();
	assert_int_equal(op_run(&op), -EINVAL);
}

static void gx_uring_submit__bad_descriptor(void **state)
{
	char c;
	struct op neg = {.io = {.op = GX_IO_RECV, .fd = -1, .buf = &c, .len = 1}};
	struct op closed = {.io = {.op = GX_IO_RECV, .fd = 1000, .buf = &c, .len = 1}};
	struct op poll_op = {.io = {.op = GX_IO_POLL, .fd = 1000, .events = POLLIN}};

	NEED_ENGINE();
	assert_int_equal(op_run(&neg), -EBADF);
	assert_int_equal(op_run(&closed), -EBADF);
	assert_int_equal(op_run(&poll_op), -EBADF);
}

static void recv_then_write(int flags)
{
	struct pair p = pair_open(flags);
	char buf[8] = "";
	struct op op = {.io = {.op = GX_IO_RECV, .fd = p.fd[0], .buf = buf, .len = sizeof(buf)}};

	op_submit(&op);
	assert_false(op_has_ended(&op));
	assert_int_equal(write(p.fd[1], "abc", 3), 3);
	assert_int_equal(op_wait(&op), 3);
	assert_string_equal(buf, "abc");
	pair_close(&p);
}

static void gx_uring_submit__recv_waits_for_bytes(void **state)
{
	NEED_ENGINE();
	recv_then_write(0);
}

static void gx_uring_submit__recv_on_nonblocking(void **state)
{
	NEED_ENGINE();
	recv_then_write(SOCK_NONBLOCK);
}

static void gx_uring_submit__recv_what_is_there(void **state)
{
	struct pair p = pair_open(0);
	char buf[2];
	struct op op = {.io = {.op = GX_IO_RECV, .fd = p.fd[0], .buf = buf, .len = sizeof(buf)}};

	NEED_ENGINE();
	assert_int_equal(write(p.fd[1], "abc", 3), 3);
	assert_int_equal(op_run(&op), 2);
	assert_int_equal(op_run(&op), 1);
	pair_close(&p);
}

static void gx_uring_submit__recv_end_of_stream(void **state)
{
	struct pair p = pair_open(0);
	char c;
	struct op op = {.io = {.op = GX_IO_RECV, .fd = p.fd[0], .buf = &c, .len = 1}};

	NEED_ENGINE();
	op_submit(&op);
	shutdown(p.fd[1], SHUT_WR);
	assert_int_equal(op_wait(&op), 0);
	pair_close(&p);
}

static void gx_uring_submit__again_from_done(void **state)
{
	struct pair p = pair_open(0);
	char c = 0;
	struct op op = {.io = {.op = GX_IO_RECV, .fd = p.fd[0], .buf = &c, .len = 1}, .again = 4};

	NEED_ENGINE();
	op_submit(&op);
	assert_int_equal(write(p.fd[1], "abcde", 5), 5);
	assert_int_equal(op_wait(&op), 1);
	assert_int_equal(c, 'e');
	pair_close(&p);
}

static void gx_uring_submit__send(void **state)
{
	struct pair p = pair_open(0);
	char buf[4] = "";
	struct op op = {.io = {.op = GX_IO_SEND, .fd = p.fd[0], .buf = "abc", .len = 3}};

	NEED_ENGINE();
	assert_int_equal(op_run(&op), 3);
	assert_int_equal(read(p.fd[1], buf, sizeof(buf)), 3);
	assert_string_equal(buf, "abc");
	pair_close(&p);
}

/* SIGPIPE would end the test. */
static void gx_uring_submit__send_to_closed_peer(void **state)
{
	struct pair p = pair_open(0);
	struct op op = {.io = {.op = GX_IO_SEND, .fd = p.fd[0], .buf = "abc", .len = 3}};

	NEED_ENGINE();
	close(p.fd[1]);
	assert_int_equal(op_run(&op), -EPIPE);
	close(p.fd[0]);
}

static void send_into_full(int flags)
{
	struct pair p = pair_open(flags);
	static char buf[65536], sink[65536];
	struct op op = {.io = {.op = GX_IO_SEND, .fd = p.fd[0], .buf = buf, .len = 1}};

	while (send(p.fd[0], buf, sizeof(buf), MSG_DONTWAIT) > 0)
		;
	op_submit(&op);
	assert_false(op_has_ended(&op));
	while (recv(p.fd[1], sink, sizeof(sink), MSG_DONTWAIT) > 0)
		;
	assert_int_equal(op_wait(&op), 1);
	pair_close(&p);
}

static void gx_uring_submit__send_waits_for_room(void **state)
{
	NEED_ENGINE();
	send_into_full(0);
}

static void gx_uring_submit__send_on_nonblocking(void **state)
{
	NEED_ENGINE();
	send_into_full(SOCK_NONBLOCK);
}

static void gx_uring_submit__both_directions_of_one_socket(void **state)
{
	struct pair p = pair_open(0);
	char c;
	struct op in = {.io = {.op = GX_IO_RECV, .fd = p.fd[0], .buf = &c, .len = 1}};
	struct op out = {.io = {.op = GX_IO_SEND, .fd = p.fd[0], .buf = "a", .len = 1}};

	NEED_ENGINE();
	op_submit(&in);
	assert_int_equal(op_run(&out), 1);
	assert_false(op_has_ended(&in));
	assert_int_equal(write(p.fd[1], "b", 1), 1);
	assert_int_equal(op_wait(&in), 1);
	pair_close(&p);
}

/* A descriptor travels with the bytes, as in the hello between two processes of one host. */
static void gx_uring_submit__msg_passes_descriptor(void **state)
{
	struct pair p = pair_open(0);
	char c = 'x', ctl[2][CMSG_SPACE(sizeof(int))] = {{0}};
	struct iovec iov = {.iov_base = &c, .iov_len = 1};
	struct msghdr out = {.msg_iov = &iov, .msg_iovlen = 1};
	struct msghdr in = {.msg_iov = &iov, .msg_iovlen = 1};
	struct op tx = {.io = {.op = GX_IO_SENDMSG, .fd = p.fd[0], .msg = &out}};
	struct op rx = {.io = {.op = GX_IO_RECVMSG, .fd = p.fd[1], .msg = &in}};
	int fd;

	NEED_ENGINE();
	out.msg_control = ctl[0];
	out.msg_controllen = in.msg_controllen = sizeof(ctl[0]);
	in.msg_control = ctl[1];
	*CMSG_FIRSTHDR(&out) = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
						.cmsg_type = SCM_RIGHTS,
						.cmsg_len = CMSG_LEN(sizeof(int))};
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(&out)), &p.fd[0], sizeof(int));
	op_submit(&rx);
	assert_int_equal(op_run(&tx), 1);
	assert_int_equal(op_wait(&rx), 1);
	assert_non_null(CMSG_FIRSTHDR(&in));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&in)), sizeof(int));
	assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
	close(fd);
	pair_close(&p);
}

static void connect_and_accept(int flags)
{
	struct sockaddr_in addr, peer = {0};
	int lfd = listener_open(&addr, flags), fd = socket(AF_INET, SOCK_STREAM | flags, 0);
	struct op acc = {.io = {.op = GX_IO_ACCEPT,
				.fd = lfd,
				.addr = (struct sockaddr *)&peer,
				.addr_len = sizeof(peer)}};
	struct op con = {.io = {.op = GX_IO_CONNECT,
				.fd = fd,
				.addr = (struct sockaddr *)&addr,
				.addr_len = sizeof(addr)}};

	op_submit(&acc);
	assert_int_equal(op_run(&con), 0);
	assert_true(op_wait(&acc) >= 0);
	assert_int_equal(fcntl(acc.res, F_GETFD), FD_CLOEXEC);
	assert_int_equal(peer.sin_family, AF_INET);
	close(acc.res);
	close(fd);
	close(lfd);
}

static void gx_uring_submit__connect_and_accept(void **state)
{
	NEED_ENGINE();
	connect_and_accept(0);
}

static void gx_uring_submit__connect_and_accept_nonblocking(void **state)
{
	NEED_ENGINE();
	connect_and_accept(SOCK_NONBLOCK);
}

static void connect_refused(int flags)
{
	struct sockaddr_in addr;
	int lfd = bound_open(&addr, 0), fd = socket(AF_INET, SOCK_STREAM | flags, 0);
	struct op con = {.io = {.op = GX_IO_CONNECT,
				.fd = fd,
				.addr = (struct sockaddr *)&addr,
				.addr_len = sizeof(addr)}};

	assert_int_equal(op_run(&con), -ECONNREFUSED);
	close(fd);
	close(lfd);
}

static void gx_uring_submit__connect_refused(void **state)
{
	NEED_ENGINE();
	connect_refused(0);
	connect_refused(SOCK_NONBLOCK);
}

static void gx_uring_submit__poll_tells_events(void **state)
{
	struct pair p = pair_open(0);
	struct op op = {.io = {.op = GX_IO_POLL, .fd = p.fd[0], .events = POLLIN}};

	NEED_ENGINE();
	op_submit(&op);
	assert_false(op_has_ended(&op));
	assert_int_equal(write(p.fd[1], "a", 1), 1);
	assert_int_equal(op_wait(&op), POLLIN);
	op.io.events = POLLIN | POLLOUT;
	assert_int_equal(op_run(&op), POLLIN | POLLOUT);
	pair_close(&p);
}

static void gx_uring_submit__poll_hangup_unasked(void **state)
{
	struct pair p = pair_open(0);
	struct op op = {.io = {.op = GX_IO_POLL, .fd = p.fd[0], .events = POLLPRI}};

	NEED_ENGINE();
	op_submit(&op);
	close(p.fd[1]);
	assert_true(op_wait(&op) & POLLHUP);
	close(p.fd[0]);
}

static struct op many[MANY];

/* All in one go: nothing goes to the kernel in between unless the queue is full. */
static int many_submit(void *arg)
{
	for (unsigned i = 0; i < MANY; i++)
		gx_uring_submit(u, &many[i].io);
	return 0;
}

static int many_cancel(void *arg)
{
	for (unsigned i = 0; i < MANY; i++)
		gx_uring_cancel(u, &many[i].io);
	return 0;
}

static void many_recv(int fd, char buf[MANY])
{
	memset(many, 0, sizeof(many));
	for (unsigned i = 0; i < MANY; i++) {
		many[i].io = (struct gx_io){
			.op = GX_IO_RECV, .fd = fd, .buf = &buf[i], .len = 1, .done = op_done};
		sem_init(&many[i].ended, 0, 0);
	}
	assert_int_equal(gx_uring_run_wait(u, many_submit, NULL), 0);
}

static void gx_uring_submit__more_than_the_queue(void **state)
{
	static char buf[MANY], sent[MANY];
	struct pair p = pair_open(0);

	NEED_ENGINE();
	many_recv(p.fd[0], buf);
	memset(sent, 'a', sizeof(sent));
	assert_int_equal(write(p.fd[1], sent, MANY), MANY);
	for (unsigned i = 0; i < MANY; i++)
		assert_int_equal(op_wait(&many[i]), 1);
	assert_memory_equal(buf, sent, MANY);
	pair_close(&p);
}

static void gx_uring_cancel__more_than_the_queue(void **state)
{
	static char buf[MANY];
	struct pair p = pair_open(0);

	NEED_ENGINE();
	many_recv(p.fd[0], buf);
	assert_int_equal(gx_uring_run_wait(u, many_cancel, NULL), 0);
	for (unsigned i = 0; i < MANY; i++)
		assert_int_equal(op_wait(&many[i]), -ECANCELED);
	pair_close(&p);
}

/* ---- timers ---- */

static void gx_uring_submit__timeout_not_early(void **state)
{
	struct op op = {.io = {.op = GX_IO_TIMEOUT, .timeout_ns = 20 * MS}};
	uint64_t start_ns = gx_now_ns();

	NEED_ENGINE();
	assert_int_equal(op_run(&op), 0);
	assert_true(gx_now_ns() - start_ns >= 20 * MS);
}

static void gx_uring_submit__timeout_of_nothing(void **state)
{
	struct op op = {.io = {.op = GX_IO_TIMEOUT}};

	NEED_ENGINE();
	assert_int_equal(op_run(&op), 0);
}

static void gx_uring_submit__timeouts_in_order(void **state)
{
	struct op late = {.io = {.op = GX_IO_TIMEOUT, .timeout_ns = 3600000ull * MS}};
	struct op soon = {.io = {.op = GX_IO_TIMEOUT, .timeout_ns = 5 * MS}, .kill = &late};

	NEED_ENGINE();
	op_submit(&late);
	op_submit(&soon);
	assert_int_equal(op_wait(&soon), 0);
	assert_int_equal(op_wait(&late), -ECANCELED);
}

/* ---- cancel ---- */

static void cancel_recv(int flags)
{
	struct pair p = pair_open(flags);
	char c;
	struct op op = {.io = {.op = GX_IO_RECV, .fd = p.fd[0], .buf = &c, .len = 1}};

	op_submit(&op);
	op_cancel(&op);
	assert_int_equal(op_wait(&op), -ECANCELED);
	assert_int_equal(write(p.fd[1], "a", 1), 1);
	assert_int_equal(op_run(&op), 1); /* and it may be used again */
	pair_close(&p);
}

static void gx_uring_cancel__recv(void **state)
{
	NEED_ENGINE();
	cancel_recv(0);
	cancel_recv(SOCK_NONBLOCK);
}

static void gx_uring_cancel__accept(void **state)
{
	struct sockaddr_in addr;
	struct op op = {.io = {.op = GX_IO_ACCEPT, .fd = listener_open(&addr, 0)}};

	NEED_ENGINE();
	op_submit(&op);
	op_cancel(&op);
	op_cancel(&op);
	assert_int_equal(op_wait(&op), -ECANCELED);
	close(op.io.fd);
}

static void gx_uring_cancel__timeout(void **state)
{
	struct op op = {.io = {.op = GX_IO_TIMEOUT, .timeout_ns = UINT64_MAX}};

	NEED_ENGINE();
	op_submit(&op);
	op_cancel(&op);
	assert_int_equal(op_wait(&op), -ECANCELED);
}

static void gx_uring_cancel__other_of_same_descriptor_stays(void **state)
{
	struct pair p = pair_open(0);
	char c[2];
	struct op first = {.io = {.op = GX_IO_RECV, .fd = p.fd[0], .buf = &c[0], .len = 1}};
	struct op second = {.io = {.op = GX_IO_RECV, .fd = p.fd[0], .buf = &c[1], .len = 1}};

	NEED_ENGINE();
	op_submit(&first);
	op_submit(&second);
	op_cancel(&first);
	assert_int_equal(op_wait(&first), -ECANCELED);
	assert_int_equal(write(p.fd[1], "a", 1), 1);
	assert_int_equal(op_wait(&second), 1);
	pair_close(&p);
}

static void gx_uring_cancel__not_held(void **state)
{
	struct op op = {.io = {.op = GX_IO_TIMEOUT}};

	NEED_ENGINE();
	op_cancel(&op);
	assert_int_equal(op_run(&op), 0);
	op_cancel(&op);
	assert_int_equal(op.res, 0);
}

/* ---- run ---- */

static int me(void *arg)
{
	return gx_uring_is_me(arg);
}

static void gx_uring_is_me__tells_threads_apart(void **state)
{
	NEED_ENGINE();
	assert_false(gx_uring_is_me(u));
	assert_true(gx_uring_run_wait(u, me, u));
}

static int nested(void *arg)
{
	return gx_uring_run_wait(u, me, u) + 41;
}

static void gx_uring_run_wait__at_once_on_control_thread(void **state)
{
	NEED_ENGINE();
	assert_int_equal(gx_uring_run_wait(u, nested, NULL), 42);
}

static void count(void *arg)
{
	(*(unsigned *)arg)++; /* the control thread alone writes it */
}

static int count_read(void *arg)
{
	return (int)*(unsigned *)arg;
}

static void *runner(void *arg)
{
	uintptr_t failed = 0;

	for (unsigned i = 0; i < THREAD_RUNS; i++)
		failed += gx_uring_run(u, count, arg) != 0;
	return (void *)failed;
}

static void gx_uring_run__many_threads(void **state)
{
	pthread_t thread[THREADS];
	unsigned counter = 0;
	void *failed;

	NEED_ENGINE();
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, runner, &counter), 0);
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(thread[i], &failed);
		assert_null(failed);
	}
	assert_int_equal(gx_uring_run_wait(u, count_read, &counter), THREADS * THREAD_RUNS);
}

static void gx_uring_run__done_before_close_returns(void **state)
{
	unsigned counter = 0;

	NEED_ENGINE();
	for (unsigned i = 0; i < THREAD_RUNS; i++)
		assert_int_equal(gx_uring_run(u, count, &counter), 0);
	gx_uring_close(u);
	method_missing = true;
	assert_int_equal(counter, THREAD_RUNS);
}

/* ---- signals ---- */

struct sig_seen {
	sem_t any;
	int signo[2]; /* in order of arrival */
	unsigned n;   /* owner: ctl */
};

static void sig_note(void *arg, int signo)
{
	struct sig_seen *s = arg;

	if (s->n < GX_ARRAY_SIZE(s->signo))
		s->signo[s->n++] = signo;
	sem_post(&s->any);
}

static void gx_uring_signals__calls_for_each(void **state)
{
	const int signos[] = {SIGUSR1, SIGUSR2};
	struct sig_seen seen = {0};

	NEED_ENGINE();
	sem_init(&seen.any, 0, 0);
	assert_int_equal(gx_uring_signals(u, signos, 2, sig_note, &seen), 0);
	for (unsigned i = 0; i < 2; i++) {
		kill(getpid(), signos[i]);
		assert_true(sem_wait_s(&seen.any));
		assert_int_equal(seen.signo[i], signos[i]);
	}
}

static void gx_uring_signals__bad_number(void **state)
{
	const int bad = 1000;

	NEED_ENGINE();
	assert_int_equal(gx_uring_signals(u, &bad, 1, sig_note, NULL), -EINVAL);
}

/* ---- the choice of a method ---- */

static void gx_uring_open__environment(void **state)
{
	setenv("GX_URING", "epoll", 1);
	assert_int_equal(gx_uring_open(GX_URING_AUTO, &u), 0);
	assert_string_equal(gx_uring_method_name(u), "epoll");
	gx_uring_close(u);
	setenv("GX_URING", "select", 1);
	gx_log_sink(log_keep, NULL);
	assert_int_equal(gx_uring_open(GX_URING_AUTO, &u), -EINVAL);
	gx_log_sink(NULL, NULL);
	unsetenv("GX_URING");
}

static void log_match(void *arg, int level, const char *line)
{
	*(bool *)arg |= level == GX_LOG_WARN && strstr(line, "epoll") &&
			(strstr(line, "seccomp") || strstr(line, "sysctl"));
}

/* Forbids a system call to this process for good. */
static bool call_forbid(uint32_t nr)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {.len = GX_ARRAY_SIZE(code), .filter = code};

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) == 0;
}

/* Return: an exit status, 77 when no filter may be set. */
static int forbidden_child(uint32_t nr)
{
	bool explained = false;

	if (!call_forbid(nr))
		return 77;
	gx_log_sink(log_match, &explained);
	if (gx_uring_open(GX_URING_AUTO, &u))
		return 1;
	if (strcmp(gx_uring_method_name(u), "epoll") != 0 || !explained)
		return 2;
	gx_uring_close(u);
	return gx_uring_open(GX_URING_IO_URING, &u) == -EPERM ? 0 : 3;
}

static void forbidden_check(uint32_t nr)
{
	pid_t pid = fork();
	int status;

	if (pid == 0)
		_exit(forbidden_child(nr));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77)
		skip();
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void gx_uring_open__forbidden_falls_back_aloud(void **state)
{
	forbidden_check(__NR_io_uring_setup);
}

/* Some filters know the first of io_uring's calls and not the others, or the other way round. */
static void gx_uring_open__enter_forbidden_falls_back_aloud(void **state)
{
	forbidden_check(__NR_io_uring_enter);
}

#define ON(fn, method)                                                                             \
	{                                                                                          \
#fn "/" #method, fn, uring_setup, uring_teardown, (void *)&on_##method             \
	}
#define BOTH(fn) ON(fn, io_uring), ON(fn, epoll)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gx_uring_open__environment),
		cmocka_unit_test(gx_uring_open__forbidden_falls_back_aloud),
		cmocka_unit_test(gx_uring_open__enter_forbidden_falls_back_aloud),
		BOTH(gx_uring_open__names_its_method),
		BOTH(gx_uring_close__cancels_what_is_out),
		BOTH(gx_uring_close__ends_what_done_submits_again),
		BOTH(gx_uring_submit__no_operation),
		BOTH(gx_uring_submit__bad_descriptor),
		BOTH(gx_uring_submit__recv_waits_for_bytes),
		BOTH(gx_uring_submit__recv_on_nonblocking),
		BOTH(gx_uring_submit__recv_what_is_there),
		BOTH(gx_uring_submit__recv_end_of_stream),
		BOTH(gx_uring_submit__again_from_done),
		BOTH(gx_uring_submit__send),
		BOTH(gx_uring_submit__send_to_closed_peer),
		BOTH(gx_uring_submit__send_waits_for_room),
		BOTH(gx_uring_submit__send_on_nonblocking),
		BOTH(gx_uring_submit__both_directions_of_one_socket),
		BOTH(gx_uring_submit__msg_passes_descriptor),
		BOTH(gx_uring_submit__connect_and_accept),
		BOTH(gx_uring_submit__connect_and_accept_nonblocking),
		BOTH(gx_uring_submit__connect_refused),
		BOTH(gx_uring_submit__poll_tells_events),
		BOTH(gx_uring_submit__poll_hangup_unasked),
		BOTH(gx_uring_submit__more_than_the_queue),
		BOTH(gx_uring_submit__timeout_not_early),
		BOTH(gx_uring_submit__timeout_of_nothing),
		BOTH(gx_uring_submit__timeouts_in_order),
		BOTH(gx_uring_cancel__recv),
		BOTH(gx_uring_cancel__accept),
		BOTH(gx_uring_cancel__timeout),
		BOTH(gx_uring_cancel__other_of_same_descriptor_stays),
		BOTH(gx_uring_cancel__not_held),
		BOTH(gx_uring_cancel__more_than_the_queue),
		BOTH(gx_uring_is_me__tells_threads_apart),
		BOTH(gx_uring_run_wait__at_once_on_control_thread),
		BOTH(gx_uring_run__many_threads),
		BOTH(gx_uring_run__done_before_close_returns),
		BOTH(gx_uring_signals__calls_for_each),
		BOTH(gx_uring_signals__bad_number),
	};
	sigset_t set;
	int failed;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	if (failed == 0 && nr_run == 0) {
		fprintf(stderr, "skipped: neither io_uring nor epoll could be set up\n");
		return 77;
	}
	return failed;
}
