// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf h2d: rows by an index list from pinned host memory into GPU memory, by gx's kernel as
 * listed and ordered, by its rivals, and the limits in the same run.
 * The destination is poisoned before each run, and every row compared after it.
 */
#include "gxperf/lab/bench.h"
#include "gxperf/lab/lab.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define H2D_CE_ROWS 16384  /* one driver call each: so many show the rate */
#define H2D_ROWS    262144 /* that move */
#define H2D_SLOTS   300000 /* that there are */

static struct {
	int device;
	struct opt_list rows, sms;
	uint32_t n;
	int engine; /* enum gx_gather_by; -1: all */
} opts = {.rows = {{656}, 1}, .sms = {{4}, 1}, .n = 10, .engine = -1};

enum { KEY_DEVICE = 600, KEY_ROWS, KEY_SMS, KEY_ENGINE };

static const struct argp_option h2d_options[] = {
	{"device", KEY_DEVICE, "N", 0, "CUDA device, -1: the CPU; default 0", 1},
	{"rows", KEY_ROWS, "LIST", 0, "Bytes of a row, multiples of 4 to 64K; default 656", 1},
	{"sms", KEY_SMS, "LIST", 0, "Bounds on SMs; default 4", 1},
	{"engine", KEY_ENGINE, "NAME", 0, "kernel, ce, cpu, auto; default all", 1},
	{NULL, 'n', "N", 0, "Times; default 10", 1},
	{0},
};

static int engine_parse(const char *arg)
{
	static const char *const names[] = {"auto", "kernel", "ce", "cpu"};

	return opt_name(arg, names, 4, (unsigned *)&opts.engine);
}

static const struct opt_value h2d_values[] = {
	{KEY_DEVICE, OPT_DEVICE, &opts.device}, {KEY_ROWS, OPT_LIST, &opts.rows},
	{KEY_SMS, OPT_LIST, &opts.sms},		{KEY_ENGINE, OPT_CALL, .parse = engine_parse},
	{'n', OPT_U32, &opts.n, 1, 10000},	{0},
};

static error_t h2d_parse(int key, char *arg, struct argp_state *state)
{
	return opt_parse(h2d_options, h2d_values, key, arg, state);
}

const struct argp perf_h2d_argp = {.options = h2d_options, .parser = h2d_parse};

/* One row size: the rows, the pairs, the limits. */
struct h2d {
	struct bench b;
	uint32_t row_b, slots, nr;
	const struct gx_row_pair *pairs; /* in GPU memory, for kernels */
	struct gx_row_pair *host_pairs;
	double limit; /* GB/s of one contiguous copy of as many bytes */
	int ret;
};

struct h2d_row {
	const char *op;
	enum gx_gather_by by;
	enum gx_gather_order order;
};

static uint64_t h2d_check(struct h2d *h, uint32_t nr)
{
	const uint8_t *got = h->b.back;
	uint64_t wrong = 0;

	if (bench_copy(&h->b, h->b.back, h->b.dev[0], (size_t)h->slots * h->row_b))
		return nr;
	for (uint32_t i = 0; i < nr; i++)
		wrong += memcmp(got + (size_t)h->host_pairs[i].dst * h->row_b,
				h->b.host + (size_t)h->host_pairs[i].src * h->row_b, h->row_b) != 0;
	return wrong;
}

static int h2d_poison(struct h2d *h)
{
	size_t len = (size_t)h->slots * h->row_b;

	memset(h->b.back, 0xa5, len);
	return bench_copy(&h->b, h->b.dev[0], h->b.back, len);
}

static struct gx_gather h2d_gather(const struct h2d *h, const struct h2d_row *r, unsigned sms)
{
	struct gx_gather g = GX_INIT(g);

	g.src = h->b.host;
	g.dst = h->b.dev[0];
	g.nr = h->nr;
	if (r->by == GX_GATHER_BY_CE && g.nr > H2D_CE_ROWS)
		g.nr = H2D_CE_ROWS;
	g.pairs = r->by == GX_GATHER_BY_CE || r->by == GX_GATHER_BY_CPU ? h->host_pairs : h->pairs;
	g.src_rows = g.dst_rows = h->slots;
	g.row_b = h->row_b;
	g.by = r->by;
	g.order = r->order;
	g.sms = sms;
	return g;
}

/* Post @n gathers as fast as the queue takes them, wait for all. Return: 0 with the times,
 * -errno. */
static int h2d_run(struct h2d *h, const struct gx_gather *g, uint32_t n, uint64_t *ns,
		   uint64_t *cpu_ns)
{
	uint64_t start = gx_now(), now = start, posted;
	uint32_t t = 0, done = 0;
	int ret = 0;

	*cpu_ns = 0;
	while (done < n && !ret) {
		now = gx_now();
		ret = gx_engine_gather(h->b.q, g, &t);
		posted = gx_now();
		if (!ret)
			*cpu_ns += posted - now;
		if (!ret)
			done++;
		else if (ret == -EAGAIN)
			ret = gx_engine_poll(h->b.q);
	}
	if (!ret)
		ret = gx_engine_wait(h->b.q, t, BENCH_WAIT_NS);
	*ns = gx_now() - start;
	return ret;
}

static int h2d_latency(struct h2d *h, const struct gx_gather *g, struct hist *hist)
{
	uint64_t ns, cpu;
	int ret = 0;

	hist_reset(hist);
	for (uint32_t i = 0; i < opts.n && !ret; i++) {
		ret = h2d_run(h, g, 1, &ns, &cpu);
		hist_record(hist, ns);
	}
	return ret;
}

static void h2d_row(struct h2d *h, const struct h2d_row *r, unsigned sms)
{
	struct gx_gather g = h2d_gather(h, r, sms);
	struct report_row row = bench_row(r->op, h->row_b, g.nr);
	static struct hist hist;
	uint32_t n = r->by == GX_GATHER_BY_CE ? 2 : opts.n;
	uint64_t ns = 1, cpu_ns = 0, bytes = (uint64_t)g.nr * h->row_b;
	int ret = h2d_poison(h);

	report_progress(h->b.report, "%s, rows of %u, %u SMs", r->op, h->row_b, sms);
	if (!ret)
		ret = h2d_run(h, &g, 1, &ns, &cpu_ns);
	if (!ret)
		ret = h2d_run(h, &g, n, &ns, &cpu_ns);
	if (!ret && n == opts.n)
		ret = h2d_latency(h, &g, &hist);
	else
		hist_reset(&hist);
	if (ret) {
		h->ret = bench_failed(&h->b, r->op, ret);
		return;
	}
	perf_row_hist(&row, &hist);
	row.gb_s = (double)bytes * n / (double)ns;
	row.sms = r->by == GX_GATHER_BY_KERNEL || r->by == GX_GATHER_BY_AUTO ? (int)sms : 0;
	row.cpu_us = (double)cpu_ns / n / 1e3;
	row.share = h->limit > 0 ? row.gb_s / h->limit : 0;
	row.checked = true;
	row.checked_b = bytes;
	row.wrong = h2d_check(h, g.nr);
	if (row.wrong)
		h->ret = PERF_WRONG;
	report_row(h->b.report, &row);
}

static void h2d_draw(struct h2d *h, bool repeats)
{
	uint32_t *perm = malloc(h->slots * sizeof(*perm));
	uint64_t rnd = 1;

	if (perm)
		bench_shuffle(perm, h->slots, h->slots, 1);
	for (uint32_t i = 0; i < h->nr; i++) {
		uint32_t any = bench_random(&rnd) % h->slots;

		h->host_pairs[i].dst = i;
		h->host_pairs[i].src = repeats || !perm ? any : perm[i];
	}
	free(perm);
	h->ret = bench_copy(&h->b, (void *)(uintptr_t)h->pairs, h->host_pairs,
			    h->nr * sizeof(*h->host_pairs));
}

static const struct h2d_row kind_rows[] = {
	{"listed", GX_GATHER_BY_KERNEL, GX_GATHER_ORDER_LISTED},
	{"ordered", GX_GATHER_BY_KERNEL, GX_GATHER_ORDER_SOURCE},
	{"auto", GX_GATHER_BY_AUTO, GX_GATHER_ORDER_AUTO},
	{"cpu", GX_GATHER_BY_CPU, GX_GATHER_ORDER_LISTED},
	{"ce", GX_GATHER_BY_CE, GX_GATHER_ORDER_LISTED},
};

static void h2d_table(struct h2d *h, unsigned sms, bool first)
{
	for (unsigned i = 0; i < 5 && !h->ret; i++) {
		const struct h2d_row *r = &kind_rows[i];
		bool kernel = r->by == GX_GATHER_BY_KERNEL || r->by == GX_GATHER_BY_AUTO;

		if ((kernel || first) && (opts.engine < 0 || opts.engine == (int)r->by))
			h2d_row(h, r, sms);
	}
}

static void h2d_ceiling(struct h2d *h)
{
	size_t len = (size_t)h->nr * h->row_b;
	struct report_row row = bench_row("ce-contiguous", len, opts.n);

	row.gb_s = h->limit = bench_copy_rate(&h->b, h->b.dev[0], h->b.host, len, opts.n);
	row.sms = 0;
	report_row(h->b.report, &row);
}

static int h2d_open(struct h2d *h, struct report *report)
{
	size_t rows_b = (size_t)h->slots * h->row_b, pairs_b = (size_t)h->nr * sizeof(*h->pairs);
	struct bench_want want = {
		.device = opts.device,
		.host_b = rows_b + pairs_b,
		.back_b = rows_b,
		.dev_b = {rows_b, pairs_b},
		.queue = {sizeof(want.queue), h->slots, h->nr, (size_t)h->nr * h->row_b},
	};
	int ret = bench_open(&want, report, &h->b);

	if (ret)
		return ret;
	bench_fill(h->b.host, rows_b, h->row_b);
	h->host_pairs = (struct gx_row_pair *)(h->b.host + rows_b);
	h->pairs = (const struct gx_row_pair *)h->b.dev[1];
	return PERF_OK;
}

static int h2d_size(uint32_t row_b, struct report *report)
{
	/* A gibibyte of rows is enough. The share of rows that move stays the same. */
	uint64_t fit = (1ull << 30) / row_b;
	uint64_t slots = H2D_SLOTS < fit ? H2D_SLOTS : fit;
	struct h2d h = {.row_b = row_b, .slots = (uint32_t)slots};

	h.nr = (uint32_t)(H2D_ROWS * slots / H2D_SLOTS);
	h.ret = h2d_open(&h, report);
	for (unsigned repeats = 0; repeats < 2 && !h.ret; repeats++) {
		report_section(report, "%s: %u %s rows of %u bytes out of %u, pinned to GPU",
			       h.b.info.name, h.nr, repeats ? "drawn" : "distinct", row_b, h.slots);
		h2d_draw(&h, repeats);
		if (!h.ret)
			h2d_ceiling(&h);
		for (unsigned i = 0; i < opts.sms.n && !h.ret; i++)
			h2d_table(&h, opts.sms.v[i], i == 0);
	}
	bench_close(&h.b);
	return h.ret;
}

int perf_h2d(const struct perf_opts *unused, struct report *report)
{
	int ret = PERF_OK;

	for (unsigned i = 0; i < opts.rows.n && !ret; i++) {
		if (!opts.rows.v[i] || opts.rows.v[i] % 4 || opts.rows.v[i] > 65536) {
			report_error(report, "--rows: %u is not a multiple of 4 from 4 to 65536",
				     opts.rows.v[i]);
			return PERF_USAGE;
		}
		ret = h2d_size(opts.rows.v[i], report);
	}
	return ret;
}
