/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work for a GPU next to gx's, for measuring tools and tests. Loads are computations on a stream of
 * their own at the lowest priority; they show what communication costs a program. Patterns are
 * written and compared in the memory where payload lies. They are libgxlab, which the tools and
 * tests link: neither the library nor what is installed has any of it.
 *
 * Threads: a load belongs to one thread at a time. Errors are 0 or -errno; gx_engine_why() has the
 * reason in words. Versions of structs: as in gx.h.
 */
#ifndef GXLAB_LOAD_H
#define GXLAB_LOAD_H

#include <gx/engine.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gx_load;

/* ---- Patterns ---- */

/** gx_pattern_word() - Word @i of the pattern @seed. */
uint64_t gx_pattern_word(uint64_t seed, uint64_t i);
/** gx_pattern_fill() - Write the pattern to memory of the engine, and wait. @len: a multiple of 8.
 * Return: 0, -EINVAL, -EIO. */
int gx_pattern_fill(struct gx_engine *e, void *dst, size_t len, uint64_t seed);
/** gx_pattern_diff() - Compare all of this memory of the engine with the pattern, and wait. Work on
 * it must have ended before. @len: a multiple of 8. Return: 0 with the bytes that differ,
 * -EINVAL, -EIO. */
int gx_pattern_diff(struct gx_engine *e, const void *src, size_t len, uint64_t seed,
		    uint64_t *wrong_b);

/* ---- Loads ---- */

enum gx_load_kind {
	GX_LOAD_GEMM,	   /* own kernel, fp32: a grid of thread blocks, each one 64 x 64 tile of an
			      n x n product */
	GX_LOAD_CUBLAS,	   /* cuBLAS, bf16: a whole n x n product */
	GX_LOAD_ATTENTION, /* batched cuBLAS products and an own softmax, bf16; not fused */
};

struct gx_load_opts {
	size_t size;
	enum gx_load_kind kind;
	uint32_t n;		 /* GEMM: a multiple of 64; CUBLAS: of 8 */
	uint32_t grid_x, grid_y; /* GEMM: at most n / 64 each; 0: n / 64 */
	uint32_t batch, heads, tokens,
		head_dim;     /* ATTENTION: tokens a multiple of 512, at most 8192 */
	const char *lib_path; /* folders to look for libcublas in first, with colons; may be NULL */
};

struct gx_load_info {
	size_t size;
	char name[160];	   /* in words, with the library and its version */
	double flop;	   /* of one run */
	uint32_t blocks;   /* thread blocks of the own kernel; 0: the library decides */
	uint32_t reserved; /* 0 */
};

/** gx_load_open() - Take memory, fill it, and run once. Return: 0, -EINVAL, -EOPNOTSUPP (no GPU, or
 * no cuBLAS), -ENOMEM, -EIO. */
int gx_load_open(struct gx_engine *e, const struct gx_load_opts *opts, struct gx_load **out);
/** gx_load_close() - Waits for posted runs, in bounded time. NULL is fine. */
void gx_load_close(struct gx_load *l);
/** gx_load_info() - Return: 0, -EINVAL (the size is not set). */
int gx_load_info(const struct gx_load *l, struct gx_load_info *info);

/** gx_load_post() - Queue one run. Return: 0, -EAGAIN (64 are queued), -EIO. */
int gx_load_post(struct gx_load *l);
/** gx_load_done() - Runs that have ended since the load was opened, fewer than 2^32. Return: 0,
 * -EIO. */
int gx_load_done(struct gx_load *l, uint64_t *nr);

struct gx_load_check {
	size_t size;
	uint32_t nr, wrong; /* elements of the result that were compared, and those that differ */
	double worst;	    /* largest difference */
};

/** gx_load_check() - Compare some elements of the result with those that the CPU computes. No run
 * may be queued. Return: 0 (see wrong), -EBUSY, -EIO. */
int gx_load_check(struct gx_load *l, struct gx_load_check *check);

#ifdef __cplusplus
}
#endif

#endif
