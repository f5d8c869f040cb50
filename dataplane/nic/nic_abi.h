/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers of Linux's interfaces that the headers of Debian 12 (Linux 6.1) lack, with the kernel's
 * header and the version that first has them. The kernel never changes such a number. For the files
 * of nic/ and their tests.
 */
#ifndef NIC_ABI_H
#define NIC_ABI_H

/* include/uapi/linux/netdev.h: operations of the generic netlink family "netdev". */
enum {
	NIC_NETDEV_DEV_GET = 1,	   /* NETDEV_CMD_DEV_GET, 6.3 */
	NIC_NETDEV_QUEUE_GET = 10, /* NETDEV_CMD_QUEUE_GET, 6.8 */
	NIC_NETDEV_BIND_RX = 13,   /* NETDEV_CMD_BIND_RX, 6.12 */
	NIC_NETDEV_BIND_TX = 15,   /* NETDEV_CMD_BIND_TX, 6.16 */
};

/* The same header: NETDEV_A_DEV_... (6.3; XDP_ZC_MAX_SEGS 6.6). */
enum {
	NIC_DEV_IFINDEX = 1,	  /* u32 */
	NIC_DEV_XDP_FEATURES = 3, /* u64 */
	NIC_DEV_XDP_ZC_SEGS = 4,  /* u32 */
};

/* The same header: NETDEV_A_QUEUE_... (6.8; DMABUF 6.12, IO_URING 6.15, XSK 6.15). */
enum {
	NIC_QUEUE_ID = 1,	/* u32 */
	NIC_QUEUE_IFINDEX = 2,	/* u32 */
	NIC_QUEUE_TYPE = 3,	/* u32: 0 receives */
	NIC_QUEUE_DMABUF = 5,	/* u32: the binding's number */
	NIC_QUEUE_IO_URING = 6, /* nest, empty */
	NIC_QUEUE_XSK = 7,	/* nest, empty */
};

/* The same header: NETDEV_A_DMABUF_... (6.12). */
enum {
	NIC_DMABUF_IFINDEX = 1, /* u32 */
	NIC_DMABUF_QUEUES = 2,	/* nest of NIC_QUEUE_ID and NIC_QUEUE_TYPE, one for each queue */
	NIC_DMABUF_FD = 3,	/* u32 */
	NIC_DMABUF_ID = 4,	/* u32, in the answer */
};

/* include/uapi/linux/ethtool_netlink_generated.h, 6.14: ETHTOOL_A_RINGS_... */
enum {
	NIC_RINGS_HDS_THRESH = 17,     /* u32 */
	NIC_RINGS_HDS_THRESH_MAX = 18, /* u32 */
};

/* include/linux/socket.h: SOL_NETLINK; libc has it from 2.35 on, in no header that fits here. */
#ifndef SOL_NETLINK
#define SOL_NETLINK 270
#endif

#endif
