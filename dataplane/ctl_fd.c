/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors between two ends on one host. The server listens on an abstract Unix socket, whose
 * name is in its HELLO. The client sends one message, the nonce of that HELLO with its descriptors;
 * the server answers with the nonce of the client's HELLO and its own. Each looks at the other's
 * uid before it shows anything. SOCK_SEQPACKET keeps a message and its descriptors together. Runs
 * on the control thread.
 */
#include "ctl.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#define PASSES_MAX   64
#define PASS_BACKLOG 64
#define PASS_NONCE_B 16

/* One exchange: a connection to, or accepted by, the Unix socket. */
struct ctl_pass {
	struct ctl *ctl;
	struct ctl_pass *next; /* in ctl->passes */
	struct ctl_conn *cc;   /* NULL: not known yet (server), or it gave up */
	bool server;
	bool closing;
	bool again; /* client: received once more after an end-of-file */
	int fd;
	uint64_t due_ns;
	struct ucred cred; /* of the peer, by the kernel's word */
	struct gx_io io;
	struct sockaddr_un addr;
	struct msghdr msg;
	struct iovec iov;
	uint8_t nonce[PASS_NONCE_B];
	union {
		struct cmsghdr align;
		char b[CMSG_SPACE(CTL_FDS_MAX * sizeof(int))];
	} control;
	int fds[CTL_FDS_MAX]; /* received, ours until handed over */
	unsigned nr_fds;
};

static void pass_free(struct ctl_pass *p)
{
	struct ctl_pass **q;

	for (q = &p->ctl->passes; *q != p; q = &(*q)->next)
		;
	*q = p->next;
	if (p->cc)
		p->cc->pass = NULL;
	for (unsigned i = 0; i < p->nr_fds; i++)
		close(p->fds[i]);
	if (p->fd >= 0)
		close(p->fd);
	free(p);
}

/* Frees @p, now or when the engine lets go of it. */
static void pass_close(struct ctl_pass *p)
{
	p->closing = true;
	if (p->cc)
		p->cc->pass = NULL;
	p->cc = NULL;
	if (p->io.held)
		gx_uring_cancel(p->ctl->gx->uring, &p->io);
	else
		pass_free(p);
}

/* Nothing more to do for the connection, which hears why. */
static void __attribute__((format(printf, 3, 4)))
pass_fail(struct ctl_pass *p, int err, const char *fmt, ...)
{
	struct ctl_conn *cc = p->cc;
	char text[200];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	pass_close(p);
	if (cc)
		ctl_conn_fail(cc, err, "%s", text);
}

/* The server broke off. Why, it says on the other socket. */
static void __attribute__((format(printf, 3, 4)))
pass_broke(struct ctl_pass *p, int err, const char *fmt, ...)
{
	struct ctl_conn *cc = p->cc;
	va_list ap;

	pass_close(p);
	va_start(ap, fmt);
	ctl_conn_fail_soon(cc, err, fmt, ap);
	va_end(ap);
}

static struct ctl_pass *pass_new(struct ctl *ctl, int fd, bool server)
{
	struct ctl_pass *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->ctl = ctl;
	p->server = server;
	p->fd = fd;
	p->io.arg = p;
	p->due_ns = gx_now_ns() + CTL_STEP_NS;
	p->next = ctl->passes;
	ctl->passes = p;
	return p;
}

/* ---- Who may ---- */

static bool uid_is_allowed(const struct gx *gx, uid_t uid)
{
	if (uid == geteuid())
		return true;
	for (unsigned i = 0; i < gx->opts.nr_allow_uids; i++)
		if (gx->opts.allow_uids[i] == uid)
			return true;
	return false;
}

/* Fails @p unless the peer is of a user that may have our descriptors. */
static bool pass_peer_check(struct ctl_pass *p)
{
	socklen_t len = sizeof(p->cred);

	if (getsockopt(p->fd, SOL_SOCKET, SO_PEERCRED, &p->cred, &len)) {
		pass_fail(p, -errno, "the kernel does not say whose the Unix socket is: %s",
			  strerror(errno));
		return false;
	}
	if (uid_is_allowed(p->ctl->gx, p->cred.uid)) {
		local_meet(p->cc->conn, p->fd);
		return true;
	}
	ctl_bad(p->ctl, "descriptors asked for by uid %u, pid %d", p->cred.uid, (int)p->cred.pid);
	pass_fail(
		p, -EPERM,
		"the %s runs as uid %u, and the %s (uid %u) shares memory with its own user only: "
		"start it with --allow-uid %u",
		p->server ? "client" : "server", p->cred.uid, p->server ? "server" : "client",
		geteuid(), p->cred.uid);
	return false;
}

/* ---- Messages ---- */

static void pass_submit(struct ctl_pass *p, enum gx_io_op op,
			void (*done)(struct gx_io *io, int res))
{
	p->io = (struct gx_io){.op = op, .fd = p->fd, .msg = &p->msg, .done = done, .arg = p};
	gx_uring_submit(p->ctl->gx->uring, &p->io);
}

static void pass_msg_init(struct ctl_pass *p)
{
	p->iov = (struct iovec){.iov_base = p->nonce, .iov_len = sizeof(p->nonce)};
	p->msg = (struct msghdr){.msg_iov = &p->iov, .msg_iovlen = 1};
}

static void pass_recv(struct ctl_pass *p, void (*done)(struct gx_io *io, int res))
{
	pass_msg_init(p);
	p->msg.msg_control = p->control.b;
	p->msg.msg_controllen = sizeof(p->control.b);
	pass_submit(p, GX_IO_RECVMSG, done);
}

static unsigned lane_fds(const struct gx_port_addr *a, int fds[2])
{
	if (a->fd < 0)
		return 0;
	fds[0] = a->fd;
	fds[1] = a->pool_fd;
	return 1 + a->has_pool;
}

/* The nonce, what our lanes carry, and what the local link shares. The kernel holds its own
 * references from then on. */
static void pass_send(struct ctl_pass *p, const uint8_t nonce[PASS_NONCE_B],
		      void (*done)(struct gx_io *io, int res))
{
	const struct gx_hello_lanes *l = &p->cc->setup->local;
	struct cmsghdr *cmsg = &p->control.align;
	int fds[CTL_FDS_MAX];
	unsigned n = 0;

	for (unsigned i = 0; i < l->nr_lanes; i++)
		n += lane_fds(&l->lanes[i].port, fds + n);
	n += local_fds(p->cc->conn, fds + n);
	memcpy(p->nonce, nonce, sizeof(p->nonce));
	pass_msg_init(p);
	if (n) {
		*cmsg = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
					 .cmsg_type = SCM_RIGHTS,
					 .cmsg_len = CMSG_LEN(n * sizeof(int))};
		memcpy(CMSG_DATA(cmsg), fds, n * sizeof(int));
		p->msg.msg_control = p->control.b;
		p->msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
	}
	pass_submit(p, GX_IO_SENDMSG, done);
}

/* Takes what came with the message; all of it, so that nothing stays open by a peer's whim. */
static void pass_fds_take(struct ctl_pass *p)
{
	struct cmsghdr *cmsg;

	for (cmsg = CMSG_FIRSTHDR(&p->msg); cmsg; cmsg = CMSG_NXTHDR(&p->msg, cmsg)) {
		size_t n = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(fd), sizeof(fd));
			if (p->nr_fds < CTL_FDS_MAX)
				p->fds[p->nr_fds++] = fd;
			else
				close(fd);
		}
	}
}

/* A message has come, or not. Return: NULL, or what is wrong with it. */
static const char *pass_msg_take(struct ctl_pass *p, int res)
{
	if (res >= 0)
		pass_fds_take(p);
	if (res < 0)
		return strerror(-res);
	if (p->msg.msg_flags & MSG_CTRUNC)
		return "descriptors were lost on the way: raise the limit of open files (ulimit "
		       "-n)";
	if (res != PASS_NONCE_B || p->msg.msg_flags & MSG_TRUNC)
		return res ? "a message of another length" : "closed without an answer";
	return NULL;
}

/* Both ends have each other's. Hands over, and ends the exchange before the connection goes on. */
static void pass_finish(struct ctl_pass *p)
{
	struct ctl_conn *cc = p->cc;
	int fds[CTL_FDS_MAX];
	unsigned n = p->nr_fds;

	memcpy(fds, p->fds, sizeof(fds));
	p->nr_fds = 0;
	pass_close(p);
	ctl_hello_passed(cc, fds, n);
}

/* ---- Client ---- */

/* Linux looks into the queue and then, under another lock, whether the peer has closed: what the
 * server sent, before it closed, between the two looks is behind an end-of-file. */
static void client_recv_done(struct gx_io *io, int res)
{
	struct ctl_pass *p = io->arg;
	const char *bad = pass_msg_take(p, res);

	if (p->closing) {
		pass_free(p);
	} else if (!res && !p->again) {
		p->again = true;
		pass_recv(p, client_recv_done);
	} else if (bad && res <= 0) {
		pass_broke(p, -EPROTO, "the server's descriptors did not come: %s", bad);
	} else if (bad) {
		pass_fail(p, -EPROTO, "the server's descriptors did not come: %s", bad);
	} else if (memcmp(p->nonce, p->cc->nonce, sizeof(p->nonce))) {
		pass_fail(p, -EPROTO,
			  "the server's answer on the Unix socket is not for this client");
	} else {
		pass_finish(p);
	}
}

static void client_send_done(struct gx_io *io, int res)
{
	struct ctl_pass *p = io->arg;

	if (p->closing)
		pass_free(p);
	else if (res < 0)
		pass_broke(p, res, "descriptors cannot be sent to the server: %s", strerror(-res));
	else
		pass_recv(p, client_recv_done);
}

static void client_connect_done(struct gx_io *io, int res)
{
	struct ctl_pass *p = io->arg;

	if (p->closing)
		pass_free(p);
	else if (res < 0)
		pass_broke(p, res,
			   "the server's socket @%s, for shared memory, cannot be reached: %s",
			   p->cc->conn->peer.unix_name, strerror(-res));
	else if (pass_peer_check(p))
		pass_send(p, p->cc->conn->peer.nonce, client_send_done);
}

void ctl_fd_start(struct ctl_conn *cc)
{
	const char *name = cc->conn->peer.unix_name;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), err = errno;
	struct ctl_pass *p = fd < 0 || !name[0] ? NULL : pass_new(cc->ctl, fd, false);

	if (!p) {
		if (fd >= 0)
			close(fd);
		ctl_conn_fail(cc, fd < 0 ? -err : -EOPNOTSUPP,
			      "no Unix socket for shared memory: %s; take another "
			      "port, as --port udp",
			      fd < 0 ? strerror(err) : "the server has none");
		return;
	}
	p->cc = cc;
	cc->pass = p;
	p->addr.sun_family = AF_UNIX;
	memcpy(p->addr.sun_path + 1, name, strlen(name));
	p->io = (struct gx_io){
		.op = GX_IO_CONNECT,
		.fd = fd,
		.addr = (struct sockaddr *)&p->addr,
		.addr_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name)),
		.done = client_connect_done,
		.arg = p};
	gx_uring_submit(cc->ctl->gx->uring, &p->io);
}

/* ---- Server ---- */

static void server_send_done(struct gx_io *io, int res)
{
	struct ctl_pass *p = io->arg;

	if (p->closing)
		pass_free(p);
	else if (res < 0)
		pass_fail(p, res, "descriptors cannot be sent to the client: %s", strerror(-res));
	else
		pass_finish(p);
}

/* The connection whose HELLO had this nonce, and which waits. */
static struct ctl_conn *server_conn_find(const struct ctl_pass *p)
{
	for (struct ctl_conn *cc = p->ctl->conns; cc; cc = cc->next)
		if (cc->server && cc->state == CTL_FDS && !cc->pass &&
		    !memcmp(cc->nonce, p->nonce, sizeof(p->nonce)))
			return cc;
	return NULL;
}

static void server_recv_done(struct gx_io *io, int res)
{
	struct ctl_pass *p = io->arg;
	const char *bad = pass_msg_take(p, res);

	if (p->closing) {
		pass_free(p);
		return;
	}
	if (res == PASS_NONCE_B)
		p->cc = server_conn_find(p);
	if (!p->cc) {
		if (res != 0)
			ctl_bad(p->ctl, "a stranger on the Unix socket: %s",
				bad ? bad : "nonce not known");
		pass_close(p);
		return;
	}
	p->cc->pass = p;
	if (bad)
		pass_fail(p, -EPROTO, "the client's descriptors did not come: %s", bad);
	else if (pass_peer_check(p))
		pass_send(p, p->cc->conn->peer.nonce, server_send_done);
}

static bool server_room(const struct ctl *ctl)
{
	unsigned n = 0;

	for (const struct ctl_pass *p = ctl->passes; p; p = p->next)
		n++;
	return n < PASSES_MAX;
}

static void server_accepted(struct ctl *ctl, int fd)
{
	struct ctl_pass *p = pass_new(ctl, fd, true);

	if (p)
		pass_recv(p, server_recv_done);
	else
		close(fd);
}

/* Return: a socket that listens, -errno. */
static int listen_unix(const char *name)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), ret;
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));

	if (fd < 0)
		return -errno;
	memcpy(addr.sun_path + 1, name, strlen(name));
	if (bind(fd, (struct sockaddr *)&addr, len) || listen(fd, PASS_BACKLOG)) {
		ret = -errno;
		close(fd);
		return ret;
	}
	return fd;
}

int ctl_fd_listen(struct ctl *ctl)
{
	struct ctl_listener *l;
	char name[GX_NAME_MAX];
	int ret;

	if (ctl->unix_name[0])
		return 0;
	snprintf(name, sizeof(name), "%s-fd", ctl->gx->instance);
	l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	l->fd = listen_unix(name);
	if (l->fd < 0) {
		ret = l->fd;
		free(l);
		gx_warn("no Unix socket, so no shared memory with clients: %s", strerror(-ret));
		return ret;
	}
	l->room = server_room;
	l->accepted = server_accepted;
	ret = ctl_listener_start(ctl, l);
	if (!ret)
		memcpy(ctl->unix_name, name, sizeof(name));
	return ret;
}

/* ---- For the connection and the tick ---- */

bool ctl_fd_needed(const struct ctl_setup *s)
{
	if (s->local.link == GX_LINK_LOCAL)
		return true;
	for (unsigned i = 0; i < s->local.nr_lanes; i++)
		if (s->local.lanes[i].port.fd >= 0 || s->remote.lanes[i].port.fd >= 0)
			return true;
	return false;
}

void ctl_fd_forget(struct ctl_conn *cc)
{
	if (cc->pass)
		pass_close(cc->pass);
}

void ctl_fd_tick(struct ctl *ctl, uint64_t now_ns)
{
	struct ctl_pass *p, *next;

	for (p = ctl->passes; p; p = next) {
		next = p->next;
		if (p->closing || p->cc || now_ns < p->due_ns)
			continue; /* one with a connection ends by that one's deadline */
		ctl_bad(ctl, "a stranger on the Unix socket said nothing");
		pass_close(p);
	}
}

void ctl_fd_close(struct ctl *ctl)
{
	struct ctl_pass *p, *next;

	for (p = ctl->passes; p; p = next) {
		next = p->next;
		if (!p->closing)
			pass_close(p);
	}
}
