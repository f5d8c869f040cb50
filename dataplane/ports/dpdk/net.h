/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the DPDK port that needs no DPDK: its option string, the address blob of the hello,
 * the kernel's view of the interface, the next hop, and the frame around a gx header. net.c
 * implements it, the other files here use it. dpdk_encap_from(), dpdk_encap_put(),
 * dpdk_encap_get() and dpdk_arp_answer() are for the data path [core]; the rest is control path.
 */
#ifndef GX_DPDK_NET_H
#define GX_DPDK_NET_H

#include "gx_internal/base.h"
#include "gx_internal/port.h"

#include <limits.h>
#include <string.h>

#define DPDK_MAC_B	 6
#define DPDK_ENCAP_B	 42 /* Ethernet 14 + IPv4 20 + UDP 8 */
#define DPDK_HDR_B	 38 /* gx header; the payload starts at byte 80 */
#define DPDK_HEAD_B	 (DPDK_ENCAP_B + DPDK_HDR_B)
#define DPDK_ETH_B	 14
#define DPDK_MTU_MIN	 1344 /* holds the smallest quantum, 1,280 bytes */
#define DPDK_MTU_MAX	 9600
#define DPDK_PATH_MAX	 104 /* of a Unix socket */
#define DPDK_SOCKETS_MAX 128
#define DPDK_POOLS_MAX	 256	/* GPUs of a host */
#define DPDK_BYE	 0x88b5 /* EtherType for local experiments (IEEE 802): our goodbye */

/* The option "dpdk:NAME,key=value,..". Frozen after dpdk_args_parse(). */
struct dpdk_args {
	char name[64];	/* driver ("net_memif") or PCI address ("0000:3b:00.0") */
	char rest[512]; /* "key=value,key=value" for DPDK, without gx's own keys */
	bool pci;
	bool memif;
	uint32_t mtu;	 /* 0: not given */
	uint32_t mem_mb; /* 0: not given */
	uint32_t ip;	 /* host order, as everywhere here; 0: not given */
	uint32_t mask;	 /* of ip=ADDRESS/BITS; 0: not given */
	bool has_gateway;
	uint8_t gateway[DPDK_MAC_B];
};

int dpdk_args_parse(const char *text, struct dpdk_args *a);
/** dpdk_args_get() - Copy the value of @key in a->rest to @value. Return: @key is there. */
bool dpdk_args_get(const struct dpdk_args *a, const char *key, char *value, size_t room);

/* Our address on an Ethernet device. */
struct dpdk_net {
	uint8_t mac[DPDK_MAC_B];
	uint32_t ip;   /* 0: none yet */
	uint32_t mask; /* of the L2 network */
	uint32_t mtu;
	unsigned ifindex;  /* kernel interface of the device; 0: none */
	uint16_t udp_port; /* queue 0: data; + 1: control; + 2 for each queue. Spare ones follow */
};

/** dpdk_net_kernel() - Fill ip, mask and mtu of @net from the kernel's interface net->ifindex. */
void dpdk_net_kernel(struct dpdk_net *net);
/**
 * dpdk_net_ports() - Choose @nr UDP ports in a row. With a kernel interface gx also binds them
 * there: no other process takes them then, and the kernel does not answer our packets. Sockets go
 * to @fds.
 */
int dpdk_net_ports(struct dpdk_net *net, unsigned nr, int fds[]);
/** dpdk_net_hop() - Next MAC for @ip: @hello on our own L2 network, else the gateway's.
 * -EHOSTUNREACH. */
int dpdk_net_hop(const struct dpdk_net *net, const struct dpdk_args *a, uint32_t ip,
		 const uint8_t hello[DPDK_MAC_B], uint8_t mac[DPDK_MAC_B]);

/* The address blob. */
enum dpdk_kind { DPDK_IP = 1, DPDK_MEMIF = 2 };

struct dpdk_addr {
	uint8_t kind;
	bool owner;    /* memif: this side owns the socket at @path */
	uint16_t room; /* largest frame that this side receives */
	/* memif: interface number on the socket. Else 1 + the GPU, as this side counts, whose
	 * memory receives payload; 0: host memory. */
	uint32_t id;
	uint32_t ip;
	uint16_t udp_port; /* data; control: + 1 */
	uint8_t mac[DPDK_MAC_B];
	char path[DPDK_PATH_MAX];
};

void dpdk_addr_put(const struct dpdk_addr *a, struct gx_port_addr *out);
int dpdk_addr_get(const struct gx_port_addr *in, struct dpdk_addr *a); /* 0, -EPROTO */

/** dpdk_pci_hint() - Why DPDK cannot open the PCI device @name, and the cure, in words; "" if no
 * cause is found. */
void dpdk_pci_hint(const char *name, char *buf, size_t room);

/** struct dpdk_dir - A private folder (0700) for sockets. */
struct dpdk_dir {
	char path[DPDK_PATH_MAX - 8]; /* "": none */
	int lock;		      /* descriptor; locked while its process lives */
};
/**
 * dpdk_dir_open() - Make a folder under XDG_RUNTIME_DIR or /tmp. It also removes folders of the
 * same @name and user whose processes died (nobody holds their lock).
 * Return: 0, -EACCES. dpdk_dir_close() removes the folder and its content; it accepts an empty
 * path.
 */
int dpdk_dir_open(const char *name, struct dpdk_dir *out);
void dpdk_dir_close(struct dpdk_dir *dir);

/** dpdk_huge_free_mb() - Free 2 MiB pages, in MiB. 0 also if there are free 1 GiB pages: DPDK would
 * take those first. */
uint32_t dpdk_huge_free_mb(void);

/* Ethernet, IPv4 and UDP header of one peer and half. */
struct dpdk_encap {
	uint8_t b[DPDK_ENCAP_B];
	uint32_t sum; /* of the IPv4 header, without total length and checksum */
};

void dpdk_encap_init(struct dpdk_encap *e, const struct dpdk_net *from, uint16_t from_port,
		     const uint8_t mac[DPDK_MAC_B], uint32_t ip, uint16_t port);
/** dpdk_encap_ect() - Its packets may be marked from now on instead of dropped: ECT(0), RFC 3168 5. */
void dpdk_encap_ect(struct dpdk_encap *e);

/** dpdk_is_marked() - Has a queue on the way marked the frame in @b (CE)? It is one for us. */
static inline bool dpdk_is_marked(const uint8_t *b)
{
	return (b[15] & 3) == 3;
}

static inline void dpdk_put16(uint8_t *b, uint32_t v)
{
	b[0] = (uint8_t)(v >> 8);
	b[1] = (uint8_t)v;
}

static inline uint16_t dpdk_get16(const uint8_t *b)
{
	return (uint16_t)(b[0] << 8 | b[1]);
}

static inline uint32_t dpdk_get32(const uint8_t *b)
{
	return (uint32_t)dpdk_get16(b) << 16 | dpdk_get16(b + 2);
}

/** dpdk_encap_from() - Its packets leave by UDP port @port from now on. No check sum has it. */
static inline void dpdk_encap_from(struct dpdk_encap *e, unsigned port)
{
	dpdk_put16(e->b + 34, port);
}

/** dpdk_encap_put() - Write the headers for @len bytes of content to @b. */
static inline void dpdk_encap_put(const struct dpdk_encap *e, uint8_t *b, uint32_t len)
{
	uint32_t total = len + 28, sum = e->sum + total;

	memcpy(b, e->b, DPDK_ENCAP_B);
	dpdk_put16(b + 16, total);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	dpdk_put16(b + 24, ~sum & 0xffff);
	dpdk_put16(b + 38, len + 8);
}

#define DPDK_ARP   0x0806 /* EtherType */
#define DPDK_ARP_B 42

/**
 * dpdk_arp_answer() - If the frame @b of @len bytes asks for the MAC of @net's address, turn it
 * into the answer. Without a kernel on the device nobody else answers, and routers would not find
 * us.
 * Return: it did.
 */
bool dpdk_arp_answer(const struct dpdk_net *net, uint8_t *b, uint32_t len);

enum dpdk_verdict { DPDK_OURS, DPDK_STRAY, DPDK_BAD };

/**
 * dpdk_encap_get() - Is the frame @b of @len bytes for @ip (0: any) and for @port or @port + 1 (0:
 * any)?
 * @verify: check the IPv4 checksum. For DPDK_OURS it sets @half and @behind (bytes after the UDP
 * header).
 */
enum dpdk_verdict dpdk_encap_get(const uint8_t *b, uint32_t len, uint32_t ip, uint16_t port,
				 bool verify, enum gx_half *half, uint32_t *behind);

#endif
