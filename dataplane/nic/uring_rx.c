/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets that io_uring receives from; see uring_rx.h. A socket whose receive is to be handed to the
 * kernel, or to be cancelled, stands in a list that the turn walks:
 *
 *   FREE --> WANTS --> ARMED --> ENDED --> FREE
 *              ^  \     |  |       ^
 *              |   '----|--|-------'  it leaves
 *              '-- DRY <'  the pool was empty
 *
 * Runs on the polling core; uring_rx_make() and uring_rx_close() on the control path.
 */
#include "nic/uring_rx.h"
#include "nic/zcrx.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CANCEL_BIT (1ull << 32) /* of the user data, beside the socket */

static inline bool uring_may_go(uint8_t from, enum uring_state to)
{
	static const uint8_t may[] = {
		[URING_FREE] = 1 << URING_WANTS,
		[URING_WANTS] = 1 << URING_ARMED | 1 << URING_ENDED,
		[URING_DRY] = 1 << URING_ARMED | 1 << URING_ENDED,
		[URING_ARMED] = 1 << URING_WANTS | 1 << URING_DRY | 1 << URING_ENDED,
		[URING_ENDED] = 1 << URING_FREE,
	};

	return may[from] >> to & 1;
}

static void uring_goto(struct uring_sock *s, enum uring_state to)
{
	assert(uring_may_go(s->state, to));
	s->state = (uint8_t)to;
}

/* ---- control path ---- */

static void recs_init(struct uring_rx *rx, uint32_t depth)
{
	rx->nr_recs = rx->nr_free = depth;
	for (uint32_t i = 0; i < depth; i++)
		rx->rec[i].next = i + 1 < depth ? i + 1 : URING_NONE;
	rx->list_head = rx->list_tail = URING_NONE;
}

int uring_rx_make(const struct io_ring_cfg *cfg, uint32_t nr_socks, uint32_t depth,
		  struct uring_rx **out, char why[IO_RING_WHY_B])
{
	struct uring_rx *rx = calloc(1, sizeof(*rx));
	int ret = -ENOMEM;

	if (rx) {
		rx->nr_socks = nr_socks;
		rx->sock = calloc(nr_socks, sizeof(rx->sock[0]));
		rx->rec = calloc(depth, sizeof(rx->rec[0]));
	}
	snprintf(why, IO_RING_WHY_B, "no memory for %u sockets and %u fragments", nr_socks, depth);
	if (rx && rx->sock && rx->rec) {
		recs_init(rx, depth);
		ret = io_ring_open(&rx->ring, cfg, why);
	}
	if (ret)
		uring_rx_close(rx);
	else
		*out = rx;
	return ret;
}

void uring_rx_close(struct uring_rx *rx)
{
	if (!rx)
		return;
	io_ring_close(&rx->ring);
	zcrx_close(rx);
	free(rx->sock);
	free(rx->rec);
	free(rx);
}

/* ---- records ---- */

void uring_rec_free(struct uring_rx *rx, uint32_t i)
{
	rx->rec[i].next = rx->rec_free;
	rx->rec_free = i;
	rx->nr_free++;
}

static uint32_t rec_alloc(struct uring_rx *rx)
{
	uint32_t i = rx->rec_free;

	rx->rec_free = rx->rec[i].next;
	rx->nr_free--;
	return i;
}

/* Nobody reads it, and all of it is pulled. */
static void rec_give(struct uring_rx *rx, uint32_t i)
{
	rx->nr_out--;
	zcrx_give(rx, i);
}

static void rec_push(struct uring_rx *rx, struct uring_sock *s, uint32_t i)
{
	rx->rec[i].next = URING_NONE;
	if (s->head == URING_NONE)
		s->head = i;
	else
		rx->rec[s->tail].next = i;
	s->tail = i;
	rx->nr_out++;
}

static void rec_skip(struct uring_rec *rec)
{
	rec->off += rec->left;
	rec->left = 0;
}

/* Bytes that came and that nobody will pull. */
static void recs_drop(struct uring_rx *rx, struct uring_sock *s)
{
	while (s->head != URING_NONE) {
		uint32_t i = s->head;

		s->head = rx->rec[i].next;
		rec_skip(&rx->rec[i]);
		if (!rx->rec[i].refs)
			rec_give(rx, i);
	}
}

/* ---- the list of sockets that want something of the kernel ---- */

static void sock_list(struct uring_rx *rx, uint32_t i)
{
	struct uring_sock *s = &rx->sock[i];

	if (s->is_listed)
		return;
	s->is_listed = true;
	s->next = URING_NONE;
	if (rx->list_head == URING_NONE)
		rx->list_head = i;
	else
		rx->sock[rx->list_tail].next = i;
	rx->list_tail = i;
	rx->nr_listed++;
}

static uint32_t sock_unlist(struct uring_rx *rx)
{
	uint32_t i = rx->list_head;

	rx->list_head = rx->sock[i].next;
	rx->sock[i].is_listed = false;
	rx->nr_listed--;
	return i;
}

static void sock_want(struct uring_rx *rx, uint32_t i, enum uring_state how)
{
	uring_goto(&rx->sock[i], how);
	sock_list(rx, i);
}

static void sock_cancel(struct uring_rx *rx, uint32_t i)
{
	struct uring_sock *s = &rx->sock[i];

	if (s->state != URING_ARMED || s->cancel_due || s->cancel_out || rx->ring.err)
		return;
	s->cancel_due = true;
	sock_list(rx, i);
}

static void sock_fail(struct uring_rx *rx, uint32_t i, int err, const char *why)
{
	struct uring_sock *s = &rx->sock[i];

	if (!s->err) {
		s->err = err;
		s->why = why;
	}
	sock_cancel(rx, i);
}

/* False: the queue is full. */
static bool sock_submit(struct uring_rx *rx, uint32_t i)
{
	struct uring_sock *s = &rx->sock[i];
	struct io_uring_sqe *sqe = io_ring_sqe(&rx->ring);

	if (!sqe)
		return false;
	if (s->cancel_due) {
		sqe->opcode = IORING_OP_ASYNC_CANCEL;
		sqe->fd = -1;
		sqe->addr = i;
		sqe->user_data = i | CANCEL_BIT;
		s->cancel_due = false;
		s->cancel_out = true;
		return true;
	}
	sqe->fd = s->fd;
	sqe->user_data = i;
	zcrx_prep(rx, sqe);
	uring_goto(s, URING_ARMED);
	return true;
}

/* Each of the list once. */
static void list_walk(struct uring_rx *rx)
{
	for (uint32_t n = GX_MIN(rx->nr_listed, (uint32_t)URING_TURN); n; n--) {
		uint32_t i = sock_unlist(rx);
		struct uring_sock *s = &rx->sock[i];

		if (s->is_forgotten && (!s->cancel_due || rx->ring.err)) {
			if (!uring_rx_left(rx, i))
				sock_list(rx, i);
			continue;
		}
		if (!s->cancel_due && s->state != URING_WANTS && s->state != URING_DRY)
			continue;
		if (!sock_submit(rx, i)) {
			sock_list(rx, i);
			return;
		}
		if (s->is_forgotten)
			sock_list(rx, i);
	}
}

/* ---- completions ---- */

/* The kernel has the receive no more. */
static void recv_ended(struct uring_rx *rx, uint32_t i, int res)
{
	struct uring_sock *s = &rx->sock[i];

	s->cancel_due = false;
	if (s->is_leaving || s->err) {
		uring_goto(s, URING_ENDED);
		return;
	}
	switch (res) {
	case 0:
		s->err = -ESHUTDOWN;
		s->why = "the peer has closed the socket";
		break;
	case -ENOBUFS:
	case -ENOMEM:
		rx->stat.dry++;
		sock_want(rx, i, URING_DRY);
		return;
	case -EAGAIN:
	case -EINTR:
	case -ENOSPC: /* the queue of completions was full */
		sock_want(rx, i, URING_WANTS);
		return;
	case -EFAULT:
		s->err = res;
		s->why = "the kernel could not place what came: it lies in memory of another use, "
			 "or of a device";
		break;
	default:
		if (res > 0) { /* the kernel let go of it, as it may: its queue was full */
			sock_want(rx, i, URING_WANTS);
			return;
		}
		s->err = res;
		s->why = "the socket broke";
	}
	uring_goto(s, URING_ENDED);
}

static void bytes_take(struct uring_rx *rx, uint32_t i, const struct io_uring_cqe *cqe)
{
	struct uring_sock *s = &rx->sock[i];
	uint32_t k = rec_alloc(rx);
	struct uring_rec *rec = &rx->rec[k];
	int ret;

	*rec = (struct uring_rec){.sock = i};
	ret = zcrx_place(rx, cqe, rec);
	if (ret <= 0) {
		uring_rec_free(rx, k);
		if (ret)
			sock_fail(rx, i, ret, "the kernel's completion makes no sense");
		return;
	}
	rx->stat.frags++;
	rx->stat.bytes += rec->left;
	if (gx_likely(rec->left && !s->is_leaving && !s->err)) {
		rec_push(rx, s, k);
		return;
	}
	rec_skip(rec);
	zcrx_give(rx, k);
}

static void cqe_take(struct uring_rx *rx, const struct io_uring_cqe *cqe)
{
	uint64_t i = cqe->user_data & ~CANCEL_BIT;
	struct uring_sock *s = i < rx->nr_socks ? &rx->sock[i] : NULL;

	if (gx_unlikely(s && cqe->user_data & CANCEL_BIT && s->cancel_out)) {
		s->cancel_out = false;
		return;
	}
	if (gx_unlikely(!s || cqe->user_data & CANCEL_BIT || s->state != URING_ARMED)) {
		rx->stat.strays++;
		return;
	}
	bytes_take(rx, (uint32_t)i, cqe);
	if (gx_unlikely(!(cqe->flags & IORING_CQE_F_MORE)))
		recv_ended(rx, (uint32_t)i, cqe->res);
}

/* ---- the caller's calls ---- */

int uring_rx_add(struct uring_rx *rx, int fd)
{
	for (uint32_t i = 0; i < rx->nr_socks; i++) {
		struct uring_sock *s = &rx->sock[i];

		if (s->state != URING_FREE)
			continue;
		*s = (struct uring_sock){
			.state = URING_FREE, .fd = fd, .head = URING_NONE, .tail = URING_NONE};
		rx->nr_used++;
		sock_want(rx, i, URING_WANTS);
		return (int)i;
	}
	return -ENOSPC;
}

bool uring_rx_turn(struct uring_rx *rx)
{
	const struct io_uring_cqe *cqe = NULL;
	unsigned n = 0;

	zcrx_flush(rx);
	if (rx->nr_listed)
		list_walk(rx);
	if (gx_unlikely(io_ring_enter(&rx->ring)))
		return false;
	while (n < URING_TURN && rx->nr_free && (cqe = io_ring_cqe(&rx->ring))) {
		cqe_take(rx, cqe);
		io_ring_seen(&rx->ring);
		n++;
	}
	rx->stat.full += !rx->nr_free;
	return n > 0;
}

int uring_rx_pull(struct uring_rx *rx, uint32_t sock, uint64_t want_b, struct uring_frag frags[],
		  unsigned n)
{
	struct uring_sock *s = &rx->sock[sock];
	unsigned nr = 0;

	while (nr < n && want_b && s->head != URING_NONE) {
		struct uring_rec *rec = &rx->rec[s->head];
		uint32_t len = (uint32_t)GX_MIN(want_b, rec->left);

		frags[nr++] =
			(struct uring_frag){.src = rx->pool + rec->off, .len = len, .ref = s->head};
		rec->refs++;
		s->held++;
		rec->off += len;
		rec->left -= len;
		want_b -= len;
		if (!rec->left)
			s->head = rec->next;
	}
	if (nr || s->head != URING_NONE)
		return (int)nr;
	return s->err ? s->err : rx->ring.err;
}

const char *uring_why(const struct uring_rx *rx, uint32_t sock)
{
	return rx->sock[sock].err ? rx->sock[sock].why : rx->ring.why;
}

void uring_hold(struct uring_rx *rx, uint32_t ref)
{
	assert(ref < rx->nr_recs && rx->rec[ref].refs);
	rx->rec[ref].refs++;
	rx->sock[rx->rec[ref].sock].held++;
}

void uring_done(struct uring_rx *rx, uint32_t ref)
{
	struct uring_rec *rec = &rx->rec[ref];

	assert(ref < rx->nr_recs && rec->refs);
	rx->sock[rec->sock].held--;
	if (!--rec->refs && !rec->left)
		rec_give(rx, ref);
}

void uring_rx_leave(struct uring_rx *rx, uint32_t sock)
{
	struct uring_sock *s = &rx->sock[sock];

	assert(s->state != URING_FREE);
	s->is_leaving = true;
	recs_drop(rx, s);
	if (s->state == URING_ARMED) {
		io_ring_void(&rx->ring, sock);
		sock_fail(rx, sock, -ECANCELED, "it left");
	} else if (s->state != URING_ENDED) {
		uring_goto(s, URING_ENDED);
	}
}

bool uring_rx_left(struct uring_rx *rx, uint32_t sock)
{
	struct uring_sock *s = &rx->sock[sock];

	if (s->held || s->is_listed)
		return false;
	/* A ring that is broken brings no completion: the kernel does nothing for it any more. */
	if (!rx->ring.err && (s->state != URING_ENDED || s->cancel_out))
		return false;
	if (s->state == URING_ARMED)
		uring_goto(s, URING_ENDED);
	uring_goto(s, URING_FREE);
	rx->nr_used--;
	return true;
}

void uring_rx_forget(struct uring_rx *rx, uint32_t sock)
{
	uring_rx_leave(rx, sock);
	rx->sock[sock].is_forgotten = true;
	sock_list(rx, sock);
}
