/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group of ranks, as the files of coll/ share it. Private to them. coll_group.c opens and closes
 * it, coll_meet.c lets its ranks meet, coll.c posts collectives, coll_worker.c moves a core's part
 * of them, coll_copy.c copies the own shard, coll_fail.c ends it. Owners: "control" is the thread
 * that opens, connects and closes while no core runs; "core 0" posts; each core has a worker, which
 * alone touches its own state.
 */
#ifndef GX_DATAPLANE_COLL_H
#define GX_DATAPLANE_COLL_H

#include "core/core.h"
#include "gx/coll.h"

#include <pthread.h>

/* Peers may be ahead by one depth of what is posted here, and this rank's oldest may be one depth
 * behind that. */
#define COLL_RING     (2 * GX_COLL_DEPTH)
#define COLL_COPIES   4 /* parts of own shards under way */
#define COLL_ADDR_MAX 64
#define COLL_TEXT_MAX 512
#define COLL_JOB_MAX  64 /* with the final 0 */

enum coll_kind { COLL_BARRIER, COLL_LEAVE, COLL_ALLGATHER, COLL_ALLTOALL };

/* A posted collective. Written by core 0 before ->posted moves past it; frozen until it is done. */
struct coll_post {
	enum coll_kind kind;
	struct gx_mem *src;
	uint64_t src_off, dst_off, len;
	unsigned dst;
	uint64_t lane_b; /* of the shard that a lane moves; the last has less */
	uint32_t sum;	 /* of what must be equal at all ranks */
	bool copy;	 /* the own shard is to be copied */
};

/* One worker's part of a collective, with one peer. owner: worker */
struct coll_exchange {
	uint32_t sum;	  /* of what the peer posted; valid with .ready */
	uint32_t nr_in;	  /* pieces that came */
	uint32_t nr_sent; /* pieces that are posted */
	bool ready;	  /* the peer has posted it: its destination may be written */
	bool told;	  /* it was told that we have */
	bool told_done;	  /* and knows */
};

/* One worker's part of a collective. owner: worker */
struct coll_part {
	struct coll_exchange *exchange;		  /* [nr_ranks], one's own unused */
	uint32_t nr_ready, nr_told, nr_told_done; /* peers */
	uint64_t nr_in, nr_sent, nr_done;	  /* pieces, of all peers */
	uint32_t nr_pieces;			  /* of each peer; valid with .begun */
	bool begun;				  /* the worker has seen that it was posted */
	uint64_t begin_ns;
	uint64_t off, len;	   /* of the shard; valid with .begun */
	uint64_t copy_b, copied_b; /* of the own shard: given to the copier, copied */
};

/* A part of an own shard that is being copied. owner: worker, and the GPU while it is out */
struct coll_copy {
	struct gx_block block;
	struct coll_part *part;
	uint64_t since_ns;
};

/* Copies of own shards by one GPU, or by the CPU. owner: worker */
struct coll_copier {
	struct gx_gpu *gpu;
	struct gx_gpu_stream *stream; /* NULL: another buffer's copier does it */
	struct coll_copy ring[COLL_COPIES];
	uint32_t head, tail; /* free-running; [tail, head) are out */
};

/* The core-side half of a rank: one for each core. */
struct coll_worker {
	struct gx_group *group;
	unsigned index;
	struct gx_ep **ep; /* [nr_ranks]; frozen once connected */
	uint32_t *out;	   /* [nr_ranks]: pieces under way to a peer */
	bool *left;	   /* [nr_ranks]: it has posted gx_leave() and will do nothing more */
	bool *asked;	   /* [nr_ranks]: a put of no bytes asks whether it lives */
	uint64_t ask_ns;   /* when those that are waited for are asked next */
	unsigned nr_down_seen;
	unsigned nr_copies; /* out, of all copiers */
	struct coll_part part[COLL_RING];
	struct coll_copier copier[GX_GROUP_BUFS_MAX];
	alignas(GX_CACHE_LINE) _Atomic uint64_t done; /* written by the worker: collectives before
							 it are done */
};

/* Another rank. Under the group's lock while it connects, frozen afterwards but for what says so.
 */
struct coll_peer {
	struct gx_group *group;
	unsigned rank;
	struct gx_conn *conn;
	char addr[COLL_ADDR_MAX];
	uint64_t key; /* that it wants to be shown, as rank 0 says; see struct coll_hello */
	bool meshed;  /* rank 0's view: it has all its connections */
	bool refused; /* it came, does not fit, and was told so */
	uint64_t token[GX_GROUP_BUFS_MAX], len[GX_GROUP_BUFS_MAX], ctl_token;
	char down_text[256]; /* written by ctl before .down */
	int down_err;
	_Atomic bool down; /* ctl: the connection has ended */
};

struct gx_group {
	struct gx_group_opts opts; /* pointers in it are not used after open */
	unsigned rank, nr_ranks, nr_bufs, nr_workers, depth, fan;
	unsigned piece_bits;
	uint64_t room[GX_GROUP_BUFS_MAX];      /* bytes of the smallest buffer of all ranks */
	unsigned room_rank[GX_GROUP_BUFS_MAX]; /* whose it is */
	unsigned copier_of[GX_GROUP_BUFS_MAX]; /* which buffer's copier copies into this one */
	char master[COLL_ADDR_MAX], addr[COLL_ADDR_MAX];
	char port[GX_NAME_MAX], link[16];
	struct gx *gx;
	struct gx_mem *mem[GX_GROUP_BUFS_MAX], *ctl_mem;
	struct coll_peer *peer;	     /* [nr_ranks] */
	struct coll_worker **worker; /* [nr_workers] */
	pthread_mutex_t lock;	     /* rendezvous and failure; never in a turn that goes well */
	pthread_cond_t cond;
	char job[COLL_JOB_MAX]; /* frozen; "": none was given */
	uint64_t key;		/* frozen; who connects to this rank shows it, but at rank 0 */
	char refused[256];	/* under lock: why one was refused that said it was a rank */
	bool have_table, go;	/* under lock: what rank 0 has sent */
	_Atomic bool connected, closing;
	_Atomic int err; /* sticky; text and lost were written before it (release) */
	char text[COLL_TEXT_MAX];
	int lost;
	bool left;			  /* core 0: gx_leave() was posted */
	_Atomic unsigned nr_down;	  /* connections that ended: workers look when it moves */
	struct coll_post post[COLL_RING]; /* core 0 */
	alignas(GX_CACHE_LINE) _Atomic uint64_t posted; /* core 0: collectives posted so far */
};

static inline struct coll_part *coll_part_of(struct coll_worker *w, uint64_t seq)
{
	return &w->part[seq % COLL_RING];
}

static inline struct coll_post *coll_post_of(struct gx_group *g, uint64_t seq)
{
	return &g->post[seq % COLL_RING];
}

static inline bool coll_has_failed(const struct gx_group *g)
{
	return atomic_load_explicit(&g->err, memory_order_relaxed) != 0;
}

/* -- coll_fail.c -- */

/**
 * coll_fail() - The group has failed: the first reason stays. @lost: the rank to blame, -1: none.
 * @tell: tell the other ranks, unless they did. Any thread, a core in its turn too: the one place
 * where a turn takes a lock and allocates, once in a group's life. Return: @err.
 */
int coll_fail(struct gx_group *g, int err, int lost, bool tell, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));

/* -- coll_worker.c -- */

int coll_workers_open(struct gx_group *g);
/* No core turns any more. Waits for copies that are out, in bounded time. */
void coll_workers_idle(struct gx_group *g);
void coll_workers_free(struct gx_group *g);
/* All connections are up: take their endpoints. Return: 0, -errno with gx_error(). */
int coll_workers_connect(struct gx_group *g);

/* -- coll_copy.c: the own shard, by a GPU or by the CPU -- */

int coll_copier_open(struct coll_copier *c, struct gx_gpu *gpu); /* 0, -errno with gx_error() */
/* Waits for copies that are out, in bounded time. @c may not have been opened. */
void coll_copier_close(struct coll_copier *c);
/* Worker: copy the next bytes of the own shard of collective @seq. False: no copier is free. */
bool coll_copy_begin(struct coll_worker *w, uint64_t seq, uint64_t now_ns);
bool coll_copies_reap(struct coll_worker *w, uint64_t now_ns); /* worker. Return: did one end? */

#endif
