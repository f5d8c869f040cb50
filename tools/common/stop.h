/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGINT and SIGTERM: the first one asks whoever looks to end in order; when that takes too long,
 * or at the second one, what there is is written out and the process ends. The third kills.
 */
#ifndef STOP_H
#define STOP_H

#include <stdbool.h>
#include <stdint.h>

/**
 * stop_open() - From now on. Main thread, once. A process that is forked and runs no other program
 * dies of the signals as ever.
 * @last: called on a thread of its own, @grace_ns after the first signal or at the second one; it
 * is not to return
 * Return: 0, -errno.
 */
int stop_open(uint64_t grace_ns, void (*last)(void *arg, int signo), void *arg);
/** stop_asked() - The signal that came, or 0. Any thread. */
int stop_asked(void);

#endif
