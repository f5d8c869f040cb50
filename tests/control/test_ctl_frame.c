/* SPDX-License-Identifier: Apache-2.0 */
/* Frames in and deadlines: peers that are silent, slow or no gx. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <semaphore.h>
#include <unistd.h>

#include "control/ctl_rig.h"

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

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(connect__stands_itself),
		TEST(fail__refused),
		TEST(fail__silent_server),
		TEST(fail__stuck_server),
		TEST(fail__not_gx),
		TEST(server__random_bytes),
		TEST(server__slow_client),
		TEST(server__oversized_frame),
		TEST(server__largest_frame),
		TEST(server__silent_client),
		TEST(server__message_out_of_turn),
		TEST(client__message_out_of_turn),
		TEST(link__says),
	};

	return rig_run("ctl_frame", tests, GX_ARRAY_SIZE(tests));
}
