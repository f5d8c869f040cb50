/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scripted kernel of io_uring; see ring_script.h.
 */
#include "nic/ring_script.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Where the words of the rings are. */
enum { SQ_HEAD = 0, SQ_TAIL = 64, SQ_FLAGS = 128, CQ_HEAD = 192, CQ_TAIL = 256, CQES = 512 };

static struct ring_script *the;

uint64_t rs_rnd(struct ring_script *s)
{
	uint64_t x = s->rnd += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

char rs_byte(unsigned sock, uint64_t pos)
{
	return (char)((pos * 2654435761u >> 13) + sock * 89 + pos);
}

static _Atomic uint32_t *word(const struct ring_script *s, unsigned at)
{
	return (_Atomic uint32_t *)(s->rings + at);
}

void rs_flag(struct ring_script *s, uint32_t flag)
{
	atomic_fetch_or(word(s, SQ_FLAGS), flag);
}

/* ---- completions ---- */

bool rs_full(const struct ring_script *s)
{
	return atomic_load(word(s, CQ_TAIL)) - atomic_load(word(s, CQ_HEAD)) >= s->nr_cq;
}

struct io_uring_cqe *rs_post(struct ring_script *s, uint64_t data, int res, uint32_t flags)
{
	uint32_t at = atomic_load(word(s, CQ_TAIL));
	struct io_uring_cqe *cqe;

	if (rs_full(s)) {
		assert(s->nr_late < RS_LATE);
		s->late[s->nr_late++] = (struct rs_late){data, res, flags};
		rs_flag(s, IORING_SQ_CQ_OVERFLOW);
		return NULL;
	}
	cqe = (struct io_uring_cqe *)(s->rings + CQES + (size_t)(at & (s->nr_cq - 1)) * s->cqe_b);
	memset(cqe, 0, s->cqe_b);
	cqe->user_data = data;
	cqe->res = res;
	cqe->flags = flags;
	atomic_store(word(s, CQ_TAIL), at + 1);
	return cqe;
}

static void late_post(struct ring_script *s)
{
	unsigned n = s->nr_late, i = 0;

	atomic_fetch_and(word(s, SQ_FLAGS), ~(uint32_t)IORING_SQ_CQ_OVERFLOW);
	s->nr_late = 0;
	while (i < n && !rs_full(s)) {
		rs_post(s, s->late[i].data, s->late[i].res, s->late[i].flags);
		i++;
	}
	memmove(s->late, s->late + i, (n - i) * sizeof(s->late[0]));
	s->nr_late = n - i;
	if (s->nr_late)
		rs_flag(s, IORING_SQ_CQ_OVERFLOW);
}

void rs_end(struct ring_script *s, unsigned sock, int res, uint32_t flags)
{
	assert(s->sock[sock].is_armed);
	s->sock[sock].is_armed = false;
	rs_post(s, s->sock[sock].data, res, flags);
}

/* ---- system calls ---- */

static int rs_setup(unsigned entries, struct io_uring_params *p)
{
	struct ring_script *s = the;

	if (s->setup_err)
		return s->setup_err;
	s->flags = p->flags;
	s->cqe_b = p->flags & IORING_SETUP_CQE32 ? 32 : 16;
	s->nr_sq = p->sq_entries = entries;
	s->nr_cq = p->cq_entries;
	p->features = IORING_FEAT_SINGLE_MMAP;
	p->sq_off.head = SQ_HEAD;
	p->sq_off.tail = SQ_TAIL;
	p->sq_off.flags = SQ_FLAGS;
	p->sq_off.array = CQES + s->nr_cq * s->cqe_b;
	p->cq_off.head = CQ_HEAD;
	p->cq_off.tail = CQ_TAIL;
	p->cq_off.cqes = CQES;
	s->nr_open++;
	return RS_FD;
}

static int rs_map(int fd, uint64_t off, size_t len, void **out)
{
	struct ring_script *s = the;

	assert(fd == RS_FD);
	*out = aligned_alloc(64, GX_ALIGN_UP(len, 64));
	assert(*out);
	memset(*out, 0, len);
	if (off == IORING_OFF_SQES)
		s->sqe = *out;
	else
		s->rings = *out;
	return 0;
}

static void rs_unmap(void *at, size_t len)
{
	free(at);
}

static void rs_shut(int fd)
{
	assert(fd == RS_FD);
	the->nr_open--;
	the->rings = NULL;
}

static int rs_reg(int fd, unsigned op, void *arg, unsigned nr)
{
	struct ring_script *s = the;

	assert(fd == RS_FD);
	if (op == IORING_REGISTER_ENABLE_RINGS) {
		s->is_on = !s->enable_err;
		return s->enable_err;
	}
	if (s->reg_err)
		return s->reg_err;
	return s->more ? s->more(s, op, arg, nr) : -EINVAL;
}

static void cancel_take(struct ring_script *s, const struct io_uring_sqe *q)
{
	int res = -ENOENT;

	s->cancels++;
	for (unsigned i = 0; i < RS_SOCKS; i++)
		if (s->sock[i].is_armed && s->sock[i].data == q->addr && s->is_slow) {
			res = -EALREADY;
		} else if (s->sock[i].is_armed && s->sock[i].data == q->addr) {
			rs_end(s, i, -ECANCELED, 0);
			res = 0;
		}
	rs_post(s, q->user_data, res, 0);
}

static void sqe_take(struct ring_script *s, const struct io_uring_sqe *q)
{
	if (q->opcode == IORING_OP_ASYNC_CANCEL) {
		cancel_take(s, q);
		return;
	}
	if (q->opcode == IORING_OP_NOP) {
		rs_post(s, q->user_data, 0, 0);
		return;
	}
	if (q->fd < 0 || q->fd >= RS_SOCKS || s->sock[q->fd].is_armed ||
	    !(q->ioprio & IORING_RECV_MULTISHOT)) {
		s->nr_bad++;
		return;
	}
	s->sock[q->fd].is_armed = true;
	s->sock[q->fd].armed++;
	s->sock[q->fd].data = q->user_data;
	s->sock[q->fd].opcode = q->opcode;
}

static int rs_enter(int fd, unsigned nr, unsigned flags)
{
	struct ring_script *s = the;
	uint32_t head;

	assert(fd == RS_FD && s->is_on && flags & IORING_ENTER_GETEVENTS);
	s->enters++;
	if (s->enter_err)
		return s->enter_err;
	head = atomic_load(word(s, SQ_HEAD));
	if (atomic_load(word(s, SQ_TAIL)) - head != nr || nr > s->nr_sq)
		s->nr_bad++;
	for (unsigned i = 0; i < nr; i++, head++)
		sqe_take(s, &s->sqe[head & (s->nr_sq - 1)]);
	atomic_store(word(s, SQ_HEAD), head);
	atomic_fetch_and(word(s, SQ_FLAGS), ~(uint32_t)IORING_SQ_TASKRUN);
	late_post(s);
	if (s->work)
		s->work(s);
	return (int)nr;
}

const struct io_ring_sys ring_script_sys = {.setup = rs_setup,
					    .enter = rs_enter,
					    .reg = rs_reg,
					    .map = rs_map,
					    .unmap = rs_unmap,
					    .close = rs_shut};

void rs_open(struct ring_script *s, uint64_t seed)
{
	memset(s, 0, sizeof(*s));
	s->rnd = seed;
	the = s;
}

void rs_close(struct ring_script *s)
{
	assert(!s->nr_open);
	the = NULL;
}
