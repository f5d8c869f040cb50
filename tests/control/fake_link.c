/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The smallest links that the control room can be tested with: one over a port (packet), one that
 * shares memory (local), one with data sockets (tcp), one that is taken only by name and has a way to
 * prove (verbs). None moves a byte: ctl_rig.c fakes their lanes. If a change of the control room asks
 * more of this file than a slot, the room has learned the name of a link.
 */
#include "control/fake_link.h"
#include "core/socks.h"

#include <errno.h>
#include <string.h>

const char *fake_fit;
bool fake_quiet;
_Atomic int fake_proof;
_Atomic unsigned fake_asked, fake_taken;

static const char *local_fits(struct gx_link_path *path)
{
	path->quiet = fake_quiet;
	return fake_fit;
}

static int prove(struct gx_conn *c)
{
	fake_asked++;
	return fake_proof < 0 ? gx_fail(fake_proof, "no packet gets from here to there")
			      : fake_proof;
}

static int take(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	fake_taken += len;
	return b[0] == 'x' ? -EPROTO : 0;
}

/* ---- data sockets ---- */

static int socks_open(struct gx_conn *c, const struct gx_link_want *want)
{
	unsigned n = want->blob ? want->blob[1] : want->nr_socks;

	if (want->blob && (want->blob_b != FAKE_BLOB_B || want->blob[0] != 0xfa || !n))
		return gx_fail(-EPROTO, "malformed words of the fake link");
	return gx_socks_open(c, want->nr_lanes, n);
}

static uint32_t socks_say(const struct gx_conn *c, uint8_t *b)
{
	b[0] = 0xfa;
	b[1] = (uint8_t)c->socks->nr_socks;
	memcpy(b + 2, c->socks->token, sizeof(c->socks->token));
	return FAKE_BLOB_B;
}

static int socks_hear(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	if (len != FAKE_BLOB_B || b[0] != 0xfa || b[1] != c->socks->nr_socks)
		return gx_fail(-EPROTO, "malformed words of the fake link");
	if (!c->server)
		memcpy(c->socks->token, b + 2, sizeof(c->socks->token));
	return 0;
}

static struct gx_link_conn_ops local_ops, socks_ops, named_ops;
static struct gx_link packet = {
	.name = "packet",
	.id = GX_LINK_PACKET,
	.port = GX_LINK_PORT_ANY,
	.score = 2,
	.ways = true,
	.cure = "",
	.ctx = &link_none_ctx_ops,
	.mem = &link_none_mem_ops,
	.conn = &link_none_conn_ops,
};
static const struct gx_link local = {
	.name = "local",
	.id = GX_LINK_LOCAL,
	.port = GX_LINK_PORT_SHM,
	.score = 3,
	.how = "memory mapped",
	.cure = "",
	.ctx = &link_none_ctx_ops,
	.mem = &link_none_mem_ops,
	.conn = &local_ops,
};
static const struct gx_link tcp = {
	.name = "tcp",
	.id = GX_LINK_TCP,
	.port = GX_LINK_PORT_NONE,
	.score = 1,
	.quantum_b = 4096,
	.how = "slow",
	.cure = "install the same gx",
	.ctx = &link_none_ctx_ops,
	.mem = &link_none_mem_ops,
	.conn = &socks_ops,
};
static const struct gx_link verbs = {
	.name = "verbs",
	.id = GX_LINK_VERBS,
	.port = GX_LINK_PORT_ANY,
	.proves = true,
	.cure = "set it there",
	.ctx = &link_none_ctx_ops,
	.mem = &link_none_mem_ops,
	.conn = &named_ops,
};

void fake_seals(bool seals)
{
	packet.seals = seals;
}

void fake_reset(void)
{
	fake_fit = "switched off";
	fake_quiet = true;
	fake_proof = 0;
	fake_asked = fake_taken = 0;
	fake_seals(false);
}

const struct gx_link *const gx_links[GX_LINKS] = {
	[GX_LINK_PACKET] = &packet,
	[GX_LINK_LOCAL] = &local,
	[GX_LINK_TCP] = &tcp,
	[GX_LINK_VERBS] = &verbs,
};

__attribute__((constructor)) static void links_fill(void)
{
	local_ops = socks_ops = named_ops = link_none_conn_ops;
	local_ops.fits = local_fits;
	socks_ops.open = socks_open;
	socks_ops.say = socks_say;
	socks_ops.hear = socks_hear;
	socks_ops.close = gx_socks_close;
	named_ops.prove = prove;
	named_ops.take = take;
}
