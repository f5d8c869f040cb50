/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of options: one a line, as --mem kv=host:2G. Main thread only.
 */
#ifndef GXD_CONF_H
#define GXD_CONF_H

/**
 * conf_expand() - Put the options of FILE in the place of each --config FILE. A value that begins with
 * "%d" begins with $CREDENTIALS_DIRECTORY, as in a unit of systemd.
 * @argv: to a list that is left alone; becomes another one, if there is a file. It lives for as long as
 * the process
 * Return: 0; with a line on stderr: -EINVAL (a line that is no option), another -errno.
 */
int conf_expand(int *argc, char ***argv);

#endif
