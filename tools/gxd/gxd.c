// SPDX-License-Identifier: Apache-2.0
/*
 * gxd, the pinned-core server: memory that peers may put to and get from. main() parses, opens,
 * prints a command line to paste on the client, and waits for a signal. The rest runs on gx's
 * threads and on the service's worker (gxd_service.c). A sub-command has a file of its own.
 */
#include "gxd/gxd_guard.h"
#include "gxd/gxd_key.h"
#include "gxd/gxd_nic.h"
#include "gxd/gxd_service.h"
#include "gxd/gxd_stats.h"

#include "common/flag.h"
#include "common/opt_argp.h"
#include "common/opt_table.h"
#include "common/version_text.h"

#include <gx/log.h>

#include <argp.h>
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GXD_LISTEN	 "127.0.0.1:7501"
#define GXD_PORTS_MAX	 8
#define GXD_UIDS_MAX	 16
#define GXD_DRAIN_NS	 10000000000ull
#define GXD_SILENT_NS	 1000000000ull /* log a set-up that takes longer */
/* Quiet looks in a row, 20 ms apart: no packet from any client. Over the local link a busy client
 * asks whether we live every eighth of its --timeout, 5 s. */
#define GXD_DRAIN_LOOKS	 50
#define GXD_DESCRIBE_MAX 16384

enum { GXD_OK = 0, GXD_FAILED = 1, GXD_USAGE = 2 };

struct gxd_opts {
	const char *listen, *stats, *bind, *link, *user;
	struct opt_ports ports;
	struct opt_cpus cpus, allowed;
	struct service_region regions[SERVICE_REGIONS_MAX];
	unsigned nr_regions;
	unsigned uids[GXD_UIDS_MAX];
	unsigned nr_uids;
	struct opt_ctx gx;   /* opt_gx_argp fills it; gxd_open() adds the rest */
	struct opt_gx gx_to; /* points at gx */
};

struct gxd {
	struct gxd_opts opts;
	struct gx *gx;
	struct service *svc;
	int port;	 /* that gxd listens at */
	sem_t signalled; /* the control thread posts, main waits */
	_Atomic bool serving;
	unsigned nr_signals; /* owner: control thread */
};

/* ---- Sub-commands ---- */

static const struct command {
	const char *name;
	int (*main)(int argc, char **argv);
	const struct argp *argp;
} commands[] = {
	{"keygen", gxd_keygen, &gxd_keygen_argp},
	{"nic", gxd_nic, &gxd_nic_argp},
	{"stats", gxd_stats, &gxd_stats_argp},
};

#define NR_COMMANDS (sizeof(commands) / sizeof(commands[0]))

/* "keygen, nic, ..." */
static const char *command_names(void)
{
	static char text[256];
	size_t at = 0;

	for (size_t i = 0; i < NR_COMMANDS && at < sizeof(text); i++)
		at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s", i ? ", " : "",
				       commands[i].name);
	return text;
}

/* ---- Options ---- */

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
};

static const struct argp_option gxd_options[] = {
	{NULL, 0, NULL, 0, "What is served:", 1},
	{"mem", KEY_MEM, "NAME=PLACE:SIZE", 0,
	 "A region that peers may put to and get from; PLACE is host or cuda:N. Repeat for more",
	 1},
	{"listen", KEY_LISTEN, "HOST:PORT", 0, "Default " GXD_LISTEN "; port 0: any free one", 1},
	{"port", KEY_PORT, "NAME[:ARGS]", 0,
	 "Packet port to open: shm, udp, udp:port=N (its data ports: two a core, from N on; "
	 "default any that are free), dpdk:DEVARGS. Behind each, cc=rate, swift or none: its "
	 "congestion control. Repeat in order of preference; default shm, udp",
	 1},
	{"link", KEY_LINK, "LINK", 0,
	 "packet, tcp: clients on this host may not map our memory; local: they must be able to "
	 "(needs port shm); verbs: RDMA clients are served by the first device (--rdma names one); "
	 "default: they may map it, where port shm is opened. A client may always take packet or "
	 "tcp",
	 1},
	{"bind", KEY_BIND, "HOST", 0,
	 "Address of network ports; default: that of --listen, or 127.0.0.1 where that is every "
	 "address",
	 1},
	{NULL, 0, NULL, 0, "How:", OPT_GX_GROUP},
	{"cores", KEY_CORES, "LIST", 0,
	 "CPUs to poll on, e.g. 0 or 0,2-3; 'any': all this process may use. Default: the first "
	 "half of "
	 "them, at most 4 (gxperf takes the last half)",
	 OPT_GX_GROUP},
	{"no-huge", OPT_GX_NO_HUGE, NULL, 0, "Do not try huge pages", OPT_GX_GROUP},
	{"busy", KEY_BUSY, NULL, 0, "Cores never sleep, even when idle", OPT_GX_GROUP},
	{"timeout", OPT_GX_TIMEOUT, "SECONDS", 0, "A peer silent for this long is lost; default 5",
	 OPT_GX_GROUP},
	{NULL, 0, NULL, 0, "Who may, and who looks:", 5},
	{"allow-uid", KEY_ALLOW_UID, "UID", 0, "A user of this host who is served, besides our own",
	 5},
	{"key", OPT_GX_KEY, "FILE", 0,
	 "Serve peers of other hosts that show this key, encrypted: a file of gxd keygen, a folder of "
	 "*.key files, or fd:N, an inherited descriptor. Repeat for more. SIGHUP reads them again",
	 5},
	{"insecure", OPT_GX_INSECURE, NULL, 0, "Allow peers of other hosts, in clear", 5},
	{"stats", KEY_STATS, "SOCKET", 0,
	 "Unix socket for counters, text or Prometheus; @NAME is abstract. Default @gxd-PORT", 5},
	{"user", KEY_USER, "NAME", 0,
	 "Serve as this user: gxd, started as root, opens what it needs and gives up root's rights",
	 5},
	{"log-level", KEY_LOG_LEVEL, "LEVEL", 0,
	 "What stderr is told: err, warn, info, debug. Default: GX_LOG of the environment, or info",
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
		argp_error(state, "no memory to serve: give --mem, e.g. --mem kv=host:2G");
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

static error_t opts_parse(int key, char *arg, struct argp_state *state)
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
		o->listen = arg;
		return 0;
	case KEY_BIND:
		o->bind = arg;
		return 0;
	case KEY_STATS:
		o->stats = arg;
		return 0;
	case KEY_LOG_LEVEL:
		opts_log_level(arg, state);
		return 0;
	case KEY_LINK:
		opt_link_take(arg, &o->link, state);
		return 0;
	case KEY_USER:
		o->user = arg;
		return 0;
	case KEY_MEM:
		opts_mem(o, arg, state);
		return 0;
	case KEY_CORES:
		opt_cores_take(arg, &o->allowed, &o->cpus, state);
		return 0;
	case KEY_PORT:
		opts_port(o, arg, state);
		return 0;
	case KEY_ALLOW_UID:
		opts_uid(o, arg, state);
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "what is '%s'? A sub-command comes first: %s", arg,
			   command_names());
		return 0;
	case ARGP_KEY_END:
		opts_end(o, state);
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

static void gxd_print_version(FILE *out, struct argp_state *state)
{
	version_print(out, "gxd");
}

/* ---- The server ---- */

static void gxd_on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
			const char *why)
{
	struct gxd *d = arg;
	struct gx_conn_info info = GX_INIT(info);
	char auth[OPT_AUTH_MAX];

	gx_conn_info(conn, &info);
	if (event == GX_CONN_EVENT_UP)
		gx_log(GX_LOG_INFO, "%s connected: %s, %s, %u lanes, %s (%s)", info.peer, info.link,
		       info.port, info.lanes, opt_auth_text(&info, auth), info.why);
	else
		gx_log(err ? GX_LOG_WARN : GX_LOG_INFO, "%s %s%s", info.peer,
		       err ? "is lost: " : "has left", err ? why : "");
	service_on_conn(d->svc, conn, event);
}

static void gxd_on_msg(void *arg, struct gx_conn *conn, const void *data, uint32_t len)
{
	struct gxd *d = arg;

	service_on_msg(d->svc, conn, data, len);
}

/* In set-up main may be in a long call: touching memory, opening a device. So end without it. */
static void gxd_die(int signo)
{
	sigset_t set;

	gx_log(GX_LOG_WARN, "%s during set-up: ending", strsignal(signo));
	signal(signo, SIG_DFL);
	sigemptyset(&set);
	sigaddset(&set, signo);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	raise(signo);
}

/* Control thread. The first signal wakes main; at the second the process ends without main. */
static void gxd_on_signal(void *arg, int signo)
{
	struct gxd *d = arg;

	if (signo == SIGHUP && d->opts.gx.nr_keys) {
		if (!gx_auth_reload(d->gx)) /* which logs what it could not take */
			gx_log(GX_LOG_INFO, "the keys were read again");
		return;
	}
	if (!atomic_load(&d->serving))
		gxd_die(signo);
	if (++d->nr_signals > 1)
		_exit(GXD_OK);
	sem_post(&d->signalled);
}

/* May clients on this host map our memory? */
static bool gxd_is_mapped(const struct gxd_opts *o)
{
	return !o->link || !strcmp(o->link, "local") || !strcmp(o->link, "verbs");
}

static int gxd_open(struct gxd *d)
{
	struct gxd_opts *o = &d->opts;
	struct gx_opts opts;
	char host[OPT_HOST_MAX];

	o->gx.cores.wait = true; /* the service's poller has work only when a client does */
	o->gx.host.local = gxd_is_mapped(o) ? GX_AUTO : GX_OFF;
	if (o->link && !strcmp(o->link, "verbs"))
		opt_ctx_verbs(&o->gx);
	o->gx.top.server = true;
	opts = opt_ctx_opts(&o->gx);
	opts.cpus = o->cpus.cpu;
	opts.nr_cores = o->cpus.nr;
	opts.ports = o->ports.nr ? o->ports.v : NULL;
	opts.nr_ports = o->ports.nr;
	opts.allow_uids = o->uids;
	opts.nr_allow_uids = o->nr_uids;
	opts.bind_host = o->bind;
	if (!o->bind && !opt_bind(o->listen, true, host))
		opts.bind_host = host;
	opts.on_conn = gxd_on_conn;
	opts.on_msg = gxd_on_msg;
	opts.arg = d;
	return gx_open(&opts, &d->gx);
}

static int gxd_mem(struct gxd *d)
{
	uint64_t start = gx_now();

	for (unsigned i = 0; i < d->opts.nr_regions; i++) {
		struct service_region *r = &d->opts.regions[i];
		int ret = gx_mem_alloc(d->gx, r->opt.kind, r->opt.device, r->opt.len, &r->mem);

		if (!ret)
			ret = gx_mem_share(r->mem, r->opt.name, GX_ACCESS_PUT | GX_ACCESS_GET);
		if (ret) {
			gx_log(GX_LOG_ERR, "--mem %s of %llu MiB: %s", r->opt.name,
			       (unsigned long long)r->opt.len >> 20, gx_error());
			return ret;
		}
		if (gx_now() - start > GXD_SILENT_NS)
			gx_log(GX_LOG_INFO, "region %s: %llu MiB are there after %.1f s",
			       r->opt.name, (unsigned long long)r->opt.len >> 20,
			       (double)(gx_now() - start) / 1e9);
	}
	return 0;
}

/* SIGHUP has keys read again. Without keys it ends gxd as the others do, unless nohup has it ignored. */
static const int gxd_signos[] = {SIGTERM, SIGINT, SIGHUP};
#define GXD_SIGNOS (sizeof(gxd_signos) / sizeof(gxd_signos[0]))

static int gxd_signals(struct gxd *d)
{
	int ret = gx_signals(d->gx, gxd_signos, GXD_SIGNOS, gxd_on_signal, d);

	if (ret)
		gx_log(GX_LOG_ERR, "%s", gx_error());
	return ret;
}

static int gxd_start(struct gxd *d)
{
	struct service_opts so = {.gx = d->gx,
				  .regions = d->opts.regions,
				  .nr_regions = d->opts.nr_regions,
				  .unpack = d->opts.gx.gpu.unpack,
				  .sms = d->opts.gx.gpu.sms};
	int ret = service_open(&so, &d->svc);

	for (unsigned i = 0; i < gx_nr_cores(d->gx) && !ret; i++)
		ret = gx_core_start(gx_core(d->gx, i));
	if (ret)
		gx_log(GX_LOG_ERR, "cannot start: %s%s",
		       gx_error()[0] ? gx_error() : strerror(-ret),
		       ret == -EAGAIN
			       ? ": no more threads may be made (ulimit -u, or a pids cgroup)"
			       : "");
	return ret;
}

static int gxd_listen(struct gxd *d)
{
	int port = gx_listen(d->gx, d->opts.listen);

	if (port < 0) {
		gx_log(GX_LOG_ERR, "%s", gx_error());
		return port;
	}
	d->port = port;
	return 0;
}

static void gxd_stats_open(struct gxd *d)
{
	char path[32];
	const char *at = d->opts.stats;

	if (!at) {
		snprintf(path, sizeof(path), "@gxd-%d", d->port);
		at = path;
	}
	if (gx_stats_listen(d->gx, at))
		gx_log(GX_LOG_WARN, "no counters at %s: %s. Going on without", at, gx_error());
	else
		gx_log(GX_LOG_INFO, "counters: gxd stats %s", at);
}

/* The host part of --listen, as a client would write it. */
static void gxd_client_host(const char *listen, char *buf, size_t room)
{
	const char *colon = strrchr(listen, ':');
	size_t len = colon ? (size_t)(colon - listen) : strlen(listen);

	if (len == 0 || (len == 7 && !strncmp(listen, "0.0.0.0", 7)) ||
	    (len == 4 && !strncmp(listen, "[::]", 4))) {
		if (gethostname(buf, room))
			snprintf(buf, room, "127.0.0.1");
		buf[room - 1] = '\0';
		return;
	}
	snprintf(buf, room, "%.*s", (int)len, listen);
}

static void gxd_describe(struct gxd *d)
{
	char *text = calloc(1, GXD_DESCRIBE_MAX), cpus[256], host[256], name[4 * OPT_NAME_MAX],
	     *line, *at;

	if (text && gx_describe(d->gx, text, GXD_DESCRIBE_MAX) >= 0)
		for (line = strtok_r(text, "\n", &at); line; line = strtok_r(NULL, "\n", &at))
			gx_log(GX_LOG_INFO, "%s", line);
	free(text);
	opt_cpus_text(&d->opts.cpus, cpus, sizeof(cpus));
	gx_log(GX_LOG_INFO, "gxd %s: pid %d, CPUs %s", gx_version(), (int)getpid(), cpus);
	gxd_client_host(d->opts.listen, host, sizeof(host));
	opt_shell(d->opts.regions[0].opt.name, name, sizeof(name));
	printf("gxperf put %s:%d --mem %s%s\n", host, d->port, name,
	       d->opts.gx.top.insecure ? " --insecure"
	       : d->opts.gx.nr_keys    ? " --key FILE"
				       : "");
	fflush(stdout);
}

static uint64_t gxd_sum(struct gxd *d, const char *name)
{
	uint64_t sum = 0, one;

	for (unsigned i = 0; i < gx_nr_cores(d->gx); i++)
		if (!gx_core_stat(gx_core(d->gx, i), name, &one))
			sum += one;
	return sum;
}

/* Messages under way, or packets since the last look: a client on a busy machine may pause between
 * two messages. A client of the local link copies straight into our memory. Its only packets here
 * ask whether we live. */
static bool gxd_busy(struct gxd *d, uint64_t *pkts_seen)
{
	uint64_t pkts = gxd_sum(d, "rx_pkts") + gxd_sum(d, "tx_pkts"), seen = *pkts_seen;

	*pkts_seen = pkts;
	return gxd_sum(d, "msgs_active_now") || pkts != seen || service_busy(d->svc);
}

static void gxd_drain(struct gxd *d)
{
	uint64_t end = gx_now() + GXD_DRAIN_NS;
	uint64_t pkts_seen = 0;
	unsigned quiet = 0;

	gx_log(GX_LOG_INFO, "draining: no new connections, at most %u s for messages under way",
	       (unsigned)(GXD_DRAIN_NS / 1000000000u));
	gx_listen_stop(d->gx);
	while (quiet < GXD_DRAIN_LOOKS && service_clients(d->svc) && gx_now() < end) {
		quiet = gxd_busy(d, &pkts_seen) ? 0 : quiet + 1;
		usleep(20000);
	}
	gx_log(GX_LOG_INFO, "%s", gx_now() < end ? "drained" : "still busy; ending all the same");
}

/* Is a NIC told of memory and connections while gxd serves? */
static bool gxd_steers(const struct gxd_opts *o)
{
	return o->gx.nic.rx != GX_NIC_RX_COPY || o->gx.nic.tx != GX_NIC_TX_COPY;
}

static int gxd_serve(struct gxd *d)
{
	int ret;

	if (d->opts.user && guard_user(d->opts.user, gxd_steers(&d->opts)))
		return GXD_FAILED;
	ret = gxd_open(d);
	if (ret) {
		gx_log(GX_LOG_ERR, "%s", gx_error());
		return ret == -EINVAL ? GXD_USAGE : GXD_FAILED;
	}
	if (gxd_signals(d) || gxd_mem(d) || gxd_start(d))
		return GXD_FAILED;
	ret = gxd_listen(d);
	if (ret)
		return ret == -EINVAL ? GXD_USAGE : GXD_FAILED;
	gxd_stats_open(d);
	if (guard_seal())
		return GXD_FAILED;
	atomic_store(&d->serving, true);
	gxd_describe(d);
	while (sem_wait(&d->signalled) && errno == EINTR)
		;
	gxd_drain(d);
	return GXD_OK;
}

/* Signals kill from now on: the control thread, which takes them, is about to end. */
static void gxd_close(struct gxd *d, const sigset_t *set)
{
	for (unsigned i = 0; i < GXD_SIGNOS; i++)
		if (sigismember(set, gxd_signos[i]))
			signal(gxd_signos[i], SIG_DFL);
	pthread_sigmask(SIG_UNBLOCK, set, NULL);
	if (d->svc)
		service_stop(d->svc);
	gx_close(d->gx);
	service_close(d->svc);
}

/* If SIGHUP is ignored at the start (nohup), it stays ignored, but with keys. Blocking it would let gx take it. */
static void gxd_signals_block(sigset_t *set, bool keys)
{
	static const int deaf[] = {SIGPIPE, SIGUSR1, SIGUSR2, SIGALRM};
	struct sigaction now;

	sigemptyset(set);
	for (unsigned i = 0; i < GXD_SIGNOS; i++)
		if (gxd_signos[i] != SIGHUP || keys || sigaction(SIGHUP, NULL, &now) ||
		    now.sa_handler != SIG_IGN)
			sigaddset(set, gxd_signos[i]);
	pthread_sigmask(SIG_BLOCK, set, NULL);
	for (unsigned i = 0; i < sizeof(deaf) / sizeof(deaf[0]); i++)
		signal(deaf[i], SIG_IGN);
}

static const struct argp_child gxd_children[] = {{&opt_gx_argp}, {0}};
static const struct argp gxd_argp = {
	.options = gxd_options,
	.parser = opts_parse,
	.children = gxd_children,
	.args_doc = "\nkeygen NAME\nstats [SOCKET]\nnic plan --dev IF --queues FIRST-LAST",
	.doc = "gxd serves memory of this host and its GPUs to gx peers, from pinned "
	       "polling cores."
	       "\v`gxd stats` prints the counters of a running gxd (default "
	       "socket @gxd-7501).\n"
	       "`gxd keygen` makes a key; `gxd keygen --help` lists its rights.\n"
	       "`gxd nic plan` prints how to set a network card up for payload straight "
	       "into memory of a device; `gxd nic --help` lists its options.\n"
	       "SIGTERM, SIGINT or SIGHUP: stop listening, wait up to 10 s for messages "
	       "under "
	       "way, end; a second one ends at once. SIGUSR1, SIGUSR2 and SIGALRM are "
	       "ignored. With --key, SIGHUP has keys read again instead. Sizes take K, M, G, T, powers of two.\n"
	       "Exit status: 0 ok, 1 failed, 2 usage.",
};

/* What shells complete, and man pages list. */
static int main_list(void)
{
	opt_table("", &gxd_argp);
	for (size_t i = 0; i < NR_COMMANDS; i++)
		opt_table(commands[i].name, commands[i].argp);
	return fflush(stdout) ? GXD_FAILED : GXD_OK;
}

int main(int argc, char **argv)
{
	static struct gxd d = {.opts = {.listen = GXD_LISTEN, .gx_to = {.ctx = &d.opts.gx}}};
	sigset_t set;
	int ret;

	argp_program_version_hook = gxd_print_version;
	argp_err_exit_status = GXD_USAGE;
	gx_log_name_set("gxd");
	flag_log();
	if (!getenv("GX_LOG"))
		gx_log_level_set(GX_LOG_INFO);
	if (argc > 1 && !strcmp(argv[1], OPT_TABLE))
		return main_list();
	for (size_t i = 0; argc > 1 && i < NR_COMMANDS; i++)
		if (!strcmp(argv[1], commands[i].name))
			return commands[i].main(argc - 1, argv + 1);
	if (opt_cpus_allowed(&d.opts.allowed)) {
		fprintf(stderr, "gxd: no CPU affinity: %s\n", strerror(errno));
		return GXD_FAILED;
	}
	opt_cpus_default(&d.opts.allowed, true, &d.opts.cpus);
	argp_parse(&gxd_argp, argc, argv, 0, NULL, &d.opts);
	/* Before any thread starts: gx's control thread takes them. */
	gxd_signals_block(&set, d.opts.gx.nr_keys);
	sem_init(&d.signalled, 0, 0);
	ret = gxd_serve(&d);
	gxd_close(&d, &set);
	return ret;
}
