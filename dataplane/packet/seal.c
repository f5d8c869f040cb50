// SPDX-License-Identifier: Apache-2.0
/*
 * Packets that are sealed; seal.h has the contract. Runs on the polling core, but for what makes and
 * frees keys, on the control thread.
 *
 * Two ends go from phase to phase without a word about it. An end sends in a phase only when it has
 * the keys to receive the next one. So whoever has received a packet of a phase may begin the next,
 * and no packet comes in a phase for which its receiver has no keys yet. An end that has heard nothing
 * in phase n + 1, because all of it was lost, may hear phase n + 2 next: it began n + 1 itself, which
 * allowed that.
 */
#include "packet/seal.h"
#include "auth/auth.h"
#include "core/le.h"
#include "packet/pkt.h"
#include "packet/wake.h"

#include <errno.h>
#include <string.h>

#define SEAL_OLD_PTOS 3 /* for which the last phase's packets are taken */
#define SEAL_AAD_B    GX_WIRE_TAG_AT
#define SEAL_MS_PKTS  (1u << 17) /* more than go out between two ticks */
#define SEAL_CRC_B    4 /* by MAC: the CRC of the payload is authenticated after the header */

_Static_assert(GX_WIRE_TAG_AT + GX_GCM_TAG_B == GX_WIRE_HDR_B, "the tag ends the header");
_Static_assert(GX_WIRE_PHASE_AT < SEAL_AAD_B, "nobody changes the phase");

uint64_t seal_phase_pkts = AUTH_PHASE_NRS;

/* ---- keys, on the control thread ---- */

int seal_make(struct seal *s)
{
	int ret = auth_ring_make(&s->tx);

	return ret ? ret : auth_ring_make(&s->rx);
}

int seal_link_open(struct link_pkt *l)
{
	size_t len = sizeof(*l->seal) + (size_t)GX_BURST_MAX * l->port->caps.payload_max;

	if (l->seal)
		return 0;
	l->seal = gx_pages_get(len);
	if (!l->seal)
		return -ENOMEM;
	l->seal->len = len;
	return 0;
}

void seal_link_close(struct seal_link *l)
{
	if (l)
		gx_pages_put(l, l->len);
}

static int seal_secrets(const struct pkt_ep *e, struct seal *s)
{
	const struct gx_conn *c = e->ep.conn;
	struct auth_dir dir = {.kind = AUTH_PACKET, .dir = c->server, .lane = e->ep.lane};
	int ret = c->secret(c, &dir, &s->tx.secret);

	dir.dir = !c->server;
	return ret ? ret : c->secret(c, &dir, &s->rx.secret);
}

int seal_open(struct pkt_ep *e, uint64_t rx_psn)
{
	struct seal *s;
	int ret;

	if (!e->ep.conn->secret || e->ep.conn->link->id != GX_LINK_PACKET)
		return gx_fail(-EOPNOTSUPP, "integrity mac and gcm need link packet, and a key at "
					    "both ends");
	s = gx_pages_get(sizeof(*s));
	if (!s)
		return -ENOMEM;
	e->seal = s;
	s->tx.phase = s->tx_slot;
	s->tx.nr = SEAL_TX_PHASES;
	s->rx.phase = s->rx_slot;
	s->rx.nr = SEAL_RX_PHASES;
	auth_mem_lock(s, sizeof(*s), sizeof(*s));
	s->window[1].next = rx_psn;
	ret = seal_secrets(e, s);
	return ret ? ret : seal_make(s);
}

void seal_close(struct seal *s)
{
	if (!s)
		return;
	auth_ring_wipe(&s->tx);
	auth_ring_wipe(&s->rx);
	explicit_bzero(s, sizeof(*s));
	gx_pages_put(s, sizeof(*s));
}

/* ---- out ---- */

/* The CPU reads the payload of one packet of a message, which the payload of the next one follows. */
static void tx_prefetch(const struct gx_tx *tx, enum gx_half half)
{
	if (half == GX_HALF_DATA)
		gx_prefetch_read((const char *)tx->data + tx->len, tx->len);
}

/* Is its payload in clear? Only that of DATA is a user's bytes alone. All other payload says what is
 * to be done, and a CRC is linear: who is on the path could say something else with the same CRC. So
 * mode MAC seals it as mode GCM does. */
static bool seal_is_mac(const struct pkt_ep *e, uint8_t type)
{
	return e->integrity == GX_INTEGRITY_MAC && type == GX_PKT_DATA;
}

static void mac_put(const struct gx_gcm_key *key, const uint8_t *nonce, uint8_t *hdr, uint32_t crc)
{
	uint8_t aad[SEAL_AAD_B + SEAL_CRC_B];

	memcpy(aad, hdr, SEAL_AAD_B);
	le32_put(aad + SEAL_AAD_B, crc);
	gx_gcm_seal(key, nonce, (struct gx_gcm_aad){aad, sizeof(aad)}, NULL, NULL, 0,
		    hdr + GX_WIRE_TAG_AT);
}

static void gcm_put(const struct gx_gcm_key *key, const uint8_t *nonce, uint8_t *hdr, void *dst,
		    const void *src, uint32_t len)
{
	gx_gcm_seal(key, nonce, (struct gx_gcm_aad){hdr, SEAL_AAD_B}, dst, src, len,
		    hdr + GX_WIRE_TAG_AT);
}

static void copy_crc(const struct gx_tx_guard *g, void *dst, const void *src, uint32_t len)
{
	const struct seal_how *how = GX_CONTAINER_OF(g, struct seal_how, guard);

	gx_wire_hdr_crc(how->hdr, gx_copy_slot_crc(dst, src, len), how->salt);
}

static void copy_mac(const struct gx_tx_guard *g, void *dst, const void *src, uint32_t len)
{
	const struct seal_how *how = GX_CONTAINER_OF(g, struct seal_how, guard);

	mac_put(how->key, how->nonce, how->hdr, gx_copy_slot_crc(dst, src, len));
}

static void copy_gcm(const struct gx_tx_guard *g, void *dst, const void *src, uint32_t len)
{
	const struct seal_how *how = GX_CONTAINER_OF(g, struct seal_how, guard);

	gx_prefetch_read((const char *)src + len, len);
	gcm_put(how->key, how->nonce, how->hdr, dst, src, len);
}

/* The port copies the payload anyway, so it guards it on the way. */
static struct seal_how *by_port(struct link_pkt *link, struct gx_tx *tx)
{
	struct seal_how *how = &link->seal->how[tx - link->tx];

	how->hdr = tx->hdr;
	tx->guard = &how->guard;
	link->guarded = true;
	return how;
}

void seal_crc(struct pkt_ep *e, struct gx_tx *tx, enum gx_half half)
{
	struct seal_how *how;

	if (half == GX_HALF_DATA && e->guards) {
		how = by_port(e->link, tx);
		how->guard.copy = copy_crc;
		how->salt = e->salt_peer;
		return;
	}
	tx_prefetch(tx, half);
	gx_wire_hdr_crc(tx->hdr, gx_crc32c(0, tx->data, tx->len), e->salt_peer);
}

void seal_packet(struct pkt_ep *e, struct gx_tx *tx, uint8_t type, uint64_t psn, enum gx_half half)
{
	struct seal_link *l = e->link->seal;
	struct seal *s = e->seal;
	const struct auth_phase *p = &s->tx_slot[s->tx_phase % SEAL_TX_PHASES];
	bool mac = seal_is_mac(e, type);
	uint8_t nonce[GX_GCM_NONCE_B];
	struct seal_how *how;
	uint8_t *to = l->ctl;

	tx->hdr[GX_WIRE_PHASE_AT] = (uint8_t)s->tx_phase;
	s->tx_pkts++;
	auth_nonce(p, type, psn, nonce); /* ACKs have a type and numbers of their own */
	if (half == GX_HALF_DATA && e->guards) {
		how = by_port(e->link, tx);
		how->guard.copy = mac ? copy_mac : copy_gcm;
		how->key = &p->key;
		memcpy(how->nonce, nonce, sizeof(how->nonce));
		return;
	}
	tx_prefetch(tx, half);
	if (mac) {
		mac_put(&p->key, nonce, tx->hdr, gx_crc32c(0, tx->data, tx->len));
		return;
	}
	if (half == GX_HALF_DATA) {
		to = l->slots + l->used_b;
		l->used_b += tx->len;
		e->link->guarded = true;
	}
	gcm_put(&p->key, nonce, tx->hdr, to, tx->data, tx->len);
	tx->data = to;
}

void seal_sent(struct link_pkt *l, unsigned n)
{
	l->guarded = false;
	if (l->seal)
		l->seal->used_b = 0;
	for (unsigned i = 0; i < n; i++)
		l->tx[i].guard = NULL;
}

/* ---- in ---- */

/* How far is @psn, of which the header has the low half, before the next one that is expected? */
static int64_t window_ahead(const struct seal_window *w, uint32_t psn)
{
	return (int32_t)(psn - (uint32_t)w->next);
}

static bool window_is_new(const struct seal_window *w, uint64_t psn, int64_t ahead)
{
	if (ahead >= 0)
		return true;
	if (-ahead > SEAL_WINDOW || (uint64_t)-ahead > w->next)
		return false;
	return !(w->bits[psn % SEAL_WINDOW / 64] >> psn % 64 & 1);
}

static void window_take(struct seal_window *w, uint64_t psn, int64_t ahead)
{
	if (ahead >= SEAL_WINDOW)
		memset(w->bits, 0, sizeof(w->bits));
	else
		for (uint64_t i = w->next; (int64_t)(psn - i) > 0; i++)
			w->bits[i % SEAL_WINDOW / 64] &= ~(1ull << i % 64);
	if (ahead >= 0)
		w->next = psn + 1;
	w->bits[psn % SEAL_WINDOW / 64] |= 1ull << psn % 64;
}

/* The phase of a packet whose header has the low bits of its number: the one in use, one of the next
 * two, or, for a while, the last. False: it has none. */
static bool phase_of(const struct seal *s, uint8_t bits, uint32_t *phase)
{
	uint32_t over = atomic_load_explicit(&s->rx.over, memory_order_relaxed);

	*phase = s->rx_phase + (uint32_t)(int8_t)(bits - (uint8_t)s->rx_phase);
	return *phase - over <= s->rx_phase + 2 - over;
}

/* The peer has begun another phase. */
static void seal_rx_phase(struct pkt_ep *e, struct seal *s, uint32_t phase)
{
	auth_ring_leave(&s->rx, phase - 1);
	s->rx_phase = phase;
	s->old_until_ns = e->now_ns + SEAL_OLD_PTOS * flow_pto_ns(e->flow);
}

static bool rx_open_gcm(const struct auth_phase *p, const uint8_t *nonce, const struct gx_rx *rx,
			void *dst)
{
	return gx_gcm_open(&p->key, nonce, (struct gx_gcm_aad){rx->hdr, SEAL_AAD_B}, dst, rx->data,
			   rx->len, rx->hdr + GX_WIRE_TAG_AT);
}

static bool rx_open_mac(const struct auth_phase *p, const uint8_t *nonce, const struct gx_rx *rx)
{
	uint8_t aad[SEAL_AAD_B + SEAL_CRC_B];

	memcpy(aad, rx->hdr, SEAL_AAD_B);
	le32_put(aad + SEAL_AAD_B, gx_crc32c(0, rx->data, rx->len));
	return gx_gcm_open(&p->key, nonce, (struct gx_gcm_aad){aad, sizeof(aad)}, NULL, NULL, 0,
			   rx->hdr + GX_WIRE_TAG_AT);
}

/* Where no packet is lost, none is sent again, and only the peer can have sent this one. The core's
 * count of all its endpoints has not less than this one's. */
static bool seal_forged(struct pkt_ep *e)
{
	gx_stat_add(pkt_stats(e->link), GX_STAT_RX_FORGED, 1);
	if (e->lossless || gx_stat_get(pkt_stats(e->link), GX_STAT_RX_FORGED) >= AUTH_END_FORGED)
		rx_fault(e, -EBADMSG);
	return false;
}

bool seal_take(struct pkt_ep *e, const struct gx_rx *rx, const struct gx_wire_hdr *h, void *dst)
{
	struct seal *s = e->seal;
	struct seal_window *w = &s->window[h->type != GX_PKT_ACK];
	int64_t ahead = window_ahead(w, h->psn);
	uint64_t psn = w->next + (uint64_t)ahead;
	uint8_t nonce[GX_GCM_NONCE_B];
	const struct auth_phase *p;
	uint32_t phase;

	if (gx_unlikely(!window_is_new(w, psn, ahead))) {
		gx_stat_add(pkt_stats(e->link), GX_STAT_RX_DUP, 1);
		return false;
	}
	if (gx_unlikely(!phase_of(s, rx->hdr[GX_WIRE_PHASE_AT], &phase) ||
			!auth_ring_has(&s->rx, phase)))
		return seal_forged(e);
	p = &s->rx_slot[phase % SEAL_RX_PHASES];
	auth_nonce(p, h->type, psn, nonce);
	if (gx_unlikely(!(seal_is_mac(e, h->type) ? rx_open_mac(p, nonce, rx)
						  : rx_open_gcm(p, nonce, rx, dst))))
		return seal_forged(e);
	window_take(w, psn, ahead);
	if (gx_unlikely((int32_t)(phase - s->rx_phase) > 0))
		seal_rx_phase(e, s, phase);
	ep_touch(e);
	return true;
}

/* ---- phases ---- */

/* Is it time for another phase to send in? */
static bool phase_is_due(const struct seal *s, uint64_t now_ns)
{
	return s->tx_pkts >= seal_phase_pkts || s->rx_phase > s->tx_phase ||
	       (s->tx_pkts && now_ns - s->tx_since_ns >= AUTH_PHASE_NS);
}

/* Has the peer shown that it has the keys of the next phase, and have we those to follow it? */
static bool phase_may_end(const struct seal *s)
{
	return s->rx_phase >= s->tx_phase && auth_ring_has(&s->tx, s->tx_phase + 1) &&
	       auth_ring_has(&s->rx, s->tx_phase + 2);
}

void seal_tick(struct pkt_ep *e)
{
	struct seal *s = e->seal;

	if (atomic_load_explicit(&s->rx.over, memory_order_relaxed) != s->rx_phase &&
	    e->now_ns >= s->old_until_ns)
		auth_ring_leave(&s->rx, s->rx_phase);
	if (!s->tx_since_ns)
		s->tx_since_ns = e->now_ns;
	if (!phase_is_due(s, e->now_ns))
		return;
	if (!phase_may_end(s)) {
		if (s->tx_pkts >= AUTH_END_NRS - SEAL_MS_PKTS)
			rx_fault(e, -EKEYEXPIRED);
		return;
	}
	auth_ring_leave(&s->tx, ++s->tx_phase);
	s->tx_pkts = 0;
	s->tx_since_ns = e->now_ns;
}
