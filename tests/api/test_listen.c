/* SPDX-License-Identifier: Apache-2.0 */
/* Listeners: whose a connection is, who is asked and refused, and the bytes that the ends give. */
#include "kit/common_gx.h"

#include <gx/listen.h>

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MANY 40 /* more than 8, the limit of earlier versions */

/* What the server's on_conn saw. The control thread writes @seen; seen_wait() copies it to @now. */
struct saw {
	unsigned asked, up, down;
	enum gx_reason reason; /* of the last DOWN */
	struct gx_conn *conn;  /* of the last event */
	struct gx_listener *listener;
	void *user;
	char data[GX_CONN_DATA_MAX];
	uint32_t data_len;
};
static struct saw seen, now;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;

/* What on_conn shall do when it is asked. */
static struct {
	_Atomic bool refuse, close, close_listener;
} act;

struct rig {
	struct gx *server, *client;
};

static void asked_act(struct gx_conn *conn)
{
	struct gx_conn_info info = GX_INIT(info);

	assert_int_equal(gx_conn_info(conn, &info), 0);
	assert_string_equal(info.port, "shm");
	if (act.close_listener)
		gx_listener_close(gx_conn_listener(conn));
	if (act.close)
		gx_conn_close(conn);
	if (act.refuse)
		assert_int_equal(gx_conn_refuse(conn, "no room for you"), 0);
}

static void on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
		    const char *why)
{
	struct gx_conn_info info = GX_INIT(info);
	const void *data;

	pthread_mutex_lock(&lock);
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
	gx_conn_info(conn, &info);
	if (event == GX_CONN_EVENT_DOWN)
		seen.reason = info.reason;
	pthread_mutex_unlock(&lock);
	if (event == GX_CONN_EVENT_ASKED)
		asked_act(conn);
	if (event == GX_CONN_EVENT_DOWN)
		gx_conn_close(conn);
	pthread_mutex_lock(&lock);
	pthread_cond_broadcast(&cond);
	pthread_mutex_unlock(&lock);
}

/* @count: of @seen */
static void seen_wait(const unsigned *count, unsigned n)
{
	pthread_mutex_lock(&lock);
	while (*count < n)
		pthread_cond_wait(&cond, &lock);
	assert_int_equal(*count, n);
	now = seen;
	pthread_mutex_unlock(&lock);
}

static int setup(void **state)
{
	static struct rig r;
	struct gx_opts o = {0};

	act.refuse = act.close = act.close_listener = false;
	seen = now = (struct saw){0}; /* nothing of gx runs */
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
		assert_ptr_equal(now.user, &user[i * (MANY - 1)]);
		assert_ptr_equal(now.listener, l[i * (MANY - 1)]);
	}
	assert_ptr_equal(gx_conn_listener(now.conn), l[MANY - 1]);
	gx_listener_close(l[MANY - 1]);
	assert_null(gx_conn_listener(now.conn));
	assert_int_equal(listen_at(r, port[MANY - 1], NULL, &l[MANY - 1]), port[MANY - 1]);
	gx_listen_stop(r->server); /* has no part in these */
	conn_up_wait(dial(r, port[0], NULL, 0));
	seen_wait(&seen.up, 3);
	conn_up_wait(dial(r, port[MANY - 1], NULL, 0));
	seen_wait(&seen.up, 4);
	assert_null(now.user);
	conn_up_wait(c[1]);
	assert_int_equal(now.down + now.asked, 0);
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
	assert_int_equal(now.data_len, sizeof(there));
	assert_memory_equal(now.data, there, sizeof(there));
	conn_up_wait(conn);
	data = gx_conn_data(conn, &len);
	assert_int_equal(len, sizeof(back));
	assert_memory_equal(data, "\1\0\2", sizeof(back));
	seen_wait(&seen.up, 1);
	conn_up_wait(dial(r, port, "x", 1));
	seen_wait(&seen.up, 2);
	assert_int_equal(now.data_len, 1);
	conn_up_wait(dial(r, port, NULL, 0));
	seen_wait(&seen.up, 3);
	assert_int_equal(now.data_len, 0);
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
	act.refuse = true;
	for (unsigned i = 0; i < 3; i++) {
		conn = dial(r, port, NULL, 0);
		assert_int_equal(gx_conn_wait(conn, COMMON_WAIT_NS), -ECONNREFUSED);
		assert_non_null(strstr(gx_error(), "no room for you"));
		assert_int_equal(gx_conn_info(conn, &info), 0);
		assert_int_equal(info.reason, GX_REASON_REFUSED);
		assert_string_equal(gx_reason_name(info.reason), "refused");
		gx_conn_close(conn);
	}
	seen_wait(&seen.asked, 3);
	act.refuse = false;
	conn_up_wait(dial(r, port, NULL, 0));
	seen_wait(&seen.up, 1);
	assert_int_equal(now.down, 0); /* of those refused nothing more is heard */
	assert_int_equal(gx_conn_refuse(now.conn, "too late"), -EINVAL);
	conn_up_wait(now.conn);
}

static void asked__program_closes(void **state)
{
	struct gx_listen_opts o = GX_INIT(o);
	struct rig *r = *state;
	struct gx_listener *l;
	int port;

	o.ask = true;
	port = listen_at(r, 0, &o, &l);
	act.close = true;
	assert_int_not_equal(gx_conn_wait(dial(r, port, NULL, 0), COMMON_WAIT_NS), 0);
	seen_wait(&seen.down, 1); /* what was asked and not refused hears its end */
	assert_int_equal(now.reason, GX_REASON_CLOSED);
	assert_int_equal(now.up, 0);
	act.refuse = true; /* after the close: nothing more */
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
	act.close_listener = true;
	conn_up_wait(dial(r, port, NULL, 0));
	seen_wait(&seen.up, 1);
	assert_null(now.listener);
	for (unsigned i = 0; i < 20000 && listen_at(r, port, NULL, &l) != port; i++)
		usleep(1000);
	act.close_listener = false;
	conn_up_wait(dial(r, port, NULL, 0));
	assert_int_equal(now.asked, 1);
}

/* A client that connects and says nothing. */
static int mute_client(int port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET,
				 .sin_port = htons((uint16_t)port),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct timeval limit = {.tv_sec = 2}; /* the set-up alone would end after 5 s */
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	return fd;
}

/* Who is in set-up there hears so at once; who is up there, and in set-up elsewhere, stays. */
static void gx_listener_close__refuses_clients_in_setup(void **state)
{
	struct rig *r = *state;
	struct gx_listen_opts o = GX_INIT(o);
	struct gx_listener *l[2];
	int port[2], fd[2];
	struct gx_conn *up;
	char heard[4096];
	size_t n = 0;
	ssize_t ret;

	for (unsigned i = 0; i < 2; i++) {
		port[i] = listen_at(r, 0, &o, &l[i]);
		fd[i] = mute_client(port[i]);
		up = dial(r, port[i], NULL, 0); /* accepted after the mute one */
		conn_up_wait(up);
		seen_wait(&seen.up, i + 1);
	}
	gx_listener_close(l[1]);
	while ((ret = recv(fd[1], heard + n, sizeof(heard) - n, 0)) > 0)
		n += (size_t)ret;
	assert_int_equal(ret, 0);
	assert_non_null(memmem(heard, n, "stopped to listen", 17));
	while ((ret = recv(fd[0], heard, sizeof(heard), MSG_DONTWAIT)) > 0)
		;
	assert_int_equal(ret, -1);
	assert_int_equal(errno, EAGAIN);
	conn_up_wait(up);
	seen_wait(&seen.down, 0);
	close(fd[0]);
	close(fd[1]);
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
		cmocka_unit_test_setup_teardown(gx_listener_close__refuses_clients_in_setup, setup,
						teardown),
		cmocka_unit_test_setup_teardown(gx_listen_with__errors, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
