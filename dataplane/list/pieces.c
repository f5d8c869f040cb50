/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a message in pieces; see pieces.h. Runs on the polling core.
 */
#include "list/pieces.h"
#include "list/list.h"
#include "list/view_gpu.h"

#include <errno.h>

struct pieces *pieces_get(struct pieces_pool *c, enum pieces_use use)
{
	struct pieces *pieces;
	uint32_t free = ~c->used[use];

	_Static_assert(PIECES_EACH == 32 && MAP_MSGS <= PIECES_EACH, "a bit each, room for all");
	if (!free)
		return NULL;
	c->used[use] |= free & -free;
	pieces = &c->pieces[use * PIECES_EACH + (unsigned)__builtin_ctz(free)];
	pieces->nr = pieces->last = pieces->at[0] = 0;
	pieces->map = MAP_NONE;
	return pieces;
}

void pieces_put(struct gx_ep *ep, struct pieces_pool *c, const struct pieces *pieces)
{
	uint32_t i = (uint32_t)(pieces - c->pieces);

	map_done(ep, pieces->map);
	c->used[i / PIECES_EACH] &= ~(1u << i % PIECES_EACH);
}

static bool view_leaves(const struct pieces *pieces, const struct gx_mem *mem, uint64_t len)
{
	return !mem || mem->kind == GX_MEM_HOST || view_stages(&pieces->view, len);
}

int pieces_view(struct pieces_pool *c, const struct gx_op *op)
{
	bool put = op->kind == GX_OP_PUT;
	struct pieces *pieces = pieces_get(c, put ? PIECES_VIEW : PIECES_GET);

	if (!pieces)
		return -EAGAIN;
	view_at_init(&pieces->view, &op->list->views->local,
		     op->mem ? op->mem->addr + op->off : op->addr, op->list->from);
	if (!put || view_leaves(pieces, op->mem, op->len))
		return pieces_number(c, pieces);
	pieces_put(NULL, c, pieces);
	return -EOPNOTSUPP;
}

int pieces_map(struct gx_ep *ep, struct pieces_pool *c, unsigned access, uint64_t token,
	       uint64_t off, uint64_t len, struct gx_mem **mem)
{
	bool put = access == GX_ACCESS_PUT;
	struct pieces *pieces = pieces_get(c, put ? PIECES_MAP : PIECES_SERVE);
	int ret;

	if (!pieces)
		return -EBUSY;
	ret = map_open(ep, token, access, off, len, &pieces->view, mem);
	if (ret >= 0) {
		pieces->map = ret;
		if (put || view_leaves(pieces, *mem, len))
			return pieces_number(c, pieces);
		ret = -EOPNOTSUPP;
	}
	pieces_put(ep, c, pieces);
	return ret;
}

char *pieces_find(struct pieces *pieces, uint64_t off, uint32_t *len)
{
	uint32_t i;

	if (!pieces->nr)
		return view_find(&pieces->view, off, len);
	i = off < pieces->at[pieces->last] ? 0 : pieces->last;

	while (off >= pieces->at[i + 1])
		i++;
	pieces->last = i;
	*len = GX_MIN(*len, pieces->at[i + 1] - (uint32_t)off);
	return pieces->p[i] + (off - pieces->at[i]);
}

static void pieces_copy(struct pieces *pieces, uint64_t off, uint32_t len, char *lin, bool lands)
{
	if (!pieces->nr && lands)
		view_scatter(&pieces->view, off, len, lin);
	else if (!pieces->nr)
		view_gather(&pieces->view, off, len, lin);
	for (uint32_t part; pieces->nr && len; lin += part, off += part, len -= part) {
		char *p;

		part = len;
		p = pieces_find(pieces, off, &part);
		gx_copy(lands ? p : lin, lands ? lin : p, part);
	}
}

void pieces_read(struct pieces *pieces, uint64_t off, uint32_t len, char *to)
{
	pieces_copy(pieces, off, len, to, false);
}

void pieces_write(struct pieces *pieces, uint64_t off, uint32_t len, const char *from)
{
	pieces_copy(pieces, off, len, (char *)(uintptr_t)from, true);
}
