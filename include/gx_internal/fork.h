/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors that a child of fork() must not keep: sockets whose end tells a peer that we have
 * died, or whose address is wanted again.
 */
#ifndef GX_INTERNAL_FORK_H
#define GX_INTERNAL_FORK_H

/**
 * gx_fd_own() - A child of fork() that never calls exec() closes @fd at once, so that it keeps no
 * connection open whose process has died, and no port taken. Any thread; negative: nothing is done.
 * Return: @fd. gx_fd_close() - Close such a one, or any. gx_fd_forget() - It is closed by somebody
 * else, right now.
 */
int gx_fd_own(int fd);
void gx_fd_forget(int fd);
void gx_fd_close(int fd);

#endif
