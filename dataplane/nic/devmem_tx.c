/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending from device memory; see devmem_tx.h. devmem_tx_post() runs on the polling core.
 */
#include "nic/devmem_tx.h"

#include "nic/devmem_abi.h"

#include <errno.h>
#include <string.h>

int devmem_tx_open(const struct devmem_tx_cfg *cfg, struct devmem_tx *out)
{
	struct zc_cfg zc = {.sys = cfg->sys, .fd = cfg->fd, .depth = cfg->depth};

	if (!cfg->len)
		return -EINVAL;
	*out = (struct devmem_tx){.id = cfg->id, .len = cfg->len};
	return zc_tx_open(&zc, &out->zc);
}

void devmem_tx_close(struct devmem_tx *tx)
{
	zc_tx_close(tx->zc);
	tx->zc = NULL;
}

static bool piece_is_good(const struct devmem_tx *tx, const struct devmem_piece *p)
{
	return p->len && p->off <= tx->len && p->len <= tx->len - p->off;
}

/* @room: for the control message, which is good as long as @msg is. */
static void msg_name(struct msghdr *msg, char room[CMSG_SPACE(sizeof(uint32_t))], uint32_t id)
{
	struct cmsghdr h = {.cmsg_len = CMSG_LEN(sizeof(id)),
			    .cmsg_level = SOL_SOCKET,
			    .cmsg_type = DEVMEM_DMABUF};

	memset(room, 0, CMSG_SPACE(sizeof(id)));
	memcpy(room, &h, sizeof(h));
	memcpy(room + CMSG_LEN(0), &id, sizeof(id));
	msg->msg_control = room;
	msg->msg_controllen = CMSG_SPACE(sizeof(id));
}

ssize_t devmem_tx_post(struct devmem_tx *tx, const struct devmem_piece pieces[], unsigned n,
		       uint64_t user)
{
	alignas(struct cmsghdr) char ctl[CMSG_SPACE(sizeof(tx->id))];
	struct iovec iov[DEVMEM_TX_PIECES];
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = n};

	if (!n || n > DEVMEM_TX_PIECES)
		return -EINVAL;
	for (unsigned i = 0; i < n; i++) {
		if (!piece_is_good(tx, &pieces[i]))
			return -EINVAL;
		/* An offset stands where the kernel expects an address. */
		iov[i] = (struct iovec){(void *)(uintptr_t)pieces[i].off, pieces[i].len};
	}
	msg_name(&msg, ctl, tx->id);
	return zc_tx_post(tx->zc, &msg, user);
}

/* The kernel looks at the binding and at its interface first, then at the offset. This one lies behind
 * the end. */
int devmem_tx_ask(const struct zc_sys *sys, int fd, uint32_t id, uint64_t len)
{
	alignas(struct cmsghdr) char ctl[CMSG_SPACE(sizeof(id))];
	struct iovec iov = {(void *)(uintptr_t)len, 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t ret;

	msg_name(&msg, ctl, id);
	ret = sys->send(fd, &msg);
	if (ret == -EFAULT)
		return 0;
	return ret < 0 ? (int)ret : -EPROTO;
}
