/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A page of shared memory between gxperf overlap and the sub-command that it runs beside a load. It
 * counts the messages that the command may begin and those that have ended. overlap makes the page.
 * The command joins it by the descriptor of --gate, warms up, reports ready, and then begins only
 * messages that it has taken from the gate.
 */
#ifndef GATE_H
#define GATE_H

#include <stdbool.h>
#include <stdint.h>

enum gate_mode {
	GATE_REST, /* none: the command's threads sleep */
	GATE_STEP, /* as many messages as gate_allow() gave */
	GATE_RUN,  /* as fast as the command can */
	GATE_END,  /* no more: check the payload, print, exit */
};

/* ---- overlap's side: one thread ---- */

struct gate; /* the page */

/** gate_open() - Return: 0 with a descriptor that a child inherits, -errno. */
int gate_open(struct gate **out, int *fd);
void gate_close(struct gate *g, int fd); /* NULL and -1 are fine */
void gate_mode(struct gate *g, enum gate_mode mode);
/** gate_allow() - In GATE_STEP: allow @n more messages. */
void gate_allow(struct gate *g, uint64_t n);
/** gate_settle() - Change to GATE_STEP. Allow so many more that the number of begun messages
 * becomes a multiple of @unit. Return: that number, since the page was made. */
uint64_t gate_settle(struct gate *g, uint64_t unit);
uint64_t gate_ended(const struct gate *g);
/** gate_size() - Bytes of a message; false: the command is not ready yet. */
bool gate_size(const struct gate *g, uint64_t *size_b);

/* ---- The command's side ---- */

/** gate_join() - Call it before any thread starts. The process then ends with its parent, which
 * made the page. Return: 0, -errno (no such descriptor, or no page). */
int gate_join(int fd);
bool gate_on(void); /* has this process joined? */
/** gate_ready() - The command is warm and sends messages of @size_b bytes; overlap counts from now
 * on. */
void gate_ready(uint64_t size_b);
/** gate_take() - Take up to @n messages from the gate. Return: how many may begin. Any thread. */
uint64_t gate_take(uint64_t n);
void gate_done(uint64_t n); /* @n have ended; any thread */
bool gate_rests(void);	    /* joined, and GATE_REST */
bool gate_ends(void);	    /* joined, and GATE_END or given up */
void gate_give_up(void);    /* a failure: all threads come to an end; any thread */

#endif
