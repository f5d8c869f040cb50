/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --version prints this after the library's version: the commit and the build of this program.
 */
#ifndef VERSION_TEXT_H
#define VERSION_TEXT_H

#include <stdio.h>

/** version_commit() - "6d40e95a1b2c", with "-dirty" if files had been changed; "unknown" in a build
 * without git. */
const char *version_commit(void);
/** version_print() - "NAME 0.2.0", the commit, the compiler, and the parts that are built in. */
void version_print(FILE *to, const char *name);

#endif
