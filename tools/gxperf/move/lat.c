// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf lat: a put with an immediate, which gxd's core answers by a put of the same bytes. lat
 * reports half the round trip. One message is under way. The thread that turns the core posts it
 * and waits for the echo.
 */
#include "gxperf/move/move.h"

#include "common/json.h"
#include "gxperf/base/stop.h"
#include "gxperf/base/throttle.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* in turn, so that no buffer is written before its last completion */
#define LAT_SLOTS    RPC_POLL_SLOTS
#define LAT_STRIDE_B 64
#define LAT_COMPS    16
#define LAT_SIZE     64
#define LAT_N	     10000
#define LAT_WARM     1000
#define LAT_LOOKS    4096 /* looks at the last byte of an echo, between two turns */
#define LAT_TURNS    16	  /* turns of the core in one step */
#define LAT_POLL_B   8192 /* up to this size bytes are stored in order, the last one last */

/** struct lat - Owner: the core's thread during a phase, else main. */
struct lat {
	struct perf_job job; /* first */
	struct perf perf;
	struct gx_ep *ep;
	struct gx_queue *queue;
	struct gx_mem *local, *echo;
	unsigned char *src, *dst; /* addresses of local and echo */
	uint64_t size, stride;
	struct gx_op op;      /* the part that all puts share */
	uint64_t next;	      /* number of the next message */
	uint64_t first;	      /* first message of this phase */
	uint64_t limit;	      /* end: no message from this number on */
	uint64_t deadline_ns; /* 0: only the limit counts */
	uint64_t posted_ns;   /* when the message under way had just left */
	bool waiting;	      /* an echo is due */
	bool throttled;	      /* this phase follows the throttle */
	bool allowed;	      /* throttled: the next message may be posted */
	uint32_t in_flight;   /* puts without a completion so far */
	uint8_t slot_busy[LAT_SLOTS];
	bool poll;		/* the last byte of a message says that it has arrived */
	struct gx_op ready;	/* poll: the next message, stamped, */
	bool is_ready;		/* if it is that */
	uint64_t stamps_wrong;	/* echoes with another number */
	_Atomic uint64_t count; /* echoes in this phase, for perf_job_wait() */
	int err;
	struct hist hist;
};

/* ---- On the core ---- */

/* An echo has arrived. */
static void lat_echo(struct lat *lat)
{
	lat->waiting = false;
	if (lat->throttled)
		throttle_done(1);
}

/* Does the echo of message @i hold its number? Its slot stays as it is while the next ones are under
 * way, so the next message leaves before this. */
static void lat_echo_check(struct lat *lat, uint64_t i)
{
	uint64_t slot = i % LAT_SLOTS, got = 0;

	if (lat->size - lat->poll < CHECK_STAMP_B || !lat->perf.opts->traffic.check)
		return;
	memcpy(&got, lat->dst + slot * lat->stride, sizeof(got));
	lat->stamps_wrong += got != i;
}

static void lat_comp(struct lat *lat, const struct gx_comp *comp)
{
	if (comp->kind == GX_COMP_NOTIFY) {
		if (!lat->waiting || comp->imm != lat->next - 1)
			return;
		lat_echo(lat);
		lat_echo_check(lat, comp->imm);
	} else if (comp->kind == GX_COMP_DONE) {
		lat->in_flight--;
		lat->slot_busy[comp->user] = 0;
		if (comp->status && !lat->err)
			lat->err = comp->status;
	}
}

/* May the next message be posted? */
static bool lat_allowed(struct lat *lat)
{
	if (lat->throttled && !lat->allowed)
		lat->allowed = throttle_take(1);
	return !lat->throttled || lat->allowed;
}

static bool lat_over(const struct lat *lat, uint64_t now)
{
	if (lat->next == lat->limit || (lat->throttled && throttle_ends()) || stop_asked())
		return true;
	/* A phase without a message would show nothing. */
	return lat->deadline_ns && now >= lat->deadline_ns && lat->next != lat->first;
}

static bool lat_post(struct lat *lat)
{
	uint64_t i = lat->next, slot = i % LAT_SLOTS;
	struct gx_op op = lat->op;
	int ret;

	if (lat->slot_busy[slot])
		return false;
	if (lat->perf.opts->traffic.check)
		check_stamp(lat->src + slot * lat->stride, lat->size, 0, UINT64_MAX / 2, i);
	op.user = slot;
	op.off = slot * lat->stride;
	op.remote_off += slot * lat->stride;
	op.imm = i | RPC_IMM_ECHO;
	ret = gx_post(lat->queue, lat->ep, &op, 1);
	if (ret < 0)
		lat->err = ret;
	if (ret <= 0)
		return false;
	lat->slot_busy[slot] = 1;
	lat->in_flight++;
	lat->next++;
	lat->waiting = true;
	lat->allowed = false;
	return true;
}

/* The last byte is our flag; the check of the payload leaves it out. */
static void lat_make_polled(struct lat *lat)
{
	uint64_t i = lat->next, slot = i % LAT_SLOTS;
	unsigned char *src = lat->src + slot * lat->stride;

	if (lat->perf.opts->traffic.check)
		check_stamp(src, lat->size - 1, 0, UINT64_MAX / 2, i);
	src[lat->size - 1] = rpc_flag(i);
	lat->ready = lat->op;
	lat->ready.off = slot * lat->stride;
	lat->ready.remote_off += slot * lat->stride;
	lat->is_ready = true;
}

/* The next message is made while this one is under way. */
static bool lat_post_polled(struct lat *lat)
{
	int ret;

	if (!lat->is_ready)
		lat_make_polled(lat);
	ret = gx_post(lat->queue, lat->ep, &lat->ready, 1);
	if (ret < 0)
		lat->err = ret;
	if (ret <= 0)
		return false;
	lat->next++;
	lat->waiting = true;
	lat->allowed = false;
	lat_make_polled(lat);
	return true;
}

static bool lat_is_seen(const struct lat *lat)
{
	uint64_t i = lat->next - 1;
	const volatile unsigned char *last = lat->dst + i % LAT_SLOTS * lat->stride + lat->size - 1;

	for (unsigned k = 0; *last != rpc_flag(i); k++)
		if (k == LAT_LOOKS)
			return false;
	atomic_thread_fence(memory_order_acquire);
	return true;
}

/* Called after an echo, when the next message has left (if it may). So the thread reads the clock
 * while that message is under way. The time between two readings is one full round trip. */
static void lat_record(struct lat *lat)
{
	uint64_t now = gx_now();

	hist_record(&lat->hist, (now - lat->posted_ns) / 2);
	lat->posted_ns = now;
	atomic_store_explicit(&lat->count,
			      atomic_load_explicit(&lat->count, memory_order_relaxed) + 1,
			      memory_order_relaxed);
}

/* Post the next message if none is under way and it may go. */
static void lat_go_on(struct lat *lat, bool echoed, bool over, bool (*post)(struct lat *))
{
	if (!lat->waiting && !over && lat_allowed(lat)) {
		if (!echoed)
			lat->posted_ns = gx_now();
		post(lat);
	}
	if (echoed)
		lat_record(lat);
}

/* A silent put completes only if it fails. */
static enum perf_step lat_step_polled(struct perf_job *job, uint64_t now)
{
	struct lat *lat = (struct lat *)job;
	struct gx_comp comp;

	if (gx_poll(lat->queue, &comp, 1) && comp.status)
		lat->err = comp.status;
	for (unsigned k = 0; k < LAT_SLOTS && !lat->err; k++) {
		bool echoed = lat->waiting;
		uint64_t i = lat->next - 1;
		bool over = lat_over(lat, echoed ? lat->posted_ns : now);

		if (echoed) {
			if (!lat_is_seen(lat))
				return PERF_STEP_BUSY;
			lat_echo(lat);
		}
		lat_go_on(lat, echoed, over, lat_post_polled);
		if (echoed)
			lat_echo_check(lat, i);
		if (over && !lat->waiting)
			return PERF_STEP_DONE;
		if (!lat->waiting)
			return PERF_STEP_IDLE;
	}
	return lat->err ? PERF_STEP_DONE : PERF_STEP_BUSY;
}

/* Take the core's completions. Return: an echo has arrived. */
static bool lat_take(struct lat *lat)
{
	struct gx_comp comps[LAT_COMPS];
	bool waited = lat->waiting;
	unsigned n = gx_poll(lat->queue, comps, LAT_COMPS);

	for (unsigned i = 0; i < n; i++)
		lat_comp(lat, &comps[i]);
	return waited && !lat->waiting;
}

/* Turns the core for a while, like a program that waits for an answer. */
static enum perf_step lat_step(struct perf_job *job, uint64_t now)
{
	struct lat *lat = (struct lat *)job;
	bool echoed, over, worked = false;

	for (unsigned k = 0; k < LAT_TURNS; k++) {
		echoed = lat_take(lat);
		worked |= echoed;
		over = lat->err || lat_over(lat, now);
		lat_go_on(lat, echoed, over, lat_post);
		if (echoed)
			now = lat->posted_ns;
		if (over && !lat->in_flight && (!lat->waiting || lat->err))
			return PERF_STEP_DONE;
		gx_core_turn(gx_ep_core(lat->ep), now);
	}
	return worked ? PERF_STEP_BUSY : PERF_STEP_IDLE;
}

/* ---- Main ---- */

/* Do @n messages (0: any number), for at most @duration_ns (0: any time). */
static int lat_phase(struct lat *lat, uint64_t n, uint64_t duration_ns)
{
	int ret;

	lat->first = lat->next;
	lat->limit = n ? lat->next + n : UINT64_MAX;
	lat->throttled = !n && throttle_on();
	lat->deadline_ns = duration_ns ? gx_now() + duration_ns : 0;
	atomic_store_explicit(&lat->count, 0, memory_order_relaxed);
	hist_reset(&lat->hist);
	perf_core_job(&lat->perf.cores[0], &lat->job);
	ret = perf_job_wait(&lat->perf, &lat->job, &lat->count, lat->size, "echoes");
	if (!ret && lat->err)
		ret = perf_op_failed(&lat->perf, "put", lat->err);
	return ret;
}

static uint64_t lat_stride(uint64_t size)
{
	uint64_t up = (size + LAT_STRIDE_B - 1) & ~(uint64_t)(LAT_STRIDE_B - 1);

	return up ? up : LAT_STRIDE_B;
}

static void lat_reset(struct lat *lat, uint64_t size)
{
	lat->size = size;
	lat->stride = lat_stride(size);
	lat->next = 0;
	lat->stamps_wrong = 0;
	lat->op = (struct gx_op){
		.kind = GX_OP_PUT,
		.flags = GX_OP_IMM,
		.mem = lat->local,
		.len = size,
		.token = lat->perf.conns[0].region.token,
		.remote_off = lat->perf.offset,
	};
	if (lat->poll)
		lat->op.flags = GX_OP_SILENT;
	lat->is_ready = false;
}

/* Poison the destinations at both ends; write the pattern to the source. */
static int lat_payload(struct lat *lat)
{
	uint64_t len = LAT_SLOTS * lat->stride;

	check_pattern(lat->src, len, lat->perf.offset, PERF_SEED);
	check_poison(lat->dst, len);
	return perf_poison(&lat->perf, lat->perf.offset, len);
}

/* Compare the last messages, at the server and in the echoes. */
static int lat_verify(struct lat *lat, struct check_result *res)
{
	uint64_t first = lat->next > LAT_SLOTS ? lat->next - LAT_SLOTS : 0;
	int ret = PERF_OK;

	for (uint64_t i = first; i < lat->next && !ret; i++) {
		uint64_t at = i % LAT_SLOTS * lat->stride;
		struct perf_slots s = {.off = lat->perf.offset + at,
				       .size = lat->size - lat->poll,
				       .stride = lat->stride,
				       .nr = 1,
				       .iter = i};

		check_piece(lat->dst + at, s.size, 0, s.off, PERF_SEED, i, res);
		ret = perf_verify(&lat->perf, &s, res);
		res->checked_b += lat->poll; /* the flag: it was right, or lat would still wait */
	}
	res->wrong += lat->stamps_wrong;
	return ret;
}

static int lat_row(struct lat *lat, const struct perf_mark m[2], const struct check_result *res)
{
	struct report_row row = {
		.op = "lat",
		.size_b = lat->size,
		.count = lat->hist.count,
		.gb_s = NAN,
		.sms = perf_sms(&lat->perf, lat->perf.conns[0].region.kind, false),
		.checked = lat->perf.opts->traffic.check,
		.checked_b = res->checked_b,
		.wrong = res->wrong,
		.interrupted = stop_asked() && lat->next != lat->limit,
	};

	if (row.interrupted && !row.count)
		return PERF_STOPPED;
	perf_row_hist(&row, &lat->hist);
	perf_row_marks(&row, m);
	report_row(lat->perf.report, &row);
	if (!res->wrong)
		return perf_timed(&lat->perf, row.count, lat->size);
	report_error(lat->perf.report, "lat of %llu bytes: %llu wrong bytes or echoes",
		     (unsigned long long)lat->size, (unsigned long long)res->wrong);
	return PERF_WRONG;
}

/* Ask the server to look at these slots from their first message on. */
static int lat_poll_begin(struct lat *lat)
{
	struct perf_conn *c = &lat->perf.conns[0];
	struct json_t *reply = NULL;
	int ret = perf_call(c,
			    js_pack("{s:s, s:s, s:I, s:I, s:I, s:i, s:i, s:i}", "op", "poll",
				    "region", c->region.name, "off", (long long)lat->perf.offset,
				    "size", (long long)lat->size, "stride", (long long)lat->stride,
				    "n", LAT_SLOTS, "seed", 0, "iter", 0),
			    &reply);

	js_free(reply);
	return ret;
}

static int lat_size(struct lat *lat, uint64_t size)
{
	const struct perf_opts *o = lat->perf.opts;
	struct check_result res = CHECK_RESULT_NONE;
	uint64_t warm = o->traffic.warm_given ? o->traffic.warm : LAT_WARM;
	uint64_t n = o->traffic.n ? o->traffic.n : o->traffic.duration_ns ? 0 : LAT_N;
	struct perf_mark m[2];
	int ret;

	lat_reset(lat, size);
	ret = lat_payload(lat);
	if (!ret && lat->poll)
		ret = lat_poll_begin(lat);
	if (!ret && warm)
		ret = lat_phase(lat, warm, o->traffic.warm_given ? 0 : o->traffic.duration_ns / 10);
	if (!ret && stop_asked())
		ret = PERF_STOPPED;
	if (!ret)
		ret = perf_mark(&lat->perf, &m[0]);
	if (!ret)
		throttle_ready(size);
	if (!ret)
		ret = lat_phase(lat, n, o->traffic.duration_ns);
	if (!ret)
		ret = perf_mark(&lat->perf, &m[1]);
	if (!ret && o->traffic.check)
		ret = lat_verify(lat, &res);
	if (!ret)
		ret = lat_row(lat, m, &res);
	return !ret && stop_asked() ? PERF_STOPPED : ret;
}

/* The last byte says nothing if bytes may land in any order. RDMA devices write those of one
 * message in order, which their specification leaves open and ib_write_lat relies on; a message that
 * is not whole when its last byte is there counts as corrupt. */
static int lat_poll_path(struct perf *perf)
{
	bool in_order = !strcmp(perf->info.link, "local") || !strcmp(perf->info.link, "verbs");

	if (in_order && perf->conns[0].region.kind == GX_MEM_HOST)
		return PERF_OK;
	report_error(perf->report,
		     "--poll memory: only the links local and verbs to host memory store bytes in "
		     "order; this is link %s over port %s (%s)",
		     perf->info.link, perf->info.port, perf->info.why);
	return PERF_FAILED;
}

static int lat_connect(struct lat *lat, uint64_t len)
{
	struct perf *perf = &lat->perf;
	struct json_t *reply = NULL;
	int ret = perf_alloc(perf, len, &lat->local);

	if (!ret)
		ret = perf_alloc(perf, len, &lat->echo);
	if (!ret && gx_mem_share(lat->echo, RPC_ECHO_REGION, GX_ACCESS_PUT)) {
		report_error(perf->report, "cannot share memory for the echo: %s", gx_error());
		ret = PERF_FAILED;
	}
	if (!ret)
		ret = perf_connect(perf, GX_ACCESS_PUT);
	if (!ret)
		ret = perf_room(perf, len);
	if (!ret)
		ret = perf_lease(perf, &(struct perf_lease){.len = len, .moves = true});
	if (!ret && lat->poll)
		ret = lat_poll_path(perf);
	if (!ret && !lat->poll)
		ret = perf_call(&perf->conns[0],
				js_pack("{s:s, s:s, s:I}", "op", "echo", "region",
					perf->conns[0].region.name, "base",
					(long long)perf->offset),
				&reply);
	js_free(reply);
	if (ret)
		return ret;
	lat->src = gx_mem_addr(lat->local);
	lat->dst = gx_mem_addr(lat->echo);
	lat->ep = gx_conn_ep(perf->conns[0].conn, 0);
	lat->queue = gx_core_queue(gx_ep_core(lat->ep));
	return PERF_OK;
}

static int lat_usage(const struct perf_opts *o, struct report *report)
{
	if (o->place.kind != GX_MEM_HOST)
		report_error(report, "lat keeps its payload in host memory: leave --local-mem out");
	else if (o->place.poll_memory && o->traffic.size_given &&
		 (!o->traffic.size_begin || o->traffic.size_end > LAT_POLL_B))
		report_error(report,
			     "--poll memory: messages of 1 to %d bytes, which are stored in order",
			     LAT_POLL_B);
	else if (o->server.nr_conns != 1)
		report_error(report, "lat measures one message on one connection: leave -q out");
	else
		return PERF_OK;
	return PERF_USAGE;
}

int perf_lat(const struct perf_opts *opts, struct report *report)
{
	uint64_t first = opts->traffic.size_given ? opts->traffic.size_begin : LAT_SIZE;
	uint64_t last = opts->traffic.size_given ? opts->traffic.size_end : LAT_SIZE;
	int worst = PERF_OK, ret = lat_usage(opts, report);
	struct lat *lat;

	if (ret)
		return ret;
	lat = calloc(1, sizeof(*lat));
	if (!lat) {
		report_error(report, "no memory");
		return PERF_FAILED;
	}
	lat->poll = opts->place.poll_memory;
	lat->job.step = lat->poll ? lat_step_polled : lat_step;
	ret = perf_open(opts, report, 1, &lat->perf);
	if (!ret)
		ret = lat_connect(lat, LAT_SLOTS * lat_stride(last));
	for (uint64_t size = first; size <= last && !ret;
	     size = size ? size * opts->traffic.size_factor : 1) {
		ret = lat_size(lat, size);
		if (ret == PERF_WRONG && !stop_asked()) {
			worst = ret;
			ret = PERF_OK;
		}
	}
	perf_close(&lat->perf);
	free(lat);
	return ret && !(ret == PERF_STOPPED && worst) ? ret : worst;
}
