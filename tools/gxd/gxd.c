// SPDX-License-Identifier: Apache-2.0
/*
 * gxd, the pinned-core server: memory that peers may put to and get from. main() parses, opens,
 * prints a command line to paste on the client, and waits for a signal. The rest runs on gx's
 * threads and on the service's worker (serve/service.c). A sub-command has a file of its own.
 */
#include "gxd/check.h"
#include "gxd/guard.h"
#include "gxd/key.h"
#include "gxd/metrics.h"
#include "gxd/nic/nic.h"
#include "gxd/opts.h"
#include "gxd/serve/notify.h"
#include "gxd/serve/service.h"
#include "gxd/watch/dump.h"
#include "gxd/watch/peers.h"
#include "gxd/watch/stats.h"
#include "gxd/watch/top.h"

#include "common/flag.h"
#include "common/help.h"
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
#include <sys/stat.h>
#include <unistd.h>

#define GXD_DRAIN_NS	 10000000000ull
#define GXD_SILENT_NS	 1000000000ull /* log a set-up that takes longer */
/* Quiet looks in a row, 20 ms apart: no packet from any client. Over the local link a busy client
 * asks whether we live every eighth of its --timeout, 5 s. */
#define GXD_DRAIN_LOOKS	 50
#define GXD_DESCRIBE_MAX 16384

struct gxd {
	struct gxd_opts opts;
	struct gx *gx;
	struct service *svc;
	int port;	 /* gxd listens there */
	sem_t signalled; /* the control thread posts, main waits */
	_Atomic bool serving;
	unsigned nr_signals;	      /* owner: control thread */
	uint64_t looked_ns;	      /* gxd_look()'s last time */
	uint64_t turns[OPT_CPUS_MAX]; /* of each core by then */
};

/* ---- Sub-commands ---- */

static const struct command {
	const char *name;
	int (*main)(int argc, char **argv);
	const struct argp *argp;
} commands[] = {
	{"check", gxd_check, &gxd_check_argp},	  {"dump", gxd_dump, &gxd_dump_argp},
	{"keygen", gxd_keygen, &gxd_keygen_argp}, {"metrics", gxd_metrics, &gxd_metrics_argp},
	{"nic", gxd_nic, &gxd_nic_argp},	  {"stats", gxd_stats, &gxd_stats_argp},
	{"top", gxd_top, &gxd_top_argp},
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
	size_t len;

	gx_conn_info(conn, &info);
	len = strlen(info.peer);
	if (why && !strncmp(why, "peer ", 5) && !strncmp(why + 5, info.peer, len))
		why += 5 + len + strspn(why + 5 + len, ": "); /* the line names it already */
	if (event == GX_CONN_EVENT_UP)
		gx_log(GX_LOG_INFO, "peer %s connected: %s, %s, %u lanes, %s (%s)", info.peer,
		       info.link, info.port, info.lanes, opt_auth_text(&info, auth), info.why);
	else
		gx_log(err ? GX_LOG_WARN : GX_LOG_INFO, "peer %s %s%s", info.peer,
		       err ? "is lost: " : "has left", err ? why : "");
	queue_on_conn(d->svc, conn, event);
}

static void gxd_on_msg(void *arg, struct gx_conn *conn, const void *data, uint32_t len)
{
	struct gxd *d = arg;

	queue_on_msg(d->svc, conn, data, len);
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

static void gxd_reload(struct gxd *d)
{
	const char *done = "no keys to read again (--key); other options are those of the start";
	int ret = 0;

	notify_say("RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(gx_now() / 1000));
	if (d->opts.gx.nr_keys) {
		ret = gx_auth_reload(d->gx); /* which logs what it could not take */
		done = "the keys were read again";
	}
	if (!ret)
		gx_log(GX_LOG_INFO, "reload: %s", done);
	notify_say("READY=1\nSTATUS=%s",
		   ret ? "not all keys could be read again: see the log" : done);
}

/* Control thread. The first signal wakes main; at the second the process ends without main. */
static void gxd_on_signal(void *arg, int signo)
{
	struct gxd *d = arg;

	if (signo == SIGUSR1) {
		gxd_dump_log(d->gx);
		return;
	}
	if (signo == SIGHUP) {
		gxd_reload(d);
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

/* The address of data ports. Return: 0; -errno: that of gx's default, loopback. */
static int gxd_bind(const struct gxd_opts *o, char host[OPT_HOST_MAX])
{
	int ret = opt_bind(o->listen, true, host);

	if (ret != -ENOENT || (!o->gx.nr_keys && !o->gx.top.insecure))
		return ret;
	ret = opt_bind_any(o->listen, host);
	if (!ret)
		gx_log(GX_LOG_INFO,
		       "data ports take the address %s, as --listen %s names none: --bind takes another",
		       host, o->listen);
	return ret;
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
	if (!o->bind && !gxd_bind(o, host))
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

static const int gxd_signos[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};
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

/* The host part of --listen, as a client would write it. @room: OPT_HOST_MAX, or more for a list. */
static void gxd_client_host(const struct gxd_opts *o, char *buf, size_t room)
{
	bool serves_far = o->gx.nr_keys || o->gx.top.insecure;

	if (opt_bind(o->listen, true, buf) != -ENOENT)
		snprintf(buf, room, "%.*s", (int)(strrchr(o->listen, ':') - o->listen), o->listen);
	else if (!serves_far || gethostname(buf, room))
		snprintf(buf, room, "127.0.0.1");
	buf[room - 1] = '\0';
}

/* " --key kv.key": as the client has its copy of the first key; of a folder or a descriptor nobody knows. */
static void gxd_client_key(const struct gxd_opts *o, char *buf, size_t room)
{
	const char *path = o->gx.nr_keys ? o->gx.keys[0] : "", *slash = strrchr(path, '/');
	char name[256];
	struct stat st;

	snprintf(buf, room, "%s",
		 o->gx.top.insecure ? " --insecure"
		 : o->gx.nr_keys    ? " --key FILE"
				    : "");
	if (o->gx.top.insecure || stat(path, &st) || !S_ISREG(st.st_mode))
		return;
	opt_shell(slash ? slash + 1 : path, name, sizeof(name));
	snprintf(buf, room, " --key %s", name);
}

static void gxd_describe(struct gxd *d)
{
	char *text = calloc(1, GXD_DESCRIBE_MAX), cpus[256], host[512], key[300],
	     name[4 * OPT_NAME_MAX], *line, *at;

	if (text && gx_describe(d->gx, text, GXD_DESCRIBE_MAX) >= 0)
		for (line = strtok_r(text, "\n", &at); line; line = strtok_r(NULL, "\n", &at))
			gx_log(GX_LOG_INFO, "%s", line);
	free(text);
	opt_cpus_text(&d->opts.cpus, cpus, sizeof(cpus));
	gx_log(GX_LOG_INFO, "gxd %s: pid %d, CPUs %s, integrity %s%s", gx_version(), (int)getpid(),
	       cpus, opt_integrity_text(d->opts.gx.packet.integrity),
	       d->opts.gx.packet.integrity ? " at least from other hosts with a key" : "");
	gxd_client_host(&d->opts, host, sizeof(host));
	opt_shell(d->opts.regions[0].opt.name, name, sizeof(name));
	gxd_client_key(&d->opts, key, sizeof(key));
	printf("gxperf put %s:%d --mem %s%s\n", host, d->port, name, key);
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
	return gxd_sum(d, "msgs_active_now") || pkts != seen || queue_busy(d->svc);
}

/* Once in a period: report to systemd how it goes, and feed its watchdog if each core has turned since. A core
 * that sleeps turns ten times a second. */
static void gxd_look(struct gxd *d)
{
	uint64_t now = gx_now(), turns;
	int stuck = -1;

	if (now - d->looked_ns < notify_period_ns())
		return;
	for (unsigned i = 0; i < gx_nr_cores(d->gx); i++) {
		if (gx_core_stat(gx_core(d->gx, i), "turns", &turns))
			continue;
		if (turns == d->turns[i])
			stuck = (int)i;
		d->turns[i] = turns;
	}
	if (stuck >= 0)
		gx_log(GX_LOG_ERR, "core %d has not turned for %.1f s: the watchdog is not fed",
		       stuck, (double)(now - d->looked_ns) / 1e9);
	d->looked_ns = now;
	notify_say("%sSTATUS=%u connections, %llu messages under way",
		   stuck < 0 ? "WATCHDOG=1\n" : "", queue_clients(d->svc),
		   (unsigned long long)gxd_sum(d, "msgs_active_now"));
}

/* Until a signal comes. */
static void gxd_wait(struct gxd *d)
{
	struct timespec end;

	while (!notify_period_ns()) {
		if (!sem_wait(&d->signalled))
			return;
	}
	do {
		gxd_look(d);
		clock_gettime(CLOCK_MONOTONIC, &end);
		end.tv_nsec += (long)(notify_period_ns() % 1000000000u);
		end.tv_sec += (time_t)(notify_period_ns() / 1000000000u) + end.tv_nsec / 1000000000;
		end.tv_nsec %= 1000000000;
	} while (sem_clockwait(&d->signalled, CLOCK_MONOTONIC, &end));
}

static void gxd_drain(struct gxd *d)
{
	uint64_t end = gx_now() + GXD_DRAIN_NS;
	uint64_t pkts_seen = 0;
	unsigned quiet = 0;

	gx_log(GX_LOG_INFO, "draining: no new connections, at most %u s for messages under way",
	       (unsigned)(GXD_DRAIN_NS / 1000000000u));
	notify_say("STOPPING=1\nSTATUS=draining: messages under way");
	gx_listen_stop(d->gx);
	while (quiet < GXD_DRAIN_LOOKS && queue_clients(d->svc) && gx_now() < end) {
		quiet = gxd_busy(d, &pkts_seen) ? 0 : quiet + 1;
		if (notify_period_ns())
			gxd_look(d);
		usleep(20000);
	}
	gx_log(GX_LOG_INFO, "%s", gx_now() < end ? "drained" : "still busy; ending all the same");
}

/* Does a NIC hear of memory and connections while gxd serves? */
static bool gxd_steers(const struct gxd_opts *o)
{
	return o->gx.nic.rx != GX_NIC_RX_COPY || o->gx.nic.tx != GX_NIC_TX_COPY;
}

/* Before the context is there, which publishes its counters. */
static void gxd_run_dir(void)
{
	const char *dir;
	int ret = peers_dir_make(&dir);

	if (ret > 0)
		gx_log(GX_LOG_INFO,
		       "%s was missing, and is made for this user alone: gxd top and gxd dump look "
		       "there (the package makes /run/gx for the group gx)",
		       dir);
	else if (ret < 0)
		gx_log(GX_LOG_INFO,
		       "gxd top and gxd dump see nothing of this gxd: %s: %s; XDG_RUNTIME_DIR or "
		       "GX_RUN_DIR may name a folder",
		       dir, strerror(-ret));
	else if (*dir && access(dir, W_OK))
		gx_log(GX_LOG_INFO,
		       "gxd top and gxd dump see nothing of this gxd: %s: %s; its group may write "
		       "there, or GX_RUN_DIR names another folder",
		       dir, strerror(errno));
}

static int gxd_serve(struct gxd *d)
{
	const char *nobody = gxd_opts_nobody(&d->opts);
	int ret;

	if (nobody) {
		gx_log(GX_LOG_ERR, "%s", nobody);
		return GXD_USAGE;
	}
	if (d->opts.user && guard_user(d->opts.user, gxd_steers(&d->opts)))
		return GXD_FAILED;
	gxd_run_dir();
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
	d->looked_ns = gx_now();
	notify_say("READY=1\nSTATUS=serving");
	gxd_wait(d);
	gxd_drain(d);
	return GXD_OK;
}

/* Signals kill from now on: the control thread, which takes them, is about to end. */
static void gxd_close(struct gxd *d, const sigset_t *set)
{
	for (unsigned i = 0; i < GXD_SIGNOS; i++)
		signal(gxd_signos[i], gxd_signos[i] == SIGHUP ? SIG_IGN : SIG_DFL);
	pthread_sigmask(SIG_UNBLOCK, set, NULL);
	if (d->svc)
		service_stop(d->svc);
	gx_close(d->gx);
	service_close(d->svc);
}

static void gxd_signals_block(sigset_t *set)
{
	static const int deaf[] = {SIGPIPE, SIGUSR2, SIGALRM};

	sigemptyset(set);
	for (unsigned i = 0; i < GXD_SIGNOS; i++)
		sigaddset(set, gxd_signos[i]);
	pthread_sigmask(SIG_BLOCK, set, NULL);
	for (unsigned i = 0; i < sizeof(deaf) / sizeof(deaf[0]); i++)
		signal(deaf[i], SIG_IGN);
}

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
	static char name[32];
	static struct gxd d;
	sigset_t set;
	int ret;

	argp_program_version_hook = gxd_print_version;
	argp_err_exit_status = GXD_USAGE;
	gx_log_name_set("gxd");
	flag_log();
	if (!getenv("GX_LOG"))
		gx_log_level_set(GX_LOG_INFO);
	if (!getenv("GX_LOG_FORMAT"))
		gx_log_format_set(GX_LOG_KEYS);
	if (argc > 1 && !strcmp(argv[1], OPT_TABLE))
		return main_list();
	help_words(&argc, argv);
	for (size_t i = 0; argc > 1 && i < NR_COMMANDS; i++)
		if (!strcmp(argv[1], commands[i].name)) {
			snprintf(name, sizeof(name), "gxd %s", commands[i].name);
			argv[1] = name; /* as usage and errors have it */
			return commands[i].main(argc - 1, argv + 1);
		}
	d.opts.commands = command_names();
	ret = gxd_opts_take(&gxd_argp, argc, argv, &d.opts);
	if (ret)
		return ret;
	notify_open();
	/* Before any thread starts: gx's control thread takes them. */
	gxd_signals_block(&set);
	sem_init(&d.signalled, 0, 0);
	ret = gxd_serve(&d);
	gxd_close(&d, &set);
	return ret;
}
