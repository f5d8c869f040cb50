// SPDX-License-Identifier: Apache-2.0
/*
 * In the place of nic_nl.c where gx is built without libmnl: no socket opens, so nothing else of
 * this is reached.
 */
#include "nic/nic_nl.h"

#include <errno.h>

int nic_nl_parse(enum nic_ask ask, uint32_t seq, uint16_t family, const void *buf, size_t len,
		 struct nic_got *got)
{
	return -EBADMSG;
}

int nic_nl_open(const struct nic_sys *sys, struct nic_nl **out)
{
	return -ENOSYS;
}

void nic_nl_close(struct nic_nl *nl)
{
}

int nic_nl_family(struct nic_nl *nl, const char *name, struct nic_got *got)
{
	return -ENOSYS;
}

int nic_nl_rings(struct nic_nl *nl, uint16_t ethtool, int ifindex, struct nic_got *got)
{
	return -ENOSYS;
}

int nic_nl_dev(struct nic_nl *nl, uint16_t netdev, int ifindex, struct nic_got *got)
{
	return -ENOSYS;
}

int nic_nl_queues(struct nic_nl *nl, uint16_t netdev, int ifindex, struct nic_got *got)
{
	return -ENOSYS;
}

int nic_nl_bind_rx(struct nic_nl *nl, uint16_t netdev, int ifindex, const uint32_t *queues,
		   unsigned nr, int fd, struct nic_got *got)
{
	return -ENOSYS;
}

int nic_nl_bind_tx(struct nic_nl *nl, uint16_t netdev, int ifindex, int fd, struct nic_got *got)
{
	return -ENOSYS;
}
