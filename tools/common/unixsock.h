/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UNIXSOCK_H
#define UNIXSOCK_H

/**
 * unix_connect() - A Unix socket that is connected to @path; "@NAME" is an abstract one. @type:
 * SOCK_STREAM or SOCK_DGRAM. Any thread. Return: a descriptor that closes at exec(), -1 with errno.
 */
int unix_connect(const char *path, int type);

#endif
