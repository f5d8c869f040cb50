// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf blocks: lists of many blocks, which lie at random places at both ends, with one
 * notification after them, a note. gxd's core answers it. A list is done when it has
 * completed and the answer is here. Each size is measured twice: with lists prepared by
 * gx_list_open(), and with segments given to each post. The thread that turns the core posts.
 */
#include "gxperf/move/blocks.h"
#include "gxperf/move/move.h"

#include "common/json.h"
#include "gxperf/base/stop.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS_SIZE	16384
#define BLOCKS_NR	256
#define BLOCKS_STRIDE_B 64	     /* alignment of places */
#define BLOCKS_LIST_B	(1ull << 36) /* gx_list_open()'s limit */
#define BLOCKS_B	(1ull << 30) /* default -n: so much payload in all */
#define BLOCKS_N_MIN	20
#define BLOCKS_N_MAX	10000
#define BLOCKS_COMPS	16
#define BLOCKS_TURNS	16	   /* of the core in one step */
#define BLOCKS_NOTE	UINT64_MAX /* .user of a note alone */

/* ---- On the core ---- */

/* What the note of a list says, and its answer; the low bits name the place. */
static uint32_t blocks_said(const struct blocks *b, uint64_t number)
{
	return (uint32_t)(number / b->depth * BLOCKS_DEPTH + number % b->depth);
}

static void blocks_finish(struct blocks *b, struct blocks_slot *s)
{
	unsigned way = b->view ? (unsigned)(s - b->slots) : 0;

	if (!s->done || !s->answered)
		return;
	b->end_ns = gx_now();
	hist_record(&b->hist[way], b->end_ns - s->posted_ns);
	*s = (struct blocks_slot){0};
	b->in_flight--;
	atomic_store_explicit(&b->count, atomic_load_explicit(&b->count, memory_order_relaxed) + 1,
			      memory_order_relaxed);
}

static void blocks_answer(struct blocks *b, const struct gx_comp *comp)
{
	struct blocks_slot *s;
	uint32_t said;

	if (!comp->note || comp->note_len != sizeof(said))
		return;
	memcpy(&said, comp->note, sizeof(said));
	s = &b->slots[said % BLOCKS_DEPTH];
	if (!s->busy || blocks_said(b, s->number) != said)
		return;
	s->answered = true;
	blocks_finish(b, s);
}

static void blocks_comp(struct blocks *b, const struct gx_comp *comp)
{
	struct blocks_slot *s = &b->slots[comp->user % b->depth];

	if (comp->kind == GX_COMP_NOTIFY) {
		blocks_answer(b, comp);
	} else if (comp->status) {
		b->err = b->err ?: comp->status;
	} else if (comp->len != blocks_list_b(b)) {
		b->err = b->err ?: -EIO;
	} else {
		s->done = true;
		s->note = b->get && !b->perf.queue;
		blocks_finish(b, s);
	}
}

/* Return: it was taken. */
static bool blocks_op(struct blocks *b, const struct gx_op *op)
{
	int ret = b->perf.queue ? gx_post_striped(b->queue, b->perf.conns[0].conn, op, 1)
				: gx_post(b->queue, b->ep, op, 1);

	if (ret < 0)
		b->err = ret;
	return ret > 0;
}

/* The note of a get, when the bytes are here. */
static void blocks_note(struct blocks *b, struct blocks_slot *s)
{
	uint32_t said = blocks_said(b, s->number);
	const struct gx_op op = {.kind = GX_OP_PUT,
				 .flags = GX_OP_NOTE | GX_OP_SILENT,
				 .user = BLOCKS_NOTE,
				 .note = &said,
				 .note_len = sizeof(said)};

	if (s->note && blocks_op(b, &op))
		s->note = false;
}

static bool blocks_post(struct blocks *b)
{
	unsigned i = (unsigned)(b->next % b->depth);
	struct blocks_slot *s = &b->slots[i];
	uint32_t said = blocks_said(b, b->next);
	struct gx_op op = b->ops[i];

	if (s->busy || (b->view && b->in_flight))
		return false;
	op.kind = b->get ? GX_OP_GET : GX_OP_PUT;
	op.user = b->next;
	if (!b->get && !b->perf.queue) {
		op.flags = GX_OP_NOTE;
		op.note = &said;
		op.note_len = sizeof(said);
	}
	*s = (struct blocks_slot){
		.busy = true, .answered = b->perf.queue, .number = b->next, .posted_ns = gx_now()};
	if (!blocks_op(b, &op)) {
		s->busy = false;
		return false;
	}
	b->post_ns[b->view ? i : 0] += gx_now() - s->posted_ns;
	b->begin_ns = b->begin_ns ?: s->posted_ns;
	b->in_flight++;
	b->next++;
	return true;
}

/* Each place takes part, however short the time. */
static bool blocks_over(const struct blocks *b, uint64_t now)
{
	return b->err || b->next == b->limit || stop_asked() ||
	       (b->deadline_ns && now >= b->deadline_ns && b->next - b->first >= b->depth);
}

static enum perf_step blocks_step(struct perf_job *job, uint64_t now)
{
	struct blocks *b = (struct blocks *)job;
	struct gx_comp comps[BLOCKS_COMPS];
	bool worked = false;

	for (unsigned k = 0; k < BLOCKS_TURNS; k++) {
		unsigned n = gx_poll(b->queue, comps, BLOCKS_COMPS);

		worked |= n;
		for (unsigned i = 0; i < n; i++)
			blocks_comp(b, &comps[i]);
		for (unsigned i = 0; b->get && i < b->depth; i++)
			blocks_note(b, &b->slots[i]);
		while (!blocks_over(b, now) && blocks_post(b))
			worked = true;
		if (b->err || (blocks_over(b, now) && !b->in_flight))
			return PERF_STEP_DONE;
		now = gx_now();
		if (!b->perf.queue)
			gx_core_turn(gx_ep_core(b->ep), now);
	}
	return worked ? PERF_STEP_BUSY : PERF_STEP_IDLE;
}

/* ---- Phases: main ---- */

/* Post @n lists (0: any number), for at most @duration_ns (0: any time). */
static int blocks_phase(struct blocks *b, uint64_t n, uint64_t duration_ns)
{
	int ret;

	b->first = b->next;
	b->limit = n ? b->next + n : UINT64_MAX;
	b->deadline_ns = duration_ns ? gx_now() + duration_ns : 0;
	b->begin_ns = b->end_ns = 0;
	atomic_store_explicit(&b->count, 0, memory_order_relaxed);
	for (unsigned i = 0; i < BLOCKS_WAYS; i++) {
		b->post_ns[i] = 0;
		hist_reset(&b->hist[i]);
	}
	perf_core_job(&b->perf.cores[0], &b->job);
	ret = perf_job_wait(&b->perf, &b->job, &b->count, b->size, "lists");
	if (!ret && b->err)
		ret = perf_op_failed(&b->perf, b->get ? "get" : "put", b->err);
	return ret;
}

/* ---- Places and payload: main ---- */

void blocks_shuffle(uint32_t *places, uint32_t n, uint64_t seed)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t j;

		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		j = (uint32_t)((seed >> 33) % (i + 1));
		places[i] = places[j];
		places[j] = i;
	}
}

static uint64_t blocks_stride(uint64_t size)
{
	return (size + BLOCKS_STRIDE_B - 1) & ~(uint64_t)(BLOCKS_STRIDE_B - 1);
}

static uint32_t blocks_total(const struct blocks *b)
{
	return b->nr * b->depth;
}

static void blocks_lists_close(struct blocks *b)
{
	for (unsigned i = 0; i < b->depth; i++) {
		gx_list_close(b->lists[i]);
		b->lists[i] = NULL;
	}
}

static int blocks_lists_open(struct blocks *b)
{
	uint64_t base = b->perf.offset;

	for (uint32_t i = 0; i < blocks_total(b); i++)
		b->segs[i] = (struct gx_seg){.mem = b->local,
					     .off = b->here[i] * b->stride,
					     .token = b->perf.conns[0].region.token,
					     .remote_off = base + b->there[i] * b->stride,
					     .len = b->size};
	for (unsigned i = 0; i < b->depth; i++) {
		if (!gx_list_open(b->perf.gx, b->segs + (size_t)i * b->nr, b->nr, &b->lists[i]))
			continue;
		report_error(b->perf.report, "cannot prepare a list: %s", gx_error());
		return PERF_FAILED;
	}
	return PERF_OK;
}

int blocks_image(struct blocks *b, uint64_t len, bool in)
{
	int ret = 0;

	if (b->image != gx_mem_addr(b->local))
		ret = in ? gx_mem_copy_in(b->local, 0, b->image, len)
			 : gx_mem_copy_out(b->local, 0, b->image, len);
	if (ret)
		report_error(b->perf.report, "cannot reach the local GPU: %s", gx_error());
	return ret ? PERF_FAILED : PERF_OK;
}

/* Poison the destination. Each block of the source becomes the message whose number is its place at
 * the server, so a block at a wrong place is seen. */
static int blocks_payload(struct blocks *b)
{
	uint64_t len = blocks_total(b) * b->stride, base = b->perf.offset;
	struct perf_slots s = {
		.off = base, .size = b->size, .stride = b->stride, .nr = blocks_total(b)};
	int ret;

	check_poison(b->image, len);
	for (uint32_t i = 0; !b->get && i < blocks_total(b); i++) {
		unsigned char *block = b->image + b->here[i] * b->stride;

		check_pattern(block, b->size, base + b->there[i] * b->stride, PERF_SEED);
		check_stamp(block, b->size, 0, UINT64_MAX / 2, b->there[i]);
	}
	ret = blocks_image(b, len, true);
	if (!ret)
		ret = b->get ? perf_fill(&b->perf, &s) : perf_poison(&b->perf, base, len);
	return ret;
}

static int blocks_verify(struct blocks *b, struct check_result *res)
{
	uint64_t base = b->perf.offset;
	struct perf_slots s = {
		.off = base, .size = b->size, .stride = b->stride, .nr = blocks_total(b)};
	int ret = b->get ? blocks_image(b, blocks_total(b) * b->stride, false)
			 : perf_verify(&b->perf, &s, res);

	for (uint32_t i = 0; b->get && i < blocks_total(b) && !ret; i++) {
		uint64_t at = base + b->there[i] * b->stride;
		unsigned char *block = b->image + b->here[i] * b->stride;

		check_piece(block, b->size, 0, at, PERF_SEED, b->there[i], res);
		check_guard(block + b->size, b->stride - b->size, at + b->size, res);
	}
	return ret;
}

/* ---- Results: main ---- */

static int blocks_row(struct blocks *b, const struct perf_mark m[2], const struct check_result *res)
{
	struct report_row row = {.size_b = b->size,
				 .count = b->hist->count,
				 .checked = b->perf.opts->traffic.check,
				 .checked_b = res->checked_b,
				 .wrong = res->wrong,
				 .interrupted = stop_asked() && b->next != b->limit};
	uint64_t blocks = row.count * b->nr, ns = b->end_ns - b->begin_ns;
	char op[32];

	snprintf(op, sizeof(op), "%s %s", b->get ? "get" : "put",
		 b->prepared ? "prepared" : "unprepared");
	row.op = op;
	perf_row_hist(&row, b->hist);
	perf_row_marks(&row, m);
	row.gb_s = perf_gb_s(blocks, b->size, ns);
	report_cells(b->perf.report, &row,
		     (const struct report_cell[]){
			     {"blocks", "blocks", b->nr, NULL},
			     {"depth", NULL, b->depth, NULL},
			     {"count", "lists", (double)row.count, NULL},
			     {"p50_us", "p50 us", row.p50_us, NULL},
			     {"p99_us", "p99 us", row.p99_us, NULL},
			     {"blocks_s", "blocks/s",
			      blocks && ns ? (double)blocks * 1e9 / (double)ns : NAN, NULL},
			     {"GB_s", "GB/s", row.gb_s, NULL},
			     {"post_ns", "post ns/block",
			      blocks ? (double)b->post_ns[0] / (double)blocks : NAN, NULL},
			     {"cpu_pct", "CPU%", row.cpu_pct, NULL},
			     {"lost", NULL, (double)row.lost, NULL},
			     {"resent", NULL, (double)row.resent, NULL},
			     {"duplicate", NULL, (double)row.dup, NULL},
		     },
		     12);
	if (!res->wrong)
		return perf_timed(&b->perf, row.count, b->size);
	report_error(b->perf.report, "%s, blocks of %llu bytes: %llu wrong bytes", op,
		     (unsigned long long)b->size, (unsigned long long)res->wrong);
	return PERF_WRONG;
}

static int blocks_measure(struct blocks *b)
{
	const struct perf_opts *o = b->perf.opts;
	uint64_t n = BLOCKS_B / blocks_list_b(b), warm;
	struct check_result res[BLOCKS_WAYS] = {CHECK_RESULT_NONE, CHECK_RESULT_NONE,
						CHECK_RESULT_NONE};
	struct perf_mark m[2];
	int ret = PERF_OK;

	n = n < BLOCKS_N_MIN ? BLOCKS_N_MIN : n > BLOCKS_N_MAX ? BLOCKS_N_MAX : n;
	n = o->traffic.n ? o->traffic.n : o->traffic.duration_ns ? 0 : n;
	n *= b->view ? b->depth : 1;
	warm = o->traffic.warm_given ? o->traffic.warm : n / 10 + b->depth;
	if (warm)
		ret = blocks_phase(b, warm,
				   o->traffic.warm_given ? 0 : o->traffic.duration_ns / 10);
	if (!ret && stop_asked())
		ret = PERF_STOPPED;
	if (!ret && o->traffic.check)
		ret = b->view ? views_payload(b) : blocks_payload(b);
	if (!ret)
		ret = perf_mark(&b->perf, &m[0]);
	if (!ret)
		ret = blocks_phase(b, n, o->traffic.duration_ns);
	if (!ret)
		ret = perf_mark(&b->perf, &m[1]);
	if (!ret && b->next - b->first < b->depth) /* interrupted: not every place took part */
		ret = PERF_STOPPED;
	if (!ret && o->traffic.check)
		ret = b->view ? views_verify(b, res) : blocks_verify(b, res);
	if (!ret)
		ret = b->view ? views_rows(b, res) : blocks_row(b, m, res);
	return !ret && stop_asked() ? PERF_STOPPED : ret;
}

/* Prepared and unprepared. Wrong data of one must not hide the other. */
static int blocks_size(struct blocks *b, uint64_t size)
{
	int ret, worst = PERF_OK;

	b->size = size;
	b->stride = blocks_stride(size);
	ret = b->view ? views_open(b) : blocks_lists_open(b);
	for (unsigned way = 0; way < (b->view ? 1 : 2) && !ret; way++) {
		b->prepared = !way;
		for (unsigned i = 0; !b->view && i < b->depth; i++)
			b->ops[i] = way ? (struct gx_op){.segs = b->segs + (size_t)i * b->nr,
							 .nr_segs = b->nr}
					: (struct gx_op){.list = b->lists[i]};
		ret = blocks_measure(b);
		if (ret == PERF_WRONG && !stop_asked()) {
			worst = ret;
			ret = PERF_OK;
		}
	}
	if (!atomic_load_explicit(&b->job.done,
				  memory_order_acquire)) /* the core may still post them */
		perf_core_stop(&b->perf.cores[0]);
	blocks_lists_close(b);
	return ret ? ret : worst;
}

/* ---- Life: main ---- */

static int blocks_arrays(struct blocks *b, uint64_t len)
{
	uint32_t total = b->view ? b->nr : blocks_total(b);

	b->here = calloc(total, sizeof(b->here[0]));
	b->there = calloc(total, sizeof(b->there[0]));
	b->segs = calloc(total, sizeof(b->segs[0]));
	b->image = b->perf.opts->place.kind == GX_MEM_HOST ? gx_mem_addr(b->local) : malloc(len);
	if (!b->here || !b->there || !b->segs || !b->image) {
		report_error(b->perf.report, "no memory for %u blocks", total);
		return PERF_FAILED;
	}
	blocks_shuffle(b->here, total, 1);
	blocks_shuffle(b->there, total, 2);
	return PERF_OK;
}

static int blocks_connect(struct blocks *b, uint64_t len)
{
	struct perf *perf = &b->perf;
	struct json_t *reply = NULL;
	int ret = perf_alloc(perf, len, &b->local);

	if (!ret)
		ret = blocks_arrays(b, len);
	if (!ret)
		ret = perf_connect(perf, b->get ? GX_ACCESS_GET : GX_ACCESS_PUT);
	if (!ret) {
		perf_row_times(perf);
		ret = perf_room(perf, len);
	}
	if (!ret)
		ret = perf_lease(perf, &(struct perf_lease){.len = len, .moves = true});
	if (!ret)
		ret = perf_call(&perf->conns[0], js_pack("{s:s}", "op", "answer"), &reply);
	js_free(reply);
	if (ret)
		return ret;
	b->ep = gx_conn_ep(perf->conns[0].conn, 0);
	b->queue = perf->queue ?: gx_core_queue(gx_ep_core(b->ep));
	return PERF_OK;
}

static int blocks_usage(struct blocks *b, uint64_t first, uint64_t last, struct report *report)
{
	if (b->perf.opts->blocks.view && views_usage(b, report))
		return PERF_USAGE;
	if (!b->view && b->nr > GX_SEGS_MAX)
		report_error(report, "--blocks %u: at most %u without --view", b->nr, GX_SEGS_MAX);
	else if (!first || last > BLOCKS_LIST_B / b->nr)
		report_error(report, "blocks of 1 byte or more, a list of at most 64 GiB");
	else if (b->depth > BLOCKS_DEPTH)
		report_error(report, "--depth: at most %d lists under way", BLOCKS_DEPTH);
	else if (b->perf.opts->server.nr_conns != 1)
		report_error(report, "blocks posts on one connection: leave -q out");
	else
		return PERF_OK;
	return PERF_USAGE;
}

static int blocks_all(struct blocks *b, uint64_t first, uint64_t last)
{
	int worst = PERF_OK, ret = perf_open(b->perf.opts, b->perf.report,
					     b->opts.file.stripe ? UINT_MAX : 1, &b->perf);

	if (!ret)
		ret = blocks_connect(b, b->view ? b->depth * views_place_b(b)
						: blocks_total(b) * blocks_stride(last));
	for (uint64_t size = first; size <= last && !ret;
	     size *= b->perf.opts->traffic.size_factor) {
		ret = blocks_size(b, size);
		if (ret == PERF_WRONG && !stop_asked()) {
			worst = ret;
			ret = PERF_OK;
		}
	}
	perf_close(&b->perf);
	return ret && !(ret == PERF_STOPPED && worst) ? ret : worst;
}

int perf_blocks(const struct perf_opts *opts, struct report *report)
{
	uint64_t first = opts->traffic.size_given ? opts->traffic.size_begin : BLOCKS_SIZE;
	uint64_t last = opts->traffic.size_given ? opts->traffic.size_end : BLOCKS_SIZE;
	struct blocks *b = calloc(1, sizeof(*b));
	int ret;

	if (!b) {
		report_error(report, "no memory");
		return PERF_FAILED;
	}
	b->opts = *opts;
	b->opts.file.stripe = opts->blocks.view && opts->conn.cpus_given && opts->conn.cpus.nr > 1;
	b->perf.opts = &b->opts;
	b->perf.report = report;
	b->job.step = blocks_step;
	b->get = opts->blocks.get;
	b->nr = opts->blocks.nr ? opts->blocks.nr : BLOCKS_NR;
	b->depth = opts->tune.depth ? opts->tune.depth : 1;
	if (opts->traffic.n && b->depth > opts->traffic.n)
		b->depth = opts->traffic.n;
	ret = blocks_usage(b, first, last, report);
	if (b->view)
		first = last = b->size;
	if (!ret)
		ret = blocks_all(b, first, last);
	if (opts->place.kind != GX_MEM_HOST)
		free(b->image);
	free(b->here);
	free(b->there);
	free(b->segs);
	free(b);
	return ret;
}
