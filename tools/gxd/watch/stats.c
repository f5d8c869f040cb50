// SPDX-License-Identifier: Apache-2.0
/*
 * gxd stats [SOCKET]: ask a running gxd for its counters. Main thread only.
 */
#include "gxd/watch/stats.h"

#include "common/help.h"
#include "common/unixsock.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define STATS_SOCKET "@gxd-7501"

enum { STATS_OK = 0, STATS_FAILED = 1, STATS_USAGE = 2 };

/* Text comes at once: shutdown() says to the server that no request follows. */
static int stats_print(const char *path)
{
	char buf[16384];
	bool empty = true;
	ssize_t n;
	int fd = unix_connect(path, SOCK_STREAM);

	if (fd < 0) {
		fprintf(stderr,
			"gxd: no counters at %s: %s. Is gxd running? Its first lines name the "
			"socket\n",
			path, strerror(errno));
		return STATS_FAILED;
	}
	shutdown(fd, SHUT_WR);
	while ((n = read(fd, buf, sizeof(buf))) > 0 && !(empty = false))
		if (fwrite(buf, 1, (size_t)n, stdout) != (size_t)n)
			break;
	close(fd);
	if (empty && (!n || errno == ECONNRESET)) {
		fprintf(stderr,
			"gxd: %s tells nothing: its counters are for its own user, root and its "
			"group: run this as one of them\n",
			path);
		return STATS_FAILED;
	}
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
	.children = help_children,
	.args_doc = "[SOCKET]",
	.doc = "gxd stats prints the counters of a running gxd. SOCKET is what --stats of that gxd "
	       "names; default " STATS_SOCKET "."
	       "\v  gxd stats\n"
	       "  gxd stats @gxd-7502\n"
	       "Exit status: 0 ok, 1 failed, 2 usage.",
};

int gxd_stats(int argc, char **argv)
{
	const char *path = NULL;

	argp_err_exit_status = STATS_USAGE;
	argp_parse(&gxd_stats_argp, argc, argv, ARGP_NO_HELP, NULL, &path);
	return stats_print(path ? path : STATS_SOCKET);
}
