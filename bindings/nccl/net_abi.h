/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables by which NCCL calls a network plugin, versions 10 to 12, on 64-bit machines. NCCL
 * (https://github.com/NVIDIA/nccl) defines this binary interface; the names here are gx's own. The
 * assertions below hold each size and offset.
 *
 * NCCL tries the symbols ncclNetPlugin_v12, _v11, ... and takes the first that it finds: 2.30 to
 * 2.32 v12, 2.28 and 2.29 v11, 2.26 and 2.27 v10. Older ones ask for tables that gx has not.
 */
#ifndef NCCL_NET_ABI_H
#define NCCL_NET_ABI_H

#include <stddef.h>
#include <stdint.h>

#define NCCL_HANDLE_B	 128  /* a listener's handle, which NCCL carries to the connecting rank */
#define NCCL_REQS_MAX	 32   /* requests of a comm that NCCL may have under way */
#define NCCL_NO_DONE_REQ 0x1u /* irecv finds this in *req: NCCL needs no completion */
#define NCCL_SIZE_MAX	 (1ull << 30) /* of a request */

/* What each call returns. A plugin returns none of the values that are missing here. */
enum nccl_result {
	NCCL_OK,
	NCCL_CUDA_ERROR,
	NCCL_SYSTEM_ERROR,
	NCCL_INTERNAL_ERROR,
	NCCL_INVALID_ARGUMENT,
	NCCL_INVALID_USAGE,
	NCCL_REMOTE_ERROR,
};

enum nccl_log_level {
	NCCL_LOG_NONE,
	NCCL_LOG_VERSION,
	NCCL_LOG_WARN,
	NCCL_LOG_INFO,
	NCCL_LOG_ABORT,
	NCCL_LOG_TRACE
};

/* Bits of the subsystem that a line of the log belongs to. */
enum nccl_log_part { NCCL_PART_INIT = 1, NCCL_PART_NET = 16 };

/* What memory a plugin takes, and what a registration is of. */
enum nccl_ptr { NCCL_PTR_HOST = 1, NCCL_PTR_CUDA = 2, NCCL_PTR_DMABUF = 4 };

enum nccl_device { NCCL_DEVICE_HOST, NCCL_DEVICE_UNPACK };

typedef void (*nccl_log_fn)(int level, unsigned long flags, const char *file, int line,
			    const char *fmt, ...);
typedef int (*nccl_prof_fn)(void **event, int type, void *phandle, int64_t plugin_id, void *data);

struct nccl_config {
	int traffic_class; /* -1: undefined */
};

/* accept fills it in: what NCCL's device code gets for a receive comm. */
struct nccl_dev_handle {
	int device_type;    /* NCCL writes it, and the next */
	int device_version; /* the same */
	void *handle;	    /* struct nccl_unpack_handle, at the address that the GPU has for it */
	size_t handle_b;
	int needs_progress; /* 1: NCCL's progress thread calls irecv and test all the same */
};
struct nccl_net_attr;

/* ---- What NCCL's device code reads, with NCCL_DEVICE_UNPACK ---- */

#define NCCL_UNPACK_VERSION 0x7
#define NCCL_UNPACK_SLOTS   16	 /* of a receive comm */
#define NCCL_UNPACK_DESCS   2048 /* of a slot */

/* A piece of a message. */
struct nccl_unpack_desc {
	uint32_t src_off; /* from nccl_unpack_handle.bounce */
	uint32_t len;
	uint64_t dst_off; /* from the receive's place in NCCL's own buffer */
};

/* Receive i of a comm, from 0 on, has slot i % NCCL_UNPACK_SLOTS. */
struct nccl_unpack_meta {
	struct nccl_unpack_desc desc[NCCL_UNPACK_SLOTS][NCCL_UNPACK_DESCS];
	_Atomic uint64_t cnt[NCCL_UNPACK_SLOTS]; /* descriptors in use */
};

struct nccl_unpack_handle {
	struct nccl_unpack_meta *meta;
	void *bounce;  /* the same for all receive comms of a GPU */
	uint64_t head; /* the device's last receive; 2^64 - 1: none. The device writes it back */
};

/* Devices that are one virtual device. */
struct nccl_vprops_v10 {
	int nr_devs;
	int devs[4];
};

struct nccl_vprops_v12 {
	int nr_devs;
	int devs[8];
};

struct nccl_props_v10 {
	char *name;
	char *pci_path;
	uint64_t guid;
	int ptr_support;
	int reg_is_global;
	int force_flush;
	int speed_mbps;
	int port;
	float latency_us;
	int comms_max;
	int recvs_max;
	int device_type;
	int device_version;
	struct nccl_vprops_v10 vprops;
	size_t p2p_b_max;
	size_t coll_b_max;
};

struct nccl_props_v11 {
	char *name;
	char *pci_path;
	uint64_t guid;
	int ptr_support;
	int reg_is_global;
	int force_flush;
	int speed_mbps;
	int port;
	float latency_us;
	int comms_max;
	int recvs_max;
	int device_type;
	int device_version;
	struct nccl_vprops_v10 vprops;
	size_t p2p_b_max;
	size_t coll_b_max;
	int multi_request_max;
};

struct nccl_props_v12 {
	char *name;	/* unique among the devices of a host */
	char *pci_path; /* NULL: none */
	uint64_t guid;
	int ptr_support;   /* bits of enum nccl_ptr */
	int reg_is_global; /* 1: a registration holds for all comms */
	int force_flush;   /* 1: NCCL flushes after each receive into a GPU */
	int speed_mbps;	   /* Mb/s */
	int port;
	float latency_us;
	int comms_max;
	int recvs_max; /* receives that one irecv may group */
	int device_type;
	int device_version;
	struct nccl_vprops_v12 vprops;
	size_t p2p_b_max;
	size_t coll_b_max;
	int multi_request_max;
	int16_t rail;  /* -1: undefined */
	int16_t plane; /* -1: undefined */
};

/* clang-format off */
#define NCCL_NET_V11(props, vprops_type)                                                           \
	const char *name;                                                                          \
	int (*init)(void **ctx, uint64_t comm_id, struct nccl_config *config, nccl_log_fn log,     \
		    nccl_prof_fn prof);                                                            \
	int (*devices)(int *nr);                                                                   \
	int (*get_properties)(int dev, struct props *out);                                         \
	int (*listen)(void *ctx, int dev, void *handle, void **listen_comm);                       \
	int (*connect)(void *ctx, int dev, void *handle, void **send_comm,                         \
		       struct nccl_dev_handle **send_dev);                                         \
	int (*accept)(void *listen_comm, void **recv_comm, struct nccl_dev_handle **recv_dev);     \
	int (*reg_mr)(void *comm, void *data, size_t size, int type, void **mh);                   \
	int (*reg_mr_dma_buf)(void *comm, void *data, size_t size, int type, uint64_t off, int fd, \
			      void **mh);                                                          \
	int (*dereg_mr)(void *comm, void *mh);                                                     \
	int (*isend)(void *send_comm, void *data, size_t size, int tag, void *mh, void *phandle,   \
		     void **req);                                                                  \
	int (*irecv)(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhs,    \
		     void **phandles, void **req);                                                 \
	int (*iflush)(void *recv_comm, int n, void **data, int *sizes, void **mhs, void **req);    \
	int (*test)(void *req, int *done, int *sizes);                                             \
	int (*close_send)(void *send_comm);                                                        \
	int (*close_recv)(void *recv_comm);                                                        \
	int (*close_listen)(void *listen_comm);                                                    \
	int (*get_device_mr)(void *comm, void *mh, void **dptr);   /* may be NULL */               \
	int (*irecv_consumed)(void *recv_comm, int n, void *req);  /* may be NULL */               \
	int (*make_vdevice)(int *dev, struct vprops_type *vprops); /* may be NULL */               \
	int (*finalize)(void *ctx);                                                                \
	int (*set_net_attr)(void *ctx, struct nccl_net_attr *attr) /* may be NULL */
/* clang-format on */

struct nccl_net_v12 {
	NCCL_NET_V11(nccl_props_v12, nccl_vprops_v12);
};

struct nccl_net_v11 {
	NCCL_NET_V11(nccl_props_v11, nccl_vprops_v10);
};

struct nccl_net_v10 {
	const char *name;
	int (*init)(nccl_log_fn log, nccl_prof_fn prof);
	int (*devices)(int *nr);
	int (*get_properties)(int dev, struct nccl_props_v10 *out);
	int (*listen)(int dev, void *handle, void **listen_comm);
	int (*connect)(int dev, struct nccl_config *config, void *handle, void **send_comm,
		       struct nccl_dev_handle **send_dev);
	int (*accept)(void *listen_comm, void **recv_comm, struct nccl_dev_handle **recv_dev);
	int (*reg_mr)(void *comm, void *data, size_t size, int type, void **mh);
	int (*reg_mr_dma_buf)(void *comm, void *data, size_t size, int type, uint64_t off, int fd,
			      void **mh);
	int (*dereg_mr)(void *comm, void *mh);
	int (*isend)(void *send_comm, void *data, size_t size, int tag, void *mh, void *phandle,
		     void **req);
	int (*irecv)(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhs,
		     void **phandles, void **req);
	int (*iflush)(void *recv_comm, int n, void **data, int *sizes, void **mhs, void **req);
	int (*test)(void *req, int *done, int *sizes);
	int (*close_send)(void *send_comm);
	int (*close_recv)(void *recv_comm);
	int (*close_listen)(void *listen_comm);
	int (*get_device_mr)(void *comm, void *mh, void **dptr);
	int (*irecv_consumed)(void *recv_comm, int n, void *req);
	int (*make_vdevice)(int *dev, struct nccl_vprops_v10 *vprops);
};

/* ---- What NCCL's own compiler makes of them ---- */

#define NCCL_SIZE(type, size) _Static_assert(sizeof(struct type) == (size), #type)
#define NCCL_AT(type, field, off)                                                                  \
	_Static_assert(offsetof(struct type, field) == (off), #type "." #field)
#define NCCL_SLOT(type, field, slot) NCCL_AT(type, field, (slot)*8)

NCCL_SIZE(nccl_config, 4);
NCCL_SIZE(nccl_dev_handle, 32);
NCCL_AT(nccl_dev_handle, device_version, 4);
NCCL_AT(nccl_dev_handle, handle, 8);
NCCL_AT(nccl_dev_handle, handle_b, 16);
NCCL_AT(nccl_dev_handle, needs_progress, 24);
NCCL_SIZE(nccl_unpack_desc, 16);
NCCL_AT(nccl_unpack_desc, len, 4);
NCCL_AT(nccl_unpack_desc, dst_off, 8);
NCCL_SIZE(nccl_unpack_meta, 524416);
NCCL_AT(nccl_unpack_meta, cnt, 524288);
NCCL_SIZE(nccl_unpack_handle, 24);
NCCL_AT(nccl_unpack_handle, bounce, 8);
NCCL_AT(nccl_unpack_handle, head, 16);
NCCL_SIZE(nccl_vprops_v10, 20);
NCCL_SIZE(nccl_vprops_v12, 36);
NCCL_SIZE(nccl_props_v10, 104);
NCCL_SIZE(nccl_props_v11, 112);
NCCL_SIZE(nccl_props_v12, 128);
#define NCCL_PROPS_HEAD(type)                                                                      \
	NCCL_AT(type, name, 0);                                                                    \
	NCCL_AT(type, pci_path, 8);                                                                \
	NCCL_AT(type, guid, 16);                                                                   \
	NCCL_AT(type, ptr_support, 24);                                                            \
	NCCL_AT(type, reg_is_global, 28);                                                          \
	NCCL_AT(type, force_flush, 32);                                                            \
	NCCL_AT(type, speed_mbps, 36);                                                             \
	NCCL_AT(type, port, 40);                                                                   \
	NCCL_AT(type, latency_us, 44);                                                             \
	NCCL_AT(type, comms_max, 48);                                                              \
	NCCL_AT(type, recvs_max, 52);                                                              \
	NCCL_AT(type, device_type, 56);                                                            \
	NCCL_AT(type, device_version, 60);                                                         \
	NCCL_AT(type, vprops, 64)
NCCL_PROPS_HEAD(nccl_props_v10);
NCCL_PROPS_HEAD(nccl_props_v11);
NCCL_PROPS_HEAD(nccl_props_v12);
NCCL_AT(nccl_props_v10, p2p_b_max, 88);
NCCL_AT(nccl_props_v10, coll_b_max, 96);
NCCL_AT(nccl_props_v11, p2p_b_max, 88);
NCCL_AT(nccl_props_v11, coll_b_max, 96);
NCCL_AT(nccl_props_v11, multi_request_max, 104);
NCCL_AT(nccl_props_v12, p2p_b_max, 104);
NCCL_AT(nccl_props_v12, coll_b_max, 112);
NCCL_AT(nccl_props_v12, multi_request_max, 120);
NCCL_AT(nccl_props_v12, rail, 124);
NCCL_AT(nccl_props_v12, plane, 126);
NCCL_SIZE(nccl_net_v12, 22 * 8);
NCCL_SIZE(nccl_net_v11, 22 * 8);
NCCL_SIZE(nccl_net_v10, 20 * 8);
#define NCCL_NET_SLOTS(type)                                                                       \
	NCCL_SLOT(type, name, 0);                                                                  \
	NCCL_SLOT(type, init, 1);                                                                  \
	NCCL_SLOT(type, devices, 2);                                                               \
	NCCL_SLOT(type, get_properties, 3);                                                        \
	NCCL_SLOT(type, listen, 4);                                                                \
	NCCL_SLOT(type, connect, 5);                                                               \
	NCCL_SLOT(type, accept, 6);                                                                \
	NCCL_SLOT(type, reg_mr, 7);                                                                \
	NCCL_SLOT(type, reg_mr_dma_buf, 8);                                                        \
	NCCL_SLOT(type, dereg_mr, 9);                                                              \
	NCCL_SLOT(type, isend, 10);                                                                \
	NCCL_SLOT(type, irecv, 11);                                                                \
	NCCL_SLOT(type, iflush, 12);                                                               \
	NCCL_SLOT(type, test, 13);                                                                 \
	NCCL_SLOT(type, close_send, 14);                                                           \
	NCCL_SLOT(type, close_recv, 15);                                                           \
	NCCL_SLOT(type, close_listen, 16);                                                         \
	NCCL_SLOT(type, get_device_mr, 17);                                                        \
	NCCL_SLOT(type, irecv_consumed, 18)
NCCL_NET_SLOTS(nccl_net_v12);
NCCL_NET_SLOTS(nccl_net_v11);
NCCL_NET_SLOTS(nccl_net_v10);
NCCL_SLOT(nccl_net_v12, make_vdevice, 19);
NCCL_SLOT(nccl_net_v12, finalize, 20);
NCCL_SLOT(nccl_net_v12, set_net_attr, 21);
NCCL_SLOT(nccl_net_v11, make_vdevice, 19);
NCCL_SLOT(nccl_net_v11, finalize, 20);
NCCL_SLOT(nccl_net_v11, set_net_attr, 21);
NCCL_SLOT(nccl_net_v10, make_vdevice, 19);

#endif
