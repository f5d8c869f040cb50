/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses of port udp: resolves gx_opts.bind_host, and finds the interface of that address.
 * Control path.
 */
#include "ports/udp.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

bool udp_is_any(const union udp_name *name)
{
	if (name->sa.sa_family == AF_INET)
		return name->in.sin_addr.s_addr == htonl(INADDR_ANY);
	return IN6_IS_ADDR_UNSPECIFIED(&name->in6.sin6_addr);
}

int udp_resolve(const char *host, union udp_name *name)
{
	struct addrinfo hint = {.ai_socktype = SOCK_DGRAM}, *list;
	int err = getaddrinfo(host, NULL, &hint, &list);

	if (err) {
		if (if_nametoindex(host))
			gx_port_why_set(
				"port udp: \"%s\" is an interface: give an address of it (ip "
				"addr show %s)",
				host, host);
		else
			gx_port_why_set("port udp: address \"%s\": %s", host, gai_strerror(err));
		return -EINVAL;
	}
	memset(name, 0, sizeof(*name));
	memcpy(name, list->ai_addr, GX_MIN(list->ai_addrlen, (socklen_t)sizeof(*name)));
	freeaddrinfo(list);
	if ((name->sa.sa_family != AF_INET && name->sa.sa_family != AF_INET6) || udp_is_any(name)) {
		gx_port_why_set(
			"port udp: \"%s\" is not one address that peers can send to; bind to the "
			"address of an interface",
			host);
		return -EINVAL;
	}
	return 0;
}

/* MTU of the interface that has @name's address, and whether it is loopback. */
int udp_mtu(const union udp_name *name, bool *loopback)
{
	int mtu = 1500, fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ifaddrs *list, *i;
	struct ifreq req;

	*loopback = false;
	if (name->sa.sa_family == AF_INET)
		*loopback = ntohl(name->in.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
	if (fd < 0 || getifaddrs(&list)) {
		if (fd >= 0)
			close(fd);
		return *loopback ? 65536 : mtu;
	}
	if (*loopback)
		mtu = 65536;
	for (i = list; i; i = i->ifa_next) {
		if (!udp_same_host(name, i->ifa_addr))
			continue;
		memset(&req, 0, sizeof(req));
		snprintf(req.ifr_name, sizeof(req.ifr_name), "%s", i->ifa_name);
		if (!ioctl(fd, SIOCGIFMTU, &req))
			mtu = req.ifr_mtu;
		*loopback |= (i->ifa_flags & IFF_LOOPBACK) != 0;
		break;
	}
	freeifaddrs(list);
	close(fd);
	return mtu;
}
