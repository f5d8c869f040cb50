/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending from device memory; see devmem_tx.h. devmem_tx_post() runs on the polling core.
 */
#include "tcp/devmem_tx.h"

#include "tcp/devmem_abi.h"

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

ssize_t devmem_tx_post(struct devmem_tx *tx, const struct devmem_piece pieces[], unsigned n,
		       uint64_t user)
{
	alignas(struct cmsghdr) char ctl[CMSG_SPACE(sizeof(tx->id))] = {0};
	struct cmsghdr h = {.cmsg_len = CMSG_LEN(sizeof(tx->id)),
			    .cmsg_level = SOL_SOCKET,
			    .cmsg_type = DEVMEM_DMABUF};
	struct iovec iov[DEVMEM_TX_PIECES];
	struct msghdr msg = {
		.msg_iov = iov, .msg_iovlen = n, .msg_control = ctl, .msg_controllen = sizeof(ctl)};

	if (!n || n > DEVMEM_TX_PIECES)
		return -EINVAL;
	for (unsigned i = 0; i < n; i++) {
		if (!piece_is_good(tx, &pieces[i]))
			return -EINVAL;
		/* An offset stands where the kernel expects an address. */
		iov[i] = (struct iovec){(void *)(uintptr_t)pieces[i].off, pieces[i].len};
	}
	memcpy(ctl, &h, sizeof(h));
	memcpy(ctl + CMSG_LEN(0), &tx->id, sizeof(tx->id));
	return zc_tx_post(tx->zc, &msg, user);
}
