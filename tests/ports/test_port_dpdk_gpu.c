// SPDX-License-Identifier: Apache-2.0
/*
 * Port dpdk with a bounce pool in the memory of a GPU, over a scripted card (dpdk_card.c): there is
 * none here that can. Without arguments: the port alone; the pool is memory that only the card can
 * touch, so that whoever reads payload by the CPU dies. "cuda": two contexts and whole transfers,
 * on the fake driver; 77 without. Nothing of this has run on a real card.
 */
#include "gx_internal/port.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kit/common_gx.h"
#include "kit/common_post.h"
#include "ports/dpdk_card.h"
#include "ports/dpdk/net.h"

#include <cmocka.h>

#define SLOTS	 64
#define CARD_ARG "net_null,no-rx=1,mem=256,mtu=9000,ip=10.9.0."
#define KV_B	 ((uint64_t)4 << 20)
#define WAIT_NS	 60000000000ull

static const struct gx_port_ops *const ops = &gx_port_dpdk_ops;

/* ---- the port alone ---- */

struct end {
	struct gx_arena *arena, *pool;
	struct gx_port *port;
	struct gx_port_queue *q[2];
	struct gx_stats stats[2];
	uint32_t peer[2];
	struct gx_port_addr laddr[2];
};

struct fix {
	unsigned lanes;
	struct gx_gpu gpu; /* of which the port knows the number */
	struct end rx, tx;
};

static int end_open(struct end *e, const char *args, unsigned lanes, struct gx_gpu *gpu)
{
	static const int cpus[] = {-1, -1};
	struct gx_port_cfg cfg = {.args = args,
				  .nr_queues = lanes,
				  .cpus = cpus,
				  .slots = SLOTS,
				  .bind_host = "127.0.0.1",
				  .pool_gpu = gpu};
	int ret;

	assert_int_equal(gx_arena_open(1u << 30, &e->arena), 0);
	cfg.arena = e->arena;
	if (gpu)
		assert_int_equal(gx_arena_open(1u << 30, &e->pool), 0);
	cfg.pool = e->pool;
	ret = ops->open(&cfg, &e->port);
	for (unsigned i = 0; i < lanes && !ret; i++) {
		assert_int_equal(ops->queue_open(e->port, i, &e->stats[i], &e->q[i]), 0);
		assert_int_equal(ops->peer_add(e->q[i], &e->peer[i], &e->laddr[i]), 0);
	}
	return ret;
}

static void end_close(struct end *e, unsigned lanes)
{
	for (unsigned i = 0; i < lanes && e->port; i++) {
		ops->peer_detach(e->q[i], e->peer[i]);
		ops->peer_del(e->q[i], e->peer[i]);
		ops->queue_close(e->q[i]);
	}
	ops->close(e->port);
	gx_arena_close(e->arena);
	gx_arena_close(e->pool);
	memset(e, 0, sizeof(*e));
}

static void end_connect(struct end *e, const struct end *other, unsigned lanes)
{
	for (unsigned i = 0; i < lanes; i++) {
		assert_int_equal(ops->peer_connect(e->q[i], e->peer[i], &other->laddr[i]), 0);
		ops->peer_attach(e->q[i], e->peer[i]);
	}
}

/* After all has been closed: nothing is out, and all was undone in the right order. */
static void seen_check(void)
{
	assert_int_equal(card_seen.leaked, 0);
	assert_int_equal(card_seen.wrong_order, 0);
	assert_int_equal(card_seen.maps, card_seen.unmaps);
	assert_int_equal(card_seen.known, card_seen.unknown);
}

static struct fix *fix_open(unsigned lanes)
{
	struct fix *f = calloc(1, sizeof(*f));

	card_reset();
	card_script.guard = true;
	f->lanes = lanes;
	f->gpu.device = 3;
	f->gpu.dma = GX_GPU_DMA_OWN;
	assert_int_equal(end_open(&f->rx, CARD_ARG "1", lanes, &f->gpu), 0);
	assert_int_equal(end_open(&f->tx, CARD_ARG "2", lanes, NULL), 0);
	end_connect(&f->rx, &f->tx, lanes);
	end_connect(&f->tx, &f->rx, lanes);
	return f;
}

static int setup(void **state)
{
	*state = fix_open(1);
	return 0;
}

static int setup_lanes(void **state)
{
	*state = fix_open(2);
	return 0;
}

static int teardown(void **state)
{
	struct fix *f = *state;

	end_close(&f->tx, f->lanes);
	end_close(&f->rx, f->lanes);
	seen_check();
	assert_int_equal(card_seen.maps, 1);
	free(f);
	return 0;
}

static uint8_t pattern(uint32_t number, uint32_t i)
{
	return (uint8_t)((number * 2654435761u + i * 40503u) >> 11);
}

static void tx_one(struct fix *f, unsigned lane, enum gx_half half, uint32_t number, uint32_t len)
{
	static uint8_t b[16384];
	struct gx_tx pkt = {.data = b,
			    .len = len,
			    .peer = f->tx.peer[lane],
			    .cookie = UINT32_MAX,
			    .hlen = DPDK_HDR_B};

	for (uint32_t i = 0; i < len; i++)
		b[i] = pattern(number, i);
	memset(pkt.hdr, 0xa5, DPDK_HDR_B);
	memcpy(pkt.hdr, &number, sizeof(number));
	assert_int_equal(ops->tx_burst(f->tx.q[lane], half, &pkt, 1), 1);
}

static void rx_check(struct fix *f, unsigned lane, enum gx_half half, const struct gx_rx *pkt,
		     uint32_t number, uint32_t len)
{
	static uint8_t b[16384];
	const char *data = pkt->data, *pool = gx_arena_base(f->rx.pool);
	uint32_t got;

	memcpy(&got, pkt->hdr, sizeof(got));
	assert_int_equal(got, number);
	assert_int_equal(pkt->len, len);
	assert_int_equal(pkt->hlen, DPDK_HDR_B);
	assert_int_equal(pkt->hdr[DPDK_HDR_B - 1], 0xa5);
	assert_int_equal(data >= pool && data < pool + (1u << 30), half == GX_HALF_DATA);
	if (half == GX_HALF_DATA)
		assert_int_equal((uintptr_t)data % 16, 0);
	card_guard(false);
	memcpy(b, data, len);
	card_guard(true);
	for (uint32_t i = 0; i < len; i++)
		assert_int_equal(b[i], pattern(number, i));
}

/* Up to one packet. Return: how many. */
static unsigned rx_one(struct fix *f, unsigned lane, enum gx_half half, struct gx_rx *pkt)
{
	return ops->rx_burst(f->rx.q[lane], half, pkt, 1);
}

static uint64_t stat(const struct fix *f, enum gx_stat_id id)
{
	return gx_stat_get(&f->rx.stats[0], id);
}

static void open__says_what_it_is(void **state)
{
	struct fix *f = *state;
	struct gx_port_peer info;

	assert_true(f->rx.port->caps.flags & GX_PORT_RX_GPU);
	assert_false(f->tx.port->caps.flags & GX_PORT_RX_GPU);
	assert_ptr_equal(f->rx.q[0]->rx_gpu, &f->gpu);
	assert_ptr_equal(f->rx.q[0]->rx_base, gx_arena_base(f->rx.pool));
	assert_null(f->tx.q[0]->rx_gpu);
	ops->peer_info(f->tx.q[0], f->tx.peer[0], &info);
	assert_int_equal(info.pool, 3);
	ops->peer_info(f->rx.q[0], f->rx.peer[0], &info);
	assert_int_equal(info.pool, -1);
	assert_int_equal(card_seen.rules, 3); /* data, control, ARP */
}

static void rx__arp_is_answered(void **state)
{
	struct fix *f = *state;
	struct gx_rx pkt;

	card_ask(0x0a090007); /* somebody else's */
	card_ask(0x0a090001);
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(ops->rx_burst(f->rx.q[0], GX_HALF_CTL, &pkt, 1), 0);
	assert_int_equal(card_seen.arp, 1);
}

/* It does without, and says so. */
static void open__a_rule_for_arp_is_refused(void **state)
{
	struct gx_gpu gpu = {.device = 1, .dma = GX_GPU_DMA_OWN};
	struct end e = {0};

	card_reset();
	card_script.rules = 2;
	assert_int_equal(end_open(&e, CARD_ARG "1", 1, &gpu), 0);
	assert_int_equal(card_seen.rules, 2);
	end_close(&e, 1);
	seen_check();
}

static void rx__payload_is_in_the_pool_alone(void **state)
{
	struct fix *f = *state;
	uint32_t sizes[] = {0,
			    1,
			    2,
			    15,
			    16,
			    17,
			    1391,
			    1392,
			    f->rx.port->caps.payload_best,
			    f->rx.port->caps.payload_max};
	struct gx_rx pkt;

	for (uint32_t i = 0; i < 20 * GX_ARRAY_SIZE(sizes); i++) {
		uint32_t len = sizes[i % GX_ARRAY_SIZE(sizes)];

		tx_one(f, 0, GX_HALF_DATA, i, len);
		assert_int_equal(rx_one(f, 0, GX_HALF_DATA, &pkt), 1);
		rx_check(f, 0, GX_HALF_DATA, &pkt, i, len);
		ops->rx_release(f->rx.q[0], &pkt.buf, 1);
	}
	assert_int_equal(card_seen.cut, 20 * GX_ARRAY_SIZE(sizes));
	assert_int_equal(card_seen.plain, 0);
	assert_int_equal(stat(f, GX_STAT_RX_BAD), 0);
}

static void rx__control_comes_by_a_plain_queue(void **state)
{
	static const uint32_t sizes[] = {0, 1, 700, GX_CTL_PAYLOAD_MAX};
	struct fix *f = *state;
	struct gx_rx pkt;

	for (uint32_t i = 0; i < 40; i++) {
		tx_one(f, 0, GX_HALF_CTL, i, sizes[i % 4]);
		assert_int_equal(rx_one(f, 0, GX_HALF_DATA, &pkt), 0);
		assert_int_equal(rx_one(f, 0, GX_HALF_CTL, &pkt), 1);
		rx_check(f, 0, GX_HALF_CTL, &pkt, i, sizes[i % 4]);
	}
	assert_int_equal(card_seen.plain, 40);
	assert_int_equal(card_seen.cut, 0);
}

/* As the packet link takes them: data, then control until there is none. What was sent before a data
 * packet has been seen by then. */
static void rx__control_is_not_behind_data(void **state)
{
	struct fix *f = *state;
	uint32_t sent = 0, ctl = 0, data = 0;
	uint64_t held[GX_BURST_MAX];
	struct gx_rx pkts[8], pkt;

	for (unsigned round = 0; round < 300; round++) {
		unsigned n;

		for (unsigned i = 0; i < round % 5; i++, sent++)
			tx_one(f, 0, sent % 8 ? GX_HALF_DATA : GX_HALF_CTL, sent, 100);
		n = ops->rx_burst(f->rx.q[0], GX_HALF_DATA, pkts, 8);
		while (rx_one(f, 0, GX_HALF_CTL, &pkt)) {
			rx_check(f, 0, GX_HALF_CTL, &pkt, 8 * ctl, 100);
			ctl++;
		}
		for (unsigned i = 0; i < n; i++, data++) {
			uint32_t number = data / 7 * 8 + data % 7 + 1;

			rx_check(f, 0, GX_HALF_DATA, &pkts[i], number, 100);
			assert_true(number < 8 * ctl);
			held[i] = pkts[i].buf;
		}
		ops->rx_release(f->rx.q[0], held, n);
	}
	assert_int_equal(ctl + data, sent);
}

static void rx__each_lane_has_its_queues(void **state)
{
	struct fix *f = *state;
	struct gx_rx pkt;

	assert_int_equal(card_seen.rules, 5);
	for (uint32_t i = 0; i < 100; i++) {
		unsigned lane = i & 1;
		enum gx_half half = i & 2 ? GX_HALF_CTL : GX_HALF_DATA;

		tx_one(f, lane, half, i, 1000);
		assert_int_equal(rx_one(f, !lane, GX_HALF_DATA, &pkt), 0);
		assert_int_equal(rx_one(f, !lane, GX_HALF_CTL, &pkt), 0);
		assert_int_equal(rx_one(f, lane, half, &pkt), 1);
		rx_check(f, lane, half, &pkt, i, 1000);
		if (half == GX_HALF_DATA)
			ops->rx_release(f->rx.q[lane], &pkt.buf, 1);
	}
}

/* Somebody sends more than credit allows: the card drops, what was taken stays right, and with
 * buffers back it goes on. */
static void rx__no_slot_is_left(void **state)
{
	struct fix *f = *state;
	struct gx_rx *pkts = calloc(8192, sizeof(*pkts));
	uint32_t n = 0;

	for (; !card_seen.no_slot && n < 8192; n += rx_one(f, 0, GX_HALF_DATA, &pkts[n]))
		tx_one(f, 0, GX_HALF_DATA, n, 64);
	assert_in_range(n, SLOTS, 8191);
	assert_int_equal(card_seen.no_slot, 1);
	for (uint32_t i = 0; i < n; i++)
		rx_check(f, 0, GX_HALF_DATA, &pkts[i], i, 64);
	tx_one(f, 0, GX_HALF_CTL, 1, 64); /* has buffers of its own */
	assert_int_equal(rx_one(f, 0, GX_HALF_CTL, &pkts[n]), 1);
	for (uint32_t i = 0; i < n; i++)
		ops->rx_release(f->rx.q[0], &pkts[i].buf, 1);
	tx_one(f, 0, GX_HALF_DATA, n, 64);
	assert_int_equal(rx_one(f, 0, GX_HALF_DATA, &pkts[0]), 1);
	rx_check(f, 0, GX_HALF_DATA, &pkts[0], n, 64);
	ops->rx_release(f->rx.q[0], &pkts[0].buf, 1);
	free(pkts);
}

static void rx__in_the_wrong_buffers_is_bad(void **state)
{
	struct fix *f = *state;
	struct gx_rx pkt;

	card_script.in_three = true;
	tx_one(f, 0, GX_HALF_DATA, 1, 500);
	assert_int_equal(rx_one(f, 0, GX_HALF_DATA, &pkt), 0);
	assert_int_equal(stat(f, GX_STAT_RX_BAD), 1);
	card_script.in_three = false;
	card_script.loses_end = true;
	tx_one(f, 0, GX_HALF_DATA, 1, 500);
	assert_int_equal(rx_one(f, 0, GX_HALF_DATA, &pkt), 0);
	assert_int_equal(stat(f, GX_STAT_RX_BAD), 2);
	card_script.loses_end = false;
	card_script.stray = 1; /* control to the cut queue */
	tx_one(f, 0, GX_HALF_CTL, 2, 500);
	tx_one(f, 0, GX_HALF_CTL, 3, 0);
	assert_int_equal(rx_one(f, 0, GX_HALF_DATA, &pkt), 0);
	assert_int_equal(stat(f, GX_STAT_RX_BAD), 4);
	card_script.stray = -1; /* data to the plain one */
	tx_one(f, 0, GX_HALF_DATA, 4, 500);
	tx_one(f, 0, GX_HALF_DATA, 5, 0);
	assert_int_equal(rx_one(f, 0, GX_HALF_CTL, &pkt), 0);
	assert_int_equal(stat(f, GX_STAT_RX_BAD), 6);
	card_script.stray = 0;
	tx_one(f, 0, GX_HALF_DATA, 6, 500);
	assert_int_equal(rx_one(f, 0, GX_HALF_DATA, &pkt), 1);
	rx_check(f, 0, GX_HALF_DATA, &pkt, 6, 500);
	ops->rx_release(f->rx.q[0], &pkt.buf, 1);
}

/* Packets that wait in the card and in the port when it closes. */
static void close__with_packets_under_way(void **state)
{
	struct fix *f = *state;
	struct gx_rx data, ctl;

	for (uint32_t i = 0; i < 100; i++)
		tx_one(f, 0, i % 3 ? GX_HALF_DATA : GX_HALF_CTL, i, 200);
	assert_int_equal(rx_one(f, 0, GX_HALF_DATA, &data), 1);
	assert_int_equal(rx_one(f, 0, GX_HALF_CTL, &ctl), 1);
	assert_true(card_seen.cut > 1 && card_seen.plain > 1); /* more was taken than given */
	ops->rx_release(f->rx.q[0], &data.buf, 1);
}

/* ---- what is missing is said ---- */

static void open__refuses_what_is_missing(void **state)
{
	static const struct {
		struct card_script script;
		unsigned lanes;
		const char *says;
		bool late; /* what is written is not seen at once */
	} cases[] = {
		{{.no_split = true}, 1, "no buffer split with two pools"},
		{{.by_header = true}, 1, "behind a protocol's header, not at byte 80"},
		{{.of_all = true}, 1, "of all receive queues or of none"},
		{{.queues = 3}, 2, "has 3 receive queues, not two for each of 2 cores"},
		{{0}, 1, "only after a flush", true},
		{{.no_register = true}, 1, "does not note memory outside of it"},
		{{.no_map = true}, 1, "is nvidia-peermem loaded?"},
		{{.no_isolation = true}, 1, "no flow isolation"},
		{{.no_split_setup = true}, 1, "cut at byte 80"},
		{{.rules = 1}, 1, "refuses a flow rule (UDP port to queue): no room for this rule"},
		{{.rules = 3}, 2, "refuses a flow rule (UDP port to queue): no room for this rule"},
	};
	struct gx_gpu gpu = {.device = 1, .dma = GX_GPU_DMA_OWN};
	struct gx_gpu late = {.device = 1, .dma = GX_GPU_DMA_NONE};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(cases); i++) {
		struct end e = {0};

		card_reset();
		card_script = cases[i].script;
		card_script.guard = true;
		gx_port_why_set("%s", "");
		assert_true(end_open(&e, CARD_ARG "1", cases[i].lanes,
				     cases[i].late ? &late : &gpu) < 0);
		if (!strstr(gx_port_why(), cases[i].says) ||
		    !strstr(gx_port_why(), "gx_gpu_opts.bounce host") ||
		    !strstr(gx_port_why(), "net_null"))
			fail_msg("\"%s\" expected: %s", cases[i].says, gx_port_why());
		end_close(&e, 0);
		seen_check();
	}
}

static void open__without_a_pool_asks_for_nothing(void **state)
{
	struct end e = {0};

	card_reset();
	card_script.no_split = card_script.no_isolation = card_script.no_map = true;
	assert_int_equal(end_open(&e, CARD_ARG "1", 1, NULL), 0);
	assert_int_equal(card_seen.rules + card_seen.maps + card_seen.known, 0);
	end_close(&e, 1);
	seen_check();
}

/* ---- whole transfers ---- */

struct pair {
	struct gx *server, *client;
	struct gx_mem *mem; /* of the client */
	struct gx_conn *conn;
	struct gx_region region;
	uint8_t *at; /* of mem: KV_B to put, then KV_B to get into */
};

static struct pair *pair_open(enum gx_mem_kind kind, bool crc)
{
	struct gx_opts o = {
		.host = GX_WITH(gx_host_opts, .huge = GX_OFF),
		.gpu = GX_WITH(gx_gpu_opts, .bounce = GX_BOUNCE_CUDA),
		.packet = GX_WITH(gx_packet_opts, .integrity = crc ? GX_INTEGRITY_MODE_CRC32C
								   : GX_INTEGRITY_MODE_NONE)};
	struct pair *p = calloc(1, sizeof(*p));
	char addr[32];

	card_reset();
	assert_int_equal(common_gx_open(o, "dpdk:" CARD_ARG "2", &p->client), 0);
	o.server = true;
	assert_int_equal(common_gx_open(o, "dpdk:" CARD_ARG "1", &p->server), 0);
	common_gx_kv(p->server, kind, KV_B);
	assert_int_equal(gx_mem_alloc(p->client, GX_MEM_HOST, 0, 2 * KV_B, &p->mem), 0);
	p->at = gx_mem_addr(p->mem);
	common_gx_listen(p->server, addr);
	p->conn = common_gx_connect(p->client, addr, "packet");
	p->region = (struct gx_region)GX_INIT(p->region);
	assert_int_equal(gx_conn_region(p->conn, "kv", 0, &p->region), 0);
	return p;
}

static void pair_close(struct pair *p)
{
	gx_conn_close(p->conn);
	gx_close(p->client);
	gx_close(p->server);
	free(p);
	assert_int_equal(card_seen.maps, 2);
	seen_check();
}

static int pair_run(struct pair *p, enum gx_op_kind kind, uint64_t len)
{
	struct gx_op op = {0};
	uint64_t until = gx_now() + WAIT_NS;
	struct gx_comp comp;

	op.kind = kind;
	op.mem = p->mem;
	op.off = kind == GX_OP_GET ? KV_B : 0;
	op.addr = p->at + op.off;
	op.len = len;
	op.token = p->region.token;
	assert_int_equal(common_post(gx_conn_ep(p->conn, 0), &op, 1), 1);
	while (!common_poll(gx_core(p->client, 0), &comp, 1)) {
		gx_core_turn(gx_core(p->client, 0), gx_now());
		gx_core_turn(gx_core(p->server, 0), gx_now());
		sched_yield(); /* a fake GPU is a thread */
		assert_true(gx_now() < until);
	}
	return comp.status;
}

/* There and back, through a pool on a GPU both times. */
static void pair_move(struct pair *p, uint64_t len, uint32_t seed)
{
	for (uint64_t i = 0; i < len; i++)
		p->at[i] = pattern(seed, (uint32_t)i);
	memset(p->at + KV_B, 0xee, len + 1);
	assert_int_equal(pair_run(p, GX_OP_PUT, len), 0);
	assert_int_equal(pair_run(p, GX_OP_GET, len), 0);
	assert_memory_equal(p->at, p->at + KV_B, len);
	assert_int_equal(p->at[KV_B + len], 0xee);
}

static void pair_sizes(enum gx_mem_kind kind, bool crc, unsigned lose)
{
	static const uint64_t sizes[] = {1,	1392,	8192,	      8193,
					 65536, 100003, KV_B / 4 + 3, KV_B - 1};
	struct pair *p = pair_open(kind, crc);
	struct gx_conn_info info = GX_INIT(info);
	uint64_t bad = 0;

	assert_int_equal(gx_conn_info(p->conn, &info), 0);
	assert_string_equal(info.bounce, "cuda:0");
	assert_string_equal(info.peer_bounce, "cuda:0");
	card_script.lose = lose;
	for (uint32_t i = 0; i < 2 * GX_ARRAY_SIZE(sizes); i++)
		pair_move(p, sizes[i % GX_ARRAY_SIZE(sizes)], i);
	assert_int_equal(card_seen.no_slot > 0, lose > 0);
	assert_true(card_seen.cut > 2000 && card_seen.plain > 0);
	assert_int_equal(gx_core_stat(gx_core(p->server, 0), "rx_bad", &bad), 0);
	assert_int_equal(bad, 0);
	pair_close(p);
}

static void put__into_a_gpu(void **state)
{
	pair_sizes(GX_MEM_CUDA, false, 0);
}

static void put__into_host_memory(void **state)
{
	pair_sizes(GX_MEM_HOST, false, 0);
}

static void put__checked_while_copied(void **state)
{
	pair_sizes(GX_MEM_CUDA, true, 0);
}

/* The pool is found empty again and again: what is lost comes again. */
static void put__no_slot_is_left(void **state)
{
	pair_sizes(GX_MEM_CUDA, false, 40);
	pair_sizes(GX_MEM_CUDA, true, 40);
}

/* A GPU that does not see at once what a card writes to another one's memory. */
static void open__gpu_that_does_not_see_the_pool(void **state)
{
	struct gx_opts o = {.host = GX_WITH(gx_host_opts, .huge = GX_OFF),
			    .gpu = GX_WITH(gx_gpu_opts, .bounce = GX_BOUNCE_CUDA)};
	struct gx_mem *own, *other;
	struct gx *gx;

	card_reset();
	setenv("GX_FAKE_CUDA_RDMA_ORDER", "100", 1);
	assert_int_equal(common_gx_open(o, "dpdk:" CARD_ARG "1", &gx), 0);
	assert_int_equal(gx_mem_alloc(gx, GX_MEM_CUDA, 0, KV_B, &own), 0);
	assert_int_equal(gx_mem_alloc(gx, GX_MEM_CUDA, 1, KV_B, &other), -EOPNOTSUPP);
	if (!strstr(gx_error(), "cuda:0 is seen by that GPU"))
		fail_msg("%s", gx_error());
	gx_close(gx);
	seen_check();
	setenv("GX_FAKE_CUDA_RDMA_ORDER", "0", 1);
	assert_int_equal(common_gx_open(o, "dpdk:" CARD_ARG "1", &gx), -EOPNOTSUPP);
	assert_non_null(strstr(gx_error(), "only after a flush"));
	unsetenv("GX_FAKE_CUDA_RDMA_ORDER");
	assert_int_equal(common_gx_open(o, "dpdk:" CARD_ARG "1", &gx), 0);
	assert_int_equal(gx_mem_alloc(gx, GX_MEM_CUDA, 1, KV_B, &other), 0);
	gx_close(gx);
	seen_check();
}

#define TEST(fn)       cmocka_unit_test_setup_teardown(fn, setup, teardown)
#define TEST_LANES(fn) cmocka_unit_test_setup_teardown(fn, setup_lanes, teardown)

int main(int argc, char *argv[])
{
	const struct CMUnitTest port[] = {
		TEST(open__says_what_it_is),
		TEST(rx__arp_is_answered),
		TEST(rx__payload_is_in_the_pool_alone),
		TEST(rx__control_comes_by_a_plain_queue),
		TEST(rx__control_is_not_behind_data),
		TEST_LANES(rx__each_lane_has_its_queues),
		TEST(rx__no_slot_is_left),
		TEST(rx__in_the_wrong_buffers_is_bad),
		TEST(close__with_packets_under_way),
		cmocka_unit_test(open__refuses_what_is_missing),
		cmocka_unit_test(open__a_rule_for_arp_is_refused),
		cmocka_unit_test(open__without_a_pool_asks_for_nothing),
	};
	const struct CMUnitTest transfer[] = {
		cmocka_unit_test(put__into_a_gpu),
		cmocka_unit_test(put__into_host_memory),
		cmocka_unit_test(put__checked_while_copied),
		cmocka_unit_test(put__no_slot_is_left),
		cmocka_unit_test(open__gpu_that_does_not_see_the_pool),
	};

	if (argc < 2)
		return cmocka_run_group_tests(port, NULL, NULL);
	if (!getenv("GX_FAKE_CUDA")) {
		printf("skipped: a scripted card can write to memory of a fake GPU alone\n");
		return 77;
	}
	return common_gpu_there() ? cmocka_run_group_tests(transfer, NULL, NULL) : 77;
}
