/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel's UDP. It runs anywhere, for correctness rather than speed. A queue has two sockets,
 * data on port P and control on P + 1. A burst is one recvmmsg or sendmmsg. A datagram is the
 * packet header, always GX_WIRE_HDR_B bytes, and the payload, as on every Ethernet port. The kernel
 * scatters it into the header's place and a bounce buffer. The connection id in the header says
 * the peer; but the packet must come from the address of one of our peers. The kernel itself drops
 * packets from the UDP port of no peer. So a flood from there costs the core nothing and takes no
 * room from peers' packets.
 *
 * This file has the port, its queues and its peers: control path.
 */
#include "gx_internal/fork.h"
#include "ports/udp.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define UDP_SLOTS	 4096
#define UDP_SLOTS_MAX	 65536
#define UDP_SLOT_B	 8192
#define UDP_DATAGRAM_MAX 65507 /* payload of the largest IPv4 datagram; IPv6: 20 more */
#define UDP_RCVBUF_B	 (32 << 20)
#define UDP_SNDBUF_B	 (4 << 20)
#define UDP_BIND_TRIES	 256
#define UDP_HDR_B	 8
#define UDP_ECT		 2 /* RFC 3168 5: ECT(0) */

/* Address blob: the peer sends to this address. */
struct udp_addr {
	uint8_t family; /* 4, 6 */
	uint8_t zero;
	uint16_t port;	/* data; control is the next one */
	uint32_t scope; /* IPv6 */
	uint8_t ip[16];
	uint16_t spare[UDP_SPARES]; /* its packets may come from these ports as well; 0: none */
	uint16_t zeros;
};
_Static_assert(sizeof(struct udp_addr) == 40, "no holes");

/* ---- Port ---- */

/* Payload: the largest preferred size that fits the MTU. */
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
	p->p.caps.paths = loopback ? 0 : GX_PATHS_MAX;
	return 0;
}

/* "port=7600": the queues' ports from there on. "port=7600-7699": for each queue the first two that are
 * free. */
static int udp_args(struct udp_port *p, const char *args)
{
	unsigned port = 0, last = 0;
	char end;
	int n;

	if (!args || !*args)
		return 0;
	n = strchr(args, '-') ? sscanf(args, "port=%5u-%5u%c", &port, &last, &end) - 1
			      : sscanf(args, "port=%5u%c", &port, &end);
	if (n != 1 || !port || port > 65000 || last > UINT16_MAX ||
	    (strchr(args, '-') && last <= port)) {
		gx_port_why_set(
			"port udp: \"%s\"; the only argument is port=N, the first of two UDP ports "
			"a core, or port=N-M, of which each core takes the first two that are free",
			args);
		return -EINVAL;
	}
	udp_port_set(&p->name, port);
	p->last = last;
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
				"gx_gpu_opts.bounce host, or gx_opts.ports shm on one host");
		free(p);
		return -EOPNOTSUPP;
	}
	p->p.ops = &gx_port_udp_ops;
	p->p.speaks = "udp"; /* whichever numbers an end has chosen */
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

/* ---- Queue ---- */

/* Options may fail, except the one that forbids fragments: a fragmented packet costs more than it
 * carries. */
static int udp_socket(const union udp_name *name)
{
	int rcv = UDP_RCVBUF_B, snd = UDP_SNDBUF_B, on = 1, discover = IP_PMTUDISC_PROBE;
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

/* The receiver counts marks in any case. Only rate heeds them, so only its packets may be marked. */
static void udp_ecn(const struct udp_queue *q, enum gx_port_cc cc, int fd)
{
	bool v4 = q->name.sa.sa_family == AF_INET;
	int on = 1, ect = UDP_ECT;

	if (setsockopt(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_RECVTOS : IPV6_RECVTCLASS, &on,
		       sizeof(on)))
		gx_info("port udp: the kernel does not report marks of congestion: %s",
			strerror(errno));
	if (cc == GX_PORT_CC_RATE)
		setsockopt(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS, &ect,
			   sizeof(ect));
}

/* The kernel counts its own part of a buffer as well, and gives twice of what it is asked for. */
static unsigned udp_buffer_b(int fd, int which)
{
	int b = 0;
	socklen_t len = sizeof(b);

	getsockopt(fd, SOL_SOCKET, which, &b, &len);
	return (unsigned)b / 2;
}

/* A small buffer for receiving drops packets while the core does something else. */
static void udp_buffers_say(const struct udp_queue *q)
{
	int fd = q->half[GX_HALF_DATA].fd;
	unsigned rcv = udp_buffer_b(fd, SO_RCVBUF), snd = udp_buffer_b(fd, SO_SNDBUF);

	if (rcv < UDP_RCVBUF_B || snd < UDP_SNDBUF_B)
		gx_info("port udp: the kernel gives a socket %u of %u KiB for receiving, and %u of "
			"%u KiB for sending: packets are lost sooner. Cure: a larger "
			"net.core.rmem_max and net.core.wmem_max",
			rcv >> 10, UDP_RCVBUF_B >> 10, snd >> 10, UDP_SNDBUF_B >> 10);
}

/* Does the kernel send (Linux 4.18) and receive (5.0) several packets at once? */
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

/* Data on one port and control on the next one. Port 0: any such pair that is free. */
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
			udp_buffers_say(q);
			return 0;
		}
		ret = ctl;
		gx_fd_close(data);
		if (udp_port_get(want))
			break;
	}
	return ret;
}

/* Sockets for other source ports: whoever shares load by ports sends their packets another way. With
 * IPv6 the kernel makes a flow label of the ports as well (net.ipv6.auto_flowlabels). A control packet
 * may leave by the socket of a data packet: the peer knows them by the port that they go to. */
static int udp_spares(struct udp_queue *q)
{
	for (unsigned i = 0; i < UDP_SPARES; i++) {
		union udp_name name = q->name;
		socklen_t len = sizeof(name);
		int fd;

		udp_port_set(&name, 0);
		fd = udp_socket(&name);
		if (fd < 0)
			return fd;
		q->spare_fd[i] = fd;
		udp_filter_all(fd);
		udp_ecn(q, gx_port_cc(q->q.port), fd);
		getsockname(fd, &name.sa, &len);
		q->spare[i] = (uint16_t)udp_port_get(&name);
		q->q.from[GX_HALF_CTL][1 + i] = q->q.from[GX_HALF_DATA][1 + i] = q->spare[i];
	}
	q->q.from[GX_HALF_DATA][0] = (uint16_t)udp_port_get(&q->name);
	q->q.from[GX_HALF_CTL][0] = (uint16_t)(udp_port_get(&q->name) + 1);
	return 0;
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
	for (unsigned i = 0; i < UDP_SPARES; i++)
		q->spare_fd[i] = -1;
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
	for (unsigned i = 0; i < UDP_SPARES; i++)
		if (q->spare_fd[i] >= 0)
			gx_fd_close(q->spare_fd[i]);
	if (q->slots)
		gx_arena_unmap(p->arena, q->slots, q->slots_len);
	free(q->free_slot);
	free(q->held);
	free(q->ctl_buf);
	free(q->gro.spill);
	free(q->gro.line_buf);
	free(q);
}

/* The first pair of @name's port to @last that is free. Other processes take theirs at the same time. */
static int udp_bind_range(struct udp_queue *q, union udp_name *name, unsigned last)
{
	int ret = -EADDRINUSE;

	for (unsigned port = udp_port_get(name); port < last && ret == -EADDRINUSE; port += 2) {
		udp_port_set(name, port);
		ret = udp_bind_pair(q, name);
	}
	return ret;
}

static void udp_why_bind(const union udp_name *name, int err)
{
	const char *cure = err == -EADDRNOTAVAIL ? "; it must be an address of this host"
			   : err == -EADDRINUSE
				   ? "; another process has them (see ss -lunp): take others"
				   : "";
	char host[64] = "?";

	if (name->sa.sa_family == AF_INET6 && err == -EINVAL && !name->in6.sin6_scope_id)
		cure = "; an address of one link needs the interface behind it, as in fe80::1%eth0";
	getnameinfo(&name->sa, udp_name_len(name), host, sizeof(host), NULL, 0, NI_NUMERICHOST);
	gx_port_why_set("port udp: cannot bind two consecutive UDP ports of %s: %s%s", host,
			strerror(-err), cure);
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
	if (udp_port_get(&name) && !p->last)
		udp_port_set(&name, udp_port_get(&name) + 2 * index);
	ret = udp_queue_alloc(p, q);
	if (!ret) {
		ret = p->last ? udp_bind_range(q, &name, p->last) : udp_bind_pair(q, &name);
		if (ret)
			udp_why_bind(&name, ret);
	}
	q->q.ops = &gx_port_udp_ops;
	q->q.port = gp;
	q->q.stats = stats;
	q->q.rx_base = q->slots;
	if (!ret && gp->caps.paths) {
		ret = udp_spares(q);
		if (ret)
			gx_port_why_set("port udp: no socket for another source port: %s",
					strerror(-ret));
	}
	if (ret) {
		udp_queue_free(p, q);
		return ret;
	}
	udp_ecn(q, gx_port_cc(gp), q->half[GX_HALF_DATA].fd);
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
	memcpy(addr.spare, q->spare, sizeof(addr.spare));
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

/* The scope in the blob names an interface of the peer's host; take the scope that we are bound
 * to. */
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
	       !addr.zeros && addr.port && addr.port < UINT16_MAX && !udp_is_any(name);
}

/* The address must be that of the bootstrap connection. Otherwise a client could make us send to
 * any host. */
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
			"connection: give it gx_opts.bind_host, the one that the server sees, or "
			"take link tcp, as behind a proxy");
		return -EPERM;
	}
	peer->to[GX_HALF_DATA] = peer->to[GX_HALF_CTL] = name;
	udp_port_set(&peer->to[GX_HALF_CTL], udp_port_get(&name) + 1);
	memcpy(peer->spare, raddr->b + offsetof(struct udp_addr, spare), sizeof(peer->spare));
	peer->connected = true;
	udp_filter(q);
	return 0;
}

static void udp_peer_way(struct gx_port_queue *gq, uint32_t index, struct gx_port_way *out)
{
	const struct udp_queue *q = udp_queue_of(gq);
	const union udp_name *peer = &q->peer[index].to[GX_HALF_DATA];

	*out = (struct gx_port_way){.own_port = (uint16_t)udp_port_get(&q->name),
				    .peer_port = (uint16_t)udp_port_get(peer)};
	getnameinfo(&q->name.sa, udp_name_len(&q->name), out->own, sizeof(out->own), NULL, 0,
		    NI_NUMERICHOST);
	getnameinfo(&peer->sa, udp_name_len(peer), out->peer, sizeof(out->peer), NULL, 0,
		    NI_NUMERICHOST);
}

static void udp_peer_del(struct gx_port_queue *gq, uint32_t index)
{
	udp_queue_of(gq)->peer[index].used = false;
	udp_filter(udp_queue_of(gq));
}

struct gx_port_ops gx_port_udp_ops = {
	.name = "udp",
	.open = udp_open,
	.close = udp_close,
	.queue_open = udp_queue_open,
	.queue_close = udp_queue_close,
	.peer_add = udp_peer_add,
	.peer_connect = udp_peer_connect,
	.peer_del = udp_peer_del,
	.peer_way = udp_peer_way,
	.peer_attach = udp_peer_attach,
	.peer_detach = udp_peer_detach,
	.rx_burst = udp_rx_burst,
	.rx_release = udp_rx_release,
	.tx_room = udp_tx_room,
	.tx_burst = udp_tx_burst,
	.path = udp_path,
	.fault = udp_fault,
	.sleep_open = udp_sleep_open,
	.sleep_look = udp_sleep_look,
};
