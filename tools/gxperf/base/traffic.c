// SPDX-License-Identifier: Apache-2.0
/*
 * The work of a core's thread in a phase of put, get or send: prepare slots, post, take
 * completions, and have one group of messages in 64 checked while the others go on (see struct
 * check_ring). All of it runs on that thread, except traffic_check_done(): control thread.
 */
#include "gxperf/base/traffic.h"

#include "common/json.h"
#include "gxperf/base/stop.h"
#include "gxperf/base/throttle.h"

#include <errno.h>
#include <string.h>

#define TRAFFIC_STAMPS                                                                             \
	256 /* most stamps of a turn and flow: 1 MiB of payload, so turns stay short */

static unsigned char *slot_addr(const struct traffic_flow *f, uint64_t slot)
{
	return f->local + slot * f->plan->stride;
}

uint64_t traffic_number(const struct traffic_flow *f, uint64_t slot)
{
	uint64_t number = check_ring_last(&f->plan->ring, slot, f->post);

	if (number == UINT64_MAX || number < f->poisoned)
		return UINT64_MAX;
	return f->plan->fixed ? slot : number;
}

static void traffic_fail(struct traffic_flow *f, int err)
{
	if (!f->err)
		f->err = err;
}

/* ---- Prepare and post ---- */

/* Stamp at most *@budget places. Return: the slot is ready. */
static bool prep_slot(struct traffic_flow *f, uint64_t slot, uint64_t *budget)
{
	const struct traffic_plan *p = f->plan;
	uint64_t nr = check_stamps(p->size), n = nr - f->prep_stamp;
	uint64_t value = p->op == GX_OP_GET ? CHECK_STAMP_POISON : f->prep;

	if (!p->stamp || !nr)
		return true;
	if (n > *budget)
		n = *budget;
	check_stamp(slot_addr(f, slot), p->size, f->prep_stamp, n, value);
	f->prep_stamp += n;
	*budget -= n;
	return f->prep_stamp == nr;
}

static void traffic_prep(struct traffic_flow *f)
{
	uint64_t budget = TRAFFIC_STAMPS;

	while (f->prep < f->limit && f->prep - f->post < f->plan->ring.nr_slots) {
		uint64_t slot = check_ring_slot(&f->plan->ring, f->prep);

		if (f->state[slot] != TRAFFIC_SLOT_FREE || !prep_slot(f, slot, &budget))
			return;
		f->state[slot] = TRAFFIC_SLOT_READY;
		f->number[slot] = f->prep++;
		f->prep_stamp = 0;
	}
}

void traffic_rollback(struct traffic_flow *f)
{
	for (uint64_t i = f->post; i < f->prep; i++)
		f->state[check_ring_slot(&f->plan->ring, i)] = TRAFFIC_SLOT_FREE;
	f->spoiled = f->prep - f->post + (f->prep_stamp > 0);
	f->prep = f->post;
	f->prep_stamp = 0;
}

bool traffic_is_spoiled(const struct traffic_flow *f, uint64_t slot)
{
	for (uint64_t i = 0; i < f->spoiled; i++)
		if (check_ring_slot(&f->plan->ring, f->post + i) == slot)
			return true;
	return false;
}

static int traffic_post_ops(struct traffic_flow *f, struct gx_queue *queue,
			    const struct gx_op ops[], unsigned n)
{
	return f->conn->perf->queue ? gx_post_striped(queue, f->conn->conn, ops, n)
				    : gx_post(queue, f->ep, ops, n);
}

static bool traffic_post(struct traffic_flow *f, struct gx_queue *queue, uint64_t now)
{
	const struct traffic_plan *p = f->plan;
	struct gx_op ops[TRAFFIC_BURST];
	unsigned n = 0;
	int ret;

	for (; n < TRAFFIC_BURST && f->post + n < f->prep && f->in_flight + n < p->depth; n++) {
		uint64_t i = f->post + n, slot = check_ring_slot(&p->ring, i);

		ops[n] = f->op;
		ops[n].user |= slot;
		ops[n].off += slot * p->stride;
		ops[n].remote_off += slot * p->stride;
		ops[n].tag = i;
	}
	if (!n)
		return false;
	ret = traffic_post_ops(f, queue, ops, n);
	if (ret < 0) {
		traffic_fail(f, ret);
		return false;
	}
	for (int k = 0; k < ret; k++) {
		uint64_t slot = (uint32_t)ops[k].user;

		f->state[slot] = TRAFFIC_SLOT_POSTED;
		f->post_ns[slot] = now;
	}
	f->post += (unsigned)ret;
	f->in_flight += (unsigned)ret;
	return ret > 0;
}

/* Post the same operation again and again, like a program that puts as fast as it can. */
static bool traffic_post_same(struct traffic_flow *f, struct gx_queue *queue, uint64_t now)
{
	uint64_t n = f->limit - f->post, room = f->plan->depth - f->in_flight;
	int ret;

	n = n < room ? n : room;
	n = n < TRAFFIC_BURST ? n : TRAFFIC_BURST;
	if (!n)
		return false;
	ret = traffic_post_ops(f, queue, f->burst, (unsigned)n);
	if (ret < 0) {
		traffic_fail(f, ret);
		return false;
	}
	for (int k = 0; k < ret; k++)
		f->post_ns[(f->post + (unsigned)k) & f->time_mask] = now;
	f->post += (unsigned)ret;
	f->prep = f->post;
	f->in_flight += (unsigned)ret;
	return ret > 0;
}

/* ---- Checks under way ---- */

/* Control thread; or this core's thread if the request cannot be sent. */
static void traffic_check_done(struct rpc_wait *wait, int err, struct json_t *reply,
			       const char *why)
{
	struct traffic_check *c = (struct traffic_check *)wait;
	struct check_result res = CHECK_RESULT_NONE;

	c->err = err;
	if (!err)
		c->err = perf_verify_reply(reply, &res);
	c->reply = res;
	js_free(reply);
	/* Pairs with the acquire in traffic_check_step(). */
	atomic_store_explicit(&c->state, TRAFFIC_CHECK_REPLIED, memory_order_release);
}

static void traffic_check_begin(struct traffic_flow *f)
{
	const struct traffic_plan *p = f->plan;
	struct traffic_check *c = &f->check;
	uint64_t slot = check_ring_slot(&p->ring, c->first);
	struct perf_slots s = {.off = f->remote_off + slot * p->stride,
			       .size = p->size,
			       .stride = p->stride,
			       .nr = check_ring_group(&p->ring),
			       .iter = p->fixed ? slot : c->first};

	if (p->op == GX_OP_GET) {
		c->slot = c->at = 0;
		atomic_store_explicit(&c->state, TRAFFIC_CHECK_LOCAL, memory_order_relaxed);
		return;
	}
	atomic_store_explicit(&c->state, TRAFFIC_CHECK_ASKED, memory_order_relaxed);
	c->wait = (struct rpc_wait){.fn = traffic_check_done};
	rpc_begin(f->conn->rpc,
		  perf_verify_request(f->conn, &s, p->op == GX_OP_SEND ? (int)f->lane : -1,
				      c->first + check_ring_group(&p->ring)),
		  &c->wait);
}

static void traffic_check_end(struct traffic_flow *f)
{
	const struct check_ring *ring = &f->plan->ring;
	uint64_t slot = check_ring_slot(ring, f->check.first);

	memset(&f->state[slot], TRAFFIC_SLOT_FREE, check_ring_group(ring));
	f->check.nr_done = 0;
	atomic_store_explicit(&f->check.state, TRAFFIC_CHECK_NONE, memory_order_relaxed);
}

int traffic_verify_local(const struct traffic_flow *f, uint64_t slot, uint64_t at, uint64_t len,
			 unsigned char *room, struct check_result *res)
{
	uint64_t slot_off = slot * f->plan->stride;
	const unsigned char *got = room;
	int ret;

	if (f->local) {
		got = f->local + slot_off + at;
	} else {
		ret = gx_mem_copy_out(f->plan->local, f->local_off + slot_off + at, room, len);
		if (ret)
			return ret;
	}
	/* The source of a get was filled with message s in slot s. */
	check_piece(got, len, at, f->remote_off + slot_off, PERF_SEED, slot, res);
	return 0;
}

/* Check up to TRAFFIC_PIECE_B of a group of gets. Return: the group is done. */
static bool traffic_check_local(struct traffic_flow *f, struct traffic_core *fc)
{
	const struct traffic_plan *p = f->plan;
	struct traffic_check *c = &f->check;
	uint64_t first = check_ring_slot(&p->ring, c->first), budget = TRAFFIC_PIECE_B, n;

	while (c->slot < check_ring_group(&p->ring) && budget) {
		n = p->size - c->at < budget ? p->size - c->at : budget;
		/* Whole pages, except at the message's end. */
		if (n < p->size - c->at)
			n &= ~(uint64_t)(CHECK_PAGE_B - 1);
		if (!n && c->at < p->size)
			return false;
		if (traffic_verify_local(f, first + c->slot, c->at, n, fc->room,
					 &fc->dir[f->back].checked))
			traffic_fail(f, -EIO);
		c->at += n;
		budget -= n;
		if (c->at == p->size) {
			c->at = 0;
			c->slot++;
		}
	}
	return c->slot == check_ring_group(&p->ring) || f->err;
}

static bool traffic_check_step(struct traffic_flow *f, struct traffic_core *fc)
{
	struct traffic_check *c = &f->check;

	switch (atomic_load_explicit(&c->state, memory_order_acquire)) {
	case TRAFFIC_CHECK_REPLIED:
		if (c->err)
			traffic_fail(f, c->err);
		else
			check_result_add(&fc->dir[f->back].checked, &c->reply);
		traffic_check_end(f);
		return true;
	case TRAFFIC_CHECK_LOCAL:
		if (traffic_check_local(f, fc))
			traffic_check_end(f);
		return true;
	}
	return false;
}

/* ---- Completions ---- */

static void traffic_count(struct traffic_core *fc, struct traffic_dir *w, unsigned n, uint64_t now)
{
	w->end_ns = now;
	atomic_store_explicit(&w->count, atomic_load_explicit(&w->count, memory_order_relaxed) + n,
			      memory_order_relaxed);
	if (fc->throttled)
		throttle_done(n);
}

static void traffic_done(struct traffic_core *fc, const struct gx_comp *comp, uint64_t now)
{
	struct traffic_flow *f = fc->flows[comp->user >> 32];
	const struct check_ring *ring = &f->plan->ring;
	uint64_t slot = (uint32_t)comp->user;

	f->in_flight--;
	f->state[slot] = TRAFFIC_SLOT_FREE;
	if (comp->status) {
		traffic_fail(f, comp->status);
		return;
	}
	hist_record(&fc->dir[f->back].hist, now - f->post_ns[slot]);
	traffic_count(fc, &fc->dir[f->back], 1, now);
	if (!check_ring_sampled(ring, f->number[slot]))
		return;
	f->state[slot] = TRAFFIC_SLOT_CHECK;
	f->check.first = f->number[slot] & ~(check_ring_group(ring) - 1);
	if (++f->check.nr_done == check_ring_group(ring))
		traffic_check_begin(f);
}

/* Completions of a core with one flow, whose messages are all alike. */
static void traffic_done_same(struct traffic_core *fc, const struct gx_comp comps[], unsigned n,
			      uint64_t now)
{
	struct traffic_flow *f = fc->flows[0];

	for (unsigned i = 0; i < n; i++) {
		if (comps[i].status)
			traffic_fail(f, comps[i].status);
		hist_record(&fc->dir[0].hist, now - f->post_ns[f->taken++ & f->time_mask]);
	}
	f->in_flight -= n;
	traffic_count(fc, &fc->dir[0], n, now);
}

static bool traffic_comps(struct traffic_core *fc, uint64_t now)
{
	struct gx_comp comps[TRAFFIC_BURST];
	unsigned n = gx_poll(fc->queue, comps, TRAFFIC_BURST);

	if (n && fc->flows[0]->plan->same) {
		traffic_done_same(fc, comps, n, now);
		return true;
	}
	for (unsigned i = 0; i < n; i++)
		if (comps[i].kind == GX_COMP_DONE)
			traffic_done(fc, &comps[i], now);
	return n > 0;
}

/* May @f post? A flow that has posted nothing in this phase may still post one message after the
 * deadline: a phase without a message would show nothing. */
static bool traffic_goes_on(const struct traffic_core *fc, const struct traffic_flow *f)
{
	if (f->err || fc->stopped || f->post == f->limit)
		return false;
	return !fc->stopping || f->post == f->first;
}

/* Nothing is under way, and nothing more will be posted. */
static bool traffic_through(const struct traffic_core *fc, const struct traffic_flow *f)
{
	int check = atomic_load_explicit(&f->check.state, memory_order_relaxed);

	return !f->in_flight && check == TRAFFIC_CHECK_NONE && !traffic_goes_on(fc, f);
}

/* Take from the throttle as many messages as may be under way. */
static void traffic_allow(struct traffic_flow *f)
{
	uint64_t upto = f->post + f->plan->depth;

	if (f->limit < upto)
		f->limit += throttle_take(upto - f->limit);
}

enum perf_step traffic_core_step(struct perf_job *job, uint64_t now)
{
	struct traffic_core *fc = (struct traffic_core *)job;
	bool busy = traffic_comps(fc, now), through = true;

	if (!fc->begin_ns)
		fc->begin_ns = fc->dir[0].end_ns = fc->dir[1].end_ns = now;
	if (fc->deadline_ns && now >= fc->deadline_ns)
		fc->stopping = true;
	if (fc->throttled && throttle_ends())
		fc->stopping = true;
	if (stop_asked())
		fc->stopping = fc->stopped = true;
	for (unsigned i = 0; i < fc->nr_flows; i++) {
		struct traffic_flow *f = fc->flows[i];

		if (fc->throttled)
			traffic_allow(f);
		if (traffic_goes_on(fc, f) && f->plan->same) {
			busy |= traffic_post_same(f, fc->queue, now);
		} else if (traffic_goes_on(fc, f)) {
			traffic_prep(f);
			busy |= traffic_post(f, fc->queue, now);
		}
		if (fc->throttled && f->err)
			throttle_give_up();
		busy |= traffic_check_step(f, fc);
		through &= traffic_through(fc, f);
	}
	if (through && (!fc->throttled || fc->stopping))
		return PERF_STEP_DONE;
	return busy ? PERF_STEP_BUSY : PERF_STEP_IDLE;
}
