// SPDX-License-Identifier: Apache-2.0
/*
 * Sorts samples by connection. A process has at most a thousand; more are a liar's, and left out.
 */
#include "gxd/watch/seen.h"

#include "gxd/watch/expo.h"
#include "gxd/watch/peers.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNS_MAX 1024 /* of a process */

static const char *const by_names[SEEN_BY] = {"application", "link", "window", "credit", "core"};

/* A metric of connections, and where it goes. */
static const struct {
	const char *name;
	unsigned has;
	size_t at;
} fields[] = {
	{"gx_connection_sent_bytes_total", SEEN_TX, offsetof(struct seen_conn, tx_b)},
	{"gx_connection_received_bytes_total", SEEN_RX, offsetof(struct seen_conn, rx_b)},
	{"gx_connection_lost_bytes_total", SEEN_LOST, offsetof(struct seen_conn, lost_b)},
	{"gx_connection_window_bytes", SEEN_WINDOW, offsetof(struct seen_conn, window_b)},
	{"gx_connection_messages", 0, offsetof(struct seen_conn, msgs)},
	{"gx_connection_round_trip_seconds", 0, offsetof(struct seen_conn, rtt_s)},
};

const char *seen_by_name(unsigned by)
{
	return by_names[by];
}

/* Samples stand in the order of connections, so the search begins after the last one. @first: of the
 * process */
static struct seen_conn *conn_find(struct seen *s, unsigned first, uint64_t id, unsigned *hint)
{
	unsigned n = s->nr - first;

	for (unsigned k = 0; k < n; k++) {
		unsigned i = (*hint + k) % n;

		if (s->v[first + i].id == id) {
			*hint = i + 1;
			return &s->v[first + i];
		}
	}
	return NULL;
}

static void text_take(char *to, size_t room, struct expo_str from)
{
	snprintf(to, room, "%.*s", (int)from.len, from.at);
}

static void field_take(struct seen_conn *c, const struct expo_line *l, const char *by)
{
	double v = strtod(l->value.at, NULL); /* a line feed follows */

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		if (expo_is(l->name, fields[i].name)) {
			memcpy((char *)c + fields[i].at, &v, sizeof(v));
			c->has |= fields[i].has;
		}
	if (!expo_is(l->name, "gx_connection_limited_seconds_total"))
		return;
	for (unsigned i = 0; i < SEEN_BY; i++)
		if (!strcmp(by, by_names[i])) {
			c->by_s[i] = v;
			c->has |= SEEN_BY_ANY;
		}
}

static void sample_take(struct seen *s, unsigned first, const struct peer *p,
			const struct expo_line *l, unsigned *hint)
{
	struct expo_str labels = l->labels, name, value;
	struct seen_conn one = {.pid = p->pid, .context = p->context}, *c;
	char by[16] = "";
	bool named = false;

	if (l->name.len < 14 || memcmp(l->name.at, "gx_connection_", 14))
		return;
	while (expo_label(&labels, &name, &value)) {
		if (expo_is(name, "connection")) {
			one.id = strtoull(value.at, NULL, 10);
			named = true;
		} else if (expo_is(name, "peer")) {
			text_take(one.peer, sizeof(one.peer), value);
		} else if (expo_is(name, "link")) {
			text_take(one.link, sizeof(one.link), value);
		} else if (expo_is(name, "by")) {
			text_take(by, sizeof(by), value);
		}
	}
	c = named ? conn_find(s, first, one.id, hint) : NULL;
	if (named && !c && s->nr - first < CONNS_MAX) {
		snprintf(one.name, sizeof(one.name), "%s", p->name);
		c = &s->v[s->nr++];
		*c = one;
	}
	if (!c)
		return;
	if (one.link[0]) {
		memcpy(c->peer, one.peer, sizeof(c->peer));
		memcpy(c->link, one.link, sizeof(c->link));
	}
	field_take(c, l, by);
}

static void silent_add(struct seen *s, const struct peer *p)
{
	size_t at = strlen(s->silent);

	snprintf(s->silent + at, sizeof(s->silent) - at, "%s%u %s: %s", at ? "; " : "", p->pid,
		 p->name, p->why ? p->why : "its answer is not understood");
}

int seen_take(const struct peers *all, struct seen *out)
{
	*out = (struct seen){0};
	out->v = calloc((size_t)(all->nr + 1) * CONNS_MAX, sizeof(*out->v));
	if (!out->v)
		return -ENOMEM;
	for (unsigned i = 0; i < all->nr; i++) {
		struct expo_str text = {all->v[i].body, all->v[i].len};
		unsigned first = out->nr, hint = 0;
		struct expo_line l;
		int ret = all->v[i].why ? -EPROTO : 1;

		while (ret > 0 && (ret = expo_next(&text, &l)) > 0)
			if (l.kind == EXPO_SAMPLE)
				sample_take(out, first, &all->v[i], &l, &hint);
		if (ret) {
			out->nr = first; /* nothing of a text with a bad line */
			silent_add(out, &all->v[i]);
		}
		out->nr_up += !ret;
		out->nr_silent += ret != 0;
	}
	return 0;
}

void seen_free(struct seen *s)
{
	free(s->v);
	*s = (struct seen){0};
}
