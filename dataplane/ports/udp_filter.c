/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel drops packets from the UDP port of no peer, by a filter on each socket. Control path.
 */
#include "ports/udp.h"

#include <assert.h>
#include <linux/filter.h>
#include <stdlib.h>

#define UDP_FILTER_LEAF	  8   /* most ranges that a leaf compares one by one */
#define UDP_FILTER_RANGES 768 /* a kernel takes 20 KiB of instructions by default (optmem_max) */
#define UDP_FILTER_MAX	  (4 + 3 * UDP_FILTER_RANGES) /* instructions; see udp_filter_emit() */
#define UDP_FILTER_PORTS  (GX_PEERS_MAX * GX_PATHS_MAX)

struct udp_range {
	uint16_t low, high;
};

static int udp_port_cmp(const void *a, const void *b)
{
	return *(const uint16_t *)a - *(const uint16_t *)b;
}

/* Ranges of @n ports in ascending order. With many peers some ports between theirs are let in: then
 * udp_is_known() alone refuses those. Return: ranges. */
static unsigned udp_filter_ranges(struct udp_range *r, const uint16_t *port, unsigned n)
{
	unsigned nr = UDP_FILTER_RANGES + 1;

	for (unsigned gap = 1; nr > UDP_FILTER_RANGES; gap *= 2) {
		nr = 0;
		for (unsigned i = 0; i < n && nr <= UDP_FILTER_RANGES; i++) {
			if (nr && port[i] <= r[nr - 1].high + gap)
				r[nr - 1].high = port[i];
			else if (nr++ < UDP_FILTER_RANGES)
				r[nr - 1] = (struct udp_range){port[i], port[i]};
		}
	}
	return nr;
}

/* Accept packets from one of @n ranges in ascending order. The program is a tree: with many peers a
 * packet still costs few comparisons. A leaf takes two instructions, and two for each range; an
 * inner node takes two, and there are fewer of those. A leaf has at least half of UDP_FILTER_LEAF
 * ranges, unless it is the only one. Return: instructions. */
/* NOLINTNEXTLINE(misc-no-recursion): as deep as the tree, log2 of the ranges */
static unsigned udp_filter_emit(struct sock_filter *f, const struct udp_range *r, unsigned n)
{
	unsigned low = n / 2, len;

	if (n > UDP_FILTER_LEAF) {
		len = 2 + udp_filter_emit(f + 2, r, low);
		f[0] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, r[low].low, 0, 1);
		f[1] = (struct sock_filter)BPF_STMT(BPF_JMP | BPF_JA, len - 2);
		return len + udp_filter_emit(f + len, r + low, n - low);
	}
	for (unsigned i = 0; i < n; i++) {
		unsigned left = 2 * (n - i) - 1; /* instructions from the next to the refusal */

		f[2 * i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, r[i].low, 0,
							(uint8_t)left);
		f[2 * i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, r[i].high, 0,
							    (uint8_t)left);
	}
	f[2 * n] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
	f[2 * n + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, UINT32_MAX);
	return 2 * n + 2;
}

void udp_filter_all(int fd)
{
	struct sock_filter f = BPF_STMT(BPF_RET | BPF_K, 0);
	struct sock_fprog prog = {1, &f};

	setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &prog, sizeof(prog));
}

static unsigned udp_filter_ports(const struct udp_queue *q, enum gx_half half, uint16_t *port)
{
	unsigned n = 0;

	for (uint32_t i = 0; i < GX_PEERS_MAX; i++) {
		const struct udp_peer *peer = &q->peer[i];

		if (!peer->used || !peer->connected)
			continue;
		port[n++] = (uint16_t)udp_port_get(&peer->to[half]);
		for (unsigned s = 0; s < UDP_SPARES; s++)
			if (peer->spare[s])
				port[n++] = peer->spare[s];
	}
	qsort(port, n, sizeof(port[0]), udp_port_cmp);
	return n;
}

/* The kernel counts these drops together with those for lack of room. The filter may fail:
 * udp_is_known() looks again. */
void udp_filter(struct udp_queue *q)
{
	for (unsigned h = 0; h < 2; h++) {
		struct sock_filter f[UDP_FILTER_MAX] = {
			BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 0), /* the UDP header's source port */
		};
		struct sock_fprog prog = {.filter = f};
		struct udp_range range[UDP_FILTER_RANGES];
		uint16_t port[UDP_FILTER_PORTS];
		unsigned n = udp_filter_ranges(range, port, udp_filter_ports(q, h, port));

		prog.len = (uint16_t)(1 + udp_filter_emit(f + 1, range, n));
		assert(prog.len <= UDP_FILTER_MAX);
		/* The old filter would drop packets of the new peer. */
		if (setsockopt(q->half[h].fd, SOL_SOCKET, SO_ATTACH_FILTER, &prog, sizeof(prog)))
			setsockopt(q->half[h].fd, SOL_SOCKET, SO_DETACH_FILTER, &prog.len,
				   sizeof(int));
	}
}
