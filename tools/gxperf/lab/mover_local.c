// SPDX-License-Identifier: Apache-2.0
/*
 * Two movers of data into GPU 0 without another GPU (see mover.h): unpack of fragments at a
 * steady rate, as if from packets, by a launched kernel and by one that stays. Each has an engine
 * of its own, because an engine has the bound on SMs. Main thread only.
 */
#include "gxperf/lab/mover.h"

#include <gxlab/load.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define UNPACK_FRAG_B  4096u
#define UNPACK_CHUNK   128u		   /* least fragments of a block: 512 KiB */
#define UNPACK_POOL_B  ((size_t)256 << 20) /* more than the caches hold */
#define UNPACK_BLOCKS  512u		   /* chunks of the pool */
#define UNPACK_SHUFFLE 64u

#define LOCAL_POISON 0xdeadull

struct unpack_way {
	struct bench b;
	struct gx_engine_block *block[UNPACK_BLOCKS];
	uint32_t nr_blocks, units,
		per;	/* all blocks; units with memory of their own; blocks of a unit */
	uint32_t frags; /* of a block */
	uint32_t begun; /* blocks of the next unit that are already queued */
	uint32_t slot[UNPACK_POOL_B / UNPACK_FRAG_B]; /* place of fragment i */
	uint64_t done, due_ns;
};

static void unpack_close(struct mover *m)
{
	struct unpack_way *u = m->priv;

	if (!u)
		return;
	gx_engine_queue_close(u->b.q); /* first: this waits for the blocks */
	u->b.q = NULL;
	for (unsigned i = 0; i < UNPACK_BLOCKS; i++)
		gx_engine_block_close(u->block[i]);
	bench_close(&u->b);
	free(u);
	m->priv = NULL;
}

static int unpack_block(struct unpack_way *u, unsigned i)
{
	uint32_t first = i * u->frags;
	struct gx_frag *frag;
	int ret = gx_engine_block_open(u->b.engine, &u->block[i]);

	if (ret)
		return ret;
	frag = gx_engine_block_frags(u->block[i]);
	for (uint32_t f = 0; f < u->frags; f++)
		frag[f] = (struct gx_frag){u->slot[first + f] * UNPACK_FRAG_B, UNPACK_FRAG_B,
					   (uint64_t)(first + f) * UNPACK_FRAG_B};
	gx_engine_block_set(u->block[i], u->b.dev[0], u->b.dev[1], UNPACK_POOL_B, u->frags);
	return 0;
}

/* Divide a launch of @size, a power of two, into blocks of a chunk each, or larger ones if those
 * are too many. */
static void unpack_divide(struct unpack_way *u, uint64_t size)
{
	uint64_t chunks = size / UNPACK_FRAG_B / UNPACK_CHUNK;

	u->per = (uint32_t)(chunks < GX_ENGINE_BLOCKS_MAX ? chunks : GX_ENGINE_BLOCKS_MAX);
	u->frags = (uint32_t)(size / UNPACK_FRAG_B / u->per);
	u->units = (uint32_t)(UNPACK_POOL_B / size);
	u->nr_blocks = u->units * u->per;
}

static int unpack_open(struct mover *m)
{
	struct bench_want want = {.device = 0,
				  .unpack = m->ops == &mover_unpack ? GX_UNPACK_MODE_KERNEL
								    : GX_UNPACK_MODE_RESIDENT,
				  .sms = (unsigned)m->want_sms,
				  .back_b = UNPACK_POOL_B,
				  .dev_b = {UNPACK_POOL_B, UNPACK_POOL_B}};
	struct unpack_way *u = calloc(1, sizeof(*u));
	int ret;

	m->priv = u;
	if (!u)
		return mover_failed(m, "open", -ENOMEM);
	ret = bench_open(&want, m->gpus->report, &u->b);
	if (ret)
		return ret;
	bench_shuffle(u->slot, UNPACK_POOL_B / UNPACK_FRAG_B, UNPACK_SHUFFLE, 7);
	unpack_divide(u, m->size);
	for (unsigned i = 0; i < u->nr_blocks && !ret; i++)
		ret = unpack_block(u, i);
	m->unit_b = m->size;
	m->sms = (int)u->b.info.sms;
	return ret ? mover_failed(m, "blocks", ret) : PERF_OK;
}

static int unpack_post(struct mover *m)
{
	struct unpack_way *u = m->priv;
	uint64_t now = gx_now();

	if (now < u->due_ns)
		return -EAGAIN;
	if (m->posted - u->done >= u->units)
		return -EAGAIN;
	u->begun += gx_engine_unpack(u->b.q, u->block + m->posted % u->units * u->per + u->begun,
				     u->per - u->begun);
	if (u->begun < u->per)
		return -EAGAIN;
	u->begun = 0;
	if (m->rate > 0) {
		/* More than a unit late: do not catch up. */
		if (now > u->due_ns + (uint64_t)((double)m->size / m->rate))
			u->due_ns = now;
		u->due_ns += (uint64_t)((double)m->size / m->rate);
	}
	return 0;
}

static int unpack_ended(struct mover *m, uint64_t *nr)
{
	struct unpack_way *u = m->priv;
	int ret = gx_engine_poll(u->b.q);

	while (!ret && u->done < m->posted) {
		for (unsigned k = 0; k < u->per && !ret; k++)
			ret = gx_engine_block_status(u->block[u->done % u->units * u->per + k]);
		u->done += !ret;
	}
	*nr = u->done;
	return ret == -EINPROGRESS ? 0 : ret;
}

static int unpack_fill(struct mover *m)
{
	struct unpack_way *u = m->priv;
	int ret = gx_pattern_fill(u->b.engine, u->b.dev[0], UNPACK_POOL_B, 1);

	if (!ret)
		ret = gx_pattern_fill(u->b.engine, u->b.dev[1], UNPACK_POOL_B, LOCAL_POISON);
	return ret ? mover_failed(m, "pattern", ret) : PERF_OK;
}

static int unpack_check(struct mover *m, uint64_t *checked_b, uint64_t *wrong)
{
	struct unpack_way *u = m->priv;
	uint64_t units = m->posted < u->units ? m->posted : u->units;
	uint64_t frags = units * m->size / UNPACK_FRAG_B;
	const uint64_t *got = (const uint64_t *)u->b.back;
	int ret = bench_copy(&u->b, u->b.back, u->b.dev[1], units * m->size);

	for (uint64_t i = 0; i < frags * (UNPACK_FRAG_B / 8) && !ret; i++) {
		uint64_t at = (uint64_t)u->slot[i / (UNPACK_FRAG_B / 8)] * (UNPACK_FRAG_B / 8) +
			      i % (UNPACK_FRAG_B / 8);

		*wrong += got[i] == gx_pattern_word(1, at) ? 0 : 8;
	}
	*checked_b += frags * UNPACK_FRAG_B;
	return ret;
}

#define UNPACK_WAY                                                                                 \
	.open = unpack_open, .close = unpack_close, .post = unpack_post, .ended = unpack_ended,    \
	.fill = unpack_fill, .check = unpack_check

const struct mover_ops mover_unpack = {
	.name = "unpack",
	.doc = "fragments of 4 KiB in GPU memory to where they belong, --rate GB/s, --sms SMs",
	UNPACK_WAY,
};

const struct mover_ops mover_unpack_resident = {
	.name = "unpack-resident",
	.doc = "the same by the kernel that stays, block by block",
	UNPACK_WAY,
};
