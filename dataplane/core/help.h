/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The help board of a core: slices of copies that the core lends to other threads (gx_help()). The
 * core offers a slice, one thread takes it and copies, and the core finds it ended in a later turn.
 * The core takes an offered slice back as long as nobody has it; so it never waits for a helper that
 * does not come. Nobody takes a slice away from a helper: its owner waits, whatever happens.
 *
 * A slice is the core's, until it is offered and a helper takes it. Then it is the helper's, until
 * its bit in .ended is set. What it names (memory, a process) must live until then.
 */
#ifndef GX_HELP_H
#define GX_HELP_H

#include "gx_internal/base.h"

#include <stdatomic.h>
#include <sys/types.h>

#define HELP_SLICES 8 /* of a core, at most 32 */

struct help_slice {
	/* Copies. Any thread. Return: bytes, or -errno */
	ssize_t (*copy)(const struct help_slice *p);
	const void *whose; /* for copy(), as the next three */
	char *to;
	uint64_t from;
	uint64_t len;
	uint32_t place; /* for the owner of the slice */
	ssize_t got;	/* what copy() returned; once the slice has ended */
};

struct help_board {
	/* Helpers look here all the time, so the core writes here only when it offers or takes. */
	alignas(GX_CACHE_LINE) _Atomic uint32_t offered; /* bit i: slice i waits for a taker */
	_Atomic bool comes;				 /* a thread has called gx_help() */
	/* Helpers set a bit, the core clears it. */
	alignas(GX_CACHE_LINE) _Atomic uint32_t ended; /* bit i: the helper of slice i is through */
	uint32_t used;				       /* core: bit i: slice i is somebody's */
	struct help_slice slice[HELP_SLICES];
};

/* All of these: the core. */

/* Has any thread ever come to help? Else nothing is worth an offer. */
static inline bool help_comes(const struct help_board *b)
{
	return atomic_load_explicit(&b->comes, memory_order_relaxed);
}

/* How many of @which wait for a taker? */
static inline unsigned help_nr_offered(const struct help_board *b, uint32_t which)
{
	return (unsigned)__builtin_popcount(
		atomic_load_explicit(&b->offered, memory_order_relaxed) & which);
}

/** help_offer() - Lend a copy of @p. Return: its number; -1: all slices are in use. */
int help_offer(struct help_board *b, const struct help_slice *p);
/** help_offer_again() - Lend slice @i once more, which the core has taken or found ended. */
void help_offer_again(struct help_board *b, unsigned i);
/** help_take() - Take an offered slice back. Return: false: a helper has it. */
bool help_take(struct help_board *b, unsigned i);
/** help_ended() - Those of @which whose helpers are through. Each is told once. */
uint32_t help_ended(struct help_board *b, uint32_t which);
/** help_free() - Slice @i, which the core has taken or found ended, is needed no more. */
void help_free(struct help_board *b, unsigned i);

#endif
