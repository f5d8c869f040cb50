/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the DPDK port knows without DPDK: its option string, the address blob of the hello, the
 * kernel's view of the interface, the next hop, and the frame around a gx header. net.c
 * implements it, the other files here use it. The frame's two functions are for the data path
 * [core]; all others are control path.
 */
#ifndef GX_DPDK_NET_H
#define GX_DPDK_NET_H

#include "gx_internal/base.h"
#include "gx_internal/port.h"

#include <limits.h>
#include <string.h>

#define DPDK_MAC_B	 6
#define DPDK_ENCAP_B	 42 /* Ethernet 14 + IPv4 20 + UDP 8 */
#define DPDK_HDR_B	 38 /* gx header; with the above the payload starts at byte 80 */
#define DPDK_HEAD_B	 (DPDK_ENCAP_B + DPDK_HDR_B)
#define DPDK_ETH_B	 14
#define DPDK_MTU_MIN	 1344 /* the smallest quantum of 1,280 fits */
#define DPDK_MTU_MAX	 9600
#define DPDK_PATH_MAX	 104 /* of a Unix socket */
#define DPDK_SOCKETS_MAX 128
#define DPDK_POOLS_MAX	 256 /* GPUs of a host */
#define DPDK_BYE	 0x88b5 /* EtherType for local experiments: "stop polling, I am about to close" */

/* The option "dpdk:NAME,key=value,..". Frozen after dpdk_args_parse(). */
struct dpdk_args {
	char name[64];	/* driver ("net_memif") or PCI address ("0000:3b:00.0") */
	char rest[512]; /* what is for DPDK: "key=value,key=value", gx's own keys taken out */
	bool pci;
	bool memif;
	uint32_t mtu;	 /* 0: not said */
	uint32_t mem_mb; /* 0: not said */
	uint32_t ip;	 /* host order, as everywhere here; 0: not said */
	uint32_t mask;	 /* of ip=ADDRESS/BITS; 0: not said */
	bool has_gateway;
	uint8_t gateway[DPDK_MAC_B];
};

int dpdk_args_parse(const char *text, struct dpdk_args *a);
/** dpdk_args_get() - Value of @key in a->rest into @value. Return: was it there? */
bool dpdk_args_get(const struct dpdk_args *a, const char *key, char *value, size_t room);

/* What reaches us on an Ethernet device. */
struct dpdk_net {
	uint8_t mac[DPDK_MAC_B];
	uint32_t ip;   /* 0: none yet */
	uint32_t mask; /* of the L2 network */
	uint32_t mtu;
	unsigned ifindex;  /* kernel interface behind the device; 0: none */
	uint16_t udp_port; /* of queue 0: data; + 1: control; + 2 a queue */
};

/** dpdk_net_kernel() - Fill ip, mask and mtu of @net with what the kernel has for net->ifindex. */
void dpdk_net_kernel(struct dpdk_net *net);
/**
 * dpdk_net_ports() - Choose @nr UDP ports in a row. Behind a kernel interface they are also bound
 * there, so that no other process takes them and the kernel does not answer our packets; sockets go
 * to @fds.
 */
int dpdk_net_ports(struct dpdk_net *net, unsigned nr, int fds[]);
/** dpdk_net_hop() - MAC to send to for @ip: the hello's on our L2, else the gateway's.
 * -EHOSTUNREACH. */
int dpdk_net_hop(const struct dpdk_net *net, const struct dpdk_args *a, uint32_t ip,
		 const uint8_t hello[DPDK_MAC_B], uint8_t mac[DPDK_MAC_B]);

/* The address blob. */
enum dpdk_kind { DPDK_IP = 1, DPDK_MEMIF = 2 };

struct dpdk_addr {
	uint8_t kind;
	bool owner;    /* memif: this side owns the socket at @path */
	uint16_t room; /* largest frame this side takes */
	/* memif: interface number on the socket; else 1 + the GPU, as this side counts them, whose
	 * memory payload goes to; 0: host memory */
	uint32_t id;
	uint32_t ip;
	uint16_t udp_port; /* data; control: + 1 */
	uint8_t mac[DPDK_MAC_B];
	char path[DPDK_PATH_MAX];
};

void dpdk_addr_put(const struct dpdk_addr *a, struct gx_port_addr *out);
int dpdk_addr_get(const struct gx_port_addr *in, struct dpdk_addr *a); /* 0, -EPROTO */

/** dpdk_pci_hint() - What keeps DPDK from opening the PCI device @name, and the cure, in words; ""
 * when nothing is seen. */
void dpdk_pci_hint(const char *name, char *buf, size_t room);

/** struct dpdk_dir - A private folder (0700) for sockets. */
struct dpdk_dir {
	char path[DPDK_PATH_MAX - 8]; /* "": none */
	int lock;		      /* descriptor of it, locked as long as its process lives */
};
/**
 * dpdk_dir_open() - Make one under XDG_RUNTIME_DIR or /tmp. Folders of the same @name and user
 * whose processes have ended without a word (nobody holds their lock) are removed on this occasion.
 * Return: 0, -EACCES. dpdk_dir_close() removes it and what is in it; none is fine.
 */
int dpdk_dir_open(const char *name, struct dpdk_dir *out);
void dpdk_dir_close(struct dpdk_dir *dir);

/** dpdk_huge_free_mb() - Free 2 MiB pages, in MiB; 0 too when there are 1 GiB pages, which DPDK
 * would prefer. */
uint32_t dpdk_huge_free_mb(void);

/* Ethernet, IPv4 and UDP header of one peer and half. Frozen after dpdk_encap_init(). */
struct dpdk_encap {
	uint8_t b[DPDK_ENCAP_B];
	uint32_t sum; /* of the IPv4 header's words but total length and checksum */
};

void dpdk_encap_init(struct dpdk_encap *e, const struct dpdk_net *from, uint16_t from_port,
		     const uint8_t mac[DPDK_MAC_B], uint32_t ip, uint16_t port);

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

/** dpdk_encap_put() - The header for @len bytes behind it, into @b. */
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
 * dpdk_arp_answer() - Make the answer of the frame @b of @len bytes, if it asks who has the address
 * of @net. Where no kernel has the device, nobody else answers, and a router finds no way to us.
 * Return: it did.
 */
bool dpdk_arp_answer(const struct dpdk_net *net, uint8_t *b, uint32_t len);

enum dpdk_verdict { DPDK_OURS, DPDK_STRAY, DPDK_BAD };

/**
 * dpdk_encap_get() - Is the frame @b of @len bytes for @ip (0: any) and one of two ports from @port
 * (0: any)?
 * @verify: check the IPv4 checksum. @half and @behind (bytes behind the UDP header) are set when it
 * is ours.
 */
enum dpdk_verdict dpdk_encap_get(const uint8_t *b, uint32_t len, uint32_t ip, uint16_t port,
				 bool verify, enum gx_half *half, uint32_t *behind);

#endif
