/* SPDX-License-Identifier: Apache-2.0 */
/* The Unix socket: whose process a client is, and descriptors. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/ioctl.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "control/ctl_hand.h"

static void fd__strangers(void **state)
{
	char addr[32], name[GX_NAME_MAX];
	uint8_t b[64];

	server_listen(addr);
	snprintf(name, sizeof(name), "%s", server->gx.ctl->unix_name);
	srandom(3);
	for (unsigned i = 0; i < 100; i++) {
		int fd = raw_unix(name), n = (int)(i % 3);
		size_t len = i % 4 ? 16 : 1 + (size_t)random() % sizeof(b);

		assert_true(fd >= 0);
		for (size_t j = 0; j < len; j++)
			b[j] = (uint8_t)random();
		raw_unix_send(fd, b, len, client->lane_fd, (unsigned)n);
		close(fd);
	}
	wait_bad(server, 100);
	server_lives(addr);
}

static void fd__wrong_number(void **state)
{
	struct gx_hello_lanes l;
	char addr[32];
	int port = server_listen(addr), many[100];

	raw_lanes_fill(&l, "shm");
	l.lanes[0].port.fd = l.lanes[1].port.fd = 0;
	for (unsigned i = 0; i < GX_ARRAY_SIZE(many); i++)
		many[i] = client->lane_fd[0];
	for (unsigned n = 0; n < 5; n++) {
		static const unsigned count[] = {0, 1, 3, 64, 100};
		struct gx_hello h;
		int un, fd = raw_client_lanes(port, &h, &l, &un);

		assert_true(raw_unix_send(un, h.nonce, sizeof(h.nonce), many, count[n]));
		raw_recv_error(fd, -EPROTO, GX_REASON_PROTOCOL, "descriptors");
		close(un);
		close(fd);
	}
	wait_down(server, 5, -EPROTO, GX_REASON_PROTOCOL);
	server_lives(addr);
}

struct hold {
	sem_t held, go;
};

static void hold_run(void *arg)
{
	struct hold *h = arg;

	sem_post(&h->held);
	while (sem_wait(&h->go))
		;
}

/* CONNECT is there with the nonce, before the server could answer that: one after the other. */
static void fd__connect_before_the_answer(void **state)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	struct gx_hello_lanes l;
	char addr[32];
	int port = server_listen(addr);

	raw_lanes_fill(&l, "shm");
	l.lanes[0].port.fd = l.lanes[1].port.fd = 0;
	for (unsigned i = 0; i < 8; i++) {
		struct hold hold;
		struct gx_hello h;
		int fd = raw_client(port, &h), un = raw_unix(h.unix_name);
		uint32_t len = gx_hello_lanes_put(b, GX_HELLO_CONNECT, &l);

		assert_true(un >= 0);
		for (unsigned k = 0; k < 3; k++) /* it has been let in, and is listened to */
			gx_uring_run_wait(server->gx.uring, nop_run, NULL);
		sem_init(&hold.held, 0, 0);
		sem_init(&hold.go, 0, 0);
		assert_int_equal(gx_uring_run(server->gx.uring, hold_run, &hold), 0);
		while (sem_wait(&hold.held))
			;
		assert_true(raw_unix_send(un, h.nonce, sizeof(h.nonce), NULL, 0));
		assert_true(raw_send(fd, b, len));
		sem_post(&hold.go);
		assert_int_equal(raw_recv_some(un, b, sizeof(b)), sizeof(h.nonce));
		assert_int_equal(raw_recv(fd, b, &len), GX_HELLO_ACCEPT);
		assert_true(raw_unix_send(un, h.nonce, sizeof(h.nonce), client->lane_fd, CORES));
		assert_int_equal(raw_recv_some(un, b, sizeof(b)), sizeof(h.nonce));
		assert_int_equal(raw_recv(fd, b, &len), GX_HELLO_UP);
		close(un);
		close(fd);
	}
	server_lives(addr);
}

static void fd__client_leaves(void **state)
{
	struct gx_hello_lanes l;
	struct gx_hello h;
	char addr[32];
	int port = server_listen(addr), fd, un;

	raw_lanes_fill(&l, "shm");
	fd = raw_client_lanes(port, &h, &l, &un);
	close(fd);
	wait_down(server, 1, -ECONNRESET, GX_REASON_PEER_LOST);
	assert_int_equal(raw_recv_some(un, &l, 1), 0); /* with it goes what proved it */
	assert_false(raw_unix_send(un, h.nonce, sizeof(h.nonce), client->lane_fd, CORES));
	close(un);
	un = raw_unix(h.unix_name);
	assert_true(raw_unix_send(un, h.nonce, sizeof(h.nonce), client->lane_fd, CORES));
	wait_bad(server, 1);
	close(un);
}

/* Runs @fn in a process of another user. Return: what it returns, 0 to 255. */
static int as_nobody(int (*fn)(const void *arg), const void *arg)
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (!pid)
		_exit(setuid(NOBODY) ? 255 : fn(arg));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* Shows the nonce. Return: bytes of the answer, 100 and more for a refusal that says what to do. */
static int nobody_shows(const void *arg)
{
	const struct gx_hello *h = arg;
	char b[512] = "";
	int fd = raw_unix(h->unix_name);
	ssize_t n;

	if (fd < 0)
		return 255;
	raw_unix_send(fd, h->nonce, sizeof(h->nonce), NULL, 0); /* the refusal may be sooner */
	n = raw_recv_some(fd, b, sizeof(b) - 1);
	if (n < 0 && errno == ECONNRESET)
		n = raw_recv_some(fd, b, sizeof(b) - 1);
	close(fd);
	if (n <= 16)
		return (int)GX_MAX(n, 0);
	if (memmem(b, (size_t)n, "user namespace", 14))
		return memmem(b, (size_t)n, "allow_uids", 10) ? 98 : 101;
	return memmem(b, (size_t)n, "gx_opts.allow_uids 65534", 24) ? 100 : 99;
}

static void fd__uid_of_the_client(void **state)
{
	static const unsigned allowed[] = {1, NOBODY};
	struct gx_hello h;
	char addr[32];
	int port, fd;

	if (geteuid())
		skip();
	port = server_listen(addr);
	fd = raw_client(port, &h);
	assert_int_equal(as_nobody(nobody_shows, &h), 100);
	assert_int_equal(bad_count(server), 1);
	CTL_SET(server, gx.opts.allow_uids, allowed);
	CTL_SET(server, gx.opts.nr_allow_uids, 2);
	assert_int_equal(as_nobody(nobody_shows, &h), 16);
	close(fd);
}

/* A user namespace in which this process is user 65534, as the only one. */
static bool userns_enter(void)
{
	static const char map[] = "65534 0 1";
	int fd;
	bool ok;

	if (unshare(CLONE_NEWUSER))
		return false;
	fd = open("/proc/self/uid_map", O_WRONLY);
	ok = write(fd, map, sizeof(map) - 1) == sizeof(map) - 1;
	close(fd);
	return ok && geteuid() == NOBODY;
}

/* A process that has run @enter runs @fn. Return: what it returns, 0 to 254; 255: it cannot enter. */
static int in_process(bool (*enter)(void), int (*fn)(const void *arg), const void *arg)
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (!pid)
		_exit(enter() ? fn(arg) : 255);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static int userns_users(const void *arg)
{
	if (!gx_uid_is_nobody(NOBODY) || gx_uid_is_own(NOBODY))
		return 1;
	return gx_uid_is_nobody(0) || gx_uid_is_nobody(NOBODY - 1) ? 2 : 0;
}

/* Without a map at all our own process comes as nobody, too. */
static bool userns_unmapped(void)
{
	return !unshare(CLONE_NEWUSER) && geteuid() == NOBODY;
}

static void fd__nobody_is_a_user_where_all_are_mapped(void **state)
{
	int ret = in_process(userns_enter, userns_users, NULL);

	if (ret == 255)
		skip();
	assert_int_equal(ret, 0);
	assert_int_equal(in_process(userns_unmapped, userns_users, NULL), 0);
	assert_true(gx_uid_is_own(geteuid()) || geteuid() == NOBODY);
	if (!access("/proc/1/root/.", R_OK)) /* root of all: all are mapped */
		assert_false(gx_uid_is_nobody(NOBODY));
}

struct two_pipes {
	int port[2], end[2];
};

static int userns_serves(const void *arg)
{
	const struct two_pipes *p = arg;
	char addr[32];
	int port;

	close(p->end[1]);
	server = fake_open("userns");
	port = server_listen(addr);
	if (write(p->port[1], &port, sizeof(port)) != sizeof(port))
		return 1;
	return (int)read(p->end[0], &port, 1);
}

/* A server that is 65534 in its user namespace: all users of the host come to it as that one. */
static void fd__client_of_no_mapped_user(void **state)
{
	struct two_pipes p;
	struct gx_hello h;
	int port, fd, status, stranger, own;
	pid_t pid;

	if (geteuid() || in_process(userns_enter, userns_users, NULL))
		skip();
	assert_int_equal(pipe(p.port) || pipe(p.end), 0);
	pid = fork();
	if (!pid)
		_exit(userns_enter() ? userns_serves(&p) : 255);
	assert_int_equal(read(p.port[0], &port, sizeof(port)), sizeof(port));
	fd = raw_client(port, &h);
	stranger = as_nobody(nobody_shows, &h);
	own = nobody_shows(&h); /* the user that is mapped to it */
	close(fd);
	for (unsigned i = 0; i < 2; i++)
		close(p.port[i]), close(p.end[i]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(stranger, 101);
	assert_int_equal(own, 101);
}

/* The rule is one for all ports: nothing is to be had over any without having shown whose one is,
 * and nothing was made for it. */
static void fd__not_shown(void **state)
{
	static const char *const ports[] = {"udp", "shm"};
	static uint8_t b[GX_HELLO_FRAME_MAX];
	struct gx_hello_lanes l;
	struct gx_hello h;
	char addr[32];
	int port = server_listen(addr);

	for (unsigned i = 0; i < GX_ARRAY_SIZE(ports); i++) {
		int fd = raw_client(port, &h);

		raw_lanes_fill(&l, ports[i]);
		assert_true(raw_send(fd, b, gx_hello_lanes_put(b, GX_HELLO_CONNECT, &l)));
		raw_recv_error(fd, -EPERM, GX_REASON_USER, "did not show");
		close(fd);
	}
	wait_down(server, 2, -EPERM, GX_REASON_USER);
	assert_int_equal(server->nr_opened, 0);
	server_lives(addr);
}

/* Whoever comes is served, and still shares no memory. */
static void fd__not_shown_to_an_insecure_server(void **state)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	struct gx_hello_lanes l;
	uint32_t len;
	char addr[32];
	int port = server_listen(addr);

	CTL_SET(server, gx.opts.insecure, true);
	CTL_SET(server, ports[1].caps.flags, GX_PORT_LOCAL);
	for (unsigned i = 0; i < 3; i++) { /* udp, shm, memory mapped */
		int fd = raw_connect(port);

		assert_true(raw_send(fd, b, raw_hello(b, GX_HELLO_VERSION)));
		assert_int_equal(raw_recv_any(fd, b, &len), GX_HELLO_HELLO);
		raw_lanes_fill(&l, i ? "shm" : "udp");
		l.link = i == 2 ? GX_LINK_LOCAL : GX_LINK_PACKET;
		assert_true(raw_send(fd, b, gx_hello_lanes_put(b, GX_HELLO_CONNECT, &l)));
		if (i)
			raw_recv_error(fd, -ENODEV, GX_REASON_OTHER_HOST, "one host only");
		else
			assert_int_equal(raw_recv(fd, b, &len), GX_HELLO_ACCEPT);
		close(fd);
	}
}

/* ---- Another user's client, and one behind a forwarder ---- */

enum { CAME_UP, CAME_IN_CLEAR, NOT_SHOWN, NOT_SERVED, ODD = 100 };

struct comer {
	int port; /* the server's */
	bool key, insecure, far;
};

/* How it went, as the client sees it. */
static int comer_result(void)
{
	for (unsigned i = 0; i < WAIT_S * 100 && !client->nr_up && !client->nr_down; i++)
		sleep_ms(10);
	if (client->nr_up) {
		const struct gx_conn *c = client->up;
		bool sealed = c->agreed.integrity == GX_INTEGRITY_GCM;

		if (strcmp(c->agreed.port, "udp") || sealed != !!c->secret)
			return ODD;
		return CAME_UP;
	}
	if (client->reason == GX_REASON_INSECURE)
		return CAME_IN_CLEAR;
	if (client->reason != GX_REASON_USER)
		return ODD + 1;
	return strstr(client->text, "that it is of a user who is served") ? NOT_SHOWN
	       : strstr(client->text, "opts.allow_uids 65534")		  ? NOT_SERVED
									  : ODD + 2;
}

static int comer_comes(const struct comer *c, const char *addr)
{
	server = client = fake_open("comer"); /* the rig asks both */
	client->gx.opts.insecure = c->insecure;
	client->ports[1].caps.flags = c->far ? 0 : GX_PORT_LOCAL;
	if (c->key)
		hand_key(&client->own, "kv", hand_secret);
	client_connect(addr,
		       &(struct gx_connect_opts){.link = "packet"}); /* one socket is forwarded */
	return comer_result();
}

static bool nobody_enter(void)
{
	return !setuid(NOBODY);
}

static int comer_direct(const void *arg)
{
	const struct comer *c = arg;
	char addr[32];

	snprintf(addr, sizeof(addr), "127.0.0.1:%d", c->port);
	return comer_comes(c, addr);
}

static int server_netns;

/* A network of its own, where the server's Unix socket is not. */
static bool netns_enter(void)
{
	struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
	bool ok;
	int fd;

	server_netns = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	if (unshare(CLONE_NEWNET))
		return false;
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	ok = !ioctl(fd, SIOCSIFFLAGS, &lo);
	close(fd);
	return ok;
}

struct forward {
	int fd, port; /* listens at the client's loopback; of the server's */
};

static void *forward_main(void *arg)
{
	const struct forward *f = arg;
	static uint8_t b[4096];
	struct pollfd p[2] = {{.events = POLLIN}, {.events = POLLIN}};

	p[0].fd = accept(f->fd, NULL, NULL);
	if (setns(server_netns, CLONE_NEWNET))
		return NULL;
	p[1].fd = raw_connect(f->port);
	while (poll(p, 2, -1) > 0) {
		for (unsigned i = 0; i < 2; i++) {
			ssize_t n = p[i].revents ? recv(p[i].fd, b, sizeof(b), 0) : 0;

			if (p[i].revents && (n <= 0 || !raw_send(p[!i].fd, b, (size_t)n)))
				return NULL;
		}
	}
	return NULL;
}

static int comer_by_forward(const void *arg)
{
	const struct comer *c = arg;
	static struct forward f;
	pthread_t thread;
	char addr[32];

	f.port = c->port;
	f.fd = raw_listen_at(addr);
	if (pthread_create(&thread, NULL, forward_main, &f))
		return ODD + 3;
	return comer_comes(c, addr);
}

/* A key, or both ends without care, let in from anywhere; nothing else does that. */
static void comers(bool far, const int expected[5])
{
	static const struct {
		bool key, client_insecure, server_insecure;
	} ways[] = {{true}, {false}, {false, true}, {false, false, true}, {false, true, true}};
	char addr[32];
	struct comer c = {.port = server_listen(addr), .far = far};

	hand_key(&server->served, "kv", hand_secret);
	fake_seals(true);
	CTL_SET(server, ports[1].caps.flags, far ? 0 : GX_PORT_LOCAL);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(ways); i++) {
		int ret;

		c.key = ways[i].key;
		c.insecure = ways[i].client_insecure;
		CTL_SET(server, gx.opts.insecure, ways[i].server_insecure);
		ret = in_process(far ? netns_enter : nobody_enter,
				 far ? comer_by_forward : comer_direct, &c);
		if (ret == 255)
			skip();
		if (ret != expected[i])
			fail_msg("way %u: %d, and not %d", i, ret, expected[i]);
	}
}

static void fd__another_users_client(void **state)
{
	static const int expected[] = {CAME_UP, NOT_SERVED, NOT_SHOWN, NOT_SERVED, CAME_UP};

	if (geteuid())
		skip();
	comers(false, expected);
}

static void fd__client_behind_a_forwarder(void **state)
{
	static const int expected[] = {CAME_UP, NOT_SHOWN, NOT_SHOWN, CAME_IN_CLEAR, CAME_UP};

	comers(true, expected);
}

static void alarm_ignore(int signo)
{
}

struct lingerer {
	char name[GX_NAME_MAX];
	int port; /* of a listener that reads nothing */
};

/* Brings a TCP socket that close() waits long for, and a nonce of nobody's. */
static int nobody_lingers(const void *arg)
{
	const struct linger linger = {.l_onoff = 1, .l_linger = 2 * WAIT_S};
	const struct lingerer *l = arg;
	static char b[65536];
	int fd = raw_connect(l->port), un = raw_unix(l->name);

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	while (send(fd, b, sizeof(b), MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
		;
	raw_unix_send(un, b, 16, &fd, 1); /* may be refused already: then again */
	close(un);
	un = raw_unix(l->name);
	raw_unix_send(un, b, 16, &fd, 1);
	signal(SIGALRM, alarm_ignore); /* should ours be the last reference */
	alarm(1);
	close(fd);
	return 0;
}

/* What a stranger sends is not looked at, and cannot hold the control thread. */
static void fd__strangers_descriptors_that_linger(void **state)
{
	struct lingerer l;
	uint64_t start_ns;
	char addr[32];
	int fd;

	if (geteuid())
		skip();
	server_listen(addr);
	fd = raw_listen(&l.port);
	snprintf(l.name, sizeof(l.name), "%s", server->gx.ctl->unix_name);
	start_ns = gx_now_ns();
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(as_nobody(nobody_lingers, &l), 0);
	server_lives(addr);
	assert_true(gx_now_ns() - start_ns < WAIT_S * 500000000ull);
	close(fd); /* and with it what holds the closers */
}

/* Connections of our own user that say nothing: the oldest go, and who speaks is served. */
static void fd__silent_ones(void **state)
{
	char addr[32], name[GX_NAME_MAX];
	int fds[200];

	server_listen(addr);
	snprintf(name, sizeof(name), "%s", server->gx.ctl->unix_name);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(fds); i++) {
		fds[i] = raw_unix(name);
		assert_true(fds[i] >= 0);
	}
	server_lives(addr);
	assert_true(raw_has_ended(fds[0]));
	assert_false(raw_has_ended(fds[GX_ARRAY_SIZE(fds) - 1]));
	for (unsigned i = 0; i < GX_ARRAY_SIZE(fds); i++)
		close(fds[i]);
}

/* An abstract Unix socket for @h, bound; who calls listen() is its owner. */
static int raw_unix_bind(struct gx_hello *h)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	int un = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	int len = snprintf(h->unix_name, sizeof(h->unix_name), "gx-test-%d-raw", getpid());

	memcpy(sa.sun_path + 1, h->unix_name, (size_t)len);
	assert_int_equal(
		bind(un, (struct sockaddr *)&sa,
		     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1) + (socklen_t)len),
		0);
	return un;
}

/* A server made by hand whose Unix socket is @un, @h's: up to ACCEPT, with the client's nonce in
 * @nonce, the lanes in @l, and where the client has shown itself in @pass. Return: the bootstrap
 * socket. */
static int raw_server_lanes(const struct gx_hello *h, int un, uint8_t nonce[16],
			    struct gx_hello_lanes *l, int *pass)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	char addr[32];
	int fd = raw_listen_at(addr), peer;
	struct gx_hello theirs;
	uint32_t len;

	client_connect(addr, NULL);
	peer = raw_accept(fd);
	close(fd);
	assert_int_equal(raw_recv(peer, b, &len), GX_HELLO_HELLO);
	assert_int_equal(gx_hello_get(b, len, &theirs), 0);
	memcpy(nonce, theirs.nonce, 16);
	assert_true(raw_send(peer, b, gx_hello_put(b, h)));
	*pass = raw_accept(un);
	assert_int_equal(raw_recv_some(*pass, b, sizeof(b)), 16);
	assert_memory_equal(b, h->nonce, 16);
	assert_true(raw_send(*pass, nonce, 16));
	assert_int_equal(raw_recv(peer, b, &len), GX_HELLO_CONNECT);
	assert_int_equal(gx_hello_lanes_get(b, len, l), 0);
	l->chunk_b -= l->chunk_b % l->quantum;
	assert_true(raw_send(peer, b, gx_hello_lanes_put(b, GX_HELLO_ACCEPT, l)));
	return peer;
}

/* The Unix socket that the server names is another user's: no memory is shared with it. */
static void fd__uid_of_the_server(void **state)
{
	struct gx_hello_lanes l;
	uint8_t nonce[16], b[64];
	struct gx_hello h;
	int peer, un, pass, status;
	pid_t pid;

	if (geteuid())
		skip();
	raw_hello_fill(&h);
	un = raw_unix_bind(&h);
	pid = fork(); /* the kernel notes who called listen() */
	if (!pid)
		_exit(setuid(NOBODY) || listen(un, 4));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	peer = raw_server_lanes(&h, un, nonce, &l, &pass);
	assert_string_equal(l.port, "udp");
	assert_true(raw_send(peer, b, gx_hello_plain_put(b, GX_HELLO_UP, NULL, 0)));
	wait_up(client, 1);
	assert_says(client->up->why, "no shm: the server runs as uid 65534");
	close(pass);
	close(peer);
	wait_down(client, 1, -ECONNRESET, GX_REASON_PEER_LOST);
	close(un);
}

struct raw_userns {
	struct gx_hello h;
	int un;
};

static int userns_connects(const void *arg)
{
	const struct raw_userns *r = arg;
	struct gx_hello_lanes l;
	uint8_t nonce[16];
	int pass;

	server = client = fake_open("userns"); /* the rig asks both */
	raw_server_lanes(&r->h, r->un, nonce, &l, &pass);
	if (strcmp(l.port, "udp"))
		return 1;
	return strstr(client->gx.conns->why, "no shm: uid 65534 is each user") ? 0 : 2;
}

/* The client is 65534 in its user namespace, and so is whoever made the server's socket. */
static void fd__server_of_no_mapped_user(void **state)
{
	struct raw_userns r;

	if (geteuid() || in_process(userns_enter, userns_users, NULL))
		skip();
	raw_hello_fill(&r.h);
	r.un = raw_unix_bind(&r.h);
	assert_int_equal(listen(r.un, 4), 0);
	assert_int_equal(in_process(userns_enter, userns_connects, &r), 0);
	close(r.un);
}

/* A server made by hand that has taken the client's descriptors. */
struct raw_server {
	uint8_t nonce[16];
	struct gx_hello_lanes lanes;
	int peer, un, pass; /* bootstrap, the Unix socket, the exchange on it */
};

static void raw_server_open(struct raw_server *s)
{
	struct gx_hello h;
	uint8_t b[16];

	raw_hello_fill(&h);
	s->un = raw_unix_bind(&h);
	assert_int_equal(listen(s->un, 4), 0);
	s->peer = raw_server_lanes(&h, s->un, s->nonce, &s->lanes, &s->pass);
	assert_int_equal(raw_recv_some(s->pass, b, sizeof(b)), sizeof(b));
}

static void raw_server_close(struct raw_server *s)
{
	close(s->peer);
	close(s->un);
}

/* The cause comes on the other socket, later than the effect. */
static void fd__server_breaks_off_and_says_why(void **state)
{
	struct gx_hello_error e = {.err = -EMFILE,
				   .reason = GX_REASON_FULL,
				   .text = "the server has no descriptor left"};
	uint8_t b[GX_HELLO_FRAME_MAX];
	struct raw_server s;

	raw_server_open(&s);
	close(s.pass);
	sleep_ms(100);
	assert_true(raw_send(s.peer, b, gx_hello_error_put(b, &e)));
	wait_down(client, 1, -EMFILE, GX_REASON_FULL);
	assert_says(client->text, "says: the server has no descriptor left");
	raw_server_close(&s);
}

static void fd__server_breaks_off_without_a_word(void **state)
{
	struct raw_server s;

	raw_server_open(&s);
	close(s.pass);
	raw_recv_error(s.peer, -EPROTO, GX_REASON_SOCKET, "closed without an answer");
	wait_down(client, 1, -EPROTO, GX_REASON_SOCKET);
	assert_says(client->text, "the server's descriptors did not come: closed without");
	raw_server_close(&s);
}

/* An empty message reads like the end-of-file that the kernel may put before the last message. */
static void fd__answer_behind_an_end_of_file(void **state)
{
	uint8_t b[GX_HELLO_FRAME_MAX];
	struct raw_server s;

	raw_server_open(&s);
	assert_int_equal(send(s.pass, b, 0, MSG_NOSIGNAL), 0);
	assert_true(
		raw_unix_send(s.pass, s.nonce, sizeof(s.nonce), server->lane_fd, s.lanes.nr_lanes));
	close(s.pass);
	assert_true(raw_send(s.peer, b, gx_hello_plain_put(b, GX_HELLO_UP, NULL, 0)));
	wait_up(client, 1);
	raw_server_close(&s);
	wait_down(client, 1, -ECONNRESET, GX_REASON_PEER_LOST);
}

/* Nobody else at this end hears of a client that did not come up. */
static void fd__reason_in_the_log(void **state)
{
	struct gx_hello_lanes l;
	struct gx_hello h;
	char addr[32], text[256] = "";
	int port = server_listen(addr), fd, un;

	raw_lanes_fill(&l, "shm");
	gx_log_sink(log_keep, text);
	gx_log_level_set(GX_LOG_WARN);
	fd = raw_client_lanes(port, &h, &l, &un);
	assert_true(raw_unix_send(un, h.nonce, sizeof(h.nonce), client->lane_fd, 1));
	raw_recv_error(fd, -EPROTO, GX_REASON_PROTOCOL, "wrong number of descriptors");
	wait_down(server, 1, -EPROTO, GX_REASON_PROTOCOL);
	gx_log_sink(NULL, NULL);
	gx_log_level_set(GX_LOG_ERR);
	assert_says(text, "did not come up: wrong number of descriptors");
	close(un);
	close(fd);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(fd__strangers),
		TEST(fd__wrong_number),
		TEST(fd__connect_before_the_answer),
		TEST(fd__client_leaves),
		TEST(fd__uid_of_the_client),
		TEST(fd__nobody_is_a_user_where_all_are_mapped),
		TEST(fd__client_of_no_mapped_user),
		TEST(fd__server_of_no_mapped_user),
		TEST(fd__not_shown),
		TEST(fd__not_shown_to_an_insecure_server),
		TEST(fd__another_users_client),
		TEST(fd__client_behind_a_forwarder),
		TEST(fd__strangers_descriptors_that_linger),
		TEST(fd__silent_ones),
		TEST(fd__uid_of_the_server),
		TEST(fd__server_breaks_off_and_says_why),
		TEST(fd__server_breaks_off_without_a_word),
		TEST(fd__answer_behind_an_end_of_file),
		TEST(fd__reason_in_the_log),
	};

	return rig_run("ctl_fd", tests, GX_ARRAY_SIZE(tests));
}
