/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The context: gx_open() to gx_close(), and the order in which parts start and stop. Control path.
 */
#include "auth/auth.h"
#include "control/control.h"
#include "copy/dma.h"
#include "list/note.h"
#include "submit/submit.h"

#include "gx/log.h"
#include "gx_internal/link.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PEER_TIMEOUT_NS                                                                            \
	60000000000ull	   /* a core that such a build and a busy machine slow is not lost */
#define IDLE_SPIN_NS  2000 /* tests have more cores than CPUs: one that spins has another's CPU */
#define IDLE_PAUSE_NS 20000
#else
#define PEER_TIMEOUT_NS 5000000000ull
#define IDLE_SPIN_NS	50000
#define IDLE_PAUSE_NS	1000000
#endif

const struct gx_gpu_ops *ctx_host = &gx_gpu_host_ops;

/* ---- options ---- */

static int uids_check(const struct gx_opts *o)
{
	if (o->nr_allow_uids > 32)
		return gx_fail(-EINVAL, "%u allowed users: at most 32", o->nr_allow_uids);
	for (unsigned i = 0; i < o->nr_allow_uids; i++)
		if (gx_uid_is_nobody(o->allow_uids[i]))
			return gx_fail(-EINVAL,
				       "gx_opts.allow_uids %u: here that is each user of the host "
				       "whom this user namespace does not map: name a mapped one",
				       o->allow_uids[i]);
	return 0;
}

static int opts_check(const struct gx_opts *o)
{
	if (o->nr_cores > GX_CORES_MAX)
		return gx_fail(-EINVAL, "%u cores: at most %d", o->nr_cores, GX_CORES_MAX);
	if (o->nr_ports > GX_HELLO_PORTS)
		return gx_fail(-EINVAL, "%u ports: at most %d", o->nr_ports, GX_HELLO_PORTS);
	if (o->packet->chunk_b < 4096 || o->packet->chunk_b > 64u << 20)
		return gx_fail(-EINVAL, "chunk of %u bytes: 4K to 64M", o->packet->chunk_b);
	if (o->packet->window < 1 || o->packet->window > 1024)
		return gx_fail(-EINVAL, "window of %u chunks: 1 to 1024", o->packet->window);
	if (o->packet->quantum_b % 16 || o->packet->quantum_b > GX_WIRE_QUANTUM_MAX ||
	    (o->packet->quantum_b && o->packet->quantum_b < GX_WIRE_QUANTUM_MIN))
		return gx_fail(-EINVAL, "quantum of %u bytes: a multiple of 16 from %d to %d",
			       o->packet->quantum_b, GX_WIRE_QUANTUM_MIN, GX_WIRE_QUANTUM_MAX);
	if (o->packet->quantum_b > o->packet->chunk_b)
		return gx_fail(-EINVAL, "quantum of %u bytes is larger than a chunk of %u",
			       o->packet->quantum_b, o->packet->chunk_b);
	if (o->packet->integrity > GX_INTEGRITY_MODE_GCM)
		return gx_fail(-EINVAL, "integrity mode %d is not known", o->packet->integrity);
	if (o->host->huge > GX_OFF)
		return gx_fail(-EINVAL, "a switch is GX_AUTO, GX_ON or GX_OFF, and not %d",
			       o->host->huge);
	if (o->host->pull > GX_PULL_ALLOW)
		return gx_fail(-EINVAL, "gx_host_opts.pull %u is not known: take a GX_PULL_ value",
			       o->host->pull);
	if (!gx_unpack_is_known(o->gpu->unpack))
		return gx_fail(-EINVAL, "unpack mode %d is not known", o->gpu->unpack);
	if (o->packet->crc_by > GX_CRC_BY_COPY)
		return gx_fail(-EINVAL, "gx_packet_opts.crc_by %d is not known", o->packet->crc_by);
	if (o->packet->crc_by == GX_CRC_BY_COPY && !unpack_checks(o->gpu->unpack))
		return gx_fail(
			-EINVAL,
			"unpack mode %s checks no payload while it copies: take kernel, auto or "
			"host, or let the CPU check",
			gx_unpack_name((enum gx_unpack)o->gpu->unpack));
	if (o->gpu->bounce > GX_BOUNCE_CUDA)
		return gx_fail(-EINVAL, "bounce pool %d is not known", o->gpu->bounce);
	if (o->gpu->bounce == GX_BOUNCE_CUDA && o->gpu->unpack == GX_UNPACK_MODE_HOST)
		return gx_fail(-EINVAL,
			       "unpack host reads packets by the CPU, which cannot read a "
			       "bounce pool on a "
			       "GPU: take another gx_gpu_opts.unpack, or gx_gpu_opts.bounce host");
	if (o->gpu->bounce == GX_BOUNCE_CUDA && o->packet->crc_by == GX_CRC_BY_CPU)
		return gx_fail(
			-EINVAL,
			"the CPU cannot check payload in a bounce pool on a GPU: "
			"leave gx_packet_opts.crc_by to gx, or take gx_gpu_opts.bounce host");
	if ((unsigned)o->gpu->copy > DMA_RESIDENT && (unsigned)o->gpu->copy != DMA_KERNEL)
		return gx_fail(-EINVAL, "copy engine %d is not known", o->gpu->copy);
	if ((unsigned)o->gpu->copy == DMA_KERNEL && o->gpu->unpack > GX_UNPACK_MODE_RESIDENT)
		return gx_fail(-EINVAL,
			       "copy engine kernel launches the unpack kernel, and unpack mode %s "
			       "has none: take unpack mode auto, kernel or resident",
			       gx_unpack_name((enum gx_unpack)o->gpu->unpack));
	return 0;
}

static const struct gx_port_name default_ports[] = {{.name = "shm"}, {.name = "udp"}};

static int opts_take(struct gx *gx, const struct gx_opts *user)
{
	struct gx_opts *o = &gx->opts;
	int ret = core_struct_take("gx_opts", o, sizeof(*o), user);

	if (!ret)
		ret = core_groups_take(o, &gx->groups);
	if (ret)
		return ret;
	o->nr_cores = o->nr_cores ? o->nr_cores : 1;
	o->peer_timeout_ns = o->peer_timeout_ns ? o->peer_timeout_ns : PEER_TIMEOUT_NS;
	if (!o->ports || !o->nr_ports) {
		o->ports = default_ports;
		/* The kernel's sockets cannot write to a GPU. */
		o->nr_ports = o->gpu->bounce ? 1 : GX_ARRAY_SIZE(default_ports);
	}
	if (o->peer_timeout_ns < CORE_SILENCE_MIN_NS || o->peer_timeout_ns > CORE_SILENCE_MAX_NS)
		return gx_fail(-EINVAL, "gx_opts.peer_timeout_ns is %g s: 1 ms to 1 h",
			       (double)o->peer_timeout_ns / 1e9);
	ret = uids_check(o) ?: opts_check(o);
	for (unsigned i = 0; !ret && i < GX_LINKS; i++)
		ret = gx_links[i]->ctx->check(o);
	if (ret)
		return ret;
	for (unsigned i = 0; i < o->nr_cores; i++)
		gx->cpus[i] = o->cpus ? o->cpus[i] : -1;
	if (sched_getaffinity(0, sizeof(gx->may), &gx->may))
		CPU_ZERO(&gx->may); /* more CPUs than the set has: no core moves */
	for (unsigned i = 0; i < o->nr_allow_uids; i++)
		gx->uids[i] = o->allow_uids[i];
	o->cpus = gx->cpus;
	o->allow_uids = gx->uids;
	gx->nr_cores = o->nr_cores;
	gx->gpu_cfg =
		(struct gx_gpu_cfg){.unpack = (enum gx_unpack)o->gpu->unpack, .sms = o->gpu->sms};
	return 0;
}

/* ---- ports ---- */

_Static_assert((int)GX_CC_SWIFT == (int)GX_PORT_CC_SWIFT, "as the port counts");

static int port_open(struct gx *gx, const struct gx_port_name *named)
{
	struct gx_port_slot *s = &gx->port[gx->nr_ports];
	const struct gx_port_ops *ops;
	struct gx_port_cfg cfg = {.args = "",
				  .arena = gx->arena,
				  .pool = gx->pool,
				  .pool_gpu = gx->pool_gpu,
				  .gpus = gx->gpu,
				  .gpu_timeout_ns = gx->opts.gpu->timeout_ns,
				  .nr_queues = gx->nr_cores,
				  .cpus = gx->cpus,
				  .slots = gx->opts.packet->slots,
				  .payload_b = gx->opts.packet->quantum_b,
				  .instance = gx->instance,
				  .huge = gx->opts.host->huge != GX_OFF,
				  .bind_host =
					  gx->opts.bind_host ? gx->opts.bind_host : "127.0.0.1",
				  .server = gx->opts.server};
	size_t len;
	int ret;

	if (!named->name || named->cc > GX_CC_SWIFT || named->paths > GX_PATHS_MAX)
		return gx_fail(-EINVAL,
			       "gx_opts.ports[%u]: a port needs a name; .cc is a GX_CC_ value, and "
			       ".paths at most %d",
			       gx->nr_ports, GX_PATHS_MAX);
	len = core_port_text(named, s->name, sizeof(s->name));
	if (len >= sizeof(s->name) || strcspn(s->name, ",") >= sizeof(s->device))
		return gx_fail(-EINVAL,
			       "port '%s': its name and device have at most %d bytes, with its "
			       "arguments at most %d",
			       named->name, GX_NAME_MAX - 1, GX_OPTION_MAX - 1);
	memcpy(s->device, s->name, strcspn(s->name, ",")); /* the rest is 0 */
	if (s->name[strlen(named->name)])
		cfg.args = s->name + strlen(named->name) + 1;
	ops = gx_port_find(named->name);
	if (!ops)
		return gx_fail(-ENODEV, "port '%s': %s", named->name, gx_port_why_of(-ENODEV));
	ret = ops->open(&cfg, &s->port);
	if (ret)
		return gx_fail(ret, "port '%s': %s", s->name, gx_port_why_of(ret));
	s->port->cc = (enum gx_port_cc)named->cc;
	s->port->spread = named->paths;
	snprintf(s->match, sizeof(s->match), "%s", s->port->speaks ? s->port->speaks : s->device);
	gx->nr_ports++;
	return 0;
}

/* Reserve 4 GiB of addresses on that GPU, and allocate one page there. A second GPU that cannot
 * reach the page is then refused when it is opened. */
static int pool_open(struct gx *gx)
{
	int device = gx->opts.gpu->bounce_device;
	char why[CORE_TEXT_MAX];
	int ret;

	if (gx->opts.gpu->bounce != GX_BOUNCE_CUDA)
		return 0;
	ret = gx_gpu_open(gx, device);
	snprintf(why, sizeof(why), "%s", gx_error());
	if (!ret) {
		gx->pool_gpu = gx->gpu[device];
		ret = gx_arena_open_gpu(gx->pool_gpu, GX_ARENA_SIZE_MAX, &gx->pool);
		if (!ret)
			ret = gx_arena_map(gx->pool, -1, GX_HUGE_PAGE, &gx->pool_page);
		snprintf(why, sizeof(why), "cuda:%d: %s", device, gx_gpu_why());
	}
	return ret ? gx_fail(ret,
			     "no bounce pool in GPU memory: %.400s; gx_gpu_opts.bounce host needs no GPU",
			     why)
		   : 0;
}

static void pool_close(struct gx *gx)
{
	if (gx->pool_page)
		gx_arena_unmap(gx->pool, gx->pool_page, GX_HUGE_PAGE);
	gx_arena_close(gx->pool);
}

static int ports_open(struct gx *gx)
{
	int ret = 0;

	for (unsigned i = 0; !ret && i < gx->opts.nr_ports; i++)
		ret = port_open(gx, &gx->opts.ports[i]);
	if (gx->opts.ports == default_ports)
		gx->opts.nr_ports = 0; /* the program has named none */
	gx->opts.ports = NULL;	       /* belongs to the caller */
	for (unsigned p = 0; !ret && p < gx->nr_ports; p++)
		for (unsigned i = 0; !ret && i < gx->nr_cores; i++) {
			struct gx_port_slot *s = &gx->port[p];

			ret = s->port->ops->queue_open(s->port, i, &gx->core[i]->loop.stats,
						       &s->queue[i]);
			if (ret)
				gx_fail(ret, "port '%s': %s", s->name, gx_port_why_of(ret));
		}
	return ret;
}

/* Ports and cores are there. Each core first polls its ports, then the other links, and last the
 * user's poller: no port delays the news from a link. */
static int links_start(struct gx *gx)
{
	int ret = 0, device;

	for (unsigned l = 0; !ret && l < GX_LINKS; l++) {
		for (unsigned i = 0; !ret && i < gx->nr_cores; i++)
			ret = gx_links[l]->core->start(gx->core[i]);
		device = gx_links[l]->ctx->needs_gpu(&gx->opts);
		if (!ret && device >= 0)
			ret = gx_gpu_open(gx, device);
		if (!ret)
			ret = gx_links[l]->ctx->start(gx);
	}
	return ret;
}

/* ---- cores ---- */

static int core_open(struct gx *gx, unsigned i)
{
	/* All sleeps are shorter than the least time after which a peer sends again. */
	struct gx_idle idle = {.spin_ns = IDLE_SPIN_NS,
			       .pause_ns = IDLE_PAUSE_NS,
			       .sleep_max_ns = 50000,
			       .long_max_ns = 400000};
	struct gx_core *core =
		aligned_alloc(GX_CACHE_LINE, GX_ALIGN_UP(sizeof(*core), GX_CACHE_LINE));
	int ret;

	if (!core)
		return gx_fail(-ENOMEM, "no memory for core %u", i);
	memset(core, 0, sizeof(*core));
	gx->core[i] = core;
	core->gx = gx;
	core->index = i;
	if (gx->opts.cores->sleep_max_ns) {
		idle.sleep_max_ns = gx->opts.cores->sleep_max_ns;
		idle.long_max_ns = 0;
	}
	if (gx->opts.cores->busy)
		idle.sleep_max_ns = 0;
	core->comps = calloc(GX_COMPS_MAX, sizeof(*core->comps));
	if (!core->comps || submit_core_open(core))
		return gx_fail(-ENOMEM, "no memory for core %u", i);
	ret = gx_loop_init(&core->loop, gx->cpus[i], &idle);
	if (ret)
		return gx_fail(ret, "core %u: %s", i, strerror(-ret));
	for (unsigned l = 0; !ret && l < GX_LINKS; l++)
		ret = gx_links[l]->core->open(core);
	return ret;
}

static void core_close(struct gx_core *core)
{
	if (!core)
		return;
	for (unsigned l = 0; l < GX_LINKS; l++)
		gx_links[l]->core->close(core);
	core_fd_close(core);
	gx_loop_fini(&core->loop);
	submit_core_close(core);
	core_notes_close(core);
	free(core->comps);
	free(core);
}

/* ---- open and close ---- */

/* Yama lets a process name one that may trace it, or all; a connection that comes later would take
 * the right from the one before. Without Yama the kernel knows no such call, and nothing is lost. */
static void pulls_allow(void)
{
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

static int ctx_open(struct gx *gx)
{
	uint32_t r;
	int ret = gx_random(&r, sizeof(r));

	if (gx->opts.host->pull == GX_PULL_ALLOW)
		pulls_allow();
	if (!ret)
		ret = gx_random(&gx->mem_ids, sizeof(gx->mem_ids));
	if (!ret)
		ret = gx_random(&gx->id, sizeof(gx->id));
	if (ret)
		return gx_fail(ret, "no random numbers: %s", strerror(-ret));
	snprintf(gx->instance, sizeof(gx->instance), "gx-%d-%08x", getpid(), r);
	gx->region = calloc(GX_KEYS_MAX, sizeof(gx->region[0]));
	if (!gx->region)
		return gx_fail(-ENOMEM, "no memory for the table of regions");
	ret = gx_arena_open(GX_ARENA_SIZE_MAX, &gx->arena);
	if (ret)
		return gx_fail(ret, "cannot reserve 4 GiB of addresses (ulimit -v?): %s",
			       strerror(-ret));
	ret = ctx_host->open(&gx->gpu_cfg, &gx->host);
	if (ret)
		return gx_fail(ret, "CPU backend: %s", strerror(-ret));
	ret = gx_uring_open(GX_URING_AUTO, &gx->uring);
	if (ret)
		return gx_fail(ret, "control thread: %s", strerror(-ret));
	for (unsigned l = 0; !ret && l < GX_LINKS; l++)
		ret = gx_links[l]->ctx->open(gx);
	for (unsigned i = 0; !ret && i < gx->nr_cores; i++)
		ret = core_open(gx, i);
	if (!ret)
		ret = pool_open(gx);
	if (!ret)
		ret = ports_open(gx);
	if (!ret)
		ret = links_start(gx);
	return ret ? ret : ctl_open(gx);
}

GX_EXPORT int gx_open(const struct gx_opts *opts, struct gx **out)
{
	struct gx *gx = aligned_alloc(GX_CACHE_LINE, GX_ALIGN_UP(sizeof(*gx), GX_CACHE_LINE));
	pthread_condattr_t attr;
	int ret;

	if (!gx)
		return gx_fail(-ENOMEM, "no memory for a context");
	memset(gx, 0, sizeof(*gx));
	pthread_mutex_init(&gx->wait_lock, NULL);
	for (unsigned i = 0; i < GX_GPUS_MAX; i++)
		pthread_mutex_init(&gx->copier[i].lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&gx->wait_cond, &attr);
	pthread_condattr_destroy(&attr);
	ret = opts_take(gx, opts);
	if (!ret)
		ret = auth_open(gx);
	if (!ret)
		ret = ctx_open(gx);
	if (ret) {
		char why[CORE_TEXT_MAX];

		snprintf(why, sizeof(why), "%s", gx_error());
		gx_close(gx);
		return gx_fail(ret, "%s", why);
	}
	*out = gx;
	return 0;
}

static int close_conns(void *arg)
{
	struct gx *gx = arg;

	gx->closing = true;
	for (struct gx_conn *c = gx->conns; c; c = c->next) {
		c->user_closed = true;
		if (c->ctl)
			ctl_bye(c);
		conn_down(c, GX_REASON_CLOSED, 0, "closed");
	}
	return 0;
}

/* Also ask the queues of other threads to end. Return: 0 when they and all connections are gone. */
static int conns_left(void *arg)
{
	struct gx *gx = arg;

	return !submit_end_all(gx) || gx->conns;
}

/* Connections end on their cores, which only this thread turns by now. */
static void ctx_drain(struct gx *gx)
{
	uint64_t until = gx_later_ns(gx_now_ns() + 2000000000ull, gx->opts.gpu->timeout_ns);

	ctl_listen_stop(gx);
	gx_uring_run_wait(gx->uring, close_conns, gx);
	for (unsigned i = 0; i < gx->nr_cores; i++)
		gx_core_stop(gx->core[i]);
	while (gx_uring_run_wait(gx->uring, conns_left, gx) > 0 && gx_now_ns() < until) {
		for (unsigned i = 0; i < gx->nr_cores; i++)
			gx_loop_turn(&gx->core[i]->loop, gx_now_ns());
		nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
	}
	if (gx_uring_run_wait(gx->uring, conns_left, gx) > 0)
		gx_warn("a connection did not end; its memory is left to the process's end");
}

GX_EXPORT void gx_close(struct gx *gx)
{
	if (!gx)
		return;
	if (gx->ctl) {
		ctx_drain(gx);
		ctl_close(gx);
	}
	gx_uring_close(gx->uring);
	for (unsigned i = 0; i < gx->nr_cores; i++)
		core_close(gx->core[i]);
	mem_reap(gx, true);
	free(gx->region);
	for (unsigned l = 0; l < GX_LINKS; l++)
		gx_links[l]->ctx->close(gx);
	for (unsigned p = 0; p < gx->nr_ports; p++) {
		for (unsigned i = 0; i < gx->nr_cores; i++)
			if (gx->port[p].queue[i])
				gx->port[p].port->ops->queue_close(gx->port[p].queue[i]);
		gx->port[p].port->ops->close(gx->port[p].port);
	}
	pool_close(gx);
	for (unsigned i = 0; i < GX_GPUS_MAX; i++)
		if (gx->gpu[i]) {
			copier_close(&gx->copier[i], gx->gpu[i]);
			gx->gpu[i]->ops->close(gx->gpu[i]);
		}
	if (gx->host)
		gx->host->ops->close(gx->host);
	if (gx->arena)
		gx_arena_close(gx->arena);
	auth_close(gx);
	pthread_cond_destroy(&gx->wait_cond);
	pthread_mutex_destroy(&gx->wait_lock);
	free(gx);
}

/* ---- listening, signals ---- */

GX_EXPORT int gx_listen(struct gx *gx, const char *addr)
{
	return ctl_listen(gx, addr);
}

GX_EXPORT void gx_listen_stop(struct gx *gx)
{
	ctl_listen_stop(gx);
}

GX_EXPORT int gx_stats_listen(struct gx *gx, const char *path)
{
	return ctl_stats_listen(gx, path);
}

GX_EXPORT int gx_signals(struct gx *gx, const int signos[], unsigned n,
			 void (*fn)(void *arg, int signo), void *arg)
{
	int ret = gx_uring_signals(gx->uring, signos, n, fn, arg);

	return ret ? gx_fail(ret, "signals: %s", strerror(-ret)) : 0;
}
