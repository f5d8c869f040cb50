// SPDX-License-Identifier: Apache-2.0
/*
 * nic_look(): all that the kernel reports of one interface. A question that the kernel or the driver
 * does not know leaves its fact unknown; nothing of it is an error. Control path, any thread.
 */
#include "nic/nic.h"

#include "nic/nic_abi.h"
#include "nic/nic_nl.h"

#include <errno.h>
#include <linux/ethtool_netlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void look_rings(struct nic_nl *nl, struct nic_got *got, struct nic_facts *f)
{
	f->rings_err = nic_nl_family(nl, "ethtool", got);
	if (!f->rings_err)
		f->rings_err = nic_nl_rings(nl, got->family, f->ifindex, got);
	if (f->rings_err == -EOPNOTSUPP)
		f->split = NIC_SPLIT_REFUSED;
	if (f->rings_err)
		return;
	/* mlx5_core reports nothing of it until somebody sets it. */
	if (!got->has_split)
		f->split = NIC_SPLIT_UNTOLD;
	else
		f->split =
			got->split == ETHTOOL_TCP_DATA_SPLIT_ENABLED ? NIC_SPLIT_ON : NIC_SPLIT_OFF;
	f->has_thresh = got->has_thresh;
	f->thresh_b = got->thresh_b;
	f->thresh_max_b = got->thresh_max_b;
}

/* A request that can bind nothing, because it names no dma-buf. A kernel with an interface that has
 * no DMA device may refuse before it looks for the dma-buf (Linux 6.18 does). No kernel asks the
 * driver before that. */
static void look_bind(struct nic_nl *nl, uint16_t netdev, struct nic_got *got, struct nic_facts *f)
{
	const uint32_t queue = f->nr_rx ? f->nr_rx - 1 : 0;

	f->bind_err = nic_nl_bind_rx(nl, netdev, f->ifindex, &queue, 1, NIC_NO_FD, got);
	memcpy(f->bind_text, got->text, sizeof(f->bind_text));
}

static void look_netdev(struct nic_nl *nl, struct nic_got *got, struct nic_facts *f)
{
	uint64_t ops;
	uint16_t id;

	if (nic_nl_family(nl, "netdev", got))
		return;
	id = got->family;
	ops = got->ops;
	f->netdev = true;
	f->bind_rx = ops >> NIC_NETDEV_BIND_RX & 1;
	f->bind_tx = ops >> NIC_NETDEV_BIND_TX & 1;
	if (!nic_nl_dev(nl, id, f->ifindex, got)) {
		f->xdp = got->xdp;
		f->zc_segs = got->zc_segs;
	}
	if (ops >> NIC_NETDEV_QUEUE_GET & 1 && !nic_nl_queues(nl, id, f->ifindex, got)) {
		if (got->nr_rx)
			f->nr_rx = got->nr_rx;
		memcpy(f->held, got->held, sizeof(f->held));
	}
	if (f->bind_rx)
		look_bind(nl, id, got, f);
}

static void look_netlink(const struct nic_sys *sys, struct nic_facts *f)
{
	struct nic_got *got = malloc(sizeof(*got));
	struct nic_nl *nl = NULL;

	f->nl_err = got ? nic_nl_open(sys, &nl) : -ENOMEM;
	if (!f->nl_err) {
		look_rings(nl, got, f);
		look_netdev(nl, got, f);
	}
	nic_nl_close(nl);
	free(got);
}

int nic_look(const struct nic_sys *sys, const char *name, struct nic_facts *out)
{
	int ifindex = strlen(name) < NIC_NAME_MAX ? sys->ifindex(name) : -ENODEV;

	if (ifindex < 0)
		return ifindex;
	memset(out, 0, sizeof(*out));
	snprintf(out->name, sizeof(out->name), "%s", name);
	out->ifindex = ifindex;
	nic_driver(sys, name, out->driver, out->bus);
	if (sys->text("/proc/sys/kernel/osrelease", out->kernel, sizeof(out->kernel)))
		out->kernel[0] = '\0';
	out->nr_rx = nic_channels(sys, name, &out->channels);
	out->rss = nic_rss(sys, name, out->rss_queues, NIC_QUEUES_MAX / 64);
	out->ntuple = nic_ntuple(sys, name);
	out->gro_hw = nic_gro_hw(sys, name);
	nic_rules(sys, name, &out->rules);
	look_netlink(sys, out);
	return 0;
}
