/* SPDX-License-Identifier: Apache-2.0 */
/* Equal blocks, as NIXL hands them one by one, as rows of two views. */
#ifndef ROWS_HPP
#define ROWS_HPP

#include <cstdint>
#include <vector>

#include <gx/gx.h>

/* From so many bytes on a list costs no more than a view (docs/nixl.md). */
static constexpr uint64_t ROWS_BLOCK_B = 4096;

struct Rows {
	std::vector<uint32_t> here, there;
	uint64_t row_b = 0;
};

/* Are @segs short blocks of one length, of one memory at each end, most of which do not adjoin? */
bool rows_find(const std::vector<struct gx_seg> &segs, Rows *out);

#endif
