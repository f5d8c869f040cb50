/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where did a core write payload lately? Those bytes are likely still in its cache. A store that bypasses the cache would throw them out and write them to
 * memory. The table has one entry for each 8 KiB. The newest one takes its place, so new places
 * make it forget the old ones. It knows no time: a place that is written seldom, by a core that
 * reads much in between, costs what a plain copy costs.
 *
 * Puts of 1 MiB to one place over port shm, between two cores that share no L2, are 1.15 times as
 * fast as with streaming stores alone (docs/measured/cpu.md). Puts that go round 1 GiB are as fast
 * as before.
 */
#ifndef GX_INTERNAL_WARM_H
#define GX_INTERNAL_WARM_H

#include "gx_internal/base.h"

#define GX_WARM_NR     256 /* entries: 2 MiB together, an L2 of today */
#define GX_WARM_UNIT_B ((size_t)8192)

/* owner: the core that writes. All zero: it wrote nothing yet. */
struct gx_warm {
	uintptr_t unit[GX_WARM_NR]; /* address / GX_WARM_UNIT_B */
};

/*
 * gx_warm_write() - The core is about to write @len bytes, GX_WARM_UNIT_B or more, at @dst.
 * Return: whether it wrote to the last unit of them lately. (The first unit says nothing: the piece
 * before this one often ends there.) A piece larger than the table is not remembered.
 */
static inline bool gx_warm_write(struct gx_warm *w, const void *dst, size_t len)
{
	uintptr_t unit = (uintptr_t)dst / GX_WARM_UNIT_B;
	uintptr_t last = ((uintptr_t)dst + len - 1) / GX_WARM_UNIT_B;
	bool warm = w->unit[last % GX_WARM_NR] == last;

	if (last - unit >= GX_WARM_NR)
		return false; /* its end will have driven out its beginning */
	for (; unit <= last; unit++)
		w->unit[unit % GX_WARM_NR] = unit;
	return warm;
}

#endif
