/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts and gets with views over a simulated network that loses, doubles, delays, corrupts and narrows; into
 * memory of a GPU; and those that end early. Then a peer that writes what it likes into its maps.
 */
#include "sim/sim_rig.h"
#include "list/list.h"

#include <errno.h>
#include <string.h>

#define NEAR_B (1u << 20)
#define FAR_B  (2u << 20)
#define ROWS   64

static uint8_t near[NEAR_B], want[FAR_B];
static uint32_t rows[2][ROWS];

/* ROWS rows of @run_b bytes in 2 times 5 steps: backwards in one dimension there, with gaps everywhere. */
static struct gx_view view_of(uint64_t run_b, unsigned there)
{
	int64_t stride = (int64_t)run_b + 3;
	struct gx_view w = {
		.run_b = run_b,
		.dim = {{2, there ? stride : 5 * stride}, {5, there ? -2 * stride : stride}},
		.nr_dims = 2,
		.nr_rows = ROWS,
		.rows = rows[there],
		.row_b = 11 * run_b + 40};

	for (unsigned i = 0; i < ROWS; i++)
		rows[there][i] = there ? (i * 29 + 5) % ROWS : (i * 3) % 50;
	return w;
}

static int64_t place(const struct gx_view *w, unsigned row, unsigned i, unsigned k)
{
	return (int64_t)(w->rows[row] * w->row_b) + (int64_t)i * w->dim[0].stride_b +
	       (int64_t)k * w->dim[1].stride_b;
}

/* Run after run, in the order of the indices; both ends have runs of one length. */
static void model_put(const struct gx_view v[2], uint64_t off, uint64_t remote_off)
{
	for (unsigned row = 0; row < ROWS; row++)
		for (unsigned i = 0; i < 2; i++)
			for (unsigned k = 0; k < 5; k++)
				memcpy(want + (int64_t)remote_off + place(&v[1], row, i, k),
				       near + (int64_t)off + place(&v[0], row, i, k), v[0].run_b);
}

static struct gx_list *list_open(struct rig *r, const struct gx_view *l, const struct gx_view *w)
{
	const struct gx_views views = {l, w};
	struct gx_list *list;

	assert_int_equal(gx_views_open(r->gx[0], &views, &list), 0);
	return list;
}

static struct gx_op put_of(struct rig *r, struct gx_list *list, uint64_t off, uint64_t remote_off)
{
	return (struct gx_op){.kind = GX_OP_PUT,
			      .user = 1,
			      .addr = near + off,
			      .token = r->peer[0].token,
			      .remote_off = remote_off,
			      .list = list};
}

static void put_ended(struct rig *r, int status)
{
	rig_comps(r, 0, 1, 10 * SECOND);
	assert_int_equal(r->last[0][0].status, status);
	rig_forget(r);
}

static void far_check(struct rig *r)
{
	assert_memory_equal(rig_mem(r, 1), want, FAR_B);
}

/* Into memory of a GPU they go out of such memory, or out of host memory. */
static void puts_run(const struct rig_cfg *cfg, uint64_t run_b)
{
	bool out_of_gpu = cfg->gpu && cfg->sim.seed % 4 < 3;
	const struct gx_view v[] = {view_of(run_b, 0), view_of(run_b, 1)};
	struct rig *r = rig_open(cfg);
	struct gx_list *list = list_open(r, &v[0], &v[1]);

	rig_fill(near, NEAR_B, run_b);
	memset(want, RIG_POISON, FAR_B);
	if (out_of_gpu)
		memcpy(rig_mem(r, 0), near, NEAR_B);
	for (unsigned k = 0; k < 3;
	     k++) { /* one map, or one for each that begins before it is there */
		uint64_t there = 10 * run_b + 50 + k * (FAR_B / 3);
		struct gx_op op = put_of(r, list, k * 5, there);

		if (out_of_gpu) {
			op.addr = NULL;
			op.mem = r->mem[0];
			op.off = k * 5;
		}
		rig_post(r, 0, &op);
		model_put(v, k * 5, there);
	}
	gx_list_close(list);
	rig_comps(r, 0, 3, 10 * SECOND);
	for (unsigned k = 0; k < 3; k++)
		assert_int_equal(r->last[0][k].status, 0);
	rig_forget(r);
	far_check(r);
	rig_done(r);
}

/* The other way: rows that are read may repeat, those that are written may not. */
static void model_get(const struct rig *r, const struct gx_view v[2], uint64_t off,
		      uint64_t remote_off, uint8_t *to)
{
	const uint8_t *from = rig_mem((struct rig *)r, 1);

	for (unsigned row = 0; row < ROWS; row++)
		for (unsigned i = 0; i < 2; i++)
			for (unsigned k = 0; k < 5; k++)
				memcpy(to + (int64_t)off + place(&v[0], row, i, k),
				       from + (int64_t)remote_off + place(&v[1], row, i, k),
				       v[0].run_b);
}

static void gets_run(const struct rig_cfg *cfg, uint64_t run_b)
{
	const struct gx_view v[] = {view_of(run_b, 1), view_of(run_b, 0)};
	struct rig *r = rig_open(cfg);
	const struct gx_views both = {&v[0], &v[1]};
	uint64_t off = 10 * run_b + 50;
	struct gx_list *list;

	assert_int_equal(gx_views_open(r->gx[0], &both, &list), 0);
	rig_fill(rig_mem(r, 1), FAR_B, run_b);
	memset(rig_mem(r, 0), RIG_POISON, FAR_B);
	memset(want, RIG_POISON, FAR_B);
	for (unsigned k = 0; k < 3; k++) {
		struct gx_op op = put_of(r, list, 0, k * 777);

		op.kind = GX_OP_GET;
		op.addr = NULL;
		op.mem = r->mem[0];
		op.off = off + k * (FAR_B / 3);
		rig_post(r, 0, &op);
		model_get(r, v, op.off, op.remote_off, want);
	}
	gx_list_close(list);
	rig_comps(r, 0, 3, 10 * SECOND);
	for (unsigned k = 0; k < 3; k++)
		assert_int_equal(r->last[0][k].status, 0);
	rig_forget(r);
	assert_memory_equal(rig_mem(r, 0), want, FAR_B);
	rig_done(r);
}

static struct rig_cfg cfg_of(unsigned i)
{
	return (struct rig_cfg){.sim = {.seed = i,
					.loss_ppm = i % 4 ? 20000 : 0,
					.dup_ppm = i % 3 ? 20000 : 0,
					.corrupt_ppm = i % 2 ? 5000 : 0,
					.reorder_ppm = i % 5 ? 50000 : 0,
					.reorder_slots = 16,
					.attach = i % 7 == 3},
				.integrity = i % 2 ? 1 + i / 2 % 3 : 0,
				.check = i % 4 == 3 ? GX_CRC_BY_COPY : GX_CRC_BY_CPU,
				.quantum_b = i % 3 == 1 ? 1280 : 0,
				.gpu_delay_ns = i % 6 == 5 ? 50000 : 0,
				.mem_b = FAR_B};
}

static const uint32_t runs_b[] = {16, 64, 100, 576, 656, 7, 256};

static void view__lossy(void **state)
{
	for (unsigned i = 0; i < 28; i++) {
		struct rig_cfg cfg = cfg_of(i);

		puts_run(&cfg, runs_b[i % 7]);
		gets_run(&cfg, runs_b[i % 7]);
	}
}

/* A descriptor for each run, chunk after chunk out of a GPU; the GPU is late. Shorter runs are refused before
 * a byte lands. */
static void view__gpu(void **state)
{
	for (unsigned i = 0; i < 12; i++) {
		struct rig_cfg cfg = cfg_of(i);

		cfg.gpu = true;
		cfg.gpu_timeout_ns = i % 6 == 5 ? UINT64_MAX : 0; /* never */
		cfg.chunk_b = i % 2 ? 0 : 16 << 10;
		puts_run(&cfg, runs_b[3 + i % 2]);
		gets_run(&cfg, runs_b[3 + i % 2]);
	}
}

static void view__gpu_short_runs(void **state)
{
	const struct gx_view v[] = {view_of(16, 0), view_of(16, 1)};
	struct rig *r = rig_open(&(struct rig_cfg){.gpu = true, .mem_b = FAR_B});
	struct gx_list *list = list_open(r, &v[0], &v[1]);
	struct gx_op op = put_of(r, list, 0, 5000);

	memset(want, RIG_POISON, FAR_B);
	rig_post(r, 0, &op);
	put_ended(r, -EOPNOTSUPP);
	far_check(r);
	gx_list_close(list);
	rig_done(r);
}

/* The message begins again with smaller packets, and other steps. */
static void view__path_narrows(void **state)
{
	const struct sim_path path[] = {{.at_ns = 1100000, .payload_b = 1400}};

	for (unsigned i = 0; i < 8; i++) {
		struct rig_cfg cfg = {.sim = {.seed = i,
					      .loss_ppm = i & 2 ? 5000 : 0,
					      .rate_bps = 1000000000,
					      .path_payload_b = 9000,
					      .path = path,
					      .nr_path = 1},
				      .integrity = i & 3,
				      .mem_b = FAR_B};

		puts_run(&cfg, 656);
		gets_run(&cfg, 656);
	}
}

/* It ends at each stage, with packets lost. Others with other maps follow at once: their bytes alone
 * change places that were not of the first one. */
static void ends(uint64_t ns, unsigned how)
{
	const struct gx_view v[] = {view_of(656, 0), view_of(656, 1)};
	struct rig *r = rig_open(&(struct rig_cfg){
		.sim = {.seed = 1 + ns, .loss_ppm = 30000, .rate_bps = 2000000000},
		.mem_b = FAR_B});
	struct gx_list *list = list_open(r, &v[0], &v[1]);
	struct gx_op op = put_of(r, list, 0, 10 * 656 + 50);
	int status;

	rig_fill(near, NEAR_B, 7);
	memset(want, RIG_POISON, FAR_B);
	if (how == 1)
		op.deadline_ns = r->now_ns + ns;
	rig_post(r, 0, &op);
	gx_list_close(list);
	rig_pass(r, ns);
	if (how == 0)
		gx_cancel(gx_core_queue(r->core[0]), r->ep[0][0], 1);
	if (how == 2)
		assert_int_equal(gx_mem_free(r->mem[1]), 0);
	rig_comps(r, 0, 1, SECOND);
	status = r->last[0][0].status;
	rig_forget(r);
	if (status && (how < 2 || status != -ESTALE))
		assert_int_equal(status, how == 1 ? -ETIMEDOUT : -ECANCELED);
	for (unsigned i = 0; how < 2 && i < 2 * CORE_MAPS; i++) {
		struct gx_view w = {.run_b = 8, .dim = {{300, 20}}, .nr_dims = 1};

		w.dim[0].count += i;
		list = list_open(r, NULL, &w);
		op = put_of(r, list, i, FAR_B / 2 + i * 7000);
		rig_post(r, 0, &op);
		gx_list_close(list);
		for (unsigned k = 0; k < 300 + i; k++)
			memcpy(want + op.remote_off + 20ul * k, near + i + 8ul * k, 8);
	}
	if (how < 2) {
		rig_comps(r, 0, 2 * CORE_MAPS, 10 * SECOND);
		for (unsigned i = 0; i < 2 * CORE_MAPS; i++)
			assert_int_equal(r->last[0][i].status, 0);
		rig_forget(r);
		rig_pass(r, 20 * MS);
		assert_memory_equal(rig_mem(r, 1) + FAR_B / 2, want + FAR_B / 2, FAR_B / 2);
		/* Between the runs of the first one nothing lies. */
		for (unsigned row = 0; row < ROWS; row++)
			for (unsigned i = 0; i < 10; i++)
				rig_check_poison(rig_mem(r, 1) + 10 * 656 + 50 - 8 * 659 +
							 row * (11 * 656ul + 40) + i * 659ul + 656,
						 3);
	}
	rig_done(r);
}

static void view__ends_at_every_stage(void **state)
{
	for (unsigned how = 0; how < 3; how++)
		for (uint64_t ns = 0; ns < 3000000; ns += 137000)
			ends(ns, how);
}

enum { END_CANCEL, END_DEADLINE, END_THEIRS_FREED, END_OURS_FREED, END_LOST, ENDS };

/* A get that ends at each stage. After its completion nothing writes into its memory, and another one finds
 * all maps free. */
static void get_ends(uint64_t ns, unsigned how)
{
	const struct gx_view v[] = {view_of(656, 1), view_of(656, 0)};
	struct rig *r = rig_open(&(struct rig_cfg){
		.sim = {.seed = 1 + ns, .loss_ppm = 30000, .rate_bps = 2000000000},
		.mem_b = FAR_B});
	struct gx_list *list = list_open(r, &v[0], &v[1]);
	struct gx_op op = put_of(r, list, 10 * 656 + 50, 50);
	int status;

	rig_fill(rig_mem(r, 1), FAR_B, 5);
	memset(near, RIG_POISON, NEAR_B);
	memset(want, RIG_POISON, NEAR_B);
	op.kind = GX_OP_GET;
	if (how != END_THEIRS_FREED)
		model_get(r, v, 10 * 656 + 50, 50, want);
	if (how == END_DEADLINE)
		op.deadline_ns = r->now_ns + ns;
	if (how == END_OURS_FREED) {
		op.addr = NULL;
		op.mem = r->mem[0];
		op.off = 10 * 656 + 50;
	}
	rig_post(r, 0, &op);
	rig_pass(r, ns);
	if (how == END_CANCEL)
		gx_cancel(gx_core_queue(r->core[0]), r->ep[0][0], 1);
	if (how == END_THEIRS_FREED)
		assert_int_equal(gx_mem_free(r->mem[1]), 0);
	if (how == END_OURS_FREED)
		assert_int_equal(gx_mem_free(r->mem[0]), 0);
	if (how == END_LOST)
		rig_reconnect(r); /* nobody hears how it ended */
	else
		rig_comps(r, 0, 1, SECOND);
	status = how == END_LOST ? -ECONNRESET : r->last[0][0].status;
	rig_forget(r);
	if (how <= END_DEADLINE && status)
		assert_int_equal(status, how == END_DEADLINE ? -ETIMEDOUT : -ECANCELED);
	if (!status && how != END_OURS_FREED && how != END_THEIRS_FREED)
		assert_memory_equal(near, want, NEAR_B);
	memcpy(want + NEAR_B, near, NEAR_B);
	rig_pass(r, 20 * MS);
	assert_memory_equal(near, want + NEAR_B, NEAR_B);
	for (unsigned i = 0; how != END_THEIRS_FREED && i < CORE_MAPS + 1; i++) {
		struct gx_view w = {.run_b = 8, .dim = {{300, 20}}, .nr_dims = 1};
		struct gx_list *other;

		w.dim[0].count += i;
		other = list_open(r, NULL, &w);
		op = put_of(r, other, 0, i * 7000);
		op.kind = GX_OP_GET;
		rig_post(r, 0, &op);
		gx_list_close(other);
		put_ended(r, 0);
		for (unsigned k = 0; k < 300 + i; k++)
			assert_memory_equal(near + 8 * k, rig_mem(r, 1) + i * 7000 + 20 * k, 8);
	}
	gx_list_close(list);
	rig_rest(r, SECOND);
	assert_int_equal(rig_ep(r, 1, 0)->ep.maps_busy, 0);
	rig_done(r);
}

static void view__gets_end_at_every_stage(void **state)
{
	for (unsigned how = 0; how < ENDS; how++)
		for (uint64_t ns = 0; ns < 3000000; ns += how == END_LOST ? 431000 : 137000)
			get_ends(ns, how);
}

/* The GPU is late, and packets are lost: there are chunks that it gathers, chunks that wait for packets, and
 * such as go again. A put out of its memory ends at each stage, and after that nothing of it leaves any more.
 * Buffers and maps are free again: another one finds them. */
static void gpu_put_ends(uint64_t ns, unsigned how)
{
	const struct gx_view v[] = {view_of(656, 0), view_of(656, 1)};
	const uint64_t there = 10 * 656 + 50;
	struct rig *r = rig_open(&(struct rig_cfg){
		.sim = {.seed = 1 + ns, .loss_ppm = 30000, .rate_bps = 2000000000},
		.gpu = true,
		.gpu_delay_ns = 40000,
		.chunk_b = 16 << 10,
		.mem_b = FAR_B});
	struct gx_list *list = list_open(r, &v[0], &v[1]);
	struct gx_op op = put_of(r, list, 0, there);

	rig_fill(near, NEAR_B, 7);
	memcpy(rig_mem(r, 0), near, NEAR_B);
	memset(want, RIG_POISON, FAR_B);
	model_put(v, 0, there);
	op.addr = NULL;
	op.mem = r->mem[0];
	if (how == END_DEADLINE)
		op.deadline_ns = r->now_ns + ns;
	rig_post(r, 0, &op);
	rig_pass(r, ns);
	if (how == END_CANCEL)
		gx_cancel(gx_core_queue(r->core[0]), r->ep[0][0], 1);
	if (how == END_THEIRS_FREED)
		assert_int_equal(gx_mem_free(r->mem[1]), 0);
	if (how == END_OURS_FREED)
		assert_int_equal(gx_mem_free(r->mem[0]), 0);
	if (how == END_LOST)
		rig_reconnect(r);
	else
		rig_comps(r, 0, 1, SECOND);
	if (how <= END_DEADLINE && r->last[0][0].status)
		assert_int_equal(r->last[0][0].status,
				 how == END_DEADLINE ? -ETIMEDOUT : -ECANCELED);
	rig_forget(r);
	if (how < END_THEIRS_FREED || how == END_LOST) {
		rig_pass(r, 20 * MS);
		for (uint64_t i = 0; i < FAR_B; i++)
			if (rig_mem(r, 1)[i] != RIG_POISON)
				assert_int_equal(rig_mem(r, 1)[i], want[i]);
		op.token = r->peer[0].token;
		op.deadline_ns = 0;
		rig_post(r, 0, &op);
		put_ended(r, 0);
		far_check(r);
	}
	gx_list_close(list);
	rig_rest(r, SECOND);
	assert_int_equal(rig_ep(r, 1, 0)->ep.maps_busy, 0);
	rig_done(r);
}

static void view__gpu_puts_end_at_every_stage(void **state)
{
	for (unsigned how = 0; how < ENDS; how++)
		for (uint64_t ns = 0; ns < 3000000; ns += how == END_LOST ? 431000 : 137000)
			gpu_put_ends(ns, how);
}

/* The peer stands still, so its map does not arrive: a put and a get end when they shall. The list goes with
 * the last of them, while the map is still under way. */
static void view__ends_before_its_map(void **state)
{
	const struct gx_view v[] = {view_of(656, 0), view_of(656, 1)};
	const struct gx_view g[] = {view_of(656, 1), view_of(656, 0)};

	for (unsigned how = 0; how < 6; how++) {
		struct rig *r = rig_open(&(struct rig_cfg){.mem_b = FAR_B});
		struct gx_list *list =
			how & 1 ? list_open(r, &g[0], &g[1]) : list_open(r, &v[0], &v[1]);
		struct gx_op op = put_of(r, list, 10 * 656 + 50, 10 * 656 + 50);

		op.kind = how & 1 ? GX_OP_GET : GX_OP_PUT;
		op.deadline_ns = how < 2 ? r->now_ns + 2 * MS : 0;
		if (how == 4) {
			op.flags = GX_OP_NOTE;
			op.note = near;
			op.note_len = 100;
			op.deadline_ns = r->now_ns + 2 * MS;
		}
		memset(rig_mem(r, 1), RIG_POISON, FAR_B);
		memset(near, 7, NEAR_B);
		r->still[1] = true;
		rig_post(r, 0, &op);
		gx_list_close(list);
		rig_pass(r, MS);
		assert_int_equal(r->nr_last[0], 0);
		if (how == 2 || how == 3 || how == 5)
			gx_cancel(gx_core_queue(r->core[0]), r->ep[0][0], 1);
		if (how != 4) {
			rig_comps(r, 0, 1, 2 * MS);
			assert_int_equal(r->last[0][0].status, how < 2 ? -ETIMEDOUT : -ECANCELED);
			rig_pass(r, 0);
			assert_int_equal(r->ep[0][0]->list_runs, 0);
			assert_true(r->ep[0][0]->maps->out[0].is_out);
		}
		if (how == 4)
			rig_pass(r, 2 * MS);
		r->still[1] = false;
		if (how == 4) /* a note's number counts at the peer: it hears that it is void */
			put_ended(r, -ETIMEDOUT);
		rig_forget(r);
		rig_rest(r, SECOND);
		assert_int_equal(r->ep[0][0]->list_runs, 0);
		rig_check_poison(rig_mem(r, 1), FAR_B);
		rig_done(r);
	}
}

/* All places have maps that travel for puts which have ended: other views wait, and none of these is written
 * anew on its way. */
static void view__maps_travel(void **state)
{
	struct gx_view w = {.run_b = 16, .dim = {{200, 32}}, .nr_dims = 1};
	struct rig *r = rig_open(&(struct rig_cfg){.mem_b = FAR_B});
	const struct map_out *out = r->ep[0][0]->maps->out;

	rig_fill(near, NEAR_B, 3);
	memset(want, RIG_POISON, FAR_B);
	memset(rig_mem(r, 1), RIG_POISON, FAR_B);
	r->still[1] = true;
	for (unsigned i = 0; i <= CORE_MAPS; i++, w.dim[0].stride_b++) {
		struct gx_list *list = list_open(r, NULL, &w);
		struct gx_op op = put_of(r, list, 0, 100);

		rig_post(r, 0, &op);
		gx_list_close(list);
		rig_pass(r, MS / 100);
		if (i == CORE_MAPS)
			break;
		gx_cancel(gx_core_queue(r->core[0]), r->ep[0][0], op.user);
		put_ended(r, -ECANCELED);
	}
	for (unsigned i = 0; i < CORE_MAPS; i++) {
		assert_true(out[i].is_out);
		assert_int_equal(out[i].gen, 1);
	}
	r->still[1] = false;
	put_ended(r, 0);
	for (unsigned k = 0; k < 200; k++)
		memcpy(want + 100 + (32 + CORE_MAPS) * k, near + 16 * k, 16);
	far_check(r);
	rig_done(r);
}

/* A map that the peer does not take ends its put; the next put brings it anew. */
static void view__map_fails(void **state)
{
	const struct gx_view v[] = {view_of(64, 0), view_of(64, 1)};
	struct rig *r = rig_open(&(struct rig_cfg){.mem_b = FAR_B});
	struct gx_list *list = list_open(r, &v[0], &v[1]);
	struct gx_op op = put_of(r, list, 0, 5000);
	struct gx_ep *peer = &rig_ep(r, 1, 0)->ep;
	struct gx_mem *maps = peer->maps_mem;

	peer->maps_mem = NULL;
	rig_post(r, 0, &op);
	put_ended(r, -EOPNOTSUPP);
	peer->maps_mem = maps;
	rig_post(r, 0, &op);
	put_ended(r, 0);
	gx_list_close(list);
	rig_done(r);
}

/* A peer that asks to try again for ever is taken for silent. */
static void hostile__always_busy(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.mem_b = FAR_B, .peer_timeout_ns = 300 * MS});
	const struct gx_view v[] = {view_of(64, 0), view_of(64, 1)};
	struct gx_list *list = list_open(r, &v[0], &v[1]);
	struct gx_op op = put_of(r, list, 0, 5000);

	rig_ep(r, 1, 0)->ep.maps_busy = ~0u;
	rig_post(r, 0, &op);
	rig_pass(r, 200 * MS);
	assert_int_equal(r->nr_last[0], 0);
	put_ended(r, -ETIMEDOUT);
	assert_in_range(r->ep[0][0]->maps->out[0].gen, 50, 600); /* asked again, with pauses */
	op.deadline_ns = r->now_ns + 50 * MS;
	rig_post(r, 0, &op);
	rig_comps(r, 0, 1, 60 * MS);
	put_ended(r, -ETIMEDOUT);
	rig_ep(r, 1, 0)->ep.maps_busy = 0;
	op.deadline_ns = 0;
	rig_post(r, 0, &op);
	put_ended(r, 0);
	gx_list_close(list);
	rig_done(r);
}

static bool put_was_refused(struct rig *r)
{
	const struct pkt_ep *e = rig_ep(r, 0, 0);

	for (uint32_t i = 0; i < e->tx.ops_top; i++)
		if (e->ops[i].state == OP_DOOMED && e->ops[i].refs)
			return true;
	return false;
}

/* The peer asks to try again while packets of the put still lie in the port, the program frees the memory, and
 * the last of them leave in that very pass: the put has no memory to try again with. */
static void view__freed_while_busy(void **state)
{
	struct rig *r = rig_open(
		&(struct rig_cfg){.sim = {.attach = true, .send_bps = 100000000}, .mem_b = FAR_B});
	const struct gx_view w = {.run_b = 1000, .dim = {{20, 2000}}, .nr_dims = 1};
	struct gx_list *list = list_open(r, NULL, &w);
	struct gx_op op = put_of(r, list, 0, 0);
	uint32_t *used = &rig_ep(r, 1, 0)->pieces.used[PIECES_MAP], head;

	rig_post(r, 0, &op);
	put_ended(r, 0);
	op.addr = NULL;
	op.mem = r->mem[0];
	*used = ~0u; /* as if as many puts with views came already */
	rig_post(r, 0, &op);
	assert_true(rig_until(r, put_was_refused, SECOND));
	r->still[0] = true;
	rig_pass(r, 5 * MS);
	r->still[0] = false;
	assert_int_equal(r->nr_last[0], 0);
	head = r->core[0]->comp_head;
	assert_int_equal(gx_mem_free(r->mem[0]), 0);
	r->mem[0] = NULL;
	assert_int_equal(r->core[0]->comp_head, head + 1); /* else it would read what is gone */
	put_ended(r, -ECANCELED);
	*used = 0;
	gx_list_close(list);
	rig_done(r);
}

/* Few bytes would go in a record, if they lay in one piece: at this end, at the other, at both. */
static void view__small(void **state)
{
	const struct gx_view w = {.run_b = 2, .dim = {{20, 7}}, .nr_dims = 1};

	for (unsigned i = 0; i < 6; i++) {
		const struct gx_views views = {i % 3 == 1 ? NULL : &w, i % 3 == 2 ? NULL : &w};
		struct rig *r = rig_open(&(struct rig_cfg){.mem_b = FAR_B});
		struct gx_op op = put_of(r, NULL, 0, 0);
		uint8_t *far = rig_mem(r, 1);

		assert_int_equal(gx_views_open(r->gx[0], &views, &op.list), 0);
		op.kind = i < 3 ? GX_OP_PUT : GX_OP_GET;
		rig_fill(near, 200, 3);
		rig_fill(far, 200, 4);
		rig_post(r, 0, &op);
		put_ended(r, 0);
		for (unsigned k = 0; k < 40; k++)
			assert_int_equal(near[views.local ? k / 2 * 7 + k % 2 : k],
					 far[views.remote ? k / 2 * 7 + k % 2 : k]);
		gx_list_close(op.list);
		rig_done(r);
	}
}

/* More than the peer has room for: none is sent to be refused. */
static void view__many_at_once(void **state)
{
	const struct gx_view w = {.run_b = 16, .dim = {{200, 32}}, .nr_dims = 1};
	struct rig *r = rig_open(&(struct rig_cfg){.mem_b = FAR_B});
	struct gx_list *list = list_open(r, NULL, &w);
	uint64_t before = rig_stat(r, 0, "msgs_tx");

	rig_fill(near, NEAR_B, 3);
	memset(want, RIG_POISON, FAR_B);
	memset(rig_mem(r, 1), RIG_POISON, FAR_B);
	for (unsigned i = 0; i < 3 * MAP_MSGS; i++) {
		struct gx_op op = put_of(r, list, i, i * 7000);

		rig_post(r, 0, &op);
		for (unsigned k = 0; k < 200; k++)
			memcpy(want + i * 7000 + 32 * k, near + i + 16 * k, 16);
	}
	rig_comps(r, 0, 3 * MAP_MSGS, SECOND);
	for (unsigned i = 0; i < 3 * MAP_MSGS; i++)
		assert_int_equal(r->last[0][i].status, 0);
	rig_forget(r);
	far_check(r);
	assert_int_equal(rig_stat(r, 0, "msgs_tx") - before, 1 + 3 * MAP_MSGS);
	gx_list_close(list);
	rig_done(r);
}

/* ---- A peer that lies ---- */

static void map_write(struct rig *r, uint64_t off, const void *b, uint64_t len)
{
	rig_post(r, 0,
		 &(struct gx_op){.kind = GX_OP_PUT,
				 .addr = (void *)(uintptr_t)b,
				 .len = len,
				 .token = CORE_TOKEN_MAPS,
				 .remote_off = off});
	put_ended(r, 0);
}

/* The completion of @user at the sender; NULL: none yet. */
static const struct gx_comp *comp_of(const struct rig *r, uint64_t user)
{
	for (unsigned i = 0; i < r->nr_last[0]; i++)
		if (r->last[0][i].user == user)
			return &r->last[0][i];
	return NULL;
}

static void comp_await(struct rig *r, uint64_t user, int status)
{
	while (!comp_of(r, user))
		rig_comps(r, 0, r->nr_last[0] + 1, 10 * SECOND);
	assert_int_equal(comp_of(r, user)->status, status);
}

/* While a message reads its map, nobody writes that. */
static void map_is_held(enum gx_op_kind kind)
{
	struct rig *r =
		rig_open(&(struct rig_cfg){.sim = {.rate_bps = 1000000000}, .mem_b = FAR_B});
	const struct gx_view v[] = {view_of(656, kind == GX_OP_GET),
				    view_of(656, kind == GX_OP_PUT)};
	struct gx_list *list = list_open(r, &v[0], &v[1]);
	struct gx_op op = put_of(r, list, kind == GX_OP_GET ? 10 * 656 + 50 : 0, 10 * 656 + 50);
	const uint64_t word = ~0ull;

	rig_fill(near, NEAR_B, 3);
	memset(want, RIG_POISON, FAR_B);
	op.kind = kind;
	if (kind == GX_OP_PUT)
		model_put(v, 0, op.remote_off);
	else
		memset(rig_mem(r, 1), RIG_POISON, FAR_B);
	rig_post(r, 0, &op);
	while (!rig_ep(r, 1, 0)->ep.maps_busy) {
		assert_int_equal(r->nr_last[0], 0);
		rig_pass(r, 10000);
	}
	for (unsigned i = 0; i < CORE_MAPS; i++) {
		rig_post(r, 0,
			 &(struct gx_op){.kind = GX_OP_PUT,
					 .user = 2 + i,
					 .addr = (void *)(uintptr_t)&word,
					 .len = 8,
					 .token = CORE_TOKEN_MAPS,
					 .remote_off = i * CORE_MAP_B + CORE_MAP_REC_B});
		comp_await(r, 2 + i, i ? 0 : -EBUSY);
	}
	comp_await(r, op.user, 0);
	rig_forget(r);
	far_check(r);
	map_write(r, CORE_MAP_REC_B, &word, 8);
	gx_list_close(list);
	rig_done(r);
}

static void hostile__map_is_held(void **state)
{
	map_is_held(GX_OP_PUT);
	map_is_held(GX_OP_GET);
}

/* Places that are written by hand, and messages that name them. */
static void hostile__messages(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.mem_b = FAR_B});
	const struct gx_view v[] = {view_of(64, 0), view_of(64, 1)};
	struct gx_list *list = list_open(r, &v[0], &v[1]);
	struct gx_op op = put_of(r, list, 0, 5000);
	uint8_t rec[CORE_MAP_REC_B];

	rig_post(r, 0, &op);
	put_ended(r, 0);
	memcpy(rec, rig_ep(r, 1, 0)->ep.maps->in, sizeof(rec));
	for (unsigned n = 0; n < 3000; n++) {
		uint8_t bad[sizeof(rec)];
		struct gx_op msg = {.kind = GX_OP_PUT, .addr = near};

		memcpy(bad, rec, sizeof(bad));
		for (unsigned k = rig_random(r) % 4; k; k--)
			bad[4 + rig_random(r) % 100] ^= 1u << rig_random(r) % 8;
		map_write(r, CORE_MAP_B * (n % CORE_MAPS), bad, sizeof(bad));
		msg.token = core_token_map(n % CORE_MAPS, bad[0] + (n % 50 == 7));
		msg.remote_off = rig_random(r) % 3 ? rig_random(r) % FAR_B : UINT64_MAX - 100;
		msg.len = rig_random(r) % 3 ? ROWS * 640 : rig_random(r) % NEAR_B;
		rig_post(r, 0, &msg);
		rig_comps(r, 0, 1, SECOND);
		if (n % 50 == 7)
			assert_int_equal(r->last[0][0].status, -ESTALE);
		rig_forget(r);
	}
	assert_int_equal(rig_ep(r, 1, 0)->ep.maps_busy, 0);
	/* Beyond the places, and over two of them; no region to read. */
	rig_post(r, 0,
		 &(struct gx_op){.kind = GX_OP_PUT,
				 .addr = near,
				 .len = 64,
				 .token = CORE_TOKEN_MAPS,
				 .remote_off = CORE_MAP_B - 32});
	put_ended(r, -EBUSY);
	rig_post(r, 0,
		 &(struct gx_op){.kind = GX_OP_PUT,
				 .addr = near,
				 .len = 64,
				 .token = CORE_TOKEN_MAPS,
				 .remote_off = (uint64_t)CORE_MAPS * CORE_MAP_B});
	put_ended(r, -ERANGE);
	rig_post(r, 0,
		 &(struct gx_op){
			 .kind = GX_OP_GET, .addr = near, .len = 64, .token = CORE_TOKEN_MAPS});
	put_ended(r, -EACCES);
	gx_list_close(list);
	rig_done(r);
}

/* What map_open() lets through has no byte outside of the region, whatever the rows are later. */
static void hostile__places(void **state)
{
	struct rig *r = rig_open(&(struct rig_cfg){.mem_b = FAR_B});
	struct gx_ep *ep = &rig_ep(r, 1, 0)->ep;
	const struct gx_view v[] = {view_of(64, 0), view_of(64, 1)};
	struct gx_list *list = list_open(r, &v[0], &v[1]);
	struct gx_op op = put_of(r, list, 0, 5000);
	uint8_t *in = (uint8_t *)ep->maps->in, rec[CORE_MAP_REC_B];
	uint32_t *in_rows = (uint32_t *)(in + sizeof(rec));
	unsigned good = 0;

	rig_post(r, 0, &op);
	put_ended(r, 0);
	memcpy(rec, in, sizeof(rec));
	for (unsigned n = 0; n < 200000; n++) {
		struct gx_mem *mem;
		struct view_at at;
		uint64_t len = 640 * ROWS;
		int number;

		memcpy(in, rec, sizeof(rec));
		memcpy(in_rows, rows[1], sizeof(rows[1]));
		for (unsigned k = rig_random(r) % 4; k; k--)
			in[4 + rig_random(r) % 100] ^= 1u << rig_random(r) % 8;
		if (n % 5 == 0)
			in_rows[rig_random(r) % ROWS] = (uint32_t)rig_random(r) % 3000;
		number = map_open(ep, core_token_map(0, rec[0]),
				  n % 3 ? GX_ACCESS_PUT : GX_ACCESS_GET, rig_random(r) % FAR_B, len,
				  &at, &mem);
		if (number < 0)
			continue;
		good++;
		for (unsigned k = 0; k < 3; k++)
			in_rows[rig_random(r) % ROWS] = (uint32_t)rig_random(r);
		for (uint64_t off = 0; off < len;) {
			uint32_t part = 4096;
			const char *p = view_find(&at, off, &part);

			assert_true(p >= mem->addr && part <= mem->len &&
				    p + part <= mem->addr + mem->len);
			off += part;
		}
		map_done(ep, number);
	}
	assert_true(good > 10000);
	assert_int_equal(ep->maps_busy, 0);
	gx_list_close(list);
	rig_done(r);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		rig_test(view__lossy),
		rig_test(view__gpu),
		rig_test(view__gpu_short_runs),
		rig_test(view__path_narrows),
		rig_test(view__ends_at_every_stage),
		rig_test(view__gets_end_at_every_stage),
		rig_test(view__gpu_puts_end_at_every_stage),
		rig_test(view__ends_before_its_map),
		rig_test(view__maps_travel),
		rig_test(view__map_fails),
		rig_test(view__small),
		rig_test(view__many_at_once),
		rig_test(hostile__always_busy),
		rig_test(view__freed_while_busy),
		rig_test(hostile__map_is_held),
		rig_test(hostile__messages),
		rig_test(hostile__places),
	};

	return rig_run("view", tests, GX_ARRAY_SIZE(tests), argc, argv);
}
