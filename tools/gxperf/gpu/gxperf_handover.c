// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf unpack --handover: the time to give the GPU one job and see its end. One job at a time on
 * each of 1, 2 and 4 threads, each with a queue of its own in one engine: chunks of fragments, and
 * on one thread small contiguous copies. The modes stand side by side. All written bytes are
 * compared.
 */
#include "gxperf/gpu/gxperf_gpu.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HAND_CHUNK_B  (512u << 10)
#define HAND_LANE_B   (1u << 20) /* pool and destination of each thread */
#define HAND_NR	      4000
#define HAND_THREADS  4
#define HAND_SPACE_NS 3000 /* between two jobs, so that threads do not fall into step */

/* One thread and its queue. */
struct lane {
	struct bench *b;
	struct gx_engine_queue *q;
	struct gx_engine_block *block;
	uint32_t frag_b, frags, copy_b; /* copy_b not 0: one copy of that size, no fragments */
	uint32_t index;
	struct hist hist;
	pthread_barrier_t *begin;
	int ret;
};

static uint32_t lane_src(const struct lane *l, uint32_t i)
{
	uint32_t k = i ^ 5; /* neighbours in the destination are not neighbours in the pool */

	return l->index * HAND_LANE_B + (k < l->frags ? k : i) * l->frag_b;
}

static int lane_open(struct lane *l, const uint8_t *pool)
{
	struct gx_frag *frag;
	int ret = gx_engine_queue_open(l->b->engine, NULL, &l->q);

	if (!ret)
		ret = gx_engine_block_open(l->b->engine, &l->block);
	if (ret)
		return ret;
	l->frags = l->copy_b ? 1 : HAND_CHUNK_B / l->frag_b;
	frag = gx_engine_block_frags(l->block);
	for (uint32_t i = 0; i < l->frags; i++)
		frag[i] = (struct gx_frag){lane_src(l, i), l->frag_b, (uint64_t)i * l->frag_b};
	gx_engine_block_set(l->block, pool, l->b->dev[1] + (size_t)l->index * HAND_LANE_B,
			    HAND_LANE_B, l->frags);
	return 0;
}

static int lane_block(struct lane *l)
{
	int ret;

	if (gx_engine_unpack(l->q, &l->block, 1) != 1)
		return gx_engine_poll(l->q) ? -EIO : -EAGAIN;
	while ((ret = gx_engine_block_status(l->block)) == -EINPROGRESS)
		if (gx_engine_poll(l->q))
			return -EIO;
	return ret;
}

static int lane_copy(struct lane *l)
{
	size_t at = (size_t)l->index * HAND_LANE_B;
	uint32_t t;
	int ret = gx_engine_copy(l->q, l->b->dev[1] + at, l->b->dev[0] + at, l->copy_b, &t);

	if (ret)
		return gx_engine_poll(l->q) ? -EIO : ret;
	while ((ret = gx_engine_result(l->q, t)) == -EINPROGRESS)
		if (gx_engine_poll(l->q))
			return -EIO;
	return ret;
}

static void *lane_run(void *arg)
{
	struct lane *l = arg;

	pthread_barrier_wait(l->begin);
	for (uint32_t i = 0; i < HAND_NR && !l->ret;) {
		uint64_t begin = gx_now(), end;

		l->ret = l->copy_b ? lane_copy(l) : lane_block(l);
		end = gx_now();
		if (l->ret == -EAGAIN) {
			l->ret = 0;
			continue;
		}
		if (i++ >= HAND_NR / 10)
			hist_record(&l->hist, end - begin);
		while (gx_now() - end < HAND_SPACE_NS + (i * 37 & 511))
			;
	}
	return NULL;
}

/* Return: fragments or copies that are wrong. */
static uint64_t lane_check(const struct lane *l)
{
	size_t at = (size_t)l->index * HAND_LANE_B;
	uint64_t wrong = 0;

	if (l->copy_b)
		return memcmp(l->b->back + at, l->b->host + at, l->copy_b) != 0;
	for (uint32_t i = 0; i < l->frags; i++)
		wrong += memcmp(l->b->back + at + (size_t)i * l->frag_b,
				l->b->host + lane_src(l, i), l->frag_b) != 0;
	return wrong;
}

static int lanes_run(struct lane lanes[], unsigned n)
{
	pthread_barrier_t begin;
	pthread_t thread[HAND_THREADS];
	int ret = 0;

	pthread_barrier_init(&begin, NULL, n);
	for (unsigned i = 0; i < n; i++) {
		lanes[i].begin = &begin;
		if (pthread_create(&thread[i], NULL, lane_run, &lanes[i]))
			abort(); /* the others wait at the barrier */
	}
	for (unsigned i = 0; i < n; i++) {
		pthread_join(thread[i], NULL);
		ret = ret ? ret : lanes[i].ret;
	}
	pthread_barrier_destroy(&begin);
	return ret;
}

static int hand_row(struct bench *b, struct lane lanes[], unsigned n, const char *op)
{
	struct report_row row = bench_row(op, lanes[0].copy_b ? lanes[0].copy_b : HAND_CHUNK_B, n);
	static struct hist all;
	size_t len = (size_t)n * HAND_LANE_B;
	int ret;

	memset(b->back, 0xa5, len);
	ret = bench_copy(b, b->dev[1], b->back, len);
	if (!ret && lanes_run(lanes, n))
		return bench_failed(b, op, -EIO);
	if (!ret)
		ret = bench_copy(b, b->back, b->dev[1], len);
	if (ret)
		return ret;
	hist_reset(&all);
	for (unsigned i = 0; i < n; i++) {
		hist_merge(&all, &lanes[i].hist);
		row.wrong += lane_check(&lanes[i]);
		row.checked_b += lanes[i].copy_b ? lanes[i].copy_b
						 : (uint64_t)lanes[i].frags * lanes[i].frag_b;
	}
	perf_row_hist(&row, &all);
	row.count = all.count;
	row.checked = true;
	row.sms = (int)b->info.sms;
	report_row(b->report, &row);
	return row.wrong ? PERF_WRONG : PERF_OK;
}

/* @n threads, each with chunks of fragments of @frag_b, or with copies of @copy_b. */
static int hand_measure(struct bench *b, const uint8_t *pool, unsigned n, uint32_t frag_b,
			uint32_t copy_b)
{
	struct lane *lanes = calloc(n, sizeof(*lanes));
	char op[48];
	int ret = 0;

	for (unsigned i = 0; i < n && !ret; i++) {
		lanes[i] = (struct lane){
			.b = b, .frag_b = copy_b ? copy_b : frag_b, .copy_b = copy_b, .index = i};
		ret = lane_open(&lanes[i], pool);
	}
	snprintf(op, sizeof(op), "%s%s x%u", opt_unpack_text(b->info.unpack), copy_b ? " copy" : "",
		 n);
	ret = ret ? bench_failed(b, op, ret) : hand_row(b, lanes, n, op);
	for (unsigned i = 0; i < n; i++) {
		gx_engine_block_close(lanes[i].block);
		gx_engine_queue_close(lanes[i].q);
	}
	free(lanes);
	return ret;
}

int perf_handover(const struct bench_want *how, bool pool_host, const struct opt_list *sizes,
		  struct report *report)
{
	static const uint32_t copies[] = {64, 4096, 65536};
	struct bench_want want = *how;
	const uint8_t *pool;
	struct bench b;
	int ret;

	want.host_b = want.back_b = want.dev_b[0] = want.dev_b[1] = HAND_THREADS * HAND_LANE_B;
	ret = bench_open(&want, report, &b);
	if (!ret)
		bench_fill(b.host, want.host_b, 3);
	if (!ret)
		ret = bench_copy(&b, b.dev[0], b.host, want.host_b);
	pool = pool_host ? b.host : b.dev[0];
	for (unsigned i = 0; i < sizes->n && !ret; i++) {
		uint32_t len = sizes->v[i];

		if (!len || len > HAND_CHUNK_B || HAND_CHUNK_B / len > GX_ENGINE_FRAGS_MAX) {
			report_error(report,
				     "--handover: a chunk is 1 to 2048 fragments, not of %u", len);
			ret = PERF_USAGE;
			break;
		}
		report_section(
			report,
			"one chunk of 512 KiB at a time on each thread, %u-byte fragments in "
			"%s memory",
			len, pool_host ? "pinned" : "GPU");
		for (unsigned n = 1; n <= HAND_THREADS && !ret; n *= 2)
			ret = hand_measure(&b, pool, n, len, 0);
	}
	if (!ret)
		report_section(report, "one contiguous copy at a time, inside the GPU");
	for (unsigned i = 0; i < sizeof(copies) / sizeof(copies[0]) && !ret; i++)
		ret = hand_measure(&b, b.dev[0], 1, copies[i], copies[i]);
	bench_close(&b);
	return ret;
}
