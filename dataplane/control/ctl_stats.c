/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stats socket sends the counters of all cores and of the control thread (printed as one core
 * more) to each client. A client that sends nothing within 20 ms gets plain text. A client whose
 * first word is GET gets HTTP with Prometheus' text. Then gx closes the socket. Runs on the control
 * thread; the caller's thread binds it.
 */
#include "control/ctl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define CLIENTS_MAX   16
#define CLIENT_ASK_NS 20000000ull   /* longest wait for a request */
#define CLIENT_NS     5000000000ull /* for a client in all */
#define STATS_BACKLOG 16
#define TEXT_ROOM     16384
#define TEXT_ROOM_MAX (8u << 20)
#define DRAIN_READS   8 /* most reads of a long request's rest */
#define GID_NOBODY                                                                                 \
	65534 /* stands for all that a user namespace does not map, too: no group of ours */

struct ctl_client {
	struct ctl *ctl;
	struct ctl_client *next;
	struct gx_io io;   /* RECV, then SEND */
	struct gx_io wait; /* time-out of the request */
	int fd;
	bool closing;
	bool answering;
	uint64_t due_ns;
	char ask[256];
	size_t ask_len;
	char *text;
	size_t len, pos;
};

static void client_free(struct ctl_client *c)
{
	struct ctl_client **p;

	for (p = &c->ctl->clients; *p != c; p = &(*p)->next)
		;
	*p = c->next;
	gx_fd_close(c->fd);
	free(c->text);
	free(c);
}

static void client_close(struct ctl_client *c)
{
	struct gx_uring *u = c->ctl->gx->uring;

	c->closing = true;
	gx_uring_cancel(u, &c->io);
	gx_uring_cancel(u, &c->wait);
	if (!c->io.held && !c->wait.held)
		client_free(c);
}

/* ---- The answer ---- */

/* A line for each path of a connection that has several. */
static void paths_print(const struct gx_conn *c, struct gx_text *text)
{
	struct gx_path p;

	for (unsigned at = 0; c->link->conn->path(c, &at, &p);)
		core_say(text,
			 "path of %s, lane %u: source port %u, %s: %" PRIu64 " packets, %" PRIu64
			 " lost, round trip %.3f ms%s\n",
			 c->peer_name, p.lane, p.source_port, p.data ? "data" : "control", p.sent,
			 p.lost, (double)p.rtt_ns / 1e6, p.dead ? ", dead" : "");
}

/* A line for each peer that is up: by what it may connect, and how its packets are guarded. */
static void peers_print(const struct gx *gx, struct gx_text *text)
{
	for (const struct gx_conn *c = gx->conns; c; c = c->next) {
		if (conn_state(c) != GX_CONN_STATE_UP)
			continue;
		core_say(text, "peer %s: link %s, integrity %s, %s%s\n", c->peer_name,
			 c->link->name, ctl_integrity_text(conn_integrity(c)),
			 c->auth[0]	? "key "
			 : c->same_host ? "this host"
					: "insecure",
			 c->auth);
		paths_print(c, text);
	}
}

/* Return: malloc()ed text, with @head_room free bytes before it; NULL. */
static char *text_print(struct gx *gx, enum gx_stat_format format, size_t head_room, size_t *len)
{
	const struct gx_stats *all[GX_CORES_MAX + 1];
	unsigned n = 0;

	for (unsigned i = 0; i < gx->nr_cores; i++)
		all[n++] = &gx->core[i]->loop.stats;
	gx_stat_set(&gx->ctl_stats, GX_STAT_LOG_DROPPED, gx_log_dropped());
	all[n++] = &gx->ctl_stats;
	if (!gx->ctl->text_room)
		gx->ctl->text_room = TEXT_ROOM;
	for (size_t room = gx->ctl->text_room; room <= TEXT_ROOM_MAX; room *= 2) {
		char *text = malloc(head_room + room);
		int ret = text ? gx_stat_print(all, n, format, text + head_room, room) : -ENOMEM;

		if (ret >= 0) {
			struct gx_text more = {
				.buf = text + head_room, .room = room, .at = (size_t)ret};

			if (format == GX_STAT_TEXT)
				peers_print(gx, &more);
			else
				ctl_look_print(gx, &more);
			*len = more.at;
			gx->ctl->text_room = room;
			if (*len < room)
				return text;
		}
		free(text);
	}
	return NULL;
}

static bool answer_make(struct ctl_client *c, bool http)
{
	char head[160];
	size_t room = http ? sizeof(head) : 0, len;
	int n = 0;

	c->text = text_print(c->ctl->gx, http ? GX_STAT_PROMETHEUS : GX_STAT_TEXT, room, &len);
	if (!c->text)
		return false;
	if (http)
		n = snprintf(head, sizeof(head),
			     "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
			     "Content-Length: %zu\r\nConnection: close\r\n\r\n",
			     len);
	c->pos = room - (size_t)n;
	memcpy(c->text + c->pos, head, (size_t)n);
	c->len = room + len;
	return true;
}

static void answer_done(struct gx_io *io, int res);

static void answer_send(struct ctl_client *c)
{
	c->io = (struct gx_io){.op = GX_IO_SEND,
			       .fd = c->fd,
			       .buf = c->text + c->pos,
			       .len = c->len - c->pos,
			       .done = answer_done,
			       .arg = c};
	gx_uring_submit(c->ctl->gx->uring, &c->io);
}

/* Read the rest of the request: closing a socket with unread bytes would reset the connection. */
static void answer_drain(struct ctl_client *c)
{
	shutdown(c->fd, SHUT_WR);
	for (unsigned i = 0; i < DRAIN_READS; i++)
		if (recv(c->fd, c->ask, sizeof(c->ask), MSG_DONTWAIT) <= 0)
			return;
}

static void answer_done(struct gx_io *io, int res)
{
	struct ctl_client *c = io->arg;

	if (c->closing) {
		client_close(c);
		return;
	}
	if (res > 0)
		c->pos += (size_t)res;
	if (res > 0 && c->pos < c->len) {
		answer_send(c);
		return;
	}
	answer_drain(c);
	client_close(c);
}

/* ---- The request ---- */

/* Both the request and the wait for it have ended. */
static void ask_over(struct ctl_client *c)
{
	bool http = c->ask_len >= 4 && !memcmp(c->ask, "GET ", 4);

	if (!answer_make(c, http)) {
		client_close(c);
		return;
	}
	answer_send(c);
}

static void ask_end(struct ctl_client *c)
{
	struct gx_uring *u = c->ctl->gx->uring;

	c->answering = true;
	gx_uring_cancel(u, &c->io);
	gx_uring_cancel(u, &c->wait);
	if (!c->io.held && !c->wait.held)
		ask_over(c);
}

static void ask_recv(struct ctl_client *c);

static void ask_done(struct gx_io *io, int res)
{
	struct ctl_client *c = io->arg;

	if (c->closing) {
		client_close(c);
		return;
	}
	if (res > 0)
		c->ask_len += (size_t)res;
	if (c->answering || res <= 0 || c->ask_len >= 4)
		ask_end(c);
	else
		ask_recv(c);
}

static void ask_recv(struct ctl_client *c)
{
	c->io = (struct gx_io){.op = GX_IO_RECV,
			       .fd = c->fd,
			       .buf = c->ask + c->ask_len,
			       .len = sizeof(c->ask) - c->ask_len,
			       .done = ask_done,
			       .arg = c};
	gx_uring_submit(c->ctl->gx->uring, &c->io);
}

static void ask_wait_done(struct gx_io *io, int res)
{
	struct ctl_client *c = io->arg;

	if (c->closing)
		client_close(c);
	else
		ask_end(c);
}

/* ---- Listening ---- */

static bool stats_room(struct ctl *ctl)
{
	unsigned n = 0;

	for (const struct ctl_client *c = ctl->clients; c; c = c->next)
		n++;
	return n < CLIENTS_MAX;
}

/* Who may hear of all peers: our user, root, our group. Of a path its mode has said it already. */
static bool stats_may(const struct gx_listener *l, int fd)
{
	gid_t groups[NGROUPS_MAX];
	struct ucred cred;
	socklen_t len = sizeof(cred), groups_b = sizeof(groups);

	if (l->path[0])
		return true;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len))
		return false;
	if (!cred.uid || gx_uid_is_own(cred.uid))
		return true;
	if (getegid() == GID_NOBODY || getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &groups_b))
		return false;
	for (size_t i = 0; i < groups_b / sizeof(groups[0]); i++)
		if (groups[i] == getegid())
			return true;
	return cred.gid == getegid();
}

static void stats_accepted(struct gx_listener *l, int fd)
{
	struct ctl *ctl = l->ctl;
	struct ctl_client *c = stats_may(l, fd) ? calloc(1, sizeof(*c)) : NULL;

	if (!c) {
		close(fd);
		return;
	}
	c->ctl = ctl;
	c->fd = gx_fd_own(fd);
	c->due_ns = gx_now_ns() + CLIENT_NS;
	c->next = ctl->clients;
	ctl->clients = c;
	c->wait = (struct gx_io){
		.op = GX_IO_TIMEOUT, .timeout_ns = CLIENT_ASK_NS, .done = ask_wait_done, .arg = c};
	gx_uring_submit(ctl->gx->uring, &c->wait);
	ask_recv(c);
}

/* Remove a socket that nobody listens on; leave everything else. */
static void stats_stale_remove(const struct sockaddr_un *addr, socklen_t len)
{
	struct stat st;
	int fd;

	if (lstat(addr->sun_path, &st) || !S_ISSOCK(st.st_mode))
		return;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return;
	if (connect(fd, (const struct sockaddr *)addr, len) && errno == ECONNREFUSED)
		unlink(addr->sun_path);
	close(fd);
}

/* What bind() makes has the mode that the umask leaves. The socket alone is changed, whatever others put
 * in its place meanwhile. Without /proc it keeps its mode. */
static void stats_mode_set(const char *path, mode_t mode)
{
	int fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	char self[32];
	struct stat st;

	if (fd < 0)
		return;
	snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
	if (!fstat(fd, &st) && S_ISSOCK(st.st_mode) && st.st_uid == geteuid() && chmod(self, mode))
		gx_debug("control: mode of %s: %s", path, strerror(errno));
	close(fd);
}

/* Return: a listening socket, -errno. */
static int stats_socket(const struct sockaddr_un *addr, socklen_t len)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), ret;

	if (fd < 0)
		return -errno;
	if (addr->sun_path[0])
		stats_stale_remove(addr, len);
	if (bind(fd, (const struct sockaddr *)addr, len) || listen(fd, STATS_BACKLOG)) {
		ret = -errno;
		close(fd);
		return ret;
	}
	return gx_fd_own(fd);
}

static int stats_fail(int err, const char *path)
{
	switch (err) {
	case -EADDRINUSE:
		return gx_fail(err,
			       "stats socket %.108s: something is there already, and it is no "
			       "stale socket: "
			       "choose another name",
			       path);
	case -ENOENT:
		return gx_fail(err, "stats socket %.108s: its folder does not exist: make it",
			       path);
	case -EACCES:
		return gx_fail(
			err,
			"stats socket %.108s: no permission: choose a folder of yours, or @name",
			path);
	case -ENAMETOOLONG:
		return gx_fail(err, "stats socket %.108s...: at most 107 characters", path);
	default:
		return gx_fail(err, "stats socket %.108s: %s", path, strerror(-err));
	}
}

int ctl_stats_publish(struct gx *gx, const char *path, mode_t mode)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	size_t n = strlen(path);
	struct gx_listener *l;
	int fd, ret;

	if (!n || (n == 1 && path[0] == '@'))
		return gx_fail(-EINVAL, "the stats socket needs a name: a path, or @name");
	if (n >= sizeof(addr.sun_path))
		return stats_fail(-ENAMETOOLONG, path);
	memcpy(addr.sun_path, path, n);
	if (path[0] == '@')
		addr.sun_path[0] = 0;
	l = calloc(1, sizeof(*l));
	if (!l)
		return gx_fail(-ENOMEM, "out of memory");
	fd = stats_socket(&addr, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n +
					     !!addr.sun_path[0]));
	if (fd < 0) {
		free(l);
		return stats_fail(fd, path);
	}
	if (mode)
		stats_mode_set(addr.sun_path, mode);
	l->fd = fd;
	l->room = stats_room;
	l->accepted = stats_accepted;
	memcpy(l->path, addr.sun_path, sizeof(l->path));
	ret = ctl_listener_start(gx->ctl, l);
	return ret ? stats_fail(ret, path) : 0;
}

int ctl_stats_listen(struct gx *gx, const char *path)
{
	return ctl_stats_publish(gx, path, 0);
}

void ctl_stats_tick(struct ctl *ctl, uint64_t now_ns)
{
	struct ctl_client *c, *next;

	for (c = ctl->clients; c; c = next) {
		next = c->next;
		if (!c->closing && now_ns >= c->due_ns)
			client_close(c);
	}
}

void ctl_stats_close(struct ctl *ctl)
{
	struct ctl_client *c, *next;

	for (c = ctl->clients; c; c = next) {
		next = c->next;
		if (!c->closing)
			client_close(c);
	}
}
