/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What --version says beside the library's version: of what commit this program is, and how it was
 * built.
 */
#ifndef VERSION_TEXT_H
#define VERSION_TEXT_H

#include <stdio.h>

/** version_commit() - "6d40e95a1b2c", with "-dirty" where files had been changed; "unknown" where
 * it was built without git. */
const char *version_commit(void);
/** version_print() - "NAME 0.1.0", the commit, the compiler, and the parts that are built in. */
void version_print(FILE *to, const char *name);

#endif
