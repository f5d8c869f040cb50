// SPDX-License-Identifier: Apache-2.0
/* The options of gxd; see opts.h. */
#include "gxd/opts.h"

#include "gxd/conf.h"

#include "common/help.h"

#include <gx/log.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define GXD_LISTEN     "127.0.0.1:" OPT_PORT
#define GXD_LISTEN_ALL "0.0.0.0:" OPT_PORT ",[::]:" OPT_PORT
#define GXD_MEM	       "kv=host:256M"

enum {
	KEY_LISTEN = 256,
	KEY_CORES,
	KEY_PORT,
	KEY_MEM,
	KEY_ALLOW_UID,
	KEY_BUSY,
	KEY_STATS,
	KEY_BIND,
	KEY_LINK,
	KEY_LOG_LEVEL,
	KEY_USER,
	KEY_CONFIG,
	KEY_LOG_FORMAT,
	KEY_NAME,
};

static const struct argp_option gxd_options[] = {
	{NULL, 0, NULL, 0, "What is served:", 1},
	{"mem", KEY_MEM, "NAME=PLACE:SIZE", 0,
	 "A region to put to and get from, PLACE host or cuda:N. Repeat for more. Default " GXD_MEM,
	 1},
	{"listen", KEY_LISTEN, "HOST[:PORT]", 0,
	 "Default " GXD_LISTEN ", and with --key port " OPT_PORT
	 " of every address; port 0: any free one",
	 1},
	{"port", KEY_PORT, "NAME[:ARGS]", 0,
	 "Packet port to open: shm, udp, dpdk:DEVARGS; udp:port=N (its data ports: two a core, from N on; udp:port=N-M: "
	 "those that are free out of a range; default any that are free). Behind each, cc=rate, swift or none: its "
	 "congestion control; paths=N: data over N source ports at a time. Repeat in order of preference; default shm, udp",
	 1},
	{"link", KEY_LINK, "LINK", OPT_MORE,
	 "packet, tcp: clients on this host may not map our memory; local: they must be able to "
	 "(needs port shm); verbs: RDMA clients are served by the first device (--rdma names one); "
	 "default: they may map it, where port shm is opened. A client may always take packet or "
	 "tcp",
	 1},
	{"bind", KEY_BIND, "HOST", OPT_MORE,
	 "Address of network ports; default: that of --listen. Where that is every address: with a key "
	 "or --insecure the one of the default route, else 127.0.0.1",
	 1},
	{NULL, 0, NULL, 0, "How:", OPT_GX_GROUP},
	{"cores", KEY_CORES, "LIST", 0,
	 "CPUs to poll on, e.g. 0 or 0,2-3; 'any': all this process may use. Default: the first "
	 "half of "
	 "them, at most 4 (gxperf takes the last half)",
	 OPT_GX_GROUP},
	{"no-huge", OPT_GX_NO_HUGE, NULL, OPT_MORE, "Do not try huge pages", OPT_GX_GROUP},
	{"busy", KEY_BUSY, NULL, OPT_MORE, "Cores never sleep, even when idle", OPT_GX_GROUP},
	{"timeout", OPT_GX_TIMEOUT, "SECONDS", OPT_MORE,
	 "A peer silent for this long is lost; default 5", OPT_GX_GROUP},
	{NULL, 0, NULL, 0, "Who may, and who looks:", 5},
	{"allow-uid", KEY_ALLOW_UID, "UID", OPT_MORE,
	 "A user of this host who is served, besides our own", 5},
	{"key", OPT_GX_KEY, "FILE", 0,
	 "Serve peers of other hosts that show this key, encrypted: a file of gxd keygen; a folder of "
	 "*.key files, or fd:N, an inherited descriptor. Repeat for more. SIGHUP reads them again",
	 5},
	{"name", KEY_NAME, "NAME", OPT_MORE,
	 "With --key: for gxperf --peer, which then takes no other that has the key", 5},
	{"insecure", OPT_GX_INSECURE, NULL, 0, "Allow peers of other hosts, in clear", 5},
	{"stats", KEY_STATS, "SOCKET", OPT_MORE,
	 "Unix socket for counters, text or Prometheus; @NAME is abstract. Default @gxd-PORT", 5},
	{"user", KEY_USER, "NAME", OPT_MORE,
	 "Serve as this user: gxd, started as root, opens what it needs and gives up root's rights",
	 5},
	{"config", KEY_CONFIG, "FILE", 0,
	 "Take options from this file, too, one a line; # begins a comment line. "
	 "%d at the start of a value is the folder of the service's credentials (systemd)",
	 5},
	{"log-level", KEY_LOG_LEVEL, "LEVEL", OPT_MORE,
	 "What stderr is told: err, warn, info, debug. Default: GX_LOG of the environment, or info",
	 5},
	{"log-format", KEY_LOG_FORMAT, "FORMAT", OPT_MORE,
	 "How lines on stderr look: keys (time=, level=, peer=, msg=), json, or text. Default: GX_LOG_FORMAT "
	 "of the environment, or keys",
	 5},
	{0},
};

static void opts_mem(struct gxd_opts *o, const char *arg, struct argp_state *state)
{
	struct service_region *r = &o->regions[o->nr_regions];
	char plain[128];

	if (o->nr_regions == SERVICE_REGIONS_MAX)
		argp_error(state, "--mem: more than %d regions", SERVICE_REGIONS_MAX);
	if (opt_mem(arg, &r->opt)) {
		opt_plain(arg, plain, sizeof(plain));
		argp_error(state,
			   "--mem: '%s' is not NAME=PLACE:SIZE, e.g. kv=host:2G or kv=cuda:0:4G; a "
			   "name has up to %d printable ASCII characters, a size is whole (1536M)",
			   plain, OPT_NAME_MAX - 1);
	}
	for (unsigned i = 0; i < o->nr_regions; i++)
		if (!strcmp(o->regions[i].opt.name, r->opt.name))
			argp_error(state, "--mem: two regions are named '%s'", r->opt.name);
	o->nr_regions++;
}

static void opts_uid(struct gxd_opts *o, const char *arg, struct argp_state *state)
{
	if (o->nr_uids == GXD_UIDS_MAX)
		argp_error(state, "--allow-uid: more than %d users", GXD_UIDS_MAX);
	if (opt_u32(arg, 0, UINT32_MAX - 1, &o->uids[o->nr_uids++]))
		argp_error(state, "--allow-uid: '%s' is not the number of a user", arg);
}

static void opts_port(struct gxd_opts *o, const char *arg, struct argp_state *state)
{
	if (o->ports.nr >= GXD_PORTS_MAX)
		argp_error(state, "--port: more than %d ports", GXD_PORTS_MAX);
	if (opt_ports(arg, &o->ports))
		argp_error(
			state,
			"--port: '%s' is not shm, udp or dpdk:DEVICE,... (behind a colon something stands)",
			arg);
}

/* Without --port gxd opens shm too. */
static bool opts_have_shm(const struct gxd_opts *o)
{
	for (unsigned i = 0; i < o->ports.nr; i++)
		if (!strcmp(o->ports.v[i].name, "shm"))
			return true;
	return !o->ports.nr;
}

static void opts_end(struct gxd_opts *o, struct argp_state *state)
{
	if (!o->nr_regions)
		opts_mem(o, GXD_MEM, state);
	if (!o->listen) /* whoever gives a key wants other hosts, and strangers hear nothing */
		o->listen = o->gx.nr_keys ? GXD_LISTEN_ALL : GXD_LISTEN;
	if (o->link && !strcmp(o->link, "local") && !opts_have_shm(o))
		argp_error(state, "--link local: it goes with port shm; add --port shm");
}

static void opts_log_level(const char *arg, struct argp_state *state)
{
	int level = gx_log_level_parse(arg);

	if (level < 0)
		argp_error(state, "--log-level: '%s' is not err, warn, info or debug", arg);
	gx_log_level_set((enum gx_log_level)level);
}

static void opts_log_format(const char *arg, struct argp_state *state)
{
	int format = gx_log_format_parse(arg);

	if (format < 0)
		argp_error(state, "--log-format: '%s' is not keys, json or text", arg);
	gx_log_format_set((enum gx_log_format)format);
}

static error_t opts_take(int key, char *arg, struct argp_state *state)
{
	struct gxd_opts *o = state->input;

	if (!opt_gx_take(key, arg, &o->gx, state))
		return 0;
	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &o->gx_to;
		return 0;
	case KEY_BUSY:
		o->gx.cores.busy = true;
		return 0;
	case KEY_LISTEN:
		o->listen = opt_addr(arg);
		return 0;
	case KEY_BIND:
		o->bind = arg;
		return 0;
	case KEY_NAME:
		o->gx.auth.name = arg;
		return 0;
	case KEY_STATS:
		o->stats = arg;
		return 0;
	case KEY_LOG_LEVEL:
		opts_log_level(arg, state);
		return 0;
	case KEY_LOG_FORMAT:
		opts_log_format(arg, state);
		return 0;
	case KEY_LINK:
		opt_link_take(arg, &o->link, state);
		return 0;
	case KEY_CONFIG: /* gxd_opts_take() has put in its place what the file has */
		argp_error(state, "--config: write it out");
		return 0;
	case KEY_USER:
		o->user = arg;
		return 0;
	case KEY_MEM:
		opts_mem(o, arg, state);
		return 0;
	case KEY_CORES:
		opt_cores_take(arg, &o->allowed, &o->cpus, state);
		o->gx.cores.may_move = false;
		return 0;
	case KEY_PORT:
		opts_port(o, arg, state);
		return 0;
	case KEY_ALLOW_UID:
		opts_uid(o, arg, state);
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "what is '%s'? A sub-command comes first: %s", arg, o->commands);
		return 0;
	case ARGP_KEY_END:
		opts_end(o, state);
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

static error_t opts_parse(int key, char *arg, struct argp_state *state)
{
	return conf_parse(opts_take, key, arg, state);
}

static const struct argp_child gxd_children[] = {{&opt_gx_argp}, {&help_argp}, {0}};
const struct argp gxd_argp = {
	.options = gxd_options,
	.parser = opts_parse,
	.children = gxd_children,
	.args_doc =
		"\ncheck [OPTION...]\ndump\nkeygen NAME\nmetrics --listen HOST:PORT\nstats [SOCKET]\ntop\nnic plan --dev IF --queues FIRST-LAST",
	.doc = "gxd serves memory of this host and its GPUs to gx peers, from pinned "
	       "polling cores."
	       "\v  gxd                                and: gxperf 127.0.0.1\n"
	       "  gxd --key kv.key --mem kv=host:2G  and: gxperf HOST --key kv.key\n"
	       "  check     read options as gxd does, and say what would be served, or why not\n"
	       "  stats     counters of a running gxd (default socket @gxd-7501)\n"
	       "  top       connections of all gx processes of this host, live\n"
	       "  dump      all that they publish, once, as JSON\n"
	       "  metrics   the same for Prometheus\n"
	       "  keygen    make a key, for peers of other hosts\n"
	       "  nic plan  how to set a network card up for payload straight into a device\n"
	       "SIGTERM or SIGINT: stop listening, wait up to 10 s for messages "
	       "under "
	       "way, end; a second one ends at once. SIGUSR1 puts state and counters into the log; "
	       "SIGUSR2 and SIGALRM are ignored. SIGHUP has keys read again, and ends nothing. Sizes take K, M, G, T, powers of two.\n"
	       "Exit status: 0 ok, 1 failed, 2 usage.",
};

const struct argp gxd_check_argp = {
	.options = gxd_options,
	.parser = opts_parse,
	.children = gxd_children,
	.doc = "gxd check reads options as gxd does, and says what would be served: memory, keys and their "
	       "rights, CPUs. Nothing is opened, and a gxd that runs is not disturbed."
	       "\v  gxd check --mem kv=host:2G\n"
	       "  gxd check --config /etc/gx/kv.conf      before a service starts\n"
	       "Exit status: 0 gxd would start, as far as can be seen, 1 it would not, 2 usage.",
};

int gxd_opts_take(const struct argp *argp, int argc, char **argv, struct gxd_opts *o)
{
	char **all = argv;
	int ret = conf_expand(&argc, &all);

	if (ret)
		return ret == -EINVAL ? GXD_USAGE : GXD_FAILED;
	o->gx_to.ctx = &o->gx;
	if (opt_cpus_allowed(&o->allowed)) {
		fprintf(stderr, "gxd: no CPU affinity: %s\n", strerror(errno));
		return GXD_FAILED;
	}
	opt_cpus_default(&o->allowed, true, &o->cpus);
	o->gx.cores.may_move = true;
	argp_parse(argp, argc, all, ARGP_NO_HELP, NULL, o);
	return GXD_OK;
}

const char *gxd_opts_nobody(const struct gxd_opts *o)
{
	static char text[512];
	char host[OPT_HOST_MAX];

	if (o->gx.nr_keys || o->gx.top.insecure || opt_bind(o->listen, true, host) ||
	    !strncmp(host, "127.", 4) || !strcmp(host, "::1"))
		return NULL;
	snprintf(
		text, sizeof(text),
		"--listen %s would serve nobody: other hosts need a key (--key FILE, made by gxd keygen) "
		"or --insecure, which sends in clear, and without these peers of this host come by "
		"loopback alone (--listen 127.0.0.1:7501)",
		o->listen);
	return text;
}
