/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paths of one endpoint; paths.h has the contract. Runs on the polling core.
 */
#include "flow/paths.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define PATHS_NEVER    UINT64_MAX
#define PATHS_FIRST_NS 100000000ull /* the wait for an acknowledgement, before the first sample */
#define PATHS_MIN_NS   100000	    /* and at least: less is the jitter of a core */
#define PATHS_UNKNOWN  4 /* times the flow's round trip may be that of a path without a sample */
#define PATHS_GRACE    8 /* of its round trip: the others have so long after the first answer */
#define PATHS_QUIET    4 /* of a wait: when nothing at all came, the peer may not be heard */
#define PATHS_BACKOFF  6 /* doublings of the time between rounds, and of the next: */
#define PATHS_HOLD_NS  1000000000ull	    /* a path that has died is asked after that, */
#define PATHS_CALM_NS  (64 * PATHS_HOLD_NS) /* and one that lived for so long is as good as new */

struct path {
	uint32_t out; /* packets under way */
	uint64_t
		since_ns; /* out > 0: when the one left that we should hear of next; NEVER: none is */
	uint64_t sent_ns;	    /* when the newest packet left of which we have heard, ... */
	uint32_t place;		    /* ... and its place */
	uint64_t heard_ns;	    /* when we last heard of one */
	uint64_t rtt_ns, rttvar_ns; /* smoothed, its deviation; 0: no sample yet */
	_Atomic uint64_t sent, lost, seen_rtt_ns; /* for others to read */
	uint64_t born_ns, again_ns;		  /* since when it lives; dead: when to ask it */
	uint32_t deaths;
};

struct half {
	uint32_t use, home, dead;   /* bits of paths */
	_Atomic uint32_t seen_dead; /* dead, for others to read; and those that were ever taken */
	_Atomic uint32_t seen_used;
	uint64_t asked_ns; /* when the round under way began; 0: none is */
	uint64_t end_ns;   /* when it ends, or the next one begins */
	bool answered;	   /* in this round some path was heard */
	uint64_t spurious; /* of paths, when it began */
	uint32_t rounds;   /* in a row without an answer */
	uint64_t moves;
	struct path path[GX_PATHS_MAX];
};

struct paths {
	unsigned nr;
	uint32_t mask;
	uint64_t known;	 /* packets that we know, of flow_nr_sent() */
	uint64_t rtt_ns; /* of the flow: for the wait of a path without a sample */
	uint64_t
		spurious; /* packets that came although they were deemed lost: nobody says of which path */
	uint64_t heard_ns; /* when anything was last acknowledged */
	uint64_t due_ns;
	struct half half[2]; /* enum gx_half */
	uint8_t *of;	     /* by place: half * GX_PATHS_MAX + path */
};

int paths_open(const struct paths_cfg *cfg, struct paths **out)
{
	struct paths *p;

	if (cfg->nr < 2 || cfg->nr > GX_PATHS_MAX || !cfg->spread || cfg->spread > cfg->nr ||
	    !cfg->places || cfg->places & (cfg->places - 1))
		return -EINVAL;
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->of = calloc(cfg->places, 1);
	if (!p->of) {
		paths_close(p);
		return -ENOMEM;
	}
	p->nr = cfg->nr;
	p->mask = cfg->places - 1;
	p->due_ns = PATHS_NEVER;
	p->half[GX_HALF_CTL].home = 1;
	p->half[GX_HALF_DATA].home = (1u << cfg->spread) - 1;
	for (unsigned i = 0; i < 2; i++)
		p->half[i].use = p->half[i].home;
	*out = p;
	return 0;
}

void paths_close(struct paths *p)
{
	if (!p)
		return;
	free(p->of);
	free(p);
}

/* One writer: no locked instruction. */
static inline void seen_set(_Atomic uint64_t *to, uint64_t v)
{
	atomic_store_explicit(to, v, memory_order_relaxed);
}

static inline uint64_t seen(const _Atomic uint64_t *of)
{
	return atomic_load_explicit(of, memory_order_relaxed);
}

static inline uint32_t seen_bits(const _Atomic uint32_t *of)
{
	return atomic_load_explicit(of, memory_order_relaxed);
}

static inline void seen_bits_set(_Atomic uint32_t *to, uint32_t bits)
{
	atomic_store_explicit(to, bits, memory_order_relaxed);
}

static inline unsigned bit_first(uint32_t bits)
{
	return (unsigned)__builtin_ctz(bits);
}

unsigned paths_pick(const struct paths *p, enum gx_half half)
{
	const struct half *h = &p->half[half];
	unsigned best = bit_first(h->use);

	for (uint32_t rest = h->use & (h->use - 1); rest; rest &= rest - 1)
		if (h->path[bit_first(rest)].out < h->path[best].out)
			best = bit_first(rest);
	return best;
}

/* ---- When is a path silent for too long? ---- */

/* As long as a packet and its acknowledgement take, half as much again, or three quarters where that
 * varies: so a round ends within three round trips. */
static uint64_t path_wait_ns(const struct paths *p, const struct path *t)
{
	uint64_t rtt_ns = t->rtt_ns ? t->rtt_ns : PATHS_UNKNOWN * p->rtt_ns;

	if (!rtt_ns)
		return PATHS_FIRST_NS;
	rtt_ns += GX_MIN(GX_MAX(rtt_ns / 2, 4 * t->rttvar_ns), rtt_ns * 3 / 4);
	return GX_MAX(rtt_ns, (uint64_t)PATHS_MIN_NS);
}

static uint64_t half_wait_ns(const struct paths *p, const struct half *h)
{
	uint64_t wait_ns = 0;

	for (uint32_t rest = h->use; rest; rest &= rest - 1)
		wait_ns = GX_MAX(wait_ns, path_wait_ns(p, &h->path[bit_first(rest)]));
	return wait_ns;
}

/* When the oldest packet that waits has waited for too long. */
static uint64_t half_silent_ns(const struct paths *p, const struct half *h)
{
	uint64_t due_ns = PATHS_NEVER;

	for (uint32_t rest = h->use; rest; rest &= rest - 1) {
		const struct path *t = &h->path[bit_first(rest)];

		if (t->out && t->since_ns != PATHS_NEVER)
			due_ns = GX_MIN(due_ns, t->since_ns + path_wait_ns(p, t));
	}
	return due_ns;
}

static void due_set(struct paths *p)
{
	p->due_ns = PATHS_NEVER;
	for (unsigned i = 0; i < 2; i++) {
		const struct half *h = &p->half[i];

		p->due_ns = GX_MIN(p->due_ns, h->asked_ns ? h->end_ns : half_silent_ns(p, h));
		for (uint32_t rest = h->dead; rest; rest &= rest - 1)
			p->due_ns = GX_MIN(p->due_ns, h->path[bit_first(rest)].again_ns);
	}
}

uint64_t paths_moves(const struct paths *p, enum gx_half half)
{
	return p->half[half].moves;
}

uint64_t paths_due(const struct paths *p)
{
	return p->due_ns;
}

bool paths_asks(const struct paths *p, enum gx_half half)
{
	return p->half[half].asked_ns;
}

/* ---- Packets ---- */

void paths_sent(struct paths *p, const struct flow *f, enum gx_half half, unsigned path)
{
	struct half *h = &p->half[half];
	struct path *t = &h->path[path];
	uint64_t end = flow_nr_sent(f), n = end - p->known;

	if (!n)
		return;
	if (!t->out || t->since_ns == PATHS_NEVER) {
		t->since_ns = flow_at(f, p->known)->sent_ns;
		t->out += (uint32_t)n;
		seen_bits_set(&h->seen_used, seen_bits(&h->seen_used) | 1u << path);
		due_set(p);
	} else {
		t->out += (uint32_t)n;
	}
	seen_set(&t->sent, seen(&t->sent) + n);
	for (; p->known < end; p->known++)
		p->of[p->known & p->mask] = (uint8_t)(half * GX_PATHS_MAX + path);
}

static struct half *half_at(struct paths *p, uint32_t place, struct path **t)
{
	struct half *h = &p->half[p->of[place] / GX_PATHS_MAX];

	*t = &h->path[p->of[place] % GX_PATHS_MAX];
	assert((*t)->out);
	return h;
}

/* The packet at t->place was heard of. The next one of its path is what we wait for. */
static void path_wait_anew(struct paths *p, const struct flow *f, struct path *t)
{
	uint32_t end = (uint32_t)p->known & p->mask, from = (t->place + 1) & p->mask;
	uint32_t len = end >= from ? end - from : p->mask + 1 - from;
	const uint8_t *at = memchr(p->of + from, p->of[t->place], len);

	if (!at && end < from)
		at = memchr(p->of, p->of[t->place], end);
	t->since_ns = at ? flow_at(f, (uint64_t)(at - p->of))->sent_ns : PATHS_NEVER;
}

static void path_sample(struct path *t, uint64_t rtt_ns)
{
	uint64_t off = rtt_ns > t->rtt_ns ? rtt_ns - t->rtt_ns : t->rtt_ns - rtt_ns;

	if (!t->rtt_ns) {
		t->rtt_ns = rtt_ns;
		t->rttvar_ns = rtt_ns / 2;
	} else {
		t->rttvar_ns = t->rttvar_ns - t->rttvar_ns / 4 + off / 4;
		t->rtt_ns = t->rtt_ns - t->rtt_ns / 8 + rtt_ns / 8;
	}
	seen_set(&t->seen_rtt_ns, t->rtt_ns);
}

static void dead_set(struct half *h, uint32_t dead)
{
	h->dead = dead;
	seen_bits_set(&h->seen_dead, dead);
}

static void path_die(struct half *h, unsigned i, uint64_t now_ns)
{
	struct path *t = &h->path[i];

	t->deaths = now_ns - t->born_ns > PATHS_CALM_NS ? 1 : t->deaths + 1;
	t->again_ns = now_ns + (PATHS_HOLD_NS << GX_MIN(t->deaths - 1, (uint32_t)PATHS_BACKOFF));
	dead_set(h, h->dead | 1u << i);
}

/* A dead path was heard. At home it has its place again, and the last one that stood in for it goes. */
static void path_revive(struct half *h, unsigned i, uint64_t now_ns)
{
	dead_set(h, h->dead & ~(1u << i));
	h->path[i].born_ns = now_ns;
	if (!(h->home >> i & 1) || h->use >> i & 1)
		return;
	h->use |= 1u << i;
	if (__builtin_popcount(h->use) > __builtin_popcount(h->home))
		h->use &= ~(1u << (31 - (unsigned)__builtin_clz(h->use)));
}

/* @i of @h was heard, its packet at t->place as the newest one. */
static void path_heard(struct paths *p, const struct flow *f, uint64_t now_ns, struct half *h,
		       unsigned i)
{
	struct path *t = &h->path[i];

	t->heard_ns = p->heard_ns = now_ns;
	path_sample(t, now_ns > t->sent_ns ? now_ns - t->sent_ns : 1);
	path_wait_anew(p, f, t);
	if (h->dead >> i & 1)
		path_revive(h, i, now_ns);
	if (h->asked_ns && !h->answered && t->sent_ns >= h->asked_ns) {
		h->end_ns = now_ns + t->rtt_ns / PATHS_GRACE;
		h->answered = true;
	}
}

void paths_ack_end(struct paths *p, const struct flow *f, uint64_t now_ns)
{
	uint32_t place, heard[2] = {0};
	struct path *t;
	struct half *h;

	assert(p->known == flow_nr_sent(f));
	for (uint32_t i = 0; (place = flow_lost_place(f, i)) != FLOW_NO_PLACE; i++) {
		half_at(p, place, &t);
		t->out--;
		seen_set(&t->lost, seen(&t->lost) + 1);
	}
	for (uint32_t i = 0; (place = flow_acked_place(f, i)) != FLOW_NO_PLACE; i++) {
		h = half_at(p, place, &t);
		t->out--;
		if (flow_at(f, place)->sent_ns < t->sent_ns)
			continue;
		t->sent_ns = flow_at(f, place)->sent_ns;
		t->place = place;
		heard[h - p->half] |= 1u << (t - h->path);
	}
	p->rtt_ns = flow_srtt_ns(f);
	p->spurious = flow_spurious(f);
	for (unsigned i = 0; i < 2; i++)
		for (uint32_t rest = heard[i]; rest; rest &= rest - 1)
			path_heard(p, f, now_ns, &p->half[i], bit_first(rest));
	due_set(p);
}

/* ---- Rounds ---- */

static void round_begin(struct paths *p, struct half *h, uint64_t now_ns)
{
	h->asked_ns = now_ns;
	h->end_ns = now_ns + (half_wait_ns(p, h) << GX_MIN(h->rounds, (uint32_t)PATHS_BACKOFF));
	h->answered = false;
	h->spurious = p->spurious;
}

/* Which paths answered in this round? */
static uint32_t round_heard(const struct paths *p, const struct half *h)
{
	uint32_t heard = 0;

	for (unsigned i = 0; i < p->nr; i++)
		if (h->path[i].heard_ns >= h->asked_ns)
			heard |= 1u << i;
	return heard;
}

/* A path in use has not answered, and others have. */
static void path_leave(struct half *h, unsigned i, uint32_t heard, uint64_t now_ns)
{
	uint32_t spare = heard & ~h->use & ~h->dead;
	unsigned best;

	path_die(h, i, now_ns);
	h->moves++;
	if (spare) {
		best = bit_first(spare);
		for (; spare; spare &= spare - 1)
			if (h->path[bit_first(spare)].rtt_ns < h->path[best].rtt_ns)
				best = bit_first(spare);
		h->use |= 1u << best;
	}
	if (h->use & (h->use - 1))
		h->use &= ~(1u << i);
}

static void round_end(struct paths *p, struct half *h, uint64_t now_ns)
{
	uint32_t heard = round_heard(p, h);
	bool sure = h->answered && p->spurious == h->spurious;

	for (uint32_t rest = h->use & ~heard; sure && rest; rest &= rest - 1)
		path_leave(h, bit_first(rest), heard, now_ns);
	h->rounds = h->answered ? 0 : h->rounds + 1;
	h->asked_ns = 0;
}

/* Dead paths whose time has come. */
static uint32_t half_again(struct half *h, uint64_t now_ns)
{
	uint32_t again = 0;

	for (uint32_t rest = h->dead; rest; rest &= rest - 1) {
		struct path *t = &h->path[bit_first(rest)];

		if (now_ns < t->again_ns)
			continue;
		t->again_ns =
			now_ns + (PATHS_HOLD_NS << GX_MIN(t->deaths - 1, (uint32_t)PATHS_BACKOFF));
		again |= 1u << bit_first(rest);
	}
	return again;
}

bool paths_tick(struct paths *p, uint64_t now_ns, uint32_t probe[2])
{
	uint32_t all = (1u << p->nr) - 1;
	bool seek = false;

	for (unsigned i = 0; i < 2; i++) {
		struct half *h = &p->half[i];

		probe[i] = half_again(h, now_ns);
		if (h->asked_ns && now_ns >= h->end_ns)
			round_end(p, h, now_ns);
		if (h->asked_ns || now_ns < half_silent_ns(p, h))
			continue;
		round_begin(p, h, now_ns);
		probe[i] |= h->rounds ? all : all & ~h->dead;
		seek |= now_ns - GX_MIN(now_ns, p->heard_ns) >= half_wait_ns(p, h) / PATHS_QUIET;
	}
	due_set(p);
	return seek;
}

uint32_t paths_seek(struct paths *p, uint64_t now_ns, enum gx_half half)
{
	struct half *h = &p->half[half];

	if (!h->asked_ns)
		round_begin(p, h, now_ns);
	due_set(p);
	return (1u << p->nr) - 1;
}

/* ---- State ---- */

void paths_state(const struct paths *p, enum gx_half half, struct paths_state *out)
{
	const struct half *h = &p->half[half];

	*out = (struct paths_state){.use = h->use, .dead = h->dead, .moves = h->moves};
	out->rtt_ns = h->path[bit_first(h->use)].rtt_ns;
	for (unsigned i = 0; i < p->nr; i++) {
		out->sent += out->path_sent[i] = seen(&h->path[i].sent);
		out->lost += out->path_lost[i] = seen(&h->path[i].lost);
		out->path_rtt_ns[i] = h->path[i].rtt_ns;
	}
}

void paths_look(const struct paths *p, enum gx_half half, unsigned path, struct paths_look *out)
{
	const struct half *h = &p->half[half];
	const struct path *t = &h->path[path];

	*out = (struct paths_look){.sent = seen(&t->sent),
				   .lost = seen(&t->lost),
				   .rtt_ns = seen(&t->seen_rtt_ns),
				   .dead = seen_bits(&h->seen_dead) >> path & 1};
}

bool paths_several(const struct paths *p, enum gx_half half)
{
	uint32_t used = seen_bits(&p->half[half].seen_used);

	return used & (used - 1);
}
