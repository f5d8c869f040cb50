/* SPDX-License-Identifier: Apache-2.0 */
#include "common/opt_ctx.h"
#include "verbs/verbs_rig.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kit/common_gx.h"

static void on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
		    const char *why)
{
	struct end *e = arg;

	if (event == GX_CONN_EVENT_UP)
		atomic_store(&e->up, conn);
	else
		atomic_fetch_add(&e->nr_down, 1);
}

static void end_open(struct end *e, struct gx_opts o)
{
	*e = (struct end){0};
	o.on_conn = on_conn;
	o.arg = e;
	assert_int_equal(common_gx_open(o, "shm", &e->gx), 0);
	e->core = gx_core(e->gx, 0);
	assert_int_equal(gx_mem_alloc(e->gx, GX_MEM_HOST, 0, KV_B, &e->kv), 0);
	assert_int_equal(gx_mem_share(e->kv, "kv", GX_ACCESS_PUT | GX_ACCESS_GET), 0);
	e->base = gx_mem_addr(e->kv);
}

static void take(struct end *e)
{
	struct gx_comp comp;

	while (common_poll(e->core, &comp, 1)) {
		if (comp.kind == GX_COMP_NOTIFY) {
			e->nr_notify++;
			e->notify = comp;
		}
		e->nr_local += comp.kind == GX_COMP_LOCAL;
		if (comp.kind != GX_COMP_DONE)
			continue;
		e->nr_done++;
		e->last = comp;
		if (comp.status) {
			e->nr_failed++;
			e->status = comp.status;
		}
	}
}

void rig_turn(struct rig *r)
{
	gx_core_turn(r->server.core, gx_now());
	gx_core_turn(r->client.core, gx_now());
	if (!r->hold)
		script_run();
	take(&r->server);
	take(&r->client);
}

struct rig *rig_new_of(struct gx_opts client, struct gx_opts server)
{
	struct rig *r = calloc(1, sizeof(*r));
	int port;

	assert_non_null(r);
	verbs_api_set(&script_api);
	server.server = true;
	end_open(&r->server, server);
	end_open(&r->client, client);
	port = gx_listen(r->server.gx, "127.0.0.1:0");
	assert_true(port > 0);
	snprintf(r->addr, sizeof(r->addr), "127.0.0.1:%d", port);
	return r;
}

#define RAILS 4

struct names {
	char text[64], name[RAILS][64];
	struct gx_rail rails[RAILS];
	struct gx_verbs_opts verbs;
};

/* @devices: "script0", "script0+script1", NULL */
static struct gx_opts opts_of(struct names *n, const char *devices, uint64_t timeout_ns)
{
	struct gx_opts o = {.verbs = &n->verbs, .peer_timeout_ns = timeout_ns};
	unsigned *nr = &n->verbs.nr_rails;
	char *save = NULL;

	n->verbs = (struct gx_verbs_opts){.size = sizeof(n->verbs), .rails = n->rails};
	snprintf(n->text, sizeof(n->text), "%s", devices ? devices : "");
	for (char *at = strtok_r(n->text, "+", &save); at && *nr < RAILS;
	     at = strtok_r(NULL, "+", &save), ++*nr)
		assert_int_equal(opt_rail(at, n->name[*nr], &n->rails[*nr], &n->verbs.all), 0);
	return o;
}

struct rig *rig_new_within(const char *client, const char *server, uint64_t timeout_ns)
{
	struct names of_client, of_server;

	return rig_new_of(opts_of(&of_client, client, timeout_ns),
			  opts_of(&of_server, server, timeout_ns));
}

struct rig *rig_new(const char *client, const char *server)
{
	return rig_new_within(client, server, 0);
}

int rig_connect(struct rig *r, unsigned queue_pairs)
{
	struct gx_connect_opts o = GX_INIT(o);
	uint64_t until_ns = gx_now() + WAIT_NS;
	int ret;

	o.link = "verbs";
	o.verbs = GX_WITH(gx_connect_verbs_opts, .queue_pairs = queue_pairs);
	atomic_store(&r->server.up, NULL);
	ret = gx_connect(r->client.gx, r->addr, &o, &r->client.conn);
	if (ret)
		return ret;
	do { /* the devices move nothing by themselves */
		rig_turn(r);
		ret = gx_conn_wait(r->client.conn, 1000000);
	} while (ret == -EINPROGRESS && gx_now() < until_ns);
	if (ret)
		return ret;
	UNTIL(r, atomic_load(&r->server.up));
	r->client.ep = gx_conn_ep(r->client.conn, 0);
	r->server.conn = atomic_load(&r->server.up);
	r->server.ep = gx_conn_ep(r->server.conn, 0);
	return 0;
}

struct rig *rig_up_within(unsigned queue_pairs, uint64_t timeout_ns)
{
	struct rig *r = rig_new_within("script0", "script1", timeout_ns);

	assert_int_equal(rig_connect(r, queue_pairs), 0);
	return r;
}

struct rig *rig_up(unsigned queue_pairs)
{
	return rig_up_within(queue_pairs, 0);
}

void rig_free(struct rig *r)
{
	gx_close(r->client.gx);
	gx_close(r->server.gx);
	if (r->forget)
		script_forget();
	free(r);
	script_reset(); /* nothing was left behind */
	verbs_api_set(NULL);
}

struct gx_op op_to(struct end *e, enum gx_op_kind kind, uint64_t len)
{
	struct gx_region kv = GX_INIT(kv);

	assert_int_equal(gx_conn_region(e->conn, "kv", 0, &kv), 0);
	return (struct gx_op){.kind = kind, .user = 7, .mem = e->kv, .len = len, .token = kv.token};
}

void post(struct end *e, const struct gx_op *op)
{
	assert_int_equal(common_post(e->ep, op, 1), 1);
}

void fill(char *p, uint64_t len, unsigned seed)
{
	for (uint64_t i = 0; i < len; i++)
		p[i] = (char)(i * 7 + i / 251 + seed);
}

uint64_t stat_of(const struct end *e, const char *name)
{
	uint64_t v = 0;

	assert_int_equal(gx_core_stat(e->core, name, &v), 0);
	return v;
}
