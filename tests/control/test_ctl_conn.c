/* SPDX-License-Identifier: Apache-2.0 */
/* A connection that is up: messages, and the way down. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <unistd.h>

#include "control/ctl_rig.h"

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
	for (unsigned i = 0; i < 2000 && ret; i++) {
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
	snprintf(pid, sizeof(pid), "pid %d conn 0 is gone", getpid());
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

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(msg__order_and_size),
		TEST(msg__too_long_from_the_peer),
		TEST(msg__peer_does_not_read),
		TEST(msg__close_inside_on_msg),
		TEST(bye__messages_before_it_arrive),
		TEST(bye__while_connecting),
		TEST(down__abrupt),
		TEST(down__fault_is_told_to_the_peer),
		TEST(close__everything_in_flight),
	};

	return rig_run("ctl_conn", tests, GX_ARRAY_SIZE(tests));
}
