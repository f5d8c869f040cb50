// SPDX-License-Identifier: Apache-2.0
/*
 * gxd stats [SOCKET]: ask a running gxd for its counters. Main thread only.
 */
#include "gxd/gxd_stats.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define STATS_SOCKET "@gxd-7501"

enum { STATS_OK = 0, STATS_FAILED = 1, STATS_USAGE = 2 };

static int stats_connect(const char *path)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	size_t len = strlen(path);
	int fd, err;

	if (len >= sizeof(un.sun_path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	memcpy(un.sun_path, path, len);
	if (path[0] == '@')
		un.sun_path[0] = '\0';
	else
		len++;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || !connect(fd, (struct sockaddr *)&un,
			       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)))
		return fd;
	err = errno;
	close(fd);
	errno = err;
	return -1;
}

/* Text comes at once: shutdown() tells the server that no request follows. */
static int stats_print(const char *path)
{
	char buf[16384];
	ssize_t n;
	int fd = stats_connect(path);

	if (fd < 0) {
		fprintf(stderr,
			"gxd: no counters at %s: %s. Is gxd running? Its first lines name the "
			"socket\n",
			path, strerror(errno));
		return STATS_FAILED;
	}
	shutdown(fd, SHUT_WR);
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		if (fwrite(buf, 1, (size_t)n, stdout) != (size_t)n)
			break;
	close(fd);
	if (fflush(stdout) || n) {
		fprintf(stderr, "gxd: counters of %s: %s\n", path, strerror(errno));
		return STATS_FAILED;
	}
	return STATS_OK;
}

static error_t stats_parse(int key, char *arg, struct argp_state *state)
{
	const char **path = state->input;

	if (key != ARGP_KEY_ARG)
		return ARGP_ERR_UNKNOWN;
	if (*path)
		argp_error(state, "what is '%s'? One socket", arg);
	*path = arg;
	return 0;
}

const struct argp gxd_stats_argp = {
	.parser = stats_parse,
	.args_doc = "[SOCKET]",
	.doc = "gxd stats prints the counters of a running gxd. SOCKET is what --stats of that gxd "
	       "names; default " STATS_SOCKET "."
	       "\vExit status: 0 ok, 1 failed, 2 usage.",
};

int gxd_stats(int argc, char **argv)
{
	static char name[] = "gxd stats";
	const char *path = NULL;

	argp_err_exit_status = STATS_USAGE;
	argv[0] = name;
	argp_parse(&gxd_stats_argp, argc, argv, 0, NULL, &path);
	return stats_print(path ? path : STATS_SOCKET);
}
