/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp link between two contexts of one process, set up by the real control path over loopback
 * and turned by this thread: who gets it, its sockets, strangers at them, and both kinds of end.
 * What an endpoint does with its sockets is in test_tcp.c.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gx/gx.h"
#include "tcp/tcp.h"
#include "tcp/tcp_conn.h"

#include <cmocka.h>

#include "kit/common_gx.h"
#include "kit/common_post.h"

#define KV_B	(4u << 20)
#define WAIT_NS 30000000000ull

struct end {
	struct gx *gx;
	struct gx_core *core;
	struct gx_mem *kv;
	char *base;
	_Atomic(struct gx_conn *) up;
	_Atomic unsigned nr_down;
	_Atomic int down_err;
	struct gx_conn *conn;
	struct gx_ep *ep;
	unsigned nr_done, nr_notify;
	struct gx_comp last;
};

struct rig {
	struct end server, client;
	char addr[32];
	int port;
	char *buf;
};

static void on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
		    const char *why)
{
	struct end *e = arg;

	if (event == GX_CONN_EVENT_UP) {
		atomic_store(&e->up, conn);
		return;
	}
	atomic_store(&e->down_err, err);
	atomic_fetch_add(&e->nr_down, 1);
}

static void end_open(struct end *e, bool server, const char *port, enum gx_integrity_mode integrity)
{
	struct gx_opts o = {.server = server,
			    .on_conn = on_conn,
			    .arg = e,
			    .peer_timeout_ns = 5000000000,
			    .packet = GX_WITH(gx_packet_opts, .integrity = integrity)};

	assert_int_equal(common_gx_open(o, port, &e->gx), 0);
	e->core = gx_core(e->gx, 0);
	assert_int_equal(gx_mem_alloc(e->gx, GX_MEM_HOST, 0, KV_B, &e->kv), 0);
	assert_int_equal(gx_mem_share(e->kv, "kv", GX_ACCESS_PUT | GX_ACCESS_GET), 0);
	e->base = gx_mem_addr(e->kv);
}

static void turn(struct end *e)
{
	struct gx_comp comp;

	gx_core_turn(e->core, gx_now());
	while (common_poll(e->core, &comp, 1)) {
		e->nr_notify += comp.kind == GX_COMP_NOTIFY;
		if (comp.kind != GX_COMP_DONE)
			continue;
		e->nr_done++;
		e->last = comp;
	}
}

#define UNTIL(r, cond)                                                                             \
	do {                                                                                       \
		uint64_t until_ = gx_now() + WAIT_NS;                                              \
		while (!(cond) && gx_now() < until_) {                                             \
			turn(&(r)->server);                                                        \
			turn(&(r)->client);                                                        \
		}                                                                                  \
		assert_true(cond);                                                                 \
	} while (0)

static struct rig *rig_make(const char *server_port, enum gx_integrity_mode integrity)
{
	struct rig *r = calloc(1, sizeof(*r));

	assert_non_null(r);
	r->buf = calloc(1, KV_B);
	assert_non_null(r->buf);
	end_open(&r->server, true, server_port, GX_INTEGRITY_MODE_AUTO);
	end_open(&r->client, false, "shm", integrity);
	r->port = gx_listen(r->server.gx, "127.0.0.1:0");
	assert_true(r->port > 0);
	snprintf(r->addr, sizeof(r->addr), "127.0.0.1:%d", r->port);
	return r;
}

static struct rig *rig_new(enum gx_integrity_mode integrity)
{
	return rig_make("shm", integrity);
}

static int rig_connect_by(struct rig *r, const char *link, unsigned sockets)
{
	struct gx_connect_opts o = GX_INIT(o);
	int ret;

	o.link = link;
	o.tcp = GX_WITH(gx_connect_tcp_opts, .sockets = sockets);
	ret = gx_connect(r->client.gx, r->addr, &o, &r->client.conn);
	if (!ret)
		ret = gx_conn_wait(r->client.conn, WAIT_NS);
	if (ret)
		return ret;
	UNTIL(r, atomic_load(&r->server.up));
	r->client.ep = gx_conn_ep(r->client.conn, 0);
	r->server.conn = atomic_load(&r->server.up);
	r->server.ep = gx_conn_ep(r->server.conn, 0);
	return 0;
}

static int rig_connect(struct rig *r, uint64_t sockets)
{
	return rig_connect_by(r, "tcp", sockets);
}

static void rig_free(struct rig *r)
{
	gx_close(r->client.gx);
	gx_close(r->server.gx);
	free(r->buf);
	free(r);
}

static struct gx_op op_to(struct rig *r, struct end *e, enum gx_op_kind kind, uint64_t len)
{
	struct gx_region kv = GX_INIT(kv);
	struct gx_op op = {.kind = kind, .addr = r->buf, .len = len};

	assert_int_equal(gx_conn_region(e->conn, "kv", 0, &kv), 0);
	op.token = kv.token;
	return op;
}

static void move(struct rig *r, struct end *from, struct end *to, uint64_t len)
{
	struct gx_op op = op_to(r, from, GX_OP_PUT, len);
	unsigned done = from->nr_done, notes = to->nr_notify;

	for (uint64_t i = 0; i < len; i++)
		r->buf[i] = (char)(i * 7 + i / 251 + len);
	op.flags = GX_OP_IMM;
	assert_int_equal(common_post(from->ep, &op, 1), 1);
	UNTIL(r, from->nr_done == done + 1 && to->nr_notify == notes + 1);
	assert_int_equal(from->last.status, 0);
	assert_memory_equal(to->base, r->buf, len);
	memset(r->buf, 0, len);
	op.kind = GX_OP_GET;
	op.flags = 0;
	assert_int_equal(common_post(from->ep, &op, 1), 1);
	UNTIL(r, from->nr_done == done + 2);
	assert_int_equal(from->last.status, 0);
	assert_memory_equal(to->base, r->buf, len);
}

/* The kernel ends a socket that the peer does not read, or that carries nothing any more. */
static void sockets_are_tuned(const struct end *e)
{
	const struct tcp_ep *t = tcp_of(e->ep);

	for (unsigned i = 0; i < t->nr_socks; i++) {
		unsigned ms = 0;
		int on = 0;
		socklen_t len = sizeof(ms);

		assert_int_equal(
			getsockopt(t->sock[i].fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, &len), 0);
		assert_int_equal(ms, 15000);
		len = sizeof(on);
		assert_int_equal(getsockopt(t->sock[i].fd, IPPROTO_TCP, TCP_NODELAY, &on, &len), 0);
		assert_true(on);
	}
}

static void connect__sockets(void **state)
{
	for (uint64_t n = 0; n <= TCP_SOCKS_MAX; n += n < 4 ? 1 : 6) {
		struct rig *r = rig_new(GX_INTEGRITY_MODE_AUTO);
		struct gx_conn_info info = GX_INIT(info);

		assert_int_equal(rig_connect(r, n), 0);
		assert_int_equal(tcp_of(r->client.ep)->nr_socks, n ? n : 1);
		assert_int_equal(tcp_of(r->server.ep)->nr_socks, n ? n : 1);
		assert_int_equal(gx_conn_info(r->client.conn, &info), 0);
		assert_string_equal(info.link, "tcp");
		assert_string_equal(info.port, "tcp");
		assert_int_equal(info.integrity, GX_INTEGRITY_MODE_NONE);
		assert_non_null(strstr(info.why, "asked for"));
		sockets_are_tuned(&r->client);
		sockets_are_tuned(&r->server);
		move(r, &r->client, &r->server, 5);
		move(r, &r->server, &r->client, (3 << 20) + 1);
		rig_free(r);
	}
}

static void connect__refused(void **state)
{
	struct rig *r = rig_new(GX_INTEGRITY_MODE_CRC32C);
	struct gx_connect_opts o = GX_INIT(o);

	o.link = "tcp";
	o.ports = &(struct gx_port_name){.name = "shm"};
	o.nr_ports = 1;
	assert_int_equal(gx_connect(r->client.gx, r->addr, &o, &r->client.conn), -EINVAL);
	assert_non_null(strstr(gx_error(), "uses no port"));
	assert_int_equal(rig_connect(r, 1), -EOPNOTSUPP);
	rig_free(r);
	r = rig_new(GX_INTEGRITY_MODE_AUTO);
	assert_int_equal(rig_connect(r, TCP_SOCKS_MAX + 1), -EINVAL);
	assert_non_null(strstr(gx_error(), "gx_connect_tcp_opts.sockets is 17: 1 to 16"));
	rig_free(r);
}

static char warned[1024];

static void warn_keep(void *arg, int level, const char *line)
{
	if (level == GX_LOG_WARN)
		snprintf(warned, sizeof(warned), "%s", line);
}

/* The ends have no port in common: link tcp, and gx says so. Not where the user named something. */
static void connect__last_resort(void **state)
{
	struct rig *r = rig_make("udp", GX_INTEGRITY_MODE_AUTO);
	struct gx_conn_info info = GX_INIT(info);

	assert_int_equal(rig_connect_by(r, "packet", 0), -ENODEV);
	assert_non_null(strstr(gx_error(), "no port that both ends can use"));
	gx_conn_close(r->client.conn);
	gx_log_sink(warn_keep, NULL);
	warned[0] = 0;
	assert_int_equal(rig_connect_by(r, NULL, 0), 0);
	gx_log_sink(NULL, NULL);
	assert_non_null(strstr(warned, "the last resort"));
	assert_int_equal(gx_conn_info(r->client.conn, &info), 0);
	assert_string_equal(info.link, "tcp");
	assert_int_equal(info.payload_max_b, 0); /* no port: no packets */
	assert_non_null(strstr(info.why, "shm not offered by the peer"));
	assert_non_null(strstr(info.why, "the last resort"));
	move(r, &r->client, &r->server, 70000);
	rig_free(r);
}

static void stranger_sent_away(struct rig *r, const struct gx_hello_data *hello)
{
	struct sockaddr_in sa = {.sin_family = AF_INET,
				 .sin_port = htons((uint16_t)r->port),
				 .sin_addr = {htonl(INADDR_LOOPBACK)}};
	uint8_t frame[64], in[256];
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	uint32_t len = gx_hello_data_put(frame, hello);

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	assert_int_equal(send(fd, frame, len, 0), len);
	while (recv(fd, in, sizeof(in), 0) > 0)
		;
	close(fd);
}

/* A stranger with a token that nobody waits for is sent away, and others do not notice. */
static void stranger__has_no_token(void **state)
{
	struct rig *r = rig_new(GX_INTEGRITY_MODE_AUTO);
	struct gx_hello_data hello = {.token = {1, 2, 3}};

	assert_int_equal(rig_connect(r, 2), 0);
	stranger_sent_away(r, &hello);
	move(r, &r->client, &r->server, 70000);
	/* Neither does the right token help once the connection is up. */
	memcpy(hello.token, r->server.conn->socks->token, sizeof(hello.token));
	stranger_sent_away(r, &hello);
	move(r, &r->client, &r->server, 70000);
	rig_free(r);
}

/* In each moment of the set-up. */
static void close__during_set_up(void **state)
{
	struct rig *r = rig_new(GX_INTEGRITY_MODE_AUTO);
	struct gx_connect_opts o = GX_INIT(o);

	o.link = "tcp";
	o.tcp = GX_WITH(gx_connect_tcp_opts, .sockets = 4);
	for (unsigned i = 0; i < 60; i++) {
		struct gx_conn *c;

		assert_int_equal(gx_connect(r->client.gx, r->addr, &o, &c), 0);
		nanosleep(&(struct timespec){.tv_nsec = i * 50000l}, NULL);
		gx_conn_close(c);
		turn(&r->server);
		turn(&r->client);
	}
	for (uint64_t until = gx_now() + 100000000; gx_now() < until;) {
		turn(&r->server);
		turn(&r->client);
	}
	atomic_store(&r->server.up, NULL);
	assert_int_equal(rig_connect(r, 2), 0);
	move(r, &r->client, &r->server, 70000);
	rig_free(r);
}

/* A child has no data socket: the peer sees its parent's death. */
static void fork__child_has_no_sockets(void **state)
{
	struct rig *r = rig_new(GX_INTEGRITY_MODE_AUTO);
	int fds[3], status;
	pid_t pid;

	assert_int_equal(rig_connect(r, 3), 0);
	for (unsigned i = 0; i < 3; i++) /* the child has no pages of the endpoint */
		fds[i] = tcp_of(r->client.ep)->sock[i].fd;
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		unsigned open = 0;

		for (unsigned i = 0; i < 3; i++)
			open += fcntl(fds[i], F_GETFD) >= 0;
		_exit((int)open);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	move(r, &r->client, &r->server, 70000);
	rig_free(r);
}

static void close__is_orderly(void **state)
{
	struct rig *r = rig_new(GX_INTEGRITY_MODE_AUTO);

	assert_int_equal(rig_connect(r, 4), 0);
	move(r, &r->client, &r->server, 100);
	gx_conn_close(r->client.conn);
	UNTIL(r, atomic_load(&r->server.nr_down));
	assert_int_equal(atomic_load(&r->server.down_err), 0);
	rig_free(r);
}

/* A data socket breaks, and the bootstrap connection does not. */
static void socket__cut_off(void **state)
{
	struct rig *r = rig_new(GX_INTEGRITY_MODE_AUTO);
	struct gx_conn_info info = GX_INIT(info);
	struct gx_op op;

	assert_int_equal(rig_connect(r, 3), 0);
	op = op_to(r, &r->client, GX_OP_PUT, KV_B);
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	shutdown(tcp_of(r->client.ep)->sock[1].fd, SHUT_RDWR);
	UNTIL(r, atomic_load(&r->server.nr_down) && atomic_load(&r->client.nr_down));
	UNTIL(r, r->client.nr_done == 1);
	assert_true(r->client.last.status == -ECONNRESET || !r->client.last.status);
	assert_int_equal(gx_conn_info(r->client.conn, &info), 0);
	assert_int_equal(info.err, -ECONNRESET);
	assert_non_null(strstr(info.text, "data socket"));
	rig_free(r);
}

/* The link of a gx that was built without memory of NICs: whoever asks for that hears of the cure. */
static void plain__refuses_nics(void **state)
{
	static const struct gx_nic_opts good[] = {{.tx = GX_NIC_TX_COPY},
						  {.tx = GX_NIC_TX_AUTO},
						  {.tx = GX_NIC_TX_AUTO, .tx_if = "eth0"}},
					bad[] = {{.rx_if = "eth0"},
						 {.tx_if = "eth0"},
						 {.rx = GX_NIC_RX_DEVMEM},
						 {.tx = GX_NIC_TX_DEVMEM, .tx_if = "eth0"},
						 {.tx = GX_NIC_TX_AUTO + 1}};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(good); i++)
		assert_int_equal(gx_link_tcp.ctx->check(&(struct gx_opts){.nic = &good[i]}), 0);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++) {
		assert_int_equal(gx_link_tcp.ctx->check(&(struct gx_opts){.nic = &bad[i]}),
				 -EINVAL);
		assert_non_null(strstr(gx_error(), bad[i].rx || bad[i].rx_if ? "gx_nic_opts.rx"
									     : "gx_nic_opts.tx"));
		assert_non_null(strstr(gx_error(), "-Dnic_memory=true"));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(connect__sockets),
		cmocka_unit_test(connect__refused),
		cmocka_unit_test(connect__last_resort),
		cmocka_unit_test(stranger__has_no_token),
		cmocka_unit_test(close__during_set_up),
		cmocka_unit_test(fork__child_has_no_sockets),
		cmocka_unit_test(close__is_orderly),
		cmocka_unit_test(socket__cut_off),
		cmocka_unit_test(plain__refuses_nics),
	};

	return cmocka_run_group_tests_name("link_tcp", tests, NULL, NULL);
}
