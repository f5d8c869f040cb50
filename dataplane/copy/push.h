/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU of ours writes payload into the slots of a peer's bounce pool, in the memory of a GPU of
 * this host, as a NIC's DMA engine does elsewhere. It runs descriptors of the unpack kernel in the
 * other direction: the source is ours, the bounded destination is the peer's pool. A port's queue
 * has one. Owner: poll core; the control path opens, attaches and closes it.
 */
#ifndef GX_PUSH_H
#define GX_PUSH_H

#include "gx_internal/gpu.h"
#include "gx_internal/mem.h"

struct push;

/* A peer's pool, mapped here. */
struct push_pool {
	void *base; /* NULL: no pool */
	uint64_t len;
	uint32_t gpus;	       /* our devices (bits) that write there */
	uint32_t from;	       /* of these, devices whose memory is read in place */
	struct gx_gpu *mapper; /* the GPU that imported it */
	int device; /* device that has the memory, as we count; negative: not known here */
};

/* One payload on its way. */
struct push_frag {
	const void *data;
	uint32_t len;	/* > 0 */
	uint8_t device; /* 1 + the device whose memory data is, one of pool->from; 0: host memory */
	bool mapped;	/* host memory: our GPUs read it in place; else the core copies it */
	const struct push_pool *pool;
	uint64_t off; /* offset in the pool */
	uint32_t ref; /* push_reap() gives it back */
};

struct push_done {
	uint32_t ref;
	int status; /* 0: it is in the pool, visible to any GPU. -EIO, -ETIMEDOUT: not known */
};

/** push_open() - @gpus [GX_PUSH_GPUS]: the open GPUs by device, else NULL. @piece_b: the longest
 * payload. Return: 0, -ENODEV (no GPU is open), -ENOMEM, the backend's. */
#define GX_PUSH_GPUS 16
int push_open(struct gx_gpu *const gpus[], struct gx_arena *arena, uint32_t piece_b,
	      uint64_t timeout_ns, struct push **out);
void push_close(struct push *p); /* waits for copies under way */

/** push_map() - Map the peer's pool. Every field of @h may be a lie. Return: 0, -EPROTO, -EXDEV (no
 * GPU of ours reaches it), -ENOMEM; the reason is gx_gpu_why(). */
int push_map(struct push *p, const struct gx_gpu_handle *h, uint64_t len, struct push_pool *out);
/** push_unmap() - No payload may be on its way there any more. */
void push_unmap(struct push_pool *pool);

/** push_room() - How many fragments push_add() takes now, of any kind. */
unsigned push_room(const struct push *p);
void push_add(struct push *p, const struct push_frag *f, uint64_t now_ns);
/** push_flush() - Launch if it is time; @last: no more fragments come in this turn. */
void push_flush(struct push *p, bool last, uint64_t now_ns);
/** push_reap() - Take ended fragments, at most @n, in the order of push_add() for each source
 * device. */
unsigned push_reap(struct push *p, struct push_done done[], unsigned n, uint64_t now_ns);

#endif
