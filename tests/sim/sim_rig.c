/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rig of the simulator's tests; see sim_rig.h. What is checked at rest is every count that a
 * message, a record, a buffer or a credit passes through.
 */
#include "sim/sim_rig.h"
#include "gpu/late_gpu.h"

#include "kit/common_gx.h"
#include "kit/common_key.h"
#include "submit/submit.h"
#include "packet/link_pkt.h"
#include "packet/op.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RIG_STEP_NS 300 /* what a turn takes */
#define RIG_JUMP_NS 500000
#define RIG_IDLE_NS 20000000

static uint64_t rig_seed;	/* added to every seed */
static struct rig *rig_current; /* to be closed when a test fails */

#define RIG_CLOSE_STEP_NS 1000000

static void rig_sleep(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

/* ---- open and close ---- */

static void rig_on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
			const char *why)
{
	struct rig *r = arg;

	if (event != GX_CONN_EVENT_UP)
		return;
	pthread_mutex_lock(&r->lock);
	r->accepted[r->nr_accepted++] = conn;
	pthread_mutex_unlock(&r->lock);
}

/* The CPU backend's streams, whose GPU can be stopped. */
static struct gx_gpu_stream_ops gpu_stream_ops;
static bool (*gpu_reap)(struct gx_gpu_stream *s, uint64_t now_ns); /* the backend's own */
static struct gx_gpu *gpu_stopped;
static struct gx_gpu_stream *gpu_stream_stopped; /* a core has asked it last */

static bool gpu_reap_unless_stopped(struct gx_gpu_stream *s, uint64_t now_ns)
{
	if (s->gpu != gpu_stopped)
		return gpu_reap(s, now_ns);
	gpu_stream_stopped = s;
	return false;
}

/* @gpu, of which no stream is open yet. */
static void gpu_make_stoppable(struct gx_gpu *gpu)
{
	gpu_stopped = NULL;
	gpu_reap = gpu->stream->reap;
	gpu_stream_ops = *gpu->stream;
	gpu_stream_ops.reap = gpu_reap_unless_stopped;
	gpu->stream = &gpu_stream_ops;
}

void rig_gpu_stop(struct rig *r, int node)
{
	gpu_stopped = r->mem[node]->gpu;
}

void rig_gpu_go(void)
{
	gpu_stopped = NULL;
}

void rig_gpu_finish(void)
{
	gpu_reap(gpu_stream_stopped, UINT64_MAX);
}

/* What the library takes for a GPU: payload is staged on its way out and unpacked in batches on its
 * way in. */
static void rig_gpu(struct rig *r, int node)
{
	struct gx_gpu *gpu;

	assert_int_equal(late_gpu_open(r->cfg.gpu_delay_ns, &gpu), 0);
	gpu->device = 0;
	gpu_make_stoppable(gpu);
	r->gx[node]->gpu[0] = gpu;
	for (unsigned i = 0; i < gx_nr_cores(r->gx[node]); i++) {
		struct gx_core *core = gx_core(r->gx[node], i);

		assert_int_equal(link_pkt_gpu(pkt_link(core, 0), gpu), 0);
		assert_int_equal(submit_gpu(core, gpu), 0);
		link_pkt_take(pkt_link(core, 0), 0);
		submit_take(core, gpu);
	}
	r->mem[node]->gpu = gpu;
	r->mem[node]->kind = GX_MEM_CUDA;
	r->mem[node]->device = 0;
}

static void rig_node_open(struct rig *r, int node)
{
	const struct rig_cfg *c = &r->cfg;
	struct gx_opts opts = GX_INIT(opts);
	struct common_key key;
	char net[32];
	const struct gx_port_name port = {.name = "sim", .args = net},
				  ports[RIG_PORTS] = {port, port, port, port};

	gx_port_add(&port_sim_ops);
	snprintf(net, sizeof(net), "net=%u", sim_net_id(r->net));
	opts.ports = ports;
	opts.nr_ports = c->nr_ports;
	opts.nr_cores = c->nr_cores;
	opts.packet =
		GX_WITH(gx_packet_opts, .chunk_b = c->chunk_b, .window = c->window,
			.slots = c->slots, .quantum_b = c->quantum_b,
			.integrity = GX_INTEGRITY_MODE_NONE + c->integrity, .crc_by = c->check);
	opts.peer_timeout_ns = c->peer_timeout_ns;
	opts.gpu = GX_WITH(gx_gpu_opts, .timeout_ns = c->gpu_timeout_ns);
	opts.server = node == 1;
	opts.host = GX_WITH(gx_host_opts, .huge = GX_OFF);
	if (node == 1)
		opts.on_conn = rig_on_conn;
	opts.arg = r;
	if (c->integrity > GX_INTEGRITY_CRC)
		opts.auth = common_key_open(&key, node == 1);
	ctx_host = &late_gpu_ops;
	late_gpu_ns = c->gpu_delay_ns;
	if (gx_open(&opts, &r->gx[node]))
		fail_msg("gx_open: %s", gx_error());
	late_gpu_ns = 0;
	if (opts.auth)
		common_key_close(&key);
	r->core[node] = gx_core(r->gx[node], 0);
	assert_int_equal(gx_mem_alloc(r->gx[node], GX_MEM_HOST, 0, c->mem_b, &r->mem[node]), 0);
	if (c->gpu)
		rig_gpu(r, node);
	memset(rig_mem(r, node), RIG_POISON, c->mem_b);
	assert_int_equal(gx_mem_share(r->mem[node], "mem",
				      c->access ? c->access : GX_ACCESS_PUT | GX_ACCESS_GET),
			 0);
}

static bool rig_attached(struct rig *r)
{
	for (int side = 0; side < 2; side++)
		for (unsigned i = 0; i < r->nr_conns; i++)
			for (unsigned lane = 0; lane < r->conn[side][i]->nr_lanes; lane++)
				if (!atomic_load(&r->conn[side][i]->ep[lane]->attached))
					return false;
	return true;
}

static bool rig_turn_node(struct rig *r, unsigned node)
{
	bool worked = false;

	for (unsigned i = 0; i < gx_nr_cores(r->gx[node]); i++)
		worked |= gx_core_turn(gx_core(r->gx[node], i), r->now_ns);
	return worked;
}

int rig_node(const struct rig *r, int side, unsigned conn)
{
	unsigned client = conn % (r->nr_nodes - 1);

	return side == 1 ? 1 : (int)(client ? client + 1 : 0);
}

static void rig_connect(struct rig *r, unsigned i)
{
	struct gx_connect_opts opts = GX_INIT(opts);
	char net[32];
	const struct gx_port_name port = {.name = "sim", .args = net},
				  ports[RIG_PORTS] = {port, port, port, port};
	struct gx_conn *c;
	unsigned nr = 0;

	snprintf(net, sizeof(net), "net=%u", sim_net_id(r->net));
	opts.ports = ports;
	opts.nr_ports = r->cfg.nr_ports > 1 ? r->cfg.nr_ports : 0;
	if (gx_connect(r->gx[rig_node(r, 0, i)], r->addr, &opts, &c) ||
	    gx_conn_wait(c, COMMON_WAIT_NS))
		fail_msg("connect: %s", gx_error());
	for (unsigned k = 0; k < 100000 && nr <= i; k++) {
		pthread_mutex_lock(&r->lock);
		nr = r->nr_accepted;
		pthread_mutex_unlock(&r->lock);
		if (nr <= i)
			rig_sleep();
	}
	assert_int_equal(nr, i + 1);
	r->conn[0][i] = c;
	r->conn[1][i] = r->accepted[i];
	for (int side = 0; side < 2; side++) {
		r->ep[side][i] = gx_conn_ep(r->conn[side][i], 0);
		assert_non_null(r->ep[side][i]);
	}
}

static void rig_connect_all(struct rig *r)
{
	for (unsigned i = 0; i < r->nr_conns; i++)
		rig_connect(r, i);
	for (int side = 0; side < 2; side++) {
		r->peer[side] = (struct gx_region)GX_INIT(r->peer[side]);
		assert_int_equal(gx_conn_region(r->conn[side][0], "mem", 0, &r->peer[side]), 0);
	}
	/* In real time, while virtual time stands. */
	for (unsigned k = 0; k < 100000 && !rig_attached(r); k++) {
		for (unsigned node = 0; node < r->nr_nodes; node++)
			rig_turn_node(r, node);
		rig_sleep();
	}
	assert_true(rig_attached(r));
}

struct rig *rig_open(const struct rig_cfg *cfg)
{
	struct rig *r = calloc(1, sizeof(*r));

	rig_current = r;
	r->cfg = *cfg;
	r->cfg.sim.seed += rig_seed;
	if (!r->cfg.mem_b)
		r->cfg.mem_b = RIG_MEM_B;
	if (!r->cfg.sim.delay_ns)
		r->cfg.sim.delay_ns = 20000;
	if (!r->cfg.sim.rate_bps)
		r->cfg.sim.rate_bps = 100000000000ull;
	if (!r->cfg.nr_ports)
		r->cfg.nr_ports = 1;
	assert(r->cfg.nr_ports <= RIG_PORTS);
	r->random = r->cfg.sim.seed;
	r->nr_conns = cfg->nr_conns ? cfg->nr_conns : 1;
	pthread_mutex_init(&r->lock, NULL);
	assert_int_equal(sim_net_open(&r->cfg.sim, &r->net), 0);
	r->now_ns = sim_net_now(r->net);
	r->nr_nodes = 1 + GX_MAX(cfg->nr_clients, 1u);
	assert(r->nr_nodes <= RIG_NODES);
	r->nr_conns = GX_MAX(r->nr_conns, r->nr_nodes - 1);
	for (unsigned node = 0; node < r->nr_nodes; node++)
		rig_node_open(r, node);
	common_gx_listen(r->gx[1], r->addr);
	rig_connect_all(r);
	return r;
}

static unsigned rig_live(struct rig *r)
{
	unsigned n = 0;

	for (unsigned node = 0; node < r->nr_nodes; node++)
		for (unsigned i = 0; i < gx_nr_cores(r->gx[node]); i++)
			for (unsigned p = 0; p < r->cfg.nr_ports; p++)
				n += pkt_link(gx_core(r->gx[node], i), p)->nr_live;
	return n;
}

static void rig_end_conns(struct rig *r)
{
	r->closing = true;
	memset(r->still, 0, sizeof(r->still));
	for (int side = 0; side < 2; side++)
		for (unsigned i = 0; i < r->nr_conns; i++)
			gx_conn_close(r->conn[side][i]);
	/* The control threads need real time, and what is under way virtual time. */
	for (unsigned k = 0; k < 100000 && rig_live(r); k++) {
		if (rig_turn(r))
			continue;
		r->now_ns += RIG_CLOSE_STEP_NS;
		rig_sleep();
	}
}

/* Is the first index of cids one of a connection's? */
static bool rig_cid_used(struct rig *r, int side)
{
	return __atomic_load_n(&pkt_link(r->core[side], 0)->gens[0], __ATOMIC_ACQUIRE) >> 31;
}

void rig_reconnect(struct rig *r)
{
	assert_int_equal(r->nr_conns, 1);
	rig_end_conns(r);
	assert_int_equal(rig_live(r), 0);
	r->closing = false;
	for (int side = 0; side < 2; side++) /* the control thread frees them */
		for (unsigned k = 0; k < 100000 && rig_cid_used(r, side); k++)
			rig_sleep();
	r->nr_accepted = 0;
	rig_connect_all(r);
}

void rig_close(struct rig *r)
{
	rig_current = NULL;
	rig_end_conns(r);
	for (unsigned node = 0; node < r->nr_nodes; node++) {
		gx_mem_free(r->mem[node]);
		gx_close(r->gx[node]);
	}
	sim_net_close(r->net);
	pthread_mutex_destroy(&r->lock);
	free(r);
}

int rig_teardown(void **state)
{
	if (rig_current)
		rig_close(rig_current);
	return 0;
}

int rig_run(const char *group, const struct CMUnitTest tests[], size_t nr, int argc, char *argv[])
{
	struct CMUnitTest some[64];
	size_t n = 0;

	assert(nr <= GX_ARRAY_SIZE(some));
	rig_seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 0;
	for (size_t i = 0; i < nr; i++)
		if (argc < 2 || strstr(tests[i].name, argv[1]))
			some[n++] = tests[i];
	return _cmocka_run_group_tests(group, some, n, NULL, NULL);
}

/* ---- time ---- */

uint64_t rig_random(struct rig *r)
{
	uint64_t x = r->random += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static void rig_take(struct rig *r, unsigned node, struct gx_core *core)
{
	struct gx_comp comps[32];
	unsigned n;

	while ((n = common_poll(core, comps, 32)) > 0)
		for (unsigned i = 0; i < n; i++) {
			if (r->closing)
				continue;
			if (r->on_comp) {
				r->on_comp(r->arg, (int)node, &comps[i]);
				continue;
			}
			assert_true(r->nr_last[node] < GX_ARRAY_SIZE(r->last[node]));
			r->last[node][r->nr_last[node]++] = comps[i];
		}
}

bool rig_turn(struct rig *r)
{
	bool worked = false;

	sim_net_advance(r->net, r->now_ns);
	for (unsigned node = 0; node < r->nr_nodes; node++) {
		if (r->still[node])
			continue;
		worked |= rig_turn_node(r, node);
		for (unsigned i = 0; i < gx_nr_cores(r->gx[node]); i++)
			rig_take(r, node, gx_core(r->gx[node], i));
	}
	r->now_ns += RIG_STEP_NS;
	return worked;
}

static uint64_t link_next(const struct link_pkt *l, uint64_t next, uint64_t now_ns)
{
	if (l->look_ns > now_ns)
		next = GX_MIN(next, l->look_ns);
	for (unsigned i = 0; i < l->nr_live; i++) {
		const struct pkt_ep *e = l->live[i];

		next = GX_MIN(next, GX_MIN(flow_due(e->flow), flow_ack_due_ns(e->flow)));
		next = GX_MIN(next, e->timer.tick_ns);
		if (e->rx.held_bufs)
			next = GX_MIN(next, now_ns + 1000);
		if (e->pace.cc && tx_has_first(e))
			next = GX_MIN(next, cc_due(e->pace.cc));
	}
	return next;
}

/* When something may happen next, by the network's clock or an endpoint's. */
static uint64_t rig_next(struct rig *r)
{
	uint64_t next = GX_MIN(sim_net_next(r->net), r->now_ns + RIG_JUMP_NS);

	for (unsigned node = 0; node < r->nr_nodes; node++)
		for (unsigned i = 0; i < gx_nr_cores(r->gx[node]) && !r->still[node]; i++)
			for (unsigned p = 0; p < r->cfg.nr_ports; p++)
				next = link_next(pkt_link(gx_core(r->gx[node], i), p), next,
						 r->now_ns);
	return GX_MAX(next, r->now_ns);
}

bool rig_until(struct rig *r, bool (*done)(struct rig *r), uint64_t ns)
{
	uint64_t end = r->now_ns + ns;

	while (r->now_ns < end) {
		if (done && done(r))
			return true;
		if (!rig_turn(r))
			r->now_ns = GX_MIN(rig_next(r), end);
	}
	return done && done(r);
}

void rig_pass(struct rig *r, uint64_t ns)
{
	rig_until(r, NULL, ns);
}

void rig_idle(struct rig *r, uint64_t ns)
{
	for (uint64_t end = r->now_ns + ns; r->now_ns < end; r->now_ns += RIG_IDLE_NS)
		rig_turn(r);
}

void rig_wait_real(struct rig *r, bool (*done)(struct rig *r))
{
	for (unsigned k = 0; k < 100000; k++) {
		if (done(r))
			return;
		rig_turn(r);
		rig_sleep();
	}
	fail_msg("did not happen in 20 s");
}

/* ---- at rest ---- */

/* What is still out of an endpoint; NULL: nothing. */
static const char *ep_out(const struct pkt_ep *e)
{
	if (e->tx.nr_ops)
		return "operations";
	if (e->rec.floor != e->rec.next || e->rec.queued)
		return "records";
	if (e->tx.nr_mids)
		return "messages not done";
	if (e->rx.nr_in)
		return "messages coming in";
	if (flow_outstanding(e->flow))
		return "packets not acknowledged";
	if (e->rx.held_bufs)
		return "bounce buffers in blocks";
	if (e->tx.refs)
		return "packets in the port";
	if (e->tx.resend_head != e->tx.resend_tail)
		return "resends";
	if (e->asks.head != e->asks.tail || e->asks.pkts || e->rx.nr_bad)
		return "packets asked for again";
	if (e->fetch.nr_staged || e->fetch.asked.stage.first != e->fetch.asked.stage.next ||
	    e->fetch.lost.stage.first != e->fetch.lost.stage.next)
		return "pinned buffers of a GPU's payload";
	for (unsigned i = 0; i < PIECES_USES; i++)
		if (e->pieces.used[i])
			return "pieces";
	return NULL;
}

static const char *rig_out(struct rig *r)
{
	const char *what = NULL;

	for (int side = 0; side < 2 && !what; side++)
		for (unsigned i = 0; i < r->nr_conns && !what; i++)
			for (unsigned k = 0; k < r->conn[side][i]->nr_lanes && !what; k++)
				what = ep_out(rig_lane(r, side, i, k));
	return what;
}

static bool rig_resting(struct rig *r)
{
	return !rig_out(r) && sim_net_next(r->net) == UINT64_MAX;
}

static unsigned nr_ops_free(const struct pkt_ep *e)
{
	unsigned n = PKT_OPS - e->tx.ops_top; /* never used */

	for (uint32_t i = e->tx.op_free; i != PKT_NONE; i = e->ops[i].next) {
		assert_int_equal(e->ops[i].state, OP_FREE);
		n++;
	}
	return n;
}

static void check_tables(const struct pkt_ep *e)
{
	assert_int_equal(nr_ops_free(e), PKT_OPS);
	for (unsigned i = 0; i < GX_WIRE_MIDS; i++) {
		assert_true(e->out[i].op == PKT_NONE);
		assert_int_equal(e->in[i].state, IN_FREE);
	}
	for (unsigned i = 0; i < PKT_SLOTS; i++) {
		assert_false(e->slots[i].used);
		assert_false(e->offers[i].used);
	}
	for (unsigned i = 0; i < PKT_RECS; i++)
		assert_int_equal(e->recs[i].state, REC_FREE);
	for (unsigned i = 0; i < PKT_RECS / 64; i++)
		assert_true(e->rx.rsn_seen[i] == 0);
	for (unsigned i = 0; i < GX_WIRE_DONE_WORDS; i++)
		assert_true(e->tx.mids_free[i] == UINT64_MAX);
	assert_int_equal(e->tx.mids_words, (1u << GX_WIRE_DONE_WORDS) - 1);
	for (size_t i = 0; i < (size_t)GX_WIRE_ACTIVE * e->words_max; i++)
		assert_true(e->tx.words[i] == 0 && e->rx.words[i] == 0);
	assert_true(e->tx.words_free == UINT64_MAX && e->rx.words_free == UINT64_MAX);
	assert_true(e->tx.act_head == PKT_NONE && e->tx.wait_head == PKT_NONE);
	assert_true(e->tx.send_head == PKT_NONE && e->rx.landed_head == PKT_NONE);
	assert_int_equal(e->match.nr_offers, 0);
	assert_true(e->match.gets_head == e->match.gets_tail);
	assert_int_equal(e->match.gets_out, 0);
	assert_int_equal(e->rx.need_pkts, 0);
}

/* What one end knows of the other's numbers must agree with them. */
static void check_pair(const struct pkt_ep *tx, const struct pkt_ep *rx)
{
	for (unsigned i = 0; i < GX_WIRE_MIDS; i++)
		assert_int_equal(tx->out[i].mid, i == rx->in[i].mid % GX_WIRE_MIDS
							 ? rx->in[i].mid
							 : i - GX_WIRE_MIDS);
	assert_memory_equal(tx->tx.peer_done, rx->rx.done, sizeof(tx->tx.peer_done));
	assert_int_equal(tx->rec.next, rx->rx.rsn_floor);
	assert_int_equal(flow_credit(tx->flow), flow_granted(rx->flow));
	if (flow_granted(rx->flow) > rx->credit0)
		fail_msg("%u credits are out at rest", flow_granted(rx->flow));
}

/* Lane i of each connection is on core i, over port i modulo their number. */
static void check_link(struct rig *r, unsigned node, unsigned core, unsigned port)
{
	struct link_pkt *l = pkt_link(gx_core(r->gx[node], core), port);
	bool own = r->cfg.sim.own_slots, used = port == core % r->cfg.nr_ports;
	int side = node == 1;
	uint64_t granted = 0;

	for (unsigned i = 0; i < r->nr_conns && used; i++)
		if (rig_node(r, side, i) == (int)node)
			granted += flow_granted(rig_lane(r, side, i, core)->flow);
	assert_int_equal(l->pool_out, own ? 0 : granted);
	assert_int_equal(l->held_bufs, 0);
	assert_int_equal(l->refs, 0);
	assert_int_equal(l->nr_release, 0);
	assert_int_equal(l->nr_scattered, 0);
	assert_int_equal(block_held(l->bq_host), 0);
	assert_true(!l->bq_gpu[0] || block_held(l->bq_gpu[0]) == 0);
	assert_int_equal(gx_core(r->gx[node], core)->comps_due, 0);
	for (unsigned i = 1; i <= CORE_USES; i++)
		assert_int_equal(gx_core(r->gx[node], core)->uses[i], 0);
	assert_int_equal(sim_queue_free_bufs(l->q),
			 l->port->caps.rx_slots * (own ? SIM_OWN_PEERS : 1));
}

static void check_lane(struct rig *r, unsigned conn, unsigned lane)
{
	for (int side = 0; side < 2; side++) {
		struct pkt_ep *e = rig_lane(r, side, conn, lane);

		assert_int_equal(atomic_load(&e->ep.fault), 0);
		check_tables(e);
		check_pair(e, rig_lane(r, !side, conn, lane));
	}
}

void rig_rest(struct rig *r, uint64_t ns)
{
	if (!rig_until(r, rig_resting, ns))
		fail_msg("not at rest: %s", rig_out(r) ? rig_out(r) : "packets under way");
	rig_pass(r, 3 * MS); /* an ACK that brings the last credit */
	if (!rig_until(r, rig_resting, ns))
		fail_msg("no rest: %s", rig_out(r) ? rig_out(r) : "packets under way");
	for (unsigned k = 0; k < gx_nr_cores(r->gx[0]); k++) {
		for (unsigned i = 0; i < r->nr_conns; i++)
			check_lane(r, i, k);
		for (unsigned node = 0; node < r->nr_nodes; node++)
			for (unsigned p = 0; p < r->cfg.nr_ports; p++)
				check_link(r, node, k, p);
	}
}

void rig_done(struct rig *r)
{
	rig_rest(r, 2 * SECOND);
	rig_close(r);
}

/* ---- small things ---- */

void rig_set(struct rig *r, const struct sim_cfg *sim)
{
	struct sim_cfg full = *sim;

	full.delay_ns = full.delay_ns ? full.delay_ns : r->cfg.sim.delay_ns;
	full.rate_bps = full.rate_bps ? full.rate_bps : r->cfg.sim.rate_bps;
	sim_net_set(r->net, &full);
}

struct pkt_ep *rig_lane(struct rig *r, int side, unsigned conn, unsigned lane)
{
	return GX_CONTAINER_OF(r->conn[side][conn]->ep[lane], struct pkt_ep, ep);
}

struct pkt_ep *rig_ep(struct rig *r, int side, unsigned conn)
{
	return GX_CONTAINER_OF(r->ep[side][conn], struct pkt_ep, ep);
}

uint64_t rig_stat(struct rig *r, int node, const char *name)
{
	uint64_t v = 0;

	assert_int_equal(gx_core_stat(r->core[node], name, &v), 0);
	return v;
}

uint8_t *rig_mem(struct rig *r, int node)
{
	return gx_mem_addr(r->mem[node]);
}

static uint64_t pattern(uint64_t seed, uint64_t word)
{
	uint64_t x = (seed << 32 ^ word) * 0x9e3779b97f4a7c15u;

	return x ^ x >> 29;
}

void rig_fill(void *at, uint64_t len, uint64_t seed)
{
	uint8_t *b = at;

	for (uint64_t i = 0; i < len; i += 8) {
		uint64_t v = pattern(seed, i);

		memcpy(b + i, &v, GX_MIN(8, len - i));
	}
}

void rig_check_poison(const void *at, uint64_t len)
{
	const uint8_t *b = at;

	for (uint64_t i = 0; i < len; i++)
		if (b[i] != RIG_POISON)
			fail_msg("byte %llu of %llu was written: %02x", (unsigned long long)i,
				 (unsigned long long)len, b[i]);
}

void rig_check(const void *at, uint64_t len, uint64_t seed)
{
	const uint8_t *b = at;

	for (uint64_t i = 0; i < len; i += 8) {
		uint64_t v = pattern(seed, i);

		if (memcmp(b + i, &v, GX_MIN(8, len - i)))
			fail_msg("wrong bytes at %llu of %llu", (unsigned long long)i,
				 (unsigned long long)len);
	}
	rig_check_poison(b - RIG_GUARD, RIG_GUARD);
	rig_check_poison(b + len, RIG_GUARD);
}

void rig_post(struct rig *r, int side, const struct gx_op *op)
{
	rig_post_on(r, side, 0, op);
}

void rig_post_on(struct rig *r, int side, unsigned conn, const struct gx_op *op)
{
	struct gx_op full = *op;
	int ret;

	ret = common_post(r->ep[side][conn], &full, 1);
	if (ret != 1)
		fail_msg("post: %d, %s", ret, gx_error());
}

void rig_comps(struct rig *r, int node, unsigned n, uint64_t ns)
{
	uint64_t end = r->now_ns + ns;

	while (r->nr_last[node] < n && r->now_ns < end)
		if (!rig_turn(r))
			r->now_ns = GX_MIN(rig_next(r), end);
	if (r->nr_last[node] < n)
		fail_msg("node %d has %u completions, not %u", node, r->nr_last[node], n);
}

void rig_forget(struct rig *r)
{
	memset(r->nr_last, 0, sizeof(r->nr_last));
}
