/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated network of tests and its port. One lock a net makes it usable from several threads;
 * with one thread and virtual time a run is a function of its seed. All memory is taken at open. A
 * released bounce buffer is poisoned in debug builds, so that whoever still reads it sees wrong
 * bytes.
 *
 * A packet's events: LEAVE its sender's link (attached payload is read now; impairments), MEET the
 * receiver's link (its queue may be full), LAND in the receiver's ring (a buffer may be missing).
 */
#include "sim/port_sim.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIM_NETS	16
#define SIM_QUEUES	64     /* a net */
#define SIM_PKTS	32768  /* under way, a net */
#define SIM_BACKLOG_NS	100000 /* a sender's queue before tx_burst takes no more */
#define SIM_SLOTS	512
#define SIM_SLOTS_MAX	65536
#define SIM_PAYLOAD_B	4096
#define SIM_PAYLOAD_MAX 16384
#define SIM_RING	1024 /* control packets waiting, a queue; power of two */
#define SIM_START_NS	1000000
#define SIM_POISON	0xee
#define SIM_MAGIC	0x6d736867u
#define SIM_CTL_NR	256 /* lossless: control packets to a peer that it has not taken */

enum sim_stage { SIM_LEAVE, SIM_MEET, SIM_LAND };

/* One packet under way. */
struct sim_pkt {
	uint64_t at_ns, order; /* when stage happens; ties by order */
	enum sim_stage stage;
	enum gx_half half;
	uint8_t path;
	uint32_t src_queue, dst_queue, dst_peer, dst_gen;
	uint32_t hlen, len, cookie;
	const void *attached; /* payload still at the sender, else NULL */
	uint8_t hdr[GX_HDR_MAX];
	uint8_t b[SIM_PAYLOAD_MAX];
};

/* One packet that has landed. */
struct sim_rx {
	uint32_t slot; /* data: bounce buffer; ctl: index in ctl_buf */
	uint32_t len, peer, hlen;
	uint32_t place; /* peer, also where the packet does not tell */
	uint8_t hdr[GX_HDR_MAX];
};

struct sim_peer {
	bool used, attached, connected;
	uint8_t path[2];		       /* enum gx_half */
	uint32_t gen;			       /* counts the lives of this place */
	uint32_t dst_queue, dst_peer, dst_gen; /* where it is */
	uint32_t nr_out[2]; /* to this place: control packets that were not taken yet, data packets
			       whose buffer did not come back; enum gx_half */
};

struct sim_ring {
	struct sim_rx *rx;
	uint32_t mask, head, tail;
};

/* owner: whoever holds net->lock */
struct sim_queue {
	struct gx_port_queue q;
	struct sim_net *net;
	uint32_t index;		 /* in net->queue */
	struct sim_ring ring[2]; /* enum gx_half */
	char *slots;		 /* in the arena */
	size_t slots_len;
	uint32_t nr_slots, slot_b; /* nr_slots: in all */
	uint32_t *free_slot;	   /* stack */
	uint16_t *place;	   /* [nr_slots]: the peer whose packet lies there */
	uint32_t nr_free;
	uint32_t coming[2]; /* packets to it that have not landed; enum gx_half */
	uint8_t *held;	    /* [nr_slots]: 1 when the caller has it, or it lies in the ring */
	uint8_t *ctl_ring;  /* SIM_RING payloads */
	uint8_t *ctl_buf;   /* GX_BURST_MAX payloads, handed out */
	uint32_t *cookie;   /* ring of SIM_PKTS */
	uint32_t cookie_head, cookie_tail;
	uint64_t tx_free_ns, rx_free_ns; /* when the two directions of the link are idle */
	struct sim_peer peer[GX_PEERS_MAX];
};

struct sim_port {
	struct gx_port p;
	struct sim_net *net;
	struct gx_arena *arena;
	uint32_t nr_slots, slot_b;
};

struct sim_net {
	pthread_mutex_t lock;
	struct sim_cfg cfg;
	unsigned id;
	uint64_t now_ns, random, order;
	unsigned drop_next; /* in cfg.drop */
	unsigned path_next; /* in cfg.path */
	struct sim_counts counts;
	struct sim_queue *queue[SIM_QUEUES];
	struct sim_pkt *pkt;	   /* [SIM_PKTS] */
	struct sim_pkt **free_pkt; /* stack */
	uint32_t nr_free;
	struct sim_pkt **heap; /* earliest first */
	uint32_t nr_heap;
};

struct sim_addr {
	uint32_t magic, net, queue, peer, gen;
};

static pthread_mutex_t sim_lock = PTHREAD_MUTEX_INITIALIZER; /* guards sim_nets */
static struct sim_net *sim_nets[SIM_NETS];

static struct sim_queue *sim_queue_of(struct gx_port_queue *q)
{
	return GX_CONTAINER_OF(q, struct sim_queue, q);
}

/* ---- Events ---- */

static bool sim_before(const struct sim_pkt *a, const struct sim_pkt *b)
{
	return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void sim_heap_put(struct sim_net *net, struct sim_pkt *pkt)
{
	uint32_t i = net->nr_heap++;

	pkt->order = net->order++;
	for (; i && sim_before(pkt, net->heap[(i - 1) / 2]); i = (i - 1) / 2)
		net->heap[i] = net->heap[(i - 1) / 2];
	net->heap[i] = pkt;
}

static struct sim_pkt *sim_heap_get(struct sim_net *net)
{
	struct sim_pkt *top = net->heap[0], *last = net->heap[--net->nr_heap];
	uint32_t i = 0, kid;

	while ((kid = 2 * i + 1) < net->nr_heap) {
		if (kid + 1 < net->nr_heap && sim_before(net->heap[kid + 1], net->heap[kid]))
			kid++;
		if (!sim_before(net->heap[kid], last))
			break;
		net->heap[i] = net->heap[kid];
		i = kid;
	}
	net->heap[i] = last;
	return top;
}

static void sim_pkt_free(struct sim_net *net, struct sim_pkt *pkt)
{
	net->free_pkt[net->nr_free++] = pkt;
}

/* What is under way to a queue, and what of each of its peers has not been taken. */
static void sim_coming(struct sim_net *net, const struct sim_pkt *pkt)
{
	struct sim_queue *dst = net->queue[pkt->dst_queue];

	if (!dst)
		return;
	dst->coming[pkt->half]++;
	if (dst->peer[pkt->dst_peer].gen == pkt->dst_gen)
		dst->peer[pkt->dst_peer].nr_out[pkt->half]++;
}

static void sim_taken(struct sim_peer *peer, enum gx_half half)
{
	peer->nr_out[half] -= peer->nr_out[half] > 0; /* another may have its place */
}

/* @pkt lies in the ring of the receiver, or is gone. */
static void sim_arrived(struct sim_queue *dst, const struct sim_pkt *pkt, bool landed)
{
	if (!dst)
		return;
	dst->coming[pkt->half] -= dst->coming[pkt->half] > 0; /* likewise */
	if (!landed && dst->peer[pkt->dst_peer].gen == pkt->dst_gen)
		sim_taken(&dst->peer[pkt->dst_peer], pkt->half);
}

/* splitmix64: a full-period counter and a mixer. */
static uint64_t sim_random(struct sim_net *net)
{
	uint64_t x = net->random += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static bool sim_chance(struct sim_net *net, uint32_t ppm)
{
	return ppm && sim_random(net) % 1000000 < ppm;
}

static uint64_t sim_bits_ns(const struct sim_pkt *pkt, uint64_t bps)
{
	uint64_t bits = 8ull * (pkt->len + pkt->hlen + SIM_FRAME_B);

	return bps ? bits * 1000000000u / bps : 0;
}

static uint64_t sim_wire_ns(const struct sim_net *net, const struct sim_pkt *pkt)
{
	return sim_bits_ns(pkt, net->cfg.rate_bps);
}

static void sim_corrupt(struct sim_net *net, struct sim_pkt *pkt)
{
	uint64_t bit = sim_random(net) % (8ull * (pkt->len + pkt->hlen) + !(pkt->len + pkt->hlen));
	uint64_t at = bit / 8;

	net->counts.corrupted++;
	if (at < pkt->hlen)
		pkt->hdr[at] ^= (uint8_t)(1u << bit % 8);
	else
		pkt->b[at - pkt->hlen] ^= (uint8_t)(1u << bit % 8);
}

/* A number of @size bytes at @b becomes another one that a peer might say. */
static void sim_lie_number(struct sim_net *net, uint8_t *b, unsigned size)
{
	static const uint64_t odd[] = {0,	  1,	      7,	 16,	    63,
				       64,	  1023,	      1024,	 65535,	    1u << 20,
				       INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX};
	uint64_t v = 0;

	memcpy(&v, b, size);
	switch (sim_random(net) % 4) {
	case 0:
		v = odd[sim_random(net) % GX_ARRAY_SIZE(odd)];
		break;
	case 1:
		v += sim_random(net) % 5 - 2;
		break;
	case 2:
		v ^= 1ull << sim_random(net) % (8 * size);
		break;
	default:
		v = sim_random(net) >> sim_random(net) % 64;
	}
	memcpy(b, &v, size);
}

/* The peer says something else than it means. Nobody else notices: no CRC is wrong in mode 0. */
static void sim_lie(struct sim_net *net, struct sim_pkt *pkt)
{
	static const struct {
		uint8_t at, size;
	} field[] = {{0, 1}, {1, 1}, {4, 4}, {8, 4}, {12, 4}, {16, 4}};
	uint64_t which = sim_random(net);
	unsigned size = which & 64 ? 8 : which & 128 ? 4 : 1;

	net->counts.lies++;
	if (which % 4 == 0 || pkt->len < 8) {
		unsigned f = (unsigned)(sim_random(net) % GX_ARRAY_SIZE(field));

		sim_lie_number(net, pkt->hdr + field[f].at, field[f].size);
		return;
	}
	sim_lie_number(net, pkt->b + sim_random(net) % (GX_MIN(pkt->len, 256u) / size) * size,
		       size);
}

/* Planned loss first, then the dice; the same number of dice for every packet. */
static bool sim_lose(struct sim_net *net, const struct sim_pkt *pkt, uint64_t number)
{
	const struct sim_cfg *c = &net->cfg;
	bool lost = sim_chance(net, c->loss_ppm) ||
		    ((c->dead >> pkt->src_queue | c->dead >> pkt->dst_queue) & 1);

	lost |= c->dead_path[pkt->src_queue & 1][pkt->half] >> pkt->path & 1;
	net->counts.by_path[pkt->src_queue & 1][pkt->half][pkt->path]++;
	while (net->path_next < c->nr_path && c->path[net->path_next].at_ns <= pkt->at_ns)
		net->cfg.path_payload_b = c->path[net->path_next++].payload_b;

	while (net->drop_next < c->nr_drop && c->drop[net->drop_next] < number)
		net->drop_next++;
	if (net->drop_next < c->nr_drop && c->drop[net->drop_next] == number)
		lost = true;
	if (lost)
		net->counts.lost++;
	else if (c->path_payload_b && pkt->len > c->path_payload_b)
		net->counts.blackhole++;
	else
		return false;
	return true;
}

static void sim_dup(struct sim_net *net, const struct sim_pkt *pkt)
{
	struct sim_pkt *copy;

	if (!net->nr_free)
		return;
	copy = net->free_pkt[--net->nr_free];
	memcpy(copy, pkt, offsetof(struct sim_pkt, b) + pkt->len);
	copy->at_ns++;
	sim_coming(net, copy);
	net->counts.dup++;
	sim_heap_put(net, copy);
}

static void sim_leave(struct sim_net *net, struct sim_pkt *pkt)
{
	struct sim_queue *src = net->queue[pkt->src_queue];
	uint64_t number = net->counts.sent++;

	if (pkt->attached)
		memcpy(pkt->b, pkt->attached, pkt->len);
	pkt->attached = NULL;
	if (src && net->cfg.attach && pkt->cookie != UINT32_MAX) {
		assert(src->cookie_head - src->cookie_tail < SIM_PKTS);
		src->cookie[src->cookie_head++ % SIM_PKTS] = pkt->cookie;
	}
	if (sim_lose(net, pkt, number)) {
		sim_arrived(net->queue[pkt->dst_queue], pkt, false);
		sim_pkt_free(net, pkt);
		return;
	}
	pkt->stage = SIM_MEET;
	pkt->at_ns += net->cfg.delay_ns;
	if (sim_chance(net, net->cfg.corrupt_ppm))
		sim_corrupt(net, pkt);
	if (net->cfg.liars >> pkt->src_queue & 1 && sim_chance(net, net->cfg.lie_ppm))
		sim_lie(net, pkt);
	if (sim_chance(net, net->cfg.reorder_ppm)) {
		uint64_t step = sim_wire_ns(net, pkt);

		pkt->at_ns += net->cfg.reorder_slots * (step ? step : 1000);
		net->counts.reordered++;
	}
	if (sim_chance(net, net->cfg.dup_ppm))
		sim_dup(net, pkt);
	sim_heap_put(net, pkt);
}

static void sim_meet(struct sim_net *net, struct sim_pkt *pkt)
{
	struct sim_queue *dst = net->queue[pkt->dst_queue];
	uint64_t land_ns, wait_ns;

	if (!dst) {
		net->counts.stray++;
		sim_pkt_free(net, pkt);
		return;
	}
	/* at_ns is when its last bit would be there; it may have to queue up behind others. */
	land_ns = GX_MAX(pkt->at_ns, dst->rx_free_ns + sim_wire_ns(net, pkt));
	wait_ns = land_ns - pkt->at_ns;
	if (net->cfg.queue_b && wait_ns * (net->cfg.rate_bps / 1000000) / 8000 > net->cfg.queue_b) {
		net->counts.queue_drop++;
		sim_arrived(dst, pkt, false);
		sim_pkt_free(net, pkt);
		return;
	}
	dst->rx_free_ns = pkt->at_ns = land_ns;
	pkt->stage = SIM_LAND;
	sim_heap_put(net, pkt);
}

/* A place in the ring and for the payload, or NULL: the receiver has no buffer. */
static struct sim_rx *sim_land_place(struct sim_queue *dst, enum gx_half half, uint32_t place,
				     uint8_t **payload)
{
	struct sim_ring *r = &dst->ring[half];
	struct sim_rx *rx = &r->rx[r->head & r->mask];

	if (r->head - r->tail > r->mask || (half == GX_HALF_DATA && !dst->nr_free))
		return NULL;
	if (half == GX_HALF_CTL) {
		rx->slot = r->head & r->mask;
		*payload = dst->ctl_ring + (size_t)rx->slot * GX_CTL_PAYLOAD_MAX;
	} else {
		rx->slot = dst->free_slot[--dst->nr_free];
		dst->held[rx->slot] = 1;
		dst->place[rx->slot] = place;
		*payload = (uint8_t *)dst->slots + (size_t)rx->slot * dst->slot_b;
	}
	r->head++;
	return rx;
}

static bool sim_land_known(const struct sim_queue *dst, const struct sim_pkt *pkt)
{
	const struct sim_peer *peer = dst ? &dst->peer[pkt->dst_peer] : NULL;

	if (!peer || !peer->attached || peer->gen != pkt->dst_gen)
		return false;
	return pkt->half == GX_HALF_CTL ? pkt->len <= GX_CTL_PAYLOAD_MAX : pkt->len <= dst->slot_b;
}

/* A bit of the buffer turns over, after all checks that a device makes. */
static void sim_rot(struct sim_net *net, uint8_t *payload, uint32_t len)
{
	uint64_t bit = sim_random(net) % (8ull * len);

	payload[bit / 8] ^= (uint8_t)(1u << bit % 8);
	net->counts.rotten++;
}

static void sim_land(struct sim_net *net, struct sim_pkt *pkt)
{
	struct sim_queue *dst = net->queue[pkt->dst_queue];
	struct sim_rx *rx = NULL;
	uint8_t *payload;

	if (!sim_land_known(dst, pkt)) {
		net->counts.stray++;
		goto out;
	}
	rx = sim_land_place(dst, pkt->half, pkt->dst_peer, &payload);
	if (!rx) {
		net->counts.nobuf++;
		gx_stat_add(dst->q.stats, GX_STAT_RX_NOBUF, 1);
		goto out;
	}
	memcpy(payload, pkt->b, pkt->len);
	if (pkt->half == GX_HALF_DATA && pkt->len && sim_chance(net, net->cfg.rot_ppm))
		sim_rot(net, payload, pkt->len);
	memcpy(rx->hdr, pkt->hdr, sizeof(rx->hdr));
	rx->hlen = pkt->hlen;
	rx->len = pkt->len;
	rx->peer = net->cfg.peer_any ? GX_PEER_ANY : pkt->dst_peer;
	rx->place = pkt->dst_peer;
	net->counts.delivered++;
	net->counts.bytes += pkt->len;
out:
	sim_arrived(dst, pkt, rx);
	sim_pkt_free(net, pkt);
}

/* Needs the lock. */
static void sim_run(struct sim_net *net, uint64_t now_ns)
{
	while (net->nr_heap && net->heap[0]->at_ns <= now_ns) {
		struct sim_pkt *pkt = sim_heap_get(net);

		net->now_ns = GX_MAX(net->now_ns, pkt->at_ns);
		if (pkt->stage == SIM_LEAVE)
			sim_leave(net, pkt);
		else if (pkt->stage == SIM_MEET)
			sim_meet(net, pkt);
		else
			sim_land(net, pkt);
	}
	net->now_ns = GX_MAX(net->now_ns, now_ns);
}

static void sim_enter(struct sim_net *net)
{
	pthread_mutex_lock(&net->lock);
	if (net->cfg.realtime)
		sim_run(net, gx_now_ns());
}

static void sim_exit(struct sim_net *net)
{
	pthread_mutex_unlock(&net->lock);
}

/* ---- The net (control path) ---- */

static void sim_net_free(struct sim_net *net)
{
	free(net->heap);
	free(net->free_pkt);
	if (net->pkt)
		munmap(net->pkt, SIM_PKTS * sizeof(*net->pkt));
	pthread_mutex_destroy(&net->lock);
	free(net);
}

int sim_net_open(const struct sim_cfg *cfg, struct sim_net **out)
{
	struct sim_net *net = calloc(1, sizeof(*net));

	if (!net)
		return -ENOMEM;
	pthread_mutex_init(&net->lock, NULL);
	net->cfg = *cfg;
	net->random = cfg->seed;
	net->now_ns = cfg->realtime ? gx_now_ns() : SIM_START_NS;
	/* Touched only as far as it is used; malloc() would have sanitizers touch all of it. */
	net->pkt = mmap(NULL, SIM_PKTS * sizeof(*net->pkt), PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	net->pkt = net->pkt == MAP_FAILED ? NULL : net->pkt;
	net->free_pkt = calloc(SIM_PKTS, sizeof(*net->free_pkt));
	net->heap = calloc(SIM_PKTS, sizeof(*net->heap));
	if (!net->pkt || !net->free_pkt || !net->heap) {
		sim_net_free(net);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < SIM_PKTS; i++)
		net->free_pkt[i] = &net->pkt[SIM_PKTS - 1 - i];
	net->nr_free = SIM_PKTS;
	pthread_mutex_lock(&sim_lock);
	while (net->id < SIM_NETS && sim_nets[net->id])
		net->id++;
	if (net->id < SIM_NETS)
		sim_nets[net->id] = net;
	pthread_mutex_unlock(&sim_lock);
	if (net->id == SIM_NETS) {
		sim_net_free(net);
		return -ENOSPC;
	}
	*out = net;
	return 0;
}

void sim_net_close(struct sim_net *net)
{
	if (!net)
		return;
	pthread_mutex_lock(&sim_lock);
	sim_nets[net->id] = NULL;
	pthread_mutex_unlock(&sim_lock);
	sim_net_free(net);
}

unsigned sim_net_id(const struct sim_net *net)
{
	return net->id;
}

uint64_t sim_net_now(struct sim_net *net)
{
	uint64_t now_ns;

	sim_enter(net);
	now_ns = net->now_ns;
	sim_exit(net);
	return now_ns;
}

void sim_net_advance(struct sim_net *net, uint64_t now_ns)
{
	sim_enter(net);
	if (!net->cfg.realtime)
		sim_run(net, now_ns);
	sim_exit(net);
}

uint64_t sim_net_next(struct sim_net *net)
{
	uint64_t next_ns;

	sim_enter(net);
	next_ns = net->nr_heap ? net->heap[0]->at_ns : UINT64_MAX;
	sim_exit(net);
	return next_ns;
}

void sim_net_set(struct sim_net *net, const struct sim_cfg *cfg)
{
	struct sim_cfg old;

	sim_enter(net);
	old = net->cfg;
	net->cfg = *cfg;
	net->cfg.realtime = old.realtime;
	net->cfg.attach = old.attach;
	net->cfg.lossless = old.lossless;
	net->cfg.own_slots = old.own_slots;
	if (cfg->drop != old.drop)
		net->drop_next = 0;
	sim_exit(net);
}

void sim_net_counts(struct sim_net *net, struct sim_counts *out)
{
	sim_enter(net);
	*out = net->counts;
	sim_exit(net);
}

uint32_t sim_queue_free_bufs(struct gx_port_queue *gq)
{
	struct sim_queue *q = sim_queue_of(gq);
	uint32_t n;

	sim_enter(q->net);
	n = q->nr_free;
	sim_exit(q->net);
	return n;
}

/* ---- Port and queue (control path) ---- */

static struct sim_net *sim_net_find(const char *args)
{
	struct sim_net *net = NULL;
	unsigned id;
	char end;

	if (args && sscanf(args, "net=%u%c", &id, &end) == 1 && id < SIM_NETS) {
		pthread_mutex_lock(&sim_lock);
		net = sim_nets[id];
		pthread_mutex_unlock(&sim_lock);
	}
	if (!net)
		gx_port_why_set(
			"port sim: \"%s\" names no simulated network; it is for tests, which open "
			"one and say net=ID",
			args ? args : "");
	return net;
}

static int sim_port_open(const struct gx_port_cfg *cfg, struct gx_port **out)
{
	uint32_t slot_b = cfg->payload_b ? cfg->payload_b : SIM_PAYLOAD_B;
	uint32_t nr_slots = cfg->slots ? cfg->slots : SIM_SLOTS;
	struct sim_net *net = sim_net_find(cfg->args);
	struct sim_port *p;

	if (!net)
		return -EINVAL;
	if (cfg->pool) {
		gx_port_why_set("port sim: the simulated network has host memory only");
		return -EOPNOTSUPP;
	}
	if (slot_b > SIM_PAYLOAD_MAX || slot_b % 16 || nr_slots > SIM_SLOTS_MAX) {
		gx_port_why_set("port sim: at most %u slots of up to %u bytes, a multiple of 16",
				SIM_SLOTS_MAX, SIM_PAYLOAD_MAX);
		return -EINVAL;
	}
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->p.ops = &port_sim_ops;
	p->p.caps = (struct gx_port_caps){.payload_max = slot_b,
					  .payload_best = slot_b,
					  .rx_slots = nr_slots,
					  .paths = net->cfg.paths,
					  .flags = net->cfg.own_slots ? 0 : GX_PORT_SHARED_POOL};
	if (net->cfg.attach)
		p->p.caps.flags |= GX_PORT_TX_ATTACH;
	if (net->cfg.lossless)
		p->p.caps.flags |= GX_PORT_LOSSLESS | GX_PORT_ORDERED;
	if (net->cfg.path_payload_b)
		p->p.caps.flags |= GX_PORT_NEEDS_PROBE;
	p->net = net;
	p->arena = cfg->arena;
	p->nr_slots = net->cfg.own_slots ? nr_slots * SIM_OWN_PEERS : nr_slots;
	p->slot_b = slot_b;
	*out = &p->p;
	return 0;
}

static void sim_port_close(struct gx_port *p)
{
	free(p ? GX_CONTAINER_OF(p, struct sim_port, p) : NULL);
}

static void sim_queue_free(struct sim_port *p, struct sim_queue *q)
{
	if (q->slots)
		gx_arena_unmap(p->arena, q->slots, q->slots_len);
	free(q->ring[GX_HALF_CTL].rx);
	free(q->ring[GX_HALF_DATA].rx);
	free(q->free_slot);
	free(q->held);
	free(q->place);
	free(q->ctl_ring);
	free(q->ctl_buf);
	free(q->cookie);
	free(q);
}

static int sim_queue_alloc(struct sim_port *p, struct sim_queue *q)
{
	uint32_t nr_ring = 1;
	void *slots;
	int ret;

	while (nr_ring < p->nr_slots)
		nr_ring *= 2;
	q->nr_slots = p->nr_slots;
	q->slot_b = p->slot_b;
	q->ring[GX_HALF_CTL] = (struct sim_ring){.rx = calloc(SIM_RING, sizeof(struct sim_rx)),
						 .mask = SIM_RING - 1};
	q->ring[GX_HALF_DATA] = (struct sim_ring){.rx = calloc(nr_ring, sizeof(struct sim_rx)),
						  .mask = nr_ring - 1};
	q->free_slot = calloc(q->nr_slots, sizeof(*q->free_slot));
	q->held = calloc(q->nr_slots, 1);
	q->place = calloc(q->nr_slots, sizeof(*q->place));
	q->ctl_ring = calloc(SIM_RING, GX_CTL_PAYLOAD_MAX);
	q->ctl_buf = calloc(GX_BURST_MAX, GX_CTL_PAYLOAD_MAX);
	q->cookie = calloc(SIM_PKTS, sizeof(*q->cookie));
	if (!q->ring[0].rx || !q->ring[1].rx || !q->free_slot || !q->held || !q->place ||
	    !q->ctl_ring || !q->ctl_buf || !q->cookie)
		return -ENOMEM;
	q->slots_len = GX_ALIGN_UP((size_t)q->nr_slots * q->slot_b, GX_HUGE_PAGE);
	ret = gx_arena_map(p->arena, -1, q->slots_len, &slots);
	if (ret) {
		gx_port_why_set("port sim: no room for %u slots of %u bytes in the arena: %s",
				q->nr_slots, q->slot_b, strerror(-ret));
		return ret;
	}
	q->slots = slots;
	for (uint32_t i = 0; i < q->nr_slots; i++)
		q->free_slot[i] = q->nr_slots - 1 - i;
	q->nr_free = q->nr_slots;
	return 0;
}

static int sim_queue_attach(struct sim_net *net, struct sim_queue *q)
{
	int ret = -ENOSPC;

	sim_enter(net);
	for (uint32_t i = 0; i < SIM_QUEUES; i++) {
		if (net->queue[i])
			continue;
		net->queue[i] = q;
		q->index = i;
		ret = 0;
		break;
	}
	sim_exit(net);
	return ret;
}

static int sim_queue_open(struct gx_port *gp, unsigned index, struct gx_stats *stats,
			  struct gx_port_queue **out)
{
	struct sim_port *p = GX_CONTAINER_OF(gp, struct sim_port, p);
	struct sim_queue *q = calloc(1, sizeof(*q));
	int ret;

	if (!q)
		return -ENOMEM;
	ret = sim_queue_alloc(p, q);
	if (!ret)
		ret = sim_queue_attach(p->net, q);
	if (ret) {
		sim_queue_free(p, q);
		return ret;
	}
	q->net = p->net;
	q->q.ops = &port_sim_ops;
	q->q.port = gp;
	q->q.stats = stats;
	q->q.rx_base = q->slots;
	for (unsigned i = 0; i < p->net->cfg.paths; i++) {
		q->q.from[GX_HALF_DATA][i] = (uint16_t)(SIM_PORT_FROM + i);
		q->q.from[GX_HALF_CTL][i] = (uint16_t)(SIM_PORT_FROM + 100 + i);
	}
	*out = &q->q;
	return 0;
}

static void sim_queue_close(struct gx_port_queue *gq)
{
	struct sim_queue *q = sim_queue_of(gq);
	struct sim_net *net = q->net;

	sim_enter(net);
	net->queue[q->index] = NULL;
	/* Packets of ours that have not left: their payload may be gone, and nobody waits for them. */
	for (uint32_t i = 0; i < net->nr_heap; i++) {
		struct sim_pkt *pkt = net->heap[i];

		if (pkt->src_queue != q->index)
			continue;
		if (pkt->attached)
			memset(pkt->b, 0, pkt->len);
		pkt->attached = NULL;
		pkt->cookie = UINT32_MAX;
	}
	sim_exit(net);
	sim_queue_free(GX_CONTAINER_OF(gq->port, struct sim_port, p), q);
}

/* ---- Peers ---- */

static int sim_peer_add(struct gx_port_queue *gq, uint32_t *out, struct gx_port_addr *laddr)
{
	struct sim_queue *q = sim_queue_of(gq);
	struct sim_addr addr = {.magic = SIM_MAGIC, .net = q->net->id, .queue = q->index};
	int ret = -ENOSPC;

	sim_enter(q->net);
	for (uint32_t i = 0; i < (q->net->cfg.own_slots ? SIM_OWN_PEERS : GX_PEERS_MAX); i++) {
		if (q->peer[i].used)
			continue;
		q->peer[i] = (struct sim_peer){.used = true, .gen = q->peer[i].gen + 1};
		addr.peer = *out = i;
		addr.gen = q->peer[i].gen;
		memcpy(laddr->b, &addr, sizeof(addr));
		laddr->len = sizeof(addr);
		laddr->fd = -1;
		ret = 0;
		break;
	}
	sim_exit(q->net);
	return ret;
}

static int sim_peer_connect(struct gx_port_queue *gq, uint32_t index,
			    const struct gx_port_addr *raddr)
{
	struct sim_queue *q = sim_queue_of(gq);
	struct sim_peer *peer = &q->peer[index];
	struct sim_addr addr;

	if (raddr->fd >= 0)
		close(raddr->fd);
	if (raddr->len != sizeof(addr) || raddr->fd >= 0)
		goto refuse;
	memcpy(&addr, raddr->b, sizeof(addr));
	if (addr.magic != SIM_MAGIC || addr.net != q->net->id || addr.queue >= SIM_QUEUES ||
	    addr.peer >= GX_PEERS_MAX)
		goto refuse;
	sim_enter(q->net);
	peer->dst_queue = addr.queue;
	peer->dst_peer = addr.peer;
	peer->dst_gen = addr.gen;
	peer->connected = true;
	sim_exit(q->net);
	return 0;

refuse:
	gx_port_why_set("port sim: the peer's address is not of this network");
	return -EPROTO;
}

static void sim_peer_del(struct gx_port_queue *gq, uint32_t index)
{
	struct sim_queue *q = sim_queue_of(gq);

	sim_enter(q->net);
	q->peer[index].used = q->peer[index].connected = false;
	sim_exit(q->net);
}

static void sim_peer_attach(struct gx_port_queue *gq, uint32_t index)
{
	struct sim_queue *q = sim_queue_of(gq);

	sim_enter(q->net);
	q->peer[index].attached = true;
	sim_exit(q->net);
}

/* What has landed for it and was not taken is dropped by rx_burst. */
static void sim_peer_detach(struct gx_port_queue *gq, uint32_t index)
{
	struct sim_queue *q = sim_queue_of(gq);

	sim_enter(q->net);
	q->peer[index].attached = false;
	sim_exit(q->net);
}

/* ---- Traffic [core] ---- */

static void sim_slot_free(struct sim_queue *q, uint32_t slot)
{
	assert(slot < q->nr_slots && q->held[slot]);
	q->held[slot] = 0;
	sim_taken(&q->peer[q->place[slot]], GX_HALF_DATA);
#ifndef NDEBUG
	memset(q->slots + (size_t)slot * q->slot_b, SIM_POISON, q->slot_b);
#endif
	q->free_slot[q->nr_free++] = slot;
}

static void sim_rx_fill(struct sim_queue *q, enum gx_half half, const struct sim_rx *rx, unsigned i,
			struct gx_rx *pkt)
{
	*pkt = (struct gx_rx){.buf = rx->slot, .len = rx->len, .peer = rx->peer, .hlen = rx->hlen};
	memcpy(pkt->hdr, rx->hdr, sizeof(rx->hdr));
	if (half == GX_HALF_DATA) {
		pkt->data = q->slots + (size_t)rx->slot * q->slot_b;
		return;
	}
	pkt->data = q->ctl_buf + (size_t)i * GX_CTL_PAYLOAD_MAX;
	memcpy(pkt->data, q->ctl_ring + (size_t)rx->slot * GX_CTL_PAYLOAD_MAX, rx->len);
}

static unsigned sim_rx_burst(struct gx_port_queue *gq, enum gx_half half, struct gx_rx pkts[],
			     unsigned n)
{
	struct sim_queue *q = sim_queue_of(gq);
	struct sim_ring *r = &q->ring[half];
	unsigned got = 0;

	n = GX_MIN(n, (unsigned)GX_BURST_MAX);
	sim_enter(q->net);
	while (got < n && r->tail != r->head) {
		const struct sim_rx *rx = &r->rx[r->tail++ & r->mask];

		if (half == GX_HALF_CTL)
			sim_taken(&q->peer[rx->place], half);
		if (rx->peer == GX_PEER_ANY || q->peer[rx->peer].attached) {
			sim_rx_fill(q, half, rx, got, &pkts[got]);
			got++;
		} else if (half == GX_HALF_DATA) {
			sim_slot_free(q, rx->slot);
		}
	}
	sim_exit(q->net);
	return got;
}

/* Last in, first out, turned round: what was released in order is handed out in order. */
static void sim_rx_release(struct gx_port_queue *gq, const uint64_t bufs[], unsigned n)
{
	struct sim_queue *q = sim_queue_of(gq);

	sim_enter(q->net);
	while (n--)
		sim_slot_free(q, (uint32_t)bufs[n]);
	sim_exit(q->net);
}

/* Lossless: what the receiver has room for. Several senders may share its buffers. */
static uint32_t sim_dst_room(const struct sim_queue *q, enum gx_half half,
			     const struct sim_peer *peer)
{
	const struct sim_queue *dst = q->net->queue[peer->dst_queue];
	uint32_t nr = q->net->cfg.ctl_nr ? q->net->cfg.ctl_nr : SIM_CTL_NR;
	uint32_t room = GX_BURST_MAX; /* to nobody: it is lost with its receiver */

	if (!dst || dst->peer[peer->dst_peer].gen != peer->dst_gen)
		return room;
	room = half == GX_HALF_CTL
		       ? dst->ring[half].mask + 1 - (dst->ring[half].head - dst->ring[half].tail)
		       : dst->nr_free;
	room -= GX_MIN(room, dst->coming[half]);
	if (half == GX_HALF_DATA)
		nr = q->net->cfg.own_slots ? dst->q.port->caps.rx_slots : dst->nr_slots;
	nr -= GX_MIN(nr, dst->peer[peer->dst_peer].nr_out[half]);
	return GX_MIN(room, nr);
}

/* The room is whether the link's backlog is short; a burst may go a little over. */
static unsigned sim_room(const struct sim_queue *q, enum gx_half half, uint32_t index)
{
	const struct sim_peer *peer = &q->peer[index];
	unsigned room = GX_MIN(q->net->nr_free, (uint32_t)GX_BURST_MAX);

	if (!peer->attached || !peer->connected || q->tx_free_ns > q->net->now_ns + SIM_BACKLOG_NS)
		return 0;
	return q->net->cfg.lossless ? GX_MIN(room, sim_dst_room(q, half, peer)) : room;
}

static unsigned sim_tx_room(struct gx_port_queue *gq, enum gx_half half, uint32_t peer)
{
	struct sim_queue *q = sim_queue_of(gq);
	unsigned room;

	sim_enter(q->net);
	room = sim_room(q, half, peer);
	sim_exit(q->net);
	return room;
}

static void sim_tx_one(struct sim_queue *q, enum gx_half half, const struct gx_tx *tx)
{
	const struct sim_peer *peer = &q->peer[tx->peer];
	struct sim_net *net = q->net;
	struct sim_pkt *pkt = net->free_pkt[--net->nr_free];

	assert(tx->hlen <= GX_HDR_MAX);
	assert(tx->len <= (half == GX_HALF_CTL ? GX_CTL_PAYLOAD_MAX : q->slot_b));
	pkt->half = half;
	pkt->src_queue = q->index;
	pkt->dst_queue = peer->dst_queue;
	pkt->dst_peer = peer->dst_peer;
	pkt->dst_gen = peer->dst_gen;
	pkt->hlen = tx->hlen;
	pkt->len = tx->len;
	pkt->cookie = half == GX_HALF_DATA ? tx->cookie : UINT32_MAX;
	pkt->attached = net->cfg.attach && pkt->cookie != UINT32_MAX ? tx->data : NULL;
	memcpy(pkt->hdr, tx->hdr, sizeof(pkt->hdr));
	if (!pkt->attached && tx->len)
		memcpy(pkt->b, tx->data, tx->len);
	q->tx_free_ns = GX_MAX(q->tx_free_ns, net->now_ns) +
			sim_bits_ns(pkt, net->cfg.send_bps ? net->cfg.send_bps : net->cfg.rate_bps);
	pkt->at_ns = q->tx_free_ns;
	pkt->stage = SIM_LEAVE;
	pkt->path = q->peer[tx->peer].path[half];
	sim_coming(net, pkt);
	sim_heap_put(net, pkt);
}

/* The first packet must find the backlog short; the rest of a burst follows it as far as packets
 * last, and where nothing is lost as far as the receiver has room. */
static unsigned sim_tx_burst(struct gx_port_queue *gq, enum gx_half half, const struct gx_tx pkts[],
			     unsigned n)
{
	struct sim_queue *q = sim_queue_of(gq);
	unsigned i = 0;

	n = GX_MIN(n, (unsigned)GX_BURST_MAX);
	sim_enter(q->net);
	if (n && sim_room(q, half, pkts[0].peer))
		while (i < n && q->net->nr_free && q->peer[pkts[i].peer].attached &&
		       (!q->net->cfg.lossless || sim_dst_room(q, half, &q->peer[pkts[i].peer])))
			sim_tx_one(q, half, &pkts[i++]);
	sim_exit(q->net);
	return i;
}

static void sim_path(struct gx_port_queue *gq, enum gx_half half, uint32_t peer, unsigned path)
{
	struct sim_queue *q = sim_queue_of(gq);

	assert(path < GX_PATHS_MAX);
	sim_enter(q->net);
	q->peer[peer].path[half] = (uint8_t)path;
	sim_exit(q->net);
}

static unsigned sim_tx_reap(struct gx_port_queue *gq, uint32_t cookies[], unsigned n)
{
	struct sim_queue *q = sim_queue_of(gq);
	unsigned i = 0;

	sim_enter(q->net);
	while (i < n && q->cookie_tail != q->cookie_head)
		cookies[i++] = q->cookie[q->cookie_tail++ % SIM_PKTS];
	sim_exit(q->net);
	return i;
}

static int sim_fault(struct gx_port_queue *gq)
{
	struct sim_net *net = sim_queue_of(gq)->net;
	int fault;

	sim_enter(net);
	fault = net->cfg.fault;
	sim_exit(net);
	return fault;
}

struct gx_port_ops port_sim_ops = {
	.name = "sim",
	.open = sim_port_open,
	.close = sim_port_close,
	.queue_open = sim_queue_open,
	.queue_close = sim_queue_close,
	.peer_add = sim_peer_add,
	.peer_connect = sim_peer_connect,
	.peer_del = sim_peer_del,
	.peer_attach = sim_peer_attach,
	.peer_detach = sim_peer_detach,
	.rx_burst = sim_rx_burst,
	.rx_release = sim_rx_release,
	.tx_room = sim_tx_room,
	.tx_burst = sim_tx_burst,
	.path = sim_path,
	.tx_reap = sim_tx_reap,
	.fault = sim_fault,
};
