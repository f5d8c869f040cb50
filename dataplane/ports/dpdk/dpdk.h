/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations for the files of the DPDK port. DPDK's own headers are included by the .c files that
 * call it. The prototypes are in order: each file calls those above it alone. A function without
 * [core] is control path.
 */
#ifndef GX_DPDK_H
#define GX_DPDK_H

#include "ports/dpdk/net.h"

struct rte_device;
struct rte_eth_dev_info;
struct rte_mbuf;
struct rte_mempool;

#define DPDK_DEVS_MAX 128 /* ethdevs of a process; DPDK's own limit is below it */
#define DPDK_FIFO     256 /* received packets of one half that wait for rx_burst */
#define DPDK_RX_BURST 32
#define DPDK_DESCS    1024 /* of a NIC's ring */
#define DPDK_CACHE    256  /* of a mempool */
#define DPDK_TX_SPARE (4 * GX_BURST_MAX + 2 * DPDK_CACHE)
#define DPDK_SPARES   (GX_PATHS_MAX - 1) /* UDP ports that packets only leave by, of all queues */

_Static_assert(sizeof(((struct gx_rx *)0)->hdr) >= DPDK_HDR_B, "a header fits");

/* How a driver treats packets that it gets to send. */
enum dpdk_tx_mode {
	DPDK_TX_COPY,	/* reads mbufs later, or one segment only: copy the payload */
	DPDK_TX_GATHER, /* copies all segments before tx_burst returns: point at the payload */
};

/* An ethdev queue. owner: core while attached, else ctl */
struct dpdk_dev {
	char name[64];
	uint16_t id, qid; /* number of DPDK's port; queue of that port */
	bool made, started;
	bool owns;	 /* memif: the socket is ours, the peer connects there. Frozen */
	bool up;	 /* memif: the link has been seen up */
	bool quiet;	 /* memif: the peer is closing; nobody may poll the device */
	bool bye;	 /* memif: this side has sent its goodbye */
	bool gated;	 /* memif: bursts go through the gate. Frozen while attached */
	bool risen;	 /* memif: the gate's thread has seen the link up; under gate.lock */
	_Atomic bool in; /* gated: a core is in a burst */
	bool verify;	 /* packets cross a wire: check sums */
	bool cut; /* receives data packets alone: header in host memory, payload in the pool */
	enum dpdk_tx_mode tx_mode;
	uint32_t peer;	    /* memif: peer of this device; else GX_PEER_ANY */
	uint32_t frame_max; /* largest frame to send */
	struct rte_mempool *rx_pool, *tx_pool;
	struct rte_mbuf *head[GX_BURST_MAX], *body[GX_BURST_MAX]; /* GATHER: stay ours */
	struct rte_mbuf *kept[GX_BURST_MAX]; /* taken; the driver had no room */
	unsigned nr_kept, kept_at;
};

/* owner: ctl, frozen while attached */
struct dpdk_peer {
	bool connected, attached;
	struct dpdk_encap encap[2]; /* by half; owner while attached: core */
	struct dpdk_dev *dev;
	int pool; /* GPU, as the peer counts, that receives payload; -1: host memory */
};

/* A received packet that waits for rx_burst. */
struct dpdk_ent {
	struct rte_mbuf *m;
	uint32_t peer;
	uint32_t len; /* payload */
	uint32_t seq; /* order of arrival */
};

struct dpdk_fifo {
	uint32_t head, tail; /* free running */
	struct dpdk_ent ent[DPDK_FIFO];
};

/* owner: core; ctl for peers that are not attached */
struct dpdk_queue {
	struct gx_port_queue q;
	struct dpdk_port *port;
	unsigned index;
	uint16_t udp_port;
	int fault; /* sticky */
	uint32_t seq;
	ptrdiff_t alias;		      /* EAL's address + alias = address in the arena */
	struct dpdk_dev *devs[DPDK_DEVS_MAX]; /* to poll */
	unsigned nr_devs, rover;
	struct dpdk_fifo fifo[2]; /* by half */
	struct gx_ring **from;	  /* [nr_queues] our packets from other queues; NULL: none */
	struct dpdk_dev dev;	  /* the shared one */
	struct dpdk_dev cut;	  /* the second receive queue, with a pool in GPU memory */
	struct dpdk_peer *peer[GX_PEERS_MAX];
	uint8_t ctl_buf[GX_BURST_MAX][GX_CTL_PAYLOAD_MAX];
};

/* A pool in GPU memory, for data packets of all queues. owner: ctl; frozen after open */
struct dpdk_pool {
	struct gx_arena *arena; /* NULL: payload goes to host memory; the rest is unused */
	struct gx_gpu *gpu;
	void *mem; /* on the GPU; NULL: none yet */
	size_t len;
	bool known;			  /* registered with EAL */
	struct rte_device *dev;		  /* has it mapped for DMA; NULL: none */
	struct rte_mempool *head, *slots; /* mbufs of headers; mbufs of payload in that memory */
};

/* owner: ctl; frozen after open */
struct dpdk_port {
	struct gx_port p;
	struct dpdk_pool pool;
	struct dpdk_args args;
	struct dpdk_net net;
	struct gx_arena *arena;
	void *alias; /* where the arena maps EAL's memory; NULL: no arena */
	bool server;
	bool zero_copy; /* memif: of devices whose socket is the peer's */
	bool hand_over; /* the device may bring a packet in at any queue */
	bool arp;	/* no kernel answers ARP for our address */
	unsigned nr_queues;
	uint32_t slots, room, ring; /* room: of an mbuf; ring: entries of a memif ring */
	uint32_t frame_max;
	int sockets[DPDK_SOCKETS_MAX + DPDK_SPARES];
	unsigned nr_sockets;
	bool shared_started;
	uint16_t shared_id;
	struct rte_device *pci;
	struct dpdk_queue *queue[]; /* [nr_queues] */
};

static inline struct dpdk_port *dpdk_port_of(struct gx_port *p)
{
	return GX_CONTAINER_OF(p, struct dpdk_port, p);
}

static inline struct dpdk_queue *dpdk_queue_of(struct gx_port_queue *q)
{
	return GX_CONTAINER_OF(q, struct dpdk_queue, q);
}

/* -- eal.c -- */

/* EAL's memory, one range from the start of one file. Frozen once EAL runs. */
struct dpdk_mem {
	char *base;
	size_t len;
	int fd;	     /* DPDK's descriptor of it */
	int fd_kept; /* our duplicate */
};
extern struct dpdk_mem dpdk_mem;

/** dpdk_eal_start() - Start EAL if it does not run yet. -EIO after a start that failed. */
int dpdk_eal_start(const struct gx_port_cfg *cfg, const struct dpdk_args *a);
/** dpdk_fd_restore() - Make DPDK's descriptor name EAL's memory again. Return: it does. */
bool dpdk_fd_restore(void);
/** dpdk_thread_enter() - [core] Give the calling thread an lcore number. */
void dpdk_thread_enter(void);
/** dpdk_unique() - A number that this process has not used in a name yet. */
unsigned dpdk_unique(void);
/** dpdk_said_clear() - Forget DPDK's log so far. Call it before a call that dpdk_why() may
 * explain. */
void dpdk_said_clear(void);
/** dpdk_has_said() - Has DPDK logged a warning since dpdk_said_clear()? */
bool dpdk_has_said(void);
/** dpdk_why() - Keep the reason: @name, @what happened, @err in words, DPDK's log. Return: @err. */
int dpdk_why(int err, const char *what, const char *name);

/* -- dev.c -- */

/** dpdk_pktmbufs_open() - A mempool of @nr mbufs of @room bytes. */
int dpdk_pktmbufs_open(const char *what, uint32_t nr, uint32_t room, struct rte_mempool **out);
int dpdk_dev_pools_open(struct dpdk_dev *d, uint32_t nr_rx, uint32_t nr_tx, uint32_t room);
void dpdk_dev_pools_close(struct dpdk_dev *d);
/** dpdk_dev_gather_init() - Allocate the mbufs of DPDK_TX_GATHER; if none: DPDK_TX_COPY. */
void dpdk_dev_gather_init(struct dpdk_dev *d);
enum dpdk_tx_mode dpdk_dev_tx_mode(const struct dpdk_args *a, const struct rte_eth_dev_info *info);
/**
 * dpdk_dev_configure() - Everything but the start. @pool: for the cut queues, which follow the @nr
 * others; NULL: none.
 */
int dpdk_dev_configure(uint16_t id, struct dpdk_dev *const devs[], unsigned nr,
		       const struct rte_eth_dev_info *info, uint32_t mtu,
		       const struct dpdk_pool *pool);
bool dpdk_dev_is_up(const struct dpdk_dev *d);
/** dpdk_port_sizes() - Frames, mbufs and payload for @mtu; @wanted: payload, 0: the best. */
void dpdk_port_sizes(struct dpdk_port *p, uint32_t mtu, uint32_t wanted);

/* -- gate.c -- */

/** dpdk_dev_rx() - [core] A burst from @d; 0 while the gate is shut. dpdk_dev_tx() sends. */
uint16_t dpdk_dev_rx(struct dpdk_dev *d, struct rte_mbuf *m[], uint16_t n);
uint16_t dpdk_dev_tx(struct dpdk_dev *d, struct rte_mbuf *m[], uint16_t n);
/**
 * dpdk_gate_call() - Call @fn(@arg) on DPDK's interrupt thread, while no core is in a burst.
 * memif's handlers rely on that.
 */
int dpdk_gate_call(int (*fn)(void *arg), void *arg);
/** dpdk_gate_let() - Let DPDK's interrupt thread do its waiting work. Returns when it is done. */
void dpdk_gate_let(void);
/**
 * dpdk_gate_replace() - Put @by in the place of @is among the devices behind the gate. NULL is an
 * empty place. Return: there was such a place.
 */
bool dpdk_gate_replace(struct dpdk_dev *is, struct dpdk_dev *by);

/* -- memif.c -- */

int dpdk_memif_open(struct dpdk_port *p, const struct gx_port_cfg *cfg);
/** dpdk_memif_add() - Make the device of peer @index. @owns: its socket is ours, @sock gets the
 * address. */
int dpdk_memif_add(struct dpdk_queue *q, uint32_t index, bool owns, struct dpdk_addr *sock);
int dpdk_memif_connect(struct dpdk_queue *q, struct dpdk_peer *peer, const struct dpdk_addr *addr);
void dpdk_memif_free(struct dpdk_dev *d);
/** dpdk_memif_bye() - [core] Say goodbye before a close: the peer then leaves the rings alone. */
void dpdk_memif_bye(struct dpdk_dev *d);
bool dpdk_memif_is_bye(const struct rte_mbuf *m);

/* -- steer.c -- */

/** dpdk_hand_open() - A ring from each queue to each other queue. One core puts, one core takes. */
int dpdk_hand_open(struct dpdk_port *p);
void dpdk_hand_close(struct dpdk_port *p);
/** dpdk_rules_open() - A flow rule for each UDP port; else cores hand packets over. @isolated: the
 * device brings in only packets that a rule names. */
int dpdk_rules_open(struct dpdk_port *p, bool isolated);

/* -- pool.c -- */

/** dpdk_pool_refuse() - Keep the reason: the device @lacks it, and the cure. -EOPNOTSUPP */
int dpdk_pool_refuse(const struct dpdk_port *p, const char *lacks);
int dpdk_pool_probe(const struct dpdk_port *p, const struct rte_eth_dev_info *info);
int dpdk_pool_open(struct dpdk_port *p, const struct rte_eth_dev_info *info);
void dpdk_pool_close(struct dpdk_port *p);

/* -- shared.c -- */

int dpdk_shared_open(struct dpdk_port *p, const struct gx_port_cfg *cfg);
void dpdk_shared_close(struct dpdk_port *p);
int dpdk_shared_connect(struct dpdk_queue *q, struct dpdk_peer *peer, const struct dpdk_addr *addr);

/* -- rxtx.c: slots of gx_port_ops [core] -- */

void dpdk_peer_attach(struct gx_port_queue *gq, uint32_t index);
void dpdk_peer_detach(struct gx_port_queue *gq, uint32_t index);
unsigned dpdk_rx_burst(struct gx_port_queue *gq, enum gx_half half, struct gx_rx pkts[],
		       unsigned n);
void dpdk_rx_release(struct gx_port_queue *gq, const uint64_t bufs[], unsigned n);
unsigned dpdk_tx_room(struct gx_port_queue *gq, enum gx_half half, uint32_t index);
unsigned dpdk_tx_burst(struct gx_port_queue *gq, enum gx_half half, const struct gx_tx pkts[],
		       unsigned n);
void dpdk_path(struct gx_port_queue *gq, enum gx_half half, uint32_t index, unsigned path);
unsigned dpdk_tx_reap(struct gx_port_queue *q, uint32_t cookies[], unsigned n);
int dpdk_fault(struct gx_port_queue *gq);

#endif
