/* SPDX-License-Identifier: Apache-2.0 */
/* The stats socket. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <grp.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "control/ctl_rig.h"

/* Reads to the end, which must be an orderly one. */
static size_t stats_read(int fd, char *buf, size_t room)
{
	size_t len = 0;
	ssize_t n;

	do {
		n = raw_recv_some(fd, buf + len, room - 1 - len);
		assert_true(n >= 0);
		len += (size_t)n;
	} while (n > 0);
	buf[len] = 0;
	close(fd);
	return len;
}

static void stats__text_and_http(void **state)
{
	static char buf[1 << 20];
	char path[64], *body;
	int fd;

	gx_stat_add(&server->cores[1].loop.stats, GX_STAT_RX_PKTS, 42);
	snprintf(path, sizeof(path), "@gx-test-%d-stats", getpid());
	assert_int_equal(ctl_stats_listen(&server->gx, path), 0);
	assert_int_equal(ctl_stats_listen(&client->gx, path), -EADDRINUSE);
	stats_read(stats_connect(path), buf, sizeof(buf));
	assert_says(buf, "rx_pkts 1 42\n");
	assert_says(buf, "ctl_bad control 0\n");
	fd = stats_connect(path);
	assert_true(raw_send(fd, "GE", 2));
	assert_true(raw_send(fd, "T /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 33));
	stats_read(fd, buf, sizeof(buf));
	assert_memory_equal(buf, "HTTP/1.1 200 OK\r\n", 17);
	assert_says(buf, "gx_rx_pkts_total{core=\"1\"} 42\n");
	body = strstr(buf, "\r\n\r\n") + 4;
	assert_int_equal(atoi(strstr(buf, "Content-Length: ") + 16), strlen(body));
	fd = stats_connect(path);
	assert_true(raw_send(fd, "nonsense", 8));
	stats_read(fd, buf, sizeof(buf));
	assert_says(buf, "rx_pkts 1 42\n");
}

static void stats__many_clients(void **state)
{
	static char buf[1 << 20];
	int fds[40];
	char path[64];

	snprintf(path, sizeof(path), "@gx-test-%d-stats", getpid());
	assert_int_equal(ctl_stats_listen(&server->gx, path), 0);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(fds) / 2; i++) {
		fds[i] = stats_connect(path);
		close(stats_connect(path)); /* leaves without reading */
	}
	for (unsigned i = 0; i < GX_ARRAY_SIZE(fds) / 2; i++)
		assert_true(stats_read(fds[i], buf, sizeof(buf)) > 1000);
}

/* Return: does a process of this user, group and further group hear anything? */
static bool stats_tell(const char *path, uid_t uid, gid_t gid, gid_t more)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	pid_t pid = fork();
	char b[16];
	int st, fd;

	if (!pid) { /* nothing of the library, nor of cmocka */
		memcpy(sa.sun_path + 1, path + 1, strlen(path) - 1);
		fd = socket(AF_UNIX, SOCK_STREAM, 0);
		if (setgroups(1, &more) || setresgid(gid, gid, gid) || setresuid(uid, uid, uid) ||
		    connect(fd, (struct sockaddr *)&sa,
			    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path))))
			_exit(2);
		shutdown(fd, SHUT_WR);
		_exit(read(fd, b, sizeof(b)) > 0);
	}
	assert_int_equal(waitpid(pid, &st, 0), pid);
	assert_true(WIFEXITED(st) && WEXITSTATUS(st) != 2);
	return WEXITSTATUS(st);
}

/* An abstract socket has no mode. */
static void stats__own_root_and_group(void **state)
{
	gid_t own = getegid();
	char path[64];

	if (geteuid())
		skip(); /* only root is others, too */
	snprintf(path, sizeof(path), "@gx-test-%d-stats", getpid());
	assert_int_equal(ctl_stats_listen(&server->gx, path), 0);
	assert_true(stats_tell(path, 0, own, own));
	assert_true(stats_tell(path, 0, 4242, 4242));
	assert_true(stats_tell(path, 4242, own, 4242));
	assert_true(stats_tell(path, 4242, 4242, own));
	assert_false(stats_tell(path, 4242, 4242, 4242));
	assert_false(stats_tell(path, 65534, 65534, 65534));
	assert_int_equal(setegid(4242), 0); /* the process's group is another one */
	assert_true(stats_tell(path, 4242, 4242, 4242));
	assert_int_equal(setegid(65534), 0); /* that is nobody's */
	assert_false(stats_tell(path, 4242, 65534, 65534));
	assert_int_equal(setegid(own), 0);
}

static void stats__path(void **state)
{
	static char buf[1 << 20];
	char dir[] = "/tmp/gx-test-XXXXXX", path[64];
	struct stat st;
	int fd;

	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/stats", dir);
	assert_int_equal(ctl_stats_listen(&server->gx, path), 0);
	assert_int_equal(ctl_stats_listen(&client->gx, path), -EADDRINUSE); /* somebody listens */
	assert_true(stats_read(stats_connect(path), buf, sizeof(buf)) > 1000);
	fake_close(server);
	server = NULL;
	assert_int_equal(stat(path, &st), -1); /* removed at close */
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	memcpy(sa.sun_path, path, strlen(path));
	assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	close(fd); /* stale now */
	assert_int_equal(ctl_stats_listen(&client->gx, path), 0);
	fake_close(client);
	fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	close(fd);
	client = fake_open("client");
	assert_int_equal(ctl_stats_listen(&client->gx, path),
			 -EADDRINUSE); /* a file of somebody's */
	assert_int_equal(stat(path, &st), 0);
	unlink(path);
	rmdir(dir);
	assert_int_equal(ctl_stats_listen(&client->gx, path), -ENOENT);
	assert_int_equal(ctl_stats_listen(&client->gx, ""), -EINVAL);
	assert_int_equal(ctl_stats_listen(&client->gx, "@"), -EINVAL);
	memset(buf, 'x', 200);
	buf[200] = 0;
	assert_int_equal(ctl_stats_listen(&client->gx, buf), -ENAMETOOLONG);
	server = fake_open("server");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(stats__text_and_http),
		TEST(stats__many_clients),
		TEST(stats__own_root_and_group),
		TEST(stats__path),
	};

	return rig_run("ctl_stats", tests, GX_ARRAY_SIZE(tests));
}
