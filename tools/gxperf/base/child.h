/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs that gxperf starts: gxd for the demo, the command that runs during a load. Main thread only.
 */
#ifndef CHILD_H
#define CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/** struct child - A started program. CHILD_NONE: none. */
struct child {
	pid_t pid;    /* 0: not running */
	int out, err; /* memfds that take its output; -1: it prints to our output */
	int status;   /* of waitpid(), once it has ended */
};

#define CHILD_NONE                                                                                 \
	{                                                                                          \
		.out = -1, .err = -1                                                               \
	}

#define CHILD_NOT_RUN 127 /* exit status: the program could not run */
#define CHILD_SIGNAL  128 /* plus the signal that ended it */

/** child_start() - Run @file with @argv. Without a slash in @file it searches PATH. The program
 * gets SIGTERM when we die, and the default of SIGPIPE.
 * @in: its standard input; -1: nothing
 * @keep: keep its output
 * Return: 0, -errno. If @file cannot run, the exit status is CHILD_NOT_RUN, with a line on its
 * stderr. */
int child_start(struct child *c, const char *file, char *const argv[], int in, bool keep);
/** child_ended() - Has it ended? Does not wait. */
bool child_ended(struct child *c);
/** child_end() - Wait for its end, at most @limit_ns; then end it by SIGTERM, and by SIGKILL.
 * Return: its exit status, or CHILD_SIGNAL and the signal. */
int child_end(struct child *c, uint64_t limit_ns);
/** child_stop() - SIGTERM now. */
void child_stop(struct child *c);
void child_close(struct child *c); /* drops its kept output */

/** child_text() - The content of ->out or ->err; the caller frees it. NULL: no memory. */
char *child_text(int fd, size_t *len);

/** child_self() - Path of the program @name in our folder; NULL: of this program. */
int child_self(const char *name, char *buf, size_t room); /* 0, -errno */

#endif
