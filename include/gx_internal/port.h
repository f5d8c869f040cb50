/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The port seam: a packet device. A port has one queue pair a core; a queue pair has a data half
 * (payload lands in bounce buffers inside the arena or another range of at most 4 GiB) and a
 * control half (small host buffers). A port knows nothing of messages: it moves {header, payload}
 * to a peer and back.
 *
 * Threads: slots marked [core] are called by the owning core only, never block, never allocate. All
 * others are control path, one thread at a time. A peer's life: peer_add (ctl) -> peer_connect
 * (ctl) -> peer_attach [core] -> traffic -> peer_detach [core] -> all its buffers released [core]
 * -> peer_del (ctl).
 */
#ifndef GX_INTERNAL_PORT_H
#define GX_INTERNAL_PORT_H

#include "gx_internal/base.h"
#include "gx_internal/mem.h"
#include "gx_internal/stat.h"

#define GX_HDR_MAX	   64	/* room for a header, on either half */
#define GX_CTL_PAYLOAD_MAX 1536 /* payload of a control packet, all ports */
#define GX_PORT_ADDR_MAX   160
#define GX_PEER_ANY	   UINT32_MAX /* rx: the port cannot tell who sent it */
#define GX_PEERS_MAX	   1024	      /* a queue */

enum gx_half { GX_HALF_CTL, GX_HALF_DATA };

/* Hellos carry them, so a bit keeps its meaning. Bit 1 is free. */
enum gx_port_flag {
	GX_PORT_RX_GPU = 1 << 0,    /* can receive payload into GPU memory */
	GX_PORT_TX_ATTACH = 1 << 2, /* tx may reference the payload after tx_burst, see tx_reap */
	GX_PORT_ORDERED =
		1 << 3, /* each half keeps order, and ctl sent before data is seen no later */
	GX_PORT_LOSSLESS = 1 << 4, /* a packet taken by tx_burst arrives, unless the peer dies */
	GX_PORT_TRUST = 1 << 5, /* a peer of this port can corrupt us (memif): one trust domain */
	GX_PORT_SHARED_POOL =
		1 << 6, /* rx_slots is for all peers of a queue together; else for each peer */
	GX_PORT_LOCAL = 1 << 7,	       /* reaches this host only */
	GX_PORT_RX_DMA = 1 << 10,      /* with RX_GPU: a device writes there, not a GPU or a CPU */
	GX_PORT_NORMAL_PAGES = 1 << 9, /* huge pages were asked for and there are none */
	GX_PORT_NEEDS_PROBE =
		1 << 8, /* path MTU is not known: prove the quantum by a padded probe */
};

struct gx_port_caps {
	uint32_t payload_max;  /* largest payload of a data packet, bytes, multiple of 16 */
	uint32_t payload_best; /* quantum to prefer, multiple of 16; for lossy networks a preferred
				  one of wire.h */
	uint32_t rx_slots;     /* data buffers that can be posted */
	uint32_t flags;	       /* enum gx_port_flag */
};

/* What one end tells the other about itself; opaque bytes for the hello. At most two descriptors,
 * the second only with the first. */
struct gx_port_addr {
	uint16_t len;
	uint8_t b[GX_PORT_ADDR_MAX];
	int fd; /* -1: none. In laddr: stays the port's. In raddr: the port takes it over. */
	bool has_pool;
	int pool_fd;	  /* likewise, with has_pool: of the GPU memory that payload goes to */
	uint8_t from_len; /* in raddr, of a peer that is not trusted: 4 or 16 bytes of IP address
			   * that it is reached by, so that no other is sent to; 0: not asked for */
	uint8_t from[16];
};

/* One packet received. */
struct gx_rx {
	uint64_t buf;  /* the port's handle for rx_release; data half only */
	void *data;    /* payload; ctl half: already private memory of ours, valid until the next
			  rx_burst */
	uint32_t len;  /* payload bytes, checked against the buffer by the port */
	uint32_t peer; /* GX_PEER_ANY when not known */
	uint32_t hlen; /* header bytes copied to hdr */
	uint8_t hdr[GX_HDR_MAX];
};

/* One packet to send. */
struct gx_tx {
	const void *data; /* payload: host memory, or of a GPU in gx_port_peer.gpus */
	uint32_t len;
	uint32_t peer;
	uint32_t cookie; /* given back by tx_reap on ports with GX_PORT_TX_ATTACH; UINT32_MAX: not
			  * wanted, and data must be copied before tx_burst returns */
	uint8_t gpu;	 /* 1 + the device whose memory data is, see gx_port_peer.gpus; 0: host */
	bool mapped;	 /* host memory that GPUs of this process read in place */
	uint32_t hlen;
	uint8_t hdr[GX_HDR_MAX];
};

/* What holds for sending to one peer, once it is connected. */
struct gx_port_peer {
	uint32_t flags; /* GX_PORT_TX_ATTACH as it is for this peer */
	uint32_t gpus; /* devices (bits) whose memory the port reads in place; the rest is staged */
	int pool;      /* device that payload goes to, as the peer counts them; -1: host memory */
	int pool_here; /* the same device as we count them; negative: not known here */
	uint32_t payload_max; /* of a data packet to it; 0: the port's own */
};

struct gx_port_cfg {
	const char *args; /* what stood behind "name:" in the port's option; "" when nothing */
	struct gx_arena *arena; /* where bounce buffers belong */
	struct gx_arena *pool;	/* where payload slots belong instead: memory of pool_gpu; NULL: not
				   wanted. Who cannot receive there refuses, with the reason */
	struct gx_gpu *pool_gpu;
	struct gx_gpu *const *gpus; /* [GX_PUSH_GPUS], by device: those that are open, at any time;
				       NULL: none ever is */
	uint64_t gpu_timeout_ns;
	unsigned nr_queues;
	const int *cpus; /* of the cores, -1 unknown; [nr_queues] */
	uint32_t slots;	 /* data buffers a queue (shm: a peer) should have; 0: the port's default */
	uint32_t payload_b;    /* wanted payload_best; 0: the port's default */
	const char *instance;  /* unique name of this process's gx, for sockets and files */
	const char *bind_host; /* address to bind network ports to, e.g. "127.0.0.1" */
	bool server;	       /* this process listens (role of memif and the like) */
	bool huge;	       /* use huge pages if there are */
};

struct gx_port;
struct gx_port_queue;

struct gx_port_ops {
	const char *name;

	/* Return 0, -errno; the reason in words is in gx_port_why(). */
	int (*open)(const struct gx_port_cfg *cfg, struct gx_port **out);
	void (*close)(struct gx_port *p);
	int (*queue_open)(struct gx_port *p, unsigned index, struct gx_stats *stats,
			  struct gx_port_queue **out);
	void (*queue_close)(struct gx_port_queue *q);

	/* Memory that will be sent from; NICs map it for DMA, others return 0. */
	int (*mem_map)(struct gx_port *p, void *ptr, size_t len);
	void (*mem_unmap)(struct gx_port *p, void *ptr, size_t len);

	/* A place for one more peer (a connection); @laddr is what that peer's port needs to reach
	 * it. -ENOSPC. */
	int (*peer_add)(struct gx_port_queue *q, uint32_t *peer, struct gx_port_addr *laddr);
	/* What the peer said. Every byte of it is checked. -EPROTO. Takes raddr->fd over in any
	 * case. */
	int (*peer_connect)(struct gx_port_queue *q, uint32_t peer,
			    const struct gx_port_addr *raddr);
	void (*peer_del)(struct gx_port_queue *q, uint32_t peer);
	/* Of a connected peer; does not change. Any thread. */
	void (*peer_info)(struct gx_port_queue *q, uint32_t peer, struct gx_port_peer *out);

	/* [core] from now on rx_burst may report this peer / will no more, and nothing is sent to
	 * it. */
	void (*peer_attach)(struct gx_port_queue *q, uint32_t peer);
	void (*peer_detach)(struct gx_port_queue *q, uint32_t peer);

	/* [core] Take up to @n (<= GX_BURST_MAX) packets of one half, fair over peers. A data
	 * buffer is the caller's until rx_release. A malformed packet is counted and dropped here.
	 */
	unsigned (*rx_burst)(struct gx_port_queue *q, enum gx_half half, struct gx_rx pkts[],
			     unsigned n);
	/* [core] Data buffers back to the port; of detached peers too. */
	void (*rx_release)(struct gx_port_queue *q, const uint64_t bufs[], unsigned n);
	/* [core] How many packets of @half to @peer the next tx_burst will take at least. */
	unsigned (*tx_room)(struct gx_port_queue *q, enum gx_half half, uint32_t peer);
	/* [core] Send; returns how many were taken, from index 0. Header and (unless attached)
	 * payload are copied. */
	unsigned (*tx_burst)(struct gx_port_queue *q, enum gx_half half, const struct gx_tx pkts[],
			     unsigned n);
	/* [core] Cookies of packets whose payload is no longer referenced. */
	unsigned (*tx_reap)(struct gx_port_queue *q, uint32_t cookies[], unsigned n);
	/* [core] Sticky fault of the queue: 0 or -errno. */
	int (*fault)(struct gx_port_queue *q);
};

struct gx_port {
	const struct gx_port_ops *ops;
	struct gx_port_caps caps; /* frozen after open */
	const char *speaks; /* what must be equal at both ends, e.g. "dpdk:ethernet"; NULL: the
			       option up to its first comma. Frozen after open */
};

struct gx_port_queue {
	const struct gx_port_ops *ops;
	struct gx_port *port;
	char *rx_base; /* every data payload lies in [rx_base, rx_base + 4 GiB); frozen after
			  queue_open */
	struct gx_gpu *rx_gpu; /* whose memory that is; NULL: host memory. Frozen likewise */
	struct gx_stats *stats;
	uint64_t now_ns; /* [core] of the turn; the caller of rx_burst sets it */
};

extern const struct gx_port_ops gx_port_shm_ops, gx_port_udp_ops, gx_port_dpdk_ops;

/** gx_port_peer_plain() - ->peer_info of ports that treat all peers alike. */
void gx_port_peer_plain(struct gx_port_queue *q, uint32_t peer, struct gx_port_peer *out);

/** gx_port_find() - By name ("shm"); NULL when not built, with the reason in gx_port_why(). */
const struct gx_port_ops *gx_port_find(const char *name);
/** gx_port_add() - For tests: one more port that gx_port_find() knows, in place of the last one that
 * was added. Before another thread opens ports. */
void gx_port_add(const struct gx_port_ops *ops);
/** gx_port_why() / gx_port_why_set() - Reason of the control path's last failure, in words, with
 * its cure. */
const char *gx_port_why(void);
void gx_port_why_set(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
