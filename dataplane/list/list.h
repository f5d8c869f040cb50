/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of segments, and notes. A struct gx_list is what a post needs of a list: checked, neighbours merged.
 * A run is one post of it on one endpoint: the core feeds its segments to the link as puts or gets
 * of their own (parts), as room comes, and reports one completion. Private to dataplane/.
 */
#ifndef GX_LIST_H
#define GX_LIST_H

#include "core/core.h"
#include "gx_internal/link.h"
#include "list/map.h"

struct lists; /* a core's part. owner: core */

/* Memory that a prepared list names. Handles of freed memory stay: another allocation has another id. */
struct list_mem {
	const struct gx_mem *mem;
	uint64_t id;
};

/* What a list with views has of each run of either is a whole number of pieces: of both views, as long. */
struct list_pieces {
	uint64_t b;
	uint64_t first, end; /* counted from the begin of the views */
};

/* Frozen, but for .refs. */
struct gx_list {
	struct gx *gx;
	struct list_pool *pool; /* to which it goes back; NULL: prepared */
	struct gx_list *next;	/* there */
	uint32_t room;		/* for segments */
	struct list_mem *mems;	/* prepared */
	uint32_t nr_mems;
	_Atomic unsigned refs;	   /* gx_list_open(), and posts under way */
	bool read_only;		   /* a memory can't be written */
	struct mem_names names;	   /* of its segments */
	struct list_views *views;  /* of gx_views_open(), in place of segments; NULL: none */
	uint64_t from;		   /* with views: their byte from which on it has .len */
	struct list_pieces pieces; /* likewise */
	struct gx_list *whole;	   /* whose part it is, and who holds the views; NULL: none */
	uint32_t nr;		   /* at least 1 */
	uint64_t len;
	struct gx_link_seg seg[]; /* .first: of the caller's segments that it was merged from */
};

/* -- any thread -- */

/* Room of lists that were posted unprepared, for the next ones. owner: the queue's thread */
struct list_pool {
	struct gx_list *free;
	unsigned nr;
};

/** list_take() - The list of @op, to be given back with list_put(), by the same thread if it was not
 * prepared. That is copied into room of @pool. Return: 0, -EINVAL, -EFAULT, -ENOMEM with gx_error(). */
int list_take(struct gx *gx, struct list_pool *pool, const struct gx_op *op, struct gx_list **out);
/** list_len() - Bytes of the list of @op, before it is checked. */
uint64_t list_len(const struct gx_op *op);
/** list_split() - Cut the list of @op into @parts lists of about as many bytes, in their order; segments
 * below LIST_CUT_B stay whole. Of views each has some bytes. @op becomes the whole: its length, and the
 * place of its immediate.
 * Return: lists in @out, at most @parts; -errno as list_take(). */
#define LIST_CUT_B 4096
int list_split(struct gx *gx, struct list_pool *pool, struct gx_op *op, unsigned parts,
	       struct gx_list *out[]);
/** list_pieces() - Of bytes [@from, @from + @len), where each run is a whole number of @b bytes. */
struct list_pieces list_pieces(uint64_t b, uint64_t from, uint64_t len);
void list_put(struct gx_list *list);	    /* NULL: nothing */
void list_pool_end(struct list_pool *pool); /* all lists are back */
/* Was a memory of its segments from @at on freed? NULL: no. */
bool list_is_dead(const struct gx_list *list, uint32_t at, const struct drop *d);

/* -- control path -- */

int lists_open(struct gx_core *core, struct lists **out); /* 0, -ENOMEM */
void lists_close(struct lists *l);			  /* NULL: nothing */
/** lists_ep_open() - Make the endpoint's own share of what lists need. Return: 0, -ENOMEM.
 * lists_ep_close(): accepts none. */
int lists_ep_open(struct gx_ep *ep);
void lists_ep_close(struct gx_ep *ep);

/* -- poll core -- */

/** lists_begin() - Begin @op, OP_IS_RUN, whose .list came from list_take(), or is NULL. The note is
 * copied. With a route the caller keeps the list until its completion; without, the run puts it.
 * Return: 0, -EAGAIN, -ENOTCONN. */
int lists_begin(struct lists *l, struct gx_ep *ep, const struct gx_op *op, struct gx_route *route);
bool lists_idle(const struct lists *l);
bool lists_run(struct lists *l); /* feed the links. Return: true: something was done */
int lists_cancel(struct lists *l, struct gx_ep *ep, uint64_t user, const struct gx_route *route);
void lists_ep_fail(struct lists *l, const struct gx_ep *ep, int err);
/* End the runs that have yet to post a part of dead memory. */
void lists_drop(struct lists *l, const struct drop *d);

#endif
