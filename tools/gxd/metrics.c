// SPDX-License-Identifier: Apache-2.0
/*
 * The exporter. A scrape asks all processes (watch/peers.c), adds their texts up (watch/expo.c), and gives
 * the sum to whoever asks within PAGE_NS (watch/http.c): so processes are asked a few times a second at
 * most, however many scrape. One thread.
 */
#include "gxd/metrics.h"

#include "gxd/conf.h"
#include "gxd/guard.h"
#include "gxd/serve/notify.h"
#include "gxd/watch/expo.h"
#include "gxd/watch/http.h"
#include "gxd/watch/peers.h"

#include "common/help.h"
#include "common/opt.h"

#include <gx/gx.h>
#include <gx/log.h>

#include <argp.h>
#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE_NS	   250000000ull	  /* so long a page is new */
#define SAY_NS	   10000000000ull /* between two lines of the log about processes */
#define UP_LABEL_B 128
#define KEEP_B	   (32 << 20) /* the most that malloc() takes */

enum { METRICS_OK = 0, METRICS_FAILED = 1, METRICS_USAGE = 2 };
enum { KEY_LISTEN = 256, KEY_DIR, KEY_CONFIG };

struct metrics {
	const char *listen, *dir;
	struct http_page *page[2]; /* text, OpenMetrics; NULL: none yet */
	uint64_t made_ns[2];
	uint64_t said_ns;
};

static const struct argp_option metrics_options[] = {
	{"listen", KEY_LISTEN, "HOST:PORT", 0,
	 "Where scrapers connect, e.g. 127.0.0.1:9417; whoever reaches that address may read. Port 0: any free one",
	 0},
	{"dir", KEY_DIR, "DIR", 0,
	 "Where processes publish; default: GX_RUN_DIR of the environment, or " PEERS_DIR
	 ", or gx in XDG_RUNTIME_DIR where that is missing",
	 0},
	{"config", KEY_CONFIG, "FILE", 0,
	 "Take options from this file, too: one a line; # begins a comment line", 0},
	{0},
};

static volatile int metrics_quit;

/* Nothing is read again by SIGHUP, which ends nothing. */
static void metrics_on_signal(int signo)
{
	metrics_quit |= signo != SIGHUP;
}

/* ---- A page ---- */

/* In a user namespace 65534 may be any user. */
static bool uid_is_known(unsigned uid)
{
	return !uid || (uid == geteuid() && uid != 65534);
}

/* Processes of root and of our own user first: what they say of a metric holds, and a stranger that says
 * otherwise is refused. */
static int peer_order(const void *a, const void *b)
{
	const struct peer *p = a, *q = b;
	int known_p = uid_is_known(p->uid), known_q = uid_is_known(q->uid);

	if (known_p != known_q)
		return known_q - known_p;
	if (p->pid != q->pid)
		return p->pid < q->pid ? -1 : 1;
	return p->context < q->context ? -1 : p->context > q->context;
}

static void peer_labels(const struct peer *p, char buf[UP_LABEL_B])
{
	snprintf(buf, UP_LABEL_B, "pid=\"%u\",context=\"%u\",name=\"%s\"", p->pid, p->context,
		 p->name);
}

/* Not often: a process that is stopped stays so for many scrapes. */
static void peers_say(struct metrics *m, const struct peers *all)
{
	uint64_t now = gx_now();

	if (m->said_ns && now - m->said_ns < SAY_NS)
		return;
	for (unsigned i = 0; i < all->nr; i++)
		if (all->v[i].why) {
			gx_log(GX_LOG_WARN, "%s, pid %u of user %u: %s", all->v[i].name,
			       all->v[i].pid, all->v[i].uid, all->v[i].why);
			m->said_ns = now;
		}
}

/* Two of one number in one process: one of them lies. */
static bool peer_is_twice(const struct peers *all, unsigned i)
{
	return i && all->v[i].pid == all->v[i - 1].pid &&
	       all->v[i].context == all->v[i - 1].context;
}

static int up_add(struct expo *x, const struct peers *all)
{
	size_t room = 256 + (size_t)all->nr * 2 * UP_LABEL_B, at;
	char *text = malloc(room), labels[UP_LABEL_B];
	int ret = 0;

	if (!text)
		return -ENOMEM;
	for (unsigned i = 0; i < all->nr && !ret; i++) {
		if (peer_is_twice(all, i))
			continue;
		peer_labels(&all->v[i], labels);
		at = (size_t)snprintf(
			text, room,
			"# HELP gx_up whether the process answered, and was understood\n"
			"# TYPE gx_up gauge\ngx_up %d\n",
			!all->v[i].why);
		ret = expo_add(x, (struct expo_str){text, at}, labels);
	}
	free(text);
	return ret;
}

/* Return: a sum of all that answered; NULL: no memory. */
static struct expo *peers_sum(struct metrics *m, struct peers *all)
{
	struct expo *x = expo_new();
	char labels[UP_LABEL_B];

	if (!x)
		return NULL;
	if (all->nr) /* else there is no table */
		qsort(all->v, all->nr, sizeof(*all->v), peer_order);
	for (unsigned i = 0; i < all->nr; i++) {
		struct peer *p = &all->v[i];
		int ret = 0;

		peer_labels(p, labels);
		if (peer_is_twice(all, i))
			p->why = "another one has its number";
		if (!p->why)
			ret = expo_add(x, (struct expo_str){p->body, p->len}, labels);
		if (ret)
			p->why = ret == -EPROTO ? "its answer is not understood"
						: "there is no room for its answer";
	}
	peers_say(m, all);
	if (!up_add(x, all))
		return x;
	expo_free(x);
	return NULL;
}

static struct http_page *page_make(struct metrics *m, bool open)
{
	struct http_page *page = calloc(1, sizeof(*page));
	struct peers all;
	struct expo *x;
	int ret;

	if (!page)
		return NULL;
	ret = peers_ask(m->dir, "/metrics", &all);
	if (ret && ret != -ENOENT) /* no folder: no gx process has ever run */
		gx_log(GX_LOG_WARN, "%s: %s", m->dir, strerror(-ret));
	x = peers_sum(m, &all);
	if (x)
		page->text = expo_print(x, open, HTTP_HEAD_ROOM, &page->len);
	expo_free(x);
	peers_free(&all);
	page->refs = 1;
	page->type = open ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
			  : "text/plain; version=0.0.4; charset=utf-8";
	if (page->text)
		return page;
	http_page_put(page);
	return NULL;
}

static struct http_page *metrics_get(void *arg, const char *path, bool open)
{
	struct metrics *m = arg;
	uint64_t now = gx_now();

	if (strcmp(path, "/metrics"))
		return NULL;
	if (!m->page[open] || now - m->made_ns[open] >= PAGE_NS) {
		http_page_put(m->page[open]);
		m->page[open] = page_make(m, open);
		m->made_ns[open] = gx_now();
	}
	if (m->page[open])
		m->page[open]->refs++;
	return m->page[open];
}

/* ---- The command ---- */

static error_t opts_take(int key, char *arg, struct argp_state *state)
{
	struct metrics *m = state->input;

	switch (key) {
	case KEY_LISTEN:
		m->listen = arg;
		return 0;
	case KEY_DIR:
		m->dir = arg;
		return 0;
	case KEY_CONFIG: /* conf_expand() has put in its place what the file has */
		argp_error(state, "--config: write it out");
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "what is '%s'? gxd metrics has options only", arg);
		return 0;
	case ARGP_KEY_END:
		if (!m->listen)
			argp_error(state, "say where: --listen 127.0.0.1:9417");
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

static error_t opts_parse(int key, char *arg, struct argp_state *state)
{
	return conf_parse(opts_take, key, arg, state);
}

/* Signals come in ppoll() alone, so none is lost between a look at the flag and the wait. */
static void signals_set(sigset_t *open)
{
	static const int ends[] = {SIGTERM, SIGINT, SIGHUP};
	struct sigaction act = {.sa_handler = metrics_on_signal};
	sigset_t shut;

	sigemptyset(&shut);
	for (unsigned i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		sigaction(ends[i], &act, NULL);
		sigaddset(&shut, ends[i]);
	}
	signal(SIGPIPE, SIG_IGN);
	sigprocmask(SIG_BLOCK, &shut, open);
}

const struct argp gxd_metrics_argp = {
	.options = metrics_options,
	.parser = opts_parse,
	.children = help_children,
	.doc = "gxd metrics serves the counters of all gx processes of this host to Prometheus "
	       "and its like, at /metrics, as OpenMetrics 1.0 or text 0.0.4."
	       "\v  gxd metrics --listen 127.0.0.1:9417\n"
	       "  curl -s http://127.0.0.1:9417/metrics\n"
	       "The page docs/metrics.md says what each metric means.\n"
	       "Exit status: 0 ok, 1 failed, 2 usage.",
};

int gxd_metrics(int argc, char **argv)
{
	static struct metrics m;
	struct http_ops ops = {.get = metrics_get, .arg = &m};
	sigset_t open;
	int fd, port, ret;

	ret = conf_expand(&argc, &argv);
	if (ret)
		return ret == -EINVAL ? METRICS_USAGE : METRICS_FAILED;
	m.dir = peers_dir();
	argp_parse(&gxd_metrics_argp, argc, argv, ARGP_NO_HELP, NULL, &m);
	fd = http_listen(m.listen, &port);
	if (fd < 0) {
		char plain[128];

		opt_plain(m.listen, plain, sizeof(plain));
		fprintf(stderr, "gxd: --listen %s: %s\n", plain,
			fd == -EINVAL
				? "HOST:PORT, e.g. 127.0.0.1:9417; a port number is 0 to 65535"
				: strerror(-fd));
		return fd == -EINVAL ? METRICS_USAGE : METRICS_FAILED;
	}
	/* Buffers of a scrape serve the next one: pages that are new each time cost more than all the rest. */
	mallopt(M_MMAP_THRESHOLD, KEEP_B);
	mallopt(M_TRIM_THRESHOLD, KEEP_B);
	signals_set(&open);
	notify_open();
	if (guard_seal())
		return METRICS_FAILED;
	printf("metrics at port %d, /metrics\n", port);
	fflush(stdout);
	notify_say("READY=1\nSTATUS=port %d", port);
	ret = http_serve(fd, &ops, &metrics_quit, &open);
	close(fd);
	http_page_put(m.page[0]);
	http_page_put(m.page[1]);
	return ret ? METRICS_FAILED : METRICS_OK;
}
