/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses of the bootstrap connection: "HOST:PORT" to socket addresses and back. Resolving may
 * ask the network. So it runs on the thread that called gx_listen() or gx_connect(), never on a
 * core.
 */
#include "control/ctl.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ADDR_HOST_MAX 256

/* Split at the last colon; drop brackets around the host. Return: 0, -EINVAL with gx_error(). */
static int addr_split(const char *addr, char host[ADDR_HOST_MAX], char port[8])
{
	const char *colon = strrchr(addr, ':'), *end = colon;
	bool bracket = addr[0] == '[';
	size_t len;

	if (!colon || colon == addr)
		return gx_fail(-EINVAL, "%.200s: not HOST:PORT; say 127.0.0.1:7501 or [::1]:7501",
			       addr);
	if (bracket) {
		addr++;
		end--;
	}
	len = end > addr ? (size_t)(end - addr) : 0;
	if (!len || len >= ADDR_HOST_MAX || (bracket && *end != ']'))
		return gx_fail(-EINVAL, "%.200s: not HOST:PORT; say 127.0.0.1:7501 or [::1]:7501",
			       addr);
	if (!bracket && memchr(addr, ':', len))
		return gx_fail(-EINVAL, "%.200s: an IPv6 address needs brackets, as in [::1]:7501",
			       addr);
	if (strlen(colon + 1) > 5)
		return gx_fail(-EINVAL, "%.200s: a port number is 0 to 65535", addr);
	memcpy(host, addr, len);
	host[len] = 0;
	snprintf(port, 8, "%.5s", colon + 1);
	return 0;
}

static int addr_port_check(const char *port, bool passive)
{
	unsigned long n = strtoul(port, NULL, 10);

	if (!port[0] || port[strspn(port, "0123456789")] || n > 65535)
		return gx_fail(-EINVAL, "port %.8s: a port number is 0 to 65535", port);
	if (!n && !passive)
		return gx_fail(
			-EINVAL,
			"port 0: nothing can listen there; name the port that gx_listen() returned");
	return 0;
}

int ctl_addr_resolve(const char *addr, bool passive, struct ctl_addr out[CTL_ADDRS_MAX])
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
				 .ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0)};
	struct addrinfo *list, *ai;
	char host[ADDR_HOST_MAX], port[8];
	int n = 0, ret;

	ret = addr_split(addr, host, port);
	if (!ret)
		ret = addr_port_check(port, passive);
	if (ret)
		return ret;
	ret = getaddrinfo(host, port, &hints, &list);
	if (ret)
		return gx_fail(-EINVAL, "%.200s cannot be resolved: %s; give its numeric address",
			       host, gai_strerror(ret));
	for (ai = list; ai && n < CTL_ADDRS_MAX; ai = ai->ai_next) {
		if (ai->ai_addrlen > sizeof(out[0].sa))
			continue;
		memset(&out[n], 0, sizeof(out[n]));
		memcpy(&out[n].sa, ai->ai_addr, ai->ai_addrlen);
		out[n++].len = ai->ai_addrlen;
	}
	freeaddrinfo(list);
	return n ? n : gx_fail(-EINVAL, "%.200s has no address", host);
}

void ctl_addr_name(const struct sockaddr_storage *sa, char *buf, size_t room)
{
	char host[NI_MAXHOST], port[NI_MAXSERV];
	socklen_t len = sa->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
						  : sizeof(struct sockaddr_in);

	if (getnameinfo((const struct sockaddr *)sa, len, host, sizeof(host), port, sizeof(port),
			NI_NUMERICHOST | NI_NUMERICSERV))
		snprintf(buf, room, "(unknown)");
	else
		snprintf(buf, room, sa->ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

bool ctl_addr_is_loopback(const struct sockaddr_storage *sa)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)sa;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)sa;

	if (sa->ss_family == AF_INET)
		return ntohl(in->sin_addr.s_addr) >> 24 == 127;
	if (sa->ss_family != AF_INET6)
		return false;
	if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr))
		return in6->sin6_addr.s6_addr[12] == 127;
	return IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

unsigned ctl_addr_bytes(const struct sockaddr *sa, uint8_t b[16])
{
	const struct in6_addr *ip6 = &((const struct sockaddr_in6 *)sa)->sin6_addr;

	if (sa->sa_family == AF_INET) {
		memcpy(b, &((const struct sockaddr_in *)sa)->sin_addr, 4);
		return 4;
	}
	if (sa->sa_family != AF_INET6)
		return 0;
	if (IN6_IS_ADDR_V4MAPPED(ip6)) {
		memcpy(b, ip6->s6_addr + 12, 4);
		return 4;
	}
	memcpy(b, ip6, 16);
	return 16;
}

bool ctl_addr_is_own(const struct ctl_addr *a)
{
	struct sockaddr_storage sa = a->sa;
	int fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool own;

	((struct sockaddr_in *)&sa)->sin_port = 0; /* that of IPv6 has the same place */
	own = !bind(fd, (struct sockaddr *)&sa, a->len);
	close(fd);
	return own;
}
