/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams that did not finish when they were closed. The GPU may still read and write the memory of
 * their work, and the driver waits for them without bound before it frees anything of their
 * context. So gx gives back nothing of a GPU while such a stream of it is busy: every function that
 * frees asks cuda_is_lost(). Any thread of the control path.
 */
#include "cuda_priv.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define LOST_LOOKS 100 /* queries before the first sleep: most streams are done by then */
#define LOST_US	   100 /* a sleep */

static struct cuda_lost *lost_list;
static struct cuda_gpu *kept_list; /* GPUs that were closed and not released */
static atomic_uint nr_lost;
static pthread_mutex_t lost_lock = PTHREAD_MUTEX_INITIALIZER;

unsigned cuda_drain(struct CUstream_st *stm, uint64_t end_ns)
{
	unsigned res, looks = 0;

	while (cuda_is_busy(res = cu.cuStreamQuery(stm)) && gx_now_ns() < end_ns)
		if (++looks > LOST_LOOKS)
			usleep(LOST_US);
	return res;
}

void cuda_lose(struct cuda_lost *l, const char *what)
{
	gx_err("gpu %d: %s does not finish in time; until it does, nothing that the GPU was given "
	       "is freed",
	       l->g->gpu.device, what);
	pthread_mutex_lock(&lost_lock);
	if (!l->listed) {
		l->listed = true;
		l->next = lost_list;
		lost_list = l;
		atomic_fetch_add(&nr_lost, 1);
	}
	pthread_mutex_unlock(&lost_lock);
}

/* Take the streams of @g's context that have finished since out of the list. */
static struct cuda_lost *lost_ended(struct cuda_gpu *g, bool *left)
{
	struct cuda_lost **at = &lost_list, *l, *ended = NULL;

	*left = false;
	while ((l = *at)) {
		bool mine = l->g->ctx == g->ctx,
		     busy = mine && cuda_is_busy(cu.cuStreamQuery(l->stm));

		*left |= busy;
		if (!mine || busy) {
			at = &l->next;
			continue;
		}
		*at = l->next;
		l->listed = false;
		l->next = ended;
		ended = l;
		atomic_fetch_sub(&nr_lost, 1);
	}
	return ended;
}

bool cuda_is_lost(struct cuda_gpu *g)
{
	struct cuda_lost *ended, *next;
	struct cuda_prev prev;
	bool left;

	if (!atomic_load(&nr_lost))
		return false;
	prev = cuda_enter(g);
	pthread_mutex_lock(&lost_lock);
	ended = lost_ended(g, &left);
	pthread_mutex_unlock(&lost_lock);
	for (; ended; ended = next) {
		next = ended->next;
		if (ended->end)
			ended->end(ended);
	}
	cuda_leave(g, prev);
	return left;
}

void cuda_keep(struct cuda_gpu *g)
{
	pthread_mutex_lock(&lost_lock);
	g->kept = kept_list;
	kept_list = g;
	pthread_mutex_unlock(&lost_lock);
}
