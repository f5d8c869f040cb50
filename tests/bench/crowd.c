/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server with many connections, for whoever times `gxd metrics` beside it: the server publishes its
 * counters where GX_RUN_DIR says, the clients' process does not. It says "ready" when all are up, and
 * ends with its stdin.
 *
 * usage: crowd CONNECTIONS [packet|local|tcp|udp] [turns|tell]     udp: link packet over port udp
 *
 * With tell it says what the connections took: time, and memory and descriptors of both processes.
 * With turns the main thread turns the core, and tells at each line on stdin what turns took of its CPU time
 * since the last one: how many, ns of the longest one, and how many took 10, 20, 50 and 100 us or longer.
 */
#include <gx/gx.h>

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define WAIT_NS 60000000000ull

static void must(int ret, const char *what)
{
	if (ret >= 0)
		return;
	fprintf(stderr, "crowd: %s: %s\n", what, gx_error());
	exit(1);
}

static struct gx *open_one(const char *link, unsigned n)
{
	const struct gx_port_name ports[] = {{.name = strcmp(link, "udp") ? "shm" : "udp"}};
	struct gx_opts opts = GX_INIT(opts);
	struct gx *gx;

	opts.ports = ports;
	opts.nr_ports = 1;
	opts.peer_timeout_ns = WAIT_NS;
	/* By default a peer over shm has 10 MiB of the 4 GiB arena. */
	opts.packet =
		GX_WITH(gx_packet_opts, .slots = n > 400 && !strcmp(ports[0].name, "shm") ? 64 : 0);
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
	gx = open_one(link, n);
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

/* ---- What they take ---- */

struct taken {
	double rss_kib;
	unsigned fds;
};

static struct taken taken_by(pid_t pid)
{
	struct taken t = {0};
	char path[64], line[256];
	DIR *dir;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, "VmRSS:", 6))
			t.rss_kib = atof(line + 6);
	if (f)
		fclose(f);
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	while (dir && readdir(dir))
		t.fds++;
	if (dir)
		closedir(dir);
	return t;
}

static void tell(const struct taken *before, const struct taken *after, unsigned n, const char *who)
{
	printf("; %s: %.0f KiB at first, and of each %.1f KiB and %.2f descriptors", who,
	       before->rss_kib, (after->rss_kib - before->rss_kib) / n,
	       (double)(after->fds - before->fds) / n);
}

/* ---- Turns ---- */

#define LOOK_TURNS 1024 /* between two looks at a descriptor */

static uint64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

/* Until @fd has a byte. Return: false: it has none any more. */
static bool turn_until(struct gx_core *core, int fd, bool tell)
{
	static const unsigned over_us[4] = {10, 20, 50, 100};
	uint64_t longest = 0, n = 0, nr[4] = {0};
	char byte;

	fcntl(fd, F_SETFL, O_NONBLOCK);
	for (;; n++) {
		uint64_t begin = cpu_ns(), ns;
		ssize_t got;

		gx_core_turn(core, gx_now());
		ns = cpu_ns() - begin;
		longest = ns > longest ? ns : longest;
		for (unsigned i = 0; i < 4; i++)
			nr[i] += ns >= 1000ull * over_us[i];
		if (n % LOOK_TURNS)
			continue;
		got = read(fd, &byte, 1);
		if (!got)
			return false;
		if (got == 1)
			break;
	}
	if (tell)
		printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
		       n, longest, nr[0], nr[1], nr[2], nr[3]);
	fflush(stdout);
	return true;
}

int main(int argc, char *argv[])
{
	bool turns = argc > 3 && !strcmp(argv[3], "turns");
	unsigned n = argc > 1 ? (unsigned)atoi(argv[1]) : 1000;
	const char *link = argc > 2 ? argv[2] : "packet";
	bool tells = argc > 3 && !strcmp(argv[3], "tell");
	struct taken before, after;
	int ports[2], ready[2], port;
	uint64_t began_ns;
	struct gx *gx;
	pid_t child;
	char byte;

	if (pipe(ports) || pipe(ready))
		return 1;
	child = fork();
	if (!child)
		clients(n, link, ports[0], ready[1]);
	close(ready[1]);
	gx = open_one(link, n);
	if (!turns)
		must(gx_core_start(gx_core(gx, 0)), "start");
	port = gx_listen(gx, "127.0.0.1:0");
	must(port, "listen");
	before = taken_by(getpid());
	began_ns = gx_now();
	if (write(ports[1], &port, sizeof(port)) != sizeof(port) ||
	    (turns ? !turn_until(gx_core(gx, 0), ready[0], false) : read(ready[0], &byte, 1) != 1))
		return 1;
	if (tells) {
		printf("%u connections by %s in %.2f s", n, link, (gx_now() - began_ns) / 1e9);
		after = taken_by(getpid());
		tell(&before, &after, n, "server");
		after = taken_by(child); /* which began as the server did */
		tell(&before, &after, n, "clients");
		printf("\n");
	}
	puts("ready");
	fflush(stdout);
	while (turns ? turn_until(gx_core(gx, 0), 0, true) : read(0, &byte, 1) > 0)
		;
	kill(child, SIGKILL);
	gx_close(gx);
	return 0;
}
