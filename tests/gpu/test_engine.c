/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public GPU engine: test_engine [host|cuda], default host. The whole destination is compared
 * after every operation, so that bytes beside a row or fragment are guarded too. `cuda` exits 77
 * where there is no GPU, and says why.
 */
#include <gx/engine.h>
#include <gxlab/modes.h>

#include <errno.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "kit/common_cuda.h"

#define SRC_B	((size_t)4 << 20)
#define DST_B	((size_t)4 << 20)
#define PAIRS	20000
#define HOST_B	(SRC_B + 2 * DST_B + PAIRS * sizeof(struct gx_row_pair))
#define POISON	0x5a
#define WAIT_NS 60000000000ull

static struct gx_engine_opts how = GX_INIT(how);
static struct gx_engine *engine;

/* Host memory: source, wanted image, fetched image, pairs. The destination is memory of the GPU. */
struct fix {
	struct gx_engine_queue *q;
	uint8_t *host, *want, *got, *dst;
	struct gx_row_pair *pairs;
	uint32_t rnd;
};

static uint32_t fix_random(struct fix *f)
{
	f->rnd = f->rnd * 1664525u + 1013904223u;
	return f->rnd >> 8;
}

static void copy_wait(struct fix *f, void *dst, const void *src, size_t len)
{
	uint32_t t;

	assert_int_equal(gx_engine_copy(f->q, dst, src, len, &t), 0);
	assert_int_equal(gx_engine_wait(f->q, t, WAIT_NS), 0);
}

static int setup(void **state)
{
	struct gx_engine_queue_opts opts = GX_INIT(opts);
	struct fix *f = calloc(1, sizeof(*f));
	void *dst = NULL;

	f->host = mmap(NULL, HOST_B, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(f->host, MAP_FAILED);
	assert_int_equal(gx_engine_map(engine, f->host, HOST_B), 0);
	assert_int_equal(gx_engine_alloc(engine, DST_B, &dst), 0);
	opts.order_rows = 40000;
	opts.order_pairs = PAIRS;
	opts.stage_b = DST_B;
	assert_int_equal(gx_engine_queue_open(engine, &opts, &f->q), 0);
	f->want = f->host + SRC_B;
	f->got = f->want + DST_B;
	f->pairs = (struct gx_row_pair *)(f->got + DST_B);
	f->dst = dst;
	f->rnd = 3;
	for (size_t i = 0; i < SRC_B; i++)
		f->host[i] = fix_random(f);
	memset(f->want, POISON, DST_B);
	copy_wait(f, f->dst, f->want, DST_B);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fix *f = *state;

	assert_int_equal(gx_engine_poll(f->q), 0);
	gx_engine_queue_close(f->q);
	gx_engine_free(engine, f->dst, DST_B);
	gx_engine_unmap(engine, f->host, HOST_B);
	munmap(f->host, HOST_B);
	free(f);
	return 0;
}

static void want_check(struct fix *f)
{
	memset(f->got, 0, DST_B);
	copy_wait(f, f->got, f->dst, DST_B);
	assert_memory_equal(f->got, f->want, DST_B);
}

/* @off: of both bases. Destination rows are in random order and each is named once at most. */
static struct gx_gather gather_make(struct fix *f, uint32_t row_b, uint32_t src_off,
				    uint32_t dst_off)
{
	struct gx_gather g = GX_INIT(g);
	uint32_t src_rows = (SRC_B - src_off) / row_b, dst_rows = (DST_B - dst_off) / row_b;

	g.src = f->host + src_off;
	g.dst = f->dst + dst_off;
	g.pairs = f->pairs;
	g.row_b = row_b;
	g.src_rows = src_rows < 40000 ? src_rows : 40000;
	g.dst_rows = dst_rows < PAIRS ? dst_rows : PAIRS;
	g.nr = g.dst_rows * 3 / 4;
	for (uint32_t i = 0; i < g.nr; i++)
		f->pairs[i] = (struct gx_row_pair){fix_random(f) % g.src_rows, i};
	for (uint32_t i = g.nr; i > 1; i--) {
		uint32_t k = fix_random(f) % i, was = f->pairs[i - 1].dst;

		f->pairs[i - 1].dst = f->pairs[k].dst;
		f->pairs[k].dst = was;
	}
	return g;
}

/* Move the rows in the wanted image, too. */
static void gather_want(struct fix *f, const struct gx_gather *g)
{
	size_t off = (uint8_t *)g->dst - f->dst;

	for (uint32_t i = 0; i < g->nr; i++)
		if (g->pairs[i].src < g->src_rows && g->pairs[i].dst < g->dst_rows)
			memcpy(f->want + off + (size_t)g->pairs[i].dst * g->row_b,
			       (const uint8_t *)g->src + (size_t)g->pairs[i].src * g->row_b,
			       g->row_b);
}

static int gather_wait(struct fix *f, const struct gx_gather *g)
{
	uint32_t t;

	assert_int_equal(gx_engine_gather(f->q, g, &t), 0);
	return gx_engine_wait(f->q, t, WAIT_NS);
}

static void gather_run(struct fix *f, const struct gx_gather *g)
{
	gather_want(f, g);
	assert_int_equal(gather_wait(f, g), 0);
	want_check(f);
}

static const uint32_t rows[] = {4,   12,  16,  36,   128,  500,	  576,	 656,
				660, 912, 928, 1024, 4096, 16384, 20000, 65536};

static void gather__rows_listed(void **state)
{
	struct fix *f = *state;

	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct gx_gather g = gather_make(f, rows[i], 0, 0);

		g.order = GX_GATHER_ORDER_LISTED;
		gather_run(f, &g);
	}
}

static void gather__rows_ordered(void **state)
{
	struct fix *f = *state;

	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct gx_gather g = gather_make(f, rows[i], 0, 0);

		g.order = GX_GATHER_ORDER_SOURCE;
		gather_run(f, &g);
	}
}

static void gather__offsets(void **state)
{
	struct fix *f = *state;

	for (unsigned s = 0; s < 160; s += 4)
		for (unsigned order = 1; order < 3; order++) {
			struct gx_gather g = gather_make(f, 656, s, (s * 7) % 160 / 4 * 4);

			g.order = order;
			g.nr = 50;
			gather_run(f, &g);
		}
}

/* Lists of every length: long ones go past what a lane holds. */
static void gather__many_repeats(void **state)
{
	struct fix *f = *state;

	for (uint32_t most = 1; most < 40; most += 3) {
		struct gx_gather g = gather_make(f, 656, 0, 0);

		for (uint32_t i = 0; i < g.nr; i++)
			f->pairs[i].src = i / most;
		g.order = GX_GATHER_ORDER_SOURCE;
		gather_run(f, &g);
	}
}

/* A queue that was opened for pairs alone has room for some rows as well. */
static void gather__ordered_by_pairs_alone(void **state)
{
	struct gx_engine_queue_opts opts = GX_INIT(opts);
	struct fix *f = *state;
	struct gx_engine_queue *was = f->q;
	struct gx_gather g = gather_make(f, 656, 0, 0);

	opts.order_pairs = PAIRS;
	assert_int_equal(gx_engine_queue_open(engine, &opts, &f->q), 0);
	assert_true((uint64_t)g.src_rows + g.nr <= PAIRS);
	for (unsigned order = 0; order < 3; order++) {
		g.order = order;
		gather_run(f, &g);
	}
	gx_engine_queue_close(f->q);
	f->q = was;
}

static void gather__one_row_for_all(void **state)
{
	struct fix *f = *state;
	struct gx_gather g = gather_make(f, 656, 0, 0);

	for (uint32_t i = 0; i < g.nr; i++)
		f->pairs[i].src = 4711;
	g.order = GX_GATHER_ORDER_SOURCE;
	gather_run(f, &g);
}

static void gather__none(void **state)
{
	struct fix *f = *state;
	struct gx_gather g = gather_make(f, 656, 0, 0);

	g.nr = 0;
	for (unsigned order = 0; order < 3; order++) {
		g.order = order;
		gather_run(f, &g);
	}
}

static void gather__engines(void **state)
{
	struct fix *f = *state;

	for (unsigned kind = 0; kind < 4; kind++) {
		struct gx_gather g = gather_make(f, 656, 0, 0);

		g.nr = 1000;
		g.by = kind;
		gather_run(f, &g);
	}
}

static void gather__sms(void **state)
{
	struct fix *f = *state;

	for (unsigned sms = 1; sms < 400; sms = sms * 3 + 1) {
		struct gx_gather g = gather_make(f, 656, 0, 0);

		g.sms = sms;
		gather_run(f, &g);
	}
}

static void gather__scatter(void **state)
{
	struct fix *f = *state;

	for (unsigned order = 1; order < 3; order++) {
		struct gx_gather g = gather_make(f, 656, 0, 0);

		gather_run(f, &g);
		/* Back: row i of the GPU's memory to row i + 1 of the fetched image. */
		for (uint32_t i = 0; i < 3000; i++)
			f->pairs[i] = (struct gx_row_pair){i, i + 1};
		g.src = f->dst;
		g.dst = f->got;
		g.nr = 3000;
		g.src_rows = g.dst_rows = 3001;
		g.order = order;
		memset(f->got, 0, DST_B);
		assert_int_equal(gather_wait(f, &g), 0);
		assert_memory_equal(f->got + 656, f->want, 3000 * 656);
		assert_int_equal(f->got[655] | f->got[3001 * 656], 0);
	}
}

static void gather__out_of_range(void **state)
{
	struct fix *f = *state;

	for (unsigned kind = 1; kind < 4; kind++)
		for (unsigned order = 1; order < 3; order++) {
			struct gx_gather g = gather_make(f, 656, 0, 0);
			uint32_t t;

			g.nr = 1000;
			g.by = kind;
			g.order = order;
			f->pairs[0].src = g.src_rows;
			f->pairs[7].src = UINT32_MAX;
			f->pairs[500].dst = g.dst_rows;
			f->pairs[999].dst = UINT32_MAX;
			gather_want(f, &g);
			assert_int_equal(gather_wait(f, &g), -ERANGE);
			want_check(f);
			g.check = true; /* all or nothing */
			memset(f->want, POISON, DST_B);
			copy_wait(f, f->dst, f->want, DST_B);
			assert_int_equal(gx_engine_gather(f->q, &g, &t), -ERANGE);
			assert_non_null(strstr(gx_engine_why(), "pair 0"));
			want_check(f);
			g = gather_make(f, 656, 0, 0);
			gather_run(f, &g); /* a refusal does not stick */
		}
}

static void gather__refused(void **state)
{
	struct fix *f = *state;
	struct gx_gather g = gather_make(f, 656, 0, 0), bad = g;
	uint32_t t;

	bad.row_b = 0;
	assert_int_equal(gx_engine_gather(f->q, &bad, &t), -EINVAL);
	bad.row_b = 65540;
	assert_int_equal(gx_engine_gather(f->q, &bad, &t), -EINVAL);
	bad.row_b = 657;
	assert_int_equal(gx_engine_gather(f->q, &bad, &t), -EINVAL);
	bad = g;
	bad.src = f->host + 2;
	assert_int_equal(gx_engine_gather(f->q, &bad, &t), -EINVAL);
	bad = g;
	bad.by = 9;
	assert_int_equal(gx_engine_gather(f->q, &bad, &t), -EINVAL);
	bad = g;
	bad.src_rows = 1 << 30;
	bad.order = GX_GATHER_ORDER_SOURCE;
	assert_int_equal(gx_engine_gather(f->q, &bad, &t), -ENOSPC);
	gather_run(f, &g);
}

/* --- tickets --- */

static void result__many_out(void **state)
{
	struct fix *f = *state;
	struct gx_gather g = gather_make(f, 656, 0, 0);
	uint32_t t[140];

	g.nr = 256;
	gather_want(f, &g);
	for (unsigned i = 0; i < 140; i++) {
		int ret = gx_engine_gather(f->q, &g, &t[i]);

		if (ret == -EAGAIN) {
			assert_int_equal(gx_engine_wait(f->q, t[i - 60], WAIT_NS), 0);
			ret = gx_engine_gather(f->q, &g, &t[i]);
		}
		assert_int_equal(ret, 0);
	}
	for (unsigned i = 0; i < 140; i++)
		assert_int_equal(gx_engine_wait(f->q, t[i], WAIT_NS), 0);
	want_check(f);
}

/* What holds a stream until it is let go, or for some seconds. */
struct hold {
	unsigned (*queue)(void *stream, void (*fn)(void *arg), void *arg); /* cuLaunchHostFunc */
	_Atomic bool over;
};

static void hold_run(void *arg)
{
	struct hold *h = arg;

	for (unsigned ms = 0; ms < 20000 && !h->over; ms++)
		usleep(1000);
}

static int hold_begin(void *arg, void *stream)
{
	struct hold *h = arg;

	return h->queue(stream, hold_run, h) ? -EIO : 0;
}

/* 64 tickets and no more, whatever their numbers are; none is done before its work is. */
static void result__64_out(void **state)
{
	struct fix *f = *state;
	struct hold h = {0};
	uint32_t t[65];

	if (how.device < 0)
		skip();
	h.queue = common_cuda_symbol("cuLaunchHostFunc");
	for (unsigned round = 0; round < 3; round++) {
		h.over = false;
		assert_int_equal(gx_engine_call(f->q, hold_begin, &h, NULL), 0);
		for (unsigned i = 0; i < 64; i++)
			assert_int_equal(gx_engine_call(f->q, NULL, NULL, &t[i]), 0);
		assert_int_equal(gx_engine_call(f->q, NULL, NULL, &t[64]), -EAGAIN);
		for (unsigned i = 0; i < 64; i++) {
			assert_int_equal(t[i], t[0] + i);
			assert_int_equal(gx_engine_result(f->q, t[i]), -EINPROGRESS);
		}
		h.over = true;
		for (unsigned i = 0; i < 64; i++)
			assert_int_equal(gx_engine_wait(f->q, t[i], WAIT_NS), 0);
	}
}

/* --- unpack --- */

static void unpack__one_launch(void **state)
{
	struct fix *f = *state;
	struct gx_engine_block *b[3];
	uint64_t at = 5;

	for (unsigned k = 0; k < 3; k++) {
		struct gx_frag *frag;

		assert_int_equal(gx_engine_block_open(engine, &b[k]), 0);
		frag = gx_engine_block_frags(b[k]);
		for (unsigned i = 0; i < 500; i++) {
			uint32_t len = fix_random(f) % 2000;

			frag[i] = (struct gx_frag){fix_random(f) % (SRC_B - 2000), len, at};
			memcpy(f->want + at, f->host + frag[i].src_off, len);
			at += len + 3;
		}
		gx_engine_block_set(b[k], f->host, f->dst, DST_B, 500);
	}
	assert_int_equal(gx_engine_unpack(f->q, b, 3), 3);
	for (unsigned k = 0; k < 3; k++) {
		while (gx_engine_block_status(b[k]) == -EINPROGRESS)
			assert_int_equal(gx_engine_poll(f->q), 0);
		assert_int_equal(gx_engine_block_status(b[k]), 0);
		gx_engine_block_close(b[k]);
	}
	want_check(f);
}

static void unpack__bounds(void **state)
{
	struct fix *f = *state;
	struct gx_engine_block *b;

	assert_int_equal(gx_engine_block_open(engine, &b), 0);
	gx_engine_block_frags(b)[0] = (struct gx_frag){0, 101, 0};
	gx_engine_block_frags(b)[1] = (struct gx_frag){7, 100, 0};
	gx_engine_block_set(b, f->host, f->dst, 100, 2);
	memcpy(f->want, f->host + 7, 100);
	assert_int_equal(gx_engine_unpack(f->q, &b, 1), 1);
	while (gx_engine_block_status(b) == -EINPROGRESS)
		assert_int_equal(gx_engine_poll(f->q), 0);
	assert_int_equal(gx_engine_block_status(b), -ERANGE);
	gx_engine_block_close(b);
	want_check(f);
}

/* More fragments than a block holds: none is moved, and nobody is told that all were. */
static void unpack__too_many(void **state)
{
	struct fix *f = *state;
	struct gx_engine_block *b;
	struct gx_frag *frag;

	assert_int_equal(gx_engine_block_open(engine, &b), 0);
	frag = gx_engine_block_frags(b);
	for (unsigned i = 0; i < GX_ENGINE_FRAGS_MAX; i++)
		frag[i] = (struct gx_frag){i * 100, 100, i * 100};
	for (unsigned more = 2; more--;) {
		int ret =
			gx_engine_block_set(b, f->host, f->dst, DST_B, GX_ENGINE_FRAGS_MAX + more);

		assert_int_equal(ret, more ? -EINVAL : 0);
		if (!more)
			memcpy(f->want, f->host, GX_ENGINE_FRAGS_MAX * 100);
		assert_int_equal(gx_engine_unpack(f->q, &b, 1), 1);
		while (gx_engine_block_status(b) == -EINPROGRESS)
			assert_int_equal(gx_engine_poll(f->q), 0);
		assert_int_equal(gx_engine_block_status(b), more ? -ERANGE : 0);
		want_check(f);
	}
	assert_int_equal(gx_engine_block_set(b, f->host, f->dst, DST_B, UINT32_MAX), -EINVAL);
	gx_engine_block_close(b);
}

/* Of the other allocation: descriptors in test_gpu.c, cudaIpc here. A process cannot open its own.
 */
static void export__by_cuda_ipc(void **state)
{
	struct gx_engine_opts opts = how;
	struct gx_engine_handle h;
	struct gx_engine *e;
	void *mem, *same;

	opts.ipc = GX_ON;
	assert_int_equal(gx_engine_open(&opts, &e), 0);
	assert_int_equal(gx_engine_alloc(e, 100000, &mem), 0);
	if (how.device < 0) {
		assert_int_equal(gx_engine_export(e, mem, 100000, &h), -EOPNOTSUPP);
	} else {
		assert_int_equal(gx_engine_export(e, mem, 100000, &h), 0);
		assert_int_equal(h.fd, -1);
		assert_int_equal(gx_engine_import(e, &h, 1u << 30, &same), -EPROTO);
		h.data[0] = 0xff; /* no such kind: as good as any lie */
		h.data[20] ^= 1;
		assert_int_equal(gx_engine_import(e, &h, 100000, &same), -EPROTO);
	}
	assert_true(strlen(gx_engine_why()) > 0);
	gx_engine_free(e, mem, 100000);
	gx_engine_close(e);
}

static void export__by_descriptor(void **state)
{
	struct fix *f = *state;
	struct gx_engine_handle h;
	void *same;

	if (how.device < 0)
		return;
	assert_int_equal(gx_engine_export(engine, f->dst, DST_B, &h), 0);
	assert_int_equal(gx_engine_import(engine, &h, DST_B, &same), 0);
	close(h.fd);
	copy_wait(f, same, f->host, 1000);
	memcpy(f->want, f->host, 1000);
	want_check(f);
	gx_engine_unimport(engine, same);
}

/* A fragment with another CRC is told; the same block without CRCs is not. */
static void unpack__check(void **state)
{
	struct fix *f = *state;
	uint32_t crc[2] = {0xe3069283u, 0x8a9136aau}; /* "123456789", 32 zeros */
	struct gx_engine_block *b;
	int ret;

	memcpy(f->host, "123456789", 9);
	memset(f->host + 100, 0, 32);
	assert_int_equal(gx_engine_block_open(engine, &b), 0);
	gx_engine_block_frags(b)[0] = (struct gx_frag){0, 9, 0};
	gx_engine_block_frags(b)[1] = (struct gx_frag){100, 32, 9};
	for (unsigned round = 0; round < 3; round++) {
		gx_engine_block_set(b, f->host, f->dst, 100, 2);
		crc[1] ^= round == 1;
		ret = round < 2 ? gx_engine_block_check(b, crc) : 0;
		if (ret) {
			assert_int_equal(ret, -EOPNOTSUPP);
			break;
		}
		assert_int_equal(gx_engine_unpack(f->q, &b, 1), 1);
		while (gx_engine_block_status(b) == -EINPROGRESS)
			assert_int_equal(gx_engine_poll(f->q), 0);
		assert_int_equal(gx_engine_block_status(b), round == 1 ? -EBADMSG : 0);
	}
	gx_engine_block_close(b);
}

static void open__refused(void **state)
{
	struct gx_engine_opts bad = GX_INIT(bad);
	struct gx_engine *e = NULL;

	bad.device = 4711;
	assert_int_equal(gx_engine_open(&bad, &e), -ENODEV);
	bad.device = -2;
	assert_int_equal(gx_engine_open(&bad, &e), -EINVAL);
	bad.device = -1;
	bad.unpack = GX_UNPACK_MODE_HOST + 1;
	assert_int_equal(gx_engine_open(&bad, &e), -EINVAL);
	bad.unpack = GX_UNPACK_MODE_NONE + 1;
	assert_int_equal(gx_engine_open(&bad, &e), -EINVAL);
	assert_null(e);
	gx_engine_close(NULL);
	gx_engine_queue_close(NULL);
	gx_engine_block_close(NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static int call_count(void *arg, void *stream)
{
	unsigned *n = arg;

	(*n)++;
	return 0;
}

static int call_fails(void *arg, void *stream)
{
	return -EPROTO;
}

static void engine_call__runs_and_marks(void **state)
{
	struct fix *f = *state;
	uint32_t first, t;
	unsigned n = 0;

	assert_int_equal(gx_engine_copy(f->q, f->dst, f->host, 4096, &first), 0);
	assert_int_equal(gx_engine_call(f->q, call_count, &n, &t), 0);
	assert_int_equal(n, 1);
	assert_int_equal(t, first + 1);
	assert_int_equal(gx_engine_wait(f->q, t, WAIT_NS), 0);
	/* It comes after all that was queued before. */
	assert_int_equal(gx_engine_result(f->q, first), 0);
	assert_int_equal(gx_engine_call(f->q, call_count, &n, NULL), 0);
	assert_int_equal(n, 2);
	assert_int_equal(gx_engine_call(f->q, NULL, NULL, &t), 0);
	assert_int_equal(t, first + 2);
	assert_int_equal(gx_engine_wait(f->q, t, WAIT_NS), 0);
	memcpy(f->want, f->host, 4096);
	want_check(f);
}

static void engine_call__failure_gives_no_ticket(void **state)
{
	struct fix *f = *state;
	uint32_t before, t;

	assert_int_equal(gx_engine_call(f->q, NULL, NULL, &before), 0);
	assert_int_equal(gx_engine_call(f->q, call_fails, NULL, &t), -EPROTO);
	assert_int_equal(gx_engine_call(f->q, NULL, NULL, &t), 0);
	assert_int_equal(t, before + 1);
	assert_int_equal(gx_engine_wait(f->q, t, WAIT_NS), 0);
}

static void engine_copies__all_with_one_ticket(void **state)
{
	static struct gx_engine_piece list[GX_ENGINE_PIECES_MAX + 1];
	struct fix *f = *state;
	uint32_t t;

	for (unsigned i = 0; i < GX_ENGINE_PIECES_MAX; i++) {
		list[i] = (struct gx_engine_piece){f->dst + i * 1024, f->host + i * 4096, 1000};
		memcpy(f->want + i * 1024, f->host + i * 4096, 1000);
	}
	assert_int_equal(gx_engine_copies(f->q, list, 100, NULL), 0);
	assert_int_equal(gx_engine_copies(f->q, list + 100, GX_ENGINE_PIECES_MAX - 100, &t), 0);
	assert_int_equal(gx_engine_wait(f->q, t, WAIT_NS), 0);
	want_check(f);
	assert_int_equal(gx_engine_copies(f->q, list, GX_ENGINE_PIECES_MAX + 1, &t), -EINVAL);
	assert_int_equal(gx_engine_copies(f->q, list, 0, &t), 0);
	assert_int_equal(gx_engine_wait(f->q, t, WAIT_NS), 0);
}

static int suite_run(void)
{
	const struct CMUnitTest tests[] = {
		TEST(gather__rows_listed),
		TEST(gather__rows_ordered),
		TEST(gather__offsets),
		TEST(gather__many_repeats),
		TEST(gather__ordered_by_pairs_alone),
		TEST(gather__one_row_for_all),
		TEST(gather__none),
		TEST(gather__engines),
		TEST(gather__sms),
		TEST(gather__scatter),
		TEST(gather__out_of_range),
		TEST(gather__refused),
		TEST(result__many_out),
		TEST(result__64_out),
		TEST(unpack__one_launch),
		TEST(unpack__bounds),
		TEST(unpack__too_many),
		TEST(unpack__check),
		TEST(export__by_descriptor),
		cmocka_unit_test(export__by_cuda_ipc),
		TEST(engine_call__runs_and_marks),
		TEST(engine_call__failure_gives_no_ticket),
		TEST(engine_copies__all_with_one_ticket),
		cmocka_unit_test(open__refused),
	};

	return cmocka_run_group_tests_name(how.device < 0 ? "engine, host"
					   : how.unpack	  ? "engine, cuda, resident"
							  : "engine, cuda",
					   tests, NULL, NULL);
}

/* Tickets, and what is below them, begin 24 before 2^31 and 2^32. */
static int wrap_run(void)
{
	const struct CMUnitTest tests[] = {
		TEST(result__64_out),	  TEST(result__many_out),
		TEST(unpack__one_launch), TEST(gather__engines),
		TEST(gather__scatter),	  TEST(engine_copies__all_with_one_ticket),
	};
	int failed = 0;

	setenv("GX_COUNT_FROM", "0x7fffffe8", 1);
	failed += cmocka_run_group_tests_name("from 2^31 - 24", tests, NULL, NULL);
	setenv("GX_COUNT_FROM", "0xffffffe8", 1);
	failed += cmocka_run_group_tests_name("from 2^32 - 24", tests, NULL, NULL);
	unsetenv("GX_COUNT_FROM");
	return failed;
}

/* Return: tests that failed, 77: there is no such engine. */
static int engine_run(enum gx_unpack_mode unpack)
{
	int ret, failed;

	how.unpack = unpack;
	ret = gx_engine_open(&how, &engine);
	if (ret) {
		printf("no engine: %s\n", gx_engine_why());
		return ret == -ENODEV && !strstr(gx_engine_why(), "ERROR") ? 77 : 1;
	}
	failed = suite_run() + wrap_run();
	gx_engine_close(engine);
	return failed ? 1 : 0;
}

int main(int argc, char **argv)
{
	int ret;

	how.device = argc > 1 && !strcmp(argv[1], "cuda") ? 0 : -1;
	ret = engine_run(GX_UNPACK_MODE_AUTO);
	if (!ret && how.device == 0)
		ret = engine_run(GX_UNPACK_MODE_KERNEL);
	if (!ret && how.device == 0)
		ret = engine_run(GX_UNPACK_MODE_RESIDENT);
	return ret;
}
