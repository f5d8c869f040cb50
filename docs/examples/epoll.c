/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server with an epoll loop of its own, in which a core of gx is one descriptor among others.
 * Clients put into its memory; a line on its standard input ends it.
 *
 *	epoll 127.0.0.1:7600
 *
 * The loop turns the core for a while after the last work, which gives the least latency. Then it
 * arms the core and sleeps until there is work.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <gx/gx.h>

#define SPIN_NS 200000 /* without work, before the loop sleeps */

static void check(int ret, const char *what)
{
	if (ret >= 0)
		return;
	fprintf(stderr, "epoll: %s: %s\n", what, gx_error());
	exit(1);
}

static void on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
		    const char *why)
{
	printf("%s\n", event == GX_CONN_EVENT_UP ? "a client" : "a client has left");
	if (event == GX_CONN_EVENT_DOWN)
		gx_conn_close(conn);
}

static int watch(int epoll, int fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

	return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

/* Return: did something happen? */
static bool core_serve(struct gx_core *core)
{
	bool busy = gx_core_turn(core, gx_now());
	struct gx_comp comp;

	while (gx_poll(gx_core_queue(core), &comp, 1)) {
		busy = true;
		if (comp.kind == GX_COMP_NOTIFY)
			printf("%llu bytes at %llu, %llu\n", (unsigned long long)comp.len,
			       (unsigned long long)comp.off, (unsigned long long)comp.imm);
	}
	return busy;
}

int main(int argc, char *argv[])
{
	struct epoll_event event;
	struct gx_opts opts = GX_INIT(opts);
	uint64_t worked = gx_now();
	struct gx_core *core;
	struct gx_mem *mem;
	struct gx *gx;
	int fd = epoll_create1(EPOLL_CLOEXEC);

	if (argc != 2 || fd < 0 || watch(fd, STDIN_FILENO)) {
		fprintf(stderr, "usage: %s HOST:PORT, with a pipe or a terminal as input\n",
			argv[0]);
		return 2;
	}
	opts.server = true;
	opts.on_conn = on_conn;
	check(gx_open(&opts, &gx), "open");
	check(gx_mem_alloc(gx, GX_MEM_HOST, 0, 1 << 20, &mem), "memory");
	check(gx_mem_share(mem, "mem", GX_ACCESS_PUT | GX_ACCESS_GET), "share");
	core = gx_core(gx, 0);
	check(gx_core_fd(core), "sleep"); /* before clients come */
	check(watch(fd, gx_core_fd(core)), "epoll");
	check(gx_listen(gx, argv[1]), "listen");
	for (;;) {
		uint64_t now = gx_now();
		int wait = 0;

		if (core_serve(core))
			worked = now;
		if (now - worked > SPIN_NS && !gx_core_arm(core))
			wait = -1;
		if (epoll_wait(fd, &event, 1, wait) > 0 && event.data.fd == STDIN_FILENO)
			break;
	}
	gx_close(gx);
	return 0;
}
