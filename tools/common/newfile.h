/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that comes into being whole: it has its name only when all of it is written, so that what
 * was there before is there until then, and nothing is left of one that was not finished. One
 * thread at a time.
 */
#ifndef NEWFILE_H
#define NEWFILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/** struct newfile - One of them. Read-only outside. */
struct newfile {
	int fd;	       /* -1: none. To read from as well, unless @stream */
	bool stream;   /* a device or a pipe: it is written to as it is, and keeps its name */
	bool force;    /* what has the name meanwhile may go */
	bool nameless; /* it has no name yet, not even @part */
	mode_t mode;   /* of what is replaced; 0: by the umask */
	char path[PATH_MAX], part[PATH_MAX];
};

#define NEWFILE_NONE                                                                               \
	{                                                                                          \
		.fd = -1                                                                           \
	}

/**
 * newfile_open() - Begin @path.
 * @force: a regular file that is there is replaced when the new one is whole
 * Return: 0; -EEXIST (it is there, and not @force), -ENXIO (a FIFO that nobody reads), -EISDIR,
 * or what the system says of the folder.
 */
int newfile_open(struct newfile *f, const char *path, bool force);
/** newfile_write() - Append. Return: 0, -errno; then newfile_drop() is what is left to do. */
int newfile_write(struct newfile *f, const void *buf, size_t len);
/** newfile_keep() - It is whole: give it its name. Return: 0, -errno; @f is closed either way. */
int newfile_keep(struct newfile *f);
/** newfile_drop() - Leave nothing of it. One that is not open is fine. */
void newfile_drop(struct newfile *f);

#endif
