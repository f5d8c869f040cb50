/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The DPDK port (dataplane/ports/dpdk/) over devices that need no hardware. EAL starts once in a
 * process, so every case runs in forked children: two for memif and veth, which tell each other their addresses over a socket
 * pair, one for loops. Without arguments: options, memif (copying, zero-copy, on huge pages when
 * there are some), ring, null. "veth": af_packet over a veth pair in a private network namespace;
 * 77 where that is refused. "nic ARGS ARGS": two devices that reach each other, as --port has them
 * behind "dpdk:" (test_nic.py).
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "gx_internal/port.h"
#include "ports/dpdk/net.h"

#include <rte_alarm.h>
#include <rte_ethdev.h>

#include <cmocka.h>

#define HDR_B	 38
#define CTL_B	 700
#define CTL_EACH 16 /* data packets for a control packet */
#define HOLD_MAX 512
#define LIMIT_NS 20000000000ull

#define CHECK(cond, ...)                                                                           \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			fprintf(stderr, "%s:%d: [%s] %s: ", __FILE__, __LINE__, e->name, #cond);   \
			fprintf(stderr, __VA_ARGS__);                                              \
			fprintf(stderr, " (why: %s)\n", gx_port_why());                            \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

struct plan {
	const char *args[2]; /* of the two ends; the first is the server */
	bool turns;	     /* both are servers, and connect to one another in turns */
	bool huge;
	unsigned reopen; /* how often the port is opened again, in the same process */
	uint32_t slots, payload_b;
	uint32_t nr_data; /* packets each way */
	uint32_t hold;	  /* buffers kept before they are released */
	uint32_t window;  /* packets sent ahead of what came; 0: no limit */
	enum gx_port_cc cc;
	const char *netns; /* shell commands: before the ends, and in the second end's network
			      namespace */
	const char *netns_inner;
};

/* One end, in its own process. */
struct end {
	const char *name;
	const struct plan *plan;
	unsigned side;
	int sock;
	struct gx_arena *arena;
	struct gx_port *port;
	struct gx_port_queue *q;
	struct gx_stats stats;
	uint32_t peer;
	uint32_t tx_data, tx_ctl, rx_data, rx_ctl;
	uint64_t held[HOLD_MAX];
	unsigned nr_held;
	uint8_t *src; /* payload of all packets, at an offset each */
	uint32_t quantum;
};

static uint8_t pattern(unsigned side, uint32_t i)
{
	return (uint8_t)((i * 2654435761u >> 13) ^ (side ? 0x5a : 0));
}

/* Source ports of paths: no two are the same, and none is a port that packets go to but its half's own. */
static void end_paths(const struct end *e)
{
	uint16_t port[2 * GX_PATHS_MAX];
	unsigned n = 0;

	CHECK(!e->port->caps.paths == (strstr(e->plan->args[e->side], "net_memif") ||
				       strstr(e->plan->args[e->side], "net_ring")),
	      "%u paths", e->port->caps.paths);
	port[n++] = e->q->from[GX_HALF_CTL][0];
	for (unsigned i = 0; i < e->port->caps.paths; i++) {
		port[n] = e->q->from[GX_HALF_DATA][i];
		CHECK(port[n] && (!i || port[n] == e->q->from[GX_HALF_CTL][i]), "path %u", i);
		for (unsigned k = 0; k < n; k++)
			CHECK(port[k] != port[n], "paths %u and %u: port %u", k, n, port[k]);
		n++;
	}
}

static void end_open(struct end *e)
{
	int cpus[1] = {-1};
	struct gx_port_cfg cfg = {.args = e->plan->args[e->side],
				  .nr_queues = 1,
				  .cpus = cpus,
				  .slots = e->plan->slots,
				  .payload_b = e->plan->payload_b,
				  .instance = "gx-test",
				  .bind_host = "127.0.0.1",
				  .server = e->side == 0 || e->plan->turns,
				  .huge = e->plan->huge};
	cpu_set_t before, after;
	int ret = gx_arena_open(1ull << 30, &e->arena);

	CHECK(!ret, "%d", ret);
	cfg.arena = e->arena;
	sched_getaffinity(0, sizeof(before), &before);
	ret = gx_port_dpdk_ops.open(&cfg, &e->port);
	CHECK(!ret, "open: %d", ret);
	sched_getaffinity(0, sizeof(after), &after);
	CHECK(CPU_EQUAL(&before, &after), "open pinned its caller");
	ret = gx_port_dpdk_ops.queue_open(e->port, 0, &e->stats, &e->q);
	CHECK(!ret, "queue_open: %d", ret);
	CHECK(e->q->rx_base >= gx_arena_base(e->arena), "buffers are in the arena");
	end_paths(e);
	e->quantum = e->port->caps.payload_best;
	CHECK(e->quantum % 16 == 0 && e->quantum <= e->port->caps.payload_max, "%u", e->quantum);
	/* To an Ethernet address that has not answered the link sends nothing but probes. */
	CHECK(!(e->port->caps.flags & GX_PORT_NEEDS_PROBE) ==
		      !!(e->port->caps.flags & GX_PORT_LOSSLESS),
	      "%x", e->port->caps.flags);
	e->src = malloc(e->quantum + 65536);
	for (uint32_t i = 0; i < e->quantum + 65536; i++)
		e->src[i] = pattern(e->side, i);
}

static void end_close(struct end *e)
{
	gx_port_dpdk_ops.queue_close(e->q);
	gx_port_dpdk_ops.close(e->port);
	gx_arena_close(e->arena);
	free(e->src);
}

static uint32_t data_len(const struct end *e, uint32_t i)
{
	return i % 7 == 6 ? i % 61 : e->quantum; /* some short ones, some empty */
}

/* Header: number, control packets sent before, and filler. */
static void hdr_put(uint8_t *h, uint32_t number, uint32_t before)
{
	memset(h, 0xa5, HDR_B);
	memcpy(h, &number, 4);
	memcpy(h + 4, &before, 4);
}

static void end_tx_ctl(struct end *e)
{
	struct gx_tx pkt = {.data = e->src + e->tx_ctl % 1000,
			    .len = e->tx_ctl % 5 ? CTL_B : 0,
			    .peer = e->peer,
			    .cookie = UINT32_MAX,
			    .hlen = HDR_B};

	hdr_put(pkt.hdr, e->tx_ctl, e->tx_data);
	if (gx_port_dpdk_ops.tx_room(e->q, GX_HALF_CTL, e->peer))
		e->tx_ctl += gx_port_dpdk_ops.tx_burst(e->q, GX_HALF_CTL, &pkt, 1);
}

static void end_tx_data(struct end *e)
{
	struct gx_tx pkts[32];
	uint8_t *copy[32] = {0};
	unsigned n = 0, taken, room = gx_port_dpdk_ops.tx_room(e->q, GX_HALF_DATA, e->peer);
	uint32_t left = e->plan->nr_data - e->tx_data;

	if (e->plan->window)
		left = GX_MIN(left, e->rx_data + e->plan->window - e->tx_data);
	left = GX_MIN(left, (e->tx_ctl + 1) * CTL_EACH - e->tx_data);
	for (; n < GX_MIN(GX_MIN(left, room), 32u); n++) {
		uint32_t i = e->tx_data + n, len = data_len(e, i);

		/* A buffer that is overwritten as soon as tx_burst returns. */
		copy[n] = malloc(len + 1);
		memcpy(copy[n], e->src + i % 65536, len);
		pkts[n] = (struct gx_tx){.data = copy[n],
					 .len = len,
					 .peer = e->peer,
					 .cookie = UINT32_MAX,
					 .hlen = HDR_B};
		hdr_put(pkts[n].hdr, i, e->tx_ctl);
	}
	taken = n ? gx_port_dpdk_ops.tx_burst(e->q, GX_HALF_DATA, pkts, n) : 0;
	CHECK(taken == n, "tx_room said %u, %u of %u were taken", room, taken, n);
	e->tx_data += taken;
	while (n--) {
		memset(copy[n], 0xee, pkts[n].len);
		free(copy[n]);
	}
}

/* By all its paths in turn: the receiver hears them all the same. */
static void end_path(struct end *e, enum gx_half half)
{
	unsigned n = e->port->caps.paths;

	if (n)
		gx_port_dpdk_ops.path(e->q, half, e->peer, (e->tx_data + e->tx_ctl) % n);
}

static void end_tx(struct end *e)
{
	if (e->tx_data == e->plan->nr_data)
		return;
	end_path(e, GX_HALF_CTL);
	end_path(e, GX_HALF_DATA);
	if (e->tx_data == (e->tx_ctl + 1) * CTL_EACH)
		end_tx_ctl(e);
	else
		end_tx_data(e);
}

static void payload_check(struct end *e, const struct gx_rx *pkt, uint32_t from, uint32_t number)
{
	const uint8_t *b = pkt->data;

	for (uint32_t k = 0; k < pkt->len; k++)
		CHECK(b[k] == pattern(e->side ^ 1, from + k), "byte %u of packet %u", k, number);
}

static void end_rx_one(struct end *e, enum gx_half half, const struct gx_rx *pkt)
{
	uint32_t number, before;

	memcpy(&number, pkt->hdr, 4);
	memcpy(&before, pkt->hdr + 4, 4);
	CHECK(pkt->hlen == HDR_B && pkt->hdr[HDR_B - 1] == 0xa5, "hlen %u", pkt->hlen);
	if (half == GX_HALF_CTL) {
		CHECK(number == e->rx_ctl, "control %u, %u expected", number, e->rx_ctl);
		CHECK(pkt->len == (number % 5 ? CTL_B : 0), "length %u", pkt->len);
		payload_check(e, pkt, number % 1000, number);
		e->rx_ctl++;
		return;
	}
	CHECK(number == e->rx_data, "data %u, %u expected", number, e->rx_data);
	CHECK(before <= e->rx_ctl, "data %u overtook control %u", number, before);
	CHECK(pkt->len == data_len(e, number), "data %u: length %u", number, pkt->len);
	CHECK((char *)pkt->data >= e->q->rx_base &&
		      (uint64_t)((char *)pkt->data - e->q->rx_base) + pkt->len <= 1ull << 32,
	      "outside the range");
	CHECK(!((uintptr_t)pkt->data % 16), "payload is not aligned");
	payload_check(e, pkt, number % 65536, number);
	e->held[e->nr_held++] = pkt->buf;
	e->rx_data++;
}

static bool end_rx(struct end *e, enum gx_half half)
{
	struct gx_rx pkts[GX_BURST_MAX];
	unsigned n = gx_port_dpdk_ops.rx_burst(e->q, half, pkts, half == GX_HALF_CTL ? 8 : 32);

	for (unsigned i = 0; i < n; i++)
		end_rx_one(e, half, &pkts[i]);
	if (e->nr_held >= e->plan->hold || e->rx_data == e->plan->nr_data) {
		gx_port_dpdk_ops.rx_release(e->q, e->held, e->nr_held);
		e->nr_held = 0;
	}
	return n;
}

/* Both directions until all has come. */
static void end_traffic(struct end *e)
{
	uint32_t nr_ctl = (e->plan->nr_data - 1) / CTL_EACH;
	uint64_t until = gx_now_ns() + LIMIT_NS;

	while (e->tx_data < e->plan->nr_data || e->rx_data < e->plan->nr_data ||
	       e->rx_ctl < nr_ctl) {
		bool busy = end_rx(e, GX_HALF_CTL);

		busy |= end_rx(e, GX_HALF_DATA);
		end_tx(e);
		CHECK(!gx_port_dpdk_ops.fault(e->q), "%d", gx_port_dpdk_ops.fault(e->q));
		CHECK(gx_now_ns() < until, "stuck: sent %u+%u, received %u+%u, bad %lu stray %lu",
		      e->tx_data, e->tx_ctl, e->rx_data, e->rx_ctl,
		      gx_stat_get(&e->stats, GX_STAT_RX_BAD),
		      gx_stat_get(&e->stats, GX_STAT_RX_STRAY));
		if (!busy)
			sched_yield();
	}
	CHECK(e->tx_ctl == nr_ctl, "%u control packets sent", e->tx_ctl);
}

/* Wait until the other end is here too. It may need our polling: backlog goes out in a turn. */
static void end_meet(struct end *e)
{
	char c = 'x';

	CHECK(write(e->sock, &c, 1) == 1, "%d", errno);
	while (recv(e->sock, &c, 1, MSG_DONTWAIT) != 1) {
		struct gx_rx pkts[8];

		CHECK(!gx_port_dpdk_ops.rx_burst(e->q, GX_HALF_CTL, pkts, 8), "a packet too many");
		CHECK(!gx_port_dpdk_ops.rx_burst(e->q, GX_HALF_DATA, pkts, 8), "a packet too many");
		CHECK(errno == EAGAIN || errno == EWOULDBLOCK || !errno, "%d", errno);
		sched_yield();
	}
}

/* As the hello goes: the end that dials speaks first, and its peer_add comes first. */
static void end_connect(struct end *e, bool dials)
{
	struct gx_port_addr ours = {.dials = dials}, theirs = {0};
	int ret;

	if (!dials)
		CHECK(read(e->sock, &theirs, sizeof(theirs)) == sizeof(theirs), "%d", errno);
	ret = gx_port_dpdk_ops.peer_add(e->q, &e->peer, &ours);
	CHECK(!ret, "peer_add: %d", ret);
	CHECK(write(e->sock, &ours, sizeof(ours)) == sizeof(ours), "%d", errno);
	if (dials)
		CHECK(read(e->sock, &theirs, sizeof(theirs)) == sizeof(theirs), "%d", errno);
	theirs.b[2] ^= 0xff; /* largest frame: not ours to break, but length is */
	theirs.len = 5;
	ret = gx_port_dpdk_ops.peer_connect(e->q, e->peer, &theirs);
	CHECK(ret == -EPROTO, "a short address was taken: %d", ret);
	theirs.b[2] ^= 0xff;
	theirs.len = ours.len;
	if (e->port->caps.flags & GX_PORT_TRUST) /* one has a path, the other has none */
		theirs.len = (uint16_t)(20 + strnlen((char *)theirs.b + 20, 100));
	ret = gx_port_dpdk_ops.peer_connect(e->q, e->peer, &theirs);
	CHECK(!ret, "peer_connect: %d", ret);
	gx_port_dpdk_ops.peer_attach(e->q, e->peer);
}

static unsigned fds_open(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	while (d && readdir(d))
		n++;
	closedir(d);
	return n;
}

static void end_run(struct end *e)
{
	unsigned fds = 0;

	for (unsigned open = 0; open < 1 + e->plan->reopen; open++) {
		end_open(e);
		for (unsigned round = 0; round < 2; round++) {
			unsigned dialer = e->plan->turns && round ? 0 : 1;

			e->tx_data = e->tx_ctl = e->rx_data = e->rx_ctl = 0;
			end_connect(e, e->side == dialer);
			end_traffic(e);
			end_meet(e);
			gx_port_dpdk_ops.peer_detach(e->q, e->peer);
			gx_port_dpdk_ops.peer_del(e->q, e->peer);
		}
		end_close(e);
		fds = open == 1 ? fds_open() : fds; /* DPDK has made its own by then */
		CHECK(open < 2 || fds_open() == fds, "%u, not %u descriptors", fds_open(), fds);
	}
	free(e);
	exit(0);
}

static int wait_ok(pid_t pid)
{
	int status;

	if (waitpid(pid, &status, 0) != pid)
		return -1;
	if (WIFSIGNALED(status))
		fprintf(stderr, "end was killed by signal %d\n", WTERMSIG(status));
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* In the second end's process: a namespace of its own, into which the first process puts its
 * interface. */
static void netns_enter(const struct plan *plan, int sock)
{
	char c = 0;

	if (unshare(CLONE_NEWNET) || write(sock, &c, 1) != 1 || read(sock, &c, 1) != 1 ||
	    system(plan->netns_inner))
		_exit(2);
}

static int netns_serve(const struct plan *plan, int sock, pid_t pid)
{
	char cmd[256], c;

	snprintf(cmd, sizeof(cmd), plan->netns, (int)pid);
	if (read(sock, &c, 1) != 1 || system(cmd))
		return -1;
	return write(sock, &c, 1) == 1 ? 0 : -1;
}

static int pair_run(const struct plan *plan)
{
	pid_t pid[2];
	int sock[2], ret = 0;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sock), 0);
	for (unsigned side = 2; side--;) {
		pid[side] = fork();
		if (!pid[side]) {
			struct end *e = calloc(1, sizeof(*e));

			prctl(PR_SET_PDEATHSIG, SIGKILL);
			alarm(60);
			close(sock[side ^ 1]);
			if (plan->netns && side)
				netns_enter(plan, sock[side]);
			*e = (struct end){.name = side ? "client" : "server",
					  .plan = plan,
					  .side = side,
					  .sock = sock[side]};
			end_run(e);
		}
		if (plan->netns && side)
			ret |= netns_serve(plan, sock[0], pid[side]);
	}
	close(sock[0]);
	close(sock[1]);
	for (unsigned side = 0; side < 2; side++)
		ret |= wait_ok(pid[side]);
	return ret;
}

/* ---- memif ---- */

static void memif__copying(void **state)
{
	struct plan plan = {.args = {"net_memif,mem=64,zero-copy=no", "net_memif,mem=64"},
			    .slots = 256,
			    .nr_data = 6000,
			    .hold = 200};

	assert_int_equal(pair_run(&plan), 0);
}

static void memif__zero_copy_on_normal_pages(void **state)
{
	struct plan plan = {.args = {"net_memif,mem=64", "net_memif,mem=64"},
			    .slots = 256,
			    .nr_data = 6000,
			    .hold = 200};

	assert_int_equal(pair_run(&plan), 0);
}

/* As ranks of NCCL are: a port has both roles, and which one a device has, the connection says. */
static void memif__either_end_connects(void **state)
{
	struct plan plan = {.args = {"net_memif,mem=64", "net_memif,mem=64"},
			    .turns = true,
			    .reopen = 3,
			    .slots = 256,
			    .nr_data = 3000,
			    .hold = 200};

	assert_int_equal(pair_run(&plan), 0);
}

/* A ring that is shorter than what the receiver holds, so that the sender meets its end. */
static void memif__full_ring(void **state)
{
	struct plan plan = {.args = {"net_memif,mem=64,rsize=6", "net_memif,mem=64"},
			    .slots = 512,
			    .nr_data = 5000,
			    .hold = 400};

	assert_int_equal(pair_run(&plan), 0);
}

static void memif__large_frames(void **state)
{
	struct plan plan = {.args = {"net_memif,mem=64,mtu=9000", "net_memif,mem=64,mtu=9000"},
			    .slots = 256,
			    .nr_data = 1500,
			    .hold = 100};

	assert_int_equal(pair_run(&plan), 0);
}

static unsigned huge_free(void)
{
	FILE *f = fopen("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "r");
	unsigned n = 0;

	if (!f)
		return 0;
	if (fscanf(f, "%u", &n) != 1)
		n = 0;
	fclose(f);
	return n;
}

static void memif__zero_copy_on_huge_pages(void **state)
{
	struct plan plan = {.args = {"net_memif,mem=64", "net_memif,mem=64"},
			    .huge = true,
			    .slots = 256,
			    .nr_data = 6000,
			    .hold = 200};

	if (huge_free() < 64)
		print_message("note: %u free huge pages, 64 wanted: this run is on normal pages\n",
			      huge_free());
	assert_int_equal(pair_run(&plan), 0);
}

/* ---- one process ---- */

static int alone(void (*fn)(struct end *e), const struct plan *plan)
{
	pid_t pid = fork();

	if (!pid) {
		struct end *e = calloc(1, sizeof(*e));

		alarm(60);
		*e = (struct end){.name = "alone", .plan = plan};
		fn(e);
		free(e);
		exit(0);
	}
	return wait_ok(pid);
}

static void ring_run(struct end *e)
{
	struct gx_port_addr addr;
	int ret;

	end_open(e);
	ret = gx_port_dpdk_ops.peer_add(e->q, &e->peer, &addr);
	CHECK(!ret, "%d", ret);
	ret = gx_port_dpdk_ops.peer_connect(e->q, e->peer, &addr);
	CHECK(!ret, "%d", ret);
	gx_port_dpdk_ops.peer_attach(e->q, e->peer);
	e->side = 1; /* what comes is our own */
	for (uint32_t i = 0; i < e->quantum + 65536; i++)
		e->src[i] = pattern(0, i);
	end_traffic(e);
	gx_port_dpdk_ops.peer_detach(e->q, e->peer);
	gx_port_dpdk_ops.peer_del(e->q, e->peer);
	end_close(e);
}

static void ring__loopback(void **state)
{
	struct plan plan = {.args = {"net_ring,mem=64", "net_ring,mem=64"},
			    .slots = 256,
			    .nr_data = 6000,
			    .hold = 100,
			    .window = 400};

	assert_int_equal(alone(ring_run, &plan), 0);
}

/* ---- marks of congestion ---- */

/* A router between the two ends of a ring. owner: the process of the test */
static struct router {
	unsigned data, ctl;  /* frames */
	unsigned ect, other; /* of these, that may be marked, or have any other bits of ECN */
} router;

static uint16_t ip_sum(const uint8_t *ip)
{
	uint32_t sum = 0;

	for (unsigned i = 0; i < 20; i += 2)
		sum += i == 10 ? 0 : dpdk_get16(ip + i);
	sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t) ~((sum & 0xffff) + (sum >> 16));
}

/* Each third data packet is marked if it may be, whatever its number says. */
static bool router_marks(uint32_t number)
{
	return number % 3 == 1;
}

static uint16_t router_turn(uint16_t port, uint16_t queue, struct rte_mbuf *m[], uint16_t n,
			    void *arg)
{
	for (uint16_t i = 0; i < n; i++) {
		uint8_t *b = rte_pktmbuf_mtod(m[i], uint8_t *);
		uint32_t number;

		if (dpdk_get16(b + 12) != 0x0800)
			continue;
		memcpy(&number, b + DPDK_ENCAP_B, 4);
		if (dpdk_get16(b + 24) != ip_sum(b + 14))
			_exit(3);
		if (dpdk_get16(b + 36) & 1)
			router.ctl++;
		else
			router.data++;
		router.ect += (b[15] & 3) == 2;
		router.other += (b[15] & 3) % 2;
		if ((b[15] & 3) != 2 || !router_marks(number))
			continue;
		b[15] |= 3;
		dpdk_put16(b + 24, ip_sum(b + 14));
	}
	return n;
}

static unsigned marks_take(struct end *e, enum gx_half half)
{
	struct gx_rx pkts[32];
	unsigned n, marked = 0;

	memset(pkts, 0xff, sizeof(pkts)); /* the port says it of each packet */
	n = gx_port_dpdk_ops.rx_burst(e->q, half, pkts, 32);
	for (unsigned i = 0; i < n; i++) {
		bool is = *(uint8_t *)&pkts[i].marked == 1;
		uint32_t number;

		memcpy(&number, pkts[i].hdr, 4);
		CHECK(is || !*(uint8_t *)&pkts[i].marked, "not told");
		CHECK(is == (half == GX_HALF_DATA && e->plan->cc == GX_PORT_CC_RATE &&
			     router_marks(number)),
		      "packet %u of half %d: %d", number, half, is);
		marked += is;
		if (half == GX_HALF_DATA)
			gx_port_dpdk_ops.rx_release(e->q, &pkts[i].buf, 1);
	}
	e->rx_data += half == GX_HALF_DATA ? n : 0;
	e->rx_ctl += half == GX_HALF_CTL ? n : 0;
	return marked;
}

static void marks_run(struct end *e)
{
	uint64_t until = gx_now_ns() + LIMIT_NS;
	struct gx_port_addr addr;
	unsigned marked = 0;
	uint16_t id;

	end_open(e);
	e->port->cc = e->plan->cc;
	RTE_ETH_FOREACH_DEV(id)
	CHECK(rte_eth_add_tx_callback(id, 0, router_turn, NULL), "a router");
	CHECK(!gx_port_dpdk_ops.peer_add(e->q, &e->peer, &addr), "add");
	CHECK(!gx_port_dpdk_ops.peer_connect(e->q, e->peer, &addr), "connect");
	gx_port_dpdk_ops.peer_attach(e->q, e->peer);
	while (e->rx_data < e->plan->nr_data) {
		marked += marks_take(e, GX_HALF_CTL);
		marked += marks_take(e, GX_HALF_DATA);
		end_tx(e);
		CHECK(gx_now_ns() < until, "stuck: %u, %u", e->rx_data, e->rx_ctl);
	}
	CHECK(router.data == e->plan->nr_data && router.ctl, "%u, %u", router.data, router.ctl);
	CHECK(!router.other, "%u", router.other);
	if (e->plan->cc == GX_PORT_CC_RATE)
		CHECK(router.ect == router.data && marked == router.data / 3, "%u, %u", router.ect,
		      marked);
	else
		CHECK(!router.ect && !marked, "%u, %u", router.ect, marked);
	gx_port_dpdk_ops.peer_detach(e->q, e->peer);
	gx_port_dpdk_ops.peer_del(e->q, e->peer);
	end_close(e);
}

/* Data of a peer that heeds marks may be marked, and each packet says whether it was. */
static void marks__are_told(void **state)
{
	static const enum gx_port_cc cc[] = {GX_PORT_CC_RATE, GX_PORT_CC_SWIFT, GX_PORT_CC_NONE};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(cc); i++) {
		struct plan plan = {.args = {"net_ring,mem=64", "net_ring,mem=64"},
				    .slots = 256,
				    .nr_data = 600,
				    .window = 100,
				    .cc = cc[i]};

		assert_int_equal(alone(marks_run, &plan), 0);
	}
}

/* net_null makes frames of zeros without end, and takes everything. */
static void null_run(struct end *e)
{
	struct gx_port_addr addr;
	struct gx_rx pkts[GX_BURST_MAX];
	struct gx_tx pkt = {.data = "x", .len = 1, .hlen = HDR_B, .cookie = UINT32_MAX};

	end_open(e);
	CHECK(!gx_port_dpdk_ops.peer_add(e->q, &e->peer, &addr), "add");
	CHECK(!gx_port_dpdk_ops.peer_connect(e->q, e->peer, &addr), "connect");
	CHECK(!gx_port_dpdk_ops.tx_room(e->q, GX_HALF_DATA, e->peer), "not attached yet");
	gx_port_dpdk_ops.peer_attach(e->q, e->peer);
	pkt.peer = e->peer;
	for (int i = 0; i < 10000; i++) {
		CHECK(gx_port_dpdk_ops.tx_burst(e->q, GX_HALF_DATA, &pkt, 1) == 1, "taken");
		CHECK(!gx_port_dpdk_ops.rx_burst(e->q, i % 2, pkts, GX_BURST_MAX), "garbage");
	}
	CHECK(gx_stat_get(&e->stats, GX_STAT_RX_STRAY) > 10000, "counted");
	pkt.len = e->port->caps.payload_max + 100;
	CHECK(!gx_port_dpdk_ops.tx_burst(e->q, GX_HALF_DATA, &pkt, 1), "too large");
	CHECK(gx_port_dpdk_ops.fault(e->q) == -EMSGSIZE, "%d", gx_port_dpdk_ops.fault(e->q));
	gx_port_dpdk_ops.peer_detach(e->q, e->peer);
	gx_port_dpdk_ops.peer_del(e->q, e->peer);
	end_close(e);
}

static void null__garbage_is_counted(void **state)
{
	struct plan plan = {.args = {"net_null,mem=64"}, .slots = 256};

	assert_int_equal(alone(null_run, &plan), 0);
}

static void options_run(struct end *e)
{
	static const struct {
		const char *args, *why;
	} bad[] = {{"", "is no device"},
		   {"eth0", "is no device"},
		   {"net_memif,role=server", "role="},
		   {"net_memif,mtu=10", "1344"},
		   {"net_memif,bsize=100", "16384"},
		   {"net_memif,rsize=99", "6 to 14"},
		   {"net_memif,mtu=12x", "a number"},
		   {"net_memif,ip=300.1.1.1", "IPv4"},
		   {"net_ring,gateway-mac=zz", "MAC"},
		   {"net_memif,a=\"b\"", "not allowed"},
		   {"net_nosuch", "is that driver built in?"}, /* DPDK logs nothing then */
		   {"net_af_packet,iface=nosuchif", "cannot be made: "},
		   {"0000:ff:1f.7", "0000:ff:1f.7"}};
	struct gx_port_cfg cfg = {.nr_queues = 1, .server = true, .bind_host = "127.0.0.1"};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++) {
		struct gx_port *p = NULL;
		int ret;

		cfg.args = bad[i].args;
		gx_port_why_set("%s", "");
		ret = gx_port_dpdk_ops.open(&cfg, &p);
		CHECK(ret < 0 && !p, "\"%s\" was taken", bad[i].args);
		CHECK(strstr(gx_port_why(), bad[i].why), "\"%s\": %s", bad[i].args, gx_port_why());
		fprintf(stderr, "  %-30s %s\n", bad[i].args, gx_port_why());
	}
}

#define GATE_HANDLERS 30
#define GATE_NAP_US   500

/* Bursts of a core, and what runs on DPDK's interrupt thread, where memif's handlers do. */
static struct {
	_Atomic bool in_burst, in_handler;
	_Atomic unsigned bursts, handlers, both;
} meet;

/* Is the other one there, when we come or while we are? */
static void meet_stay(_Atomic bool *in, const _Atomic bool *other)
{
	unsigned both;

	*in = true;
	both = *other;
	usleep(GATE_NAP_US);
	meet.both += both | *other;
	*in = false;
}

static uint16_t meet_burst(uint16_t id, uint16_t queue, struct rte_mbuf *pkts[], uint16_t n,
			   uint16_t max, void *arg)
{
	meet_stay(&meet.in_burst, &meet.in_handler);
	meet.bursts++;
	return n;
}

static void meet_handler(void *arg)
{
	meet_stay(&meet.in_handler, &meet.in_burst);
	meet.handlers++;
}

/* A memif device that nobody connects to is let up often. */
static void gate_run(struct end *e)
{
	struct gx_port_addr addr = {.dials = true};
	struct gx_rx pkts[GX_BURST_MAX];
	uint64_t end_ns = gx_now_ns() + LIMIT_NS;
	unsigned asked = 0, seen = 0;

	e->side = 1;
	end_open(e);
	CHECK(!gx_port_dpdk_ops.peer_add(e->q, &e->peer, &addr), "add");
	gx_port_dpdk_ops.peer_attach(e->q, e->peer);
	for (uint32_t id = 0; (id = rte_eth_find_next((uint16_t)id)) < RTE_MAX_ETHPORTS; id++)
		seen += rte_eth_add_rx_callback((uint16_t)id, 0, meet_burst, NULL) != NULL;
	CHECK(seen, "no device to look into");
	while (meet.handlers < GATE_HANDLERS && gx_now_ns() < end_ns) {
		if (asked == meet.handlers)
			CHECK(!rte_eal_alarm_set(1 + asked++ % 7, meet_handler, NULL), "alarm");
		gx_port_dpdk_ops.rx_burst(e->q, GX_HALF_DATA, pkts, GX_BURST_MAX);
	}
	CHECK(meet.handlers == GATE_HANDLERS, "%u: no moment for the others", meet.handlers);
	CHECK(!meet.both, "of %u bursts %u met a handler", meet.bursts, meet.both);
	CHECK(meet.bursts, "no burst was let in");
	gx_port_dpdk_ops.peer_detach(e->q, e->peer);
	gx_port_dpdk_ops.peer_del(e->q, e->peer);
	end_close(e);
}

/* A server's device is made when its client's address is here: DPDK's places are kept before. */
static void full_run(struct end *e)
{
	uint32_t peer[RTE_MAX_ETHPORTS];
	struct gx_port_addr addr = {.dials = false};

	end_open(e);
	for (unsigned i = 0; i < RTE_MAX_ETHPORTS; i++)
		CHECK(!gx_port_dpdk_ops.peer_add(e->q, &peer[i], &addr), "%u", i);
	CHECK(gx_port_dpdk_ops.peer_add(e->q, &e->peer, &addr) == -ENOSPC, "one too many");
	CHECK(strstr(gx_port_why(), "all are taken"), "why");
	gx_port_dpdk_ops.peer_del(e->q, peer[7]);
	CHECK(!gx_port_dpdk_ops.peer_add(e->q, &peer[7], &addr), "one has gone");
	for (unsigned i = 0; i < RTE_MAX_ETHPORTS; i++)
		gx_port_dpdk_ops.peer_del(e->q, peer[i]);
	end_close(e);
}

static void memif__as_many_as_there_is_room_for(void **state)
{
	struct plan plan = {.args = {"net_memif,mem=256,zero-copy=no", ""}, .slots = 64};

	assert_int_equal(alone(full_run, &plan), 0);
}

/* A handler unmaps what a burst reads. Never do both run. */
static void memif__handlers_and_bursts_apart(void **state)
{
	struct plan plan = {.args = {"net_memif,mem=64", "net_memif,mem=64"}, .slots = 256};

	assert_int_equal(alone(gate_run, &plan), 0);
}

static void options__bad_ones_are_refused(void **state)
{
	struct plan plan = {.nr_data = 0};

	assert_int_equal(alone(options_run, &plan), 0);
}

/* ---- veth ---- */

static int veth_run(const char *driver)
{
	char args[2][64];
	struct plan plan = {
		.args = {args[0], args[1]},
		.slots = 256,
		.nr_data = 3000,
		.hold = 50,
		.window = 128,
		.netns = "ip link set gxb netns %d && ip addr add 10.93.0.1/24 dev gxa && "
			 "ip link set gxa up",
		.netns_inner = "ip addr add 10.93.0.2/24 dev gxb && ip link set gxb up"};

	for (unsigned i = 0; i < 2; i++)
		snprintf(args[i], sizeof(args[i]), "%s,iface=gx%c,mem=64", driver, i ? 'b' : 'a');
	if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET)) {
		printf("skipped: no network namespace for this user: %s\n", strerror(errno));
		return 77;
	}
	if (system("ip link add gxa type veth peer name gxb 2>/dev/null")) {
		printf("skipped: no veth pair can be made here\n");
		return 77;
	}
	if (pair_run(&plan))
		return 1;
	printf("%s over veth: ok\n", driver);
	return 0;
}

/* ---- two devices of the caller's ---- */

static int nic_run(const char *a, const char *b)
{
	struct plan plan = {.args = {a, b},
			    .huge = true,
			    .reopen = 1,
			    .slots = 256,
			    .nr_data = 600,
			    .hold = 50,
			    .window = 64};

	if (pair_run(&plan))
		return 1;
	printf("%s to %s and back: ok\n", a, b);
	return 0;
}

/* ---- without a device ---- */

static void arp__answers_for_our_address(void **state)
{
	static const uint8_t asks[DPDK_ARP_B] = {
		0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0,  0, 0, 0, 7, 8, 6, 0, 1, 8, 0,  6, 4, 0,
		1,    2,    0,	  0,	0,    0,    7, 10, 9, 0, 2, 0, 0, 0, 0, 0, 0, 10, 9, 0, 1};
	static const uint8_t answer[DPDK_ARP_B] = {2,  0, 0, 0, 0, 7, 2, 0, 0, 0, 0,  1, 8, 6,
						   0,  1, 8, 0, 6, 4, 0, 2, 2, 0, 0,  0, 0, 1,
						   10, 9, 0, 1, 2, 0, 0, 0, 0, 7, 10, 9, 0, 2};
	struct dpdk_net net = {.mac = {2, 0, 0, 0, 0, 1}, .ip = 0x0a090001};
	uint8_t b[DPDK_ARP_B];

	memcpy(b, asks, sizeof(b));
	assert_true(dpdk_arp_answer(&net, b, sizeof(b)));
	assert_memory_equal(b, answer, sizeof(b));
	assert_false(dpdk_arp_answer(&net, b, sizeof(b))); /* an answer is no question */
	memcpy(b, asks, sizeof(b));
	assert_false(dpdk_arp_answer(&net, b, sizeof(b) - 1));
	net.ip++;
	assert_false(dpdk_arp_answer(&net, b, sizeof(b)));
	assert_memory_equal(b, asks, sizeof(b));
}

static void options__of_drivers(void **state)
{
	static const struct {
		const char *text, *why;
	} bad[] = {
		{"net_memif,foo=bar", "\"foo=bar\""},
		{"net_memif,bsize=abc", "bsize=abc"},
		{"net_memif,bsize=", "bsize="},
		{"net_memif,bsize=2048,role", "\"role\""},
		{"net_memif,role=server", "gx derives role="},
		{"net_af_packet", "net_af_packet,iface="},
		{"net_af_xdp,queue_count=1", "net_af_xdp,iface="},
	};
	struct dpdk_args a;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++) {
		assert_int_equal(dpdk_args_parse(bad[i].text, &a), -EINVAL);
		assert_non_null(strstr(gx_port_why(), bad[i].why));
	}
	assert_int_equal(dpdk_args_parse("net_memif,bsize=4096,rsize=10,zero-copy=no", &a), 0);
	assert_int_equal(dpdk_args_parse("net_af_packet,iface=eth0", &a), 0);
	assert_int_equal(dpdk_args_parse("net_ring", &a), 0);
}

static void options__address_and_prefix(void **state)
{
	struct dpdk_args a;

	assert_int_equal(dpdk_args_parse("0000:3b:00.0,ip=10.9.1.2/20,mtu=9000,dv=1", &a), 0);
	assert_true(a.pci && a.ip == 0x0a090102 && a.mask == 0xfffff000 && a.mtu == 9000);
	assert_string_equal(a.rest, "dv=1");
	assert_int_equal(dpdk_args_parse("3b:00.0,ip=10.9.1.2", &a), 0);
	assert_true(a.pci && !a.mask);
	assert_int_equal(dpdk_args_parse("3b:00.0,ip=10.9.1.2/33", &a), -EINVAL);
	assert_int_equal(dpdk_args_parse("3b:00.0,ip=10.9.1.2/", &a), -EINVAL);
	assert_int_equal(dpdk_args_parse("3b:00.0,ip=/24", &a), -EINVAL);
}

static void dir_made(const char *path, time_t age_s)
{
	struct timespec t[2] = {{.tv_sec = time(NULL) - age_s}, {.tv_sec = time(NULL) - age_s}};
	char file[128];

	assert_int_equal(mkdir(path, 0700), 0);
	snprintf(file, sizeof(file), "%s/sock", path);
	close(open(file, O_WRONLY | O_CREAT, 0600));
	assert_int_equal(utimensat(AT_FDCWD, path, t, 0), 0);
}

static bool dir_is_there(const char *path)
{
	return !access(path, F_OK);
}

/* What a killed process left goes; what lives, is young, another user's, or has another
 * name stays, and so does a link. */
static void dir_open__sweeps(void **state)
{
	static const char *const names[] = {"gx-test-aaaaaa", "gx-test-bbbbbb", "gx-test-cccccc",
					    "gx-test-long-dddddd", "gx-test-eeeeee"};
	char base[] = "/tmp/gx-dirs-XXXXXX", path[5][64], link[64];
	struct dpdk_dir one, two;
	int fd;

	assert_non_null(mkdtemp(base));
	for (unsigned i = 0; i < 5; i++) {
		snprintf(path[i], sizeof(path[i]), "%s/%s", base, names[i]);
		dir_made(path[i], i == 1 ? 5 : 3600);
	}
	if (!geteuid()) /* another user's; else it goes as the first one does */
		assert_int_equal(chown(path[4], 65534, 65534), 0);
	snprintf(link, sizeof(link), "%s/gx-test-ffffff", base);
	assert_int_equal(symlink(path[0], link), 0);
	fd = open(path[2], O_RDONLY | O_DIRECTORY);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	setenv("XDG_RUNTIME_DIR", base, 1);
	assert_int_equal(dpdk_dir_open("gx-test", &one), 0);
	assert_false(dir_is_there(path[0]));
	assert_true(dir_is_there(path[1]) && dir_is_there(path[2]) && dir_is_there(path[3]));
	assert_true(geteuid() || dir_is_there(path[4]));
	assert_int_equal(unlink(link), 0);
	/* The first one lives, however old it looks. */
	utimensat(AT_FDCWD, one.path, (struct timespec[2]){{.tv_sec = 1}, {.tv_sec = 1}}, 0);
	assert_int_equal(dpdk_dir_open("gx-test", &two), 0);
	assert_true(dir_is_there(one.path));
	dpdk_dir_close(&one);
	dpdk_dir_close(&two);
	dpdk_dir_close(&two); /* none is fine */
	assert_false(dir_is_there(one.path) || dir_is_there(two.path));
	unsetenv("XDG_RUNTIME_DIR");
	close(fd);
	for (unsigned i = 1; i < 5; i++) {
		char file[128];

		snprintf(file, sizeof(file), "%s/sock", path[i]);
		unlink(file);
		rmdir(path[i]);
	}
	assert_int_equal(rmdir(base), 0);
}

static void pci_hint__no_such_device(void **state)
{
	char hint[160];

	dpdk_pci_hint("0000:ff:1f.7", hint, sizeof(hint));
	assert_non_null(strstr(hint, "no such device"));
	dpdk_pci_hint("ff:1f.7", hint, sizeof(hint));
	assert_non_null(strstr(hint, "no such device"));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(options__bad_ones_are_refused),
		cmocka_unit_test(options__of_drivers),
		cmocka_unit_test(options__address_and_prefix),
		cmocka_unit_test(pci_hint__no_such_device),
		cmocka_unit_test(dir_open__sweeps),
		cmocka_unit_test(arp__answers_for_our_address),
		cmocka_unit_test(ring__loopback),
		cmocka_unit_test(marks__are_told),
		cmocka_unit_test(null__garbage_is_counted),
		cmocka_unit_test(memif__as_many_as_there_is_room_for),
		cmocka_unit_test(memif__handlers_and_bursts_apart),
		cmocka_unit_test(memif__copying),
		cmocka_unit_test(memif__zero_copy_on_normal_pages),
		cmocka_unit_test(memif__either_end_connects),
		cmocka_unit_test(memif__full_ring),
		cmocka_unit_test(memif__large_frames),
		cmocka_unit_test(memif__zero_copy_on_huge_pages),
	};

	if (argc > 1 && !strcmp(argv[1], "veth"))
		return veth_run(argc > 2 ? argv[2] : "net_af_packet");
	if (argc == 4 && !strcmp(argv[1], "nic"))
		return nic_run(argv[2], argv[3]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
