/* SPDX-License-Identifier: Apache-2.0 */
/* gxperf blocks: what its lists (blocks.c) and its views (blocks_view.c) share. */
#ifndef BLOCKS_H
#define BLOCKS_H

#include "gxperf/base/perf.h"

#define BLOCKS_DEPTH 64 /* most lists under way */
#define BLOCKS_WAYS  3	/* of --view: view, contiguous, list */

struct view_case;

struct blocks_slot {
	bool busy, done, note, answered; /* note: to be posted after a get */
	uint64_t number, posted_ns;
};

/** struct blocks - Owner: the core's thread during a phase, else main. */
struct blocks {
	struct perf_job job; /* first */
	struct perf perf;
	struct perf_opts opts;
	struct gx_ep *ep;
	struct gx_queue *queue;
	struct gx_mem *local;
	unsigned char *image; /* what local holds: its address, or a copy if it is a GPU's */
	bool get, prepared;
	uint64_t size, stride;
	unsigned nr, depth;	/* blocks of a list; places of lists */
	uint32_t *here, *there; /* place of each block, of all lists */
	struct gx_seg *segs;	/* the same for gx */
	struct gx_list *lists[BLOCKS_DEPTH];
	struct gx_op ops[BLOCKS_DEPTH]; /* what each place posts */
	struct blocks_slot slots[BLOCKS_DEPTH];
	uint64_t next;	      /* number of the next list */
	uint64_t first;	      /* first list of this phase */
	uint64_t limit;	      /* end: no list from this number on */
	uint64_t deadline_ns; /* 0: only the limit counts */
	uint64_t begin_ns, end_ns;
	const struct view_case *view;  /* --view: each place has a way of its own, one at a time */
	uint64_t post_ns[BLOCKS_WAYS]; /* without --view: of [0] */
	struct hist hist[BLOCKS_WAYS];
	uint32_t in_flight;
	_Atomic uint64_t count; /* lists done in this phase, for perf_job_wait() */
	int err;
};

static inline uint64_t blocks_list_b(const struct blocks *b)
{
	return b->nr * b->size;
}

/* blocks.c */
/** blocks_shuffle() - A random order of 0 to @n - 1, the same in each run. */
void blocks_shuffle(uint32_t *places, uint32_t n, uint64_t seed);
/** blocks_image() - Between a GPU's memory and the copy of it, @len bytes. */
int blocks_image(struct blocks *b, uint64_t len, bool in);

/* blocks_view.c. All return an enum perf_status; they have reported why. */
int views_usage(struct blocks *b,
		struct report *report); /* takes the case that --view names, and its sizes */
uint64_t views_place_b(const struct blocks *b); /* bytes of a place, at both ends */
int views_open(struct blocks *b);
int views_payload(struct blocks *b);
int views_verify(struct blocks *b, struct check_result res[]);
int views_rows(struct blocks *b, const struct check_result res[]);

#endif
