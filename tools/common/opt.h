/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of command line options: sizes, CPU lists, memory, names. Shared by gxd and gxperf.
 * Nothing here prints; the caller turns an error into a message that names the option.
 */
#ifndef OPT_H
#define OPT_H

#include <gx/gx.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OPT_CPUS_MAX	     64
#define OPT_CPUS_DEFAULT_MAX 4
#define OPT_NAME_MAX	     64 /* of a region, with the final 0 */

/** opt_size() - Bytes: "64", "4K", "2G"; K, M, G, T are powers of two. Return: 0, -EINVAL,
 * -ERANGE. */
int opt_size(const char *text, uint64_t *out);

/** opt_u32() - A decimal number from @min to @max. Return: 0, -EINVAL, -ERANGE. */
int opt_u32(const char *text, uint32_t min, uint32_t max, uint32_t *out);

/** struct opt_sizes - A sweep: "4K", "4K:1G:4", or a list with commas. */
struct opt_sizes {
	uint64_t v[64];
	unsigned n;
};
int opt_sizes(const char *text, struct opt_sizes *out); /* 0, -EINVAL */

#define OPT_LIST_MAX 16

/** struct opt_list - Some numbers: "656,1024"; they may end in K. */
struct opt_list {
	uint32_t v[OPT_LIST_MAX];
	unsigned n;
};
int opt_list(const char *text, struct opt_list *out); /* 0, -EINVAL */

/** opt_seconds() - "5", "0.5": from 1 ms to a day, in nanoseconds. Return: 0, -EINVAL, -ERANGE. */
int opt_seconds(const char *text, uint64_t *out_ns);

struct opt_cpus {
	int cpu[OPT_CPUS_MAX];
	unsigned nr;
};

/**
 * opt_cpus() - "0", "0,2-3", or "any" for every CPU of the affinity mask (at most OPT_CPUS_MAX).
 * Return: 0, -EINVAL (malformed, or a CPU twice), -ERANGE (too many).
 */
int opt_cpus(const char *text, struct opt_cpus *out);

/** opt_cpus_allowed() - The CPUs of this process's affinity mask, ascending. Return: 0, -errno. */
int opt_cpus_allowed(struct opt_cpus *out);

/** opt_cpus_stranger() - The first CPU of @cpus that is not in @allowed, or -1. */
int opt_cpus_stranger(const struct opt_cpus *cpus, const struct opt_cpus *allowed);

/**
 * opt_cpus_default() - The first half of @allowed for a server, the last half for a client, at
 * least one and at most OPT_CPUS_DEFAULT_MAX. On one machine the halves do not overlap, unless
 * there is only one CPU.
 */
void opt_cpus_default(const struct opt_cpus *allowed, bool server, struct opt_cpus *out);

/** opt_cpus_text() - Write "0,2,3" to @buf. */
void opt_cpus_text(const struct opt_cpus *cpus, char *buf, size_t room);

/** opt_place() - "host" or "cuda:N". Return: 0, -EINVAL. */
int opt_place(const char *text, enum gx_mem_kind *kind, int *device);
void opt_place_text(enum gx_mem_kind kind, int device, char *buf, size_t room);

/** opt_bounce() - "host", "gpu" (means gpu:0) or "gpu:N". Return: 0, -EINVAL. */
int opt_bounce(const char *text, enum gx_bounce *bounce, int *device);

struct opt_mem {
	char name[OPT_NAME_MAX];
	enum gx_mem_kind kind;
	int device;
	uint64_t len;
};

/** opt_mem() - "name=<host|cuda:N>:<size>", size above 0. The name is printable ASCII, so that a
 * client can type it. Return: 0, -EINVAL. */
int opt_mem(const char *text, struct opt_mem *out);

/** opt_plain() - Copy @text for a message, with '?' for each character that is not printable ASCII.
 * opt_shell() - Copy it for a shell: in quotes if it needs them, cut at @room; four times its
 * length is enough. */
void opt_plain(const char *text, char *buf, size_t room);
void opt_shell(const char *text, char *buf, size_t room);

/** opt_name() - The place of @text in @names. Return: 0, -EINVAL. */
int opt_name(const char *text, const char *const names[], unsigned n, unsigned *out);

/** opt_unpack() - "auto", "kernel", "resident", "d2d", "host", "none". Return: 0, -EINVAL. */
int opt_unpack(const char *text, enum gx_unpack_mode *out);
const char *opt_unpack_text(enum gx_unpack_mode mode);

/** opt_integrity() - "none", "crc32c", "mac" or "gcm", or their number. Return: 0, -EINVAL. */
int opt_integrity(const char *text, enum gx_integrity_mode *out);
const char *opt_integrity_text(enum gx_integrity_mode mode);

/** opt_auth_text() - By what the peer may connect: "key kv", "this host", or "insecure". Return: @buf. */
#define OPT_AUTH_MAX 48
const char *opt_auth_text(const struct gx_conn_info *info, char buf[OPT_AUTH_MAX]);

/** opt_crc_by() - "auto", "cpu", "copy". Return: 0, -EINVAL. */
int opt_crc_by(const char *text, enum gx_crc_by *out);
/** opt_crc_by_text() - Who checks the CRC of payload for memory of @kind: "none", "cpu", "copy".
 * @crc_by_copy: from struct gx_conn_info. */
const char *opt_crc_by_text(enum gx_integrity_mode integrity, unsigned crc_by_copy,
			    enum gx_mem_kind kind);

/** opt_pull() - "auto", "on", "off", "allow". Return: 0, -EINVAL. */
int opt_pull(const char *text, enum gx_pull *out);

/** opt_tcp_rx() - "copy", "devmem". Return: 0, -EINVAL. */
int opt_tcp_rx(const char *text, enum gx_nic_rx *out);

/** opt_tcp_tx() - "copy", "devmem", "auto". Return: 0, -EINVAL. */
int opt_tcp_tx(const char *text, enum gx_nic_tx *out);

#define OPT_HOST_MAX 128

#define OPT_PORT "7501" /* of gxd */

/** opt_addr() - @addr, which may name several with commas between; with gxd's port behind each that has
 * none. The text is good until the next call. */
const char *opt_addr(const char *addr);
/** opt_port_ok() - Does @addr end in ":PORT", with PORT from 0 to 65535? getaddrinfo() takes 65537 for 1. */
bool opt_port_ok(const char *addr);

/**
 * opt_bind_any() - For a server at @addr, which names no address (opt_bind() said -ENOENT): the one that
 * leads to other hosts, by the default route; else the first of an interface that is up. Of IPv4, unless
 * @addr has [::] and the host has none. Return: 0, -ENOENT: loopback is all that there is.
 */
int opt_bind_any(const char *addr, char host[OPT_HOST_MAX]);
/**
 * opt_bind() - The address that network ports should bind to. For a server: @addr, where it
 * listens. For a client: our address on the way to @addr, the server's, of several with commas between
 * to the first that has one.
 * Return: 0 and a numeric address in @host; -ENOENT: the server listens on every address; -EINVAL
 * or -errno: no address is found. The library will say more of a bad @addr.
 */
int opt_bind(const char *addr, bool server, char host[OPT_HOST_MAX]);

/** opt_size_text() - Write @len in the shortest exact way: "64M", "1000003". */
void opt_size_text(uint64_t len, char *buf, size_t room);

#endif
