/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NCCL plugin without NCCL and without a GPU: processes that load libnccl-net-gx.so as NCCL
 * does, and play its service and progress threads, over the port or link that the first argument
 * names (shm, udp, memif, local, tcp). With "-unpack" behind it the plugin is in
 * mode unpack, and the GPU is that of fake/fake_cuda.c. "-nohelp": test() helps no core.
 * Further arguments name cases; default: all of the mode. Each case has fresh ranks: this program
 * again, with the world's memory at descriptor 3.
 * GX_TEST_NCCL_NET has the path of the plugin. GX_TEST_FULL=1 does more rounds, GX_TEST_LOG=1 shows
 * the plugin's lines, GX_TEST_SOAK_S=3600 has the case soak last an hour.
 */
#include "nccl_rank.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORLD_FD 3
#define CASE_S	 150 /* after that a case has failed */

extern char **environ;

static const struct nccl_case *case_find(const char *name)
{
	for (unsigned i = 0; i < nr_cases_data; i++)
		if (!strcmp(cases_data[i].name, name))
			return &cases_data[i];
	for (unsigned i = 0; i < nr_cases_ends; i++)
		if (!strcmp(cases_ends[i].name, name))
			return &cases_ends[i];
	for (unsigned i = 0; i < nr_cases_unpack; i++)
		if (!strcmp(cases_unpack[i].name, name))
			return &cases_unpack[i];
	fprintf(stderr, "there is no case %s\n", name);
	exit(2);
}

/* "shm" of "shm-unpack". */
static void port_base(const char *port, char base[16])
{
	snprintf(base, 16, "%s", port);
	base[strcspn(base, "-")] = 0;
}

/* ---- A rank ---- */

static int rank_main(const char *name, const char *port, unsigned me)
{
	const struct nccl_case *c = case_find(name);
	char base[16];
	struct rank r = {.me = me,
			 .port = base,
			 .is_unpack = c->is_unpack,
			 .is_full = getenv("GX_TEST_FULL"),
			 .net.is_simple = getenv("NCCL_PROTO")};

	port_base(port, base);
	r.w = mmap(NULL, sizeof(*r.w), PROT_READ | PROT_WRITE, MAP_SHARED, WORLD_FD, 0);
	CHECK(r.w != MAP_FAILED);
	close(WORLD_FD);
	if (r.is_unpack)
		unpack_current(true);
	net_load(&r.net, 12);
	CHECK(!net_init(&r.net, &r.ctx) && r.ctx);
	worker_start(&r.service);
	worker_start(&r.progress);
	c->run(&r);
	worker_end(&r.progress);
	worker_end(&r.service);
	CHECK(!net_finalize(&r.net, r.ctx));
	dlclose(r.net.dl);
	munmap(r.w, sizeof(*r.w));
	if (r.net.version < 11) /* there is no finalize: the cores run on */
		_exit(0);
	return 0;
}

/* ---- The test ---- */

/* gx_opts.ports of what the first argument names: a link goes with shm. */
static const char *port_option(const char *base)
{
	if (!strcmp(base, "memif")) /* four ranks of so many MiB */
		return "dpdk:net_memif,mem=192";
	return !strcmp(base, "local") || !strcmp(base, "tcp") ? "shm" : base;
}

static void env_set(const struct nccl_case *c, const char *port)
{
	char base[16];
	bool is_link;

	port_base(port, base);
	is_link = !strcmp(base, "local") || !strcmp(base, "tcp");
	unpack_env(c->is_unpack);
	if (!c->is_unpack)
		setenv("GX_NCCL_MODE", "host", 1);
	setenv("NCCL_NET_GDR_LEVEL", "SYS", 1);
	setenv("GX_NCCL_PORTS", port_option(base), 1);
	setenv("GX_NCCL_LINK", is_link ? base : "packet", 1);
	setenv("GX_NCCL_TIMEOUT_S", c->timeout_s ? c->timeout_s : "30", 1);
	setenv("GX_NCCL_CORES", c->nr_ranks > 2 ? "1" : "2", 1);
	/* auto depends on the machine. Over memif the long messages are of interest, too. */
	setenv("GX_NCCL_PULL", strcmp(base, "memif") != 0 ? "on" : "off", 1);
	setenv("GX_NCCL_HELP", strstr(port, "-nohelp") ? "0" : "1", 1);
	unsetenv("GX_NCCL_CPUS");
	unsetenv("GX_ADDR");
	unsetenv("GX_KEY_FILE");
}

static pid_t rank_start(const struct nccl_case *c, const char *port, unsigned me, int world)
{
	char text[12], *argv[] = {"test_nccl", "rank", (char *)c->name, (char *)port, text, NULL};
	posix_spawn_file_actions_t fa;
	pid_t pid;

	snprintf(text, sizeof(text), "%u", me);
	CHECK(!posix_spawn_file_actions_init(&fa));
	CHECK(!posix_spawn_file_actions_adddup2(&fa, world, WORLD_FD));
	CHECK(!posix_spawn(&pid, "/proc/self/exe", &fa, NULL, argv, environ));
	posix_spawn_file_actions_destroy(&fa);
	return pid;
}

/* Has rank @i ended well? A rank that dies does so by SIGKILL: its own, or ours. */
static bool rank_is_good(const struct nccl_case *c, unsigned i, int status)
{
	if (c->dies && i == 1)
		return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
	return WIFEXITED(status) && !WEXITSTATUS(status);
}

/* Wait for the ranks. After a failure, or when the others have ended, kill what is left. */
static bool ranks_wait(const struct nccl_case *c, const pid_t pids[])
{
	uint64_t until = now_ns() + (CASE_S + soak_s()) * 1000000000ull;
	unsigned left = (1u << c->nr_ranks) - 1;
	bool good = true;

	while (left) {
		bool late = now_ns() > until;

		if (late && good)
			fprintf(stderr, "%s: not over within %u s\n", c->name, CASE_S + soak_s());
		good &= !late;
		for (unsigned i = 0; i < c->nr_ranks; i++) {
			int status = 0;

			if (!(left & 1u << i))
				continue;
			if (!good || (c->dies && left == 2))
				kill(pids[i], SIGKILL);
			if (waitpid(pids[i], &status, WNOHANG) != pids[i])
				continue;
			left &= ~(1u << i);
			if (good && !rank_is_good(c, i, status)) {
				fprintf(stderr, "%s: rank %u ended with status 0x%x\n", c->name, i,
					status);
				good = false;
			}
		}
		usleep(2000);
	}
	return good;
}

static bool case_run(const struct nccl_case *c, const char *port)
{
	int fd = memfd_create("nccl-world", MFD_CLOEXEC);
	uint64_t from = now_ns();
	pid_t pids[RANKS_MAX];
	struct world *w;
	bool good;

	CHECK(fd >= 0 && !ftruncate(fd, sizeof(*w)), "%s", strerror(errno));
	w = mmap(NULL, sizeof(*w), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(w != MAP_FAILED);
	w->nr_ranks = c->nr_ranks;
	env_set(c, port);
	for (unsigned i = 0; i < c->nr_ranks; i++)
		pids[i] = rank_start(c, port, i, fd);
	good = ranks_wait(c, pids);
	munmap(w, sizeof(*w));
	close(fd);
	printf("%s %s (%.1f s)\n", good ? "ok" : "FAILED", c->name,
	       (double)(now_ns() - from) / 1e9);
	fflush(stdout);
	return good;
}

/* Of these the link is no part: they run over udp, for the sanitizers, and over local, for the release build. */
static const char *const cases_once[] = {"versions", "misuse", "listener", "context", "unproven",
					 "reload",   "init",   "cpus",	   "fork"};

/* Over memif a connection takes some MiB of DPDK's, so strangers of the same user can use them up; and DPDK starts once in a process. */
static bool case_is_for(const struct nccl_case *c, const char *port)
{
	bool is_memif = !strcmp(port, "memif");

	if (!strcmp(c->name, "hosts")) /* the plugin chooses the link: once is enough */
		return !strcmp(port, "tcp");
	if (is_memif && !strcmp(c->name, "reload"))
		return true;
	for (unsigned i = 0; i < sizeof(cases_once) / sizeof(cases_once[0]); i++)
		if (!strcmp(c->name, cases_once[i]))
			return !strcmp(port, "udp") || !strcmp(port, "local");
	return !is_memif || strcmp(c->name, "strangers") != 0;
}

static unsigned cases_run(const struct nccl_case cases[], unsigned nr, const char *port)
{
	unsigned bad = 0;

	for (unsigned i = 0; i < nr; i++)
		if (case_is_for(&cases[i], port))
			bad += !case_run(&cases[i], port);
	return bad;
}

/* Is the port built in? Asked in a child, since DPDK starts once in a process. */
static bool port_is_here(const char *port)
{
	const struct nccl_case some = {.name = "is_here", .nr_ranks = 2};
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (!pid) {
		struct net net = {0};
		void *ctx;

		env_set(&some, port);
		net_load(&net, 12);
		if (!net_init(&net, &ctx))
			_exit(0);
		_exit(strstr(net_warned(), "not built in") ? 77 : 0); /* the cases tell the rest */
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	return !WIFEXITED(status) || WEXITSTATUS(status) != 77;
}

/* All cases of a mode. */
static unsigned mode_run(const char *port)
{
	unsigned bad;

	if (strstr(port, "-unpack"))
		return cases_run(cases_unpack, nr_cases_unpack, port);
	bad = cases_run(cases_data, nr_cases_data, port);
	return bad + cases_run(cases_ends, nr_cases_ends, port);
}

int main(int argc, char *argv[])
{
	unsigned bad = 0;

	if (argc == 5 && !strcmp(argv[1], "rank"))
		return rank_main(argv[2], argv[3], (unsigned)atoi(argv[4]));
	if (argc < 2 || !getenv("GX_TEST_NCCL_NET")) {
		fprintf(stderr, "usage: GX_TEST_NCCL_NET=libnccl-net-gx.so test_nccl "
				"shm|udp|memif|local|tcp[-unpack|-nohelp] [CASE...]\n");
		return 2;
	}
	if (!strcmp(argv[1], "memif") && !port_is_here(argv[1])) {
		printf("SKIP: gx was built without DPDK (libdpdk)\n");
		return 77;
	}
	for (int i = 2; i < argc; i++)
		bad += !case_run(case_find(argv[i]), argv[1]);
	if (argc == 2)
		bad = mode_run(argv[1]);
	if (bad)
		printf("%u cases failed\n", bad);
	return bad != 0;
}
