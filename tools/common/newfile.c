// SPDX-License-Identifier: Apache-2.0
/*
 * Files that come into being whole (see newfile.h): without a name where the file system can do
 * that, else under one of their own, until they are renamed.
 */
#include "common/newfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Not a regular file: nothing of it can be replaced, and what is written is gone at once. */
static int newfile_stream(struct newfile *f)
{
	/* Without O_NONBLOCK a FIFO that nobody reads would be waited for. */
	f->fd = open(f->path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
	if (f->fd < 0)
		return -errno;
	f->stream = true;
	fcntl(f->fd, F_SETFL, fcntl(f->fd, F_GETFL) & ~O_NONBLOCK);
	return 0;
}

/* The name while it is written: hidden, beside the one it will have, ours alone. */
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
	/* What a kernel or file system says that does not know of it. */
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
		/* A link stays one: what it names is replaced. */
		if (!realpath(path, f->path))
			return -errno;
	} else if (errno != ENOENT) {
		return -errno;
	}
	ret = newfile_part(f);
	return ret ? ret : newfile_begin(f);
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

/* All of it is on its way to the disk, under @part. Some file systems say only at the close that
 * there was no room. */
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

/* From @part to @path, not over a file that somebody has made meanwhile. */
static int newfile_name(const struct newfile *f)
{
	if (f->force)
		return rename(f->part, f->path) ? -errno : 0;
	if (!link(f->part, f->path))
		return unlink(f->part) ? -errno : 0;
	/* No hard links there? */
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
