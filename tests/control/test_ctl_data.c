/* SPDX-License-Identifier: Apache-2.0 */
/* The data sockets of link tcp. */
#include <errno.h>
#include <string.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <unistd.h>

#include "control/ctl_rig.h"

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
	c = both_up(addr,
		    &(struct gx_connect_opts){.link = "tcp",
					      .tcp = GX_WITH(gx_connect_tcp_opts, .sockets = 3)});
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
	CTL_SET(client, gx.groups.packet.integrity, GX_INTEGRITY_MODE_NONE);
	server_listen(addr);
	c = both_up(addr, NULL);
	assert_int_equal(c->link->id, GX_LINK_TCP);
	assert_says(c->why, "udp not offered by the peer");
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
	CONNECT_REFUSED(nr_ports, 2, "several ports");
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

	CTL_SET(client, gx.opts.insecure, false);
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
	CTL_SET(client, gx.opts.insecure, true); /* this server has no Unix socket */
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
		const struct gx_connect_opts o = {
			.link = "tcp", .tcp = GX_WITH(gx_connect_tcp_opts, .sockets = 2)};
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

/* Its sockets are connected, as far as the client can see, and no UP comes. */
static void data__server_takes_none(void **state)
{
	const struct gx_connect_opts o = {.link = "tcp",
					  .tcp = GX_WITH(gx_connect_tcp_opts, .sockets = 2),
					  .timeout_ns = 300000000};
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

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(data__both_ends),
		TEST(data__last_resort),
		TEST(data__strangers),
		TEST(data__client_leaves),
		TEST(data__bad_connect),
		TEST(data__bad_accept),
		TEST(data__from_another_address),
		TEST(data__server_takes_none),
	};

	return rig_run("ctl_data", tests, GX_ARRAY_SIZE(tests));
}
