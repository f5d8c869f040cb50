/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends from device memory, and their ends; see zc_tx.h. Runs on the polling core; open and close on the control path.
 */
#include "nic/zc_tx.h"
#include "nic/devmem_abi.h"

#include <assert.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

/* ---- system calls ---- */

static ssize_t sys_send(int fd, const struct msghdr *msg)
{
	ssize_t ret = sendmsg(fd, msg, MSG_DONTWAIT | MSG_NOSIGNAL | MSG_ZEROCOPY);

	return ret < 0 ? -errno : ret;
}

static ssize_t sys_end(int fd, struct msghdr *msg)
{
	ssize_t ret = recvmsg(fd, msg, MSG_DONTWAIT | MSG_ERRQUEUE);

	return ret < 0 ? -errno : ret;
}

static int sys_allow(int fd)
{
	const int on = 1;

	return setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) ? -errno : 0;
}

/* connect() to no address: the kernel sends RST and empties the queue of the socket. shutdown() would
 * go on sending it, and close() would take the error queue away. */
static int sys_drop(int fd)
{
	const struct sockaddr none = {.sa_family = AF_UNSPEC};

	return connect(fd, &none, sizeof(none)) ? -errno : 0;
}

const struct zc_sys zc_sys_kernel = {
	.send = sys_send, .end = sys_end, .allow = sys_allow, .drop = sys_drop};

/* ---- control messages of the error queue ---- */

static bool is_recverr(const struct cmsghdr *h)
{
	return (h->cmsg_level == SOL_IP && h->cmsg_type == IP_RECVERR) ||
	       (h->cmsg_level == SOL_IPV6 && h->cmsg_type == IPV6_RECVERR);
}

/* One message. Return: 1: @out is a range; 0: it is about other things; -EPROTO. */
static int end_read(const char *at, size_t len, struct zc_end *out)
{
	struct sock_extended_err e;

	if (len < sizeof(e))
		return -EPROTO;
	memcpy(&e, at, sizeof(e));
	if (e.ee_origin != SO_EE_ORIGIN_ZEROCOPY || e.ee_errno)
		return 0;
	*out = (struct zc_end){e.ee_info, e.ee_data};
	return 1;
}

int zc_ends(const struct msghdr *msg, struct zc_end out[], unsigned max, unsigned *n)
{
	const char *at = msg->msg_control;
	size_t left = msg->msg_controllen;
	struct cmsghdr h;

	*n = 0;
	while (left >= sizeof(h)) {
		struct zc_end end;
		size_t step;
		int ret;

		memcpy(&h, at, sizeof(h));
		if (h.cmsg_len < CMSG_LEN(0) || h.cmsg_len > left)
			return -EPROTO;
		if (is_recverr(&h)) {
			ret = end_read(at + CMSG_LEN(0), h.cmsg_len - CMSG_LEN(0), &end);
			if (ret < 0 || (ret && *n == max))
				return -EPROTO;
			if (ret)
				out[(*n)++] = end;
		}
		step = GX_MIN(left, CMSG_ALIGN(h.cmsg_len));
		at += step;
		left -= step;
	}
	return left ? -EPROTO : 0;
}

/* ---- control path ---- */

int zc_tx_open(const struct zc_cfg *cfg, struct zc_tx **out)
{
	struct zc_tx *tx;
	int ret;

	if (!cfg->depth || cfg->depth > ZC_DEPTH_MAX || cfg->depth & (cfg->depth - 1))
		return -EINVAL;
	ret = cfg->sys->allow(cfg->fd);
	if (ret)
		return ret;
	tx = calloc(1, sizeof(*tx) + cfg->depth * sizeof(tx->post[0]));
	if (!tx)
		return -ENOMEM;
	tx->sys = cfg->sys;
	tx->fd = cfg->fd;
	tx->mask = cfg->depth - 1;
	*out = tx;
	return 0;
}

void zc_tx_close(struct zc_tx *tx)
{
	free(tx);
}

/* ---- posting ---- */

static int tx_fail(struct zc_tx *tx, int err, const char *why)
{
	if (!tx->err) {
		tx->err = err;
		tx->why = why;
	}
	return tx->err;
}

static int tx_deafen(struct zc_tx *tx, int err, const char *why)
{
	tx->is_deaf = true;
	return tx_fail(tx, err, why);
}

static ssize_t post_refused(struct zc_tx *tx, int err)
{
	tx->last = err;
	switch (err) {
	case 0:
	case -EAGAIN:
	case -EINTR:
	case -ENOBUFS: /* too many sends, or locked pages, wait for their end */
	case -ENOMEM:
		return 0;
	case -ENODEV:
		return tx_fail(tx, err,
			       "the connection leaves by another interface than the one that the "
			       "memory of the device is bound to");
	case -EFAULT:
	case -EINVAL:
		return tx_fail(tx, err,
			       "the kernel does not send that memory of a device: its binding has "
			       "ended");
	default:
		return tx_fail(tx, err, "the socket broke");
	}
}

ssize_t zc_tx_post(struct zc_tx *tx, const struct msghdr *msg, uint64_t user)
{
	ssize_t ret;

	if (tx->err)
		return tx->err;
	if (tx->head - tx->tail > tx->mask) {
		tx->stat.full++;
		tx->last = 0;
		return 0;
	}
	ret = tx->sys->send(tx->fd, msg);
	if (ret <= 0)
		return post_refused(tx, (int)ret);
	tx->post[tx->head++ & tx->mask] = (struct zc_post){.user = user};
	tx->stat.sends++;
	tx->stat.bytes += (uint64_t)ret;
	return ret;
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

ssize_t zc_tx_device(struct zc_tx *tx, const struct zc_piece *p, uint64_t user)
{
	alignas(struct cmsghdr) char ctl[CMSG_SPACE(sizeof(p->id))];
	/* An offset stands where the kernel expects an address. */
	struct iovec iov = {(void *)(uintptr_t)p->off, p->len};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (!p->len || p->off > p->dmabuf_b || p->len > p->dmabuf_b - p->off)
		return -EINVAL;
	msg_name(&msg, ctl, p->id);
	return zc_tx_post(tx, &msg, user);
}

/* The kernel looks at the binding and at its interface first, then at the offset. This one lies after
 * the end. */
int zc_tx_ask(const struct zc_sys *sys, int fd, uint32_t id, uint64_t dmabuf_b)
{
	alignas(struct cmsghdr) char ctl[CMSG_SPACE(sizeof(id))];
	struct iovec iov = {(void *)(uintptr_t)dmabuf_b, 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t ret;

	msg_name(&msg, ctl, id);
	ret = sys->send(fd, &msg);
	if (ret == -EFAULT)
		return 0;
	return ret < 0 ? (int)ret : -EPROTO;
}

/* ---- ends ---- */

/* Each number of the range is of a send that has not ended yet. */
static int end_take(struct zc_tx *tx, const struct zc_end *n)
{
	uint32_t out = zc_tx_held(tx);
	uint32_t first = n->first - tx->tail, last = n->last - tx->tail;

	if (first >= out || last >= out || first > last)
		return tx_deafen(tx, -EPROTO,
				 "the kernel reported the end of a send that it never had");
	for (uint32_t id = n->first; id != n->last + 1; id++) {
		struct zc_post *p = &tx->post[id & tx->mask];

		if (p->is_done)
			return tx_deafen(tx, -EPROTO,
					 "the kernel reported the end of a send twice");
		p->is_done = true;
	}
	return 0;
}

/* Read one message of the error queue. False: no other now. */
static bool ends_read(struct zc_tx *tx)
{
	alignas(struct cmsghdr) char ctl[ZC_CTL_B];
	struct msghdr msg = {.msg_control = ctl, .msg_controllen = sizeof(ctl)};
	struct zc_end end[ZC_ENDS];
	ssize_t ret = tx->sys->end(tx->fd, &msg);
	unsigned n;
	int err;

	if (ret == -EAGAIN || ret == -EINTR || ret == -ENOMEM)
		return false;
	if (ret < 0) {
		tx_deafen(tx, (int)ret, "the socket's error queue cannot be read");
		return false;
	}
	if (msg.msg_flags & MSG_CTRUNC) {
		tx_deafen(tx, -EOVERFLOW, "the kernel cut a message of the error queue short");
		return false;
	}
	err = zc_ends(&msg, end, ZC_ENDS, &n);
	if (err)
		tx_deafen(tx, err, "the socket's error queue makes no sense");
	tx->stat.others += !n;
	for (unsigned i = 0; i < n && !err; i++)
		err = end_take(tx, &end[i]);
	return !err;
}

unsigned zc_tx_reap(struct zc_tx *tx, uint64_t users[], unsigned n)
{
	unsigned nr = 0;

	for (unsigned i = 0; i < ZC_CALLS && zc_tx_held(tx) && !tx->is_deaf; i++)
		if (!ends_read(tx))
			break;
	while (nr < n && zc_tx_held(tx) && tx->post[tx->tail & tx->mask].is_done)
		users[nr++] = tx->post[tx->tail++ & tx->mask].user;
	return nr;
}

void zc_tx_lose(struct zc_tx *tx)
{
	for (uint32_t i = tx->tail; i != tx->head; i++)
		tx->post[i & tx->mask].is_done = true;
	tx_deafen(tx, -ECONNRESET, "the connection was reset");
}
