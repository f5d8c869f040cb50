/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs that gxperf starts: gxd for the demo, the command beside a load, gnuplot. Main thread
 * only.
 */
#ifndef CHILD_H
#define CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/** struct child - One of them. CHILD_NONE: none. */
struct child {
	pid_t pid;    /* 0: not running */
	int out, err; /* memfds with what it prints; -1: it prints where we do */
	int status;   /* of waitpid(), once it has ended */
};

#define CHILD_NONE                                                                                 \
	{                                                                                          \
		.out = -1, .err = -1                                                               \
	}

#define CHILD_NOT_RUN 127 /* exit status: the program could not be run */
#define CHILD_SIGNAL  128 /* and the number of the signal that ended it */

/** child_start() - Run @file (looked for on PATH unless it has a slash) with @argv. It gets SIGTERM
 * when we die, and SIGPIPE's default.
 * @in: its standard input, or -1: nothing
 * @keep: what it prints is kept
 * Return: 0, -errno; that @file cannot be run is CHILD_NOT_RUN, and said on its stderr. */
int child_start(struct child *c, const char *file, char *const argv[], int in, bool keep);
/** child_ended() - Has it? Does not wait. */
bool child_ended(struct child *c);
/** child_end() - Wait until it has ended, for @limit_ns; then make it, by SIGTERM and by SIGKILL.
 * Return: its exit status, or CHILD_SIGNAL and more. */
int child_end(struct child *c, uint64_t limit_ns);
/** child_stop() - SIGTERM now. */
void child_stop(struct child *c);
void child_close(struct child *c); /* what it has printed is gone */

/** child_text() - What is in ->out or ->err, to be freed. NULL: no memory. */
char *child_text(int fd, size_t *len);

/** child_self() - Path of a program @name beside this one; NULL: of this one. */
int child_self(const char *name, char *buf, size_t room); /* 0, -errno */

#endif
