/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets of link tcp and reads of another process, as a script has them. It carries the bytes of sockets,
 * so that when they come is no matter of the kernel; it says how many go at a time, has little room, refuses
 * for a while of virtual time, and ends connections. The kernel's sockets tell of their ends alone. Its random
 * numbers are its own: how often a core looks does not change the load.
 */
#include "sim/all.h"

#include "packet/pull.h"
#include "tcp/tcp.h"
#include "tcp/tcp_live.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define HOLDS	64
#define SOON_NS 1000
#define FDS	1024
#define ROOM_B	16384u

/* Bytes from a socket to its peer. A descriptor that comes again has another one. */
struct pipe {
	uint32_t life, len;
	uint8_t link, side, lane; /* of who reads */
	uint8_t b[ROOM_B];
};

static struct {
	uint64_t random;
	struct pipe *rx[FDS], *tx[FDS], **all;
	unsigned nr_pipes;
	uint32_t room_b;
	uint32_t cut_b;	   /* of a call; 0: all that the kernel takes */
	unsigned busy;	   /* of a hundred calls so many are refused ... */
	uint64_t late_ns;  /* ... for so long, and those behind it */
	uint64_t moved_ns; /* when bytes went last */
	struct {
		int fd, way;
		uint64_t until_ns;
	} hold[HOLDS];
} script;

static uint64_t draw(uint64_t n)
{
	script.random += 0x9e3779b97f4a7c15u;
	return mix(script.random) % n;
}

/* Return: 0, or an error that passes. */
static ssize_t refuse(int fd, int way)
{
	static const ssize_t errors[] = {-EAGAIN, -EAGAIN, -EAGAIN, -EINTR, -ENOBUFS};
	unsigned i, free = HOLDS;

	for (i = 0; i < HOLDS; i++) {
		if (script.hold[i].until_ns <= world->now_ns)
			free = i;
		else if (script.hold[i].fd == fd && script.hold[i].way == way)
			return -EAGAIN;
	}
	if (free == HOLDS || draw(100) >= script.busy)
		return 0;
	script.hold[free].fd = fd;
	script.hold[free].way = way;
	script.hold[free].until_ns = world->now_ns + 1 + draw(script.late_ns);
	return errors[draw(GX_ARRAY_SIZE(errors))];
}

/* Its core looks at it again, as epoll would have it. */
static void pipe_tell(const struct pipe *p)
{
	const struct alink *l = &world->link[p->link];

	if (l->life == p->life && l->state == LINK_UP && l->conn[p->side])
		tcp_live_heat(tcp_of(l->ep[p->side][p->lane]));
}

static ssize_t sock_send(int fd, const struct iovec *iov, unsigned n)
{
	struct pipe *p = script.tx[fd];
	uint64_t left = script.cut_b ? 1 + draw(script.cut_b) : ROOM_B;
	ssize_t ret = refuse(fd, 0), all = 0;

	if (ret)
		return ret;
	left = GX_MIN(left, script.room_b - p->len);
	for (unsigned i = 0; i < n && left; i++) {
		size_t part = GX_MIN(iov[i].iov_len, left);

		memcpy(p->b + p->len, iov[i].iov_base, part);
		p->len += (uint32_t)part;
		left -= part;
		all += (ssize_t)part;
	}
	if (!all)
		return -EAGAIN;
	script.moved_ns = world->now_ns;
	return all;
}

static ssize_t sock_recv(int fd, const struct iovec *iov, unsigned n)
{
	struct pipe *p = script.rx[fd];
	uint64_t left = script.cut_b ? 1 + draw(script.cut_b) : ROOM_B;
	ssize_t ret = refuse(fd, 1), all = 0;

	if (ret)
		return ret;
	if (!p->len)
		return tcp_sys_kernel.recv(fd, iov, n); /* none, or the end */
	left = GX_MIN(left, p->len);
	for (unsigned i = 0; i < n && left; i++) {
		size_t part = GX_MIN(iov[i].iov_len, left);

		memcpy(iov[i].iov_base, p->b + all, part);
		left -= part;
		all += (ssize_t)part;
	}
	p->len -= (uint32_t)all;
	memmove(p->b, p->b + all, p->len);
	script.moved_ns = world->now_ns;
	return all;
}

static void sock_push(int fd)
{
	(void)fd;
}

/* The word of the peer comes first, and the bytes behind it may be fewer than asked for. */
static ssize_t pull_read(pid_t pid, const struct iovec *to, unsigned nr_to,
			 const struct iovec *from, unsigned nr_from)
{
	struct iovec part[2];

	if (nr_to != 2 || nr_from != 2)
		return pull_sys_kernel.read(pid, to, nr_to, from, nr_from);
	if (draw(100) < script.busy)
		return draw(2) ? -EINTR : -ENOMEM;
	part[0] = from[0];
	part[1] = from[1];
	if (script.cut_b)
		part[1].iov_len = GX_MIN(part[1].iov_len, 1 + draw(script.cut_b));
	return pull_sys_kernel.read(pid, to, nr_to, part, 2);
}

static const struct tcp_sys socks = {
	.send = sock_send, .recv = sock_recv, .lead = sock_send, .push = sock_push};
static const struct pull_sys pulls = {.read = pull_read};

void sock_begin(void)
{
	for (unsigned i = 0; i < script.nr_pipes; i++)
		free(script.all[i]);
	free(script.all);
	memset(&script, 0, sizeof(script));
	pull_sys = world->pulls ? &pulls : &pull_sys_kernel;
	if (world->cfg.seed < ALL_SOCKS || world->other == KIND_PACKET)
		return;
	script.random = mix(world->cfg.seed);
	script.cut_b = chance(60) ? (uint32_t)rnd_len(8192) : 0;
	script.busy = chance(60) ? (unsigned)rnd(30) : 0;
	script.late_ns = rnd_len(100 * ALL_US);
	script.room_b = GX_MAX((uint32_t)rnd_len(ROOM_B), 64u);
	trace("sockets and reads take at most %u bytes a call of %u, and refuse %u %% for up to %.1f us%s",
	      script.cut_b, script.room_b, script.busy, script.late_ns / 1e3,
	      world->pulls ? "; reads" : "");
}

static struct pipe *pipe_new(const struct alink *l, int side, unsigned lane)
{
	struct pipe *p = calloc(1, sizeof(*p));

	p->life = l->life;
	p->link = (uint8_t)(l - world->link);
	p->side = (uint8_t)side;
	p->lane = (uint8_t)lane;
	script.all = realloc(script.all, (script.nr_pipes + 1) * sizeof(p));
	script.all[script.nr_pipes++] = p;
	return p;
}

void sock_take(const struct alink *l, unsigned lane)
{
	struct tcp_ep *e[2];

	if (world->cfg.seed < ALL_SOCKS || l->kind != KIND_TCP)
		return;
	for (int s = 0; s < 2; s++) {
		e[s] = tcp_of(l->ep[s][lane]);
		e[s]->sys = &socks;
	}
	for (unsigned i = 0; i < e[0]->nr_socks; i++) {
		int a = e[0]->sock[i].fd, b = e[1]->sock[i].fd;

		if (a >= FDS || b >= FDS || e[0]->nr_socks != e[1]->nr_socks)
			wrong("connection %u: sockets %d and %d", l->life, a, b);
		script.tx[a] = script.rx[b] = pipe_new(l, 1, lane);
		script.tx[b] = script.rx[a] = pipe_new(l, 0, lane);
	}
}

/* One that was refused sleeps, though bytes are there. */
void sock_turn(void)
{
	for (unsigned i = 0; i < script.nr_pipes; i++)
		if (script.all[i]->len)
			pipe_tell(script.all[i]);
}

uint64_t sock_next(uint64_t next)
{
	if (script.moved_ns && script.moved_ns + SOON_NS > world->now_ns)
		return world
			->now_ns; /* more goes at once, though the last turn may have moved nothing */
	for (unsigned i = 0; i < HOLDS; i++)
		if (script.hold[i].until_ns > world->now_ns)
			next = GX_MIN(next, script.hold[i].until_ns);
	return next;
}

void sock_end_some(void)
{
	const struct alink *l = &world->link[rnd(ALL_LINKS)];
	int side = (int)rnd(2);
	struct gx_ep *ep;

	if (l->state != LINK_UP || l->kind != KIND_TCP || !l->conn[side])
		return;
	ep = link_ep(l, side, (unsigned)rnd(l->nr_lanes));
	trace("connection %u: node %u loses a socket", l->life, l->node[side]);
	world->life[l->life].cut = true;
	shutdown(tcp_of(ep)->sock[rnd(tcp_of(ep)->nr_socks)].fd, SHUT_RDWR);
}
