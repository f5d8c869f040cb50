/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections and their endpoints: how the control thread sets one up and how it ends. The public
 * calls on them are in api/conn_api.c. On the control thread.
 */
#include "control/control.h"
#include "gx_internal/probe.h"
#include "control/rights.h"
#include "list/list.h"
#include "list/note.h"
#include "submit/submit.h"

#include "gx_internal/link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void conn_state_set(struct gx_conn *c, enum gx_conn_state state)
{
	pthread_mutex_lock(&c->gx->wait_lock);
	atomic_store_explicit(&c->state, state, memory_order_release);
	pthread_cond_broadcast(&c->gx->wait_cond);
	pthread_mutex_unlock(&c->gx->wait_lock);
}

struct gx_conn *conn_new(struct gx *gx, bool server)
{
	struct gx_conn *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->gx = gx;
	c->id = ++gx->conn_ids;
	c->peer_pool = -1;
	c->server = server;
	c->link = gx_links[0]; /* until one is chosen */
	c->next = gx->conns;
	gx->conns = c;
	return c;
}

/* ---- the control thread's requests, on a core ---- */

static void call_attach(struct gx_call *call)
{
	struct gx_ep *ep = GX_CONTAINER_OF(call, struct gx_ep, attach);

	ep->ops->ep_attach(ep);
}

static void call_fail(struct gx_call *call)
{
	struct gx_ep *ep = GX_CONTAINER_OF(call, struct gx_ep, fail);

	ep->failed = true;
	ep->core->loop.enough = true; /* all that is under way ends: one endpoint in a turn */
	submit_ep_fail(ep, ep->fail_err);
	notes_fail(ep);
	ep->ops->ep_fail(ep, ep->fail_err); /* after that the control thread may free it */
}

static void ep_ask(struct gx_ep *ep)
{
	if (ep->want_attach)
		ep->want_attach = gx_loop_call(&ep->core->loop, &ep->attach) != 0;
	/* In order: a core attaches an endpoint before it fails it. */
	if (ep->want_fail && !ep->want_attach)
		ep->want_fail = gx_loop_call(&ep->core->loop, &ep->fail) != 0;
}

/* ---- setting up ---- */

int conn_lane_open(struct gx_conn *c, unsigned lane, struct gx_hello_lane *local)
{
	struct gx *gx = c->gx;
	const struct gx_ep_ops *ops = c->link->ep;
	struct gx_ep *ep = ops->ep_new();
	int ret;

	if (!ep)
		return gx_fail(-ENOMEM, "no memory for an endpoint");
	ep->conn = c;
	ep->core = gx->core[(c->first_core + lane) % gx->nr_cores];
	ep->ops = ops;
	ep->lane = lane;
	ep->access = c->rights.limited ? 0 : CORE_ACCESS;
	rights_lane(ep);
	ep->port = c->nr_ports ? c->ports[lane % c->nr_ports] : c->port;
	ep->attach.fn = call_attach;
	ep->fail.fn = call_fail;
	ret = notes_open(ep) ?: lists_ep_open(ep) ?: maps_open(ep);
	if (!ret && gx->pool_gpu) /* packets land in its memory; it copies the bytes on */
		gpu_host_register(&ep->notes->mem, gx->pool_gpu);
	ret = ret ? gx_fail(ret, "no memory for notes and lists") : ep->ops->ep_open(ep, local);
	if (ret) {
		notes_close(ep);
		lists_ep_close(ep);
		maps_close(ep);
		ep->ops->ep_free(ep);
		return ret;
	}
	c->ep[lane] = ep;
	c->nr_lanes = lane + 1;
	return 0;
}

int conn_lane_connect(struct gx_conn *c, unsigned lane, const struct gx_hello_lane *remote)
{
	return c->ep[lane]->ops->ep_connect(c->ep[lane], remote);
}

void conn_attach(struct gx_conn *c)
{
	for (unsigned i = 0; i < c->nr_lanes && !c->on_cores; i++) {
		c->ep[i]->want_attach = true;
		ep_ask(c->ep[i]);
	}
	c->on_cores = true;
}

void conn_up(struct gx_conn *c)
{
	if (conn_state(c) != GX_CONN_STATE_CONNECTING)
		return;
	conn_attach(c);
	c->reported_up = true;
	/* Count first: a user that sees the state UP finds it counted. */
	gx_stat_add(&c->gx->ctl_stats, GX_STAT_PEERS_UP, 1);
	gx_stat_add(&c->gx->ctl_stats, GX_STAT_PEERS, 1);
	conn_state_set(c, GX_CONN_STATE_UP);
	GX_PROBE(conn_up, c, c->id, c->peer_name);
	rights_tell(c);
	if (c->gx->opts.on_conn)
		c->gx->opts.on_conn(c->gx->opts.arg, c, GX_CONN_EVENT_UP, 0, "");
}

/* ---- ending ---- */

static void ep_end(struct gx_ep *ep, int err)
{
	if (ep->fail_err) /* it has been told */
		return;
	ep->fail_err = err ? err : -ECONNRESET;
	if (!ep->conn->on_cores) { /* no core knows it */
		atomic_store_explicit(&ep->detached, true, memory_order_release);
		return;
	}
	ep->want_fail = true;
	ep_ask(ep);
}

/* Tell the owner of what a peer tried without a right, the first time, and each time that it has become
 * twice as much. */
static void ep_say_denied(struct gx_conn *c, struct gx_ep *ep)
{
	uint32_t now = atomic_load_explicit(&ep->denied, memory_order_relaxed);

	if (now <= ep->denied_said || now / 2 < ep->denied_said)
		return;
	gx_warn("peer %s: %u of its operations were denied so far%s%s: it may not put to, or get from, "
		"what it names",
		c->peer_name, now, c->auth[0] ? "; key " : "", c->auth);
	ep->denied_said = now;
}

void conn_down(struct gx_conn *c, enum gx_reason reason, int err, const char *fmt, ...)
{
	bool was_up = conn_state(c) == GX_CONN_STATE_UP;
	va_list ap;

	if (conn_state(c) == GX_CONN_STATE_DOWN)
		return;
	va_start(ap, fmt);
	vsnprintf(c->text, sizeof(c->text), fmt, ap);
	va_end(ap);
	c->err = err;
	c->reason = reason;
	GX_PROBE(conn_down, c, c->id, err, c->text);
	if (was_up) {
		gx_stat_add(&c->gx->ctl_stats, GX_STAT_PEERS_LOST, err != 0);
		gx_stat_add(&c->gx->ctl_stats, GX_STAT_PEERS, -1ull);
	}
	if (c->link_open)
		c->link->conn->stop(c);
	for (unsigned i = 0; i < c->nr_lanes && was_up; i++)
		ep_say_denied(c, c->ep[i]);
	for (unsigned i = 0; i < c->nr_lanes; i++)
		ep_end(c->ep[i], c->user_closed ? -ECANCELED : err);
	conn_state_set(c, GX_CONN_STATE_DOWN);
	rights_share(c);
	if (c->gx->opts.on_conn && (c->reported_up || c->asked || !c->server))
		c->gx->opts.on_conn(c->gx->opts.arg, c, GX_CONN_EVENT_DOWN, err, c->text);
}

/* Warn that the peer gets smaller packets from now on. */
static void ep_say_quantum(struct gx_conn *c, struct gx_ep *ep)
{
	uint32_t now = atomic_load_explicit(&ep->quantum_b, memory_order_relaxed);

	if (!now || now == ep->quantum_said)
		return;
	if (now > ep->quantum_said)
		gx_info("peer %s: the path carries packets of %u bytes again on lane %u, not only of %u",
			c->peer_name, now, ep->lane, ep->quantum_said);
	else
		gx_warn("peer %s: packets of %u bytes do not get through on lane %u: going on with %u, "
			"which costs speed; is the path's MTU as it should be?",
			c->peer_name, ep->quantum_said, ep->lane, now);
	ep->quantum_said = now;
}

static enum gx_reason fault_reason(int err)
{
	switch (err) {
	case -ETIMEDOUT:
	case -EKEYEXPIRED:
		return GX_REASON_PEER_SILENT;
	case -ECONNRESET:
		return GX_REASON_PEER_LOST;
	case -EHOSTUNREACH:
	case -ENETUNREACH:
		return GX_REASON_UNREACHABLE;
	case -EIO:
		return GX_REASON_GPU;
	case -EFAULT:
		return GX_REASON_MEMORY;
	case -ENODEV:
		return GX_REASON_LINK;
	default:
		return GX_REASON_PROTOCOL;
	}
}

/* A fault of lane @ep; NULL: of the connection's link. */
static void conn_fault(struct gx_conn *c, const struct gx_ep *ep, int err)
{
	enum gx_reason reason = fault_reason(err);
	char text[sizeof(c->text)];
	double s = c->agreed.peer_timeout_ns / 1e9;

	if (ep && ep->fault_why)
		conn_down(c, GX_REASON_LINK, err,
			  ep->fault_tx ? "data for peer %s cannot be sent: %s"
				       : "data of peer %s cannot be received: %s",
			  c->peer_name, ep->fault_why);
	else if (c->link->conn->fault(c, err, text, sizeof(text)))
		conn_down(c, reason, err, "%s", text);
	else if (err == -ETIMEDOUT && ep && c->nr_ports)
		conn_down(c, reason, err,
			  "peer %s was not heard for %.1f s on lane %u, over port %.64s: is that "
			  "way down?",
			  c->peer_name, s, ep->lane, c->gx->port[ep->port].name);
	else if (err == -ETIMEDOUT)
		conn_down(c, reason, err, "peer %s was not heard for %.1f s", c->peer_name, s);
	else if (err == -EKEYEXPIRED)
		conn_down(
			c, reason, err,
			"no new keys with peer %s in time, and the old ones have done their work: "
			"is its program stopped, or did a callback hold a control thread?",
			c->peer_name);
	else if (err == -EIO)
		conn_down(c, reason, err,
			  "a GPU here failed, or did not end a copy into the bounce pool of peer "
			  "%s within %.1f s",
			  c->peer_name, c->gx->opts.gpu->timeout_ns / 1e9);
	else if (err == -EFAULT)
		conn_down(c, reason, err,
			  "the kernel cannot read or write the memory of an operation with peer "
			  "%s: was it unmapped while the operation was under way?",
			  c->peer_name);
	else if (err == -EHOSTUNREACH)
		conn_down(c, reason, err,
			  "no data packet reaches peer %s, not even one of %u bytes: is its data "
			  "port blocked, or the path's MTU too small?",
			  c->peer_name, GX_WIRE_QUANTUM_MIN);
	else
		conn_down(c, reason, err, "peer %s broke the protocol: %s", c->peer_name,
			  strerror(-err));
}

static void conn_link_tick(struct gx_conn *c)
{
	bool is_up = conn_state(c) == GX_CONN_STATE_UP;
	int err;

	if (!c->link_open || conn_state(c) == GX_CONN_STATE_CONNECTING)
		return;
	err = c->link->conn->tick(c, gx_now_ns(), is_up ? c->link_say : NULL);
	if (err && is_up)
		conn_fault(c, NULL, err);
}

void conn_tick(struct gx_conn *c)
{
	conn_link_tick(c);
	if (rights_are_gone(c))
		conn_down(c, GX_REASON_AUTH, -EKEYREVOKED, "key %s was revoked", c->auth);
	for (unsigned i = 0; i < c->nr_lanes; i++) {
		struct gx_ep *ep = c->ep[i];
		int fault = atomic_load_explicit(&ep->fault, memory_order_acquire);

		if (ep->want_attach || ep->want_fail)
			ep_ask(ep);
		if (conn_state(c) != GX_CONN_STATE_UP)
			continue;
		ep_say_quantum(c, ep);
		ep_say_denied(c, ep);
		if (!fault)
			continue;
		conn_fault(c, ep, fault);
		return;
	}
}

/* Have all cores let go of its endpoints? */
static bool conn_detached(const struct gx_conn *c)
{
	for (unsigned i = 0; i < c->nr_lanes; i++)
		if (!atomic_load_explicit(&c->ep[i]->detached, memory_order_acquire) ||
		    atomic_load_explicit(&c->ep[i]->list_runs, memory_order_acquire))
			return false;
	return true;
}

static bool conn_quiet(const struct gx_conn *c)
{
	for (unsigned i = 0; i < c->nr_lanes; i++) {
		const struct gx_ep *ep = c->ep[i];
		uint32_t tail;

		/* The user must first take the completions that name the endpoint. */
		tail = atomic_load_explicit(&ep->core->comp_tail, memory_order_acquire);
		if (c->reported_up && !c->gx->closing && (int32_t)(tail - ep->comp_mark) < 0)
			return false;
	}
	return true;
}

/* Does the user hold @c? The user connected it, or on_conn told of it. */
static bool conn_is_known(const struct gx_conn *c)
{
	return !c->server || ((c->reported_up || c->asked) && c->gx->opts.on_conn);
}

bool conn_is_over(struct gx_conn *c)
{
	if (conn_state(c) != GX_CONN_STATE_DOWN || !conn_detached(c))
		return false;
	if (c->link_open && !c->link->conn->is_over(c))
		return false;
	if (c->link_open) /* the memory of a dead process, and descriptors, do not wait for the user */
		c->link->conn->release(c);
	return conn_quiet(c);
}

static void conn_lanes_free(struct gx_conn *c)
{
	for (unsigned i = 0; i < c->nr_lanes; i++) {
		notes_close(c->ep[i]);
		lists_ep_close(c->ep[i]);
		maps_close(c->ep[i]);
		c->ep[i]->ops->ep_free(c->ep[i]);
		c->ep[i] = NULL;
	}
	if (c->link_open)
		c->link->conn->close(c);
}

void conn_retry(struct gx_conn *c, int err)
{
	if (c->link_open)
		c->link->conn->stop(c);
	for (unsigned i = 0; i < c->nr_lanes; i++)
		ep_end(c->ep[i], err);
}

bool conn_again(struct gx_conn *c)
{
	if (!conn_detached(c) || (c->link_open && !c->link->conn->is_over(c)))
		return false;
	if (c->link_open)
		c->link->conn->release(c);
	conn_lanes_free(c);
	rights_drop(c);
	c->rights = (struct core_rights){0};
	c->auth[0] = c->why[0] = 0;
	c->nr_lanes = c->nr_ports = c->nr_named = c->port = 0;
	c->named_fds = 0;
	c->link = gx_links[0];
	c->link_state = NULL;
	c->link_open = c->on_cores = c->trying = c->same_host = c->maps = false;
	c->crc_by_copy = c->peer_crc_by_copy = 0;
	c->socks = NULL;
	c->secret = NULL;
	c->peer_pool = -1;
	memset(&c->peer, 0, sizeof(c->peer));
	return true;
}

bool conn_reap(struct gx_conn *c)
{
	struct gx *gx = c->gx;
	struct gx_conn **at = &gx->conns;

	if ((conn_is_known(c) && !c->user_closed && !gx->closing) || submit_names(gx, c))
		return false;
	conn_lanes_free(c);
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	rights_drop(c);
	free(c);
	mem_reap(gx, false);
	return true;
}
