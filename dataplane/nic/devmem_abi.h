/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linux's interface for receiving TCP payload in device memory (devmem TCP), as far as the headers
 * of Debian 12 (Linux 6.1) lack it. The names here are gx's own, so that newer headers do not clash
 * with them. In the comments: the kernel's name, its header, and the first version that has it.
 *
 * There was an older interface outside of Linux, with options and control messages numbered 97, 98
 * and 99. gx does not build it. It would be another struct devmem_sys (devmem.h): each of that
 * table's slots hides one number or layout of this file.
 */
#ifndef GX_DEVMEM_ABI_H
#define GX_DEVMEM_ABI_H

#include <stdint.h>
#include <sys/socket.h>

/* MSG_SOCK_DEVMEM, include/linux/socket.h, 6.12. A flag of recvmsg(). Older kernels ignore it. */
#define DEVMEM_MSG 0x2000000

/* include/uapi/asm-generic/socket.h, 6.12: SO_DEVMEM_LINEAR, SO_DEVMEM_DMABUF, SO_DEVMEM_DONTNEED.
 * The first two are types of control messages of level SOL_SOCKET (SCM_DEVMEM_LINEAR,
 * SCM_DEVMEM_DMABUF), the third is an option that is set. A send has the second too (6.16): then its
 * data are a u32, the number of the binding, and addresses of the iovec are offsets in the dma-buf. */
#define DEVMEM_LINEAR	78
#define DEVMEM_DMABUF	79
#define DEVMEM_DONTNEED 80

/* Of one DEVMEM_DONTNEED. More ranges: EINVAL. More tokens: the rest is left, and the result is
 * what was released (MAX_DONTNEED_TOKENS, MAX_DONTNEED_FRAGS, net/core/sock.c, 6.12). */
#define DEVMEM_RANGES_MAX 128
#define DEVMEM_TOKENS_MAX 1024

/* ETOOSMALL, include/linux/errno.h: recvmsg() returns it, though it is not meant for programs, when
 * the control buffer has no room for one message. */
#define DEVMEM_ETOOSMALL 525

/* struct dmabuf_cmsg, include/uapi/linux/uio.h, 6.12: a fragment. LINEAR: len alone counts. */
struct devmem_cmsg {
	uint64_t off; /* frag_offset, in the dma-buf */
	uint32_t len; /* frag_size */
	uint32_t token;
	uint32_t id; /* dmabuf_id, of the binding */
	uint32_t flags;
};

/* struct dmabuf_token, include/uapi/linux/uio.h, 6.12: a range of tokens. */
struct devmem_range {
	uint32_t start, count;
};

#define DEVMEM_CMSG_B CMSG_SPACE(sizeof(struct devmem_cmsg)) /* of a control buffer, a fragment */

_Static_assert(sizeof(struct devmem_cmsg) == 24, "Linux: struct dmabuf_cmsg");
_Static_assert(sizeof(struct devmem_range) == 8, "Linux: struct dmabuf_token");

#endif
