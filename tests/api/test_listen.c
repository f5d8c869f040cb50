/* SPDX-License-Identifier: Apache-2.0 */
/* Listeners: whose a connection is, who is asked and refused, and the bytes that the ends give. */
#include "kit/common_gx.h"

#include <gx/listen.h>

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define MANY 40 /* more than 8, the limit of earlier versions */

/* What the server's on_conn saw, and what it shall do. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	unsigned asked, up, down;
	enum gx_reason reason; /* of the last DOWN */
	struct gx_conn *conn;  /* of the last event */
	struct gx_listener *listener;
	void *user;
	char data[GX_CONN_DATA_MAX];
	uint32_t data_len;
	bool refuse, close, close_listener;
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};

struct rig {
	struct gx *server, *client;
};

static void asked_act(struct gx_conn *conn)
{
	struct gx_conn_info info = GX_INIT(info);

	assert_int_equal(gx_conn_info(conn, &info), 0);
	assert_string_equal(info.port, "shm");
	if (seen.close_listener)
		gx_listener_close(gx_conn_listener(conn));
	if (seen.close)
		gx_conn_close(conn);
	if (seen.refuse)
		assert_int_equal(gx_conn_refuse(conn, "no room for you"), 0);
}

static void on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
		    const char *why)
{
	struct gx_conn_info info = GX_INIT(info);
	const void *data;

	pthread_mutex_lock(&seen.lock);
	seen.asked += event == GX_CONN_EVENT_ASKED;
	seen.up += event == GX_CONN_EVENT_UP;
	seen.down += event == GX_CONN_EVENT_DOWN;
	seen.conn = conn;
	seen.listener = gx_conn_listener(conn);
	seen.user = gx_conn_user(conn);
	data = gx_conn_data(conn, &seen.data_len);
	assert_int_equal(!data, !seen.data_len);
	if (data)
		memcpy(seen.data, data, seen.data_len);
	pthread_mutex_unlock(&seen.lock);
	if (event == GX_CONN_EVENT_ASKED)
		asked_act(conn);
	if (event == GX_CONN_EVENT_DOWN) {
		gx_conn_info(conn, &info);
		seen.reason = info.reason;
		gx_conn_close(conn);
	}
	pthread_mutex_lock(&seen.lock);
	pthread_cond_broadcast(&seen.cond);
	pthread_mutex_unlock(&seen.lock);
}

static void seen_wait(unsigned *count, unsigned n)
{
	pthread_mutex_lock(&seen.lock);
	while (*count < n)
		pthread_cond_wait(&seen.cond, &seen.lock);
	assert_int_equal(*count, n);
	pthread_mutex_unlock(&seen.lock);
}

static int setup(void **state)
{
	static struct rig r;
	struct gx_opts o = {0};

	seen.asked = seen.up = seen.down = 0;
	seen.refuse = seen.close = seen.close_listener = false;
	seen.reason = GX_REASON_NONE;
	assert_int_equal(common_gx_open(o, "shm", &r.client), 0);
	o.server = true;
	o.on_conn = on_conn;
	assert_int_equal(common_gx_open(o, "shm", &r.server), 0);
	*state = &r;
	return 0;
}

static int teardown(void **state)
{
	struct rig *r = *state;

	gx_close(r->client);
	gx_close(r->server);
	return 0;
}

/* @o: NULL: all default. Return: the port. */
static int listen_at(struct rig *r, int port, const struct gx_listen_opts *o,
		     struct gx_listener **l)
{
	char addr[32];

	snprintf(addr, sizeof(addr), "127.0.0.1:%d", port);
	return gx_listen_with(r->server, addr, o, l);
}

static struct gx_conn *dial(struct rig *r, int port, const void *data, uint32_t len)
{
	struct gx_connect_opts o = GX_INIT(o);
	struct gx_conn *conn;
	char addr[32];

	snprintf(addr, sizeof(addr), "127.0.0.1:%d", port);
	o.data = data;
	o.data_len = len;
	o.timeout_ns = COMMON_WAIT_NS;
	assert_int_equal(gx_connect(r->client, addr, &o, &conn), 0);
	return conn;
}

static void conn_up_wait(struct gx_conn *conn)
{
	if (gx_conn_wait(conn, COMMON_WAIT_NS))
		fail_msg("not up: %s", gx_error());
}

static void gx_listen_with__many(void **state)
{
	struct gx_listen_opts o = GX_INIT(o);
	struct gx_listener *l[MANY];
	struct rig *r = *state;
	struct gx_conn *c[2];
	int port[MANY], user[MANY];

	for (unsigned i = 0; i < MANY; i++) {
		o.user = &user[i];
		port[i] = listen_at(r, 0, &o, &l[i]);
		assert_true(port[i] > 0);
	}
	for (unsigned i = 0; i < 2; i++) {
		c[i] = dial(r, port[i * (MANY - 1)], NULL, 0);
		conn_up_wait(c[i]);
		seen_wait(&seen.up, i + 1);
		assert_ptr_equal(seen.user, &user[i * (MANY - 1)]);
		assert_ptr_equal(seen.listener, l[i * (MANY - 1)]);
	}
	assert_ptr_equal(gx_conn_listener(seen.conn), l[MANY - 1]);
	gx_listener_close(l[MANY - 1]);
	assert_null(gx_conn_listener(seen.conn));
	assert_int_equal(listen_at(r, port[MANY - 1], NULL, &l[MANY - 1]), port[MANY - 1]);
	gx_listen_stop(r->server); /* has no part in these */
	conn_up_wait(dial(r, port[0], NULL, 0));
	conn_up_wait(dial(r, port[MANY - 1], NULL, 0));
	seen_wait(&seen.up, 4);
	assert_null(seen.user);
	conn_up_wait(c[1]);
	assert_int_equal(seen.down + seen.asked, 0);
}

static void gx_conn_data__both_ways(void **state)
{
	struct gx_listen_opts o = GX_INIT(o);
	char there[GX_CONN_DATA_MAX], back[3] = {1, 0, 2};
	struct rig *r = *state;
	struct gx_listener *l;
	struct gx_conn *conn;
	const void *data;
	uint32_t len;
	int port;

	memset(there, 0x5a, sizeof(there));
	o.data = back;
	o.data_len = sizeof(back);
	o.ask = true;
	port = listen_at(r, 0, &o, &l);
	memset(back, 0, sizeof(back)); /* gx has copied it */
	conn = dial(r, port, there, sizeof(there));
	seen_wait(&seen.asked, 1);
	assert_int_equal(seen.data_len, sizeof(there));
	assert_memory_equal(seen.data, there, sizeof(there));
	conn_up_wait(conn);
	data = gx_conn_data(conn, &len);
	assert_int_equal(len, sizeof(back));
	assert_memory_equal(data, "\1\0\2", sizeof(back));
	seen_wait(&seen.up, 1);
	conn_up_wait(dial(r, port, "x", 1));
	seen_wait(&seen.up, 2);
	assert_int_equal(seen.data_len, 1);
	conn_up_wait(dial(r, port, NULL, 0));
	seen_wait(&seen.up, 3);
	assert_int_equal(seen.data_len, 0);
}

static void gx_conn_refuse__tells_the_client(void **state)
{
	struct gx_listen_opts o = GX_INIT(o);
	struct gx_conn_info info = GX_INIT(info);
	struct rig *r = *state;
	struct gx_listener *l;
	struct gx_conn *conn;
	int port;

	o.ask = true;
	port = listen_at(r, 0, &o, &l);
	seen.refuse = true;
	for (unsigned i = 0; i < 3; i++) {
		conn = dial(r, port, NULL, 0);
		assert_int_equal(gx_conn_wait(conn, COMMON_WAIT_NS), -ECONNREFUSED);
		assert_non_null(strstr(gx_error(), "no room for you"));
		assert_int_equal(gx_conn_info(conn, &info), 0);
		assert_int_equal(info.reason, GX_REASON_REFUSED);
		assert_string_equal(gx_reason_name(info.reason), "refused");
		gx_conn_close(conn);
	}
	assert_int_equal(seen.asked, 3);
	seen.refuse = false;
	conn_up_wait(dial(r, port, NULL, 0));
	seen_wait(&seen.up, 1);
	assert_int_equal(seen.down, 0); /* of those refused nothing more is heard */
	assert_int_equal(gx_conn_refuse(seen.conn, "too late"), -EINVAL);
	conn_up_wait(seen.conn);
}

static void asked__program_closes(void **state)
{
	struct gx_listen_opts o = GX_INIT(o);
	struct rig *r = *state;
	struct gx_listener *l;
	int port;

	o.ask = true;
	port = listen_at(r, 0, &o, &l);
	seen.close = true;
	assert_int_not_equal(gx_conn_wait(dial(r, port, NULL, 0), COMMON_WAIT_NS), 0);
	seen_wait(&seen.down, 1); /* what was asked and not refused hears its end */
	assert_int_equal(seen.reason, GX_REASON_CLOSED);
	assert_int_equal(seen.up, 0);
	seen.refuse = true; /* after the close: nothing more */
	assert_int_not_equal(gx_conn_wait(dial(r, port, NULL, 0), COMMON_WAIT_NS), 0);
	seen_wait(&seen.down, 2);
}

/* The connection that was asked comes up all the same, and the port is free. */
static void asked__program_closes_the_listener(void **state)
{
	struct gx_listen_opts o = GX_INIT(o);
	struct rig *r = *state;
	struct gx_listener *l;
	int port;

	o.ask = true;
	port = listen_at(r, 0, &o, &l);
	seen.close_listener = true;
	conn_up_wait(dial(r, port, NULL, 0));
	seen_wait(&seen.up, 1);
	assert_null(seen.listener);
	for (unsigned i = 0; i < 1000 && listen_at(r, port, NULL, &l) != port; i++)
		usleep(1000);
	seen.close_listener = false;
	conn_up_wait(dial(r, port, NULL, 0));
	assert_int_equal(seen.asked, 1);
}

static void gx_listen_with__errors(void **state)
{
	struct gx_listen_opts o = GX_INIT(o);
	struct gx_connect_opts c = GX_INIT(c);
	char data[GX_CONN_DATA_MAX + 1] = "";
	struct rig *r = *state;
	struct gx_listener *l;
	struct gx_conn *conn;

	o.data = data;
	o.data_len = sizeof(data);
	assert_int_equal(listen_at(r, 0, &o, &l), -EINVAL);
	assert_non_null(strstr(gx_error(), "gx_listen_opts.data_len"));
	o.data = NULL;
	o.data_len = 1;
	assert_int_equal(listen_at(r, 0, &o, &l), -EINVAL);
	o.data_len = 0;
	o.ask = true;
	assert_int_equal(gx_listen_with(r->client, "127.0.0.1:0", &o, &l), -EINVAL);
	assert_non_null(strstr(gx_error(), "on_conn"));
	c.data = data;
	c.data_len = sizeof(data);
	assert_int_equal(gx_connect(r->client, "127.0.0.1:1", &c, &conn), -EINVAL);
	gx_listener_close(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(gx_listen_with__many, setup, teardown),
		cmocka_unit_test_setup_teardown(gx_conn_data__both_ways, setup, teardown),
		cmocka_unit_test_setup_teardown(gx_conn_refuse__tells_the_client, setup, teardown),
		cmocka_unit_test_setup_teardown(asked__program_closes, setup, teardown),
		cmocka_unit_test_setup_teardown(asked__program_closes_the_listener, setup,
						teardown),
		cmocka_unit_test_setup_teardown(gx_listen_with__errors, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
