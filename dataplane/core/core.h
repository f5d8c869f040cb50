/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data plane's own objects: the context, its cores, connections and their endpoints. Private to
 * dataplane/. Fields name their owner. "ctl" is the control thread (or the thread inside gx_open
 * and gx_close, when no other runs). "core" is the thread that turns that core. "frozen" means that
 * nobody writes the field after set-up.
 */
#ifndef GX_CORE_H
#define GX_CORE_H

#include "core/help.h"
#include "core/opts.h"
#include "gx/gx.h"
#include "gx_internal/gpu.h"
#include "gx_internal/loop.h"
#include "gx_internal/mem.h"
#include "gx_internal/port.h"
#include "gx_internal/uring.h"
#include "gx_internal/wire.h"

#include <errno.h>
#include <pthread.h>

#define GX_CORES_MAX   GX_HELLO_LANES
#define GX_GPUS_MAX    16
#define GX_REGIONS_MAX GX_HELLO_REGIONS /* named ones; they are the first in gx->region[] */
#define GX_KEYS_MAX    65536 /* of gx->region[]: named ones, then those of gx_mem_key() */
#define GX_OPTION_MAX  256   /* bytes of a port's option, with the final 0 */
#define GX_COMPS_MAX   8192  /* completions a core can hold; see core_post_room() */

struct auth_key;
struct auth_set;
struct ctl;
struct ctl_conn;
struct sub_req;
struct submit_core;
struct gx_link;
struct gx_ep_ops;
struct gx_socks;
struct gx_text;
struct auth_secret;
struct auth_dir;
struct note_in;
struct notes;

/* Registered memory, or a part of it that a key names (.whole): that has the memory's address and
 * devices, and a life of its own. owner: ctl until shared; frozen afterwards. */
struct gx_mem {
	struct gx *gx;
	char *addr;
	uint64_t len;
	enum gx_mem_kind kind;
	int device;
	struct gx_gpu *gpu; /* executes copies into it; host memory: the CPU backend */
	bool own;	    /* gx_mem_alloc() made it */
	bool read_only;	    /* memory of gx_mem_reg() that this process may not write */
	bool huge;
	const char *normal_why; /* words: why gx_mem_alloc() did not get huge pages; NULL: it did */
	bool sealed; /* ctl: host memory: gx_memfd_freeze() was called, so peers may have .fd */
	int fd; /* for peers on this host. Host memory: the memfd that backs all of it; GPU memory:
		   share.fd of a named region. -1: none is kept */
	struct gx_gpu_handle share; /* GPU memory, shared: its name for peers on this host */
	struct gx_gpu *_Atomic dma; /* host memory: the GPU that registered it for the copy engines
				       of all GPUs; NULL: none. Written by ctl, read by cores */
	uint64_t id;		    /* of the allocation, see struct gx_hello_export; gx never gives
				       an id twice */
	uint16_t place;		    /* in gx_core.uses, by .id; frozen */
	/* What each link keeps with it, as a registration with a device; NULL: nothing. Written by
	 * ctl, read by cores */
	void *_Atomic link[GX_LINKS];
	bool shared;
	char name[GX_NAME_MAX];
	unsigned access;
	/* Place in gx->region[] of the named region that this is, or is a part of, plus 1; 0: none. ctl
	 * writes it (release), cores read it (acquire) */
	_Atomic uint8_t named;
	uint64_t token;	      /* index in gx->region[] | random high bits; see core_token() */
	uint64_t only;	      /* gx_conn.id of the one connection that may use it; 0: all may */
	uint64_t until_ns;    /* at which its lease ends; 0: none */
	struct gx_mem *whole; /* the memory that this is a part of; NULL: no part */
	struct gx_mem *parts; /* ctl: its parts that keys name */
	unsigned nr_parts;    /* ctl: these, and such as were withdrawn and are still in use */
	struct gx_mem *next, **at; /* in gx->mems, gx->dying, gx->graves or parts of .whole; what
				      points to it there. owner: ctl */
	_Atomic bool dead; /* ctl: the user freed it, so no operation with it begins. Read by any */
	_Atomic bool gone; /* ctl: nothing of gx touches it any more. Read by any */
	_Atomic bool owed; /* gx_mem_free() told -EAGAIN: the next call has an answer to give */
	uint32_t drop_seq; /* value of gx->drops when the user freed it; written before dead */
	unsigned
		nr_held; /* ctl: processes that may still write to it, as they may be stopped, see its link */
};

/* Does a descriptor on the Unix socket go with an export of this enum gx_export_kind? */
static inline bool export_is_fd(uint8_t kind)
{
	return kind == GX_EXPORT_MEMFD || kind == GX_EXPORT_VMM || kind == GX_EXPORT_CHUNKS;
}

/* Did the user free it? NULL: no. */
static inline bool mem_is_dead(const struct gx_mem *mem)
{
	return mem && atomic_load_explicit(&mem->dead, memory_order_relaxed);
}

/* Do GPUs read and write this host memory in place? */
static inline bool mem_is_mapped(const struct gx_mem *mem)
{
	return atomic_load_explicit(&mem->dma, memory_order_acquire) != NULL;
}

/* Memories by their place in gx_core.uses: bit place % 256. Others may have the same bit. */
struct mem_names {
	uint64_t bits[4];
};

/* A pass of a core over what it has under way: values of gx->drops. It may take several turns. */
struct drop {
	uint32_t want;	/* gx->drops when the pass began */
	uint32_t first; /* first value that is new to the core; want + 1: none */
	uint32_t upto;	/* the core holds nothing that died up to here */
	bool alone; /* the thread that frees does the core's part: no turn sends or takes packets */
	bool parts; /* all that died are parts, which no operation of this process names */
	bool unused; /* no operation on packets or tcp, and no message that comes in, refers to what
			died. Others are not counted, as few can be under way: their links walk them */
	bool again;  /* not the first turn of the pass */
	bool more;   /* out: there are endpoints to look at in the next turn */
	struct mem_names died;
};
#define DROP_EPS 4 /* endpoints with something under way that a link looks at in a turn */
static inline void drop_hold_seq(struct drop *d, uint32_t seq)
{
	if ((int32_t)(d->upto - seq) >= 0)
		d->upto = seq - 1;
}
static inline void drop_hold(struct drop *d, const struct gx_mem *mem)
{
	drop_hold_seq(d, mem->drop_seq);
}

/* A part of a core that may refer to dead memory. fn() ends the operations there. It calls
 * drop_hold() for memory that it cannot let go of yet, and has nothing to walk if drop.unused. */
struct core_dropper {
	void (*fn)(void *arg, struct drop *d);
	void *arg;
};
#define CORE_DROPPERS_MAX (1 + GX_HELLO_PORTS + GX_LINKS) /* submit, each port, each link */
#define CORE_USES	  16384 /* places of gx_core.uses; memory takes them by its id */
#define CORE_DIED	  256	/* of gx.died: what the last so many drops were for */

/* How long the thread that turns a core waits for a CPU, by the kernel's count. owner: ctl */
struct core_wait {
	int tid;	   /* that thread, at the last look */
	uint64_t total_ns; /* its count then; 0: the kernel does not say */
	uint64_t look_ns;  /* time of the last look */
	uint64_t stalls;   /* of the core, then */
	uint64_t turns;	   /* the same */
	uint64_t stall_ns; /* what it waited in the last stall, and up to a look before */
	unsigned crowded;  /* looks in a row in which others had its CPU for long */
};

/* One core. owner: core, unless a field says otherwise. */
struct gx_core {
	struct gx *gx;
	unsigned index;
	struct gx_loop loop;
	void *link[GX_LINKS];  /* frozen: this core's part of each link; NULL: none */
	struct gx_comp *comps; /* ring of GX_COMPS_MAX; .note stays NULL but in those of notes */
	uint32_t comp_head;
	_Atomic uint32_t
		comp_tail;  /* ctl reads it: have the completions of a dead ep been taken? */
	uint32_t comps_due; /* completions that operations under way may still produce */
	uint64_t now_ns;    /* time of this turn */
	struct submit_core *submit; /* submit.c's part */
	struct {
		struct note_in *head, **end; /* given to the program, and not given back */
		uint32_t odd;		/* how many; and places of .comps that such ones left */
		uint32_t taken;		/* of .head, by the last gx_poll() */
		struct notes *turn;	/* those that a turn looks after */
		struct note_sink *sink; /* of a queue that takes them; NULL: none */
		struct note_in *back;	/* that another queue had: given again, first */
		bool polled;		/* their poller is in the loop */
	} notes;
	struct help_board help; /* slices of copies that other threads may do */
	uint64_t stalls_seen;	/* ctl: stalls that core_watch() has seen */
	uint64_t stall_said_ns; /* ctl: time of the last warning */
	struct core_wait wait;	/* ctl */
	uint64_t pin_ns;	/* ctl: time of the last look at the CPUs of its thread */
	bool unpinned;		/* ctl: it is told that it has others than its own */
	bool crowd_said;	/* ctl: the log has said that others have its CPU, too */
	/* See drop.c. */
	struct core_dropper dropper[CORE_DROPPERS_MAX]; /* frozen; asked in this order */
	unsigned nr_droppers;
	_Atomic uint32_t dropped; /* nothing on this core refers to memory that died up to this
				     value of gx->drops. Read by any */
	uint32_t drop_seen;	  /* gx->drops when the core last looked */
	uint32_t drop_own;	  /* up to where its own thread was, which alone knows new lanes;
				     not gx->drops: a turn has a pass to make */
	struct drop drop;	  /* the last pass */
	/* Operations, and messages that come in, by memory; [0]: of none. */
	uint32_t uses[1 + CORE_USES];
	_Atomic uintptr_t turner; /* core_self() of the thread that turns it, or CORE_* */
	_Atomic int turner_tid;	  /* of that thread */
	struct gx_call drop_call; /* ctl -> core: run core_drop() */
	_Atomic bool drop_asked;  /* drop_call is on its way */
	struct gx_call gpu_call;  /* ctl -> core: take the GPUs of gx->gpus */
	_Atomic bool gpu_asked;	  /* gpu_call is on its way */
	_Atomic uint32_t gpus;	  /* those that it has taken: bits. Read by any */
	int fd, timer; /* gx_core_fd(): epoll, and a timer in it; with .loop.sleep open */
};

/* What a peer may do by the key that it has shown (auth/). owner: ctl until our HELLO; then frozen, but
 * .regions */
struct core_rights {
	bool limited;		  /* else all that follows holds nothing back */
	unsigned access;	  /* GX_ACCESS_PUT, GX_ACCESS_GET */
	bool some;		  /* only regions with a bit in .regions, and parts of them */
	_Atomic uint64_t regions; /* ctl writes it, before such a region can be found */
	uint64_t lane_b; /* ctl: payload that may be under way to here on a lane; 0: no limit */
};

/* One end of a lane. The link embeds it in its own struct. */
struct gx_ep {
	struct gx_conn *conn;
	struct gx_core *core;
	const struct gx_ep_ops *ops;
	unsigned lane;
	unsigned access; /* what core_region() need not ask core_may() about; frozen */
	unsigned port;	 /* index in gx->port[]; frozen */
	/* Packets that may be under way to here by the key of the peer, plus 1; 0: no limit. ctl writes it */
	_Atomic uint32_t credit_max;
	struct gx_call attach, fail;   /* ctl -> core */
	bool want_attach, want_fail;   /* ctl: ask again, the core's inbox was full */
	int fail_err;		       /* ctl writes it before it sends fail */
	uint32_t comp_mark;	       /* core: comp_head when it detached */
	bool failed;		       /* core: call_fail() ran */
	uint32_t stuck_turn;	       /* core: turn of submit.c in which its link had no room */
	uint32_t list_puts, list_gets; /* core: parts of lists that its link has */
	uint32_t nr_waits;	       /* core: of its operations, that wait for a stream */
	struct list_own *lists;	       /* core: what its lists use before they take of the core's */
	_Atomic uint32_t list_runs;    /* core: in its list; .detached waits for them */
	struct notes *notes;	       /* core: see list/note.h */
	struct gx_mem *notes_mem;      /* CORE_TOKEN_NOTES; NULL: no notes */
	struct maps *maps;	       /* core: see list/map.h */
	struct gx_mem *maps_mem;       /* CORE_TOKEN_MAPS; NULL: it takes no views */
	uint32_t maps_busy;	       /* core: bit i: a message reads place i of that */
	struct sub_req *pend_head, *pend_tail; /* core: requests that wait for room in the link */
	struct gx_ep *pend_next;	       /* core: next endpoint with such requests */
	_Atomic int fault; /* core: 0 or -errno; ctl polls it (peer time-out, protocol error) */
	_Atomic uint32_t quantum_b; /* core: quantum of what it sends; shrinks if the path narrows;
				       0: its link has none */
	uint32_t quantum_said;	    /* ctl: quantum_b that gx last reported */
	_Atomic uint32_t denied;    /* core: operations of the peer that had no right to a region */
	uint32_t denied_said;	    /* ctl: how many of these gx has reported */
	_Atomic bool attached;	    /* core: it turns this ep */
	_Atomic bool detached;	    /* core: nothing refers to the ep any more: ctl may free it */
	const char *fault_why;	    /* core, before fault: its reason, a static text; NULL: fault
				       says all */
	bool fault_tx;		    /* core, before fault: that is about sending */
};

/* Packets that the peer may have under way to here, by its key. */
static inline uint32_t core_credit_max(const struct gx_ep *ep)
{
	return atomic_load_explicit(&ep->credit_max, memory_order_relaxed) - 1u;
}

/* A connection. owner: ctl, unless a field says otherwise. */
struct gx_conn {
	struct gx *gx;
	uint64_t id;	      /* from 1 on; a context never gives one twice */
	struct gx_conn *next; /* in gx->conns */
	struct ctl_conn *ctl; /* ctl.c's half: socket, frames, timers */
	_Atomic int state;    /* enum gx_conn_state; read by any */
	int err;
	enum gx_reason reason; /* of .text */
	char text[256];
	bool server;	  /* accepted, not connected */
	bool user_closed; /* gx_conn_close() was called */
	bool reported_up;
	bool asked;	   /* on_conn was told GX_CONN_EVENT_ASKED, and has not refused it. ctl */
	bool asking;	   /* it is being told. ctl */
	bool refused;	   /* in that callback; .text has the words. ctl */
	unsigned port;	   /* index in gx->port[] */
	unsigned nr_ports; /* several ports, which lanes take in turn; 0: .port alone */
	uint8_t ports[GX_HELLO_PORTS]; /* [nr_ports]: these, .port first */
	const struct gx_link *link;    /* frozen before the first lane is opened */
	bool link_open;		       /* its open() was called */
	bool on_cores;		       /* its endpoints were given to their cores. ctl */
	bool trying; /* they try their ways before it is up. Frozen before they are given. ctl */
	void *link_state; /* its part of the connection; NULL: none, or not yet */
	/* Sends to the link's take() of the peer; frozen. ctl */
	void (*link_say)(struct gx_conn *c, const uint8_t *b, uint32_t len);
	/* The first secret of one direction of its data, out of the bootstrap's TLS: 0, -errno. Set
	 * before the lanes are opened; NULL: it has no keys. ctl */
	int (*secret)(const struct gx_conn *c, const struct auth_dir *dir, struct auth_secret *out);
	struct gx_socks *socks; /* data sockets that the link wants; NULL: none. ctl */
	bool maps;		/* the peer maps our memory */
	struct gx_mem *named[GX_REGIONS_MAX]; /* our regions in the order of our HELLO; NULL: it
						was freed */
	unsigned nr_named;
	uint64_t named_fds; /* bit i: our HELLO promised a descriptor for named[i] */
	unsigned first_core;
	unsigned nr_lanes;
	struct gx_ep *ep[GX_HELLO_LANES]; /* frozen while up */
	struct gx_hello peer;		  /* frozen once received */
	struct gx_hello_lanes
		agreed; /* quantum, chunk, window, integrity, time-out; frozen once up */
	uint8_t crc_by_copy, peer_crc_by_copy; /* of struct gx_hello_lanes; frozen once up */
	char peer_name[128];
	struct auth_key *key;	   /* that the client has shown; ctl holds it. NULL: none */
	char auth[32];		   /* its name; frozen before it is UP */
	struct core_rights rights; /* of the peer */
	int peer_pool;		   /* device of the peer's bounce pool; -1: host memory. ctl */
	bool same_host;		   /* the peer's host id equals ours; set by ctl_hello.c */
	char why[256];		   /* why the connection takes this path */
	enum gx_reason path_reason;
	void *_Atomic user; /* any thread sets and reads it */
	/* Of gx_listen_with(), that accepted it; NULL: none, or closed. ctl writes it */
	struct gx_listener *_Atomic listener;
	_Atomic bool key_missed; /* .why says that packets serve a key. ctl writes, any reads */
};

struct gx_port_slot {
	char name[GX_OPTION_MAX]; /* the port's option: "shm", "dpdk:net_memif,..." */
	char device[GX_NAME_MAX]; /* name up to the first comma */
	char match[GX_NAME_MAX];  /* must be equal at both ends */
	struct gx_port *port;
	struct gx_port_queue *queue[GX_CORES_MAX];
};

#define CORE_SILENCE_MIN_NS 1000000ull /* of gx_opts.peer_timeout_ns */
#define CORE_SILENCE_MAX_NS 3600000000000ull

#define CORE_SIZES 14 /* up to 64 B, by fours to 1 GiB, and more */
#define CORE_TIMES 20 /* up to 1 us, 2, 5, 10 and so on to 1 s, and more */

/* Operations of queues, by size and by time from the post to the completion. owner: the thread of the
 * queue. Read by any */
struct core_hist {
	_Atomic uint64_t size[CORE_SIZES], size_b;  /* that ended well; size_b: their bytes */
	_Atomic uint64_t time[CORE_TIMES], time_ns; /* one of CORE_TIMED, also such as failed */
};
#define CORE_TIMED 16

/* Up to which time: 1000, 2000, 5000, 10000 ns and so on. */
static inline uint64_t core_hist_time_ns(unsigned i)
{
	static const uint16_t lead[] = {1, 2, 5};
	uint64_t ns = 1000;

	for (unsigned k = i / 3; k; k--)
		ns *= 10;
	return ns * lead[i % 3];
}

struct gx {
	struct gx_opts opts; /* frozen; defaults filled in, and no group is NULL */
	struct core_groups
		groups; /* of .opts; frozen. The links read texts of the user in gx_open()
				      alone */
	int cpus[GX_CORES_MAX];
	cpu_set_t may; /* CPUs that this process may use */
	unsigned uids[32];
	char instance[32]; /* "gx-PID-RANDOM" */
	struct gx_arena *arena;
	struct gx_arena *pool;	 /* for payload slots in memory of pool_gpu; NULL: host memory */
	struct gx_gpu *pool_gpu; /* frozen */
	void *pool_page;	 /* first page of the pool: other GPUs must reach it */
	struct gx_uring *uring;
	void *link[GX_LINKS]; /* each link's part of the context; NULL: none */
	bool maps;	      /* frozen: a link has peers on this host map our memory */
	struct gx_gpu *host;  /* CPU backend */
	struct gx_gpu
		*gpu[GX_GPUS_MAX]; /* CUDA, by ordinal, opened when first needed; owner: ctl */
	int gpu_ret[GX_GPUS_MAX];  /* 0: that GPU is ready; -errno: it failed, for good */
	_Atomic uint32_t gpus;	   /* those that cores may take: bits. ctl writes (release), cores
				      read */
	struct gx_gpu_cfg gpu_cfg;
	unsigned nr_cores;
	struct gx_core *core[GX_CORES_MAX];
	unsigned nr_ports;
	struct gx_port_slot port[GX_HELLO_PORTS];
	struct gx_mem *_Atomic *region; /* [GX_KEYS_MAX]; ctl writes it (release), cores read it
					   (acquire) */
	_Atomic uint32_t region_top;	/* entries from here on were never used; as region */
	unsigned nr_keys, key_last;	/* owner: ctl; parts in region; the place of the last one */
	uint64_t id;			/* frozen; random, the owner in keys */
	struct gx_conn *conns;		/* owner: ctl */
	uint64_t conn_ids;		/* owner: ctl; id of the last connection */
	struct gx_mem *mems;		/* owner: ctl; no parts, and none that was freed */
	struct gx_mem *dying;		/* owner: ctl; freed, and still in use. A whole waits for
					   its parts (.nr_parts) */
	struct gx_mem *graves, **graves_tail; /* owner: ctl; freed handles, oldest first: gx sees
						 when the user uses one again */
	unsigned nr_graves;		      /* owner: ctl */
	_Atomic uint32_t drops; /* counts drops, see drop.c: ctl writes (release), cores read */
	_Atomic uint32_t died[CORE_DIED]; /* of drop i at i % CORE_DIED. As drops */
	struct gx_queue *submits;	  /* owner: ctl */
	struct gx_queue *notify;	  /* owner: ctl; the one that takes notes */
	uint64_t mem_ids; /* owner: ctl; id of the last allocation. Starts at random, so that no
			     other context of the process gives the same id */
	bool turns_said;  /* owner: ctl; gx has warned that two processes use a GPU in turns */
	bool closing;	  /* ctl: gx_close() runs, so dead connections go at once */
	struct ctl *ctl;
	struct auth_set *auth;	   /* its keys; NULL: none. Frozen */
	struct gx_stats ctl_stats; /* written by ctl */
	struct core_hist ended;	   /* of queues that are closed; written by ctl */
	struct core_copier {	   /* for gx_mem_copy_in() and gx_mem_copy_out(), see mem_copy.c */
		pthread_mutex_t lock;
		struct gx_gpu_stream *stream; /* NULL: none yet */
		uint32_t *flag, seq;
	} copier[GX_GPUS_MAX];
	pthread_mutex_t wait_lock; /* for gx_conn_wait(): changes of state broadcast under it */
	pthread_cond_t wait_cond;
};

/* The CPU backend of contexts opened after this: tests have one that finishes late. */
extern const struct gx_gpu_ops *ctx_host;

/* -- errors in words: one text a thread; core.c -- */

#define CORE_TEXT_MAX 512 /* bytes of gx_error() */
#define CORE_WHY_MAX  256 /* bytes of gx_conn_info.why */

int gx_fail(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* returns @err */
/* The same for the end of a connection. core_reason() is the reason of this thread's gx_error(). */
int gx_refuse(enum gx_reason reason, int err, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
enum gx_reason core_reason(void);

/* gx_struct_take() and gx_struct_give(), with gx_error(). */
int core_struct_take(const char *name, void *own, size_t own_b, const void *user);
int core_struct_give(const char *name, const void *own, size_t own_b, void *user);

/** op_check() - Is this operation well formed? Any thread. Return: 0; OP_IS_RUN: one for
 * submit/, with a note, or a list, whose segments list_take() checks; -EINVAL, -EFAULT with
 * gx_error(). */
#define OP_IS_RUN 1
int op_check(const struct gx_op *op);

#define CORE_ACCESS	 ((unsigned)(GX_ACCESS_PUT | GX_ACCESS_GET))
#define CORE_TOKEN_INDEX 0xffffu
#define CORE_TOKEN_NOTES                                                                           \
	0x3fffffffffffffffull /* memory of the endpoint for notes, see list/note.h */
#define CORE_TOKEN_MAPS 0x3ffffffffffffffeull /* likewise for views, see list/map.h */
#define CORE_MAPS	16
#define CORE_MAP_REC_B	128
#define CORE_MAP_B	(CORE_MAP_REC_B + 4u * GX_VIEW_ROWS_MAX) /* of each place there */
#define CORE_TOKEN_HIDDEN                                                                          \
	(1ull << 63) /* links local, verbs: in the token of an immediate: hidden */
/* In gx_op.flags, of gx itself. */
#define OP_HIDDEN (1u << 16) /* .imm is for core_note() */
#define OP_MANY	  (1u << 17) /* it is one of many, which begin one after the other */
#define OP_VIEW	  (1u << 18) /* .list has the view of its source: for join() alone */
#define OP_VIEWS  (1u << 19) /* .list has the views of both ends: for post(), see link.h */

/** core_token() - A token: the place in gx->region[], whether it is memory of a GPU, and 46 random
 * bits that keep guesses and former owners of that place out. Bit 63 is the links', for slots. */
#define CORE_TOKEN_GPU (1ull << 62)
static inline uint64_t core_token(uint32_t at, enum gx_mem_kind kind, uint64_t random)
{
	return (random & 0x3fffffffffff0000ull) | (kind == GX_MEM_HOST ? 0 : CORE_TOKEN_GPU) | at;
}

/** core_token_map() - The token of a message that place @i of CORE_TOKEN_MAPS says the places of. As for
 * memory of a GPU, its bytes come in packets alone. */
#define CORE_MAP_INDEX 0xfu
#define CORE_MAP_MARK  0x7fff00000000ff00ull
static inline uint64_t core_token_map(unsigned i, uint32_t gen)
{
	return CORE_MAP_MARK | (uint64_t)gen << 16 | i;
}
static inline bool core_token_is_map(uint64_t token)
{
	return (token & 0xffff00000000fff0ull) == CORE_MAP_MARK;
}
static inline uint32_t core_map_gen(uint64_t token)
{
	return (uint32_t)(token >> 16);
}

/** core_token_hide() - CORE_TOKEN_HIDDEN, if the operation's immediate is. */
static inline uint64_t core_token_hide(uint64_t token, uint32_t op_flags)
{
	return token | (uint64_t)(op_flags & OP_HIDDEN) << 47;
}

/** core_region_at() - The region with this token; NULL: there is none, any more. */
static inline struct gx_mem *core_region_at(const struct gx *gx, uint64_t token)
{
	/* Pairs with the release in region_publish(). */
	struct gx_mem *mem =
		atomic_load_explicit(&gx->region[token & CORE_TOKEN_INDEX], memory_order_acquire);

	return mem && mem->token == token ? mem : NULL;
}

/** core_rights() - What the peer of @c may do to @mem by its key: GX_ACCESS_PUT, GX_ACCESS_GET. Whether
 * @mem lets anybody is another question; core_may() asks both, of all bits in @access. Any thread. */
unsigned core_rights(const struct gx_conn *c, const struct gx_mem *mem);
bool core_may(const struct gx_conn *c, const struct gx_mem *mem, unsigned access);

/** core_is_runnable() - Does the thread that turns @core run, or wait for a CPU? Any thread. */
bool core_is_runnable(const struct gx_core *core);
/** core_denied() - Count that the peer has no right to what it asked for. */
void core_denied(struct gx_ep *ep);

/** core_region() - Check a region that the peer of @ep names. Is there one with this token, may that
 * peer do @access to it now, and is [@off, @off + @len) inside? core_region_ask() is for all that is not
 * plain, so that most messages pay for no more. Return: 0, -ENOENT, -ESTALE, -EACCES, -ERANGE; -EBUSY:
 * a message reads this map; -EXDEV: it is a message with a view, see map_open(). */
int core_region_ask(struct gx_ep *ep, uint64_t token, unsigned access, uint64_t off, uint64_t len,
		    struct gx_mem **out);
static inline int core_region(struct gx_ep *ep, uint64_t token, unsigned access, uint64_t off,
			      uint64_t len, struct gx_mem **out)
{
	struct gx_mem *mem = core_region_at(ep->core->gx, token);

	if (gx_unlikely(!mem || mem->until_ns || mem->only || !(mem->access & access & ep->access)))
		return core_region_ask(ep, token, access, off, len, out);
	if (off > mem->len || len > mem->len - off)
		return -ERANGE;
	*out = mem;
	return 0;
}

/** core_say() - Add to @text. */
void core_say(struct gx_text *text, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** core_why() - Add a reason to gx_conn.why. ctl. */
void core_why(char why[CORE_WHY_MAX], const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* -- completions, core.c: called by links on the core -- */

/* Is there room for one more completion that comps_due does not count? */
bool core_comp_room(const struct gx_core *core);
/* May one more operation be posted on an endpoint? Posted operations and completions that nobody has
 * taken fill at most half of the ring. A quarter is for the first one of endpoints with nothing under
 * way (@busy: something is), so peers that stand still stop no other. The rest is for completions that
 * peers cause. */
static inline bool core_post_room(const struct gx_core *core, bool busy)
{
	uint32_t tail = atomic_load_explicit(&core->comp_tail, memory_order_relaxed);
	uint32_t n = core->comp_head - tail + core->comps_due + 2;

	return gx_likely(n <= GX_COMPS_MAX / 2) || (!busy && n <= GX_COMPS_MAX / 4 * 3);
}
/* A completion that no operation of this end causes, for gx_poll() of its queue. */
void core_comp(struct gx_core *core, const struct gx_comp *comp);
/* The same in place: the caller fills in all of it, and moves comp_head on, or drops
 * the entry. A completion that is built elsewhere with narrow stores and then copied with wide loads
 * would wait for those stores, longer than a small put takes. */
static inline struct gx_comp *core_comp_next(struct gx_core *core)
{
	return &core->comps[core->comp_head % GX_COMPS_MAX];
}
/* An immediate of the peer, whose put has landed. .hidden: OP_HIDDEN, so it is for core_note(). */
struct core_imm {
	uint64_t token, off, len, imm;
	bool hidden;
};
/** core_imm() - Its GX_COMP_NOTIFY. Return: false: there is no room, so again in a later turn.
 * core_note(): a hidden one has come to @ep. In list/note.c. */
bool core_imm(struct gx_ep *ep, const struct core_imm *in);
void core_note(struct gx_ep *ep, uint64_t word);
/* Where the completions of an operation go; its link keeps it with the operation. NULL: to the ring
 * of the core, for gx_poll() of its queue. Else to comp(), on the core. owner: the poster of the operation; it
 * outlives the operation. */
struct gx_route {
	void (*comp)(struct gx_route *route, const struct gx_comp *comp);
};
/* How an operation ended. */
struct core_end {
	struct gx_ep *ep;
	struct gx_route *route;
	enum gx_op_kind op;
	int status;
	uint32_t flags; /* of the operation: GX_OP_LOCAL, GX_OP_SILENT */
	uint64_t user, len, tag;
};
/* One completion of it, in place where it has no route. */
static inline void core_tell(const struct core_end *end, enum gx_comp_kind kind)
{
	struct gx_core *core = end->ep->core;
	struct gx_comp elsewhere, *comp = &elsewhere;

	if (!end->route)
		comp = &core->comps[core->comp_head++ % GX_COMPS_MAX];
	comp->kind = kind;
	comp->op = end->op;
	comp->status = end->status;
	comp->ep = end->ep;
	comp->user = end->user;
	comp->len = end->len;
	comp->tag = end->tag;
	comp->imm = comp->token = comp->off = 0;
	if (end->route) {
		elsewhere.note = NULL;
		elsewhere.note_len = elsewhere.reserved = 0;
		end->route->comp(end->route, comp);
	}
}
/* Completions that such an operation produces. */
static inline unsigned core_comps(uint32_t flags)
{
	return 1 + !!(flags & GX_OP_LOCAL);
}
/* A link has taken an operation with @flags. */
static inline void core_began(struct gx_core *core, uint32_t flags)
{
	core->comps_due += core_comps(flags);
}
/* The same of one that was not checked for what its kind passes over. */
static inline unsigned core_op_comps(const struct gx_op *op)
{
	return core_comps(op->kind == GX_OP_PUT || op->kind == GX_OP_SEND ? op->flags : 0);
}
/* All of them; one that fails is never silent. Inline: a small put of the local link knows most of
 * @end when it is compiled. */
static inline void core_report(const struct core_end *end)
{
	if (end->flags & GX_OP_LOCAL)
		core_tell(end, GX_COMP_LOCAL);
	if (end->status)
		gx_stat_add(&end->ep->core->loop.stats, GX_STAT_MSGS_FAILED, 1);
	if (end->status || !(end->flags & GX_OP_SILENT))
		core_tell(end, GX_COMP_DONE);
}
/* The end of one that core_began() counts. */
static inline void core_ended(const struct core_end *end)
{
	end->ep->core->comps_due -= core_comps(end->flags);
	core_report(end);
}

/* -- devices, device.c -- */

/** device_place() - Set .pci and .numa of what /sys/@fmt links to. Any thread. */
void device_place(struct gx_device *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void device_root(const char *dir); /* for tests: in front of /sys; "": none */

/* -- cores, core.c -- */

/** core_sleep_open() - gx_sleep_open() with gx_error(). core_fd_close(): accepts one that gx_core_fd()
 * never opened. */
int core_sleep_open(struct gx_sleep *s);
void core_fd_close(struct gx_core *core);

/** core_watch() - Control thread, every 20 ms: warn of a core that did not turn for long; else the
 * user would blame the peer. And pin its thread again if it has lost its CPU. */
void core_watch(struct gx *gx, uint64_t now_ns);

/* -- state of a connection, unpack modes -- */

static inline enum gx_conn_state conn_state(const struct gx_conn *c)
{
	return atomic_load_explicit(&c->state, memory_order_acquire);
}

/** unpack_checks() - Does @mode check payload while it copies? */
static inline bool unpack_checks(unsigned mode)
{
	return mode == GX_UNPACK_MODE_AUTO || mode == GX_UNPACK_MODE_KERNEL ||
	       mode == GX_UNPACK_MODE_HOST;
}

/* -- letting go of memory, drop.c -- */

/** core_place() - gx_mem.place for this id. */
static inline uint16_t core_place(uint64_t id)
{
	return (uint16_t)(1 + id % CORE_USES);
}
/** drop_begin() - Mark @mem dead and tell the cores. ctl. */
void drop_begin(struct gx_mem *mem);
/** drop_pass() - Have each core pass a point between two pollers, for drop_is_done(). ctl. */
uint32_t drop_pass(struct gx *gx);
/** drop_is_done() - Has every core let go of all that died up to @seq? Any thread. */
bool drop_is_done(const struct gx *gx, uint32_t seq);
/** drop_help() - The same, but the calling thread first does this for cores that no other thread
 * turns. */
bool drop_help(struct gx *gx, uint32_t seq);
static inline void core_name(struct mem_names *n, uint32_t place)
{
	n->bits[place / 64 % 4] |= 1ull << place % 64;
}
/** core_use() - An operation, or a message that comes in, refers to @mem until core_unuse(*@at). NULL:
 * to none, and *@at is 0. */
static inline void core_use(struct gx_core *core, const struct gx_mem *mem, uint16_t *at)
{
	if (!mem)
		return;
	*at = mem->place;
	core->uses[*at]++;
}
static inline void core_unuse(struct gx_core *core, uint16_t at)
{
	core->uses[at]--;
}
/** core_dropper_add() - Have core_drop() call @fn too. Before the core turns. Return: 0,
 * -ENOSPC. */
int core_dropper_add(struct gx_core *core, void (*fn)(void *arg, struct drop *d), void *arg);
/** core_drop() - End the core's operations with dead memory, and publish how far that is done. The
 * thread that turns @core calls it, between two pollers. */
void core_drop(struct gx_core *core);
static inline bool core_drop_due(const struct gx_core *core)
{
	/* Pairs with the release in drop_tell(). */
	return atomic_load_explicit(&core->gx->drops, memory_order_acquire) != core->drop_own;
}
/** core_enter() - May this thread touch the state of @core? If so, no other turns it until
 * core_leave(@was). */
bool core_enter(struct gx_core *core, uintptr_t *was);
void core_leave(struct gx_core *core, uintptr_t was);
/** core_take() - From here on the calling thread turns @core, or (@gx_thread) a thread that gx is
 * about to start. core_mine(): that thread has begun. core_free(): no thread turns it. */
void core_take(struct gx_core *core, bool gx_thread);
void core_mine(struct gx_core *core);
void core_free(struct gx_core *core);
/** core_self() - The number of the calling thread, which no other has or had: pthread_self() of one that has
 * ended is soon that of the next. */
extern _Thread_local uintptr_t core_thread;
uintptr_t core_thread_count(void);
static inline uintptr_t core_self(void)
{
	return gx_likely(core_thread) ? core_thread : core_thread_count();
}
#define CORE_NOBODY   ((uintptr_t)0)
#define CORE_BUSY     ((uintptr_t)1) /* drop_help() works on it */
#define CORE_STARTING ((uintptr_t)2) /* gx's own thread is about to turn it */

#endif
