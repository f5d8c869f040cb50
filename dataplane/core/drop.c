/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Letting go of memory: from gx_mem_free() until nothing of gx touches it. The control thread takes
 * the region out of the table, marks the memory dead and counts gx->drops. In its next turn each
 * core ends its operations with dead memory, and publishes up to which count it refers to none. It
 * waits for copies by a GPU and for packets that a port references. It counts what refers to each
 * memory, and is told which died: so it looks for nothing where nothing is, and else at some endpoints in
 * a turn. If gx does not turn a core, a
 * thread of the program does. If that thread is the one that frees, or has ended, the freeing
 * thread does the core's part itself.
 */
#include "core/core.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- the thread that turns a core ---- */

_Thread_local uintptr_t core_thread;

uintptr_t core_thread_count(void)
{
	static _Atomic uintptr_t last = CORE_STARTING;

	core_thread = atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
	return core_thread;
}

void core_take(struct gx_core *core, bool gx_thread)
{
	uintptr_t to = gx_thread ? CORE_STARTING : core_self();
	uintptr_t was = atomic_load_explicit(&core->turner, memory_order_relaxed);

	do { /* drop_help() takes a short time */
		while (was == CORE_BUSY) {
			gx_cpu_relax();
			was = atomic_load_explicit(&core->turner, memory_order_relaxed);
		}
		/* Pairs with the release in core_leave(). */
	} while (!atomic_compare_exchange_weak_explicit(
		&core->turner, &was, to, memory_order_acquire, memory_order_relaxed));
	if (!gx_thread)
		atomic_store_explicit(&core->turner_tid, gettid(), memory_order_relaxed);
}

void core_mine(struct gx_core *core)
{
	if (gx_likely(atomic_load_explicit(&core->turner, memory_order_relaxed) != CORE_STARTING))
		return;
	atomic_store_explicit(&core->turner_tid, gettid(), memory_order_relaxed);
	atomic_store_explicit(&core->turner, core_self(), memory_order_relaxed);
}

void core_free(struct gx_core *core)
{
	atomic_store_explicit(&core->turner, CORE_NOBODY, memory_order_release);
}

bool core_enter(struct gx_core *core, uintptr_t *was)
{
	uintptr_t t = atomic_load_explicit(&core->turner, memory_order_relaxed);
	int tid = atomic_load_explicit(&core->turner_tid, memory_order_relaxed);

	if (t == CORE_BUSY || t == CORE_STARTING)
		return false;
	/* tgkill() finds out whether that thread still lives. */
	if (t != CORE_NOBODY && t != core_self() && !syscall(SYS_tgkill, getpid(), tid, 0))
		return false;
	*was = t;
	return atomic_compare_exchange_strong_explicit(&core->turner, &t, CORE_BUSY,
						       memory_order_acquire, memory_order_relaxed);
}

void core_leave(struct gx_core *core, uintptr_t was)
{
	/* Pairs with the acquire in core_take(). */
	atomic_store_explicit(&core->turner, was, memory_order_release);
}

/* ---- letting go ---- */

int core_dropper_add(struct gx_core *core, void (*fn)(void *arg, struct drop *d), void *arg)
{
	if (core->nr_droppers == CORE_DROPPERS_MAX)
		return -ENOSPC;
	core->dropper[core->nr_droppers++] = (struct core_dropper){fn, arg};
	return 0;
}

#define DIED_WHOLE                                                                                 \
	0x80000000u /* in gx.died: no part. The rest is the place in uses; 0: no memory died */

/* What died since the core held nothing last, and does it use any of that? It takes the worst for
 * granted where more died than gx.died has. */
static void drop_ask(const struct gx_core *core, struct drop *d)
{
	const struct gx *gx = core->gx;
	uint32_t seq = core->drop_own, n = d->want - seq, uses = 0, whole = 0;

	for (uint32_t i = 0; i < GX_MIN(n, (uint32_t)CORE_DIED); i++) {
		/* Pairs with the release in drop_tell(): a newer drop shows itself in gx->drops. */
		uint32_t was =
			atomic_load_explicit(&gx->died[++seq % CORE_DIED], memory_order_acquire);

		whole |= was & DIED_WHOLE;
		was &= ~DIED_WHOLE;
		uses |= was ? core->uses[was] : 0;
		core_name(&d->died, was);
	}
	n += atomic_load_explicit(&gx->drops, memory_order_relaxed) - d->want;
	d->parts = n < CORE_DIED && !whole;
	d->unused = n < CORE_DIED && !uses;
	if (n >= CORE_DIED)
		memset(&d->died, 0xff, sizeof(d->died));
}

static void drop_run(struct gx_core *core, bool alone)
{
	uint32_t want = atomic_load_explicit(&core->gx->drops, memory_order_acquire);
	struct drop *d = &core->drop;

	if (!d->more) {
		*d = (struct drop){.want = want, .first = core->drop_seen + 1, .upto = want};
		core->drop_seen = want;
	} else {
		d->again = true;
		d->more = false;
	}
	d->alone = alone;
	for (unsigned i = 0; i < core->nr_droppers; i++) {
		drop_ask(core, d); /* submit/, the first, posts what lies in rings */
		core->dropper[i].fn(core->dropper[i].arg, d);
	}
	if (d->more)
		return;
	if (!alone)
		core->drop_own = d->upto;
	/* Pairs with the acquire in core_is_past(): after the last touch of that memory. */
	atomic_store_explicit(&core->dropped, d->upto, memory_order_release);
}

void core_drop(struct gx_core *core)
{
	drop_run(core, false);
}

static void call_drop(struct gx_call *call)
{
	struct gx_core *core = GX_CONTAINER_OF(call, struct gx_core, drop_call);

	/* Pairs with the exchange in drop_begin(). */
	atomic_store_explicit(&core->drop_asked, false, memory_order_release);
	core_drop(core);
}

/* Cores look at gx->drops each turn; a call wakes cores that sleep. */
static uint32_t drop_tell(struct gx *gx, uint32_t died)
{
	uint32_t seq = atomic_load_explicit(&gx->drops, memory_order_relaxed) + 1;

	/* Pairs with the acquire in drop_ask(): gx->drops of the drop before is seen with it. */
	atomic_store_explicit(&gx->died[seq % CORE_DIED], died, memory_order_release);
	/* Pairs with the acquire in core_drop(): what the caller took away is gone before. */
	atomic_store_explicit(&gx->drops, seq, memory_order_release);
	for (unsigned i = 0; i < gx->nr_cores; i++) {
		struct gx_core *core = gx->core[i];

		/* Pairs with the release in call_drop(): the core has read the call before. */
		if (atomic_exchange_explicit(&core->drop_asked, true, memory_order_acq_rel))
			continue;
		core->drop_call.fn = call_drop;
		if (gx_loop_call(&core->loop, &core->drop_call))
			atomic_store_explicit(&core->drop_asked, false, memory_order_relaxed);
	}
	return seq;
}

uint32_t drop_pass(struct gx *gx)
{
	return drop_tell(gx, 0);
}

void drop_begin(struct gx_mem *mem)
{
	mem->drop_seq = atomic_load_explicit(&mem->gx->drops, memory_order_relaxed) + 1;
	atomic_store_explicit(&mem->dead, true, memory_order_relaxed);
	drop_tell(mem->gx, mem->place | (mem->whole ? 0 : DIED_WHOLE));
}

static bool core_is_past(const struct gx_core *core, uint32_t seq)
{
	/* Pairs with the release in core_drop(). */
	return (int32_t)(atomic_load_explicit(&core->dropped, memory_order_acquire) - seq) >= 0;
}

bool drop_is_done(const struct gx *gx, uint32_t seq)
{
	for (unsigned i = 0; i < gx->nr_cores; i++)
		if (!core_is_past(gx->core[i], seq))
			return false;
	return true;
}

bool drop_help(struct gx *gx, uint32_t seq)
{
	for (unsigned i = 0; i < gx->nr_cores; i++) {
		struct gx_core *core = gx->core[i];
		uintptr_t was;

		if (core_is_past(core, seq) || !core_enter(core, &was))
			continue;
		/* It may have yet to learn of a lane on which operations were posted; and of this drop. */
		gx_loop_calls(&core->loop);
		while (!core_is_past(core, seq)) {
			drop_run(core, true);
			if (!core->drop.more)
				break;
		}
		core_leave(core, was);
	}
	return drop_is_done(gx, seq);
}
