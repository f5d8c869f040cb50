/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests: isend, irecv and test. One thread at a time calls them for a comm. A post is a store
 * into the core's inbox, and a test reads one flag; neither calls the system, allocates or takes a
 * lock, except to tell an error.
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
	if (!c->told)
		say_warn("%s: %s", c->is_send ? "isend" : "irecv", what);
	c->told = true;
	return NCCL_INVALID_ARGUMENT;
}

static int req_post(struct comm *c, void *data, uint64_t size, struct reg *reg, void **out)
{
	unsigned i;
	struct req *r;

	*out = NULL;
	if (size > NCCL_SIZE_MAX)
		return req_bad(c, "more than 1 GiB in one request");
	if (size && (!reg || !req_fits(reg, data, size)))
		return req_bad(c, "the memory is not registered with this handle");
	if (!c->free)
		return NCCL_OK; /* NCCL calls again */
	i = (unsigned)__builtin_ctz(c->free);
	r = &c->req[i];
	c->free &= ~(1u << i);
	r->reg = size ? reg : NULL;
	r->off = size ? (uint64_t)((char *)data - reg->addr) : 0;
	r->len = size;
	r->seq = c->seq++;
	r->status = 0;
	atomic_store_explicit(&r->done, 0, memory_order_relaxed);
	if (r->reg)
		atomic_fetch_add_explicit(&r->reg->nr_begun, 1, memory_order_relaxed);
	lane_put(c->path->lane, &r->order);
	*out = r;
	return NCCL_OK;
}

int req_isend(void *comm, void *data, uint64_t size, void *mh, void **req)
{
	return req_post(comm, data, size, mh, req);
}

int req_irecv(void *comm, void *data, uint64_t size, void *mh, void **req)
{
	return req_post(comm, data, size, mh, req);
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

	if (!c->told) {
		snprintf(what, sizeof(what), "%s %u failed", c->is_send ? "send" : "receive",
			 r->seq - SEQ_FIRST);
		if (r->status == -EMSGSIZE)
			say_warn("%s: the other rank posted a receive of less", what);
		else
			peer_say(c->peer, what, r->status);
	}
	c->told = true;
	return req_err_is_ours(r->status) ? NCCL_SYSTEM_ERROR : NCCL_REMOTE_ERROR;
}

int req_test(void *req, int *done, int *sizes)
{
	struct req *r = req;

	*done = 0;
	if (!r)
		return NCCL_INVALID_ARGUMENT;
	/* Pairs with the release in lane_req_end(). */
	if (!atomic_load_explicit(&r->done, memory_order_acquire))
		return NCCL_OK;
	if (r->status)
		return req_fail(r);
	*done = 1;
	if (sizes)
		sizes[0] = (int)r->landed;
	r->comm->free |= 1u << (r - r->comm->req);
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
