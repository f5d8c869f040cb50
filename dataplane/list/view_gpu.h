/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Views in memory of a GPU, whose kernel moves their bytes. On the core. Private to dataplane/.
 */
#ifndef GX_LIST_VIEW_GPU_H
#define GX_LIST_VIEW_GPU_H

#include "copy/stage.h"
#include "list/view.h"

/** view_common_b() - The greatest common divisor. */
static inline uint64_t view_common_b(uint64_t a, uint64_t b)
{
	while (b) {
		uint64_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

/** view_end() - The end of a move that @v is, from @base on. */
void view_end(struct gx_move_end *end, const struct view *v, const char *base);
/** view_stages() - Can view_stage() bring @len bytes of the view? */
bool view_stages(const struct view_at *at, uint64_t len);
/** view_stage() - As stage_fetch(), for chunk bytes [@off, @off + @len) of the view: by a copy engine if
 * they are of one run, else by a kernel. Both are multiples of 16, but for the end of the last chunk. */
bool view_stage(struct stage *s, struct stage_msg *m, struct view_at *at, uint64_t off,
		uint32_t len, unsigned keep, uint64_t now_ns);

#endif
