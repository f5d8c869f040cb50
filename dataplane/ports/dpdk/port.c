/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any DPDK ethdev as a port; all of gx that knows DPDK is here. memif: one device a peer, made when
 * the peer comes; the side that listens (gxd, whom puts go to) is memif's zero-copy client, so that
 * a sender's one copy lands in its bounce buffers. Other devices are opened with the port and
 * shared by all peers: Ethernet, IPv4 and UDP around the gx header, UDP port + 1 is the control
 * half. Received packets wait in two short FIFOs, as both halves come out of one device queue.
 * EAL's memory is mapped into the arena a second time, for GPUs. With a bounce pool in the memory
 * of a GPU, data packets come in at a queue of their own, which the device cuts: headers to host
 * memory, payload to that pool.
 */
#include "ports/dpdk/net.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <rte_bus_vdev.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include <rte_interrupts.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_memory.h>

#include "gx_internal/ring.h"

#define DPDK_FIFO	   256 /* received packets of one half that wait */
#define DPDK_RX_BURST	   32
#define DPDK_DESCS	   1024 /* of a NIC's ring */
#define DPDK_CACHE	   256	/* of a mempool */
#define DPDK_TX_SPARE	   (4 * GX_BURST_MAX + 2 * DPDK_CACHE)
#define DPDK_SLOTS	   1024 /* bounce buffers a queue */
#define DPDK_SLOTS_MEMIF   896	/* a peer: with control packets they fit a ring of 1,024 */
#define DPDK_MEMIF_MARGIN  128
#define DPDK_MEM_MB	   128
#define DPDK_MEM_SERVER_MB 256
#define DPDK_MEM_LEAST_MB  64
#define DPDK_BYE_NS	   20000000 /* how long a peer's goodbye is waited for */
#define DPDK_ARGS_MAX	   32
#define DPDK_UP_NS	   4000000000 /* how long memif may take to connect; below a peer's time-out */
#define DPDK_SPARE_CPUS	   3
#define DPDK_LINK_NS	   9000000000 /* how long a NIC's link is waited for */
#define DPDK_HAND	   256	      /* packets on the way from one core to another */
#define DPDK_FRAME_MIN	   60
#define DPDK_POOL_ALIGN	   128 /* of payload in a pool in GPU memory */
#define EAL_FD_LOW	   512

_Static_assert(sizeof(((struct gx_rx *)0)->hdr) >= DPDK_HDR_B, "a header fits");
_Static_assert(RTE_MAX_ETHPORTS <= DPDK_SOCKETS_MAX, "sized by it");

/* How a driver treats what it is given to send. */
enum dpdk_tx_way {
	DPDK_TX_COPY, /* keeps the mbuf after tx_burst, or reads one segment only: copy the payload
		       */
	DPDK_TX_GATHER, /* copies all segments before tx_burst returns: point at the payload */
};

/* An ethdev queue. owner: core while attached, else ctl */
struct dpdk_dev {
	char name[64];
	uint16_t id, qid; /* DPDK's port, queue in it */
	bool made, started;
	bool up;	 /* memif: the link has been seen up */
	bool quiet;	 /* memif: the peer is closing; the device must not be polled any more */
	bool bye;	 /* memif: we said so ourselves */
	bool gated;	 /* memif: bursts go through the gate. Frozen while attached */
	bool risen;	 /* memif: the gate's thread has seen it up; under gate.lock */
	_Atomic bool in; /* gated: somebody is in a burst */
	bool verify;	 /* packets come over a wire: check sums */
	bool cut; /* receives data packets alone: header in host memory, payload in the pool */
	enum dpdk_tx_way way;
	uint32_t peer;	    /* memif: whose it is; else GX_PEER_ANY */
	uint32_t frame_max; /* largest frame to send */
	struct rte_mempool *rx_pool, *tx_pool;
	struct rte_mbuf *head[GX_BURST_MAX], *body[GX_BURST_MAX]; /* GATHER: never given away */
	struct rte_mbuf *late[GX_BURST_MAX]; /* taken, but the driver had no room yet */
	unsigned nr_late, late_at;
};

/* owner: ctl, frozen while attached */
struct dpdk_peer {
	bool connected, attached;
	struct dpdk_encap encap[2]; /* by half */
	struct dpdk_dev *dev;
	int pool; /* its device that payload goes to; -1: host memory */
};

/* A packet that waits to be taken. */
struct dpdk_ent {
	struct rte_mbuf *m;
	uint32_t peer;
	uint32_t len; /* payload */
	uint32_t seq; /* order of arrival */
};

struct dpdk_fifo {
	uint32_t head, tail; /* free running */
	struct dpdk_ent ent[DPDK_FIFO];
};

/* owner: core, but for what ctl does to peers that are not attached */
struct dpdk_queue {
	struct gx_port_queue q;
	struct dpdk_port *port;
	unsigned index;
	uint16_t udp_port;
	int fault; /* sticky */
	uint32_t seq;
	ptrdiff_t alias;			 /* add to EAL's address: the arena's */
	struct dpdk_dev *devs[RTE_MAX_ETHPORTS]; /* to poll */
	unsigned nr_devs, rover;
	struct dpdk_fifo fifo[2]; /* by half */
	struct gx_ring **from;	  /* [nr_queues] packets for us that other queues got; NULL: none */
	struct dpdk_dev dev;	  /* the shared one */
	struct dpdk_dev cut;	  /* its other receive queue, with a pool in GPU memory */
	struct dpdk_peer *peer[GX_PEERS_MAX];
	uint8_t ctl_buf[GX_BURST_MAX][GX_CTL_PAYLOAD_MAX];
};

/* A pool in GPU memory, for data packets of all queues. owner: ctl; frozen after open */
struct dpdk_pool {
	struct gx_arena *arena; /* NULL: payload goes to host memory, and nothing here is used */
	struct gx_gpu *gpu;
	void *mem; /* of the GPU: NULL: none yet */
	size_t len;
	bool known;			  /* EAL knows that memory */
	struct rte_device *dev;		  /* that has it mapped for DMA; NULL: none */
	struct rte_mempool *head, *slots; /* mbufs of headers, and of payload in that memory */
};

/* owner: ctl; frozen after open */
struct dpdk_port {
	struct gx_port p;
	struct dpdk_pool pool;
	struct dpdk_args args;
	struct dpdk_net net;
	struct gx_arena *arena;
	void *alias; /* EAL's memory in the arena; NULL without an arena */
	bool server;
	bool zero_copy; /* memif client */
	bool hand_over; /* the device spreads packets over its queues as it likes */
	bool arp;	/* nobody else answers who has our address */
	unsigned nr_queues;
	uint32_t slots, room, ring; /* room: of an mbuf; ring: of memif, entries */
	uint32_t frame_max;
	struct dpdk_addr sock;	/* memif: our socket, and the last interface number on it */
	struct dpdk_dev holder; /* memif: keeps the socket open */
	struct dpdk_dir dir;
	int sockets[DPDK_SOCKETS_MAX];
	unsigned nr_sockets;
	bool shared_started;
	uint16_t shared_id;
	struct rte_device *pci;
	struct dpdk_queue *queue[]; /* [nr_queues] */
};

/* ---- EAL: once in a process ---- */

enum eal_state { EAL_OFF, EAL_ON, EAL_FAILED };

/* owner: whoever holds lock; frozen once ON */
static struct {
	pthread_mutex_t lock;
	enum eal_state state;
	bool huge, pci;
	char *base; /* its memory */
	size_t len;
	int fd;			 /* of it, DPDK's */
	int fd_kept;		 /* of it, ours */
	pthread_mutex_t connect; /* one memif makes its connection at a time */
	unsigned nr_names;	 /* counter for unique names */
	pthread_key_t key;
} eal = {.lock = PTHREAD_MUTEX_INITIALIZER, .connect = PTHREAD_MUTEX_INITIALIZER};

/* The first and the last warning that DPDK logged: mostly what failed, and what failed with it. */
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
	/* Said whenever other processes of DPDK's cannot join, which none is to. */
	if (level < 0 || level > (int)RTE_LOG_WARNING || strstr(buf, "register mp action"))
		return (ssize_t)len;
	pthread_mutex_lock(&eal_said.lock);
	snprintf(eal_said.line, sizeof(eal_said.line), "%.*s", n, buf);
	if (!*eal_said.first)
		memcpy(eal_said.first, eal_said.line, sizeof(eal_said.first));
	pthread_mutex_unlock(&eal_said.lock);
	return (ssize_t)len;
}

static void eal_said_clear(void)
{
	pthread_mutex_lock(&eal_said.lock);
	*eal_said.first = *eal_said.line = 0;
	pthread_mutex_unlock(&eal_said.lock);
}

/* "WHAT: errno in words (what DPDK said first .. last)" */
static int dpdk_why(int err, const char *what, const char *name)
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

/* [core] A thread needs an lcore number for mempools to give it a cache. Without one it is slower,
 * not wrong. */
static void eal_thread_enter(void)
{
	if (rte_lcore_id() == LCORE_ID_ANY && !rte_thread_register())
		pthread_setspecific(eal.key, &eal);
}

static inline void dpdk_enter(void)
{
	static _Thread_local bool entered;

	if (gx_likely(entered))
		return;
	entered = true;
	eal_thread_enter();
}

/* What rte_eal_init() is called with. */
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
 * EAL's own threads run on what lcore 0 does not have, or on all when that is all. So lcore 0 gets
 * the polled CPUs, if enough others remain: on a small machine those may be polled by somebody
 * else.
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
 * memif (22.11) closes the descriptor of EAL's memory when a zero-copy connection is made, as if it
 * were its own; the next connection would send whatever has got that number by then. So EAL is
 * started while all low numbers are taken: its descriptor gets a high one, that nobody else is
 * given, and we put it back.
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

/* Return: does DPDK's number name EAL's memory (again)? */
static bool eal_fd_restore(void)
{
	struct stat is, want;

	if (fstat(eal.fd_kept, &want))
		return false;
	if (fstat(eal.fd, &is))
		return dup3(eal.fd_kept, eal.fd, O_CLOEXEC) == eal.fd;
	return is.st_dev == want.st_dev && is.st_ino == want.st_ino;
}

/* On a thread of its own: rte_eal_init() pins whoever calls it. */
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

/* DPDK wants a folder for its files even where it makes none. */
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

/* What rte_memseg_contig_walk() found: there must be one range, from the start of one file. */
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

/* memif's zero copy and the arena both need EAL's memory to stay the one range that it is at the
 * start. */
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
	eal.base = r.base;
	eal.len = r.len;
	eal.fd = r.fd;
	eal.fd_kept = fcntl(r.fd, F_DUPFD_CLOEXEC, 0);
	return eal.fd_kept < 0 ? -errno : 0;
}

/* Huge pages if wanted and there; says so when not. */
static bool eal_huge(const struct gx_port_cfg *cfg, uint32_t *mem_mb)
{
	uint32_t free_mb = cfg->huge ? dpdk_huge_free_mb() : 0;

	if (free_mb >= GX_MIN(*mem_mb, (uint32_t)DPDK_MEM_LEAST_MB)) {
		*mem_mb = GX_MIN(*mem_mb, free_mb);
		return true;
	}
	if (cfg->huge)
		gx_info("port dpdk: %u MiB of free 2 MiB huge pages, %u wanted: on normal pages, "
			"slower; sysctl -w vm.nr_hugepages=%u",
			free_mb, *mem_mb, *mem_mb / 2);
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
	eal_said_clear();
	ret = eal_start_run(&s);
	if (!ret)
		ret = eal_memory();
	eal.state = ret ? EAL_FAILED : EAL_ON;
	return ret;
}

static int eal_start(const struct gx_port_cfg *cfg, const struct dpdk_args *a)
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

static unsigned eal_unique(void)
{
	unsigned n;

	pthread_mutex_lock(&eal.lock);
	n = eal.nr_names++;
	pthread_mutex_unlock(&eal.lock);
	return n;
}

/* ---- Devices (control path) ---- */

static int dev_pool_open(const char *what, uint32_t nr, uint32_t room, struct rte_mempool **out)
{
	uint32_t cache = nr > 4 * DPDK_CACHE ? DPDK_CACHE : 0;
	char name[32];

	snprintf(name, sizeof(name), "gx%u_%s", eal_unique(), what);
	*out = rte_pktmbuf_pool_create(name, nr, cache, 0, (uint16_t)(room + RTE_PKTMBUF_HEADROOM),
				       SOCKET_ID_ANY);
	if (*out)
		return 0;
	gx_port_why_set("port dpdk: no memory for %u buffers of %u bytes: %s; DPDK has %zu MiB, "
			"mem= makes it more",
			nr, room, strerror(rte_errno), eal.len >> 20);
	return -ENOMEM;
}

static void dev_gather_init(struct dpdk_dev *d)
{
	if (rte_pktmbuf_alloc_bulk(d->tx_pool, d->head, GX_BURST_MAX) ||
	    rte_pktmbuf_alloc_bulk(d->tx_pool, d->body, GX_BURST_MAX)) {
		d->way = DPDK_TX_COPY;
		return;
	}
	for (unsigned i = 0; i < GX_BURST_MAX; i++) {
		d->head[i]->data_len = DPDK_HEAD_B;
		d->body[i]->data_off = 0;
	}
}

static int dev_pools_open(struct dpdk_dev *d, uint32_t nr_rx, uint32_t nr_tx, uint32_t room)
{
	int ret = dev_pool_open("rx", nr_rx + DPDK_FIFO + 2 * DPDK_CACHE, room, &d->rx_pool);

	if (ret)
		return ret;
	return dev_pool_open("tx", nr_tx + DPDK_TX_SPARE, room, &d->tx_pool);
}

/* A receive queue that is cut at DPDK_HEAD_B. */
static int cut_setup(const struct dpdk_pool *pool, uint16_t id, uint16_t qid, uint16_t nr,
		     const struct rte_eth_dev_info *info)
{
	struct rte_eth_rxconf conf = info->default_rxconf;
	union rte_eth_rxseg seg[] = {
		{.split = {.mp = pool->head, .length = DPDK_HEAD_B}},
		{.split = {.mp = pool->slots}}, /* length 0: what a slot holds */
	};

	conf.offloads |= RTE_ETH_RX_OFFLOAD_BUFFER_SPLIT |
			 (info->rx_queue_offload_capa & RTE_ETH_RX_OFFLOAD_SCATTER);
	conf.rx_seg = seg;
	conf.rx_nseg = GX_ARRAY_SIZE(seg);
	return rte_eth_rx_queue_setup(id, qid, nr, (unsigned)rte_eth_dev_socket_id(id), &conf,
				      NULL);
}

/* Everything but the start. @pool: of the cut queues, which come after the others; NULL: none. */
static int dev_configure(uint16_t id, struct dpdk_dev *const devs[], unsigned nr,
			 const struct rte_eth_dev_info *info, uint32_t mtu,
			 const struct dpdk_pool *pool)
{
	unsigned nr_cut = pool ? nr : 0;
	uint16_t nr_rx = DPDK_DESCS, nr_tx = DPDK_DESCS;
	struct rte_eth_conf conf = {.rxmode.mtu = mtu};
	int ret;

	/* Copied packets are one segment: a NIC's driver then has faster ways to send. */
	if (devs[0]->way == DPDK_TX_GATHER)
		conf.txmode.offloads = info->tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
	conf.rxmode.offloads = info->rx_offload_capa & RTE_ETH_RX_OFFLOAD_IPV4_CKSUM;
	ret = rte_eth_dev_configure(id, (uint16_t)(nr + nr_cut), (uint16_t)nr, &conf);
	if (!ret)
		ret = rte_eth_dev_adjust_nb_rx_tx_desc(id, &nr_rx, &nr_tx);
	for (uint16_t i = 0; i < nr && !ret; i++) {
		ret = rte_eth_rx_queue_setup(id, i, nr_rx, (unsigned)rte_eth_dev_socket_id(id),
					     NULL, devs[i]->rx_pool);
		if (!ret)
			ret = rte_eth_tx_queue_setup(id, i, nr_tx,
						     (unsigned)rte_eth_dev_socket_id(id), NULL);
	}
	for (unsigned i = 0; i < nr_cut && !ret; i++)
		ret = cut_setup(pool, id, (uint16_t)(nr + i), nr_rx, info);
	return ret;
}

/* Drivers that have copied every segment when tx_burst returns. */
static bool dev_is_copying(const char *driver)
{
	static const char *const names[] = {"net_memif", "net_af_packet", "net_tap", "net_pcap"};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(names); i++)
		if (!strncmp(driver, names[i], strlen(names[i])))
			return true;
	return false;
}

static enum dpdk_tx_way dev_way(const struct dpdk_args *a, const struct rte_eth_dev_info *info)
{
	return dev_is_copying(a->name) && (info->tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS)
		       ? DPDK_TX_GATHER
		       : DPDK_TX_COPY;
}

static void dev_pools_close(struct dpdk_dev *d)
{
	rte_mempool_free(d->rx_pool);
	rte_mempool_free(d->tx_pool);
	d->rx_pool = d->tx_pool = NULL;
}

/* ---- The gate: memif's handlers, or cores in its bursts, never both ---- */

/*
 * memif's handlers run on DPDK's interrupt thread and take no lock. When a peer dies they unmap its
 * rings, under a core that may be in a burst there. So that thread is held inside a callback of
 * ours, and let go for moments in which no core is in a burst of a memif device: to bring a device
 * up, to make or remove one, and each second for all else. That a peer died, gx hears from its
 * control connection, not from memif; until then its rings stay mapped, and a burst there finds
 * nothing.
 */
#define GATE_UP_NS   200000	/* between two moments while a device is coming up */
#define GATE_IDLE_NS 1000000000 /* else */
#define GATE_NAP_NS  20000	/* between two looks at a core that is in a burst */

static struct {
	pthread_mutex_t lock; /* one moment at a time; and what follows */
	pthread_cond_t ask;   /* the gate's thread is to look at its devices again */
	pthread_t thread;
	bool running;
	struct rte_intr_handle *intr;		/* of an eventfd */
	struct dpdk_dev *dev[RTE_MAX_ETHPORTS]; /* that cores may burst; NULL: free */
	/* What the held thread does next, of those waiting for it one at a time. */
	int (*fn)(void *arg); /* NULL: go, and come back */
	void *arg;
	int ret;
	sem_t held, go;
	_Atomic bool shut; /* for cores; written under lock */
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* [core] May @d be entered? In this order, and both seq_cst: gate_shut() writes the one and then
 * reads the other. */
static inline bool gate_enter(struct dpdk_dev *d)
{
	if (!d->gated)
		return true;
	atomic_exchange_explicit(&d->in, true, memory_order_seq_cst);
	if (gx_likely(!atomic_load_explicit(&gate.shut, memory_order_seq_cst)))
		return true;
	atomic_store_explicit(&d->in, false, memory_order_release);
	return false;
}

static inline void gate_leave(struct dpdk_dev *d)
{
	/* Pairs with the acquire in gate_shut(): the burst has ended. */
	if (d->gated)
		atomic_store_explicit(&d->in, false, memory_order_release);
}

static uint16_t dev_rx(struct dpdk_dev *d, struct rte_mbuf *m[], uint16_t n)
{
	if (!gate_enter(d))
		return 0;
	n = rte_eth_rx_burst(d->id, d->qid, m, n);
	gate_leave(d);
	return n;
}

static uint16_t dev_tx(struct dpdk_dev *d, struct rte_mbuf *m[], uint16_t n)
{
	if (!gate_enter(d))
		return 0;
	n = rte_eth_tx_burst(d->id, d->qid, m, n);
	gate_leave(d);
	return n;
}

/* Under gate.lock. A burst is short; its core may have lost its CPU in it. */
static void gate_shut(void)
{
	static const struct timespec nap = {.tv_nsec = GATE_NAP_NS};

	atomic_store_explicit(&gate.shut, true, memory_order_seq_cst);
	for (unsigned i = 0; i < RTE_MAX_ETHPORTS; i++)
		while (gate.dev[i] && atomic_load_explicit(&gate.dev[i]->in, memory_order_seq_cst))
			nanosleep(&nap, NULL);
}

static void sem_take(sem_t *s)
{
	while (sem_wait(s))
		;
}

/* DPDK's interrupt thread stays in here. */
static void gate_hold(void *unused)
{
	uint64_t n;

	if (read(rte_intr_fd_get(gate.intr), &n, sizeof(n)) != sizeof(n))
		return;
	for (;;) {
		sem_post(&gate.held);
		sem_take(&gate.go);
		if (!gate.fn)
			return;
		gate.ret = gate.fn(gate.arg);
	}
}

/* Have that thread come (back) here: behind what waits for it already. */
static void gate_call_in(void)
{
	uint64_t one = 1;

	if (write(rte_intr_fd_get(gate.intr), &one, sizeof(one)) == sizeof(one))
		sem_take(&gate.held);
}

/* Under gate.lock. With @fn that thread calls it; without, it does what waits for it. */
static int gate_moment(int (*fn)(void *arg), void *arg)
{
	gate_shut();
	gate.fn = fn;
	gate.arg = arg;
	sem_post(&gate.go);
	if (fn)
		sem_take(&gate.held);
	else
		gate_call_in();
	atomic_store_explicit(&gate.shut, false, memory_order_release);
	return gate.ret;
}

static bool memif_is_up(const struct dpdk_dev *d);

/* Under gate.lock. */
static bool gate_is_rising(void)
{
	for (unsigned i = 0; i < RTE_MAX_ETHPORTS; i++) {
		struct dpdk_dev *d = gate.dev[i];

		if (d && d->started && !d->risen) {
			d->risen = memif_is_up(d);
			if (!d->risen)
				return true;
		}
	}
	return false;
}

static void *gate_thread(void *unused)
{
	struct timespec until;

	pthread_mutex_lock(&gate.lock);
	for (;;) {
		uint64_t ns = gate_is_rising() ? GATE_UP_NS : GATE_IDLE_NS;

		clock_gettime(CLOCK_MONOTONIC, &until);
		ns += (uint64_t)until.tv_nsec;
		until.tv_sec += (time_t)(ns / 1000000000u);
		until.tv_nsec = (long)(ns % 1000000000u);
		pthread_cond_timedwait(&gate.ask, &gate.lock, &until);
		gate_moment(NULL, NULL);
	}
	return NULL;
}

static int gate_intr_open(void)
{
	int fd = eventfd(0, EFD_CLOEXEC);

	if (fd < 0)
		return -errno;
	gate.intr = rte_intr_instance_alloc(RTE_INTR_INSTANCE_F_PRIVATE);
	if (gate.intr && !rte_intr_fd_set(gate.intr, fd) &&
	    !rte_intr_type_set(gate.intr, RTE_INTR_HANDLE_EXT) &&
	    !rte_intr_callback_register(gate.intr, gate_hold, NULL))
		return 0;
	rte_intr_instance_free(gate.intr);
	close(fd);
	return -ENOMEM;
}

/* Once in a process, under gate.lock. Signals are for other threads. */
static int gate_start(void)
{
	pthread_condattr_t attr;
	sigset_t all, was;
	int ret;

	if (gate.running)
		return 0;
	ret = gate.intr ? 0 : gate_intr_open();
	if (ret)
		return ret;
	sem_init(&gate.held, 0, 0);
	sem_init(&gate.go, 0, 0);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&gate.ask, &attr);
	pthread_condattr_destroy(&attr);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &was);
	ret = -pthread_create(&gate.thread, NULL, gate_thread, NULL);
	pthread_sigmask(SIG_SETMASK, &was, NULL);
	if (ret)
		return ret;
	pthread_setname_np(gate.thread, "gx-memif-gate");
	gate_call_in();
	gate.running = true;
	return 0;
}

/* @fn(@arg) on DPDK's interrupt thread, while no core is in a burst: what memif's handlers take for
 * granted. */
static int gate_call(int (*fn)(void *arg), void *arg)
{
	int ret;

	pthread_mutex_lock(&gate.lock);
	ret = gate_start();
	if (!ret)
		ret = gate_moment(fn, arg);
	pthread_cond_signal(&gate.ask);
	pthread_mutex_unlock(&gate.lock);
	return ret;
}

/* What waits for that thread is done when this returns. */
static void gate_let(void)
{
	pthread_mutex_lock(&gate.lock);
	if (gate.running)
		gate_moment(NULL, NULL);
	pthread_mutex_unlock(&gate.lock);
}

/* Return: was there such a one? For a new device NULL is replaced, as long as there is room. */
static bool gate_replace(struct dpdk_dev *is, struct dpdk_dev *by)
{
	unsigned i = 0;

	pthread_mutex_lock(&gate.lock);
	while (i < RTE_MAX_ETHPORTS && gate.dev[i] != is)
		i++;
	if (i < RTE_MAX_ETHPORTS)
		gate.dev[i] = by;
	pthread_mutex_unlock(&gate.lock);
	return i < RTE_MAX_ETHPORTS;
}

/* ---- memif: a device a peer (control path) ---- */

static void memif_args(const struct dpdk_port *p, const struct dpdk_addr *sock, char *out,
		       size_t room)
{
	unsigned log2 = 0;
	char v[32];
	int n;

	while ((1u << log2) < p->ring)
		log2++;
	n = snprintf(out, room, "role=%s,socket=%s,socket-abstract=no,id=%u",
		     p->server ? "client" : "server", sock->path, sock->id);
	if (!dpdk_args_get(&p->args, "bsize", v, sizeof(v)))
		n += snprintf(out + n, room - (size_t)n, ",bsize=%u", p->room);
	if (!dpdk_args_get(&p->args, "rsize", v, sizeof(v)))
		n += snprintf(out + n, room - (size_t)n, ",rsize=%u", log2);
	if (!dpdk_args_get(&p->args, "zero-copy", v, sizeof(v)))
		n += snprintf(out + n, room - (size_t)n, ",zero-copy=%s",
			      p->zero_copy ? "yes" : "no");
	snprintf(out + n, room - (size_t)n, "%s%s", *p->args.rest ? "," : "", p->args.rest);
}

/* What memif_make() hands to that thread. */
struct memif_job {
	struct dpdk_port *p;
	struct dpdk_dev *d;
	const char *what; /* that failed */
	char args[768];
};

static int memif_make_run(void *arg)
{
	struct memif_job *job = arg;
	struct dpdk_dev *d = job->d;
	struct rte_eth_dev_info info;
	int ret = rte_vdev_init(d->name, job->args);

	if (ret)
		return ret;
	d->made = true;
	job->what = "cannot be set up";
	ret = rte_eth_dev_get_port_by_name(d->name, &d->id);
	if (!ret)
		ret = rte_eth_dev_info_get(d->id, &info);
	if (ret || !d->rx_pool)
		return ret; /* the one that only holds the socket */
	d->way = job->p->zero_copy ? DPDK_TX_COPY : dev_way(&job->p->args, &info);
	if (d->way == DPDK_TX_GATHER)
		dev_gather_init(d);
	ret = dev_configure(d->id, &d, 1, &info, 0, NULL);
	if (ret)
		return ret;
	job->what = "cannot connect";
	ret = rte_eth_dev_start(d->id);
	d->started = !ret;
	return ret;
}

static int memif_make(struct dpdk_port *p, struct dpdk_dev *d, const struct dpdk_addr *sock)
{
	struct memif_job job = {.p = p, .d = d, .what = "cannot be made"};
	int ret;

	memif_args(p, sock, job.args, sizeof(job.args));
	snprintf(d->name, sizeof(d->name), "net_memif_gx%u", eal_unique());
	eal_said_clear();
	ret = gate_call(memif_make_run, &job);
	return ret ? dpdk_why(ret == -1 ? -EIO : ret, job.what, sock->path) : 0;
}

static int memif_unmake_run(void *arg)
{
	struct dpdk_dev *d = arg;

	if (d->started)
		rte_eth_dev_stop(d->id);
	if (d->made)
		rte_vdev_uninit(d->name);
	d->started = d->made = false;
	return 0;
}

static int dev_full(void)
{
	gx_port_why_set("port dpdk: DPDK has room for %u devices, all are taken", RTE_MAX_ETHPORTS);
	return -ENOSPC;
}

/* The server's is made when the client's address is here; its place is kept from now on. */
static int memif_new(struct dpdk_port *p, uint32_t peer, struct dpdk_dev **out)
{
	struct dpdk_dev *d = calloc(1, sizeof(*d));
	uint32_t ring = p->zero_copy ? p->ring : 0; /* the driver keeps buffers in it */
	int ret;

	if (!d)
		return -ENOMEM;
	d->peer = peer;
	d->frame_max = p->room;
	d->gated = true;
	ret = dev_pools_open(d, p->slots + ring, ring, p->room);
	if (!ret && !gate_replace(NULL, d))
		ret = dev_full();
	if (ret) {
		dev_pools_close(d);
		free(d);
		return ret;
	}
	*out = d;
	return 0;
}

static bool memif_is_up(const struct dpdk_dev *d)
{
	struct rte_eth_link link;

	return d->started && !rte_eth_link_get_nowait(d->id, &link) &&
	       link.link_status == RTE_ETH_LINK_UP;
}

/*
 * The client's half of a connection: the owner of the socket has its device already, so the link
 * comes up by DPDK's own threads. Zero copy needs EAL's descriptor to be there, and to stay until
 * the link is up.
 */
static int memif_connect(struct dpdk_port *p, struct dpdk_dev *d, const struct dpdk_addr *sock)
{
	static const struct timespec nap = {.tv_nsec = 100000};
	uint64_t until = gx_now_ns() + DPDK_UP_NS;
	int ret;

	pthread_mutex_lock(&eal.connect);
	if (p->zero_copy && !eal_fd_restore()) {
		gx_port_why_set(
			"port dpdk: more than %d files are open: no zero copy; zero-copy=no "
			"helps",
			eal.fd);
		ret = -EMFILE;
	} else {
		ret = memif_make(p, d, sock);
	}
	while (!ret && !memif_is_up(d)) {
		if (gx_now_ns() > until)
			ret = dpdk_why(-ETIMEDOUT, "does not connect", sock->path);
		nanosleep(&nap, NULL);
	}
	gx_debug("port dpdk: memif connected after %u us: %d",
		 (unsigned)((gx_now_ns() + DPDK_UP_NS - until) / 1000), ret);
	eal_fd_restore();
	pthread_mutex_unlock(&eal.connect);
	return ret;
}

/* Say that we are about to close: afterwards the peer does not touch the rings, which DPDK will
 * unmap. */
static void memif_bye(struct dpdk_dev *d)
{
	struct rte_mbuf *m;

	if (d->bye || !memif_is_up(d))
		return;
	m = rte_pktmbuf_alloc(d->tx_pool);
	if (!m)
		return;
	m->data_len = 64;
	m->pkt_len = 64;
	memset(rte_pktmbuf_mtod(m, char *), 0, 64);
	dpdk_put16(rte_pktmbuf_mtod(m, uint8_t *) + 12, DPDK_BYE);
	d->bye = dev_tx(d, &m, 1) == 1;
	if (!d->bye)
		rte_pktmbuf_free(m);
}

static bool memif_is_bye(const struct rte_mbuf *m)
{
	return m->data_len >= DPDK_ETH_B &&
	       dpdk_get16(rte_pktmbuf_mtod(m, const uint8_t *) + 12) == DPDK_BYE;
}

/* After the core has let go: wait until the peer has, too. Bounded, and only a courtesy. */
static void memif_drain(struct dpdk_dev *d)
{
	static const struct timespec nap = {.tv_nsec = 100000};
	uint64_t until = gx_now_ns() + DPDK_BYE_NS;
	struct rte_mbuf *m[DPDK_RX_BURST];

	while (!d->quiet && memif_is_up(d) && gx_now_ns() < until) {
		uint16_t n = dev_rx(d, m, DPDK_RX_BURST);

		for (uint16_t i = 0; i < n; i++)
			d->quiet |= memif_is_bye(m[i]);
		rte_pktmbuf_free_bulk(m, n);
		memif_bye(d);
		if (n)
			continue;
		gate_let(); /* is the peer still there? */
		nanosleep(&nap, NULL);
	}
}

static void memif_free(struct dpdk_dev *d)
{
	if (!d)
		return;
	if (d->started)
		memif_drain(d);
	if (d->made)
		gate_call(memif_unmake_run, d);
	gate_replace(d, NULL);
	dev_pools_close(d);
	free(d);
}

/* ---- Handing over: what came in at another core's queue (control path) ---- */

static void hand_close(struct dpdk_port *p)
{
	for (unsigned i = 0; i < p->nr_queues; i++) {
		struct dpdk_queue *q = p->queue[i];

		for (unsigned j = 0; q && q->from && j < p->nr_queues; j++)
			gx_ring_close(q->from[j]); /* what is in it goes with its pool */
		if (q)
			free(q->from);
	}
}

/* A ring from each queue to each other: one core puts, one takes. */
static int hand_open(struct dpdk_port *p)
{
	for (unsigned i = 0; i < p->nr_queues; i++) {
		struct dpdk_queue *q = p->queue[i];
		int ret = 0;

		q->from = calloc(p->nr_queues, sizeof(*q->from));
		if (!q->from)
			return -ENOMEM;
		for (unsigned j = 0; j < p->nr_queues && !ret; j++)
			if (j != i)
				ret = gx_ring_open(DPDK_HAND, &q->from[j]);
		if (ret)
			return ret;
	}
	p->hand_over = true;
	return 0;
}

/* ---- Flow rules: which queue a UDP port goes to (control path) ---- */

static int flow_add(uint16_t id, uint16_t queue, const struct rte_flow_item items[],
		    struct rte_flow_error *err)
{
	struct rte_flow_attr attr = {.ingress = 1};
	struct rte_flow_action_queue to = {.index = queue};
	struct rte_flow_action actions[] = {
		{.type = RTE_FLOW_ACTION_TYPE_QUEUE, .conf = &to},
		{.type = RTE_FLOW_ACTION_TYPE_END},
	};

	return rte_flow_create(id, &attr, items, actions, err) ? 0 : -rte_errno;
}

static int flow_add_udp(uint16_t id, uint16_t queue, uint16_t udp_port, struct rte_flow_error *err)
{
	struct rte_flow_item_udp udp = {.hdr.dst_port = rte_cpu_to_be_16(udp_port)};
	struct rte_flow_item_udp mask = {.hdr.dst_port = UINT16_MAX};
	struct rte_flow_item items[] = {
		{.type = RTE_FLOW_ITEM_TYPE_ETH},
		{.type = RTE_FLOW_ITEM_TYPE_IPV4},
		{.type = RTE_FLOW_ITEM_TYPE_UDP, .spec = &udp, .mask = &mask},
		{.type = RTE_FLOW_ITEM_TYPE_END},
	};

	return flow_add(id, queue, items, err);
}

/* An isolated device brings nothing but what rules name, and nobody else answers ARP for us. */
static void flow_add_arp(const struct dpdk_port *p)
{
	struct rte_flow_item_eth eth = {.hdr.ether_type = rte_cpu_to_be_16(RTE_ETHER_TYPE_ARP)};
	struct rte_flow_item_eth mask = {.hdr.ether_type = UINT16_MAX};
	struct rte_flow_item items[] = {
		{.type = RTE_FLOW_ITEM_TYPE_ETH, .spec = &eth, .mask = &mask},
		{.type = RTE_FLOW_ITEM_TYPE_END},
	};
	struct rte_flow_error err = {0};
	int ret = flow_add(p->shared_id, 0, items, &err);

	if (ret)
		gx_warn("port dpdk: %s refuses a flow rule for ARP: %s; routers need our MAC "
			"address from elsewhere (ip neigh add ... lladdr ...)",
			p->args.name, err.message ? err.message : strerror(-ret));
}

static int flow_open(struct dpdk_port *p, bool isolated)
{
	struct rte_flow_error err = {0};
	int ret = 0;

	for (unsigned i = 0; i < 2 * p->nr_queues && !ret; i++) {
		unsigned to = i / 2 + (p->pool.arena && !(i & 1) ? p->nr_queues : 0);

		ret = flow_add_udp(p->shared_id, (uint16_t)to, (uint16_t)(p->net.udp_port + i),
				   &err);
	}
	if (!ret && isolated && p->arp)
		flow_add_arp(p);
	if (!ret || (p->nr_queues == 1 && !isolated))
		return 0;
	gx_port_why_set("port dpdk: %s refuses a flow rule (UDP port to queue): %s%s", p->args.name,
			err.message ? err.message : strerror(-ret),
			p->pool.arena ? "; data packets need a queue of their own to get to memory "
					"of a GPU: take --bounce host"
				      : "");
	if (isolated)
		return ret; /* nothing would come in */
	gx_warn("%s: packets that come in at another core's queue are handed to it, which is "
		"slower",
		gx_port_why());
	rte_flow_flush(p->shared_id, NULL);
	return hand_open(p);
}

/* ---- The shared device (control path) ---- */

/* Our defaults for a driver, where the user gave none. */
static void shared_args(const struct dpdk_port *p, char *out, size_t room)
{
	uint32_t frame = p->frame_max + 256 <= 2048   ? 2048
			 : p->frame_max + 256 <= 4096 ? 4096
						      : 16384;
	char v[32];
	int n = snprintf(out, room, "%s", p->args.rest);

	if (strcmp(p->args.name, "net_af_packet") || dpdk_args_get(&p->args, "framesz", v, 32) ||
	    dpdk_args_get(&p->args, "blocksz", v, 32) || dpdk_args_get(&p->args, "framecnt", v, 32))
		return;
	/* Its tx waits on a full ring: more frames than credit lets be under way. */
	snprintf(out + n, room - (size_t)n, ",framesz=%u,blocksz=%u,framecnt=%u,qpairs=%u", frame,
		 GX_MAX(frame, 4096u), 2 * DPDK_DESCS, p->nr_queues);
}

/* "NAME cannot be opened: what the kernel's view of it says (what DPDK said)" */
static int pci_why(int err, const char *name)
{
	char hint[160];

	dpdk_pci_hint(name, hint, sizeof(hint));
	if (!*hint)
		return dpdk_why(err == -1 ? -EIO : err,
				"cannot be opened; is a driver of DPDK for it built in?", name);
	gx_port_why_set("port dpdk: %s cannot be opened: %s", name, hint);
	return -ENODEV;
}

static int shared_make(struct dpdk_port *p, char *name, size_t room)
{
	char args[640];
	int ret;

	eal_said_clear();
	if (p->args.pci) {
		snprintf(args, sizeof(args), "%s%s%s", p->args.name, *p->args.rest ? "," : "",
			 p->args.rest);
		snprintf(name, room, "%s", p->args.name);
		ret = rte_eth_dev_get_port_by_name(name, &p->shared_id) ? rte_dev_probe(args) : 0;
	} else {
		shared_args(p, args, sizeof(args));
		snprintf(name, room, "%.40s_gx%u", p->args.name, eal_unique());
		ret = rte_vdev_init(name, args);
	}
	if (ret && p->args.pci)
		return pci_why(ret, p->args.name);
	if (ret)
		return dpdk_why(ret == -1 ? -EIO : ret,
				*eal_said.line ? "cannot be made"
					       : "cannot be made (is that driver built in? the "
						 "end of meson's set-up lists them)",
				p->args.name);
	ret = rte_eth_dev_get_port_by_name(name, &p->shared_id);
	return ret ? dpdk_why(ret, "has no ethdev", p->args.name) : 0;
}

/* Addresses: the option's, else the kernel's, else where gx binds. */
static int shared_net(struct dpdk_port *p, const struct gx_port_cfg *cfg,
		      const struct rte_eth_dev_info *info)
{
	struct dpdk_net *net = &p->net;
	struct rte_ether_addr mac;
	unsigned a, b, c, d;
	uint16_t mtu;
	bool local = !strncmp(p->args.name, "net_ring", 8) || !strncmp(p->args.name, "net_null", 8);

	net->ifindex = info->if_index;
	net->mask = p->args.mask ? p->args.mask : 0xffffff00;
	if (!rte_eth_macaddr_get(p->shared_id, &mac))
		memcpy(net->mac, mac.addr_bytes, DPDK_MAC_B);
	net->mtu = rte_eth_dev_get_mtu(p->shared_id, &mtu) ? 1500 : mtu;
	dpdk_net_kernel(net);
	if (p->args.ip)
		net->ip = p->args.ip;
	if (p->args.mask)
		net->mask = p->args.mask;
	if (!net->ip && cfg->bind_host &&
	    sscanf(cfg->bind_host, "%u.%u.%u.%u", &a, &b, &c, &d) == 4 && a && a != 127)
		net->ip = a << 24 | (b & 255) << 16 | (c & 255) << 8 | (d & 255);
	if (!net->ip && local)
		net->ip = 0x7f000001;
	/* AF_XDP takes what the kernel would answer. */
	p->arp = (!local || p->args.ip) &&
		 (!net->ifindex || !strncmp(p->args.name, "net_af_xdp", 10));
	if (net->ip)
		return 0;
	gx_port_why_set("port dpdk: no IPv4 address for %s; give ip=", p->args.name);
	return -EADDRNOTAVAIL;
}

static uint32_t payload_preferred(uint32_t max)
{
	static const uint32_t preferred[] = {8192, 4096, 3328, 1392};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(preferred); i++)
		if (preferred[i] <= max)
			return preferred[i];
	return max;
}

static void port_sizes(struct dpdk_port *p, uint32_t mtu, uint32_t wanted)
{
	uint32_t max = (mtu + DPDK_ETH_B - DPDK_HEAD_B) & ~15u;

	p->frame_max = mtu + DPDK_ETH_B;
	/* memif takes control packets of any size that we know; others what fits the MTU. */
	p->room = (uint32_t)GX_ALIGN_UP(GX_MAX(p->frame_max + 4, 1620u), 1024u);
	p->p.caps.payload_max = max;
	p->p.caps.payload_best =
		wanted >= 1280 ? GX_MIN(wanted & ~15u, max) : payload_preferred(max);
}

static int shared_mtu(struct dpdk_port *p, const struct gx_port_cfg *cfg,
		      const struct rte_eth_dev_info *info)
{
	uint32_t mtu = p->net.mtu;
	bool xdp = !strncmp(p->args.name, "net_af_xdp", 10); /* a frame fits a page */
	uint32_t max = GX_MIN((uint32_t)info->max_mtu, xdp ? 1500u : (uint32_t)DPDK_MTU_MAX);

	if (p->args.pci) /* not every driver fills max_mtu in; a VLAN tag or a checksum is on top */
		max = GX_MIN(max, info->max_rx_pktlen - RTE_ETHER_HDR_LEN - RTE_ETHER_CRC_LEN);
	if (p->args.mtu > mtu && p->net.ifindex) {
		gx_port_why_set("port dpdk: mtu=%u, but the interface has %u; ip link set mtu it",
				p->args.mtu, mtu);
		return -EINVAL;
	}
	if (p->args.mtu > max) {
		gx_port_why_set("port dpdk: mtu=%u, but %s takes %u at most", p->args.mtu,
				p->args.name, max);
		return -EINVAL;
	}
	mtu = p->args.mtu ? p->args.mtu : GX_MIN(mtu, xdp ? 1500u : (uint32_t)DPDK_MTU_MAX);
	if (mtu < DPDK_MTU_MIN) {
		gx_port_why_set("port dpdk: an MTU of %u is too small; %u is the least", mtu,
				DPDK_MTU_MIN);
		return -EINVAL;
	}
	p->net.mtu = mtu;
	port_sizes(p, mtu, cfg->payload_b);
	return 0;
}

static bool link_is_up(const struct dpdk_port *p)
{
	struct rte_eth_link link;

	return !rte_eth_link_get_nowait(p->shared_id, &link) && link.link_status == RTE_ETH_LINK_UP;
}

/* A NIC's link comes up some seconds after its start. What is sent before is lost. */
static void link_wait(const struct dpdk_port *p)
{
	static const struct timespec nap = {.tv_nsec = 10000000};
	uint64_t until = gx_now_ns() + DPDK_LINK_NS;

	while (!link_is_up(p)) {
		if (gx_now_ns() > until) {
			gx_warn("port dpdk: the link of %s is down after %u s: no cable, or the "
				"other "
				"end is off? Going on without",
				p->args.name, (unsigned)(DPDK_LINK_NS / 1000000000));
			return;
		}
		nanosleep(&nap, NULL);
	}
}

/* ---- A bounce pool in GPU memory (control path) ---- */

/* "what NAME lacks: the cure" */
static int pool_refuse(const struct dpdk_port *p, const char *lacks)
{
	gx_port_why_set("port dpdk: %s %s, which payload in memory of cuda:%d needs: take --bounce "
			"host",
			p->args.name, lacks, p->pool.gpu->device);
	return -EOPNOTSUPP;
}

/*
 * The device has to cut packets at DPDK_HEAD_B, headers to host memory and payload to another pool,
 * on the queues for which that is asked. Asked one after the other, so that who cannot says what is
 * missing. Maps for DMA, flow isolation and flow rules show what they are worth when they are made.
 */
static int pool_probe(const struct dpdk_port *p, const struct rte_eth_dev_info *info)
{
	char lacks[160];

	if (!(info->rx_offload_capa & RTE_ETH_RX_OFFLOAD_BUFFER_SPLIT) ||
	    info->rx_seg_capa.max_nseg < 2 || !info->rx_seg_capa.multi_pools)
		snprintf(lacks, sizeof(lacks),
			 "(driver %s) cannot split packets, headers to host memory and payload to "
			 "another pool (no buffer split with two pools)",
			 info->driver_name);
	else if (rte_eth_buffer_split_get_supported_hdr_ptypes(p->shared_id, NULL, 0) > 0)
		snprintf(lacks, sizeof(lacks),
			 "(driver %s) splits packets behind a protocol's header, not at byte %u "
			 "where gx's ends",
			 info->driver_name, DPDK_HEAD_B);
	else if (!(info->rx_queue_offload_capa & RTE_ETH_RX_OFFLOAD_BUFFER_SPLIT))
		snprintf(lacks, sizeof(lacks),
			 "(driver %s) splits packets of all receive queues or of none, not of some",
			 info->driver_name);
	else if (2 * p->nr_queues > info->max_rx_queues)
		snprintf(lacks, sizeof(lacks),
			 "has %u receive queues, not two for each of %u cores (fewer --cores?)",
			 info->max_rx_queues, p->nr_queues);
	else if (p->pool.gpu->dma == GX_GPU_DMA_NONE)
		snprintf(lacks, sizeof(lacks),
			 "would write to a GPU that shows what cards write only after a flush "
			 "(CUDA: no ordering of GPUDirect RDMA writes), not at once");
	else
		return 0;
	return pool_refuse(p, lacks);
}

/* Memory of the GPU that the device can write to. */
static int pool_map(struct dpdk_port *p, const struct rte_eth_dev_info *info)
{
	struct dpdk_pool *pool = &p->pool;
	char lacks[200];
	int ret = gx_arena_map(pool->arena, -1, pool->len, &pool->mem);

	if (ret) {
		gx_port_why_set("port dpdk: no %zu bytes of memory on cuda:%d for payload: %s; "
				"fewer --slots, or --bounce host",
				pool->len, pool->gpu->device, strerror(-ret));
		return ret;
	}
	if (rte_extmem_register(pool->mem, pool->len, NULL, (unsigned)(pool->len / GX_HUGE_PAGE),
				GX_HUGE_PAGE)) {
		snprintf(lacks, sizeof(lacks),
			 "(driver %s) has an EAL that does not note memory "
			 "outside of it (%s)",
			 info->driver_name, strerror(rte_errno));
		return pool_refuse(p, lacks);
	}
	pool->known = true;
	if (rte_dev_dma_map(info->device, pool->mem, (uintptr_t)pool->mem, pool->len)) {
		snprintf(lacks, sizeof(lacks),
			 "(driver %s) does not map memory of the GPU for DMA (%s; is "
			 "nvidia-peermem loaded?)",
			 info->driver_name, strerror(rte_errno));
		return pool_refuse(p, lacks);
	}
	pool->dev = info->device;
	return 0;
}

/* As dev_pool_open(); the mbufs are in host memory, what they hold is not. */
static int pool_slots_open(struct dpdk_pool *pool, uint32_t nr, uint16_t slot_b)
{
	struct rte_pktmbuf_extmem mem = {.buf_ptr = pool->mem,
					 .buf_iova = (uintptr_t)pool->mem,
					 .buf_len = pool->len,
					 .elt_size = slot_b};
	char name[32];

	snprintf(name, sizeof(name), "gx%u_gpu", eal_unique());
	pool->slots = rte_pktmbuf_pool_create_extbuf(name, nr, DPDK_CACHE, 0, slot_b, SOCKET_ID_ANY,
						     &mem, 1);
	if (pool->slots)
		return 0;
	gx_port_why_set("port dpdk: no memory for %u buffers on cuda:%d: %s; DPDK has %zu MiB, "
			"mem= makes it more",
			nr, pool->gpu->device, strerror(rte_errno), eal.len >> 20);
	return -ENOMEM;
}

/* Pools of the cut queues, one for all as shared_pools_open(), and the queues. */
static int pool_open(struct dpdk_port *p, const struct rte_eth_dev_info *info)
{
	uint32_t nr = p->nr_queues * (p->slots + DPDK_DESCS) + DPDK_FIFO + 2 * DPDK_CACHE;
	/* A checksum of Ethernet's may stand behind it. */
	uint32_t slot_b = GX_ALIGN_UP(p->frame_max + 4 - DPDK_HEAD_B, (uint32_t)DPDK_POOL_ALIGN);
	struct dpdk_pool *pool = &p->pool;
	int ret;

	pool->len = GX_ALIGN_UP((size_t)nr * slot_b, (size_t)GX_HUGE_PAGE);
	ret = pool_map(p, info);
	if (!ret)
		ret = pool_slots_open(pool, nr, (uint16_t)slot_b);
	if (!ret)
		ret = dev_pool_open("head", nr, DPDK_HEAD_B, &pool->head);
	for (unsigned i = 0; i < p->nr_queues && !ret; i++) {
		struct dpdk_queue *q = p->queue[i];

		q->cut.id = q->dev.id;
		q->cut.qid = (uint16_t)(p->nr_queues + i);
		q->cut.peer = GX_PEER_ANY;
		q->cut.verify = q->dev.verify;
		q->cut.cut = true;
		q->q.rx_base = gx_arena_base(pool->arena);
		q->q.rx_gpu = pool->gpu;
	}
	return ret;
}

/* After the device has stopped, and before it is removed: it has the memory mapped. */
static void pool_close(struct dpdk_port *p)
{
	struct dpdk_pool *pool = &p->pool;

	if (!pool->arena)
		return;
	if (pool->slots)
		rte_eth_dev_close(p->shared_id); /* its queues let go of their buffers */
	rte_mempool_free(pool->slots);
	rte_mempool_free(pool->head);
	if (pool->dev)
		rte_dev_dma_unmap(pool->dev, pool->mem, (uintptr_t)pool->mem, pool->len);
	if (pool->known)
		rte_extmem_unregister(pool->mem, pool->len);
	if (pool->mem)
		gx_arena_unmap(pool->arena, pool->mem, pool->len);
}

static int shared_start(struct dpdk_port *p, const struct rte_eth_dev_info *info)
{
	struct dpdk_dev *devs[DPDK_SOCKETS_MAX];
	bool rules = p->args.pci || p->pool.arena;
	bool isolated = rules && !rte_flow_isolate(p->shared_id, 1, NULL);
	int ret;

	if (p->pool.arena && !isolated)
		return pool_refuse(p, "cannot keep its queues to packets that flow rules name "
				      "(no flow isolation)");
	for (unsigned i = 0; i < p->nr_queues; i++)
		devs[i] = &p->queue[i]->dev;
	eal_said_clear();
	ret = dev_configure(p->shared_id, devs, p->nr_queues, info, p->args.pci ? p->net.mtu : 0,
			    p->pool.arena ? &p->pool : NULL);
	if (!ret)
		ret = rte_eth_dev_start(p->shared_id);
	if (ret)
		return dpdk_why(ret,
				p->pool.arena
					? "cannot be started with queues that are cut at byte 80, "
					  "payload to a GPU (--bounce host needs none)"
					: "cannot be started",
				p->args.name);
	p->shared_started = true;
	if (!rules)
		return p->nr_queues > 1 ? hand_open(p) : 0;
	if (p->args.pci)
		link_wait(p);
	return flow_open(p, isolated);
}

/* One pool of bounce buffers for all queues: where packets are handed over, all may come in at one.
 */
static int shared_pools_open(struct dpdk_port *p, unsigned i, uint32_t nr_rx, uint32_t nr_tx)
{
	struct dpdk_dev *d = &p->queue[i]->dev;

	if (!i)
		return dev_pools_open(d, p->nr_queues * nr_rx, nr_tx, p->room);
	d->rx_pool = p->queue[0]->dev.rx_pool;
	return dev_pool_open("tx", nr_tx + DPDK_TX_SPARE, p->room, &d->tx_pool);
}

static int shared_queues(struct dpdk_port *p, const char *name, const struct rte_eth_dev_info *info)
{
	/* AF_XDP fills its rings at the start, from the same pool. */
	uint32_t descs = strncmp(name, "net_af_xdp", 10) ? DPDK_DESCS : 4 * DPDK_DESCS;
	uint32_t nr_rx = descs + (p->pool.arena ? 0 : p->slots);

	for (unsigned i = 0; i < p->nr_queues; i++) {
		struct dpdk_dev *d = &p->queue[i]->dev;
		int ret;

		snprintf(d->name, sizeof(d->name), "%s", name);
		d->id = p->shared_id;
		d->qid = (uint16_t)i;
		d->peer = GX_PEER_ANY;
		d->up = true;
		d->verify = strncmp(name, "net_ring", 8);
		d->way = dev_way(&p->args, info);
		d->frame_max = p->frame_max;
		/* net_ring hands our own buffers to the receiver. */
		ret = shared_pools_open(p, i, nr_rx, d->verify ? DPDK_DESCS : nr_rx);
		if (ret)
			return ret;
		if (d->way == DPDK_TX_GATHER)
			dev_gather_init(d);
		p->queue[i]->udp_port = (uint16_t)(p->net.udp_port + 2 * i);
		p->queue[i]->devs[0] = d;
		p->queue[i]->nr_devs = 1;
	}
	return p->pool.arena ? pool_open(p, info) : 0;
}

static int shared_open(struct dpdk_port *p, const struct gx_port_cfg *cfg)
{
	struct rte_eth_dev_info info;
	char name[64];
	int ret;

	port_sizes(p, p->args.mtu ? p->args.mtu : 1500, 0);
	ret = shared_make(p, name, sizeof(name));
	if (ret)
		return ret;
	snprintf(p->queue[0]->dev.name, sizeof(p->queue[0]->dev.name), "%s", name);
	p->queue[0]->dev.made = true;
	ret = rte_eth_dev_info_get(p->shared_id, &info);
	if (ret)
		return dpdk_why(ret, "says nothing of itself", name);
	p->pci = p->args.pci ? info.device : NULL;
	ret = p->pool.arena ? pool_probe(p, &info) : 0;
	if (ret)
		return ret;
	if (!(p->p.caps.flags & GX_PORT_LOCAL))
		p->p.speaks = "dpdk:ethernet"; /* whatever device carries the frames */
	if (p->nr_queues > GX_MIN(info.max_rx_queues, info.max_tx_queues)) {
		gx_port_why_set("port dpdk: %s has %u queues, and each core needs one: give "
				"--cores that many, not %u",
				p->args.name, GX_MIN(info.max_rx_queues, info.max_tx_queues),
				p->nr_queues);
		return -EINVAL;
	}
	ret = shared_net(p, cfg, &info);
	if (!ret)
		ret = shared_mtu(p, cfg, &info);
	if (!ret) {
		p->nr_sockets = 2 * p->nr_queues;
		ret = dpdk_net_ports(&p->net, p->nr_sockets, p->sockets);
	}
	if (!ret)
		ret = shared_queues(p, name, &info);
	return ret ? ret : shared_start(p, &info);
}

static void shared_close(struct dpdk_port *p)
{
	struct dpdk_dev *d = &p->queue[0]->dev;

	if (p->shared_started)
		rte_eth_dev_stop(p->shared_id);
	pool_close(p);
	if (p->pci)
		rte_dev_remove(p->pci); /* so that it can be opened again */
	else if (d->made)
		rte_vdev_uninit(d->name);
	hand_close(p);
	for (unsigned i = p->nr_queues; i--;) {
		if (i)
			p->queue[i]->dev.rx_pool = NULL; /* queue 0's */
		dev_pools_close(&p->queue[i]->dev);
	}
	for (unsigned i = 0; i < p->nr_sockets; i++)
		if (p->sockets[i] >= 0)
			close(p->sockets[i]);
}

/* ---- Port (control path) ---- */

static struct dpdk_port *port_of(struct gx_port *p)
{
	return GX_CONTAINER_OF(p, struct dpdk_port, p);
}

static struct dpdk_queue *queue_of(struct gx_port_queue *q)
{
	return GX_CONTAINER_OF(q, struct dpdk_queue, q);
}

static int memif_sizes(struct dpdk_port *p, const struct gx_port_cfg *cfg)
{
	uint32_t mtu = p->args.mtu ? p->args.mtu : 1500;
	unsigned long bsize, rsize;
	char v[32];

	if (!p->args.mtu && cfg->payload_b > mtu - 66)
		mtu = GX_MIN(cfg->payload_b + 66, 9000u);
	port_sizes(p, mtu, cfg->payload_b);
	bsize = dpdk_args_get(&p->args, "bsize", v, sizeof(v)) ? strtoul(v, NULL, 10) : p->room;
	if (bsize < p->frame_max || bsize < 1620 || bsize > 16384) {
		gx_port_why_set(
			"port dpdk: bsize=%lu: frames of %u bytes must fit, and 16384 is most",
			bsize, GX_MAX(p->frame_max, 1620u));
		return -EINVAL;
	}
	p->room = (uint32_t)bsize;
	for (p->ring = 64; p->ring < p->slots + DPDK_MEMIF_MARGIN && p->ring < 16384;)
		p->ring *= 2;
	if (dpdk_args_get(&p->args, "rsize", v, sizeof(v))) {
		rsize = strtoul(v, NULL, 10);
		if (rsize < 6 || rsize > 14) {
			gx_port_why_set("port dpdk: rsize=%.8s: it must be from 6 to 14", v);
			return -EINVAL;
		}
		p->ring = 1u << rsize;
	}
	return 0;
}

static int memif_open(struct dpdk_port *p, const struct gx_port_cfg *cfg)
{
	char v[32];
	int ret = memif_sizes(p, cfg);

	if (ret)
		return ret;
	p->zero_copy = p->server &&
		       !(dpdk_args_get(&p->args, "zero-copy", v, sizeof(v)) && !strcmp(v, "no"));
	p->p.caps.flags = GX_PORT_ORDERED | GX_PORT_LOSSLESS | GX_PORT_TRUST | GX_PORT_LOCAL;
	if (p->server)
		return 0;
	ret = dpdk_dir_open("gx-memif", &p->dir);
	if (ret)
		return ret;
	snprintf(p->sock.path, sizeof(p->sock.path), "%s/sock", p->dir.path);
	/* As long as this device is there, which nobody connects to, the socket is. */
	return memif_make(p, &p->holder, &p->sock);
}

static int port_caps(struct dpdk_port *p, const struct gx_port_cfg *cfg)
{
	uint32_t usual = p->args.memif ? DPDK_SLOTS_MEMIF : DPDK_SLOTS;

	p->slots = cfg->slots ? cfg->slots : usual;
	if (p->slots < 64 || p->slots > 65536) {
		gx_port_why_set("port dpdk: %u slots; there can be 64 to 65536", p->slots);
		return -EINVAL;
	}
	p->p.caps.rx_slots = p->slots;
	p->p.caps.flags = GX_PORT_SHARED_POOL;
	if (p->pool.arena)
		p->p.caps.flags |= GX_PORT_RX_GPU | GX_PORT_RX_DMA;
	if (!strncmp(p->args.name, "net_ring", 8))
		p->p.caps.flags |= GX_PORT_ORDERED | GX_PORT_LOSSLESS | GX_PORT_LOCAL;
	else
		p->p.caps.flags |= GX_PORT_NEEDS_PROBE;
	return 0;
}

static int port_map(struct dpdk_port *p)
{
	int ret;

	if (!p->arena)
		return 0;
	ret = gx_arena_map(p->arena, eal.fd_kept, eal.len, &p->alias);
	if (ret)
		gx_port_why_set(
			"port dpdk: %zu MiB of DPDK's memory do not fit the arena: %s; mem= "
			"makes it less",
			eal.len >> 20, strerror(-ret));
	return ret;
}

static void dpdk_port_close(struct gx_port *gp)
{
	struct dpdk_port *p = gp ? port_of(gp) : NULL;

	if (!p)
		return;
	if (!p->args.memif && p->queue[0])
		shared_close(p);
	if (p->holder.made)
		gate_call(memif_unmake_run, &p->holder);
	dpdk_dir_close(&p->dir);
	if (p->alias)
		gx_arena_unmap(p->arena, p->alias, eal.len);
	for (unsigned i = 0; i < p->nr_queues; i++)
		free(p->queue[i]);
	free(p);
}

static int port_queues(struct dpdk_port *p)
{
	for (unsigned i = 0; i < p->nr_queues; i++) {
		struct dpdk_queue *q = calloc(1, sizeof(*q));

		if (!q)
			return -ENOMEM;
		q->q.ops = &gx_port_dpdk_ops;
		q->q.port = &p->p;
		q->q.rx_base = p->alias ? p->alias : eal.base;
		q->alias = q->q.rx_base - eal.base;
		q->port = p;
		q->index = i;
		p->queue[i] = q;
	}
	return 0;
}

static int dpdk_port_open(const struct gx_port_cfg *cfg, struct gx_port **out)
{
	struct dpdk_port *p;
	int ret = -EINVAL;

	if (!cfg->nr_queues || 2 * cfg->nr_queues > DPDK_SOCKETS_MAX)
		return -EINVAL;
	p = calloc(1, sizeof(*p) + cfg->nr_queues * sizeof(p->queue[0]));
	if (!p)
		return -ENOMEM;
	p->p.ops = &gx_port_dpdk_ops;
	p->arena = cfg->arena;
	p->pool.arena = cfg->pool;
	p->pool.gpu = cfg->pool_gpu;
	p->server = cfg->server;
	p->nr_queues = cfg->nr_queues;
	ret = dpdk_args_parse(cfg->args ? cfg->args : "", &p->args);
	if (!ret && cfg->pool && p->args.memif) {
		gx_port_why_set(
			"port dpdk: net_memif has the peer's CPU copy into host memory that it "
			"maps: take --bounce host, or --port shm");
		ret = -EOPNOTSUPP;
	}
	if (!ret)
		ret = port_caps(p, cfg);
	if (!ret)
		ret = eal_start(cfg, &p->args);
	if (!ret)
		ret = port_map(p);
	if (!ret)
		ret = port_queues(p);
	if (!ret)
		ret = p->args.memif ? memif_open(p, cfg) : shared_open(p, cfg);
	if (ret) {
		dpdk_port_close(&p->p);
		return ret;
	}
	*out = &p->p;
	return 0;
}

static int dpdk_queue_open(struct gx_port *gp, unsigned index, struct gx_stats *stats,
			   struct gx_port_queue **out)
{
	struct dpdk_port *p = port_of(gp);

	if (index >= p->nr_queues)
		return -EINVAL;
	p->queue[index]->q.stats = stats;
	*out = &p->queue[index]->q;
	return 0;
}

static int dpdk_mem_map(struct gx_port *p, void *ptr, size_t len)
{
	return 0; /* payload is copied into DPDK's own memory, or read by the CPU */
}

static void dpdk_mem_unmap(struct gx_port *p, void *ptr, size_t len)
{
}

/* ---- Peers (control path) ---- */

static void dpdk_peer_del(struct gx_port_queue *gq, uint32_t index)
{
	struct dpdk_queue *q = queue_of(gq);
	struct dpdk_peer *peer = q->peer[index];

	if (!peer)
		return;
	if (q->port->args.memif)
		memif_free(peer->dev);
	free(peer);
	q->peer[index] = NULL;
}

static void dpdk_queue_close(struct gx_port_queue *gq)
{
	struct dpdk_queue *q = gq ? queue_of(gq) : NULL;

	for (uint32_t i = 0; q && i < GX_PEERS_MAX; i++)
		dpdk_peer_del(gq, i);
	for (unsigned h = 0; q && h < 2; h++)
		for (; q->fifo[h].tail != q->fifo[h].head; q->fifo[h].tail++)
			rte_pktmbuf_free(q->fifo[h].ent[q->fifo[h].tail % DPDK_FIFO].m);
}

static void peer_laddr(struct dpdk_queue *q, const struct dpdk_addr *sock, struct gx_port_addr *out)
{
	struct dpdk_port *p = q->port;
	struct dpdk_addr a = *sock;

	a.kind = p->args.memif ? DPDK_MEMIF : DPDK_IP;
	a.owner = p->args.memif && !p->server;
	a.room = (uint16_t)(p->args.memif ? p->room : p->frame_max);
	if (p->pool.arena)
		a.id = 1 + (uint32_t)p->pool.gpu->device;
	a.ip = p->net.ip;
	a.udp_port = q->udp_port;
	memcpy(a.mac, p->net.mac, DPDK_MAC_B);
	dpdk_addr_put(&a, out);
}

static int peer_add_memif(struct dpdk_queue *q, uint32_t index, struct dpdk_addr *sock)
{
	struct dpdk_port *p = q->port;
	struct dpdk_peer *peer = q->peer[index];

	int ret = rte_eth_dev_count_avail() == RTE_MAX_ETHPORTS ? dev_full()
								: memif_new(p, index, &peer->dev);

	if (ret || p->server)
		return ret;
	p->sock.id++;
	*sock = p->sock;
	return memif_make(p, peer->dev, sock);
}

static int dpdk_peer_add(struct gx_port_queue *gq, uint32_t *out, struct gx_port_addr *laddr)
{
	struct dpdk_queue *q = queue_of(gq);
	struct dpdk_addr sock = {0};
	uint32_t i;
	int ret = 0;

	for (i = 0; i < GX_PEERS_MAX && q->peer[i];)
		i++;
	if (i == GX_PEERS_MAX) {
		gx_port_why_set("port dpdk: %d peers are the most", GX_PEERS_MAX);
		return -ENOSPC;
	}
	q->peer[i] = calloc(1, sizeof(*q->peer[i]));
	if (!q->peer[i])
		return -ENOMEM;
	if (q->port->args.memif)
		ret = peer_add_memif(q, i, &sock);
	else
		q->peer[i]->dev = &q->dev;
	if (ret) {
		dpdk_peer_del(gq, i);
		return ret;
	}
	peer_laddr(q, &sock, laddr);
	*out = i;
	return 0;
}

static int peer_connect_memif(struct dpdk_queue *q, struct dpdk_peer *peer,
			      const struct dpdk_addr *addr)
{
	static const uint8_t nobody[DPDK_MAC_B];
	struct dpdk_net us = {.ip = 0xa9fe0001};

	for (unsigned h = 0; h < 2; h++)
		dpdk_encap_init(&peer->encap[h], &us, (uint16_t)(h == GX_HALF_CTL), nobody,
				0xa9fe0002, (uint16_t)(h == GX_HALF_CTL));
	peer->dev->frame_max = GX_MIN(q->port->room, (uint32_t)addr->room);
	return q->port->server ? memif_connect(q->port, peer->dev, addr) : 0;
}

static int peer_connect_ip(struct dpdk_queue *q, struct dpdk_peer *peer,
			   const struct dpdk_addr *addr)
{
	const struct dpdk_net *net = &q->port->net;
	uint8_t mac[DPDK_MAC_B];
	int ret;

	if (q->port->args.pci && !link_is_up(q->port)) {
		gx_port_why_set("port dpdk: the link of %s is down", q->port->args.name);
		return -ENETDOWN;
	}
	ret = dpdk_net_hop(net, &q->port->args, addr->ip, addr->mac, mac);
	if (ret)
		return ret;
	dpdk_encap_init(&peer->encap[GX_HALF_DATA], net, q->udp_port, mac, addr->ip,
			addr->udp_port);
	dpdk_encap_init(&peer->encap[GX_HALF_CTL], net, (uint16_t)(q->udp_port + 1), mac, addr->ip,
			(uint16_t)(addr->udp_port + 1));
	return 0;
}

static int dpdk_peer_connect(struct gx_port_queue *gq, uint32_t index,
			     const struct gx_port_addr *raddr)
{
	struct dpdk_queue *q = queue_of(gq);
	struct dpdk_peer *peer = index < GX_PEERS_MAX ? q->peer[index] : NULL;
	bool memif = q->port->args.memif;
	struct dpdk_addr addr;
	int ret;

	if (raddr->fd >= 0)
		close(raddr->fd);
	if (!peer || peer->connected)
		return -EINVAL;
	if (dpdk_addr_get(raddr, &addr) || (addr.kind == DPDK_MEMIF) != memif ||
	    (memif && addr.owner != q->port->server)) {
		gx_port_why_set("port dpdk: the peer's address does not fit %s",
				q->port->args.name);
		return -EPROTO;
	}
	ret = memif ? peer_connect_memif(q, peer, &addr) : peer_connect_ip(q, peer, &addr);
	peer->pool = memif ? -1 : (int)addr.id - 1;
	peer->connected = !ret;
	return ret;
}

static void dpdk_peer_info(struct gx_port_queue *gq, uint32_t index, struct gx_port_peer *out)
{
	gx_port_peer_plain(gq, index, out);
	out->pool = queue_of(gq)->peer[index]->pool;
}

/* ---- Attach and detach [core] ---- */

static void dpdk_peer_attach(struct gx_port_queue *gq, uint32_t index)
{
	struct dpdk_queue *q = queue_of(gq);
	struct dpdk_peer *peer = q->peer[index];

	dpdk_enter();
	peer->attached = true;
	if (q->port->args.memif)
		q->devs[q->nr_devs++] = peer->dev;
}

/* What waits of @peer goes; the rest keeps its order. */
static void fifo_purge(struct dpdk_fifo *f, uint32_t peer)
{
	uint32_t to = f->tail;

	for (uint32_t i = f->tail; i != f->head; i++) {
		struct dpdk_ent e = f->ent[i % DPDK_FIFO];

		if (e.peer == peer)
			rte_pktmbuf_free(e.m);
		else
			f->ent[to++ % DPDK_FIFO] = e;
	}
	f->head = to;
}

static bool dev_late_flush(struct dpdk_dev *d);

static void dpdk_peer_detach(struct gx_port_queue *gq, uint32_t index)
{
	struct dpdk_queue *q = queue_of(gq);
	struct dpdk_peer *peer = q->peer[index];

	if (!peer->attached)
		return;
	peer->attached = false;
	if (!q->port->args.memif)
		return;
	for (unsigned i = 0; i < q->nr_devs; i++)
		if (q->devs[i] == peer->dev)
			q->devs[i--] = q->devs[--q->nr_devs];
	q->rover = 0;
	fifo_purge(&q->fifo[GX_HALF_CTL], index);
	fifo_purge(&q->fifo[GX_HALF_DATA], index);
	if (!peer->dev->quiet && dev_late_flush(peer->dev))
		memif_bye(peer->dev);
}

/* ---- Receive [core] ---- */

/* Return: @m asked for our MAC address. The answer may be lost as any packet may. */
static bool arp_answer(struct dpdk_queue *q, const struct rte_mbuf *m)
{
	const struct dpdk_dev *d = &q->dev;
	struct rte_mbuf *answer;
	uint8_t *b, frame[DPDK_FRAME_MIN] = {0};

	memcpy(frame, rte_pktmbuf_mtod(m, const uint8_t *),
	       GX_MIN(m->data_len, (uint16_t)DPDK_ARP_B));
	if (!dpdk_arp_answer(&q->port->net, frame, m->data_len))
		return false;
	answer = rte_pktmbuf_alloc(d->tx_pool);
	if (!answer)
		return true;
	b = rte_pktmbuf_mtod(answer, uint8_t *);
	memcpy(b, frame, sizeof(frame));
	answer->data_len = sizeof(frame);
	answer->pkt_len = sizeof(frame);
	if (rte_eth_tx_burst(d->id, d->qid, &answer, 1) != 1)
		rte_pktmbuf_free(answer);
	return true;
}

static uint32_t fifo_count(const struct dpdk_fifo *f)
{
	return f->head - f->tail;
}

static void rx_drop(struct dpdk_queue *q, struct rte_mbuf *m, enum gx_stat_id why)
{
	gx_stat_add(q->q.stats, why, 1);
	rte_pktmbuf_free(m);
}

/* What has no gx header: a peer's goodbye, a question for our MAC address, or nothing of ours. */
static void rx_stray(struct dpdk_queue *q, struct dpdk_dev *d, struct rte_mbuf *m)
{
	if (d->peer != GX_PEER_ANY && memif_is_bye(m)) {
		d->quiet = true;
		memif_bye(d);
		rte_pktmbuf_free(m);
	} else if (q->port->arp && arp_answer(q, m)) {
		rte_pktmbuf_free(m);
	} else {
		rx_drop(q, m, GX_STAT_RX_STRAY);
	}
}

/* To the core whose UDP port it has. Return: that is this one, and it is still the caller's. */
static bool rx_hand(struct dpdk_queue *q, struct rte_mbuf *m)
{
	uint16_t port = dpdk_get16(rte_pktmbuf_mtod(m, const uint8_t *) + 36);
	uint32_t lane = (uint16_t)(port - q->port->net.udp_port) / 2;
	void *item = m;

	if (lane == q->index)
		return true;
	if (lane >= q->port->nr_queues)
		rx_drop(q, m, GX_STAT_RX_STRAY);
	else if (!gx_ring_put(q->port->queue[lane]->from[q->index], &item, 1))
		rx_drop(q, m, GX_STAT_RX_NOBUF);
	return false;
}

/*
 * Is the packet @m, with @behind bytes behind its UDP header, in the buffers where it belongs? One,
 * which the CPU reads. Or, from a queue that is cut: data, whose payload, if any, is in a second
 * one that is memory of a GPU; more are longer than what we announce.
 */
static bool rx_fits(const struct dpdk_queue *q, const struct dpdk_dev *d, const struct rte_mbuf *m,
		    enum gx_half half, uint32_t behind)
{
	if (half == GX_HALF_CTL)
		return !d->cut && m->nb_segs == 1 && behind <= GX_CTL_PAYLOAD_MAX + DPDK_HDR_B;
	if (!d->cut)
		return !q->port->pool.arena && m->nb_segs == 1;
	return m->data_len == DPDK_HEAD_B &&
	       (m->nb_segs == 2 ? m->next->data_len >= behind - DPDK_HDR_B
				: m->nb_segs == 1 && behind == DPDK_HDR_B);
}

static void rx_one(struct dpdk_queue *q, struct dpdk_dev *d, struct rte_mbuf *m)
{
	const uint8_t *b = rte_pktmbuf_mtod(m, const uint8_t *);
	/* All headers are in the first buffer, or the packet is not for us. */
	uint32_t len = m->data_len == DPDK_HEAD_B ? m->pkt_len : m->data_len;
	uint64_t sum = m->ol_flags & RTE_MBUF_F_RX_IP_CKSUM_MASK;
	enum dpdk_verdict verdict;
	enum gx_half half = GX_HALF_CTL;
	struct dpdk_fifo *f;
	uint32_t behind = 0;

	verdict = dpdk_encap_get(b, len, d->verify ? q->port->net.ip : 0,
				 q->port->hand_over ? 0 : q->udp_port,
				 d->verify && sum != RTE_MBUF_F_RX_IP_CKSUM_GOOD, &half, &behind);
	if (gx_unlikely(verdict == DPDK_STRAY)) {
		rx_stray(q, d, m);
		return;
	}
	if (q->port->hand_over && !rx_hand(q, m))
		return;
	if (gx_unlikely(verdict == DPDK_BAD || sum == RTE_MBUF_F_RX_IP_CKSUM_BAD ||
			!rx_fits(q, d, m, half, behind))) {
		rx_drop(q, m, GX_STAT_RX_BAD);
		return;
	}
	f = &q->fifo[half];
	f->ent[f->head++ % DPDK_FIFO] = (struct dpdk_ent){
		.m = m, .peer = d->peer, .len = behind - DPDK_HDR_B, .seq = q->seq++};
}

/* One burst of one device into the FIFOs, which must have room for it. */
static void rx_poll(struct dpdk_queue *q, struct dpdk_dev *d)
{
	struct rte_mbuf *m[DPDK_RX_BURST];
	uint16_t n;

	if (d->nr_late)
		dev_late_flush(d);
	if (d->quiet)
		return;
	n = dev_rx(d, m, DPDK_RX_BURST);
	for (uint16_t i = 0; i < n; i++) {
		const char *b = rte_pktmbuf_mtod(m[i], const char *);

		__builtin_prefetch(b);
		__builtin_prefetch(b + GX_CACHE_LINE);
	}
	for (uint16_t i = 0; i < n; i++)
		rx_one(q, d, m[i]);
}

static bool rx_has_room(const struct dpdk_queue *q)
{
	return fifo_count(&q->fifo[0]) <= DPDK_FIFO - DPDK_RX_BURST &&
	       fifo_count(&q->fifo[1]) <= DPDK_FIFO - DPDK_RX_BURST;
}

/* What other cores got for this one. */
static void rx_take_over(struct dpdk_queue *q)
{
	void *m[DPDK_RX_BURST];

	for (unsigned i = 0; i < q->port->nr_queues && rx_has_room(q); i++) {
		uint32_t n = i == q->index ? 0 : gx_ring_get(q->from[i], m, DPDK_RX_BURST);

		for (uint32_t k = 0; k < n; k++)
			rx_one(q, &q->dev, m[k]);
	}
}

/*
 * Ask each device once, and the only one twice, while the caller wants more. With a queue for each
 * half, which came first cannot be told. But the packet link takes data first, then control packets
 * until there are none, and looks at the data last: so what came before it has been seen.
 */
static void rx_fill(struct dpdk_queue *q, const struct dpdk_fifo *f, unsigned n)
{
	unsigned rounds = q->nr_devs == 1 ? 2 : q->nr_devs;
	bool cut = q->port->pool.arena && f == &q->fifo[GX_HALF_DATA];

	for (; rounds && fifo_count(f) < n && rx_has_room(q); rounds--) {
		if (q->rover >= q->nr_devs)
			q->rover = 0;
		rx_poll(q, cut ? &q->cut : q->devs[q->rover++]);
	}
	if (q->port->hand_over)
		rx_take_over(q);
}

static void rx_take(struct dpdk_queue *q, const struct dpdk_ent *e, struct gx_rx *pkt)
{
	char *b = rte_pktmbuf_mtod(e->m, char *);

	pkt->len = e->len;
	pkt->peer = e->peer;
	pkt->hlen = DPDK_HDR_B;
	memcpy(pkt->hdr, b + DPDK_ENCAP_B, DPDK_HDR_B);
	pkt->buf = (uintptr_t)e->m;
}

/* Where the CPU, or with a pool a GPU, finds the payload. */
static void *rx_payload(const struct dpdk_queue *q, const struct dpdk_ent *e)
{
	if (!q->port->pool.arena)
		return rte_pktmbuf_mtod_offset(e->m, char *, DPDK_HEAD_B) + q->alias;
	return e->len ? rte_pktmbuf_mtod(e->m->next, void *) : q->q.rx_base;
}

static unsigned rx_ctl(struct dpdk_queue *q, struct gx_rx pkts[], unsigned n)
{
	struct dpdk_fifo *f = &q->fifo[GX_HALF_CTL];
	unsigned i;

	if (!fifo_count(f))
		rx_fill(q, f, 1);
	for (i = 0; i < n && fifo_count(f); i++) {
		struct dpdk_ent *e = &f->ent[f->tail++ % DPDK_FIFO];

		rx_take(q, e, &pkts[i]);
		memcpy(q->ctl_buf[i], rte_pktmbuf_mtod(e->m, char *) + DPDK_HEAD_B, e->len);
		pkts[i].buf = 0;
		pkts[i].data = q->ctl_buf[i];
		rte_pktmbuf_free(e->m);
	}
	return i;
}

/* Data does not overtake control packets that came before it. */
static unsigned rx_data(struct dpdk_queue *q, struct gx_rx pkts[], unsigned n)
{
	struct dpdk_fifo *f = &q->fifo[GX_HALF_DATA], *ctl = &q->fifo[GX_HALF_CTL];
	uint32_t limit;
	unsigned i;

	rx_fill(q, f, n);
	limit = fifo_count(ctl) ? ctl->ent[ctl->tail % DPDK_FIFO].seq : q->seq;
	for (i = 0; i < n && fifo_count(f); i++) {
		struct dpdk_ent *e = &f->ent[f->tail % DPDK_FIFO];

		if ((int32_t)(e->seq - limit) >= 0)
			break;
		rx_take(q, e, &pkts[i]);
		pkts[i].data = rx_payload(q, e);
		f->tail++;
	}
	return i;
}

static unsigned dpdk_rx_burst(struct gx_port_queue *gq, enum gx_half half, struct gx_rx pkts[],
			      unsigned n)
{
	struct dpdk_queue *q = queue_of(gq);

	dpdk_enter();
	n = GX_MIN(n, (unsigned)GX_BURST_MAX);
	return half == GX_HALF_CTL ? rx_ctl(q, pkts, n) : rx_data(q, pkts, n);
}

static void dpdk_rx_release(struct gx_port_queue *gq, const uint64_t bufs[], unsigned n)
{
	struct rte_mbuf *m[GX_BURST_MAX];

	dpdk_enter();
	while (n) {
		unsigned k = GX_MIN(n, (unsigned)GX_BURST_MAX);

		for (unsigned i = 0; i < k; i++)
			m[i] = (struct rte_mbuf *)(uintptr_t)bufs[i];
		rte_pktmbuf_free_bulk(m, k);
		bufs += k;
		n -= k;
	}
}

/* ---- Send [core] ---- */

/* Give the driver what it had no room for. Return: nothing is left. */
static bool dev_late_flush(struct dpdk_dev *d)
{
	unsigned n;

	if (!d->nr_late)
		return true;
	n = dev_tx(d, d->late + d->late_at, (uint16_t)d->nr_late);
	d->late_at += n;
	d->nr_late -= n;
	if (d->nr_late)
		return false;
	d->late_at = 0;
	return true;
}

static bool dev_is_ready(struct dpdk_dev *d)
{
	if (gx_unlikely(!d->up))
		d->up = memif_is_up(d);
	return d->up && !d->quiet && dev_late_flush(d);
}

static void tx_head(const struct dpdk_encap *e, const struct gx_tx *pkt, uint8_t *b)
{
	dpdk_encap_put(e, b, DPDK_HDR_B + pkt->len);
	memcpy(b + DPDK_ENCAP_B, pkt->hdr, DPDK_HDR_B);
}

/* An mbuf with a copy of all of it; NULL: none left. */
static struct rte_mbuf *tx_copy(struct dpdk_dev *d, const struct dpdk_encap *e,
				const struct gx_tx *pkt)
{
	struct rte_mbuf *m = rte_pktmbuf_alloc(d->tx_pool);
	uint8_t *b;

	if (!m)
		return NULL;
	b = rte_pktmbuf_mtod(m, uint8_t *);
	tx_head(e, pkt, b);
	gx_copy(b + DPDK_HEAD_B, pkt->data, pkt->len);
	m->data_len = (uint16_t)(DPDK_HEAD_B + pkt->len);
	m->pkt_len = m->data_len;
	return m;
}

/*
 * Two mbufs of our own, the second one pointing at the payload. They have a reference more than the
 * driver drops, so they never go back to a pool and need not be set up again.
 */
static struct rte_mbuf *tx_gather(struct dpdk_dev *d, unsigned i, const struct dpdk_encap *e,
				  const struct gx_tx *pkt)
{
	struct rte_mbuf *m = d->head[i], *body = d->body[i];

	tx_head(e, pkt, rte_pktmbuf_mtod(m, uint8_t *));
	rte_mbuf_refcnt_set(m, 2);
	m->pkt_len = DPDK_HEAD_B + pkt->len;
	m->nb_segs = pkt->len ? 2 : 1;
	m->next = pkt->len ? body : NULL;
	rte_mbuf_refcnt_set(body, 2);
	body->buf_addr = (void *)(uintptr_t)pkt->data;
	body->buf_len = (uint16_t)pkt->len;
	body->data_len = (uint16_t)pkt->len;
	return m;
}

/* From @i on the driver had no room: keep copies, as the payload may change when we return. */
static unsigned tx_late(struct dpdk_queue *q, struct dpdk_dev *d, enum gx_half half,
			const struct gx_tx pkts[], struct rte_mbuf *const m[], unsigned i,
			unsigned n)
{
	for (; i < n; i++) {
		struct rte_mbuf *keep = m[i];

		if (d->way == DPDK_TX_GATHER)
			keep = tx_copy(d, &q->peer[pkts[i].peer]->encap[half], &pkts[i]);
		if (!keep)
			break;
		d->late[d->nr_late++] = keep;
	}
	return i;
}

/* A packet that the caller must not offer: it ends the queue, as it would otherwise be lost in
 * silence. */
static bool tx_is_wrong(struct dpdk_queue *q, const struct dpdk_dev *d, const struct gx_tx *pkt)
{
	if (gx_likely(pkt->hlen == DPDK_HDR_B && pkt->len + DPDK_HEAD_B <= d->frame_max))
		return false;
	q->fault = pkt->hlen == DPDK_HDR_B ? -EMSGSIZE : -EINVAL;
	return true;
}

/* Up to a burst to one device. Return: how many were taken. */
static unsigned tx_dev(struct dpdk_queue *q, struct dpdk_dev *d, enum gx_half half,
		       const struct gx_tx pkts[], unsigned n)
{
	struct rte_mbuf *m[GX_BURST_MAX];
	unsigned i, sent;

	if (!dev_is_ready(d))
		return 0;
	for (i = 0; i < n; i++) {
		const struct dpdk_encap *e = &q->peer[pkts[i].peer]->encap[half];

		if (tx_is_wrong(q, d, &pkts[i]))
			break;
		m[i] = d->way == DPDK_TX_GATHER ? tx_gather(d, i, e, &pkts[i])
						: tx_copy(d, e, &pkts[i]);
		if (!m[i])
			break;
	}
	sent = dev_tx(d, m, (uint16_t)i);
	return sent == i ? i : tx_late(q, d, half, pkts, m, sent, i);
}

static struct dpdk_dev *tx_dev_of(const struct dpdk_queue *q, uint32_t index)
{
	const struct dpdk_peer *peer = index < GX_PEERS_MAX ? q->peer[index] : NULL;

	return peer && peer->attached && peer->connected ? peer->dev : NULL;
}

static unsigned dpdk_tx_room(struct gx_port_queue *gq, enum gx_half half, uint32_t index)
{
	struct dpdk_dev *d = tx_dev_of(queue_of(gq), index);

	dpdk_enter();
	return d && !queue_of(gq)->fault && dev_is_ready(d) ? GX_BURST_MAX : 0;
}

static unsigned dpdk_tx_burst(struct gx_port_queue *gq, enum gx_half half,
			      const struct gx_tx pkts[], unsigned n)
{
	struct dpdk_queue *q = queue_of(gq);
	unsigned i = 0;

	dpdk_enter();
	while (i < n && !q->fault) {
		struct dpdk_dev *d = tx_dev_of(q, pkts[i].peer);
		unsigned k = 1, taken;

		if (!d)
			break;
		while (i + k < n && k < GX_BURST_MAX && tx_dev_of(q, pkts[i + k].peer) == d)
			k++;
		taken = tx_dev(q, d, half, pkts + i, k);
		i += taken;
		if (taken < k)
			break;
	}
	return i;
}

static unsigned dpdk_tx_reap(struct gx_port_queue *q, uint32_t cookies[], unsigned n)
{
	return 0;
}

static int dpdk_fault(struct gx_port_queue *gq)
{
	return queue_of(gq)->fault;
}

const struct gx_port_ops gx_port_dpdk_ops = {
	.name = "dpdk",
	.open = dpdk_port_open,
	.close = dpdk_port_close,
	.queue_open = dpdk_queue_open,
	.queue_close = dpdk_queue_close,
	.mem_map = dpdk_mem_map,
	.mem_unmap = dpdk_mem_unmap,
	.peer_add = dpdk_peer_add,
	.peer_connect = dpdk_peer_connect,
	.peer_del = dpdk_peer_del,
	.peer_info = dpdk_peer_info,
	.peer_attach = dpdk_peer_attach,
	.peer_detach = dpdk_peer_detach,
	.rx_burst = dpdk_rx_burst,
	.rx_release = dpdk_rx_release,
	.tx_room = dpdk_tx_room,
	.tx_burst = dpdk_tx_burst,
	.tx_reap = dpdk_tx_reap,
	.fault = dpdk_fault,
};
