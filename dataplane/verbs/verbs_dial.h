/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connecting a queue pair may take a second: the kernel looks for the peer's address first, and waits
 * for an answer. So threads of the device do it, one at a time for each address. A look that finds no
 * answer is the answer for all that wait for that address. The control thread calls everything here,
 * and waits for nothing.
 */
#ifndef GX_VERBS_DIAL_H
#define GX_VERBS_DIAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define VERBS_DIALLERS 16 /* threads of a device, made as they are needed: addresses at a time */
#define VERBS_DIAL_B   20 /* of an address: GID, LID, and zeros */

enum verbs_dial_state {
	VERBS_DIAL_NONE,
	VERBS_DIAL_WAITS, /* in the device's list */
	VERBS_DIAL_RUNS,  /* owner: a thread of the device */
	VERBS_DIAL_DONE,
};

/* owner: the caller, but where it runs */
struct verbs_dial {
	struct verbs_dial *next;
	uint8_t to[VERBS_DIAL_B];
	int (*run)(struct verbs_dial *d); /* on a thread of the device. 0, -errno */
	int err;			  /* DONE: what run() has said; -ECANCELED */
	_Atomic int state;		  /* changes under the lock, but for NONE */
};

/* Of a device. All under the lock */
struct verbs_dials {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct verbs_dial *first, **last; /* WAITS */
	struct verbs_dial *running[VERBS_DIALLERS];
	pthread_t thread[VERBS_DIALLERS];
	unsigned nr_threads, nr_idle; /* idle: and nobody has woken it */
	unsigned nr_wakes;	      /* for threads that do not know it yet */
	bool stop;
};

void verbs_dials_init(struct verbs_dials *ds);
/** verbs_dials_close() - What waits is cancelled; what runs is waited for. */
void verbs_dials_close(struct verbs_dials *ds);
/** verbs_dial() - Have @d run, whose .to and .run are set. It stays until it is no longer out. */
void verbs_dial(struct verbs_dials *ds, struct verbs_dial *d);
/** verbs_dial_cancel() - If it has not begun, it is done; otherwise nothing happens. */
void verbs_dial_cancel(struct verbs_dials *ds, struct verbs_dial *d);
/** verbs_dial_take() - What has it said? Told once; 0 where there is nothing. It is not out. */
int verbs_dial_take(struct verbs_dial *d);
/** verbs_dial_no_answer() - Does @err say that the address was not found? */
bool verbs_dial_no_answer(int err);

/* Pairs with the release in dial_end(): what the thread did is seen. */
static inline bool verbs_dial_is_out(const struct verbs_dial *d)
{
	int state = atomic_load_explicit(&d->state, memory_order_acquire);

	return state == VERBS_DIAL_WAITS || state == VERBS_DIAL_RUNS;
}

#endif
