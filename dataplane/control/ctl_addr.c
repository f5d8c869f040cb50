/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses of the bootstrap connection: "HOST:PORT" to socket addresses and back. Resolving may
 * ask the network. So a thread of its own does that, and the thread that called gx_listen() or
 * gx_connect() waits for it, as long as it may. Never on a core.
 */
#include "control/ctl.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
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

/* ---- Names ---- */

/* A name that a thread looks up. Whoever of thread and caller is the second to leave frees it. */
struct lookup {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool ended, left; /* the thread has; the caller has */
	int err;	  /* of getaddrinfo() */
	struct addrinfo hints, *list;
	char host[ADDR_HOST_MAX], port[8];
};

static void lookup_free(struct lookup *l)
{
	if (l->list)
		freeaddrinfo(l->list);
	pthread_cond_destroy(&l->cond);
	pthread_mutex_destroy(&l->lock);
	free(l);
}

static void *lookup_main(void *arg)
{
	struct lookup *l = arg;
	struct addrinfo *list = NULL;
	int err = getaddrinfo(l->host, l->port, &l->hints, &list);
	bool left;

	pthread_mutex_lock(&l->lock);
	l->list = err ? NULL : list;
	l->err = err;
	l->ended = true;
	left = l->left;
	pthread_cond_signal(&l->cond);
	pthread_mutex_unlock(&l->lock);
	if (left)
		lookup_free(l);
	return NULL;
}

/* The program's signals go to the program's threads. Return: 0, -errno. */
static int lookup_start(struct lookup *l)
{
	pthread_condattr_t clock;
	pthread_attr_t attr;
	sigset_t all, old;
	pthread_t thread;
	int ret;

	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&l->cond, &clock);
	pthread_condattr_destroy(&clock);
	pthread_mutex_init(&l->lock, NULL);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	ret = -pthread_create(&thread, &attr, lookup_main, l);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return ret;
}

/* Return: as getaddrinfo(); EAI_INPROGRESS: not by @end_ns. */
static int lookup_wait(struct lookup *l, uint64_t end_ns, struct addrinfo **list)
{
	struct timespec until = {.tv_sec = (time_t)(end_ns / 1000000000),
				 .tv_nsec = (long)(end_ns % 1000000000)};
	bool ended;
	int err = 0;

	pthread_mutex_lock(&l->lock);
	while (!l->ended && !err)
		err = pthread_cond_timedwait(&l->cond, &l->lock, &until);
	ended = l->ended;
	l->left = true;
	err = ended ? l->err : EAI_INPROGRESS;
	*list = l->list;
	l->list = NULL;
	pthread_mutex_unlock(&l->lock);
	if (ended)
		lookup_free(l);
	return err;
}

/* Numbers ask nobody. Return: 0, -errno with gx_error(). */
static int addr_lookup(const char *host, const char *port, bool passive, uint64_t end_ns,
		       struct addrinfo **list)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
				 .ai_flags = AI_NUMERICSERV | AI_NUMERICHOST |
					     (passive ? AI_PASSIVE : 0)};
	int err = getaddrinfo(host, port, &hints, list);
	struct lookup *l;

	if (err == EAI_NONAME) {
		l = calloc(1, sizeof(*l));
		if (!l)
			return gx_fail(-ENOMEM, "out of memory");
		l->hints = hints;
		l->hints.ai_flags &= ~AI_NUMERICHOST;
		snprintf(l->host, sizeof(l->host), "%s", host);
		snprintf(l->port, sizeof(l->port), "%s", port);
		err = lookup_start(l);
		if (err) {
			lookup_free(l);
			return gx_fail(err, "no thread to look up %.200s: %s", host,
				       strerror(-err));
		}
		err = lookup_wait(l, end_ns, list);
	}
	if (err == EAI_INPROGRESS)
		return gx_fail(
			-ETIMEDOUT,
			"%.160s was not resolved in time: does its name server answer? Give its "
			"numeric address, or more time",
			host);
	if (err && if_nametoindex(host))
		return gx_fail(
			-EINVAL,
			"%.200s is an interface of this host: give an address (ip addr show %.15s)",
			host, host);
	return err ? gx_fail(-EINVAL, "%.200s cannot be resolved: %s; give its numeric address",
			     host, gai_strerror(err))
		   : 0;
}

static bool addr_is_in(const struct ctl_addr *a, const struct ctl_addr out[], unsigned n)
{
	while (n--)
		if (out[n].len == a->len && !memcmp(&out[n].sa, &a->sa, a->len))
			return true;
	return false;
}

/* Of which network of this host is a link-local address? Only a zone says so. */
static int addr_zone_check(const struct addrinfo *list, const char *host)
{
	for (; list; list = list->ai_next) {
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)list->ai_addr;

		if (list->ai_family == AF_INET6 && !in6->sin6_scope_id &&
		    IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr))
			return gx_fail(
				-EINVAL,
				"%.200s is an address of one link: name this host's interface "
				"there, as in [%.200s%%eth0]:7501 (ip -br link lists them)",
				host, host);
	}
	return 0;
}

/* One HOST:PORT more. Return: the new number of addresses, -errno with gx_error(). */
static int addr_add(const char *text, bool passive, uint64_t end_ns,
		    struct ctl_addr out[CTL_ADDRS_MAX], int n)
{
	struct addrinfo *list, *ai;
	char host[ADDR_HOST_MAX], port[8];
	int ret = addr_split(text, host, port);

	if (!ret)
		ret = addr_port_check(port, passive);
	if (!ret)
		ret = addr_lookup(host, port, passive, end_ns, &list);
	if (ret)
		return ret;
	ret = addr_zone_check(list, host);
	if (ret) {
		freeaddrinfo(list);
		return ret;
	}
	for (ai = list; ai; ai = ai->ai_next) {
		struct ctl_addr a = {.len = ai->ai_addrlen};

		if (ai->ai_addrlen > sizeof(a.sa))
			continue;
		memcpy(&a.sa, ai->ai_addr, ai->ai_addrlen);
		if (addr_is_in(&a, out, (unsigned)n))
			continue;
		if (n == CTL_ADDRS_MAX)
			break;
		out[n++] = a;
	}
	if (ai && ai == list)
		n = gx_fail(-E2BIG, "%.160s: a list has %d addresses at most", text, CTL_ADDRS_MAX);
	else if (ai)
		gx_warn("%.160s has more than %d addresses: the first ones are taken", text,
			CTL_ADDRS_MAX);
	freeaddrinfo(list);
	return n ? n : gx_fail(-EINVAL, "%.200s has no address", host);
}

int ctl_addr_resolve(const char *addr, bool passive, uint64_t timeout_ns,
		     struct ctl_addr out[CTL_ADDRS_MAX])
{
	uint64_t end_ns = gx_later_ns(gx_now_ns(), timeout_ns);
	char item[ADDR_HOST_MAX + 16];
	int n = 0;

	do {
		size_t len = strcspn(addr, ",");

		snprintf(item, sizeof(item), "%.*s", (int)GX_MIN(len, sizeof(item)), addr);
		n = addr_add(item, passive, end_ns, out, n);
		addr += len;
	} while (n > 0 && *addr++);
	return n;
}

void ctl_addr_list(const struct ctl_addr a[], int n, char *list, size_t room)
{
	struct gx_text text = {.buf = list, .room = room};
	char name[96];

	list[0] = 0;
	for (int i = 0; i < n; i++) {
		ctl_addr_name(&a[i].sa, name, sizeof(name));
		if (text.at + strlen(name) + 1 < room) /* no part of one */
			core_say(&text, "%s%s", text.at ? "," : "", name);
	}
}

int ctl_resolve(const char *addr, uint64_t timeout_ns, char *list, size_t room)
{
	struct ctl_addr a[CTL_ADDRS_MAX];
	int n = ctl_addr_resolve(addr, false, timeout_ns, a);

	ctl_addr_list(a, n, list, room);
	return n;
}

/* ---- Order ---- */

enum addr_near { ADDR_NEAR, ADDR_FAR, ADDR_OWN };

/* A link-local address is of one interface: another one has the same network. Is @to, of which @i has the
 * family, of that of @i? */
static bool addr_same_link(const struct ctl_addr *to, const struct ifaddrs *i)
{
	const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)&to->sa,
				  *b = (const struct sockaddr_in6 *)i->ifa_addr;

	return to->sa.ss_family != AF_INET6 || i->ifa_addr->sa_family != AF_INET6 ||
	       !IN6_IS_ADDR_LINKLOCAL(&a->sin6_addr) || a->sin6_scope_id == b->sin6_scope_id;
}

/* Is @to in the network of @i, an address of ours? */
static bool addr_in_net(const struct ctl_addr *to, const struct ifaddrs *i)
{
	uint8_t a[16], own[16], mask[16];
	unsigned n = ctl_addr_bytes((const struct sockaddr *)&to->sa, a);
	bool in = n && i->ifa_addr && i->ifa_netmask && i->ifa_flags & IFF_UP &&
		  ctl_addr_bytes(i->ifa_addr, own) == n && addr_same_link(to, i);

	if (!in)
		return false;
	memcpy(mask,
	       n == 4 ? (void *)&((struct sockaddr_in *)i->ifa_netmask)->sin_addr
		      : (void *)&((struct sockaddr_in6 *)i->ifa_netmask)->sin6_addr,
	       n);
	for (unsigned k = 0; k < n; k++)
		in &= !((a[k] ^ own[k]) & mask[k]);
	return in;
}

static enum addr_near addr_near(const struct ctl_addr *a, const struct ifaddrs *list)
{
	enum addr_near near = ADDR_FAR;
	uint8_t to[16], own[16];
	unsigned n = ctl_addr_bytes((const struct sockaddr *)&a->sa, to);

	for (; list; list = list->ifa_next) {
		if (!list->ifa_addr || !n || ctl_addr_bytes(list->ifa_addr, own) != n)
			continue;
		if (!memcmp(to, own, n) && addr_same_link(a, list))
			return ADDR_OWN;
		if (addr_in_net(a, list))
			near = ADDR_NEAR;
	}
	return near;
}

bool ctl_addr_leaves(const struct ctl_addr *own, const struct ctl_addr *to)
{
	bool leaves = true;
	struct ifaddrs *list;

	if (own->sa.ss_family != to->sa.ss_family || ctl_addr_is_loopback(&to->sa))
		return false;
	if (getifaddrs(&list))
		return true;
	for (const struct ifaddrs *i = list; i; i = i->ifa_next)
		if (addr_in_net(to, i)) {
			leaves = addr_in_net(own, i);
			if (leaves)
				break;
		}
	freeifaddrs(list);
	return leaves;
}

static void addr_move(struct ctl_addr a[], unsigned from, unsigned to)
{
	struct ctl_addr moved = a[from];

	memmove(&a[to + 1], &a[to], (from - to) * sizeof(a[0]));
	a[to] = moved;
}

/* The peer names all that it has, and does not know our networks. Ours are last: a peer on another host may have
 * one that we have, too. */
static void addrs_by_near(struct ctl_addr a[], unsigned n)
{
	enum addr_near near[CTL_ADDRS_MAX], is;
	struct ifaddrs *list;

	if (getifaddrs(&list))
		return;
	for (unsigned i = 0; i < n; i++) {
		unsigned to = i;

		is = addr_near(&a[i], list);
		while (to && near[to - 1] > is)
			to--;
		addr_move(a, i, to);
		memmove(&near[to + 1], &near[to], (i - to) * sizeof(near[0]));
		near[to] = is;
	}
	freeifaddrs(list);
}

void ctl_addr_order(struct ctl_addr a[], unsigned n, bool listed)
{
	for (unsigned i = 1; i < n; i++) { /* RFC 8305, 4: families in turn */
		unsigned from = i;

		while (from < n && a[from].sa.ss_family == a[i - 1].sa.ss_family)
			from++;
		if (from == n)
			break;
		addr_move(a, from, i);
	}
	if (listed)
		addrs_by_near(a, n);
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
