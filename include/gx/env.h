/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the environment says to programs whose callers pass no options: the key that they share with
 * other hosts, and the address at which these reach them. The library itself never reads either: a
 * variable does not open a listener. Control path, any thread.
 */
#ifndef GX_ENV_H
#define GX_ENV_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gx;

#define GX_ADDR_MAX  64	 /* "fe80::1%eth0", with the final 0 */
#define GX_ADDRS_MAX 8	 /* addresses of a name, or of this host */
#define GX_LIST_MAX  640 /* so many with ports and commas, with the final 0 */

/** gx_env_key_file() - GX_KEY_FILE of the environment, for gx_auth_opts.key_file. Return: valid until
 * the environment changes; NULL: unset, empty, or the process runs with the rights of its file
 * (secure_getenv(3)). Where GX_ADDR is set then, the log has one line, that it has no effect. */
const char *gx_env_key_file(void);

/**
 * gx_env_addr() - The address of this host that other hosts are told, for gx_opts.bind_host and
 * gx_listen().
 *
 * @want: what names it, in order of preference, separated by commas: a numeric address of this host; a
 *	network, as 10.0.0.0/8 or fd00::/8; an interface, or how its name begins, as NCCL_SOCKET_IFNAME
 *	has it: "eth", "=eth0" for this one name, "^docker,br-" for all but these. NULL: GX_ADDR of
 *	the environment. Where neither says anything: the interfaces that are up, but loopback and the
 *	bridges of containers (docker, br-, virbr, cni, flannel).
 * @addr: the address, numeric. Of several: IPv4 before IPv6, then the fastest interface by
 *	/sys/class/net/NAME/speed, then the kernel's order. Addresses of one link (169.254.0.0/16,
 *	fe80::/10) only where @want names them or their interface. Without any, and without a wish:
 *	127.0.0.1.
 *
 * Return: 0; -EINVAL: no such address, network or interface here (gx_error() lists what there is);
 * -errno of getifaddrs(3).
 */
int gx_env_addr(const char *want, char addr[GX_ADDR_MAX]);

/** gx_env_addrs() - The same, up to @max addresses, at most GX_ADDRS_MAX: without a wish all that may be
 * told, the best first; with one, the best. Return: their number, at least 1; -errno. */
int gx_env_addrs(const char *want, char addr[][GX_ADDR_MAX], unsigned max);

/**
 * gx_env_listen() - gx_listen() at all addresses of gx_env_addrs(), at one port that is free.
 *
 * @list: what peers are told, for their gx_connect(), which takes what is in a network of theirs first:
 *	"10.0.0.1:7501,[fd00::1]:7501", as many as @room holds, with the final 0
 *
 * Return: the port; -errno.
 */
int gx_env_listen(struct gx *gx, unsigned max, char *list, size_t room);

/**
 * gx_env_resolve() - Look HOST:PORT up, once, for gx_connect(), which takes the list.
 *
 * @list: "[fd00::1]:7501,10.0.0.1:7501": numeric addresses, the most preferred first; GX_ADDRS_MAX at
 *	most
 *
 * Return: their number; -EINVAL: no such name, or not HOST:PORT; -ETIMEDOUT: its name servers said nothing
 * for @timeout_ns.
 */
int gx_env_resolve(const char *addr, uint64_t timeout_ns, char list[GX_LIST_MAX]);

#ifdef __cplusplus
}
#endif

#endif
