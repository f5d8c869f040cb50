/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call of libibverbs that gx makes on the control path, as a table. verbs_dev.c fills it from
 * the library, which it loads when a context first asks for a device: gx runs where there is none.
 * Tests put a scripted provider in its place. On the data path, ibv_post_send(), ibv_post_recv()
 * and ibv_poll_cq() go through the table of the device's context (ibv_context.ops), which the
 * provider fills, and need no symbol of the library.
 */
#ifndef GX_VERBS_API_H
#define GX_VERBS_API_H

#include <infiniband/verbs.h>

/* The slots have the names, arguments and results of the library's functions without "ibv_". Those
 * that return int return 0 or errno, positive, unless they say otherwise there. */
struct verbs_api {
	struct ibv_device **(*get_device_list)(int *n);
	void (*free_device_list)(struct ibv_device **list);
	const char *(*get_device_name)(struct ibv_device *dev);
	struct ibv_context *(*open_device)(struct ibv_device *dev);
	int (*close_device)(struct ibv_context *ctx);
	int (*query_device)(struct ibv_context *ctx, struct ibv_device_attr *attr);
	int (*query_port)(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr);
	int (*query_gid)(struct ibv_context *ctx, uint8_t port, int index, union ibv_gid *gid);
	/* NULL in libraries before rdma-core 33: the type of a GID is then not known. */
	int (*query_gid_ex)(struct ibv_context *ctx, uint32_t port, uint32_t index,
			    struct ibv_gid_entry *entry, uint32_t flags, size_t entry_b);
	struct ibv_pd *(*alloc_pd)(struct ibv_context *ctx);
	int (*dealloc_pd)(struct ibv_pd *pd);
	struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *addr, size_t len, int access);
	/* NULL in libraries before rdma-core 34. */
	struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t off, size_t len, uint64_t iova,
					int fd, int access);
	int (*dereg_mr)(struct ibv_mr *mr);
	struct ibv_cq *(*create_cq)(struct ibv_context *ctx, int cqe, void *arg,
				    struct ibv_comp_channel *channel, int vector);
	int (*destroy_cq)(struct ibv_cq *cq);
	struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
	int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
	int (*query_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
			struct ibv_qp_init_attr *init);
	int (*destroy_qp)(struct ibv_qp *qp);
	int (*get_async_event)(struct ibv_context *ctx, struct ibv_async_event *event); /* 0, -1 */
	void (*ack_async_event)(struct ibv_async_event *event);
	const char *(*wc_status_str)(enum ibv_wc_status status);
};

/** verbs_api() - The table; NULL: there is none, and *@why says why (static). Control path. */
const struct verbs_api *verbs_api(const char **why);
/** verbs_api_set() - For tests: have this table instead; NULL: the library's again. */
void verbs_api_set(const struct verbs_api *api);

#endif
