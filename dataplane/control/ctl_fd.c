/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Unix socket between the ends of one host: it shows their users, and passes descriptors. The
 * server listens on an abstract socket, whose name is in its HELLO. The kernel names the user of
 * each client there. If the server does not serve that user, it reads nothing, sends the reason and
 * closes. The client first sends the nonce of the server's HELLO and gets its own back. From then
 * on its bootstrap connection is proven, whatever port it then takes. If the port or the link
 * passes descriptors, the same two messages go once more, with them. SOCK_SEQPACKET keeps a message
 * and its descriptors together. Runs on the control thread.
 */
#include "control/ctl.h"

#include "gx_internal/fds.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#define PASSES_MAX     64   /* most that have not sent a nonce yet */
#define PASS_BACKLOG   1024 /* the kernel cuts it to somaxconn */
#define PASS_NONCE_B   16
#define PASS_ANSWER_B  512 /* room for a nonce, or for an ERROR */
#define CLOSERS_MAX    32  /* most strangers' sockets in close() */
#define CLOSER_STACK_B (256 << 10)

/* One exchange: a connection to, or accepted by, the Unix socket. */
struct ctl_pass {
	struct ctl *ctl;
	struct ctl_pass *next; /* in ctl->passes */
	struct ctl_conn *cc;   /* NULL: not known yet (server), or it gave up */
	bool server;
	bool closing;
	bool again; /* client: received again after an end-of-file or a reset */
	bool wait;  /* server: receive the descriptors when our answer is sent */
	int fd;
	uint64_t due_ns;
	struct ucred cred; /* the peer's user, from the kernel */
	struct gx_io io;
	struct sockaddr_un addr;
	struct msghdr msg;
	struct iovec iov;
	uint8_t nonce[PASS_NONCE_B];
	uint8_t answer[PASS_ANSWER_B];
	union gx_fds_room room;
	int fds[CTL_FDS_MAX]; /* received, ours until handed over */
	unsigned nr_fds;
};

_Static_assert(CTL_FDS_MAX <= GX_FDS_MAX, "room next to a message");

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
		gx_fd_close(p->fd);
	free(p);
}

/* Free @p, now or when gx_uring lets go of it. */
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

/* End the exchange and its connection, by a verdict. */
static void pass_fail(struct ctl_pass *p, int verdict)
{
	struct ctl_conn *cc = p->cc;

	pass_close(p);
	if (cc)
		ctl_conn_judge(cc, verdict);
}

/* The server broke off. It gives the reason on the other socket. */
static void pass_broke(struct ctl_pass *p, int verdict)
{
	struct ctl_conn *cc = p->cc;

	pass_close(p);
	ctl_conn_judge_late(cc, verdict);
}

static struct ctl_pass *pass_new(struct ctl *ctl, int fd, bool server)
{
	struct ctl_pass *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->ctl = ctl;
	p->server = server;
	p->fd = gx_fd_own(fd);
	p->io.arg = p;
	p->due_ns = gx_now_ns() + CTL_STEP_NS;
	p->next = ctl->passes;
	ctl->passes = p;
	return p;
}

/* ---- Users that may connect ---- */

static bool uid_is_allowed(const struct gx *gx, uid_t uid)
{
	if (gx_uid_is_nobody(uid))
		return false;
	if (uid == geteuid())
		return true;
	for (unsigned i = 0; i < gx->opts.nr_allow_uids; i++)
		if (gx->opts.allow_uids[i] == uid)
			return true;
	return false;
}

/* Return: why @them, which comes as nobody, is not served; NULL: it has a user. */
static const char *nobody_why(uid_t uid, const char *them, char *buf, size_t room)
{
	if (!gx_uid_is_nobody(uid))
		return NULL;
	snprintf(buf, room,
		 "uid %u is each user that the user namespace here does not map, so whose process "
		 "the %s is cannot be told: run both in one, not as uid %u, or show a key",
		 uid, them, uid);
	return buf;
}

/* Threads in close(). A stranger's descriptors may hold them there for as long as it likes. */
static _Atomic unsigned nr_closers;

static void *closer_main(void *arg)
{
	close((int)(intptr_t)arg);
	atomic_fetch_sub_explicit(&nr_closers, 1, memory_order_relaxed);
	return NULL;
}

/* A stranger's socket may hold descriptors that nobody has received. Closing the last reference to
 * one may block: a TCP socket with SO_LINGER. So another thread does it. */
static void stranger_close(int fd)
{
	pthread_attr_t attr;
	pthread_t thread;
	int ret;

	shutdown(fd, SHUT_RDWR);
	atomic_fetch_add_explicit(&nr_closers, 1, memory_order_relaxed);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, CLOSER_STACK_B);
	ret = pthread_create(&thread, &attr, closer_main, (void *)(intptr_t)fd);
	pthread_attr_destroy(&attr);
	if (ret) /* no thread: better block than leak */
		closer_main((void *)(intptr_t)fd);
}

/* Read nothing from the stranger. Send the reason as on the bootstrap connection. */
static void stranger_refuse(struct ctl *ctl, int fd, const struct ucred *cred)
{
	struct gx_hello_error e = {.err = -EPERM, .reason = GX_REASON_USER};
	const char *nobody = nobody_why(cred->uid, "client", e.text, sizeof(e.text));

	if (!nobody)
		snprintf(
			e.text, sizeof(e.text),
			"the server runs as uid %u and serves no other user without a key: show it "
			"one (gx_auth_opts.key_file), or start it with gx_opts.allow_uids %u",
			geteuid(), cred->uid);
	ctl_bad(ctl, "a process of uid %u, pid %d, came to the Unix socket", cred->uid,
		(int)cred->pid); /* counted by when it hears of it */
	send(fd, ctl->frame, gx_hello_error_put(ctl->frame, &e), MSG_DONTWAIT | MSG_NOSIGNAL);
	if (nobody && ctl_may_log(&ctl->refused_rate))
		gx_warn("pid %d was refused: %s", (int)cred->pid, nobody);
	else if (!nobody && ctl_may_log(&ctl->refused_rate))
		gx_log(auth_serves(ctl->gx) ? GX_LOG_INFO : GX_LOG_WARN,
		       "a process of uid %u, pid %d, was refused without a key: to serve that user, "
		       "start with gx_opts.allow_uids %u",
		       cred->uid, (int)cred->pid, cred->uid);
	stranger_close(fd);
}

/* ---- Messages ---- */

/* One operation at a time: p->io belongs to the one under way. */
static void pass_io(struct ctl_pass *p, struct gx_io io, void (*done)(struct gx_io *io, int res))
{
	assert(!p->io.held);
	p->io = io;
	p->io.fd = p->fd;
	p->io.done = done;
	p->io.arg = p;
	gx_uring_submit(p->ctl->gx->uring, &p->io);
}

static void pass_msg_init(struct ctl_pass *p)
{
	p->iov = (struct iovec){.iov_base = p->nonce, .iov_len = sizeof(p->nonce)};
	p->msg = (struct msghdr){.msg_iov = &p->iov, .msg_iovlen = 1};
}

/* Receive without room for descriptors: the kernel drops any. */
static void pass_recv_plain(struct ctl_pass *p, void (*done)(struct gx_io *io, int res))
{
	pass_io(p, (struct gx_io){.op = GX_IO_RECV, .buf = p->answer, .len = sizeof(p->answer)},
		done);
}

static void pass_send_plain(struct ctl_pass *p, const uint8_t nonce[PASS_NONCE_B],
			    void (*done)(struct gx_io *io, int res))
{
	memcpy(p->nonce, nonce, sizeof(p->nonce));
	pass_io(p, (struct gx_io){.op = GX_IO_SEND, .buf = p->nonce, .len = sizeof(p->nonce)},
		done);
}

static void pass_recv(struct ctl_pass *p, void (*done)(struct gx_io *io, int res))
{
	pass_msg_init(p);
	p->msg.msg_control = p->room.b;
	p->msg.msg_controllen = CMSG_SPACE(CTL_FDS_MAX * sizeof(int));
	pass_io(p, (struct gx_io){.op = GX_IO_RECVMSG, .msg = &p->msg}, done);
}

static unsigned lane_fds(const struct gx_port_addr *a, int fds[2])
{
	if (a->fd < 0)
		return 0;
	fds[0] = a->fd;
	fds[1] = a->pool_fd;
	return 1 + a->has_pool;
}

/* Send the nonce, with the descriptors of our lanes and of the link. The kernel then holds
 * its own references. */
static void pass_send(struct ctl_pass *p, const uint8_t nonce[PASS_NONCE_B],
		      void (*done)(struct gx_io *io, int res))
{
	const struct gx_hello_lanes *l = &p->cc->setup->local;
	int fds[CTL_FDS_MAX];
	unsigned n = 0;

	for (unsigned i = 0; i < l->nr_lanes; i++)
		n += lane_fds(&l->lanes[i].port, fds + n);
	n += p->cc->conn->link->conn->fds(p->cc->conn, fds + n);
	memcpy(p->nonce, nonce, sizeof(p->nonce));
	pass_msg_init(p);
	gx_fds_put(&p->msg, &p->room, fds, n);
	pass_io(p, (struct gx_io){.op = GX_IO_SENDMSG, .msg = &p->msg}, done);
}

/* A message has come, or an error. Return: NULL, or the fault in words. */
static const char *pass_msg_take(struct ctl_pass *p, int res)
{
	if (res >= 0)
		p->nr_fds += gx_fds_take(&p->msg, p->fds + p->nr_fds, CTL_FDS_MAX - p->nr_fds);
	if (res < 0)
		return strerror(-res);
	if (p->msg.msg_flags & MSG_CTRUNC)
		return "descriptors were lost on the way: raise the limit of open files (ulimit "
		       "-n)";
	if (res != PASS_NONCE_B || p->msg.msg_flags & MSG_TRUNC)
		return res ? "a message of another length" : "closed without an answer";
	return NULL;
}

/* Both ends have all descriptors. End the exchange, then let the connection go on. */
static void pass_finish(struct ctl_pass *p)
{
	struct ctl_conn *cc = p->cc;
	int fds[CTL_FDS_MAX];
	unsigned n = p->nr_fds;

	memcpy(fds, p->fds, sizeof(fds));
	p->nr_fds = 0;
	pass_close(p);
	cc->ctl->passed(cc, fds, n);
}

/* ---- Client: show our user ---- */

/* Go on without: the server decides whether that will do. */
static void __attribute__((format(printf, 2, 3)))
prove_without(struct ctl_conn *cc, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(cc->dial.no_share, sizeof(cc->dial.no_share), fmt, ap);
	va_end(ap);
	cc->ctl->shown(cc);
}

/* The server is full, or dropped us for another client: try again at the next tick. */
static void prove_later(struct ctl_pass *p)
{
	struct ctl_conn *cc = p->cc;

	pass_close(p);
	cc->dial.prove_again = true;
}

static int refuse_answer(void)
{
	return gx_refuse(GX_REASON_SOCKET, -EPROTO,
			 "the server's answer on the Unix socket is not for this client");
}

/* The answer is no nonce, so it must be an ERROR. */
static void prove_refused(struct ctl_pass *p, uint32_t len)
{
	struct ctl_conn *cc = p->cc;
	struct gx_hello_error e;
	uint32_t body;
	uint16_t type;

	if (len < 8 || gx_hello_frame(p->answer, &type, &body) || type != GX_HELLO_ERROR ||
	    body != len - 8 || gx_hello_error_get(p->answer + 8, body, &e))
		pass_fail(p, refuse_answer());
	else if (!cc->tls && !p->ctl->gx->opts.insecure)
		pass_fail(p, gx_refuse(e.reason, e.err, "%s", e.text));
	else { /* only memory is not shared; after the colon is what to do */
		pass_close(p);
		prove_without(cc, "%.*s", (int)strcspn(e.text, ":"), e.text);
	}
}

static void prove_recv_done(struct gx_io *io, int res)
{
	struct ctl_pass *p = io->arg;

	if (p->closing) {
		pass_free(p);
	} else if (res <= 0 && !p->again) { /* an ERROR may follow: see below */
		p->again = true;
		pass_recv_plain(p, prove_recv_done);
	} else if (res <= 0) {
		prove_later(p);
	} else if (res != PASS_NONCE_B || memcmp(p->answer, p->cc->nonce, PASS_NONCE_B)) {
		prove_refused(p, (uint32_t)res);
	} else {
		p->again = false;
		p->cc->proven = true;
		p->cc->due_ns = gx_later_ns(gx_now_ns(), p->cc->dial.timeout_ns);
		p->ctl->shown(p->cc);
	}
}

static void prove_send_done(struct gx_io *io, int res)
{
	struct ctl_pass *p = io->arg;

	if (p->closing)
		pass_free(p);
	else /* even after an error: the server may have sent the reason */
		pass_recv_plain(p, prove_recv_done);
}

/* The server's user decides whether we share memory. The server's answer decides all else. */
static bool prove_server_check(struct ctl_pass *p)
{
	socklen_t len = sizeof(p->cred);

	if (getsockopt(p->fd, SOL_SOCKET, SO_PEERCRED, &p->cred, &len)) {
		pass_fail(p, gx_refuse(GX_REASON_SOCKET, -errno,
				       "the kernel does not say whose the Unix socket is: %s",
				       strerror(errno)));
		return false;
	}
	if (!nobody_why(p->cred.uid, "server", p->cc->dial.no_share,
			sizeof(p->cc->dial.no_share)) &&
	    !uid_is_allowed(p->ctl->gx, p->cred.uid))
		snprintf(p->cc->dial.no_share, sizeof(p->cc->dial.no_share),
			 "the server runs as uid %u, and the client (uid %u) shares memory with "
			 "its own user only",
			 p->cred.uid, geteuid());
	return true;
}

static void prove_connect_done(struct gx_io *io, int res)
{
	struct ctl_pass *p = io->arg;
	struct ctl_conn *cc = p->cc;

	if (p->closing) {
		pass_free(p);
	} else if (res == -EAGAIN) {
		prove_later(p);
	} else if (res < 0) {
		pass_close(p);
		prove_without(cc, "the server's Unix socket @%s cannot be reached: %s",
			      cc->conn->peer.unix_name, strerror(-res));
	} else if (prove_server_check(p)) {
		pass_send_plain(p, cc->conn->peer.nonce, prove_send_done);
	}
}

int ctl_fd_prove(struct ctl_conn *cc)
{
	const char *name = cc->conn->peer.unix_name;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), err = errno;
	struct ctl_pass *p = fd < 0 ? NULL : pass_new(cc->ctl, fd, false);

	cc->dial.prove_again = false;
	if (!p) {
		if (fd >= 0)
			close(fd);
		return gx_refuse(GX_REASON_SOCKET, fd < 0 ? -err : -ENOMEM,
				 "the client cannot make a Unix socket: %s%s",
				 strerror(fd < 0 ? err : ENOMEM),
				 fd < 0 && err == EMFILE ? ": raise its ulimit -n" : "");
	}
	p->cc = cc;
	cc->pass = p;
	cc->pass_forget = ctl_fd_forget;
	p->addr.sun_family = AF_UNIX;
	memcpy(p->addr.sun_path + 1, name, strlen(name));
	pass_io(p,
		(struct gx_io){.op = GX_IO_CONNECT,
			       .addr = (struct sockaddr *)&p->addr,
			       .addr_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
						       strlen(name))},
		prove_connect_done);
	return 0;
}

/* ---- Client: descriptors ---- */

/* Linux looks into the queue, then, under another lock, whether the peer has closed. A server that
 * sends and closes between the two looks leaves its message after an end-of-file. A server that
 * closes with a message of ours unread leaves a reset before its own message. */
static void client_recv_done(struct gx_io *io, int res)
{
	struct ctl_pass *p = io->arg;
	const char *bad = pass_msg_take(p, res);

	if (p->closing) {
		pass_free(p);
	} else if (!res && !p->again) {
		p->again = true;
		pass_recv(p, client_recv_done);
	} else if (bad) {
		(res <= 0 ? pass_broke : pass_fail)(
			p, gx_refuse(GX_REASON_SOCKET, -EPROTO,
				     "the server's descriptors did not come: %s", bad));
	} else if (memcmp(p->nonce, p->cc->nonce, sizeof(p->nonce))) {
		pass_fail(p, refuse_answer());
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
		pass_broke(p, gx_refuse(GX_REASON_SOCKET, res,
					"descriptors cannot be sent to the server: %s",
					strerror(-res)));
	else
		pass_recv(p, client_recv_done);
}

int ctl_fd_start(struct ctl_conn *cc)
{
	struct ctl_pass *p = cc->pass;

	if (!p)
		return gx_refuse(GX_REASON_SOCKET, -EOPNOTSUPP,
				 "no Unix socket for shared memory: %s; take another port, as "
				 "gx_connect_opts.ports udp",
				 cc->dial.no_share[0] ? cc->dial.no_share : "the server has none");
	cc->conn->link->conn->meet(cc->conn, p->fd);
	pass_send(p, cc->conn->peer.nonce, client_send_done);
	return 0;
}

/* ---- Server ---- */

static void server_send_done(struct gx_io *io, int res)
{
	struct ctl_pass *p = io->arg;

	if (p->closing)
		pass_free(p);
	else if (res < 0)
		pass_fail(p, gx_refuse(GX_REASON_SOCKET, res,
				       "descriptors cannot be sent to the client: %s",
				       strerror(-res)));
	else
		pass_finish(p);
}

static void server_fds_done(struct gx_io *io, int res)
{
	struct ctl_pass *p = io->arg;
	const char *bad = pass_msg_take(p, res);

	if (p->closing) {
		pass_free(p);
		return;
	}
	if (!bad && memcmp(p->nonce, p->cc->nonce, sizeof(p->nonce)))
		bad = "not of this connection";
	if (bad) {
		pass_fail(p, gx_refuse(GX_REASON_SOCKET, -EPROTO,
				       "the client's descriptors did not come: %s", bad));
		return;
	}
	p->cc->conn->link->conn->meet(p->cc->conn, p->fd);
	pass_send(p, p->cc->conn->peer.nonce, server_send_done);
}

/* The client will send its descriptors. Its CONNECT may arrive before our answer is sent. */
int ctl_fd_wait(struct ctl_conn *cc)
{
	if (!cc->pass)
		return gx_refuse(GX_REASON_PROTOCOL, -EPROTO,
				 "descriptors on a connection without a Unix socket");
	if (cc->pass->io.held)
		cc->pass->wait = true;
	else
		pass_recv(cc->pass, server_fds_done);
	return 0;
}

/* The connection whose HELLO had this nonce, and whose client is not proven yet. */
static struct ctl_conn *server_conn_find(const struct ctl_pass *p)
{
	for (struct ctl_conn *cc = p->ctl->conns; cc; cc = cc->next)
		if (cc->server && cc->state == CTL_LANES && !cc->proven && !cc->pass &&
		    !memcmp(cc->nonce, p->answer, PASS_NONCE_B))
			return cc;
	return NULL;
}

static void server_answer_done(struct gx_io *io, int res)
{
	struct ctl_pass *p = io->arg;

	if (p->closing)
		pass_free(p);
	else if (res < 0)
		pass_fail(p, gx_refuse(GX_REASON_SOCKET, res,
				       "the client cannot be answered on the Unix socket: %s",
				       strerror(-res)));
	else if (p->wait)
		pass_recv(p, server_fds_done);
}

static void server_nonce_done(struct gx_io *io, int res)
{
	struct ctl_pass *p = io->arg;

	if (p->closing) {
		pass_free(p);
		return;
	}
	if (res == PASS_NONCE_B)
		p->cc = server_conn_find(p);
	if (!p->cc) {
		if (res != 0)
			ctl_bad(p->ctl, "a stranger on the Unix socket: %s",
				res < 0 ? strerror(-res) : "nonce not known");
		pass_close(p);
		return;
	}
	p->cc->pass = p;
	p->cc->pass_forget = ctl_fd_forget;
	p->cc->proven = true;
	p->cc->due_ns = gx_now_ns() + CTL_STEP_NS;
	pass_send_plain(p, p->cc->conn->peer.nonce, server_answer_done);
}

/* At most CLOSERS_MAX strangers are in close(). Beyond that accept nobody: the control thread would
 * have to block itself. */
static bool server_room(struct ctl *ctl)
{
	if (atomic_load_explicit(&nr_closers, memory_order_relaxed) < CLOSERS_MAX)
		return true;
	if (ctl_may_log(&ctl->closers_rate))
		gx_warn("processes of users that are not served hold %u sockets in close(): local "
			"clients wait until some are closed",
			CLOSERS_MAX);
	return false;
}

/* Too many silent clients, even of our own users: drop the one that has been silent the longest. */
static void server_silent_drop(struct ctl *ctl)
{
	struct ctl_pass *p, *oldest = NULL;
	unsigned n = 0;

	for (p = ctl->passes; p; p = p->next) { /* the newest is first */
		if (!p->server || p->cc || p->closing)
			continue;
		oldest = p;
		n++;
	}
	if (n < PASSES_MAX)
		return;
	ctl_bad(ctl, "%u silent ones on the Unix socket: the oldest goes", n);
	pass_close(oldest);
}

static void server_accepted(struct gx_listener *l, int fd)
{
	struct ctl *ctl = l->ctl;
	struct ctl_pass *p;
	struct ucred cred;
	socklen_t len = sizeof(cred);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len)) {
		stranger_close(fd);
		return;
	}
	if (!uid_is_allowed(ctl->gx, cred.uid)) {
		stranger_refuse(ctl, fd, &cred);
		return;
	}
	server_silent_drop(ctl);
	p = pass_new(ctl, fd, true);
	if (!p) {
		close(fd);
		return;
	}
	p->cred = cred;
	pass_recv_plain(p, server_nonce_done);
}

/* Return: a listening socket, -errno. */
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
	return gx_fd_own(fd);
}

int ctl_fd_listen(struct ctl *ctl)
{
	struct gx_listener *l;
	char name[GX_NAME_MAX];
	uint64_t r; /* strangers hear the name: it says nothing of this process */
	int ret;

	if (ctl->unix_name[0])
		return 0;
	ret = gx_random(&r, sizeof(r));
	if (ret)
		return ret;
	snprintf(name, sizeof(name), "gx-%016" PRIx64 "-fd", r);
	l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	l->fd = listen_unix(name);
	if (l->fd < 0) {
		ret = l->fd;
		free(l);
		gx_warn("no Unix socket, so no client of this host can be served: %s",
			strerror(-ret));
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

bool ctl_fd_needed(const struct ctl_conn *cc)
{
	const struct ctl_setup *s = cc->setup;

	if (cc->conn->link->conn->fds_due(cc->conn))
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
			continue; /* the connection's deadline ends its exchange */
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
