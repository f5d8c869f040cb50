/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu/unpack_core.h on the CPU: plans are walked as the kernel walks them, one unit after another,
 * and every byte must be copied once, by units of similar weight.
 */
#include "crc_core.h"
#include "gx_internal/base.h"
#include "gx_internal/warm.h"
#include "resident_core.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SRC_B	  (4u << 20)
#define DST_B	  (8u << 20)
#define CUT_GUARD 4096 /* cuts that a plan must not write */
#define GAP	  3    /* bytes between destinations: nothing is aligned by accident */

struct plan {
	struct gx_block block[GX_UNPACK_BLOCKS_MAX];
	struct gx_block *list[GX_UNPACK_BLOCKS_MAX];
	struct gx_cut *cut[GX_UNPACK_BLOCKS_MAX];
	struct gx_unpack_args args;
	uint8_t *src, *dst, *want;
	uint64_t dst_used;
	uint32_t rnd;
};

static uint32_t plan_random(struct plan *p)
{
	p->rnd = p->rnd * 1664525u + 1013904223u;
	return p->rnd >> 8;
}

static void plan_block(struct plan *p, unsigned i)
{
	struct gx_block *b = &p->block[i];

	b->src_base = (uintptr_t)p->src;
	b->desc = calloc(GX_BLOCK_DESCS_MAX, sizeof(*b->desc));
	b->aux = calloc(GX_BLOCK_DESCS_MAX, sizeof(*b->aux));
	b->seg = calloc(GX_BLOCK_SEGS_MAX, sizeof(*b->seg));
	b->seg[0] = (struct gx_dest){(uintptr_t)p->dst, DST_B};
	b->nr_seg = 1;
	p->list[i] = b;
	p->cut[i] = calloc(GX_UNITS_MAX + 1 + CUT_GUARD, sizeof(struct gx_cut));
}

static int setup(void **state)
{
	struct plan *p = calloc(1, sizeof(*p));

	p->src = malloc(SRC_B);
	p->dst = calloc(1, DST_B);
	p->want = calloc(1, DST_B);
	p->rnd = 1;
	for (unsigned i = 0; i < SRC_B; i++)
		p->src[i] = plan_random(p) | 1;
	for (unsigned i = 0; i < GX_UNPACK_BLOCKS_MAX; i++)
		plan_block(p, i);
	*state = p;
	return 0;
}

static int teardown(void **state)
{
	struct plan *p = *state;

	for (unsigned i = 0; i < GX_UNPACK_BLOCKS_MAX; i++) {
		free(p->block[i].desc);
		free(p->block[i].aux);
		free(p->block[i].seg);
		free(p->cut[i]);
	}
	free(p->src);
	free(p->dst);
	free(p->want);
	free(p);
	return 0;
}

static void plan_desc(struct plan *p, unsigned block, uint32_t len)
{
	struct gx_block *b = &p->block[block];
	struct gx_desc *d = &b->desc[b->nr++];

	d->len = len;
	d->src_off = len < SRC_B ? plan_random(p) % (SRC_B - len) : 0;
	d->dst_off = p->dst_used;
	assert_true(d->dst_off + len <= DST_B);
	memcpy(p->want + d->dst_off, p->src + d->src_off, len);
	p->dst_used += len + GAP;
}

/* Copy with the accesses of the kernel: bytes, and 16-byte words made of two aligned ones. */
static void piece_copy(const struct gx_piece *piece)
{
	struct gx_split s = gx_split_get(piece->dst, piece->src, piece->len);
	uint8_t *dst = (uint8_t *)(uintptr_t)piece->dst;
	const uint8_t *src = (const uint8_t *)(uintptr_t)piece->src;
	const uint8_t *from = src + s.head - s.skew;

	assert_true(s.head < 16 && s.tail < 16);
	assert_int_equal(s.head + 16 * s.words + s.tail, piece->len);
	for (uint32_t i = 0; i < piece->len; i++)
		assert_int_equal(dst[i], 0); /* nobody was here before */
	memcpy(dst, src, s.head);
	for (uint32_t i = 0; i < s.words; i++) {
		uint32_t w[8] = {0}, out[4];

		assert_int_equal((uintptr_t)(dst + s.head + 16 * i) % 16, 0);
		memcpy(w, from + 16 * i, s.skew ? 32 : 16);
		gx_word_at(w, s.skew, out);
		memcpy(dst + s.head + 16 * i, out, 16);
	}
	memcpy(dst + piece->len - s.tail, src + piece->len - s.tail, s.tail);
}

/* What one warp does with a unit. Return: its weight. */
static uint64_t unit_run(const struct gx_unpack_arg *arg, uint32_t unit, uint32_t step)
{
	struct gx_cut from = gx_cut_get(arg, unit, step);
	struct gx_cut to = gx_cut_get(arg, unit + 1, step);
	uint64_t weight = 0;

	for (uint32_t i = from.desc; i < gx_cut_end(&to); i++) {
		const struct gx_block *b = &arg->block;
		struct gx_piece piece =
			gx_piece_get(b, &b->desc[i], &b->seg[b->aux[i].seg], i, &from, &to);

		assert_int_equal(piece.status, GX_BLOCK_OK);
		if (piece.len)
			piece_copy(&piece);
		weight += piece.len + GX_DESC_WEIGHT;
	}
	return weight;
}

static void plan_check(struct plan *p, unsigned n, uint32_t warps)
{
	uint32_t units = gx_unpack_plan(&p->args, p->list, p->cut, n, warps);
	uint64_t most = (uint64_t)p->args.step + GX_WHOLE_MAX + 2 * GX_DESC_WEIGHT + GX_CUT_ALIGN;
	uint32_t first = 0;

	memset(p->dst, 0, DST_B);
	assert_int_equal(p->args.unit_end[n - 1], units);
	for (unsigned b = 0; b < n; b++) {
		const struct gx_unpack_arg *arg = &p->args.arg[b];

		assert_in_range(arg->nr_unit, 1, GX_UNITS_MAX);
		assert_int_equal(p->args.unit_end[b], first + arg->nr_unit);
		for (uint32_t unit = 0; unit < arg->nr_unit; unit++)
			assert_true(unit_run(arg, unit, p->args.step) <= most);
		first += arg->nr_unit;
	}
	assert_memory_equal(p->dst, p->want, DST_B);
}

static void plan__empty_block(void **state)
{
	struct plan *p = *state;

	plan_check(p, 1, 256);
	assert_int_equal(p->args.arg[0].nr_unit, 1);
}

static void plan__equal_lengths(void **state)
{
	static const uint32_t len[] = {1, 16, 1392, 2048, 2049, 3328, 4096, 8944};
	struct plan *p = *state;

	for (unsigned k = 0; k < GX_ARRAY_SIZE(len); k++) {
		p->block[0].nr = 0;
		p->dst_used = 0;
		memset(p->want, 0, DST_B);
		for (unsigned i = 0; i < 700; i++)
			plan_desc(p, 0, len[k]);
		plan_desc(p, 0, len[k] / 3);
		plan_check(p, 1, 256);
		assert_int_equal(p->args.arg[0].len, len[k]);
	}
}

static void plan__one_large(void **state)
{
	struct plan *p = *state;

	plan_desc(p, 0, 3u << 20);
	plan_check(p, 1, 256);
	assert_in_range(p->args.unit_end[0], 250, 256); /* one descriptor feeds all warps, once */
}

static void plan__large_among_small(void **state)
{
	struct plan *p = *state;

	for (unsigned i = 0; i < 2048; i++)
		plan_desc(p, 0, i == 77 ? 2u << 20 : i % 100);
	plan_check(p, 1, 256);
	assert_int_equal(p->args.arg[0].len, 0);
}

static void plan__last_is_longer(void **state)
{
	struct plan *p = *state;

	for (unsigned i = 0; i < 10; i++)
		plan_desc(p, 0, 4096);
	plan_desc(p, 0, 50000);
	plan_check(p, 1, 256);
	assert_int_equal(p->args.arg[0].len, 0);
}

static void plan__lengths_of_zero(void **state)
{
	struct plan *p = *state;

	for (unsigned i = 0; i < 100; i++)
		plan_desc(p, 0, 0);
	plan_check(p, 1, 256);
}

static void plan__random_blocks(void **state)
{
	struct plan *p = *state;

	for (unsigned round = 0; round < 10; round++) {
		unsigned n = 1 + plan_random(p) % GX_UNPACK_BLOCKS_MAX;
		uint32_t warps = GX_UNPACK_WARPS << round % 8;

		p->dst_used = 0;
		memset(p->want, 0, DST_B);
		for (unsigned b = 0; b < n; b++) {
			uint32_t nr = plan_random(p) % 300;

			p->block[b].nr = 0;
			for (uint32_t i = 0; i < nr; i++)
				plan_desc(p, b, plan_random(p) % (i % 50 ? 1500 : 9000));
		}
		plan_check(p, n, warps);
	}
}

/* Only the plan: 2,048 descriptors of 1 GiB exceed 32 bits and must not exceed the cut list. */
static void plan__huge(void **state)
{
	struct plan *p = *state;
	struct gx_block *b = &p->block[0];

	for (b->nr = 0; b->nr < GX_BLOCK_DESCS_MAX; b->nr++)
		b->desc[b->nr].len = (1u << 30) + b->nr;
	gx_unpack_plan(&p->args, p->list, p->cut, 1, 1u << 20);
	assert_in_range(p->args.arg[0].nr_unit, GX_UNITS_MAX / 2, GX_UNITS_MAX);
	for (uint32_t i = 1; i < p->args.arg[0].nr_unit; i++) {
		struct gx_cut a = p->cut[0][i - 1], z = p->cut[0][i];

		assert_true(z.desc > a.desc || (z.desc == a.desc && z.off >= a.off));
		assert_true(z.desc < b->nr && z.off < b->desc[z.desc].len);
	}
}

/* The job as it is posted to the ring, where it is the only block of its plan. */
static struct gx_cut cut_of(const struct gx_unpack_arg *arg, uint32_t unit, uint32_t step, bool job)
{
	return job ? gx_res_cut(arg, unit, step) : gx_cut_get(arg, unit, step);
}

/* All units of a block: what fits is copied whole, each byte once; what does not is refused. */
static void garbage_walk(struct plan *p, struct gx_unpack_arg *arg, uint32_t step, bool job)
{
	static uint64_t copied[GX_BLOCK_DESCS_MAX];
	static bool refused[GX_BLOCK_DESCS_MAX];
	const struct gx_block *b = &arg->block;

	memset(copied, 0, sizeof(copied));
	memset(refused, 0, sizeof(refused));
	assert_in_range(arg->nr_unit, 1, GX_UNITS_MAX);
	assert_true(step >= GX_UNIT_MIN && step % GX_CUT_ALIGN == 0);
	arg->block.bytes = job ? gx_res_ratio(arg->len, step) : arg->block.bytes;
	for (uint32_t unit = 0; unit < arg->nr_unit; unit++) {
		struct gx_cut from = cut_of(arg, unit, step, job);
		struct gx_cut to = cut_of(arg, unit + 1, step, job);

		assert_true(gx_cut_end(&to) <= b->nr);
		for (uint32_t i = from.desc; i < gx_cut_end(&to); i++) {
			struct gx_piece piece =
				gx_piece_get(b, &b->desc[i], &b->seg[0], i, &from, &to);

			copied[i] += piece.len;
			refused[i] |= piece.status == GX_BLOCK_BOUNDS;
		}
	}
	for (uint32_t i = 0; i < b->nr; i++) {
		bool fits = gx_desc_fits(&b->desc[i], &b->seg[0]);

		assert_int_equal(refused[i], !fits);
		assert_int_equal(copied[i], fits ? b->desc[i].len : 0);
	}
}

/* Lengths are what somebody else wrote: all of them are refused, however heavy they seem. */
static void plan__garbage_lengths(void **state)
{
	static const uint32_t len[] = {0xfffffec0u, 0xffffffffu, 0xfffffe80u, 0x80000000u};
	static const uint32_t nrs[] = {1, 2, 3, 19, 75, 319, 320, 2048};
	static const uint32_t warps[] = {19, 20, 76, 320, 2640};
	struct plan *p = *state;

	for (unsigned k = 0; k < 2 * GX_ARRAY_SIZE(len) * GX_ARRAY_SIZE(nrs); k++) {
		uint32_t nr = nrs[k / 2 % GX_ARRAY_SIZE(nrs)];

		for (unsigned b = 0; b < 2; b++) {
			p->block[b].nr = 0;
			for (uint32_t i = 0; i < nr; i++) {
				struct gx_desc *d = &p->block[b].desc[p->block[b].nr++];

				/* Equal lengths, and good ones among them. */
				d->len = k % 2 && i % 3 == 1 ? 5000 + i : len[k / 16];
				d->src_off = d->dst_off = 0;
			}
		}
		for (unsigned w = 0; w < GX_ARRAY_SIZE(warps); w++)
			for (unsigned n = 1; n <= 2; n++) {
				gx_unpack_plan(&p->args, p->list, p->cut, n, warps[w]);
				for (unsigned b = 0; b < n; b++)
					garbage_walk(p, &p->args.arg[b], p->args.step, false);
				if (n == 1)
					garbage_walk(p, &p->args.arg[0], p->args.step, true);
			}
		for (unsigned i = 0; i < 2 * CUT_GUARD; i++)
			assert_int_equal(p->cut[i % 2][GX_UNITS_MAX + 1 + i / 2].desc, 0);
	}
}

/* What is so long that it weighs 2^32 is not made even: the job's step has 32 bits. */
static void res_even__garbage_lengths(void **state)
{
	for (uint32_t len = 0xfffffe00u; len >= 0xfffffe00u; len += 16) {
		struct gx_res_job job = {.arg = {.len = len, .nr_unit = 3, .block.nr = 3},
					 .step = GX_STEP_MAX};

		gx_res_even(&job);
		assert_true(job.step >= GX_UNIT_MIN);
		assert_int_equal(job.arg.nr_unit, 3);
	}
}

static void fits__at_the_limits(void **state)
{
	struct gx_dest seg = {0x1000, 100};
	struct gx_desc d[] = {
		{0, 100, 0},	    {0, 0, 100},
		{0, 1, 99}, /* these fit */
		{0, 101, 0},	    {0, 1, 100},
		{0, 0, 101},	    {0, 4, UINT64_MAX - 3},
		{0, UINT32_MAX, 1}, {0, 100, (uint64_t)1 << 32},
	};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(d); i++)
		assert_int_equal(gx_desc_fits(&d[i], &seg), i < 3);
}

static void piece__out_of_bounds_is_empty(void **state)
{
	struct gx_block b = {.src_base = 0x1000, .nr = 1, .nr_seg = 1};
	struct gx_dest seg = {0x2000, 100};
	struct gx_desc d = {0, 101, 0};
	struct gx_cut from = {0, 0}, to = {1, 0};
	struct gx_piece p = gx_piece_get(&b, &d, &seg, 0, &from, &to);

	assert_int_equal(p.status, GX_BLOCK_BOUNDS);
	assert_int_equal(p.len, 0);
	d.len = 10;
	p = gx_piece_get(&b, &d, NULL, 0, &from, &to);
	assert_int_equal(p.status, GX_BLOCK_BOUNDS);
	assert_int_equal(p.len, 0);
}

static void split__every_alignment(void **state)
{
	struct plan *p = *state;

	for (unsigned s = 0; s < 16; s++)
		for (unsigned d = 0; d < 16; d++)
			for (unsigned len = 0; len < 70; len++) {
				struct gx_piece piece = {(uintptr_t)p->dst + 64 + d,
							 (uintptr_t)p->src + 64 + s, len, 0};

				memset(p->dst, 0, 256);
				piece_copy(&piece);
				assert_memory_equal(p->dst + 64 + d, p->src + 64 + s, len);
				assert_int_equal(p->dst[64 + d + len], 0);
				assert_int_equal(p->dst[63 + d], 0);
			}
}

/* --- the CRC of a fragment, as a warp computes it --- */

static uint32_t crc_advance(const uint32_t *t, uint32_t table, uint32_t c)
{
	return gx_crc_nibbles(t + table * 16, 1, c);
}

/* lanes_crc::copy() of unpack.cu, lane after lane. */
static uint32_t crc_model(const uint32_t *t, const uint8_t *data, const struct gx_split *s)
{
	uint32_t acc[32] = {0}, turned[32], tail = 0;

	for (uint32_t i = 0; i < s->head; i++)
		acc[31] ^= gx_crc_byte(t, 1, 16 - s->head + i, data[i] ^ (i < 4 ? 255 : 0));
	for (uint32_t i = 0; i < s->words; i++) {
		uint32_t w[4];

		memcpy(w, data + s->head + i * 16, 16);
		w[0] ^= i ? 0 : gx_crc_first(s->head);
		acc[i % 32] = crc_advance(t, GX_CRC_ADVANCE, acc[i % 32]) ^ gx_crc_word(t, 1, w);
	}
	for (uint32_t i = 0; i < 32; i++)
		turned[i] = acc[(i + s->words) & 31];
	for (uint32_t level = 0; level < 5; level++)
		for (uint32_t i = 0; i + (1 << level) < 32; i += 2 << level)
			turned[i] = crc_advance(t, GX_CRC_LANES + 8 * level, turned[i]) ^
				    turned[i + (1 << level)];
	for (uint32_t bit = 0; bit < 4; bit++)
		if (s->tail >> bit & 1)
			turned[0] = crc_advance(t, GX_CRC_BYTES + 8 * bit, turned[0]);
	for (uint32_t i = 0; i < s->tail; i++)
		tail ^= gx_crc_byte(t, 1, 16 - s->tail + i, data[s->head + s->words * 16 + i]);
	return ~(turned[0] ^ tail);
}

static void crc__every_split(void **state)
{
	struct plan *p = *state;
	uint32_t *t = malloc(GX_CRC_WORDS * sizeof(*t));

	gx_crc_tables(t);
	for (uint32_t len = 31; len < 2100; len += len < 600 ? 1 : 37)
		for (uint32_t dst = 0; dst < 16; dst++) {
			struct gx_split s = gx_split_get(dst, 0, len);

			assert_int_equal(crc_model(t, p->src + dst, &s),
					 gx_crc32c(0, p->src + dst, len));
		}
	free(t);
}

/* --- the ring of mode resident --- */

static void res_sharers__none_for_nothing(void **state)
{
	for (uint32_t units = 1; units < 400; units++)
		for (uint32_t blocks = 1; blocks <= 132; blocks += 13) {
			uint32_t sharers = gx_res_sharers(units, GX_UNIT_MIN, blocks);

			uint32_t share = gx_res_share(units, sharers);

			assert_in_range(sharers, 1, GX_MIN(blocks, units));
			assert_int_equal(gx_res_share_blocks(share), sharers);
			assert_int_equal(gx_res_share_first(share, 0), 0);
			assert_int_equal(gx_res_share_first(share, sharers), units);
			for (uint32_t b = 0; b < sharers; b++)
				assert_true(gx_res_share_first(share, b) <
					    gx_res_share_first(share, b + 1));
		}
	assert_int_equal(gx_res_sharers(32, GX_UNIT_MIN, 132), 1);
	assert_int_equal(gx_res_sharers(304, 1u << 20, 132), 132);
}

/* Whoever is there has the units of those that are not. */
static void res_share_here__all_units(void **state)
{
	for (uint32_t here = 1; here <= 140; here++) {
		uint32_t all = gx_res_share(1000, 132);
		uint32_t share = gx_res_share_here(all, 1000, here);
		uint32_t n = gx_res_share_blocks(share);

		assert_int_equal(n, GX_MIN(here, 132u));
		assert_int_equal(gx_res_share_first(share, 0), 0);
		assert_int_equal(gx_res_share_first(share, n), 1000);
		for (uint32_t b = 0; b < n; b++)
			assert_in_range(gx_res_share_first(share, b + 1) -
						gx_res_share_first(share, b),
					1000 / n, 1000 / n + 1);
	}
}

static void res_count__worst_of_all(void **state)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < 200; i++)
		sum += gx_res_count(5, GX_BLOCK_OK);
	assert_int_equal((uint32_t)sum, 1000);
	assert_int_equal(gx_res_worst(sum), GX_BLOCK_OK);
	for (unsigned i = 0; i < 200; i++)
		sum += gx_res_count(5, GX_BLOCK_CRC);
	assert_int_equal(gx_res_worst(sum), GX_BLOCK_CRC);
	sum += gx_res_count(5, GX_BLOCK_BOUNDS);
	assert_int_equal(gx_res_worst(sum), GX_BLOCK_BOUNDS);
	assert_int_equal((uint32_t)sum, 2005);
}

static void res_done_from__all_jobs_before(void **state)
{
	for (uint32_t wait_to = 0xffffff00u; wait_to != 300; wait_to++)
		for (uint32_t slot = 0; slot < GX_RES_RING; slot++) {
			uint32_t from = gx_res_done_from(wait_to, slot), job = from - 1;

			assert_int_equal(job % GX_RES_RING, slot);
			assert_in_range(wait_to - 1 - job, 0, GX_RES_RING - 1);
		}
	/* Nothing was ever done, and nothing has to be. */
	assert_true((int32_t)(0 - gx_res_done_from(0, 5)) >= 0);
}

static void res_ring__room_and_words(void **state)
{
	struct gx_res_shared *sh = calloc(1, sizeof(*sh));
	struct gx_res_ring r = {
		.blocks = 4, .shared = sh, .head = 0xfffffff0u, .tail = 0xfffffff0u};
	struct gx_res_job job = {.kind = 7, .value = 0x12345678};

	for (uint32_t i = 0; i < GX_RES_RING; i++) {
		assert_int_equal(gx_res_room(&r), GX_RES_RING - i);
		job.step = i;
		gx_res_post(&r, &job);
	}
	assert_int_equal(gx_res_room(&r), 0);
	for (uint32_t i = 0; i < GX_RES_RING; i++) {
		uint32_t number = 0xfffffff0u + i, words[GX_RES_WORDS];
		const struct gx_res_slot *slot = &sh->slot[number % GX_RES_RING];

		for (unsigned w = 0; w < GX_RES_WORDS; w++) {
			assert_int_equal(slot->word[w] >> 32, (uint32_t)(number + 1));
			words[w] = (uint32_t)slot->word[w];
		}
		job.step = i;
		assert_memory_equal(words, &job, sizeof(job));
	}
	sh->done[0xfffffff1u % GX_RES_RING] = 0xfffffff2u; /* the second before the first */
	assert_int_equal(gx_res_room(&r), 0);
	sh->done[0xfffffff0u % GX_RES_RING] = 0xfffffff1u;
	assert_int_equal(gx_res_room(&r), 2);
	free(sh);
}

/* 2^31 jobs after the last copy, or without one: it is behind, not ahead. */
static void res_ring__copies_are_forgotten(void **state)
{
	struct gx_res_shared *sh = calloc(1, sizeof(*sh));
	struct gx_res_ring r = {.blocks = 4, .shared = sh};
	struct gx_res_job job = {.kind = GX_RES_UNPACK};

	for (uint32_t at = 0x7fffffe8u; at < 0x80000010u; at++) {
		r.head = r.tail = at;
		gx_res_room(&r);
		assert_true((int32_t)(r.copies - r.tail) <= 0);
		assert_true(r.tail - r.copies < GX_RES_RING);
	}
	r.copies = r.head + 1; /* one that is under way is not */
	gx_res_post(&r, &job);
	gx_res_room(&r);
	assert_int_equal(r.copies - r.tail, 1);
	sh->done[(r.head - 1) % GX_RES_RING] = r.head;
	gx_res_room(&r);
	assert_int_equal(r.copies, r.tail);
	free(sh);
}

/* 2^31 launches after the last STOP, or without one. */
static void res_ring__stops_are_forgotten(void **state)
{
	struct gx_res_shared *sh = calloc(1, sizeof(*sh));
	struct gx_res_ring r = {.blocks = 4, .shared = sh};

	for (uint32_t at = 0x7fffffe8u; at < 0x80000010u; at++) {
		sh->ended = r.launched = at;
		assert_int_equal(gx_res_alive(&r, 0), 0);
		gx_res_launch(&r, 0);
		assert_int_equal(gx_res_alive(&r, 0), 1);
	}
	gx_res_stop(&r, 0); /* one that is not met yet is not */
	assert_int_equal(gx_res_alive(&r, 0), 0);
	gx_res_launch(&r, 0);
	assert_int_equal(gx_res_alive(&r, 0), 1);
	sh->ended = r.launched;
	assert_int_equal(gx_res_alive(&r, 0), 0);
	free(sh);
}

/* Nothing waits for a kernel that has gone, and none is launched for nothing. */
static void res_ring__launches(void **state)
{
	struct gx_res_shared *sh = calloc(1, sizeof(*sh));
	struct gx_res_ring r = {.blocks = 4, .shared = sh};
	struct gx_res_job job = {.kind = GX_RES_UNPACK};

	assert_false(gx_res_wants_launch(&r, 1000));
	gx_res_post(&r, &job);
	assert_true(gx_res_wants_launch(&r, 1000));
	assert_int_equal(gx_res_launch(&r, 1000), 1);
	assert_false(gx_res_wants_launch(&r, 2000));
	assert_true(gx_res_wants_launch(&r, 1001 + GX_RES_LIFE_NS / 2)); /* one behind it */
	assert_int_equal(gx_res_launch(&r, 1001 + GX_RES_LIFE_NS / 2), 2);
	assert_false(gx_res_wants_launch(&r, 2 * GX_RES_LIFE_NS)); /* never a third */
	sh->ended = 1;
	assert_false(gx_res_wants_launch(&r, 2 * GX_RES_LIFE_NS)); /* the second begins now */
	sh->ended = 2;
	assert_true(gx_res_wants_launch(&r, 2 * GX_RES_LIFE_NS + 1));
	sh->done[0] = 1;
	gx_res_room(&r);
	assert_false(gx_res_wants_launch(&r, 9 * (uint64_t)GX_RES_LIFE_NS));
	free(sh);
}

static void res_ring__stop(void **state)
{
	struct gx_res_shared *sh = calloc(1, sizeof(*sh));
	struct gx_res_ring r = {.blocks = 4, .shared = sh};
	struct gx_res_args args = {.launch = 2};

	gx_res_launch(&r, 0);
	gx_res_launch(&r, 0);
	assert_int_equal(gx_res_alive(&r, 0), 2);
	gx_res_stop(&r, 0);
	assert_int_equal(gx_res_alive(&r, 0), 0); /* for what is posted from now on */
	assert_int_equal((uint32_t)sh->slot[0].word[GX_RES_WORDS - 1], 2);
	assert_true(gx_res_stopped(&args, 2));
	args.launch = gx_res_launch(&r, 0);
	assert_false(gx_res_stopped(&args, 2));
	assert_int_equal(gx_res_alive(&r, 0), 1);
	sh->ended = 2;
	assert_int_equal(gx_res_alive(&r, 0), 1);
	sh->ended = 3;
	assert_int_equal(gx_res_alive(&r, 0), 0);
	free(sh);
}

/* The STOP is there before the launch that it ends: nobody takes what comes after. */
static void res_ring__stop_before_its_launch(void **state)
{
	struct gx_res_shared *sh = calloc(1, sizeof(*sh));
	struct gx_res_ring r = {.blocks = 4, .shared = sh};
	struct gx_res_args args;

	gx_res_launch(&r, 0);
	gx_res_stop(&r, 1);
	args.launch = gx_res_launch(&r, 0);
	assert_true(gx_res_stopped(&args, (uint32_t)sh->slot[0].word[GX_RES_WORDS - 1]));
	assert_int_equal(gx_res_alive(&r, 0), 0);
	args.launch = gx_res_launch(&r, 0);
	assert_false(gx_res_stopped(&args, (uint32_t)sh->slot[0].word[GX_RES_WORDS - 1]));
	assert_int_equal(gx_res_alive(&r, 0), 1);
	free(sh);
}

static void res_over__unbound(void **state)
{
	assert_false(gx_res_over(1000, 1000));
	assert_true(gx_res_over(1001, 1000));
	assert_false(gx_res_over(UINT64_MAX, GX_RES_UNBOUND));
}

/* Mode auto: the kernel that stays is for calls that come near to one another. */
static void res_pays__by_load(void **state)
{
	struct gx_res_shared *sh = calloc(1, sizeof(*sh));
	struct gx_res_ring r = {.blocks = 4, .shared = sh};
	struct gx_res_auto a = {0};
	uint64_t now_ns = 1u << 30;

	for (unsigned i = 0; i < 100; i++, now_ns += GX_RES_IDLE_NS)
		assert_false(gx_res_pays(&r, &a, now_ns));
	now_ns -= GX_RES_IDLE_NS;
	for (unsigned i = 1; i < GX_RES_NEAR; i++)
		assert_false(gx_res_pays(&r, &a, now_ns += 1000));
	assert_true(gx_res_pays(&r, &a, now_ns += 1000));
	gx_res_launch(&r, now_ns);
	now_ns += GX_RES_IDLE_NS;
	assert_true(gx_res_pays(&r, &a, now_ns)); /* not near, but the kernel may be there still */
	sh->ended = 1;
	assert_false(gx_res_pays(&r, &a, now_ns + 1));
	free(sh);
}

static void res_copy__is_one_descriptor(void **state)
{
	struct gx_res_job job;
	char from[4], to[4];
	uint32_t flag;

	gx_res_copy(&job, to, from, 5000, &flag, 9, 304);
	assert_null(job.arg.block.desc);
	assert_int_equal(job.arg.len, 5000);
	assert_int_equal(job.arg.seg0.dst_base, (uintptr_t)to);
	assert_in_range(job.arg.nr_unit, 2, 3);
	gx_res_copy(&job, to, from, 0, NULL, 9, 304);
	assert_int_equal(job.arg.nr_unit, 1); /* which copies nothing and brings the flag */
	assert_int_equal(gx_cut_get(&job.arg, 0, job.step).desc, 0);
	assert_int_equal(job.arg.block.nr, 0);
}

/* What the kernel computes without dividing, for all shapes of units. */
static void res_cut__as_by_division(void **state)
{
	uint32_t len[] = {1, 64, 1392, 2049, 4096, 8941, 65536, 1u << 20, 0xfffffff0u};

	for (unsigned l = 0; l < GX_ARRAY_SIZE(len); l++)
		for (uint32_t step = GX_UNIT_MIN; step < 400000; step += step / 3 + 128) {
			struct gx_unpack_arg arg = {.len = len[l], .block.nr = 2048};
			uint64_t weight = 2048 * ((uint64_t)len[l] + GX_DESC_WEIGHT);

			arg.nr_unit = GX_MIN(gx_unpack_units(weight, step), 65535);
			arg.block.bytes = gx_res_ratio(arg.len, step);
			for (uint32_t unit = 0; unit <= arg.nr_unit; unit++) {
				struct gx_cut a = gx_cut_get(&arg, unit, step);
				struct gx_cut b = gx_res_cut(&arg, unit, step);

				assert_memory_equal(&a, &b, sizeof(a));
			}
		}
}

/* A block of @nr descriptors of @len bytes, planned as a job. */
static void job_make(struct gx_res_job *job, struct gx_block *b, uint32_t nr, uint32_t len)
{
	static struct gx_unpack_args args;
	static struct gx_cut cut[GX_UNITS_MAX + 1];
	struct gx_cut *cuts = cut;

	b->nr = nr;
	for (uint32_t i = 0; i < nr; i++)
		b->desc[i] = (struct gx_desc){7 * i, len, (uint64_t)i * len};
	gx_unpack_plan(&args, &b, &cuts, 1, 304);
	*job = (struct gx_res_job){.arg = args.arg[0], .step = args.step};
}

/* Every byte is in one unit, and no unit has the end of one descriptor and the beginning of the
 * next. */
static void res_even__units_end_with_descriptors(void **state)
{
	static struct gx_desc desc[200];
	static struct gx_desc_aux aux[200];
	struct gx_dest seg = {4096, 1u << 30};
	struct gx_block b = {.desc = desc, .aux = aux, .seg = &seg, .nr_seg = 1};
	struct gx_res_job job;

	job_make(&job, &b, 128, 4096);
	gx_res_even(&job);
	assert_int_equal(job.arg.nr_unit, 256);
	for (uint32_t unit = 0; unit < 256; unit++) {
		struct gx_cut from = gx_cut_get(&job.arg, unit, job.step);
		struct gx_cut to = gx_cut_get(&job.arg, unit + 1, job.step);

		assert_int_equal(from.desc, unit / 2);
		assert_int_equal(from.off == 0, unit % 2 == 0);
		assert_int_equal(to.desc, (unit + 1) / 2);
	}
	job_make(&job, &b, 128, 1392); /* smaller than a unit: as it was */
	gx_res_even(&job);
	assert_int_equal(job.step, GX_UNIT_MIN);
	job_make(&job, &b, 1, 1 << 20);
	gx_res_even(&job);
	assert_in_range(job.arg.nr_unit, 256, 304);
}

static void res_single__is_a_copy(void **state)
{
	struct gx_desc desc = {100, 5000, 200};
	struct gx_desc_aux aux = {.seg = 1};
	struct gx_dest seg[] = {{0x10000, 10}, {0x20000, 5200}};
	struct gx_block b = {.src_base = 0x1000, .desc = &desc, .aux = &aux, .seg = seg};
	struct gx_res_job job = {.arg.block = b};

	job.arg.block.nr = 1;
	job.arg.block.nr_seg = 2;
	gx_res_single(&job);
	assert_null(job.arg.block.desc);
	assert_int_equal(job.arg.block.src_base, 0x1000 + 100);
	assert_int_equal(job.arg.seg0.dst_base, 0x20000 + 200);
	assert_int_equal(job.arg.seg0.dst_len, 5000);
	assert_int_equal(job.arg.len, 5000);
	seg[1].dst_len--; /* does not fit: as it was, to be refused by the kernel */
	job = (struct gx_res_job){.arg.block = b};
	job.arg.block.nr = 1;
	job.arg.block.nr_seg = 2;
	gx_res_single(&job);
	assert_non_null(job.arg.block.desc);
	aux.seg = 2; /* names none */
	gx_res_single(&job);
	assert_non_null(job.arg.block.desc);
}

/* Descriptors come with a job that is alone, has one destination, and offsets of 32 bits. */
static void res_lay__if_alone(void **state)
{
	static struct gx_desc desc[200];
	static struct gx_desc_aux aux[200];
	struct gx_dest seg = {4096, 1ull << 40};
	struct gx_block b = {.desc = desc, .aux = aux, .seg = &seg, .nr_seg = 1};
	struct gx_res_shared *sh = calloc(1, sizeof(*sh));
	struct gx_res_ring r = {.blocks = 4, .shared = sh};
	struct gx_res_job job;

	job_make(&job, &b, 128, 4096);
	gx_res_lay(&r, &job);
	assert_false(job.kind & GX_RES_LAID);
	assert_true(gx_res_lone(&r));
	job.kind = GX_RES_LONE;
	desc[127].dst_off = 1ull << 32;
	gx_res_lay(&r, &job);
	assert_false(job.kind & GX_RES_LAID);
	desc[127] = (struct gx_desc){5, 77, 0xfffffff0u};
	gx_res_lay(&r, &job);
	assert_true(job.kind & GX_RES_LAID);
	assert_int_equal(job.arg.block.hint_len, 77);
	assert_int_equal(sh->desc[127].src_off, 5);
	assert_int_equal(sh->desc[127].dst_off, 0xfffffff0u);
	for (unsigned i = 0; i < 128; i++) {
		assert_int_equal(sh->desc[i].tag, 1);
		assert_int_equal(sh->desc[i].tag_too, 1);
	}
	gx_res_post(&r, &job);
	assert_false(gx_res_lone(&r));
	job_make(&job, &b, 129, 4096); /* more than there is room for */
	job.kind = GX_RES_LONE;
	gx_res_lay(&r, &job);
	assert_false(job.kind & GX_RES_LAID);
	free(sh);
}

#define WARM_B (GX_WARM_NR * GX_WARM_UNIT_B)

static const char *const warm_at = (const char *)((uintptr_t)1 << 40);

/* Pieces of 8 KiB that begin inside a unit, as packets of a put do. Return: how many were warm. */
static unsigned warm_pass(struct gx_warm *w, size_t len)
{
	unsigned warm = 0;

	for (size_t off = 0; off < len; off += 8192)
		warm += gx_warm_write(w, warm_at + 96 + off, 8192);
	return warm;
}

/* Half of what the table holds, written again and again: warm but for the first time. */
static void warm__one_place(void **state)
{
	struct gx_warm w = {{0}};

	assert_int_equal(warm_pass(&w, WARM_B / 2), 0);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(warm_pass(&w, WARM_B / 2), WARM_B / 2 / 8192);
}

/* Twice as much as the table holds: nothing is found again, though all was written before. */
static void warm__large_place(void **state)
{
	struct gx_warm w = {{0}};

	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(warm_pass(&w, 2 * WARM_B), 0);
}

static void warm__last_unit(void **state)
{
	const size_t u = GX_WARM_UNIT_B;
	struct gx_warm w = {{0}};

	assert_false(gx_warm_write(&w, warm_at, u));
	assert_true(gx_warm_write(&w, warm_at, u));
	assert_false(gx_warm_write(&w, warm_at + 1, u)); /* ends in the next one */
	assert_true(gx_warm_write(&w, warm_at + u, u));
	assert_false(gx_warm_write(&w, warm_at + 2 * u, u));
}

/* A piece of the table's size is remembered, a longer one is not. */
static void warm__longest(void **state)
{
	struct gx_warm w = {{0}};

	assert_false(gx_warm_write(&w, warm_at, WARM_B));
	assert_true(gx_warm_write(&w, warm_at, WARM_B));
	assert_false(gx_warm_write(&w, warm_at, WARM_B + 1));
	assert_false(gx_warm_write(&w, warm_at + WARM_B, GX_WARM_UNIT_B));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(plan__empty_block),
		TEST(plan__equal_lengths),
		TEST(plan__one_large),
		TEST(plan__large_among_small),
		TEST(plan__last_is_longer),
		TEST(plan__lengths_of_zero),
		TEST(plan__random_blocks),
		TEST(plan__huge),
		TEST(plan__garbage_lengths),
		cmocka_unit_test(res_even__garbage_lengths),
		TEST(fits__at_the_limits),
		TEST(piece__out_of_bounds_is_empty),
		TEST(split__every_alignment),
		TEST(crc__every_split),
		cmocka_unit_test(res_sharers__none_for_nothing),
		cmocka_unit_test(res_share_here__all_units),
		cmocka_unit_test(res_count__worst_of_all),
		cmocka_unit_test(res_done_from__all_jobs_before),
		cmocka_unit_test(res_ring__room_and_words),
		cmocka_unit_test(res_ring__copies_are_forgotten),
		cmocka_unit_test(res_ring__stops_are_forgotten),
		cmocka_unit_test(res_ring__launches),
		cmocka_unit_test(res_ring__stop),
		cmocka_unit_test(res_ring__stop_before_its_launch),
		cmocka_unit_test(res_over__unbound),
		cmocka_unit_test(res_pays__by_load),
		cmocka_unit_test(res_copy__is_one_descriptor),
		cmocka_unit_test(res_cut__as_by_division),
		cmocka_unit_test(res_even__units_end_with_descriptors),
		cmocka_unit_test(res_single__is_a_copy),
		cmocka_unit_test(res_lay__if_alone),
		cmocka_unit_test(warm__one_place),
		cmocka_unit_test(warm__large_place),
		cmocka_unit_test(warm__last_unit),
		cmocka_unit_test(warm__longest),
	};

	return cmocka_run_group_tests_name("gpu_core", tests, NULL, NULL);
}
