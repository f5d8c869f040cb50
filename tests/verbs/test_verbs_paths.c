/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections of link verbs over several paths: both ends' halves (verbs_conn.c, verbs_paths.c) and one
 * lane of each, in one thread, over scripted devices (verbs_script.h). What the control threads send
 * arrives at once. A fixture ends with nothing made or owed.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/opt_ctx.h"
#include "gx_internal/gpu.h"
#include "verbs/link_verbs.h"

#include <cmocka.h>

#include "verbs/verbs_script.h"

#define MEM_B	   (4u << 20)
#define CHUNK_B	   (64u << 10)
#define WINDOW	   16
#define TOKEN	   0x110000 /* index 0 */
#define WAIT_NS	   20000000000ull
#define TIMEOUT_NS 100000000ull

struct end {
	struct gx *gx;
	struct gx_core *core;
	struct gx_conn *conn;
	struct verbs_lane *lane;
	struct gx_ep ep;
	struct gx_mem mem;
	struct end *other;
	unsigned nr_done, nr_failed, nr_notify;
	int status;
};

struct rig {
	struct end client, server;
	int proven;
};

static struct rig *rig; /* whose ends talk */

/* What the client has said, while the network is slow. */
static struct {
	bool holds;
	unsigned n;
	uint8_t b[16][VERBS_MEND_B];
} post_box;

/* ---- Two ends ---- */

static void end_open(struct end *e, const char *devices, struct end *other)
{
	struct gx_rail rail[VERBS_RAILS_MAX];
	struct gx_verbs_opts o = {.size = sizeof(o), .rails = rail};
	char names[64], name[VERBS_RAILS_MAX][64], *save = NULL;
	unsigned n = 0;
	void *shared;

	e->gx = calloc(1, sizeof(*e->gx));
	e->core = aligned_alloc(GX_CACHE_LINE, GX_ALIGN_UP(sizeof(*e->core), GX_CACHE_LINE));
	e->conn = calloc(1, sizeof(*e->conn));
	e->lane = calloc(1, sizeof(*e->lane));
	assert_true(e->gx && e->core && e->conn && e->lane);
	memset(e->core, 0, sizeof(*e->core));
	e->core->gx = e->gx;
	core_groups_point(&e->gx->opts, &e->gx->groups);
	e->core->comps = calloc(GX_COMPS_MAX, sizeof(*e->core->comps));
	e->gx->cpus[0] = -1;
	snprintf(names, sizeof(names), "%s", devices);
	for (char *at = strtok_r(names, "+", &save); at; at = strtok_r(NULL, "+", &save), n++)
		assert_int_equal(opt_rail(at, name[n], &rail[n], &o.all), 0);
	o.nr_rails = n;
	assert_int_equal(verbs_rails_open(&o, (struct verbs_rails **)&e->gx->link[GX_LINK_VERBS]),
			 0);
	e->mem = (struct gx_mem){.gx = e->gx,
				 .kind = GX_MEM_HOST,
				 .len = MEM_B,
				 .id = 7,
				 .token = TOKEN,
				 .access = GX_ACCESS_PUT | GX_ACCESS_GET};
	e->mem.addr = aligned_alloc(4096, MEM_B);
	assert_true(e->mem.addr && e->core->comps);
	memset(e->mem.addr, 0, MEM_B);
	e->gx->region = calloc(GX_KEYS_MAX, sizeof(e->gx->region[0]));
	assert_non_null(e->gx->region);
	e->gx->region[0] = &e->mem;
	e->mem.link[GX_LINK_VERBS] = verbs_mem_new(verbs_rails_of(e->gx), &e->mem);
	if (e->mem.link[GX_LINK_VERBS]) {
		verbs_mem_keep(verbs_rails_of(e->gx), e->mem.link[GX_LINK_VERBS]);
		shared = verbs_mem_share(verbs_rails_of(e->gx), &e->mem, e->mem.access);
		assert_non_null(shared);
		verbs_mem_share_keep(e->mem.link[GX_LINK_VERBS], shared);
	}
	e->other = other;
}

/* What HELLO and the agreement say. */
static void conn_fill(struct end *e)
{
	struct gx_conn *c = e->conn;

	*c = (struct gx_conn){.gx = e->gx, .nr_named = 1};
	c->named[0] = &e->mem;
	c->peer.nr_regions = 1;
	c->peer.regions[0] = (struct gx_hello_region){
		.token = TOKEN, .len = MEM_B, .access = GX_ACCESS_PUT | GX_ACCESS_GET};
	c->agreed.peer_timeout_ns = TIMEOUT_NS;
	c->peer.offer[GX_LINK_VERBS].len = (uint16_t)gx_link_verbs.conn->offer(
		e->other->gx, true, c->peer.offer[GX_LINK_VERBS].b);
}

static void lane_open(struct end *e)
{
	struct verbs_conn *v = verbs_conn_of(e->conn);
	struct verbs_lane *l = e->lane;

	e->ep.core = l->core = e->core;
	e->ep.access = CORE_ACCESS;
	l->ep = &e->ep;
	l->region = v->region;
	verbs_paths_lane(e->conn, 0, l);
	assert_int_equal(verbs_qps_open(l, v->nr_qps), 0);
	v->lane[0] = l;
	for (unsigned i = 0; i < l->nr_qps; i++)
		assert_int_equal(verbs_qp_reset(l, &l->qp[i], &v->side[i].own), 0);
}

/* Until the threads of the devices have done what they were asked for. */
static void dials_wait(const struct end *e)
{
	while (verbs_qps_connect_due(e->lane))
		sched_yield();
}

static void lane_connect(struct end *e)
{
	struct verbs_conn *v = verbs_conn_of(e->conn);
	struct verbs_lane *l = e->lane;

	l->chunk_b = CHUNK_B;
	for (unsigned w = 0; w < l->nr_paths; w++)
		l->path[w].window_b =
			(uint64_t)WINDOW * CHUNK_B * v->plan.path[w].mbps / v->plan.path[0].mbps;
	for (unsigned i = 0; i < l->nr_qps; i++)
		verbs_qp_connect(l, &l->qp[i], &v->peer.port[l->path[l->qp[i].path].peer],
				 &v->side[i].own, &v->peer.qp[i], false);
	dials_wait(e);
	for (unsigned i = 0; i < l->nr_qps; i++)
		assert_int_equal(verbs_dial_take(&l->qp[i].dial), 0);
}

static void say(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	struct end *to = c == rig->client.conn ? &rig->server : &rig->client;

	if (post_box.holds && to == &rig->server) {
		assert_true(post_box.n < GX_ARRAY_SIZE(post_box.b) && len == VERBS_MEND_B);
		memcpy(post_box.b[post_box.n++], b, len);
		return;
	}
	assert_int_equal(verbs_conn_mend(to->conn, b, len), 0);
}

static void take(struct end *e)
{
	while (e->core->comp_tail != e->core->comp_head) {
		struct gx_comp *c = &e->core->comps[e->core->comp_tail++ % GX_COMPS_MAX];

		e->nr_notify += c->kind == GX_COMP_NOTIFY;
		if (c->kind == GX_COMP_NOTIFY)
			assert_memory_equal(e->mem.addr + c->off, e->other->mem.addr + c->off,
					    c->len);
		if (c->kind != GX_COMP_DONE)
			continue;
		e->nr_done++;
		e->nr_failed += c->status != 0;
		e->status = c->status ? c->status : e->status;
	}
}

static void end_turn(struct end *e)
{
	uint64_t now_ns = gx_now_ns();

	verbs_lane_turn(e->lane, now_ns);
	script_run();
	take(e);
	verbs_rails_events(verbs_rails_of(e->gx));
	verbs_conn_tick(e->conn, now_ns, say);
	dials_wait(e);
	dials_wait(e->other);
}

static void turn(struct rig *r)
{
	end_turn(&r->client);
	end_turn(&r->server);
}

#define UNTIL(r, cond)                                                                             \
	do {                                                                                       \
		uint64_t until_ = gx_now_ns() + WAIT_NS;                                           \
		while (!(cond) && gx_now_ns() < until_)                                            \
			turn(r);                                                                   \
		assert_true(cond);                                                                 \
	} while (0)

static void turn_for(struct rig *r, uint64_t ns)
{
	uint64_t until_ns = gx_now_ns() + ns;

	while (gx_now_ns() < until_ns)
		turn(r);
}

static struct rig *rig_new(const char *client, const char *server)
{
	struct rig *r = calloc(1, sizeof(*r));

	assert_non_null(r);
	verbs_api_set(&script_api);
	end_open(&r->client, client, &r->server);
	end_open(&r->server, server, &r->client);
	rig = r;
	return r;
}

static void rig_connect(struct rig *r, unsigned nr_qps)
{
	static uint8_t b[VERBS_HELLO_MAX], back[VERBS_HELLO_MAX];
	struct gx_conn *c = r->client.conn, *s = r->server.conn;
	uint32_t len;

	conn_fill(&r->client);
	conn_fill(&r->server);
	assert_int_equal(verbs_conn_open(c, 1, nr_qps, NULL, 0), 0);
	lane_open(&r->client);
	len = verbs_conn_say(c, b);
	assert_int_equal(verbs_conn_open(s, 1, 0, b, len), 0);
	lane_open(&r->server);
	assert_int_equal(verbs_conn_hear(s, b, len), 0);
	lane_connect(&r->server);
	len = verbs_conn_say(s, back);
	assert_int_equal(verbs_conn_hear(c, back, len), 0);
	lane_connect(&r->client);
	while (!(r->proven = verbs_conn_prove(c)))
		script_run();
}

static struct rig *rig_up(const char *client, const char *server, unsigned nr_qps)
{
	struct rig *r = rig_new(client, server);

	rig_connect(r, nr_qps);
	assert_int_equal(r->proven, 1);
	return r;
}

static void end_close(struct end *e)
{
	assert_int_equal(e->lane->nr_ops, 0);
	for (unsigned w = 0; w < e->lane->nr_paths; w++)
		assert_int_equal(e->lane->path[w].under_b, 0);
	verbs_qps_close(e->lane);
	verbs_conn_close(e->conn);
	verbs_mem_put(verbs_rails_of(e->gx), &e->mem);
	verbs_rails_close(verbs_rails_of(e->gx));
	free(e->mem.addr);
	free(e->core->comps);
	free(e->core);
	free(e->conn);
	free(e->lane);
	free(e->gx->region);
	free(e->gx);
}

static void rig_free(struct rig *r)
{
	verbs_conn_stop(r->client.conn);
	verbs_conn_stop(r->server.conn);
	verbs_lane_fail(r->client.lane, -ECONNRESET);
	verbs_lane_fail(r->server.lane, -ECONNRESET);
	script.paused = 0;
	UNTIL(r, verbs_lane_is_quiet(r->client.lane) && verbs_lane_is_quiet(r->server.lane));
	end_close(&r->client);
	end_close(&r->server);
	free(r);
	script_reset();
	verbs_api_set(NULL);
}

static int post(struct end *e, enum gx_op_kind kind, uint64_t off, uint64_t len)
{
	struct gx_op op = {.kind = kind,
			   .mem = &e->mem,
			   .off = off,
			   .remote_off = off,
			   .len = len,
			   .flags = kind == GX_OP_PUT ? GX_OP_IMM : 0,
			   .token = TOKEN};
	int ret = verbs_post(e->lane, &op, NULL);

	verbs_lane_kick(e->lane);
	return ret;
}

static void fill(struct end *e, unsigned seed)
{
	for (uint64_t i = 0; i < MEM_B; i++)
		e->mem.addr[i] = (char)(i * 7 + i / 251 + seed);
}

/* Put all, and look at it. */
static void put_all(struct rig *r, unsigned seed)
{
	unsigned done = r->client.nr_done, notify = r->server.nr_notify;

	fill(&r->client, seed);
	assert_int_equal(post(&r->client, GX_OP_PUT, 0, MEM_B), 0);
	UNTIL(r, r->client.nr_done == done + 1 && r->server.nr_notify == notify + 1);
	assert_memory_equal(r->client.mem.addr, r->server.mem.addr, MEM_B);
	assert_int_equal(r->client.nr_failed, 0);
}

static bool is_faulty(const struct end *e)
{
	return atomic_load(&e->ep.fault) != 0;
}

static unsigned qps_in(const struct end *e, unsigned path, int state)
{
	unsigned n = 0;

	for (unsigned i = 0; i < e->lane->nr_qps; i++)
		n += e->lane->qp[i].path == path && qp_state(&e->lane->qp[i]) == state;
	return n;
}

/* Both ends, by the client's number of the path. With two paths they number them alike. */
static bool path_is_up(const struct rig *r, unsigned path, unsigned nr_qps)
{
	return qps_in(&r->client, path, VERBS_QP_UP) == nr_qps &&
	       qps_in(&r->server, path, VERBS_QP_UP) == nr_qps;
}

/* ---- Chosen ---- */

static struct rig *rig_two(unsigned nr_qps)
{
	script.more = 2;
	return rig_up("script0+script1", "script2+script3", nr_qps);
}

static void paths__share(void **state)
{
	struct rig *r = rig_two(4);
	unsigned done;

	assert_true(path_is_up(r, 0, 2) && path_is_up(r, 1, 2));
	put_all(r, 1);
	assert_int_equal(script.bytes_of[0], MEM_B / 2);
	assert_int_equal(script.bytes_of[1], MEM_B / 2);
	done = r->client.nr_done;
	fill(&r->server, 2);
	assert_int_equal(post(&r->client, GX_OP_GET, 0, MEM_B), 0);
	UNTIL(r, r->client.nr_done == done + 1);
	assert_memory_equal(r->client.mem.addr, r->server.mem.addr, MEM_B);
	rig_free(r);
}

static void paths__text(void **state)
{
	struct rig *r = rig_two(4);
	char text[4096];

	assert_true(verbs_rails_text(verbs_rails_of(r->client.gx), text, sizeof(text)) > 0);
	assert_non_null(strstr(text, "script0 port 2"));
	assert_non_null(strstr(text, "\nverbs    script1 port 2"));
	verbs_conn_text(r->client.conn, text, sizeof(text));
	assert_non_null(strstr(text, "script1 to its rail 1: 2 queue pairs"));
	verbs_conn_path(r->client.conn, text, sizeof(text));
	assert_non_null(strstr(text, "from script0 (GID ::ffff:10.0.0.1)"));
	assert_non_null(strstr(text, "nor from script1 (GID ::ffff:10.0.0.2)"));
	rig_free(r);
}

static void paths__by_speed(void **state)
{
	struct rig *r;

	memcpy(script.speed, (uint8_t[]){128, 32, 128, 32}, 4); /* 100 and 25 Gb/s */
	r = rig_two(5);
	assert_true(path_is_up(r, 0, 4) && path_is_up(r, 1, 1));
	assert_int_equal(r->client.lane->path[1].window_b * 4, r->client.lane->path[0].window_b);
	put_all(r, 1);
	rig_free(r);
}

/* A device that carries nothing for now holds back the bytes of its own window, and no more. */
static void path__is_slow(void **state)
{
	struct rig *r = rig_two(4);
	unsigned of_slow = WINDOW;

	script.paused = 1 << 1;
	for (unsigned i = 0; i < MEM_B / CHUNK_B; i++)
		assert_int_equal(post(&r->client, GX_OP_PUT, i * CHUNK_B, CHUNK_B), 0);
	UNTIL(r, r->client.nr_done == MEM_B / CHUNK_B - of_slow);
	script.paused = 0;
	UNTIL(r, r->client.nr_done == MEM_B / CHUNK_B);
	assert_int_equal(r->client.nr_failed, 0);
	rig_free(r);
}

static void paths__one_and_two(void **state)
{
	struct rig *r;

	script.more = 2;
	r = rig_up("script0", "script2+script3", 4);
	assert_true(path_is_up(r, 0, 2) && path_is_up(r, 1, 2));
	put_all(r, 1);
	rig_free(r);
	script.more = 2;
	r = rig_up("script0+script1", "script2", 4);
	assert_true(path_is_up(r, 0, 2) && path_is_up(r, 1, 2));
	put_all(r, 2);
	assert_int_equal(script.bytes_of[0], script.bytes_of[1]);
	rig_free(r);
}

/* By their networks, not by their numbers. */
static void paths__nets(void **state)
{
	struct rig *r;

	memcpy(script.net, (uint8_t[]){1, 2, 2, 1}, 4);
	script.apart = true;
	r = rig_two(4);
	put_all(r, 1);
	assert_int_equal(script.bytes_of[0], MEM_B / 2);
	rig_free(r);
}

/* One pair does not reach each other: the connection comes up by the other one, and that one is
 * tried again. */
static void path__is_cut_from_the_start(void **state)
{
	struct rig *r;

	memcpy(script.net, (uint8_t[]){1, 2, 1, 3}, 4);
	script.apart = true;
	r = rig_two(4);
	assert_int_equal(qps_in(&r->client, 1, VERBS_QP_UP), 0);
	put_all(r, 1);
	assert_int_equal(script.bytes_of[1], 0);
	script.apart = false;
	UNTIL(r, path_is_up(r, 1, 2));
	put_all(r, 2);
	assert_true(script.bytes_of[1]);
	rig_free(r);
}

/* It carries small packets alone, here or back: the others carry the connection, and one without
 * others does not come up. The text names the MTU. */
static void path__loses_large_packets_from_the_start(void **state)
{
	char text[256];

	for (unsigned device = 0; device < 4; device += 2) {
		struct rig *r;

		script.hole_b[device] = 1500;
		r = rig_two(4);
		assert_int_equal(qps_in(&r->client, 0, VERBS_QP_UP), 0);
		assert_int_equal(conn_hole_b(r->client.conn, 0), 4096);
		assert_int_equal(conn_hole_b(r->client.conn, 1), 0);
		put_all(r, 1);
		assert_int_equal(script.bytes_of[0], 0);
		script.hole_b[device] = 0;
		UNTIL(r, path_is_up(r, 0, 2));
		assert_int_equal(conn_hole_b(r->client.conn, 0), 0);
		rig_free(r);
		script.hole_b[device] = 1500;
		script.more = 2;
		r = rig_new("script0", "script2");
		rig_connect(r, 2);
		assert_int_equal(r->proven, -ENETUNREACH);
		assert_non_null(strstr(gx_error(), "no packet of 4096 bytes gets from script0"));
		verbs_conn_path(r->client.conn, text, sizeof(text));
		assert_non_null(strstr(text, "MTU of the path"));
		rig_free(r);
	}
}

/* ---- Failing ---- */

/* Fill the windows, and let only some of it pass. */
static void put_half(struct rig *r, unsigned seed)
{
	fill(&r->client, seed);
	script.run_max = 1;
	assert_int_equal(post(&r->client, GX_OP_PUT, 0, MEM_B), 0);
	turn(r);
	turn(r);
	script.run_max = 0;
	assert_int_equal(r->client.nr_done, 0);
}

static void put_whole(struct rig *r)
{
	UNTIL(r, r->client.nr_done == 1 && r->server.nr_notify == 1);
	assert_int_equal(r->client.nr_failed, 0);
	assert_memory_equal(r->client.mem.addr, r->server.mem.addr, MEM_B);
	assert_false(is_faulty(&r->client) || is_faulty(&r->server));
}

/* Its port goes down in mid-transfer, and comes back after the patience of a single device. */
static void path__goes_down(unsigned device, bool with_event)
{
	struct rig *r = rig_two(4);
	uint64_t before;

	put_half(r, 1);
	script.mute |= 1u << device;
	if (with_event)
		script_port(device, false);
	put_whole(r);
	turn_for(r, 6 * TIMEOUT_NS);
	assert_false(is_faulty(&r->client) || is_faulty(&r->server));
	UNTIL(r, atomic_load(&r->client.lane->lost) == 1u);
	put_all(r, 2);
	script.mute = 0;
	if (with_event)
		script_port(device, true);
	UNTIL(r, path_is_up(r, 0, 2));
	turn(r);
	assert_int_equal(atomic_load(&r->client.lane->lost), 0);
	before = script.bytes_of[0];
	put_all(r, 3);
	assert_true(script.bytes_of[0] > before);
	rig_free(r);
}

static void path__port_down(void **state)
{
	path__goes_down(0, true);
	path__goes_down(2, true);
}

static void path__cable_cut(void **state)
{
	path__goes_down(0, false);
	path__goes_down(2, false);
}

/* It fails once, and carries nothing until large packets pass again. */
static void path__begins_to_lose_large_packets(void **state)
{
	for (unsigned device = 0; device < 4; device += 2) {
		struct rig *r = rig_two(4);
		uint64_t before;

		script.hole_b[device] = 1500;
		assert_int_equal(post(&r->client, device ? GX_OP_GET : GX_OP_PUT, 0, MEM_B), 0);
		UNTIL(r, r->client.nr_done == 1);
		assert_int_equal(r->client.nr_failed, 0);
		turn_for(r, 6 * TIMEOUT_NS);
		UNTIL(r, atomic_load(&r->client.lane->lost) == 1u);
		assert_int_equal(qps_in(&r->client, 0, VERBS_QP_UP), 0);
		before = script.bytes_of[0];
		put_all(r, 2);
		assert_int_equal(script.bytes_of[0], before);
		script.hole_b[device] = 0;
		UNTIL(r, path_is_up(r, 0, 2));
		put_all(r, 3);
		assert_true(script.bytes_of[0] > before);
		rig_free(r);
	}
}

static void path__loses_large_packets_and_is_the_only_one(void **state)
{
	struct rig *r = rig_up("script0", "script1", 2);
	char text[256];

	put_half(r, 1);
	script.hole_b[0] = 1500;
	UNTIL(r, is_faulty(&r->client));
	assert_int_equal(atomic_load(&r->client.ep.fault), -ENETUNREACH);
	verbs_conn_path(r->client.conn, text, sizeof(text));
	assert_non_null(strstr(text, "no packet of 4096 bytes gets from script0"));
	rig_free(r);
}

/* ---- Addresses ---- */

/* Its GID is another one now: the other path goes on, and new connections take the new GID. The
 * first one works again when it has that back. */
static void gid__changes(void **state)
{
	char text[512];

	for (unsigned device = 0; device < 4; device += 2) {
		struct rig *r = rig_two(4);
		struct end *e = device ? &r->server : &r->client;
		struct verbs_port port;

		put_half(r, 1);
		script.host[device] = 9;
		script_address(device);
		put_whole(r);
		turn_for(r, 6 * TIMEOUT_NS);
		UNTIL(r, atomic_load(&r->client.lane->lost) == 1u);
		assert_false(is_faulty(&r->client) || is_faulty(&r->server));
		verbs_port_fill(verbs_rails_of(e->gx)->dev[0], &port);
		assert_int_equal(port.gid[15], 1 + device + 9);
		verbs_conn_path(e->conn, text, sizeof(text));
		assert_non_null(strstr(text, device ? "10.0.0.3, which its port has lost)"
						    : "10.0.0.1, which its port has lost)"));
		put_all(r, 2);
		script.host[device] = 0;
		script_address(device);
		UNTIL(r, path_is_up(r, 0, 2));
		put_all(r, 3);
		rig_free(r);
	}
}

static void gid__of_the_only_path_changes(void **state)
{
	for (unsigned device = 0; device < 2; device++) {
		struct rig *r = rig_up("script0", "script1", 2);
		struct end *e = device ? &r->server : &r->client;
		char text[512];

		put_half(r, 1);
		script.host[device] = 9;
		script_address(device);
		UNTIL(r, is_faulty(e));
		assert_int_equal(atomic_load(&e->ep.fault), -ENETUNREACH);
		verbs_conn_path(e->conn, text, sizeof(text));
		assert_non_null(
			strstr(text, device ? "GID ::ffff:10.0.0.2, which its port has lost"
					    : "GID ::ffff:10.0.0.1, which its port has lost"));
		assert_non_null(strstr(text, "address back"));
		rig_free(r);
	}
}

/* The device does not tell at once what has changed. */
static void gid__is_asked_for_again(void **state)
{
	struct rig *r = rig_up("script0", "script1", 2);

	script.refuse_port = 2;
	script.host[0] = 9;
	script_address(0);
	UNTIL(r, is_faulty(&r->client));
	assert_int_equal(script.refuse_port, 0);
	rig_free(r);
}

/* It comes back in time. */
static void gid__comes_back(void **state)
{
	for (unsigned device = 0; device < 2; device++) {
		struct rig *r = rig_up("script0", "script1", 2);

		r->client.conn->agreed.peer_timeout_ns = WAIT_NS;
		r->server.conn->agreed.peer_timeout_ns = WAIT_NS;
		put_half(r, 1);
		script.no_gid = 1u << device;
		script_address(device);
		turn_for(r, TIMEOUT_NS);
		assert_int_equal(r->client.nr_done, 0);
		assert_int_equal(qps_in(device ? &r->server : &r->client, 0, VERBS_QP_UP), 0);
		script.no_gid = 0;
		script_address(device);
		put_whole(r);
		rig_free(r);
	}
}

/* The same GID at another index: queue pairs that are made anew take that. */
static void gid__moves(void **state)
{
	struct rig *r = rig_up("script0", "script1", 2);

	put_all(r, 1);
	script.v2_at_3 = 3;
	script_address(0);
	script_address(1);
	put_all(r, 2);
	assert_int_equal(r->client.lane->path[0].gid_index, 3);
	assert_false(is_faulty(&r->client) || is_faulty(&r->server));
	rig_free(r);
}

/* A device without any takes part in no connection more. */
static void gid__none_is_left(void **state)
{
	struct rig *r = rig_two(4);
	struct gx *gx = r->client.gx;
	struct verbs_port port;

	script.no_gid = 1;
	script_address(0);
	turn(r);
	verbs_port_fill(verbs_rails_of(gx)->dev[0], &port);
	assert_int_equal(port.speed_mbps, 0);
	assert_null(verbs_offered(gx));
	script.no_gid = 3;
	script_address(1);
	turn(r);
	assert_non_null(strstr(verbs_offered(gx), "GID"));
	script.no_gid = 0;
	script_address(0);
	script_address(1);
	UNTIL(r, path_is_up(r, 0, 2) && path_is_up(r, 1, 2));
	assert_null(verbs_offered(gx));
	put_all(r, 1);
	rig_free(r);
}

/* An event of an address that no connection has. */
static void gid__of_others(void **state)
{
	struct rig *r = rig_two(4);
	uint64_t redone = r->client.lane->nr_redone;

	put_half(r, 1);
	script_address(0);
	script_address(2);
	put_whole(r);
	assert_int_equal(r->client.lane->nr_redone, redone);
	assert_int_equal(r->client.lane->nr_lost, 0);
	rig_free(r);
}

static void lid__changes(void **state)
{
	struct rig *r;
	char text[512];

	script.infiniband = true;
	r = rig_up("script0", "script1", 2);
	put_half(r, 1);
	script.host[0] = 9;
	script_address(0);
	UNTIL(r, is_faulty(&r->client));
	verbs_conn_path(r->client.conn, text, sizeof(text));
	assert_non_null(strstr(text, "script0 (LID 17, which its port has lost)"));
	rig_free(r);
}

/* A put that began while one path was lost: its bytes that are not posted take that path when it
 * works again. */
static void path__comes_back_to_operations(void **state)
{
	struct rig *r = rig_two(4);

	script_port(0, false);
	turn_for(r, 6 * TIMEOUT_NS);
	UNTIL(r, atomic_load(&r->client.lane->lost) == 1u);
	script.paused = 1 << 1;
	fill(&r->client, 1);
	assert_int_equal(post(&r->client, GX_OP_PUT, 0, MEM_B), 0);
	turn(r);
	assert_int_equal(script.bytes_of[0], 0);
	script_port(0, true);
	UNTIL(r, script.bytes_of[0] == MEM_B - WINDOW * CHUNK_B);
	assert_int_equal(r->client.nr_done, 0);
	script.paused = 0;
	put_whole(r);
	rig_free(r);
}

/* It does not come back; the other one carries all. Then that one goes too. */
static void device__is_removed(unsigned device, unsigned other)
{
	bool of_client = device < 2;
	struct rig *r = rig_two(4);
	struct end *e = of_client ? &r->client : &r->server;
	char text[256];

	put_half(r, 1);
	script_remove(device);
	put_whole(r);
	UNTIL(r, qps_in(&r->client, 0, VERBS_QP_DEAD) == 2 &&
			 qps_in(&r->server, 0, VERBS_QP_DEAD) == 2);
	put_all(r, 2);
	assert_false(verbs_conn_lost(e->conn));
	script_remove(other);
	UNTIL(r, verbs_conn_lost(e->conn));
	verbs_conn_devices(e->conn, text, sizeof(text));
	assert_non_null(strstr(text, of_client ? "script0 (removed)" : "script2 (removed)"));
	assert_non_null(strstr(text, of_client ? "script1 (removed)" : "script3 (removed)"));
	rig_free(r);
}

static void device__removed(void **state)
{
	device__is_removed(0, 1);
	device__is_removed(2, 3);
}

static void post_box_open(struct rig *r)
{
	post_box.holds = false;
	for (unsigned i = 0; i < post_box.n; i++)
		assert_int_equal(verbs_conn_mend(r->server.conn, post_box.b[i], VERBS_MEND_B), 0);
	post_box.n = 0;
}

/* What it had under way does not go by the other one before the peer has ended its own queue pairs:
 * a late packet could still land there. */
static void device__removed_and_the_peer_is_slow(void **state)
{
	struct rig *r = rig_two(4);

	put_half(r, 1);
	post_box.holds = true;
	script_remove(0);
	turn_for(r, TIMEOUT_NS);
	assert_int_equal(post_box.n, 2);
	assert_int_equal(qps_in(&r->client, 0, VERBS_QP_DEAD), 2);
	assert_int_equal(r->client.lane->nr_redone, 0);
	assert_int_equal(r->client.nr_done, 0);
	post_box_open(r);
	put_whole(r);
	assert_true(r->client.lane->nr_redone > 0);
	rig_free(r);
}

/* Its queue pairs wait for its port, which comes up as it goes. The core leaves them now, so the
 * control thread does not connect them. */
static void device__removed_while_its_port_was_down(void **state)
{
	struct rig *r = rig_two(4);
	unsigned nr_rtr;

	script_port(1, false);
	UNTIL(r, verbs_conn_of(r->client.conn)->side[1].held &&
			 verbs_conn_of(r->client.conn)->side[3].held);
	nr_rtr = script.nr_rtr;
	script_port(1, true);
	script_remove(1);
	UNTIL(r, qps_in(&r->client, 1, VERBS_QP_DEAD) == 2);
	assert_int_equal(script.nr_rtr, nr_rtr);
	UNTIL(r, qps_in(&r->server, 1, VERBS_QP_DEAD) == 2);
	put_all(r, 1);
	rig_free(r);
}

/* A peer that asks for more than its share of the control thread's time waits. */
static void mend__waits_for_the_budget(void **state)
{
	struct rig *r = rig_two(4);

	verbs_conn_of(r->client.conn)->budget.due_ns = UINT64_MAX / 2;
	script_break(0);
	turn_for(r, 100000000);
	assert_int_equal(qps_in(&r->client, 0, VERBS_QP_DRAINED), 2);
	verbs_conn_of(r->client.conn)->budget.due_ns = 0;
	UNTIL(r, qps_in(&r->client, 0, VERBS_QP_UP) == 2);
	put_all(r, 1);
	rig_free(r);
}

/* After the patience with a path that was cut has ended, too, the peer gets time to answer. */
static void device__removed_long_after_a_cut(void **state)
{
	struct rig *r = rig_two(4);

	put_half(r, 1);
	script.mute = 1;
	put_whole(r);
	turn_for(r, 6 * TIMEOUT_NS);
	post_box.holds = true;
	script_remove(0);
	UNTIL(r, qps_in(&r->client, 0, VERBS_QP_DEAD) == 2);
	turn_for(r, TIMEOUT_NS);
	assert_false(is_faulty(&r->client) || is_faulty(&r->server));
	post_box_open(r);
	UNTIL(r, qps_in(&r->server, 0, VERBS_QP_DEAD) == 2);
	put_all(r, 2);
	turn_for(r, 6 * TIMEOUT_NS);
	assert_false(is_faulty(&r->client) || is_faulty(&r->server));
	rig_free(r);
}

/* Its queue pairs are given up when the patience ends. */
static void device__does_not_flush(void **state)
{
	for (unsigned device = 0; device < 4; device += 2) {
		struct rig *r = rig_two(4);

		put_half(r, 1);
		script.no_flush = true;
		script_break(device);
		put_whole(r);
		UNTIL(r, qps_in(&r->client, 0, VERBS_QP_DEAD) == 2 &&
				 qps_in(&r->server, 0, VERBS_QP_DEAD) == 2);
		put_all(r, 2);
		turn_for(r, 6 * TIMEOUT_NS);
		assert_false(is_faulty(&r->client) || is_faulty(&r->server));
		script.no_flush = false;
		rig_free(r);
	}
}

/* Immediates that the peer has not heard of do not count twice, nor are they lost: of many small
 * puts, each is told once. */
static void device__removed_among_imms(void **state)
{
	enum { N = 200 };

	for (unsigned device = 0; device < 4; device += 2) {
		struct rig *r = rig_two(4);
		unsigned posted = 0;

		fill(&r->client, 1);
		script.run_max = 2;
		while (posted < N) {
			posted += !post(&r->client, GX_OP_PUT, posted * 4096ull, 4096);
			turn(r);
			if (posted == N / 2)
				script_remove(device);
		}
		script.run_max = 0;
		UNTIL(r, r->client.nr_done == N && r->server.nr_notify >= N);
		turn_for(r, TIMEOUT_NS);
		assert_int_equal(r->server.nr_notify, N);
		assert_int_equal(r->client.nr_failed, 0);
		rig_free(r);
	}
}

/* A put that waits for a device whose registration alone has the memory ends when that is gone. */
static void device__removed_with_the_only_key(void **state)
{
	struct rig *r;

	script.no_reg = 1 << 1;
	r = rig_two(4);
	script.paused = 1 << 0;
	assert_int_equal(post(&r->client, GX_OP_PUT, 0, MEM_B), 0);
	turn(r);
	script_remove(0);
	UNTIL(r, r->client.nr_done == 1);
	assert_int_equal(r->client.status, -ENETUNREACH);
	assert_int_equal(post(&r->client, GX_OP_PUT, 0, MEM_B), -EOPNOTSUPP); /* packets */
	assert_false(is_faulty(&r->client));
	rig_free(r);
}

/* All paths are cut: the connection ends when the patience does. */
static void paths__all_cut(void **state)
{
	struct rig *r = rig_two(4);

	put_half(r, 1);
	script.mute = 3;
	UNTIL(r, is_faulty(&r->client));
	assert_int_equal(atomic_load(&r->client.ep.fault), -ENETUNREACH);
	rig_free(r);
}

/* ---- Memory ---- */

static void reg__refused_by_one(void **state)
{
	struct rig *r;

	for (unsigned device = 0; device < 4; device++) {
		script.no_reg = 1u << device;
		r = rig_two(4);
		put_all(r, device);
		assert_int_equal(script.bytes_of[device % 2], 0);
		assert_int_equal(script.bytes_of[1 - device % 2], MEM_B);
		rig_free(r);
	}
}

static int dmabuf(struct gx_gpu *gpu, const void *ptr, size_t len, int *fd)
{
	*fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	return 0;
}

/* Memory of a GPU goes by the device near it while one queue pair of that works, and by the others
 * else. Host memory goes by all. */
static void gpu__near(void **state)
{
	static const struct gx_gpu_share_ops share = {.dmabuf = dmabuf};
	static struct gx_gpu gpu = {.share = &share, .dma = GX_GPU_DMA_OWN};
	struct rig *r = rig_two(4);
	struct gx_mem host = r->client.mem, *mem = &r->client.mem;
	uint64_t before;

	r->client.conn->agreed.peer_timeout_ns = WAIT_NS; /* so no path is lost for good */
	r->server.conn->agreed.peer_timeout_ns = WAIT_NS;
	mem->kind = GX_MEM_CUDA;
	mem->gpu = &gpu;
	mem->id = 99;
	mem->link[GX_LINK_VERBS] = verbs_mem_new(verbs_rails_of(r->client.gx), mem);
	assert_non_null(mem->link[GX_LINK_VERBS]);
	assert_int_equal(verbs_reg_of(mem)->near, 3); /* nothing is known */
	verbs_reg_of(mem)->near = 1 << 1;
	verbs_mem_keep(verbs_rails_of(r->client.gx), mem->link[GX_LINK_VERBS]);
	put_all(r, 1);
	assert_int_equal(script.bytes_of[0], 0);
	script.run_max = 1;
	assert_int_equal(post(&r->client, GX_OP_PUT, 0, MEM_B), 0);
	turn(r);
	script_port(1, false); /* under way */
	script.run_max = 0;
	UNTIL(r, r->client.nr_done == 2);
	assert_true(script.bytes_of[0] > 0);
	before = script.bytes_of[0];
	put_all(r, 2);
	assert_int_equal(script.bytes_of[0], before + MEM_B);
	script_port(1, true);
	UNTIL(r, path_is_up(r, 1, 2));
	put_all(r, 3);
	assert_int_equal(script.bytes_of[0], before + MEM_B);
	verbs_mem_put(verbs_rails_of(r->client.gx), mem);
	*mem = host;
	put_all(r, 4);
	assert_int_equal(script.bytes_of[0], before + MEM_B + MEM_B / 2);
	rig_free(r);
}

static struct gx_op put_of(struct gx_mem *mem, uint64_t off)
{
	return (struct gx_op){.kind = GX_OP_PUT,
			      .mem = mem,
			      .off = off,
			      .remote_off = off,
			      .len = 4 * CHUNK_B,
			      .token = TOKEN};
}

/* Both paths fail. Bytes of two GPUs, each near the device of the other path, have to go again. The
 * paths work again at the same time. */
static void gpu__near_crosswise(void **state)
{
	struct rig *r = rig_two(2);
	struct gx_mem other = r->client.mem;
	struct gx_op a = put_of(&r->client.mem, 0), b = put_of(&other, MEM_B / 2);

	r->client.conn->agreed.peer_timeout_ns = WAIT_NS;
	r->server.conn->agreed.peer_timeout_ns = WAIT_NS;
	other.id = 99;
	other.link[GX_LINK_VERBS] = verbs_mem_new(verbs_rails_of(r->client.gx), &other);
	assert_non_null(other.link[GX_LINK_VERBS]);
	verbs_mem_keep(verbs_rails_of(r->client.gx), other.link[GX_LINK_VERBS]);
	fill(&r->client, 1);
	script.paused = 3;
	verbs_reg_of(a.mem)->near = 1 << 0; /* as if the other path had been down then */
	verbs_reg_of(b.mem)->near = 1 << 1;
	assert_int_equal(verbs_post(r->client.lane, &a, NULL), 0);
	assert_int_equal(verbs_post(r->client.lane, &b, NULL), 0);
	turn(r);
	verbs_reg_of(a.mem)->near = 1 << 1;
	verbs_reg_of(b.mem)->near = 1 << 0;
	script_break(0);
	script_break(1);
	UNTIL(r, qps_in(&r->client, 0, VERBS_QP_READY) && qps_in(&r->client, 1, VERBS_QP_READY));
	turn(r);
	assert_int_equal(r->client.nr_done, 0);
	script.paused = 0;
	UNTIL(r, r->client.nr_done == 2);
	assert_int_equal(r->client.nr_failed, 0);
	assert_memory_equal(r->client.mem.addr, r->server.mem.addr, a.len);
	assert_memory_equal(r->client.mem.addr + b.off, r->server.mem.addr + b.off, b.len);
	verbs_mem_put(verbs_rails_of(r->client.gx), &other);
	rig_free(r);
}

/* Each has it with the device that the other end has not. */
static void reg__refused_crosswise(void **state)
{
	struct rig *r;

	script.no_reg = 1 << 0 | 1 << 3;
	r = rig_two(4);
	assert_int_equal(post(&r->client, GX_OP_PUT, 0, MEM_B), -EOPNOTSUPP);
	assert_int_equal(post(&r->client, GX_OP_PUT, 0, 32), 0); /* in the request itself */
	UNTIL(r, r->client.nr_done == 1);
	rig_free(r);
	script.no_reg = 3;
	r = rig_two(4);
	assert_null(r->client.mem.link[GX_LINK_VERBS]);
	assert_int_equal(post(&r->client, GX_OP_PUT, 0, MEM_B), -EOPNOTSUPP);
	rig_free(r);
}

/* Only the other path of the connection, where this lane has no queue pair, has the memory. */
static void lane__without_a_path(void **state)
{
	struct verbs_lane *l = calloc(1, sizeof(*l));
	struct gx_op op = {.kind = GX_OP_PUT, .len = MEM_B, .token = TOKEN};
	struct rig *r;

	assert_non_null(l);
	script.no_reg = 1 << 1;
	r = rig_two(4);
	l->core = r->client.core;
	l->ep = &r->client.ep;
	l->region = verbs_conn_of(r->client.conn)->region;
	verbs_paths_lane(r->client.conn, 0, l);
	l->qp_path[0] = l->qp_path[1] = 1;
	assert_int_equal(verbs_qps_open(l, 2), 0);
	op.mem = &r->client.mem;
	assert_int_equal(verbs_post(l, &op, NULL), -EOPNOTSUPP);
	verbs_qps_close(l);
	free(l);
	rig_free(r);
}

/* A key that is wrong: the peer's device refuses, and the operation ends. */
static void key__wrong(void **state)
{
	struct rig *r = rig_two(4);

	verbs_conn_of(r->client.conn)->region[0].rkey[1] += 0x1000;
	assert_int_equal(post(&r->client, GX_OP_PUT, 0, MEM_B), 0);
	UNTIL(r, r->client.nr_done == 1);
	assert_int_equal(r->client.status, -ESTALE);
	UNTIL(r, path_is_up(r, 0, 2) && path_is_up(r, 1, 2));
	rig_free(r);
}

/* ---- A peer that lies ---- */

static int hear(struct rig *r, const struct verbs_hello *h)
{
	static uint8_t b[VERBS_HELLO_MAX];
	struct verbs_hello keep = verbs_conn_of(r->client.conn)->peer;
	int ret = verbs_conn_hear(r->client.conn, b, verbs_hello_put(b, h));

	verbs_conn_of(r->client.conn)->peer = keep;
	return ret;
}

static void hello__lies(void **state)
{
	struct rig *r = rig_two(4);
	struct verbs_hello h = verbs_conn_of(r->client.conn)->peer;

	h.nr_keys = 0; /* which were taken before */
	assert_int_equal(hear(r, &h), 0);
	h.own[0] ^= 1; /* another device of its own */
	assert_int_equal(hear(r, &h), -EPROTO);
	h.own[0] ^= 1;
	h.peer[0] ^= 1; /* of ours */
	assert_int_equal(hear(r, &h), -EPROTO);
	h.peer[0] ^= 1;
	h.nr_qps--;
	assert_int_equal(hear(r, &h), -EPROTO);
	h.nr_qps++;
	h.port[1].gid[12] = 224; /* a group */
	assert_int_equal(hear(r, &h), -EINVAL);
	h.port[1].gid[12] = 10;
	assert_int_equal(hear(r, &h), 0);
	assert_int_equal(r->client.lane->path[0].probe.len, 4096);
	h.probe_key[r->client.lane->path[0].peer] = 0; /* it has none there */
	assert_int_equal(hear(r, &h), 0);
	assert_int_equal(r->client.lane->path[0].probe.len, 0);
	assert_int_equal(r->client.lane->path[1].probe.len, 4096);
	rig_free(r);
}

static void hello__names_no_device(void **state)
{
	static uint8_t b[VERBS_HELLO_MAX];
	struct rig *r = rig_two(4);
	struct verbs_hello h = verbs_conn_of(r->server.conn)->peer; /* of the client */
	struct gx_conn *c = calloc(1, sizeof(*c));

	assert_non_null(c);
	c->gx = r->server.gx;
	h.peer[1] = 2; /* of two */
	assert_int_equal(verbs_conn_open(c, 1, 0, b, verbs_hello_put(b, &h)), -EPROTO);
	verbs_conn_close(c);
	free(c);
	rig_free(r);
}

/* It says that an end is no more, which it may: that of one path, and each once. */
static void mend__gone_of_all(void **state)
{
	struct rig *r = rig_two(4);
	uint8_t b[VERBS_MEND_B];

	verbs_hello_mend_put(b, &(struct verbs_mend){.qp = 4});
	assert_int_equal(verbs_conn_mend(r->client.conn, b, sizeof(b)), -EPROTO);
	for (unsigned k = 0; k < 8; k++) {
		verbs_hello_mend_put(b, &(struct verbs_mend){.qp = k % 4, .taken = UINT32_MAX});
		assert_int_equal(verbs_conn_mend(r->client.conn, b, sizeof(b)), 0);
	}
	UNTIL(r, is_faulty(&r->client));
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(paths__share),
		cmocka_unit_test(paths__text),
		cmocka_unit_test(paths__by_speed),
		cmocka_unit_test(path__is_slow),
		cmocka_unit_test(paths__one_and_two),
		cmocka_unit_test(paths__nets),
		cmocka_unit_test(path__is_cut_from_the_start),
		cmocka_unit_test(path__loses_large_packets_from_the_start),
		cmocka_unit_test(path__port_down),
		cmocka_unit_test(path__cable_cut),
		cmocka_unit_test(path__begins_to_lose_large_packets),
		cmocka_unit_test(path__loses_large_packets_and_is_the_only_one),
		cmocka_unit_test(gid__changes),
		cmocka_unit_test(gid__of_the_only_path_changes),
		cmocka_unit_test(gid__is_asked_for_again),
		cmocka_unit_test(gid__comes_back),
		cmocka_unit_test(gid__moves),
		cmocka_unit_test(gid__none_is_left),
		cmocka_unit_test(gid__of_others),
		cmocka_unit_test(lid__changes),
		cmocka_unit_test(path__comes_back_to_operations),
		cmocka_unit_test(device__removed),
		cmocka_unit_test(device__removed_and_the_peer_is_slow),
		cmocka_unit_test(device__removed_while_its_port_was_down),
		cmocka_unit_test(mend__waits_for_the_budget),
		cmocka_unit_test(device__removed_long_after_a_cut),
		cmocka_unit_test(device__does_not_flush),
		cmocka_unit_test(device__removed_among_imms),
		cmocka_unit_test(device__removed_with_the_only_key),
		cmocka_unit_test(paths__all_cut),
		cmocka_unit_test(reg__refused_by_one),
		cmocka_unit_test(gpu__near),
		cmocka_unit_test(gpu__near_crosswise),
		cmocka_unit_test(reg__refused_crosswise),
		cmocka_unit_test(lane__without_a_path),
		cmocka_unit_test(key__wrong),
		cmocka_unit_test(hello__lies),
		cmocka_unit_test(hello__names_no_device),
		cmocka_unit_test(mend__gone_of_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
