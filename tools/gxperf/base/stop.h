/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGINT and SIGTERM: the first asks the program to end in order; its threads poll stop_asked(). If
 * that takes too long, or at the second signal, the program writes its results so far and ends. The
 * third kills.
 */
#ifndef STOP_H
#define STOP_H

#include <stdbool.h>
#include <stdint.h>

/**
 * stop_open() - Install the handlers. Main thread, once. A forked process that runs no other
 * program dies of the signals, as by default.
 * @last: called on a thread of its own, @grace_ns after the first signal or at the second one; must
 * not return
 * Return: 0, -errno.
 */
int stop_open(uint64_t grace_ns, void (*last)(void *arg, int signo), void *arg);
/** stop_grace() - There is something to end in order from now on: give it so long. */
void stop_grace(uint64_t grace_ns);
#define STOP_GRACE_NS 5000000000ull
/** stop_asked() - The first signal, or 0. Any thread. */
int stop_asked(void);

#endif
