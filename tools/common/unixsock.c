// SPDX-License-Identifier: Apache-2.0
/*
 * Connect to a Unix socket by the name that users and systemd give it.
 */
#include "common/unixsock.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int unix_connect(const char *path, int type)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	size_t len = strlen(path);
	int fd, err;

	if (len >= sizeof(un.sun_path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	memcpy(un.sun_path, path, len);
	if (path[0] == '@')
		un.sun_path[0] = '\0';
	fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
	if (fd < 0 || !connect(fd, (struct sockaddr *)&un,
			       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)))
		return fd;
	err = errno;
	close(fd);
	errno = err;
	return -1;
}
