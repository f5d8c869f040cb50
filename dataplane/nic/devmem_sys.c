/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The system calls of receiving in device memory, and the control messages that describe fragments.
 * They never block. Runs on the polling core; tests put another table in its place.
 */
#include "nic/devmem.h"

#include <errno.h>
#include <string.h>

static ssize_t sys_recv(int fd, struct msghdr *msg)
{
	ssize_t ret = recvmsg(fd, msg, MSG_DONTWAIT | DEVMEM_MSG);

	return ret < 0 ? -errno : ret;
}

static int sys_release(int fd, const struct devmem_range range[], unsigned n)
{
	int ret = setsockopt(fd, SOL_SOCKET, DEVMEM_DONTNEED, range, n * sizeof(*range));

	return ret < 0 ? -errno : ret;
}

const struct devmem_sys devmem_sys_kernel = {
	.recv = sys_recv, .claims = devmem_claims, .release = sys_release};

static void claim_set(struct devmem_claim *c, const char *at, bool is_linear)
{
	struct devmem_cmsg m;

	memcpy(&m, at, sizeof(m));
	*c = (struct devmem_claim){m.off, m.len, m.token, m.id, is_linear};
}

/* Older kernels (6.12) leave a message that was cut at the end of a full control buffer. Its fragment
 * is not part of this read and comes again, so the cut message is none. */
int devmem_claims(const void *ctl, size_t len, struct devmem_claim out[], unsigned max, unsigned *n)
{
	const char *at = ctl;
	struct cmsghdr h;

	*n = 0;
	while (len >= sizeof(h)) {
		size_t step;

		memcpy(&h, at, sizeof(h));
		if (h.cmsg_len < sizeof(h) || h.cmsg_len > len)
			return -EPROTO;
		step = GX_MIN(CMSG_ALIGN(h.cmsg_len), len);
		if (h.cmsg_level == SOL_SOCKET &&
		    (h.cmsg_type == DEVMEM_DMABUF || h.cmsg_type == DEVMEM_LINEAR)) {
			if (h.cmsg_len < CMSG_LEN(sizeof(struct devmem_cmsg)))
				return *n && step == len ? 0 : -EPROTO;
			if (*n == max)
				return -EPROTO;
			claim_set(&out[(*n)++], at + sizeof(h), h.cmsg_type == DEVMEM_LINEAR);
		}
		at += step;
		len -= step;
	}
	return 0;
}
