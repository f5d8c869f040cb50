/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control half over real sockets on loopback, on both methods: two contexts of one process, or
 * one context and a peer made by hand. The data plane's side (conn_*) is faked here: lanes that
 * carry a memfd or not. Every test ends by counting open descriptors and connections.
 */
#include <errno.h>
#include <ifaddrs.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "control/ctl.h"
#include "control/fake_link.h"

#include <cmocka.h>

#include "kit/common_fds.h"

#define CORES	 2
#define WAIT_S	 30
#define MSGS_MAX 512
#define CROWD	 300 /* clients at once: more than there are places on the way up */
#define NOBODY	 65534u
#define HDR_B	 8

/* A context with a faked data plane. owner: its control thread, events under lock */
struct fake {
	struct gx gx;
	struct gx_port ports[GX_HELLO_PORTS];
	struct gx_core cores[CORES];
	struct gx_mem mem;
	int lane_fd[CORES];		  /* what the port "shm" gives to each peer */
	int open_err;			  /* conn_lane_open() fails with it */
	int connect_err;		  /* conn_lane_connect() fails with it */
	_Atomic bool fault;		  /* the next conn_tick() sees a fault */
	char seen[CORES][32];		  /* what the peer's descriptors hold */
	unsigned nr_opened, nr_connected; /* lanes */
	bool close_on_msg;
	/* under lock */
	pthread_mutex_t lock;
	pthread_cond_t cond;
	_Atomic unsigned nr_up, nr_down, nr_msgs;
	struct gx_conn *up;
	int err;
	enum gx_reason reason;
	char text[256];
	uint32_t msg_len[MSGS_MAX];
	uint32_t msg_first[MSGS_MAX]; /* the first four bytes */
};

static struct fake *server, *client;
static enum gx_uring_method method;
static unsigned nr_fds_before;
static _Thread_local char error_text[512];
static _Thread_local enum gx_reason error_reason;

static struct fake *fake_of(struct gx *gx)
{
	return GX_CONTAINER_OF(gx, struct fake, gx);
}

/* ---- The data plane, faked ---- */

static int error_set(enum gx_reason reason, int err, const char *fmt, va_list ap)
{
	char text[sizeof(error_text)];

	vsnprintf(text, sizeof(text), fmt, ap);
	memcpy(error_text, text, sizeof(text));
	error_reason = reason;
	return err;
}

int gx_fail(int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	err = error_set(GX_REASON_NONE, err, fmt, ap);
	va_end(ap);
	return err;
}

int gx_refuse(enum gx_reason reason, int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	err = error_set(reason, err, fmt, ap);
	va_end(ap);
	return err;
}

enum gx_reason core_reason(void)
{
	return error_reason;
}

const char *gx_error(void)
{
	return error_text;
}

struct gx_conn *conn_new(struct gx *gx, bool is_server)
{
	struct gx_conn *c = calloc(1, sizeof(*c));

	assert_non_null(c);
	c->gx = gx;
	c->server = is_server;
	c->link = gx_links[0];
	c->next = gx->conns;
	gx->conns = c;
	return c;
}

int conn_lane_open(struct gx_conn *c, unsigned lane, struct gx_hello_lane *local)
{
	struct fake *f = fake_of(c->gx);

	f->nr_opened++;
	assert_true(lane == c->nr_lanes && c->port < c->gx->nr_ports);
	if (f->open_err && lane == CORES - 1)
		return gx_fail(f->open_err, "no more lanes for you");
	c->nr_lanes = lane + 1;
	*local = (struct gx_hello_lane){
		.cid = 100 + lane, .credit = 8, .psn = 1ull << 40, .salt = 7};
	local->port.fd = -1;
	if (c->link->port == GX_LINK_PORT_NONE)
		return 0;
	local->port.len = 4;
	memcpy(local->port.b, "addr", 4);
	local->port.fd =
		c->gx->port[c->port].port->caps.flags & GX_PORT_LOCAL ? f->lane_fd[lane] : -1;
	return 0;
}

int conn_lane_connect(struct gx_conn *c, unsigned lane, const struct gx_hello_lane *remote)
{
	struct fake *f = fake_of(c->gx);

	assert_true(lane < c->nr_lanes && c->agreed.quantum && c->agreed.nr_lanes == c->nr_lanes);
	if (remote->port.fd >= 0) {
		assert_true(pread(remote->port.fd, f->seen[lane], sizeof(f->seen[0]) - 1, 0) > 0);
		close(remote->port.fd);
	}
	f->nr_connected++;
	return f->connect_err ? gx_fail(f->connect_err, "this lane leads nowhere") : 0;
}

static void state_set(struct gx_conn *c, enum gx_conn_state state)
{
	pthread_mutex_lock(&c->gx->wait_lock);
	c->state = state;
	pthread_mutex_unlock(&c->gx->wait_lock);
}

void conn_up(struct gx_conn *c)
{
	struct fake *f = fake_of(c->gx);

	assert_int_equal(c->state, GX_CONN_STATE_CONNECTING);
	state_set(c, GX_CONN_STATE_UP);
	pthread_mutex_lock(&f->lock);
	f->up = c;
	f->nr_up++;
	pthread_cond_broadcast(&f->cond);
	pthread_mutex_unlock(&f->lock);
}

void conn_down(struct gx_conn *c, enum gx_reason reason, int err, const char *fmt, ...)
{
	struct fake *f = fake_of(c->gx);
	va_list ap;

	if (c->state == GX_CONN_STATE_DOWN)
		return;
	va_start(ap, fmt);
	vsnprintf(c->text, sizeof(c->text), fmt, ap);
	va_end(ap);
	c->err = err;
	c->reason = reason;
	state_set(c, GX_CONN_STATE_DOWN);
	pthread_mutex_lock(&f->lock);
	f->err = err;
	f->reason = reason;
	memcpy(f->text, c->text, sizeof(f->text));
	f->nr_down++;
	pthread_cond_broadcast(&f->cond);
	pthread_mutex_unlock(&f->lock);
}

void conn_tick(struct gx_conn *c)
{
	struct fake *f = fake_of(c->gx);

	if (!f->fault || c->state != GX_CONN_STATE_UP)
		return;
	conn_down(c, GX_REASON_PEER_SILENT, -ETIMEDOUT, "no packet came for 5 s");
}

void core_say(struct gx_text *text, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	text->at += (size_t)vsnprintf(text->buf + text->at, text->room - text->at, fmt, ap);
	va_end(ap);
}

void core_why(char why[CORE_WHY_MAX], const char *fmt, ...)
{
	size_t len = strlen(why);
	va_list ap;

	va_start(ap, fmt);
	len += (size_t)snprintf(why + len, CORE_WHY_MAX - len, "%s", len ? "; " : "");
	vsnprintf(why + len, CORE_WHY_MAX - len, fmt, ap);
	va_end(ap);
}

void core_watch(struct gx *gx, uint64_t now_ns)
{
}

bool conn_is_over(struct gx_conn *c)
{
	return c->state == GX_CONN_STATE_DOWN && (c->server || c->user_closed);
}

bool conn_reap(struct gx_conn *c)
{
	struct gx_conn **p;

	for (p = &c->gx->conns; *p != c; p = &(*p)->next)
		;
	*p = c->next;
	c->link->conn->close(c);
	free(c);
	return true;
}

void mem_reap(struct gx *gx, bool all)
{
}

/* ---- Fixture ---- */

static void fake_on_msg(void *arg, struct gx_conn *c, const void *data, uint32_t len)
{
	struct fake *f = arg;

	pthread_mutex_lock(&f->lock);
	assert_true(f->nr_msgs < MSGS_MAX);
	f->msg_len[f->nr_msgs] = len;
	memcpy(&f->msg_first[f->nr_msgs], data, GX_MIN(len, 4u));
	f->nr_msgs++;
	pthread_cond_broadcast(&f->cond);
	pthread_mutex_unlock(&f->lock);
	if (f->close_on_msg) {
		ctl_bye(c);
		conn_down(c, GX_REASON_CLOSED, 0, "closed by on_msg");
		assert_memory_equal(&f->msg_first[f->nr_msgs - 1], data, GX_MIN(len, 4u));
	}
}

static void fake_port_add(struct fake *f, const char *name, uint32_t flags, uint32_t best,
			  uint32_t max)
{
	unsigned i = f->gx.nr_ports++;

	f->ports[i].caps = (struct gx_port_caps){
		.payload_max = max, .payload_best = best, .rx_slots = 64, .flags = flags};
	snprintf(f->gx.port[i].name, sizeof(f->gx.port[i].name), "%s", name);
	snprintf(f->gx.port[i].device, sizeof(f->gx.port[i].device), "%s", name);
	snprintf(f->gx.port[i].match, sizeof(f->gx.port[i].match), "%s", name);
	f->gx.port[i].port = &f->ports[i];
}

static struct fake *fake_open(const char *name)
{
	struct fake *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	pthread_mutex_init(&f->lock, NULL);
	pthread_mutex_init(&f->gx.wait_lock, NULL);
	pthread_cond_init(&f->cond, NULL);
	f->gx.opts =
		(struct gx_opts){.peer_timeout_ns = 5000000000u, .on_msg = fake_on_msg, .arg = f};
	core_groups_point(&f->gx.opts, &f->gx.groups);
	f->gx.groups.packet.chunk_b = 512 << 10;
	f->gx.groups.packet.window = 16;
	snprintf(f->gx.instance, sizeof(f->gx.instance), "gx-test-%d-%s", getpid(), name);
	f->gx.nr_cores = CORES;
	for (unsigned i = 0; i < CORES; i++) {
		f->gx.core[i] = &f->cores[i];
		f->lane_fd[i] = memfd_create("lane", MFD_CLOEXEC);
		assert_true(dprintf(f->lane_fd[i], "%s lane %u", name, i) > 0);
	}
	f->mem = (struct gx_mem){.len = 4096, .access = GX_ACCESS_PUT, .token = 0x1234, .fd = -1};
	snprintf(f->mem.name, sizeof(f->mem.name), "mem-of-%s", name);
	f->gx.region[3] = &f->mem;
	fake_port_add(f, "shm", GX_PORT_LOCAL | GX_PORT_LOSSLESS, 4096, 8192);
	fake_port_add(f, "udp", 0, 1392, 8928);
	assert_int_equal(gx_uring_open(method, &f->gx.uring), 0);
	assert_int_equal(ctl_open(&f->gx), 0);
	return f;
}

static void fake_close(struct fake *f)
{
	struct gx_conn *c, *next;

	if (!f)
		return;
	ctl_close(&f->gx);
	for (c = f->gx.conns; c; c = next) {
		next = c->next;
		assert_true(ctl_conn_free(c));
		c->link->conn->close(c);
		free(c);
	}
	gx_uring_close(f->gx.uring);
	for (unsigned i = 0; i < CORES; i++)
		close(f->lane_fd[i]);
	free(f);
}

static int setup(void **state)
{
	method = *(enum gx_uring_method *)*state;
	fake_reset();
	gx_log_level_set(GX_LOG_ERR);
	nr_fds_before = common_fds_count();
	server = fake_open("server");
	client = fake_open("client");
	return 0;
}

static void sleep_ms(unsigned ms)
{
	const struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000l};

	nanosleep(&ts, NULL);
}

static int teardown(void **state)
{
	fake_close(client);
	fake_close(server);
	server = client = NULL;
	/* A thread of gx may have yet to close what a stranger has sent. */
	for (unsigned i = 0; i < WAIT_S * 100 && common_fds_count() != nr_fds_before; i++)
		sleep_ms(10);
	assert_int_equal(common_fds_count(), nr_fds_before);
	return 0;
}

/* ---- Waiting ---- */

static bool fake_wait(struct fake *f, const _Atomic unsigned *counter, unsigned n)
{
	struct timespec until;
	int ret = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += WAIT_S;
	pthread_mutex_lock(&f->lock);
	while (*counter < n && !ret)
		ret = pthread_cond_timedwait(&f->cond, &f->lock, &until);
	pthread_mutex_unlock(&f->lock);
	return !ret;
}

static void wait_up(struct fake *f, unsigned n)
{
	if (!fake_wait(f, &f->nr_up, n))
		fail_msg("not up: %s", f->text);
}

static void wait_down(struct fake *f, unsigned n, int err, enum gx_reason reason)
{
	assert_true(fake_wait(f, &f->nr_down, n));
	if (f->err != err)
		fail_msg("down with %d, expected %d: %s", f->err, err, f->text);
	if (f->reason != reason)
		fail_msg("down for reason %d, expected %d: %s", f->reason, reason, f->text);
}

static void assert_says(const char *text, const char *what)
{
	if (!strstr(text, what))
		fail_msg("'%s' does not say '%s'", text, what);
}

static uint64_t bad_count(struct fake *f)
{
	return gx_stat_get(&f->gx.ctl_stats, GX_STAT_CTL_BAD);
}

static void wait_bad(struct fake *f, uint64_t n)
{
	for (unsigned i = 0; i < WAIT_S * 100 && bad_count(f) < n; i++)
		sleep_ms(10);
	assert_true(bad_count(f) >= n);
}

static int conns_count_run(void *arg)
{
	struct fake *f = arg;
	int n = 0;

	for (struct ctl_conn *cc = f->gx.ctl->conns; cc; cc = cc->next)
		n++;
	return n;
}

static int conns_count(struct fake *f)
{
	return gx_uring_run_wait(f->gx.uring, conns_count_run, f);
}

static void wait_conns(struct fake *f, int n)
{
	for (unsigned i = 0; i < WAIT_S * 100 && conns_count(f) != n; i++)
		sleep_ms(10);
	assert_int_equal(conns_count(f), n);
}

static void wait_conns_least(struct fake *f, int n)
{
	for (unsigned i = 0; i < WAIT_S * 100 && conns_count(f) < n; i++)
		sleep_ms(10);
	assert_true(conns_count(f) >= n);
}

static void log_keep(void *arg, int level, const char *line)
{
	char *text = arg;

	if (level == GX_LOG_WARN)
		snprintf(text, 256, "%s", line);
}

static int nop_run(void *arg)
{
	return 0;
}

/* Change something that the control thread reads. */
#define CTL_SET(f, field, value)                                                                   \
	do {                                                                                       \
		gx_uring_run_wait((f)->gx.uring, nop_run, NULL);                                   \
		(f)->field = (value);                                                              \
		gx_uring_run_wait((f)->gx.uring, nop_run, NULL);                                   \
	} while (0)

/* ---- Connecting ---- */

static const struct gx_port_name udp[] = {{"udp"}, {"udp"}}, shm = {"shm"},
				 shms[] = {{"shm2"}, {"shm3"}}, dpdk_x = {"dpdk", "x"},
				 card = {"dpdk", "0000:01:00.0"};

static int conn_new_run(void *arg)
{
	struct gx_conn **c = arg;

	*c = conn_new(&client->gx, false);
	return 0;
}

static struct gx_conn *client_conn(void)
{
	struct gx_conn *c;

	gx_uring_run_wait(client->gx.uring, conn_new_run, &c);
	return c;
}

static int server_listen(char addr[32])
{
	int port = ctl_listen(&server->gx, "127.0.0.1:0");

	assert_true(port > 0);
	snprintf(addr, 32, "127.0.0.1:%d", port);
	return port;
}

static struct gx_conn *client_connect(const char *addr, const struct gx_connect_opts *opts)
{
	struct gx_conn *c = client_conn();

	/* What the test has read so far may change from here on. */
	gx_uring_run_wait(server->gx.uring, nop_run, NULL);
	assert_int_equal(ctl_connect(c, addr, opts), 0);
	return c;
}

/* Both ends up, the server's i-th. */
static struct gx_conn *both_up(const char *addr, const struct gx_connect_opts *opts)
{
	unsigned n = client->nr_up; /* before: from here on the control thread counts */
	struct gx_conn *c = client_connect(addr, opts);

	wait_up(client, n + 1);
	return c;
}

static void both_up_check(const char *addr)
{
	unsigned n = server->nr_up;
	struct gx_conn *c = client_connect(addr, NULL);

	wait_up(client, 1);
	wait_up(server, n + 1);
	assert_int_equal(c->state, GX_CONN_STATE_UP);
}

/* ---- A peer made by hand ---- */

static int raw_connect_from(int port, uint32_t from)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr = {htonl(from)}};
	struct timeval tv = {.tv_sec = WAIT_S};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	if (from != INADDR_LOOPBACK)
		assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	sa.sin_port = htons((uint16_t)port);
	assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	return fd;
}

static int raw_connect(int port)
{
	return raw_connect_from(port, INADDR_LOOPBACK);
}

/* Nobody else gets the port. */
static int raw_bind(int *port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET};
	socklen_t len = sizeof(sa);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
	*port = ntohs(sa.sin_port);
	return fd;
}

static int raw_listen(int *port)
{
	int fd = raw_bind(port);

	assert_int_equal(listen(fd, 8), 0);
	return fd;
}

/* The same. @addr: for client_connect() */
static int raw_listen_at(char addr[32])
{
	int port, fd = raw_listen(&port);

	snprintf(addr, 32, "127.0.0.1:%d", port);
	return fd;
}

/* May end early when the other end closes. */
static bool raw_send(int fd, const void *data, size_t len)
{
	return send(fd, data, len, MSG_NOSIGNAL) == (ssize_t)len;
}

/* A ring that closes interrupts the thread which made it: EINTR, once. */
static ssize_t raw_recv_some(int fd, void *data, size_t len)
{
	ssize_t n;

	do
		n = recv(fd, data, len, 0);
	while (n < 0 && errno == EINTR);
	return n;
}

/* By now; nothing has come on @fd before. */
static bool raw_has_ended(int fd)
{
	char c;

	return recv(fd, &c, 1, MSG_DONTWAIT) == 0 || (errno != EAGAIN && errno != EINTR);
}

static int raw_accept(int fd)
{
	int peer;

	do
		peer = accept(fd, NULL, NULL);
	while (peer < 0 && errno == EINTR);
	assert_true(peer >= 0);
	return peer;
}

static bool raw_read(int fd, void *data, size_t len)
{
	for (size_t got = 0; got < len;) {
		ssize_t n = raw_recv_some(fd, (uint8_t *)data + got, len - got);

		if (n <= 0)
			return false;
		got += (size_t)n;
	}
	return true;
}

/* Return: type; 0 at the end of the connection. */
static uint16_t raw_recv(int fd, uint8_t body[GX_HELLO_FRAME_MAX], uint32_t *len)
{
	uint8_t hdr[HDR_B];
	uint16_t type;

	if (!raw_read(fd, hdr, sizeof(hdr)))
		return 0;
	assert_int_equal(gx_hello_frame(hdr, &type, len), 0);
	assert_true(raw_read(fd, body, *len));
	return type;
}

static void raw_recv_error(int fd, int err, enum gx_reason reason, const char *what)
{
	static uint8_t body[GX_HELLO_FRAME_MAX];
	struct gx_hello_error e;
	uint32_t len;

	assert_int_equal(raw_recv(fd, body, &len), GX_HELLO_ERROR);
	assert_int_equal(gx_hello_error_get(body, len, &e), 0);
	assert_int_equal(e.err, err);
	assert_int_equal(e.reason, reason);
	assert_says(e.text, what);
}

static void raw_hello_fill(struct gx_hello *h)
{
	*h = (struct gx_hello){.magic = GX_HELLO_MAGIC,
			       .version = GX_HELLO_VERSION,
			       .pid = 77,
			       .nr_lanes = CORES,
			       .chunk_b = 65536,
			       .window = 4,
			       .integrity = 3,
			       .links = 1u << GX_LINK_PACKET,
			       .nr_ports = 2};
	memcpy(h->host_id, server->gx.ctl->host_id, sizeof(h->host_id));
	memset(h->nonce, 0x5a, sizeof(h->nonce));
	for (unsigned i = 0; i < 2; i++) {
		snprintf(h->ports[i].name, sizeof(h->ports[i].name), i ? "udp" : "shm");
		h->ports[i].flags = i ? 0 : GX_PORT_LOCAL;
		h->ports[i].payload_max = 8192;
		h->ports[i].payload_best = 4096;
	}
}

static uint32_t raw_hello(uint8_t *b, uint32_t version)
{
	struct gx_hello h;

	raw_hello_fill(&h);
	h.version = version;
	return gx_hello_put(b, &h);
}

static void raw_lanes_fill(struct gx_hello_lanes *l, const char *port)
{
	*l = (struct gx_hello_lanes){.quantum = 4096,
				     .chunk_b = 65536,
				     .window = 4,
				     .integrity = 1,
				     .peer_timeout_ns = 1000000000,
				     .nr_lanes = CORES};
	snprintf(l->port, sizeof(l->port), "%s", port);
	for (unsigned i = 0; i < CORES; i++)
		l->lanes[i].port = (struct gx_port_addr){.len = 4, .fd = -1};
}

static int raw_unix(const char *name);

/* Says HELLO and takes the server's. */
static int raw_client(int port, struct gx_hello *h)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	int fd = raw_connect(port);
	uint32_t len = raw_hello(b, GX_HELLO_VERSION);

	assert_true(raw_send(fd, b, len));
	assert_int_equal(raw_recv(fd, b, &len), GX_HELLO_HELLO);
	assert_int_equal(gx_hello_get(b, len, h), 0);
	return fd;
}

/* Shows on the Unix socket whose we are. Return: that socket. */
static int raw_prove(const struct gx_hello *h)
{
	uint8_t b[64];
	int un = raw_unix(h->unix_name);

	assert_true(un >= 0);
	assert_int_equal(send(un, h->nonce, sizeof(h->nonce), MSG_NOSIGNAL), sizeof(h->nonce));
	assert_int_equal(raw_recv_some(un, b, sizeof(b)), sizeof(h->nonce));
	for (unsigned i = 0; i < sizeof(h->nonce); i++)
		assert_int_equal(b[i], 0x5a); /* the nonce of raw_hello_fill() */
	return un;
}

/* Up to the point where the server waits for @l's descriptors on @un; NULL: for nothing more. */
static int raw_client_lanes(int port, struct gx_hello *h, const struct gx_hello_lanes *l, int *un)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	int fd = raw_client(port, h), proof = raw_prove(h);
	uint32_t len = gx_hello_lanes_put(b, GX_HELLO_CONNECT, l);

	if (un)
		*un = proof;
	assert_true(raw_send(fd, b, len));
	assert_int_equal(raw_recv(fd, b, &len), GX_HELLO_ACCEPT);
	if (!un)
		close(proof);
	return fd;
}

static int raw_unix(const char *name)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	struct timeval tv = {.tv_sec = WAIT_S};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));

	memcpy(sa.sun_path + 1, name, strlen(name));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	if (connect(fd, (struct sockaddr *)&sa, len)) {
		close(fd);
		return -1;
	}
	return fd;
}

static bool raw_unix_send(int fd, const void *data, size_t len, const int *fds, unsigned n)
{
	struct iovec iov = {.iov_base = (void *)data, .iov_len = len};
	union {
		struct cmsghdr hdr;
		char b[CMSG_SPACE(128 * sizeof(int))];
	} control = {0};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (n) {
		control.hdr = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
					       .cmsg_type = SCM_RIGHTS,
					       .cmsg_len = CMSG_LEN(n * sizeof(int))};
		memcpy(CMSG_DATA(&control.hdr), fds, n * sizeof(int));
		msg.msg_control = control.b;
		msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
	}
	return sendmsg(fd, &msg, MSG_NOSIGNAL) == (ssize_t)len;
}

/* The server is as good as new: another client comes up. */
static void server_lives(const char *addr)
{
	unsigned n = client->nr_up, m = server->nr_up;

	client_connect(addr, NULL);
	wait_up(client, n + 1);
	wait_up(server, m + 1);
}

/* ---- Addresses ---- */

static void addr_resolve__table(void **state)
{
	static const struct {
		const char *addr, *says;
	} bad[] = {
		{"", "HOST:PORT"},
		{"localhost", "HOST:PORT"},
		{":7501", "HOST:PORT"},
		{"::1:7501", "brackets"},
		{"[::1]", "HOST:PORT"},
		{"[]:7501", "HOST:PORT"},
		{"[::1:7501", "HOST:PORT"},
		{"127.0.0.1:", "0 to 65535"},
		{"127.0.0.1:x", "0 to 65535"},
		{"127.0.0.1:-1", "0 to 65535"},
		{"127.0.0.1:65536", "0 to 65535"},
		{"127.0.0.1:000000001", "0 to 65535"},
		{"[:7501", "HOST:PORT"},
		{"[::1]x:7501", "HOST:PORT"},
	};
	struct ctl_addr out[CTL_ADDRS_MAX];

	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++) {
		assert_int_equal(ctl_addr_resolve(bad[i].addr, true, out), -EINVAL);
		assert_says(gx_error(), bad[i].says);
	}
	assert_int_equal(ctl_addr_resolve("127.0.0.1:0", false, out), -EINVAL);
	assert_int_equal(ctl_addr_resolve("127.0.0.1:7501", false, out), 1);
}

static void addr_is_loopback__table(void **state)
{
	static const struct {
		const char *addr;
		bool loopback;
	} table[] = {
		{"127.0.0.1:1", true},	    {"127.9.9.9:1", true},
		{"[::1]:1", true},	    {"[::ffff:127.0.0.1]:1", true},
		{"0.0.0.0:1", false},	    {"[::]:1", false},
		{"192.0.2.1:1", false},	    {"[::ffff:192.0.2.1]:1", false},
		{"[2001:db8::1]:1", false},
	};
	struct ctl_addr out[CTL_ADDRS_MAX];
	char name[96];

	for (unsigned i = 0; i < GX_ARRAY_SIZE(table); i++) {
		assert_int_equal(ctl_addr_resolve(table[i].addr, true, out), 1);
		assert_int_equal(ctl_addr_is_loopback(&out[0].sa), table[i].loopback);
		ctl_addr_name(&out[0].sa, name, sizeof(name));
		assert_string_equal(name, table[i].addr);
	}
}

/* ---- Listen ---- */

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
	unsigned n = fds_take(fds, GX_ARRAY_SIZE(fds), GX_ARRAY_SIZE(fds) / 2, &old);

	port = server_listen(addr); /* an accept has the limit of when it was submitted */
	gx_log_sink(log_keep, text);
	gx_log_level_set(GX_LOG_WARN);
	while ((fds[n] = fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0)
		n++;
	close(fds[--n]); /* for the client */
	again = raw_connect(port);
	raw_recv_error(again, -EMFILE, GX_REASON_FULL, "ulimit -n");
	fds_give(fds, n, &old);
	gx_log_sink(NULL, NULL);
	gx_log_level_set(GX_LOG_ERR);
	assert_says(text, "ulimit -n");
	close(again);
	both_up_check(addr);
}

/* An address of this host that is not loopback. Return: false when there is none. */
static bool other_addr(char *buf, size_t room)
{
	struct ifaddrs *list, *p;
	char *colon;
	bool found = false;

	assert_int_equal(getifaddrs(&list), 0);
	for (p = list; p && !found; p = p->ifa_next) {
		struct sockaddr_storage sa = {0};

		if (!p->ifa_addr || p->ifa_addr->sa_family != AF_INET)
			continue;
		memcpy(&sa, p->ifa_addr, sizeof(struct sockaddr_in));
		found = !ctl_addr_is_loopback(&sa);
		ctl_addr_name(&sa, buf, room);
	}
	freeifaddrs(list);
	colon = found ? strrchr(buf, ':') : NULL;
	if (colon)
		*colon = 0;
	return found;
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
	assert_says(client->text, "gx_opts.insecure");
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

static int stats_connect(const char *path);

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

/* ---- The way up ---- */

static void up__with_descriptors(void **state)
{
	struct gx_conn *c;
	char addr[32], want[64];

	server_listen(addr);
	c = both_up(addr, NULL);
	wait_up(server, 1);
	assert_string_equal(c->why, "both on one host: shared memory");
	assert_int_equal(c->path_reason, GX_REASON_SAME_HOST);
	assert_int_equal(server->up->path_reason, GX_REASON_PEER_ASKED);
	assert_string_equal(c->agreed.port, "shm");
	assert_true(c->same_host && server->up->same_host);
	assert_int_equal(c->nr_lanes, CORES);
	assert_int_equal(c->agreed.quantum, 4096);
	assert_int_equal(c->agreed.chunk_b, 512 << 10);
	assert_int_equal(c->agreed.window, 16);
	assert_int_equal(c->agreed.integrity, GX_INTEGRITY_NONE);
	assert_memory_equal(&c->agreed, &server->up->agreed, sizeof(c->agreed));
	assert_string_equal(client->seen[1], "server lane 1");
	assert_string_equal(server->seen[0], "client lane 0");
	assert_int_equal(c->peer.nr_regions, 1);
	assert_string_equal(c->peer.regions[0].name, "mem-of-server");
	assert_string_equal(server->up->peer.regions[0].name, "mem-of-client");
	snprintf(want, sizeof(want), "%s pid %d", addr, getpid());
	assert_string_equal(c->peer_name, want);
	assert_string_equal(gx_uring_method_name(server->gx.uring),
			    method == GX_URING_EPOLL ? "epoll" : "io_uring");
}

static void up__without_descriptors(void **state)
{
	const struct gx_connect_opts opts = {
		.size = sizeof(opts), .ports = udp, .nr_ports = 1, .lanes = 1, .first_core = 1};
	struct gx_conn *c;
	char addr[32];

	server_listen(addr);
	c = both_up(addr, &opts);
	wait_up(server, 1);
	assert_string_equal(c->why, "udp: asked for");
	assert_int_equal(c->path_reason, GX_REASON_ASKED);
	assert_int_equal(c->nr_lanes, 1);
	assert_int_equal(c->first_core, 1);
	assert_int_equal(c->agreed.quantum, 1392);
	assert_int_equal(c->agreed.chunk_b, (512 << 10) / 1392 * 1392);
	assert_int_equal(c->agreed.integrity, GX_INTEGRITY_CRC);
}

static void up__descriptors_of_one_end_only(void **state)
{
	char addr[32];

	CTL_SET(server, ports[1].caps.flags,
		GX_PORT_LOCAL); /* only the server's lanes carry some */
	server_listen(addr);
	both_up(addr, &(struct gx_connect_opts){.ports = udp, .nr_ports = 1});
	wait_up(server, 1);
	assert_string_equal(client->seen[0], "server lane 0");
	assert_string_equal(server->seen[0], "");
}

static void up__other_host(void **state)
{
	struct gx_conn *c;
	char addr[32];

	CTL_SET(client, gx.ctl->host_id[5], client->gx.ctl->host_id[5] ^ 1);
	server_listen(addr);
	c = both_up(addr, NULL);
	assert_string_equal(c->why, "shm not usable: different host; udp");
	assert_int_equal(c->path_reason, GX_REASON_BOTH_HAVE);
	client_connect(addr, &(struct gx_connect_opts){.ports = &shm, .nr_ports = 1});
	wait_down(client, 1, -ENODEV, GX_REASON_OTHER_HOST);
	assert_says(client->text, "two hosts");
}

static void up__server_has_less(void **state)
{
	const struct gx_connect_opts opts = {.ports = udp, .nr_ports = 1};
	struct gx_conn *c;
	char addr[32];

	CTL_SET(server, gx.groups.packet.chunk_b, 10000);
	CTL_SET(server, gx.groups.packet.window, 3);
	CTL_SET(server, gx.nr_cores, 1);
	CTL_SET(server, ports[1].caps.payload_max, 1290);
	server_listen(addr);
	c = both_up(addr, &opts);
	assert_int_equal(c->agreed.quantum, 1280);
	assert_int_equal(c->agreed.chunk_b, 8960);
	assert_int_equal(c->agreed.window, 3);
	assert_int_equal(c->nr_lanes, 1);
	CTL_SET(server, gx.groups.packet.chunk_b, 1000); /* at least a quantum */
	c = client_connect(addr, &opts);
	wait_up(client, 2);
	assert_int_equal(c->agreed.chunk_b, 1280);
}

static void up__options_of_the_client(void **state)
{
	struct gx_conn *c;
	char addr[32];

	CTL_SET(client, gx.groups.packet.quantum_b, 8192);
	CTL_SET(client, gx.groups.packet.integrity, GX_INTEGRITY_MODE_CRC32C);
	CTL_SET(client, gx.groups.packet.window, 2);
	CTL_SET(client, gx.opts.peer_timeout_ns, 123456789);
	server_listen(addr);
	c = both_up(addr, NULL);
	assert_int_equal(c->agreed.quantum, 8192);
	assert_int_equal(c->agreed.integrity, GX_INTEGRITY_CRC);
	assert_int_equal(c->agreed.window, 2);
	assert_int_equal(c->agreed.peer_timeout_ns, 123456789);
}

/* A server whose slots are in GPU memory takes larger packets than the client does. */
static void up__pool_of_the_server(void **state)
{
	struct gx_conn *c;
	char addr[32];

	CTL_SET(server, ports[0].caps.flags, server->ports[0].caps.flags | GX_PORT_RX_GPU);
	CTL_SET(server, ports[0].caps.payload_best, 32768);
	CTL_SET(server, ports[0].caps.payload_max, 32768);
	server_listen(addr);
	c = both_up(addr, NULL);
	wait_up(server, 1);
	assert_int_equal(c->agreed.quantum, 32768);
	assert_int_equal(server->up->agreed.quantum, 32768);
	CTL_SET(client, gx.groups.packet.quantum_b, 4096);
	c = client_connect(addr, NULL);
	wait_up(client, 2);
	assert_int_equal(c->agreed.quantum, 4096);
}

static void up__pool_of_the_client(void **state)
{
	struct gx_conn *c;
	char addr[32];

	CTL_SET(client, ports[0].caps.flags, client->ports[0].caps.flags | GX_PORT_RX_GPU);
	CTL_SET(client, ports[0].caps.payload_best, 1 << 20);
	CTL_SET(client, ports[0].caps.payload_max, 1 << 20);
	server_listen(addr);
	c = both_up(addr, NULL);
	assert_int_equal(c->agreed.quantum, GX_WIRE_QUANTUM_MAX);
	CTL_SET(server, gx.groups.packet.quantum_b, 8192);
	c = client_connect(addr, NULL);
	wait_up(client, 2);
	assert_int_equal(c->agreed.quantum, 8192);
}

static void up__many_clients(void **state)
{
	char addr[32];

	server_listen(addr);
	for (unsigned i = 0; i < CROWD; i++)
		client_connect(addr,
			       &(struct gx_connect_opts){.lanes = 1, .timeout_ns = 60000000000});
	wait_up(client, CROWD);
	wait_up(server, CROWD);
	assert_int_equal(server->nr_down + client->nr_down, 0);
}

/* ---- What does not come up ---- */

static void fail__port_missing(void **state)
{
	char addr[32];

	CTL_SET(server, gx.nr_ports, 1);
	server_listen(addr);
	client_connect(addr, &(struct gx_connect_opts){.ports = udp, .nr_ports = 1});
	wait_down(client, 1, -ENODEV, GX_REASON_NO_PORT);
	assert_says(client->text, addr);
	assert_says(client->text, "offers shm");
	assert_says(client->text, "gx_opts.ports udp");
	wait_down(server, 1, -ENODEV, GX_REASON_NO_PORT);
	assert_says(server->text, "offers shm");
	assert_int_equal(ctl_connect(client_conn(), addr,
				     &(struct gx_connect_opts){.ports = &dpdk_x, .nr_ports = 1}),
			 -ENODEV);
	assert_says(gx_error(), "not opened here");
	CTL_SET(client, gx.ctl->host_id[0], client->gx.ctl->host_id[0] ^ 1);
	client_connect(addr, &(struct gx_connect_opts){.link = "packet"});
	wait_down(client, 2, -ENODEV, GX_REASON_NO_PORT);
	assert_says(client->text, "on another host");
	CTL_SET(client, gx.groups.packet.integrity, GX_INTEGRITY_MODE_CRC32C);
	client_connect(addr, NULL);
	wait_down(client, 3, -ENODEV, GX_REASON_NO_PORT);
}

/* A device has another name at each end; the frames that it carries are alike. */
static void connect__port_by_what_it_speaks(void **state)
{
	struct fake *const ends[] = {server, client};
	char addr[32];

	for (unsigned i = 0; i < 2; i++) {
		struct gx_port_slot *slot = &ends[i]->gx.port[1];

		ends[i]->ports[1].speaks = "dpdk:ethernet";
		snprintf(slot->device, sizeof(slot->device), "dpdk:0000:0%u:00.0", i);
		strcpy(slot->match, "dpdk:ethernet");
	}
	server_listen(addr);
	both_up(addr, &(struct gx_connect_opts){.ports = &card, .nr_ports = 1});
	CTL_SET(server, gx.nr_ports, 1);
	client_connect(addr, &(struct gx_connect_opts){.ports = &card, .nr_ports = 1});
	wait_down(client, 1, -ENODEV, GX_REASON_NO_PORT);
	assert_says(client->text, "gx_opts.ports dpdk:DEVICE");
}

/* Each end has two ports udp, and more behind them. */
static void two_udps(void)
{
	fake_port_add(client, "udp", 0, 1392, 8928);
	fake_port_add(client, "other", 0, 1392, 8928);
	fake_port_add(server, "other", 0, 1392, 8928);
	fake_port_add(server, "udp", 0, 1392, 8928);
}

static void connect__several_ports(void **state)
{
	static const uint8_t ports[2][2] = {{1, 2}, {1, 3}};
	struct fake *const ends[] = {client, server};
	char addr[32];

	two_udps();
	server_listen(addr);
	both_up(addr, &(struct gx_connect_opts){.ports = udp, .nr_ports = 2});
	wait_up(server, 1);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(ends[i]->up->nr_ways, 2);
		assert_memory_equal(ends[i]->up->way, ports[i], 2);
		assert_int_equal(ends[i]->up->port, 1);
		assert_says(ends[i]->up->why, "2 ports in turn");
	}
}

static void connect__several_ports_one_lane(void **state)
{
	char addr[32];

	two_udps();
	server_listen(addr);
	both_up(addr, &(struct gx_connect_opts){.ports = udp, .nr_ports = 2, .lanes = 1});
	wait_up(server, 1);
	assert_int_equal(client->up->nr_ways, 0);
	assert_int_equal(server->up->nr_ways, 0);
	assert_says(client->up->why, "1 of 2 ports");
}

/* The ports that are taken have their pools in a GPU, and so large packets. The first one of that name
 * has not. */
static void connect__several_ports_with_pools(void **state)
{
	char addr[32];

	for (unsigned i = 2; i < 4; i++) {
		fake_port_add(client, "shm", GX_PORT_LOCAL | GX_PORT_LOSSLESS | GX_PORT_RX_GPU,
			      1 << 20, 1 << 20);
		snprintf(client->gx.port[i].device, sizeof(client->gx.port[i].device), "shm%u", i);
		snprintf(client->gx.port[i].name, sizeof(client->gx.port[i].name), "shm%u", i);
		fake_port_add(server, "shm", GX_PORT_LOCAL | GX_PORT_LOSSLESS, 4096, 8192);
	}
	server_listen(addr);
	both_up(addr, &(struct gx_connect_opts){.ports = shms, .nr_ports = 2});
	wait_up(server, 1);
	assert_int_equal(client->up->nr_ways, 2);
	assert_int_equal(client->up->agreed.quantum, GX_WIRE_QUANTUM_MAX);
	assert_int_equal(server->up->agreed.quantum, GX_WIRE_QUANTUM_MAX);
}

static void fail__several_ports(void **state)
{
	static const struct {
		struct gx_port_name port[3];
		unsigned nr;
		int err;
		const char *what;
	} here[] = {{{{"udp"}, {"shm"}}, 2, -EINVAL, "two kinds"},
		    {{{"udp"}, {"udp"}, {"udp"}}, 3, -ENODEV, "not so often"},
		    {{{"udp"}, {""}}, 2, -ENODEV, "not opened here"},
		    {{{NULL}, {"udp"}}, 2, -ENODEV, "not opened here"}};
	const struct gx_connect_opts opts = {.ports = udp, .nr_ports = 2};
	char addr[32];

	two_udps();
	server_listen(addr);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(here); i++) {
		const struct gx_connect_opts o = {.ports = here[i].port, .nr_ports = here[i].nr};

		assert_int_equal(ctl_connect(client_conn(), addr, &o), here[i].err);
		assert_says(gx_error(), here[i].what);
	}
	assert_int_equal(ctl_connect(client_conn(), addr,
				     &(struct gx_connect_opts){
					     .ports = udp, .nr_ports = 2, .link = "verbs"}),
			 -EINVAL);
	assert_says(gx_error(), "link verbs takes one port");
	CTL_SET(server, ports[3].caps.payload_max, 1408);
	client_connect(addr, &opts);
	wait_down(client, 1, -EINVAL, GX_REASON_OPTIONS);
	assert_says(client->text, "MTU");
	CTL_SET(server, gx.nr_ports, 3);
	client_connect(addr, &opts);
	wait_down(client, 2, -ENODEV, GX_REASON_NO_PORT);
	assert_says(client->text, "number 2");
}

static void fail__lane_open(void **state)
{
	char addr[32];

	server_listen(addr);
	CTL_SET(server, open_err, -ENOSPC);
	client_connect(addr, NULL);
	wait_down(client, 1, -ENOSPC, GX_REASON_LINK);
	assert_says(client->text, "the server cannot open lane 1 over shm: no more lanes for you");
	CTL_SET(server, open_err, 0);
	CTL_SET(client, open_err, -ENOMEM);
	client_connect(addr, NULL);
	wait_down(client, 2, -ENOMEM, GX_REASON_LINK);
	wait_down(server, 2, -ENOMEM, GX_REASON_LINK);
	assert_says(server->text, "the client cannot open lane 1");
	CTL_SET(client, open_err, 0);
	CTL_SET(client, connect_err, -EPROTO);
	client_connect(addr, NULL);
	wait_down(server, 3, -EPROTO, GX_REASON_LINK);
	assert_says(server->text, "leads nowhere");
	wait_down(client, 3, -EPROTO, GX_REASON_LINK);
	CTL_SET(client, connect_err, 0);
	server_lives(addr);
}

static void fail__refused(void **state)
{
	char addr[32];
	int port, fd = raw_bind(&port);

	snprintf(addr, sizeof(addr), "127.0.0.1:%d", port);
	client_connect(addr, NULL);
	wait_down(client, 1, -ECONNREFUSED, GX_REASON_NO_SERVER);
	assert_says(client->text, "gx_listen() on 127.0.0.1:");
	close(fd);
}

static void fail__silent_server(void **state)
{
	char addr[32];
	int fd = raw_listen_at(addr);

	client_connect(addr, &(struct gx_connect_opts){.timeout_ns = 100000000});
	wait_down(client, 1, -ETIMEDOUT, GX_REASON_SETUP_TIMEOUT);
	assert_says(client->text, "within 0.1 s: does a server run there?");
	assert_says(client->text, addr);
	close(fd);
}

/* The server answers HELLO and then nothing more. */
static void fail__stuck_server(void **state)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	char addr[32];
	int fd = raw_listen_at(addr), peer;

	client_connect(addr, &(struct gx_connect_opts){.timeout_ns = 200000000});
	peer = raw_accept(fd);
	assert_true(raw_send(peer, b, raw_hello(b, GX_HELLO_VERSION)));
	wait_down(client, 1, -ETIMEDOUT, GX_REASON_SETUP_TIMEOUT);
	assert_says(client->text, "0.2 s");
	close(peer);
	close(fd);
}

static void stand_run(void *arg)
{
	sem_post(arg);
	sleep_ms(2500);
}

/* The server answers in time, while the client's control thread stands for longer than a step. */
static void connect__stands_itself(void **state)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	char addr[32];
	int fd = raw_listen_at(addr), peer;
	uint32_t len;
	sem_t begun;

	sem_init(&begun, 0, 0);
	client_connect(addr, &(struct gx_connect_opts){.timeout_ns = 2000000000});
	peer = raw_accept(fd);
	assert_int_equal(raw_recv(peer, b, &len), GX_HELLO_HELLO);
	assert_int_equal(gx_uring_run(client->gx.uring, stand_run, &begun), 0);
	while (sem_wait(&begun))
		;
	assert_true(raw_send(peer, b, raw_hello(b, GX_HELLO_VERSION)));
	assert_int_equal(raw_recv(peer, b, &len), GX_HELLO_CONNECT);
	close(peer);
	wait_down(client, 1, -ECONNRESET, GX_REASON_PEER_LOST);
	close(fd);
	sem_destroy(&begun);
}

static void fail__not_gx(void **state)
{
	char addr[32];
	int fd = raw_listen_at(addr), peer;

	client_connect(addr, NULL);
	peer = raw_accept(fd);
	assert_true(raw_send(peer, "SSH-2.0-OpenSSH_9.2\r\n", 21));
	wait_down(client, 1, -EPROTO, GX_REASON_PROTOCOL);
	assert_says(client->text, "does a gx server listen there?");
	close(peer);
	close(fd);
}

static void fail__version_of_the_client(void **state)
{
	static const struct {
		uint32_t version;
		const char *says;
	} of[] = {{5, "the client speaks version 5 of gx's protocol, the server version 8"},
		  {9, "the client speaks version 9 of gx's protocol, the server version 8"}};
	static uint8_t b[GX_HELLO_FRAME_MAX];
	char addr[32];
	int port = server_listen(addr);

	for (unsigned i = 0; i < GX_ARRAY_SIZE(of); i++) {
		int fd = raw_connect(port);

		assert_true(raw_send(fd, b, raw_hello(b, of[i].version)));
		raw_recv_error(fd, -EPROTONOSUPPORT, GX_REASON_VERSION, of[i].says);
		assert_int_equal(bad_count(server), i + 1);
		close(fd);
	}
	server_lives(addr);
}

static void fail__version_of_the_server(void **state)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	char addr[32];
	int fd = raw_listen_at(addr), peer;

	client_connect(addr, NULL);
	peer = raw_accept(fd);
	assert_true(raw_send(peer, b, raw_hello(b, 5)));
	wait_down(client, 1, -EPROTONOSUPPORT, GX_REASON_VERSION);
	assert_says(client->text,
		    "the client speaks version 8 of gx's protocol, the server version 5");
	close(peer);
	close(fd);
}

/* ---- A server and what is thrown at it ---- */

static void server__random_bytes(void **state)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	char addr[32];
	int port = server_listen(addr);

	srandom(1);
	for (unsigned i = 0; i < 200; i++) {
		int fd = raw_connect(port);
		size_t len = 1 + (size_t)random() % 300;

		for (size_t j = 0; j < len; j++)
			b[j] = (uint8_t)random();
		if (i % 3 == 0) { /* a good frame header, so that bodies are tried too */
			gx_hello_plain_put(b, 1 + i % 7, NULL, 0);
			b[0] = (uint8_t)(4 + random() % 100);
		} else if (i % 3 == 1) { /* a good hello with some bytes turned over */
			len = raw_hello(b, GX_HELLO_VERSION);
			for (unsigned j = 0; j < 1 + i % 5; j++)
				b[(size_t)random() % len] ^= (uint8_t)(1 << random() % 8);
		}
		raw_send(fd, b, len);
		close(fd);
	}
	wait_bad(server, 60);
	server_lives(addr);
	wait_conns(server, 1);
}

static void server__slow_client(void **state)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	char addr[32];
	int port = server_listen(addr), fd = raw_connect(port), on = 1;
	uint32_t len = raw_hello(b, GX_HELLO_VERSION);

	setsockopt(fd, IPPROTO_TCP, 1 /* TCP_NODELAY */, &on, sizeof(on));
	for (uint32_t i = 0; i < len; i++) {
		assert_true(raw_send(fd, b + i, 1));
		sched_yield();
	}
	assert_int_equal(raw_recv(fd, b, &len), GX_HELLO_HELLO);
	close(fd);
}

static void server__oversized_frame(void **state)
{
	static const uint8_t b[HDR_B] = {0xfd, 0xff, 0x00, 0x00, GX_HELLO_HELLO};
	char addr[32], c;
	int port = server_listen(addr), fd = raw_connect(port);

	assert_true(raw_send(fd, b, sizeof(b)));
	assert_true(raw_recv_some(fd, &c, 1) <= 0);
	assert_int_equal(bad_count(server), 1);
	close(fd);
	server_lives(addr);
}

/* The largest frame there is, in a hello that cannot be: read whole, then refused. */
static void server__largest_frame(void **state)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	char addr[32], c;
	int port = server_listen(addr), fd = raw_connect(port);

	assert_int_equal(gx_hello_plain_put(b, GX_HELLO_HELLO, NULL, 0), HDR_B);
	b[0] = 0xfc;
	b[1] = 0xff;
	assert_true(raw_send(fd, b, sizeof(b)));
	assert_true(raw_recv_some(fd, &c, 1) <= 0);
	wait_bad(server, 1);
	close(fd);
	server_lives(addr);
}

static int silent_run(void *arg)
{
	struct fake *f = arg;
	uint64_t now_ns = gx_now_ns();
	int n = 0;

	for (struct ctl_conn *cc = f->gx.ctl->conns; cc; cc = cc->next) {
		assert_true(cc->due_ns > now_ns && cc->due_ns <= now_ns + CTL_STEP_NS);
		cc->due_ns = now_ns; /* five seconds pass */
		n++;
	}
	return n;
}

static void server__silent_client(void **state)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	char addr[32];
	int port = server_listen(addr), fds[3];
	struct gx_hello h;

	fds[0] = raw_connect(port);
	fds[1] = raw_connect(port);
	assert_true(raw_send(fds[1], b, raw_hello(b, GX_HELLO_VERSION) / 2));
	fds[2] = raw_client(port, &h);
	wait_conns(server, 3);
	assert_int_equal(gx_uring_run_wait(server->gx.uring, silent_run, server), 3);
	for (unsigned i = 0; i < 3; i++) {
		raw_recv_error(fds[i], -ETIMEDOUT, GX_REASON_SETUP_TIMEOUT, "silent");
		close(fds[i]);
	}
	wait_conns(server, 0);
	wait_down(server, 1, -ETIMEDOUT, GX_REASON_SETUP_TIMEOUT);
	assert_int_equal(bad_count(server), 3);
}

static void server__message_out_of_turn(void **state)
{
	static const uint8_t types[] = {GX_HELLO_HELLO, GX_HELLO_ACCEPT, GX_HELLO_UP,
					GX_HELLO_USER};
	static uint8_t b[GX_HELLO_FRAME_MAX];
	char addr[32];
	int port = server_listen(addr);
	struct gx_hello h;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(types); i++) {
		int fd = raw_client(port, &h);

		assert_true(raw_send(fd, b, gx_hello_plain_put(b, types[i], NULL, 0)));
		raw_recv_error(fd, -EPROTO, GX_REASON_PROTOCOL, "out of turn");
		close(fd);
	}
	wait_down(server, 4, -EPROTO, GX_REASON_PROTOCOL);
	server_lives(addr);
}

/* What a server may not say to a client that has sent CONNECT. */
static void client__message_out_of_turn(void **state)
{
	static const uint8_t types[] = {GX_HELLO_HELLO, GX_HELLO_CONNECT, GX_HELLO_UP,
					GX_HELLO_USER};
	static uint8_t b[GX_HELLO_FRAME_MAX];

	for (unsigned i = 0; i < GX_ARRAY_SIZE(types); i++) {
		char addr[32];
		int fd = raw_listen_at(addr), peer;

		client_connect(addr, NULL);
		peer = raw_accept(fd);
		assert_true(raw_send(peer, b, raw_hello(b, GX_HELLO_VERSION)));
		assert_true(raw_send(peer, b, gx_hello_plain_put(b, types[i], NULL, 0)));
		wait_down(client, i + 1, -EPROTO, GX_REASON_PROTOCOL);
		assert_says(client->text, "out of turn");
		close(peer);
		close(fd);
	}
}

static void connect_refused(int port, const struct gx_hello_lanes *l, int err, const char *what)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	struct gx_hello h;
	int fd = raw_client(port, &h), un = raw_prove(&h);

	assert_true(raw_send(fd, b, gx_hello_lanes_put(b, GX_HELLO_CONNECT, l)));
	raw_recv_error(fd, err, err == -EPROTO ? GX_REASON_PROTOCOL : GX_REASON_NO_PORT, what);
	close(un);
	close(fd);
}

static void server__bad_connect(void **state)
{
	struct gx_hello_lanes good, l;
	char addr[32];
	int port = server_listen(addr);

	raw_lanes_fill(&good, "udp");
#define CONNECT_REFUSED(field, value, err, what)                                                   \
	do {                                                                                       \
		l = good;                                                                          \
		l.field = (value);                                                                 \
		connect_refused(port, &l, err, what);                                              \
	} while (0)
	CONNECT_REFUSED(nr_lanes, 0, -EPROTO, "lanes");
	CONNECT_REFUSED(nr_lanes, CORES + 1, -EPROTO, "lanes");
	CONNECT_REFUSED(nr_lanes, GX_HELLO_LANES, -EPROTO, "lanes");
	CONNECT_REFUSED(quantum, 0, -EPROTO, "quantum");
	CONNECT_REFUSED(quantum, 1264, -EPROTO, "quantum");
	CONNECT_REFUSED(quantum, 1288, -EPROTO, "quantum");
	CONNECT_REFUSED(chunk_b, 0, -EPROTO, "chunk");
	CONNECT_REFUSED(window, 0, -EPROTO, "window");
	CONNECT_REFUSED(integrity, 2, -EPROTO, "integrity");
	CONNECT_REFUSED(peer_timeout_ns, 0, -EPROTO, "time-out");
	CONNECT_REFUSED(peer_timeout_ns, UINT64_MAX, -EPROTO, "time-out");
	CONNECT_REFUSED(lanes[CORES - 1].credit, CTL_CREDIT_MAX + 1, -EPROTO, "credit");
	CONNECT_REFUSED(port[0], 'x', -ENODEV, "no port xdp");
	good.nr_ways = 2;
	good.ways[0] = good.ways[1] = (struct gx_hello_way){1, 1};
	CONNECT_REFUSED(ways[0].server, 2, -EPROTO, "not there");
	CONNECT_REFUSED(ways[1].server, 255, -EPROTO, "not there");
	CONNECT_REFUSED(ways[0].client, 0, -EPROTO, "not there");
	CONNECT_REFUSED(ways[1].client, 255, -EPROTO, "not there");
	CONNECT_REFUSED(ways[1].server, 0, -EPROTO, "not there");
	good.nr_ways = 0;
#undef CONNECT_REFUSED
	wait_bad(server, 18);
	l = good;
	l.quantum = UINT32_MAX & ~15u;
	l.chunk_b = l.window = UINT32_MAX;
	close(raw_client_lanes(port, &(struct gx_hello){0}, &l,
			       NULL)); /* much is no error: it gets what there is */
	server_lives(addr);
}

static void server__fuzzed_connect(void **state)
{
	static uint8_t b[GX_HELLO_FRAME_MAX], answer[GX_HELLO_FRAME_MAX];
	struct gx_hello_lanes good;
	char addr[32];
	int port = server_listen(addr);

	srandom(2);
	for (unsigned i = 0; i < 300; i++) {
		struct gx_hello h;
		int fd = raw_client(port, &h), un = raw_prove(&h);
		uint32_t len, answer_len;
		uint16_t type;

		raw_lanes_fill(&good, i & 1 ? "udp" : "shm");
		good.lanes[0].port.fd = i & 2 ? 0 : -1;
		len = gx_hello_lanes_put(b, GX_HELLO_CONNECT, &good);
		for (unsigned j = 0; j < 1 + i % 4; j++)
			b[HDR_B + (uint32_t)random() % (len - HDR_B)] = (uint8_t)random();
		if (i % 5 == 0) { /* cut short, in a frame that is whole */
			len = HDR_B + (uint32_t)random() % (len - HDR_B);
			b[0] = (uint8_t)(len - 4);
			b[1] = (uint8_t)((len - 4) >> 8);
		}
		raw_send(fd, b, len);
		type = raw_recv(fd, answer, &answer_len);
		assert_true(type == GX_HELLO_ERROR || type == GX_HELLO_ACCEPT);
		close(un);
		close(fd);
	}
	server_lives(addr);
	wait_conns(server, 1);
}

/* ---- Data sockets of link tcp ---- */

static void raw_lanes_fill_tcp(struct gx_hello_lanes *l, uint8_t nr_socks)
{
	raw_lanes_fill(l, "tcp");
	l->link = GX_LINK_TCP;
	l->integrity = GX_INTEGRITY_NONE;
	l->blob_b = FAKE_BLOB_B;
	l->blob[0] = 0xfa;
	l->blob[1] = nr_socks;
}

/* A client as far as ACCEPT, with @nr_socks sockets a lane. @data: its token */
static int raw_client_tcp(int port, uint8_t nr_socks, struct gx_hello_data *data)
{
	static struct gx_hello_lanes l;
	static uint8_t b[GX_HELLO_FRAME_MAX];
	struct gx_hello h;
	int fd = raw_client(port, &h), un = raw_prove(&h);
	uint32_t len;

	raw_lanes_fill_tcp(&l, nr_socks);
	assert_true(raw_send(fd, b, gx_hello_lanes_put(b, GX_HELLO_CONNECT, &l)));
	assert_int_equal(raw_recv(fd, b, &len), GX_HELLO_ACCEPT);
	assert_int_equal(gx_hello_lanes_get(b, len, &l), 0);
	assert_int_equal(l.blob_b, FAKE_BLOB_B);
	*data = (struct gx_hello_data){0};
	memcpy(data->token, l.blob + 2, sizeof(data->token));
	close(un);
	return fd;
}

static int raw_data(int port, const struct gx_hello_data *data, unsigned more)
{
	uint8_t b[64] = {0};
	int fd = raw_connect(port);

	assert_true(raw_send(fd, b, gx_hello_data_put(b, data) + more));
	return fd;
}

/* The server closes @fd, and has said nothing there. */
static void raw_closed(int fd)
{
	char c;
	ssize_t n = raw_recv_some(fd, &c, 1);

	assert_true(!n || (n < 0 && errno == ECONNRESET));
	close(fd);
}

static void raw_data_refused(int port, const struct gx_hello_data *data, unsigned more)
{
	raw_closed(raw_data(port, data, more));
}

static int data_count_run(void *arg)
{
	const struct gx_conn *c = server->gx.conns;

	return c && c->socks ? (int)c->socks->nr_fds : 0;
}

static void wait_data(int n)
{
	for (unsigned i = 0; i < WAIT_S * 100; i++) {
		if (gx_uring_run_wait(server->gx.uring, data_count_run, NULL) == n)
			return;
		sleep_ms(10);
	}
	fail_msg("not %d data sockets", n);
}

static void data__both_ends(void **state)
{
	struct gx_conn *c;
	char addr[32];

	server_listen(addr);
	c = both_up(addr, &(struct gx_connect_opts){.link = "tcp", .sockets = 3});
	wait_up(server, 1);
	assert_int_equal(c->link->id, GX_LINK_TCP);
	assert_int_equal(c->socks->nr_fds, 3 * CORES);
	assert_int_equal(server->up->socks->nr_fds, 3 * CORES);
	assert_says(c->why, "asked for");
	assert_int_equal(c->agreed.integrity, GX_INTEGRITY_NONE);
}

/* No port in common: the last resort, and the reasons stay. */
static void data__last_resort(void **state)
{
	struct gx_conn *c;
	char addr[32];

	CTL_SET(server, gx.nr_ports, 1);
	CTL_SET(client, gx.ctl->host_id[0], client->gx.ctl->host_id[0] ^ 1);
	server_listen(addr);
	c = both_up(addr, NULL);
	assert_int_equal(c->link->id, GX_LINK_TCP);
	assert_says(c->why, "shm not usable: different host; udp not offered by the peer");
	assert_says(c->why, "the last resort");
	assert_int_equal(c->path_reason, GX_REASON_LAST_RESORT);
}

/* Only sockets with the token join, each once, while the set-up waits for them. */
static void data__strangers(void **state)
{
	struct gx_hello_data good, d;
	uint8_t b[GX_HELLO_FRAME_MAX];
	int fds[2 * CORES], n = 0, fd, port;
	uint64_t bad;
	uint32_t len;
	char addr[32];

	port = server_listen(addr);
	fd = raw_client_tcp(port, 2, &good);
	bad = bad_count(server);
	d = good;
	d.token[15] ^= 1;
	raw_data_refused(port, &d, 0);
	d = good;
	d.lane = CORES;
	raw_data_refused(port, &d, 0);
	d.lane = 0;
	d.index = 2;
	raw_data_refused(port, &d, 0);
	d.index = UINT32_MAX;
	raw_data_refused(port, &d, 0);
	raw_data_refused(port, &good, 1); /* a frame behind it */
	for (d.lane = 0; d.lane < CORES; d.lane++)
		for (d.index = 0; d.index < 2; d.index++) {
			fds[n++] = raw_data(port, &d, 0);
			wait_data(n);
			raw_data_refused(port, &d, 0); /* twice; the last one: too late */
		}
	assert_true(bad_count(server) >= bad + 5 + (unsigned)n);
	assert_int_equal(raw_recv(fd, b, &len), GX_HELLO_UP);
	assert_true(raw_send(fd, b, gx_hello_plain_put(b, GX_HELLO_UP, NULL, 0)));
	wait_up(server, 1);
	raw_data_refused(port, &good, 0);
	close(fd);
	while (n)
		close(fds[--n]);
	server_lives(addr);
}

/* A client that leaves before all of its sockets have come. */
static void data__client_leaves(void **state)
{
	struct gx_hello_data d;
	int port, fd, data;
	char addr[32];

	port = server_listen(addr);
	fd = raw_client_tcp(port, 16, &d);
	data = raw_data(port, &d, 0);
	wait_data(1);
	close(fd);
	wait_down(server, 1, -ECONNRESET, GX_REASON_PEER_LOST);
	wait_conns(server, 0);
	raw_closed(data);
	server_lives(addr);
}

/* Behind some NATs each socket has an address of its own. The client hears why it comes not up. */
static void data__from_another_address(void **state)
{
	uint8_t b[64] = {0};
	struct gx_hello_data d;
	int port, fd, data;
	char addr[32];

	port = server_listen(addr);
	fd = raw_client_tcp(port, 2, &d);
	data = raw_connect_from(port, INADDR_LOOPBACK + 1);
	assert_true(raw_send(data, b, gx_hello_data_put(b, &d)));
	raw_closed(data);
	raw_recv_error(fd, -EPERM, GX_REASON_SOCKET, "came from 127.0.0.2:");
	wait_down(server, 1, -EPERM, GX_REASON_SOCKET);
	assert_says(server->text, "the client's connection from 127.0.0.1:");
	close(fd);
	server_lives(addr);
}

static void data__bad_connect(void **state)
{
	struct gx_hello_lanes good, l;
	char addr[32];
	int port = server_listen(addr);

	raw_lanes_fill_tcp(&good, 2);
#define CONNECT_REFUSED(field, value, what)                                                        \
	do {                                                                                       \
		l = good;                                                                          \
		l.field = (value);                                                                 \
		connect_refused(port, &l, -EPROTO, what);                                          \
	} while (0)
	CONNECT_REFUSED(port[0], 'x', "a port for a link that has none");
	CONNECT_REFUSED(integrity, GX_INTEGRITY_CRC, "a port for a link that has none");
	CONNECT_REFUSED(nr_ways, 2, "several ports");
	CONNECT_REFUSED(blob[0], 2, "link tcp: malformed words");
	CONNECT_REFUSED(blob[1], 0, "link tcp: malformed words");
	CONNECT_REFUSED(blob_b, FAKE_BLOB_B - 1, "link tcp: malformed words");
#undef CONNECT_REFUSED
	server_lives(addr);
}

/* A server made by hand that has read the client's CONNECT for link tcp, now in @l. */
static int raw_server_tcp(int *listener, const struct gx_connect_opts *opts,
			  struct gx_hello_lanes *l)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	struct gx_hello h;
	char addr[32];
	uint32_t len;
	int peer;

	*listener = raw_listen_at(addr);
	client_connect(addr, opts);
	peer = raw_accept(*listener);
	raw_hello_fill(&h);
	h.links = 1u << GX_LINK_PACKET | 1u << GX_LINK_TCP;
	assert_true(raw_send(peer, b, gx_hello_put(b, &h)));
	assert_int_equal(raw_recv(peer, b, &len), GX_HELLO_HELLO);
	assert_int_equal(raw_recv(peer, b, &len), GX_HELLO_CONNECT);
	assert_int_equal(gx_hello_lanes_get(b, len, l), 0);
	assert_int_equal(l->link, GX_LINK_TCP);
	l->chunk_b -= l->chunk_b % l->quantum;
	return peer;
}

/* The link refuses the server's words. */
static void data__bad_accept(void **state)
{
	static const struct {
		unsigned at;
		uint8_t value;
	} cases[] = {{0, 2}, {1, 3}};
	static uint8_t b[GX_HELLO_FRAME_MAX];

	for (unsigned i = 0; i <= GX_ARRAY_SIZE(cases); i++) {
		const struct gx_connect_opts o = {.link = "tcp", .sockets = 2};
		struct gx_hello_lanes l;
		int listener, peer = raw_server_tcp(&listener, &o, &l);

		if (i < GX_ARRAY_SIZE(cases))
			l.blob[cases[i].at] = cases[i].value;
		else
			l.blob_b--;
		assert_true(raw_send(peer, b, gx_hello_lanes_put(b, GX_HELLO_ACCEPT, &l)));
		wait_down(client, i + 1, -EPROTO, GX_REASON_PROTOCOL);
		assert_says(client->text, "cannot take link tcp: malformed words");
		close(peer);
		close(listener);
	}
}

/* ---- Links, as the control half sees them ---- */

/* The one with the highest score that fits; the reason why a better one does not. */
static void link__the_best_that_fits(void **state)
{
	struct gx_conn *c;
	char addr[32];

	server_listen(addr);
	c = both_up(addr, NULL);
	assert_string_equal(c->link->name, "packet");
	fake_fit = NULL;
	c = both_up(addr, NULL);
	assert_string_equal(c->link->name, "local");
	assert_string_equal(c->why, "memory mapped");
	assert_int_equal(c->path_reason, GX_REASON_SAME_HOST);
	assert_string_equal(c->gx->port[c->port].match, "shm");
	c = both_up(addr, &(struct gx_connect_opts){.ports = udp, .nr_ports = 1});
	assert_string_equal(c->link->name, "packet");
	fake_quiet = false;
	fake_fit = "there is no map";
	c = both_up(addr, NULL);
	assert_string_equal(c->link->name, "packet");
	assert_says(c->why, "no link local: there is no map");
	client_connect(addr, &(struct gx_connect_opts){.link = "local"});
	wait_down(client, 1, -ENODEV, GX_REASON_NO_LINK);
	assert_says(client->text, "link local cannot be had: there is no map");
}

/* Taken by name alone; the client says UP when the way has proven. */
static void link__proves(void **state)
{
	const struct gx_connect_opts o = {.link = "verbs"};
	struct gx_conn *c;
	char addr[32];

	server_listen(addr);
	fake_proof = 0;
	c = client_connect(addr, &o);
	for (unsigned i = 0; i < WAIT_S * 100 && !fake_asked; i++)
		sleep_ms(10);
	assert_true(fake_asked && !client->nr_up && !server->nr_up);
	fake_proof = 1;
	wait_up(client, 1);
	wait_up(server, 1);
	assert_string_equal(c->link->name, "verbs");
	assert_says(c->why, "link verbs: asked for");
	assert_int_equal(c->path_reason, GX_REASON_ASKED);
	fake_proof = -ENETUNREACH;
	client_connect(addr, &o);
	wait_down(client, 1, -ENETUNREACH, GX_REASON_LINK);
	assert_says(client->text, "no packet gets from here to there");
	server_lives(addr);
}

static int say_run(void *arg)
{
	struct gx_conn *c = client->up;

	c->link_say(c, arg, 5);
	return 0;
}

/* From link to link: what it refuses ends the connection. */
static void link__says(void **state)
{
	char addr[32];

	server_listen(addr);
	fake_proof = 1;
	both_up(addr, &(struct gx_connect_opts){.link = "verbs"});
	wait_up(server, 1);
	gx_uring_run_wait(client->gx.uring, say_run, (void *)"hello");
	for (unsigned i = 0; i < WAIT_S * 100 && fake_taken < 5; i++)
		sleep_ms(10);
	assert_int_equal(fake_taken, 5);
	assert_int_equal(client->nr_down, 0);
	gx_uring_run_wait(client->gx.uring, say_run, (void *)"xyzzy");
	wait_down(server, 1, -EPROTO, GX_REASON_PROTOCOL);
	assert_says(server->text, "malformed LINK");
}

/* Its sockets are connected, as far as the client can see, and no UP comes. */
static void data__server_takes_none(void **state)
{
	const struct gx_connect_opts o = {.link = "tcp", .sockets = 2, .timeout_ns = 300000000};
	static uint8_t b[GX_HELLO_FRAME_MAX];
	struct gx_hello_lanes l;
	int listener, peer = raw_server_tcp(&listener, &o, &l);

	assert_true(raw_send(peer, b, gx_hello_lanes_put(b, GX_HELLO_ACCEPT, &l)));
	wait_down(client, 1, -ETIMEDOUT, GX_REASON_SETUP_TIMEOUT);
	assert_says(client->text, "4 of 4 data sockets of link tcp were connected");
	assert_says(client->text, "the server has not taken all of them");
	assert_says(client->text, "ulimit -n");
	close(peer);
	close(listener);
}

/* ---- Descriptors ---- */

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
	if (n <= 16)
		return (int)GX_MAX(n, 0);
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

/* ---- Up: messages, and the way down ---- */

static void msg__order_and_size(void **state)
{
	static uint8_t data[CTL_USER_MAX + 1];
	struct gx_conn *c, *s;
	char addr[32];

	server_listen(addr);
	c = both_up(addr, NULL);
	wait_up(server, 1);
	s = server->up;
	for (uint32_t i = 0; i < 200; i++) {
		memcpy(data, &i, sizeof(i));
		assert_int_equal(ctl_msg(c, data, i % 5 ? 4 + i : CTL_USER_MAX), 0);
		assert_int_equal(ctl_msg(s, data, i % 7 ? 4 + i : CTL_USER_MAX), 0);
	}
	assert_true(fake_wait(server, &server->nr_msgs, 200));
	assert_true(fake_wait(client, &client->nr_msgs, 200));
	for (uint32_t i = 0; i < 200; i++) {
		assert_int_equal(server->msg_first[i], i);
		assert_int_equal(client->msg_first[i], i);
		assert_int_equal(server->msg_len[i], i % 5 ? 4 + i : CTL_USER_MAX);
		assert_int_equal(client->msg_len[i], i % 7 ? 4 + i : CTL_USER_MAX);
	}
	assert_int_equal(ctl_msg(c, data, 0), 0);
	assert_true(fake_wait(server, &server->nr_msgs, 201));
	assert_int_equal(ctl_msg(c, data, CTL_USER_MAX + 1), -EMSGSIZE);
	assert_int_equal(ctl_msg(c, data, UINT32_MAX), -EMSGSIZE);
	assert_int_equal(ctl_msg(client_conn(), data, 1), -ENOTCONN);
}

static void msg__too_long_from_the_peer(void **state)
{
	static uint8_t b[GX_HELLO_FRAME_MAX], data[CTL_USER_MAX + 1];
	struct gx_hello_lanes l;
	struct gx_hello h;
	char addr[32];
	int port = server_listen(addr), fd;
	uint32_t len;

	raw_lanes_fill(&l, "udp");
	fd = raw_client_lanes(port, &h, &l, NULL);
	assert_int_equal(raw_recv(fd, b, &len), GX_HELLO_UP);
	assert_true(raw_send(fd, b, gx_hello_plain_put(b, GX_HELLO_UP, NULL, 0)));
	wait_up(server, 1);
	assert_true(raw_send(fd, b, gx_hello_plain_put(b, GX_HELLO_USER, data, sizeof(data))));
	raw_recv_error(fd, -EPROTO, GX_REASON_PROTOCOL, "out of turn");
	wait_down(server, 1, -EPROTO, GX_REASON_PROTOCOL);
	close(fd);
}

/* A peer that does not read: a bounded number of messages waits, then the sender is told. */
static int stuffed_conn(char addr[32], struct gx_conn **s)
{
	static uint8_t b[GX_HELLO_FRAME_MAX], data[CTL_USER_MAX];
	struct gx_hello_lanes l;
	struct gx_hello h;
	int port = server_listen(addr), fd, ret = 0;
	uint32_t len;

	raw_lanes_fill(&l, "udp");
	fd = raw_client_lanes(port, &h, &l, NULL);
	assert_int_equal(raw_recv(fd, b, &len), GX_HELLO_UP);
	assert_true(raw_send(fd, b, gx_hello_plain_put(b, GX_HELLO_UP, NULL, 0)));
	wait_up(server, 1);
	*s = server->up;
	for (unsigned i = 0; i < 4000 && !ret; i++)
		ret = ctl_msg(*s, data, sizeof(data));
	assert_int_equal(ret, -ENOMEM);
	assert_says(gx_error(), "does not read");
	return fd;
}

static void msg__peer_does_not_read(void **state)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	struct gx_conn *s;
	char addr[32];
	int fd = stuffed_conn(addr, &s), ret = -ENOMEM;
	uint32_t len;

	for (unsigned i = 0; i < 60; i++)
		assert_int_equal(raw_recv(fd, b, &len), GX_HELLO_USER);
	for (unsigned i = 0; i < 100 && ret; i++) {
		ret = ctl_msg(s, b, 1);
		sleep_ms(ret ? 10 : 0);
	}
	assert_int_equal(ret, 0);
	close(fd);
	wait_down(server, 1, -ECONNRESET, GX_REASON_PEER_LOST);
}

static void msg__close_inside_on_msg(void **state)
{
	static uint8_t data[20000];
	struct gx_conn *c;
	char addr[32];

	CTL_SET(server, close_on_msg, true);
	server_listen(addr);
	c = both_up(addr, NULL);
	for (unsigned i = 0; i < 3; i++)
		ctl_msg(c, data, sizeof(data));
	wait_down(server, 1, 0, GX_REASON_CLOSED);
	wait_down(client, 1, 0, GX_REASON_PEER_CLOSED);
	assert_int_equal(server->nr_msgs, 1);
	wait_conns(server, 0);
}

static int bye_both_run(void *arg)
{
	struct gx_conn *c = arg;

	ctl_bye(c);
	c->user_closed = true;
	conn_down(c, GX_REASON_CLOSED, 0, "closed here");
	return 0;
}

static void bye__messages_before_it_arrive(void **state)
{
	static uint8_t data[CTL_USER_MAX];
	struct gx_conn *c;
	char addr[32];

	server_listen(addr);
	c = both_up(addr, NULL);
	wait_up(server, 1);
	for (unsigned i = 0; i < 50; i++)
		assert_int_equal(ctl_msg(c, data, sizeof(data)), 0);
	gx_uring_run_wait(client->gx.uring, bye_both_run, c);
	wait_down(server, 1, 0, GX_REASON_PEER_CLOSED);
	assert_says(server->text, "closed the connection");
	assert_int_equal(server->nr_msgs, 50);
	wait_conns(client, 0);
	wait_conns(server, 0);
	assert_null(client->gx.conns);
	server_lives(addr);
}

static void bye__while_connecting(void **state)
{
	char addr[32];
	int fd = raw_listen_at(addr);
	struct gx_conn *c;

	for (unsigned i = 0; i < 3; i++) {
		c = client_connect(addr, NULL);
		sleep_ms(i * 5);
		gx_uring_run_wait(client->gx.uring, bye_both_run, c);
	}
	wait_conns(client, 3 - 3);
	close(fd);
}

static int abrupt_run(void *arg)
{
	struct gx_conn *c = arg;

	ctl_conn_close(c->ctl);
	return 0;
}

static void down__abrupt(void **state)
{
	struct gx_conn *c;
	char addr[32], pid[32];

	server_listen(addr);
	c = both_up(addr, NULL);
	wait_up(server, 1);
	gx_uring_run_wait(client->gx.uring, abrupt_run, c);
	wait_down(server, 1, -ECONNRESET, GX_REASON_PEER_LOST);
	snprintf(pid, sizeof(pid), "pid %d is gone", getpid());
	assert_says(server->text, pid);
	wait_conns(server, 0);
}

static void down__fault_is_told_to_the_peer(void **state)
{
	char addr[32];

	server_listen(addr);
	both_up(addr, NULL);
	wait_up(server, 1);
	CTL_SET(server, fault, true);
	wait_down(server, 1, -ETIMEDOUT, GX_REASON_PEER_SILENT);
	wait_down(client, 1, -ETIMEDOUT, GX_REASON_PEER_SILENT);
	assert_says(client->text, "no packet came for 5 s");
	wait_conns(server, 0);
}

static void close__everything_in_flight(void **state)
{
	char addr[32], path[64];
	struct gx_hello_lanes l;
	struct gx_hello h;
	struct gx_conn *s;
	int fd = stuffed_conn(addr, &s), port = atoi(strchr(addr, ':') + 1), fds[8], un, silent;

	raw_lanes_fill(&l, "shm");
	fds[0] = raw_connect(port);
	fds[1] = raw_client(port, &h);
	fds[2] = raw_client_lanes(port, &h, &l, &un);
	silent = raw_listen_at(addr);
	snprintf(path, sizeof(path), "@gx-test-%d-stats", getpid());
	assert_int_equal(ctl_stats_listen(&server->gx, path), 0);
	client_connect(addr, NULL);
	fake_close(server);
	server = fake_open("server");
	fake_close(client);
	client = fake_open("client");
	for (unsigned i = 0; i < 3; i++)
		close(fds[i]);
	close(un);
	close(fd);
	close(silent);
}

/* ---- The stats socket ---- */

static int stats_connect(const char *path)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	struct timeval tv = {.tv_sec = WAIT_S};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	size_t n = strlen(path);

	memcpy(sa.sun_path, path, n);
	if (path[0] == '@')
		sa.sun_path[0] = 0;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	assert_int_equal(connect(fd, (struct sockaddr *)&sa,
				 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)),
			 0);
	return fd;
}

/* Reads to the end, which must be an orderly one. */
static size_t stats_read(int fd, char *buf, size_t room)
{
	size_t len = 0;
	ssize_t n;

	do {
		n = raw_recv_some(fd, buf + len, room - 1 - len);
		assert_true(n >= 0);
		len += (size_t)n;
	} while (n > 0);
	buf[len] = 0;
	close(fd);
	return len;
}

static void stats__text_and_http(void **state)
{
	static char buf[1 << 20];
	char path[64], *body;
	int fd;

	gx_stat_add(&server->cores[1].loop.stats, GX_STAT_RX_PKTS, 42);
	snprintf(path, sizeof(path), "@gx-test-%d-stats", getpid());
	assert_int_equal(ctl_stats_listen(&server->gx, path), 0);
	assert_int_equal(ctl_stats_listen(&client->gx, path), -EADDRINUSE);
	stats_read(stats_connect(path), buf, sizeof(buf));
	assert_says(buf, "rx_pkts 1 42\n");
	assert_says(buf, "ctl_bad control 0\n");
	fd = stats_connect(path);
	assert_true(raw_send(fd, "GE", 2));
	assert_true(raw_send(fd, "T /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 33));
	stats_read(fd, buf, sizeof(buf));
	assert_memory_equal(buf, "HTTP/1.1 200 OK\r\n", 17);
	assert_says(buf, "gx_rx_pkts_total{core=\"1\"} 42\n");
	body = strstr(buf, "\r\n\r\n") + 4;
	assert_int_equal(atoi(strstr(buf, "Content-Length: ") + 16), strlen(body));
	fd = stats_connect(path);
	assert_true(raw_send(fd, "nonsense", 8));
	stats_read(fd, buf, sizeof(buf));
	assert_says(buf, "rx_pkts 1 42\n");
}

static void stats__many_clients(void **state)
{
	static char buf[1 << 20];
	int fds[40];
	char path[64];

	snprintf(path, sizeof(path), "@gx-test-%d-stats", getpid());
	assert_int_equal(ctl_stats_listen(&server->gx, path), 0);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(fds) / 2; i++) {
		fds[i] = stats_connect(path);
		close(stats_connect(path)); /* leaves without reading */
	}
	for (unsigned i = 0; i < GX_ARRAY_SIZE(fds) / 2; i++)
		assert_true(stats_read(fds[i], buf, sizeof(buf)) > 1000);
}

static void stats__path(void **state)
{
	static char buf[1 << 20];
	char dir[] = "/tmp/gx-test-XXXXXX", path[64];
	struct stat st;
	int fd;

	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/stats", dir);
	assert_int_equal(ctl_stats_listen(&server->gx, path), 0);
	assert_int_equal(ctl_stats_listen(&client->gx, path), -EADDRINUSE); /* somebody listens */
	assert_true(stats_read(stats_connect(path), buf, sizeof(buf)) > 1000);
	fake_close(server);
	server = NULL;
	assert_int_equal(stat(path, &st), -1); /* removed at close */
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	memcpy(sa.sun_path, path, strlen(path));
	assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	close(fd); /* stale now */
	assert_int_equal(ctl_stats_listen(&client->gx, path), 0);
	fake_close(client);
	fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	close(fd);
	client = fake_open("client");
	assert_int_equal(ctl_stats_listen(&client->gx, path),
			 -EADDRINUSE); /* a file of somebody's */
	assert_int_equal(stat(path, &st), 0);
	unlink(path);
	rmdir(dir);
	assert_int_equal(ctl_stats_listen(&client->gx, path), -ENOENT);
	assert_int_equal(ctl_stats_listen(&client->gx, ""), -EINVAL);
	assert_int_equal(ctl_stats_listen(&client->gx, "@"), -EINVAL);
	memset(buf, 'x', 200);
	buf[200] = 0;
	assert_int_equal(ctl_stats_listen(&client->gx, buf), -ENAMETOOLONG);
	server = fake_open("server");
}

/* ---- main ---- */

#define TEST(fn)                                                                                   \
	{                                                                                          \
#fn, fn, setup, teardown, NULL                                                     \
	}

static const struct CMUnitTest tests[] = {
	TEST(addr_resolve__table),
	TEST(addr_is_loopback__table),
	TEST(listen__errors),
	TEST(listen__stop_frees_the_port),
	TEST(listen__half_open_limit),
	TEST(listen__half_open_proven_stays),
	TEST(listen__few_descriptors),
	TEST(listen__out_of_descriptors),
	TEST(listen__not_loopback),
	TEST(fork__child_has_no_sockets),
	TEST(up__with_descriptors),
	TEST(up__without_descriptors),
	TEST(up__descriptors_of_one_end_only),
	TEST(up__other_host),
	TEST(up__server_has_less),
	TEST(up__options_of_the_client),
	TEST(up__pool_of_the_server),
	TEST(up__pool_of_the_client),
	TEST(up__many_clients),
	TEST(connect__port_by_what_it_speaks),
	TEST(connect__several_ports),
	TEST(connect__several_ports_one_lane),
	TEST(connect__several_ports_with_pools),
	TEST(fail__several_ports),
	TEST(connect__stands_itself),
	TEST(fail__port_missing),
	TEST(fail__lane_open),
	TEST(fail__refused),
	TEST(fail__silent_server),
	TEST(fail__stuck_server),
	TEST(fail__not_gx),
	TEST(fail__version_of_the_client),
	TEST(fail__version_of_the_server),
	TEST(server__random_bytes),
	TEST(server__slow_client),
	TEST(server__oversized_frame),
	TEST(server__largest_frame),
	TEST(server__silent_client),
	TEST(server__message_out_of_turn),
	TEST(client__message_out_of_turn),
	TEST(server__bad_connect),
	TEST(server__fuzzed_connect),
	TEST(data__both_ends),
	TEST(data__last_resort),
	TEST(data__strangers),
	TEST(data__client_leaves),
	TEST(data__bad_connect),
	TEST(data__bad_accept),
	TEST(data__from_another_address),
	TEST(data__server_takes_none),
	TEST(link__the_best_that_fits),
	TEST(link__proves),
	TEST(link__says),
	TEST(fd__strangers),
	TEST(fd__wrong_number),
	TEST(fd__connect_before_the_answer),
	TEST(fd__client_leaves),
	TEST(fd__uid_of_the_client),
	TEST(fd__not_shown),
	TEST(fd__strangers_descriptors_that_linger),
	TEST(fd__silent_ones),
	TEST(fd__uid_of_the_server),
	TEST(fd__server_breaks_off_and_says_why),
	TEST(fd__server_breaks_off_without_a_word),
	TEST(fd__answer_behind_an_end_of_file),
	TEST(fd__reason_in_the_log),
	TEST(msg__order_and_size),
	TEST(msg__too_long_from_the_peer),
	TEST(msg__peer_does_not_read),
	TEST(msg__close_inside_on_msg),
	TEST(bye__messages_before_it_arrive),
	TEST(bye__while_connecting),
	TEST(down__abrupt),
	TEST(down__fault_is_told_to_the_peer),
	TEST(close__everything_in_flight),
	TEST(stats__text_and_http),
	TEST(stats__many_clients),
	TEST(stats__path),
};

static int run_method(enum gx_uring_method e, const char *name)
{
	static enum gx_uring_method value[GX_URING_EPOLL + 1];
	struct CMUnitTest copy[GX_ARRAY_SIZE(tests)];

	value[e] = e;
	for (unsigned i = 0; i < GX_ARRAY_SIZE(tests); i++) {
		copy[i] = tests[i];
		copy[i].initial_state = &value[e];
	}
	return _cmocka_run_group_tests(name, copy, GX_ARRAY_SIZE(copy), NULL, NULL);
}

static bool io_uring_is_there(void)
{
	struct gx_uring *u;

	gx_log_level_set(GX_LOG_ERR);
	if (gx_uring_open(GX_URING_IO_URING, &u))
		return false;
	gx_uring_close(u);
	return true;
}

int main(void)
{
	int failed = run_method(GX_URING_EPOLL, "ctl, epoll");

	unsetenv("GX_URING");
	if (io_uring_is_there())
		failed += run_method(GX_URING_IO_URING, "ctl, io_uring");
	else
		printf("io_uring is not to be had here: only epoll was tested\n");
	return failed;
}
