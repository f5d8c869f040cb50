// SPDX-License-Identifier: Apache-2.0
/*
 * Files that appear whole (see newfile.h). Until then a file has no name, or, if the file system
 * needs one, a name of its own.
 */
#include "gxperf/report/newfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Not a regular file: it is not replaced, and each write has its effect at once. */
static int newfile_stream(struct newfile *f)
{
	/* Without O_NONBLOCK the open would wait for a reader of a FIFO. */
	f->fd = open(f->path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
	if (f->fd < 0)
		return -errno;
	f->stream = true;
	fcntl(f->fd, F_SETFL, fcntl(f->fd, F_GETFL) & ~O_NONBLOCK);
	return 0;
}

/* The name while it is written: hidden, in the same folder, ours alone. */
static int newfile_part(struct newfile *f)
{
	const char *slash = strrchr(f->path, '/');
	int dir = slash ? (int)(slash - f->path) + 1 : 0, n;

	n = snprintf(f->part, sizeof(f->part), "%.*s.%.200s.%d.part", dir, f->path, f->path + dir,
		     (int)getpid());
	return n < 0 || (size_t)n >= sizeof(f->part) ? -ENAMETOOLONG : 0;
}

static int newfile_begin(struct newfile *f)
{
	char folder[PATH_MAX];
	const char *slash = strrchr(f->path, '/');

	snprintf(folder, sizeof(folder), "%.*s",
		 slash ? (slash == f->path ? 1 : (int)(slash - f->path)) : 1,
		 slash ? f->path : ".");
	f->fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
	f->nameless = f->fd >= 0;
	/* The errors of a kernel or file system without O_TMPFILE. */
	if (f->fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL))
		f->fd = open(f->part, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	return f->fd < 0 ? -errno : 0;
}

int newfile_open(struct newfile *f, const char *path, bool force)
{
	struct stat st;
	int ret;

	*f = (struct newfile){.fd = -1, .force = force};
	if (strlen(path) >= sizeof(f->path))
		return -ENAMETOOLONG;
	if (!path[0])
		return -ENOENT;
	snprintf(f->path, sizeof(f->path), "%s", path);
	if (!stat(path, &st)) {
		if (S_ISDIR(st.st_mode))
			return -EISDIR;
		if (!S_ISREG(st.st_mode))
			return newfile_stream(f);
		if (!force)
			return -EEXIST;
		f->mode = st.st_mode & 07777;
		/* A link stays a link: the new file replaces its target. */
		if (!realpath(path, f->path))
			return -errno;
	} else if (errno != ENOENT) {
		return -errno;
	}
	ret = newfile_part(f);
	return ret ? ret : newfile_begin(f);
}

void newfile_take(struct newfile *f, int fd)
{
	*f = (struct newfile){.fd = fd, .stream = true};
}

int newfile_write(struct newfile *f, const void *buf, size_t len)
{
	for (size_t at = 0; at < len;) {
		ssize_t n = write(f->fd, (const char *)buf + at, len - at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? -errno : -ENOSPC;
		at += (size_t)n;
	}
	return 0;
}

/* Give the whole file the name @part. Some file systems report a lack of room only at the close. */
static int newfile_finish(struct newfile *f)
{
	char name[64];
	int fd = f->fd;

	if (f->mode && fchmod(fd, f->mode))
		return -errno;
	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	if (f->nameless && linkat(AT_FDCWD, name, AT_FDCWD, f->part, AT_SYMLINK_FOLLOW))
		return -errno;
	f->nameless = false;
	f->fd = -1;
	return close(fd) ? -errno : 0;
}

/* Rename @part to @path. Without force it must not replace a file that another program has made
 * meanwhile. */
static int newfile_name(const struct newfile *f)
{
	if (f->force)
		return rename(f->part, f->path) ? -errno : 0;
	if (!link(f->part, f->path))
		return unlink(f->part) ? -errno : 0;
	/* No hard links on this file system? */
	if (errno != EPERM && errno != EOPNOTSUPP)
		return -errno;
	if (!access(f->path, F_OK))
		return -EEXIST;
	return rename(f->part, f->path) ? -errno : 0;
}

int newfile_keep(struct newfile *f)
{
	int fd = f->fd, ret;

	if (f->stream) {
		f->fd = -1;
		return close(fd) ? -errno : 0;
	}
	ret = newfile_finish(f);
	if (!ret)
		ret = newfile_name(f);
	if (ret && !f->nameless)
		unlink(f->part);
	if (ret)
		newfile_drop(f);
	return ret;
}

void newfile_drop(struct newfile *f)
{
	if (f->fd < 0)
		return;
	if (!f->stream && !f->nameless)
		unlink(f->part);
	close(f->fd);
	f->fd = -1;
}
