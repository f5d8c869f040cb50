// SPDX-License-Identifier: Apache-2.0
/*
 * The control thread's io_uring method: one entry of the queue for each operation. On a
 * non-blocking descriptor the kernel answers EAGAIN; then the method polls it and tries again.
 * uring.c calls this on the control thread.
 */
#include "uring_priv.h"

#include "gx_internal/fork.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <liburing.h>

#define RING_SQ_SIZE 256  /* no limit: the method submits a full queue at once */
#define RING_CQ_SIZE 4096 /* no limit: the kernel keeps further ones */
#define RING_TRY_S   1	  /* time for the no-op that tests the ring */

struct ring_state {
	struct io_uring ring;
	bool full; /* some entries found no room in the queue: try them again */
};

/* State of an operation under way, bits in due_ns. */
#define RING_WAITS	   1u /* a poll is under way in its place: the descriptor is non-blocking */
#define RING_CANCELED	   2u
#define RING_UNSENT	   4u /* its entry found no room in the queue */
#define RING_CANCEL_UNSENT 8u /* its cancel found no room in the queue */

/* Submits a full queue. NULL: the kernel took nothing, as it may when completions pile up. */
static struct io_uring_sqe *ring_sqe(struct gx_uring *u)
{
	struct ring_state *e = u->state;
	struct io_uring_sqe *sqe = io_uring_get_sqe(&e->ring);

	if (sqe)
		return sqe;
	io_uring_submit(&e->ring);
	sqe = io_uring_get_sqe(&e->ring);
	if (!sqe)
		e->full = true;
	return sqe;
}

static void ring_prep(struct io_uring_sqe *sqe, struct gx_io *io)
{
	switch (io->op) {
	case GX_IO_ACCEPT:
		io_uring_prep_accept(sqe, io->fd, io->addr, io_addr_len(io), SOCK_CLOEXEC);
		break;
	case GX_IO_CONNECT:
		io_uring_prep_connect(sqe, io->fd, io->addr, io->addr_len);
		break;
	case GX_IO_RECV:
		io_uring_prep_recv(sqe, io->fd, io->buf, io_len(io), 0);
		break;
	case GX_IO_SEND:
		io_uring_prep_send(sqe, io->fd, io->buf, io_len(io), MSG_NOSIGNAL);
		break;
	case GX_IO_RECVMSG:
		io_uring_prep_recvmsg(sqe, io->fd, io->msg, MSG_CMSG_CLOEXEC);
		break;
	case GX_IO_SENDMSG:
		io_uring_prep_sendmsg(sqe, io->fd, io->msg, MSG_NOSIGNAL);
		break;
	default:
		io_uring_prep_poll_add(sqe, io->fd, io->events);
		break;
	}
}

/* Queues @io, or the poll in its place. */
static void ring_push(struct gx_uring *u, struct gx_io *io)
{
	struct io_uring_sqe *sqe = ring_sqe(u);

	if (!sqe) {
		io->due_ns |= RING_UNSENT;
		return;
	}
	io->due_ns &= ~(uint64_t)RING_UNSENT;
	if (io->due_ns & RING_WAITS)
		io_uring_prep_poll_add(sqe, io->fd, io_events(io));
	else
		ring_prep(sqe, io);
	io_uring_sqe_set_data(sqe, io);
}

/* An operation submitted later at this address stands after the cancel in the queue, so the cancel
 * does not hit it. */
static void ring_push_cancel(struct gx_uring *u, struct gx_io *io)
{
	struct io_uring_sqe *sqe = ring_sqe(u);

	if (!sqe) {
		io->due_ns |= RING_CANCEL_UNSENT;
		return;
	}
	io->due_ns &= ~(uint64_t)RING_CANCEL_UNSENT;
	io_uring_prep_cancel(sqe, io, 0);
	io_uring_sqe_set_data(sqe, NULL);
}

static void ring_cancel(struct gx_uring *u, struct gx_io *io)
{
	if (io->due_ns & RING_UNSENT) {
		gx_uring_fd_end(u, io, -ECANCELED);
		return;
	}
	if (io->due_ns & RING_CANCELED)
		return;
	io->due_ns |= RING_CANCELED;
	ring_push_cancel(u, io);
}

/* Queue the entries that found no room. The caller has taken completions, so there is some now. */
static void ring_retry(struct gx_uring *u)
{
	struct ring_state *e = u->state;

	e->full = false;
	for (unsigned fd = 0; fd < u->nr_fds; fd++) {
		for (struct gx_io *io = u->fds[fd].first; io; io = io->next) {
			if (io->due_ns & RING_UNSENT)
				ring_push(u, io);
			else if (io->due_ns & RING_CANCEL_UNSENT)
				ring_push_cancel(u, io);
		}
	}
}

/* Did the kernel refuse to wait, as on a non-blocking descriptor? */
static bool ring_must_wait(const struct gx_io *io, int res)
{
	return res == -EAGAIN || res == -EINTR || (res == -EINPROGRESS && io->op == GX_IO_CONNECT);
}

/* The poll in place of @io has ended. A connect is over; anything else is queued, unless
 * cancelled. */
static void ring_polled(struct gx_uring *u, struct gx_io *io, int res)
{
	io->due_ns &= ~(uint64_t)RING_WAITS;
	if (res < 0)
		gx_uring_fd_end(u, io, res);
	else if (io->due_ns & RING_CANCELED)
		gx_uring_fd_end(u, io, -ECANCELED);
	else if (io->op == GX_IO_CONNECT)
		gx_uring_fd_end(u, io, gx_uring_connected(io->fd));
	else
		ring_push(u, io);
}

static void ring_completed(struct gx_uring *u, struct gx_io *io, int res)
{
	if (io->due_ns & RING_WAITS) {
		ring_polled(u, io, res);
	} else if (!ring_must_wait(io, res)) {
		gx_uring_fd_end(u, io, res);
	} else if (io->due_ns & RING_CANCELED) {
		gx_uring_fd_end(u, io, -ECANCELED);
	} else {
		io->due_ns |= RING_WAITS;
		ring_push(u, io);
	}
}

/* Bounded: each completion belongs to an operation under way, and done() is not called here. */
static void ring_reap(struct gx_uring *u)
{
	struct ring_state *e = u->state;
	struct io_uring_cqe *cqe;

	while (io_uring_peek_cqe(&e->ring, &cqe) == 0) {
		struct gx_io *io = io_uring_cqe_get_data(cqe);
		int res = cqe->res;

		io_uring_cqe_seen(&e->ring, cqe);
		if (io) /* NULL: the answer to a cancel */
			ring_completed(u, io, res);
	}
}

static int ring_wait(struct gx_uring *u, uint64_t wait_ns)
{
	struct ring_state *e = u->state;
	struct __kernel_timespec ts = {.tv_sec = (long long)(wait_ns / 1000000000u),
				       .tv_nsec = (long long)(wait_ns % 1000000000u)};
	struct io_uring_cqe *cqe;
	int ret;

	if (wait_ns == 0 || e->full)
		ret = io_uring_submit(&e->ring);
	else
		ret = io_uring_submit_and_wait_timeout(&e->ring, &cqe, 1, &ts, NULL);
	ring_reap(u);
	if (e->full)
		ring_retry(u);
	if (ret == -ETIME || ret == -EINTR || ret == -EBUSY || ret == -EAGAIN)
		return 0;
	return GX_MIN(ret, 0);
}

/* The sysctl that forbids io_uring. 0: io_uring is allowed, or there is no such sysctl. */
static int ring_sysctl(void)
{
	FILE *f = fopen("/proc/sys/kernel/io_uring_disabled", "re");
	int val = 0;

	if (!f)
		return 0;
	if (fscanf(f, "%d", &val) != 1)
		val = 0;
	fclose(f);
	return val;
}

static void ring_explain(const char *call, int ret, char why[URING_WHY_MAX])
{
	struct rlimit lim = {0};
	int val = ring_sysctl();

	if (ret == -EPERM && val != 0)
		snprintf(why, URING_WHY_MAX, "sysctl kernel.io_uring_disabled is %d", val);
	else if (ret == -EPERM || ret == -EACCES)
		snprintf(why, URING_WHY_MAX,
			 "a seccomp filter or security policy forbids it, "
			 "as containers' default profiles do");
	else if (ret == -ENOSYS)
		snprintf(why, URING_WHY_MAX,
			 "the kernel is too old or built without it, or a "
			 "seccomp filter hides it");
	else if (ret == -ENOMEM && getrlimit(RLIMIT_MEMLOCK, &lim) == 0)
		snprintf(why, URING_WHY_MAX,
			 "out of memory, or RLIMIT_MEMLOCK too low (%llu KiB; see ulimit -l)",
			 (unsigned long long)lim.rlim_cur / 1024);
	else
		snprintf(why, URING_WHY_MAX, "%s: %s", call, strerror(-ret));
}

static bool ring_ops_supported(struct io_uring *ring)
{
	static const int ops[] = {IORING_OP_ACCEPT,   IORING_OP_CONNECT,     IORING_OP_RECV,
				  IORING_OP_SEND,     IORING_OP_RECVMSG,     IORING_OP_SENDMSG,
				  IORING_OP_POLL_ADD, IORING_OP_ASYNC_CANCEL};
	struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
	bool all = probe != NULL;

	for (unsigned i = 0; all && i < GX_ARRAY_SIZE(ops); i++)
		all = io_uring_opcode_supported(probe, ops[i]) != 0;
	if (probe)
		io_uring_free_probe(probe);
	return all;
}

/* A ring that can be set up but not entered would leave the control thread deaf. A no-op tests
 * it. */
static int ring_try(struct io_uring *ring)
{
	struct __kernel_timespec ts = {.tv_sec = RING_TRY_S};
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	struct io_uring_cqe *cqe;
	int ret;

	if (!sqe)
		return -EBUSY;
	io_uring_prep_nop(sqe);
	do
		ret = io_uring_submit_and_wait_timeout(ring, &cqe, 1, &ts, NULL);
	while (ret == -EINTR);
	if (ret < 0)
		return ret;
	ret = io_uring_peek_cqe(ring, &cqe);
	if (!ret)
		io_uring_cqe_seen(ring, cqe);
	return ret;
}

static int ring_setup(struct io_uring *ring, char why[URING_WHY_MAX])
{
	const unsigned need = IORING_FEAT_EXT_ARG | IORING_FEAT_NODROP;
	struct io_uring_params p = {.flags = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP,
				    .cq_entries = RING_CQ_SIZE};
	int ret = io_uring_queue_init_params(RING_SQ_SIZE, ring, &p);

	if (ret) {
		ring_explain("io_uring_setup", ret, why);
		return ret;
	}
	if ((p.features & need) != need || !ring_ops_supported(ring)) {
		snprintf(why, URING_WHY_MAX, "the kernel's io_uring is too old (5.11 is needed)");
		ret = -EOPNOTSUPP;
	} else {
		ret = ring_try(ring);
		if (ret)
			ring_explain("io_uring_enter", ret, why);
	}
	if (ret) {
		io_uring_queue_exit(ring);
		return ret;
	}
	/* In a child of fork() the ring would keep our sockets open, even after our death. So the
	 * child gets neither the descriptor nor the mappings of the ring. */
	io_uring_ring_dontfork(ring);
	gx_fd_own(ring->ring_fd);
	return 0;
}

static int ring_open(struct gx_uring *u, char why[URING_WHY_MAX])
{
	struct ring_state *e = calloc(1, sizeof(*e));
	int ret;

	if (!e) {
		snprintf(why, URING_WHY_MAX, "out of memory");
		return -ENOMEM;
	}
	ret = ring_setup(&e->ring, why);
	if (ret) {
		free(e);
		return ret;
	}
	u->state = e;
	return 0;
}

static void ring_close(struct gx_uring *u)
{
	struct ring_state *e = u->state;

	gx_fd_forget(e->ring.ring_fd);
	io_uring_queue_exit(&e->ring);
	free(e);
}

const struct uring_ops gx_uring_ring_ops = {
	.name = "io_uring",
	.open = ring_open,
	.close = ring_close,
	.start = ring_push,
	.cancel = ring_cancel,
	.wait = ring_wait,
};
