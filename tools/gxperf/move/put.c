// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf put, get and send: for each size plan the slots, poison, fill, warm up, run, verify, print
 * (put_plan.c, put_check.c). Main thread; the cores do the work of a phase
 * (base/traffic.c).
 */
#include "gxperf/move/put.h"
#include "gxperf/move/move.h"

#include "gxperf/base/stop.h"
#include "gxperf/base/throttle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PUT_DEFAULT_B	(1ull << 30) /* default -n: so much payload in all */
#define PUT_N_MIN	20
#define PUT_N_MAX	100000
#define PUT_WARM_MAX	1000
#define PUT_WARM_GROWS	4 /* the next round has so many times more */
#define PUT_STUCK_NS	90000000000ull
#define PUT_PROGRESS_NS 1000000000ull

/* ---- A phase ---- */

static uint64_t way_count(const struct put *put, unsigned dir)
{
	uint64_t count = 0;

	for (unsigned c = 0; c < put->perf.nr_threads; c++)
		count += atomic_load_explicit(&put->cores[c].dir[dir].count, memory_order_relaxed);
	return count;
}

static uint64_t put_count(const struct put *put)
{
	return way_count(put, 0) + way_count(put, 1);
}

/* What results call a direction. */
static const char *way_name(const struct put *put, unsigned dir)
{
	if (put->nr_dirs == 1)
		return put->perf.opts->command;
	return put->plan[dir].op == GX_OP_GET ? "get" : "put";
}

static bool phase_done(const struct put *put)
{
	for (unsigned c = 0; c < put->perf.nr_threads; c++)
		if (!atomic_load_explicit(&put->cores[c].job.done, memory_order_acquire))
			return false;
	return true;
}

static void phase_progress(const struct put *put, uint64_t begin, uint64_t now)
{
	double s = (double)(now - begin) / 1e9;
	uint64_t count = put_count(put);

	report_progress(put->perf.report, "%s of %llu bytes: %.0f s, %llu messages, %.3g GB/s",
			put->perf.opts->command, (unsigned long long)put->plan[0].size, s,
			(unsigned long long)count,
			(double)count * (double)put->plan[0].size / s / 1e9);
}

/* A line of each direction for what was done since @v, which begins anew. */
static void phase_interval(const struct put *put, uint64_t begin, uint64_t now,
			   struct report_interval *v, uint64_t counted[2])
{
	v->size_b = put->plan[0].size;
	v->to_s = (double)(now - begin) / 1e9;
	for (unsigned dir = 0; dir < put->nr_dirs; dir++) {
		uint64_t count = way_count(put, dir);

		v->op = way_name(put, dir);
		v->count = count - counted[dir];
		report_interval(put->perf.report, v);
		counted[dir] = count;
	}
	v->from_s = v->to_s;
}

static int phase_wait(struct put *put)
{
	uint64_t begin = gx_now(), printed = begin, moved = begin, last = 0, counted[2] = {0}, now;
	uint64_t each = put->timed ? put->perf.opts->traffic.interval_ns : 0, next = begin + each;
	struct report_interval v = {0};

	while (!phase_done(put)) {
		perf_look_nap(begin);
		now = gx_now();
		if (each && now >= next) {
			phase_interval(put, begin, now, &v, counted);
			next += each;
		}
		if (now - printed >= PUT_PROGRESS_NS) {
			phase_progress(put, begin, now);
			printed = now;
		}
		if (put_count(put) != last || throttle_rests()) {
			last = put_count(put);
			moved = now;
		}
		if (now - moved < PUT_STUCK_NS)
			continue;
		if (!perf_lost(&put->perf))
			report_error(put->perf.report, "nothing has moved for %u s",
				     (unsigned)(PUT_STUCK_NS / 1000000000u));
		return PERF_LOST;
	}
	if (each && put_count(put) > counted[0] + counted[1])
		phase_interval(put, begin, gx_now(), &v, counted);
	return PERF_OK;
}

static int phase_error(struct put *put)
{
	for (unsigned i = 0; i < put->nr_flows; i++)
		if (put->flows[i].err)
			return perf_op_failed(&put->perf, way_name(put, put->flows[i].back),
					      put->flows[i].err);
	return PERF_OK;
}

/* Every flow does @n more messages, or (@duration_ns not 0) as many as it can in that time. */
static int put_phase(struct put *put, uint64_t n, uint64_t duration_ns)
{
	bool throttled = duration_ns && throttle_on();
	uint64_t now = gx_now();
	int ret;

	for (unsigned i = 0; i < put->nr_flows; i++) {
		put->flows[i].first = put->flows[i].post;
		put->flows[i].limit = throttled	    ? put->flows[i].post
				      : duration_ns ? UINT64_MAX
						    : put->flows[i].post + n;
	}
	for (unsigned c = 0; c < put->perf.nr_threads; c++) {
		struct traffic_core *fc = &put->cores[c];

		fc->deadline_ns = duration_ns ? now + duration_ns : 0;
		fc->begin_ns = 0;
		fc->stopping = fc->stopped = false;
		fc->throttled = throttled;
		for (unsigned dir = 0; dir < 2; dir++) {
			fc->dir[dir].end_ns = 0;
			atomic_store_explicit(&fc->dir[dir].count, 0, memory_order_relaxed);
			hist_reset(&fc->dir[dir].hist);
		}
		perf_core_job(&put->perf.cores[c], &fc->job);
	}
	ret = phase_wait(put);
	if (ret)
		return ret;
	for (unsigned i = 0; i < put->nr_flows; i++)
		traffic_rollback(&put->flows[i]);
	return phase_error(put);
}

/* ---- Results ---- */

static uint64_t way_elapsed(const struct put *put, unsigned dir)
{
	uint64_t begin = UINT64_MAX, end = 0;

	for (unsigned c = 0; c < put->perf.nr_threads; c++) {
		const struct traffic_core *fc = &put->cores[c];

		if (!fc->nr_flows)
			continue;
		begin = u64_min(begin, fc->begin_ns);
		end = u64_max(end, fc->dir[dir].end_ns);
	}
	return end > begin ? end - begin : 1;
}

static bool put_stopped(const struct put *put)
{
	bool stopped = false;

	for (unsigned c = 0; c < put->perf.nr_threads; c++)
		stopped |= put->cores[c].stopped;
	return stopped;
}

static int put_row(struct put *put, unsigned dir, const struct perf_mark m[2],
		   const struct check_result *res)
{
	const struct traffic_plan *p = &put->plan[dir];
	bool get = p->op == GX_OP_GET;
	struct hist *h = calloc(1, sizeof(*h));
	struct report_row row = {
		.op = way_name(put, dir),
		.size_b = p->size,
		.count = way_count(put, dir),
		.sms = perf_sms(&put->perf, get ? p->local_kind : put->perf.conns[0].region.kind,
				get),
		.checked = put->perf.opts->traffic.check,
		.checked_b = res->checked_b,
		.wrong = res->wrong,
		.interrupted = put_stopped(put),
		.depth = p->depth,
		.bidirectional = put->nr_dirs > 1,
	};

	if (row.interrupted && !row.count) {
		free(h);
		return PERF_STOPPED;
	}
	if (!h) {
		report_error(put->perf.report, "no memory");
		return PERF_FAILED;
	}
	for (unsigned c = 0; c < put->perf.nr_threads; c++)
		hist_merge(h, &put->cores[c].dir[dir].hist);
	perf_row_hist(&row, h);
	perf_row_marks(&row, m);
	row.gb_s = perf_gb_s(row.count, p->size, way_elapsed(put, dir));
	report_row(put->perf.report, &row);
	free(h);
	if (!res->wrong)
		return perf_timed(&put->perf, row.count, p->size);
	if (res->first_wrong_off != UINT64_MAX)
		report_error(put->perf.report,
			     "%s of %llu bytes: %llu wrong bytes, the first at %llu of region '%s'",
			     row.op, (unsigned long long)p->size, (unsigned long long)res->wrong,
			     (unsigned long long)res->first_wrong_off,
			     put->perf.conns[0].region.name);
	return PERF_WRONG;
}

static uint64_t put_n(const struct put *put)
{
	uint64_t size = u64_max(put->plan[0].size, 1), n;

	if (put->perf.opts->traffic.n)
		return put->perf.opts->traffic.n;
	n = u64_min(u64_max(PUT_DEFAULT_B / size, PUT_N_MIN), PUT_N_MAX) / put->nr_flows;
	return u64_max(n, PUT_N_MIN);
}

/*
 * Messages of the warm-up. If messages carry no number, destinations are poisoned again after it. A
 * group that is checked together must not lie on both sides of that, so the number is a multiple of
 * groups.
 */
static uint64_t put_warm(const struct put *put, uint64_t n, uint64_t *group)
{
	const struct perf_opts *o = put->perf.opts;
	const struct traffic_plan *p = &put->plan[0];
	uint64_t warm = o->traffic.warm_given ? o->traffic.warm
					      : u64_max(u64_min(n / 10, PUT_WARM_MAX), p->depth);

	*group = o->traffic.check && !p->stamp ? check_ring_group(&p->ring) : 1;
	return (warm + *group - 1) & ~(*group - 1);
}

/*
 * The warm-up of a run by time: rounds grow while the next one fits into a tenth of the time. On a
 * very slow link messages under way would take half of the time or more: then reduce the depth.
 */
static int put_warm_timed(struct put *put, uint64_t warm, uint64_t group)
{
	uint64_t duration = put->perf.opts->traffic.duration_ns, left = duration / 10, n = group,
		 each = 1;
	int ret = PERF_OK;

	for (uint64_t done = 0; done < warm && n && !ret && !stop_asked();) {
		uint64_t begin = gx_now(), took;

		n = u64_min(n, warm - done);
		done += n;
		ret = put_phase(put, n, 0);
		took = u64_max(gx_now() - begin, 1);
		each = u64_max(took / n, 1);
		left -= u64_min(took, left);
		n = u64_min(PUT_WARM_GROWS * n, left / each) & ~(group - 1);
	}
	if (put->plan[0].depth > duration / 2 / each && !put->perf.opts->tune.depth &&
	    !throttle_on())
		put->plan[0].depth = put->plan[1].depth = (uint32_t)u64_max(duration / 2 / each, 1);
	return ret;
}

/* Warm-up, then the timed phase between two marks of both ends' counters. */
static int put_measure(struct put *put, struct perf_mark m[2])
{
	const struct perf_opts *o = put->perf.opts;
	uint64_t n = put_n(put), group, warm = put_warm(put, n, &group);
	int ret = PERF_OK;

	if (warm && o->traffic.duration_ns && !o->traffic.warm_given)
		ret = put_warm_timed(put, warm, group);
	else if (warm)
		ret = put_phase(put, warm, 0);
	if (!ret && stop_asked())
		ret = PERF_STOPPED;
	if (!ret)
		ret = put_poison_again(put);
	if (!ret)
		ret = perf_mark(&put->perf, &m[0]);
	if (!ret)
		throttle_ready(put->plan[0].size);
	put->timed = true;
	if (!ret)
		ret = put_phase(put, n, o->traffic.duration_ns);
	put->timed = false;
	if (!ret)
		ret = perf_mark(&put->perf, &m[1]);
	return ret;
}

/* Compare, and print. Wrong data in one direction does not hide the other one. */
static int put_results(struct put *put, const struct perf_mark m[2])
{
	int worst = PERF_OK;

	for (unsigned dir = 0; dir < put->nr_dirs; dir++) {
		struct check_result res = CHECK_RESULT_NONE;
		int ret = put_verify(put, dir, &res);

		if (!ret)
			ret = put_recv_stop(put, &res.wrong);
		if (!ret)
			ret = put_row(put, dir, m, &res);
		if (ret && ret != PERF_WRONG)
			return ret;
		worst = ret ? ret : worst;
	}
	return worst;
}

static int put_size(struct put *put, uint64_t size)
{
	struct perf_mark m[2];
	int ret = put_plan(put, size);

	if (!ret)
		ret = put_flows_reset(put);
	if (!ret && put->perf.opts->traffic.check)
		ret = put_payload(put);
	if (!ret)
		ret = put_recv_start(put);
	if (!ret)
		ret = put_measure(put, m);
	if (!ret)
		ret = put_results(put, m);
	return !ret && stop_asked() ? PERF_STOPPED : ret;
}

/* ---- Life ---- */

static int core_of(const struct perf *perf, struct gx_ep *ep)
{
	if (perf->queue) /* one thread posts to all cores */
		return 0;
	for (unsigned c = 0; c < perf->nr_cores; c++)
		if (perf->cores[c].core == gx_ep_core(ep))
			return (int)c;
	return -1;
}

static int put_flow_open(struct put *put, struct perf_conn *conn, unsigned lane, bool back)
{
	struct traffic_flow *f = &put->flows[put->nr_flows];
	struct traffic_core *fc;
	int c;

	f->conn = conn;
	f->lane = lane;
	f->back = back;
	f->ep = gx_conn_ep(conn->conn, lane);
	c = f->ep ? core_of(&put->perf, f->ep) : -1;
	if (c < 0) {
		report_error(put->perf.report, "lane %u of the connection is not there", lane);
		return PERF_FAILED;
	}
	if (put->perf.opts->place.same_place)
		f->burst = calloc(TRAFFIC_BURST, sizeof(f->burst[0]));
	if (put->perf.opts->place.same_place && !f->burst) {
		report_error(put->perf.report, "no memory");
		return PERF_FAILED;
	}
	fc = &put->cores[c];
	fc->flows[fc->nr_flows++] = f;
	put->nr_flows++;
	return PERF_OK;
}

/* One flow for each lane, or one that uses all lanes. */
static unsigned put_conn_flows(const struct perf_conn *conn)
{
	return conn->perf->queue ? 1 : conn->lanes;
}

static int put_flows_open(struct put *put)
{
	struct perf *perf = &put->perf;
	unsigned nr = 0;
	int ret = PERF_OK;

	for (unsigned i = 0; i < perf->nr_conns; i++)
		nr += put_conn_flows(&perf->conns[i]) * put->nr_dirs;
	put->flows = calloc(nr, sizeof(put->flows[0]));
	put->cores = calloc(perf->nr_threads, sizeof(put->cores[0]));
	put->piece = malloc(TRAFFIC_PIECE_B);
	for (unsigned c = 0; put->cores && c < perf->nr_threads; c++) {
		put->cores[c].job.step = traffic_core_step;
		put->cores[c].core = &perf->cores[c];
		put->cores[c].queue = perf->queue ?: gx_core_queue(perf->cores[c].core);
		put->cores[c].flows = calloc(nr, sizeof(put->cores[c].flows[0]));
		put->cores[c].room = malloc(TRAFFIC_PIECE_B);
		if (!put->cores[c].flows || !put->cores[c].room)
			ret = PERF_FAILED;
	}
	if (ret || !nr || !put->flows || !put->cores || !put->piece) {
		report_error(perf->report, "no memory for %u flows", nr);
		return PERF_FAILED;
	}
	for (unsigned k = 0; k < put->nr_dirs * perf->nr_conns; k++) {
		struct perf_conn *conn = &perf->conns[k % perf->nr_conns];

		for (unsigned lane = 0; lane < put_conn_flows(conn) && !ret; lane++)
			ret = put_flow_open(put, conn, lane, k >= perf->nr_conns);
	}
	return ret;
}

/* A get writes too: gxperf first fills the bytes to get. Clients that get the same fill in the
 * same. Without a check no bytes are filled, and no lease is needed. */
static int put_lease(struct put *put, uint64_t used)
{
	struct perf_lease want = {.len = used, .moves = true};
	const struct perf_opts *o = put->perf.opts;
	char content[96];

	if (put->op == GX_OP_GET && put->nr_dirs == 1 && !o->traffic.check)
		return PERF_OK;
	if (put->op == GX_OP_GET && put->nr_dirs == 1 &&
	    o->traffic.size_begin == o->traffic.size_end) {
		snprintf(content, sizeof(content), "%u x %llu messages of %llu", put->nr_flows,
			 (unsigned long long)put->plan[0].nr_slots,
			 (unsigned long long)put->plan[0].size);
		want.content = content;
	}
	return perf_lease(&put->perf, &want);
}

/* Reserve as much of the region, and local memory, as any size of the sweep will use. */
static int put_room(struct put *put)
{
	const struct perf_opts *o = put->perf.opts;
	const struct gx_region *r = &put->perf.conns[0].region;
	uint64_t used = 0;
	int ret = perf_room(&put->perf, o->traffic.size_end);

	if (ret)
		return ret;
	put->room = r->len - put->perf.offset;
	for (uint64_t size = o->traffic.size_begin; size <= o->traffic.size_end && !ret;
	     size = size ? size * o->traffic.size_factor : 1) {
		ret = put_plan(put, size);
		used = u64_max(used, put_span(put, &put->plan[0]));
	}
	if (!ret)
		ret = put_lease(put, used);
	put->room = r->len - put->perf.offset; /* at least as much as is used */
	return ret ? ret : perf_alloc(&put->perf, used, &put->local);
}

static int put_all(struct put *put)
{
	const struct perf_opts *o = put->perf.opts;
	unsigned access = put->nr_dirs > 1	 ? GX_ACCESS_GET | GX_ACCESS_PUT
			  : put->op == GX_OP_GET ? GX_ACCESS_GET
						 : GX_ACCESS_PUT;
	int worst = PERF_OK, ret = perf_connect(&put->perf, access);

	if (!ret) {
		perf_row_times(&put->perf);
		ret = put_flows_open(put);
	}
	if (!ret)
		ret = put_room(put);
	if (!ret && o->file.stripe)
		report_note(
			put->perf.report,
			"one thread of its own posts each message over all %u lanes; CPU%% counts "
			"every thread of this end",
			put->perf.info.lanes);
	if (!ret && (put->op != GX_OP_GET || put->nr_dirs > 1) && o->traffic.check &&
	    o->place.kind != GX_MEM_HOST)
		report_note(put->perf.report,
			    "payload comes from a GPU: messages carry the number of their slot, "
			    "not of their iteration");
	for (uint64_t size = o->traffic.size_begin; size <= o->traffic.size_end && !ret;
	     size = size ? size * o->traffic.size_factor : 1) {
		ret = put_size(put, size);
		/* Wrong data at one size must not hide the other sizes. */
		if (ret == PERF_WRONG && !stop_asked()) {
			worst = ret;
			ret = PERF_OK;
		}
	}
	return ret && !(ret == PERF_STOPPED && worst) ? ret : worst;
}

/* Cores first: after a phase that was given up they may still look at flows. */
static void put_close(struct put *put)
{
	unsigned nr_threads = put->perf.nr_threads;

	for (unsigned c = 0; c < nr_threads && put->cores; c++)
		atomic_store_explicit(&put->perf.cores[c].job, NULL, memory_order_relaxed);
	perf_close(&put->perf);
	for (unsigned c = 0; c < nr_threads && put->cores; c++) {
		free(put->cores[c].flows);
		free(put->cores[c].room);
	}
	for (unsigned i = 0; i < put->nr_flows; i++) {
		free(put->flows[i].state);
		free(put->flows[i].number);
		free(put->flows[i].post_ns);
		free(put->flows[i].burst);
	}
	free(put->flows);
	free(put->cores);
	free(put->piece);
}

int perf_put(const struct perf_opts *opts, struct report *report)
{
	struct put put = {.op = opts->op, .nr_dirs = opts->file.bidirectional ? 2 : 1};
	int ret;

	if (opts->file.path)
		return perf_file(opts, report);
	ret = perf_open(opts, report, OPT_CPUS_MAX, &put.perf);
	if (!ret)
		ret = put_all(&put);
	put_close(&put);
	return ret;
}
