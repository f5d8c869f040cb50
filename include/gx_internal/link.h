/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The link seam: a way to move messages between two endpoints. A link is one object, struct gx_link,
 * with a table for each thing that it has a part in. The rooms core/, control/ and api/ go through
 * these tables, and name no link. gx_links[] (dataplane/api/links.c) has all of them.
 *
 * The packet link (dataplane/packet/) runs over any port. The local link (dataplane/local/) copies
 * into mapped memory of a peer on this host, and holds a packet link for the rest. So does the verbs
 * link (dataplane/verbs/), for which an RDMA device copies. The tcp link (dataplane/tcp/) uses TCP
 * sockets of the kernel.
 *
 * A link sets the slots in which it has a part. gx_link_fill() gives the others a default, which does
 * nothing and forbids nothing, so no caller tests for NULL. Only the slots of an endpoint from ep_new
 * to post have none. Slots marked [core] are called by the thread that turns the core; they
 * never block and never allocate. Slots marked [any] run on the caller's thread. The others run on
 * the control thread, or within gx_open() and gx_close(), when no other thread is there.
 * Where a slot returns -errno, it has set gx_error().
 */
#ifndef GX_INTERNAL_LINK_H
#define GX_INTERNAL_LINK_H

#include "gx_internal/base.h"
#include "gx_internal/wire.h"

struct core_connect; /* core/opts.h */
struct gx;
struct gx_conn;
struct gx_core;
struct gx_ep;
struct gx_gpu;
struct gx_mem;
struct gx_op;
struct gx_opts;
struct gx_path;
struct gx_route;

/* Operations of an endpoint that post() takes at least while none of them ends, whatever their
 * sizes: of any kind; receives and gets; gets. What the packet link under a link holds counts.
 * .list_gets: gets that lists may have under way; 0: half of .gets. A link that says more keeps half of
 * .gets for others itself, where that is its room. */
struct gx_link_room {
	uint16_t ops, recvs, gets, list_gets;
	bool views; /* post() may have a way from view to view: OP_VIEWS */
};

/* What a link says of itself: a text that grows, see core_say() in core/core.h. */
struct gx_text {
	char *buf;
	size_t room, at; /* what does not fit is left out; .at counts it */
};

/* Its part of a context: gx->link[id]. */
struct gx_link_ctx_ops {
	/* [any] Are the link's options good? Return: 0, -EINVAL. */
	int (*check)(const struct gx_opts *opts);
	/* Before the cores. Return: 0, -errno. */
	int (*open)(struct gx *gx);
	/* The GPU that start() needs, which is then open; -1: none. */
	int (*needs_gpu)(const struct gx_opts *opts);
	/* The cores and ports are open. Pointers in gx->opts belong to the caller of gx_open(): the
	 * link sets those that it has read to NULL. Return: 0, -errno. */
	int (*start)(struct gx *gx);
	/* No core, connection or memory is left. Accepts a half-open one. */
	void (*close)(struct gx *gx);
	void (*tick)(struct gx *gx); /* every 20 ms */
	/* @gpu was opened: make what each core needs, which the core does not look at before its
	 * gpu(). Cores may run. It can't be undone: after an error the GPU stays unusable. Return: 0,
	 * -errno. */
	int (*gpu)(struct gx *gx, struct gx_gpu *gpu);
	void (*describe)(struct gx *gx, struct gx_text *text); /* [any] whole lines */
};

/* Its part of a core: core->link[id]. Before the core turns, but gpu(). */
struct gx_link_core_ops {
	int (*open)(struct gx_core *core);
	/* The ports are open: add pollers and droppers. */
	int (*start)(struct gx_core *core);
	/* [core] Use what the context's gpu() has made for this device from now on. Once. */
	void (*gpu)(struct gx_core *core, unsigned device);
	void (*close)(struct gx_core *core); /* accepts a half-open one */
};

/* Its part of memory: mem->link[id]. */
struct gx_link_mem_ops {
	/* [any] New memory: make it known to devices. Return: 0; -errno: the memory cannot be used at
	 * all. A link that carries it in another way returns 0. */
	int (*add)(struct gx_mem *mem);
	/* [any] Peers are about to be told of it as region @name. NULL: nothing to keep. The ticket goes to share_keep()
	 * or to share_put(). */
	void *(*share)(const struct gx_mem *mem, const char *name, unsigned access);
	void (*share_keep)(struct gx_mem *mem, void *ticket);
	void (*share_put)(struct gx *gx, void *ticket); /* [any] no region came of it */
	/* How a peer on this host reaches it; leaves @e alone if not by this link. */
	void (*export)(const struct gx_mem *mem, struct gx_hello_export *e);
	/* The user frees it: have peers that know it as a region let go of it. */
	void (*revoke)(struct gx_mem *mem);
	/* After revoke(): may a peer still be reading or writing there? */
	bool (*busy)(const struct gx_mem *mem);
	void (*gone)(struct gx_mem *mem); /* nothing of gx names it any more */
	/* [any] What of this link may hold memory that was freed, for people; NULL: nothing. */
	const char *(*holder)(const struct gx *gx);
};

/* The client's choice, as a link judges it. */
struct gx_link_path {
	const struct gx *gx;
	bool same_host;
	const char *far;      /* where the peer is, if not on this host */
	const char *no_share; /* why the ends share no memory; NULL: they may */
	bool quiet; /* out: the reason is not worth a word to who did not ask for the link */
};

/* What an end wants of a connection. */
struct gx_link_want {
	unsigned nr_lanes;
	const struct core_connect *asked; /* client: of gx_connect_opts; server: NULL */
	const uint8_t *blob;		  /* server: CONNECT of the client; client: NULL */
	uint32_t blob_b;
};

/* What held the next packet of a connection back. The packet link's enum cc_limit is the same. */
enum gx_link_look_by {
	GX_LOOK_BY_APP,
	GX_LOOK_BY_LINK,
	GX_LOOK_BY_WINDOW,
	GX_LOOK_BY_CREDIT,
	GX_LOOK_BY_CORE,
	GX_LOOK_LIMITS
};

enum gx_link_look_has {
	GX_LOOK_PKTS = 1,
	GX_LOOK_TX_B = 2,
	GX_LOOK_RX_B = 4,
	GX_LOOK_LOST = 8,
	GX_LOOK_LIMIT = 16, /* of the limits: window, credit, core */
	GX_LOOK_PACE = 128, /* application, link */
	GX_LOOK_WINDOW = 32,
	GX_LOOK_RATE = 64,
};

/* What is known of a connection, all lanes together. */
struct gx_link_look {
	unsigned has; /* bits of gx_link_look_has */
	/* These only grow. */
	uint64_t tx_pkts, rx_pkts; /* that were numbered, first and again */
	uint64_t tx_b, rx_b;	   /* as far as the link knows, see docs/metrics.md */
	uint64_t lost_b;	   /* of tx_b: lost */
	uint64_t limit_ns[GX_LOOK_LIMITS];
	uint64_t msgs;	   /* messages under way, both directions */
	uint64_t rtt_ns;   /* of its slowest lane; 0: not known */
	uint64_t rate_b_s; /* that its paths carry, as far as known */
	uint64_t window_b;
};

/* Its part of a connection: conn->link_state. Its set-up, in the order of the calls:
 *
 *   client                             server
 *   fits(), may(), open()
 *   [ep_open() of each lane], say()  -> may(), open(), [ep_open() of each lane], say(), hear()
 *   hear()                          <-
 *   data sockets, if open() made c->socks; else, if fds_due() of both ends is not 0:
 *     meet(), fds()                  -> meet(), fds()
 *   connect(), [ep_connect() of each lane], prove(), up(), then [core] ep_attach(): both ends
 *   If tries(): connect(), [ep_connect() of each lane], [core] ep_attach(), trial(), up()
 *
 * Its end:
 *
 *   push() -> stop() -> [cores let go] -> is_over() -> release() -> [the user closes] -> close()
 *      \                                   | ^ again at each tick, until it is true
 *       `-> lost(), at any time before close()
 *
 * Without push() where the peer ends it; close() alone where open() was the last call. */
struct gx_link_conn_ops {
	/* [any] NULL, or the reason why this context does not offer the link. */
	const char *(*may)(const struct gx *gx);
	/* What our HELLO says of it. Return: bytes, at most GX_HELLO_OFFER_MAX. */
	uint32_t (*offer)(const struct gx *gx, bool server, uint8_t *b);
	/* Client alone, before may(), also if the server does not offer it. NULL, or why it can't be
	 * taken. */
	const char *(*fits)(struct gx_link_path *path);
	/* Before the lanes are opened. Return: 0, -EPROTO, -errno. */
	int (*open)(struct gx_conn *c, const struct gx_link_want *want);
	/* The lanes are open: what CONNECT or ACCEPT says of it. Return: bytes, at most
	 * GX_HELLO_BLOB_MAX. */
	uint32_t (*say)(const struct gx_conn *c, uint8_t *b);
	/* The peer's. Our lanes are open, and not connected. Return: 0, -EPROTO, -errno. */
	int (*hear)(struct gx_conn *c, const uint8_t *b, uint32_t len);
	/* Descriptors to send to the peer; they stay ours. Return: their number, at most
	 * GX_LINK_FDS_MAX. */
	unsigned (*fds)(struct gx_conn *c, int fds[]);
	/* How many the peer must send. Once the lanes are open. 0: this link passes none, neither way: an
	 * end that says 0 does not listen, so each end sends some or none does. */
	unsigned (*fds_due)(const struct gx_conn *c);
	void (*meet)(struct gx_conn *c, int sock); /* the peer's process is at the end of @sock */
	/* All of the peer is here; before the lanes are connected. Takes @fds over. Return: 0, -EPROTO,
	 * -errno. */
	int (*connect)(struct gx_conn *c, const int fds[], unsigned n);
	/* If .proves: our lanes are connected and not attached: may this end say UP? The client is asked
	 * when the server has said it. Again at each tick. Return: 1: yes; 0: not yet; -errno. */
	int (*prove)(struct gx_conn *c);
	/* Its lanes are connected: do both ends try them before they say UP? Then these are attached first,
	 * and packets of the other end show which ways carry anything. */
	bool (*tries)(const struct gx_conn *c);
	/* If so, at each tick until it is up. @peer_up: the peer hears this end on all lanes. @say: as of
	 * tick(), for take() of the peer. Return: 1: this end hears the peer on all lanes; 0: not yet;
	 * -EHOSTUNREACH, with gx_error(): the peer has sent, and nothing comes; -errno. */
	int (*trial)(struct gx_conn *c, bool peer_up,
		     void (*say)(struct gx_conn *c, const uint8_t *b, uint32_t len));
	void (*up)(struct gx_conn *c); /* both ends are ready */
	/* Every 20 ms once it was up, also when it is DOWN. @say: send to take() of the peer; NULL: nothing
	 * can be said any more. Return: 0; -errno: the connection is lost. */
	int (*tick)(struct gx_conn *c, uint64_t now_ns,
		    void (*say)(struct gx_conn *c, const uint8_t *b, uint32_t len));
	/* The peer's key with @token was taken: have its memory reached as a region's is. @maps: its owner
	 * could let peers map it. */
	void (*key)(struct gx_conn *c, uint64_t token, bool maps);
	/* What tick() and key() of the peer say. Return: 0, -EPROTO. */
	int (*take)(struct gx_conn *c, const uint8_t *b, uint32_t len);
	/* A fault of a lane, or tick()'s, in words. Return: false: the link has no word of its own for it. */
	bool (*fault)(const struct gx_conn *c, int err, char *buf, size_t room);
	void (*push)(struct gx_conn *c); /* this end is about to say that it closes */
	/* It ends, and no core knows yet: peers and devices let go of memory. Idempotent. */
	void (*stop)(struct gx_conn *c);
	/* Has everything but the cores let go of it? Asked before release(). */
	bool (*is_over)(const struct gx_conn *c);
	void (*release)(struct gx_conn *c); /* its cores have let go of it. Idempotent */
	void (*lost)(struct gx_conn *c);    /* the peer has not closed its socket in time */
	void (*close)(struct gx_conn *c);   /* accepts a half-open one */
	/* Sends of more bytes are read by the peer, or by its device; 0: none. */
	uint64_t (*pull_over)(const struct gx_conn *c);
	/* It is UP: add up what its lanes have moved, and what holds them back. Asks no core: what a core
	 * reports in its slow timer, the kernel counts, or the ends share anyway. @out is all 0. */
	void (*look)(const struct gx_conn *c, struct gx_link_look *out);
	/* Likewise: the next of its paths from number *@at on, which goes past it; 0 at first. Of those
	 * that gx_conn_path() reports. Return: false: there are no more. */
	bool (*path)(const struct gx_conn *c, unsigned *at, struct gx_path *out);
};

/* A segment of a list that is checked: our bytes, and their place in the peer's region. */
struct gx_link_seg {
	struct gx_mem *mem; /* NULL: .off is an address of the host */
	uint64_t off, token, remote_off, len;
	uint32_t first; /* for who made the list */
};

/*
 * An endpoint: one end of a lane. It belongs to one core. No packet link does this for a link that
 * holds none, so it owes the core (core/core.h) and the control thread:
 *
 * - core.start(): gx_loop_add() of one poller for all its endpoints, which sets core->now_ns to the
 *   time of the turn before all else, and core_dropper_add().
 * - post(): no place without core_post_room(). core_began() with the flags that the kind knows
 *   (GX_OP_LOCAL is of PUT and SEND), and core_use() names the memory.
 * - The end of an operation, once: core_unuse(), then core_ended(). An operation that ended early may
 *   keep its place until the peer has answered.
 * - A put that comes in: core_region() with GX_ACCESS_PUT; the reason goes back to the sender. When
 *   all its bytes are visible, and the sender's flags have GX_OP_IMM: core_imm(), until it is true.
 *   Notes and lists are made of such puts, so OP_HIDDEN must travel. Then the sender hears of it. A
 *   get: core_region() with GX_ACCESS_GET, and again after the last byte was read if the region has
 *   .until_ns.
 * - The dropper: live operations whose memory mem_is_dead() end with -ECANCELED; messages of the
 *   peer into such memory with -ESTALE. drop_hold() for memory that a device still touches.
 * - Faults: .fault takes the first -errno (release), and the control thread ends the connection. A
 *   socket that closes is no fault before 200 ms, since the reason may come by the bootstrap
 *   connection. -ETIMEDOUT: the peer was silent for agreed.peer_timeout_ns while something waited
 *   for it; it is asked before, for its program may take no completions.
 * - A receiver limits what is under way to conn->rights.lane_b, or gx_ep.credit_max.
 */
struct gx_ep_ops {
	/* A zeroed endpoint of this link, for ep_free(). NULL: out of memory. */
	struct gx_ep *(*ep_new)(void);
	/* Make our end of a lane; @local: data for the peer. 0, -errno. */
	int (*ep_open)(struct gx_ep *ep, struct gx_hello_lane *local);
	/* @remote: the peer's data; the agreed parameters are in the connection. 0, -errno. */
	int (*ep_connect)(struct gx_ep *ep, const struct gx_hello_lane *remote);
	/* After detach (or if it was never attached). */
	void (*ep_free)(struct gx_ep *ep);

	/* [core] The core turns the ep from now on. post() may have been called before, and memory of such
	 * an operation freed. Sets .attached (release). */
	void (*ep_attach)(struct gx_ep *ep);
	/* [core] Fail every operation with @err, and stop; post() says -ENOTCONN from now on. Never within
	 * the link's poller. The link sets .comp_mark to comp_head, then .detached (release), once no
	 * buffer is out: that is its last touch of the ep. */
	void (*ep_fail)(struct gx_ep *ep, int err);

	/* [core] Take one operation (checked by the caller: well formed, .mem alive. Not its kind: a link
	 * refuses with -EOPNOTSUPP what it has not, as memory of a GPU). What kick() sends need not leave
	 * here. The link keeps @route with it, and gives it to core_report() with each of its completions.
	 * It ignores op->stream, and knows OP_HIDDEN in .flags. With OP_VIEWS, for a link whose .room says
	 * so, .list has the views of both ends; -EXDEV: not this one, so a map and join() carry it.
	 * 0, -EAGAIN when full, -errno. */
	int (*post)(struct gx_ep *ep, const struct gx_op *op, struct gx_route *route);
	/* [core] Take segments of one memory and one region, from the first on, as one operation; @op is
	 * what post() gets for the first of them. They stay until its completion, which, if it failed,
	 * has .seg: which of them. With OP_VIEW: all of @op, whose source lies as its .list says, and whose
	 * token is a map; 1: it has it; 0: it moves no views. Return: how many, at least 2; 0: take the first one by post();
	 * -EAGAIN when full, -errno. */
	int (*join)(struct gx_ep *ep, const struct gx_op *op, const struct gx_link_seg segs[],
		    unsigned n, struct gx_route *route);
	/* [core] Move segments at once, from the first on, as puts or gets that nobody cancels: whole
	 * ones, while *@room_b and the turn have room. *@room_b becomes 0 if one of these is spent. It stops
	 * at a segment that it cannot move so, which post() takes, or ends with its error. Return:
	 * segments whose bytes are visible. */
	unsigned (*copy)(struct gx_ep *ep, bool put, const struct gx_link_seg segs[], unsigned n,
			 uint64_t *room_b);
	/* [core] After posts: send now operations that need no more than a control packet. */
	void (*kick)(struct gx_ep *ep);
	/* [core] Ask for the cancellation of operations with this @user and @route. Return: how
	 * many. */
	int (*cancel)(struct gx_ep *ep, uint64_t user, const struct gx_route *route);

	struct gx_link_room room; /* the last: slots_fill() fills those before it */
};

/* Which port carries a link's packets? */
enum gx_link_port {
	GX_LINK_PORT_NONE, /* none: it has a way of its own, and chunks of .quantum_b */
	GX_LINK_PORT_ANY,  /* any that both ends have */
	GX_LINK_PORT_SHM,  /* that one: the ends share memory */
};

struct gx_link {
	const char *name;
	enum gx_link_id id;
	enum gx_link_port port;
	/* The client takes the link with the highest score that fits. 0: only if it is asked for. */
	unsigned score;
	/* The same between hosts, where the program names neither a port nor an integrity; 0: .score */
	unsigned score_far;
	bool many_ports; /* its lanes can take several ports in turn */
	bool proves;	 /* its ends say UP when prove() says so */
	bool keys;	 /* it has key() */
	bool seals;	 /* under a key it encrypts all that goes to another host */
	/* Without a port: at least GX_WIRE_QUANTUM_MIN, a multiple of 16 (gx_link_fill() asserts it).
	 * agreed.chunk_b is a multiple of it */
	uint32_t quantum_b;
	const char *
		how; /* why it is good, or what it is, in gx_conn_info.why; NULL: its port says it */
	const char *cure; /* what to do where a server does not offer it; "": nothing */
	const struct gx_link_ctx_ops *ctx;
	const struct gx_link_core_ops *core;
	const struct gx_link_mem_ops *mem;
	const struct gx_link_conn_ops *conn;
	const struct gx_ep_ops *ep;
};

#define GX_LINK_FDS_MAX (2 + GX_HELLO_REGIONS)

/* By enum gx_link_id; none is NULL. */
extern const struct gx_link *const gx_links[GX_LINKS];

/* A link with whole tables: gx_links[] points to these. */
struct gx_link_full {
	struct gx_link link;
	struct gx_link_ctx_ops ctx;
	struct gx_link_core_ops core;
	struct gx_link_mem_ops mem;
	struct gx_link_conn_ops conn;
	struct gx_ep_ops ep;
};

/** gx_link_fill() - @own with the default of each slot that it leaves open, in dataplane/core/link_none.c. */
void gx_link_fill(struct gx_link_full *full, const struct gx_link *own);

#endif
