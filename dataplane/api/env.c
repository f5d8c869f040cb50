/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment's key and address (gx/env.h). Control path.
 */
#include "control/control.h"
#include "core/core.h"

#include <gx/env.h>

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WANT_MAX 16 /* items */

/* "10.0.0.0/8", an address without a length is a network of its own */
struct env_net {
	sa_family_t family; /* 0: it is the name of an interface */
	uint8_t addr[16];
	unsigned bits;
};

struct env_want {
	const char *text; /* as given */
	char copy[512];
	char *item[WANT_MAX];
	struct env_net net[WANT_MAX];
	unsigned nr;
	bool not_these, exact; /* the items are names: none of them, or whole ones */
};

/* What is better about an address, the first first. */
struct env_rank {
	unsigned item, v6;
	long slow; /* -Mb/s of its interface */
};

GX_EXPORT const char *gx_env_key_file(void)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	const char *file = secure_getenv("GX_KEY_FILE"), *addr = secure_getenv("GX_ADDR");

	if (file && *file)
		return file;
	if (addr && *addr && !atomic_flag_test_and_set(&said))
		gx_warn("GX_ADDR=%.80s has no effect without a key: this host alone is served; set "
			"GX_KEY_FILE to a key file that all hosts have",
			addr);
	return NULL;
}

static struct env_net net_parse(const char *item)
{
	struct env_net net = {.family = AF_INET, .bits = 32};
	char host[GX_ADDR_MAX], *slash, *end = "";
	unsigned max;

	snprintf(host, sizeof(host), "%s", item);
	slash = strchr(host, '/');
	if (slash)
		*slash++ = 0;
	if (inet_pton(AF_INET, host, net.addr) != 1) {
		host[strcspn(host, "%")] = 0; /* the interface is in the address that is compared */
		net.family = inet_pton(AF_INET6, host, net.addr) == 1 ? AF_INET6 : 0;
		net.bits = 128;
	}
	max = net.bits;
	if (slash)
		net.bits = (unsigned)strtoul(slash, &end, 10);
	if (*end || net.bits > max || (slash && (*slash < '0' || *slash > '9')))
		net.family = 0;
	return net;
}

static const uint8_t *addr_bytes(const struct sockaddr *sa)
{
	return sa->sa_family == AF_INET
		       ? (const uint8_t *)&((const struct sockaddr_in *)sa)->sin_addr
		       : (const uint8_t *)&((const struct sockaddr_in6 *)sa)->sin6_addr;
}

static bool net_has(const struct env_net *net, const struct sockaddr *sa)
{
	const uint8_t *a = addr_bytes(sa);
	unsigned whole = net->bits / 8, rest = net->bits % 8;

	return net->family == sa->sa_family && !memcmp(net->addr, a, whole) &&
	       (!rest || !((net->addr[whole] ^ a[whole]) >> (8 - rest)));
}

static int want_parse(const char *text, struct env_want *w)
{
	char *save = NULL, *at = w->copy;

	memset(w, 0, sizeof(*w));
	w->text = text;
	if (strlen(text) >= sizeof(w->copy))
		return gx_fail(-EINVAL, "%.40s...: too long for addresses of this host", text);
	strcpy(w->copy, text);
	w->not_these = *at == '^';
	at += w->not_these;
	w->exact = *at == '=';
	at += w->exact;
	for (at = strtok_r(at, ",", &save); at && w->nr < WANT_MAX;
	     at = strtok_r(NULL, ",", &save)) {
		if (!w->not_these && !w->exact)
			w->net[w->nr] = net_parse(at);
		w->item[w->nr++] = at;
	}
	if (!w->nr || at)
		return gx_fail(-EINVAL, "%.80s: name 1 to %u addresses, networks or interfaces",
			       text, WANT_MAX);
	return 0;
}

static bool name_is(const struct env_want *w, unsigned i, const char *name)
{
	return !strncmp(name, w->item[i], strlen(w->item[i]) + w->exact);
}

/* Return: the item that names this address, the first is 0; -1: none does. */
static int want_item(const struct env_want *w, const struct ifaddrs *a)
{
	for (unsigned i = 0; i < w->nr; i++)
		if (w->net[i].family ? net_has(&w->net[i], a->ifa_addr)
				     : name_is(w, i, a->ifa_name))
			return (int)i;
	return -1;
}

static bool is_of_link(const struct sockaddr *sa)
{
	static const struct env_net v4 = {AF_INET, {169, 254}, 16},
				    v6 = {AF_INET6, {0xfe, 0x80}, 10};

	return net_has(&v4, sa) || net_has(&v6, sa);
}

static bool is_loopback(const struct env_net *net)
{
	return net->family == AF_INET && net->bits == 32 && net->addr[0] == 127;
}

static bool is_up(const struct ifaddrs *a)
{
	return a->ifa_flags & IFF_UP && a->ifa_flags & IFF_RUNNING && a->ifa_addr &&
	       (a->ifa_addr->sa_family == AF_INET || a->ifa_addr->sa_family == AF_INET6);
}

/* Mb/s; 0: the kernel does not say. */
static long speed_of(const char *name)
{
	char path[64 + IF_NAMESIZE];
	long mbps = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/sys/class/net/%.15s/speed", name);
	f = fopen(path, "re");
	if (f && fscanf(f, "%9ld", &mbps) != 1)
		mbps = 0;
	if (f)
		fclose(f);
	return mbps > 0 ? mbps : 0;
}

/* Is it one that may be told, and how good is it? */
static bool addr_ranks(const struct env_want *w, const struct ifaddrs *a, struct env_rank *rank)
{
	bool named = w->nr && !w->not_these;
	int item;

	if (!is_up(a))
		return false;
	item = want_item(w, a);
	if (named ? item < 0 : item >= 0 || a->ifa_flags & IFF_LOOPBACK)
		return false;
	if (is_of_link(a->ifa_addr) && !named)
		return false;
	*rank = (struct env_rank){.item = named ? (unsigned)item : 0,
				  .v6 = a->ifa_addr->sa_family == AF_INET6,
				  .slow = -speed_of(a->ifa_name)};
	if (is_of_link(a->ifa_addr))
		rank->v6 += 2;
	return true;
}

static bool rank_is_better(const struct env_rank *a, const struct env_rank *b)
{
	if (a->item != b->item)
		return a->item < b->item;
	if (a->v6 != b->v6)
		return a->v6 < b->v6;
	return a->slow < b->slow;
}

static void addr_print(const struct ifaddrs *a, char addr[GX_ADDR_MAX])
{
	socklen_t len = a->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in)
							  : sizeof(struct sockaddr_in6);

	if (getnameinfo(a->ifa_addr, len, addr, GX_ADDR_MAX, NULL, 0, NI_NUMERICHOST))
		addr[0] = 0;
}

static int addr_none(const struct env_want *w, const struct ifaddrs *list)
{
	char text[400] = "", addr[GX_ADDR_MAX];
	int at = 0;

	for (const struct ifaddrs *a = list; a && at < (int)sizeof(text) - 100; a = a->ifa_next) {
		if (!is_up(a))
			continue;
		addr_print(a, addr);
		at += snprintf(text + at, sizeof(text) - (size_t)at, "%s%s %s", at ? ", " : "",
			       a->ifa_name, addr);
	}
	return gx_fail(
		-EINVAL,
		"no interface that is up has the address, network or name %.80s; there are: %s",
		w->text, text[0] ? text : "none");
}

/* The best @max of @list, the best first. Return: their number. */
static unsigned addrs_best(const struct env_want *w, const struct ifaddrs *list,
			   const struct ifaddrs *best[], unsigned max)
{
	struct env_rank is, rank[GX_ADDRS_MAX];
	unsigned n = 0;

	for (const struct ifaddrs *a = list; a; a = a->ifa_next) {
		unsigned at = n;

		if (!addr_ranks(w, a, &is))
			continue;
		while (at && rank_is_better(&is, &rank[at - 1]))
			at--;
		if (at == max)
			continue;
		n = GX_MIN(n + 1, max);
		memmove(&best[at + 1], &best[at], (n - 1 - at) * sizeof(best[0]));
		memmove(&rank[at + 1], &rank[at], (n - 1 - at) * sizeof(rank[0]));
		best[at] = a;
		rank[at] = is;
	}
	return n;
}

GX_EXPORT int gx_env_addrs(const char *want, char addr[][GX_ADDR_MAX], unsigned max)
{
	const char *text = want ? want : secure_getenv("GX_ADDR");
	const struct ifaddrs *best[GX_ADDRS_MAX];
	struct ifaddrs *list;
	struct env_want w;
	int ret;

	if (!text || !*text)
		text = "^docker,br-,virbr,cni,flannel";
	else
		want = text;
	ret = want_parse(text, &w);
	if (ret)
		return ret;
	if (getifaddrs(&list))
		return gx_fail(-errno, "addresses of this host: %s", strerror(errno));
	max = want ? 1 : GX_MIN(max, (unsigned)GX_ADDRS_MAX);
	ret = (int)addrs_best(&w, list, best, max);
	for (int i = 0; i < ret; i++)
		addr_print(best[i], addr[i]);
	if (!ret && want &&
	    is_loopback(&w.net[0])) { /* all of 127.0.0.0/8 is ours, and one is listed */
		inet_ntop(AF_INET, w.net[0].addr, addr[0], GX_ADDR_MAX);
		ret = 1;
	} else if (!ret && want) {
		ret = addr_none(&w, list);
	} else if (!ret) {
		strcpy(addr[0], "127.0.0.1");
		ret = 1;
	}
	freeifaddrs(list);
	return ret;
}

GX_EXPORT int gx_env_addr(const char *want, char addr[GX_ADDR_MAX])
{
	int ret = gx_env_addrs(want, (char(*)[GX_ADDR_MAX])addr, 1);

	return ret < 0 ? ret : 0;
}

/* "10.0.0.1:0,[fd00::1]:0", as much as there is room for. */
static void list_print(char addr[][GX_ADDR_MAX], int n, char *list, size_t room)
{
	size_t at = 0;
	char one[GX_ADDR_MAX + 8];

	list[0] = 0;
	for (int i = 0; i < n; i++) {
		size_t len = (size_t)snprintf(one, sizeof(one),
					      strchr(addr[i], ':') ? "%s[%s]:0" : "%s%s:0",
					      i ? "," : "", addr[i]);

		if (at + len >= room)
			return;
		memcpy(list + at, one, len + 1);
		at += len;
	}
}

GX_EXPORT int gx_env_listen(struct gx *gx, unsigned max, char *list, size_t room)
{
	char addr[GX_ADDRS_MAX][GX_ADDR_MAX], all[GX_LIST_MAX];
	int n = gx_env_addrs(NULL, addr, max);

	if (n < 0)
		return n;
	list_print(addr, n, all, sizeof(all));
	return ctl_listen_list(gx, all, list, room);
}

GX_EXPORT int gx_env_resolve(const char *addr, uint64_t timeout_ns, char list[GX_LIST_MAX])
{
	return ctl_resolve(addr, timeout_ns, list, GX_LIST_MAX);
}
