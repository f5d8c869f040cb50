/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors of this process, for tests that end by checking that none is left open.
 */
#ifndef COMMON_FDS_H
#define COMMON_FDS_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

/* Open descriptors, and three for the look itself: only differences mean something. Processes
 * without CMocka call it too, so a failure ends the program. */
static inline unsigned common_fds_count(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	if (!dir) {
		perror("/proc/self/fd");
		abort();
	}
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

#endif
