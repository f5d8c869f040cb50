/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server with many connections, for whoever times `gxd metrics` beside it: the server publishes its
 * counters where GX_RUN_DIR says, the clients' process does not. It says "ready" when all are up, and
 * ends with its stdin.
 *
 * usage: crowd CONNECTIONS [packet|local|tcp|udp]     udp: link packet over port udp
 */
#include <gx/gx.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define WAIT_NS 60000000000ull

static void must(int ret, const char *what)
{
	if (ret >= 0)
		return;
	fprintf(stderr, "crowd: %s: %s\n", what, gx_error());
	exit(1);
}

static struct gx *open_one(const char *link)
{
	const struct gx_port_name ports[] = {{.name = strcmp(link, "udp") ? "shm" : "udp"}};
	struct gx_opts opts = GX_INIT(opts);
	struct gx *gx;

	opts.ports = ports;
	opts.nr_ports = 1;
	opts.peer_timeout_ns = WAIT_NS;
	must(gx_open(&opts, &gx), "open");
	return gx;
}

/* The clients: connect, tell by a byte, and stay. */
static void clients(unsigned n, const char *link, int ports, int ready)
{
	struct gx_connect_opts o = GX_INIT(o);
	struct gx_conn **conns = calloc(n, sizeof(*conns));
	char addr[32];
	struct gx *gx;
	int port;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setenv("GX_RUN_DIR", "", 1);
	if (!conns || read(ports, &port, sizeof(port)) != sizeof(port))
		exit(1);
	gx = open_one(link);
	must(gx_core_start(gx_core(gx, 0)), "start");
	snprintf(addr, sizeof(addr), "127.0.0.1:%d", port);
	o.link = strcmp(link, "udp") ? link : "packet";
	o.timeout_ns = WAIT_NS;
	for (unsigned i = 0; i < n; i++) {
		must(gx_connect(gx, addr, &o, &conns[i]), "connect");
		must(gx_conn_wait(conns[i], WAIT_NS), "connect");
	}
	if (write(ready, "", 1) == 1)
		pause();
	exit(1);
}

int main(int argc, char *argv[])
{
	unsigned n = argc > 1 ? (unsigned)atoi(argv[1]) : 1000;
	const char *link = argc > 2 ? argv[2] : "packet";
	int ports[2], ready[2], port;
	struct gx *gx;
	pid_t child;
	char byte;

	if (pipe(ports) || pipe(ready))
		return 1;
	child = fork();
	if (!child)
		clients(n, link, ports[0], ready[1]);
	close(ready[1]);
	gx = open_one(link);
	must(gx_core_start(gx_core(gx, 0)), "start");
	port = gx_listen(gx, "127.0.0.1:0");
	must(port, "listen");
	if (write(ports[1], &port, sizeof(port)) != sizeof(port) || read(ready[0], &byte, 1) != 1)
		return 1;
	puts("ready");
	fflush(stdout);
	while (read(0, &byte, 1) > 0)
		;
	kill(child, SIGKILL);
	gx_close(gx);
	return 0;
}
