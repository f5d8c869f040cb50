/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealed packets over the simulated network: the record against a second implementation, forged
 * packets and replays into an endpoint that must not change, and phases that follow each other under
 * load. A tap between link and port keeps the packets that go out, drops some, and brings others in.
 */
#include "sim/sim_rig.h"

#include "core/le.h"
#include "kit/common_fork.h"
#include "kit/common_seeds.h"
#include "local/local.h"
#include "packet/seal.h"
#include "packet/in.h"
#include "auth/auth_mix.h"

#include "gx/auth.h"
#include "gx_internal/link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEM_B	  (8u << 20)
#define KEPT	  4096 /* packets that a tap keeps */
#define PAYLOAD_B 4096
#define IN_BUF	  (1ull << 63) /* in handles of buffers that the tap brings in */

static uint8_t src[MEM_B];

/* ---- a tap ---- */

struct kept {
	enum gx_half half;
	struct gx_rx rx;
	uint8_t data[PAYLOAD_B];
};

/* owner: the test's thread */
static struct tap {
	struct gx_port_ops ops;
	const struct gx_port_ops *own;
	struct gx_port_queue *q;
	bool drops[2];	  /* by half: what goes out of it is lost */
	struct kept *out; /* [KEPT], that went out */
	unsigned nr_out;
	const struct kept *in; /* comes in next */
	unsigned nr_in, at_in;
	char *slots; /* [GX_BURST_MAX] where it lies */
} taps[2];

static struct tap *tap_of(const struct gx_port_queue *q)
{
	return q == taps[0].q ? &taps[0] : &taps[1];
}

static unsigned tap_tx(struct gx_port_queue *q, enum gx_half half, const struct gx_tx pkts[],
		       unsigned n)
{
	struct tap *t = tap_of(q);

	for (unsigned i = 0; i < n && t->nr_out < KEPT; i++) {
		struct kept *k = &t->out[t->nr_out++];

		k->half = half;
		k->rx = (struct gx_rx){
			.len = pkts[i].len, .hlen = pkts[i].hlen, .peer = GX_PEER_ANY};
		memcpy(k->rx.hdr, pkts[i].hdr, pkts[i].hlen);
		memcpy(k->data, pkts[i].data, pkts[i].len);
	}
	return t->drops[half] ? n : t->own->tx_burst(q, half, pkts, n);
}

static unsigned tap_rx(struct gx_port_queue *q, enum gx_half half, struct gx_rx pkts[], unsigned n)
{
	struct tap *t = tap_of(q);
	unsigned got = 0;

	for (; got < n && t->at_in < t->nr_in && t->in[t->at_in].half == half; t->at_in++) {
		const struct kept *k = &t->in[t->at_in];

		pkts[got] = k->rx;
		pkts[got].buf = IN_BUF | got;
		pkts[got].data = memcpy(t->slots + (size_t)got * PAYLOAD_B, k->data, k->rx.len);
		got++;
	}
	return got ? got : t->own->rx_burst(q, half, pkts, n);
}

static void tap_release(struct gx_port_queue *q, const uint64_t bufs[], unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (!(bufs[i] & IN_BUF))
			tap_of(q)->own->rx_release(q, &bufs[i], 1);
}

static void tap_open(struct rig *r, int side)
{
	struct tap *t = &taps[side];

	*t = (struct tap){.q = rig_ep(r, side, 0)->link->q};
	t->own = t->q->ops;
	t->ops = *t->own;
	t->ops.tx_burst = tap_tx;
	t->ops.rx_burst = tap_rx;
	t->ops.rx_release = tap_release;
	t->out = calloc(KEPT, sizeof(*t->out));
	t->slots = calloc(GX_BURST_MAX, PAYLOAD_B);
	t->q->ops = &t->ops;
}

static void taps_close(void)
{
	for (int side = 0; side < 2; side++) {
		taps[side].q->ops = taps[side].own;
		free(taps[side].out);
		free(taps[side].slots);
	}
}

/* These come in at @side, one behind the other, while time stands. */
static void bring_in(struct rig *r, int side, const struct kept *k, unsigned n)
{
	struct tap *t = &taps[side];

	t->in = k;
	t->nr_in = n;
	t->at_in = 0;
	while (t->at_in < n)
		gx_core_turn(r->core[rig_node(r, side, 0)], r->now_ns);
	t->nr_in = t->at_in = 0;
}

/* ---- an endpoint that must not change ---- */

struct still {
	struct pkt_ep *e, *copy;
	struct seal seal;
	uint32_t flow[5];
};

static void flow_facts(const struct pkt_ep *e, uint32_t f[5])
{
	f[0] = flow_room(e->flow);
	f[1] = flow_credit(e->flow);
	f[2] = flow_granted(e->flow);
	f[3] = flow_used(e->flow);
	f[4] = flow_ack_due(e->flow, e->now_ns);
}

static void still_begin(struct still *s, struct pkt_ep *e)
{
	for (uint32_t i = 0; i < GX_WIRE_MIDS; i++)
		in_at(e, i); /* has memory now */
	s->e = e;
	s->copy = malloc(sizeof(*e));
	memcpy(s->copy, e, sizeof(*e));
	s->seal = *e->seal;
	flow_facts(e, s->flow);
}

static void still_end(struct still *s)
{
	uint32_t f[5];

	flow_facts(s->e, f);
	s->copy->now_ns = s->e->now_ns;
	assert_memory_equal(s->copy, s->e, sizeof(*s->e));
	assert_memory_equal(&s->seal, s->e->seal, sizeof(s->seal));
	assert_memory_equal(f, s->flow, sizeof(f));
	free(s->copy);
}

/* ---- a rig ---- */

/* The test makes keys, in virtual time, in place of the control thread. */
static struct gx_link_full link_by_hand;
static struct gx_link_conn_ops conn_by_hand;

static struct rig *seal_open_rig(const struct rig_cfg *cfg)
{
	struct gx_link own = gx_link_packet;
	struct rig_cfg full = *cfg;
	struct rig *r;

	rig_fill(src, MEM_B, 1);
	full.mem_b = MEM_B;
	r = rig_open(&full);
	conn_by_hand.close = gx_link_packet.conn->close;
	own.conn = &conn_by_hand;
	gx_link_fill(&link_by_hand, &own);
	for (int side = 0; side < 2; side++) {
		for (unsigned i = 0; i < r->nr_conns; i++)
			r->conn[side][i]->link = &link_by_hand.link;
		tap_open(r, side);
		assert_int_equal(!rig_ep(r, side, 0)->seal, cfg->integrity == GX_INTEGRITY_CRC);
	}
	return r;
}

static void seal_close_rig(struct rig *r)
{
	for (int side = 0; side < 2; side++)
		for (unsigned i = 0; i < r->nr_conns; i++)
			r->conn[side][i]->link = gx_links[GX_LINK_PACKET];
	taps_close();
	rig_done(r);
}

static void put_on(struct rig *r, unsigned conn, uint64_t len)
{
	rig_post_on(r, 0, conn,
		    &(struct gx_op){
			    .kind = GX_OP_PUT, .len = len, .addr = src, .token = r->peer[0].token});
}

static void put_whole(struct rig *r, uint64_t len)
{
	unsigned n = r->nr_last[0];

	put_on(r, 0, len);
	rig_comps(r, 0, n + 1, SECOND);
	assert_int_equal(r->last[0][n].status, 0);
	assert_memory_equal(rig_mem(r, 1), src, len);
}

static uint64_t both(struct rig *r, const char *name)
{
	return rig_stat(r, 0, name) + rig_stat(r, 1, name);
}

/* What the link of one end says comes to that of the other, at once. */
static struct rig *word_rig;
static bool word_lost;

static void word_say(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	for (int side = 0; side < 2 && !word_lost; side++)
		for (unsigned i = 0; i < word_rig->nr_conns; i++)
			if (word_rig->conn[side][i] == c)
				assert_int_equal(
					gx_link_packet.conn->take(word_rig->conn[!side][i], b, len),
					0);
}

/* A tick of the control threads, and another for the answers. */
static void keys_make(struct rig *r)
{
	word_rig = r;
	for (int side = 0; side < 4; side++)
		for (unsigned i = 0; i < r->nr_conns; i++)
			assert_int_equal(gx_link_packet.conn->tick(r->conn[side & 1][i], r->now_ns,
								   word_say),
					 0);
}

/* ---- the record ---- */

/* tests/auth/second.py answers */
static const struct answer {
	enum gx_integrity mode;
	uint32_t phase;
	uint8_t type;
	uint64_t number;
	uint32_t len;
	const char *hdr, *payload;
} answers[] = {
	{GX_INTEGRITY_MAC, 0, GX_PKT_DATA, 0x123456789abc, 37,
	 "4101250002001000bc9a78560104000000010000260081ae46df1a38dd8a762a8706fa244925",
	 "746865206279746573206f662061207061636b65742c203337206f66207468656d2c20736f"},
	{GX_INTEGRITY_MAC, 2, GX_PKT_ACK, 7, 0,
	 "43010000020010000700000001040000000100002602db06c7b2eab5f4504ed25d905a7efab8", ""},
	{GX_INTEGRITY_MAC, 1, GX_PKT_CTL, 0x200000005, 64,
	 "420140000200100005000000010400000001000026017e800ad772baf3fa85da4628a3ebda91",
	 "d15c6ac467da33daa4606a225f292637ec2ddfcc8aa332295325c40f5ed7f0ae"
	 "04c68dcc11f9c09f8053e8c1dee5a6d1753b3b97bf176d9e5e787237f9064be2"},
	{GX_INTEGRITY_GCM, 0, GX_PKT_DATA, 0x123456789abc, 37,
	 "4101250002001000bc9a785601040000000100002600d4a6b2cf33f44e57d4deae903ff021cd",
	 "1a8139b74aa5007f2e4f2b1d3ddbe611dff537b39c76c0687a202eff0e0e14eaa815c35b8d"},
	{GX_INTEGRITY_GCM, 2, GX_PKT_ACK, 7, 0,
	 "43010000020010000700000001040000000100002602db06c7b2eab5f4504ed25d905a7efab8", ""},
	{GX_INTEGRITY_GCM, 1, GX_PKT_CTL, 0x200000005, 64,
	 "420140000200100005000000010400000001000026017e800ad772baf3fa85da4628a3ebda91",
	 "d15c6ac467da33daa4606a225f292637ec2ddfcc8aa332295325c40f5ed7f0ae"
	 "04c68dcc11f9c09f8053e8c1dee5a6d1753b3b97bf176d9e5e787237f9064be2"},
};

static const char *hex_of(const uint8_t *b, size_t n)
{
	static char text[2 * GX_CTL_PAYLOAD_MAX + 1];

	text[0] = 0;
	for (size_t i = 0; i < n; i++)
		snprintf(text + 2 * i, 3, "%02x", b[i]);
	return text;
}

/* A packet of side 1, as it would go out in @phase. */
static void packet_make(struct pkt_ep *e, const struct answer *a, const void *payload,
			struct gx_tx *tx)
{
	struct gx_wire_hdr h = {.type = a->type,
				.flags = GX_PKT_EOM,
				.plen = (uint16_t)a->len,
				.cid = 0x00100002,
				.psn = (uint32_t)a->number,
				.mid = 1025,
				.moff = 4096};

	e->integrity = a->mode;
	e->seal->tx_phase = a->phase;
	*tx = (struct gx_tx){.data = payload, .len = a->len, .hlen = GX_WIRE_HDR_B};
	gx_wire_hdr_put(tx->hdr, &h, a->mode, 0);
	seal_packet(e, tx, a->type, a->number, GX_HALF_CTL);
}

/* Secrets that the test knows, in place of those out of TLS. Both ends have the same. */
static void secrets_known(struct auth_ring *r, uint8_t dir)
{
	memset(r->secret.b, 0x5a, sizeof(r->secret.b));
	r->secret.b[0] = AUTH_PACKET;
	r->secret.b[1] = dir;
	r->secret.b[2] = 0; /* lane */
	atomic_store(&r->made, 0);
	assert_int_equal(auth_ring_make(r), 0);
}

static void record__known_answers(void **state)
{
	struct rig *r = seal_open_rig(&(struct rig_cfg){.integrity = 3});
	struct pkt_ep *e = rig_ep(r, 1, 0);
	uint8_t count[64];
	struct gx_tx tx;

	for (unsigned i = 0; i < sizeof(count); i++)
		count[i] = (uint8_t)i;
	secrets_known(&e->seal->tx, 1);
	for (uint32_t phase = 0; phase < 3; phase++) {
		atomic_store(&e->seal->tx.over, phase);
		assert_int_equal(seal_make(e->seal), 0);
		for (unsigned i = 0; i < GX_ARRAY_SIZE(answers); i++) {
			const char *text = "the bytes of a packet, 37 of them, so";

			if (answers[i].phase != phase)
				continue;
			packet_make(e, &answers[i],
				    answers[i].type == GX_PKT_DATA ? (const void *)text : count,
				    &tx);
			assert_string_equal(hex_of(tx.hdr, tx.hlen), answers[i].hdr);
			assert_string_equal(hex_of(tx.data, tx.len), answers[i].payload);
		}
	}
	taps_close();
	rig_close(r);
}

/* A port that copies payload into a slot: it sums or encrypts on the way, and the header is finished
 * then. */
static void port_copies(struct pkt_ep *e, const struct answer *a, const void *payload)
{
	struct link_pkt *l = e->link;
	uint8_t slot[64];

	assert_null(l->tx[1].guard);
	packet_make(e, a, payload, &l->tx[1]);
	memset(l->tx[1].hdr + GX_WIRE_PHASE_AT, 0, GX_WIRE_HDR_B - GX_WIRE_PHASE_AT);
	l->tx[1].data = payload;
	e->guards = true;
	seal_packet(e, &l->tx[1], a->type, a->number, GX_HALF_DATA);
	e->guards = false;
	assert_non_null(l->tx[1].guard);
	assert_ptr_equal(l->tx[1].data, payload);
	gx_tx_copy(slot, &l->tx[1]);
	assert_string_equal(hex_of(l->tx[1].hdr, l->tx[1].hlen), a->hdr);
	assert_string_equal(hex_of(slot, a->len), a->payload);
	assert_true(l->guarded);
	seal_sent(l, 2);
	assert_false(l->guarded);
	assert_null(l->tx[1].guard);
}

static void record__by_a_port_that_copies(void **state)
{
	struct rig *r = seal_open_rig(&(struct rig_cfg){.integrity = 3});
	struct pkt_ep *e = rig_ep(r, 1, 0);

	secrets_known(&e->seal->tx, 1);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(answers); i++)
		if (answers[i].type == GX_PKT_DATA)
			port_copies(e, &answers[i], "the bytes of a packet, 37 of them, so");
	taps_close();
	rig_close(r);
}

/* The same in mode CRC, against a header that is put at once. */
static void record__crc_by_a_port_that_copies(void **state)
{
	struct rig *r = seal_open_rig(&(struct rig_cfg){.integrity = 1});
	struct pkt_ep *e = rig_ep(r, 1, 0);
	uint8_t want[GX_WIRE_HDR_B], slot[PAYLOAD_B];
	struct gx_wire_hdr h = {
		.type = GX_PKT_DATA, .plen = PAYLOAD_B, .cid = 7, .psn = 8, .mid = 9, .moff = 4096};
	struct gx_tx *tx = &e->link->tx[3];

	h.crc_payload = gx_crc32c(0, src, PAYLOAD_B);
	gx_wire_hdr_put(want, &h, GX_INTEGRITY_CRC, e->salt_peer);
	for (int by_port = 0; by_port < 2; by_port++) {
		gx_wire_hdr_put(tx->hdr, &h, GX_INTEGRITY_NONE, 0);
		tx->data = src;
		tx->len = PAYLOAD_B;
		e->guards = by_port;
		seal_crc(e, tx, GX_HALF_DATA);
		assert_int_equal(!!tx->guard, by_port);
		gx_tx_copy(slot, tx);
		assert_memory_equal(tx->hdr, want, GX_WIRE_HDR_B);
		assert_memory_equal(slot, src, PAYLOAD_B);
	}
	e->guards = false;
	seal_sent(e->link, 4);
	taps_close();
	rig_close(r);
}

/* Does side 0 take this packet of side 1? */
static bool taken(struct rig *r, const struct gx_tx *tx, uint8_t type, uint64_t number)
{
	static uint8_t out[GX_CTL_PAYLOAD_MAX], in[GX_CTL_PAYLOAD_MAX];
	struct gx_rx rx = {.data = in, .len = tx->len, .hlen = tx->hlen, .peer = GX_PEER_ANY};
	struct gx_wire_hdr h = {.type = type, .psn = (uint32_t)number};

	memcpy(rx.hdr, tx->hdr, tx->hlen);
	memcpy(in, tx->data, tx->len);
	return seal_take(rig_ep(r, 0, 0), &rx, &h, out);
}

/* Numbers around a wrap of the low half, far behind, and far ahead. */
static void window__numbers(void **state)
{
	static const uint64_t first = (7ull << 32) - 3;
	static const struct {
		uint64_t number;
		bool taken;
	} steps[] = {
		{first, true},
		{first, false},
		{first + 4, true}, /* the low half is small now */
		{first + 2, true},
		{first + 2, false},
		{first + 3, true},
		{first + 1, true},
		{first + 4 - SEAL_WINDOW, false},
		{first - 6 - SEAL_WINDOW, false}, /* nor one whose bit is not set */
		{first + 5 - SEAL_WINDOW, true},
		{first + 5 - SEAL_WINDOW, false},
		{first + 4 + (1u << 30), true},
		{first + 4, false},
		{first + 4 + (1u << 30) - 5, true},
		{first + 4 + (1u << 30) + 9, true},
		{first + 4 + (1u << 30) + 8 - (1ull << 32), false}, /* its low half is expected */
		{first + 4 + (1u << 30) + 8 + (1ull << 32), false},
		{first + 4 + (1u << 30) + 8, true},
	};
	struct rig *r = seal_open_rig(&(struct rig_cfg){.integrity = 3});
	struct gx_tx tx;

	rig_ep(r, 0, 0)->seal->window[1].next = first - 1;
	for (unsigned i = 0; i < GX_ARRAY_SIZE(steps); i++) {
		struct answer a = {
			GX_INTEGRITY_GCM, 0, GX_PKT_PROBE, steps[i].number, 16, NULL, NULL};

		packet_make(rig_ep(r, 1, 0), &a, src, &tx);
		if (taken(r, &tx, GX_PKT_PROBE, a.number) != steps[i].taken)
			fail_msg("step %u", i);
	}
	taps_close();
	rig_close(r);
}

/* The same number as another type, in the other number space, or in another direction. */
static void window__nonces_differ(void **state)
{
	struct rig *r = seal_open_rig(&(struct rig_cfg){.integrity = 3});
	struct answer a = {GX_INTEGRITY_GCM, 0, GX_PKT_CTL, 500, 64, NULL, NULL};
	struct pkt_ep *e = rig_ep(r, 1, 0);
	uint8_t zero[64] = {0}, seen[4][64];
	unsigned n = 0;
	struct gx_tx tx;

	for (int side = 0; side < 2; side++)
		for (unsigned k = 0; k < 2; k++) {
			a.type = k ? GX_PKT_ACK : GX_PKT_CTL;
			packet_make(rig_ep(r, side, 0), &a, zero, &tx);
			memcpy(seen[n++], tx.data, sizeof(zero));
			for (unsigned i = 0; i + 1 < n; i++)
				assert_memory_not_equal(seen[i], seen[n - 1], sizeof(zero));
		}
	a.type = GX_PKT_CTL;
	packet_make(e, &a, zero, &tx);
	rig_ep(r, 0, 0)->seal->window[1].next = 400;
	tx.hdr[0] = GX_WIRE_VERSION << 4 | GX_PKT_PROBE;
	assert_false(taken(r, &tx, GX_PKT_PROBE, 500));
	tx.hdr[0] = GX_WIRE_VERSION << 4 | GX_PKT_CTL;
	assert_true(taken(r, &tx, GX_PKT_CTL, 500));
	taps_close();
	rig_close(r);
}

/* ---- forged packets ---- */

/* A packet that nobody has sealed, made of one that never came. */
static void forge(struct rig *r, struct kept *to, const struct kept *from)
{
	uint64_t x = rig_random(r);
	unsigned bits = 8 * (from->rx.hlen + from->rx.len), bit = (unsigned)(x >> 8) % bits;

	*to = *from;
	switch (x % 8) {
	case 0: /* random bytes behind a header that is right */
		for (uint32_t i = GX_WIRE_TAG_AT; i < GX_WIRE_HDR_B; i++)
			to->rx.hdr[i] = (uint8_t)(rig_random(r));
		break;
	case 1: /* another number */
		to->rx.hdr[8] ^= (uint8_t)(1 + (x >> 8) % 255);
		break;
	case 2: /* another phase */
		to->rx.hdr[GX_WIRE_PHASE_AT] ^= (uint8_t)(1 + (x >> 8) % 255);
		break;
	case 3: /* another place */
		to->rx.hdr[17] ^= (uint8_t)(1 + (x >> 8) % 3);
		break;
	case 4: /* in clear */
		memset(to->rx.hdr + GX_WIRE_PHASE_AT, 0, GX_WIRE_HDR_B - GX_WIRE_PHASE_AT);
		memset(to->data, (int)(x >> 16), to->rx.len);
		break;
	default: /* one bit */
		if (bit < 8 * from->rx.hlen)
			to->rx.hdr[bit / 8] ^= (uint8_t)(1 << bit % 8);
		else
			to->data[bit / 8 - from->rx.hlen] ^= (uint8_t)(1 << bit % 8);
	}
}

static uint64_t refused(struct rig *r)
{
	return rig_stat(r, 1, "rx_forged") + rig_stat(r, 1, "rx_bad") + rig_stat(r, 1, "rx_stray") +
	       rig_stat(r, 1, "rx_dup");
}

/* How many bytes that were poison are something else? */
static unsigned garbage(const uint8_t *b, size_t n)
{
	unsigned is = 0;

	for (size_t i = 0; i < n; i++)
		is += b[i] != RIG_POISON;
	return is;
}

/* A change of payload that leaves its CRC-32C as it was: by the generator, from byte @at on. */
static void crc_keep(uint8_t *b, unsigned at)
{
	le64_put(b + at, le64_get(b + at) ^ 0x105ec76f1);
}

/* Mode MAC, and somebody on the path who has no key: the payload of DATA is in clear, and may be changed
 * so that its CRC stays. Nothing else may: not what a packet is for, nor where bytes go. */
static void mac__no_crc_stands_for_what_is_to_be_done(void **state)
{
	static const uint8_t types[] = {GX_PKT_DATA, GX_PKT_CTL, GX_PKT_ACK, GX_PKT_PROBE};
	struct rig *r = seal_open_rig(&(struct rig_cfg){.integrity = GX_INTEGRITY_MAC});
	uint8_t payload[64];
	struct gx_tx tx;
	uint32_t crc;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(types); i++) {
		struct pkt_ep *to = rig_ep(r, 0, 0);
		bool is_data = types[i] == GX_PKT_DATA;
		struct answer a = {
			.mode = GX_INTEGRITY_MAC, .type = types[i], .number = 500 + i, .len = 64};

		to->seal->window[types[i] != GX_PKT_ACK].next = 500;
		packet_make(rig_ep(r, 1, 0), &a, src, &tx);
		memcpy(payload, tx.data, sizeof(payload));
		assert_int_equal(!memcmp(payload, src, sizeof(payload)), is_data);
		tx.data = payload;
		crc = gx_crc32c(0, payload, sizeof(payload));
		for (unsigned at = 0; at + 8 <= sizeof(payload) && !is_data; at++) {
			crc_keep(payload, at);
			assert_int_equal(gx_crc32c(0, payload, sizeof(payload)), crc);
			assert_false(taken(r, &tx, a.type, a.number));
			crc_keep(payload, at);
		}
		for (unsigned bit = 0; bit < 8 * GX_WIRE_TAG_AT; bit++) {
			tx.hdr[bit / 8] ^= (uint8_t)(1u << bit % 8);
			assert_false(taken(r, &tx, a.type, a.number));
			tx.hdr[bit / 8] ^= (uint8_t)(1u << bit % 8);
		}
		if (is_data)
			crc_keep(payload, 7);
		assert_true(taken(r, &tx, a.type, a.number));
	}
	taps_close();
	rig_close(r);
}

/* A message of which no packet has come, and packets of it that never came: half the forger's own. */
static void forged(int mode, unsigned n)
{
	const uint32_t len = 10 * PAYLOAD_B + 100, other = 64 << 10;
	struct rig *r = seal_open_rig(
		&(struct rig_cfg){.sim = {.seed = 1, .peer_any = true}, .integrity = mode});
	struct kept *fakes = calloc(GX_BURST_MAX, sizeof(*fakes));
	uint8_t *mem = rig_mem(r, 1);
	struct still still;
	unsigned from, left;
	uint64_t before;

	put_whole(r, 5000);
	memset(mem, RIG_POISON, MEM_B);
	rig_pass(r, 5 * MS);
	taps[0].drops[GX_HALF_DATA] = true;
	from = taps[0].nr_out;
	put_on(r, 0, len);
	rig_pass(r, 200000);
	assert_int_equal(rig_ep(r, 1, 0)->rx.nr_in, 1);
	assert_true(taps[0].nr_out - from > 10);
	left = taps[0].nr_out;
	taps[0].drops[GX_HALF_CTL] = taps[1].drops[GX_HALF_CTL] = true;
	bring_in(r, 1, NULL, 0);
	gx_core_turn(r->core[1], r->now_ns); /* an ACK that was due is out */
	still_begin(&still, rig_ep(r, 1, 0));
	before = refused(r);
	for (unsigned i = 0; i < n; i += GX_BURST_MAX) {
		for (unsigned k = 0; k < GX_BURST_MAX; k++)
			do
				forge(r, &fakes[k],
				      &taps[0].out[from + rig_random(r) % (left - from)]);
			while (fakes[k].half != fakes[0].half);
		bring_in(r, 1, fakes, GX_BURST_MAX);
	}
	assert_int_equal(refused(r) - before, (n + GX_BURST_MAX - 1) / GX_BURST_MAX * GX_BURST_MAX);
	assert_true(rig_stat(r, 1, "rx_forged") > n / 2);
	still_end(&still);
	assert_int_equal(r->nr_last[0], 1);
	print_message("mode %d: %u forged packets left %u bytes of a message under way\n", mode, n,
		      garbage(mem, len));
	if (mode == GX_INTEGRITY_MAC)
		rig_check_poison(mem, len);
	rig_check_poison(mem + len, other);
	/* And the peer's own are taken. */
	memset(taps[0].drops, 0, sizeof(taps[0].drops));
	memset(taps[1].drops, 0, sizeof(taps[1].drops));
	rig_comps(r, 0, 2, SECOND);
	assert_int_equal(r->last[0][1].status, 0);
	assert_memory_equal(mem, src, len);
	rig_check_poison(mem + len, other);
	free(fakes);
	seal_close_rig(r);
}

static void forged__nothing_changes(void **state)
{
	forged(GX_INTEGRITY_GCM, 500000);
	forged(GX_INTEGRITY_MAC, 500000);
}

/* Bytes that have come stay, whatever is forged for their place. */
static void forged__what_has_come_stays(void **state)
{
	struct rig *r = seal_open_rig(&(struct rig_cfg){.sim = {.seed = 2}, .integrity = 3});
	const uint32_t len = 40 * PAYLOAD_B;
	uint8_t *mem = rig_mem(r, 1);
	struct kept *fake = calloc(1, sizeof(*fake));
	unsigned n = 0;

	put_on(r, 0, len);
	rig_pass(r, 25000); /* some are there */
	assert_int_equal(rig_ep(r, 1, 0)->rx.nr_in, 1);
	assert_memory_equal(mem, src, PAYLOAD_B);
	taps[1].drops[GX_HALF_CTL] = true;
	for (unsigned i = 0; i < taps[0].nr_out; i++) {
		if (taps[0].out[i].half != GX_HALF_DATA)
			continue;
		*fake = taps[0].out[i];
		le32_put(fake->rx.hdr + 8, le32_get(fake->rx.hdr + 8) + 1000); /* a new number */
		bring_in(r, 1, fake, 1);
		n++;
	}
	assert_memory_equal(mem, src, PAYLOAD_B);
	assert_true(n > 4);
	assert_int_equal(rig_stat(r, 1, "rx_forged"), n);
	taps[1].drops[GX_HALF_CTL] = false;
	rig_comps(r, 0, 1, SECOND);
	assert_memory_equal(mem, src, len);
	free(fake);
	seal_close_rig(r);
}

/* Mode CRC: no byte of a packet that is wrong comes to its place. */
static void wrong__leaves_nothing(void **state)
{
	struct rig *r = seal_open_rig(&(struct rig_cfg){.integrity = 1});
	const uint32_t len = 10 * PAYLOAD_B + 100;
	uint8_t *mem = rig_mem(r, 1);
	struct kept *wrong = calloc(1, sizeof(*wrong));
	unsigned n = 0;

	memset(mem, RIG_POISON, MEM_B);
	taps[0].drops[GX_HALF_DATA] = true;
	put_on(r, 0, len);
	rig_pass(r, 200000);
	taps[0].drops[GX_HALF_CTL] = taps[1].drops[GX_HALF_CTL] = true;
	for (unsigned i = 0; i < taps[0].nr_out; i++) {
		if (taps[0].out[i].half != GX_HALF_DATA)
			continue;
		*wrong = taps[0].out[i];
		wrong->data[rig_random(r) % wrong->rx.len] ^= 1;
		bring_in(r, 1, wrong, 1);
		n++;
	}
	assert_true(n >= 10);
	assert_int_equal(rig_stat(r, 1, "rx_crc"), n);
	rig_check_poison(mem, MEM_B);
	memset(taps[0].drops, 0, sizeof(taps[0].drops));
	memset(taps[1].drops, 0, sizeof(taps[1].drops));
	rig_comps(r, 0, 1, SECOND);
	assert_int_equal(r->last[0][0].status, 0);
	assert_memory_equal(mem, src, len);
	rig_check_poison(mem + len, MEM_B - len);
	free(wrong);
	seal_close_rig(r);
}

/* ---- where the core copies ---- */

/* Has the last message bypassed the cache? */
static bool streamed(struct rig *r, uint64_t len)
{
	struct pkt_ep *e = rig_ep(r, 1, 0);
	bool is = false;

	put_whole(r, len);
	for (uint32_t i = 0; i < GX_WIRE_MIDS; i++)
		if (e->in[i].len == len)
			is |= e->in[i].streams;
	assert_false(e->link->unfenced);
	return is;
}

/* In modes CRC and MAC the core that has checked a packet copies it: long messages past the cache, but
 * for a place that was written lately. No block does. */
static void direct__copies_as_blocks_do(void **state)
{
	for (int mode = GX_INTEGRITY_CRC; mode <= GX_INTEGRITY_MAC; mode++) {
		struct rig *r = seal_open_rig(&(struct rig_cfg){.integrity = mode});

		assert_false(streamed(r, 2 * PAYLOAD_B - 1));
		assert_true(streamed(r, 20 * PAYLOAD_B - 1));
		assert_false(streamed(r, 20 * PAYLOAD_B));
		assert_true(streamed(r, 4u << 20));
		assert_true(streamed(r, (4u << 20) + 1));
		seal_close_rig(r);
	}
}

/* ---- replays ---- */

/* All that side 0 has sent on either connection, again, on the first one. */
static void replay(struct rig *r, unsigned rounds, unsigned from, unsigned to)
{
	struct kept *again = calloc(1, sizeof(*again));
	uint32_t cid = rig_ep(r, 0, 0)->cid_peer;
	struct still still;

	taps[1].drops[GX_HALF_CTL] = true;
	bring_in(r, 1, NULL, 0);
	gx_core_turn(r->core[1], r->now_ns);
	still_begin(&still, rig_ep(r, 1, 0));
	for (unsigned round = 0; round < rounds; round++)
		for (unsigned i = from; i < to; i++) {
			*again = taps[0].out[i];
			memcpy(again->rx.hdr + 4, &cid, sizeof(cid));
			bring_in(r, 1, again, 1);
		}
	still_end(&still);
	taps[1].drops[GX_HALF_CTL] = false;
	free(again);
}

static void replay__of_this_connection_and_another(void **state)
{
	for (int mode = GX_INTEGRITY_MAC; mode <= GX_INTEGRITY_GCM; mode++) {
		struct rig *r = seal_open_rig(&(struct rig_cfg){
			.sim = {.seed = 3, .peer_any = true}, .integrity = mode, .nr_conns = 2});
		uint64_t before;
		unsigned n;

		put_whole(r, 300000);
		put_on(r, 1, 300000);
		rig_comps(r, 0, 2, SECOND);
		rig_pass(r, 5 * MS);
		assert_true(taps[0].nr_out > 100 && taps[0].nr_out < KEPT);
		before = refused(r);
		n = taps[0].nr_out;
		replay(r, 10000 / n + 1, 0, n);
		assert_int_equal(refused(r) - before, (10000 / n + 1) * n);
		assert_int_equal(rig_stat(r, 1, "rx_bad") + rig_stat(r, 1, "rx_stray"), 0);
		put_whole(r, 300000);
		seal_close_rig(r);
	}
}

/* A peer that stands still is given up, whatever somebody sends in its name. */
static void replay__keeps_no_peer_alive(void **state)
{
	struct rig *r = seal_open_rig(
		&(struct rig_cfg){.sim = {.seed = 4}, .integrity = 3, .peer_timeout_ns = 50 * MS});
	struct kept *again = calloc(1, sizeof(*again));
	uint64_t heard;

	put_whole(r, 300000);
	rig_pass(r, 5 * MS);
	r->still[0] = true;
	heard = rig_ep(r, 1, 0)->timer.heard_ns;
	for (unsigned i = 0; i < taps[0].nr_out; i++) {
		rig_pass(r, 100000);
		*again = taps[0].out[i];
		bring_in(r, 1, again, 1);
		again->rx.hdr[9] ^= 64;
		bring_in(r, 1, again, 1);
	}
	assert_int_equal(rig_ep(r, 1, 0)->timer.heard_ns, heard);
	r->still[0] = false;
	free(again);
	put_whole(r, 300000);
	seal_close_rig(r);
}

/* ---- phases ---- */

static void pass_with_keys(struct rig *r, uint64_t ns)
{
	for (uint64_t end = r->now_ns + ns; r->now_ns < end;) {
		keys_make(r);
		rig_pass(r, MS / 2);
	}
}

/* Packets of a phase that is over by long, which never came: nobody has their key any more. */
static void phase__old_keys_are_gone(void **state)
{
	struct rig *r = seal_open_rig(&(struct rig_cfg){.sim = {.seed = 5}, .integrity = 3});
	uint64_t dup, before;
	unsigned from, to;

	put_whole(r, 300000);
	rig_pass(r, 5 * MS);
	taps[0].drops[GX_HALF_DATA] = true;
	from = taps[0].nr_out;
	put_on(r, 0, 40000);
	rig_pass(r, 100000);
	to = taps[0].nr_out;
	taps[0].drops[GX_HALF_DATA] = false;
	seal_phase_pkts = 1;
	rig_comps(r, 0, 2, SECOND);
	for (unsigned i = 0; i < 4; i++) {
		put_whole(r, 5000);
		pass_with_keys(r, 2 * MS);
	}
	assert_true(rig_ep(r, 1, 0)->seal->rx_phase >= 2);
	seal_phase_pkts = UINT64_MAX;
	pass_with_keys(r, 100 * MS);
	assert_int_equal(rig_ep(r, 1, 0)->seal->rx.over, rig_ep(r, 1, 0)->seal->rx_phase);
	dup = rig_stat(r, 1, "rx_dup");
	before = rig_stat(r, 1, "rx_forged");
	while (taps[0].out[from].half != GX_HALF_DATA)
		from++;
	replay(r, 1, from, GX_MIN(to, from + 8));
	assert_int_equal(rig_stat(r, 1, "rx_forged") - before + rig_stat(r, 1, "rx_dup") - dup,
			 GX_MIN(to, from + 8) - from);
	assert_true(rig_stat(r, 1, "rx_forged") > before);
	put_whole(r, 300000);
	seal_close_rig(r);
}

/* A packet of the phase before that comes late is taken, and one that comes later still is not. */
static void phase__a_late_packet(void **state)
{
	struct rig *r = seal_open_rig(&(struct rig_cfg){.integrity = 3});
	struct pkt_ep *e = rig_ep(r, 0, 0);
	struct seal *s = e->seal, *peer = rig_ep(r, 1, 0)->seal;
	struct answer a = {GX_INTEGRITY_GCM, 0, GX_PKT_CTL, 0, 16, NULL, NULL};
	struct gx_tx tx[4];

	s->window[1].next = 10;
	e->now_ns = r->now_ns;
	for (unsigned i = 0; i < 4; i++) {
		static uint8_t kept[4][16];

		a.number = 10 + i;
		a.phase = i == 3;
		packet_make(rig_ep(r, 1, 0), &a, src, &tx[i]);
		tx[i].data = memcpy(kept[i], tx[i].data, 16);
	}
	assert_true(taken(r, &tx[0], GX_PKT_CTL, 10));
	assert_true(taken(r, &tx[3], GX_PKT_CTL, 13));
	assert_int_equal(s->rx_phase, 1);
	assert_true(taken(r, &tx[1], GX_PKT_CTL, 11));
	e->now_ns = s->old_until_ns;
	assert_true(s->old_until_ns >= r->now_ns + 3 * 500000 &&
		    s->old_until_ns < r->now_ns + 50 * MS);
	seal_tick(e);
	assert_int_equal(seal_make(s), 0);
	assert_false(taken(r, &tx[2], GX_PKT_CTL, 12));
	/* Nobody goes three phases ahead. */
	a.number = 14;
	a.phase = 4;
	for (unsigned phase = 1; phase < 4; phase++) {
		atomic_store(&peer->tx.over, phase);
		keys_make(r);
	}
	assert_true(auth_ring_has(&peer->tx, 4));
	packet_make(rig_ep(r, 1, 0), &a, src, &tx[0]);
	assert_false(taken(r, &tx[0], GX_PKT_CTL, 14));
	taps_close();
	rig_close(r);
}

/* An end whose peer has not shown that it can follow stays in its phase, and so does one without the
 * next keys. */
static void phase__waits_for_the_peer(void **state)
{
	struct rig *r = seal_open_rig(&(struct rig_cfg){.sim = {.seed = 6}, .integrity = 3});
	struct seal *s[2] = {rig_ep(r, 0, 0)->seal, rig_ep(r, 1, 0)->seal};

	seal_phase_pkts = 1;
	taps[1].drops[GX_HALF_CTL] = true; /* side 0 hears nothing */
	put_on(r, 0, 100000);
	rig_pass(r, 3 * MS);
	keys_make(r);
	put_on(r, 0, 100000);
	rig_pass(r, 10 * MS);
	assert_int_equal(s[0]->tx_phase, 1);
	taps[1].drops[GX_HALF_CTL] = false;
	rig_comps(r, 0, 2, SECOND);
	/* No keys come: both go on to where they have some, and no further. */
	for (unsigned i = 0; i < 10; i++) {
		put_whole(r, 100000);
		rig_pass(r, 2 * MS);
	}
	for (unsigned side = 0; side < 2; side++)
		assert_true(s[side]->tx_phase <= 3);
	assert_int_equal(both(r, "rx_forged"), 0);
	pass_with_keys(r, 10 * MS);
	put_whole(r, 100000);
	seal_phase_pkts = UINT64_MAX;
	seal_close_rig(r);
}

/* A peer that answers no exchange: the phase before is used on, and the connection ends at the limit of
 * a key, before it and not after. The peer may come to answer in time. */
static void phase__no_exchange(void **state)
{
	for (int late = 0; late < 2; late++) {
		struct rig *r =
			seal_open_rig(&(struct rig_cfg){.sim = {.seed = 8}, .integrity = 3});
		struct pkt_ep *e = rig_ep(r, 0, 0);

		word_lost = true;
		seal_phase_pkts = 1;
		for (unsigned i = 0; i < 10; i++) {
			put_whole(r, 100000);
			pass_with_keys(r, 2 * MS);
		}
		assert_int_equal(e->seal->tx_phase,
				 AUTH_MIX_PHASES - 2); /* a peer may be one ahead */
		assert_false(auth_ring_has(&rig_ep(r, 1, 0)->seal->rx, AUTH_MIX_PHASES));
		e->seal->tx_pkts = AUTH_END_NRS - (1u << 18);
		put_whole(r, 100000);
		pass_with_keys(r, 2 * MS);
		assert_int_equal(e->ep.fault, 0);
		if (late) {
			word_lost = false;
			for (int side = 0; side < 2; side++) /* the word was lost: anew */
				rig_ep(r, side, 0)->seal->tx.mix.asked = false;
			for (unsigned i = 0; i < 10; i++) {
				pass_with_keys(r, 2 * MS);
				put_whole(r, 100000);
			}
			assert_true(e->seal->tx_phase >= AUTH_MIX_PHASES);
			put_whole(r, 100000);
			assert_int_equal(e->ep.fault, 0);
			assert_int_equal(both(r, "rx_forged"), 0);
		} else {
			e->seal->tx_pkts = AUTH_END_NRS - (1u << 17);
			put_on(r, 0, 100000);
			rig_pass(r, 10 * MS);
			assert_int_equal(e->ep.fault, -EKEYEXPIRED);
		}
		seal_phase_pkts = UINT64_MAX;
		word_lost = false;
		taps_close();
		rig_close(r);
	}
}

/* So many forged packets are the end as well. */
static void forged__there_is_a_limit(void **state)
{
	struct rig *r = seal_open_rig(
		&(struct rig_cfg){.sim = {.seed = 9, .peer_any = true}, .integrity = 3});
	struct answer a = {GX_INTEGRITY_GCM, 0, GX_PKT_CTL, 0, 16, NULL, NULL};
	struct pkt_ep *e = rig_ep(r, 0, 0);
	struct gx_tx tx;

	a.number = e->seal->window[1].next + 5;
	packet_make(rig_ep(r, 1, 0), &a, src, &tx);
	tx.hdr[GX_WIRE_TAG_AT] ^= 1;
	gx_stat_set(pkt_stats(e->link), GX_STAT_RX_FORGED, AUTH_END_FORGED - 2);
	assert_false(taken(r, &tx, GX_PKT_CTL, a.number));
	assert_int_equal(e->ep.fault, 0);
	assert_false(taken(r, &tx, GX_PKT_CTL, a.number));
	assert_int_equal(e->ep.fault, -EBADMSG);
	taps_close();
	rig_close(r);
}

/* A phase ends by time as well. */
static void phase__of_a_minute(void **state)
{
	struct rig *r = seal_open_rig(&(struct rig_cfg){.sim = {.seed = 7}, .integrity = 3});

	seal_phase_pkts = UINT64_MAX;
	put_whole(r, 5000);
	rig_pass(r, 59 * SECOND);
	put_whole(r, 5000);
	assert_int_equal(rig_ep(r, 0, 0)->seal->tx_phase, 0);
	for (unsigned i = 0; i < 4; i++) {
		pass_with_keys(r, SECOND);
		put_whole(r, 5000);
	}
	for (int side = 0; side < 2; side++)
		assert_int_equal(rig_ep(r, side, 0)->seal->tx_phase, 1);
	seal_close_rig(r);
}

/* ---- phases under load ---- */

static struct {
	unsigned ended, posted;
	uint64_t last_ns, gap_ns; /* longest time between two completions */
} load;

static void load_comp(void *arg, int node, const struct gx_comp *comp)
{
	struct rig *r = arg;

	if (node)
		return;
	assert_int_equal(comp->status, 0);
	if (load.ended++)
		load.gap_ns = GX_MAX(load.gap_ns, r->now_ns - load.last_ns);
	load.last_ns = r->now_ns;
}

#define LOAD_B (256u << 10)

/* Puts of 256 KiB one behind the other, four under way, until each end has begun @phases. Return: time a
 * put. */
static uint64_t load_run(unsigned phases, uint64_t phase_pkts, uint64_t *gap_ns)
{
	struct rig *r = seal_open_rig(&(struct rig_cfg){
		.sim = {.seed = 8, .loss_ppm = 10000, .rate_bps = 1000000000}, .integrity = 3});
	const struct seal *s[2] = {rig_ep(r, 0, 0)->seal, rig_ep(r, 1, 0)->seal};
	uint64_t begun = r->now_ns;

	memset(&load, 0, sizeof(load));
	r->on_comp = load_comp;
	r->arg = r;
	seal_phase_pkts = phase_pkts;
	auth_mix_gap_ns = 0;
	while (phase_pkts < UINT64_MAX ? GX_MIN(s[0]->tx_phase, s[1]->tx_phase) < phases
				       : load.ended < phases) {
		for (; load.posted - load.ended < 4; load.posted++)
			put_on(r, 0, LOAD_B);
		keys_make(r);
		rig_pass(r, MS / 4);
		assert_true(r->now_ns - begun < 600 * SECOND);
	}
	begun = (r->now_ns - begun) / load.ended;
	rig_pass(r, SECOND);
	assert_int_equal(load.ended, load.posted);
	assert_memory_equal(rig_mem(r, 1), src, LOAD_B);
	assert_int_equal(both(r, "rx_forged"), 0);
	*gap_ns = load.gap_ns;
	r->on_comp = NULL;
	seal_phase_pkts = UINT64_MAX;
	seal_close_rig(r);
	return begun;
}

static void phase__thousands_under_load(void **state)
{
	unsigned phases = common_seeds(1600, 5000);
	uint64_t gap[2], ns[2];

	ns[0] = load_run(2 * phases, UINT64_MAX, &gap[0]);
	ns[1] = load_run(phases, 16, &gap[1]);
	print_message("%u phases each way, loss 1 %%: %.1f us a put, longest gap %.1f us; without: "
		      "%.1f us, %.1f us\n",
		      phases, ns[1] / 1e3, gap[1] / 1e3, ns[0] / 1e3, gap[0] / 1e3);
	assert_true(ns[1] < ns[0] + ns[0] / 50);
}

/* ---- a child of fork() ---- */

/* It has no key of data, and no secret that the next could be made of: it can't go on with the numbers
 * of its parent. Nor has it the key of the peer itself, that of OpenSSL's session neither. The parent goes
 * on as if there were no child, and keeps nothing of these in the end. */
static void fork__child_has_no_keys(void **state)
{
	struct rig *r = seal_open_rig(&(struct rig_cfg){.integrity = 3});
	struct seal *s = rig_ep(r, 0, 0)->seal;
	uint8_t key[GX_AUTH_SECRET_B];
	struct fork_needle needles[4];

	memset(key, 0x5a, sizeof(key));
	needles[0] = fork_needle(s->tx_slot[0].key.b);
	needles[1] = fork_needle(s->tx.secret.b);
	needles[2] = fork_needle(s->rx.secret.b);
	needles[3] = fork_needle(key);
	explicit_bzero(key, sizeof(key));
	put_whole(r, 100000);
	assert_int_equal(fork_look(needles, 3), 7);
	assert_int_equal(fork_has(s, needles, 4), 0);
	put_whole(r, 100000);
	seal_close_rig(r);
	assert_int_equal(fork_look(needles, 4), 0);
}

/* ---- set-up ---- */

static int refuse_secret(const struct gx_conn *c, const struct auth_dir *dir,
			 struct auth_secret *out)
{
	return gx_fail(-EIO, "no secret");
}

static void modes__say_who_encrypts(void **state)
{
	for (int mode = GX_INTEGRITY_CRC; mode <= GX_INTEGRITY_GCM; mode++) {
		struct rig *r = rig_open(&(struct rig_cfg){.integrity = mode});
		struct gx_conn_info info = GX_INIT(info);

		for (int side = 0; side < 2; side++) {
			assert_int_equal(gx_conn_info(r->conn[side][0], &info), 0);
			assert_int_equal(info.integrity, GX_INTEGRITY_MODE_NONE + mode);
			assert_int_equal(!!strstr(info.why, gx_gcm_name()),
					 mode == GX_INTEGRITY_GCM);
		}
		rig_done(r);
	}
}

/* Without keys the modes are refused with a word, and never go in clear. */
static void modes__need_a_key(void **state)
{
	struct pkt_ep e = {0};
	struct gx_conn c = {.link = &gx_link_packet};

	e.ep.conn = &c;
	assert_int_equal(seal_open(&e, 0), -EOPNOTSUPP);
	assert_non_null(strstr(gx_error(), "key"));
	assert_null(e.seal);
	c.secret = refuse_secret;
	c.link = &gx_link_local;
	assert_int_equal(seal_open(&e, 0), -EOPNOTSUPP);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		rig_test(record__known_answers),
		rig_test(record__by_a_port_that_copies),
		rig_test(record__crc_by_a_port_that_copies),
		rig_test(window__numbers),
		rig_test(window__nonces_differ),
		rig_test(mac__no_crc_stands_for_what_is_to_be_done),
		rig_test(forged__nothing_changes),
		rig_test(forged__what_has_come_stays),
		rig_test(wrong__leaves_nothing),
		rig_test(direct__copies_as_blocks_do),
		rig_test(replay__of_this_connection_and_another),
		rig_test(replay__keeps_no_peer_alive),
		rig_test(phase__old_keys_are_gone),
		rig_test(phase__a_late_packet),
		rig_test(phase__waits_for_the_peer),
		rig_test(phase__no_exchange),
		rig_test(forged__there_is_a_limit),
		rig_test(phase__of_a_minute),
		rig_test(phase__thousands_under_load),
		rig_test(fork__child_has_no_keys),
		rig_test(modes__say_who_encrypts),
		cmocka_unit_test(modes__need_a_key),
	};

	return rig_run("seal", tests, GX_ARRAY_SIZE(tests), argc, argv);
}
