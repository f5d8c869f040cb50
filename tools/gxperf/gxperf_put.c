// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf put, get and send: for each size plan the slots, poison, fill, warm up, run, verify,
 * print. Main thread; the cores do the work of a phase (gxperf_traffic.c).
 */
#include "gxperf/gxperf_traffic.h"

#include "common/json.h"
#include "gxperf/beside/gate.h"
#include "common/stop.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PUT_DEPTH_MAX	   64
/* Default: as many messages under way as hold so much, 2 to PUT_DEPTH_MAX */
#define PUT_DEPTH_B	   (4u << 20)
#define PUT_SAME_MANY_B	   65536      /* --same-place: above, one message at a time */
#define PUT_GROUP_B	   (4u << 20) /* messages checked together hold about so much */
#define PUT_GROUP_BITS_MAX 12
#define PUT_SPAN_B	   (1ull << 30) /* of the region, unless one message is larger */
#define PUT_DEFAULT_B	   (1ull << 30) /* default -n: so much payload in all */
#define PUT_N_MIN	   20
#define PUT_N_MAX	   100000
#define PUT_WARM_MAX	   1000
#define PUT_WARM_GROWS	   4  /* times as many in the next round */
#define PUT_RECV_MAX	   64 /* receives that the server keeps posted for a flow */
#define PUT_STRIDE_B	   64 /* slots begin at multiples of it */
#define PUT_STUCK_NS	   90000000000ull
#define PUT_LOOK_NS	   2000000
#define PUT_PROGRESS_NS	   1000000000ull

struct put {
	struct perf perf;
	enum gx_op_kind op;
	struct gx_mem *local;
	uint64_t room; /* bytes of the region, and of local, that may be used */
	struct traffic_core *cores;
	struct traffic_flow *flows;
	unsigned nr_flows;
	struct traffic_plan plan; /* of the size at hand */
	uint64_t flow_span;	  /* bytes of the region for each flow */
	unsigned char *piece;	  /* TRAFFIC_PIECE_B */
};

static uint64_t u64_min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t u64_max(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t power_of_two_up(uint64_t v)
{
	uint64_t p = 1;

	while (p < v)
		p <<= 1;
	return p;
}

/* ---- Plan ---- */

static uint64_t put_span(const struct put *put, const struct traffic_plan *p)
{
	uint64_t slots = check_ring_total(&p->ring) * put->nr_flows;

	return (slots - 1) * p->stride + p->size;
}

/* Fewer slots, step by step, until all flows fit in @room. */
static bool plan_shrink(const struct put *put, struct traffic_plan *p, uint64_t room)
{
	struct check_ring *ring = &p->ring;

	while (put_span(put, p) > room) {
		if (ring->group_bits)
			ring->group_bits--;
		else if (ring->nr_slots > 1)
			ring->nr_slots /= 2;
		else if (ring->apart)
			ring->apart = false;
		else
			return false;
	}
	return true;
}

static void plan_ring(const struct put *put, struct traffic_plan *p)
{
	const struct perf_opts *o = put->perf.opts;
	uint64_t per_msg = p->size ? p->size : 1;
	uint64_t depth =
		o->depth ? o->depth : u64_min(u64_max(PUT_DEPTH_B / per_msg, 2), PUT_DEPTH_MAX);

	/* Long ones under way together would be copied slice by slice, each out of the cache that
	 * the one before has filled. */
	if (p->same && !o->depth && p->size > PUT_SAME_MANY_B)
		depth = 1;
	p->depth = (uint32_t)depth;
	p->ring = (struct check_ring){.nr_slots = p->same ? 1 : power_of_two_up(depth)};
	if (p->same)
		return;
	if (!o->check || !o->duration_ns)
		return;
	p->ring.sample = p->ring.apart = true;
	while (p->ring.group_bits < PUT_GROUP_BITS_MAX &&
	       per_msg << (p->ring.group_bits + 1) <= PUT_GROUP_B)
		p->ring.group_bits++;
}

static int put_plan(struct put *put, uint64_t size)
{
	const struct perf_opts *o = put->perf.opts;
	struct traffic_plan *p = &put->plan;

	*p = (struct traffic_plan){
		.op = put->op,
		.size = size,
		.stride = u64_max((size + PUT_STRIDE_B - 1) & ~(uint64_t)(PUT_STRIDE_B - 1),
				  PUT_STRIDE_B),
		.local = put->local,
		.local_kind = o->local_kind,
		.same = o->same_place,
	};
	plan_ring(put, p);
	/* Rather little than all of it, but all of it rather than not at all. */
	if (!plan_shrink(put, p, u64_min(put->room, PUT_SPAN_B))) {
		plan_ring(put, p);
		if (!plan_shrink(put, p, put->room))
			return perf_room(&put->perf, put_span(put, p));
	}
	if (!p->same)
		p->depth = (uint32_t)u64_min(p->depth, p->ring.nr_slots);
	p->nr_slots = check_ring_total(&p->ring);
	p->stamp = o->check && o->local_kind == GX_MEM_HOST && !p->same;
	p->fixed = put->op == GX_OP_GET || !p->stamp;
	put->flow_span = p->nr_slots * p->stride;
	return PERF_OK;
}

static int traffic_arrays(struct traffic_flow *f, uint64_t nr_slots, uint64_t nr_times)
{
	free(f->state);
	free(f->number);
	free(f->post_ns);
	f->state = calloc(nr_slots, sizeof(f->state[0]));
	f->number = calloc(nr_slots, sizeof(f->number[0]));
	f->post_ns = calloc(u64_max(nr_slots, nr_times), sizeof(f->post_ns[0]));
	return f->state && f->number && f->post_ns ? 0 : -ENOMEM;
}

static int traffic_reset(struct put *put, unsigned i)
{
	const struct traffic_plan *p = &put->plan;
	struct traffic_flow *f = &put->flows[i];

	f->plan = p;
	f->local_off = i * put->flow_span;
	f->remote_off = put->perf.opts->offset + f->local_off;
	f->local = p->local_kind == GX_MEM_HOST
			   ? (unsigned char *)gx_mem_addr(put->local) + f->local_off
			   : NULL;
	f->prep = f->post = f->limit = f->prep_stamp = 0;
	f->poisoned = f->spoiled = 0;
	f->in_flight = 0;
	f->err = 0;
	f->check = (struct traffic_check){.state = TRAFFIC_CHECK_NONE};
	f->taken = 0;
	f->time_mask = power_of_two_up(p->depth) - 1;
	return traffic_arrays(f, p->nr_slots, f->time_mask + 1);
}

/* What all operations of a flow share. The low half of user is for the slot. */
static void traffic_op(struct traffic_flow *f, unsigned index_on_core)
{
	f->op = (struct gx_op){
		.size = sizeof(f->op),
		.kind = f->plan->op,
		.user = (uint64_t)index_on_core << 32,
		.mem = f->plan->local,
		.off = f->local_off,
		.len = f->plan->size,
		.token = f->conn->region.token,
		.remote_off = f->remote_off,
	};
	for (unsigned i = 0; f->burst && i < TRAFFIC_BURST; i++)
		f->burst[i] = f->op;
}

static int put_flows_reset(struct put *put)
{
	int ret = 0;

	for (unsigned i = 0; i < put->nr_flows && !ret; i++)
		ret = traffic_reset(put, i);
	for (unsigned c = 0; c < put->perf.nr_threads && !ret; c++) {
		struct traffic_core *fc = &put->cores[c];

		fc->checked = (struct check_result)CHECK_RESULT_NONE;
		for (unsigned i = 0; i < fc->nr_flows; i++)
			traffic_op(fc->flows[i], i);
	}
	if (ret)
		report_error(put->perf.report, "no memory for %u flows", put->nr_flows);
	return ret ? PERF_FAILED : PERF_OK;
}

/* ---- Payload ---- */

/* Memory of a GPU is made up in host memory, piece by piece. */
static int local_gpu(struct put *put, bool poison)
{
	const struct traffic_plan *p = &put->plan;
	uint64_t end = put_span(put, p);
	int ret = 0;

	for (uint64_t slot = 0, at = 0; slot * p->stride < end && !ret;) {
		uint64_t n = u64_min(p->size - at, TRAFFIC_PIECE_B), off = slot * p->stride + at;

		if (poison)
			check_poison(put->piece, n);
		else
			check_pattern(put->piece, n, put->perf.opts->offset + off, PERF_SEED);
		if (!poison)
			check_stamp(put->piece, n, 0, check_stamps(n), slot % p->nr_slots);
		ret = n ? gx_mem_copy_in(put->local, off, put->piece, n) : 0;
		at += n;
		if (at == p->size) {
			at = 0;
			slot++;
		}
	}
	if (ret)
		report_error(put->perf.report, "cannot write to the local GPU: %s", gx_error());
	return ret ? PERF_FAILED : PERF_OK;
}

static int local_prepare(struct put *put, bool poison)
{
	uint64_t len = put_span(put, &put->plan);
	void *addr = gx_mem_addr(put->local);

	if (put->plan.local_kind != GX_MEM_HOST)
		return local_gpu(put, poison);
	if (poison)
		check_poison(addr, len);
	else
		check_pattern(addr, len, put->perf.opts->offset, PERF_SEED);
	if (!poison && put->plan.same)
		check_stamp(addr, put->plan.size, 0, check_stamps(put->plan.size), 0);
	return PERF_OK;
}

/* Destinations are poisoned, sources hold the pattern. */
static int put_payload(struct put *put)
{
	const struct traffic_plan *p = &put->plan;
	bool get = put->op == GX_OP_GET;
	int ret = local_prepare(put, get);

	if (!ret && !get)
		return perf_poison(&put->perf, put->perf.opts->offset, put_span(put, p));
	for (unsigned i = 0; i < put->nr_flows && !ret; i++) {
		struct perf_slots s = {.off = put->flows[i].remote_off,
				       .size = p->size,
				       .stride = p->stride,
				       .nr = p->nr_slots};

		ret = perf_fill(&put->perf, &s);
	}
	return ret;
}

/* Where messages carry no number, what the warm-up left behind must not pass for the run's. */
static int put_poison_again(struct put *put)
{
	if (!put->perf.opts->check || put->plan.stamp)
		return PERF_OK;
	for (unsigned i = 0; i < put->nr_flows; i++)
		put->flows[i].poisoned = put->flows[i].post;
	if (put->op == GX_OP_GET)
		return local_prepare(put, true);
	return perf_poison(&put->perf, put->perf.opts->offset, put_span(put, &put->plan));
}

/* ---- Receives at the server ---- */

static int recv_start(struct put *put, const struct traffic_flow *f)
{
	const struct traffic_plan *p = &put->plan;
	uint64_t depth = u64_min(u64_min(2ull * p->depth, p->ring.nr_slots), PUT_RECV_MAX);
	struct json_t *req, *reply = NULL;
	int ret;

	req = js_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:I, s:I, s:i, s:b, s:b}",
		      "op", "recv", "region", f->conn->region.name, "off", (long long)f->remote_off,
		      "size", (long long)p->size, "stride", (long long)p->stride, "n",
		      (long long)p->nr_slots, "seed", (long long)PERF_SEED, "iter", 0ll, "lane",
		      (int)f->lane, "depth", (long long)depth, "slots", (long long)p->ring.nr_slots,
		      "group_bits", (int)p->ring.group_bits, "sample", (int)p->ring.sample, "apart",
		      (int)p->ring.apart);
	ret = perf_call(f->conn, req, &reply);
	js_free(reply);
	return ret;
}

/* @wrong: messages of another length or tag than was sent, and messages missing. */
static int recv_stop(struct put *put, const struct traffic_flow *f, uint64_t *wrong)
{
	long long received, bytes, bad, missing;
	struct json_t *reply = NULL;
	char why[PERF_WHY_MAX];
	int err, ret;

	ret = perf_call(f->conn, js_pack("{s:s, s:i}", "op", "recv_stop", "lane", (int)f->lane),
			&reply);
	if (ret)
		return ret;
	if (js_unpack(reply, why, sizeof(why), "{s:I, s:I, s:I, s:i}", "received", &received,
		      "bytes", &bytes, "bad", &bad, "err", &err)) {
		report_error(put->perf.report, "gxd's answer to recv_stop: %s", why);
		ret = PERF_FAILED;
	} else if (err) {
		ret = perf_op_failed(&put->perf, "a receive of the server", err);
	} else {
		missing = (long long)f->post - received;
		*wrong += (uint64_t)bad + (uint64_t)llabs(missing);
		if (bad || missing)
			report_error(put->perf.report,
				     "the server received %lld of %llu messages, %lld of a "
				     "wrong tag or length",
				     received, (unsigned long long)f->post, bad);
	}
	js_free(reply);
	return ret;
}

static int put_recv_start(struct put *put)
{
	int ret = PERF_OK;

	for (unsigned i = 0; i < put->nr_flows && put->op == GX_OP_SEND && !ret; i++)
		ret = recv_start(put, &put->flows[i]);
	return ret;
}

static int put_recv_stop(struct put *put, uint64_t *wrong)
{
	int ret = PERF_OK;

	for (unsigned i = 0; i < put->nr_flows && put->op == GX_OP_SEND && !ret; i++)
		ret = recv_stop(put, &put->flows[i], wrong);
	return ret;
}

/* ---- A phase ---- */

static uint64_t put_count(const struct put *put)
{
	uint64_t count = 0;

	for (unsigned c = 0; c < put->perf.nr_threads; c++)
		count += atomic_load_explicit(&put->cores[c].count, memory_order_relaxed);
	return count;
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
			put->perf.opts->command, (unsigned long long)put->plan.size, s,
			(unsigned long long)count,
			(double)count * (double)put->plan.size / s / 1e9);
}

static int phase_wait(struct put *put)
{
	uint64_t begin = gx_now(), told = begin, moved = begin, last = 0, now;

	while (!phase_done(put)) {
		perf_nap(PUT_LOOK_NS);
		now = gx_now();
		if (now - told >= PUT_PROGRESS_NS) {
			phase_progress(put, begin, now);
			told = now;
		}
		if (put_count(put) != last || gate_rests()) {
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
	return PERF_OK;
}

static int phase_error(struct put *put)
{
	for (unsigned i = 0; i < put->nr_flows; i++)
		if (put->flows[i].err)
			return perf_op_failed(&put->perf, put->perf.opts->command,
					      put->flows[i].err);
	return PERF_OK;
}

/* Every flow does @n more messages, or (0) what it can in @duration_ns. */
static int put_phase(struct put *put, uint64_t n, uint64_t duration_ns)
{
	bool gated = duration_ns && gate_on();
	uint64_t now = gx_now();
	int ret;

	for (unsigned i = 0; i < put->nr_flows; i++) {
		put->flows[i].first = put->flows[i].post;
		put->flows[i].limit = gated	    ? put->flows[i].post
				      : duration_ns ? UINT64_MAX
						    : put->flows[i].post + n;
	}
	for (unsigned c = 0; c < put->perf.nr_threads; c++) {
		struct traffic_core *fc = &put->cores[c];

		fc->deadline_ns = duration_ns ? now + duration_ns : 0;
		fc->begin_ns = fc->end_ns = 0;
		fc->stopping = fc->stopped = false;
		fc->gated = gated;
		atomic_store_explicit(&fc->count, 0, memory_order_relaxed);
		hist_reset(&fc->hist);
		perf_core_job(&put->perf.cores[c], &fc->job);
	}
	ret = phase_wait(put);
	if (ret)
		return ret;
	for (unsigned i = 0; i < put->nr_flows; i++)
		traffic_rollback(&put->flows[i]);
	return phase_error(put);
}

/* ---- Verify ---- */

/* The longest run of slots from @slot on that hold consecutive messages. @slots->nr 0: @slot holds
 * none. */
static void slots_run(const struct traffic_flow *f, uint64_t slot, struct perf_slots *s)
{
	uint64_t first = traffic_number(f, slot), nr = 0;

	while (first != UINT64_MAX && slot + nr < f->plan->nr_slots &&
	       traffic_number(f, slot + nr) == first + nr)
		nr++;
	*s = (struct perf_slots){.off = f->remote_off + slot * f->plan->stride,
				 .size = f->plan->size,
				 .stride = f->plan->stride,
				 .nr = nr,
				 .iter = first};
}

static int verify_remote(struct put *put, const struct traffic_flow *f, struct check_result *res)
{
	struct perf_slots s;
	int ret = PERF_OK;

	for (uint64_t slot = 0; slot < f->plan->nr_slots && !ret; slot += s.nr ? s.nr : 1) {
		slots_run(f, slot, &s);
		if (s.nr)
			ret = perf_verify(&put->perf, &s, res);
	}
	return ret;
}

static void verify_local_guard(const struct traffic_flow *f, uint64_t slot,
			       struct check_result *res)
{
	uint64_t off = slot * f->plan->stride + f->plan->size;

	if (f->local && slot + 1 < f->plan->nr_slots)
		check_guard(f->local + off, f->plan->stride - f->plan->size, f->remote_off + off,
			    res);
}

static int verify_local(struct put *put, const struct traffic_flow *f, struct check_result *res)
{
	const struct traffic_plan *p = f->plan;
	int ret = 0;

	for (uint64_t slot = 0; slot < p->nr_slots && !ret; slot++) {
		if (traffic_number(f, slot) == UINT64_MAX || traffic_is_spoiled(f, slot))
			continue;
		for (uint64_t at = 0, n; at < p->size && !ret; at += n) {
			n = u64_min(p->size - at, TRAFFIC_PIECE_B);
			ret = traffic_verify_local(f, slot, at, n, put->piece, res);
		}
		verify_local_guard(f, slot, res);
	}
	if (ret)
		report_error(put->perf.report, "cannot read from the local GPU: %s", gx_error());
	return ret ? PERF_FAILED : PERF_OK;
}

/* All that lies in the slots now, and what was looked at under way. */
static int put_verify(struct put *put, struct check_result *res)
{
	int ret = PERF_OK;

	if (!put->perf.opts->check)
		return PERF_OK;
	for (unsigned i = 0; i < put->nr_flows && !ret; i++)
		ret = put->op == GX_OP_GET ? verify_local(put, &put->flows[i], res)
					   : verify_remote(put, &put->flows[i], res);
	for (unsigned c = 0; c < put->perf.nr_threads; c++)
		check_result_add(res, &put->cores[c].checked);
	return ret;
}

/* ---- Results ---- */

void perf_row_hist(struct report_row *row, const struct hist *h)
{
	row->p50_us = h->count ? (double)hist_percentile(h, 500) / 1e3 : NAN;
	row->avg_us = h->count ? hist_average(h) / 1e3 : NAN;
	row->p99_us = h->count >= 100 ? (double)hist_percentile(h, 990) / 1e3 : NAN;
	row->p999_us = h->count >= 1000 ? (double)hist_percentile(h, 999) / 1e3 : NAN;
}

double perf_gb_s(uint64_t count, uint64_t size, uint64_t ns)
{
	return count && ns ? (double)count * (double)size / (double)ns : NAN;
}

int perf_timed(struct perf *perf, uint64_t count, uint64_t size)
{
	if (count || gate_on())
		return PERF_OK;
	report_error(perf->report,
		     "%s of %llu bytes: no message was timed: give more time with -D, or -n",
		     perf->opts->command, (unsigned long long)size);
	return PERF_FAILED;
}

static uint64_t put_elapsed(const struct put *put)
{
	uint64_t begin = UINT64_MAX, end = 0;

	for (unsigned c = 0; c < put->perf.nr_threads; c++) {
		const struct traffic_core *fc = &put->cores[c];

		if (!fc->nr_flows)
			continue;
		begin = u64_min(begin, fc->begin_ns);
		end = u64_max(end, fc->end_ns);
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

static int put_row(struct put *put, const struct perf_mark m[2], const struct check_result *res)
{
	const struct traffic_plan *p = &put->plan;
	bool get = put->op == GX_OP_GET;
	struct hist *h = calloc(1, sizeof(*h));
	struct report_row row = {
		.op = put->perf.opts->command,
		.size_b = p->size,
		.count = put_count(put),
		.sms = perf_sms(&put->perf, get ? p->local_kind : put->perf.conns[0].region.kind,
				get),
		.checked = put->perf.opts->check,
		.checked_b = res->checked_b,
		.wrong = res->wrong,
		.interrupted = put_stopped(put),
		.depth = p->depth,
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
		hist_merge(h, &put->cores[c].hist);
	perf_row_hist(&row, h);
	perf_row_marks(&row, m);
	row.gb_s = perf_gb_s(row.count, p->size, put_elapsed(put));
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
	uint64_t size = u64_max(put->plan.size, 1), n;

	if (put->perf.opts->n)
		return put->perf.opts->n;
	n = u64_min(u64_max(PUT_DEFAULT_B / size, PUT_N_MIN), PUT_N_MAX) / put->nr_flows;
	return u64_max(n, PUT_N_MIN);
}

/*
 * Messages that go before. What carries no number is poisoned again afterwards: a group that is
 * checked together must not lie on both sides of that, so it is made whole.
 */
static uint64_t put_warm(const struct put *put, uint64_t n, uint64_t *group)
{
	const struct perf_opts *o = put->perf.opts;
	const struct traffic_plan *p = &put->plan;
	uint64_t warm = o->warm_given ? o->warm : u64_max(u64_min(n / 10, PUT_WARM_MAX), p->depth);

	*group = o->check && !p->stamp ? check_ring_group(&p->ring) : 1;
	return (warm + *group - 1) & ~(*group - 1);
}

/*
 * The warm-up of a run by time: rounds that grow, while the next one fits in a tenth of the time.
 * On a link so slow that what is under way takes half of it to come, less is to be under way.
 */
static int put_warm_timed(struct put *put, uint64_t warm, uint64_t group)
{
	uint64_t duration = put->perf.opts->duration_ns, left = duration / 10, n = group, each = 1;
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
	if (put->plan.depth > duration / 2 / each && !put->perf.opts->depth && !gate_on())
		put->plan.depth = (uint32_t)u64_max(duration / 2 / each, 1);
	return ret;
}

/* Warm-up, the phase that counts, and what the cores of both ends used in it. */
static int put_measure(struct put *put, struct perf_mark m[2])
{
	const struct perf_opts *o = put->perf.opts;
	uint64_t n = put_n(put), group, warm = put_warm(put, n, &group);
	int ret = PERF_OK;

	if (warm && o->duration_ns && !o->warm_given)
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
		gate_ready(put->plan.size);
	if (!ret)
		ret = put_phase(put, n, o->duration_ns);
	if (!ret)
		ret = perf_mark(&put->perf, &m[1]);
	return ret;
}

static int put_size(struct put *put, uint64_t size)
{
	struct check_result res = CHECK_RESULT_NONE;
	struct perf_mark m[2];
	int ret = put_plan(put, size);

	if (!ret)
		ret = put_flows_reset(put);
	if (!ret && put->perf.opts->check)
		ret = put_payload(put);
	if (!ret)
		ret = put_recv_start(put);
	if (!ret)
		ret = put_measure(put, m);
	if (!ret)
		ret = put_verify(put, &res);
	if (!ret)
		ret = put_recv_stop(put, &res.wrong);
	if (!ret)
		ret = put_row(put, m, &res);
	return !ret && stop_asked() ? PERF_STOPPED : ret;
}

/* ---- Life ---- */

static int core_of(const struct perf *perf, struct gx_ep *ep)
{
	if (perf->queue) /* whichever it is: one thread posts for all */
		return 0;
	for (unsigned c = 0; c < perf->nr_cores; c++)
		if (perf->cores[c].core == gx_ep_core(ep))
			return (int)c;
	return -1;
}

static int put_flow_open(struct put *put, struct perf_conn *conn, unsigned lane)
{
	struct traffic_flow *f = &put->flows[put->nr_flows];
	struct traffic_core *fc;
	int c;

	f->conn = conn;
	f->lane = lane;
	f->ep = gx_conn_ep(conn->conn, lane);
	c = f->ep ? core_of(&put->perf, f->ep) : -1;
	if (c < 0) {
		report_error(put->perf.report, "lane %u of the connection is not there", lane);
		return PERF_FAILED;
	}
	if (put->perf.opts->same_place)
		f->burst = calloc(TRAFFIC_BURST, sizeof(f->burst[0]));
	if (put->perf.opts->same_place && !f->burst) {
		report_error(put->perf.report, "no memory");
		return PERF_FAILED;
	}
	fc = &put->cores[c];
	fc->flows[fc->nr_flows++] = f;
	put->nr_flows++;
	return PERF_OK;
}

/* One for each lane, or one that uses all of them. */
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
		nr += put_conn_flows(&perf->conns[i]);
	put->flows = calloc(nr, sizeof(put->flows[0]));
	put->cores = calloc(perf->nr_threads, sizeof(put->cores[0]));
	put->piece = malloc(TRAFFIC_PIECE_B);
	for (unsigned c = 0; put->cores && c < perf->nr_threads; c++) {
		put->cores[c].job.step = traffic_core_step;
		put->cores[c].core = &perf->cores[c];
		put->cores[c].queue = perf->queue;
		put->cores[c].flows = calloc(nr, sizeof(put->cores[c].flows[0]));
		put->cores[c].room = malloc(TRAFFIC_PIECE_B);
		if (!put->cores[c].flows || !put->cores[c].room)
			ret = PERF_FAILED;
	}
	if (ret || !nr || !put->flows || !put->cores || !put->piece) {
		report_error(perf->report, "no memory for %u flows", nr);
		return PERF_FAILED;
	}
	for (unsigned i = 0; i < perf->nr_conns; i++)
		for (unsigned lane = 0; lane < put_conn_flows(&perf->conns[i]) && !ret; lane++)
			ret = put_flow_open(put, &perf->conns[i], lane);
	return ret;
}

/* A get writes as well: what it is to find is filled in first, the same by all who get the same.
 * What nobody looks at needs no protection. */
static int put_lease(struct put *put, uint64_t used)
{
	const struct perf_opts *o = put->perf.opts;
	char content[96];

	if (put->op == GX_OP_GET && !o->check)
		return PERF_OK;
	if (put->op != GX_OP_GET || o->size_begin != o->size_end)
		return perf_lease(&put->perf, used, NULL);
	snprintf(content, sizeof(content), "%u x %llu messages of %llu at %llu", put->nr_flows,
		 (unsigned long long)put->plan.nr_slots, (unsigned long long)put->plan.size,
		 (unsigned long long)o->offset);
	return perf_lease(&put->perf, used, content);
}

/* As much of the region as any size of the sweep will use, and as much local memory. */
static int put_room(struct put *put)
{
	const struct perf_opts *o = put->perf.opts;
	const struct gx_region *r = &put->perf.conns[0].region;
	uint64_t used = 0;
	int ret = perf_room(&put->perf, o->size_end);

	if (ret)
		return ret;
	put->room = r->len - o->offset;
	for (uint64_t size = o->size_begin; size <= o->size_end && !ret;
	     size = size ? size * o->size_factor : 1) {
		ret = put_plan(put, size);
		used = u64_max(used, put_span(put, &put->plan));
	}
	if (!ret)
		ret = put_lease(put, used);
	return ret ? ret : perf_alloc(&put->perf, used, &put->local);
}

static int put_all(struct put *put)
{
	const struct perf_opts *o = put->perf.opts;
	unsigned access = put->op == GX_OP_GET ? GX_ACCESS_GET : GX_ACCESS_PUT;
	int worst = PERF_OK, ret = perf_connect(&put->perf, access);

	if (!ret)
		ret = put_flows_open(put);
	if (!ret)
		ret = put_room(put);
	if (!ret && o->stripe)
		report_note(
			put->perf.report,
			"one thread of its own posts each message over all %u lanes; CPU%% counts "
			"every thread of this end",
			put->perf.info.lanes);
	if (!ret && put->op != GX_OP_GET && o->check && o->local_kind != GX_MEM_HOST)
		report_note(put->perf.report,
			    "payload comes from a GPU: messages carry the number of their slot, "
			    "not of their iteration");
	for (uint64_t size = o->size_begin; size <= o->size_end && !ret;
	     size = size ? size * o->size_factor : 1) {
		ret = put_size(put, size);
		/* Wrong data at one size does not hide the others. */
		if (ret == PERF_WRONG && !stop_asked()) {
			worst = ret;
			ret = PERF_OK;
		}
	}
	return ret && !(ret == PERF_STOPPED && worst) ? ret : worst;
}

/* Cores first: they may still look at flows when a phase was given up. */
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
	struct put put = {.op = GX_OP_PUT};
	int ret;

	if (opts->file)
		return perf_file(opts, report);
	if (!strcmp(opts->command, "get"))
		put.op = GX_OP_GET;
	else if (!strcmp(opts->command, "send"))
		put.op = GX_OP_SEND;
	ret = perf_open(opts, report, OPT_CPUS_MAX, &put.perf);
	if (!ret)
		ret = put_all(&put);
	put_close(&put);
	return ret;
}
