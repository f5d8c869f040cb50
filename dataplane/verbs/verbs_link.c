/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs link as an object: its part of a context (the devices), of a core, of memory
 * (registrations) and of a connection. link_verbs.c has the endpoints. Control path.
 */
#include "verbs/link_verbs.h"
#include "verbs/verbs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a context ---- */

/* Open the RDMA devices that the user names. Without a name there is no verbs link. */
static int verbs_ctx_open(struct gx *gx)
{
	struct verbs_rails *rails = NULL;
	int ret = 0;

	if (gx->opts.verbs->all || gx->opts.verbs->nr_rails)
		ret = verbs_rails_open(gx->opts.verbs, &rails);
	gx->link[GX_LINK_VERBS] = rails;
	gx->groups.verbs.rails = NULL; /* these belong to the caller */
	if (rails && verbs_lends(&gx->opts))
		verbs_rails_lend(rails);
	return ret;
}

static void verbs_ctx_close(struct gx *gx)
{
	verbs_rails_close(verbs_rails_of(gx));
	gx->link[GX_LINK_VERBS] = NULL;
}

static void verbs_ctx_tick(struct gx *gx)
{
	if (verbs_rails_of(gx))
		verbs_rails_events(verbs_rails_of(gx));
}

static void verbs_describe(struct gx *gx, struct gx_text *text)
{
	const struct verbs_rails *rails = verbs_rails_of(gx);
	char line[4096];

	if (rails && verbs_rails_text(rails, line, sizeof(line)) > 0)
		core_say(text, "%s\n", line);
	for (unsigned i = 0; rails && i < GX_GPUS_MAX; i++)
		if (gx->gpu[i] && verbs_rails_near_text(rails, gx->gpu[i], line, sizeof(line)))
			core_say(text, "%s\n", line);
}

/* ---- a core ---- */

static int verbs_core_open(struct gx_core *core)
{
	struct link_verbs *l = NULL;
	int ret = verbs_rails_of(core->gx) ? link_verbs_open(core, &l) : 0;

	core->link[GX_LINK_VERBS] = l;
	return ret ? gx_fail(ret, "core %u: %s", core->index, strerror(-ret)) : 0;
}

static int verbs_core_start(struct gx_core *core)
{
	struct link_verbs *l = verbs_core(core);
	int ret;

	if (!l)
		return 0;
	ret = gx_loop_add(&core->loop,
			  &(struct gx_poller){"verbs", link_verbs_poll, l, link_verbs_asleep});
	if (!ret)
		ret = core_dropper_add(core, link_verbs_drop, l);
	return ret ? gx_fail(ret, "core %u: %s", core->index, strerror(-ret)) : 0;
}

static void verbs_core_close(struct gx_core *core)
{
	link_verbs_close(verbs_core(core));
}

/* ---- memory ---- */

struct reg_call {
	struct gx_mem *mem;
	struct verbs_reg *reg;
};

static int reg_run(void *arg)
{
	struct reg_call *call = arg;

	verbs_mem_keep(verbs_rails_of(call->mem->gx), call->reg);
	/* Pairs with the acquire in verbs_reg_of(): the registration is complete. */
	atomic_store_explicit(&call->mem->link[GX_LINK_VERBS], call->reg, memory_order_release);
	return 0;
}

/* Register it for our own requests. Without that, packets carry it. */
static int verbs_add(struct gx_mem *mem)
{
	struct verbs_rails *rails = verbs_rails_of(mem->gx);
	struct reg_call call = {mem, rails && mem->len ? verbs_mem_new(rails, mem) : NULL};

	if (call.reg)
		gx_uring_run_wait(mem->gx->uring, reg_run, &call);
	return 0;
}

static void *verbs_share(const struct gx_mem *mem, const char *name, unsigned access)
{
	void *shared;

	if (!verbs_reg_of(mem))
		return NULL;
	shared = verbs_mem_share(verbs_rails_of(mem->gx), mem, access);
	if (!shared)
		gx_warn("region '%s': %s", name, gx_error());
	return shared;
}

static void verbs_share_take(struct gx_mem *mem, void *ticket)
{
	verbs_mem_share_keep(verbs_reg_of(mem), ticket);
}

static void verbs_share_drop(struct gx *gx, void *ticket)
{
	verbs_mem_share_put(verbs_rails_of(gx), ticket);
}

/* A device has not ended what peers can reach of freed memory. */
static void conns_stop(struct gx *gx)
{
	for (struct gx_conn *c = gx->conns; c; c = c->next)
		if (c->link == &gx_link_verbs)
			verbs_conn_stop(c);
}

static void verbs_revoke(struct gx_mem *mem)
{
	struct verbs_rails *rails = verbs_rails_of(mem->gx);

	if (rails && verbs_mem_revoke(rails, mem))
		conns_stop(mem->gx);
}

static void verbs_gone(struct gx_mem *mem)
{
	struct verbs_rails *rails = verbs_rails_of(mem->gx);

	if (rails && verbs_mem_put(rails, mem))
		conns_stop(mem->gx);
	atomic_store_explicit(&mem->link[GX_LINK_VERBS], NULL, memory_order_relaxed);
}

static const char *verbs_holder(const struct gx *gx)
{
	return verbs_rails_of(gx) ? "the RDMA device" : NULL;
}

/* ---- a connection ---- */

_Static_assert(1 + VERBS_RAILS_B <= GX_HELLO_OFFER_MAX, "it fits into HELLO");
_Static_assert(VERBS_HELLO_MAX <= GX_HELLO_BLOB_MAX, "it fits into CONNECT and ACCEPT");

static uint32_t verbs_offer(const struct gx *gx, bool server, uint8_t *b)
{
	b[0] = verbs_lends(&gx->opts) ? VERBS_OFFER_LENDS : 0;
	return 1 + (server ? verbs_rails_say(verbs_rails_of(gx), b + 1) : 0);
}

static int verbs_open(struct gx_conn *c, const struct gx_link_want *want)
{
	return verbs_conn_open(c, want->nr_lanes, want->nr_qps, want->blob, want->blob_b);
}

static int verbs_hear(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	char text[sizeof(c->why)];
	int ret = verbs_conn_hear(c, b, len);
	unsigned left;

	if (ret)
		return ret;
	verbs_conn_text(c, text, sizeof(text));
	core_why(c, "%s", text);
	left = c->peer.nr_regions - verbs_nr_regions(c);
	if (left)
		core_why(c, "%u of the peer's %u regions by packets: not registered", left,
			 c->peer.nr_regions);
	return 0;
}

static void verbs_up(struct gx_conn *c)
{
	core_why(c, "long sends %s", verbs_pull_over(c) ? "over queue pairs" : "as packets");
}

static int verbs_tick(struct gx_conn *c, uint64_t now_ns,
		      void (*say)(struct gx_conn *c, const uint8_t *b, uint32_t len))
{
	if (say && verbs_conn_lost(c))
		return -ENODEV;
	verbs_conn_tick(c, now_ns, say);
	return 0;
}

static bool verbs_fault(const struct gx_conn *c, int err, char *buf, size_t room)
{
	if (err == -ENODEV)
		verbs_conn_devices(c, buf, room);
	else if (err == -ENETUNREACH)
		verbs_conn_way(c, buf, room);
	else
		return false;
	return true;
}

/* ---- the object ---- */

static const struct gx_link_ctx_ops ctx_ops = {
	.check = link_none_check,
	.open = verbs_ctx_open,
	.needs_gpu = link_none_needs_gpu,
	.start = link_none_ctx,
	.close = verbs_ctx_close,
	.tick = verbs_ctx_tick,
	.gpu = link_none_gpu,
	.describe = verbs_describe,
};

static const struct gx_link_core_ops core_ops = {
	.open = verbs_core_open,
	.start = verbs_core_start,
	.close = verbs_core_close,
};

static const struct gx_link_mem_ops mem_ops = {
	.add = verbs_add,
	.share = verbs_share,
	.share_keep = verbs_share_take,
	.share_put = verbs_share_drop,
	.export = link_none_export,
	.revoke = verbs_revoke,
	.gone = verbs_gone,
	.holder = verbs_holder,
};

static const struct gx_link_conn_ops conn_ops = {
	.may = verbs_offered,
	.offer = verbs_offer,
	.fits = link_none_fits,
	.open = verbs_open,
	.say = verbs_conn_say,
	.hear = verbs_hear,
	.fds = link_none_fds,
	.fds_due = link_none_fds_due,
	.meet = link_none_meet,
	.connect = link_none_connect,
	.prove = verbs_conn_prove,
	.up = verbs_up,
	.tick = verbs_tick,
	.take = verbs_conn_mend,
	.fault = verbs_fault,
	.push = link_none_conn,
	.stop = verbs_conn_stop,
	.is_over = verbs_conn_is_over,
	.release = link_none_conn,
	.lost = link_none_conn,
	.close = verbs_conn_close,
	.pull_over = verbs_pull_over,
};

const struct gx_link gx_link_verbs = {
	.name = "verbs",
	.id = GX_LINK_VERBS,
	.port = GX_LINK_PORT_ANY,
	.proves = true,
	.cure = "set gx_opts.verbs there",
	.ctx = &ctx_ops,
	.core = &core_ops,
	.mem = &mem_ops,
	.conn = &conn_ops,
	.ep = &gx_link_verbs_ops,
};
