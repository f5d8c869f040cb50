/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The local link's own state. local_conn.c (descriptors of a connection) and local_peer.c (processes
 * of peers and mappings of their memory) share it, both on the control thread, with the link's
 * endpoints on the polling cores (link_local.h).
 *
 * The notifications of a connection lie in one memfd that the RECEIVER owns. Behind a page with the
 * header each lane has a part: a line that the receiver writes, then a ring of entries that the
 * sender writes. An entry is new when its sequence word is the number that the receiver expects
 * next.
 */
#ifndef GX_LOCAL_H
#define GX_LOCAL_H

#include "core/core.h"
#include "gx_internal/link.h"
#include "packet/pull.h"

#include <stdatomic.h>

#define LOCAL_MAGIC   0x636c7867u /* "gxlc" */
#define LOCAL_VERSION 2

#define LOCAL_IMMS     256 /* entries of a ring; power of two */
#define LOCAL_REVOKED  UINT64_MAX
#define LOCAL_HDR_PAGE 4096
#define LOCAL_HELD_MAX (4 * GX_REGIONS_MAX)
#define LOCAL_FDS_MAX  GX_LINK_FDS_MAX

/* First page. The receiver writes it; the sender reads revoked before each copy. */
struct local_hdr {
	uint32_t magic, version, nr_lanes;
	/* Address of pull_word in the receiver's process, for peers that read its memory; 0: none
	 * may. */
	uint64_t pull_at;
	uint8_t pull_word[PULL_WORD_B]; /* random */
	/* Bit i: region i of the receiver's HELLO is gone. All bits: the connection is gone. */
	alignas(GX_CACHE_LINE) _Atomic uint64_t revoked;
	/* Pulls: the receiver reads messages that are longer than this out of the sender's process;
	 * 0: none. */
	alignas(GX_CACHE_LINE) _Atomic uint32_t reads;
};

struct local_imm {
	alignas(GX_CACHE_LINE) _Atomic uint32_t seq; /* number of this entry + 1, written last */
	uint64_t token, off, len, imm;
};
_Static_assert(sizeof(struct local_imm) == GX_CACHE_LINE, "one line for each notification");

struct local_ring {
	alignas(LOCAL_HDR_PAGE) _Atomic uint32_t
		done; /* entries consumed in all; the receiver writes it */
	alignas(GX_CACHE_LINE) struct local_imm imm[LOCAL_IMMS];
	/* Copies of the sender's core and GPUs so far, for the receiver's counters: the receiver
	 * sees nothing else of these copies. The sender writes it, and may lie. */
	struct local_made {
		alignas(GX_CACHE_LINE) _Atomic uint64_t puts, gets, bytes;
	} made;
	/* Copies of memory that keys name: the receiver's gx_key_withdraw() waits for them. The
	 * sender writes it, and may lie; see local_key.c. */
	struct local_inside {
		alignas(GX_CACHE_LINE) _Atomic uint32_t core; /* odd: a core is in a copy */
		_Atomic uint32_t begun;			      /* copies by copy engines so far */
		_Atomic uint32_t oldest; /* of these, the first that has not ended; .begun: none */
	} inside;
	/* Pulls: bit of a message's place: the sender has taken its memory back. The sender writes
	 * it. */
	alignas(GX_CACHE_LINE) _Atomic uint64_t taken[GX_WIRE_DONE_WORDS];
};

struct local_rings {
	alignas(LOCAL_HDR_PAGE) struct local_hdr hdr;
	struct local_ring ring[];
};

/* A peer's GPU memory as one of our GPUs sees it. Several GPUs may use one import of a descriptor;
 * a cudaIpc handle serves only the GPU that opened it. */
struct local_view {
	char *addr;	   /* of the region's first byte; NULL: this GPU does not reach it */
	struct gx_gpu *by; /* the GPU that imported it; NULL: another view's import */
};

/* An allocation of a peer that is mapped here, for all connections with that process. owner: ctl */
struct local_mem {
	struct local_mem *next; /* in local_peer.mems */
	unsigned refs;		/* connections */
	/* Identity: two mappings that agree in all of this are one. */
	struct gx_hello_export as; /* as the peer described it */
	uint64_t dev, ino;	   /* memfd: the file. A peer cannot fake it */
	bool writable;		   /* mapped writable */
	/* Place. */
	char *addr;	    /* host memory: start of the mapping; GPU memory: the region's first
			       byte */
	struct gx_gpu *gpu; /* GPU memory: our GPU that copies between it and our host memory. Host
			       memory: our GPU that registered it for copy engines, or NULL */
	bool is_gpu;
	struct local_view view[GX_GPUS_MAX]; /* GPU memory: a view for each of our devices */
	uint8_t place;			     /* see local_place() */
	bool stuck; /* a GPU has not finished with it: it stays until our process ends */
};

/* A process at the other end of connections. owner: ctl */
struct local_peer {
	struct local_peer *next; /* in struct local_ctx */
	pid_t pid;
	uint64_t start; /* start time of the process; 0: not known, so it shares nothing */
	int pidfd;	/* -1: none */
	unsigned nr_conns;
	struct local_mem *mems;
	/* Our memory that it may still write to, see local_lost(); of several connections over
	 * time */
	struct gx_mem *held[LOCAL_HELD_MAX];
	unsigned nr_held;
};

/* A region of the peer in a mapping. owner: ctl; frozen once cores can find it, but .users */
struct local_map {
	uint64_t token;
	uint64_t len;	    /* of the region; 0: this entry is free */
	unsigned access;    /* of the region, GX_ACCESS_* */
	uint64_t bit;	    /* its bit in the peer's word revoked */
	char *addr;	    /* the region's first byte; GPU memory: as gpu sees it */
	struct gx_gpu *gpu; /* as in struct local_mem */
	bool is_gpu;
	/* GPU memory: addr as each of our GPUs sees it, or NULL */
	char *seen[GX_GPUS_MAX];
	uint8_t place;	       /* as in struct local_mem */
	struct local_mem *mem; /* ctl */
	/* Of a key: the peer's word that is .token while the key is good. NULL: a named region */
	const _Atomic uint64_t *live;
	_Atomic uint32_t users; /* cores: operations under way with it, if it is of a key */
	struct local_map *next; /* ctl: in local_conn.old */
	uint32_t drop_seq; /* ctl: there; when all cores are past it, no operation with it begins */
};

/* Mappings for keys, by place in the owner's table. Cores read it while the control thread adds. */
#define LOCAL_KEY_PAGE 64
struct local_key_page {
	struct local_map *_Atomic map[LOCAL_KEY_PAGE];
	uint64_t asked[LOCAL_KEY_PAGE]; /* the last token that the owner was asked for. ctl */
};
struct local_keys {
	struct local_key_page *_Atomic page[GX_KEYS_MAX / LOCAL_KEY_PAGE];
};

/* The owner's look at one lane of the peer, see local_key.c. */
struct local_lane {
	uint64_t past; /* no copy of it is under way that began before this withdrawal */
	uint64_t look; /* the withdrawal that the values below are for; 0: none */
	uint32_t core, begun;
};

/* Tokens of keys that wait for their turn to be asked for. */
struct local_asks {
	uint64_t *token;
	uint32_t head, tail, room; /* free-running; room: a power of two, or 0 */
	uint32_t out;		   /* asked, and not answered yet */
	uint64_t made, again;	   /* tokens so far; of these, asked for once more */
};

/* Local half of a connection. owner: ctl until the lanes are attached, then frozen; the cores own
 * the rings. */
struct local_conn {
	unsigned nr_lanes;
	struct local_rings *rx; /* ours; the peer writes */
	struct local_rings *tx; /* the peer's; we write */
	size_t rings_b;
	int rings_fd;
	int fds[LOCAL_FDS_MAX]; /* to send to the peer; [0] is rings_fd, [1] of our live keys */
	unsigned nr_fds;
	unsigned nr_maps;
	char miss[128];		 /* the first region that is not mapped, and why; "": all are */
	struct local_peer *peer; /* NULL: not known, and nothing is mapped */
	uid_t uid;		 /* the peer's, as this connection was made; -1: not known */
	bool released;		 /* local_release() was called */
	bool shown;		 /* the control thread has sent our descriptors */
	_Atomic bool stuck;	 /* core: a GPU has not finished with a mapping, so it stays */
	struct pull_who pulls;	 /* the peer's process, as this end reads it; .pid 0: it does not */
	struct {
		uint64_t puts, gets, bytes;
	} counted; /* ctl: the peer's copies over all lanes that our counters have */
	struct local_map map[GX_REGIONS_MAX]; /* index: token % GX_REGIONS_MAX */
	/* Keys of the peer. ctl, but what cores read is atomic */
	struct local_keys *_Atomic keys; /* NULL: none was mapped yet */
	const _Atomic uint64_t *live;	 /* [GX_KEYS_MAX], the peer's: tokens that are good */
	struct local_map *old;		 /* of keys that are gone, until no core uses them */
	struct local_asks asks;
	int sock; /* descriptors of keys come and go here; -1: none */
	/* Our keys, as the peer has asked for them. ctl */
	uint64_t *answered; /* bits by place; NULL: none */
	uint64_t want;	    /* the last withdrawal that the peer heard of */
	struct local_lane lane[GX_HELLO_LANES];
	struct gx_mem **shown_mem; /* the memory behind keys for puts */
	unsigned nr_shown_mem;
};

/* Its part of a context. owner: ctl, but .pairs */
struct local_ctx {
	struct local_pairs *pairs; /* who does lone short copies */
	struct local_peer *peers;  /* processes on this host */
	uint64_t pull_ns, copy_ns; /* to read some memory of a process, and to copy it; 0: not timed
				      yet */
	unsigned nr_peer_maps;	   /* mappings of their memory */
	uint64_t stuck_b;	   /* bytes of it that a GPU has not finished with */
	uint64_t held_b;	   /* bytes of our memory that processes hold, see local_lost() */
	/* Our keys that peers have mapped. [GX_KEYS_MAX]: the token, while it is good; peers read it.
	 * NULL: none can be mapped */
	_Atomic uint64_t *live;
	int live_fd;	  /* of it, for reading */
	uint64_t revokes; /* withdrawals of such keys so far */
};

static inline struct local_ctx *local_ctx(const struct gx *gx)
{
	return gx->link[GX_LINK_LOCAL];
}
static inline struct link_local *local_core(const struct gx_core *core)
{
	return core->link[GX_LINK_LOCAL];
}
/* @c takes this link. NULL: local_open() has not made it yet, or it is closed. */
static inline struct local_conn *local_conn_of(const struct gx_conn *c)
{
	return c->link_state;
}

extern const struct gx_link gx_link_local;

/* Place of memory. 0: host; 1 + N: CUDA device N of this process. */
#define LOCAL_PLACES	    (1 + GX_GPUS_MAX)
#define LOCAL_PLACE_UNKNOWN UINT8_MAX

enum local_pair_state { LOCAL_PAIR_NEW, LOCAL_PAIR_TIMED, LOCAL_PAIR_FAILED };

/* Copies from one place to another. owner: ctl until state is no longer NEW, then frozen */
struct local_pair {
	_Atomic bool kernel;	     /* the resident kernel is faster; cores read it */
	_Atomic int state;	     /* enum local_pair_state; read by any */
	uint32_t ce_ns, resident_ns; /* TIMED */
	char why[96];		     /* FAILED */
};

/* [from][to]; of the context */
struct local_pairs {
	struct local_pair pair[LOCAL_PLACES][LOCAL_PLACES];
};

/* local_pair.c; ctl */

uint8_t local_place(int device); /* @device < 0: LOCAL_PLACE_UNKNOWN */
/* Time the pairs of places that @c's mappings add and nobody has timed, some milliseconds each.
 * After half a second it leaves the rest to the next connection. */
void local_pairs_time(struct gx_conn *c);
void local_pair_time(struct gx *gx, const struct local_map *m); /* of one mapping */
/* Pair @i in words, for people. Any thread. A pair whose timing is under way may or may not count
 * as timed. Return: bytes; 0: not timed; -1: there are no more. */
int local_pair_text(const struct gx *gx, unsigned i, char *buf, size_t room);

/* local_map.c; ctl */

/* Any GPU of ours: memory registered with one is registered with all. NULL: none is open. */
struct gx_gpu *local_gpu_any(const struct gx *gx);
/* Map the memory of region @r, by the descriptor @fd, if its export has one. Return: 0; -EOPNOTSUPP: packets
 * carry it; -EPROTO, -ENOMEM, with gx_error(). */
int local_mem_map(struct gx_conn *c, const struct gx_hello_region *r, int fd,
		  struct local_mem **out);
/* @map: bytes [@off, @off + @len) of @r, which lies in @mem. */
void local_map_fill(struct local_map *map, const struct gx_hello_region *r, struct local_mem *mem,
		    uint64_t off, uint64_t len);
/* A descriptor of @mem for a peer that may @access it. Return: it, -errno with gx_error(). */
int local_export_fd(const struct gx_mem *mem, unsigned access);

/* local_key.c; ctl */

int local_keys_open(struct gx *gx); /* the table of our live keys. Return: 0, -errno */
void local_keys_close(struct gx *gx);
/* The peer's table. Takes @fd over. Return: 0, -EPROTO, -ENOMEM with gx_error(). */
int local_key_map(struct local_conn *l, int fd);
/* The peer's key with @token was taken: have it mapped. 0: the owner cannot let peers map it. */
void local_key_ask(struct gx_conn *c, uint64_t token);
void local_keys_gpu(struct gx_conn *c);				       /* a GPU was opened */
int local_key_take(struct gx_conn *c, const uint8_t *b, uint32_t len); /* slot take() */
void local_keys_tick(struct gx_conn *c);    /* end mappings that no core uses any more */
void local_keys_release(struct gx_conn *c); /* no core turns an endpoint of it: end all */
void local_keys_free(struct local_conn *l);
void local_key_revoke(struct gx_mem *part);	/* the key of @part is withdrawn: tell peers */
bool local_key_busy(const struct gx_mem *part); /* may a copy of a peer be under way there? */
void local_keys_hold(struct gx_conn *c);	/* the peer may write to what it was shown */
void local_keys_forget(struct gx *gx, const struct gx_mem *mem); /* it is about to be freed */

/* local_peer.c; ctl */

void local_mem_put(struct gx *gx, struct local_peer *p, struct local_mem *m); /* a user less */
void local_peer_put(struct gx *gx, struct local_peer *p); /* a connection less */
bool local_peer_has_ended(const struct local_peer *p);
void local_hold(struct gx *gx, struct local_peer *p, struct gx_mem *mem); /* it may write to @mem */
void local_held_say(const struct gx_conn *c,
		    unsigned before);  /* if it may write to more than @before */
void local_unheld(struct gx_mem *mem); /* @mem is about to be freed */
/* Find a mapping like @like, and count @c as its user. NULL: the caller must map. */
struct local_mem *local_mem_find(struct gx_conn *c, const struct local_mem *like);
/* Add a mapping that @c uses and others can find. NULL: out of memory; the caller keeps it. */
struct local_mem *local_mem_add(struct gx_conn *c, const struct local_mem *mapped);
void local_mem_unmap(const struct local_mem *m);
void local_part(struct gx_conn *c); /* local_release(), and @c leaves its local_peer */

/* -- the local link's half of a connection: descriptors and mappings; control thread, local_conn.c,
 * local_map.c and local_peer.c -- */

/** local_offered() - NULL, or the reason why this context does not offer the local link. */
const char *local_offered(const struct gx *gx);
/** local_export_fill() - Describe @mem for a HELLO. */
void local_export_fill(const struct gx_mem *mem, struct gx_hello_export *e);
/** local_open() - Make our half for @nr_lanes lanes: rings for the peer's notifications, and
 * descriptors of them and of the regions in c->named. Return: 0, -errno with gx_error(). */
int local_open(struct gx_conn *c, unsigned nr_lanes);
/** local_fds() - Descriptors to send to the peer now, in order; they stay ours. Return: their
 * number. */
unsigned local_fds(struct gx_conn *c, int fds[LOCAL_FDS_MAX]);
/** local_fds_due() - How many descriptors the peer of this HELLO must send. */
unsigned local_fds_due(const struct gx_hello *peer);
/** local_connect() - Map the peer's rings and regions. Takes @fds over. Return: 0, -EPROTO, -ENOMEM
 * with gx_error(). */
int local_connect(struct gx_conn *c, const int fds[], unsigned n);
/** local_pull_offer() - The peer's user is known, and it has not mapped our rings yet: tell it where
 * it may try to read. */
void local_pull_offer(struct gx_conn *c);
/** local_pull_probe() - The peer's rings are mapped, and its process is known: try to read there,
 * and tell the peer whether that works. */
void local_pull_probe(struct gx_conn *c);
/** local_pull_ep() - Tell an endpoint of lane @lane what it may read. */
void local_pull_ep(const struct gx_conn *c, unsigned lane, struct pull *p);
/** local_pull_text() - The way of long messages, for people; once both ends have probed. */
const char *local_pull_text(const struct gx_conn *c);
/** local_pull_over() - The peer reads longer messages out of this process; 0: none. */
uint64_t local_pull_over(const struct gx_conn *c);
/** local_revoke() - Tell the peer not to touch @mem any more (NULL: anything), by the word that it
 * reads before each copy. */
void local_revoke(struct gx_conn *c, const struct gx_mem *mem);
/** local_meet() - The peer's process is at the other end of @sock: find its mappings. Before
 * local_connect(), which otherwise maps for this connection alone. */
void local_meet(struct gx_conn *c, int sock);
/** local_count() - Add the copies that the peer reports to our counters. */
void local_count(struct gx_conn *c);
/** local_release() - No core turns an endpoint of @c any more: unmap memory that no other
 * connection uses. A later post on @c fails before it touches a mapping. Idempotent. */
void local_release(struct gx_conn *c);
/** local_lost() - @c ends, and its peer has not closed its socket. If the process may live, it may
 * be stopped: quarantine our memory that it can write to until it has ended. */
void local_lost(struct gx_conn *c);
/** local_tick() - End the quarantines of processes that have ended. True: one has; memory may wait
 * for it. */
bool local_tick(struct gx *gx);
/** local_mem_gone() - @mem is about to be freed: forget it. */
void local_mem_gone(struct gx_mem *mem);
void local_peers_close(struct gx *gx); /* no connection is left */
void local_close(struct gx_conn *c);   /* accepts a half-open one, or none */

#endif
