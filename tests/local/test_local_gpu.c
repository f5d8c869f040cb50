/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The local link with memory of GPUs: two contexts of one process, both turned by this thread, on
 * the first GPU, or the first two. test_local_gpu cuda [FILTER]; exits 77 where there is no GPU, and
 * says why. Between processes: test_cli_gpu.py.
 */
#include "copy/dma.h"
#include "local/link_local.h"
#include "local/local.h"

#include <gxlab/modes.h>

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <unistd.h>

#include <cmocka.h>

#include "kit/common_gx.h"
#include "kit/common_fds.h"
#include "kit/common_vmm.h"
#include "local/local_rig.h"

_Static_assert((int)GX_COPY_KERNEL == (int)DMA_KERNEL, "the value that the library knows");

#define POISON 0x6c

static int devices = 1;
static enum gx_copy_by engine;

static void end_make(struct end *e, bool server)
{
	struct gx_opts o = {.server = server, .gpu = GX_WITH(gx_gpu_opts, .copy = engine)};

	end_open(e, o, "shm");
	assert_int_equal(gx_mem_alloc(e->gx, GX_MEM_CUDA, server ? devices - 1 : 0, KV_B, &e->gpu),
			 0);
	assert_int_equal(gx_mem_share(e->gpu, "gpu", GX_ACCESS_PUT | GX_ACCESS_GET), 0);
}

static int setup(void **state)
{
	struct rig *r = rig_new();

	end_make(&r->server, true);
	end_make(&r->client, false);
	assert_int_equal(rig_connect(r, "local", NULL), 0);
	*state = r;
	return 0;
}

static int teardown(void **state)
{
	rig_free(*state);
	return 0;
}

static uint64_t misses(struct rig *r)
{
	return end_stat(&r->client, "local_misses");
}

static void image(struct gx_mem *mem, uint8_t *bytes)
{
	assert_int_equal(gx_mem_copy_in(mem, 0, bytes, KV_B), 0);
}

/* The whole memory: bytes beside what was moved are guarded too. */
static void image_check(struct rig *r, struct gx_mem *mem)
{
	memset(r->got, 0, KV_B);
	assert_int_equal(gx_mem_copy_out(mem, 0, r->got, KV_B), 0);
	if (memcmp(r->got, r->want, KV_B)) /* which names no byte, in a tenth of the time */
		assert_memory_equal(r->got, r->want, KV_B);
}

static struct gx_op op_make(struct rig *r, enum gx_op_kind kind, struct gx_mem *local,
			    const char *name)
{
	struct gx_region to = GX_INIT(to);
	struct gx_op op = {0};

	assert_int_equal(gx_conn_region(r->client.conn, name, 0, &to), 0);
	op.kind = kind;
	op.mem = local;
	op.token = to.token;
	return op;
}

/* Every length and offset once, both ways, between @local and the server's region @name. */
static void moves(struct rig *r, struct gx_mem *local, struct gx_mem *remote, const char *name)
{
	static const uint64_t len[] = {1, 15, 16, 17, 4095, 4096, 65536, 65537, 1000003, 3u << 20};
	uint8_t *bytes = malloc(KV_B);

	for (uint64_t k = 0; k < KV_B; k++)
		bytes[k] = (uint8_t)(k * 167 >> 4 ^ k);
	for (unsigned i = 0; i < 20; i++) {
		bool put = i & 1;
		struct gx_mem *src = put ? local : remote, *dst = put ? remote : local;
		struct gx_op op = op_make(r, put ? GX_OP_PUT : GX_OP_GET, local, name);

		image(src, bytes);
		memset(r->want, POISON, KV_B);
		image(dst, r->want);
		op.len = len[i / 2];
		op.off = i * 7;
		op.remote_off = 4096 + i * 3;
		memcpy(r->want + (put ? op.remote_off : op.off),
		       bytes + (put ? op.off : op.remote_off), op.len);
		r->client.nr_done = 0;
		assert_int_equal(common_post(r->client.ep, &op, 1), 1);
		UNTIL(r, r->client.nr_done == 1);
		assert_int_equal(r->client.nr_failed, 0);
		image_check(r, dst);
	}
	free(bytes);
}

static void moves__gpu_to_gpu(void **state)
{
	struct rig *r = *state;

	moves(r, r->client.gpu, r->server.gpu, "gpu");
	assert_int_equal(misses(r), 0);
}

static void moves__gpu_to_host(void **state)
{
	struct rig *r = *state;

	moves(r, r->client.gpu, r->server.kv, "kv");
	assert_int_equal(misses(r), 0);
}

static void moves__host_to_gpu(void **state)
{
	struct rig *r = *state;

	moves(r, r->client.kv, r->server.gpu, "gpu");
	assert_int_equal(misses(r), 0);
}

/* A list of short segments at places that follow no order, and two long ones, both ways. */
static void list_moves(struct rig *r, struct gx_mem *local, struct gx_mem *remote, const char *name)
{
	for (unsigned put = 0; put < 2; put++) {
		struct gx_mem *src = put ? local : remote, *dst = put ? remote : local;
		struct gx_op op = op_make(r, put ? GX_OP_PUT : GX_OP_GET, NULL, name);
		uint8_t *bytes = malloc(KV_B);
		struct gx_seg segs[602];

		for (uint64_t k = 0; k < KV_B; k++)
			bytes[k] = (uint8_t)(k * 151 >> 5 ^ k ^ put);
		image(src, bytes);
		memset(r->want, POISON, KV_B);
		image(dst, r->want);
		for (unsigned i = 0; i < GX_ARRAY_SIZE(segs); i++) {
			uint64_t len = i < 600 ? 1 + i * 37 % 4000 : 300000;
			uint64_t from = i < 600 ? i * 211 % 601 * 4100 : (i - 590) * 300100ull;
			uint64_t to = i < 600 ? i * 97 % 600 * 4000 : (i - 591) * 300200ull;

			segs[i] = (struct gx_seg){.mem = local,
						  .off = put ? from : to,
						  .token = op.token,
						  .remote_off = put ? to : from,
						  .len = len};
			memcpy(r->want + to, bytes + from, len);
		}
		op.token = 0;
		op.segs = segs;
		op.nr_segs = GX_ARRAY_SIZE(segs);
		r->client.nr_done = 0;
		assert_int_equal(common_post(r->client.ep, &op, 1), 1);
		UNTIL(r, r->client.nr_done == 1);
		assert_int_equal(r->client.nr_failed, 0);
		image_check(r, dst);
		free(bytes);
	}
	assert_int_equal(misses(r), 0);
}

static void list__gpu_to_gpu(void **state)
{
	struct rig *r = *state;

	list_moves(r, r->client.gpu, r->server.gpu, "gpu");
}

static void list__with_host(void **state)
{
	struct rig *r = *state;

	list_moves(r, r->client.gpu, r->server.kv, "kv");
	list_moves(r, r->client.kv, r->server.gpu, "gpu");
}

/* ---- From view to view ---- */

static int64_t view_at_of(const struct gx_view *w, uint64_t i)
{
	uint64_t run = i / w->run_b;
	int64_t at = (int64_t)(i % w->run_b);

	for (unsigned d = w->nr_dims; d-- > 0;) {
		at += (int64_t)(run % w->dim[d].count) * w->dim[d].stride_b;
		run /= w->dim[d].count;
	}
	return at + (w->nr_rows ? (int64_t)(w->rows[run] * w->row_b) : 0);
}

/* Put what each of @parts lanes would have of @op. */
static void view_put(struct rig *r, const struct gx_op *op, unsigned parts)
{
	struct gx_list *part[2];
	struct list_pool pool = {0};
	struct gx_op whole = *op, one = *op;
	int n = list_split(r->client.gx, &pool, &whole, parts, part);

	assert_in_range(n, 1, parts);
	r->client.nr_done = 0;
	for (int i = 0; i < n; i++) {
		one.list = part[i];
		assert_int_equal(common_post(r->client.ep, &one, 1), 1);
	}
	UNTIL(r, r->client.nr_done == (unsigned)n);
	assert_int_equal(r->client.nr_failed, 0);
	while (n > 0)
		list_put(part[--n]);
	list_pool_end(&pool);
}

/* One put, in one part and in two; all of the destination is compared. */
static void view_move_one(struct rig *r, struct gx_mem *from, struct gx_mem *to, const char *name,
			  const struct gx_view *l, const struct gx_view *w, uint64_t base[2])
{
	struct gx_op op = op_make(r, GX_OP_PUT, from, name);
	struct gx_views views = {l, w};
	uint8_t *bytes = malloc(KV_B), *poison = malloc(KV_B);
	struct gx_list *list;

	if (gx_views_open(r->client.gx, &views, &list))
		fail_msg("%s", gx_error());
	for (uint64_t k = 0; k < KV_B; k++)
		bytes[k] = (uint8_t)(k * 151 >> 5 ^ k);
	image(from, bytes);
	memset(r->want, POISON, KV_B);
	memset(poison, POISON, KV_B);
	op.list = list;
	op.off = base[0];
	op.remote_off = base[1];
	for (uint64_t i = 0; i < list->len; i++)
		r->want[(int64_t)base[1] + view_at_of(w, i)] =
			bytes[(int64_t)base[0] + view_at_of(l, i)];
	for (unsigned parts = 1; parts <= 2; parts++) {
		image(to, poison);
		view_put(r, &op, parts);
		image_check(r, to);
	}
	gx_list_close(list);
	free(poison);
	free(bytes);
}

/* Heads and tokens in another order; words of 16, 4 and 1 bytes; runs of other lengths, backward; more
 * rows than one launch has; a run longer than a tile. */
static void view_moves(struct rig *r, struct gx_mem *from, struct gx_mem *to, const char *name)
{
	static uint32_t some[3][75000];
	const struct gx_view pages[2] = {{.run_b = 256,
					  .dim = {{16, 2048}, {8, 256}},
					  .nr_dims = 2,
					  .rows = some[0],
					  .nr_rows = 60,
					  .row_b = 32768},
					 {.run_b = 256,
					  .dim = {{16, 256}, {8, 16384}},
					  .nr_dims = 2,
					  .rows = some[1],
					  .nr_rows = 60,
					  .row_b = 131072}};
	const struct gx_view odd[2] = {
		{.run_b = 36, .dim = {{40, 200}, {7, -40}, {3, 9000}}, .nr_dims = 3},
		{.run_b = 252, .dim = {{20, 256}, {6, 6000}}, .nr_dims = 2}};
	const struct gx_view bytes[2] = {{.run_b = 15, .dim = {{100, 40}, {3, 5000}}, .nr_dims = 2},
					 {.run_b = 9, .dim = {{500, 11}}, .nr_dims = 1}};
	const struct gx_view rows[2] = {
		{.run_b = 64, .rows = some[2], .nr_rows = 75000, .row_b = 64},
		{.run_b = 16,
		 .dim = {{4, 16}},
		 .nr_dims = 1,
		 .rows = some[1],
		 .nr_rows = 75000,
		 .row_b = 80}};
	const struct gx_view whole[2] = {{.run_b = 1 << 20, .dim = {{3, 2 << 20}}, .nr_dims = 1},
					 {.run_b = 3 << 20, .dim = {{1, 0}}, .nr_dims = 1}};
	const struct gx_view *const all[] = {pages, odd, bytes, rows, whole};

	for (uint32_t i = 0; i < 75000; i++) {
		some[0][i] = i * 7 % 60;
		some[1][i] = i;
		some[2][i] = i * 77 % 75000;
	}
	for (unsigned k = 0; k < GX_ARRAY_SIZE(all); k++) {
		uint64_t base[2] = {k == 1 ? 400 : k == 2 ? 3 : 256, k == 1 ? 516 : 512 + k % 3};

		base[1] &= all[k] == bytes ? ~0ull : ~3ull;
		view_move_one(r, from, to, name, &all[k][0], &all[k][1], base);
	}
	assert_int_equal(misses(r), 0);
}

static void view__gpu_to_gpu(void **state)
{
	struct rig *r = *state;

	if (engine != GX_COPY_AUTO) /* all do it by the same kernel, but CE, which has none */
		skip();
	view_moves(r, r->client.gpu, r->server.gpu, "gpu");
}

static void view__with_host(void **state)
{
	struct rig *r = *state;

	if (engine != GX_COPY_AUTO)
		skip();
	view_moves(r, r->client.gpu, r->server.kv, "kv");
	view_moves(r, r->client.kv, r->server.gpu, "gpu");
}

/* Each ends once; launches that have begun are waited for, and no others follow. */
static void view__cancel(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_make(r, GX_OP_PUT, r->client.gpu, "gpu");
	static uint32_t rows[1 << 19];
	struct gx_view v = {.run_b = 16, .rows = rows, .nr_rows = 1 << 19, .row_b = 16};
	struct gx_views views = {&v, &v};
	unsigned n = 0;
	int found;

	if (engine != GX_COPY_AUTO)
		skip();
	for (uint32_t i = 0; i < 1 << 19; i++)
		rows[i] = i;
	assert_int_equal(gx_views_open(r->client.gx, &views, &op.list), 0);
	op.user = 77;
	while (n < 20 && common_post(r->client.ep, &op, 1) == 1)
		n++;
	found = common_cancel(r->client.ep, 77);
	assert_int_equal(found, n);
	UNTIL(r, r->client.nr_done == n);
	assert_int_equal(r->client.nr_failed, n);
	assert_int_equal(r->client.status, -ECANCELED);
	assert_int_equal(misses(r), 0);
	gx_list_close(op.list);
}

/* Others that follow, however many, leave none behind. */
static void view__oldest_has_its_turn(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_make(r, GX_OP_PUT, r->client.gpu, "gpu");
	struct gx_view v = {.run_b = 64, .dim = {{100, 128}}, .nr_dims = 1};
	struct gx_views views = {&v, &v};
	struct gx_comp c[16];
	unsigned old = 0, n = 0;
	int got;

	if (engine != GX_COPY_AUTO)
		skip();
	assert_int_equal(gx_views_open(r->client.gx, &views, &op.list), 0);
	for (op.user = 0; op.user < 16; op.user++)
		assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	for (uint64_t end = gx_now() + WAIT_NS; n < 400 && gx_now() < end; sched_yield()) {
		gx_core_turn(r->client.core, gx_now());
		got = common_poll(r->client.core, c, 16);
		n += (unsigned)got;
		for (int i = 0; i < got; i++) {
			assert_int_equal(c[i].status, 0);
			old += c[i].user < 16;
			op.user = 16;
			assert_int_equal(common_post(r->client.ep, &op, 1), 1);
		}
	}
	assert_int_equal(old, 16);
	r->client.nr_done = 0;
	UNTIL(r, r->client.nr_done == 16);
	gx_list_close(op.list);
}

/* Memory that no copy engine knows goes by packets. */
static void moves__plain_to_gpu(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_make(r, GX_OP_PUT, NULL, "gpu");

	memset(r->want, 0, KV_B);
	memset(r->want, 0x31, 100000);
	op.addr = r->want;
	op.len = 100000;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	UNTIL(r, r->client.nr_done == 1);
	assert_int_equal(r->client.nr_failed, 0);
	assert_int_equal(misses(r), 1);
	image_check(r, r->server.gpu);
}

/* The peer is told when the bytes are there, not before. */
static void notify__after_the_data(void **state)
{
	struct rig *r = *state;

	for (unsigned i = 1; i <= 50; i++) {
		struct gx_op op = op_make(r, GX_OP_PUT, r->client.gpu, "gpu");
		uint64_t len = i % 2 ? 4096 : 1 << 20;

		memset(r->want, (int)i, KV_B);
		image(r->client.gpu, r->want);
		op.len = len;
		op.flags = GX_OP_IMM;
		op.imm = i;
		assert_int_equal(common_post(r->client.ep, &op, 1), 1);
		UNTIL(r, r->server.nr_notify == i);
		assert_int_equal(gx_mem_copy_out(r->server.gpu, 0, r->got, len), 0);
		assert_memory_equal(r->got, r->want, len);
		assert_int_equal(r->server.notify.imm, i);
		assert_int_equal(r->server.notify.len, len);
	}
}

static void post__more_than_fit(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_make(r, GX_OP_PUT, r->client.gpu, "gpu");
	unsigned n = 0;

	for (uint64_t i = 0; i < KV_B; i++)
		r->want[i] = (uint8_t)(i >> 12 ^ i);
	image(r->client.gpu, r->want);
	op.len = 4096;
	op.flags = GX_OP_LOCAL;
	while (n < KV_B / 4096) {
		op.off = op.remote_off = n * 4096ull;
		n += (unsigned)common_post(r->client.ep, &op, 1);
		end_turn(&r->client);
	}
	UNTIL(r, r->client.nr_done == n);
	assert_int_equal(r->client.nr_failed, 0);
	image_check(r, r->server.gpu);
}

/* Each ends once; what a copy engine has begun is waited for. */
static void cancel__many(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_make(r, GX_OP_PUT, r->client.gpu, "gpu");
	unsigned n = 0;
	int found;

	op.len = 1 << 20;
	op.user = 77;
	while (n < 100 && common_post(r->client.ep, &op, 1) == 1)
		n++;
	found = common_cancel(r->client.ep, 77);
	assert_true(found > 0);
	UNTIL(r, r->client.nr_done == n);
	assert_int_equal(r->client.nr_failed, found);
	assert_int_equal(r->client.status, -ECANCELED);
	assert_int_equal(common_cancel(r->client.ep, 77), 0);
}

static void deadline__that_has_passed(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_make(r, GX_OP_PUT, r->client.gpu, "gpu");

	op.len = 1 << 20;
	op.deadline_ns = 1;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	UNTIL(r, r->client.nr_done == 1);
	/* A turn looks at deadlines before it takes what copies have ended. */
	assert_int_equal(r->client.nr_failed, 1);
	assert_int_equal(r->client.status, -ETIMEDOUT);
}

static void close__under_operations(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_make(r, GX_OP_PUT, r->client.gpu, "gpu");
	unsigned n = 0;

	op.len = KV_B;
	while (n < 20 && common_post(r->client.ep, &op, 1) == 1)
		n++;
	gx_conn_close(r->client.conn);
	UNTIL(r, r->client.nr_done == n);
	assert_true(n > 0);
}

/* One more connection; a put over it must be in @to. */
static struct gx_conn *more_puts(struct rig *r, struct gx_mem *to)
{
	struct gx_conn *c = rig_connect_more(r);
	struct gx_region kv = GX_INIT(kv);
	struct gx_op op = {0};

	assert_int_equal(gx_conn_region(c, "gpu", 0, &kv), 0);
	memset(r->want, ++r->seed, KV_B);
	image(r->client.gpu, r->want);
	op.kind = GX_OP_PUT;
	op.mem = r->client.gpu;
	op.len = KV_B;
	op.token = kv.token;
	r->client.nr_done = 0;
	assert_int_equal(common_post(gx_conn_ep(c, 0), &op, 1), 1);
	UNTIL(r, r->client.nr_done == 1);
	assert_int_equal(r->client.nr_failed, 0);
	image_check(r, to);
	return c;
}

/* A second connection imports nothing; what was freed and made again under its name is another. */
static void maps__once_and_anew(void **state)
{
	struct rig *r = *state;
	struct gx_conn *c[3];
	struct gx_mem *again;

	assert_int_equal(end_ctl_stat(&r->client, GX_STAT_MAPS_MADE), 2);
	c[0] = more_puts(r, r->server.gpu);
	c[1] = more_puts(r, r->server.gpu);
	assert_int_equal(end_ctl_stat(&r->client, GX_STAT_MAPS_MADE), 2);
	assert_int_equal(end_ctl_stat(&r->client, GX_STAT_MAPS_FOUND), 4);
	gx_mem_free(r->server.gpu);
	assert_int_equal(gx_mem_alloc(r->server.gx, GX_MEM_CUDA, devices - 1, KV_B, &again), 0);
	assert_int_equal(gx_mem_share(again, "gpu", GX_ACCESS_PUT | GX_ACCESS_GET), 0);
	c[2] = more_puts(r, again);
	assert_int_equal(end_ctl_stat(&r->client, GX_STAT_MAPS_MADE), 3);
	assert_int_equal(end_ctl_stat(&r->client, GX_STAT_MAPS), 3);
	for (unsigned i = 0; i < 3; i++)
		gx_conn_close(c[i]);
	UNTIL(r, end_ctl_stat(&r->client, GX_STAT_MAPS) == 2);
	gx_conn_close(r->client.conn);
	UNTIL(r, end_ctl_stat(&r->client, GX_STAT_MAPS) == 0);
}

static bool pairs_are(const struct local_pairs *all, unsigned theirs, int state)
{
	return all->pair[1][theirs].state == state && all->pair[theirs][1].state == state &&
	       all->pair[0][theirs].state == state && all->pair[1][0].state == state &&
	       all->pair[0][1].state == state;
}

/* Each pair of places that the connection made possible, once; nothing that was not asked for. */
static void pairs__timed_once(void **state)
{
	struct rig *r = *state;
	const struct local_pairs *all = local_ctx(r->client.gx)->pairs;
	unsigned theirs = (unsigned)devices;
	int want = engine == GX_COPY_AUTO ? LOCAL_PAIR_TIMED : 0;
	struct local_pair seen;
	char text[8192];

	/* A busy machine may take several connections for all of them. */
	for (unsigned i = 0; i < 200 && !pairs_are(all, theirs, want); i++)
		more_puts(r, r->server.gpu);
	more_puts(r, r->server.gpu);
	seen = all->pair[1][theirs];
	assert_true(pairs_are(all, theirs, want));
	assert_int_equal(all->pair[0][0].state, LOCAL_PAIR_NEW);
	assert_int_equal(all->pair[1][3].state, LOCAL_PAIR_NEW);
	more_puts(r, r->server.gpu);
	assert_int_equal(all->pair[1][theirs].ce_ns, seen.ce_ns);
	assert_true(gx_describe(r->client.gx, text, sizeof(text)) > 0);
	assert_non_null(strstr(text, engine == GX_COPY_AUTO ? "host to cuda:0: 4 KiB alone: copy"
							    : "as asked for"));
	if (want)
		assert_int_equal(seen.kernel, seen.resident_ns < seen.ce_ns);
}

/* The fake driver alone can do that. */
/* ---- memory that the program allocated, in many pieces ---- */

static struct vmm seg[2];

/* A region that begins in the first chunk and ends in the last. */
static struct gx_mem *seg_reg(struct gx *gx, struct vmm *v)
{
	struct gx_mem *mem;

	*v = vmm_open(KV_B / VMM_CHUNK_B + 1);
	assert_int_equal(gx_mem_reg(gx, GX_MEM_CUDA, 0, vmm_at(v, 4096), KV_B, &mem), 0);
	return mem;
}

static int seg_setup(void **state)
{
	struct rig *r = rig_new();

	end_open(&r->server,
		 (struct gx_opts){.server = true, .gpu = GX_WITH(gx_gpu_opts, .copy = engine)},
		 "shm");
	end_open(&r->client, (struct gx_opts){.gpu = GX_WITH(gx_gpu_opts, .copy = engine)}, "shm");
	r->server.gpu = seg_reg(r->server.gx, &seg[0]);
	r->client.gpu = seg_reg(r->client.gx, &seg[1]);
	assert_int_equal(gx_mem_share(r->server.gpu, "gpu", GX_ACCESS_PUT | GX_ACCESS_GET), 0);
	assert_int_equal(rig_connect(r, "local", NULL), 0);
	*state = r;
	return 0;
}

static int seg_teardown(void **state)
{
	rig_free(*state);
	vmm_close(&seg[0]);
	vmm_close(&seg[1]);
	return 0;
}

/* A second connection finds the mapping, and what was registered anew is another. */
static void seg_maps__once_and_anew(void **state)
{
	struct rig *r = *state;
	struct gx_conn *c = more_puts(r, r->server.gpu);
	struct gx_mem *again;

	assert_int_equal(end_ctl_stat(&r->client, GX_STAT_MAPS_MADE), 2);
	gx_conn_close(c);
	assert_int_equal(gx_mem_free(r->server.gpu), 0);
	assert_int_equal(
		gx_mem_reg(r->server.gx, GX_MEM_CUDA, 0, vmm_at(&seg[0], 4096), KV_B, &again), 0);
	assert_int_equal(gx_mem_share(again, "gpu", GX_ACCESS_PUT | GX_ACCESS_GET), 0);
	c = more_puts(r, again);
	assert_int_equal(end_ctl_stat(&r->client, GX_STAT_MAPS_MADE), 3);
	gx_conn_close(c);
	gx_conn_close(r->client.conn);
	UNTIL(r, end_ctl_stat(&r->client, GX_STAT_MAPS) == 0);
}

/* Memory that nobody can share: packets, and both ends say so, or an error where that was asked for. */
static void seg_share__without_a_type(void **state)
{
	struct gx_conn_info info = GX_INIT(info);
	struct rig *r = rig_new();
	struct vmm v = vmm_reserve(1);
	struct gx_mem *mem;
	unsigned both = GX_ACCESS_PUT | GX_ACCESS_GET;

	vmm_map(&v, 0);
	end_open(&r->server, (struct gx_opts){.server = true}, "shm");
	end_open(&r->client, (struct gx_opts){0}, "shm");
	assert_int_equal(gx_gpu_open(r->client.gx, 0), 0);
	assert_int_equal(gx_mem_reg(r->server.gx, GX_MEM_CUDA, 0, vmm_at(&v, 0), VMM_CHUNK_B, &mem),
			 0);
	assert_int_equal(gx_mem_share(mem, "gpu", both | GX_ACCESS_MAPPED), -EOPNOTSUPP);
	assert_non_null(strstr(gx_error(), "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=0"));
	assert_int_equal(gx_mem_share(mem, "gpu", GX_ACCESS_GET | GX_ACCESS_MAPPED), -EOPNOTSUPP);
	assert_non_null(strstr(gx_error(), "allow puts"));
	assert_int_equal(gx_mem_share(mem, "gpu", both), 0);
	assert_int_equal(rig_connect(r, "local", NULL), 0);
	assert_int_equal(gx_conn_info(r->client.conn, &info), 0);
	assert_non_null(
		strstr(info.why, "1 of the peer's 2 regions by packets: not mapped: 'gpu': "));
	rig_free(r);
	vmm_close(&v);
}

/* A peer that has no GPU open would send packets. The owner demands that it does not. */
static void seg_share__to_a_peer_without_a_gpu(void **state)
{
	struct gx_conn_info info = GX_INIT(info);
	struct rig *r = rig_new();

	end_open(&r->server, (struct gx_opts){.server = true}, "shm");
	end_open(&r->client, (struct gx_opts){0}, "shm");
	r->server.gpu = seg_reg(r->server.gx, &seg[0]);
	assert_int_equal(gx_mem_share(r->server.gpu, "gpu",
				      GX_ACCESS_PUT | GX_ACCESS_GET | GX_ACCESS_MAPPED),
			 0);
	assert_int_equal(rig_connect(r, "local", NULL), -EOPNOTSUPP);
	assert_int_equal(gx_conn_info(r->client.conn, &info), 0);
	assert_int_equal(info.reason, GX_REASON_LINK);
	assert_non_null(strstr(info.text, "GX_ACCESS_MAPPED"));
	assert_non_null(strstr(info.text, "gx_gpu_open()"));
	gx_conn_close(r->client.conn);
	assert_int_equal(gx_gpu_open(r->client.gx, 0), 0);
	gx_conn_close(rig_connect_more(r));
	rig_free(r);
	vmm_close(&seg[0]);
}

/* ---- a GPU that is opened while cores run ---- */

/* One core is on a thread of gx, the other is this thread's, and both have a connection up. */
static void gpu_open__while_cores_run(void **state)
{
	struct rig *r = rig_new();

	end_open(&r->server, (struct gx_opts){.server = true}, "shm");
	end_open(&r->client, (struct gx_opts){0}, "shm");
	assert_int_equal(rig_connect(r, "local", NULL), 0);
	end_turn(&r->client);
	assert_int_equal(gx_core_start(r->server.core), 0);
	r->server.gpu = seg_reg(r->server.gx, &seg[0]);
	r->client.gpu = seg_reg(r->client.gx, &seg[1]);
	assert_int_equal(gx_mem_share(r->server.gpu, "gpu",
				      GX_ACCESS_PUT | GX_ACCESS_GET | GX_ACCESS_MAPPED),
			 0);
	gx_core_stop(r->server.core);
	gx_conn_close(more_puts(r, r->server.gpu));
	assert_int_equal(misses(r), 0);
	seg_teardown((void **)&r);
}

struct turner {
	struct gx_core *core;
	_Atomic unsigned turns, wanted;
};

static void *turner_main(void *arg)
{
	struct turner *t = arg;

	while (t->wanted)
		if (t->turns < t->wanted) {
			gx_core_turn(t->core, gx_now());
			t->turns++;
		} else {
			sched_yield();
		}
	return NULL;
}

/* A thread of the program that stands still: the GPU is open when its core has had a turn. */
static void gpu_open__a_core_without_turns(void **state)
{
	struct turner t = {.wanted = 1};
	struct rig *r = rig_new();
	pthread_t thread;

	end_open(&r->client, (struct gx_opts){0}, "shm");
	t.core = r->client.core;
	assert_int_equal(pthread_create(&thread, NULL, turner_main, &t), 0);
	while (t.turns < 1)
		sched_yield();
	assert_int_equal(gx_gpu_open(r->client.gx, 0), -EAGAIN);
	assert_non_null(strstr(gx_error(), "have the core turned"));
	t.wanted = 2;
	assert_int_equal(gx_gpu_open(r->client.gx, 0), 0);
	t.wanted = 0;
	pthread_join(thread, NULL);
	rig_free(r);
}

/* ---- keys: memory of a GPU that no region names ---- */

#define PART_AT 4096u
#define PART_B	((uint64_t)2 << 20)

/* All of the part by its key, from memory of the client's GPU and back. */
static void key_moves(struct rig *r, struct gx_mem *whole, uint64_t token)
{
	struct gx_op op = {.kind = GX_OP_PUT, .mem = r->client.gpu, .token = token, .len = PART_B};
	uint64_t before = misses(r);

	image(whole, memset(r->want, 0x0e, KV_B));
	for (uint64_t i = 0; i < KV_B; i++)
		r->got[i] = (uint8_t)(i * 13 + 5);
	image(r->client.gpu, r->got);
	memcpy(r->want + PART_AT, r->got, PART_B);
	r->client.nr_done = r->client.nr_failed = 0;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	UNTIL(r, r->client.nr_done == 1);
	assert_int_equal(r->client.nr_failed, 0);
	image_check(r, whole);
	image(r->client.gpu, memset(r->got, 0, KV_B));
	op.kind = GX_OP_GET;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	UNTIL(r, r->client.nr_done == 2);
	assert_int_equal(gx_mem_copy_out(r->client.gpu, 0, r->got, PART_B), 0);
	assert_memory_equal(r->got, r->want + PART_AT, PART_B);
	assert_int_equal(misses(r), before);
}

static int old_run(void *arg)
{
	return local_conn_of(arg)->old != NULL;
}

static void key__of_gpu_memory(void **state)
{
	struct rig *r = *state;
	struct gx_region region = GX_INIT(region);
	struct gx_key_opts o = GX_INIT(o);
	struct gx_op op = {.kind = GX_OP_PUT, .mem = r->client.gpu, .len = PART_B};
	struct gx_key key, more;
	struct gx_mem *mem;
	uint64_t made, maps;
	unsigned n = 0;

	assert_int_equal(gx_mem_alloc(r->server.gx, GX_MEM_CUDA, devices - 1, KV_B, &mem), 0);
	o.access = GX_ACCESS_PUT | GX_ACCESS_GET;
	o.off = PART_AT;
	o.len = PART_B;
	assert_int_equal(gx_mem_key(mem, &o, &key), 0);
	assert_int_equal(gx_conn_key(r->client.conn, &key, &region), 0);
	UNTIL(r, local_map_of(local_conn_of(r->client.conn), region.token));
	key_moves(r, mem, region.token);
	/* Another one needs no descriptor while the mapping lives; then it does again. */
	made = end_ctl_stat(&r->client, GX_STAT_MAPS_MADE);
	maps = end_ctl_stat(&r->client, GX_STAT_MAPS);
	assert_int_equal(gx_mem_key(mem, &o, &more), 0);
	assert_int_equal(gx_conn_key(r->client.conn, &more, &region), 0);
	UNTIL(r, local_map_of(local_conn_of(r->client.conn), region.token));
	assert_int_equal(end_ctl_stat(&r->client, GX_STAT_MAPS_MADE), made);
	key_moves(r, mem, region.token);
	assert_int_equal(gx_key_withdraw(r->server.gx, &key), 0);
	assert_int_equal(gx_key_withdraw(r->server.gx, &more), 0);
	UNTIL(r, end_ctl_stat(&r->client, GX_STAT_MAPS) == maps - 1);
	assert_int_equal(gx_mem_key(mem, &o, &key), 0);
	assert_int_equal(gx_conn_key(r->client.conn, &key, &region), 0);
	UNTIL(r, local_map_of(local_conn_of(r->client.conn), region.token));
	assert_int_equal(end_ctl_stat(&r->client, GX_STAT_MAPS_MADE), made + 1);
	key_moves(r, mem, region.token);
	/* Withdrawn while copies are under way: none is when the call returns. */
	op.token = region.token;
	r->client.nr_done = 0;
	while (n < 64 && common_post(r->client.ep, &op, 1) == 1)
		n++;
	end_turn(&r->client);
	while (gx_key_withdraw(r->server.gx, &key) == -EAGAIN) /* they end in turns of the client */
		end_turn(&r->client);
	image(mem, memset(r->want, 0x44, KV_B));
	UNTIL(r, r->client.nr_done == n);
	image_check(r, mem);
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	UNTIL(r, r->client.nr_done == n + 1);
	assert_int_equal(r->client.status, -ESTALE);
	image_check(r, mem);
	UNTIL(r, !gx_uring_run_wait(r->client.gx->uring, old_run, r->client.conn));
	assert_int_equal(gx_mem_free(mem), 0);
}

static struct gx_region key_take(struct rig *r, struct gx_mem *mem, unsigned access)
{
	struct gx_region region = GX_INIT(region);
	struct gx_key_opts o = GX_INIT(o);
	struct gx_key key;

	o.access = access;
	assert_int_equal(gx_mem_key(mem, &o, &key), 0);
	assert_int_equal(gx_conn_key(r->client.conn, &key, &region), 0);
	return region;
}

static bool why_has(const struct rig *r, const char *text)
{
	struct gx_conn_info info = GX_INIT(info);

	assert_int_equal(gx_conn_info(r->client.conn, &info), 0);
	return strstr(info.why, text);
}

/* A program may register more tensors than it may have descriptors. */
static void key__no_descriptor_is_kept(void **state)
{
	enum { TENSORS = 100, TENSOR_B = 4096 };
	struct rig *r = *state;
	unsigned before = common_fds_count();
	struct gx_region region[TENSORS];
	struct gx_mem *mem[TENSORS];

	for (unsigned i = 0; i < TENSORS; i++) {
		assert_int_equal(gx_mem_reg(r->server.gx, GX_MEM_CUDA, 0,
					    vmm_at(&seg[0], (i + 1) * TENSOR_B), TENSOR_B, &mem[i]),
				 0);
		region[i] = key_take(r, mem[i], GX_ACCESS_PUT | GX_ACCESS_GET);
	}
	for (unsigned i = 0; i < TENSORS; i++)
		UNTIL(r, local_map_of(local_conn_of(r->client.conn), region[i].token));
	/* In the fake driver a mapping has one; it is the client's. */
	assert_int_equal(common_fds_count() - before, getenv("GX_FAKE_CUDA") ? TENSORS : 0);
	assert_false(why_has(r, "by packets"));
}

/* The owner's reason comes to who took the key. */
static void key__says_why_it_is_not_mapped(void **state)
{
	struct rig *r = *state;

	assert_false(why_has(r, "does not allow puts"));
	key_take(r, r->server.gpu, GX_ACCESS_GET);
	UNTIL(r, why_has(r, "its owner says: who maps a GPU's memory can write, and the key does "
			    "not allow puts"));
}

static void key__of_a_pool(void **state)
{
	unsigned (*alloc)(unsigned long long *ptr, size_t len, void *stream) =
		common_cuda_symbol("cuMemAllocAsync");
	unsigned (*release)(unsigned long long ptr) = common_cuda_symbol("cuMemFree_v2");
	struct rig *r = *state;
	unsigned long long at = 0;
	struct gx_mem *mem;

	vmm_start();
	assert_int_equal(alloc(&at, KV_B, NULL), 0);
	assert_int_equal(
		gx_mem_reg(r->server.gx, GX_MEM_CUDA, 0, (void *)(uintptr_t)at, KV_B, &mem), 0);
	key_take(r, mem, GX_ACCESS_PUT);
	UNTIL(r, why_has(r, "its owner says: it is of a stream-ordered pool"));
	assert_int_equal(gx_mem_free(mem), 0);
	assert_int_equal(release(at), 0);
}

/* A key that was taken before there was a GPU to map its memory. */
static void key__before_the_gpu(void **state)
{
	struct rig *r = rig_new();
	struct gx_region region;

	end_open(&r->server, (struct gx_opts){.server = true}, "shm");
	end_open(&r->client, (struct gx_opts){0}, "shm");
	assert_int_equal(gx_mem_alloc(r->server.gx, GX_MEM_CUDA, 0, KV_B, &r->server.gpu), 0);
	assert_int_equal(rig_connect(r, "local", NULL), 0);
	region = key_take(r, r->server.gpu, GX_ACCESS_PUT | GX_ACCESS_GET);
	UNTIL(r, why_has(r, "a key by packets"));
	assert_null(local_map_of(local_conn_of(r->client.conn), region.token));
	assert_int_equal(gx_gpu_open(r->client.gx, 0), 0);
	UNTIL(r, local_map_of(local_conn_of(r->client.conn), region.token));
	assert_non_null(local_map_of(local_conn_of(r->client.conn), region.token)->gpu);
	rig_free(r);
}

/* Host memory that is older than the GPU is registered when that is opened, on the caller's thread, and
 * its keys know. */
static void gpu_open__registers_older_memory(void **state)
{
	struct rig *r = rig_new();
	struct gx_key_opts o = GX_INIT(o);
	struct gx_mem *mem[3];
	struct gx_key key;

	end_open(&r->client, (struct gx_opts){0}, "shm");
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(gx_mem_alloc(r->client.gx, GX_MEM_HOST, 0, KV_B, &mem[i]), 0);
	o.access = GX_ACCESS_PUT;
	assert_int_equal(gx_mem_key(mem[1], &o, &key), 0);
	assert_int_equal(gx_mem_free(mem[2]), 0);
	assert_int_equal(gx_gpu_open(r->client.gx, 0), 0);
	if (getenv("GX_FAKE_CUDA"))
		assert_int_equal(((int (*)(void))common_cuda_symbol("fake_cuda_registered_by"))(),
				 gettid());
	for (unsigned i = 0; i < 2; i++)
		assert_non_null(mem[i]->dma);
	assert_ptr_equal(mem[1]->parts->dma, mem[1]->dma);
	assert_int_equal(mem[0]->nr_parts, 0);
	assert_int_equal(mem[1]->nr_parts, 1);
	assert_int_equal(gx_mem_free(mem[1]), 0);
	rig_free(r);
}

/* ---- several GPUs, of which not each reaches each: the fake driver's alone ---- */

/* A client with GPUs 0 to @nr - 1, connected to a server whose region lies on GPU @where. */
static struct rig *gpus_open(unsigned nr, int where, void **state)
{
	struct rig *r = rig_new();
	int was = devices;

	devices = where + 1;
	end_make(&r->server, true);
	devices = was;
	end_make(&r->client, false);
	for (unsigned d = 1; d < nr; d++)
		assert_int_equal(gx_gpu_open(r->client.gx, (int)d), 0);
	assert_int_equal(rig_connect(r, "local", NULL), 0);
	*state = r;
	return r;
}

/* Put all of @from into the server's region on a GPU. Return: how often packets had to do it. */
static uint64_t gpus_put(struct rig *r, struct gx_mem *from)
{
	struct gx_op op = {0};
	struct gx_region region = GX_INIT(region);
	uint64_t before = misses(r);

	for (uint64_t i = 0; i < KV_B; i++)
		r->want[i] = (uint8_t)(i * 31 + ++r->seed);
	image(from, r->want);
	assert_int_equal(gx_conn_region(r->client.conn, "gpu", 0, &region), 0);
	op.kind = GX_OP_PUT;
	op.mem = from;
	op.len = KV_B;
	op.token = region.token;
	r->client.nr_done = 0;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	UNTIL(r, r->client.nr_done == 1);
	assert_int_equal(r->client.nr_failed, 0);
	assert_int_equal(gx_mem_copy_out(r->server.gpu, 0, r->got, KV_B), 0);
	assert_memory_equal(r->got, r->want, KV_B);
	return misses(r) - before;
}

static const struct local_map *gpus_map(const struct rig *r)
{
	struct gx_region region = GX_INIT(region);

	assert_int_equal(gx_conn_region(r->client.conn, "gpu", 0, &region), 0);
	return &local_conn_of(r->client.conn)->map[region.token % GX_REGIONS_MAX];
}

/* GPU 0 does not reach the region's GPU 1, which this end has opened too. */
static void gpus__the_first_does_not_reach_it(void **state)
{
	struct rig *r;

	setenv("GX_FAKE_CUDA_NO_PEER", "1", 1);
	r = gpus_open(2, 1, state);
	assert_null(gpus_map(r)->seen[0]);
	assert_int_equal(gpus_map(r)->gpu->device, 1);
	assert_int_equal(gpus_put(r, r->client.kv), 0);
	assert_int_equal(gpus_put(r, r->client.gpu), 1); /* lies on GPU 0: staged, by packets */
	teardown(state);
	unsetenv("GX_FAKE_CUDA_NO_PEER");
}

/* GPU 2, which nobody uses, reaches the GPU that imports, and not the region's. */
static void gpus__a_third_does_not_reach_it(void **state)
{
	char *was = strdup(getenv("GX_FAKE_CUDA_DEVICES"));
	struct rig *r;

	setenv("GX_FAKE_CUDA_DEVICES", "3", 1);
	setenv("GX_FAKE_CUDA_NO_PEER", "1-2", 1);
	r = gpus_open(1, 1, state);
	assert_non_null(gpus_map(r)->seen[0]);
	assert_int_equal(gpus_put(r, r->client.kv), 0);
	assert_int_equal(gpus_put(r, r->client.gpu), 0);
	teardown(state);
	unsetenv("GX_FAKE_CUDA_NO_PEER");
	setenv("GX_FAKE_CUDA_DEVICES", was, 1);
	free(was);
}

/* What cudaIpc names is opened by each GPU that copies; the one on which it lies does it for host
 * memory. */
static void gpus__cuda_ipc(void **state)
{
	const struct local_map *m;
	struct rig *r;

	setenv("GX_FAKE_CUDA_NO_VMM", "1", 1);
	r = gpus_open(2, 0, state);
	m = gpus_map(r);
	assert_ptr_equal(m->mem->view[0].by, r->client.gx->gpu[0]);
	assert_ptr_equal(m->mem->view[1].by, r->client.gx->gpu[1]);
	assert_int_equal(gpus_put(r, r->client.kv), 0);
	assert_int_equal(gpus_put(r, r->client.gpu), 0);
	teardown(state);
	unsetenv("GX_FAKE_CUDA_NO_VMM");
}

/* By descriptor one import serves all who reach it. */
static void gpus__one_import(void **state)
{
	struct rig *r = gpus_open(2, 1, state);
	const struct local_map *m = gpus_map(r);

	assert_ptr_equal(m->mem->view[0].by, r->client.gx->gpu[0]);
	assert_null(m->mem->view[1].by);
	assert_ptr_equal(m->seen[1], m->seen[0]);
	assert_int_equal(m->gpu->device, 1); /* where it lies */
	assert_int_equal(gpus_put(r, r->client.kv), 0);
	assert_int_equal(gpus_put(r, r->client.gpu), 0);
	teardown(state);
}

/* ---- a thread of the program's captures a graph meanwhile ---- */

struct capture {
	pthread_barrier_t begun, enough;
	unsigned err;
};

static void *capture_thread(void *arg)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *graph = NULL;
	unsigned (*retain)(void **ctx, int device) = dlsym(lib, "cuDevicePrimaryCtxRetain");
	unsigned (*release)(int device) = dlsym(lib, "cuDevicePrimaryCtxRelease_v2");
	unsigned (*current)(void *ctx) = dlsym(lib, "cuCtxSetCurrent");
	unsigned (*create)(void **stream, unsigned flags, int priority) =
		dlsym(lib, "cuStreamCreateWithPriority");
	unsigned (*destroy)(void *stream) = dlsym(lib, "cuStreamDestroy_v2");
	unsigned (*begin)(void *stream, unsigned mode) = dlsym(lib, "cuStreamBeginCapture_v2");
	unsigned (*end)(void *stream, void **out) = dlsym(lib, "cuStreamEndCapture");
	void *ctx = NULL, *stream = NULL;
	struct capture *c = arg;

	c->err = retain(&ctx, 0) || current(ctx) || create(&stream, 1, 0);
	c->err = c->err ? c->err : begin(stream, 0); /* global, PyTorch's default */
	pthread_barrier_wait(&c->begun);
	pthread_barrier_wait(&c->enough);
	c->err = c->err ? c->err : end(stream, &graph);
	destroy(stream);
	release(0);
	dlclose(lib);
	return NULL;
}

/* Contexts, connections, pairs that are timed, puts, and their ends. */
static void capture__beside_connections(void **state)
{
	struct capture c = {.err = 0};
	pthread_t thread;
	struct rig *r;

	engine = GX_COPY_AUTO;
	pthread_barrier_init(&c.begun, NULL, 2);
	pthread_barrier_init(&c.enough, NULL, 2);
	assert_int_equal(pthread_create(&thread, NULL, capture_thread, &c), 0);
	pthread_barrier_wait(&c.begun);
	assert_int_equal(c.err, 0);
	for (unsigned i = 0; i < 2; i++) {
		r = gpus_open(2, 0, state);
		gpus_put(r, r->client.kv);
		gpus_put(r, r->client.gpu);
		teardown(state);
	}
	pthread_barrier_wait(&c.enough);
	pthread_join(thread, NULL);
	assert_int_equal(c.err, 0); /* 901: something that gx called has spoilt it */
	engine = GX_COPY_CE;
}

static void fails__with_its_gpu(void **state)
{
	struct rig *r = *state;
	struct gx_op op = op_make(r, GX_OP_PUT, r->client.gpu, "gpu");

	op.len = 65536;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	setenv("GX_FAKE_CUDA_DEAD", "1", 1);
	for (unsigned i = 0; i < 3; i++)
		assert_true(common_post(r->client.ep, &op, 1) >= 0);
	UNTIL(r, r->client.nr_failed > 0);
	unsetenv("GX_FAKE_CUDA_DEAD");
	assert_int_equal(r->client.status, -EIO);
}

/* Likewise. The second answer is as the first, though the GPU is open by then. */
static void gpu_open__that_cannot_read_bounce_buffers(void **state)
{
	struct gx_mem *mem;
	struct gx *gx;

	assert_int_equal(common_gx_open((struct gx_opts){0}, "shm", &gx), 0);
	setenv("GX_FAKE_CUDA_NO_REGISTER", "1", 1);
	assert_true(gx_gpu_open(gx, 0) < 0);
	assert_non_null(strstr(gx_error(), "cannot read the bounce buffers"));
	unsetenv("GX_FAKE_CUDA_NO_REGISTER");
	assert_true(gx_mem_alloc(gx, GX_MEM_CUDA, 0, 4096, &mem) < 0);
	assert_non_null(strstr(gx_error(), "cuda:0 could not be set up"));
	gx_close(gx);
}

static int suite(enum gx_copy_by how, const char *name)
{
#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(moves__gpu_to_gpu),
		TEST(moves__gpu_to_host),
		TEST(moves__host_to_gpu),
		TEST(moves__plain_to_gpu),
		TEST(list__gpu_to_gpu),
		TEST(list__with_host),
		TEST(view__gpu_to_gpu),
		TEST(view__with_host),
		TEST(view__cancel),
		TEST(view__oldest_has_its_turn),
		TEST(notify__after_the_data),
		TEST(post__more_than_fit),
		TEST(cancel__many),
		TEST(deadline__that_has_passed),
		TEST(close__under_operations),
		TEST(maps__once_and_anew),
		TEST(pairs__timed_once),
		TEST(key__of_gpu_memory),
	};

	engine = how;
	return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

static int seg_suite(enum gx_copy_by how)
{
#define SEG(test) cmocka_unit_test_setup_teardown(test, seg_setup, seg_teardown)
	const struct CMUnitTest tests[] = {
		SEG(moves__gpu_to_gpu),
		SEG(moves__gpu_to_host),
		SEG(moves__host_to_gpu),
		SEG(post__more_than_fit),
		SEG(close__under_operations),
		SEG(seg_maps__once_and_anew),
		SEG(key__of_gpu_memory),
		SEG(key__no_descriptor_is_kept),
		SEG(key__says_why_it_is_not_mapped),
		SEG(key__of_a_pool),
		cmocka_unit_test(key__before_the_gpu),
		cmocka_unit_test(gpu_open__registers_older_memory),
		cmocka_unit_test(seg_share__without_a_type),
		cmocka_unit_test(seg_share__to_a_peer_without_a_gpu),
		cmocka_unit_test(gpu_open__while_cores_run),
		cmocka_unit_test(gpu_open__a_core_without_turns),
	};

	engine = how;
	return cmocka_run_group_tests_name("in many pieces", tests, NULL, NULL);
}

static int fake_suite(void)
{
	const struct CMUnitTest tests[] = {
		TEST(fails__with_its_gpu),
		cmocka_unit_test(gpu_open__that_cannot_read_bounce_buffers),
		cmocka_unit_test(gpus__one_import),
		cmocka_unit_test(gpus__the_first_does_not_reach_it),
		cmocka_unit_test(gpus__a_third_does_not_reach_it),
		cmocka_unit_test(gpus__cuda_ipc),
		cmocka_unit_test(capture__beside_connections),
	};

	engine = GX_COPY_CE;
	return cmocka_run_group_tests_name("dead", tests, NULL, NULL);
}

int main(int argc, char **argv)
{
	struct gx_opts o = GX_INIT(o);
	int failed = 0;
	struct gx *gx;

	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	if (gx_open(&o, &gx))
		return 1;
	if (gx_gpu_open(gx, 0)) {
		printf("no GPU: %s\n", gx_error());
		gx_close(gx);
		return 77;
	}
	devices += !gx_gpu_open(gx, 1);
	gx_close(gx);
	failed += suite(GX_COPY_CE, "copy engines");
	failed += suite(GX_COPY_RESIDENT, "resident");
	failed += suite(GX_COPY_KERNEL, "kernel");
	failed += suite(GX_COPY_AUTO, "auto");
	failed += seg_suite(GX_COPY_CE);
	failed += seg_suite(GX_COPY_KERNEL);
	if (getenv("GX_FAKE_CUDA"))
		failed += fake_suite();
	return failed ? 1 : 0;
}
