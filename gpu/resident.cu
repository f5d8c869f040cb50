/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel of mode resident: it stays on its SMs, takes jobs (blocks to unpack, contiguous
 * copies) from a ring in pinned memory, and ends by itself after a while, or when nothing comes.
 * Launched by gpu_cuda.c on a core's stream; the ring's layout and arithmetic are in
 * resident_core.h.
 *
 * In each thread block one warp fetches jobs and puts the thread block's share on a board in shared
 * memory; the other warps take units from there, each at its own pace.
 */
#include "resident_core.h"
#include "unpack_dev.cuh"

#include <stddef.h>

#define JOB_WORD(field) ((int)(offsetof(struct gx_res_job, field) / 4))

static_assert(sizeof(struct gx_res_job) == GX_RES_WORDS * 4, "same in C and in CUDA");
static_assert(sizeof(struct gx_res_slot) == GX_RES_WORDS * 8, "same in C and in CUDA");

/* A job on the board of one thread block. Written by the fetching warp while nobody works on it. */
struct task {
	struct gx_res_job job;
	uint32_t number;
	uint32_t sharers;  /* thread blocks that have units of it */
	uint32_t first, n; /* units of this one */
	uint32_t next;	   /* of these: the next one to be taken */
	uint32_t done, worst;
	uint32_t passed; /* warps that are through with it */
};

struct board {
	struct task task[GX_RES_DEPTH];
	uint32_t head; /* free running: tasks posted */
	uint32_t ended;
};

template <typename word> __device__ static word peek(const word *at)
{
	return *(const volatile word *)at;
}

template <typename word> __device__ static void poke(word *at, word value)
{
	*(volatile word *)at = value;
}

__device__ static uint64_t time_ns(void)
{
	uint64_t t;

	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
	return t;
}

/* --- the warps that work ------------------------------------------------------------------------
 */

/* All bytes of the job are written; tell who waits: the CPU, and the fetching warps. */
__device__ static void job_finish(const struct gx_res_args &args, const struct task *t,
				  uint32_t worst)
{
	uint32_t slot = t->number & (GX_RES_RING - 1);
	bool copy = (t->job.kind & 255) == GX_RES_COPY;
	uint32_t *status = t->job.arg.block.status;

	fence_system();
	/* Before the status, so that who sees that knows of the room in the ring, too. */
	poke(&args.shared->done[slot], t->number + 1);
	if (status)
		poke(status, copy ? t->job.value : worst);
	poke(&args.dev->done[slot], t->number + 1);
}

/*
 * One unit is done. Its stores come before the fence (the warp is synchronised first), the fence
 * before the count: who brings the thread block's count to its end has seen all of them, and who
 * brings the job's count to its end those of all thread blocks.
 */
__device__ static void unit_account(const struct gx_res_args &args, struct task *t, uint32_t worst,
				    uint32_t lane)
{
	unsigned long long *count =
		(unsigned long long *)&args.dev->count[t->number & (GX_RES_RING - 1)];
	uint64_t all;

	__syncwarp();
	if (lane != 0)
		return;
	if (worst > GX_BLOCK_OK)
		atomicMax(&t->worst, worst);
	fence_block();
	if (atomicAdd(&t->done, 1u) + 1 != t->n)
		return;
	fence_block();
	worst = max(peek(&t->worst), (uint32_t)GX_BLOCK_OK);
	if (t->sharers > 1) {
		all = gx_res_count(t->n, worst);
		fence_gpu();
		all += atomicAdd(count, all);
		if ((uint32_t)all != t->job.arg.nr_unit)
			return;
		worst = gx_res_worst(all);
		poke(count, 0ull);
	}
	job_finish(args, t, worst);
}

__device__ static void units_take(const struct gx_res_args &args, struct task *t, uint32_t lane)
{
	struct lanes<true> how;
	uint32_t k, worst;

	for (;;) {
		k = lane == 0 ? atomicAdd(&t->next, 1u) : 0;
		k = __shfl_sync(ALL, k, 0);
		if (k >= t->n)
			break;
		worst = unit_run(&t->job.arg, t->first + k, t->job.step, how, lane);
		unit_account(args, t, worst, lane);
	}
	__syncwarp();
	if (lane == 0)
		atomicAdd(&t->passed, 1u);
}

__device__ static void work(const struct gx_res_args &args, struct board *board, uint32_t lane)
{
	for (uint32_t at = 0;; at++) {
		while (peek(&board->head) == at)
			if (peek(&board->ended) && peek(&board->head) == at)
				return;
		/* Pairs with the fence before head was written. */
		fence_block();
		__syncwarp();
		units_take(args, &board->task[at & (GX_RES_DEPTH - 1)], lane);
	}
}

/* --- the warp that fetches ----------------------------------------------------------------------
 */

/* What one fetching warp knows. All lanes hold the same, but data: lane's word of the job. */
struct fetch {
	uint32_t cursor; /* number of the next job */
	uint32_t posted; /* tasks on the board so far */
	uint32_t data;
	bool leader, stopped;
};

enum { SLOT_WAIT, SLOT_HERE, SLOT_PAST };

__device__ static int slot_read(const struct gx_res_slot *slot, struct fetch *f, uint32_t lane)
{
	uint64_t word = peek(&slot->word[lane]);
	int32_t ahead = (int32_t)((uint32_t)(word >> 32) - (f->cursor + 1));

	f->data = (uint32_t)word;
	if (__all_sync(ALL, ahead == 0))
		return SLOT_HERE;
	return __any_sync(ALL, ahead > 0) ? SLOT_PAST : SLOT_WAIT;
}

__device__ static void jobs_wait(const struct gx_res_dev *dev, uint32_t wait_to, uint32_t lane)
{
	uint32_t low = gx_res_done_from(wait_to, lane), high = gx_res_done_from(wait_to, lane + 32);

	while (!__all_sync(ALL, (int32_t)(peek(&dev->done[lane]) - low) >= 0 &&
					(int32_t)(peek(&dev->done[lane + 32]) - high) >= 0))
		;
	fence_gpu();
}

/* This thread block's share of the job in f->data. */
__device__ static void task_post(const struct gx_res_args &args, struct board *board,
				 struct fetch *f, uint32_t kind, uint32_t sharers, uint32_t lane)
{
	uint32_t units = __shfl_sync(ALL, f->data, JOB_WORD(arg.nr_unit));
	uint32_t wait_to = __shfl_sync(ALL, f->data, JOB_WORD(wait_to));
	uint32_t first = gx_unit_first(units, sharers, blockIdx.x);
	struct task *t = &board->task[f->posted & (GX_RES_DEPTH - 1)];

	if (kind & GX_RES_WAIT)
		jobs_wait(args.dev, wait_to, lane);
	while (f->posted >= GX_RES_DEPTH && peek(&t->passed) != GX_RES_WORKERS)
		;
	__syncwarp();
	((uint32_t *)&t->job)[lane] = f->data;
	if (lane == 0) {
		t->number = f->cursor;
		t->sharers = sharers;
		t->first = first;
		t->n = gx_unit_first(units, sharers, blockIdx.x + 1) - first;
		t->next = t->done = t->worst = t->passed = 0;
	}
	__syncwarp();
	fence_block();
	f->posted++;
	if (lane == 0)
		poke(&board->head, f->posted);
}

__device__ static void job_stop(const struct gx_res_args &args, struct fetch *f, uint32_t lane)
{
	uint32_t slot = f->cursor & (GX_RES_RING - 1);
	uint32_t value = __shfl_sync(ALL, f->data, JOB_WORD(value));

	if (!f->leader)
		return;
	f->stopped = gx_res_stopped(&args, value);
	if (lane != 0)
		return;
	args.dev->stop_to = value;
	poke(&args.dev->done[slot], f->cursor + 1);
	poke(&args.shared->done[slot], f->cursor + 1);
}

/* The leader's words of a job, for the other thread blocks. */
__device__ static void job_repeat(const struct gx_res_args &args, const struct fetch *f,
				  uint32_t lane)
{
	poke(&args.dev->slot[f->cursor & (GX_RES_RING - 1)].word[lane],
	     (uint64_t)(f->cursor + 1) << 32 | f->data);
}

__device__ static void job_take(const struct gx_res_args &args, struct board *board,
				struct fetch *f, uint32_t lane)
{
	uint32_t kind = __shfl_sync(ALL, f->data, JOB_WORD(kind));
	uint32_t units = __shfl_sync(ALL, f->data, JOB_WORD(arg.nr_unit));
	uint32_t step = __shfl_sync(ALL, f->data, JOB_WORD(step));
	uint32_t sharers = gx_res_sharers(units, step, gridDim.x);

	/* What others wait for goes out first; else it would hold up the fence. */
	if (f->leader && sharers > 1)
		job_repeat(args, f, lane);
	/* Acquire: pairs with the stores of gx_res_post(), also in the other thread blocks, which
	 * have these words from the leader. Empties L1. */
	fence_system();
	if ((kind & 255) == GX_RES_STOP)
		job_stop(args, f, lane);
	else if (blockIdx.x < sharers)
		task_post(args, board, f, kind, sharers, lane);
	if (f->leader && sharers <= 1) /* a STOP has none */
		job_repeat(args, f, lane);
	f->cursor++;
}

/*
 * The leader alone decides when the launch takes no more; the others first take what it had taken
 * before, so that all end with the same cursor.
 */
__device__ static bool leaving(const struct gx_res_args &args, const struct fetch *f, int seen,
			       uint64_t begin_ns, uint64_t last_ns)
{
	uint64_t now = time_ns();

	if (f->stopped || now - begin_ns > args.life_ns)
		return true;
	return seen == SLOT_WAIT && now - last_ns > args.idle_ns;
}

__device__ static void lead(const struct gx_res_args &args, struct board *board, struct fetch *f,
			    uint32_t lane)
{
	uint64_t begin_ns = time_ns(), last_ns = begin_ns;
	int seen = SLOT_WAIT;

	/* The STOP for this launch may have been met by the one before. */
	f->stopped = gx_res_stopped(&args, args.dev->stop_to);
	__syncwarp();
	if (lane == 0 && !f->stopped)
		args.dev->stop_to = args.launch - 1;
	while (!__any_sync(ALL, leaving(args, f, seen, begin_ns, last_ns))) {
		seen = slot_read(&args.shared->slot[f->cursor & (GX_RES_RING - 1)], f, lane);
		if (seen == SLOT_HERE) {
			job_take(args, board, f, lane);
			last_ns = time_ns();
		}
	}
	__syncwarp();
	fence_gpu();
	if (lane == 0)
		poke(&args.dev->leaving, args.launch);
}

__device__ static void follow(const struct gx_res_args &args, struct board *board, struct fetch *f,
			      uint32_t lane)
{
	bool last;
	int seen;

	do {
		last = __any_sync(ALL, peek(&args.dev->leaving) == args.launch);
		if (last) /* pairs with the leader's, after its last slot */
			fence_gpu();
		seen = slot_read(&args.dev->slot[f->cursor & (GX_RES_RING - 1)], f, lane);
		if (seen == SLOT_HERE)
			job_take(args, board, f, lane);
		else if (seen == SLOT_PAST)
			f->cursor++; /* it is done, and needed nothing from here */
	} while (!last || seen != SLOT_WAIT);
}

__device__ static void launch_end(const struct gx_res_args &args)
{
	fence_gpu();
	if (atomicAdd(&args.dev->left, 1u) + 1 != gridDim.x)
		return;
	args.dev->left = 0;
	fence_system();
	poke(&args.shared->ended, args.launch);
}

extern "C" __global__ void __launch_bounds__(GX_RES_THREADS, 1)
	gx_resident(const __grid_constant__ struct gx_res_args args)
{
	__shared__ struct board board;
	uint32_t lane = threadIdx.x % 32;

	if (threadIdx.x == 0)
		board.head = board.ended = 0;
	__syncthreads();
	if (threadIdx.x < 32) {
		struct fetch f = {args.dev->cursor[blockIdx.x], 0, 0, blockIdx.x == 0, false};

		if (f.leader)
			lead(args, &board, &f, lane);
		else
			follow(args, &board, &f, lane);
		__syncwarp();
		if (lane == 0) {
			args.dev->cursor[blockIdx.x] = f.cursor;
			poke(&board.ended, 1u);
		}
	} else {
		work(args, &board, lane);
	}
	__syncthreads();
	if (threadIdx.x == 0)
		launch_end(args);
}
