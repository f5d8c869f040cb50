/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel drops packets from the UDP port of no peer, by a filter on each socket. Control path.
 */
#include "ports/udp.h"

#include <assert.h>
#include <linux/filter.h>
#include <stdlib.h>

#define UDP_FILTER_LEAF 8		       /* most ports that a leaf compares one by one */
#define UDP_FILTER_MAX	(3 + 2 * GX_PEERS_MAX) /* instructions; see udp_filter_emit() */

static int udp_port_cmp(const void *a, const void *b)
{
	return *(const uint16_t *)a - *(const uint16_t *)b;
}

/* Accept packets from one of @n ports in ascending order. The program is a tree: with many peers a
 * packet still costs few comparisons. A leaf takes two instructions beside its ports; an inner node
 * takes two, and there are fewer of those. A leaf has at least half of UDP_FILTER_LEAF ports,
 * unless it is the only one. Return: instructions. */
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

/* The kernel counts these drops together with those for lack of room. The filter may fail:
 * udp_is_known() looks again. */
void udp_filter(struct udp_queue *q)
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
		/* The old filter would drop packets of the new peer. */
		if (setsockopt(q->half[h].fd, SOL_SOCKET, SO_ATTACH_FILTER, &prog, sizeof(prog)))
			setsockopt(q->half[h].fd, SOL_SOCKET, SO_DETACH_FILTER, &prog.len,
				   sizeof(int));
	}
}
