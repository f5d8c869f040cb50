// SPDX-License-Identifier: Apache-2.0
/*
 * What the ends of a lane or socket say to each other about exchanges. On the control thread.
 */
#include "auth/auth_mix.h"
#include "core/le.h"

#include <errno.h>
#include <string.h>

uint64_t auth_mix_gap_ns =
	1000000000; /* X25519 costs 100 us: the peer may ask for no more than this */

/* u8 what, 3 zeros, u32 lane, u32 number, the half */
static void word_say(const struct auth_tick *t, uint8_t what, uint32_t nr,
		     const uint8_t half[AUTH_HALF_B])
{
	uint8_t b[AUTH_WORD_B] = {what};

	le32_put(b + 4, t->lane);
	le32_put(b + 8, nr);
	memcpy(b + 12, half, AUTH_HALF_B);
	t->say(t->c, b, sizeof(b));
}

int auth_word_get(const uint8_t *b, uint32_t len, struct auth_word *w)
{
	if (len != AUTH_WORD_B || b[0] < AUTH_ASK || b[0] > AUTH_ANSWER || b[1] | b[2] | b[3])
		return -EPROTO;
	w->what = b[0];
	w->lane = le32_get(b + 4);
	w->nr = le32_get(b + 8);
	memcpy(w->half, b + 12, AUTH_HALF_B);
	return 0;
}

/* The sender asks when the next key that it makes is to have the exchange in it: two phases before it
 * needs that key. */
static int tx_tick(struct auth_ring *r, const struct auth_tick *t)
{
	uint64_t limit_ns = GX_MAX(AUTH_PHASE_NS, t->c->agreed.peer_timeout_ns);
	struct auth_mix *m = &r->mix;
	uint8_t pub[AUTH_HALF_B];

	if (m->asked)
		return t->now_ns - m->since_ns < limit_ns ? 0 : -EKEYEXPIRED;
	if (m->met || !auth_ring_waits(r) || auth_half_new(m->secret.b, pub))
		return 0;
	m->asked = true;
	m->since_ns = t->now_ns;
	word_say(t, AUTH_ASK, m->nr + 1, pub);
	return 0;
}

static int in_tick(struct auth_ring *r, const struct auth_tick *t)
{
	struct auth_mix *m = &r->mix;
	uint32_t nr = m->nr + 1;
	uint8_t pub[AUTH_HALF_B];
	int ret;

	if (!m->asked || (m->since_ns && t->now_ns - m->since_ns < auth_mix_gap_ns) ||
	    auth_half_new(m->secret.b, pub))
		return 0;
	ret = auth_half_meet(m->secret.b, m->peer);
	if (ret)
		return ret == -ENOMEM ? 0 : ret; /* another half at the next tick */
	m->asked = false;
	m->met = true;
	m->since_ns = t->now_ns;
	auth_ring_make(r); /* the peer sends with that key when it has the answer */
	word_say(t, AUTH_ANSWER, nr, pub);
	return 0;
}

int auth_rings_tick(struct auth_ring *tx, struct auth_ring *rx, const struct auth_tick *t)
{
	int ret = 0;

	auth_ring_make(tx); /* without memory at the next tick */
	auth_ring_make(rx);
	if (t->say)
		ret = in_tick(rx, t);
	if (!ret && t->say)
		ret = tx_tick(tx, t);
	return ret;
}

int auth_rings_take(struct auth_ring *tx, struct auth_ring *rx, const struct auth_word *w)
{
	bool ask = w->what == AUTH_ASK;
	struct auth_mix *m = ask ? &rx->mix : &tx->mix;
	int ret;

	if (w->nr != m->nr + 1 || m->met || m->asked == ask)
		return -EPROTO;
	m->asked = ask;
	if (ask) {
		memcpy(m->peer, w->half, AUTH_HALF_B);
		return 0;
	}
	ret = auth_half_meet(m->secret.b, w->half);
	m->met = !ret;
	auth_ring_make(tx);
	return ret;
}
