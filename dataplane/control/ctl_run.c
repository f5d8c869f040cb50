/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context publishes its counters where those of this host are found: in /run/gx, where that exists
 * and may be written; GX_RUN_DIR names another folder, and "" none. PID-N.sock is a stats socket.
 * PID-N.lock holds the program's name, and an flock as long as the context lives. Whoever finds it
 * free removes both. Runs on the thread of gx_open() and gx_close().
 */
#include "control/ctl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define RUN_DIR	    "/run/gx"
#define RUN_DIR_MAX 72	 /* what a socket's address has room for, beside its name */
#define RUN_MODE    0660 /* of both files: who is in the folder's group may look */
#define RUN_MAX	    64	 /* contexts of a process that are published */

/* The program's name, for a label: no byte in it needs a quote. */
static void run_name(char *out, size_t room)
{
	size_t n = 0;

	for (const char *p = program_invocation_short_name; *p && n + 1 < room; p++) {
		bool plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
			     (*p >= '0' && *p <= '9') || strchr("._-", *p);

		out[n++] = plain ? *p : '_';
	}
	out[n] = 0;
}

/* Whoever tidies up may have the lock first, and remove the file: then it is gone from the folder.
 * Return: -EAGAIN then. */
static int lock_hold(int fd)
{
	char name[32];
	struct stat st;
	ssize_t n, len;

	run_name(name, sizeof(name));
	len = (ssize_t)strlen(name);
	if (flock(fd, LOCK_EX | LOCK_NB) || fstat(fd, &st) || !st.st_nlink)
		return -EAGAIN;
	if (fchmod(fd, RUN_MODE))
		return -errno;
	n = write(fd, name, (size_t)len);
	return n < 0 ? -errno : n < len ? -ENOSPC : 0;
}

/* Return: 0; -EEXIST, -EAGAIN: another number may do; -errno. */
static int lock_make(struct ctl *ctl, const char *dir, unsigned n)
{
	int fd, ret;

	if ((size_t)snprintf(ctl->run_lock, sizeof(ctl->run_lock), "%s/%d-%u.lock", dir, getpid(),
			     n) >= sizeof(ctl->run_lock))
		return -ENAMETOOLONG;
	fd = open(ctl->run_lock, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, RUN_MODE);
	if (fd < 0)
		return -errno;
	ret = lock_hold(fd);
	if (!ret) {
		ctl->run_fd = gx_fd_own(fd);
		return 0;
	}
	if (ret != -EAGAIN) /* else that one removes it */
		unlink(ctl->run_lock);
	close(fd);
	return ret;
}

static int run_one(struct ctl *ctl, const char *dir, unsigned n)
{
	char path[sizeof(ctl->run_lock)];
	int ret = lock_make(ctl, dir, n);

	if (ret)
		return ret;
	snprintf(path, sizeof(path), "%s/%d-%u.sock", dir, getpid(), n);
	ret = ctl_stats_publish(ctl->gx, path, RUN_MODE);
	if (ret)
		ctl_run_close(ctl);
	return ret == -EADDRINUSE ? -EEXIST : ret;
}

/* Where no package has made the folder for this user's group, each user has one, if gxd has made it. */
static const char *run_dir(char own[RUN_DIR_MAX])
{
	const char *xdg = secure_getenv("XDG_RUNTIME_DIR");

	if (!xdg || !access(RUN_DIR, W_OK) ||
	    snprintf(own, RUN_DIR_MAX, "%s/gx", xdg) >= RUN_DIR_MAX)
		return RUN_DIR;
	return own;
}

void ctl_run_open(struct ctl *ctl)
{
	char own[RUN_DIR_MAX];
	const char *named = secure_getenv("GX_RUN_DIR"), *dir = named ? named : run_dir(own);
	int ret = -EEXIST;

	ctl->run_fd = -1;
	if (!*dir)
		return;
	for (unsigned n = 0; n < RUN_MAX && (ret == -EEXIST || ret == -EAGAIN); n++)
		ret = run_one(ctl, dir, n);
	if (ret)
		gx_log(named || ret == -ENOSPC ? GX_LOG_WARN : GX_LOG_DEBUG,
		       "counters are not published in %s: %s", dir, strerror(-ret));
}

void ctl_run_close(struct ctl *ctl)
{
	if (ctl->run_fd < 0)
		return;
	unlink(ctl->run_lock);
	gx_fd_close(ctl->run_fd);
	ctl->run_fd = -1;
}
