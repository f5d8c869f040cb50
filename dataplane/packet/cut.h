/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a message that lies in many pieces: the message's bytes are those of the pieces, one
 * after the other. A put of many segments has its source so, and the message that it becomes its
 * destination; a get the other way round. Owner: poll core.
 */
#ifndef GX_CUT_H
#define GX_CUT_H

#include "gx_internal/wire.h"

#define PKT_CUTS 32 /* of each use, in an endpoint */

/* No use takes from another. So an end that has fewer than PKT_CUTS puts under way knows that the peer
 * has a cut for one more. */
enum pkt_cut_use {
	CUT_PUT,   /* our put: its source */
	CUT_GET,   /* our get: its destination */
	CUT_SERVE, /* the peer's get: its source */
	CUT_TAKE,  /* the peer's put: its destination */
	CUT_USES
};

struct pkt_cut {
	uint32_t nr;
	uint32_t last; /* piece looked at last */
	uint32_t at[GX_WIRE_SEGS +
		    1]; /* of each piece in the message; after the last one: its length */
	char *p[GX_WIRE_SEGS];
};

struct pkt_cuts {
	uint32_t used[CUT_USES]; /* bit i: .cut[use * PKT_CUTS + i] */
	struct pkt_cut cut[CUT_USES * PKT_CUTS];
};

struct pkt_cut *cut_get(struct pkt_cuts *c, enum pkt_cut_use use); /* NULL: all are in use */
void cut_put(struct pkt_cuts *c, const struct pkt_cut *cut);
/** cut_number() - From 1 on; cut_of() finds it again. */
static inline uint16_t cut_number(const struct pkt_cuts *c, const struct pkt_cut *cut)
{
	return (uint16_t)(cut ? 1 + (cut - c->cut) : 0);
}
static inline struct pkt_cut *cut_of(struct pkt_cuts *c, uint16_t number)
{
	return &c->cut[number - 1];
}
static inline bool cut_is(uint16_t number, enum pkt_cut_use use)
{
	return (number - 1u) / PKT_CUTS == use;
}
static inline void cut_add(struct pkt_cut *cut, char *p, uint32_t len)
{
	cut->p[cut->nr] = p;
	cut->at[cut->nr + 1] = cut->at[cut->nr] + len;
	cut->nr++;
}
/** cut_part() - Where the message's byte @off lies. *@len: to the end of its piece, if that is less. */
char *cut_part(struct pkt_cut *cut, uint64_t off, uint32_t *len);
/* The @len bytes at @off of the message. */
void cut_read(struct pkt_cut *cut, uint64_t off, uint32_t len, char *to);
void cut_write(struct pkt_cut *cut, uint64_t off, uint32_t len, const char *from);

#endif
