/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets of link tcp and reads of another process, as a script has them. The kernel carries the bytes,
 * and the script says how many go at a time, refuses for a while of virtual time, and ends connections.
 * Its random numbers are its own: how often a core looks does not change the load.
 */
#include "sim/all.h"

#include "packet/pull.h"
#include "tcp/tcp.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#define HOLDS	64
#define SOON_NS 1000
#define IOVS	(TCP_OUT_IOVS * TCP_OUTS)

static struct {
	uint64_t random;
	uint32_t cut_b;	  /* of a call; 0: all that the kernel takes */
	unsigned busy;	  /* of a hundred calls so many are refused ... */
	uint64_t late_ns; /* ... for so long, and those behind it */
	uint64_t cut_ns;  /* when a call was cut last */
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

/* @call of at most so many bytes as the script lets go, at least one. */
static ssize_t part_of(ssize_t (*call)(int fd, const struct iovec *iov, unsigned n), int fd,
		       int way, const struct iovec *iov, unsigned n)
{
	uint64_t left = script.cut_b ? 1 + draw(script.cut_b) : UINT64_MAX, all = 0;
	struct iovec part[IOVS];
	ssize_t ret = refuse(fd, way);
	unsigned k = 0;

	if (ret)
		return ret;
	for (; k < n && all < left; k++) {
		part[k] = iov[k];
		part[k].iov_len = GX_MIN(part[k].iov_len, left - all);
		all += part[k].iov_len;
	}
	ret = call(fd, part, k);
	if (ret > 0 && (uint64_t)ret == left)
		script.cut_ns = world->now_ns;
	return ret;
}

static ssize_t sock_send(int fd, const struct iovec *iov, unsigned n)
{
	return part_of(tcp_sys_kernel.send, fd, 0, iov, n);
}

static ssize_t sock_lead(int fd, const struct iovec *iov, unsigned n)
{
	return part_of(tcp_sys_kernel.lead, fd, 0, iov, n);
}

static ssize_t sock_recv(int fd, const struct iovec *iov, unsigned n)
{
	return part_of(tcp_sys_kernel.recv, fd, 1, iov, n);
}

static void sock_push(int fd)
{
	tcp_sys_kernel.push(fd);
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
	.send = sock_send, .recv = sock_recv, .lead = sock_lead, .push = sock_push};
static const struct pull_sys pulls = {.read = pull_read};

void sock_begin(void)
{
	memset(&script, 0, sizeof(script));
	pull_sys = world->pulls ? &pulls : &pull_sys_kernel;
	if (world->cfg.seed < ALL_SOCKS || world->other == KIND_PACKET)
		return;
	script.random = mix(world->cfg.seed);
	script.cut_b = chance(60) ? (uint32_t)rnd_len(8192) : 0;
	script.busy = chance(60) ? (unsigned)rnd(30) : 0;
	script.late_ns = rnd_len(100 * ALL_US);
	trace("sockets and reads take at most %u bytes a call, and refuse %u %% for up to %.1f us%s",
	      script.cut_b, script.busy, script.late_ns / 1e3, world->pulls ? "; reads" : "");
}

void sock_take(const struct alink *l, int side, unsigned lane)
{
	if (world->cfg.seed >= ALL_SOCKS && l->kind == KIND_TCP)
		tcp_of(l->ep[side][lane])->sys = &socks;
}

uint64_t sock_next(uint64_t next)
{
	if (script.cut_ns && script.cut_ns + SOON_NS > world->now_ns)
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
