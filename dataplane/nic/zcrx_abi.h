/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linux's interface for zero-copy receive by io_uring, as far as the headers of Debian 12 (Linux
 * 6.1) lack it. The names here are gx's own, so that newer headers do not clash with them. In the
 * comments: the kernel's name. All of it is of include/uapi/linux/io_uring.h, 6.15, where no other
 * version stands.
 */
#ifndef GX_ZCRX_ABI_H
#define GX_ZCRX_ABI_H

#include <stdint.h>

#define ZCRX_OP_RECV	 58 /* IORING_OP_RECV_ZC; the queue's number stands in file_index */
#define ZCRX_REGISTER	 32 /* IORING_REGISTER_ZCRX_IFQ */
#define ZCRX_REGION_USER 1  /* IORING_MEM_REGION_TYPE_USER, 6.13 */
#define ZCRX_AREA_DMABUF 1  /* IORING_ZCRX_AREA_DMABUF, 6.16 */
#define ZCRX_AREA_SHIFT	 48 /* IORING_ZCRX_AREA_SHIFT: above it the area's number */
#define ZCRX_REFILLS_MAX 32768

/* struct io_uring_zcrx_rqe: an entry of the refill ring. */
struct zcrx_refill {
	uint64_t off;
	uint32_t len, pad;
};

/* struct io_uring_zcrx_cqe: the second half of a completion. */
struct zcrx_cqe {
	uint64_t off, pad;
};

/* struct io_uring_zcrx_offsets: where the words of the refill ring are in its memory. */
struct zcrx_offsets {
	uint32_t head, tail, entries, pad0;
	uint64_t pad[2];
};

/* struct io_uring_zcrx_area_reg */
struct zcrx_area {
	uint64_t addr, len;
	uint64_t token; /* rq_area_token: for refills */
	uint32_t flags, dmabuf_fd;
	uint64_t pad[2];
};

/* struct io_uring_region_desc, 6.13 */
struct zcrx_region {
	uint64_t addr, size;
	uint32_t flags, id;
	uint64_t mmap_offset;
	uint64_t pad[4];
};

/* struct io_uring_zcrx_ifq_reg */
struct zcrx_reg {
	uint32_t ifindex, queue, entries, flags;
	uint64_t area, region; /* addresses of the structs above */
	struct zcrx_offsets offsets;
	uint32_t id, pad0;
	uint64_t pad[3];
};

_Static_assert(sizeof(struct zcrx_refill) == 16, "Linux: struct io_uring_zcrx_rqe");
_Static_assert(sizeof(struct zcrx_cqe) == 16, "Linux: struct io_uring_zcrx_cqe");
_Static_assert(sizeof(struct zcrx_area) == 48, "Linux: struct io_uring_zcrx_area_reg");
_Static_assert(sizeof(struct zcrx_region) == 64, "Linux: struct io_uring_region_desc");
_Static_assert(sizeof(struct zcrx_reg) == 96, "Linux: struct io_uring_zcrx_ifq_reg");

#endif
