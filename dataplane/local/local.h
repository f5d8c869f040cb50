/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The local link's own state, shared by local_map.c (descriptors of a connection) and local_peer.c
 * (peers' processes, and what of theirs is mapped), both on the control thread, and the link's
 * endpoints on the polling cores (link_local.h).
 *
 * Notifications of a connection lie in one memfd that the RECEIVER owns. Behind a page with the
 * header there is a part for each lane: a line that the receiver writes, then a ring of entries
 * that the sender writes. An entry is new when its sequence word is the number expected next.
 */
#ifndef GX_LOCAL_H
#define GX_LOCAL_H

#include "core/core.h"

#include <stdatomic.h>

#define LOCAL_MAGIC   0x636c7867u /* "gxlc" */
#define LOCAL_VERSION 1

#define LOCAL_NOTES    256 /* entries of a ring; power of two */
#define LOCAL_REVOKED  UINT64_MAX
#define LOCAL_HDR_PAGE 4096
#define LOCAL_HELD_MAX (4 * GX_REGIONS_MAX)
#define LOCAL_FDS_MAX  (1 + GX_REGIONS_MAX)

/* First page. The receiver writes it, the sender looks at revoked before each copy. */
struct local_hdr {
	uint32_t magic, version, nr_lanes;
	/* Bit i: region i of the receiver's HELLO is gone. All bits: the connection is. */
	alignas(GX_CACHE_LINE) _Atomic uint64_t revoked;
};

struct local_note {
	alignas(GX_CACHE_LINE) _Atomic uint32_t seq; /* number of this entry + 1, written last */
	uint64_t token, off, len, imm;
};
_Static_assert(sizeof(struct local_note) == GX_CACHE_LINE, "one line for each notification");

struct local_ring {
	alignas(LOCAL_HDR_PAGE) _Atomic uint32_t
		done; /* entries consumed in all; by the receiver */
	alignas(GX_CACHE_LINE) struct local_note note[LOCAL_NOTES];
	/* What the sender copied so far, by itself and by GPUs: for the receiver's counters, which
	 * see nothing of it otherwise. The sender writes; it may lie. */
	struct local_made {
		alignas(GX_CACHE_LINE) _Atomic uint64_t puts, gets, bytes;
	} made;
};

struct local_rings {
	alignas(LOCAL_HDR_PAGE) struct local_hdr hdr;
	struct local_ring ring[];
};

/* A peer's GPU memory as one of our GPUs has it: an import by descriptor may serve several, cudaIpc
 * is good for the GPU that opened it alone. */
struct local_view {
	char *addr;	   /* of the region's first byte; NULL: this GPU does not reach it */
	struct gx_gpu *by; /* who imported it; NULL: it is another view's import */
};

/* An allocation of a peer's that is mapped here, for all connections with that process. owner: ctl
 */
struct local_mem {
	struct local_mem *next; /* in its peer's */
	unsigned refs;		/* connections */
	/* What it is. Two that agree in all of this are one. */
	struct gx_hello_export as; /* as the peer named it */
	uint64_t dev, ino;	   /* memfd: the file, which no lie makes another's */
	bool writable;		   /* is mapped so */
	/* Where it is. */
	char *addr;	    /* host: of the mapping; memory of a GPU: of the region's first byte */
	struct gx_gpu *gpu; /* memory of a GPU: ours that copies between it and our host memory;
			       host memory: ours that it is registered with, so that copy engines
			       reach it; or NULL */
	bool is_gpu;
	struct local_view view[GX_GPUS_MAX]; /* memory of a GPU: of each device of ours */
	uint8_t place;			     /* see local_place() */
	bool stuck; /* a GPU has not finished with it: it stays until the process ends */
};

/* A process at the other end of connections. owner: ctl */
struct local_peer {
	struct local_peer *next; /* in gx->peers */
	pid_t pid;
	uint64_t start; /* of the process; 0: it cannot be told from others, and shares nothing */
	int pidfd;	/* -1: none */
	unsigned nr_conns;
	struct local_mem *mems;
	/* Ours that it may still write to, see local_lost(); of several connections over time. */
	struct gx_mem *held[LOCAL_HELD_MAX];
	unsigned nr_held;
};

/* A region of the peer's, in what is mapped. */
struct local_map {
	uint64_t token;
	uint64_t len;	    /* of the region; 0: this entry is free */
	unsigned access;    /* GX_ACCESS_*: what is mapped so */
	uint64_t bit;	    /* of it in the peer's word revoked */
	char *addr;	    /* of the region's first byte; memory of a GPU: as gpu has it */
	struct gx_gpu *gpu; /* as in struct local_mem */
	bool is_gpu;
	/* memory of a GPU: addr as each of our GPUs has it, or NULL */
	char *seen[GX_GPUS_MAX];
	uint8_t place;	       /* as in struct local_mem */
	struct local_mem *mem; /* ctl */
};

/* One connection's. owner: ctl until the lanes are attached, then frozen; rings are the cores'. */
struct local_conn {
	unsigned nr_lanes;
	struct local_rings *rx; /* ours, the peer writes */
	struct local_rings *tx; /* the peer's, we write */
	size_t rings_b;
	int rings_fd;
	int fds[LOCAL_FDS_MAX]; /* to send; [0] is rings_fd */
	unsigned nr_fds;
	unsigned nr_maps;
	struct local_peer *peer; /* NULL: not known, and nothing is mapped */
	bool released;		 /* local_release() was called */
	bool shown;		 /* our descriptors went out */
	_Atomic bool stuck;	 /* core: a GPU has not finished with a mapping: it stays */
	struct {
		uint64_t puts, gets, bytes;
	} told; /* ctl: of the peer's, all lanes, what is in the counters */
	struct local_map map[GX_REGIONS_MAX]; /* at index token % GX_REGIONS_MAX */
};

/* Where memory lies: 0: the host's; 1 + N: CUDA device N of this process. */
#define LOCAL_PLACES	    (1 + GX_GPUS_MAX)
#define LOCAL_PLACE_UNKNOWN UINT8_MAX

enum local_pair_state { LOCAL_PAIR_NEW, LOCAL_PAIR_TIMED, LOCAL_PAIR_FAILED };

/* Copies from one place to another. owner: ctl until state is no longer NEW, then frozen */
struct local_pair {
	_Atomic bool kernel;	     /* cores read it: the resident kernel is faster */
	_Atomic int state;	     /* enum local_pair_state; read by any */
	uint32_t ce_ns, resident_ns; /* TIMED */
	char why[96];		     /* FAILED */
};

/* [from][to]; of the context */
struct local_pairs {
	struct local_pair pair[LOCAL_PLACES][LOCAL_PLACES];
};

/* local_pair.c; ctl */

uint8_t local_place(int device); /* < 0: not known */
/* Time what @c's mappings make possible and nobody has timed yet: some milliseconds each; what half
 * a second is not enough for is left to the next connection. */
void local_pairs_time(struct gx_conn *c);
/* Pair @i in words, for people. Return: bytes, 0: not timed; -1: there are no more. Any thread:
 * what is being timed is not there yet, or is. */
int local_pair_text(const struct gx *gx, unsigned i, char *buf, size_t room);

/* local_peer.c; ctl */

/* What is mapped like @like already, counted for @c. NULL: it must be mapped. */
struct local_mem *local_mem_find(struct gx_conn *c, const struct local_mem *like);
/* It is now: for @c, and for others to find. NULL: out of memory; it stays the caller's. */
struct local_mem *local_mem_add(struct gx_conn *c, const struct local_mem *mapped);
void local_mem_unmap(const struct local_mem *m);
void local_part(struct gx_conn *c); /* local_release(), and @c is no longer one of its peer's */

/* link_local.c; ctl */
int link_local_open(struct gx_core *core, struct link_local **out);
void link_local_close(struct link_local *l);
/* Before the cores run: from now on @gpu's copy engines serve puts and gets. */
int link_local_gpu(struct link_local *l, struct gx_gpu *gpu);
bool link_local_poll(void *link, uint64_t now_ns); /* the poller */
bool link_local_asleep(const void *link);
void link_local_drop(void *link, struct drop *d); /* end what is done with dead memory */

/* -- the local link's half of a connection: descriptors and mappings; control thread, local_map.c and
 * local_peer.c -- */

/** local_offered() - NULL, or why this context does not offer the local link. */
const char *local_offered(const struct gx *gx);
/** local_export_fill() - What a HELLO says of @mem. */
void local_export_fill(const struct gx_mem *mem, struct gx_hello_export *e);
/** local_open() - Our half for @nr_lanes lanes: the rings that the peer's notifications come in,
 * and descriptors of them and of the regions in c->told. Return: 0, -errno with gx_error(). */
int local_open(struct gx_conn *c, unsigned nr_lanes);
/** local_fds() - What the peer gets now, in its order; they stay ours. Return: how many. */
unsigned local_fds(struct gx_conn *c, int fds[LOCAL_FDS_MAX]);
/** local_fds_due() - How many the peer of this HELLO has to send. */
unsigned local_fds_due(const struct gx_hello *peer);
/** local_connect() - Map the peer's. Takes @fds over. Return: 0, -EPROTO, -ENOMEM with gx_error().
 */
int local_connect(struct gx_conn *c, const int fds[], unsigned n);
/** local_nr_maps() - How many of the peer's regions are mapped. */
unsigned local_nr_maps(const struct gx_conn *c);
/** local_revoke() - The peer must not touch @mem any more (NULL: anything): a word that it looks at
 * says so. */
void local_revoke(struct gx_conn *c, const struct gx_mem *mem);
/** local_meet() - @sock's other end is the process of the peer: what is mapped of it already is
 * found. Before local_connect(), which maps for this connection alone without it. */
void local_meet(struct gx_conn *c, int sock);
/** local_count() - Bring what the peer says it copied over the local link into our counters. */
void local_count(struct gx_conn *c);
/** local_release() - No core turns an endpoint of @c any more: unmap what no other connection uses.
 * Posting on what is left of it fails before a mapping is touched. Idempotent. */
void local_release(struct gx_conn *c);
/** local_lost() - @c ends and its peer has not taken its leave. If the process lives it may be
 * stopped: what it may write to of ours is quarantined until it has ended. */
void local_lost(struct gx_conn *c);
/** local_tick() - True: a quarantine has ended; memory may be waiting for it. */
bool local_tick(struct gx *gx);
/** local_mem_gone() - @mem is about to be freed. */
void local_mem_gone(struct gx_mem *mem);
void local_peers_close(struct gx *gx); /* no connection is left */
void local_close(struct gx_conn *c);   /* of a half-open one, or of none, too */

#endif
