/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors that a child of fork() must not keep: sockets whose end shows a peer that this
 * process has died, or whose address this process will need again; devices.
 */
#ifndef GX_INTERNAL_FORK_H
#define GX_INTERNAL_FORK_H

/**
 * gx_fd_own() - A child of fork() closes @fd at once, even if it never calls exec(). So no
 * connection of a dead process stays open, and no port stays taken. Any thread; negative: nothing
 * to do. Return: @fd.
 * gx_fd_forget() - Somebody else closes @fd, right now.
 * gx_fd_close() - Close @fd, whether gx_fd_own() had it or not.
 */
int gx_fd_own(int fd);
void gx_fd_forget(int fd);
void gx_fd_close(int fd);

#endif
