// SPDX-License-Identifier: Apache-2.0
/*
 * The client's end of the JSON messages between gxperf and gxd (see rpc.h), and parts for both
 * ends.
 */
#include "common/rpc.h"

#include "common/json.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RPC_WHY_MAX 256

struct rpc {
	struct gx_conn *conn;
	pthread_mutex_t lock; /* guards all below, and struct rpc_sync */
	pthread_cond_t news;
	struct rpc_wait *waits; /* requests under way */
	int64_t next_id;
	bool down;
};

/* State of an rpc_call(). Guarded by rpc->lock. */
struct rpc_sync {
	struct rpc_wait wait;
	struct rpc *rpc;
	void (*progress)(void *arg, uint64_t done_b);
	void *arg;
	struct json_t *reply;
	int err;
	unsigned nr_news;
	bool done;
	char why[RPC_WHY_MAX];
};

int rpc_send(struct gx_conn *conn, struct json_t *doc)
{
	char *text = doc ? js_print(doc, false) : NULL;
	size_t len = text ? strlen(text) : 0;
	int ret = -ENOMEM;

	js_free(doc);
	if (text)
		ret = len <= RPC_MSG_MAX ? gx_conn_msg(conn, text, (uint32_t)len) : -EMSGSIZE;
	free(text);
	return ret;
}

struct rpc *rpc_open(struct gx_conn *conn)
{
	struct rpc *rpc = calloc(1, sizeof(*rpc));
	pthread_condattr_t attr;

	if (!rpc)
		return NULL;
	rpc->conn = conn;
	rpc->next_id = 1;
	pthread_mutex_init(&rpc->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&rpc->news, &attr);
	pthread_condattr_destroy(&attr);
	return rpc;
}

void rpc_close(struct rpc *rpc)
{
	if (!rpc)
		return;
	pthread_cond_destroy(&rpc->news);
	pthread_mutex_destroy(&rpc->lock);
	free(rpc);
}

/* Take the request with @id off the list. Under the lock. */
static struct rpc_wait *rpc_take(struct rpc *rpc, int64_t id)
{
	for (struct rpc_wait **p = &rpc->waits; *p; p = &(*p)->next) {
		struct rpc_wait *wait = *p;

		if (wait->id == id) {
			*p = wait->next;
			return wait;
		}
	}
	return NULL;
}

static void rpc_news(struct rpc *rpc, int64_t id, uint64_t done_b)
{
	for (struct rpc_wait *w = rpc->waits; w; w = w->next)
		if (w->id == id && w->progress)
			w->progress(w, done_b);
}

void rpc_on_msg(struct rpc *rpc, const void *data, uint32_t len)
{
	char why[RPC_WHY_MAX] = "";
	const char *error = "refused without a reason";
	struct json_t *doc = js_parse(data, len, why, sizeof(why));
	long long id = 0, progress = -1;
	struct rpc_wait *wait;
	int ok = 0;

	/* A malformed message has no id: its request runs into the time-out. */
	if (!doc || js_unpack(doc, why, sizeof(why), "{s:I, s?:I, s?:b, s?:s}", "id", &id,
			      "progress", &progress, "ok", &ok, "error", &error)) {
		js_free(doc);
		return;
	}
	pthread_mutex_lock(&rpc->lock);
	if (progress >= 0) {
		rpc_news(rpc, id, (uint64_t)progress);
	} else {
		wait = rpc_take(rpc, id);
		if (wait && ok) {
			wait->fn(wait, 0, doc, "");
			doc = NULL;
		} else if (wait) {
			wait->fn(wait, -EREMOTEIO, NULL, error);
		}
	}
	pthread_mutex_unlock(&rpc->lock);
	js_free(doc);
}

void rpc_on_down(struct rpc *rpc)
{
	struct rpc_wait *wait;

	pthread_mutex_lock(&rpc->lock);
	rpc->down = true;
	while ((wait = rpc->waits)) {
		rpc->waits = wait->next;
		wait->fn(wait, -ENOTCONN, NULL, "the connection is gone");
	}
	pthread_mutex_unlock(&rpc->lock);
}

void rpc_begin(struct rpc *rpc, struct json_t *req, struct rpc_wait *wait)
{
	int ret;

	pthread_mutex_lock(&rpc->lock);
	wait->id = rpc->next_id++;
	if (req)
		js_set(req, "id", js_pack("I", (long long)wait->id));
	wait->next = rpc->waits;
	rpc->waits = wait;
	ret = rpc->down ? -ENOTCONN : 0;
	pthread_mutex_unlock(&rpc->lock);
	/* Not under the lock: the control thread may hold its own lock while it calls
	 * rpc_on_msg(). */
	if (ret)
		js_free(req);
	else
		ret = rpc_send(rpc->conn, req);
	if (!ret)
		return;
	pthread_mutex_lock(&rpc->lock);
	/* rpc_on_down() may have been faster. */
	if (rpc_take(rpc, wait->id))
		wait->fn(wait, ret, NULL, "the request could not be sent");
	pthread_mutex_unlock(&rpc->lock);
}

static void rpc_sync_done(struct rpc_wait *wait, int err, struct json_t *reply, const char *why)
{
	struct rpc_sync *sync = (struct rpc_sync *)wait;

	sync->err = err;
	sync->reply = reply;
	snprintf(sync->why, sizeof(sync->why), "%s", why);
	sync->done = true;
	pthread_cond_broadcast(&sync->rpc->news);
}

static void rpc_sync_progress(struct rpc_wait *wait, uint64_t done_b)
{
	struct rpc_sync *sync = (struct rpc_sync *)wait;

	sync->nr_news++;
	if (sync->progress)
		sync->progress(sync->arg, done_b);
	pthread_cond_broadcast(&sync->rpc->news);
}

static struct timespec rpc_deadline(uint64_t ns)
{
	uint64_t at = gx_now() + ns;

	return (struct timespec){.tv_sec = (time_t)(at / 1000000000u),
				 .tv_nsec = (long)(at % 1000000000u)};
}

int rpc_call(struct rpc *rpc, struct json_t *req, void (*progress)(void *arg, uint64_t done_b),
	     void *arg, struct json_t **reply, char *why, size_t room)
{
	struct rpc_sync sync = {.wait = {.fn = rpc_sync_done, .progress = rpc_sync_progress},
				.rpc = rpc,
				.progress = progress,
				.arg = arg};
	struct timespec end = rpc_deadline(RPC_SILENCE_NS);
	unsigned seen = 0;

	rpc_begin(rpc, req, &sync.wait);
	pthread_mutex_lock(&rpc->lock);
	while (!sync.done) {
		if (seen != sync.nr_news)
			end = rpc_deadline(RPC_SILENCE_NS);
		seen = sync.nr_news;
		if (pthread_cond_timedwait(&rpc->news, &rpc->lock, &end) == ETIMEDOUT &&
		    !sync.done && seen == sync.nr_news) {
			rpc_take(rpc, sync.wait.id);
			sync.err = -ETIMEDOUT;
			snprintf(sync.why, sizeof(sync.why),
				 "no answer for %u s: is the peer gxd, and not stopped?",
				 (unsigned)(RPC_SILENCE_NS / 1000000000u));
			break;
		}
	}
	pthread_mutex_unlock(&rpc->lock);
	if (!sync.err)
		*reply = sync.reply;
	else
		snprintf(why, room, "%s", sync.why);
	return sync.err;
}
