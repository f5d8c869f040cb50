/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel's UDP: runs anywhere, for correctness rather than speed. A queue has two sockets, data
 * on port P and control on P + 1, and bursts are one recvmmsg or sendmmsg. A datagram is the packet
 * header, always GX_WIRE_HDR_B bytes, and the payload, as on every Ethernet port; the kernel
 * scatters it into the header's place and a bounce buffer. Whose a packet is, the connection id in
 * the header says; but it must come from the address of one of our peers. The kernel itself drops
 * what comes from the UDP port of none, so that a flood from there costs the core nothing and takes
 * no room of peers' packets.
 *
 * Where the kernel has UDP_SEGMENT and UDP_GRO, data packets of one length to one peer go through
 * it as one large datagram, and come out of it as one; each has the path of its own datagrams on
 * the wire. One that comes is scattered over slots by the length that the last one's packets had;
 * when that was wrong, it is put right by copying.
 */
#include "gx_internal/fork.h"
#include "gx_internal/port.h"
#include "gx_internal/wire.h"

#include <assert.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define UDP_SLOTS	 4096
#define UDP_SLOTS_MAX	 65536
#define UDP_SLOT_B	 8192
#define UDP_DATAGRAM_MAX 65507 /* payload of the largest IPv4 datagram; IPv6 could 20 more */
#define UDP_RCVBUF_B	 (32 << 20)
#define UDP_SNDBUF_B	 (4 << 20)
#define UDP_BIND_TRIES	 256
#define UDP_ERR_TRIES	 4 /* errors of earlier packets that one burst sweeps up */
#define UDP_HDR_B	 8
#define UDP_TRAIN_B	 65000 /* of packets that go as one; the kernel takes 65,507 with IPv4 */
#define UDP_TRAIN_PKTS	 64    /* UDP_MAX_SEGMENTS of include/linux/udp.h, before Linux 6.9 */
#define UDP_GRO_B	 65536 /* no datagram is longer */
#define UDP_BUCKETS_LOG	 10
#define UDP_BUCKETS	 (1u << UDP_BUCKETS_LOG) /* of peers by address */
#define UDP_FILTER_LEAF	 8 /* ports of peers that the filter compares one by one */
#define UDP_FILTER_MAX	 (3 + 2 * GX_PEERS_MAX) /* instructions; see udp_filter_emit() */

/* Address blob: what the other side sends to. */
struct udp_addr {
	uint8_t family; /* 4, 6 */
	uint8_t zero;
	uint16_t port;	/* of data; control is the next one */
	uint32_t scope; /* IPv6 */
	uint8_t ip[16];
};
_Static_assert(sizeof(struct udp_addr) == 24, "no holes");

union udp_name {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

struct udp_peer {
	bool used, attached, connected;
	uint16_t next; /* owner: poll core; 1 + the next attached one of its bucket, 0: none */
	union udp_name to[2]; /* enum gx_half */
};

/* Arguments of the batched calls, kept filled in. owner: poll core */
struct udp_half {
	int fd;
	uint32_t drops; /* last value of the kernel's overflow counter */
	bool gso;	/* UDP_SEGMENT works; data half only */
	struct mmsghdr rx[GX_BURST_MAX], tx[GX_BURST_MAX];
	union udp_name from[GX_BURST_MAX]; /* of rx */
	struct iovec rx_iov[GX_BURST_MAX][2], tx_iov[GX_BURST_MAX][2];
	uint8_t tx_pkts[GX_BURST_MAX]; /* of each message */
	char cmsg[GX_BURST_MAX][CMSG_SPACE(sizeof(uint32_t)) + CMSG_SPACE(sizeof(int))];
	char tx_cmsg[GX_BURST_MAX][CMSG_SPACE(sizeof(uint16_t))];
};

/* Receiving trains of packets. owner: poll core */
struct udp_gro {
	bool on;	   /* frozen after open: UDP_GRO works */
	uint32_t seg_b;	   /* header and payload of a packet, as the last train had it */
	uint32_t seg_pkts; /* packets that a train has had at most */
	struct iovec iov[3 * GX_BURST_MAX];
	uint8_t *spill;	   /* [GX_BURST_MAX][UDP_GRO_B]: what the guess had no place for */
	uint8_t *line_buf; /* [GX_BURST_MAX][UDP_GRO_B]: trains that are taken by copying */
	struct {
		uint32_t len_b, seg_b;
	} lines[GX_BURST_MAX];
	unsigned nr_lines, line; /* how many stand there, the first that is not taken yet */
	uint32_t line_at;	 /* bytes taken of it */
};

struct udp_queue {
	struct gx_port_queue q;
	struct udp_half half[2]; /* enum gx_half */
	struct udp_gro gro;	 /* of the data half */
	union udp_name name;	 /* frozen after open: where data is received */
	char *slots;		 /* in the arena */
	size_t slots_len;
	uint32_t nr_slots, slot_b;
	uint32_t *free_slot; /* owner: poll core; stack */
	uint32_t nr_free;
	uint8_t *held;		      /* owner: poll core; [nr_slots] */
	uint8_t *ctl_buf;	      /* owner: poll core; GX_BURST_MAX payloads */
	_Atomic int fault;	      /* sticky */
	uint16_t bucket[UDP_BUCKETS]; /* owner: poll core; 1 + an attached peer, by address */
	struct udp_peer peer[GX_PEERS_MAX];
};

/* Frozen after open. */
struct udp_port {
	struct gx_port p;
	struct gx_arena *arena;
	union udp_name name; /* port 0, or of queue 0 */
	uint32_t nr_slots, slot_b;
};

static struct udp_queue *udp_queue_of(struct gx_port_queue *q)
{
	return GX_CONTAINER_OF(q, struct udp_queue, q);
}

/* ---- Names ---- */

static socklen_t udp_name_len(const union udp_name *name)
{
	return name->sa.sa_family == AF_INET ? sizeof(name->in) : sizeof(name->in6);
}

static void udp_port_set(union udp_name *name, unsigned port)
{
	if (name->sa.sa_family == AF_INET)
		name->in.sin_port = htons((uint16_t)port);
	else
		name->in6.sin6_port = htons((uint16_t)port);
}

static unsigned udp_port_get(const union udp_name *name)
{
	return ntohs(name->sa.sa_family == AF_INET ? name->in.sin_port : name->in6.sin6_port);
}

static bool udp_is_any(const union udp_name *name)
{
	if (name->sa.sa_family == AF_INET)
		return name->in.sin_addr.s_addr == htonl(INADDR_ANY);
	return IN6_IS_ADDR_UNSPECIFIED(&name->in6.sin6_addr);
}

static bool udp_same_host(const union udp_name *a, const struct sockaddr *b)
{
	if (!b || a->sa.sa_family != b->sa_family)
		return false;
	if (b->sa_family == AF_INET)
		return a->in.sin_addr.s_addr == ((const struct sockaddr_in *)b)->sin_addr.s_addr;
	return !memcmp(&a->in6.sin6_addr, &((const struct sockaddr_in6 *)b)->sin6_addr, 16);
}

static int udp_resolve(const char *host, union udp_name *name)
{
	struct addrinfo hint = {.ai_socktype = SOCK_DGRAM}, *list;
	int err = getaddrinfo(host, NULL, &hint, &list);

	if (err) {
		gx_port_why_set("port udp: address \"%s\": %s", host, gai_strerror(err));
		return -EINVAL;
	}
	memset(name, 0, sizeof(*name));
	memcpy(name, list->ai_addr, GX_MIN(list->ai_addrlen, (socklen_t)sizeof(*name)));
	freeaddrinfo(list);
	if ((name->sa.sa_family != AF_INET && name->sa.sa_family != AF_INET6) || udp_is_any(name)) {
		gx_port_why_set(
			"port udp: \"%s\" is not one address that peers can send to; bind to the "
			"address of an interface",
			host);
		return -EINVAL;
	}
	return 0;
}

/* MTU of the interface that has @name's address, and whether it is loopback. */
static int udp_mtu(const union udp_name *name, bool *loopback)
{
	int mtu = 1500, fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ifaddrs *list, *i;
	struct ifreq req;

	*loopback = false;
	if (name->sa.sa_family == AF_INET)
		*loopback = ntohl(name->in.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
	if (fd < 0 || getifaddrs(&list)) {
		if (fd >= 0)
			close(fd);
		return *loopback ? 65536 : mtu;
	}
	if (*loopback)
		mtu = 65536;
	for (i = list; i; i = i->ifa_next) {
		if (!udp_same_host(name, i->ifa_addr))
			continue;
		memset(&req, 0, sizeof(req));
		snprintf(req.ifr_name, sizeof(req.ifr_name), "%s", i->ifa_name);
		if (!ioctl(fd, SIOCGIFMTU, &req))
			mtu = req.ifr_mtu;
		*loopback |= (i->ifa_flags & IFF_LOOPBACK) != 0;
		break;
	}
	freeifaddrs(list);
	close(fd);
	return mtu;
}

/* ---- Port (control path) ---- */

/* Payload: the largest preferred size that the MTU lets through. */
static int udp_caps(struct udp_port *p, const struct gx_port_cfg *cfg)
{
	static const uint32_t preferred[] = {8192, 4096, 3328, 1392, GX_WIRE_QUANTUM_MIN};
	int ip_b = p->name.sa.sa_family == AF_INET ? 20 : 40;
	bool loopback;
	int mtu = udp_mtu(&p->name, &loopback);
	int room = GX_MIN(mtu - ip_b - UDP_HDR_B, UDP_DATAGRAM_MAX) - GX_WIRE_HDR_B;
	uint32_t max = room > 0 ? (uint32_t)room & ~15u : 0, best = 0;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(preferred) && !best; i++)
		if (preferred[i] <= max)
			best = preferred[i];
	if (cfg->payload_b)
		best = cfg->payload_b;
	if (!best || best > max || best % 16) {
		gx_port_why_set(
			"port udp: payload of %u bytes; the interface of %s can have %u at most, "
			"a multiple of 16",
			best, cfg->bind_host, max);
		return -EINVAL;
	}
	p->slot_b = GX_MAX(best, GX_MIN(max, (uint32_t)UDP_SLOT_B));
	p->p.caps = (struct gx_port_caps){.payload_max = p->slot_b,
					  .payload_best = best,
					  .rx_slots = p->nr_slots,
					  .flags = GX_PORT_SHARED_POOL};
	p->p.caps.flags |= loopback ? GX_PORT_LOCAL : GX_PORT_NEEDS_PROBE;
	return 0;
}

static int udp_args(struct udp_port *p, const char *args)
{
	unsigned port;
	char end;

	if (!args || !*args)
		return 0;
	if (sscanf(args, "port=%u%c", &port, &end) != 1 || !port || port > 65000) {
		gx_port_why_set(
			"port udp: \"%s\"; the only argument is port=N, the first of two UDP ports "
			"a core",
			args);
		return -EINVAL;
	}
	udp_port_set(&p->name, port);
	return 0;
}

static int udp_open(const struct gx_port_cfg *cfg, struct gx_port **out)
{
	struct udp_port *p = calloc(1, sizeof(*p));
	int ret;

	if (!p)
		return -ENOMEM;
	if (cfg->pool) {
		gx_port_why_set("port udp: the kernel's sockets cannot write to GPU memory: take "
				"--bounce host, or --port shm on one host");
		free(p);
		return -EOPNOTSUPP;
	}
	p->p.ops = &gx_port_udp_ops;
	p->arena = cfg->arena;
	p->nr_slots = cfg->slots ? cfg->slots : UDP_SLOTS;
	ret = udp_resolve(cfg->bind_host, &p->name);
	if (!ret)
		ret = udp_args(p, cfg->args);
	if (!ret)
		ret = udp_caps(p, cfg);
	if (!ret && p->nr_slots > UDP_SLOTS_MAX) {
		gx_port_why_set("port udp: at most %u slots", UDP_SLOTS_MAX);
		ret = -EINVAL;
	}
	if (ret) {
		free(p);
		return ret;
	}
	*out = &p->p;
	return 0;
}

static void udp_close(struct gx_port *p)
{
	free(p ? GX_CONTAINER_OF(p, struct udp_port, p) : NULL);
}

static int udp_mem_map(struct gx_port *p, void *ptr, size_t len)
{
	return 0;
}

static void udp_mem_unmap(struct gx_port *p, void *ptr, size_t len)
{
}

/* ---- Who is heard (control path) ---- */

static int udp_port_cmp(const void *a, const void *b)
{
	return *(const uint16_t *)a - *(const uint16_t *)b;
}

/* Take what comes from one of @n ports in ascending order: a tree, so that many peers cost a packet
 * a few comparisons. A leaf takes two instructions beside its ports and so does an inner node, of
 * which there are fewer; a leaf has at least half of UDP_FILTER_LEAF ports, unless it is the only
 * one. Return: instructions. */
/* NOLINTNEXTLINE(misc-no-recursion): as deep as the tree, log2 of the peers */
static unsigned udp_filter_emit(struct sock_filter *f, const uint16_t *port, unsigned n)
{
	unsigned low = n / 2, len;

	if (n > UDP_FILTER_LEAF) {
		len = 2 + udp_filter_emit(f + 2, port, low);
		f[0] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, port[low], 0, 1);
		f[1] = (struct sock_filter)BPF_STMT(BPF_JMP | BPF_JA, len - 2);
		return len + udp_filter_emit(f + len, port + low, n - low);
	}
	for (unsigned i = 0; i < n; i++)
		f[i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, port[i],
						    (uint8_t)(n - i), 0);
	f[n] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
	f[n + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, UINT32_MAX);
	return n + 2;
}

/* Has the kernel drop what comes from no peer's UDP port, and count it with what it had no room
 * for. A wish: where there is no filter, udp_is_known() still looks. */
static void udp_filter(struct udp_queue *q)
{
	for (unsigned h = 0; h < 2; h++) {
		struct sock_filter f[UDP_FILTER_MAX] = {
			BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 0), /* the UDP header's source port */
		};
		struct sock_fprog prog = {.filter = f};
		uint16_t port[GX_PEERS_MAX];
		unsigned n = 0;

		for (uint32_t i = 0; i < GX_PEERS_MAX; i++)
			if (q->peer[i].used && q->peer[i].connected)
				port[n++] = (uint16_t)udp_port_get(&q->peer[i].to[h]);
		qsort(port, n, sizeof(port[0]), udp_port_cmp);
		prog.len = (uint16_t)(1 + udp_filter_emit(f + 1, port, n));
		assert(prog.len <= UDP_FILTER_MAX);
		/* The one before would drop what the new peer sends. */
		if (setsockopt(q->half[h].fd, SOL_SOCKET, SO_ATTACH_FILTER, &prog, sizeof(prog)))
			setsockopt(q->half[h].fd, SOL_SOCKET, SO_DETACH_FILTER, &prog.len,
				   sizeof(int));
	}
}

/* ---- Queue (control path) ---- */

/* All options are wishes but the one that keeps packets whole: a fragmented one costs more than it
 * carries. */
static int udp_socket(const union udp_name *name)
{
	int rcv = UDP_RCVBUF_B, snd = UDP_SNDBUF_B, on = 1, discover = IP_PMTUDISC_DO;
	bool v4 = name->sa.sa_family == AF_INET;
	int fd = socket(name->sa.sa_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &rcv, sizeof(rcv)))
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcv, sizeof(rcv));
	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &snd, sizeof(snd)))
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &snd, sizeof(snd));
	setsockopt(fd, SOL_SOCKET, SO_RXQ_OVFL, &on, sizeof(on));
	if (setsockopt(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_MTU_DISCOVER : IPV6_MTU_DISCOVER,
		       &discover, sizeof(discover)) ||
	    bind(fd, &name->sa, udp_name_len(name))) {
		int ret = -errno;

		close(fd);
		return ret;
	}
	return gx_fd_own(fd);
}

/* Does the kernel take and give several packets at once? Since Linux 4.18 and 5.0. */
static void udp_trains(struct udp_queue *q)
{
	struct udp_half *h = &q->half[GX_HALF_DATA];
	int off = 0, on = 1;

	h->gso = !setsockopt(h->fd, IPPROTO_UDP, UDP_SEGMENT, &off, sizeof(off));
	q->gro.on = !setsockopt(h->fd, IPPROTO_UDP, UDP_GRO, &on, sizeof(on));
	q->gro.seg_b = GX_WIRE_HDR_B + q->slot_b;
	q->gro.seg_pkts = UDP_GRO_B / q->gro.seg_b;
	if (!h->gso || !q->gro.on)
		gx_info("port udp: the kernel has no %s%s%s: a packet costs more",
			h->gso ? "" : "UDP_SEGMENT", h->gso || q->gro.on ? "" : " and no ",
			q->gro.on ? "" : "UDP_GRO");
}

/* Data on a port and control on the next one; where port is 0 any such pair that is free. */
static int udp_bind_pair(struct udp_queue *q, const union udp_name *want)
{
	int ret = -EADDRINUSE;

	for (unsigned i = 0; i < UDP_BIND_TRIES && ret == -EADDRINUSE; i++) {
		union udp_name name = *want;
		socklen_t len = sizeof(name);
		int data = udp_socket(&name), ctl;

		if (data < 0)
			return data;
		getsockname(data, &name.sa, &len);
		q->name = name;
		udp_port_set(&name, udp_port_get(&name) + 1);
		ctl = udp_port_get(&name) ? udp_socket(&name) : -EADDRINUSE;
		if (ctl >= 0) {
			q->half[GX_HALF_DATA].fd = data;
			q->half[GX_HALF_CTL].fd = ctl;
			udp_trains(q);
			return 0;
		}
		ret = ctl;
		gx_fd_close(data);
		if (udp_port_get(want))
			break;
	}
	return ret;
}

static void udp_half_init(struct udp_half *h)
{
	h->fd = -1;
	for (unsigned i = 0; i < GX_BURST_MAX; i++) {
		h->rx_iov[i][0].iov_len = GX_WIRE_HDR_B;
		h->rx[i].msg_hdr.msg_iov = h->rx_iov[i];
		h->rx[i].msg_hdr.msg_iovlen = 2;
		h->rx[i].msg_hdr.msg_name = &h->from[i];
		h->rx[i].msg_hdr.msg_control = h->cmsg[i];
	}
}

static int udp_queue_alloc(struct udp_port *p, struct udp_queue *q)
{
	void *slots;
	int ret;

	udp_half_init(&q->half[0]);
	udp_half_init(&q->half[1]);
	q->nr_slots = p->nr_slots;
	q->slot_b = p->slot_b;
	q->free_slot = calloc(q->nr_slots, sizeof(*q->free_slot));
	q->held = calloc(q->nr_slots, 1);
	q->ctl_buf = calloc(GX_BURST_MAX, GX_CTL_PAYLOAD_MAX);
	q->gro.spill = calloc(GX_BURST_MAX, UDP_GRO_B);
	q->gro.line_buf = calloc(GX_BURST_MAX, UDP_GRO_B);
	if (!q->free_slot || !q->held || !q->ctl_buf || !q->gro.spill || !q->gro.line_buf)
		return -ENOMEM;
	q->slots_len = GX_ALIGN_UP((size_t)q->nr_slots * q->slot_b, GX_HUGE_PAGE);
	ret = gx_arena_map(p->arena, -1, q->slots_len, &slots);
	if (ret) {
		gx_port_why_set(
			"port udp: no room for %u slots of %u bytes in the arena: %s; give fewer "
			"slots",
			q->nr_slots, q->slot_b, strerror(-ret));
		return ret;
	}
	q->slots = slots;
	for (uint32_t i = 0; i < q->nr_slots; i++)
		q->free_slot[i] = q->nr_slots - 1 - i;
	q->nr_free = q->nr_slots;
	for (unsigned i = 0; i < GX_BURST_MAX; i++) {
		struct iovec *iov = &q->half[GX_HALF_CTL].rx_iov[i][1];

		*iov = (struct iovec){q->ctl_buf + (size_t)i * GX_CTL_PAYLOAD_MAX,
				      GX_CTL_PAYLOAD_MAX};
		q->half[GX_HALF_DATA].rx_iov[i][1].iov_len = q->slot_b;
	}
	return 0;
}

static void udp_queue_free(struct udp_port *p, struct udp_queue *q)
{
	for (unsigned h = 0; h < 2; h++)
		if (q->half[h].fd >= 0)
			gx_fd_close(q->half[h].fd);
	if (q->slots)
		gx_arena_unmap(p->arena, q->slots, q->slots_len);
	free(q->free_slot);
	free(q->held);
	free(q->ctl_buf);
	free(q->gro.spill);
	free(q->gro.line_buf);
	free(q);
}

static void udp_why_bind(const union udp_name *name, int err)
{
	char host[64] = "?";

	getnameinfo(&name->sa, udp_name_len(name), host, sizeof(host), NULL, 0, NI_NUMERICHOST);
	gx_port_why_set("port udp: cannot bind two consecutive UDP ports of %s: %s%s", host,
			strerror(-err),
			err == -EADDRNOTAVAIL ? "; it must be an address of this host" : "");
}

static int udp_queue_open(struct gx_port *gp, unsigned index, struct gx_stats *stats,
			  struct gx_port_queue **out)
{
	struct udp_port *p = GX_CONTAINER_OF(gp, struct udp_port, p);
	struct udp_queue *q = calloc(1, sizeof(*q));
	union udp_name name = p->name;
	int ret;

	if (!q)
		return -ENOMEM;
	if (udp_port_get(&name))
		udp_port_set(&name, udp_port_get(&name) + 2 * index);
	ret = udp_queue_alloc(p, q);
	if (!ret) {
		ret = udp_bind_pair(q, &name);
		if (ret)
			udp_why_bind(&name, ret);
	}
	if (ret) {
		udp_queue_free(p, q);
		return ret;
	}
	q->q.ops = &gx_port_udp_ops;
	q->q.port = gp;
	q->q.stats = stats;
	q->q.rx_base = q->slots;
	udp_filter(q);
	*out = &q->q;
	return 0;
}

static void udp_queue_close(struct gx_port_queue *gq)
{
	udp_queue_free(GX_CONTAINER_OF(gq->port, struct udp_port, p), udp_queue_of(gq));
}

/* ---- Peers ---- */

static int udp_peer_add(struct gx_port_queue *gq, uint32_t *out, struct gx_port_addr *laddr)
{
	struct udp_queue *q = udp_queue_of(gq);
	struct udp_addr addr = {.family = q->name.sa.sa_family == AF_INET ? 4 : 6,
				.port = (uint16_t)udp_port_get(&q->name)};
	uint32_t i = 0;

	while (i < GX_PEERS_MAX && q->peer[i].used)
		i++;
	if (i == GX_PEERS_MAX) {
		gx_port_why_set("port udp: a core can have %u peers", GX_PEERS_MAX);
		return -ENOSPC;
	}
	q->peer[i] = (struct udp_peer){.used = true};
	if (addr.family == 4) {
		memcpy(addr.ip, &q->name.in.sin_addr, 4);
	} else {
		memcpy(addr.ip, &q->name.in6.sin6_addr, 16);
		addr.scope = q->name.in6.sin6_scope_id;
	}
	memcpy(laddr->b, &addr, sizeof(addr));
	laddr->len = sizeof(addr);
	laddr->fd = -1;
	*out = i;
	return 0;
}

/* The scope names an interface of the peer's host; ours is the one that we are bound to. */
static bool udp_addr_get(const struct udp_queue *q, const struct gx_port_addr *raddr,
			 union udp_name *name)
{
	struct udp_addr addr;

	if (raddr->len != sizeof(addr))
		return false;
	memcpy(&addr, raddr->b, sizeof(addr));
	memset(name, 0, sizeof(*name));
	name->sa.sa_family = q->name.sa.sa_family;
	if (addr.family == 4) {
		memcpy(&name->in.sin_addr, addr.ip, 4);
	} else {
		memcpy(&name->in6.sin6_addr, addr.ip, 16);
		name->in6.sin6_scope_id = q->name.in6.sin6_scope_id;
	}
	udp_port_set(name, addr.port);
	return addr.family == (q->name.sa.sa_family == AF_INET ? 4 : 6) && !addr.zero &&
	       addr.port && addr.port < UINT16_MAX && !udp_is_any(name);
}

/* What is sent to a peer goes where its bootstrap connection comes from, or anybody could have it
 * sent to anybody. */
static bool udp_is_from(const struct gx_port_addr *raddr)
{
	struct udp_addr addr;

	memcpy(&addr, raddr->b, sizeof(addr));
	return !raddr->from_len || (raddr->from_len == (addr.family == 4 ? 4 : 16) &&
				    !memcmp(addr.ip, raddr->from, raddr->from_len));
}

static int udp_peer_connect(struct gx_port_queue *gq, uint32_t index,
			    const struct gx_port_addr *raddr)
{
	struct udp_queue *q = udp_queue_of(gq);
	struct udp_peer *peer = &q->peer[index];
	union udp_name name;

	if (raddr->fd >= 0)
		close(raddr->fd);
	if (raddr->fd >= 0 || !udp_addr_get(q, raddr, &name)) {
		gx_port_why_set(
			"port udp: the peer's address is not valid, or not %s as ours is: connect "
			"to the server by the other family, or have it listen at that address "
			"alone",
			q->name.sa.sa_family == AF_INET ? "IPv4" : "IPv6");
		return -EPROTO;
	}
	if (!udp_is_from(raddr)) {
		gx_port_why_set(
			"port udp: the client's packets would come from another address than its "
			"connection: give it --bind with the one that the server sees");
		return -EPERM;
	}
	peer->to[GX_HALF_DATA] = peer->to[GX_HALF_CTL] = name;
	udp_port_set(&peer->to[GX_HALF_CTL], udp_port_get(&name) + 1);
	peer->connected = true;
	udp_filter(q);
	return 0;
}

static void udp_peer_del(struct gx_port_queue *gq, uint32_t index)
{
	udp_queue_of(gq)->peer[index].used = false;
	udp_filter(udp_queue_of(gq));
}

/* By IP address and data port, of which the control port is the next: both halves of a peer are
 * found there, and many processes of one host are not in one chain. */
static uint16_t *udp_bucket(struct udp_queue *q, const union udp_name *name, enum gx_half half)
{
	uint32_t key = name->in.sin_addr.s_addr, ip6[4];

	if (name->sa.sa_family == AF_INET6) {
		memcpy(ip6, &name->in6.sin6_addr, sizeof(ip6));
		key = ip6[0] ^ ip6[1] ^ ip6[2] ^ ip6[3];
	}
	key += udp_port_get(name) - (half == GX_HALF_CTL);
	key *= 0x9e3779b1u; /* 2^32 by the golden ratio: Knuth, TAOCP 6.4 */
	/* The high bits: the last byte of an IPv4 address, the highest of @key, reaches no others.
	 */
	return &q->bucket[key >> (32 - UDP_BUCKETS_LOG)];
}

static bool udp_same_name(const union udp_name *a, const union udp_name *b)
{
	if (a->sa.sa_family != b->sa.sa_family || udp_port_get(a) != udp_port_get(b))
		return false;
	return udp_same_host(a, &b->sa);
}

/* Is message @i from one of our peers? Who is not could know no connection id but by guessing, and
 * without integrity a good guess would be taken. Several connections may share an address. */
static bool udp_is_known(struct udp_queue *q, enum gx_half half, unsigned i)
{
	const union udp_name *from = &q->half[half].from[i];
	uint16_t at = *udp_bucket(q, from, half);

	while (at && !udp_same_name(&q->peer[at - 1].to[half], from))
		at = q->peer[at - 1].next;
	if (at)
		return true;
	gx_stat_add(q->q.stats, GX_STAT_RX_STRAY, 1);
	return false;
}

static void udp_peer_attach(struct gx_port_queue *gq, uint32_t index)
{
	struct udp_queue *q = udp_queue_of(gq);
	struct udp_peer *peer = &q->peer[index];
	uint16_t *bucket = udp_bucket(q, &peer->to[GX_HALF_DATA], GX_HALF_DATA);

	peer->attached = true;
	peer->next = *bucket;
	*bucket = (uint16_t)(index + 1);
}

static void udp_peer_detach(struct gx_port_queue *gq, uint32_t index)
{
	struct udp_queue *q = udp_queue_of(gq);
	uint16_t *at = udp_bucket(q, &q->peer[index].to[GX_HALF_DATA], GX_HALF_DATA);

	q->peer[index].attached = false;
	while (*at && *at != index + 1)
		at = &q->peer[*at - 1].next;
	if (*at)
		*at = q->peer[index].next;
}

/* ---- Receive [core] ---- */

/* Errors of packets sent before are reported once by any call: sweep them up. Return: messages, or
 * 0. */
static unsigned udp_recv(struct udp_queue *q, struct udp_half *h, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		h->rx[i].msg_hdr.msg_namelen = sizeof(h->from[i]);
	for (unsigned i = 0; n && i < UDP_ERR_TRIES; i++) {
		int got = recvmmsg(h->fd, h->rx, n, MSG_DONTWAIT, NULL);

		if (got >= 0)
			return (unsigned)got;
		if (errno == EBADF || errno == ENOTSOCK || errno == EFAULT || errno == EINVAL) {
			atomic_store_explicit(&q->fault, -errno, memory_order_relaxed);
			return 0;
		}
		if (errno == EAGAIN || errno == ENOMEM || errno == EINTR)
			return 0;
	}
	return 0;
}

/* The kernel says in a control message how many it has dropped in all, once there were any (a train
 * of packets counts as one there); and in
 * another how long the packets of a train are. Return: that, 0: it is one packet. */
static uint32_t udp_rx_cmsg(struct udp_queue *q, struct udp_half *h, struct msghdr *msg)
{
	uint32_t drops, seg_b = 0;
	int seg;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_RXQ_OVFL) {
			memcpy(&drops, CMSG_DATA(c), sizeof(drops));
			gx_stat_add(q->q.stats, GX_STAT_RX_NOBUF, drops - h->drops);
			h->drops = drops;
		} else if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
			memcpy(&seg, CMSG_DATA(c), sizeof(seg));
			seg_b = seg > 0 ? (uint32_t)seg : 0;
		}
	}
	return seg_b;
}

/* What is not whole, or a stranger's, is counted and its buffer given back. */
static bool udp_rx_one(struct udp_queue *q, enum gx_half half, unsigned i, struct gx_rx *pkt)
{
	const struct mmsghdr *msg = &q->half[half].rx[i];

	if (!udp_is_known(q, half, i))
		return false;
	if (msg->msg_len < GX_WIRE_HDR_B || (msg->msg_hdr.msg_flags & MSG_TRUNC)) {
		gx_stat_add(q->q.stats, GX_STAT_RX_BAD, 1);
		return false;
	}
	pkt->len = msg->msg_len - GX_WIRE_HDR_B;
	pkt->hlen = GX_WIRE_HDR_B;
	pkt->peer = GX_PEER_ANY;
	return true;
}

static void udp_slot_free(struct udp_queue *q, uint32_t slot)
{
	assert(slot < q->nr_slots && q->held[slot]);
	q->held[slot] = 0;
	q->free_slot[q->nr_free++] = slot;
}

/* Offer packet i the i-th slot from the top of the stack; the caller takes as many as came. */
static unsigned udp_rx_prepare(struct udp_queue *q, enum gx_half half, struct gx_rx pkts[],
			       unsigned n)
{
	struct udp_half *h = &q->half[half];

	if (half == GX_HALF_DATA)
		n = GX_MIN(n, q->nr_free);
	for (unsigned i = 0; i < n; i++) {
		h->rx_iov[i][0].iov_base = pkts[i].hdr;
		h->rx[i].msg_hdr.msg_controllen = sizeof(h->cmsg[i]);
		if (half == GX_HALF_DATA) {
			uint32_t slot = q->free_slot[q->nr_free - 1 - i];

			h->rx_iov[i][1].iov_base = q->slots + (size_t)slot * q->slot_b;
			pkts[i].buf = slot;
		}
	}
	return n;
}

/* ---- Receive trains [core] ---- */

/* A packet of @len bytes in all stands in @pkt's header and slot. */
static bool udp_gro_packet(struct udp_queue *q, struct gx_rx *pkt, uint32_t slot, uint32_t len)
{
	if (len < GX_WIRE_HDR_B || len - GX_WIRE_HDR_B > q->slot_b) {
		gx_stat_add(q->q.stats, GX_STAT_RX_BAD, 1);
		return false;
	}
	pkt->len = len - GX_WIRE_HDR_B;
	pkt->hlen = GX_WIRE_HDR_B;
	pkt->peer = GX_PEER_ANY;
	pkt->buf = slot;
	pkt->data = q->slots + (size_t)slot * q->slot_b;
	q->held[slot] = 1;
	return true;
}

/* Packets of the trains in the line, as far as slots and @n last. */
static unsigned udp_gro_line(struct udp_queue *q, struct gx_rx pkts[], unsigned n)
{
	struct udp_gro *g = &q->gro;
	unsigned good = 0;

	while (g->line < g->nr_lines && good < n && q->nr_free) {
		uint32_t len =
			GX_MIN(g->lines[g->line].seg_b, g->lines[g->line].len_b - g->line_at);
		const uint8_t *b = g->line_buf + (size_t)g->line * UDP_GRO_B + g->line_at;

		g->line_at += len;
		if (g->line_at == g->lines[g->line].len_b) {
			g->line++;
			g->line_at = 0;
		}
		if (!udp_gro_packet(q, &pkts[good], q->free_slot[q->nr_free - 1], len))
			continue;
		memcpy(pkts[good].hdr, b, GX_WIRE_HDR_B);
		memcpy(pkts[good].data, b + GX_WIRE_HDR_B, len - GX_WIRE_HDR_B);
		q->nr_free--;
		good++;
	}
	return good;
}

/* Message i has room for @k packets of seg_b bytes, slots from the top of the stack on, and a
 * place for the rest. Return: how many messages. */
static unsigned udp_gro_prepare(struct udp_queue *q, struct gx_rx pkts[], unsigned n, unsigned k)
{
	struct udp_half *h = &q->half[GX_HALF_DATA];
	struct iovec *iov = q->gro.iov;
	unsigned nr = n / k;

	for (unsigned i = 0; i < nr; i++) {
		struct msghdr *msg = &h->rx[i].msg_hdr;

		msg->msg_iov = iov;
		msg->msg_iovlen = 2 * k + 1;
		msg->msg_controllen = sizeof(h->cmsg[i]);
		for (unsigned j = i * k; j < (i + 1) * k; j++) {
			uint32_t slot = q->free_slot[q->nr_free - 1 - j];

			*iov++ = (struct iovec){pkts[j].hdr, GX_WIRE_HDR_B};
			*iov++ = (struct iovec){q->slots + (size_t)slot * q->slot_b,
						q->gro.seg_b - GX_WIRE_HDR_B};
		}
		*iov++ = (struct iovec){q->gro.spill + (size_t)i * UDP_GRO_B, UDP_GRO_B};
	}
	return nr;
}

/* The guess was wrong: message @m into the line, which has a place for each message of a burst. */
static void udp_gro_straighten(struct udp_queue *q, const struct mmsghdr *m, uint32_t seg_b)
{
	struct udp_gro *g = &q->gro;
	uint8_t *to = g->line_buf + (size_t)g->nr_lines * UDP_GRO_B;
	uint32_t len = GX_MIN(m->msg_len, (uint32_t)UDP_GRO_B), at = 0;

	for (size_t k = 0; k < m->msg_hdr.msg_iovlen && at < len; k++) {
		uint32_t part = GX_MIN(len - at, (uint32_t)m->msg_hdr.msg_iov[k].iov_len);

		memcpy(to + at, m->msg_hdr.msg_iov[k].iov_base, part);
		at += part;
	}
	g->lines[g->nr_lines].len_b = at;
	g->lines[g->nr_lines].seg_b = seg_b;
	g->nr_lines += at > 0;
}

/* The packets of message @i stand in their places: pkts[@from] and on. Return: how many are good.
 */
static unsigned udp_gro_message(struct udp_queue *q, struct gx_rx pkts[], unsigned good,
				unsigned from, const uint32_t slots[], uint32_t len)
{
	for (unsigned j = 0; len; j++) {
		uint32_t part = GX_MIN(len, q->gro.seg_b);

		len -= part;
		if (!udp_gro_packet(q, &pkts[from + j], slots[j], part))
			continue;
		if (good != from + j)
			pkts[good] = pkts[from + j];
		good++;
	}
	return good;
}

/* The guess for the next burst: packets as long as those of the last train, and as many as any
 * train of such had. */
static void udp_gro_learn(struct udp_queue *q, uint32_t seg_b, uint32_t len)
{
	uint32_t pkts;

	if (seg_b < GX_WIRE_HDR_B + GX_WIRE_QUANTUM_MIN || seg_b > GX_WIRE_HDR_B + q->slot_b)
		return;
	pkts = (len + seg_b - 1) / seg_b;
	q->gro.seg_pkts = seg_b == q->gro.seg_b ? GX_MAX(q->gro.seg_pkts, pkts) : pkts;
	q->gro.seg_b = seg_b;
}

/* Take what came in @got messages of @k places each. Return: good packets. */
static unsigned udp_gro_take(struct udp_queue *q, struct gx_rx pkts[], unsigned got, unsigned k,
			     const uint32_t slots[])
{
	struct udp_half *h = &q->half[GX_HALF_DATA];
	struct udp_gro *g = &q->gro;
	uint32_t last_seg_b = 0, last_b = 0;
	unsigned good = 0;

	for (unsigned i = 0; i < got; i++) {
		struct mmsghdr *m = &h->rx[i];
		uint32_t seg_b = udp_rx_cmsg(q, h, &m->msg_hdr);
		bool train = seg_b && seg_b < m->msg_len;

		if (!udp_is_known(q, GX_HALF_DATA, i))
			continue;
		if (train) {
			last_seg_b = seg_b;
			last_b = m->msg_len;
		}
		if (m->msg_len < GX_WIRE_HDR_B)
			gx_stat_add(q->q.stats, GX_STAT_RX_BAD, 1);
		else if (m->msg_len <= k * g->seg_b && (train ? seg_b : m->msg_len) <= g->seg_b &&
			 (!train || seg_b == g->seg_b))
			good = udp_gro_message(q, pkts, good, i * k, &slots[i * k], m->msg_len);
		else
			udp_gro_straighten(q, m, train ? seg_b : m->msg_len);
	}
	udp_gro_learn(q, last_seg_b, last_b);
	return good;
}

static unsigned udp_gro_burst(struct udp_queue *q, struct gx_rx pkts[], unsigned n)
{
	struct udp_half *h = &q->half[GX_HALF_DATA];
	uint32_t slots[GX_BURST_MAX];
	unsigned k, nr, got, good;

	if (q->gro.line < q->gro.nr_lines)
		return udp_gro_line(q, pkts, n);
	q->gro.line = q->gro.nr_lines = 0;
	n = GX_MIN(n, q->nr_free);
	if (!n)
		return 0;
	k = GX_MIN(q->gro.seg_pkts, n);
	nr = udp_gro_prepare(q, pkts, n, k);
	got = udp_recv(q, h, nr);
	if (!got)
		return 0;
	for (unsigned j = 0; j < nr * k; j++)
		slots[j] = q->free_slot[--q->nr_free];
	good = udp_gro_take(q, pkts, got, k, slots);
	for (unsigned j = nr * k; j-- > 0;)
		if (!q->held[slots[j]])
			q->free_slot[q->nr_free++] = slots[j];
	return good + udp_gro_line(q, &pkts[good], n - good);
}

static unsigned udp_rx_burst(struct gx_port_queue *gq, enum gx_half half, struct gx_rx pkts[],
			     unsigned n)
{
	struct udp_queue *q = udp_queue_of(gq);
	struct udp_half *h = &q->half[half];
	unsigned got, good = 0;

	if (half == GX_HALF_DATA && q->gro.on)
		return udp_gro_burst(q, pkts, GX_MIN(n, (unsigned)GX_BURST_MAX));
	n = udp_rx_prepare(q, half, pkts, GX_MIN(n, (unsigned)GX_BURST_MAX));
	got = udp_recv(q, h, n);
	if (!got)
		return 0;
	if (half == GX_HALF_DATA) {
		q->nr_free -= got;
		for (unsigned i = 0; i < got; i++)
			q->held[pkts[i].buf] = 1;
	}
	udp_rx_cmsg(q, h, &h->rx[got - 1].msg_hdr);
	for (unsigned i = 0; i < got; i++) {
		struct gx_rx *pkt = &pkts[good];

		if (!udp_rx_one(q, half, i, &pkts[i])) {
			if (half == GX_HALF_DATA)
				udp_slot_free(q, (uint32_t)pkts[i].buf);
			continue;
		}
		if (pkt != &pkts[i])
			*pkt = pkts[i];
		pkt->data = h->rx_iov[i][1].iov_base;
		good++;
	}
	return good;
}

/* Last in, first out, turned round: what was released in order is handed out in order. */
static void udp_rx_release(struct gx_port_queue *gq, const uint64_t bufs[], unsigned n)
{
	struct udp_queue *q = udp_queue_of(gq);

	while (n--)
		udp_slot_free(q, (uint32_t)bufs[n]);
}

/* ---- Send [core] ---- */

/* What the kernel takes is known only when it is tried: tx_burst may still take fewer. */
static unsigned udp_tx_room(struct gx_port_queue *gq, enum gx_half half, uint32_t index)
{
	const struct udp_peer *peer = &udp_queue_of(gq)->peer[index];

	return peer->attached && peer->connected ? GX_BURST_MAX : 0;
}

/* How many packets from @pkts[0] on can go as one datagram: to one peer, of one length but for the
 * last, which may be shorter. */
static unsigned udp_train(const struct udp_half *h, const struct gx_tx pkts[], unsigned n)
{
	uint32_t seg_b = GX_WIRE_HDR_B + pkts[0].len;
	unsigned most = GX_MIN(n, (unsigned)UDP_TRAIN_PKTS), k = 1;
	uint32_t total_b = seg_b;

	if (!h->gso)
		return 1;
	while (k < most && pkts[k].peer == pkts[0].peer && pkts[k].len <= pkts[0].len &&
	       total_b + GX_WIRE_HDR_B + pkts[k].len <= UDP_TRAIN_B) {
		total_b += GX_WIRE_HDR_B + pkts[k].len;
		if (pkts[k++].len < pkts[0].len)
			break;
	}
	return k;
}

static void udp_tx_message(struct udp_queue *q, enum gx_half half, unsigned i, struct iovec *iov,
			   const struct gx_tx pkts[], unsigned k)
{
	struct udp_half *h = &q->half[half];
	struct udp_peer *peer = &q->peer[pkts[0].peer];
	struct msghdr *msg = &h->tx[i].msg_hdr;
	uint16_t seg_b = (uint16_t)(GX_WIRE_HDR_B + pkts[0].len);

	*msg = (struct msghdr){.msg_name = &peer->to[half],
			       .msg_namelen = udp_name_len(&peer->to[half]),
			       .msg_iov = iov,
			       .msg_iovlen = 2 * k};
	h->tx_pkts[i] = (uint8_t)k;
	for (unsigned j = 0; j < k; j++) {
		assert(pkts[j].hlen == GX_WIRE_HDR_B);
		assert(pkts[j].len <= (half == GX_HALF_CTL ? GX_CTL_PAYLOAD_MAX : q->slot_b));
		*iov++ = (struct iovec){(void *)pkts[j].hdr, GX_WIRE_HDR_B};
		*iov++ = (struct iovec){(void *)pkts[j].data, pkts[j].len};
	}
	if (k == 1)
		return;
	msg->msg_control = h->tx_cmsg[i];
	msg->msg_controllen = sizeof(h->tx_cmsg[i]);
	*CMSG_FIRSTHDR(msg) = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(seg_b)),
					       .cmsg_level = IPPROTO_UDP,
					       .cmsg_type = UDP_SEGMENT};
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(msg)), &seg_b, sizeof(seg_b));
}

/* Return: messages. */
static unsigned udp_tx_prepare(struct udp_queue *q, enum gx_half half, const struct gx_tx pkts[],
			       unsigned n)
{
	struct udp_half *h = &q->half[half];
	unsigned nr = 0, k;

	for (unsigned i = 0; i < n; i += k) {
		const struct udp_peer *peer = &q->peer[pkts[i].peer];

		if (!peer->attached || !peer->connected)
			break;
		k = udp_train(h, &pkts[i], n - i);
		udp_tx_message(q, half, nr++, h->tx_iov[i], &pkts[i], k);
	}
	return nr;
}

/* A device on the way that cannot do checksums refuses trains: from now on each packet goes by
 * itself. Said once. */
static bool udp_gso_off(struct udp_half *h, unsigned k)
{
	if (k == 1 || (errno != EIO && errno != EOPNOTSUPP))
		return false;
	h->gso = false;
	gx_warn("port udp: a device on the way does not take UDP_SEGMENT: a packet costs more");
	return true;
}

/* Send until the kernel is full. A packet it refuses for good (too long for the path, unreachable)
 * is lost, as it would be in a network; an error left by an earlier packet is swept up. */
static unsigned udp_tx_burst(struct gx_port_queue *gq, enum gx_half half, const struct gx_tx pkts[],
			     unsigned n)
{
	struct udp_queue *q = udp_queue_of(gq);
	struct udp_half *h = &q->half[half];
	unsigned sent = 0, at = 0, errors = 0, nr;

	n = GX_MIN(n, (unsigned)GX_BURST_MAX);
	nr = udp_tx_prepare(q, half, pkts, n);
	while (at < nr) {
		int took = sendmmsg(h->fd, h->tx + at, nr - at, MSG_DONTWAIT | MSG_NOSIGNAL);

		for (; took > 0; took--)
			sent += h->tx_pkts[at++];
		if (took == 0)
			continue;
		if (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM || errno == EINTR)
			break;
		if (errno == EBADF || errno == ENOTSOCK || errno == EFAULT) {
			atomic_store_explicit(&q->fault, -errno, memory_order_relaxed);
			break;
		}
		if (udp_gso_off(h, h->tx_pkts[at])) {
			nr = udp_tx_prepare(q, half, pkts + sent, n - sent);
			at = 0;
		} else if (errno != ECONNREFUSED || ++errors > UDP_ERR_TRIES) {
			sent += h->tx_pkts[at++];
		}
	}
	return sent;
}

static unsigned udp_tx_reap(struct gx_port_queue *q, uint32_t cookies[], unsigned n)
{
	return 0;
}

static int udp_fault(struct gx_port_queue *gq)
{
	return atomic_load_explicit(&udp_queue_of(gq)->fault, memory_order_relaxed);
}

const struct gx_port_ops gx_port_udp_ops = {
	.name = "udp",
	.open = udp_open,
	.close = udp_close,
	.queue_open = udp_queue_open,
	.queue_close = udp_queue_close,
	.mem_map = udp_mem_map,
	.mem_unmap = udp_mem_unmap,
	.peer_add = udp_peer_add,
	.peer_connect = udp_peer_connect,
	.peer_del = udp_peer_del,
	.peer_info = gx_port_peer_plain,
	.peer_attach = udp_peer_attach,
	.peer_detach = udp_peer_detach,
	.rx_burst = udp_rx_burst,
	.rx_release = udp_rx_release,
	.tx_room = udp_tx_room,
	.tx_burst = udp_tx_burst,
	.tx_reap = udp_tx_reap,
	.fault = udp_fault,
};
