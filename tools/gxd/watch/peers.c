// SPDX-License-Identifier: Apache-2.0
/*
 * Lists the folder, connects to all, and reads until each has answered or the time is over. Nothing
 * that lies there is followed (links) or opened for longer than a look (FIFOs), and no answer is taken
 * that has no end. One thread.
 */
#include "gxd/watch/peers.h"

#include <gx/gx.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define READ_B	 65536
#define BUSY_MS	 10 /* between two tries of a socket with a full backlog */
#define HEAD_MAX 1024

/* A peer that has yet to answer, at the same index. */
struct ask {
	int fd;	   /* -1: it is done */
	bool busy; /* its backlog is full: connect again */
	bool sent;
	size_t len, room;
	char stem[32];
};

struct round {
	int dir;
	const char *path;
	struct peers *peers;
	struct ask *asks;
	size_t all_b; /* of all answers */
};

const char *peers_dir(void)
{
	static char own[PATH_MAX];
	const char *dir = secure_getenv("GX_RUN_DIR"), *xdg = secure_getenv("XDG_RUNTIME_DIR");

	if (dir && *dir)
		return dir;
	if (!xdg || !access(PEERS_DIR, W_OK) ||
	    snprintf(own, sizeof(own), "%s/gx", xdg) >= (int)sizeof(own))
		return PEERS_DIR;
	return own;
}

int peers_dir_make(const char **dir)
{
	const struct group *gx;

	*dir = secure_getenv("GX_RUN_DIR");
	if (*dir)
		return 0;
	*dir = peers_dir();
	if (mkdir(*dir, 0700))
		return errno == EEXIST ? 0 : -errno;
	gx = geteuid() ? NULL : getgrnam("gx");
	return !gx || chown(*dir, 0, gx->gr_gid) || chmod(*dir, 02770) ? 1
								       : 0; /* as the package's */
}

/* ---- The folder ---- */

/* "4711-0.lock". */
static bool name_parse(const char *name, unsigned *pid, unsigned *context, char stem[32])
{
	int end = 0;

	if (strlen(name) > 24 || strspn(name, "0123456789-") != strcspn(name, ".") ||
	    sscanf(name, "%9u-%4u.lock%n", pid, context, &end) != 2 || !end || name[end])
		return false;
	snprintf(stem, 32, "%u-%u", *pid, *context);
	return !strncmp(stem, name, strlen(stem)) && name[strlen(stem)] == '.';
}

/* A lock that nobody holds is of a process that has ended. @fd: of the lock */
static bool is_gone(const struct round *r, int fd, const char *name, const char *stem)
{
	char sock[40];

	if (flock(fd, LOCK_EX | LOCK_NB))
		return false;
	snprintf(sock, sizeof(sock), "%s.sock", stem);
	unlinkat(r->dir, sock, 0);
	unlinkat(r->dir, name, 0);
	return true;
}

static void name_read(int fd, char name[32])
{
	ssize_t n = pread(fd, name, 31, 0);

	name[n > 0 ? n : 0] = 0;
	for (char *p = name; *p; p++)
		if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-",
			    *p))
			*p = '_';
	if (!*name)
		snprintf(name, 32, "unknown");
}

/* Is it the lock of a process that lives? Then @p has its number. */
static bool lock_look(const struct round *r, const char *name, const char *stem, struct peer *p)
{
	int fd = openat(r->dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat st;
	bool lives;

	if (fd < 0)
		return false;
	lives = !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_nlink == 1 &&
		!is_gone(r, fd, name, stem);
	p->uid = st.st_uid;
	if (lives)
		name_read(fd, p->name);
	close(fd);
	return lives;
}

static int dir_list(struct round *r)
{
	int fd = dup(r->dir);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;

	if (!d) {
		int err = -errno;

		if (fd >= 0)
			close(fd);
		return err;
	}
	while ((e = readdir(d))) {
		struct peers *all = r->peers;
		struct peer p = {.why = "no answer"};
		struct ask a = {.fd = -1};

		if (!name_parse(e->d_name, &p.pid, &p.context, a.stem) ||
		    !lock_look(r, e->d_name, a.stem, &p))
			continue;
		if (all->nr == PEERS_MAX) {
			all->nr_left_out++;
			continue;
		}
		r->asks[all->nr] = a;
		all->v[all->nr++] = p;
	}
	closedir(d);
	return 0;
}

/* ---- Asking ---- */

static void ask_end(struct round *r, unsigned i, const char *why)
{
	struct peer *p = &r->peers->v[i];

	if (r->asks[i].fd >= 0)
		close(r->asks[i].fd);
	r->asks[i].fd = -1;
	r->asks[i].busy = false;
	p->why = why;
	if (why) {
		r->all_b -= r->asks[i].room;
		free(p->answer);
		p->answer = p->body = NULL;
	}
}

/* connect() follows links. So the socket is held by a descriptor that is none of a link's, and
 * connected by that one's name. */
static int sock_connect(int fd, int dir, const char *stem)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	char name[40];
	struct stat st;
	int at, ret;

	snprintf(name, sizeof(name), "%s.sock", stem);
	at = openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (at < 0)
		return -errno;
	snprintf(un.sun_path, sizeof(un.sun_path), "/proc/self/fd/%d", at);
	if (fstat(at, &st) || !S_ISSOCK(st.st_mode))
		ret = -ENOTSOCK;
	else
		ret = connect(fd, (struct sockaddr *)&un, sizeof(un)) ? -errno : 0;
	close(at);
	return ret;
}

/* Who listens there, by the kernel. In another namespace of processes it has no number here. */
static void cred_take(int fd, struct peer *p)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len))
		return;
	p->uid = cred.uid;
	if (cred.pid > 0)
		p->pid = (unsigned)cred.pid;
}

static void ask_begin(struct round *r, unsigned i)
{
	struct ask *a = &r->asks[i];
	char get[64];
	int ret, n;

	if (a->fd < 0)
		a->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (a->fd < 0) {
		ask_end(r, i, "no descriptor is left");
		return;
	}
	ret = sock_connect(a->fd, r->dir, a->stem);
	a->busy = ret == -EAGAIN;
	if (a->busy)
		return;
	if (ret) {
		ask_end(r, i,
			ret == -EACCES ? "no permission: it is of another user"
				       : "nobody listens there");
		return;
	}
	cred_take(a->fd, &r->peers->v[i]);
	n = snprintf(get, sizeof(get), "GET %s HTTP/1.0\r\n\r\n", r->path);
	if (send(a->fd, get, (size_t)n, MSG_NOSIGNAL) != n)
		ask_end(r, i, "it took no request");
	else
		a->sent = true;
}

/* All of the answer is here: HTTP, of a length that it says. */
static const char *answer_take(struct peer *p, const struct ask *a)
{
	static const char length[] = "\r\nContent-Length: ";
	char *end, *at;

	if (!p->answer)
		return "it closed without an answer";
	p->answer[a->len] = 0;
	end = strstr(p->answer, "\r\n\r\n");
	if (strncmp(p->answer, "HTTP/1.1 200 ", 13) || !end || end - p->answer > HEAD_MAX)
		return "its answer is none";
	*end = 0;
	p->body = end + 4;
	p->len = a->len - (size_t)(p->body - p->answer);
	at = strcasestr(p->answer, length);
	if (!at || strtoull(at + sizeof(length) - 1, NULL, 10) != p->len)
		return "its answer was cut off";
	return memchr(p->body, 0, p->len) ? "its answer is no text" : NULL;
}

static bool ask_grow(struct round *r, struct peer *p, struct ask *a)
{
	size_t room = a->room ? 2 * a->room : READ_B;
	char *more;

	if (a->room - a->len > READ_B / 4)
		return true;
	if (room > PEERS_TEXT_MAX || r->all_b + room - a->room > PEERS_ALL_MAX)
		return false;
	more = realloc(p->answer, room);
	if (!more)
		return false;
	r->all_b += room - a->room;
	p->answer = more;
	a->room = room;
	return true;
}

static void ask_read(struct round *r, unsigned i)
{
	struct peer *p = &r->peers->v[i];
	struct ask *a = &r->asks[i];
	ssize_t n;

	if (!ask_grow(r, p, a)) {
		ask_end(r, i, "its answer is too long");
		return;
	}
	n = recv(a->fd, p->answer + a->len, a->room - a->len - 1, 0);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n > 0)
		a->len += (size_t)n;
	else
		ask_end(r, i, n < 0 ? "it broke off" : answer_take(p, a));
}

/* Return: how many have yet to answer. */
static unsigned round_poll(struct round *r, uint64_t until_ns)
{
	uint64_t now = gx_now();
	struct pollfd fds[PEERS_MAX];
	unsigned of[PEERS_MAX], n = 0, nr_busy = 0;
	uint64_t wait_ms;

	for (unsigned i = 0; i < r->peers->nr; i++) {
		if (r->asks[i].busy)
			ask_begin(r, i);
		if (r->asks[i].busy)
			nr_busy++;
		else if (r->asks[i].fd >= 0)
			fds[of[n] = i, n++] =
				(struct pollfd){.fd = r->asks[i].fd, .events = POLLIN};
	}
	if (now >= until_ns || !(n + nr_busy))
		return 0;
	wait_ms = (until_ns - now) / 1000000 + 1;
	if (nr_busy && wait_ms > BUSY_MS)
		wait_ms = BUSY_MS;
	if (poll(fds, n, (int)wait_ms) < 0)
		return n + nr_busy;
	for (unsigned k = 0; k < n; k++)
		if (fds[k].revents)
			ask_read(r, of[k]);
	return n + nr_busy;
}

int peers_ask(const char *dir, const char *path, struct peers *out)
{
	uint64_t until_ns = gx_now() + PEERS_WAIT_NS;
	struct round r = {.path = path, .peers = out};
	int ret = -ENOMEM;

	*out = (struct peers){0};
	r.dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (r.dir < 0)
		return -errno;
	out->v = calloc(PEERS_MAX, sizeof(*out->v));
	r.asks = calloc(PEERS_MAX, sizeof(*r.asks));
	if (out->v && r.asks)
		ret = dir_list(&r);
	for (unsigned i = 0; i < out->nr; i++)
		ask_begin(&r, i);
	while (round_poll(&r, until_ns))
		;
	for (unsigned i = 0; i < out->nr; i++)
		if (r.asks[i].fd >= 0)
			ask_end(&r, i, "it does not answer: is it stopped?");
	free(r.asks);
	close(r.dir);
	return ret;
}

void peers_free(struct peers *p)
{
	for (unsigned i = 0; i < p->nr; i++)
		free(p->v[i].answer);
	free(p->v);
	*p = (struct peers){0};
}
