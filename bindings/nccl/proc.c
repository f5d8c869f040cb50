/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process: one context of gx for all communicators, opened by the first init and closed by the
 * last finalize. NCCL holds a lock of its own over init; the lock here is for other callers.
 */
#include "plug.h"

#include <gx/auth.h>
#include <gx/env.h>
#include <gx/log.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

struct plug plug = {.lock = PTHREAD_MUTEX_INITIALIZER};

static pthread_mutex_t life_lock = PTHREAD_MUTEX_INITIALIZER;
static struct life *lives; /* without their finalize; under life_lock */
static bool kept; /* an init of a table without finalize: the context stays. Under life_lock */

/* ---- fork ---- */

/* In the child. gx closes its own sockets there. */
static void proc_forked(void)
{
	atomic_store(&plug.forked, true);
	cpus_release();
}

static void proc_watch_fork(void)
{
	pthread_atfork(NULL, NULL, proc_forked);
}

bool proc_is_here(void)
{
	return !atomic_load_explicit(&plug.forked, memory_order_relaxed);
}

/* ---- This host ---- */

static uint64_t hash_add(uint64_t hash, const char *text)
{
	for (; *text; text++)
		hash = (hash ^ (uint8_t)*text) * 0x100000001b3ull;
	return hash;
}

static uint64_t proc_host(void)
{
	char text[128] = "";
	uint64_t hash = 0xcbf29ce484222325ull;
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

	if (f && fgets(text, sizeof(text), f))
		hash = hash_add(hash, text);
	if (f)
		fclose(f);
	if (!text[0] && !gethostname(text, sizeof(text) - 1))
		hash = hash_add(hash, text);
	return hash ? hash : 1;
}

/* Its number in the kernel: two containers of a host have a loopback each. */
static uint32_t proc_netns(void)
{
	struct stat st;

	return stat("/proc/self/ns/net", &st) ? 0 : (uint32_t)st.st_ino;
}

/* ---- Closing ---- */

/* What NCCL left: half-made connections above all. No thread of gx runs any more. */
static void proc_clear(void)
{
	while (plug.comms)
		comm_free(plug.comms);
	while (plug.listens) {
		struct listen *l = plug.listens;

		plug.listens = l->next;
		free(l);
	}
	while (plug.regs) {
		struct reg *reg = plug.regs;

		plug.regs = reg->next;
		free(reg);
	}
	while (plug.peers) {
		struct peer *p = plug.peers;

		plug.peers = p->next;
		free(p);
	}
	plug.dials = NULL;
	plug.nr_lanes = 0; /* their cores are gone */
	plug.nr_strays = 0;
	atomic_store(&plug.graves, NULL);
	offload_close();
}

static void proc_closing(bool closing)
{
	pthread_mutex_lock(&plug.lock);
	plug.closing = closing;
	pthread_mutex_unlock(&plug.lock);
}

/* What one copy within a host was worth, and who made it. */
static void proc_tell_reads(void)
{
	uint64_t all_b = 0, helped_b = 0, b;

	for (unsigned i = 0; i < plug.nr_lanes; i++) {
		if (!gx_core_stat(plug.lane[i].core, "pull_bytes", &b))
			all_b += b;
		if (!gx_core_stat(plug.lane[i].core, "pull_helped_bytes", &b))
			helped_b += b;
	}
	if (all_b)
		say_info("read %.2f MiB out of other processes, of these %.2f by NCCL's threads",
			 (double)all_b / (1 << 20), (double)helped_b / (1 << 20));
}

/* gx_close() turns the cores once more while it frees connections, and so calls lane_poll(). */
static void proc_stop(struct gx *gx)
{
	keep_stop();
	proc_tell_reads();
	proc_closing(true);
	for (unsigned i = 0; i < plug.nr_lanes; i++)
		gx_core_stop(plug.lane[i].core);
	plug.stopped = true;
	gx_close(gx);
	plug.stopped = false;
	plug.gx = NULL;
	proc_clear();
	proc_closing(false);
	cpus_release();
	gx_log_sink(NULL, NULL);
}

/* ---- Opening ---- */

static int proc_gx_open(struct gx **gx, unsigned nr_cores, const int *cpus)
{
	const struct conf *c = &plug.conf;
	const char *const key = c->key_file;
	struct gx_auth_opts auth = GX_INIT(auth); /* all ranks are servers and clients */
	struct gx_opts o = GX_INIT(o);

	o.nr_cores = nr_cores;
	o.cpus = cpus;
	o.ports = c->nr_ports ? c->ports : NULL;
	o.nr_ports = c->nr_ports;
	o.server = true;
	o.insecure = c->insecure && !c->near;
	auth.key_file = key;
	auth.key_files = &key;
	auth.nr_key_files = 1;
	o.auth = key[0] ? &auth : NULL;
	o.cores = GX_WITH(gx_core_opts, .busy = c->busy, .wait = true, .may_move = !c->nr_cpus);
	o.bind_host = c->host;
	o.peer_timeout_ns = c->timeout_ns;
	o.host = GX_WITH(gx_host_opts, .pull = c->pull, .pull_over_b = c->pull_over_b,
			 .local = c->link && strcmp(c->link, "local") != 0 ? GX_OFF : GX_AUTO);
	o.on_conn = peer_on_conn;
	o.on_msg = meet_on_msg;
	return gx_open(&o, gx);
}

static int proc_lanes_start(struct gx *gx, unsigned nr_cores)
{
	bool help = plug.conf.help == HELP_AUTO ? nr_cores < HELP_CORES : plug.conf.help;
	int ret = 0;

	plug.nr_lanes = 0;
	/* Peers' connections begin with the first core: comms take the first lanes, so what leaves
	 * and what comes would share cores while others have none. */
	plug.first_core = nr_cores / 2;
	for (unsigned i = 0; i < nr_cores; i++) {
		plug.lane[i] =
			(struct lane){.core = gx_core(gx, i), .wait_end = &plug.lane[i].waiting};
		plug.lane[i].queue = gx_core_queue(plug.lane[i].core);
		plug.lane[i].helped = help ? plug.lane[i].core : NULL;
		plug.nr_lanes = i + 1;
		ret = gx_core_poller(plug.lane[i].core, lane_poll, &plug.lane[i]);
		if (!ret)
			ret = gx_core_start(plug.lane[i].core);
		if (ret)
			break;
	}
	return ret;
}

static int proc_listen(struct gx *gx)
{
	char addr[ADDR_B];
	bool v6 = strchr(plug.conf.host, ':');
	int port;

	if (plug.conf.every) {
		port = gx_env_listen(gx, ADDRS_MAX, plug.addr, sizeof(plug.addr));
		return port < 0 ? port : 0;
	}
	snprintf(addr, sizeof(addr), v6 ? "[%.54s]:0" : "%.54s:0", plug.conf.host);
	port = gx_listen(gx, addr);
	if (port < 0)
		return port;
	snprintf(plug.addr, sizeof(plug.addr), v6 ? "[%.54s]:%d" : "%.54s:%d", plug.conf.host,
		 port);
	return 0;
}

static void proc_tell(unsigned nr_cores, const int *cpus, const char *pci)
{
	char text[LANES_MAX * 6] = "";
	size_t at = 0;

	for (unsigned i = 0; i < nr_cores && at < sizeof(text); i++)
		at += (size_t)snprintf(text + at, sizeof(text) - at, cpus[i] < 0 ? " any" : " %d",
				       cpus[i]);
	say_info("gx %s listens at %s; %u polling cores on CPU%s%s%s%s", gx_version(), plug.addr,
		 nr_cores, text, pci[0] ? ", if possible near the GPU at " : "", pci,
		 plug.conf.near		 ? "; ranks of this host alone reach it"
		 : plug.conf.key_file[0] ? "; encrypted, with a key"
					 : "; insecure: for everybody, in clear");
}

static int proc_start(void)
{
	int cpus[LANES_MAX], ret;
	char pci[PCI_B] = "";
	struct gx *gx = NULL;
	unsigned nr_cores;

	if (!conf_read(&plug.conf))
		return NCCL_INVALID_USAGE;
	if (getrandom(plug.process, sizeof(plug.process), 0) != sizeof(plug.process))
		return NCCL_SYSTEM_ERROR;
	plug.host = proc_host();
	plug.netns = proc_netns();
	gx_log_sink(say_gx, NULL);
	if (!plug.conf.nr_cpus)
		gpus_pci(pci);
	nr_cores = cpus_choose(&plug.conf, pci, NULL, cpus);
	ret = proc_gx_open(&gx, nr_cores, cpus);
	if (!ret)
		ret = proc_lanes_start(gx, nr_cores);
	if (!ret)
		ret = proc_listen(gx);
	if (ret) {
		say_warn("init: %s (see GX_NCCL_PORTS, GX_ADDR, GX_KEY_FILE and GX_NCCL_CPUS)",
			 gx_error());
		proc_stop(gx);
		return NCCL_SYSTEM_ERROR;
	}
	if (plug.conf.offload && offload_open(gx)) {
		proc_stop(gx);
		return NCCL_SYSTEM_ERROR;
	}
	plug.gx = gx;
	if (!keep_start()) {
		say_warn("init: no thread can be started: see ulimit -u");
		proc_stop(gx);
		return NCCL_SYSTEM_ERROR;
	}
	proc_tell(nr_cores, cpus, pci);
	return NCCL_OK;
}

/* ---- init, finalize ---- */

/* Under life_lock, as the next. */
static void proc_stop_unused(void)
{
	if (!lives && !kept && plug.gx)
		proc_stop(plug.gx);
}

static int life_begin(void **ctx)
{
	struct life *life = calloc(1, sizeof(*life));

	if (!life) {
		proc_stop_unused();
		return NCCL_SYSTEM_ERROR;
	}
	life->next = lives;
	lives = life;
	*ctx = life;
	return NCCL_OK;
}

int proc_open(void **ctx, nccl_log_fn log, bool has_finalize)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	int ret = NCCL_OK;

	if (ctx)
		*ctx = NULL;
	if (!proc_is_here()) {
		say_warn(
			"init: this process is a child of fork(), and its parent uses gx: start it "
			"by exec (multiprocessing's method spawn)");
		return NCCL_SYSTEM_ERROR;
	}
	pthread_once(&once, proc_watch_fork);
	pthread_mutex_lock(&life_lock);
	say_to(log);
	if (!plug.gx)
		ret = proc_start();
	if (!ret && has_finalize)
		ret = life_begin(ctx);
	else if (!ret)
		kept = true;
	pthread_mutex_unlock(&life_lock);
	return ret;
}

int proc_close(void *ctx)
{
	struct life **at = &lives, *life;

	if (!ctx || !proc_is_here())
		return NCCL_OK;
	pthread_mutex_lock(&life_lock);
	while (*at && *at != ctx)
		at = &(*at)->next;
	life = *at;
	if (life) {
		*at = life->next;
		meet_drop(life);
		free(life);
	}
	proc_stop_unused();
	pthread_mutex_unlock(&life_lock);
	return NCCL_OK;
}
