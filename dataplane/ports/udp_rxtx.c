/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Port udp's bursts: one recvmmsg or sendmmsg each.
 *
 * With UDP_SEGMENT and UDP_GRO the kernel takes and gives a train, several data packets of one
 * length to one peer, as one large datagram. On the wire each packet is a datagram of its own. The
 * receiver scatters an incoming train over slots by the packet length of the last train. If that
 * guess was wrong, it sorts the bytes by copying. Runs on the polling core.
 */
#include "ports/udp.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>

#define UDP_ERR_TRIES  4     /* errors of earlier packets that one burst clears */
#define UDP_TRAIN_B    65000 /* most bytes of a train; the kernel takes 65,507 with IPv4 */
#define UDP_ECN_MASK   3     /* RFC 3168 5: 2 is ECT(0) */
#define UDP_ECN_CE     3
#define UDP_TRAIN_PKTS 64 /* UDP_MAX_SEGMENTS of include/linux/udp.h, before Linux 6.9 */

/* ---- Known peers ---- */

static uint32_t udp_hash(const union udp_name *name, unsigned port)
{
	uint32_t key = name->in.sin_addr.s_addr, ip6[4];

	if (name->sa.sa_family == AF_INET6) {
		memcpy(ip6, &name->in6.sin6_addr, sizeof(ip6));
		key = ip6[0] ^ ip6[1] ^ ip6[2] ^ ip6[3];
	}
	key += port;
	key *= 0x9e3779b1u; /* 2^32 by the golden ratio: Knuth, TAOCP 6.4 */
	/* Take the high bits. The last byte of an IPv4 address is the highest byte of @key and
	 * changes no others. */
	return key >> (32 - UDP_BUCKETS_LOG);
}

/* The hash takes the IP address and the data port. The control port is the next one, so both halves
 * of a peer share a bucket, and the processes of one host do not. */
static uint16_t *udp_bucket(struct udp_queue *q, const union udp_name *name, enum gx_half half)
{
	return &q->bucket[udp_hash(name, udp_port_get(name) - (half == GX_HALF_CTL))];
}

static bool udp_same_name(const union udp_name *a, const union udp_name *b)
{
	if (a->sa.sa_family != b->sa.sa_family || udp_port_get(a) != udp_port_get(b))
		return false;
	return udp_same_host(a, &b->sa);
}

/* Is it from a spare port that one of our peers has named? */
static __attribute__((noinline)) bool udp_is_spare(const struct udp_queue *q,
						   const union udp_name *from)
{
	unsigned port = udp_port_get(from);
	uint16_t at = q->spare_bucket[udp_hash(from, port)];

	while (at) {
		const struct udp_peer *peer = &q->peer[(at - 1) / UDP_SPARES];
		unsigned i = (at - 1u) % UDP_SPARES;

		if (peer->spare[i] == port && udp_same_host(&peer->to[GX_HALF_DATA], &from->sa))
			return true;
		at = peer->spare_next[i];
	}
	return false;
}

/* Is message @i from one of our peers? A stranger could only guess a connection id; but without
 * integrity a good guess would be taken. Several connections may share an address. */
static bool udp_is_known(struct udp_queue *q, enum gx_half half, unsigned i)
{
	const union udp_name *from = &q->half[half].from[i];
	uint16_t at = *udp_bucket(q, from, half);

	while (at && !udp_same_name(&q->peer[at - 1].to[half], from))
		at = q->peer[at - 1].next;
	if (at || udp_is_spare(q, from))
		return true;
	gx_stat_add(q->q.stats, GX_STAT_RX_STRAY, 1);
	return false;
}

static uint16_t *udp_spare_bucket(struct udp_queue *q, const struct udp_peer *peer, unsigned i)
{
	return &q->spare_bucket[udp_hash(&peer->to[GX_HALF_DATA], peer->spare[i])];
}

void udp_peer_attach(struct gx_port_queue *gq, uint32_t index)
{
	struct udp_queue *q = udp_queue_of(gq);
	struct udp_peer *peer = &q->peer[index];
	uint16_t *bucket = udp_bucket(q, &peer->to[GX_HALF_DATA], GX_HALF_DATA);

	peer->attached = true;
	peer->next = *bucket;
	*bucket = (uint16_t)(index + 1);
	for (unsigned i = 0; i < UDP_SPARES; i++) {
		bucket = udp_spare_bucket(q, peer, i);
		if (!peer->spare[i])
			continue;
		peer->spare_next[i] = *bucket;
		*bucket = (uint16_t)(index * UDP_SPARES + i + 1);
	}
}

static void udp_spares_detach(struct udp_queue *q, uint32_t index)
{
	struct udp_peer *peer = &q->peer[index];

	for (unsigned i = 0; i < UDP_SPARES; i++) {
		uint16_t *at = udp_spare_bucket(q, peer, i);

		while (*at && *at != index * UDP_SPARES + i + 1)
			at = &q->peer[(*at - 1) / UDP_SPARES].spare_next[(*at - 1) % UDP_SPARES];
		if (*at)
			*at = peer->spare_next[i];
	}
}

void udp_peer_detach(struct gx_port_queue *gq, uint32_t index)
{
	struct udp_queue *q = udp_queue_of(gq);
	uint16_t *at = udp_bucket(q, &q->peer[index].to[GX_HALF_DATA], GX_HALF_DATA);

	q->peer[index].attached = false;
	udp_spares_detach(q, index);
	while (*at && *at != index + 1)
		at = &q->peer[*at - 1].next;
	if (*at)
		*at = q->peer[index].next;
}

/* ---- Receive ---- */

/* Any call reports errors of earlier packets once: clear them. Return: messages, or 0. */
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

/* One control message has the number of packets that the kernel has dropped, once there were any; a
 * train counts as one. Others have the length of the packets in a train, and the byte of IP with its
 * two bits of ECN; all packets of a train have the same. */
static struct udp_said udp_rx_cmsg(struct udp_queue *q, struct udp_half *h, struct msghdr *msg)
{
	struct udp_said said = {0};
	uint32_t drops;
	int seg, class;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_RXQ_OVFL) {
			memcpy(&drops, CMSG_DATA(c), sizeof(drops));
			gx_stat_add(q->q.stats, GX_STAT_RX_NOBUF, drops - h->drops);
			h->drops = drops;
		} else if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
			memcpy(&seg, CMSG_DATA(c), sizeof(seg));
			said.seg_b = seg > 0 ? (uint32_t)seg : 0;
		} else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) {
			said.marked = (*CMSG_DATA(c) & UDP_ECN_MASK) == UDP_ECN_CE;
		} else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS) {
			memcpy(&class, CMSG_DATA(c), sizeof(class));
			said.marked = (class & UDP_ECN_MASK) == UDP_ECN_CE;
		}
	}
	return said;
}

/* Count a packet that is short, cut or a stranger's. False: the caller frees its buffer. */
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

/* Offer packet i the i-th slot from the top of the stack. The caller pops as many as have come. */
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

/* ---- Receive trains ---- */

/* A packet of @len bytes in all stands in @pkt's header and slot. False: its length is bad. */
static bool udp_gro_packet(struct udp_queue *q, struct gx_rx *pkt, uint32_t slot, uint32_t len,
			   bool marked)
{
	if (len < GX_WIRE_HDR_B || len - GX_WIRE_HDR_B > q->slot_b) {
		gx_stat_add(q->q.stats, GX_STAT_RX_BAD, 1);
		return false;
	}
	pkt->len = len - GX_WIRE_HDR_B;
	pkt->hlen = GX_WIRE_HDR_B;
	pkt->peer = GX_PEER_ANY;
	pkt->buf = slot;
	pkt->marked = marked;
	pkt->data = q->slots + (size_t)slot * q->slot_b;
	q->held[slot] = 1;
	return true;
}

/* Hand out packets from line_buf, as far as free slots and @n allow. */
static unsigned udp_gro_line(struct udp_queue *q, struct gx_rx pkts[], unsigned n)
{
	struct udp_gro *g = &q->gro;
	unsigned good = 0;

	while (g->line < g->nr_lines && good < n && q->nr_free) {
		uint32_t len =
			GX_MIN(g->lines[g->line].seg_b, g->lines[g->line].len_b - g->line_at);
		bool marked = g->lines[g->line].marked;
		const uint8_t *b = g->line_buf + (size_t)g->line * UDP_GRO_B + g->line_at;

		g->line_at += len;
		if (g->line_at == g->lines[g->line].len_b) {
			g->line++;
			g->line_at = 0;
		}
		if (!udp_gro_packet(q, &pkts[good], q->free_slot[q->nr_free - 1], len, marked))
			continue;
		memcpy(pkts[good].hdr, b, GX_WIRE_HDR_B);
		memcpy(pkts[good].data, b + GX_WIRE_HDR_B, len - GX_WIRE_HDR_B);
		q->nr_free--;
		good++;
	}
	return good;
}

/* Message i gets places for @k packets of seg_b bytes in slots from the top of the stack, and spill
 * for the rest. Return: messages. */
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

/* The guess was wrong: copy message @m to line_buf, which has room for each message of a burst. */
static void udp_gro_straighten(struct udp_queue *q, const struct mmsghdr *m, struct udp_said said)
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
	g->lines[g->nr_lines].seg_b = said.seg_b;
	g->lines[g->nr_lines].marked = said.marked;
	g->nr_lines += at > 0;
}

/* The packets of message @i stand in their places, from pkts[@from] on. Return: good packets so
 * far. */
static unsigned udp_gro_message(struct udp_queue *q, struct gx_rx pkts[], unsigned good,
				unsigned from, const uint32_t slots[], uint32_t len, bool marked)
{
	for (unsigned j = 0; len; j++) {
		uint32_t part = GX_MIN(len, q->gro.seg_b);

		len -= part;
		if (!udp_gro_packet(q, &pkts[from + j], slots[j], part, marked))
			continue;
		if (good != from + j)
			pkts[good] = pkts[from + j];
		good++;
	}
	return good;
}

/* The guess for the next burst: the packet length of the last train, and the most packets of any
 * train with that length. */
static void udp_gro_learn(struct udp_queue *q, uint32_t seg_b, uint32_t len)
{
	uint32_t pkts;

	if (seg_b < GX_WIRE_HDR_B + GX_WIRE_QUANTUM_MIN || seg_b > GX_WIRE_HDR_B + q->slot_b)
		return;
	pkts = (len + seg_b - 1) / seg_b;
	q->gro.seg_pkts = seg_b == q->gro.seg_b ? GX_MAX(q->gro.seg_pkts, pkts) : pkts;
	q->gro.seg_b = seg_b;
}

/* Take the packets of @got messages with @k places each. Return: good packets. */
static unsigned udp_gro_take(struct udp_queue *q, struct gx_rx pkts[], unsigned got, unsigned k,
			     const uint32_t slots[])
{
	struct udp_half *h = &q->half[GX_HALF_DATA];
	struct udp_gro *g = &q->gro;
	uint32_t last_seg_b = 0, last_b = 0;
	unsigned good = 0;

	for (unsigned i = 0; i < got; i++) {
		struct mmsghdr *m = &h->rx[i];
		struct udp_said said = udp_rx_cmsg(q, h, &m->msg_hdr);
		bool train = said.seg_b && said.seg_b < m->msg_len;

		if (!udp_is_known(q, GX_HALF_DATA, i))
			continue;
		if (train) {
			last_seg_b = said.seg_b;
			last_b = m->msg_len;
		} else {
			said.seg_b = m->msg_len;
		}
		if (m->msg_len < GX_WIRE_HDR_B)
			gx_stat_add(q->q.stats, GX_STAT_RX_BAD, 1);
		else if (m->msg_len <= k * g->seg_b && said.seg_b <= g->seg_b &&
			 (!train || said.seg_b == g->seg_b))
			good = udp_gro_message(q, pkts, good, i * k, &slots[i * k], m->msg_len,
					       said.marked);
		else
			udp_gro_straighten(q, m, said);
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

unsigned udp_rx_burst(struct gx_port_queue *gq, enum gx_half half, struct gx_rx pkts[], unsigned n)
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
	if (half == GX_HALF_CTL)
		gq->heard_ns = gx_now_ns();
	if (half == GX_HALF_DATA) {
		q->nr_free -= got;
		for (unsigned i = 0; i < got; i++)
			q->held[pkts[i].buf] = 1;
	}
	for (unsigned i = 0; i < got; i++) {
		struct gx_rx *pkt = &pkts[good];

		pkts[i].marked = udp_rx_cmsg(q, h, &h->rx[i].msg_hdr).marked;

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

/* The stack is last in, first out. Freeing in reverse hands slots out in the order of @bufs. */
void udp_rx_release(struct gx_port_queue *gq, const uint64_t bufs[], unsigned n)
{
	struct udp_queue *q = udp_queue_of(gq);

	while (n--)
		udp_slot_free(q, (uint32_t)bufs[n]);
}

/* ---- Send ---- */

/* Only an attempt shows how much the kernel takes: tx_burst may still take fewer. */
unsigned udp_tx_room(struct gx_port_queue *gq, enum gx_half half, uint32_t index)
{
	const struct udp_peer *peer = &udp_queue_of(gq)->peer[index];

	return peer->attached && peer->connected ? GX_BURST_MAX : 0;
}

/* How many packets from @pkts[0] on can go as one datagram? They go to one peer and have one
 * length; the last may be shorter. */
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

/* As far as packets leave by one socket. Return: messages. */
static unsigned udp_tx_prepare(struct udp_queue *q, enum gx_half half, const struct gx_tx pkts[],
			       unsigned n)
{
	struct udp_half *h = &q->half[half];
	unsigned path = n ? q->peer[pkts[0].peer].path[half] : 0, nr = 0, k;

	for (unsigned i = 0; i < n; i += k) {
		const struct udp_peer *peer = &q->peer[pkts[i].peer];

		if (!peer->attached || !peer->connected || peer->path[half] != path)
			break;
		k = udp_train(h, &pkts[i], n - i);
		udp_tx_message(q, half, nr++, h->tx_iov[i], &pkts[i], k);
	}
	return nr;
}

/* A device on the way that has no checksum offload refuses trains. From now on each packet goes by
 * itself. Logged once. */
static bool udp_gso_off(struct udp_half *h, unsigned k)
{
	if (k == 1 || (errno != EIO && errno != EOPNOTSUPP))
		return false;
	h->gso = false;
	gx_warn("port udp: a device on the way does not take UDP_SEGMENT: a packet costs more");
	return true;
}

/* Send until the kernel is full, as far as packets leave by one socket. The kernel may refuse a packet
 * for good (too long for the path, unreachable): it is lost, as in a network. An error of an earlier
 * packet is cleared. *@full: the kernel takes no more. */
static unsigned udp_tx_same(struct udp_queue *q, enum gx_half half, const struct gx_tx pkts[],
			    unsigned n, bool *full)
{
	struct udp_half *h = &q->half[half];
	unsigned path = q->peer[pkts[0].peer].path[half];
	unsigned sent = 0, at = 0, errors = 0, nr = udp_tx_prepare(q, half, pkts, n);
	int fd = path ? q->spare_fd[path - 1] : h->fd;

	*full = !nr;
	while (at < nr) {
		int took = sendmmsg(fd, h->tx + at, nr - at, MSG_DONTWAIT | MSG_NOSIGNAL);

		for (; took > 0; took--)
			sent += h->tx_pkts[at++];
		if (took == 0)
			continue;
		*full = true;
		if (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM || errno == EINTR)
			break;
		if (errno == EBADF || errno == ENOTSOCK || errno == EFAULT) {
			atomic_store_explicit(&q->fault, -errno, memory_order_relaxed);
			break;
		}
		*full = false;
		if (udp_gso_off(h, h->tx_pkts[at])) {
			nr = udp_tx_prepare(q, half, pkts + sent, n - sent);
			at = 0;
		} else if (errno != ECONNREFUSED || ++errors > UDP_ERR_TRIES) {
			sent += h->tx_pkts[at++];
		}
	}
	return sent;
}

unsigned udp_tx_burst(struct gx_port_queue *gq, enum gx_half half, const struct gx_tx pkts[],
		      unsigned n)
{
	struct udp_queue *q = udp_queue_of(gq);
	unsigned sent = 0;
	bool full = false;

	n = GX_MIN(n, (unsigned)GX_BURST_MAX);
	while (sent < n && !full)
		sent += udp_tx_same(q, half, pkts + sent, n - sent, &full);
	return sent;
}

void udp_path(struct gx_port_queue *gq, enum gx_half half, uint32_t index, unsigned path)
{
	assert(path < GX_PATHS_MAX);
	udp_queue_of(gq)->peer[index].path[half] = (uint8_t)path;
}

int udp_fault(struct gx_port_queue *gq)
{
	return atomic_load_explicit(&udp_queue_of(gq)->fault, memory_order_relaxed);
}

/* ---- Sleep ---- */

int udp_sleep_open(struct gx_port_queue *gq, int fd)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.fd = -1};

	for (unsigned h = 0; h < 2; h++)
		if (epoll_ctl(fd, EPOLL_CTL_ADD, udp_queue_of(gq)->half[h].fd, &ev))
			return -errno;
	return 0;
}

/* The kernel reports what its sockets hold; trains that were read wait here. */
int udp_sleep_look(struct gx_port_queue *gq)
{
	const struct udp_gro *g = &udp_queue_of(gq)->gro;

	return g->line < g->nr_lines;
}
