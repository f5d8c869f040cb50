// SPDX-License-Identifier: Apache-2.0
/*
 * gxd sends some of a client's messages back: by their notification (echo), by their last byte
 * (poll), or only their notes (answer). The cores send them (core.c). Worker thread.
 */
#include "gxd/serve/request.h"

#include "common/json.h"

#include <stdlib.h>

/* echo {region, base} -> {}: puts to the region with RPC_IMM_ECHO go back to the client's region
 * RPC_ECHO_REGION, at an offset that is base less */
struct json_t *echo_begin(struct request *req)
{
	struct service_client *client = req->client;
	struct gx_region region = GX_INIT(region);
	const struct service_region *r;
	const char *name;
	long long base;

	if (js_unpack(req->in, req->why, sizeof(req->why), "{s:s, s:I}", "region", &name, "base",
		      &base))
		return NULL;
	r = request_region(req, name, 0, 0);
	if (!r)
		return NULL;
	if (atomic_load_explicit(&client->echo, memory_order_relaxed))
		return request_fail(req, "this connection has an echo already");
	if (gx_conn_region(client->conn, RPC_ECHO_REGION, 0, &region))
		return request_fail(req, "the client shares no region '%s'", RPC_ECHO_REGION);
	client->echo_mem = r->mem;
	client->echo_token = region.token;
	client->echo_base = (uint64_t)base;
	/* Pairs with the acquire in echo_take(). */
	atomic_store_explicit(&client->echo, true, memory_order_release);
	return js_pack("{}");
}

/* answer {} -> {}: short notes come back */
struct json_t *echo_answer(struct request *req)
{
	atomic_store_explicit(&req->client->answer, true, memory_order_relaxed);
	return js_pack("{}");
}

/* The core stops polling for @client, if it does so. */
void echo_poll_end(struct service_core *core, const struct service_client *client)
{
	struct service_poller *p = atomic_load_explicit(&core->poller, memory_order_relaxed);

	if (!p || p->client != client)
		return;
	atomic_store_explicit(&core->poller, NULL, memory_order_relaxed);
	/* If the core does not answer, leak it: the core may still look at it. */
	if (!core_call(core, core_barrier, NULL))
		free(p);
}

static struct service_poller *poller_new(struct request *req, const struct service_region *r,
					 const struct service_slots *s)
{
	struct service_poller *p = calloc(1, sizeof(*p));
	struct gx_region region = GX_INIT(region);

	if (!p || gx_conn_region(req->client->conn, RPC_ECHO_REGION, 0, &region)) {
		request_fail(req, p ? "the client shares no region '%s'" : "no memory for '%s'",
			     RPC_ECHO_REGION);
		free(p);
		return NULL;
	}
	p->client = req->client;
	p->ep = gx_conn_ep(req->client->conn, 0);
	p->stride = s->stride;
	p->last = (unsigned char *)gx_mem_addr(r->mem) + s->off + s->size - 1;
	p->op = (struct gx_op){.kind = GX_OP_PUT,
			       .flags = GX_OP_SILENT,
			       .mem = r->mem,
			       .off = s->off,
			       .len = s->size,
			       .token = region.token};
	return p;
}

/*
 * poll {region, off, size, stride, n, seed, iter} -> {}: as echo, for messages without a
 * notification. The core looks at their last byte. n is RPC_POLL_SLOTS. A second request replaces
 * the first.
 */
struct json_t *echo_poll(struct request *req)
{
	const struct service_region *r = request_slots(req);
	const struct service_slots *s = &req->work.slots;
	struct service_core *core;
	struct service_poller *p;
	struct gx_ep *ep = gx_conn_ep(req->client->conn, 0);

	if (!r)
		return NULL;
	core = ep ? request_core_of(req->svc, ep) : NULL;
	if (!core || s->nr != RPC_POLL_SLOTS || !s->size || r->opt.kind != GX_MEM_HOST)
		return request_fail(req, "polls %d slots of 1 byte or more in host memory",
				    RPC_POLL_SLOTS);
	p = atomic_load_explicit(&core->poller, memory_order_relaxed);
	if (p && p->client != req->client)
		return request_fail(req, "the core that would poll memory does so for another "
					 "client: wait until that has ended, or leave --poll out");
	p = poller_new(req, r, s);
	if (!p)
		return NULL;
	echo_poll_end(core, req->client);
	/* Pairs with the acquire in core_poll(). */
	atomic_store_explicit(&core->poller, p, memory_order_release);
	return js_pack("{}");
}
