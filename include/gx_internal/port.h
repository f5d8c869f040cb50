/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The port seam: a packet device. A port has one queue pair a core. A queue pair has a data half
 * (payload lands in bounce buffers inside the arena or another range of at most 4 GiB) and a
 * control half (small host buffers). A port knows nothing of messages: it moves {header, payload}
 * to a peer and back.
 *
 * Threads: only the owning core calls slots marked [core]; they never block and never allocate. All
 * others are control path, one thread at a time. A peer's life: peer_add (ctl) -> peer_connect
 * (ctl) -> peer_attach [core] -> traffic -> peer_detach [core] -> all its buffers released [core]
 * -> peer_del (ctl).
 */
#ifndef GX_INTERNAL_PORT_H
#define GX_INTERNAL_PORT_H

#include "gx_internal/base.h"
#include "gx_internal/mem.h"
#include "gx_internal/stat.h"

#include <stdatomic.h>

#define GX_HDR_MAX	   64	/* room for a header, on either half */
#define GX_CTL_PAYLOAD_MAX 1536 /* payload of a control packet, all ports */
#define GX_PORT_ADDR_MAX   160
#define GX_PEER_ANY	   UINT32_MAX /* rx: the port does not know the sender */
#define GX_PEERS_MAX	   1024	      /* peers of a queue */
#define GX_PATHS_MAX	   8	      /* source ports of a half */

enum gx_half { GX_HALF_CTL, GX_HALF_DATA };

/* Hellos carry the flags, so a bit keeps its meaning. Bit 1 is free. */
enum gx_port_flag {
	GX_PORT_RX_GPU = 1 << 0,    /* receives payload into GPU memory */
	GX_PORT_TX_ATTACH = 1 << 2, /* tx may reference the payload after tx_burst, see tx_reap */
	GX_PORT_ORDERED =
		1 << 3, /* each half keeps order, and ctl sent before data arrives no later */
	GX_PORT_LOSSLESS = 1 << 4, /* a packet that tx_burst took arrives, unless the peer dies */
	GX_PORT_TRUST = 1 << 5, /* a peer of this port can corrupt us (memif): one trust domain */
	GX_PORT_SHARED_POOL =
		1 << 6, /* rx_slots is for all peers of a queue together; else for each peer */
	GX_PORT_LOCAL = 1 << 7,	       /* reaches this host only */
	GX_PORT_TX_GUARDS = 1 << 11,   /* heeds gx_tx.guard; not into slots of a GPU */
	GX_PORT_RX_DMA = 1 << 10,      /* with RX_GPU: a device writes there, not a GPU or a CPU */
	GX_PORT_NORMAL_PAGES = 1 << 9, /* gx asked for huge pages, and there are none */
	GX_PORT_NEEDS_PROBE =
		1 << 8, /* path MTU is not known: a padded probe must prove the quantum */
};

struct gx_port_caps {
	uint32_t payload_max;  /* largest payload of a data packet, bytes, multiple of 16 */
	uint32_t payload_best; /* preferred quantum, multiple of 16 */
	uint32_t rx_slots;     /* data buffers for receiving */
	uint32_t flags;	       /* enum gx_port_flag */
	uint32_t
		paths; /* source ports that ->path chooses from, GX_PATHS_MAX at most; 0: no choice */
};

/* Address of one end, which the hello carries to the other as opaque bytes. At most two
 * descriptors, the second only with the first. */
struct gx_port_addr {
	uint16_t len;
	uint8_t b[GX_PORT_ADDR_MAX];
	int fd; /* -1: none. In laddr: the port keeps it. In raddr: the port takes it over. */
	bool has_pool;
	int pool_fd;	  /* likewise, with has_pool: names the GPU memory that payload goes to */
	uint8_t from_len; /* in raddr: bytes of from, 4 or 16: the IP address of the peer's
			   * bootstrap connection. The port refuses another address, so that it
			   * sends to no third party. 0: any address is fine */
	uint8_t from[16];
	bool dials; /* in laddr, before peer_add: this end has made the connection. For ports
		     * whose ends differ (memif) */
};

/* One packet received. */
struct gx_rx {
	uint64_t buf;  /* the port's handle for rx_release; data half only */
	void *data;    /* payload; ctl half: private memory of this process, valid until the next
			  rx_burst */
	uint32_t len;  /* payload bytes; the port has checked them against the buffer */
	uint32_t peer; /* GX_PEER_ANY when not known */
	uint32_t hlen; /* header bytes copied to hdr */
	bool marked;   /* data half: a queue on the way was long (ECN's CE). false: the port cannot
			  tell */
	uint8_t hdr[GX_HDR_MAX];
};

/* How a payload is copied that is summed or encrypted on the way. Its header in gx_tx.hdr is finished
 * then. */
struct gx_tx_guard {
	void (*copy)(const struct gx_tx_guard *g, void *dst, const void *src, uint32_t len);
};

/* One packet to send. */
struct gx_tx {
	const void *data; /* payload: host memory, or memory of a GPU in gx_port_peer.gpus */
	uint32_t len;
	uint32_t peer;
	uint32_t cookie; /* tx_reap gives it back on ports with GX_PORT_TX_ATTACH; UINT32_MAX: not
			  * wanted, and the port must copy data before tx_burst returns */
	uint8_t gpu;	 /* 1 + the device whose memory data is, see gx_port_peer.gpus; 0: host */
	bool mapped;	 /* host memory that GPUs of this process read in place */
	const struct gx_tx_guard
		*guard; /* with GX_PORT_TX_GUARDS; NULL: the payload goes as it is */
	uint32_t hlen;
	uint8_t hdr[GX_HDR_MAX];
};

/** gx_tx_copy() - The payload of @pkt to @dst, a slot that another core reads next. Before its header
 * is copied. */
static inline void gx_tx_copy(void *dst, const struct gx_tx *pkt)
{
	if (gx_likely(!pkt->guard))
		gx_copy_slot(dst, pkt->data, pkt->len);
	else
		pkt->guard->copy(pkt->guard, dst, pkt->data, pkt->len);
}

/* Facts for sending to one connected peer. */
struct gx_port_peer {
	uint32_t flags;	      /* GX_PORT_TX_ATTACH, if it holds for this peer */
	uint32_t gpus;	      /* devices (bits) whose memory the port reads in place; other GPUs' is
				 staged */
	int pool;	      /* device that payload goes to, as the peer counts; -1: host memory */
	int pool_here;	      /* the same device as this process counts; negative: not known here */
	uint32_t payload_max; /* of a data packet to it; 0: as gx_port_caps */
	/* A word of the peer that changes when its core is about to sleep, and its value at the last
	 * wake. NULL: what the port carries wakes by itself */
	const _Atomic uint32_t *asleep;
	const uint32_t *woken;
};

/** gx_port_is_asleep() - Does the peer's core wait for a wake since the last one? After what it shall
 * see was written to shared memory: the owner of the word has a barrier run here (membarrier()). */
static inline bool gx_port_is_asleep(const _Atomic uint32_t *asleep, uint32_t woken)
{
	atomic_signal_fence(memory_order_seq_cst); /* the compiler keeps the order */
	return gx_unlikely(atomic_load_explicit(asleep, memory_order_relaxed) != woken);
}

/* UDP ports of a connected peer and of the queue towards it, for people. */
struct gx_port_way {
	char own[64], peer[64];	      /* addresses */
	uint16_t own_port, peer_port; /* the first of two; 0: the port has none */
};

struct gx_port_cfg {
	const char *args;	/* the part of the port's option after "name:"; "" if none */
	struct gx_arena *arena; /* for bounce buffers */
	struct gx_arena *pool;	/* for payload slots instead: memory of pool_gpu; NULL: not wanted.
				   A port that cannot receive there refuses, with the reason */
	struct gx_gpu *pool_gpu;
	struct gx_gpu *const *gpus; /* [GX_PUSH_GPUS], by device: the GPUs open at any time; NULL:
				       none ever is */
	uint64_t gpu_timeout_ns;
	unsigned nr_queues;
	const int *cpus;       /* CPUs of the cores, -1: unknown; [nr_queues] */
	uint32_t slots;	       /* data buffers wanted for a queue (shm: for a peer); 0: the port's
				  default */
	uint32_t payload_b;    /* wanted payload_best; 0: the port's default */
	const char *instance;  /* unique name of this process's gx, for sockets and files */
	const char *bind_host; /* address to bind network ports to, e.g. "127.0.0.1" */
	bool server;	       /* this process listens: DPDK gets more memory */
	bool huge;	       /* use huge pages if there are any */
};

struct gx_port;
struct gx_port_queue;

/* A port leaves open the slots in which it has no part. port.c gives those a default, so no caller tests
 * for NULL: mem_map() and fault() return 0, peer_info() says what holds for all peers alike,
 * tx_reap() reaps nothing, path() and wake() do nothing, and packets make nothing readable. */
struct gx_port_ops {
	const char *name;

	/* Return: 0, -errno with the reason in gx_port_why(). */
	int (*open)(const struct gx_port_cfg *cfg, struct gx_port **out);
	void (*close)(struct gx_port *p);
	int (*queue_open)(struct gx_port *p, unsigned index, struct gx_stats *stats,
			  struct gx_port_queue **out);
	void (*queue_close)(struct gx_port_queue *q);

	/* Memory that cores will send from. NICs map it for DMA, others return 0. */
	int (*mem_map)(struct gx_port *p, void *ptr, size_t len);
	void (*mem_unmap)(struct gx_port *p, void *ptr, size_t len);

	/* Take a place for one more peer (a connection). @laddr: data for that peer's port; the
	 * caller has set .dials. -ENOSPC. */
	int (*peer_add)(struct gx_port_queue *q, uint32_t *peer, struct gx_port_addr *laddr);
	/* @raddr: data of the peer's port. The port checks every byte of it: -EPROTO. It takes the
	 * descriptors over in any case. */
	int (*peer_connect)(struct gx_port_queue *q, uint32_t peer,
			    const struct gx_port_addr *raddr);
	void (*peer_del)(struct gx_port_queue *q, uint32_t peer);
	/* Facts of a connected peer; they do not change. Any thread. */
	void (*peer_info)(struct gx_port_queue *q, uint32_t peer, struct gx_port_peer *out);

	/* Between which UDP ports its packets go. Control path. */
	void (*peer_way)(struct gx_port_queue *q, uint32_t peer, struct gx_port_way *out);

	/* [core] From now on rx_burst may report this peer / reports it no more, and the core sends
	 * it nothing. */
	void (*peer_attach)(struct gx_port_queue *q, uint32_t peer);
	void (*peer_detach)(struct gx_port_queue *q, uint32_t peer);

	/* [core] Take up to @n (<= GX_BURST_MAX) packets of one half, fair over peers. The caller
	 * owns a data buffer until rx_release. The port counts and drops malformed packets. */
	unsigned (*rx_burst)(struct gx_port_queue *q, enum gx_half half, struct gx_rx pkts[],
			     unsigned n);
	/* [core] Give data buffers back, of detached peers too. */
	void (*rx_release)(struct gx_port_queue *q, const uint64_t bufs[], unsigned n);
	/* [core] How many packets of @half to @peer does the next tx_burst take at least? */
	unsigned (*tx_room)(struct gx_port_queue *q, enum gx_half half, uint32_t peer);
	/* [core] Send. Return: how many it took, from index 0. It copies the header and (unless
	 * attached) the payload. */
	unsigned (*tx_burst)(struct gx_port_queue *q, enum gx_half half, const struct gx_tx pkts[],
			     unsigned n);
	/* [core] From now on packets of @half to @peer leave by source port number @path, below
	 * caps.paths, so that routers may take another way for them; it is q->from[half][path]. 0 at
	 * first. With caps.paths. */
	void (*path)(struct gx_port_queue *q, enum gx_half half, uint32_t peer, unsigned path);
	/* [core] Cookies of packets whose payload the port no longer references. */
	unsigned (*tx_reap)(struct gx_port_queue *q, uint32_t cookies[], unsigned n);
	/* [core] Sticky fault of the queue: 0 or -errno. */
	int (*fault)(struct gx_port_queue *q);
	/* [core] The core will sleep on @fd, of epoll: add what packets make readable. Once. Return: 0,
	 * -errno. */
	int (*sleep_open)(struct gx_port_queue *q, int fd);
	/* [core] It is about to sleep: from here on packets make @fd readable. Return: 0; 1: there are
	 * some already; -EOPNOTSUPP: they make nothing readable. */
	int (*sleep_look)(struct gx_port_queue *q);
	/* [core] gx_port_is_asleep(): wake the peer's core. */
	void (*wake)(struct gx_port_queue *q, uint32_t peer);
};

/* Congestion control of what leaves by a port. AUTO: where GX_PORT_NEEDS_PROBE is set. */
enum gx_port_cc { GX_PORT_CC_AUTO, GX_PORT_CC_NONE, GX_PORT_CC_RATE, GX_PORT_CC_SWIFT };

struct gx_port {
	const struct gx_port_ops *ops;
	struct gx_port_caps caps; /* frozen after open */
	const char *speaks; /* must be equal at both ends, e.g. "dpdk:ethernet"; NULL: the option up
			       to its first comma. Frozen after open */
	enum gx_port_cc cc; /* the caller of ->open sets it. Frozen then */
	unsigned spread;    /* source ports that data leaves by at a time; 0: one. Likewise */
};

/** gx_port_cc() - The congestion control of what leaves by @p, AUTO resolved. */
static inline enum gx_port_cc gx_port_cc(const struct gx_port *p)
{
	if (p->cc != GX_PORT_CC_AUTO)
		return p->cc;
	return p->caps.flags & GX_PORT_NEEDS_PROBE ? GX_PORT_CC_RATE : GX_PORT_CC_NONE;
}

struct gx_port_queue {
	const struct gx_port_ops *ops;
	struct gx_port *port;
	char *rx_base; /* every data payload lies in [rx_base, rx_base + 4 GiB); frozen after
			  queue_open */
	struct gx_gpu *rx_gpu; /* GPU whose memory that is; NULL: host memory. Frozen likewise */
	struct gx_stats *stats;
	uint64_t now_ns; /* [core] time of the turn; the caller of rx_burst sets it */
	/* [core] When rx_burst last gave packets of the control half, by the clock. A core that
	 * shares its CPU may have begun the turn long before, and the round trip of a packet would
	 * look shorter than it is. 0: the port does not say. */
	uint64_t heard_ns;
	uint16_t from[2][GX_PATHS_MAX]; /* [enum gx_half]: UDP ports of paths; 0 without. Frozen */
};

/* Written by port.c alone, before main(). */
extern struct gx_port_ops gx_port_shm_ops, gx_port_udp_ops, gx_port_dpdk_ops;

/** gx_port_peer_plain() - ->peer_info of ports that treat all peers alike. */
void gx_port_peer_plain(struct gx_port_queue *q, uint32_t peer, struct gx_port_peer *out);

/** gx_port_find() - Find a port by name ("shm"). NULL: not built, with the reason in
 * gx_port_why(). */
const struct gx_port_ops *gx_port_find(const char *name);
/** gx_port_add() - For tests: have gx_port_find() know one more port, in place of the last one
 * added, and fill its slots. Before another thread opens ports. */
void gx_port_add(struct gx_port_ops *ops);
/** gx_port_why() / gx_port_why_set() - Reason of the control path's last failure, in words, with
 * its cure. gx_port_why_of() takes it, once; where a port has given none, as without memory, it is
 * what @ret means. */
const char *gx_port_why(void);
const char *gx_port_why_of(int ret);
void gx_port_why_set(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
