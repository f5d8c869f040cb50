/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device that all peers share: opened with the port, one queue for each core. Ethernet, IPv4
 * and UDP headers precede the gx header; UDP port + 1 is the control half. Control path.
 */
#include "ports/dpdk/dpdk.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <rte_bus_vdev.h>
#include <rte_dev.h>
#include <rte_ethdev.h>
#include <rte_flow.h>

#define DPDK_LINK_NS 9000000000 /* longest wait for a NIC's link */

/* Our defaults for af_packet, unless the user gave some. */
static void shared_args(const struct dpdk_port *p, char *out, size_t room)
{
	uint32_t frame = p->frame_max + 256 <= 2048   ? 2048
			 : p->frame_max + 256 <= 4096 ? 4096
						      : 16384;
	char v[32];
	int n = snprintf(out, room, "%s", p->args.rest);

	if (strcmp(p->args.name, "net_af_packet") || dpdk_args_get(&p->args, "framesz", v, 32) ||
	    dpdk_args_get(&p->args, "blocksz", v, 32) || dpdk_args_get(&p->args, "framecnt", v, 32))
		return;
	/* Its tx waits on a full ring: make more frames than credit allows under way. */
	snprintf(out + n, room - (size_t)n, ",framesz=%u,blocksz=%u,framecnt=%u,qpairs=%u", frame,
		 GX_MAX(frame, 4096u), 2 * DPDK_DESCS, p->nr_queues);
}

/* Reason: "NAME cannot be opened: the cause as the kernel shows it", else DPDK's log */
static int pci_why(int err, const char *name)
{
	char hint[160];

	dpdk_pci_hint(name, hint, sizeof(hint));
	if (!*hint)
		return dpdk_why(err == -1 ? -EIO : err,
				"cannot be opened; is a driver of DPDK for it built in?", name);
	gx_port_why_set("port dpdk: %s cannot be opened: %s", name, hint);
	return -ENODEV;
}

static int shared_make(struct dpdk_port *p, char *name, size_t room)
{
	char args[640];
	int ret;

	dpdk_said_clear();
	if (p->args.pci) {
		snprintf(args, sizeof(args), "%s%s%s", p->args.name, *p->args.rest ? "," : "",
			 p->args.rest);
		snprintf(name, room, "%s", p->args.name);
		ret = rte_eth_dev_get_port_by_name(name, &p->shared_id) ? rte_dev_probe(args) : 0;
	} else {
		shared_args(p, args, sizeof(args));
		snprintf(name, room, "%.40s_gx%u", p->args.name, dpdk_unique());
		ret = rte_vdev_init(name, args);
	}
	if (ret && p->args.pci)
		return pci_why(ret, p->args.name);
	if (ret)
		return dpdk_why(ret == -1 ? -EIO : ret,
				dpdk_has_said() ? "cannot be made"
						: "cannot be made (is that driver built in? the "
						  "end of meson's set-up lists them)",
				p->args.name);
	ret = rte_eth_dev_get_port_by_name(name, &p->shared_id);
	return ret ? dpdk_why(ret, "has no ethdev", p->args.name) : 0;
}

/* Our IP address: from the option, else from the kernel, else gx_opts.bind_host. */
static int shared_net(struct dpdk_port *p, const struct gx_port_cfg *cfg,
		      const struct rte_eth_dev_info *info)
{
	struct dpdk_net *net = &p->net;
	struct rte_ether_addr mac;
	unsigned a, b, c, d;
	uint16_t mtu;
	bool local = !strncmp(p->args.name, "net_ring", 8) || !strncmp(p->args.name, "net_null", 8);

	net->ifindex = info->if_index;
	net->mask = p->args.mask ? p->args.mask : 0xffffff00;
	if (!rte_eth_macaddr_get(p->shared_id, &mac))
		memcpy(net->mac, mac.addr_bytes, DPDK_MAC_B);
	net->mtu = rte_eth_dev_get_mtu(p->shared_id, &mtu) ? 1500 : mtu;
	dpdk_net_kernel(net);
	if (p->args.ip)
		net->ip = p->args.ip;
	if (p->args.mask)
		net->mask = p->args.mask;
	if (!net->ip && cfg->bind_host &&
	    sscanf(cfg->bind_host, "%u.%u.%u.%u", &a, &b, &c, &d) == 4 && a && a != 127)
		net->ip = a << 24 | (b & 255) << 16 | (c & 255) << 8 | (d & 255);
	if (!net->ip && local)
		net->ip = 0x7f000001;
	/* AF_XDP also gets the ARP requests, which the kernel would answer. */
	p->arp = (!local || p->args.ip) &&
		 (!net->ifindex || !strncmp(p->args.name, "net_af_xdp", 10));
	if (net->ip)
		return 0;
	gx_port_why_set("port dpdk: no IPv4 address for %s; give ip=", p->args.name);
	return -EADDRNOTAVAIL;
}

static int shared_mtu(struct dpdk_port *p, const struct gx_port_cfg *cfg,
		      const struct rte_eth_dev_info *info)
{
	uint32_t mtu = p->net.mtu;
	bool xdp = !strncmp(p->args.name, "net_af_xdp", 10); /* a frame must fit a page */
	uint32_t max = GX_MIN((uint32_t)info->max_mtu, xdp ? 1500u : (uint32_t)DPDK_MTU_MAX);

	if (p->args.pci) /* some drivers leave max_mtu empty */
		max = GX_MIN(max, info->max_rx_pktlen - RTE_ETHER_HDR_LEN - RTE_ETHER_CRC_LEN);
	if (p->args.mtu > mtu && p->net.ifindex) {
		gx_port_why_set("port dpdk: mtu=%u, but the interface has %u; ip link set mtu it",
				p->args.mtu, mtu);
		return -EINVAL;
	}
	if (p->args.mtu > max) {
		gx_port_why_set("port dpdk: mtu=%u, but %s takes %u at most", p->args.mtu,
				p->args.name, max);
		return -EINVAL;
	}
	mtu = p->args.mtu ? p->args.mtu : GX_MIN(mtu, xdp ? 1500u : (uint32_t)DPDK_MTU_MAX);
	if (mtu < DPDK_MTU_MIN) {
		gx_port_why_set("port dpdk: an MTU of %u is too small; %u is the least", mtu,
				DPDK_MTU_MIN);
		return -EINVAL;
	}
	p->net.mtu = mtu;
	dpdk_port_sizes(p, mtu, cfg->payload_b);
	return 0;
}

static bool link_is_up(const struct dpdk_port *p)
{
	struct rte_eth_link link;

	return !rte_eth_link_get_nowait(p->shared_id, &link) && link.link_status == RTE_ETH_LINK_UP;
}

/* A NIC's link comes up some seconds after its start. Packets sent earlier are lost. */
static void link_wait(const struct dpdk_port *p)
{
	static const struct timespec nap = {.tv_nsec = 10000000};
	uint64_t until = gx_now_ns() + DPDK_LINK_NS;

	while (!link_is_up(p)) {
		if (gx_now_ns() > until) {
			gx_warn("port dpdk: the link of %s is down after %u s: no cable, or the "
				"other end is off? Going on without",
				p->args.name, (unsigned)(DPDK_LINK_NS / 1000000000));
			return;
		}
		nanosleep(&nap, NULL);
	}
}

static int shared_start(struct dpdk_port *p, const struct rte_eth_dev_info *info)
{
	struct dpdk_dev *devs[DPDK_SOCKETS_MAX];
	bool rules = p->args.pci || p->pool.arena;
	bool isolated = rules && !rte_flow_isolate(p->shared_id, 1, NULL);
	int ret;

	if (p->pool.arena && !isolated)
		return dpdk_pool_refuse(p, "cannot keep its queues to packets that flow rules name "
					   "(no flow isolation)");
	for (unsigned i = 0; i < p->nr_queues; i++)
		devs[i] = &p->queue[i]->dev;
	dpdk_said_clear();
	ret = dpdk_dev_configure(p->shared_id, devs, p->nr_queues, info,
				 p->args.pci ? p->net.mtu : 0, p->pool.arena ? &p->pool : NULL);
	if (!ret)
		ret = rte_eth_dev_start(p->shared_id);
	if (ret)
		return dpdk_why(ret,
				p->pool.arena
					? "cannot be started with queues that are cut at byte 80, "
					  "payload to a GPU (gx_gpu_opts.bounce host needs none)"
					: "cannot be started",
				p->args.name);
	p->shared_started = true;
	if (!rules)
		return p->nr_queues > 1 ? dpdk_hand_open(p) : 0;
	if (p->args.pci)
		link_wait(p);
	return dpdk_rules_open(p, isolated);
}

/* All queues share one pool of bounce buffers: without flow rules all packets may come in at
 * one. */
static int shared_pools_open(struct dpdk_port *p, unsigned i, uint32_t nr_rx, uint32_t nr_tx)
{
	struct dpdk_dev *d = &p->queue[i]->dev;

	if (!i)
		return dpdk_dev_pools_open(d, p->nr_queues * nr_rx, nr_tx, p->room);
	d->rx_pool = p->queue[0]->dev.rx_pool;
	return dpdk_pktmbufs_open("tx", nr_tx + DPDK_TX_SPARE, p->room, &d->tx_pool);
}

/* The first path of a half is its own port; the others follow those of all queues. */
static void shared_paths(const struct dpdk_port *p, struct dpdk_queue *q)
{
	unsigned spare = p->net.udp_port + 2 * p->nr_queues;

	for (unsigned half = 0; half < 2; half++) {
		q->q.from[half][0] = (uint16_t)(q->udp_port + (half == GX_HALF_CTL));
		for (unsigned i = 1; i < p->p.caps.paths; i++)
			q->q.from[half][i] = (uint16_t)(spare + i - 1);
	}
}

static int shared_queues(struct dpdk_port *p, const char *name, const struct rte_eth_dev_info *info)
{
	/* AF_XDP fills its rings at its start, from the same pool. */
	uint32_t descs = strncmp(name, "net_af_xdp", 10) ? DPDK_DESCS : 4 * DPDK_DESCS;
	uint32_t nr_rx = descs + (p->pool.arena ? 0 : p->slots);

	for (unsigned i = 0; i < p->nr_queues; i++) {
		struct dpdk_dev *d = &p->queue[i]->dev;
		int ret;

		snprintf(d->name, sizeof(d->name), "%s", name);
		d->id = p->shared_id;
		d->qid = (uint16_t)i;
		d->peer = GX_PEER_ANY;
		d->up = true;
		d->verify = strncmp(name, "net_ring", 8);
		d->tx_mode = dpdk_dev_tx_mode(&p->args, info);
		d->frame_max = p->frame_max;
		/* net_ring hands our own mbufs to the receiver, so the tx pool needs as many. */
		ret = shared_pools_open(p, i, nr_rx, d->verify ? DPDK_DESCS : nr_rx);
		if (ret)
			return ret;
		if (d->tx_mode == DPDK_TX_GATHER)
			dpdk_dev_gather_init(d);
		p->queue[i]->udp_port = (uint16_t)(p->net.udp_port + 2 * i);
		if (p->p.caps.paths)
			shared_paths(p, p->queue[i]);
		p->queue[i]->devs[0] = d;
		p->queue[i]->nr_devs = 1;
	}
	return p->pool.arena ? dpdk_pool_open(p, info) : 0;
}

int dpdk_shared_open(struct dpdk_port *p, const struct gx_port_cfg *cfg)
{
	struct rte_eth_dev_info info;
	char name[64];
	int ret;

	dpdk_port_sizes(p, p->args.mtu ? p->args.mtu : 1500, 0);
	ret = shared_make(p, name, sizeof(name));
	if (ret)
		return ret;
	snprintf(p->queue[0]->dev.name, sizeof(p->queue[0]->dev.name), "%s", name);
	p->queue[0]->dev.made = true;
	ret = rte_eth_dev_info_get(p->shared_id, &info);
	if (ret)
		return dpdk_why(ret, "says nothing of itself", name);
	p->pci = p->args.pci ? info.device : NULL;
	ret = p->pool.arena ? dpdk_pool_probe(p, &info) : 0;
	if (ret)
		return ret;
	if (!(p->p.caps.flags & GX_PORT_LOCAL))
		p->p.speaks = "dpdk:ethernet"; /* with any Ethernet device */
	if (p->nr_queues > GX_MIN(info.max_rx_queues, info.max_tx_queues)) {
		gx_port_why_set("port dpdk: %s has %u queues, and each core needs one: give "
				"gx_opts.nr_cores that many, not %u",
				p->args.name, GX_MIN(info.max_rx_queues, info.max_tx_queues),
				p->nr_queues);
		return -EINVAL;
	}
	ret = shared_net(p, cfg, &info);
	if (!ret)
		ret = shared_mtu(p, cfg, &info);
	if (!ret) {
		p->nr_sockets = 2 * p->nr_queues + (p->p.caps.paths ? DPDK_SPARES : 0);
		ret = dpdk_net_ports(&p->net, p->nr_sockets, p->sockets);
	}
	if (!ret)
		ret = shared_queues(p, name, &info);
	return ret ? ret : shared_start(p, &info);
}

void dpdk_shared_close(struct dpdk_port *p)
{
	struct dpdk_dev *d = &p->queue[0]->dev;

	if (p->shared_started)
		rte_eth_dev_stop(p->shared_id);
	dpdk_pool_close(p);
	if (p->pci)
		rte_dev_remove(p->pci); /* so that gx can open it again */
	else if (d->made)
		rte_vdev_uninit(d->name);
	dpdk_hand_close(p);
	for (unsigned i = p->nr_queues; i--;) {
		if (i)
			p->queue[i]->dev.rx_pool = NULL; /* belongs to queue 0 */
		dpdk_dev_pools_close(&p->queue[i]->dev);
	}
	for (unsigned i = 0; i < p->nr_sockets; i++)
		if (p->sockets[i] >= 0)
			close(p->sockets[i]);
}

int dpdk_shared_connect(struct dpdk_queue *q, struct dpdk_peer *peer, const struct dpdk_addr *addr)
{
	const struct dpdk_net *net = &q->port->net;
	uint8_t mac[DPDK_MAC_B];
	int ret;

	if (q->port->args.pci && !link_is_up(q->port)) {
		gx_port_why_set("port dpdk: the link of %s is down", q->port->args.name);
		return -ENETDOWN;
	}
	ret = dpdk_net_hop(net, &q->port->args, addr->ip, addr->mac, mac);
	if (ret)
		return ret;
	dpdk_encap_init(&peer->encap[GX_HALF_DATA], net, q->udp_port, mac, addr->ip,
			addr->udp_port);
	dpdk_encap_init(&peer->encap[GX_HALF_CTL], net, (uint16_t)(q->udp_port + 1), mac, addr->ip,
			(uint16_t)(addr->udp_port + 1));
	if (gx_port_cc(&q->port->p) == GX_PORT_CC_RATE) /* only it heeds marks */
		dpdk_encap_ect(&peer->encap[GX_HALF_DATA]);
	return 0;
}
