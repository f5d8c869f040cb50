// SPDX-License-Identifier: Apache-2.0
/*
 * Slots for the messages of gxperf put, get and send: enough that each message under way has its
 * own, and few enough that all flows fit into the region. Main thread.
 */
#include "gxperf/move/put.h"

#include <errno.h>
#include <stdlib.h>

#define PUT_DEPTH_MAX	   64
/* default depth: about so much payload under way, 2 to PUT_DEPTH_MAX messages */
#define PUT_DEPTH_B	   (4u << 20)
#define PUT_SAME_MANY_B	   65536      /* --same-place: a larger message goes alone */
#define PUT_GROUP_B	   (4u << 20) /* payload of messages checked together, about */
#define PUT_GROUP_BITS_MAX 12
#define PUT_SPAN_B	   (1ull << 30) /* of the region, unless one message is larger */
#define PUT_STRIDE_B	   64		/* alignment of slots */

static uint64_t power_of_two_up(uint64_t v)
{
	uint64_t p = 1;

	while (p < v)
		p <<= 1;
	return p;
}

uint64_t put_span(const struct put *put, const struct traffic_plan *p)
{
	uint64_t slots = check_ring_total(&p->ring) * put->nr_flows;

	return (slots - 1) * p->stride + p->size;
}

/* Reduce the slots step by step, until all flows fit into @room. */
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
	uint64_t depth = o->tune.depth ? o->tune.depth
				       : u64_min(u64_max(PUT_DEPTH_B / per_msg, 2), PUT_DEPTH_MAX);

	/* Long messages under way together would be copied slice by slice, each slice out of the
	 * cache that the one before has filled. */
	if (p->same && !o->tune.depth && p->size > PUT_SAME_MANY_B)
		depth = 1;
	p->depth = (uint32_t)depth;
	p->ring = (struct check_ring){.nr_slots = p->same ? 1 : power_of_two_up(depth)};
	if (p->same)
		return;
	if (!o->traffic.check || !o->traffic.duration_ns)
		return;
	p->ring.sample = p->ring.apart = true;
	while (p->ring.group_bits < PUT_GROUP_BITS_MAX &&
	       per_msg << (p->ring.group_bits + 1) <= PUT_GROUP_B)
		p->ring.group_bits++;
}

/* Slots are used in turn, so a message that is late keeps the next one from its slot. Where the user
 * says how many are under way, twice as many slots let them go on, if they fit. */
static void plan_spare(const struct put *put, struct traffic_plan *p)
{
	if (!put->perf.opts->tune.depth || p->same || p->depth != put->perf.opts->tune.depth)
		return;
	p->ring.nr_slots *= 2;
	if (put_span(put, p) > u64_min(put->room, PUT_SPAN_B))
		p->ring.nr_slots /= 2;
}

int put_plan(struct put *put, uint64_t size)
{
	const struct perf_opts *o = put->perf.opts;
	struct traffic_plan *p = &put->plan[0];

	*p = (struct traffic_plan){
		.op = put->op,
		.size = size,
		.stride = u64_max((size + PUT_STRIDE_B - 1) & ~(uint64_t)(PUT_STRIDE_B - 1),
				  PUT_STRIDE_B),
		.local = put->local,
		.local_kind = o->place.kind,
		.same = o->place.same_place,
	};
	plan_ring(put, p);
	/* Use little of the region; use all of it only if the messages do not fit otherwise. */
	if (!plan_shrink(put, p, u64_min(put->room, PUT_SPAN_B))) {
		plan_ring(put, p);
		if (!plan_shrink(put, p, put->room))
			return perf_room(&put->perf, put_span(put, p));
	}
	if (!p->same)
		p->depth = (uint32_t)u64_min(p->depth, p->ring.nr_slots);
	plan_spare(put, p);
	p->nr_slots = check_ring_total(&p->ring);
	p->stamp = o->traffic.check && o->place.kind == GX_MEM_HOST && !p->same;
	p->fixed = put->op == GX_OP_GET || !p->stamp;
	put->flow_span = p->nr_slots * p->stride;
	put->plan[1] = *p;
	put->plan[1].op = put->op == GX_OP_GET ? GX_OP_PUT : GX_OP_GET;
	put->plan[1].fixed = put->op != GX_OP_GET || !p->stamp;
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
	struct traffic_flow *f = &put->flows[i];
	const struct traffic_plan *p = &put->plan[f->back];

	f->plan = p;
	f->local_off = i * put->flow_span;
	f->remote_off = put->perf.offset + f->local_off;
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

/* The part that all operations of a flow share. The low half of user is for the slot. */
static void traffic_op(struct traffic_flow *f, unsigned index_on_core)
{
	f->op = (struct gx_op){
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

int put_flows_reset(struct put *put)
{
	int ret = 0;

	for (unsigned i = 0; i < put->nr_flows && !ret; i++)
		ret = traffic_reset(put, i);
	for (unsigned c = 0; c < put->perf.nr_threads && !ret; c++) {
		struct traffic_core *fc = &put->cores[c];

		fc->dir[0].checked = fc->dir[1].checked = (struct check_result)CHECK_RESULT_NONE;
		for (unsigned i = 0; i < fc->nr_flows; i++)
			traffic_op(fc->flows[i], i);
	}
	if (ret)
		report_error(put->perf.report, "no memory for %u flows", put->nr_flows);
	return ret ? PERF_FAILED : PERF_OK;
}
