/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The help board of a core (help.h). gx_help() runs on any thread, on several at a time; all else on
 * the core. The two masks are all that they share: a bit changes hands by one read-modify-write, so
 * each slice has one taker.
 */
#include "core/core.h"
#include "core/help.h"

_Static_assert(HELP_SLICES <= 32, "a bit for each slice");

static void board_offer(struct help_board *b, unsigned i)
{
	/* Pairs with the acquire in board_take(): the slice is written before. */
	atomic_fetch_or_explicit(&b->offered, 1u << i, memory_order_release);
}

int help_offer(struct help_board *b, const struct help_slice *p)
{
	uint32_t free = ~b->used & (uint32_t)((1ull << HELP_SLICES) - 1);
	unsigned i;

	if (!free)
		return -1;
	i = (unsigned)__builtin_ctz(free);
	b->used |= 1u << i;
	b->slice[i] = *p;
	board_offer(b, i);
	return (int)i;
}

void help_offer_again(struct help_board *b, unsigned i)
{
	board_offer(b, i);
}

bool help_take(struct help_board *b, unsigned i)
{
	/* No order is needed: nobody but the core has written to an offered slice. */
	return atomic_fetch_and_explicit(&b->offered, ~(1u << i), memory_order_relaxed) >> i & 1;
}

uint32_t help_ended(struct help_board *b, uint32_t which)
{
	/* Pairs with the release in gx_help(): .got, and the bytes that were copied. */
	uint32_t ended = atomic_load_explicit(&b->ended, memory_order_acquire) & which;

	if (ended)
		atomic_fetch_and_explicit(&b->ended, ~ended, memory_order_relaxed);
	return ended;
}

void help_free(struct help_board *b, unsigned i)
{
	b->used &= ~(1u << i);
}

/* ---- Any thread ---- */

/* The lowest offered slice is this thread's. Each further round means that another thread has taken
 * or offered one meanwhile. Return: its number; -1: there is none. */
static int board_take(struct help_board *b)
{
	uint32_t offered = atomic_load_explicit(&b->offered, memory_order_relaxed);

	/* Pairs with the release in board_offer(). A slice that came back meanwhile to the same
	 * place is as good: nothing of it was read yet. */
	while (offered && !atomic_compare_exchange_weak_explicit(
				  &b->offered, &offered, offered & (offered - 1),
				  memory_order_acquire, memory_order_relaxed))
		;
	return offered ? __builtin_ctz(offered) : -1;
}

GX_EXPORT bool gx_help(struct gx_core *core)
{
	struct help_board *b = &core->help;
	int i = board_take(b);

	if (i < 0) {
		/* One store in the life of a core: its line stays with all that look. */
		if (gx_unlikely(!atomic_load_explicit(&b->comes, memory_order_relaxed)))
			atomic_store_explicit(&b->comes, true, memory_order_relaxed);
		return false;
	}
	b->slice[i].got = b->slice[i].copy(&b->slice[i]);
	/* Pairs with the acquire in help_ended(). The slice, and all that it names, is the core's
	 * from here on. */
	atomic_fetch_or_explicit(&b->ended, 1u << i, memory_order_release);
	return true;
}
