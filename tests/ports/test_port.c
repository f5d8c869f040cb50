// SPDX-License-Identifier: Apache-2.0
/*
 * One suite for every port, and then what is special to shm, udp and sim.
 *
 * usage: test_port PORT[:ARGS] [PORT[:ARGS]]     the second: of the other end, if it differs
 *
 * Two ends in one process exchange packets over the ops table alone. Exit 77 when the port cannot
 * be opened here. Note that ThreadSanitizer sees the two mappings of a shared segment as different
 * memory: it judges private state only, the order of shared bytes is judged by their contents.
 */
#include "gx_internal/fds.h"
#include "gx_internal/port.h"
#include "gx_internal/wire.h"

#include "ports/shm_seg.h"
#include "sim/port_sim.h"

#include <arpa/inet.h>
#include <netinet/udp.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "kit/common_fds.h"

#define WAIT_NS	  30000000000ull /* what has been sent arrives before that, or not at all */
#define QUIET_NS  100000000ull	 /* nothing arrived for so long: nothing will */
#define PEERS_MAX 40
#define HLEN	  GX_WIRE_HDR_B

/* One end: a port with one queue and some peers; peer i of an end is connected to peer i of the
 * other. */
struct end {
	struct gx_arena *arena;
	struct gx_port *port;
	struct gx_port_queue *q;
	struct gx_stats stats;
	uint32_t peer[PEERS_MAX];
	struct gx_port_addr laddr[PEERS_MAX];
};

struct pair {
	struct end end[2];
	unsigned nr_peers;
	struct sim_net *net;
};

static char spec[2][128];
static const struct gx_port_ops *ops;
static bool small_pages;       /* of the next pair_open() */
static struct sim_cfg sim_cfg; /* of the next pair_open() */
static uint8_t source[1 << 20];
static unsigned nr_fds; /* open when the fixture began */

static bool port_is(const char *name)
{
	return !strcmp(ops->name, name);
}

/* ---- Fixture ---- */

static int end_open(struct end *e, const char *args, uint32_t slots, uint32_t payload_b,
		    bool server)
{
	static const int cpus[] = {-1};
	struct gx_port_cfg cfg = {.args = args,
				  .nr_queues = 1,
				  .cpus = cpus,
				  .slots = slots,
				  .payload_b = payload_b,
				  .instance = server ? "test-s" : "test-c",
				  .bind_host = "127.0.0.1",
				  .server = server,
				  .huge = !small_pages};
	int ret = gx_arena_open(GX_ARENA_SIZE_MAX, &e->arena);

	if (ret)
		return ret;
	cfg.arena = e->arena;
	ret = ops->open(&cfg, &e->port);
	if (!ret) {
		ret = ops->queue_open(e->port, 0, &e->stats, &e->q);
		if (ret)
			ops->close(e->port);
	}
	if (ret)
		gx_arena_close(e->arena);
	return ret;
}

static void end_close(struct end *e)
{
	ops->queue_close(e->q);
	ops->close(e->port);
	gx_arena_close(e->arena);
}

static void peer_join(struct pair *p, unsigned i)
{
	for (unsigned k = 0; k < 2; k++)
		assert_int_equal(
			ops->peer_add(p->end[k].q, &p->end[k].peer[i], &p->end[k].laddr[i]), 0);
	for (unsigned k = 0; k < 2; k++) {
		struct gx_port_addr raddr = p->end[!k].laddr[i];

		if (raddr.fd >= 0)
			raddr.fd = fcntl(raddr.fd, F_DUPFD_CLOEXEC,
					 0); /* as if passed over a socket */
		assert_int_equal(ops->peer_connect(p->end[k].q, p->end[k].peer[i], &raddr), 0);
	}
	for (unsigned k = 0; k < 2; k++)
		ops->peer_attach(p->end[k].q, p->end[k].peer[i]);
}

static void peer_leave(struct pair *p, unsigned i)
{
	for (unsigned k = 0; k < 2; k++) {
		ops->peer_detach(p->end[k].q, p->end[k].peer[i]);
		ops->peer_del(p->end[k].q, p->end[k].peer[i]);
	}
}

static struct pair *pair_open(uint32_t slots, uint32_t payload_b, unsigned nr_peers)
{
	struct pair *p = calloc(1, sizeof(*p));
	char args[64];

	nr_fds = common_fds_count();
	if (port_is("sim"))
		assert_int_equal(sim_net_open(&sim_cfg, &p->net), 0);
	for (unsigned k = 0; k < 2; k++) {
		snprintf(args, sizeof(args), "%s", spec[k]);
		if (p->net)
			snprintf(args, sizeof(args), "net=%u", sim_net_id(p->net));
		if (end_open(&p->end[k], args, slots, payload_b, !k))
			fail_msg("open: %s", gx_port_why());
	}
	for (; p->nr_peers < nr_peers; p->nr_peers++)
		peer_join(p, p->nr_peers);
	return p;
}

static void pair_close(struct pair *p)
{
	for (unsigned i = 0; i < p->nr_peers; i++)
		peer_leave(p, i);
	end_close(&p->end[1]);
	end_close(&p->end[0]);
	sim_net_close(p->net);
	free(p);
	assert_int_equal(common_fds_count(), nr_fds);
}

static void step(struct pair *p)
{
	if (p->net)
		sim_net_advance(p->net, sim_net_now(p->net) + 1000000);
}

/* A simulated network has its own time, which goes on in steps alone. */
static uint64_t pair_now_ns(const struct pair *p)
{
	return p->net ? sim_net_now(p->net) : gx_now_ns();
}

/* ---- Packets ---- */

/* Packet @number: its header says so, its payload starts at a place in source[] that depends on it.
 */
static void pkt_make(struct gx_tx *tx, uint32_t peer, uint32_t number, uint32_t len)
{
	*tx = (struct gx_tx){.data = source + number % 4096,
			     .len = len,
			     .peer = peer,
			     .cookie = UINT32_MAX,
			     .hlen = HLEN};
	for (unsigned i = 0; i < HLEN; i++)
		tx->hdr[i] = (uint8_t)(number * 31 + i);
	memcpy(tx->hdr, &number, sizeof(number));
}

static uint32_t pkt_number(const struct gx_rx *rx)
{
	uint32_t number;

	memcpy(&number, rx->hdr, sizeof(number));
	return number;
}

/* The packet is whole, and is the one its header says. Return: its number. */
static uint32_t pkt_check(const struct end *e, enum gx_half half, const struct gx_rx *rx)
{
	uint32_t number = pkt_number(rx);
	struct gx_tx tx;

	pkt_make(&tx, 0, number, rx->len);
	assert_int_equal(rx->hlen, HLEN);
	assert_memory_equal(rx->hdr, tx.hdr, HLEN);
	assert_memory_equal(rx->data, tx.data, rx->len);
	if (half == GX_HALF_DATA)
		assert_true((uint64_t)((char *)rx->data - e->q->rx_base) + rx->len <= 4ull << 30);
	return number;
}

static unsigned try_send(struct end *e, enum gx_half half, unsigned peer, uint32_t first,
			 unsigned n, uint32_t len)
{
	struct gx_tx tx[GX_BURST_MAX];

	for (unsigned i = 0; i < n; i++)
		pkt_make(&tx[i], e->peer[peer], first + i, len);
	return ops->tx_burst(e->q, half, tx, n);
}

static void send_all(struct pair *p, struct end *e, enum gx_half half, unsigned peer,
		     uint32_t first, unsigned n, uint32_t len)
{
	uint64_t until = gx_now_ns() + WAIT_NS;
	unsigned sent = 0;

	while (sent < n) {
		sent += try_send(e, half, peer, first + sent, GX_MIN(n - sent, GX_BURST_MAX), len);
		if (sent < n)
			step(p);
		assert_true(gx_now_ns() < until);
	}
}

/* Take up to @n packets, until there are so many or the line is quiet. Nothing is released. */
static unsigned recv_some(struct pair *p, struct end *e, enum gx_half half, struct gx_rx rx[],
			  unsigned n, uint64_t quiet_ns)
{
	uint64_t since = pair_now_ns(p);
	unsigned got = 0;

	while (got < n) {
		uint64_t now = pair_now_ns(p); /* before the look: we may be put aside */
		unsigned more;

		e->q->now_ns = gx_now_ns();
		more = ops->rx_burst(e->q, half, rx + got, GX_MIN(n - got, GX_BURST_MAX));

		got += more;
		if (more)
			since = pair_now_ns(p);
		else if (now - since >= quiet_ns)
			break;
		else
			step(p);
	}
	return got;
}

static void release(struct end *e, const struct gx_rx rx[], unsigned n)
{
	uint64_t bufs[GX_BURST_MAX];

	for (unsigned i = 0; i < n; i += GX_BURST_MAX) {
		unsigned m = GX_MIN(n - i, GX_BURST_MAX);

		for (unsigned k = 0; k < m; k++)
			bufs[k] = rx[i + k].buf;
		ops->rx_release(e->q, bufs, m);
	}
}

/* Exactly @n packets @first.. of @len come, in order where that is promised, and are given back. */
static void recv_checked(struct pair *p, struct end *e, enum gx_half half, uint32_t first,
			 unsigned n, uint32_t len)
{
	struct gx_rx rx[GX_BURST_MAX];
	uint8_t *seen = calloc(n, 1);
	unsigned got = 0;

	while (got < n) {
		unsigned more = recv_some(p, e, half, rx, GX_MIN(n - got, GX_BURST_MAX), WAIT_NS);

		assert_true(more > 0);
		for (unsigned i = 0; i < more; i++) {
			uint32_t number = pkt_check(e, half, &rx[i]);

			assert_int_equal(rx[i].len, len);
			assert_in_range(number, first, first + n - 1);
			assert_false(seen[number - first]);
			seen[number - first] = 1;
			if (e->port->caps.flags & GX_PORT_ORDERED)
				assert_int_equal(number, first + got + i);
		}
		if (half == GX_HALF_DATA)
			release(e, rx, more);
		got += more;
	}
	free(seen);
}

/* ---- The suite ---- */

static void open__caps_make_sense(void **state)
{
	struct pair *p = pair_open(0, 0, 1);
	const struct gx_port_caps *caps = &p->end[0].port->caps;

	assert_int_equal(caps->payload_max % 16, 0);
	assert_int_equal(caps->payload_best % 16, 0);
	assert_in_range(caps->payload_best, GX_WIRE_QUANTUM_MIN, caps->payload_max);
	assert_true(caps->rx_slots >= GX_BURST_MAX);
	assert_ptr_equal(p->end[0].port->ops, ops);
	assert_ptr_equal(p->end[0].q->ops, ops);
	assert_ptr_equal(p->end[0].q->port, p->end[0].port);
	assert_ptr_equal(p->end[0].q->stats, &p->end[0].stats);
	assert_int_equal(ops->fault(p->end[0].q), 0);
	assert_true(p->end[0].laddr[0].len <= GX_PORT_ADDR_MAX);
	assert_int_equal(ops->mem_map(p->end[0].port, source, sizeof(source)), 0);
	ops->mem_unmap(p->end[0].port, source, sizeof(source));
	pair_close(p);
}

static void open__refuses_bad_args(void **state)
{
	struct end e;

	gx_port_why_set("%s", "");
	assert_true(end_open(&e, "no-such-argument=1", 0, 0, true) < 0);
	assert_true(strlen(gx_port_why()) > 10);
}

static void packet__sizes(void **state)
{
	static const uint32_t sizes[] = {0, 1, 15, 16, 17, 63, 64, 65, 1400, 1536, UINT32_MAX};
	struct pair *p = pair_open(0, 0, 1);

	for (unsigned k = 0; k < 2; k++) {
		for (enum gx_half half = GX_HALF_CTL; half <= GX_HALF_DATA; half++) {
			uint32_t max = half == GX_HALF_CTL ? GX_CTL_PAYLOAD_MAX
							   : p->end[k].port->caps.payload_max;

			for (unsigned i = 0; i < GX_ARRAY_SIZE(sizes); i++) {
				uint32_t len = GX_MIN(sizes[i], max);

				send_all(p, &p->end[k], half, 0, 1000 * i, 3, len);
				recv_checked(p, &p->end[!k], half, 1000 * i, 3, len);
			}
		}
	}
	pair_close(p);
}

static void packet__peer_is_named_or_any(void **state)
{
	struct pair *p = pair_open(0, 0, 3);
	struct gx_rx rx;

	for (unsigned i = 0; i < 3; i++) {
		for (enum gx_half half = GX_HALF_CTL; half <= GX_HALF_DATA; half++) {
			send_all(p, &p->end[0], half, i, i, 1, 100);
			assert_int_equal(recv_some(p, &p->end[1], half, &rx, 1, WAIT_NS), 1);
			assert_int_equal(pkt_check(&p->end[1], half, &rx), i);
			if (rx.peer != GX_PEER_ANY)
				assert_int_equal(rx.peer, p->end[1].peer[i]);
			if (half == GX_HALF_DATA)
				release(&p->end[1], &rx, 1);
		}
	}
	pair_close(p);
}

/* Many times round every ring, in bursts of changing size. */
static void burst__goes_round(void **state)
{
	struct pair *p = pair_open(128, 0, 1);
	uint32_t number[2] = {0};

	for (unsigned i = 0; i < 400; i++) {
		for (enum gx_half half = GX_HALF_CTL; half <= GX_HALF_DATA; half++) {
			unsigned n = 1 + (i * 7 + half) % GX_BURST_MAX;

			send_all(p, &p->end[i & 1], half, 0, number[half], n, 40 + i);
			recv_checked(p, &p->end[!(i & 1)], half, number[half], n, 40 + i);
			number[half] += n;
		}
	}
	pair_close(p);
}

static void burst__of_nothing(void **state)
{
	struct pair *p = pair_open(0, 0, 1);
	struct gx_rx rx[1];
	uint32_t cookie;

	assert_int_equal(ops->tx_burst(p->end[0].q, GX_HALF_DATA, NULL, 0), 0);
	assert_int_equal(ops->rx_burst(p->end[0].q, GX_HALF_DATA, rx, 1), 0);
	assert_int_equal(ops->rx_burst(p->end[0].q, GX_HALF_CTL, rx, 1), 0);
	assert_int_equal(ops->tx_reap(p->end[0].q, &cookie, 1), 0);
	ops->rx_release(p->end[0].q, NULL, 0);
	pair_close(p);
}

/* Lossless: room tells the truth to the last packet, held buffers stop the sender, releasing lets
 * it go. */
static void room__exhausts_and_recovers(void **state)
{
	struct pair *p = pair_open(200, 0, 1);
	struct end *a = &p->end[0], *b = &p->end[1];
	uint32_t slots = a->port->caps.rx_slots;
	struct gx_rx *rx = calloc(slots + 1, sizeof(*rx));
	unsigned sent = 0, room;

	if (!(a->port->caps.flags & GX_PORT_LOSSLESS) ||
	    (a->port->caps.flags & GX_PORT_SHARED_POOL))
		goto out;
	while ((room = ops->tx_room(a->q, GX_HALF_DATA, a->peer[0]))) {
		unsigned n = GX_MIN(room, GX_BURST_MAX);

		assert_int_equal(try_send(a, GX_HALF_DATA, 0, sent, n, 100), n);
		sent += n;
		assert_true(sent <= slots);
	}
	assert_int_equal(sent, slots);
	assert_int_equal(try_send(a, GX_HALF_DATA, 0, sent, 1, 100), 0);
	assert_int_equal(recv_some(p, b, GX_HALF_DATA, rx, slots + 1, QUIET_NS), slots);
	assert_int_equal(ops->tx_room(a->q, GX_HALF_DATA, a->peer[0]), 0);
	for (unsigned i = 0; i < slots; i++)
		assert_int_equal(pkt_check(b, GX_HALF_DATA, &rx[i]), i);
	release(b, rx, 10);
	assert_int_equal(ops->tx_room(a->q, GX_HALF_DATA, a->peer[0]), 10);
	assert_int_equal(try_send(a, GX_HALF_DATA, 0, 500, 20, 100), 10);
	recv_checked(p, b, GX_HALF_DATA, 500, 10, 100);
	release(b, rx + 10, slots - 10);
	send_all(p, a, GX_HALF_DATA, 0, 1000, slots, 64);
	recv_checked(p, b, GX_HALF_DATA, 1000, slots, 64);
out:
	free(rx);
	pair_close(p);
}

/* The control half fills, loses nothing that was taken, and recovers. */
static void room__ctl(void **state)
{
	struct pair *p = pair_open(0, 0, 1);
	struct end *a = &p->end[0];
	unsigned sent = 0, n;

	if (!(a->port->caps.flags & GX_PORT_LOSSLESS))
		goto out;
	while ((n = GX_MIN(ops->tx_room(a->q, GX_HALF_CTL, a->peer[0]), GX_BURST_MAX))) {
		assert_int_equal(try_send(a, GX_HALF_CTL, 0, sent, n, 300), n);
		sent += n;
		assert_true(sent < 1 << 20);
	}
	assert_true(sent >= GX_BURST_MAX);
	assert_int_equal(try_send(a, GX_HALF_CTL, 0, sent, 1, 300), 0);
	recv_checked(p, &p->end[1], GX_HALF_CTL, 0, sent, 300);
	assert_true(ops->tx_room(a->q, GX_HALF_CTL, a->peer[0]) >= GX_BURST_MAX);
out:
	pair_close(p);
}

/* With every buffer held no packet overwrites one; afterwards traffic goes on. */
static void pool__exhausted(void **state)
{
	struct pair *p = pair_open(128, 0, 1);
	struct end *a = &p->end[0], *b = &p->end[1];
	uint32_t slots = a->port->caps.rx_slots;
	struct gx_rx *rx = calloc(2 * slots, sizeof(*rx));
	unsigned got, more;

	for (unsigned i = 0; i < 2 * slots; i += 16)
		try_send(a, GX_HALF_DATA, 0, i, 16, 512);
	got = recv_some(p, b, GX_HALF_DATA, rx, 2 * slots, QUIET_NS);
	assert_true(got <= slots);
	for (unsigned i = 0; i < got; i++)
		pkt_check(b, GX_HALF_DATA, &rx[i]);
	release(b, rx, got);
	while ((more = recv_some(p, b, GX_HALF_DATA, rx, slots, QUIET_NS)))
		release(b, rx, more); /* what waited elsewhere */
	send_all(p, a, GX_HALF_DATA, 0, 7000, 10, 512);
	recv_checked(p, b, GX_HALF_DATA, 7000, 10, 512);
	free(rx);
	pair_close(p);
}

static void release__after_detach(void **state)
{
	struct pair *p = pair_open(0, 0, 2);
	struct end *a = &p->end[0], *b = &p->end[1];
	struct gx_rx rx[8];

	send_all(p, a, GX_HALF_DATA, 0, 0, 8, 256);
	assert_int_equal(recv_some(p, b, GX_HALF_DATA, rx, 8, WAIT_NS), 8);
	ops->peer_detach(b->q, b->peer[0]);
	assert_int_equal(ops->tx_room(b->q, GX_HALF_DATA, b->peer[0]), 0);
	for (unsigned i = 0; i < 8; i++)
		pkt_check(b, GX_HALF_DATA, &rx[i]);
	release(b, rx, 8);
	ops->peer_del(b->q, b->peer[0]);
	send_all(p, a, GX_HALF_DATA, 1, 50, 3, 256);
	recv_checked(p, b, GX_HALF_DATA, 50, 3, 256);
	ops->peer_detach(a->q, a->peer[0]);
	ops->peer_del(a->q, a->peer[0]);
	peer_join(p, 0);
	send_all(p, a, GX_HALF_DATA, 0, 60, 3, 256);
	recv_checked(p, b, GX_HALF_DATA, 60, 3, 256);
	pair_close(p);
}

static void peers__many(void **state)
{
	struct pair *p = pair_open(128, 2048, PEERS_MAX);
	struct gx_rx rx[4];

	for (enum gx_half half = GX_HALF_CTL; half <= GX_HALF_DATA; half++) {
		unsigned count[PEERS_MAX] = {0}, got = 0;

		for (unsigned i = 0; i < PEERS_MAX; i++)
			send_all(p, &p->end[0], half, i, i, 1, 128);
		for (unsigned i = 0; i < PEERS_MAX; i++)
			send_all(p, &p->end[0], half, i, i, 1, 128);
		while (got < 2 * PEERS_MAX) {
			unsigned n = recv_some(p, &p->end[1], half, rx, 4, WAIT_NS);

			assert_true(n > 0);
			for (unsigned i = 0; i < n; i++)
				count[pkt_check(&p->end[1], half, &rx[i])]++;
			if (half == GX_HALF_DATA)
				release(&p->end[1], rx, n);
			got += n;
		}
		for (unsigned i = 0; i < PEERS_MAX; i++)
			assert_int_equal(count[i], 2);
	}
	pair_close(p);
}

static void peer_connect__refuses(void **state)
{
	struct pair *p = pair_open(0, 0, 1);
	struct end *a = &p->end[0];
	struct gx_port_addr laddr, raddr;
	uint32_t peer;
	int pipes[2];

	assert_int_equal(ops->peer_add(a->q, &peer, &laddr), 0);
	raddr = p->end[1].laddr[0];
	raddr.len--;
	raddr.fd = -1;
	assert_int_equal(ops->peer_connect(a->q, peer, &raddr), -EPROTO);
	raddr.len = 0;
	assert_int_equal(ops->peer_connect(a->q, peer, &raddr), -EPROTO);
	raddr.len = GX_PORT_ADDR_MAX;
	memset(raddr.b, 0xff, sizeof(raddr.b));
	assert_int_equal(ops->peer_connect(a->q, peer, &raddr), -EPROTO);
	raddr = p->end[1].laddr[0];
	memset(raddr.b, 0, sizeof(raddr.b));
	assert_int_equal(pipe(pipes), 0);
	raddr.fd = pipes[0]; /* taken over and closed */
	assert_int_equal(ops->peer_connect(a->q, peer, &raddr), -EPROTO);
	close(pipes[1]);
	assert_true(strlen(gx_port_why()) > 10);
	ops->peer_attach(a->q, peer);
	assert_int_equal(ops->tx_room(a->q, GX_HALF_DATA, peer), 0);
	ops->peer_detach(a->q, peer);
	ops->peer_del(a->q, peer);
	pair_close(p);
}

/* ---- shm: order between the halves, fairness, processes, threads ---- */

static void shm_ctl_before_data(void **state)
{
	struct pair *p = pair_open(0, 0, 1);
	struct gx_rx rx[4];

	/* The link looks at data first, then at ctl: what was sent as ctl, data must be seen no
	 * later. */
	for (unsigned i = 0; i < 1000; i++) {
		send_all(p, &p->end[0], GX_HALF_CTL, 0, i, 1, 8);
		send_all(p, &p->end[0], GX_HALF_DATA, 0, i, 1, 8);
		assert_int_equal(ops->rx_burst(p->end[1].q, GX_HALF_DATA, rx, 4), 1);
		release(&p->end[1], rx, 1);
		assert_int_equal(ops->rx_burst(p->end[1].q, GX_HALF_CTL, rx, 4), 1);
	}
	pair_close(p);
}

static void shm_rx_is_fair(void **state)
{
	struct pair *p = pair_open(256, 2048, 8);
	bool seen[8] = {false};
	struct gx_rx rx[16];

	for (unsigned i = 0; i < 8; i++)
		send_all(p, &p->end[0], GX_HALF_DATA, i, i, 64, 16);
	for (unsigned i = 0; i < 8; i++) {
		assert_int_equal(ops->rx_burst(p->end[1].q, GX_HALF_DATA, rx, 16), 16);
		seen[rx[0].peer] = true;
		release(&p->end[1], rx, 16);
	}
	for (unsigned i = 0; i < 8; i++)
		assert_true(seen[i]);
	pair_close(p);
}

/* At this time: does a control packet of @peer come? It must be the one sent. */
static bool came_at(struct end *e, uint64_t now_ns, unsigned peer)
{
	struct gx_rx rx[4];
	unsigned n;

	e->q->now_ns = now_ns;
	assert_int_equal(ops->rx_burst(e->q, GX_HALF_DATA, rx, 4), 0);
	n = ops->rx_burst(e->q, GX_HALF_CTL, rx, 4);
	assert_true(n <= 1);
	assert_true(!n || rx[0].peer == e->peer[peer]);
	return n;
}

/* With many peers, those that were silent for long are looked at one by one: each is found in time,
 * and who has spoken is found at once. */
static void shm_quiet_peers(void **state)
{
	struct pair *p = pair_open(64, 2048, PEERS_MAX);
	struct end *e = &p->end[1];
	unsigned late = 0, latest = 0;
	uint64_t now = 1000000000;

	for (unsigned i = 0; i < PEERS_MAX; i++) {
		unsigned n = 0;

		for (unsigned k = 0; k < 3 * PEERS_MAX; k++)
			assert_false(came_at(e, now += 100000, i));
		send_all(p, &p->end[0], GX_HALF_CTL, i, i, 1, 64);
		while (!came_at(e, now, i)) {
			assert_true(n++ <= PEERS_MAX);
			now += 1024;
		}
		late += n > 0;
		latest = GX_MAX(latest, n);
		send_all(p, &p->end[0], GX_HALF_CTL, i, i, 1, 64);
		assert_true(came_at(e, now, i));
		/* A caller that was away for long finds all that waits at once. */
		for (unsigned k = 0; k < 3 * PEERS_MAX; k++)
			assert_false(came_at(e, now += 100000, i));
		send_all(p, &p->end[0], GX_HALF_CTL, i, i, 1, 64);
		assert_true(came_at(e, now += 100000, i));
	}
	assert_int_equal(late, PEERS_MAX);
	assert_in_range(latest, 2, PEERS_MAX + 1);
	pair_close(p);
}

/* An answer is expected from whom something was sent to: it is looked for in each burst. */
static void shm_quiet_peer_answers(void **state)
{
	struct pair *p = pair_open(64, 2048, PEERS_MAX);
	struct end *e = &p->end[1];
	uint64_t now = 1000000000;

	for (unsigned i = 0; i < PEERS_MAX; i++) {
		for (unsigned k = 0; k < 3 * PEERS_MAX; k++)
			assert_false(came_at(e, now += 100000, i));
		send_all(p, e, GX_HALF_CTL, i, i, 1, 64);
		assert_false(came_at(e, now, i));
		send_all(p, &p->end[0], GX_HALF_CTL, i, i, 1, 64);
		assert_true(came_at(e, now, i));
	}
	pair_close(p);
}

/* Peers come and go while others are quiet. */
static void shm_quiet_peers_leave(void **state)
{
	struct pair *p = pair_open(64, 2048, PEERS_MAX);
	struct end *e = &p->end[1];
	uint64_t now = 1000000000;

	for (unsigned k = 0; k < 3 * PEERS_MAX; k++)
		assert_false(came_at(e, now += 100000, 0));
	for (unsigned i = 0; i + 3 < PEERS_MAX; i++)
		peer_leave(p, i);
	peer_join(p, 0);
	for (unsigned i = 0; i < PEERS_MAX; i++) {
		if (i && i + 3 < PEERS_MAX)
			continue;
		send_all(p, &p->end[0], GX_HALF_CTL, i, i, 1, 64);
		assert_true(came_at(e, now, i));
	}
	for (unsigned i = 1; i + 3 < PEERS_MAX; i++)
		peer_join(p, i);
	pair_close(p);
}

/* A peer's segment has the pages that were used. */
static void shm_segment_weighs_little(void **state)
{
	struct pair *p;

	small_pages = true;
	p = pair_open(0, 0, 2);
	small_pages = false;
	for (unsigned k = 0; k < 2; k++) {
		struct stat st;

		assert_int_equal(fstat(p->end[k].laddr[0].fd, &st), 0);
		assert_true(st.st_size > 8 << 20);
		assert_in_range(st.st_blocks * 512, 4096, 64 << 10);
	}
	pair_close(p);
}

#define STREAM_NR 20000
#define STREAM_NS 20000000000ull /* what they may take on a busy machine */

/* Sender and receiver of the cases with two processes or threads: sizes and contents by number. */
static uint32_t stream_len(uint32_t number)
{
	return number * 97 % 3000;
}

static void stream_send(struct end *e)
{
	uint64_t until = gx_now_ns() + STREAM_NS;
	struct gx_tx tx;

	for (uint32_t i = 0; i < STREAM_NR; i++) {
		enum gx_half half = i % 3 ? GX_HALF_DATA : GX_HALF_CTL;
		uint32_t len = stream_len(i);

		pkt_make(&tx, e->peer[0], i, half == GX_HALF_CTL ? len % 1024 : len);
		while (!ops->tx_burst(e->q, half, &tx, 1)) {
			if (gx_now_ns() >= until)
				return; /* the other end says what it misses */
			sched_yield();
		}
	}
}

/* Return: packets that came wrong or out of order, or not at all. */
static uint32_t stream_recv(struct end *e)
{
	uint32_t next[2] = {0, 1}, got = 0, wrong = 0;
	uint64_t until = gx_now_ns() + STREAM_NS;
	struct gx_rx rx[GX_BURST_MAX];
	struct gx_tx tx;

	while (got < STREAM_NR) {
		unsigned before = got;

		for (enum gx_half half = GX_HALF_CTL; half <= GX_HALF_DATA; half++) {
			unsigned n = ops->rx_burst(e->q, half, rx, 1 + got % GX_BURST_MAX);

			for (unsigned i = 0; i < n; i++) {
				pkt_make(&tx, 0, pkt_number(&rx[i]), 0);
				wrong += pkt_number(&rx[i]) != next[half] ||
					 memcmp(rx[i].hdr, tx.hdr, HLEN) ||
					 memcmp(rx[i].data, tx.data, rx[i].len) ||
					 rx[i].len != stream_len(next[half]) % (half ? 4096 : 1024);
				next[half] += half == GX_HALF_CTL || next[half] % 3 == 2 ? 1 : 0;
				next[half] += half == GX_HALF_CTL ? 2 : 1;
			}
			if (half == GX_HALF_DATA)
				release(e, rx, n);
			got += n;
		}
		if (got == before && gx_now_ns() >= until)
			return wrong + STREAM_NR - got;
		if (got == before)
			sched_yield();
	}
	return wrong;
}

static void *stream_thread(void *arg)
{
	stream_send(arg);
	return NULL;
}

static void shm_two_threads(void **state)
{
	struct pair *p = pair_open(64, 4096, 1);
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, stream_thread, &p->end[0]), 0);
	assert_int_equal(stream_recv(&p->end[1]), 0);
	pthread_join(thread, NULL);
	pair_close(p);
}

/* What the other end sees in the middle of a send: the sender's copy runs into a page that it may
 * not read yet. */
static struct {
	struct pair *p;
	enum gx_half half;
	char *page;
	unsigned looks, seen;
} peek;

static void peek_look(int sig)
{
	struct gx_rx rx[4];

	peek.looks++;
	peek.seen += ops->rx_burst(peek.p->end[1].q, peek.half, rx, 4);
	mprotect(peek.page, 4096, PROT_READ | PROT_WRITE);
}

static void shm_rung_when_whole(void **state)
{
	struct sigaction act = {.sa_handler = peek_look}, before;
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct pair *p = pair_open(64, 4096, 1);

	assert_true(pages != MAP_FAILED);
	assert_int_equal(sigaction(SIGSEGV, &act, &before), 0);
	for (enum gx_half half = GX_HALF_CTL; half <= GX_HALF_DATA; half++) {
		/* Most of the header, and the payload of a control packet, are in the second page.
		 */
		struct gx_tx *tx = (struct gx_tx *)(pages + 4096 -
						    GX_ALIGN_UP(offsetof(struct gx_tx, hdr), 8));

		memset(&peek, 0, sizeof(peek));
		peek.p = p;
		peek.half = half;
		peek.page = pages + 4096;
		pkt_make(tx, p->end[0].peer[0], 0, 64);
		if (half == GX_HALF_CTL)
			tx->data = memcpy(pages + 6144, tx->data, 64);
		mprotect(peek.page, 4096, PROT_NONE);
		assert_int_equal(ops->tx_burst(p->end[0].q, half, tx, 1), 1);
		assert_true(peek.looks > 0);
		assert_int_equal(peek.seen, 0);
		recv_checked(p, &p->end[1], half, 0, 1, 64);
	}
	sigaction(SIGSEGV, &before, NULL);
	munmap(pages, 8192);
	pair_close(p);
}

/* Pass the descriptor as ctl_fd.c does it, with the blob. */
static void addr_send(int sock, const struct gx_port_addr *addr)
{
	if (gx_fds_send(sock, addr, sizeof(*addr), &addr->fd, 1))
		abort();
}

static void addr_recv(int sock, struct gx_port_addr *addr)
{
	ssize_t got;
	unsigned n;
	int fd;

	do {
		n = 1;
		got = gx_fds_recv(sock, addr, sizeof(*addr), &fd, &n);
	} while (got == -EAGAIN);
	if (got != (ssize_t)sizeof(*addr) || n != 1)
		abort();
	addr->fd = fd;
}

/* A process's whole life as an end. Return: what was wrong. */
static uint32_t process_run(int sock, bool sender)
{
	struct end *e = calloc(1, sizeof(*e));
	struct gx_port_addr raddr;
	uint32_t wrong = 0;
	char done = 0;

	if (end_open(e, "", 128, 4096, sender) || ops->peer_add(e->q, &e->peer[0], &e->laddr[0]))
		return 1;
	addr_send(sock, &e->laddr[0]);
	addr_recv(sock, &raddr);
	if (ops->peer_connect(e->q, e->peer[0], &raddr))
		return 1;
	ops->peer_attach(e->q, e->peer[0]);
	if (sender)
		stream_send(e);
	else
		wrong = stream_recv(e);
	if (write(sock, &done, 1) != 1 || read(sock, &done, 1) != 1)
		return 1;
	ops->peer_detach(e->q, e->peer[0]);
	ops->peer_del(e->q, e->peer[0]);
	end_close(e);
	free(e);
	return wrong;
}

static void shm_two_processes(void **state)
{
	int sock[2], status;
	pid_t pid;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sock), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		_exit(process_run(sock[1], true) != 0);
	assert_int_equal(process_run(sock[0], false), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	close(sock[0]);
	close(sock[1]);
}

/* ---- shm: hostile peers. The test writes into segments itself. ---- */

/* The segment that end @k made for its peer 0, as the other side sees it. */
static void seg_open(const struct pair *p, unsigned k, struct shm_seg *s)
{
	const struct gx_port_caps *caps = &p->end[k].port->caps;
	void *base;

	shm_seg_layout(s, NULL, caps->rx_slots, caps->payload_max, false);
	base = mmap(NULL, s->len, PROT_READ | PROT_WRITE, MAP_SHARED, p->end[k].laddr[0].fd, 0);
	assert_ptr_not_equal(base, MAP_FAILED);
	shm_seg_layout(s, base, caps->rx_slots, caps->payload_max, false);
}

static void seg_used(struct shm_seg *s, uint32_t number, uint32_t slot, uint32_t len, uint32_t hlen)
{
	struct shm_used *e = &s->used[number & s->used_mask];

	e->slot = slot;
	e->len = len;
	e->hlen = hlen;
	atomic_store(&e->seq, number + 1);
}

static void seg_ctl(struct shm_seg *s, uint32_t number, uint32_t len, uint32_t hlen)
{
	struct shm_ctl *e = &s->ctl[number % SHM_CTL_NR];

	e->len = (uint16_t)len;
	e->hlen = (uint16_t)hlen;
	atomic_store(&e->seq, number + 1);
}

static uint64_t bad_count(const struct end *e)
{
	return gx_stat_get(&e->stats, GX_STAT_RX_BAD);
}

static void shm_hostile_used(void **state)
{
	static const struct {
		uint32_t slot, len, hlen;
	} bad[] = {{64, 0, 0}, {UINT32_MAX, 0, 0}, {1, 2049, 0}, {1, UINT32_MAX, 0},
		   {1, 0, 49}, {1, 0, UINT32_MAX}, {0, 16, HLEN} /* held */};
	struct pair *p = pair_open(64, 2048, 2);
	struct end *b = &p->end[1];
	struct gx_rx rx[8], one;
	struct shm_seg s;
	uint32_t i;

	seg_open(p, 1, &s);
	seg_used(&s, 0, 0, 16, HLEN);
	assert_int_equal(ops->rx_burst(b->q, GX_HALF_DATA, &one, 1), 1);
	for (i = 0; i < GX_ARRAY_SIZE(bad); i++) {
		seg_used(&s, 1 + i, bad[i].slot, bad[i].len, bad[i].hlen);
		assert_int_equal(ops->rx_burst(b->q, GX_HALF_DATA, rx, 8), 0);
		assert_int_equal(bad_count(b), i + 1);
	}
	seg_used(&s, 1 + i, 5, 2048, 48); /* the limits themselves are fine */
	assert_int_equal(ops->rx_burst(b->q, GX_HALF_DATA, rx, 8), 1);
	assert_int_equal(rx[0].len, 2048);
	release(b, rx, 1);
	release(b, &one, 1);
	seg_used(&s, 2 + i, 0, 16, HLEN); /* released, so it may come again */
	assert_int_equal(ops->rx_burst(b->q, GX_HALF_DATA, rx, 8), 1);
	release(b, rx, 1);
	send_all(p, &p->end[0], GX_HALF_DATA, 1, 9, 5, 100);
	recv_checked(p, b, GX_HALF_DATA, 9, 5, 100);
	munmap(s.base, s.len);
	pair_close(p);
}

static void shm_hostile_seq(void **state)
{
	struct pair *p = pair_open(64, 2048, 2);
	struct end *b = &p->end[1];
	struct gx_rx rx[8];
	struct shm_seg s;

	seg_open(p, 1, &s);
	for (uint32_t i = 0; i <= s.used_mask; i++)
		atomic_store(&s.used[i].seq, i + 1000);
	for (uint32_t i = 0; i < SHM_CTL_NR; i++)
		atomic_store(&s.ctl[i].seq, UINT32_MAX - i);
	assert_int_equal(ops->rx_burst(b->q, GX_HALF_DATA, rx, 8), 0);
	assert_int_equal(ops->rx_burst(b->q, GX_HALF_CTL, rx, 8), 0);
	send_all(p, &p->end[0], GX_HALF_DATA, 1, 9, 5, 100);
	recv_checked(p, b, GX_HALF_DATA, 9, 5, 100);
	munmap(s.base, s.len);
	pair_close(p);
}

static void shm_hostile_ctl(void **state)
{
	struct pair *p = pair_open(64, 2048, 2);
	struct end *b = &p->end[1];
	struct gx_rx rx[8];
	struct shm_seg s;

	seg_open(p, 1, &s);
	seg_ctl(&s, 0, GX_CTL_PAYLOAD_MAX + 1, HLEN);
	seg_ctl(&s, 1, 16, SHM_HDR_B + 1);
	seg_ctl(&s, 2, 0xffff, 0xffff);
	seg_ctl(&s, 3, GX_CTL_PAYLOAD_MAX, SHM_HDR_B);
	assert_int_equal(ops->rx_burst(b->q, GX_HALF_CTL, rx, 8), 1);
	assert_int_equal(rx[0].len, GX_CTL_PAYLOAD_MAX);
	assert_int_equal(bad_count(b), 3);
	assert_true((char *)rx[0].data < s.base || (char *)rx[0].data >= s.base + s.len);
	memset(s.ctl[3].b, 0x55, 64); /* changed afterwards: not seen */
	assert_int_equal(((char *)rx[0].data)[0], 0);
	send_all(p, &p->end[0], GX_HALF_CTL, 1, 9, 5, 100);
	recv_checked(p, b, GX_HALF_CTL, 9, 5, 100);
	munmap(s.base, s.len);
	pair_close(p);
}

/* A peer that never stops is ignored after SHM_VIOLATION_MAX entries; others go on. */
static void shm_hostile_flood(void **state)
{
	struct pair *p = pair_open(64, 2048, 2);
	struct end *b = &p->end[1];
	struct gx_rx rx[8];
	struct shm_seg s;

	seg_open(p, 1, &s);
	for (uint32_t i = 0; i < 3000; i++) {
		seg_used(&s, i, 9999, 0, 0);
		assert_int_equal(ops->rx_burst(b->q, GX_HALF_DATA, rx, 8), 0);
	}
	assert_int_equal(bad_count(b), 1024);
	seg_ctl(&s, 0, 16, HLEN);
	assert_int_equal(ops->rx_burst(b->q, GX_HALF_CTL, rx, 8), 0);
	send_all(p, &p->end[0], GX_HALF_DATA, 1, 9, 5, 100);
	recv_checked(p, b, GX_HALF_DATA, 9, 5, 100);
	munmap(s.base, s.len);
	pair_close(p);
}

/* What a hostile receiver can do to a sender: indices and slot numbers out of bounds. */
static void shm_hostile_receiver(void **state)
{
	for (unsigned what = 0; what < 4; what++) {
		struct pair *p = pair_open(64, 2048, 2);
		struct end *a = &p->end[0];
		struct gx_rx rx[8];
		struct shm_seg s;
		unsigned n;

		seg_open(p, 1, &s);
		if (what == 0)
			atomic_store(&s.hdr->posted_head, 65);
		if (what == 1)
			atomic_store(&s.hdr->posted_head, UINT32_MAX);
		if (what == 2)
			atomic_store(&s.posted[3], 64);
		if (what == 3)
			atomic_store(&s.hdr->ctl_done, 1000);
		if (what == 3)
			while (try_send(a, GX_HALF_CTL, 0, 0, 32, 8))
				;
		n = try_send(a, GX_HALF_DATA, 0, 0, 8, 2048);
		assert_int_equal(n, 0);
		assert_int_equal(bad_count(a), 1);
		assert_int_equal(ops->tx_room(a->q, GX_HALF_DATA, a->peer[0]), 0);
		assert_int_equal(ops->tx_room(a->q, GX_HALF_CTL, a->peer[0]), 0);
		/* Nor is it listened to: what waits for it must see it silent. */
		assert_int_equal(try_send(&p->end[1], GX_HALF_CTL, 0, 0, 1, 8), 1);
		assert_int_equal(ops->rx_burst(a->q, GX_HALF_CTL, rx, 8), 0);
		send_all(p, a, GX_HALF_DATA, 1, 9, 5, 100);
		recv_checked(p, &p->end[1], GX_HALF_DATA, 9, 5, 100);
		munmap(s.base, s.len);
		pair_close(p);
	}
}

/* A segment of the attacker's making: @len bytes, sealed with @seals, with @hdr at its start. */
static int seg_forge(size_t len, int seals, const struct shm_hdr *hdr)
{
	int fd = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_int_equal(ftruncate(fd, (off_t)len), 0);
	assert_int_equal(pwrite(fd, hdr, sizeof(*hdr), 0), sizeof(*hdr));
	if (seals)
		assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static void shm_hostile_fd(void **state)
{
	struct pair *p = pair_open(64, 2048, 1);
	struct end *a = &p->end[0];
	struct gx_port_addr laddr, raddr = p->end[1].laddr[0];
	int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	struct shm_addr addr;
	struct shm_seg s;
	struct shm_hdr good, hdr;
	uint32_t peer;

	seg_open(p, 1, &s);
	memcpy(&good, s.hdr, sizeof(good));
	memcpy(&addr, raddr.b, sizeof(addr));
	assert_int_equal(ops->peer_add(a->q, &peer, &laddr), 0);

	raddr.fd = seg_forge(s.len, 0, &good);
	assert_int_equal(ops->peer_connect(a->q, peer, &raddr), -EPROTO);
	raddr.fd = seg_forge(s.len, F_SEAL_GROW, &good);
	assert_int_equal(ops->peer_connect(a->q, peer, &raddr), -EPROTO);
	raddr.fd = seg_forge(s.len, seals | F_SEAL_WRITE, &good);
	assert_int_equal(ops->peer_connect(a->q, peer, &raddr), -EPROTO);
	raddr.fd = seg_forge(s.len - GX_HUGE_PAGE, seals, &good);
	assert_int_equal(ops->peer_connect(a->q, peer, &raddr), -EPROTO);
	for (unsigned i = 0; i < 8; i++) {
		hdr = good;
		hdr.magic ^= i == 0;
		hdr.version += i == 1;
		hdr.nr_slots = i == 2 ? 0 : i == 3 ? UINT32_MAX : i == 4 ? 4096 : hdr.nr_slots;
		hdr.slot_b = i == 5 ? 2049 : i == 6 ? UINT32_MAX & ~15u : hdr.slot_b;
		hdr.len += i == 7 ? 4096 : 0;
		raddr.fd = seg_forge(s.len, seals, &hdr);
		assert_int_equal(ops->peer_connect(a->q, peer, &raddr), -EPROTO);
	}
	addr.len = UINT64_MAX;
	memcpy(raddr.b, &addr, sizeof(addr));
	raddr.fd = seg_forge(s.len, seals, &good);
	assert_int_equal(ops->peer_connect(a->q, peer, &raddr), -EPROTO);
	memcpy(raddr.b, p->end[1].laddr[0].b, raddr.len);
	raddr.fd = seg_forge(s.len, seals, &good);
	assert_int_equal(ops->peer_connect(a->q, peer, &raddr), 0);
	ops->peer_del(a->q, peer);
	munmap(s.base, s.len);
	pair_close(p);
}

/* ---- udp ---- */

#define MANY_SOCKETS 24
#define MANY_PEERS   900

static int udp_raw(const struct pair *p, unsigned k, unsigned plus, struct sockaddr_in *to)
{
	uint16_t port;

	memcpy(&port, p->end[k].laddr[0].b + 2, sizeof(port));
	*to = (struct sockaddr_in){.sin_family = AF_INET,
				   .sin_port = htons((uint16_t)(port + plus)),
				   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	return socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

/* Makes @fd one half of a peer of end 1: what comes from there is not a stranger's. */
static void udp_raw_join(struct pair *p, unsigned i, int fd, unsigned plus)
{
	struct gx_port_addr raddr = p->end[0].laddr[0];
	struct sockaddr_in sa;
	socklen_t len = sizeof(sa);
	uint16_t port;

	sa = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
	port = (uint16_t)(ntohs(sa.sin_port) - plus);
	memcpy(raddr.b + 2, &port, sizeof(port));
	assert_int_equal(ops->peer_add(p->end[1].q, &p->end[1].peer[i], &p->end[1].laddr[i]), 0);
	assert_int_equal(ops->peer_connect(p->end[1].q, p->end[1].peer[i], &raddr), 0);
	ops->peer_attach(p->end[1].q, p->end[1].peer[i]);
}

static void udp_raw_leave(struct pair *p, unsigned i)
{
	ops->peer_detach(p->end[1].q, p->end[1].peer[i]);
	ops->peer_del(p->end[1].q, p->end[1].peer[i]);
}

/* 100 packets that are whole, from @ip and @port (0: any) to a half of end 1. */
static void udp_raw_flood(const struct pair *p, unsigned plus, const char *ip, uint16_t port)
{
	struct sockaddr_in to, from = {.sin_family = AF_INET, .sin_port = htons(port)};
	int fd = udp_raw(p, 1, plus, &to);

	assert_int_equal(inet_pton(AF_INET, ip, &from.sin_addr), 1);
	assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof(from)), 0);
	for (unsigned i = 0; i < 100; i++)
		sendto(fd, source, HLEN + 100, 0, (struct sockaddr *)&to, sizeof(to));
	close(fd);
}

/* Packets of no peer: none comes up, no buffer is lost, those of peers do. The kernel drops what
 * comes from another port, so that it costs no turn; the core what comes from another address. */
static void udp_strangers(void **state)
{
	struct pair *p = pair_open(64, 2048, 2);
	struct end *b = &p->end[1];
	uint16_t port;
	struct gx_rx rx[8];

	memcpy(&port, p->end[0].laddr[0].b + 2, sizeof(port));
	for (unsigned plus = 0; plus < 2; plus++) {
		enum gx_half half = plus ? GX_HALF_CTL : GX_HALF_DATA;
		uint64_t stray = gx_stat_get(&b->stats, GX_STAT_RX_STRAY);
		uint64_t nobuf = gx_stat_get(&b->stats, GX_STAT_RX_NOBUF);

		udp_raw_flood(p, plus, "127.0.0.1", 0);
		udp_raw_flood(p, plus, "127.0.0.9", (uint16_t)(port + plus));
		send_all(p, &p->end[0], half, 1, 5, 3, 700);
		for (unsigned got = 0; got < 3;) {
			unsigned n = recv_some(p, b, half, rx, 3 - got, WAIT_NS);

			assert_true(n > 0);
			for (unsigned i = 0; i < n; i++)
				assert_int_equal(pkt_check(b, half, &rx[i]), 5 + got++);
			if (half == GX_HALF_DATA)
				release(b, rx, n);
		}
		assert_int_equal(gx_stat_get(&b->stats, GX_STAT_RX_STRAY) - stray, 100);
		assert_int_equal(gx_stat_get(&b->stats, GX_STAT_RX_NOBUF) - nobuf, 100);
	}
	peer_leave(p, 1); /* the other one has the same address, and stays */
	p->nr_peers = 1;
	send_all(p, &p->end[0], GX_HALF_DATA, 0, 0, 64, 2048);
	recv_checked(p, b, GX_HALF_DATA, 0, 64, 2048);
	ops->peer_detach(b->q, b->peer[0]);
	send_all(p, &p->end[0], GX_HALF_DATA, 0, 0, 3, 2048); /* now it is a stranger too */
	assert_int_equal(recv_some(p, b, GX_HALF_DATA, rx, 3, QUIET_NS), 0);
	ops->peer_attach(b->q, b->peer[0]);
	pair_close(p);
}

#define CROWD_FDS   16
#define CROWD_PEERS 980

static unsigned udp_crowd_hears(struct pair *p, const int fds[], const struct sockaddr_in *to)
{
	struct gx_rx rx[GX_BURST_MAX];
	unsigned got = 0, n;

	for (unsigned i = 0; i < CROWD_FDS; i++)
		sendto(fds[i], source, HLEN + 100, 0, (const struct sockaddr *)to, sizeof(*to));
	/* Ours comes behind them. */
	send_all(p, &p->end[0], GX_HALF_DATA, 0, 0, 1, 100);
	for (; (n = recv_some(p, &p->end[1], GX_HALF_DATA, rx, CROWD_FDS + 1, QUIET_NS)); got += n)
		release(&p->end[1], rx, n);
	return got - 1;
}

/* Peers that are found behind others, and strangers that are not: many addresses, few buckets. */
static void udp_crowd(void **state)
{
	struct pair *p = pair_open(64, 2048, 1);
	struct end *b = &p->end[1];
	struct gx_port_addr raddr = p->end[0].laddr[0], laddr;
	int known[CROWD_FDS], strangers[CROWD_FDS];
	static uint32_t peer[CROWD_PEERS];
	struct sockaddr_in to;

	for (unsigned i = 0; i < CROWD_FDS; i++) {
		known[i] = udp_raw(p, 1, 0, &to);
		udp_raw_join(p, 1 + i, known[i], 0);
		strangers[i] = udp_raw(p, 1, 0, &to);
		connect(strangers[i], (struct sockaddr *)&to, sizeof(to));
	}
	for (unsigned i = 0; i < CROWD_PEERS; i++) {
		uint16_t port = (uint16_t)(1 + 2 * i); /* nobody's */

		memcpy(raddr.b + 2, &port, sizeof(port));
		assert_int_equal(ops->peer_add(b->q, &peer[i], &laddr), 0);
		assert_int_equal(ops->peer_connect(b->q, peer[i], &raddr), 0);
		ops->peer_attach(b->q, peer[i]);
	}
	assert_int_equal(udp_crowd_hears(p, known, &to), CROWD_FDS);
	assert_int_equal(udp_crowd_hears(p, strangers, &to), 0);
	for (unsigned i = 0; i < CROWD_PEERS; i++) {
		ops->peer_detach(b->q, peer[i]);
		ops->peer_del(b->q, peer[i]);
	}
	assert_int_equal(udp_crowd_hears(p, known, &to), CROWD_FDS);
	for (unsigned i = 0; i < CROWD_FDS; i++) {
		udp_raw_leave(p, 1 + i);
		close(strangers[i]);
	}
	assert_int_equal(udp_crowd_hears(p, known, &to), 0);
	for (unsigned i = 0; i < CROWD_FDS; i++)
		close(known[i]);
	pair_close(p);
}

/* Many peers, each at a port of its own: all of them are heard, and nobody between them. */
static void udp_strangers_among_many(void **state)
{
	struct pair *p = pair_open(64, 2048, 1);
	struct gx_port_addr addr, raddr = p->end[0].laddr[0];
	int fd[2 * MANY_SOCKETS];
	uint32_t peer[MANY_PEERS];
	struct end *b = &p->end[1];
	struct sockaddr_in to;
	struct gx_rx rx[8];

	for (unsigned i = 0; i < 2 * MANY_SOCKETS; i++) {
		struct sockaddr_in sa = {.sin_family = AF_INET,
					 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

		fd[i] = udp_raw(p, 1, 0, &to);
		assert_int_equal(bind(fd[i], (struct sockaddr *)&sa, sizeof(sa)), 0);
	}
	for (unsigned i = 0; i < MANY_PEERS; i++) {
		struct sockaddr_in sa;
		socklen_t len = sizeof(sa);
		uint16_t port = (uint16_t)(1 + 32 * i); /* of nobody, below the others */

		if (i < MANY_SOCKETS) {
			getsockname(fd[i], (struct sockaddr *)&sa, &len);
			port = ntohs(sa.sin_port);
		}
		memcpy(raddr.b + 2, &port, sizeof(port));
		assert_int_equal(ops->peer_add(b->q, &peer[i], &addr), 0);
		assert_int_equal(ops->peer_connect(b->q, peer[i], &raddr), 0);
		ops->peer_attach(b->q, peer[i]);
		for (unsigned k = 0; k < 2 * MANY_SOCKETS && (i < 20 || i == MANY_PEERS - 1); k++) {
			unsigned want = k <= i && k < MANY_SOCKETS;

			assert_int_equal(sendto(fd[k], source, HLEN + 100, 0,
						(struct sockaddr *)&to, sizeof(to)),
					 HLEN + 100);
			assert_int_equal(ops->rx_burst(b->q, GX_HALF_DATA, rx, 8), want);
			release(b, rx, want);
		}
	}
	assert_int_equal(gx_stat_get(&b->stats, GX_STAT_RX_STRAY), 0);
	for (unsigned i = 0; i < MANY_PEERS; i++) {
		ops->peer_detach(b->q, peer[i]);
		ops->peer_del(b->q, peer[i]);
	}
	for (unsigned i = 0; i < 2 * MANY_SOCKETS; i++)
		close(fd[i]);
	pair_close(p);
}

/* A socket of a path: @ip with port *@port, or any, which is told. */
static int udp_path_fd(const char *ip, uint16_t *port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(*port)};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	socklen_t len = sizeof(sa);

	assert_int_equal(inet_pton(AF_INET, ip, &sa.sin_addr), 1);
	assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
	*port = ntohs(sa.sin_port);
	return fd;
}

/* Which of these (bits) does end 1 hear? One packet of each, on both halves. */
static unsigned udp_path_hears(struct pair *p, const int fd[], unsigned n)
{
	unsigned heard = 0;

	for (unsigned i = 0; i < 2 * n; i++) {
		enum gx_half half = i & 1 ? GX_HALF_CTL : GX_HALF_DATA;
		struct sockaddr_in to;
		struct gx_rx rx;
		unsigned got;

		close(udp_raw(p, 1, i & 1, &to));
		sendto(fd[i / 2], source, HLEN + 100, 0, (struct sockaddr *)&to, sizeof(to));
		got = ops->rx_burst(p->end[1].q, half, &rx, 1);
		if (half == GX_HALF_DATA)
			release(&p->end[1], &rx, got);
		assert_true(half == GX_HALF_DATA || (heard >> i / 2 & 1) == got);
		heard |= got << i / 2;
	}
	return heard;
}

/* Of so many addresses some share a bucket with a path of that port: none is heard. */
static void udp_path_hears_no_other(struct pair *p, uint16_t port)
{
	char ip[16];

	for (unsigned i = 0; i < 8192; i++) {
		int fd;

		snprintf(ip, sizeof(ip), "127.1.%u.%u", i / 200, 1 + i % 200);
		fd = udp_path_fd(ip, &port);
		assert_int_equal(udp_path_hears(p, &fd, 1), 0);
		close(fd);
	}
}

/* Two connections of a peer whose hello names none, the same twice, or ports of others as those of its
 * paths. Whoever has a named port at its address is heard; nobody at another address, or behind it. */
static void udp_paths_of_a_liar(void **state)
{
	struct pair *p = pair_open(64, 2048, 1);
	struct gx_port_addr laddr, raddr = p->end[0].laddr[0];
	struct end *b = &p->end[1];
	uint16_t port[3] = {0}, spare[7] = {0};
	uint64_t stray;
	uint32_t peer[2];
	int fd[4];

	for (unsigned i = 0; i < 3; i++)
		fd[i] = udp_path_fd("127.0.0.1", &port[i]);
	fd[3] = udp_path_fd("127.0.0.9", &port[1]);
	assert_int_equal(udp_path_hears(p, fd, 4), 0);
	spare[1] = spare[2] = spare[6] = port[0];
	spare[4] = port[1];
	memcpy(&spare[5], b->laddr[0].b + 2, sizeof(spare[5])); /* the receiver's own */
	memcpy(&spare[3], raddr.b + 2, sizeof(spare[3]));	/* that of the peer's data */
	memcpy(raddr.b + 24, spare, sizeof(spare));
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(ops->peer_add(b->q, &peer[i], &laddr), 0);
		assert_int_equal(ops->peer_connect(b->q, peer[i], &raddr), 0);
		assert_int_equal(udp_path_hears(p, fd, 4), i ? 3 : 0); /* not attached yet */
		ops->peer_attach(b->q, peer[i]);
		stray = gx_stat_get(&b->stats, GX_STAT_RX_STRAY);
		assert_int_equal(udp_path_hears(p, fd, 4), 3);
		assert_int_equal(gx_stat_get(&b->stats, GX_STAT_RX_STRAY) - stray, 2);
	}
	udp_path_hears_no_other(p, port[1]);
	ops->peer_detach(b->q, peer[0]);
	assert_int_equal(udp_path_hears(p, fd, 4), 3); /* the other has named them, too */
	ops->peer_detach(b->q, peer[1]);
	assert_int_equal(udp_path_hears(p, fd, 4), 0);
	memset(raddr.b + 24, 0, sizeof(spare)); /* and one that names none has one path */
	ops->peer_del(b->q, peer[1]);
	assert_int_equal(ops->peer_add(b->q, &peer[1], &laddr), 0);
	assert_int_equal(ops->peer_connect(b->q, peer[1], &raddr), 0);
	ops->peer_attach(b->q, peer[1]);
	assert_int_equal(udp_path_hears(p, fd, 4), 0);
	ops->peer_detach(b->q, peer[1]);
	send_all(p, &p->end[0], GX_HALF_DATA, 0, 0, 64, 2048);
	recv_checked(p, b, GX_HALF_DATA, 0, 64, 2048);
	ops->peer_del(b->q, peer[0]);
	ops->peer_del(b->q, peer[1]);
	for (unsigned i = 0; i < 4; i++)
		close(fd[i]);
	pair_close(p);
}

/* A client whose data address is not where it is. */
static void udp_address_of_another(void **state)
{
	struct pair *p = pair_open(64, 2048, 1);
	struct end *b = &p->end[1];
	struct gx_port_addr addr, raddr = p->end[0].laddr[0];
	uint32_t peer;

	assert_int_equal(ops->peer_add(b->q, &peer, &addr), 0);
	raddr.from_len = 4;
	memcpy(raddr.from, "\xc0\x00\x02\x01", 4);
	assert_int_equal(ops->peer_connect(b->q, peer, &raddr), -EPERM);
	assert_non_null(strstr(gx_port_why(), "gx_opts.bind_host"));
	raddr.from_len = 16;
	assert_int_equal(ops->peer_connect(b->q, peer, &raddr), -EPERM);
	raddr.from_len = 4;
	memcpy(raddr.from, "\x7f\x00\x00\x01", 4);
	assert_int_equal(ops->peer_connect(b->q, peer, &raddr), 0);
	ops->peer_del(b->q, peer);
	pair_close(p);
}

static void udp_bad_datagrams(void **state)
{
	struct pair *p = pair_open(64, 2048, 1);
	struct end *b = &p->end[1];
	struct sockaddr_in to;
	struct gx_rx rx[8];

	for (unsigned plus = 0; plus < 2; plus++) {
		static const size_t sizes[] = {0, 1, HLEN - 1, HLEN + 9000, 60000};
		enum gx_half half = plus ? GX_HALF_CTL : GX_HALF_DATA;
		uint64_t before = bad_count(b);
		int fd = udp_raw(p, 1, plus, &to);

		udp_raw_join(p, 1, fd, plus);
		for (unsigned i = 0; i < GX_ARRAY_SIZE(sizes); i++)
			assert_int_equal(
				sendto(fd, source, sizes[i], 0, (struct sockaddr *)&to, sizeof(to)),
				sizes[i]);
		send_all(p, &p->end[0], half, 0, 5, 3, 700);
		assert_int_equal(recv_some(p, b, half, rx, 3, WAIT_NS), 3);
		assert_int_equal(recv_some(p, b, half, rx + 3, 5, QUIET_NS), 0);
		for (unsigned i = 0; i < 3; i++)
			assert_int_equal(pkt_check(b, half, &rx[i]), 5 + i);
		if (half == GX_HALF_DATA)
			release(b, rx, 3);
		assert_int_equal(bad_count(b) - before, GX_ARRAY_SIZE(sizes));
		udp_raw_leave(p, 1);
		close(fd);
	}
	send_all(p, &p->end[0], GX_HALF_DATA, 0, 0, 64, 2048); /* no buffer was lost */
	recv_checked(p, b, GX_HALF_DATA, 0, 64, 2048);
	pair_close(p);
}

/* A mark of congestion (ECN: CE) comes up with its packet, and with no other; so from trains too. */
static void udp_marks(void **state)
{
	static const int tos[] = {0, 3, 2, 3, 3, 1, 0xff, 0x20};
	struct pair *p = pair_open(64, 2048, 1);
	struct end *b = &p->end[1];
	struct sockaddr_in to;
	struct gx_rx rx[8];
	int fd = udp_raw(p, 1, 0, &to), seg = HLEN + 300;

	udp_raw_join(p, 1, fd, 0);
	for (unsigned i = 0; i < 2 * GX_ARRAY_SIZE(tos); i++) {
		unsigned pkts = i < GX_ARRAY_SIZE(tos) ? 1 : 3, got = 0;
		int class = tos[i % GX_ARRAY_SIZE(tos)];

		setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &seg, sizeof(seg));
		assert_int_equal(setsockopt(fd, IPPROTO_IP, IP_TOS, &class, sizeof(class)), 0);
		assert_int_equal(sendto(fd, source, (size_t)seg * pkts, 0, (struct sockaddr *)&to,
					sizeof(to)),
				 seg * pkts);
		while (got < pkts) {
			unsigned n = recv_some(p, b, GX_HALF_DATA, rx, pkts - got, WAIT_NS);

			assert_true(n > 0);
			for (unsigned k = 0; k < n; k++)
				assert_int_equal(rx[k].marked, (class & 3) == 3);
			release(b, rx, n);
			got += n;
		}
	}
	udp_raw_leave(p, 1);
	close(fd);
	pair_close(p);
}

static void udp_unreachable_is_swallowed(void **state)
{
	struct pair *p = pair_open(0, 0, 2);
	struct end *a = &p->end[0];
	struct gx_port_addr raddr = {.fd = -1}, laddr;
	struct gx_tx tx;
	uint32_t peer;

	/* A pair of ports that was just closed. */
	raddr = p->end[1].laddr[0];
	end_close(&p->end[1]);
	assert_int_equal(ops->peer_add(a->q, &peer, &laddr), 0);
	assert_int_equal(ops->peer_connect(a->q, peer, &raddr), 0);
	ops->peer_attach(a->q, peer);
	for (unsigned i = 0; i < 200; i++) {
		struct gx_rx rx;

		pkt_make(&tx, peer, i, 1000);
		assert_int_equal(ops->tx_burst(a->q, GX_HALF_DATA, &tx, 1), 1);
		assert_int_equal(ops->rx_burst(a->q, GX_HALF_DATA, &rx, 1), 0);
	}
	assert_int_equal(ops->fault(a->q), 0);
	end_close(a);
	free(p);
	assert_int_equal(common_fds_count(), nr_fds);
}

/* More than buffers and the kernel's queue hold: the rest is lost and counted. */
static void udp_overflow_is_counted(void **state)
{
	struct pair *p = pair_open(64, 0, 1);
	struct end *b = &p->end[1];
	struct gx_rx rx[64];
	unsigned sent = 0, got = 0, n;

	for (; sent < 12000; sent += 32)
		assert_int_equal(try_send(&p->end[0], GX_HALF_DATA, 0, sent, 32, 8192), 32);
	while ((n = recv_some(p, b, GX_HALF_DATA, rx, 64, QUIET_NS))) {
		release(b, rx, n);
		got += n;
	}
	send_all(p, &p->end[0], GX_HALF_DATA, 0, sent, 1, 8192); /* brings the count */
	recv_checked(p, b, GX_HALF_DATA, sent, 1, 8192);
	assert_in_range(got, 64, sent - 1);
	/* Packets that go through the kernel together count as one. */
	assert_in_range(gx_stat_get(&b->stats, GX_STAT_RX_NOBUF), 1, sent - got);
	pair_close(p);
}

/* Bursts of packets of other lengths than the last ones had: each comes whole, whatever was
 * guessed, also when buffers are short. */
static void udp_trains_of_any_length(void **state)
{
	static const uint32_t lens[] = {1392, 8192, 8192, 1,	1280, 0,    3328, 3328,
					8176, 100,  8192, 1392, 1392, 4096, 16,	  8192};

	for (unsigned slots = 64; slots <= 4096; slots *= 64) {
		struct pair *p = pair_open(slots, 0, 2);
		uint32_t first = 0;

		for (unsigned i = 0; i < 20 * GX_ARRAY_SIZE(lens); i++) {
			uint32_t len = lens[i % GX_ARRAY_SIZE(lens)];
			unsigned n = 1 + i * 7 % GX_BURST_MAX;

			send_all(p, &p->end[0], GX_HALF_DATA, i & 1, first, n, len);
			recv_checked(p, &p->end[1], GX_HALF_DATA, first, n, len);
			first += n;
		}
		pair_close(p);
	}
}

/* One burst of several lengths and peers: cut into trains, and all of it comes. */
static void udp_trains_in_one_burst(void **state)
{
	struct pair *p = pair_open(0, 0, 2);
	struct gx_tx tx[GX_BURST_MAX];
	struct gx_rx rx[GX_BURST_MAX];
	uint64_t seen = 0;

	for (unsigned k = 0; k < 50; k++) {
		for (unsigned i = 0; i < GX_BURST_MAX; i++)
			pkt_make(&tx[i], p->end[0].peer[i / 13 & 1], i,
				 i % 5 == 4 ? 100 + i : 4096u >> (i / 20));
		assert_int_equal(ops->tx_burst(p->end[0].q, GX_HALF_DATA, tx, GX_BURST_MAX),
				 GX_BURST_MAX);
		seen = 0;
		for (unsigned got = 0, more; got < GX_BURST_MAX; got += more) {
			more = recv_some(p, &p->end[1], GX_HALF_DATA, rx, GX_BURST_MAX - got,
					 WAIT_NS);
			assert_true(more > 0);
			for (unsigned i = 0; i < more; i++) {
				uint32_t at = pkt_check(&p->end[1], GX_HALF_DATA, &rx[i]);

				assert_int_equal(rx[i].len, tx[at].len);
				seen |= 1ull << at;
			}
			release(&p->end[1], rx, more);
		}
		assert_true(seen == UINT64_MAX);
	}
	pair_close(p);
}

static void udp_ipv6(void **state)
{
	struct gx_port_cfg cfg = {.args = "", .nr_queues = 1, .slots = 64, .bind_host = "::1"};
	struct gx_port_queue *q;
	struct gx_port_addr addr = {0};
	struct gx_stats stats = {0};
	struct gx_port *port;
	struct gx_tx tx;
	struct gx_rx rx[2];
	uint32_t peer;
	unsigned got = 0;

	assert_int_equal(gx_arena_open(64 << 20, &cfg.arena), 0);
	assert_int_equal(ops->open(&cfg, &port), 0);
	if (ops->queue_open(port, 0, &stats, &q)) {
		print_message("skipped: no IPv6 here: %s\n", gx_port_why());
		goto out;
	}
	assert_int_equal(ops->peer_add(q, &peer, &addr), 0);
	assert_int_equal(ops->peer_connect(q, peer, &addr), 0); /* to itself */
	ops->peer_attach(q, peer);
	pkt_make(&tx, peer, 3, 5000);
	assert_int_equal(ops->tx_burst(q, GX_HALF_DATA, &tx, 1), 1);
	for (uint64_t until = gx_now_ns() + WAIT_NS; !got && gx_now_ns() < until;)
		got = ops->rx_burst(q, GX_HALF_DATA, rx, 2);
	assert_int_equal(got, 1);
	assert_memory_equal(rx[0].data, tx.data, 5000);
	ops->rx_release(q, &rx[0].buf, 1);
	ops->peer_detach(q, peer);
	ops->peer_del(q, peer);
	ops->queue_close(q);
out:
	ops->close(port);
	gx_arena_close(cfg.arena);
}

static void udp_refuses_wildcard(void **state)
{
	struct gx_port_cfg cfg = {.args = "", .nr_queues = 1, .bind_host = "0.0.0.0"};
	struct gx_port *port;

	assert_int_equal(ops->open(&cfg, &port), -EINVAL);
	assert_non_null(strstr(gx_port_why(), "0.0.0.0"));
	cfg.bind_host = "127.0.0.1";
	cfg.payload_b = 1 << 20;
	assert_int_equal(ops->open(&cfg, &port), -EINVAL);
	cfg.payload_b = 1000;
	assert_int_equal(ops->open(&cfg, &port), -EINVAL);
}

/* ---- sim ---- */

/* Send @n data packets of 1,000 bytes; the numbers of those that come, in order. Return: how many.
 */
static unsigned sim_transfer(struct pair *p, unsigned n, uint32_t numbers[], unsigned room)
{
	unsigned sent = 0, got = 0, more;
	struct gx_rx rx[GX_BURST_MAX];

	do {
		if (sent < n)
			sent += try_send(&p->end[0], GX_HALF_DATA, 0, sent, GX_MIN(n - sent, 32u),
					 1000);
		step(p);
		more = recv_some(p, &p->end[1], GX_HALF_DATA, rx, GX_BURST_MAX, QUIET_NS);
		for (unsigned i = 0; i < more && got < room; i++)
			numbers[got++] = pkt_number(&rx[i]);
		release(&p->end[1], rx, more);
	} while (sent < n || more);
	return got;
}

static void sim_drops_as_planned(void **state)
{
	static const uint64_t drop[] = {0, 3, 4, 99};
	uint32_t numbers[200];
	struct sim_counts counts;
	struct pair *p;

	sim_cfg = (struct sim_cfg){.drop = drop, .nr_drop = 4};
	p = pair_open(0, 0, 1);
	assert_int_equal(sim_transfer(p, 100, numbers, 200), 96);
	assert_int_equal(numbers[0], 1);
	assert_int_equal(numbers[2], 5);
	assert_int_equal(numbers[95], 98);
	sim_net_counts(p->net, &counts);
	assert_int_equal(counts.sent, 100);
	assert_int_equal(counts.lost, 4);
	assert_int_equal(counts.delivered, 96);
	pair_close(p);
	sim_cfg = (struct sim_cfg){0};
}

static void sim_impairs_and_conserves(void **state)
{
	static uint32_t first[8000], second[8000];
	struct sim_counts c, d;
	unsigned n = 0, late = 0;

	sim_cfg = (struct sim_cfg){.seed = 7,
				   .rate_bps = 100000000000,
				   .delay_ns = 20000,
				   .loss_ppm = 20000,
				   .dup_ppm = 10000,
				   .corrupt_ppm = 10000,
				   .reorder_ppm = 10000,
				   .reorder_slots = 16};
	for (unsigned run = 0; run < 2; run++) {
		struct pair *p = pair_open(0, 0, 1);

		n = sim_transfer(p, 5000, run ? second : first, 8000);
		sim_net_counts(p->net, run ? &d : &c);
		pair_close(p);
	}
	assert_int_equal(c.delivered, n);
	assert_memory_equal(&c, &d, sizeof(c));
	assert_memory_equal(first, second, n * sizeof(first[0]));
	assert_int_equal(c.sent, 5000);
	assert_int_equal(c.sent + c.dup, c.lost + c.delivered);
	assert_in_range(c.lost, 60, 140);
	assert_in_range(c.dup, 25, 75);
	assert_in_range(c.corrupted, 25, 75);
	assert_in_range(c.reordered, 25, 75);
	for (unsigned i = 1; i < n; i++)
		late += first[i] < first[i - 1];
	assert_in_range(late, 10, 150);
	sim_cfg = (struct sim_cfg){0};
}

/* Rate and delay: 100 packets at 10 Gb/s leave one behind the other and come 50 us later. */
static void sim_keeps_time(void **state)
{
	uint64_t wire_ns = (1000 + HLEN + SIM_FRAME_B) * 8 / 10, start, end = 0;
	struct gx_rx rx[GX_BURST_MAX];
	struct pair *p;
	unsigned got = 0;

	sim_cfg = (struct sim_cfg){.rate_bps = 10000000000, .delay_ns = 50000};
	p = pair_open(0, 0, 1);
	start = sim_net_now(p->net);
	assert_int_equal(sim_net_next(p->net), UINT64_MAX);
	assert_int_equal(try_send(&p->end[0], GX_HALF_DATA, 0, 0, 64, 1000), 64);
	while (sim_net_next(p->net) != UINT64_MAX) {
		sim_net_advance(p->net, sim_net_next(p->net));
		if (ops->rx_burst(p->end[1].q, GX_HALF_DATA, &rx[got], 1)) {
			end = sim_net_now(p->net);
			got++;
			assert_int_equal(end - start, 50000 + got * wire_ns);
		}
	}
	assert_int_equal(got, 64);
	release(&p->end[1], rx, got);
	pair_close(p);
	sim_cfg = (struct sim_cfg){0};
}

static void sim_full_queue_drops(void **state)
{
	struct sim_counts c;
	uint32_t numbers[400];
	struct pair *p;

	/* Two links into one: the queue before the receiver takes 8 packets. */
	sim_cfg = (struct sim_cfg){.rate_bps = 1000000000, .queue_b = 8 * 1100};
	p = pair_open(0, 0, 1);
	ops->peer_detach(p->end[0].q, p->end[0].peer[0]);
	ops->peer_attach(p->end[0].q, p->end[0].peer[0]);
	sim_transfer(p, 64, numbers, 400);
	sim_net_counts(p->net, &c);
	assert_int_equal(c.queue_drop, 0); /* one sender cannot overrun a link of its own rate */
	pair_close(p);
	sim_cfg = (struct sim_cfg){0};
}

static void sim_no_buffer_is_counted(void **state)
{
	struct pair *p = pair_open(64, 0, 1);
	struct gx_rx rx[100];

	send_all(p, &p->end[0], GX_HALF_DATA, 0, 0, 100, 100);
	step(p);
	assert_int_equal(recv_some(p, &p->end[1], GX_HALF_DATA, rx, 100, QUIET_NS), 64);
	assert_int_equal(gx_stat_get(&p->end[1].stats, GX_STAT_RX_NOBUF), 36);
	release(&p->end[1], rx, 64);
	pair_close(p);
}

static void sim_poisons_released(void **state)
{
#ifndef NDEBUG
	struct pair *p = pair_open(64, 0, 1);
	struct gx_rx rx;

	send_all(p, &p->end[0], GX_HALF_DATA, 0, 0, 1, 100);
	assert_int_equal(recv_some(p, &p->end[1], GX_HALF_DATA, &rx, 1, WAIT_NS), 1);
	release(&p->end[1], &rx, 1);
	assert_int_equal(((uint8_t *)rx.data)[0], 0xee);
	assert_int_equal(((uint8_t *)rx.data)[99], 0xee);
	pair_close(p);
#endif
}

static void sim_attach_reads_late(void **state)
{
	uint8_t payload[100] = "early";
	struct gx_tx tx;
	struct gx_rx rx;
	uint32_t cookie = 0;
	struct pair *p;

	sim_cfg = (struct sim_cfg){.rate_bps = 1000000000, .attach = true};
	p = pair_open(0, 0, 1);
	assert_true(p->end[0].port->caps.flags & GX_PORT_TX_ATTACH);
	pkt_make(&tx, p->end[0].peer[0], 1, sizeof(payload));
	tx.data = payload;
	tx.cookie = 77;
	assert_int_equal(ops->tx_burst(p->end[0].q, GX_HALF_DATA, &tx, 1), 1);
	assert_int_equal(ops->tx_reap(p->end[0].q, &cookie, 1), 0);
	memcpy(payload, "later", 5);
	step(p);
	assert_int_equal(ops->tx_reap(p->end[0].q, &cookie, 1), 1);
	assert_int_equal(cookie, 77);
	assert_int_equal(recv_some(p, &p->end[1], GX_HALF_DATA, &rx, 1, WAIT_NS), 1);
	assert_memory_equal(rx.data, "later", 5);
	release(&p->end[1], &rx, 1);
	pair_close(p);
	sim_cfg = (struct sim_cfg){0};
}

static void sim_black_hole(void **state)
{
	struct sim_counts c;
	struct pair *p;

	sim_cfg = (struct sim_cfg){.path_payload_b = 1392};
	p = pair_open(0, 4096, 1);
	assert_true(p->end[0].port->caps.flags & GX_PORT_NEEDS_PROBE);
	send_all(p, &p->end[0], GX_HALF_DATA, 0, 0, 3, 4096);
	send_all(p, &p->end[0], GX_HALF_DATA, 0, 5, 3, 1392);
	recv_checked(p, &p->end[1], GX_HALF_DATA, 5, 3, 1392);
	sim_net_counts(p->net, &c);
	assert_int_equal(c.blackhole, 3);
	pair_close(p);
	sim_cfg = (struct sim_cfg){0};
}

/* A packet for a peer that is gone reaches nobody, even when its place was taken again. */
static void sim_stale_peer(void **state)
{
	struct pair *p = pair_open(0, 0, 1);
	struct sim_counts c;
	struct gx_rx rx;

	send_all(p, &p->end[0], GX_HALF_DATA, 0, 0, 3, 100);
	peer_leave(p, 0);
	peer_join(p, 0);
	step(p);
	assert_int_equal(recv_some(p, &p->end[1], GX_HALF_DATA, &rx, 1, QUIET_NS), 0);
	sim_net_counts(p->net, &c);
	assert_int_equal(c.stray, 3);
	pair_close(p);
}

static void port_find__names(void **state)
{
	assert_ptr_equal(gx_port_find("shm"), &gx_port_shm_ops);
	assert_ptr_equal(gx_port_find("udp"), &gx_port_udp_ops);
	assert_ptr_equal(gx_port_find("sim"), &port_sim_ops);
	assert_null(gx_port_find("infiniband"));
	assert_non_null(strstr(gx_port_why(), "infiniband"));
	assert_null(strstr(gx_port_why(), "sim")); /* nobody but tests has it */
	assert_null(gx_port_find(""));
}

/* ---- main ---- */

/* Can the port be had here at all? */
static bool probe(void)
{
	struct sim_net *net = NULL;
	char args[128];
	struct end *e = calloc(1, sizeof(*e));
	bool ok;

	snprintf(args, sizeof(args), "%s", spec[0]);
	if (port_is("sim") && !sim_net_open(&sim_cfg, &net))
		snprintf(args, sizeof(args), "net=%u", sim_net_id(net));
	ok = !end_open(e, args, 0, 0, true);
	if (ok)
		end_close(e);
	sim_net_close(net);
	free(e);
	return ok;
}

static int run_all(void)
{
	const struct CMUnitTest common[] = {
		cmocka_unit_test(port_find__names),
		cmocka_unit_test(open__caps_make_sense),
		cmocka_unit_test(open__refuses_bad_args),
		cmocka_unit_test(packet__sizes),
		cmocka_unit_test(packet__peer_is_named_or_any),
		cmocka_unit_test(burst__goes_round),
		cmocka_unit_test(burst__of_nothing),
		cmocka_unit_test(room__exhausts_and_recovers),
		cmocka_unit_test(room__ctl),
		cmocka_unit_test(pool__exhausted),
		cmocka_unit_test(release__after_detach),
		cmocka_unit_test(peers__many),
		cmocka_unit_test(peer_connect__refuses),
	};
	const struct CMUnitTest shm[] = {
		cmocka_unit_test(shm_ctl_before_data),
		cmocka_unit_test(shm_rx_is_fair),
		cmocka_unit_test(shm_quiet_peers),
		cmocka_unit_test(shm_quiet_peer_answers),
		cmocka_unit_test(shm_quiet_peers_leave),
		cmocka_unit_test(shm_segment_weighs_little),
		cmocka_unit_test(shm_rung_when_whole),
		cmocka_unit_test(shm_two_threads),
		cmocka_unit_test(shm_two_processes),
		cmocka_unit_test(shm_hostile_used),
		cmocka_unit_test(shm_hostile_seq),
		cmocka_unit_test(shm_hostile_ctl),
		cmocka_unit_test(shm_hostile_flood),
		cmocka_unit_test(shm_hostile_receiver),
		cmocka_unit_test(shm_hostile_fd),
	};
	const struct CMUnitTest udp[] = {
		cmocka_unit_test(udp_bad_datagrams),
		cmocka_unit_test(udp_strangers),
		cmocka_unit_test(udp_crowd),
		cmocka_unit_test(udp_strangers_among_many),
		cmocka_unit_test(udp_paths_of_a_liar),
		cmocka_unit_test(udp_address_of_another),
		cmocka_unit_test(udp_marks),
		cmocka_unit_test(udp_unreachable_is_swallowed),
		cmocka_unit_test(udp_overflow_is_counted),
		cmocka_unit_test(udp_trains_of_any_length),
		cmocka_unit_test(udp_trains_in_one_burst),
		cmocka_unit_test(udp_ipv6),
		cmocka_unit_test(udp_refuses_wildcard),
	};
	const struct CMUnitTest sim[] = {
		cmocka_unit_test(sim_drops_as_planned),
		cmocka_unit_test(sim_impairs_and_conserves),
		cmocka_unit_test(sim_keeps_time),
		cmocka_unit_test(sim_full_queue_drops),
		cmocka_unit_test(sim_no_buffer_is_counted),
		cmocka_unit_test(sim_poisons_released),
		cmocka_unit_test(sim_attach_reads_late),
		cmocka_unit_test(sim_black_hole),
		cmocka_unit_test(sim_stale_peer),
	};
	int failed = cmocka_run_group_tests(common, NULL, NULL);

	if (port_is("shm"))
		failed += cmocka_run_group_tests(shm, NULL, NULL);
	if (port_is("udp"))
		failed += cmocka_run_group_tests(udp, NULL, NULL);
	if (port_is("sim"))
		failed += cmocka_run_group_tests(sim, NULL, NULL);
	return failed;
}

int main(int argc, char **argv)
{
	char name[32] = "";

	for (int k = 0; k < 2; k++) {
		const char *arg = argc > 1 + k ? argv[1 + k] : argc > 1 ? argv[1] : "shm";

		sscanf(arg, "%31[^:]", name);
		snprintf(spec[k], sizeof(spec[k]), "%s",
			 strchr(arg, ':') ? strchr(arg, ':') + 1 : "");
	}
	gx_port_add(&port_sim_ops);
	ops = gx_port_find(name);
	if (!ops || !probe()) {
		printf("skipped: %s\n", gx_port_why());
		return 77;
	}
	for (size_t i = 0; i < sizeof(source); i++)
		source[i] = (uint8_t)(i * 167 + (i >> 8) * 13);
	return run_all();
}
