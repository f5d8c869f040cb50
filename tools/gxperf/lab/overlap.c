// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf overlap: how communication slows a computation, and the reverse. Each load and each mover
 * runs alone; then both run at once without end; then in pairs (as many of one as of the
 * other; the next pair starts when both have ended; two pairs are queued). Loads run on GPUs or
 * CPUs. A mover is of this process, or another gxperf as a child. The CPU checks results of loads,
 * and all payload is compared. Main thread only.
 */
#include "gxperf/base/cpu_load.h"
#include "gxperf/lab/lab.h"
#include "gxperf/lab/mover.h"

#include <gxlab/load.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OVERLAP_ROUNDS	99
#define OVERLAP_GRIDS	16
#define OVERLAP_ARGS	100
#define OVERLAP_NAP_NS	50000 /* between looks, if both load and command need the CPUs */
#define LOAD_DEPTH	4
#define WARM_TIMES	3 /* warm up so many times as long as the timed part */
#define MOVER_BATCH	16
#define MOVER_BATCH_MAX ((uint64_t)1 << 20)

static struct {
	struct opt_sizes sizes;
	struct opt_list sms;
	const char *ways, *load, *lib_path; /* ways NULL: gx, or the command alone */
	char *command[OVERLAP_ARGS + 1];    /* after --; NULL at the end */
	unsigned nr_args;
	struct opt_cpus cpus; /* for a load of CPUs */
	enum gpus_pattern pattern;
	struct {
		uint32_t x, y;
	} grid[OVERLAP_GRIDS];
	unsigned nr_grids;
	uint32_t n, batch, heads, tokens, head_dim, gpus, rounds;
	uint64_t ns, launch;
	double rate;
} opts = {.sizes = {{64 << 20}, 1},
	  .sms = {{4, 8, 16}, 3},
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
	KEY_CORES,
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
	{NULL, 0, NULL, 0, "The computation, on every GPU, or on CPUs:", 1},
	{"load", KEY_LOAD, "NAME", 0,
	 "gemm (own kernel, default), cublas (bf16), attention (cuBLAS and an own softmax); "
	 "cpu-triad (a = b + 3 c, bound by memory), cpu-gemm (own fp32 product)",
	 1},
	{"grid", KEY_GRID, "XxY,...", 0,
	 "gemm: thread blocks; default 1x1,4x4,8x8,16x16,32x32,40x40", 1},
	{"cores", KEY_CORES, "LIST", 0,
	 "cpu-triad, cpu-gemm: CPUs, a thread on each; default: all this process may use", 1},
	{"n", KEY_N, "N", 0,
	 "Rows and columns; default 4096 (gemm), 8192 (cublas), 512 (cpu-gemm, of each CPU). "
	 "cpu-triad: elements of each array and CPU; default 4194304",
	 1},
	{"batch", KEY_BATCH, "N", 0, "attention; default 8", 1},
	{"heads", KEY_HEADS, "N", 0, "attention; default 64", 1},
	{"tokens", KEY_TOKENS, "N", 0, "attention; default 4096", 1},
	{"head-dim", KEY_HEAD_DIM, "N", 0, "attention; default 128", 1},
	{NULL, 0, NULL, 0, "The communication:", 2},
	{"comm", KEY_COMM, "WAY,...", 0,
	 "gx (default), peer, nccl, nccl-zero, unpack, unpack-resident: see gxperf compare. "
	 "Behind -- instead, or as well: put, get, send, lat, allgather or alltoall with its "
	 "options, as a process of its own",
	 2},
	{"pattern", KEY_PATTERN, "NAME", 0, "write (default), read, both, allgather, alltoall", 2},
	{"sizes", KEY_SIZES, "LIST", 0, "A list, or BEGIN:END:FACTOR; default 64M", 2},
	{"gpus", KEY_GPUS, "N", 0, "GPUs; default: 2, for allgather and alltoall all", 2},
	{"sms", KEY_SMS, "LIST", 0, "unpack, unpack-resident: bounds on SMs; default 4,8,16", 2},
	{"rate", KEY_RATE, "GB/s", 0,
	 "unpack, unpack-resident: rate to keep, 0: as it goes; default 50", 2},
	{"launch", KEY_LAUNCH, "SIZE", 0,
	 "unpack, unpack-resident: payload of one launch, 512K to 128M, a power of two; default 4M",
	 2},
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
	static const char *const names[] = {"gemm", "cublas", "attention", "cpu-triad", "cpu-gemm"};
	unsigned place;

	opts.load = arg;
	return opt_name(arg, names, sizeof(names) / sizeof(names[0]), &place);
}

static bool load_on_cpus(void)
{
	return !strncmp(opts.load, "cpu-", 4);
}

static int cores_parse(const char *arg)
{
	return opt_cpus(arg, &opts.cpus);
}

static int pattern_parse(const char *arg)
{
	return gpus_pattern_parse(arg, &opts.pattern);
}

static int launch_parse(const char *arg)
{
	return opt_size(arg, &opts.launch) || opts.launch < 512u << 10 ||
			       opts.launch > 128u << 20 || (opts.launch & (opts.launch - 1))
		       ? -EINVAL
		       : 0;
}

static const struct opt_value overlap_values[] = {
	{KEY_LOAD, OPT_CALL, .parse = load_parse},
	{KEY_GRID, OPT_CALL, .parse = grid_parse},
	{KEY_CORES, OPT_CALL, .parse = cores_parse},
	{KEY_N, OPT_U32, &opts.n, 1, 1u << 28},
	{KEY_BATCH, OPT_U32, &opts.batch, 1, 65536},
	{KEY_HEADS, OPT_U32, &opts.heads, 1, 65536},
	{KEY_TOKENS, OPT_U32, &opts.tokens, 1, 65536},
	{KEY_HEAD_DIM, OPT_U32, &opts.head_dim, 1, 65536},
	{KEY_COMM, OPT_TEXT, &opts.ways},
	{KEY_PATTERN, OPT_CALL, .parse = pattern_parse},
	{KEY_SIZES, OPT_SIZES, &opts.sizes},
	{KEY_GPUS, OPT_U32, &opts.gpus, 1, GPUS_MAX},
	{KEY_SMS, OPT_LIST, &opts.sms},
	{KEY_RATE, OPT_CALL, .parse = rate_parse},
	{KEY_LAUNCH, OPT_CALL, .parse = launch_parse},
	{KEY_ROUNDS, OPT_U32, &opts.rounds, 1, OVERLAP_ROUNDS},
	{KEY_SECONDS, OPT_SECONDS, &opts.ns},
	{KEY_LIB_PATH, OPT_TEXT, &opts.lib_path},
	{0},
};

static error_t overlap_parse(int key, char *arg, struct argp_state *state)
{
	if (key != ARGP_KEY_ARG)
		return opt_parse(overlap_options, overlap_values, key, arg, state);
	if (!opts.nr_args && !mover_command_known(arg))
		argp_error(
			state,
			"'%s' cannot run beside a load: behind -- there are put, get, send, lat, "
			"allgather and alltoall",
			arg);
	if (opts.nr_args == OVERLAP_ARGS)
		argp_error(state, "more than %d words behind --", OVERLAP_ARGS);
	opts.command[opts.nr_args++] = arg;
	return 0;
}

const struct argp perf_overlap_argp = {.options = overlap_options, .parser = overlap_parse};

/* ---- One load and one mover at once ---- */

struct overlap {
	struct report *report;
	struct gpus gpus;
	struct gx_load *load[GPUS_MAX];
	struct cpu_load *cpu_load;
	struct gx_load_info info;
	char load_name[32]; /* "gemm 4x4" */
	struct mover mover;
	uint64_t checked_b, wrong;
};

/* Times of one unit in microseconds: alone, with the other, both in pairs. One column for each
 * round. */
struct times {
	double comp[OVERLAP_ROUNDS], comm[OVERLAP_ROUNDS];
	double comp_beside[OVERLAP_ROUNDS], comm_beside[OVERLAP_ROUNDS], both[OVERLAP_ROUNDS];
};

static int overlap_failed(struct overlap *o, const char *what, int err)
{
	return mover_failed(&o->mover, what, err);
}

static double activities_us(const struct activity *a, unsigned n)
{
	double sum = 0;

	for (unsigned i = 0; i < n; i++)
		sum += activity_us(&a[i]);
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

static int cpu_post_arg(void *arg)
{
	return cpu_load_post(arg);
}

static int cpu_ended_arg(void *arg, uint64_t *nr)
{
	return cpu_load_done(arg, nr);
}

/* Fill in all loads. Return: their number. */
static unsigned load_activities(const struct overlap *o, struct activity *a)
{
	if (o->cpu_load) {
		a[0] = (struct activity){.arg = o->cpu_load,
					 .post = cpu_post_arg,
					 .ended = cpu_ended_arg,
					 .depth = LOAD_DEPTH};
		return 1;
	}
	for (unsigned i = 0; i < o->gpus.n; i++)
		a[i] = (struct activity){.arg = o->load[i],
					 .post = load_post_arg,
					 .ended = load_ended_arg,
					 .depth = LOAD_DEPTH};
	return o->gpus.n;
}

static int overlap_round(struct overlap *o, struct times *t, unsigned r)
{
	struct activity a[ACTIVITY_MAX];
	unsigned n = load_activities(o, a);
	double first;
	int ret;

	a[n] = mover_activity(&o->mover, mover_depth(&o->mover));
	if (o->cpu_load && o->mover.ops == &mover_command)
		a[n].nap_ns = OVERLAP_NAP_NS;
	ret = activity_run(a + n, 1, opts.ns, false);
	if (ret)
		return overlap_failed(o, "communication alone", ret);
	t->comm[r] = activity_us(&a[n]);
	/* The first run is not timed: a GPU that has rested is faster until it reaches its power
	 * limit. */
	ret = activity_run(a, n, opts.ns * WARM_TIMES, false);
	if (!ret)
		ret = activity_run(a, n, opts.ns, false);
	if (ret)
		return overlap_failed(o, "computation alone", ret);
	first = activities_us(a, n);
	ret = activity_run(a, n + 1, opts.ns, false);
	if (ret)
		return overlap_failed(o, "both", ret);
	t->comp_beside[r] = activities_us(a, n);
	t->comm_beside[r] = activity_us(&a[n]);
	ret = activity_run(a, n, opts.ns, false);
	if (ret)
		return overlap_failed(o, "computation alone again", ret);
	t->comp[r] = (first + activities_us(a, n)) / 2;
	ret = activity_run(a, n + 1, opts.ns, true);
	if (ret)
		return overlap_failed(o, "pairs", ret);
	t->both[r] = activities_us(a, n + 1);
	return PERF_OK;
}

/* Of pairs. Ideal: 1 if the longer one hides the shorter one; 0 if the pair takes as long as one
 * after the other. */
static void times_pair(const struct times *t, double *slowdown, double *ideal)
{
	double slow[OVERLAP_ROUNDS], hid[OVERLAP_ROUNDS];

	for (unsigned i = 0; i < opts.rounds; i++) {
		slow[i] = t->both[i] / fmax(t->comp[i], t->comm[i]);
		hid[i] = (t->comp[i] + t->comm[i] - t->both[i]) / fmin(t->comp[i], t->comm[i]);
	}
	*slowdown = activity_median(slow, opts.rounds);
	*ideal = activity_median(hid, opts.rounds);
}

static void overlap_row(struct overlap *o, struct times *t)
{
	bool between = o->mover.ops->patterns, command = o->mover.ops == &mover_command;
	struct report_row row = bench_row(mover_name(&o->mover),
					  between || command ? o->mover.size : o->mover.unit_b, 0);
	double keep_comp = activity_median_ratio(t->comp, t->comp_beside, opts.rounds);
	double keep_comm = activity_median_ratio(t->comm, t->comm_beside, opts.rounds);
	double comm, beside, slow, ideal;

	times_pair(t, &slow, &ideal); /* before median() sorts the rounds */
	comm = activity_median(t->comm, opts.rounds);
	beside = activity_median(t->comm_beside, opts.rounds);

	const struct report_cell cells[] = {
		{"load", "load", 0, o->load_name},
		{"pattern", "pattern", 0,
		 between   ? gpus_pattern_text(o->mover.pattern)
		 : command ? "process"
			   : "local"},
		{"comp_us", "Tcomp us", activity_median(t->comp, opts.rounds), NULL},
		{"comm_us", "Tcomm us", comm, NULL},
		{"both_us", "Tboth us", activity_median(t->both, opts.rounds), NULL},
		{"slowdown", "slowdown", slow, NULL},
		{"ideal", "of ideal", ideal, NULL},
		{"slow_comp", "comp x", 1 / keep_comp, NULL},
		{"slow_comm", "comm x", 1 / keep_comm, NULL},
		{"keep_comp", "comp keeps", keep_comp, NULL},
		{"keep_comm", "comm keeps", keep_comm, NULL},
		{"GB_s", "GB/s alone", (double)o->mover.unit_b / 1e3 / comm, NULL},
		{"GB_s_beside", "beside", (double)o->mover.unit_b / 1e3 / beside, NULL},
		{"sms", "SMs", o->mover.sms < 0 ? NAN : o->mover.sms, NULL},
		{"comp_beside_us", NULL, activity_median(t->comp_beside, opts.rounds), NULL},
		{"comm_beside_us", NULL, beside, NULL},
		{"blocks", NULL, o->info.blocks ? o->info.blocks : NAN, NULL},
		{"messages", NULL, o->mover.batch, NULL},
		{"gpus", NULL, o->gpus.n, NULL},
		{"TFLOP_s", NULL, o->info.flop / 1e6 / activity_median(t->comp, opts.rounds), NULL},
		{"load_in_words", NULL, 0, o->info.name},
		{"rounds", NULL, opts.rounds, NULL},
		{"link", NULL, NAN, command ? o->mover.link : NULL},
	};

	row.checked = !o->mover.unchecked;
	row.checked_b = o->checked_b;
	row.wrong = o->wrong;
	report_cells(o->report, &row, cells, sizeof(cells) / sizeof(cells[0]));
}

static int overlap_mover(struct overlap *o, const struct mover_ops *ops, uint64_t size, int sms)
{
	static struct times t;
	int ret;

	o->mover = (struct mover){.ops = ops,
				  .gpus = &o->gpus,
				  .pattern = opts.pattern,
				  .size = size,
				  .batch = size <= MOVER_BATCH_MAX && opts.pattern <= GPUS_BOTH &&
							   ops->patterns
						   ? MOVER_BATCH
						   : 1,
				  .want_sms = sms,
				  .rate = opts.rate,
				  .lib_path = opts.lib_path,
				  .command = opts.command};
	o->checked_b = o->wrong = 0;
	report_progress(o->report, "%s, %s, %llu bytes", o->load_name, ops->name,
			(unsigned long long)size);
	ret = mover_open(&o->mover);
	if (!ret)
		ret = ops->fill(&o->mover);
	for (unsigned r = 0; r < opts.rounds && !ret; r++)
		ret = overlap_round(o, &t, r);
	if (!ret)
		ret = ops->check(&o->mover, &o->checked_b, &o->wrong);
	if (!ret)
		overlap_row(o, &t);
	if (ret && o->mover.status)
		ret = o->mover.status;
	mover_close(&o->mover);
	return ret ? ret : o->wrong ? PERF_WRONG : PERF_OK;
}

/* Copy the word at @at into @name. Return: the rest. */
static const char *mover_word(const char *at, char name[32])
{
	size_t len = strcspn(at, ",");

	memset(name, 0, 32);
	memcpy(name, at, len < 31 ? len : 31);
	return at + len + (at[len] == ',');
}

/* Run every mover of --comm, and the command. A mover that is not between GPUs takes bounds on SMs
 * instead of sizes. The command has sizes of its own. */
static int overlap_movers(struct overlap *o, uint64_t size, bool first)
{
	char name[32];
	int ret = PERF_OK;

	for (const char *at = opts.ways; *at && !ret;) {
		const struct mover_ops *ops;

		at = mover_word(at, name);
		ops = mover_find(name);
		if (!ops) {
			report_error(o->report, "--comm: there is no way '%s'; there are %s", name,
				     mover_names());
			return PERF_USAGE;
		}
		if (ops->patterns)
			ret = overlap_mover(o, ops, size, 0);
		for (unsigned i = 0; !ops->patterns && first && i < opts.sms.n && !ret; i++)
			ret = overlap_mover(o, ops, opts.launch, (int)opts.sms.v[i]);
	}
	if (opts.nr_args && first && !ret)
		ret = overlap_mover(o, &mover_command, 0, 0);
	return ret;
}

/* ---- loads ---- */

static void loads_close(struct overlap *o)
{
	for (unsigned i = 0; i < GPUS_MAX; i++) {
		gx_load_close(o->load[i]);
		o->load[i] = NULL;
	}
	cpu_load_close(o->cpu_load);
	o->cpu_load = NULL;
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

static int cpu_load_begin(struct overlap *o)
{
	struct cpu_load_opts l = {.kind = !strcmp(opts.load, "cpu-gemm") ? CPU_LOAD_GEMM
									 : CPU_LOAD_TRIAD,
				  .n = opts.n,
				  .cpus = opts.cpus};
	int ret;

	if (!l.n)
		l.n = l.kind == CPU_LOAD_GEMM ? 512 : 4u << 20;
	ret = cpu_load_open(&l, &o->cpu_load);
	if (ret == -EINVAL) {
		report_error(o->report, "--n: %s takes %s, not %u", opts.load,
			     l.kind == CPU_LOAD_GEMM ? "a multiple of 64 up to 16384"
						     : "up to 33554432 elements",
			     l.n);
		return PERF_USAGE;
	}
	if (ret) {
		report_error(o->report, "%s: %s", opts.load, strerror(-ret));
		return PERF_FAILED;
	}
	cpu_load_info(o->cpu_load, &o->info);
	snprintf(o->load_name, sizeof(o->load_name), "%s", opts.load);
	return PERF_OK;
}

static int load_failed(struct overlap *o, const char *what, int err)
{
	report_error(o->report, "%s: %s (%s)", what, gx_engine_why(), strerror(-err));
	return err == -EINVAL ? PERF_USAGE : PERF_FAILED;
}

static int loads_open(struct overlap *o, unsigned grid)
{
	struct gx_load_opts l = load_opts(grid);

	o->info.size = sizeof(o->info);
	if (load_on_cpus())
		return cpu_load_begin(o);
	for (unsigned i = 0; i < o->gpus.n; i++) {
		int ret = gx_load_open(o->gpus.gpu[i].engine, &l, &o->load[i]);

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

/* Check the results of the loads, and print the name of the load. */
static int loads_check(struct overlap *o)
{
	unsigned n = o->cpu_load ? 1 : o->gpus.n;

	for (unsigned i = 0; i < n; i++) {
		struct gx_load_check check = GX_INIT(check);
		int ret = o->cpu_load ? cpu_load_check(o->cpu_load, &check)
				      : gx_load_check(o->load[i], &check);

		if (ret)
			return load_failed(o, "check of the load", ret);
		if (check.wrong) {
			report_error(o->report,
				     "the load is wrong on %s %u: %u of %u elements, by up to %g",
				     o->cpu_load ? "CPU" : "GPU",
				     o->cpu_load ? (unsigned)opts.cpus.cpu[0] : i, check.wrong,
				     check.nr, check.worst);
			return PERF_WRONG;
		}
		if (!i)
			report_section(o->report,
				       "%s; %u elements compared with the CPU's, worst %g",
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
		ret = overlap_movers(o, size, first);
	loads_close(o);
	return ret;
}

/* ---- all of it ---- */

static bool movers_between(void)
{
	bool between = false;
	char name[32];

	for (const char *at = opts.ways; *at;) {
		const struct mover_ops *ops;

		at = mover_word(at, name);
		ops = mover_find(name);
		between |= ops && ops->patterns;
	}
	return between;
}

/* Number of GPUs that load and movers need: none, one, two, or all. */
static unsigned overlap_gpus(bool between)
{
	unsigned all;

	if (opts.gpus)
		return opts.gpus;
	if (!between)
		return !load_on_cpus();
	if (opts.pattern <= GPUS_BOTH)
		return 2;
	all = gpus_count();
	return all ? all : 2; /* then gpus_open() reports the lack */
}

static int overlap_check(struct report *report, bool between, unsigned gpus)
{
	struct opt_cpus allowed;
	int cpu;

	for (unsigned i = 0; i < opts.sizes.n && between; i++)
		if (opts.sizes.v[i] % (16 * gpus)) {
			report_error(report, "--sizes: %llu is no multiple of %u",
				     (unsigned long long)opts.sizes.v[i], 16 * gpus);
			return PERF_USAGE;
		}
	if (gpus < 2 && opts.gpus && opts.pattern) {
		report_error(report, "--gpus 1: %s needs two", gpus_pattern_text(opts.pattern));
		return PERF_USAGE;
	}
	if (opt_cpus_allowed(&allowed))
		return PERF_FAILED;
	cpu = opt_cpus_stranger(&opts.cpus, &allowed);
	if (cpu >= 0) {
		report_error(report, "--cores: this process may not use CPU %d (see taskset -p)",
			     cpu);
		return PERF_USAGE;
	}
	if (!opts.cpus.nr)
		opts.cpus = allowed;
	return PERF_OK;
}

int perf_overlap(const struct perf_opts *unused, struct report *report)
{
	static struct overlap o;
	unsigned gpus;
	bool between;
	int ret;

	if (!opts.ways)
		opts.ways = opts.nr_args ? "" : "gx";
	between = movers_between();
	gpus = overlap_gpus(between);
	ret = overlap_check(report, between, gpus);
	if (!opts.nr_grids)
		grid_parse("1x1,4x4,8x8,16x16,32x32,40x40");
	if (strcmp(opts.load, "gemm"))
		opts.nr_grids = 1;
	if (!between)
		opts.sizes.n = 1;
	o.report = report;
	if (!ret && opts.rounds > 1)
		report_section(
			report,
			"each column is the median of its own over %u rounds; slowdown and ideal "
			"are computed in each round, not from these medians",
			opts.rounds);
	for (unsigned i = 0; i < opts.sizes.n && !ret; i++) {
		ret = gpus_open(report, gpus, opts.pattern, between ? opts.sizes.v[i] : 0, &o.gpus);
		for (unsigned k = 0; k < opts.nr_grids && !ret; k++)
			ret = overlap_load(&o, k, opts.sizes.v[i], !i);
		loads_close(&o);
		gpus_close(&o.gpus);
	}
	mover_nccl_end();
	return ret;
}
