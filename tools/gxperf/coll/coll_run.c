// SPDX-License-Identifier: Apache-2.0
/*
 * A rank's work at each size of gxperf allgather or alltoall (see coll.h): payload and
 * poison, warm-up, new payload and poison, the timed collectives, a comparison of every destination
 * byte. All ranks do the same steps. They exchange figures by all-gathers of a small buffer. In
 * long steps a rank turns its core between pieces, so that its peers hear of it.
 */
#include "gxperf/coll/coll.h"

#include "gxperf/base/throttle.h"

#include <gxlab/modes.h>

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COLL_GUARD_B	 64 /* least poison after each destination */
#define COLL_STRIDE_B	 4096
#define COLL_DEFAULT_B	 (1ull << 30) /* payload to each rank by default: gives -n */
#define COLL_N_MIN	 20
#define COLL_N_MAX	 20000
#define COLL_WARM	 5
#define COLL_WARM_NS	 20000000 /* least time of a default warm-up: -D estimates from it */
#define COLL_FIRST_PART	 4	  /* of what it estimates, the first part */
#define COLL_PARTS_MAX	 16
#define COLL_YIELD_NS	 20000
#define COLL_REST_NS	 1000000
#define COLL_PROGRESS_NS 500000000ull
#define COLL_SMALL_B	 (4u << 20)
#define COLL_MIDDLE_B	 (256u << 20)

/* The plan of one size, the same at all ranks. */
struct coll_plan {
	uint64_t size, src_stride, dst_stride;
	unsigned depth; /* slots */
};

/* The figures of a rank, for the others. */
struct coll_figures {
	uint64_t ns, cpu_ns, checked_b, wrong, first_wrong_off;
};

#define COLL_FIGURES_B 64

int coll_say(struct coll_rank *r, int status, const char *fmt, ...)
{
	va_list ap;

	if (r->status)
		return r->status;
	va_start(ap, fmt);
	vsnprintf(r->why, sizeof(r->why), fmt, ap);
	va_end(ap);
	r->status = status;
	return status;
}

uint64_t coll_ctl_room(const struct coll_run *run)
{
	return COLL_FIGURES_B * (run->nr_ranks + 1);
}

static void plan_make(const struct coll_run *run, uint64_t size, struct coll_plan *p)
{
	uint64_t all = size * run->nr_ranks;

	p->size = size;
	p->depth = all <= COLL_SMALL_B ? 4 : all <= COLL_MIDDLE_B ? 2 : 1;
	if (run->o->tune.depth)
		p->depth = run->o->tune.depth;
	p->src_stride =
		((run->all_to_all ? all : size) + COLL_STRIDE_B - 1) & ~(COLL_STRIDE_B - 1ull);
	p->dst_stride = (all + COLL_GUARD_B + COLL_STRIDE_B - 1) & ~(COLL_STRIDE_B - 1ull);
}

int coll_room(const struct coll_run *run, uint64_t *src_b, uint64_t *dst_b)
{
	const struct perf_opts *o = run->o;
	struct coll_plan p;

	*src_b = *dst_b = COLL_STRIDE_B;
	if (o->tune.depth > GX_COLL_DEPTH || o->traffic.size_end > (1ull << 40) / run->nr_ranks)
		return -EINVAL;
	for (uint64_t size = o->traffic.size_begin; size <= o->traffic.size_end;
	     size = size ? size * o->traffic.size_factor : 1) {
		plan_make(run, size, &p);
		if (p.src_stride * p.depth > *src_b)
			*src_b = p.src_stride * p.depth;
		if (p.dst_stride * p.depth > *dst_b)
			*dst_b = p.dst_stride * p.depth;
	}
	return 0;
}

/* ---- Turning ---- */

/* Ranks may share a CPU: an idle rank yields it. */
static void rank_turn(struct coll_rank *r)
{
	uint64_t now = gx_now();

	if (gx_core_turn(gx_core(gx_group_gx(r->group), 0), now))
		r->idle_since_ns = now;
	else if (now - r->idle_since_ns > COLL_REST_NS && throttle_rests())
		perf_nap(COLL_REST_NS);
	else if (now - r->idle_since_ns > COLL_YIELD_NS)
		sched_yield();
}

static int rank_failed(struct coll_rank *r, int ret)
{
	bool lost = ret == -ETIMEDOUT || ret == -ECONNRESET || ret == -EHOSTUNREACH;

	return coll_say(r, lost ? PERF_LOST : PERF_FAILED, "%s", gx_error());
}

static int rank_wait(struct coll_rank *r, uint64_t ticket)
{
	int ret;

	while ((ret = gx_coll_test(r->group, ticket)) == -EINPROGRESS)
		rank_turn(r);
	return ret ? rank_failed(r, ret) : PERF_OK;
}

static int rank_barrier(struct coll_rank *r)
{
	uint64_t ticket;
	int ret = gx_barrier(r->group, &ticket);

	return ret ? rank_failed(r, ret) : rank_wait(r, ticket);
}

/* Exchange figures: those of all ranks go to @all. */
static int rank_exchange(struct coll_rank *r, const struct coll_figures *mine,
			 struct coll_figures *all)
{
	struct gx_mem *ctl = gx_group_mem(r->group, COLL_BUF_CTL);
	uint64_t own = COLL_FIGURES_B * r->run->nr_ranks, ticket;
	struct gx_coll c = GX_INIT(c);
	int ret;

	c.src = ctl;
	c.src_off = own;
	c.dst = COLL_BUF_CTL;
	c.len = COLL_FIGURES_B;
	ret = gx_mem_copy_in(ctl, own, mine, sizeof(*mine));
	if (!ret)
		ret = gx_allgather(r->group, &c, &ticket);
	if (ret)
		return rank_failed(r, ret);
	ret = rank_wait(r, ticket);
	for (unsigned q = 0; q < r->run->nr_ranks && !ret; q++)
		gx_mem_copy_out(ctl, COLL_FIGURES_B * q, &all[q], sizeof(all[q]));
	all[r->rank] = *mine; /* in unpack mode none they were not moved */
	return ret;
}

static uint64_t most_ns(const struct coll_figures *all, unsigned n)
{
	uint64_t ns = 1;

	for (unsigned q = 0; q < n; q++)
		ns = all[q].ns > ns ? all[q].ns : ns;
	return ns;
}

/* ---- Payload ---- */

/* No two blocks of a phase are alike, and no block of two phases. @to is 0 in an all-gather. */
static uint64_t block_seed(unsigned from, unsigned to, unsigned slot, unsigned phase)
{
	return PERF_SEED + from * 0x10001ull + to * 0x100000003ull + slot * 0x1000000000039ull +
	       phase * 0x51ull;
}

static int block_fill(struct coll_rank *r, uint64_t off, uint64_t size, uint64_t seed,
		      unsigned phase)
{
	struct gx_mem *mem = gx_group_mem(r->group, COLL_BUF_SRC);

	for (uint64_t at = 0, n; at < size; at += n) {
		n = size - at < COLL_PIECE_B ? size - at : COLL_PIECE_B;
		check_pattern(r->piece, n, at, seed);
		check_stamp(r->piece, n, 0, check_stamps(n), phase);
		if (gx_mem_copy_in(mem, off + at, r->piece, n))
			return coll_say(r, PERF_FAILED, "payload: %s", gx_error());
		rank_turn(r);
	}
	return PERF_OK;
}

static int dst_poison(struct coll_rank *r, uint64_t len)
{
	struct gx_mem *mem = gx_group_mem(r->group, COLL_BUF_DST);

	check_poison(r->piece, len < COLL_PIECE_B ? len : COLL_PIECE_B);
	for (uint64_t at = 0, n; at < len; at += n) {
		n = len - at < COLL_PIECE_B ? len - at : COLL_PIECE_B;
		if (gx_mem_copy_in(mem, at, r->piece, n))
			return coll_say(r, PERF_FAILED, "poison: %s", gx_error());
		rank_turn(r);
	}
	return PERF_OK;
}

static int rank_payload(struct coll_rank *r, const struct coll_plan *p, unsigned phase)
{
	unsigned blocks = r->run->all_to_all ? r->run->nr_ranks : 1;
	int ret = PERF_OK;

	if (!r->run->o->traffic.check)
		return PERF_OK;
	for (unsigned slot = 0; slot < p->depth; slot++)
		for (unsigned to = 0; to < blocks && !ret; to++)
			ret = block_fill(r, slot * p->src_stride + to * p->size, p->size,
					 block_seed(r->rank, to, slot, phase), phase);
	return ret ? ret : dst_poison(r, p->depth * p->dst_stride);
}

static int block_verify(struct coll_rank *r, uint64_t off, uint64_t size, uint64_t seed,
			unsigned phase, struct check_result *res)
{
	const struct gx_mem *mem = gx_group_mem(r->group, COLL_BUF_DST);
	struct check_result one = CHECK_RESULT_NONE;

	for (uint64_t at = 0, n; at < size; at += n) {
		n = size - at < COLL_PIECE_B ? size - at : COLL_PIECE_B;
		if (gx_mem_copy_out(mem, off + at, r->piece, n))
			return coll_say(r, PERF_FAILED, "payload: %s", gx_error());
		check_piece(r->piece, n, at, 0, seed, phase, &one);
		rank_turn(r);
	}
	if (one.wrong)
		one.first_wrong_off += off;
	check_result_add(res, &one);
	return PERF_OK;
}

static int guard_verify(struct coll_rank *r, const struct coll_plan *p, unsigned slot,
			struct check_result *res)
{
	uint64_t used = p->size * r->run->nr_ranks, off = slot * p->dst_stride + used;

	if (gx_mem_copy_out(gx_group_mem(r->group, COLL_BUF_DST), off, r->piece,
			    p->dst_stride - used))
		return coll_say(r, PERF_FAILED, "guard: %s", gx_error());
	check_guard(r->piece, p->dst_stride - used, off, res);
	return PERF_OK;
}

/* Compare all slots that the timed collectives have used. */
static int rank_verify(struct coll_rank *r, const struct coll_plan *p, uint64_t n, unsigned phase,
		       struct check_result *res)
{
	unsigned me = r->run->all_to_all ? r->rank : 0;
	int ret = PERF_OK;

	if (!r->run->o->traffic.check)
		return PERF_OK;
	for (unsigned slot = 0; slot < p->depth && slot < n && !ret; slot++) {
		for (unsigned q = 0; q < r->run->nr_ranks && !ret; q++)
			ret = block_verify(r, slot * p->dst_stride + q * p->size, p->size,
					   block_seed(q, me, slot, phase), phase, res);
		if (!ret)
			ret = guard_verify(r, p, slot, res);
	}
	return ret;
}

/* ---- Collectives ---- */

static int rank_post(struct coll_rank *r, const struct coll_plan *p, uint64_t i, uint64_t *ticket)
{
	struct gx_coll c = GX_INIT(c);

	c.src = gx_group_mem(r->group, COLL_BUF_SRC);
	c.src_off = i % p->depth * p->src_stride;
	c.dst = COLL_BUF_DST;
	c.dst_off = i % p->depth * p->dst_stride;
	c.len = p->size;
	return r->run->all_to_all ? gx_alltoall(r->group, &c, ticket)
				  : gx_allgather(r->group, &c, ticket);
}

static void run_progress(struct coll_rank *r, const struct coll_plan *p, uint64_t done,
			 uint64_t begin, uint64_t *printed)
{
	uint64_t now = gx_now();

	if (r->rank || now - *printed < COLL_PROGRESS_NS)
		return;
	*printed = now;
	report_progress(r->run->report, "%s of %llu bytes: %.0f s, %llu done", r->run->o->command,
			(unsigned long long)p->size, (double)(now - begin) / 1e9,
			(unsigned long long)done);
}

static uint64_t thread_cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Collectives that all ranks may post, as far as this rank knows. *@last: there will be no more. */
static uint64_t run_limit(struct coll_rank *r, uint64_t upto, bool *last)
{
	struct coll_run *run = r->run;
	uint64_t limit = atomic_load_explicit(&run->throttle_limit, memory_order_relaxed);

	/* Pairs with the release below: a later read of the limit sees all that was allowed. */
	*last = atomic_load_explicit(&run->throttle_end, memory_order_acquire);
	if (*last)
		return atomic_load_explicit(&run->throttle_limit, memory_order_relaxed);
	if (r->rank)
		return limit;
	if (limit < upto)
		limit += throttle_take(upto - limit);
	atomic_store_explicit(&run->throttle_limit, limit, memory_order_relaxed);
	atomic_store_explicit(&run->throttle_end, throttle_ends(), memory_order_release);
	return limit;
}

/* Run *@nr collectives, ->depth of them under way. The time is from the barrier to the end of the
 * last. *@nr 0: run as many as the throttle allows until it ends; *@nr becomes their number. */
static int rank_run(struct coll_rank *r, const struct coll_plan *p, uint64_t *nr,
		    struct coll_figures *mine)
{
	uint64_t ticket[GX_COLL_DEPTH], post_ns[GX_COLL_DEPTH], posted = 0, done = 0, begin,
								printed;
	uint64_t n = *nr;
	bool throttled = !n, last = !throttled;
	int ret = rank_barrier(r);
	uint64_t cpu_ns = thread_cpu_ns();

	if (ret)
		return ret;
	begin = printed = gx_now();
	while ((done < n || !last) && !ret) {
		if (throttled)
			n = run_limit(r, posted + p->depth, &last);
		while (posted < n && posted - done < p->depth && !ret) {
			post_ns[posted % p->depth] = gx_now();
			ret = rank_post(r, p, posted, &ticket[posted % p->depth]);
			posted += !ret;
		}
		rank_turn(r);
		while (done < posted && !ret &&
		       !(ret = gx_coll_test(r->group, ticket[done % p->depth]))) {
			hist_record(r->hist, gx_now() - post_ns[done++ % p->depth]);
			if (throttled && !r->rank)
				throttle_done(1);
		}
		if (ret == -EINPROGRESS || ret == -EAGAIN)
			ret = 0;
		run_progress(r, p, r->nr_before + done, begin - mine->ns, &printed);
	}
	if (ret && throttled) /* the other ranks must not wait for this one */
		atomic_store_explicit(&r->run->throttle_end, true, memory_order_release);
	*nr = n;
	mine->ns += gx_now() - begin;
	mine->cpu_ns += thread_cpu_ns() - cpu_ns;
	return ret ? rank_failed(r, ret) : PERF_OK;
}

/* ---- One size ---- */

static uint64_t clamp(uint64_t v, uint64_t min, uint64_t max)
{
	return v < min ? min : v > max ? max : v;
}

/* Warm-up. With -D its time gives a number of collectives, which must be equal at all ranks. */
static int rank_warm(struct coll_rank *r, const struct coll_plan *p, struct coll_figures *all,
		     uint64_t *n)
{
	const struct perf_opts *o = r->run->o;
	uint64_t all_b = p->size * r->run->nr_ranks;
	uint64_t warm = o->traffic.warm_given	 ? o->traffic.warm
			: o->traffic.duration_ns ? 1
						 : COLL_WARM;
	uint64_t enough = o->traffic.duration_ns && o->traffic.duration_ns / 10 < COLL_WARM_NS
				  ? o->traffic.duration_ns / 10
				  : COLL_WARM_NS;
	uint64_t each = 1;
	int ret = PERF_OK;

	*n = o->traffic.n ? o->traffic.n
			  : clamp(COLL_DEFAULT_B / (all_b ? all_b : 1), COLL_N_MIN, COLL_N_MAX);
	if (o->traffic.duration_ns && !warm)
		warm = 1;
	if (!warm)
		return PERF_OK;
	for (unsigned round = 0; round < 8 && !ret; round++) {
		struct coll_figures mine = {.first_wrong_off = UINT64_MAX};

		ret = rank_run(r, p, &warm, &mine);
		if (!ret)
			ret = rank_exchange(r, &mine, all);
		each = most_ns(all, r->run->nr_ranks) / warm;
		if (ret || o->traffic.warm_given || most_ns(all, r->run->nr_ranks) >= enough)
			break;
		warm = clamp(warm * 4, 1, COLL_N_MAX);
	}
	if (!ret && o->traffic.duration_ns)
		*n = clamp(o->traffic.duration_ns / (each ? each : 1), 1, UINT32_MAX);
	return ret;
}

/*
 * The collectives that count: @nr, or as many as the throttle allows (0). With -D they go in parts,
 * and the time of those before gives the length of the next one: the warm-up alone says too little
 * where other work takes the CPU for a while. All ranks see the same times, so all do the same.
 * *@nr becomes their number, @mine and @all have the sums.
 */
static int rank_timed(struct coll_rank *r, const struct coll_plan *p, uint64_t *nr,
		      struct coll_figures *mine, struct coll_figures *all)
{
	const struct perf_opts *o = r->run->o;
	/* In unpack mode none the times of the others do not come. */
	bool parts = *nr && o->traffic.duration_ns && o->gx.gpu.unpack != GX_UNPACK_MODE_NONE;
	uint64_t n = parts ? clamp(*nr / COLL_FIRST_PART, 1, UINT32_MAX) : *nr, ns;
	int ret;

	hist_reset(r->hist);
	ret = rank_run(r, p, &n, mine);
	*nr = n;
	for (unsigned k = 1; parts && !ret && k < COLL_PARTS_MAX; k++) {
		ret = rank_exchange(r, mine, all);
		ns = most_ns(all, r->run->nr_ranks);
		if (ret || ns >= o->traffic.duration_ns - o->traffic.duration_ns / 10)
			break;
		n = clamp((uint64_t)((double)(o->traffic.duration_ns - ns) / (double)ns *
				     (double)*nr),
			  1, UINT32_MAX);
		r->nr_before = *nr;
		ret = rank_run(r, p, &n, mine);
		*nr += n;
	}
	r->nr_before = 0;
	return ret;
}

static int rank_sms(const struct coll_rank *r)
{
	const char *gpu;
	char text[4096];
	unsigned sms;

	if (r->run->c->kind == GX_MEM_HOST)
		return 0;
	/* "gpu 0 NAME, unpack kernel on 16 SMs": the context has one GPU. */
	if (gx_describe(gx_group_gx(r->group), text, sizeof(text)) < 0 ||
	    !(gpu = strstr(text, "\ngpu ")) || !(gpu = strstr(gpu, " on ")) ||
	    sscanf(gpu, " on %u", &sms) != 1)
		return -1;
	return (int)sms;
}

static void rank_row(struct coll_rank *r, const struct coll_plan *p, uint64_t n, uint64_t ns,
		     const struct coll_figures *all)
{
	unsigned nr = r->run->nr_ranks;
	struct report_row row = {
		.op = r->run->o->command,
		.size_b = p->size,
		.count = n,
		.sms = rank_sms(r),
		.checked = r->run->o->traffic.check,
		.gb_s = (double)nr * (double)p->size * (double)n / (double)ns,
		.bus = true,
		.bus_gb_s = (double)(nr - 1) * (double)p->size * (double)n / (double)ns,
	};

	perf_row_hist(&row, r->hist);
	for (unsigned q = 0; q < nr; q++) {
		row.cpu_pct += 100.0 * (double)all[q].cpu_ns / (double)ns;
		row.checked_b += all[q].checked_b;
		row.wrong += all[q].wrong;
	}
	if (r->run->c->lanes > 1)
		row.cpu_pct = NAN; /* the other cores run on threads of gx */
	report_row(r->run->report, &row);
}

static int figures_wrong(struct coll_rank *r, const struct coll_plan *p,
			 const struct coll_figures *all)
{
	int ret = PERF_OK;

	for (unsigned q = 0; q < r->run->nr_ranks; q++) {
		if (!all[q].wrong)
			continue;
		ret = PERF_WRONG;
		if (r->rank == 0)
			report_error(r->run->report,
				     "%s of %llu bytes: rank %u has %llu wrong bytes, the first at "
				     "%llu of "
				     "its destination",
				     r->run->o->command, (unsigned long long)p->size, q,
				     (unsigned long long)all[q].wrong,
				     (unsigned long long)all[q].first_wrong_off);
	}
	return ret;
}

static int rank_size(struct coll_rank *r, uint64_t size, struct coll_figures *all)
{
	struct coll_figures mine = {.first_wrong_off = UINT64_MAX};
	struct check_result res = CHECK_RESULT_NONE;
	struct coll_plan p;
	uint64_t n = 0, ns;
	int ret;

	plan_make(r->run, size, &p);
	ret = rank_payload(r, &p, 0);
	if (!ret)
		ret = rank_warm(r, &p, all, &n);
	if (!ret)
		ret = rank_payload(r, &p, 1);
	if (ret)
		return ret;
	if (throttle_on())
		n = 0;
	if (!r->rank)
		throttle_ready(size * (r->run->nr_ranks - 1));
	ret = rank_timed(r, &p, &n, &mine, all);
	if (!ret)
		ret = rank_verify(r, &p, n, 1, &res);
	mine.checked_b = res.checked_b;
	mine.wrong = res.wrong;
	mine.first_wrong_off = res.first_wrong_off;
	if (!ret)
		ret = rank_exchange(r, &mine, all);
	if (ret)
		return ret;
	ns = most_ns(all, r->run->nr_ranks);
	if (r->rank == 0)
		rank_row(r, &p, n, ns, all);
	return figures_wrong(r, &p, all);
}

int coll_sizes(struct coll_rank *r)
{
	const struct perf_opts *o = r->run->o;
	struct coll_figures *all = calloc(r->run->nr_ranks, sizeof(*all));
	int worst = PERF_OK, ret = PERF_OK;

	r->piece = malloc(COLL_PIECE_B);
	r->hist = calloc(1, sizeof(*r->hist));
	if (!all || !r->piece || !r->hist)
		ret = coll_say(r, PERF_FAILED, "no memory");
	for (uint64_t size = o->traffic.size_begin; size <= o->traffic.size_end && !ret;
	     size = size ? size * o->traffic.size_factor : 1) {
		ret = rank_size(r, size, all);
		/* Wrong data at one size must not hide the other sizes. */
		if (ret == PERF_WRONG) {
			worst = ret;
			ret = PERF_OK;
		}
	}
	free(r->hist);
	free(r->piece);
	free(all);
	return ret ? ret : worst;
}
