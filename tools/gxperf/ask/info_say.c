// SPDX-License-Identifier: Apache-2.0
/*
 * How gxperf info speaks, for its parts: text on stdout, and gx's errors. Main thread only.
 */
#include "gxperf/ask/info.h"

#include "common/flag.h"

#include <stdarg.h>
#include <stdio.h>

void info_say(const struct info *i, const char *fmt, ...)
{
	va_list ap;

	if (i->quiet)
		return;
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
}

void info_error(char why[INFO_WHY_MAX])
{
	snprintf(why, INFO_WHY_MAX, "%s", gx_error());
	flag_say(why);
}
