/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that appears whole: it gets its name only when all of it is written. Until then an older
 * file of that name stays, and nothing is left of an unfinished file. One thread at a time.
 */
#ifndef NEWFILE_H
#define NEWFILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/** struct newfile - A file in the making. Read-only outside. */
struct newfile {
	int fd;	       /* -1: none. Readable too, unless @stream */
	bool stream;   /* a device or a pipe: written directly, keeps its name */
	bool force;    /* may replace a file that has the name by then */
	bool nameless; /* it has no name yet, not even @part */
	mode_t mode;   /* of the file to replace; 0: by the umask */
	char path[PATH_MAX], part[PATH_MAX];
};

#define NEWFILE_NONE                                                                               \
	{                                                                                          \
		.fd = -1                                                                           \
	}

/**
 * newfile_open() - Begin @path.
 * @force: replace a regular file of that name when the new one is whole
 * Return: 0; -EEXIST (the file exists, no @force), -ENXIO (a FIFO without a reader), -EISDIR, or
 * the system's error for the folder.
 */
int newfile_open(struct newfile *f, const char *path, bool force);
/** newfile_take() - Write to @fd, which has a place or a reader already. */
void newfile_take(struct newfile *f, int fd);
/** newfile_write() - Append. Return: 0, -errno; after an error call newfile_drop(). */
int newfile_write(struct newfile *f, const void *buf, size_t len);
/** newfile_keep() - The file is whole: give it its name. Return: 0, -errno; @f is closed either
 * way. */
int newfile_keep(struct newfile *f);
/** newfile_drop() - Leave nothing of the file. @f need not be open. */
void newfile_drop(struct newfile *f);

#endif
