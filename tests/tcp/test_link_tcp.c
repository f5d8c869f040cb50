/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp link between two contexts of one process, set up by the real control path over loopback
 * and turned by this thread: who gets it, its sockets, strangers at them, and both kinds of end.
 * What an endpoint does with its sockets is in test_tcp.c.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gx/gx.h"
#include "tcp/tcp.h"

#include <cmocka.h>

#include "kit/common_gx.h"

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

static void end_open(struct end *e, bool server, enum gx_integrity_mode integrity)
{
	struct gx_opts o = {.server = server, .on_conn = on_conn, .arg = e, .integrity = integrity};

	assert_int_equal(common_gx_open(o, "shm", &e->gx), 0);
	e->core = gx_core(e->gx, 0);
	assert_int_equal(gx_mem_alloc(e->gx, GX_MEM_HOST, 0, KV_B, &e->kv), 0);
	assert_int_equal(gx_mem_share(e->kv, "kv", GX_ACCESS_PUT | GX_ACCESS_GET), 0);
	e->base = gx_mem_addr(e->kv);
}

static void turn(struct end *e)
{
	struct gx_comp comp;

	gx_core_turn(e->core, gx_now());
	while (gx_poll(e->core, &comp, 1)) {
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

static struct rig *rig_new(enum gx_integrity_mode integrity)
{
	struct rig *r = calloc(1, sizeof(*r));

	assert_non_null(r);
	r->buf = calloc(1, KV_B);
	assert_non_null(r->buf);
	end_open(&r->server, true, GX_INTEGRITY_MODE_AUTO);
	end_open(&r->client, false, integrity);
	r->port = gx_listen(r->server.gx, "127.0.0.1:0");
	assert_true(r->port > 0);
	snprintf(r->addr, sizeof(r->addr), "127.0.0.1:%d", r->port);
	return r;
}

static int rig_connect(struct rig *r, uint64_t sockets)
{
	struct gx_connect_opts o = GX_INIT(o);
	int ret;

	o.link = "tcp";
	o.sockets = sockets;
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
	assert_int_equal(gx_post(from->ep, &op, 1), 1);
	UNTIL(r, from->nr_done == done + 1 && to->nr_notify == notes + 1);
	assert_int_equal(from->last.status, 0);
	assert_memory_equal(to->base, r->buf, len);
	memset(r->buf, 0, len);
	op.kind = GX_OP_GET;
	op.flags = 0;
	assert_int_equal(gx_post(from->ep, &op, 1), 1);
	UNTIL(r, from->nr_done == done + 2);
	assert_int_equal(from->last.status, 0);
	assert_memory_equal(to->base, r->buf, len);
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
	o.port = "shm";
	assert_int_equal(gx_connect(r->client.gx, r->addr, &o, &r->client.conn), -EINVAL);
	assert_non_null(strstr(gx_error(), "uses no port"));
	assert_int_equal(rig_connect(r, TCP_SOCKS_MAX + 1), -EINVAL);
	assert_non_null(strstr(gx_error(), "sockets"));
	assert_int_equal(rig_connect(r, 1), -EOPNOTSUPP);
	rig_free(r);
}

/* A stranger with a token that nobody waits for is sent away, and others do not notice. */
static void stranger__has_no_token(void **state)
{
	struct rig *r = rig_new(GX_INTEGRITY_MODE_AUTO);
	struct sockaddr_in sa = {.sin_family = AF_INET,
				 .sin_port = htons((uint16_t)r->port),
				 .sin_addr = {htonl(INADDR_LOOPBACK)}};
	struct gx_hello_data hello = {.token = {1, 2, 3}};
	uint8_t frame[64], in[256];
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	uint32_t len = gx_hello_data_put(frame, &hello);

	assert_int_equal(rig_connect(r, 2), 0);
	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	assert_int_equal(send(fd, frame, len, 0), len);
	while (recv(fd, in, sizeof(in), 0) > 0)
		;
	close(fd);
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
	assert_int_equal(gx_post(r->client.ep, &op, 1), 1);
	shutdown(tcp_of(r->client.ep)->sock[1].fd, SHUT_RDWR);
	UNTIL(r, atomic_load(&r->server.nr_down) && atomic_load(&r->client.nr_down));
	UNTIL(r, r->client.nr_done == 1);
	assert_true(r->client.last.status == -ECONNRESET || !r->client.last.status);
	assert_int_equal(gx_conn_info(r->client.conn, &info), 0);
	assert_int_equal(info.err, -ECONNRESET);
	assert_non_null(strstr(info.text, "data socket"));
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(connect__sockets),	  cmocka_unit_test(connect__refused),
		cmocka_unit_test(stranger__has_no_token), cmocka_unit_test(close__is_orderly),
		cmocka_unit_test(socket__cut_off),
	};

	return cmocka_run_group_tests_name("link_tcp", tests, NULL, NULL);
}
