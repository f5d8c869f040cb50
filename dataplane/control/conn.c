/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections and their endpoints: what ctl.c asks for while it sets one up, how one ends, and the
 * public calls on them. On the control thread, but for gx_post, gx_cancel (poll core) and what only
 * reads.
 */
#include "core/core.h"
#include "submit/submit.h"

#include "gx_internal/link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define OP_LEN_MAX (1ull << 36) /* offsets on the wire are 32 bits, in units of 16 bytes */

static void state_set(struct gx_conn *c, enum gx_conn_state state)
{
	pthread_mutex_lock(&c->gx->wait_lock);
	atomic_store_explicit(&c->state, state, memory_order_release);
	pthread_cond_broadcast(&c->gx->wait_cond);
	pthread_mutex_unlock(&c->gx->wait_lock);
}

static enum gx_conn_state state_of(const struct gx_conn *c)
{
	return atomic_load_explicit(&c->state, memory_order_acquire);
}

struct gx_conn *conn_new(struct gx *gx, bool server)
{
	struct gx_conn *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->gx = gx;
	c->peer_pool = -1;
	c->server = server;
	c->next = gx->conns;
	gx->conns = c;
	return c;
}

/* ---- core side of what the control thread asks ---- */

static void call_attach(struct gx_call *call)
{
	struct gx_ep *ep = GX_CONTAINER_OF(call, struct gx_ep, attach);

	ep->ops->ep_attach(ep);
}

static void call_fail(struct gx_call *call)
{
	struct gx_ep *ep = GX_CONTAINER_OF(call, struct gx_ep, fail);

	ep->failed = true;
	submit_ep_fail(ep, ep->fail_err);
	ep->ops->ep_fail(ep, ep->fail_err);
}

static void ep_ask(struct gx_ep *ep)
{
	if (ep->want_attach)
		ep->want_attach = gx_loop_call(&ep->core->loop, &ep->attach) != 0;
	/* In order: what was never attached need not fail there. */
	if (ep->want_fail && !ep->want_attach)
		ep->want_fail = gx_loop_call(&ep->core->loop, &ep->fail) != 0;
}

/* ---- setting up ---- */

static const struct gx_link_ops *const link_ops[] = {
	[GX_LINK_PACKET] = &gx_link_pkt_ops,
	[GX_LINK_LOCAL] = &gx_link_local_ops,
};

int conn_lane_open(struct gx_conn *c, unsigned lane, struct gx_hello_lane *local)
{
	struct gx *gx = c->gx;
	const struct gx_link_ops *ops = link_ops[c->link];
	struct gx_ep *ep = ops->ep_new();
	int ret;

	if (!ep)
		return gx_fail(-ENOMEM, "no memory for an endpoint");
	ep->conn = c;
	ep->core = gx->core[(c->first_core + lane) % gx->nr_cores];
	ep->ops = ops;
	ep->lane = lane;
	ep->attach.fn = call_attach;
	ep->fail.fn = call_fail;
	ret = ep->ops->ep_open(ep, local);
	if (ret) {
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

void conn_up(struct gx_conn *c)
{
	if (state_of(c) != GX_CONN_STATE_CONNECTING)
		return;
	for (unsigned i = 0; i < c->nr_lanes; i++) {
		c->ep[i]->want_attach = true;
		ep_ask(c->ep[i]);
	}
	c->reported_up = true;
	/* First: who sees that it is up finds it counted. */
	gx_stat_add(&c->gx->ctl_stats, GX_STAT_PEERS_UP, 1);
	gx_stat_add(&c->gx->ctl_stats, GX_STAT_PEERS, 1);
	state_set(c, GX_CONN_STATE_UP);
	if (c->gx->opts.on_conn)
		c->gx->opts.on_conn(c->gx->opts.arg, c, GX_CONN_UP, 0, "");
}

/* ---- ending ---- */

static void ep_end(struct gx_ep *ep, bool was_up, int err)
{
	ep->fail_err = err ? err : -ECONNRESET;
	if (!was_up) { /* no core has seen it */
		atomic_store_explicit(&ep->detached, true, memory_order_release);
		return;
	}
	ep->want_fail = true;
	ep_ask(ep);
}

void conn_down(struct gx_conn *c, int err, const char *fmt, ...)
{
	bool was_up = state_of(c) == GX_CONN_STATE_UP;
	va_list ap;

	if (state_of(c) == GX_CONN_STATE_DOWN)
		return;
	va_start(ap, fmt);
	vsnprintf(c->text, sizeof(c->text), fmt, ap);
	va_end(ap);
	c->err = err;
	if (was_up) {
		gx_stat_add(&c->gx->ctl_stats, GX_STAT_PEERS_LOST, err != 0);
		gx_stat_add(&c->gx->ctl_stats, GX_STAT_PEERS, -1ull);
	}
	local_revoke(c, NULL);
	for (unsigned i = 0; i < c->nr_lanes; i++)
		ep_end(c->ep[i], was_up, c->user_closed ? -ECANCELED : err);
	state_set(c, GX_CONN_STATE_DOWN);
	if (c->gx->opts.on_conn && (c->reported_up || !c->server))
		c->gx->opts.on_conn(c->gx->opts.arg, c, GX_CONN_DOWN, err, c->text);
}

/* A fallback is said aloud. */
static void ep_say_quantum(struct gx_conn *c, struct gx_ep *ep)
{
	uint32_t now = atomic_load_explicit(&ep->quantum_b, memory_order_relaxed);

	if (!now || now >= ep->quantum_said)
		return;
	gx_warn("peer %s: packets of %u bytes do not get through on lane %u: going on with %u, "
		"which costs speed; is the path's MTU as it should be?",
		c->peer_name, ep->quantum_said, ep->lane, now);
	ep->quantum_said = now;
}

void conn_tick(struct gx_conn *c)
{
	local_count(c);
	for (unsigned i = 0; i < c->nr_lanes; i++) {
		struct gx_ep *ep = c->ep[i];
		int fault = atomic_load_explicit(&ep->fault, memory_order_acquire);

		if (ep->want_attach || ep->want_fail)
			ep_ask(ep);
		if (state_of(c) == GX_CONN_STATE_UP)
			ep_say_quantum(c, ep);
		if (!fault || state_of(c) != GX_CONN_STATE_UP)
			continue;
		if (fault == -ETIMEDOUT)
			conn_down(c, fault, "peer %s was not heard for %.1f s", c->peer_name,
				  c->agreed.peer_timeout_ns / 1e9);
		else if (fault == -EIO)
			conn_down(
				c, fault,
				"a GPU here failed, or did not end a copy into the bounce pool of "
				"peer %s within %.1f s",
				c->peer_name, c->gx->opts.gpu_timeout_ns / 1e9);
		else if (fault == -EHOSTUNREACH)
			conn_down(
				c, fault,
				"no data packet reaches peer %s, not even one of %u bytes: is its "
				"data port blocked, or the path's MTU too small?",
				c->peer_name, GX_WIRE_QUANTUM_MIN);
		else
			conn_down(c, fault, "peer %s broke the protocol: %s", c->peer_name,
				  strerror(-fault));
		ctl_bye(c);
		return;
	}
}

/* No core turns any of its endpoints any more. */
static bool conn_detached(const struct gx_conn *c)
{
	for (unsigned i = 0; i < c->nr_lanes; i++)
		if (!atomic_load_explicit(&c->ep[i]->detached, memory_order_acquire))
			return false;
	return true;
}

static bool conn_quiet(const struct gx_conn *c)
{
	for (unsigned i = 0; i < c->nr_lanes; i++) {
		const struct gx_ep *ep = c->ep[i];
		uint32_t tail;

		/* Completions that name the endpoint must have been taken before it goes. */
		tail = atomic_load_explicit(&ep->core->comp_tail, memory_order_acquire);
		if (c->reported_up && !c->gx->closing && (int32_t)(tail - ep->comp_mark) < 0)
			return false;
	}
	return true;
}

/* Does the user hold @c: it connected, or was told of it? */
static bool conn_is_known(const struct gx_conn *c)
{
	return !c->server || (c->reported_up && c->gx->opts.on_conn);
}

bool conn_reap(struct gx_conn *c)
{
	struct gx *gx = c->gx;
	struct gx_conn **at = &c->gx->conns;

	if (state_of(c) != GX_CONN_STATE_DOWN || !conn_detached(c))
		return false;
	local_release(c); /* a dead process's memory does not wait for the user */
	if (!conn_quiet(c))
		return false;
	if (!c->ctl_freed)
		c->ctl_freed = !c->ctl || ctl_conn_free(c);
	if (!c->ctl_freed || (conn_is_known(c) && !c->user_closed && !c->gx->closing) ||
	    submit_names(c->gx, c))
		return false;
	for (unsigned i = 0; i < c->nr_lanes; i++)
		c->ep[i]->ops->ep_free(c->ep[i]);
	local_close(c);
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	free(c);
	mem_reap(gx, false);
	return true;
}

/* ---- public: connecting ---- */

static int new_run(void *arg)
{
	struct {
		struct gx *gx;
		struct gx_conn *c;
	} *call = arg;

	call->c = conn_new(call->gx, false);
	return call->c ? 0 : -ENOMEM;
}

/* Nothing was begun: it goes at once, and no callback tells of it. */
static int discard_run(void *arg)
{
	struct gx_conn *c = arg;

	state_set(c, GX_CONN_STATE_DOWN);
	c->user_closed = true;
	conn_reap(c);
	return 0;
}

GX_EXPORT int gx_connect(struct gx *gx, const char *addr, const struct gx_connect_opts *user,
			 struct gx_conn **out)
{
	struct {
		struct gx *gx;
		struct gx_conn *c;
	} call = {gx, NULL};
	struct gx_connect_opts opts = GX_INIT(opts);
	int ret = user ? gx_size_check(user->size, "gx_connect_opts") : 0;

	if (ret)
		return ret;
	if (user)
		memcpy(&opts, user, GX_MIN(user->size, sizeof(opts)));
	if (opts.first_core >= gx->nr_cores)
		return gx_fail(-EINVAL, "first_core %u: there are %u cores", opts.first_core,
			       gx->nr_cores);
	if (opts.unpack > GX_UNPACK_MODE_NONE || opts.sms > UINT16_MAX)
		return gx_fail(-EINVAL, "unpack mode %d on %u SMs is not known", opts.unpack,
			       opts.sms);
	ret = gx_uring_run_wait(gx->uring, new_run, &call);
	if (ret)
		return gx_fail(ret, "no memory for a connection");
	ret = ctl_connect(call.c, addr, &opts);
	if (ret) {
		gx_uring_run_wait(gx->uring, discard_run, call.c);
		return ret;
	}
	*out = call.c;
	return 0;
}

GX_EXPORT int gx_conn_wait(struct gx_conn *c, uint64_t timeout_ns)
{
	struct timespec until;
	uint64_t at = gx_now_ns() + timeout_ns;
	int ret = 0;

	until.tv_sec = at / 1000000000;
	until.tv_nsec = at % 1000000000;
	pthread_mutex_lock(&c->gx->wait_lock);
	while (!ret && state_of(c) == GX_CONN_STATE_CONNECTING)
		ret = pthread_cond_timedwait(&c->gx->wait_cond, &c->gx->wait_lock, &until);
	pthread_mutex_unlock(&c->gx->wait_lock);
	if (state_of(c) == GX_CONN_STATE_UP)
		return 0;
	if (state_of(c) == GX_CONN_STATE_DOWN)
		return gx_fail(c->err ? c->err : -ECONNRESET, "%s", c->text);
	return gx_fail(
		-ETIMEDOUT,
		"the connection to %s was not up within %.1f s, and is still being set up: is "
		"the server stopped, or has it too many clients at once?",
		c->peer_name, (double)timeout_ns / 1e9);
}

static int close_run(void *arg)
{
	struct gx_conn *c = arg;

	c->user_closed = true;
	if (c->ctl)
		ctl_bye(c);
	conn_down(c, 0, "closed");
	return 0;
}

GX_EXPORT void gx_conn_close(struct gx_conn *c)
{
	if (c)
		gx_uring_run_wait(c->gx->uring, close_run, c);
}

static void info_pool(char text[16], int device)
{
	if (device < 0)
		strcpy(text, "host");
	else
		snprintf(text, 16, "cuda:%d", device);
}

static int info_run(void *arg)
{
	struct {
		struct gx_conn *c;
		struct gx_conn_info *info;
	} *call = arg;
	struct gx_conn *c = call->c;
	struct gx_conn_info *info = call->info;
	const struct gx_port_slot *p = &c->gx->port[c->port];

	info->state = state_of(c);
	info->err = c->err;
	memcpy(info->text, c->text, sizeof(info->text));
	snprintf(info->link, sizeof(info->link), "%s", link_ops[c->link]->name);
	snprintf(info->port, sizeof(info->port), "%s", p->name);
	memcpy(info->why, c->why, sizeof(info->why));
	info->lanes = c->nr_lanes;
	info->quantum_b = c->agreed.quantum;
	for (unsigned i = 0; i < c->nr_lanes && info->state == GX_CONN_STATE_UP; i++) {
		uint32_t now = atomic_load_explicit(&c->ep[i]->quantum_b, memory_order_relaxed);

		if (now)
			info->quantum_b = GX_MIN(info->quantum_b, now);
	}
	info->quantum_in_b = c->agreed.quantum;
	if (p->port)
		info->quantum_in_b = GX_MIN(c->agreed.quantum, p->port->caps.payload_max);
	info->chunk_b = c->agreed.chunk_b;
	info->window = c->agreed.window;
	info->integrity = c->agreed.integrity;
	info->check_unpack = c->late;
	info->check_unpack_peer = c->peer_late;
	info->payload_max_b = p->port ? p->port->caps.payload_max : 0;
	memcpy(info->peer, c->peer_name, sizeof(info->peer));
	info->peer_pid = c->peer.pid;
	info->same_host = c->same_host;
	info->engine = gx_uring_engine_name(c->gx->uring);
	info_pool(info->bounce, c->gx->pool_gpu ? c->gx->pool_gpu->device : -1);
	info_pool(info->peer_bounce, c->peer_pool);
	return 0;
}

GX_EXPORT int gx_conn_info(struct gx_conn *c, struct gx_conn_info *info)
{
	struct gx_conn_info full = GX_INIT(full);
	struct {
		struct gx_conn *c;
		struct gx_conn_info *info;
	} call = {c, &full};
	size_t size = info->size;
	int ret = gx_size_check(size, "gx_conn_info");

	if (ret)
		return ret;
	gx_uring_run_wait(c->gx->uring, info_run, &call);
	memcpy(info, &full, GX_MIN(size, sizeof(full)));
	info->size = size;
	return 0;
}

/* ---- public: what only reads ---- */

GX_EXPORT struct gx_ep *gx_conn_ep(struct gx_conn *c, unsigned lane)
{
	if (state_of(c) != GX_CONN_STATE_UP || lane >= c->nr_lanes)
		return NULL;
	return c->ep[lane];
}

GX_EXPORT struct gx_core *gx_ep_core(struct gx_ep *ep)
{
	return ep->core;
}

GX_EXPORT struct gx_conn *gx_ep_conn(struct gx_ep *ep)
{
	return ep->conn;
}

GX_EXPORT void gx_conn_user_set(struct gx_conn *c, void *user)
{
	atomic_store(&c->user, user);
}

GX_EXPORT void *gx_conn_user(const struct gx_conn *c)
{
	return atomic_load(&c->user);
}

GX_EXPORT int gx_conn_region(struct gx_conn *c, const char *name, unsigned index,
			     struct gx_region *out)
{
	size_t size = out->size;
	int ret = gx_size_check(size, "gx_region");

	if (ret)
		return ret;
	if (state_of(c) == GX_CONN_STATE_CONNECTING)
		return gx_fail(-ENOTCONN, "the connection is not up yet");
	for (unsigned i = 0; i < c->peer.nr_regions; i++) {
		const struct gx_hello_region *r = &c->peer.regions[i];
		struct gx_region full = {.token = r->token,
					 .len = r->len,
					 .kind = r->kind,
					 .device = r->device,
					 .access = r->access};

		if (name ? strcmp(name, r->name) != 0 : i != index)
			continue;
		memcpy(full.name, r->name, sizeof(full.name));
		memcpy(out, &full, GX_MIN(size, sizeof(full)));
		out->size = size;
		return 0;
	}
	return gx_fail(-ENOENT, "peer %s has no region '%s'", c->peer_name, name ? name : "");
}

GX_EXPORT int gx_conn_msg(struct gx_conn *c, const void *data, uint32_t len)
{
	return ctl_msg(c, data, len);
}

/* ---- public: operations ---- */

int op_check(const struct gx_op *op)
{
	if (op->size < sizeof(*op))
		return gx_fail(-EINVAL, "gx_op.size is %zu, this library's is %zu: use GX_INIT()",
			       op->size, sizeof(*op));
	if (op->kind < GX_OP_PUT || op->kind > GX_OP_RECV)
		return gx_fail(-EINVAL, "gx_op.kind %d is not known", op->kind);
	if (gx_unlikely(mem_is_dead(op->mem)))
		return gx_fail(-EINVAL, "gx_op.mem was freed");
	if (op->mem && (op->off > op->mem->len || op->len > op->mem->len - op->off))
		return gx_fail(-EINVAL, "bytes %llu to %llu are outside of the registered memory",
			       (unsigned long long)op->off,
			       (unsigned long long)(op->off + op->len));
	if (op->mem && op->mem->read_only && op->kind != GX_OP_PUT && op->kind != GX_OP_SEND)
		return gx_fail(-EFAULT, "gx_op.mem cannot be written");
	if (op->len > OP_LEN_MAX)
		return gx_fail(-EINVAL, "an operation of %llu bytes: at most 64 GiB",
			       (unsigned long long)op->len);
	if (!op->mem && !op->addr && op->len)
		return gx_fail(-EINVAL, "an operation of %llu bytes without memory",
			       (unsigned long long)op->len);
	return 0;
}

GX_EXPORT int gx_post(struct gx_ep *ep, const struct gx_op ops[], unsigned n)
{
	unsigned i;
	int ret = 0;

	for (i = 0; i < n; i++) {
		ret = op_check(&ops[i]);
		if (!ret)
			ret = gx_unlikely(ops[i].stream) ? submit_stream(ep, &ops[i])
							 : ep->ops->post(ep, &ops[i], NULL);
		if (ret)
			break;
	}
	if (i)
		ep->ops->kick(ep);
	if (i || ret == -EAGAIN)
		return i;
	/* Its text was written before the core was told. */
	if (ret == -ENOTCONN)
		gx_fail(ret, "the connection with peer %s has ended: %s", ep->conn->peer_name,
			ep->conn->text);
	return ret;
}

GX_EXPORT int gx_cancel(struct gx_ep *ep, uint64_t user)
{
	return ep->ops->cancel(ep, user, NULL) + submit_cancel(ep, user);
}
