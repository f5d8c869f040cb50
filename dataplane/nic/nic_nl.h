/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of generic netlink to the kernel's families netdev and ethtool, and the answers.
 * nic_nl.c builds and reads them with libmnl; nic_nl_none.c stands in where gx is built without it.
 * Control path: one thread at a time for a socket.
 */
#ifndef NIC_NL_H
#define NIC_NL_H

#include "nic/nic.h"

#define NIC_NL_BUF_B	   32768
#define NIC_NL_ANSWERS_MAX 1024 /* datagrams for one request */

/** enum nic_ask - What was asked, so what an answer may hold. */
enum nic_ask { NIC_ASK_FAMILY, NIC_ASK_RINGS, NIC_ASK_DEV, NIC_ASK_QUEUES, NIC_ASK_BIND, NIC_ASKS };

/** struct nic_got - What the answers to one request said. */
struct nic_got {
	int err; /* the kernel's: 0, -errno */
	char text[NIC_TEXT_MAX];
	uint16_t family;	    /* FAMILY */
	uint64_t ops;		    /* FAMILY: bit n: operation n is known */
	bool has_split, has_thresh; /* RINGS */
	uint8_t split;		    /* as ETHTOOL_TCP_DATA_SPLIT_... */
	uint32_t thresh_b, thresh_max_b;
	uint64_t xdp; /* DEV */
	uint32_t zc_segs;
	uint32_t nr_rx;		      /* QUEUES */
	uint8_t held[NIC_QUEUES_MAX]; /* QUEUES: flags NIC_HELD_... */
	uint32_t id;		      /* BIND */
};

/**
 * nic_nl_parse() - Read one datagram of the kernel into @got.
 * @buf: aligned to 4 bytes
 * @seq, @family: of the request
 * Return: 1: that was the end, and got->err is the kernel's answer; 0: more follows; -EBADMSG.
 */
int nic_nl_parse(enum nic_ask ask, uint32_t seq, uint16_t family, const void *buf, size_t len,
		 struct nic_got *got);

/** struct nic_nl - A socket, and room for a message. */
struct nic_nl {
	const struct nic_sys *sys;
	int fd;
	uint32_t seq;
	_Alignas(8) char buf[NIC_NL_BUF_B];
};

/** nic_nl_open() - Return: 0, -ENOMEM, -ENOSYS (built without libmnl), -errno. */
int nic_nl_open(const struct nic_sys *sys, struct nic_nl **out);
void nic_nl_close(struct nic_nl *nl); /* NULL is fine */

/* Each returns 0, the kernel's -errno with got->text, -EBADMSG (an answer that makes no sense), or
 * the socket's -errno. @family: got->family of nic_nl_family(). */

/** nic_nl_family() - -ENOENT: the kernel has no family @name. */
int nic_nl_family(struct nic_nl *nl, const char *name, struct nic_got *got);
int nic_nl_rings(struct nic_nl *nl, uint16_t ethtool, int ifindex, struct nic_got *got);
int nic_nl_dev(struct nic_nl *nl, uint16_t netdev, int ifindex, struct nic_got *got);
int nic_nl_queues(struct nic_nl *nl, uint16_t netdev, int ifindex, struct nic_got *got);
int nic_nl_bind_rx(struct nic_nl *nl, uint16_t netdev, int ifindex, const uint32_t *queues,
		   unsigned nr, int fd, struct nic_got *got);
int nic_nl_bind_tx(struct nic_nl *nl, uint16_t netdev, int ifindex, int fd, struct nic_got *got);

#endif
