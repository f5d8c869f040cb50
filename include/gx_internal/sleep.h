/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread sleeps on a descriptor until another thread of the process has work for it. Who brings
 * work reads one word, and writes nothing unless the owner has armed. Implemented in poll/sleep.c.
 */
#ifndef GX_INTERNAL_SLEEP_H
#define GX_INTERNAL_SLEEP_H

#include "gx_internal/base.h"

#include <stdatomic.h>

struct gx_sleep {
	_Atomic bool armed; /* the owner sets it; who wakes it clears it */
	bool is_open;	    /* owner */
	int fd;		    /* eventfd; readable: somebody has woken the owner since it armed */
};

/** gx_sleep_open() - Owner. A struct of zeros is a closed one. Return: 0; -EOPNOTSUPP: the kernel
 * has no membarrier(2); -errno. gx_sleep_close(): accepts a closed one. */
int gx_sleep_open(struct gx_sleep *s);
void gx_sleep_close(struct gx_sleep *s);

/**
 * gx_sleep_arm() - Owner: who brings work from here on makes @fd readable. All work that was brought
 * before is visible when the call returns: look for it, and do not sleep if there is some.
 *
 * Either gx_sleep_wake() sees .armed, or the owner sees the work. Between its two sides stands a
 * barrier that the owner alone pays for: membarrier() runs one on each CPU that runs a thread of
 * this process. So gx_sleep_wake() needs no fence between its work and its look.
 */
void gx_sleep_arm(struct gx_sleep *s);
/** gx_sleep_disarm() - Owner: it does not sleep after all. */
static inline void gx_sleep_disarm(struct gx_sleep *s)
{
	atomic_store_explicit(&s->armed, false, memory_order_relaxed);
}

void gx_sleep_end(struct gx_sleep *s); /* gx_sleep_wake() of one that was armed */

/** gx_sleep_wake() - Any other thread, when its work is where the owner looks. */
static inline void gx_sleep_wake(struct gx_sleep *s)
{
	atomic_signal_fence(memory_order_seq_cst); /* the compiler keeps the order */
	if (gx_unlikely(atomic_load_explicit(&s->armed, memory_order_relaxed)))
		gx_sleep_end(s);
}

#endif
