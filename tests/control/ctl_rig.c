/* SPDX-License-Identifier: Apache-2.0 */
/* The rig of the tests of ctl_*.c: the faked data plane, contexts, waiting. See ctl_rig.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "control/ctl_rig.h"
#include "submit/submit.h"
#include "control/rights.h"
#include "kit/common_fds.h"

struct fake *server, *client;
enum gx_uring_method method;
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

const char *gx_reason_name(enum gx_reason reason)
{
	return reason == GX_REASON_FULL ? "full" : "another";
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
		c->gx->port[c->port].port->caps.flags & GX_PORT_LOSSLESS ? f->lane_fd[lane] : -1;
	return 0;
}

/* No key limits a peer here: test_rights.c has that. */
unsigned core_rights(const struct gx_conn *c, const struct gx_mem *mem)
{
	return CORE_ACCESS;
}

int rights_take(struct gx_conn *c, struct auth_key *key)
{
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

void conn_attach(struct gx_conn *c)
{
	c->on_cores = true;
}

void conn_retry(struct gx_conn *c, int err)
{
	assert_true(c->on_cores && err);
}

/* As the real one, whose cores let go after .holds ticks. */
bool conn_again(struct gx_conn *c)
{
	struct fake *f = fake_of(c->gx);

	if (f->holds && f->holds--)
		return false;
	c->link->conn->close(c);
	c->link = gx_links[0];
	c->nr_lanes = c->nr_ports = c->port = 0;
	c->link_open = c->on_cores = c->trying = c->same_host = false;
	c->socks = NULL;
	c->secret = NULL;
	c->why[0] = 0;
	memset(&c->peer, 0, sizeof(c->peer));
	return true;
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

const struct core_hist *submit_hist_next(const struct gx *gx, const struct gx_queue **q)
{
	return NULL;
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

/* ---- Keys, faked: one that is served, and one that is shown ---- */

bool auth_serves(const struct gx *gx)
{
	return GX_CONTAINER_OF(gx, struct fake, gx)->served.k.name[0];
}

const char *auth_name(const struct gx *gx)
{
	return GX_CONTAINER_OF(gx, struct fake, gx)->name;
}

bool auth_shows(const struct gx *gx)
{
	return GX_CONTAINER_OF(gx, struct fake, gx)->own.k.name[0];
}

static struct auth_key *key_hold(struct auth_key *key)
{
	key->holds++;
	return key;
}

struct auth_key *auth_own(struct gx *gx)
{
	return auth_shows(gx) ? key_hold(&fake_of(gx)->own) : NULL;
}

int auth_set_find(struct gx *gx, const char *name, struct auth_key **out)
{
	struct fake *f = fake_of(gx);

	if (strcmp(f->served.k.name, name))
		return -ENOENT;
	*out = key_hold(&f->served);
	return 0;
}

void auth_key_put(struct auth_key *key)
{
	if (key)
		assert_true(key->holds--);
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

void fake_port_add(struct fake *f, const char *name, uint32_t flags, uint32_t best, uint32_t max)
{
	unsigned i = f->gx.nr_ports++;

	f->ports[i].caps = (struct gx_port_caps){
		.payload_max = max, .payload_best = best, .rx_slots = 64, .flags = flags};
	snprintf(f->gx.port[i].name, sizeof(f->gx.port[i].name), "%s", name);
	snprintf(f->gx.port[i].device, sizeof(f->gx.port[i].device), "%s", name);
	snprintf(f->gx.port[i].match, sizeof(f->gx.port[i].match), "%s", name);
	f->gx.port[i].port = &f->ports[i];
}

struct fake *fake_open(const char *name)
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
	f->gx.region = calloc(GX_KEYS_MAX, sizeof(f->gx.region[0]));
	assert_non_null(f->gx.region);
	f->gx.region[3] = &f->mem;
	fake_port_add(f, "shm", GX_PORT_LOCAL | GX_PORT_LOSSLESS, 4096, 8192);
	fake_port_add(f, "udp", 0, 1392, 8928);
	assert_int_equal(gx_uring_open(method, &f->gx.uring), 0);
	assert_int_equal(ctl_open(&f->gx), 0);
	return f;
}

void fake_close(struct fake *f)
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
	assert_int_equal(f->served.holds + f->own.holds, 0);
	for (unsigned i = 0; i < CORES; i++)
		close(f->lane_fd[i]);
	free(f->gx.region);
	free(f);
}

int rig_setup(void **state)
{
	method = *(enum gx_uring_method *)*state;
	fake_reset();
	gx_log_level_set(GX_LOG_ERR);
	nr_fds_before = common_fds_count();
	server = fake_open("server");
	client = fake_open("client");
	return 0;
}

void sleep_ms(unsigned ms)
{
	const struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000l};

	nanosleep(&ts, NULL);
}

int rig_teardown(void **state)
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

bool fake_wait(struct fake *f, const _Atomic unsigned *counter, unsigned n)
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

void wait_up(struct fake *f, unsigned n)
{
	if (!fake_wait(f, &f->nr_up, n))
		fail_msg("not up: %s", f->text);
}

void wait_down(struct fake *f, unsigned n, int err, enum gx_reason reason)
{
	assert_true(fake_wait(f, &f->nr_down, n));
	if (f->err != err)
		fail_msg("down with %d, expected %d: %s", f->err, err, f->text);
	if (f->reason != reason)
		fail_msg("down for reason %d, expected %d: %s", f->reason, reason, f->text);
}

void assert_says(const char *text, const char *what)
{
	if (!strstr(text, what))
		fail_msg("'%s' does not say '%s'", text, what);
}

uint64_t bad_count(struct fake *f)
{
	return gx_stat_get(&f->gx.ctl_stats, GX_STAT_CTL_BAD);
}

void wait_bad(struct fake *f, uint64_t n)
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

int conns_count(struct fake *f)
{
	return gx_uring_run_wait(f->gx.uring, conns_count_run, f);
}

void wait_conns(struct fake *f, int n)
{
	for (unsigned i = 0; i < WAIT_S * 100 && conns_count(f) != n; i++)
		sleep_ms(10);
	assert_int_equal(conns_count(f), n);
}

void wait_conns_least(struct fake *f, int n)
{
	for (unsigned i = 0; i < WAIT_S * 100 && conns_count(f) < n; i++)
		sleep_ms(10);
	assert_true(conns_count(f) >= n);
}

void log_keep(void *arg, int level, const char *line)
{
	char *text = arg;

	if (level == GX_LOG_WARN)
		snprintf(text, 256, "%s", line);
}

int nop_run(void *arg)
{
	return 0;
}

/* ---- Connecting ---- */

static int conn_new_run(void *arg)
{
	struct gx_conn **c = arg;

	*c = conn_new(&client->gx, false);
	return 0;
}

struct gx_conn *client_conn(void)
{
	struct gx_conn *c;

	gx_uring_run_wait(client->gx.uring, conn_new_run, &c);
	return c;
}

int server_listen(char addr[32])
{
	int port = ctl_listen(&server->gx, "127.0.0.1:0");

	assert_true(port > 0);
	snprintf(addr, 32, "127.0.0.1:%d", port);
	return port;
}

struct gx_conn *client_connect(const char *addr, const struct gx_connect_opts *opts)
{
	struct gx_conn *c = client_conn();

	/* What the test has read so far may change from here on. */
	gx_uring_run_wait(server->gx.uring, nop_run, NULL);
	assert_int_equal(ctl_connect(c, addr, opts), 0);
	return c;
}

struct gx_conn *both_up(const char *addr, const struct gx_connect_opts *opts)
{
	unsigned n = client->nr_up; /* before: from here on the control thread counts */
	struct gx_conn *c = client_connect(addr, opts);

	wait_up(client, n + 1);
	return c;
}

void both_up_check(const char *addr)
{
	unsigned n = server->nr_up;
	struct gx_conn *c = client_connect(addr, NULL);

	wait_up(client, 1);
	wait_up(server, n + 1);
	assert_int_equal(c->state, GX_CONN_STATE_UP);
}

bool other_addr(char *buf, size_t room)
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

bool far_addr(uint32_t *ip)
{
	char host[64];
	struct in_addr in;

	if (!other_addr(host, sizeof(host))) {
		print_message("no address but loopback: not tested\n");
		return false;
	}
	assert_int_equal(inet_pton(AF_INET, host, &in), 1);
	*ip = ntohl(in.s_addr);
	return true;
}

/* ---- Both methods ---- */

static int run_method(enum gx_uring_method e, const char *group, const struct CMUnitTest tests[],
		      size_t n)
{
	static enum gx_uring_method value[GX_URING_EPOLL + 1];
	struct CMUnitTest *copy = calloc(n, sizeof(*copy));
	int failed;

	assert_non_null(copy);
	value[e] = e;
	for (size_t i = 0; i < n; i++) {
		copy[i] = tests[i];
		copy[i].initial_state = &value[e];
	}
	failed = _cmocka_run_group_tests(group, copy, n, NULL, NULL);
	free(copy);
	return failed;
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

int rig_run(const char *name, const struct CMUnitTest tests[], size_t n)
{
	char group[64];
	int failed;

	snprintf(group, sizeof(group), "%s, epoll", name);
	failed = run_method(GX_URING_EPOLL, group, tests, n);
	unsetenv("GX_URING");
	snprintf(group, sizeof(group), "%s, io_uring", name);
	if (io_uring_is_there())
		failed += run_method(GX_URING_IO_URING, group, tests, n);
	else
		printf("io_uring is not to be had here: only epoll was tested\n");
	return failed;
}
