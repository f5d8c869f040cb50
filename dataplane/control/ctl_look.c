/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections and operations of queues as Prometheus' text, after the counters of the cores. All of it
 * comes from what cores, links and the threads of queues have reported anyway; nobody is asked. On the
 * control thread. A server may have a thousand connections, so numbers are written by hand.
 */
#include "control/ctl.h"
#include "submit/submit.h"

#include <stdlib.h>
#include <string.h>

#define LABELS_MAX 40
#define AHEAD	   6

/* A connection that is up. */
struct conn_look {
	const struct gx_conn *c;
	struct gx_link_look l;
	char labels[LABELS_MAX];
	size_t labels_len;
};

/* A metric of connections. */
struct look_metric {
	const char *name, *help;
	unsigned has; /* 0: all connections have it */
	size_t at;    /* in struct gx_link_look */
	bool gauge, seconds;
};

#define AT(field) offsetof(struct gx_link_look, field)
static const struct look_metric metrics[] = {
	{"gx_connection_sent_packets_total", "packets to the peer, first and again", GX_LOOK_PKTS,
	 AT(tx_pkts), false, false},
	{"gx_connection_received_packets_total", "packets of the peer, lost ones included",
	 GX_LOOK_PKTS, AT(rx_pkts), false, false},
	{"gx_connection_sent_bytes_total",
	 "link packet: bytes on the wire; local: copied by this end, both ways; tcp: of its sockets",
	 GX_LOOK_TX_B, AT(tx_b), false, false},
	{"gx_connection_received_bytes_total",
	 "link packet: data packets, counted at full size; local: copied by the peer, both ways, "
	 "and such packets; tcp: of its sockets",
	 GX_LOOK_RX_B, AT(rx_b), false, false},
	{"gx_connection_lost_bytes_total", "of the bytes sent: lost on the way", GX_LOOK_LOST,
	 AT(lost_b), false, false},
	{"gx_connection_messages", "messages under way, both directions", 0, AT(msgs), true, false},
	{"gx_connection_round_trip_seconds", "round trip of its slowest lane; 0: not known", 0,
	 AT(rtt_ns), true, true},
	{"gx_connection_window_bytes", "bytes that may be under way", GX_LOOK_WINDOW, AT(window_b),
	 true, false},
	{"gx_connection_path_bytes_per_second", "what its paths carry, as far as known",
	 GX_LOOK_RATE, AT(rate_b_s), true, false},
};
#undef AT

/* ---- Writing ---- */

static void put(struct gx_text *t, const char *s, size_t len)
{
	if (t->at + len <= t->room)
		memcpy(t->buf + t->at, s, len);
	t->at += len;
}

static void put_text(struct gx_text *t, const char *s)
{
	put(t, s, strlen(s));
}

/* At least @digits of them. */
static void put_u64(struct gx_text *t, uint64_t v, unsigned digits)
{
	char buf[24], *p = buf + sizeof(buf);

	do {
		*--p = (char)('0' + v % 10);
		v /= 10;
		digits -= digits > 0;
	} while (v || digits);
	put(t, p, (size_t)(buf + sizeof(buf) - p));
}

/* "0.25": without zeros at the end, for most of a thousand connections have many. */
static void put_seconds(struct gx_text *t, uint64_t ns)
{
	uint64_t part = ns % 1000000000;
	unsigned digits = 9;

	for (; digits > 1 && part % 10 == 0; digits--)
		part /= 10;
	put_u64(t, ns / 1000000000, 1);
	put(t, ".", 1);
	put_u64(t, part, digits);
}

static void put_head(struct gx_text *t, const char *name, const char *help, const char *type)
{
	core_say(t, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* What a peer or a key is called, as a label may have it. */
static void label_copy(char *to, size_t room, const char *from)
{
	size_t n = 0;

	for (; *from && n + 1 < room; from++)
		to[n++] = *from < ' ' || *from > '~' || *from == '"' || *from == '\\' ? '_' : *from;
	to[n] = 0;
}

/* ---- Connections ---- */

/* A connection is of many pages, and the caches hold few of a thousand. So what is read of each is asked
 * for some connections ahead. */
static void conn_ahead(const struct conn_look all[], unsigned i, unsigned n)
{
	const struct gx_conn *c = all[i + AHEAD < n ? i + AHEAD : n - 1].c;

	__builtin_prefetch(&c->link);
	__builtin_prefetch(&c->nr_lanes);
	__builtin_prefetch(&c->ep[0]);
	__builtin_prefetch(&c->agreed.integrity);
	__builtin_prefetch(c->peer_name);
	__builtin_prefetch(c->auth);
}

/* Those that are up. Return: [*@n], malloc()ed; NULL: none, or no memory. */
static struct conn_look *conns_find(struct gx *gx, unsigned *n)
{
	struct conn_look *all = NULL, *more;
	unsigned room = 0;

	*n = 0;
	for (const struct gx_conn *c = gx->conns; c; c = c->next) {
		if (conn_state(c) != GX_CONN_STATE_UP)
			continue;
		if (*n == room) {
			room = room ? 2 * room : 16;
			more = realloc(all, room * sizeof(*all));
			if (!more)
				break; /* some are better than none */
			all = more;
		}
		all[(*n)++].c = c;
	}
	return all;
}

static struct conn_look *conns_look(struct gx *gx, unsigned *n)
{
	struct conn_look *all = conns_find(gx, n);

	for (unsigned i = 0; i < *n; i++) {
		struct conn_look *k = &all[i];
		struct gx_text labels = {.buf = k->labels, .room = sizeof(k->labels)};

		conn_ahead(all, i, *n);
		k->l = (struct gx_link_look){0};
		put_text(&labels, "{connection=\"");
		put_u64(&labels, k->c->id, 1);
		put(&labels, "\"", 1);
		k->labels_len = labels.at;
		k->c->link->conn->look(k->c, &k->l);
	}
	return all;
}

static void metric_print(struct gx_text *t, const struct look_metric *m,
			 const struct conn_look all[], unsigned n)
{
	size_t len = strlen(m->name);

	put_head(t, m->name, m->help, m->gauge ? "gauge" : "counter");
	for (unsigned i = 0; i < n; i++) {
		uint64_t v;

		if (m->has & ~all[i].l.has)
			continue;
		memcpy(&v, (const char *)&all[i].l + m->at, sizeof(v));
		put(t, m->name, len);
		put(t, all[i].labels, all[i].labels_len);
		put(t, "} ", 2);
		if (m->seconds)
			put_seconds(t, v);
		else
			put_u64(t, v, 1);
		put(t, "\n", 1);
	}
}

static void limits_print(struct gx_text *t, const struct conn_look all[], unsigned n)
{
	static const char name[] = "gx_connection_limited_seconds_total";
	static const struct {
		const char *by;
		unsigned has;
	} limits[GX_LOOK_LIMITS] = {{"application", GX_LOOK_PACE},
				    {"link", GX_LOOK_PACE},
				    {"window", GX_LOOK_LIMIT},
				    {"credit", GX_LOOK_LIMIT},
				    {"core", GX_LOOK_LIMIT}};

	put_head(t, name, "time in which that kept the next packet", "counter");
	for (unsigned i = 0; i < n; i++)
		for (unsigned k = 0; k < GX_LOOK_LIMITS; k++) {
			if (!(all[i].l.has & limits[k].has))
				continue;
			put(t, name, sizeof(name) - 1);
			put(t, all[i].labels, all[i].labels_len);
			put_text(t, ",by=\"");
			put_text(t, limits[k].by);
			put_text(t, "\"} ");
			put_seconds(t, all[i].l.limit_ns[k]);
			put(t, "\n", 1);
		}
}

static void put_label(struct gx_text *t, const char *before, const char *value)
{
	put_text(t, before);
	put_text(t, value);
}

const char *ctl_integrity_text(unsigned mode)
{
	static const char *const integrity[] = {"none", "crc32c", "mac", "gcm"};

	return mode < GX_ARRAY_SIZE(integrity) ? integrity[mode] : "unknown";
}

static void infos_print(struct gx_text *t, const struct conn_look all[], unsigned n)
{
	char key[32], peer[128], *number;

	put_head(
		t, "gx_connection_info",
		"a connection that is up; integrity: how its packets are guarded; key: by which the ends know one another",
		"gauge");
	for (unsigned i = 0; i < n; i++) {
		conn_ahead(all, i, n);
		label_copy(key, sizeof(key), all[i].c->auth);
		put_text(t, "gx_connection_info");
		put(t, all[i].labels, all[i].labels_len);
		label_copy(peer, sizeof(peer), all[i].c->peer_name);
		number = strstr(peer, " conn "); /* a label of its own */
		if (number)
			*number = 0;
		put_label(t, ",peer=\"", peer);
		put_label(t, "\",link=\"", all[i].c->link->name);
		put_label(t, "\",integrity=\"", ctl_integrity_text(conn_integrity(all[i].c)));
		put_label(t, "\",key=\"", key);
		put_text(t, "\"} 1\n");
	}
}

/* ---- Paths of connections ---- */

struct path_look {
	const struct conn_look *k;
	struct gx_path p;
};

/* Return: [*@nr], malloc()ed. */
static struct path_look *paths_look_all(const struct conn_look all[], unsigned n, unsigned *nr)
{
	struct path_look *v = NULL, *more;
	struct gx_path p;

	*nr = 0;
	for (unsigned i = 0; i < n; i++)
		for (unsigned at = 0; all[i].c->link->conn->path(all[i].c, &at, &p);) {
			/* A power of two is full. */
			more = *nr & (*nr - 1) ? v : realloc(v, (2u * *nr + 1) * sizeof(*v));
			if (!more)
				return v;
			v = more;
			v[(*nr)++] = (struct path_look){&all[i], p};
		}
	return v;
}

static void path_print(struct gx_text *t, const char *name, const struct path_look *l)
{
	put_text(t, name);
	put(t, l->k->labels, l->k->labels_len);
	put_text(t, ",lane=\"");
	put_u64(t, l->p.lane, 1);
	put_text(t, l->p.data ? "\",packets=\"data\",source_port=\""
			      : "\",packets=\"control\",source_port=\"");
	put_u64(t, l->p.source_port, 1);
	put_text(t, "\"} ");
}

static void paths_print(struct gx_text *t, const struct conn_look all[], unsigned n)
{
	static const struct {
		const char *name, *help;
		bool gauge;
	} of[] = {{"gx_connection_source_port_sent_packets_total",
		   "packets sent by this source port", false},
		  {"gx_connection_source_port_lost_packets_total", "of them, lost", false},
		  {"gx_connection_source_port_round_trip_seconds", "smoothed; 0: not known", true},
		  {"gx_connection_source_port_dead", "1: it is dead, so others carry its packets",
		   true}};
	unsigned nr;
	struct path_look *v = paths_look_all(all, n, &nr);

	for (unsigned m = 0; nr && m < GX_ARRAY_SIZE(of); m++) {
		put_head(t, of[m].name, of[m].help, of[m].gauge ? "gauge" : "counter");
		for (unsigned i = 0; i < nr; i++) {
			const struct gx_path *p = &v[i].p;

			path_print(t, of[m].name, &v[i]);
			if (m == 2)
				put_seconds(t, p->rtt_ns);
			else
				put_u64(t, m == 0 ? p->sent : m == 1 ? p->lost : p->dead, 1);
			put(t, "\n", 1);
		}
	}
	free(v);
}

/* ---- Operations of queues ---- */

static void hist_add(uint64_t *to, const _Atomic uint64_t *from, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		to[i] += atomic_load_explicit(&from[i], memory_order_relaxed);
}

static void hist_print(struct gx_text *t, const char *name, const uint64_t cells[], unsigned n,
		       void (*put_le)(struct gx_text *t, unsigned i))
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < n; i++) {
		sum += cells[i];
		put_text(t, name);
		put_text(t, "_bucket{le=\"");
		if (i + 1 < n)
			put_le(t, i);
		else
			put_text(t, "+Inf");
		put_text(t, "\"} ");
		put_u64(t, sum, 1);
		put(t, "\n", 1);
	}
	put_text(t, name);
	put_text(t, "_count ");
	put_u64(t, sum, 1);
	put(t, "\n", 1);
	put_text(t, name);
	put_text(t, "_sum ");
}

static void le_size(struct gx_text *t, unsigned i)
{
	put_u64(t, 64ull << 2 * i, 1);
	put_text(t, ".0");
}

static void le_time(struct gx_text *t, unsigned i)
{
	put_seconds(t, core_hist_time_ns(i));
}

static void hists_print(struct gx *gx, struct gx_text *t)
{
	uint64_t size[CORE_SIZES] = {0}, time[CORE_TIMES] = {0}, size_b = 0, time_ns = 0;
	const struct core_hist *h = &gx->ended;

	for (const struct gx_queue *q = NULL; h; h = submit_hist_next(gx, &q)) {
		hist_add(size, h->size, CORE_SIZES);
		hist_add(&size_b, &h->size_b, 1);
		hist_add(time, h->time, CORE_TIMES);
		hist_add(&time_ns, &h->time_ns, 1);
	}
	if (!gx->submits && !size_b && !time_ns)
		return;
	put_head(t, "gx_operation_bytes",
		 "sizes of operations that ended well, of queues of threads that turn no core",
		 "histogram");
	hist_print(t, "gx_operation_bytes", size, CORE_SIZES, le_size);
	put_u64(t, size_b, 1);
	put(t, "\n", 1);
	put_head(t, "gx_operation_seconds",
		 "time from gx_post() to gx_poll() of one operation in 16 of these queues",
		 "histogram");
	hist_print(t, "gx_operation_seconds", time, CORE_TIMES, le_time);
	put_seconds(t, time_ns);
	put(t, "\n", 1);
}

void ctl_look_print(struct gx *gx, struct gx_text *t)
{
	struct conn_look *all;
	unsigned n;

	all = conns_look(gx, &n);
	for (unsigned i = 0; n && i < GX_ARRAY_SIZE(metrics); i++)
		metric_print(t, &metrics[i], all, n);
	if (n) {
		limits_print(t, all, n);
		infos_print(t, all, n);
		paths_print(t, all, n);
	}
	free(all);
	hists_print(gx, t);
}
