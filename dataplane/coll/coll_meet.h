/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages of ranks over TCP, apart from the data path: while they meet, and when one fails. Private to
 * coll_fail.c, coll_meet.c and coll_group.c.
 *
 * Each rank connects to rank 0 and sends its number and its address (NAME). Rank 0 sends all
 * addresses to all ranks (TABLE). Each rank connects to those below it and reports (MESHED). When
 * all have reported, rank 0 lets them begin (GO). These connections stay; the messages go next to
 * the data path.
 */
#ifndef GX_COLL_MEET_H
#define GX_COLL_MEET_H

#include "coll/coll.h"

#define MEET_MAGIC	 0x6c6f6378 /* "xcol" */
#define MEET_VERSION	 2
#define MEET_PREFIX_B	 8 /* magic and version: the same in all versions */
#define GROUP_CTL_REGION "gx-coll-ctl"
#define GROUP_AGAIN_NS	 50000000ull /* between two tries to reach a rank that is not up yet */

enum meet_type { MEET_NAME = 1, MEET_TABLE, MEET_MESHED, MEET_GO, MEET_ABORT };

/* A message between ranks while they meet, or when one fails. Both ends are little-endian, as all
 * of gx. nr_ranks entries follow a TABLE.
 *
 * A rank believes a NAME only from a process of the same job. Ranks other than 0 also want to see
 * their key, a random number of this run that they gave rank 0. A process that found the port by
 * chance, or belongs to another run, does not know it. */
struct coll_meet {
	uint32_t magic, version, type;
	uint32_t rank, nr_ranks, nr_lanes, nr_bufs, piece_bits;
	int32_t err, lost;	  /* ABORT */
	char addr[COLL_ADDR_MAX]; /* NAME: address of the rank */
	char text[COLL_TEXT_MAX]; /* ABORT */
	char job[COLL_JOB_MAX];	  /* NAME */
	uint64_t key;		  /* NAME to rank 0: the sender's key; to others: the receiver's */
};

struct coll_entry {
	char addr[COLL_ADDR_MAX];
	uint64_t key;
};

/* -- coll_fail.c; any thread -- */

void coll_fail_init(const struct gx_group *g, enum meet_type type, struct coll_meet *m);
void coll_fail_abort(const struct gx_group *g, int err, int lost, const char *text,
		     struct coll_meet *m);
/* Send @m to all ranks that we are connected with. */
void coll_tell(struct gx_group *g, const struct coll_meet *m);

/* -- coll_meet.c; control thread: callbacks of the group's context, @arg is the group -- */

void coll_on_msg(void *arg, struct gx_conn *conn, const void *data, uint32_t len);
void coll_on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
		  const char *why);

#endif
