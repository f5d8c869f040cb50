/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Help of gxd, gxperf and their commands: a short one, with examples first, and a full one. The man
 * pages have what the full one has.
 */
#ifndef HELP_H
#define HELP_H

#include <argp.h>

/** OPT_MORE - In argp_option.flags: --help-all lists this option, --help does not. No flag of argp's. */
#define OPT_MORE 0x1000

/**
 * help_argp - The options of help and version, as a child of each argp. Lines behind the vertical tab of
 * an argp's .doc that begin with "  gx" are its examples. Who has it parses with ARGP_NO_HELP.
 */
extern const struct argp help_argp;
extern const struct argp_child help_children[]; /* it alone */

/** help_words() - "help COMMAND" becomes "COMMAND --help", and "version" becomes "--version". */
void help_words(int *argc, char **argv);

#endif
