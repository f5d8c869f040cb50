/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel of mode resident. It stays on its SMs, takes jobs (blocks to unpack, contiguous
 * copies) from a ring in pinned memory, and ends by itself after a while, or when no job comes.
 * cuda_resident.c launches it on a core's stream; resident_core.h has the ring's layout and
 * arithmetic.
 *
 * In each thread block one warp fetches jobs and puts the thread block's share on a board in shared
 * memory. The other warps take units from there, each at its own pace.
 *
 * Order of memory. The CPU stores a slot last. The leader reads the slot's words by acquiring
 * loads, or fences after it has read them; the others do so with the leader's repeats. Both empty
 * L1. The board hands the job on to the other warps: arriving at its barriers releases, passing
 * them acquires. Two steps are weaker on compute capability 9.0, where they were tried, than PTX
 * asks for. They rest on the hardware, because a fence in each would cost a lone job 0.25 and 0.6
 * us. All other generations have the fences, and acquire for the system the words that the leader
 * repeats for the CPU. First, the leader repeats without a release: its loads have returned by
 * then, over PCIe, so the CPU's earlier stores are in memory, and no thread block looks there
 * before it has seen the repeat. Second, the warp that counts a job's last units does not fence
 * again: each thread block has fenced for the system before it counted, and that fence returns when
 * its stores are there. test_gpu rewrites pools under the kernel, in pinned and in GPU memory, for
 * both.
 */
#include "resident_core.h"
#include "unpack_dev.cuh"

#include <stddef.h>

#define JOB_WORD(field) ((int)(offsetof(struct gx_res_job, field) / 4))

static_assert(sizeof(struct gx_res_job) == GX_RES_WORDS * 4, "same in C and in CUDA");
static_assert(sizeof(struct gx_res_slot) == GX_RES_WORDS * 8, "same in C and in CUDA");

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
constexpr bool fenced = false; /* see above */
#else
constexpr bool fenced = true;
#endif

#define BOUNDS_ONE 65536u /* in task.done: a unit with a descriptor out of bounds */

/* A job on the board of one thread block. The fetching warp writes it while no other warp works on
 * it. */
struct task {
	struct gx_res_job job;
	uint32_t number;
	uint32_t sharers;  /* thread blocks that have units of it; 0: the launch ends */
	uint32_t first, n; /* units of this one */
	uint32_t next;	   /* of these: the next one to be taken */
	uint32_t done;
};

/*
 * A ring of tasks. full: the fetching warp has written the task; empty: every other warp is through
 * with it. These are barriers of the hardware, by which one side waits for the other's accesses.
 */
struct board {
	struct task task[GX_RES_DEPTH];
	uint64_t full[GX_RES_DEPTH], empty[GX_RES_DEPTH];
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

/* For words that both sides write and read at once. */
__device__ static uint64_t relaxed_load(const uint64_t *at)
{
	uint64_t word;

	asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
	return word;
}

__device__ static uint64_t acquire_load_gpu(const uint64_t *at)
{
	uint64_t word;

	asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
	return word;
}

__device__ static uint64_t acquire_load_system(const uint64_t *at)
{
	uint64_t word;

	asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
	return word;
}

/*
 * A descriptor with its tags, whole. Of a vector PTX promises each part alone, of b128 (PTX
 * ISA 8.3) all of it; the hardware does the same for both.
 */
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1203
__device__ static uint4 quad_load(const struct gx_res_desc *at)
{
	uint64_t lo, hi;

	asm volatile("{\n\t.reg .b128 q;\n\t"
		     "ld.relaxed.sys.global.b128 q, [%2];\n\t"
		     "mov.b128 {%0, %1}, q;\n\t}"
		     : "=l"(lo), "=l"(hi)
		     : "l"(at)
		     : "memory");
	return make_uint4((uint32_t)lo, (uint32_t)(lo >> 32), (uint32_t)hi, (uint32_t)(hi >> 32));
}

__device__ static void quad_store(struct gx_res_desc *at, uint4 v)
{
	asm volatile("{\n\t.reg .b128 q;\n\t"
		     "mov.b128 q, {%1, %2};\n\t"
		     "st.relaxed.gpu.global.b128 [%0], q;\n\t}"
		     :
		     : "l"(at), "l"((uint64_t)v.y << 32 | v.x), "l"((uint64_t)v.w << 32 | v.z)
		     : "memory");
}
#else
__device__ static uint4 quad_load(const struct gx_res_desc *at)
{
	uint4 v;

	asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "l"(at)
		     : "memory");
	return v;
}

__device__ static void quad_store(struct gx_res_desc *at, uint4 v)
{
	asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};"
		     :
		     : "l"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
		     : "memory");
}
#endif

/* --- the barriers of the board --- */

__device__ static uint32_t shared_addr(const uint64_t *bar)
{
	return (uint32_t)__cvta_generic_to_shared(bar);
}

__device__ static void bar_init(uint64_t *bar, uint32_t arrivals)
{
	asm volatile("mbarrier.init.shared.b64 [%0], %1;"
		     :
		     : "r"(shared_addr(bar)), "r"(arrivals)
		     : "memory");
}

/* By every lane, because all have written or read: racecheck knows of no other order among them. */
__device__ static void bar_arrive(uint64_t *bar)
{
	asm volatile("{\n\t.reg .b64 state;\n\tmbarrier.arrive.shared.b64 state, [%0];\n\t}"
		     :
		     : "r"(shared_addr(bar))
		     : "memory");
}

/* Is use @use of the barrier, from 0, over? */
__device__ static bool bar_passed(const uint64_t *bar, uint32_t use)
{
	uint32_t passed;

	asm volatile("{\n\t.reg .pred p;\n\t"
		     "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n\t"
		     "selp.u32 %0, 1, 0, p;\n\t}"
		     : "=r"(passed)
		     : "r"(shared_addr(bar)), "r"(use & 1)
		     : "memory");
	return passed;
}

__device__ static void bar_wait(const uint64_t *bar, uint32_t use)
{
#if __CUDA_ARCH__ >= 900 /* the warp sleeps, and is awake earlier than one that asks */
	uint32_t passed;

	do
		asm volatile("{\n\t.reg .pred p;\n\t"
			     "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n\t"
			     "selp.u32 %0, 1, 0, p;\n\t}"
			     : "=r"(passed)
			     : "r"(shared_addr(bar)), "r"(use & 1)
			     : "memory");
	while (!passed);
#else
	while (!bar_passed(bar, use))
		;
#endif
}

/* --- the warps that work --- */

/* How this kernel copies. */
struct takes : lanes<true> {
	const struct gx_res_desc *laid;
	uint32_t tag;  /* of the descriptors that came with the job; 0: none did */
	uint32_t last; /* length of the last of them */
};

__device__ static struct gx_cut cut_get(const struct takes &, const struct gx_unpack_arg *arg,
					uint32_t unit, uint32_t step)
{
	return gx_res_cut(arg, unit, step);
}

/* The leader repeats them in the GPU's memory after the job, so they may still be on their way. */
__device__ static uint4 desc_get(const struct takes &how, const struct gx_unpack_arg *arg,
				 uint32_t i)
{
	uint4 v;

	if (!how.tag)
		return array_load<true>((const uint4 *)arg->block.desc + i);
	do
		v = quad_load(how.laid + i);
	while (v.y != how.tag || v.w != how.tag);
	return make_uint4(v.x, i + 1 == arg->block.nr ? how.last : arg->len, v.z, 0);
}

/* All bytes of the job are there, for the whole system. Tell the CPU, and the fetching warps, which
 * wait for that. */
__device__ static void job_finish(const struct gx_res_args &args, const struct task *t,
				  uint32_t worst)
{
	uint32_t slot = t->number & (GX_RES_RING - 1);
	bool copy = (t->job.kind & 255) == GX_RES_COPY;
	uint32_t *status = t->job.arg.block.status;

	/* Before the status: a CPU that sees the status then knows of the room in the ring, too. */
	poke(&args.shared->done[slot], t->number + 1);
	if (status)
		poke(status, copy ? t->job.value : worst);
	poke(&args.dev->done[slot], t->number + 1);
}

/* This thread block has done its units of @t. Return: all have. */
__device__ static bool share_account(const struct gx_res_args &args, const struct task *t,
				     uint32_t *worst)
{
	unsigned long long *count =
		(unsigned long long *)&args.dev->count[t->number & (GX_RES_RING - 1)];
	uint64_t all = gx_res_count(t->n, *worst);

	if (t->sharers == 1)
		return true;
	all += atomicAdd(count, all);
	if ((uint32_t)all != t->job.arg.nr_unit)
		return false;
	*worst = gx_res_worst(all);
	poke(count, 0ull);
	if (fenced) /* what others have done, and that the count is zero before the slot's next job
		     */
		fence_system();
	return true;
}

/*
 * One unit is done. Its stores come before the fence (the warp is synchronised first), the fence
 * before the count. The warp that completes the thread block's count has seen all of them, and
 * fences them for the system before the thread block counts.
 */
__device__ static void unit_account(const struct gx_res_args &args, struct task *t, uint32_t worst,
				    uint32_t lane)
{
	uint32_t done = 1 + (worst == GX_BLOCK_BOUNDS ? BOUNDS_ONE : 0);

	__syncwarp();
	if (lane != 0)
		return;
	fence_block();
	done += atomicAdd(&t->done, done);
	if (done % BOUNDS_ONE != t->n)
		return;
	fence_system();
	worst = done / BOUNDS_ONE ? GX_BLOCK_BOUNDS : GX_BLOCK_OK;
	if (share_account(args, t, &worst))
		job_finish(args, t, worst);
}

/* The warps take a lone job's first units by their order; else a warp that is free takes the next
 * one. */
__device__ static void units_take(const struct gx_res_args &args, struct task *t, uint32_t lane)
{
	bool own = t->job.kind & GX_RES_LONE;
	struct takes how;
	uint32_t k = threadIdx.x / 32 - 1, worst;

	how.laid = args.dev->desc;
	how.tag = t->job.kind & GX_RES_LAID ? t->number + 1 : 0;
	how.last = t->job.arg.block.hint_len;
	for (;; own = false) {
		if (!own) {
			k = lane == 0 ? atomicAdd(&t->next, 1u) : 0;
			k = __shfl_sync(ALL, k, 0);
		}
		if (k >= t->n)
			break;
		worst = unit_run(&t->job.arg, t->first + k, t->job.step, how, lane);
		unit_account(args, t, worst, lane);
	}
}

__device__ static void work(const struct gx_res_args &args, struct board *board, uint32_t lane)
{
	for (uint32_t at = 0;; at++) {
		uint32_t place = at & (GX_RES_DEPTH - 1);
		struct task *t = &board->task[place];

		bar_wait(&board->full[place], at / GX_RES_DEPTH);
		if (!t->sharers)
			return;
		units_take(args, t, lane);
		bar_arrive(&board->empty[place]);
	}
}

/* --- the warp that fetches --- */

/* The state of one fetching warp. All lanes hold the same, but for data: a lane's word of the
 * job. */
struct fetch {
	uint32_t cursor; /* number of the next job */
	uint32_t rank;	 /* of this thread block, in the order in which they began; 0: the leader */
	uint64_t begin_ns;
	uint32_t posted; /* tasks on the board so far */
	uint32_t data;
	int32_t ahead;	/* by how much the job in the next job's slot is newer */
	uint32_t descs; /* the leader: descriptors of the last job that had some */
	uint32_t here;	/* the leader: thread blocks that it has seen begin */
	bool leader, stopped;
};

enum { SLOT_WAIT, SLOT_HERE, SLOT_PAST };

#define LANE_DESCS (GX_RES_DESCS / 32)

/* A look at the ring: a lane's part of the words that it has brought. */
struct look {
	uint64_t word[2];	/* of the next slot, and of the one after it */
	uint4 desc[LANE_DESCS]; /* that lie outside the ring */
	bool acquired;		/* the next slot alone */
};

__device__ static int slot_check(uint64_t word, struct fetch *f)
{
	int32_t ahead = (int32_t)((uint32_t)(word >> 32) - (f->cursor + 1));

	f->data = (uint32_t)word;
	if (__all_sync(ALL, ahead == 0))
		return SLOT_HERE;
	f->ahead = __reduce_max_sync(ALL, ahead);
	return f->ahead > 0 ? SLOT_PAST : SLOT_WAIT;
}

/* Has this thread block nothing to do? */
__device__ static bool board_idle(const struct board *board, const struct fetch *f)
{
	uint32_t last = f->posted - 1;

	return __all_sync(ALL, !f->posted || bar_passed(&board->empty[last & (GX_RES_DEPTH - 1)],
							last / GX_RES_DEPTH));
}

/*
 * A fence waits for all accesses that its thread block has under way, a look over PCIe too. So
 * there is no look while a lone job is worked on; but for a while only, since others may come
 * meanwhile.
 */
__device__ static void board_rest(const struct board *board, const struct fetch *f)
{
	uint64_t begin_ns = time_ns();

	while (!board_idle(board, f) && __any_sync(ALL, time_ns() - begin_ns < GX_RES_REST_NS))
		;
}

__device__ static void jobs_wait(const struct gx_res_dev *dev, uint32_t wait_to, uint32_t lane)
{
	uint32_t low = gx_res_done_from(wait_to, lane), high = gx_res_done_from(wait_to, lane + 32);

	while (!__all_sync(ALL, (int32_t)(peek(&dev->done[lane]) - low) >= 0 &&
					(int32_t)(peek(&dev->done[lane + 32]) - high) >= 0))
		;
	fence_gpu();
}

/*
 * The leader. Thread blocks that have not begun get no share of a job. They may begin only when one
 * of these ends, because other work on the GPU may hold all other SMs, and for long. A job that
 * waits for theirs (jobs_wait) would hold this launch up for ever, and with it their SM. Thread
 * blocks that have begun run to their end in any case. So every wait in this kernel is for a thread
 * block that runs, and for an earlier job than the one that waits. A thread block that begins later
 * has no part in the jobs that were shared before, and its cursor goes through them. All begin at
 * about the same time on a GPU that has room, so a launch waits a little before it makes do with
 * fewer.
 */
__device__ static uint32_t share_here(const struct gx_res_args &args, struct fetch *f,
				      uint32_t share, uint32_t lane)
{
	uint32_t wanted = gx_res_share_blocks(share);
	uint32_t units = __shfl_sync(ALL, f->data, JOB_WORD(arg.nr_unit));
	bool late = false;

	while (f->here < wanted && !late) {
		late = __any_sync(ALL, time_ns() - f->begin_ns > GX_RES_ARRIVE_NS);
		f->here = __shfl_sync(ALL, peek(&args.dev->arrived), 0);
	}
	share = gx_res_share_here(share, units, f->here);
	if (lane == JOB_WORD(arg.block.hints))
		f->data = share; /* for the board, and for the others */
	return share;
}

/* The next place on the board, free to be written. */
__device__ static struct task *task_place(struct board *board, const struct fetch *f)
{
	uint32_t place = f->posted & (GX_RES_DEPTH - 1);

	if (f->posted >= GX_RES_DEPTH)
		bar_wait(&board->empty[place], f->posted / GX_RES_DEPTH - 1);
	return &board->task[place];
}

__device__ static void task_ready(struct board *board, struct fetch *f)
{
	bar_arrive(&board->full[f->posted & (GX_RES_DEPTH - 1)]);
	f->posted++;
}

/* This thread block's share of the job in f->data. */
__device__ static void task_post(const struct gx_res_args &args, struct board *board,
				 struct fetch *f, uint32_t kind, uint32_t share, uint32_t lane)
{
	struct task *t;

	if (kind & GX_RES_WAIT)
		jobs_wait(args.dev, __shfl_sync(ALL, f->data, JOB_WORD(wait_to)), lane);
	t = task_place(board, f);
	((uint32_t *)&t->job)[lane] = f->data;
	if (lane == 0) {
		t->number = f->cursor;
		t->sharers = gx_res_share_blocks(share);
		t->first = gx_res_share_first(share, f->rank);
		t->n = gx_res_share_first(share, f->rank + 1) - t->first;
		t->next = kind & GX_RES_LONE ? GX_RES_WORKERS : 0;
		t->done = 0;
	}
	task_ready(board, f);
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
	if (fenced)
		fence_gpu();
	poke(&args.dev->slot[f->cursor & (GX_RES_RING - 1)].word[lane],
	     (uint64_t)(f->cursor + 1) << 32 | f->data);
}

/* The descriptors that come with a job. Most often the look that found the job has brought them. */
__device__ static void descs_repeat(const struct gx_res_args &args, struct fetch *f,
				    struct look *look, uint32_t lane)
{
	uint32_t tag = f->cursor + 1;
	bool all;

	f->descs = __shfl_sync(ALL, f->data, JOB_WORD(arg.block.nr));
	do {
		all = true;
#pragma unroll
		for (uint32_t k = 0; k < LANE_DESCS; k++) {
			uint32_t i = lane + 32 * k;

			if (i >= f->descs)
				continue;
			if (look->desc[k].y == tag && look->desc[k].w == tag) {
				quad_store(&args.dev->desc[i], look->desc[k]);
				continue;
			}
			all = false;
			look->desc[k] = quad_load(&args.shared->desc[i]);
		}
	} while (!__all_sync(ALL, all));
}

/* The words that others wait for go out first. */
__device__ static void job_take(const struct gx_res_args &args, struct board *board,
				struct fetch *f, struct look *look, uint32_t lane)
{
	uint32_t kind = __shfl_sync(ALL, f->data, JOB_WORD(kind));
	uint32_t share = __shfl_sync(ALL, f->data, JOB_WORD(arg.block.hints));
	bool stop = (kind & 255) == GX_RES_STOP, early;

	if (f->leader && !stop)
		share = share_here(args, f, share, lane);
	early = f->leader && !stop && gx_res_share_blocks(share) > 1;
	if (early)
		job_repeat(args, f, lane);
	if (stop)
		job_stop(args, f, lane);
	else if (f->rank < gx_res_share_blocks(share))
		task_post(args, board, f, kind, share, lane);
	if (f->leader && kind & GX_RES_LAID)
		descs_repeat(args, f, look, lane);
	if (f->leader && !early)
		job_repeat(args, f, lane);
	f->cursor++;
	if (kind & GX_RES_LONE)
		board_rest(board, f);
}

/*
 * The leader alone decides when the launch takes no more. The others first take the jobs that it
 * had taken before, so that all end with the same cursor.
 */
__device__ static bool leaving(const struct gx_res_args &args, const struct fetch *f, int seen,
			       uint64_t last_ns)
{
	uint64_t now = time_ns();

	return __any_sync(ALL,
			  f->stopped || gx_res_over(now - f->begin_ns, args.life_ns) ||
				  (seen == SLOT_WAIT && gx_res_over(now - last_ns, args.idle_ns)));
}

/*
 * The leader looks at the ring over PCIe. With nothing to do it acquires the next slot, and brings
 * as many descriptors from outside the ring as came the last time. With work under way, whose lines
 * are in L1, it reads two slots, and fences if there is a job.
 */
__device__ static void ring_look(const struct gx_res_args &args, const struct fetch *f, bool idle,
				 struct look *look, uint32_t lane)
{
	const struct gx_res_slot *slot = args.shared->slot;
	const uint64_t *at = &slot[f->cursor & (GX_RES_RING - 1)].word[lane];

	look->acquired = idle;
#pragma unroll
	for (uint32_t k = 0; k < LANE_DESCS; k++) {
		look->desc[k] = make_uint4(0, f->cursor, 0, 0); /* not the tag */
		if (idle && 32 * k < f->descs)
			look->desc[k] = quad_load(&args.shared->desc[lane + 32 * k]);
	}
	if (idle) {
		look->word[0] = acquire_load_system(at);
		return;
	}
	look->word[0] = relaxed_load(at);
	look->word[1] = relaxed_load(&slot[f->cursor + 1 & (GX_RES_RING - 1)].word[lane]);
}

/* The jobs that a look has brought. */
__device__ static void jobs_take(const struct gx_res_args &args, struct board *board,
				 struct fetch *f, struct look *look, uint32_t lane)
{
	if (!look->acquired)
		fence_system();
	job_take(args, board, f, look, lane);
	if (!look->acquired && !f->stopped && slot_check(look->word[1], f) == SLOT_HERE)
		job_take(args, board, f, look, lane);
}

__device__ static void lead(const struct gx_res_args &args, struct board *board, struct fetch *f,
			    uint32_t lane)
{
	uint64_t last_ns = f->begin_ns;
	int seen = SLOT_WAIT;
	struct look look;

	/* The launch before may have met the STOP for this one. */
	f->stopped = gx_res_stopped(&args, args.dev->stop_to);
	__syncwarp();
	if (lane == 0 && !f->stopped)
		args.dev->stop_to = args.launch - 1;
	f->descs = args.dev->descs;
	/* A launch looks once at least, however late it is. */
	for (bool stays = !f->stopped; stays; stays = !leaving(args, f, seen, last_ns)) {
		ring_look(args, f, board_idle(board, f), &look, lane);
		seen = slot_check(look.word[0], f);
		if (seen != SLOT_HERE)
			continue;
		jobs_take(args, board, f, &look, lane);
		last_ns = time_ns();
	}
	if (lane == 0)
		args.dev->descs = f->descs;
	__syncwarp();
	fence_gpu();
	if (lane == 0)
		poke(&args.dev->leaving, args.launch);
}

/* The leader's repeats, and the CPU's stores before. */
__device__ static uint64_t repeat_acquire(const uint64_t *at)
{
	return fenced ? acquire_load_system(at) : acquire_load_gpu(at);
}

__device__ static void fence_repeat(void)
{
	if (fenced)
		fence_system();
	else
		fence_gpu();
}

__device__ static void follow(const struct gx_res_args &args, struct board *board, struct fetch *f,
			      uint32_t lane)
{
	bool last;
	int seen;

	do {
		const uint64_t *at = &args.dev->slot[f->cursor & (GX_RES_RING - 1)].word[lane];
		bool idle = board_idle(board, f);
		uint32_t leave = peek(&args.dev->leaving);
		uint64_t word = idle ? repeat_acquire(at) : relaxed_load(at);

		last = __any_sync(ALL, leave == args.launch);
		if (last) { /* pairs with the leader's, after its last slot */
			fence_repeat();
			word = relaxed_load(at);
			idle = false;
		}
		seen = slot_check(word, f);
		if (seen == SLOT_HERE) {
			if (!idle)
				fence_repeat();
			job_take(args, board, f, nullptr, lane);
		} else if (seen == SLOT_PAST) {
			/* The CPU writes a slot again when the job before in it, and all jobs
			 * before that, are done: those needed nothing from this thread block, which
			 * may have begun late. */
			f->cursor += (uint32_t)f->ahead - (GX_RES_RING - 1);
		}
	} while (!last || seen != SLOT_WAIT);
}

__device__ static void fetch_end(struct board *board, struct fetch *f, uint32_t lane)
{
	struct task *t = task_place(board, f);

	if (lane == 0)
		t->sharers = 0;
	task_ready(board, f);
}

/* By one thread; all thread blocks end with the same cursor. */
__device__ static void launch_end(const struct gx_res_args &args, uint32_t cursor)
{
	fence_gpu();
	if (atomicAdd(&args.dev->left, 1u) + 1 != gridDim.x)
		return;
	args.dev->left = 0;
	args.dev->arrived = 0;
	args.dev->cursor = cursor;
	fence_system();
	poke(&args.shared->ended, args.launch);
}

extern "C" __global__ void __launch_bounds__(GX_RES_THREADS, 1)
	gx_resident(const __grid_constant__ struct gx_res_args args)
{
	__shared__ struct board board;
	__shared__ uint32_t rank;
	uint32_t lane = threadIdx.x % 32, cursor = args.dev->cursor;

	if (threadIdx.x == 0)
		rank = atomicAdd(&args.dev->arrived, 1u);
	if (threadIdx.x < GX_RES_DEPTH) {
		bar_init(&board.full[threadIdx.x], 32);
		bar_init(&board.empty[threadIdx.x], GX_RES_WORKERS * 32);
	}
	__syncthreads();
	if (threadIdx.x < 32) {
		struct fetch f = {cursor, rank, time_ns(), 0, 0, 0, 0, 1, rank == 0, false};

		if (f.leader)
			lead(args, &board, &f, lane);
		else
			follow(args, &board, &f, lane);
		fetch_end(&board, &f, lane);
		cursor = f.cursor;
	} else {
		work(args, &board, lane);
	}
	__syncthreads();
	if (threadIdx.x == 0)
		launch_end(args, cursor);
}
