/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of gpu/ alone: a backend's reasons, the hooks of libgxlab into an engine, and
 * the one allocation in which the arrays of a block lie.
 */
#ifndef GX_GPU_PRIV_H
#define GX_GPU_PRIV_H

#include "gx_internal/gpu.h"
#include "unpack_core.h"

/** gx_gpu_why_set() - Set the text of gx_gpu_why() on this thread. */
void gx_gpu_why_set(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/** gx_gpu_take(), gx_gpu_give() - gx_struct_take() and gx_struct_give(), with gx_gpu_why(). */
int gx_gpu_take(const char *name, void *own, size_t own_b, const void *user);
int gx_gpu_give(const char *name, const void *own, size_t own_b, void *user);

/** gx_gpu_count_from() - The first value of the 32-bit counters of streams, rings and tickets: 0
 * or, for tests in which they wrap, GX_COUNT_FROM of the environment. */
uint32_t gx_gpu_count_from(void);

/* -- hooks of libgxlab (lab/) into an engine -- */

struct gx_engine;
/* What belongs to an engine, and ends with it: the kernels of libgxlab. */
struct gx_engine_part {
	void (*close)(struct gx_engine_part *part); /* by gx_engine_close() */
};

/** gx_engine_gpu() - The GPU that the engine drives. */
struct gx_gpu *gx_engine_gpu(struct gx_engine *e);
/** gx_engine_part() - Where lab/code.c has it; NULL: none. */
struct gx_engine_part **gx_engine_part(struct gx_engine *e);

/* -- blocks -- */

/* The GPU writes the line of the status; the core that fills the block writes the other lines. */
struct gx_block_mem {
	alignas(GX_CACHE_LINE) uint32_t status;
	alignas(GX_CACHE_LINE) uint64_t cnt;
	alignas(GX_CACHE_LINE) struct gx_dest seg[GX_BLOCK_SEGS_MAX];
	struct gx_desc desc[GX_BLOCK_DESCS_MAX];
	struct gx_desc_aux aux[GX_BLOCK_DESCS_MAX];
	struct gx_cut cut[GX_UNITS_MAX + 1]; /* written at launch by the CUDA backend */
};

/** gx_block_dst() - The address that descriptor @i goes to; NULL: it is outside of its
 * destination. */
void *gx_block_dst(const struct gx_block *b, uint32_t i);
/** gx_block_crc_ok() - Have the source bytes of descriptor @i the CRC that came with them? Else it
 * gets GX_AUX_BAD. The CPU reads the bytes. */
bool gx_block_crc_ok(const struct gx_block *b, uint32_t i);
/** gx_block_checked() - Is any fragment of @b to be checked? */
bool gx_block_checked(const struct gx_block *b);

static inline const void *gx_block_src(const struct gx_block *b, uint32_t i)
{
	return (const void *)(uintptr_t)(b->src_base + b->desc[i].src_off);
}

/* The CPU's side of a status word. Release: pairs with the acquire of the thread that polls it. */
static inline void gx_block_status_set(struct gx_block *b, uint32_t status)
{
	__atomic_store_n(b->status, status, __ATOMIC_RELEASE);
}

#endif
