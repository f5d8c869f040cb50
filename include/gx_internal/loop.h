/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One polling loop: pollers in a fixed order, one turn, and a thread that turns. The loop knows
 * nothing of its pollers' work. The one thread that calls gx_loop_turn() owns the loop and all its
 * pollers.
 */
#ifndef GX_INTERNAL_LOOP_H
#define GX_INTERNAL_LOOP_H

#include "gx_internal/base.h"
#include "gx_internal/ring.h"
#include "gx_internal/sleep.h"
#include "gx_internal/stat.h"

#include <pthread.h>

#define GX_LOOP_POLLERS_MAX 33

/** gx_poller - @fn does a bounded piece of work and returns whether there was any. Never blocks.
 * @asleep, called by the owner: true: no work comes for it before the next gx_loop_call(). NULL:
 * work may come at any time. When all pollers sleep, the loop's own thread sleeps until such a
 * call, and turns every 0.1 s meanwhile.
 * @look, called by the owner that is about to sleep on a descriptor, after a turn without work: see
 * gx_loop_look(). NULL: it cannot sleep so, unless @asleep says true. */
struct gx_look;
struct gx_poller {
	const char *name;
	bool (*fn)(void *arg, uint64_t now_ns);
	void *arg;
	bool (*asleep)(const void *arg);
	int (*look)(void *arg, struct gx_look *look);
};

/* An owner that is about to sleep. */
struct gx_look {
	int fd;		   /* epoll: has the descriptors that end the sleep */
	uint64_t now_ns;   /* time of the turn just before */
	uint64_t until_ns; /* what a poller wants a turn for comes at this time: pollers lower it */
	const char *who;   /* out, with an error: the poller that cannot sleep */
};

/* Idle policy, in turns without work: spin until @spin_ns, then pause instructions until @pause_ns,
 * then sleeps that double from 1 us to @sleep_max_ns. @sleep_max_ns 0: never sleep (the default).
 * Later a sleep is a 2,048th of the idle time, up to @long_max_ns, if that is longer. So work after
 * a long idle time comes late by no larger part of it. */
struct gx_idle {
	uint64_t spin_ns, pause_ns, sleep_max_ns, long_max_ns;
};
/* Length of the sleep after @idle_ns without work. 0: no sleep. */
uint64_t gx_idle_sleep_ns(const struct gx_idle *idle, uint64_t idle_ns);

/** gx_call - A function that the owner runs once, between two pollers, for the control thread. */
struct gx_call {
	void (*fn)(struct gx_call *call);
};

struct gx_loop {
	struct gx_poller poller[GX_LOOP_POLLERS_MAX]; /* owner: poll core; order of addition */
	unsigned nr_pollers;
	struct gx_ring *inbox;	/* struct gx_call: from the control thread to the owner */
	struct gx_stats stats;	/* written by the owner */
	struct gx_idle idle;	/* frozen after start */
	uint64_t idle_since_ns; /* owner; 0: the last turn was busy */
	uint64_t last_cycles;	/* owner: TSC at the end of the last turn */
	uint64_t turn_ns;	/* owner: time of the last turn; 0: none since it parked */
	bool enough;		/* owner: a call was long, so the others wait for the next turn */
	_Atomic uint64_t stall_ns; /* owner: length of the last stall; read by any */
	pthread_t thread;	   /* owner: control path */
	int cpu;		   /* -1: not pinned */
	int err;		   /* -errno of a start that failed in the thread */
	bool running;		   /* owner: control path */
	_Atomic bool stop;
	_Atomic int started;	   /* tid of the thread once it has started; 0: there is none */
	pthread_mutex_t park_lock; /* of the two below; the owner takes it only to sleep */
	pthread_cond_t park_cond;
	_Atomic unsigned parked; /* the loop's thread sleeps, or is about to check whether it may */
	struct gx_sleep sleep;	 /* owner; gx_loop_call(), and others with work, wake it */
};

/** gx_loop_init() - @cpu: gx_loop_start() pins the thread to it; -1: to none. Return: 0,
 * -ENOMEM. */
int gx_loop_init(struct gx_loop *loop, int cpu, const struct gx_idle *idle);
void gx_loop_fini(struct gx_loop *loop);

/** gx_loop_add() - From the owner, or before start. Return: 0, -ENOSPC. */
int gx_loop_add(struct gx_loop *loop, const struct gx_poller *p);

/** gx_loop_turn() - Run the inbox, then every poller once. Return: true if any did work. Counts
 * cycles. Counts a stall if the turn before was a second ago or more: that is not a peer's
 * fault. */
bool gx_loop_turn(struct gx_loop *loop, uint64_t now_ns);

/** gx_loop_calls() - The owner, outside of a turn: run all of the inbox, and no poller. */
void gx_loop_calls(struct gx_loop *loop);

/** gx_loop_look() - The owner has armed .sleep: does any work lie there for a turn, wherever a turn
 * may look? Return: 0: none, and none comes before @look->until_ns without a wake or a descriptor in
 * @look->fd; 1: there is; -EOPNOTSUPP: a poller cannot know. */
int gx_loop_look(struct gx_loop *loop, struct gx_look *look);

/** gx_loop_idle() - The loop's own thread calls it after a turn without work (see gx_idle). */
void gx_loop_idle(struct gx_loop *loop, uint64_t now_ns);

/**
 * gx_loop_call() - Control thread only: have the owner run @call. The caller keeps @call untouched
 * until it has run. Return: 0, -EAGAIN when the inbox is full.
 */
int gx_loop_call(struct gx_loop *loop, struct gx_call *call);

/** gx_loop_start() - Make a thread named @name, pin it, turn until gx_loop_stop(). Return: 0,
 * -errno. */
int gx_loop_start(struct gx_loop *loop, const char *name);
void gx_loop_stop(struct gx_loop *loop); /* joins; idempotent */

#endif
