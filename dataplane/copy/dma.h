/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contiguous copies of one core by one GPU: out of and into its memory, memory of another GPU that
 * is mapped for it, and host memory that it knows. Its copy engines do them, on several streams, so
 * that short copies overlap; a short copy that is alone is done sooner by the resident kernel. Or a
 * launched kernel does all, on the SMs that unpacking may use: to be compared with those.
 * Copies are unordered among themselves; one is done when its bytes are visible. Owner: poll core;
 * opened and closed on the control path.
 */
#ifndef GX_DMA_H
#define GX_DMA_H

#include "gx_internal/gpu.h"

#define DMA_STREAMS 4
#define DMA_OUT_MAX 64	 /* copies under way on one stream */
#define DMA_TRY_B   4096 /* of what is timed */

enum dma_engine {
	DMA_AUTO, /* the resident kernel for short copies while few are under way, where the caller
		     says that it is faster; else copy engines */
	DMA_CE,
	DMA_RESIDENT,	   /* for all short ones */
	DMA_KERNEL = 1000, /* for all, by a launch of the unpack kernel for the copies begun since
			      the last. libgxlab's; those before are enum gx_copy_by */
};

struct dma;

/* Names one copy until 2^31 later ones of its stream have begun. */
struct dma_ticket {
	uint32_t seq;
	uint32_t stream;
};

/**
 * dma_open() - @timeout_ns: the GPU has failed when a copy takes longer. KERNEL: the
 * GPU was opened to unpack by kernels. Control path.
 */
int dma_open(struct gx_gpu *gpu, enum dma_engine engine, uint64_t timeout_ns, struct dma **out);
/**
 * dma_time() - What a lone copy of DMA_TRY_B from @src to @dst takes, from the call to its end, by
 * a copy engine of @gpu and by its resident kernel: for some milliseconds. Any thread; streams of
 * its own. Return: 0, -errno: one did not end in @timeout_ns, and may still be under way.
 */
int dma_time(struct gx_gpu *gpu, void *dst, const void *src, uint64_t timeout_ns, uint32_t *ce_ns,
	     uint32_t *resident_ns);
/** dma_close() - Waits, in bounded time, for what is under way. NULL is fine. */
void dma_close(struct dma *d);

/** dma_copy() - Begin a copy of @len > 0 bytes. @lone: AUTO may have the resident kernel do it. It
 * need not start before dma_kick(). False: too many are under way, or the GPU has failed. */
bool dma_copy(struct dma *d, void *dst, const void *src, uint64_t len, bool lone, uint64_t now_ns,
	      struct dma_ticket *out);
/** dma_done() - True: its bytes are visible. One cache line is read. */
bool dma_done(const struct dma *d, struct dma_ticket t);
/** dma_kick() - Copies were begun: see to it that their ends will be told. */
void dma_kick(struct dma *d, uint64_t now_ns);
/** dma_reap() - Once a turn while copies are under way. True: one has ended. */
bool dma_reap(struct dma *d, uint64_t now_ns);
/** dma_err() - 0; -EIO, -ETIMEDOUT: the GPU failed, or does not finish. Sticky: nothing is done any
 * more, and what was under way may still be written to. */
int dma_err(const struct dma *d);

#endif
