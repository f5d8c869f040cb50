/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rig of the local link's tests; see local_rig.h. on_conn() runs on gx's control thread, all
 * else on the test's.
 */
#include "local/local_rig.h"

#include <stdlib.h>

#include "gx_internal/link.h"
#include "local/local.h"

#include "kit/common_gx.h"

struct rig *rig_new(void)
{
	struct rig *r = calloc(1, sizeof(*r));

	assert_non_null(r);
	r->buf = aligned_alloc(4096, KV_B + 4096);
	r->want = malloc(KV_B);
	r->got = malloc(KV_B);
	assert_true(r->buf && r->want && r->got);
	return r;
}

void rig_free(struct rig *r)
{
	gx_close(r->client.gx);
	gx_close(r->server.gx);
	free(r->client.plain);
	free(r->server.plain);
	free(r->buf);
	free(r->want);
	free(r->got);
	free(r);
}

static void on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
		    const char *why)
{
	struct end *e = arg;

	if (event == GX_CONN_EVENT_UP) {
		atomic_store(&e->up, conn);
		return;
	}
	atomic_store(&e->down_err, err);
	atomic_fetch_add(&e->nr_down, 1);
}

void end_open(struct end *e, struct gx_opts o, const char *port)
{
	o.on_conn = on_conn;
	o.arg = e;
	*e = (struct end){0};
	assert_int_equal(common_gx_open(o, port, &e->gx), 0);
	e->core = gx_core(e->gx, 0);
	e->kv = common_gx_kv(e->gx, GX_MEM_HOST, KV_B);
	e->base = gx_mem_addr(e->kv);
}

int rig_connect(struct rig *r, const char *link, const char *port)
{
	const struct gx_port_name name = {.name = port};
	struct gx_connect_opts o = GX_INIT(o);
	int ret;

	common_gx_listen(r->server.gx, r->addr);
	o.link = link;
	o.ports = &name;
	o.nr_ports = port ? 1 : 0;
	ret = gx_connect(r->client.gx, r->addr, &o, &r->client.conn);
	if (ret)
		return ret;
	ret = gx_conn_wait(r->client.conn, WAIT_NS);
	if (ret)
		return ret;
	UNTIL(r, atomic_load(&r->server.up));
	r->client.ep = gx_conn_ep(r->client.conn, 0);
	r->server.conn = atomic_load(&r->server.up);
	r->server.ep = gx_conn_ep(r->server.conn, 0);
	return 0;
}

struct gx_conn *rig_connect_more(struct rig *r)
{
	struct gx_conn *c;

	atomic_store(&r->server.up, NULL);
	c = common_gx_connect(r->client.gx, r->addr, "local");
	UNTIL(r, atomic_load(&r->server.up));
	return c;
}

void end_take(struct end *e)
{
	struct gx_comp comp = {.note = &comp, .note_len = 1, .reserved = 1};

	while (common_poll(e->core, &comp, 1)) {
		assert_null(comp.note);
		assert_int_equal(comp.note_len | comp.reserved, 0);
		if (comp.kind == GX_COMP_NOTIFY) {
			e->nr_notify++;
			e->notify = comp;
			continue;
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

void end_turn(struct end *e)
{
	gx_core_turn(e->core, gx_now());
	end_take(e);
}

uint64_t end_stat(const struct end *e, const char *name)
{
	uint64_t v = 0;

	assert_int_equal(gx_core_stat(e->core, name, &v), 0);
	return v;
}

uint64_t end_ctl_stat(const struct end *e, enum gx_stat_id id)
{
	return gx_stat_get(&e->gx->ctl_stats, id);
}
