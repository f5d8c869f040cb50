/* SPDX-License-Identifier: Apache-2.0 */
/* The set-up: what the ends agree on, and what they refuse. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "control/ctl_hand.h"

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
	snprintf(want, sizeof(want), "%s pid %d conn %" PRIu64, addr, getpid(), c->id);
	assert_string_equal(c->peer_name, want);
	assert_string_equal(gx_uring_method_name(server->gx.uring),
			    method == GX_URING_EPOLL ? "epoll" : "io_uring");
}

/* Is nothing of this process in a HELLO? */
static void assert_bare(const uint8_t *b, uint32_t len)
{
	char pid[16];
	struct gx_hello h;

	assert_int_equal(gx_hello_get(b, len, &h), 0);
	assert_int_equal(h.pid, 0);
	assert_int_equal(h.nr_regions, 0);
	assert_null(memmem(b, len, "mem-of-", 7));
	assert_null(memmem(b, len, &server->mem.token, sizeof(server->mem.token)));
	assert_null(memmem(b, len, &client->mem.token, sizeof(client->mem.token)));
	snprintf(pid, sizeof(pid), "-%d-", getpid());
	assert_null(strstr(h.unix_name, pid));
}

/* A client of this host, in clear, may be anybody: a user who is not served, or a proxy's. */
static void hello__tells_nothing_before_the_proof(void **state)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	struct gx_hello_lanes l;
	struct gx_hello h;
	char addr[32];
	int fd = raw_connect(server_listen(addr)), un;
	uint32_t len;

	raw_lanes_fill(&l, "udp");
	assert_true(raw_send(fd, b, raw_hello(b, GX_HELLO_VERSION)));
	assert_int_equal(raw_recv_any(fd, b, &len), GX_HELLO_HELLO);
	assert_bare(b, len);
	assert_int_equal(gx_hello_get(b, len, &h), 0);
	un = raw_prove(&h);
	assert_true(raw_send(fd, b, gx_hello_lanes_put(b, GX_HELLO_CONNECT, &l)));
	assert_int_equal(raw_recv_any(fd, b, &len), GX_HELLO_HELLO);
	assert_int_equal(gx_hello_get(b, len, &h), 0);
	assert_int_equal(h.pid, getpid());
	assert_int_equal(h.nr_regions, 1);
	assert_string_equal(h.regions[0].name, "mem-of-server");
	assert_int_equal(raw_recv_any(fd, b, &len), GX_HELLO_ACCEPT);
	close(un);
	close(fd);
	fd = raw_connect(atoi(strrchr(addr, ':') + 1)); /* who does not prove hears no more */
	assert_true(raw_send(fd, b, raw_hello(b, GX_HELLO_VERSION)));
	assert_int_equal(raw_recv_any(fd, b, &len), GX_HELLO_HELLO);
	assert_bare(b, len);
	assert_true(raw_send(fd, b, gx_hello_lanes_put(b, GX_HELLO_CONNECT, &l)));
	assert_int_equal(raw_recv_any(fd, b, &len), GX_HELLO_ERROR);
	close(fd);
}

/* Nor a server. */
static void hello__of_a_client_tells_nothing(void **state)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	char addr[32];
	int fd = raw_listen_at(addr), peer;
	uint32_t len;

	client_connect(addr, NULL);
	peer = raw_accept(fd);
	assert_int_equal(raw_recv_any(peer, b, &len), GX_HELLO_HELLO);
	assert_bare(b, len);
	close(peer);
	close(fd);
}

/* It comes once more at most. */
static void hello__once_more(void **state)
{
	static uint8_t b[GX_HELLO_FRAME_MAX];
	struct gx_hello h, own;
	char addr[32];
	int port = server_listen(addr), fd = raw_connect(port);
	uint32_t len;

	raw_hello_fill(&own);
	own.pid = 0;
	assert_true(raw_send(fd, b, gx_hello_put(b, &own)));
	assert_int_equal(raw_recv(fd, b, &len), GX_HELLO_HELLO);
	assert_int_equal(gx_hello_get(b, len, &h), 0);
	own.pid = 77;
	assert_true(raw_send(fd, b, gx_hello_put(b, &own)));
	assert_true(raw_send(fd, b, gx_hello_put(b, &own)));
	raw_recv_error(fd, -EPROTO, GX_REASON_PROTOCOL, "out of turn");
	close(fd);
	server_lives(addr);
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
		GX_PORT_LOCAL | GX_PORT_LOSSLESS); /* only the server's lanes carry some */
	server_listen(addr);
	both_up(addr, &(struct gx_connect_opts){.ports = udp, .nr_ports = 1});
	wait_up(server, 1);
	assert_string_equal(client->seen[0], "server lane 0");
	assert_string_equal(server->seen[0], "");
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

static void fail__version_of_the_client(void **state)
{
	static const struct {
		uint32_t version;
		const char *says;
	} of[] = {{5, "the client speaks version 5 of gx's protocol, the server version 10"},
		  {11, "the client speaks version 11 of gx's protocol, the server version 10"}};
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
		    "the client speaks version 10 of gx's protocol, the server version 5");
	close(peer);
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
	good.nr_ports = 2;
	good.ports[0] = good.ports[1] = (struct gx_hello_pair){1, 1};
	CONNECT_REFUSED(ports[0].server, 2, -EPROTO, "not there");
	CONNECT_REFUSED(ports[1].server, 255, -EPROTO, "not there");
	CONNECT_REFUSED(ports[0].client, 0, -EPROTO, "not there");
	CONNECT_REFUSED(ports[1].client, 255, -EPROTO, "not there");
	CONNECT_REFUSED(ports[1].server, 0, -EPROTO, "not there");
	good.nr_ports = 0;
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

static void wait_tried(unsigned more)
{
	unsigned n = fake_tried + more;

	for (unsigned i = 0; i < WAIT_S * 1000 && fake_tried < n; i++)
		sleep_ms(1);
	assert_true(fake_tried >= n);
}

/* Lanes that are tried: no end is up before both hear the other. */
static void trial__both_wait(void **state)
{
	struct gx_conn *c;
	char addr[32];

	server_listen(addr);
	fake_tries = true;
	fake_trial[0] = fake_trial[1] = 0;
	c = client_connect(addr, NULL);
	wait_tried(20);
	assert_true(!client->nr_up && !server->nr_up && c->trying && c->on_cores);
	fake_trial[0] = 1;
	wait_tried(20);
	assert_true(!client->nr_up && !server->nr_up);
	fake_trial[1] = 1;
	wait_up(client, 1);
	wait_up(server, 1);
	assert_string_equal(c->link->name, "packet");
}

static void dead_end_check(int of, const struct gx_connect_opts *o)
{
	struct gx_conn *c;
	char addr[32];

	server_listen(addr);
	fake_tries = true;
	fake_trial[0] = fake_trial[1] = 0;
	CTL_SET(client, holds, 3);
	c = client_connect(addr, o);
	wait_tried(20);
	fake_trial[of] = -EHOSTUNREACH;
	if (o) {
		wait_down(client, 1, -EHOSTUNREACH, GX_REASON_UNREACHABLE);
		assert_says(client->text,
			    "nothing comes to port 7, or take gx_connect_opts.link tcp");
	} else {
		wait_up(client, 1);
		wait_up(server, 1);
		assert_string_equal(c->link->name, "tcp");
		assert_string_equal(server->up->link->name, "tcp");
		assert_string_equal(c->why,
				    "link tcp in place of another: nothing comes to port 7");
		assert_int_equal(c->path_reason, GX_REASON_LAST_RESORT);
		assert_true(!c->trying && !client->holds);
	}
	fake_tries = false;
	server_lives(addr);
}

/* The way to the client is dead: it goes on by another link, with the reason; the user has the same
 * connection. */
static void trial__way_in_is_dead(void **state)
{
	dead_end_check(0, NULL);
}

/* The other way: the server finds it. */
static void trial__way_out_is_dead(void **state)
{
	dead_end_check(1, NULL);
}

static void trial__link_that_was_asked_for(void **state)
{
	const struct gx_connect_opts by_link = {.link = "packet"},
				     by_port = {.ports = udp, .nr_ports = 1};

	dead_end_check(0, &by_link);
	client->nr_down = 0;
	dead_end_check(1, &by_port);
}

/* The context closes while the cores hold the lanes of the first set-up. */
static void trial__closes_in_between(void **state)
{
	char addr[32];

	server_listen(addr);
	fake_tries = true;
	fake_trial[0] = -EHOSTUNREACH;
	CTL_SET(client, holds, 1u << 30);
	client_connect(addr, NULL);
	wait_tried(1);
	sleep_ms(50);
	assert_true(!client->nr_up && !client->nr_down);
}

/* The cores do not let go of the first lanes: the second set-up has a deadline of its own. */
static void trial__cores_hold_for_good(void **state)
{
	char addr[32];

	server_listen(addr);
	fake_tries = true;
	fake_trial[0] = -EHOSTUNREACH;
	CTL_SET(client, holds, 1u << 30);
	client_connect(addr, &(struct gx_connect_opts){.timeout_ns = 400000000});
	wait_down(client, 1, -ETIMEDOUT, GX_REASON_SETUP_TIMEOUT);
	assert_true(client->holds && client->holds < 1u << 30);
}

/* Who wants integrity gcm gets that or an error, also where packets do not get through. */
static void trial__integrity_that_was_asked_for(void **state)
{
	char addr[32];

	hand_keys();
	server_listen(addr);
	CTL_SET(client, gx.groups.packet.integrity, GX_INTEGRITY_MODE_GCM);
	fake_seals(true);
	fake_tries = true;
	fake_trial[0] = -EHOSTUNREACH;
	client_connect(addr, NULL);
	wait_down(client, 1, -EHOSTUNREACH, GX_REASON_UNREACHABLE);
	assert_says(client->text, "nothing comes to port 7");
	fake_seals(false);
}

static int due_run(void *arg)
{
	struct ctl_conn *cc = server->gx.ctl->conns;

	*(uint64_t *)arg = cc->state == CTL_LINKED ? cc->due_ns : 0;
	return 0;
}

static uint64_t words_say(int fd, unsigned n)
{
	unsigned taken = fake_taken + n;
	uint8_t b[64];
	uint64_t due_ns;

	for (unsigned i = 0; i < n; i++)
		assert_true(raw_send(fd, b, gx_hello_plain_put(b, GX_HELLO_LINK, "w", 1)));
	for (unsigned i = 0; i < WAIT_S * 100 && fake_taken < taken; i++)
		sleep_ms(10);
	assert_int_equal(fake_taken, taken);
	gx_uring_run_wait(server->gx.uring, due_run, &due_ns);
	assert_true(due_ns);
	return due_ns;
}

/* Each frame gains time, but words between links gain no more after a few. */
static void trial__words_gain_little(void **state)
{
	struct gx_hello_lanes l;
	struct gx_hello h;
	uint64_t due_ns[2];
	char addr[32];
	int port = server_listen(addr), fd;

	raw_lanes_fill(&l, "udp");
	fake_tries = true;
	fake_trial[1] = 0;
	fd = raw_client_lanes(port, &h, &l, NULL);
	due_ns[0] = words_say(fd, CTL_LINK_WORDS - 1);
	due_ns[1] = words_say(fd, 1);
	assert_true(due_ns[1] > due_ns[0]);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(words_say(fd, 10), due_ns[1]);
	close(fd);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(up__with_descriptors),
		TEST(hello__tells_nothing_before_the_proof),
		TEST(hello__of_a_client_tells_nothing),
		TEST(hello__once_more),
		TEST(up__without_descriptors),
		TEST(up__descriptors_of_one_end_only),
		TEST(up__server_has_less),
		TEST(up__options_of_the_client),
		TEST(up__pool_of_the_server),
		TEST(up__pool_of_the_client),
		TEST(up__many_clients),
		TEST(fail__lane_open),
		TEST(fail__version_of_the_client),
		TEST(fail__version_of_the_server),
		TEST(server__bad_connect),
		TEST(server__fuzzed_connect),
		TEST(link__proves),
		TEST(trial__both_wait),
		TEST(trial__way_in_is_dead),
		TEST(trial__way_out_is_dead),
		TEST(trial__cores_hold_for_good),
		TEST(trial__integrity_that_was_asked_for),
		TEST(trial__words_gain_little),
		TEST(trial__link_that_was_asked_for),
		TEST(trial__closes_in_between),
	};

	return rig_run("ctl_hello", tests, GX_ARRAY_SIZE(tests));
}
