// SPDX-License-Identifier: Apache-2.0
/*
 * What it costs to give a GPU work, in two tables. Steps: chunks of fragments, from a queue, a block
 * and a wait for each chunk to many chunks a launch. One job at a time: a chunk on each of 1, 2 and 4
 * threads with queues of their own, and small copies, in the modes kernel and resident, from the
 * call until the CPU sees the end. All written bytes are compared. GPU 0; without one the CPU.
 */
#include <gx/engine.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHUNK_B	 (512u << 10)
#define LANE_B	 (1u << 20) /* pool and destination of each thread */
#define JOBS	 4000
#define THREADS	 4
#define SPACE_NS 3000 /* between two jobs, so that threads do not fall into step */
#define CHUNKS	 512  /* of the steps */
#define FRAG_B	 4096u
#define BYTES	 ((size_t)CHUNKS * CHUNK_B)
#define WAIT_NS	 20000000000ull

static struct gx_engine *engine;
static struct gx_engine_queue *copies;
static struct gx_engine_info info;
static uint8_t *host, *back, *dev[2]; /* source and result in host memory, both in the GPU's */
static int device;

static void must(int ret, const char *what)
{
	if (!ret)
		return;
	fprintf(stderr, "handover: %s: %s (%s)\n", what, gx_engine_why(), strerror(-ret));
	exit(1);
}

static void copy(void *dst, const void *src, size_t len)
{
	uint32_t t;

	must(gx_engine_copy(copies, dst, src, len, &t), "copy");
	must(gx_engine_wait(copies, t, WAIT_NS), "copy");
}

static uint8_t *host_memory(void)
{
	uint8_t *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(p == MAP_FAILED ? -ENOMEM : gx_engine_map(engine, p, BYTES), "host memory");
	return p;
}

static void all_open(enum gx_unpack_mode mode, unsigned sms)
{
	struct gx_engine_opts o = GX_INIT(o);
	uint64_t x = 1;

	o.device = device;
	o.unpack = device < 0 ? GX_UNPACK_MODE_AUTO : mode;
	o.sms = sms;
	must(gx_engine_open(&o, &engine), "engine");
	info = (struct gx_engine_info)GX_INIT(info);
	must(gx_engine_info(engine, &info), "engine");
	must(gx_engine_queue_open(engine, NULL, &copies), "queue");
	host = host_memory();
	back = host_memory();
	for (unsigned i = 0; i < 2; i++)
		must(gx_engine_alloc(engine, BYTES, (void **)&dev[i]), "memory");
	for (size_t i = 0; i < BYTES / 8; i++)
		((uint64_t *)host)[i] = x = x * 6364136223846793005ull + 1442695040888963407ull;
	copy(dev[0], host, BYTES);
}

static void all_close(void)
{
	gx_engine_queue_close(copies);
	for (unsigned i = 0; i < 2; i++) {
		gx_engine_free(engine, dev[i], BYTES);
		gx_engine_unmap(engine, i ? back : host, BYTES);
		munmap(i ? back : host, BYTES);
	}
	gx_engine_close(engine);
}

static void poison(size_t len)
{
	memset(back, 0xa5, len);
	copy(dev[1], back, len);
}

static int job_wait(struct gx_engine_queue *q, const struct gx_engine_block *b)
{
	int ret;

	while ((ret = gx_engine_block_status(b)) == -EINPROGRESS)
		if (gx_engine_poll(q))
			return -EIO;
	return ret;
}

/* ---- Steps ---- */

enum step { STEP_QUEUE, STEP_BLOCK, STEP_WAIT, STEP_ASYNC, STEP_BATCHED, STEPS };

static const char *const step_names[] = {"queue+block", "block", "wait", "async", "batched"};
static struct gx_engine_block *blocks[CHUNKS];

/* Fragments of a chunk, neighbours in the destination apart in the pool. */
static void chunk_fill(struct gx_engine_block *b, const uint8_t *pool, uint8_t *dst, uint32_t off,
		       uint32_t frag_b)
{
	struct gx_frag *frag = gx_engine_block_frags(b);
	uint32_t n = CHUNK_B / frag_b;

	for (uint32_t i = 0; i < n; i++)
		frag[i] = (struct gx_frag){off + ((i ^ 5) < n ? i ^ 5 : i) * frag_b, frag_b,
					   (uint64_t)i * frag_b};
	must(gx_engine_block_set(b, pool, dst + off, CHUNK_B, n), "block");
}

static uint64_t chunk_wrong(uint32_t off, uint32_t frag_b)
{
	uint64_t wrong = 0;
	uint32_t n = CHUNK_B / frag_b;

	for (uint32_t i = 0; i < n; i++)
		wrong += memcmp(back + off + (size_t)i * frag_b,
				host + off + (size_t)((i ^ 5) < n ? i ^ 5 : i) * frag_b,
				frag_b) != 0;
	return wrong;
}

static void step_chunk(enum step step, uint32_t i)
{
	struct gx_engine_queue *q = copies;
	struct gx_engine_block *b = blocks[i];

	if (step == STEP_QUEUE)
		must(gx_engine_queue_open(engine, NULL, &q), "queue");
	if (step <= STEP_BLOCK)
		must(gx_engine_block_open(engine, &b), "block");
	chunk_fill(b, dev[0], dev[1], i * CHUNK_B, FRAG_B);
	while (!gx_engine_unpack(q, &b, 1))
		must(gx_engine_poll(q), "unpack");
	if (step <= STEP_WAIT)
		must(job_wait(q, b), "unpack");
	if (step <= STEP_BLOCK)
		gx_engine_block_close(b);
	if (step == STEP_QUEUE)
		gx_engine_queue_close(q);
}

static void step_run(enum step step)
{
	if (step == STEP_BATCHED)
		for (uint32_t i = 0; i < CHUNKS;) {
			i += gx_engine_unpack(copies, blocks + i,
					      CHUNKS - i < GX_ENGINE_BLOCKS_MAX
						      ? CHUNKS - i
						      : GX_ENGINE_BLOCKS_MAX);
			must(gx_engine_poll(copies), "unpack");
		}
	else
		for (uint32_t i = 0; i < CHUNKS; i++)
			step_chunk(step, i);
	for (uint32_t i = 0; i < CHUNKS && step >= STEP_ASYNC; i++)
		must(job_wait(copies, blocks[i]), "unpack");
}

static uint64_t steps(void)
{
	uint64_t all = 0, wrong, start, ns;

	for (uint32_t i = 0; i < CHUNKS; i++) {
		must(gx_engine_block_open(engine, &blocks[i]), "block");
		chunk_fill(blocks[i], dev[0], dev[1], i * CHUNK_B, FRAG_B);
	}
	printf("%s, %u SMs: chunks of 512 KiB, fragments of %u\n", info.name, info.sms, FRAG_B);
	for (unsigned step = 0; step < STEPS; step++) {
		step_run(step);
		poison(BYTES);
		start = gx_now();
		step_run(step);
		ns = gx_now() - start;
		copy(back, dev[1], BYTES);
		wrong = 0;
		for (uint32_t i = 0; i < CHUNKS; i++)
			wrong += chunk_wrong(i * CHUNK_B, FRAG_B);
		printf("%-12s %8.2f us a chunk, %lu wrong\n", step_names[step],
		       (double)ns / 1e3 / CHUNKS, wrong);
		all += wrong;
	}
	for (uint32_t i = 0; i < CHUNKS; i++)
		gx_engine_block_close(blocks[i]);
	return all;
}

/* ---- One job at a time ---- */

struct lane {
	struct gx_engine_queue *q;
	struct gx_engine_block *block;
	uint32_t copy_b; /* not 0: one copy of that size, no fragments */
	uint32_t off;
	uint64_t ns[JOBS];
	pthread_barrier_t *begin;
};

static struct lane lanes[THREADS];

static void lane_job(struct lane *l)
{
	uint32_t t;

	if (l->copy_b) {
		must(gx_engine_copy(l->q, dev[1] + l->off, dev[0] + l->off, l->copy_b, &t), "copy");
		must(gx_engine_wait(l->q, t, WAIT_NS), "copy");
		return;
	}
	while (!gx_engine_unpack(l->q, &l->block, 1))
		must(gx_engine_poll(l->q), "unpack");
	must(job_wait(l->q, l->block), "unpack");
}

static void *lane_run(void *arg)
{
	struct lane *l = arg;

	pthread_barrier_wait(l->begin);
	for (uint32_t i = 0; i < JOBS; i++) {
		uint64_t begin = gx_now(), end;

		lane_job(l);
		end = gx_now();
		l->ns[i] = end - begin;
		while (gx_now() - end < SPACE_NS + (i * 37 & 511))
			;
	}
	return NULL;
}

static int ns_compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static uint64_t lanes_tell(unsigned n, uint32_t frag_b)
{
	static uint64_t ns[THREADS * JOBS];
	uint64_t wrong = 0;
	unsigned nr = 0;

	for (unsigned i = 0; i < n; i++) {
		struct lane *l = &lanes[i];

		for (unsigned k = JOBS / 10; k < JOBS; k++)
			ns[nr++] = l->ns[k];
		wrong += l->copy_b ? memcmp(back + l->off, host + l->off, l->copy_b) != 0
				   : chunk_wrong(l->off, frag_b);
	}
	qsort(ns, nr, sizeof(*ns), ns_compare);
	printf("%u threads, p50 %8.2f us, p99 %8.2f us, %lu wrong\n", n, (double)ns[nr / 2] / 1e3,
	       (double)ns[nr * 99 / 100] / 1e3, wrong);
	return wrong;
}

/* @n threads, each with chunks of fragments of @frag_b, or with copies of @copy_b. */
static uint64_t jobs(const uint8_t *pool, unsigned n, uint32_t frag_b, uint32_t copy_b)
{
	pthread_barrier_t begin;
	pthread_t thread[THREADS];

	poison((size_t)n * LANE_B);
	pthread_barrier_init(&begin, NULL, n);
	for (unsigned i = 0; i < n; i++) {
		struct lane *l = &lanes[i];

		*l = (struct lane){.copy_b = copy_b, .off = i * LANE_B, .begin = &begin};
		must(gx_engine_queue_open(engine, NULL, &l->q), "queue");
		must(gx_engine_block_open(engine, &l->block), "block");
		if (!copy_b)
			chunk_fill(l->block, pool, dev[1], l->off, frag_b);
		must(-pthread_create(&thread[i], NULL, lane_run, l), "thread");
	}
	for (unsigned i = 0; i < n; i++) {
		pthread_join(thread[i], NULL);
		gx_engine_queue_close(lanes[i].q);
		gx_engine_block_close(lanes[i].block);
	}
	pthread_barrier_destroy(&begin);
	copy(back, dev[1], (size_t)n * LANE_B);
	return lanes_tell(n, frag_b);
}

static uint64_t handover(const char *mode)
{
	static const uint32_t frags[] = {4096, 1392}, small[] = {64, 4096, 65536};
	uint64_t wrong = 0;

	for (unsigned i = 0; i < 4; i++) {
		printf("%s, %u SMs, a chunk of 512 KiB, fragments of %u in %s memory\n", mode,
		       info.sms, frags[i % 2], i < 2 ? "GPU" : "pinned");
		for (unsigned n = 1; n <= THREADS; n *= 2)
			wrong += jobs(i < 2 ? dev[0] : host, n, frags[i % 2], 0);
	}
	for (unsigned i = 0; i < 3; i++) {
		printf("%s, a copy of %u bytes\n", mode, small[i]);
		wrong += jobs(dev[0], 1, 0, small[i]);
	}
	return wrong;
}

int main(void)
{
	struct gx_engine_opts o = GX_INIT(o);
	uint64_t wrong = 0;

	if (gx_engine_open(&o, &engine)) {
		printf("the CPU, as %s\n", gx_engine_why());
		device = -1;
	} else {
		gx_engine_close(engine);
	}
	all_open(GX_UNPACK_MODE_KERNEL, 16);
	wrong += steps();
	all_close();
	for (unsigned i = 0; i < (device < 0 ? 1 : 4); i++) {
		all_open(i % 2 ? GX_UNPACK_MODE_RESIDENT : GX_UNPACK_MODE_KERNEL, i < 2 ? 16 : 4);
		wrong += handover(i % 2 ? "resident" : "kernel");
		all_close();
	}
	return wrong ? 3 : 0;
}
