// SPDX-License-Identifier: Apache-2.0
/*
 * The log, the clock, pages, random bytes, and descriptors that a child of fork() must not keep.
 * Any thread may call all of it. The log takes a lock, so the data path does not log. The log never
 * waits for its reader.
 */
#include "gx_internal/base.h"
#include "gx_internal/fork.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define LOG_LINE_MAX 1024 /* bytes with the final 0; longer lines are cut */
/* time, name and level before a line, and the line that counts dropped ones */
#define LOG_HEAD_MAX 256

static const char *const log_level_name[] = {"err", "warn", "info", "debug"};

static _Atomic int log_level = GX_LOG_WARN;
static const char *_Atomic log_name = "gx";
static _Atomic uint64_t log_drops; /* lines dropped so far */
static uint64_t log_told;	   /* of these, the log has reported so many; under log_lock */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static void (*log_fn)(void *arg, int level, const char *line); /* under log_lock; NULL: stderr */
static void *log_arg;					       /* under log_lock */
_Thread_local bool gx_thread_own;
static _Thread_local bool log_inside; /* this thread runs a sink: its own lines are dropped, as they
					 would wait for log_lock */

/* A constructor: the environment never overwrites a level that the program sets. */
static void __attribute__((constructor)) log_env_read(void)
{
	const char *env = getenv("GX_LOG");

	int level;

	if (!env || !*env)
		return;
	level = gx_log_level_parse(env);
	if (level >= 0)
		atomic_store_explicit(&log_level, level, memory_order_relaxed);
	else
		gx_warn("GX_LOG=%s is not known, using warn; say err, warn, info or debug", env);
}

GX_EXPORT int gx_log_level_parse(const char *name)
{
	for (unsigned i = 0; i < GX_ARRAY_SIZE(log_level_name); i++)
		if (strcmp(name, log_level_name[i]) == 0)
			return (int)i;
	return -EINVAL;
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

GX_EXPORT void gx_log_sink(void (*fn)(void *arg, int level, const char *line), void *arg)
{
	pthread_mutex_lock(&log_lock);
	log_fn = fn;
	log_arg = arg;
	pthread_mutex_unlock(&log_lock);
}

/*
 * The reader of stderr may have stopped: a full pipe, or a terminal after Ctrl-S. The control
 * thread logs, so it must not wait there. gx may not set O_NONBLOCK, because other processes share
 * the file. A pipe that poll() calls writable has room for PIPE_BUF bytes (pipe(7)), and a line is
 * never longer. If another process takes that room in between, RWF_NOWAIT (Linux 5.6 and later for
 * pipes) keeps the write from waiting. If the reader has gone, poll() says so and gx writes
 * nothing: the program may not expect SIGPIPE.
 */
static bool log_put(const char *buf, size_t len)
{
	struct iovec iov = {.iov_base = (char *)buf, .iov_len = len};
	struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
	struct stat st;
	ssize_t n;

	if (fstat(STDERR_FILENO, &st))
		return false;
	if (S_ISSOCK(st.st_mode))
		return send(STDERR_FILENO, buf, len, MSG_DONTWAIT | MSG_NOSIGNAL) > 0;
	if (!S_ISREG(st.st_mode) && (poll(&p, 1, 0) != 1 || p.revents != POLLOUT))
		return false;
	if (S_ISFIFO(st.st_mode)) {
		n = pwritev2(STDERR_FILENO, &iov, 1, -1, RWF_NOWAIT);
		if (n >= 0 || errno != EOPNOTSUPP)
			return n > 0;
	}
	return write(STDERR_FILENO, buf, len) > 0;
}

/* Under log_lock: log_write() holds it while it calls a sink. */
GX_EXPORT void gx_log_stderr(int level, const char *line)
{
	uint64_t drops = gx_log_dropped();
	char buf[LOG_LINE_MAX + LOG_HEAD_MAX], when[32];
	struct timespec ts;
	struct tm tm;
	int n = 0;

	clock_gettime(CLOCK_REALTIME, &ts);
	gmtime_r(&ts.tv_sec, &tm);
	strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", &tm);
	if (drops != log_told)
		n = snprintf(buf, LOG_HEAD_MAX / 2,
			     "gx: %" PRIu64 " lines of this log were dropped: nobody read it\n",
			     drops - log_told);
	n += snprintf(buf + n, sizeof(buf) - (size_t)n, "%s.%03ldZ %.32s: %s: %s\n", when,
		      ts.tv_nsec / 1000000, atomic_load_explicit(&log_name, memory_order_relaxed),
		      log_level_name[level], line);
	if (log_put(buf, GX_MIN((size_t)n, sizeof(buf) - 1)))
		log_told = drops;
	else
		atomic_fetch_add_explicit(&log_drops, 1, memory_order_relaxed);
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

uint64_t gx_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Not calloc(): it clears memory that malloc() uses again, and so touches all pages of it. Not huge
 * pages either: the first word written would take 2 MiB. */
void *gx_pages_get(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	/* A failure of either does no harm. Without the second, the kernel copies each page that is
	 * written after a fork. */
	madvise(p, len, MADV_NOHUGEPAGE);
	madvise(p, len, MADV_DONTFORK);
	return p;
}

void gx_pages_put(void *ptr, size_t len)
{
	if (ptr)
		munmap(ptr, len);
}

int gx_random(void *buf, size_t len)
{
	uint8_t *p = buf;

	while (len > 0) {
		ssize_t n = getrandom(p, len, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

/* ---- Descriptors and fork() ---- */

#define OWN_FDS_MAX 65536 /* a child keeps higher ones open until it ends */

static _Atomic uint64_t own_fds[OWN_FDS_MAX / 64];
static pthread_once_t own_once = PTHREAD_ONCE_INIT;

/* Runs in the child, which has only the thread that forked. close() leaves the parent's files
 * open. */
static void own_child(void)
{
	for (unsigned w = 0; w < GX_ARRAY_SIZE(own_fds); w++) {
		uint64_t bits = atomic_exchange_explicit(&own_fds[w], 0, memory_order_relaxed);

		for (; bits; bits &= bits - 1)
			close((int)(64 * w) + __builtin_ctzll(bits));
	}
}

static void own_start(void)
{
	pthread_atfork(NULL, NULL, own_child);
}

int gx_fd_own(int fd)
{
	if (fd < 0 || fd >= OWN_FDS_MAX)
		return fd;
	pthread_once(&own_once, own_start);
	atomic_fetch_or_explicit(&own_fds[fd / 64], 1ull << fd % 64, memory_order_relaxed);
	return fd;
}

void gx_fd_forget(int fd)
{
	if (fd >= 0 && fd < OWN_FDS_MAX)
		atomic_fetch_and_explicit(&own_fds[fd / 64], ~(1ull << fd % 64),
					  memory_order_relaxed);
}

/* Forget it first: another thread may get the number as soon as it is closed. */
void gx_fd_close(int fd)
{
	gx_fd_forget(fd);
	close(fd);
}
