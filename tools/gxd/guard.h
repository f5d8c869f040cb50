/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What gxd gives up so that who takes it over gains little: the rights of root, and system calls
 * that it never makes.
 */
#ifndef GXD_GUARD_H
#define GXD_GUARD_H

#include <stdbool.h>

/**
 * guard_user() - Become user @name (a name, or a number that a user has). Before the first thread
 * starts. All capabilities stay usable until guard_seal(), so that devices and key files can be
 * opened. @net_admin: CAP_NET_ADMIN stays for good, and the others go at once.
 *
 * Return: 0, -errno with a log line: no such user, or we are neither root nor that user.
 */
int guard_user(const char *name, bool net_admin);

/**
 * guard_seal() - For all threads, for good: the capabilities that guard_user() left end, execve()
 * gains no rights (PR_SET_NO_NEW_PRIVS), and calls of a deny list fail with EPERM (seccomp). Once
 * set-up is over.
 *
 * Return: 0, -errno with a log line.
 */
int guard_seal(void);

#endif
