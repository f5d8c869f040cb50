/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The system calls of the tcp link's data path. They never block (MSG_DONTWAIT), and the kernel has
 * copied the bytes when they return, so no caller's memory is referenced between two turns. Runs on
 * the polling core; tests put another table in its place. tcp_sys_tune() runs on the control path.
 */
#include "tcp/tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

#define KEEPALIVE_IDLE_S  10
#define KEEPALIVE_EVERY_S 5
#define KEEPALIVE_TRIES	  3
#define UNSENT_TIMEOUTS                                                                            \
	3 /* peer time-outs: this clock goes on where a busy machine stops both ends */
#define UNSENT_MIN_MS  1000 /* some resends of the kernel, which takes 200 ms for the first */
#define CONGESTION_MAX 16   /* TCP_CA_NAME_MAX of the kernel, with the end */

/* Both ends have one address: what they send stays on the loopback device. */
static bool is_within_host(int fd)
{
	struct sockaddr_in6 own, peer; /* room for either family */
	socklen_t own_len = sizeof(own), peer_len = sizeof(peer);
	const struct sockaddr_in *own4 = (struct sockaddr_in *)&own,
				 *peer4 = (struct sockaddr_in *)&peer;

	if (getsockname(fd, (struct sockaddr *)&own, &own_len) ||
	    getpeername(fd, (struct sockaddr *)&peer, &peer_len) ||
	    own.sin6_family != peer.sin6_family)
		return false;
	if (own.sin6_family == AF_INET)
		return own4->sin_addr.s_addr == peer4->sin_addr.s_addr;
	return own.sin6_family == AF_INET6 &&
	       !memcmp(&own.sin6_addr, &peer.sin6_addr, sizeof(own.sin6_addr));
}

/* BBR sends at a pace, and its timers halve the rate over loopback, where nothing is shared with
 * others and nothing is lost. reno has no pace, and each kernel has it. */
static void tune_congestion(int fd)
{
	static const char reno[] = "reno";
	char now[CONGESTION_MAX] = "";
	socklen_t len = sizeof(now) - 1;

	if (!is_within_host(fd) || getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, now, &len) ||
	    strncmp(now, "bbr", 3))
		return;
	if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, reno, sizeof(reno) - 1))
		gx_debug("link tcp keeps %s within this host, which is slower than reno: %s: is "
			 "reno in net.ipv4.tcp_allowed_congestion_control?",
			 now, strerror(errno));
}

/* An endpoint notices a peer that is silent on all sockets. It does not notice one dead socket among
 * several, nor a peer that sends and never reads. There the kernel ends the socket, long after the
 * endpoint would give up a silent peer. Failures do no harm: tests have sockets of another kind. */
void tcp_sys_tune(int fd, uint64_t timeout_ns)
{
	const int on = 1, idle = KEEPALIVE_IDLE_S, every = KEEPALIVE_EVERY_S,
		  tries = KEEPALIVE_TRIES;
	const unsigned unsent_ms =
		(unsigned)GX_MAX(timeout_ns / 1000000 * UNSENT_TIMEOUTS, (uint64_t)UNSENT_MIN_MS);

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof(every));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof(tries));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unsent_ms, sizeof(unsent_ms));
	tune_congestion(fd);
}

/* The kernel doubles the number, and shows the peer half of that. */
void tcp_sys_limit(int fd, uint64_t under_way_b)
{
	const int b = (int)GX_MIN(under_way_b, 1u << 30);

	if (b)
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &b, sizeof(b));
}

/* For one piece send() and recv() cost the kernel less than sendmsg() and recvmsg(), and a read that
 * finds nothing is most of what a core does. */
static ssize_t sys_send(int fd, const struct iovec *iov, unsigned n)
{
	struct msghdr msg = {.msg_iov = (struct iovec *)iov, .msg_iovlen = n};
	int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
	ssize_t ret =
		n == 1 ? send(fd, iov->iov_base, iov->iov_len, flags) : sendmsg(fd, &msg, flags);

	return ret < 0 ? -errno : ret;
}

static ssize_t sys_recv(int fd, const struct iovec *iov, unsigned n)
{
	struct msghdr msg = {.msg_iov = (struct iovec *)iov, .msg_iovlen = n};
	ssize_t ret = n == 1 ? recv(fd, iov->iov_base, iov->iov_len, MSG_DONTWAIT)
			     : recvmsg(fd, &msg, MSG_DONTWAIT);

	return ret < 0 ? -errno : ret;
}

static ssize_t sys_lead(int fd, const struct iovec *iov, unsigned n)
{
	struct msghdr msg = {.msg_iov = (struct iovec *)iov, .msg_iovlen = n};
	ssize_t ret = sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE);

	return ret < 0 ? -errno : ret;
}

/* The option is on. Linux sends what waits each time that it is set. */
static void sys_push(int fd)
{
	const int on = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

const struct tcp_sys tcp_sys_kernel = {
	.send = sys_send, .recv = sys_recv, .lead = sys_lead, .push = sys_push};
