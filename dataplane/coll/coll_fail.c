// SPDX-License-Identifier: Apache-2.0
/*
 * The end of a group: the first reason stays, and this rank tells the others. Any thread.
 */
#include "coll/coll_meet.h"

#include <stdio.h>
#include <string.h>

void coll_fail_init(const struct gx_group *g, enum meet_type type, struct coll_meet *m)
{
	*m = (struct coll_meet){.magic = MEET_MAGIC,
				.version = MEET_VERSION,
				.type = type,
				.rank = g->rank,
				.nr_ranks = g->nr_ranks,
				.nr_lanes = gx_nr_cores(g->gx),
				.nr_bufs = g->nr_bufs,
				.piece_bits = g->piece_bits,
				.lost = -1};
	memcpy(m->addr, g->addr, sizeof(m->addr));
	memcpy(m->job, g->job, sizeof(m->job));
}

void coll_fail_abort(const struct gx_group *g, int err, int lost, const char *text,
		     struct coll_meet *m)
{
	coll_fail_init(g, MEET_ABORT, m);
	m->err = err;
	m->lost = lost;
	snprintf(m->text, sizeof(m->text), "%s", text);
}

void coll_tell(struct gx_group *g, const struct coll_meet *m)
{
	for (unsigned q = 0; q < g->nr_ranks; q++) {
		struct gx_conn *conn;

		pthread_mutex_lock(&g->lock);
		conn = g->peer[q].conn;
		pthread_mutex_unlock(&g->lock);
		if (conn)
			gx_conn_msg(conn, m, sizeof(*m)); /* may fail: the peer is gone */
	}
}

int coll_fail(struct gx_group *g, int err, int lost, bool tell, const char *fmt, ...)
{
	char text[COLL_TEXT_MAX];
	struct coll_meet m;
	va_list ap;
	bool first;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	pthread_mutex_lock(&g->lock);
	first = !atomic_load_explicit(&g->err, memory_order_relaxed);
	if (first) {
		memcpy(g->text, text, sizeof(text));
		g->lost = lost;
		/* Pairs with the acquire of readers of text and lost. */
		atomic_store_explicit(&g->err, err, memory_order_release);
	}
	pthread_cond_broadcast(&g->cond);
	pthread_mutex_unlock(&g->lock);
	if (first && tell) {
		coll_fail_abort(g, err, lost, text, &m);
		coll_tell(g, &m);
	}
	return err;
}

GX_EXPORT const char *gx_group_error(const struct gx_group *g)
{
	/* Pairs with the release in coll_fail(). */
	return atomic_load_explicit(&g->err, memory_order_acquire) ? g->text : "";
}

GX_EXPORT int gx_group_lost(const struct gx_group *g)
{
	return atomic_load_explicit(&g->err, memory_order_acquire) ? g->lost : -1;
}
