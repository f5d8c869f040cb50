/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts and gets with views between two contexts over the link that the argument names, or (cuda) into and
 * out of memory of a GPU: random pairs of views against a model that moves byte after byte, with all memory
 * around compared; bounds, keys, notes, immediates; and maps that come and go.
 */
#include "kit/common_gx.h"
#include "kit/common_key.h"
#include "kit/common_post.h"
#include "list/list.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MEM_B  (1u << 20)
#define POISON 0xa5
#define WAIT_S 60

static const char *link_name = "packet", *port_name = "shm";
static struct gx *client, *server;
static struct gx_mem *far, *near, *own;
static struct gx_mem *near_gpu; /* has the bytes of near; NULL: no GPU */
static struct gx_conn *conn;
static struct gx_ep *ep;
static struct gx_region kv;
static enum gx_mem_kind far_kind = GX_MEM_HOST;
static uint8_t want[MEM_B], got[MEM_B], near_b[MEM_B];
static _Alignas(4096) uint8_t own_b[MEM_B]; /* a GPU may register its pages */
static uint64_t seed = 7;
static struct common_key keys[2]; /* of the server; the client's, if the connection is sealed */
static char addr[32];
static bool sealed;

static uint64_t rnd(uint64_t n)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (seed >> 33) % n;
}

/* A server, its memory full of @want; and a connection. */
static void server_open(void)
{
	struct gx_opts o = GX_INIT(o);

	o.auth = sealed ? common_key_open(&keys[0], true) : NULL;
	o.packet = GX_WITH(gx_packet_opts, .chunk_b = far_kind == GX_MEM_CUDA ? 16 << 10 : 0);
	o.server = true;
	o.on_conn = common_gx_on_conn;
	assert_int_equal(common_gx_open(o, port_name, &server), 0);
	if (far_kind == GX_MEM_CUDA)
		assert_int_equal(gx_gpu_open(server, 0), 0);
	far = common_gx_kv(server, far_kind, MEM_B);
	memset(own_b, 0, MEM_B);
	assert_int_equal(gx_mem_reg(server, GX_MEM_HOST, 0, own_b, MEM_B, &own), 0);
	assert_int_equal(gx_mem_share(own, "own", GX_ACCESS_PUT), 0);
	assert_int_equal(gx_mem_copy_in(far, 0, want, MEM_B), 0);
	common_gx_listen(server, addr);
	assert_int_equal(gx_core_start(gx_core(server, 0)), 0);
	conn = common_gx_connect(client, addr, link_name);
	ep = gx_conn_ep(conn, 0);
	kv.size = sizeof(kv);
	assert_int_equal(gx_conn_region(conn, "kv", 0, &kv), 0);
}

/* Near memory, and what it has. */
static void memory_open(void)
{
	assert_int_equal(gx_mem_alloc(client, GX_MEM_HOST, 0, MEM_B, &near), 0);
	assert_int_equal(gx_mem_copy_in(near, 0, near_b, MEM_B), 0);
	near_gpu = NULL;
	if (far_kind != GX_MEM_CUDA)
		return;
	assert_int_equal(gx_mem_alloc(client, far_kind, 0, MEM_B, &near_gpu), 0);
	assert_int_equal(gx_mem_copy_in(near_gpu, 0, near_b, MEM_B), 0);
}

static int setup(void **state)
{
	struct gx_opts o = GX_INIT(o);

	o.auth = sealed ? common_key_open(&keys[1], false) : NULL;
	/* Of memory of a GPU most messages are of several chunks. */
	o.packet = GX_WITH(gx_packet_opts, .chunk_b = far_kind == GX_MEM_CUDA ? 16 << 10 : 0);
	assert_int_equal(common_gx_open(o, port_name, &client), 0);
	if (far_kind == GX_MEM_CUDA)
		assert_int_equal(gx_gpu_open(client, 0), 0);
	for (unsigned i = 0; i < MEM_B; i++)
		near_b[i] = (uint8_t)rnd(256);
	memory_open();
	memset(want, POISON, MEM_B);
	server_open();
	return 0;
}

static int teardown(void **state)
{
	gx_close(client);
	gx_close(server);
	if (sealed)
		common_key_close(&keys[1]);
	sealed = false;
	return 0;
}

static int setup_sealed(void **state)
{
	sealed = true;
	return setup(state);
}

/* ---- The model ---- */

static int64_t model_at(const struct gx_view *w, uint64_t i)
{
	uint64_t run;
	int64_t at;

	if (!w)
		return (int64_t)i;
	run = i / w->run_b;
	at = (int64_t)(i % w->run_b);
	for (unsigned d = w->nr_dims; d-- > 0;) {
		at += (int64_t)(run % w->dim[d].count) * w->dim[d].stride_b;
		run /= w->dim[d].count;
	}
	return at + (w->nr_rows ? (int64_t)(w->rows[run] * w->row_b) : 0);
}

/* A view of @len bytes, @len a multiple of 3 * 2^10: dimensions by its factors, steps with gaps in any
 * order, or rows, none twice. */
static struct gx_view view_any(uint64_t len, uint32_t rows[], bool lands)
{
	struct gx_view w = {.run_b = len};
	unsigned nr = (unsigned)rnd(GX_VIEW_DIMS + 1), order[GX_VIEW_DIMS] = {0, 1, 2, 3};
	int64_t step;

	for (unsigned i = 0; i < nr; i++) {
		unsigned by = w.run_b % 3 || rnd(2) ? 1u << (1 + rnd(3)) : 3;

		if (w.run_b % by)
			by = 1;
		w.dim[i].count = by;
		w.run_b /= by;
	}
	if (rnd(2) && !(w.run_b % 16)) {
		w.nr_rows = 16;
		w.run_b /= 16;
		w.rows = rows;
	}
	w.nr_dims = nr;
	step = (int64_t)w.run_b;
	for (unsigned i = 0; i < nr; i++) {
		unsigned k = i + (unsigned)rnd(nr - i), d = order[k];

		order[k] = order[i];
		order[i] = d;
		step += (int64_t)(rnd(2) ? 0 : rnd(30));
		w.dim[d].stride_b = rnd(3) ? step : -step;
		if (!lands && !rnd(6))
			w.dim[d].stride_b = (int64_t)rnd(50); /* a source may overlap */
		step *= (int64_t)w.dim[d].count;
	}
	w.row_b = w.nr_rows ? (uint64_t)step + rnd(20) : 0;
	for (unsigned i = 0; i < w.nr_rows; i++)
		rows[i] = lands ? (i * 7 + 3) % 16 : (uint32_t)rnd(16);
	return w;
}

/* Where the view has to begin, so that it lies in MEM_B, or @miss bytes before or behind it. */
static uint64_t base_of(const struct gx_view *w, uint64_t len, int64_t *lo, int64_t *hi)
{
	*lo = INT64_MAX;
	*hi = INT64_MIN;
	for (uint64_t i = 0; i < len; i++) {
		*lo = GX_MIN(*lo, model_at(w, i));
		*hi = GX_MAX(*hi, model_at(w, i) + 1);
	}
	return (uint64_t) - *lo + rnd(MEM_B - (uint64_t)(*hi - *lo) + 1);
}

/* ---- Posting ---- */

static struct gx_list *views_open(const struct gx_view *local, const struct gx_view *remote)
{
	const struct gx_views views = {local, remote};
	struct gx_list *list;

	if (gx_views_open(client, &views, &list))
		fail_msg("%s", gx_error());
	return list;
}

static struct gx_op put_of(struct gx_list *list, uint64_t off, uint64_t remote_off)
{
	return (struct gx_op){.kind = GX_OP_PUT,
			      .user = 5,
			      .mem = near,
			      .off = off,
			      .token = kv.token,
			      .remote_off = remote_off,
			      .list = list};
}

static void post(const struct gx_op *op)
{
	int ret = common_post(ep, op, 1);

	if (ret < 0)
		fail_msg("%s", gx_error());
	assert_int_equal(ret, 1);
}

static struct gx_comp comp_next(void)
{
	uint64_t end = gx_now() + WAIT_S * 1000000000ull;
	struct gx_comp comp;

	while (!common_poll(gx_core(client, 0), &comp, 1)) {
		assert_true(gx_now() < end);
		gx_core_turn(gx_core(client, 0), gx_now());
	}
	return comp;
}

static void expect(int status, uint64_t len)
{
	struct gx_comp comp = comp_next();

	assert_int_equal(comp.status, status);
	assert_int_equal(comp.kind, GX_COMP_DONE);
	assert_int_equal(comp.user, 5);
	assert_int_equal(comp.len, len);
}

static void far_check(void)
{
	assert_int_equal(gx_mem_copy_out(far, 0, got, MEM_B), 0);
	assert_memory_equal(got, want, MEM_B);
}

/* A packet of so many runs has too many descriptors: it is refused, and lands nowhere. */
static bool far_takes(const struct gx_view *w)
{
	return far_kind == GX_MEM_HOST || !w || w->run_b >= 144;
}

static void model_put(const struct gx_view *l, uint64_t off, const struct gx_view *w,
		      uint64_t remote_off, uint64_t len)
{
	for (uint64_t i = 0; i < len; i++)
		want[(int64_t)remote_off + model_at(w, i)] =
			(uint8_t)near->addr[(int64_t)off + model_at(l, i)];
}

/* ---- Tests ---- */

static void view__random(void **state)
{
	unsigned n = getenv("GX_TEST_FULL") ? 20000 : 400;

	for (unsigned k = 0; k < n; k++) {
		uint64_t len = 3072 * (1 + rnd(rnd(4) ? 6 : 40)), off, remote_off;
		uint32_t rows[2][16];
		struct gx_view v[2] = {view_any(len, rows[0], false), view_any(len, rows[1], true)};
		const struct gx_view *l = rnd(4) ? &v[0] : NULL, *w = rnd(4) || !l ? &v[1] : NULL;
		struct gx_list *list = views_open(l, w);
		int64_t lo, hi;

		off = base_of(l, len, &lo, &hi);
		remote_off = base_of(w, len, &lo, &hi);
		for (unsigned again = 0; again < 1 + rnd(2); again++) {
			struct gx_op op = put_of(list, off, remote_off);
			struct gx_comp comp;

			op.mem = near_gpu && rnd(2) ? near_gpu : near;
			post(&op);
			comp = comp_next();
			if (far_takes(w) || comp.status != -EOPNOTSUPP) {
				assert_int_equal(comp.status, 0);
				assert_int_equal(comp.len, len);
				model_put(l, off, w, remote_off, len);
			}
			far_check();
			remote_off = base_of(w, len, &lo, &hi);
		}
		/* A byte before the region, and a byte behind it. */
		if (rnd(4) == 0) {
			uint64_t bad = rnd(2) ? (uint64_t)-lo - 1 : MEM_B - (uint64_t)hi + 1;
			struct gx_op op = put_of(list, off, bad);

			post(&op);
			expect(-ERANGE, 0);
			far_check();
		}
		gx_list_close(list);
	}
}

/* Out of memory of a GPU into host memory, where runs may be of any length. */
static void view__random_out(void **state)
{
	unsigned n = getenv("GX_TEST_FULL") ? 20000 : 300;
	struct gx_region there = GX_INIT(there);

	if (!near_gpu)
		skip();
	assert_int_equal(gx_conn_region(conn, "own", 0, &there), 0);
	memset(want, 0, MEM_B);
	for (unsigned k = 0; k < n; k++) {
		uint64_t len = 3072 * (1 + rnd(rnd(4) ? 6 : 24)), off, remote_off;
		uint32_t rows[2][16];
		struct gx_view v[2] = {view_any(len, rows[0], false), view_any(len, rows[1], true)};
		const struct gx_view *w = rnd(4) ? &v[1] : NULL;
		struct gx_list *list = views_open(&v[0], w);
		int64_t lo, hi;
		struct gx_op op;

		off = base_of(&v[0], len, &lo, &hi);
		remote_off = base_of(w, len, &lo, &hi);
		op = put_of(list, off, remote_off);
		op.mem = near_gpu;
		op.token = there.token;
		post(&op);
		expect(0, len);
		model_put(&v[0], off, w, remote_off, len);
		assert_memory_equal(own_b, want, MEM_B);
		gx_list_close(list);
	}
}

/* A kernel has no room for so many rows of a chunk: refused in words that a program can act on. */
static void view__rows_too_short(void **state)
{
	static uint32_t rows[1024];
	struct gx_view v = {.run_b = 48, .rows = rows, .nr_rows = 1024, .row_b = 50};
	struct gx_list *list = views_open(&v, NULL);
	struct gx_op op = put_of(list, 0, 0);

	op.mem = near_gpu;
	if (!near_gpu)
		op.mem = near;
	post(&op);
	expect(near_gpu ? -EOPNOTSUPP : 0, near_gpu ? 0 : 48 * 1024);
	gx_list_close(list);
}

/* Gets into memory of this end, of @kind. */
static void random_gets(enum gx_mem_kind kind)
{
	static uint8_t src[MEM_B];
	unsigned n = getenv("GX_TEST_FULL") ? 20000 : 300;
	struct gx_mem *into;

	assert_int_equal(gx_mem_alloc(client, kind, 0, MEM_B, &into), 0);
	for (unsigned i = 0; i < MEM_B; i++)
		src[i] = (uint8_t)rnd(256);
	assert_int_equal(gx_mem_copy_in(far, 0, src, MEM_B), 0);
	assert_int_equal(gx_mem_copy_in(into, 0, want, MEM_B), 0);
	for (unsigned k = 0; k < n; k++) {
		uint64_t len = 3072 * (1 + rnd(rnd(4) ? 6 : 40));
		uint32_t rows[2][16];
		struct gx_view v[2] = {view_any(len, rows[0], true), view_any(len, rows[1], true)};
		const struct gx_view *l = rnd(4) ? &v[0] : NULL, *w = rnd(4) || !l ? &v[1] : NULL;
		struct gx_list *list;
		int64_t lo, hi, far_lo, far_hi;
		struct gx_comp comp;
		struct gx_op op;

		list = views_open(l, w);
		op = put_of(list, base_of(l, len, &lo, &hi), base_of(w, len, &far_lo, &far_hi));
		op.kind = GX_OP_GET;
		op.mem = into;
		if (rnd(4) == 0)
			op.remote_off =
				rnd(2) ? (uint64_t)-far_lo - 1 : MEM_B - (uint64_t)far_hi + 1;
		post(&op);
		comp = comp_next();
		if (kind == GX_MEM_CUDA && comp.status == -EOPNOTSUPP) {
			assert_false(far_takes(l));
		} else if (op.remote_off + (uint64_t)far_lo >= MEM_B ||
			   op.remote_off + (uint64_t)far_hi > MEM_B) {
			assert_int_equal(comp.status, -ERANGE);
		} else {
			assert_int_equal(comp.status, 0);
			assert_int_equal(comp.len, len);
			assert_int_equal(comp.op, GX_OP_GET);
			for (uint64_t i = 0; i < len; i++)
				want[(int64_t)op.off + model_at(l, i)] =
					src[(int64_t)op.remote_off + model_at(w, i)];
		}
		assert_int_equal(gx_mem_copy_out(into, 0, got, MEM_B), 0);
		assert_memory_equal(got, want, MEM_B);
		gx_list_close(list);
	}
	assert_int_equal(gx_mem_copy_out(far, 0, got, MEM_B), 0);
	assert_memory_equal(got, src, MEM_B);
}

static void view__random_gets(void **state)
{
	random_gets(GX_MEM_HOST);
	memset(want, POISON, MEM_B);
	if (far_kind == GX_MEM_CUDA)
		random_gets(far_kind);
}

/* A KV cache: 8 heads of 256 bytes, pages of 16 tokens by token, to pages of 64 tokens by head. Several
 * layers are under way with one map. */
static void view__pages(void **state)
{
	uint32_t from[] = {5, 2, 7, 0}, to[] = {0, 1, 2, 3};
	struct gx_view l = {.run_b = 256,
			    .dim = {{16, 2048}, {8, 256}},
			    .nr_dims = 2,
			    .nr_rows = 4,
			    .rows = from,
			    .row_b = 32768};
	struct gx_view w = {.run_b = 256,
			    .dim = {{16, 256}, {8, 16384}},
			    .nr_dims = 2,
			    .nr_rows = 4,
			    .rows = to,
			    .row_b = 4096};
	uint64_t len = 4 * 16 * 2048;
	struct gx_list *list = views_open(&l, &w);

	for (unsigned i = 0; i < 5; i++) {
		struct gx_op op = put_of(list, i * 100, i * len);

		post(&op);
		model_put(&l, i * 100, &w, i * len, len);
	}
	gx_list_close(list);
	for (unsigned i = 0; i < 5; i++)
		expect(0, len);
	far_check();
	for (unsigned page = 0; page < 4; page++) /* once more, by hand */
		for (unsigned t = 0; t < 16; t++)
			for (unsigned h = 0; h < 8; h++)
				assert_memory_equal(
					got + h * 16384 + (page * 16 + t) * 256,
					near->addr + from[page] * 32768 + t * 2048 + h * 256, 256);
}

/* More views than an endpoint's peer keeps, at once, and in turn: some wait for a place, and some find
 * theirs taken. */
static void view__many_maps(void **state)
{
	enum { MANY = 3 * CORE_MAPS };
	struct gx_list *list[MANY];
	struct gx_view w[MANY];

	for (unsigned i = 0; i < MANY; i++) {
		w[i] = (struct gx_view){
			.run_b = 160, .dim = {{20, 180 + (int64_t)i / 2}}, .nr_dims = 1};
		list[i] = views_open(NULL, &w[i]);
	}
	for (unsigned k = 0; k < 3; k++) {
		for (unsigned i = 0; i < MANY; i++) {
			struct gx_op op = put_of(list[i], i * 9 + k, i * 20000);

			post(&op);
			model_put(NULL, i * 9 + k, &w[i], i * 20000, 3200);
		}
		for (unsigned i = 0; i < MANY; i++)
			expect(0, 3200);
		far_check();
	}
	for (unsigned i = 0; i < MANY; i++)
		gx_list_close(list[i]);
}

/* As many rows as may be: the map fills its place at the peer. */
static void view__most_rows(void **state)
{
	static uint32_t rows[GX_VIEW_ROWS_MAX];
	const struct gx_view w = {
		.run_b = 1, .rows = rows, .nr_rows = GX_VIEW_ROWS_MAX, .row_b = 1};
	struct gx_list *list;
	struct gx_op op;

	_Static_assert(GX_VIEW_ROWS_MAX == MEM_B, "each byte is a row");
	if (far_kind != GX_MEM_HOST)
		skip();
	for (unsigned i = 0; i < GX_VIEW_ROWS_MAX; i++)
		rows[i] = (i * 5 + 11) % GX_VIEW_ROWS_MAX;
	list = views_open(NULL, &w);
	op = put_of(list, 0, 0);
	for (unsigned again = 0; again < 2; again++) {
		post(&op);
		expect(0, MEM_B);
		model_put(NULL, 0, &w, 0, MEM_B);
		far_check();
	}
	gx_list_close(list);
}

static const struct gx_view col = {.run_b = 160, .dim = {{20, 512}}, .nr_dims = 1};

static uint64_t stat_of(const char *name)
{
	uint64_t n;

	assert_int_equal(gx_core_stat(gx_core(client, 0), name, &n), 0);
	return n;
}

/* Into memory that this process has mapped it goes at once, by no message. */
static bool is_straight(void)
{
	return !strcmp(link_name, "local");
}

/* A map costs one message, the first time alone. */
static void view__map_is_kept(void **state)
{
	struct gx_list *list = views_open(NULL, &col);
	uint64_t before = stat_of("msgs_tx"), puts = stat_of("local_puts"), first = 0;

	for (unsigned i = 0; i < 11; i++) {
		struct gx_op op = put_of(list, 0, i);

		post(&op);
		expect(0, 3200);
		model_put(NULL, 0, &col, i, 3200);
		if (!i)
			first = stat_of("msgs_tx");
	}
	assert_int_equal(first - before, is_straight() ? 0 : 2);
	assert_int_equal(stat_of("msgs_tx") - first, is_straight() ? 0 : 10);
	assert_int_equal(stat_of("local_puts") - puts, is_straight() ? 11 : 0);
	gx_list_close(list);
	far_check();
}

static const struct gx_view halves = {.run_b = 16, .dim = {{16384, 32}}, .nr_dims = 1};
static const struct gx_view backward = {.run_b = 64, .dim = {{4096, -128}}, .nr_dims = 1};

/* Each byte is as before, or as the put would have it. */
static void far_may(uint64_t base, uint64_t len)
{
	uint64_t moved = 0;

	assert_int_equal(gx_mem_copy_out(far, 0, got, MEM_B), 0);
	for (uint64_t i = 0; i < len; i++) {
		int64_t at = (int64_t)base + model_at(&backward, i);

		if (got[at] == want[at])
			continue;
		assert_int_equal(got[at], (uint8_t)near->addr[model_at(&halves, i)]);
		want[at] = got[at];
		moved++;
	}
	assert_in_range(moved, 1, len - 1); /* else the case is not what it says */
	far_check();
}

/* A put with short runs takes several turns. It ends in the midst of them: nothing more is moved, and
 * nothing but it was. */
static void view__ends_midway(void **state)
{
	struct gx_list *list;
	uint64_t base = 4095 * 128, len = 16384 * 16;
	struct gx_op op;

	if (!is_straight())
		skip();
	list = views_open(&halves, &backward);
	op = put_of(list, 0, base);
	post(&op);
	gx_core_turn(gx_core(client, 0), gx_now());
	assert_int_equal(gx_cancel(gx_core_queue(gx_core(client, 0)), ep, 5), 1);
	expect(-ECANCELED, 0);
	gx_core_turn(gx_core(client, 0), gx_now());
	far_may(base, len);
	op.deadline_ns = 1;
	post(&op);
	expect(-ETIMEDOUT, 0);
	op.deadline_ns = 0;
	far_check();
	post(&op);
	expect(0, len);
	model_put(&halves, 0, &backward, base, len);
	far_check();
	gx_list_close(list);
}

/* Memory of a peer that is not mapped: packets carry the views. */
static void view__not_mapped(void **state)
{
	struct gx_list *list = views_open(&col, &col);
	struct gx_op op = put_of(list, 3, 4);
	uint64_t misses = stat_of("local_misses");
	struct gx_region there = GX_INIT(there);

	assert_int_equal(gx_conn_region(conn, "own", 0, &there), 0);
	op.token = there.token;
	for (unsigned i = 0; i < 2; i++) {
		post(&op);
		expect(0, 3200);
	}
	assert_int_equal(stat_of("local_misses") - misses, is_straight() ? 5 : 0);
	for (unsigned i = 0; i < MEM_B; i++)
		assert_int_equal(own_b[i], i < 4 || (i - 4) % 512 >= 160 || i >= 4 + 20 * 512
						   ? 0
						   : (uint8_t)near->addr[i - 1]);
	gx_list_close(list);
}

/* ---- In the midst ---- */

/* Runs of 256 bytes, so that memory of a GPU takes them, and of several chunks. */
static const struct gx_view slow_l = {.run_b = 256, .dim = {{1000, 300}}, .nr_dims = 1};
static const struct gx_view slow_w = {.run_b = 256, .dim = {{1000, 400}}, .nr_dims = 1};
#define SLOW_B 256000u

static struct gx_op slow_put(struct gx_list *list)
{
	struct gx_op op = put_of(list, 11, 13);

	op.mem = near_gpu ? near_gpu : near;
	post(&op);
	for (unsigned i = 0; i < 3; i++)
		gx_core_turn(gx_core(client, 0), gx_now());
	return op;
}

/* Each byte is as before, or as the put would have it. */
static void slow_may(void)
{
	assert_int_equal(gx_mem_copy_out(far, 0, got, MEM_B), 0);
	for (uint64_t i = 0; i < SLOW_B; i++) {
		int64_t at = 13 + model_at(&slow_w, i);

		if (got[at] == (uint8_t)near->addr[11 + model_at(&slow_l, i)])
			want[at] = got[at];
	}
	assert_memory_equal(got, want, MEM_B);
}

/* Operation @i of 24: a put or a get, by one endpoint or the other. The places are those of no other one. */
static struct gx_op at_once_op(struct gx_list *const list[2], struct gx_mem *into, unsigned i)
{
	bool gets = i % 4 > 1;
	uint64_t to = (i / 4 * 2 + i % 2) * 40000ull, from = i * 2000;
	struct gx_op op = put_of(list[gets], gets ? to : from, gets ? MEM_B / 2 + from : to);

	op.kind = gets ? GX_OP_GET : GX_OP_PUT;
	op.mem = gets ? into : near_gpu ? near_gpu : near;
	return op;
}

/* Both ways at once, by two endpoints of one core in turn. The peer stands at first, and then this core, so that
 * a socket or ring takes a part of a message, and others come between it and the rest. */
static void view__at_once(void **state)
{
	enum { LEN = 25600, NR = 24 };
	const struct gx_view l = {.run_b = 256, .dim = {{100, 300}}, .nr_dims = 1};
	const struct gx_view w = {.run_b = 256, .dim = {{100, 400}}, .nr_dims = 1};
	struct gx_list *list[] = {views_open(&l, &w), views_open(&w, &l)};
	struct gx_conn *other = common_gx_connect(client, addr, link_name);
	struct gx_ep *eps[] = {ep, gx_conn_ep(other, 0)};
	static uint8_t into_want[MEM_B];
	unsigned nr = 0, posted = 1;
	struct gx_mem *into;

	memset(into_want, 0, MEM_B);
	assert_int_equal(gx_mem_alloc(client, far_kind, 0, MEM_B, &into), 0);
	assert_int_equal(gx_mem_copy_in(into, 0, into_want, MEM_B), 0);
	for (unsigned i = 0; i < MEM_B / 2; i++)
		want[MEM_B / 2 + i] = (uint8_t)rnd(256);
	assert_int_equal(gx_mem_copy_in(far, 0, want, MEM_B), 0);
	for (; posted && nr < 16 * NR; nr += posted) { /* until no more may be out */
		struct gx_op op = at_once_op(list, into, nr % NR);

		posted = (unsigned)common_post(eps[nr % 2], &op, 1);
		gx_core_turn(gx_core(client, 0), gx_now());
		for (uint64_t i = 0; nr < NR && op.kind == GX_OP_GET && i < LEN; i++)
			into_want[(int64_t)op.off + model_at(&w, i)] =
				want[(int64_t)op.remote_off + model_at(&l, i)];
		if (nr < NR && op.kind == GX_OP_PUT)
			model_put(&l, op.off, &w, op.remote_off, LEN);
		for (unsigned i = 0; nr == NR - 1 && i < NR; i++) /* the maps are there */
			expect(0, LEN);
		if (nr == NR - 1)
			gx_core_stop(gx_core(server, 0));
	}
	assert_true(nr >= 2 * NR);
	assert_int_equal(gx_core_start(gx_core(server, 0)), 0);
	usleep(5000);
	for (unsigned k = NR; k < nr; k++)
		expect(0, LEN);
	far_check();
	assert_int_equal(gx_mem_copy_out(into, 0, got, MEM_B), 0);
	assert_memory_equal(got, into_want, MEM_B);
	gx_list_close(list[0]);
	gx_list_close(list[1]);
	gx_conn_close(other);
}

struct poster {
	pthread_t thread;
	struct gx_list *list;
	struct gx_queue *q;
	unsigned index;
	const char *failed; /* NULL: it has not */
};

/* Put after put by a queue of its own. Some have a deadline or are cancelled at any time; the last one ends well. */
static void *poster_run(void *arg)
{
	struct poster *p = arg;
	struct gx_op op = put_of(p->list, 11 + p->index, p->index * MEM_B / 2);
	uint64_t end = gx_now() + WAIT_S * 1000000000ull;
	struct gx_comp comp;

	op.mem = near_gpu ? near_gpu : near;
	for (unsigned i = 0; i <= 60 && !p->failed; i++) {
		op.deadline_ns = i % 3 == 1 && i < 60 ? gx_now() + i * 20000 : 0;
		if (gx_post(p->q, ep, &op, 1) != 1)
			return p->failed = "not taken", NULL;
		if (i % 3 == 2 && i < 60)
			usleep(i * 10);
		if (i % 3 == 2 && i < 60 && gx_cancel(p->q, ep, 5) < 0)
			p->failed = "not cancelled";
		while (!gx_poll(p->q, &comp, 1))
			if (gx_now() > end)
				return p->failed = "it does not end", NULL;
		if (comp.status &&
		    (i == 60 || comp.status != (i % 3 == 1 ? -ETIMEDOUT : -ECANCELED)))
			p->failed = "another status";
	}
	return NULL;
}

/* A core with a thread of its own, and two threads that post to it and poll. */
static void view__threads_post(void **state)
{
	static struct poster posters[2];
	int ret;

	assert_int_equal(gx_core_start(gx_core(client, 0)), 0);
	for (unsigned i = 0; i < 2; i++) {
		posters[i] = (struct poster){.index = i};
		posters[i].list = views_open(&slow_l, &slow_w);
		assert_int_equal(gx_queue_open(client, NULL, &posters[i].q), 0);
		assert_int_equal(pthread_create(&posters[i].thread, NULL, poster_run, &posters[i]),
				 0);
	}
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(pthread_join(posters[i].thread, NULL), 0);
		if (posters[i].failed)
			fail_msg("%s", posters[i].failed);
		while ((ret = gx_queue_close(posters[i].q)) == -EAGAIN)
			usleep(1000);
		assert_int_equal(ret, 0);
		gx_list_close(posters[i].list);
		model_put(&slow_l, 11 + i, &slow_w, i * MEM_B / 2, SLOW_B);
	}
	far_check();
	gx_core_stop(gx_core(client, 0));
}

/* A key for puts into a part alone. */
static void key_make(struct gx_key *key, struct gx_region *region, unsigned access, uint64_t len,
		     uint64_t until_ns)
{
	struct gx_key_opts o = GX_INIT(o);

	o.access = access;
	o.off = 4096;
	o.len = len;
	o.until_ns = until_ns;
	region->size = sizeof(*region);
	assert_int_equal(gx_mem_key(far, &o, key), 0);
	assert_int_equal(gx_conn_key(conn, key, region), 0);
}

/* Keys with a right, a part and a lease; a map of each, which outlives it. One is withdrawn while a put is
 * under way: no byte lands after that, though the sender has more of them gathered. */
static void view__by_limited_keys(void **state)
{
	struct gx_list *put = views_open(&slow_l, &slow_w), *get = views_open(&slow_w, &slow_l);
	uint64_t span = 999 * 400 + 256, end = gx_now() + WAIT_S * 1000000000ull;
	struct gx_region region = GX_INIT(region);
	struct gx_op op = put_of(put, 11, 0);
	struct gx_comp comp = {0};
	struct gx_key key;

	key_make(&key, &region, GX_ACCESS_PUT, span, 0);
	op.mem = near_gpu ? near_gpu : near;
	op.token = region.token;
	for (op.remote_off = 0; op.remote_off < 2; op.remote_off++) {
		post(&op);
		expect(op.remote_off ? -ERANGE : 0, op.remote_off ? 0 : SLOW_B);
	}
	model_put(&slow_l, 11, &slow_w, 4096, SLOW_B);
	far_check();
	op.list = get;
	op.kind = GX_OP_GET;
	op.remote_off = op.off = 0;
	post(&op);
	expect(-EACCES, 0);
	op = put_of(put, 12, 0);
	op.token = region.token;
	op.mem = near_gpu ? near_gpu : near;
	post(&op);
	for (unsigned i = 0; i < 3; i++)
		gx_core_turn(gx_core(client, 0), gx_now());
	assert_int_equal(gx_key_withdraw(server, &key), 0);
	assert_int_equal(gx_mem_copy_out(far, 0, want, MEM_B), 0);
	comp = comp_next();
	assert_true(!comp.status || comp.status == -ESTALE || comp.status == -ECANCELED);
	far_check();
	post(&op);
	expect(-ESTALE, 0);
	key_make(&key, &region, GX_ACCESS_GET, span, gx_now() + 30000000);
	op = put_of(get, 0, 0);
	op.kind = GX_OP_GET;
	op.token = region.token;
	for (comp.status = 0; !comp.status && gx_now() < end;) {
		post(&op);
		comp = comp_next();
	}
	assert_int_equal(comp.status, -ESTALE);
	gx_list_close(put);
	gx_list_close(get);
}

/* The views outlive the peer: to the one that comes after it the map travels anew, and its memory is another. */
static void view__peer_restarts(void **state)
{
	struct gx_list *list = views_open(&col, &col);

	for (unsigned life = 0; life < 3; life++) {
		struct gx_op old = put_of(list, 0, 0);

		for (unsigned i = 0; i < 3; i++) {
			struct gx_op op = put_of(list, 3 * life + i, life + i);
			uint64_t before = stat_of("msgs_tx");

			if (near_gpu)
				op.mem = near_gpu;
			post(&op);
			expect(0, 3200);
			assert_int_equal(stat_of("msgs_tx") - before, is_straight() ? 0
								      : i	    ? 1
										    : 2);
			model_put(&col, op.off, &col, op.remote_off, 3200);
			far_check();
		}
		gx_conn_close(conn);
		gx_close(server);
		memset(want, POISON + (int)life, MEM_B);
		server_open();
		post(&old);
		expect(-ESTALE, 0);
		far_check();
	}
	gx_list_close(list);
}

/* A child that lives on shares the pages of all memory. */
static void view__fork_meanwhile(void **state)
{
	struct gx_list *list = views_open(&slow_l, &slow_w);
	int end[2], status;
	char none;
	pid_t pid;

	assert_int_equal(pipe(end), 0);
	slow_put(list);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		close(end[1]);
		_exit(read(end[0], &none, 1) != 0); /* until the parent closes it */
	}
	expect(0, SLOW_B);
	model_put(&slow_l, 11, &slow_w, 13, SLOW_B);
	far_check();
	slow_put(list);
	expect(0, SLOW_B);
	far_check();
	close(end[0]);
	close(end[1]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	gx_list_close(list);
}

/* The peer's core stands still within a put, and then goes on. */
static void view__core_stops(void **state)
{
	struct gx_list *list = views_open(&slow_l, &slow_w);

	for (unsigned k = 0; k < 3; k++) {
		slow_put(list);
		gx_core_stop(gx_core(server, 0));
		for (unsigned i = 0; i < 200; i++)
			gx_core_turn(gx_core(client, 0), gx_now());
		assert_int_equal(gx_core_start(gx_core(server, 0)), 0);
		expect(0, SLOW_B);
	}
	model_put(&slow_l, 11, &slow_w, 13, SLOW_B);
	far_check();
	gx_list_close(list);
}

/* A put ends early: it is cancelled, its memory is freed, or the connection closes. It moves nothing more then,
 * and a GPU reads freed memory no more: the sanitizer, or the fake, would say so. */
static void view__ends_in_the_midst(void **state)
{
	struct gx_list *list = views_open(&slow_l, &slow_w);
	struct gx_op op = slow_put(list);
	struct gx_comp comp;

	assert_true(gx_cancel(gx_core_queue(gx_core(client, 0)), ep, 5) >= 0);
	comp = comp_next();
	assert_true(!comp.status || comp.status == -ECANCELED);
	op = slow_put(list);
	while (gx_mem_free(op.mem) == -EAGAIN)
		gx_core_turn(gx_core(client, 0), gx_now());
	comp = comp_next();
	assert_true(!comp.status || comp.status == -ECANCELED);
	memory_open();
	slow_may();
	slow_put(list);
	gx_conn_close(conn);
	comp = comp_next();
	assert_true(!comp.status || comp.status == -ECANCELED || comp.status == -ENOTCONN);
	slow_may();
	gx_list_close(list);
}

/* What leaves is what a kernel of the GPU has gathered: of a real one no CPU could read the source. Where it
 * was late the source has changed by the turn that sends. */
static void view__core_reads_no_gpu(void **state)
{
	const struct gx_view v = {.run_b = 256, .dim = {{32, 300}}, .nr_dims = 1};
	static uint8_t other[MEM_B];
	struct gx_list *list;
	struct gx_op op;

	if (!near_gpu || !getenv("GX_FAKE_CUDA"))
		skip();
	list = views_open(&v, NULL);
	op = put_of(list, 0, 0);
	op.mem = near_gpu;
	for (unsigned i = 0; i < 32; i++) {
		op.off = op.remote_off = 100 * i;
		assert_int_equal(gx_mem_copy_in(near_gpu, 0, near_b, MEM_B), 0);
		model_put(&v, op.off, NULL, op.remote_off, 8192);
		post(&op);
		gx_core_turn(gx_core(client, 0), gx_now()); /* the copies are behind its gather */
		assert_int_equal(gx_mem_copy_in(near_gpu, 0, other, MEM_B), 0);
		expect(0, 8192);
		far_check();
	}
	gx_list_close(list);
}

/* The GPU of both ends fails within a put: it ends with that error, as do those after it. */
static void view__gpu_fails(void **state)
{
	struct gx_list *list;
	int status = 0;

	if (!near_gpu || !getenv("GX_FAKE_CUDA"))
		skip();
	list = views_open(&slow_l, &slow_w);
	slow_put(list);
	setenv("GX_FAKE_CUDA_DEAD", "1", 1);
	for (unsigned i = 0; i < 3 && !status; i++) {
		status = comp_next().status;
		if (!status)
			slow_put(list);
	}
	assert_int_equal(status, -EIO);
	unsetenv("GX_FAKE_CUDA_DEAD");
	gx_list_close(list);
}

static struct gx_comp notified;

static bool notify_took(void)
{
	return gx_poll(gx_core_queue(gx_core(server, 0)), &notified, 1);
}

/* The server's core is turned by a thread of gx's; its queue is for that one. So it is stopped. */
static void server_takes(void)
{
	uint64_t end = gx_now() + WAIT_S * 1000000000ull;

	while (!notify_took()) {
		assert_true(gx_now() < end);
		gx_core_turn(gx_core(server, 0), gx_now());
		gx_core_turn(gx_core(client, 0), gx_now());
	}
}

/* An immediate and a note come when all bytes are there. */
static void view__imm_and_note(void **state)
{
	struct gx_list *list = views_open(&col, &col);
	struct gx_op op = put_of(list, 7, 9);

	gx_core_stop(gx_core(server, 0));
	op.flags = GX_OP_IMM;
	op.imm = 0x1234;
	post(&op);
	server_takes();
	assert_int_equal(notified.imm, 0x1234);
	assert_int_equal(notified.token, kv.token);
	assert_int_equal(notified.off, 9);
	model_put(&col, 7, &col, 9, 3200);
	far_check();
	op.flags = GX_OP_NOTE;
	op.off = 8;
	for (unsigned len = 4; len <= 40; len += 36) {
		op.note = "this is a note of more than forty bytes, in all";
		op.note_len = len;
		post(&op);
		server_takes();
		assert_int_equal(notified.note_len, len);
		assert_memory_equal(notified.note, op.note, len);
		model_put(&col, op.off, &col, 9, 3200);
		far_check();
		op.off++;
	}
	assert_int_equal(gx_core_start(gx_core(server, 0)), 0);
	for (unsigned i = 0; i < 3; i++)
		expect(0, 3200);
	gx_list_close(list);
}

/* Refused before a byte moves, with words. */
static void bad(const struct gx_op *op, int err, const char *words)
{
	assert_int_equal(common_post(ep, op, 1), err);
	if (!strstr(gx_error(), words))
		fail_msg("'%s' is not in '%s'", words, gx_error());
}

static void view__refused(void **state)
{
	struct gx_view w = col, twice = {.run_b = 32, .dim = {{50, 512}, {3, 16}}, .nr_dims = 2};
	struct gx_views views = {&col, &twice};
	struct gx_list *list = views_open(&col, &col);
	struct gx_op op = put_of(list, MEM_B - 19 * 512 - 159, 0);
	struct gx_list *no;

	bad(&op, -EINVAL, "outside of the registered memory");
	op.off = 0;
	op.len = 3199;
	bad(&op, -EINVAL, "3200 bytes");
	op.len = 3200;
	op.mem = NULL;
	bad(&op, -EINVAL, "without memory");
	assert_int_equal(gx_views_open(client, &views, &no), -EINVAL);
	assert_non_null(strstr(gx_error(), "remote view: gx_view.dim[1]"));
	views.local = &twice;
	views.remote = &col;
	assert_int_equal(gx_views_open(client, &views, &no), -EINVAL);
	assert_non_null(strstr(gx_error(), "4800 bytes"));
	views.local = &(struct gx_view){.run_b = 160, .dim = {{4, 160}, {5, 0}}, .nr_dims = 2};
	assert_int_equal(gx_views_open(client, &views, &no), 0);
	op = put_of(no, 0, 0);
	op.kind = GX_OP_GET;
	bad(&op, -EINVAL, "gx_view.dim[1]");
	gx_list_close(no);
	w.dim[0].count = 0;
	views.local = &w;
	assert_int_equal(gx_views_open(client, &views, &no), -EINVAL);
	assert_non_null(strstr(gx_error(), "local view: gx_view.dim[0]"));
	views.local = views.remote = NULL;
	assert_int_equal(gx_views_open(client, &views, &no), -EINVAL);
	op = put_of(list, 0, MEM_B - 19 * 512 - 159);
	post(&op);
	expect(-ERANGE, 0);
	op.token ^= 1ull << 40;
	op.remote_off = 0;
	post(&op);
	expect(-ESTALE, 0);
	far_check();
	gx_list_close(list);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(view__pages, setup, teardown),
		cmocka_unit_test_setup_teardown(view__random, setup, teardown),
		cmocka_unit_test_setup_teardown(view__random_out, setup, teardown),
		cmocka_unit_test_setup_teardown(view__random_gets, setup, teardown),
		cmocka_unit_test_setup_teardown(view__rows_too_short, setup, teardown),
		cmocka_unit_test_setup_teardown(view__many_maps, setup, teardown),
		cmocka_unit_test_setup_teardown(view__most_rows, setup, teardown),
		cmocka_unit_test_setup_teardown(view__map_is_kept, setup, teardown),
		cmocka_unit_test_setup_teardown(view__ends_midway, setup, teardown),
		cmocka_unit_test_setup_teardown(view__not_mapped, setup, teardown),
		cmocka_unit_test_setup_teardown(view__imm_and_note, setup, teardown),
		cmocka_unit_test_setup_teardown(view__refused, setup, teardown),
		cmocka_unit_test_setup_teardown(view__peer_restarts, setup, teardown),
		cmocka_unit_test_setup_teardown(view__fork_meanwhile, setup, teardown),
		cmocka_unit_test_setup_teardown(view__core_stops, setup, teardown),
		cmocka_unit_test_setup_teardown(view__ends_in_the_midst, setup, teardown),
		cmocka_unit_test_setup_teardown(view__core_reads_no_gpu, setup, teardown),
		cmocka_unit_test_setup_teardown(view__at_once, setup, teardown),
		cmocka_unit_test_setup_teardown(view__at_once, setup_sealed, teardown),
		cmocka_unit_test_setup_teardown(view__random, setup_sealed, teardown),
		cmocka_unit_test_setup_teardown(view__by_limited_keys, setup, teardown),
		cmocka_unit_test_setup_teardown(view__threads_post, setup, teardown),
		cmocka_unit_test_setup_teardown(view__gpu_fails, setup, teardown),
	};

	if (argc > 1 && !strncmp(argv[argc - 1], "view__", 6))
		cmocka_set_test_filter(argv[--argc]);
	if (argc > 1 && !strcmp(argv[1], "cuda")) {
		far_kind = GX_MEM_CUDA;
		if (!common_gpu_there())
			return 77;
		if (argc > 2)
			link_name = argv[2];
	} else if (argc > 1) {
		link_name = argv[1];
	}
	if (argc > 2 && far_kind == GX_MEM_HOST)
		port_name = argv[2];
	return cmocka_run_group_tests_name(link_name, tests, NULL, NULL);
}
