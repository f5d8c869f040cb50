/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets of each integrity mode to a live endpoint. Once a mode, two endpoints go through all kinds
 * of operations over the simulated network, and the packets of the client are kept. Each input has a
 * server's endpoint of its own, equal to that one to the last number, and says what comes to it: kept
 * packets, and changed ones.
 *
 * The first byte: bits 0 and 1 the mode; bit 2: a changed packet comes as it is, else with a tag or
 * CRC that fits it, as from a peer with the key. Steps follow, see step().
 *
 * - Changed packets as they are, modes mac and gcm: nothing of the endpoint changes by them, and in the
 *   end all that the client has sent is there.
 * - In all modes: bytes that a peer may not write stay as they are, the endpoint can be ended, nothing
 *   of the core is missing then, and a connection beside it carries a put.
 *
 * Run by libFuzzer, or by fuzz_main.c as an ordinary test.
 */
#include "sim/sim_rig.h"

#include "core/le.h"
#include "list/note.h"
#include "packet/seal.h"
#include "packet/in.h"
#include "submit/submit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHECK(cond)                                                                                \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			fprintf(stderr, "fuzz_live:%d: %s does not hold\n", __LINE__, #cond);      \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

#define MODES	  4
#define KEPT	  256
#define PAYLOAD_B 4096u
#define MEM_B	  (64u << 10)
#define RO_B	  (16u << 10)
#define LOCAL_B	  (64u << 10) /* of the endpoint's own operations */
#define STEPS_MAX 64
#define SEND_B	  5000u
#define HONEST_B  5000u
#define OWN	  1000u	       /* gx_op.user of the endpoint's operations: from here on */
#define HONEST	  1u	       /* of the connection beside it */
#define BROUGHT	  (1ull << 63) /* in handles of buffers that the tap brings in */
#define CRC_AT	  22u	       /* of the header, and behind it that of the payload */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct packet {
	enum gx_half half;
	uint32_t hlen, len;
	uint8_t hdr[GX_WIRE_HDR_B];
	uint8_t b[PAYLOAD_B];
};

/* What the endpoint's own operations read and write. */
struct local {
	uint8_t send[8192], guard0[256], recv[3][12 << 10], guard1[256], get[12 << 10];
};

/* A mode: its rig, and what was kept. */
struct live {
	struct rig *r;
	struct gx_port_ops ops[2];
	const struct gx_port_ops *own[2];
	struct gx_mem *ro, *secret; /* a region to read, and memory that is none */
	struct pkt_ep *client;	    /* it has ended: its place at the port stays */
	struct gx_hello_lane peer;  /* the client's end */
	struct packet *kept;	    /* [KEPT], in clear */
	struct packet *sealed;	    /* [KEPT], as they came */
	unsigned nr;
	uint8_t *mem;  /* [MEM_B], in the end */
	uint8_t *page; /* a packet's payload ends where it ends */
	struct local local;
	unsigned completions;
};

/* The input's run. */
static struct run {
	struct live *l;
	enum gx_integrity mode;
	bool as_is;
	const uint8_t *b;
	size_t left;
	struct pkt_ep *e;
	unsigned cursor; /* kept packets that have come */
	struct packet work;
	bool changed; /* work is not what was kept */
	const struct packet *in;
	bool still;
	struct pkt_ep *was;
	struct seal was_seal;
	uint64_t refused;
	unsigned forged;
	unsigned nr_posted;
} f;

static struct live lives[MODES];
static struct local local;
static uint8_t src[MEM_B];
static unsigned honest_done, own_done;

static uint64_t take(unsigned n)
{
	uint64_t v = 0;

	for (; n && f.left; n--, f.left--)
		v = v << 8 | *f.b++;
	return v;
}

/* ---- the tap between links and port ---- */

static int side_of(const struct gx_port_queue *q)
{
	return q != rig_ep(f.l->r, 0, 0)->link->q;
}

static void keep(const struct gx_tx *tx, enum gx_half half)
{
	struct packet *p = &f.l->sealed[f.l->nr];

	CHECK(f.l->nr < KEPT && tx->len <= PAYLOAD_B);
	*p = (struct packet){.half = half, .hlen = tx->hlen, .len = tx->len};
	memcpy(p->hdr, tx->hdr, sizeof(p->hdr));
	memcpy(p->b, tx->data, tx->len);
	f.l->nr++;
}

static unsigned tap_tx(struct gx_port_queue *q, enum gx_half half, const struct gx_tx pkts[],
		       unsigned n)
{
	int side = side_of(q);
	unsigned i = 0;

	for (; i < n; i++) {
		if (side == 0 && f.e && le32_get(pkts[i].hdr + 4) == (f.e->gen << 20 | f.e->index))
			keep(&pkts[i], half);
		if (side == 1 && f.l->completions && f.e && pkts[i].peer == f.e->port_peer)
			continue; /* nobody is there */
		if (!f.l->own[side]->tx_burst(q, half, &pkts[i], 1))
			break;
	}
	return i;
}

static unsigned tap_rx(struct gx_port_queue *q, enum gx_half half, struct gx_rx pkts[], unsigned n)
{
	const struct packet *p = f.in;

	if (!p || p->half != half || side_of(q) == 0)
		return f.l->own[side_of(q)]->rx_burst(q, half, pkts, n);
	f.in = NULL;
	pkts[0] = (struct gx_rx){.buf = BROUGHT,
				 .data = f.l->page + PAYLOAD_B - p->len,
				 .len = p->len,
				 .peer = GX_PEER_ANY,
				 .hlen = p->hlen};
	memcpy(pkts[0].hdr, p->hdr, p->hlen);
	memcpy(pkts[0].data, p->b, p->len);
	return 1;
}

static void tap_release(struct gx_port_queue *q, const uint64_t bufs[], unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (!(bufs[i] & BROUGHT))
			f.l->own[side_of(q)]->rx_release(q, &bufs[i], 1);
}

static void tap_open(struct live *l, int side)
{
	struct gx_port_queue *q = rig_ep(l->r, side, 0)->link->q;

	l->own[side] = q->ops;
	l->ops[side] = *q->ops;
	l->ops[side].tx_burst = tap_tx;
	l->ops[side].rx_burst = tap_rx;
	l->ops[side].rx_release = tap_release;
	q->ops = &l->ops[side];
}

/* Payload lies in the 4 GiB behind the port's slots, so it is memory of the arena. Behind a packet's
 * last byte nobody may read. */
static void page_open(struct live *l)
{
	void *at;

	CHECK(!gx_arena_map(l->r->gx[1]->arena, -1, GX_HUGE_PAGE, &at));
	CHECK(!mprotect((char *)at + PAYLOAD_B, GX_HUGE_PAGE - PAYLOAD_B, PROT_NONE));
	CHECK((uintptr_t)at - (uintptr_t)rig_ep(l->r, 1, 0)->link->q->rx_base < 4ull << 30);
	l->page = at;
}

/* ---- endpoints, as the control thread makes them ---- */

static int ep_secret(const struct gx_conn *c, const struct auth_dir *dir, struct auth_secret *out)
{
	memset(out->b, 0x77, sizeof(out->b));
	out->b[0] = dir->dir;
	return 0;
}

static struct pkt_ep *ep_open(struct live *l, int side, struct gx_hello_lane *lane)
{
	const struct gx_conn *honest = l->r->conn[side][0];
	struct gx_conn *c = calloc(1, sizeof(*c));
	struct gx_ep *ep;
	struct pkt_ep *e;

	*c = *honest;
	c->id += 1000;
	c->ctl = NULL;
	c->next = NULL;
	c->link = gx_links[GX_LINK_PACKET];
	c->secret = ep_secret;
	c->nr_lanes = 1;
	ep = c->ep[0] = c->link->ep->ep_new();
	CHECK(ep);
	ep->conn = c;
	ep->core = l->r->core[side];
	ep->ops = c->link->ep;
	ep->access = CORE_ACCESS;
	CHECK(!notes_open(ep) && !ep->ops->ep_open(ep, lane));
	e = pkt_of(ep);
	e->gen = 7;
	lane->cid = e->gen << 20 | e->index;
	lane->psn = e->psn0 = (5ull << 32) - 20 - (unsigned)side; /* its low half wraps */
	lane->salt = e->salt = 0x1234567;
	e->psn_skip = 0;
	return e;
}

static void ep_connect(struct pkt_ep *e, const struct gx_hello_lane *peer)
{
	CHECK(!e->ep.ops->ep_connect(&e->ep, peer));
	e->ep.ops->ep_attach(&e->ep);
}

static void comps_take(struct rig *r)
{
	struct gx_comp comps[32];
	unsigned n;

	while ((n = common_poll(r->core[1], comps, 32)) > 0)
		for (unsigned i = 0; i < n; i++)
			own_done += comps[i].user >= OWN && comps[i].op != GX_OP_SEND &&
				    comps[i].op != GX_OP_PUT && !comps[i].status;
}

static void ep_end(struct rig *r, struct pkt_ep *e)
{
	struct gx_ep *ep = &e->ep;

	ep->failed = true;
	submit_ep_fail(ep, -ECONNRESET);
	notes_fail(ep);
	ep->ops->ep_fail(ep, -ECONNRESET);
	for (unsigned i = 0; i < 1000 && !atomic_load(&ep->detached); i++)
		gx_core_turn(ep->core, r->now_ns += 1000);
	CHECK(atomic_load(&ep->detached));
	comps_take(r);
}

static void ep_free(struct pkt_ep *e)
{
	struct gx_conn *c = e->ep.conn;

	notes_close(&e->ep);
	e->ep.ops->ep_free(&e->ep);
	free(c);
}

static void post(struct pkt_ep *e, const struct gx_op *op)
{
	struct gx_op full = *op;

	full.user = OWN + f.nr_posted++;
	e->ep.ops->post(&e->ep, &full, NULL); /* when it is full, it takes none */
	e->ep.ops->kick(&e->ep);
}

/* What the server has under way from the start on. */
static void server_posts(struct live *l, struct pkt_ep *e)
{
	for (unsigned i = 0; i < 3; i++)
		post(e, &(struct gx_op){.kind = GX_OP_RECV,
					.addr = local.recv[i],
					.len = i == 1 ? 64 : sizeof(local.recv[i])});
	post(e, &(struct gx_op){.kind = GX_OP_GET,
				.addr = local.get,
				.len = 9000,
				.token = l->r->mem[0]->token,
				.remote_off = 160});
	post(e, &(struct gx_op){.kind = GX_OP_SEND, .addr = local.send, .len = SEND_B, .tag = 5});
	post(e, &(struct gx_op){.kind = GX_OP_PUT,
				.addr = local.send,
				.len = 300,
				.token = l->r->mem[0]->token,
				.remote_off = 20000});
}

/* All that the server has is as it was. */
static void server_reset(struct live *l)
{
	memset(rig_mem(l->r, 1), RIG_POISON, MEM_B);
	memset(gx_mem_addr(l->ro), RIG_POISON, RO_B);
	memset(gx_mem_addr(l->secret), RIG_POISON, RO_B);
	memset(&local, RIG_POISON, sizeof(local));
	rig_fill(local.send, SEND_B, 3);
	own_done = 0;
	f.nr_posted = 0;
}

/* ---- the packets that are kept ---- */

static void put(struct live *l, struct pkt_ep *e, uint64_t off, uint64_t len, unsigned flags)
{
	post(e, &(struct gx_op){.kind = GX_OP_PUT,
				.flags = flags,
				.addr = src + off,
				.len = len,
				.token = l->r->mem[1]->token,
				.remote_off = off,
				.imm = 99});
}

static void join(struct live *l, struct pkt_ep *e, enum gx_op_kind kind, uint8_t *at)
{
	static struct gx_link_seg both[2][4]; /* until its end */
	struct gx_link_seg *segs = both[kind == GX_OP_GET];
	struct gx_op op = {.kind = kind, .user = OWN, .token = l->r->mem[1]->token};

	for (unsigned i = 0; i < 4; i++)
		segs[i] = (struct gx_link_seg){.off = (uintptr_t)at + 1000 * i,
					       .token = op.token,
					       .remote_off = 30000 + 1000 * i,
					       .len = 700};
	CHECK(e->ep.ops->join(&e->ep, &op, segs, 4, NULL) == 4);
}

static void client_posts(struct live *l, struct pkt_ep *e)
{
	static uint8_t got[64 << 10];
	struct gx_op op = {.kind = GX_OP_RECV, .addr = got, .len = 8192, .tag = 5};

	put(l, e, 0, 10000, 0);
	put(l, e, 16384, 100, GX_OP_IMM);
	put(l, e, 18000, 20, 0);
	join(l, e, GX_OP_PUT, src + 30000);
	for (unsigned i = 0; i < 3; i++)
		post(e, &(struct gx_op){
				.kind = GX_OP_SEND, .addr = src, .len = i == 1 ? 40 : 9000 - i});
	post(e, &op);
	op.addr = got + 8192;
	op.kind = GX_OP_GET;
	op.len = 6000;
	op.token = l->r->mem[1]->token;
	post(e, &op);
	op.addr = got + 16384;
	op.token = l->ro->token;
	op.len = 200;
	post(e, &op);
	join(l, e, GX_OP_GET, got + 32768);
}

static void client_posts_more(struct live *l, struct pkt_ep *e)
{
	static uint8_t got[8192];
	unsigned n = f.nr_posted;

	post(e, &(struct gx_op){.kind = GX_OP_RECV, .addr = got, .len = 8192, .tag = 6});
	rig_pass(l->r, 100000);
	e->ep.ops->cancel(&e->ep, OWN + n, NULL);
	put(l, e, 40000, 20000, 0);
	for (unsigned i = 0; i < 2; i++)
		gx_core_turn(e->ep.core, l->r->now_ns += 300);
	e->ep.ops->cancel(&e->ep, OWN + n + 1, NULL);
	rig_pass(l->r, 2 * MS);
	put(l, e, 40000, 20000, 0);
	rig_pass(l->r, 2 * SECOND); /* it asks whether the peer is there */
}

static void on_comp(void *arg, int node, const struct gx_comp *comp)
{
	if (node == 0)
		honest_done += comp->user == HONEST && !comp->status;
	else
		own_done += comp->user >= OWN && comp->op != GX_OP_SEND && comp->op != GX_OP_PUT &&
			    !comp->status;
}

/* The key of a packet of @phase to @e; NULL: there is none. */
static const struct auth_phase *key_of(const struct pkt_ep *e, uint8_t phase_bits)
{
	const struct seal *s = e->seal;
	uint32_t phase = s->rx_phase + (uint32_t)(int8_t)(phase_bits - (uint8_t)s->rx_phase);

	return auth_ring_has(&s->rx, phase) && (int32_t)(phase - s->rx.over) >= 0
		       ? &s->rx_slot[phase % SEAL_RX_PHASES]
		       : NULL;
}

static void nonce_of(const struct pkt_ep *e, const struct packet *p, const struct auth_phase *key,
		     uint8_t nonce[GX_GCM_NONCE_B])
{
	uint8_t type = p->hdr[0] & 15;
	uint64_t next = e->seal->window[type != GX_PKT_ACK].next;

	auth_nonce(key, type, next + (uint64_t)(int32_t)(le32_get(p->hdr + 8) - (uint32_t)next),
		   nonce);
}

/* Is its payload in clear, under a CRC that the tag covers? */
static bool is_mac(const struct pkt_ep *e, const struct packet *p)
{
	return e->integrity == GX_INTEGRITY_MAC && (p->hdr[0] & 15) == GX_PKT_DATA;
}

static void unseal(struct live *l, struct pkt_ep *e, unsigned i)
{
	struct packet *p = &l->kept[i];
	const struct auth_phase *key;
	uint8_t nonce[GX_GCM_NONCE_B];

	*p = l->sealed[i];
	if (e->integrity <= GX_INTEGRITY_CRC || is_mac(e, p))
		return;
	key = key_of(e, p->hdr[GX_WIRE_PHASE_AT]);
	nonce_of(e, p, key, nonce);
	CHECK(gx_gcm_open(&key->key, nonce, (struct gx_gcm_aad){p->hdr, GX_WIRE_TAG_AT}, p->b, p->b,
			  p->len, p->hdr + GX_WIRE_TAG_AT));
}

/* The tag or the CRC of what the packet is now. */
static void seal(const struct pkt_ep *e, struct packet *p)
{
	uint8_t nonce[GX_GCM_NONCE_B], aad[GX_WIRE_TAG_AT + 4];
	const struct auth_phase *key;

	if (p->hlen < GX_WIRE_HDR_B || e->integrity == GX_INTEGRITY_NONE)
		return;
	if (e->integrity == GX_INTEGRITY_CRC) {
		le32_put(p->hdr + CRC_AT + 4, gx_crc32c(0, p->b, p->len));
		le32_put(p->hdr + CRC_AT, 0);
		le32_put(p->hdr + CRC_AT, gx_crc32c(e->salt, p->hdr, GX_WIRE_HDR_B));
		return;
	}
	key = key_of(e, p->hdr[GX_WIRE_PHASE_AT]);
	if (!key)
		return;
	nonce_of(e, p, key, nonce);
	memcpy(aad, p->hdr, GX_WIRE_TAG_AT);
	if (!is_mac(e, p)) {
		gx_gcm_seal(&key->key, nonce, (struct gx_gcm_aad){aad, GX_WIRE_TAG_AT}, p->b, p->b,
			    p->len, p->hdr + GX_WIRE_TAG_AT);
		return;
	}
	le32_put(aad + GX_WIRE_TAG_AT, gx_crc32c(0, p->b, p->len));
	gx_gcm_seal(&key->key, nonce, (struct gx_gcm_aad){aad, sizeof(aad)}, NULL, NULL, 0,
		    p->hdr + GX_WIRE_TAG_AT);
}

static void keep_all(struct live *l)
{
	struct gx_hello_lane server;
	struct pkt_ep *c = ep_open(l, 0, &l->peer);

	f.e = ep_open(l, 1, &server);
	ep_connect(f.e, &l->peer);
	ep_connect(c, &server);
	server_reset(l);
	server_posts(l, f.e);
	client_posts(l, c);
	rig_pass(l->r, 5 * MS);
	client_posts_more(l, c);
	CHECK(!memcmp(rig_mem(l->r, 1), src, 10000) && !memcmp(local.recv[0], src, 9000));
	memcpy(l->mem, rig_mem(l->r, 1), MEM_B);
	l->local = local;
	l->completions = own_done;
	if (f.e->seal) { /* its window begins where the packets do */
		f.e->seal->window[0].next = 0;
		f.e->seal->window[1].next = c->psn0;
	}
	for (unsigned i = 0; i < l->nr; i++)
		unseal(l, f.e, i);
	l->client = c;
	ep_end(l->r, c);
	ep_end(l->r, f.e);
	ep_free(f.e);
	f.e = NULL;
}

static void lives_close(void)
{
	for (struct live *l = lives; l < lives + MODES; l++) {
		if (!l->r)
			continue;
		for (int side = 0; side < 2; side++)
			rig_ep(l->r, side, 0)->link->q->ops = l->own[side];
		ep_free(l->client);
		CHECK(!mprotect(l->page, GX_HUGE_PAGE, PROT_READ | PROT_WRITE));
		gx_arena_unmap(l->r->gx[1]->arena, l->page, GX_HUGE_PAGE);
		rig_close(l->r);
		free(l->kept);
		free(l->sealed);
		free(l->mem);
	}
	free(f.was);
}

static void live_open(struct live *l)
{
	struct rig_cfg cfg = {.sim = {.seed = 1, .delay_ns = 1000, .peer_any = true},
			      .integrity = (int)f.mode,
			      .mem_b = MEM_B};

	static struct auth_phase first;
	static bool closes;

	if (!closes) { /* OpenSSL's own handler comes first in, last out */
		CHECK(!auth_phase_next(&(struct auth_secret){0}, &first));
		auth_phase_wipe(&first);
		atexit(lives_close);
	}
	closes = true;
	l->r = rig_open(&cfg);
	l->r->on_comp = on_comp;
	for (int side = 0; side < 2; side++)
		tap_open(l, side);
	CHECK(!gx_mem_alloc(l->r->gx[1], GX_MEM_HOST, 0, RO_B, &l->ro));
	CHECK(!gx_mem_share(l->ro, "ro", GX_ACCESS_GET));
	CHECK(!gx_mem_alloc(l->r->gx[1], GX_MEM_HOST, 0, RO_B, &l->secret));
	page_open(l);
	l->kept = calloc(KEPT, sizeof(*l->kept));
	l->sealed = calloc(KEPT, sizeof(*l->sealed));
	l->mem = malloc(MEM_B);
	rig_fill(src, MEM_B, 1);
	rig_fill(rig_mem(l->r, 0), MEM_B, 2);
	keep_all(l);
}

/* ---- an endpoint that must not change ---- */

static uint64_t refused(void)
{
	struct rig *r = f.l->r;

	return rig_stat(r, 1, "rx_forged") + rig_stat(r, 1, "rx_bad") + rig_stat(r, 1, "rx_stray") +
	       rig_stat(r, 1, "rx_dup");
}

static void turn(void)
{
	f.e->link->look_ns = 0;
	gx_core_turn(f.l->r->core[1], f.l->r->now_ns);
}

static void still_begin(void)
{
	if (f.still || !f.as_is || f.mode < GX_INTEGRITY_MAC)
		return;
	for (unsigned i = 0; i < 8; i++)
		turn(); /* all that is due is out */
	comps_take(f.l->r);
	for (uint32_t i = 0; i < GX_WIRE_MIDS; i++)
		in_at(f.e, i);
	f.still = true;
	if (!f.was)
		f.was = malloc(sizeof(*f.was));
	memcpy(f.was, f.e, sizeof(*f.e));
	f.was_seal = *f.e->seal;
	f.refused = refused();
	f.forged = 0;
}

static void still_end(void)
{
	if (!f.still)
		return;
	f.still = false;
	f.was->now_ns = f.e->now_ns;
	CHECK(refused() - f.refused == f.forged);
	CHECK(!memcmp(&f.was_seal, f.e->seal, sizeof(f.was_seal)));
	CHECK(!memcmp(f.was, f.e, sizeof(*f.e)));
}

/* ---- steps ---- */

static void bring(const struct packet *p)
{
	struct packet fits = *p;

	fits.len = GX_MIN(fits.len, fits.half == GX_HALF_CTL ? GX_CTL_PAYLOAD_MAX : PAYLOAD_B);
	f.in = &fits;
	for (unsigned i = 0; f.in && i < 8; i++)
		turn();
	CHECK(!f.in);
	comps_take(f.l->r);
}

/* The next ones that the client has sent. */
static void step_next(unsigned n)
{
	still_end();
	for (; n && f.cursor < f.l->nr; n--)
		bring(&f.l->sealed[f.cursor++]);
}

static void step_load(void)
{
	unsigned i = (unsigned)take(1) % f.l->nr;

	f.work = f.as_is ? f.l->sealed[i] : f.l->kept[i];
	f.changed = i < f.cursor; /* a replay */
}

static void step_set(void)
{
	uint32_t at = (uint32_t)take(2) % (f.work.hlen + f.work.len + !f.work.hlen);
	unsigned n = 1u << take(1) % 4;
	uint64_t v = take(n);

	for (unsigned i = 0; i < n; i++, at++, v >>= 8) {
		uint8_t *to = at < f.work.hlen ? &f.work.hdr[at] : &f.work.b[at - f.work.hlen];

		if (at >= f.work.hlen + f.work.len)
			return;
		f.changed |= *to != (uint8_t)v;
		*to = (uint8_t)v;
	}
}

static void step_len(void)
{
	uint32_t len = (uint32_t)take(2) % (GX_WIRE_HDR_B + PAYLOAD_B + 1);

	f.changed |= len != f.work.hlen + f.work.len;
	f.work.hlen = GX_MIN(len, GX_WIRE_HDR_B);
	f.work.len = len - f.work.hlen;
	if (f.work.hlen == GX_WIRE_HDR_B && !f.as_is) /* a lie of its own, by step_set() */
		le16_put(f.work.hdr + 2, (uint16_t)f.work.len);
}

static void step_bring(void)
{
	struct packet p = f.work;

	p.half ^= take(1) & 1;
	if (!f.as_is) {
		seal(f.e, &p);
	} else if (f.mode >= GX_INTEGRITY_MAC) {
		if (!f.changed)
			return; /* it is the client's, and its turn has not come */
		still_begin();
		f.forged++;
	}
	bring(&p);
}

static void step_time(void)
{
	uint64_t ns = take(1) * 40000;

	still_end();
	for (unsigned i = 0; i < 4; i++) {
		f.l->r->now_ns += ns / 4;
		turn();
	}
	comps_take(f.l->r);
	if (f.e->seal)
		CHECK(!seal_make(f.e->seal));
}

static void step_post(void)
{
	static const enum gx_op_kind kinds[] = {GX_OP_PUT, GX_OP_GET, GX_OP_SEND, GX_OP_RECV};
	struct gx_op op = {.kind = kinds[take(1) % 4]};

	if (f.as_is)
		return; /* the kept packets are for the operations that there were */
	op.len = take(2) % sizeof(local.get);
	op.addr = op.kind == GX_OP_PUT || op.kind == GX_OP_SEND ? local.send : local.get;
	op.len = GX_MIN(op.len, sizeof(local.send));
	op.token = f.l->r->mem[0]->token;
	op.tag = take(1);
	post(f.e, &op);
}

static void step(void)
{
	switch (take(1) % 8) {
	case 0:
		step_next((unsigned)take(1) % 64 + 1);
		break;
	case 1:
		step_load();
		break;
	case 2:
	case 3:
		step_set();
		break;
	case 4:
		step_len();
		break;
	case 5:
		step_bring();
		break;
	case 6:
		step_time();
		break;
	default:
		step_post();
	}
}

/* ---- an input ---- */

/* The client goes on as if nothing had been. */
static void end_whole(void)
{
	struct live *l = f.l;

	step_next(KEPT);
	CHECK(!memcmp(rig_mem(l->r, 1), l->mem, MEM_B));
	CHECK(!memcmp(&local, &l->local, sizeof(local)));
	CHECK(own_done == l->completions);
	CHECK(!atomic_load(&f.e->ep.fault));
}

static bool honest_is_done(struct rig *r)
{
	return honest_done;
}

static void end_honest(void)
{
	struct rig *r = f.l->r;

	honest_done = 0;
	rig_post(r, 0,
		 &(struct gx_op){.kind = GX_OP_PUT,
				 .len = HONEST_B,
				 .addr = src + 8192,
				 .user = HONEST,
				 .token = r->peer[0].token});
	CHECK(rig_until(r, honest_is_done, SECOND));
	CHECK(!memcmp(rig_mem(r, 1), src + 8192, HONEST_B));
}

static void run(void)
{
	struct live *l = f.l;
	struct link_pkt *link = rig_ep(l->r, 1, 0)->link;
	uint32_t out = link->pool_out, credit0 = link->credit0_out;
	uint32_t free_bufs = sim_queue_free_bufs(link->q);
	struct gx_hello_lane lane;

	server_reset(l);
	f.e = ep_open(l, 1, &lane);
	ep_connect(f.e, &l->peer);
	server_posts(l, f.e);
	step_load();
	for (unsigned i = 0; i < STEPS_MAX && f.left; i++)
		step();
	still_end();
	if (f.as_is && f.mode >= GX_INTEGRITY_MAC)
		end_whole();
	ep_end(l->r, f.e);
	ep_free(f.e);
	f.e = NULL;
	CHECK(link->pool_out == out && link->credit0_out == credit0);
	CHECK(!link->held_bufs && !link->refs && !link->nr_scattered && !link->share.nr_want);
	CHECK(sim_queue_free_bufs(link->q) == free_bufs);
	CHECK(!l->r->core[1]->comps_due);
	rig_check_poison(gx_mem_addr(l->ro), RO_B);
	rig_check_poison(gx_mem_addr(l->secret), RO_B);
	rig_check_poison(local.guard0, sizeof(local.guard0));
	rig_check_poison(local.guard1, sizeof(local.guard1));
	rig_check_poison(local.recv[1] + 64, sizeof(local.recv[1]) - 64);
	CHECK(!memcmp(local.send, l->local.send, sizeof(local.send)));
	end_honest();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 2)
		return 0;
	f = (struct run){.b = data + 1,
			 .left = size - 1,
			 .mode = data[0] & 3,
			 .as_is = data[0] & 4,
			 .was = f.was};
	f.l = &lives[f.mode];
	if (!f.l->r)
		live_open(f.l);
	run();
	return 0;
}
