// SPDX-License-Identifier: Apache-2.0
/*
 * The version in words (see version_text.h). A file of its own: it is compiled anew for each
 * commit.
 */
#include "common/version_text.h"

#include "version.h"

#include <gx/gx.h>

#ifdef __clang__
#define VERSION_COMPILER "clang " __clang_version__
#else
#define VERSION_COMPILER "gcc " __VERSION__
#endif

const char *version_commit(void)
{
	return VERSION_COMMIT;
}

void version_print(FILE *to, const char *name)
{
	fprintf(to, "%s %s\ncommit %s, %s\nparts: %s\n", name, gx_version(), version_commit(),
		VERSION_COMPILER, VERSION_PARTS);
}
