// SPDX-License-Identifier: Apache-2.0
/*
 * gxd keygen NAME: a new key, with its rights, in a file that only this user reads. Both hosts need a
 * copy of it. Main thread only.
 */
#include "gxd/key.h"

#include "common/help.h"
#include "common/flag.h"
#include "common/opt.h"

#include <gx/auth.h>

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { KEYGEN_OK = 0, KEYGEN_FAILED = 1, KEYGEN_USAGE = 2 };

enum { KEY_ACCESS = 256, KEY_REGIONS, KEY_CONNECTIONS, KEY_UNDER_WAY };

struct keygen_opts {
	struct gx_auth_key key;
	const char *file; /* NULL: NAME.key */
};

static const struct argp_option keygen_options[] = {
	{"access", KEY_ACCESS, "LIST", 0, "put, get, or put,get (default): to the server's memory",
	 0},
	{"regions", KEY_REGIONS, "LIST", 0,
	 "Names of regions, as kv,log*: a * at the end is any rest. Default: all", 0},
	{"connections", KEY_CONNECTIONS, "N", 0, "Most connections at a time. Default: no limit",
	 0},
	{"under-way", KEY_UNDER_WAY, "SIZE", 0,
	 "Most payload under way to the server, over all connections. Default: no limit", 0},
	{NULL, 'o', "FILE", 0, "Default: NAME.key in this folder", 0},
	{0},
};

static void opts_access(struct gx_auth_key *key, const char *arg, struct argp_state *state)
{
	if (!strcmp(arg, "put"))
		key->access = GX_ACCESS_PUT;
	else if (!strcmp(arg, "get"))
		key->access = GX_ACCESS_GET;
	else if (!strcmp(arg, "put,get") || !strcmp(arg, "get,put"))
		key->access = GX_ACCESS_PUT | GX_ACCESS_GET;
	else
		argp_error(state, "--access: '%s' is not put, get, or put,get", arg);
}

/* gx_auth_make() looks at what is in them. */
static void opts_text(char *to, size_t room, const char *arg, const char *what,
		      struct argp_state *state)
{
	if (to[0])
		argp_error(state, "%s: there is one already", what);
	if (!arg[0] || strlen(arg) >= room)
		argp_error(state, "%s: 1 to %zu bytes", what, room - 1);
	snprintf(to, room, "%s", arg);
}

static error_t keygen_parse(int key, char *arg, struct argp_state *state)
{
	struct keygen_opts *o = state->input;

	switch (key) {
	case KEY_ACCESS:
		opts_access(&o->key, arg, state);
		return 0;
	case KEY_REGIONS:
		opts_text(o->key.regions, sizeof(o->key.regions), arg, "--regions", state);
		return 0;
	case KEY_CONNECTIONS:
		if (opt_u32(arg, 1, UINT32_MAX, &o->key.conns_max))
			argp_error(state, "--connections: '%s' is not a number from 1 on", arg);
		return 0;
	case KEY_UNDER_WAY:
		if (opt_size(arg, &o->key.under_way_max_b) || !o->key.under_way_max_b)
			argp_error(state, "--under-way: '%s' is not a size such as 64M or 1G", arg);
		return 0;
	case 'o':
		o->file = arg;
		return 0;
	case ARGP_KEY_ARG:
		opts_text(o->key.name, sizeof(o->key.name), arg, "NAME", state);
		return 0;
	case ARGP_KEY_END:
		if (!o->key.name[0])
			argp_error(state, "which NAME shall the key have? E.g. gxd keygen kv");
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

const struct argp gxd_keygen_argp = {
	.options = keygen_options,
	.parser = keygen_parse,
	.children = help_children,
	.args_doc = "NAME",
	.doc = "gxd keygen makes a key, by which a peer of another host may connect, in a file "
	       "of mode 0600. Copy it to the peer by a way that nobody else reads, as scp. "
	       "Both ends take it by --key FILE. A file is never overwritten; a new secret "
	       "is a new file."
	       "\v  gxd keygen kv\n"
	       "  gxd keygen kv --regions 'kv,log*' --access get\n"
	       "The rights are those of the peer that shows the key to a server; the "
	       "server's copy of the file holds. They are lines of the file, before the secret.\n"
	       "Exit status: 0 ok, 1 failed, 2 usage.",
};

int gxd_keygen(int argc, char **argv)
{
	struct keygen_opts o = {.key = GX_INIT(o.key)};
	char path[PATH_MAX];
	int ret;

	argp_err_exit_status = KEYGEN_USAGE;
	argp_parse(&gxd_keygen_argp, argc, argv, ARGP_NO_HELP, NULL, &o);
	snprintf(path, sizeof(path), "%s.key", o.key.name);
	ret = gx_auth_make(o.file ? o.file : path, &o.key);
	if (!ret) {
		printf("%s\n", o.file ? o.file : path);
		return fflush(stdout) ? KEYGEN_FAILED : KEYGEN_OK;
	}
	snprintf(path, sizeof(path), "%s", gx_error());
	fprintf(stderr, "gxd keygen: %s\n", flag_say(path));
	return ret == -EINVAL ? KEYGEN_USAGE : KEYGEN_FAILED;
}
