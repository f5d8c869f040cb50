// SPDX-License-Identifier: Apache-2.0
/*
 * Leases: bytes that a client has reserved for its work (struct service_lease). Worker thread.
 */
#include "gxd/serve/request.h"

#include "common/json.h"

#include <stdio.h>
#include <string.h>

#define SERVICE_PLACE_B 4096 /* alignment of a place that gxd proposes */

static bool lease_conflicts(const struct service_lease *a, const struct service_lease *b)
{
	if (a->region != b->region || !a->len || !b->len)
		return false;
	if (a->off >= b->off + b->len || b->off >= a->off + a->len)
		return false;
	return a->write || b->write || strcmp(a->content, b->content) != 0;
}

/* Another client whose lease conflicts with @want, or NULL. */
static struct service_client *lease_holder(struct request *req, const struct service_lease *want)
{
	struct service_client *found = NULL;

	pthread_mutex_lock(&req->svc->lock);
	for (struct service_client *c = req->svc->clients; c && !found; c = c->next)
		if (c != req->client && lease_conflicts(want, &c->lease))
			found = c;
	pthread_mutex_unlock(&req->svc->lock);
	return found; /* only this thread frees clients */
}

/* The first place for @want that no lease of others has. Return: there is one. */
static bool lease_place(struct request *req, const struct service_lease *want, uint64_t *off)
{
	struct service_lease at = *want;
	struct service_client *holder;

	at.off = 0;
	while (at.len <= at.region->opt.len && at.off <= at.region->opt.len - at.len) {
		holder = lease_holder(req, &at);
		if (!holder) {
			*off = at.off;
			return true;
		}
		at.off = (holder->lease.off + holder->lease.len + SERVICE_PLACE_B - 1) &
			 ~(uint64_t)(SERVICE_PLACE_B - 1);
	}
	return false;
}

static struct json_t *lease_held(struct request *req, const struct service_lease *want,
				 struct service_client *holder)
{
	const struct service_lease *l = &holder->lease;
	struct gx_conn_info info = GX_INIT(info);
	char place[32] = "", by[SERVICE_WHY_MAX], text[2 * SERVICE_WHY_MAX];
	struct json_t *out = js_pack("{}");
	uint64_t off;

	if (request_is_limited(req) || gx_conn_info(holder->conn, &info))
		snprintf(info.peer, sizeof(info.peer), "another client");
	snprintf(by, sizeof(by), "bytes %llu to %llu of region '%s' are in use by %s",
		 (unsigned long long)l->off, (unsigned long long)(l->off + l->len - 1),
		 l->region->opt.name, info.peer);
	if (out && lease_place(req, want, &off)) {
		opt_size_text(off, place, sizeof(place));
		js_set(out, "place", js_pack("I", (long long)off));
	}
	snprintf(text, sizeof(text), "%s: %s%s%s another --mem, or wait until it has ended", by,
		 place[0] ? "give --offset " : "beside them it has no room for so much: take",
		 place, place[0] ? "," : "");
	if (out) {
		js_set(out, "by", js_string(by));
		js_set(out, "held", js_string(text));
	}
	return out;
}

/*
 * lease {region, off, len, write, content} -> {} or {held: words, by: words, place}: reserves these
 * bytes for the client until its connection ends or it takes another lease; or says who has some of
 * them, and where as many are free (no place: nowhere). Two clients may both read bytes if
 * both name the same content. Leases bind only clients that ask for them, and hold nobody off if the
 * client may not write there.
 */
struct json_t *lease_take(struct request *req)
{
	struct service_lease want = {.write = false};
	struct service_client *holder;
	const char *content;
	int write;

	if (js_unpack(req->in, req->why, sizeof(req->why), "{s:b, s:s}", "write", &write, "content",
		      &content))
		return NULL;
	want.write = write;
	req->access = write ? GX_ACCESS_PUT : GX_ACCESS_GET;
	want.region = request_range(req);
	if (!want.region)
		return NULL;
	want.off = req->work.slots.off;
	want.len = req->work.slots.size;
	if (strlen(content) >= sizeof(want.content))
		return request_fail(req, "'%.70s' is longer than %zu", content,
				    sizeof(want.content) - 1);
	snprintf(want.content, sizeof(want.content), "%s", content);
	holder = lease_holder(req, &want);
	if (holder)
		return lease_held(req, &want, holder);
	/* Who may not write holds nobody off. */
	if (gx_conn_may(req->client->conn, want.region->mem, GX_ACCESS_PUT, 0, 0))
		want.len = 0;
	req->client->lease = want;
	atomic_store(&req->client->leases, true);
	return js_pack("{}");
}
