// SPDX-License-Identifier: Apache-2.0
/*
 * Starts and ends programs (see child.h).
 */
#include "gxperf/base/child.h"

#include <gx/gx.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHILD_LOOK_NS 2000000
#define CHILD_TERM_NS 15000000000ull

/* In the child: never returns. */
static void child_exec(const struct child *c, const char *file, char *const argv[], int in,
		       pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent) /* it died before the prctl() */
		_exit(CHILD_NOT_RUN);
	signal(SIGPIPE, SIG_DFL);
	dup2(in, STDIN_FILENO);
	if (c->out >= 0)
		dup2(c->out, STDOUT_FILENO);
	if (c->err >= 0)
		dup2(c->err, STDERR_FILENO);
	execvp(file, argv);
	dprintf(STDERR_FILENO, "%s: %s\n", file, strerror(errno));
	_exit(CHILD_NOT_RUN);
}

int child_start(struct child *c, const char *file, char *const argv[], int in, bool keep)
{
	int none = in < 0 ? open("/dev/null", O_RDONLY | O_CLOEXEC) : -1, ret = 0;
	pid_t parent = getpid();

	*c = (struct child)CHILD_NONE;
	if (keep) {
		c->out = memfd_create("child-out", MFD_CLOEXEC);
		c->err = memfd_create("child-err", MFD_CLOEXEC);
	}
	if ((in < 0 && none < 0) || (keep && (c->out < 0 || c->err < 0)))
		ret = -errno;
	if (!ret) {
		fflush(NULL);
		c->pid = fork();
		ret = c->pid < 0 ? -errno : 0;
	}
	if (!ret && !c->pid)
		child_exec(c, file, argv, in < 0 ? none : in, parent);
	if (none >= 0)
		close(none);
	if (ret) {
		c->pid = 0;
		child_close(c);
	}
	return ret;
}

bool child_ended(struct child *c)
{
	pid_t got;

	if (!c->pid)
		return true;
	do
		got = waitpid(c->pid, &c->status, WNOHANG);
	while (got < 0 && errno == EINTR);
	if (got)
		c->pid = 0;
	return got != 0;
}

static bool child_wait(struct child *c, uint64_t limit_ns)
{
	struct timespec nap = {.tv_nsec = CHILD_LOOK_NS};
	uint64_t end = gx_now() + limit_ns;

	while (!child_ended(c)) {
		if (gx_now() > end)
			return false;
		nanosleep(&nap, NULL);
	}
	return true;
}

void child_stop(struct child *c)
{
	if (c->pid)
		kill(c->pid, SIGTERM);
}

int child_end(struct child *c, uint64_t limit_ns)
{
	if (!child_wait(c, limit_ns)) {
		child_stop(c);
		if (!child_wait(c, CHILD_TERM_NS)) {
			kill(c->pid, SIGKILL);
			child_wait(c, UINT64_MAX / 2);
		}
	}
	return WIFSIGNALED(c->status) ? CHILD_SIGNAL + WTERMSIG(c->status) : WEXITSTATUS(c->status);
}

void child_close(struct child *c)
{
	if (c->out >= 0)
		close(c->out);
	if (c->err >= 0)
		close(c->err);
	c->out = c->err = -1;
}

char *child_text(int fd, size_t *len)
{
	struct stat st = {0};
	char *text;
	ssize_t n;

	if (fd >= 0)
		fstat(fd, &st);
	text = malloc((size_t)st.st_size + 1);
	if (!text)
		return NULL;
	n = fd >= 0 ? pread(fd, text, (size_t)st.st_size, 0) : 0;
	*len = n > 0 ? (size_t)n : 0;
	text[*len] = '\0';
	return text;
}

int child_self(const char *name, char *buf, size_t room)
{
	ssize_t n = readlink("/proc/self/exe", buf, room - 1);
	char *slash;

	if (n < 0)
		return -errno;
	buf[n] = '\0';
	slash = strrchr(buf, '/');
	if (name)
		snprintf(slash + 1, room - (size_t)(slash + 1 - buf), "%s", name);
	return 0;
}
