// SPDX-License-Identifier: Apache-2.0
/*
 * The log, the clock and random bytes. Any thread may call all of it; the log takes a lock, so it
 * stays off the data path.
 */
#include "gx_internal/base.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define LOG_LINE_MAX 1024 /* bytes with the final 0; longer lines are cut */

static const char *const log_level_name[] = {"err", "warn", "info", "debug"};

static _Atomic int log_level = GX_LOG_WARN;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static void (*log_fn)(void *arg, int level, const char *line); /* under log_lock; NULL: stderr */
static void *log_arg;					       /* under log_lock */
static _Thread_local bool log_inside; /* a sink that logs would wait for its own lock */

/* A constructor, so that a level set by the program is never overwritten by the environment. */
static void __attribute__((constructor)) log_env_read(void)
{
	const char *env = getenv("GX_LOG");

	if (!env || !*env)
		return;
	for (unsigned i = 0; i < GX_ARRAY_SIZE(log_level_name); i++) {
		if (strcmp(env, log_level_name[i]) == 0) {
			atomic_store_explicit(&log_level, (int)i, memory_order_relaxed);
			return;
		}
	}
	gx_warn("GX_LOG=%s is not known, using warn; say err, warn, info or debug", env);
}

void gx_log_level_set(enum gx_log_level level)
{
	atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
}

void gx_log_sink(void (*fn)(void *arg, int level, const char *line), void *arg)
{
	pthread_mutex_lock(&log_lock);
	log_fn = fn;
	log_arg = arg;
	pthread_mutex_unlock(&log_lock);
}

/* The lock is held over the call: once gx_log_sink() has returned, the old sink is no longer in
 * use. */
static void log_write(int level, const char *line)
{
	if (log_inside)
		return;
	log_inside = true;
	pthread_mutex_lock(&log_lock);
	if (log_fn)
		log_fn(log_arg, level, line);
	else
		fprintf(stderr, "gx: %s: %s\n", log_level_name[level], line);
	pthread_mutex_unlock(&log_lock);
	log_inside = false;
}

void gx_log(enum gx_log_level level, const char *fmt, ...)
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
