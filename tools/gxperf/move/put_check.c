// SPDX-License-Identifier: Apache-2.0
/*
 * Payload of gxperf put, get and send: written before the messages, compared after them. Main
 * thread.
 */
#include "gxperf/move/put.h"

#include "common/json.h"

#include <stdlib.h>

#define PUT_RECV_MAX 64 /* most receives that the server keeps posted for a flow */

/* ---- Payload ---- */

/* Bytes of local memory, and from perf.offset on of the region: where those of @way begin, and where they
 * end. */
static uint64_t way_begin(const struct put *put, unsigned dir)
{
	return dir * put_flows(put) * put->flow_span;
}

static uint64_t way_end(const struct put *put, unsigned dir)
{
	const struct traffic_plan *p = &put->plan[dir];

	return way_begin(put, dir) + (put_flows(put) * p->nr_slots - 1) * p->stride + p->size;
}

/* Prepare memory of a GPU: make it in host memory, piece by piece. */
static int local_gpu(struct put *put, unsigned dir, bool poison)
{
	const struct traffic_plan *p = &put->plan[dir];
	uint64_t end = way_end(put, dir);
	int ret = 0;

	for (uint64_t slot = way_begin(put, dir) / p->stride, at = 0;
	     slot * p->stride < end && !ret;) {
		uint64_t n = u64_min(p->size - at, TRAFFIC_PIECE_B), off = slot * p->stride + at;

		if (poison)
			check_poison(put->piece, n);
		else
			check_pattern(put->piece, n, put->perf.offset + off, PERF_SEED);
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

static int local_prepare(struct put *put, unsigned dir, bool poison)
{
	uint64_t off = way_begin(put, dir), len = way_end(put, dir) - off;
	const struct traffic_plan *p = &put->plan[dir];
	unsigned char *addr = gx_mem_addr(put->local);

	if (p->local_kind != GX_MEM_HOST)
		return local_gpu(put, dir, poison);
	if (poison)
		check_poison(addr + off, len);
	else
		check_pattern(addr + off, len, put->perf.offset + off, PERF_SEED);
	if (!poison && p->same)
		check_stamp(addr, p->size, 0, check_stamps(p->size), 0);
	return PERF_OK;
}

static int remote_poison(struct put *put, unsigned dir)
{
	uint64_t off = way_begin(put, dir);

	return perf_poison(&put->perf, put->perf.offset + off, way_end(put, dir) - off);
}

static int way_payload(struct put *put, unsigned dir)
{
	const struct traffic_plan *p = &put->plan[dir];
	bool get = p->op == GX_OP_GET;
	int ret = local_prepare(put, dir, get);

	if (!ret && !get)
		return remote_poison(put, dir);
	for (unsigned i = 0; i < put_flows(put) && !ret; i++) {
		struct perf_slots s = {.off = put_flow(put, dir, i)->remote_off,
				       .size = p->size,
				       .stride = p->stride,
				       .nr = p->nr_slots};

		ret = perf_fill(&put->perf, &s);
	}
	return ret;
}

int put_payload(struct put *put)
{
	int ret = PERF_OK;

	for (unsigned dir = 0; dir < put->nr_dirs && !ret; dir++)
		ret = way_payload(put, dir);
	return ret;
}

int put_poison_again(struct put *put)
{
	int ret = PERF_OK;

	if (!put->perf.opts->traffic.check || put->plan[0].stamp)
		return PERF_OK;
	for (unsigned i = 0; i < put->nr_flows; i++)
		put->flows[i].poisoned = put->flows[i].post;
	for (unsigned dir = 0; dir < put->nr_dirs && !ret; dir++)
		ret = put->plan[dir].op == GX_OP_GET ? local_prepare(put, dir, true)
						     : remote_poison(put, dir);
	return ret;
}

/* ---- Receives at the server ---- */

static int recv_start(struct put *put, const struct traffic_flow *f)
{
	const struct traffic_plan *p = f->plan;
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

/* @wrong: adds messages of a wrong length or tag, and missing ones. */
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

int put_recv_start(struct put *put)
{
	int ret = PERF_OK;

	for (unsigned i = 0; i < put->nr_flows && put->op == GX_OP_SEND && !ret; i++)
		ret = recv_start(put, &put->flows[i]);
	return ret;
}

int put_recv_stop(struct put *put, uint64_t *wrong)
{
	int ret = PERF_OK;

	for (unsigned i = 0; i < put->nr_flows && put->op == GX_OP_SEND && !ret; i++)
		ret = recv_stop(put, &put->flows[i], wrong);
	return ret;
}

/* ---- Verify ---- */

/* The longest run of slots from @slot on that hold consecutive messages. @s->nr 0: @slot holds
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

int put_verify(struct put *put, unsigned dir, struct check_result *res)
{
	int ret = PERF_OK;

	if (!put->perf.opts->traffic.check)
		return PERF_OK;
	for (unsigned i = 0; i < put_flows(put) && !ret; i++)
		ret = put->plan[dir].op == GX_OP_GET
			      ? verify_local(put, put_flow(put, dir, i), res)
			      : verify_remote(put, put_flow(put, dir, i), res);
	for (unsigned c = 0; c < put->perf.nr_threads; c++)
		check_result_add(res, &put->cores[c].dir[dir].checked);
	return ret;
}
