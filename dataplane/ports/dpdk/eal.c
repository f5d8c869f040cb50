/* SPDX-License-Identifier: Apache-2.0 */
/*
 * EAL is DPDK's ground floor. It starts once in a process, with one range of memory that gx maps a
 * second time. The file also keeps DPDK's log, for the reason of an error. Control path, any
 * thread.
 */
#include "ports/dpdk/dpdk.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_memory.h>

#define DPDK_MEM_MB	   128
#define DPDK_MEM_SERVER_MB 256
#define DPDK_MEM_LEAST_MB  64
#define DPDK_ARGS_MAX	   32
#define DPDK_SPARE_CPUS	   3
#define EAL_FD_LOW	   512

enum eal_state { EAL_OFF, EAL_ON, EAL_FAILED };

/* owner: the holder of lock; frozen once ON */
static struct {
	pthread_mutex_t lock;
	enum eal_state state;
	bool huge, pci;
	unsigned nr_names; /* counter for unique names */
	pthread_key_t key;
} eal = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct dpdk_mem dpdk_mem;

/* The first and the last warning that DPDK logged. Usually the first is the cause, the last the
 * effect. */
static struct {
	pthread_mutex_t lock;
	char first[160], line[160];
} eal_said = {.lock = PTHREAD_MUTEX_INITIALIZER};

static ssize_t eal_log_write(void *cookie, const char *buf, size_t len)
{
	int level = rte_log_cur_msg_loglevel();
	int n = (int)len;

	while (n && (buf[n - 1] == '\n' || buf[n - 1] == ' '))
		n--;
	if (!n)
		return (ssize_t)len;
	gx_debug("dpdk: %.*s", n, buf);
	/* EAL logs this when no secondary process can join. gx has none. */
	if (level < 0 || level > (int)RTE_LOG_WARNING || strstr(buf, "register mp action"))
		return (ssize_t)len;
	pthread_mutex_lock(&eal_said.lock);
	snprintf(eal_said.line, sizeof(eal_said.line), "%.*s", n, buf);
	if (!*eal_said.first)
		memcpy(eal_said.first, eal_said.line, sizeof(eal_said.first));
	pthread_mutex_unlock(&eal_said.lock);
	return (ssize_t)len;
}

void dpdk_said_clear(void)
{
	pthread_mutex_lock(&eal_said.lock);
	*eal_said.first = *eal_said.line = 0;
	pthread_mutex_unlock(&eal_said.lock);
}

bool dpdk_has_said(void)
{
	bool said;

	pthread_mutex_lock(&eal_said.lock);
	said = *eal_said.line;
	pthread_mutex_unlock(&eal_said.lock);
	return said;
}

/* Reason: "NAME WHAT: errno in words (first warning of DPDK .. last warning)" */
int dpdk_why(int err, const char *what, const char *name)
{
	bool more;

	pthread_mutex_lock(&eal_said.lock);
	more = strcmp(eal_said.first, eal_said.line) != 0;
	gx_port_why_set("port dpdk: %s %s: %s%s%s%s%s%s", name, what, strerror(-err),
			*eal_said.line ? " (" : "", more ? eal_said.first : "", more ? " .. " : "",
			eal_said.line, *eal_said.line ? ")" : "");
	pthread_mutex_unlock(&eal_said.lock);
	return err;
}

static void eal_thread_leave(void *unused)
{
	rte_thread_unregister();
}

/* [core] Mempools give a cache to threads with an lcore number. A thread without one is slower. */
void dpdk_thread_enter(void)
{
	if (rte_lcore_id() == LCORE_ID_ANY && !rte_thread_register())
		pthread_setspecific(eal.key, &eal);
}

/* Arguments and result of rte_eal_init(). */
struct eal_start {
	char *argv[DPDK_ARGS_MAX];
	int argc;
	char text[DPDK_ARGS_MAX][64];
	char lcores[2048];
	int ret;
};

static void eal_arg(struct eal_start *s, const char *a)
{
	assert(s->argc < DPDK_ARGS_MAX - 1);
	snprintf(s->text[s->argc], sizeof(s->text[0]), "%s", a);
	s->argv[s->argc] = s->text[s->argc];
	s->argc++;
}

/*
 * EAL puts its own threads on the CPUs that lcore 0 does not have, or on all CPUs if lcore 0 has
 * all. So lcore 0 gets the polled CPUs if enough others remain. Otherwise lcore 0 gets all: on a
 * small machine another process may poll the rest.
 */
static void eal_arg_lcores(struct eal_start *s, const struct gx_port_cfg *cfg)
{
	cpu_set_t all, polled;
	size_t at = 0;

	CPU_ZERO(&polled);
	if (sched_getaffinity(0, sizeof(all), &all)) {
		CPU_ZERO(&all);
		CPU_SET(0, &all);
	}
	for (unsigned i = 0; i < cfg->nr_queues; i++)
		if (cfg->cpus && cfg->cpus[i] >= 0 && CPU_ISSET(cfg->cpus[i], &all))
			CPU_SET(cfg->cpus[i], &polled);
	if (!CPU_COUNT(&polled) || CPU_COUNT(&all) - CPU_COUNT(&polled) < DPDK_SPARE_CPUS)
		polled = all;
	at += (size_t)snprintf(s->lcores, sizeof(s->lcores), "0@(");
	for (int i = 0; i < CPU_SETSIZE && at + 8 < sizeof(s->lcores); i++)
		if (CPU_ISSET(i, &polled))
			at += (size_t)snprintf(s->lcores + at, sizeof(s->lcores) - at, "%s%d",
					       s->lcores[at - 1] == '(' ? "" : ",", i);
	snprintf(s->lcores + at, sizeof(s->lcores) - at, ")");
	eal_arg(s, "--lcores");
	s->argv[s->argc++] = s->lcores;
}

static void eal_args(struct eal_start *s, const struct gx_port_cfg *cfg, const struct dpdk_args *a,
		     bool huge, uint32_t mem_mb)
{
	char buf[64];

	eal_arg(s, "gx");
	eal_arg_lcores(s, cfg);
	snprintf(buf, sizeof(buf), "--file-prefix=gx%d", (int)getpid());
	eal_arg(s, buf);
	eal_arg(s, "--no-telemetry");
	eal_arg(s, "--log-level=5"); /* warnings and worse */
	eal_arg(s, "--single-file-segments");
	snprintf(buf, sizeof(buf), "%u", mem_mb);
	eal_arg(s, "-m");
	eal_arg(s, buf);
	if (huge) {
		eal_arg(s, "--in-memory");
	} else {
		eal_arg(s, "--no-huge");
		eal_arg(s, "--no-shconf");
	}
	if (a->pci) {
		eal_arg(s, "-a");
		eal_arg(s, a->name);
	} else {
		eal_arg(s, "--no-pci");
		eal_arg(s, "--iova-mode=va");
	}
}

/*
 * memif (22.11) closes the descriptor of EAL's memory after it made a zero-copy connection, as if
 * it owned it. The next connection would send the file that got this number since. So gx occupies
 * all low numbers while EAL starts. EAL's descriptor gets a high number, which no other file gets
 * soon, and gx puts it back there.
 */
static int eal_fd_fill(int fds[EAL_FD_LOW])
{
	struct rlimit lim;
	int n = 0, max = EAL_FD_LOW;

	if (!getrlimit(RLIMIT_NOFILE, &lim) && lim.rlim_cur < 2 * EAL_FD_LOW)
		max = (int)lim.rlim_cur / 2;
	while (n < EAL_FD_LOW) {
		fds[n] = open("/dev/null", O_RDONLY | O_CLOEXEC);
		if (fds[n] < 0)
			break;
		if (fds[n++] >= max)
			break;
	}
	return n;
}

/* Return: DPDK's descriptor names EAL's memory (again). */
bool dpdk_fd_restore(void)
{
	struct stat is, want;

	if (fstat(dpdk_mem.fd_kept, &want))
		return false;
	if (fstat(dpdk_mem.fd, &is))
		return dup3(dpdk_mem.fd_kept, dpdk_mem.fd, O_CLOEXEC) == dpdk_mem.fd;
	return is.st_dev == want.st_dev && is.st_ino == want.st_ino;
}

/* A thread of its own, because rte_eal_init() pins its caller. */
static void *eal_start_thread(void *arg)
{
	static const cookie_io_functions_t io = {.write = eal_log_write};
	struct eal_start *s = arg;
	FILE *log = fopencookie(NULL, "w", io);
	int low[EAL_FD_LOW], nr_low = eal_fd_fill(low);

	if (log) {
		setvbuf(log, NULL, _IOLBF, 512);
		rte_openlog_stream(log);
	}
	s->ret = rte_eal_init(s->argc, s->argv) < 0 ? -rte_errno : 0;
	while (nr_low)
		close(low[--nr_low]);
	return NULL;
}

/* DPDK wants a folder for its files, even if it writes none. */
static int eal_start_run(struct eal_start *s)
{
	const char *was = getenv("RUNTIME_DIRECTORY");
	char *old = was ? strdup(was) : NULL;
	struct dpdk_dir dir;
	pthread_t thread;
	int ret = dpdk_dir_open("gx-eal", &dir);

	if (ret)
		goto out;
	setenv("RUNTIME_DIRECTORY", dir.path, 1);
	ret = -pthread_create(&thread, NULL, eal_start_thread, s);
	if (!ret) {
		pthread_join(thread, NULL);
		ret = s->ret;
	}
	if (old)
		setenv("RUNTIME_DIRECTORY", old, 1);
	else
		unsetenv("RUNTIME_DIRECTORY");
	dpdk_dir_close(&dir);
	if (ret)
		dpdk_why(ret, "cannot start", "EAL");
out:
	free(old);
	return ret;
}

/* Result of rte_memseg_contig_walk(). gx needs one range, from the start of one file. */
struct eal_range {
	unsigned nr;
	char *base;
	size_t len;
	int fd;
};

static int eal_range_add(const struct rte_memseg_list *msl, const struct rte_memseg *ms, size_t len,
			 void *arg)
{
	struct eal_range *r = arg;
	size_t off = 0;

	if (r->nr++)
		return 0;
	r->base = ms->addr;
	r->len = len;
	r->fd = rte_memseg_get_fd_thread_unsafe(ms);
	if (r->fd >= 0 && (rte_memseg_get_fd_offset_thread_unsafe(ms, &off) || off))
		r->fd = -1;
	return 0;
}

/* memif's zero copy and the arena need EAL's memory to stay one range. So EAL may not grow. */
static int eal_grow_deny(int socket, size_t limit, size_t len)
{
	return -1;
}

static int eal_memory(void)
{
	struct eal_range r = {.fd = -1};

	rte_memseg_contig_walk(eal_range_add, &r);
	if (r.nr != 1 || r.fd < 0) {
		gx_port_why_set("port dpdk: EAL's memory is %u ranges, not one that can be shared",
				r.nr);
		return -ENOMEM;
	}
	for (unsigned i = 0; i < rte_socket_count(); i++)
		rte_mem_alloc_validator_register("gx", eal_grow_deny, rte_socket_id_by_idx(i), 0);
	dpdk_mem.base = r.base;
	dpdk_mem.len = r.len;
	dpdk_mem.fd = r.fd;
	dpdk_mem.fd_kept = fcntl(r.fd, F_DUPFD_CLOEXEC, 0);
	return dpdk_mem.fd_kept < 0 ? -errno : 0;
}

/* Are there huge pages, if the caller wants them? Logs if not. */
static bool eal_huge(const struct gx_port_cfg *cfg, uint32_t *mem_mb)
{
	uint32_t least_mb = GX_MIN(*mem_mb, (uint32_t)DPDK_MEM_LEAST_MB);
	uint32_t mb = cfg->huge ? GX_MIN(*mem_mb, dpdk_huge_free_mb()) : 0;

	for (; mb && mb >= least_mb; mb /= 2) {
		if (!gx_huge_there(GX_ALIGN_UP((size_t)mb << 20, GX_HUGE_PAGE)))
			continue;
		*mem_mb = mb;
		return true;
	}
	if (cfg->huge)
		gx_info("port dpdk: %u MiB on normal pages, slower: %s", *mem_mb,
			gx_huge_why((size_t)least_mb << 20));
	return false;
}

static int eal_start_locked(const struct gx_port_cfg *cfg, const struct dpdk_args *a)
{
	uint32_t mem_mb = a->mem_mb ? a->mem_mb : cfg->server ? DPDK_MEM_SERVER_MB : DPDK_MEM_MB;
	static struct eal_start s; /* DPDK keeps pointers into its arguments */
	int ret = pthread_key_create(&eal.key, eal_thread_leave);

	if (ret)
		return -ret;
	eal.huge = eal_huge(cfg, &mem_mb);
	eal.pci = a->pci;
	eal_args(&s, cfg, a, eal.huge, mem_mb);
	dpdk_said_clear();
	ret = eal_start_run(&s);
	if (!ret)
		ret = eal_memory();
	eal.state = ret ? EAL_FAILED : EAL_ON;
	return ret;
}

int dpdk_eal_start(const struct gx_port_cfg *cfg, const struct dpdk_args *a)
{
	int ret = 0;

	pthread_mutex_lock(&eal.lock);
	if (eal.state == EAL_OFF) {
		ret = eal_start_locked(cfg, a);
	} else if (eal.state == EAL_FAILED) {
		gx_port_why_set(
			"port dpdk: EAL did not start before, and starts once in a process");
		ret = -EIO;
	} else if (a->pci && !eal.pci) {
		gx_port_why_set("port dpdk: EAL runs without PCI; open %s as the first dpdk port",
				a->name);
		ret = -ENODEV;
	}
	pthread_mutex_unlock(&eal.lock);
	return ret;
}

unsigned dpdk_unique(void)
{
	unsigned n;

	pthread_mutex_lock(&eal.lock);
	n = eal.nr_names++;
	pthread_mutex_unlock(&eal.lock);
	return n;
}
