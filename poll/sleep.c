// SPDX-License-Identifier: Apache-2.0
/*
 * The rare half of sleep.h: the descriptor, the barrier, and the wake of an owner that has armed.
 */
#include "gx_internal/sleep.h"

#include "gx_internal/fork.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

int gx_sleep_open(struct gx_sleep *s)
{
	if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0))
		return -EOPNOTSUPP;
	s->fd = gx_fd_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (s->fd < 0)
		return -errno;
	s->is_open = true;
	return 0;
}

void gx_sleep_close(struct gx_sleep *s)
{
	if (s->is_open)
		gx_fd_close(s->fd);
	*s = (struct gx_sleep){0};
}

/* Read before the word is set: a wake that this read swallows came before, and the owner looks for
 * its work after. A late one is for nothing. */
void gx_sleep_arm(struct gx_sleep *s)
{
	uint64_t n;

	if (read(s->fd, &n, sizeof(n)) < 0)
		n = 0; /* nobody woke it */
	(void)n;
	atomic_store_explicit(&s->armed, true, memory_order_release); /* see gx_sleep_end() */
	syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
}

void gx_sleep_end(struct gx_sleep *s)
{
	const uint64_t one = 1;
	ssize_t n = 0;

	/* Pairs with the release in gx_sleep_arm(): .fd is there. One of several wakers writes. */
	if (atomic_exchange_explicit(&s->armed, false, memory_order_acquire))
		n = write(s->fd, &one, sizeof(one)); /* full: it is readable, too */
	(void)n;
}
