/* SPDX-License-Identifier: Apache-2.0 */
/* Listening sockets: their limits, and who may come. */
#include <errno.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <string.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "control/ctl_rig.h"

static void listen__errors(void **state)
{
	char addr[32];

	server_listen(addr);
	assert_int_equal(ctl_listen(&client->gx, addr), -EADDRINUSE);
	assert_says(gx_error(), addr);
	assert_says(gx_error(), "another port");
	assert_int_equal(ctl_listen(&client->gx, "192.0.2.1:0"), -EADDRNOTAVAIL);
	assert_says(gx_error(), "ip addr");
	assert_int_equal(ctl_listen(&client->gx, "127.0.0.1:x"), -EINVAL);
}

/* Nobody else need listen anywhere: ports that were in use are taken for a minute. */
static void listen__no_port_is_free(void **state)
{
	int home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC), fd, range, ret = 0;

	if (home < 0 || unshare(CLONE_NEWNET)) {
		close(home);
		skip();
	}
	range = open("/proc/sys/net/ipv4/ip_local_port_range", O_WRONLY | O_CLOEXEC);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (range >= 0 && write(range, "40000 40000", 11) == 11 && !listen(fd, 1))
		ret = ctl_listen(&client->gx, "0.0.0.0:0");
	assert_int_equal(setns(home, CLONE_NEWNET), 0);
	close(range);
	close(fd);
	close(home);
	if (!ret)
		skip(); /* nobody may write there */
	assert_int_equal(ret, -EADDRINUSE);
	assert_says(gx_error(), "ip_local_port_range");
}

static void listen__stop_frees_the_port(void **state)
{
	char addr[32];

	server_listen(addr);
	both_up_check(addr);
	ctl_listen_stop(&server->gx);
	client_connect(addr, NULL);
	wait_down(client, 1, -ECONNREFUSED, GX_REASON_NO_SERVER);
	assert_true(ctl_listen(&client->gx, addr) > 0);
	assert_int_equal(server->nr_down, 0); /* connections stay */
}

/* As many strangers as there are places, and more in the queue: a client gets in all the same, and
 * soon. */
static void listen__half_open_limit(void **state)
{
	char addr[32];
	int port = server_listen(addr), fds[2 * CTL_HALF_OPEN_MAX];
	struct gx_hello h;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(fds); i++)
		fds[i] = i < GX_ARRAY_SIZE(fds) / 8 ? raw_client(port, &h) : raw_connect(port);
	wait_conns_least(server, CTL_HALF_OPEN_MAX);
	both_up_check(addr);
	assert_true(conns_count(server) <= CTL_HALF_OPEN_MAX + 8);
	assert_true(raw_has_ended(fds[GX_ARRAY_SIZE(fds) / 8]));
	assert_false(raw_has_ended(fds[GX_ARRAY_SIZE(fds) - 1]));
	for (unsigned i = 0; i < GX_ARRAY_SIZE(fds); i++)
		close(fds[i]);
}

/* What goes for a new one is never what has shown whose it is. */
static void listen__half_open_proven_stays(void **state)
{
	char addr[32];
	int port = server_listen(addr), fds[2 * CTL_HALF_OPEN_MAX], un, fd;
	static uint8_t b[GX_HELLO_FRAME_MAX];
	struct gx_hello_lanes l;
	struct gx_hello h;
	uint32_t len;

	fd = raw_client(port, &h);
	un = raw_prove(&h);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(fds); i++)
		fds[i] = raw_connect(port);
	wait_bad(server, CTL_HALF_OPEN_MAX / 2);
	raw_lanes_fill(&l, "udp");
	assert_true(raw_send(fd, b, gx_hello_lanes_put(b, GX_HELLO_CONNECT, &l)));
	assert_int_equal(raw_recv(fd, b, &len), GX_HELLO_ACCEPT);
	close(un);
	close(fd);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(fds); i++)
		close(fds[i]);
}

/* Takes every descriptor but @left of the limit, which is lowered to @nr. Return: how many. */
static unsigned fds_take(int fds[], unsigned nr, unsigned left, struct rlimit *old)
{
	struct rlimit lim;
	unsigned n = 0;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, old), 0);
	lim = *old;
	lim.rlim_cur = nr;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &lim), 0);
	while (n < nr && (fds[n] = fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0)
		n++;
	for (; left; left--)
		close(fds[--n]);
	return n;
}

static void fds_give(const int fds[], unsigned n, const struct rlimit *old)
{
	while (n)
		close(fds[--n]);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, old), 0);
}

static void listen__few_descriptors(void **state)
{
	struct rlimit old;
	int fds[256];
	unsigned n = fds_take(fds, GX_ARRAY_SIZE(fds), CTL_FDS_FREE - 1, &old);

	assert_int_equal(ctl_listen(&server->gx, "127.0.0.1:0"), -EMFILE);
	fds_give(fds, n, &old);
	assert_says(gx_error(), "ulimit -n");
	assert_true(ctl_listen(&server->gx, "127.0.0.1:0") > 0);
}

/* Who comes when there is none left is told so, and served when there is. */
static void listen__out_of_descriptors(void **state)
{
	char addr[32], text[256] = "";
	struct rlimit old;
	int port, again, fds[256];
	uint32_t ip;
	bool far = far_addr(&ip);
	unsigned n = fds_take(fds, GX_ARRAY_SIZE(fds), GX_ARRAY_SIZE(fds) / 2, &old);

	port = server_listen(addr); /* an accept has the limit of when it was submitted */
	gx_log_sink(log_keep, text);
	gx_log_level_set(GX_LOG_WARN);
	while ((fds[n] = fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0)
		n++;
	close(fds[--n]); /* for the client */
	again = raw_connect(port);
	raw_recv_error(again, -EMFILE, GX_REASON_FULL, "ulimit -n");
	close(again);
	again = raw_connect_from(port, far ? ip : INADDR_LOOPBACK);
	if (far) /* a stranger hears nothing */
		assert_true(raw_recv_some(again, text, 1) <= 0);
	fds_give(fds, n, &old);
	gx_log_sink(NULL, NULL);
	gx_log_level_set(GX_LOG_ERR);
	assert_says(text, "ulimit -n");
	close(again);
	both_up_check(addr);
}

/* It is too late for who waits for a socket more. */
static int starved_run(void *arg)
{
	struct fake *f = arg;

	for (struct ctl_conn *cc = f->gx.ctl->conns; cc; cc = cc->next)
		cc->due_ns = gx_now_ns();
	return 0;
}

static void listen__starved_sockets(void **state)
{
	struct rlimit old;
	char addr[32];
	int port, first, again, fds[256];
	unsigned n = fds_take(fds, GX_ARRAY_SIZE(fds), GX_ARRAY_SIZE(fds) / 2, &old);

	port = server_listen(addr);
	first = raw_connect(port);
	wait_conns(server, 1);
	while ((fds[n] = fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0)
		n++;
	close(fds[--n]);
	again = raw_connect(port);
	raw_recv_error(again, -EMFILE, GX_REASON_FULL, "ulimit -n");
	gx_uring_run_wait(server->gx.uring, starved_run, server);
	raw_recv_error(first, -EMFILE, GX_REASON_FULL, "no descriptor left");
	fds_give(fds, n, &old);
	close(again);
	close(first);
}

static void listen__not_loopback(void **state)
{
	char host[64], addr[96];
	int port;

	assert_int_equal(ctl_connect(client_conn(), "192.0.2.1:7501", NULL), -EPERM);
	assert_says(gx_error(), "gx_opts.insecure");
	if (!other_addr(host, sizeof(host))) {
		print_message("no address but loopback: the server's half is not tested\n");
		return;
	}
	port = ctl_listen(&server->gx, "0.0.0.0:0");
	assert_true(port > 0);
	snprintf(addr, sizeof(addr), "%s:%d", host, port);
	CTL_SET(client, gx.opts.insecure, true); /* before any connection: nobody reads it yet */
	client_connect(addr, NULL);
	wait_down(client, 1, -EPERM, GX_REASON_INSECURE);
	assert_says(client->text, "without a word");
	CTL_SET(server, gx.opts.insecure, true);
	both_up(addr, NULL);
}

/* In a child: does it hold a TCP or Unix socket, but those in @own? */
static int child_sockets(const int own[2])
{
	for (int fd = 3; fd < 1024; fd++) {
		int type;
		socklen_t len = sizeof(type);

		/* What the test was started with is not for us to judge. */
		if (fd != own[0] && fd != own[1] && (fcntl(fd, F_GETFD) & FD_CLOEXEC) &&
		    !getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len))
			return fd;
	}
	return 0;
}

/* In a child: is any of a ring left, which would hold the sockets that it waits on? */
static int child_ring(void)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char text[512] = "", path[32];
	bool found = false;

	while (f && !found && fgets(text, sizeof(text), f))
		found = strstr(text, "io_uring");
	for (int fd = 0; fd < 1024 && !found; fd++) {
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		n = readlink(path, text, sizeof(text) - 1);
		text[GX_MAX(n, 0)] = 0;
		found = strstr(text, "io_uring");
	}
	return found ? 200 : 0;
}

/* A child that goes on without exec keeps no connection alive, nor an address taken. */
static void fork__child_has_no_sockets(void **state)
{
	char addr[32], path[64];
	int port = server_listen(addr), own[2], status;
	pid_t pid;

	own[0] = raw_connect(port); /* ours: the program's own stay with it */
	snprintf(path, sizeof(path), "@gx-test-%d-stats", getpid());
	assert_int_equal(ctl_stats_listen(&server->gx, path), 0);
	own[1] = stats_connect(path);
	assert_true(raw_send(own[1], "GE", 2)); /* and no more: it is not answered yet */
	both_up_check(addr);
	pid = fork();
	if (!pid)
		_exit(child_sockets(own) + child_ring() + (fcntl(own[0], F_GETFD) < 0));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	close(own[0]);
	close(own[1]);
	both_up(addr, NULL); /* ours are as they were */
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(listen__errors),
		TEST(listen__no_port_is_free),
		TEST(listen__stop_frees_the_port),
		TEST(listen__half_open_limit),
		TEST(listen__half_open_proven_stays),
		TEST(listen__few_descriptors),
		TEST(listen__out_of_descriptors),
		TEST(listen__starved_sockets),
		TEST(listen__not_loopback),
		TEST(fork__child_has_no_sockets),
	};

	return rig_run("ctl_listen", tests, GX_ARRAY_SIZE(tests));
}
