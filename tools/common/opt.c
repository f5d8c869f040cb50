// SPDX-License-Identifier: Apache-2.0
/*
 * Parses option values (see opt.h). Pure, except opt_cpus_allowed() and opt_bind(), which ask the
 * system.
 */
#include "common/opt.h"

#include <gxlab/modes.h>

#include <errno.h>
#include <ifaddrs.h>
#include <math.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define OPT_CPU_NR_MAX CPU_SETSIZE
#define OPT_ADDRS_MAX  2048

static bool opt_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* strtoull() accepts signs and spaces; options must not. */
static int opt_number(const char *text, uint64_t *out, const char **end)
{
	char *stop;

	if (!opt_digit(text[0]))
		return -EINVAL;
	errno = 0;
	*out = strtoull(text, &stop, 10);
	*end = stop;
	return errno ? -ERANGE : 0;
}

int opt_size(const char *text, uint64_t *out)
{
	static const char unit[] = "KMGT";
	const char *end, *u;
	unsigned shift = 0;
	uint64_t v;
	int ret = opt_number(text, &v, &end);

	if (ret)
		return ret;
	if (*end) {
		u = strchr(unit, *end >= 'a' ? *end - 'a' + 'A' : *end);
		if (!u || end[1])
			return -EINVAL;
		shift = 10 * (unsigned)(u - unit + 1);
	}
	if (v > UINT64_MAX >> shift)
		return -ERANGE;
	*out = v << shift;
	return 0;
}

int opt_u32(const char *text, uint32_t min, uint32_t max, uint32_t *out)
{
	const char *end;
	uint64_t v;
	int ret = opt_number(text, &v, &end);

	if (ret)
		return ret;
	if (*end)
		return -EINVAL;
	if (v < min || v > max)
		return -ERANGE;
	*out = (uint32_t)v;
	return 0;
}

int opt_seconds(const char *text, uint64_t *out_ns)
{
	char *end;
	double s;

	if (!opt_digit(text[0]) && text[0] != '.')
		return -EINVAL;
	s = strtod(text, &end);
	if (*end || end == text || !isfinite(s))
		return -EINVAL;
	if (s < 1e-3 || s > 86400)
		return -ERANGE;
	*out_ns = (uint64_t)(s * 1e9);
	return 0;
}

static int opt_cpus_add(struct opt_cpus *cpus, uint64_t first, uint64_t last)
{
	if (last < first || last >= OPT_CPU_NR_MAX)
		return -EINVAL;
	for (uint64_t c = first; c <= last; c++) {
		if (cpus->nr == OPT_CPUS_MAX)
			return -ERANGE;
		for (unsigned i = 0; i < cpus->nr; i++)
			if (cpus->cpu[i] == (int)c)
				return -EINVAL;
		cpus->cpu[cpus->nr++] = (int)c;
	}
	return 0;
}

int opt_cpus(const char *text, struct opt_cpus *out)
{
	struct opt_cpus cpus = {.nr = 0};
	uint64_t first, last;
	int ret;

	if (!strcmp(text, "any"))
		return opt_cpus_allowed(out);
	for (;; text++) {
		ret = opt_number(text, &first, &text);
		last = first;
		if (!ret && *text == '-')
			ret = opt_number(text + 1, &last, &text);
		if (!ret)
			ret = opt_cpus_add(&cpus, first, last);
		if (ret)
			return ret;
		if (*text != ',')
			break;
	}
	if (*text)
		return -EINVAL;
	*out = cpus;
	return 0;
}

int opt_cpus_allowed(struct opt_cpus *out)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set))
		return -errno;
	out->nr = 0;
	for (int c = 0; c < CPU_SETSIZE && out->nr < OPT_CPUS_MAX; c++)
		if (CPU_ISSET(c, &set))
			out->cpu[out->nr++] = c;
	return out->nr ? 0 : -EINVAL;
}

int opt_cpus_stranger(const struct opt_cpus *cpus, const struct opt_cpus *allowed)
{
	for (unsigned i = 0; i < cpus->nr; i++) {
		bool found = false;

		for (unsigned j = 0; j < allowed->nr; j++)
			found |= cpus->cpu[i] == allowed->cpu[j];
		if (!found)
			return cpus->cpu[i];
	}
	return -1;
}

void opt_cpus_default(const struct opt_cpus *allowed, bool server, struct opt_cpus *out)
{
	unsigned nr = allowed->nr / 2, first;

	if (nr == 0)
		nr = 1;
	if (nr > OPT_CPUS_DEFAULT_MAX)
		nr = OPT_CPUS_DEFAULT_MAX;
	first = server ? 0 : allowed->nr - nr;
	memcpy(out->cpu, &allowed->cpu[first], nr * sizeof(out->cpu[0]));
	out->nr = nr;
}

void opt_cpus_text(const struct opt_cpus *cpus, char *buf, size_t room)
{
	size_t at = 0;

	buf[0] = '\0';
	for (unsigned i = 0; i < cpus->nr && at < room; i++)
		at += (size_t)snprintf(buf + at, room - at, "%s%d", i ? "," : "", cpus->cpu[i]);
}

int opt_place(const char *text, enum gx_mem_kind *kind, int *device)
{
	uint32_t n = 0;

	if (!strcmp(text, "host")) {
		*kind = GX_MEM_HOST;
	} else if (!strncmp(text, "cuda:", 5) && !opt_u32(text + 5, 0, 1023, &n)) {
		*kind = GX_MEM_CUDA;
	} else {
		return -EINVAL;
	}
	*device = (int)n;
	return 0;
}

void opt_place_text(enum gx_mem_kind kind, int device, char *buf, size_t room)
{
	if (kind == GX_MEM_CUDA)
		snprintf(buf, room, "cuda:%d", device);
	else
		snprintf(buf, room, "host");
}

int opt_bounce(const char *text, enum gx_bounce *bounce, int *device)
{
	uint32_t n = 0;

	if (!strcmp(text, "host"))
		*bounce = GX_BOUNCE_HOST;
	else if (!strcmp(text, "gpu") ||
		 (!strncmp(text, "gpu:", 4) && !opt_u32(text + 4, 0, 1023, &n)))
		*bounce = GX_BOUNCE_CUDA;
	else
		return -EINVAL;
	*device = (int)n;
	return 0;
}

/* An address of IPv6 without brackets is left as it is: where its port begins nobody knows. */
static bool addr_lacks_port(const char *addr, size_t len)
{
	return len && (addr[len - 1] == ']' || !memchr(addr, ':', len));
}

const char *opt_addr(const char *addr)
{
	static char made[OPT_ADDRS_MAX];
	const char *rest = addr;
	size_t at = 0;

	for (;; rest++) {
		size_t len = strcspn(rest, ",");

		at += (size_t)snprintf(made + at, sizeof(made) - at, "%.*s%s%s", (int)len, rest,
				       addr_lacks_port(rest, len) ? ":" OPT_PORT : "",
				       rest[len] ? "," : "");
		if (at >= sizeof(made))
			return addr;
		rest += len;
		if (!*rest)
			return made;
	}
}

/* Printable ASCII: a user can type, see and paste it. */
static bool opt_printable(char c)
{
	return c >= ' ' && c <= '~';
}

void opt_plain(const char *text, char *buf, size_t room)
{
	size_t n = 0;

	for (; text[n] && n + 1 < room; n++)
		buf[n] = opt_printable(text[n]) ? text[n] : '?';
	buf[n] = '\0';
}

void opt_shell(const char *text, char *buf, size_t room)
{
	bool bare = text[0] && text[0] != '-';
	size_t at = 0;

	for (const char *c = text; *c && bare; c++)
		bare = opt_digit(*c) || (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
		       strchr("_-./:,@%+", *c);
	if (bare) {
		snprintf(buf, room, "%s", text);
		return;
	}
	at += (size_t)snprintf(buf, room, "'");
	for (const char *c = text; *c && at + 6 < room; c++) {
		if (*c == '\'')
			at += (size_t)snprintf(buf + at, room - at, "'\\''");
		else
			buf[at++] = *c;
	}
	snprintf(buf + at, room - at, "'");
}

int opt_mem(const char *text, struct opt_mem *out)
{
	const char *eq = strchr(text, '='), *colon = strrchr(text, ':');
	char place[32];
	struct opt_mem mem = {.name = ""};

	if (!eq || eq == text || (size_t)(eq - text) >= sizeof(mem.name) || !colon || colon < eq)
		return -EINVAL;
	for (const char *c = text; c < eq; c++)
		if (!opt_printable(*c))
			return -EINVAL;
	if ((size_t)(colon - eq - 1) >= sizeof(place))
		return -EINVAL;
	memcpy(mem.name, text, (size_t)(eq - text));
	memcpy(place, eq + 1, (size_t)(colon - eq - 1));
	place[colon - eq - 1] = '\0';
	if (opt_place(place, &mem.kind, &mem.device) || opt_size(colon + 1, &mem.len) || !mem.len)
		return -EINVAL;
	*out = mem;
	return 0;
}

int opt_name(const char *text, const char *const names[], unsigned n, unsigned *out)
{
	for (unsigned i = 0; i < n; i++)
		if (!strcmp(text, names[i]))
			return *out = i, 0;
	return -EINVAL;
}

static const struct {
	enum gx_unpack_mode mode;
	const char *name;
} opt_unpacks[] = {
	{GX_UNPACK_MODE_AUTO, "auto"},	       {GX_UNPACK_MODE_KERNEL, "kernel"},
	{GX_UNPACK_MODE_RESIDENT, "resident"}, {GX_UNPACK_MODE_D2D, "d2d"},
	{GX_UNPACK_MODE_HOST, "host"},	       {GX_UNPACK_MODE_NONE, "none"},
};

int opt_unpack(const char *text, enum gx_unpack_mode *out)
{
	for (unsigned i = 0; i < sizeof(opt_unpacks) / sizeof(opt_unpacks[0]); i++) {
		if (!strcmp(text, opt_unpacks[i].name)) {
			*out = opt_unpacks[i].mode;
			return 0;
		}
	}
	return -EINVAL;
}

const char *opt_unpack_text(enum gx_unpack_mode mode)
{
	for (unsigned i = 0; i < sizeof(opt_unpacks) / sizeof(opt_unpacks[0]); i++)
		if (opt_unpacks[i].mode == mode)
			return opt_unpacks[i].name;
	return "unknown";
}

int opt_integrity(const char *text, enum gx_integrity_mode *out)
{
	for (unsigned i = 0; i + GX_INTEGRITY_MODE_NONE <= GX_INTEGRITY_MODE_GCM; i++)
		if (!strcmp(text, opt_integrity_text(GX_INTEGRITY_MODE_NONE + i)) ||
		    (text[0] == (char)('0' + i) && !text[1])) {
			*out = GX_INTEGRITY_MODE_NONE + i;
			return 0;
		}
	return -EINVAL;
}

const char *opt_integrity_text(enum gx_integrity_mode mode)
{
	static const char *const names[] = {"auto", "none", "crc32c", "mac", "gcm"};

	return mode <= GX_INTEGRITY_MODE_GCM ? names[mode] : "unknown";
}

const char *opt_auth_text(const struct gx_conn_info *info, char buf[OPT_AUTH_MAX])
{
	if (info->auth[0])
		snprintf(buf, OPT_AUTH_MAX, "key %s", info->auth);
	else
		snprintf(buf, OPT_AUTH_MAX, "%s", info->same_host ? "this host" : "insecure");
	return buf;
}

int opt_crc_by(const char *text, enum gx_crc_by *out)
{
	static const char *const names[] = {"auto", "cpu", "copy"};

	return opt_name(text, names, 3, out);
}

int opt_pull(const char *text, enum gx_pull *out)
{
	static const char *const names[] = {"auto", "on", "off", "allow"};

	return opt_name(text, names, 4, out);
}

int opt_tcp_rx(const char *text, enum gx_nic_rx *out)
{
	static const char *const names[] = {"copy", "devmem"};

	return opt_name(text, names, 2, out);
}

int opt_tcp_tx(const char *text, enum gx_nic_tx *out)
{
	static const char *const names[] = {"copy", "devmem", "auto"};

	return opt_name(text, names, 3, out);
}

const char *opt_crc_by_text(enum gx_integrity_mode integrity, unsigned crc_by_copy,
			    enum gx_mem_kind kind)
{
	if (integrity != GX_INTEGRITY_MODE_CRC32C)
		return "none";
	return crc_by_copy >> kind & 1 ? "copy" : "cpu";
}

void opt_size_text(uint64_t len, char *buf, size_t room)
{
	static const char *const unit[] = {"", "K", "M", "G", "T"};
	unsigned u = 0;

	while (u < 4 && len && !(len & 1023)) {
		len >>= 10;
		u++;
	}
	snprintf(buf, room, "%llu%s", (unsigned long long)len, unit[u]);
}

/* ---- Lists ---- */

static int sizes_range(char *text, struct opt_sizes *s)
{
	char *save = NULL, *begin = strtok_r(text, ":", &save), *end = strtok_r(NULL, ":", &save),
	     *factor = strtok_r(NULL, ":", &save);
	uint64_t v, last, f = 4;

	if (!begin || opt_size(begin, &v) || !v)
		return -EINVAL;
	last = v;
	if ((end && (opt_size(end, &last) || last < v)) ||
	    (factor && (opt_size(factor, &f) || f < 2)))
		return -EINVAL;
	for (; v <= last; v *= f) {
		if (s->n == sizeof(s->v) / sizeof(s->v[0]))
			return -EINVAL;
		s->v[s->n++] = v;
		if (v > last / f)
			break;
	}
	return 0;
}

int opt_sizes(const char *text, struct opt_sizes *out)
{
	char copy[512], *save = NULL, *word;
	struct opt_sizes s = {.n = 0};

	if (strlen(text) >= sizeof(copy))
		return -EINVAL;
	strcpy(copy, text);
	for (word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save))
		if (sizes_range(word, &s))
			return -EINVAL;
	if (!s.n)
		return -EINVAL;
	*out = s;
	return 0;
}

int opt_list(const char *text, struct opt_list *out)
{
	char copy[256], *save = NULL, *word;
	struct opt_list l = {.n = 0};
	uint64_t v;

	if (strlen(text) >= sizeof(copy))
		return -EINVAL;
	strcpy(copy, text);
	for (word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
		if (l.n == OPT_LIST_MAX || opt_size(word, &v) || v > UINT32_MAX)
			return -EINVAL;
		l.v[l.n++] = (uint32_t)v;
	}
	if (!l.n)
		return -EINVAL;
	*out = l;
	return 0;
}

/* ---- Addresses ---- */

bool opt_port_ok(const char *addr)
{
	const char *colon = strrchr(addr, ':');
	size_t len = colon ? strlen(colon + 1) : 0;

	return len && len <= 5 && strspn(colon + 1, "0123456789") == len &&
	       atoi(colon + 1) <= 65535;
}

/* Resolve HOST of HOST:PORT, without brackets. @all: its bytes. */
static int bind_resolve(const char *addr, size_t all, struct addrinfo **out)
{
	struct addrinfo hint = {.ai_socktype = SOCK_DGRAM};
	const char *colon = memrchr(addr, ':', all);
	char host[OPT_HOST_MAX];
	size_t len = colon ? (size_t)(colon - addr) : 0;

	if (len > 2 && addr[0] == '[' && addr[len - 1] == ']') {
		addr++;
		len -= 2;
	}
	if (!len || len >= sizeof(host))
		return -EINVAL;
	memcpy(host, addr, len);
	host[len] = 0;
	return getaddrinfo(host, "9", &hint, out) ? -EINVAL : 0;
}

static bool bind_is_any(const struct sockaddr *sa)
{
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)sa;

	if (sa->sa_family == AF_INET)
		return !((const struct sockaddr_in *)sa)->sin_addr.s_addr;
	return IN6_IS_ADDR_UNSPECIFIED(&in6->sin6_addr);
}

/* Our address on the way to @to. connect() of a UDP socket sends nothing. */
static int bind_route(const struct addrinfo *to, struct sockaddr_storage *own, socklen_t *len)
{
	int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int ret = 0;

	if (fd < 0)
		return -errno;
	if (connect(fd, to->ai_addr, to->ai_addrlen) ||
	    getsockname(fd, (struct sockaddr *)own, len))
		ret = -errno;
	close(fd);
	return ret;
}

/* Our address of @family on the default route; else the first of an interface that is up. */
static int bind_any(int family, struct sockaddr_storage *own, socklen_t *len)
{
	/* Of nobody: RFC 5737, RFC 3849. */
	const char *far = family == AF_INET ? "192.0.2.1" : "2001:db8::1";
	struct addrinfo hint = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICHOST}, *to;
	struct ifaddrs *all, *a;
	int ret = getaddrinfo(far, "9", &hint, &to) ? -ENOENT : 0;

	if (!ret) {
		ret = bind_route(to, own, len);
		freeaddrinfo(to);
	}
	if (!ret || getifaddrs(&all))
		return ret;
	for (a = all; a && ret; a = a->ifa_next) {
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)a->ifa_addr;

		if (!in6 || in6->sin6_family != family || !(a->ifa_flags & IFF_UP) ||
		    a->ifa_flags & IFF_LOOPBACK ||
		    (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr)))
			continue;
		*len = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(*in6);
		memcpy(own, in6, *len);
		ret = 0;
	}
	freeifaddrs(all);
	return ret;
}

int opt_bind_any(const char *addr, char host[OPT_HOST_MAX])
{
	struct sockaddr_storage own;
	socklen_t len = sizeof(own);

	if (bind_any(AF_INET, &own, &len)) {
		len = sizeof(own);
		if (!strchr(addr, '[') || bind_any(AF_INET6, &own, &len))
			return -ENOENT;
	}
	return getnameinfo((struct sockaddr *)&own, len, host, OPT_HOST_MAX, NULL, 0,
			   NI_NUMERICHOST)
		       ? -ENOENT
		       : 0;
}

/* By the @all bytes of one address. */
static int bind_one(const char *addr, size_t all, bool server, char host[OPT_HOST_MAX])
{
	struct sockaddr_storage own;
	socklen_t len = sizeof(own);
	struct addrinfo *list;
	int ret = bind_resolve(addr, all, &list);

	if (ret)
		return ret;
	if (server) {
		len = list->ai_addrlen;
		memcpy(&own, list->ai_addr, len);
		ret = bind_is_any(list->ai_addr) ? -ENOENT : 0;
	} else {
		ret = bind_route(list, &own, &len);
	}
	freeaddrinfo(list);
	if (!ret &&
	    getnameinfo((struct sockaddr *)&own, len, host, OPT_HOST_MAX, NULL, 0, NI_NUMERICHOST))
		ret = -EINVAL;
	return ret;
}

int opt_bind(const char *addr, bool server, char host[OPT_HOST_MAX])
{
	size_t all = strcspn(addr, ",");
	int ret = bind_one(addr, all, server, host);

	while (ret && addr[all]) {
		addr += all + 1;
		all = strcspn(addr, ",");
		ret = bind_one(addr, all, server, host);
	}
	return ret;
}
