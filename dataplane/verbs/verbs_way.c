/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is the device that the peer names one that ours can reach? The peer's word is all there is: its
 * device need not have the address of its sockets. Control thread.
 */
#include "verbs/verbs_lane.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#define LID_MAX 0xbfff /* of one port; beyond are those of groups */

const char *verbs_gid_text(const uint8_t gid[16], char text[VERBS_GID_TEXT_MAX])
{
	return inet_ntop(AF_INET6, gid, text, VERBS_GID_TEXT_MAX);
}

static bool gid_is_ipv4(const uint8_t gid[16])
{
	return IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)gid);
}

static bool gid_is_loopback(const uint8_t gid[16])
{
	return gid_is_ipv4(gid) ? gid[12] == 127
				: IN6_IS_ADDR_LOOPBACK((const struct in6_addr *)gid);
}

/* The address of one port, of whatever network? */
static bool gid_is_unicast(const uint8_t gid[16])
{
	if (gid_is_ipv4(gid))
		return gid[12] && gid[12] < 224;
	return gid[0] != 0xff && !IN6_IS_ADDR_UNSPECIFIED((const struct in6_addr *)gid);
}

static int way_ethernet(const struct verbs_dev *dev, const struct verbs_port *peer)
{
	char own[VERBS_GID_TEXT_MAX], other[VERBS_GID_TEXT_MAX];

	verbs_gid_text(dev->gid.raw, own);
	verbs_gid_text(peer->gid, other);
	if (!gid_is_unicast(peer->gid) ||
	    (gid_is_loopback(peer->gid) && !gid_is_loopback(dev->gid.raw)))
		return gx_fail(-EINVAL, "the GID %s of the peer's device is no address of a port",
			       other);
	if (gid_is_ipv4(peer->gid) != gid_is_ipv4(dev->gid.raw))
		return gx_fail(-EOPNOTSUPP,
			       "%s has GID %s, the peer's device %s: name two of IPv4, or two of "
			       "IPv6",
			       dev->name, own, other);
	if (peer->gid_type && dev->gid_type && peer->gid_type != dev->gid_type)
		return gx_fail(-EOPNOTSUPP,
			       "GID %s of %s is of RoCE v%u, the peer's %s of v%u: name two of v2",
			       own, dev->name, dev->gid_type, other, peer->gid_type);
	return 0;
}

static int way_infiniband(const struct verbs_dev *dev, const struct verbs_port *peer)
{
	if (!peer->lid || peer->lid > LID_MAX)
		return gx_fail(-EINVAL,
			       "the LID %u of the peer's device is no address of a port: does a "
			       "subnet manager run?",
			       peer->lid);
	if (!dev->wants_grh && !peer->wants_grh)
		return 0;
	if (gid_is_unicast(peer->gid) && gid_is_unicast(dev->gid.raw))
		return 0;
	return gx_fail(-EINVAL, "an end wants packets with GIDs, and %s has none: name a GID there",
		       gid_is_unicast(dev->gid.raw) ? "the peer's device" : dev->name);
}

int verbs_way_check(const struct verbs_dev *dev, const struct verbs_port *peer)
{
	bool is_ethernet = dev->port_attr.link_layer == IBV_LINK_LAYER_ETHERNET;

	if (peer->is_ethernet != is_ethernet)
		return gx_fail(-EOPNOTSUPP,
			       "%s and the peer's device are on different networks (InfiniBand, "
			       "Ethernet): name other devices",
			       dev->name);
	return is_ethernet ? way_ethernet(dev, peer) : way_infiniband(dev, peer);
}

/* InfiniBand has no way between subnets without a router. The length of an Ethernet network's prefix
 * is not known: addresses that share more are nearer, up to where hosts begin at the latest. */
unsigned verbs_way_near(const struct verbs_dev *dev, const struct verbs_port *peer)
{
	unsigned max = gid_is_ipv4(peer->gid) ? 120 : 64, n = 0;

	while (n < max && !((dev->gid.raw[n / 8] ^ peer->gid[n / 8]) >> (7 - n % 8) & 1))
		n++;
	return n;
}
