/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group of ranks, for the files of coll/ alone. coll_group.c opens and closes it, coll_meet.c
 * lets its ranks meet, coll.c posts collectives, coll_worker.c moves a core's part of them,
 * coll_copy.c copies the own shard, coll_fail.c ends it. Owners: "control" is the thread that
 * opens, connects and closes while no core runs; "core 0" posts; each core has a worker, which
 * alone touches its own state.
 */
#ifndef GX_DATAPLANE_COLL_H
#define GX_DATAPLANE_COLL_H

#include "core/core.h"
#include "gx/coll.h"

#include <pthread.h>

/* A peer may be one depth ahead of the newest collective posted here. This rank's oldest may be one
 * depth after that. */
#define COLL_RING     (2 * GX_COLL_DEPTH)
#define COLL_COPIES   4 /* parts of own shards under way */
#define COLL_ADDR_MAX 64
#define COLL_TEXT_MAX 512
#define COLL_JOB_MAX  64 /* with the final 0 */

enum coll_kind { COLL_BARRIER, COLL_LEAVE, COLL_ALLGATHER, COLL_ALLTOALL };

/* A posted collective. Core 0 writes it before ->posted moves past it. Frozen until it is done. */
struct coll_post {
	enum coll_kind kind;
	struct gx_mem *src;
	uint64_t src_off, dst_off, len;
	unsigned dst;
	uint64_t lane_b; /* bytes of the shard that a lane moves; the last lane has less */
	uint32_t sum;	 /* of the values that all ranks must post */
	bool copy;	 /* copy the own shard */
};

/* One worker's part of a collective, with one peer. owner: worker */
struct coll_exchange {
	uint32_t sum;	  /* the peer's sum; valid with .ready */
	uint32_t nr_in;	  /* pieces received */
	uint32_t nr_sent; /* pieces posted */
	bool ready;	  /* the peer has posted it: we may write its destination */
	bool ready_sent;  /* we have posted READY to the peer */
	bool ready_known; /* the peer has our READY */
};

/* One worker's part of a collective. owner: worker */
struct coll_part {
	struct coll_exchange *exchange;			  /* [nr_ranks]; the own one is unused */
	uint32_t nr_ready, nr_ready_sent, nr_ready_known; /* peers */
	uint64_t nr_in, nr_sent, nr_done;		  /* pieces, all peers together */
	uint32_t nr_pieces;				  /* of each peer; valid with .begun */
	bool begun;					  /* the worker has seen the post */
	uint64_t begin_ns;
	uint64_t off, len;	   /* of the shard; valid with .begun */
	uint64_t copy_b, copied_b; /* of the own shard: handed to the copier; copied */
};

/* One copy of a part of an own shard. owner: worker; the GPU while the copy is under way */
struct coll_copy {
	struct gx_block block;
	struct coll_part *part;
	uint64_t since_ns;
};

/* Copies of own shards by one GPU, or by the CPU. owner: worker */
struct coll_copier {
	struct gx_gpu *gpu;
	struct gx_gpu_stream *stream; /* NULL: another buffer's copier works for this one */
	struct coll_copy ring[COLL_COPIES];
	uint32_t head, tail; /* free-running; [tail, head) are under way */
};

/* The core-side half of a rank: one for each core. */
struct coll_worker {
	struct gx_group *group;
	unsigned index;
	struct gx_ep **ep; /* [nr_ranks]; frozen once connected */
	uint32_t *out;	   /* [nr_ranks]: pieces under way to the peer */
	bool *left;	   /* [nr_ranks]: the peer has posted gx_leave() and does nothing more */
	bool *asked;	   /* [nr_ranks]: a put of no bytes to the peer asks whether it lives */
	uint64_t ask_ns;   /* when the worker asks the late peers next */
	unsigned nr_down_seen;
	unsigned nr_copies; /* copies under way, all copiers */
	struct coll_part part[COLL_RING];
	struct coll_copier copier[GX_GROUP_BUFS_MAX];
	/* Written by the worker: all collectives before this number are done. */
	alignas(GX_CACHE_LINE) _Atomic uint64_t done;
};

/* Another rank. The group's lock guards it while the group connects. Afterwards it is frozen,
 * except where a comment says otherwise. */
struct coll_peer {
	struct gx_group *group;
	unsigned rank;
	struct gx_conn *conn;
	char addr[COLL_ADDR_MAX];
	uint64_t key; /* key that we must show the peer, from rank 0; see struct coll_meet */
	bool meshed;  /* at rank 0: the peer has all its connections */
	bool refused; /* the peer does not fit, and knows it */
	uint64_t token[GX_GROUP_BUFS_MAX], len[GX_GROUP_BUFS_MAX], ctl_token;
	char down_text[256]; /* written by ctl before .down */
	int down_err;
	_Atomic bool down; /* ctl: the connection has ended */
};

struct gx_group {
	struct gx_group_opts opts; /* its pointers are not used after open */
	unsigned rank, nr_ranks, nr_bufs, nr_workers, depth, fan;
	unsigned piece_bits;
	uint64_t room[GX_GROUP_BUFS_MAX];      /* the least bytes that a rank has for the buffer */
	unsigned room_rank[GX_GROUP_BUFS_MAX]; /* that rank */
	unsigned copier_of[GX_GROUP_BUFS_MAX]; /* buffer whose copier copies into this one */
	char master[COLL_ADDR_MAX], addr[COLL_ADDR_MAX];
	char port[GX_NAME_MAX], port_device[GX_NAME_MAX], link[16]; /* "": not forced */
	struct gx *gx;
	struct gx_mem *mem[GX_GROUP_BUFS_MAX], *ctl_mem;
	struct coll_peer *peer;	     /* [nr_ranks] */
	struct coll_worker **worker; /* [nr_workers] */
	pthread_mutex_t lock; /* rendezvous and failure; a turn takes it only in coll_fail() */
	pthread_cond_t cond;
	char job[COLL_JOB_MAX]; /* frozen; "": none given */
	uint64_t key;	   /* frozen; a rank shows it when it connects here; rank 0 asks for none */
	char refused[256]; /* under lock: why a process that called itself a rank was refused */
	bool have_table, go; /* under lock: rank 0 has sent TABLE; GO */
	_Atomic bool connected, closing;
	_Atomic int err; /* sticky; release: text and lost are written before */
	char text[COLL_TEXT_MAX];
	int lost;
	bool left;		  /* core 0: this rank has posted gx_leave() */
	_Atomic unsigned nr_down; /* connections that have ended; workers look when it moves */
	struct coll_post post[COLL_RING];		/* core 0 */
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
 * @tell: tell the other ranks; only the first failure does. Any thread, also a core in its turn. It
 * is the one place where a turn takes a lock and allocates, once in a group's life. Return: @err.
 */
int coll_fail(struct gx_group *g, int err, int lost, bool tell, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));

/* -- coll_worker.c -- */

int coll_workers_open(struct gx_group *g);
/* No core turns any more. Wait for copies under way, for a bounded time. */
void coll_workers_idle(struct gx_group *g);
void coll_workers_free(struct gx_group *g);
/* All connections are up: take their endpoints. Return: 0, -errno with gx_error(). */
int coll_workers_connect(struct gx_group *g);

/* -- coll_copy.c: the own shard, by a GPU or by the CPU -- */

int coll_copier_open(struct coll_copier *c, struct gx_gpu *gpu); /* 0, -errno with gx_error() */
/* Wait for copies under way, for a bounded time. @c need not be open. */
void coll_copier_close(struct coll_copier *c);
/* Worker: copy the next bytes of the own shard of collective @seq. False: no copier is free. */
bool coll_copy_begin(struct coll_worker *w, uint64_t seq, uint64_t now_ns);
bool coll_copies_reap(struct coll_worker *w, uint64_t now_ns); /* worker. Return: one ended */

#endif
