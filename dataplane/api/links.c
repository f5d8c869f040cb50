/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All links. No other file outside of their rooms names one.
 */
#include "local/local.h"
#include "nic/nic_link.h"
#include "packet/pkt.h"
#include "tcp/tcp_conn.h"
#include "verbs/verbs.h"

#include <errno.h>

#ifndef GX_HAVE_VERBS
static const char *absent_may(const struct gx *gx)
{
	return "this gx was built without libibverbs";
}

static int absent_check(const struct gx_opts *opts)
{
	return opts->verbs->all || opts->verbs->nr_rails ? gx_fail(-ENODEV, "%s", absent_may(NULL))
							 : 0;
}

static const struct gx_link_ctx_ops absent_ctx_ops = {
	.check = absent_check,
	.open = link_none_ctx,
	.needs_gpu = link_none_needs_gpu,
	.start = link_none_ctx,
	.close = link_none_ctx_end,
	.tick = link_none_ctx_end,
	.gpu = link_none_gpu,
	.describe = link_none_describe,
};

static const struct gx_link_conn_ops absent_conn_ops = {
	.may = absent_may,
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

/* No end offers it, so no connection takes it. */
const struct gx_link gx_link_verbs = {
	.name = "verbs",
	.id = GX_LINK_VERBS,
	.cure = "",
	.ctx = &absent_ctx_ops,
	.core = &link_none_core_ops,
	.mem = &link_none_mem_ops,
	.conn = &absent_conn_ops,
	.ep = &gx_link_pkt_ops,
};
#endif

const struct gx_link *const gx_links[GX_LINKS] = {
	[GX_LINK_PACKET] = &gx_link_packet,
	[GX_LINK_LOCAL] = &gx_link_local,
#ifdef GX_HAVE_NIC_MEMORY
	[GX_LINK_TCP] = &gx_link_tcp_nic,
#else
	[GX_LINK_TCP] = &gx_link_tcp,
#endif
	[GX_LINK_VERBS] = &gx_link_verbs,
};
