// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf blocks --view: one put (--get: get) from one layout into another, in turns with a contiguous one of as
 * many bytes, and with the list of the runs. Each way has a place of its own at both ends. Main thread.
 */
#include "gxperf/move/blocks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAY_VIEW, WAY_PLAIN, WAY_LIST };
enum { LAYERS, TOKENS, HEADS };

/* How a case lies at one end, in bytes. A layer is as long as the rows of it. */
struct view_end {
	uint64_t row_b, token_b, head_b;
	uint32_t group, group_rows; /* so many rows lie together, of so many; 0: all */
};

/** struct view_case - Rows, in random order, of layers, tokens, heads: each is a run. */
struct view_case {
	const char *name;
	uint64_t run_b;
	uint32_t nr, count[3];
	struct view_end here, there;
};

/* 4 of 8 heads (TP 1 to 2), pages of 16 tokens, 32 layers; pages of 16 tokens, NHD, to pages of 64, HND: 8
 * heads, 32 layers; rows. */
static const struct view_case cases[] = {
	{"tp-split", 1024, 32, {32, 16, 1}, {32768, 2048}, {16384, 1024}},
	{"nhd-hnd", 256, 16, {32, 16, 8}, {32768, 2048, 256}, {4096, 256, 16384, 4, 32}},
	{"rows576", 576, 65536, {1, 1, 1}, {576}, {576}},
	{"rows656", 656, 65536, {1, 1, 1}, {656}, {656}},
};

static uint64_t case_row_b(const struct view_case *c)
{
	return c->run_b * c->count[LAYERS] * c->count[TOKENS] * c->count[HEADS];
}

static uint64_t case_runs(const struct blocks *b)
{
	return blocks_list_b(b) / b->view->run_b;
}

uint64_t views_place_b(const struct blocks *b)
{
	uint64_t here_b = b->nr * b->view->here.row_b * b->view->count[LAYERS];

	return here_b > blocks_list_b(b) ? here_b : blocks_list_b(b);
}

int views_usage(struct blocks *b, struct report *report)
{
	const struct perf_opts *o = b->perf.opts;

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (!strcmp(o->blocks.view, cases[i].name))
			b->view = &cases[i];
	if (!b->view)
		report_error(report, "--view %s: tp-split, nhd-hnd, rows576 or rows656",
			     o->blocks.view);
	else if (o->traffic.size_given || o->tune.depth)
		report_error(report,
			     "--view has its sizes, and one operation at a time: leave -s and "
			     "--depth out");
	else if (b->view->there.group && o->blocks.nr % b->view->there.group)
		report_error(report, "--view %s: --blocks is a multiple of %u", b->view->name,
			     b->view->there.group);
	else {
		b->nr = o->blocks.nr ? o->blocks.nr : b->view->nr;
		b->size = case_row_b(b->view);
		b->depth = case_runs(b) <= GX_SEGS_MAX ? BLOCKS_WAYS : BLOCKS_WAYS - 1;
		return PERF_OK;
	}
	return PERF_USAGE;
}

/* ---- Layouts ---- */

static struct gx_view view_of(const struct blocks *b, const struct view_end *e,
			      const uint32_t *rows)
{
	const uint32_t *n = b->view->count;
	bool packed = e == &b->view->there;
	uint64_t layer_b = packed ? blocks_list_b(b) / n[LAYERS] : b->nr * e->row_b;

	return (struct gx_view){.run_b = b->view->run_b,
				.dim = {{n[LAYERS], (int64_t)layer_b},
					{n[TOKENS], (int64_t)e->token_b},
					{n[HEADS], (int64_t)e->head_b}},
				.nr_dims = 3,
				.nr_rows = b->nr,
				.rows = rows,
				.row_b = e->row_b};
}

/* Where run @i of the operation begins, by plain arithmetic. */
static uint64_t run_off(const struct blocks *b, const struct view_end *e, const uint32_t *rows,
			uint64_t i)
{
	struct gx_view v = view_of(b, e, rows);
	uint64_t off = 0;

	for (unsigned d = v.nr_dims; d-- > 0; i /= v.dim[d].count)
		off += i % v.dim[d].count * (uint64_t)v.dim[d].stride_b;
	return off + rows[i] * e->row_b;
}

static uint64_t run_here(const struct blocks *b, unsigned way, uint64_t i)
{
	return way * views_place_b(b) + (way == WAY_PLAIN ? run_off(b, &b->view->there, b->there, i)
							  : run_off(b, &b->view->here, b->here, i));
}

static uint64_t run_there(const struct blocks *b, unsigned way, uint64_t i)
{
	return way * views_place_b(b) + run_off(b, &b->view->there, b->there, i);
}

static int list_open(struct blocks *b)
{
	uint64_t n = case_runs(b);
	struct gx_seg *segs = calloc(n, sizeof(*segs));
	int ret = segs ? 0 : -1;

	for (uint64_t i = 0; segs && i < n; i++)
		segs[i] = (struct gx_seg){
			b->local, run_here(b, WAY_LIST, i), b->perf.conns[0].region.token,
			b->perf.offset + run_there(b, WAY_LIST, i), b->view->run_b};
	if (segs)
		ret = gx_list_open(b->perf.gx, segs, (unsigned)n, &b->lists[WAY_LIST]);
	free(segs);
	return ret;
}

int views_open(struct blocks *b)
{
	const struct view_end *to = &b->view->there;
	struct gx_view here = view_of(b, &b->view->here, b->here), there;
	int ret;

	for (uint32_t i = 0; to->group && i < b->nr; i++)
		b->there[i] = b->there[i] / to->group * to->group_rows + b->there[i] % to->group;
	there = view_of(b, to, b->there);
	ret = gx_views_open(b->perf.gx, &(struct gx_views){&here, &there}, &b->lists[WAY_VIEW]);
	if (!ret && b->depth == BLOCKS_WAYS)
		ret = list_open(b);
	for (unsigned i = 0; i < b->depth; i++)
		b->ops[i] = (struct gx_op){.list = b->lists[i],
					   .mem = b->local,
					   .off = i * views_place_b(b),
					   .token = b->perf.conns[0].region.token,
					   .remote_off = b->perf.offset + i * views_place_b(b),
					   .len = i == WAY_PLAIN ? blocks_list_b(b) : 0};
	if (ret)
		report_error(b->perf.report, "cannot prepare --view %s: %s", b->view->name,
			     gx_error());
	return ret ? PERF_FAILED : PERF_OK;
}

/* ---- Payload ---- */

/* The places here as they are when all is right: where no run lies, poison. */
static int payload_make(const struct blocks *b, unsigned char *to)
{
	uint64_t len = blocks_list_b(b), base = b->perf.offset, place_b = views_place_b(b);
	unsigned char *there = malloc(len);

	check_poison(to, b->depth * place_b);
	for (unsigned way = 0; there && way < b->depth; way++) {
		check_pattern(there, len, base + way * place_b, PERF_SEED);
		check_stamp(there, len, 0, UINT64_MAX / 2, way);
		for (uint64_t i = 0; i < case_runs(b); i++)
			memcpy(to + run_here(b, way, i),
			       there + run_there(b, way, i) - way * place_b, b->view->run_b);
	}
	if (!there)
		report_error(b->perf.report, "no memory for a payload of %llu bytes",
			     (unsigned long long)len);
	free(there);
	return there ? PERF_OK : PERF_FAILED;
}

int views_payload(struct blocks *b)
{
	uint64_t place_b = views_place_b(b), len = b->depth * place_b;
	struct perf_slots s = {b->perf.offset, blocks_list_b(b), place_b, b->depth, 0};
	int ret = PERF_OK;

	if (b->get)
		check_poison(b->image, len);
	else
		ret = payload_make(b, b->image);
	if (!ret)
		ret = blocks_image(b, len, true);
	if (!ret)
		ret = b->get ? perf_fill(&b->perf, &s) : perf_poison(&b->perf, b->perf.offset, len);
	return ret;
}

static int here_verify(struct blocks *b, struct check_result res[])
{
	uint64_t place_b = views_place_b(b);
	unsigned char *want = malloc(b->depth * place_b);
	int ret = want ? payload_make(b, want) : PERF_FAILED;

	if (!ret)
		ret = blocks_image(b, b->depth * place_b, false);
	for (uint64_t i = 0; !ret && i < b->depth * place_b; i++)
		res[i / place_b].wrong += b->image[i] != want[i];
	for (unsigned way = 0; !ret && way < b->depth; way++)
		res[way].checked_b = blocks_list_b(b);
	free(want);
	return ret;
}

int views_verify(struct blocks *b, struct check_result res[])
{
	uint64_t place_b = views_place_b(b);
	int ret = b->get ? here_verify(b, res) : PERF_OK;

	for (unsigned way = 0; !b->get && !ret && way < b->depth; way++)
		ret = perf_verify(&b->perf,
				  &(struct perf_slots){b->perf.offset + way * place_b,
						       blocks_list_b(b), place_b, 1, way},
				  &res[way]);
	return ret;
}

int views_rows(struct blocks *b, const struct check_result res[])
{
	static const char *const names[] = {"view", "contiguous", "list"};
	uint64_t len = blocks_list_b(b), wrong = 0;
	double gb_s[BLOCKS_WAYS];

	for (unsigned way = 0; way < b->depth; way++)
		gb_s[way] = perf_gb_s(b->hist[way].count, len, b->hist[way].sum);
	for (unsigned way = 0; way < b->depth; way++) {
		const struct hist *h = &b->hist[way];
		struct report_row row = {.size_b = way == WAY_PLAIN ? len : b->view->run_b,
					 .count = h->count,
					 .checked = b->perf.opts->traffic.check,
					 .checked_b = res[way].checked_b,
					 .wrong = res[way].wrong};
		uint64_t nr = len / row.size_b;
		char op[64];

		snprintf(op, sizeof(op), "%s %s", b->get ? "get" : "put", names[way]);
		row.op = op;
		perf_row_hist(&row, h);
		report_cells(b->perf.report, &row,
			     (const struct report_cell[]){
				     {"view", NULL, 0, b->view->name},
				     {"blocks", "blocks", (double)nr, NULL},
				     {"count", "times", (double)h->count, NULL},
				     {"p50_us", "p50 us", row.p50_us, NULL},
				     {"p99_us", "p99 us", row.p99_us, NULL},
				     {"GB_s", "GB/s", gb_s[way], NULL},
				     {"of_contiguous", "of contiguous", gb_s[way] / gb_s[WAY_PLAIN],
				      NULL},
				     {"post_us", "post us",
				      (double)b->post_ns[way] / 1e3 / (double)h->count, NULL},
			     },
			     8);
		wrong += res[way].wrong;
	}
	if (!wrong)
		return perf_timed(&b->perf, b->hist[WAY_VIEW].count, len);
	report_error(b->perf.report, "--view %s: %llu wrong bytes", b->view->name,
		     (unsigned long long)wrong);
	return PERF_WRONG;
}
