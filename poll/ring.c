// SPDX-License-Identifier: Apache-2.0
/*
 * Makes and frees the pointer ring of ring.h, on the control path. Both ends of the ring are inline
 * functions in ring.h.
 */
#include "gx_internal/ring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RING_SIZE_MAX (1u << 20)

int gx_ring_open(uint32_t size, struct gx_ring **out)
{
	struct gx_ring *r;
	size_t len_b;

	if (size < 2 || size > RING_SIZE_MAX || (size & (size - 1)) != 0)
		return -EINVAL;
	/* Whole cache lines: memory after the ring shares none with its last slots. */
	len_b = GX_ALIGN_UP(sizeof(*r) + size * sizeof(r->slot[0]), GX_CACHE_LINE);
	r = aligned_alloc(GX_CACHE_LINE, len_b);
	if (!r)
		return -ENOMEM;
	memset(r, 0, len_b);
	r->mask = size - 1;
	*out = r;
	return 0;
}

void gx_ring_close(struct gx_ring *r)
{
	free(r);
}
