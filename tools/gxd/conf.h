/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of options: one a line, as --mem kv=host:2G. Main thread only.
 */
#ifndef GXD_CONF_H
#define GXD_CONF_H

#include <argp.h>

/**
 * conf_expand() - Put the options of FILE in the place of each --config FILE. A value that begins with
 * "%d" begins with $CREDENTIALS_DIRECTORY, as in a unit of systemd.
 * @argv: to a list that is left alone; becomes another one, if there is a file. It lives for as long as
 * the process
 * Return: 0; with a line on stderr: -EINVAL (a line that is no option), another -errno.
 */
int conf_expand(int *argc, char ***argv);
/** conf_parse() - For an argp parser: have @take take a word. Where that ends the program, and the word is
 * of a file, a line on stderr says of which line. */
error_t conf_parse(argp_parser_t take, int key, char *arg, struct argp_state *state);

#endif
