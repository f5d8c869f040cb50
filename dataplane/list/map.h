/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maps of an endpoint: views that its peer keeps, so that a put or get with views costs on the wire what
 * a plain one costs. This end writes a view's record and rows into one of the peer's places, by puts to
 * CORE_TOKEN_MAPS; then puts and gets name the place by a token of core_token_map(), and the base by their
 * offset. So no link knows how a view travels. A link that takes such a one asks map_open() where its bytes
 * go, or come from, and calls map_done() when it moves none any more. While a message reads a place,
 * core_region() lets nobody write it. list_run.c sends. Private to dataplane/. owner: core.
 */
#ifndef GX_LIST_MAP_H
#define GX_LIST_MAP_H

#include "core/core.h"
#include "list/view.h"

#define MAP_NONE (-1)
#define LIST_CUT_VIEW_B                                                                            \
	4096ull /* parts for lanes begin at most so many bytes early, at a piece if such are shorter */
#define MAP_MSGS                                                                                   \
	32 /* of this end, under way with maps: the peer has room for them, and tells others to wait */

/* What gx_views_open() makes of two views. Frozen. */
struct list_views {
	uint64_t id; /* of this process */
	struct view local, remote;
	uint32_t rows[]; /* of both */
};

/* A place at the peer. */
struct map_out {
	struct gx_route route;	  /* of the put that brings it */
	uint64_t id, from, token; /* of the views, the first byte of these, and the region */
	uint64_t used;		  /* maps.used when it was last named */
	uint32_t gen;
	uint32_t refs; /* runs */
	bool is_there, is_out;
	int err; /* of the last put; who sees -EBUSY here clears it */
};

struct maps {
	char *in; /* CORE_MAPS places, which the peer writes: a record, then rows; behind them what it gets */
	struct gx_mem mem;
	uint32_t users[CORE_MAPS]; /* messages that read them */
	struct map_out out[CORE_MAPS];
	uint64_t used;
	uint32_t nr_msgs; /* under way, at most MAP_MSGS */
};

/* -- control path -- */

int maps_open(struct gx_ep *ep); /* 0, -ENOMEM */
void maps_close(struct gx_ep *ep);

/* -- poll core: a message of the peer -- */

/** map_open() - A put (@access: GX_ACCESS_PUT) or get of @len bytes names @token and @off. Check its view
 * against the region, and write it to @at. *@mem: the region. Return: number for map_done(); -ENOENT,
 * -ESTALE, -EACCES, -ERANGE as core_region(); -EINVAL: it is no view that may land; -EMSGSIZE: it has fewer
 * bytes, or so many more that another lane has none of them. */
int map_open(struct gx_ep *ep, uint64_t token, unsigned access, uint64_t off, uint64_t len,
	     struct view_at *at, struct gx_mem **mem);
void map_done(struct gx_ep *ep, int number); /* MAP_NONE: nothing */

/* -- poll core: a put or get of ours -- */

/** map_get() - The place of the remote view of @v from byte @from on, of the region @token. MAP_NONE: all are
 * in use. */
int map_get(struct gx_ep *ep, const struct list_views *v, uint64_t from, uint64_t token);
void map_put(struct gx_ep *ep, int number);
/** map_send() - Bring it, of @v, if nobody does. Return: a put has begun. */
bool map_send(struct gx_ep *ep, int number, const struct view *v);

#endif
