// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf info --nccl: the plugin file that NCCL's loader would take in this environment, and the
 * choices of that plugin, which it reports itself (bindings/nccl/tell.c). NCCL and a GPU are not
 * needed. Main thread only.
 */
#include "gxperf/ask/info.h"

#include "common/json.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLUGIN_TELL_B	 16384
#define PLUGIN_TABLE_MIN 6 /* versions of NCCL's table that are looked for */
#define PLUGIN_TABLE_MAX 16

typedef int (*plugin_tell_fn)(char *text, size_t room);

struct plugin {
	void *lib; /* NULL: no file */
	plugin_tell_fn tell;
	bool by_nccl; /* NCCL would load it, too */
	const char *name;
	const char *file;
	char why[INFO_WHY_MAX]; /* the loader's reason for the last name */
};

struct nccl_info {
	struct info *i;
	struct json_t *doc, *vars, *warnings, *cores, *claimed;
	char cores_text[128], claimed_text[512];
	bool fails;
};

/* ---- Warnings ---- */

__attribute__((format(printf, 2, 3))) static void nccl_warn(struct nccl_info *n, const char *fmt,
							    ...)
{
	char text[PATH_MAX + 512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	js_append(n->warnings, js_string(text));
	info_say(n->i, "warning: %s\n", text);
}

/* Reasons for which NCCL would not use gx. */
__attribute__((format(printf, 2, 3))) static void nccl_fail(struct nccl_info *n, const char *fmt,
							    ...)
{
	char text[PATH_MAX + 512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	n->fails = true;
	report_error(n->i->report, "%s", text);
}

/* ---- The file ---- */

/* gx's plugin takes the place of another one that was found before. */
static bool plugin_try(struct plugin *p, const char *name)
{
	void *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	plugin_tell_fn tell;

	if (!lib) {
		snprintf(p->why, sizeof(p->why), "%s", dlerror());
		return false;
	}
	*(void **)&tell = dlsym(lib, "gx_nccl_tell");
	if (p->lib && !tell) {
		dlclose(lib);
		return false;
	}
	if (p->lib)
		dlclose(p->lib);
	p->lib = lib;
	p->tell = tell;
	return tell;
}

/* As NCCL does: each name as it is, then as libnccl-net-NAME.so. */
static bool plugin_try_names(struct plugin *p, const char *names)
{
	char list[PATH_MAX], file[PATH_MAX + 32], *save = NULL;
	bool found = false;

	snprintf(list, sizeof(list), "%s", names);
	for (char *name = strtok_r(list, ",", &save); name && !found;
	     name = strtok_r(NULL, ",", &save)) {
		snprintf(file, sizeof(file), "libnccl-net-%s.so", name);
		found = plugin_try(p, name) || (!strchr(name, '/') && plugin_try(p, file));
	}
	return found;
}

static void plugin_try_own(struct plugin *p)
{
	char path[PATH_MAX];

	if (!plugin_try(p, PERF_PLUGIN) && !perf_plugin_near(path, sizeof(path)))
		plugin_try(p, path);
}

static void plugin_find(struct plugin *p)
{
	const char *names = getenv("NCCL_NET_PLUGIN");

	if (names && names[0])
		plugin_try_names(p, names);
	else
		plugin_try(p, "libnccl-net.so");
	p->by_nccl = p->lib;
	if (!p->tell && (!names || !names[0])) {
		plugin_try_own(p);
		p->by_nccl = p->by_nccl && !p->tell;
	}
}

static void plugin_tables(struct nccl_info *n, struct plugin *p)
{
	struct json_t *tables = js_array();
	char symbol[32], text[64] = "";
	size_t at = 0;
	Dl_info where;

	for (unsigned v = PLUGIN_TABLE_MIN; v <= PLUGIN_TABLE_MAX; v++) {
		const char *const *table; /* begins with its name */

		snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%u", v);
		table = dlsym(p->lib, symbol);
		if (!table)
			continue;
		p->name = *table;
		if (dladdr(table, &where) && where.dli_fname)
			p->file = where.dli_fname;
		at += (size_t)snprintf(text + at, sizeof(text) - at, " v%u", v);
		js_append(tables, js_pack("i", (int)v));
	}
	info_say(n->i, "plugin %s: '%s', tables%s\n", p->file ? p->file : "?",
		 p->name ? p->name : "?", text[0] ? text : ": none");
	js_set(n->doc, "file", js_string(p->file));
	js_set(n->doc, "name", js_string(p->name));
	js_set(n->doc, "tables", tables);
}

/* ---- What the plugin reports ---- */

static void text_add(char *text, size_t room, const char *what)
{
	size_t at = strlen(text);

	snprintf(text + at, room - at, " %s", what);
}

static void tell_var(struct nccl_info *n, bool set, char *value)
{
	char *name = strsep(&value, " ");

	info_say(n->i, "%s=%s%s\n", name, value ? value : "", set ? "" : " (default)");
	js_set(n->vars, name,
	       js_pack("{s:b, s:o}", "set", set, "value", js_string(value ? value : "")));
}

static void tell_addr(struct nccl_info *n, const char *who, const char *addr)
{
	info_say(n->i, "listens at %s\n", addr);
	js_set(n->doc, "address", js_string(addr));
	if (!strcmp(who, "near"))
		nccl_warn(n,
			  "GX_NCCL_ADDR: %s is reached by ranks of this host alone. NCCL takes the "
			  "network between hosts, or between processes with different NCCL_HOSTID",
			  addr);
	else if (!strcmp(who, "open"))
		nccl_warn(
			n,
			"GX_NCCL_INSECURE: everybody who reaches %s may connect, and data goes in "
			"clear: take GX_NCCL_KEY_FILE",
			addr);
}

static void tell_core(struct nccl_info *n, const char *cpu)
{
	bool pinned = strcmp(cpu, "-1");

	text_add(n->cores_text, sizeof(n->cores_text), pinned ? cpu : "any");
	js_append(n->cores, pinned ? js_pack("i", atoi(cpu)) : js_string(NULL));
}

static void tell_line(struct nccl_info *n, const char *key, char *value)
{
	if (!strcmp(key, "version"))
		js_set(n->doc, "version", js_string(value));
	else if (!strcmp(key, "set") || !strcmp(key, "default"))
		tell_var(n, key[0] == 's', value);
	else if (!strcmp(key, "near") || !strcmp(key, "open") || !strcmp(key, "key"))
		tell_addr(n, key, value);
	else if (!strcmp(key, "core"))
		tell_core(n, value);
	else if (!strcmp(key, "claimed")) {
		text_add(n->claimed_text, sizeof(n->claimed_text), value);
		js_append(n->claimed, js_pack("i", atoi(value)));
	} else if (!strcmp(key, "copies") || !strcmp(key, "mode")) {
		js_set(n->doc, key, js_string(value));
		info_say(n->i, "%s: %s\n", key, value);
	} else if (!strcmp(key, "wrong")) {
		nccl_fail(n, "%s", value);
	} else if (!strcmp(key, "note")) {
		nccl_warn(n, "%s", value);
	}
}

static void nccl_tell(struct nccl_info *n, plugin_tell_fn tell)
{
	char *text = calloc(1, PLUGIN_TELL_B), *save = NULL;
	int ret = text ? tell(text, PLUGIN_TELL_B) : -ENOMEM;

	if (ret)
		nccl_fail(n, "the plugin does not tell what it would choose: %s", strerror(-ret));
	for (char *line = ret ? NULL : strtok_r(text, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save)) {
		char *value = line, *key = strsep(&value, " ");

		if (value)
			tell_line(n, key, value);
	}
	free(text);
	if (n->cores_text[0])
		info_say(n->i, "polling cores on CPU%s\n", n->cores_text);
	info_say(n->i, "CPUs that processes have claimed:%s\n",
		 n->claimed_text[0] ? n->claimed_text : " none");
}

/* ---- NCCL's own variables ---- */

static void nccl_variables(struct nccl_info *n, const struct plugin *p)
{
	static const char *const names[] = {"NCCL_NET_PLUGIN", "NCCL_NET",
					    "NCCL_NET_PLUGIN_REF_COUNT", "NCCL_HOSTID"};
	const char *net = getenv("NCCL_NET"), *count = getenv("NCCL_NET_PLUGIN_REF_COUNT");

	for (unsigned k = 0; k < sizeof(names) / sizeof(names[0]); k++) {
		const char *value = getenv(names[k]);

		info_say(n->i, "%s%s%s\n", names[k], value ? "=" : ": not set", value ? value : "");
		js_set(n->vars, names[k],
		       js_pack("{s:b, s:o}", "set", !!value, "value", js_string(value)));
	}
	if (!p->by_nccl)
		nccl_fail(n, "NCCL would not load this file: set NCCL_NET_PLUGIN=%s",
			  p->file ? p->file : "FILE");
	if (!net)
		nccl_warn(n,
			  "without NCCL_NET=%s NCCL takes InfiniBand or sockets, and says "
			  "nothing, when the plugin fails",
			  p->name ? p->name : "gx");
	else if (p->name && strcasecmp(net, p->name))
		nccl_fail(n, "NCCL_NET=%s: this plugin is '%s'", net, p->name);
	if (!count || !atoi(count))
		nccl_warn(n,
			  "without NCCL_NET_PLUGIN_REF_COUNT=1 NCCL up to 2.29.7 takes sockets for "
			  "communicators that are made after the last one has ended");
}

int info_nccl(struct info *i)
{
	struct nccl_info n = {.i = i,
			      .doc = js_pack("{}"),
			      .vars = js_pack("{}"),
			      .warnings = js_array(),
			      .cores = js_array(),
			      .claimed = js_array()};
	const char *names = getenv("NCCL_NET_PLUGIN");
	struct plugin p = {0};

	plugin_find(&p);
	if (!p.lib) {
		nccl_fail(&n, "NCCL_NET_PLUGIN%s%s: no plugin is found: %s",
			  names ? "=" : " is not set", names ? names : "",
			  p.why[0] ? p.why : "none is named");
	} else {
		plugin_tables(&n, &p);
		if (p.tell)
			nccl_tell(&n, p.tell);
		else
			nccl_fail(&n,
				  "%s is not gx's plugin, or is an older one: set "
				  "NCCL_NET_PLUGIN to the path of " PERF_PLUGIN,
				  p.file ? p.file : "the plugin that NCCL would load");
		nccl_variables(&n, &p);
	}
	js_set(n.doc, "cores", n.cores);
	js_set(n.doc, "claimed", n.claimed);
	js_set(n.doc, "variables", n.vars);
	js_set(n.doc, "warnings", n.warnings);
	js_set(i->doc, "nccl", n.doc);
	if (p.lib)
		dlclose(p.lib);
	return n.fails ? PERF_FAILED : PERF_OK;
}
