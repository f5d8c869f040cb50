/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of a context, as the command lines of gxd and gxperf spell them: names with
 * punctuation become the structs of gx/opts.h here. Nothing prints; main thread.
 */
#ifndef OPT_CTX_H
#define OPT_CTX_H

#include "common/opt.h"

#include <gx/auth.h>

#define OPT_WHY_MAX   256
#define OPT_RAILS_MAX 8	 /* RDMA devices of a context */
#define OPT_KEYS_MAX  16 /* key files, and folders of some */
#define OPT_PORTS_MAX 9	 /* one more than a context takes: it then says so */
#define OPT_PORTS_B   1024

/** struct opt_ports - "shm", "udp:port=7601", "dpdk:net_memif,id=0"; several with ';' between them. */
struct opt_ports {
	struct gx_port_name v[OPT_PORTS_MAX];
	unsigned nr;
	char text[OPT_PORTS_B]; /* where the names lie */
	size_t used;
};

/** opt_ports() - Add the ports of @text; what exceeds OPT_PORTS_MAX is left out. Copies it. @out is
 * not copied afterwards. Return: 0, -EINVAL (a port without a name, or nothing after a colon). */
int opt_ports(const char *text, struct opt_ports *out);

/** opt_ports_bare() - Leave out arguments, which are for this end's device alone. */
void opt_ports_bare(struct opt_ports *ports);

/** opt_rail() - "auto", "NAME", "NAME:PORT", "NAME:PORT:GID", or "all" (*@all); after it ",sl=N",
 * ",tc=N", each once. @name: where the device's name lies then. Return: 0, -EINVAL. */
int opt_rail(const char *text, char name[64], struct gx_rail *out, bool *all);

/** opt_nic_queues() - "eth0:8-15": interface, first and last queue. @name: where the interface's name
 * lies then. Return: 0, -EINVAL. */
int opt_nic_queues(const char *text, char name[64], struct gx_nic_opts *out);

/** struct opt_ctx - A gx_opts and its groups. It may be copied. */
struct opt_ctx {
	struct gx_opts top; /* without the groups */
	struct gx_core_opts cores;
	struct gx_host_opts host;
	struct gx_packet_opts packet;
	struct gx_gpu_opts gpu;
	struct gx_nic_opts nic;
	struct gx_verbs_opts verbs;
	struct gx_auth_opts auth;
	const char *keys[OPT_KEYS_MAX]; /* a server takes all; a client shows the first */
	unsigned nr_keys;
	struct gx_rail rail[OPT_RAILS_MAX];
	char rail_name[OPT_RAILS_MAX][64];
	char rx_nic[64];
};

/** opt_ctx_opts() - For gx_open(): the whole, which points into @c. */
struct gx_opts opt_ctx_opts(struct opt_ctx *c);

/** opt_ctx_verbs() - Take the first RDMA device that works, unless some are named. */
void opt_ctx_verbs(struct opt_ctx *c);

/** enum opt_gx_key - Options of a context that both gxd and gxperf have, as keys of argp. */
enum opt_gx_key {
	OPT_GX_WINDOW = 1000,
	OPT_GX_CHUNK,
	OPT_GX_SLOTS,
	OPT_GX_QUANTUM,
	OPT_GX_UNPACK,
	OPT_GX_BOUNCE,
	OPT_GX_SMS,
	OPT_GX_INTEGRITY,
	OPT_GX_CRC_BY,
	OPT_GX_TIMEOUT,
	OPT_GX_PULL,
	OPT_GX_TCP_RX,
	OPT_GX_TCP_RX_GPU,
	OPT_GX_TCP_RX_POOL,
	OPT_GX_TCP_RX_NIC,
	OPT_GX_INSECURE,
	OPT_GX_NO_HUGE,
	OPT_GX_RDMA,
	OPT_GX_TCP_TX,
	OPT_GX_TCP_TX_NIC,
	OPT_GX_KEY,
};

/** opt_gx() - Take one of them. Return: 0; -ENOENT: @key is none of them; -EINVAL with @why, which
 * names the option and its valid values. */
int opt_gx(int key, const char *arg, struct opt_ctx *c, char why[OPT_WHY_MAX]);

#endif
