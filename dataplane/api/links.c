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

/* No end offers it, so no connection takes it. */
const struct gx_link gx_link_verbs = {
	.name = "verbs",
	.id = GX_LINK_VERBS,
	.cure = "",
	.ctx = &(const struct gx_link_ctx_ops){.check = absent_check},
	.conn = &(const struct gx_link_conn_ops){.may = absent_may},
};
#endif

static const struct gx_link *const links_own[GX_LINKS] = {
	[GX_LINK_PACKET] = &gx_link_packet,
	[GX_LINK_LOCAL] = &gx_link_local,
#ifdef GX_HAVE_NIC_MEMORY
	[GX_LINK_TCP] = &gx_link_tcp_nic,
#else
	[GX_LINK_TCP] = &gx_link_tcp,
#endif
	[GX_LINK_VERBS] = &gx_link_verbs,
};

static struct gx_link_full links_full[GX_LINKS];

const struct gx_link *const gx_links[GX_LINKS] = {
	[GX_LINK_PACKET] = &links_full[GX_LINK_PACKET].link,
	[GX_LINK_LOCAL] = &links_full[GX_LINK_LOCAL].link,
	[GX_LINK_TCP] = &links_full[GX_LINK_TCP].link,
	[GX_LINK_VERBS] = &links_full[GX_LINK_VERBS].link,
};

static void __attribute__((constructor)) links_fill(void)
{
	for (unsigned l = 0; l < GX_LINKS; l++)
		gx_link_fill(&links_full[l], links_own[l]);
}
