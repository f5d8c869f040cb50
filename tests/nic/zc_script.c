/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel that sends without a copy; see zc_script.h.
 */
#include "nic/zc_script.h"
#include "nic/devmem_abi.h"

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <sys/socket.h>

#define LINES  (2 * TCP_SOCKS_MAX)
#define PIECES 4096 /* of a queue */
#define ENDS   4096
#define ROOM_B (256u << 10)

/* Bytes of a queue: ours, or (ref) a source. */
struct piece {
	const char *ref;
	char *own;
	size_t len, off;
	uint32_t id;
};

struct line {
	int fd;
	bool dropped;
	struct piece q[PIECES];
	unsigned head, tail;
	size_t q_b;
	uint32_t next_id;
	uint32_t end[ENDS]; /* numbers that have ended, and are not told */
	unsigned nr_ends;
};

struct zc_script zc_script;
static struct line lines[LINES];
static unsigned nr_lines;

uint32_t zc_rnd(uint32_t n)
{
	zc_script.rnd = zc_script.rnd * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(zc_script.rnd >> 33) % n;
}

void zc_script_reset(void)
{
	zc_script_close();
	memset(&zc_script, 0, sizeof(zc_script));
}

void zc_script_close(void)
{
	for (unsigned i = 0; i < nr_lines; i++)
		for (; lines[i].tail != lines[i].head; lines[i].tail++)
			free(lines[i].q[lines[i].tail % PIECES].own);
	nr_lines = 0;
}

static struct line *line_of(int fd)
{
	for (unsigned i = 0; i < nr_lines; i++)
		if (lines[i].fd == fd)
			return &lines[i];
	assert_true(nr_lines < LINES);
	memset(&lines[nr_lines], 0, sizeof(lines[0]));
	lines[nr_lines].fd = fd;
	lines[nr_lines].next_id = zc_script.first_id;
	return &lines[nr_lines++];
}

/* ---- sends ---- */

static size_t room(const struct line *l)
{
	size_t all = zc_script.room_b ? zc_script.room_b : ROOM_B;

	return l->q_b < all ? all - l->q_b : 0;
}

static void piece_add(struct line *l, const char *at, size_t len, bool ref)
{
	struct piece *p = &l->q[l->head++ % PIECES];

	assert_true(l->head - l->tail <= PIECES);
	*p = (struct piece){.len = len};
	if (ref) {
		p->ref = at;
		p->id = l->next_id;
		zc_script.zc_b += len;
	} else {
		p->own = malloc(len);
		assert_non_null(p->own);
		memcpy(p->own, at, len);
	}
	l->q_b += len;
}

static ssize_t line_send(int fd, const struct iovec *iov, size_t n, bool ref)
{
	struct line *l = line_of(fd);
	size_t sum = 0;

	if (l->dropped)
		return -EPIPE;
	for (size_t i = 0; i < n && room(l) && l->head - l->tail < PIECES; i++) {
		size_t len = GX_MIN(iov[i].iov_len, room(l));

		piece_add(l, iov[i].iov_base, len, ref);
		sum += len;
	}
	if (!sum)
		return -EAGAIN;
	l->next_id += ref;
	return (ssize_t)sum;
}

static ssize_t script_send(int fd, const struct iovec *iov, unsigned n)
{
	return line_send(fd, iov, n, false);
}

static ssize_t script_recv(int fd, const struct iovec *iov, unsigned n)
{
	return tcp_sys_kernel.recv(fd, iov, n);
}

/* An offset in the dma-buf stands in place of an address. */
static ssize_t script_zc_send(int fd, const struct msghdr *msg)
{
	struct iovec iov = *msg->msg_iov;
	uint64_t off = (uintptr_t)iov.iov_base;
	struct cmsghdr h;
	uint32_t id;
	ssize_t ret;

	if (zc_script.nr_no_room) {
		zc_script.nr_no_room--;
		return -ENOBUFS;
	}
	assert_int_equal(msg->msg_iovlen, 1);
	memcpy(&h, msg->msg_control, sizeof(h));
	memcpy(&id, (const char *)msg->msg_control + CMSG_LEN(0), sizeof(id));
	assert_true(msg->msg_controllen == CMSG_SPACE(sizeof(id)));
	assert_int_equal(h.cmsg_type, DEVMEM_DMABUF);
	if (zc_script.dev_err || id != zc_script.dev_id)
		return zc_script.dev_err ? zc_script.dev_err : -EINVAL;
	if (off >= zc_script.dev_len || iov.iov_len > zc_script.dev_len - off)
		return -EFAULT;
	iov.iov_base = (char *)zc_script.dev_base + off;
	ret = line_send(fd, &iov, 1, true);
	zc_script.dev_b += ret > 0 ? (uint64_t)ret : 0;
	return ret;
}

static ssize_t script_lead(int fd, const struct iovec *iov, unsigned n)
{
	zc_script.nr_leads++;
	return line_send(fd, iov, n, false);
}

const struct tcp_sys zc_script_tcp = {
	.send = script_send, .recv = script_recv, .lead = script_lead, .push = push_none};

static int script_allow(int fd)
{
	return zc_script.allow_err;
}

/* ---- ends ---- */

static void end_add(struct line *l, uint32_t id)
{
	assert_true(l->nr_ends < ENDS);
	l->end[l->nr_ends++] = id;
}

/* Take a range out of the numbers that have ended. */
static void end_take(struct line *l, uint32_t *first, uint32_t *last)
{
	unsigned at = zc_script.rnd ? zc_rnd(l->nr_ends) : 0, nr = 1;

	*first = *last = l->end[at];
	while (at + nr < l->nr_ends && l->end[at + nr] == *last + 1 &&
	       (!zc_script.rnd || zc_rnd(4))) {
		(*last)++;
		nr++;
	}
	l->nr_ends -= nr;
	memmove(&l->end[at], &l->end[at + nr], (l->nr_ends - at) * sizeof(l->end[0]));
}

static ssize_t script_end(int fd, struct msghdr *msg)
{
	struct sock_extended_err e = {.ee_origin = SO_EE_ORIGIN_ZEROCOPY};
	struct cmsghdr h = {
		.cmsg_len = CMSG_LEN(sizeof(e)), .cmsg_level = SOL_IP, .cmsg_type = IP_RECVERR};
	struct line *l = line_of(fd);

	zc_script.ends++;
	if (zc_script.lie_nr > 0) {
		e.ee_info = (uint32_t)zc_script.lie_first;
		e.ee_data = (uint32_t)(zc_script.lie_first + zc_script.lie_nr - 1);
	} else if (zc_script.is_quiet || !l->nr_ends) {
		return -EAGAIN;
	} else {
		end_take(l, &e.ee_info, &e.ee_data);
	}
	memcpy(msg->msg_control, &h, sizeof(h));
	memcpy((char *)msg->msg_control + CMSG_LEN(0), &e, sizeof(e));
	msg->msg_controllen = CMSG_SPACE(sizeof(e));
	msg->msg_flags = MSG_ERRQUEUE;
	return 0;
}

/* The first piece has left, or is dropped. */
static void piece_done(struct line *l)
{
	struct piece *p = &l->q[l->tail++ % PIECES];

	l->q_b -= p->len - p->off;
	if (p->ref)
		end_add(l, p->id);
	free(p->own);
}

static int script_drop(int fd)
{
	struct line *l = line_of(fd);

	zc_script.nr_drops++;
	l->dropped = true;
	while (l->tail != l->head)
		piece_done(l);
	shutdown(fd, SHUT_RDWR);
	return 0;
}

const struct zc_sys zc_script_zc = {
	.send = script_zc_send, .end = script_end, .allow = script_allow, .drop = script_drop};

static void line_pump(struct line *l)
{
	while (l->tail != l->head) {
		struct piece *p = &l->q[l->tail % PIECES];
		const char *at = p->ref ? p->ref : p->own;
		ssize_t ret =
			send(l->fd, at + p->off, p->len - p->off, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (ret < 0 && errno == EPIPE)
			ret = (ssize_t)(p->len - p->off);
		if (ret < 0)
			return;
		p->off += (size_t)ret;
		l->q_b -= (size_t)ret;
		if (p->off < p->len)
			return;
		piece_done(l);
	}
}

void zc_pump(void)
{
	for (unsigned i = 0; i < nr_lines; i++)
		if (!(zc_script.stalled >> i & 1) && (!zc_script.rnd || zc_rnd(3)))
			line_pump(&lines[i]);
}

bool zc_reads(const char *at, uint64_t len)
{
	for (unsigned i = 0; i < nr_lines; i++)
		for (unsigned k = lines[i].tail; k != lines[i].head; k++) {
			const struct piece *p = &lines[i].q[k % PIECES];

			if (p->ref && p->ref < at + len && p->ref + p->len > at)
				return true;
		}
	return false;
}

bool zc_is_empty(void)
{
	for (unsigned i = 0; i < nr_lines; i++)
		if (lines[i].tail != lines[i].head || lines[i].nr_ends)
			return false;
	return true;
}
