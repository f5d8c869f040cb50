/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The smallest links that the control room can be tested with: one over a port (packet), one that
 * shares memory (local), one with data sockets (tcp), one that is taken only by name and has a way to
 * prove (verbs). None moves a byte: ctl_rig.c fakes their lanes. If a change of the control room asks
 * more of this file than a slot, the room has learned the name of a link.
 */
#include "control/fake_link.h"
#include "core/opts.h"
#include "core/socks.h"

#include <errno.h>
#include <string.h>

const char *fake_fit;
bool fake_quiet;
_Atomic int fake_proof;
_Atomic unsigned fake_asked, fake_taken;
bool fake_tries;
_Atomic int fake_trial[2];
_Atomic unsigned fake_tried;

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

static bool tries(const struct gx_conn *c)
{
	return fake_tries;
}

static int trial(struct gx_conn *c, bool peer_up,
		 void (*say)(struct gx_conn *c, const uint8_t *b, uint32_t len))
{
	int ret = fake_trial[c->server];

	fake_tried += !c->server;
	return ret < 0 ? gx_fail(ret, "nothing comes to port 7") : ret;
}

static int take(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	fake_taken += len;
	return b[0] == 'x' ? -EPROTO : 0;
}

/* ---- data sockets ---- */

static int socks_open(struct gx_conn *c, const struct gx_link_want *want)
{
	unsigned n = want->blob ? want->blob[1] : GX_MAX(want->asked->tcp.sockets, 1u);

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

static const struct gx_link_conn_ops packet = {.tries = tries, .trial = trial, .take = take};
static const struct gx_link_conn_ops local = {.fits = local_fits};
static const struct gx_link_conn_ops socks = {
	.open = socks_open, .say = socks_say, .hear = socks_hear, .close = gx_socks_close};
static const struct gx_link_conn_ops named = {.prove = prove, .take = take};
static const struct gx_link links[GX_LINKS] = {
	{"packet", GX_LINK_PACKET, GX_LINK_PORT_ANY, 2, .many_ports = true, .cure = "",
	 .conn = &packet},
	{"local", GX_LINK_LOCAL, GX_LINK_PORT_SHM, 3, .how = "memory mapped", .cure = "",
	 .conn = &local},
	{"tcp", GX_LINK_TCP, .score = 1, .score_far = 4, .quantum_b = 4096, .how = "slow",
	 .cure = "install the same gx", .conn = &socks},
	{"verbs", GX_LINK_VERBS, GX_LINK_PORT_ANY, .proves = true, .cure = "set it there",
	 .conn = &named},
};
static struct gx_link_full full[GX_LINKS];
const struct gx_link *const gx_links[GX_LINKS] = {&full[0].link, &full[1].link, &full[2].link,
						  &full[3].link};

void fake_seals(bool seals)
{
	full[GX_LINK_PACKET].link.seals = seals;
}

__attribute__((constructor)) void fake_reset(void)
{
	fake_fit = "switched off";
	fake_quiet = true;
	fake_proof = 0;
	fake_asked = fake_taken = fake_tried = 0;
	fake_tries = false;
	fake_trial[0] = fake_trial[1] = 1;
	for (unsigned l = 0; l < GX_LINKS; l++)
		gx_link_fill(&full[l], &links[l]);
}
