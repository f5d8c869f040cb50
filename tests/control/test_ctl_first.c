/* SPDX-License-Identifier: Apache-2.0 */
/* Who is let in: keys and TLS between two contexts, a TLS peer made by hand, and strangers. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <netinet/in.h>
#include <unistd.h>

#include "control/ctl_hand.h"

static const uint8_t other[AUTH_SECRET_B] = "0123456789abcdef0123456789abcdf";

static char log_text[256];

static void log_begin(void)
{
	log_text[0] = 0;
	gx_log_sink(log_keep, log_text);
	gx_log_level_set(GX_LOG_WARN);
}

static void log_end(const char *says)
{
	for (unsigned i = 0; i < WAIT_S * 100 && !strstr(log_text, says); i++)
		sleep_ms(10);
	gx_log_sink(NULL, NULL);
	gx_log_level_set(GX_LOG_ERR);
	assert_says(log_text, says);
}

/* ---- Two contexts ---- */

static void key__up(void **state)
{
	static uint8_t data[CTL_USER_MAX];
	struct auth_dir dir = {AUTH_PACKET, 1, 3};
	struct auth_secret secret;
	struct gx_conn *c;
	char addr[32];

	hand_keys();
	server_listen(addr);
	c = both_up(addr, NULL);
	wait_up(server, 1);
	for (uint32_t i = 0; i < 200; i++) {
		memcpy(data, &i, 4);
		assert_int_equal(ctl_msg(c, data, i % 5 ? 4 + i : CTL_USER_MAX), 0);
		assert_int_equal(ctl_msg(server->up, data, i % 7 ? 4 + i : CTL_USER_MAX), 0);
	}
	assert_true(fake_wait(server, &server->nr_msgs, 200));
	assert_true(fake_wait(client, &client->nr_msgs, 200));
	for (uint32_t i = 0; i < 200; i++) {
		assert_int_equal(server->msg_first[i], i);
		assert_int_equal(client->msg_first[i], i);
		assert_int_equal(server->msg_len[i], i % 5 ? 4 + i : CTL_USER_MAX);
		assert_int_equal(client->msg_len[i], i % 7 ? 4 + i : CTL_USER_MAX);
	}
	/* The lanes have theirs; what they were made of is wiped. */
	assert_int_equal(c->secret(c, &dir, &secret), -ENOTCONN);
	assert_int_equal(server->up->secret(server->up, &dir, &secret), -ENOTCONN);
	ctl_bye(c);
	wait_down(server, 1, 0, GX_REASON_PEER_CLOSED);
	assert_says(server->text, "closed the connection");
}

static void key__other_secret(void **state)
{
	char addr[32];

	hand_keys();
	hand_key(&client->own, "kv", other);
	server_listen(addr);
	log_begin();
	client_connect(addr, NULL);
	wait_down(client, 1, -EACCES, GX_REASON_AUTH);
	assert_says(client->text, "does not take key kv");
	log_end("shows key kv, with another secret");
	wait_bad(server, 1);
	wait_conns(server, 0);
}

/* The client hears the same. */
static void key__unknown_name(void **state)
{
	char addr[32], text[256];

	hand_keys();
	hand_key(&client->own, "old", hand_secret);
	server_listen(addr);
	log_begin();
	client_connect(addr, NULL);
	wait_down(client, 1, -EACCES, GX_REASON_AUTH);
	assert_says(client->text, "another secret of that name, or none");
	memcpy(text, client->text, sizeof(text));
	log_end("shows key old, which is not known here");
	hand_key(&server->served, "old", other);
	client_connect(addr, NULL);
	wait_down(client, 2, -EACCES, GX_REASON_AUTH);
	assert_string_equal(text, client->text);
	wait_conns(server, 0);
}

/* A client that wants a name meets no other server with its key, wherever it is brought; who wants none
 * meets any. */
static void key__name_of_the_server(void **state)
{
	static const struct {
		const char *server, *wanted;
		bool up;
	} cases[] = {{"a", "a", true},	{"b", "a", false},  {NULL, "a", false},
		     {"a", NULL, true}, {"a", "aa", false}, {"aa", "a", false}};
	unsigned nr_up = 0, nr_down = 0;
	char addr[32];

	hand_keys();
	server_listen(addr);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(cases); i++) {
		CTL_SET(server, name, cases[i].server);
		log_begin();
		client_connect(addr, &(struct gx_connect_opts){.peer = cases[i].wanted});
		if (cases[i].up) {
			wait_up(client, ++nr_up);
			continue;
		}
		wait_down(client, ++nr_down, -EACCES, GX_REASON_AUTH);
		assert_says(client->text, "or another gx_auth_opts.name");
		log_end("or wants another gx_auth_opts.name");
	}
	gx_log_sink(NULL, NULL);
	assert_int_equal(ctl_connect(client_conn(), addr, &(struct gx_connect_opts){.peer = ""}),
			 -EINVAL);
	client->own.k.name[0] = 0;
	assert_int_equal(ctl_connect(client_conn(), addr, &(struct gx_connect_opts){.peer = "a"}),
			 -EINVAL);
	assert_says(gx_error(), "goes with a key");
}

/* Of a network for documentation: no host has it. */
static struct sockaddr_storage far_sa(void)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr = {htonl(0xc0000201)}};
	struct sockaddr_storage sa = {0};

	memcpy(&sa, &in, sizeof(in));
	return sa;
}

/* Somebody on the way turns the connection round. What goes to our own address is meant so. */
static void key__back_to_ourselves(void **state)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	static struct hand h;
	struct gx_hello hello;
	int fd, peer;
	char addr[32];
	uint32_t len;

	hand_keys();
	client->gx.id = server->gx.id = 4711;
	server_listen(addr);
	both_up(addr, NULL);
	fd = raw_listen_at(addr);
	client_connect(addr, NULL);
	peer = raw_accept(fd);
	CTL_SET(client, gx.ctl->conns->dial.addrs[0].sa, far_sa());
	hand_open(&h, true, peer, "kv", hand_secret);
	assert_int_equal(hand_recv(&h, b, &len), GX_HELLO_HELLO);
	raw_hello_fill(&hello);
	hello.id = 4711;
	hand_send(&h, b, gx_hello_put(b, &hello));
	wait_down(client, 1, -ELOOP, GX_REASON_AUTH);
	assert_says(client->text, "came back to this process");
	hand_close(&h);
	close(fd);
}

static void key__server_has_none(void **state)
{
	char addr[32];

	hand_key(&client->own, "kv", hand_secret);
	server_listen(addr);
	log_begin();
	client_connect(addr, NULL);
	wait_down(client, 1, -ENOKEY, GX_REASON_AUTH);
	assert_says(client->text, "the server has no keys");
	log_end("this end has no keys");
	wait_conns(server, 0);
}

/* On its own host a server with keys serves its user without one, too. */
static void key__client_has_none(void **state)
{
	char addr[32];

	hand_key(&server->served, "kv", hand_secret);
	server_listen(addr);
	both_up_check(addr);
	assert_null(server->up->secret);
}

static void key__closed_in_the_handshake(void **state)
{
	char addr[32];
	int fd = raw_listen_at(addr), peer;
	struct gx_conn *c;

	hand_key(&client->own, "kv", hand_secret);
	for (unsigned i = 0; i < 20; i++) {
		c = client_connect(addr, NULL);
		peer = raw_accept(fd);
		if (i % 2)
			sleep_ms(i);
		ctl_bye(c);
		gx_uring_run_wait(client->gx.uring, nop_run, NULL);
		close(peer);
	}
	close(fd);
}

static void key__server_closes(void **state)
{
	char addr[32];
	int fd = raw_listen_at(addr);

	hand_key(&client->own, "kv", hand_secret);
	client_connect(addr, NULL);
	close(raw_accept(fd));
	wait_down(client, 1, -ECONNRESET, GX_REASON_PEER_LOST);
	close(fd);
}

static void key__not_a_tls_server(void **state)
{
	char addr[32];
	int fd = raw_listen_at(addr), peer;

	hand_key(&client->own, "kv", hand_secret);
	client_connect(addr, NULL);
	peer = raw_accept(fd);
	assert_true(raw_send(peer, "HTTP/1.1 400 Bad Request\r\n\r\n", 28));
	wait_down(client, 1, -EPROTO, GX_REASON_PROTOCOL);
	assert_says(client->text, "does a gx server listen there?");
	close(peer);
	close(fd);
}

/* ---- A TLS peer by hand ---- */

static void hand_must_hear(struct hand *h, int err, enum gx_reason reason, const char *says)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	struct gx_hello_error e;
	uint32_t len;

	assert_int_equal(hand_recv(h, b, &len), GX_HELLO_ERROR);
	assert_int_equal(gx_hello_error_get(b, len, &e), 0);
	assert_says(e.text, says);
	assert_int_equal(e.err, err);
	assert_int_equal(e.reason, reason);
	assert_int_equal(hand_recv(h, b, &len), -ESHUTDOWN); /* nothing was cut off */
}

/* From another host nothing is taken that would go back in clear. */
static void hand__nothing_in_clear(void **state)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	static struct hand h;
	struct gx_hello_lanes l;
	char addr[32];
	int port;

	hand_keys();
	port = server_listen(addr);
	hand_client(&h, port);
	hand_lanes_fill(&l, "udp");
	hand_send(&h, b, gx_hello_lanes_put(b, GX_HELLO_CONNECT, &l));
	hand_must_hear(&h, -EOPNOTSUPP, GX_REASON_AUTH, "in clear");
	hand_close(&h);
	assert_int_equal(server->nr_opened, 0);
}

/* A key is enough for what is sealed, also on loopback. Only memory is shared with nobody who has not
 * shown its user. */
static void hand__key_without_a_user(void **state)
{
	static const struct {
		const char *port;
		enum gx_link_id link;
		enum gx_integrity integrity;
		int err;
		enum gx_reason reason;
		const char *says;
	} asks[] = {
		{"udp", GX_LINK_PACKET, GX_INTEGRITY_GCM, 0, 0, NULL},
		{"udp", GX_LINK_PACKET, GX_INTEGRITY_MAC, 0, 0, NULL},
		{"udp", GX_LINK_PACKET, GX_INTEGRITY_CRC, -EOPNOTSUPP, GX_REASON_AUTH, "in clear"},
		{"shm", GX_LINK_PACKET, GX_INTEGRITY_GCM, -ENODEV, GX_REASON_OTHER_HOST,
		 "one host"},
		{"shm", GX_LINK_LOCAL, GX_INTEGRITY_NONE, -EOPNOTSUPP, GX_REASON_AUTH, "in clear"},
	};
	static uint8_t b[GX_HELLO_FRAME_MAX];
	static struct hand h;
	struct gx_hello_lanes l;
	char addr[32];
	uint32_t len;
	int port;

	hand_keys();
	fake_seals(true);
	CTL_SET(server, ports[1].caps.flags, GX_PORT_LOCAL);
	port = server_listen(addr);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(asks); i++) {
		hand_client(&h, port);
		hand_lanes_fill(&l, asks[i].port);
		l.link = asks[i].link;
		l.integrity = asks[i].integrity;
		hand_send(&h, b, gx_hello_lanes_put(b, GX_HELLO_CONNECT, &l));
		if (asks[i].says)
			hand_must_hear(&h, asks[i].err, asks[i].reason, asks[i].says);
		else
			assert_int_equal(hand_recv(&h, b, &len), GX_HELLO_ACCEPT);
		hand_close(&h);
	}
}

/* The server's mode is the least. */
static void hand__less_than_the_servers_integrity(void **state)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	static struct hand h;
	struct gx_hello_lanes l;
	char addr[32];
	uint32_t len;
	int port;

	hand_keys();
	fake_seals(true);
	port = server_listen(addr);
	for (int own = GX_INTEGRITY_MODE_AUTO; own <= GX_INTEGRITY_MODE_GCM; own++) {
		CTL_SET(server, gx.groups.packet.integrity, own);
		for (int mode = GX_INTEGRITY_MAC; mode <= GX_INTEGRITY_GCM; mode++) {
			hand_client(&h, port);
			hand_lanes_fill(&l, "udp");
			l.integrity = (uint8_t)mode;
			hand_send(&h, b, gx_hello_lanes_put(b, GX_HELLO_CONNECT, &l));
			if (own == GX_INTEGRITY_MODE_GCM && mode == GX_INTEGRITY_MAC)
				hand_must_hear(&h, -EOPNOTSUPP, GX_REASON_OPTIONS,
					       "integrity mac, and the server no less than gcm");
			else
				assert_int_equal(hand_recv(&h, b, &len), GX_HELLO_ACCEPT);
			hand_close(&h);
		}
	}
}

/* A byte of TLS at a time, frames of 64 KiB. */
static void hand__slow(void **state)
{
	static uint8_t b[GX_HELLO_FRAME_MAX], data[CTL_USER_MAX];
	static struct hand h;
	struct gx_hello_lanes l;
	char addr[32];
	uint32_t len;
	uint8_t c;
	int un;

	hand_keys();
	un = raw_prove(hand_client(&h, server_listen(addr)));
	hand_lanes_fill(&l, "udp");
	len = gx_hello_lanes_put(b, GX_HELLO_CONNECT, &l);
	assert_int_equal(auth_tls_write(h.t, b, len), 0);
	while (auth_tls_out(h.t, &c, 1))
		assert_true(raw_send(h.fd, &c, 1));
	assert_int_equal(hand_recv(&h, b, &len), GX_HELLO_ACCEPT);
	hand_send(&h, b, gx_hello_plain_put(b, GX_HELLO_UP, NULL, 0));
	assert_int_equal(hand_recv(&h, b, &len), GX_HELLO_UP);
	wait_up(server, 1);
	for (unsigned i = 0; i < 3; i++)
		hand_send(&h, b, gx_hello_plain_put(b, GX_HELLO_USER, data, sizeof(data)));
	assert_true(fake_wait(server, &server->nr_msgs, 3));
	assert_int_equal(server->msg_len[2], CTL_USER_MAX);
	close(un);
	hand_close(&h);
}

/* The socket ends, or TLS does, without BYE: the peer is lost, and has not closed. */
static void hand__cut_off(void **state)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	static struct hand h;
	struct gx_hello_lanes l;
	char addr[32];
	uint32_t len;
	int port, un;

	hand_keys();
	port = server_listen(addr);
	for (unsigned i = 0; i < 3; i++) {
		un = raw_prove(hand_client(&h, port));
		hand_lanes_fill(&l, "udp");
		hand_send(&h, b, gx_hello_lanes_put(b, GX_HELLO_CONNECT, &l));
		assert_int_equal(hand_recv(&h, b, &len), GX_HELLO_ACCEPT);
		hand_send(&h, b, gx_hello_plain_put(b, GX_HELLO_UP, NULL, 0));
		wait_up(server, i + 1);
		if (i == 1) {
			auth_tls_end(h.t);
			hand_flush(&h);
			wait_down(server, i + 1, -ECONNRESET, GX_REASON_PEER_LOST);
		} else if (i == 2) { /* somebody writes into the socket */
			assert_true(raw_send(h.fd, "\x17\x03\x03\x00\x14twenty bytes of them", 25));
			wait_down(server, i + 1, -EPROTO, GX_REASON_PROTOCOL);
			assert_says(server->text, "TLS is broken");
		}
		close(un);
		hand_close(&h);
		wait_down(server, i + 1, i == 2 ? -EPROTO : -ECONNRESET,
			  i == 2 ? GX_REASON_PROTOCOL : GX_REASON_PEER_LOST);
	}
}

/* No data socket can be within TLS. */
static void hand__data(void **state)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	static struct hand h;
	struct gx_hello_data d = {.lane = 0};
	char addr[32];
	uint32_t len;

	hand_keys();
	hand_open(&h, false, raw_connect(server_listen(addr)), "kv", hand_secret);
	hand_send(&h, b, gx_hello_data_put(b, &d));
	assert_true(hand_recv(&h, b, &len) <= 0);
	assert_int_equal(bad_count(server), 1);
	hand_close(&h);
}

/* The client asks for nothing that would go in clear to another host, whatever the server offers. */
static void hand__server_far(void **state)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	static struct hand h;
	struct gx_hello hello;
	char addr[32];
	uint32_t len;
	int fd = raw_listen_at(addr);

	hand_key(&client->own, "kv", hand_secret);
	client_connect(addr, NULL);
	hand_open(&h, true, raw_accept(fd), "kv", hand_secret);
	assert_int_equal(hand_recv(&h, b, &len), GX_HELLO_HELLO);
	raw_hello_fill(&hello);
	hello.host_id[0] ^= 1;
	hello.unix_name[0] = 0;
	hand_send(&h, b, gx_hello_put(b, &hello));
	wait_down(client, 1, -EOPNOTSUPP, GX_REASON_AUTH);
	assert_says(client->text, "cannot encrypt");
	assert_int_equal(client->nr_opened, 0);
	hand_close(&h);
	close(fd);
}

/* ---- Strangers ---- */

struct stranger {
	const char *name;
	const void *b;
	size_t len;
};

/* Sends it, then ends its half. Nothing comes back. */
static void stranger_must_hear_nothing(int port, uint32_t from, const struct stranger *s)
{
	int fd = raw_connect_from(port, from);
	char c;

	assert_true(raw_send(fd, s->b, s->len));
	shutdown(fd, SHUT_WR);
	if (recv(fd, &c, 1, 0) > 0)
		fail_msg("'%s' was answered", s->name);
	close(fd);
}

static void strangers__silence(void **state)
{
	static uint8_t tls[AUTH_TLS_FIRST_MAX], noise[300];
	/* A client with certificates: no pre_shared_key. */
	static const uint8_t certs[] = {0x16, 3, 1,	   0, 0x2d, 1,	  0,	0, 0x29,
					3,    3, [43] = 0, 0, 2,    0x13, 0x01, 1, 0};
	struct auth_tls_ctx *ctx = auth_tls_ctx_open();
	struct auth_tls *t = auth_tls_new(ctx, false, "kv", hand_secret);
	struct stranger s[] = {{"GET", "GET / HTTP/1.1\r\n\r\n", 18},
			       {"noise", noise, sizeof(noise)},
			       {"a byte", "\x16", 1},
			       {"half a ClientHello", tls, 0},
			       {"a ClientHello with more behind it", tls, 0},
			       {"certificates", certs, sizeof(certs)},
			       {"SSLv3", "\x16\x03\x00\x00\x05\x01\x00\x00\x01\x00", 10},
			       {"nothing", "", 0}};
	char addr[32];
	int port;

	hand_keys();
	port = server_listen(addr);
	auth_tls_step(t);
	s[4].len = auth_tls_out(t, tls, sizeof(tls)) + 1;
	s[3].len = s[4].len / 2;
	srandom(7);
	for (unsigned i = 0; i < sizeof(noise); i++)
		noise[i] = (uint8_t)random();
	for (unsigned i = 0; i < GX_ARRAY_SIZE(s); i++)
		stranger_must_hear_nothing(port, INADDR_LOOPBACK, &s[i]);
	server_lives(addr);
	auth_tls_free(t);
	auth_tls_ctx_close(ctx);
}

/* Not even HELLO is answered, nor a data socket that nobody waits for. */
static void strangers__in_clear(void **state)
{
	static uint8_t hello[GX_HELLO_FRAME_MAX], data[64];
	const struct gx_hello_data d = {.lane = 0};
	struct stranger s[] = {{"HELLO", hello, raw_hello(hello, GX_HELLO_VERSION)},
			       {"DATA", data, gx_hello_data_put(data, &d)},
			       {"GET", "GET / HTTP/1.1\r\n\r\n", 18}};
	char addr[32];
	uint32_t ip;
	int port;

	if (!far_addr(&ip))
		return;
	port = server_listen(addr);
	for (unsigned keys = 0; keys < 2; keys++) {
		log_begin();
		for (unsigned i = 0; i < GX_ARRAY_SIZE(s); i++)
			stranger_must_hear_nothing(port, ip, &s[i]);
		log_end("it is of another host and shows no key");
		assert_int_equal(bad_count(server), (keys + 1) * GX_ARRAY_SIZE(s));
		hand_key(&server->served, "kv", hand_secret);
	}
	wait_conns(server, 0);
	assert_null(server->gx.conns);
}

/* Who comes from one address and says nothing takes no places from others: its oldest goes at once. */
static void strangers__one_address(void **state)
{
	enum { MORE = 20 };
	int port, fds[CTL_SOURCE_MAX + MORE];
	char addr[32];
	uint32_t ip;

	if (!far_addr(&ip))
		return;
	port = server_listen(addr);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(fds); i++)
		fds[i] = raw_connect_from(port, ip);
	wait_bad(server, MORE);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(fds); i++) {
		char c;

		if (i < MORE)
			assert_true(recv(fds[i], &c, 1, 0) <= 0);
		else
			assert_false(raw_has_ended(fds[i]));
	}
	server_lives(addr);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(fds); i++)
		close(fds[i]);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(key__up),
		TEST(key__other_secret),
		TEST(key__unknown_name),
		TEST(key__name_of_the_server),
		TEST(key__back_to_ourselves),
		TEST(key__server_has_none),
		TEST(key__client_has_none),
		TEST(key__closed_in_the_handshake),
		TEST(key__server_closes),
		TEST(key__not_a_tls_server),
		TEST(hand__nothing_in_clear),
		TEST(hand__key_without_a_user),
		TEST(hand__less_than_the_servers_integrity),
		TEST(hand__slow),
		TEST(hand__cut_off),
		TEST(hand__data),
		TEST(hand__server_far),
		TEST(strangers__silence),
		TEST(strangers__in_clear),
		TEST(strangers__one_address),
	};

	return rig_run("ctl_first", tests, GX_ARRAY_SIZE(tests));
}
