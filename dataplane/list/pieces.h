/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a message that lies in many pieces: the message's bytes are those of the pieces, one
 * after the other. A put of many segments has its source so, and the message that it becomes its
 * destination; a get the other way round. A view is one or the other, too. Owner: poll core.
 */
#ifndef GX_PIECES_H
#define GX_PIECES_H

#include "gx_internal/wire.h"
#include "list/map.h"

#define PIECES_EACH 32 /* of each use, in an endpoint */

/* No use takes from another. So an end that has fewer than PIECES_EACH puts under way, and has cancelled
 * none, knows that the peer has a place for one more. */
enum pieces_use {
	PIECES_PUT,   /* our put: its source */
	PIECES_GET,   /* our get: its destination, also a view */
	PIECES_SERVE, /* the peer's get: its source, also a view; one more waits */
	PIECES_TAKE,  /* the peer's put: its destination */
	PIECES_VIEW,  /* our put: its source, a view */
	PIECES_MAP,   /* the peer's put: its destination, a view */
	PIECES_USES
};

struct pieces {
	uint32_t nr; /* 0: a view */
	int map;     /* of map_open(); MAP_NONE: none */
	struct view_at view;
	uint32_t last; /* piece looked at last */
	uint32_t at[GX_WIRE_SEGS +
		    1]; /* of each piece in the message; after the last one: its length */
	char *p[GX_WIRE_SEGS];
};

struct pieces_pool {
	uint32_t used[PIECES_USES]; /* bit i: .pieces[use * PIECES_EACH + i] */
	struct pieces pieces[PIECES_USES * PIECES_EACH];
};

struct pieces *pieces_get(struct pieces_pool *c, enum pieces_use use); /* NULL: all are in use */
void pieces_put(struct gx_ep *ep, struct pieces_pool *c, const struct pieces *pieces);
/** pieces_number() - From 1 on; pieces_of() finds it again. */
static inline uint8_t pieces_number(const struct pieces_pool *c, const struct pieces *pieces)
{
	_Static_assert(PIECES_USES * PIECES_EACH <= UINT8_MAX, "and 0: none");
	return (uint8_t)(pieces ? 1 + (pieces - c->pieces) : 0);
}
static inline struct pieces *pieces_of(struct pieces_pool *c, unsigned number)
{
	return &c->pieces[number - 1];
}
static inline bool pieces_is(unsigned number, enum pieces_use use)
{
	return (number - 1) / PIECES_EACH == use;
}
static inline void pieces_add(struct pieces *pieces, char *p, uint32_t len)
{
	pieces->p[pieces->nr] = p;
	pieces->at[pieces->nr + 1] = pieces->at[pieces->nr] + len;
	pieces->nr++;
}
/** pieces_find() - Where the message's byte @off lies. *@len: to the end of its piece, if that is less. */
char *pieces_find(struct pieces *pieces, uint64_t off, uint32_t *len);
/** pieces_view() - Those of @op, whose memory is a view. Return: their number; -EAGAIN: all are in use;
 * -EOPNOTSUPP: it leaves memory of a GPU, no kernel of which gathers it. */
int pieces_view(struct pieces_pool *c, const struct gx_op *op);
/** pieces_map() - Those of a put or get of the peer that names a map, as map_open() has it. Return: likewise;
 * -EBUSY: all are in use. */
int pieces_map(struct gx_ep *ep, struct pieces_pool *c, unsigned access, uint64_t token,
	       uint64_t off, uint64_t len, struct gx_mem **mem);
/* The @len bytes at @off of the message. */
void pieces_read(struct pieces *pieces, uint64_t off, uint32_t len, char *to);
void pieces_write(struct pieces *pieces, uint64_t off, uint32_t len, const char *from);

#endif
