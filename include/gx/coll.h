/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives on puts: a group of ranks, each of them a context of gx in a process or thread of its
 * own, connected each with each over whatever link there is; all-gather, all-to-all and barrier
 * among them. No server is needed: rank 0 hands out the addresses.
 *
 * All ranks post the same collectives, with the same sizes, buffers and offsets, in the same order;
 * up to GX_COLL_DEPTH of them are under way at once. They are posted on a core and progress in its
 * turns: whoever turns the group's cores (gx_core_turn(), gx_coll_wait(), or gx_core_start() for
 * all but the first) drives them. Nothing waits but the calls that say so.
 *
 * Who may touch which bytes, and when:
 * - The source is the collective's from post until it is done; then it may be written again. No
 *   peer ever reads it: bytes leave by puts.
 * - The destination may be written by peers from post until it is done, never before and never
 *   after: a rank that posts tells the others, and they put only then. So a rank may read its
 *   destination as long as it likes, however far ahead the others are; by posting it again it gives
 *   it away. Two collectives under way at once need destinations that do not overlap.
 * - Done means: all bytes of all ranks are visible here, and all bytes of this rank are visible in
 *   the memory of the others. It says nothing of what the others have received from third ranks.
 * - GPU memory must have been written (a kernel synchronised) before the collective is posted.
 *
 * When a rank is lost, every collective under way at every other rank ends with an error in bounded
 * time, all that are posted later are refused, and gx_group_error() names the rank. There is no way
 * back but to close the group. Until gx_group_close() has returned, peers may still write into
 * destinations of collectives that had failed.
 *
 * Threads: as in gx.h. [core]: from the thread that turns core 0 of the group's context;
 * [control]: from any other thread, or from that one outside of a turn. Errors are 0 or -errno with
 * the reason in gx_error().
 */
#ifndef GX_COLL_H
#define GX_COLL_H

#include <gx/gx.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GX_GROUP_RANKS_MAX 256
#define GX_GROUP_BUFS_MAX  16
#define GX_COLL_DEPTH	   16 /* collectives under way at once */

struct gx_group;

/* ---- Which rank am I? ---- */

/** struct gx_group_env - What a launcher said in the environment. */
struct gx_group_env {
	size_t size;
	const char *launcher; /* "torchrun", "Open MPI", "PMI", "Slurm" */
	unsigned rank, nr_ranks;
	unsigned local_rank; /* among the ranks of this host: which GPU and CPU to take */
	char master[128];    /* "HOST:PORT" for gx_group_opts.master; "": it is not known */
	char job[64];	     /* for gx_group_opts.job; "": it is not known */
	uint32_t reserved;   /* 0 */
};

/**
 * gx_group_env() - Ranks from the environment: torchrun's RANK, WORLD_SIZE, LOCAL_RANK; Open MPI's
 * OMPI_COMM_WORLD_*; PMI_RANK, PMI_SIZE (MPICH, Intel MPI, Slurm's PMI); SLURM_PROCID,
 * SLURM_NTASKS. The first set that is there counts. MASTER_ADDR and MASTER_PORT (default 29500) say
 * where rank 0 listens (one port further where TORCHELASTIC_USE_AGENT_STORE=True says that torchrun
 * listens there itself); without MASTER_ADDR it is this host when all ranks are on it, with Slurm
 * the first host of the step. The job is GX_JOB, else TORCHELASTIC_RUN_ID (but "none"),
 * PMIX_NAMESPACE, PMI_JOBID or SLURM_JOB_ID and SLURM_STEP_ID. Return: 0, -ENOENT (none of them is
 * set), -EINVAL (one makes no sense, see gx_error()).
 */
int gx_group_env(struct gx_group_env *env);

/* ---- Groups ---- */

/** struct gx_group_buf - Memory that collectives read and write. */
struct gx_group_buf {
	enum gx_mem_kind kind;
	int device;   /* CUDA ordinal, ignored for the host */
	void *addr;   /* NULL: the group allocates it, zeroed; else the caller's, as gx_mem_reg() */
	uint64_t len; /* need not be equal at all ranks */
};

/** struct gx_group_opts - Zero means the default. All is copied. */
struct gx_group_opts {
	size_t size;
	unsigned rank, nr_ranks;
	/* "HOST:PORT" where rank 0 listens; rank 0 may say port 0, see gx_group_addr(). */
	const char *master;
	/* Address of this host that the other ranks reach it at; NULL: that of the way to @master.
	 */
	const char *host;
	/* How the context is opened, NULL: defaults. on_conn, on_msg and arg must be unset: they
	 * are the group's. Each core is a lane of every connection and moves its part of each
	 * collective; all ranks need the same number. */
	const struct gx_opts *gx;
	const char *port,
		*link; /* of every connection, see gx_connect_opts; NULL: the best there is */
	const struct gx_group_buf *bufs; /* the same kinds, in the same order, at all ranks */
	unsigned nr_bufs;		 /* at most GX_GROUP_BUFS_MAX */
	/* A shard travels in puts of at most this; the same at all ranks. Default: 1 MiB from host
	 * memory, 1 GiB when any buffer is a GPU's. A power of two, 4 KiB to 16 GiB. */
	uint64_t piece_b;
	unsigned depth; /* puts to one peer under way; default 16, 1 to 256 */
	/* Peers that are served at once, in rotated order; the next one's turn comes when all puts
	 * to one of them are posted. Default: all of them (host memory: a piece is sent to all
	 * while it is in the cache), 1 when any buffer is a GPU's (each GPU then receives from
	 * one). */
	unsigned fan;
	uint64_t connect_timeout_ns; /* of gx_group_connect(), default 60 s */
	uint64_t timeout_ns;	     /* a collective that takes longer fails; 0: no limit */
	/* What all ranks of this job say and those of others do not: at most 63 bytes, sent in
	 * clear. Who says another is refused, and nothing else happens. One of the same job that
	 * does not fit ends the group at once; without .job it is refused alone, and the group
	 * waits for the right one. NULL: "". */
	const char *job;
};

/**
 * gx_group_open() - Make a rank: open its context, allocate and share its buffers, listen. The
 * cores do not run yet. [control]
 * Return: 0; -EINVAL (an option), -ENOMEM, -ENODEV, -EADDRINUSE and what gx_open(), gx_mem_alloc()
 * and gx_listen() return.
 */
int gx_group_open(const struct gx_group_opts *opts, struct gx_group **out);

/** gx_group_addr() - Where this rank listens, with the real port: rank 0's is the others' @master.
 */
const char *gx_group_addr(const struct gx_group *group);

/**
 * gx_group_connect() - Meet the other ranks and connect with each. Blocks, at most
 * connect_timeout_ns and a second or two; before any core runs. Ranks may come in any order.
 * [control] Return: 0; -ETIMEDOUT (gx_error() names the ranks that are missing), -EPROTO (they
 * disagree on the number of ranks, cores or buffers), -ECONNRESET (a rank was lost meanwhile).
 */
int gx_group_connect(struct gx_group *group);

/**
 * gx_group_close() - Leave, and free everything; NULL is fine. Source and destinations are the
 * caller's again afterwards. When gx_leave() was not called and the group is whole, it is done
 * here: the cores that gx does not run are turned for at most the peer time-out. A thread that
 * turns several ranks must call gx_leave() for all of them first. Rank 0 of a group that failed
 * while it formed stays up to three seconds, so that ranks which come now are told why. [control]
 */
void gx_group_close(struct gx_group *group);

unsigned gx_group_rank(const struct gx_group *group);
unsigned gx_group_ranks(const struct gx_group *group);
/** gx_group_gx() - The context: for its cores, statistics, description. It is the group's, so are
 * all completions of its cores: do not poll, connect, listen or close. */
struct gx *gx_group_gx(struct gx_group *group);
/** gx_group_mem() - Buffer @index of gx_group_opts.bufs. NULL when out of range. */
struct gx_mem *gx_group_mem(struct gx_group *group, unsigned index);
/** gx_group_conn() - The connection to @rank, for gx_conn_info(); NULL: out of range, or oneself.
 */
struct gx_conn *gx_group_conn(struct gx_group *group, unsigned rank);
/** gx_group_error() - Why the group failed, in words; "" while it has not. Any thread. Valid until
 * the group is closed. */
const char *gx_group_error(const struct gx_group *group);
/** gx_group_lost() - The rank that is to blame, -1: none, or not one alone. Any thread. */
int gx_group_lost(const struct gx_group *group);

/* ---- Collectives ---- */

/** struct gx_coll - What a collective moves. */
struct gx_coll {
	size_t size;
	struct gx_mem *src; /* this rank's; of the kind and device of the destination */
	uint64_t src_off;
	unsigned dst; /* index of the buffer, the same at all ranks */
	uint64_t dst_off;
	uint64_t len; /* bytes that each rank sends to each; 0 is a length */
};

/**
 * gx_allgather() - The @len bytes at @src of every rank r come to @dst_off + r * @len of every
 * rank. In place when the source already is where it would come to; it must not overlap the
 * destination otherwise. [core]
 * @ticket: for gx_coll_test()
 * Return: 0; -EAGAIN (GX_COLL_DEPTH are under way: turn), -EINVAL (outside of a buffer, here or at
 * a peer; kinds differ), -ENOTCONN (not connected, or left), -ECONNRESET or what it failed with
 * (the group has failed).
 */
int gx_allgather(struct gx_group *group, const struct gx_coll *coll, uint64_t *ticket);

/**
 * gx_alltoall() - Block q of @len bytes of the gx_group_ranks() at @src goes to rank q, where it
 * comes to @dst_off + rank * @len. Source and destination must not overlap. [core]
 * Return: as gx_allgather().
 */
int gx_alltoall(struct gx_group *group, const struct gx_coll *coll, uint64_t *ticket);

/** gx_barrier() - Done when every rank has posted it. [core] Return: as gx_allgather(). */
int gx_barrier(struct gx_group *group, uint64_t *ticket);

/**
 * gx_leave() - The last collective: done when all before it are done at every rank, so that going
 * away harms nobody. [core] Return: as gx_allgather().
 */
int gx_leave(struct gx_group *group, uint64_t *ticket);

/**
 * gx_coll_test() - Is it done? Collectives are done in the order in which they were posted. Does
 * not turn. [core]
 * Return: 0, -EINPROGRESS, -ETIMEDOUT or -ECONNRESET (a rank is lost or late), -EPROTO (the ranks
 * posted different collectives), -EIO (GPU); gx_group_error() has the words.
 */
int gx_coll_test(struct gx_group *group, uint64_t ticket);

/** gx_coll_wait() - Turn core 0 until the collective is done. [core] Return: as gx_coll_test(), but
 * never -EINPROGRESS. */
int gx_coll_wait(struct gx_group *group, uint64_t ticket);

#ifdef __cplusplus
}
#endif
#endif
