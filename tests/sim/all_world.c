/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A world of the random load: its nodes, its network, its time.
 */
#include "sim/all.h"

#include "kit/common_key.h"
#include "packet/link_pkt.h"
#include "packet/op.h"

#include <gx/listen.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define STEP_NS 300 /* what a turn takes */
#define JUMP_NS 500000

struct world *world;

/* ---- small things ---- */

void wrong(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fflush(stdout);
	fprintf(stderr, "seed %llu: step %u, %.6f ms: ", (unsigned long long)world->cfg.seed,
		world->step, world->now_ns / 1e6);
	vfprintf(stderr, fmt, ap);
	fprintf(stderr, "\n");
	va_end(ap);
	fflush(stderr);
	_exit(1);
}

void trace(const char *fmt, ...)
{
	va_list ap;

	if (!world->cfg.trace)
		return;
	va_start(ap, fmt);
	printf("%4u %12.6f ms  ", world->step, world->now_ns / 1e6);
	vprintf(fmt, ap);
	printf("\n");
	va_end(ap);
}

void hash_add(uint64_t v)
{
	world->hash = mix(world->hash ^ v);
}

uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

uint64_t rnd(uint64_t n)
{
	world->random += 0x9e3779b97f4a7c15u;
	return n ? mix(world->random) % n : 0;
}

bool chance(unsigned percent)
{
	return rnd(100) < percent;
}

uint64_t rnd_len(uint64_t max)
{
	return 1 + rnd(max >> rnd(8) ?: 1);
}

/* ---- nodes ---- */

static void node_memory(unsigned index)
{
	struct node *n = &world->node[index];

	if (world->gpu)
		gpu_open(index);
	if (gx_mem_alloc(n->gx, world->gpu ? GX_MEM_CUDA : GX_MEM_HOST, 0, ALL_AREA_B,
			 &n->area[AREA_MEM].mem))
		wrong("gx_mem_alloc: %s", gx_error());
	n->area[AREA_MEM].b = gx_mem_addr(n->area[AREA_MEM].mem);
	for (unsigned k = 0; k < AREAS; k++) {
		if (!n->area[k].b)
			n->area[k].b = mmap(NULL, ALL_AREA_B, PROT_READ | PROT_WRITE,
					    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		memset(n->area[k].b, ALL_POISON, ALL_AREA_B);
	}
	if (gx_mem_share(n->area[AREA_MEM].mem, "mem", GX_ACCESS_PUT | GX_ACCESS_GET))
		wrong("gx_mem_share: %s", gx_error());
	if (gx_mem_reg(n->gx, GX_MEM_HOST, 0, n->area[AREA_REG].b, ALL_AREA_B,
		       &n->area[AREA_REG].mem))
		wrong("gx_mem_reg: %s", gx_error());
}

/* A seed leaves some five ports in TIME_WAIT for a minute. So each process has an address of its own,
 * and all ports there: those of one address would be used up by a hundred seeds a second. */
static void node_listen(struct node *n)
{
	unsigned pid = (unsigned)getpid();
	int len = snprintf(n->addr, sizeof(n->addr), "127.%u.%u.%u:", 64 + (pid >> 16) % 64,
			   (pid >> 8) % 256, pid % 256);
	int ret;

	snprintf(n->addr + len, sizeof(n->addr) - (size_t)len, "0");
	ret = gx_listen(n->gx, n->addr);
	if (ret <= 0)
		wrong("gx_listen: %s", gx_error());
	snprintf(n->addr + len, sizeof(n->addr) - (size_t)len, "%d", ret);
}

unsigned world_ports(struct gx_port_name ports[ALL_PORTS + 1], char net[32])
{
	unsigned n = 0;

	snprintf(net, 32, "net=%u", sim_net_id(world->net));
	while (n < world->nr_ports)
		ports[n++] = (struct gx_port_name){.name = "sim", .args = net};
	return n;
}

/* With a key link tcp seals without a mode, and port shm takes none that seals. */
static enum gx_integrity_mode node_integrity(void)
{
	if (world->other != KIND_PACKET && world->integrity == GX_INTEGRITY_GCM)
		return GX_INTEGRITY_MODE_AUTO;
	return GX_INTEGRITY_MODE_NONE + world->integrity;
}

void node_open(unsigned index)
{
	struct node *n = &world->node[index];
	struct gx_opts opts = GX_INIT(opts);
	struct gx_port_name ports[ALL_PORTS + 1];
	struct common_key key;
	char net[32];
	int ret;

	opts.ports = ports;
	opts.nr_ports = world_ports(ports, net);
	if (world->other == KIND_LOCAL)
		ports[opts.nr_ports++] = (struct gx_port_name){.name = "shm"};
	opts.nr_cores = n->nr_cores = world->nr_cores;
	opts.packet = GX_WITH(gx_packet_opts, .chunk_b = world->chunk_b, .window = world->window,
			      .slots = world->slots, .quantum_b = world->quantum_b,
			      .integrity = node_integrity());
	opts.host = GX_WITH(gx_host_opts, .huge = GX_OFF,
			    .pull = world->pulls ? GX_PULL_ON : GX_PULL_OFF,
			    .pull_over_b = world->pull_over_b);
	opts.peer_timeout_ns = world->peer_timeout_ns;
	opts.server = true;
	opts.on_conn = link_on_conn;
	opts.arg = (void *)(uintptr_t)index;
	if (world->integrity > GX_INTEGRITY_CRC) {
		opts.auth = common_key_open(&key, false);
		key.auth.find = common_key_find;
	}
	ret = gx_open(&opts, &n->gx);
	if (ret)
		wrong("gx_open: %s", gx_error());
	if (opts.auth)
		common_key_close(&key);
	node_memory(index);
	node_listen(n);
}

void node_close(unsigned index)
{
	struct node *n = &world->node[index];

	views_close(index);
	gpu_close(index);
	gx_close(n->gx);
	n->gx = NULL;
	for (unsigned i = 0; i < ALL_QUEUES; i++)
		n->queue[i] = (struct all_queue){0};
}

/* ---- open and close ---- */

void world_net(bool calm)
{
	struct sim_cfg cfg = world->net_cfg;

	if (calm)
		cfg.loss_ppm = cfg.dup_ppm = cfg.reorder_ppm = cfg.corrupt_ppm = 0;
	sim_net_set(world->net, &cfg);
}

static void world_draw_net(void)
{
	struct sim_cfg *c = &world->net_cfg;
	static const uint64_t rates[] = {2000000000, 10000000000, 100000000000};
	unsigned kind = (unsigned)rnd(10);

	c->seed = rnd(UINT64_MAX);
	c->rate_bps = rates[rnd(3)];
	c->delay_ns = 1000 + rnd_len(50000);
	c->attach = chance(30);
	c->peer_any = chance(30);
	if (kind < 2)
		return;
	c->loss_ppm = (uint32_t)rnd(kind < 6 ? 20000 : 200000);
	c->dup_ppm = (uint32_t)(chance(60) ? rnd(kind < 6 ? 20000 : 300000) : 0);
	c->reorder_ppm = (uint32_t)(chance(60) ? rnd(300000) : 0);
	c->reorder_slots = (uint32_t)rnd_len(600);
	if (kind >= 8) { /* packets come long after what was to end them */
		c->rate_bps = 10000000000;
		c->delay_ns = 1000;
		c->loss_ppm = c->dup_ppm = 200000;
		c->reorder_ppm = 300000;
		c->reorder_slots = 600;
	}
	if (world->integrity && chance(50))
		c->corrupt_ppm = (uint32_t)rnd(20000);
}

static void world_draw(void)
{
	static const uint32_t quanta[] = {1280, 1392, 2048, 4096};

	world->nr_nodes = 2 + chance(35) + chance(10);
	world->nr_cores = 1 + chance(40) + chance(15);
	world->integrity = chance(50) ? GX_INTEGRITY_CRC : GX_INTEGRITY_NONE;
	world->chunk_b = 4096u << rnd(5);
	world->window = 1 + (uint32_t)rnd_len(16);
	world->quantum_b = quanta[rnd(4)];
	world->slots = chance(25) ? 48 + (uint32_t)rnd(100) : 256;
	world->peer_timeout_ns = 300 * ALL_MS;
	world->other = chance(60) ? KIND_PACKET : chance(50) ? KIND_TCP : KIND_LOCAL;
	if (world->other == KIND_TCP) /* which has no CRC */
		world->integrity = GX_INTEGRITY_NONE;
	world_draw_net();
}

/* What only newer seeds have. */
static void world_draw_wide(void)
{
	world->nr_ports += chance(15);
	if (!chance(12))
		return;
	world->integrity =
		world->other != KIND_PACKET || chance(70) ? GX_INTEGRITY_GCM : GX_INTEGRITY_MAC;
	if (chance(50))
		world->net_cfg.corrupt_ppm = (uint32_t)rnd(20000);
}

static void world_draw_gpu(void)
{
	world->gpu = world->other == KIND_PACKET && chance(30);
	world->gpu_ns = chance(30) ? 0 : rnd_len(30 * ALL_US);
}

static void world_draw_socks(void)
{
	world->pulls = world->other == KIND_LOCAL && !world->integrity && chance(60);
	world->pull_over_b = world->pulls ? (uint32_t)rnd_len(8192) : 0;
}

void world_open(const struct all_cfg *cfg)
{
	world = calloc(1, sizeof(*world));
	world->cfg = *cfg;
	world->random = mix(cfg->seed);
	world->wide = cfg->seed >= ALL_WIDE;
	pthread_mutex_init(&world->lock, NULL);
	pthread_cond_init(&world->cond, NULL);
	gx_port_add(&port_sim_ops);
	world_draw();
	world->nr_ports = 1;
	if (world->wide)
		world_draw_wide();
	if (cfg->seed >= ALL_GPUS)
		world_draw_gpu();
	if (cfg->seed >= ALL_SOCKS)
		world_draw_socks();
	sock_begin();
	if (sim_net_open(&world->net_cfg, &world->net))
		wrong("no network");
	world->now_ns = sim_net_now(world->net);
	for (unsigned i = 0; i < world->nr_nodes; i++)
		node_open(i);
	trace("%u nodes of %u cores and %u ports, integrity %d, chunk %u, window %u, quantum %u, slots "
	      "%u",
	      world->nr_nodes, world->nr_cores, world->nr_ports, world->integrity, world->chunk_b,
	      world->window, world->quantum_b, world->slots);
	trace("rate %.0f Gb/s, delay %.1f us, lost %u ppm, doubled %u, late %u by %u, damaged %u",
	      world->net_cfg.rate_bps / 1e9, world->net_cfg.delay_ns / 1e3, world->net_cfg.loss_ppm,
	      world->net_cfg.dup_ppm, world->net_cfg.reorder_ppm, world->net_cfg.reorder_slots,
	      world->net_cfg.corrupt_ppm);
	order_forget();
}

void world_close(void)
{
	for (unsigned i = 0; i < world->nr_nodes; i++) {
		struct node *n = &world->node[i];

		if (n->gx)
			node_close(i);
		for (unsigned k = AREA_REG; k < AREAS; k++)
			munmap(n->area[k].b, ALL_AREA_B);
	}
	sim_net_close(world->net);
	pthread_mutex_destroy(&world->lock);
	pthread_cond_destroy(&world->cond);
	free(world);
	world = NULL;
}

/* ---- time ---- */

static bool node_is_still(const struct node *n)
{
	return n->still_ns > world->now_ns && !world->calm;
}

void world_poll(unsigned index)
{
	struct node *n = &world->node[index];
	struct gx_comp comps[16];
	unsigned nr;

	for (unsigned i = 0; i < n->nr_cores + ALL_QUEUES; i++) {
		struct gx_queue *q = i < n->nr_cores ? gx_core_queue(gx_core(n->gx, i))
						     : n->queue[i - n->nr_cores].q;

		if (!q || (i >= n->nr_cores && n->queue[i - n->nr_cores].closing))
			continue;
		while ((nr = gx_poll(q, comps, GX_ARRAY_SIZE(comps))) > 0)
			for (unsigned k = 0; k < nr; k++)
				comp_take(index, i < n->nr_cores ? ALL_QUEUES : i - n->nr_cores,
					  &comps[k]);
	}
}

static bool world_turn(void)
{
	bool worked = false;

	sim_net_advance(world->net, world->now_ns);
	gpu_marks(0);
	sock_turn();
	for (unsigned i = 0; i < world->nr_nodes; i++) {
		struct node *n = &world->node[i];

		if (!n->gx || node_is_still(n))
			continue;
		for (unsigned k = 0; k < n->nr_cores; k++)
			worked |= gx_core_turn(gx_core(n->gx, k), world->now_ns);
		if (n->lazy_ns <= world->now_ns || world->calm)
			world_poll(i);
	}
	world->counts.turns++;
	world->now_ns += STEP_NS;
	keys_lapse();
	return worked;
}

static uint64_t port_next(const struct link_pkt *l, uint64_t next)
{
	uint64_t now_ns = world->now_ns;

	if (l->look_ns > now_ns)
		next = GX_MIN(next, l->look_ns);
	for (unsigned i = 0; i < l->nr_live; i++) {
		const struct pkt_ep *e = l->live[i];

		next = GX_MIN(next, GX_MIN(flow_due(e->flow), flow_ack_due_ns(e->flow)));
		next = GX_MIN(next, e->timer.tick_ns);
		if (e->rx.held_bufs || e->fetch.nr_staged)
			next = GX_MIN(next, now_ns + 1000);
		if (e->pace.cc && tx_has_first(e))
			next = GX_MIN(next, cc_due(e->pace.cc));
	}
	return next;
}

/* When something may happen next. */
static uint64_t world_next(void)
{
	uint64_t next = GX_MIN(sim_net_next(world->net), world->now_ns + JUMP_NS);

	next = sock_next(gpu_marks(next));

	for (unsigned i = 0; i < world->nr_nodes; i++) {
		struct node *n = &world->node[i];

		if (node_is_still(n))
			next = GX_MIN(next, n->still_ns);
		for (unsigned k = 0; k < n->nr_cores && n->gx && !node_is_still(n); k++)
			for (unsigned p = 0; p < world->nr_ports; p++)
				next = port_next(pkt_link(gx_core(n->gx, k), p), next);
	}
	return GX_MAX(next, world->now_ns);
}

bool world_until(bool (*done)(void), uint64_t ns)
{
	uint64_t end = world->now_ns + ns;

	while (world->now_ns < end) {
		if (done && done())
			return true;
		if (!world_turn()) {
			links_look();
			world->now_ns = GX_MIN(world_next(), end);
		}
	}
	return done && done();
}

void world_pass(uint64_t ns)
{
	world_until(NULL, ns);
}
