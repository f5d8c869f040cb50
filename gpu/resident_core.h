/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring of mode resident: how the CPU hands jobs to a kernel that runs already, and how the
 * thread blocks of that kernel share a job. Plain C for cuda_resident.c and the tests; resident.cu
 * uses the layouts and the arithmetic, too.
 *
 * A job is 32 words. The CPU writes each word as 64 bits together with the job's number. A slot is
 * whole when all of its words bear the expected number. So a slot is its own doorbell, and nothing
 * depends on the order of stores. One thread block, the leader, reads slots over PCIe and repeats
 * them in the GPU's memory for the others. The thread block that begins first is the leader, and
 * only thread blocks that have begun get a share. Every thread block goes through all jobs, by a
 * cursor that outlives the launch: the next launch takes the jobs that this one has not taken. The
 * CPU writes a slot again when the slot's job is done. A thread block that had no part in that job
 * then sees a number ahead of its cursor.
 */
#ifndef GX_GPU_RESIDENT_CORE_H
#define GX_GPU_RESIDENT_CORE_H

#include "unpack_core.h"

#define GX_RES_RING	  64u  /* jobs; power of two */
#define GX_RES_WORDS	  32u  /* of a job, one a lane */
#define GX_RES_DESCS	  128u /* descriptors of a lone job that come with it */
#define GX_RES_BLOCKS_MAX 256u
#define GX_RES_THREADS	  640
#define GX_RES_WORKERS	  (GX_RES_THREADS / 32 - 1) /* the other warp fetches jobs */
#define GX_RES_DEPTH	  8u	   /* jobs that a thread block has fetched; power of two */
#define GX_RES_ALONE	  65536u   /* jobs that weigh this are done faster by one SM than by two */
#define GX_RES_SHARE	  16384u   /* heavier ones: weight for each */
#define GX_RES_LIFE_NS	  1000000u /* a launch takes no job after this */
#define GX_RES_NEAR	  8u /* mode auto: so many calls in succession, each near the one before */
#define GX_RES_IDLE_NS	  100000u    /* nor after so long without one */
#define GX_RES_UNBOUND	  UINT32_MAX /* of both: it ends by a STOP alone */
/* A launch waits for its thread blocks for so long before it shares */
#define GX_RES_ARRIVE_NS  10000u
/* No warp looks for other jobs for so long while a lone job is under way */
#define GX_RES_REST_NS	  3000u

enum { GX_RES_UNPACK, GX_RES_COPY, GX_RES_STOP };
#define GX_RES_WAIT 256u  /* in kind: it begins when all jobs before wait_to are done */
#define GX_RES_LAID 512u  /* in kind: the descriptors lie outside the ring, see gx_res_desc */
#define GX_RES_LONE 1024u /* in kind: no other job is out, and none comes with it */

/* A job, as every thread block sees it. */
struct gx_res_job {
	struct gx_unpack_arg arg; /* hints: gx_res_share(); bytes: gx_res_ratio(). Of a copy, and of
				     a block that is one, desc is NULL */
	uint32_t kind;
	uint32_t step;
	uint32_t wait_to; /* the first job that need not be done before */
	uint32_t value;	  /* a copy: the value that *block.status becomes; status NULL: none is
			   written. A STOP: the last launch that it ends */
};

struct gx_res_slot {
	uint64_t word[GX_RES_WORDS]; /* data, and from bit 32 on 1 + the job's number */
};

/*
 * A descriptor that comes with its job, so that no warp has to fetch it once the job is seen. As in
 * a slot, 64 bits are whole by themselves. Each has the one length of the block, and the last has
 * hint_len. There is one set: while it is in use no other job is out.
 */
struct gx_res_desc {
	uint32_t src_off, tag; /* 1 + the job's number */
	uint32_t dst_off, tag_too;
};

/* Pinned memory, zero at first. Every line has one writer. */
struct gx_res_shared {
	struct gx_res_slot slot[GX_RES_RING]; /* the CPU */
	struct gx_res_desc desc[GX_RES_DESCS];
	uint32_t done[GX_RES_RING]; /* the GPU: 1 + number of the slot's last job done */
	uint32_t ended;		    /* the GPU: number of the last launch that ended */
	uint32_t unused[31];
};

/* Memory of the GPU, zero at first. */
struct gx_res_dev {
	struct gx_res_slot slot[GX_RES_RING]; /* the leader's, for the others */
	struct gx_res_desc desc[GX_RES_DESCS];
	uint64_t count[GX_RES_RING]; /* units done, GX_RES_COUNT_*; zero between jobs */
	uint32_t done[GX_RES_RING];
	uint32_t cursor;  /* between launches: the next job, for all thread blocks */
	uint32_t arrived; /* thread blocks of this launch that have begun; zero between launches */
	uint32_t leaving; /* number of the launch that takes no more jobs */
	uint32_t stop_to; /* launches up to this one end at once */
	uint32_t left;	  /* thread blocks of this launch that have ended */
	uint32_t descs;	  /* of the last job that had some: the leader expects as many */
};

struct gx_res_args {
	struct gx_res_shared *shared;
	struct gx_res_dev *dev;
	uint32_t launch; /* number, from 1 */
	uint32_t idle_ns, life_ns;
};

/** gx_res_over() - Is @ns, the time since a launch began or had its last job, more than its
 * @limit_ns? */
GX_HD int gx_res_over(uint64_t ns, uint32_t limit_ns)
{
	return limit_ns != GX_RES_UNBOUND && ns > limit_ns;
}

/** gx_res_stopped() - Does a STOP for launches up to @stop_to end this one? */
GX_HD int gx_res_stopped(const struct gx_res_args *args, uint32_t stop_to)
{
	return (int32_t)(stop_to - args->launch) >= 0;
}

/** gx_res_sharers() - Thread blocks, from the leader on, that share a job of @units of @step. */
GX_HD uint32_t gx_res_sharers(uint32_t units, uint32_t step, uint32_t blocks)
{
	uint64_t weight = (uint64_t)units * step;
	uint64_t n = weight <= GX_RES_ALONE ? 1 : weight / GX_RES_SHARE;

	n = n < units ? n : units;
	return n < blocks ? (uint32_t)n : blocks;
}

/**
 * gx_res_share() - @units of a job in one piece for each of @sharers thread blocks: so one or two
 * thread blocks read a line of descriptors. The CPU divides, so the kernel need not.
 */
GX_HD uint32_t gx_res_share(uint32_t units, uint32_t sharers)
{
	return (sharers - 1) | units % sharers << 8 | units / sharers << 16;
}

GX_HD uint32_t gx_res_share_blocks(uint32_t share)
{
	return (share & 255) + 1;
}

/** gx_res_share_first() - The first unit of thread block @block, which may be the number of
 * sharers: all units. */
GX_HD uint32_t gx_res_share_first(uint32_t share, uint32_t block)
{
	uint32_t more = share >> 8 & 255;

	return (share >> 16) * block + (block < more ? block : more);
}

/** gx_res_share_here() - @share of @units, among no more thread blocks than are @here. */
GX_HD uint32_t gx_res_share_here(uint32_t share, uint32_t units, uint32_t here)
{
	return gx_res_share_blocks(share) > here ? gx_res_share(units, here) : share;
}

/** gx_res_ratio() - Descriptors of @len a unit of @step, in 2^-32: see gx_res_cut(). */
GX_HD uint64_t gx_res_ratio(uint32_t len, uint32_t step)
{
	return ((uint64_t)step << 32) / ((uint64_t)len + GX_DESC_WEIGHT);
}

/**
 * gx_res_cut() - As gx_cut_get(), without a division: the product is right, or one too small,
 * because units are less than 2^16.
 */
GX_HD struct gx_cut gx_res_cut(const struct gx_unpack_arg *arg, uint32_t unit, uint32_t step)
{
	struct gx_cut end = {arg->block.nr, 0};
	uint64_t span = (uint64_t)arg->len + GX_DESC_WEIGHT;
	uint32_t desc = (uint32_t)(unit * arg->block.bytes >> 32);
	uint64_t into = (uint64_t)unit * step - desc * span;

	if (into >= span) {
		desc++;
		into -= span;
	}
	if (unit >= arg->nr_unit)
		return end;
	if (!arg->len)
		return arg->cut[unit];
	return desc < arg->block.nr ? gx_cut_in(desc, arg->len, into, arg->crc) : end;
}

/* A thread block adds this to a job's count: its units and, in the upper half, whether a descriptor
 * was out of bounds or a CRC was wrong. */
#define GX_RES_COUNT_CRC    ((uint64_t)1 << 32)
#define GX_RES_COUNT_BOUNDS ((uint64_t)1 << 48)

GX_HD uint64_t gx_res_count(uint32_t units, uint32_t worst)
{
	return units + (worst == GX_BLOCK_BOUNDS ? GX_RES_COUNT_BOUNDS : 0) +
	       (worst == GX_BLOCK_CRC ? GX_RES_COUNT_CRC : 0);
}

GX_HD uint32_t gx_res_worst(uint64_t count)
{
	return count >= GX_RES_COUNT_BOUNDS ? GX_BLOCK_BOUNDS
	       : count >= GX_RES_COUNT_CRC  ? GX_BLOCK_CRC
					    : GX_BLOCK_OK;
}

/** gx_res_done_from() - The least value of done[@slot] when all jobs up to @wait_to are done. */
GX_HD uint32_t gx_res_done_from(uint32_t wait_to, uint32_t slot)
{
	return wait_to - ((wait_to - 1 - slot) & (GX_RES_RING - 1));
}

#ifndef __CUDACC__
#include <stdbool.h>

_Static_assert(sizeof(struct gx_res_job) == GX_RES_WORDS * 4, "a lane has one word");
_Static_assert(sizeof(struct gx_res_shared) % 128 == 0, "lines have one writer");

/* The CPU's side of one ring. owner: poll core */
struct gx_res_ring {
	struct gx_res_shared *shared;
	uint32_t blocks;     /* thread blocks of a launch */
	uint32_t head, tail; /* free running: jobs posted, jobs known to be done */
	uint32_t copies;     /* number after the last copy: unpacks wait for all jobs before it */
	uint32_t launched;   /* launches queued */
	uint32_t stopped;    /* launches up to this one take no job posted from now on */
	uint32_t ended;	     /* launches known to have ended */
	uint64_t since_ns;   /* when the oldest launch under way may have begun */
};

/* The farthest that a remembered job or launch may lie back, for tests: 24 short of 2^31. */
#define GX_RES_MEMORY 0x7fffffe8u

/**
 * gx_res_begin() - For tests: as if @from jobs and as many launches had come and gone. The last
 * copy and the last STOP were among them, so long ago that they are about to seem ahead.
 *
 * @dev: an image of the GPU's memory, which the caller copies there
 */
static inline void gx_res_begin(struct gx_res_ring *r, struct gx_res_dev *dev, uint32_t from)
{
	r->head = r->tail = r->launched = r->ended = from;
	r->copies = r->stopped = from - GX_RES_MEMORY;
	r->shared->ended = dev->leaving = dev->stop_to = from;
	for (uint32_t slot = 0; slot < GX_RES_RING; slot++) {
		uint32_t last = gx_res_done_from(from, slot);

		r->shared->done[slot] = dev->done[slot] = last;
		for (uint32_t i = 0; i < GX_RES_WORDS; i++)
			r->shared->slot[slot].word[i] = dev->slot[slot].word[i] = (uint64_t)last
										  << 32;
	}
	dev->cursor = from;
}

/**
 * gx_res_room() - Jobs that can be posted. Notes which jobs are done. A copy that was done long ago
 * is forgotten: else it would seem to lie ahead once 2^31 jobs have been posted without another
 * copy.
 */
static inline uint32_t gx_res_room(struct gx_res_ring *r)
{
	/* Pairs with the fence of the thread block that finished the job. */
	while (r->tail != r->head && __atomic_load_n(&r->shared->done[r->tail & (GX_RES_RING - 1)],
						     __ATOMIC_ACQUIRE) == r->tail + 1)
		r->tail++;
	if ((int32_t)(r->tail - r->copies) > 0)
		r->copies = r->tail;
	return GX_RES_RING - (r->head - r->tail);
}

/** gx_res_post() - Write a job into the next slot; the caller has looked for room. */
static inline void gx_res_post(struct gx_res_ring *r, const struct gx_res_job *job)
{
	uint64_t *to = r->shared->slot[r->head & (GX_RES_RING - 1)].word;
	uint64_t seq = (uint64_t)(r->head + 1) << 32;
	uint32_t word[GX_RES_WORDS], units = job->arg.nr_unit;
	struct gx_res_job whole = *job;

	if (units) { /* a STOP has none */
		whole.arg.block.hints =
			gx_res_share(units, gx_res_sharers(units, job->step, r->blocks));
		whole.arg.block.bytes = gx_res_ratio(job->arg.len, job->step);
	}
	__builtin_memcpy(word, &whole, sizeof(word));
	/* Release: the CPU has written the descriptors and cuts that the job names before. Pairs
	 * with the acquiring loads of the leader, or with its fence once it has read the slot. */
	for (uint32_t i = 0; i < GX_RES_WORDS; i++)
		__atomic_store_n(&to[i], seq | word[i], __ATOMIC_RELEASE);
	r->head++;
}

/**
 * gx_res_single() - Make a block of one descriptor a copy: the job then says all there is to know.
 * One that does not fit stays as it is, and is refused like others.
 */
static inline void gx_res_single(struct gx_res_job *job)
{
	struct gx_unpack_arg *arg = &job->arg;
	const struct gx_block *b = &arg->block;
	uint32_t at = arg->only ? 0 : b->aux[0].seg;
	const struct gx_desc *d = b->desc;
	struct gx_dest seg;

	if (b->nr != 1 || at >= b->nr_seg || !d->len)
		return;
	seg = b->seg[at];
	if (!gx_desc_fits(d, &seg))
		return;
	arg->seg0 = (struct gx_dest){seg.dst_base + d->dst_off, d->len};
	arg->only = 1;
	arg->len = d->len;
	arg->block.src_base += d->src_off;
	arg->block.desc = NULL;
}

/**
 * gx_res_even() - If all descriptors have one length, let units end where descriptors end, as long
 * as that makes units little larger. Then no warp copies the end of one descriptor and after that
 * the beginning of the next.
 */
static inline void gx_res_even(struct gx_res_job *job)
{
	struct gx_unpack_arg *arg = &job->arg;
	uint64_t span = (uint64_t)arg->len + GX_DESC_WEIGHT;
	uint64_t parts = span / job->step;

	if (!arg->len || arg->block.nr < 2)
		return;
	while (parts && span % parts)
		parts--;
	if (!parts || span / parts > (uint64_t)job->step * 5 / 4 || span / parts > GX_STEP_MAX)
		return;
	job->step = (uint32_t)(span / parts);
	arg->nr_unit = (uint32_t)(parts * arg->block.nr);
}

/** gx_res_lone() - Is the next job, which no other follows at once, alone? */
static inline bool gx_res_lone(const struct gx_res_ring *r)
{
	return r->head == r->tail;
}

/** gx_res_lay() - Let the descriptors of a lone job come with it, if they can. */
static inline void gx_res_lay(struct gx_res_ring *r, struct gx_res_job *job)
{
	const struct gx_block *b = &job->arg.block;
	uint64_t tag = (uint64_t)(r->head + 1) << 32, high = 0;

	if (!(job->kind & GX_RES_LONE) || !job->arg.only || !job->arg.len || !b->desc || !b->nr ||
	    b->nr > GX_RES_DESCS)
		return;
	for (uint32_t i = 0; i < b->nr; i++)
		high |= b->desc[i].dst_off >> 32;
	if (high)
		return;
	for (uint32_t i = 0; i < b->nr; i++) {
		uint64_t *to = (uint64_t *)&r->shared->desc[i];

		__atomic_store_n(&to[0], tag | b->desc[i].src_off, __ATOMIC_RELAXED);
		__atomic_store_n(&to[1], tag | b->desc[i].dst_off, __ATOMIC_RELAXED);
	}
	job->arg.block.hint_len = b->desc[b->nr - 1].len;
	job->kind |= GX_RES_LAID;
}

/**
 * gx_res_stop() - Post a STOP: the launches so far, and the next @more, take the jobs that were
 * posted so far, and end. The caller has looked for room. If jobs are out the caller queues one
 * launch more, which does not end by itself.
 */
static inline void gx_res_stop(struct gx_res_ring *r, uint32_t more)
{
	struct gx_res_job job = {.kind = GX_RES_STOP, .value = r->launched + more};

	gx_res_post(r, &job);
	r->stopped = r->launched + more;
}

/** gx_res_alive() - Launches that may still take jobs posted from now on. */
static inline uint32_t gx_res_alive(struct gx_res_ring *r, uint64_t now_ns)
{
	/* Pairs with the fence of the last thread block of the launch. */
	uint32_t ended = __atomic_load_n(&r->shared->ended, __ATOMIC_ACQUIRE);

	if (ended != r->ended)
		r->since_ns = now_ns;
	r->ended = ended;
	/* As in gx_res_room(), for a STOP that is long past. */
	if ((int32_t)(ended - r->stopped) > 0)
		r->stopped = ended;
	return (int32_t)(r->stopped - ended) > 0 ? r->launched - r->stopped : r->launched - ended;
}

/**
 * gx_res_wants_launch() - Is a launch to be queued now? Yes if there are jobs, and no launch under
 * way takes them, or the only one is about to end.
 */
static inline bool gx_res_wants_launch(struct gx_res_ring *r, uint64_t now_ns)
{
	uint32_t alive = gx_res_alive(r, now_ns);

	if (r->head == r->tail)
		return false;
	return alive == 0 || (alive == 1 && now_ns - r->since_ns > GX_RES_LIFE_NS / 2);
}

/* Mode auto: how near to one another calls come. owner: poll core */
struct gx_res_auto {
	uint64_t last_ns;
	uint32_t near;
};

/**
 * gx_res_pays() - Mode auto: is the next block a job for the kernel that stays, or a launch? A job
 * pays while calls come nearer to one another than a launch waits; SMs that would wait for longer
 * are the program's. Jobs in the ring go on there.
 */
static inline bool gx_res_pays(struct gx_res_ring *r, struct gx_res_auto *a, uint64_t now_ns)
{
	if (now_ns - a->last_ns >= GX_RES_IDLE_NS)
		a->near = 0;
	else if (a->near < GX_RES_NEAR)
		a->near++;
	a->last_ns = now_ns;
	gx_res_room(r);
	return a->near == GX_RES_NEAR || r->head != r->tail || gx_res_alive(r, now_ns) > 0;
}

/** gx_res_launch() - Note that a launch is queued. Return: its number. */
static inline uint32_t gx_res_launch(struct gx_res_ring *r, uint64_t now_ns)
{
	if (r->launched == r->ended)
		r->since_ns = now_ns;
	return ++r->launched;
}

/**
 * gx_res_copy() - Make @job copy @len bytes; then *@flag becomes @value, unless @flag is NULL.
 * @most: warps that may share it
 */
static inline void gx_res_copy(struct gx_res_job *job, void *dst, const void *src, uint32_t len,
			       uint32_t *flag, uint32_t value, uint32_t most)
{
	uint64_t weight = (uint64_t)len + GX_DESC_WEIGHT;

	*job = (struct gx_res_job){
		.arg.block = {.src_base = (uintptr_t)src, .nr = 1, .nr_seg = 1, .status = flag},
		.arg.len = len ? len : 1,
		.arg.seg0 = {(uintptr_t)dst, len ? len : 1},
		.arg.only = 1,
		.kind = GX_RES_COPY,
		.step = gx_unpack_step(&weight, 1, most),
		.value = value,
	};
	job->arg.block.nr = len != 0;
	job->arg.nr_unit = gx_unpack_units(weight, job->step);
}
#endif

#endif
