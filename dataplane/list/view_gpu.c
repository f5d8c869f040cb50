/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Views in memory of a GPU; see view_gpu.h. No state, no clock, no allocation.
 */
#include "list/view_gpu.h"

void view_end(struct gx_move_end *end, const struct view *v, const char *base)
{
	*end = (struct gx_move_end){.base = (uintptr_t)base,
				    .run_b = v->run_b ? v->run_b : v->len,
				    .rows = v->rows,
				    .row_b = v->row_b};
	_Static_assert(GX_MOVE_DIMS == GX_VIEW_DIMS, "the same");
	for (unsigned i = 0; i < GX_VIEW_DIMS; i++) {
		end->dim[i].count = v->dim[i].count;
		end->dim[i].stride_b = v->dim[i].stride_b;
	}
}

/* Pieces are counted from the begin of a row, so these bound their numbers. */
bool view_stages(const struct view_at *at, uint64_t len)
{
	uint64_t row_b = at->v.len / at->v.nr_rows;
	uint64_t piece_b = view_common_b(view_common_b(at->v.run_b, at->from),
					 view_common_b(len, STAGE_UNIT_B));

	return row_b / piece_b <= 1u << 30 && (!at->v.rows || row_b >= STAGE_ROW_B);
}

bool view_stage(struct stage *s, struct stage_msg *m, struct view_at *at, uint64_t off,
		uint32_t len, unsigned keep, uint64_t now_ns)
{
	const struct view *v = &at->v;
	uint64_t from = at->from + off, row_b = v->len / v->nr_rows, row = from / row_b;
	struct stage_rows rows = {.min = v->row_min, .max = v->row_max};
	struct gx_move move = {
		.piece_b = view_common_b(v->run_b, view_common_b(from, len)),
	};
	uint32_t run = len;
	const char *src = view_find(at, off, &run);

	if (run == len)
		return stage_fetch(s, m, src, len, keep, now_ns);
	view_end(&move.src, v, at->base);
	move.first = (uint32_t)((from - row * row_b) / move.piece_b);
	move.nr = (uint32_t)(len / move.piece_b);
	if (v->rows) {
		move.src.rows += row;
		rows.nr = (uint32_t)((from + len - 1) / row_b - row + 1);
	}
	return stage_gather(s, m, &move, &rows, keep, now_ns);
}
