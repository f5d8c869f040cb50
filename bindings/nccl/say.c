/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines to NCCL's log. NCCL gives its logger to each init; gx's own lines go there too. Any thread,
 * but not a core in its turn.
 */
#include "plug.h"

#include <gx/log.h>

#include <stdarg.h>
#include <stdio.h>

#define SAY_B 1024

/* What the fields of gx's API are for the users of the plugin. */
static const struct gx_name names[] = {
	{"gx_auth_opts.key_file", "GX_KEY_FILE"},
	{"gx_auth_opts.key_files", "GX_KEY_FILE"},
	{"gx_connect_opts.link", "GX_NCCL_LINK"},
	{"gx_connect_opts.ports", "GX_NCCL_PORTS"},
	{"gx_host_opts.pull", "GX_NCCL_PULL"},
	{"gx_opts.bind_host", "GX_ADDR"},
	{"gx_opts.cpus", "GX_NCCL_CPUS"},
	{"gx_opts.insecure", "GX_NCCL_INSECURE"},
	{"gx_opts.nr_cores", "GX_NCCL_CORES"},
	{"gx_opts.ports", "GX_NCCL_PORTS"},
	{NULL, NULL},
};

static nccl_log_fn _Atomic say_log;

void say_to(nccl_log_fn log)
{
	atomic_store(&say_log, log);
}

/* Return: false: there is no logger. */
static bool say_line(enum nccl_log_level level, char *line)
{
	nccl_log_fn log = atomic_load(&say_log);

	gx_names_say(names, line);
	if (log)
		log((int)level, NCCL_PART_INIT | NCCL_PART_NET, "gx", 0, "NET/gx : %s", line);
	return log != NULL;
}

void say_warn(const char *fmt, ...)
{
	char line[SAY_B];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	if (!say_line(NCCL_LOG_WARN, line))
		gx_log(GX_LOG_WARN, "%s", line);
}

void say_info(const char *fmt, ...)
{
	char line[SAY_B];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	if (!say_line(NCCL_LOG_INFO, line))
		gx_log(GX_LOG_INFO, "%s", line);
}

void say_gx(void *arg, int level, const char *line)
{
	char own[SAY_B];

	(void)arg;
	snprintf(own, sizeof(own), "%s", line);
	if (!say_line(level <= GX_LOG_WARN ? NCCL_LOG_WARN : NCCL_LOG_INFO, own))
		gx_log_stderr(level, own);
}
