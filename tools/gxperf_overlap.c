// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf overlap: what communication costs a computation, and the reverse. Each load and each way
 * run alone, then beside one another without end, then in pairs (as many of one as of the other,
 * the next pair when both have ended, two pairs queued). Results of loads are compared with the
 * CPU's, payload in full. Main thread only.
 */
#include "gxperf_gang.h"

#include <gx/load.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OVERLAP_ROUNDS 99
#define OVERLAP_GRIDS  16
#define LOAD_DEPTH     4
#define WARM_TIMES     3 /* as long as what is timed */
#define WAY_BATCH      16
#define WAY_BATCH_MAX  ((uint64_t)1 << 20)

static struct {
	struct sizes sizes;
	struct bench_list sms;
	const char *ways, *load, *lib_path;
	enum gang_pattern pattern;
	struct {
		uint32_t x, y;
	} grid[OVERLAP_GRIDS];
	unsigned nr_grids;
	uint32_t n, batch, heads, tokens, head_dim, gpus, rounds;
	uint64_t ns, launch;
	double rate;
} opts = {.sizes = {{64 << 20}, 1},
	  .sms = {{4, 8, 16}, 3},
	  .ways = "gx",
	  .load = "gemm",
	  .batch = 8,
	  .heads = 64,
	  .tokens = 4096,
	  .head_dim = 128,
	  .rounds = 3,
	  .ns = 100000000,
	  .launch = 4 << 20,
	  .rate = 50};

enum {
	KEY_LOAD = 800,
	KEY_GRID,
	KEY_N,
	KEY_BATCH,
	KEY_HEADS,
	KEY_TOKENS,
	KEY_HEAD_DIM,
	KEY_COMM,
	KEY_PATTERN,
	KEY_SIZES,
	KEY_GPUS,
	KEY_SMS,
	KEY_RATE,
	KEY_LAUNCH,
	KEY_ROUNDS,
	KEY_SECONDS,
	KEY_LIB_PATH,
};

static const struct argp_option overlap_options[] = {
	{NULL, 0, NULL, 0, "The computation, on every GPU:", 1},
	{"load", KEY_LOAD, "NAME", 0,
	 "gemm (own kernel, default), cublas (bf16), attention (cuBLAS and an own softmax)", 1},
	{"grid", KEY_GRID, "XxY,...", 0,
	 "gemm: thread blocks; default 1x1,4x4,8x8,16x16,32x32,40x40", 1},
	{"n", KEY_N, "N", 0, "Rows and columns; default 4096 (gemm), 8192 (cublas)", 1},
	{"batch", KEY_BATCH, "N", 0, "attention; default 8", 1},
	{"heads", KEY_HEADS, "N", 0, "attention; default 64", 1},
	{"tokens", KEY_TOKENS, "N", 0, "attention; default 4096", 1},
	{"head-dim", KEY_HEAD_DIM, "N", 0, "attention; default 128", 1},
	{NULL, 0, NULL, 0, "The communication:", 2},
	{"comm", KEY_COMM, "WAY,...", 0,
	 "gx (default), peer, nccl, nccl-zero, unpack, h2d: see gxperf compare", 2},
	{"pattern", KEY_PATTERN, "NAME", 0, "write (default), read, both, allgather, alltoall", 2},
	{"sizes", KEY_SIZES, "LIST", 0, "A list, or BEGIN:END:FACTOR; default 64M", 2},
	{"gpus", KEY_GPUS, "N", 0, "GPUs; default: 2, for allgather and alltoall all", 2},
	{"sms", KEY_SMS, "LIST", 0, "unpack, h2d: bounds on SMs; default 4,8,16", 2},
	{"rate", KEY_RATE, "GB/s", 0, "unpack: rate to keep, 0: as it goes; default 50", 2},
	{"launch", KEY_LAUNCH, "SIZE", 0,
	 "unpack: payload of one launch, 512K to 128M, a power of two; default 4M", 2},
	{NULL, 0, NULL, 0, "How:", 3},
	{"rounds", KEY_ROUNDS, "N", 0, "Rounds, of which the median counts; default 3", 3},
	{"seconds", KEY_SECONDS, "S", 0, "Each is timed for so long; default 0.1", 3},
	{"lib-path", KEY_LIB_PATH, "DIR:...", 0, "Folders for libcublas and libnccl", 3},
	{0},
};

static int grid_parse(const char *arg)
{
	unsigned n = 0;
	int used;

	while (*arg) {
		if (n == OVERLAP_GRIDS ||
		    sscanf(arg, "%ux%u%n", &opts.grid[n].x, &opts.grid[n].y, &used) != 2 ||
		    !opts.grid[n].x || !opts.grid[n].y)
			return -EINVAL;
		n++;
		arg += used;
		if (*arg && *arg++ != ',')
			return -EINVAL;
	}
	opts.nr_grids = n;
	return n ? 0 : -EINVAL;
}

static int rate_parse(const char *arg)
{
	char *end;

	opts.rate = strtod(arg, &end);
	return *end || end == arg || !(opts.rate >= 0 && opts.rate < 1e6) ? -EINVAL : 0;
}

static int load_parse(const char *arg)
{
	opts.load = arg;
	return strcmp(arg, "gemm") && strcmp(arg, "cublas") && strcmp(arg, "attention") ? -EINVAL
											: 0;
}

static int pattern_parse(const char *arg)
{
	return gang_pattern_parse(arg, &opts.pattern);
}

static int launch_parse(const char *arg)
{
	return opt_size(arg, &opts.launch) || opts.launch < 512u << 10 ||
			       opts.launch > 128u << 20 || (opts.launch & (opts.launch - 1))
		       ? -EINVAL
		       : 0;
}

static const struct bench_value overlap_values[] = {
	{KEY_LOAD, BENCH_CALL, .parse = load_parse},
	{KEY_GRID, BENCH_CALL, .parse = grid_parse},
	{KEY_N, BENCH_U32, &opts.n, 1, 65536},
	{KEY_BATCH, BENCH_U32, &opts.batch, 1, 65536},
	{KEY_HEADS, BENCH_U32, &opts.heads, 1, 65536},
	{KEY_TOKENS, BENCH_U32, &opts.tokens, 1, 65536},
	{KEY_HEAD_DIM, BENCH_U32, &opts.head_dim, 1, 65536},
	{KEY_COMM, BENCH_TEXT, &opts.ways},
	{KEY_PATTERN, BENCH_CALL, .parse = pattern_parse},
	{KEY_SIZES, BENCH_SIZES, &opts.sizes},
	{KEY_GPUS, BENCH_U32, &opts.gpus, 1, GANG_MAX},
	{KEY_SMS, BENCH_LIST, &opts.sms},
	{KEY_RATE, BENCH_CALL, .parse = rate_parse},
	{KEY_LAUNCH, BENCH_CALL, .parse = launch_parse},
	{KEY_ROUNDS, BENCH_U32, &opts.rounds, 1, OVERLAP_ROUNDS},
	{KEY_SECONDS, BENCH_SECONDS, &opts.ns},
	{KEY_LIB_PATH, BENCH_TEXT, &opts.lib_path},
	{0},
};

static error_t overlap_parse(int key, char *arg, struct argp_state *state)
{
	return bench_parse(overlap_options, overlap_values, key, arg, state);
}

const struct argp perf_overlap_argp = {.options = overlap_options, .parser = overlap_parse};

/* ---- one load beside one way ---- */

struct overlap {
	struct out *out;
	struct gang gang;
	struct gx_load *load[GANG_MAX];
	struct gx_load_info info;
	char load_name[32]; /* "gemm 4x4" */
	struct way way;
	uint64_t checked_b, wrong;
};

/* Times of one, in microseconds: alone, beside the other, both in pairs. One column a round. */
struct times {
	double comp[OVERLAP_ROUNDS], comm[OVERLAP_ROUNDS];
	double comp_beside[OVERLAP_ROUNDS], comm_beside[OVERLAP_ROUNDS], both[OVERLAP_ROUNDS];
};

static int overlap_failed(struct overlap *o, const char *what, int err)
{
	return way_failed(&o->way, what, err);
}

static double paces_us(const struct pace *p, unsigned n)
{
	double sum = 0;

	for (unsigned i = 0; i < n; i++)
		sum += pace_us(&p[i]);
	return sum / n;
}

static int load_post_arg(void *arg)
{
	return gx_load_post(arg);
}

static int load_ended_arg(void *arg, uint64_t *nr)
{
	return gx_load_done(arg, nr);
}

static struct pace pace_load(struct gx_load *l)
{
	return (struct pace){
		.arg = l, .post = load_post_arg, .ended = load_ended_arg, .depth = LOAD_DEPTH};
}

static int overlap_round(struct overlap *o, struct times *t, unsigned r)
{
	unsigned n = o->gang.n;
	double first;
	struct pace p[PACE_MAX];
	int ret;

	for (unsigned i = 0; i < n; i++)
		p[i] = pace_load(o->load[i]);
	p[n] = pace_way(&o->way, way_depth(&o->way));
	ret = pace_run(p + n, 1, opts.ns, false);
	if (ret)
		return overlap_failed(o, "communication alone", ret);
	t->comm[r] = pace_us(&p[n]);
	/* First untimed: a GPU that has rested is faster for a while, until it is at its power
	 * limit. */
	ret = pace_run(p, n, opts.ns * WARM_TIMES, false);
	if (!ret)
		ret = pace_run(p, n, opts.ns, false);
	if (ret)
		return overlap_failed(o, "computation alone", ret);
	first = paces_us(p, n);
	ret = pace_run(p, n + 1, opts.ns, false);
	if (ret)
		return overlap_failed(o, "both", ret);
	t->comp_beside[r] = paces_us(p, n);
	t->comm_beside[r] = pace_us(&p[n]);
	ret = pace_run(p, n, opts.ns, false);
	if (ret)
		return overlap_failed(o, "computation alone again", ret);
	t->comp[r] = (first + paces_us(p, n)) / 2;
	ret = pace_run(p, n + 1, opts.ns, true);
	if (ret)
		return overlap_failed(o, "pairs", ret);
	t->both[r] = paces_us(p, n + 1);
	return PERF_OK;
}

/* Of a pair. Ideal is 1 when the shorter one is hidden behind the longer one, 0 when one after the
 * other would be as fast. */
static void times_pair(const struct times *t, double *slowdown, double *ideal)
{
	double slow[OVERLAP_ROUNDS], hid[OVERLAP_ROUNDS];

	for (unsigned i = 0; i < opts.rounds; i++) {
		slow[i] = t->both[i] / fmax(t->comp[i], t->comm[i]);
		hid[i] = (t->comp[i] + t->comm[i] - t->both[i]) / fmin(t->comp[i], t->comm[i]);
	}
	*slowdown = median(slow, opts.rounds);
	*ideal = median(hid, opts.rounds);
}

static void overlap_row(struct overlap *o, struct times *t)
{
	struct out_row row =
		bench_row(o->way.ops->name, o->way.ops->patterns ? o->way.size : o->way.unit_b, 0);
	double keep_comp = median_ratio(t->comp, t->comp_beside, opts.rounds);
	double keep_comm = median_ratio(t->comm, t->comm_beside, opts.rounds);
	double comm, beside, slow, ideal;

	times_pair(t, &slow, &ideal); /* before median() sorts the rounds */
	comm = median(t->comm, opts.rounds);
	beside = median(t->comm_beside, opts.rounds);

	const struct out_cell cells[] = {
		{"load", "load", 0, o->load_name},
		{"pattern", "pattern", 0,
		 o->way.ops->patterns ? gang_pattern_text(o->way.pattern) : "local"},
		{"comp_us", "Tcomp us", median(t->comp, opts.rounds), NULL},
		{"comm_us", "Tcomm us", comm, NULL},
		{"both_us", "Tboth us", median(t->both, opts.rounds), NULL},
		{"slowdown", "slowdown", slow, NULL},
		{"ideal", "of ideal", ideal, NULL},
		{"slow_comp", "comp x", 1 / keep_comp, NULL},
		{"slow_comm", "comm x", 1 / keep_comm, NULL},
		{"keep_comp", "comp keeps", keep_comp, NULL},
		{"keep_comm", "comm keeps", keep_comm, NULL},
		{"GB_s", "GB/s alone", (double)o->way.unit_b / 1e3 / comm, NULL},
		{"GB_s_beside", "beside", (double)o->way.unit_b / 1e3 / beside, NULL},
		{"sms", "SMs", o->way.sms < 0 ? NAN : o->way.sms, NULL},
		{"comp_beside_us", NULL, median(t->comp_beside, opts.rounds), NULL},
		{"comm_beside_us", NULL, beside, NULL},
		{"blocks", NULL, o->info.blocks ? o->info.blocks : NAN, NULL},
		{"messages", NULL, o->way.batch, NULL},
		{"gpus", NULL, o->gang.n, NULL},
		{"TFLOP_s", NULL, o->info.flop / 1e6 / median(t->comp, opts.rounds), NULL},
		{"load_in_words", NULL, 0, o->info.name},
		{"rounds", NULL, opts.rounds, NULL},
	};

	row.checked = true;
	row.checked_b = o->checked_b;
	row.wrong = o->wrong;
	out_cells(o->out, &row, cells, sizeof(cells) / sizeof(cells[0]));
}

static int overlap_way(struct overlap *o, const struct way_ops *ops, uint64_t size, int sms)
{
	static struct times t;
	int ret;

	o->way = (struct way){.ops = ops,
			      .gang = &o->gang,
			      .pattern = opts.pattern,
			      .size = size,
			      .batch = size <= WAY_BATCH_MAX && opts.pattern <= GANG_BOTH &&
						       ops->patterns
					       ? WAY_BATCH
					       : 1,
			      .want_sms = sms,
			      .rate = opts.rate,
			      .lib_path = opts.lib_path};
	o->checked_b = o->wrong = 0;
	out_progress(o->out, "%s, %s, %llu bytes", o->load_name, ops->name,
		     (unsigned long long)size);
	ret = way_open(&o->way);
	if (!ret)
		ret = ops->fill(&o->way);
	for (unsigned r = 0; r < opts.rounds && !ret; r++)
		ret = overlap_round(o, &t, r);
	if (!ret)
		ret = ops->check(&o->way, &o->checked_b, &o->wrong);
	if (!ret)
		overlap_row(o, &t);
	way_close(&o->way);
	return ret ? ret : o->wrong ? PERF_WRONG : PERF_OK;
}

/* The word at @at into @name; what follows it. */
static const char *way_word(const char *at, char name[32])
{
	size_t len = strcspn(at, ",");

	memset(name, 0, 32);
	memcpy(name, at, len < 31 ? len : 31);
	return at + len + (at[len] == ',');
}

/* Every way of --comm. Those that are not between GPUs have bounds on SMs instead of sizes. */
static int overlap_ways(struct overlap *o, uint64_t size, bool first)
{
	char name[32];
	int ret = PERF_OK;

	for (const char *at = opts.ways; *at && !ret;) {
		const struct way_ops *ops;

		at = way_word(at, name);
		ops = way_find(name);
		if (!ops) {
			out_error(o->out, "--comm: there is no way '%s'; there are %s", name,
				  way_names());
			return PERF_USAGE;
		}
		if (ops->patterns)
			ret = overlap_way(o, ops, size, 0);
		for (unsigned i = 0; !ops->patterns && first && i < opts.sms.n && !ret; i++)
			ret = overlap_way(o, ops, opts.launch, (int)opts.sms.v[i]);
	}
	return ret;
}

/* ---- loads ---- */

static void loads_close(struct overlap *o)
{
	for (unsigned i = 0; i < GANG_MAX; i++) {
		gx_load_close(o->load[i]);
		o->load[i] = NULL;
	}
}

static struct gx_load_opts load_opts(unsigned grid)
{
	struct gx_load_opts l = GX_INIT(l);

	l.kind = !strcmp(opts.load, "gemm")	? GX_LOAD_GEMM
		 : !strcmp(opts.load, "cublas") ? GX_LOAD_CUBLAS
						: GX_LOAD_ATTENTION;
	l.n = opts.n ? opts.n : l.kind == GX_LOAD_GEMM ? 4096 : 8192;
	l.grid_x = opts.grid[grid].x;
	l.grid_y = opts.grid[grid].y;
	l.batch = opts.batch;
	l.heads = opts.heads;
	l.tokens = opts.tokens;
	l.head_dim = opts.head_dim;
	l.lib_path = opts.lib_path;
	return l;
}

static int load_failed(struct overlap *o, const char *what, int err)
{
	out_error(o->out, "%s: %s (%s)", what, gx_engine_why(), strerror(-err));
	return err == -EINVAL ? PERF_USAGE : PERF_FAILED;
}

static int loads_open(struct overlap *o, unsigned grid)
{
	struct gx_load_opts l = load_opts(grid);

	o->info.size = sizeof(o->info);
	for (unsigned i = 0; i < o->gang.n; i++) {
		int ret = gx_load_open(o->gang.gpu[i].engine, &l, &o->load[i]);

		if (ret)
			return load_failed(o, opts.load, ret);
	}
	gx_load_info(o->load[0], &o->info);
	if (l.kind == GX_LOAD_GEMM)
		snprintf(o->load_name, sizeof(o->load_name), "%ux%u", l.grid_x, l.grid_y);
	else
		snprintf(o->load_name, sizeof(o->load_name), "%s", opts.load);
	return PERF_OK;
}

/* That they computed, and what. */
static int loads_check(struct overlap *o)
{
	for (unsigned i = 0; i < o->gang.n; i++) {
		struct gx_load_check check = GX_INIT(check);
		int ret = gx_load_check(o->load[i], &check);

		if (ret)
			return load_failed(o, "check of the load", ret);
		if (check.wrong) {
			out_error(o->out,
				  "the load is wrong on GPU %u: %u of %u elements, by up to %g", i,
				  check.wrong, check.nr, check.worst);
			return PERF_WRONG;
		}
		if (!i)
			out_section(o->out, "%s; %u elements compared with the CPU's, worst %g",
				    o->info.name, check.nr, check.worst);
	}
	return PERF_OK;
}

static int overlap_load(struct overlap *o, unsigned grid, uint64_t size, bool first)
{
	int ret = loads_open(o, grid);

	if (!ret)
		ret = loads_check(o);
	if (!ret)
		ret = overlap_ways(o, size, first);
	loads_close(o);
	return ret;
}

/* GPUs that the ways need: one, two, or all. */
static unsigned overlap_gpus(struct out *out)
{
	bool between = false;
	char name[32];

	for (const char *at = opts.ways; *at;) {
		const struct way_ops *ops;

		at = way_word(at, name);
		ops = way_find(name);
		between |= ops && ops->patterns;
	}
	if (opts.gpus)
		return opts.gpus;
	if (!between)
		return 1;
	return opts.pattern <= GANG_BOTH ? 2 : gang_count();
}

static int overlap_check(struct out *out, unsigned gpus)
{
	for (unsigned i = 0; i < opts.sizes.n; i++)
		if (opts.sizes.v[i] % (16 * gpus)) {
			out_error(out, "--sizes: %llu is no multiple of %u",
				  (unsigned long long)opts.sizes.v[i], 16 * gpus);
			return PERF_USAGE;
		}
	if (gpus < 2 && opts.gpus && opts.pattern) {
		out_error(out, "--gpus 1: %s needs two", gang_pattern_text(opts.pattern));
		return PERF_USAGE;
	}
	return PERF_OK;
}

int perf_overlap(const struct perf_opts *unused, struct out *out)
{
	static struct overlap o;
	unsigned gpus = overlap_gpus(out);
	int ret = overlap_check(out, gpus);

	if (!opts.nr_grids)
		grid_parse("1x1,4x4,8x8,16x16,32x32,40x40");
	if (strcmp(opts.load, "gemm"))
		opts.nr_grids = 1;
	o.out = out;
	for (unsigned i = 0; i < opts.sizes.n && !ret; i++) {
		ret = gang_open(out, gpus ? gpus : 2, opts.pattern, opts.sizes.v[i], &o.gang);
		for (unsigned k = 0; k < opts.nr_grids && !ret; k++)
			ret = overlap_load(&o, k, opts.sizes.v[i], !i);
		loads_close(&o);
		gang_close(&o.gang);
	}
	nccl_end();
	return ret;
}
