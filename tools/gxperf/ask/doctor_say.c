// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf doctor: a finding, as a line and in the document. Main thread.
 */
#include "gxperf/ask/doctor.h"

#include "common/flag.h"
#include "common/json.h"

#include <stdarg.h>
#include <stdio.h>

#define DOCTOR_TEXT_MAX 1024

void doctor_say(struct doctor *d, enum doctor_level level, const char *check, const char *cure,
		const char *fmt, ...)
{
	static const char *const names[] = {"ok", "hint", "slow", "refused"};
	char what[DOCTOR_TEXT_MAX];
	struct json_t *one;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	flag_say(what);
	if (level > d->worst)
		d->worst = level;
	one = js_pack("{s:s, s:s}", "check", check, "level", names[level]);
	js_set(one, "what", js_string(what));
	js_set(one, "cure", js_string(cure[0] ? cure : NULL));
	js_append(d->findings, one);
	if (d->quiet)
		return;
	printf("%-8s %-12s %s\n", names[level], check, what);
	if (cure[0])
		printf("%-8s %-12s cure: %s\n", "", "", cure);
}
