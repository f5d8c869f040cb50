/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public calls on connections and endpoints. gx_connect(), gx_conn_close() and gx_conn_info() run
 * on the control thread, and their caller waits. The others run on the caller's thread.
 */
#include "control/control.h"
#include "gx_internal/link.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int new_run(void *arg)
{
	struct {
		struct gx *gx;
		struct gx_conn *c;
	} *call = arg;

	call->c = conn_new(call->gx, false);
	return call->c ? 0 : -ENOMEM;
}

/* The connection was not begun: free it at once, without a callback. */
static int discard_run(void *arg)
{
	struct gx_conn *c = arg;

	conn_state_set(c, GX_CONN_STATE_DOWN);
	c->user_closed = true;
	ctl_reap(c);
	return 0;
}

_Static_assert(GX_CONN_DATA_MAX == GX_HELLO_CONN_DATA_MAX, "HELLO carries it");

static int data_check(const char *opts, const void *data, uint32_t len)
{
	if (len > GX_CONN_DATA_MAX)
		return gx_fail(-EINVAL, "%s.data_len is %u: at most %d", opts, len,
			       GX_CONN_DATA_MAX);
	if (len && !data)
		return gx_fail(-EINVAL, "%s.data is NULL, and .data_len is %u", opts, len);
	return 0;
}

/* ---- listeners ---- */

GX_EXPORT int gx_listen_with(struct gx *gx, const char *addr, const struct gx_listen_opts *user,
			     struct gx_listener **out)
{
	struct gx_listen_opts opts;
	int ret = core_struct_take("gx_listen_opts", &opts, sizeof(opts), user);

	if (!ret)
		ret = data_check("gx_listen_opts", opts.data, opts.data_len);
	if (ret)
		return ret;
	if (opts.ask && !gx->opts.on_conn)
		return gx_fail(-EINVAL, "a listener that asks needs the callback on_conn");
	return ctl_listen_with(gx, addr, &opts, out);
}

GX_EXPORT void gx_listener_close(struct gx_listener *l)
{
	if (l)
		ctl_listener_close(l);
}

GX_EXPORT struct gx_listener *gx_conn_listener(const struct gx_conn *c)
{
	return atomic_load_explicit(&c->listener, memory_order_relaxed);
}

GX_EXPORT int gx_conn_refuse(struct gx_conn *c, const char *why)
{
	if (!gx_uring_is_me(c->gx->uring) || !c->asking)
		return gx_fail(-EINVAL, "a connection can be refused in the callback of "
					"GX_CONN_EVENT_ASKED alone");
	c->refused = true;
	snprintf(c->text, sizeof(c->text), "%.160s", why);
	return 0;
}

GX_EXPORT const void *gx_conn_data(const struct gx_conn *c, uint32_t *len)
{
	/* The control thread has the peer's HELLO earlier than others may read it. */
	bool known =
		atomic_load_explicit(&c->state, memory_order_acquire) != GX_CONN_STATE_CONNECTING ||
		gx_uring_is_me(c->gx->uring);

	*len = known ? c->peer.data_len : 0;
	return *len ? c->peer.data : NULL;
}

/* ---- connections ---- */

GX_EXPORT int gx_connect(struct gx *gx, const char *addr, const struct gx_connect_opts *user,
			 struct gx_conn **out)
{
	struct {
		struct gx *gx;
		struct gx_conn *c;
	} call = {gx, NULL};
	struct gx_connect_opts opts;
	int ret = core_struct_take("gx_connect_opts", &opts, sizeof(opts), user);

	if (ret)
		return ret;
	if (opts.first_core >= gx->nr_cores)
		return gx_fail(-EINVAL, "first_core %u: there are %u cores", opts.first_core,
			       gx->nr_cores);
	ret = data_check("gx_connect_opts", opts.data, opts.data_len);
	if (ret)
		return ret;
	ret = gx_uring_run_wait(gx->uring, new_run, &call);
	if (ret)
		return gx_fail(ret, "no memory for a connection");
	gx_conn_user_set(call.c, opts.user); /* before on_conn can hear of it */
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
	uint64_t at = gx_later_ns(gx_now_ns(), timeout_ns);
	int ret = 0;

	until.tv_sec = at / 1000000000;
	until.tv_nsec = at % 1000000000;
	pthread_mutex_lock(&c->gx->wait_lock);
	while (!ret && conn_state(c) == GX_CONN_STATE_CONNECTING)
		ret = pthread_cond_timedwait(&c->gx->wait_cond, &c->gx->wait_lock, &until);
	if (ret)
		gx_fail(-EINPROGRESS,
			"the connection to %s was not up within %.1f s, and is still being set up: is "
			"the server stopped, or has it too many clients at once?",
			c->peer_name, (double)timeout_ns / 1e9);
	pthread_mutex_unlock(&c->gx->wait_lock);
	if (conn_state(c) == GX_CONN_STATE_UP)
		return 0;
	if (conn_state(c) == GX_CONN_STATE_DOWN)
		return gx_fail(c->err ? c->err : -ECONNRESET, "%s", c->text);
	return -EINPROGRESS;
}

static int close_run(void *arg)
{
	struct gx_conn *c = arg;

	c->user_closed = true;
	if (c->ctl)
		ctl_bye(c);
	conn_down(c, GX_REASON_CLOSED, 0, "closed");
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
	bool has_port = p->port && c->link->port != GX_LINK_PORT_NONE;

	info->state = conn_state(c);
	info->err = c->err;
	info->reason = c->reason;
	info->path_reason = c->path_reason;
	memcpy(info->text, c->text, sizeof(info->text));
	snprintf(info->link, sizeof(info->link), "%s", c->link->name);
	snprintf(info->port, sizeof(info->port), "%.63s", has_port ? p->name : c->link->name);
	memcpy(info->why, c->why, sizeof(info->why));
	info->lanes = c->nr_lanes;
	if (c->ep[0]) {
		info->ops_max = c->ep[0]->ops->room.ops;
		info->recvs_max = c->ep[0]->ops->room.recvs;
		info->gets_max = c->ep[0]->ops->room.gets;
	}
	info->quantum_b = c->agreed.quantum;
	for (unsigned i = 0; i < c->nr_lanes && info->state == GX_CONN_STATE_UP; i++) {
		uint32_t now = atomic_load_explicit(&c->ep[i]->quantum_b, memory_order_relaxed);

		if (now)
			info->quantum_b = GX_MIN(info->quantum_b, now);
	}
	info->quantum_in_b = c->agreed.quantum;
	if (has_port)
		info->quantum_in_b = GX_MIN(c->agreed.quantum, p->port->caps.payload_max);
	info->chunk_b = c->agreed.chunk_b;
	info->window = c->agreed.window;
	info->integrity = GX_INTEGRITY_MODE_NONE + conn_integrity(c);
	info->crc_by_copy = c->crc_by_copy;
	info->peer_crc_by_copy = c->peer_crc_by_copy;
	info->payload_max_b = has_port ? p->port->caps.payload_max : 0;
	memcpy(info->peer, c->peer_name, sizeof(info->peer));
	info->peer_pid = c->peer.pid;
	info->same_host = c->same_host;
	info->control = gx_uring_method_name(c->gx->uring);
	info_pool(info->bounce, c->gx->pool_gpu ? c->gx->pool_gpu->device : -1);
	info_pool(info->peer_bounce, c->peer_pool);
	memcpy(info->auth, c->auth, sizeof(info->auth));
	info->pull_over_b = c->link_open ? c->link->conn->pull_over(c) : 0;
	return 0;
}

GX_EXPORT int gx_conn_info(struct gx_conn *c, struct gx_conn_info *info)
{
	struct gx_conn_info full = GX_INIT(full);
	struct {
		struct gx_conn *c;
		struct gx_conn_info *info;
	} call = {c, &full};

	gx_uring_run_wait(c->gx->uring, info_run, &call);
	return core_struct_give("gx_conn_info", &full, sizeof(full), info);
}

struct path_call {
	struct gx_conn *c;
	unsigned index;
	struct gx_path out;
};

static int path_run(void *arg)
{
	struct path_call *call = arg;
	unsigned at = 0, i = 0;

	if (conn_state(call->c) != GX_CONN_STATE_UP)
		return gx_fail(-ENOTCONN, "the connection is not up");
	while (call->c->link->conn->path(call->c, &at, &call->out))
		if (i++ == call->index)
			return 0;
	return gx_fail(-ENOENT, "there are %u paths to compare", i);
}

GX_EXPORT int gx_conn_path(struct gx_conn *c, unsigned index, struct gx_path *out)
{
	struct path_call call = {.c = c, .index = index};
	int ret = gx_uring_run_wait(c->gx->uring, path_run, &call);

	return ret ? ret : core_struct_give("gx_path", &call.out, sizeof(call.out), out);
}

GX_EXPORT struct gx_ep *gx_conn_ep(struct gx_conn *c, unsigned lane)
{
	if (conn_state(c) != GX_CONN_STATE_UP || lane >= c->nr_lanes)
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
	if (conn_state(c) == GX_CONN_STATE_CONNECTING)
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
		return core_struct_give("gx_region", &full, sizeof(full), out);
	}
	return gx_fail(-ENOENT, "peer %s has no region '%s'", c->peer_name, name ? name : "");
}

GX_EXPORT int gx_conn_may(struct gx_conn *c, const struct gx_mem *mem, unsigned access,
			  uint64_t off, uint64_t len)
{
	const struct core_rights *r = &c->rights;

	if (!access || access & ~CORE_ACCESS || mem_is_dead(mem))
		return gx_fail(-EINVAL, "no access is asked for, or the memory was freed");
	if (conn_state(c) != GX_CONN_STATE_UP)
		return gx_fail(-ENOTCONN, "the connection is not up");
	if (mem ? !core_may(c, mem, access) : r->limited && (r->some || access & ~r->access))
		return gx_fail(-EACCES, "peer %s has no right to that", c->peer_name);
	if (mem && (off > mem->len || len > mem->len - off))
		return gx_fail(-ERANGE,
			       "%" PRIu64 " bytes at %" PRIu64
			       " are outside of region '%s' of %" PRIu64,
			       len, off, mem->name, mem->len);
	return 0;
}

GX_EXPORT int gx_conn_msg(struct gx_conn *c, const void *data, uint32_t len)
{
	return ctl_msg(c, data, len);
}
