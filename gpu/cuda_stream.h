/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A core's stream and the work on it, for the files of the CUDA backend that drive it. The
 * prototypes are in order: each file calls those above it alone. All of it is [core], for the
 * thread that owns the stream; opening and closing are control path. The GPU reports the end of work
 * by a word in pinned memory, and the CPU polls that.
 */
#ifndef GX_CUDA_STREAM_H
#define GX_CUDA_STREAM_H

#include "cuda_priv.h"
#include "resident_core.h"

#define CUDA_LAUNCHES	 64 /* sets of counters: more than may overlap; power of two */
#define CUDA_STAGE_OUT	 64 /* mode host: blocks under way; power of two */
#define CUDA_RING_SHAPES 2

/* Mode host: a ring of pinned bytes. The bytes of a block are free again when the GPU has written
 * the block's number. */
struct cuda_stage {
	uint8_t *mem;
	uint64_t head, tail; /* free running, of mem[] */
	uint32_t *seq_done;  /* pinned: number of the last block that was copied, by the GPU */
	uint32_t out_head, out_tail; /* free running, of out_end[]; out_head numbers the blocks */
	uint64_t out_end[CUDA_STAGE_OUT];
};

/* A resident stream's ring. owner: poll core */
struct cuda_resident {
	struct gx_res_ring ring;
	struct gx_res_dev *dev;
	bool loose;	/* copies are unordered */
	bool automatic; /* mode auto: launches too, and no copies */
	struct gx_res_auto near;
};

/* owner: poll core */
struct cuda_stream {
	struct gx_gpu_stream stream;
	struct cuda_lost lost; /* for a stream that was closed and has not finished */
	struct CUstream_st *stm;
	struct gx_unpack_args args; /* kept, so that a launch writes only what it uses */
	uint32_t *gather_counter;   /* device memory, [2] */
	struct cuda_stage stage;
	struct cuda_resident *res; /* NULL: all work is driver calls */
	uint32_t launch_nr;
	uint32_t *counters; /* device memory, [CUDA_LAUNCHES][2 * GX_UNPACK_BLOCKS_MAX] */
	uint64_t query_ns;  /* last launch or query */
	bool chained;	    /* the last thing queued was a ring launch: the next may overlap it */
	unsigned overlaps;  /* launches in succession that may, the last one among them */
	bool busy;    /* something was queued since the last query that found the stream empty */
	bool faulted; /* sticky */
	char fault_text[160];
};

static inline struct cuda_stream *cuda_stream_of(struct gx_gpu_stream *s)
{
	return GX_CONTAINER_OF(s, struct cuda_stream, stream);
}

/* On a core of gx's own the context stays, so that the next turn finds it. A program's thread gets
 * its own context back: the current device of cudart and PyTorch hangs on it. */
static inline void cuda_leave_core(struct cuda_gpu *g, struct cuda_prev prev)
{
	if (prev.ctx || !gx_thread_own)
		cuda_leave(g, prev);
}

/* -- cuda_core.c: common to all work on a stream -- */

/* The first error stays. Return: was there none? */
bool cuda_core_try(struct cuda_stream *s, unsigned res, const char *what);
#define CUDA_CORE_TRY(s, fn, ...) cuda_core_try(s, cu.fn(__VA_ARGS__), #fn)
bool cuda_core_launch(struct cuda_stream *s, struct CUfunc_st *fn, unsigned grid, unsigned threads,
		      void **params);
bool cuda_core_launch_shared(struct cuda_stream *s, struct CUfunc_st *fn, unsigned grid,
			     unsigned threads, unsigned shared_b, void **params);
/* A word for the CPU, after everything queued before. */
bool cuda_core_flag(struct cuda_stream *s, uint32_t *flag, uint32_t value);
/* @n: things that were queued. If none were, reap's clock goes on, so that a core that tries in
 * vain for ever sees the fault. */
void cuda_core_queued(struct cuda_stream *s, unsigned n, uint64_t now_ns);
/* A kernel that went wrong writes no status. So this asks the stream, rarely, while work may be
 * under way. */
void cuda_core_query(struct cuda_stream *s, uint64_t now_ns);
/* The kind of memory that the fragments of @b lie in: GX_CU_MEMORYTYPE_* */
unsigned cuda_src_type(const struct gx_block *b);
int cuda_fault(struct gx_gpu_stream *stream);

/* -- cuda_stage.c -- */

int cuda_stage_open(struct cuda_gpu *g, struct cuda_stage *st);
void cuda_stage_close(struct cuda_gpu *g, struct cuda_stage *st);
/* Mode host's unpack. Return: was there room, and no error? */
bool cuda_stage_block(struct cuda_stream *s, struct gx_block *b);
bool cuda_stage_reap(struct cuda_stage *st); /* Return: has room come back? */

/* -- cuda_resident.c -- */

int cuda_resident_open(struct cuda_gpu *g, bool loose, struct cuda_resident **out);
void cuda_resident_close(struct cuda_gpu *g, struct cuda_resident *res); /* NULL is fine */
/* Return: how many blocks were taken, from index 0. */
unsigned cuda_resident_unpack(struct cuda_stream *s, struct gx_block *const blocks[], unsigned n,
			      uint64_t now_ns);
/* Are these copies for the kernel that stays? */
bool cuda_resident_takes(const struct cuda_stream *s, const struct gx_gpu_copy list[], unsigned n);
bool cuda_resident_copy(struct cuda_stream *s, const struct gx_gpu_copy list[], unsigned n,
			uint32_t *done, uint32_t value, uint64_t now_ns);
/* Before driver work on this stream: makes every launch under way end. Return: false: not yet. */
bool cuda_resident_stop(struct cuda_stream *s, uint64_t now_ns);
bool cuda_resident_reap(struct cuda_stream *s, uint64_t now_ns);

/* -- cuda_unpack.c -- */

/* The shapes of the ring kernel: of short fragments, and of long ones. */
extern const struct cuda_ring_shape {
	const char *fn;
	unsigned warps, shared_b;
} cuda_ring_shape[CUDA_RING_SHAPES];

int cuda_ring_load(struct cuda_gpu *g);
bool cuda_ring_launch(struct cuda_stream *s, unsigned shape, uint32_t units);
unsigned cuda_unpack_kernel(struct cuda_stream *s, struct gx_block *const blocks[], unsigned n);
/* Does this GPU unpack by kernels of ours? */
bool cuda_has_kernel(const struct cuda_gpu *g);
unsigned cuda_unpack(struct gx_gpu_stream *stream, struct gx_block *const blocks[], unsigned n,
		     uint64_t now_ns);

/* -- cuda_copy.c -- */

int cuda_copy(struct gx_gpu_stream *stream, const struct gx_gpu_copy list[], unsigned n,
	      uint32_t *done, uint32_t value, uint64_t now_ns);
int cuda_call(struct gx_gpu_stream *stream, int (*fn)(void *arg, void *stream), void *arg,
	      uint32_t *done, uint32_t value, uint64_t now_ns);

/* -- cuda_gather.c -- */

int cuda_gather(struct gx_gpu_stream *stream, const struct gx_gpu_gather *g, uint32_t *done,
		uint32_t value, uint64_t now_ns);

/* -- cuda_stream.c -- */

int cuda_stm_new(struct CUstream_st **out);
extern const struct gx_gpu_stream_ops cuda_stream_ops;
int cuda_stream_mark(struct gx_gpu *gpu, void *stream, uint32_t *flag, uint32_t value);

/* -- cuda_probe.c -- */

/* Every kernel once, when a GPU is opened. Return: 0, -ENODEV with the reason. */
int cuda_probe(struct cuda_gpu *g);

#endif
