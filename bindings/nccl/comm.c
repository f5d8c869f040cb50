/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Comms: numbers on a connection, and the lists that they are in. A comm lives until its user has
 * closed it and its core has let go of it. Any thread but a core; see each function for the lock.
 */
#include "plug.h"

#include <stdlib.h>
#include <string.h>

struct comm *comm_new(bool is_send)
{
	struct comm *c = aligned_alloc(alignof(struct comm), sizeof(*c));

	if (!c)
		return NULL;
	memset(c, 0, sizeof(*c));
	c->is_send = is_send;
	c->free = UINT32_MAX;
	c->seq = SEQ_FIRST;
	c->wait_end = &c->wait_head;
	c->closing.run = lane_close;
	c->ending.run = lane_end;
	for (unsigned i = 0; i < NCCL_REQS_MAX; i++) {
		c->req[i].comm = c;
		c->req[i].order.run = lane_req;
	}
	c->all_next = plug.comms;
	c->all_at = &plug.comms;
	if (c->all_next)
		c->all_next->all_at = &c->all_next;
	plug.comms = c;
	return c;
}

void comm_bind(struct comm *c, struct path *path, uint32_t number)
{
	struct peer *p = c->peer;

	c->path = path;
	c->number = number;
	path->nr_comms++;
	atomic_fetch_add_explicit(&path->lane->nr_comms, 1, memory_order_relaxed);
	c->peer_next = p->comms;
	c->peer_at = &p->comms;
	if (c->peer_next)
		c->peer_next->peer_at = &c->peer_next;
	p->comms = c;
}

struct comm *comm_find(const struct peer *p, uint32_t number)
{
	struct comm *c = p->comms;

	while (c && c->number != number)
		c = c->peer_next;
	return c;
}

/* Messages of the peer do not find it any more. */
static void comm_unbind(struct comm *c)
{
	if (!c->peer_at)
		return;
	*c->peer_at = c->peer_next;
	if (c->peer_next)
		c->peer_next->peer_at = c->peer_at;
	c->peer_at = NULL;
}

static void comm_undial(struct comm *c)
{
	struct comm **at = &plug.dials;

	while (*at && *at != c)
		at = &(*at)->meet_next;
	if (*at)
		*at = c->meet_next;
}

void comm_free(struct comm *c)
{
	*c->all_at = c->all_next;
	if (c->all_next)
		c->all_next->all_at = c->all_at;
	if (c->path) {
		c->path->nr_comms--;
		atomic_fetch_sub_explicit(&c->path->lane->nr_comms, 1, memory_order_relaxed);
	}
	offload_drop(c);
	/* The peer soon closes a connection that has shown no token: no connect may find it then. */
	if (c->peer && !--c->peer->nr_users)
		c->peer->retired |= !c->peer->accepted && !c->peer->proven;
	free(c);
}

/* Requests before the first that is not done have reached the other end. NCCL closes a comm when
 * its progress thread uses it no more. */
static uint32_t comm_count(const struct comm *c)
{
	uint32_t count = c->seq;

	for (unsigned i = 0; i < NCCL_REQS_MAX; i++) {
		const struct req *r = &c->req[i];

		if (c->free & 1u << i)
			continue;
		if ((!atomic_load_explicit(&r->done, memory_order_acquire) || r->status) &&
		    (int32_t)(r->seq - count) < 0)
			count = r->seq;
	}
	return count;
}

void comm_close(struct comm *c)
{
	struct path *path;

	pthread_mutex_lock(&plug.lock);
	path = c->path;
	if (c->state == COMM_DIAL || c->state == COMM_ASKED)
		comm_undial(c);
	c->state = COMM_CLOSED;
	comm_unbind(c);
	if (!path)
		comm_free(c);
	pthread_mutex_unlock(&plug.lock);
	if (!path)
		return;
	meet_close_say(c, comm_count(c));
	lane_put(path->lane, &c->closing); /* from here on, another thread may free it */
}
