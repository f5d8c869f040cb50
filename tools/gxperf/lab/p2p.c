// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf p2p: gx's path between two GPUs of one process, by size: queued back to back, alone from
 * the post until the CPU sees the end, and back and forth. gxperf compare: the same work by gx and
 * by its rivals, in interleaved rounds; with --comm between processes (pair.h). All payload is
 * compared after each run. Main thread only.
 */
#include "gxperf/lab/lab.h"
#include "gxperf/lab/mover.h"
#include "gxperf/lab/pair.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define P2P_BATCH     16
#define P2P_BATCH_MAX ((uint64_t)4 << 20) /* larger messages are queued one by one */
#define P2P_LONE_NR   200
#define P2P_LONE_NS   300000000ull

#define COMPARE_ROUNDS 99

#define DEFAULT_SIZES "4K:4G:4"

static struct {
	struct opt_sizes sizes;
	enum gpus_pattern pattern;
	bool patterns[GPUS_PATTERNS], any_pattern, ping_pong;
	uint32_t gpus, rounds;
	uint64_t ns, limit_ns;
	const char *ways, *lib_path, *comm, *ops, *plugin, *rank;
} opts = {.rounds = 3, .ns = 50000000, .limit_ns = PAIR_LIMIT_S * 1000000000ull};

enum {
	KEY_SIZES = 750,
	KEY_PATTERN,
	KEY_GPUS,
	KEY_ROUNDS,
	KEY_SECONDS,
	KEY_WAYS,
	KEY_LIB_PATH,
	KEY_COMM,
	KEY_OPS,
	KEY_PLUGIN,
	KEY_LIMIT,
	KEY_RANK,
};

static const struct argp_option p2p_options[] = {
	{"sizes", KEY_SIZES, "LIST", 0,
	 "Messages: a list, or BEGIN:END:FACTOR; default " DEFAULT_SIZES, 1},
	{"pattern", KEY_PATTERN, "NAME", 0,
	 "write, read, both, pingpong; may be repeated; default all", 1},
	{"seconds", KEY_SECONDS, "S", 0, "Each is timed for so long; default 0.05", 1},
	{0},
};

static const struct argp_option compare_options[] = {
	{"sizes", KEY_SIZES, "LIST", 0,
	 "Messages; shards (allgather); what a GPU sends (alltoall). A list, or BEGIN:END:FACTOR; "
	 "default " DEFAULT_SIZES,
	 1},
	{"pattern", KEY_PATTERN, "NAME", 0,
	 "write (default), read, both, allgather, alltoall; may be repeated", 1},
	{"gpus", KEY_GPUS, "N", 0,
	 "GPUs; default: two, for allgather and alltoall all. With --comm two, or 1: both ranks on "
	 "one, under MPS",
	 1},
	{"ways", KEY_WAYS, "LIST", 0, "gx, peer, nccl, nccl-zero; default: all that do the pattern",
	 1},
	{"rounds", KEY_ROUNDS, "N", 0, "Interleaved rounds, of which the median counts; default 3",
	 1},
	{"seconds", KEY_SECONDS, "S", 0, "Each way is timed for so long a round; default 0.05", 1},
	{"lib-path", KEY_LIB_PATH, "DIR:...", 0, "Folders where libnccl is looked for first", 1},
	{"comm", KEY_COMM, "LIST", 0,
	 "Instead: NCCL between two processes, by its Socket transport (nccl) and by gx's plugin "
	 "(nccl-gx)",
	 1},
	{"ops", KEY_OPS, "LIST", 0,
	 "With --comm: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send_recv; "
	 "default all",
	 1},
	{"plugin", KEY_PLUGIN, "FILE", 0,
	 "With --comm: gx's plugin; default: NCCL_NET_PLUGIN, else the file of this build", 1},
	{"limit", KEY_LIMIT, "S", 0,
	 "With --comm: a rank that has not answered for so long is lost; default 120", 1},
	{"as-rank", KEY_RANK, "NAME", OPTION_HIDDEN, "gxperf compare --comm starts its ranks so",
	 1},
	{0},
};

static int pattern_option(const char *arg)
{
	enum gpus_pattern p;

	opts.any_pattern = true;
	if (!strcmp(arg, "pingpong"))
		return opts.ping_pong = true, 0;
	if (gpus_pattern_parse(arg, &p))
		return -EINVAL;
	opts.patterns[p] = true;
	return 0;
}

static const struct opt_value gpus_values[] = {
	{KEY_SIZES, OPT_SIZES, &opts.sizes},
	{KEY_PATTERN, OPT_CALL, .parse = pattern_option},
	{KEY_GPUS, OPT_U32, &opts.gpus, 1, GPUS_MAX},
	{KEY_ROUNDS, OPT_U32, &opts.rounds, 1, COMPARE_ROUNDS},
	{KEY_SECONDS, OPT_SECONDS, &opts.ns},
	{KEY_WAYS, OPT_TEXT, &opts.ways},
	{KEY_LIB_PATH, OPT_TEXT, &opts.lib_path},
	{KEY_COMM, OPT_TEXT, &opts.comm},
	{KEY_OPS, OPT_TEXT, &opts.ops},
	{KEY_PLUGIN, OPT_TEXT, &opts.plugin},
	{KEY_LIMIT, OPT_SECONDS, &opts.limit_ns},
	{KEY_RANK, OPT_TEXT, &opts.rank},
	{0},
};

static error_t p2p_parse(int key, char *arg, struct argp_state *state)
{
	return opt_parse(p2p_options, gpus_values, key, arg, state);
}

static error_t compare_parse(int key, char *arg, struct argp_state *state)
{
	return opt_parse(compare_options, gpus_values, key, arg, state);
}

const struct argp perf_p2p_argp = {.options = p2p_options, .parser = p2p_parse};
const struct argp perf_compare_argp = {.options = compare_options, .parser = compare_parse};

/* Messages are multiples of 16 bytes. Each part of an all-to-all is a message. */
static int sizes_check(struct report *report, enum gpus_pattern pattern, unsigned n)
{
	uint64_t unit = pattern == GPUS_ALLTOALL ? 16ull * n : 16;

	if (!opts.sizes.n)
		opt_sizes(DEFAULT_SIZES, &opts.sizes);
	for (unsigned i = 0; i < opts.sizes.n; i++)
		if (opts.sizes.v[i] % unit) {
			report_error(report, "--sizes: %llu is no multiple of %llu",
				     (unsigned long long)opts.sizes.v[i], (unsigned long long)unit);
			return PERF_USAGE;
		}
	return PERF_OK;
}

static unsigned batch_of(uint64_t size)
{
	return size <= P2P_BATCH_MAX ? P2P_BATCH : 1;
}

static struct report_row row_of(const char *op, uint64_t size)
{
	struct report_row row = bench_row(op, size, 0);

	row.checked = true;
	return row;
}

/* ---- p2p ---- */

struct p2p {
	struct gpus gpus;
	struct mover mover;
	struct report *report;
	uint64_t size;
	struct report_row row;
};

/* Post and wait, again and again. @back: post this second mover when the first has ended. */
static int lone_run(struct mover *there, struct mover *back, struct hist *hist)
{
	uint64_t start = gx_now(), begin, now = start;
	int ret = 0;

	for (unsigned i = 0; i < P2P_LONE_NR + 2 && !ret && (i < 5 || now - start < P2P_LONE_NS);
	     i++) {
		begin = gx_now();
		ret = mover_post(there);
		if (!ret)
			ret = mover_wait(there);
		if (!ret && back)
			ret = mover_post(back);
		if (!ret && back)
			ret = mover_wait(back);
		now = gx_now();
		if (i >= 2)
			hist_record(hist, (now - begin) / (back ? 2 : 1));
	}
	return ret;
}

static void p2p_row(struct p2p *p, const char *mode, double us, const struct hist *hist,
		    double both)
{
	struct report_row lat = bench_row(mode, p->size, 0);
	double gb_s = (double)p->size * both / 1e3 / us;

	if (hist)
		perf_row_hist(&lat, hist);
	struct report_cell cells[] = {
		{"mode", "mode", 0, mode},
		{"GB_s", "GB/s", gb_s, NULL},
		{"Gb_s", "Gb/s", gb_s * 8, NULL},
		{"us", "us each", us, NULL},
		{"p50_us", "p50 us", lat.p50_us, NULL},
		{"p99_us", "p99 us", lat.p99_us, NULL},
		{"sms", "SMs", 0, NULL},
	};

	report_cells(p->report, &p->row, cells, sizeof(cells) / sizeof(cells[0]));
}

static int p2p_check(struct p2p *p)
{
	if (p->mover.ops->check(&p->mover, &p->row.checked_b, &p->row.wrong))
		return PERF_FAILED;
	return p->row.wrong ? PERF_WRONG : PERF_OK;
}

static int p2p_open(struct p2p *p, struct mover *w, enum gpus_pattern pattern, unsigned batch)
{
	int ret;

	*w = (struct mover){.ops = &mover_gx,
			    .gpus = &p->gpus,
			    .pattern = pattern,
			    .size = p->size,
			    .batch = batch};
	ret = mover_open(w);
	return ret ? ret : w->ops->fill(w);
}

static int p2p_queued(struct p2p *p, enum gpus_pattern pattern)
{
	unsigned batch = batch_of(p->size);
	struct activity activity;
	int ret = p2p_open(p, &p->mover, pattern, batch);

	if (ret)
		return ret;
	activity = mover_activity(&p->mover, batch > 1 ? 2 : P2P_BATCH);
	ret = activity_run(&activity, 1, opts.ns, false);
	if (ret)
		return mover_failed(&p->mover, "queued", ret);
	p->row = row_of(gpus_pattern_text(pattern), p->size);
	ret = p2p_check(p);
	p2p_row(p, "queued", activity_us(&activity) / batch, NULL, pattern == GPUS_BOTH ? 2 : 1);
	mover_close(&p->mover);
	return ret;
}

static int p2p_lone(struct p2p *p, enum gpus_pattern pattern)
{
	static struct hist hist;
	int ret = p2p_open(p, &p->mover, pattern, 1);

	hist_reset(&hist);
	if (ret)
		return ret;
	ret = lone_run(&p->mover, NULL, &hist);
	if (ret)
		return mover_failed(&p->mover, "lone", ret);
	p->row = row_of(gpus_pattern_text(pattern), p->size);
	ret = p2p_check(p);
	p2p_row(p, "lone", (double)hist_percentile(&hist, 500) / 1e3, &hist,
		pattern == GPUS_BOTH ? 2 : 1);
	mover_close(&p->mover);
	return ret;
}

static int p2p_ping_pong(struct p2p *p)
{
	static struct hist hist;
	struct mover back;
	int ret = p2p_open(p, &p->mover, GPUS_WRITE, 1);

	hist_reset(&hist);
	if (ret)
		return ret;
	ret = p2p_open(p, &back, GPUS_BOTH, 1);
	if (ret)
		return ret;
	/* Keep only the second of both directions. */
	back.copy[0] = back.copy[1];
	back.nr_copies = 1;
	mover_lanes(&back);
	ret = lone_run(&p->mover, &back, &hist);
	if (ret)
		return mover_failed(&p->mover, "ping-pong", ret);
	p->row = row_of("pingpong", p->size);
	p->mover.pattern = GPUS_BOTH; /* compare both directions */
	ret = p2p_check(p);
	p2p_row(p, "pingpong", (double)hist_percentile(&hist, 500) / 1e3, &hist, 1);
	mover_close(&back);
	mover_close(&p->mover);
	return ret;
}

static int p2p_size(struct p2p *p)
{
	int ret = PERF_OK;

	report_section(p->report, "%s to its peer, %llu bytes", p->gpus.name,
		       (unsigned long long)p->size);
	for (unsigned i = GPUS_WRITE; i <= GPUS_BOTH && !ret; i++) {
		if (opts.any_pattern && !opts.patterns[i])
			continue;
		ret = p2p_queued(p, i);
		if (!ret)
			ret = p2p_lone(p, i);
	}
	if (!ret && (!opts.any_pattern || opts.ping_pong))
		ret = p2p_ping_pong(p);
	return ret;
}

int perf_p2p(const struct perf_opts *unused, struct report *report)
{
	struct p2p p = {.report = report};
	int ret = sizes_check(report, GPUS_WRITE, 2);

	if (opts.patterns[GPUS_ALLGATHER] || opts.patterns[GPUS_ALLTOALL]) {
		report_error(report, "--pattern: p2p does write, read, both, pingpong");
		return PERF_USAGE;
	}
	for (unsigned i = 0; i < opts.sizes.n && !ret; i++) {
		p.size = opts.sizes.v[i];
		ret = gpus_open(report, 2, GPUS_BOTH, p.size, &p.gpus);
		if (!ret)
			ret = p2p_size(&p);
		mover_close(&p.mover);
		gpus_close(&p.gpus);
	}
	return ret;
}

/* ---- compare ---- */

#define COMPARE_MOVERS 4

struct compare {
	struct gpus gpus;
	struct report *report;
	enum gpus_pattern pattern;
	uint64_t size;
	struct mover mover[COMPARE_MOVERS];
	unsigned n, batch;
	double us[COMPARE_MOVERS][COMPARE_ROUNDS], lone_us[COMPARE_MOVERS][COMPARE_ROUNDS];
	uint64_t checked_b[COMPARE_MOVERS], wrong[COMPARE_MOVERS];
};

static const struct mover_ops *const compare_movers[COMPARE_MOVERS] = {
	&mover_gx, &mover_peer, &mover_nccl, &mover_nccl_zero};

static bool mover_wanted(const struct mover_ops *ops, enum gpus_pattern pattern)
{
	const char *at = opts.ways;
	size_t len = strlen(ops->name);

	if (!at)
		return ops->patterns & 1u << pattern;
	for (; *at; at += strcspn(at, ","), at += *at == ',')
		if (strcspn(at, ",") == len && !strncmp(at, ops->name, len))
			return true;
	return false;
}

static int compare_open(struct compare *c)
{
	int ret = PERF_OK;

	c->n = 0;
	for (unsigned i = 0; i < COMPARE_MOVERS && !ret; i++) {
		if (!mover_wanted(compare_movers[i], c->pattern))
			continue;
		c->checked_b[c->n] = c->wrong[c->n] = 0;
		c->mover[c->n] = (struct mover){.ops = compare_movers[i],
						.gpus = &c->gpus,
						.pattern = c->pattern,
						.size = c->size,
						.batch = c->batch,
						.lib_path = opts.lib_path};
		ret = mover_open(&c->mover[c->n++]);
	}
	if (!ret && !c->n) {
		report_error(c->report, "--ways: '%s': there are gx, peer, nccl, nccl-zero",
			     opts.ways ? opts.ways : "");
		ret = PERF_USAGE;
	}
	return ret;
}

/* One mover in one round: queued, alone, compared. */
static int compare_one(struct compare *c, unsigned i, unsigned round)
{
	struct mover *w = &c->mover[i];
	struct activity activity = mover_activity(w, mover_depth(w));
	static struct hist hist;
	int ret = w->ops->fill(w);

	if (ret)
		return ret;
	hist_reset(&hist);
	ret = activity_run(&activity, 1, opts.ns, false);
	if (!ret) {
		w->batch = 1;
		ret = lone_run(w, NULL, &hist);
		w->batch = c->batch;
	}
	if (ret)
		return mover_failed(w, "run", ret);
	c->us[i][round] = activity_us(&activity) / c->batch;
	c->lone_us[i][round] = (double)hist_percentile(&hist, 500) / 1e3;
	return w->ops->check(w, &c->checked_b[i], &c->wrong[i]);
}

static int compare_rows(struct compare *c)
{
	double ratio[COMPARE_MOVERS][2];
	int ret = PERF_OK;

	/* Ratios to mover 0, gx: above 1 gx is faster. Before activity_median() sorts the rounds. */
	for (unsigned i = 0; i < c->n; i++) {
		ratio[i][0] = activity_median_ratio(c->us[i], c->us[0], opts.rounds);
		ratio[i][1] = activity_median_ratio(c->lone_us[i], c->lone_us[0], opts.rounds);
	}
	for (unsigned i = 0; i < c->n; i++) {
		struct report_row row = row_of(c->mover[i].ops->name, c->size);
		bool gx = c->mover[0].ops == &mover_gx;
		double us = activity_median(c->us[i], opts.rounds);
		double gb_s = (double)gpus_moved(&c->gpus, c->pattern, c->size) / 1e3 / us;
		struct report_cell cells[] = {
			{"pattern", "pattern", 0, gpus_pattern_text(c->pattern)},
			{"gpus", "GPUs", c->gpus.n, NULL},
			{"GB_s", "GB/s", gb_s, NULL},
			{"Gb_s", "Gb/s", gb_s * 8, NULL},
			{"us", "us queued", us, NULL},
			{"ratio", "gx ratio", gx ? ratio[i][0] : NAN, NULL},
			{"lone_us", "us alone", activity_median(c->lone_us[i], opts.rounds), NULL},
			{"lone_ratio", "gx ratio", gx ? ratio[i][1] : NAN, NULL},
			{"rounds", NULL, opts.rounds, NULL},
		};

		row.checked_b = c->checked_b[i];
		row.wrong = c->wrong[i];
		report_cells(c->report, &row, cells, sizeof(cells) / sizeof(cells[0]));
		ret = row.wrong ? PERF_WRONG : ret;
	}
	return ret;
}

static int compare_size(struct compare *c)
{
	int ret = compare_open(c);

	for (unsigned r = 0; r < opts.rounds && !ret; r++)
		for (unsigned i = 0; i < c->n && !ret; i++) {
			report_progress(c->report, "%s, %llu bytes, round %u, %s",
					gpus_pattern_text(c->pattern), (unsigned long long)c->size,
					r + 1, c->mover[i].ops->name);
			ret = compare_one(c, i, r);
		}
	if (!ret)
		ret = compare_rows(c);
	for (unsigned i = 0; i < c->n; i++)
		mover_close(&c->mover[i]);
	return ret;
}

static int compare_pattern(struct compare *c, unsigned gpus)
{
	int ret = sizes_check(c->report, c->pattern, gpus);

	for (unsigned i = 0; i < opts.sizes.n && !ret; i++) {
		c->size = opts.sizes.v[i];
		c->batch = c->pattern <= GPUS_BOTH ? batch_of(c->size) : 1;
		ret = gpus_open(c->report, gpus, c->pattern, c->size, &c->gpus);
		if (!ret && !i)
			report_section(
				c->report, "%s, %u GPUs: %s; median of %u interleaved rounds",
				c->gpus.name, gpus, gpus_pattern_text(c->pattern), opts.rounds);
		if (!ret)
			ret = compare_size(c);
		gpus_close(&c->gpus);
	}
	return ret;
}

/* Options that the other kind of comparison has. */
static int compare_check(struct report *report)
{
	const char *why = NULL;

	if (opts.comm && (opts.any_pattern || opts.ways))
		why = "--comm has operations (--ops), neither --pattern nor --ways";
	else if (!opts.comm && (opts.ops || opts.plugin))
		why = "--ops and --plugin are for --comm";
	else if (!opts.comm && opts.gpus == 1)
		why = "--gpus 1 is for --comm";
	if (why)
		report_error(report, "%s", why);
	return why ? PERF_USAGE : PERF_OK;
}

int perf_compare(const struct perf_opts *unused, struct report *report)
{
	const struct pair_opts pair = {.comm = opts.comm,
				       .ops = opts.ops,
				       .lib_path = opts.lib_path,
				       .plugin = opts.plugin,
				       .sizes = &opts.sizes,
				       .gpus = opts.gpus,
				       .rounds = opts.rounds,
				       .ns = opts.ns,
				       .limit_ns = opts.limit_ns};
	static struct compare c;
	unsigned all;
	int ret;

	if (opts.rank)
		return pair_rank(opts.rank, &pair, report);
	ret = compare_check(report);
	if (ret || opts.comm)
		return ret ? ret : pair_compare(&pair, report);
	all = gpus_count();
	c.report = report;
	if (!opts.any_pattern)
		opts.patterns[GPUS_WRITE] = true;
	if (all < 2) {
		report_error(report, "compare needs two GPUs, there %s %u: %s",
			     all == 1 ? "is" : "are", all, gx_engine_why());
		return PERF_FAILED;
	}
	for (unsigned i = 0; i < GPUS_PATTERNS && !ret; i++) {
		if (!opts.patterns[i])
			continue;
		c.pattern = i;
		ret = compare_pattern(&c, i <= GPUS_BOTH ? 2 : opts.gpus ? opts.gpus : all);
	}
	mover_nccl_end();
	return ret;
}
