/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any DPDK ethdev as a port. Only this folder of gx knows DPDK. With memif each peer has its own
 * device; peers share any other device. The arena maps EAL's memory a second time, for GPUs.
 * Control path.
 */
#include "ports/dpdk/dpdk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rte_mbuf.h>

#define DPDK_SLOTS	 1024 /* bounce buffers for each queue */
#define DPDK_SLOTS_MEMIF 896  /* for each peer: with control packets they fit a ring of 1,024 */

/* ---- Port ---- */

static int port_caps(struct dpdk_port *p, const struct gx_port_cfg *cfg)
{
	uint32_t usual = p->args.memif ? DPDK_SLOTS_MEMIF : DPDK_SLOTS;

	p->slots = cfg->slots ? cfg->slots : usual;
	if (p->slots < 64 || p->slots > 65536) {
		gx_port_why_set("port dpdk: %u slots; there can be 64 to 65536", p->slots);
		return -EINVAL;
	}
	p->p.caps.rx_slots = p->slots;
	p->p.caps.flags = GX_PORT_SHARED_POOL;
	if (p->pool.arena)
		p->p.caps.flags |= GX_PORT_RX_GPU | GX_PORT_RX_DMA;
	if (!strncmp(p->args.name, "net_ring", 8))
		p->p.caps.flags |= GX_PORT_ORDERED | GX_PORT_LOSSLESS | GX_PORT_LOCAL;
	else
		p->p.caps.flags |= GX_PORT_NEEDS_PROBE;
	if (!p->args.memif && !(p->p.caps.flags & GX_PORT_LOCAL))
		p->p.caps.paths = GX_PATHS_MAX;
	return 0;
}

static int port_map(struct dpdk_port *p)
{
	int ret;

	if (!p->arena)
		return 0;
	ret = gx_arena_map(p->arena, dpdk_mem.fd_kept, dpdk_mem.len, &p->alias);
	if (ret)
		gx_port_why_set("port dpdk: %zu MiB of DPDK's memory do not fit the arena: %s; "
				"mem= makes it less",
				dpdk_mem.len >> 20, strerror(-ret));
	return ret;
}

static void dpdk_port_close(struct gx_port *gp)
{
	struct dpdk_port *p = gp ? dpdk_port_of(gp) : NULL;

	if (!p)
		return;
	if (!p->args.memif && p->queue[0])
		dpdk_shared_close(p);
	if (p->alias)
		gx_arena_unmap(p->arena, p->alias, dpdk_mem.len);
	for (unsigned i = 0; i < p->nr_queues; i++)
		free(p->queue[i]);
	free(p);
}

static int port_queues(struct dpdk_port *p)
{
	for (unsigned i = 0; i < p->nr_queues; i++) {
		struct dpdk_queue *q = calloc(1, sizeof(*q));

		if (!q)
			return -ENOMEM;
		q->q.ops = &gx_port_dpdk_ops;
		q->q.port = &p->p;
		q->q.rx_base = p->alias ? p->alias : dpdk_mem.base;
		q->alias = q->q.rx_base - dpdk_mem.base;
		q->port = p;
		q->index = i;
		p->queue[i] = q;
	}
	return 0;
}

static int dpdk_port_open(const struct gx_port_cfg *cfg, struct gx_port **out)
{
	struct dpdk_port *p;
	int ret = -EINVAL;

	if (!cfg->nr_queues || 2 * cfg->nr_queues > DPDK_SOCKETS_MAX)
		return -EINVAL;
	p = calloc(1, sizeof(*p) + cfg->nr_queues * sizeof(p->queue[0]));
	if (!p)
		return -ENOMEM;
	p->p.ops = &gx_port_dpdk_ops;
	p->arena = cfg->arena;
	p->pool.arena = cfg->pool;
	p->pool.gpu = cfg->pool_gpu;
	p->server = cfg->server;
	p->nr_queues = cfg->nr_queues;
	ret = dpdk_args_parse(cfg->args ? cfg->args : "", &p->args);
	if (!ret && cfg->pool && p->args.memif) {
		gx_port_why_set(
			"port dpdk: net_memif has the peer's CPU copy into host memory that it "
			"maps: take gx_gpu_opts.bounce host, or gx_opts.ports shm");
		ret = -EOPNOTSUPP;
	}
	if (!ret)
		ret = port_caps(p, cfg);
	if (!ret)
		ret = dpdk_eal_start(cfg, &p->args);
	if (!ret)
		ret = port_map(p);
	if (!ret)
		ret = port_queues(p);
	if (!ret)
		ret = p->args.memif ? dpdk_memif_open(p, cfg) : dpdk_shared_open(p, cfg);
	if (ret) {
		dpdk_port_close(&p->p);
		return ret;
	}
	*out = &p->p;
	return 0;
}

static int dpdk_queue_open(struct gx_port *gp, unsigned index, struct gx_stats *stats,
			   struct gx_port_queue **out)
{
	struct dpdk_port *p = dpdk_port_of(gp);

	if (index >= p->nr_queues)
		return -EINVAL;
	p->queue[index]->q.stats = stats;
	*out = &p->queue[index]->q;
	return 0;
}

static int dpdk_mem_map(struct gx_port *p, void *ptr, size_t len)
{
	return 0; /* gx copies payload into DPDK's memory, or the CPU reads it */
}

static void dpdk_mem_unmap(struct gx_port *p, void *ptr, size_t len)
{
}

/* ---- Peers ---- */

static void dpdk_peer_del(struct gx_port_queue *gq, uint32_t index)
{
	struct dpdk_queue *q = dpdk_queue_of(gq);
	struct dpdk_peer *peer = q->peer[index];

	if (!peer)
		return;
	if (q->port->args.memif)
		dpdk_memif_free(peer->dev);
	free(peer);
	q->peer[index] = NULL;
}

static void dpdk_queue_close(struct gx_port_queue *gq)
{
	struct dpdk_queue *q = gq ? dpdk_queue_of(gq) : NULL;

	for (uint32_t i = 0; q && i < GX_PEERS_MAX; i++)
		dpdk_peer_del(gq, i);
	for (unsigned h = 0; q && h < 2; h++)
		for (; q->fifo[h].tail != q->fifo[h].head; q->fifo[h].tail++)
			rte_pktmbuf_free(q->fifo[h].ent[q->fifo[h].tail % DPDK_FIFO].m);
}

static void peer_laddr(struct dpdk_queue *q, const struct dpdk_peer *peer,
		       const struct dpdk_addr *sock, struct gx_port_addr *out)
{
	struct dpdk_port *p = q->port;
	struct dpdk_addr a = *sock;

	a.kind = p->args.memif ? DPDK_MEMIF : DPDK_IP;
	a.owner = p->args.memif && peer->dev->owns;
	a.room = (uint16_t)(p->args.memif ? p->room : p->frame_max);
	if (p->pool.arena)
		a.id = 1 + (uint32_t)p->pool.gpu->device;
	a.ip = p->net.ip;
	a.udp_port = q->udp_port;
	memcpy(a.mac, p->net.mac, DPDK_MAC_B);
	dpdk_addr_put(&a, out);
}

static int dpdk_peer_add(struct gx_port_queue *gq, uint32_t *out, struct gx_port_addr *laddr)
{
	struct dpdk_queue *q = dpdk_queue_of(gq);
	struct dpdk_addr sock = {0};
	uint32_t i;
	int ret = 0;

	for (i = 0; i < GX_PEERS_MAX && q->peer[i];)
		i++;
	if (i == GX_PEERS_MAX) {
		gx_port_why_set("port dpdk: %d peers are the most", GX_PEERS_MAX);
		return -ENOSPC;
	}
	q->peer[i] = calloc(1, sizeof(*q->peer[i]));
	if (!q->peer[i])
		return -ENOMEM;
	if (q->port->args.memif)
		ret = dpdk_memif_add(q, i, laddr->dials, &sock);
	else
		q->peer[i]->dev = &q->dev;
	if (ret) {
		dpdk_peer_del(gq, i);
		return ret;
	}
	peer_laddr(q, q->peer[i], &sock, laddr);
	*out = i;
	return 0;
}

static int dpdk_peer_connect(struct gx_port_queue *gq, uint32_t index,
			     const struct gx_port_addr *raddr)
{
	struct dpdk_queue *q = dpdk_queue_of(gq);
	struct dpdk_peer *peer = index < GX_PEERS_MAX ? q->peer[index] : NULL;
	bool memif = q->port->args.memif;
	struct dpdk_addr addr;
	int ret;

	if (raddr->fd >= 0)
		close(raddr->fd);
	if (!peer || peer->connected)
		return -EINVAL;
	if (dpdk_addr_get(raddr, &addr) || (addr.kind == DPDK_MEMIF) != memif ||
	    (memif && addr.owner == peer->dev->owns)) {
		gx_port_why_set("port dpdk: the peer's address does not fit %s",
				q->port->args.name);
		return -EPROTO;
	}
	ret = memif ? dpdk_memif_connect(q, peer, &addr) : dpdk_shared_connect(q, peer, &addr);
	peer->pool = memif ? -1 : (int)addr.id - 1;
	peer->connected = !ret;
	return ret;
}

static void dpdk_peer_info(struct gx_port_queue *gq, uint32_t index, struct gx_port_peer *out)
{
	gx_port_peer_plain(gq, index, out);
	out->pool = dpdk_queue_of(gq)->peer[index]->pool;
}

struct gx_port_ops gx_port_dpdk_ops = {
	.name = "dpdk",
	.open = dpdk_port_open,
	.close = dpdk_port_close,
	.queue_open = dpdk_queue_open,
	.queue_close = dpdk_queue_close,
	.mem_map = dpdk_mem_map,
	.mem_unmap = dpdk_mem_unmap,
	.peer_add = dpdk_peer_add,
	.peer_connect = dpdk_peer_connect,
	.peer_del = dpdk_peer_del,
	.peer_info = dpdk_peer_info,
	.peer_attach = dpdk_peer_attach,
	.peer_detach = dpdk_peer_detach,
	.rx_burst = dpdk_rx_burst,
	.rx_release = dpdk_rx_release,
	.tx_room = dpdk_tx_room,
	.tx_burst = dpdk_tx_burst,
	.path = dpdk_path,
	.tx_reap = dpdk_tx_reap,
	.fault = dpdk_fault,
};
