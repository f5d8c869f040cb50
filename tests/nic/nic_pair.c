/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two endpoints of link tcp with NICs; see nic_pair.h.
 */
#include "tcp/tcp_gpu.h"
#include "nic/nic_pair.h"
#include "nic/tcp_zc.h"
#include "tcp/tcp_conn.h"
#include "tcp/tcp_turn.h"

static struct nic_ctx no_nics;
static const struct zc_sys *pair_zc;

static int pair_open(struct gx_core *core)
{
	int ret;

	core->gx->link[GX_LINK_TCP] = &no_nics;
	ret = nic_core_open(core);
	if (!ret && pair_zc)
		nic_core_of(tcp_core(core))->zc_sys = pair_zc;
	return ret;
}

static const struct gx_link_core_ops core_ops = {
	.open = pair_open, .gpu = tcp_core_gpu, .close = tcp_core_close};
static const struct gx_link pair_nic = {.core = &core_ops};

void nic_poll(struct link_tcp *l, uint64_t now_ns)
{
	link_tcp_poll(l, now_ns);
	link_tcp_zc_poll(l, now_ns);
}

void nic_pair_use(const struct zc_sys *zc)
{
	pair_zc = zc;
	pair_link = &pair_nic;
	pair_poll = nic_poll;
}
