// SPDX-License-Identifier: Apache-2.0
/* What gxd reports to systemd; see notify.h. */
#include "gxd/serve/notify.h"

#include "common/unixsock.h"

#include <gx/log.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define NOTIFY_LINES_MAX 512
#define NOTIFY_PERIOD_NS 10000000000ull

static int notify_fd = -1;
static uint64_t notify_every_ns;

void notify_open(void)
{
	const char *path = getenv("NOTIFY_SOCKET"), *usec = getenv("WATCHDOG_USEC"),
		   *pid = getenv("WATCHDOG_PID");
	uint64_t v = usec ? strtoull(usec, NULL, 10) : 0;

	if (!path)
		return;
	notify_fd = unix_connect(path, SOCK_DGRAM);
	if (notify_fd < 0)
		gx_log(GX_LOG_WARN, "NOTIFY_SOCKET %s: %s", path, strerror(errno));
	else if (v && (!pid || strtoul(pid, NULL, 10) == (unsigned long)getpid()))
		notify_every_ns = v * 500;
	else
		notify_every_ns = NOTIFY_PERIOD_NS;
	/* Not for programs that this process may start. */
	unsetenv("NOTIFY_SOCKET");
	unsetenv("WATCHDOG_USEC");
	unsetenv("WATCHDOG_PID");
}

void notify_say(const char *fmt, ...)
{
	char text[NOTIFY_LINES_MAX];
	va_list ap;
	int n;

	if (notify_fd < 0)
		return;
	va_start(ap, fmt);
	n = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (n > 0 && (size_t)n < sizeof(text) &&
	    send(notify_fd, text, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		gx_log(GX_LOG_DEBUG, "NOTIFY_SOCKET: %s", strerror(errno));
}

uint64_t notify_period_ns(void)
{
	return notify_every_ns;
}
