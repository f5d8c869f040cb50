/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 for tests on machines without a GPU: memory is host memory, a worker thread is the
 * GPU and runs what was queued in order and late, the unpack kernel is its index arithmetic in
 * plain C. It checks how the CUDA backend drives the driver, not the kernels. Built as a shared library
 * of that name; tests find it by LD_LIBRARY_PATH. GX_FAKE_CUDA_PLAN: bit i (hexadecimal) fails the
 * i-th call that can fail at open; GX_FAKE_CUDA_NO_WRITE_VALUE: stream memory operations are
 * refused; GX_FAKE_CUDA_DEAD, read at every call: so is all other work. GX_FAKE_CUDA_DEVICES: how
 * many GPUs there are, 1. GX_FAKE_CUDA_NO_PEER: none of them reaches another's memory; "0-2,1-2":
 * those pairs do not.
 * GX_FAKE_CUDA_NO_VMM: no virtual memory management, so cudaIpc alone. GX_FAKE_CUDA_RDMA_ORDER: who
 * sees what other devices write without a flush; 0: nobody, 100: that GPU, 200 (default): all.
 * While a stream is captured, what the driver deems unsafe is refused to threads that have not said
 * RELAXED, and spoils the capture, as an H200's driver 580 does; what is queued there is not run.
 * GX_FAKE_CUDA_STOPPED: the resident kernel does nothing; GX_FAKE_CUDA_BLOCKING: its launches
 * return when it has ended, as with CUDA_LAUNCH_BLOCKING. GX_FAKE_CUDA_VERSION: of CUDA, 13000.
 * GX_FAKE_CUDA_LOAD: what cuModuleLoadData answers. GX_FAKE_CUDA_QUERY, read at every call:
 * what cuStreamQuery answers. GX_FAKE_CUDA_FAIL, "cuMemMap 3", read at every call of virtual memory
 * management: the third call of that name, since the value was set, fails. Each GPU has a context, and a stream takes work of threads alone that
 * have its GPU's current.
 */
#include "crc_core.h"
#include "cuda_abi.h"
#include "gather_core.h"
#include "view_core.h"
#include "gx_internal/base.h"
#include "lab/load_core.h"
#include "resident_core.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FAKE_OPS_MAX	 65536 /* power of two */
#define RESIDENT_LOOK_NS 50000 /* after its last job */
#define FAKE		 __attribute__((visibility("default")))
#define RANGES_MAX	 4096
#define FAKE_SMS	 132

struct CUstream_st {
	struct CUctx_st *ctx;
	uint64_t last;	      /* number of its last operation, from 1 */
	const uint32_t *hold; /* while it is 0 a kernel of this stream holds SMs; NULL: none */
	bool captured;	      /* until cuStreamEndCapture() */
	unsigned mode;	      /* of the capture */
	unsigned spoilt_at;   /* the capture: value of nr_spoilt when it began */
};

struct fake_op {
	enum { OP_COPY, OP_SET, OP_WORD, OP_UNPACK, OP_GATHER, OP_LOAD, OP_HOST, OP_RESIDENT } kind;
	void (*host_fn)(void *arg);
	void (*load_fn)(const struct gx_load_args *a);
	struct gx_load_args load;
	char name; /* OP_GATHER: last letter but digits of the kernel, see gather_run() */
	struct gx_gather_args gather;
	struct gx_view_args *view;
	void *dst;
	const void *src;
	size_t len;
	uint32_t value;
	struct gx_unpack_args *args;
	struct gx_res_args resident;
	uint32_t grid; /* OP_RESIDENT */
};

/* Prototypes for the compiler: each symbol has the type that cuda_abi.h gives it. */
#define FAKE_PROTOTYPE(name, args) unsigned name args;
GX_CUDA_API(FAKE_PROTOTYPE)

static struct fake_op ring[FAKE_OPS_MAX];
static _Atomic uint64_t queued, finished;
static _Thread_local struct CUctx_st *current, *below[8]; /* a stack; .current is its top */
static _Thread_local unsigned nr_below;
static struct {
	uint8_t *ptr;
	size_t len;
	unsigned type; /* 0: free entry */
	bool registered;
	int device;
	uint64_t id;	      /* never used again */
	uint64_t devices;     /* that reach it: bits; VMM alone */
	int fd;		      /* VMM: a handle of it; else 0 */
	void *pool;	      /* it was allocated from; else NULL */
	struct CUctx_st *ctx; /* that it ends with; NULL: none */
} range[RANGES_MAX];
static unsigned range_end; /* entries from here on were never used */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, range_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t come = PTHREAD_COND_INITIALIZER; /* .queued has grown */
static unsigned nr_calls;
struct CUctx_st {
	_Atomic int refs;
	int device;
} contexts[64];
static _Thread_local unsigned thread_mode;     /* GX_CU_CAPTURE_*: what this thread has said */
static _Thread_local unsigned thread_captures; /* begun here, not in mode relaxed */
static _Atomic unsigned global_captures;       /* in mode global, of any thread */
static _Atomic unsigned nr_spoilt;
static uint64_t nr_ranges;
static _Atomic bool faulted; /* the contexts are gone */

static bool planned(void)
{
	const char *plan = getenv("GX_FAKE_CUDA_PLAN");
	unsigned i = nr_calls++;

	return plan && i < 64 && (strtoull(plan, NULL, 16) >> i & 1);
}

/* Is it the turn of this call to fail? */
static bool named_to_fail(const char *call)
{
	static char now[64];
	static unsigned left;
	const char *plan = getenv("GX_FAKE_CUDA_FAIL");
	size_t n = strlen(call);

	if (strcmp(now, plan ? plan : "")) {
		snprintf(now, sizeof(now), "%s", plan ? plan : "");
		left = strchr(now, ' ') ? (unsigned)atoi(strchr(now, ' ')) : 0;
	}
	return !strncmp(now, call, n) && now[n] == ' ' && left && !--left;
}

/* Of a call that the driver deems unsafe: 0, or why this thread may not make it now. */
static unsigned unsafe(void)
{
	if (thread_mode == GX_CU_CAPTURE_RELAXED ||
	    (!thread_captures && (thread_mode != GX_CU_CAPTURE_GLOBAL || !global_captures)))
		return 0;
	nr_spoilt++;
	return GX_CU_ERROR_CAPTURE_UNSUPPORTED;
}

static uint32_t unit_run(const struct gx_unpack_arg *arg, uint32_t step, uint32_t unit)
{
	const struct gx_block *blk = &arg->block;
	struct gx_cut from = gx_cut_get(arg, unit, step);
	struct gx_cut to = gx_cut_get(arg, unit + 1, step);
	uint32_t worst = GX_BLOCK_OK;

	for (uint32_t i = from.desc; i < gx_cut_end(&to); i++) {
		struct gx_desc whole = {0, arg->len, 0};
		const struct gx_desc *d = blk->desc ? &blk->desc[i] : &whole;
		uint16_t which = arg->only ? 0 : blk->aux[i].seg;
		const struct gx_dest *seg = which < blk->nr_seg ? &blk->seg[which] : NULL;
		struct gx_piece p =
			gx_piece_get(blk, d, arg->only ? &arg->seg0 : seg, i, &from, &to);

		if (p.len)
			memcpy((void *)p.dst, (void *)p.src, p.len);
		worst = GX_MAX(worst, p.status);
	}
	return worst;
}

static uint32_t crc_run(const struct gx_unpack_arg *arg)
{
	const struct gx_block *b = &arg->block;
	uint32_t worst = GX_BLOCK_OK;

	for (uint32_t i = 0; arg->crc && i < b->nr; i++) {
		const uint8_t *src = (const uint8_t *)(uintptr_t)(b->src_base + b->desc[i].src_off);
		uint16_t seg = arg->only ? 0 : b->aux[i].seg;
		uint32_t crc = ~0u;

		if (seg >= b->nr_seg || !gx_desc_fits(&b->desc[i], &b->seg[seg]))
			continue; /* refused: nobody reads it */
		for (uint32_t k = 0; k < b->desc[i].len; k++)
			crc = gx_crc_step(crc, src[k]);
		if (b->aux[i].flags & GX_AUX_CRC && ~crc != b->aux[i].crc) {
			b->aux[i].flags |= GX_AUX_BAD;
			worst = GX_BLOCK_CRC;
		}
	}
	return worst;
}

static void unpack_run(struct gx_unpack_args *args)
{
	for (unsigned b = 0; b < args->n; b++) {
		uint32_t *worst = &args->counter[GX_UNPACK_BLOCKS_MAX + b];

		for (uint32_t unit = 0; unit < args->arg[b].nr_unit; unit++)
			*worst = GX_MAX(*worst, unit_run(&args->arg[b], args->step, unit));
		if (args->crc)
			*worst = GX_MAX(*worst, crc_run(&args->arg[b]));
		__atomic_store_n(args->arg[b].block.status, GX_MAX(*worst, GX_BLOCK_OK),
				 __ATOMIC_RELEASE);
		*worst = 0;
	}
	free(args);
}

/* The next job of the ring, whole. The fake has one thread block, the leader. */
static bool resident_read(const struct gx_res_args *a, uint32_t cursor, struct gx_res_job *job)
{
	const struct gx_res_slot *slot = &a->shared->slot[cursor & (GX_RES_RING - 1)];
	uint32_t data[GX_RES_WORDS];

	for (unsigned i = 0; i < GX_RES_WORDS; i++) {
		uint64_t word = __atomic_load_n(&slot->word[i], __ATOMIC_ACQUIRE);

		if (word >> 32 != (uint32_t)(cursor + 1))
			return false;
		data[i] = (uint32_t)word;
	}
	memcpy(job, data, sizeof(*job));
	return true;
}

/* The descriptors that came with the job, in the place of those that it was made from. */
static void resident_laid(const struct gx_res_args *a, uint32_t cursor, struct gx_res_job *job)
{
	static _Thread_local struct gx_desc desc[GX_RES_DESCS];
	uint32_t nr = job->arg.block.nr;

	if (nr > GX_RES_DESCS)
		abort();
	for (uint32_t i = 0; i < nr; i++) {
		const uint64_t *from = (const uint64_t *)&a->shared->desc[i];
		uint64_t src = __atomic_load_n(&from[0], __ATOMIC_ACQUIRE);
		uint64_t dst = __atomic_load_n(&from[1], __ATOMIC_ACQUIRE);

		if (src >> 32 != (uint32_t)(cursor + 1) || dst >> 32 != src >> 32)
			abort(); /* another job's */
		desc[i] = (struct gx_desc){(uint32_t)src, job->arg.len, (uint32_t)dst};
	}
	desc[nr - 1].len = job->arg.block.hint_len;
	job->arg.block.desc = desc;
}

/* gx_load_hold: SMs that are taken while *hold_flag is 0. */
static const uint32_t *_Atomic hold_flag;
static _Atomic unsigned hold_sms;

/* Thread blocks of @grid that find an SM; the others begin when these end. */
static uint32_t resident_here(uint32_t grid)
{
	const uint32_t *flag = hold_flag;
	unsigned sms = FAKE_SMS;

	if (flag && !__atomic_load_n(flag, __ATOMIC_ACQUIRE))
		sms -= hold_sms;
	return GX_MIN(grid, GX_MAX(sms, 1));
}

/* Jobs that thread blocks without an SM have a share of: done when the launch ends. */
static struct {
	struct gx_res_job job;
	uint32_t cursor;
} late[GX_RES_RING];
static unsigned nr_late;

/* One job comes after the other here: one that waits finds all done, or would wait for ever. */
static void resident_wait(const struct gx_res_dev *dev, uint32_t wait_to)
{
	for (uint32_t slot = 0; slot < GX_RES_RING; slot++)
		if ((int32_t)(dev->done[slot] - gx_res_done_from(wait_to, slot)) < 0) {
			fprintf(stderr,
				"fake CUDA: a job waits for %u, but of slot %u %u was the last\n",
				wait_to, slot, dev->done[slot]);
			abort();
		}
}

static void resident_job(const struct gx_res_args *a, uint32_t cursor, const struct gx_res_job *job)
{
	uint32_t *done = &a->shared->done[cursor & (GX_RES_RING - 1)], worst = GX_BLOCK_OK;
	bool copy = (job->kind & 255) == GX_RES_COPY;

	for (uint32_t unit = 0; unit < job->arg.nr_unit; unit++)
		worst = GX_MAX(worst, unit_run(&job->arg, job->step, unit));
	if (job->arg.block.status)
		__atomic_store_n(job->arg.block.status, copy ? job->value : worst,
				 __ATOMIC_RELEASE);
	a->dev->done[cursor & (GX_RES_RING - 1)] = cursor + 1;
	__atomic_store_n(done, cursor + 1, __ATOMIC_RELEASE);
}

/* Not gx's own: nothing of gx is linked here. */
static uint64_t fake_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

/* The leader has it; who has no SM must not be needed before the launch ends. */
static void resident_take(const struct gx_res_args *a, uint32_t cursor, struct gx_res_job *job,
			  uint32_t here)
{
	uint32_t units = job->arg.nr_unit;

	if (job->kind & GX_RES_WAIT)
		resident_wait(a->dev, job->wait_to);
	if (units &&
	    gx_res_share_blocks(gx_res_share_here(job->arg.block.hints, units, here)) > here) {
		late[nr_late].job = *job;
		late[nr_late++].cursor = cursor;
		return;
	}
	resident_job(a, cursor, job);
}

/* A GPU's threads look on; ours leave the CPU to whoever posts. */
static void resident_rest(uint64_t idle_ns)
{
	if (idle_ns < RESIDENT_LOOK_NS)
		sched_yield();
	else
		usleep(20);
}

static void resident_run(const struct gx_res_args *a, uint32_t grid)
{
	uint32_t here = resident_here(grid);
	uint64_t begin_ns = fake_now_ns(), last_ns = begin_ns, now_ns = begin_ns;
	struct gx_res_job job;

	if (!gx_res_stopped(a, a->dev->stop_to))
		a->dev->stop_to = a->launch - 1;
	while (!gx_res_stopped(a, a->dev->stop_to) && !gx_res_over(now_ns - begin_ns, a->life_ns) &&
	       !gx_res_over(now_ns - last_ns, a->idle_ns)) {
		now_ns = fake_now_ns();
		if (!resident_read(a, a->dev->cursor, &job)) {
			if (a->life_ns == GX_RES_UNBOUND && getenv("GX_FAKE_CUDA_BLOCKING")) {
				fprintf(stderr, "fake CUDA: who would post the STOP waits\n");
				abort();
			}
			resident_rest(now_ns - last_ns);
			continue;
		}
		if ((job.kind & 255) == GX_RES_STOP)
			a->dev->stop_to = job.value;
		if (job.kind & GX_RES_LAID)
			resident_laid(a, a->dev->cursor, &job);
		resident_take(a, a->dev->cursor++, &job, here);
		last_ns = now_ns;
	}
	for (unsigned i = 0; i < nr_late; i++)
		resident_job(a, late[i].cursor, &late[i].job);
	nr_late = 0;
	__atomic_store_n(&a->shared->ended, a->launch, __ATOMIC_RELEASE);
}

/* The words of one row, as the warp of the kernel takes them. */
static void row_run(const struct gx_gather_args *a, struct gx_pair p, uint32_t word)
{
	uint64_t src = (uintptr_t)a->src + (uint64_t)p.src * a->row_b;
	uint64_t dst = (uintptr_t)a->dst + (uint64_t)p.dst * a->row_b;

	for (uint32_t seg = 0; seg < a->segs; seg++) {
		struct gx_gather_seg s = gx_gather_seg_get(src, dst, a->row_b, word, seg);

		for (int32_t at = s.lo; at < s.hi; at++)
			memcpy((void *)(s.dst + at * word), (void *)(s.src + at * word), word);
	}
}

static void gather_ordered(const struct gx_gather_args *a, uint32_t word)
{
	for (uint32_t base = 0; base < a->nr_src; base += a->window)
		for (uint32_t at = 0; at < a->window * a->row_b; at += word) {
			uint32_t row = gx_gather_row_of(at, a->magic), src = base + row;
			uint32_t i = src < a->nr_src ? a->head[src] : 0;

			for (; i; i = a->next[i - 1])
				memcpy(a->dst + (uint64_t)a->pairs[i - 1].dst * a->row_b + at -
					       row * a->row_b,
				       a->src + (uint64_t)base * a->row_b + at, word);
		}
	if (a->nr_src)
		memset(a->head, 0, a->nr_src * sizeof(*a->head));
}

static void gather_run(const struct gx_gather_args *a, char name)
{
	uint32_t word = gx_gather_word((uintptr_t)a->src, (uintptr_t)a->dst, a->row_b);

	for (uint32_t i = 0; i < a->nr && name != 'q' && name != 'd'; i++) {
		if (!gx_gather_fits(a, a->pairs[i])) {
			a->counter[1]++;
		} else if (name == 'k') {
			a->next[i] = a->head[a->pairs[i].src];
			a->head[a->pairs[i].src] = i + 1;
		} else {
			row_run(a, a->pairs[i], word);
		}
	}
	if (name == 'k')
		return;
	if (name == 'q' && a->nr)
		memcpy(a->dst, a->src, (size_t)a->nr * a->row_b);
	else if (name == 'd')
		gather_ordered(a, word);
	*a->bad = a->counter[1];
	a->counter[1] = 0;
	__atomic_store_n(a->flag, a->value, __ATOMIC_RELEASE);
}

/* The words of each tile, as the thread blocks of the kernel take them. */
static void view_run(struct gx_view_args *a)
{
	for (uint32_t t = 0; (uint64_t)t * a->tile < a->words; t++) {
		uint32_t begin = t * a->tile, n = gx_view_tile(a, t);
		uint32_t first = gx_view_div(begin, &a->piece_w);

		if (gx_view_div(begin + n - 1, &a->piece_w) - first >= GX_VIEW_PLACES)
			abort();
		for (uint32_t at = begin; at < begin + n; at++) {
			uint32_t piece = gx_view_div(at, &a->piece_w);
			uint64_t in = (at - piece * a->piece_w.by) * a->word_b;

			memcpy((void *)(gx_view_place(&a->dst, a->first + piece) + in),
			       (void *)(gx_view_place(&a->src, a->first + piece) + in), a->word_b);
		}
	}
	__atomic_store_n(a->flag, a->value, __ATOMIC_RELEASE);
	free(a);
}

/* ---- the kernels of load.cu ---- */

static void load_fill(const struct gx_load_args *a)
{
	for (uint64_t i = 0; i < a->n; i++)
		((uint64_t *)a->mem)[i] = gx_load_word(a->seed, i);
}

static void load_diff(const struct gx_load_args *a)
{
	for (uint64_t i = 0; i < a->n; i++)
		*a->wrong += gx_load_bytes_wrong(((uint64_t *)a->mem)[i], gx_load_word(a->seed, i));
}

/* bf16 is the upper half of a float, rounded to nearest even. */
static uint16_t bf16_of(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float bf16_get(uint16_t b)
{
	uint32_t u = (uint32_t)b << 16;
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

static void load_values16(const struct gx_load_args *a)
{
	for (uint64_t i = 0; i < a->n; i++)
		((uint16_t *)a->mem)[i] = bf16_of(gx_load_value(a->seed, i));
}

static void load_values32(const struct gx_load_args *a)
{
	for (uint64_t i = 0; i < a->n; i++)
		((float *)a->mem)[i] = gx_load_value(a->seed, i);
}

static void load_gemm(const struct gx_load_args *a)
{
	const float *p = a->a, *q = a->b;

	for (uint64_t r = 0; r < a->grid_y * GX_LOAD_TILE; r++)
		for (uint64_t col = 0; col < a->grid_x * GX_LOAD_TILE; col++) {
			float sum = 0;

			for (uint64_t k = 0; k < a->n; k++)
				sum += p[r * a->n + k] * q[k * a->n + col];
			((float *)a->c)[r * a->n + col] = sum;
		}
}

static void load_softmax(const struct gx_load_args *a)
{
	for (uint32_t r = 0; r < a->grid_x; r++) {
		uint16_t *row = (uint16_t *)a->mem + r * a->n;
		double sum = 0;

		for (uint64_t i = 0; i < a->n; i++)
			sum += exp(bf16_get(row[i]));
		for (uint64_t i = 0; i < a->n; i++)
			row[i] = bf16_of((float)(exp(bf16_get(row[i])) / sum));
	}
}

static const struct {
	const char *name;
	void (*fn)(const struct gx_load_args *a);
} load_fns[] = {
	{"gx_load_fill", load_fill},	     {"gx_load_diff", load_diff},
	{"gx_load_values16", load_values16}, {"gx_load_values32", load_values32},
	{"gx_load_gemm", load_gemm},	     {"gx_load_softmax", load_softmax},
};

/* A function is its index from here on. */
#define LOAD_FN_BASE 1024
#define HOLD_FN	     1023

static unsigned load_find(const char *name)
{
	for (unsigned i = 0; i < GX_ARRAY_SIZE(load_fns); i++)
		if (!strcmp(load_fns[i].name, name))
			return LOAD_FN_BASE + i;
	return 0;
}

static void op_run(struct fake_op *op)
{
	switch (op->kind) {
	case OP_COPY:
		memmove(op->dst, op->src, op->len);
		break;
	case OP_SET:
		memset(op->dst, op->value, op->len);
		break;
	case OP_WORD:
		__atomic_store_n((uint32_t *)op->dst, op->value, __ATOMIC_RELEASE);
		break;
	case OP_UNPACK:
		unpack_run(op->args);
		break;
	case OP_GATHER:
		if (op->view)
			view_run(op->view);
		else
			gather_run(&op->gather, op->name);
		break;
	case OP_LOAD:
		op->load_fn(&op->load);
		break;
	case OP_HOST:
		op->host_fn(op->dst);
		break;
	case OP_RESIDENT:
		if (!getenv("GX_FAKE_CUDA_STOPPED"))
			resident_run(&op->resident, op->grid);
		break;
	}
}

static void *worker(void *arg)
{
	for (;;) {
		if (finished == queued) {
			pthread_mutex_lock(&lock);
			while (finished == queued)
				pthread_cond_wait(&come, &lock);
			pthread_mutex_unlock(&lock);
		}
		op_run(&ring[finished & (FAKE_OPS_MAX - 1)]);
		finished++;
	}
	return NULL;
}

/* Else a soak takes pages of the ring that are used for the first time for memory that grows. */
__attribute__((constructor)) static void ring_touch(void)
{
	memset(ring, 0, sizeof(ring));
}

/* Not current, or no stream: the driver would refuse too. */
static unsigned op_add(struct CUstream_st *stream, struct fake_op op)
{
	uint64_t last;

	if (!current || !stream)
		return 201;
	if (stream->ctx != current)
		return 400;
	if (getenv("GX_FAKE_CUDA_DEAD"))
		return 719;
	if (faulted)
		return 700; /* CUDA_ERROR_ILLEGAL_ADDRESS, for good */
	if (stream->captured)
		return 0;
	pthread_mutex_lock(&lock);
	while (queued - finished == FAKE_OPS_MAX)
		usleep(10);
	ring[queued & (FAKE_OPS_MAX - 1)] = op;
	last = stream->last = ++queued;
	pthread_cond_signal(&come);
	pthread_mutex_unlock(&lock);
	while (op.kind == OP_RESIDENT && getenv("GX_FAKE_CUDA_BLOCKING") && finished < last)
		usleep(10);
	return 0;
}

/* An entry that holds any of the bytes, else a free one. Under range_lock. */
static unsigned range_meet(const uint8_t *ptr, size_t len, unsigned *free_entry)
{
	unsigned found = RANGES_MAX;

	if (range_end < RANGES_MAX)
		*free_entry = range_end;
	for (unsigned i = 0; i < range_end; i++) {
		if (!range[i].type)
			*free_entry = i;
		else if (ptr + len > range[i].ptr && ptr < range[i].ptr + range[i].len)
			found = i;
	}
	return found;
}

static unsigned range_seek(const void *ptr, unsigned *free_entry)
{
	return range_meet(ptr, 1, free_entry);
}

/* Contexts of several threads share the table. What an entry holds is its owner's business. */
static unsigned range_find(const void *ptr, unsigned *free_entry)
{
	unsigned at;

	pthread_mutex_lock(&range_lock);
	at = range_seek(ptr, free_entry);
	pthread_mutex_unlock(&range_lock);
	return at;
}

static unsigned range_add_locked(void *ptr, size_t len, unsigned type, bool registered)
{
	unsigned at = RANGES_MAX;

	if (range_meet(ptr, len, &at) < RANGES_MAX)
		return GX_CU_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	if (at == RANGES_MAX)
		return GX_CU_ERROR_OUT_OF_MEMORY;
	if (at == range_end)
		range_end++;
	range[at].ptr = ptr;
	range[at].len = len;
	range[at].type = type;
	range[at].registered = registered;
	range[at].device = current ? current->device : 0;
	range[at].id = ++nr_ranges;
	range[at].devices = 0;
	range[at].fd = 0;
	range[at].pool = NULL;
	range[at].ctx = registered && type == GX_CU_MEMORYTYPE_DEVICE ? NULL : current;
	return 0;
}

static unsigned range_add(void *ptr, size_t len, unsigned type, bool registered)
{
	unsigned ret;

	pthread_mutex_lock(&range_lock);
	ret = range_add_locked(ptr, len, type, registered);
	pthread_mutex_unlock(&range_lock);
	return ret;
}

static unsigned range_del(void *ptr, bool registered)
{
	unsigned none, at;
	bool found;

	if (unsafe())
		return GX_CU_ERROR_CAPTURE_UNSUPPORTED;
	pthread_mutex_lock(&range_lock);
	at = range_seek(ptr, &none);
	found = at < RANGES_MAX && range[at].ptr == ptr && range[at].registered == registered;
	if (found)
		range[at].type = 0;
	pthread_mutex_unlock(&range_lock);
	if (found && !registered)
		free(ptr);
	return found ? 0 : GX_CU_ERROR_INVALID_VALUE;
}

/* Memory and registrations that were made in a context go with it. */
static void ranges_end(struct CUctx_st *ctx)
{
	pthread_mutex_lock(&range_lock);
	for (unsigned i = 0; i < range_end; i++) {
		if (!range[i].type || range[i].ctx != ctx)
			continue;
		range[i].type = 0;
		if (!range[i].registered)
			free(range[i].ptr);
	}
	pthread_mutex_unlock(&range_lock);
}

static unsigned fake_alloc(void **out, size_t len, unsigned type)
{
	void *ptr;

	if (unsafe())
		return GX_CU_ERROR_CAPTURE_UNSUPPORTED;
	if (!current)
		return 201;
	if (len > (size_t)1 << 40)
		return GX_CU_ERROR_OUT_OF_MEMORY;
	ptr = aligned_alloc(4096, GX_ALIGN_UP(len, 4096));
	memset(ptr, 0x5c, len); /* never zeroed by accident */
	*out = ptr;
	return range_add(ptr, len, type, false);
}

FAKE unsigned cuInit(unsigned flags)
{
	static atomic_flag started = ATOMIC_FLAG_INIT; /* gx is not the only one that calls it */
	pthread_t thread;

	if (atomic_flag_test_and_set(&started))
		return 0;
	return pthread_create(&thread, NULL, worker, NULL) ? 999 : 0;
}

FAKE unsigned cuGetErrorName(unsigned error, const char **name)
{
	*name = "CUDA_ERROR_FAKE";
	return 0;
}

FAKE unsigned cuDriverGetVersion(int *version)
{
	const char *says = getenv("GX_FAKE_CUDA_VERSION");

	*version = says ? atoi(says) : 13000;
	return 0;
}

FAKE unsigned cuDeviceGetCount(int *count)
{
	const char *n = getenv("GX_FAKE_CUDA_DEVICES");

	*count = n ? atoi(n) : 1;
	return 0;
}

FAKE unsigned cuDeviceGet(int *device, int ordinal)
{
	int n;

	*device = ordinal;
	cuDeviceGetCount(&n);
	return planned() || ordinal < 0 || ordinal >= n ? 101 : 0;
}

FAKE unsigned cuDeviceGetName(char *name, int len, int device)
{
	strncpy(name, "fake GPU", len);
	return planned() ? 1 : 0;
}

FAKE unsigned cuDeviceGetAttribute(int *value, unsigned attribute, int device)
{
	if ((attribute >= GX_CU_ATTR_VMM && attribute <= GX_CU_ATTR_VMM_RDMA) ||
	    attribute == GX_CU_ATTR_DMABUF) {
		*value = !getenv("GX_FAKE_CUDA_NO_VMM");
		return 0;
	}
	if (attribute == GX_CU_ATTR_PCI_DOMAIN || attribute == GX_CU_ATTR_PCI_BUS ||
	    attribute == GX_CU_ATTR_PCI_DEVICE) {
		*value = attribute == GX_CU_ATTR_PCI_BUS ? 0xf0 + device : 0;
		return 0;
	}
	if (attribute == GX_CU_ATTR_RDMA_ORDER) {
		const char *order = getenv("GX_FAKE_CUDA_RDMA_ORDER");

		*value = order ? atoi(order) : GX_CU_RDMA_ORDER_ALL;
		return 0;
	}
	*value = attribute == GX_CU_ATTR_MULTIPROCESSOR_COUNT ? 132 : 9;
	if (attribute == GX_CU_ATTR_MPS)
		*value = getenv("GX_FAKE_CUDA_MPS") != NULL;
	return planned() ? 1 : 0;
}

/* GX_FAKE_CUDA_NO_PEER: pairs, as "0-2,1-2", else all. */
static bool fake_reaches(int device, int peer)
{
	const char *no = getenv("GX_FAKE_CUDA_NO_PEER");
	int a, b;

	if (device == peer || !no)
		return true;
	if (!strchr(no, '-'))
		return false;
	for (; no; no = strchr(no, ',') ? strchr(no, ',') + 1 : NULL)
		if (sscanf(no, "%d-%d", &a, &b) == 2 &&
		    ((a == device && b == peer) || (a == peer && b == device)))
			return false;
	return true;
}

FAKE unsigned cuDeviceCanAccessPeer(int *can, int device, int peer)
{
	*can = fake_reaches(device, peer);
	return 0;
}

FAKE unsigned cuDevicePrimaryCtxRetain(struct CUctx_st **ctx, int device)
{
	if (planned())
		return GX_CU_ERROR_OUT_OF_MEMORY;
	*ctx = &contexts[device];
	contexts[device].device = device;
	contexts[device].refs++;
	return 0;
}

FAKE unsigned cuDevicePrimaryCtxRelease_v2(int device)
{
	if (--contexts[device].refs == 0)
		ranges_end(&contexts[device]);
	return contexts[device].refs < 0 ? 201 : 0;
}

FAKE unsigned cuCtxCreate_v2(struct CUctx_st **ctx, unsigned flags, int device)
{
	if (planned() || named_to_fail("cuCtxCreate"))
		return GX_CU_ERROR_OUT_OF_MEMORY;
	if (current)
		below[nr_below++] = current;
	current = *ctx = calloc(1, sizeof(**ctx));
	current->device = device;
	return 0;
}

FAKE unsigned cuCtxPopCurrent_v2(struct CUctx_st **ctx)
{
	*ctx = current;
	current = nr_below ? below[--nr_below] : NULL;
	return 0;
}

FAKE unsigned cuCtxSetLimit(unsigned limit, size_t value)
{
	return current ? 0 : 201;
}

FAKE unsigned cuCtxDestroy_v2(struct CUctx_st *ctx)
{
	ranges_end(ctx);
	if (current == ctx)
		cuCtxPopCurrent_v2(&current);
	free(ctx);
	return 0;
}

FAKE unsigned cuCtxGetCurrent(struct CUctx_st **ctx)
{
	*ctx = current;
	return 0;
}

/* Not in cuda_abi.h: the NCCL plugin asks them. */
unsigned cuCtxGetDevice(int *device);

FAKE unsigned cuCtxGetDevice(int *device)
{
	if (!current)
		return 201;
	*device = current->device;
	return 0;
}

FAKE unsigned cuCtxSetCurrent(struct CUctx_st *ctx)
{
	if (ctx)
		current = ctx;
	else
		cuCtxPopCurrent_v2(&current);
	return 0;
}

FAKE unsigned cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	return 0;
}

FAKE unsigned cuModuleLoadData(struct CUmod_st **module, const void *image)
{
	if (unsafe())
		return GX_CU_ERROR_CAPTURE_UNSUPPORTED;
	if (getenv("GX_FAKE_CUDA_LOAD"))
		return (unsigned)atoi(getenv("GX_FAKE_CUDA_LOAD"));
	if (planned())
		return 209;
	*module = malloc(1);
	return 0;
}

FAKE unsigned cuModuleUnload(struct CUmod_st *module)
{
	free(module);
	return 0;
}

FAKE unsigned cuModuleGetFunction(struct CUfunc_st **function, struct CUmod_st *module,
				  const char *name)
{
	size_t last = strlen(name);

	/* The letter before the digits tells the kernels of a gather apart: rows16, link, ordered4,
	 * seq ... */
	while (name[last - 1] >= '0' && name[last - 1] <= '9')
		last--;
	if (!strncmp(name, "gx_gather", 9)) {
		*function = (struct CUfunc_st *)(uintptr_t)(name[last - 1] == 'd' &&
									    name[last - 2] == 'a'
								    ? 't'
								    : name[last - 1]);
		return planned() ? 500 : 0;
	}
	if (!strcmp(name, "gx_load_hold")) {
		*function = (struct CUfunc_st *)HOLD_FN;
		return 0;
	}
	if (load_find(name)) {
		*function = (struct CUfunc_st *)(uintptr_t)load_find(name);
		return planned() ? 500 : 0;
	}
	*function = (struct CUfunc_st *)(uintptr_t)(!strcmp(name, "gx_flag")	   ? 2
						    : !strcmp(name, "gx_resident") ? 3
										   : 1);
	return planned() ? 500 : 0;
}

/* Nothing is run: it is there. */
static unsigned hold_begin(struct CUstream_st *stream, const struct gx_load_args *a, unsigned grid)
{
	for (unsigned i = 0; i < grid; i++)
		((uint32_t *)a->mem)[i] = 1;
	stream->hold = (const uint32_t *)a->wrong;
	hold_sms = grid;
	hold_flag = stream->hold;
	return 0;
}

/* No driver has it. @what: 0: thread blocks of the widest launch; 1: streams that were made. */
unsigned fake_cuda_seen(unsigned what);
static _Atomic unsigned seen[2];

FAKE unsigned fake_cuda_seen(unsigned what)
{
	return seen[what];
}

FAKE unsigned cuLaunchKernel(struct CUfunc_st *function, unsigned grid_x, unsigned grid_y,
			     unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
			     unsigned shared_b, struct CUstream_st *stream, void **params,
			     void **extra)
{
	struct gx_unpack_args *args;
	unsigned res;

	if ((uintptr_t)function == HOLD_FN)
		return hold_begin(stream, params[0], grid_x);
	if ((uintptr_t)function >= LOAD_FN_BASE)
		return op_add(
			stream,
			(struct fake_op){.kind = OP_LOAD,
					 .load_fn = load_fns[(uintptr_t)function - LOAD_FN_BASE].fn,
					 .load = *(struct gx_load_args *)params[0]});
	if (planned() || !grid_x || grid_x > 132)
		return 700;
	seen[0] = GX_MAX(seen[0], grid_x);
	if ((uintptr_t)function == 2)
		return op_add(stream, (struct fake_op){.kind = OP_WORD,
						       .dst = *(void **)params[0],
						       .value = *(uint32_t *)params[1]});
	if ((uintptr_t)function == 3)
		return op_add(stream,
			      (struct fake_op){.kind = OP_RESIDENT,
					       .grid = grid_x,
					       .resident = *(struct gx_res_args *)params[0]});
	if ((uintptr_t)function == 'w') {
		struct gx_view_args *view = malloc(sizeof(*view));

		memcpy(view, params[0], sizeof(*view));
		res = op_add(stream, (struct fake_op){.kind = OP_GATHER, .view = view});
		if (res)
			free(view);
		return res;
	}
	if ((uintptr_t)function > 3)
		return op_add(stream,
			      (struct fake_op){.kind = OP_GATHER,
					       .name = (char)(uintptr_t)function,
					       .gather = *(struct gx_gather_args *)params[0]});
	args = malloc(sizeof(*args));
	memcpy(args, params[0], sizeof(*args));
	if (shared_b != GX_CRC_SHARED_B) /* not the kernel that checks */
		args->crc = NULL;
	res = op_add(stream, (struct fake_op){.kind = OP_UNPACK, .args = args});
	if (res)
		free(args);
	return res;
}

/* Launches that may all be under way at once count in memory of their own. */
static void overlap_check(bool overlaps, const struct gx_unpack_args *args)
{
	static _Thread_local const void *met[256];
	static _Thread_local unsigned nr;

	if (!overlaps)
		nr = 0;
	for (unsigned i = 0; i < nr; i++)
		if (met[i] == args->counter) {
			fprintf(stderr, "fake CUDA: two of %u launches share counters\n", nr + 1);
			abort();
		}
	if (nr < 256)
		met[nr++] = args->counter;
}

FAKE unsigned cuLaunchKernelEx(const struct CUlaunchConfig_st *config, struct CUfunc_st *function,
			       void **params, void **extra)
{
	const struct cuda_launch *l = (const struct cuda_launch *)config;

	overlap_check(l->nr_attrs, params[0]);
	return cuLaunchKernel(function, l->grid_x, l->grid_y, l->grid_z, l->block_x, l->block_y,
			      l->block_z, l->shared_b, l->stream, params, extra);
}

FAKE unsigned cuFuncSetAttribute(struct CUfunc_st *function, unsigned attribute, int value)
{
	return planned() ? 1 : 0;
}

FAKE unsigned cuMemAlloc_v2(unsigned long long *ptr, size_t len)
{
	return planned() ? 2 : fake_alloc((void **)ptr, len, GX_CU_MEMORYTYPE_DEVICE);
}

FAKE unsigned cuMemFree_v2(unsigned long long ptr)
{
	return range_del((void *)(uintptr_t)ptr, false);
}

/* Not in cuda_abi.h: the program's, which tests are. There is one pool. */
unsigned cuMemAllocAsync(unsigned long long *ptr, size_t len, struct CUstream_st *stream);

FAKE unsigned cuMemAllocAsync(unsigned long long *ptr, size_t len, struct CUstream_st *stream)
{
	unsigned none, res = fake_alloc((void **)ptr, len, GX_CU_MEMORYTYPE_DEVICE);

	if (!res)
		range[range_find((void *)(uintptr_t)*ptr, &none)].pool = range;
	return res;
}

/* ---- virtual memory management: an allocation is a memfd, its handle the descriptor ---- */

#define VMM_GRANULE (2u << 20)

FAKE unsigned cuMemGetAllocationGranularity(size_t *granule,
					    const struct CUmemAllocationProp_st *prop,
					    unsigned which)
{
	*granule = VMM_GRANULE;
	return planned() ? 1 : 0;
}

/* Handles that came from another process, by number: the driver exports them to nobody. */
static bool handle_imported[65536];

static int handle_dup(int fd)
{
	int mine = dup(fd);

	if (mine >= 0)
		handle_imported[mine] = handle_imported[fd];
	return mine;
}

FAKE unsigned cuMemCreate(unsigned long long *handle, size_t len,
			  const struct CUmemAllocationProp_st *prop, unsigned long long flags)
{
	const struct cuda_mem_prop *p = (const void *)prop;
	char name[32];
	int fd, n;

	cuDeviceGetCount(&n);
	if (p->location.id < 0 || p->location.id >= n)
		return GX_CU_ERROR_INVALID_VALUE;

	if (len % VMM_GRANULE || p->type != GX_CU_ALLOCATION_PINNED ||
	    p->handle_types & ~(unsigned)GX_CU_HANDLE_POSIX_FD ||
	    p->location.type != GX_CU_LOCATION_DEVICE)
		return GX_CU_ERROR_INVALID_VALUE;
	if (planned() || len > (size_t)1 << 40)
		return GX_CU_ERROR_OUT_OF_MEMORY;
	/* for fake_device() */
	snprintf(name, sizeof(name), "fake GPU %d types %u", p->location.id, p->handle_types);
	fd = memfd_create(name, MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)len))
		return GX_CU_ERROR_OUT_OF_MEMORY;
	handle_imported[fd] = false;
	*handle = (unsigned)fd;
	return 0;
}

FAKE unsigned cuMemRelease(unsigned long long handle)
{
	return close((int)handle) ? GX_CU_ERROR_INVALID_VALUE : 0;
}

/* The driver gives the same handle again; here it is another descriptor of the same memory. */
FAKE unsigned cuMemRetainAllocationHandle(unsigned long long *handle, void *at)
{
	unsigned none, i = range_find(at, &none);
	int fd = i < RANGES_MAX && range[i].fd ? handle_dup(range[i].fd) : -1;

	*handle = (unsigned)fd;
	return fd < 0 ? GX_CU_ERROR_INVALID_VALUE : 0;
}

FAKE unsigned cuMemAddressReserve(unsigned long long *ptr, size_t len, size_t align,
				  unsigned long long at, unsigned long long flags)
{
	void *p = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	*ptr = (uintptr_t)p;
	return planned() || p == MAP_FAILED ? GX_CU_ERROR_OUT_OF_MEMORY : 0;
}

FAKE unsigned cuMemAddressFree(unsigned long long ptr, size_t len)
{
	return munmap((void *)(uintptr_t)ptr, len) ? GX_CU_ERROR_INVALID_VALUE : 0;
}

/* What an allocation is, also one that another process made: its memfd is named so. */
static int fake_device(int fd, unsigned *types)
{
	char path[32], name[64];
	ssize_t n;
	int device = 0;

	*types = 0;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, name, sizeof(name) - 1);
	name[n > 0 ? n : 0] = 0;
	sscanf(name, "/memfd:fake GPU %d types %u", &device, types);
	if (handle_imported[fd])
		*types = 0;
	return device;
}

FAKE unsigned cuMemGetAllocationPropertiesFromHandle(struct CUmemAllocationProp_st *prop,
						     unsigned long long handle)
{
	struct cuda_mem_prop p = {.type = GX_CU_ALLOCATION_PINNED};

	p.location.type = GX_CU_LOCATION_DEVICE;
	p.location.id = fake_device((int)handle, &p.handle_types);
	memcpy((void *)prop, &p, sizeof(p));
	return 0;
}

static unsigned range_on(void *ptr, int handle)
{
	unsigned none, types, at = range_find(ptr, &none);

	if (at == RANGES_MAX)
		return GX_CU_ERROR_INVALID_VALUE;
	range[at].device = fake_device(handle, &types);
	range[at].fd = handle_dup(handle);
	return 0;
}

/* Whole allocations alone, as driver 580. */
FAKE unsigned cuMemMap(unsigned long long ptr, size_t len, size_t off, unsigned long long handle,
		       unsigned long long flags)
{
	void *at = (void *)(uintptr_t)ptr;
	struct stat st;

	if (planned() || named_to_fail("cuMemMap") || len % VMM_GRANULE ||
	    fstat((int)handle, &st) || st.st_size < 0)
		return GX_CU_ERROR_INVALID_VALUE;
	if ((size_t)st.st_size != len || off)
		return 801; /* CUDA_ERROR_NOT_SUPPORTED */
	if (mmap(at, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, (int)handle,
		 (off_t)off) == MAP_FAILED)
		return GX_CU_ERROR_INVALID_VALUE;
	if (range_add(at, len, GX_CU_MEMORYTYPE_DEVICE, true))
		return GX_CU_ERROR_INVALID_VALUE;
	return range_on(at, (int)handle);
}

/* Call @fn for each mapping of a range, which must be all mapped. */
static unsigned mapped_each(unsigned long long ptr, size_t len,
			    unsigned (*fn)(unsigned at, void *arg), void *arg)
{
	unsigned long long end = ptr + len;
	unsigned none, res = len ? 0 : GX_CU_ERROR_INVALID_VALUE;

	while (!res && ptr < end) {
		unsigned at = range_find((void *)(uintptr_t)ptr, &none);

		if (at == RANGES_MAX || (uintptr_t)range[at].ptr != ptr ||
		    range[at].len > end - ptr)
			return GX_CU_ERROR_INVALID_VALUE;
		ptr += range[at].len;
		res = fn(at, arg);
	}
	return res;
}

static unsigned unmap_one(unsigned at, void *arg)
{
	void *ptr = range[at].ptr;
	size_t len = range[at].len;
	int fd = range[at].fd;
	unsigned res = range_del(ptr, true);

	if (res)
		return res;
	close(fd);
	return mmap(ptr, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
		    -1, 0) == MAP_FAILED
		       ? GX_CU_ERROR_INVALID_VALUE
		       : 0;
}

FAKE unsigned cuMemUnmap(unsigned long long ptr, size_t len)
{
	return mapped_each(ptr, len, unmap_one, NULL);
}

static unsigned allow_one(unsigned at, void *arg)
{
	const struct cuda_mem_access *a = arg;
	int n;

	cuDeviceGetCount(&n);
	if (a->location.type != GX_CU_LOCATION_DEVICE || a->location.id >= n ||
	    a->flags != GX_CU_ACCESS_READWRITE)
		return GX_CU_ERROR_INVALID_VALUE;
	if (!fake_reaches(a->location.id, range[at].device))
		return 217; /* CUDA_ERROR_PEER_ACCESS_UNSUPPORTED */
	range[at].devices |= 1ull << a->location.id;
	return 0;
}

FAKE unsigned cuMemSetAccess(unsigned long long ptr, size_t len,
			     const struct CUmemAccessDesc_st *who, size_t nr)
{
	const struct cuda_mem_access *a = (const void *)who;
	unsigned res =
		planned() || named_to_fail("cuMemSetAccess") || !nr ? GX_CU_ERROR_INVALID_VALUE : 0;

	for (size_t i = 0; !res && i < nr; i++)
		res = mapped_each(ptr, len, allow_one, (void *)&a[i]);
	return res;
}

FAKE unsigned cuMemGetAccess(unsigned long long *flags, const struct CUmemLocation_st *where,
			     unsigned long long ptr)
{
	const struct cuda_mem_location *l = (const void *)where;
	unsigned none, at = range_find((void *)(uintptr_t)ptr, &none);

	if (at == RANGES_MAX || l->type != GX_CU_LOCATION_DEVICE)
		return GX_CU_ERROR_INVALID_VALUE;
	*flags = range[at].devices >> l->id & 1 ? GX_CU_ACCESS_READWRITE : 0;
	return 0;
}

/* Another descriptor of the memfd that is mapped there, as good as any for who only looks. */
FAKE unsigned cuMemGetHandleForAddressRange(void *out, unsigned long long ptr, size_t len,
					    unsigned type, unsigned long long flags)
{
	unsigned none, at = range_find((void *)(uintptr_t)ptr, &none);
	int fd;

	if (at == RANGES_MAX || ptr % 4096 || len % 4096 || type != GX_CU_RANGE_DMABUF_FD)
		return GX_CU_ERROR_INVALID_VALUE;
	fd = memfd_create("fake dma-buf", 0);
	memcpy(out, &fd, sizeof(fd));
	return fd < 0 ? GX_CU_ERROR_OUT_OF_MEMORY : 0;
}

FAKE unsigned cuMemExportToShareableHandle(void *out, unsigned long long handle, unsigned type,
					   unsigned long long flags)
{
	unsigned types;
	int fd = -1;

	fake_device((int)handle, &types);
	if (type == GX_CU_HANDLE_POSIX_FD && types & type &&
	    !named_to_fail("cuMemExportToShareableHandle"))
		fd = dup((int)handle);
	memcpy(out, &fd, sizeof(fd));
	return fd < 0 ? GX_CU_ERROR_INVALID_VALUE : 0;
}

FAKE unsigned cuMemImportFromShareableHandle(unsigned long long *handle, void *os, unsigned type)
{
	int fd = named_to_fail("cuMemImportFromShareableHandle") ? -1 : dup((int)(intptr_t)os);
	struct stat st;

	if (fd < 0)
		return GX_CU_ERROR_INVALID_VALUE;
	if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
		close(fd);
		return 999; /* what the driver says of a descriptor that is not its own */
	}
	handle_imported[fd] = true;
	*handle = (unsigned)fd;
	return 0;
}

/* ---- cudaIpc ---- */

/* A handle is process id and address; memory of this process alone can be opened. */

FAKE unsigned cuMemGetAddressRange_v2(unsigned long long *base, size_t *len, unsigned long long ptr)
{
	unsigned none, at = range_find((void *)(uintptr_t)ptr, &none);

	if (at == RANGES_MAX)
		return GX_CU_ERROR_INVALID_VALUE;
	*base = (uintptr_t)range[at].ptr;
	*len = range[at].len;
	return 0;
}

FAKE unsigned cuIpcGetMemHandle(struct CUipcMemHandle_st *out, unsigned long long ptr)
{
	unsigned long long word[2] = {(unsigned)getpid()};
	size_t len;

	if (cuMemGetAddressRange_v2(&word[1], &len, ptr))
		return GX_CU_ERROR_INVALID_VALUE;
	memset(out, 0, sizeof(*out));
	memcpy(out, word, sizeof(word));
	return 0;
}

FAKE unsigned cuIpcOpenMemHandle_v2(unsigned long long *ptr, struct CUipcMemHandle_st handle,
				    unsigned flags)
{
	unsigned long long word[2];

	memcpy(word, &handle, sizeof(word));
	*ptr = word[1];
	return word[0] != (unsigned)getpid() || flags != GX_CU_IPC_LAZY_PEER_ACCESS
		       ? GX_CU_ERROR_INVALID_VALUE
		       : 0;
}

FAKE unsigned cuIpcCloseMemHandle(unsigned long long ptr)
{
	return 0;
}

FAKE unsigned cuMemHostAlloc(void **ptr, size_t len, unsigned flags)
{
	return planned() ? 2 : fake_alloc(ptr, len, GX_CU_MEMORYTYPE_HOST);
}

FAKE unsigned cuMemFreeHost(void *ptr)
{
	return range_del(ptr, false);
}

/* No driver has it: the thread that registered host memory last. */
int fake_cuda_registered_by(void);
static _Atomic int registered_by;

FAKE int fake_cuda_registered_by(void)
{
	return registered_by;
}

FAKE unsigned cuMemHostRegister_v2(void *ptr, size_t len, unsigned flags)
{
	uintptr_t page = (uintptr_t)ptr & ~4095ul, end = (uintptr_t)ptr + len;
	unsigned char in[4096];
	unsigned ret, none, at;

	for (; page < end; page += GX_MIN(end - page, sizeof(in) * 4096))
		if (mincore((void *)page, GX_MIN(end - page, sizeof(in) * 4096), in))
			return GX_CU_ERROR_INVALID_VALUE; /* nothing is mapped there */
	if (unsafe())
		return GX_CU_ERROR_CAPTURE_UNSUPPORTED;
	if (getenv("GX_FAKE_CUDA_NO_REGISTER"))
		return GX_CU_ERROR_OUT_OF_MEMORY;
	registered_by = gettid();
	ret = range_add(ptr, len, GX_CU_MEMORYTYPE_HOST, true);
	if (!ret)
		return 0;
	at = range_find(ptr, &none); /* the driver registers no memory of its own */
	return at < RANGES_MAX && !range[at].registered ? GX_CU_ERROR_INVALID_VALUE : ret;
}

FAKE unsigned cuMemHostUnregister(void *ptr)
{
	return range_del(ptr, true);
}

FAKE unsigned cuMemHostGetDevicePointer_v2(unsigned long long *out, void *ptr, unsigned flags)
{
	unsigned none;

	*out = (uintptr_t)ptr;
	return range_find(ptr, &none) == RANGES_MAX ? GX_CU_ERROR_INVALID_VALUE : 0;
}

FAKE unsigned cuPointerGetAttribute(void *value, unsigned attribute, unsigned long long ptr)
{
	unsigned none, at = range_find((void *)(uintptr_t)ptr, &none);

	if (at == RANGES_MAX)
		return GX_CU_ERROR_INVALID_VALUE;
	if (attribute == GX_CU_POINTER_BUFFER_ID)
		memcpy(value, &range[at].id, sizeof(uint64_t));
	else if (attribute == GX_CU_POINTER_DEVICE)
		memcpy(value, &range[at].device, sizeof(int));
	else if (attribute == 1) /* CU_POINTER_ATTRIBUTE_CONTEXT */
		memcpy(value, &range[at].ctx, sizeof(range[at].ctx));
	else if (attribute == GX_CU_POINTER_IS_MANAGED)
		memset(value, 0, sizeof(unsigned));
	else if (attribute == GX_CU_POINTER_MEMPOOL)
		memcpy(value, &range[at].pool, sizeof(range[at].pool));
	else
		memcpy(value, &range[at].type, sizeof(unsigned));
	return 0;
}

FAKE unsigned cuPointerSetAttribute(const void *value, unsigned attribute, unsigned long long ptr)
{
	unsigned none, at = range_find((void *)(uintptr_t)ptr, &none);

	return at == RANGES_MAX || range[at].registered ? 801 : 0;
}

FAKE unsigned cuMemsetD8Async(unsigned long long ptr, unsigned char value, size_t len,
			      struct CUstream_st *stream)
{
	return op_add(stream, (struct fake_op){.kind = OP_SET,
					       .dst = (void *)(uintptr_t)ptr,
					       .value = value,
					       .len = len});
}

/* A copy that begins in memory that the driver knows, and goes on where it knows none: on an H200 an
 * illegal address, which ends the context. Other host memory it copies by the CPU. */
static bool range_faults(unsigned long long at, size_t len)
{
	unsigned long long end = at + len, begin = at;
	unsigned none, i;

	while (at < end && (i = range_find((void *)(uintptr_t)at, &none)) < RANGES_MAX)
		at = (uintptr_t)range[i].ptr + range[i].len;
	return at > begin && at < end;
}

/* Does a copy go from one range of host memory to the next? (An H200 refuses it.) */
static bool range_crosses(unsigned long long at, size_t len)
{
	unsigned none, i = range_find((void *)(uintptr_t)at, &none);

	return i < RANGES_MAX && range[i].type == GX_CU_MEMORYTYPE_HOST &&
	       at + len > (uintptr_t)range[i].ptr + range[i].len &&
	       range_find((char *)range[i].ptr + range[i].len, &none) < RANGES_MAX;
}

FAKE unsigned cuMemcpyAsync(unsigned long long dst, unsigned long long src, size_t len,
			    struct CUstream_st *stream)
{
	if (!dst || !src || range_crosses(dst, len) || range_crosses(src, len))
		return GX_CU_ERROR_INVALID_VALUE;
	faulted |= range_faults(dst, len) || range_faults(src, len);
	return op_add(stream, (struct fake_op){.kind = OP_COPY,
					       .dst = (void *)(uintptr_t)dst,
					       .src = (void *)(uintptr_t)src,
					       .len = len});
}

/* Not in cuda_abi.h: gxperf's rival. */
unsigned cuMemcpyPeerAsync(unsigned long long dst, struct CUctx_st *dst_ctx, unsigned long long src,
			   struct CUctx_st *src_ctx, size_t len, struct CUstream_st *stream);

FAKE unsigned cuMemcpyPeerAsync(unsigned long long dst, struct CUctx_st *dst_ctx,
				unsigned long long src, struct CUctx_st *src_ctx, size_t len,
				struct CUstream_st *stream)
{
	return dst_ctx && src_ctx ? cuMemcpyAsync(dst, src, len, stream) : 201;
}

FAKE unsigned cuMemcpyHtoDAsync_v2(unsigned long long dst, const void *src, size_t len,
				   struct CUstream_st *stream)
{
	return cuMemcpyAsync(dst, (uintptr_t)src, len, stream);
}

/* Not in cuda_abi.h: fake_cublas.c and fake_nccl.c queue their work by it. */
unsigned cuLaunchHostFunc(struct CUstream_st *stream, void (*fn)(void *arg), void *arg);

FAKE unsigned cuLaunchHostFunc(struct CUstream_st *stream, void (*fn)(void *arg), void *arg)
{
	struct CUctx_st *was = current;
	unsigned ret;

	/* NCCL posts for the GPUs of all its ranks, and makes the context of each current. */
	current = stream->ctx;
	ret = op_add(stream, (struct fake_op){.kind = OP_HOST, .host_fn = fn, .dst = arg});
	current = was;
	return ret;
}

FAKE unsigned cuStreamCreateWithPriority(struct CUstream_st **stream, unsigned flags, int priority)
{
	if (planned())
		return GX_CU_ERROR_OUT_OF_MEMORY;
	*stream = calloc(1, sizeof(**stream));
	(*stream)->ctx = current;
	seen[1]++;
	return 0;
}

FAKE unsigned cuStreamDestroy_v2(struct CUstream_st *stream)
{
	free(stream);
	return 0;
}

FAKE unsigned cuStreamQuery(struct CUstream_st *stream)
{
	const char *says = getenv("GX_FAKE_CUDA_QUERY");

	if (unsafe())
		return GX_CU_ERROR_CAPTURE_UNSUPPORTED;
	if (says)
		return (unsigned)atoi(says);
	if (stream->hold && !__atomic_load_n(stream->hold, __ATOMIC_ACQUIRE))
		return GX_CU_ERROR_NOT_READY;
	if (stream->hold)
		hold_flag = stream->hold = NULL;
	return finished >= stream->last ? 0 : GX_CU_ERROR_NOT_READY;
}

FAKE unsigned cuStreamSynchronize(struct CUstream_st *stream)
{
	unsigned res;

	while ((res = cuStreamQuery(stream)) == GX_CU_ERROR_NOT_READY)
		usleep(10);
	return res ? res : planned() ? 719 : 0;
}

/* ---- capture ---- */

/* Handles below 16 are the driver's own streams; here, one that is being captured. */
FAKE unsigned cuStreamIsCapturing(struct CUstream_st *stream, unsigned *status)
{
	*status = (uintptr_t)stream == 3 || ((uintptr_t)stream > 16 && stream->captured) ? 1 : 0;
	return stream ? 0 : GX_CU_ERROR_INVALID_VALUE;
}

FAKE unsigned cuThreadExchangeStreamCaptureMode(unsigned *mode)
{
	unsigned was = thread_mode;

	if (*mode > GX_CU_CAPTURE_RELAXED)
		return GX_CU_ERROR_INVALID_VALUE;
	thread_mode = *mode;
	*mode = was;
	return 0;
}

/* Not in cuda_abi.h: the program's, which tests are. A graph is nothing but the stream's handle. */
unsigned cuStreamBeginCapture_v2(struct CUstream_st *stream, unsigned mode);
unsigned cuStreamEndCapture(struct CUstream_st *stream, void **graph);
unsigned cuGraphDestroy(void *graph);

FAKE unsigned cuStreamBeginCapture_v2(struct CUstream_st *stream, unsigned mode)
{
	if (stream->captured)
		return GX_CU_ERROR_INVALID_VALUE;
	stream->captured = true;
	stream->mode = mode;
	stream->spoilt_at = nr_spoilt;
	thread_captures += mode != GX_CU_CAPTURE_RELAXED;
	global_captures += mode == GX_CU_CAPTURE_GLOBAL;
	return 0;
}

FAKE unsigned cuStreamEndCapture(struct CUstream_st *stream, void **graph)
{
	bool spoilt = stream->mode != GX_CU_CAPTURE_RELAXED && stream->spoilt_at != nr_spoilt;

	if (!stream->captured)
		return GX_CU_ERROR_INVALID_VALUE;
	stream->captured = false;
	thread_captures -= stream->mode != GX_CU_CAPTURE_RELAXED;
	global_captures -= stream->mode == GX_CU_CAPTURE_GLOBAL;
	*graph = spoilt ? NULL : stream;
	return spoilt ? GX_CU_ERROR_CAPTURE_INVALIDATED : 0;
}

FAKE unsigned cuGraphDestroy(void *graph)
{
	return 0;
}

FAKE unsigned cuStreamWriteValue32_v2(struct CUstream_st *stream, unsigned long long ptr,
				      uint32_t value, unsigned flags)
{
	if (getenv("GX_FAKE_CUDA_NO_WRITE_VALUE"))
		return 801;
	return op_add(
		stream,
		(struct fake_op){.kind = OP_WORD, .dst = (void *)(uintptr_t)ptr, .value = value});
}
