/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives on puts (include/gx/coll.h). Each core of a rank has a worker, a poller of the core,
 * which moves its lane's part of every collective. The worker tells the peers that this rank has
 * posted it (READY: a put of no bytes with an immediate). It puts pieces to the peers that are
 * READY, has the own shard copied, and counts incoming pieces.
 */
#include "coll/coll.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define COLL_POSTS_MAX 256	  /* most puts of a worker in one turn */
#define COLL_APART_B   (1u << 20) /* above this, shards from GPUs go one collective at a time */

/* An immediate: READY or a piece, the number of the collective, and its sum or the piece's
 * number. */
#define IMM_READY    (1ull << 63)
#define IMM_SEQ_MASK 0x7fffffffu
/* gx_op.user: READY or a piece, the peer, the collective's place in the ring. */
#define USER_READY   (1ull << 63)
#define USER_ASK     (1ull << 62)

static unsigned rank_after(const struct gx_group *g, unsigned k)
{
	unsigned q = g->rank + k;

	return q < g->nr_ranks ? q : q - g->nr_ranks;
}

/* ---- READY and pieces ---- */

static bool worker_post(struct coll_worker *w, unsigned q, const struct gx_op *op)
{
	int ret = gx_post(gx_core_queue(w->ep[q]->core), w->ep[q], op, 1);

	/* -ENOTCONN: worker_downs() will report the end, with its reason. */
	if (gx_unlikely(ret < 0 && ret != -ENOTCONN))
		coll_fail(w->group, ret, (int)w->group->rank, true, "rank %u cannot put: %s",
			  w->group->rank, gx_error());
	return ret == 1;
}

static bool ready_post(struct coll_worker *w, uint64_t seq, unsigned q)
{
	struct coll_part *part = coll_part_of(w, seq);
	struct gx_op op = {0};

	op.kind = GX_OP_PUT;
	op.flags = GX_OP_IMM;
	op.user = USER_READY | (uint64_t)q << 32 | seq % COLL_RING;
	op.token = w->group->peer[q].ctl_token;
	op.imm = IMM_READY | (seq & IMM_SEQ_MASK) << 32 | coll_post_of(w->group, seq)->sum;
	if (!worker_post(w, q, &op))
		return false;
	part->exchange[q].ready_sent = true;
	part->nr_ready_sent++;
	return true;
}

static bool part_tell(struct coll_worker *w, uint64_t seq)
{
	struct coll_part *part = coll_part_of(w, seq);
	bool busy = false;

	/* A rank leaves only when nothing of it is under way any more. */
	if (coll_post_of(w->group, seq)->kind == COLL_LEAVE &&
	    atomic_load_explicit(&w->done, memory_order_relaxed) != seq)
		return false;
	for (unsigned k = 1; k < w->group->nr_ranks; k++) {
		unsigned q = rank_after(w->group, k);

		if (!part->exchange[q].ready_sent)
			busy |= ready_post(w, seq, q);
	}
	return busy;
}

static bool piece_post(struct coll_worker *w, uint64_t seq, unsigned q)
{
	struct gx_group *g = w->group;
	const struct coll_post *post = coll_post_of(g, seq);
	struct coll_part *part = coll_part_of(w, seq);
	struct coll_exchange *exchange = &part->exchange[q];
	uint64_t at = (uint64_t)exchange->nr_sent << g->piece_bits;
	struct gx_op op = {0};

	op.kind = GX_OP_PUT;
	op.flags = GX_OP_IMM;
	op.user = (uint64_t)q << 32 | seq % COLL_RING;
	op.mem = post->src;
	op.off = post->src_off + part->off + at;
	if (post->kind == COLL_ALLTOALL)
		op.off += q * post->len;
	op.len = GX_MIN(part->len - at, 1ull << g->piece_bits);
	op.token = g->peer[q].token[post->dst];
	op.remote_off = post->dst_off + g->rank * post->len + part->off + at;
	op.imm = (seq & IMM_SEQ_MASK) << 32 | exchange->nr_sent;
	if (!worker_post(w, q, &op))
		return false;
	w->out[q]++;
	exchange->nr_sent++;
	part->nr_sent++;
	return true;
}

/*
 * Two copy engines that write to one receiver share its link, and stay together from then on. So
 * large shards between GPUs keep to the rotated order, even if a later peer is ready before an
 * earlier one. The next collective waits for the end of this one, which brings the ranks together.
 * (4 x H200, 1 GiB: without this rule 231 of 390 GB/s of bus bandwidth.)
 */
static bool part_is_apart(const struct coll_worker *w, uint64_t seq)
{
	const struct coll_post *post = coll_post_of(w->group, seq);

	return post->src && post->src->kind == GX_MEM_CUDA && post->len > COLL_APART_B;
}

static bool part_waits(const struct coll_worker *w, uint64_t seq)
{
	return part_is_apart(w, seq) && seq != atomic_load_explicit(&w->done, memory_order_relaxed);
}

/* Post one piece to each of the first peers, in rotated order, that have credit and still miss
 * some.
 * Return: pieces posted. */
static unsigned part_round(struct coll_worker *w, uint64_t seq)
{
	struct gx_group *g = w->group;
	struct coll_part *part = coll_part_of(w, seq);
	unsigned served = 0, n = 0;

	for (unsigned k = 1; k < g->nr_ranks && served < g->fan; k++) {
		unsigned q = rank_after(g, k);
		struct coll_exchange *exchange = &part->exchange[q];

		if (exchange->nr_sent == part->nr_pieces)
			continue;
		if (!exchange->ready && part_is_apart(w, seq))
			break;
		if (!exchange->ready)
			continue;
		served++;
		if (w->out[q] < g->depth)
			n += piece_post(w, seq, q);
	}
	return n;
}

static bool part_send(struct coll_worker *w, uint64_t seq)
{
	struct coll_part *part = coll_part_of(w, seq);
	uint64_t all = (uint64_t)part->nr_pieces * (w->group->nr_ranks - 1);
	unsigned posts = 0, n;

	while (part->nr_sent < all && posts < COLL_POSTS_MAX) {
		n = part_round(w, seq);
		if (!n)
			break;
		posts += n;
	}
	return posts > 0;
}

/* ---- One collective ---- */

/* A rank that leaves agrees with all: others may have posted before they knew. */
static bool exchange_agrees(struct coll_worker *w, uint64_t seq, unsigned q)
{
	if (coll_post_of(w->group, seq)->kind == COLL_LEAVE)
		return true;
	if (coll_part_of(w, seq)->exchange[q].sum == coll_post_of(w->group, seq)->sum)
		return true;
	if (coll_part_of(w, seq)->exchange[q].sum == COLL_LEAVE) {
		coll_fail(w->group, -ECONNRESET, (int)q, true,
			  "rank %u has left the group; rank %u goes on", q, w->group->rank);
		return false;
	}
	coll_fail(w->group, -EPROTO, -1, true,
		  "ranks %u and %u posted different collectives as number %llu: all must post the "
		  "same, with the same sizes and offsets, in the same order",
		  w->group->rank, q, (unsigned long long)seq);
	return false;
}

/* The worker sees the post. Check now the sums that peers have sent before. */
static void part_begin(struct coll_worker *w, uint64_t seq, uint64_t now_ns)
{
	struct gx_group *g = w->group;
	const struct coll_post *post = coll_post_of(g, seq);
	struct coll_part *part = coll_part_of(w, seq);

	part->begun = true;
	part->begin_ns = now_ns;
	part->off = GX_MIN(post->len, post->lane_b * w->index);
	part->len = GX_MIN(post->len - part->off, post->lane_b);
	part->nr_pieces = (part->len + (1ull << g->piece_bits) - 1) >> g->piece_bits;
	if (!post->copy)
		part->copy_b = part->copied_b = part->len;
	for (unsigned q = 0; q < g->nr_ranks; q++)
		if (part->exchange[q].ready && !exchange_agrees(w, seq, q))
			return;
}

static bool part_step(struct coll_worker *w, uint64_t seq, uint64_t now_ns)
{
	struct coll_part *part = coll_part_of(w, seq);
	bool busy = false;

	if (!part->begun)
		part_begin(w, seq, now_ns);
	if (coll_has_failed(w->group))
		return true;
	if (part->nr_ready_sent < w->group->nr_ranks - 1)
		busy |= part_tell(w, seq);
	if (!part_waits(w, seq))
		busy |= part_send(w, seq);
	if (part->copy_b < part->len)
		busy |= coll_copy_begin(w, seq, now_ns);
	return busy;
}

static bool part_is_done(struct coll_worker *w, uint64_t seq)
{
	const struct coll_part *part = coll_part_of(w, seq);
	uint64_t peers = w->group->nr_ranks - 1, pieces = peers * part->nr_pieces;

	return part->nr_ready == peers && part->nr_ready_known == peers && part->nr_in == pieces &&
	       part->nr_done == pieces && part->copied_b == part->len;
}

static void part_clear(struct coll_worker *w, uint64_t seq)
{
	struct coll_part *part = coll_part_of(w, seq);
	struct coll_exchange *exchange = part->exchange;

	memset(exchange, 0, w->group->nr_ranks * sizeof(*exchange));
	*part = (struct coll_part){.exchange = exchange};
}

/* ---- Completions ---- */

static void peer_bad(struct coll_worker *w, unsigned q, const char *what)
{
	coll_fail(w->group, -EPROTO, (int)q, true, "rank %u broke the protocol: %s", q, what);
}

static void ready_take(struct coll_worker *w, uint64_t seq, unsigned q, uint32_t sum)
{
	struct coll_part *part = coll_part_of(w, seq);
	struct coll_exchange *exchange = &part->exchange[q];

	if (exchange->ready) {
		peer_bad(w, q, "it is ready twice");
		return;
	}
	exchange->ready = true;
	exchange->sum = sum;
	part->nr_ready++;
	w->left[q] |= sum == COLL_LEAVE;
	if (part->begun)
		exchange_agrees(w, seq, q);
}

/* We send READY after the worker has seen the collective, so no peer's piece comes too early. */
static void piece_take(struct coll_worker *w, uint64_t seq, unsigned q)
{
	struct coll_part *part = coll_part_of(w, seq);
	struct coll_exchange *exchange = &part->exchange[q];

	if (!exchange->ready_sent || exchange->nr_in == part->nr_pieces) {
		peer_bad(w, q, "it put what was not due");
		return;
	}
	exchange->nr_in++;
	part->nr_in++;
}

static void notify_take(struct coll_worker *w, const struct gx_comp *comp)
{
	struct coll_peer *peer = gx_conn_user(gx_ep_conn(comp->ep));
	uint64_t done = atomic_load_explicit(&w->done, memory_order_relaxed);
	uint32_t ahead;

	if (!peer)
		return; /* a stranger that found the port */
	ahead = ((uint32_t)(comp->imm >> 32) - (uint32_t)done) & IMM_SEQ_MASK;
	/* No rank is further ahead: see COLL_RING. */
	if (ahead >= COLL_RING)
		peer_bad(w, peer->rank, "a number out of turn");
	else if (comp->imm & IMM_READY)
		ready_take(w, done + ahead, peer->rank, (uint32_t)comp->imm);
	else
		piece_take(w, done + ahead, peer->rank);
}

static void done_take(struct coll_worker *w, const struct gx_comp *comp)
{
	unsigned q = (comp->user & ~(USER_READY | USER_ASK)) >> 32;
	struct coll_part *part = &w->part[(uint32_t)comp->user % COLL_RING];
	bool ready = comp->user & USER_READY;

	/* A peer that has left needs no READY. The end of a lost peer's connection is reported with
	 * its reason. */
	if (comp->status && !(ready && w->left[q])) {
		if (comp->status != -ECONNRESET && comp->status != -ENOTCONN &&
		    comp->status != -ECANCELED && comp->status != -ETIMEDOUT)
			coll_fail(w->group, comp->status, (int)q, true,
				  "rank %u could not put to rank %u: %s", w->group->rank, q,
				  gx_strerror(comp->status));
		return;
	}
	if (comp->user & USER_ASK) {
		w->asked[q] = false;
	} else if (ready) {
		part->exchange[q].ready_known = true;
		part->nr_ready_known++;
	} else {
		w->out[q]--;
		part->nr_done++;
	}
}

static bool worker_take(struct coll_worker *w)
{
	struct gx_queue *queue = gx_core_queue(w->group->gx->core[w->index]);
	struct gx_comp comps[GX_BURST_MAX];
	bool busy = false;
	unsigned n;

	/* At most GX_COMPS_MAX in all. */
	do {
		n = gx_poll(queue, comps, GX_BURST_MAX);
		for (unsigned i = 0; i < n && !coll_has_failed(w->group); i++) {
			if (comps[i].kind == GX_COMP_NOTIFY)
				notify_take(w, &comps[i]);
			else if (comps[i].kind == GX_COMP_DONE)
				done_take(w, &comps[i]);
		}
		busy |= n > 0;
	} while (n == GX_BURST_MAX);
	return busy;
}

/* ---- A turn ---- */

/* Some connections have ended. worker_turn() has taken the peers' last completions already. */
static void worker_downs(struct coll_worker *w)
{
	struct gx_group *g = w->group;

	for (unsigned q = 0; q < g->nr_ranks; q++) {
		struct coll_peer *peer = &g->peer[q];

		/* Pairs with the release in coll_on_conn(): the text is there. */
		if (!atomic_load_explicit(&peer->down, memory_order_acquire) || w->left[q])
			continue;
		coll_fail(g, peer->down_err ? peer->down_err : -ECONNRESET, (int)q, true,
			  peer->down_err ? "rank %u is lost: %s" : "rank %u has left: %s", q,
			  peer->down_text);
		return;
	}
}

static bool part_is_late_for(struct coll_worker *w, const struct coll_part *part, unsigned q)
{
	const struct coll_exchange *exchange = &part->exchange[q];

	return q != w->group->rank &&
	       (!exchange->ready || !exchange->ready_known || exchange->nr_in < part->nr_pieces);
}

static void part_late(struct coll_worker *w, uint64_t seq)
{
	struct gx_group *g = w->group;
	const struct coll_part *part = coll_part_of(w, seq);
	unsigned late = 0, first = 0;

	for (unsigned q = g->nr_ranks; q-- > 0;)
		if (part_is_late_for(w, part, q)) {
			first = q;
			late++;
		}
	coll_fail(g, -ETIMEDOUT, late == 1 ? (int)first : -1, true,
		  "collective %llu was not done within %.1f s: rank %u%s %s",
		  (unsigned long long)seq, g->opts.timeout_ns / 1e9, late ? first : g->rank,
		  late > 1 ? ", and others after it," : "",
		  late && !part->exchange[first].ready ? "has not posted it" : "is late");
}

/*
 * A connection's time-out runs only while an operation is under way on it. None may be under way to
 * a peer that owes us its part. So the worker puts no bytes to it now and then, to find a peer that
 * has stopped.
 */
static void part_ask(struct coll_worker *w, uint64_t seq, uint64_t now_ns)
{
	const struct coll_part *part = coll_part_of(w, seq);
	struct gx_group *g = w->group;

	if (now_ns < w->ask_ns)
		return;
	w->ask_ns = now_ns + g->gx->opts.peer_timeout_ns / 4;
	for (unsigned q = 0; q < g->nr_ranks; q++) {
		struct gx_op op = {0};

		if (q == g->rank || w->asked[q] || w->left[q] || !part_is_late_for(w, part, q))
			continue;
		op.kind = GX_OP_PUT;
		op.user = USER_ASK | (uint64_t)q << 32;
		op.token = g->peer[q].ctl_token;
		w->asked[q] = worker_post(w, q, &op);
	}
}

static bool worker_progress(struct coll_worker *w, uint64_t now_ns)
{
	struct gx_group *g = w->group;
	/* Pairs with the release in coll_publish(). */
	uint64_t posted = atomic_load_explicit(&g->posted, memory_order_acquire);
	uint64_t done = atomic_load_explicit(&w->done, memory_order_relaxed);
	bool busy = false;

	for (uint64_t seq = done; seq != posted; seq++)
		busy |= part_step(w, seq, now_ns);
	while (done != posted && part_is_done(w, done)) {
		part_clear(w, done);
		/* Pairs with the acquire in coll_done(): this worker's part is visible. */
		atomic_store_explicit(&w->done, ++done, memory_order_release);
		busy = true;
	}
	if (done != posted && coll_part_of(w, done)->begun)
		part_ask(w, done, now_ns);
	if (gx_unlikely(g->opts.timeout_ns && done != posted && coll_part_of(w, done)->begun &&
			now_ns - coll_part_of(w, done)->begin_ns > g->opts.timeout_ns))
		part_late(w, done);
	return busy;
}

static bool worker_turn(void *arg, uint64_t now_ns)
{
	struct coll_worker *w = arg;
	struct gx_group *g = w->group;
	/* Read it before taking completions: see worker_downs(). */
	unsigned nr_down = atomic_load_explicit(&g->nr_down, memory_order_acquire);
	bool busy = worker_take(w);

	if (!atomic_load_explicit(&g->connected, memory_order_acquire) || coll_has_failed(g) ||
	    atomic_load_explicit(&g->closing, memory_order_relaxed))
		return busy;
	if (gx_unlikely(nr_down != w->nr_down_seen)) {
		w->nr_down_seen = nr_down;
		worker_downs(w);
	}
	if (w->nr_copies)
		busy |= coll_copies_reap(w, now_ns);
	return worker_progress(w, now_ns) || busy;
}

/* ---- Workers ---- */

static int worker_open(struct gx_group *g, unsigned index)
{
	size_t len = GX_ALIGN_UP(sizeof(struct coll_worker), GX_CACHE_LINE);
	struct coll_worker *w = aligned_alloc(GX_CACHE_LINE, len);
	int ret = 0;

	if (!w)
		return gx_fail(-ENOMEM, "no memory");
	memset(w, 0, len);
	g->worker[index] = w;
	w->group = g;
	w->index = index;
	w->ep = calloc(g->nr_ranks, sizeof(*w->ep));
	w->out = calloc(g->nr_ranks, sizeof(*w->out));
	w->left = calloc(g->nr_ranks, sizeof(*w->left));
	w->asked = calloc(g->nr_ranks, sizeof(*w->asked));
	for (unsigned i = 0; i < COLL_RING; i++) {
		w->part[i].exchange = calloc(g->nr_ranks, sizeof(*w->part[i].exchange));
		if (!w->part[i].exchange)
			ret = -ENOMEM;
	}
	if (ret || !w->ep || !w->out || !w->left || !w->asked)
		return gx_fail(-ENOMEM, "no memory");
	for (unsigned i = 0; i < g->nr_bufs && !ret; i++)
		if (g->copier_of[i] == i)
			ret = coll_copier_open(&w->copier[i], g->mem[i]->gpu);
	return ret;
}

int coll_workers_open(struct gx_group *g)
{
	int ret = 0;

	for (unsigned i = 0; i < g->nr_bufs; i++) {
		g->copier_of[i] = i;
		for (unsigned k = i; k-- > 0;)
			if (g->mem[k]->gpu == g->mem[i]->gpu)
				g->copier_of[i] = k;
	}
	g->worker = calloc(gx_nr_cores(g->gx), sizeof(*g->worker));
	if (!g->worker)
		return gx_fail(-ENOMEM, "no memory");
	g->nr_workers = gx_nr_cores(g->gx);
	for (unsigned i = 0; i < g->nr_workers && !ret; i++)
		ret = worker_open(g, i);
	for (unsigned i = 0; i < g->nr_workers && !ret; i++)
		if (gx_core_poller(gx_core(g->gx, i), worker_turn, g->worker[i]))
			ret = gx_fail(-ENOSPC, "too many pollers on core %u", i);
	return ret;
}

static int worker_connect(struct gx_group *g, unsigned q)
{
	for (unsigned i = 0; i < g->nr_workers; i++) {
		struct gx_ep *ep = gx_conn_ep(g->peer[q].conn, i);

		if (!ep)
			return gx_fail(-ECONNRESET, "rank %u was lost while the group formed", q);
		if (gx_ep_core(ep) != gx_core(g->gx, i))
			return gx_fail(-EPROTO,
				       "rank %u: lane %u is not on core %u; did another program "
				       "connect to a rank's port?",
				       q, i, i);
		g->worker[i]->ep[q] = ep;
	}
	return 0;
}

int coll_workers_connect(struct gx_group *g)
{
	int ret = 0;

	for (unsigned q = 0; q < g->nr_ranks && !ret; q++)
		if (q != g->rank)
			ret = worker_connect(g, q);
	return ret;
}

void coll_workers_idle(struct gx_group *g)
{
	for (unsigned i = 0; i < g->nr_workers; i++)
		for (unsigned k = 0; g->worker[i] && k < g->nr_bufs; k++)
			coll_copier_close(&g->worker[i]->copier[k]);
}

void coll_workers_free(struct gx_group *g)
{
	for (unsigned i = 0; i < g->nr_workers; i++) {
		struct coll_worker *w = g->worker[i];

		if (!w)
			continue;
		for (unsigned k = 0; k < COLL_RING; k++)
			free(w->part[k].exchange);
		free(w->ep);
		free(w->out);
		free(w->left);
		free(w->asked);
		free(w);
	}
	free(g->worker);
}
