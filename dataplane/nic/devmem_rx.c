/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A socket that receives in device memory; see devmem.h. Its records form a ring in the order of
 * the stream:
 *
 *     tail                     ready                         head
 *      | nobody reads it: its    | the first of these is      | free
 *      | tokens may go back      | read, the others may be    |
 *
 * So tokens go back in the order in which the kernel gave them. Runs on the polling core.
 */
#include "nic/devmem.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>

/* devmem_rec.pool, besides the indices of pools */
#define POOL_LIN  DEVMEM_POOLS	     /* bytes in host memory */
#define POOL_NONE (DEVMEM_POOLS + 1) /* no bytes: of a claim that was refused */

#define LIN_MAX	  (1u << 30)
#define DEPTH_MIN 4
#define DEPTH_MAX 65536

/* One read, while its claims are taken. */
struct rx_read {
	struct devmem_frag *frags;
	unsigned nr;
	uint64_t left;	/* bytes that recvmsg() returned and no claim has named yet */
	uint32_t first; /* its first record */
};

int devmem_rx_open(const struct devmem_cfg *cfg, struct devmem_rx **out)
{
	struct devmem_rx *rx;

	if (!cfg->lin || !cfg->lin_b || cfg->lin_b > LIN_MAX || cfg->lin_b & (cfg->lin_b - 1) ||
	    cfg->depth < DEPTH_MIN || cfg->depth > DEPTH_MAX || cfg->depth & (cfg->depth - 1))
		return -EINVAL;
	rx = calloc(1, sizeof(*rx) + cfg->depth * sizeof(rx->rec[0]));
	if (!rx)
		return -ENOMEM;
	rx->sys = cfg->sys;
	rx->fd = cfg->fd;
	rx->mask = cfg->depth - 1;
	rx->lin = cfg->lin;
	rx->lin_b = (uint32_t)cfg->lin_b;
	rx->ranges_max = DEVMEM_RANGES_MAX;
	*out = rx;
	return 0;
}

static struct devmem_rec *rec_at(struct devmem_rx *rx, uint32_t i)
{
	return &rx->rec[i & rx->mask];
}

static uint32_t rec_page(uint32_t off)
{
	return off / DEVMEM_PAGE_B;
}

/* The record of the tail goes: the bytes may be written again. */
static void rec_drop(struct devmem_rx *rx, const struct devmem_rec *r)
{
	if (r->pool < rx->nr_pools)
		devmem_pool_drop(rx->pool[r->pool], rec_page(r->off),
				 rec_page(r->off + r->len - 1));
	else if (r->pool == POOL_LIN)
		rx->lin_tail += r->len;
	rx->tail++;
}

void devmem_rx_close(struct devmem_rx *rx)
{
	if (!rx)
		return;
	assert(rx->ready == rx->head);
	while (rx->tail != rx->head)
		rec_drop(rx, rec_at(rx, rx->tail));
	free(rx);
}

int devmem_rx_pool(struct devmem_rx *rx, struct devmem_pool *p)
{
	for (unsigned i = 0; i < rx->nr_pools; i++)
		if (rx->pool[i]->id == p->id)
			return -EEXIST;
	if (rx->nr_pools == DEVMEM_POOLS)
		return -ENOSPC;
	rx->pool[rx->nr_pools++] = p;
	return 0;
}

static int rx_fail(struct devmem_rx *rx, int err, const char *why)
{
	if (!rx->err) {
		rx->err = err;
		rx->why = why;
	}
	return rx->err;
}

/* -- fragments -- */

/* Record [ready] has become free to go, and so have those after it that were done before. */
static void rx_advance(struct devmem_rx *rx)
{
	while (rx->ready != rx->head && !rec_at(rx, rx->ready)->refs)
		rx->tokens += rec_at(rx, rx->ready++)->nr;
}

static void rec_add(struct devmem_rx *rx, struct rx_read *rd, const struct devmem_rec *rec)
{
	uint32_t ref = rx->head++;

	*rec_at(rx, ref) = *rec;
	if (rec->pool == POOL_NONE)
		return;
	rd->frags[rd->nr++] = (struct devmem_frag){
		.src = (rec->pool == POOL_LIN ? rx->lin : rx->pool[rec->pool]->base) + rec->off,
		.len = rec->len,
		.ref = ref};
}

/* Bytes in host memory, after those that came there before: two pieces at its end. */
static void rx_linear(struct devmem_rx *rx, struct rx_read *rd, uint32_t len)
{
	while (len) {
		uint32_t at = rx->lin_head & (rx->lin_b - 1);
		uint32_t n = GX_MIN(len, rx->lin_b - at);

		rec_add(rx, rd,
			&(struct devmem_rec){.off = at, .len = n, .refs = 1, .pool = POOL_LIN});
		rx->lin_head += n;
		rx->stat.linear_b += n;
		len -= n;
	}
}

/* A fragment goes on where the one before ends, in the pool and in its token. */
static bool rec_merge(struct devmem_rx *rx, struct rx_read *rd, const struct devmem_rec *rec)
{
	struct devmem_rec *r = rec_at(rx, rx->head - 1);
	uint32_t page = rec_page(rec->off);

	if (rx->head == rd->first || r->pool != rec->pool || r->token + r->nr != rec->token ||
	    (uint64_t)r->off + r->len != rec->off || r->token > UINT32_MAX - r->nr)
		return false;
	if (page == rec_page(rec->off - 1)) /* the record holds it already */
		page++;
	devmem_pool_hold(rx->pool[rec->pool], page, rec_page(rec->off + rec->len - 1));
	r->nr++;
	r->len += rec->len;
	rd->frags[rd->nr - 1].len += rec->len;
	rx->stat.merged++;
	return true;
}

static unsigned pool_find(const struct devmem_rx *rx, uint32_t id)
{
	for (unsigned i = 0; i < rx->nr_pools; i++)
		if (rx->pool[i]->id == id)
			return i;
	return POOL_NONE;
}

static int rx_device(struct devmem_rx *rx, struct rx_read *rd, const struct devmem_claim *c)
{
	struct devmem_rec rec = {.token = c->token,
				 .nr = 1,
				 .off = (uint32_t)c->off,
				 .len = c->len,
				 .refs = 1,
				 .pool = pool_find(rx, c->id)};
	const struct devmem_pool *p = rec.pool == POOL_NONE ? NULL : rx->pool[rec.pool];

	rx->stat.tokens++;
	if (p && c->off <= p->len && c->len <= p->len - c->off && c->len) {
		if (gx_likely(rec_merge(rx, rd, &rec)))
			return 0;
		devmem_pool_hold(rx->pool[rec.pool], rec_page(rec.off),
				 rec_page(rec.off + rec.len - 1));
		rec_add(rx, rd, &rec);
		return 0;
	}
	/* The token goes back, though nobody reads its bytes. */
	rec_add(rx, rd, &(struct devmem_rec){.token = c->token, .nr = 1, .pool = POOL_NONE});
	if (!p)
		return rx_fail(
			rx, -EXDEV,
			"payload landed in a dma-buf that this connection does not have: its "
			"packets came by a queue of another program or GPU");
	return rx_fail(rx, -EPROTO,
		       "the kernel reported a fragment without bytes, or beyond its dma-buf");
}

static int rx_claim(struct devmem_rx *rx, struct rx_read *rd, const struct devmem_claim *c)
{
	bool is_over = c->len > rd->left;

	rd->left -= is_over ? rd->left : c->len;
	if (gx_unlikely(is_over))
		rx_fail(rx, -EPROTO, "the kernel reported fragments with more bytes than it read");
	if (!c->is_linear)
		return rx_device(rx, rd, c);
	if (!is_over)
		rx_linear(rx, rd, c->len);
	return 0;
}

void devmem_rx_leave(struct devmem_rx *rx)
{
	while (rx->tail != rx->ready)
		rec_drop(rx, rec_at(rx, rx->tail));
	rx->is_stuck = true;
	rx_fail(rx, -ESHUTDOWN, "the socket is about to be closed");
}

void devmem_rx_forget(struct devmem_rx *rx)
{
	for (uint32_t i = rx->ready; i != rx->head; i++)
		rec_at(rx, i)->refs = 0;
	rx_advance(rx);
}

/* The bytes of a read that cannot be trusted are dropped. Its tokens go back after the others. */
static void rx_undo(struct devmem_rx *rx, const struct rx_read *rd)
{
	for (uint32_t i = rd->first; i != rx->head; i++)
		rec_at(rx, i)->refs = 0;
	rx_advance(rx);
}

/* All bytes are claimed, or none: then they are plain data, which came by another queue. */
static int rx_take(struct devmem_rx *rx, struct rx_read *rd, const struct msghdr *msg, unsigned max)
{
	struct devmem_claim claim[DEVMEM_READ_MAX];
	unsigned n;

	if (gx_unlikely(rx->sys->claims(msg->msg_control, msg->msg_controllen, claim, max, &n)))
		rx_fail(rx, -EPROTO, "the kernel's control messages make no sense");
	/* What was cut may have been a token. So all the buffer has room for whole messages, and the
	 * kernel stops reading before it cuts one. */
	if (gx_unlikely(msg->msg_flags & MSG_CTRUNC))
		rx_fail(rx, -EOVERFLOW,
			"the kernel cut control messages short: tokens are lost until the socket is "
			"closed");
	for (unsigned i = 0; i < n; i++)
		rx_claim(rx, rd, &claim[i]);
	if (rx->err)
		return rx->err;
	if (!n) {
		rx_linear(rx, rd, (uint32_t)rd->left);
		return 0;
	}
	if (gx_unlikely(rd->left))
		return rx_fail(rx, -EPROTO,
			       "the kernel reported fragments with fewer bytes than it read");
	return 0;
}

/* -- reading -- */

static int rx_no_read(struct devmem_rx *rx, int err)
{
	switch (err) {
	case 0:
		return rx_fail(rx, -ESHUTDOWN, "the peer has closed the socket");
	case -ENOMEM:
	case -EAGAIN:
	case -EINTR:
		return 0;
	case -ENODEV:
		return rx_fail(
			rx, err,
			"payload lies in memory that the kernel cannot name: the queue is bound "
			"for another use (io_uring?)");
	case -EFAULT:
		return rx_fail(rx, err, "the kernel could not hand over what it read (EFAULT)");
	case -DEVMEM_ETOOSMALL:
		return rx_fail(
			rx, -EMSGSIZE,
			"the kernel's control messages are larger than those of Linux 6.12 to "
			"6.18, which gx knows");
	default:
		return rx_fail(rx, err, "the socket broke");
	}
}

/* Free host memory: one or two pieces. */
static unsigned rx_iov(const struct devmem_rx *rx, uint32_t len, struct iovec iov[2])
{
	uint32_t at = rx->lin_head & (rx->lin_b - 1);
	uint32_t n = GX_MIN(len, rx->lin_b - at);

	iov[0] = (struct iovec){rx->lin + at, n};
	iov[1] = (struct iovec){rx->lin, len - n};
	return 1 + (len > n);
}

/* The kernel counts bytes that come into a pool against the length of the iovec as well. */
static ssize_t rx_recv(struct devmem_rx *rx, struct msghdr *msg, struct iovec iov[2],
		       uint64_t want_b, unsigned *max, unsigned n)
{
	uint32_t room = rx->mask + 1 - (rx->head - rx->tail);
	uint32_t lin = rx->lin_b - (rx->lin_head - rx->lin_tail);
	ssize_t ret;

	*max = GX_MIN(GX_MIN(n, room), DEVMEM_READ_MAX + 1u);
	if (*max < 2 || !lin) {
		rx->stat.full++;
		return -EAGAIN;
	}
	(*max)--; /* bytes at the end of the host memory take two records */
	lin = (uint32_t)GX_MIN(lin, want_b);
	msg->msg_iov = iov;
	msg->msg_iovlen = rx_iov(rx, lin, iov);
	msg->msg_controllen = *max * DEVMEM_CMSG_B;
	ret = rx->sys->recv(rx->fd, msg);
	return ret > (ssize_t)lin ? -EPROTO : ret;
}

int devmem_rx_pull(struct devmem_rx *rx, uint64_t want_b, struct devmem_frag frags[], unsigned n)
{
	alignas(struct cmsghdr) char ctl[DEVMEM_READ_MAX * DEVMEM_CMSG_B];
	struct rx_read rd = {.frags = frags, .first = rx->head};
	struct msghdr msg = {.msg_control = ctl};
	struct iovec iov[2];
	unsigned max;
	ssize_t ret;

	/* A kernel that passes over a token which it does not know takes a part as well, and then not
	 * the first ones: the rest names some that are free. A read before it might hand them out
	 * again, and the rest would release them under a copy. */
	if (gx_unlikely(rx->is_unsettled))
		devmem_release(rx, true);
	if (rx->err || rx->is_unsettled || !want_b)
		return rx->err;
	ret = rx_recv(rx, &msg, iov, want_b, &max, n);
	if (ret <= 0)
		return rx_no_read(rx, (int)ret);
	rd.left = (uint64_t)ret;
	if (gx_unlikely(rx_take(rx, &rd, &msg, max))) {
		rx_undo(rx, &rd);
		return rx->err;
	}
	rx->stat.bytes += (uint64_t)ret;
	for (unsigned i = 0; i < rx->nr_pools; i++)
		devmem_pool_look(rx->pool[i]);
	return (int)rd.nr;
}

void devmem_hold(struct devmem_rx *rx, uint32_t ref)
{
	assert(ref - rx->ready < rx->head - rx->ready && rec_at(rx, ref)->refs);
	rec_at(rx, ref)->refs++;
}

void devmem_done(struct devmem_rx *rx, uint32_t ref)
{
	struct devmem_rec *r = rec_at(rx, ref);

	assert(ref - rx->ready < rx->head - rx->ready && r->refs);
	if (!--r->refs && ref == rx->ready)
		rx_advance(rx);
}

/* -- giving back -- */

/* The first tokens that may go, as ranges. Return: ranges. */
static unsigned rx_ranges(struct devmem_rx *rx, struct devmem_range range[], uint32_t *sum)
{
	unsigned n = 0;

	*sum = 0;
	for (uint32_t i = rx->tail; i != rx->ready && *sum < DEVMEM_TOKENS_MAX; i++) {
		const struct devmem_rec *r = rec_at(rx, i);
		uint32_t nr = GX_MIN(r->nr, DEVMEM_TOKENS_MAX - *sum);

		if (!nr)
			continue;
		if (n && range[n - 1].start + range[n - 1].count == r->token)
			range[n - 1].count += nr;
		else if (n == rx->ranges_max)
			break;
		else
			range[n++] = (struct devmem_range){r->token, nr};
		*sum += nr;
	}
	return n;
}

/* The first @nr tokens have gone. Records without a token go along. */
static void rx_gone(struct devmem_rx *rx, uint32_t nr)
{
	rx->tokens -= nr;
	rx->stat.released += nr;
	while (rx->tail != rx->ready) {
		struct devmem_rec *r = rec_at(rx, rx->tail);
		uint32_t n = GX_MIN(r->nr, nr);

		r->token += n;
		r->nr -= n;
		nr -= n;
		if (r->nr)
			break;
		rec_drop(rx, r);
	}
}

static int rx_stuck(struct devmem_rx *rx, int err, const char *why)
{
	rx->is_stuck = true;
	return rx_fail(rx, err, why);
}

/* The kernel released nothing. True: try less, or another time. */
static bool rx_not_gone(struct devmem_rx *rx, int err, unsigned n)
{
	switch (err) {
	case -EAGAIN:
	case -EINTR:
	case -ENOMEM:
		return true;
	case -E2BIG:
	case -EINVAL: /* a kernel with a lower limit than any that gx knows */
		if (n == 1)
			break;
		rx->ranges_max = n / 2;
		return true;
	case 0:
		rx_stuck(rx, -EPROTO, "the kernel does not know tokens that it gave");
		return false;
	}
	rx_stuck(rx, err, "the kernel takes no tokens back");
	return false;
}

/* One system call. False: no other now. */
static bool rx_release(struct devmem_rx *rx)
{
	struct devmem_range range[DEVMEM_RANGES_MAX];
	uint32_t sum;
	unsigned n = rx_ranges(rx, range, &sum);
	int ret;

	if (gx_unlikely(!n))
		return false;
	ret = rx->sys->release(rx->fd, range, n);
	if (gx_unlikely(ret <= 0))
		return rx_not_gone(rx, ret, n) && (ret == -E2BIG || ret == -EINVAL);
	rx->stat.releases++;
	if (gx_unlikely((uint32_t)ret > sum)) {
		rx_stuck(rx, -EPROTO,
			 "the kernel says that it took more tokens back than it was given");
		return false;
	}
	rx->is_unsettled = (uint32_t)ret < sum;
	rx->stat.short_ones += rx->is_unsettled;
	rx_gone(rx, (uint32_t)ret);
	return true;
}

static bool rx_is_due(const struct devmem_rx *rx)
{
	if (rx->tokens >= DEVMEM_BATCH || rx->is_unsettled || rx->head - rx->tail > rx->mask / 2 ||
	    rx->lin_head - rx->lin_tail > rx->lin_b / 2)
		return true;
	for (unsigned i = 0; i < rx->nr_pools; i++)
		if (rx->pool[i]->is_slow)
			return true;
	return false;
}

int devmem_release(struct devmem_rx *rx, bool idle)
{
	unsigned calls = 0;

	if (rx->tail == rx->ready || rx->is_stuck)
		return rx->is_stuck ? rx->err : 0;
	rx_gone(rx, 0);
	while (rx->tokens && calls++ < DEVMEM_CALLS && (idle || rx_is_due(rx)) && rx_release(rx))
		;
	for (unsigned i = 0; i < rx->nr_pools; i++)
		devmem_pool_look(rx->pool[i]);
	return rx->is_stuck ? rx->err : 0;
}
