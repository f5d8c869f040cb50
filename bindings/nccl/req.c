/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests: isend, irecv and test. One thread at a time calls them for a comm. A post is a store
 * into the core's inbox, and a test reads one flag; neither calls the system, allocates or takes a
 * lock, except to log an error, and to help a core with a long receive.
 *
 * A send and its receive have one tag: the number of the comm and the number of the request. Both
 * ends count requests in the order of the calls, so comms and requests never mix. The order in which
 * gx matches sends with receives would not do: a receive that is cancelled (deregMr) leaves its send
 * without a place, and that must not take the place of the next one.
 */
#include "plug.h"

#include <errno.h>
#include <stdio.h>

_Static_assert(NCCL_REQS_MAX == 32, "comm.free has so many bits");

/* Is @data, @size inside of the registration? */
static bool req_fits(const struct reg *reg, const void *data, uint64_t size)
{
	uint64_t off = (uintptr_t)data - (uintptr_t)reg->addr; /* huge when @data is below */

	return off <= reg->len && size <= reg->len - off;
}

static int req_bad(struct comm *c, const char *what)
{
	if (!c->is_logged)
		say_warn("%s: %s", c->is_send ? "isend" : "irecv", what);
	c->is_logged = true;
	return NCCL_INVALID_ARGUMENT;
}

static int req_check(struct comm *c, void *data, uint64_t size, const struct reg *reg)
{
	if (size > NCCL_SIZE_MAX)
		return req_bad(c, "more than 1 GiB in one request");
	/* A receive comm of mode unpack has registrations that gx does not know. */
	if (size && (!reg || !(reg->mem || c->offload) || !req_fits(reg, data, size)))
		return req_bad(c, "the memory is not registered with this handle");
	return NCCL_OK;
}

/* One is free. */
static struct req *req_post(struct comm *c, struct reg *reg, uint64_t off, uint64_t size)
{
	unsigned i = (unsigned)__builtin_ctz(c->free);
	struct req *r = &c->req[i];

	c->free &= ~(1u << i);
	r->reg = size ? reg : NULL;
	r->off = size ? off : 0;
	r->len = size;
	r->seq = c->seq++;
	r->status = 0;
	atomic_store_explicit(&r->done, 0, memory_order_relaxed);
	if (r->reg)
		atomic_fetch_add_explicit(&r->reg->nr_begun, 1, memory_order_relaxed);
	lane_put(c->path->lane, &r->order);
	return r;
}

/* *req is NULL when there is no room: NCCL calls again. */
static int req_post_at(struct comm *c, void *data, uint64_t size, struct reg *reg, void **req)
{
	int ret = req_check(c, data, size, reg);

	*req = NULL;
	if (!ret && c->free)
		*req = req_post(c, reg, reg ? (uint64_t)((char *)data - reg->addr) : 0, size);
	return ret;
}

int req_isend(void *comm, void *data, uint64_t size, void *mh, void **req)
{
	return req_post_at(comm, data, size, mh, req);
}

/* Mode unpack: @data is where the device code puts the message. */
static int req_irecv_offload(struct comm *c, void *data, uint64_t size, const struct reg *reg,
			     void **req)
{
	int ret = req_check(c, data, size, reg), has_room;
	uint64_t off = 0;

	*req = NULL;
	if (ret || !c->free)
		return ret;
	has_room = offload_take(c->offload, size, &off);
	if (has_room < 0)
		return req_bad(c, "one message is more than NCCL_BUFFSIZE: set "
				  "NCCL_LOCAL_REGISTER=0 and NCCL_GRAPH_REGISTER=0");
	if (has_room)
		*req = req_post(c, &c->offload->reg, off, size);
	return NCCL_OK;
}

int req_irecv(void *comm, void *data, uint64_t size, void *mh, void **req)
{
	struct comm *c = comm;

	return c->offload ? req_irecv_offload(c, data, size, mh, req)
			  : req_post_at(c, data, size, mh, req);
}

/* A tuner, too, chooses protocols. A receive of LL128 has room for one of its steps, as all of
 * collectives have; sends of a program to another rank never use it. */
int req_is_ll(void *comm, uint64_t size)
{
	struct comm *c = comm;

	if (plug.conf.offload)
		return req_bad(c, "NCCL uses protocol LL or LL128, which GX_NCCL_MODE=unpack does "
				  "not serve: set NCCL_PROTO=Simple");
	if (size > plug.conf.pull_over_b)
		return req_bad(c, "NCCL uses protocol LL128, which needs an order that gx does not "
				  "promise: set NCCL_PROTO=^LL128");
	return NCCL_OK;
}

/* Is it the fault of this end? */
static bool req_err_is_ours(int status)
{
	return status == -EINVAL || status == -EFAULT || status == -EMSGSIZE || status == -ENOMEM ||
	       status == -EIO;
}

static int req_fail(const struct req *r)
{
	struct comm *c = r->comm;
	char what[32];

	if (!c->is_logged) {
		snprintf(what, sizeof(what), "%s %u failed", c->is_send ? "send" : "receive",
			 r->seq - SEQ_FIRST);
		if (r->status == -EMSGSIZE)
			say_warn("%s: the other rank posted a receive of less", what);
		else
			peer_say(c->peer, what, r->status);
	}
	c->is_logged = true;
	return req_err_is_ours(r->status) ? NCCL_SYSTEM_ERROR : NCCL_REMOTE_ERROR;
}

/*
 * The thread would call again at once, so it can as well copy a piece of what its core reads out of
 * another process. That takes some 20 us, which are long for a short message: a receive with room
 * for short ones alone does not help. NCCL may post more room than the message takes. Where there is
 * no piece, the call is a look at one word.
 */
static int req_wait(const struct req *r)
{
	const struct comm *c = r->comm;
	const struct lane *l = c->path->lane;

	if (l->helped && !c->is_send && r->len > plug.conf.pull_over_b &&
	    !atomic_load_explicit(&plug.forked, memory_order_relaxed))
		gx_help(l->helped);
	return NCCL_OK;
}

int req_test(void *req, int *done, int *sizes)
{
	struct req *r = req;

	*done = 0;
	if (!r)
		return NCCL_INVALID_ARGUMENT;
	/* Pairs with the release in lane_req_end(). */
	if (!atomic_load_explicit(&r->done, memory_order_acquire))
		return req_wait(r);
	if (r->status)
		return req_fail(r);
	*done = 1;
	if (sizes)
		sizes[0] = (int)r->landed;
	if (r->comm->offload) /* it stays until it is consumed */
		offload_publish(r->comm->offload, r->seq - SEQ_FIRST, r->landed);
	else
		r->comm->free |= 1u << (r - r->comm->req);
	return NCCL_OK;
}

/* NCCL calls it for each receive, in each mode. But for mode unpack the request is used anew by
 * then. */
int req_consumed(void *comm, int n, void *req)
{
	struct comm *c = comm;
	uintptr_t off = (uintptr_t)req - (uintptr_t)c->req; /* huge when @req is below */
	uint32_t bit = 1u << off / sizeof(struct req) % NCCL_REQS_MAX;
	struct req *r = req;

	if (!c->offload)
		return NCCL_OK;
	if (n != 1 || off >= sizeof(c->req) || off % sizeof(*r) || c->free & bit ||
	    !offload_consumed(c->offload, r->seq - SEQ_FIRST))
		return req_bad(c, "irecvConsumed of a request that is not the oldest that is done");
	c->free |= bit;
	return NCCL_OK;
}

int req_close(void *comm, bool is_send)
{
	struct comm *c = comm;

	if (!c || c->is_send != is_send)
		return NCCL_INVALID_ARGUMENT;
	comm_close(c);
	return NCCL_OK;
}
