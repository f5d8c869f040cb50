/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long is the longest turn of a core, with 1 to 1,000 connections of which none, one or all have something to do
 * or one ends, with 10 to 60,000 keys of which one is withdrawn, and with lists of 10 to 10,000 segments?
 * Two contexts of this process, whose cores the main thread turns. Printed is the thread's CPU time in
 * us of a turn of either core: the middle one, the 99th of 100, and the longest, each the least of ROUNDS
 * windows, as the machine does other things too.
 *
 * usage: turns packet|local|tcp [ROUNDS]
 */
#include <gx/gx.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define CONNS_MAX 1000
#define TURNS	  2000 /* a window, at least */
#define TURNS_MAX 400000
#define WAIT_NS	  60000000000ull

static struct gx *server, *client;
static struct gx_conn *conns[CONNS_MAX];
static struct gx_core *cores[2];
static struct gx_mem *mine, *theirs;
static struct gx_region region;
static unsigned nr, rounds = 9, left;
static uint64_t took[TURNS_MAX];

static void must(int ret, const char *what)
{
	if (ret >= 0)
		return;
	fprintf(stderr, "turns: %s: %s\n", what, gx_error());
	exit(1);
}

static uint64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static void open_one(struct gx **out)
{
	const struct gx_port_name ports[] = {{.name = "shm"}};
	struct gx_packet_opts packet = GX_INIT(packet);
	struct gx_opts opts = GX_INIT(opts);

	packet.slots = 64; /* the memory of 1,000 peers */
	opts.packet = &packet;
	opts.ports = ports;
	opts.nr_ports = 1;
	opts.peer_timeout_ns = WAIT_NS;
	must(gx_open(&opts, out), "open");
}

static void open_both(unsigned n, const char *link)
{
	struct gx_connect_opts o = GX_INIT(o);
	char addr[32];

	open_one(&server);
	open_one(&client);
	must(gx_mem_alloc(server, GX_MEM_HOST, 0, 1 << 20, &theirs), "memory");
	must(gx_mem_share(theirs, "kv", GX_ACCESS_PUT | GX_ACCESS_GET), "region");
	must(gx_mem_alloc(client, GX_MEM_HOST, 0, 1 << 20, &mine), "memory");
	snprintf(addr, sizeof(addr), "127.0.0.1:%d", gx_listen(server, "127.0.0.1:0"));
	o.link = link;
	o.timeout_ns = WAIT_NS;
	for (nr = 0; nr < n; nr++) {
		must(gx_connect(client, addr, &o, &conns[nr]), "connect");
		must(gx_conn_wait(conns[nr], WAIT_NS), "connect");
	}
	region = (struct gx_region)GX_INIT(region);
	must(gx_conn_region(conns[0], "kv", 0, &region), "region");
	cores[0] = gx_core(client, 0);
	cores[1] = gx_core(server, 0);
}

static void close_both(void)
{
	gx_close(client);
	gx_close(server);
}

static void put(struct gx_conn *c)
{
	struct gx_op op = {.kind = GX_OP_PUT, .token = region.token, .mem = mine, .len = 64};

	must(gx_post(gx_core_queue(cores[0]), gx_conn_ep(c, 0), &op, 1) == 1 ? 0 : -1, "post");
	left++;
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Turn both cores, with a put under way all the time if @busy, until @stop if there is one. Into @best,
 * if less: the middle turn, the 99th of 100, the longest, in us. */
static void window(double best[3], bool busy, const _Atomic bool *stop)
{
	struct gx_comp comp;
	unsigned n = 0;

	while (n + 2 <= TURNS_MAX && (n < TURNS || left || (stop && !*stop))) {
		bool done = false;

		for (unsigned i = 0; i < 2; i++) {
			uint64_t begin = cpu_ns();

			gx_core_turn(cores[i], gx_now());
			took[n++] = cpu_ns() - begin;
		}
		while (gx_poll(gx_core_queue(cores[0]), &comp, 1)) {
			must(comp.status, "a put");
			left--;
			done = true;
		}
		if (done && busy && n < TURNS)
			put(conns[0]);
	}
	qsort(took, n, sizeof(took[0]), by_size);
	for (unsigned i = 0; i < 3; i++) {
		double us = (double)took[i == 2 ? n - 1 : i ? n / 100 * 99 : n / 2] / 1000;

		best[i] = us < best[i] ? us : best[i];
	}
}

static void tell(const char *what, const double best[3])
{
	printf("  %s %.1f %.1f %.1f", what, best[0], best[1], best[2]);
	fflush(stdout);
}

/* ---- Connections ---- */

static void run_conns(unsigned n, const char *link)
{
	double best[5][3], *idle = best[0], *one = best[1], *all = best[2], *ends = best[3];

	for (unsigned i = 0; i < 15; i++)
		best[i / 3][i % 3] = 1e9;
	open_both(n, link);
	for (unsigned r = 0; r < rounds; r++) {
		for (unsigned i = 0; i < 4; i++) /* what is made once; and all get cold */
			window(best[4], false, NULL);
		window(idle, false, NULL);
		put(conns[0]);
		window(one, true, NULL);
		for (unsigned i = 0; i < nr; i++)
			put(conns[i]);
		window(all, false, NULL);
	}
	for (unsigned r = 0; r < rounds && nr > 1; r++) {
		for (unsigned i = 0; i < 4; i++)
			window(best[4], false, NULL);
		gx_conn_close(conns[--nr]);
		window(ends, false, NULL);
	}
	printf("%-7s%5u connections:", link, n);
	tell("idle", idle);
	tell("one busy", one);
	tell("all", all);
	if (n > 1)
		tell("one ends", ends);
	puts("");
	close_both();
}

/* ---- Keys ---- */

static struct gx_key keys[60000];

static struct withdraw {
	const struct gx_key *key;
	_Atomic bool done;
} wd;

static void *withdraw(void *arg)
{
	(void)arg;
	must(gx_key_withdraw(server, wd.key), "withdraw");
	wd.done = true;
	return NULL;
}

static void run_keys(unsigned n, const char *link)
{
	struct gx_key_opts o = GX_INIT(o);
	double best[3] = {1e9, 1e9, 1e9};
	pthread_t t;

	o.access = GX_ACCESS_PUT;
	open_both(100, link);
	for (unsigned i = 0; i < n; i++)
		must(gx_mem_key(theirs, &o, &keys[i]), "key");
	for (unsigned r = 0; r < rounds; r++) {
		wd.key = &keys[r];
		wd.done = false;
		put(conns[0]);
		must(-pthread_create(&t, NULL, withdraw, NULL), "thread");
		window(best, true, &wd.done);
		pthread_join(t, NULL);
	}
	printf("%-7s%6u keys, 100 connections, one busy:", link, n);
	tell("one is withdrawn", best);
	puts("");
	close_both();
}

/* ---- Lists ---- */

static struct gx_seg segs[10000];

static void run_lists(unsigned n, const char *link)
{
	double best[3] = {1e9, 1e9, 1e9};

	open_both(1, link);
	for (unsigned i = 0; i < n; i++)
		segs[i] = (struct gx_seg){.mem = mine,
					  .off = 64 * (i * 7 % 10000),
					  .token = region.token,
					  .remote_off = 64 * (i * 3 % 10000),
					  .len = 64};
	for (unsigned r = 0; r < rounds; r++) {
		struct gx_op op = {.kind = GX_OP_PUT, .segs = segs, .nr_segs = n};

		must(gx_post(gx_core_queue(cores[0]), gx_conn_ep(conns[0], 0), &op, 1) == 1 ? 0
											    : -1,
		     "post");
		left++;
		window(best, false, NULL);
	}
	printf("%-7s%6u segments of 64 B:", link, n);
	tell("a list", best);
	puts("");
	close_both();
}

int main(int argc, char *argv[])
{
	const char *link = argc > 1 ? argv[1] : "tcp";
	struct rlimit files;

	rounds = argc > 2 ? (unsigned)atoi(argv[2]) : rounds;
	must(getrlimit(RLIMIT_NOFILE, &files), "limit");
	files.rlim_cur = files.rlim_max;
	must(setrlimit(RLIMIT_NOFILE, &files), "limit");
	for (unsigned n = 1; n <= CONNS_MAX; n *= 10)
		run_conns(n, link);
	for (unsigned n = 10; n <= 60000; n = n == 10000 ? 60000 : n * 10)
		run_keys(n, link);
	for (unsigned n = 10; n <= 10000; n *= 10)
		run_lists(n, link);
	return 0;
}
