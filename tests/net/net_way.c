/* SPDX-License-Identifier: Apache-2.0 */
#include "net/net_way.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

enum { RNG_LOSS, RNG_BURST, RNG_LATE, RNG_DUP, RNG_CORRUPT };

/* splitmix64 (Steele, Lea, Flood 2014) */
static uint64_t rng_next(uint64_t *s)
{
	uint64_t z = *s += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static bool is_one_of(uint64_t number, uint32_t ppm)
{
	return (number >> 32) * 1000000 >> 32 < ppm;
}

/* ---- The link: bits over time, and back ---- */

double way_bits(const struct way *w, uint64_t now_ns)
{
	const struct way_cfg *c = &w->cfg;
	uint64_t cycle_ns = c->step_ns * c->nr_rates, in;
	double bits;

	if (c->nr_rates == 1)
		return (double)c->rate_bps[0] * (double)now_ns / 1e9;
	bits = (double)(now_ns / cycle_ns) * w->cycle_bits;
	in = now_ns % cycle_ns;
	for (unsigned i = 0; in; i++) {
		uint64_t part = MIN(in, c->step_ns);

		bits += (double)c->rate_bps[i] * (double)part / 1e9;
		in -= part;
	}
	return bits;
}

/* When has the link served so many? Where its rate is 0 for a while, the first moment. */
static uint64_t way_when(const struct way *w, double bits)
{
	const struct way_cfg *c = &w->cfg;
	double cycles, at_ns;

	if (c->nr_rates == 1)
		return (uint64_t)llround(bits * 1e9 / (double)c->rate_bps[0]);
	cycles = MAX(ceil(bits / w->cycle_bits) - 1, 0);
	bits -= cycles * w->cycle_bits;
	at_ns = cycles * (double)(c->step_ns * c->nr_rates);
	for (unsigned i = 0; i + 1 < c->nr_rates; i++) {
		double step = (double)c->rate_bps[i] * (double)c->step_ns / 1e9;

		if (bits <= step && c->rate_bps[i])
			return (uint64_t)llround(at_ns + bits * 1e9 / (double)c->rate_bps[i]);
		bits -= MIN(bits, step);
		at_ns += (double)c->step_ns;
	}
	if (c->rate_bps[c->nr_rates - 1])
		at_ns += bits * 1e9 / (double)c->rate_bps[c->nr_rates - 1];
	return (uint64_t)llround(at_ns);
}

/* ---- The queue ---- */

/* @w->queued_b was waiting up to @at_ns. */
static void queue_lasted(struct way *w, uint64_t at_ns)
{
	uint64_t ns = at_ns > w->seen_ns ? at_ns - w->seen_ns : 0;

	w->area += (double)w->queued_b * (double)ns;
	w->bin[MIN((w->queued_b + w->bin_b - 1) / w->bin_b, WAY_BINS - 1)] += ns;
	w->seen_ns = MAX(w->seen_ns, at_ns);
}

void way_pass(struct way *w, uint64_t now_ns)
{
	while (w->tail != w->head && w->wait[w->tail & w->mask].start_ns <= now_ns) {
		const struct way_wait *first = &w->wait[w->tail++ & w->mask];

		queue_lasted(w, first->start_ns);
		w->queued_b -= first->len_b;
	}
	queue_lasted(w, now_ns);
}

static bool queue_put(struct way *w, uint64_t start_ns, uint32_t len_b)
{
	uint32_t nr = w->head - w->tail;

	if (nr > w->mask) {
		struct way_wait *more = malloc(2 * (size_t)nr * sizeof(*more));

		if (!more)
			return false;
		for (uint32_t i = 0; i < nr; i++)
			more[i] = w->wait[(w->tail + i) & w->mask];
		free(w->wait);
		w->wait = more;
		w->tail = 0;
		w->head = nr;
		w->mask = 2 * nr - 1;
	}
	w->wait[w->head++ & w->mask] = (struct way_wait){start_ns, len_b};
	w->queued_b += len_b;
	w->queue_max_b = MAX(w->queue_max_b, w->queued_b);
	return true;
}

/* ---- Packets ---- */

static bool burst_takes(struct way *w)
{
	uint64_t number = rng_next(&w->rng[RNG_BURST]);
	uint32_t goes_on_ppm = 1000000 - 1000000 / MAX(w->cfg.burst_len, 1u);
	bool takes = w->in_burst || is_one_of(number, w->cfg.burst_ppm);

	w->in_burst = takes && is_one_of(rng_next(&number), goes_on_ppm);
	return takes;
}

/* Mishaps of a packet that leaves the link at @out_ns. All dice fall for each packet. */
static struct way_fate mishaps(struct way *w, uint64_t out_ns)
{
	const struct way_cfg *c = &w->cfg;
	bool lost = is_one_of(rng_next(&w->rng[RNG_LOSS]), c->loss_ppm), burst = burst_takes(w);
	uint64_t damage = rng_next(&w->rng[RNG_CORRUPT]);
	struct way_fate f = {.late = is_one_of(rng_next(&w->rng[RNG_LATE]), c->late_ppm),
			     .dup = is_one_of(rng_next(&w->rng[RNG_DUP]), c->dup_ppm),
			     .corrupt = is_one_of(damage, c->corrupt_ppm),
			     .bit = (uint32_t)damage};

	f.due_ns = out_ns + c->delay_ns + (f.late ? c->late_ns : 0);
	if (c->off_ns && out_ns % (c->on_ns + c->off_ns) >= c->on_ns)
		f.drop = WAY_DARK;
	else if (lost)
		f.drop = WAY_LOST;
	else if (burst)
		f.drop = WAY_BURST;
	return f;
}

static void fate_count(struct way *w, const struct way_fate *f, uint32_t len_b)
{
	w->n.packets++;
	w->n.bytes += len_b;
	w->n.drop[f->drop]++;
	if (f->drop != WAY_PASSES)
		return;
	w->n.passed++;
	w->n.passed_b += len_b;
	w->n.marks += f->mark;
	w->n.dups += f->dup;
	w->n.lates += f->late;
	w->n.corrupts += f->corrupt;
}

struct way_fate way_take(struct way *w, uint64_t now_ns, uint32_t len_b, bool ect)
{
	double now = way_bits(w, now_ns), from = MAX(w->served, now),
	       bucket = 8.0 * (double)w->cfg.bucket_b;
	uint64_t start_ns = MAX(now_ns, way_when(w, MAX(0, from - bucket)));
	uint64_t out_ns = MAX(start_ns, way_when(w, MAX(0, from + 8.0 * len_b - bucket)));
	struct way_fate f = mishaps(w, out_ns);

	way_pass(w, now_ns);
	f.mark = ect && w->cfg.mark_b && w->queued_b > w->cfg.mark_b;
	if (start_ns > now_ns &&
	    (w->queued_b + len_b > w->cfg.queue_b || !queue_put(w, start_ns, len_b)))
		f.drop = WAY_QUEUE_FULL;
	else
		w->served = from + 8.0 * len_b;
	fate_count(w, &f, len_b);
	return f;
}

/* ---- Open, close, figures ---- */

int way_open(struct way *w, const struct way_cfg *cfg)
{
	uint64_t seed = cfg->seed;

	*w = (struct way){.cfg = *cfg, .mask = 1023};
	if (!cfg->nr_rates || cfg->nr_rates > WAY_RATES || !cfg->rate_bps[0] ||
	    (cfg->nr_rates > 1 && !cfg->step_ns))
		return -EINVAL;
	for (unsigned i = 0; i < cfg->nr_rates; i++)
		w->cycle_bits += (double)cfg->rate_bps[i] * (double)cfg->step_ns / 1e9;
	for (unsigned i = 0; i < sizeof(w->rng) / sizeof(*w->rng); i++)
		w->rng[i] = rng_next(&seed);
	w->bin_b = MAX(cfg->queue_b / (WAY_BINS - 2), 1ull);
	w->wait = malloc((w->mask + 1) * sizeof(*w->wait));
	return w->wait ? 0 : -ENOMEM;
}

void way_close(struct way *w)
{
	free(w->wait);
	w->wait = NULL;
}

void way_count_anew(struct way *w, uint64_t now_ns)
{
	way_pass(w, now_ns);
	w->n = (struct way_counts){0};
	memset(w->bin, 0, sizeof(w->bin));
	w->area = 0;
	w->queue_max_b = w->queued_b;
	w->since_ns = now_ns;
}

double way_queue_mean_b(const struct way *w)
{
	return w->seen_ns > w->since_ns ? w->area / (double)(w->seen_ns - w->since_ns) : 0;
}

uint64_t way_queue_p_b(const struct way *w, double part)
{
	double left = part * (double)(w->seen_ns - w->since_ns);

	for (uint64_t i = 0; i < WAY_BINS; i++) {
		left -= (double)w->bin[i];
		if (left <= 0)
			return i * w->bin_b;
	}
	return (WAY_BINS - 1) * w->bin_b;
}
