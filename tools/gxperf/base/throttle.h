/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A page of shared memory between gxperf overlap and the sub-command that it runs during a load. It
 * counts the messages that the command may begin and those that have ended. overlap makes the page.
 * The command joins it by the descriptor of --throttle, warms up, reports ready, and then begins
 * only messages that it has taken from the throttle.
 */
#ifndef THROTTLE_H
#define THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

enum throttle_mode {
	THROTTLE_REST, /* none: the command's threads sleep */
	THROTTLE_STEP, /* as many messages as throttle_allow() gave */
	THROTTLE_RUN,  /* as fast as the command can */
	THROTTLE_END,  /* no more: check the payload, print, exit */
};

/* ---- overlap's side: one thread ---- */

struct throttle; /* the page */

/** throttle_open() - Return: 0 with a descriptor that a child inherits, -errno. */
int throttle_open(struct throttle **out, int *fd);
void throttle_close(struct throttle *t, int fd); /* NULL and -1 are fine */
void throttle_mode(struct throttle *t, enum throttle_mode mode);
/** throttle_allow() - In THROTTLE_STEP: allow @n more messages. */
void throttle_allow(struct throttle *t, uint64_t n);
/** throttle_settle() - Change to THROTTLE_STEP. Allow so many more that the number of begun
 * messages becomes a multiple of @unit. Return: that number, since the page was made. */
uint64_t throttle_settle(struct throttle *t, uint64_t unit);
uint64_t throttle_ended(const struct throttle *t);
/** throttle_size() - Bytes of a message; false: the command is not ready yet. */
bool throttle_size(const struct throttle *t, uint64_t *size_b);

/* ---- The command's side ---- */

/** throttle_join() - Call it before any thread starts. The process then ends with its parent, which
 * made the page. Return: 0, -errno (no such descriptor, or no page). */
int throttle_join(int fd);
bool throttle_on(void); /* has this process joined? */
/** throttle_ready() - The command is warm and sends messages of @size_b bytes; overlap counts from
 * now on. */
void throttle_ready(uint64_t size_b);
/** throttle_take() - Take up to @n messages from the throttle. Return: how many may begin. Any
 * thread. */
uint64_t throttle_take(uint64_t n);
void throttle_done(uint64_t n); /* @n have ended; any thread */
bool throttle_rests(void);	/* joined, and THROTTLE_REST */
bool throttle_ends(void);	/* joined, and THROTTLE_END or given up */
void throttle_give_up(void);	/* a failure: all threads come to an end; any thread */

#endif
