// SPDX-License-Identifier: Apache-2.0
/*
 * Asks all processes at each interval, and shows what has changed since. Keys are top's: q, < and >, R,
 * d or s. Plain ANSI sequences; all that is shown of a process is printable ASCII, which expo_next()
 * sees to. Main thread only.
 */
#include "gxd/watch/top.h"

#include "gxd/watch/peers.h"
#include "gxd/watch/seen.h"

#include "common/help.h"
#include "common/opt.h"

#include <gx/gx.h>

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define TOP_INTERVAL_NS 2000000000ull
#define LINE_MAX_B	256
#define ROWS_DEFAULT	24
#define COLS_DEFAULT	80

enum { TOP_OK = 0, TOP_FAILED = 1, TOP_USAGE = 2 };
enum { KEY_DIR = 256, KEY_INTERVAL };

enum column { BY_PID, BY_TX, BY_RX, BY_LOST, BY_RTT, BY_MSGS, COLUMNS };

/* A connection, over the last interval. */
struct row {
	const struct seen_conn *c;
	double tx_s, rx_s, lost_s; /* bytes a second */
	const char *why;
};

struct top {
	const char *dir;
	uint64_t interval_ns;
	enum column sort;
	bool reverse;
	struct seen now, before;
	uint64_t now_ns, before_ns;
	struct row *rows;
	bool tty;
	char typed[16]; /* the interval that is being typed; "": none is */
	bool asks;
	int out_err; /* why stdout takes no more; 0: it does */
	struct termios was;
};

static const struct argp_option top_options[] = {
	{"interval", KEY_INTERVAL, "SECONDS", 0, "Between two looks; default 2", 0},
	{"dir", KEY_DIR, "DIR", 0,
	 "Where processes publish; default: GX_RUN_DIR of the environment, or " PEERS_DIR
	 ", or gx in XDG_RUNTIME_DIR where that is missing",
	 0},
	{0},
};

static volatile sig_atomic_t top_quit, top_resized;

static void top_on_signal(int signo)
{
	if (signo == SIGWINCH)
		top_resized = 1;
	else
		top_quit = 1;
}

/* ---- Rates ---- */

static const struct seen_conn *conn_before(const struct top *t, const struct seen_conn *c)
{
	for (unsigned i = 0; i < t->before.nr; i++) {
		const struct seen_conn *b = &t->before.v[i];

		if (b->id == c->id && b->pid == c->pid && b->context == c->context)
			return b;
	}
	return NULL;
}

static double rate(double now, double before, double s)
{
	return now > before && s > 0 ? (now - before) / s : 0;
}

/* What kept it most of the interval. */
static const char *why_find(const struct seen_conn *c, const struct seen_conn *b)
{
	const char *why = c->has & SEEN_BY_ANY ? "idle" : "-";
	double most = 0;

	for (unsigned i = 0; i < SEEN_BY; i++)
		if (c->by_s[i] - b->by_s[i] > most) {
			most = c->by_s[i] - b->by_s[i];
			why = seen_by_name(i);
		}
	return why;
}

static double row_key(const struct row *r, enum column by)
{
	switch (by) {
	case BY_TX:
		return r->tx_s;
	case BY_RX:
		return r->rx_s;
	case BY_LOST:
		return r->lost_s;
	case BY_RTT:
		return r->c->rtt_s;
	case BY_MSGS:
		return r->c->msgs;
	default:
		return r->c->pid;
	}
}

static int row_order(const void *a, const void *b, void *arg)
{
	const struct top *t = arg;
	double x = row_key(a, t->sort), y = row_key(b, t->sort);
	const struct seen_conn *p = ((const struct row *)a)->c, *q = ((const struct row *)b)->c;
	int order = x > y ? -1 : x < y;

	if (!order)
		order = p->id > q->id ? 1 : -(p->id < q->id);
	return t->reverse ? -order : order;
}

static int rows_make(struct top *t)
{
	double s = t->before_ns ? (double)(t->now_ns - t->before_ns) / 1e9 : 0;

	free(t->rows);
	t->rows = calloc(t->now.nr + 1, sizeof(*t->rows));
	if (!t->rows)
		return -ENOMEM;
	for (unsigned i = 0; i < t->now.nr; i++) {
		const struct seen_conn *c = &t->now.v[i], *b = conn_before(t, c);
		struct row *r = &t->rows[i];

		*r = (struct row){.c = c, .why = "-"};
		if (!b)
			continue;
		r->tx_s = rate(c->tx_b, b->tx_b, s);
		r->rx_s = rate(c->rx_b, b->rx_b, s);
		r->lost_s = rate(c->lost_b, b->lost_b, s);
		r->why = why_find(c, b);
	}
	qsort_r(t->rows, t->now.nr, sizeof(*t->rows), row_order, t);
	return 0;
}

static int top_look(struct top *t)
{
	struct peers all;
	int ret = peers_ask(t->dir, "/metrics", &all);

	seen_free(&t->before);
	t->before = t->now;
	t->before_ns = t->now_ns;
	t->now = (struct seen){0};
	t->now_ns = gx_now();
	if (!ret)
		ret = seen_take(&all, &t->now);
	peers_free(&all);
	return ret ? ret : rows_make(t);
}

/* ---- The screen ---- */

/* "12.3M", "-" where it is not known. */
static const char *amount(double v, bool known, char buf[16])
{
	static const char units[] = " KMGTP";
	unsigned u = 0;

	for (; v >= 1000 && units[u + 1]; u++)
		v /= 1000;
	if (!known)
		snprintf(buf, 16, "-");
	else if (!u)
		snprintf(buf, 16, "%.0f", v);
	else
		snprintf(buf, 16, "%.*f%c", v < 10 ? 2 : v < 100 ? 1 : 0, v, units[u]);
	return buf;
}

static const char *duration(double s, char buf[16])
{
	if (s <= 0)
		snprintf(buf, 16, "-");
	else if (s < 0.001)
		snprintf(buf, 16, "%.1fus", s * 1e6);
	else
		snprintf(buf, 16, "%.1fms", s * 1e3);
	return buf;
}

static void line_say(const struct top *t, unsigned cols, const char *line)
{
	printf("%.*s%s\n", (int)cols, line, t->tty ? "\033[K" : "");
}

static void head_say(const struct top *t, unsigned cols)
{
	static const char *const names[] = {"PID", "TX/s", "RX/s", "LOST/s", "RTT", "MSGS"};
	char line[LINE_MAX_B], when[16];
	time_t now = time(NULL);
	struct tm tm;

	strftime(when, sizeof(when), "%H:%M:%S", localtime_r(&now, &tm));
	snprintf(line, sizeof(line),
		 "gxd top - %s, %u processes (%u silent), %u connections, every %.1f s, by %s%s",
		 when, t->now.nr_up + t->now.nr_silent, t->now.nr_silent, t->now.nr,
		 (double)t->interval_ns / 1e9, names[t->sort], t->reverse ? ", reversed" : "");
	line_say(t, cols, line);
	if (t->asks)
		snprintf(line, sizeof(line), "seconds between looks: %s", t->typed);
	else
		snprintf(line, sizeof(line), "%s",
			 t->tty ? "q quit   < > sort by   R reverse   d interval   space now" : "");
	line_say(t, cols, line);
	snprintf(line, sizeof(line), "%7s %-10s %5s %-6s %7s %7s %7s %8s %7s %5s %-11s %s", "PID",
		 "NAME", "CONN", "LINK", "TX/s", "RX/s", "LOST/s", "RTT", "WINDOW", "MSGS",
		 "LIMITED BY", "PEER");
	printf("%s%.*s%s\n", t->tty ? "\033[7m" : "", (int)cols, line,
	       t->tty ? "\033[0m\033[K" : "");
}

/* Return: lines. */
static unsigned silent_say(const struct top *t, unsigned cols)
{
	char line[LINE_MAX_B];

	if (!t->now.nr_silent)
		return 0;
	snprintf(line, sizeof(line), "silent: %s", t->now.silent);
	line_say(t, cols, line);
	return 1;
}

static void row_say(const struct top *t, const struct row *r, unsigned cols)
{
	const struct seen_conn *c = r->c;
	char line[LINE_MAX_B], tx[16], rx[16], lost[16], window[16], rtt[16], msgs[16];

	snprintf(line, sizeof(line),
		 "%7u %-10.10s %5" PRIu64 " %-6.6s %7s %7s %7s %8s %7s %5s %-11s %s", c->pid,
		 c->name, c->id, c->link, amount(r->tx_s, c->has & SEEN_TX, tx),
		 amount(r->rx_s, c->has & SEEN_RX, rx), amount(r->lost_s, c->has & SEEN_LOST, lost),
		 duration(c->rtt_s, rtt), amount(c->window_b, c->has & SEEN_WINDOW, window),
		 amount(c->msgs, true, msgs), r->why, c->peer);
	line_say(t, cols, line);
}

static void top_draw(struct top *t)
{
	struct winsize w = {0};
	unsigned rows, cols,
		used = 4; /* the last row stays empty: a line feed there would scroll */

	if (!t->tty || ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) || !w.ws_row || !w.ws_col)
		w = (struct winsize){.ws_row = ROWS_DEFAULT, .ws_col = COLS_DEFAULT};
	rows = t->tty ? w.ws_row : UINT32_MAX;
	cols = t->tty ? w.ws_col : LINE_MAX_B;
	if (t->tty)
		printf("\033[H");
	head_say(t, cols);
	if (used < rows)
		used += silent_say(t, cols);
	for (unsigned i = 0; i < t->now.nr && i + used < rows; i++)
		row_say(t, &t->rows[i], cols);
	if (t->tty)
		printf("\033[J");
	errno = 0;
	if (fflush(stdout) || ferror(stdout))
		t->out_err = errno ? errno : EIO;
}

static void screen_open(struct top *t)
{
	struct termios raw;

	tcgetattr(STDIN_FILENO, &t->was);
	raw = t->was;
	raw.c_lflag &= (tcflag_t) ~(ICANON | ECHO);
	raw.c_cc[VMIN] = 1;
	raw.c_cc[VTIME] = 0;
	tcsetattr(STDIN_FILENO, TCSANOW, &raw);
	printf("\033[?1049h\033[?25l\033[2J");
}

static void screen_close(struct top *t)
{
	printf("\033[?25h\033[?1049l");
	fflush(stdout);
	tcsetattr(STDIN_FILENO, TCSANOW, &t->was);
}

/* ---- Keys ---- */

/* A key of the interval that is being typed. */
static void type_take(struct top *t, char key)
{
	size_t len = strlen(t->typed);

	if ((key >= '0' && key <= '9') || key == '.') {
		if (len + 1 < sizeof(t->typed))
			t->typed[len] = key;
	} else if ((key == 127 || key == 8) && len) {
		t->typed[len - 1] = 0;
	} else if (key == '\n' || key == '\r') {
		opt_seconds(t->typed, &t->interval_ns); /* else it stays */
		t->asks = false;
	} else if (key == 27) {
		t->asks = false;
	}
}

/* Return: look at once. */
static bool key_take(struct top *t, char key)
{
	if (t->asks) {
		type_take(t, key);
		return false;
	}
	if (key == 'q' || key == 3)
		top_quit = 1;
	else if (key == '>')
		t->sort = (t->sort + 1) % COLUMNS;
	else if (key == '<')
		t->sort = (t->sort + COLUMNS - 1) % COLUMNS;
	else if (key == 'R')
		t->reverse = !t->reverse;
	else if (key == 'd' || key == 's') {
		t->asks = true;
		memset(t->typed, 0, sizeof(t->typed));
	}
	return key == ' ';
}

/* Until the next look is due. Return: false: the terminal is gone. */
static bool keys_wait(struct top *t, uint64_t until_ns)
{
	struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
	char keys[32];

	while (!top_quit) {
		uint64_t now = gx_now();
		ssize_t n = 0;
		bool at_once = false;

		if (now >= until_ns)
			return true;
		if (poll(&p, 1, (int)((until_ns - now) / 1000000) + 1) > 0) {
			n = read(STDIN_FILENO, keys, sizeof(keys));
			if (n <= 0 && errno != EINTR)
				return false;
		}
		for (ssize_t i = 0; i < n; i++)
			at_once |= key_take(t, keys[i]);
		if (at_once)
			return true;
		if (n > 0 || top_resized) {
			if (top_resized)
				printf("\033[2J");
			top_resized = 0;
			qsort_r(t->rows, t->now.nr, sizeof(*t->rows), row_order, t);
			top_draw(t);
		}
	}
	return true;
}

/* ---- The command ---- */

static error_t opts_parse(int key, char *arg, struct argp_state *state)
{
	struct top *t = state->input;

	switch (key) {
	case KEY_DIR:
		t->dir = arg;
		return 0;
	case KEY_INTERVAL:
		if (opt_seconds(arg, &t->interval_ns))
			argp_error(state, "--interval: '%s' is not a number of seconds, e.g. 0.5",
				   arg);
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "what is '%s'? gxd top has options only", arg);
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

const struct argp gxd_top_argp = {
	.options = top_options,
	.parser = opts_parse,
	.children = help_children,
	.doc = "gxd top shows the connections of all gx processes of this host, live: rates, losses, round "
	       "trips, and what limits each."
	       "\v  gxd top\n"
	       "  gxd top --interval 0.5\n"
	       "Keys: q quits, < and > choose the column to sort by, R reverses, d or s sets the "
	       "interval, space looks at once. Where stdout is no terminal it prints one table, over "
	       "one interval.\n"
	       "Exit status: 0 ok, 1 failed, 2 usage.",
};

static int top_fail(const struct top *t, int err)
{
	fprintf(stderr, "gxd: %s: %s%s\n", t->dir, strerror(-err),
		err == -ENOENT	 ? ": where gx processes publish; a gxd makes it (GX_RUN_DIR names "
				   "another)"
		: err == -EACCES ? ": its group may look"
				 : "");
	return TOP_FAILED;
}

static int top_run(struct top *t)
{
	int ret = top_look(t);

	if (t->tty && !ret)
		screen_open(t);
	while (!ret && !top_quit) {
		uint64_t until_ns = t->now_ns + t->interval_ns;

		if (t->tty)
			top_draw(t);
		if (t->tty && !keys_wait(t, until_ns))
			break;
		while (!t->tty && gx_now() < until_ns && !top_quit)
			usleep(1000);
		if (!top_quit)
			ret = top_look(t);
		if (!t->tty && !ret) {
			top_draw(t);
			break;
		}
	}
	if (t->tty && t->rows)
		screen_close(t);
	return ret;
}

int gxd_top(int argc, char **argv)
{
	static const int ends[] = {SIGTERM, SIGINT, SIGHUP, SIGWINCH};
	struct sigaction act = {.sa_handler = top_on_signal};
	struct top t = {.interval_ns = TOP_INTERVAL_NS, .sort = BY_RX, .dir = peers_dir()};
	int ret;

	argp_parse(&gxd_top_argp, argc, argv, ARGP_NO_HELP, NULL, &t);
	t.tty = isatty(STDOUT_FILENO) && isatty(STDIN_FILENO);
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		sigaction(ends[i], &act, NULL);
	ret = top_run(&t);
	seen_free(&t.now);
	seen_free(&t.before);
	free(t.rows);
	if (t.out_err)
		fprintf(stderr, "gxd: the table cannot be printed: %s\n", strerror(t.out_err));
	return ret ? top_fail(&t, ret) : t.out_err ? TOP_FAILED : TOP_OK;
}
