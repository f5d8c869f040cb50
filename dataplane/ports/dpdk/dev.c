/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets up an ethdev in the way that all devices of the port share: mempools, queues, sizes, the way
 * to send. Control path.
 */
#include "ports/dpdk/dpdk.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

_Static_assert(RTE_MAX_ETHPORTS <= DPDK_DEVS_MAX, "a queue can poll them all");

int dpdk_pktmbufs_open(const char *what, uint32_t nr, uint32_t room, struct rte_mempool **out)
{
	uint32_t cache = nr > 4 * DPDK_CACHE ? DPDK_CACHE : 0;
	char name[32];

	snprintf(name, sizeof(name), "gx%u_%s", dpdk_unique(), what);
	*out = rte_pktmbuf_pool_create(name, nr, cache, 0, (uint16_t)(room + RTE_PKTMBUF_HEADROOM),
				       SOCKET_ID_ANY);
	if (*out)
		return 0;
	gx_port_why_set("port dpdk: no memory for %u buffers of %u bytes: %s; DPDK has %zu MiB, "
			"mem= makes it more",
			nr, room, strerror(rte_errno), dpdk_mem.len >> 20);
	return -ENOMEM;
}

void dpdk_dev_gather_init(struct dpdk_dev *d)
{
	if (rte_pktmbuf_alloc_bulk(d->tx_pool, d->head, GX_BURST_MAX) ||
	    rte_pktmbuf_alloc_bulk(d->tx_pool, d->body, GX_BURST_MAX)) {
		d->tx_mode = DPDK_TX_COPY;
		return;
	}
	for (unsigned i = 0; i < GX_BURST_MAX; i++) {
		d->head[i]->data_len = DPDK_HEAD_B;
		d->body[i]->data_off = 0;
	}
}

int dpdk_dev_pools_open(struct dpdk_dev *d, uint32_t nr_rx, uint32_t nr_tx, uint32_t room)
{
	int ret = dpdk_pktmbufs_open("rx", nr_rx + DPDK_FIFO + 2 * DPDK_CACHE, room, &d->rx_pool);

	if (ret)
		return ret;
	return dpdk_pktmbufs_open("tx", nr_tx + DPDK_TX_SPARE, room, &d->tx_pool);
}

/* A receive queue that cuts packets at DPDK_HEAD_B. */
static int cut_setup(const struct dpdk_pool *pool, uint16_t id, uint16_t qid, uint16_t nr,
		     const struct rte_eth_dev_info *info)
{
	struct rte_eth_rxconf conf = info->default_rxconf;
	union rte_eth_rxseg seg[] = {
		{.split = {.mp = pool->head, .length = DPDK_HEAD_B}},
		{.split = {.mp = pool->slots}}, /* length 0: the room of a slot */
	};

	conf.offloads |= RTE_ETH_RX_OFFLOAD_BUFFER_SPLIT |
			 (info->rx_queue_offload_capa & RTE_ETH_RX_OFFLOAD_SCATTER);
	conf.rx_seg = seg;
	conf.rx_nseg = GX_ARRAY_SIZE(seg);
	return rte_eth_rx_queue_setup(id, qid, nr, (unsigned)rte_eth_dev_socket_id(id), &conf,
				      NULL);
}

/* Everything but the start. @pool: for the cut queues, which follow the others; NULL: none. */
int dpdk_dev_configure(uint16_t id, struct dpdk_dev *const devs[], unsigned nr,
		       const struct rte_eth_dev_info *info, uint32_t mtu,
		       const struct dpdk_pool *pool)
{
	unsigned nr_cut = pool ? nr : 0;
	uint16_t nr_rx = DPDK_DESCS, nr_tx = DPDK_DESCS;
	struct rte_eth_conf conf = {.rxmode.mtu = mtu};
	int ret;

	/* Copied packets have one segment. Without MULTI_SEGS a NIC's driver has faster ways to
	 * send. */
	if (devs[0]->tx_mode == DPDK_TX_GATHER)
		conf.txmode.offloads = info->tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
	conf.rxmode.offloads = info->rx_offload_capa & RTE_ETH_RX_OFFLOAD_IPV4_CKSUM;
	ret = rte_eth_dev_configure(id, (uint16_t)(nr + nr_cut), (uint16_t)nr, &conf);
	if (!ret)
		ret = rte_eth_dev_adjust_nb_rx_tx_desc(id, &nr_rx, &nr_tx);
	for (uint16_t i = 0; i < nr && !ret; i++) {
		ret = rte_eth_rx_queue_setup(id, i, nr_rx, (unsigned)rte_eth_dev_socket_id(id),
					     NULL, devs[i]->rx_pool);
		if (!ret)
			ret = rte_eth_tx_queue_setup(id, i, nr_tx,
						     (unsigned)rte_eth_dev_socket_id(id), NULL);
	}
	for (unsigned i = 0; i < nr_cut && !ret; i++)
		ret = cut_setup(pool, id, (uint16_t)(nr + i), nr_rx, info);
	return ret;
}

/* These drivers have copied every segment when tx_burst returns. */
static bool dev_is_copying(const char *driver)
{
	static const char *const names[] = {"net_memif", "net_af_packet", "net_tap", "net_pcap"};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(names); i++)
		if (!strncmp(driver, names[i], strlen(names[i])))
			return true;
	return false;
}

enum dpdk_tx_mode dpdk_dev_tx_mode(const struct dpdk_args *a, const struct rte_eth_dev_info *info)
{
	return dev_is_copying(a->name) && (info->tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS)
		       ? DPDK_TX_GATHER
		       : DPDK_TX_COPY;
}

void dpdk_dev_pools_close(struct dpdk_dev *d)
{
	rte_mempool_free(d->rx_pool);
	rte_mempool_free(d->tx_pool);
	d->rx_pool = d->tx_pool = NULL;
}

bool dpdk_dev_is_up(const struct dpdk_dev *d)
{
	struct rte_eth_link link;

	return d->started && !rte_eth_link_get_nowait(d->id, &link) &&
	       link.link_status == RTE_ETH_LINK_UP;
}

static uint32_t payload_preferred(uint32_t max)
{
	static const uint32_t preferred[] = {8192, 4096, 3328, 1392};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(preferred); i++)
		if (preferred[i] <= max)
			return preferred[i];
	return max;
}

void dpdk_port_sizes(struct dpdk_port *p, uint32_t mtu, uint32_t wanted)
{
	uint32_t max = (mtu + DPDK_ETH_B - DPDK_HEAD_B) & ~15u;

	p->frame_max = mtu + DPDK_ETH_B;
	/* 1620: the largest control packet with its headers, and 4 more. memif carries it even if
	 * it exceeds the MTU. */
	p->room = (uint32_t)GX_ALIGN_UP(GX_MAX(p->frame_max + 4, 1620u), 1024u);
	p->p.caps.payload_max = max;
	p->p.caps.payload_best =
		wanted >= 1280 ? GX_MIN(wanted & ~15u, max) : payload_preferred(max);
}
