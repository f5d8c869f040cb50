// SPDX-License-Identifier: Apache-2.0
/*
 * The log. Any thread may call all of it. It takes a lock, so the data path does not log; and it never
 * waits for its reader. A line about a peer begins with "peer NAME", and the name with ADDRESS:PORT:
 * formats with keys take the peer from there.
 */
#include "gx_internal/base.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define LOG_LINE_MAX  1024 /* bytes with the final 0; longer lines are cut */
/* A line as it is written, with the line that counts dropped ones; below PIPE_BUF. */
#define LOG_OUT_MAX   4000
#define LOG_LAST_MAX  8	 /* lines that are remembered, to count those that come again */
#define LOG_ALIKE_MAX 16 /* lines about peers in that time that differ in numbers alone */
#define LOG_REPEAT_NS 10000000000ull

static const char *const log_level_name[] = {"err", "warn", "info", "debug"};
static const char *const log_format_name[] = {"text", "keys", "json"};
static const char log_syslog_level[] = {'3', '4', '6', '7'};

/* A line that was written lately. */
struct log_last {
	uint64_t since_ns; /* 0: none */
	uint64_t more;	   /* times that it came since, and was not written */
	unsigned alike;	   /* of log_kinds: lines of this kind that were written since */
	int level;
	char line[LOG_LINE_MAX];
};

static _Atomic int log_level = GX_LOG_WARN;
static _Atomic int log_format = GX_LOG_TEXT;
static const char *_Atomic log_name = "gx";
static _Atomic uint64_t log_drops;		/* lines dropped so far */
static uint64_t log_reported;			/* of these; under log_lock */
static struct log_last log_lasts[LOG_LAST_MAX]; /* under log_lock */
static struct log_last
	log_kinds[LOG_LAST_MAX]; /* the last of each kind about peers; under log_lock */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static void (*log_fn)(void *arg, int level, const char *line); /* under log_lock; NULL: stderr */
static void *log_arg;					       /* under log_lock */
static _Thread_local bool log_inside; /* this thread runs a sink: its own lines are dropped, as they
					 would wait for log_lock */

static int name_find(const char *const names[], unsigned n, const char *name)
{
	for (unsigned i = 0; i < n; i++)
		if (strcmp(names[i], name) == 0)
			return (int)i;
	return -EINVAL;
}

GX_EXPORT int gx_log_level_parse(const char *name)
{
	return name_find(log_level_name, GX_ARRAY_SIZE(log_level_name), name);
}

GX_EXPORT int gx_log_format_parse(const char *name)
{
	return name_find(log_format_name, GX_ARRAY_SIZE(log_format_name), name);
}

/* Another thread may have held it: in a child of fork() that one is not. */
static void log_child(void)
{
	pthread_mutex_init(&log_lock, NULL);
}

/* A constructor: the environment never overwrites what the program sets. */
static void __attribute__((constructor)) log_env_read(void)
{
	const char *level = getenv("GX_LOG"), *format = getenv("GX_LOG_FORMAT");
	int v;

	pthread_atfork(NULL, NULL, log_child);
	v = format && *format ? gx_log_format_parse(format) : GX_LOG_TEXT;
	if (v >= 0)
		atomic_store_explicit(&log_format, v, memory_order_relaxed);
	else
		gx_warn("GX_LOG_FORMAT=%s is not known, using text; say text, keys or json",
			format);
	v = level && *level ? gx_log_level_parse(level) : GX_LOG_WARN;
	if (v >= 0)
		atomic_store_explicit(&log_level, v, memory_order_relaxed);
	else
		gx_warn("GX_LOG=%s is not known, using warn; say err, warn, info or debug", level);
}

GX_EXPORT void gx_log_name_set(const char *name)
{
	atomic_store_explicit(&log_name, name, memory_order_relaxed);
}

GX_EXPORT uint64_t gx_log_dropped(void)
{
	return atomic_load_explicit(&log_drops, memory_order_relaxed);
}

GX_EXPORT void gx_log_level_set(enum gx_log_level level)
{
	atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
}

GX_EXPORT void gx_log_format_set(enum gx_log_format format)
{
	atomic_store_explicit(&log_format, (int)format, memory_order_relaxed);
}

GX_EXPORT void gx_log_sink(void (*fn)(void *arg, int level, const char *line), void *arg)
{
	pthread_mutex_lock(&log_lock);
	log_fn = fn;
	log_arg = arg;
	pthread_mutex_unlock(&log_lock);
}

/* ---- Writing ---- */

/*
 * The reader of stderr may have stopped: a full pipe, or a terminal after Ctrl-S. The control
 * thread logs, so it must not wait there. gx may not set O_NONBLOCK, because other processes share
 * the file. A pipe that poll() calls writable has room for PIPE_BUF bytes (pipe(7)), and a line is
 * never longer. If another process takes that room in between, RWF_NOWAIT (Linux 5.6 and later for
 * pipes) keeps the write from waiting. If the reader has gone, poll() says so and gx writes
 * nothing: the program may not expect SIGPIPE.
 */
static bool log_put(const struct stat *st, const char *buf, size_t len)
{
	struct iovec iov = {.iov_base = (char *)buf, .iov_len = len};
	struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
	ssize_t n;

	if (S_ISSOCK(st->st_mode))
		return send(STDERR_FILENO, buf, len, MSG_DONTWAIT | MSG_NOSIGNAL) > 0;
	if (!S_ISREG(st->st_mode) && (poll(&p, 1, 0) != 1 || p.revents != POLLOUT))
		return false;
	if (S_ISFIFO(st->st_mode)) {
		n = pwritev2(STDERR_FILENO, &iov, 1, -1, RWF_NOWAIT);
		if (n >= 0 || errno != EOPNOTSUPP)
			return n > 0;
	}
	return write(STDERR_FILENO, buf, len) > 0;
}

struct log_out {
	char buf[LOG_OUT_MAX];
	size_t len;
	bool journal; /* stderr is journald's: it wants the level in front */
};

__attribute__((format(printf, 2, 3))) static void out_say(struct log_out *o, const char *fmt, ...)
{
	size_t room = sizeof(o->buf) - o->len;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(o->buf + o->len, room, fmt, ap);
	va_end(ap);
	if (n > 0)
		o->len += GX_MIN((size_t)n, room - 1);
}

/* As a string of JSON, in quotes, of @len bytes; in logfmt the same is a value. */
static void out_quoted(struct log_out *o, const char *text, size_t len)
{
	out_say(o, "\"");
	for (size_t i = 0; i < len; i++) {
		unsigned char c = (unsigned char)text[i];

		if (c == '"' || c == '\\')
			out_say(o, "\\%c", c);
		else if (c < ' ' || c == 0x7f)
			out_say(o, "\\u%04x", c);
		else
			out_say(o, "%c", c < 0x80 ? c : '?');
	}
	out_say(o, "\"");
}

static void out_key(struct log_out *o, bool json, const char *key, const char *text, size_t len)
{
	out_say(o, json ? ", \"%s\": " : " %s=", key);
	out_quoted(o, text, len);
}

static void out_number(struct log_out *o, bool json, const char *key, uint64_t v)
{
	out_say(o, json ? ", \"%s\": %" PRIu64 : " %s=%" PRIu64, key, v);
}

/* "peer 10.0.0.1:7501 pid 4711 conn 7: ..." */
static void out_peer(struct log_out *o, bool json, const char *line)
{
	static const char mark[] = "peer ";
	unsigned pid = 0;
	uint64_t conn = 0;
	size_t len;
	int n = 0;

	if (strncmp(line, mark, sizeof(mark) - 1))
		return;
	line += sizeof(mark) - 1;
	len = strcspn(line, " ");
	if (len && line[len - 1] == ':') { /* what follows may be a peer's word */
		len--;
	} else {
		if (sscanf(line + len, " pid %u%n", &pid, &n) != 1)
			pid = 0;
		if (sscanf(line + len + n, " conn %" SCNu64, &conn) != 1)
			conn = 0;
	}
	if (!memchr(line, ':', len))
		return; /* a word */
	out_key(o, json, "peer", line, len);
	if (pid)
		out_number(o, json, "pid", pid);
	if (conn)
		out_number(o, json, "conn", conn);
}

/* @more: it came so many times more. */
static void out_line(struct log_out *o, int level, const char *line, uint64_t more)
{
	const char *name = atomic_load_explicit(&log_name, memory_order_relaxed);
	int format = atomic_load_explicit(&log_format, memory_order_relaxed);
	bool json = format == GX_LOG_JSON;
	struct timespec ts;
	char when[32];
	struct tm tm;

	clock_gettime(CLOCK_REALTIME, &ts);
	gmtime_r(&ts.tv_sec, &tm);
	strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", &tm);
	if (o->journal)
		out_say(o, "<%c>", log_syslog_level[level]);
	if (format == GX_LOG_TEXT) {
		out_say(o, "%s.%03ldZ %.32s: %s: %s", when, ts.tv_nsec / 1000000, name,
			log_level_name[level], line);
		if (more)
			out_say(o, " (said %" PRIu64 " times more)", more);
	} else {
		out_say(o, json ? "{\"time\": \"%s.%03ldZ\"" : "time=%s.%03ldZ", when,
			ts.tv_nsec / 1000000);
		out_say(o, json ? ", \"level\": \"%s\"" : " level=%s", log_level_name[level]);
		out_key(o, json, "name", name, strnlen(name, 32));
		out_peer(o, json, line);
		if (more)
			out_number(o, json, "more", more);
		out_key(o, json, "msg", line, strlen(line));
		out_say(o, json ? "}" : "");
	}
	/* A line of many characters that are escaped may have been cut; the next one begins anew. */
	o->len = GX_MIN(o->len, sizeof(o->buf) - 2);
	o->buf[o->len++] = '\n';
}

/* Does journald read stderr? journald gives the device and inode of its socket. */
static bool log_journal(const struct stat *st)
{
	const char *env = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;

	return env && sscanf(env, "%llu:%llu", &dev, &ino) == 2 && dev == st->st_dev &&
	       ino == st->st_ino;
}

/* Under log_lock. Return: the line was written. */
static bool log_line(int level, const char *line, uint64_t more)
{
	uint64_t drops = gx_log_dropped();
	static struct log_out o; /* under log_lock, too */
	struct stat st;
	bool put;

	o.len = 0;
	put = !fstat(STDERR_FILENO, &st);
	o.journal = put && log_journal(&st);
	if (drops != log_reported && log_format == GX_LOG_TEXT && !o.journal) {
		out_say(&o, "gx: %" PRIu64 " lines of this log were dropped: nobody read it\n",
			drops - log_reported);
	} else if (drops != log_reported) {
		char text[64];

		snprintf(text, sizeof(text), "%" PRIu64 " lines of this log were dropped",
			 drops - log_reported);
		out_line(&o, GX_LOG_WARN, text, 0);
	}
	out_line(&o, level, line, more);
	put = put && log_put(&st, o.buf, o.len);
	if (put)
		log_reported = drops;
	else
		atomic_fetch_add_explicit(&log_drops, 1, memory_order_relaxed);
	return put;
}

/* ---- Lines that come again ---- */

static void last_end(struct log_last *l)
{
	if (l->more)
		log_line(l->level, l->line, l->more);
	l->more = 0;
	l->since_ns = 0;
}

/* The same but for numbers? Each run of digits stands for any other. */
static bool line_alike(const char *a, const char *b)
{
	static const char digits[] = "0123456789";

	for (; *a && *b; a++, b++) {
		size_t n = strspn(a, digits), m = strspn(b, digits);

		if (!n != !m)
			return false;
		a += n;
		b += m;
		if (*a != *b)
			return false;
		if (!*a)
			return true;
	}
	return *a == *b;
}

/* Those whose time is over. */
static void lasts_end(struct log_last all[LOG_LAST_MAX], uint64_t now)
{
	for (unsigned i = 0; i < LOG_LAST_MAX; i++)
		if (all[i].since_ns && now - all[i].since_ns >= LOG_REPEAT_NS)
			last_end(&all[i]);
}

/* Return: that of @line; else the oldest, with @found false. */
static struct log_last *last_find(struct log_last all[LOG_LAST_MAX], int level, const char *line,
				  bool alike, bool *found)
{
	struct log_last *oldest = &all[0];

	for (unsigned i = 0; i < LOG_LAST_MAX; i++) {
		struct log_last *l = &all[i];

		*found = l->since_ns && l->level == level &&
			 (alike ? line_alike(l->line, line) : !strcmp(l->line, line));
		if (*found)
			return l;
		if (l->since_ns < oldest->since_ns)
			oldest = l;
	}
	return oldest;
}

/* @l is that of @line from now on. */
static void last_begin(struct log_last *l, int level, const char *line)
{
	last_end(l);
	l->since_ns = gx_now_ns();
	l->alike = 1;
	l->level = level;
	snprintf(l->line, sizeof(l->line), "%s", line);
}

/* Peers that come and go say the same in other numbers, as fast as they like. Return: one of too many; it
 * is counted. */
static bool kind_count(int level, const char *line)
{
	struct log_last *l;
	bool found;

	if (strncmp(line, "peer ", 5))
		return false;
	l = last_find(log_kinds, level, line, true, &found);
	if (!found) {
		last_begin(l, level, line);
		return false;
	}
	if (l->alike++ < LOG_ALIKE_MAX)
		return false;
	l->more++;
	snprintf(l->line, sizeof(l->line), "%s", line);
	return true;
}

/* Under log_lock: log_write() holds it while it calls a sink. A line that was written within the last
 * seconds is counted, and the count is written with the first line after that time. */
GX_EXPORT void gx_log_stderr(int level, const char *line)
{
	uint64_t now = gx_now_ns();
	struct log_last *l;
	bool found;

	lasts_end(log_lasts, now);
	lasts_end(log_kinds, now);
	l = last_find(log_lasts, level, line, false, &found);
	if (found) {
		l->more++;
		return;
	}
	if (kind_count(level, line))
		return;
	last_end(l);
	if (log_line(level, line, 0))
		last_begin(l, level, line);
}

/* What was counted to the end. Nobody waits here: a thread that is killed may hold the lock. */
static void __attribute__((destructor)) log_end(void)
{
	if (pthread_mutex_trylock(&log_lock))
		return;
	for (unsigned i = 0; i < LOG_LAST_MAX; i++) {
		last_end(&log_lasts[i]);
		last_end(&log_kinds[i]);
	}
	pthread_mutex_unlock(&log_lock);
}

/* log_lock is held over the call: when gx_log_sink() returns, no thread is in the old sink. */
static void log_write(int level, const char *line)
{
	if (log_inside)
		return;
	log_inside = true;
	pthread_mutex_lock(&log_lock);
	if (log_fn)
		log_fn(log_arg, level, line);
	else
		gx_log_stderr(level, line);
	pthread_mutex_unlock(&log_lock);
	log_inside = false;
}

GX_EXPORT void gx_log(enum gx_log_level level, const char *fmt, ...)
{
	char line[LOG_LINE_MAX];
	int err = errno;
	va_list ap;

	if ((int)level > atomic_load_explicit(&log_level, memory_order_relaxed))
		return;
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	log_write((int)level, line);
	errno = err;
}
