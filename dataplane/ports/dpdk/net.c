/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The half of the DPDK port that needs no DPDK: options, addresses, the kernel's interface and
 * neighbours, frames. The other files here call it on the control path; dpdk_encap_get() and
 * dpdk_arp_answer() are also [core]. It checks all input from peers and packets.
 */
#include "ports/dpdk/net.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NET_PORT_TRIES 32
#define DIR_YOUNG_S    60    /* a younger folder may not be locked yet */
#define DIR_SWEEP_MAX  65536 /* most entries of /tmp to look at */
#define NET_PORT_LOW   20000
#define NET_PORT_SPAN  12000 /* below the kernel's own range for outgoing connections */

/* ---- Options ---- */

static int args_number(const char *key, const char *value, uint32_t low, uint32_t high,
		       uint32_t *out)
{
	char *end;
	unsigned long v = strtoul(value, &end, 10);

	if (!isdigit((unsigned char)*value) || *end || v < low || v > high) {
		gx_port_why_set("port dpdk: %s=%.32s; it must be a number from %u to %u", key,
				value, low, high);
		return -EINVAL;
	}
	*out = (uint32_t)v;
	return 0;
}

static int args_mac(const char *value, uint8_t mac[DPDK_MAC_B])
{
	char end;

	if (sscanf(value,
		   "%2" SCNx8 ":%2" SCNx8 ":%2" SCNx8 ":%2" SCNx8 ":%2" SCNx8 ":%2" SCNx8 "%c",
		   &mac[0], &mac[1], &mac[2], &mac[3], &mac[4], &mac[5], &end) == DPDK_MAC_B)
		return 0;
	gx_port_why_set("port dpdk: gateway-mac=%.32s is not a MAC address", value);
	return -EINVAL;
}

/* ADDRESS or ADDRESS/BITS */
static int args_ip(const char *value, struct dpdk_args *a)
{
	const char *slash = strchr(value, '/');
	char text[INET_ADDRSTRLEN];
	struct in_addr in;
	uint32_t bits = 0;

	snprintf(text, sizeof(text), "%.*s", (int)strcspn(value, "/"), value);
	if (inet_pton(AF_INET, text, &in) != 1 || !in.s_addr) {
		gx_port_why_set("port dpdk: ip=%.32s is not an IPv4 address", value);
		return -EINVAL;
	}
	if (slash && args_number("ip=ADDRESS/BITS", slash + 1, 1, 32, &bits))
		return -EINVAL;
	a->ip = ntohl(in.s_addr);
	a->mask = bits ? UINT32_MAX << (32 - bits) : 0;
	return 0;
}

/* One "key=value". gx takes its own keys; the rest goes to DPDK. */
static int args_one(struct dpdk_args *a, const char *word)
{
	size_t used = strlen(a->rest);

	if (!strncmp(word, "mtu=", 4))
		return args_number("mtu", word + 4, DPDK_MTU_MIN, DPDK_MTU_MAX, &a->mtu);
	if (!strncmp(word, "mem=", 4))
		return args_number("mem", word + 4, 32, 2048, &a->mem_mb);
	if (!strncmp(word, "ip=", 3))
		return args_ip(word + 3, a);
	if (!strncmp(word, "gateway-mac=", 12)) {
		a->has_gateway = true;
		return args_mac(word + 12, a->gateway);
	}
	if (used + strlen(word) + 2 > sizeof(a->rest)) {
		gx_port_why_set("port dpdk: more than %zu bytes of device arguments",
				sizeof(a->rest));
		return -EINVAL;
	}
	snprintf(a->rest + used, sizeof(a->rest) - used, "%s%s", used ? "," : "", word);
	return 0;
}

static bool args_is_pci(const char *name)
{
	unsigned dom, bus, dev, fn;
	char end;

	return sscanf(name, "%x:%x:%x.%x%c", &dom, &bus, &dev, &fn, &end) == 4 ||
	       sscanf(name, "%x:%x.%x%c", &bus, &dev, &fn, &end) == 3;
}

static int args_name(struct dpdk_args *a, const char *name)
{
	a->pci = args_is_pci(name);
	if (strlen(name) >= sizeof(a->name) || (!a->pci && strncmp(name, "net_", 4))) {
		gx_port_why_set("port dpdk: \"%.64s\" is no device; give a driver (net_memif, "
				"net_af_packet,iface=IF, net_af_xdp,iface=IF, net_ring) or a PCI "
				"address (0000:3b:00.0)",
				name);
		return -EINVAL;
	}
	strcpy(a->name, name);
	a->memif = !strcmp(name, "net_memif");
	return 0;
}

/* Check now: memif itself would refuse these only when a client connects. */
static int args_memif_known(const struct dpdk_args *a)
{
	static const char *const known[] = {
		"bsize=", "rsize=", "zero-copy=", "mac=", "owner-uid=", "owner-gid="};
	char value[16];

	for (const char *p = a->rest; p && *p; p = strchr(p, ','), p = p ? p + 1 : NULL) {
		unsigned i = 0;

		while (i < GX_ARRAY_SIZE(known) && strncmp(p, known[i], strlen(known[i])))
			i++;
		if (i == GX_ARRAY_SIZE(known)) {
			gx_port_why_set("port dpdk: net_memif does not know \"%.*s\": bsize=, "
					"rsize=, zero-copy=, mac=, "
					"owner-uid=, owner-gid=",
					(int)strcspn(p, ","), p);
			return -EINVAL;
		}
	}
	if (dpdk_args_get(a, "bsize", value, sizeof(value)) &&
	    (!*value || value[strspn(value, "0123456789")])) {
		gx_port_why_set("port dpdk: bsize=%s; it must be a number of bytes", value);
		return -EINVAL;
	}
	return 0;
}

/* These drivers use an interface of the kernel and have no default. */
static int args_iface(const struct dpdk_args *a)
{
	static const char *const drivers[] = {"net_af_packet", "net_af_xdp"};
	char value[32];

	for (unsigned i = 0; i < GX_ARRAY_SIZE(drivers); i++) {
		if (strcmp(a->name, drivers[i]) || dpdk_args_get(a, "iface", value, sizeof(value)))
			continue;
		gx_port_why_set("port dpdk: %s needs an interface: %s,iface=eth0", drivers[i],
				drivers[i]);
		return -EINVAL;
	}
	return 0;
}

/* gx sets these keys itself, so that both ends of a memif agree; the user may not. */
static int args_driver(const struct dpdk_args *a)
{
	static const char *const derived[] = {"role", "socket", "socket-abstract", "id", "secret"};
	char value[8];

	if (!a->memif)
		return args_iface(a);

	for (unsigned i = 0; i < GX_ARRAY_SIZE(derived); i++) {
		if (!dpdk_args_get(a, derived[i], value, sizeof(value)))
			continue;
		gx_port_why_set("port dpdk: net_memif: gx derives %s=; leave it out", derived[i]);
		return -EINVAL;
	}
	return args_memif_known(a);
}

int dpdk_args_parse(const char *text, struct dpdk_args *a)
{
	char buf[640], *save = NULL, *word;
	int ret = 0;

	memset(a, 0, sizeof(*a));
	for (const char *c = text; *c; c++) {
		if (isgraph((unsigned char)*c) && !strchr("\"'[]{}()\\;", *c))
			continue;
		gx_port_why_set("port dpdk: a character in \"%.64s\" is not allowed", text);
		return -EINVAL;
	}
	if (strlen(text) >= sizeof(buf)) {
		gx_port_why_set("port dpdk: more than %zu bytes of options", sizeof(buf));
		return -EINVAL;
	}
	strcpy(buf, text);
	word = strtok_r(buf, ",", &save);
	ret = args_name(a, word ? word : "");
	while (!ret && (word = strtok_r(NULL, ",", &save)))
		ret = args_one(a, word);
	return ret ? ret : args_driver(a);
}

bool dpdk_args_get(const struct dpdk_args *a, const char *key, char *value, size_t room)
{
	size_t len = strlen(key);

	for (const char *p = a->rest; p && *p; p = strchr(p, ','), p = p ? p + 1 : NULL) {
		if (strncmp(p, key, len) || p[len] != '=')
			continue;
		snprintf(value, room, "%.*s", (int)strcspn(p + len + 1, ","), p + len + 1);
		return true;
	}
	return false;
}

/* ---- The kernel's interface ---- */

static void net_addr(struct dpdk_net *net, const char *name)
{
	struct ifaddrs *all, *i;

	if (getifaddrs(&all))
		return;
	for (i = all; i; i = i->ifa_next) {
		const struct sockaddr_in *sin = (const void *)i->ifa_addr;
		const struct sockaddr_in *mask = (const void *)i->ifa_netmask;

		if (!sin || sin->sin_family != AF_INET || strcmp(i->ifa_name, name))
			continue;
		net->ip = ntohl(sin->sin_addr.s_addr);
		net->mask = mask ? ntohl(mask->sin_addr.s_addr) : 0xffffff00;
		break;
	}
	freeifaddrs(all);
}

void dpdk_net_kernel(struct dpdk_net *net)
{
	struct ifreq req = {0};
	int fd;

	if (!net->ifindex || !if_indextoname(net->ifindex, req.ifr_name))
		return;
	net_addr(net, req.ifr_name);
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	if (!ioctl(fd, SIOCGIFMTU, &req))
		net->mtu = (uint32_t)req.ifr_mtu;
	close(fd);
}

static int ports_bind(const struct dpdk_net *net, uint16_t port)
{
	struct sockaddr_in sin = {
		.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(net->ip)};
	int small = 1, fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)); /* nobody reads from it */
	if (bind(fd, (struct sockaddr *)&sin, sizeof(sin))) {
		int ret = -errno;

		close(fd);
		return ret;
	}
	return fd;
}

static int ports_try(const struct dpdk_net *net, uint16_t first, unsigned nr, int fds[])
{
	unsigned i;

	for (i = 0; i < nr; i++) {
		fds[i] = ports_bind(net, (uint16_t)(first + i));
		if (fds[i] < 0)
			break;
	}
	if (i == nr)
		return 0;
	for (int ret = fds[i];; fds[i] = -1) {
		if (!i--)
			return ret;
		close(fds[i]);
	}
}

int dpdk_net_ports(struct dpdk_net *net, unsigned nr, int fds[])
{
	uint16_t r;
	int ret = 0;

	for (unsigned i = 0; i < nr; i++)
		fds[i] = -1;
	for (unsigned i = 0; i < NET_PORT_TRIES; i++) {
		ret = gx_random(&r, sizeof(r));
		if (ret)
			return ret;
		net->udp_port = (uint16_t)(NET_PORT_LOW + (r % NET_PORT_SPAN & ~1u));
		if (!net->ifindex)
			return 0;
		ret = ports_try(net, net->udp_port, nr, fds);
		if (!ret)
			return 0;
	}
	gx_port_why_set("port dpdk: no %u UDP ports in a row: %s", nr, strerror(-ret));
	return ret;
}

/* ---- Next hop ---- */

/* The gateway to @ip, by the longest prefix of the kernel's routes; 0: directly attached, or no
 * route. */
static uint32_t hop_route(uint32_t ip)
{
	FILE *f = fopen("/proc/net/route", "re");
	uint32_t dst, via, mask, best = 0, best_mask = 0;
	char line[256];
	bool found = false;

	while (f && fgets(line, sizeof(line), f)) {
		/* Iface Destination Gateway Flags RefCnt Use Metric Mask; network order, printed as
		 * a number */
		if (sscanf(line, "%*s %" SCNx32 " %" SCNx32 " %*x %*d %*d %*d %" SCNx32, &dst, &via,
			   &mask) != 3)
			continue;
		if ((ip & ntohl(mask)) != ntohl(dst) || (found && ntohl(mask) <= best_mask))
			continue;
		found = true;
		best = ntohl(via);
		best_mask = ntohl(mask);
	}
	if (f)
		fclose(f);
	return best;
}

static bool hop_neighbour(uint32_t ip, uint8_t mac[DPDK_MAC_B])
{
	FILE *f = fopen("/proc/net/arp", "re");
	char line[256], addr[64], hw[64];
	unsigned flags;
	bool found = false;
	struct in_addr in;

	while (f && !found && fgets(line, sizeof(line), f))
		found = sscanf(line, "%63s %*s %x %63s", addr, &flags, hw) == 3 && (flags & 2) &&
			inet_pton(AF_INET, addr, &in) == 1 && ntohl(in.s_addr) == ip &&
			!args_mac(hw, mac);
	if (f)
		fclose(f);
	return found;
}

int dpdk_net_hop(const struct dpdk_net *net, const struct dpdk_args *a, uint32_t ip,
		 const uint8_t hello[DPDK_MAC_B], uint8_t mac[DPDK_MAC_B])
{
	struct in_addr in = {.s_addr = htonl(ip)};
	char text[INET_ADDRSTRLEN];
	uint32_t via;

	if ((ip & net->mask) == (net->ip & net->mask)) {
		memcpy(mac, hello, DPDK_MAC_B);
		return 0;
	}
	if (a->has_gateway) {
		memcpy(mac, a->gateway, DPDK_MAC_B);
		return 0;
	}
	via = hop_route(ip);
	if (hop_neighbour(via ? via : ip, mac))
		return 0;
	gx_port_why_set(
		"port dpdk: %s is not on our network and the kernel knows no neighbour on the "
		"way to it; give gateway-mac=",
		inet_ntop(AF_INET, &in, text, sizeof(text)));
	return -EHOSTUNREACH;
}

/* ---- Address blob: kind, owner, room, id, ip, port, mac, path; numbers big endian ---- */

#define ADDR_FIXED_B 20

static void addr_put32(uint8_t *b, uint32_t v)
{
	dpdk_put16(b, v >> 16);
	dpdk_put16(b + 2, v & 0xffff);
}

void dpdk_addr_put(const struct dpdk_addr *a, struct gx_port_addr *out)
{
	size_t len = strlen(a->path);

	out->b[0] = a->kind;
	out->b[1] = a->owner;
	dpdk_put16(out->b + 2, a->room);
	addr_put32(out->b + 4, a->id);
	addr_put32(out->b + 8, a->ip);
	dpdk_put16(out->b + 12, a->udp_port);
	memcpy(out->b + 14, a->mac, DPDK_MAC_B);
	memcpy(out->b + ADDR_FIXED_B, a->path, len);
	out->len = (uint16_t)(ADDR_FIXED_B + len);
	out->fd = -1;
}

/* The path becomes part of a device argument, so it may hold no character that ends one. It must be
 * a socket. */
static bool addr_path_ok(const char *path)
{
	struct stat st;

	if (*path != '/' || strstr(path, ".."))
		return false;
	for (const char *c = path; *c; c++)
		if (!isalnum((unsigned char)*c) && !strchr("/-_.", *c))
			return false;
	return !lstat(path, &st) && S_ISSOCK(st.st_mode) &&
	       (gx_uid_is_own(st.st_uid) || !geteuid() || !st.st_uid);
}

static bool addr_ip_ok(const struct dpdk_addr *a)
{
	return a->id <= DPDK_POOLS_MAX && a->ip && (a->ip >> 28) != 0xe && a->ip != UINT32_MAX &&
	       a->udp_port && a->udp_port < UINT16_MAX && !(a->mac[0] & 1);
}

int dpdk_addr_get(const struct gx_port_addr *in, struct dpdk_addr *a)
{
	size_t len = in->len;

	memset(a, 0, sizeof(*a));
	if (len < ADDR_FIXED_B || len - ADDR_FIXED_B >= sizeof(a->path) || len > sizeof(in->b) ||
	    in->b[1] > 1)
		return -EPROTO;
	a->kind = in->b[0];
	a->owner = in->b[1];
	a->room = dpdk_get16(in->b + 2);
	a->id = dpdk_get32(in->b + 4);
	a->ip = dpdk_get32(in->b + 8);
	a->udp_port = dpdk_get16(in->b + 12);
	memcpy(a->mac, in->b + 14, DPDK_MAC_B);
	memcpy(a->path, in->b + ADDR_FIXED_B, len - ADDR_FIXED_B);
	if (a->room < DPDK_MTU_MIN + DPDK_ETH_B)
		return -EPROTO;
	if (a->kind == DPDK_IP)
		return addr_ip_ok(a) ? 0 : -EPROTO;
	if (a->kind != DPDK_MEMIF)
		return -EPROTO;
	return !a->owner || addr_path_ok(a->path) ? 0 : -EPROTO;
}

/* ---- PCI devices, as the kernel sees them ---- */

/* The last part of the link @name in the device's folder. False: no such link. */
static bool pci_link(const char *dev, const char *name, char *out, size_t room)
{
	char path[128], target[256], *last;
	ssize_t n;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/%s", dev, name);
	n = readlink(path, target, sizeof(target) - 1);
	if (n <= 0)
		return false;
	target[n] = 0;
	last = strrchr(target, '/');
	snprintf(out, room, "%.*s", (int)room - 1, last ? last + 1 : target);
	return true;
}

static void pci_hint_vfio(const char *dev, char *buf, size_t room)
{
	char group[32], path[64];
	int fd;

	if (!pci_link(dev, "iommu_group", group, sizeof(group))) {
		snprintf(buf, room,
			 "it has no IOMMU group: boot with intel_iommu=on or amd_iommu=on");
		return;
	}
	snprintf(path, sizeof(path), "/dev/vfio/%s", group);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0)
		close(fd);
	else if (errno == EBUSY)
		snprintf(buf, room, "another process has it (%s is busy)", path);
	else
		snprintf(buf, room, "%s: %s; chown it to this user, or run as root", path,
			 strerror(errno));
}

/* A ConnectX; DPDK's driver of it works next to the kernel's. */
static void pci_hint_mlx5(char *buf, size_t room)
{
#ifndef GX_HAVE_MLX5
	snprintf(buf, room,
		 "DPDK's driver of it is not built in (meson setup -Dmlx5=enabled); it stays with "
		 "the kernel's, mlx5_core");
#endif
}

void dpdk_pci_hint(const char *name, char *buf, size_t room)
{
	bool has_domain = strchr(name, ':') != strrchr(name, ':');
	char dev[80], driver[32], path[128];

	*buf = 0;
	snprintf(dev, sizeof(dev), "%s%.64s", has_domain ? "" : "0000:", name);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s", dev);
	if (access(path, F_OK))
		snprintf(buf, room, "there is no such device (lspci -D lists them)");
	else if (!pci_link(dev, "driver", driver, sizeof(driver)))
		snprintf(buf, room, "no driver has it: bind it to vfio-pci");
	else if (!strcmp(driver, "vfio-pci"))
		pci_hint_vfio(dev, buf, room);
	else if (!strcmp(driver, "mlx5_core"))
		pci_hint_mlx5(buf, room);
	else if (!strstr(driver, "uio"))
		snprintf(buf, room, "the kernel's driver %s has it: bind it to vfio-pci", driver);
}

/* ---- Folders and huge pages ---- */

static int dir_entry_remove(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

static void dir_remove(const char *path)
{
	nftw(path, dir_entry_remove, 8, FTW_DEPTH | FTW_PHYS);
}

/* Remove "NAME-XXXXXX" if it is ours, not locked, and old enough to have got its lock. */
static void dir_sweep_one(const char *base, const char *entry)
{
	char path[DPDK_PATH_MAX + 260];
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "%.*s/%.255s", DPDK_PATH_MAX, base, entry);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return;
	if (!fstat(fd, &st) && st.st_uid == geteuid() && time(NULL) - st.st_mtime > DIR_YOUNG_S &&
	    !flock(fd, LOCK_EX | LOCK_NB))
		dir_remove(path);
	close(fd);
}

static void dir_sweep(const char *base, const char *name)
{
	size_t len = strlen(name);
	struct dirent *e;
	DIR *d = opendir(base);

	for (unsigned i = 0; d && i < DIR_SWEEP_MAX && (e = readdir(d)); i++)
		if (!strncmp(e->d_name, name, len) && e->d_name[len] == '-' &&
		    strlen(e->d_name) == len + strlen("-XXXXXX"))
			dir_sweep_one(base, e->d_name);
	if (d)
		closedir(d);
}

int dpdk_dir_open(const char *name, struct dpdk_dir *out)
{
	const char *base = getenv("XDG_RUNTIME_DIR");

	/* Second try: /tmp, since the path of a socket in it must be short. */
	for (int i = 0; i < 2; i++, base = NULL) {
		const char *at = base && *base == '/' ? base : "/tmp";
		int n = snprintf(out->path, sizeof(out->path), "%s/%s-XXXXXX", at, name);

		if (n <= 0 || (size_t)n >= sizeof(out->path) || !mkdtemp(out->path))
			continue;
		out->lock = open(out->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (out->lock >= 0)
			flock(out->lock, LOCK_EX | LOCK_NB);
		dir_sweep(at, name);
		return 0;
	}
	gx_port_why_set("port dpdk: cannot make the folder %.100s: %s", out->path, strerror(errno));
	*out->path = 0;
	return -EACCES;
}

void dpdk_dir_close(struct dpdk_dir *dir)
{
	if (!*dir->path)
		return;
	dir_remove(dir->path);
	if (dir->lock >= 0)
		close(dir->lock);
	*dir->path = 0;
}

static uint32_t huge_free(const char *size)
{
	char path[128];
	unsigned n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/sys/kernel/mm/hugepages/hugepages-%s/free_hugepages", size);
	f = fopen(path, "re");
	if (!f)
		return 0;
	if (fscanf(f, "%u", &n) != 1)
		n = 0;
	fclose(f);
	return n;
}

uint32_t dpdk_huge_free_mb(void)
{
	return huge_free("1048576kB") ? 0 : huge_free("2048kB") * 2;
}

/* ---- Frames ---- */

static uint32_t encap_sum(const uint8_t *ip, uint32_t words)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < words; i++)
		sum += dpdk_get16(ip + 2 * i);
	return sum;
}

void dpdk_encap_init(struct dpdk_encap *e, const struct dpdk_net *from, uint16_t from_port,
		     const uint8_t mac[DPDK_MAC_B], uint32_t ip, uint16_t port)
{
	uint8_t *b = e->b;

	memset(b, 0, sizeof(e->b));
	memcpy(b, mac, DPDK_MAC_B);
	memcpy(b + 6, from->mac, DPDK_MAC_B);
	dpdk_put16(b + 12, 0x0800);
	b[14] = 0x45;
	dpdk_put16(b + 20, 0x4000); /* never in fragments */
	b[22] = 64;
	b[23] = IPPROTO_UDP;
	addr_put32(b + 26, from->ip);
	addr_put32(b + 30, ip);
	dpdk_put16(b + 34, from_port);
	dpdk_put16(b + 36, port);
	e->sum = encap_sum(b + DPDK_ETH_B, 10);
}

void dpdk_encap_ect(struct dpdk_encap *e)
{
	e->b[15] |= 2;
	e->sum = encap_sum(e->b + DPDK_ETH_B, 10);
}

static bool encap_sum_ok(const uint8_t *ip)
{
	uint32_t sum = encap_sum(ip, 10);

	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16) == 0xffff;
}

bool dpdk_arp_answer(const struct dpdk_net *net, uint8_t *b, uint32_t len)
{
	static const uint8_t ether_ip[] = {0, 1, 8, 0, 6, 4, 0, 1}; /* the last two: a request */
	uint8_t asker[DPDK_MAC_B + 4];

	if (len < DPDK_ARP_B || dpdk_get16(b + 12) != DPDK_ARP ||
	    memcmp(b + 14, ether_ip, sizeof(ether_ip)) != 0 || dpdk_get32(b + 38) != net->ip ||
	    (b[22] & 1))
		return false;
	memcpy(asker, b + 22, sizeof(asker));
	memcpy(b, asker, DPDK_MAC_B);
	memcpy(b + 6, net->mac, DPDK_MAC_B);
	b[21] = 2;
	memcpy(b + 22, net->mac, DPDK_MAC_B);
	addr_put32(b + 28, net->ip);
	memcpy(b + 32, asker, sizeof(asker));
	return true;
}

enum dpdk_verdict dpdk_encap_get(const uint8_t *b, uint32_t len, uint32_t ip, uint16_t port,
				 bool verify, enum gx_half *half, uint32_t *behind)
{
	uint32_t total, udp, dport;

	if (len < DPDK_ENCAP_B || dpdk_get16(b + 12) != 0x0800 || b[14] != 0x45 ||
	    b[23] != IPPROTO_UDP || (ip && dpdk_get32(b + 30) != ip))
		return DPDK_STRAY;
	dport = dpdk_get16(b + 36);
	if (port && (dport & ~1u) != port)
		return DPDK_STRAY;
	total = dpdk_get16(b + 16);
	udp = dpdk_get16(b + 38);
	if (dpdk_get16(b + 20) & 0x3fff || total < 28 + DPDK_HDR_B || total > len - DPDK_ETH_B ||
	    udp + 20 != total || (verify && !encap_sum_ok(b + DPDK_ETH_B)))
		return DPDK_BAD;
	*half = dport & 1 ? GX_HALF_CTL : GX_HALF_DATA;
	*behind = total - 28;
	return DPDK_OURS;
}
