/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contiguous copies of one core by one GPU: out of and into its memory, memory of another GPU that
 * is mapped for it, and host memory that is registered with it. Its copy engines do them, on
 * several streams, so that short copies overlap. The resident kernel does a lone short copy sooner.
 * One launch of the unpack kernel does many short ones, on the SMs that unpacking may use; another
 * kernel there moves bytes from view to view. Copies
 * have no order among themselves. A copy is done when its bytes are visible. Owner: poll core; the
 * control path opens and closes it.
 */
#ifndef GX_DMA_H
#define GX_DMA_H

#include "gx_internal/gpu.h"

#define DMA_STREAMS 4
#define DMA_OUT_MAX 64	 /* copies under way on one stream */
#define DMA_TRY_B   4096 /* length of the copies that dma_time() times */
/* A launch takes up to this of many: a copy engine needs as long for the bytes as for its call. */
#define DMA_MANY_B  (128u << 10)
#define DMA_MOVE_B  (256u << 20) /* of one launch from view to view */

/* Who copies. */
enum dma_by {
	DMA_AUTO, /* launches for short copies of many; resident kernel for short copies while few
		     are under way, if the caller says that it is faster; else copy engines */
	DMA_CE,
	DMA_RESIDENT,	   /* resident kernel for all short copies */
	DMA_KERNEL = 1000, /* launches of the unpack kernel do all copies. For libgxlab; the values
			      before are those of enum gx_copy_by */
};

/* What the caller knows of a copy, for AUTO. */
#define DMA_LONE 1u /* the resident kernel may do it: it is faster alone */
#define DMA_MANY 2u /* it is one of many that begin before dma_kick() */

struct dma;

/* Names one copy, until its stream has begun 2^31 more. */
struct dma_ticket {
	uint32_t seq;
	uint32_t stream;
};

/**
 * dma_open() - @timeout_ns: if a copy takes longer, the GPU has failed. KERNEL: @gpu must unpack by
 * kernels. Control path.
 */
int dma_open(struct gx_gpu *gpu, enum dma_by by, uint64_t timeout_ns, struct dma **out);
/**
 * dma_time() - Time a lone copy of DMA_TRY_B from @src to @dst, from the call to its end, by a copy
 * engine of @gpu and by its resident kernel. Takes some milliseconds. Any thread; opens its own
 * streams. Return: 0, -errno: a copy did not end in @timeout_ns, and may still be under way.
 */
int dma_time(struct gx_gpu *gpu, void *dst, const void *src, uint64_t timeout_ns, uint32_t *ce_ns,
	     uint32_t *resident_ns);
/** dma_close() - Waits, in bounded time, for copies under way. NULL is fine. */
void dma_close(struct dma *d);

/** dma_copy() - Begin a copy of @len > 0 bytes. @hints: DMA_LONE, DMA_MANY. The copy may start as late
 * as dma_kick(). False: too many are under way, or the GPU has failed. */
bool dma_copy(struct dma *d, void *dst, const void *src, uint64_t len, unsigned hints,
	      uint64_t now_ns, struct dma_ticket *out);
/** dma_moves() - Does this GPU move bytes from view to view? */
bool dma_moves(const struct dma *d);
/** dma_move() - Begin to move pieces of @m, from the first on; piece_b is at most DMA_MOVE_B. The rows are
 * copied. Moves end in order. Return: pieces; 0: too many moves are under way, or the GPU has failed. */
uint32_t dma_move(struct dma *d, const struct gx_move *m, uint64_t now_ns, struct dma_ticket *out);
/** dma_done() - True: the copy's bytes are visible. Reads one cache line. */
bool dma_done(const struct dma *d, struct dma_ticket t);
/** dma_kick() - After dma_copy(): launch, and queue the flags that tell the ends. */
void dma_kick(struct dma *d, uint64_t now_ns);
/** dma_reap() - Once a turn while copies are under way. True: a copy has ended. */
bool dma_reap(struct dma *d, uint64_t now_ns);
/** dma_err() - 0; -EIO, -ETIMEDOUT: the GPU failed, or does not finish. Sticky: no copy begins any
 * more, and the GPU may still write for copies under way. */
int dma_err(const struct dma *d);

#endif
