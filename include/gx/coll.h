/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives on puts: all-gather, all-to-all and barrier among a group of ranks. A rank is a
 * context of gx in a process or thread of its own. Each rank connects with each other one, over
 * whatever link there is. No server is needed: rank 0 hands out the addresses.
 *
 * All ranks post the same collectives, with the same sizes, buffers and offsets, in the same order.
 * Up to GX_COLL_DEPTH of them are under way at once. A program posts them on a core, and they make
 * progress in the turns of the group's cores: by gx_core_turn(), by gx_coll_wait(), or by
 * gx_core_start() for all cores but the first. Nothing waits but the calls that say so.
 *
 * Who may touch which bytes, and when:
 * - The program must not write the source from the post until the collective is done. No peer ever
 *   reads it: bytes leave by puts.
 * - Peers may write the destination from the post until the collective is done, never before and
 *   never after: a rank that posts informs the others, and they put only then. So a rank may read its
 *   destination as long as it likes, however far ahead the others are. It gives the destination
 *   away by the next post. Two collectives under way at once need destinations that do not overlap.
 * - Done means: all bytes of all ranks are visible here, and all bytes of this rank are visible in
 *   the memory of the others. It does not say what the others have received from third ranks.
 * - Writes to GPU memory must have ended (a kernel is synchronised) before the post.
 *
 * When a rank is lost, every collective under way at every other rank ends with an error in bounded
 * time. Later posts are refused, and gx_group_error() names the rank. Such a group can only be
 * closed. Until gx_group_close() has returned, peers may still write into destinations of
 * collectives that failed.
 *
 * Threads, errors and versions are as in gx.h. [core]: only the thread that turns core 0 of the
 * group's context may call; [control]: any other thread, and that one outside of a turn.
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

/** struct gx_group_env - A rank's place, as a launcher has set it in the environment. */
struct gx_group_env {
	size_t size;
	const char *launcher; /* "torchrun", "Open MPI", "PMI", "Slurm"; static */
	unsigned rank, nr_ranks;
	unsigned local_rank; /* among the ranks of this host: which GPU and CPU to take */
	char master[128];    /* "HOST:PORT" for gx_group_opts.master; "": not known */
	char job[64];	     /* for gx_group_opts.job; "": not known */
	uint32_t reserved;   /* 0 */
};

/**
 * gx_group_env() - Ranks from the environment: torchrun's RANK, WORLD_SIZE, LOCAL_RANK; Open MPI's
 * OMPI_COMM_WORLD_*; PMI_RANK, PMI_SIZE (MPICH, Intel MPI, Slurm's PMI); SLURM_PROCID,
 * SLURM_NTASKS. The first complete set counts. MASTER_ADDR and MASTER_PORT (default 29500) say
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

/** struct gx_group_opts - Zero means the default. gx_group_open() copies all of it. */
struct gx_group_opts {
	size_t size;
	unsigned rank, nr_ranks;
	/* "HOST:PORT" where rank 0 listens; rank 0 may say port 0, see gx_group_addr(). */
	const char *master;
	/* Address at which the other ranks reach this host; NULL: the one that it reaches .master
	 * from. */
	const char *host;
	/* Options of the context; NULL: defaults. The group sets on_conn, on_msg and arg itself.
	 * Each core is a lane of every connection and moves its part of each collective. All ranks
	 * need the same number of cores. */
	const struct gx_opts *gx;
	/* Of every connection, see gx_connect_opts; NULL: the best there is. */
	const struct gx_port_name *port; /* one */
	const char *link;
	const struct gx_group_buf *bufs; /* the same kinds, in the same order, at all ranks */
	unsigned nr_bufs;		 /* at most GX_GROUP_BUFS_MAX */
	/* A shard travels in puts of at most this; the same at all ranks. Default: 1 MiB from host
	 * memory, 1 GiB when any buffer is a GPU's. A power of two, 4 KiB to 16 GiB. */
	uint64_t piece_b;
	unsigned depth; /* puts to one peer under way; default 16, 1 to 256 */
	/* Peers that a rank serves at once, in rotated order. It begins with the next peer when it
	 * has posted all puts to one. Default: all peers for host memory (a piece goes to all of
	 * them while it is in the cache); 1 when any buffer is a GPU's (each GPU then receives from
	 * one rank). */
	unsigned fan;
	uint64_t connect_timeout_ns; /* of gx_group_connect(), default 60 s */
	uint64_t timeout_ns;	     /* a collective that takes longer fails; 0: no limit */
	/* A word of at most 63 bytes that all ranks of this job share, sent in clear. Rank 0 refuses
	 * a rank of another job and goes on. A rank of the same job whose options do not fit ends
	 * the group at once. Without .job, rank 0 refuses it alone and waits for the right one.
	 * NULL: "". */
	const char *job;
};

/**
 * gx_group_open() - Make a rank: open its context, allocate and share its buffers, listen. The
 * cores do not run yet. [control]
 * Return: 0; -EINVAL (an option), -ENOMEM, -ENODEV, -EADDRINUSE and what gx_open(), gx_mem_alloc()
 * and gx_listen() return.
 */
int gx_group_open(const struct gx_group_opts *opts, struct gx_group **out);

/** gx_group_addr() - Where this rank listens, with the real port. Rank 0's is the others' .master.
 * Valid until the group is closed. */
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
 * while it formed stays up to three seconds, so that ranks which come now learn why. [control]
 */
void gx_group_close(struct gx_group *group);

unsigned gx_group_rank(const struct gx_group *group);
unsigned gx_group_ranks(const struct gx_group *group);
/** gx_group_gx() - The context: for its cores, statistics, description. The context and all
 * completions of its cores belong to the group: do not poll, connect, listen or close. */
struct gx *gx_group_gx(struct gx_group *group);
/** gx_group_mem() - Buffer @index of gx_group_opts.bufs. NULL when out of range. */
struct gx_mem *gx_group_mem(struct gx_group *group, unsigned index);
/** gx_group_conn() - The connection to @rank, for gx_conn_info(); NULL: out of range, or oneself.
 */
struct gx_conn *gx_group_conn(struct gx_group *group, unsigned rank);
/** gx_group_error() - Why the group failed, in words; "" while it has not. Any thread. Valid until
 * the group is closed. */
const char *gx_group_error(const struct gx_group *group);
/** gx_group_lost() - The rank by which the group failed. -1: none, or not one alone. Any thread. */
int gx_group_lost(const struct gx_group *group);

/* ---- Collectives ---- */

/** struct gx_coll - The bytes that a collective moves. Read during the post alone. */
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
 * rank. A source that already is at its own place in the destination stays there (in place);
 * otherwise the source must not overlap the destination. [core]
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

/** gx_barrier() - A collective that is done when every rank has posted it. [core] Return: as
 * gx_allgather(). */
int gx_barrier(struct gx_group *group, uint64_t *ticket);

/**
 * gx_leave() - The last collective: done when all before it are done at every rank. This rank can
 * then go without harm to others. [core] Return: as gx_allgather().
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
