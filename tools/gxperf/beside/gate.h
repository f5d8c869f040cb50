/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between gxperf overlap and the sub-command that it runs beside a load: a page of shared memory
 * that says what the command may begin and what has ended, message by message. overlap makes it;
 * the command joins it by the descriptor that --gate names, warms up, says that it is ready, and
 * from then on begins only what it can take.
 */
#ifndef GATE_H
#define GATE_H

#include <stdbool.h>
#include <stdint.h>

enum gate_mode {
	GATE_REST, /* nothing: threads of the command sleep */
	GATE_STEP, /* what gate_allow() has given */
	GATE_RUN,  /* as much as it can */
	GATE_END,  /* nothing more: check the payload, print, exit */
};

/* ---- overlap's side: one thread ---- */

struct gate; /* the page */

/** gate_open() - Return: 0 with a descriptor that a child inherits, -errno. */
int gate_open(struct gate **out, int *fd);
void gate_close(struct gate *g, int fd); /* NULL and -1 are fine */
void gate_mode(struct gate *g, enum gate_mode mode);
/** gate_allow() - In GATE_STEP: @n more messages. */
void gate_allow(struct gate *g, uint64_t n);
/** gate_settle() - To GATE_STEP, with so much allowed that what was begun is a multiple of @unit.
 * Return: that, since the page was made. */
uint64_t gate_settle(struct gate *g, uint64_t unit);
uint64_t gate_ended(const struct gate *g);
/** gate_size() - Bytes of a message; false: the command is not ready yet. */
bool gate_size(const struct gate *g, uint64_t *size_b);

/* ---- The command's side ---- */

/** gate_join() - Before any thread is started. The process ends with the one that made the page.
 * Return: 0, -errno (no such descriptor, or no page). */
int gate_join(int fd);
bool gate_on(void); /* joined */
/** gate_ready() - Warm, messages of @size_b bytes; from here on overlap counts. */
void gate_ready(uint64_t size_b);
/** gate_take() - May @n messages begin? Return: how many. Any thread. */
uint64_t gate_take(uint64_t n);
void gate_done(uint64_t n); /* have ended; any thread */
bool gate_rests(void);	    /* joined, and GATE_REST */
bool gate_ends(void);	    /* joined, and GATE_END or given up */
void gate_give_up(void);    /* something has failed: all threads come to an end. Any thread. */

#endif
