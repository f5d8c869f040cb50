/* SPDX-License-Identifier: Apache-2.0 */
/* include/gx/coll.h of version 0.1, without its comments: frozen. tests/api/test_abi.py holds later versions to it. */
#ifndef GX_COLL_H
#define GX_COLL_H
#include <gx/gx.h>
#ifdef __cplusplus
extern "C" {
#endif
#define GX_GROUP_RANKS_MAX 256
#define GX_GROUP_BUFS_MAX  16
#define GX_COLL_DEPTH	   16
struct gx_group;
struct gx_group_env {
	size_t size;
	const char *launcher;
	unsigned rank, nr_ranks;
	unsigned local_rank;
	char master[128];
	char job[64];
	uint32_t reserved;
};
int gx_group_env(struct gx_group_env *env);
struct gx_group_buf {
	enum gx_mem_kind kind;
	int device;
	void *addr;
	uint64_t len;
};
struct gx_group_opts {
	size_t size;
	unsigned rank, nr_ranks;
	const char *master;
	const char *host;
	const struct gx_opts *gx;
	const char *port, *link;
	const struct gx_group_buf *bufs;
	unsigned nr_bufs;
	uint64_t piece_b;
	unsigned depth;
	unsigned fan;
	uint64_t connect_timeout_ns;
	uint64_t timeout_ns;
	const char *job;
};
int gx_group_open(const struct gx_group_opts *opts, struct gx_group **out);
const char *gx_group_addr(const struct gx_group *group);
int gx_group_connect(struct gx_group *group);
void gx_group_close(struct gx_group *group);
unsigned gx_group_rank(const struct gx_group *group);
unsigned gx_group_ranks(const struct gx_group *group);
struct gx *gx_group_gx(struct gx_group *group);
struct gx_mem *gx_group_mem(struct gx_group *group, unsigned index);
struct gx_conn *gx_group_conn(struct gx_group *group, unsigned rank);
const char *gx_group_error(const struct gx_group *group);
int gx_group_lost(const struct gx_group *group);
struct gx_coll {
	size_t size;
	struct gx_mem *src;
	uint64_t src_off;
	unsigned dst;
	uint64_t dst_off;
	uint64_t len;
};
int gx_allgather(struct gx_group *group, const struct gx_coll *coll, uint64_t *ticket);
int gx_alltoall(struct gx_group *group, const struct gx_coll *coll, uint64_t *ticket);
int gx_barrier(struct gx_group *group, uint64_t *ticket);
int gx_leave(struct gx_group *group, uint64_t *ticket);
int gx_coll_test(struct gx_group *group, uint64_t ticket);
int gx_coll_wait(struct gx_group *group, uint64_t ticket);
#ifdef __cplusplus
}
#endif
#endif
