/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A soak of the NCCL harness: three ranks make collectives of comms as NCCL does, one after another,
 * for GX_TEST_SOAK_S seconds (2). Each word of each result is compared with arithmetic. Every now and
 * then the ranks end the plugin's context, and make all anew. At the end a rank has the threads,
 * descriptors and memory that it had after the first contexts, and a tenth of the time.
 */
#include "nccl_rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOM_B	 (512u << 10) /* a step of NCCL's buffer */
#define ROUNDS	 25	      /* over the same comms */
#define WARM	 4	      /* contexts, until the allocator has what it keeps */
#define GROWTH_B (8u << 20)
#define MINUTE	 60000000000ull

enum { ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, BROADCAST, SEND_RECV, NR_OPS };

/* Comms to and from another rank, and what they send from and receive into. */
struct peer {
	struct link l;
	struct buf out, in;
};

/* What a process holds. */
struct state {
	unsigned threads, fds;
	uint64_t own_b; /* memory; not what is shared, of which DPDK touches more by and by */
};

struct soak {
	struct rank *r;
	unsigned n;		     /* ranks */
	struct peer peer[RANKS_MAX]; /* by rank */
	uint64_t *part[RANKS_MAX];   /* of a vector */
	uint64_t round, bytes;
};

/* ---- Messages ---- */

static void *soak_send(struct soak *s, unsigned to, size_t len)
{
	struct peer *l = &s->peer[to];
	void *req = NULL;

	UNTIL(({
		CHECK(!net_isend(&s->r->net, l->l.send, l->out.base, len, l->out.mh, &req));
		req;
	}));
	return req;
}

static void *soak_recv(struct soak *s, unsigned from)
{
	struct peer *l = &s->peer[from];
	void *req = NULL;

	UNTIL(({
		CHECK(!net_irecv(&s->r->net, l->l.recv, l->in.base, ROOM_B, l->in.mh, &req));
		req;
	}));
	return req;
}

static void soak_got(struct soak *s, void *req, size_t len)
{
	int size = -1;

	req_wait(s->r, req, &size);
	CHECK(size == (int)len, "round %llu: %d bytes of %zu", (unsigned long long)s->round, size,
	      len);
	s->bytes += len;
}

/* A step of a ring: @send goes to the next rank, the previous one's lands in .in. */
static const uint64_t *soak_step(struct soak *s, const uint64_t *send, size_t len)
{
	unsigned next = (s->r->me + 1) % s->n, prev = (s->r->me + s->n - 1) % s->n;
	void *out, *in = soak_recv(s, prev);

	memcpy(s->peer[next].out.base, send, len);
	out = soak_send(s, next, len);
	soak_got(s, in, len);
	soak_got(s, out, len);
	return (const uint64_t *)(const void *)s->peer[prev].in.base;
}

/* ---- Collectives ---- */

/* Word @i of what @rank brings along in a round. */
static uint64_t soak_word(const struct soak *s, unsigned rank, size_t i)
{
	return mix(s->round * RANKS_MAX + rank) + i * 0x9e3779b97f4a7c15ull;
}

static void soak_right(const struct soak *s, const uint64_t *words, size_t n, unsigned rank,
		       size_t from)
{
	for (size_t i = 0; i < n; i++)
		CHECK(words[i] == soak_word(s, rank, from + i), "round %llu: word %zu of rank %u",
		      (unsigned long long)s->round, i, rank);
}

/* Each part goes round and is summed, and round again. */
static void soak_all_reduce(struct soak *s, size_t n)
{
	unsigned me = s->r->me;

	for (unsigned p = 0; p < s->n; p++)
		for (size_t i = 0; i < n; i++)
			s->part[p][i] = soak_word(s, me, p * n + i);
	for (unsigned k = 0; k < 2 * (s->n - 1); k++) {
		uint64_t *to = s->part[(me + 2 * s->n - k - 1) % s->n];
		const uint64_t *in = soak_step(s, s->part[(me + 2 * s->n - k) % s->n], n * 8);

		for (size_t i = 0; i < n; i++)
			to[i] = k < s->n - 1 ? to[i] + in[i] : in[i];
	}
	for (unsigned p = 0; p < s->n; p++)
		for (size_t i = 0; i < n; i++) {
			uint64_t sum = 0;

			for (unsigned q = 0; q < s->n; q++)
				sum += soak_word(s, q, p * n + i);
			CHECK(s->part[p][i] == sum, "round %llu: word %zu of part %u",
			      (unsigned long long)s->round, i, p);
		}
}

static void soak_all_gather(struct soak *s, size_t n)
{
	unsigned me = s->r->me;

	for (size_t i = 0; i < n; i++)
		s->part[0][i] = soak_word(s, me, i);
	for (unsigned k = 1; k < s->n; k++) {
		memcpy(s->part[k], soak_step(s, s->part[k - 1], n * 8), n * 8);
		soak_right(s, s->part[k], n, (me + s->n - k) % s->n, 0);
	}
}

/* All messages at once. */
static void soak_all_to_all(struct soak *s, size_t n)
{
	void *in[RANKS_MAX], *out[RANKS_MAX];
	unsigned me = s->r->me;

	for (unsigned k = 1; k < s->n; k++) {
		unsigned q = (me + k) % s->n;
		uint64_t *to = (uint64_t *)(void *)s->peer[q].out.base;

		in[q] = soak_recv(s, q);
		for (size_t i = 0; i < n; i++)
			to[i] = soak_word(s, me, q * n + i);
		out[q] = soak_send(s, q, n * 8);
	}
	for (unsigned k = 1; k < s->n; k++) {
		unsigned q = (me + k) % s->n;

		soak_got(s, in[q], n * 8);
		soak_got(s, out[q], n * 8);
		soak_right(s, (const uint64_t *)(const void *)s->peer[q].in.base, n, q, me * n);
	}
}

/* From a root along a chain. */
static void soak_broadcast(struct soak *s, size_t n)
{
	unsigned me = s->r->me, root = (unsigned)(s->round % s->n), next = (me + 1) % s->n;
	const uint64_t *from = s->part[0];

	if (me == root) {
		for (size_t i = 0; i < n; i++)
			s->part[0][i] = soak_word(s, root, i);
	} else {
		unsigned prev = (me + s->n - 1) % s->n;

		soak_got(s, soak_recv(s, prev), n * 8);
		from = (const uint64_t *)(const void *)s->peer[prev].in.base;
		soak_right(s, from, n, root, 0);
	}
	if (next == root)
		return;
	memcpy(s->peer[next].out.base, from, n * 8);
	soak_got(s, soak_send(s, next, n * 8), n * 8);
}

/* One rank to another; the third has nothing to do. */
static void soak_send_recv(struct soak *s, size_t n)
{
	unsigned me = s->r->me, from = (unsigned)(s->round % s->n), to = (from + 1) % s->n;

	if (me == to) {
		soak_got(s, soak_recv(s, from), n * 8);
		soak_right(s, (const uint64_t *)(const void *)s->peer[from].in.base, n, from, 0);
	} else if (me == from) {
		uint64_t *out = (uint64_t *)(void *)s->peer[to].out.base;

		for (size_t i = 0; i < n; i++)
			out[i] = soak_word(s, from, i);
		soak_got(s, soak_send(s, to, n * 8), n * 8);
	}
}

/* All ranks draw the same operation and size. Short messages are as frequent as long ones. */
static void soak_round(struct soak *s)
{
	static void (*const ops[NR_OPS])(struct soak *, size_t) = {
		[ALL_REDUCE] = soak_all_reduce, [ALL_GATHER] = soak_all_gather,
		[ALL_TO_ALL] = soak_all_to_all, [BROADCAST] = soak_broadcast,
		[SEND_RECV] = soak_send_recv,
	};
	uint64_t dice = mix(s->round ^ 0x50414b);
	size_t most = (ROOM_B / 8) >> (dice >> 8) % 17; /* 1 word to all of the room */

	ops[dice % NR_OPS](s, (dice >> 16) % (most + 1));
}

/* On the progress thread: rounds over the same comms. */
static void soak_run(void *arg)
{
	struct soak *s = arg;

	for (unsigned i = 0; i < ROUNDS; i++, s->round++)
		soak_round(s);
}

/* ---- Comms ---- */

static void soak_open(void *arg)
{
	struct soak *s = arg;

	for (unsigned q = 0; q < s->n; q++) {
		struct peer *l = &s->peer[q];

		if (q == s->r->me)
			continue;
		buf_open(s->r, l->l.send, &l->out, ROOM_B);
		buf_open(s->r, l->l.recv, &l->in, ROOM_B);
	}
}

static void soak_close(void *arg)
{
	struct soak *s = arg;

	for (unsigned q = 0; q < s->n; q++) {
		struct peer *l = &s->peer[q];

		if (q == s->r->me)
			continue;
		buf_close(s->r, l->l.send, &l->out);
		buf_close(s->r, l->l.recv, &l->in);
		link_close(&l->l);
	}
}

/* In pairs, as both ends of a link open it at the same time. */
static void soak_link(struct soak *s)
{
	for (unsigned a = 0; a < s->n; a++)
		for (unsigned b = a + 1; b < s->n; b++) {
			if (s->r->me == a)
				rank_link(s->r, &s->peer[b].l, b, 0);
			else if (s->r->me == b)
				rank_link(s->r, &s->peer[a].l, a, 0);
		}
	worker_do(&s->r->service, soak_open, s);
}

/* ---- What is left ---- */

static void state_get(struct state *out)
{
	FILE *f = fopen("/proc/self/status", "re");
	char line[256];
	unsigned long long kib = 0;

	CHECK(f);
	while (fgets(line, sizeof(line), f) && sscanf(line, "RssAnon: %llu", &kib) != 1)
		;
	fclose(f);
	CHECK(kib);
	out->own_b = kib << 10;
	out->threads = entries("/proc/self/task");
	out->fds = entries("/proc/self/fd");
}

static void state_compare(const struct state *first, const struct state *last)
{
	/* The kernel lists a joined thread for a moment more. */
	UNTIL(entries("/proc/self/task") <= first->threads);
	CHECK(last->fds <= first->fds, "%u descriptors, %u before", last->fds, first->fds);
/* Sanitizers keep what was freed, and histories. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	CHECK(last->own_b <= first->own_b + GROWTH_B, "%llu KiB, %llu before",
	      (unsigned long long)last->own_b >> 10, (unsigned long long)first->own_b >> 10);
#endif
}

/* ---- The case ---- */

static void soak_tell(const struct soak *s, const char *when, const struct state *now)
{
	printf("soak, %s: %llu rounds, %llu MiB at rank 0, 0 wrong; %u threads, %u descriptors, "
	       "%llu KiB\n",
	       when, (unsigned long long)s->round, (unsigned long long)s->bytes >> 20,
	       now->threads - 2, now->fds - 3, (unsigned long long)now->own_b >> 10);
	fflush(stdout);
}

unsigned soak_s(void)
{
	const char *text = getenv("GX_TEST_SOAK_S");

	return text ? (unsigned)atoi(text) : 2;
}

void case_soak(struct rank *r)
{
	uint64_t from = now_ns(), told = from, lasts = soak_s() * 1000000000ull;
	struct soak s = {.r = r, .n = r->w->nr_ranks};
	struct state first = {0}, now = {0};
	unsigned contexts = 0;

	CHECK(!net_finalize(&r->net, r->ctx));
	for (unsigned p = 0; p < s.n; p++)
		CHECK((s.part[p] = malloc(ROOM_B)) != NULL);
	do {
		CHECK(!net_init(&r->net, &r->ctx));
		soak_link(&s);
		worker_do(&r->progress, soak_run, &s);
		barrier(r); /* all have what they were sent */
		worker_do(&r->service, soak_close, &s);
		CHECK(!net_finalize(&r->net, r->ctx));
		state_get(&now);
		if (!first.own_b && ++contexts >= WARM && now_ns() - from >= lasts / 10)
			first = now;
		if (!r->me && now_ns() - told >= MINUTE) {
			soak_tell(&s, "so far", &now);
			told = now_ns();
		}
		if (!r->me)
			atomic_store(&r->w->flag[0], first.own_b && now_ns() - from >= lasts);
		barrier(r); /* all read rank 0's word */
	} while (!atomic_load(&r->w->flag[0]));
	state_compare(&first, &now);
	if (!r->me)
		soak_tell(&s, "all", &now);
	CHECK(!net_init(&r->net, &r->ctx)); /* the harness ends it */
	for (unsigned p = 0; p < s.n; p++)
		free(s.part[p]);
}
