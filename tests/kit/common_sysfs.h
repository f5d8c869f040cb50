/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory that looks like the kernel's sysfs, for device_root().
 */
#ifndef COMMON_SYSFS_H
#define COMMON_SYSFS_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/core.h"

#include <cmocka.h>

#define SYSFS_PATH_B 512

static char common_sysfs[] = "/tmp/gx-sysfs-XXXXXX";

static inline void common_sysfs_open(void)
{
	assert_non_null(mkdtemp(common_sysfs));
	device_root(common_sysfs);
}

/* Return: 0. */
static inline int common_sysfs_close(void)
{
	char command[64];

	device_root("");
	snprintf(command, sizeof(command), "rm -r %s", common_sysfs);
	return system(command);
}

static inline void common_sysfs_dirs(const char *path)
{
	char part[SYSFS_PATH_B];

	for (size_t i = 1; i <= strlen(path); i++) {
		if (path[i] && path[i] != '/')
			continue;
		snprintf(part, sizeof(part), "%.*s", (int)i, path);
		assert_true(!mkdir(part, 0700) || errno == EEXIST);
	}
}

/* File @name of /sys/@dir, with one line. */
static inline void common_sysfs_line(const char *dir, const char *name, const char *text)
{
	char path[SYSFS_PATH_B - 64], file[SYSFS_PATH_B];
	FILE *f;

	snprintf(path, sizeof(path), "%s/sys/%s", common_sysfs, dir);
	common_sysfs_dirs(path);
	snprintf(file, sizeof(file), "%s/%s", path, name);
	f = fopen(file, "we");
	assert_non_null(f);
	fprintf(f, "%s\n", text);
	fclose(f);
}

/* One of the kernel's devices, @path of /sys/devices, and @link to it in @dir. */
static inline void common_sysfs_device(const char *path, const char *node, const char *dir,
				       const char *link)
{
	char at[SYSFS_PATH_B / 2], from[SYSFS_PATH_B];

	snprintf(at, sizeof(at), "devices/%s", path);
	common_sysfs_line(at, "numa_node", node);
	snprintf(at, sizeof(at), "%s/sys/devices/%s", common_sysfs, path);
	snprintf(from, sizeof(from), "%s/sys/%s", common_sysfs, dir);
	common_sysfs_dirs(from);
	snprintf(from, sizeof(from), "%s/sys/%s/%s", common_sysfs, dir, link);
	assert_int_equal(symlink(at, from), 0);
}

#endif
