/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A core that its program turns sleeps on a descriptor. gx_core_arm() sets the words that tell others
 * to wake the core, then looks at all that a turn may look at. So work that came before is seen here,
 * and work that comes later wakes. Runs on the thread that turns the core.
 */
#include "core/core.h"
#include "gx_internal/fork.h"
#include "gx_internal/port.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

int core_sleep_open(struct gx_sleep *s)
{
	int ret = s->is_open ? 0 : gx_sleep_open(s);

	if (ret == -EOPNOTSUPP)
		return gx_fail(ret,
			       "the kernel refuses membarrier(2), without which a wake could be "
			       "lost: poll, or allow it in the filter of system calls");
	return ret ? gx_fail(ret, "no descriptor to sleep on: %s", strerror(-ret)) : 0;
}

void core_fd_close(struct gx_core *core)
{
	if (!core->loop.sleep.is_open)
		return;
	gx_fd_close(core->timer);
	gx_fd_close(core->fd);
	gx_sleep_close(&core->loop.sleep);
}

static int fd_watch(int fd, int what)
{
	return epoll_ctl(fd, EPOLL_CTL_ADD, what,
			 &(struct epoll_event){.events = EPOLLIN, .data.fd = what});
}

static int fd_open(struct gx_core *core)
{
	int ret = core_sleep_open(&core->loop.sleep);

	if (ret)
		return ret;
	core->fd = gx_fd_own(epoll_create1(EPOLL_CLOEXEC));
	core->timer = gx_fd_own(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
	if (core->fd < 0 || core->timer < 0 || fd_watch(core->fd, core->loop.sleep.fd) ||
	    fd_watch(core->fd, core->timer))
		return gx_fail(-errno, "no descriptor to sleep on: %s", strerror(errno));
	return 0;
}

/* Each port adds what its packets make readable. */
static int fd_ports(struct gx_core *core)
{
	for (unsigned p = 0; p < core->gx->nr_ports; p++) {
		struct gx_port_slot *s = &core->gx->port[p];
		struct gx_port_queue *q = s->queue[core->index];
		int ret = q->ops->sleep_open(q, core->fd);

		if (ret)
			return gx_fail(ret, "core %u: port %s: no descriptor to sleep on: %s",
				       core->index, s->name, strerror(-ret));
	}
	return 0;
}

GX_EXPORT int gx_core_fd(struct gx_core *core)
{
	int ret;

	if (core->loop.sleep.is_open)
		return core->fd;
	if (core->loop.running)
		return gx_fail(-EBUSY, "gx's own thread turns core %u, and rests by itself",
			       core->index);
	ret = fd_open(core);
	if (!ret)
		ret = fd_ports(core);
	if (ret)
		core_fd_close(core);
	return ret ? ret : core->fd;
}

/* The sleep ends at @until_ns; UINT64_MAX: never by itself. */
static int timer_set(const struct gx_core *core, const struct gx_look *look)
{
	struct itimerspec at = {.it_value.tv_sec = (time_t)(look->until_ns / 1000000000u),
				.it_value.tv_nsec = (long)(look->until_ns % 1000000000u)};

	if (look->until_ns <= look->now_ns)
		return 1;
	if (look->until_ns == UINT64_MAX)
		at = (struct itimerspec){0};
	if (!timerfd_settime(core->timer, TFD_TIMER_ABSTIME, &at, NULL))
		return 0;
	return gx_fail(-errno, "core %u: timer: %s", core->index, strerror(errno));
}

/* What no poller has: memory that was freed, completions and notes that the program has. */
static bool core_has_work(const struct gx_core *core)
{
	return core_drop_due(core) || core->notes.head ||
	       core->comp_head != atomic_load_explicit(&core->comp_tail, memory_order_relaxed);
}

GX_EXPORT int gx_core_arm(struct gx_core *core)
{
	struct gx_look look = {.fd = core->fd, .now_ns = gx_now_ns(), .until_ns = UINT64_MAX};
	int ret;

	if (!core->loop.sleep.is_open)
		return gx_fail(-EINVAL, "gx_core_fd() comes before gx_core_arm()");
	if (gx_core_turn(core, look.now_ns))
		return 1;
	gx_sleep_arm(&core->loop.sleep);
	ret = gx_loop_look(&core->loop, &look);
	if (ret == -EOPNOTSUPP)
		gx_fail(ret,
			"core %u cannot sleep: %s cannot report work while nobody turns; and "
			"gx_core_fd() must come before the connections",
			core->index, look.who);
	if (!ret)
		ret = core_has_work(core) ? 1 : timer_set(core, &look);
	if (ret)
		gx_sleep_disarm(&core->loop.sleep);
	else
		core->loop.turn_ns = 0; /* a long sleep is no stall */
	return ret;
}
