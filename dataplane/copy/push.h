/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a NIC's DMA engine is elsewhere: a GPU of ours writes payload into the slots of a peer's
 * bounce pool, in the memory of a GPU of this host. Descriptors of the unpack kernel, in the other
 * direction: the source is ours, the bounded destination is the peer's pool. One for a port's
 * queue. Owner: poll core; opened, attached and closed on the control path.
 */
#ifndef GX_PUSH_H
#define GX_PUSH_H

#include "gx_internal/gpu.h"
#include "gx_internal/mem.h"

struct push;

/* A peer's pool, mapped here. */
struct push_pool {
	void *base; /* NULL: there is none */
	uint64_t len;
	uint32_t gpus;	       /* devices (bits) of ours that write there */
	uint32_t from;	       /* of those, whose memory they read in place */
	struct gx_gpu *mapper; /* who imported it */
	int device; /* it is memory of this one, as we count; negative: of none we know */
};

/* One payload on its way. */
struct push_frag {
	const void *data;
	uint32_t len;	/* > 0 */
	uint8_t device; /* 1 + that whose memory data is, one of pool->from; 0: the host's */
	bool mapped;	/* of the host: our GPUs read it in place; else it is copied, here */
	const struct push_pool *pool;
	uint64_t off; /* where in the pool */
	uint32_t ref; /* given back by push_reap() */
};

struct push_done {
	uint32_t ref;
	int status; /* 0: it lies there, for any GPU. -EIO, -ETIMEDOUT: nobody knows */
};

/** push_open() - @gpus [GX_PUSH_GPUS]: those that are open, by device; NULL elsewhere. @piece_b:
 * the longest payload. Return: 0, -ENODEV (no GPU is open), -ENOMEM, the backend's. */
#define GX_PUSH_GPUS 16
int push_open(struct gx_gpu *const gpus[], struct gx_arena *arena, uint32_t piece_b,
	      uint64_t timeout_ns, struct push **out);
void push_close(struct push *p); /* waits for what is under way */

/** push_map() - Map the peer's pool. Every field of @h may be a lie. Return: 0, -EPROTO, -EXDEV (no
 * GPU of ours reaches it), -ENOMEM; the reason is gx_gpu_why(). */
int push_map(struct push *p, const struct gx_gpu_handle *h, uint64_t len, struct push_pool *out);
/** push_unmap() - Nothing may be on its way there any more. */
void push_unmap(struct push_pool *pool);

/** push_room() - How many fragments push_add() takes now, whatever they are. */
unsigned push_room(const struct push *p);
void push_add(struct push *p, const struct push_frag *f, uint64_t now_ns);
/** push_flush() - Launch what is due; @last: nothing more comes in this turn. */
void push_flush(struct push *p, bool last, uint64_t now_ns);
/** push_reap() - What has ended, at most @n, in the order of push_add() for each source device. */
unsigned push_reap(struct push *p, struct push_done done[], unsigned n, uint64_t now_ns);

#endif
