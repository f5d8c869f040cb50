/* SPDX-License-Identifier: Apache-2.0 */
#include "rows.hpp"

#include <bit>

bool rows_find(const std::vector<struct gx_seg> &segs, Rows *out)
{
	uint64_t any = 0, joins = 0;
	const struct gx_seg *last = nullptr;

	if (segs.size() < 2 || !segs[0].len || segs[0].len >= ROWS_BLOCK_B)
		return false;
	for (const auto &s : segs) {
		if (s.len != segs[0].len || s.mem != segs[0].mem || s.token != segs[0].token)
			return false;
		any |= s.off | s.remote_off;
		joins += last && last->off + s.len == s.off &&
			 last->remote_off + s.len == s.remote_off;
		last = &s;
	}
	/* Rows begin at multiples of the largest power of two that all offsets have. */
	int shift = any ? std::countr_zero(any) : 0;

	if (joins > segs.size() / 2 || any >> shift > UINT32_MAX)
		return false;
	out->row_b = 1ull << shift;
	out->here.reserve(segs.size());
	out->there.reserve(segs.size());
	for (const auto &s : segs) {
		out->here.push_back((uint32_t)(s.off >> shift));
		out->there.push_back((uint32_t)(s.remote_off >> shift));
	}
	return true;
}
