/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The listening sockets of a context. On the control thread.
 */
#include "control/ctl.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/resource.h>
#include <unistd.h>

#define CTL_LOG_MAX 10 /* lines a second of one kind */

bool ctl_may_log(struct ctl_rate *rate)
{
	uint64_t now_ns = gx_now_ns();

	if (now_ns - rate->start_ns >= 1000000000u)
		*rate = (struct ctl_rate){.start_ns = now_ns};
	return rate->nr++ < CTL_LOG_MAX;
}

void ctl_bad(struct ctl *ctl, const char *fmt, ...)
{
	char text[CTL_TEXT_MAX];
	va_list ap;

	gx_stat_add(&ctl->gx->ctl_stats, GX_STAT_CTL_BAD, 1);
	if (!ctl_may_log(&ctl->bad_rate))
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	gx_debug("control: %s", text);
}

/* Keep a descriptor for the time when no other is left. */
void listener_spare(struct gx_listener *l)
{
	if (l->spare < 0 && listener_is_tcp(l))
		l->spare = gx_fd_own(fcntl(l->fd, F_DUPFD_CLOEXEC, 0));
}

bool listener_is_tcp(const struct gx_listener *l)
{
	return l->turn_away;
}

/* Out of descriptors. Tell one waiting client a tick; the others wait for a free descriptor. */
static void listener_starved(struct gx_listener *l, int err)
{
	int fd;

	l->ctl->starved_ns = gx_now_ns();
	if (ctl_may_log(&l->ctl->fds_rate))
		gx_warn("a client cannot be let in: %s: raise ulimit -n, which is for %s",
			strerror(-err), err == -ENFILE ? "all processes" : "this process");
	if (!listener_is_tcp(l) || l->spare < 0)
		return;
	gx_fd_close(l->spare);
	l->spare = -1;
	fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0)
		l->turn_away(l->ctl, fd);
	listener_spare(l);
}

static void listener_free(struct gx_listener *l)
{
	if (l->spare >= 0)
		gx_fd_close(l->spare);
	gx_fd_close(l->fd);
	if (l->path[0])
		unlink(l->path);
	free(l);
}

static void listener_drop(struct gx_listener *l)
{
	struct gx_listener **p;

	for (p = &l->ctl->listeners; *p != l; p = &(*p)->next)
		;
	*p = l->next;
	listener_free(l);
}

/* Has the program heard of this client, or is it of a listener that has no name for the program? */
static bool client_is_informed(const struct gx_listener *l, const struct ctl_conn *cc)
{
	return !l->held || cc->was_up || (cc->conn && cc->conn->asked);
}

static void listener_forget(struct gx_listener *l)
{
	struct ctl *ctl = l->ctl;

	ctl->inside++;
	for (struct ctl_conn *cc = ctl->conns; cc; cc = cc->next) {
		if (cc->came.listener != l)
			continue;
		cc->came.listener = NULL;
		if (ctl_conn_is_live(cc) && !client_is_informed(l, cc))
			ctl_conn_judge(cc, gx_refuse(GX_REASON_NO_SERVER, -ECONNREFUSED,
						     "the server has stopped to listen there"));
	}
	for (struct gx_conn *c = ctl->gx->conns; c; c = c->next)
		if (atomic_load_explicit(&c->listener, memory_order_relaxed) == l)
			atomic_store_explicit(&c->listener, NULL, memory_order_relaxed);
	ctl->inside--;
}

/* Does not wait: if an accept is under way, its callback does the rest. */
void listener_close(struct gx_listener *l)
{
	if (l->closing)
		return;
	l->closing = true;
	listener_forget(l);
	shutdown(l->fd, SHUT_RDWR);
	if (l->io.held)
		gx_uring_cancel(l->ctl->gx->uring, &l->io);
	else
		listener_drop(l);
}

/* The tick calls this again, so after an error the socket waits for it and never spins. */
void listener_arm(struct gx_listener *l)
{
	if (!l->closing && !l->io.held && l->room(l->ctl))
		gx_uring_submit(l->ctl->gx->uring, &l->io);
}

static void listener_done(struct gx_io *io, int res)
{
	struct gx_listener *l = io->arg;

	if (l->closing) {
		if (res >= 0)
			close(res);
		listener_drop(l);
		return;
	}
	if (res < 0) {
		if (res == -EMFILE || res == -ENFILE)
			listener_starved(l, res);
		else
			gx_debug("control: accept: %s", strerror(-res));
		return;
	}
	l->accepted(l, res);
	listener_arm(l);
}

static int listener_start(void *arg)
{
	struct gx_listener *l = arg;
	struct ctl *ctl = l->ctl;

	if (ctl->closing) {
		listener_free(l);
		return -ECANCELED;
	}
	l->next = ctl->listeners;
	ctl->listeners = l;
	l->spare = -1;
	listener_spare(l);
	l->io = (struct gx_io){.op = GX_IO_ACCEPT, .fd = l->fd, .done = listener_done, .arg = l};
	listener_arm(l);
	return 0;
}

int ctl_listener_start(struct ctl *ctl, struct gx_listener *l)
{
	l->ctl = ctl;
	return gx_uring_run_wait(ctl->gx->uring, listener_start, l);
}
