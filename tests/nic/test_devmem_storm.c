/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving in device memory from the scripted kernel, with every fault at once: four sockets, two
 * dma-bufs, copies by two queues that end out of order. No token may be lost, doubled or released
 * early, and every byte must arrive in its place. GX_TEST_SEED changes the seed, GX_TEST_FRAGS the
 * number of fragments.
 */
#include "copy/block.h"
#include "gpu/late_gpu.h"
#include "nic/devmem_script.h"

#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define QUEUES	  2
#define LIN_B	  (128u << 10)
#define DST_B	  (1u << 20)
#define JOBS	  65536
#define POOL_B	  ((size_t)SCRIPT_PAGES * DEVMEM_PAGE_B)
#define FRAGS	  GX_BURST_MAX
#define TURNS_MAX 100000000

#define NR_FRAGS 1000000

/* A copy under way. */
struct job {
	unsigned sock;
	uint32_t ref, len;
	uint64_t pos;
};

struct conn {
	struct devmem_rx *rx;
	uint64_t pos;	  /* bytes that have a descriptor */
	uint64_t checked; /* bytes that have been checked */
	unsigned nr_jobs;
	unsigned asleep; /* turns without a release: then there are many tokens */
	char *dst;	 /* DST_B: place of a byte is its position, modulo */
};

struct storm {
	struct script *script;
	size_t pool_b;
	char *arena; /* pools, then the host memory of each socket */
	struct devmem_pool *pool[SCRIPT_POOLS];
	struct gx_gpu *gpu[QUEUES];
	struct block_q *q[QUEUES];
	struct conn conn[SCRIPT_SOCKS];
	struct job job[JOBS];
	uint32_t job_free[JOBS], nr_free;
	bool is_lazy; /* copies begin late */
	uint64_t now_ns, rnd, nr_ends, bytes, merged;
};

static uint64_t rnd(struct storm *t)
{
	t->rnd ^= t->rnd << 13;
	t->rnd ^= t->rnd >> 7;
	t->rnd ^= t->rnd << 17;
	return t->rnd;
}

static void conn_open(struct storm *t, unsigned i)
{
	struct devmem_cfg cfg = {.sys = &script_sys,
				 .fd = (int)i,
				 .lin = t->arena + SCRIPT_POOLS * t->pool_b + (size_t)i * LIN_B,
				 .lin_b = LIN_B,
				 .depth = 2048};

	t->conn[i].pos = t->conn[i].checked = 0;
	assert_int_equal(devmem_rx_open(&cfg, &t->conn[i].rx), 0);
	for (unsigned p = 0; p < SCRIPT_POOLS; p++)
		assert_int_equal(devmem_rx_pool(t->conn[i].rx, t->pool[p]), 0);
}

static struct storm *storm_new(uint64_t seed, uint32_t nr_pages)
{
	struct storm *t = calloc(1, sizeof(*t));

	assert_non_null(t);
	t->rnd = seed * 2 + 1;
	t->pool_b = (size_t)nr_pages * DEVMEM_PAGE_B;
	t->now_ns = 1;
	t->script = malloc(sizeof(*t->script));
	t->arena = aligned_alloc(DEVMEM_PAGE_B, SCRIPT_POOLS * t->pool_b + SCRIPT_SOCKS * LIN_B);
	assert_true(t->script && t->arena);
	script_open(t->script, seed, t->arena, nr_pages);
	for (unsigned p = 0; p < SCRIPT_POOLS; p++)
		assert_int_equal(devmem_pool_open(script_id(p), t->script->pool[p], t->pool_b,
						  t->pool_b / 4, &t->pool[p]),
				 0);
	for (unsigned i = 0; i < QUEUES; i++) {
		assert_int_equal(late_gpu_open(3000 + 14000 * i, &t->gpu[i]), 0);
		assert_int_equal(block_open(t->gpu[i], t->arena, 1000000000, &t->q[i]), 0);
	}
	for (unsigned i = 0; i < JOBS; i++)
		t->job_free[t->nr_free++] = i;
	for (unsigned i = 0; i < SCRIPT_SOCKS; i++) {
		t->conn[i].dst = malloc(DST_B);
		assert_non_null(t->conn[i].dst);
		conn_open(t, i);
	}
	return t;
}

static void conn_close(struct storm *t, struct conn *c)
{
	const struct devmem_stat *stat = &c->rx->stat;

	assert_int_equal(c->rx->tail, c->rx->head);
	assert_int_equal(devmem_rx_held(c->rx), 0);
	assert_int_equal(stat->tokens, stat->released);
	t->bytes += stat->bytes;
	t->merged += stat->merged;
	devmem_rx_close(c->rx);
}

static void storm_free(struct storm *t)
{
	for (unsigned i = 0; i < SCRIPT_SOCKS; i++) {
		conn_close(t, &t->conn[i]);
		free(t->conn[i].dst);
	}
	for (unsigned i = 0; i < QUEUES; i++) {
		assert_int_equal(block_held(t->q[i]), 0);
		block_close(t->q[i]);
		gx_gpu_host_ops.close(t->gpu[i]);
	}
	for (unsigned p = 0; p < SCRIPT_POOLS; p++) {
		assert_int_equal(t->pool[p]->held, 0);
		devmem_pool_close(t->pool[p]);
	}
	free(t->arena);
	free(t->script);
	free(t);
}

/* A descriptor. */
static void job_add(struct storm *t, unsigned sock, const char *src, uint32_t len, uint32_t ref)
{
	struct conn *c = &t->conn[sock];
	uint32_t i = t->job_free[--t->nr_free];

	t->job[i] = (struct job){sock, ref, len, c->pos};
	block_add(t->q[rnd(t) % QUEUES],
		  &(struct block_frag){.src = src,
				       .len = len,
				       .dst_base = (uintptr_t)c->dst,
				       .dst_len = DST_B,
				       .dst_off = c->pos % DST_B,
				       .buf = i},
		  t->now_ns);
	c->pos += len;
	c->nr_jobs++;
}

/* A fragment goes to one place, or to two. */
static void frag_place(struct storm *t, unsigned sock, const struct devmem_frag *f)
{
	uint64_t end = DST_B - t->conn[sock].pos % DST_B;
	uint32_t cut = rnd(t) % 16 ? f->len : (uint32_t)(rnd(t) % f->len);

	if (f->len > end)
		cut = (uint32_t)end;
	if (!cut || cut == f->len) {
		job_add(t, sock, f->src, f->len, f->ref);
		return;
	}
	devmem_hold(t->conn[sock].rx, f->ref);
	job_add(t, sock, f->src, cut, f->ref);
	job_add(t, sock, f->src + cut, f->len - cut, f->ref);
}

static bool is_room(const struct storm *t)
{
	for (unsigned i = 0; i < QUEUES; i++)
		if (block_room(t->q[i]) < 2 * FRAGS)
			return false;
	return t->nr_free >= 2 * FRAGS;
}

static void conn_pull(struct storm *t, unsigned i)
{
	struct conn *c = &t->conn[i];
	struct devmem_frag frags[FRAGS];
	uint64_t want = 1 + rnd(t) % (rnd(t) % 8 ? 65536 : 64);
	int n;

	if (!is_room(t))
		return;
	want = GX_MIN(want, DST_B - (c->pos - c->checked));
	n = devmem_rx_pull(c->rx, want, frags, FRAGS);
	for (int k = 0; k < n; k++)
		frag_place(t, i, &frags[k]);
}

/* The copies of a stream end out of order; a place is written again when all before it is checked.
 * So a stream pulls no further than that. */
static void job_check(struct storm *t, const struct job *j)
{
	struct conn *c = &t->conn[j->sock];

	for (uint32_t at = 0; at < j->len;) {
		uint32_t n = GX_MIN(j->len - at, (uint32_t)SCRIPT_FRAG_B);

		assert_memory_equal(c->dst + (j->pos + at) % DST_B,
				    script_bytes(j->sock, j->pos + at), n);
		at += n;
	}
	devmem_done(c->rx, j->ref);
	if (!--c->nr_jobs)
		c->checked = c->pos;
}

static void jobs_reap(struct storm *t)
{
	struct block_done done[GX_BURST_MAX];

	for (unsigned i = 0; i < QUEUES; i++) {
		unsigned n;

		if (!t->is_lazy || rnd(t) % 16 == 0)
			block_flush(t->q[i], true, t->now_ns);
		n = block_reap(t->q[i], done, GX_BURST_MAX, t->now_ns);
		for (unsigned k = 0; k < n; k++) {
			assert_int_equal(done[k].status, 0);
			job_check(t, &t->job[done[k].buf]);
			t->job_free[t->nr_free++] = (uint32_t)done[k].buf;
		}
	}
}

static void books_check(const struct storm *t)
{
	assert_int_equal(t->script->nr_unknown, 0);
	assert_int_equal(t->script->nr_disorder, 0);
	assert_int_equal(t->script->nr_over, 0);
}

/* A stream that ended: its copies end, its tokens go back, another begins. */
static void conn_end(struct storm *t, unsigned i)
{
	struct conn *c = &t->conn[i];
	const struct script_sock *k = &t->script->sock[i];

	if (c->nr_jobs || c->rx->tail != c->rx->head)
		return;
	assert_non_null(c->rx->why);
	assert_false(c->rx->is_stuck);
	assert_int_equal(k->nr_out, k->nr_lost);
	conn_close(t, c);
	script_close(t->script, i);
	conn_open(t, i);
	t->nr_ends++;
}

/* A lazy core never is, until the end: what is due goes back all the same. */
static bool is_idle(struct storm *t, const struct conn *c)
{
	return c->rx->err || t->script->is_dry || (!t->is_lazy && rnd(t) % 4 == 0);
}

static void turn(struct storm *t)
{
	t->now_ns += 500 + rnd(t) % 3000;
	for (unsigned i = 0; i < SCRIPT_SOCKS; i++) {
		struct conn *c = &t->conn[i];

		if (!c->rx->err)
			conn_pull(t, i);
		if (c->asleep && !c->rx->err)
			c->asleep--;
		else
			assert_int_equal(devmem_release(c->rx, is_idle(t, c)), 0);
		if (rnd(t) % 512 == 0)
			c->asleep = 200;
		if (c->rx->err)
			conn_end(t, i);
	}
	jobs_reap(t);
	books_check(t);
}

static bool is_at_rest(const struct storm *t)
{
	for (unsigned i = 0; i < SCRIPT_SOCKS; i++)
		if (t->conn[i].rx->tail != t->conn[i].rx->head || t->script->sock[i].frag.left)
			return false;
	return true;
}

static void storm_rest(struct storm *t)
{
	t->script->is_dry = true;
	t->script->fatal_every = 0;
	for (unsigned n = 0; !is_at_rest(t) && n < 100000; n++)
		turn(t);
	assert_true(is_at_rest(t));
	for (unsigned i = 0; i < SCRIPT_SOCKS; i++)
		assert_int_equal(t->script->sock[i].nr_out, 0);
	assert_int_equal(script_held(t->script), 0);
}

static uint64_t env_u64(const char *name, uint64_t otherwise)
{
	const char *s = getenv(name);

	return s ? strtoull(s, NULL, 0) : otherwise;
}

static void storm__every_fault(void **state)
{
	uint64_t frags = env_u64("GX_TEST_FRAGS", NR_FRAGS);
	struct storm *t = storm_new(env_u64("GX_TEST_SEED", 1), SCRIPT_PAGES);
	const struct script *s = t->script;

	t->script->faults = true;
	t->script->fatal_every = 200;
	for (unsigned n = 0; s->nr_frags < frags && n < TURNS_MAX; n++)
		turn(t);
	storm_rest(t);
	assert_true(s->nr_frags >= frags);
	printf("%" PRIu64 " fragments, %" PRIu64 " streams ended, %" PRIu64
	       " short releases, %" PRIu64 " times without memory\n",
	       s->nr_frags, t->nr_ends, s->nr_short, s->nr_starved);
	/* Nothing of this may have been left out. */
	for (unsigned i = 1; i < SCRIPT_FAULTS && frags >= NR_FRAGS; i++)
		assert_true(s->nr_fault[i] > 0);
	assert_true(frags < NR_FRAGS || (s->nr_starved > 0 && s->nr_short > 0 && t->merged > 0));
	assert_true(frags < NR_FRAGS || (s->most_ranges == 128 && s->most_tokens == 1024));
	storm_free(t);
}

/* The same without faults, and copies that are slow for so small pools: the NIC runs out of memory
 * now and then, gx says so before, and the streams go on. */
static void storm__starved(void **state)
{
	struct storm *t = storm_new(2, SCRIPT_PAGES / 4);
	uint64_t slow = 0;

	t->is_lazy = true;
	for (unsigned n = 0; t->script->nr_frags < NR_FRAGS / 10 && n < TURNS_MAX; n++) {
		turn(t);
		if (!t->script->nr_starved)
			slow = t->pool[0]->slow + t->pool[1]->slow;
	}
	storm_rest(t);
	assert_true(t->script->nr_starved > 0);
	assert_true(slow > 0);
	assert_int_equal(t->nr_ends, 0);
	storm_free(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(storm__every_fault),
		cmocka_unit_test(storm__starved),
	};

	return cmocka_run_group_tests_name("devmem_storm", tests, NULL, NULL);
}
