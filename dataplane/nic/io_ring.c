/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An io_uring for a polling core; see io_ring.h. io_ring_open() and io_ring_close() run on the
 * control path, the rest on the polling core.
 */
#include "nic/io_ring.h"

#include "gx_internal/fork.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- system calls ---- */

static int sys_setup(unsigned entries, struct io_uring_params *p)
{
	long ret = syscall(SYS_io_uring_setup, entries, p);

	return ret < 0 ? -errno : gx_fd_own((int)ret);
}

static int sys_enter(int fd, unsigned nr, unsigned flags)
{
	long ret = syscall(SYS_io_uring_enter, fd, nr, 0, flags, NULL, 0);

	return ret < 0 ? -errno : (int)ret;
}

static int sys_reg(int fd, unsigned op, void *arg, unsigned nr)
{
	long ret = syscall(SYS_io_uring_register, fd, op, arg, nr);

	return ret < 0 ? -errno : (int)ret;
}

static int sys_map(int fd, uint64_t off, size_t len, void **out)
{
	void *at =
		mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, (off_t)off);

	if (at == MAP_FAILED)
		return -errno;
	/* A child that had the ring would keep its sockets open. */
	madvise(at, len, MADV_DONTFORK);
	*out = at;
	return 0;
}

static void sys_unmap(void *at, size_t len)
{
	munmap(at, len);
}

static void sys_close(int fd)
{
	gx_fd_close(fd);
}

const struct io_ring_sys io_ring_sys_kernel = {.setup = sys_setup,
					       .enter = sys_enter,
					       .reg = sys_reg,
					       .map = sys_map,
					       .unmap = sys_unmap,
					       .close = sys_close};

/* ---- control path ---- */

void io_ring_refusal(int err, char why[IO_RING_WHY_B])
{
	const char *cure = "look for the limit that this names";

	switch (err) {
	case -ENOSYS:
		cure = "use a kernel with CONFIG_IO_URING, or a container whose seccomp profile "
		       "lets io_uring through";
		break;
	case -EPERM:
	case -EACCES:
		cure = "allow io_uring: sysctl kernel.io_uring_disabled=0, and a seccomp profile "
		       "that lets it through";
		break;
	case -EINVAL:
		cure = "use Linux 6.1 or newer: this one has no ring for a single thread "
		       "(DEFER_TASKRUN)";
		break;
	case -ENOMEM:
		cure = "raise the limit of locked memory (ulimit -l)";
		break;
	}
	snprintf(why, IO_RING_WHY_B, "the kernel gives no io_uring: %s. Cure: %s", strerror(-err),
		 cure);
}

static void ring_point(struct io_ring *r, const struct io_uring_params *p)
{
	uint32_t *array = (uint32_t *)(r->rings + p->sq_off.array);

	r->sq_head = (_Atomic uint32_t *)(r->rings + p->sq_off.head);
	r->sq_tail = (_Atomic uint32_t *)(r->rings + p->sq_off.tail);
	r->sq_flags = (_Atomic uint32_t *)(r->rings + p->sq_off.flags);
	r->sq_mask = p->sq_entries - 1;
	r->cq_head = (_Atomic uint32_t *)(r->rings + p->cq_off.head);
	r->cq_tail = (_Atomic uint32_t *)(r->rings + p->cq_off.tail);
	r->cq_mask = p->cq_entries - 1;
	r->cqe = r->rings + p->cq_off.cqes;
	for (uint32_t i = 0; i < p->sq_entries; i++)
		array[i] = i;
}

static int ring_map(struct io_ring *r, const struct io_uring_params *p)
{
	size_t cq_b = p->cq_off.cqes + ((size_t)p->cq_entries << r->cqe_shift);
	size_t sq_b = p->sq_off.array + p->sq_entries * sizeof(uint32_t);
	void *at;
	int ret;

	if (!(p->features & IORING_FEAT_SINGLE_MMAP))
		return -EINVAL;
	r->rings_b = GX_MAX(cq_b, sq_b);
	ret = r->sys->map(r->fd, IORING_OFF_SQ_RING, r->rings_b, &at);
	if (ret)
		return ret;
	r->rings = at;
	r->sqes_b = p->sq_entries * sizeof(struct io_uring_sqe);
	ret = r->sys->map(r->fd, IORING_OFF_SQES, r->sqes_b, &at);
	if (ret)
		return ret;
	r->sqe = at;
	ring_point(r, p);
	return 0;
}

int io_ring_open(struct io_ring *r, const struct io_ring_cfg *cfg, char why[IO_RING_WHY_B])
{
	/* R_DISABLED: the thread that first enters is the issuer, not this one. */
	struct io_uring_params p = {.flags = IORING_SETUP_CQSIZE | IORING_SETUP_R_DISABLED |
					     IORING_SETUP_SINGLE_ISSUER |
					     IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
				    .cq_entries = cfg->cq_entries};
	int ret;

	if (cfg->is_cqe32)
		p.flags |= IORING_SETUP_CQE32;
	*r = (struct io_ring){.sys = cfg->sys, .fd = -1, .cqe_shift = 4 + cfg->is_cqe32};
	ret = cfg->sys->setup(cfg->entries, &p);
	if (ret >= 0) {
		r->fd = ret;
		ret = ring_map(r, &p);
	}
	if (!ret)
		return 0;
	io_ring_refusal(ret, why);
	io_ring_close(r);
	return ret;
}

void io_ring_close(struct io_ring *r)
{
	if (!r->sys)
		return;
	if (r->sqe)
		r->sys->unmap(r->sqe, r->sqes_b);
	if (r->rings)
		r->sys->unmap(r->rings, r->rings_b);
	if (r->fd >= 0)
		r->sys->close(r->fd);
	*r = (struct io_ring){.fd = -1};
}

/* ---- polling core ---- */

struct io_uring_sqe *io_ring_sqe(struct io_ring *r)
{
	struct io_uring_sqe *sqe;

	/* Pairs with the kernel's release of the head behind its reads. */
	if (r->sq_at - atomic_load_explicit(r->sq_head, memory_order_acquire) > r->sq_mask)
		return NULL;
	sqe = &r->sqe[r->sq_at++ & r->sq_mask];
	memset(sqe, 0, sizeof(*sqe));
	return sqe;
}

void io_ring_void(struct io_ring *r, uint64_t user_data)
{
	uint32_t i = atomic_load_explicit(r->sq_head, memory_order_acquire);

	for (; i != r->sq_at; i++) {
		struct io_uring_sqe *sqe = &r->sqe[i & r->sq_mask];

		if (sqe->user_data == user_data)
			*sqe = (struct io_uring_sqe){
				.opcode = IORING_OP_NOP, .fd = -1, .user_data = user_data};
	}
}

static int ring_fail(struct io_ring *r, int err)
{
	r->err = err;
	switch (err) {
	case -EEXIST:
		r->why = "another thread turned this core before: a ring of io_uring is its first "
			 "thread's";
		break;
	case -EBADR:
		r->why = "the kernel had no memory for completions, and dropped some";
		break;
	default:
		r->why = "the kernel refuses to go on with a ring of io_uring";
	}
	return err;
}

int io_ring_enter(struct io_ring *r)
{
	uint32_t nr, flags;
	int ret = 0;

	if (gx_unlikely(r->err))
		return r->err;
	nr = r->sq_at - atomic_load_explicit(r->sq_head, memory_order_relaxed);
	flags = atomic_load_explicit(r->sq_flags, memory_order_relaxed);
	if (!nr && !(flags & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)))
		return 0;
	if (gx_unlikely(!r->is_mine)) {
		ret = r->sys->reg(r->fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
		if (ret)
			return ring_fail(r, ret);
		r->is_mine = true;
	}
	/* Pairs with the kernel's acquire: entries are filled before the tail moves. */
	atomic_store_explicit(r->sq_tail, r->sq_at, memory_order_release);
	r->enters++;
	ret = r->sys->enter(r->fd, nr, IORING_ENTER_GETEVENTS);
	/* What was not taken stays in the queue, and goes with the next turn. */
	if (gx_likely(ret >= 0) || ret == -EAGAIN || ret == -EBUSY || ret == -EINTR)
		return 0;
	return ring_fail(r, ret);
}
