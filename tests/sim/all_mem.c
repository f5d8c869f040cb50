/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model of memory. Of each area of each node it knows the cells that operations name; all other
 * bytes are poison. Patterns never have the byte of the poison, so that each byte tells whether it was
 * written, and by whom.
 */
#include "sim/all.h"

#include <string.h>

#define GUARD 16u /* bytes between cells of different operations, at least */

static uint8_t poison[4096];

static uint64_t pattern_word(uint32_t op, uint32_t word)
{
	uint64_t x = ((uint64_t)op << 32 | word) * 0x9e3779b97f4a7c15u;

	return x ^ x >> 29;
}

static uint8_t pattern_byte(uint32_t op, uint32_t pos)
{
	uint8_t b = (uint8_t)(pattern_word(op, pos / 8) >> pos % 8 * 8);

	return b == ALL_POISON ? 0x5a : b;
}

void pattern_fill(uint8_t *b, uint32_t op, uint32_t pos, uint32_t len)
{
	for (uint32_t i = 0; i < len; i++)
		b[i] = pattern_byte(op, pos + i);
}

/* ---- cells ---- */

uint8_t *cell_at(const struct cell *c)
{
	return world->node[c->node].area[c->area].b + c->off;
}

/* The first cell that ends behind @off. */
static unsigned area_find(const struct area *a, uint32_t off)
{
	unsigned lo = 0, hi = a->nr;

	while (lo < hi) {
		unsigned mid = (lo + hi) / 2;

		if (a->at[mid]->off + a->at[mid]->len > off)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

static bool area_is_free(const struct area *a, uint32_t off, uint32_t len, uint32_t op)
{
	unsigned i = area_find(a, off < GUARD ? 0 : off - GUARD);

	for (; i < a->nr && a->at[i]->off < off + len + GUARD; i++) {
		const struct cell *c = a->at[i];
		bool apart = c->off >= off + len || c->off + c->len <= off;

		if (c->op != op || !apart)
			return false;
	}
	return true;
}

static struct cell *cell_take(void)
{
	for (unsigned i = 0; i < ALL_CELLS; i++) {
		struct cell *c = &world->cell[world->cell_next++ % ALL_CELLS];

		if (!c->used)
			return c;
	}
	return NULL;
}

struct cell *cell_new_at(unsigned node, enum area_id area, uint32_t off, uint32_t len, uint32_t op,
			 uint32_t pos, enum cell_state state)
{
	struct area *a = &world->node[node].area[area];
	struct cell *c;
	unsigned i;

	if (off + len > ALL_AREA_B || !len || a->nr == GX_ARRAY_SIZE(a->at) ||
	    !area_is_free(a, off, len, op))
		return NULL;
	c = cell_take();
	if (!c)
		return NULL;
	*c = (struct cell){.op = op,
			   .pos = pos,
			   .off = off,
			   .len = len,
			   .node = (uint8_t)node,
			   .area = (uint8_t)area,
			   .state = state,
			   .used = true};
	i = area_find(a, off);
	memmove(&a->at[i + 1], &a->at[i], (a->nr - i) * sizeof(a->at[0]));
	a->at[i] = c;
	a->nr++;
	if (state == CELL_SRC)
		pattern_fill(cell_at(c), op, pos, len);
	return c;
}

struct cell *cell_new(unsigned node, enum area_id area, uint32_t lo, uint32_t hi, uint32_t len,
		      uint32_t op, uint32_t pos, enum cell_state state)
{
	struct cell *c = NULL;

	if (hi - lo < len)
		return NULL;
	for (unsigned i = 0; i < 8 && !c; i++)
		c = cell_new_at(node, area, lo + (uint32_t)rnd(hi - lo - len + 1), len, op, pos,
				state);
	return c;
}

static void cell_drop(struct cell *c)
{
	struct area *a = &world->node[c->node].area[c->area];
	unsigned i;

	for (i = 0; a->at[i] != c; i++)
		;
	memmove(&a->at[i], &a->at[i + 1], (a->nr - i - 1) * sizeof(a->at[0]));
	a->nr--;
	c->used = false;
}

void cell_free(struct cell *c)
{
	if (!c)
		return;
	memset(cell_at(c), ALL_POISON, c->len);
	cell_drop(c);
}

void area_forget(unsigned node)
{
	for (uint32_t i = 1; i <= world->nr_ops; i++) {
		struct aop *op = &world->op[i];

		for (unsigned k = 0; k < op->nr_segs; k++) {
			struct cell **c[] = {&op->from[k], &op->to[k]};

			for (unsigned e = 0; e < 2; e++) {
				if (!*c[e] || (*c[e])->node != node)
					continue;
				cell_drop(*c[e]);
				*c[e] = NULL;
			}
		}
	}
}

/* ---- checks ---- */

bool cell_is_full(const struct cell *c)
{
	const uint8_t *b = cell_at(c);

	for (uint32_t i = 0; i < c->len; i++)
		if (b[i] != pattern_byte(c->op, c->pos + i))
			return false;
	return true;
}

static const char *area_name(unsigned area)
{
	static const char *const names[] = {"mem", "reg", "raw"};

	return names[area];
}

/* Which operation's bytes lie at @b? Says so in the trace. */
static void whose(const uint8_t *b)
{
	for (uint32_t op = 1; op <= world->nr_ops; op++)
		for (uint32_t pos = 0; pos < world->op[op].len; pos++) {
			unsigned n = 0;

			while (n < 6 && b[n] == pattern_byte(op, pos + n))
				n++;
			if (n == 6)
				fprintf(stderr, "there lie bytes %u and on of operation %u\n", pos,
					op);
		}
}

/* A packet is decrypted to its place, and then found damaged (docs/wire.md): until the operation is done
 * the bytes say nothing. A read of another process
 * may come too late, and is then found to (packet/pull.c). */
static bool cell_may_be_any(const struct cell *c)
{
	bool gcm = world->integrity == GX_INTEGRITY_GCM && world->net_cfg.corrupt_ppm;

	return c->state == CELL_RECV || ((gcm || world->pulls) && c->state != CELL_SRC);
}

void cell_check(const struct cell *c)
{
	const uint8_t *b = cell_at(c);
	bool may_be_poison = c->state != CELL_SRC;
	/* A frame of an operation that was cancelled goes on with zeros (tcp/tcp_abort.c). */
	bool may_be_zero = may_be_poison && world->life[world->op[c->op].life].kind == KIND_TCP;

	for (uint32_t i = 0; i < c->len && !cell_may_be_any(c); i++) {
		if (b[i] == pattern_byte(c->op, c->pos + i) ||
		    (may_be_poison && b[i] == ALL_POISON) || (may_be_zero && !b[i]))
			continue;
		whose(b + i);
		wrong("byte %u of %u of operation %u, at %u of %s of node %u: %02x is neither its own%s",
		      c->pos + i, c->len, c->op, c->off + i, area_name(c->area), c->node, b[i],
		      may_be_poison ? " nor untouched" : "");
	}
}

static void gap_check(unsigned node, unsigned area, uint32_t from, uint32_t to)
{
	const uint8_t *b = world->node[node].area[area].b;

	for (uint32_t at = from; at < to; at += sizeof(poison)) {
		uint32_t n = GX_MIN(to - at, (uint32_t)sizeof(poison));

		if (!memcmp(b + at, poison, n))
			continue;
		while (b[at] == ALL_POISON)
			at++;
		whose(b + at);
		wrong("byte %u of %s of node %u was written, where no operation may write: %02x",
		      at, area_name(area), node, b[at]);
	}
}

void mem_check(void)
{
	memset(poison, ALL_POISON, sizeof(poison));
	world->counts.checks++;
	for (unsigned n = 0; n < world->nr_nodes; n++)
		for (unsigned k = 0; k < AREAS; k++) {
			const struct area *a = &world->node[n].area[k];
			uint32_t at = 0;

			for (unsigned i = 0; i < a->nr; i++) {
				gap_check(n, k, at, a->at[i]->off);
				cell_check(a->at[i]);
				at = a->at[i]->off + a->at[i]->len;
			}
			gap_check(n, k, at, ALL_AREA_B);
		}
}
