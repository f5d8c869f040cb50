/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Single-producer, single-consumer ring of pointers. The two ends may be different threads; each
 * end belongs to one thread at a time. Free-running 32-bit indices, power-of-two size.
 */
#ifndef GX_INTERNAL_RING_H
#define GX_INTERNAL_RING_H

#include "gx_internal/base.h"

#include <stdatomic.h>

struct gx_ring {
	alignas(GX_CACHE_LINE) _Atomic uint32_t head; /* written by the producer only */
	uint32_t tail_seen;			      /* producer's last look at tail */
	alignas(GX_CACHE_LINE) _Atomic uint32_t tail; /* written by the consumer only */
	uint32_t head_seen;			      /* consumer's last look at head */
	alignas(GX_CACHE_LINE) uint32_t mask;	      /* frozen after init */
	void *slot[];
};

/** gx_ring_open() - @size: power of two, 2 to 2^20. Return: 0, -EINVAL, -ENOMEM. */
int gx_ring_open(uint32_t size, struct gx_ring **out);
void gx_ring_close(struct gx_ring *r);

/** gx_ring_put() - Producer: append up to @n items. Return: how many fitted. */
static inline uint32_t gx_ring_put(struct gx_ring *r, void *const items[], uint32_t n)
{
	uint32_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
	uint32_t room = r->mask + 1 - (head - r->tail_seen);

	if (room < n) {
		/* Pairs with the release in gx_ring_get(): slots are read before tail moves. */
		r->tail_seen = atomic_load_explicit(&r->tail, memory_order_acquire);
		room = r->mask + 1 - (head - r->tail_seen);
	}
	n = GX_MIN(n, room);
	for (uint32_t i = 0; i < n; i++)
		r->slot[(head + i) & r->mask] = items[i];
	/* Pairs with the acquire in gx_ring_get(): slots are filled before head moves. */
	atomic_store_explicit(&r->head, head + n, memory_order_release);
	return n;
}

/** gx_ring_get() - Consumer: take up to @n items. Return: how many it took. */
static inline uint32_t gx_ring_get(struct gx_ring *r, void *items[], uint32_t n)
{
	uint32_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
	uint32_t have = r->head_seen - tail;

	if (have < n) {
		/* Pairs with the release in gx_ring_put(). */
		r->head_seen = atomic_load_explicit(&r->head, memory_order_acquire);
		have = r->head_seen - tail;
	}
	n = GX_MIN(n, have);
	for (uint32_t i = 0; i < n; i++)
		items[i] = r->slot[(tail + i) & r->mask];
	/* Pairs with the acquire in gx_ring_put(). */
	atomic_store_explicit(&r->tail, tail + n, memory_order_release);
	return n;
}

/** gx_ring_empty() - Consumer: true if the ring is empty. Loads one shared line. */
static inline bool gx_ring_empty(const struct gx_ring *r)
{
	return atomic_load_explicit(&r->tail, memory_order_relaxed) ==
	       atomic_load_explicit(&r->head, memory_order_acquire);
}

#endif
