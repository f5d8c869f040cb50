/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations for the files of port udp: port_udp.c (port, queues, peers), udp_rxtx.c (bursts),
 * udp_filter.c (the kernel's filter) and udp_name.c (addresses). No file calls a file named before
 * it.
 */
#ifndef GX_UDP_H
#define GX_UDP_H

#include "gx_internal/port.h"
#include "gx_internal/wire.h"

#include <netinet/in.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/socket.h>

#define UDP_GRO_B	65536 /* no datagram is longer */
#define UDP_BUCKETS_LOG 10
#define UDP_BUCKETS	(1u << UDP_BUCKETS_LOG) /* hash table of peers by address */

union udp_name {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

#define UDP_SPARES (GX_PATHS_MAX - 1) /* sockets that only send: other source ports */

struct udp_peer {
	bool used, attached, connected;
	uint8_t path
		[2]; /* enum gx_half; owner: poll core; 0: by the half's own socket, else by a spare */
	uint16_t next; /* owner: poll core; 1 + the next attached one of its bucket, 0: none */
	union udp_name to[2];	    /* enum gx_half */
	uint16_t spare[UDP_SPARES]; /* its other source ports, both halves'; 0: none */
	uint16_t spare_next
		[UDP_SPARES]; /* as next, in spare_bucket: 1 + peer * UDP_SPARES + number */
};

/* Arguments of the batched calls, kept from call to call. owner: poll core */
struct udp_half {
	int fd;
	uint32_t drops; /* the kernel's overflow counter at the last look */
	bool gso;	/* UDP_SEGMENT works; data half only */
	struct mmsghdr rx[GX_BURST_MAX], tx[GX_BURST_MAX];
	union udp_name from[GX_BURST_MAX]; /* of rx */
	struct iovec rx_iov[GX_BURST_MAX][2], tx_iov[GX_BURST_MAX][2];
	uint8_t tx_pkts[GX_BURST_MAX]; /* packets of each message */
	/* drops, length of a train's packets, ECN */
	char cmsg[GX_BURST_MAX][CMSG_SPACE(sizeof(uint32_t)) + 2 * CMSG_SPACE(sizeof(int))];
	char tx_cmsg[GX_BURST_MAX][CMSG_SPACE(sizeof(uint16_t))];
};

/* What the kernel says of a message. */
struct udp_said {
	uint32_t seg_b; /* length of the packets of a train; 0: no train */
	bool marked;	/* ECN: CE */
};

/* Receiving trains: several packets in one datagram. owner: poll core */
struct udp_gro {
	bool on;	   /* frozen after open: UDP_GRO works */
	uint32_t seg_b;	   /* header and payload of a packet in the last train */
	uint32_t seg_pkts; /* most packets of a train so far */
	struct iovec iov[3 * GX_BURST_MAX];
	uint8_t *spill;	   /* [GX_BURST_MAX][UDP_GRO_B]: bytes beyond the guessed places */
	uint8_t *line_buf; /* [GX_BURST_MAX][UDP_GRO_B]: trains to take by copying */
	struct {
		uint32_t len_b, seg_b;
		bool marked;
	} lines[GX_BURST_MAX];
	unsigned nr_lines, line; /* trains in line_buf; the first one not taken yet */
	uint32_t line_at;	 /* bytes taken of that one */
};

struct udp_queue {
	struct gx_port_queue q;
	struct udp_half half[2]; /* enum gx_half */
	struct udp_gro gro;	 /* of the data half */
	union udp_name name;	 /* frozen after open: our address of the data socket */
	char *slots;		 /* in the arena */
	size_t slots_len;
	uint32_t nr_slots, slot_b;
	uint32_t *free_slot; /* owner: poll core; stack */
	uint32_t nr_free;
	uint8_t *held;			    /* owner: poll core; [nr_slots] */
	uint8_t *ctl_buf;		    /* owner: poll core; GX_BURST_MAX payloads */
	_Atomic int fault;		    /* sticky */
	uint16_t bucket[UDP_BUCKETS];	    /* owner: poll core; 1 + an attached peer, by address */
	uint16_t spare_bucket[UDP_BUCKETS]; /* the same by address and spare port, see spare_next */
	int spare_fd[UDP_SPARES];	    /* frozen after open; -1: none */
	uint16_t spare[UDP_SPARES];	    /* their ports */
	struct udp_peer peer[GX_PEERS_MAX];
};

/* Frozen after open. */
struct udp_port {
	struct gx_port p;
	struct gx_arena *arena;
	union udp_name name; /* port 0: any; else queue 0's */
	unsigned last;	     /* not 0: each queue takes two that are free, up to this one */
	uint32_t nr_slots, slot_b;
};

static inline struct udp_queue *udp_queue_of(struct gx_port_queue *q)
{
	return GX_CONTAINER_OF(q, struct udp_queue, q);
}

static inline socklen_t udp_name_len(const union udp_name *name)
{
	return name->sa.sa_family == AF_INET ? sizeof(name->in) : sizeof(name->in6);
}

static inline void udp_port_set(union udp_name *name, unsigned port)
{
	if (name->sa.sa_family == AF_INET)
		name->in.sin_port = htons((uint16_t)port);
	else
		name->in6.sin6_port = htons((uint16_t)port);
}

static inline unsigned udp_port_get(const union udp_name *name)
{
	return ntohs(name->sa.sa_family == AF_INET ? name->in.sin_port : name->in6.sin6_port);
}

static inline bool udp_same_host(const union udp_name *a, const struct sockaddr *b)
{
	if (!b || a->sa.sa_family != b->sa_family)
		return false;
	if (b->sa_family == AF_INET)
		return a->in.sin_addr.s_addr == ((const struct sockaddr_in *)b)->sin_addr.s_addr;
	return !memcmp(&a->in6.sin6_addr, &((const struct sockaddr_in6 *)b)->sin6_addr, 16);
}

/* -- udp_name.c (control path) -- */

/** udp_resolve() - Find the address of @host, with port 0; refuse "any". 0, -EINVAL */
int udp_resolve(const char *host, union udp_name *name);
bool udp_is_any(const union udp_name *name);
/** udp_mtu() - MTU of the interface that has @name's address, and whether it is loopback. */
int udp_mtu(const union udp_name *name, bool *loopback);

/* -- udp_filter.c (control path) -- */

/** udp_filter() - Make the kernel drop packets from the UDP port of no peer. */
void udp_filter(struct udp_queue *q);
/** udp_filter_all() - Make it drop all that comes to @fd, which only sends. */
void udp_filter_all(int fd);

/* -- udp_rxtx.c: slots of gx_port_ops [core] -- */

void udp_peer_attach(struct gx_port_queue *gq, uint32_t index);
void udp_peer_detach(struct gx_port_queue *gq, uint32_t index);
unsigned udp_rx_burst(struct gx_port_queue *gq, enum gx_half half, struct gx_rx pkts[], unsigned n);
void udp_rx_release(struct gx_port_queue *gq, const uint64_t bufs[], unsigned n);
unsigned udp_tx_room(struct gx_port_queue *gq, enum gx_half half, uint32_t index);
unsigned udp_tx_burst(struct gx_port_queue *gq, enum gx_half half, const struct gx_tx pkts[],
		      unsigned n);
void udp_path(struct gx_port_queue *gq, enum gx_half half, uint32_t index, unsigned path);
int udp_fault(struct gx_port_queue *gq);
int udp_sleep_open(struct gx_port_queue *gq, int fd);
int udp_sleep_look(struct gx_port_queue *gq);

#endif
