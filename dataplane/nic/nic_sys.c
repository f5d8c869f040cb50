// SPDX-License-Identifier: Apache-2.0
/*
 * The calls of nic/ into this host's kernel. Control path, any thread.
 */
#include "nic/nic.h"

#include "gx_internal/fork.h"
#include "nic/nic_abi.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/netlink.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

/* The kernel answers within the call; this is for a kernel that does not answer at all. */
#define SYS_NL_WAIT_S 5

/* A kernel without a text for a refusal is fine, so only the bind may fail. A child of fork() keeps
 * none: a binding ends with the last descriptor of its socket. */
static int sys_nl_open(void)
{
	struct sockaddr_nl to = {.nl_family = AF_NETLINK};
	struct timeval wait = {.tv_sec = SYS_NL_WAIT_S};
	int on = 1, err, fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_GENERIC);

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_NETLINK, NETLINK_EXT_ACK, &on, sizeof(on));
	setsockopt(fd, SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
	if (!bind(fd, (struct sockaddr *)&to, sizeof(to)))
		return gx_fd_own(fd);
	err = errno;
	close(fd);
	return -err;
}

/* Without an address a netlink socket sends to the kernel. */
static int sys_nl_send(int fd, const void *msg, size_t len)
{
	ssize_t n;

	do
		n = send(fd, msg, len, 0);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	return (size_t)n == len ? 0 : -EIO;
}

/* Any process of this host may send to the socket: what is not the kernel's is passed over. */
static ssize_t sys_nl_recv(int fd, void *buf, size_t room)
{
	for (;;) {
		struct sockaddr_nl from = {0};
		socklen_t len = sizeof(from);
		ssize_t n = recvfrom(fd, buf, room, MSG_TRUNC, (struct sockaddr *)&from, &len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (from.nl_pid == 0)
			return n;
	}
}

static void sys_nl_close(int fd)
{
	gx_fd_close(fd);
}

static int sys_ifindex(const char *name)
{
	unsigned index = if_nametoindex(name);

	return index ? (int)index : -ENODEV;
}

static int sys_ethtool(const char *name, void *cmd)
{
	struct ifreq req = {.ifr_data = cmd};
	int ret, fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	snprintf(req.ifr_name, sizeof(req.ifr_name), "%s", name);
	ret = ioctl(fd, SIOCETHTOOL, &req) ? -errno : 0;
	close(fd);
	return ret;
}

static int sys_text(const char *path, char *buf, size_t room)
{
	FILE *f = fopen(path, "re");
	bool got;

	if (!f)
		return -errno;
	got = fgets(buf, (int)room, f);
	fclose(f);
	if (!got)
		return -ENODATA;
	buf[strcspn(buf, "\n")] = '\0';
	return 0;
}

const struct nic_sys nic_sys_linux = {
	.nl_open = sys_nl_open,
	.nl_send = sys_nl_send,
	.nl_recv = sys_nl_recv,
	.nl_close = sys_nl_close,
	.ifindex = sys_ifindex,
	.ethtool = sys_ethtool,
	.text = sys_text,
};
