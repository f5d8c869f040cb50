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

/* gx_link_NAME, of ID, for a build that lacks LIBRARY. No end offers it, so no connection takes it.
 * ASKED: do options o ask for it? Then no context opens. */
#define GX_LINK_ABSENT(NAME, ID, LIBRARY, ASKED)                                                   \
	static const char *NAME##_absent_may(const struct gx *gx)                                  \
	{                                                                                          \
		return "this gx was built without " LIBRARY;                                       \
	}                                                                                          \
	static int NAME##_absent_check(const struct gx_opts *o)                                    \
	{                                                                                          \
		return (ASKED) ? gx_fail(-ENODEV, "%s", NAME##_absent_may(NULL)) : 0;              \
	}                                                                                          \
	const struct gx_link gx_link_##NAME = {                                                    \
		.name = #NAME,                                                                     \
		.id = ID,                                                                          \
		.port = GX_LINK_PORT_ANY,                                                          \
		.cure = "",                                                                        \
		.ctx = &(const struct gx_link_ctx_ops){.check = NAME##_absent_check},              \
		.conn = &(const struct gx_link_conn_ops){.may = NAME##_absent_may},                \
	}

#ifndef GX_HAVE_VERBS
GX_LINK_ABSENT(verbs, GX_LINK_VERBS, "libibverbs", o->verbs->all || o->verbs->nr_rails);
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
