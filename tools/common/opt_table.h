/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands and options of a program as lines for other programs: completion of shells and the man
 * pages are made from them.
 */
#ifndef OPT_TABLE_H
#define OPT_TABLE_H

#include <argp.h>

/** OPT_TABLE - As the first argument of a program: print its lists and end. It is in no help text. */
#define OPT_TABLE "--complete"

/**
 * opt_table() - Print @argp's options as lines on stdout; a tab stands between fields, and a field may be
 * empty. Main thread.
 *   command NAME ARGUMENTS TEXT            NAME is empty for the program itself
 *   more    NAME TEXT                      a line of what the help says at its end
 *   heading NAME GROUP TEXT                argp's number of the group
 *   option  NAME GROUP LONG SHORT ARGUMENT TEXT
 */
void opt_table(const char *name, const struct argp *argp);

#endif
