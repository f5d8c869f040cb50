/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a message in pieces; see cut.h. Runs on the polling core.
 */
#include "packet/cut.h"

struct pkt_cut *cut_get(struct pkt_cuts *c, enum pkt_cut_use use)
{
	struct pkt_cut *cut;
	uint32_t free = ~c->used[use];

	_Static_assert(PKT_CUTS == 32, "a bit each");
	if (!free)
		return NULL;
	c->used[use] |= free & -free;
	cut = &c->cut[use * PKT_CUTS + (unsigned)__builtin_ctz(free)];
	cut->nr = cut->last = cut->at[0] = 0;
	return cut;
}

void cut_put(struct pkt_cuts *c, const struct pkt_cut *cut)
{
	uint32_t i = (uint32_t)(cut - c->cut);

	c->used[i / PKT_CUTS] &= ~(1u << i % PKT_CUTS);
}

char *cut_part(struct pkt_cut *cut, uint64_t off, uint32_t *len)
{
	uint32_t i = off < cut->at[cut->last] ? 0 : cut->last;

	while (off >= cut->at[i + 1])
		i++;
	cut->last = i;
	*len = GX_MIN(*len, cut->at[i + 1] - (uint32_t)off);
	return cut->p[i] + (off - cut->at[i]);
}

void cut_read(struct pkt_cut *cut, uint64_t off, uint32_t len, char *to)
{
	while (len) {
		uint32_t part = len;
		const char *p = cut_part(cut, off, &part);

		gx_copy(to, p, part);
		to += part;
		off += part;
		len -= part;
	}
}

void cut_write(struct pkt_cut *cut, uint64_t off, uint32_t len, const char *from)
{
	while (len) {
		uint32_t part = len;
		char *p = cut_part(cut, off, &part);

		gx_copy(p, from, part);
		from += part;
		off += part;
		len -= part;
	}
}
