// SPDX-License-Identifier: Apache-2.0
/*
 * Receives that gxd keeps posted for a client's lane (struct service_session). The cores post them
 * (core.c). Worker thread.
 */
#include "gxd/serve/request.h"

#include "common/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SERVICE_GROUP_BITS_MAX 16

struct service_session *recv_session_find(struct service_client *client, long long lane)
{
	for (struct service_session *s = client->sessions; s; s = s->next)
		if (lane >= 0 && s->ep == gx_conn_ep(client->conn, (unsigned)lane))
			return s;
	return NULL;
}

void recv_session_free(struct service_session *s)
{
	free(s->slot_iter);
	free(s->slot_busy);
	free(s);
}

static bool power_of_two(uint64_t v)
{
	return v && !(v & (v - 1));
}

static struct service_session *session_new(const struct check_ring *ring)
{
	struct service_session *s = calloc(1, sizeof(*s));
	uint64_t total = check_ring_total(ring);

	if (!s)
		return NULL;
	s->ring = *ring;
	s->slot_iter = malloc(total * sizeof(s->slot_iter[0]));
	s->slot_busy = calloc(total, 1);
	if (!s->slot_iter || !s->slot_busy) {
		recv_session_free(s);
		return NULL;
	}
	memset(s->slot_iter, 0xff, total * sizeof(s->slot_iter[0]));
	return s;
}

/* Take the numbers of a recv request. False: they make no sense; the reason is set. */
static bool session_ring(struct request *req, const struct service_slots *slots,
			 struct check_ring *ring, long long *lane, long long *depth)
{
	long long nr_slots, group_bits;
	int sample, apart;

	if (js_unpack(req->in, req->why, sizeof(req->why), "{s:I, s:I, s:I, s:I, s:b, s:b}", "lane",
		      lane, "depth", depth, "slots", &nr_slots, "group_bits", &group_bits, "sample",
		      &sample, "apart", &apart))
		return false;
	*ring = (struct check_ring){.nr_slots = (uint64_t)nr_slots,
				    .group_bits = (uint32_t)group_bits,
				    .sample = sample,
				    .apart = apart};
	if (nr_slots > 0 && nr_slots <= SERVICE_SLOTS_MAX && power_of_two(ring->nr_slots) &&
	    group_bits >= 0 && group_bits <= SERVICE_GROUP_BITS_MAX && (apart || !group_bits) &&
	    *lane >= 0 && *depth > 0 && *depth <= nr_slots && check_ring_total(ring) == slots->nr)
		return true;
	request_fail(req, "%lld receives in %lld slots, checked by 2^%lld, make no sense", *depth,
		     nr_slots, group_bits);
	return false;
}

/*
 * recv {region, off, size, stride, n, seed, iter, lane, depth, slots, group_bits, sample, apart} ->
 * {}
 *
 * Keeps depth receives posted on the lane until recv_stop; tag = number of the message. See struct
 * check_ring.
 */
struct json_t *recv_begin(struct request *req)
{
	struct service_client *client = req->client;
	struct service_session *s;
	struct check_ring ring;
	const struct service_region *r = request_slots(req);
	const struct service_slots *slots = &req->work.slots;
	long long lane, depth;
	struct gx_ep *ep;

	if (!r || !session_ring(req, slots, &ring, &lane, &depth))
		return NULL;
	ep = gx_conn_ep(client->conn, (unsigned)lane);
	if (!ep || recv_session_find(client, lane))
		return request_fail(req, "lane %lld %s", lane,
				    ep ? "receives already" : "is not there");
	s = session_new(&ring);
	if (!s)
		return request_fail(req, "no memory");
	s->ep = ep;
	s->core = request_core_of(req->svc, ep);
	s->mem = r->mem;
	s->off = slots->off;
	s->size = slots->size;
	s->stride = slots->stride;
	s->depth = (uint32_t)depth;
	if (!s->core || core_session_start(s)) {
		recv_session_free(s);
		return request_fail(req, "the core takes no more receives");
	}
	s->next = client->sessions;
	client->sessions = s;
	return js_pack("{}");
}

int recv_session_end(struct service_client *client, struct service_session *s)
{
	struct service_session **p = &client->sessions;
	int ret = core_session_stop(s);

	if (ret == -EAGAIN)
		return ret;
	while (*p != s)
		p = &(*p)->next;
	*p = s->next;
	if (ret)
		fprintf(stderr,
			"gxd: receives of a client do not end; their memory is left alone\n");
	return ret;
}

static int recv_stop_turn(struct request *req)
{
	struct service_session *s = recv_session_find(req->client, req->lane);
	int ret = recv_session_end(req->client, s);

	if (ret == -EAGAIN)
		return 1;
	if (ret) {
		request_fail(req, "the receives of lane %lld do not end", req->lane);
		return 0;
	}
	req->out =
		js_pack("{s:I, s:I, s:I, s:i}", "received",
			(long long)atomic_load_explicit(&s->received, memory_order_relaxed),
			"bytes", (long long)atomic_load_explicit(&s->bytes, memory_order_relaxed),
			"bad", (long long)atomic_load_explicit(&s->bad, memory_order_relaxed),
			"err", atomic_load_explicit(&s->err, memory_order_relaxed));
	recv_session_free(s);
	return 0;
}

/* recv_stop {lane} -> {received, bytes, bad, err}: bad counts messages of a wrong length or tag */
struct json_t *recv_stop(struct request *req)
{
	if (js_unpack(req->in, req->why, sizeof(req->why), "{s:I}", "lane", &req->lane))
		return NULL;
	if (!recv_session_find(req->client, req->lane))
		return request_fail(req, "lane %lld receives nothing", req->lane);
	req->turn = recv_stop_turn;
	return NULL;
}
