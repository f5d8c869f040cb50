/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rings of port shm as a hostile peer writes them. The input is a list of steps: the peer writes
 * any word of either segment, or an entry that is nearly right, and the port receives, gives buffers
 * back, and sends. What it hands out lies in the slots, no slot is out twice, and it never writes
 * past a ring. Run by libFuzzer, or by fuzz_main.c as an ordinary test.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ports/shm_seg.h"

#define CHECK(cond)                                                                                \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			fprintf(stderr, "fuzz_shm:%d: %s does not hold\n", __LINE__, #cond);       \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

#define SLOTS  64
#define SLOT_B 1280u
#define BURST  8

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The end under test, and one that makes the peer's segment. */
struct end {
	struct gx_arena *arena;
	struct gx_port *port;
	struct gx_port_queue *q;
	struct gx_stats stats;
	struct gx_port_addr addr;
	uint32_t peer;
};

/* A segment, as the peer has it mapped. */
struct seen {
	struct shm_seg seg;
	uint32_t data, ctl; /* entries that the peer has rung, or that it has been told of */
};

static struct run {
	const uint8_t *b;
	size_t left;
	struct end end[2]; /* 0: under test */
	struct seen rx;	   /* our segment: the peer sends there */
	struct seen tx;	   /* the peer's: we send there */
	uint64_t held[SLOTS];
	unsigned nr_held;
	bool out[SLOTS];
	bool own_hdr;	   /* the peer's segment has the header that it was made with */
	uint32_t tx_slots; /* that the header names */
} r;

static uint32_t take(unsigned n)
{
	uint32_t v = 0;

	for (; n && r.left; n--, r.left--)
		v = v << 8 | *r.b++;
	return v;
}

/* ---- The peer ---- */

static void peer_rings_data(void)
{
	uint32_t slot = take(1), len = take(2), hlen = take(1), off = take(1);
	struct shm_used *e = &r.rx.seg.used[r.rx.data & r.rx.seg.used_mask];

	e->slot = slot == 255 ? UINT32_MAX : slot;
	e->len = len == 65535 ? UINT32_MAX : len;
	e->hlen = hlen == 255 ? UINT32_MAX : hlen;
	r.rx.data++;
	atomic_store(&e->seq, r.rx.data + (off < 250 ? 0 : off));
}

static void peer_rings_ctl(void)
{
	uint32_t len = take(2), hlen = take(1), off = take(1);
	struct shm_ctl *e = &r.rx.seg.ctl[r.rx.ctl % SHM_CTL_NR];

	e->len = (uint16_t)len;
	e->hlen = (uint16_t)(hlen == 255 ? UINT16_MAX : hlen);
	r.rx.ctl++;
	atomic_store(&e->seq, r.rx.ctl + (off < 250 ? 0 : off));
}

/* Any word of what is before the slots. */
static void peer_writes(struct seen *s)
{
	size_t words = (size_t)(s->seg.slots - s->seg.base) / 4;
	_Atomic uint32_t *at = (_Atomic uint32_t *)s->seg.base;

	atomic_store(&at[take(3) % words], take(4));
}

/* It says how far it has read, and which slots are free; both in its own segment. */
static void peer_answers(void)
{
	uint32_t posted = atomic_load(&r.tx.seg.hdr->posted_head), slot = take(1);
	int8_t by = (int8_t)take(1);

	if (slot < 250)
		atomic_store(&r.tx.seg.posted[posted & r.tx.seg.used_mask], slot);
	atomic_store(&r.tx.seg.hdr->posted_head, posted + (uint32_t)by);
	atomic_store(&r.tx.seg.hdr->ctl_done, atomic_load(&r.tx.seg.hdr->ctl_done) + (uint32_t)by);
}

/* ---- The port ---- */

static void port_receives(enum gx_half half)
{
	struct gx_port_queue *q = r.end[0].q;
	struct gx_rx pkts[BURST];
	unsigned n;

	q->now_ns += 1000;
	n = q->ops->rx_burst(q, half, pkts, BURST);
	CHECK(n <= BURST);
	for (unsigned i = 0; i < n; i++) {
		uintptr_t at = (uintptr_t)pkts[i].data - (uintptr_t)q->rx_base;
		volatile const char *b = pkts[i].data;

		CHECK(pkts[i].peer == r.end[0].peer && pkts[i].hlen <= SHM_HDR_B);
		CHECK(pkts[i].len <= (half == GX_HALF_CTL ? GX_CTL_PAYLOAD_MAX : SLOT_B));
		for (uint32_t k = 0; k < pkts[i].len; k++)
			(void)b[k];
		if (half == GX_HALF_CTL)
			continue;
		CHECK(at < 1ull << 32);
		CHECK((uint32_t)pkts[i].buf < SLOTS && !r.out[(uint32_t)pkts[i].buf]);
		r.out[(uint32_t)pkts[i].buf] = true;
		r.held[r.nr_held++] = pkts[i].buf;
	}
}

static void port_releases(unsigned n)
{
	struct gx_port_queue *q = r.end[0].q;

	if (n > r.nr_held)
		n = r.nr_held;
	if (!n)
		return;
	r.nr_held -= n;
	for (unsigned i = 0; i < n; i++)
		r.out[(uint32_t)r.held[r.nr_held + i]] = false;
	q->ops->rx_release(q, r.held + r.nr_held, n);
}

static void port_sends(enum gx_half half)
{
	static char from[SLOT_B];
	struct gx_port_queue *q = r.end[0].q;
	struct gx_port_peer info;
	struct gx_tx pkts[BURST];
	unsigned room = q->ops->tx_room(q, half, r.end[0].peer), n = take(1) % BURST + 1;

	q->ops->peer_info(q, r.end[0].peer, &info);
	CHECK(room <= (half == GX_HALF_CTL ? SHM_CTL_NR : r.tx_slots));
	for (unsigned i = 0; i < n; i++)
		pkts[i] = (struct gx_tx){
			.data = from,
			.len = half == GX_HALF_CTL ? 64 : GX_MIN(info.payload_max, SLOT_B),
			.peer = r.end[0].peer,
			.cookie = UINT32_MAX,
			.hlen = 38};
	memset(from, 0x5a, sizeof(from));
	n = n < room ? n : room;
	CHECK(!n || q->ops->tx_burst(q, half, pkts, n) == n);
}

/* Behind the slots nobody wrote. */
static void slots_check(const struct shm_seg *s)
{
	const char *end = s->slots + (size_t)s->nr_slots * s->slot_b;
	size_t n = GX_MIN((size_t)(s->base + s->len - end), (size_t)256 * SLOT_B);

	CHECK(!end[0] && !memcmp(end, end + 1, n - 1));
}

static void step(void)
{
	switch (take(1) % 12) {
	case 0:
	case 1:
	case 2:
		peer_rings_data();
		break;
	case 3:
		peer_rings_ctl();
		break;
	case 4:
		peer_writes(&r.rx);
		break;
	case 5:
		peer_writes(&r.tx);
		break;
	case 6:
		peer_answers();
		break;
	case 7:
		port_receives(GX_HALF_CTL);
		break;
	case 8:
	case 9:
		port_receives(GX_HALF_DATA);
		break;
	case 10:
		port_releases(take(1) % BURST);
		break;
	default:
		port_sends(take(1) & 1 ? GX_HALF_CTL : GX_HALF_DATA);
	}
}

/* ---- Set-up ---- */

static void end_open(struct end *e)
{
	static const int cpus[] = {-1};
	struct gx_port_cfg cfg = {.args = "",
				  .nr_queues = 1,
				  .cpus = cpus,
				  .slots = SLOTS,
				  .payload_b = SLOT_B,
				  .instance = "fuzz",
				  .bind_host = "127.0.0.1"};

	CHECK(!gx_arena_open(GX_ARENA_SIZE_MAX, &e->arena));
	cfg.arena = e->arena;
	CHECK(!gx_port_shm_ops.open(&cfg, &e->port));
	CHECK(!gx_port_shm_ops.queue_open(e->port, 0, &e->stats, &e->q));
}

static void see(struct seen *s, const struct gx_port_addr *addr)
{
	struct shm_addr a;
	void *base;

	memcpy(&a, addr->b, sizeof(a));
	base = mmap(NULL, a.len, PROT_READ | PROT_WRITE, MAP_SHARED, addr->fd, 0);
	CHECK(base != MAP_FAILED);
	shm_seg_layout(&s->seg, base, SLOTS, SLOT_B, false);
	CHECK(s->seg.len == a.len);
}

/* The header of the peer's segment, which peer_connect() judges: one word may be any. */
static bool joined(void)
{
	struct gx_port_addr addr = r.end[1].addr;
	uint32_t at = take(1);
	int ret;

	r.own_hdr = at >= 16;
	if (at < 16)
		((uint32_t *)r.tx.seg.base)[at] = take(4);
	r.tx_slots = r.tx.seg.hdr->nr_slots;
	addr.fd = fcntl(addr.fd, F_DUPFD_CLOEXEC, 0);
	ret = gx_port_shm_ops.peer_connect(r.end[0].q, r.end[0].peer, &addr);
	CHECK(!ret || (at < 16 && ret < 0));
	return !ret;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!r.end[0].q) {
		end_open(&r.end[0]);
		end_open(&r.end[1]);
	}
	r.b = data;
	r.left = size;
	for (unsigned i = 0; i < 2; i++)
		CHECK(!gx_port_shm_ops.peer_add(r.end[i].q, &r.end[i].peer, &r.end[i].addr));
	r.rx = r.tx = (struct seen){0};
	see(&r.rx, &r.end[0].addr);
	see(&r.tx, &r.end[1].addr);
	if (joined()) {
		gx_port_shm_ops.peer_attach(r.end[0].q, r.end[0].peer);
		while (r.left)
			step();
		port_releases(r.nr_held);
		if (r.own_hdr)
			slots_check(&r.tx.seg);
		gx_port_shm_ops.peer_detach(r.end[0].q, r.end[0].peer);
	}
	munmap(r.rx.seg.base, r.rx.seg.len);
	munmap(r.tx.seg.base, r.tx.seg.len);
	for (unsigned i = 0; i < 2; i++)
		gx_port_shm_ops.peer_del(r.end[i].q, r.end[i].peer);
	return 0;
}
