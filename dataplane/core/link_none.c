/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slots of a link that has no part in something: they do nothing, and nothing is in the way. See
 * gx_internal/link.h for what each is asked.
 */
#include "gx_internal/link.h"

#include <errno.h>
#include <stddef.h>

int link_none_check(const struct gx_opts *opts)
{
	return 0;
}

int link_none_needs_gpu(const struct gx_opts *opts)
{
	return -1;
}

int link_none_ctx(struct gx *gx)
{
	return 0;
}

void link_none_ctx_end(struct gx *gx)
{
}

int link_none_gpu(struct gx *gx, struct gx_gpu *gpu)
{
	return 0;
}

void link_none_describe(struct gx *gx, struct gx_text *text)
{
}

int link_none_core(struct gx_core *core)
{
	return 0;
}

void link_none_core_gpu(struct gx_core *core, unsigned device)
{
}

void link_none_core_end(struct gx_core *core)
{
}

int link_none_add(struct gx_mem *mem)
{
	return 0;
}

void *link_none_share(const struct gx_mem *mem, const char *name, unsigned access)
{
	return NULL;
}

void link_none_share_keep(struct gx_mem *mem, void *ticket)
{
}

void link_none_share_put(struct gx *gx, void *ticket)
{
}

void link_none_export(const struct gx_mem *mem, struct gx_hello_export *e)
{
}

void link_none_mem(struct gx_mem *mem)
{
}

bool link_none_busy(const struct gx_mem *mem)
{
	return false;
}

const char *link_none_holder(const struct gx *gx)
{
	return NULL;
}

const char *link_none_may(const struct gx *gx)
{
	return NULL;
}

uint32_t link_none_offer(const struct gx *gx, bool server, uint8_t *b)
{
	return 0;
}

const char *link_none_fits(struct gx_link_path *path)
{
	return NULL;
}

int link_none_open(struct gx_conn *c, const struct gx_link_want *want)
{
	return 0;
}

uint32_t link_none_say(const struct gx_conn *c, uint8_t *b)
{
	return 0;
}

/* Who says nothing is told nothing. */
int link_none_hear(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	return len ? -EPROTO : 0;
}

unsigned link_none_fds(struct gx_conn *c, int fds[])
{
	return 0;
}

unsigned link_none_fds_due(const struct gx_conn *c)
{
	return 0;
}

void link_none_meet(struct gx_conn *c, int sock)
{
}

int link_none_connect(struct gx_conn *c, const int fds[], unsigned n)
{
	return 0;
}

int link_none_prove(struct gx_conn *c)
{
	return 1;
}

int link_none_tick(struct gx_conn *c, uint64_t now_ns,
		   void (*say)(struct gx_conn *c, const uint8_t *b, uint32_t len))
{
	return 0;
}

void link_none_key(struct gx_conn *c, uint64_t token, bool maps)
{
}

int link_none_take(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	return -EPROTO;
}

bool link_none_is_over(const struct gx_conn *c)
{
	return true;
}

bool link_none_fault(const struct gx_conn *c, int err, char *buf, size_t room)
{
	return false;
}

void link_none_conn(struct gx_conn *c)
{
}

uint64_t link_none_pull_over(const struct gx_conn *c)
{
	return 0;
}

void link_none_look(const struct gx_conn *c, struct gx_link_look *out)
{
}

bool link_none_path(const struct gx_conn *c, unsigned *at, struct gx_path *out)
{
	return false;
}

int link_none_join(struct gx_ep *ep, const struct gx_op *op, const struct gx_link_seg segs[],
		   unsigned n, struct gx_route *route)
{
	return 0;
}

unsigned link_none_copy(struct gx_ep *ep, bool put, const struct gx_link_seg segs[], unsigned n,
			uint64_t *room_b)
{
	return 0;
}

const struct gx_link_ctx_ops link_none_ctx_ops = {
	.check = link_none_check,
	.open = link_none_ctx,
	.needs_gpu = link_none_needs_gpu,
	.start = link_none_ctx,
	.close = link_none_ctx_end,
	.tick = link_none_ctx_end,
	.gpu = link_none_gpu,
	.describe = link_none_describe,
};

const struct gx_link_core_ops link_none_core_ops = {
	.open = link_none_core,
	.start = link_none_core,
	.gpu = link_none_core_gpu,
	.close = link_none_core_end,
};

const struct gx_link_mem_ops link_none_mem_ops = {
	.add = link_none_add,
	.share = link_none_share,
	.share_keep = link_none_share_keep,
	.share_put = link_none_share_put,
	.export = link_none_export,
	.revoke = link_none_mem,
	.busy = link_none_busy,
	.gone = link_none_mem,
	.holder = link_none_holder,
};

const struct gx_link_conn_ops link_none_conn_ops = {
	.may = link_none_may,
	.offer = link_none_offer,
	.fits = link_none_fits,
	.open = link_none_open,
	.say = link_none_say,
	.hear = link_none_hear,
	.fds = link_none_fds,
	.fds_due = link_none_fds_due,
	.meet = link_none_meet,
	.connect = link_none_connect,
	.prove = link_none_prove,
	.up = link_none_conn,
	.tick = link_none_tick,
	.key = link_none_key,
	.take = link_none_take,
	.fault = link_none_fault,
	.push = link_none_conn,
	.stop = link_none_conn,
	.is_over = link_none_is_over,
	.release = link_none_conn,
	.lost = link_none_conn,
	.close = link_none_conn,
	.pull_over = link_none_pull_over,
	.look = link_none_look,
	.path = link_none_path,
};
