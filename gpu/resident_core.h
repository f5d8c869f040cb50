/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring of mode resident: how the CPU hands jobs to a kernel that is there already, and how a
 * job is shared among its thread blocks. Plain C for gpu_cuda.c and the tests; the layouts and the
 * arithmetic for resident.cu, too.
 *
 * A job is 32 words, each written as 64 bits together with the job's number: a slot whose words all
 * bear the number that is waited for is whole, so that the slot is its own doorbell and nothing
 * depends on the order of stores. The kernel's first thread block, the leader, reads slots over
 * PCIe and repeats them in the GPU's memory for the others. Every thread block goes through all
 * jobs, by a cursor that outlives the launch: whatever a launch did not take, the next one does. A
 * slot is written again when its job is done, which a thread block that had no part in it sees by a
 * number ahead of its cursor.
 */
#ifndef GX_GPU_RESIDENT_CORE_H
#define GX_GPU_RESIDENT_CORE_H

#include "unpack_core.h"

#define GX_RES_RING	  64u /* jobs; power of two */
#define GX_RES_WORDS	  32u /* of a job, one a lane */
#define GX_RES_BLOCKS_MAX 256u
#define GX_RES_THREADS	  640
#define GX_RES_WORKERS	  (GX_RES_THREADS / 32 - 1) /* the other warp fetches jobs */
#define GX_RES_DEPTH	  8u	   /* jobs that a thread block has fetched; power of two */
#define GX_RES_ALONE	  65536u   /* jobs that weigh this are done faster by one SM than by two */
#define GX_RES_SHARE	  16384u   /* heavier ones: weight for each */
#define GX_RES_LIFE_NS	  1000000u /* a launch takes no job after this */
#define GX_RES_NEAR	  8u /* mode auto: so many calls in succession, each near the one before */
#define GX_RES_IDLE_NS	  100000u /* nor after so long without one */

enum { GX_RES_UNPACK, GX_RES_COPY, GX_RES_STOP };
#define GX_RES_WAIT 256u /* in kind: not before all jobs up to wait_to are done */

/* What a thread block needs to know of a job. */
struct gx_res_job {
	struct gx_unpack_arg arg; /* a copy: block.desc is NULL, see gx_res_copy() */
	uint32_t kind;
	uint32_t step;
	uint32_t wait_to; /* number of the first job that need not be done before */
	uint32_t value; /* a copy: what block.status becomes; NULL: nothing is written. A STOP: the
			   last launch that it ends */
};

struct gx_res_slot {
	uint64_t word[GX_RES_WORDS]; /* data, and from bit 32 on 1 + the job's number */
};

/* Pinned memory, zero at first. Every line has one writer. */
struct gx_res_shared {
	struct gx_res_slot slot[GX_RES_RING]; /* the CPU */
	uint32_t done[GX_RES_RING];	      /* the GPU: 1 + number of the slot's last job done */
	uint32_t ended;			      /* the GPU: number of the last launch that ended */
	uint32_t unused[31];
};

/* Memory of the GPU, zero at first. */
struct gx_res_dev {
	struct gx_res_slot slot[GX_RES_RING]; /* the leader's, for the others */
	uint64_t count[GX_RES_RING];	      /* units done, GX_RES_COUNT_*; zero between jobs */
	uint32_t done[GX_RES_RING];
	uint32_t cursor[GX_RES_BLOCKS_MAX]; /* of each thread block: its next job */
	uint32_t leaving;		    /* number of the launch that takes no more jobs */
	uint32_t stop_to;		    /* launches up to this one end at once */
	uint32_t left;			    /* thread blocks of this launch that have ended */
};

struct gx_res_args {
	struct gx_res_shared *shared;
	struct gx_res_dev *dev;
	uint32_t launch; /* number, from 1 */
	uint32_t idle_ns, life_ns;
};

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

/* What a thread block adds to a job's count: its units, and in the upper half whether there was a
 * descriptor out of bounds, or a wrong CRC. */
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

/** gx_res_done_from() - What done[@slot] must have reached when all jobs up to @wait_to are done.
 */
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
	uint32_t head, tail; /* free running: jobs posted, jobs known to be done */
	uint32_t copies;     /* number after the last copy: unpacks wait for what is before */
	uint32_t launched;   /* launches queued */
	uint32_t stopped;    /* launches up to this one take no job posted from now on */
	uint32_t ended;	     /* launches known to have ended */
	uint64_t since_ns;   /* when the oldest launch under way may have begun */
};

/** gx_res_room() - Jobs that can be posted. Notes what is done. */
static inline uint32_t gx_res_room(struct gx_res_ring *r)
{
	/* Pairs with the fence of the thread block that finished the job. */
	while (r->tail != r->head && __atomic_load_n(&r->shared->done[r->tail & (GX_RES_RING - 1)],
						     __ATOMIC_ACQUIRE) == r->tail + 1)
		r->tail++;
	return GX_RES_RING - (r->head - r->tail);
}

/** gx_res_post() - Write a job into the next slot; the caller has looked for room. */
static inline void gx_res_post(struct gx_res_ring *r, const struct gx_res_job *job)
{
	uint64_t *to = r->shared->slot[r->head & (GX_RES_RING - 1)].word;
	uint64_t seq = (uint64_t)(r->head + 1) << 32;
	uint32_t word[GX_RES_WORDS];

	__builtin_memcpy(word, job, sizeof(word));
	/* Release: what the job names (descriptors, cuts) was written before. Pairs with the fence
	 * of the leader once it has read the slot. */
	for (uint32_t i = 0; i < GX_RES_WORDS; i++)
		__atomic_store_n(&to[i], seq | word[i], __ATOMIC_RELEASE);
	r->head++;
}

/**
 * gx_res_stop() - Post a STOP: launches so far take what was posted so far, and end. The caller has
 * looked for room, and queued a launch that does not end by itself if jobs are out.
 */
static inline void gx_res_stop(struct gx_res_ring *r)
{
	struct gx_res_job job = {.kind = GX_RES_STOP, .value = r->launched};

	gx_res_post(r, &job);
	r->stopped = r->launched;
}

/** gx_res_alive() - Launches that may still take jobs posted from now on. */
static inline uint32_t gx_res_alive(struct gx_res_ring *r, uint64_t now_ns)
{
	/* Pairs with the fence of the last thread block of the launch. */
	uint32_t ended = __atomic_load_n(&r->shared->ended, __ATOMIC_ACQUIRE);

	if (ended != r->ended)
		r->since_ns = now_ns;
	r->ended = ended;
	return (int32_t)(r->stopped - ended) > 0 ? r->launched - r->stopped : r->launched - ended;
}

/**
 * gx_res_wants_launch() - Is a launch to be queued now, for there are jobs and none under way that
 * takes them, or the only one is about to end?
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
 * gx_res_pays() - Mode auto: is the next block a job for the kernel that stays, or a launch? It
 * pays while calls come nearer to one another than a launch waits; SMs that would wait for longer
 * are the program's. What is on its way through the ring goes on there.
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
 * gx_res_copy() - @job copies @len bytes, and then *@flag, which may be NULL, becomes @value.
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
