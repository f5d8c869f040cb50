/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the plugin would choose in this process, for gxperf info --nccl. Nothing is opened, and no
 * CPU is claimed. One thread, of a program that does not use NCCL.
 */
#include "net.h"
#include "plug.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TELL_LINE_B 1024

/* The text under way. NCCL's logger has no argument. */
static struct {
	char *at;
	size_t room; /* with the final 0 */
	bool full;
} tell;

static void tell_text(const char *key, const char *text)
{
	int n = snprintf(tell.at, tell.room, "%s %s\n", key, text);

	if (n < 0 || (size_t)n >= tell.room) {
		tell.full = true;
		tell.at[0] = '\0';
		return;
	}
	tell.at += n;
	tell.room -= (size_t)n;
}

__attribute__((format(printf, 2, 3))) static void tell_line(const char *key, const char *fmt, ...)
{
	char line[TELL_LINE_B];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	tell_text(key, line);
}

/* In the place of NCCL's: say_warn() and say_info() come here. */
static void tell_log(int level, unsigned long flags, const char *file, int line_nr, const char *fmt,
		     ...)
{
	static const char head[] = "NET/gx : ";
	char line[TELL_LINE_B];
	va_list ap;

	(void)flags;
	(void)file;
	(void)line_nr;
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	tell_text(level == NCCL_LOG_WARN ? "wrong" : "note",
		  line + (strncmp(line, head, sizeof(head) - 1) ? 0 : sizeof(head) - 1));
}

static void tell_vars(void)
{
	for (const struct conf_var *v = conf_vars; v->name; v++) {
		const char *text = conf_text(v->name);

		tell_line(text ? "set" : "default", "%s %s", v->name, text ? text : v->unset);
	}
}

static void tell_mode(const struct conf *c)
{
	char why[WHY_B];

	if (c->offload) {
		if (!gpus_can(why))
			tell_line("wrong", "GX_NCCL_MODE=unpack: %s", why);
		tell_line("mode",
			  "unpack: NCCL's kernels copy what gx received out of %llu MiB "
			  "of bounce memory",
			  (unsigned long long)c->bounce_b >> 20);
		return;
	}
	tell_line("mode", "host: NCCL's kernels move bytes between GPUs and host buffers");
}

/* Whether the kernel lets a rank read another one shows when they connect. */
static void tell_copies(const struct conf *c)
{
	if (c->pull == GX_PULL_OFF || (c->link && strcmp(c->link, "local") != 0))
		tell_line("copies", "two: long messages within a host go as packets");
	else
		tell_line("copies",
			  "one of long messages within a host, where the kernel lets a rank read "
			  "the other one%s; else two",
			  c->pull == GX_PULL_AUTO ? ", and does it fast" : "");
}

static void tell_cpus(const struct conf *c)
{
	cpu_set_t claimed;
	int cpus[LANES_MAX];
	unsigned nr;

	cpus_claimed(&claimed);
	nr = cpus_choose(c, "", &claimed, cpus);
	for (unsigned i = 0; i < nr; i++)
		tell_line("core", "%d", cpus[i]);
	if (!c->nr_cpus && !access("/sys/devices/system/node/node1", F_OK))
		tell_line("note", "this host has several NUMA nodes: a rank takes CPUs near its "
				  "GPU first");
	for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &claimed))
			tell_line("claimed", "%u", cpu);
}

int gx_nccl_tell(char *text, size_t room);

/*
 * gx_nccl_tell() - Write lines "KEY VALUE" into @text:
 *   version  of gx
 *   set, default  a variable and its value, or its default in words
 *   wrong    why the first communicator would fail; then none of the following
 *   near, open, key  the address to listen at: this host alone reaches it, or others too, insecure or
 *            with a key
 *   mode     "host: ..." or "unpack: ...": the memory that NCCL gives, and how bytes get into it
 *   copies   how often long messages within a host are copied
 *   core     a line for each polling core: its CPU, -1: not pinned
 *   claimed  a CPU that a process has claimed
 *   note     what the plugin would say of its choice
 * Other keys may come. Return: 0, -EBUSY (NCCL uses the plugin in this process), -ENOSPC.
 */
NCCL_EXPORT int gx_nccl_tell(char *text, size_t room)
{
	struct conf c;

	if (plug.gx)
		return -EBUSY;
	if (!room)
		return -ENOSPC;
	tell.at = text;
	tell.room = room;
	tell.full = false;
	tell_line("version", "%s", gx_version());
	tell_vars();
	say_to(tell_log);
	if (conf_read(&c)) {
		tell_line(c.near ? "near" : c.insecure ? "open" : "key", "%s", c.host);
		tell_mode(&c);
		tell_copies(&c);
		tell_cpus(&c);
	}
	say_to(NULL);
	return tell.full ? -ENOSPC : 0;
}
