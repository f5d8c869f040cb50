/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of an RDMA device that connect queue pairs. Each address that is waited for has a thread, up
 * to VERBS_DIALLERS: a thread that ends a look takes the first one that waits for an address which no
 * other thread looks for.
 */
#include "verbs/verbs_dial.h"

#include "gx_internal/base.h"

#include <errno.h>
#include <string.h>

#define DIAL_STACK_B (256u << 10)

bool verbs_dial_no_answer(int err)
{
	return err == -ETIMEDOUT || err == -EHOSTUNREACH || err == -ENETUNREACH || err == -ENODATA;
}

static bool dial_is_like(const struct verbs_dial *a, const struct verbs_dial *b)
{
	return !memcmp(a->to, b->to, sizeof(a->to));
}

static void dial_end(struct verbs_dial *d, int err)
{
	d->err = err;
	/* Pairs with the acquire in verbs_dial_is_out(): the caller may have it from here on. */
	atomic_store_explicit(&d->state, VERBS_DIAL_DONE, memory_order_release);
}

static void dials_unlink(struct verbs_dials *ds, struct verbs_dial **at)
{
	*at = (*at)->next;
	if (!*at)
		ds->last = at;
}

static bool address_is_taken(const struct verbs_dials *ds, const struct verbs_dial *d)
{
	for (unsigned i = 0; i < VERBS_DIALLERS; i++)
		if (ds->running[i] && dial_is_like(ds->running[i], d))
			return true;
	return false;
}

/* NULL: none that may run. */
static struct verbs_dial *dials_next(struct verbs_dials *ds)
{
	for (struct verbs_dial **at = &ds->first; *at; at = &(*at)->next) {
		struct verbs_dial *d = *at;

		if (address_is_taken(ds, d))
			continue;
		dials_unlink(ds, at);
		atomic_store_explicit(&d->state, VERBS_DIAL_RUNS, memory_order_relaxed);
		return d;
	}
	return NULL;
}

/* Those that wait for the address of @d, or with NULL all, have their answer. */
static void dials_end(struct verbs_dials *ds, const struct verbs_dial *d, int err)
{
	struct verbs_dial **at = &ds->first;

	while (*at) {
		struct verbs_dial *other = *at;

		if (d && !dial_is_like(other, d)) {
			at = &other->next;
			continue;
		}
		dials_unlink(ds, at);
		dial_end(other, err);
	}
}

static void dials_run(struct verbs_dials *ds, struct verbs_dial *d, unsigned self)
{
	int err;

	ds->running[self] = d;
	pthread_mutex_unlock(&ds->lock);
	err = d->run(d);
	pthread_mutex_lock(&ds->lock);
	ds->running[self] = NULL;
	if (verbs_dial_no_answer(err))
		dials_end(ds, d, err);
	dial_end(d, err);
}

static void dials_sleep(struct verbs_dials *ds)
{
	ds->nr_idle++;
	while (!ds->nr_wakes && !ds->stop)
		pthread_cond_wait(&ds->cond, &ds->lock);
	ds->nr_wakes -= ds->nr_wakes != 0;
}

static void *dials_main(void *arg)
{
	struct verbs_dials *ds = arg;
	unsigned self = 0;

	pthread_mutex_lock(&ds->lock);
	while (!pthread_equal(ds->thread[self], pthread_self()))
		self++;
	while (!ds->stop) {
		struct verbs_dial *d = dials_next(ds);

		if (d)
			dials_run(ds, d, self);
		else
			dials_sleep(ds);
	}
	pthread_mutex_unlock(&ds->lock);
	return NULL;
}

/* Return: 0; -errno: it has as many as may be, or there can be no more. */
static int thread_new(struct verbs_dials *ds)
{
	pthread_attr_t attr;
	int ret;

	if (ds->nr_threads == VERBS_DIALLERS)
		return -EAGAIN;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, DIAL_STACK_B);
	ret = -pthread_create(&ds->thread[ds->nr_threads], &attr, dials_main, ds);
	pthread_attr_destroy(&attr);
	ds->nr_threads += !ret;
	return ret;
}

/* How many addresses are waited for that no thread looks for? */
static unsigned dials_due(const struct verbs_dials *ds)
{
	unsigned n = 0;

	for (const struct verbs_dial *d = ds->first; d; d = d->next) {
		const struct verbs_dial *before = ds->first;

		while (before != d && !dial_is_like(before, d))
			before = before->next;
		n += before == d && !address_is_taken(ds, d);
	}
	return n;
}

/* An address more is waited for. A thread that was made or woken for another one, and finds that taken,
 * takes this one. Return: false: no thread will come. */
static bool dials_wake(struct verbs_dials *ds)
{
	unsigned busy = ds->nr_idle;

	for (unsigned i = 0; i < VERBS_DIALLERS; i++)
		busy += ds->running[i] != NULL;
	if (ds->nr_threads > busy && dials_due(ds) <= ds->nr_threads - busy)
		return true;
	if (!ds->nr_idle)
		return !thread_new(ds) || ds->nr_threads;
	ds->nr_idle--;
	ds->nr_wakes++;
	pthread_cond_signal(&ds->cond);
	return true;
}

void verbs_dial(struct verbs_dials *ds, struct verbs_dial *d)
{
	bool like;

	pthread_mutex_lock(&ds->lock);
	like = address_is_taken(ds, d);
	for (const struct verbs_dial *other = ds->first; other && !like; other = other->next)
		like = dial_is_like(other, d);
	d->next = NULL;
	*ds->last = d;
	ds->last = &d->next;
	atomic_store_explicit(&d->state, VERBS_DIAL_WAITS, memory_order_relaxed);
	if (!like && !dials_wake(ds))
		dials_run(ds, dials_next(ds), 0); /* better wait than never connect */
	pthread_mutex_unlock(&ds->lock);
}

void verbs_dial_cancel(struct verbs_dials *ds, struct verbs_dial *d)
{
	if (!verbs_dial_is_out(d))
		return;
	pthread_mutex_lock(&ds->lock);
	for (struct verbs_dial **at = &ds->first; *at; at = &(*at)->next) {
		if (*at != d)
			continue;
		dials_unlink(ds, at);
		dial_end(d, -ECANCELED);
		break;
	}
	pthread_mutex_unlock(&ds->lock);
}

int verbs_dial_take(struct verbs_dial *d)
{
	if (atomic_load_explicit(&d->state, memory_order_acquire) != VERBS_DIAL_DONE)
		return 0;
	atomic_store_explicit(&d->state, VERBS_DIAL_NONE, memory_order_relaxed);
	return d->err;
}

void verbs_dials_init(struct verbs_dials *ds)
{
	pthread_mutex_init(&ds->lock, NULL);
	pthread_cond_init(&ds->cond, NULL);
	ds->last = &ds->first;
}

void verbs_dials_close(struct verbs_dials *ds)
{
	pthread_mutex_lock(&ds->lock);
	ds->stop = true;
	dials_end(ds, NULL, -ECANCELED);
	pthread_cond_broadcast(&ds->cond);
	pthread_mutex_unlock(&ds->lock);
	for (unsigned i = 0; i < ds->nr_threads; i++)
		pthread_join(ds->thread[i], NULL);
	pthread_cond_destroy(&ds->cond);
	pthread_mutex_destroy(&ds->lock);
}
