/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The defaults of a link's slots: they do nothing, and nothing is in the way. See gx_internal/link.h
 * for the question of each.
 */
#include "gx_internal/link.h"
#include "gx_internal/slots.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>

static int none_check(const struct gx_opts *opts)
{
	return 0;
}

static int none_needs_gpu(const struct gx_opts *opts)
{
	return -1;
}

static int none_ctx(struct gx *gx)
{
	return 0;
}

static void none_ctx_end(struct gx *gx)
{
}

static int none_gpu(struct gx *gx, struct gx_gpu *gpu)
{
	return 0;
}

static void none_describe(struct gx *gx, struct gx_text *text)
{
}

static int none_core(struct gx_core *core)
{
	return 0;
}

static void none_core_gpu(struct gx_core *core, unsigned device)
{
}

static void none_core_end(struct gx_core *core)
{
}

static int none_add(struct gx_mem *mem)
{
	return 0;
}

static void *none_share(const struct gx_mem *mem, const char *name, unsigned access)
{
	return NULL;
}

static void none_share_keep(struct gx_mem *mem, void *ticket)
{
}

static void none_share_put(struct gx *gx, void *ticket)
{
}

static void none_export(const struct gx_mem *mem, struct gx_hello_export *e)
{
}

static void none_mem(struct gx_mem *mem)
{
}

static bool none_busy(const struct gx_mem *mem)
{
	return false;
}

static const char *none_holder(const struct gx *gx)
{
	return NULL;
}

static const char *none_may(const struct gx *gx)
{
	return NULL;
}

static uint32_t none_offer(const struct gx *gx, bool server, uint8_t *b)
{
	return 0;
}

static const char *none_fits(struct gx_link_path *path)
{
	return NULL;
}

static int none_open(struct gx_conn *c, const struct gx_link_want *want)
{
	return 0;
}

static uint32_t none_say(const struct gx_conn *c, uint8_t *b)
{
	return 0;
}

/* Who says nothing hears nothing. */
static int none_hear(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	return len ? -EPROTO : 0;
}

static unsigned none_fds(struct gx_conn *c, int fds[])
{
	return 0;
}

static unsigned none_fds_due(const struct gx_conn *c)
{
	return 0;
}

static void none_meet(struct gx_conn *c, int sock)
{
}

static int none_connect(struct gx_conn *c, const int fds[], unsigned n)
{
	return 0;
}

static int none_prove(struct gx_conn *c)
{
	return 1;
}

static bool none_tries(const struct gx_conn *c)
{
	return false;
}

static int none_trial(struct gx_conn *c, bool peer_up,
		      void (*say)(struct gx_conn *c, const uint8_t *b, uint32_t len))
{
	return 1;
}

static int none_tick(struct gx_conn *c, uint64_t now_ns,
		     void (*say)(struct gx_conn *c, const uint8_t *b, uint32_t len))
{
	return 0;
}

static void none_key(struct gx_conn *c, uint64_t token, bool maps)
{
}

static int none_take(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	return -EPROTO;
}

static bool none_is_over(const struct gx_conn *c)
{
	return true;
}

static bool none_fault(const struct gx_conn *c, int err, char *buf, size_t room)
{
	return false;
}

static void none_conn(struct gx_conn *c)
{
}

static uint64_t none_pull_over(const struct gx_conn *c)
{
	return 0;
}

static void none_look(const struct gx_conn *c, struct gx_link_look *out)
{
}

static bool none_path(const struct gx_conn *c, unsigned *at, struct gx_path *out)
{
	return false;
}

static int none_join(struct gx_ep *ep, const struct gx_op *op, const struct gx_link_seg segs[],
		     unsigned n, struct gx_route *route)
{
	return 0;
}

static unsigned none_copy(struct gx_ep *ep, bool put, const struct gx_link_seg segs[], unsigned n,
			  uint64_t *room_b)
{
	return 0;
}

static void none_kick(struct gx_ep *ep)
{
}

static int none_cancel(struct gx_ep *ep, uint64_t user, const struct gx_route *route)
{
	return 0;
}

static const struct gx_link_ctx_ops none_ctx_ops = {
	.check = none_check,
	.open = none_ctx,
	.needs_gpu = none_needs_gpu,
	.start = none_ctx,
	.close = none_ctx_end,
	.tick = none_ctx_end,
	.gpu = none_gpu,
	.describe = none_describe,
};

static const struct gx_link_core_ops none_core_ops = {
	.open = none_core,
	.start = none_core,
	.gpu = none_core_gpu,
	.close = none_core_end,
};

static const struct gx_link_mem_ops none_mem_ops = {
	.add = none_add,
	.share = none_share,
	.share_keep = none_share_keep,
	.share_put = none_share_put,
	.export = none_export,
	.revoke = none_mem,
	.busy = none_busy,
	.gone = none_mem,
	.holder = none_holder,
};

static const struct gx_link_conn_ops none_conn_ops = {
	.may = none_may,
	.offer = none_offer,
	.fits = none_fits,
	.open = none_open,
	.say = none_say,
	.hear = none_hear,
	.fds = none_fds,
	.fds_due = none_fds_due,
	.meet = none_meet,
	.connect = none_connect,
	.prove = none_prove,
	.tries = none_tries,
	.trial = none_trial,
	.up = none_conn,
	.tick = none_tick,
	.key = none_key,
	.take = none_take,
	.fault = none_fault,
	.push = none_conn,
	.stop = none_conn,
	.is_over = none_is_over,
	.release = none_conn,
	.lost = none_conn,
	.close = none_conn,
	.pull_over = none_pull_over,
	.look = none_look,
	.path = none_path,
};

static const struct gx_ep_ops none_ep_ops = {
	.join = none_join,
	.copy = none_copy,
	.kick = none_kick,
	.cancel = none_cancel,
};

void gx_link_fill(struct gx_link_full *full, const struct gx_link *own)
{
	/* What ctl_hello.c asks of each connection's. */
	assert(own->port != GX_LINK_PORT_NONE ||
	       (own->quantum_b >= GX_WIRE_QUANTUM_MIN && own->quantum_b % 16 == 0));
	full->link = *own;
	gx_slots_fill(&full->ctx, own->ctx, &none_ctx_ops, sizeof(full->ctx));
	gx_slots_fill(&full->core, own->core, &none_core_ops, sizeof(full->core));
	gx_slots_fill(&full->mem, own->mem, &none_mem_ops, sizeof(full->mem));
	gx_slots_fill(&full->conn, own->conn, &none_conn_ops, sizeof(full->conn));
	if (own->ep)
		full->ep.room = own->ep->room;
	gx_slots_fill(&full->ep, own->ep, &none_ep_ops, offsetof(struct gx_ep_ops, room));
	full->link.ctx = &full->ctx;
	full->link.core = &full->core;
	full->link.mem = &full->mem;
	full->link.conn = &full->conn;
	full->link.ep = &full->ep;
}
